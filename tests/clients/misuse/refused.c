// Each row of a table makes one call that must fail; `roxe run --explain` must give the reason. A
// table runs in one process, which prints the name of each row before its call.
#include "misuse.h"
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

static struct side side; // in INIT
static struct side ready; // in RTS, connected to itself
static struct ibv_context *other; // the device, opened a second time

struct row {
    const char *name;
    bool (*is_refused)(void); // makes the call, and returns true if it was refused
};

static void run(const struct row *rows) {
    open_context();
    struct ibv_device **devices = ibv_get_device_list(NULL);
    check(devices && devices[0], "ibv_get_device_list");
    other = ibv_open_device(devices[0]);
    ibv_free_device_list(devices);
    check(other, "ibv_open_device");
    make_side(&side, (struct options){0});
    make_side(&ready, (struct options){.max_send_wr = 4, .max_recv_wr = 4, .max_inline_data = 64});
    connect_side(&ready, &ready, (struct options){0}, NULL);
    for (; rows->name; rows++) {
        fprintf(stderr, "row %s\n", rows->name);
        errno = 0;
        check(rows->is_refused(), rows->name);
    }
}

static bool no_cq(int cqe, struct ibv_comp_channel *channel, int vector) {
    return !ibv_create_cq(context, cqe, NULL, channel, vector);
}

static bool cq_size(void) { return no_cq(1 << 30, NULL, 0); }
static bool cq_negative(void) { return no_cq(-1, NULL, 0); }
static bool cq_vector(void) { return no_cq(16, NULL, 99); }

static bool cq_channel(void) {
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    check(channel && !ibv_destroy_comp_channel(channel), "ibv_create_comp_channel");
    return no_cq(16, channel, 0);
}

static bool no_cq_ex(struct ibv_cq_init_attr_ex attr) {
    attr.cqe = 16;
    return !ibv_create_cq_ex(context, &attr);
}

static bool cq_wc_flags(void) { return no_cq_ex((struct ibv_cq_init_attr_ex){.wc_flags = 1 << 20}); }
static bool cq_comp_mask(void) { return no_cq_ex((struct ibv_cq_init_attr_ex){.comp_mask = 0x80}); }
static bool cq_flags(void) { return no_cq_ex((struct ibv_cq_init_attr_ex){.comp_mask = 1, .flags = 0x100}); }
static bool cq_resize(void) { return ibv_resize_cq(side.cq, 1 << 30); }
static bool cq_busy(void) { return ibv_destroy_cq(side.cq) == EBUSY; }

static bool cq_overwritten(void) {
    struct ibv_context *before = side.cq->context;
    side.cq->context = NULL;
    int error = ibv_resize_cq(side.cq, 16);
    side.cq->context = before;
    return error;
}

