/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes that are a box together differ in one dimension only. Sorted by everything else, with that
 * dimension last, they are neighbours: no box is held against all others.
 */
#include "plan/route.h"

#include "base/sort.h"

/* Two boxes by cell and by all dimensions other than the one along which they may join. */
static int compare_others(const fy_atom *a, const fy_atom *b, uint32_t along)
{
    if (a->cell != b->cell) {
        return a->cell < b->cell ? -1 : 1;
    }
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) { /* unused dimensions are 0 */
        if (d != along && a->src_global[d] != b->src_global[d]) {
            return a->src_global[d] < b->src_global[d] ? -1 : 1;
        }
        if (d != along && a->length[d] != b->length[d]) {
            return a->length[d] < b->length[d] ? -1 : 1;
        }
    }
    return 0;
}

static int compare_along(const fy_atom *a, const fy_atom *b, uint32_t along)
{
    uint64_t x = a->src_global[along], y = b->src_global[along];
    int others = compare_others(a, b, along);
    return others != 0 ? others : (x > y) - (x < y);
}

/* qsort hands its comparison nothing but the two items. */
#define COMPARE_ALONG(D)                                                                           \
    static int compare_along_##D(const void *a, const void *b)                                     \
    {                                                                                              \
        return compare_along(a, b, D);                                                             \
    }
COMPARE_ALONG(0)
COMPARE_ALONG(1)
COMPARE_ALONG(2)
COMPARE_ALONG(3)
COMPARE_ALONG(4)
COMPARE_ALONG(5)
COMPARE_ALONG(6)
COMPARE_ALONG(7)

static int (*const compare[FERRY_MAX_DIMS])(const void *, const void *) = {
    compare_along_0, compare_along_1, compare_along_2, compare_along_3,
    compare_along_4, compare_along_5, compare_along_6, compare_along_7};

/* Whether any boxes joined along a dimension. */
static bool join_along(fy_atoms *atoms, size_t first, uint32_t along)
{
    size_t kept = first;
    atoms->n_steps += atoms->n_items - first;
    fy_sort(atoms->items + first, atoms->n_items - first, sizeof *atoms->items, compare[along]);
    for (size_t i = first + 1; i < atoms->n_items; i++) {
        fy_atom *last = &atoms->items[kept];
        const fy_atom *next = &atoms->items[i];
        if (compare_others(last, next, along) == 0 &&
            last->src_global[along] + last->length[along] == next->src_global[along]) {
            last->length[along] += next->length[along];
            last->volume += next->volume;
        } else if (++kept != i) {
            atoms->items[kept] = *next;
        }
    }
    bool joined = kept + 1 < atoms->n_items;
    atoms->n_items = kept + 1;
    return joined;
}

/* Inner dimensions first: long rows are copied fastest. */
void fy_atoms_join(fy_atoms *atoms, size_t first, uint32_t n_dims)
{
    uint32_t n_done = 0; /* dimensions in a row along which nothing joins any more */
    for (uint32_t turn = 0; n_done < n_dims && atoms->n_items > first + 1; turn++) {
        n_done = join_along(atoms, first, n_dims - 1 - turn % n_dims) ? 1 : n_done + 1;
    }
}
