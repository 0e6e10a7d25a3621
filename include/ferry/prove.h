/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_PROVE_H
#define FERRY_PROVE_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/* What was proven. The caller owns it and starts it with FERRY_PROOF_INIT. */
typedef struct ferry_proof {
    size_t struct_size;
    uint64_t n_tensors;            /* tensors that the destination wants */
    uint64_t n_moves;              /* moves read, local ones included */
    uint64_t n_destination_shards; /* pairs of rank and tensor with at least one element */
    uint64_t moved_bytes;          /* by moves between two ranks */
    uint64_t local_bytes;          /* by moves from a rank to itself */
} ferry_proof;

#define FERRY_PROOF_INIT                                                                           \
    {                                                                                              \
        sizeof(ferry_proof), 0, 0, 0, 0, 0                                                         \
    }

/*
 * Proves a printed plan against its spec, from the two files alone (and the safetensors headers
 * that the spec's "model" names): every element of every destination shard is written exactly once,
 * by a move whose sender holds that element at that place. Boxes, bytes, task ids, totals and the
 * world are checked as well. plan_path is a file with what `ferry plan SPEC --json` printed; only
 * whole plans can be proven, so not with --rank, --subset or --summary. Nothing of the planner is
 * used: this is a second, slow reading of both formats. The moves are read as a stream, so the
 * memory that it takes grows with the spec and with the moves into one shard, not with the plan.
 *
 * FERRY_OK: the plan is proven, and *proof_out, which may be NULL, says how much. FERRY_ERR_PROOF:
 * it is wrong, and the sentence names the task, the tensor, the slice, the ranks and the numbers.
 * FERRY_ERR_INVALID_INPUT or FERRY_ERR_IO: a file is not what it should be. FERRY_ERR_LIMIT: a
 * number is beyond this version. FERRY_ERR_MISUSE: a path is NULL, or *proof_out was not
 * initialised.
 */
FERRY_API ferry_status ferry_plan_prove(const char *spec_path, const char *plan_path,
                                        ferry_proof *proof_out, ferry_error *error);

FERRY_END_DECLS

#endif
