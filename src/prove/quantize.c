/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/quantize.h"

#include "base/checked.h"
#include "prove/spec_read.h"

#include <string.h>

enum { MOST_BLOCK = INT32_MAX, ROWS = FY_PROOF_DIMS - 2, NAME_BYTES = 256 };

/* As it is written, in a spec or in a plan. */
typedef struct quantize_json {
    const char *format, *scale, *scale_dtype, *scale_kind, *given;
    const json_t *block;
} quantize_json;

static const fy_json_field fields[] = {
    {"format", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(quantize_json, format)},
    {"scale", FY_JSON_STRING, .offset = offsetof(quantize_json, scale)},
    {"scale_dtype", FY_JSON_STRING, .offset = offsetof(quantize_json, scale_dtype)},
    {"scale_kind", FY_JSON_STRING, .offset = offsetof(quantize_json, scale_kind)},
    {"tensor_scale", FY_JSON_STRING, .offset = offsetof(quantize_json, given)},
    {"block", FY_JSON_VALUE, .offset = offsetof(quantize_json, block)},
    {.key = NULL}};

static bool is_word(const char *text, const char *word)
{
    return text != NULL && strcmp(text, word) == 0;
}

static ferry_status fail_word(const fy_json_place *place, const char *what, const char *word,
                              ferry_error *error)
{
    return fy_json_fail(place, error, "has the %s \"%.40s\"", what, word);
}

ferry_status fy_proof_block_read(const json_t *json, const fy_json_place *place, uint64_t *block,
                                 ferry_error *error)
{
    fy_json_place inner = {.parent = place, .key = "block"};
    if (json == NULL || !json_is_array(json) || json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must have a block of rows and columns");
    }
    for (size_t i = 0; i < 2; i++) {
        FY_TRY(fy_json_get_size(json_array_get(json, i), &inner, 1, MOST_BLOCK, &block[i], error));
    }
    return FERRY_OK;
}

/* Names for what the other keys say of others. */
static const struct {
    const char *name;
    fy_proof_quantize is;
} named_formats[] = {
    {"mxfp8",
     {.codes = {FERRY_F8E4M3, 8}, .scales = {FERRY_F8E8M0, 8}, .kind = "floor", .block = {1, 32}}},
    {"nvfp4",
     {.codes = {FERRY_F4, 4}, .scales = {FERRY_F8E4M3, 8}, .kind = "amax", .block = {1, 16}}},
};

enum { N_NAMED = sizeof named_formats / sizeof named_formats[0] };

static ferry_status settle(const quantize_json *q, const fy_json_place *place,
                           fy_proof_quantize *out, ferry_error *error)
{
    for (size_t i = 0; i < N_NAMED; i++) {
        bool says_more = q->block != NULL || q->scale_dtype != NULL || q->scale_kind != NULL;
        if (is_word(q->format, named_formats[i].name)) {
            *out = named_formats[i].is;
            return says_more ? fy_json_fail(place, error, "says more of %s than its name",
                                            named_formats[i].name)
                             : FERRY_OK;
        }
    }
    bool is_wide = is_word(q->format, "f8e5m2");
    if (!is_wide && !is_word(q->format, "f8e4m3")) {
        return fail_word(place, "format", q->format, error);
    }
    out->codes = (ferry_dtype){is_wide ? FERRY_F8E5M2 : FERRY_F8E4M3, 8};
    bool is_power = is_word(q->scale_dtype, "f8e8m0");
    if (q->scale_dtype != NULL && !is_power && !is_word(q->scale_dtype, "f32")) {
        return fail_word(place, "scale_dtype", q->scale_dtype, error);
    }
    out->scales = is_power ? (ferry_dtype){FERRY_F8E8M0, 8} : (ferry_dtype){FERRY_F32, 32};
    out->kind = is_power ? "cover" : "amax";
    if (is_word(q->scale_kind, "cover") || is_word(q->scale_kind, "floor") ||
        (is_word(q->scale_kind, "amax") && !is_power)) {
        out->kind = q->scale_kind;
    } else if (q->scale_kind != NULL) {
        return fail_word(place, "scale_kind", q->scale_kind, error);
    }
    return fy_proof_block_read(q->block, place, out->block, error);
}

static bool is_f4(const fy_proof_quantize *quantize)
{
    return quantize->codes.kind == FERRY_F4;
}

