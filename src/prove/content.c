/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/content.h"

#include "base/checked.h"
#include "prove/boxes.h"

#include <stdlib.h>
#include <string.h>

void fy_proof_scratch_cleanup(fy_proof_scratch *scratch)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        fy_free(scratch->to[d].items);
        fy_free(scratch->from[d].items);
    }
    fy_free(scratch->boxes.items);
    *scratch = (fy_proof_scratch){0};
}

bool fy_proof_numbers_push(fy_proof_numbers *numbers, uint64_t number)
{
    if (!FY_RESERVE(numbers->items, numbers->capacity, numbers->n + 1)) {
        return false;
    }
    numbers->items[numbers->n++] = number;
    return true;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void fy_proof_numbers_sort(fy_proof_numbers *numbers)
{
    size_t n_kept = 0;
    qsort(numbers->items, numbers->n, sizeof *numbers->items, by_value);
    for (size_t i = 0; i < numbers->n; i++) {
        if (n_kept == 0 || numbers->items[n_kept - 1] != numbers->items[i]) {
            numbers->items[n_kept++] = numbers->items[i];
        }
    }
    numbers->n = n_kept;
}

bool fy_proof_advance(uint64_t *index, const uint64_t *shape, size_t n_dims)
{
    for (size_t d = n_dims; d-- > 0;) {
        if (++index[d] < shape[d]) {
            return true;
        }
        index[d] = 0;
    }
    return false;
}

ferry_status fy_proof_fail_content(const fy_proof_pair *pair, const uint64_t *wanted,
                                   const uint64_t *held, ferry_error *error)
{
    const fy_proof_tensor *tensors = pair->spec->tensors;
    const fy_proof_move *move = pair->move;
    const fy_proof_entry *entry = tensors[move->tensor].entry;
    size_t b = fy_proof_box_at(pair->spec, entry, wanted, 0);
    const fy_proof_box *box = &entry->boxes[b];
    const fy_proof_tensor *source = &tensors[fy_proof_spec_source(pair->spec, move->tensor, b)];
    uint64_t right[FY_PROOF_DIMS];
    char wanted_text[100], right_text[100], held_text[100];
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        right[d] = wanted[d] - box->at[d] + box->begin[d];
    }
    fy_proof_element_format(wanted_text, sizeof wanted_text, entry->n_dims, wanted);
    fy_proof_element_format(right_text, sizeof right_text, source->entry->n_dims, right);
    fy_proof_element_format(held_text, sizeof held_text, tensors[move->source].entry->n_dims, held);
    return fy_proof_move_fail(
        pair->spec, move, error,
        "global element %s is element %s of %.60s, but the sender has element %s of %.60s there",
        wanted_text, right_text, source->name, held_text, tensors[move->source].name);
}

/* Whether the box feeds the wanted element from the held one, up to but without dimension n_dims.
 */
static bool feeds(const fy_proof_pair *pair, size_t b, const uint64_t *wanted, const uint64_t *held,
                  size_t n_dims)
{
    const fy_proof_move *move = pair->move;
    const fy_proof_box *box = &pair->spec->tensors[move->tensor].entry->boxes[b];
    if (fy_proof_spec_source(pair->spec, move->tensor, b) != move->source) {
        return false;
    }
    for (size_t d = 0; d < n_dims; d++) {
        if (held[d] - box->begin[d] != wanted[d] - box->at[d]) {
            return false;
        }
    }
    return true;
}

/* The global indices of the local ones [begin, begin + length). */
static bool list_globals(fy_proof_numbers *numbers, const fy_proof_pieces *pieces, uint64_t begin,
                         uint64_t length)
{
    numbers->n = 0;
    size_t i = fy_proof_pieces_find(pieces, begin);
    for (uint64_t local = begin; local < begin + length; local++) {
        while (local >= pieces->items[i].local + pieces->items[i].length) {
            i++;
        }
        uint64_t global = pieces->items[i].global + (local - pieces->items[i].local);
        if (!fy_proof_numbers_push(numbers, global)) {
            return false;
        }
    }
    return true;
}

static ferry_status fail_twice(const fy_proof_pair *pair, const uint64_t *wanted, uint64_t writer,
                               ferry_error *error)
{
    char text[100];
    size_t n_dims = pair->spec->tensors[pair->move->tensor].entry->n_dims;
    fy_proof_element_format(text, sizeof text, n_dims, wanted);
    return fy_proof_move_fail(pair->spec, pair->move, error,
                              "global element %s is written twice, by task %llu too", text,
                              (unsigned long long)(writer - 1));
}

