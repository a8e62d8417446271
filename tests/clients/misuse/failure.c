// Requests that fail, each for another reason, which `roxe run --explain` must name. sides[0] sends
// the request, and sides[1] is its peer.
#include "misuse.h"
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static const struct options quick = {.timeout = 10, .retry_cnt = 1, .rnr_retry = 1};

// Posts one request of sides[0] and requires its completion to have this status.
static void fails(struct side sides[2], enum ibv_wr_opcode opcode, unsigned offset, unsigned length,
                  enum ibv_wc_status expected) {
    check(!post_send(&sides[0], 0x17, opcode, IBV_SEND_SIGNALED, offset, length, &sides[1]), "ibv_post_send");
    enum ibv_wc_status status = completion(&sides[0], NULL);
    if (status != expected) {
        fprintf(stderr, "the request completed with %s\n", ibv_wc_status_str(status));
        exit(1);
    }
}

// The upper 12 bits of a QPN identify the process; no process has these.
static void no_process(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    if (state == IBV_QPS_RTR)
        attr->dest_qp_num ^= 0x800000;
}

static void no_queue_pair(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    if (state == IBV_QPS_RTR)
        attr->dest_qp_num ^= 0x400;
}

static void other_psn(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    if (state == IBV_QPS_RTR)
        attr->rq_psn = 0x500000;
}

// Sends a message that the peer does not acknowledge. `change` changes the attributes of the
// sender. The peer reaches the state `peer`; `peer_change` changes its attributes.
static void unacknowledged(void (*change)(struct ibv_qp_attr *, enum ibv_qp_state), enum ibv_qp_state peer,
                           void (*peer_change)(struct ibv_qp_attr *, enum ibv_qp_state)) {
    struct side sides[2];
    make_side(&sides[0], quick);
    make_side(&sides[1], quick);
    connect_side(&sides[0], &sides[1], quick, change);
    if (peer >= IBV_QPS_RTS)
        connect_side(&sides[1], &sides[0], quick, peer_change);
    if (peer == IBV_QPS_ERR)
        check(!ibv_modify_qp(sides[1].qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE), "to ERR");
    fails(sides, IBV_WR_SEND, 0, 64, IBV_WC_RETRY_EXC_ERR);
}

static void retry_no_process(bool wrong) { (void)wrong; unacknowledged(no_process, IBV_QPS_INIT, NULL); }
static void retry_no_queue_pair(bool wrong) { (void)wrong; unacknowledged(no_queue_pair, IBV_QPS_INIT, NULL); }
static void retry_not_connected(bool wrong) { (void)wrong; unacknowledged(NULL, IBV_QPS_INIT, NULL); }

// The peer is connected to a queue pair that does not exist: it executes requests, but sends its
// acknowledgements to that QPN.
static void retry_dest(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_side(&sides[0], quick);
    make_side(&sides[1], quick);
    connect_side(&sides[0], &sides[1], quick, NULL);
    connect_side(&sides[1], &sides[0], quick, no_queue_pair);
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_RETRY_EXC_ERR);
}

static void retry_in_error(bool wrong) { (void)wrong; unacknowledged(NULL, IBV_QPS_ERR, NULL); }
static void retry_psn(bool wrong) { (void)wrong; unacknowledged(NULL, IBV_QPS_RTS, other_psn); }

// The peer expects packets from 127.0.0.2, but their source is 127.0.0.1.
static void other_gid(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    if (state == IBV_QPS_RTR)
        attr->ah_attr.grh.dgid.raw[15] = 2;
}

static void retry_gid(bool wrong) { (void)wrong; unacknowledged(NULL, IBV_QPS_RTS, other_gid); }

// The peer is on another host, without a card. PEER is its IPv4 address, GID_INDEX the local GID to
// use. THEN is a shell command that runs before the request, such as one that takes the local
// interface down.
static void far(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    if (state != IBV_QPS_RTR)
        return;
    inet_pton(AF_INET, getenv("PEER"), &attr->ah_attr.grh.dgid.raw[12]);
    if (getenv("GID_INDEX"))
        attr->ah_attr.grh.sgid_index = atoi(getenv("GID_INDEX"));
}

static void unreachable(struct options options) {
    struct side sides[2];
    make_side(&sides[0], options);
    make_side(&sides[1], options);
    connect_side(&sides[0], &sides[1], options, far);
    const char *then = getenv("THEN");
    check(!then || !system(then), "THEN");
    fails(sides, IBV_WR_SEND, 0, 64, IBV_WC_RETRY_EXC_ERR);
}

