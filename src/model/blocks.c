/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/blocks.h"

#include <string.h>

static const char *const rule_words[] = {"amax", "cover", "floor"};

enum { MOST_BLOCK = INT32_MAX, N_RULES = 3 };

/* What stands in the value, before it is known whether that fits together. */
typedef struct said_quantize {
    const char *format;
    const char *scale;
    const char *scale_dtype;
    const char *scale_kind;
    const char *tensor_scale;
    const json_t *block;
} said_quantize;

static ferry_status read_block(const json_t *json, const fy_json_place *place, uint64_t block[2],
                               ferry_error *error)
{
    fy_json_place at = {.parent = place, .key = "block"};
    if (!json_is_array(json) || json_array_size(json) != 2) {
        return fy_json_fail(&at, error, "must be a pair of rows and columns");
    }
    for (size_t i = 0; i < 2; i++) {
        fy_json_place inner = {.parent = &at, .index = i};
        FY_TRY(fy_json_get_size(json_array_get(json, i), &inner, 1, MOST_BLOCK, &block[i], error));
    }
    return FERRY_OK;
}

/* The formats that fix everything. */
static const struct fixed_format {
    const char *word, *is;
    fy_said_blocks blocks;
} fixed_formats[] = {
    {"mxfp8",
     "1 x 32 and whose scales are f8e8m0",
     {.codes = {FERRY_F8E4M3, 8}, .scales = {FERRY_F8E8M0, 8}, .rule = 2, .block = {1, 32}}},
    {"nvfp4",
     "1 x 16 and whose scales are f8e4m3",
     {.codes = {FERRY_F4, 4}, .scales = {FERRY_F8E4M3, 8}, .rule = 0, .block = {1, 16}}},
};

enum { N_FIXED = sizeof fixed_formats / sizeof fixed_formats[0] };

/* The fixed format that these are; NULL: none. */
static const struct fixed_format *find_fixed(const fy_said_blocks *blocks)
{
    for (size_t i = 0; i < N_FIXED; i++) {
        if (fy_blocks_are_alike(&fixed_formats[i].blocks, blocks)) {
            return &fixed_formats[i];
        }
    }
    return NULL;
}

static ferry_status settle_fixed(const said_quantize *said, const fy_json_place *place,
                                 const struct fixed_format *fixed, fy_said_blocks *blocks,
                                 ferry_error *error)
{
    if (said->block != NULL || said->scale_dtype != NULL || said->scale_kind != NULL) {
        return fy_json_fail(place, error,
                            "is %s, whose blocks are of %s: it takes no \"block\", "
                            "\"scale_dtype\" or \"scale_kind\"",
                            fixed->word, fixed->is);
    }
    *blocks = fixed->blocks;
    return FERRY_OK;
}

static ferry_status settle_format(const said_quantize *said, const fy_json_place *place,
                                  fy_said_blocks *blocks, ferry_error *error)
{
    fy_json_place at = {.parent = place, .key = "format"};
    bool is_wide = strcmp(said->format, "f8e5m2") == 0;
    for (size_t i = 0; i < N_FIXED; i++) {
        if (strcmp(said->format, fixed_formats[i].word) == 0) {
            return settle_fixed(said, place, &fixed_formats[i], blocks, error);
        }
    }
    if (!is_wide && strcmp(said->format, "f8e4m3") != 0) {
        return fy_json_fail(&at, error, "is \"%.40s\"; there are f8e4m3, f8e5m2, mxfp8 and nvfp4",
                            said->format);
    }
    blocks->codes = (ferry_dtype){is_wide ? FERRY_F8E5M2 : FERRY_F8E4M3, 8};
    return said->block != NULL
               ? read_block(said->block, place, blocks->block, error)
               : fy_json_fail(place, error, "lacks \"block\", a pair of rows and columns");
}

