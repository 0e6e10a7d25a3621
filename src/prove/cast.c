/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/cast.h"

#include "prove/spec_read.h"

#include <math.h>
#include <string.h>

/* A number that is not there is `otherwise`. */
static ferry_status read_number(const json_t *json, const fy_json_place *place, const char *key,
                                float otherwise, float *value_out, ferry_error *error)
{
    fy_json_place inner = {.parent = place, .key = key};
    *value_out = otherwise;
    if (json == NULL) {
        return FERRY_OK;
    }
    if (!json_is_number(json) || !isfinite((float)json_number_value(json))) {
        return fy_json_fail(&inner, error, "must be a number that f32 has room for");
    }
    *value_out = (float)json_number_value(json);
    return FERRY_OK;
}

ferry_status fy_proof_cast_read(const fy_proof_cast_json *said, const fy_json_place *place,
                                int side, ferry_dtype *dtype_out, fy_proof_cast *cast_out,
                                ferry_error *error)
{
    *cast_out = (fy_proof_cast){.scale = 1};
    if (said->dtype != NULL) {
        FY_TRY(fy_proof_read_dtype(said->dtype, place, dtype_out, error));
    }
    if (said->cast == NULL) {
        return said->scale == NULL && said->add == NULL
                   ? FERRY_OK
                   : fy_json_fail(place, error, "scales or adds, but says no cast");
    }
    if (side == FY_PROOF_SOURCE) {
        return fy_json_fail(place, error, "casts at the source, which has what it has");
    }
    cast_out->saturates = strcmp(said->cast, "saturate") == 0;
    if (!cast_out->saturates && strcmp(said->cast, "round") != 0) {
        return fy_json_fail(place, error, "has the cast \"%.40s\"", said->cast);
    }
    cast_out->is_said = true;
    FY_TRY(read_number(said->scale, place, "scale", 1, &cast_out->scale, error));
    FY_TRY(read_number(said->add, place, "add", 0, &cast_out->add, error));
    return cast_out->scale != 0 ? FERRY_OK
                                : fy_json_fail(place, error, "scales by 0, which leaves nothing");
}

static bool is_same(ferry_dtype a, ferry_dtype b)
{
    return a.kind == b.kind && a.element_bits == b.element_bits;
}

/* Whether elements arrive as they were. */
static bool keeps(const fy_proof_cast *cast, ferry_dtype from, ferry_dtype to)
{
    return is_same(from, to) && (!cast->is_said || (cast->scale == 1 && cast->add == 0));
}

/* Floating-point types of 32 bits and less. */
static bool is_real(ferry_dtype dtype)
{
    switch (dtype.kind) {
    case FERRY_F32:
    case FERRY_F16:
    case FERRY_BF16:
    case FERRY_F8E4M3:
    case FERRY_F8E5M2:
        return true;
    default:
        return false;
    }
}

bool fy_proof_cast_allows(const fy_proof_cast *cast, ferry_dtype from, ferry_dtype to)
{
    bool from_double = from.kind == FERRY_F64 && to.kind == FERRY_F32;
    return keeps(cast, from, to) ||
           (cast->is_said && (from_double || (is_real(from) && is_real(to))));
}

/* Text of a move that must be this one. */
static ferry_status check_word(const fy_proof_spec *spec, const fy_proof_move *move,
                               const char *key, const char *stated, const char *right,
                               ferry_error *error)
{
    return stated != NULL && strcmp(stated, right) == 0
               ? FERRY_OK
               : fy_proof_move_fail(spec, move, error, "says \"%s\" %.40s, but it is %.40s", key,
                                    stated == NULL ? "nothing" : stated, right);
}

static ferry_status check_type(const fy_proof_spec *spec, const fy_proof_move *move,
                               const char *key, const char *stated, ferry_dtype right,
                               ferry_error *error)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(right, text, sizeof text);
    return check_word(spec, move, key, stated, text, error);
}

/* A number stands there exactly where it changes something. */
static ferry_status check_number(const fy_proof_spec *spec, const fy_proof_move *move,
                                 const char *key, const json_t *stated, float right, float none,
                                 ferry_error *error)
{
    bool is_right = stated == NULL ? right == none
                                   : right != none && json_is_number(stated) &&
                                         json_number_value(stated) == (double)right;
    return is_right ? FERRY_OK
                    : fy_proof_move_fail(spec, move, error,
                                         "says another \"%s\" than the destination, which has %.9g",
                                         key, (double)right);
}

ferry_status fy_proof_cast_check(const fy_proof_spec *spec, const fy_proof_cast *cast,
                                 ferry_dtype wanted, fy_proof_move *move, ferry_error *error)
{
    const fy_proof_stated *s = &move->stated;
    ferry_dtype has = spec->tensors[move->tensor].entry->dtype;
    bool is_plain = keeps(cast, has, wanted);
    bool grows = has.element_bits < wanted.element_bits;
    move->bits = grows || is_plain ? has.element_bits : wanted.element_bits;
    if (is_plain) {
        bool says = s->src_dtype != NULL || s->dst_dtype != NULL || s->cast != NULL ||
                    s->at != NULL || s->scale != NULL || s->add != NULL || s->quantize != NULL ||
                    s->dequantize != NULL || s->part != NULL;
        return says ? fy_proof_move_fail(spec, move, error,
                                         "says a cast, but the destination wants it as it is")
                    : FERRY_OK;
    }
    FY_TRY(check_type(spec, move, "src_dtype", s->src_dtype, has, error));
    FY_TRY(check_type(spec, move, "dst_dtype", s->dst_dtype, wanted, error));
    FY_TRY(check_word(spec, move, "cast", s->cast, cast->saturates ? "saturate" : "round", error));
    FY_TRY(check_number(spec, move, "scale", s->scale, cast->scale, 1, error));
    FY_TRY(check_number(spec, move, "add", s->add, cast->add, 0, error));
    return check_word(spec, move, "at", s->at, grows ? "receiver" : "sender", error);
}
