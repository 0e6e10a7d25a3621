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
        FY_TRY(fy_json_get_string(json_is_array(json) ? json_array_get(json, i) : json, at, &name,
                                  error));
        FY_TRY(fy_proof_read_axis(mesh, name, at, axes_used, &cut->axes[i], error));
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
static ferry_status read_block(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    const fy_proof_cut *cut = context;
    fy_proof_block *block = object;
    block->parts = cut->parts;
    if (!json_is_array(json)) {
        return fy_json_get_size(json, place, 0, FY_PROOF_MOST, &block->size, error);
    }
    if (json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must be a size or [size, parts]");
    }
    fy_json_place size_place = {.parent = place, .index = 0};
    fy_json_place parts_place = {.parent = place, .index = 1};
    const json_t *size = json_array_get(json, 0), *parts = json_array_get(json, 1);
    FY_TRY(fy_json_get_size(size, &size_place, 0, FY_PROOF_MOST, &block->size, error));
    FY_TRY(fy_json_get_size(parts, &parts_place, 1, FY_PROOF_MOST, &block->parts, error));
    return check_parts(cut, block->parts, &parts_place, error);
}

static ferry_status read_blocks(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_proof_cut *cut, ferry_error *error)
{
    return fy_json_read_items(json, place, read_block, cut, &spec->arena, sizeof *cut->blocks,
                              "the blocks of a rule", &cut->blocks, &cut->n_blocks, error);
}

static ferry_status read_sizes(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                               fy_proof_cut *cut, ferry_error *error)
{
    FY_TRY(fy_proof_read_sizes(spec, json, place, 0, FY_PROOF_MOST, &cut->sizes, &cut->n_sizes,
                               error));
    if (cut->n_sizes != cut->parts) {
        return fy_json_fail(place, error, "has %zu entries for %llu parts", cut->n_sizes,
                            (unsigned long long)cut->parts);
    }
    return FERRY_OK;
}

/* The members whose values depend on others. */
typedef struct cut_json {
    fy_proof_cut cut;
    uint64_t parts; /* 0: all ranks along the axes */
    const json_t *axis, *blocks, *sizes;
} cut_json;

static ferry_status check_combination(const cut_json *c, const json_t *json,
                                      const fy_json_place *place, ferry_error *error)
{
    bool cycles = c->cut.cycle != 0;
    int n_ways = cycles + (c->blocks != NULL) + (c->sizes != NULL) +
                 (json_object_get(json, "stride") != NULL);
    if (n_ways > 1) {
        return fy_json_fail(place, error, "has more than one of stride, blocks, sizes and cycle");
    }
    if (c->cut.nested && (n_ways > 0 || c->parts != 0)) {
        return fy_json_fail(place, error,
                            "is nested, which allows no stride, blocks, sizes, cycle or parts");
    }
    if (json_object_get(json, "unit") != NULL && (c->sizes != NULL || cycles)) {
        return fy_json_fail(place, error, "has a unit, which sizes and cycle do not allow");
    }
    return FERRY_OK;
}

static const fy_json_field cut_fields[] = {
    {"dim", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(cut_json, cut.dim),
     .most = FY_PROOF_MOST},
    {"axis", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(cut_json, axis)},
    {"stride", FY_JSON_SIZE, .offset = offsetof(cut_json, cut.stride), .least = 1,
     .most = FY_PROOF_MOST_PIECES},
    {"blocks", FY_JSON_VALUE, .offset = offsetof(cut_json, blocks)},
    {"sizes", FY_JSON_VALUE, .offset = offsetof(cut_json, sizes)},
    {"cycle", FY_JSON_SIZE, .offset = offsetof(cut_json, cut.cycle), .least = 1,
     .most = FY_PROOF_MOST},
    {"parts", FY_JSON_SIZE, .offset = offsetof(cut_json, parts), .least = 1, .most = FY_PROOF_MOST},
    {"unit", FY_JSON_SIZE, .offset = offsetof(cut_json, cut.unit), .least = 1,
     .most = FY_PROOF_MOST},
    {"nested", FY_JSON_BOOL, .offset = offsetof(cut_json, cut.nested)},
    {.key = NULL}};

static const fy_json_field flat_fields[] = {
    {"axis", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(cut_json, axis)},
    {"sizes", FY_JSON_VALUE, .offset = offsetof(cut_json, sizes)},
    {.key = NULL}};

ferry_status fy_proof_read_cut(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                               const fy_json_place *place, bool is_flat, uint32_t *axes_used,
                               fy_proof_cut *cut, ferry_error *error)
{
    fy_json_place axis_place = {.parent = place, .key = "axis"};
    fy_json_place parts_place = {.parent = place, .key = "parts"};
    fy_json_place blocks_place = {.parent = place, .key = "blocks"};
    fy_json_place sizes_place = {.parent = place, .key = "sizes"};
    cut_json c = {.cut = {.unit = 1, .stride = 1}};
    FY_TRY(fy_json_read(json, place, is_flat ? flat_fields : cut_fields, &c, NULL, error));
    FY_TRY(check_combination(&c, json, place, error));
    *cut = c.cut;
    FY_TRY(read_axes(mesh, c.axis, &axis_place, axes_used, cut, error));
    if (c.parts != 0) {
        cut->parts = c.parts;
        FY_TRY(check_parts(cut, cut->parts, &parts_place, error));
    }
    if (c.blocks != NULL) {
        return read_blocks(spec, c.blocks, &blocks_place, cut, error);
    }
    return c.sizes == NULL ? FERRY_OK : read_sizes(spec, c.sizes, &sizes_place, cut, error);
}
