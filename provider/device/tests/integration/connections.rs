//! Connections between processes on one address: requests find the listening process, ports have
//! one owner, and survivors notice dead peers. Runs in network namespaces.

use crate::common::ends::{conn_param, conn_param_of};
use crate::common::ids::{CmNode, loopback};
use crate::common::namespace;
use crate::common::peer::{MARK, Peer, ROLE, program};
use roxe_base::random;
use roxe_provider::cm::{
    Address, Channel, ConnParam, Event, EventData, EventKind, Id, PortSpace, RejReason, connections,
};
use roxe_provider::wire::cm::SidrStatus;
use roxe_provider::{Qp, Service};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Runs `test` in a network namespace; `name` is the calling test.
#[track_caller]
fn alone(name: &str, test: impl FnOnce()) {
    namespace::inside(name, namespace::LOOPBACK_UP, "lo", test);
}

/// Peer process: obeys one command per line.
struct Puppet {
    cm_node: CmNode,
    listener: Option<Arc<Id>>,
    /// The connection request that "request" has fetched, until it is accepted.
    request: Option<Event>,
    /// The current connection; without a queue pair if "ask" made it.
    connection: Option<(Arc<Id>, Option<Arc<Qp>>)>,
    /// All ids and queue pairs ever created.
    ids: Vec<Weak<Id>>,
    qps: Vec<Weak<Qp>>,
}

/// Peer process, started by a test.
#[test]
fn peer() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut puppet =
        Puppet { cm_node: CmNode::open(), listener: None, request: None, connection: None, ids: vec![], qps: vec![] };
    for line in std::io::stdin().lines() {
        let answer = puppet.execute(&line.unwrap());
        println!("\n{MARK}{answer}");
    }
}

