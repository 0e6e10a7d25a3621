/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/patch.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <string.h>

/*
 * Patches in the order in which those that follow each other along a dimension are found: by line,
 * by begin, and then by where their predecessor ends, as far as they tell. The last memory, in
 * which nothing lies twice, comes first.
 */
typedef struct ordered_patch {
    fy_patch *patch;
    uint32_t n_dims;
    uint32_t n_memories;
    uint32_t along;
    bool is_long;      /* of more than one element, so that it has a stride along the dimension */
    uint64_t place[2]; /* of a long one: the place before its first; else its own */
} ordered_patch;

static int compare_u64(uint64_t x, uint64_t y)
{
    return (x > y) - (x < y);
}

static bool matters(const fy_patch *patch, uint32_t m, uint32_t dim)
{
    return patch->box.length[dim] > 1 || (patch->fixed[m] >> dim & 1) != 0;
}

/* All but where they are along the dimension. */
static int compare_lines(const ordered_patch *a, const ordered_patch *b)
{
    const fy_patch *x = a->patch, *y = b->patch;
    int order = compare_u64(x->group, y->group);
    for (uint32_t d = 0; d < a->n_dims && order == 0; d++) {
        if (d != a->along) {
            order = compare_u64(x->box.begin[d], y->box.begin[d]);
            order = order != 0 ? order : compare_u64(x->box.length[d], y->box.length[d]);
        }
    }
    for (uint32_t m = 0; m < a->n_memories && order == 0; m++) {
        order = compare_u64(x->fixed[m], y->fixed[m]);
        for (uint32_t d = 0; d < a->n_dims && order == 0; d++) {
            if (d != a->along && matters(x, m, d)) {
                order = compare_u64(x->stride[m][d], y->stride[m][d]);
            }
        }
    }
    return order;
}

static int compare_ordered(const void *a, const void *b)
{
    const ordered_patch *x = a, *y = b;
    uint32_t d = x->along;
    int order = compare_lines(x, y);
    order = order != 0 ? order : compare_u64(x->patch->box.begin[d], y->patch->box.begin[d]);
    order = order != 0 ? order : compare_u64(x->is_long, y->is_long);
    for (uint32_t m = x->n_memories; m-- > 0 && order == 0;) {
        order = compare_u64(x->place[m], y->place[m]);
    }
    for (uint32_t m = x->n_memories; m-- > 0 && order == 0 && x->is_long;) {
        order = compare_u64(x->patch->stride[m][d], y->patch->stride[m][d]);
    }
    return order;
}

