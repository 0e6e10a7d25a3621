/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/codes.h"

#include "base/checked.h"
#include "base/sort.h"
#include "prove/lattice.h"
#include "prove/quantize.h"
#include "prove/spec_read.h"

#include <string.h>

enum { ROWS = FY_PROOF_DIMS - 2, NAME_BYTES = 256 };

/* As it is written in a spec; in a plan a type stands in place of a name. */
typedef struct codes_json {
    const char *scale, *scale_dtype;
    const json_t *block;
} codes_json;

ferry_status fy_proof_codes_read(fy_proof_spec *spec, const json_t *json,
                                 const fy_json_place *place, const fy_proof_codes **codes_out,
                                 ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"scale", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(codes_json, scale)},
        {"block", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(codes_json, block)},
        {.key = NULL}};
    codes_json said = {.scale = NULL};
    fy_proof_codes *codes = fy_arena_alloc(&spec->arena, 1, sizeof *codes);
    FY_TRY(fy_check_memory(codes != NULL, "a dequantization", error));
    FY_TRY(fy_json_read(json, place, fields, &said, NULL, error));
    codes->scale = said.scale;
    FY_TRY(fy_proof_block_read(said.block, place, codes->block, error));
    *codes_out = codes;
    return FERRY_OK;
}

ferry_status fy_proof_codes_allow(const fy_proof_tensor *tensor, ferry_dtype values,
                                  ferry_error *error)
{
    uint32_t has = tensor->entry->dtype.kind, wants = values.kind;
    bool has_codes = has == FERRY_F8E4M3 || has == FERRY_F8E5M2 ||
                     (has == FERRY_F4 && tensor->entry->shape[FY_PROOF_DIMS - 1] % 2 == 0);
    bool wants_values = wants == FERRY_F32 || wants == FERRY_F16 || wants == FERRY_BF16;
    return has_codes && wants_values && tensor->entry->n_dims >= 2
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%.*s: is dequantized, but has no rows and columns of f8e4m3 or f8e5m2, "
                         "or of whole bytes of f4, or is wanted in another type than f32, f16 or "
                         "bf16",
                         NAME_BYTES, tensor->name);
}

static ferry_status check_scales(const fy_proof_tensor *scales, const fy_proof_scaling *staged,
                                 const fy_proof_entry *codes, ferry_error *error)
{
    const fy_proof_entry *entry = scales->entry;
    const uint64_t *block = staged->block + ROWS;
    uint32_t has = entry->dtype.kind;
    bool fits = entry->n_dims == codes->n_dims && entry->scaling == NULL;
    fits = fits &&
           (codes->dtype.kind == FERRY_F4 ? has == FERRY_F8E4M3 && block[0] == 1 && block[1] == 16
                                          : has == FERRY_F32 || has == FERRY_F8E8M0);
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        fits = fits && entry->shape[d] == fy_ceil_div(staged->values[d], staged->block[d]);
    }
    return fits ? FERRY_OK
                : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%.*s: are not the scales, f32 or f8e8m0 or of f4 f8e4m3, of the blocks "
                          "of a tensor that is dequantized by them",
                          NAME_BYTES, scales->name);
}

/* The same of those of matrices: dimensions stand two further behind. */
static ferry_status check_matrix_scales(const fy_proof_tensor *scales, const fy_proof_entry *codes,
                                        ferry_error *error)
{
    const fy_proof_entry *entry = scales->entry;
    bool fits = entry->n_dims + 2 == codes->n_dims && entry->scaling == NULL &&
                entry->dtype.kind == FERRY_F32;
    for (size_t d = 0; d < ROWS; d++) {
        fits = fits && entry->shape[d + 2] == codes->shape[d];
    }
    return fits ? FERRY_OK
                : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%.*s: does not have an f32 for each matrix of f4 that is dequantized",
                          NAME_BYTES, scales->name);
}

/* What feeds it is what the scales are fed from, or they. */
static ferry_status link(fy_proof_spec *spec, uint32_t scales, fy_proof_entry *entry,
                         const uint32_t **sources_out, const uint32_t **fed_by_out,
                         ferry_error *error)
{
    const fy_proof_tensor *from = &spec->tensors[scales];
    *sources_out = from->sources;
    *fed_by_out = from->fed_by;
    if (from->entry->has_source) {
        return FERRY_OK;
    }
    uint32_t *own = fy_arena_alloc(&spec->arena, 1, sizeof *own);
    FY_TRY(fy_check_memory(own != NULL, "the scales of a tensor", error));
    *own = scales;
    *sources_out = *fed_by_out = own;
    entry->has_source = true;
    return FERRY_OK;
}

