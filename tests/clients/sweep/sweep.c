// Programs for `roxe sweep`: `sweep CASE wrong` has one mistake on an error path, `sweep CASE
// right` is the same program without it. Both exit with 0 when nothing fails. Otherwise a right
// program exits with 0, or with 1 after a message, and has destroyed all objects.
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>

enum { SIZE = 65536 };

static bool wrong;

// Two queue pairs that are connected to each other, and their other objects. A field that was not
// created is NULL.
struct pair {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp[2];
    unsigned char *memory;
    bool unacked; // an event of the completion queue must still be acknowledged
    bool ignores_events; // asynchronous events are not read
};

static bool failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return false;
}

// Reads the pending asynchronous events. Returns false if the device has failed.
static bool take_events(struct ibv_context *context) {
    struct pollfd events = {.fd = context->async_fd, .events = POLLIN};
    bool good = true;
    while (poll(&events, 1, 0) == 1) {
        struct ibv_async_event event;
        if (ibv_get_async_event(context, &event))
            return failed("ibv_get_async_event");
        fprintf(stderr, "event: %s\n", ibv_event_type_str(event.event_type));
        good = good && event.event_type != IBV_EVENT_DEVICE_FATAL;
        ibv_ack_async_event(&event);
    }
    return good;
}

static void close_pair(struct pair *pair) {
    if (pair->context && !pair->ignores_events)
        take_events(pair->context);
    for (int i = 0; i < 2; i++)
        if (pair->qp[i])
            ibv_destroy_qp(pair->qp[i]);
    if (pair->mr)
        ibv_dereg_mr(pair->mr);
    if (pair->unacked)
        ibv_ack_cq_events(pair->cq, 1);
    if (pair->cq)
        ibv_destroy_cq(pair->cq);
    if (pair->channel)
        ibv_destroy_comp_channel(pair->channel);
    if (pair->pd)
        ibv_dealloc_pd(pair->pd);
    if (pair->context)
        ibv_close_device(pair->context);
    free(pair->memory);
    memset(pair, 0, sizeof *pair);
}

static bool open_device(struct pair *pair) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (!list)
        return failed("ibv_get_device_list");
    pair->context = list[0] ? ibv_open_device(list[0]) : NULL;
    ibv_free_device_list(list);
    return pair->context || failed("ibv_open_device");
}

static bool make_objects(struct pair *pair) {
    if (!open_device(pair))
        return false;
    if (!(pair->pd = ibv_alloc_pd(pair->context)))
        return failed("ibv_alloc_pd");
    if (!(pair->channel = ibv_create_comp_channel(pair->context)))
        return failed("ibv_create_comp_channel");
    if (!(pair->cq = ibv_create_cq(pair->context, 64, NULL, pair->channel, 0)))
        return failed("ibv_create_cq");
    if (!(pair->memory = calloc(1, 2 * SIZE)))
        return failed("calloc");
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    if (!(pair->mr = ibv_reg_mr(pair->pd, pair->memory, 2 * SIZE, access)))
        return failed("ibv_reg_mr");
    return true;
}

static bool make_qps(struct pair *pair) {
    struct ibv_qp_init_attr init = {.send_cq = pair->cq, .recv_cq = pair->cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
    for (int i = 0; i < 2; i++)
        if (!(pair->qp[i] = ibv_create_qp(pair->pd, &init)))
            return failed("ibv_create_qp");
    return true;
}

static bool to_rtr(struct pair *pair, int own) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    if ((errno = ibv_modify_qp(pair->qp[own], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
        return failed("ibv_modify_qp to INIT");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = pair->qp[!own]->qp_num,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}}};
    if (ibv_query_gid(pair->context, 1, 0, &attr.ah_attr.grh.dgid))
        return failed("ibv_query_gid");
    if ((errno = ibv_modify_qp(pair->qp[own], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)))
        return failed("ibv_modify_qp to RTR");
    return true;
}

static bool to_rts(struct pair *pair, int own) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    if ((errno = ibv_modify_qp(pair->qp[own], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)))
        return failed("ibv_modify_qp to RTS");
    return true;
}

static bool connect_pair(struct pair *pair) {
    for (int i = 0; i < 2; i++)
        if (!to_rtr(pair, i) || !to_rts(pair, i))
            return false;
    return true;
}

