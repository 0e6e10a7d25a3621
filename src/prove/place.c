/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/glob.h"
#include "prove/cast.h"
#include "prove/codes.h"
#include "prove/quantize.h"
#include "prove/spec_read.h"

#include <string.h>

/* Which rule and which stages hold for a tensor on one side, and whether they fit its shape. */

/* NULL: none. */
static const fy_proof_rule *find_rule(const fy_proof_side *side, const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < side->n_rules; i++) {
        const char *match = side->rules[i].match;
        if (fy_glob_match(match, strlen(match), name, length)) {
            return &side->rules[i];
        }
    }
    return NULL;
}

/* The coordinate of item i, which is below the count. */
static uint64_t stage_coordinate(const fy_proof_mesh *mesh, const fy_proof_stage *stage, uint64_t i)
{
    if (stage->sizes == NULL) {
        return i * mesh->sizes[stage->axis] / stage->count;
    }
    uint64_t coordinate = 0;
    while (i >= stage->sizes[coordinate]) {
        i -= stage->sizes[coordinate++];
    }
    return coordinate;
}

static bool is_pinned(const fy_proof_pin *pins, size_t n, size_t axis)
{
    for (size_t i = 0; i < n; i++) {
        if (pins[i].axis == axis) {
            return true;
        }
    }
    return false;
}

static ferry_status check_stage(const fy_proof_side *side, const fy_proof_stage *stage,
                                const char *name, uint64_t i, const fy_proof_spot *spot,
                                ferry_error *error)
{
    const char *axis = side->mesh.names[stage->axis];
    if (i >= stage->count) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: is number %llu of a stage on the %s axis \"%s\", which has %llu", name,
                       (unsigned long long)i, side->name, axis, (unsigned long long)stage->count);
    }
    if (is_pinned(spot->pins, spot->n_pins, stage->axis)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: two stages of the %s are on \"%s\"",
                       name, side->name, axis);
    }
    if (spot->rule->axes >> stage->axis & 1) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: a stage and the rule of the %s both use the axis \"%s\"", name,
                       side->name, axis);
    }
    return FERRY_OK;
}

static ferry_status add_pin(fy_proof_spec *spec, fy_proof_pin *pins, fy_proof_spot *spot,
                            size_t axis, uint64_t coordinate, ferry_error *error)
{
    uint64_t *kept = fy_arena_alloc(&spec->arena, 1, sizeof *kept);
    FY_TRY(fy_check_memory(kept != NULL, "the stage of a tensor", error));
    *kept = coordinate;
    pins[spot->n_pins++] = (fy_proof_pin){.axis = axis, .n_coordinates = 1, .coordinates = kept};
    return FERRY_OK;
}

/* An axis that the rule's "on" names is not the stages' business. */
static ferry_status find_stages(fy_proof_spec *spec, const fy_proof_side *side, const char *name,
                                fy_proof_spot *spot, ferry_error *error)
{
    fy_proof_pin found[FY_PROOF_AXES];
    spot->pins = found;
    for (size_t s = 0; s < side->n_stages; s++) {
        const fy_proof_stage *stage = &side->stages[s];
        uint64_t i;
        if (is_pinned(spot->rule->pins, spot->rule->n_pins, stage->axis) ||
            !fy_glob_match_number(stage->match, name, strlen(name), &i)) {
            continue;
        }
        FY_TRY(check_stage(side, stage, name, i, spot, error));
        uint64_t coordinate = stage_coordinate(&side->mesh, stage, i);
        FY_TRY(add_pin(spec, found, spot, stage->axis, coordinate, error));
    }
    fy_proof_pin *pins = fy_arena_alloc(&spec->arena, spot->n_pins, sizeof *pins);
    FY_TRY(fy_check_memory(pins != NULL, "the stages of a tensor", error));
    memcpy(pins, found, spot->n_pins * sizeof *pins);
    spot->pins = pins;
    return FERRY_OK;
}

static ferry_status fail_extent(const char *name, const fy_proof_cut *cut, const char *what,
                                uint64_t number, uint64_t extent, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s dim %llu: %s %llu does not fit %llu", name,
                   (unsigned long long)cut->dim, what, (unsigned long long)number,
                   (unsigned long long)extent);
}