/* It was asked for before: by the same scales in the same blocks. */
static ferry_status check_same(const fy_proof_spec *spec, uint32_t staged, uint32_t scales,
                               const fy_proof_codes *codes, ferry_error *error)
{
    const fy_proof_scaling *its = spec->tensors[staged].entry->staged;
    return its->from == scales && its->block[ROWS] == codes->block[0] &&
                   its->block[ROWS + 1] == codes->block[1]
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%.*s: is dequantized by two tensors of scales, or in two sizes of blocks",
                         NAME_BYTES, spec->tensors[its->tensor].name);
}

/* A tensor of this name that is fed from scales which the spec has. */
static ferry_status add_fed(fy_proof_spec *spec, const char *name, const fy_proof_scaling *its,
                            uint32_t *number_out, ferry_error *error)
{
    fy_proof_scaling *staged = fy_arena_alloc(&spec->arena, 1, sizeof *staged);
    FY_TRY(fy_check_memory(staged != NULL, "the scales of a tensor", error));
    *staged = *its;
    fy_proof_entry entry = *spec->tensors[its->from].entry;
    const uint32_t *sources, *fed_by;
    FY_TRY(link(spec, its->from, &entry, &sources, &fed_by, error));
    entry.staged = staged;
    entry.is_source_only = false;
    const fy_proof_entry *kept = fy_proof_keep_entry(spec, &entry);
    FY_TRY(fy_check_memory(kept != NULL, "the scales of a tensor", error));
    FY_TRY(fy_proof_add_tensor(spec, name, kept, 0, error));
    *number_out = (uint32_t)spec->n_tensors - 1;
    spec->tensors[*number_out].sources = sources;
    spec->tensors[*number_out].fed_by = fed_by;
    return FERRY_OK;
}

/* Of f4 what is called like the scales of blocks, with _2 behind, has those of matrices. */
static ferry_status add_matrix_scales(fy_proof_spec *spec, uint32_t tensor, uint32_t scales,
                                      const char *name, uint32_t *number_out, ferry_error *error)
{
    const fy_proof_entry *of = spec->tensors[tensor].entry;
    const char *from = fy_proof_scales_name(spec, "*_2", spec->tensors[scales].name);
    fy_proof_scaling its = {.tensor = tensor, .is_of_matrices = true};
    FY_TRY(fy_check_memory(from != NULL, "the scales of a tensor", error));
    if (!fy_proof_spec_find(spec, from, &its.from)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%.*s: is f4 that is dequantized, but the scales of its matrices are not in "
                       "the spec",
                       NAME_BYTES, spec->tensors[tensor].name);
    }
    FY_TRY(check_matrix_scales(&spec->tensors[its.from], of, error));
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        its.values[d] = d < 2 ? 1 : of->shape[d - 2];
        its.block[d] = 1;
    }
    return add_fed(spec, name, &its, number_out, error);
}

ferry_status fy_proof_staged_add(fy_proof_spec *spec, uint32_t tensor, const fy_proof_codes *codes,
                                 fy_proof_staged *staged_out, ferry_error *error)
{
    const fy_proof_entry *of = spec->tensors[tensor].entry;
    const char *its = spec->tensors[tensor].name;
    const char *from = fy_proof_scales_name(spec, codes->scale, its);
    const char *name = fy_proof_scales_name(spec, "*:scales", its);
    const char *second = fy_proof_scales_name(spec, "*:scales_2", its);
    fy_proof_scaling staged = {.tensor = tensor};
    uint32_t scales;
    FY_TRY(fy_check_memory(from != NULL && name != NULL && second != NULL, "the scales of a tensor",
                           error));
    if (!fy_proof_spec_find(spec, from, &scales)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%.*s: is dequantized, but its scales are not in the spec", NAME_BYTES, its);
    }
    bool is_half = of->dtype.kind == FERRY_F4;
    if (spec->tensors[tensor].scale_dtype.kind != 0 &&
        fy_proof_spec_find(spec, name, &staged_out->of_blocks) &&
        (!is_half || fy_proof_spec_find(spec, second, &staged_out->of_matrices))) {
        return check_same(spec, staged_out->of_blocks, scales, codes, error);
    }
    staged.from = scales;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        staged.values[d] = of->shape[d];
        staged.block[d] = d < ROWS ? 1 : codes->block[d - ROWS];
    }
    FY_TRY(check_scales(&spec->tensors[scales], &staged, of, error));
    FY_TRY(add_fed(spec, name, &staged, &staged_out->of_blocks, error));
    spec->tensors[tensor].scale_dtype = spec->tensors[scales].entry->dtype;
    return is_half
               ? add_matrix_scales(spec, tensor, scales, second, &staged_out->of_matrices, error)
               : FERRY_OK;
}

