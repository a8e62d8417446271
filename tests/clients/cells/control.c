// The TCP control connection: lines of text, written and read whole.
#include "cells.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int64_t now_ms(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_MONOTONIC, &t); // cannot fail: the clock exists and `t` is ours
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void between_polls(unsigned polls)
{
    if (polls % POLLS_PER_LOOK != 0)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static struct addrinfo *resolve(const char *host, const char *port, int family, struct report *report)
{
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(host, port, &hints, &found);
    if (error != 0) {
        wrong(report, BROKEN, "address %s port %s: %s", host ? host : "any", port, gai_strerror(error));
        return NULL;
    }
    return found;
}

// Lines are short and each is waited for: never hold one back.
static bool prompt(int fd, struct report *report)
{
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
        return call_failed(report, "setsockopt TCP_NODELAY", errno);
    return true;
}

bool control_connect(struct control *c, const char *host, const char *port, int family, struct report *report)
{
    struct addrinfo *found = resolve(host, port, family, report);
    int error = 0;
    *c = (struct control){.fd = -1};
    for (struct addrinfo *a = found; a && c->fd < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            c->fd = fd;
        } else {
            error = errno;
            if (fd >= 0)
                close(fd);
        }
    }
    if (!found)
        return false;
    freeaddrinfo(found);
    if (c->fd < 0)
        return call_failed(report, "connect", error);
    return prompt(c->fd, report);
}

// One listening socket on `a`, or -1.
static int listen_on(const struct addrinfo *a)
{
    int on = 1, off = 0;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0)
        return -1;
    bool ok = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    if (ok && a->ai_family == AF_INET6)
        ok = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0;
    if (ok && bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 16) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int control_listen(const char *port, int family, struct report *report)
{
    // An IPv6 socket takes IPv4 connections too; without IPv6 there is only the other.
    int families[] = {family == AF_UNSPEC ? AF_INET6 : family, family == AF_UNSPEC ? AF_INET : family};
    int fd = -1;
    for (int i = 0; i < 2 && fd < 0; i++) {
        struct addrinfo *found = resolve(NULL, port, families[i], report);
        if (!found)
            return -1;
        fd = listen_on(found);
        freeaddrinfo(found);
    }
    if (fd < 0)
        call_failed(report, "listen", errno);
    return fd;
}

void control_close(struct control *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

bool control_say(struct control *c, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (length < 0 || length >= (int)sizeof line)
        return false;
    line[length++] = '\n';
    for (int done = 0; done < length;) {
        ssize_t n = send(c->fd, line + done, (size_t)(length - done), MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return false;
        done += n > 0 ? (int)n : 0;
    }
    return true;
}

// Takes the first line out of the buffer.
static bool take_line(struct control *c, char line[LINE_BYTES])
{
    char *end = memchr(c->buffer, '\n', c->have);
    if (!end)
        return false;
    size_t length = (size_t)(end - c->buffer);
    memcpy(line, c->buffer, length);
    line[length] = '\0';
    c->have -= length + 1;
    memmove(c->buffer, end + 1, c->have);
    return true;
}

// Reads what has come; false when the connection is over.
static bool read_more(struct control *c)
{
    if (c->have == sizeof c->buffer)
        return false; // a line longer than any of ours
    ssize_t n = recv(c->fd, c->buffer + c->have, sizeof c->buffer - c->have, MSG_DONTWAIT);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
    c->have += (size_t)n;
    return n > 0;
}

enum heard control_hear(struct control *c, char line[LINE_BYTES], int64_t wait_ms)
{
    int64_t deadline = now_ms() + wait_ms;
    for (;;) {
        if (take_line(c, line))
            return LINE;
        int64_t left = deadline - now_ms();
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        int ready = poll(&p, 1, left > 0 ? (int)left : 0);
        if (ready < 0 && errno != EINTR)
            return GONE;
        if (ready > 0 && !read_more(c))
            return GONE;
        if (ready == 0 && left <= 0)
            return NOTHING;
    }
}

bool control_pending(struct control *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    return memchr(c->buffer, '\n', c->have) || poll(&p, 1, 0) != 0;
}

bool control_local_gid(const struct control *c, union ibv_gid *gid)
{
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    if (getsockname(c->fd, (struct sockaddr *)&name, &length) != 0)
        return false;
    memset(gid, 0, sizeof *gid);
    if (name.ss_family == AF_INET6) {
        memcpy(gid->raw, &((struct sockaddr_in6 *)&name)->sin6_addr, sizeof gid->raw);
        return true;
    }
    gid->raw[10] = gid->raw[11] = 0xff;
    memcpy(gid->raw + 12, &((struct sockaddr_in *)&name)->sin_addr, 4);
    return name.ss_family == AF_INET;
}
