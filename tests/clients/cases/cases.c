// The agent in C: does by the functions of libibverbs what the lines of a script say, as the one in
// Rust does by the API `roxe`. tests/tests/integration/cases/script.rs tells the language, agent.rs
// the answers.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OPEN = 1 << 20, CLOSED = 1 << 16, NAMES = 64, WORDS = 24, PATIENCE_MS = 20000, QKEY = 0x11111111 };

struct named {
    char kind;  // q: queue pair, s: shared receive queue, w: window
    char name[16];
    union {
        struct ibv_qp *qp;
        struct ibv_srq *srq;
        struct ibv_mw *mw;
    };
    int service;            // of a queue pair
    struct ibv_qp_attr rts; // what takes it to RTS
    uint32_t key;           // that the window was opened with
};

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *sends, *receives;
    struct ibv_mr *open, *closed;
    struct ibv_xrcd *domain;
    unsigned char *memory;
    struct named names[NAMES];
    int count;
};

static char line[512], copy[512], *words[WORDS], answer[1 << 21];
static int word_count;

static void *need(void *made, const char *what) {
    if (!made) {
        perror(what);
        exit(1);
    }
    return made;
}

static struct end *open_end(void) {
    struct end *end = need(calloc(1, sizeof *end), "calloc");
    struct ibv_device **devices = need(ibv_get_device_list(NULL), "devices");
    end->context = need(ibv_open_device(devices[0]), "open");
    ibv_free_device_list(devices);
    end->pd = need(ibv_alloc_pd(end->context), "pd");
    end->channel = need(ibv_create_comp_channel(end->context), "channel");
    end->sends = need(ibv_create_cq(end->context, 256, NULL, end->channel, 0), "cq");
    end->receives = need(ibv_create_cq(end->context, 256, NULL, end->channel, 0), "cq");
    end->memory = need(aligned_alloc(4096, OPEN + CLOSED), "memory");
    memset(end->memory, 0, OPEN + CLOSED);
    int remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    end->open = need(ibv_reg_mr(end->pd, end->memory, OPEN, IBV_ACCESS_LOCAL_WRITE | remote), "mr");
    end->closed = need(
        ibv_reg_mr(end->pd, end->memory + OPEN, CLOSED, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND), "mr");
    struct ibv_xrcd_init_attr init = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    end->domain = need(ibv_open_xrcd(end->context, &init), "xrcd");
    return end;
}

// ---- the words of a line ------------------------------------------------------------------------

static int is_value(const char *word) { return strchr(word, '=') != NULL; }
static int is_part(const char *word) { return !is_value(word) && strchr(word, '+') != NULL; }

// The word at this place of those that are neither values nor parts; the end and the verb are two.
static const char *word(int at) {
    for (int i = 2; i < word_count; i++)
        if (!is_value(words[i]) && !is_part(words[i]) && at-- == 0)
            return words[i];
    return "";
}

static int has(const char *wanted) {
    for (int i = 2; i < word_count; i++)
        if (!strcmp(words[i], wanted))
            return 1;
    return 0;
}

static const char *text(const char *key) {
    size_t len = strlen(key);
    for (int i = 2; i < word_count; i++)
        if (!strncmp(words[i], key, len) && words[i][len] == '=')
            return words[i] + len + 1;
    return NULL;
}

static uint64_t value(const char *key, uint64_t usual) {
    const char *found = text(key);
    return found ? strtoull(found, NULL, 10) : usual;
}

// The parts of the memory that the line names.
static int parts(struct end *end, struct ibv_sge *sges) {
    int count = 0;
    for (int i = 2; i < word_count; i++) {
        unsigned offset, len;
        if (!is_part(words[i]) || sscanf(words[i], "%u+%u", &offset, &len) != 2)
            continue;
        uint32_t key = offset < OPEN ? end->open->lkey : end->closed->lkey;
        key ^= words[i][strlen(words[i]) - 1] == '!';
        sges[count++] = (struct ibv_sge){.addr = (uintptr_t)end->memory + offset, .length = len, .lkey = key};
    }
    return count;
}

