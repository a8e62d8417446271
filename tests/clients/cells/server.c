// One cell, the responder's side: offers receives and memory, and judges what arrives.
#include "cells.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SIDE = 1 };

// What the server knows about the cell that is running.
struct judge {
    struct link *link;
    struct cell cell;
    union ibv_gid peer_gid, own_gid;
    uint8_t *area;
    uint32_t lkey;
    struct slot slots[MAX_SERIALS]; // a receive's, or of memory, by serial: a late packet meets no later message
    bool busy[MAX_GROUP];           // a receive is posted there
    bool seen[MAX_SERIALS];
    uint32_t arrived;               // completions, or messages found in memory
    uint32_t delivered, doubled;
    uint32_t next;                  // the serial after the last one delivered
    uint32_t sent;                  // so many the client has sent, by its own word
    uint32_t judged;                // of those, so many were counted
    int64_t moved;                  // when something last arrived or was announced
    struct report report;
};

// ---- memory and receives ------------------------------------------------------------------------

static bool post_receive(struct judge *j, unsigned index)
{
    struct link *l = j->link;
    struct ibv_sge sges[3];
    struct receive *r = &l->receives[l->posted % MAX_GROUP];
    bool empty = j->cell.op == WRITE_IMM; // takes a receive, but no bytes land in it
    *r = (struct receive){.wr_id = (uint64_t)j->cell.number << 32 | l->posted, .slot = index};
    struct ibv_recv_wr wr = {.wr_id = r->wr_id, .sg_list = sges};
    struct ibv_recv_wr *bad = NULL;
    wr.num_sge = empty ? 0 : slot_sges(&j->slots[index], j->lkey, sges);
    int error = ibv_post_recv(l->qp, &wr, &bad);
    if (error != 0)
        return call_failed(&j->report, "ibv_post_recv", error);
    j->busy[index] = true;
    l->posted++;
    return true;
}

// Posts receives until there are `wanted`.
static bool post_receives(struct judge *j, uint32_t wanted)
{
    for (unsigned i = 0; i < j->cell.group && j->link->posted - j->link->taken < wanted; i++) {
        if (j->busy[i])
            continue;
        if (j->cell.op != WRITE_IMM) {
            j->slots[i] = slot_make(j->area, i, j->cell.size, cell_split(&j->cell, i, SIDE), j->cell.service == UD);
            slot_fill(&j->slots[i], cell_key(&j->cell, i), true);
        }
        if (!post_receive(j, i))
            return false;
    }
    return true;
}

// Makes the memory ready that the group of messages from `first` on may touch.
static void prepare_memory(struct judge *j, uint32_t first)
{
    const struct cell *cell = &j->cell;
    for (uint32_t serial = first; serial < first + cell->group && serial < cell->budget; serial++) {
        j->slots[serial] = slot_make(j->area, serial, cell->size, 0, false);
        slot_fill(&j->slots[serial], cell_key(cell, serial), cell->op != READ);
    }
    if (op_is_atomic(cell->op)) {
        uint64_t start = atomic_start(cell);
        memcpy(j->slots[0].piece[0].at, &start, sizeof start);
    }
}

static bool prepare(struct judge *j, uint32_t first)
{
    uint32_t wanted = j->cell.count == 0 ? 1 : next_group(&j->cell, j->delivered, first);
    if (j->cell.op != SEND && j->cell.op != SEND_IMM)
        prepare_memory(j, first);
    return !op_takes_receive(j->cell.op) || post_receives(j, wanted);
}

// ---- what arrives -------------------------------------------------------------------------------

