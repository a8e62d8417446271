// Calls verbs, librdmacm and rsockets in an exit handler, which runs after the thread-local
// variables of the thread are destroyed. Prints "end" and exits with 0 if each call had the
// expected result.
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct rdma_event_channel *channel;
static struct rdma_addrinfo *address;
static char memory[4096];

static void require(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "%s is wrong, errno %d\n", what, errno);
        _exit(1);
    }
}

static int post(void) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(qp, &wr, &bad);
}

// Listens, and waits for a connection, which nobody requests.
static void use_rsockets(void) {
    struct pollfd poll = {.events = POLLIN};
    require((poll.fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && !rlisten(poll.fd, 1), "rlisten");
    require(rpoll(&poll, 1, 1) == 0, "rpoll");
    require(!rclose(poll.fd), "rclose");
}

static void use_fork(void) {
    int status = 1;
    pid_t child = fork();
    require(child >= 0, "fork");
    if (!child)
        _exit(0);
    require(waitpid(child, &status, 0) == child && status == 0, "the child of a fork");
}

static void at_end(void) {
    struct ibv_wc wc;
    struct rdma_cm_id *id;
    require(!post(), "ibv_post_recv");
    require(ibv_poll_cq(cq, 1, &wc) == 0, "ibv_poll_cq");
    require(!ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_REMOTE_WRITE), "ibv_reg_mr without LOCAL_WRITE");
    require(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    require(rdma_listen(id, 1) == 0, "rdma_listen");
    require(!rdma_destroy_id(id), "rdma_destroy_id");
    rdma_freeaddrinfo(address);
    use_rsockets();
    use_fork();
    require(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq), "ibv_destroy_qp or ibv_destroy_cq");
    require(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "ibv_dereg_mr or ibv_dealloc_pd");
    rdma_destroy_event_channel(channel);
    require(!ibv_close_device(context), "ibv_close_device");
    puts("end");
}

int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    require(list && (context = ibv_open_device(list[0])), "ibv_open_device");
    ibv_free_device_list(list);
    require((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 8, NULL, NULL, 0)), "ibv_create_cq");
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    require((qp = ibv_create_qp(pd, &init)) != NULL, "ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    require(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    require((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)) != NULL, "ibv_reg_mr");
    require(!post(), "ibv_post_recv");
    require(!ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_REMOTE_WRITE), "ibv_reg_mr without LOCAL_WRITE");
    require((channel = rdma_create_event_channel()) && !rdma_getaddrinfo("127.0.0.1", "7471", &hints, &address),
        "rdma_getaddrinfo");
    use_rsockets();
    use_fork();
    require(!atexit(at_end), "atexit");
    return 0;
}
