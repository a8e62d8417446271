// Keys, and memory that requests use.
#include "misuse.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

// Posts a WRITE whose keys and addresses are given, and waits for its completion.
static void write_with(struct side *side, uint64_t from, uint32_t lkey, uint64_t to, uint32_t rkey, unsigned length) {
    struct ibv_sge sge = {from, length, lkey};
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = to;
    wr.wr.rdma.rkey = rkey;
    check(!ibv_post_send(side->qp, &wr, &bad), "ibv_post_send");
    completion(side, NULL);
}

// Sends the lkey to the peer. Seen in animeshtrivedi/rdma-example#4, ydb-platform/nbs#5707.
static void key_confused(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    struct ibv_mr *to = sides[1].mr;
    write_with(&sides[0], (uintptr_t)sides[0].memory, sides[0].mr->lkey, (uintptr_t)to->addr,
               wrong ? to->lkey : to->rkey, 64);
    close_sides(sides);
}

// Shares a cache of regions between connections of several domains. Seen in chimera-nas/libevpl#89.
static void key_of_other_pd(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    struct ibv_mr *from = sides[wrong ? 1 : 0].mr, *to = sides[1].mr;
    write_with(&sides[0], (uintptr_t)from->addr, from->lkey, (uintptr_t)to->addr, to->rkey, 64);
    close_sides(sides);
}

// Registers memory again, and the peer uses the old key.
static void key_stale(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    uint32_t rkey = sides[1].mr->rkey;
    check(!ibv_dereg_mr(sides[1].mr), "ibv_dereg_mr");
    sides[1].mr = ibv_reg_mr(sides[1].pd, sides[1].memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    check(sides[1].mr, "ibv_reg_mr");
    if (!wrong)
        rkey = sides[1].mr->rkey;
    write_with(&sides[0], (uintptr_t)sides[0].memory, sides[0].mr->lkey, (uintptr_t)sides[1].memory, rkey, 64);
    close_sides(sides);
}

static void key_out_of_range(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    uint64_t to = (uintptr_t)sides[1].memory + MEMORY - (wrong ? 60 : 64);
    write_with(&sides[0], (uintptr_t)sides[0].memory, sides[0].mr->lkey, to, sides[1].mr->rkey, 64);
    close_sides(sides);
}

// The region was registered for local use.
// Seen in open-mpi/ompi#1101, ofiwg/libfabric#7236.
static void access_missing(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){.access = IBV_ACCESS_LOCAL_WRITE | (wrong ? 0 : IBV_ACCESS_REMOTE_WRITE)});
    write_with(&sides[0], (uintptr_t)sides[0].memory, sides[0].mr->lkey, (uintptr_t)sides[1].memory, sides[1].mr->rkey,
               64);
    close_sides(sides);
}