// The GRH of a UD message: the IPv6 header, or 20 unspecified bytes and the IPv4 header.
static bool check_grh(struct judge *j, const uint8_t *grh)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    bool v4 = memcmp(j->peer_gid.raw, mapped, sizeof mapped) == 0;
    const uint8_t *source = grh + (v4 ? 32 : 8), *destination = grh + (v4 ? 36 : 24);
    size_t skip = v4 ? 12 : 0;
    if (grh[v4 ? 20 : 0] >> 4 != (v4 ? 4 : 6))
        return wrong(&j->report, WRONG_BYTES, "no IPv%d header before the datagram", v4 ? 4 : 6);
    if (memcmp(source, j->peer_gid.raw + skip, 16 - skip) != 0)
        return wrong(&j->report, WRONG_BYTES, "the GRH has another source address");
    if (memcmp(destination, j->own_gid.raw + skip, 16 - skip) != 0)
        return wrong(&j->report, WRONG_BYTES, "the GRH has another destination address");
    return true;
}

static bool check_ud(struct judge *j, const struct ibv_wc *wc, const struct slot *slot)
{
    if (!(wc->wc_flags & IBV_WC_GRH))
        return wrong(&j->report, WRONG_COMPLETION, "no GRH flag on a datagram");
    if (wc->src_qp != j->link->remote.qpn)
        return wrong(&j->report, WRONG_COMPLETION, "src_qp 0x%x, not 0x%x", wc->src_qp, j->link->remote.qpn);
    return check_grh(j, slot->piece[0].at);
}

// The fields of a successful receive completion.
static bool check_fields(struct judge *j, const struct ibv_wc *wc)
{
    const struct cell *cell = &j->cell;
    enum ibv_wc_opcode opcode = cell->op == WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    uint32_t bytes = cell->size + (cell->service == UD ? GRH_BYTES : 0);
    if (wc->opcode != opcode)
        return wrong(&j->report, WRONG_COMPLETION, "receive: opcode %d, not %d", wc->opcode, opcode);
    if (wc->byte_len != bytes)
        return wrong(&j->report, WRONG_COMPLETION, "receive: byte_len %u, not %u", wc->byte_len, bytes);
    if (wc->qp_num != j->link->qp->qp_num)
        return wrong(&j->report, WRONG_COMPLETION, "receive: qp_num 0x%x, not 0x%x", wc->qp_num, j->link->qp->qp_num);
    if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != op_has_imm(cell->op))
        return wrong(&j->report, WRONG_COMPLETION, "receive: wc_flags 0x%x, immediate data %s", wc->wc_flags,
                     op_has_imm(cell->op) ? "missing" : "not sent");
    return true;
}

// Which message this is: by its immediate data, else by its first byte, else (empty) by counting.
static uint32_t serial_of(const struct judge *j, const struct ibv_wc *wc, const struct slot *slot)
{
    if (op_has_imm(j->cell.op))
        return ntohl(wc->imm_data) & 0xff;
    if (j->cell.size > 0)
        return (uint8_t)(slot_first(slot) - first_byte(cell_key(&j->cell, 0)));
    return j->arrived;
}

// Notes that message `serial` is there. Exactly once and in order, unless the network is known to
// do otherwise.
static bool count(struct judge *j, uint32_t serial)
{
    bool again = serial < MAX_SERIALS && j->seen[serial];
    j->arrived++;
    j->moved = now_ms();
    if (serial >= j->cell.budget && !may_repeat(&j->cell))
        return wrong(&j->report, WRONG_BYTES, "message %u arrived, but was never sent", serial);
    if (again && !may_repeat(&j->cell))
        return wrong(&j->report, WRONG_COMPLETION, "message %u arrived twice", serial);
    if (serial != j->next && (serial < j->next || j->cell.service == RC) && !may_repeat(&j->cell))
        return wrong(&j->report, WRONG_COMPLETION, "message %u arrived when %u was due", serial, j->next);
    if (again || serial >= j->cell.budget) {
        j->doubled++;
        return true;
    }
    j->seen[serial] = true;
    j->delivered++;
    j->next = serial + 1;
    return true;
}

