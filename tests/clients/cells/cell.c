// What a cell is made of, and what both sides derive from it.
#include "cells.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const services[] = {"rc", "uc", "ud"};
static const char *const ops[] = {"send", "send_imm", "write", "write_imm", "read", "fetch_add", "cmp_swap"};
static const char *const kinds[] = {"fine", "bytes", "completion", "broken"};

bool wrong(struct report *report, enum kind kind, const char *format, ...)
{
    va_list args;
    if (report->kind != FINE)
        return false;
    report->kind = kind;
    va_start(args, format);
    vsnprintf(report->text, sizeof report->text, format, args);
    va_end(args);
    return false;
}

bool call_failed(struct report *report, const char *call, int error)
{
    return wrong(report, BROKEN, "%s failed: %s", call, strerror(error));
}

static bool find(const char *name, const char *const *names, int count, int *found)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            *found = i;
            return true;
        }
    }
    return false;
}

const char *kind_name(enum kind kind)
{
    return kinds[kind];
}

bool kind_from(const char *name, enum kind *kind)
{
    int found = 0;
    bool known = find(name, kinds, KINDS, &found);
    *kind = (enum kind)found;
    return known;
}

const char *service_name(enum service service)
{
    return services[service];
}

const char *op_name(enum op op)
{
    return ops[op];
}

bool service_from(const char *name, enum service *service)
{
    int found = 0;
    bool known = find(name, services, SERVICES, &found);
    *service = (enum service)found;
    return known;
}

bool op_from(const char *name, enum op *op)
{
    int found = 0;
    bool known = find(name, ops, OPS, &found);
    *op = (enum op)found;
    return known;
}

bool op_exists(enum service service, enum op op)
{
    return service == RC || (service == UC && op <= WRITE_IMM) || op <= SEND_IMM;
}

bool op_takes_receive(enum op op)
{
    return op == SEND || op == SEND_IMM || op == WRITE_IMM;
}

bool op_has_imm(enum op op)
{
    return op == SEND_IMM || op == WRITE_IMM;
}

bool op_is_write(enum op op)
{
    return op == WRITE || op == WRITE_IMM;
}

bool op_is_atomic(enum op op)
{
    return op == FETCH_ADD || op == CMP_SWAP;
}

uint32_t packets_of(const struct cell *cell)
{
    return cell->size == 0 ? 1 : (cell->size + cell->mtu - 1) / cell->mtu;
}

// UC and UD have nothing that tells a packet from its copy: a message of one packet that the
// network duplicates arrives twice, one that it delays arrives late. A UC message of two packets
// can still be copied as a whole, when both copies are delayed; with more packets that does not
// happen by chance, as any other packet between them ends it.
bool may_repeat(const struct cell *cell)
{
    return cell->lossy && cell->service != RC && packets_of(cell) <= 2;
}

// On a clean network everything must arrive, though not at the first attempt: UC and UD have no
// flow control, so a burst may overrun a slow receiver, and then the message is sent again, as a
// new one, up to the budget. When the network loses packets, one message is enough, and one of so
// many packets that it rarely survives need not arrive.
bool cell_enough(const struct cell *cell, uint32_t delivered, uint32_t sent)
{
    if (!cell->lossy || cell->service == RC || cell->count == 0)
        return delivered >= cell->count;
    return sent >= cell->count && (delivered > 0 || packets_of(cell) > 8);
}

uint32_t next_group(const struct cell *cell, uint32_t delivered, uint32_t sent)
{
    uint32_t wanted = cell->lossy && cell->service != RC ? cell->count - (sent < cell->count ? sent : cell->count - 1)
                                                         : cell->count - delivered;
    uint32_t allowed = cell->budget - sent;
    uint32_t most = wanted < allowed ? wanted : allowed;
    return most < cell->group ? most : cell->group;
}

struct key cell_key(const struct cell *cell, uint32_t serial)
{
    return (struct key){.seed = cell->seed, .serial = serial};
}

// The low byte is the number of the message, so that an empty message has a name too.
uint32_t cell_imm(const struct cell *cell, uint32_t serial)
{
    return htonl((uint32_t)(mix(cell->seed + 1) << 8) | (serial & 0xff));
}

uint32_t cell_split(const struct cell *cell, unsigned index, uint32_t side)
{
    if (cell->sges < 2 || cell->size < 2 || (index + side) % 2 == 0)
        return 0;
    return (uint32_t)(mix(cell->seed + 2 + side + 2 * index) % cell->size);
}

uint64_t atomic_start(const struct cell *cell)
{
    return mix(cell->seed + 3);
}

// Every second compare meets another value than it names, and must change nothing.
uint64_t atomic_step(const struct cell *cell, uint32_t serial, uint64_t current, uint64_t *operand, uint64_t *swap)
{
    *swap = mix(cell->seed + 5 + 2 * serial);
    *operand = mix(cell->seed + 4 + 2 * serial);
    if (cell->op == FETCH_ADD)
        return current + *operand;
    *operand = serial % 2 == 0 ? current : ~current;
    return serial % 2 == 0 ? *swap : current;
}

bool cell_say(struct control *c, const struct cell *cell, const struct link *link)
{
    return control_say(c, "cell %u %s %s %u %u %u %u %u %u %d %d %d %d %d %d %" PRIx64 " %u %u", cell->number,
                       service_name(cell->service), op_name(cell->op), cell->size, cell->mtu, cell->count, cell->group,
                       cell->budget, cell->qkey, cell->lossy, cell->fresh, cell->sges, cell->ack_timeout,
                       cell->grace_ms, cell->timeout_s, cell->seed, link->qp->qp_num, link->psn);
}

// Whether the numbers are such that nothing built on them overflows.
static bool sound(const struct cell *cell)
{
    return cell->size <= MAX_MESSAGE && cell->count <= MAX_SERIALS && cell->budget <= MAX_SERIALS && cell->group >= 1
           && cell->group <= MAX_GROUP && (cell->mtu == 256 || cell->mtu == 1024 || cell->mtu == 4096)
           && op_exists(cell->service, cell->op) && cell->budget * slot_bytes(cell->size) <= AREA_BYTES
           && cell->count <= cell->budget && cell->group <= cell->budget
           && (!op_is_atomic(cell->op) || cell->size == 8);
}

bool cell_parse(const char *line, struct cell *cell, uint32_t *qpn, uint32_t *psn)
{
    char service[8], op[16];
    int lossy, fresh;
    int fields = sscanf(line, "cell %u %7s %15s %u %u %u %u %u %u %d %d %d %d %d %d %" SCNx64 " %u %u", &cell->number,
                        service, op, &cell->size, &cell->mtu, &cell->count, &cell->group, &cell->budget, &cell->qkey,
                        &lossy, &fresh, &cell->sges, &cell->ack_timeout, &cell->grace_ms, &cell->timeout_s,
                        &cell->seed, qpn, psn);
    if (fields != 18 || !service_from(service, &cell->service) || !op_from(op, &cell->op))
        return false;
    cell->lossy = lossy != 0;
    cell->fresh = fresh != 0;
    return sound(cell);
}
