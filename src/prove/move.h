/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_MOVE_H
#define FY_PROVE_MOVE_H

#include "base/json.h"
#include "prove/shard.h"
#include "prove/spec.h"

/* A box of a parameter, as a plan prints it. */
typedef struct fy_proof_place {
    const char *parameter; /* NULL: the side is a mesh */
    uint64_t offset;
    uint64_t strides[FY_PROOF_DIMS];
} fy_proof_place;

/* What a plan says of a cast; NULL: nothing. It lives as the names of parameters do. */
typedef struct fy_proof_stated {
    const char *src_dtype, *dst_dtype, *cast, *at, *part;
    const json_t *scale, *add, *quantize, *dequantize;
} fy_proof_stated;

/*
 * One move as the plan prints it, its boxes aligned to the right. On a side in boxes it begins at
 * 0, and has a place; the name of the parameter lives as long as the plan's JSON at hand.
 */
typedef struct fy_proof_move {
    uint64_t task_id;
    uint32_t tensor;
    uint32_t source; /* the tensor whose shard src is in */
    uint64_t from;
    uint64_t to;
    uint64_t src[FY_PROOF_DIMS];
    uint64_t dst[FY_PROOF_DIMS];
    uint64_t length[FY_PROOF_DIMS];
    uint64_t src_length[FY_PROOF_DIMS]; /* another one only where scales are made of values */
    uint64_t bytes;
    fy_proof_stated stated;
    uint64_t bits; /* of an element on its way, once the cast was checked */
    fy_proof_place places[FY_PROOF_SIDES];
} fy_proof_move;

/*
 * FERRY_ERR_INVALID_INPUT when it is no move at all, FERRY_ERR_PROOF when its names and dimensions
 * are not the spec's.
 */
ferry_status fy_proof_move_read(const fy_proof_spec *spec, const json_t *json,
                                const fy_json_place *place, fy_proof_move *move_out,
                                ferry_error *error);

/* FERRY_ERR_PROOF with the move in front of the sentence. */
ferry_status fy_proof_move_fail(const fy_proof_spec *spec, const fy_proof_move *move,
                                ferry_error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Its boxes are not empty and inside both shards, flat ranges included. */
ferry_status fy_proof_move_check_boxes(const fy_proof_spec *spec, const fy_proof_move *move,
                                       const fy_proof_shard *from, const fy_proof_shard *to,
                                       ferry_error *error);

/* The same of one side, whose shard this is. */
ferry_status fy_proof_move_check_box(const fy_proof_spec *spec, const fy_proof_move *move, int side,
                                     const fy_proof_shard *shard, ferry_error *error);

/* Its boxes, inside both shards, are contiguous in both tensors on every dimension. */
ferry_status fy_proof_move_check_jumps(const fy_proof_spec *spec, const fy_proof_move *move,
                                       const fy_proof_shard *from, const fy_proof_shard *to,
                                       ferry_error *error);

/* Its bytes are those of the box, which starts and ends on bytes wherever it is cut in memory. */
ferry_status fy_proof_move_check_bytes(const fy_proof_spec *spec, const fy_proof_move *move,
                                       const fy_proof_shard *from, const fy_proof_shard *to,
                                       ferry_error *error);

#endif
