// Options, the listening server, and the list of cells of a client.
#define _GNU_SOURCE // accept4
#include "cells.h"
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static const char usage[] =
    "cells server [options]           serves clients until one says quit\n"
    "cells client HOST [options]      runs cells and prints a line for each\n"
    "  -d DEVICE  -g GID_INDEX (default: the GID of the TCP address)  -p TCP_PORT (18515)  -4 | -6\n"
    "  --once                         server: ends after one client\n"
    "  --quit                         client: tells the server to end\n"
    "  --services rc,uc,ud            --ops send,send_imm,write,write_imm,read,fetch_add,cmp_swap\n"
    "  --mtus 256,1024,4096           --sizes 0,1,mtu-1,mtu,mtu+1,65536,1048576 (atomics have 8 bytes)\n"
    "  --lossy                        packets may get lost: UC and UD messages need not all arrive\n"
    "  --sges 1|2                     most pieces a message lies in (2)\n"
    "  --ack-timeout N                RC sends again after 4.096 us * 2^N (twice the peer's local_ca_ack_delay)\n"
    "  --grace-ms N                   how long after the last arrival a UC or UD message is lost (300)\n"
    "  --cell-timeout-s N             (30)\n"
    "  --soak SECONDS --workers N     random cells on N connections at once (4)\n"
    "  --seed N                       repeats the choices and bytes of an earlier run\n";

enum { OPT_ONCE = 256, OPT_QUIT, OPT_SERVICES, OPT_OPS, OPT_MTUS, OPT_SIZES, OPT_LOSSY, OPT_SGES, OPT_ACK, OPT_GRACE,
       OPT_TIMEOUT, OPT_SOAK, OPT_WORKERS, OPT_SEED };

static const struct option long_options[] = {
    {"once", 0, NULL, OPT_ONCE}, {"quit", 0, NULL, OPT_QUIT}, {"services", 1, NULL, OPT_SERVICES},
    {"ops", 1, NULL, OPT_OPS}, {"mtus", 1, NULL, OPT_MTUS}, {"sizes", 1, NULL, OPT_SIZES},
    {"lossy", 0, NULL, OPT_LOSSY}, {"sges", 1, NULL, OPT_SGES}, {"ack-timeout", 1, NULL, OPT_ACK},
    {"grace-ms", 1, NULL, OPT_GRACE}, {"cell-timeout-s", 1, NULL, OPT_TIMEOUT}, {"soak", 1, NULL, OPT_SOAK},
    {"workers", 1, NULL, OPT_WORKERS}, {"seed", 1, NULL, OPT_SEED}, {0},
};

static void give_up(const char *what, const char *which)
{
    fprintf(stderr, "cells: %s: %s\n%s", what, which, usage);
    exit(2);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (errno != 0 || end == text || *end != '\0' || *text == '-' || value < least || value > most)
        give_up("not a number that is allowed here", text);
    return value;
}

// Calls `each` with every word of a list separated by commas.
static void for_words(const char *list, void (*each)(struct options *, const char *), struct options *o)
{
    while (*list != '\0') {
        char word[32];
        size_t length = strcspn(list, ",");
        if (length == 0 || length >= sizeof word)
            give_up("not a list of words", list);
        memcpy(word, list, length);
        word[length] = '\0';
        each(o, word);
        list += length + (list[length] == ',');
    }
}

static void choose_service(struct options *o, const char *word)
{
    enum service service;
    if (!service_from(word, &service))
        give_up("unknown service", word);
    o->services[service] = true;
}

static void choose_op(struct options *o, const char *word)
{
    enum op op;
    if (!op_from(word, &op))
        give_up("unknown operation", word);
    o->ops[op] = true;
}

static void choose_mtu(struct options *o, const char *word)
{
    uint64_t mtu = number(word, 256, 4096);
    int i = mtu == 256 ? 0 : mtu == 1024 ? 1 : 2;
    if (mtu != 256 && mtu != 1024 && mtu != 4096)
        give_up("not an MTU of the matrix", word);
    o->mtus[i] = (uint32_t)mtu;
}

// `mtu`, `mtu-1`, `mtu+1` or a number.
static uint32_t size_from(const char *word, uint32_t mtu)
{
    if (strcmp(word, "mtu-1") == 0)
        return mtu - 1;
    if (strcmp(word, "mtu") == 0)
        return mtu;
    if (strcmp(word, "mtu+1") == 0)
        return mtu + 1;
    return (uint32_t)number(word, 0, MAX_MESSAGE);
}

static void check_size(struct options *o, const char *word)
{
    (void)o;
    size_from(word, 256);
}

