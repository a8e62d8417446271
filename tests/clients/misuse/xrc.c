// Twins that need an XRC target, whose receives come from the shared queue that a message names.
#include "misuse.h"
#include <fcntl.h>

static struct ibv_srq *make_srq(struct side *side, struct ibv_xrcd *domain) {
    struct ibv_srq_init_attr_ex init = {
        .attr = {.max_wr = 16, .max_sge = 1},
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
        .srq_type = IBV_SRQT_XRC,
        .pd = side->pd,
        .xrcd = domain,
        .cq = side->cq,
    };
    struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
    check(srq, "ibv_create_srq_ex");
    return srq;
}

// A SEND, and a fetch and add behind it, which wait for the receive of the SEND.
static void count(struct side sides[2], uint32_t srqn, unsigned result) {
    struct ibv_sge message = {(uintptr_t)sides[0].memory + 8192, 64, sides[0].mr->lkey};
    struct ibv_sge found = {(uintptr_t)sides[0].memory + result, 8, sides[0].mr->lkey};
    struct ibv_send_wr add = {.sg_list = &found, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD}, *bad;
    add.send_flags = IBV_SEND_SIGNALED;
    add.qp_type.xrc.remote_srqn = srqn;
    add.wr.atomic.remote_addr = (uintptr_t)sides[1].memory;
    add.wr.atomic.rkey = sides[1].mr->rkey;
    add.wr.atomic.compare_add = 1;
    struct ibv_send_wr send = {.next = &add, .sg_list = &message, .num_sge = 1, .opcode = IBV_WR_SEND};
    send.send_flags = IBV_SEND_SIGNALED;
    send.qp_type.xrc.remote_srqn = srqn;
    check(!ibv_post_send(sides[0].qp, &send, &bad), "ibv_post_send");
}

// A counter is set back while a peer counts: by its owner, or by a message of that peer.
static void atomic_mixed_xrc(bool wrong) {
    struct side sides[2];
    open_context();
    struct ibv_xrcd_init_attr init = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_xrcd *domain = ibv_open_xrcd(context, &init);
    check(domain, "ibv_open_xrcd");
    make_side(&sides[0], (struct options){.type = IBV_QPT_XRC_SEND});
    make_side(&sides[1], (struct options){.type = IBV_QPT_XRC_RECV, .domain = domain});
    for (int i = 0; i < 2; i++)
        connect_side(&sides[i], &sides[1 - i], (struct options){0}, NULL);
    struct ibv_srq *srq = make_srq(&sides[1], domain);
    uint32_t srqn;
    check(!ibv_get_srq_num(srq, &srqn), "ibv_get_srq_num");
    for (int i = 0; i < 2; i++)
        count(sides, srqn, 128 * (i + 1));
    for (int i = 0; i < 2; i++) {
        unsigned offset = wrong || !i ? 4096 : 0;
        struct ibv_sge sge = {(uintptr_t)sides[1].memory + offset, 64, sides[1].mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
        check(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
        done(&sides[0]);
        done(&sides[0]);
        done(&sides[1]);
        if (wrong)
            *(volatile uint64_t *)sides[1].memory = 100;
    }
    check(!ibv_destroy_srq(srq), "ibv_destroy_srq");
    check(!ibv_destroy_qp(sides[1].qp), "ibv_destroy_qp");
    sides[1].qp = NULL;
    check(!ibv_close_xrcd(domain), "ibv_close_xrcd");
    close_sides(sides);
}

const struct misuse xrc_cases[] = {
    {"atomic-mixed-xrc", atomic_mixed_xrc},
    {NULL, NULL},
};
