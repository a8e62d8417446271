// Send and receive queues.
#include "misuse.h"
#include <errno.h>
#include <unistd.h>

// Posts only unsignaled requests. Seen in pytorch/tensorpipe#414.
static void never_signaled(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    for (int i = 0; i < 40; i++) {
        bool last = i % 8 == 7;
        int flags = !wrong && last ? IBV_SEND_SIGNALED : 0;
        int error = post_send(&sides[0], i, IBV_WR_RDMA_WRITE, flags, 0, 64, &sides[1]);
        if (wrong && error)
            break;
        check(!error, "ibv_post_send");
        if (flags)
            done(&sides[0]);
    }
    close_sides(sides);
}

// Counts free entries of the send queue by the peer's answers, not by completions. Seen in
// apache/brpc#3132.
static void slots_without_completion(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){.cqe = 256});
    for (int i = 0; i < 64; i++) {
        int error = post_send(&sides[0], i, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]);
        if (wrong && error == ENOMEM) {
            usleep(10000);
            continue;
        }
        check(!error, "ibv_post_send");
        if (!wrong)
            done(&sides[0]);
    }
    close_sides(sides);
}

// Posts a request in the state ERR. Seen in ydb-platform/nbs#2690, ydb-platform/nbs#4533.
static void post_in_error(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    check(!post_recv(&sides[1], 1, 0, 64), "ibv_post_recv");
    if (!wrong)
        check(!post_send(&sides[0], 2, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    else {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        check(!ibv_modify_qp(sides[0].qp, &attr, IBV_QP_STATE), "to ERR");
        check(!post_send(&sides[0], 2, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
        check(!ibv_modify_qp(sides[1].qp, &attr, IBV_QP_STATE), "to ERR");
    }
    completion(&sides[0], NULL);
    completion(&sides[1], NULL);
    close_sides(sides);
}

// Sends a message before or after (`late`) the receive is posted. The status of the sender shows
// that the message has arrived. Seen in meta-pytorch/torchcomms#3345.
static void receive(struct options options, bool late) {
    struct side sides[2];
    if (late)
        options.rnr_retry = 1;
    make_pair(sides, options);
    if (!late)
        check(!post_recv(&sides[1], 1, 0, 64), "ibv_post_recv");
    check(!post_send(&sides[0], 2, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    if (late) {
        check(completion(&sides[0], NULL) == IBV_WC_RNR_RETRY_EXC_ERR, "a SEND without a receive");
    } else {
        done(&sides[0]);
        done(&sides[1]);
    }
    close_sides(sides);
}

static void receive_late(bool wrong) {
    receive((struct options){0}, wrong);
}

// Timer code 0 means the longest wait, not the shortest. Seen in ydb-platform/nbs#5790.
static void rnr_timer_zero(bool wrong) {
    receive((struct options){.min_rnr_timer = -1}, wrong);
}

// Sends more inline data than requested; some cards grant more. Seen in ROCm/mori#424,
// linux-rdma/perftest#139.
static void inline_over_grant(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){.max_inline_data = wrong ? 16 : 64});
    int error =
        post_send(&sides[0], 1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 0, 64, &sides[1]);
    check(wrong ? error : !error, "ibv_post_send");
    if (!wrong)
        done(&sides[0]);
    close_sides(sides);
}

const struct misuse queue_cases[] = {
    {"inline-over-grant", inline_over_grant},
    {"never-signaled", never_signaled},
    {"slots-without-completion", slots_without_completion},
    {"post-in-error", post_in_error},
    {"receive-late", receive_late},
    {"rnr-timer-zero", rnr_timer_zero},
    {NULL, NULL},
};