static bool make_pair(struct pair *pair) {
    return make_objects(pair) && make_qps(pair) && connect_pair(pair);
}

// Posts a WRITE from the first half of the memory to the second one.
static int post_write(struct pair *pair, unsigned length) {
    struct ibv_sge sge = {(uintptr_t)pair->memory, length, pair->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {(uintptr_t)pair->memory + SIZE, pair->mr->rkey}};
    struct ibv_send_wr *bad;
    return ibv_post_send(pair->qp[0], &wr, &bad);
}

// Polls until there is a completion.
static bool wait_wc(struct pair *pair, struct ibv_wc *wc) {
    int found;
    while (!(found = ibv_poll_cq(pair->cq, 1, wc))) {
    }
    return found > 0 || failed("ibv_poll_cq");
}

static bool succeeded(const struct ibv_wc *wc) {
    if (wc->status != IBV_WC_SUCCESS)
        fprintf(stderr, "WRITE: %s\n", ibv_wc_status_str(wc->status));
    return wc->status == IBV_WC_SUCCESS;
}

static bool arm(struct pair *pair) {
    errno = ibv_req_notify_cq(pair->cq, 0);
    return !errno || failed("ibv_req_notify_cq");
}

static bool post(struct pair *pair, unsigned length) {
    errno = post_write(pair, length);
    return !errno || failed("ibv_post_send");
}

static bool write_once(struct pair *pair) {
    struct ibv_wc wc;
    return post(pair, 64) && wait_wc(pair, &wc) && succeeded(&wc);
}

// The result of a memory registration is used without a check.
static bool unchecked_null(void) {
    struct pair pair = {0};
    bool good = make_pair(&pair);
    if (good) {
        struct ibv_mr *mr = ibv_reg_mr(pair.pd, pair.memory, 4096, IBV_ACCESS_LOCAL_WRITE);
        if (!wrong && !mr)
            good = failed("ibv_reg_mr");
        else
            printf("lkey %s\n", mr->lkey ? "known" : "zero");
        if (mr)
            ibv_dereg_mr(mr);
    }
    good = good && write_once(&pair);
    close_pair(&pair);
    return good;
}

// Both the function that fails and its caller destroy the completion queue.
static bool destroyed_twice(void) {
    struct pair pair = {0};
    bool good = make_objects(&pair);
    if (good && !make_qps(&pair)) {
        good = false;
        if (pair.qp[0])
            ibv_destroy_qp(pair.qp[0]);
        pair.qp[0] = NULL;
        ibv_destroy_cq(pair.cq);
        if (!wrong)
            pair.cq = NULL;
    }
    good = good && connect_pair(&pair) && write_once(&pair);
    close_pair(&pair);
    return good;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool make_under_lock(struct pair *pair) {
    pthread_mutex_lock(&lock);
    struct ibv_cq *second = ibv_create_cq(pair->context, 16, NULL, NULL, 0);
    if (!second) {
        if (!wrong)
            pthread_mutex_unlock(&lock);
        return failed("ibv_create_cq");
    }
    ibv_destroy_cq(second);
    pthread_mutex_unlock(&lock);
    return true;
}

// An error path keeps the lock, which the program takes once more before it ends.
static bool lock_held(void) {
    struct pair pair = {0};
    bool good = make_pair(&pair) && make_under_lock(&pair);
    pthread_mutex_lock(&lock);
    close_pair(&pair);
    pthread_mutex_unlock(&lock);
    return good;
}

// If a queue pair cannot be made, an additional protection domain is not freed.
static bool leak(void) {
    struct pair pair = {0};
    if (!make_objects(&pair)) {
        close_pair(&pair);
        return false;
    }
    struct ibv_pd *second = ibv_alloc_pd(pair.context);
    bool good = second || failed("ibv_alloc_pd");
    good = good && make_qps(&pair) && connect_pair(&pair) && write_once(&pair);
    if (second && (good || !wrong))
        ibv_dealloc_pd(second);
    close_pair(&pair);
    return good;
}

// The program waits for a request that was not posted.
static bool failed_post(void) {
    struct pair pair = {0};
    struct ibv_wc wc = {0};
    bool good = make_pair(&pair);
    int posted = good ? post_write(&pair, 64) : 0;
    if (posted) {
        errno = posted;
        good = failed("ibv_post_send");
    }
    if (pair.qp[1] && (good || (wrong && posted)))
        good = wait_wc(&pair, &wc) && wc.status == IBV_WC_SUCCESS;
    if (wc.status)
        fprintf(stderr, "WRITE: %s\n", ibv_wc_status_str(wc.status));
    close_pair(&pair);
    return good;
}

static bool reset_pair(struct pair *pair) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    for (int i = 0; i < 2; i++)
        if ((errno = ibv_modify_qp(pair->qp[i], &attr, IBV_QP_STATE)))
            return failed("ibv_modify_qp to RESET");
    return connect_pair(pair);
}

