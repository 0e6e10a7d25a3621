/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_CODES_H
#define FY_PROVE_CODES_H

#include "base/json.h"
#include "prove/move.h"
#include "prove/spec.h"

/* The value of "dequantize", which lives in the spec's arena. */
ferry_status fy_proof_codes_read(fy_proof_spec *spec, const json_t *json,
                                 const fy_json_place *place, const fy_proof_codes **codes_out,
                                 ferry_error *error);

/* Whether values of this type may be made of a tensor. */
ferry_status fy_proof_codes_allow(const fy_proof_tensor *tensor, ferry_dtype values,
                                  ferry_error *error);

/* The tensors of the scales that ranks get beside the codes of a tensor: of its blocks, and of f4
 * of its matrices. */
typedef struct fy_proof_staged {
    uint32_t of_blocks, of_matrices;
} fy_proof_staged;

/* Adds them, or finds them. */
ferry_status fy_proof_staged_add(fy_proof_spec *spec, uint32_t tensor, const fy_proof_codes *codes,
                                 fy_proof_staged *staged_out, ferry_error *error);

/*
 * What a rank gets beside a parameter that dequantizes: of the scales of each tensor the least box
 * with those of all its boxes, row-major, one behind the other; and then the same of matrices. No
 * boxes: it needs none.
 */
ferry_status fy_proof_staged_parameter(fy_proof_spec *spec, const fy_proof_parameter *of,
                                       fy_proof_parameter staged_out[2], ferry_error *error);

/* A move of codes says what becomes of them, and where. Sets the bits of an element on its way. */
ferry_status fy_proof_codes_check(const fy_proof_spec *spec, const fy_proof_codes *codes,
                                  ferry_dtype values, fy_proof_move *move, ferry_error *error);

#endif