static struct named *find(struct end *end, char kind, const char *name) {
    for (int i = 0; name && i < end->count; i++)
        if (end->names[i].kind == kind && !strcmp(end->names[i].name, name))
            return &end->names[i];
    return NULL;
}

static struct named *add(struct end *end, char kind, const char *name) {
    struct named *named = &end->names[end->count++];
    named->kind = kind;
    snprintf(named->name, sizeof named->name, "%s", name);
    return named;
}

// ---- queue pairs --------------------------------------------------------------------------------

static int create_qp(struct end *end) {
    static uint32_t next = 1000;
    const char *names[] = {"rc", "uc", "ud", "xrc", "xrc_target"};
    int types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV}, which = 0;
    while (which < 4 && strcmp(names[which], word(1)))
        which++;
    struct named *srq = find(end, 's', text("srq"));
    struct ibv_qp_init_attr_ex init = {
        .send_cq = end->sends,
        .recv_cq = end->receives,
        .srq = srq ? srq->srq : NULL,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
        .qp_type = types[which],
        .sq_sig_all = has("all_signaled"),
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = end->pd,
    };
    if (init.qp_type == IBV_QPT_XRC_RECV) {
        init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        init.xrcd = end->domain;
        init.send_cq = init.recv_cq = NULL;
    } else if (init.qp_type == IBV_QPT_XRC_SEND) {
        init.recv_cq = NULL;
    }
    struct ibv_qp *qp = ibv_create_qp_ex(end->context, &init);
    if (!qp)
        return errno;
    struct named *named = add(end, 'q', word(0));
    named->qp = qp;
    named->service = init.qp_type;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = value("access", 0xe)};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    mask |= init.qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    named->rts = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = next++, .timeout = value("timeout", 16),
        .retry_cnt = value("retry", 7), .rnr_retry = value("rnr", 7), .max_rd_atomic = 4};
    // 256 bytes are code 1, and each code twice as many as the one before.
    for (uint64_t bytes = 256; bytes <= value("mtu", 1024); bytes *= 2)
        named->rts.path_mtu++;
    snprintf(answer, sizeof answer, "%u %u", qp->qp_num, named->rts.sq_psn);
    return ibv_modify_qp(qp, &attr, mask);
}

static int connect_qp(struct end *end) {
    struct named *named = find(end, 'q', word(0));
    int is_ud = named->service == IBV_QPT_UD;
    int is_reliable = !is_ud && named->service != IBV_QPT_UC;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = named->rts.path_mtu,
        .dest_qp_num = atoi(word(1)),
        .rq_psn = atoi(word(2)),
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}},
    };
    ibv_query_gid(end->context, 1, 0, &attr.ah_attr.grh.dgid);
    int mask = IBV_QP_STATE;
    if (!is_ud)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (is_reliable && named->service != IBV_QPT_XRC_SEND)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int failed = ibv_modify_qp(named->qp, &attr, mask);
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (is_reliable)
        mask |= IBV_QP_TIMEOUT;
    if (is_reliable && named->service != IBV_QPT_XRC_RECV)
        mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return failed ? failed : ibv_modify_qp(named->qp, &named->rts, mask);
}

static int modify(struct end *end) {
    const char *names[] = {"reset", "rts", "sqd", "err"};
    int states[] = {IBV_QPS_RESET, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_ERR}, which = 0;
    while (which < 3 && strcmp(names[which], word(1)))
        which++;
    struct ibv_qp_attr attr = {.qp_state = states[which], .en_sqd_async_notify = 1};
    return ibv_modify_qp(find(end, 'q', word(0))->qp, &attr,
                         IBV_QP_STATE | (has("notify") ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0));
}

