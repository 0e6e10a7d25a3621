/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of copy_<isa>.c: included once in each, with the compiler flags of that instruction set,
 * after these are defined: FY_COPY_STREAM, the name of the kernel; VECTOR, a type of 16, 32 or 64
 * bytes; LOAD(from), from any address; STREAM(to, vector), past the cache, to an address that is a
 * multiple of the vector's size.
 *
 * On some processors a thread that walks through one page after the other waits for the hardware's
 * prefetcher at the start of each, because that never looks beyond a page. Four pages side by side,
 * two lines of each in turn, hide those waits: a third faster, and faster than libc's best. On
 * others it is the other way round (base/cpu.h).
 */
#include "host/copy_isa.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LINE = 64, TURN = 2 * LINE, PAGE = 4096, MOST_PAGES = 4 };

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* n_bytes is a multiple of the line, and so is the address `to`. */
static ALWAYS_INLINE void stream(char *to, const char *from, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += LINE) {
        for (size_t i = 0; i < LINE; i += sizeof(VECTOR)) {
            STREAM(to + at + i, LOAD(from + at + i));
        }
    }
}

/* So many pages, one behind the other, side by side. */
static ALWAYS_INLINE void stream_pages(char *to, const char *from, size_t n_pages)
{
    for (size_t at = 0; at < PAGE; at += TURN) {
        for (size_t i = 0; i < n_pages; i++) {
            stream(to + i * PAGE + at, from + i * PAGE + at, TURN);
        }
    }
}

/* Most of so many bytes; returns how many. */
static ALWAYS_INLINE size_t stream_side_by_side(char *to, const char *from, size_t n_bytes)
{
    size_t at = 0;
    for (; n_bytes - at >= MOST_PAGES * PAGE; at += MOST_PAGES * PAGE) {
        stream_pages(to + at, from + at, MOST_PAGES);
    }
    if (n_bytes - at >= 3 * PAGE) {
        stream_pages(to + at, from + at, 3);
        at += 3 * PAGE;
    } else if (n_bytes - at >= 2 * PAGE) {
        stream_pages(to + at, from + at, 2);
        at += 2 * PAGE;
    }
    return at;
}

void FY_COPY_STREAM(void *to_bytes, const void *from_bytes, size_t n_bytes, unsigned n_streams)
{
    char *to = to_bytes;
    const char *from = from_bytes;
    size_t head = -(uintptr_t)to % LINE;
    if (n_bytes < head + LINE) {
        memcpy(to, from, n_bytes);
        return;
    }
    memcpy(to, from, head);
    size_t at = head;
    if (n_streams > 1) {
        at += stream_side_by_side(to + at, from + at, n_bytes - at);
    }
    size_t lines = (n_bytes - at) / LINE * LINE;
    stream(to + at, from + at, lines);
    at += lines;
    memcpy(to + at, from + at, n_bytes - at);
}
