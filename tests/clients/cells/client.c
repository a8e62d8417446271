// One cell, the requester's side: posts the work requests and judges their completions.
#include "cells.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SIDE = 0, PACKETS_AT_ONCE = 64, MORE_TRIES = 8 };

// What the client knows about the cell that is running.
struct request {
    struct session *s;
    struct link *link;
    const struct cell *cell;
    struct slot slots[MAX_SERIALS];
    bool scrambled[MAX_SERIALS];   // was sent inline, and overwritten at once
    uint32_t expect[MAX_GROUP];    // messages of this group whose completion was asked for
    unsigned expected, completed;
    uint32_t sent, delivered, doubled, left;
    bool over;                     // the server has said its verdict
    struct report report, peer;
};

// ---- plan ---------------------------------------------------------------------------------------

static uint32_t messages_of(const struct cell *cell, bool soak)
{
    if (cell->lossy && packets_of(cell) > 1024)
        return 1; // loses hundreds of packets, and stacks that start over at each (READ on rxe) take long
    if (op_is_atomic(cell->op))
        return soak ? 16 : 4;
    if (!soak)
        return cell->size <= 128 * 1024 ? 4 : 2;
    return cell->size <= 8192 ? 32 : cell->size <= 128 * 1024 ? 8 : 2;
}

void client_plan(struct cell *cell, const struct session *s, bool soak)
{
    uint32_t longest = s->device.mtu < s->peer_mtu ? s->device.mtu : s->peer_mtu;
    cell->count = messages_of(cell, soak);
    if (cell->ack_timeout == 0) // less would take a peer that is within its rights for dead
        cell->ack_timeout = s->peer_ack_delay < 30 ? s->peer_ack_delay + 1 : 31;
    cell->group = cell->budget = cell->count;
    if (cell->service == UD && cell->size > longest) {
        cell->count = 0;
        cell->group = cell->budget = 1;
    } else if (cell->service != RC) {
        uint32_t most = PACKETS_AT_ONCE / packets_of(cell);
        cell->group = most < 1 ? 1 : most < cell->count ? most : cell->count;
        cell->budget = cell->count + MORE_TRIES;
    }
}

// ---- posting ------------------------------------------------------------------------------------

static void address(const struct request *q, uint32_t serial, struct ibv_send_wr *wr)
{
    const struct cell *cell = q->cell;
    struct slot there = slot_make(q->s->device.area, op_is_atomic(cell->op) ? 0 : serial, cell->size, 0, false);
    uint64_t remote = q->s->peer_area + (uint64_t)(there.piece[0].at - q->s->device.area);
    if (cell->service == UD) {
        wr->wr.ud.ah = q->link->ah;
        wr->wr.ud.remote_qpn = q->link->remote.qpn;
        wr->wr.ud.remote_qkey = q->link->remote.qkey;
    } else if (op_is_atomic(cell->op)) {
        wr->wr.atomic.remote_addr = remote;
        wr->wr.atomic.rkey = q->s->peer_rkey;
    } else if (cell->op != SEND && cell->op != SEND_IMM) {
        wr->wr.rdma.remote_addr = remote;
        wr->wr.rdma.rkey = q->s->peer_rkey;
    }
}

// The operands of an atomic depend on all before it.
static void operands(const struct cell *cell, uint32_t serial, struct ibv_send_wr *wr)
{
    uint64_t value = atomic_start(cell), operand = 0, swap = 0;
    for (uint32_t i = 0; i <= serial; i++)
        value = atomic_step(cell, i, value, &operand, &swap);
    wr->wr.atomic.compare_add = operand;
    wr->wr.atomic.swap = swap;
}

// Every second message asks for a completion, and the last of a group; odd ones that fit go inline.
static unsigned flags(const struct request *q, uint32_t serial, bool last)
{
    const struct cell *cell = q->cell;
    unsigned flags = last || serial % 2 == 0 ? IBV_SEND_SIGNALED : 0;
    if (serial % 2 == 1 && cell->op <= WRITE_IMM && cell->size <= q->link->inline_bytes)
        flags |= IBV_SEND_INLINE;
    return flags;
}