static int create_srq(struct end *end, int in_domain) {
    struct ibv_srq_init_attr_ex init = {.attr = {.max_wr = 16, .max_sge = 4}, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
                                        .srq_type = IBV_SRQT_BASIC, .pd = end->pd};
    if (in_domain) {
        init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        init.srq_type = IBV_SRQT_XRC;
        init.xrcd = end->domain;
        init.cq = end->receives;
    }
    struct ibv_srq *srq = ibv_create_srq_ex(end->context, &init);
    if (!srq)
        return errno;
    add(end, 's', word(0))->srq = srq;
    uint32_t number = 0;
    if (in_domain && ibv_get_srq_num(srq, &number))
        return errno;
    if (in_domain)
        snprintf(answer, sizeof answer, "%u", number);
    return 0;
}

static int destroy(struct end *end) {
    struct named *named = find(end, 'q', word(0));
    int failed;
    if (named) {
        failed = ibv_destroy_qp(named->qp);
    } else {
        named = find(end, 's', word(0));
        failed = ibv_destroy_srq(named->srq);
    }
    named->kind = 0;
    return failed;
}

// ---- requests -----------------------------------------------------------------------------------

static int receive(struct end *end) {
    struct ibv_sge sges[4];
    struct ibv_recv_wr wr = {.wr_id = atoi(word(1)), .sg_list = sges, .num_sge = parts(end, sges)}, *bad;
    struct named *srq = find(end, 's', word(0));
    return srq ? ibv_post_srq_recv(srq->srq, &wr, &bad) : ibv_post_recv(find(end, 'q', word(0))->qp, &wr, &bad);
}

// Opens a window on the first part of the line, or closes it: one of type 1 by the verb, one of
// type 2 by a request.
static int bind_window(struct end *end, struct ibv_qp *qp, struct ibv_send_wr *wr, int close) {
    struct named *window = find(end, 'w', text("window"));
    struct ibv_mw_bind_info info = {0};
    if (!close)
        info = (struct ibv_mw_bind_info){.mr = wr->sg_list->lkey == end->closed->lkey ? end->closed : end->open,
            .addr = wr->sg_list->addr, .length = wr->sg_list->length, .mw_access_flags = value("access", 0xe)};
    wr->num_sge = 0;
    int failed;
    if (window->mw->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {.wr_id = wr->wr_id, .send_flags = wr->send_flags, .bind_info = info};
        failed = ibv_bind_mw(qp, window->mw, &bind);
        window->key = window->mw->rkey;
    } else {
        struct ibv_send_wr *bad;
        if (!close)
            window->key = ibv_inc_rkey(window->key);
        wr->opcode = close ? IBV_WR_LOCAL_INV : IBV_WR_BIND_MW;
        wr->invalidate_rkey = window->key;
        if (!close) {
            wr->bind_mw.mw = window->mw;
            wr->bind_mw.rkey = window->key;
            wr->bind_mw.bind_info = info;
        }
        failed = ibv_post_send(qp, wr, &bad);
    }
    if (!close)
        snprintf(answer, sizeof answer, "%llu %u", (unsigned long long)(info.mw_access_flags & IBV_ACCESS_ZERO_BASED ? 0 : info.addr), window->key);
    return failed;
}