/* The stride along the dimension of both together; false: they do not go on in this memory. */
static bool find_stride(const fy_patch *x, const fy_patch *y, uint32_t m, uint32_t along,
                        uint32_t n_dims, uint64_t *stride_out)
{
    uint64_t x_length = x->box.length[along], stride;
    bool is_fixed = (x->fixed[m] >> along & 1) != 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        if (d != along && matters(x, m, d) && x->stride[m][d] != y->stride[m][d]) {
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

typedef struct ordering {
    ordered_patch *items;
    size_t n;
    size_t *alive; /* [n + 1] the first from here on that no other has become part of, or nearer */
} ordering;

static size_t first_alive(const ordering *o, size_t at)
{
    while (o->alive[at] != at) {
        o->alive[at] = o->alive[o->alive[at]];
        at = o->alive[at];
    }
    return at;
}

/* The first behind `from` that is not before the probe and still there; n: there is none. */
static size_t find_from(const ordering *o, size_t from, const ordered_patch *probe)
{
    FY_BISECT(size_t, low, from, o->n, middle, compare_ordered(&o->items[middle], probe) < 0);
    return first_alive(o, low);
}

/* Whether an item begins as the probe does, and is long as it is. */
static bool is_near(const ordering *o, size_t at, const ordered_patch *probe)
{
    const ordered_patch *item = &o->items[at];
    return at < o->n && item->is_long == probe->is_long && compare_lines(item, probe) == 0 &&
           item->patch->box.begin[probe->along] == probe->patch->box.begin[probe->along];
}

enum { MOST_LOOKS = 64 }; /* at places that are alike in one memory and not in the other */

/* One that goes on where the item ends, of those that are long, or of those that are not. */
static size_t find_alike(const ordering *o, size_t from, const ordered_patch *item, bool is_long)
{
    const fy_patch *x = item->patch;
    uint32_t along = item->along, last = item->n_memories - 1;
    uint64_t length = x->box.length[along];
    fy_patch begin = *x;
    ordered_patch probe = *item;
    probe.patch = &begin;
    probe.is_long = is_long;
    begin.box.begin[along] += length;
    for (uint32_t m = 0; m < item->n_memories; m++) {
        bool has_stride = matters(x, m, along);
        uint64_t stride = has_stride ? x->stride[m][along] : 0;
        begin.stride[m][along] = stride;
        probe.place[m] = x->offset[m] + (length - 1) * stride;
        if (!is_long) {
            probe.place[m] += has_stride ? stride : 1; /* or anywhere further on */
        }
    }
    bool is_exact = last == 0 || is_long || matters(x, last, along);
    uint64_t least = probe.place[0];
    for (uint32_t look = 0; look < (is_exact ? 1 : MOST_LOOKS); look++) {
        size_t found = find_from(o, from, &probe);
        if (!is_near(o, found, &probe)) {
            break;
        }
        fy_patch both = *x;
        const ordered_patch *its = &o->items[found];
        if (join_pair(&both, its->patch, along, item->n_dims, item->n_memories)) {
            return found;
        }
        probe.place[last] = its->place[last] + (its->place[0] < least ? 0 : 1);
        probe.place[0] = least;
    }
    return o->n;
}

/* A patch behind this one that goes on where it ends, or n: of two, the nearer one. */
static size_t find_next(const ordering *o, size_t at)
{
    const ordered_patch *item = &o->items[at];
    uint32_t last = item->n_memories - 1;
    size_t one = find_alike(o, at + 1, item, false), more = find_alike(o, at + 1, item, true);
    if (one == o->n || more == o->n) {
        return one == o->n ? more : one;
    }
    return o->items[one].patch->offset[last] < o->items[more].patch->offset[last] ? one : more;
}

static void order_items(ordering *o, uint32_t along)
{
    for (size_t i = 0; i < o->n; i++) {
        ordered_patch *item = &o->items[i];
        const fy_patch *patch = item->patch;
        item->along = along;
        item->is_long = patch->box.length[along] > 1;
        for (uint32_t m = 0; m < item->n_memories; m++) {
            item->place[m] = patch->offset[m] - (item->is_long ? patch->stride[m][along] : 0);
        }
        o->alive[i] = i;
    }
    o->alive[o->n] = o->n;
    fy_sort(o->items, o->n, sizeof *o->items, compare_ordered);
}

/* False: nothing joins along the dimension. */
static bool join_along(ordering *o, uint32_t along)
{
    size_t kept = 0;
    order_items(o, along);
    for (size_t i = 0; i < o->n; i++) {
        const ordered_patch *item = &o->items[i];
        if (o->alive[i] != i) {
            continue;
        }
        for (size_t k = find_next(o, i); k < o->n; k = find_next(o, i)) {
            (void)join_pair(item->patch, o->items[k].patch, along, item->n_dims, item->n_memories);
            o->alive[k] = k + 1;
        }
    }
    for (size_t i = 0; i < o->n; i++) {
        if (o->alive[i] == i) {
            o->items[kept++] = o->items[i];
        }
    }
    bool joined = kept < o->n;
    o->n = kept;
    return joined;
}

ferry_status fy_patches_join(fy_patch *patches, size_t *n_inout, uint32_t n_dims,
                             uint32_t n_memories, ferry_error *error)
{
    ordering o = {.n = *n_inout};
    if (o.n < 2 || n_dims == 0) {
        return FERRY_OK;
    }
    o.items = fy_alloc(o.n, sizeof *o.items);
    o.alive = fy_alloc(o.n + 1, sizeof *o.alive);
    fy_patch *left = fy_alloc(o.n, sizeof *left);
    ferry_status status = fy_check_memory(o.items != NULL && o.alive != NULL && left != NULL,
                                          "boxes that may be one", error);
    for (size_t i = 0; status == FERRY_OK && i < o.n; i++) {
        o.items[i] =
            (ordered_patch){.patch = &patches[i], .n_dims = n_dims, .n_memories = n_memories};
    }
    uint32_t idle = 0; /* dimensions in a row along which nothing joins any more */
    for (uint32_t turn = 0; status == FERRY_OK && idle < n_dims && o.n > 1; turn++) {
        idle = join_along(&o, n_dims - 1 - turn % n_dims) ? 1 : idle + 1;
    }
    if (status == FERRY_OK) {
        for (size_t i = 0; i < o.n; i++) {
            left[i] = *o.items[i].patch;
        }
        memcpy(patches, left, o.n * sizeof *left);
        *n_inout = o.n;
    }
    fy_free(o.items);
    fy_free(o.alive);
    fy_free(left);
    return status;
}