static ferry_status settle_scales(const said_quantize *said, const fy_json_place *place,
                                  fy_said_blocks *blocks, ferry_error *error)
{
    fy_json_place dtype = {.parent = place, .key = "scale_dtype"};
    fy_json_place kind = {.parent = place, .key = "scale_kind"};
    const char *type = said->scale_dtype == NULL ? "f32" : said->scale_dtype;
    bool is_power = strcmp(type, "f8e8m0") == 0;
    if (!is_power && strcmp(type, "f32") != 0) {
        return fy_json_fail(&dtype, error, "is \"%.40s\"; there are f32 and f8e8m0", type);
    }
    blocks->scales = is_power ? (ferry_dtype){FERRY_F8E8M0, 8} : (ferry_dtype){FERRY_F32, 32};
    blocks->rule = is_power ? 1 : 0;
    if (said->scale_kind == NULL) {
        return FERRY_OK;
    }
    blocks->rule = 0;
    while (blocks->rule < N_RULES && strcmp(said->scale_kind, rule_words[blocks->rule]) != 0) {
        blocks->rule++;
    }
    if (blocks->rule == N_RULES) {
        return fy_json_fail(&kind, error,
                            "is \"%.40s\"; there are amax, cover and floor, the last two of powers "
                            "of two",
                            said->scale_kind);
    }
    if (is_power && blocks->rule == 0) {
        return fy_json_fail(&kind, error,
                            "is amax, but f8e8m0 has powers of two only: cover, or "
                            "floor");
    }
    return FERRY_OK;
}

static bool is_name(const char *scale)
{
    const char *star = strchr(scale, '*');
    return *scale != '\0' && strcmp(scale, "*") != 0 && strlen(scale) < FERRY_NAME_BYTES &&
           (star == NULL || strchr(star + 1, '*') == NULL);
}

static ferry_status settle_name(const char *said, const fy_json_place *place, const char *key,
                                fy_arena *arena, const char **name_out, ferry_error *error)
{
    fy_json_place at = {.parent = place, .key = key};
    if (!is_name(said)) {
        return fy_json_fail(&at, error,
                            "must be the name of the tensor of scales; one * in it stands for that "
                            "of the tensor");
    }
    *name_out = fy_arena_copy(arena, said, strlen(said));
    return fy_check_memory(*name_out != NULL, "a quantization", error);
}

static ferry_status settle_tensor_scale(const said_quantize *said, const fy_json_place *place,
                                        fy_arena *arena, fy_said_blocks *blocks, ferry_error *error)
{
    bool takes = blocks->codes.kind == FERRY_F4;
    if (takes && said->tensor_scale == NULL) {
        return fy_json_fail(place, error,
                            "is nvfp4 and lacks \"tensor_scale\", the name of the tensor of the "
                            "source with an f32 for each matrix: its largest magnitude / 2688");
    }
    if (!takes && said->tensor_scale != NULL) {
        return fy_json_fail(place, error, "has \"tensor_scale\", which only nvfp4 takes");
    }
    return !takes ? FERRY_OK
                  : settle_name(said->tensor_scale, place, "tensor_scale", arena,
                                &blocks->tensor_scale, error);
}

ferry_status fy_blocks_read(const json_t *json, const fy_json_place *place, fy_arena *arena,
                            const fy_said_blocks **blocks_out, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"format", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(said_quantize, format)},
        {"scale", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(said_quantize, scale)},
        {"block", FY_JSON_VALUE, .offset = offsetof(said_quantize, block)},
        {"scale_dtype", FY_JSON_STRING, .offset = offsetof(said_quantize, scale_dtype)},
        {"scale_kind", FY_JSON_STRING, .offset = offsetof(said_quantize, scale_kind)},
        {"tensor_scale", FY_JSON_STRING, .offset = offsetof(said_quantize, tensor_scale)},
        {.key = NULL}};
    said_quantize said = {.format = NULL};
    FY_TRY(fy_json_read(json, place, fields, &said, NULL, error));
    fy_said_blocks *blocks = fy_arena_alloc(arena, 1, sizeof *blocks);
    FY_TRY(fy_check_memory(blocks != NULL, "a quantization", error));
    *blocks = (fy_said_blocks){.rule = 0};
    FY_TRY(settle_format(&said, place, blocks, error));
    FY_TRY(blocks->scales.kind == 0 ? settle_scales(&said, place, blocks, error) : FERRY_OK);
    FY_TRY(settle_name(said.scale, place, "scale", arena, &blocks->scale, error));
    FY_TRY(settle_tensor_scale(&said, place, arena, blocks, error));
    *blocks_out = blocks;
    return FERRY_OK;
}