impl Puppet {
    fn execute(&mut self, line: &str) -> u64 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).map_or(0, |word| word.parse::<u64>().unwrap());
        match words[0] {
            "listen" => self.listen(words[1].parse().unwrap()),
            "serve" => self.serve(number(1), number(2)),
            "request" => self.take_request(),
            "accept" => self.accept(),
            "connect" => self.connect(number(1) as u16),
            "ask" => self.ask(number(1) as u16),
            "response" => self.response(),
            "establish" => self.establish(),
            "disconnect" => self.disconnect(),
            "exit" => std::process::exit(0),
            "event" => self.next_event(),
            "cycle" => self.cycle(number(1) as u16, number(2)),
            "descriptors" => descriptors(),
            "left" => self.left(),
            "fork" => self.fork(),
            "serve_lookup" => self.serve_lookup(number(1)),
            "look_up" => self.look_up(number(1) as u16),
            "counter" => crate::common::counter(&self.cm_node.node.context, words[1]),
            other => panic!("unknown command {other}"),
        }
    }

    /// Listens; returns 0 or the errno.
    fn listen(&mut self, address: SocketAddr) -> u64 {
        match self.cm_node.listen(address, 64) {
            Ok(id) => self.listener = Some(id),
            Err(errno) => return errno as u64,
        }
        0
    }

    /// Accepts connections, with `name` as private data, until `count` of them have ended. Returns
    /// the number of accepted ones.
    fn serve(&mut self, count: u64, name: u64) -> u64 {
        let mut open = Vec::new();
        let (mut accepted, mut ended) = (0, 0);
        while ended < count {
            let event = self.cm_node.event();
            match event.kind {
                EventKind::ConnectRequest => {
                    accepted += 1;
                    let qp = self.cm_node.attach(&event.id);
                    event.id.accept(&conn_param(&name.to_ne_bytes())).unwrap();
                    self.note(&event.id, &qp);
                    open.push((event.id, qp));
                }
                EventKind::Established => {}
                EventKind::Disconnected => {
                    ended += 1;
                    event.id.disconnect().unwrap();
                    event.id.destroy();
                    open.retain(|(id, _)| !Arc::ptr_eq(id, &event.id));
                }
                EventKind::TimewaitExit => {}
                other => panic!("{other:?}"),
            }
        }
        accepted
    }

    /// Fetches a request without answering.
    fn take_request(&mut self) -> u64 {
        self.request = Some(self.cm_node.expect(EventKind::ConnectRequest));
        0
    }

    fn accept(&mut self) -> u64 {
        let id = self.request.take().unwrap().id;
        let qp = self.cm_node.attach(&id);
        id.accept(&conn_param(b"")).unwrap();
        self.connection = Some((id, Some(qp)));
        0
    }

    /// Connects, and returns the server's private data.
    fn connect(&mut self, port: u16) -> u64 {
        let (id, qp) = self.cm_node.connecting(loopback(port));
        let event = self.cm_node.expect(EventKind::Established);
        self.connection = Some((id, Some(qp)));
        u64::from_ne_bytes(*conn_param_of(&event).private_data.first_chunk().unwrap())
    }

    /// Requests a connection without an attached queue pair.
    fn ask(&mut self, port: u16) -> u64 {
        let id = self.cm_node.resolved(loopback(port));
        id.connect(&conn_param(b"")).unwrap();
        self.connection = Some((id, None));
        0
    }

    fn response(&mut self) -> u64 {
        self.cm_node.expect(EventKind::ConnectResponse);
        0
    }

    fn establish(&mut self) -> u64 {
        self.connection.as_ref().unwrap().0.establish().unwrap();
        0
    }

    fn disconnect(&mut self) -> u64 {
        let (id, _) = self.connection.as_ref().unwrap();
        id.disconnect().unwrap();
        let event = self.cm_node.expect(EventKind::Disconnected);
        assert_eq!(event.status, 0);
        id.destroy();
        self.connection = None;
        0
    }

    fn note(&mut self, id: &Arc<Id>, qp: &Arc<Qp>) {
        self.ids.push(Arc::downgrade(id));
        self.qps.push(Arc::downgrade(qp));
    }

    /// Opens and closes `count` connections, one after the other.
    fn cycle(&mut self, port: u16, count: u64) -> u64 {
        for _ in 0..count {
            let (id, qp) = self.cm_node.connecting(loopback(port));
            self.note(&id, &qp);
            self.cm_node.expect(EventKind::Established);
            id.disconnect().unwrap();
            self.cm_node.expect(EventKind::Disconnected);
            id.destroy();
        }
        count
    }

    /// Forks a child that connects and stays; returns its process ID, 0 on failure.
    fn fork(&mut self) -> u64 {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        // SAFETY: the child uses only what the fork handlers promise to work, and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let worked = std::panic::catch_unwind(AssertUnwindSafe(|| self.connect_in_child()));
            writer.write_all(&[u8::from(worked.is_ok())]).unwrap();
            // SAFETY: neither call takes a pointer. The child waits until the test kills it;
            // SIGALRM ends it if the test fails.
            unsafe {
                libc::alarm(60);
                loop {
                    libc::pause();
                }
            }
        }
        let mut worked = [0];
        reader.read_exact(&mut worked).unwrap();
        u64::from(worked[0]) * u64::from(pid.unsigned_abs())
    }

    /// Connects in the child; the parent's port and requests stay the parent's.
    fn connect_in_child(&self) {
        let cm_node = &self.cm_node;
        assert_eq!(cm_node.listen(loopback(7001), 1).err(), Some(libc::EADDRINUSE));
        let listener = cm_node.listen(loopback(7002), 1).unwrap();
        let (active, _qp) = cm_node.connecting(loopback(7002));
        let passive = cm_node.expect(EventKind::ConnectRequest).id;
        let _qp = cm_node.attach(&passive);
        passive.accept(&conn_param(b"")).unwrap();
        let connected = [cm_node.expect(EventKind::Established).id, cm_node.expect(EventKind::Established).id];
        assert!(connected.iter().any(|id| Arc::ptr_eq(id, &active)));
        [active, passive, listener].iter().for_each(|id| id.destroy());
    }

    /// Prints 0 once it listens at port 7001, answers `count` lookups of the datagram service there
    /// with one UD queue pair, and returns the number of that queue pair.
    fn serve_lookup(&mut self, count: u64) -> u64 {
        let listener = Id::create(&self.cm_node.channel, PortSpace::Udp, 0).unwrap();
        listener.bind(&Address::Ip(loopback(7001))).unwrap();
        listener.listen(8).unwrap();
        let qp = self.cm_node.node.qp(Service::Ud);
        println!("\n{MARK}0");
        for _ in 0..count {
            let id = self.cm_node.expect(EventKind::ConnectRequest).id;
            id.accept(&ConnParam { qp_num: qp.qpn().get(), ..conn_param(b"here") }).unwrap();
            id.destroy();
        }
        qp.qpn().get().into()
    }

    /// Looks up a datagram service.
    fn look_up(&mut self, port: u16) -> u64 {
        let id = Id::create(&self.cm_node.channel, PortSpace::Udp, 0).unwrap();
        id.resolve_addr(None, &Address::Ip(loopback(port)), 2000).unwrap();
        self.cm_node.expect(EventKind::AddrResolved);
        id.resolve_route(2000).unwrap();
        self.cm_node.expect(EventKind::RouteResolved);
        id.connect(&conn_param(b"who")).unwrap();
        let event = self.cm_node.event();
        id.destroy();
        match event.data {
            EventData::Ud(found) if event.kind == EventKind::Established => found.qp_num.into(),
            _ => event_code(event.kind, event.status),
        }
    }

    /// Returns the number of ids and queue pairs left after timewait of all connections.
    fn left(&mut self) -> u64 {
        let start = Instant::now();
        let device = self.cm_node.node.context.device();
        while connections(device) > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "{} connections are left", connections(device));
            std::thread::yield_now();
        }
        let ids = self.ids.iter().filter(|id| id.strong_count() > 0).count();
        (ids + self.qps.iter().filter(|qp| qp.strong_count() > 0).count()) as u64
    }

    /// Returns the kind of the next event times 1000, plus its status.
    fn next_event(&mut self) -> u64 {
        let event = self.cm_node.event();
        event.kind as u64 * 1000 + u64::from(event.status.unsigned_abs())
    }
}

