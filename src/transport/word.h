/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_WORD_H
#define FY_TRANSPORT_WORD_H

#include "transport/transport.h"

#include <stdatomic.h>
#include <stdint.h>

/* The words of signals: 64 bits in symmetric memory, which ranks change and look at. */

static inline _Atomic uint64_t *fy_word_at(void *part, uint64_t offset)
{
    return (_Atomic uint64_t *)(void *)((char *)part + offset);
}

/*
 * Sequentially consistent, as the rule of bells asks: what this thread wrote before is seen by who
 * sees the signal. Ring the rank's bell then.
 */
static inline void fy_word_raise(_Atomic uint64_t *word, uint64_t value, uint32_t op)
{
    if (op == FERRY_SIGNAL_ADD) {
        atomic_fetch_add(word, value);
    } else {
        atomic_store(word, value);
    }
}

/* Whether a signal may lie there: else FERRY_ERR_MISUSE. */
ferry_status fy_word_check(const ferry_transport *transport, const ferry_region *region,
                           uint64_t offset, uint32_t rank, ferry_error *error);

#endif
