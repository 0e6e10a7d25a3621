/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The table of a handle: what is chosen, and what callers may ask of it. */
#include "base/alloc.h"
#include "base/checked.h"
#include "collective/tune_table.h"
#include "transport/agree.h"

#include <stdlib.h>
#include <string.h>

fy_tuning *fy_tuning_create(size_t room)
{
    fy_tuning *tuning = fy_alloc_zeroed(1, sizeof *tuning);
    if (tuning == NULL) {
        return NULL;
    }
    tuning->room = room;
    tuning->timings = fy_alloc_zeroed(room, sizeof *tuning->timings);
    tuning->tuned = fy_alloc_zeroed(room, sizeof *tuning->tuned);
    if (tuning->timings == NULL || tuning->tuned == NULL) {
        fy_tune_destroy(tuning);
        return NULL;
    }
    return tuning;
}

void fy_tune_destroy(fy_tuning *tuning)
{
    if (tuning != NULL) {
        fy_free(tuning->timings);
        fy_free(tuning->tuned);
        fy_free(tuning);
    }
}

void fy_tuning_index(fy_tuning *tuning)
{
    size_t n = 0, i = 0;
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        tuning->first[op] = n;
        for (; i < tuning->n && tuning->timings[i].op == op; i++) {
            const ferry_mixed_timing *t = &tuning->timings[i];
            if (t->chosen) {
                tuning->tuned[n++] = (fy_tuned){t->bytes, t->mode, t->block_size};
            }
        }
    }
    tuning->first[FERRY_MIXED_N_OPS] = n;
}

void fy_tuning_adopt(ferry_mixed_comm *comm, fy_tuning *tuning)
{
    fy_tune_destroy(comm->tuning);
    comm->tuning = tuning;
    if (!fy_comm_has_mode(comm, FERRY_MIXED_AUTOTUNE)) {
        comm->modes[comm->n_modes++] = FERRY_MIXED_AUTOTUNE;
    }
}

uint32_t fy_tuning_most_lines(const ferry_mixed_comm *comm)
{
    const fy_geometry_limits *limits = &comm->limits;
    return limits->max_lines == 0 ? limits->most_lines
                                  : (uint32_t)fy_min(limits->max_lines, limits->most_lines);
}

/* Between two measured sizes the border is their geometric mean; both sides of it are quotients,
 * so no size is too large. */
void fy_tune_select(const ferry_mixed_comm *comm, uint32_t op, uint64_t piece_bytes,
                    uint32_t *mode_out, uint32_t *block_lines_out)
{
    const fy_tuning *tuning = comm->tuning;
    const fy_tuned *first = tuning->tuned + tuning->first[op];
    const fy_tuned *end = tuning->tuned + tuning->first[op + 1];
    const fy_tuned *found = first;
    double bytes = (double)piece_bytes;
    while (found + 1 < end && bytes / (double)found->bytes > (double)found[1].bytes / bytes) {
        found++;
    }
    *mode_out = found->mode;
    *block_lines_out = found->block_lines;
}

/*
 * Beginning
 */

static ferry_status compare_votes(const ferry_mixed_comm *comm, const fy_votes *votes,
                                  fy_tune_visit visit, void *context, ferry_error *error)
{
    static const char *const does[] = {"measures", "reads a saved table"};

    size_t at = 0, n_bytes = 0;
    fy_tune_vote first = {0}, vote;
    ferry_status status = FERRY_OK;
    for (uint32_t rank = 0; status == FERRY_OK && rank < comm->world->n_ranks; rank++) {
        const void *bytes = fy_votes_next(votes, rank, &at, &n_bytes);
        if (n_bytes != sizeof vote) {
            return fy_fail(error, FERRY_ERR_MISUSE, "autotune: rank %u makes another call", rank);
        }
        memcpy(&vote, bytes, sizeof vote);
        first = rank == 0 ? vote : first;
        if (vote.reads != first.reads) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "autotune: rank 0 %s, but rank %u %s: give all ranks the same tune_file "
                           "or FERRY_TUNE_FILE, or none",
                           does[first.reads != 0], rank, does[vote.reads != 0]);
        }
        if (visit != NULL) {
            status = visit(context, rank, &vote, error);
        }
    }
    return status;
}

ferry_status fy_tune_meet(ferry_mixed_comm *comm, ferry_status status, const fy_tune_vote *mine,
                          fy_tune_visit visit, void *context, ferry_error *error)
{
    fy_vote vote = {status, error, mine, sizeof *mine};
    fy_votes votes = {0};
    ferry_status gathered = fy_votes_gather(comm->world, &vote, &votes, error);
    if (gathered == FERRY_OK) {
        gathered = fy_votes_status(&votes, error);
    }
    return gathered == FERRY_OK ? compare_votes(comm, &votes, visit, context, error) : gathered;
}

