/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/target.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "prove/held.h"

#include <string.h>

/* Sentences name at most so many bytes of a name. */
enum { NAME_BYTES = 256 };

void fy_proof_target_cleanup(fy_proof_target *target)
{
    fy_free(target->owners);
    fy_free(target->writers);
    fy_free(target->touched);
    fy_free(target->cells);
    fy_free(target->written);
    *target = (fy_proof_target){0};
}

ferry_status fy_proof_target_open(fy_proof_target *target, const fy_proof_spec *spec,
                                  const fy_proof_parameter *parameter, uint64_t rank,
                                  ferry_error *error)
{
    target->rank = rank;
    target->n_cells = 0;
    target->is_small = parameter->elements <= spec->most_elements;
    if (target->is_small) {
        size_t n = (size_t)parameter->elements;
        FY_TRY(FY_GROW(target->owners, target->owners_capacity, n, "the elements of a parameter",
                       error));
        FY_TRY(FY_GROW(target->writers, target->writers_capacity, n, "the elements of a parameter",
                       error));
        if (n > 0) {
            memset(target->owners, 0, n * sizeof *target->owners);
            memset(target->writers, 0, n * sizeof *target->writers);
        }
        fy_proof_parameter_own(parameter, target->owners);
    }
    target->parameter = parameter;
    return FERRY_OK;
}

bool fy_proof_target_find(const fy_proof_target *target, uint64_t element, size_t *box_out,
                          uint64_t *turns_out, uint64_t *looks)
{
    const fy_proof_parameter *p = target->parameter;
    if (!target->is_small) {
        return fy_proof_lattice_find(p->lattice, element, box_out, turns_out, looks);
    }
    if (target->owners[element] == 0) {
        return false;
    }
    *box_out = target->owners[element] - 1;
    return fy_proof_held_find(&p->boxes[*box_out], element, turns_out);
}

typedef struct marking {
    fy_proof_target *target;
    uint64_t task_id;
    uint64_t twice;
    uint64_t by;
} marking;

static bool mark(void *context, uint64_t element)
{
    marking *m = context;
    uint64_t *writer = &m->target->writers[element];
    if (*writer != 0) {
        m->twice = element;
        m->by = *writer - 1;
        return false;
    }
    *writer = m->task_id + 1;
    return true;
}

static uint64_t number_of_turn(const fy_proof_held *box, const uint64_t *turns)
{
    uint64_t number = 0;
    for (size_t i = 0; i < FY_PROOF_LOOPS; i++) {
        number = number * box->steps[i].count + turns[i];
    }
    return number;
}

ferry_status fy_proof_target_write(fy_proof_target *target, size_t box, const uint64_t *turns,
                                   const uint64_t *counts, uint64_t task_id, uint64_t *twice_out,
                                   uint64_t *by_out, ferry_error *error)
{
    const fy_proof_held *held = &target->parameter->boxes[box];
    if (target->is_small) {
        marking m = {.target = target, .task_id = task_id};
        if (!fy_proof_held_visit(held, turns, counts, mark, &m)) {
            *twice_out = m.twice;
            *by_out = m.by;
            return FERRY_ERR_PROOF;
        }
        return FERRY_OK;
    }
    FY_TRY(FY_GROW(target->cells, target->cells_capacity, target->n_cells + 1,
                   "the moves into a parameter", error));
    fy_proof_cell *cell = &target->cells[target->n_cells++];
    *cell = (fy_proof_cell){.box = box, .turn = number_of_turn(held, turns)};
    cell->written.task_id = task_id;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        cell->written.begin[d] = turns[FY_PROOF_LOOPS + d];
        cell->written.end[d] = turns[FY_PROOF_LOOPS + d] + counts[FY_PROOF_LOOPS + d];
    }
    return FERRY_OK;
}

