/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/runs.h"

#include "base/checked.h"
#include "prove/held.h"

#include <string.h>

static const char *const side_names[FY_PROOF_SIDES] = {"source", "destination"};

/* Where an element of a move is in its tensor, and how many follow it on each dimension. */
typedef struct stretch {
    uint64_t element[FY_PROOF_DIMS];
    uint64_t length[FY_PROOF_DIMS];
    size_t box; /* of a parameter */
    uint64_t turns[FY_PROOF_STEPS];
} stretch;

static uint32_t tensor_of(const fy_proof_move *move, int side)
{
    return side == FY_PROOF_SOURCE ? move->source : move->tensor;
}

static const uint64_t *begin_of(const fy_proof_move *move, int side)
{
    return side == FY_PROOF_SOURCE ? move->src : move->dst;
}

static void run_of_shard(const fy_proof_ends *ends, int side, const uint64_t *at, stretch *r)
{
    const fy_proof_shard *shard = ends->sides[side].shard;
    const uint64_t *begin = begin_of(ends->move, side);
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t local = begin[d] + at[d];
        const fy_proof_piece *piece =
            &shard->dims[d].items[fy_proof_pieces_find(&shard->dims[d], local)];
        r->element[d] = piece->global + (local - piece->local);
        r->length[d] = piece->length - (local - piece->local);
    }
}

static ferry_status fail_place(const fy_proof_ends *ends, int side, uint64_t address,
                               const fy_proof_held *box, ferry_error *error)
{
    const char *wanted = ends->spec->tensors[tensor_of(ends->move, side)].name;
    const char *found = box == NULL ? "of nothing" : fy_proof_held_name(ends->spec, box);
    return fy_proof_move_fail(
        ends->spec, ends->move, error,
        "element %llu of the %s parameter %.100s is %s%.100s, not of %.100s",
        (unsigned long long)address, side_names[side], ends->sides[side].parameter->name,
        box == NULL || box->tensor == FY_PROOF_FILL ? "" : "of ", found, wanted);
}

static ferry_status run_of_memory(const fy_proof_ends *ends, int side, const uint64_t *at,
                                  stretch *r, ferry_error *error)
{
    const fy_proof_move *move = ends->move;
    const fy_proof_parameter *p = ends->sides[side].parameter;
    const uint64_t *strides = move->places[side].strides;
    uint64_t address = move->places[side].offset;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        address += at[d] * strides[d]; /* inside the parameter */
    }
    bool is_found =
        side == FY_PROOF_DESTINATION
            ? fy_proof_target_find(ends->target, address, &r->box, r->turns, ends->spec->looks)
            : fy_proof_lattice_find(p->lattice, address, &r->box, r->turns, ends->spec->looks);
    const fy_proof_held *box = is_found ? &p->boxes[r->box] : NULL;
    if (box == NULL || box->tensor != tensor_of(move, side)) {
        return fail_place(ends, side, address, box, error);
    }
    fy_proof_held_element(box, r->turns, r->element);
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        const fy_proof_step *step = &box->steps[FY_PROOF_LOOPS + d];
        r->length[d] = step->stride == strides[d] ? step->count - r->turns[FY_PROOF_LOOPS + d] : 1;
    }
    return FERRY_OK;
}

static ferry_status find_run(const fy_proof_ends *ends, int side, const uint64_t *at, stretch *r,
                             ferry_error *error)
{
    if (ends->sides[side].shard != NULL) {
        run_of_shard(ends, side, at, r);
        return FERRY_OK;
    }
    return run_of_memory(ends, side, at, r, error);
}

/* A move under way: where it begins in both tensors, and its runs at hand. */
typedef struct walk {
    const fy_proof_ends *ends;
    uint64_t first[FY_PROOF_SIDES][FY_PROOF_DIMS];
    bool is_begun;
    stretch runs[FY_PROOF_SIDES];
    size_t feed; /* the box of the tensor's source that was found last */
} walk;

/* Both sides of a move are a box of their tensors. */
static ferry_status check_straight(walk *w, const uint64_t *at, ferry_error *error)
{
    const fy_proof_move *move = w->ends->move;
    for (int side = 0; side < FY_PROOF_SIDES; side++) {
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            uint64_t wanted = w->first[side][d] + at[d];
            const fy_proof_tensor *tensor = &w->ends->spec->tensors[tensor_of(move, side)];
            if (w->is_begun && w->runs[side].element[d] != wanted) {
                return fy_proof_move_fail(
                    w->ends->spec, move, error,
                    "the %s box jumps in the global index on dim %d of %.100s, to %llu instead of "
                    "%llu: it should be two moves",
                    side_names[side], (int)d - (FY_PROOF_DIMS - (int)tensor->entry->n_dims),
                    tensor->name, (unsigned long long)w->runs[side].element[d],
                    (unsigned long long)wanted);
            }
            w->first[side][d] = w->runs[side].element[d] - at[d];
        }
    }
    w->is_begun = true;
    return FERRY_OK;
}

