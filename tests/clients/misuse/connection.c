// Attributes of connections on which both ends must agree.
#define _GNU_SOURCE
#include "misuse.h"
#include <sys/wait.h>
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

// Returns options with which the wrong program fails soon, and the right one does not fail, however
// busy the machine is.
static struct options ack_timeout(bool wrong) {
    return wrong ? (struct options){.timeout = 13, .retry_cnt = 7} : (struct options){.timeout = 18, .retry_cnt = 7};
}

// Connects two sides; `first` and `second` change their attributes.
static void make_changed(struct side sides[2], struct options options,
                         void (*first)(struct ibv_qp_attr *, enum ibv_qp_state),
                         void (*second)(struct ibv_qp_attr *, enum ibv_qp_state)) {
    make_side(&sides[0], options);
    make_side(&sides[1], options);
    connect_side(&sides[0], &sides[1], options, first);
    connect_side(&sides[1], &sides[0], options, second);
}

// Posts a request of the first side, whose completion must succeed except in the wrong program.
static void request(struct side sides[2], enum ibv_wr_opcode opcode, unsigned length, bool wrong) {
    check(!post_send(&sides[0], 1, opcode, IBV_SEND_SIGNALED, 0, length, &sides[1]), "ibv_post_send");
    enum ibv_wc_status status = completion(&sides[0], NULL);
    check((status != IBV_WC_SUCCESS) == wrong, ibv_wc_status_str(status));
}

// Each side starts with a random PSN but tells its peer another one, as in a popular example.
static void from_other_psn(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    (void)state;
    attr->sq_psn = 1000;
}

static void expect_other_psn(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    (void)state;
    attr->rq_psn = 1000;
}

static void psn_mismatch(bool wrong) {
    struct side sides[2];
    make_changed(sides, ack_timeout(wrong), from_other_psn, wrong ? NULL : expect_other_psn);
    request(sides, IBV_WR_RDMA_WRITE, 64, wrong);
    close_sides(sides);
}

static void half_mtu(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    (void)state;
    attr->path_mtu = IBV_MTU_512;
}

static void mtu_mismatch(bool wrong) {
    struct side sides[2];
    make_changed(sides, ack_timeout(wrong), wrong ? NULL : half_mtu, half_mtu);
    check(!post_recv(&sides[1], 2, 8192, 4096), "ibv_post_recv");
    request(sides, IBV_WR_SEND, 4096, wrong);
    completion(&sides[1], NULL);
    close_sides(sides);
}

static uint32_t other_number;

static void answer_another(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    (void)state;
    attr->dest_qp_num = other_number;
}

static void dest_mismatch(bool wrong) {
    struct side sides[2];
    make_side(&sides[0], ack_timeout(wrong));
    make_side(&sides[1], ack_timeout(wrong));
    other_number = sides[1].qp->qp_num;
    connect_side(&sides[0], &sides[1], ack_timeout(wrong), NULL);
    connect_side(&sides[1], &sides[0], ack_timeout(wrong), wrong ? answer_another : NULL);
    request(sides, IBV_WR_RDMA_WRITE, 64, wrong);
    close_sides(sides);
}

// A host has several addresses, and the program always uses the same GID index.
// Seen in NVIDIA/nccl#426, NVIDIA/nccl#769.
static void expect_other_address(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    (void)state;
    attr->ah_attr.grh.dgid.raw[15]++;
}

static void gid_mismatch(bool wrong) {
    struct side sides[2];
    make_changed(sides, ack_timeout(wrong), NULL, wrong ? expect_other_address : NULL);
    request(sides, IBV_WR_RDMA_WRITE, 64, wrong);
    close_sides(sides);
}

// The peer accepts fewer outstanding READs than this side starts.
// Seen in openucx/ucx#9746, linux-rdma/perftest#114.
static void one_read(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    (void)state;
    attr->max_rd_atomic = attr->max_dest_rd_atomic = 1;
}