/// Returns the number of open descriptors.
fn descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

fn start() -> Peer {
    Peer::start("puppet", &[])
}

fn ask(peer: &mut Peer, line: &str) -> u64 {
    peer.ask(line)[0]
}

/// Returns the expected answer of [`Puppet::next_event`].
fn event_code(kind: EventKind, status: i32) -> u64 {
    kind as u64 * 1000 + status as u64
}

#[test]
fn connect_request_finds_listening_process() {
    alone("connect_request_finds_listening_process", || {
        let mut servers: Vec<_> = (0..3).map(|_| start()).collect();
        let mut clients: Vec<_> = (0..3).map(|_| start()).collect();
        for (n, server) in servers.iter_mut().enumerate() {
            assert_eq!(ask(server, &format!("listen 127.0.0.1:{}", 7001 + n)), 0);
            server.send_line(&format!("serve 3 {n}"));
        }
        for client in &mut clients {
            for n in 0..3 {
                assert_eq!(ask(client, &format!("connect {}", 7001 + n)), n, "the process that listens there accepts");
                assert_eq!(ask(client, "disconnect"), 0);
            }
        }
        assert!(servers.iter_mut().all(|server| server.read_line() == "3"));
    });
}

#[test]
fn twenty_processes_connect_to_each_other() {
    const EACH: u64 = 10;
    alone("twenty_processes_connect_to_each_other", || {
        let mut servers: Vec<_> = (0..EACH).map(|_| start()).collect();
        let mut clients: Vec<_> = (0..EACH).map(|_| start()).collect();
        for (n, server) in (0..).zip(&mut servers) {
            let address = ["127.0.0.1", "0.0.0.0", "[::]"][n as usize % 3];
            assert_eq!(ask(server, &format!("listen {address}:{}", 7001 + n)), 0);
            server.send_line(&format!("serve {EACH} {n}"));
        }
        for turn in 0..EACH {
            let to = |n: u64| (n + turn) % EACH;
            (0..).zip(&mut clients).for_each(|(n, client)| client.send_line(&format!("connect {}", 7001 + to(n))));
            (0..).zip(&mut clients).for_each(|(n, client)| assert_eq!(client.read_line(), to(n).to_string()));
            clients.iter_mut().for_each(|client| client.send_line("disconnect"));
            clients.iter_mut().for_each(|client| assert_eq!(client.read_line(), "0"));
        }
        assert!(servers.iter_mut().all(|server| server.read_line() == EACH.to_string()));
    });
}