/* An element that nobody writes, by its tensor's index where it has one. */
static ferry_status fail_unwritten(const fy_proof_target *target, const fy_proof_spec *spec,
                                   size_t box, const uint64_t *turns, uint64_t next_task,
                                   ferry_error *error)
{
    const fy_proof_parameter *p = target->parameter;
    const fy_proof_held *held = &p->boxes[box];
    uint64_t address = held->offset;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        address += turns[i] * held->steps[i].stride;
    }
    if (target->is_of_fills) {
        return fy_fail(error, FERRY_ERR_PROOF,
                       "element %llu of %.*s on rank %llu is a fill, but the plan does not fill it",
                       (unsigned long long)address, NAME_BYTES, p->name,
                       (unsigned long long)target->rank);
    }
    const fy_proof_tensor *tensor = &spec->tensors[held->tensor];
    uint64_t element[FY_PROOF_DIMS];
    char text[100];
    fy_proof_held_element(held, turns, element);
    fy_proof_element_format(text, sizeof text, tensor->entry->n_dims, element);
    return fy_fail(
        error, FERRY_ERR_PROOF,
        "%.*s %s: no move writes it on rank %llu, element %llu of %.*s, before task %llu",
        NAME_BYTES, tensor->name, text, (unsigned long long)target->rank,
        (unsigned long long)address, NAME_BYTES, p->name, (unsigned long long)next_task);
}

/* Whether it is a box of scales, which the rank may make itself where no move writes any. */
static bool is_scales(const fy_proof_spec *spec, const fy_proof_held *box)
{
    return box->tensor != FY_PROOF_FILL && spec->tensors[box->tensor].entry->scaling != NULL;
}

/* Which boxes of a small parameter are written, and that of those of scales. */
static ferry_status note_touched(fy_proof_target *target, const fy_proof_spec *spec,
                                 ferry_error *error)
{
    const fy_proof_parameter *p = target->parameter;
    FY_TRY(FY_GROW(target->touched, target->touched_capacity, p->n_boxes + 1,
                   "the boxes of a parameter", error));
    memset(target->touched, 0, (p->n_boxes + 1) * sizeof *target->touched);
    for (uint64_t i = 0; i < p->elements; i++) {
        if (target->owners[i] != 0 && target->writers[i] != 0) {
            target->touched[target->owners[i] - 1] = true;
        }
    }
    for (size_t b = 0; b < p->n_boxes && !target->is_of_fills; b++) {
        FY_TRY(is_scales(spec, &p->boxes[b])
                   ? fy_proof_makers_add_box(target->makers, target->owned, b, target->touched[b],
                                             error)
                   : FERRY_OK);
    }
    return FERRY_OK;
}

static ferry_status close_small(fy_proof_target *target, const fy_proof_spec *spec,
                                uint64_t next_task, ferry_error *error)
{
    const fy_proof_parameter *p = target->parameter;
    FY_TRY(note_touched(target, spec, error));
    for (uint64_t i = 0; i < p->elements; i++) {
        if (target->owners[i] == 0 || target->writers[i] != 0) {
            continue;
        }
        size_t box = target->owners[i] - 1;
        uint64_t turns[FY_PROOF_STEPS];
        if (is_scales(spec, &p->boxes[box]) && !target->touched[box]) {
            continue;
        }
        if ((p->boxes[box].tensor == FY_PROOF_FILL) == target->is_of_fills) {
            fy_proof_held_find(&p->boxes[box], i, turns);
            return fail_unwritten(target, spec, box, turns, next_task, error);
        }
    }
    return FERRY_OK;
}

static int by_turn(const void *a, const void *b)
{
    const fy_proof_cell *x = a, *y = b;
    if (x->box != y->box) {
        return x->box < y->box ? -1 : 1;
    }
    return (x->turn > y->turn) - (x->turn < y->turn);
}

/* From the number of a turn of the loops back to the turns of each, before dimensions' begins. */
static void turns_of(const fy_proof_held *box, uint64_t number, const uint64_t *begin,
                     uint64_t *turns_out)
{
    for (size_t i = FY_PROOF_LOOPS; i-- > 0;) {
        turns_out[i] = number % box->steps[i].count;
        number /= box->steps[i].count;
    }
    memcpy(turns_out + FY_PROOF_LOOPS, begin, FY_PROOF_DIMS * sizeof *begin);
}

static ferry_status fail_twice(const fy_proof_target *target, const fy_proof_spec *spec,
                               const fy_proof_held *box, const uint64_t *turns,
                               const fy_proof_flaw *flaw, ferry_error *error)
{
    uint64_t address = box->offset;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        address += turns[i] * box->steps[i].stride;
    }
    return fy_fail(error, FERRY_ERR_PROOF,
                   "%s %llu: %.*s: element %llu of %.*s is written twice on rank %llu, by %s %llu "
                   "too",
                   target->is_of_fills ? "fill" : "task", (unsigned long long)flaw->tasks[1],
                   NAME_BYTES, fy_proof_held_name(spec, box), (unsigned long long)address,
                   NAME_BYTES, target->parameter->name, (unsigned long long)target->rank,
                   target->is_of_fills ? "fill" : "task", (unsigned long long)flaw->tasks[0]);
}

