/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_CONVERSION_H
#define FY_MODEL_CONVERSION_H

#include "base/hash.h"
#include "base/json.h"
#include "base/writer.h"

#include <ferry/plan.h>

/* What becomes of elements on their way, as a destination says it, and as a plan has it. */

/* The keys "cast", "scale" and "add" of a rule or a parameter. All zero: none of them. */
typedef struct fy_said_cast {
    bool is_said;
    bool saturates;
    float scale; /* 1: none, where it is said */
    float add;
} fy_said_cast;

typedef struct fy_conversion {
    ferry_conversion is; /* what visitors see */
    ferry_dtype from;    /* the tensor's type */
    ferry_dtype to;      /* the destination's */
    ferry_dtype wire;    /* what travels: the one with fewer bits, else the destination's */
} fy_conversion;

/* Equal exactly for conversions that are equal. All zero: elements stay as they are. */
typedef struct fy_conversion_key {
    uint64_t type;
    uint64_t numbers;
} fy_conversion_key;

/*
 * The rows for a table of fields of an object that has a fy_said_cast, and what must hold once all
 * were read.
 */
ferry_status fy_cast_parse_word(const json_t *json, const fy_json_place *place, void *said,
                                void *context, ferry_error *error);
ferry_status fy_cast_parse_scale(const json_t *json, const fy_json_place *place, void *said,
                                 void *context, ferry_error *error);
ferry_status fy_cast_parse_add(const json_t *json, const fy_json_place *place, void *said,
                               void *context, ferry_error *error);
ferry_status fy_cast_finish(const json_t *json, const fy_json_place *place, fy_said_cast *said,
                            ferry_error *error);

/* "dtype" of a rule or a parameter, a ferry_dtype. */
ferry_status fy_dtype_parse_json(const json_t *json, const fy_json_place *place, void *dtype,
                                 void *context, ferry_error *error);

/* FERRY_ERR_INVALID_INPUT for a scale of 0, and for what is not finite. */
ferry_status fy_cast_make(bool saturates, float scale, float add, fy_said_cast *said_out,
                          ferry_error *error);

/* The members that say it, each with a comma in front; nothing where it is not said. */
void fy_cast_write(fy_writer *w, const fy_said_cast *said);

/*
 * What elements of `from` become where `to` is wanted: the key is zero where they stay as they are.
 * *why_out is a sentence, without a subject, where the cast is missing or there is none; "" if not.
 */
enum { FY_CAST_WHY_BYTES = 256 };
fy_conversion_key fy_cast_key(const fy_said_cast *said, ferry_dtype from, ferry_dtype to,
                              char why_out[FY_CAST_WHY_BYTES]);

/* Of a key that is not zero. */
fy_conversion fy_conversion_of(const fy_said_cast *said, ferry_dtype from, ferry_dtype to);

/* Adds all that tells conversions apart. */
void fy_conversion_digest(fy_digest *d, const fy_conversion *conversion);

static inline bool fy_conversion_key_is_zero(fy_conversion_key key)
{
    return key.type == 0 && key.numbers == 0;
}

static inline int fy_conversion_key_compare(fy_conversion_key a, fy_conversion_key b)
{
    if (a.type != b.type) {
        return a.type < b.type ? -1 : 1;
    }
    return (a.numbers > b.numbers) - (a.numbers < b.numbers);
}

#endif
