/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is refused before a call begins; nothing here changes anything. */
#include "base/checked.h"
#include "collective/comm.h"
#include "collective/tune.h"

#include <stdint.h>

static ferry_status check_tensor(const ferry_mixed_comm *comm, const ferry_mixed_tensor *tensor,
                                 const char *what, ferry_error *error)
{
    uint64_t elements, bytes;
    if (tensor == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "run needs an %s tensor", what);
    }
    if (tensor->rows == 0 || tensor->columns == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the %s is empty: %llu rows of %llu", what,
                       (unsigned long long)tensor->rows, (unsigned long long)tensor->columns);
    }
    if (!fy_mul(tensor->rows, tensor->columns, &elements) ||
        !fy_mul(elements, comm->program.element_bytes, &bytes) || bytes != tensor->buffer.bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the %s has %llu rows of %llu elements of %u bytes, but a buffer of %llu "
                       "bytes",
                       what, (unsigned long long)tensor->rows, (unsigned long long)tensor->columns,
                       comm->program.element_bytes, (unsigned long long)tensor->buffer.bytes);
    }
    if (tensor->buffer.base == NULL ||
        (uintptr_t)tensor->buffer.base % comm->program.element_bytes != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the %s begins at address %p, which is not a multiple of its elements' %u "
                       "bytes",
                       what, tensor->buffer.base, comm->program.element_bytes);
    }
    return fy_buffer_check(&tensor->buffer, what, error);
}

static ferry_status check_rows(const ferry_mixed_comm *comm, uint32_t op,
                               const ferry_mixed_tensor *in, ferry_error *error)
{
    uint32_t in_chunks = fy_mix_op_in_chunks(&comm->program.topology, op);
    if (in->rows % in_chunks != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the input's %llu rows cannot be divided among %u data-parallel ranks",
                       ferry_mixed_op_name(op), (unsigned long long)in->rows, in_chunks);
    }
    return FERRY_OK;
}

static ferry_status check_shapes(const ferry_mixed_comm *comm, uint32_t op,
                                 const ferry_mixed_tensor *in, const ferry_mixed_tensor *out,
                                 ferry_error *error)
{
    uint32_t out_chunks = fy_mix_op_out_chunks(&comm->program.topology, op);
    uint64_t rows = in->rows / fy_mix_op_in_chunks(&comm->program.topology, op), wanted;
    if (!fy_mul(rows, out_chunks, &wanted) || out->rows != wanted || out->columns != in->columns) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s makes %llu rows of %llu elements of an input of %llu rows, but the "
                       "output has %llu rows of %llu",
                       ferry_mixed_op_name(op), (unsigned long long)(rows * out_chunks),
                       (unsigned long long)in->columns, (unsigned long long)in->rows,
                       (unsigned long long)out->rows, (unsigned long long)out->columns);
    }
    return FERRY_OK;
}

/* In place is where the smaller tensor is the larger one's own chunk; other overlaps are refused.
 */
static ferry_status check_overlap(const ferry_mixed_comm *comm, const ferry_mixed_tensor *in,
                                  const ferry_mixed_tensor *out, ferry_error *error)
{
    uintptr_t a = (uintptr_t)in->buffer.base, b = (uintptr_t)out->buffer.base;
    if (a + in->buffer.bytes <= b || b + out->buffer.bytes <= a) {
        return FERRY_OK;
    }
    uint64_t small = fy_min(in->buffer.bytes, out->buffer.bytes);
    uint64_t large = fy_max(in->buffer.bytes, out->buffer.bytes);
    uint64_t at = large > small ? comm->program.topology.dp_rank * small : 0;
    bool in_place = in->buffer.bytes < out->buffer.bytes ? a == b + at : b == a + at;
    if (!in_place) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "input and output overlap, but the smaller is not chunk %u of the larger",
                       comm->program.topology.dp_rank);
    }
    return FERRY_OK;
}

static ferry_status check_offered(const ferry_mixed_comm *comm, uint32_t op, ferry_error *error)
{
    for (size_t i = 0; i < comm->n_ops; i++) {
        if (comm->ops[i] == op) {
            return FERRY_OK;
        }
    }
    if (op >= FERRY_MIXED_N_OPS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "there is no operation %u", op);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "operation %u (%s) is not offered where tp is %u and dp is %u", op,
                   ferry_mixed_op_name(op), comm->program.topology.tp, comm->program.topology.dp);
}

ferry_status fy_mix_call_mode(const ferry_mixed_comm *comm, uint32_t op, uint64_t piece_bytes,
                              uint32_t *mode, uint32_t *block_lines, ferry_error *error)
{
    if (*mode == FERRY_MIXED_MODE_DEFAULT) {
        *mode = comm->tuning != NULL                             ? (uint32_t)FERRY_MIXED_AUTOTUNE
                : fy_comm_has_mode(comm, FERRY_MIXED_BASE_TP_DP) ? (uint32_t)FERRY_MIXED_BASE_TP_DP
                : fy_comm_has_mode(comm, FERRY_MIXED_BASE_ONE)   ? (uint32_t)FERRY_MIXED_BASE_ONE
                                                                 : comm->modes[0];
    }
    if (*mode == FERRY_MIXED_AUTOTUNE) {
        if (comm->tuning == NULL) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "mode autotune needs a table: run_autotune makes one, FERRY_TUNE_FILE "
                           "names a saved one");
        }
        fy_tune_select(comm, op, piece_bytes, mode, block_lines);
    }
    if (*mode >= FERRY_MIXED_N_MODES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "there is no mode %u; get_valid_mode_list says which there are", *mode);
    }
    if (comm->program.schedules[op][*mode] == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "mode %u (%s) is not offered by this topology and transport; "
                       "get_valid_mode_list says which are",
                       *mode, ferry_mixed_mode_name(*mode));
    }
    return FERRY_OK;
}

ferry_status fy_mix_call_check_input(const ferry_mixed_comm *comm, uint32_t op,
                                     const ferry_mixed_tensor *in, ferry_error *error)
{
    ferry_status status = check_offered(comm, op, error);
    FY_THEN(status, check_tensor(comm, in, "input", error));
    return status == FERRY_OK ? check_rows(comm, op, in, error) : status;
}

ferry_status fy_mix_call_check(const ferry_mixed_comm *comm, uint32_t op,
                               const ferry_mixed_tensor *in, const ferry_mixed_tensor *out,
                               ferry_error *error)
{
    ferry_status status = fy_mix_call_check_input(comm, op, in, error);
    FY_THEN(status, check_tensor(comm, out, "output", error));
    FY_THEN(status, check_shapes(comm, op, in, out, error));
    return status == FERRY_OK ? check_overlap(comm, in, out, error) : status;
}

uint64_t fy_mix_call_piece(const ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in)
{
    return in->rows / fy_mix_op_in_chunks(&comm->program.topology, op) * in->columns;
}
