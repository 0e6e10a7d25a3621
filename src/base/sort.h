/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_SORT_H
#define FY_BASE_SORT_H

#include <stdlib.h>

/* qsort may not be given a NULL array, even of no items; an empty growing array is NULL. */
static inline void fy_sort(void *items, size_t n_items, size_t item_bytes,
                           int (*compare)(const void *, const void *))
{
    if (n_items > 1) {
        qsort(items, n_items, item_bytes, compare);
    }
}

#endif
