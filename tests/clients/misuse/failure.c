// Requests that fail, each for a reason of its own: what `roxe run --explain` has to tell apart.
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

// Posts one request of the first side and expects this status.
static void fails(struct side sides[2], enum ibv_wr_opcode opcode, unsigned offset, unsigned length,
                  enum ibv_wc_status expected) {
    check(!post_send(&sides[0], 0x17, opcode, IBV_SEND_SIGNALED, offset, length, &sides[1]), "ibv_post_send");
    enum ibv_wc_status status = completion(&sides[0], NULL);
    if (status != expected) {
        fprintf(stderr, "ended with %s\n", ibv_wc_status_str(status));
        exit(1);
    }
}

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

// One side connected, the other as `peer` says.
static void silent(void (*change)(struct ibv_qp_attr *, enum ibv_qp_state), enum ibv_qp_state peer,
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

static void retry_no_process(bool wrong) { (void)wrong; silent(no_process, IBV_QPS_INIT, NULL); }
static void retry_no_queue_pair(bool wrong) { (void)wrong; silent(no_queue_pair, IBV_QPS_INIT, NULL); }
static void retry_not_connected(bool wrong) { (void)wrong; silent(NULL, IBV_QPS_INIT, NULL); }
static void retry_in_error(bool wrong) { (void)wrong; silent(NULL, IBV_QPS_ERR, NULL); }
static void retry_psn(bool wrong) { (void)wrong; silent(NULL, IBV_QPS_RTS, other_psn); }

// The peer expects another address: packets come from 127.0.0.1, it wants them from 127.0.0.2.
static void other_gid(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    if (state == IBV_QPS_RTR)
        attr->ah_attr.grh.dgid.raw[15] = 2;
}

static void retry_gid(bool wrong) { (void)wrong; silent(NULL, IBV_QPS_RTS, other_gid); }

// The peer is on another host, where nobody has a card; the environment says which, and whether the
// own interface goes down meanwhile.
static void far(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    if (state == IBV_QPS_RTR)
        inet_pton(AF_INET, getenv("PEER"), &attr->ah_attr.grh.dgid.raw[12]);
}

static void retry_far(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_side(&sides[0], quick);
    make_side(&sides[1], quick);
    connect_side(&sides[0], &sides[1], quick, far);
    const char *then = getenv("THEN");
    check(!then || !system(then), "THEN");
    fails(sides, IBV_WR_SEND, 0, 64, IBV_WC_RETRY_EXC_ERR);
}

// The way takes a short request and no long one: ROXE_FAULTS is the way.
static void retry_long(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_side(&sides[0], quick);
    make_side(&sides[1], quick);
    connect_side(&sides[0], &sides[1], quick, NULL);
    connect_side(&sides[1], &sides[0], quick, NULL);
    check(!post_send(&sides[0], 0x16, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    check(completion(&sides[0], NULL) == IBV_WC_SUCCESS, "the short one");
    fails(sides, IBV_WR_RDMA_WRITE, 0, 1024, IBV_WC_RETRY_EXC_ERR);
}

// The peer is a process of its own, which gets `signal` once both are connected.
static void lost_peer(int signal) {
    int down[2], up[2];
    check(!pipe(down) && !pipe(up), "pipe");
    pid_t child = fork();
    check(child || !prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    struct side sides[2];
    memset(sides, 0, sizeof sides);
    make_side(&sides[0], quick);
    unsigned own = sides[0].qp->qp_num, peer;
    int in = child ? up[0] : down[0], out = child ? down[1] : up[1];
    check(write(out, &own, sizeof own) == sizeof own && read(in, &peer, sizeof peer) == sizeof peer, "numbers");
    struct ibv_qp other = {.qp_num = peer};
    sides[1] = sides[0];
    sides[1].qp = &other;
    connect_side(&sides[0], &sides[1], quick, NULL);
    check(write(out, &own, 1) == 1 && read(in, &peer, 1) == 1, "ready");
    if (!child)
        for (;;)
            pause();
    // The failure may be explained behind its completion, so the peer stays as it is until this
    // process is over.
    kill(child, signal);
    int status;
    check(waitpid(child, &status, signal == SIGSTOP ? WUNTRACED : 0) == child, "waitpid");
    fails(sides, IBV_WR_SEND, 0, 64, IBV_WC_RETRY_EXC_ERR);
}

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

static void local_key(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, quick);
    struct ibv_mr key = *sides[0].mr;
    sides[0].mr = &key;
    key.lkey ^= 0x5500;
    fails(sides, IBV_WR_RDMA_WRITE, 0, 64, IBV_WC_LOC_PROT_ERR);
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

// Verbs that are refused.
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
    {"local-range", local_range},
    {"local-domain", local_domain},
    {"local-right", local_right},
    {"queue-full", queue_full},
    {"state-missing", state_missing},
    {"gid-index", gid_index},
    {"memory-hole", memory_hole},
    {NULL, NULL},
};