/* The cells of one turn of a box tile it. */
static ferry_status check_turn(fy_proof_target *target, const fy_proof_spec *spec,
                               const fy_proof_cell *cells, size_t n, uint64_t next_task,
                               ferry_error *error)
{
    const fy_proof_held *box = &target->parameter->boxes[cells[0].box];
    fy_proof_shard all = {.flat_end = 1};
    fy_proof_flaw flaw;
    uint64_t turns[FY_PROOF_STEPS];
    FY_TRY(FY_GROW(target->written, target->written_capacity, n, "the moves into a box", error));
    for (size_t i = 0; i < n; i++) {
        target->written[i] = cells[i].written;
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        all.shape[d] = box->steps[FY_PROOF_LOOPS + d].count;
        all.flat_end *= all.shape[d];
    }
    FY_TRY(fy_proof_cover_check(&all, FY_PROOF_DIMS, target->written, n, &flaw, error));
    if (!flaw.is_found) {
        return FERRY_OK;
    }
    turns_of(box, cells[0].turn, flaw.begin, turns);
    return flaw.is_twice ? fail_twice(target, spec, box, turns, &flaw, error)
                         : fail_unwritten(target, spec, cells[0].box, turns, next_task, error);
}

/* All turns of a box, whose cells are in order, and only those. */
static ferry_status check_box(fy_proof_target *target, const fy_proof_spec *spec, size_t box,
                              const fy_proof_cell *cells, size_t n, uint64_t next_task,
                              ferry_error *error)
{
    const fy_proof_held *held = &target->parameter->boxes[box];
    const uint64_t none[FY_PROOF_DIMS] = {0};
    uint64_t n_turns = 1, turn = 0;
    for (size_t i = 0; i < FY_PROOF_LOOPS; i++) {
        n_turns *= held->steps[i].count;
    }
    for (size_t first = 0; first < n; turn++) {
        size_t end = first;
        while (end < n && cells[end].turn == turn) {
            end++;
        }
        if (end == first) {
            break;
        }
        FY_TRY(check_turn(target, spec, cells + first, end - first, next_task, error));
        first = end;
    }
    if (turn == n_turns) {
        return FERRY_OK;
    }
    uint64_t turns[FY_PROOF_STEPS];
    turns_of(held, turn, none, turns);
    return fail_unwritten(target, spec, box, turns, next_task, error);
}

static ferry_status close_large(fy_proof_target *target, const fy_proof_spec *spec,
                                uint64_t next_task, ferry_error *error)
{
    const fy_proof_parameter *p = target->parameter;
    fy_sort(target->cells, target->n_cells, sizeof *target->cells, by_turn);
    for (size_t box = 0, first = 0; box < p->n_boxes; box++) {
        size_t end = first;
        if ((p->boxes[box].tensor == FY_PROOF_FILL) != target->is_of_fills) {
            continue;
        }
        while (end < target->n_cells && target->cells[end].box == box) {
            end++;
        }
        if (is_scales(spec, &p->boxes[box])) {
            FY_TRY(fy_proof_makers_add_box(target->makers, target->owned, box, end > first, error));
        }
        if (end > first || !is_scales(spec, &p->boxes[box])) {
            FY_TRY(
                check_box(target, spec, box, target->cells + first, end - first, next_task, error));
        }
        first = end;
    }
    return FERRY_OK;
}

ferry_status fy_proof_target_close(fy_proof_target *target, const fy_proof_spec *spec,
                                   uint64_t next_task, ferry_error *error)
{
    if (target->parameter == NULL) {
        return FERRY_OK;
    }
    ferry_status status = target->is_small ? close_small(target, spec, next_task, error)
                                           : close_large(target, spec, next_task, error);
    target->parameter = NULL;
    return status;
}

bool fy_proof_parameter_wants(const fy_proof_parameter *parameter, bool fills)
{
    for (size_t i = 0; i < parameter->n_boxes; i++) {
        if ((parameter->boxes[i].tensor == FY_PROOF_FILL) == fills) {
            return true;
        }
    }
    return false;
}