static ferry_status check_blocks(const char *name, const fy_proof_cut *cut, uint64_t extent,
                                 ferry_error *error)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < cut->n_blocks; i++) {
        if (cut->blocks[i].size % cut->unit != 0) {
            return fail_extent(name, cut, "the unit", cut->unit, cut->blocks[i].size, error);
        }
        if (!fy_add(sum, cut->blocks[i].size, &sum)) {
            return fail_extent(name, cut, "a block of", cut->blocks[i].size, extent, error);
        }
    }
    return sum == extent ? FERRY_OK
                         : fail_extent(name, cut, "the sum of the blocks", sum, extent, error);
}

static ferry_status check_sizes(const char *name, const fy_proof_cut *cut, uint64_t extent,
                                ferry_error *error)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < cut->n_sizes; i++) {
        if (!fy_add(sum, cut->sizes[i], &sum)) {
            return fail_extent(name, cut, "a part of", cut->sizes[i], extent, error);
        }
    }
    return sum == extent ? FERRY_OK
                         : fail_extent(name, cut, "the sum of the sizes", sum, extent, error);
}

static ferry_status check_cut(const char *name, const fy_proof_cut *cut, uint64_t extent,
                              ferry_error *error)
{
    if (cut->blocks != NULL) {
        return check_blocks(name, cut, extent, error);
    }
    if (cut->sizes != NULL) {
        return check_sizes(name, cut, extent, error);
    }
    if (extent % cut->unit != 0) {
        return fail_extent(name, cut, "the unit", cut->unit, extent, error);
    }
    if (cut->cycle != 0 && extent / cut->cycle / cut->parts >= FY_PROOF_MOST_PIECES) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%s dim %llu: a cycle of %llu makes too many pieces",
                       name, (unsigned long long)cut->dim, (unsigned long long)cut->cycle);
    }
    return FERRY_OK;
}

static ferry_status check_rule(const fy_proof_side *side, const fy_proof_tensor *tensor,
                               const fy_proof_rule *rule, ferry_error *error)
{
    size_t n_dims = tensor->entry->n_dims;
    if (n_dims == 0 && (rule->n_cuts > 0 || rule->flat != NULL)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: is a scalar that the %s cuts",
                       tensor->name, side->name);
    }
    for (size_t i = 0; i < rule->n_cuts; i++) {
        const fy_proof_cut *cut = &rule->cuts[i];
        if (cut->dim >= n_dims) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: the %s cuts the dimension %llu of %zu", tensor->name, side->name,
                           (unsigned long long)cut->dim, n_dims);
        }
        uint64_t extent = tensor->entry->shape[FY_PROOF_DIMS - n_dims + (size_t)cut->dim];
        FY_TRY(check_cut(tensor->name, cut, extent, error));
    }
    return FERRY_OK;
}

static ferry_status check_cast(const fy_proof_side *side, const fy_proof_tensor *tensor,
                               const fy_proof_rule *rule, ferry_error *error)
{
    ferry_dtype has = tensor->entry->dtype;
    ferry_dtype wanted = rule->dtype.element_bits == 0 ? has : rule->dtype;
    if (rule->codes != NULL) {
        return fy_proof_codes_allow(tensor, rule->dtype, error);
    }
    if (rule->quantize != NULL) {
        return rule->dtype.element_bits == 0 || rule->dtype.kind == rule->quantize->codes.kind
                   ? FERRY_OK
                   : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "%s: the %s wants another dtype than that of its codes", tensor->name,
                             side->name);
    }
    return fy_proof_cast_allows(&rule->cast, has, wanted)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: the %s wants another type, or other elements, without a cast that "
                         "there is",
                         tensor->name, side->name);
}

static ferry_status place(fy_proof_spec *spec, const fy_proof_side *side,
                          const fy_proof_tensor *tensor, fy_proof_spot *spot, ferry_error *error)
{
    const fy_proof_rule *rule = find_rule(side, tensor->name);
    if (rule == NULL && !tensor->is_between) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: no rule of the %s matches",
                       tensor->name, side->name);
    }
    if (rule == NULL || rule->skip) {
        return FERRY_OK;
    }
    spot->rule = rule;
    FY_TRY(check_rule(side, tensor, rule, error));
    FY_TRY(check_cast(side, tensor, rule, error));
    return find_stages(spec, side, tensor->name, spot, error);
}

