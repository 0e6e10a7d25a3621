/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/memory.h"

#include "base/checked.h"
#include "base/print.h"
#include "prove/held.h"

#include <ctype.h>
#include <string.h>

/* Sentences name at most so many bytes of a name. */
enum { NAME_BYTES = 256 };

static const fy_proof_memory *memory_of(const fy_proof_spec *spec)
{
    return spec->sides[FY_PROOF_DESTINATION].memory;
}

static uint64_t rank_at(const fy_proof_spec *spec, size_t position)
{
    return fy_proof_mesh_rank(&spec->sides[FY_PROOF_DESTINATION].mesh, position);
}

static const fy_proof_parameter *owned_at(const fy_proof_spec *spec, size_t owned)
{
    const fy_proof_memory *memory = memory_of(spec);
    return &memory->parameters[memory->owned[owned]];
}

/* Closes what is at hand and passes over what has nothing to be written, up to that owned one. */
static ferry_status go_on(fy_proof_progress *progress, const fy_proof_spec *spec, size_t owned,
                          ferry_error *error)
{
    const fy_proof_memory *memory = memory_of(spec);
    bool fills = progress->target.is_of_fills;
    FY_TRY(fy_proof_target_close(&progress->target, spec, progress->next_task, error));
    for (; progress->owned < owned; progress->owned++) {
        while (progress->owned >= memory->first[progress->position + 1]) {
            progress->position++;
        }
        const fy_proof_parameter *p = owned_at(spec, progress->owned);
        if (fy_proof_parameter_wants(p, fills)) {
            uint64_t rank = rank_at(spec, progress->position);
            progress->target.owned = progress->owned;
            FY_TRY(fy_proof_target_open(&progress->target, spec, p, rank, error));
            FY_TRY(fy_proof_target_close(&progress->target, spec, progress->next_task, error));
        }
    }
    return FERRY_OK;
}

/* Comes to an owned parameter that is ahead. */
static ferry_status come_to(fy_proof_progress *progress, const fy_proof_spec *spec, size_t owned,
                            ferry_error *error)
{
    FY_TRY(go_on(progress, spec, owned, error));
    while (owned >= memory_of(spec)->first[progress->position + 1]) {
        progress->position++;
    }
    progress->owned = owned + 1;
    progress->target.owned = owned;
    progress->n_parameters++;
    return fy_proof_target_open(&progress->target, spec, owned_at(spec, owned),
                                rank_at(spec, progress->position), error);
}

ferry_status fy_proof_find_parameter(const fy_proof_spec *spec, const fy_proof_move *move, int side,
                                     size_t position, const fy_proof_parameter **parameter_out,
                                     ferry_error *error)
{
    const fy_proof_memory *memory = spec->sides[side].memory;
    const char *name = move->places[side].parameter;
    size_t owned = fy_proof_memory_find(memory, position, name);
    if (owned == SIZE_MAX) {
        return fy_proof_move_fail(
            spec, move, error, "rank %llu has no parameter %.100s at the %s",
            (unsigned long long)(side == FY_PROOF_SOURCE ? move->from : move->to), name,
            spec->sides[side].name);
    }
    *parameter_out = &memory->parameters[memory->owned[owned]];
    return FERRY_OK;
}

ferry_status fy_proof_progress_move(fy_proof_progress *progress, const fy_proof_spec *spec,
                                    const fy_proof_move *move, size_t position, ferry_error *error)
{
    const fy_proof_place *place = &move->places[FY_PROOF_DESTINATION];
    const fy_proof_parameter *p;
    FY_TRY(fy_proof_find_parameter(spec, move, FY_PROOF_DESTINATION, position, &p, error));
    size_t owned = fy_proof_memory_find(memory_of(spec), position, place->parameter);
    bool is_at_hand = progress->target.parameter != NULL && owned + 1 == progress->owned;
    if (!is_at_hand && owned < progress->owned) {
        return fy_proof_move_fail(spec, move, error,
                                  "comes behind moves to rank %llu and %.100s, out of order",
                                  (unsigned long long)rank_at(spec, progress->position),
                                  owned_at(spec, progress->owned - 1)->name);
    }
    if (is_at_hand && place->offset < progress->last_offset) {
        return fy_proof_move_fail(spec, move, error,
                                  "comes behind a move to element %llu, out of order",
                                  (unsigned long long)progress->last_offset);
    }
    progress->last_offset = place->offset;
    return is_at_hand ? FERRY_OK : come_to(progress, spec, owned, error);
}