enum { LAST = FY_PROOF_DIMS - 1 };

/* The elements along the last dimension at one place of the others. */
static ferry_status check_row(const fy_proof_pair *pair, const fy_proof_scratch *scratch,
                              uint64_t *wanted, uint64_t *held, uint64_t *writers,
                              ferry_error *error)
{
    const fy_proof_entry *entry = pair->spec->tensors[pair->move->tensor].entry;
    const uint64_t *to = scratch->to[LAST].items;
    const uint64_t *from = scratch->from[LAST].items;
    const fy_proof_box *box = NULL;
    bool row_is_fed = false; /* by this box, the last dimension aside */
    size_t b = 0;
    for (uint64_t i = 0; i < pair->move->length[LAST]; i++) {
        wanted[LAST] = to[i];
        held[LAST] = from[i];
        if (box == NULL || to[i] - box->at[LAST] >= box->shape[LAST]) {
            b = fy_proof_box_at(pair->spec, entry, wanted, b);
            box = &entry->boxes[b];
            row_is_fed = feeds(pair, b, wanted, held, LAST);
        }
        if (!row_is_fed || from[i] - box->begin[LAST] != to[i] - box->at[LAST]) {
            return fy_proof_fail_content(pair, wanted, held, error);
        }
        if (writers[i] != 0) {
            return fail_twice(pair, wanted, writers[i], error);
        }
        writers[i] = pair->move->task_id + 1;
    }
    return FERRY_OK;
}

ferry_status fy_proof_check_elements(const fy_proof_pair *pair, fy_proof_scratch *scratch,
                                     uint64_t *writers, ferry_error *error)
{
    const fy_proof_move *move = pair->move;
    uint64_t index[FY_PROOF_DIMS] = {0};
    uint64_t local[FY_PROOF_DIMS], wanted[FY_PROOF_DIMS], held[FY_PROOF_DIMS];
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (!list_globals(&scratch->to[d], &pair->to->dims[d], move->dst[d], move->length[d]) ||
            !list_globals(&scratch->from[d], &pair->from->dims[d], move->src[d], move->length[d])) {
            return fy_fail_no_memory(error, "the elements of a move");
        }
    }
    do {
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            local[d] = move->dst[d] + index[d];
            wanted[d] = scratch->to[d].items[index[d]];
            held[d] = scratch->from[d].items[index[d]];
        }
        uint64_t number = fy_proof_shard_number(pair->to, local) - pair->to->flat_begin;
        FY_TRY(check_row(pair, scratch, wanted, held, writers + number, error));
    } while (fy_proof_advance(index, move->length, LAST));
    return FERRY_OK;
}

ferry_status fy_proof_mark_elements(const fy_proof_pair *pair, uint64_t *writers,
                                    ferry_error *error)
{
    const fy_proof_move *move = pair->move;
    uint64_t index[FY_PROOF_DIMS] = {0}, local[FY_PROOF_DIMS], wanted[FY_PROOF_DIMS];
    do {
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            local[d] = move->dst[d] + index[d];
        }
        uint64_t *writer = &writers[fy_proof_shard_number(pair->to, local) - pair->to->flat_begin];
        if (*writer != 0) {
            fy_proof_shard_element(pair->to, local, wanted);
            return fail_twice(pair, wanted, *writer, error);
        }
        *writer = move->task_id + 1;
    } while (fy_proof_advance(index, move->length, FY_PROOF_DIMS));
    return FERRY_OK;
}

/* Where pieces begin within the move, as offsets into it. */
static bool push_pieces(fy_proof_numbers *cuts, const fy_proof_pieces *pieces, uint64_t begin,
                        uint64_t length)
{
    for (size_t i = fy_proof_pieces_find(pieces, begin) + 1; i < pieces->n; i++) {
        if (pieces->items[i].local >= begin + length) {
            break;
        }
        if (!fy_proof_numbers_push(cuts, pieces->items[i].local - begin)) {
            return false;
        }
    }
    return true;
}

/* Where the edge of a source box, a global index, falls into the move. */
static bool push_edge(fy_proof_numbers *cuts, const fy_proof_pieces *pieces, uint64_t begin,
                      uint64_t length, uint64_t edge)
{
    for (size_t i = fy_proof_pieces_find(pieces, begin); i < pieces->n; i++) {
        const fy_proof_piece *piece = &pieces->items[i];
        if (piece->local >= begin + length) {
            break;
        }
        uint64_t local = piece->local + (edge - piece->global);
        if (edge < piece->global || edge - piece->global >= piece->length || local <= begin ||
            local >= begin + length) {
            continue;
        }
        if (!fy_proof_numbers_push(cuts, local - begin)) {
            return false;
        }
    }
    return true;
}

