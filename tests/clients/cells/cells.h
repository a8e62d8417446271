// cells: a stock verbs program that judges an RDMA stack one cell at a time.
//
// A cell is one (service, operation, size, path MTU). The client is the requester: it posts the
// work requests; the server offers the receives and the memory. A TCP connection carries what both
// must know (queue pair numbers, keys, how much was sent) and each side's verdict:
//
//   client                        server
//   hello ITS MEMORY AND GID      hello ITS MEMORY AND GID | sorry REASON
//   cell NUMBER WHAT ... QPN PSN  ready QPN PSN     receives are posted, memory is filled
//   sent N    (UC, UD: N so far)  got N             go on
//   done ok N | done failed N     verdict KIND ...  once a cell, as soon as it is known
//   quit
//
// Only libibverbs and POSIX are used, so the same sources build and run against any stack:
// gcc -O1 -Wall -Wextra -pthread -o cells *.c -libverbs
//
//   main.c     options, the listening server, the list of cells of a client
//   soak.c     random cells on several threads for a given time
//   client.c   one cell, the requester's side
//   server.c   one cell, the responder's side
//   cell.c     what a cell is made of, for both sides
//   session.c  what lives as long as a connection, for both sides
//   message.c  the bytes of messages, and the guarded memory they lie in
//   device.c   the device and its queue pairs
//   control.c  the TCP connection, line by line
#ifndef CELLS_H
#define CELLS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_GROUP = 32,            // messages under way at once
    MAX_SERIALS = 64,          // transmissions of one cell; the first byte of a message tells them apart
    MAX_MESSAGE = 1 << 20,     // bytes of a message
    GRH_BYTES = 40,            // what a UD receive is preceded by
    AREA_BYTES = 11 << 20,     // the registered memory of each side
    LINE_BYTES = 1024,         // longest line on the control connection
    IMMEDIATELY = 0,           // a wait of no milliseconds
};

enum service { RC, UC, UD, SERVICES };
enum op { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, FETCH_ADD, CMP_SWAP, OPS };

// ---- what went wrong ----------------------------------------------------------------------------

enum kind { FINE, WRONG_BYTES, WRONG_COMPLETION, BROKEN, KINDS };

// The first thing that went wrong; later ones are usually its consequences.
struct report {
    enum kind kind;
    char text[240];
};