#[test]
fn lookup_finds_serving_process() {
    alone("lookup_finds_serving_process", || {
        let [mut server, mut other, mut client] = [start(), start(), start()];
        assert_eq!(ask(&mut other, "listen 127.0.0.1:7001"), 0, "another port space");
        assert_eq!(ask(&mut server, "serve_lookup 3"), 0);
        let found = [0; 3].map(|_| ask(&mut client, "look_up 7001"));
        let answered: u64 = server.read_line().parse().unwrap();
        assert_eq!(found, [answered; 3]);
        let refused = event_code(EventKind::Unreachable, SidrStatus::Unsupported.code().into());
        assert_eq!(ask(&mut client, "look_up 7009"), refused);
    });
}

#[test]
fn stopped_processes_do_not_block_connecting() {
    // The kernel chooses one of the sockets that share the address: among so many almost always one
    // of a stopped process.
    const STOPPED_PEERS: usize = 30;
    let start = || Peer::start("puppet", &[("ROXE_LINK", "auto")]);
    alone("stopped_processes_do_not_block_connecting", || {
        let [mut server, mut client] = [start(), start()];
        assert_eq!(ask(&mut server, "listen 127.0.0.1:7001"), 0);
        let mut still: Vec<_> = (0..STOPPED_PEERS).map(|_| start()).collect();
        for (n, peer) in still.iter_mut().enumerate() {
            assert_eq!(ask(peer, &format!("listen 127.0.0.1:{}", 7100 + n)), 0);
            peer.stop();
        }
        server.send_line("serve 1 5");
        assert_eq!([ask(&mut client, "connect 7001"), ask(&mut client, "disconnect")], [5, 0]);
        assert_eq!(server.read_line(), "1");
    });
}

#[test]
fn forked_child_has_own_ports() {
    alone("forked_child_has_own_ports", || {
        let [mut first, mut second, mut client] = [start(), start(), start()];
        assert_eq!(ask(&mut first, "listen 127.0.0.1:7001"), 0);
        let child = ask(&mut first, "fork");
        assert_ne!(child, 0, "the child could not connect");
        first.send_line("serve 1 1");
        assert_eq!([ask(&mut client, "connect 7001"), ask(&mut client, "disconnect")], [1, 0]);
        assert_eq!(first.read_line(), "1");
        kill(first);
        assert_eq!(ask(&mut second, "listen 127.0.0.1:7001"), 0, "a child does not hold the port of its parent");
        // SAFETY: a child of our child, which still runs and which no other process ends.
        assert_eq!(unsafe { libc::kill(child as i32, libc::SIGKILL) }, 0);
    });
}

