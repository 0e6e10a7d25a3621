/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/prove.h"

#include "base/alloc.h"
#include "prove/cast.h"
#include "prove/codes.h"
#include "prove/content.h"
#include "prove/cover.h"
#include "prove/memory.h"
#include "prove/plan_file.h"
#include "prove/quantize.h"
#include "prove/runs.h"

#include <string.h>

/*
 * The plan's order is what lets it be proven as a stream: destination ranks ascend, and within a
 * rank one tensor follows the other. So only the shard at hand needs memory, and once a rank is
 * behind us its shards without any move are known.
 */
typedef struct run {
    fy_proof_spec spec;
    fy_proof_tally tally;
    fy_proof_cache cache;
    fy_proof_scratch scratch;
    uint64_t most_elements;
    uint64_t looks;
    uint64_t n_shards;
    uint64_t next_task;
    uint64_t position; /* of the destination rank at hand, in its mesh */
    uint64_t coordinates[FY_PROOF_AXES];
    uint64_t *seen; /* per tensor: 1 + the position that wrote it last */
    uint64_t *made; /* and 1 + that of the rank that made its codes itself last */
    /* The shard at hand. */
    bool is_open;
    bool is_small;
    bool has_moves;
    bool is_made; /* its first move says that the receiver makes its codes */
    uint32_t tensor;
    fy_proof_shard shard;
    uint64_t *writers; /* per element, when it is small */
    size_t writers_capacity;
    fy_proof_written *written; /* its moves, when it is large */
    size_t n_written;
    size_t written_capacity;
    uint64_t last_dst[FY_PROOF_DIMS]; /* of the move before, in this shard */
    /* Where the destination is in boxes: its parameters by moves, and by fills. */
    fy_proof_progress moves;
    fy_proof_progress fills;
    fy_proof_makers makers;
} run;

/* Sentences name at most so many bytes of a tensor's name. */
enum { NAME_BYTES = 256 };

static const fy_proof_mesh *mesh_of(const run *r, int side)
{
    return &r->spec.sides[side].mesh;
}

static uint64_t rank_at_hand(const run *r)
{
    return fy_proof_mesh_rank(mesh_of(r, FY_PROOF_DESTINATION), r->position);
}

/* The cell of a shard as far as it is one run of the global index on every dimension. */
static ferry_status fail_gap(const run *r, uint32_t tensor, const fy_proof_shard *shard,
                             const uint64_t *begin, const uint64_t *length, ferry_error *error)
{
    const fy_proof_tensor *wanted = &r->spec.tensors[tensor];
    uint64_t global[FY_PROOF_DIMS], run_length[FY_PROOF_DIMS];
    char global_text[200], local_text[200];
    fy_proof_shard_element(shard, begin, global);
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        const fy_proof_pieces *pieces = &shard->dims[d];
        const fy_proof_piece *piece = &pieces->items[fy_proof_pieces_find(pieces, begin[d])];
        uint64_t rest = piece->local + piece->length - begin[d];
        run_length[d] = length[d] < rest ? length[d] : rest;
    }
    size_t n_dims = wanted->entry->n_dims;
    fy_proof_slice_format(global_text, sizeof global_text, n_dims, global, run_length);
    fy_proof_slice_format(local_text, sizeof local_text, n_dims, begin, run_length);
    return fy_fail(error, FERRY_ERR_PROOF,
                   "%.*s %s: no move writes it on rank %llu, local %s, before task %llu",
                   NAME_BYTES, wanted->name, global_text, (unsigned long long)rank_at_hand(r),
                   local_text, (unsigned long long)r->next_task);
}

static void coordinates_of(const fy_proof_shard *shard, uint64_t number, uint64_t *coordinates_out)
{
    for (size_t d = FY_PROOF_DIMS; d-- > 0;) {
        coordinates_out[d] = number % shard->shape[d];
        number /= shard->shape[d];
    }
}

/* Whether nobody writes any element of a box of the small shard at hand. */
static bool is_unwritten(const run *r, const uint64_t *begin, const uint64_t *length)
{
    uint64_t index[FY_PROOF_DIMS] = {0}, local[FY_PROOF_DIMS];
    do {
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            local[d] = begin[d] + index[d];
        }
        uint64_t number = fy_proof_shard_number(&r->shard, local);
        if (number < r->shard.flat_begin || number >= r->shard.flat_end ||
            r->writers[number - r->shard.flat_begin] != 0) {
            return false;
        }
    } while (fy_proof_advance(index, length, FY_PROOF_DIMS));
    return true;
}