/* The element that the receiver wants is the one that the sender has; both for how long. */
static ferry_status check_first(walk *w, const uint64_t *at, uint64_t *length, ferry_error *error)
{
    const fy_proof_ends *ends = w->ends;
    const fy_proof_move *move = ends->move;
    const fy_proof_entry *entry = ends->spec->tensors[move->tensor].entry;
    stretch *to = &w->runs[FY_PROOF_DESTINATION], *from = &w->runs[FY_PROOF_SOURCE];
    FY_TRY(find_run(ends, FY_PROOF_DESTINATION, at, to, error));
    FY_TRY(find_run(ends, FY_PROOF_SOURCE, at, from, error));
    w->feed = fy_proof_box_at(ends->spec, entry, to->element, w->feed);
    const fy_proof_box *feed = &entry->boxes[w->feed];
    bool is_fed = fy_proof_spec_source(ends->spec, move->tensor, w->feed) == move->source;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t inside = to->element[d] - feed->at[d];
        is_fed = is_fed && from->element[d] - feed->begin[d] == inside;
        length[d] = fy_min(length[d], feed->shape[d] - inside);
        length[d] = fy_min(length[d], fy_min(to->length[d], from->length[d]));
    }
    if (!is_fed) {
        fy_proof_pair pair = {.spec = ends->spec, .move = move};
        return fy_proof_fail_content(&pair, to->element, from->element, error);
    }
    return check_straight(w, at, error);
}

static ferry_status write_run(const walk *w, const uint64_t *length, ferry_error *error)
{
    const fy_proof_ends *ends = w->ends;
    const stretch *to = &w->runs[FY_PROOF_DESTINATION];
    uint64_t counts[FY_PROOF_STEPS], twice, by;
    if (ends->target == NULL) {
        return FERRY_OK;
    }
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        counts[i] = i < FY_PROOF_LOOPS ? 1 : length[i - FY_PROOF_LOOPS];
    }
    ferry_status status = fy_proof_target_write(ends->target, to->box, to->turns, counts,
                                                ends->move->task_id, &twice, &by, error);
    return status != FERRY_ERR_PROOF
               ? status
               : fy_proof_move_fail(ends->spec, ends->move, error,
                                    "element %llu of %.100s is written twice, by task %llu too",
                                    (unsigned long long)twice, ends->target->parameter->name,
                                    (unsigned long long)by);
}

/*
 * What is left of a part of the move behind its first run is cut off dimension by dimension, so the
 * depth is no more than theirs.
 */
static ferry_status check_part(walk *w, const uint64_t *begin, const uint64_t *length,
                               ferry_error *error)
{
    uint64_t at[FY_PROOF_DIMS], left[FY_PROOF_DIMS], first[FY_PROOF_DIMS];
    memcpy(at, begin, sizeof at);
    memcpy(left, length, sizeof left);
    for (;;) {
        memcpy(first, left, sizeof first);
        FY_TRY(check_first(w, at, first, error));
        size_t d = 0;
        while (d < FY_PROOF_DIMS && first[d] == left[d]) {
            d++;
        }
        if (d == FY_PROOF_DIMS) {
            return write_run(w, left, error);
        }
        uint64_t cut = first[d];
        memcpy(first, left, sizeof first);
        first[d] = cut;
        FY_TRY(check_part(w, at, first, error));
        at[d] += cut;
        left[d] -= cut;
    }
}

ferry_status fy_proof_check_runs(const fy_proof_ends *ends, ferry_error *error)
{
    const uint64_t begin[FY_PROOF_DIMS] = {0};
    walk w = {.ends = ends};
    return check_part(&w, begin, ends->move->length, error);
}

/* The strides of a side's memory, and its first element, in elements. */
static uint64_t strides_of(const fy_proof_ends *ends, int side, uint64_t *strides)
{
    const fy_proof_shard *shard = ends->sides[side].shard;
    uint64_t stride = 1;
    if (shard == NULL) {
        memcpy(strides, ends->move->places[side].strides, FY_PROOF_DIMS * sizeof *strides);
        return ends->move->places[side].offset;
    }
    for (size_t d = FY_PROOF_DIMS; d-- > 0;) {
        strides[d] = stride;
        stride *= shard->shape[d];
    }
    return fy_proof_shard_number(shard, begin_of(ends->move, side)) - shard->flat_begin;
}

