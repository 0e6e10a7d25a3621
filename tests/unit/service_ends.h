/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_SERVICE_ENDS_H
#define FERRY_TESTS_SERVICE_ENDS_H

#include "support/check.h"
#include "support/random.h"

#include "service/service.h"
#include "world/agree.h"

#include <string.h>

/* Boxes and registrations for the tests of a service's parts. */

static inline ferry_box flat_box(void *base, uint64_t buffer_bytes, uint64_t offset, uint64_t bytes)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = ferry_buffer_of(base, buffer_bytes);
    box.offset = offset;
    box.n_dims = 1;
    box.length[0] = bytes;
    box.stride[0] = 1;
    return box;
}

/* As a service's ranks agree on what they registered; `own` is how this one fared before. */
static inline ferry_status match_ends(ferry_world *world, const fy_registry *registry,
                                      ferry_status own, ferry_error *error)
{
    fy_hash128 sum = {0};
    if (own == FERRY_OK) {
        sum = fy_match_sum(registry, ferry_world_rank(world));
    }
    fy_field fields[] = {{.value = sum.low, .how = FY_SUM}, {.value = sum.high, .how = FY_SUM}};
    ferry_status status = fy_agree_on(world, FY_JOINT_SERVICE_SCHEDULE, 0, fields, 2, own, error);
    return status == FERRY_OK && (fields[0].value != 0 || fields[1].value != 0)
               ? fy_match_explain(world, registry, error)
               : status;
}

static inline void add_end(fy_registry *registry, bool is_send, uint64_t task_id, uint32_t peer,
                           const ferry_box *box)
{
    ferry_error error;
    must(fy_registry_add(registry, is_send, task_id, peer, box, &error), &error);
}

/* A strided box of at most n_dims dimensions within so many bytes. */
static inline ferry_box random_box(void *base, uint64_t buffer_bytes, uint32_t n_dims,
                                   uint64_t *state)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = ferry_buffer_of(base, buffer_bytes);
    box.element_bytes = 1 + random_below(state, 4);
    uint64_t extent = box.element_bytes;
    uint32_t n = random_below(state, n_dims + 1);
    for (uint32_t d = n; d-- > 0;) {
        uint64_t most = buffer_bytes / extent;
        box.stride[d] = extent + (random_below(state, 2) == 0 ? 0 : random_below(state, 7));
        uint64_t length = 1 + random_below(state, most < 6 ? (uint32_t)most : 6);
        while (length > 1 && (length - 1) * box.stride[d] + extent > buffer_bytes) {
            length--;
        }
        box.length[d] = length;
        extent += (length - 1) * box.stride[d];
    }
    box.n_dims = n;
    box.offset = random_below(state, (uint32_t)(buffer_bytes - extent) + 1);
    return box;
}

/* Marks the bytes of a box, one walk of all its elements; false if one was marked with `mark`. */
static inline bool mark_box(const ferry_box *box, unsigned char *map, unsigned char mark)
{
    uint64_t index[FERRY_MAX_DIMS] = {0};
    bool fresh = true;
    for (;;) {
        uint64_t at = box->offset;
        for (uint32_t d = 0; d < box->n_dims; d++) {
            at += index[d] * box->stride[d];
        }
        for (uint64_t i = 0; i < box->element_bytes; i++) {
            fresh = fresh && (map[at + i] & mark) == 0;
            map[at + i] |= mark;
        }
        uint32_t d = box->n_dims;
        while (d > 0 && ++index[d - 1] == box->length[d - 1]) {
            index[--d] = 0;
        }
        if (d == 0) {
            return fresh;
        }
    }
}

#endif
