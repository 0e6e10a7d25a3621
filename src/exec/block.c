/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/block.h"

#include "exec/rows.h"

#include <stddef.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* With a constant length the compiler makes a load and a store of a row. */
static ALWAYS_INLINE void copy_rows(const fy_block *b, size_t row_bytes)
{
    const fy_block own = *b; /* what is stored could be it, as far as the compiler knows */
    char *to = own.to;
    const char *from = own.from;
#pragma GCC unroll 4
    for (uint64_t i = 0; i < own.n_rows; i++) {
        memcpy(to, from, row_bytes);
        to += own.to_distance;
        from += own.from_distance;
    }
}

/* Elements that end up side by side are stored word by word: stores are what such loops wait for.
 */
static ALWAYS_INLINE void join_rows(const fy_block *b, size_t row_bytes)
{
    enum { WORD = sizeof(uint64_t), KERNEL_FROM = 32 };
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first element is the lowest");
    const fy_rows_kernels *kernels = fy_rows_kernels_of(fy_cpu_isa());
    if (b->n_rows >= KERNEL_FROM && kernels->join != NULL) {
        kernels->join(b, false);
        return;
    }
    fy_block rest = *b;
    const uint64_t distance = b->from_distance;
    for (; rest.n_rows * row_bytes >= WORD; rest.n_rows -= WORD / row_bytes) {
        uint64_t word = 0;
#pragma GCC unroll 8
        for (size_t i = 0; i < WORD; i += row_bytes) {
            uint64_t element = 0;
            memcpy(&element, rest.from, row_bytes);
            word |= element << (8 * i);
            rest.from += distance;
        }
        memcpy(rest.to, &word, WORD);
        rest.to += WORD;
    }
    copy_rows(&rest, row_bytes);
}

static ALWAYS_INLINE void copy_elements(const fy_block *b, size_t row_bytes)
{
    if (b->to_distance == row_bytes) {
        join_rows(b, row_bytes);
    } else {
        copy_rows(b, row_bytes);
    }
}

/* Rows of n to 2 n bytes as two halves that may overlap: no call, and no branch for the rest. */
static ALWAYS_INLINE void copy_halves(const fy_block *b, size_t half)
{
    const fy_block own = *b;
    char *to = own.to;
    const char *from = own.from;
    size_t rest = (size_t)own.row_bytes - half;
    char first[32], second[32];
    for (uint64_t i = 0; i < own.n_rows; i++) {
        memcpy(first, from, half);
        memcpy(second, from + rest, half);
        memcpy(to, first, half);
        memcpy(to + rest, second, half);
        to += own.to_distance;
        from += own.from_distance;
    }
}

bool fy_block_is_appended(const fy_block *b)
{
    enum { LONGER_THAN = 8, KERNEL_FROM = 8 };
    return b->to_distance == b->row_bytes && b->from_distance >= b->row_bytes &&
           b->row_bytes > LONGER_THAN && b->row_bytes <= FY_APPEND_MOST &&
           b->n_rows >= KERNEL_FROM && fy_rows_kernels_of(fy_cpu_isa())->append != NULL;
}

void fy_block_copy_cached(const fy_block *b)
{
    switch (b->row_bytes) {
    case 1:
        copy_elements(b, 1);
        return;
    case 2:
        copy_elements(b, 2);
        return;
    case 4:
        copy_elements(b, 4);
        return;
    case 8:
        copy_rows(b, 8);
        return;
    case 16:
        copy_rows(b, 16);
        return;
    default:
        break;
    }
    if (fy_block_is_appended(b)) {
        fy_rows_kernels_of(fy_cpu_isa())->append(b, false);
    } else if (b->row_bytes < 4) {
        copy_halves(b, 2);
    } else if (b->row_bytes < 8) {
        copy_halves(b, 4);
    } else if (b->row_bytes < 16) {
        copy_halves(b, 8);
    } else if (b->row_bytes <= 32) {
        copy_halves(b, 16);
    } else if (b->row_bytes <= 64) {
        copy_halves(b, 32);
    } else {
        copy_rows(b, (size_t)b->row_bytes);
    }
}
