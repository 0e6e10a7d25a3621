/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Lists of batches of a world, their iterations, and one PE's part of them. */
#include "schedule/scheduled.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"
#include "base/sort.h"
#include "schedule/pack.h"
#include "schedule/rules.h"

ferry_status ferry_scheduled_batches_create(uint32_t n_pes, ferry_scheduled_batches **batches_out,
                                            ferry_error *error)
{
    if (batches_out == NULL || n_pes == 0 || n_pes > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a list of batches needs a place and a world of 1 to %u PEs, not %u",
                       FERRY_MAX_RANKS, n_pes);
    }
    ferry_scheduled_batches *batches = fy_alloc_zeroed(1, sizeof *batches);
    if (batches == NULL) {
        return fy_fail_no_memory(error, "a list of batches");
    }
    batches->n_pes = n_pes;
    *batches_out = batches;
    return FERRY_OK;
}

void ferry_scheduled_batches_destroy(ferry_scheduled_batches *batches)
{
    if (batches != NULL) {
        fy_free(batches->from);
        fy_free(batches->to);
        fy_free(batches->index);
        fy_free(batches->iteration);
        fy_free(batches->bytes);
        fy_free(batches);
    }
}

ferry_status fy_scheduled_append(ferry_scheduled_batches *batches, uint32_t from, uint32_t to,
                                 uint32_t index, uint64_t bytes, ferry_error *error)
{
    uint32_t **columns[4] = {&batches->from, &batches->to, &batches->index, &batches->iteration};
    size_t n = batches->n_batches;
    bool fits = fy_reserve((void **)&batches->bytes, &batches->capacities[4], n + 1,
                           sizeof *batches->bytes);
    for (size_t c = 0; c < 4 && fits; c++) {
        fits = fy_reserve((void **)columns[c], &batches->capacities[c], n + 1, sizeof **columns[c]);
    }
    if (!fits) {
        return fy_fail_no_memory(error, "a list of batches");
    }
    batches->from[n] = from;
    batches->to[n] = to;
    batches->index[n] = index;
    batches->iteration[n] = FERRY_NO_ITERATION;
    batches->bytes[n] = bytes;
    batches->n_batches = n + 1;
    return FERRY_OK;
}

ferry_status ferry_scheduled_batches_add(ferry_scheduled_batches *batches,
                                         const ferry_scheduled_batch *batch, ferry_error *error)
{
    if (batches == NULL || batch == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "adding a batch needs a list and a batch made with "
                       "FERRY_SCHEDULED_BATCH_INIT");
    }
    ferry_scheduled_batch b;
    ferry_status status = fy_take_scheduled_batch(batch, &b, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (b.source >= batches->n_pes || b.destination >= batches->n_pes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "batch %u goes from PE %u to PE %u, but there are %u PEs", b.batch_index,
                       b.source, b.destination, batches->n_pes);
    }
    if (b.source == b.destination) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "batch %u goes from PE %u to itself: such batches are not scheduled, leave "
                       "it out",
                       b.batch_index, b.source);
    }
    status =
        fy_scheduled_append(batches, b.source, b.destination, b.batch_index, b.total_bytes, error);
    if (status == FERRY_OK) {
        batches->iteration[batches->n_batches - 1] = b.iteration;
    }
    return status;
}

uint64_t ferry_scheduled_batches_count(const ferry_scheduled_batches *batches)
{
    return batches == NULL ? 0 : batches->n_batches;
}

static ferry_scheduled_batch batch_at(const ferry_scheduled_batches *batches, size_t i)
{
    return (ferry_scheduled_batch){.struct_size = sizeof(ferry_scheduled_batch),
                                   .source = batches->from[i],
                                   .destination = batches->to[i],
                                   .batch_index = batches->index[i],
                                   .iteration = batches->iteration[i],
                                   .total_bytes = batches->bytes[i]};
}

ferry_status ferry_scheduled_batches_at(const ferry_scheduled_batches *batches, uint64_t index,
                                        ferry_scheduled_batch *batch_out, ferry_error *error)
{
    if (index >= ferry_scheduled_batches_count(batches)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "batch %llu of %llu", (unsigned long long)index,
                       (unsigned long long)ferry_scheduled_batches_count(batches));
    }
    ferry_scheduled_batch batch = batch_at(batches, (size_t)index);
    return fy_copy_out(&batch, sizeof batch, batch_out, "a scheduled batch", error);
}

static int compare_batches(const void *a, const void *b)
{
    const ferry_scheduled_batch *x = a, *y = b;
    if (x->source != y->source) {
        return x->source < y->source ? -1 : 1;
    }
    if (x->destination != y->destination) {
        return x->destination < y->destination ? -1 : 1;
    }
    return (x->batch_index > y->batch_index) - (x->batch_index < y->batch_index);
}