static int send_request(struct end *end) {
    const char *names[] = {"send", "write", "read", "add", "swap", "invalidate"};
    enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_LOCAL_INV};
    struct ibv_qp *qp = find(end, 'q', word(0))->qp;
    struct ibv_sge sges[4];
    struct ibv_send_wr wr = {.wr_id = atoi(word(1)), .sg_list = sges}, *bad;
    wr.num_sge = parts(end, sges);
    wr.send_flags = (has("unsignaled") ? 0 : IBV_SEND_SIGNALED) | (has("inline") ? IBV_SEND_INLINE : 0) |
                    (has("fence") ? IBV_SEND_FENCE : 0) | (has("solicited") ? IBV_SEND_SOLICITED : 0);
    if (!strcmp(word(2), "bind") || !strcmp(word(2), "close"))
        return bind_window(end, qp, &wr, !strcmp(word(2), "close"));
    int which = 0;
    while (which < 5 && strcmp(names[which], word(2)))
        which++;
    wr.opcode = opcodes[which];
    uint64_t at = value("at", 0);
    uint32_t key = value("key", 0);
    if (wr.opcode == IBV_WR_LOCAL_INV) {
        wr.invalidate_rkey = key;
    } else if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = at;
        wr.wr.atomic.rkey = key;
        wr.wr.atomic.compare_add = value(wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? "compare" : "add", 0);
        wr.wr.atomic.swap = value("swap", 0);
    } else if (wr.opcode != IBV_WR_SEND) {
        wr.wr.rdma.remote_addr = at;
        wr.wr.rdma.rkey = key;
    }
    if (text("imm")) {
        wr.opcode = wr.opcode == IBV_WR_SEND ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl(value("imm", 0));
    }
    if (text("closes")) {
        wr.opcode = IBV_WR_SEND_WITH_INV;
        wr.invalidate_rkey = value("closes", 0);
    }
    wr.qp_type.xrc.remote_srqn = value("srqn", 0);
    struct ibv_ah *ah = NULL;
    if (text("to")) {
        struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
        ibv_query_gid(end->context, 1, 0, &attr.grh.dgid);
        if (text("group"))
            inet_pton(AF_INET, text("group"), attr.grh.dgid.raw + 12);
        ah = need(ibv_create_ah(end->pd, &attr), "ah");
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = value("to", 0);
        wr.wr.ud.remote_qkey = value("qkey", QKEY);
    }
    // What is sent inline needs no key, and may change as soon as it is posted.
    unsigned char inlined[64];
    size_t used = 0;
    for (int i = 0; has("inline") && i < wr.num_sge; i++) {
        memcpy(inlined + used, (void *)(uintptr_t)sges[i].addr, sges[i].length);
        sges[i] = (struct ibv_sge){.addr = (uintptr_t)inlined + used, .length = sges[i].length};
        used += sges[i].length;
    }
    int failed = ibv_post_send(qp, &wr, &bad);
    memset(inlined, 0xff, sizeof inlined);
    if (ah)
        ibv_destroy_ah(ah);
    return failed;
}

// ---- what comes ---------------------------------------------------------------------------------

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void next_completion(struct ibv_cq *cq) {
    struct ibv_wc wc;
    long end = now_ms() + PATIENCE_MS;
    while (now_ms() < end) {
        if (ibv_poll_cq(cq, 1, &wc) != 1)
            continue;
        uint32_t extra = wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : wc.wc_flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : 0;
        snprintf(answer, sizeof answer, "%llu %d %d %u %u %u %u %u", (unsigned long long)wc.wr_id, wc.status,
                 wc.opcode, wc.byte_len, extra, wc.qp_num, wc.src_qp, wc.vendor_err);
        return;
    }
    strcpy(answer, "none");
}

static int readable(int fd) { return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_MS) == 1; }

static void woken(struct end *end) {
    struct ibv_cq *cq;
    void *context;
    strcpy(answer, "none");
    if (!readable(end->channel->fd) || ibv_get_cq_event(end->channel, &cq, &context))
        return;
    ibv_ack_cq_events(cq, 1);
    strcpy(answer, cq == end->sends ? "sends" : "receives");
}

static void event(struct end *end) {
    struct ibv_async_event event;
    strcpy(answer, "none");
    if (!readable(end->context->async_fd) || ibv_get_async_event(end->context, &event))
        return;
    const char *name = "cq";
    for (int i = 0; i < end->count; i++)
        if (end->names[i].kind && (void *)end->names[i].qp == (void *)event.element.qp)
            name = end->names[i].name;
    snprintf(answer, sizeof answer, "%d %s", event.event_type, name);
    ibv_ack_async_event(&event);
}

// ---- the memory ---------------------------------------------------------------------------------

static void fill(struct end *end) {
    struct ibv_sge sge;
    parts(end, &sge);
    unsigned char *bytes = (void *)(uintptr_t)sge.addr;
    for (unsigned at = 0; at < sge.length; at++)
        bytes[at] = at * 31 + (at >> 8) + atoi(word(0));
}

