/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "prove/spec_read.h"

#include <ferry/group.h>

#include <stdlib.h>
#include <string.h>

static ferry_status read_axis(fy_proof_mesh *mesh, const json_t *json, const fy_json_place *place,
                              ferry_error *error)
{
    const char *name;
    uint64_t size;
    if (!json_is_array(json) || json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must be [name, size]");
    }
    fy_json_place name_place = {.parent = place, .index = 0};
    fy_json_place size_place = {.parent = place, .index = 1};
    FY_TRY(fy_json_get_string(json_array_get(json, 0), &name_place, &name, error));
    FY_TRY(
        fy_json_get_size(json_array_get(json, 1), &size_place, 1, FERRY_MAX_RANKS, &size, error));
    for (size_t a = 0; a < mesh->n_axes; a++) {
        if (strcmp(mesh->names[a], name) == 0) {
            return fy_json_fail(place, error, "names the axis \"%s\" again", name);
        }
    }
    if (mesh->n_axes == FY_PROOF_AXES) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a mesh has more than %d axes", FY_PROOF_AXES);
    }
    mesh->n_ranks *= size; /* both are at most 2^24 */
    if (mesh->n_ranks > FERRY_MAX_RANKS) {
        return fy_json_fail(place, error, "makes the mesh larger than %u ranks", FERRY_MAX_RANKS);
    }
    mesh->names[mesh->n_axes] = name;
    mesh->sizes[mesh->n_axes++] = size;
    return FERRY_OK;
}

static int by_rank(const void *a, const void *b)
{
    uint32_t x = ((const fy_proof_member *)a)->rank;
    uint32_t y = ((const fy_proof_member *)b)->rank;
    return x < y ? -1 : x > y;
}

static ferry_status read_ranks(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                               fy_proof_mesh *mesh, ferry_error *error)
{
    const uint64_t *ranks;
    size_t n;
    FY_TRY(fy_proof_read_sizes(spec, json, place, 0, FERRY_MAX_RANKS - 1, &ranks, &n, error));
    if (n != mesh->n_ranks) {
        return fy_json_fail(place, error, "has %zu ranks, but the mesh has %llu", n,
                            (unsigned long long)mesh->n_ranks);
    }
    fy_proof_member *members = fy_arena_alloc(&spec->arena, n, sizeof *members);
    FY_TRY(fy_check_memory(members != NULL, "the ranks of a mesh", error));
    for (size_t i = 0; i < n; i++) {
        members[i] = (fy_proof_member){.rank = (uint32_t)ranks[i], .index = (uint32_t)i};
    }
    qsort(members, n, sizeof *members, by_rank);
    for (size_t i = 1; i < n; i++) {
        if (members[i].rank == members[i - 1].rank) {
            return fy_json_fail(place, error, "has rank %u twice", members[i].rank);
        }
    }
    mesh->members = members;
    return FERRY_OK;
}

ferry_status fy_proof_read_mesh(fy_proof_spec *spec, const json_t *axes, const json_t *ranks,
                                const json_t *first_rank, const fy_json_place *place,
                                fy_proof_mesh *mesh, ferry_error *error)
{
    fy_json_place axes_place = {.parent = place, .key = "mesh"};
    fy_json_place ranks_place = {.parent = place, .key = "ranks"};
    fy_json_place first_place = {.parent = place, .key = "first_rank"};
    FY_TRY(fy_json_expect_array(axes, &axes_place, error));
    mesh->n_ranks = 1;
    for (size_t i = 0; i < json_array_size(axes); i++) {
        fy_json_place at = {.parent = &axes_place, .index = i};
        FY_TRY(read_axis(mesh, json_array_get(axes, i), &at, error));
    }
    if (ranks != NULL && first_rank != NULL) {
        return fy_json_fail(place, error, "has both \"ranks\" and \"first_rank\"");
    }
    if (ranks != NULL) {
        return read_ranks(spec, ranks, &ranks_place, mesh, error);
    }
    return first_rank == NULL
               ? FERRY_OK
               : fy_json_get_size(first_rank, &first_place, 0, FERRY_MAX_RANKS - mesh->n_ranks,
                                  &mesh->first_rank, error);
}

bool fy_proof_mesh_find(const fy_proof_mesh *mesh, uint64_t rank, uint64_t *position_out)
{
    if (mesh->members == NULL) {
        *position_out = rank - mesh->first_rank;
        return rank >= mesh->first_rank && *position_out < mesh->n_ranks;
    }
    if (rank >= FERRY_MAX_RANKS) {
        return false;
    }
    fy_proof_member wanted = {.rank = (uint32_t)rank};
    const fy_proof_member *member =
        bsearch(&wanted, mesh->members, (size_t)mesh->n_ranks, sizeof wanted, by_rank);
    if (member == NULL) {
        return false;
    }
    *position_out = (uint64_t)(member - mesh->members);
    return true;
}

uint64_t fy_proof_mesh_rank(const fy_proof_mesh *mesh, uint64_t position)
{
    return mesh->members == NULL ? mesh->first_rank + position : mesh->members[position].rank;
}

void fy_proof_mesh_coordinates(const fy_proof_mesh *mesh, uint64_t position,
                               uint64_t *coordinates_out)
{
    uint64_t index = mesh->members == NULL ? position : mesh->members[position].index;
    for (size_t a = mesh->n_axes; a-- > 0;) {
        coordinates_out[a] = index % mesh->sizes[a];
        index /= mesh->sizes[a];
    }
}