static int compare_at(const ferry_scheduled_batches *batches, size_t i, size_t j)
{
    ferry_scheduled_batch x = batch_at(batches, i), y = batch_at(batches, j);
    return compare_batches(&x, &y);
}

static ferry_status sort_batches(ferry_scheduled_batches *batches, ferry_error *error)
{
    size_t n = batches->n_batches, i = 1;
    while (i < n && compare_at(batches, i - 1, i) <= 0) {
        i++;
    }
    if (i >= n) {
        return FERRY_OK;
    }
    ferry_scheduled_batch *sorted = fy_alloc(n, sizeof *sorted);
    if (sorted == NULL) {
        return fy_fail_no_memory(error, "sorting a list of batches");
    }
    for (i = 0; i < n; i++) {
        sorted[i] = batch_at(batches, i);
    }
    fy_sort(sorted, n, sizeof *sorted, compare_batches);
    for (i = 0; i < n; i++) {
        batches->from[i] = sorted[i].source;
        batches->to[i] = sorted[i].destination;
        batches->index[i] = sorted[i].batch_index;
        batches->iteration[i] = sorted[i].iteration;
        batches->bytes[i] = sorted[i].total_bytes;
    }
    fy_free(sorted);
    return FERRY_OK;
}

/* Adds a batch to what a PE sends or receives. */
static ferry_status count_batch(uint64_t *n, uint64_t *total, uint64_t bytes, uint32_t pe,
                                const char *verb, ferry_error *error)
{
    if (++*n > FY_MAX_DEGREE) {
        return fy_fail(error, FERRY_ERR_LIMIT, "PE %u %s more than %llu batches: use larger slots",
                       pe, verb, (unsigned long long)FY_MAX_DEGREE);
    }
    if (!fy_add(*total, bytes, total)) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "the batches that PE %u %s add up to more than 2^64 bytes", pe, verb);
    }
    return FERRY_OK;
}

ferry_status fy_scheduled_check(const ferry_scheduled_batches *batches, ferry_error *error)
{
    size_t n_pes = batches->n_pes;
    uint64_t *n = fy_alloc_zeroed(n_pes * 4, sizeof *n);
    if (n == NULL) {
        return fy_fail_no_memory(error, "the degrees of all PEs");
    }
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < batches->n_batches && status == FERRY_OK; i++) {
        uint32_t from = batches->from[i], to = batches->to[i];
        status = count_batch(&n[from], &n[n_pes + from], batches->bytes[i], from, "sends", error);
        if (status == FERRY_OK) {
            status = count_batch(&n[2 * n_pes + to], &n[3 * n_pes + to], batches->bytes[i], to,
                                 "receives", error);
        }
    }
    fy_free(n);
    return status;
}

static ferry_status check_distinct(const ferry_scheduled_batches *batches, ferry_error *error)
{
    for (size_t i = 1; i < batches->n_batches; i++) {
        if (compare_at(batches, i - 1, i) == 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "batch %u from PE %u to PE %u is in the list twice", batches->index[i],
                           batches->from[i], batches->to[i]);
        }
    }
    return FERRY_OK;
}

ferry_status ferry_assign_iterations(ferry_scheduled_batches *batches, uint32_t rule,
                                     uint32_t duplex, uint32_t *n_iterations_out,
                                     ferry_error *error)
{
    if (batches == NULL || n_iterations_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "assigning iterations needs a list of batches and a place for their number");
    }
    uint32_t *rounds = NULL;
    ferry_status status = sort_batches(batches, error);
    if (status == FERRY_OK) {
        status = check_distinct(batches, error);
    }
    if (status == FERRY_OK) {
        status = fy_scheduled_check(batches, error);
    }
    if (status == FERRY_OK && (rounds = fy_alloc(batches->n_batches, sizeof *rounds)) == NULL) {
        status = fy_fail_no_memory(error, "the iterations of all batches");
    }
    if (status == FERRY_OK) {
        status = fy_choose_rounds(rule, duplex, batches->n_pes, batches->n_batches, batches->from,
                                  batches->to, rounds, n_iterations_out, error);
    }
    if (status == FERRY_OK) {
        fy_free(batches->iteration);
        batches->iteration = rounds;
        batches->capacities[3] = batches->n_batches;
        rounds = NULL;
    }
    fy_free(rounds);
    return status;
}