static bool is_type(ferry_dtype dtype, uint32_t kind, uint32_t bits)
{
    return dtype.kind == kind && dtype.element_bits == bits;
}

/* The block, and the name of the scales of what it says. */
static ferry_status check_made(const fy_said_blocks *blocks, const char *whose, ferry_error *error)
{
    if (blocks->block[0] - 1 >= MOST_BLOCK || blocks->block[1] - 1 >= MOST_BLOCK) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "blocks of %llu rows and %llu columns; both are from 1 to %d",
                       (unsigned long long)blocks->block[0], (unsigned long long)blocks->block[1],
                       MOST_BLOCK);
    }
    return is_name(blocks->scale)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "scales that are called \"%.80s\": it must be the name of a tensor, in "
                         "which one * stands for that of the %s",
                         blocks->scale, whose);
}

static ferry_status make_f4(const fy_said_blocks *blocks, ferry_error *error)
{
    bool has_name = blocks->tensor_scale != NULL && is_name(blocks->tensor_scale);
    if (!fy_blocks_are_alike(blocks, &fixed_formats[N_FIXED - 1].blocks)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "codes of the type f4; these are nvfp4: with scales f8e4m3 by rule 0, of "
                       "blocks of 1 x 16");
    }
    return has_name ? check_made(blocks, "values", error)
                    : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                              "codes of the type f4 without a tensor_scale; that is the name of "
                              "the tensor of the source with an f32 for each matrix");
}

ferry_status fy_blocks_make(const ferry_quantization *given, fy_said_blocks *blocks_out,
                            ferry_error *error)
{
    fy_said_blocks blocks = {.codes = given->code_dtype,
                             .scales = given->scale_dtype,
                             .rule = given->scale_rule,
                             .block = {given->block[0], given->block[1]},
                             .scale = given->scale,
                             .tensor_scale = given->tensor_scale};
    if (is_type(blocks.codes, FERRY_F4, 4)) {
        FY_TRY(make_f4(&blocks, error));
        *blocks_out = blocks;
        return FERRY_OK;
    }
    bool is_power = is_type(blocks.scales, FERRY_F8E8M0, 8);
    char text[FERRY_DTYPE_TEXT_BYTES];
    if (!fy_codes_are(blocks.codes)) {
        ferry_dtype_format(blocks.codes, text, sizeof text);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "codes of the type %s; there are f8e4m3, f8e5m2 and f4", text);
    }
    if (blocks.tensor_scale != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a tensor_scale \"%.80s\", which only codes of f4 take",
                       blocks.tensor_scale);
    }
    if (!fy_codes_have_scales(blocks.codes, blocks.scales)) {
        ferry_dtype_format(blocks.scales, text, sizeof text);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "scales of the type %s; there are f32 and f8e8m0", text);
    }
    if (blocks.rule >= N_RULES || (is_power && blocks.rule == 0)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "scales by rule %u; there are 0, of f32 only, and 1 and 2, of powers of two",
                       blocks.rule);
    }
    FY_TRY(check_made(&blocks, "values", error));
    *blocks_out = blocks;
    return FERRY_OK;
}

ferry_status fy_codes_make(const char *scale, const uint64_t block[2], fy_said_blocks *codes_out,
                           ferry_error *error)
{
    fy_said_blocks codes = {.block = {block[0], block[1]}, .scale = scale};
    FY_TRY(check_made(&codes, "codes", error));
    *codes_out = codes;
    return FERRY_OK;
}

ferry_status fy_codes_read(const json_t *json, const fy_json_place *place, fy_arena *arena,
                           const fy_said_blocks **codes_out, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"scale", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(said_quantize, scale)},
        {"block", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(said_quantize, block)},
        {.key = NULL}};
    said_quantize said = {.format = NULL};
    FY_TRY(fy_json_read(json, place, fields, &said, NULL, error));
    fy_said_blocks *codes = fy_arena_alloc(arena, 1, sizeof *codes);
    FY_TRY(fy_check_memory(codes != NULL, "a dequantization", error));
    *codes = (fy_said_blocks){.rule = 0};
    FY_TRY(read_block(said.block, place, codes->block, error));
    FY_TRY(settle_name(said.scale, place, "scale", arena, &codes->scale, error));
    *codes_out = codes;
    return FERRY_OK;
}