ferry_status fy_proof_quantize_read(fy_proof_spec *spec, const json_t *json,
                                    const fy_json_place *place,
                                    const fy_proof_quantize **quantize_out, ferry_error *error)
{
    quantize_json q = {.format = NULL};
    fy_proof_quantize *kept = fy_arena_alloc(&spec->arena, 1, sizeof *kept);
    FY_TRY(fy_check_memory(kept != NULL, "a quantization", error));
    *kept = (fy_proof_quantize){.kind = NULL};
    FY_TRY(fy_json_read(json, place, fields, &q, NULL, error));
    FY_TRY(settle(&q, place, kept, error));
    if (q.scale == NULL) {
        return fy_json_fail(place, error, "names no tensor for the scales");
    }
    if ((q.given != NULL) != is_f4(kept)) {
        return fy_json_fail(place, error,
                            "names the scales of matrices where it is not nvfp4, or not");
    }
    kept->scale = q.scale;
    kept->given = q.given;
    *quantize_out = kept;
    return FERRY_OK;
}

const char *fy_proof_scales_name(fy_proof_spec *spec, const char *scale, const char *tensor)
{
    size_t before = strcspn(scale, "*");
    size_t n = strlen(scale) + strlen(tensor);
    char *name = fy_arena_alloc(&spec->arena, n + 1, 1);
    if (name != NULL) {
        memcpy(name, scale, before);
        name[before] = '\0';
        if (scale[before] == '*') {
            memcpy(name + before, tensor, strlen(tensor));
            memcpy(name + before + strlen(tensor), scale + before + 1,
                   strlen(scale + before + 1) + 1);
        }
    }
    return name;
}

bool fy_proof_quantize_is_alike(const fy_proof_quantize *a, const fy_proof_quantize *b)
{
    return a->codes.kind == b->codes.kind && a->scales.kind == b->scales.kind &&
           a->block[0] == b->block[0] && a->block[1] == b->block[1] &&
           strcmp(a->kind, b->kind) == 0;
}

static ferry_status check_values(const fy_proof_tensor *values, const fy_proof_quantize *quantize,
                                 ferry_error *error)
{
    uint32_t kind = values->entry->dtype.kind;
    bool has_blocks = kind == FERRY_F32 || kind == FERRY_F16 || kind == FERRY_BF16;
    if (is_f4(quantize) && values->entry->shape[FY_PROOF_DIMS - 1] % 2 != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%.*s: becomes f4, but its rows would end within a byte", NAME_BYTES,
                       values->name);
    }
    if (has_blocks && values->entry->n_dims >= 2 && values->entry->scaling == NULL) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%.*s: is quantized, but has no rows and columns of f32, f16 or bf16",
                   NAME_BYTES, values->name);
}

/* Notes which tensor has an f32 for each matrix of one that becomes f4. */
static ferry_status add_given(fy_proof_spec *spec, uint32_t tensor,
                              const fy_proof_quantize *quantize, ferry_error *error)
{
    fy_proof_tensor *values = &spec->tensors[tensor];
    const char *name = fy_proof_scales_name(spec, quantize->given, values->name);
    uint32_t found = 0;
    FY_TRY(fy_check_memory(name != NULL, "the scales of a tensor", error));
    bool is_there = fy_proof_spec_find(spec, name, &found);
    const fy_proof_entry *has = is_there ? spec->tensors[found].entry : NULL;
    const fy_proof_entry *of = values->entry;
    bool fits = is_there && has->dtype.kind == FERRY_F32 && has->scaling == NULL &&
                has->staged == NULL && !has->has_source && has->n_dims + 2 == of->n_dims &&
                (values->given == 0 || values->given == found + 1);
    for (size_t d = 0; fits && d < ROWS; d++) {
        fits = has->shape[d + 2] == of->shape[d];
    }
    values->given = found + 1;
    return fits ? FERRY_OK
                : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%.*s: becomes f4 by a tensor that is not there, or has no f32 for each "
                          "matrix, or is not the only one",
                          NAME_BYTES, values->name);
}

