/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The table of a handle: what is chosen, and what callers may ask of it. */
#include "base/alloc.h"
#include "base/checked.h"
#include "collective/tune_table.h"
#include "world/agree.h"

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
                tuning->tuned[n++] = (fy_tuned){t->bytes, t->mode, t->block_lines};
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
    const fy_geometry_limits *limits = &fy_comm_program(comm)->limits;
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

ferry_status fy_tune_meet(ferry_mixed_comm *comm, ferry_status status, const char *table,
                          uint64_t *share_inout, ferry_error *error)
{
    enum { DOES, TABLE, SHARE, N };
    fy_field fields[N] = {
        {.name = "autotune",
         .text = table == NULL ? "measuring" : "reading a saved table",
         .how = FY_SAME,
         .remedy = ": give all ranks the same tune_file or FERRY_TUNE_FILE, or none"},
        {.name = "the digest of the saved table",
         .text = table == NULL ? "" : table,
         .how = FY_SAME,
         .has_none = table == NULL,
         .remedy = ": give all ranks the same file (`ferry tune` makes one)"},
        {.value = *share_inout, .how = FY_LEAST}};
    FY_TRY(fy_agree_on(comm->world, FY_JOINT_MIXED_AUTOTUNE, fy_comm_object(comm), fields, N,
                       status, error));
    *share_inout = fields[SHARE].value;
    return FERRY_OK;
}

/*
 * Calls of the public API
 */

ferry_status ferry_mixed_comm_run_autotune(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_status status = fy_comm_take(comm, "run_autotune", error);
    if (status != FERRY_OK) {
        return status;
    }
    status = fy_comm_state(comm, error);
    FY_THEN(status, fy_comm_check_ready(comm, "run_autotune", error));
    FY_THEN(status, fy_comm_meet(comm, FY_MIX_OP_TUNE, error));
    if (status == FERRY_OK) {
        fy_joint_enter(comm->world, FY_JOINT_MIXED_AUTOTUNE, fy_comm_object(comm));
        status = fy_tune_run(comm, error);
        fy_joint_leave(comm->world);
    }
    fy_comm_give_back(comm);
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

enum { DIGEST_BYTES = 33 };

/* Of values, so that files which differ in blanks only are the same. */
static ferry_status format_digest(const fy_tuning *tuning, char text[DIGEST_BYTES],
                                  ferry_error *error)
{
    fy_digest digest = {0};
    for (size_t i = 0; i < tuning->n; i++) {
        const ferry_mixed_timing *t = &tuning->timings[i];
        uint64_t seconds;
        memcpy(&seconds, &t->seconds, sizeof seconds);
        fy_digest_u64(&digest, t->op);
        fy_digest_u64(&digest, t->bytes);
        fy_digest_u64(&digest, t->mode);
        fy_digest_u64(&digest, t->block_lines);
        fy_digest_u64(&digest, seconds);
        fy_digest_u64(&digest, t->chosen);
    }
    bool has_memory = !digest.failed;
    fy_hash128_print(fy_digest_take(&digest), text, DIGEST_BYTES);
    fy_digest_cleanup(&digest);
    return fy_check_memory(has_memory, "the digest of a saved table", error);
}

ferry_status fy_tune_load(ferry_mixed_comm *comm, const char *path, ferry_error *error)
{
    ferry_error own;
    fy_tuning *tuning = NULL;
    char digest[DIGEST_BYTES] = "";
    uint64_t no_share = UINT64_MAX;
    error = error == NULL ? &own : error;
    ferry_status status = fy_tuning_read(comm, path, &tuning, error);
    FY_THEN(status, format_digest(tuning, digest, error));
    status = fy_tune_meet(comm, status, digest, &no_share, error);
    if (status == FERRY_OK) {
        fy_tuning_adopt(comm, tuning);
        tuning = NULL;
    }
    fy_tune_destroy(tuning);
    return status;
}
