// Creation and destruction of objects.
#include "misuse.h"
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <sys/wait.h>
#include <unistd.h>

// Destroys the domain before its region. Seen in uccl-project/uccl#690.
static void destroy_order(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    check(!ibv_destroy_qp(sides[0].qp), "ibv_destroy_qp");
    sides[0].qp = NULL;
    if (wrong) {
        check(ibv_dealloc_pd(sides[0].pd) == EBUSY, "ibv_dealloc_pd");
    } else {
        check(!ibv_dereg_mr(sides[0].mr), "ibv_dereg_mr");
        sides[0].mr = NULL;
        check(!ibv_dealloc_pd(sides[0].pd), "ibv_dealloc_pd");
        sides[0].pd = NULL;
    }
    close_sides(sides);
}

// Destroys a queue pair while its SEND waits for a receive of the peer. Seen in spdk/spdk#3859.
static void destroy_with_outstanding(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){.min_rnr_timer = 20});
    if (!wrong)
        check(!post_recv(&sides[1], 1, 0, 64), "ibv_post_recv");
    check(!post_send(&sides[0], 1, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    if (!wrong) {
        done(&sides[0]);
        done(&sides[1]);
    }
    close_sides(sides);
}

static void use_after_destroy(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    struct side old = sides[0];
    if (wrong) {
        check(!ibv_destroy_qp(sides[0].qp), "ibv_destroy_qp");
        sides[0].qp = NULL;
    }
    int error = post_send(&old, 1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]);
    check(wrong ? error : !error, "ibv_post_send");
    if (!wrong)
        done(&sides[0]);
    close_sides(sides);
}

// Closes the device twice.
static void closed_twice(bool wrong) {
    open_context();
    check(!ibv_close_device(context), "ibv_close_device");
    if (wrong)
        check(ibv_close_device(context), "the second ibv_close_device");
    context = NULL;
}

// A region still exists at the end. The program need not destroy objects that librdmacm has created
// itself. Seen in linux-rdma/perftest#77.
static void leak(bool wrong) {
    struct rdma_cm_id *id = NULL;
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *info;
    check(!rdma_getaddrinfo("127.0.0.1", "0", &hints, &info), "rdma_getaddrinfo");
    check(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(!rdma_bind_addr(id, info->ai_src_addr), "rdma_bind_addr");
    rdma_freeaddrinfo(info);
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    check(!rdma_create_qp(id, NULL, &init), "rdma_create_qp");
    struct ibv_mr *mr = ibv_reg_mr(id->pd, &init, sizeof init, IBV_ACCESS_LOCAL_WRITE);
    check(mr, "ibv_reg_mr");
    if (!wrong)
        check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
    rdma_destroy_qp(id);
    check(!rdma_destroy_id(id), "rdma_destroy_id");
}

// Forks while a receive is posted. Seen in ofiwg/libfabric#6241.
static void fork_in_flight(bool wrong) {
    if (!wrong)
        check(!ibv_fork_init(), "ibv_fork_init");
    struct side sides[2];
    make_pair(sides, (struct options){0});
    check(!post_recv(&sides[1], 1, 0, 64), "ibv_post_recv");
    pid_t child = fork();
    if (!child)
        _exit(0);
    check(waitpid(child, NULL, 0) == child, "waitpid");
    check(!post_send(&sides[0], 1, IBV_WR_SEND, IBV_SEND_SIGNALED, 64, 64, &sides[1]), "ibv_post_send");
    done(&sides[0]);
    done(&sides[1]);
    close_sides(sides);
}

const struct misuse life_cases[] = {
    {"closed-twice", closed_twice},
    {"fork-in-flight", fork_in_flight},
    {"destroy-order", destroy_order},
    {"destroy-with-outstanding", destroy_with_outstanding},
    {"use-after-destroy", use_after_destroy},
    {"leak", leak},
    {NULL, NULL},
};
