/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/tally.h"

#include "base/checked.h"

ferry_status fy_proof_tally_init(fy_proof_tally *tally, const fy_proof_spec *spec,
                                 ferry_error *error)
{
    *tally = (fy_proof_tally){.spec = spec};
    tally->n_lines = (size_t)(spec->sides[FY_PROOF_DESTINATION].mesh.n_ranks +
                              spec->sides[FY_PROOF_SOURCE].mesh.n_ranks);
    tally->counted = fy_alloc_zeroed(tally->n_lines, sizeof *tally->counted);
    tally->stated = fy_alloc_zeroed(tally->n_lines, sizeof *tally->stated);
    tally->is_listed = fy_alloc_zeroed(tally->n_lines, sizeof *tally->is_listed);
    if (tally->counted == NULL || tally->stated == NULL || tally->is_listed == NULL) {
        fy_proof_tally_cleanup(tally);
        return fy_fail_no_memory(error, "the totals of the ranks");
    }
    return FERRY_OK;
}

void fy_proof_tally_cleanup(fy_proof_tally *tally)
{
    fy_free(tally->counted);
    fy_free(tally->stated);
    fy_free(tally->is_listed);
    *tally = (fy_proof_tally){0};
}

/* A rank of both meshes has the line of the destination. */
static bool find_line(const fy_proof_tally *tally, uint64_t rank, size_t *line_out)
{
    const fy_proof_mesh *to = &tally->spec->sides[FY_PROOF_DESTINATION].mesh;
    const fy_proof_mesh *from = &tally->spec->sides[FY_PROOF_SOURCE].mesh;
    uint64_t position;
    if (fy_proof_mesh_find(to, rank, &position)) {
        *line_out = (size_t)position;
        return true;
    }
    if (fy_proof_mesh_find(from, rank, &position)) {
        *line_out = (size_t)(to->n_ranks + position);
        return true;
    }
    return false;
}

ferry_status fy_proof_tally_move(fy_proof_tally *tally, const fy_proof_move *move,
                                 ferry_error *error)
{
    size_t from, to;
    bool is_local = move->from == move->to;
    uint64_t *sum = is_local ? &tally->local : &tally->moved;
    if (!find_line(tally, move->from, &from) || !find_line(tally, move->to, &to) ||
        !fy_add(*sum, move->bytes, sum)) {
        return fy_fail(error, FERRY_ERR_LIMIT, "task %llu: the bytes of the plan exceed 2^64",
                       (unsigned long long)move->task_id);
    }
    if (is_local) {
        tally->counted[to].local += move->bytes;
    } else {
        tally->counted[to].in += move->bytes;
        tally->counted[from].out += move->bytes;
    }
    tally->n_moves++;
    return FERRY_OK;
}

ferry_status fy_proof_tally_rank(fy_proof_tally *tally, uint64_t rank, fy_proof_bytes bytes,
                                 ferry_error *error)
{
    size_t line;
    if (!find_line(tally, rank, &line)) {
        if (bytes.in == 0 && bytes.out == 0 && bytes.local == 0) {
            return FERRY_OK; /* an idle rank */
        }
        return fy_fail(error, FERRY_ERR_PROOF,
                       "rank %llu is on neither side, but the plan states bytes for it",
                       (unsigned long long)rank);
    }
    if (tally->is_listed[line]) {
        return fy_fail(error, FERRY_ERR_PROOF, "the plan states the bytes of rank %llu twice",
                       (unsigned long long)rank);
    }
    tally->is_listed[line] = true;
    tally->stated[line] = bytes;
    return FERRY_OK;
}

static ferry_status compare(const char *what, uint64_t stated, uint64_t counted, ferry_error *error)
{
    if (stated == counted) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_PROOF, "the plan states %llu %s, but its moves sum to %llu",
                   (unsigned long long)stated, what, (unsigned long long)counted);
}

static ferry_status check_line(const fy_proof_tally *tally, size_t line, ferry_error *error)
{
    const fy_proof_mesh *to = &tally->spec->sides[FY_PROOF_DESTINATION].mesh;
    const fy_proof_mesh *from = &tally->spec->sides[FY_PROOF_SOURCE].mesh;
    const fy_proof_bytes *stated = &tally->stated[line];
    const fy_proof_bytes *counted = &tally->counted[line];
    if (stated->in == counted->in && stated->out == counted->out &&
        stated->local == counted->local) {
        return FERRY_OK;
    }
    uint64_t rank = line < to->n_ranks ? fy_proof_mesh_rank(to, line)
                                       : fy_proof_mesh_rank(from, line - to->n_ranks);
    return fy_fail(
        error, FERRY_ERR_PROOF,
        "rank %llu: the plan states %llu bytes in, %llu out and %llu local, but its moves "
        "sum to %llu, %llu and %llu",
        (unsigned long long)rank, (unsigned long long)stated->in, (unsigned long long)stated->out,
        (unsigned long long)stated->local, (unsigned long long)counted->in,
        (unsigned long long)counted->out, (unsigned long long)counted->local);
}

/* The world is 0 to the largest rank of both meshes. */
static ferry_status check_world(const fy_proof_tally *tally, ferry_error *error)
{
    uint64_t world = 0;
    for (int i = 0; i < FY_PROOF_SIDES; i++) {
        const fy_proof_mesh *mesh = &tally->spec->sides[i].mesh;
        world = fy_max(world, fy_proof_mesh_rank(mesh, mesh->n_ranks - 1) + 1);
    }
    if (tally->world == world) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_PROOF, "the plan states a world of %llu ranks, not %llu",
                   (unsigned long long)tally->world, (unsigned long long)world);
}

ferry_status fy_proof_tally_check(const fy_proof_tally *tally, uint64_t n_wanted_tensors,
                                  ferry_error *error)
{
    uint64_t total;
    FY_TRY(check_world(tally, error));
    if (tally->n_tensors < n_wanted_tensors || tally->n_tensors > tally->spec->n_tensors) {
        return fy_fail(error, FERRY_ERR_PROOF,
                       "the plan states %llu tensors, but the spec has %zu, %llu of them wanted",
                       (unsigned long long)tally->n_tensors, tally->spec->n_tensors,
                       (unsigned long long)n_wanted_tensors);
    }
    if (!fy_add(tally->moved, tally->local, &total) || total == 0) {
        return fy_fail(error, FERRY_ERR_PROOF, "the plan moves %s bytes",
                       total == 0 ? "zero" : "more than 2^64");
    }
    FY_TRY(compare("bytes moved", tally->stated_moved, tally->moved, error));
    FY_TRY(compare("local bytes", tally->stated_local, tally->local, error));
    FY_TRY(compare("bytes in total", tally->stated_total, total, error));
    for (size_t line = 0; line < tally->n_lines; line++) {
        FY_TRY(check_line(tally, line, error));
    }
    return FERRY_OK;
}
