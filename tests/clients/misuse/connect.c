// Connections of librdmacm that fail, each for another reason that `roxe run --explain` must name.
// Both ends are in one process, on 127.0.0.1.
#include "misuse.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <unistd.h>

static struct rdma_event_channel *events;

static struct rdma_cm_id *new_id(void) {
    if (!events)
        events = rdma_create_event_channel();
    check(events, "rdma_create_event_channel");
    struct rdma_cm_id *id;
    check(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    return id;
}

// Gets the next event, which must be of this type, and returns its id.
static struct rdma_cm_id *expect(enum rdma_cm_event_type expected) {
    struct rdma_cm_event *event;
    check(!rdma_get_cm_event(events, &event), "rdma_get_cm_event");
    if (event->event != expected) {
        fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
        exit(1);
    }
    struct rdma_cm_id *id = event->id;
    rdma_ack_cm_event(event);
    return id;
}

static struct sockaddr_in at(const char *ip, unsigned port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &address.sin_addr);
    return address;
}

static struct rdma_cm_id *listener(int backlog) {
    struct rdma_cm_id *id = new_id();
    struct sockaddr_in address = at("127.0.0.1", 0);
    check(!rdma_bind_addr(id, (struct sockaddr *)&address), "rdma_bind_addr");
    check(!rdma_listen(id, backlog), "rdma_listen");
    return id;
}

static void create_qp(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    check(!rdma_create_qp(id, NULL, &init), "rdma_create_qp");
}

static void resolve(struct rdma_cm_id *id, unsigned port) {
    struct sockaddr_in address = at("127.0.0.1", port);
    check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    check(!rdma_resolve_route(id, 1000), "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
}

// Requests a connection to this port: from a new queue pair, or, unless 0, in the name of the queue
// pair `qp_num`.
static struct rdma_cm_id *request_connection(unsigned port, unsigned qp_num) {
    struct rdma_cm_id *id = new_id();
    resolve(id, port);
    if (!qp_num)
        create_qp(id);
    struct rdma_conn_param param = {.qp_num = qp_num};
    check(!rdma_connect(id, &param), "rdma_connect");
    return id;
}

static unsigned port_of(struct rdma_cm_id *id) { return ntohs(rdma_get_src_port(id)); }

// PEER is an address of another interface, or one without a route.
static void cm_address(bool wrong) {
    (void)wrong;
    struct rdma_cm_id *id = new_id();
    struct sockaddr_in address = at(getenv("PEER") ? getenv("PEER") : "192.0.2.1", 7471);
    check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_ERROR);
}

static void cm_nobody_listens(bool wrong) {
    (void)wrong;
    request_connection(7, 0);
    expect(RDMA_CM_EVENT_REJECTED);
}

static void cm_refused(bool wrong) {
    (void)wrong;
    request_connection(port_of(listener(1)), 0);
    struct rdma_cm_id *request = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    check(!rdma_reject(request, "no such tenant", 14), "rdma_reject");
    expect(RDMA_CM_EVENT_REJECTED);
}

static void cm_backlog(bool wrong) {
    (void)wrong;
    // The program does not get the listener's events, so requests stay in its backlog.
    struct rdma_cm_id *waiting = listener(1);
    struct rdma_event_channel *unread = rdma_create_event_channel();
    check(!rdma_migrate_id(waiting, unread), "rdma_migrate_id");
    request_connection(port_of(waiting), 0);
    request_connection(port_of(waiting), 0);
    expect(RDMA_CM_EVENT_REJECTED);
}

static void cm_stale(bool wrong) {
    (void)wrong;
    struct rdma_cm_id *server = listener(4);
    request_connection(port_of(server), 0x1234);
    struct rdma_cm_id *request = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(request);
    check(!rdma_accept(request, &(struct rdma_conn_param){0}), "rdma_accept");
    expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    request_connection(port_of(server), 0x1234);
    struct rdma_cm_event *event;
    do {
        check(!rdma_get_cm_event(events, &event), "rdma_get_cm_event");
    } while (event->event != RDMA_CM_EVENT_REJECTED && !rdma_ack_cm_event(event));
}

// The client's queue pair is in ERR, so it cannot be connected.
static void cm_own_queue_pair(bool wrong) {
    (void)wrong;
    struct rdma_cm_id *id = request_connection(port_of(listener(1)), 0);
    struct rdma_cm_id *request = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(request);
    check(!ibv_modify_qp(id->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE), "ibv_modify_qp");
    check(!rdma_accept(request, &(struct rdma_conn_param){0}), "rdma_accept");
    expect(RDMA_CM_EVENT_CONNECT_ERROR);
}

static void cm_create_qp(bool wrong) {
    (void)wrong;
    struct rdma_cm_id *id = new_id();
    resolve(id, 7);
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_send_sge = 1000}};
    check(rdma_create_qp(id, NULL, &init), "a list of 1000 elements is refused");
}

// PEER is a host without a card.
static void cm_no_card(bool wrong) {
    (void)wrong;
    struct rdma_cm_id *id = new_id();
    struct sockaddr_in address = at(getenv("PEER"), 7471);
    check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    check(!rdma_resolve_route(id, 1000), "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    create_qp(id);
    const char *then = getenv("THEN");
    check(!then || !system(then), "THEN");
    check(!rdma_connect(id, &(struct rdma_conn_param){0}), "rdma_connect");
    expect(RDMA_CM_EVENT_UNREACHABLE);
}

const struct misuse connect_cases[] = {
    {"cm-address", cm_address},
    {"cm-nobody-listens", cm_nobody_listens},
    {"cm-refused", cm_refused},
    {"cm-backlog", cm_backlog},
    {"cm-stale", cm_stale},
    {"cm-own-queue-pair", cm_own_queue_pair},
    {"cm-create-qp", cm_create_qp},
    {"cm-no-card", cm_no_card},
    {NULL, NULL},
};