static bool take_receive(struct judge *j, const struct ibv_wc *wc, unsigned *index)
{
    struct link *l = j->link;
    if (l->taken == l->posted)
        return wrong(&j->report, WRONG_COMPLETION, "a receive completion too many: wr_id 0x%" PRIx64, wc->wr_id);
    const struct receive *r = &l->receives[l->taken % MAX_GROUP];
    if (wc->wr_id != r->wr_id)
        return wrong(&j->report, WRONG_COMPLETION, "receive: wr_id 0x%" PRIx64 ", not 0x%" PRIx64, wc->wr_id, r->wr_id);
    l->taken++;
    *index = r->slot;
    j->busy[r->slot] = false;
    return true;
}

static bool judge_completion(struct judge *j, const struct ibv_wc *wc)
{
    unsigned index = 0;
    if (!take_receive(j, wc, &index))
        return false;
    if (wc->status != IBV_WC_SUCCESS)
        return wrong(&j->report, WRONG_COMPLETION, "receive: %s, vendor_err %u", ibv_wc_status_str(wc->status),
                     wc->vendor_err);
    if (j->cell.count == 0)
        return wrong(&j->report, WRONG_COMPLETION, "a datagram longer than the MTU arrived, byte_len %u", wc->byte_len);
    if (!check_fields(j, wc) || (j->cell.service == UD && !check_ud(j, wc, &j->slots[index])))
        return false;
    uint32_t serial = serial_of(j, wc, &j->slots[index]);
    if (op_has_imm(j->cell.op) && wc->imm_data != cell_imm(&j->cell, serial))
        return wrong(&j->report, WRONG_COMPLETION, "receive: imm_data 0x%x, not 0x%x", ntohl(wc->imm_data),
                     ntohl(cell_imm(&j->cell, serial)));
    if (j->cell.op == WRITE_IMM && serial >= j->cell.budget)
        return wrong(&j->report, WRONG_COMPLETION, "message %u arrived, but was never sent", serial);
    if (j->cell.op == WRITE_IMM)
        index = serial;
    return slot_holds(&j->slots[index], cell_key(&j->cell, serial), "received", &j->report) && count(j, serial);
}

static bool judge_completions(struct judge *j)
{
    struct ibv_wc wcs[8];
    int n = ibv_poll_cq(j->link->recv_cq, 8, wcs);
    if (n < 0)
        return wrong(&j->report, BROKEN, "ibv_poll_cq failed");
    for (int i = 0; i < n; i++)
        if (!judge_completion(j, &wcs[i]))
            return false;
    return true;
}

// Plain writes of UC end without a word to either side: looks at the memory that was announced.
static void judge_memory(struct judge *j)
{
    for (uint32_t serial = j->judged; serial < j->sent; serial++) {
        struct key key = cell_key(&j->cell, serial);
        const struct slot *slot = &j->slots[serial];
        struct report unfinished = {0};
        if (!j->seen[serial] && slot_arrived(slot, key) && slot_holds(slot, key, "written", &unfinished)) {
            j->seen[serial] = true;
            j->delivered++;
            j->moved = now_ms();
        }
    }
}

// ---- verdicts -----------------------------------------------------------------------------------

// The messages of a group that did not arrive left no half packets and no bytes outside.
static bool judge_lost(struct judge *j)
{
    for (uint32_t serial = j->judged; op_is_write(j->cell.op) && serial < j->sent; serial++)
        if (!j->seen[serial]
            && !slot_holds_shares(&j->slots[serial], cell_key(&j->cell, serial), j->cell.mtu,
                                  &j->report))
            return false;
    for (uint32_t serial = j->sent; serial < MAX_SERIALS && !may_repeat(&j->cell); serial++)
        if (j->seen[serial])
            return wrong(&j->report, WRONG_COMPLETION, "message %u arrived, but only %u were sent", serial, j->sent);
    return true;
}

