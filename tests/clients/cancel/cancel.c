// Cancels threads (man pthread_cancel) at random moments. The call of a cancelled thread must
// complete, and other threads must be able to continue.
//
//     cancel spins|waits|makes ROUNDS
//
// Each round starts a thread, cancels it after some steps, joins it, and makes its calls once more.
// "spins": the thread posts and polls, and ends in pthread_testcancel. "waits": the thread ends
// while it sleeps until a completion. "makes": the thread creates and destroys objects. The peer is
// a process that makes no calls after connecting.
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 1, DEPTH = 64, SIZE = 64, LIMIT_S = 20, STEPS_PER_CHECK = 64, MAX_STEPS = 200 };

// Data that a side sends to its peer, so that both can connect.
struct end {
    union ibv_gid gid;
    uint64_t address;
    uint32_t qpn, rkey;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char memory[SIZE];
static struct end peer;
// Steps that the thread of this round has completed.
static atomic_int steps;

static void die(const char *what)
{
    fprintf(stderr, "cancel: %s (%s)\n", what, strerror(errno));
    exit(1);
}

static void check(int is_good, const char *what)
{
    if (!is_good)
        die(what);
}

static struct ibv_qp *make_qp(struct ibv_cq *its_cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = its_cq,
        .recv_cq = its_cq,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    return ibv_create_qp(pd, &init);
}

static int find_gid(union ibv_gid *gid)
{
    struct ibv_gid_entry entry;
    for (uint32_t i = 0; ibv_query_gid_ex(context, PORT, i, &entry, 0) == 0; i++) {
        if (entry.gid_type == IBV_GID_TYPE_ROCE_V2) {
            *gid = entry.gid;
            return (int)i;
        }
    }
    die("no RoCE v2 GID");
    return -1;
}

// Opens the device and connects a queue pair with that of the peer at the other end of the socket.
static void connect_over(int socket)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(list && list[0], "no device");
    check((context = ibv_open_device(list[0])) != NULL, "ibv_open_device");
    ibv_free_device_list(list);
    check((pd = ibv_alloc_pd(context)) != NULL, "ibv_alloc_pd");
    check((channel = ibv_create_comp_channel(context)) != NULL, "ibv_create_comp_channel");
    check((cq = ibv_create_cq(context, 2 * DEPTH, NULL, channel, 0)) != NULL, "ibv_create_cq");
    check((qp = make_qp(cq)) != NULL, "ibv_create_qp");
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    check((mr = ibv_reg_mr(pd, memory, sizeof memory, access)) != NULL, "ibv_reg_mr");
    struct end own = { .address = (uintptr_t)memory, .qpn = qp->qp_num, .rkey = mr->rkey };
    int gid_index = find_gid(&own.gid);
    check(write(socket, &own, sizeof own) == sizeof own && read(socket, &peer, sizeof peer) == sizeof peer, "the peer");
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = PORT,
        .qp_access_flags = (unsigned)access,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer.qpn,
        .max_dest_rd_atomic = 1,
        .max_rd_atomic = 1,
        .min_rnr_timer = 1,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .ah_attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = peer.gid, .hop_limit = 64 } },
    };
    attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
    check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    attr.qp_state = IBV_QPS_RTR;
    int rtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC;
    check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | rtr | IBV_QP_MIN_RNR_TIMER), "RTR");
    attr.qp_state = IBV_QPS_RTS;
    int rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | rts), "RTS");
    // Waits until the peer is ready to receive, too.
    char ready = 'r';
    check(write(socket, &ready, 1) == 1 && read(socket, &ready, 1) == 1, "the peer");
}

// Posts a WRITE to the peer, unless the queue is full.
static int post(uint64_t id)
{
    struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = SIZE, .lkey = mr->lkey };
    struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
    wr.wr.rdma.remote_addr = peer.address;
    wr.wr.rdma.rkey = peer.rkey;
    int error = ibv_post_send(qp, &wr, &bad);
    check(!error || error == ENOMEM, "ibv_post_send");
    return !error;
}