static ferry_status fail_fill(const fy_proof_progress *progress, const fy_proof_fill *fill,
                              ferry_error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static ferry_status fail_fill(const fy_proof_progress *progress, const fy_proof_fill *fill,
                              ferry_error *error, const char *format, ...)
{
    char what[400];
    va_list arguments;
    va_start(arguments, format);
    fy_vprint(what, sizeof what, format, arguments);
    va_end(arguments);
    return fy_fail(error, FERRY_ERR_PROOF, "fill %llu: element %llu of %.*s on rank %llu: %s",
                   (unsigned long long)progress->n_fills, (unsigned long long)fill->offset,
                   NAME_BYTES, fill->parameter, (unsigned long long)fill->rank, what);
}

static ferry_status follow_order(fy_proof_progress *progress, const fy_proof_spec *spec,
                                 const fy_proof_fill *fill, ferry_error *error)
{
    uint64_t position;
    const fy_proof_mesh *mesh = &spec->sides[FY_PROOF_DESTINATION].mesh;
    if (!fy_proof_mesh_find(mesh, fill->rank, &position)) {
        return fail_fill(progress, fill, error, "this rank is not in the destination");
    }
    size_t owned = fy_proof_memory_find(memory_of(spec), (size_t)position, fill->parameter);
    if (owned == SIZE_MAX) {
        return fail_fill(progress, fill, error, "the rank has no such parameter");
    }
    bool is_at_hand = progress->target.parameter != NULL && owned + 1 == progress->owned;
    if ((!is_at_hand && owned < progress->owned) ||
        (is_at_hand && fill->offset < progress->last_offset)) {
        return fail_fill(progress, fill, error, "stands behind a later one, out of order");
    }
    progress->last_offset = fill->offset;
    return is_at_hand ? FERRY_OK : come_to(progress, spec, owned, error);
}

static ferry_status check_inside(const fy_proof_progress *progress, const fy_proof_fill *fill,
                                 ferry_error *error)
{
    uint64_t last = fill->offset, way;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (fill->shape[d] == 0 || (fill->shape[d] > 1 && fill->strides[d] == 0)) {
            return fail_fill(progress, fill, error,
                             fill->shape[d] == 0 ? "is empty" : "has the stride 0");
        }
        if (!fy_mul(fill->shape[d] - 1, fill->strides[d], &way) || !fy_add(last, way, &last)) {
            last = UINT64_MAX;
        }
    }
    uint64_t elements = progress->target.parameter->elements;
    return last < elements
               ? FERRY_OK
               : fail_fill(progress, fill, error, "leaves the parameter, which has %llu elements",
                           (unsigned long long)elements);
}

/* Hexadecimal digits, where NULL is zero of any length. */
static bool are_bits(const char *bits, const char *wanted, uint32_t element_bits)
{
    size_t n = strlen(bits);
    for (size_t i = 0; i < n; i++) {
        if (tolower((unsigned char)bits[i]) !=
            (wanted == NULL ? '0' : tolower((unsigned char)wanted[i]))) {
            return false;
        }
    }
    return n == element_bits / 4;
}

/*
 * The elements of a part of the fill from its first one on that are a part of one box of the spec:
 * on each dimension those that its stride makes in a step of the box.
 */
