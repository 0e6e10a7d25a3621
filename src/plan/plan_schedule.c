/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The tasks of a plan: its moves between ranks, on its own cluster.
 *
 * Moves of one sender that read the same box of the same tensor carry the same bytes, which is what
 * relays live on. The plan is visited twice, for making moves is cheap and keeping them is not:
 * tasks are counted first, and put in their places then.
 */
#include "plan/core.h"
#include "schedule/tasks.h"

#include "base/options.h"

#include <string.h>

typedef struct making {
    fy_pair_maker maker;
    uint64_t slot_bytes;
    ferry_error *error;
} making;

static bool travels(const ferry_move *move)
{
    return move->from != move->to && move->bytes > 0;
}

static uint32_t element_of(const ferry_move *move)
{
    return move->dtype.element_bits < 8 ? 1 : (uint32_t)move->dtype.element_bits / 8;
}

static ferry_status count_task(void *context, const ferry_move *move)
{
    making *m = context;
    if (!travels(move)) {
        return FERRY_OK;
    }
    if (element_of(move) > m->slot_bytes) {
        return fy_fail(m->error, FERRY_ERR_INVALID_INPUT,
                       "%s: an element has %u bytes, more than a slot of %llu; slots must hold at "
                       "least one element",
                       move->tensor, element_of(move), (unsigned long long)m->slot_bytes);
    }
    return fy_pair_maker_count(&m->maker, move->from, move->to, m->error);
}

static uint64_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/*
 * Of what a move reads: a box of a tensor in the shard of a rank. A plan has one text for equal
 * names. Two boxes of one hash would take a search of 2^64 of them, so it stands for the box.
 */
static fy_hash128 origin_of(const ferry_move *move)
{
    const char *source = move->source == NULL ? move->tensor : move->source;
    uint64_t key[11 + 2 * FERRY_MAX_DIMS];
    size_t n = 0;
    key[n++] = (uint64_t)(uintptr_t)source;
    key[n++] = move->from;
    key[n++] = element_of(move);
    key[n++] = move->bytes;
    if (move->src_parameter != NULL) {
        key[n++] = (uint64_t)(uintptr_t)move->src_parameter;
        key[n++] = move->src_offset;
    }
    if (move->conversion != NULL && move->conversion->at_receiver) {
        /* The receiver has it in another form then: nobody can pass on what it got. */
        key[n++] = move->task_id;
        key[n++] = 0;
    } else if (move->conversion != NULL) {
        /* What travels is made of it: two that make the same are the same conversion. */
        key[n++] = (uint64_t)move->dst_dtype.kind << 8 | (move->conversion->saturates ? 3 : 1);
        key[n++] = bits_of(move->conversion->scale) << 32 | bits_of(move->conversion->add);
        key[n++] = (uint64_t)move->conversion->kind << 32 | move->conversion->scale_rule;
        key[n++] = move->conversion->block[0];
        key[n++] = move->conversion->block[1];
    }
    for (uint32_t d = 0; d < move->src_n_dims; d++) {
        key[n++] = move->src_parameter != NULL ? move->src_strides[d] : move->src_begin[d];
        key[n++] = move->src_length[d];
    }
    return fy_hash128_of(key, n * sizeof *key);
}

static ferry_status put_task(void *context, const ferry_move *move)
{
    making *m = context;
    if (!travels(move)) {
        return FERRY_OK;
    }
    fy_task task = {.id = move->task_id,
                    .bytes = move->bytes,
                    .element = element_of(move),
                    .content = FY_NO_CONTENT};
    return fy_pair_maker_put(&m->maker, move->from, move->to, &task, origin_of(move), m->error);
}

static ferry_status make_pairs(const ferry_plan *plan, uint64_t slot_bytes, fy_pairs *pairs,
                               ferry_error *error)
{
    making m = {.slot_bytes = slot_bytes == 0 ? FERRY_SLOT_BYTES : slot_bytes, .error = error};
    ferry_status status =
        fy_pair_maker_init(&m.maker, plan->problem.n_ranks, plan->totals.n_moves, pairs, error);
    FY_THEN(status, ferry_plan_visit(plan, FERRY_ALL_RANKS, count_task, &m, NULL, error));
    FY_THEN(status, fy_pair_maker_turn(&m.maker, error));
    FY_THEN(status, ferry_plan_visit(plan, FERRY_ALL_RANKS, put_task, &m, NULL, error));
    FY_THEN(status, fy_pair_maker_finish(&m.maker, error));
    fy_pair_maker_cleanup(&m.maker);
    return status;
}

ferry_status ferry_schedule_create_for_plan(const ferry_plan *plan,
                                            const ferry_schedule_options *options,
                                            ferry_schedule **schedule_out, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && schedule_out != NULL,
                        "ferry_schedule_create_for_plan needs a plan and a place for the schedule",
                        error));
    fy_pairs pairs = {0};
    ferry_schedule_options own;
    ferry_status status = fy_take_schedule_options(options, &own, error);
    if (status == FERRY_OK && own.progress != NULL) {
        static const ferry_schedule_progress first = {.doing = "listing what travels"};
        if (!own.progress(own.context, &first)) {
            status = fy_fail(error, FERRY_ERR_STOPPED, "was stopped before it was done");
        }
    }
    FY_THEN(status, make_pairs(plan, own.slot_bytes, &pairs, error));
    FY_THEN(status,
            fy_schedule_create_taking(&pairs, &plan->problem.cluster, &own, schedule_out, error));
    fy_pairs_cleanup(&pairs);
    return status;
}