static struct ibv_qp_init_attr plain(void) {
    return (struct ibv_qp_init_attr){
        .send_cq = side.cq,
        .recv_cq = side.cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
}

static bool no_qp(struct ibv_pd *pd, struct ibv_qp_init_attr init) { return !ibv_create_qp(pd, &init); }

#define NO_QP(name, field, value)                                                                                      \
    static bool name(void) {                                                                                           \
        struct ibv_qp_init_attr init = plain();                                                                        \
        init.field = value;                                                                                            \
        return no_qp(side.pd, init);                                                                                   \
    }

NO_QP(qp_null_cq, send_cq, NULL)
NO_QP(qp_type, qp_type, 99)
NO_QP(qp_send_wr, cap.max_send_wr, 1 << 30)
NO_QP(qp_recv_wr, cap.max_recv_wr, 1 << 30)
NO_QP(qp_send_sge, cap.max_send_sge, 1000)
NO_QP(qp_recv_sge, cap.max_recv_sge, 1000)
NO_QP(qp_inline, cap.max_inline_data, 1 << 20)

static bool qp_destroyed_cq(void) {
    struct ibv_qp_init_attr init = plain();
    init.recv_cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    check(init.recv_cq && !ibv_destroy_cq(init.recv_cq), "ibv_create_cq");
    return no_qp(side.pd, init);
}

static bool qp_foreign_cq(void) {
    struct ibv_qp_init_attr init = plain();
    init.recv_cq = ibv_create_cq(other, 4, NULL, NULL, 0);
    check(init.recv_cq, "ibv_create_cq");
    return no_qp(side.pd, init);
}

static bool qp_pd_for_cq(void) {
    struct ibv_qp_init_attr init = plain();
    init.recv_cq = (void *)side.pd;
    return no_qp(side.pd, init);
}

static bool qp_null_pd(void) { return no_qp(NULL, plain()); }

static bool qp_destroyed_pd(void) {
    struct ibv_pd *pd = ibv_alloc_pd(context);
    check(pd && !ibv_dealloc_pd(pd), "ibv_alloc_pd");
    return no_qp(pd, plain());
}

static struct ibv_srq *shared(struct ibv_context *of) {
    struct ibv_pd *pd = ibv_alloc_pd(of);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = pd ? ibv_create_srq(pd, &init) : NULL;
    check(srq, "ibv_create_srq");
    return srq;
}

static bool qp_destroyed_srq(void) {
    struct ibv_qp_init_attr init = plain();
    init.srq = shared(context);
    check(!ibv_destroy_srq(init.srq), "ibv_destroy_srq");
    return no_qp(side.pd, init);
}

static bool qp_foreign_srq(void) {
    struct ibv_qp_init_attr init = plain();
    init.srq = shared(other);
    return no_qp(side.pd, init);
}

static bool qp_null_attr(void) { return !ibv_create_qp(side.pd, NULL); }

static bool no_qp_ex(uint32_t comp_mask, uint32_t create_flags, uint64_t ops) {
    struct ibv_qp_init_attr_ex init = {
        .send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC, .pd = side.pd, .comp_mask = comp_mask};
    init.create_flags = create_flags;
    init.send_ops_flags = ops;
    return !ibv_create_qp_ex(context, &init);
}

static bool qp_comp_mask(void) { return no_qp_ex(0x8001, 0, 0); }
static bool qp_no_pd(void) { return no_qp_ex(0, 0, 0); }
static bool qp_create_flags(void) { return no_qp_ex(5, 1u << 30, 0); }
static bool qp_send_ops(void) { return no_qp_ex(0x41, 0, 1u << 30); }

static bool no_srq(unsigned max_wr, unsigned max_sge) {
    struct ibv_srq_init_attr init = {.attr = {.max_wr = max_wr, .max_sge = max_sge}};
    return !ibv_create_srq(side.pd, &init);
}

static bool srq_size(void) { return no_srq(1 << 30, 1); }
static bool srq_sge(void) { return no_srq(4, 1000); }

static bool srq_limit(void) {
    struct ibv_srq_attr attr = {.srq_limit = 9};
    return ibv_modify_srq(shared(context), &attr, IBV_SRQ_LIMIT);
}

static bool srq_comp_mask(void) {
    struct ibv_srq_init_attr_ex init = {.comp_mask = 0x100, .attr = {.max_wr = 4, .max_sge = 1}};
    return !ibv_create_srq_ex(context, &init);
}

static bool srq_mask(void) {
    struct ibv_srq_attr attr = {.max_wr = 4};
    return ibv_modify_srq(shared(context), &attr, 0x80);
}

static bool pd_busy(void) { return ibv_dealloc_pd(side.pd) == EBUSY; }

static const struct row creations[] = {
    {"cq-size", cq_size},
    {"cq-negative", cq_negative},
    {"cq-vector", cq_vector},
    {"cq-channel", cq_channel},
    {"cq-wc-flags", cq_wc_flags},
    {"cq-comp-mask", cq_comp_mask},
    {"cq-flags", cq_flags},
    {"cq-resize", cq_resize},
    {"cq-busy", cq_busy},
    {"cq-overwritten", cq_overwritten},
    {"qp-null-cq", qp_null_cq},
    {"qp-destroyed-cq", qp_destroyed_cq},
    {"qp-foreign-cq", qp_foreign_cq},
    {"qp-pd-for-cq", qp_pd_for_cq},
    {"qp-null-pd", qp_null_pd},
    {"qp-destroyed-pd", qp_destroyed_pd},
    {"qp-destroyed-srq", qp_destroyed_srq},
    {"qp-foreign-srq", qp_foreign_srq},
    {"qp-null-attr", qp_null_attr},
    {"qp-type", qp_type},
    {"qp-send-wr", qp_send_wr},
    {"qp-recv-wr", qp_recv_wr},
    {"qp-send-sge", qp_send_sge},
    {"qp-recv-sge", qp_recv_sge},
    {"qp-inline", qp_inline},
    {"qp-comp-mask", qp_comp_mask},
    {"qp-no-pd", qp_no_pd},
    {"qp-create-flags", qp_create_flags},
    {"qp-send-ops", qp_send_ops},
    {"srq-size", srq_size},
    {"srq-sge", srq_sge},
    {"srq-limit", srq_limit},
    {"srq-comp-mask", srq_comp_mask},
    {"srq-mask", srq_mask},
    {"pd-busy", pd_busy},
    {NULL, NULL},
};

// A new queue pair in RESET.
static struct ibv_qp *fresh(void) {
    struct ibv_qp_init_attr init = plain();
    struct ibv_qp *qp = ibv_create_qp(side.pd, &init);
    check(qp, "ibv_create_qp");
    return qp;
}

enum { TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS };
enum {
    TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER
};
enum {
    TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
             IBV_QP_MAX_QP_RD_ATOMIC
};

static struct ibv_qp_attr to_rtr(void) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = 77,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1},
    };
    check(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
    return attr;
}