static bool push_box(void *context, size_t box)
{
    return fy_proof_numbers_push(context, box);
}

/* Those that have elements between the least and the last index of the move on every dimension. */
static bool find_boxes(const fy_proof_pair *pair, fy_proof_numbers *boxes)
{
    const fy_proof_move *move = pair->move;
    const fy_proof_tree *tree = pair->spec->tensors[move->tensor].entry->tree;
    uint64_t begin[FY_PROOF_DIMS], end[FY_PROOF_DIMS];
    boxes->n = 0;
    for (size_t d = 0; d < FY_PROOF_DIMS && tree != NULL; d++) {
        const fy_proof_pieces *pieces = &pair->to->dims[d];
        uint64_t local = move->dst[d], last = move->dst[d] + move->length[d];
        begin[d] = UINT64_MAX;
        end[d] = 0;
        for (size_t i = fy_proof_pieces_find(pieces, local); local < last; i++) {
            const fy_proof_piece *piece = &pieces->items[i];
            uint64_t global = piece->global + (local - piece->local);
            uint64_t behind = fy_min(piece->local + piece->length, last);
            begin[d] = fy_min(begin[d], global);
            end[d] = fy_max(end[d], global + (behind - local));
            local = behind;
        }
    }
    return tree == NULL ||
           fy_proof_tree_visit(tree, begin, end, push_box, boxes, pair->spec->looks);
}

static bool cut_dim(const fy_proof_pair *pair, const fy_proof_numbers *boxes,
                    fy_proof_numbers *cuts, size_t d)
{
    const fy_proof_move *move = pair->move;
    const fy_proof_entry *entry = pair->spec->tensors[move->tensor].entry;
    uint64_t length = move->length[d];
    cuts->n = 0;
    if (!fy_proof_numbers_push(cuts, 0) || !fy_proof_numbers_push(cuts, length) ||
        !push_pieces(cuts, &pair->to->dims[d], move->dst[d], length) ||
        !push_pieces(cuts, &pair->from->dims[d], move->src[d], length)) {
        return false;
    }
    for (size_t i = 0; length > 1 && i < boxes->n; i++) {
        const fy_proof_box *box = &entry->boxes[boxes->items[i]];
        ++*pair->spec->looks;
        if (!push_edge(cuts, &pair->to->dims[d], move->dst[d], length, box->at[d]) ||
            !push_edge(cuts, &pair->to->dims[d], move->dst[d], length,
                       box->at[d] + box->shape[d])) {
            return false;
        }
    }
    if (cuts->n > 2) {
        fy_proof_numbers_sort(cuts);
    }
    return true;
}

ferry_status fy_proof_check_cells(const fy_proof_pair *pair, fy_proof_scratch *scratch,
                                  ferry_error *error)
{
    const fy_proof_move *move = pair->move;
    const fy_proof_entry *entry = pair->spec->tensors[move->tensor].entry;
    uint64_t n_cells[FY_PROOF_DIMS], index[FY_PROOF_DIMS] = {0};
    FY_TRY(fy_check_memory(find_boxes(pair, &scratch->boxes), "the cells of a move", error));
    size_t b = entry->tree == NULL ? 0 : (size_t)scratch->boxes.items[0];
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (!cut_dim(pair, &scratch->boxes, &scratch->to[d], d)) {
            return fy_fail_no_memory(error, "the cells of a move");
        }
        n_cells[d] = scratch->to[d].n - 1;
    }
    do {
        uint64_t to[FY_PROOF_DIMS], from[FY_PROOF_DIMS];
        uint64_t wanted[FY_PROOF_DIMS], held[FY_PROOF_DIMS];
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            to[d] = move->dst[d] + scratch->to[d].items[index[d]];
            from[d] = move->src[d] + scratch->to[d].items[index[d]];
        }
        fy_proof_shard_element(pair->to, to, wanted);
        fy_proof_shard_element(pair->from, from, held);
        b = fy_proof_box_at(pair->spec, entry, wanted, b);
        if (!feeds(pair, b, wanted, held, FY_PROOF_DIMS)) {
            return fy_proof_fail_content(pair, wanted, held, error);
        }
    } while (fy_proof_advance(index, n_cells, FY_PROOF_DIMS));
    return FERRY_OK;
}
