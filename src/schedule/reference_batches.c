/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Lists of batches of a world, their rounds, and one rank's part of them. */
#include "schedule/reference_batches.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"
#include "base/sort.h"
#include "schedule/pack.h"
#include "schedule/rules.h"

ferry_status ferry_reference_batches_create(uint32_t n_ranks, ferry_reference_batches **batches_out,
                                            ferry_error *error)
{
    if (batches_out == NULL || n_ranks == 0 || n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a list of batches needs a place and a world of 1 to %u ranks, not %u",
                       FERRY_MAX_RANKS, n_ranks);
    }
    ferry_reference_batches *batches = fy_alloc_zeroed(1, sizeof *batches);
    FY_TRY(fy_check_memory(batches != NULL, "a list of batches", error));
    batches->n_ranks = n_ranks;
    *batches_out = batches;
    return FERRY_OK;
}

void ferry_reference_batches_destroy(ferry_reference_batches *batches)
{
    if (batches != NULL) {
        fy_free(batches->items);
        fy_free(batches);
    }
}

ferry_status fy_scheduled_append(ferry_reference_batches *batches, uint32_t from, uint32_t to,
                                 uint32_t index, uint64_t bytes, ferry_error *error)
{
    FY_TRY(FY_GROW(batches->items, batches->capacity, batches->n_batches + 1, "a list of batches",
                   error));
    batches->items[batches->n_batches++] = (fy_scheduled_batch){
        .from = from, .to = to, .index = index, .round = FERRY_REFERENCE_NO_ROUND, .bytes = bytes};
    return FERRY_OK;
}

ferry_status ferry_reference_batches_add(ferry_reference_batches *batches,
                                         const ferry_reference_batch *batch, ferry_error *error)
{
    FY_TRY(fy_check_use(
        batches != NULL && batch != NULL,
        "adding a batch needs a list and a batch made with FERRY_REFERENCE_BATCH_INIT", error));
    ferry_reference_batch b;
    FY_TRY(fy_take_reference_batch(batch, &b, error));
    if (b.from >= batches->n_ranks || b.to >= batches->n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "batch %u goes from rank %u to rank %u, but there are %u ranks", b.index,
                       b.from, b.to, batches->n_ranks);
    }
    if (b.from == b.to) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "batch %u goes from rank %u to itself: such batches are not scheduled, leave "
            "it out",
            b.index, b.from);
    }
    FY_TRY(fy_scheduled_append(batches, b.from, b.to, b.index, b.bytes, error));
    batches->items[batches->n_batches - 1].round = b.round;
    return FERRY_OK;
}

uint64_t ferry_reference_batches_count(const ferry_reference_batches *batches)
{
    return batches == NULL ? 0 : batches->n_batches;
}

static ferry_reference_batch batch_of(const fy_scheduled_batch *batch)
{
    return (ferry_reference_batch){.struct_size = sizeof(ferry_reference_batch),
                                   .from = batch->from,
                                   .to = batch->to,
                                   .index = batch->index,
                                   .round = batch->round,
                                   .bytes = batch->bytes};
}

ferry_status ferry_reference_batches_at(const ferry_reference_batches *batches, uint64_t index,
                                        ferry_reference_batch *batch_out, ferry_error *error)
{
    if (index >= ferry_reference_batches_count(batches)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "batch %llu of %llu", (unsigned long long)index,
                       (unsigned long long)ferry_reference_batches_count(batches));
    }
    ferry_reference_batch batch = batch_of(&batches->items[index]);
    return fy_copy_out(&batch, sizeof batch, batch_out, "ferry_reference_batch", error);
}

static int compare_batches(const void *a, const void *b)
{
    const fy_scheduled_batch *x = a, *y = b;
    if (x->from != y->from) {
        return x->from < y->from ? -1 : 1;
    }
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    return (x->index > y->index) - (x->index < y->index);
}