// The region has more rights than its peers use. Seen in kvcache-ai/Mooncake#3151.
static void access_unused(bool wrong) {
    struct side sides[2];
    struct options source = {.access = IBV_ACCESS_LOCAL_WRITE}, target = source;
    target.access |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | (wrong ? IBV_ACCESS_REMOTE_ATOMIC : 0);
    make_side(&sides[0], source);
    make_side(&sides[1], target);
    for (int i = 0; i < 2; i++)
        connect_side(&sides[i], &sides[1 - i], (struct options){0}, NULL);
    for (int i = 0; i < 2; i++) {
        enum ibv_wr_opcode opcode = i ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        check(!post_send(&sides[0], i, opcode, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
        done(&sides[0]);
    }
    close_sides(sides);
}

// Releases the buffer while the message waits for its receiver. Seen in ydb-platform/nbs#5729,
// ydb-platform/nbs#6290, novitalabs/pegaflow#403, meta-pytorch/monarch#3825.
static void memory_gone_in_flight(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    if (!wrong)
        check(!post_recv(&sides[1], 2, 0, 64), "ibv_post_recv");
    check(!post_send(&sides[0], 1, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    if (wrong) {
        check(!ibv_dereg_mr(sides[0].mr), "ibv_dereg_mr");
        sides[0].mr = NULL;
        completion(&sides[0], NULL);
    } else {
        done(&sides[0]);
        done(&sides[1]);
    }
    close_sides(sides);
}

// Two receives share a buffer.
// Seen in kvcache-ai/Mooncake#1903.
static void buffer_overlap_in_flight(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    for (int i = 0; i < 2; i++)
        check(!post_recv(&sides[1], i, wrong ? 0 : 4096 * i, 4096), "ibv_post_recv");
    for (int i = 0; i < 2; i++) {
        check(!post_send(&sides[0], i, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 4096, &sides[1]), "ibv_post_send");
        done(&sides[0]);
        done(&sides[1]);
    }
    close_sides(sides);
}

// Fills the buffer for the next message while this one waits for its receiver. Seen in
// ydb-platform/nbs#5729.
static void buffer_changed_in_flight(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    for (int i = 0; i < 2; i++) {
        memset(sides[0].memory, i + 1, 3000);
        if (!wrong)
            check(!post_recv(&sides[1], i, 0, 3000), "ibv_post_recv");
        check(!post_send(&sides[0], i, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 3000, &sides[1]), "ibv_post_send");
        if (wrong) {
            memset(sides[0].memory, 9, 3000);
            check(!post_recv(&sides[1], i, 0, 3000), "ibv_post_recv");
        }
        done(&sides[0]);
        done(&sides[1]);
    }
    close_sides(sides);
}

// Clears the buffer after posting it.
static void receive_changed_early(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    memset(sides[0].memory, 5, 64);
    memset(sides[1].memory, 6, 64);
    if (!wrong)
        memset(sides[1].memory, 0, 64);
    check(!post_recv(&sides[1], 1, 0, 64), "ibv_post_recv");
    if (wrong)
        memset(sides[1].memory, 0, 64);
    check(!post_send(&sides[0], 1, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    done(&sides[0]);
    done(&sides[1]);
    close_sides(sides);
}

// Posts a SEND on the first queue pair, and its receive, unless the caller posts that later.
static void send_first(struct side sides[2], bool late) {
    if (!late)
        check(!post_recv(&sides[1], 1, 4096, 64), "ibv_post_recv");
    check(!post_send(&sides[0], 1, IBV_WR_SEND, IBV_SEND_SIGNALED, 8192, 64, &sides[1]), "ibv_post_send");
}

// Two queue pairs write to one region, as if their requests were executed in the order of posting.
static void remote_overlap(bool wrong) {
    struct side sides[2], others[2];
    make_pair(sides, (struct options){0});
    memcpy(others, sides, sizeof others);
    for (int i = 0; i < 2; i++)
        make_qp(&others[i], (struct options){0});
    for (int i = 0; i < 2; i++)
        connect_side(&others[i], &others[1 - i], (struct options){0}, NULL);
    send_first(sides, wrong);
    check(!post_send(&sides[0], 2, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    for (int i = 0; i < 2 && !wrong; i++)
        done(&sides[0]);
    check(!post_send(&others[0], 3, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 64, 64, &others[1]), "ibv_post_send");
    if (wrong)
        check(!post_recv(&sides[1], 1, 4096, 64), "ibv_post_recv");
    for (int i = 0; i < (wrong ? 3 : 1); i++)
        done(&sides[0]);
    done(&sides[1]);
    for (int i = 0; i < 2; i++)
        check(!ibv_destroy_qp(others[i].qp), "ibv_destroy_qp");
    close_sides(sides);
}

// Posts a SEND and a fetch and add, which both wait for the receive of the SEND.
static void count(struct side sides[2], unsigned result) {
    check(!post_send(&sides[0], 1, IBV_WR_SEND, IBV_SEND_SIGNALED, 8192, 64, &sides[1]), "ibv_post_send");
    check(!post_send(&sides[0], 2, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED, result, 8, &sides[1]),
          "ibv_post_send");
}

// The owner writes to a counter while its peer adds to it.
static void atomic_mixed(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    volatile uint64_t *counter = (uint64_t *)sides[1].memory;
    for (int i = 0; i < 2 && wrong; i++)
        count(sides, 128 * (i + 1));
    for (int i = 0; i < 2; i++) {
        check(!post_recv(&sides[1], i, 4096, 64), "ibv_post_recv");
        if (!wrong)
            count(sides, 128 * (i + 1));
        done(&sides[0]);
        done(&sides[0]);
        done(&sides[1]);
        *counter = 100;
    }
    close_sides(sides);
}

// Creates the shared receive queue of an XRC target.
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

// A counter is overwritten while a peer adds to it: by its owner, or by a message of that peer.
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
    check(!ibv_get_srq_num(srq, &sides[1].srqn), "ibv_get_srq_num");
    for (int i = 0; i < 2; i++)
        count(sides, 128 * (i + 1));
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

// Unmaps or replaces memory that is still registered.
static void unmap_registered(bool wrong, bool replaced) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = ibv_reg_mr(sides[0].pd, page, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    check(mr, "ibv_reg_mr");
    if (wrong) {
        munmap(page, 4096);
        if (replaced)
            page = mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
    munmap(page, 4096);
    close_sides(sides);
}

static void memory_unmapped(bool wrong) { unmap_registered(wrong, false); }
static void memory_replaced(bool wrong) { unmap_registered(wrong, true); }

const struct misuse memory_cases[] = {
    {"memory-unmapped", memory_unmapped},
    {"memory-replaced", memory_replaced},
    {"remote-overlap", remote_overlap},
    {"atomic-mixed", atomic_mixed},
    {"atomic-mixed-xrc", atomic_mixed_xrc},
    {"key-confused", key_confused},
    {"key-of-other-pd", key_of_other_pd},
    {"key-stale", key_stale},
    {"key-out-of-range", key_out_of_range},
    {"access-missing", access_missing},
    {"access-unused", access_unused},
    {"memory-gone-in-flight", memory_gone_in_flight},
    {"buffer-overlap-in-flight", buffer_overlap_in_flight},
    {"buffer-changed-in-flight", buffer_changed_in_flight},
    {"receive-changed-early", receive_changed_early},
    {NULL, NULL},
};
