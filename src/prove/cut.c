/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "prove/spec_read.h"

#include <string.h>

ferry_status fy_proof_read_axis(const fy_proof_mesh *mesh, const char *name,
                                const fy_json_place *place, uint32_t *axes_used, size_t *axis_out,
                                ferry_error *error)
{
    for (size_t a = 0; a < mesh->n_axes; a++) {
        if (strcmp(mesh->names[a], name) != 0) {
            continue;
        }
        uint32_t bit = (uint32_t)1 << a;
        if (*axes_used & bit) {
            return fy_json_fail(place, error, "uses the axis \"%s\" a second time", name);
        }
        *axes_used |= bit;
        *axis_out = a;
        return FERRY_OK;
    }
    return fy_json_fail(place, error, "names the axis \"%s\", which the mesh lacks", name);
}

/* "tp" or ["dp", "tp"], slowest first. */
static ferry_status read_axes(const fy_proof_mesh *mesh, const json_t *json,
                              const fy_json_place *place, uint32_t *axes_used, fy_proof_cut *cut,
                              ferry_error *error)
{
    size_t n = json_is_array(json) ? json_array_size(json) : 1;
    if (n == 0) {
        return fy_json_fail(place, error, "must name at least one axis");
    }
    cut->n_ranks = 1;
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        const fy_json_place *at = json_is_array(json) ? &inner : place;
        const char *name;
        ferry_status status = fy_json_get_string(
            json_is_array(json) ? json_array_get(json, i) : json, at, &name, error);
        if (status == FERRY_OK) {
            status = fy_proof_read_axis(mesh, name, at, axes_used, &cut->axes[i], error);
        }
        if (status != FERRY_OK) {
            return status;
        }
        cut->n_axes = i + 1; /* each axis at most once, so there is room */
        cut->n_ranks *= mesh->sizes[cut->axes[i]];
    }
    cut->parts = cut->n_ranks;
    return FERRY_OK;
}

static ferry_status check_parts(const fy_proof_cut *cut, uint64_t parts, const fy_json_place *place,
                                ferry_error *error)
{
    if (cut->n_ranks % parts != 0) {
        return fy_json_fail(place, error, "has %llu parts, which do not divide %llu ranks",
                            (unsigned long long)parts, (unsigned long long)cut->n_ranks);
    }
    return FERRY_OK;
}

/* A size, or [size, parts]. */
static ferry_status read_block(const json_t *json, const fy_json_place *place,
                               const fy_proof_cut *cut, fy_proof_block *block, ferry_error *error)
{
    block->parts = cut->parts;
    if (!json_is_array(json)) {
        return fy_json_get_size(json, place, 0, FY_PROOF_MOST, &block->size, error);
    }
    if (json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must be a size or [size, parts]");
    }
    fy_json_place size_place = {.parent = place, .index = 0};
    fy_json_place parts_place = {.parent = place, .index = 1};
    ferry_status status = fy_json_get_size(json_array_get(json, 0), &size_place, 0, FY_PROOF_MOST,
                                           &block->size, error);
    if (status == FERRY_OK) {
        status = fy_json_get_size(json_array_get(json, 1), &parts_place, 1, FY_PROOF_MOST,
                                  &block->parts, error);
    }
    return status == FERRY_OK ? check_parts(cut, block->parts, &parts_place, error) : status;
}

static ferry_status read_blocks(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_proof_cut *cut, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status != FERRY_OK) {
        return status;
    }
    cut->n_blocks = json_array_size(json);
    fy_proof_block *blocks = fy_arena_alloc(&spec->arena, cut->n_blocks, sizeof *blocks);
    if (blocks == NULL) {
        return fy_fail_no_memory(error, "the blocks of a rule");
    }
    for (size_t i = 0; i < cut->n_blocks; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        status = read_block(json_array_get(json, i), &inner, cut, &blocks[i], error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    cut->blocks = blocks;
    return FERRY_OK;
}

static ferry_status read_sizes(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                               fy_proof_cut *cut, ferry_error *error)
{
    ferry_status status =
        fy_proof_read_sizes(spec, json, place, 0, FY_PROOF_MOST, &cut->sizes, &cut->n_sizes, error);
    if (status == FERRY_OK && cut->n_sizes != cut->parts) {
        return fy_json_fail(place, error, "has %zu entries for %llu parts", cut->n_sizes,
                            (unsigned long long)cut->parts);
    }
    return status;
}

/* How often one of the ways to cut is named; they exclude each other. */
static int count_ways(const json_t *json)
{
    static const char *const ways[] = {"stride", "blocks", "sizes", "cycle"};
    int n = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        n += json_object_get(json, ways[i]) != NULL;
    }
    return n;
}

