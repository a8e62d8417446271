"""A program with ordinary sockets: a server that echoes, and clients that compare the echo with what they have sent.

    sockets.py KIND server ADDRESS PORT CLIENTS     ends once this number of clients has been served
    sockets.py KIND client ADDRESS PORT NUMBER      client NUMBER; prints "good" if every byte was right

KIND: blocking, select, poll, epoll, edge (edge-triggered epoll), asyncio, fork, datagram, spawn (starts programs between
messages), addressed (answers with sendto and sendmsg to an address that Linux ignores).
"""

import asyncio
import os
import random
import select
import selectors
import socket
import socketserver
import subprocess
import sys
import threading

SIZE = 300_000


def message(number, size=SIZE):
    """Returns the bytes that client `number` sends."""
    return random.Random(number).randbytes(size)


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listener(address, port):
    return socket.create_server((address, port), family=family(address), backlog=32)


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)


def serve_blocking(address, port, clients):
    threads = []
    with listener(address, port) as server:
        for _ in range(clients):
            connection, _ = server.accept()
            threads.append(threading.Thread(target=serve_one, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()


def serve_one(connection):
    with connection:
        echo(connection)


def serve_spawn(address, port, clients):
    """A child closes its inherited sockets before it calls exec; that must not end the connection of its parent."""
    with listener(address, port) as server:
        for _ in range(clients):
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(65536):
                    subprocess.run(["true"], check=True, close_fds=True)
                    connection.sendall(data)


def serve_addressed(address, port, clients):
    """Answers to an address at which nobody listens; Linux ignores the address, because the stream is connected."""
    other = (address, 1)
    with listener(address, port) as server:
        for _ in range(clients):
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(65536):
                    half = len(data) // 2
                    for part, send in [
                        (data[:half], lambda part: connection.sendto(part, other)),
                        (data[half:], lambda part: connection.sendmsg([part], [], 0, other)),
                    ]:
                        while part:
                            part = part[send(part) :]


def serve_ready(make, address, port, clients):
    """Serves all clients in one thread, with the selector that `make` returns."""
    waiting, done = {}, 0
    with make() as selector, listener(address, port) as server:
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ)
        while done < clients:
            for key, events in selector.select():
                if key.fileobj is server:
                    connection, _ = server.accept()
                    connection.setblocking(False)
                    waiting[connection] = bytearray()
                    selector.register(connection, selectors.EVENT_READ)
                else:
                    done += step(selector, key.fileobj, waiting, events)


def step(selector, connection, waiting, events):
    """Receives and sends what is possible without blocking; returns 1 if the client has left."""
    out = waiting[connection]
    if events & selectors.EVENT_READ:
        data = connection.recv(65536)
        out += data
        if not data and not out:
            selector.unregister(connection)
            del waiting[connection]
            connection.close()
            return 1
    if out:
        try:
            del out[: connection.send(out)]
        except BlockingIOError:
            pass
    selector.modify(connection, selectors.EVENT_WRITE if out else selectors.EVENT_READ)
    return 0


def serve_edge(address, port, clients):
    """Serves with edge-triggered epoll, so that each socket must be read until it would block."""
    connections, done = {}, 0
    with select.epoll() as epoll, listener(address, port) as server:
        server.setblocking(False)
        epoll.register(server, select.EPOLLIN | select.EPOLLET)
        while done < clients:
            for fd, _ in epoll.poll():
                if fd != server.fileno():
                    done += drain(connections, fd)
                    continue
                while True:
                    try:
                        connection, _ = server.accept()
                    except BlockingIOError:
                        break
                    connection.setblocking(False)
                    connections[connection.fileno()] = (connection, bytearray())
                    epoll.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)


def drain(connections, fd):
    connection, out = connections[fd]
    ended = False
    try:
        while data := connection.recv(10_000):
            out += data
        ended = True
    except BlockingIOError:
        pass
    try:
        while out:
            del out[: connection.send(out)]
    except BlockingIOError:
        pass
    if ended and not out:
        del connections[fd]
        connection.close()
        return 1
    return 0


def serve_asyncio(address, port, clients):
    asyncio.run(serve_tasks(address, port, clients))


async def serve_tasks(address, port, clients):
    left, over = clients, asyncio.Event()

    async def serve(reader, writer):
        nonlocal left
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        left -= 1
        if left == 0:
            over.set()

    async with await asyncio.start_server(serve, address, port, family=family(address)):
        await over.wait()


class Forking(socketserver.ForkingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 32


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        echo(self.request)


def serve_fork(address, port, clients):
    Forking.address_family = family(address)
    with Forking((address, port), Handler) as server:
        for _ in range(clients):
            server.handle_request()


def serve_datagram(address, port, clients):
    with socket.socket(family(address), socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        left = clients
        while left:
            data, sender = server.recvfrom(65536)
            server.sendto(data, sender)
            left -= data == b"over"


def ask_stream(address, port, number):
    data = message(number)
    with socket.create_connection((address, port)) as connection:
        assert connection.getpeername()[1] == port
        sender = threading.Thread(target=send_all, args=(connection, data))
        sender.start()
        received = bytearray()
        while chunk := connection.recv(65536):
            received += chunk
        sender.join()
    return received == data


def send_all(connection, data):
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def ask_turns(address, port, number):
    """Sends in parts, and waits for the echo of each part before the next."""
    data = message(number)
    with socket.create_connection((address, port)) as connection:
        for at in range(0, len(data), 50_000):
            part = data[at : at + 50_000]
            connection.sendall(part)
            if connection.recv(len(part), socket.MSG_WAITALL) != part:
                return False
    return True


def ask_asyncio(address, port, number):
    return asyncio.run(ask_task(address, port, number))


async def ask_task(address, port, number):
    data = message(number)
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(data)
    writer.write_eof()
    received = await reader.read()
    writer.close()
    await writer.wait_closed()
    return received == data


def ask_datagram(address, port, number):
    with socket.socket(family(address), socket.SOCK_DGRAM) as client:
        client.connect((address, port))
        for size in (1, 100, 1000):
            data = message(number, size)
            client.send(data)
            if client.recv(65536) != data:
                return False
        client.send(b"over")
        return client.recv(65536) == b"over"


def main(kind, role, address, port, number):
    servers = {
        "blocking": serve_blocking,
        "spawn": serve_spawn,
        "addressed": serve_addressed,
        "select": lambda *where: serve_ready(selectors.SelectSelector, *where),
        "poll": lambda *where: serve_ready(selectors.PollSelector, *where),
        "epoll": lambda *where: serve_ready(selectors.EpollSelector, *where),
        "edge": serve_edge,
        "asyncio": serve_asyncio,
        "fork": serve_fork,
        "datagram": serve_datagram,
    }
    clients = {"fork": ask_turns, "asyncio": ask_asyncio, "datagram": ask_datagram}
    if role == "server":
        servers[kind](address, port, number)
        return 0
    good = clients.get(kind, ask_stream)(address, port, number)
    print("good" if good else "wrong bytes", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