/* From the first element that nobody writes, the box grows as far as that goes on. */
static ferry_status fail_element_gap(const run *r, uint64_t number, ferry_error *error)
{
    uint64_t begin[FY_PROOF_DIMS], next[FY_PROOF_DIMS];
    uint64_t length[FY_PROOF_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1};
    coordinates_of(&r->shard, r->shard.flat_begin + number, begin);
    for (size_t d = FY_PROOF_DIMS; d-- > 0;) {
        uint64_t so_far = 1;
        memcpy(next, begin, sizeof next);
        while (++next[d] < r->shard.shape[d] && is_unwritten(r, next, length)) {
            so_far++;
        }
        length[d] = so_far;
    }
    return fail_gap(r, r->tensor, &r->shard, begin, length, error);
}

static ferry_status close_small_shard(const run *r, ferry_error *error)
{
    uint64_t n = r->shard.flat_end - r->shard.flat_begin;
    for (uint64_t i = 0; i < n; i++) {
        if (r->writers[i] == 0) {
            return fail_element_gap(r, i, error);
        }
    }
    return FERRY_OK;
}

static ferry_status close_large_shard(run *r, ferry_error *error)
{
    fy_proof_flaw flaw;
    const fy_proof_tensor *tensor = &r->spec.tensors[r->tensor];
    ferry_status status = fy_proof_cover_check(&r->shard, tensor->entry->n_dims, r->written,
                                               r->n_written, &flaw, error);
    if (status != FERRY_OK || !flaw.is_found) {
        return status;
    }
    if (!flaw.is_twice) {
        return fail_gap(r, r->tensor, &r->shard, flaw.begin, flaw.length, error);
    }
    uint64_t global[FY_PROOF_DIMS];
    char element[100];
    fy_proof_shard_element(&r->shard, flaw.begin, global);
    fy_proof_element_format(element, sizeof element, tensor->entry->n_dims, global);
    return fy_fail(error, FERRY_ERR_PROOF,
                   "task %llu: %.*s: global element %s is written twice on rank %llu, by task %llu "
                   "too",
                   (unsigned long long)flaw.tasks[1], NAME_BYTES, tensor->name, element,
                   (unsigned long long)rank_at_hand(r), (unsigned long long)flaw.tasks[0]);
}

static ferry_status close_shard(run *r, ferry_error *error)
{
    if (!r->is_open) {
        return FERRY_OK;
    }
    r->is_open = false;
    r->n_shards++;
    return r->is_small ? close_small_shard(r, error) : close_large_shard(r, error);
}

static ferry_status fail_brought(const run *r, uint32_t scales, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_PROOF,
                   "%.*s: is brought to rank %llu, which makes the codes and so the scales itself",
                   NAME_BYTES, r->spec.tensors[scales].name, (unsigned long long)rank_at_hand(r));
}

/*
 * The scales of what the rank at hand makes itself: it has all of the values, of whole blocks, and
 * no move brings any.
 */
static ferry_status check_made(run *r, uint32_t tensor, ferry_error *error)
{
    const fy_proof_side *side = &r->spec.sides[FY_PROOF_DESTINATION];
    const fy_proof_tensor *scales = &r->spec.tensors[tensor];
    fy_proof_shard shard;
    if (r->seen[tensor] == r->position + 1) {
        return fail_brought(r, tensor, error);
    }
    FY_TRY(fy_proof_shard_find(&r->cache, side, scales, &scales->spots[FY_PROOF_DESTINATION],
                               r->coordinates, &shard, error));
    r->n_shards++;
    return FERRY_OK;
}

