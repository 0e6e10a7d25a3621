/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_CAST_H
#define FY_PROVE_CAST_H

#include "base/json.h"
#include "prove/move.h"
#include "prove/spec.h"

/* The keys that a rule or a parameter says a cast by, as they stand there; NULL: they do not. */
typedef struct fy_proof_cast_json {
    const char *dtype;
    const char *cast;
    const json_t *scale;
    const json_t *add;
} fy_proof_cast_json;

/* Rows for the table of fields of a type that has one, as its member `field`. */
#define FY_PROOF_CAST_FIELDS(type, field)                                                          \
    {"dtype", FY_JSON_STRING, .offset = offsetof(type, field.dtype)},                              \
        {"cast", FY_JSON_STRING, .offset = offsetof(type, field.cast)},                            \
        {"scale", FY_JSON_VALUE, .offset = offsetof(type, field.scale)},                           \
    {                                                                                              \
        "add", FY_JSON_VALUE, .offset = offsetof(type, field.add)                                  \
    }

/* side: its number; only a destination casts. *dtype_out has no bits where none is said. */
ferry_status fy_proof_cast_read(const fy_proof_cast_json *said, const fy_json_place *place,
                                int side, ferry_dtype *dtype_out, fy_proof_cast *cast_out,
                                ferry_error *error);

/* Whether elements of `from` may become `to` by it. */
bool fy_proof_cast_allows(const fy_proof_cast *cast, ferry_dtype from, ferry_dtype to);

/*
 * A move to where the destination wants its tensor so says the same cast, and who computes it. Sets
 * the bits of an element on its way.
 */
ferry_status fy_proof_cast_check(const fy_proof_spec *spec, const fy_proof_cast *cast,
                                 ferry_dtype wanted, fy_proof_move *move, ferry_error *error);

#endif