ferry_status ferry_has_conflict(const ferry_scheduled_batch *batch, uint32_t iteration,
                                const ferry_scheduled_batches *all_batches, uint32_t duplex,
                                bool *conflict_out, ferry_error *error)
{
    if (batch == NULL || all_batches == NULL || conflict_out == NULL ||
        duplex > FERRY_DUPLEX_HALF) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a conflict is asked of a batch made with FERRY_SCHEDULED_BATCH_INIT, a "
                       "list, a ferry_duplex (not %u) and a place for the result",
                       duplex);
    }
    ferry_scheduled_batch own;
    ferry_status status = fy_take_scheduled_batch(batch, &own, error);
    if (status != FERRY_OK) {
        return status;
    }
    const ferry_scheduled_batches *all = all_batches;
    uint32_t from = own.source, to = own.destination;
    bool conflict = false;
    for (size_t i = 0; i < all->n_batches && !conflict; i++) {
        bool is_same = all->from[i] == from && all->to[i] == to && all->index[i] == own.batch_index;
        bool meets = all->from[i] == from || all->to[i] == to ||
                     (duplex == FERRY_DUPLEX_HALF && (all->from[i] == to || all->to[i] == from));
        conflict = all->iteration[i] == iteration && !is_same && meets;
    }
    *conflict_out = conflict;
    return FERRY_OK;
}

/* Columns of numbers are hashed as they lie; their lengths are equal, so no two lists run together.
 */
fy_hash128 fy_scheduled_hash(const ferry_scheduled_batches *batches)
{
    static const uint64_t places[5] = {1, 2, 3, 4, 5};
    const uint32_t *columns[4] = {batches->from, batches->to, batches->index, batches->iteration};
    size_t n = batches->n_batches;
    uint64_t words[15];
    for (size_t c = 0; c < 5; c++) {
        fy_hash128 hash = c < 4 ? fy_hash128_of(columns[c], n * sizeof **columns)
                                : fy_hash128_of(batches->bytes, n * sizeof *batches->bytes);
        words[3 * c] = places[c];
        words[3 * c + 1] = hash.low;
        words[3 * c + 2] = hash.high;
    }
    return fy_hash128_of(words, sizeof words);
}

ferry_status fy_local_schedule_create(const ferry_scheduled_batches *batches, uint32_t my_pe,
                                      uint32_t n_iterations, ferry_local_schedule **schedule_out,
                                      ferry_error *error)
{
    ferry_local_schedule *s = fy_alloc_zeroed(1, sizeof *s);
    uint64_t *begin = fy_alloc_zeroed((size_t)n_iterations + 2, sizeof *begin);
    size_t n = 0;
    for (size_t i = 0; begin != NULL && i < batches->n_batches; i++) {
        if (batches->from[i] == my_pe || batches->to[i] == my_pe) {
            begin[batches->iteration[i] + 2]++;
            n++;
        }
    }
    ferry_scheduled_batch *own = fy_alloc(n, sizeof *own);
    if (s == NULL || begin == NULL || own == NULL) {
        fy_free(s);
        fy_free(begin);
        fy_free(own);
        return fy_fail_no_memory(error, "the schedule of a PE");
    }
    for (size_t i = 2; i < (size_t)n_iterations + 2; i++) {
        begin[i] += begin[i - 1];
    }
    /* begin[i + 1] is where the next batch of iteration i goes; in the end, where i + 1 begins. */
    for (size_t i = 0; i < batches->n_batches; i++) {
        if (batches->from[i] == my_pe || batches->to[i] == my_pe) {
            own[begin[batches->iteration[i] + 1]++] = batch_at(batches, i);
        }
    }
    *s = (ferry_local_schedule){
        .my_pe = my_pe, .n_iterations = n_iterations, .begin = begin, .batches = own};
    *schedule_out = s;
    return FERRY_OK;
}

void ferry_local_schedule_destroy(ferry_local_schedule *schedule)
{
    if (schedule != NULL) {
        fy_free(schedule->begin);
        fy_free(schedule->batches);
        fy_free(schedule);
    }
}

uint32_t ferry_local_schedule_iteration_count(const ferry_local_schedule *schedule)
{
    return schedule == NULL ? 0 : schedule->n_iterations;
}

uint32_t ferry_local_schedule_count(const ferry_local_schedule *schedule, uint32_t iteration)
{
    if (iteration >= ferry_local_schedule_iteration_count(schedule)) {
        return 0;
    }
    return (uint32_t)(schedule->begin[iteration + 1] - schedule->begin[iteration]);
}

ferry_status ferry_local_schedule_at(const ferry_local_schedule *schedule, uint32_t iteration,
                                     uint32_t index, ferry_scheduled_batch *batch_out,
                                     ferry_error *error)
{
    uint32_t n = ferry_local_schedule_count(schedule, iteration);
    if (index >= n) {
        return fy_fail(error, FERRY_ERR_MISUSE, "batch %u of the %u of iteration %u", index, n,
                       iteration);
    }
    return fy_copy_out(&schedule->batches[schedule->begin[iteration] + index],
                       sizeof *schedule->batches, batch_out, "a scheduled batch", error);
}

void ferry_local_schedule_digest(const ferry_local_schedule *schedule, char digest_out[33])
{
    fy_hash128 none = {0, 0};
    fy_hash128_format(schedule == NULL ? none : schedule->digest, digest_out);
}
