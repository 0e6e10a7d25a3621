/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/conversion.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

ferry_status fy_dtype_parse_json(const json_t *json, const fy_json_place *place, void *dtype,
                                 void *context, ferry_error *error)
{
    const char *text;
    ferry_error inner;
    (void)context;
    FY_TRY(fy_json_get_string(json, place, &text, error));
    if (ferry_dtype_parse(text, dtype, &inner) != FERRY_OK) {
        return fy_json_fail(place, error, "%s", inner.message);
    }
    return FERRY_OK;
}

ferry_status fy_cast_parse_word(const json_t *json, const fy_json_place *place, void *said,
                                void *context, ferry_error *error)
{
    fy_said_cast *cast = said;
    const char *word;
    (void)context;
    FY_TRY(fy_json_get_string(json, place, &word, error));
    cast->saturates = strcmp(word, "saturate") == 0;
    if (!cast->saturates && strcmp(word, "round") != 0) {
        return fy_json_fail(place, error,
                            "is \"%.100s\"; there are \"round\", and \"saturate\", which makes the "
                            "largest number of what is too large",
                            word);
    }
    cast->is_said = true;
    return FERRY_OK;
}

/* Plans count with f32: what a number is in it is what it means. */
static ferry_status parse_f32(const json_t *json, const fy_json_place *place, float *value_out,
                              ferry_error *error)
{
    if (!json_is_number(json)) {
        return fy_json_fail(place, error, "must be a number");
    }
    *value_out = (float)json_number_value(json);
    if (!isfinite(*value_out)) {
        return fy_json_fail(place, error, "is %.17g, which is too large for f32",
                            json_number_value(json));
    }
    return FERRY_OK;
}

ferry_status fy_cast_parse_scale(const json_t *json, const fy_json_place *place, void *said,
                                 void *context, ferry_error *error)
{
    fy_said_cast *cast = said;
    (void)context;
    FY_TRY(parse_f32(json, place, &cast->scale, error));
    if (cast->scale == 0) {
        return fy_json_fail(place, error,
                            "is 0, or so small that it is 0 in f32: nothing would be "
                            "left of the tensor");
    }
    return FERRY_OK;
}

ferry_status fy_cast_parse_add(const json_t *json, const fy_json_place *place, void *said,
                               void *context, ferry_error *error)
{
    fy_said_cast *cast = said;
    (void)context;
    FY_TRY(parse_f32(json, place, &cast->add, error));
    cast->add = cast->add == 0 ? 0 : cast->add; /* without the sign of -0 */
    return FERRY_OK;
}

ferry_status fy_cast_finish(const json_t *json, const fy_json_place *place, fy_said_cast *said,
                            ferry_error *error)
{
    static const char *const numbers[] = {"scale", "add"};
    static const char *const others[] = {"quantize", "dequantize"};
    for (size_t i = 0; i < 2; i++) {
        if (said->is_said && json_object_get(json, others[i]) != NULL) {
            return fy_json_fail(place, error, "has both \"cast\" and \"%s\"; use one", others[i]);
        }
    }
    if (json_object_get(json, others[0]) != NULL && json_object_get(json, others[1]) != NULL) {
        return fy_json_fail(place, error, "has both \"quantize\" and \"dequantize\"; use one");
    }
    for (size_t i = 0; i < 2; i++) {
        if (!said->is_said && json_object_get(json, numbers[i]) != NULL) {
            return fy_json_fail(place, error,
                                "has \"%s\", which needs \"cast\": \"round\" or \"saturate\"",
                                numbers[i]);
        }
    }
    if (said->is_said && json_object_get(json, "scale") == NULL) {
        said->scale = 1;
    }
    return FERRY_OK;
}

ferry_status fy_cast_make(bool saturates, float scale, float add, fy_said_cast *said_out,
                          ferry_error *error)
{
    if (!isfinite(scale) || scale == 0 || !isfinite(add)) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "a cast with the scale %g and the add %g: both must be finite, and the scale "
            "not 0",
            (double)scale, (double)add);
    }
    *said_out = (fy_said_cast){
        .is_said = true, .saturates = saturates, .scale = scale, .add = add == 0 ? 0 : add};
    return FERRY_OK;
}

