/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_QUANTIZE_H
#define FY_PROVE_QUANTIZE_H

#include "base/json.h"
#include "prove/move.h"
#include "prove/shard.h"
#include "prove/spec.h"

/* The value of "quantize", which lives in the spec's arena. */
ferry_status fy_proof_quantize_read(fy_proof_spec *spec, const json_t *json,
                                    const fy_json_place *place,
                                    const fy_proof_quantize **quantize_out, ferry_error *error);

/* The name of the scales of a tensor: the first star is the tensor's. NULL: no memory. */
const char *fy_proof_scales_name(fy_proof_spec *spec, const char *scale, const char *tensor);

/* "block": rows and columns. */
ferry_status fy_proof_block_read(const json_t *json, const fy_json_place *place, uint64_t *block,
                                 ferry_error *error);

/* Whether two make the same of a tensor, whatever the scales are called. */
bool fy_proof_quantize_is_alike(const fy_proof_quantize *a, const fy_proof_quantize *b);

/* Adds the tensor of the scales of another one, if it is not there. */
ferry_status fy_proof_scales_add(fy_proof_spec *spec, uint32_t tensor,
                                 const fy_proof_quantize *quantize, ferry_error *error);

/* Those that the parameters of a destination in boxes ask for, before these are read. */
ferry_status fy_proof_scales_of_boxes(fy_proof_spec *spec, const json_t *side,
                                      const fy_json_place *place, ferry_error *error);

/*
 * A move of codes, or of scales, says what the destination asks for, and who makes it. Sets the
 * bits of an element on its way. quantize: of whose blocks the scales are, or what the values
 * become.
 */
ferry_status fy_proof_quantize_check(const fy_proof_spec *spec, const fy_proof_quantize *quantize,
                                     bool is_scales, fy_proof_move *move, bool *at_receiver_out,
                                     ferry_error *error);

/*
 * Of a move of scales: what it reads are values, of the sender's shard of those. Afterwards its box
 * there counts blocks, as the destination's does.
 */
ferry_status fy_proof_quantize_count(const fy_proof_spec *spec, const fy_proof_shard *values,
                                     fy_proof_move *move, ferry_error *error);

/*
 * Of a move to f4: whoever makes it has the scales of the matrices that it has, in their order.
 * NULL: it has none of these.
 */
ferry_status fy_proof_quantize_given(const fy_proof_spec *spec, const fy_proof_shard *values,
                                     const fy_proof_shard *given, const fy_proof_move *move,
                                     ferry_error *error);

/* Of a move of codes: its box at the source is of whole blocks. */
ferry_status fy_proof_quantize_align(const fy_proof_spec *spec, const fy_proof_quantize *quantize,
                                     const fy_proof_shard *from, const fy_proof_move *move,
                                     ferry_error *error);

#endif
