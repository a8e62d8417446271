// The device, its registered memory, and queue pairs.
#include "cells.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

enum { PORT = 1, MAX_SENDS = 2 * MAX_GROUP, MAX_INLINE = 64, HOPS = 64 };

static uint32_t random_bits(void)
{
    uint32_t bits = 0;
    while (getrandom(&bits, sizeof bits, 0) != sizeof bits) // only a signal can come between
        ;
    return bits;
}

static struct ibv_context *open_named(const char *name, struct report *report)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;
    if (!list) {
        call_failed(report, "ibv_get_device_list", errno);
        return NULL;
    }
    int chosen = 0;
    while (chosen < count && name && strcmp(ibv_get_device_name(list[chosen]), name) != 0)
        chosen++;
    if (chosen == count) {
        wrong(report, BROKEN, "no device %s among %d", name ? name : "at all", count);
    } else {
        context = ibv_open_device(list[chosen]);
        if (!context)
            call_failed(report, "ibv_open_device", errno);
    }
    ibv_free_device_list(list);
    return context;
}

// The RoCE v2 entry of the GID table that equals `wanted`.
static bool find_gid(struct device *d, int table, const union ibv_gid *wanted, struct report *report)
{
    for (int i = 0; i < table; i++) {
        struct ibv_gid_entry entry;
        if (ibv_query_gid_ex(d->context, PORT, (uint32_t)i, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2
            && memcmp(&entry.gid, wanted, sizeof entry.gid) == 0) {
            d->gid = entry.gid;
            d->gid_index = i;
            return true;
        }
    }
    return wrong(report, BROKEN, "no RoCE v2 GID of the device is this end of the TCP connection; choose with -g");
}

static bool query(struct device *d, int gid_index, const union ibv_gid *wanted, struct report *report)
{
    struct ibv_port_attr port;
    struct ibv_device_attr attr;
    int error = ibv_query_port(d->context, PORT, &port);
    if (error != 0)
        return call_failed(report, "ibv_query_port", error);
    error = ibv_query_device(d->context, &attr);
    if (error != 0)
        return call_failed(report, "ibv_query_device", error);
    if (port.state != IBV_PORT_ACTIVE)
        return wrong(report, BROKEN, "port 1 is not active");
    d->mtu = 128u << port.active_mtu;
    d->ack_delay = attr.local_ca_ack_delay;
    d->atomics = attr.atomic_cap != IBV_ATOMIC_NONE;
    int most = attr.max_qp_rd_atom < attr.max_qp_init_rd_atom ? attr.max_qp_rd_atom : attr.max_qp_init_rd_atom;
    d->reads = most < 4 ? most : 4;
    if (gid_index < 0)
        return find_gid(d, port.gid_tbl_len, wanted, report);
    d->gid_index = gid_index;
    if (ibv_query_gid(d->context, PORT, gid_index, &d->gid) != 0)
        return call_failed(report, "ibv_query_gid", errno);
    return true;
}

static bool register_area(struct device *d, struct report *report)
{
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    void *area = mmap(NULL, AREA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        return call_failed(report, "mmap", errno);
    d->area = area;
    d->pd = ibv_alloc_pd(d->context);
    if (!d->pd)
        return call_failed(report, "ibv_alloc_pd", errno);
    d->mr = ibv_reg_mr(d->pd, d->area, AREA_BYTES, access);
    if (!d->mr)
        return call_failed(report, "ibv_reg_mr", errno);
    return true;
}

bool device_open(struct device *d, const char *name, int gid_index, const union ibv_gid *wanted, struct report *report)
{
    *d = (struct device){0};
    d->context = open_named(name, report);
    return d->context && query(d, gid_index, wanted, report) && register_area(d, report);
}

bool device_close(struct device *d, struct report *report)
{
    int error = d->mr ? ibv_dereg_mr(d->mr) : 0;
    bool ok = error == 0 || call_failed(report, "ibv_dereg_mr", error);
    error = d->pd ? ibv_dealloc_pd(d->pd) : 0;
    ok &= error == 0 || call_failed(report, "ibv_dealloc_pd", error);
    if (d->context && ibv_close_device(d->context) != 0)
        ok = call_failed(report, "ibv_close_device", errno);
    if (d->area && munmap(d->area, AREA_BYTES) != 0)
        ok = call_failed(report, "munmap", errno);
    *d = (struct device){0};
    return ok;
}

enum ibv_mtu mtu_code(uint32_t bytes)
{
    enum ibv_mtu code = IBV_MTU_256;
    while (code < IBV_MTU_4096 && 128u << code < bytes)
        code++;
    return code;
}

static bool create(struct link *l, struct device *d, enum service service, struct report *report)
{
    static const enum ibv_qp_type types[] = {[RC] = IBV_QPT_RC, [UC] = IBV_QPT_UC, [UD] = IBV_QPT_UD};
    l->send_cq = ibv_create_cq(d->context, MAX_SENDS, NULL, NULL, 0);
    l->recv_cq = ibv_create_cq(d->context, 2 * MAX_GROUP, NULL, NULL, 0);
    if (!l->send_cq || !l->recv_cq)
        return call_failed(report, "ibv_create_cq", errno);
    struct ibv_qp_init_attr init = {
        .send_cq = l->send_cq,
        .recv_cq = l->recv_cq,
        .qp_type = types[service],
        .cap = {.max_send_wr = MAX_SENDS, .max_recv_wr = MAX_GROUP, .max_send_sge = 3, .max_recv_sge = 3,
                .max_inline_data = MAX_INLINE},
    };
    l->qp = ibv_create_qp(d->pd, &init);
    if (!l->qp)
        return call_failed(report, "ibv_create_qp", errno);
    l->inline_bytes = init.cap.max_inline_data < MAX_INLINE ? init.cap.max_inline_data : MAX_INLINE;
    return true;
}

static bool to_init(struct link *l, enum service service, uint32_t qkey, struct report *report)
{
    static const unsigned access[] = {
        [RC] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
        [UC] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        [UD] = 0,
    };
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = qkey, .qp_access_flags = access[service]};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (service == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    int error = ibv_modify_qp(l->qp, &attr, mask);
    return error == 0 || call_failed(report, "ibv_modify_qp to INIT", error);
}

bool link_open(struct link *l, struct device *d, enum service service, uint32_t qkey, struct report *report)
{
    *l = (struct link){.psn = random_bits() & 0xffffff};
    return create(l, d, service, report) && to_init(l, service, qkey, report);
}

static struct ibv_ah_attr address(const struct device *d, const struct remote *remote)
{
    return (struct ibv_ah_attr){
        .is_global = 1,
        .port_num = PORT,
        .grh = {.dgid = remote->gid, .sgid_index = (uint8_t)d->gid_index, .hop_limit = HOPS},
    };
}

static bool to_rtr(struct link *l, struct device *d, enum service service, uint32_t mtu, struct report *report)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu_code(mtu),
        .dest_qp_num = l->remote.qpn,
        .rq_psn = l->remote.psn,
        .max_dest_rd_atomic = (uint8_t)d->reads,
        .min_rnr_timer = 1, // 10 us: receives are posted before the peer may send, only an injected fault needs it
        .ah_attr = address(d, &l->remote),
    };
    int mask = IBV_QP_STATE;
    if (service != UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (service == RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int error = ibv_modify_qp(l->qp, &attr, mask);
    return error == 0 || call_failed(report, "ibv_modify_qp to RTR", error);
}

static bool to_rts(struct link *l, struct device *d, enum service service, int ack_timeout, struct report *report)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = l->psn,
        .timeout = (uint8_t)ack_timeout,
        .retry_cnt = 7,
        .rnr_retry = 7, // for ever
        .max_rd_atomic = (uint8_t)d->reads,
    };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (service == RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    int error = ibv_modify_qp(l->qp, &attr, mask);
    return error == 0 || call_failed(report, "ibv_modify_qp to RTS", error);
}

bool link_connect(struct link *l, struct device *d, enum service service, uint32_t mtu, int ack_timeout,
                  const struct remote *remote, struct report *report)
{
    l->remote = *remote;
    if (!to_rtr(l, d, service, mtu, report) || !to_rts(l, d, service, ack_timeout, report))
        return false;
    if (service == UD) {
        struct ibv_ah_attr attr = address(d, remote);
        l->ah = ibv_create_ah(d->pd, &attr);
        if (!l->ah)
            return call_failed(report, "ibv_create_ah", errno);
    }
    return true;
}

bool link_close(struct link *l, struct report *report)
{
    int error = l->qp ? ibv_destroy_qp(l->qp) : 0;
    bool ok = error == 0 || call_failed(report, "ibv_destroy_qp", error);
    error = l->ah ? ibv_destroy_ah(l->ah) : 0;
    ok &= error == 0 || call_failed(report, "ibv_destroy_ah", error);
    error = l->send_cq ? ibv_destroy_cq(l->send_cq) : 0;
    ok &= error == 0 || call_failed(report, "ibv_destroy_cq (sends)", error);
    error = l->recv_cq ? ibv_destroy_cq(l->recv_cq) : 0;
    ok &= error == 0 || call_failed(report, "ibv_destroy_cq (receives)", error);
    *l = (struct link){0};
    return ok;
}
