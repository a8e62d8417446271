// Common code of the misuse cases: two connected queue pairs of one process, and a table of cases.
// Each case is a pair of programs: `misuse RULE wrong` breaks the rule, `misuse RULE right` does
// the same work correctly.
#ifndef MISUSE_H
#define MISUSE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Parameters of a side. Zero selects the default; -1 in one of the four timers and counts is zero.
struct options {
    enum ibv_qp_type type;
    unsigned max_send_wr, max_recv_wr, max_inline_data;
    int sq_sig_all, cqe;
    int access;    // of the region
    int qp_access; // of the queue pair
    int min_rnr_timer, timeout, retry_cnt, rnr_retry;
    int max_rd_atomic, max_dest_rd_atomic;
    bool no_events; // without a completion channel
    struct ibv_xrcd *domain; // XRC domain of an IBV_QPT_XRC_RECV queue pair
};

struct side {
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint32_t srqn; // number of the SRQ for XRC messages to this side
    unsigned char *memory; // MEMORY bytes, the whole region
};

enum { MEMORY = 65536, QKEY = 0x1234567 };

// The device of both sides; close_sides closes it.
extern struct ibv_context *context;

struct misuse {
    const char *rule;
    void (*run)(bool wrong);
};

// The table of each file; its last entry has no rule.
extern const struct misuse beginner_cases[], connect_cases[], connection_cases[], event_cases[], failure_cases[],
    life_cases[], memory_cases[], queue_cases[], refused_cases[];

// Ends the program with a message unless `holds` is true.
void check(bool holds, const char *what);
// Opens the device if it is not open.
void open_context(void);
// Makes a side whose queue pair is in INIT.
void make_side(struct side *side, struct options options);
// Makes a queue pair in INIT for a side that has none.
void make_qp(struct side *side, struct options options);
// Makes two sides that are connected to each other, or, with UD, only in RTS.
void make_pair(struct side sides[2], struct options options);
// Takes `side` to RTR and RTS towards `peer`. `change` may change the attributes of either step.
void connect_side(struct side *side, struct side *peer, struct options options,
                  void (*change)(struct ibv_qp_attr *, enum ibv_qp_state));
void destroy_side(struct side *side);
// Destroys both sides and closes the device.
void close_sides(struct side sides[2]);

// Starts a process that is the peer of this one, and returns as `fork` does.
pid_t fork_peer(void);
// Makes sides[0] in this process and connects it with the side that the peer makes. sides[1] stands
// for that side.
void connect_with_peer(struct side sides[2], struct options options,
                       void (*change)(struct ibv_qp_attr *, enum ibv_qp_state));
// Returns once the peer has called this too.
void wait_for_peer(void);

// These two post a request on `length` bytes of the side's memory, from `offset` on.
int post_recv(struct side *side, uint64_t wr_id, unsigned offset, unsigned length);
int post_send(struct side *side, uint64_t wr_id, enum ibv_wr_opcode opcode, int flags, unsigned offset, unsigned length,
              struct side *peer);
// Waits for a completion of the side and returns its status.
enum ibv_wc_status completion(struct side *side, struct ibv_wc *wc);
// Waits for a completion of the side, which must be IBV_WC_SUCCESS.
void done(struct side *side);

#endif
