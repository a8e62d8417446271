// Common code of the cases.
#include "misuse.h"
#include <unistd.h>
#include <fcntl.h>
#include <time.h>

struct ibv_context *context;

void check(bool holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

void open_context(void) {
    if (context)
        return;
    struct ibv_device **devices = ibv_get_device_list(NULL);
    check(devices && devices[0], "ibv_get_device_list");
    context = ibv_open_device(devices[0]);
    ibv_free_device_list(devices);
    check(context, "ibv_open_device");
}

void make_side(struct side *side, struct options options) {
    open_context();
    memset(side, 0, sizeof *side);
    side->memory = aligned_alloc(4096, MEMORY);
    check(side->memory, "aligned_alloc");
    memset(side->memory, 0, MEMORY);
    side->pd = ibv_alloc_pd(context);
    check(side->pd, "ibv_alloc_pd");
    int access = options.access ? options.access
                                : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                      IBV_ACCESS_REMOTE_ATOMIC;
    side->mr = ibv_reg_mr(side->pd, side->memory, MEMORY, access);
    check(side->mr, "ibv_reg_mr");
    if (!options.no_events) {
        side->channel = ibv_create_comp_channel(context);
        check(side->channel, "ibv_create_comp_channel");
    }
    side->cq = ibv_create_cq(context, options.cqe ? options.cqe : 64, NULL, side->channel, 0);
    check(side->cq, "ibv_create_cq");
    make_qp(side, options);
}

static struct ibv_qp *create_target(struct ibv_xrcd *domain) {
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = domain};
    return ibv_create_qp_ex(context, &init);
}

void make_qp(struct side *side, struct options options) {
    struct ibv_qp_init_attr init = {
        .send_cq = side->cq,
        .recv_cq = side->cq,
        .qp_type = options.type ? options.type : IBV_QPT_RC,
        .sq_sig_all = options.sq_sig_all,
        .cap = {.max_send_wr = options.max_send_wr ? options.max_send_wr : 16,
                .max_recv_wr = options.max_recv_wr ? options.max_recv_wr : 16,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = options.max_inline_data},
    };
    side->qp = options.domain ? create_target(options.domain) : ibv_create_qp(side->pd, &init);
    check(side->qp, "ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    attr.qp_access_flags = options.qp_access ? options.qp_access
                                             : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    mask |= init.qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    if (init.qp_type == IBV_QPT_UC)
        attr.qp_access_flags &= IBV_ACCESS_REMOTE_WRITE;
    check(!ibv_modify_qp(side->qp, &attr, mask), "to INIT");
}

static void step(struct side *side, struct ibv_qp_attr attr, enum ibv_qp_state state, int mask,
                 void (*change)(struct ibv_qp_attr *, enum ibv_qp_state)) {
    attr.qp_state = state;
    if (change)
        change(&attr, state);
    check(!ibv_modify_qp(side->qp, &attr, mask), state == IBV_QPS_RTR ? "to RTR" : "to RTS");
}

void connect_side(struct side *side, struct side *peer, struct options options,
                  void (*change)(struct ibv_qp_attr *, enum ibv_qp_state)) {
    struct ibv_qp_attr attr = {
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp->qp_num,
        .rq_psn = 7,
        .sq_psn = 7,
        .max_rd_atomic = options.max_rd_atomic ? options.max_rd_atomic : 4,
        .max_dest_rd_atomic = options.max_dest_rd_atomic ? options.max_dest_rd_atomic : 4,
        .min_rnr_timer = options.min_rnr_timer == -1 ? 0 : options.min_rnr_timer ? options.min_rnr_timer : 1,
        .timeout = options.timeout == -1 ? 0 : options.timeout ? options.timeout : 14,
        .retry_cnt = options.retry_cnt == -1 ? 0 : options.retry_cnt ? options.retry_cnt : 7,
        .rnr_retry = options.rnr_retry == -1 ? 0 : options.rnr_retry ? options.rnr_retry : 7,
    };
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    check(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
    int rtr = IBV_QP_STATE, rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (side->qp->qp_type != IBV_QPT_UD)
        rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (side->qp->qp_type == IBV_QPT_RC || side->qp->qp_type == IBV_QPT_XRC_RECV) {
        rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        rts |= IBV_QP_TIMEOUT;
    }
    if (side->qp->qp_type == IBV_QPT_RC || side->qp->qp_type == IBV_QPT_XRC_SEND)
        rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    step(side, attr, IBV_QPS_RTR, rtr, change);
    step(side, attr, IBV_QPS_RTS, rts, change);
}

void make_pair(struct side sides[2], struct options options) {
    for (int i = 0; i < 2; i++)
        make_side(&sides[i], options);
    for (int i = 0; i < 2; i++)
        connect_side(&sides[i], &sides[1 - i], options, NULL);
}

void destroy_side(struct side *side) {
    if (side->qp)
        check(!ibv_destroy_qp(side->qp), "ibv_destroy_qp");
    if (side->cq)
        check(!ibv_destroy_cq(side->cq), "ibv_destroy_cq");
    if (side->channel)
        check(!ibv_destroy_comp_channel(side->channel), "ibv_destroy_comp_channel");
    if (side->mr)
        check(!ibv_dereg_mr(side->mr), "ibv_dereg_mr");
    if (side->pd)
        check(!ibv_dealloc_pd(side->pd), "ibv_dealloc_pd");
    free(side->memory);
}

void close_sides(struct side sides[2]) {
    destroy_side(&sides[0]);
    destroy_side(&sides[1]);
    check(!ibv_close_device(context), "ibv_close_device");
    context = NULL;
}

// Pipes from and to the process that is the peer.
static int from_peer, to_peer;

pid_t fork_peer(void) {
    int down[2], up[2];
    check(!pipe(down) && !pipe(up), "pipe");
    pid_t child = fork();
    from_peer = child ? up[0] : down[0];
    to_peer = child ? down[1] : up[1];
    return child;
}

void connect_with_peer(struct side sides[2], struct options options, void (*change)(struct ibv_qp_attr *, enum ibv_qp_state)) {
    static struct ibv_qp other;
    memset(sides, 0, 2 * sizeof *sides);
    make_side(&sides[0], options);
    unsigned own = sides[0].qp->qp_num, *peer = &other.qp_num;
    check(write(to_peer, &own, sizeof own) == sizeof own && read(from_peer, peer, sizeof *peer) == sizeof *peer, "numbers");
    sides[1] = sides[0];
    sides[1].qp = &other;
    connect_side(&sides[0], &sides[1], options, change);
}

void wait_for_peer(void) {
    char byte = 0;
    check(write(to_peer, &byte, 1) == 1 && read(from_peer, &byte, 1) == 1, "the peer is gone");
}

int post_recv(struct side *side, uint64_t wr_id, unsigned offset, unsigned length) {
    struct ibv_sge sge = {(uintptr_t)side->memory + offset, length, side->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(side->qp, &wr, &bad);
}

int post_send(struct side *side, uint64_t wr_id, enum ibv_wr_opcode opcode, int flags, unsigned offset, unsigned length,
              struct side *peer) {
    struct ibv_sge sge = {(uintptr_t)side->memory + offset, length, side->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags}, *bad;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)peer->memory;
        wr.wr.atomic.rkey = peer->mr->rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)peer->memory;
        wr.wr.rdma.rkey = peer->mr->rkey;
    }
    wr.qp_type.xrc.remote_srqn = peer->srqn;
    return ibv_post_send(side->qp, &wr, &bad);
}

