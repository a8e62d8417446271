// A verbs program to be built with -fsanitize=address or -fsanitize=thread, or to be run under
// valgrind: two processes, each with a thread that posts and one that polls. Compares every byte
// and exits with 0 if all bytes and completions were right.
//
//   users ROUNDS [MISTAKE]
//
// MISTAKE is one that a checker of the three may have to report: race, use-after-free, leak,
// uninitialised (sends such bytes), unmapped (unmaps registered memory).
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 8192, PSN = 0x1234 };

// Context of a request, allocated by the posting thread and freed by the polling thread.
struct request { int is_receive; };

// Data that a process sends to its peer, so that both can connect.
struct endpoint { uint32_t qpn, rkey; uint64_t addr; union ibv_gid gid; };

struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *in_mr, *out_mr;
    uint8_t *in, *out;
    // Numbers of completions that the polling thread has counted for the posting thread.
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int received, sent, failed;
    enum ibv_wc_status first_failure;
    // Written by both threads without a lock if the mistake "race" is selected.
    int unlocked;
};

static const char *mistake = "";

static void fail(const char *what)
{
    fprintf(stderr, "users: %s: %s\n", what, strerror(errno));
    _exit(1);
}

// Returns true if this mistake is selected.
static int is(const char *name) { return !strcmp(mistake, name); }

// Polls completions until the last receive is flushed, and with "unmapped" also until the last send
// has failed.
static void *poll_completions(void *argument)
{
    struct side *side = argument;
    for (int failed = 0, last = is("unmapped") ? 2 : 1; failed < last;) {
        struct ibv_cq *cq;
        void *cq_context;
        struct ibv_wc wc;
        if (ibv_get_cq_event(side->channel, &cq, &cq_context))
            fail("ibv_get_cq_event");
        ibv_ack_cq_events(cq, 1);
        if (ibv_req_notify_cq(cq, 0))
            fail("ibv_req_notify_cq");
        while (ibv_poll_cq(cq, 1, &wc) == 1) {
            struct request *request = (void *)(uintptr_t)wc.wr_id;
            if (is("race"))
                side->unlocked++;
            pthread_mutex_lock(&side->lock);
            if (wc.status == IBV_WC_SUCCESS && request->is_receive)
                side->received++;
            else if (wc.status == IBV_WC_SUCCESS)
                side->sent++;
            else if (!side->failed++)
                side->first_failure = wc.status;
            failed = side->failed;
            pthread_cond_broadcast(&side->changed);
            pthread_mutex_unlock(&side->lock);
            free(request);
        }
    }
    return NULL;
}

static void wait_for(struct side *side, const int *count, int enough)
{
    pthread_mutex_lock(&side->lock);
    while (*count < enough && !side->failed)
        pthread_cond_wait(&side->changed, &side->lock);
    int ok = *count >= enough;
    pthread_mutex_unlock(&side->lock);
    if (!ok)
        fail(ibv_wc_status_str(side->first_failure));
}

static uint64_t new_request(int is_receive)
{
    struct request *request = malloc(sizeof *request);
    request->is_receive = is_receive;
    return (uintptr_t)request;
}

static void post_receive(struct side *side)
{
    struct ibv_sge sge = { (uintptr_t)side->in, SIZE, side->in_mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = new_request(1), .sg_list = &sge, .num_sge = 1 }, *bad;
    if (ibv_post_recv(side->qp, &wr, &bad))
        fail("ibv_post_recv");
}

static void post(struct side *side, enum ibv_wr_opcode opcode, void *from, uint32_t lkey, const struct endpoint *to)
{
    struct ibv_sge sge = { (uintptr_t)from, SIZE, lkey };
    struct ibv_send_wr wr = { .wr_id = new_request(0), .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
    struct ibv_send_wr *bad;
    wr.wr.rdma.remote_addr = to->addr;
    wr.wr.rdma.rkey = to->rkey;
    if (ibv_post_send(side->qp, &wr, &bad))
        fail("ibv_post_send");
    // After the post, because before it, the write would happen before the one of the polling
    // thread.
    if (is("race"))
        side->unlocked++;
}

static void exchange(int fd, const struct endpoint *here, struct endpoint *there)
{
    if (write(fd, here, sizeof *here) != sizeof *here || read(fd, there, sizeof *there) != sizeof *there)
        fail("exchange of addresses");
}

static struct endpoint open_side(struct side *side)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (!list || !list[0] || !(side->context = ibv_open_device(list[0])))
        fail("ibv_open_device");
    ibv_free_device_list(list);
    side->in = calloc(1, SIZE);
    side->out = is("uninitialised") ? malloc(SIZE) : calloc(1, SIZE);
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    if (!(side->pd = ibv_alloc_pd(side->context)) || !(side->channel = ibv_create_comp_channel(side->context)) ||
        !(side->cq = ibv_create_cq(side->context, 64, NULL, side->channel, 0)) ||
        !(side->in_mr = ibv_reg_mr(side->pd, side->in, SIZE, all)) ||
        !(side->out_mr = ibv_reg_mr(side->pd, side->out, SIZE, all)))
        fail("objects");
    struct ibv_qp_init_attr init = { .send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = all };
    if (!(side->qp = ibv_create_qp(side->pd, &init)) || ibv_req_notify_cq(side->cq, 0) ||
        ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("queue pair");
    struct endpoint here = { .qpn = side->qp->qp_num, .rkey = side->in_mr->rkey, .addr = (uintptr_t)side->in };
    if (ibv_query_gid(side->context, 1, 0, &here.gid))
        fail("ibv_query_gid");
    return here;
}

static void connect_side(struct side *side, const struct endpoint *there)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = there->qpn, .rq_psn = PSN,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = there->gid, .hop_limit = 1 } } };
    if (ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        fail("to RTR");
    // A long timeout, because under valgrind a peer may be slow.
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = PSN,
        .max_rd_atomic = 1 };
    if (ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                      IBV_QP_MAX_QP_RD_ATOMIC))
        fail("to RTS");
}