static void bytes(struct end *end) {
    struct ibv_sge sge;
    parts(end, &sge);
    for (unsigned at = 0; at < sge.length; at++)
        sprintf(answer + 2 * at, "%02x", ((volatile unsigned char *)(uintptr_t)sge.addr)[at]);
}

static int in_group(struct end *end, int (*verb)(struct ibv_qp *, const union ibv_gid *, uint16_t)) {
    union ibv_gid gid = {.raw = {[10] = 0xff, 0xff}};
    inet_pton(AF_INET, word(1), gid.raw + 12);
    return verb(find(end, 'q', word(0))->qp, &gid, 0);
}

static int obey(struct end *end, const char *verb) {
    int is_srq = !strcmp(verb, "srq");
    if (!strcmp(verb, "qp"))
        return create_qp(end);
    if (!strcmp(verb, "connect"))
        return connect_qp(end);
    if (is_srq || !strcmp(verb, "xsrq"))
        return create_srq(end, !is_srq);
    if (!strcmp(verb, "limit"))
        return ibv_modify_srq(find(end, 's', word(0))->srq, &(struct ibv_srq_attr){.srq_limit = atoi(word(1))}, IBV_SRQ_LIMIT);
    if (!strcmp(verb, "window")) {
        struct ibv_mw *mw = ibv_alloc_mw(end->pd, atoi(word(1)));
        if (!mw)
            return errno;
        struct named *named = add(end, 'w', word(0));
        named->mw = mw;
        named->key = mw->rkey;
        return 0;
    }
    if (!strcmp(verb, "recv"))
        return receive(end);
    if (!strcmp(verb, "send"))
        return send_request(end);
    if (!strcmp(verb, "modify"))
        return modify(end);
    if (!strcmp(verb, "destroy"))
        return destroy(end);
    if (!strcmp(verb, "attach"))
        return in_group(end, ibv_attach_mcast);
    if (!strcmp(verb, "detach"))
        return in_group(end, ibv_detach_mcast);
    if (!strcmp(verb, "arm"))
        return ibv_req_notify_cq(strcmp(word(0), "sends") ? end->receives : end->sends, has("solicited"));
    if (!strcmp(verb, "memory"))
        snprintf(answer, sizeof answer, "%llu %u", (unsigned long long)(uintptr_t)end->memory, end->open->rkey);
    else if (!strcmp(verb, "sent"))
        next_completion(end->sends);
    else if (!strcmp(verb, "got"))
        next_completion(end->receives);
    else if (!strcmp(verb, "left")) {
        struct ibv_wc wcs[16];
        int left = ibv_poll_cq(end->sends, 16, wcs);
        snprintf(answer, sizeof answer, "%d", left + ibv_poll_cq(end->receives, 16, wcs));
    } else if (!strcmp(verb, "woken"))
        woken(end);
    else if (!strcmp(verb, "event"))
        event(end);
    else if (!strcmp(verb, "state")) {
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        ibv_query_qp(find(end, 'q', word(0))->qp, &attr, IBV_QP_STATE, &init);
        snprintf(answer, sizeof answer, "%d", attr.qp_state);
    } else if (!strcmp(verb, "fill"))
        fill(end);
    else if (!strcmp(verb, "bytes"))
        bytes(end);
    else
        return ENOSYS;
    return 0;
}

int main(void) {
    static struct end *ends[256];
    while (fgets(line, sizeof line, stdin)) {
        strcpy(copy, line);
        word_count = 0;
        for (char *next = strtok(copy, " \n"); next && word_count < WORDS; next = strtok(NULL, " \n"))
            words[word_count++] = next;
        if (word_count < 2)
            continue;
        struct end **end = &ends[(unsigned char)words[0][0]];
        if (!*end)
            *end = open_end();
        answer[0] = 0;
        int failed = obey(*end, words[1]);
        if (failed)
            printf("agent: refused %s\n", strerror(failed));
        else
            printf("agent: %s\n", answer);
        fflush(stdout);
    }
    return 0;
}