static void apply(struct options *o, int option, const char *value)
{
    switch (option) {
    case 'd': o->device = value; break;
    case 'g': o->gid_index = (int)number(value, 0, 255); break;
    case 'p': number(value, 0, 65535); o->port = value; break;
    case '4': o->family = AF_INET; break;
    case '6': o->family = AF_INET6; break;
    case OPT_ONCE: o->once = true; break;
    case OPT_QUIT: o->quit = true; break;
    case OPT_SERVICES: memset(o->services, 0, sizeof o->services); for_words(value, choose_service, o); break;
    case OPT_OPS: memset(o->ops, 0, sizeof o->ops); for_words(value, choose_op, o); break;
    case OPT_MTUS: memset(o->mtus, 0, sizeof o->mtus); for_words(value, choose_mtu, o); break;
    case OPT_SIZES: o->sizes = value; for_words(value, check_size, o); break;
    case OPT_LOSSY: o->lossy = true; break;
    case OPT_SGES: o->sges = (int)number(value, 1, 2); break;
    case OPT_ACK: o->ack_timeout = (int)number(value, 1, 31); break;
    case OPT_GRACE: o->grace_ms = (int)number(value, 1, 60000); break;
    case OPT_TIMEOUT: o->timeout_s = (int)number(value, 1, 3600); break;
    case OPT_SOAK: o->soak_s = (int)number(value, 1, 86400); break;
    case OPT_WORKERS: o->workers = (int)number(value, 1, 64); break;
    case OPT_SEED: o->seed = number(value, 0, UINT64_MAX); break;
    default: exit(2); // getopt has said what it does not know
    }
}

static struct options parse(int argc, char **argv)
{
    struct options o = {
        .port = "18515", .gid_index = -1, .family = AF_UNSPEC, .services = {true, true, true},
        .ops = {true, true, true, true, true, true, true}, .mtus = {256, 1024, 4096},
        .sizes = "0,1,mtu-1,mtu,mtu+1,65536,1048576", .sges = 2, .grace_ms = 300, .timeout_s = 30,
        .workers = 4};
    int option;
    if (getrandom(&o.seed, sizeof o.seed, 0) != sizeof o.seed)
        give_up("getrandom", strerror(errno));
    while ((option = getopt_long(argc, argv, "d:g:p:46", long_options, NULL)) != -1)
        apply(&o, option, optarg);
    bool server = optind < argc && strcmp(argv[optind], "server") == 0 && optind + 1 == argc;
    bool client = optind < argc && strcmp(argv[optind], "client") == 0 && optind + 2 == argc;
    if (!server && !client)
        give_up("what to be", optind < argc ? argv[optind] : "nothing said");
    o.host = client ? argv[optind + 1] : NULL;
    return o;
}

// ---- server -------------------------------------------------------------------------------------

// One accepted connection, served by a thread of its own so that a soak can have several.
struct visit {
    int fd;
    const struct options *options;
    int listener;                  // shut down to tell the accepting thread that it is over
    struct counts *counts;
};

struct counts {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int open;                      // connections being served
    bool over, failed;
};

static void *serve(void *argument)
{
    struct visit *visit = argument;
    struct session *s = calloc(1, sizeof *s);
    struct report report = {0};
    enum served served = SERVED;
    if (s) {
        s->control.fd = visit->fd;
        served = server_session(s, visit->options, &report);
    } else {
        close(visit->fd);
        wrong(&report, BROKEN, "no memory");
    }
    if (report.kind != FINE)
        fprintf(stderr, "cells server: %s\n", report.text);
    pthread_mutex_lock(&visit->counts->lock);
    visit->counts->open--;
    visit->counts->failed |= report.kind != FINE;
    if (served == QUIT || (served == SERVED && visit->options->once)) {
        visit->counts->over = true;
        shutdown(visit->listener, SHUT_RDWR);
    }
    pthread_cond_signal(&visit->counts->changed);
    pthread_mutex_unlock(&visit->counts->lock);
    free(s);
    free(visit);
    return NULL;
}

static void start_visit(int fd, int listener, const struct options *o, struct counts *counts)
{
    pthread_t thread;
    struct visit *visit = malloc(sizeof *visit);
    if (!visit) {
        close(fd);
        return;
    }
    *visit = (struct visit){.fd = fd, .options = o, .listener = listener, .counts = counts};
    pthread_mutex_lock(&counts->lock);
    counts->open++;
    pthread_mutex_unlock(&counts->lock);
    if (pthread_create(&thread, NULL, serve, visit) != 0 || pthread_detach(thread) != 0) {
        fprintf(stderr, "cells server: no thread\n");
        exit(1);
    }
}