static void ping_pong(struct side *side, const struct endpoint *there, int rounds, int first)
{
    for (int round = 0; round < rounds; round++) {
        for (int turn = 0; turn < 2; turn++) {
            if (turn == first) {
                if (!is("uninitialised"))
                    memset(side->out, round + turn, SIZE);
                post(side, IBV_WR_SEND, side->out, side->out_mr->lkey, there);
                wait_for(side, &side->sent, round + 1);
                continue;
            }
            wait_for(side, &side->received, round + 1);
            for (int i = 0; i < SIZE && !is("uninitialised"); i++) {
                if (side->in[i] != (uint8_t)(round + turn)) {
                    fprintf(stderr, "users: round %d, byte %d is %#x\n", round, i, side->in[i]);
                    _exit(1);
                }
            }
            post_receive(side);
        }
    }
}

// Sends from registered memory that was unmapped, which must cause an error completion and no
// signal, whatever signal handlers exist.
static void send_from_unmapped(struct side *side, const struct endpoint *there)
{
    void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = memory == MAP_FAILED ? NULL : ibv_reg_mr(side->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    if (!mr || munmap(memory, SIZE))
        fail("memory to unmap");
    post(side, IBV_WR_RDMA_WRITE, memory, mr->lkey, there);
    pthread_mutex_lock(&side->lock);
    while (!side->failed)
        pthread_cond_wait(&side->changed, &side->lock);
    enum ibv_wc_status status = side->first_failure;
    pthread_mutex_unlock(&side->lock);
    if (status != IBV_WC_LOC_PROT_ERR)
        fail(ibv_wc_status_str(status));
    if (ibv_dereg_mr(mr))
        fail("ibv_dereg_mr");
}

// Flushes the posted receive.
static void flush(struct side *side)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    if (ibv_modify_qp(side->qp, &attr, IBV_QP_STATE))
        fail("to ERR");
}

static void close_side(struct side *side)
{
    if (ibv_destroy_qp(side->qp) || ibv_destroy_cq(side->cq) || ibv_dereg_mr(side->in_mr) || ibv_dereg_mr(side->out_mr) ||
        ibv_destroy_comp_channel(side->channel) || ibv_dealloc_pd(side->pd) || ibv_close_device(side->context))
        fail("destruction of objects");
    free(side->in);
    free(side->out);
}

static void run(int fd, int rounds, int first)
{
    static struct side side = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    struct endpoint here = open_side(&side), there;
    pthread_t poller;
    exchange(fd, &here, &there);
    connect_side(&side, &there);
    post_receive(&side);
    // Waits until the peer is ready to receive, too.
    exchange(fd, &here, &there);
    if (pthread_create(&poller, NULL, poll_completions, &side))
        fail("pthread_create");
    ping_pong(&side, &there, rounds, first);
    exchange(fd, &here, &there);
    if (is("unmapped"))
        send_from_unmapped(&side, &there);
    else
        flush(&side);
    pthread_join(poller, NULL);
    close_side(&side);
    if (is("use-after-free"))
        printf("%d\n", ((volatile uint8_t *)side.in)[1]);
    if (is("leak"))
        *(void *volatile *)&side.in = malloc(100), side.in = NULL;
}

int main(int argc, char **argv)
{
    int fds[2], status, rounds = argc > 1 ? atoi(argv[1]) : 1;
    if (argc > 2)
        mistake = argv[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds))
        fail("socketpair");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    close(fds[child != 0]);
    run(fds[child == 0], rounds, child != 0);
    if (child == 0)
        return 0;
    if (waitpid(child, &status, 0) != child)
        fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
