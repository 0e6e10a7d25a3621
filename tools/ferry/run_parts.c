/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "run_parts.h"

#include "steps.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what visits tell ---- */

/* One place more at the end of a list. NULL: there is no memory, and the error says so. */
static void *add_item(void **items, size_t *n, size_t *capacity, size_t bytes, ferry_error *error)
{
    if (*n == *capacity) {
        size_t wanted = 2 * *capacity + 16;
        void *grown = realloc(*items, wanted * bytes);
        if (grown == NULL) {
            snprintf(error->message, sizeof error->message, "out of memory");
            return NULL;
        }
        *items = grown;
        *capacity = wanted;
    }
    return (char *)*items + (*n)++ * bytes;
}

/* named: with the tensors of both sides. */
static ferry_status add_part(run_parts *list, const run_part *named, const uint64_t *at,
                             const uint64_t *shape, const uint64_t *begin,
                             const uint64_t *source_global)
{
    void *items = list->parts;
    run_part *place =
        add_item(&items, &list->n_parts, &list->parts_capacity, sizeof *place, list->error);
    list->parts = items;
    if (place == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    *place = *named;
    memcpy(place->at, at, sizeof place->at);
    memcpy(place->shape, shape, sizeof place->shape);
    memcpy(place->begin, begin, sizeof place->begin);
    memcpy(place->source_global, source_global, sizeof place->source_global);
    return FERRY_OK;
}

static ferry_status add_tensor(run_parts *list, const char *tensor, const uint64_t *global,
                               uint32_t n_dims)
{
    size_t n = list->n_tensors;
    if (n > 0 && strcmp(list->tensors[n - 1].tensor, tensor) == 0) {
        return FERRY_OK;
    }
    void *items = list->tensors;
    run_parted *place =
        add_item(&items, &list->n_tensors, &list->tensors_capacity, sizeof *place, list->error);
    list->tensors = items;
    if (place == NULL) {
        return FERRY_ERR_NO_MEMORY;
    }
    *place = (run_parted){.tensor = tensor, .n_dims = n_dims};
    memcpy(place->global, global, n_dims * sizeof *global);
    return FERRY_OK;
}

static bool is_codes(const ferry_conversion *conversion)
{
    return conversion != NULL && conversion->kind == FERRY_CONVERSION_CODES;
}

ferry_status run_parts_note_shard(void *context, const ferry_shard *shard)
{
    run_parts *list = context;
    size_t n = is_codes(shard->conversion) ? ferry_shard_origin_count(shard) : 0;
    for (size_t i = 0; i < n; i++) {
        ferry_origin origin = FERRY_ORIGIN_INIT;
        FY_TRY(ferry_shard_origin_at(shard, i, &origin, list->error));
        if (strcmp(origin.source, shard->tensor) == 0) {
            return FERRY_OK;
        }
        run_part named = {.tensor = shard->tensor,
                          .source = origin.source,
                          .n_dims = shard->n_dims,
                          .source_n_dims = origin.source_n_dims};
        FY_TRY(
            add_part(list, &named, origin.at, origin.length, origin.begin, origin.source_global));
    }
    return n == 0 ? FERRY_OK : add_tensor(list, shard->tensor, shard->global, shard->n_dims);
}

/* A rank may have codes without their scales, but no scales without their codes. */
ferry_status run_parts_note_box(void *context, const ferry_held_box *box)
{
    run_parts *list = context;
    if (!is_codes(box->conversion) || strcmp(box->source, box->tensor) == 0) {
        return FERRY_OK;
    }
    run_part named = {.tensor = box->tensor,
                      .source = box->source,
                      .n_dims = box->n_dims,
                      .source_n_dims = box->source_n_dims};
    FY_TRY(add_tensor(list, box->values, box->values_global, box->n_dims));
    return add_part(list, &named, box->begin, box->shape, box->source_begin, box->source_global);
}

/* ---- in order ---- */

static int compare_indices(const uint64_t *a, const uint64_t *b, uint32_t n_dims)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        if (a[d] != b[d]) {
            return a[d] < b[d] ? -1 : 1;
        }
    }
    return 0;
}

static int compare_parts(const void *a, const void *b)
{
    const run_part *x = a, *y = b;
    int order = strcmp(x->tensor, y->tensor);
    order = order != 0 ? order : compare_indices(x->at, y->at, x->n_dims);
    return order != 0 ? order : compare_indices(x->shape, y->shape, x->n_dims);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const run_parted *)a)->tensor, ((const run_parted *)b)->tensor);
}