/* Every shard of the rank at hand that has elements must have had moves. */
static ferry_status close_rank(run *r, ferry_error *error)
{
    ferry_status status = close_shard(r, error);
    const fy_proof_side *side = &r->spec.sides[FY_PROOF_DESTINATION];
    for (uint32_t t = 0; status == FERRY_OK && t < r->spec.n_tensors; t++) {
        const fy_proof_tensor *tensor = &r->spec.tensors[t];
        const fy_proof_spot *spot = &tensor->spots[FY_PROOF_DESTINATION];
        const fy_proof_scaling *scaling = tensor->entry->scaling;
        if (scaling != NULL && r->made[scaling->tensor] == r->position + 1) {
            status = check_made(r, t, error);
            continue;
        }
        if (r->seen[t] == r->position + 1 || tensor->entry->volume == 0 ||
            !fy_proof_spot_holds(spot, r->coordinates)) {
            continue;
        }
        fy_proof_shard shard;
        status = fy_proof_shard_find(&r->cache, side, tensor, spot, r->coordinates, &shard, error);
        if (status == FERRY_OK && shard.flat_begin < shard.flat_end) {
            uint64_t begin[FY_PROOF_DIMS], length[FY_PROOF_DIMS];
            coordinates_of(&shard, shard.flat_begin, begin);
            for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
                length[d] = shard.shape[d] - begin[d];
            }
            status = fail_gap(r, t, &shard, begin, length, error);
        }
    }
    return status;
}

static bool is_to_boxes(const run *r)
{
    return r->spec.sides[FY_PROOF_DESTINATION].memory != NULL;
}

/* Closes the ranks before this position and comes to it. */
static ferry_status go_to_rank(run *r, uint64_t position, ferry_error *error)
{
    const fy_proof_mesh *mesh = mesh_of(r, FY_PROOF_DESTINATION);
    ferry_status status = FERRY_OK;
    while (status == FERRY_OK && r->position < position) {
        status = close_rank(r, error);
        if (status == FERRY_OK && ++r->position < mesh->n_ranks) {
            fy_proof_mesh_coordinates(mesh, r->position, r->coordinates);
        }
    }
    return status;
}

static ferry_status open_shard(run *r, const fy_proof_move *move, ferry_error *error)
{
    const fy_proof_tensor *tensor = &r->spec.tensors[move->tensor];
    const fy_proof_spot *spot = &tensor->spots[FY_PROOF_DESTINATION];
    if (spot->rule == NULL || tensor->entry->volume == 0 ||
        !fy_proof_spot_holds(spot, r->coordinates)) {
        return fy_proof_move_fail(&r->spec, move, error,
                                  "rank %llu has nothing of this tensor at the destination",
                                  (unsigned long long)move->to);
    }
    if (r->seen[move->tensor] == r->position + 1) {
        return fy_proof_move_fail(&r->spec, move, error,
                                  "stands behind moves of another tensor, out of order");
    }
    fy_proof_cache_trim(&r->cache);
    FY_TRY(fy_proof_shard_find(&r->cache, &r->spec.sides[FY_PROOF_DESTINATION], tensor, spot,
                               r->coordinates, &r->shard, error));
    uint64_t n = r->shard.flat_end - r->shard.flat_begin;
    r->is_small = n <= r->most_elements;
    r->n_written = 0;
    if (r->is_small && n > 0) {
        FY_TRY(
            FY_GROW(r->writers, r->writers_capacity, (size_t)n, "the elements of a shard", error));
        memset(r->writers, 0, (size_t)n * sizeof *r->writers);
    }
    r->seen[move->tensor] = r->position + 1;
    r->tensor = move->tensor;
    r->is_open = true;
    r->has_moves = false;
    return FERRY_OK;
}

static int compare_places(const uint64_t *a, const uint64_t *b)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (a[d] != b[d]) {
            return a[d] < b[d] ? -1 : 1;
        }
    }
    return 0;
}

/* Task ids, destination ranks, tensors and begins in the order of the format. */
static ferry_status follow_order(run *r, const fy_proof_move *move, ferry_error *error)
{
    uint64_t position;
    if (move->task_id != r->next_task) {
        return fy_proof_move_fail(&r->spec, move, error, "its task id should be %llu",
                                  (unsigned long long)r->next_task);
    }
    if (!fy_proof_mesh_find(mesh_of(r, FY_PROOF_DESTINATION), move->to, &position)) {
        return fy_proof_move_fail(&r->spec, move, error, "rank %llu is not in the destination",
                                  (unsigned long long)move->to);
    }
    if (is_to_boxes(r)) {
        return fy_proof_progress_move(&r->moves, &r->spec, move, (size_t)position, error);
    }
    if (position < r->position) {
        return fy_proof_move_fail(&r->spec, move, error, "comes behind moves to rank %llu",
                                  (unsigned long long)rank_at_hand(r));
    }
    bool is_new = !r->is_open || position != r->position || move->tensor != r->tensor;
    if (is_new && r->is_open && position == r->position && r->spec.is_listed &&
        move->tensor < r->tensor) {
        return fy_proof_move_fail(&r->spec, move, error,
                                  "comes behind %.*s, which the spec lists later", NAME_BYTES,
                                  r->spec.tensors[r->tensor].name);
    }
    if (!is_new) {
        return compare_places(r->last_dst, move->dst) <= 0
                   ? FERRY_OK
                   : fy_proof_move_fail(&r->spec, move, error,
                                        "comes behind a move that begins later, out of order");
    }
    FY_TRY(position == r->position ? close_shard(r, error) : go_to_rank(r, position, error));
    return open_shard(r, move, error);
}

