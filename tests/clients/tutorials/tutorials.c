// Three programs that make the calls of a well-known tutorial on librdmacm ("The geek in the
// corner"), in the same order: a message in each direction; memory that both sides write or read; a
// file, sent in pieces.
//
//   tutorials {basic|write|read|file} server PORT CONNECTIONS
//   tutorials {basic|write|read|file} client ADDRESS PORT [FILE]
//
// One thread waits for the events of the connection manager, another for completions. At
// DISCONNECTED, the first thread frees everything, so all earlier completions must have been
// reported before that event: either the exchange is complete, or the completion channel has an
// event that the second thread has not read yet. The server of `write` and `read` listens on the
// IPv6 wildcard.
#include <arpa/inet.h>
#include <fcntl.h>
#include <libgen.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 1024, CHUNK = 1 << 20, TIMEOUT_MS = 500, NAME = 256 };

enum program { BASIC, WRITE, READ, FILE_TRANSFER };

enum message_kind { TELLS_REGION, READY, DONE };

struct message {
    enum message_kind kind;
    uint64_t addr;
    uint32_t rkey;
};

struct connection {
    struct rdma_cm_id *id;
    volatile int established;
    int sent, received, complete;
    struct message *out, *in;
    struct ibv_mr *out_mr, *in_mr;
    // Memory that this side sends, and that the peer accesses; pieces of a file are always in
    // `local`.
    char *local, *remote;
    struct ibv_mr *local_mr, *remote_mr;
    struct message peer;
    char name[NAME];
    int file;
};

static enum program program;
static int is_server;
static const char *file_path;

// Created with the first connection, and shared by all.
static struct ibv_context *verbs;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
// Held from getting an event of the completion channel until all completions are handled.
static pthread_mutex_t handling = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

#define OK(call)                              \
    do {                                      \
        if (call)                             \
            die("%s: %m", #call);             \
    } while (0)

static void *allocate(size_t size)
{
    void *bytes = calloc(1, size);
    if (!bytes)
        die("no memory");
    return bytes;
}

static struct ibv_mr *registered(void *at, size_t size, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, at, size, access);
    if (!mr)
        die("ibv_reg_mr: %m");
    return mr;
}

static void receive(struct connection *c)
{
    struct ibv_sge sge = {(uintptr_t)c->in, sizeof *c->in, c->in_mr ? c->in_mr->lkey : 0};
    struct ibv_recv_wr wr = {.wr_id = (uintptr_t)c, .sg_list = &sge, .num_sge = 1}, *bad;
    if (program == BASIC)
        sge = (struct ibv_sge){(uintptr_t)c->remote, TEXT, c->remote_mr->lkey};
    // Pieces of a file carry their number of bytes as immediate data.
    if (program == FILE_TRANSFER && is_server)
        wr = (struct ibv_recv_wr){.wr_id = (uintptr_t)c};
    OK(ibv_post_recv(c->id->qp, &wr, &bad));
}

static void post(struct connection *c, struct ibv_send_wr *wr, void *at, uint32_t length, struct ibv_mr *mr)
{
    struct ibv_sge sge = {(uintptr_t)at, length, mr->lkey};
    struct ibv_send_wr *bad;
    wr->wr_id = (uintptr_t)c;
    wr->send_flags = IBV_SEND_SIGNALED;
    wr->sg_list = length ? &sge : NULL;
    wr->num_sge = length ? 1 : 0;
    OK(ibv_post_send(c->id->qp, wr, &bad));
}

static void send_message(struct connection *c, enum message_kind kind)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND};
    struct ibv_mr *tell = program == FILE_TRANSFER ? c->local_mr : c->remote_mr;
    *c->out = (struct message){kind, (uintptr_t)tell->addr, tell->rkey};
    // A completion of the peer's first message may come before the ESTABLISHED event.
    while (!c->established)
        ;
    post(c, &wr, c->out, sizeof *c->out, c->out_mr);
}

static void send_piece(struct connection *c, uint32_t length)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(length)};
    wr.wr.rdma.remote_addr = c->peer.addr;
    wr.wr.rdma.rkey = c->peer.rkey;
    post(c, &wr, c->local, length, c->local_mr);
}

// --- a message in each direction ---

static void basic_completed(struct connection *c, const struct ibv_wc *wc)
{
    if (wc->opcode & IBV_WC_RECV)
        printf("received: %s\n", c->remote);
    if (c->sent + c->received == 2) {
        c->complete = 1;
        if (!is_server)
            rdma_disconnect(c->id);
    }
}

// --- memory written or read ---

