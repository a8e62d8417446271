// Random cells on several connections at once, for a given time.
#include "cells.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What happened with one service.
struct tally {
    uint64_t cells, sent, delivered, bytes, lost, doubled, failed[KINDS];
};

struct worker {
    const struct options *options;
    int64_t end;
    uint64_t random;
    struct session session;
    struct tally tallies[SERVICES];
    struct report report;              // why the worker could not go on
};

static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;

// A number below `limit`.
static uint32_t choose(struct worker *w, uint32_t limit)
{
    w->random = mix(w->random);
    return (uint32_t)((w->random >> 32) * limit >> 32);
}

// Sizes around the borders of packets and of powers of two, mostly small ones.
static uint32_t choose_size(struct worker *w, uint32_t mtu)
{
    uint32_t most = 1u << choose(w, 21);
    switch (choose(w, 4)) {
    case 0: return mtu - 1 + choose(w, 3);
    case 1: return choose(w, 2 * mtu);
    case 2: return choose(w, 3);
    default: return choose(w, most + 1);
    }
}

static struct cell choose_cell(struct worker *w)
{
    static const uint32_t mtus[] = {256, 1024, 4096};
    const struct options *o = w->options;
    struct cell cell = {.lossy = true, .sges = o->sges, .ack_timeout = o->ack_timeout, .grace_ms = o->grace_ms,
                        .timeout_s = o->timeout_s};
    do {
        cell.service = (enum service)choose(w, SERVICES);
        cell.op = (enum op)choose(w, OPS);
        cell.mtu = mtus[choose(w, MTUS)];
    } while (!o->services[cell.service] || !o->ops[cell.op] || !op_exists(cell.service, cell.op)
             || cell.mtu > w->session.device.mtu || cell.mtu > w->session.peer_mtu);
    cell.size = op_is_atomic(cell.op) ? 8 : cell.service == UD ? choose(w, cell.mtu + 1) : choose_size(w, cell.mtu);
    cell.seed = mix(w->random);
    cell.qkey = (uint32_t)(cell.seed >> 33) | 1;
    client_plan(&cell, &w->session, true);
    return cell;
}

static void note(struct worker *w, const struct cell *cell, const struct result *result)
{
    struct tally *t = &w->tallies[cell->service];
    t->cells++;
    t->sent += result->sent;
    t->delivered += result->delivered;
    t->bytes += (uint64_t)result->delivered * cell->size;
    t->lost += result->sent - result->delivered;
    t->doubled += result->doubled;
    if (result->outcome != FAIL)
        return;
    t->failed[result->kind]++;
    pthread_mutex_lock(&printing);
    printf("cell\t%s\t%s\t%u\t%u\tfail\t0\t%s\n", service_name(cell->service), op_name(cell->op), cell->size, cell->mtu,
           result->detail);
    fflush(stdout);
    pthread_mutex_unlock(&printing);
}

static void *work(void *argument)
{
    struct worker *w = argument;
    bool alive = client_open(&w->session, w->options, &w->report);
    while (alive && now_ms() < w->end) {
        struct result result = {0};
        struct cell cell = choose_cell(w);
        alive = client_cell(&w->session, &cell, &result);
        note(w, &cell, &result);
    }
    client_close(&w->session, false, &w->report);
    return NULL;
}

static void add(struct tally *sum, const struct tally *part)
{
    sum->cells += part->cells;
    sum->sent += part->sent;
    sum->delivered += part->delivered;
    sum->bytes += part->bytes;
    sum->lost += part->lost;
    sum->doubled += part->doubled;
    for (int i = 0; i < KINDS; i++)
        sum->failed[i] += part->failed[i];
}

// A datagram or a UC message may get lost, and a network that copies packets may deliver one of a
// single packet twice; both are counted apart, by the number that each message carries, and are no
// failure.
static bool print(const char *name, const struct tally *t)
{
    printf("soak\t%s\t%" PRIu64 " cells\t%" PRIu64 " messages\t%" PRIu64 " bytes\t%" PRIu64 " lost\t%" PRIu64
           " repeated by the network\t%" PRIu64 " wrong bytes\t%" PRIu64 " wrong completions\t%" PRIu64 " broken\n",
           name, t->cells, t->delivered, t->bytes, t->lost, t->doubled, t->failed[WRONG_BYTES],
           t->failed[WRONG_COMPLETION], t->failed[BROKEN]);
    return t->failed[WRONG_BYTES] + t->failed[WRONG_COMPLETION] + t->failed[BROKEN] == 0;
}

static bool print_all(const struct worker *workers, int count)
{
    struct tally all = {0};
    bool ok = true;
    for (int service = 0; service < SERVICES; service++) {
        struct tally sum = {0};
        for (int i = 0; i < count; i++)
            add(&sum, &workers[i].tallies[service]);
        ok &= print(service_name((enum service)service), &sum);
        add(&all, &sum);
    }
    return print("all", &all) && ok;
}

// Tells the server to end, on a connection of its own.
static void quit(const struct options *o)
{
    struct control control;
    struct report report = {0};
    if (!control_connect(&control, o->host, o->port, o->family, &report) || !control_say(&control, "quit"))
        fprintf(stderr, "cells client: %s\n", report.text);
    control_close(&control);
}

int soak(const struct options *o)
{
    struct worker *workers = calloc((size_t)o->workers, sizeof *workers);
    pthread_t *threads = calloc((size_t)o->workers, sizeof *threads);
    int started = 0;
    bool ok = workers && threads;
    printf("seed\t0x%" PRIx64 "\n", o->seed);
    for (; ok && started < o->workers; started++) {
        struct worker *w = &workers[started];
        *w = (struct worker){.options = o, .end = now_ms() + 1000 * (int64_t)o->soak_s,
                             .random = mix(o->seed + (uint64_t)started)};
        ok = pthread_create(&threads[started], NULL, work, w) == 0;
        if (!ok)
            break;
    }
    for (int i = 0; i < started; i++) {
        ok &= pthread_join(threads[i], NULL) == 0 && workers[i].report.kind == FINE;
        if (workers[i].report.kind != FINE)
            fprintf(stderr, "cells client: %s\n", workers[i].report.text);
    }
    ok = started > 0 && print_all(workers, started) && ok;
    printf("done\t%s\n", ok ? "nothing wrong" : "failed");
    if (o->quit)
        quit(o);
    free(threads);
    free(workers);
    return ok ? 0 : 1;
}