#[test]
fn connect_without_listener_is_rejected() {
    alone("connect_without_listener_is_rejected", || {
        let (mut one, mut other) = (start(), start());
        assert_eq!(ask(&mut other, "listen 127.0.0.1:7001"), 0);
        // Either process may get the request; both know that no process listens.
        for port in 8000..8010 {
            assert_eq!(ask(&mut one, &format!("ask {port}")), 0);
            let refused = event_code(EventKind::Rejected, RejReason::InvalidServiceId.code().into());
            assert_eq!(ask(&mut one, "event"), refused);
        }
    });
}

#[test]
fn port_has_one_owner_until_it_dies() {
    alone("port_has_one_owner_until_it_dies", || {
        let [mut first, mut second, mut client] = [start(), start(), start()];
        assert_eq!(ask(&mut first, "listen 127.0.0.1:7001"), 0);
        assert_eq!(ask(&mut second, "listen 127.0.0.1:7001"), libc::EADDRINUSE as u64);
        assert_eq!(ask(&mut second, "listen 0.0.0.0:7001"), libc::EADDRNOTAVAIL as u64);
        assert_eq!(ask(&mut second, "listen [::]:7001"), libc::EADDRNOTAVAIL as u64);
        first.send_line("serve 1 1");
        assert_eq!([ask(&mut client, "connect 7001"), ask(&mut client, "disconnect")], [1, 0]);
        assert_eq!(first.read_line(), "1");
        first.signal(libc::SIGKILL);
        drop(first);
        assert_eq!(ask(&mut second, "listen 0.0.0.0:7001"), 0);
        second.send_line("serve 1 2");
        assert_eq!([ask(&mut client, "connect 7001"), ask(&mut client, "disconnect")], [2, 0]);
        assert_eq!(second.read_line(), "1");
    });
}

/// Starts a server and a client; the server has fetched the client's request.
fn connection_request() -> (Peer, Peer) {
    let (mut server, mut client) = (start(), start());
    assert_eq!(ask(&mut server, "listen 127.0.0.1:7001"), 0);
    assert_eq!([ask(&mut client, "ask 7001"), ask(&mut server, "request")], [0, 0]);
    (server, client)
}

/// Returns the processes of [`connection_request`], connected.
fn connected() -> (Peer, Peer) {
    let (mut server, mut client) = connection_request();
    assert_eq!([ask(&mut server, "accept"), ask(&mut client, "response")], [0, 0]);
    assert_eq!(ask(&mut client, "establish"), 0);
    assert_eq!(ask(&mut server, "event"), event_code(EventKind::Established, 0));
    (server, client)
}

/// Kills a process and waits for its end.
fn kill(peer: Peer) {
    peer.signal(libc::SIGKILL);
    drop(peer);
}

// Another process answers for a dead one, and rejects communication ids that it does not know.
const UNKNOWN: RejReason = RejReason::InvalidCommId;

#[test]
fn client_is_rejected_if_server_dies_before_accept() {
    alone("client_is_rejected_if_server_dies_before_accept", || {
        let (server, mut client) = connection_request();
        kill(server);
        // The request is retransmitted, and no process listens any more.
        let refused = event_code(EventKind::Rejected, RejReason::InvalidServiceId.code().into());
        assert_eq!(ask(&mut client, "event"), refused);
    });
}

#[test]
fn server_is_rejected_if_client_dies_before_accept() {
    alone("server_is_rejected_if_client_dies_before_accept", || {
        let (mut server, client) = connection_request();
        kill(client);
        assert_eq!(ask(&mut server, "accept"), 0);
        assert_eq!(ask(&mut server, "event"), event_code(EventKind::Rejected, UNKNOWN.code().into()));
    });
}

#[test]
fn server_is_rejected_if_client_dies_before_rtu() {
    alone("server_is_rejected_if_client_dies_before_rtu", || {
        let (mut server, mut client) = connection_request();
        assert_eq!([ask(&mut server, "accept"), ask(&mut client, "response")], [0, 0]);
        kill(client);
        assert_eq!(ask(&mut server, "event"), event_code(EventKind::Rejected, UNKNOWN.code().into()));
    });
}