static int post(struct request *q, uint32_t serial, bool last)
{
    static const enum ibv_wr_opcode opcodes[] = {
        [SEND] = IBV_WR_SEND, [SEND_IMM] = IBV_WR_SEND_WITH_IMM, [WRITE] = IBV_WR_RDMA_WRITE,
        [WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM, [READ] = IBV_WR_RDMA_READ,
        [FETCH_ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD, [CMP_SWAP] = IBV_WR_ATOMIC_CMP_AND_SWP};
    const struct cell *cell = q->cell;
    struct slot *slot = &q->slots[serial];
    uint32_t split = op_is_atomic(cell->op) ? 0 : cell_split(cell, serial, SIDE);
    *slot = slot_make(q->s->device.area, serial, cell->size, split, false);
    slot_fill(slot, cell_key(cell, serial), cell->op >= READ);
    struct ibv_sge sges[3];
    struct ibv_send_wr wr = {
        .wr_id = (uint64_t)cell->number << 32 | serial, .sg_list = sges, .opcode = opcodes[cell->op],
        .send_flags = flags(q, serial, last), .imm_data = op_has_imm(cell->op) ? cell_imm(cell, serial) : 0};
    struct ibv_send_wr *bad = NULL;
    wr.num_sge = slot_sges(slot, q->s->device.mr->lkey, sges);
    address(q, serial, &wr);
    if (op_is_atomic(cell->op))
        operands(cell, serial, &wr);
    int error = ibv_post_send(q->link->qp, &wr, &bad);
    q->scrambled[serial] = wr.send_flags & IBV_SEND_INLINE;
    if (q->scrambled[serial])
        slot_fill(slot, cell_key(cell, serial), true); // inline data is the device's since the call returned
    if (error == 0 && wr.send_flags & IBV_SEND_SIGNALED)
        q->expect[q->expected++] = serial;
    return error;
}

// ---- completions --------------------------------------------------------------------------------

static bool check_completion(struct request *q, const struct ibv_wc *wc)
{
    static const enum ibv_wc_opcode opcodes[] = {
        [SEND] = IBV_WC_SEND, [SEND_IMM] = IBV_WC_SEND, [WRITE] = IBV_WC_RDMA_WRITE, [WRITE_IMM] = IBV_WC_RDMA_WRITE,
        [READ] = IBV_WC_RDMA_READ, [FETCH_ADD] = IBV_WC_FETCH_ADD, [CMP_SWAP] = IBV_WC_COMP_SWAP};
    enum op op = q->cell->op;
    if (wc->status != IBV_WC_SUCCESS)
        return wrong(&q->report, WRONG_COMPLETION, "wr_id 0x%" PRIx64 ": %s, vendor_err %u", wc->wr_id,
                     ibv_wc_status_str(wc->status), wc->vendor_err);
    if (q->completed == q->expected)
        return wrong(&q->report, WRONG_COMPLETION, "a completion too many: wr_id 0x%" PRIx64, wc->wr_id);
    uint64_t wr_id = (uint64_t)q->cell->number << 32 | q->expect[q->completed];
    if (wc->wr_id != wr_id)
        return wrong(&q->report, WRONG_COMPLETION, "wr_id 0x%" PRIx64 ", not 0x%" PRIx64, wc->wr_id, wr_id);
    if (wc->opcode != opcodes[op])
        return wrong(&q->report, WRONG_COMPLETION, "opcode %d, not %d", wc->opcode, opcodes[op]);
    if (wc->qp_num != q->link->qp->qp_num)
        return wrong(&q->report, WRONG_COMPLETION, "qp_num 0x%x, not 0x%x", wc->qp_num, q->link->qp->qp_num);
    // The manual gives byte_len a meaning only where bytes come to the requester.
    if (op >= READ && wc->byte_len != q->cell->size)
        return wrong(&q->report, WRONG_COMPLETION, "byte_len %u, not %u", wc->byte_len, q->cell->size);
    q->completed++;
    return true;
}

static bool check_completions(struct request *q)
{
    struct ibv_wc wcs[8];
    int n = ibv_poll_cq(q->link->send_cq, 8, wcs);
    if (n < 0)
        return wrong(&q->report, BROKEN, "ibv_poll_cq failed");
    for (int i = 0; i < n; i++)
        if (!check_completion(q, &wcs[i]))
            return false;
    return true;
}

// Waits for all completions of the group; not longer than the cell may take, nor when the server
// has given up.
static bool collect(struct request *q)
{
    int64_t deadline = now_ms() + 1000 * (int64_t)q->cell->timeout_s;
    for (unsigned polls = 1; q->completed < q->expected; polls++) {
        if (!check_completions(q))
            return false;
        if (polls % POLLS_PER_LOOK == 0 && control_pending(&q->s->control))
            return false;
        if (polls % POLLS_PER_LOOK == 0 && now_ms() > deadline)
            return wrong(&q->report, WRONG_COMPLETION, "no completion of message %u within %d s",
                         q->expect[q->completed], q->cell->timeout_s);
        between_polls(polls);
    }
    return true;
}

// ---- memory -------------------------------------------------------------------------------------

// What the messages [first, first + count) were sent from is unchanged.
static bool check_sources(struct request *q, uint32_t first, uint32_t count)
{
    for (uint32_t serial = first; serial < first + count; serial++) {
        bool ok = q->scrambled[serial] ? slot_guards(&q->slots[serial], "source", &q->report)
                                      : slot_holds(&q->slots[serial], cell_key(q->cell, serial), "source", &q->report);
        if (!ok)
            return false;
    }
    return true;
}

static bool check_atomics(struct request *q)
{
    const struct cell *cell = q->cell;
    uint64_t value = atomic_start(cell), found, operand, swap;
    for (uint32_t serial = 0; serial < cell->count; serial++) {
        memcpy(&found, q->slots[serial].piece[0].at, sizeof found);
        if (found != value)
            return wrong(&q->report, WRONG_BYTES, "atomic %u returned 0x%" PRIx64 ", not 0x%" PRIx64, serial, found,
                         value);
        if (!slot_guards(&q->slots[serial], "returned value", &q->report))
            return false;
        value = atomic_step(cell, serial, value, &operand, &swap);
    }
    return true;
}

static bool check_memory(struct request *q, uint32_t first, uint32_t count)
{
    if (op_is_atomic(q->cell->op))
        return check_atomics(q);
    return check_sources(q, first, count); // READ: by now the message must lie there as well
}

// ---- the course of a cell -----------------------------------------------------------------------

// A line from the server; when it is a verdict, the cell is over. False when the connection is
// lost.
static bool hear(struct request *q, char line[LINE_BYTES])
{
    char kind[16];
    int text = 0;
    int64_t patience = 2000 * (int64_t)q->cell->timeout_s + 5000;
    if (control_hear(&q->s->control, line, patience) != LINE)
        return wrong(&q->report, BROKEN, "the server does not answer");
    if (sscanf(line, "verdict %15s %u %u %u %n", kind, &q->delivered, &q->doubled, &q->left, &text) < 4)
        return true;
    q->over = true;
    if (!kind_from(kind, &q->peer.kind))
        return wrong(&q->report, BROKEN, "not understood: %.60s", line);
    if (q->peer.kind != FINE)
        snprintf(q->peer.text, sizeof q->peer.text, "%.200s", line + text);
    return true;
}

// Announces the cell; both sides are connected afterwards. `*alive` tells whether the connection
// still is.
static bool announce(struct request *q, bool *alive)
{
    char line[LINE_BYTES];
    const struct cell *cell = q->cell;
    struct remote remote = {.gid = q->s->peer_gid, .qkey = cell->qkey};
    *alive = cell_say(&q->s->control, cell, q->link) && hear(q, line);
    if (!*alive || q->over)
        return false;
    if (sscanf(line, "ready %u %u", &remote.qpn, &remote.psn) != 2)
        return wrong(&q->report, BROKEN, "not understood: %.60s", line);
    return !cell->fresh
           || link_connect(q->link, &q->s->device, cell->service, cell->mtu, cell->ack_timeout, &remote, &q->report);
}

static bool transmit_group(struct request *q)
{
    uint32_t first = q->sent, count = next_group(q->cell, q->delivered, q->sent);
    q->expected = q->completed = 0;
    for (uint32_t i = 0; i < count; i++) {
        int error = post(q, first + i, i + 1 == count);
        if (error != 0)
            return call_failed(&q->report, "ibv_post_send", error);
        q->sent++;
    }
    return collect(q) && check_memory(q, first, count);
}

// UC and UD: group by group, each after the server has counted the one before.
static bool transmit(struct request *q, bool *alive)
{
    char line[LINE_BYTES];
    while (transmit_group(q)) {
        if (q->cell->service == RC)
            return true;
        *alive = control_say(&q->s->control, "sent %u", q->sent) && hear(q, line);
        if (!*alive || q->over)
            return true;
        if (sscanf(line, "got %u", &q->delivered) != 1)
            return wrong(&q->report, BROKEN, "not understood: %.60s", line);
    }
    return false;
}

// A datagram that is too long: refused by the call, or completed with an error, or (the kernel's
// rxe) completed without being sent. The server checks that nothing arrives.
static bool transmit_too_long(struct request *q, char *how, size_t length, bool *alive)
{
    char line[LINE_BYTES];
    struct ibv_wc wc = {0};
    int64_t deadline = now_ms() + 1000 * (int64_t)q->cell->timeout_s;
    int n = 0, error = post(q, 0, true);
    while (error == 0 && n == 0 && now_ms() < deadline)
        n = ibv_poll_cq(q->link->send_cq, 1, &wc);
    if (error == 0 && n != 1)
        return wrong(&q->report, WRONG_COMPLETION, "a datagram longer than the MTU neither completed nor was refused");
    if (error != 0)
        snprintf(how, length, "refused: %s", strerror(error));
    else
        snprintf(how, length, "completed: %s", ibv_wc_status_str(wc.status));
    *alive = control_say(&q->s->control, "sent 1") && hear(q, line);
    return *alive && q->over;
}

// Says how it went here, and hears how it went there.
static bool conclude(struct request *q, bool ok)
{
    char line[LINE_BYTES];
    if (!control_say(&q->s->control, "done %s %u", ok ? "ok" : "failed", q->sent))
        return wrong(&q->report, BROKEN, "the server is gone");
    while (!q->over)
        if (!hear(q, line))
            return false;
    return true;
}

// Nothing more may complete, here or on a queue nothing was posted to.
static void check_surplus(struct request *q)
{
    struct ibv_wc wc;
    if (q->cell->count > 0 && ibv_poll_cq(q->link->send_cq, 1, &wc) != 0)
        wrong(&q->report, WRONG_COMPLETION, "a completion too many: wr_id 0x%" PRIx64, wc.wr_id);
    if (ibv_poll_cq(q->link->recv_cq, 1, &wc) != 0)
        wrong(&q->report, WRONG_COMPLETION, "a receive completion although no receive was posted");
}

static void fill_result(const struct request *q, const char *how, struct result *result)
{
    const struct report *first = q->report.kind != FINE ? &q->report : &q->peer;
    *result = (struct result){.outcome = first->kind == FINE ? PASS : FAIL, .kind = first->kind, .sent = q->sent,
                              .delivered = q->delivered, .doubled = q->doubled};
    size_t length = sizeof result->detail;
    if (first->kind != FINE)
        snprintf(result->detail, length, "%s%s%s%s%s (seed 0x%" PRIx64 ")", q->report.kind != FINE ? "client: " : "",
                 q->report.text, q->report.kind != FINE && q->peer.kind != FINE ? "; " : "",
                 q->peer.kind != FINE ? "server: " : "", q->peer.text, q->cell->seed);
    else if (q->cell->count == 0)
        snprintf(result->detail, length, "too long: %s", how);
    else if (q->delivered < q->sent || q->doubled > 0)
        snprintf(result->detail, length, "%u of %u arrived, %u repeated by the network", q->delivered, q->sent,
                 q->doubled);
    else
        snprintf(result->detail, length, "%u messages", q->sent);
}

bool client_cell(struct session *s, struct cell *cell, struct result *result)
{
    struct request q = {.s = s, .cell = cell, .link = session_link(s, cell)};
    char how[80] = "";
    bool alive = true, ok = true;
    cell->number = ++s->cells;
    cell->fresh = !q.link->qp;
    if (cell->fresh)
        ok = link_open(q.link, &s->device, cell->service, cell->qkey, &q.report);
    if (ok) {
        ok = announce(&q, &alive)
             && (cell->count == 0 ? transmit_too_long(&q, how, sizeof how, &alive) : transmit(&q, &alive));
        alive = alive && conclude(&q, ok);
        if (ok && alive)
            check_surplus(&q);
    }
    // Fresh queue pairs after a failure, when receives are left over, and when late packets may
    // still be under way.
    if (q.report.kind != FINE || q.peer.kind != FINE || q.left > 0 || (cell->lossy && cell->service != RC))
        link_close(q.link, &q.report);
    fill_result(&q, how, result);
    return alive;
}

// ---- sessions -----------------------------------------------------------------------------------

bool client_open(struct session *s, const struct options *o, struct report *report)
{
    char line[LINE_BYTES];
    union ibv_gid own;
    *s = (struct session){.control = {.fd = -1}};
    if (!control_connect(&s->control, o->host, o->port, o->family, report))
        return false;
    if (!control_local_gid(&s->control, &own))
        return wrong(report, BROKEN, "no local address");
    if (!device_open(&s->device, o->device, o->gid_index, &own, report))
        return false;
    if (!say_hello(s) || control_hear(&s->control, line, 20 * 1000) != LINE)
        return wrong(report, BROKEN, "the server does not answer");
    return parse_hello(s, line) || wrong(report, BROKEN, "server: %.200s", line);
}

bool client_close(struct session *s, bool quit, struct report *report)
{
    if (quit && s->control.fd >= 0 && !control_say(&s->control, "quit"))
        wrong(report, BROKEN, "the server is gone");
    return session_close(s, report) && report->kind == FINE;
}
