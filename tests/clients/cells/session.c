// What lives as long as a control connection: the device, the queue pairs, and what the sides told
// each other.
#include "cells.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct link *session_link(struct session *s, const struct cell *cell)
{
    return &s->links[cell->service][cell->mtu == 256 ? 0 : cell->mtu == 1024 ? 1 : 2];
}

bool say_hello(struct session *s)
{
    char gid[2 * sizeof(union ibv_gid) + 1];
    for (size_t i = 0; i < sizeof(union ibv_gid); i++)
        snprintf(gid + 2 * i, 3, "%02x", s->device.gid.raw[i]);
    return control_say(&s->control, "hello 1 %s %" PRIxPTR " %" PRIx32 " %u %d %d", gid, (uintptr_t)s->device.area,
                       s->device.mr->rkey, s->device.mtu, s->device.atomics, s->device.ack_delay);
}

bool parse_hello(struct session *s, const char *line)
{
    char gid[2 * sizeof(union ibv_gid) + 1];
    unsigned atomics, byte;
    int fields = sscanf(line, "hello 1 %32s %" SCNx64 " %" SCNx32 " %u %u %d", gid, &s->peer_area, &s->peer_rkey,
                        &s->peer_mtu, &atomics, &s->peer_ack_delay);
    if (fields != 6 || strlen(gid) != sizeof gid - 1)
        return false;
    for (size_t i = 0; i < sizeof(union ibv_gid); i++) {
        if (sscanf(gid + 2 * i, "%2x", &byte) != 1)
            return false;
        s->peer_gid.raw[i] = (uint8_t)byte;
    }
    s->peer_atomics = atomics != 0;
    return true;
}

bool session_close(struct session *s, struct report *report)
{
    bool ok = true;
    for (int i = 0; i < SERVICES * MTUS; i++)
        ok &= link_close(&s->links[i / MTUS][i % MTUS], report);
    ok &= device_close(&s->device, report);
    control_close(&s->control);
    return ok;
}