/* Adds a batch to what a rank sends or receives. */
static ferry_status count_batch(uint64_t *n, uint64_t *total, uint64_t bytes, uint32_t pe,
                                const char *verb, ferry_error *error)
{
    if (++*n > FY_MAX_DEGREE) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "rank %u %s more than %llu batches: use larger slots", pe, verb,
                       (unsigned long long)FY_MAX_DEGREE);
    }
    if (!fy_add(*total, bytes, total)) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "the batches that rank %u %s add up to more than 2^64 bytes", pe, verb);
    }
    return FERRY_OK;
}

ferry_status fy_scheduled_check(const ferry_reference_batches *batches, ferry_error *error)
{
    size_t n_ranks = batches->n_ranks;
    uint64_t *n = fy_alloc_zeroed(n_ranks * 4, sizeof *n);
    FY_TRY(fy_check_memory(n != NULL, "the degrees of all ranks", error));
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < batches->n_batches && status == FERRY_OK; i++) {
        const fy_scheduled_batch *b = &batches->items[i];
        uint32_t from = b->from, to = b->to;
        status = count_batch(&n[from], &n[n_ranks + from], b->bytes, from, "sends", error);
        FY_THEN(status, count_batch(&n[2 * n_ranks + to], &n[3 * n_ranks + to], b->bytes, to,
                                    "receives", error));
    }
    fy_free(n);
    return status;
}

static ferry_status check_distinct(const ferry_reference_batches *batches, ferry_error *error)
{
    for (size_t i = 1; i < batches->n_batches; i++) {
        const fy_scheduled_batch *b = &batches->items[i];
        if (compare_batches(b - 1, b) == 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "batch %u from rank %u to rank %u is in the list twice", b->index,
                           b->from, b->to);
        }
    }
    return FERRY_OK;
}

ferry_status ferry_reference_batches_assign_rounds(ferry_reference_batches *batches, uint32_t rule,
                                                   uint32_t duplex, uint32_t *n_rounds_out,
                                                   ferry_error *error)
{
    FY_TRY(fy_check_use(batches != NULL && n_rounds_out != NULL,
                        "assigning rounds needs a list of batches and a place for their number",
                        error));
    fy_edges edges = {0};
    fy_sort(batches->items, batches->n_batches, sizeof *batches->items, compare_batches);
    ferry_status status = check_distinct(batches, error);
    FY_THEN(status, fy_scheduled_check(batches, error));
    FY_THEN(status, fy_edges_init(&edges, batches->n_ranks, batches->n_batches, error));
    for (size_t i = 0; i < batches->n_batches && status == FERRY_OK; i++) {
        fy_edges_add(&edges, batches->items[i].from, batches->items[i].to, FY_NO_COLOUR);
    }
    FY_THEN(status, fy_choose_rounds(rule, duplex, &edges, error));
    for (size_t i = 0; i < batches->n_batches && status == FERRY_OK; i++) {
        batches->items[i].round = edges.round[i];
    }
    if (status == FERRY_OK) {
        *n_rounds_out = edges.n_rounds;
    }
    fy_edges_cleanup(&edges);
    return status;
}

ferry_status ferry_reference_batches_has_conflict(const ferry_reference_batches *batches,
                                                  const ferry_reference_batch *batch,
                                                  uint32_t round, uint32_t duplex,
                                                  bool *conflict_out, ferry_error *error)
{
    if (batch == NULL || batches == NULL || conflict_out == NULL || duplex > FERRY_DUPLEX_HALF) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a conflict is asked of a batch made with FERRY_REFERENCE_BATCH_INIT, a "
                       "list, a ferry_duplex (not %u) and a place for the result",
                       duplex);
    }
    ferry_reference_batch own;
    FY_TRY(fy_take_reference_batch(batch, &own, error));
    uint32_t from = own.from, to = own.to;
    bool conflict = false;
    for (size_t i = 0; i < batches->n_batches && !conflict; i++) {
        const fy_scheduled_batch *b = &batches->items[i];
        bool is_same = b->from == from && b->to == to && b->index == own.index;
        bool meets = b->from == from || b->to == to ||
                     (duplex == FERRY_DUPLEX_HALF && (b->from == to || b->to == from));
        conflict = b->round == round && !is_same && meets;
    }
    *conflict_out = conflict;
    return FERRY_OK;
}