static void retry_far(bool wrong) { (void)wrong; unreachable(quick); }
// The peer's host limits the rate of its ICMP errors, so few retries get one.
static void retry_often(bool wrong) { (void)wrong; unreachable((struct options){.timeout = 10, .retry_cnt = 7}); }

// ROXE_FAULTS is set so that short requests arrive and long ones are lost.
static void retry_long(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_side(&sides[0], quick);
    make_side(&sides[1], quick);
    connect_side(&sides[0], &sides[1], quick, NULL);
    connect_side(&sides[1], &sides[0], quick, NULL);
    check(!post_send(&sides[0], 0x16, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    check(completion(&sides[0], NULL) == IBV_WC_SUCCESS, "the short request");
    fails(sides, IBV_WR_RDMA_WRITE, 0, 1024, IBV_WC_RETRY_EXC_ERR);
}

// The peer is another process, which gets `signal` once both are connected. If `signal` is 0, the
// peer goes on without a posted receive, and records no reasons for `--explain`.
static void lost_peer(int signal) {
    pid_t child = fork_peer();
    check(child || !prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    check(child || signal || !setenv("ROXE_EXPLAIN", "off", 1), "setenv");
    struct side sides[2];
    connect_with_peer(sides, quick, NULL);
    wait_for_peer();
    if (!child)
        for (;;)
            pause();
    // The explanation may follow the completion, so the peer lives until this process ends.
    int status;
    if (signal) {
        kill(child, signal);
        check(waitpid(child, &status, signal == SIGSTOP ? WUNTRACED : 0) == child, "waitpid");
    }
    fails(sides, IBV_WR_SEND, 0, 64, signal ? IBV_WC_RETRY_EXC_ERR : IBV_WC_RNR_RETRY_EXC_ERR);
}

static void rnr_mute(bool wrong) { (void)wrong; lost_peer(0); }

static void retry_died(bool wrong) { (void)wrong; lost_peer(SIGKILL); }
static void retry_stopped(bool wrong) { (void)wrong; lost_peer(SIGSTOP); }

static void access_key(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    struct ibv_mr key = *sides[1].mr;
    sides[1].mr = &key;
    key.rkey ^= 0x5500;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

static void access_range(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    sides[1].memory += MEMORY - 32;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

static void access_right(bool wrong) {
    (void)wrong;
    struct side sides[2];
    struct options options = quick;
    options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    make_pair(sides, options);
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

static void access_domain(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    sides[1].mr = ibv_reg_mr(ibv_alloc_pd(context), sides[1].memory, MEMORY, ALL);
    check(sides[1].mr, "ibv_reg_mr");
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

static void access_unmapped(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sides[1].mr = ibv_reg_mr(sides[1].pd, memory, 4096, ALL);
    check(sides[1].mr, "ibv_reg_mr");
    munmap(memory, 4096);
    sides[1].memory = memory;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_OP_ERR);
}

// The page is still mapped, but no longer writable.
static void access_readonly(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sides[1].mr = ibv_reg_mr(sides[1].pd, memory, 4096, ALL);
    check(sides[1].mr && !mprotect(memory, 4096, PROT_READ), "a region");
    sides[1].memory = memory;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_OP_ERR);
}

static void access_dead(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    struct ibv_mr *mr = ibv_reg_mr(sides[1].pd, sides[1].memory, MEMORY, ALL), deregistered;
    check(mr, "ibv_reg_mr");
    deregistered = *mr;
    check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
    sides[1].mr = &deregistered;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

// A copy of the region of a window, with the rkey of the window.
static struct ibv_mr window_key;

// Binds a type 2 window to the memory of `side` over the queue pair of `binder`; returns the window
// with its old rkey, and sets `window_key`.
static struct ibv_mw *bind_window(struct side *side, struct side *binder, int access) {
    struct ibv_mr *mr = ibv_reg_mr(side->pd, side->memory, MEMORY, ALL | IBV_ACCESS_MW_BIND);
    struct ibv_mw *mw = ibv_alloc_mw(side->pd, IBV_MW_TYPE_2);
    check(mr && mw, "a window");
    window_key = *mr;
    window_key.rkey = ibv_inc_rkey(mw->rkey);
    struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = window_key.rkey;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)side->memory, MEMORY, access};
    check(!ibv_post_send(binder->qp, &wr, &bad), "bind");
    check(completion(binder, NULL) == IBV_WC_SUCCESS, "a binding");
    return mw;
}

static void window_invalidated(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    bind_window(&sides[1], &sides[1], IBV_ACCESS_REMOTE_WRITE);
    struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.invalidate_rkey = window_key.rkey;
    check(!ibv_post_send(sides[1].qp, &wr, &bad), "invalidate");
    check(completion(&sides[1], NULL) == IBV_WC_SUCCESS, "an invalidation");
    sides[1].mr = &window_key;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

static void window_old_key(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    struct ibv_mw *mw = bind_window(&sides[1], &sides[1], IBV_ACCESS_REMOTE_WRITE);
    window_key.rkey = mw->rkey;
    sides[1].mr = &window_key;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

// The window is used over another queue pair than the one that bound it.
static void window_other_qp(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    struct side third = sides[1];
    make_qp(&third, quick);
    connect_side(&third, &third, quick, NULL);
    bind_window(&sides[1], &third, IBV_ACCESS_REMOTE_WRITE);
    sides[1].mr = &window_key;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

static void window_right(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    bind_window(&sides[1], &sides[1], IBV_ACCESS_REMOTE_READ);
    sides[1].mr = &window_key;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
}

// Posts a bind that must fail: `access` lacks IBV_ACCESS_MW_BIND, or, with `twice`, the window is
// bound already.
static void bad_bind(struct side sides[2], int access, bool twice) {
    make_pair(sides, quick);
    struct ibv_mr *mr = ibv_reg_mr(sides[0].pd, sides[0].memory, MEMORY, access);
    struct ibv_mw *mw = twice ? bind_window(&sides[0], &sides[0], IBV_ACCESS_REMOTE_READ)
                              : ibv_alloc_mw(sides[0].pd, IBV_MW_TYPE_2);
    check(mr && mw, "a window");
    struct ibv_send_wr wr = {.wr_id = 0x17, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = mw->rkey;
    wr.bind_mw.bind_info =
        (struct ibv_mw_bind_info){mr, (uintptr_t)sides[0].memory, MEMORY, IBV_ACCESS_REMOTE_READ};
    check(!ibv_post_send(sides[0].qp, &wr, &bad), "bind");
    check(completion(&sides[0], NULL) == IBV_WC_MW_BIND_ERR, "IBV_WC_MW_BIND_ERR");
}

static void bind_right(bool wrong) {
    (void)wrong;
    struct side sides[2];
    bad_bind(sides, ALL, false);
}

static void bind_twice(bool wrong) {
    (void)wrong;
    struct side sides[2];
    bad_bind(sides, ALL | IBV_ACCESS_MW_BIND, true);
}

static void invalidate_region(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    struct ibv_send_wr wr = {.wr_id = 0x17, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.invalidate_rkey = sides[0].mr->rkey;
    check(!ibv_post_send(sides[0].qp, &wr, &bad), "invalidate");
    check(completion(&sides[0], NULL) != IBV_WC_SUCCESS, "LOCAL_INV of a region must fail");
}

static void send_invalidate(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    check(!post_recv(&sides[1], 1, 0, 64), "ibv_post_recv");
    struct ibv_send_wr wr = {.wr_id = 0x17, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.invalidate_rkey = sides[1].mr->rkey;
    check(!ibv_post_send(sides[0].qp, &wr, &bad), "invalidate");
    check(completion(&sides[0], NULL) == IBV_WC_REM_ACCESS_ERR, "IBV_WC_REM_ACCESS_ERR");
}

static void invalid_not_enabled(bool wrong) {
    (void)wrong;
    struct side sides[2];
    struct options options = quick;
    options.qp_access = IBV_ACCESS_REMOTE_READ;
    make_pair(sides, options);
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_INV_REQ_ERR);
}

static void invalid_too_long(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    check(!post_recv(&sides[1], 1, 0, 32), "ibv_post_recv");
    fails(sides, IBV_WR_SEND, 0, 64, IBV_WC_REM_INV_REQ_ERR);
    completion(&sides[1], NULL);
}

static void invalid_misaligned(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    sides[1].memory += 4;
    fails(sides, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, IBV_WC_REM_INV_REQ_ERR);
}

static void operation_list(bool wrong) {
    (void)wrong;
    struct side sides[2];
    struct options options = quick;
    options.access = IBV_ACCESS_REMOTE_READ;
    make_pair(sides, options);
    check(!post_recv(&sides[1], 1, 0, 64), "ibv_post_recv");
    fails(sides, IBV_WR_SEND, 0, 64, IBV_WC_REM_OP_ERR);
    completion(&sides[1], NULL);
}

static void rnr(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    fails(sides, IBV_WR_SEND, 0, 64, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void rnr_shared(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_side(&sides[0], quick);
    make_side(&sides[1], quick);
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_qp_init_attr init = {
        .send_cq = sides[1].cq,
        .recv_cq = sides[1].cq,
        .qp_type = IBV_QPT_RC,
        .srq = ibv_create_srq(sides[1].pd, &shared),
        .cap = {.max_send_wr = 1, .max_send_sge = 1},
    };
    check(init.srq, "ibv_create_srq");
    sides[1].qp = ibv_create_qp(sides[1].pd, &init);
    check(sides[1].qp, "ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    check(!ibv_modify_qp(sides[1].qp, &attr, mask), "to INIT");
    for (int i = 0; i < 2; i++)
        connect_side(&sides[i], &sides[1 - i], quick, NULL);
    fails(sides, IBV_WR_SEND, 0, 64, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void send_datagram(struct side sides[2], unsigned length, enum ibv_wc_status expected) {
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
    check(!ibv_query_gid(context, 1, 0, &attr.grh.dgid), "ibv_query_gid");
    struct ibv_sge sge = {(uintptr_t)sides[0].memory, length, sides[0].mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 0x17, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ibv_create_ah(sides[0].pd, &attr);
    wr.wr.ud.remote_qpn = sides[1].qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    check(wr.wr.ud.ah && !ibv_post_send(sides[0].qp, &wr, &bad), "ibv_post_send");
    check(completion(&sides[0], NULL) == expected, "the datagram");
}

// Sends a datagram that fails with `expected`, or, if that is IBV_WC_SUCCESS, one that the peer
// drops because its receive has only `room` bytes. A second datagram, which fits, gets that
// receive, which shows that the first one was dropped.
static void datagram(unsigned length, unsigned room, enum ibv_wc_status expected) {
    struct side sides[2];
    make_pair(sides, (struct options){.type = IBV_QPT_UD});
    check(!post_recv(&sides[1], 1, 0, room), "ibv_post_recv");
    send_datagram(sides, length, expected);
    if (expected == IBV_WC_SUCCESS) {
        send_datagram(sides, 1, IBV_WC_SUCCESS);
        done(&sides[1]);
    }
}

static void datagram_long(bool wrong) { (void)wrong; datagram(60000, 65000, IBV_WC_LOC_LEN_ERR); }
static void datagram_grh(bool wrong) { (void)wrong; datagram(64, 64, IBV_WC_SUCCESS); }

static void receive_short(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    check(!post_recv(&sides[1], 0x17, 0, 32), "ibv_post_recv");
    check(!post_send(&sides[0], 0x17, IBV_WR_SEND, 0, 0, 64, &sides[1]), "ibv_post_send");
    check(completion(&sides[1], NULL) == IBV_WC_LOC_LEN_ERR, "IBV_WC_LOC_LEN_ERR");
}

static void local_atomic(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    fails(sides, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 16, IBV_WC_LOC_LEN_ERR);
}

// A receive is outstanding when the program moves the queue pair to ERR.
static void flushed(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    check(!post_recv(&sides[0], 0x17, 0, 64), "ibv_post_recv");
    check(!ibv_modify_qp(sides[0].qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE), "to ERR");
    check(completion(&sides[0], NULL) == IBV_WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR");
}

// An invalid request of the peer flushes the receives of the responder.
static void flushed_by_peer(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    check(!post_recv(&sides[1], 0x17, 0, 64), "ibv_post_recv");
    sides[1].memory += MEMORY - 32;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_REM_ACCESS_ERR);
    check(completion(&sides[1], NULL) == IBV_WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR");
}

static void overrun(bool wrong) {
    (void)wrong;
    struct side sides[2];
    struct options options = quick;
    options.cqe = 2;
    make_pair(sides, options);
    for (int i = 0; i < 4; i++)
        check(!post_recv(&sides[1], i, 0, 64), "ibv_post_recv");
    for (int i = 0; i < 4; i++)
        check(!post_send(&sides[0], i, IBV_WR_SEND, 0, 0, 64, &sides[1]), "ibv_post_send");
    struct ibv_async_event event;
    check(!ibv_get_async_event(context, &event), "ibv_get_async_event");
    check(event.event_type == IBV_EVENT_CQ_ERR, "IBV_EVENT_CQ_ERR");
}

static void fails_with_lkey(struct side sides[2], uint32_t lkey) {
    struct ibv_mr mr = *sides[0].mr;
    mr.lkey = lkey;
    sides[0].mr = &mr;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_LOC_PROT_ERR);
}

static void local_key(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    fails_with_lkey(sides, sides[0].mr->lkey ^ 0x5500);
}

// While the checker is on, the two keys of a region differ.
static void local_rkey(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    fails_with_lkey(sides, sides[0].mr->rkey);
}

static void local_range(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    fails(sides, IBV_WR_RDMA_WRITE, MEMORY - 32, 64, IBV_WC_LOC_PROT_ERR);
}

static void local_domain(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    sides[0].mr = ibv_reg_mr(ibv_alloc_pd(context), sides[0].memory, MEMORY, ALL);
    check(sides[0].mr, "ibv_reg_mr");
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_LOC_PROT_ERR);
}

static void local_right(bool wrong) {
    (void)wrong;
    struct side sides[2];
    struct options options = quick;
    options.access = IBV_ACCESS_REMOTE_READ;
    make_pair(sides, options);
    fails(sides, IBV_WR_RDMA_READ, 0, 64, IBV_WC_LOC_PROT_ERR);
}

// In this and the following cases, the verb itself is refused.
static void queue_full(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, (struct options){0});
    int error = 0;
    for (int i = 0; i < 64 && !error; i++)
        error = post_send(&sides[0], i, IBV_WR_RDMA_WRITE, 0, 0, 64, &sides[1]);
    check(error == ENOMEM, "ENOMEM of a full queue");
}

static void state_missing(bool wrong) {
    (void)wrong;
    struct side side;
    make_side(&side, (struct options){0});
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};
    check(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_PATH_MTU) == EINVAL, "EINVAL of a missing attribute");
}

static void gid_index(bool wrong) {
    (void)wrong;
    struct side side;
    make_side(&side, (struct options){0});
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 9}};
    check(!ibv_create_ah(side.pd, &attr), "an empty GID index is refused");
}

static void memory_hole(bool wrong) {
    (void)wrong;
    struct side side;
    make_side(&side, (struct options){0});
    unsigned char *memory = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(memory + 4096, 4096);
    check(!ibv_reg_mr(side.pd, memory, 3 * 4096, IBV_ACCESS_LOCAL_WRITE), "a hole is refused");
}

const struct misuse failure_cases[] = {
    {"retry-no-process", retry_no_process},
    {"retry-no-queue-pair", retry_no_queue_pair},
    {"retry-not-connected", retry_not_connected},
    {"retry-in-error", retry_in_error},
    {"retry-psn", retry_psn},
    {"retry-gid", retry_gid},
    {"retry-far", retry_far},
    {"retry-often", retry_often},
    {"retry-long", retry_long},
    {"retry-died", retry_died},
    {"retry-stopped", retry_stopped},
    {"access-key", access_key},
    {"access-range", access_range},
    {"access-right", access_right},
    {"access-domain", access_domain},
    {"access-unmapped", access_unmapped},
    {"invalid-not-enabled", invalid_not_enabled},
    {"invalid-too-long", invalid_too_long},
    {"invalid-misaligned", invalid_misaligned},
    {"operation-list", operation_list},
    {"rnr", rnr},
    {"local-key", local_key},
    {"local-rkey", local_rkey},
    {"local-range", local_range},
    {"local-domain", local_domain},
    {"local-right", local_right},
    {"queue-full", queue_full},
    {"state-missing", state_missing},
    {"gid-index", gid_index},
    {"memory-hole", memory_hole},
    {"overrun", overrun},
    {"flushed-by-peer", flushed_by_peer},
    {"flushed", flushed},
    {"local-atomic", local_atomic},
    {"receive-short", receive_short},
    {"datagram-grh", datagram_grh},
    {"datagram-long", datagram_long},
    {"rnr-mute", rnr_mute},
    {"rnr-shared", rnr_shared},
    {"send-invalidate", send_invalidate},
    {"invalidate-region", invalidate_region},
    {"bind-twice", bind_twice},
    {"bind-right", bind_right},
    {"window-right", window_right},
    {"window-other-qp", window_other_qp},
    {"window-old-key", window_old_key},
    {"window-invalidated", window_invalidated},
    {"access-dead", access_dead},
    {"access-readonly", access_readonly},
    {"retry-dest", retry_dest},
    {NULL, NULL},
};