ferry_status fy_proof_scales_add(fy_proof_spec *spec, uint32_t tensor,
                                 const fy_proof_quantize *quantize, ferry_error *error)
{
    const fy_proof_entry *values = spec->tensors[tensor].entry;
    uint32_t found;
    FY_TRY(check_values(&spec->tensors[tensor], quantize, error));
    FY_TRY(is_f4(quantize) ? add_given(spec, tensor, quantize, error) : FERRY_OK);
    const char *name = fy_proof_scales_name(spec, quantize->scale, spec->tensors[tensor].name);
    fy_proof_scaling *scaling = fy_arena_alloc(&spec->arena, 1, sizeof *scaling);
    FY_TRY(fy_check_memory(name != NULL && scaling != NULL, "the scales of a tensor", error));
    if (fy_proof_spec_find(spec, name, &found)) {
        const fy_proof_scaling *its = spec->tensors[found].entry->scaling;
        return its != NULL && its->tensor == tensor &&
                       fy_proof_quantize_is_alike(its->quantize, quantize)
                   ? FERRY_OK
                   : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "%.*s: is the name of scales, and of something else", NAME_BYTES,
                             name);
    }
    fy_proof_entry entry = {.dtype = quantize->scales, .n_dims = values->n_dims};
    *scaling = (fy_proof_scaling){.tensor = tensor, .quantize = quantize};
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        scaling->values[d] = values->shape[d];
        scaling->block[d] = d < ROWS ? 1 : quantize->block[d - ROWS];
        entry.shape[d] = fy_ceil_div(values->shape[d], scaling->block[d]);
    }
    entry.scaling = scaling;
    FY_TRY(fy_proof_finish_entry(spec, &entry, name, error));
    const fy_proof_entry *kept = fy_proof_keep_entry(spec, &entry);
    FY_TRY(fy_check_memory(kept != NULL, "the scales of a tensor", error));
    return fy_proof_add_tensor(spec, name, kept, 0, error);
}

ferry_status fy_proof_scales_of_boxes(fy_proof_spec *spec, const json_t *side,
                                      const fy_json_place *place, ferry_error *error)
{
    const json_t *boxes = json_object_get(side, "boxes");
    fy_json_place list = {.parent = place, .key = "boxes"};
    for (size_t i = 0; i < json_array_size(boxes); i++) {
        fy_json_place entry = {.parent = &list, .index = i};
        fy_json_place inner = {.parent = &entry, .key = "quantize"};
        const json_t *parameter = json_array_get(boxes, i);
        const json_t *json = json_object_get(parameter, "quantize");
        const json_t *holds = json_object_get(parameter, "holds");
        const fy_proof_quantize *quantize = NULL;
        if (json == NULL) {
            continue;
        }
        FY_TRY(fy_proof_quantize_read(spec, json, &inner, &quantize, error));
        for (size_t k = 0; k < json_array_size(holds); k++) {
            const json_t *name = json_object_get(json_array_get(holds, k), "tensor");
            uint32_t tensor;
            /* One that is none is found when the boxes are read. */
            if (json_is_string(name) &&
                fy_proof_spec_find(spec, json_string_value(name), &tensor)) {
                FY_TRY(fy_proof_scales_add(spec, tensor, quantize, error));
            }
        }
    }
    return FERRY_OK;
}

/* A type that the move names must be this one. */
static ferry_status check_type(const fy_proof_spec *spec, const fy_proof_move *move,
                               const char *stated, ferry_dtype right, ferry_error *error)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(right, text, sizeof text);
    return is_word(stated, text)
               ? FERRY_OK
               : fy_proof_move_fail(spec, move, error, "says the dtype %.40s where it is %.40s",
                                    stated == NULL ? "of nothing" : stated, text);
}

/*
 * Whether the move says that the receiver computes it: codes, of which it then gets the values.
 * Senders compute what they can be seen to have whole blocks of.
 */
static ferry_status check_maker(const fy_proof_spec *spec, bool is_scales,
                                const fy_proof_move *move, bool *at_receiver_out,
                                ferry_error *error)
{
    const char *at = move->stated.at;
    bool has_shards = spec->sides[FY_PROOF_SOURCE].memory == NULL &&
                      !spec->tensors[move->tensor].entry->has_source;
    *at_receiver_out = !is_scales && is_word(at, "receiver");
    if (*at_receiver_out || (is_word(at, "sender") && has_shards)) {
        return FERRY_OK;
    }
    return fy_proof_move_fail(spec, move, error,
                              is_scales    ? "should say that the sender makes these scales: a "
                                             "receiver makes its own without a move"
                              : has_shards ? "should say who quantizes it"
                                           : "should say that the receiver quantizes it, for what "
                                             "senders have are no shards of whole blocks");
}