/*
 * Calls of the public API
 */

static ferry_status check_ready(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_status status = fy_comm_state(comm, error);
    if (status == FERRY_OK &&
        (!comm->inside_ready || (!comm->between_ready && comm->topology.inter_size > 1))) {
        status = fy_fail(error, FERRY_ERR_MISUSE,
                         "run_autotune needs init_virtual_memory, and with several nodes "
                         "init_nvshmem, before it");
    }
    return status;
}

ferry_status ferry_mixed_comm_run_autotune(ferry_mixed_comm *comm, ferry_error *error)
{
    if (comm == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "run_autotune needs a mixed collective");
    }
    if (atomic_exchange_explicit(&comm->busy, true, memory_order_acquire)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "run_autotune: another thread, or a request, uses this handle now");
    }
    ferry_status status = FERRY_OK;
    if (comm->finished) {
        status = fy_fail(error, FERRY_ERR_MISUSE,
                         "run_autotune after shutdown; only destroy may follow");
    }
    if (status == FERRY_OK) {
        status = check_ready(comm, error);
    }
    if (status == FERRY_OK) {
        status = fy_comm_meet(comm, FY_OP_TUNE, error);
    }
    if (status == FERRY_OK) {
        fy_joint_enter(comm->world, FY_JOINT_MIXED_AUTOTUNE, fy_comm_object(comm));
        status = fy_tune_run(comm, error);
        fy_joint_leave(comm->world);
    }
    atomic_store_explicit(&comm->busy, false, memory_order_release);
    return status;
}

size_t ferry_mixed_comm_timing_count(const ferry_mixed_comm *comm)
{
    return comm == NULL || comm->tuning == NULL ? 0 : comm->tuning->n;
}

ferry_status ferry_mixed_comm_timing_at(const ferry_mixed_comm *comm, size_t index,
                                        ferry_mixed_timing *timing_out, ferry_error *error)
{
    if (timing_out == NULL || index >= ferry_mixed_comm_timing_count(comm)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_mixed_comm_timing_at needs a mixed collective, a timing of it and a "
                       "place");
    }
    return fy_copy_out(&comm->tuning->timings[index], sizeof *timing_out, timing_out,
                       "ferry_mixed_timing", error);
}

ferry_status ferry_mixed_comm_save_tuning(const ferry_mixed_comm *comm, const char *path,
                                          ferry_error *error)
{
    if (comm == NULL || path == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "save_tuning needs a mixed collective and a path");
    }
    if (comm->tuning == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "save_tuning: there is no table; run_autotune makes one");
    }
    return fy_tuning_write(comm, comm->tuning, path, error);
}

static ferry_status same_table(void *context, uint32_t rank, const fy_tune_vote *vote,
                               ferry_error *error)
{
    fy_tune_vote *first = context;
    *first = rank == 0 ? *vote : *first;
    if (vote->a != first->a || vote->b != first->b) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the saved table of rank %u is not that of rank 0: give all ranks the same "
                       "file (`ferry tune` makes one)",
                       rank);
    }
    return FERRY_OK;
}

/* Of values, so that files which differ in blanks only are the same. */
static fy_tune_vote vote_on(const fy_tuning *tuning, ferry_status *status, ferry_error *error)
{
    fy_digest digest = {0};
    for (size_t i = 0; i < tuning->n; i++) {
        const ferry_mixed_timing *t = &tuning->timings[i];
        uint64_t seconds;
        memcpy(&seconds, &t->seconds, sizeof seconds);
        fy_digest_u64(&digest, t->op);
        fy_digest_u64(&digest, t->bytes);
        fy_digest_u64(&digest, t->mode);
        fy_digest_u64(&digest, t->block_size);
        fy_digest_u64(&digest, seconds);
        fy_digest_u64(&digest, t->chosen);
    }
    if (digest.failed) {
        *status = fy_fail_no_memory(error, "the digest of a saved table");
    }
    fy_hash128 hash = fy_digest_take(&digest);
    fy_digest_cleanup(&digest);
    return (fy_tune_vote){.reads = 1, .a = hash.low, .b = hash.high};
}

ferry_status fy_tune_load(ferry_mixed_comm *comm, const char *path, ferry_error *error)
{
    ferry_error own;
    fy_tuning *tuning = NULL;
    fy_tune_vote mine = {.reads = 1}, first;
    error = error == NULL ? &own : error;
    ferry_status status = fy_tuning_read(comm, path, &tuning, error);
    if (status == FERRY_OK) {
        mine = vote_on(tuning, &status, error);
    }
    status = fy_tune_meet(comm, status, &mine, same_table, &first, error);
    if (status == FERRY_OK) {
        fy_tuning_adopt(comm, tuning);
        tuning = NULL;
    }
    fy_tune_destroy(tuning);
    return status;
}