static void depth_mismatch(bool wrong) {
    struct side sides[2];
    make_changed(sides, (struct options){0}, wrong ? NULL : one_read, one_read);
    enum { READS = 4, LENGTH = 8192 };
    struct ibv_send_wr requests[READS] = {0}, *bad;
    struct ibv_sge lists[READS];
    for (int i = 0; i < READS; i++) {
        lists[i] = (struct ibv_sge){(uintptr_t)sides[0].memory + i * LENGTH, LENGTH, sides[0].mr->lkey};
        requests[i] = (struct ibv_send_wr){.wr_id = i, .sg_list = &lists[i], .num_sge = 1, .opcode = IBV_WR_RDMA_READ};
        requests[i].next = i + 1 < READS ? &requests[i + 1] : NULL;
        requests[i].send_flags = IBV_SEND_SIGNALED;
        requests[i].wr.rdma.remote_addr = (uintptr_t)sides[1].memory;
        requests[i].wr.rdma.rkey = sides[1].mr->rkey;
    }
    check(!ibv_post_send(sides[0].qp, requests, &bad), "ibv_post_send");
    for (int i = 0; i < READS; i++)
        check(completion(&sides[0], NULL) == IBV_WC_SUCCESS || wrong, "a READ");
    close_sides(sides);
}

// Sends a datagram of 64 bytes from the first side to the second, which has a receive of this
// length.
static void send_datagram(uint32_t qkey, unsigned receive, bool arrives) {
    struct side sides[2];
    make_pair(sides, (struct options){.type = IBV_QPT_UD});
    check(!post_recv(&sides[1], 1, 0, receive), "ibv_post_recv");
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
    check(!ibv_query_gid(context, 1, 0, &attr.grh.dgid), "ibv_query_gid");
    struct ibv_ah *ah = ibv_create_ah(sides[0].pd, &attr);
    check(ah, "ibv_create_ah");
    struct ibv_sge sge = {(uintptr_t)sides[0].memory, 64, sides[0].mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = sides[1].qp->qp_num;
    wr.wr.ud.remote_qkey = qkey;
    check(!ibv_post_send(sides[0].qp, &wr, &bad), "ibv_post_send");
    done(&sides[0]);
    if (arrives)
        done(&sides[1]);
    for (int i = 0; i < 100 && !arrives; i++) {
        struct ibv_wc wc;
        check(!ibv_poll_cq(sides[1].cq, 1, &wc), "the datagram is lost");
        usleep(1000);
    }
    check(!ibv_destroy_ah(ah), "ibv_destroy_ah");
    close_sides(sides);
}

static void qkey_mismatch(bool wrong) {
    send_datagram(wrong ? QKEY + 1 : QKEY, 104, !wrong);
}

// The receive has no room for the GRH.
// Seen in ska-sa/spead2#134.
static void ud_receive_too_small(bool wrong) {
    send_datagram(QKEY, wrong ? 64 : 104, !wrong);
}

// True if the interface has an IPv4 address and cannot carry packets of 4096 bytes.
static bool has_low_mtu(const char *name) {
    struct ifreq ask = {0};
    strncpy(ask.ifr_name, name, IFNAMSIZ - 1);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    check(fd >= 0, "socket");
    bool is_up = !ioctl(fd, SIOCGIFFLAGS, &ask) && ask.ifr_flags & IFF_UP;
    bool is_low = is_up && !ioctl(fd, SIOCGIFMTU, &ask) && ask.ifr_mtu < 4096 && !ioctl(fd, SIOCGIFADDR, &ask);
    close(fd);
    return is_low;
}

// Selects an interface with an MTU below the largest path MTU. If there is none, lowers the MTU of
// lo in a network namespace of its own, which needs privileges.
static void choose_low_mtu(void) {
    struct if_nameindex *all = if_nameindex();
    check(all, "if_nameindex");
    for (struct if_nameindex *one = all; one->if_name; one++) {
        if (has_low_mtu(one->if_name)) {
            check(!setenv("ROXE_NETDEV", one->if_name, 1), "setenv");
            if_freenameindex(all);
            return;
        }
    }
    if_freenameindex(all);
    check(!unshare(CLONE_NEWNET), "there is no interface with a low MTU, and no right to make one");
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    check(fd >= 0, "socket");
    struct ifreq lo = {.ifr_name = "lo", .ifr_mtu = 1500};
    check(!ioctl(fd, SIOCSIFMTU, &lo), "SIOCSIFMTU");
    check(!ioctl(fd, SIOCGIFFLAGS, &lo), "SIOCGIFFLAGS");
    lo.ifr_flags |= IFF_UP;
    check(!ioctl(fd, SIOCSIFFLAGS, &lo), "SIOCSIFFLAGS");
    close(fd);
}

// The program has a constant path_mtu.
// Seen in ROCm/rocSHMEM#214.
static void mtu_over_port(bool wrong) {
    choose_low_mtu();
    struct side sides[2];
    make_side(&sides[0], ack_timeout(wrong));
    make_side(&sides[1], ack_timeout(wrong));
    struct ibv_port_attr port;
    check(!ibv_query_port(context, 1, &port), "ibv_query_port");
    check(port.active_mtu < IBV_MTU_4096, "the port supports the largest path MTU");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = wrong ? IBV_MTU_4096 : port.active_mtu};
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1};
    check(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
    attr.dest_qp_num = sides[1].qp->qp_num;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    attr.min_rnr_timer = 12;
    check(!ibv_modify_qp(sides[0].qp, &attr, mask) == !wrong, "to RTR");
    close_sides(sides);
}