static void memory_completed(struct connection *c, const struct ibv_wc *wc)
{
    if (wc->opcode & IBV_WC_RECV && c->in->kind == TELLS_REGION) {
        c->peer = *c->in;
        receive(c);
        if (c->sent == 0 && is_server)
            send_message(c, TELLS_REGION);
    }
    if (c->sent == 1 && c->received == 1) {
        struct ibv_send_wr wr = {.opcode = program == WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ};
        wr.wr.rdma.remote_addr = c->peer.addr;
        wr.wr.rdma.rkey = c->peer.rkey;
        post(c, &wr, c->local, TEXT, c->local_mr);
        send_message(c, DONE);
    } else if (c->sent == 3 && c->received == 2) {
        // Prints what the peer has written here, or what was read from it.
        printf("remote buffer: %s\n", program == WRITE ? c->remote : c->local);
        c->complete = 1;
        rdma_disconnect(c->id);
    }
}

// --- a file ---

static void file_server_completed(struct connection *c, const struct ibv_wc *wc)
{
    if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM)
        return;
    uint32_t length = ntohl(wc->imm_data);
    if (length == 0) {
        c->complete = 1;
        send_message(c, DONE);
        return;
    }
    if (!c->name[0]) {
        snprintf(c->name, NAME, "%s", c->local);
        c->file = open(c->name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (c->file < 0)
            die("%s: %m", c->name);
    } else if (write(c->file, c->local, length) != (ssize_t)length) {
        die("%s: %m", c->name);
    }
    receive(c);
    send_message(c, READY);
}

static void file_client_completed(struct connection *c, const struct ibv_wc *wc)
{
    if (!(wc->opcode & IBV_WC_RECV))
        return;
    enum message_kind kind = c->in->kind;
    if (kind == DONE) {
        c->complete = 1;
        rdma_disconnect(c->id);
        return;
    }
    if (kind == TELLS_REGION) {
        char *path = strdup(file_path);
        c->peer = *c->in;
        snprintf(c->local, NAME, "%s.copy", basename(path));
        free(path);
        c->file = open(file_path, O_RDONLY);
        if (c->file < 0)
            die("%s: %m", file_path);
        send_piece(c, (uint32_t)strlen(c->local) + 1);
    } else {
        ssize_t length = read(c->file, c->local, CHUNK);
        if (length < 0)
            die("%s: %m", file_path);
        send_piece(c, (uint32_t)length);
    }
    receive(c);
}

// --- shared by all programs ---

static void handle_completions(void)
{
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc)) {
        struct connection *c = (struct connection *)(uintptr_t)wc.wr_id;
        if (wc.status != IBV_WC_SUCCESS)
            die("completion: %s", ibv_wc_status_str(wc.status));
        if (wc.opcode & IBV_WC_RECV)
            c->received++;
        else
            c->sent++;
        if (program == BASIC)
            basic_completed(c, &wc);
        else if (program != FILE_TRANSFER)
            memory_completed(c, &wc);
        else if (is_server)
            file_server_completed(c, &wc);
        else
            file_client_completed(c, &wc);
    }
}

// Returns true if the completion channel has an event within this time.
static int has_completions(int milliseconds)
{
    struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
    return poll(&readable, 1, milliseconds) == 1;
}

static void *wait_for_completions(void *unused)
{
    (void)unused;
    for (;;) {
        struct ibv_cq *which;
        void *context;
        has_completions(-1);
        pthread_mutex_lock(&handling);
        // The other thread polls as well, but gets no event.
        OK(ibv_get_cq_event(channel, &which, &context));
        ibv_ack_cq_events(which, 1);
        OK(ibv_req_notify_cq(which, 0));
        handle_completions();
        pthread_mutex_unlock(&handling);
    }
    return NULL;
}

static void make_context(struct ibv_context *of)
{
    pthread_t thread;
    if (verbs) {
        if (verbs != of)
            die("a connection of another device");
        return;
    }
    verbs = of;
    if (!(pd = ibv_alloc_pd(verbs)) || !(channel = ibv_create_comp_channel(verbs)))
        die("ibv_alloc_pd or ibv_create_comp_channel: %m");
    if (!(cq = ibv_create_cq(verbs, 10, NULL, channel, 0)))
        die("ibv_create_cq: %m");
    OK(ibv_req_notify_cq(cq, 0));
    OK(pthread_create(&thread, NULL, wait_for_completions, NULL));
}

