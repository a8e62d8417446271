// Mistakes of first programs (docs/tutorials/first-mistakes.md) that no other file in this folder
// makes.
#include "misuse.h"
#include <errno.h>
#include <unistd.h>

// Modifies the queue pair from INIT to RTS.
static void rtr_forgotten(bool wrong) {
    (void)wrong;
    struct side side;
    make_side(&side, (struct options){0});
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    int mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC;
    check(ibv_modify_qp(side.qp, &attr, mask) == EINVAL, "INIT to RTS is refused");
}

// Sets the source GID index to an empty entry of the GID table.
static void empty_gid(struct ibv_qp_attr *attr, enum ibv_qp_state state) {
    if (state == IBV_QPS_RTR)
        attr->ah_attr.grh.sgid_index = 9;
}

static void wrong_gid_index(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_side(&sides[0], (struct options){0});
    make_side(&sides[1], (struct options){0});
    connect_side(&sides[0], &sides[1], (struct options){0}, empty_gid);
}

// Polls a CQ to which no queue pair completes, so the send queue fills up.
static void wrong_cq(bool wrong) {
    (void)wrong;
    struct side sides[2];
    make_pair(sides, (struct options){0});
    struct ibv_cq *other = ibv_create_cq(context, 16, NULL, NULL, 0);
    check(other, "ibv_create_cq");
    struct ibv_wc wc;
    for (int i = 0; i < 20; i++) {
        int error = post_send(&sides[0], i, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]);
        check(!error || error == ENOMEM, "ibv_post_send");
        if (error)
            usleep(10000);
        check(!ibv_poll_cq(other, 1, &wc), "the polled CQ is empty");
    }
}

const struct misuse beginner_cases[] = {
    {"rtr-forgotten", rtr_forgotten},
    {"wrong-gid-index", wrong_gid_index},
    {"wrong-cq", wrong_cq},
    {NULL, NULL},
};