// The peer is not ready to receive when the first request arrives.
static void timeout_zero(bool wrong) {
    struct options options = {.timeout = wrong ? 12 : 18, .retry_cnt = wrong ? -1 : 7};
    struct side sides[2];
    make_side(&sides[0], options);
    make_side(&sides[1], options);
    connect_side(&sides[0], &sides[1], options, NULL);
    check(!post_send(&sides[0], 1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    if (wrong)
        check(completion(&sides[0], NULL) == IBV_WC_RETRY_EXC_ERR, "a WRITE before the peer is ready");
    connect_side(&sides[1], &sides[0], options, NULL);
    if (!wrong)
        done(&sides[0]);
    close_sides(sides);
}

// The attributes were never initialised as a whole. Seen in NVIDIA/nvshmem#21,
// llm-d/llm-d#406.
static void attr_garbage(bool wrong) {
    struct side sides[2];
    make_side(&sides[0], (struct options){0});
    make_side(&sides[1], (struct options){0});
    struct ibv_qp_attr attr;
    memset(&attr, 0xab, sizeof attr);
    if (!wrong)
        attr = (struct ibv_qp_attr){.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.pkey_index = 0;
    int error = ibv_modify_qp(sides[0].qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    check(!error == !wrong, "to INIT");
    close_sides(sides);
}

static void garbage_ops(bool wrong) {
    struct side side;
    make_side(&side, (struct options){0});
    struct ibv_qp_init_attr_ex init = {.send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC, .pd = side.pd};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = wrong ? 0xabababab : IBV_QP_EX_WITH_SEND;
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    check(!qp == wrong && (wrong || !ibv_destroy_qp(qp)), "ibv_create_qp_ex");
    destroy_side(&side);
    check(!ibv_close_device(context), "ibv_close_device");
}

static void garbage_cq(bool wrong) {
    open_context();
    struct ibv_cq_init_attr_ex attr = {.cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS};
    attr.flags = wrong ? 0xabababab : IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
    check(!cq == wrong && (wrong || !ibv_destroy_cq(ibv_cq_ex_to_cq(cq))), "ibv_create_cq_ex");
    check(!ibv_close_device(context), "ibv_close_device");
}

// The peer is another process, and its PSNs are behind those that this side expects.
static void expect_later_psn(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    (void)state;
    attr->rq_psn = 2;
}

static void psn_mismatch_near(bool wrong) {
    pid_t child = fork_peer();
    struct side sides[2];
    connect_with_peer(sides, (struct options){.timeout = 10}, wrong && child ? expect_later_psn : NULL);
    check(post_recv(&sides[0], 1, 0, 64) == 0, "ibv_post_recv");
    wait_for_peer();
    // The parent receives and determines the exit status.
    if (!child) {
        check(!post_send(&sides[0], 1, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
        check((completion(&sides[0], NULL) == IBV_WC_SUCCESS) != wrong, "the send");
    }
    // Each side ends after the other is done.
    wait_for_peer();
    sides[1].qp = NULL;
    if (!wrong && child)
        done(&sides[0]);
    check(!ibv_modify_qp(sides[0].qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE), "to ERR");
    struct ibv_wc wc;
    if (wrong || !child)
        completion(&sides[0], &wc);
    destroy_side(&sides[0]);
    check(!ibv_close_device(context), "ibv_close_device");
    if (child)
        check(waitpid(child, NULL, 0) == child, "waitpid");
}

const struct misuse connection_cases[] = {
    {"psn-mismatch-near", psn_mismatch_near},
    {"psn-mismatch", psn_mismatch},
    {"mtu-mismatch", mtu_mismatch},
    {"dest-mismatch", dest_mismatch},
    {"gid-mismatch", gid_mismatch},
    {"depth-mismatch", depth_mismatch},
    {"qkey-mismatch", qkey_mismatch},
    {"ud-receive-too-small", ud_receive_too_small},
    {"mtu-over-port", mtu_over_port},
    {"timeout-zero", timeout_zero},
    {"attr-garbage", attr_garbage},
    {"garbage-ops", garbage_ops},
    {"garbage-cq", garbage_cq},
    {NULL, NULL},
};