static void make_connection(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {10, 10, 1, 1, 0}};
    struct connection *c = allocate(sizeof *c);
    size_t size = program == FILE_TRANSFER ? CHUNK : TEXT;
    int local = IBV_ACCESS_LOCAL_WRITE, writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

    make_context(id->verbs);
    attr.send_cq = attr.recv_cq = cq;
    OK(rdma_create_qp(id, pd, &attr));
    id->context = c;
    c->id = id;
    c->file = -1;
    c->local = allocate(size);
    c->remote = allocate(size);
    c->out = allocate(sizeof *c->out);
    c->in = allocate(sizeof *c->in);
    c->out_mr = registered(c->out, sizeof *c->out, 0);
    c->in_mr = registered(c->in, sizeof *c->in, local);
    c->local_mr = registered(c->local, size, program == WRITE ? 0 : program == READ ? local : writable);
    c->remote_mr = registered(c->remote, size, program == READ ? IBV_ACCESS_REMOTE_READ : writable);
    receive(c);
    if (program != FILE_TRANSFER)
        snprintf(program == READ ? c->remote : c->local, TEXT, "message of the %s", is_server ? "server" : "client");
}

static struct rdma_conn_param parameters(void)
{
    struct rdma_conn_param given = {.initiator_depth = 1, .responder_resources = 1, .rnr_retry_count = 7};
    struct rdma_conn_param none = {0};
    return program == BASIC ? none : given;
}

static void established(struct connection *c)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND};
    c->established = 1;
    if (program == BASIC)
        post(c, &wr, c->local, TEXT, c->local_mr);
    else if ((program == FILE_TRANSFER) == is_server)
        send_message(c, TELLS_REGION);
}

static void disconnected(struct connection *c)
{
    pthread_mutex_lock(&handling);
    if (!c->complete && has_completions(0))
        handle_completions();
    if (!c->complete)
        die("DISCONNECTED came before earlier completions: %d sent, %d received", c->sent, c->received);
    rdma_destroy_qp(c->id);
    OK(ibv_dereg_mr(c->out_mr));
    OK(ibv_dereg_mr(c->in_mr));
    OK(ibv_dereg_mr(c->local_mr));
    OK(ibv_dereg_mr(c->remote_mr));
    if (c->file >= 0)
        close(c->file);
    free(c->out);
    free(c->in);
    free(c->local);
    free(c->remote);
    rdma_destroy_id(c->id);
    free(c);
    pthread_mutex_unlock(&handling);
    printf("disconnected\n");
}

// Handles events until this many connections have ended.
static void handle_events(struct rdma_event_channel *events, int connections)
{
    struct rdma_cm_event *event;
    while (connections > 0 && rdma_get_cm_event(events, &event) == 0) {
        struct rdma_cm_event copy = *event;
        struct rdma_conn_param param = parameters();
        rdma_ack_cm_event(event);
        switch (copy.event) {
        case RDMA_CM_EVENT_ADDR_RESOLVED:
            make_connection(copy.id);
            OK(rdma_resolve_route(copy.id, TIMEOUT_MS));
            break;
        case RDMA_CM_EVENT_ROUTE_RESOLVED:
            OK(rdma_connect(copy.id, &param));
            break;
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            make_connection(copy.id);
            OK(rdma_accept(copy.id, &param));
            break;
        case RDMA_CM_EVENT_ESTABLISHED:
            established(copy.id->context);
            break;
        case RDMA_CM_EVENT_DISCONNECTED:
            disconnected(copy.id->context);
            connections--;
            break;
        default:
            die("%s", rdma_event_str(copy.event));
        }
    }
}

static void run_server(const char *port, int connections)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = v4.sin_port};
    int is_v6 = program == WRITE || program == READ;
    struct rdma_event_channel *events = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    if (!events)
        die("rdma_create_event_channel: %m");
    OK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(listener, is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4));
    OK(rdma_listen(listener, 10));
    printf("listening on port %d\n", ntohs(rdma_get_src_port(listener)));
    handle_events(events, connections);
    OK(rdma_destroy_id(listener));
    rdma_destroy_event_channel(events);
}

static void run_client(const char *address, const char *port)
{
    struct addrinfo *found;
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    OK(getaddrinfo(address, port, NULL, &found));
    if (!(events = rdma_create_event_channel()))
        die("rdma_create_event_channel: %m");
    OK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(id, NULL, found->ai_addr, TIMEOUT_MS));
    freeaddrinfo(found);
    handle_events(events, 1);
    rdma_destroy_event_channel(events);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"basic", "write", "read", "file"};
    int known = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int at = 0; argc > 4 && at < 4; at++) {
        if (strcmp(argv[1], names[at]) == 0) {
            program = (enum program)at;
            known = 1;
        }
    }
    if (!known || (strcmp(argv[2], "server") && strcmp(argv[2], "client")))
        die("usage: %s {basic|write|read|file} {server PORT CONNECTIONS|client ADDRESS PORT [FILE]}", argv[0]);
    is_server = strcmp(argv[2], "server") == 0;
    file_path = argc > 5 ? argv[5] : "";
    if (is_server)
        run_server(argv[3], atoi(argv[4]));
    else
        run_client(argv[3], argv[4]);
    return 0;
}
