/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_BELL_H
#define FY_WORLD_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * How one rank sleeps until another has done something: it rings the sleeper's bell after changing
 * memory that the sleeper looks at. Lies in memory that both map; all zero is a bell. Any number of
 * threads may sleep on one and any may ring.
 *
 * The rule that loses no wake-up: who changes memory does it with a sequentially consistent atomic
 * store (or read-modify-write) and then calls fy_bell_ring, which costs one load when nobody
 * sleeps; who sleeps announces itself before its last look at that memory, which must also be a
 * sequentially consistent load.
 */
typedef struct fy_bell {
    _Atomic uint32_t rings; /* the futex */
    _Atomic uint32_t sleepers;
} fy_bell;

/* Wakes all that sleep on it; a system call only if there are any. */
void fy_bell_ring(fy_bell *bell);

/*
 *     uint32_t seen = fy_bell_announce(bell);
 *     if (!ready()) fy_bell_sleep(bell, seen, most_ns);
 *     fy_bell_withdraw(bell);
 *
 * Sleeps until the bell rings after announce, or most_ns have passed (negative: no limit).
 */
uint32_t fy_bell_announce(fy_bell *bell);
void fy_bell_sleep(fy_bell *bell, uint32_t seen, int64_t most_ns);
void fy_bell_withdraw(fy_bell *bell);

/* The monotonic clock in nanoseconds. */
int64_t fy_now_ns(void);

/* Tells the core that this is a loop that waits. */
static inline void fy_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