// A failed request is posted again although its queue pair is in the error state.
static bool retry(void) {
    struct pair pair = {0};
    bool good = make_pair(&pair), done = false;
    while (good && !done) {
        struct ibv_wc wc;
        good = post(&pair, 64) && wait_wc(&pair, &wc);
        done = good && wc.status == IBV_WC_SUCCESS;
        if (good && !done && !wrong)
            good = reset_pair(&pair);
    }
    close_pair(&pair);
    return good;
}

// Any completion counts as a success.
static bool wc_status(void) {
    struct pair pair = {0};
    struct ibv_wc wc;
    bool good = make_pair(&pair) && post(&pair, 64) && wait_wc(&pair, &wc) && (wrong || succeeded(&wc));
    close_pair(&pair);
    return good;
}

// The error path of RTR destroys in the wrong order, so objects that are still in use are left.
static bool order(void) {
    struct pair pair = {0};
    if (!make_objects(&pair) || !make_qps(&pair)) {
        close_pair(&pair);
        return false;
    }
    if (to_rtr(&pair, 0) && to_rtr(&pair, 1)) {
        bool good = to_rts(&pair, 0) && write_once(&pair);
        close_pair(&pair);
        return good;
    }
    if (wrong) {
        ibv_dealloc_pd(pair.pd);
        ibv_destroy_cq(pair.cq);
        pair.pd = NULL;
        pair.cq = NULL;
    }
    close_pair(&pair);
    return false;
}

// The event of a failed request is not acknowledged, so the destruction of the completion queue
// waits forever.
static bool unacked(void) {
    struct pair pair = {0};
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *tag;
    bool good = make_pair(&pair) && arm(&pair) && post(&pair, 64);
    if (good && ibv_get_cq_event(pair.channel, &cq, &tag))
        good = failed("ibv_get_cq_event");
    else
        pair.unacked = good;
    if (good && wait_wc(&pair, &wc) && !succeeded(&wc)) {
        good = false;
        pair.unacked = !wrong;
    }
    close_pair(&pair);
    return good;
}

// Gets the next event of `channel`, which must be `wanted`; the wrong program ignores others.
static bool next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted, struct rdma_cm_id **id) {
    for (;;) {
        struct rdma_cm_event *event;
        if (rdma_get_cm_event(channel, &event))
            return failed("rdma_get_cm_event");
        enum rdma_cm_event_type got = event->event;
        if (id)
            *id = event->id;
        rdma_ack_cm_event(event);
        if (got == wanted)
            return true;
        if (!wrong) {
            fprintf(stderr, "%s instead of %s\n", rdma_event_str(got), rdma_event_str(wanted));
            return false;
        }
    }
}