// Reliable operations that the server gets no completion of: after the client's, the memory must be
// as it should.
static bool judge_silent(struct judge *j)
{
    const struct cell *cell = &j->cell;
    uint64_t value = atomic_start(cell), found, operand, swap;
    if (op_is_atomic(cell->op)) {
        for (uint32_t serial = 0; serial < cell->count; serial++)
            value = atomic_step(cell, serial, value, &operand, &swap);
        memcpy(&found, j->slots[0].piece[0].at, sizeof found);
        if (found != value)
            return wrong(&j->report, WRONG_BYTES, "the atomics left 0x%" PRIx64 ", not 0x%" PRIx64, found, value);
        j->delivered = cell->count;
        return slot_guards(&j->slots[0], "atomic variable", &j->report);
    }
    for (uint32_t serial = 0; serial < cell->count; serial++)
        if (!slot_holds(&j->slots[serial], cell_key(cell, serial),
                        cell->op == READ ? "read memory" : "written memory", &j->report))
            return false;
    j->delivered = cell->count;
    return true;
}

// Nothing may complete on a queue pair that only receives.
static bool judge_surplus(struct judge *j)
{
    struct ibv_wc wc;
    if (ibv_poll_cq(j->link->send_cq, 1, &wc) != 0)
        return wrong(&j->report, WRONG_COMPLETION, "a send completion although nothing was sent");
    return judge_completions(j);
}

// A late copy of a packet must not meet the next cell: it may still write to memory that is then
// used for something else. So where packets get lost, an unreliable queue pair ends with its cell.
static bool say_verdict(struct session *s, struct judge *j)
{
    unsigned left = j->link->posted - j->link->taken;
    if (j->cell.lossy && j->cell.service != RC)
        link_close(j->link, &j->report);
    return control_say(&s->control, "verdict %s %u %u %u %s", kind_name(j->report.kind), j->delivered, j->doubled, left,
                       j->report.text);
}

// ---- the course of a cell -----------------------------------------------------------------------

enum state { SENDING, COUNTING, OVER };

// Whether all that was sent is there, or there is no hope for the rest.
static bool settled(const struct judge *j)
{
    int64_t patience = j->cell.service == RC ? 1000 * (int64_t)j->cell.timeout_s : j->cell.grace_ms;
    if (j->cell.count == 0)
        return now_ms() - j->moved > j->cell.grace_ms / 10; // nothing should come
    if (j->cell.service == RC && !op_takes_receive(j->cell.op))
        return true;
    return j->delivered >= j->sent || now_ms() - j->moved > patience;
}

// A group is over: the verdict, or receives for the next one.
static enum state settle(struct session *s, struct judge *j)
{
    const struct cell *cell = &j->cell;
    bool silent = cell->service == RC && !op_takes_receive(cell->op);
    bool ok = silent ? judge_silent(j) : judge_lost(j);
    bool enough = cell_enough(cell, j->delivered, j->sent);
    j->judged = j->sent;
    if (j->delivered > j->sent) { // empty messages that the network repeated are only noticed by counting
        j->doubled += j->delivered - j->sent;
        j->delivered = j->sent;
    }
    if (ok && !enough && cell->service != RC && j->sent < cell->budget) {
        if (prepare(j, j->sent))
            return control_say(&s->control, "got %u", j->delivered) ? SENDING : OVER;
    } else if (ok && !enough) {
        wrong(&j->report, WRONG_COMPLETION, "%u of %u messages arrived, %u were sent", j->delivered, cell->count,
              j->sent);
    } else if (ok) {
        judge_surplus(j);
    }
    return OVER;
}

// A line from the client. False when the connection is lost; `*done` when the client has ended the
// cell.
static bool listen_to(struct session *s, struct judge *j, enum state *state, bool *done, int64_t wait_ms)
{
    char line[LINE_BYTES];
    unsigned sent;
    enum heard heard = control_hear(&s->control, line, wait_ms);
    if (heard != LINE)
        return heard == NOTHING;
    if (sscanf(line, "sent %u", &sent) == 1 && sent <= j->cell.budget) {
        j->sent = sent;
        j->moved = now_ms();
        *state = *state == SENDING ? COUNTING : *state;
        return true;
    }
    *done = strncmp(line, "done", 4) == 0;
    if (!*done)
        return false;
    if (sscanf(line, "done ok %u", &sent) == 1 && sent <= j->cell.budget && *state == SENDING) {
        j->sent = sent;
        j->moved = now_ms();
        *state = COUNTING;
    } else if (*state != OVER) {
        *state = OVER; // the client failed and says why itself
    }
    return true;
}