/* The scales of one tensor, from `begin` to `end`, that the boxes of a parameter need. */
typedef struct need {
    uint32_t codes;
    const char *name;
    uint64_t begin[FY_PROOF_DIMS], end[FY_PROOF_DIMS];
} need;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const need *)a)->name, ((const need *)b)->name);
}

/* Of a box that is not empty, with all turns of its loops. */
static need need_of(const fy_proof_held *box, const fy_proof_codes *codes)
{
    need its = {.codes = box->tensor};
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t block = d < ROWS ? 1 : codes->block[d - ROWS];
        uint64_t last = box->begin[d] + box->steps[FY_PROOF_LOOPS + d].count - 1;
        for (size_t i = 0; i < FY_PROOF_LOOPS && box->loops != NULL; i++) {
            last += (box->steps[i].count - 1) * box->loops[i][d];
        }
        its.begin[d] = box->begin[d] / block;
        its.end[d] = last / block + 1;
    }
    return its;
}

/* In the order of names, for a model's headers give tensors none; one of each tensor. */
static ferry_status list_needs(const fy_proof_spec *spec, const fy_proof_parameter *of,
                               need **needs_out, size_t *n_out, ferry_error *error)
{
    need *needs = fy_alloc(of->n_boxes + 1, sizeof *needs);
    size_t n = 0, kept = 0;
    FY_TRY(fy_check_memory(needs != NULL, "the scales of a parameter", error));
    for (size_t i = 0; i < of->n_boxes; i++) {
        if (of->boxes[i].tensor != FY_PROOF_FILL) {
            needs[n] = need_of(&of->boxes[i], of->codes);
            needs[n++].name = spec->tensors[of->boxes[i].tensor].name;
        }
    }
    fy_sort(needs, n, sizeof *needs, by_name);
    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || needs[kept - 1].codes != needs[i].codes) {
            needs[kept++] = needs[i];
            continue;
        }
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            needs[kept - 1].begin[d] = fy_min(needs[kept - 1].begin[d], needs[i].begin[d]);
            needs[kept - 1].end[d] = fy_max(needs[kept - 1].end[d], needs[i].end[d]);
        }
    }
    *needs_out = needs;
    *n_out = kept;
    return FERRY_OK;
}

/* Adds the box of one tensor's scales behind those that are there. */
static ferry_status stage(fy_proof_spec *spec, const need *its, const fy_proof_codes *codes,
                          bool is_of_matrices, fy_proof_parameter *staged, fy_proof_held *box,
                          ferry_error *error)
{
    uint64_t stride = 1;
    fy_proof_staged tensors;
    FY_TRY(fy_proof_staged_add(spec, its->codes, codes, &tensors, error));
    box->tensor = is_of_matrices ? tensors.of_matrices : tensors.of_blocks;
    ferry_dtype dtype = spec->tensors[box->tensor].entry->dtype;
    if (staged->elements > 0 && staged->dtype.kind != dtype.kind) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%.*s: has scales of two types", NAME_BYTES,
                       staged->name);
    }
    staged->dtype = dtype;
    box->offset = staged->elements;
    for (size_t i = 0; i < FY_PROOF_LOOPS; i++) {
        box->steps[i] = (fy_proof_step){.count = 1};
    }
    for (size_t d = FY_PROOF_DIMS; d-- > 0;) {
        size_t k = is_of_matrices ? d - 2 : d; /* those stand two further behind */
        bool is_none = is_of_matrices && d < 2;
        uint64_t n = is_none ? 1 : its->end[k] - its->begin[k];
        box->begin[d] = is_none ? 0 : its->begin[k];
        box->steps[FY_PROOF_LOOPS + d] = (fy_proof_step){.count = n, .stride = stride};
        stride *= n; /* no more than the tensor has */
    }
    spec->tensors[box->tensor].is_held[FY_PROOF_DESTINATION] = true;
    return fy_add(staged->elements, stride, &staged->elements)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_LIMIT, "%.*s: has too many scales", NAME_BYTES,
                         staged->name);
}