#[test]
fn client_is_disconnected_if_server_dies_before_rtu() {
    alone("client_is_disconnected_if_server_dies_before_rtu", || {
        let (mut server, mut client) = connection_request();
        assert_eq!([ask(&mut server, "accept"), ask(&mut client, "response")], [0, 0]);
        kill(server);
        assert_eq!(ask(&mut client, "establish"), 0);
        assert_eq!(ask(&mut client, "event"), event_code(EventKind::Disconnected, 0));
    });
}

#[test]
fn survivor_disconnects_after_peer_was_killed() {
    alone("survivor_disconnects_after_peer_was_killed", || {
        let (server, mut client) = connected();
        kill(server);
        assert_eq!(ask(&mut client, "disconnect"), 0);
        let (mut server, client) = connected();
        kill(client);
        assert_eq!(ask(&mut server, "disconnect"), 0);
    });
}

#[test]
fn exiting_server_rejects_pending_request() {
    alone("exiting_server_rejects_pending_request", || {
        let (mut server, mut client) = connection_request();
        server.send_line("exit");
        // Unlike a killed process, this one rejects its requests.
        let refused = event_code(EventKind::Rejected, RejReason::ConsumerDefined.code().into());
        assert_eq!(ask(&mut client, "event"), refused);
    });
}

// clause: CM-PEER-GONE
#[test]
fn killed_peer_is_detected_without_traffic() {
    alone("killed_peer_is_detected_without_traffic", || {
        let over = event_code(EventKind::Disconnected, 0);
        let (server, mut client) = connected();
        kill(server);
        assert_eq!(ask(&mut client, "event"), over);
        let (mut server, client) = connected();
        kill(client);
        assert_eq!(ask(&mut server, "event"), over);
    });
}

/// `ROXE_TEST_CONNECTIONS`: number of connections.
#[test]
fn ended_connections_leave_no_state() {
    let count: u64 = std::env::var("ROXE_TEST_CONNECTIONS").map_or(2000, |count| count.parse().unwrap());
    alone("ended_connections_leave_no_state", || {
        let (mut server, mut client) = (start(), start());
        assert_eq!(ask(&mut server, "listen 127.0.0.1:7001"), 0);
        // The first round opens descriptors that stay open.
        let mut before = [0; 2];
        for count in [1, count] {
            server.send_line(&format!("serve {count} 0"));
            assert_eq!(ask(&mut client, &format!("cycle 7001 {count}")), count);
            assert_eq!(server.read_line(), count.to_string());
            assert_eq!([ask(&mut server, "left"), ask(&mut client, "left")], [0, 0]);
            let now = [ask(&mut server, "descriptors"), ask(&mut client, "descriptors")];
            assert!(before == [0; 2] || now == before, "descriptors: {before:?} before, {now:?} now");
            before = now;
        }
    });
}

#[test]
fn forked_child_draws_other_random_numbers() {
    assert!(program("binds_and_forks").env(ROLE, "binds").status().unwrap().success());
}

/// Binds a port on all addresses and forks, in a process started by the test above; the child draws
/// a random number.
#[test]
fn binds_and_forks() {
    if std::env::var(ROLE).as_deref() != Ok("binds") {
        return;
    }
    let channel = Channel::create().unwrap();
    let id = Id::create(&channel, PortSpace::Tcp, 0).unwrap();
    id.bind(&Address::Ip(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))).unwrap();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child only draws, writes and ends.
    if unsafe { libc::fork() } == 0 {
        writer.write_all(&random::number().unwrap().to_ne_bytes()).unwrap();
        // SAFETY: takes nothing.
        unsafe { libc::_exit(0) };
    }
    let mut drawn = [0; 8];
    reader.read_exact(&mut drawn).unwrap();
    assert_ne!(u64::from_ne_bytes(drawn), random::number().unwrap());
}
