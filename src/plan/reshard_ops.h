/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_RESHARD_OPS_H
#define FY_PLAN_RESHARD_OPS_H

#include "plan/core.h"

typedef struct fy_op_list {
    size_t n;
    size_t capacity;
} fy_op_list;

struct ferry_reshard_plan {
    fy_arena arena; /* names */
    fy_index names;
    const char **name_list;
    size_t n_names, name_capacity;
    ferry_transfer_op *sends;
    ferry_transfer_op *recvs;
    fy_op_list send_list;
    fy_op_list recv_list;
    uint64_t send_bytes;
    uint64_t recv_bytes;
    char digest[33];
};

ferry_status fy_reshard_plan_new(const char digest[33], ferry_reshard_plan **plan_out,
                                 ferry_error *error);
/* Copies the op, names included. */
ferry_status fy_reshard_plan_add(ferry_reshard_plan *plan, const ferry_transfer_op *op,
                                 ferry_error *error);

/* What rank 0 of centralized planning sent to one rank: its ops, or why there are none. */
ferry_status fy_reshard_plan_unpack(const void *bytes, size_t n_bytes,
                                    ferry_reshard_plan **plan_out, ferry_error *error);

#endif