static ferry_status stage_all(fy_proof_spec *spec, const fy_proof_parameter *of, const need *needs,
                              size_t n, bool is_of_matrices, fy_proof_parameter *staged_out,
                              ferry_error *error)
{
    const char *pattern = is_of_matrices ? "*:scales_2" : "*:scales";
    fy_proof_held *boxes = fy_arena_alloc(&spec->arena, n + 1, sizeof *boxes);
    *staged_out = (fy_proof_parameter){.name = fy_proof_scales_name(spec, pattern, of->name),
                                       .cast = {.scale = 1},
                                       .boxes = boxes,
                                       .n_boxes = n,
                                       .rank = of->rank};
    FY_TRY(fy_check_memory(boxes != NULL && staged_out->name != NULL, "the scales of a parameter",
                           error));
    for (size_t i = 0; i < n; i++) {
        boxes[i] = (fy_proof_held){.loops = NULL};
        FY_TRY(stage(spec, &needs[i], of->codes, is_of_matrices, staged_out, &boxes[i], error));
    }
    if (n > 0) {
        staged_out->lattice = fy_proof_lattice_make(&spec->arena, boxes, n);
        FY_TRY(fy_check_memory(staged_out->lattice != NULL, "the scales of a parameter", error));
    }
    return FERRY_OK;
}

ferry_status fy_proof_staged_parameter(fy_proof_spec *spec, const fy_proof_parameter *of,
                                       fy_proof_parameter staged_out[2], ferry_error *error)
{
    need *needs;
    size_t n;
    staged_out[0] = staged_out[1] = (fy_proof_parameter){.name = NULL};
    FY_TRY(list_needs(spec, of, &needs, &n, error));
    ferry_status status = stage_all(spec, of, needs, n, false, &staged_out[0], error);
    if (n > 0 && spec->tensors[needs[0].codes].entry->dtype.kind == FERRY_F4) {
        FY_THEN(status, stage_all(spec, of, needs, n, true, &staged_out[1], error));
    }
    fy_free(needs);
    return status;
}

static bool is_word(const char *text, const char *word)
{
    return text != NULL && strcmp(text, word) == 0;
}

static bool is_type(const char *text, ferry_dtype right)
{
    char name[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(right, name, sizeof name);
    return is_word(text, name);
}

ferry_status fy_proof_codes_check(const fy_proof_spec *spec, const fy_proof_codes *codes,
                                  ferry_dtype values, fy_proof_move *move, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"block", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(codes_json, block)},
        {"scale_dtype", FY_JSON_STRING, FY_JSON_NEEDED,
         .offset = offsetof(codes_json, scale_dtype)},
        {.key = NULL}};
    const fy_proof_stated *s = &move->stated;
    ferry_dtype has = spec->tensors[move->tensor].entry->dtype;
    fy_json_place place = {.key = "dequantize"};
    codes_json said = {.scale = NULL};
    uint64_t block[2];
    move->bits = has.element_bits;
    if (s->dequantize == NULL || s->quantize != NULL || s->cast != NULL || s->scale != NULL ||
        s->add != NULL || !is_word(s->part, "codes") || !is_word(s->at, "receiver") ||
        !is_type(s->src_dtype, has) || !is_type(s->dst_dtype, values)) {
        return fy_proof_move_fail(spec, move, error,
                                  "should say that the receiver dequantizes it, and both types");
    }
    FY_TRY(fy_json_read(s->dequantize, &place, fields, &said, NULL, error));
    FY_TRY(fy_proof_block_read(said.block, &place, block, error));
    return block[0] == codes->block[0] && block[1] == codes->block[1] &&
                   is_type(said.scale_dtype, spec->tensors[move->tensor].scale_dtype)
               ? FERRY_OK
               : fy_proof_move_fail(spec, move, error,
                                    "is dequantized by other blocks, or scales, than the spec has");
}
