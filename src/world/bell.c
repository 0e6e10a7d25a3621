/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_SECOND = 1000000000 };

_Static_assert(sizeof(_Atomic uint32_t) == 4, "a futex is 32 bits");

/*
 * Not FUTEX_PRIVATE_FLAG: ranks of other processes map the bell as well. The kernel orders nothing
 * here that the atomics do not order already.
 */
static void futex(_Atomic uint32_t *word, int operation, uint32_t value,
                  const struct timespec *limit)
{
    (void)syscall(SYS_futex, (uint32_t *)word, operation, value, limit, NULL, 0);
}

void fy_bell_ring(fy_bell *bell)
{
    if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) == 0) {
        return;
    }
    atomic_fetch_add_explicit(&bell->rings, 1, memory_order_seq_cst);
    futex(&bell->rings, FUTEX_WAKE, INT_MAX, NULL);
}

uint32_t fy_bell_announce(fy_bell *bell)
{
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    return atomic_load_explicit(&bell->rings, memory_order_seq_cst);
}

void fy_bell_sleep(fy_bell *bell, uint32_t seen, int64_t most_ns)
{
    struct timespec limit = {.tv_sec = (time_t)(most_ns / NS_PER_SECOND),
                             .tv_nsec = (long)(most_ns % NS_PER_SECOND)};
    if (most_ns != 0) {
        futex(&bell->rings, FUTEX_WAIT, seen, most_ns < 0 ? NULL : &limit);
    }
}

void fy_bell_withdraw(fy_bell *bell)
{
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_seq_cst);
}

int64_t fy_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}