static int server(const struct options *o)
{
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct report report = {0};
    int listener = control_listen(o->port, o->family, &report);
    if (listener < 0) {
        fprintf(stderr, "cells server: %s\n", report.text);
        return 1;
    }
    printf("listening\t%s\n", o->port);
    fflush(stdout);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED)
            break; // shut down by a visit that is the last
        if (fd >= 0)
            start_visit(fd, listener, o, &counts);
    }
    pthread_mutex_lock(&counts.lock);
    bool told = counts.over;
    while (counts.open > 0)
        pthread_cond_wait(&counts.changed, &counts.lock);
    pthread_mutex_unlock(&counts.lock);
    close(listener);
    return told && !counts.failed ? 0 : 1;
}

// ---- client -------------------------------------------------------------------------------------

struct totals {
    unsigned outcomes[3];
};

static void print_cell(const struct cell *cell, const struct result *result, int64_t ms, struct totals *totals)
{
    static const char *const words[] = {"pass", "fail", "skip"};
    totals->outcomes[result->outcome]++;
    printf("cell\t%s\t%s\t%u\t%u\t%s\t%lld\t%s\n", service_name(cell->service), op_name(cell->op), cell->size,
           cell->mtu, words[result->outcome], (long long)ms, result->detail);
    fflush(stdout);
}

// Why a cell cannot be run with these two devices; NULL when it can.
static const char *obstacle(const struct session *s, const struct cell *cell)
{
    if (cell->mtu > s->device.mtu || cell->mtu > s->peer_mtu)
        return "the MTU of a port is smaller";
    if (op_is_atomic(cell->op) && !(s->device.atomics && s->peer_atomics))
        return "a device has no atomics";
    return NULL;
}

static bool run_cell(struct session *s, const struct options *o, struct cell cell, struct totals *totals)
{
    struct result result = {.outcome = SKIP};
    int64_t start = now_ms();
    const char *why = obstacle(s, &cell);
    bool alive = true;
    cell.lossy = o->lossy;
    cell.sges = o->sges;
    cell.ack_timeout = o->ack_timeout;
    cell.grace_ms = o->grace_ms;
    cell.timeout_s = o->timeout_s;
    cell.seed = mix(o->seed ^ mix(((uint64_t)cell.service << 48) + ((uint64_t)cell.op << 40)
                                  + ((uint64_t)cell.mtu << 24) + cell.size));
    cell.qkey = (uint32_t)(cell.seed >> 33) | 1; // the top bit would ask for the queue pair's own
    if (why)
        snprintf(result.detail, sizeof result.detail, "%s", why);
    else {
        client_plan(&cell, s, false);
        alive = client_cell(s, &cell, &result);
    }
    print_cell(&cell, &result, now_ms() - start, totals);
    return alive;
}

static bool run_sizes(struct session *s, const struct options *o, struct cell cell, struct totals *totals)
{
    const char *list = op_is_atomic(cell.op) ? "8" : o->sizes;
    while (*list != '\0') {
        char word[32];
        size_t length = strcspn(list, ",");
        memcpy(word, list, length); // its length was checked with the options
        word[length] = '\0';
        cell.size = size_from(word, cell.mtu);
        if (!run_cell(s, o, cell, totals))
            return false;
        list += length + (list[length] == ',');
    }
    return true;
}

static bool run_cells(struct session *s, const struct options *o, struct totals *totals)
{
    for (int i = 0; i < SERVICES * MTUS * OPS; i++) {
        struct cell cell = {.service = (enum service)(i / OPS / MTUS), .mtu = o->mtus[i / OPS % MTUS],
                            .op = (enum op)(i % OPS)};
        bool asked = o->services[cell.service] && o->ops[cell.op] && cell.mtu != 0;
        if (asked && op_exists(cell.service, cell.op) && !run_sizes(s, o, cell, totals))
            return false;
    }
    return true;
}

static int client(const struct options *o)
{
    struct session s;
    struct totals totals = {0};
    struct report report = {0};
    bool ok = client_open(&s, o, &report) && run_cells(&s, o, &totals);
    ok &= client_close(&s, o->quit, &report);
    if (report.kind != FINE)
        fprintf(stderr, "cells client: %s\n", report.text);
    printf("done\t%u passed\t%u failed\t%u skipped\n", totals.outcomes[PASS], totals.outcomes[FAIL],
           totals.outcomes[SKIP]);
    return ok && totals.outcomes[FAIL] == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    if (!o.host)
        return server(&o);
    return o.soak_s > 0 ? soak(&o) : client(&o);
}