/* Whatever the destination wants must stand somewhere at the source. */
static ferry_status check_fed(const fy_proof_spec *spec, uint32_t t, ferry_error *error)
{
    const fy_proof_tensor *tensor = &spec->tensors[t];
    if (tensor->spots[FY_PROOF_DESTINATION].rule == NULL || tensor->entry->volume == 0 ||
        tensor->entry->scaling != NULL || spec->sides[FY_PROOF_SOURCE].memory != NULL) {
        return FERRY_OK; /* what no box has, no move can bring; scales are there with their values
                          */
    }
    for (size_t i = 0; i < tensor->entry->n_boxes; i++) {
        const fy_proof_tensor *source = &spec->tensors[fy_proof_spec_source(spec, t, i)];
        if (source->spots[FY_PROOF_SOURCE].rule == NULL) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: is needed at the destination, but the source skips %s",
                           tensor->name, source->name);
        }
    }
    return FERRY_OK;
}

/* Scales that the rules of a destination on a mesh ask for. */
static ferry_status add_scales(fy_proof_spec *spec, ferry_error *error)
{
    const fy_proof_side *side = &spec->sides[FY_PROOF_DESTINATION];
    size_t n = spec->n_tensors;
    for (size_t i = 0; i < n && side->memory == NULL; i++) {
        const fy_proof_rule *rule = find_rule(side, spec->tensors[i].name);
        if (rule != NULL && !rule->skip && rule->quantize != NULL &&
            !spec->tensors[i].entry->is_source_only) {
            FY_TRY(fy_proof_scales_add(spec, (uint32_t)i, rule->quantize, error));
        }
    }
    return FERRY_OK;
}

/* And scales that come beside codes. */
static ferry_status add_staged(fy_proof_spec *spec, ferry_error *error)
{
    const fy_proof_side *side = &spec->sides[FY_PROOF_DESTINATION];
    size_t n = spec->n_tensors;
    fy_proof_staged staged;
    for (size_t i = 0; i < n && side->memory == NULL; i++) {
        const fy_proof_rule *rule = find_rule(side, spec->tensors[i].name);
        if (rule != NULL && !rule->skip && rule->codes != NULL &&
            !spec->tensors[i].entry->is_source_only && spec->tensors[i].entry->scaling == NULL) {
            FY_TRY(fy_proof_staged_add(spec, (uint32_t)i, rule->codes, &staged, error));
        }
    }
    return FERRY_OK;
}

ferry_status fy_proof_place_tensors(fy_proof_spec *spec, ferry_error *error)
{
    FY_TRY(add_scales(spec, error));
    FY_TRY(add_staged(spec, error));
    for (size_t i = 0; i < spec->n_tensors; i++) {
        fy_proof_tensor *tensor = &spec->tensors[i];
        if (tensor->entry->scaling != NULL) { /* where their values are, which came before */
            memcpy(tensor->spots, spec->tensors[tensor->entry->scaling->tensor].spots,
                   sizeof tensor->spots);
            continue;
        }
        if (tensor->entry->staged != NULL) { /* where their codes go */
            tensor->spots[FY_PROOF_DESTINATION] =
                spec->tensors[tensor->entry->staged->tensor].spots[FY_PROOF_DESTINATION];
            continue;
        }
        for (int s = 0; s < FY_PROOF_SIDES; s++) {
            if (s == FY_PROOF_SOURCE ? tensor->entry->has_source : tensor->entry->is_source_only) {
                continue; /* it is made of others and not placed, or others are made of it only */
            }
            if (spec->sides[s].memory != NULL) {
                continue; /* it is in boxes */
            }
            FY_TRY(place(spec, &spec->sides[s], tensor, &tensor->spots[s], error));
        }
    }
    for (size_t i = 0; i < spec->n_tensors; i++) {
        FY_TRY(check_fed(spec, (uint32_t)i, error));
    }
    return FERRY_OK;
}