static ferry_status check_combination(const json_t *json, const fy_json_place *place,
                                      const fy_proof_cut *cut, ferry_error *error)
{
    int n_ways = count_ways(json);
    if (n_ways > 1) {
        return fy_json_fail(place, error, "has more than one of stride, blocks, sizes and cycle");
    }
    if (cut->nested && (n_ways > 0 || json_object_get(json, "parts") != NULL)) {
        return fy_json_fail(place, error,
                            "is nested, which allows no stride, blocks, sizes, cycle or parts");
    }
    if (json_object_get(json, "unit") != NULL &&
        (json_object_get(json, "sizes") != NULL || json_object_get(json, "cycle") != NULL)) {
        return fy_json_fail(place, error, "has a unit, which sizes and cycle do not allow");
    }
    return FERRY_OK;
}

/* All members but the axes. */
static ferry_status read_way(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                             fy_proof_cut *cut, ferry_error *error)
{
    const json_t *nested = json_object_get(json, "nested");
    const json_t *blocks = json_object_get(json, "blocks");
    const json_t *sizes = json_object_get(json, "sizes");
    fy_json_place nested_place = {.parent = place, .key = "nested"};
    fy_json_place blocks_place = {.parent = place, .key = "blocks"};
    fy_json_place sizes_place = {.parent = place, .key = "sizes"};
    fy_json_place parts_place = {.parent = place, .key = "parts"};
    ferry_status status = FERRY_OK;
    cut->unit = 1;
    cut->stride = 1;
    if (nested != NULL) {
        status = fy_json_get_bool(nested, &nested_place, &cut->nested, error);
    }
    if (status != FERRY_OK || (status = check_combination(json, place, cut, error)) != FERRY_OK ||
        (status = fy_proof_read_number(json, place, "parts", 1, FY_PROOF_MOST, &cut->parts,
                                       error)) != FERRY_OK ||
        (status = check_parts(cut, cut->parts, &parts_place, error)) != FERRY_OK ||
        (status = fy_proof_read_number(json, place, "unit", 1, FY_PROOF_MOST, &cut->unit, error)) !=
            FERRY_OK ||
        (status = fy_proof_read_number(json, place, "stride", 1, FY_PROOF_MOST_PIECES, &cut->stride,
                                       error)) != FERRY_OK ||
        (status = fy_proof_read_number(json, place, "cycle", 1, FY_PROOF_MOST, &cut->cycle,
                                       error)) != FERRY_OK) {
        return status;
    }
    if (blocks != NULL) {
        return read_blocks(spec, blocks, &blocks_place, cut, error);
    }
    return sizes == NULL ? FERRY_OK : read_sizes(spec, sizes, &sizes_place, cut, error);
}

ferry_status fy_proof_read_cut(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                               const fy_json_place *place, bool is_flat, uint32_t *axes_used,
                               fy_proof_cut *cut, ferry_error *error)
{
    static const char *const flat_keys[] = {"axis", "sizes", NULL};
    static const char *const keys[] = {"dim",   "axis",  "stride", "blocks", "sizes",
                                       "cycle", "parts", "unit",   "nested", NULL};
    fy_json_place axis_place = {.parent = place, .key = "axis"};
    fy_json_place dim_place = {.parent = place, .key = "dim"};
    const json_t *axis;
    const json_t *dim = NULL;
    ferry_status status = fy_json_expect_object(json, place, is_flat ? flat_keys : keys, error);
    if (status == FERRY_OK && !is_flat) {
        status = fy_json_member(json, place, "dim", &dim, error);
    }
    if (status == FERRY_OK && dim != NULL) {
        status = fy_json_get_size(dim, &dim_place, 0, FY_PROOF_MOST, &cut->dim, error);
    }
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "axis", &axis, error);
    }
    if (status == FERRY_OK) {
        status = read_axes(mesh, axis, &axis_place, axes_used, cut, error);
    }
    return status == FERRY_OK ? read_way(spec, json, place, cut, error) : status;
}