static ferry_status find_cell(const fy_proof_progress *progress, const fy_proof_spec *spec,
                              const fy_proof_fill *fill, const uint64_t *at, uint64_t *length,
                              size_t *box_out, uint64_t *turns, uint64_t *counts,
                              ferry_error *error)
{
    const fy_proof_parameter *p = progress->target.parameter;
    uint64_t address = fill->offset;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        address += at[d] * fill->strides[d];
    }
    bool is_found = fy_proof_target_find(&progress->target, address, box_out, turns, spec->looks);
    const fy_proof_held *box = is_found ? &p->boxes[*box_out] : NULL;
    if (box == NULL || box->tensor != FY_PROOF_FILL) {
        return fail_fill(progress, fill, error, "fills element %llu, which is %s%.200s",
                         (unsigned long long)address, box == NULL ? "not to be filled" : "of ",
                         box == NULL ? "" : fy_proof_held_name(spec, box));
    }
    if (!are_bits(fill->bits, box->bits, p->dtype.element_bits)) {
        return fail_fill(progress, fill, error, "has the bits %.40s, but element %llu wants %.40s",
                         fill->bits, (unsigned long long)address,
                         box->bits == NULL ? "zero" : box->bits);
    }
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        counts[i] = 1;
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t most = 1;
        for (size_t i = 0; i < FY_PROOF_STEPS && length[d] > 1; i++) {
            if (box->steps[i].stride == fill->strides[d] && box->steps[i].count > 1 &&
                counts[i] == 1) {
                most = box->steps[i].count - turns[i];
                counts[i] = fy_min(length[d], most);
            }
        }
        length[d] = fy_min(length[d], most);
    }
    return FERRY_OK;
}

/* As fy_proof_check_runs does with a move. */
static ferry_status check_part(fy_proof_progress *progress, const fy_proof_spec *spec,
                               const fy_proof_fill *fill, const uint64_t *begin,
                               const uint64_t *length, ferry_error *error)
{
    uint64_t at[FY_PROOF_DIMS], left[FY_PROOF_DIMS], first[FY_PROOF_DIMS];
    memcpy(at, begin, sizeof at);
    memcpy(left, length, sizeof left);
    for (;;) {
        uint64_t turns[FY_PROOF_STEPS], counts[FY_PROOF_STEPS], twice, by;
        size_t box, d = 0;
        memcpy(first, left, sizeof first);
        FY_TRY(find_cell(progress, spec, fill, at, first, &box, turns, counts, error));
        while (d < FY_PROOF_DIMS && first[d] == left[d]) {
            d++;
        }
        if (d == FY_PROOF_DIMS) {
            ferry_status status = fy_proof_target_write(&progress->target, box, turns, counts,
                                                        progress->n_fills, &twice, &by, error);
            return status != FERRY_ERR_PROOF
                       ? status
                       : fail_fill(progress, fill, error,
                                   "element %llu is written twice, by fill %llu too",
                                   (unsigned long long)twice, (unsigned long long)by);
        }
        uint64_t cut = first[d];
        memcpy(first, left, sizeof first);
        first[d] = cut;
        FY_TRY(check_part(progress, spec, fill, at, first, error));
        at[d] += cut;
        left[d] -= cut;
    }
}

ferry_status fy_proof_progress_fill(fy_proof_progress *progress, const fy_proof_spec *spec,
                                    const fy_proof_fill *fill, ferry_error *error)
{
    const uint64_t begin[FY_PROOF_DIMS] = {0};
    FY_TRY(follow_order(progress, spec, fill, error));
    FY_TRY(check_inside(progress, fill, error));
    FY_TRY(check_part(progress, spec, fill, begin, fill->shape, error));
    progress->n_fills++;
    return FERRY_OK;
}

ferry_status fy_proof_progress_end(fy_proof_progress *progress, const fy_proof_spec *spec,
                                   ferry_error *error)
{
    const fy_proof_memory *memory = memory_of(spec);
    return go_on(progress, spec, memory->first[spec->sides[FY_PROOF_DESTINATION].mesh.n_ranks],
                 error);
}