// The client waits for the established connection and ignores all other events.
static bool rejected(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_event_channel *near = rdma_create_event_channel(), *far = rdma_create_event_channel();
    struct rdma_cm_id *client = NULL, *listener = NULL, *request = NULL;
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    bool good = near && far && !rdma_create_id(far, &listener, NULL, RDMA_PS_TCP) &&
        !rdma_create_id(near, &client, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, (struct sockaddr *)&address) &&
        !rdma_listen(listener, 1);
    if (good) {
        address.sin_port = rdma_get_src_port(listener);
        good = !rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 1000) &&
            next_event(near, RDMA_CM_EVENT_ADDR_RESOLVED, NULL) && !rdma_resolve_route(client, 1000) &&
            next_event(near, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL) && !rdma_create_qp(client, NULL, &init) &&
            !rdma_connect(client, &param);
    }
    // The request may arrive late; without a request the client gets an event with the reason.
    while (good && !request) {
        struct pollfd channels[] = {{.fd = far->fd, .events = POLLIN}, {.fd = near->fd, .events = POLLIN}};
        if (poll(channels, 2, -1) < 1 || !channels[0].revents)
            break;
        good = next_event(far, RDMA_CM_EVENT_CONNECT_REQUEST, &request) && !rdma_create_qp(request, NULL, &init) &&
            !rdma_accept(request, &param);
    }
    good = good && next_event(near, RDMA_CM_EVENT_ESTABLISHED, NULL);
    if (!good)
        failed("connection");
    if (listener && listener->verbs)
        take_events(listener->verbs);
    else if (client && client->verbs)
        take_events(client->verbs);
    struct rdma_cm_id *ids[] = {client, request, listener};
    for (int i = 0; i < 3; i++) {
        if (ids[i] && ids[i]->qp)
            rdma_destroy_qp(ids[i]);
        if (ids[i])
            rdma_destroy_id(ids[i]);
    }
    if (near)
        rdma_destroy_event_channel(near);
    if (far)
        rdma_destroy_event_channel(far);
    return good;
}

// The program takes the last byte of a WRITE as a sign that all bytes have arrived.
static bool early_read(void) {
    struct pair pair = {0};
    bool good = make_pair(&pair);
    for (int round = 1; good && round <= 20; round++) {
        struct ibv_wc wc = {0};
        volatile unsigned char *last = pair.memory + 2 * SIZE - 1;
        int found = 0;
        memset(pair.memory, round, SIZE);
        if (!(good = post(&pair, SIZE)))
            break;
        while (!found && !(wrong && *last == round))
            found = ibv_poll_cq(pair.cq, 1, &wc);
        if (found < 0 || wc.status != IBV_WC_SUCCESS) {
            fprintf(stderr, "WRITE: no completion, or a failed one\n");
            good = false;
        } else if (memcmp(pair.memory, pair.memory + SIZE, SIZE)) {
            fprintf(stderr, "round %d: the memory is incomplete\n", round);
            good = false;
        }
        if (good && !found && wait_wc(&pair, &wc))
            good = succeeded(&wc);
    }
    close_pair(&pair);
    return good;
}

// After the first of two completions the program waits for an event, but the second completion may
// have arrived before the queue was armed.
static bool late_arm(void) {
    struct pair pair = {0};
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *tag;
    bool good = make_pair(&pair) && arm(&pair) && post(&pair, 64) && post(&pair, 64);
    for (int done = 0; good && done < 2;) {
        if (ibv_get_cq_event(pair.channel, &cq, &tag)) {
            good = failed("ibv_get_cq_event");
            break;
        }
        ibv_ack_cq_events(cq, 1);
        good = arm(&pair);
        for (int found = 1; good && found && done < 2; done += found) {
            found = ibv_poll_cq(pair.cq, 1, &wc);
            if (found < 0)
                good = failed("ibv_poll_cq");
            if (found > 0)
                good = succeeded(&wc);
            if (found > 0 && wrong) {
                done++;
                break;
            }
        }
    }
    close_pair(&pair);
    return good;
}

// The port goes down and up, and the events of that are never read.
static bool port_down(void) {
    struct pair pair = {.ignores_events = wrong};
    bool good = make_pair(&pair) && write_once(&pair);
    good = (wrong || (pair.context && take_events(pair.context))) && good;
    close_pair(&pair);
    return good;
}

static const struct {
    const char *name;
    bool (*run)(void);
} cases[] = {
    {"unchecked-null", unchecked_null}, {"destroyed-twice", destroyed_twice}, {"lock-held", lock_held}, {"leak", leak},
    {"failed-post", failed_post}, {"retry", retry}, {"wc-status", wc_status}, {"order", order}, {"unacked", unacked},
    {"rejected", rejected}, {"early-read", early_read}, {"late-arm", late_arm}, {"port-down", port_down},
};

int main(int argc, char **argv) {
    wrong = argc > 2 && !strcmp(argv[2], "wrong");
    for (size_t i = 0; argc > 2 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(argv[1], cases[i].name))
            return cases[i].run() ? 0 : 1;
    fprintf(stderr, "usage: sweep CASE wrong|right\n");
    return 2;
}