/* What the sender holds of the source tensor, or in boxes the parameter that the move names. */
static ferry_status find_sender(run *r, const fy_proof_move *move, fy_proof_shard *from,
                                const fy_proof_parameter **parameter_out, ferry_error *error)
{
    const fy_proof_side *side = &r->spec.sides[FY_PROOF_SOURCE];
    const fy_proof_tensor *source = &r->spec.tensors[move->source];
    const fy_proof_spot *spot = &source->spots[FY_PROOF_SOURCE];
    uint64_t position;
    uint64_t coordinates[FY_PROOF_AXES];
    if (!fy_proof_mesh_find(&side->mesh, move->from, &position)) {
        return fy_proof_move_fail(&r->spec, move, error, "rank %llu is not in the source",
                                  (unsigned long long)move->from);
    }
    if (side->memory != NULL) {
        return fy_proof_find_parameter(&r->spec, move, FY_PROOF_SOURCE, (size_t)position,
                                       parameter_out, error);
    }
    fy_proof_mesh_coordinates(&side->mesh, position, coordinates);
    if (spot->rule == NULL || !fy_proof_spot_holds(spot, coordinates)) {
        return fy_proof_move_fail(&r->spec, move, error,
                                  "rank %llu has nothing of %.*s at the source",
                                  (unsigned long long)move->from, NAME_BYTES, source->name);
    }
    return fy_proof_shard_find(&r->cache, side, source, spot, coordinates, from, error);
}

/* Whether the destination gets a tensor as it is. */
static bool is_as_it_is(const fy_proof_rule *rule, const fy_proof_tensor *tensor)
{
    bool is_same_type =
        rule->dtype.element_bits == 0 || rule->dtype.kind == tensor->entry->dtype.kind;
    bool is_changed = rule->cast.is_said && (rule->cast.scale != 1 || rule->cast.add != 0);
    return is_same_type && !is_changed && rule->quantize == NULL && rule->codes == NULL;
}

/* A rank of a mesh that makes f4 of its shard has a scale of each of its matrices. */
static ferry_status check_given(run *r, const fy_proof_move *move, int which,
                                const uint64_t *coordinates, ferry_error *error)
{
    const fy_proof_side *side = &r->spec.sides[which];
    const fy_proof_scaling *scaling = r->spec.tensors[move->tensor].entry->scaling;
    const fy_proof_tensor *values =
        &r->spec.tensors[scaling != NULL ? scaling->tensor : move->tensor];
    const fy_proof_tensor *given = &r->spec.tensors[values->given - 1];
    const fy_proof_spot *spot = &given->spots[which];
    fy_proof_shard of_values, of_given;
    if (spot->rule == NULL || !fy_proof_spot_holds(spot, coordinates) ||
        (which == FY_PROOF_DESTINATION && !is_as_it_is(spot->rule, given))) {
        return fy_proof_quantize_given(&r->spec, NULL, NULL, move, error);
    }
    FY_TRY(fy_proof_shard_find(&r->cache, side, values, &values->spots[which], coordinates,
                               &of_values, error));
    FY_TRY(fy_proof_shard_find(&r->cache, side, given, spot, coordinates, &of_given, error));
    return fy_proof_quantize_given(&r->spec, &of_values, &of_given, move, error);
}

/* Whoever makes f4 needs a scale of each matrix; in boxes that is looked at behind all moves. */
static ferry_status check_maker_of_f4(run *r, const fy_proof_move *move, ferry_error *error)
{
    const fy_proof_mesh *mesh = mesh_of(r, FY_PROOF_SOURCE);
    uint64_t position, coordinates[FY_PROOF_AXES];
    if (strcmp(move->stated.at, "receiver") == 0) {
        return is_to_boxes(r) ? FERRY_OK
                              : check_given(r, move, FY_PROOF_DESTINATION, r->coordinates, error);
    }
    if (!fy_proof_mesh_find(mesh, move->from, &position)) {
        return FERRY_OK; /* which was said when the sender was looked for */
    }
    fy_proof_mesh_coordinates(mesh, position, coordinates);
    return check_given(r, move, FY_PROOF_SOURCE, coordinates, error);
}