const fy_said_blocks *fy_blocks_copy(const fy_said_blocks *blocks, fy_arena *arena)
{
    fy_said_blocks *copy = fy_arena_alloc(arena, 1, sizeof *copy);
    const char *scale = fy_arena_copy(arena, blocks->scale, strlen(blocks->scale));
    const char *given = blocks->tensor_scale;
    given = given == NULL ? NULL : fy_arena_copy(arena, given, strlen(given));
    if (copy == NULL || scale == NULL || (given == NULL) != (blocks->tensor_scale == NULL)) {
        return NULL;
    }
    *copy = *blocks;
    copy->scale = scale;
    copy->tensor_scale = given;
    return copy;
}

bool fy_blocks_are_valid(const fy_said_blocks *blocks)
{
    bool is_power = blocks->scales.kind == FERRY_F8E8M0 && blocks->scales.element_bits == 8;
    bool is_f32 = blocks->scales.kind == FERRY_F32 && blocks->scales.element_bits == 32;
    bool has_codes = blocks->codes.kind == FERRY_F8E4M3 || blocks->codes.kind == FERRY_F8E5M2;
    if (is_type(blocks->codes, FERRY_F4, 4)) {
        return fy_blocks_are_alike(blocks, &fixed_formats[N_FIXED - 1].blocks) &&
               is_name(blocks->scale) && blocks->tensor_scale != NULL &&
               is_name(blocks->tensor_scale);
    }
    return blocks->tensor_scale == NULL && has_codes && blocks->codes.element_bits == 8 &&
           (is_f32 || is_power) && blocks->rule < N_RULES && !(is_power && blocks->rule == 0) &&
           blocks->block[0] >= 1 && blocks->block[1] >= 1 && blocks->block[0] <= MOST_BLOCK &&
           blocks->block[1] <= MOST_BLOCK && is_name(blocks->scale);
}

void fy_blocks_write(fy_writer *w, const fy_said_blocks *blocks)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    const struct fixed_format *fixed = find_fixed(blocks);
    ferry_dtype_format(blocks->codes, text, sizeof text);
    fy_write_text(w, ",\"quantize\":{\"format\":");
    fy_write_string(w, fixed != NULL ? fixed->word : text);
    if (fixed == NULL) {
        fy_write_text(w, ",\"block\":[");
        fy_write_u64(w, blocks->block[0]);
        fy_write_text(w, ",");
        fy_write_u64(w, blocks->block[1]);
        ferry_dtype_format(blocks->scales, text, sizeof text);
        fy_write_text(w, "],\"scale_dtype\":");
        fy_write_string(w, text);
        fy_write_text(w, ",\"scale_kind\":");
        fy_write_string(w, rule_words[blocks->rule]);
    }
    if (blocks->scale != NULL) {
        fy_write_text(w, ",\"scale\":");
        fy_write_string(w, blocks->scale);
    }
    if (blocks->tensor_scale != NULL) {
        fy_write_text(w, ",\"tensor_scale\":");
        fy_write_string(w, blocks->tensor_scale);
    }
    fy_write_text(w, "}");
}

void fy_codes_write(fy_writer *w, const fy_said_blocks *codes)
{
    fy_write_text(w, ",\"dequantize\":{\"block\":[");
    fy_write_u64(w, codes->block[0]);
    fy_write_text(w, ",");
    fy_write_u64(w, codes->block[1]);
    fy_write_text(w, "],\"scale\":");
    fy_write_string(w, codes->scale);
    fy_write_text(w, "}");
}