enum ibv_wc_status completion(struct side *side, struct ibv_wc *wc) {
    time_t end = time(NULL) + 20;
    struct ibv_wc own;
    int count;
    while (!(count = ibv_poll_cq(side->cq, 1, wc ? wc : &own)))
        check(time(NULL) < end, "no completion comes");
    check(count == 1, "ibv_poll_cq");
    return wc ? wc->status : own.status;
}

void done(struct side *side) {
    struct ibv_wc wc;
    if (completion(side, &wc) != IBV_WC_SUCCESS) {
        fprintf(stderr, "request %lu ended with %s\n", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
        exit(1);
    }
}

// Closes standard error and opens a file, which gets its descriptor number.
static void replace_standard_error(const char *file) {
    close(2);
    check(open(file, O_CREAT | O_WRONLY, 0600) == 2, "the number of standard error");
}

int main(int argc, char **argv) {
    if (getenv("MISUSE_DATA"))
        replace_standard_error(getenv("MISUSE_DATA"));
    const struct misuse *tables[] = {beginner_cases, connect_cases, connection_cases, event_cases,
                                     failure_cases,  life_cases,    memory_cases,     queue_cases,
                                     refused_cases};
    bool lists = argc == 2 && !strcmp(argv[1], "list");
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        for (const struct misuse *misuse = tables[i]; misuse->rule; misuse++) {
            if (lists)
                puts(misuse->rule);
            else if (argc == 3 && !strcmp(argv[1], misuse->rule))
                return misuse->run(!strcmp(argv[2], "wrong")), 0;
        }
    }
    return lists ? 0 : 2;
}
