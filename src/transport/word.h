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

/*
 * Notes. Who has many words cannot look at all of them for each one that rises. Behind the first
 * `noted` bytes of such a region there is a bit for each of their lines: it is set behind the
 * signal, by whoever raises the word, and taken before the line's words are looked at.
 */
enum { FY_NOTED_LINE_BYTES = 64, FY_NOTES_LINES = 64 };

static inline uint64_t fy_notes_bytes(uint64_t noted)
{
    uint64_t n_lines = noted / FY_NOTED_LINE_BYTES;
    return (n_lines + FY_NOTES_LINES - 1) / FY_NOTES_LINES * sizeof(uint64_t);
}

static inline _Atomic uint64_t *fy_notes_at(void *part, uint64_t noted, uint64_t line)
{
    return fy_word_at(part, noted + line / FY_NOTES_LINES * sizeof(uint64_t));
}

static inline void fy_word_note(void *part, uint64_t noted, uint64_t offset)
{
    uint64_t line = offset / FY_NOTED_LINE_BYTES;
    if (offset < noted) {
        atomic_fetch_or(fy_notes_at(part, noted, line), UINT64_C(1) << line % FY_NOTES_LINES);
    }
}

/* 64 lines whose notes are taken; 0 where there are none, at no cost. */
static inline uint64_t fy_notes_take(void *part, uint64_t noted, uint64_t first_line)
{
    _Atomic uint64_t *notes = fy_notes_at(part, noted, first_line);
    return atomic_load_explicit(notes, memory_order_relaxed) == 0 ? 0 : atomic_exchange(notes, 0);
}

/* Whether a signal may lie there: else FERRY_ERR_MISUSE. */
ferry_status fy_word_check(const ferry_transport *transport, const ferry_region *region,
                           uint64_t offset, uint32_t rank, ferry_error *error);

#endif