// Notes that something is wrong. Always false, so that a check can end with `return wrong(...)`.
bool wrong(struct report *report, enum kind kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
// The same for a failed call: adds the text of `error` (an errno value).
bool call_failed(struct report *report, const char *call, int error);
const char *kind_name(enum kind kind);
bool kind_from(const char *name, enum kind *kind);
// Milliseconds of a clock that never goes back.
int64_t now_ms(void);
// How many polls of completion queues there are to a look at the control connection.
enum { POLLS_PER_LOOK = 32 };
// Lets others run behind a poll: before each look for a while, as the processor of the other side
// may be one that this one emulates, and then has what polling leaves of it.
void between_polls(unsigned polls);

// ---- control.c ----------------------------------------------------------------------------------

struct control {
    int fd;
    size_t have;
    char buffer[LINE_BYTES];
};

enum heard { LINE, NOTHING, GONE };

bool control_connect(struct control *c, const char *host, const char *port, int family, struct report *report);
// A listening socket for both families (AF_UNSPEC) or one; -1 on failure.
int control_listen(const char *port, int family, struct report *report);
void control_close(struct control *c);
bool control_say(struct control *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Waits at most `wait_ms` for a line of at most LINE_BYTES and copies it, without its end, to
// `line`.
enum heard control_hear(struct control *c, char line[LINE_BYTES], int64_t wait_ms);
// Whether a line (or the end of the connection) is there to be heard.
bool control_pending(struct control *c);
// The local address of the connection as a GID (IPv4 as ::ffff:a.b.c.d).
bool control_local_gid(const struct control *c, union ibv_gid *gid);

// ---- message.c ----------------------------------------------------------------------------------

uint64_t mix(uint64_t value);

// Which message: its bytes follow from the cell's seed and from its number within the cell.
struct key {
    uint64_t seed;
    uint32_t serial;
};

// The first byte of message `key.serial`; differs between the messages of a cell.
uint8_t first_byte(struct key key);

// A stretch of memory for one message: up to three pieces with guard bytes before, between and
// behind them.
struct slot {
    uint8_t *base;
    size_t bytes;
    uint32_t size;        // bytes of the message
    bool grh;             // piece 0 takes the GRH
    unsigned pieces;
    struct {
        uint8_t *at;
        uint32_t length;
    } piece[3];
};

// Bytes that a slot for messages of `size` takes.
size_t slot_bytes(uint32_t size);
// Slot `index` of the area. `split` bytes lie in a piece of their own; 0 for none.
struct slot slot_make(uint8_t *area, unsigned index, uint32_t size, uint32_t split, bool grh);
// Writes the guards, and the message or, when `blank`, the complement of each of its bytes.
void slot_fill(const struct slot *slot, struct key key, bool blank);
// Fills `sges`; returns how many there are. A piece of no bytes takes none.
int slot_sges(const struct slot *slot, uint32_t lkey, struct ibv_sge sges[3]);
bool slot_guards(const struct slot *slot, const char *whose, struct report *report);
// Whether the slot holds the whole message; says at which byte it differs.
bool slot_holds(const struct slot *slot, struct key key, const char *whose, struct report *report);
// Whether each packet's share of the message is there as a whole or not at all.
bool slot_holds_shares(const struct slot *slot, struct key key, uint32_t mtu, struct report *report);
// The first byte of the message in the slot.
uint8_t slot_first(const struct slot *slot);
// Whether the last byte of the message is there (false: it is still blank). True for an empty
// message.
bool slot_arrived(const struct slot *slot, struct key key);

// ---- device.c -----------------------------------------------------------------------------------

struct device {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    uint8_t *area;
    uint32_t mtu;         // bytes of the port's active MTU
    bool atomics;
    int ack_delay;        // how long it may take to acknowledge, as 4.096 us * 2^N
    union ibv_gid gid;
    int gid_index;
    int reads;            // READs and atomics under way, as requester and as responder
};

// Where the messages of a queue pair go.
struct remote {
    union ibv_gid gid;
    uint32_t qpn, psn, qkey;
};

// A posted receive.
struct receive {
    uint64_t wr_id;
    unsigned slot;
};

// A queue pair, and what was posted to it.
struct link {
    struct ibv_qp *qp;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_ah *ah;
    uint32_t psn, inline_bytes;
    struct remote remote;
    // Receives in the order they were posted: [taken, posted) are still there.
    struct receive receives[MAX_GROUP];
    unsigned posted, taken;
};

// Opens `name` (NULL: the first device) and registers the area. `gid_index` -1 chooses the GID
// equal to `wanted`.
bool device_open(struct device *d, const char *name, int gid_index, const union ibv_gid *wanted, struct report *report);
bool device_close(struct device *d, struct report *report);
enum ibv_mtu mtu_code(uint32_t bytes);
// A queue pair in INIT with random first PSN.
bool link_open(struct link *l, struct device *d, enum service service, uint32_t qkey, struct report *report);
// To RTR and RTS.
bool link_connect(struct link *l, struct device *d, enum service service, uint32_t mtu, int ack_timeout,
                  const struct remote *remote, struct report *report);
bool link_close(struct link *l, struct report *report);

// ---- cell.c -------------------------------------------------------------------------------------

struct cell {
    uint32_t number;      // counts the cells of a session; part of every wr_id
    enum service service;
    enum op op;
    uint32_t size, mtu;
    uint32_t count;       // messages that must arrive; 0 for a datagram that is too long to be sent
    uint32_t group;       // most messages under way at once
    uint32_t budget;      // most transmissions
    uint32_t qkey;
    bool lossy, fresh;
    int sges, ack_timeout, grace_ms, timeout_s;
    uint64_t seed;
};

const char *service_name(enum service service);
const char *op_name(enum op op);
bool service_from(const char *name, enum service *service);
bool op_from(const char *name, enum op *op);
bool op_exists(enum service service, enum op op);
bool op_takes_receive(enum op op);
bool op_has_imm(enum op op);
bool op_is_write(enum op op);
bool op_is_atomic(enum op op);
uint32_t packets_of(const struct cell *cell);
// Whether the network may repeat or reorder whole messages of this cell although the stacks do
// nothing wrong.
bool may_repeat(const struct cell *cell);
// Whether so many messages delivered are enough after `sent` transmissions.
bool cell_enough(const struct cell *cell, uint32_t delivered, uint32_t sent);
// How many to send next.
uint32_t next_group(const struct cell *cell, uint32_t delivered, uint32_t sent);
struct key cell_key(const struct cell *cell, uint32_t serial);
uint32_t cell_imm(const struct cell *cell, uint32_t serial);
uint32_t cell_split(const struct cell *cell, unsigned index, uint32_t side);
// Operands of atomic number `serial`, given the value it meets; returns the value it leaves.
uint64_t atomic_step(const struct cell *cell, uint32_t serial, uint64_t current, uint64_t *operand, uint64_t *swap);
uint64_t atomic_start(const struct cell *cell);
// The line that announces a cell, and back.
bool cell_say(struct control *c, const struct cell *cell, const struct link *link);
bool cell_parse(const char *line, struct cell *cell, uint32_t *qpn, uint32_t *psn);

// ---- session.c, client.c, server.c --------------------------------------------------------------

enum { MTUS = 3 };

// One control connection, and all that lives as long as it.
struct session {
    struct control control;
    struct device device;
    union ibv_gid peer_gid;
    uint64_t peer_area;
    uint32_t peer_rkey, peer_mtu;
    int peer_ack_delay;
    bool peer_atomics;
    uint32_t cells;                    // so far
    struct link links[SERVICES][MTUS];
};

struct options {
    const char *device, *host, *port;
    int gid_index, family;
    bool once, quit, lossy;
    bool services[SERVICES], ops[OPS];
    uint32_t mtus[MTUS];
    const char *sizes;
    int sges, ack_timeout, grace_ms, timeout_s, soak_s, workers;
    uint64_t seed;
};

enum outcome { PASS, FAIL, SKIP };

struct result {
    enum outcome outcome;
    enum kind kind;
    uint32_t sent, delivered, doubled;
    char detail[600];
};

struct link *session_link(struct session *s, const struct cell *cell);
// Each side's memory and device, told to the other; the server answers `sorry REASON` when it has
// none.
bool say_hello(struct session *s);
bool parse_hello(struct session *s, const char *line);
// Closes everything; true when all of it could be closed.
bool session_close(struct session *s, struct report *report);

bool client_open(struct session *s, const struct options *o, struct report *report);
// Chooses how many messages the cell gets. `soak` asks for more of them.
void client_plan(struct cell *cell, const struct session *s, bool soak);
// Runs one cell; false when the control connection cannot be used any more.
bool client_cell(struct session *s, struct cell *cell, struct result *result);
// Ends the session; true when everything closed without an error.
bool client_close(struct session *s, bool quit, struct report *report);

enum served { SERVED, SILENT, QUIT };
// Serves one client until it goes or says quit. SILENT: it never said a word.
enum served server_session(struct session *s, const struct options *o, struct report *report);

// ---- soak.c -------------------------------------------------------------------------------------

// Exit status.
int soak(const struct options *o);

#endif