/* Whether a pattern fits with the name of a tensor in place of its star. */
static bool put_name(const char *pattern, const char *tensor, char *name_out, size_t name_bytes)
{
    const char *star = strchr(pattern, '*');
    size_t n = strlen(pattern), more = star == NULL ? 0 : strlen(tensor);
    size_t before = star == NULL ? n : (size_t)(star - pattern);
    size_t after = star == NULL ? 0 : n - before - 1;
    if (before + more + after >= name_bytes) {
        return false;
    }
    memcpy(name_out, pattern, before);
    memcpy(name_out + before, tensor, more);
    memcpy(name_out + before + more, pattern + n - after, after);
    name_out[before + more + after] = '\0';
    return true;
}

bool fy_blocks_name(const fy_said_blocks *blocks, const char *tensor, char *name_out,
                    size_t name_bytes)
{
    return put_name(blocks->scale, tensor, name_out, name_bytes);
}

bool fy_blocks_tensor_scale(const fy_said_blocks *blocks, const char *tensor, char *name_out,
                            size_t name_bytes)
{
    return put_name(blocks->tensor_scale, tensor, name_out, name_bytes);
}

bool fy_blocks_are_alike(const fy_said_blocks *a, const fy_said_blocks *b)
{
    return fy_conversion_key_compare(fy_blocks_key(a), fy_blocks_key(b)) == 0;
}

bool fy_codes_are(ferry_dtype codes)
{
    return is_type(codes, FERRY_F8E4M3, 8) || is_type(codes, FERRY_F8E5M2, 8) ||
           is_type(codes, FERRY_F4, 4);
}

bool fy_codes_have_scales(ferry_dtype codes, ferry_dtype scales)
{
    return codes.kind == FERRY_F4
               ? is_type(scales, FERRY_F8E4M3, 8)
               : is_type(scales, FERRY_F32, 32) || is_type(scales, FERRY_F8E8M0, 8);
}

bool fy_blocks_take(ferry_dtype values)
{
    return values.kind == FERRY_F32 || values.kind == FERRY_F16 || values.kind == FERRY_BF16;
}

fy_conversion_key fy_blocks_key(const fy_said_blocks *blocks)
{
    return (fy_conversion_key){.type = (uint64_t)blocks->codes.kind << 32 |
                                       (uint64_t)blocks->scales.kind << 16 |
                                       (uint64_t)blocks->rule << 3 | 4, /* a cast has no such bit */
                               .numbers = blocks->block[0] << 32 | blocks->block[1]};
}

fy_conversion fy_blocks_conversion(const fy_said_blocks *blocks, ferry_dtype values, uint32_t kind)
{
    ferry_dtype to = kind == FERRY_CONVERSION_CODES ? blocks->codes : blocks->scales;
    return (fy_conversion){.is = {.kind = kind,
                                  .scale = 1,
                                  .code_dtype = blocks->codes,
                                  .scale_dtype = blocks->scales,
                                  .scale_rule = blocks->rule,
                                  .block = {blocks->block[0], blocks->block[1]}},
                           .from = values,
                           .to = to,
                           .wire = to};
}

/* Bits of the last number that no cast and no quantization has. */
fy_conversion_key fy_codes_key(const fy_said_blocks *codes, ferry_dtype scales, ferry_dtype to)
{
    if (!fy_blocks_take(to)) {
        return (fy_conversion_key){0, 0};
    }
    return (fy_conversion_key){.type = (uint64_t)to.kind << 32 | (uint64_t)scales.kind << 16 | 8,
                               .numbers = codes->block[0] << 32 | codes->block[1]};
}

/* Codes travel, and are widened on the way, which changes no number; scales come afterwards. */
fy_conversion fy_codes_conversion(const fy_said_blocks *codes, ferry_dtype from, ferry_dtype scales,
                                  ferry_dtype to)
{
    return (fy_conversion){.is = {.kind = FERRY_CONVERSION_DEQUANTIZE,
                                  .at_receiver = true,
                                  .scale = 1,
                                  .code_dtype = from,
                                  .scale_dtype = scales,
                                  .block = {codes->block[0], codes->block[1]}},
                           .from = from,
                           .to = to,
                           .wire = from};
}

fy_conversion fy_blocks_at_receiver(const fy_conversion *at_sender)
{
    fy_conversion conversion = *at_sender;
    conversion.is.at_receiver = true;
    conversion.wire = conversion.from;
    return conversion;
}
