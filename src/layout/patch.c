/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/patch.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <string.h>

/* Patches in the order in which those that may follow each other along a dimension are near. */
typedef struct ordered_patch {
    fy_patch *patch;
    uint32_t n_dims;
    uint32_t along;
    bool is_gone;
} ordered_patch;

/* All but the begin along the dimension. */
static int compare_lines(const fy_patch *x, const fy_patch *y, uint32_t n_dims, uint32_t along)
{
    if (x->group != y->group) {
        return x->group < y->group ? -1 : 1;
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        if (d == along) {
            continue;
        }
        if (x->box.begin[d] != y->box.begin[d]) {
            return x->box.begin[d] < y->box.begin[d] ? -1 : 1;
        }
        if (x->box.length[d] != y->box.length[d]) {
            return x->box.length[d] < y->box.length[d] ? -1 : 1;
        }
    }
    return 0;
}

static int compare_ordered(const void *a, const void *b)
{
    const ordered_patch *x = a, *y = b;
    const fy_patch *p = x->patch, *q = y->patch;
    uint32_t d = x->along;
    int lines = compare_lines(p, q, x->n_dims, d);
    if (lines != 0) {
        return lines;
    }
    if (p->box.begin[d] != q->box.begin[d]) {
        return p->box.begin[d] < q->box.begin[d] ? -1 : 1;
    }
    for (uint32_t m = 0; m < 2; m++) {
        if (p->offset[m] != q->offset[m]) {
            return p->offset[m] < q->offset[m] ? -1 : 1;
        }
    }
    return 0;
}

/* The stride along the dimension of both together; false: they do not go on in this memory. */
static bool find_stride(const fy_patch *x, const fy_patch *y, uint32_t m, uint32_t along,
                        uint32_t n_dims, uint64_t *stride_out)
{
    uint64_t x_length = x->box.length[along], stride;
    bool is_fixed = (x->fixed[m] >> along & 1) != 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        bool matters = d != along && (x->box.length[d] > 1 || (x->fixed[m] >> d & 1) != 0);
        if (matters && x->stride[m][d] != y->stride[m][d]) {
            return false;
        }
    }
    if (x_length > 1 || is_fixed) {
        stride = x->stride[m][along];
    } else if (y->box.length[along] > 1) {
        stride = y->stride[m][along];
    } else {
        stride = y->offset[m] - x->offset[m];
    }
    if ((y->box.length[along] > 1 || is_fixed) && y->stride[m][along] != stride) {
        return false;
    }
    *stride_out = stride;
    return y->offset[m] > x->offset[m] && y->offset[m] - x->offset[m] == x_length * stride;
}

static bool join_pair(fy_patch *x, const fy_patch *y, uint32_t along, uint32_t n_dims,
                      uint32_t n_memories)
{
    uint64_t stride[2];
    for (uint32_t m = 0; m < n_memories; m++) {
        if (!find_stride(x, y, m, along, n_dims, &stride[m])) {
            return false;
        }
    }
    for (uint32_t m = 0; m < n_memories; m++) {
        x->stride[m][along] = stride[m];
    }
    x->box.length[along] += y->box.length[along];
    return true;
}

/* A patch behind this one that goes on where it ends, or n. Few have the same box of a tensor. */
static size_t find_next(const ordered_patch *items, size_t at, size_t n, uint32_t n_memories)
{
    const fy_patch *x = items[at].patch;
    uint32_t along = items[at].along, n_dims = items[at].n_dims;
    uint64_t end = x->box.begin[along] + x->box.length[along];
    FY_BISECT(size_t, low, at + 1, n, middle,
              compare_lines(items[middle].patch, x, n_dims, along) == 0 &&
                  items[middle].patch->box.begin[along] < end);
    for (; low < n; low++) {
        const fy_patch *y = items[low].patch;
        if (compare_lines(x, y, n_dims, along) != 0 || y->box.begin[along] != end) {
            break;
        }
        fy_patch both = *x;
        if (!items[low].is_gone && join_pair(&both, y, along, n_dims, n_memories)) {
            return low;
        }
    }
    return n;
}

static bool join_along(ordered_patch *items, size_t n, uint32_t n_dims, uint32_t along,
                       uint32_t n_memories)
{
    bool joined = false;
    for (size_t i = 0; i < n; i++) {
        items[i].n_dims = n_dims;
        items[i].along = along;
    }
    fy_sort(items, n, sizeof *items, compare_ordered);
    for (size_t i = 0; i < n; i++) {
        if (items[i].is_gone) {
            continue;
        }
        for (size_t k = find_next(items, i, n, n_memories); k < n;
             k = find_next(items, i, n, n_memories)) {
            (void)join_pair(items[i].patch, items[k].patch, along, n_dims, n_memories);
            items[k].is_gone = true;
            joined = true;
        }
    }
    return joined;
}

ferry_status fy_patches_join(fy_patch *patches, size_t *n_inout, uint32_t n_dims,
                             uint32_t n_memories, ferry_error *error)
{
    size_t n = *n_inout;
    if (n < 2 || n_dims == 0) {
        return FERRY_OK;
    }
    ordered_patch *items = fy_alloc_zeroed(n, sizeof *items);
    fy_patch *left = fy_alloc(n, sizeof *left);
    if (items == NULL || left == NULL) {
        fy_free(items);
        fy_free(left);
        return fy_fail_no_memory(error, "boxes that may be one");
    }
    for (size_t i = 0; i < n; i++) {
        items[i].patch = &patches[i];
    }
    uint32_t idle = 0; /* dimensions in a row along which nothing joins any more */
    for (uint32_t turn = 0; idle < n_dims && n > 1; turn++) {
        bool joined = join_along(items, n, n_dims, n_dims - 1 - turn % n_dims, n_memories);
        idle = joined ? 1 : idle + 1;
        size_t kept = 0;
        for (size_t i = 0; joined && i < n; i++) {
            if (!items[i].is_gone) {
                items[kept++] = items[i];
            }
        }
        n = joined ? kept : n;
    }
    for (size_t i = 0; i < n; i++) {
        left[i] = *items[i].patch;
    }
    memcpy(patches, left, n * sizeof *left);
    *n_inout = n;
    fy_free(items);
    fy_free(left);
    return FERRY_OK;
}