// Until the client has said `done` and we the verdict. False when the connection is lost.
static bool attend(struct session *s, struct judge *j)
{
    enum state state = j->report.kind == FINE ? SENDING : OVER;
    bool done = false, said = false;
    int64_t heard = now_ms();
    for (unsigned polls = 0; !done || !said; polls++) {
        if (state != OVER && !judge_completions(j))
            state = OVER;
        if (state == COUNTING && j->cell.service == UC && j->cell.op == WRITE)
            judge_memory(j);
        if (state == COUNTING && settled(j))
            state = settle(s, j);
        if (state == OVER && !said && !(said = say_verdict(s, j)))
            return false;
        if (!done && (state == OVER || polls % POLLS_PER_LOOK == 0)
            && !listen_to(s, j, &state, &done, state == OVER ? 100 : IMMEDIATELY))
            return false;
        if (now_ms() - heard > 4000 * (int64_t)j->cell.timeout_s)
            return false;
        between_polls(polls);
    }
    return true;
}

static bool connect_link(struct session *s, struct judge *j, uint32_t qpn, uint32_t psn)
{
    const struct cell *cell = &j->cell;
    struct remote remote = {.gid = s->peer_gid, .qpn = qpn, .psn = psn, .qkey = cell->qkey};
    if (!cell->fresh)
        return j->link->qp || wrong(&j->report, BROKEN, "the client reuses a queue pair that is not there");
    return link_close(j->link, &j->report)
           && link_open(j->link, &s->device, cell->service, cell->qkey, &j->report)
           && link_connect(j->link, &s->device, cell->service, cell->mtu, cell->ack_timeout, &remote, &j->report);
}

// One cell from its announcement on. False when the connection is lost.
static bool serve_cell(struct session *s, const char *line)
{
    struct judge j = {.peer_gid = s->peer_gid, .own_gid = s->device.gid, .area = s->device.area,
                      .lkey = s->device.mr->lkey, .moved = now_ms()};
    uint32_t qpn, psn;
    if (!cell_parse(line, &j.cell, &qpn, &psn))
        return false;
    j.link = session_link(s, &j.cell);
    if (connect_link(s, &j, qpn, psn) && prepare(&j, 0)
        && !control_say(&s->control, "ready %u %u", j.link->qp->qp_num, j.link->psn))
        return false;
    return attend(s, &j);
}

// ---- sessions -----------------------------------------------------------------------------------

static bool greet(struct session *s, const struct options *o, const char *line, struct report *report)
{
    union ibv_gid own;
    if (!parse_hello(s, line))
        return wrong(report, BROKEN, "the client speaks another language: %.60s", line);
    if (!control_local_gid(&s->control, &own))
        return wrong(report, BROKEN, "no local address");
    if (!device_open(&s->device, o->device, o->gid_index, &own, report)) {
        control_say(&s->control, "sorry %s", report->text);
        return false;
    }
    return say_hello(s) || wrong(report, BROKEN, "the client went away");
}

enum served server_session(struct session *s, const struct options *o, struct report *report)
{
    char line[LINE_BYTES];
    enum heard heard = control_hear(&s->control, line, 10 * 1000);
    enum served served = SERVED;
    if (heard != LINE || strcmp(line, "quit") == 0) {
        control_close(&s->control);
        return heard == LINE ? QUIT : SILENT;
    }
    bool alive = greet(s, o, line, report);
    while (alive && served == SERVED && control_hear(&s->control, line, 3600 * 1000) == LINE) {
        if (strcmp(line, "quit") == 0)
            served = QUIT;
        else
            alive = serve_cell(s, line) || wrong(report, BROKEN, "the connection broke within a cell");
    }
    return session_close(s, report) ? served : SERVED;
}