#define NO_INIT(name, field, value)                                                                                    \
    static bool name(void) {                                                                                           \
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};                                           \
        attr.field = value;                                                                                            \
        return ibv_modify_qp(fresh(), &attr, TO_INIT);                                                                 \
    }
#define NO_RTR(name, field, value)                                                                                     \
    static bool name(void) {                                                                                           \
        struct ibv_qp_attr attr = to_rtr();                                                                            \
        attr.field = value;                                                                                            \
        return ibv_modify_qp(side.qp, &attr, TO_RTR);                                                                  \
    }
#define NO_RTS(name, field, value)                                                                                     \
    static bool name(void) {                                                                                           \
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};                                                           \
        attr.field = value;                                                                                            \
        return ibv_modify_qp(rtr(), &attr, TO_RTS);                                                                    \
    }

static struct ibv_qp *rtr(void) {
    struct ibv_qp *qp = fresh();
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1}, attr = to_rtr();
    check(!ibv_modify_qp(qp, &init, TO_INIT) && !ibv_modify_qp(qp, &attr, TO_RTR), "to RTR");
    return qp;
}

NO_INIT(init_access, qp_access_flags, 1 << 15)
NO_INIT(init_port, port_num, 9)
NO_INIT(init_pkey, pkey_index, 7)
NO_INIT(init_state, qp_state, 17)
NO_INIT(init_to_rts, qp_state, IBV_QPS_RTS)
NO_RTR(rtr_mtu_0, path_mtu, 0)
NO_RTR(rtr_depth, max_dest_rd_atomic, 200)
NO_RTR(rtr_gid_index, ah_attr.grh.sgid_index, 99)
NO_RTR(rtr_group, ah_attr.grh.dgid.raw[0], 0xff)
NO_RTS(rts_timeout, timeout, 40)
NO_RTS(rts_retry, retry_cnt, 9)
NO_RTS(rts_rnr_retry, rnr_retry, 8)
NO_RTS(rts_depth, max_rd_atomic, 200)

static bool init_mask(void) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    return ibv_modify_qp(fresh(), &attr, TO_INIT | 1 << 30);
}

static bool init_forbidden(void) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    return ibv_modify_qp(fresh(), &attr, TO_INIT | IBV_QP_QKEY);
}

static bool init_null(void) { return ibv_modify_qp(fresh(), NULL, TO_INIT); }

static bool current_state(void) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQD};
    return ibv_modify_qp(ready.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE);
}

