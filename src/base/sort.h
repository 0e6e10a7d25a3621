/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_SORT_H
#define FY_BASE_SORT_H

#include <stdint.h>
#include <stdlib.h>

/*
 * What is in order already, as much is that comes from a loop over addresses or numbers, costs one
 * look at each item. (And qsort may not be given NULL, which an empty growing array is.)
 */
static inline void fy_sort(void *items, size_t n_items, size_t item_bytes,
                           int (*compare)(const void *, const void *))
{
    const char *item = items;
    for (size_t i = 1; i < n_items; i++, item += item_bytes) {
        if (compare(item, item + item_bytes) > 0) {
            qsort(items, n_items, item_bytes, compare);
            return;
        }
    }
}

/* Of uint32_t, upwards. */
static inline int fy_compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/*
 * Declares first: the first number from begin up to end of which is_before, an expression of at, is
 * not true. It is true of all numbers until there, and of none from there on.
 */
#define FY_BISECT(type, first, begin, end, at, is_before)                                          \
    type first = (begin);                                                                          \
    for (type fy_bisect_end = (end); first < fy_bisect_end;) {                                     \
        type at = first + (fy_bisect_end - first) / 2;                                             \
        if (is_before) {                                                                           \
            first = at + 1;                                                                        \
        } else {                                                                                   \
            fy_bisect_end = at;                                                                    \
        }                                                                                          \
    }

/*
 * Declares last: the last number from begin up to end of which is_reached is true, or begin. It is
 * true of all numbers until there, and of none behind it.
 */
#define FY_BISECT_LAST(type, last, begin, end, at, is_reached)                                     \
    type last = (begin);                                                                           \
    for (type fy_bisect_end = (end); fy_bisect_end - last > 1;) {                                  \
        type at = last + (fy_bisect_end - last) / 2;                                               \
        if (is_reached) {                                                                          \
            last = at;                                                                             \
        } else {                                                                                   \
            fy_bisect_end = at;                                                                    \
        }                                                                                          \
    }

#endif