// Polls a completion and returns its wr_id, or 0 if there is none.
static uint64_t poll_one(void)
{
    struct ibv_wc wc;
    int count = ibv_poll_cq(cq, 1, &wc);
    check(count >= 0 && (!count || wc.status == IBV_WC_SUCCESS), "ibv_poll_cq");
    return count ? wc.wr_id : 0;
}

// Posts and polls. Checks for cancellation only after many steps, so that calls are made while a
// cancellation is pending.
static void *spin(void *unused)
{
    for (;;) {
        for (int i = 0; i < STEPS_PER_CHECK; i++) {
            if (post(1))
                while (!poll_one())
                    ;
            steps++;
        }
        pthread_testcancel();
    }
    return unused;
}

// Sleeps for each completion.
static void *wait_for_events(void *unused)
{
    for (;;) {
        struct ibv_cq *whose;
        void *tag;
        check(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
        post(1);
        check(!ibv_get_cq_event(channel, &whose, &tag), "ibv_get_cq_event");
        ibv_ack_cq_events(cq, 1);
        while (poll_one())
            ;
        steps++;
    }
    return unused;
}

// Creates and destroys one object of each kind.
static void make_all(void)
{
    struct ibv_comp_channel *its_channel = ibv_create_comp_channel(context);
    struct ibv_cq *its_cq = ibv_create_cq(context, 8, NULL, its_channel, 0);
    check(its_channel && its_cq, "ibv_create_cq");
    struct ibv_qp *its_qp = make_qp(its_cq);
    struct ibv_mr *its_mr = ibv_reg_mr(pd, memory, sizeof memory, 0);
    check(its_qp && its_mr, "ibv_create_qp, ibv_reg_mr");
    check(!ibv_dereg_mr(its_mr) && !ibv_destroy_qp(its_qp) && !ibv_destroy_cq(its_cq), "ibv_destroy_cq");
    check(!ibv_destroy_comp_channel(its_channel), "ibv_destroy_comp_channel");
}

static void *make(void *unused)
{
    for (;;) {
        make_all();
        steps++;
        pthread_testcancel();
    }
    return unused;
}

// Makes the calls of a cancelled thread once more; `id` is the wr_id of a new request.
static void repeat(void *(*work)(void *), uint64_t id)
{
    if (work == make) {
        make_all();
        return;
    }
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (!post(id))
        poll_one();
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
        check(now.tv_sec - start.tv_sec < LIMIT_S, "no completion");
    } while (poll_one() != id);
}

static void run(void *(*work)(void *), int rounds)
{
    srand(1);
    for (int round = 0; round < rounds; round++) {
        pthread_t thread;
        void *result;
        struct timespec limit;
        int steps_before = rand() % (work == make ? 2 : MAX_STEPS);
        steps = 0;
        check(!pthread_create(&thread, NULL, work, NULL), "pthread_create");
        while (steps < steps_before)
            sched_yield();
        check(!pthread_cancel(thread), "pthread_cancel");
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += LIMIT_S;
        check(!pthread_timedjoin_np(thread, &result, &limit), "a cancelled thread does not end");
        check(result == PTHREAD_CANCELED, "a thread has ended without being cancelled");
        repeat(work, (uint64_t)round + 2);
    }
    printf("%d rounds\n", rounds);
}

int main(int argc, char **argv)
{
    int sockets[2];
    check(argc == 3, "cancel spins|waits|makes ROUNDS");
    check(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), "socketpair");
    pid_t child = fork();
    check(child >= 0, "fork");
    int socket = sockets[child != 0];
    close(sockets[child == 0]);
    connect_over(socket);
    if (child == 0) {
        // Lives until the other process ends, which closes the socket.
        char byte;
        return read(socket, &byte, 1) == 0 ? 0 : 1;
    }
    run(!strcmp(argv[1], "spins") ? spin : !strcmp(argv[1], "waits") ? wait_for_events : make, atoi(argv[2]));
    return 0;
}