/* A tensor that a rank has twice, or has codes of in several boxes, is told as often. */
static size_t drop_repeats(void *items, size_t n, size_t bytes,
                           int (*compare)(const void *, const void *))
{
    char *all = items;
    size_t kept = n > 0 ? 1 : 0;
    if (n > 1) {
        qsort(items, n, bytes, compare);
    }
    for (size_t i = 1; i < n; i++) {
        if (compare(all + (kept - 1) * bytes, all + i * bytes) != 0) {
            memmove(all + kept++ * bytes, all + i * bytes, bytes);
        }
    }
    return kept;
}

void run_parts_settle(run_parts *list)
{
    list->n_parts = drop_repeats(list->parts, list->n_parts, sizeof *list->parts, compare_parts);
    list->n_tensors =
        drop_repeats(list->tensors, list->n_tensors, sizeof *list->tensors, compare_tensors);
    for (size_t p = 0, t = 0; p < list->n_parts && t < list->n_tensors;) {
        run_parted *tensor = &list->tensors[t];
        int order = strcmp(list->parts[p].tensor, tensor->tensor);
        if (order == 0 && tensor->parts == NULL) {
            tensor->parts = &list->parts[p];
        }
        tensor->n_parts += order == 0;
        p += order <= 0;
        t += order > 0;
    }
}

void run_parts_free(run_parts *list)
{
    free(list->parts);
    free(list->tensors);
    *list = (run_parts){.parts = NULL};
}

/* ---- values ---- */

run_parted *run_parts_find(const run_parts *list, const char *tensor)
{
    run_parted wanted = {.tensor = tensor};
    run_parted *found = list->n_tensors == 0 ? NULL
                                             : bsearch(&wanted, list->tensors, list->n_tensors,
                                                       sizeof *list->tensors, compare_tensors);
    return found == NULL || found->n_parts == 0 ? NULL : found;
}

static bool has_index(const run_part *part, const uint64_t *index)
{
    for (uint32_t d = 0; d < part->n_dims; d++) {
        if (index[d] < part->at[d] || index[d] - part->at[d] >= part->shape[d]) {
            return false;
        }
    }
    return true;
}

/* It begins at the index or before, so it is among those up to the last one that does: nearly
 * always it is that one, or one beside it. */
static const run_part *part_at(run_parted *tensor, const uint64_t *index)
{
    for (size_t next = tensor->last; next < tensor->n_parts && next < tensor->last + 2; next++) {
        if (has_index(&tensor->parts[next], index)) {
            tensor->last = next;
            return &tensor->parts[next];
        }
    }
    size_t low = 0, high = tensor->n_parts;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        bool is_before = compare_indices(tensor->parts[middle].at, index, tensor->n_dims) <= 0;
        low = is_before ? middle + 1 : low;
        high = is_before ? high : middle;
    }
    while (low > 0 && !has_index(&tensor->parts[low - 1], index)) {
        low--;
    }
    tensor->last = low > 0 ? low - 1 : tensor->last;
    return low > 0 ? &tensor->parts[low - 1] : NULL;
}

static uint64_t source_element(const run_part *part, const uint64_t *index)
{
    uint64_t element = 0;
    for (uint32_t s = 0; s < part->source_n_dims; s++) {
        uint32_t behind = part->source_n_dims - s;
        uint32_t d = part->n_dims - behind;
        uint64_t i = behind <= part->n_dims ? index[d] - part->at[d] : 0;
        element = element * part->source_global[s] + part->begin[s] + i;
    }
    return element;
}

/* Of n values from an index on, those of one row of one part. */
static uint64_t fill_row(run_parted *tensor, char *memory, const uint64_t *index, uint64_t n,
                         uint64_t bytes)
{
    uint32_t last = tensor->n_dims - 1;
    const run_part *part = part_at(tensor, index);
    if (part == NULL) { /* of no code of the rank: whatever is taken will be found to differ */
        run_pattern_fill(memory, tensor->key, 0, bytes, 0);
        return 1;
    }
    uint64_t left = part->at[last] + part->shape[last] - index[last];
    uint64_t here = n < left ? n : left;
    run_pattern_fill(memory, part->key, source_element(part, index) * bytes, here * bytes, 0);
    return here;
}

void run_parts_fill(run_parted *tensor, char *memory, uint64_t first, uint64_t n, uint64_t bytes)
{
    for (uint64_t done = 0; done < n;) {
        uint64_t index[FERRY_MAX_DIMS] = {0}, left = first + done;
        for (uint32_t d = tensor->n_dims; d-- > 0;) {
            index[d] = left % tensor->global[d];
            left /= tensor->global[d];
        }
        done += fill_row(tensor, memory + done * bytes, index, n - done, bytes);
    }
}