ferry_status fy_proof_quantize_check(const fy_proof_spec *spec, const fy_proof_quantize *quantize,
                                     bool is_scales, fy_proof_move *move, bool *at_receiver_out,
                                     ferry_error *error)
{
    const fy_proof_stated *s = &move->stated;
    const fy_proof_entry *entry = spec->tensors[move->tensor].entry;
    uint32_t of = is_scales ? entry->scaling->tensor : move->tensor;
    ferry_dtype values = spec->tensors[of].entry->dtype;
    ferry_dtype made = is_scales ? quantize->scales : quantize->codes;
    fy_json_place place = {.key = "quantize"};
    quantize_json q = {.format = NULL};
    fy_proof_quantize stated = {.kind = NULL};
    FY_TRY(check_maker(spec, is_scales, move, at_receiver_out, error));
    move->bits = *at_receiver_out ? values.element_bits : made.element_bits;
    FY_TRY(check_type(spec, move, s->src_dtype, values, error));
    FY_TRY(check_type(spec, move, s->dst_dtype, made, error));
    if (s->quantize == NULL || s->cast != NULL || s->scale != NULL || s->add != NULL ||
        s->dequantize != NULL || !is_word(s->part, is_scales ? "scales" : "codes")) {
        return fy_proof_move_fail(spec, move, error,
                                  "should say that it is quantized, and that these are %s",
                                  is_scales ? "scales" : "codes");
    }
    FY_TRY(fy_json_read(s->quantize, &place, fields, &q, NULL, error));
    FY_TRY(settle(&q, &place, &stated, error));
    uint32_t given = spec->tensors[of].given; /* what nobody wants has none */
    if (is_f4(quantize) ? given == 0 || !is_word(q.given, spec->tensors[given - 1].name)
                        : q.given != NULL) {
        return fy_proof_move_fail(spec, move, error,
                                  "says other scales of its matrices than the spec");
    }
    return q.scale == NULL && fy_proof_quantize_is_alike(&stated, quantize)
               ? FERRY_OK
               : fy_proof_move_fail(spec, move, error,
                                    "is quantized in another format than the spec has");
}

ferry_status fy_proof_quantize_count(const fy_proof_spec *spec, const fy_proof_shard *values,
                                     fy_proof_move *move, ferry_error *error)
{
    const fy_proof_scaling *scaling = spec->tensors[move->tensor].entry->scaling;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t block = scaling->block[d], begin = move->src[d], most = values->shape[d], right;
        if (begin % block != 0 || begin > most || !fy_mul(move->length[d], block, &right)) {
            return fy_proof_move_fail(spec, move, error,
                                      "reads from %llu on, which is no block of %llu of the shard",
                                      (unsigned long long)begin, (unsigned long long)block);
        }
        right = fy_min(right, most - begin);
        if (move->src_length[d] != right) {
            return fy_proof_move_fail(spec, move, error,
                                      "reads %llu elements from %llu on where its blocks are %llu",
                                      (unsigned long long)move->src_length[d],
                                      (unsigned long long)begin, (unsigned long long)right);
        }
        move->src[d] = begin / block;
    }
    return FERRY_OK;
}

/* Whether two dimensions have the same elements in the same order. */
static bool are_same(const fy_proof_pieces *a, const fy_proof_pieces *b)
{
    bool same = a->n == b->n && a->length == b->length;
    for (size_t i = 0; same && i < a->n; i++) {
        same = a->items[i].local == b->items[i].local && a->items[i].global == b->items[i].global &&
               a->items[i].length == b->items[i].length;
    }
    return same;
}

ferry_status fy_proof_quantize_given(const fy_proof_spec *spec, const fy_proof_shard *values,
                                     const fy_proof_shard *given, const fy_proof_move *move,
                                     ferry_error *error)
{
    uint64_t all = 1;
    bool has = given != NULL;
    for (size_t d = 0; has && d < ROWS; d++) {
        all *= given->shape[d + 2];
        has = are_same(&values->dims[d], &given->dims[d + 2]);
    }
    return has && given->flat_begin == 0 && given->flat_end == all
               ? FERRY_OK
               : fy_proof_move_fail(
                     spec, move, error,
                     "is of a rank, or to one, without the scales of its matrices, by which f4 is "
                     "made");
}

ferry_status fy_proof_quantize_align(const fy_proof_spec *spec, const fy_proof_quantize *quantize,
                                     const fy_proof_shard *from, const fy_proof_move *move,
                                     ferry_error *error)
{
    const fy_proof_entry *entry = spec->tensors[move->tensor].entry;
    uint64_t first[FY_PROOF_DIMS];
    fy_proof_shard_element(from, move->src, first);
    for (size_t d = ROWS; d < FY_PROOF_DIMS; d++) {
        uint64_t block = quantize->block[d - ROWS], end = first[d] + move->length[d];
        if (first[d] % block != 0 || (end % block != 0 && end != entry->shape[d])) {
            return fy_proof_move_fail(spec, move, error,
                                      "has the elements %llu to %llu of the tensor on a dimension "
                                      "whose blocks are of %llu",
                                      (unsigned long long)first[d], (unsigned long long)end,
                                      (unsigned long long)block);
        }
    }
    return FERRY_OK;
}