/*
 * What becomes whole bytes on its way, as codes that are dequantized, may lie anywhere among them:
 * only the source has several elements in a byte there, though runs are of both.
 */
static uint64_t bits_in(const fy_proof_move *move, int side, uint64_t bits)
{
    return side == 1 && move->stated.dequantize != NULL ? 8 : bits;
}

/*
 * With several elements in a byte both sides must have the same ones in each: dimensions that go on
 * in each other on both sides are one, and of these one has the stride 1, and whole bytes.
 */
static bool is_on_bytes(const fy_proof_ends *ends, uint64_t bits)
{
    const fy_proof_move *move = ends->move;
    uint64_t strides[FY_PROOF_SIDES][FY_PROOF_DIMS], first[FY_PROOF_SIDES];
    uint64_t length[FY_PROOF_DIMS], own[] = {bits_in(move, 0, bits), bits_in(move, 1, bits)};
    bool has_row = false;
    memcpy(length, move->length, sizeof length);
    for (int side = 0; side < FY_PROOF_SIDES; side++) {
        first[side] = strides_of(ends, side, strides[side]);
    }
    for (size_t i = 0; i < FY_PROOF_DIMS; i++) { /* i goes on where k ends */
        for (size_t k = 0; k < FY_PROOF_DIMS && length[i] > 1; k++) {
            if (k != i && length[k] > 1 && strides[0][i] == strides[0][k] * length[k] &&
                strides[1][i] == strides[1][k] * length[k]) {
                length[k] *= length[i];
                length[i] = 1;
            }
        }
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        bool is_row = length[d] > 1 && strides[0][d] == 1 && strides[1][d] == 1;
        if (is_row ? length[d] * bits % 8 != 0
                   : length[d] > 1 &&
                         (strides[0][d] * own[0] % 8 != 0 || strides[1][d] * own[1] % 8 != 0)) {
            return false;
        }
        has_row = has_row || is_row;
    }
    return (has_row || bits % 8 == 0) && first[0] * own[0] % 8 == 0 && first[1] * own[1] % 8 == 0;
}

static ferry_status check_inside(const fy_proof_ends *ends, int side, ferry_error *error)
{
    const fy_proof_move *move = ends->move;
    const fy_proof_place *place = &move->places[side];
    uint64_t last = place->offset, way;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (move->length[d] > 1 && place->strides[d] == 0) {
            return fy_proof_move_fail(ends->spec, move, error,
                                      "a stride of the %s is 0 where the length is %llu",
                                      side_names[side], (unsigned long long)move->length[d]);
        }
        if (!fy_mul(move->length[d] - 1, place->strides[d], &way) || !fy_add(last, way, &last)) {
            last = UINT64_MAX;
        }
    }
    return last < ends->sides[side].parameter->elements
               ? FERRY_OK
               : fy_proof_move_fail(ends->spec, move, error,
                                    "its %s box leaves the parameter %.100s of %llu elements",
                                    side_names[side], place->parameter,
                                    (unsigned long long)ends->sides[side].parameter->elements);
}

ferry_status fy_proof_check_places(const fy_proof_ends *ends, ferry_error *error)
{
    const fy_proof_move *move = ends->move;
    uint64_t bits = move->bits;
    uint64_t elements = 1, n_bits;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (move->length[d] == 0) {
            return fy_proof_move_fail(ends->spec, move, error, "its box is empty");
        }
        if (!fy_mul(elements, move->length[d], &elements)) {
            elements = UINT64_MAX;
        }
    }
    for (int side = 0; side < FY_PROOF_SIDES; side++) {
        const fy_proof_shard *shard = ends->sides[side].shard;
        FY_TRY(shard == NULL ? check_inside(ends, side, error)
                             : fy_proof_move_check_box(ends->spec, move, side, shard, error));
    }
    if (!fy_mul(elements, bits, &n_bits) || n_bits % 8 != 0 || n_bits / 8 != move->bytes) {
        return fy_proof_move_fail(ends->spec, move, error,
                                  "has %llu elements of %llu bits, but states %llu bytes",
                                  (unsigned long long)elements, (unsigned long long)bits,
                                  (unsigned long long)move->bytes);
    }
    return bits % 8 == 0 || is_on_bytes(ends, bits)
               ? FERRY_OK
               : fy_proof_move_fail(ends->spec, move, error,
                                    "its boxes do not start and end on bytes, with elements of "
                                    "%llu bits",
                                    (unsigned long long)bits);
}