static bool destroyed_qp(void) {
    struct ibv_qp *qp = fresh();
    check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static bool no_ah(struct ibv_ah_attr attr) { return !ibv_create_ah(side.pd, &attr); }
static bool ah_port(void) { return no_ah((struct ibv_ah_attr){.is_global = 1, .port_num = 9}); }
static bool ah_null(void) { return !ibv_create_ah(side.pd, NULL); }

static bool query_port(void) {
    struct ibv_port_attr attr;
    return ibv_query_port(context, 9, &attr);
}

static bool query_gid(void) {
    union ibv_gid gid;
    return ibv_query_gid(context, 1, 9999, &gid);
}

static bool query_null(void) { return ibv_query_qp(side.qp, NULL, 0, NULL); }

static const struct row changes[] = {
    {"init-access", init_access},
    {"init-port", init_port},
    {"init-pkey", init_pkey},
    {"init-state", init_state},
    {"init-to-rts", init_to_rts},
    {"init-mask", init_mask},
    {"init-forbidden", init_forbidden},
    {"init-null", init_null},
    {"rtr-mtu-0", rtr_mtu_0},
    {"rtr-depth", rtr_depth},
    {"rtr-gid-index", rtr_gid_index},
    {"rtr-group", rtr_group},
    {"rts-timeout", rts_timeout},
    {"rts-retry", rts_retry},
    {"rts-rnr-retry", rts_rnr_retry},
    {"rts-depth", rts_depth},
    {"current-state", current_state},
    {"destroyed-qp", destroyed_qp},
    {"ah-port", ah_port},
    {"ah-null", ah_null},
    {"query-port", query_port},
    {"query-gid", query_gid},
    {"query-null", query_null},
    {NULL, NULL},
};

static struct ibv_sge list[2000];

static bool no_send(struct ibv_qp *qp, struct ibv_send_wr wr) {
    struct ibv_send_wr *bad;
    return ibv_post_send(qp, &wr, &bad);
}

static bool no_recv(struct ibv_qp *qp, int num_sge) {
    struct ibv_recv_wr wr = {.sg_list = list, .num_sge = num_sge}, *bad;
    return ibv_post_recv(qp, &wr, &bad);
}

static bool send_state(void) { return no_send(side.qp, (struct ibv_send_wr){.opcode = IBV_WR_SEND}); }
static bool send_sges(void) { return no_send(ready.qp, (struct ibv_send_wr){.sg_list = list, .num_sge = 9}); }
static bool send_any_sges(void) { return no_send(ready.qp, (struct ibv_send_wr){.sg_list = list, .num_sge = 2000}); }
static bool send_negative(void) { return no_send(ready.qp, (struct ibv_send_wr){.sg_list = list, .num_sge = -1}); }
static bool send_null_list(void) { return no_send(ready.qp, (struct ibv_send_wr){.num_sge = 1}); }
static bool send_opcode(void) { return no_send(ready.qp, (struct ibv_send_wr){.opcode = 77}); }

static bool no_inline(uint32_t length, enum ibv_wr_opcode opcode) {
    list[0] = (struct ibv_sge){(uintptr_t)side.memory, length, 0};
    return no_send(ready.qp, (struct ibv_send_wr){
                                 .sg_list = list, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_INLINE});
}

static bool send_inline(void) { return no_inline(1000, IBV_WR_SEND); }
static bool send_any_inline(void) { return no_inline(60000, IBV_WR_SEND); }
static bool send_inline_read(void) { return no_inline(8, IBV_WR_RDMA_READ); }

static bool send_long(void) {
    list[0] = (struct ibv_sge){(uintptr_t)side.memory, 0x80000001, side.mr->lkey};
    return no_send(ready.qp, (struct ibv_send_wr){.sg_list = list, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE});
}

static bool send_read_0(void) {
    struct ibv_qp *qp = rtr();
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    check(!ibv_modify_qp(qp, &attr, TO_RTS), "to RTS");
    return no_send(qp, (struct ibv_send_wr){.opcode = IBV_WR_RDMA_READ});
}

static struct ibv_qp *datagrams(void) {
    static struct side ud;
    if (!ud.qp) {
        make_side(&ud, (struct options){.type = IBV_QPT_UD});
        connect_side(&ud, &ud, (struct options){.type = IBV_QPT_UD}, NULL);
    }
    return ud.qp;
}

static bool send_ud_write(void) {
    struct ibv_ah_attr attr = to_rtr().ah_attr;
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE};
    wr.wr.ud.ah = ibv_create_ah(side.pd, &attr);
    check(wr.wr.ud.ah, "ibv_create_ah");
    return no_send(datagrams(), wr);
}