/* The box of a move into the large shard at hand. */
static ferry_status keep_written(run *r, const fy_proof_move *move, ferry_error *error)
{
    FY_TRY(FY_GROW(r->written, r->written_capacity, r->n_written + 1, "the moves into a shard",
                   error));
    fy_proof_written *written = &r->written[r->n_written++];
    written->task_id = move->task_id;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        written->begin[d] = move->dst[d];
        written->end[d] = move->dst[d] + move->length[d];
    }
    return FERRY_OK;
}

static ferry_status check_content(run *r, const fy_proof_move *move, const fy_proof_shard *from,
                                  ferry_error *error)
{
    fy_proof_pair pair = {.spec = &r->spec, .move = move, .from = from, .to = &r->shard};
    if (r->is_small) {
        return fy_proof_check_elements(&pair, &r->scratch, r->writers, error);
    }
    FY_TRY(keep_written(r, move, error));
    return fy_proof_check_cells(&pair, &r->scratch, error);
}

/* A move between meshes. */
static ferry_status check_shards(run *r, const fy_proof_move *move, const fy_proof_shard *from,
                                 ferry_error *error)
{
    FY_TRY(fy_proof_move_check_boxes(&r->spec, move, from, &r->shard, error));
    FY_TRY(fy_proof_move_check_bytes(&r->spec, move, from, &r->shard, error));
    FY_TRY(check_content(r, move, from, error));
    return fy_proof_move_check_jumps(&r->spec, move, from, &r->shard, error);
}

/* A move with a side in boxes. */
static ferry_status check_places(run *r, const fy_proof_move *move, const fy_proof_shard *from,
                                 const fy_proof_parameter *parameter, ferry_error *error)
{
    bool to_boxes = is_to_boxes(r);
    fy_proof_ends ends = {.spec = &r->spec, .move = move};
    ends.sides[FY_PROOF_SOURCE].shard = parameter == NULL ? from : NULL;
    ends.sides[FY_PROOF_SOURCE].parameter = parameter;
    ends.sides[FY_PROOF_DESTINATION].shard = to_boxes ? NULL : &r->shard;
    ends.sides[FY_PROOF_DESTINATION].parameter = to_boxes ? r->moves.target.parameter : NULL;
    ends.target = to_boxes ? &r->moves.target : NULL;
    FY_TRY(fy_proof_check_places(&ends, error));
    FY_TRY(fy_proof_check_runs(&ends, error));
    if (to_boxes) {
        return FERRY_OK;
    }
    fy_proof_pair pair = {.spec = &r->spec, .move = move, .from = from, .to = &r->shard};
    return r->is_small ? fy_proof_mark_elements(&pair, r->writers, error)
                       : keep_written(r, move, error);
}

/* By which a move makes codes of its tensor, or the scales that it has; NULL: neither. */
static const fy_proof_quantize *quantize_of(const run *r, const fy_proof_move *move)
{
    const fy_proof_tensor *tensor = &r->spec.tensors[move->tensor];
    if (tensor->entry->scaling != NULL) {
        return tensor->entry->scaling->quantize;
    }
    return is_to_boxes(r) ? r->moves.target.parameter->quantize
                          : tensor->spots[FY_PROOF_DESTINATION].rule->quantize;
}

/* The shard of the values that scales are made of, to count what a move reads of it in blocks. */
static ferry_status count_blocks(run *r, fy_proof_move *move, ferry_error *error)
{
    const fy_proof_scaling *scaling = r->spec.tensors[move->tensor].entry->scaling;
    const fy_proof_side *side = &r->spec.sides[FY_PROOF_SOURCE];
    uint64_t position, coordinates[FY_PROOF_AXES];
    fy_proof_shard values;
    if (scaling == NULL || side->memory != NULL ||
        !fy_proof_mesh_find(&side->mesh, move->from, &position)) {
        return FERRY_OK; /* the sender is none, which is said when it is looked for */
    }
    const fy_proof_tensor *tensor = &r->spec.tensors[scaling->tensor];
    const fy_proof_spot *spot = &tensor->spots[FY_PROOF_SOURCE];
    fy_proof_mesh_coordinates(&side->mesh, position, coordinates);
    if (spot->rule == NULL || !fy_proof_spot_holds(spot, coordinates)) {
        return FERRY_OK;
    }
    FY_TRY(fy_proof_shard_find(&r->cache, side, tensor, spot, coordinates, &values, error));
    return fy_proof_quantize_count(&r->spec, &values, move, error);
}

