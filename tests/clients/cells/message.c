// The bytes of messages, and the guarded memory they lie in.
#include "cells.h"
#include <endian.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { GUARD = 64, GUARD_BYTE = 0xa5, CHUNK = 4096 };

// The finalizer of splitmix64: every bit of the result depends on every bit of the value.
uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

uint8_t first_byte(struct key key)
{
    return (uint8_t)(key.seed + key.serial);
}

// Bytes [offset, offset + length) of the message, each combined with `flip`.
static void message_bytes(uint8_t *out, size_t length, size_t offset, struct key key, uint8_t flip)
{
    uint64_t base = mix(key.seed + key.serial * 0x10001ull);
    uint64_t flips = flip * 0x0101010101010101ull;
    for (size_t done = 0; done < length;) {
        size_t skip = (offset + done) % 8;
        size_t n = 8 - skip < length - done ? 8 - skip : length - done;
        uint64_t word = htole64(mix(base + (offset + done) / 8) ^ flips);
        memcpy(out + done, (const uint8_t *)&word + skip, n);
        done += n;
    }
    if (offset == 0 && length > 0)
        out[0] = first_byte(key) ^ flip;
}

// The first byte that differs from the message, counted from `at`, or `length`.
static size_t difference(const uint8_t *at, size_t length, size_t offset, struct key key, uint8_t flip)
{
    uint8_t expected[CHUNK];
    for (size_t done = 0; done < length; done += CHUNK) {
        size_t n = length - done < CHUNK ? length - done : CHUNK;
        message_bytes(expected, n, offset + done, key, flip);
        if (memcmp(at + done, expected, n) != 0) {
            size_t i = 0;
            while (at[done + i] == expected[i])
                i++;
            return done + i;
        }
    }
    return length;
}

size_t slot_bytes(uint32_t size)
{
    size_t bytes = 4 * GUARD + GRH_BYTES + (size_t)size;
    return (bytes + 63) / 64 * 64;
}

static void add_piece(struct slot *slot, size_t *offset, uint32_t length)
{
    slot->piece[slot->pieces].at = slot->base + *offset;
    slot->piece[slot->pieces].length = length;
    slot->pieces++;
    *offset += length + GUARD;
}

struct slot slot_make(uint8_t *area, unsigned index, uint32_t size, uint32_t split, bool grh)
{
    struct slot slot = {.bytes = slot_bytes(size), .size = size, .grh = grh};
    size_t offset = GUARD;
    slot.base = area + index * slot.bytes;
    if (grh)
        add_piece(&slot, &offset, GRH_BYTES);
    if (split > 0 && split < size)
        add_piece(&slot, &offset, split);
    else
        split = 0;
    add_piece(&slot, &offset, size - split);
    return slot;
}

void slot_fill(const struct slot *slot, struct key key, bool blank)
{
    size_t offset = 0;
    memset(slot->base, GUARD_BYTE, slot->bytes);
    for (unsigned i = slot->grh ? 1 : 0; i < slot->pieces; i++) {
        message_bytes(slot->piece[i].at, slot->piece[i].length, offset, key, blank ? 0xff : 0);
        offset += slot->piece[i].length;
    }
}

int slot_sges(const struct slot *slot, uint32_t lkey, struct ibv_sge sges[3])
{
    int count = 0;
    for (unsigned i = 0; i < slot->pieces; i++) {
        if (slot->piece[i].length == 0)
            continue;
        sges[count++] = (struct ibv_sge){
            .addr = (uintptr_t)slot->piece[i].at, .length = slot->piece[i].length, .lkey = lkey};
    }
    return count;
}

static bool is_guard(const uint8_t *from, const uint8_t *to)
{
    while (from < to && *from == GUARD_BYTE)
        from++;
    return from == to;
}

bool slot_guards(const struct slot *slot, const char *whose, struct report *report)
{
    const uint8_t *from = slot->base;
    for (unsigned i = 0; i < slot->pieces; i++) {
        if (!is_guard(from, slot->piece[i].at))
            return wrong(report, WRONG_BYTES, "%s: bytes written before piece %u of %u", whose, i + 1, slot->pieces);
        from = slot->piece[i].at + slot->piece[i].length;
    }
    if (!is_guard(from, slot->base + slot->bytes))
        return wrong(report, WRONG_BYTES, "%s: bytes written behind the buffer", whose);
    return true;
}

bool slot_holds(const struct slot *slot, struct key key, const char *whose, struct report *report)
{
    size_t offset = 0;
    for (unsigned i = slot->grh ? 1 : 0; i < slot->pieces; i++) {
        size_t length = slot->piece[i].length;
        size_t at = difference(slot->piece[i].at, length, offset, key, 0);
        if (at != length)
            return wrong(report, WRONG_BYTES, "%s: message %u differs at byte %zu of %u", whose, key.serial,
                         offset + at, slot->size);
        offset += length;
    }
    return slot_guards(slot, whose, report);
}

bool slot_holds_shares(const struct slot *slot, struct key key, uint32_t mtu, struct report *report)
{
    const uint8_t *message = slot->piece[0].at; // memory for writes is never split
    for (uint32_t offset = 0; offset < slot->size; offset += mtu) {
        uint32_t length = slot->size - offset < mtu ? slot->size - offset : mtu;
        if (difference(message + offset, length, offset, key, 0) != length
            && difference(message + offset, length, offset, key, 0xff) != length)
            return wrong(report, WRONG_BYTES, "message %u: the packet at byte %u was written in part or wrongly",
                         key.serial, offset);
    }
    return slot_guards(slot, "written memory", report);
}

uint8_t slot_first(const struct slot *slot)
{
    unsigned i = slot->grh ? 1 : 0;
    return slot->size == 0 ? 0 : slot->piece[i].at[0];
}

bool slot_arrived(const struct slot *slot, struct key key)
{
    uint8_t expected;
    if (slot->size == 0)
        return true;
    // The device writes behind the compiler's back: look once, and at the rest only afterwards.
    uint8_t last = *(const volatile uint8_t *)(slot->piece[0].at + slot->size - 1);
    atomic_thread_fence(memory_order_acquire);
    message_bytes(&expected, 1, slot->size - 1, key, 0);
    return last == expected;
}