void fy_cast_write(fy_writer *w, const fy_said_cast *said)
{
    if (!said->is_said) {
        return;
    }
    fy_write_text(w, said->saturates ? ",\"cast\":\"saturate\"" : ",\"cast\":\"round\"");
    if (said->scale != 1) {
        fy_write_text(w, ",\"scale\":");
        fy_write_double(w, (double)said->scale);
    }
    if (said->add != 0) {
        fy_write_text(w, ",\"add\":");
        fy_write_double(w, (double)said->add);
    }
}

/* What casts are among; f64 only becomes f32. */
static bool is_small_float(uint32_t kind)
{
    return kind == FERRY_F32 || kind == FERRY_F16 || kind == FERRY_BF16 || kind == FERRY_F8E4M3 ||
           kind == FERRY_F8E5M2;
}

static bool exists(ferry_dtype from, ferry_dtype to)
{
    return (is_small_float(from.kind) && is_small_float(to.kind)) ||
           (from.kind == FERRY_F64 && to.kind == FERRY_F32);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

fy_conversion_key fy_cast_key(const fy_said_cast *said, ferry_dtype from, ferry_dtype to,
                              char why_out[FY_CAST_WHY_BYTES])
{
    const fy_conversion_key none = {0, 0};
    char has[FERRY_DTYPE_TEXT_BYTES], wants[FERRY_DTYPE_TEXT_BYTES];
    bool is_same = from.kind == to.kind && from.element_bits == to.element_bits;
    why_out[0] = '\0';
    if (is_same && (!said->is_said || (said->scale == 1 && said->add == 0))) {
        return none;
    }
    if (!said->is_said || !exists(from, to)) {
        ferry_dtype_format(from, has, sizeof has);
        ferry_dtype_format(to, wants, sizeof wants);
        snprintf(
            why_out, FY_CAST_WHY_BYTES, "takes a cast from %s to %s%s", has, wants,
            !said->is_said
                ? ": say \"cast\": \"round\", or \"saturate\""
                : ", which there is not: f32, f16, bf16, f8e4m3 and f8e5m2 become one another, "
                  "and f64 becomes f32");
        return none;
    }
    return (fy_conversion_key){
        .type = (uint64_t)to.kind << 8 | (said->saturates ? 3 : 1), /* never 0 */
        .numbers = (uint64_t)bits_of(said->scale) << 32 | bits_of(said->add)};
}

fy_conversion fy_conversion_of(const fy_said_cast *said, ferry_dtype from, ferry_dtype to)
{
    bool at_receiver = from.element_bits < to.element_bits;
    return (fy_conversion){.is = {.kind = FERRY_CONVERSION_CAST,
                                  .at_receiver = at_receiver,
                                  .saturates = said->saturates,
                                  .scale = said->scale,
                                  .add = said->add},
                           .from = from,
                           .to = to,
                           .wire = at_receiver ? from : to};
}

void fy_conversion_digest(fy_digest *d, const fy_conversion *conversion)
{
    if (conversion->is.kind != FERRY_CONVERSION_CAST) {
        fy_digest_text(d, "quantize");
        fy_digest_u64(d, conversion->is.kind);
        if (conversion->is.kind == FERRY_CONVERSION_DEQUANTIZE) {
            fy_digest_u64(d, conversion->to.kind);
        }
        fy_digest_u64(d, conversion->is.code_dtype.kind);
        fy_digest_u64(d, conversion->is.scale_dtype.kind);
        fy_digest_u64(d, conversion->is.scale_rule);
        fy_digest_u64s(d, conversion->is.block, 2);
        if (conversion->is.at_receiver) {
            fy_digest_text(d, "at the receiver");
        }
        return;
    }
    fy_digest_text(d, "cast");
    fy_digest_u64(d, conversion->to.kind);
    fy_digest_u64(d, conversion->is.saturates);
    fy_digest_u64(d, bits_of(conversion->is.scale));
    fy_digest_u64(d, bits_of(conversion->is.add));
}