/* Whoever makes the codes of a shard makes all of them: a block is not made of codes. */
static ferry_status note_maker(run *r, const fy_proof_move *move, bool at_receiver,
                               ferry_error *error)
{
    bool is_same = !r->has_moves || r->is_made == at_receiver;
    if (is_to_boxes(r)) {
        FY_TRY(fy_proof_makers_note(&r->makers, r->moves.target.owned, move->tensor, at_receiver,
                                    &is_same, error));
    }
    if (!is_same) {
        return fy_proof_move_fail(&r->spec, move, error,
                                  "says that the %s quantizes it, but moves before it do not",
                                  at_receiver ? "receiver" : "sender");
    }
    if (is_to_boxes(r)) {
        return FERRY_OK;
    }
    r->has_moves = true;
    r->is_made = at_receiver;
    r->made[move->tensor] = at_receiver ? r->position + 1 : 0;
    return FERRY_OK;
}

/* What becomes of the elements is what the destination at hand says. */
static ferry_status check_cast(run *r, fy_proof_move *move, ferry_error *error)
{
    const fy_proof_tensor *tensor = &r->spec.tensors[move->tensor];
    const fy_proof_rule *rule = tensor->spots[FY_PROOF_DESTINATION].rule;
    const fy_proof_quantize *quantize = quantize_of(r, move);
    if (tensor->entry->staged != NULL) {
        const fy_proof_cast none = {.scale = 1};
        return fy_proof_cast_check(&r->spec, &none, tensor->entry->dtype, move, error);
    }
    const fy_proof_parameter *to = is_to_boxes(r) ? r->moves.target.parameter : NULL;
    const fy_proof_codes *codes = to != NULL ? to->codes : rule->codes;
    if (codes != NULL && tensor->entry->scaling == NULL) {
        return fy_proof_codes_check(&r->spec, codes, to != NULL ? to->dtype : rule->dtype, move,
                                    error);
    }
    const fy_proof_scaling *scaling = tensor->entry->scaling;
    if (scaling != NULL && !is_to_boxes(r) && r->made[scaling->tensor] == r->position + 1) {
        return fail_brought(r, move->tensor, error);
    }
    if (quantize != NULL) {
        bool at_receiver = false;
        FY_TRY(fy_proof_quantize_check(&r->spec, quantize, scaling != NULL, move, &at_receiver,
                                       error));
        return note_maker(r, move, at_receiver, error);
    }
    if (to != NULL) {
        return fy_proof_cast_check(&r->spec, &to->cast, to->dtype, move, error);
    }
    return fy_proof_cast_check(&r->spec, &rule->cast,
                               rule->dtype.element_bits == 0 ? tensor->entry->dtype : rule->dtype,
                               move, error);
}

static ferry_status take_move(void *context, const fy_proof_move *stated, ferry_error *error)
{
    run *r = context;
    fy_proof_shard from;
    fy_proof_move own = *stated;
    const fy_proof_move *move = &own;
    const fy_proof_parameter *parameter = NULL;
    FY_TRY(follow_order(r, move, error));
    FY_TRY(check_cast(r, &own, error));
    FY_TRY(count_blocks(r, &own, error));
    FY_TRY(find_sender(r, move, &from, &parameter, error));
    FY_TRY(parameter != NULL || is_to_boxes(r) ? check_places(r, move, &from, parameter, error)
                                               : check_shards(r, move, &from, error));
    const fy_proof_quantize *quantize = quantize_of(r, move);
    if (quantize != NULL && parameter == NULL && strcmp(move->stated.at, "sender") == 0 &&
        r->spec.tensors[move->tensor].entry->scaling == NULL) {
        FY_TRY(fy_proof_quantize_align(&r->spec, quantize, &from, move, error));
    }
    if (quantize != NULL && quantize->codes.kind == FERRY_F4) {
        FY_TRY(check_maker_of_f4(r, move, error));
    }
    memcpy(r->last_dst, move->dst, sizeof r->last_dst);
    r->next_task++;
    r->moves.next_task = r->next_task;
    return fy_proof_tally_move(&r->tally, move, error);
}