fy_hash128 fy_scheduled_hash(const ferry_reference_batches *batches)
{
    /* Numbers without a gap between them. */
    return fy_hash128_of(batches->items, batches->n_batches * sizeof *batches->items);
}

ferry_status fy_reference_schedule_create(const ferry_reference_batches *batches, uint32_t rank,
                                          uint32_t n_rounds,
                                          ferry_reference_schedule **schedule_out,
                                          ferry_error *error)
{
    ferry_reference_schedule *s = fy_alloc_zeroed(1, sizeof *s);
    uint64_t *begin = fy_alloc_zeroed((size_t)n_rounds + 2, sizeof *begin);
    size_t n = 0;
    for (size_t i = 0; begin != NULL && i < batches->n_batches; i++) {
        if (batches->items[i].from == rank || batches->items[i].to == rank) {
            begin[batches->items[i].round + 2]++;
            n++;
        }
    }
    ferry_reference_batch *own = fy_alloc(n, sizeof *own);
    if (s == NULL || begin == NULL || own == NULL) {
        fy_free(s);
        fy_free(begin);
        fy_free(own);
        return fy_fail_no_memory(error, "the schedule of a rank");
    }
    for (size_t i = 2; i < (size_t)n_rounds + 2; i++) {
        begin[i] += begin[i - 1];
    }
    /* begin[i + 1] is where the next batch of round i goes; in the end, where i + 1 begins. */
    for (size_t i = 0; i < batches->n_batches; i++) {
        if (batches->items[i].from == rank || batches->items[i].to == rank) {
            own[begin[batches->items[i].round + 1]++] = batch_of(&batches->items[i]);
        }
    }
    *s = (ferry_reference_schedule){
        .rank = rank, .n_rounds = n_rounds, .begin = begin, .batches = own};
    *schedule_out = s;
    return FERRY_OK;
}

void ferry_reference_schedule_destroy(ferry_reference_schedule *schedule)
{
    if (schedule != NULL) {
        fy_free(schedule->begin);
        fy_free(schedule->batches);
        fy_free(schedule);
    }
}

uint32_t ferry_reference_schedule_round_count(const ferry_reference_schedule *schedule)
{
    return schedule == NULL ? 0 : schedule->n_rounds;
}

/* A rank sends at most one batch in a round, and receives at most one. */
static ferry_status find_own(const ferry_reference_schedule *schedule, uint32_t round, bool sends,
                             bool *found_out, ferry_reference_batch *batch_out, ferry_error *error)
{
    if (found_out == NULL || round >= ferry_reference_schedule_round_count(schedule)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "round %u of a schedule of %u: one that is there and a place are needed",
                       round, ferry_reference_schedule_round_count(schedule));
    }
    ferry_status status = FERRY_OK;
    bool found = false;
    for (uint64_t b = schedule->begin[round]; b < schedule->begin[round + 1]; b++) {
        if ((schedule->batches[b].from == schedule->rank) == sends) {
            found = true;
            status = fy_copy_out(&schedule->batches[b], sizeof *schedule->batches, batch_out,
                                 "ferry_reference_batch", error);
        }
    }
    if (status == FERRY_OK) {
        *found_out = found;
    }
    return status;
}

ferry_status ferry_reference_schedule_send_at(const ferry_reference_schedule *schedule,
                                              uint32_t round, bool *sends_out,
                                              ferry_reference_batch *batch_out, ferry_error *error)
{
    return find_own(schedule, round, true, sends_out, batch_out, error);
}

ferry_status ferry_reference_schedule_receive_at(const ferry_reference_schedule *schedule,
                                                 uint32_t round, bool *receives_out,
                                                 ferry_reference_batch *batch_out,
                                                 ferry_error *error)
{
    return find_own(schedule, round, false, receives_out, batch_out, error);
}

size_t ferry_reference_schedule_digest(const ferry_reference_schedule *schedule, char *text,
                                       size_t text_bytes)
{
    return fy_hash128_print(schedule == NULL ? (fy_hash128){0, 0} : schedule->digest, text,
                            text_bytes);
}