static bool send_ud_nowhere(void) { return no_send(datagrams(), (struct ibv_send_wr){.opcode = IBV_WR_SEND}); }
static bool recv_sges(void) { return no_recv(ready.qp, 9); }
static bool recv_state(void) { return no_recv(fresh(), 0); }

static bool recv_full(void) {
    bool is_refused = false;
    for (int i = 0; i < 100 && !is_refused; i++)
        is_refused = no_recv(ready.qp, 0);
    return is_refused;
}

static bool srq_full(void) {
    struct ibv_srq *srq = shared(context);
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    bool is_refused = false;
    for (int i = 0; i < 100 && !is_refused; i++)
        is_refused = ibv_post_srq_recv(srq, &wr, &bad);
    return is_refused;
}

static bool srq_sges(void) {
    struct ibv_recv_wr wr = {.sg_list = list, .num_sge = 9}, *bad;
    return ibv_post_srq_recv(shared(context), &wr, &bad);
}

static bool no_mr(void *addr, size_t length, int access) { return !ibv_reg_mr(side.pd, addr, length, access); }
static bool mr_access(void) { return no_mr(side.memory, 64, 1 << 15); }
static bool mr_local(void) { return no_mr(side.memory, 64, IBV_ACCESS_REMOTE_WRITE); }
static bool mr_end(void) { return no_mr((void *)-4096L, 1 << 20, IBV_ACCESS_LOCAL_WRITE); }
static bool mr_null_pd(void) { return !ibv_reg_mr(NULL, side.memory, 64, IBV_ACCESS_LOCAL_WRITE); }

static bool mr_readonly(void) {
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(page != MAP_FAILED, "mmap");
    return no_mr(page, 4096, IBV_ACCESS_LOCAL_WRITE);
}

static bool mr_rereg(void) { return ibv_rereg_mr(side.mr, 0x40, NULL, NULL, 0, 0); }

static bool mr_windows(void) {
    struct ibv_mr *mr = ibv_reg_mr(ready.pd, ready.memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    struct ibv_mw *mw = ibv_alloc_mw(ready.pd, IBV_MW_TYPE_1);
    check(mr && mw, "ibv_reg_mr or ibv_alloc_mw");
    struct ibv_mw_bind bind = {.bind_info = {mr, (uintptr_t)ready.memory, 64, IBV_ACCESS_REMOTE_READ}};
    bind.send_flags = IBV_SEND_SIGNALED;
    check(!ibv_bind_mw(ready.qp, mw, &bind), "ibv_bind_mw");
    check(completion(&ready, NULL) == IBV_WC_SUCCESS, "completion of ibv_bind_mw");
    return ibv_dereg_mr(mr) == EBUSY;
}

static bool mw_type(void) { return !ibv_alloc_mw(side.pd, 9); }

static const struct row requests[] = {
    {"send-state", send_state},
    {"send-sges", send_sges},
    {"send-any-sges", send_any_sges},
    {"send-negative", send_negative},
    {"send-null-list", send_null_list},
    {"send-opcode", send_opcode},
    {"send-inline", send_inline},
    {"send-any-inline", send_any_inline},
    {"send-inline-read", send_inline_read},
    {"send-long", send_long},
    {"send-read-0", send_read_0},
    {"send-ud-write", send_ud_write},
    {"send-ud-nowhere", send_ud_nowhere},
    {"recv-sges", recv_sges},
    {"recv-state", recv_state},
    {"recv-full", recv_full},
    {"srq-full", srq_full},
    {"srq-sges", srq_sges},
    {"mr-access", mr_access},
    {"mr-local", mr_local},
    {"mr-end", mr_end},
    {"mr-null-pd", mr_null_pd},
    {"mr-readonly", mr_readonly},
    {"mr-rereg", mr_rereg},
    {"mr-windows", mr_windows},
    {"mw-type", mw_type},
    {NULL, NULL},
};

static void refused_creations(bool wrong) { (void)wrong; run(creations); }
static void refused_changes(bool wrong) { (void)wrong; run(changes); }
static void refused_requests(bool wrong) { (void)wrong; run(requests); }

const struct misuse refused_cases[] = {
    {"refused-creations", refused_creations},
    {"refused-changes", refused_changes},
    {"refused-requests", refused_requests},
    {NULL, NULL},
};