static ferry_status take_fill(void *context, const fy_proof_fill *fill, ferry_error *error)
{
    run *r = context;
    return fy_proof_progress_fill(&r->fills, &r->spec, fill, error);
}

static ferry_status prepare(run *r, const char *spec_path, ferry_error *error)
{
    FY_TRY(fy_proof_spec_read(spec_path, &r->spec, error));
    FY_TRY(fy_proof_tally_init(&r->tally, &r->spec, error));
    fy_proof_mesh_coordinates(mesh_of(r, FY_PROOF_DESTINATION), 0, r->coordinates);
    r->seen = fy_alloc_zeroed(r->spec.n_tensors, sizeof *r->seen);
    r->made = fy_alloc_zeroed(r->spec.n_tensors, sizeof *r->made);
    return r->seen == NULL || r->made == NULL ? fy_fail_no_memory(error, "the tensors") : FERRY_OK;
}

static uint64_t count_wanted(const fy_proof_spec *spec)
{
    uint64_t n = 0;
    for (size_t t = 0; t < spec->n_tensors; t++) {
        n += spec->tensors[t].spots[FY_PROOF_DESTINATION].rule != NULL ||
             spec->tensors[t].is_held[FY_PROOF_DESTINATION];
    }
    return n;
}

static ferry_status prove(run *r, const char *spec_path, const char *plan_path, ferry_error *error)
{
    const fy_proof_takers takers = {.take_move = take_move, .take_fill = take_fill, .context = r};
    FY_TRY(prepare(r, spec_path, error));
    FY_TRY(fy_proof_plan_read(plan_path, &r->tally, &takers, error));
    if (is_to_boxes(r)) {
        FY_TRY(fy_proof_progress_end(&r->moves, &r->spec, error));
        FY_TRY(fy_proof_progress_end(&r->fills, &r->spec, error));
        FY_TRY(fy_proof_makers_check(&r->makers, &r->spec, error));
        r->n_shards = r->moves.n_parameters;
    } else {
        FY_TRY(go_to_rank(r, mesh_of(r, FY_PROOF_DESTINATION)->n_ranks, error));
    }
    return fy_proof_tally_check(&r->tally, count_wanted(&r->spec), error);
}

static void cleanup(run *r)
{
    fy_free(r->seen);
    fy_free(r->made);
    fy_free(r->writers);
    fy_free(r->written);
    fy_proof_target_cleanup(&r->moves.target);
    fy_proof_target_cleanup(&r->fills.target);
    fy_proof_makers_cleanup(&r->makers);
    fy_proof_scratch_cleanup(&r->scratch);
    fy_proof_cache_cleanup(&r->cache);
    fy_proof_tally_cleanup(&r->tally);
    fy_proof_spec_cleanup(&r->spec);
}

ferry_status fy_proof_run(const char *spec_path, const char *plan_path, uint64_t most_elements,
                          ferry_proof *proof_out, uint64_t *looks_out, ferry_error *error)
{
    FY_TRY(fy_check_use(spec_path != NULL && plan_path != NULL, "ferry_plan_prove needs two paths",
                        error));
    run r = {.most_elements = most_elements, .fills.target.is_of_fills = true};
    r.moves.target.makers = &r.makers;
    FY_TRY(proof_out == NULL ? FERRY_OK : fy_check_out(proof_out, "ferry_proof", error));
    r.spec.looks = &r.looks;
    r.spec.most_elements = most_elements;
    ferry_status status = prove(&r, spec_path, plan_path, error);
    if (status == FERRY_OK && proof_out != NULL) {
        ferry_proof proof = {.n_tensors = count_wanted(&r.spec),
                             .n_moves = r.tally.n_moves,
                             .n_destination_shards = r.n_shards,
                             .moved_bytes = r.tally.moved,
                             .local_bytes = r.tally.local};
        status = fy_copy_out(&proof, sizeof proof, proof_out, "ferry_proof", error);
    }
    if (looks_out != NULL) {
        *looks_out = r.looks;
    }
    cleanup(&r);
    return status;
}

ferry_status ferry_plan_prove(const char *spec_path, const char *plan_path, ferry_proof *proof_out,
                              ferry_error *error)
{
    return fy_proof_run(spec_path, plan_path, FY_PROOF_SMALL_SHARD, proof_out, NULL, error);
}
