/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the ops that rank 0 of centralized planning sends to one rank. */
#include "fuzz.h"

#include "plan/reshard_ops.h"

static void check_op(const ferry_reshard_plan *plan, bool sends, size_t i)
{
    ferry_error error;
    ferry_transfer_op op = FERRY_TRANSFER_OP_INIT;
    promise((sends ? ferry_reshard_plan_send_at(plan, i, &op, &error)
                   : ferry_reshard_plan_receive_at(plan, i, &op, &error)) == FERRY_OK);
    promise(op.is_send == sends && op.param_name != NULL && strlen(op.param_name) < 4096);
    promise(op.n_dims <= FERRY_MAX_DIMS && op.peer_n_dims <= FERRY_MAX_DIMS);
    promise(op.peer_rank < FERRY_MAX_RANKS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    ferry_reshard_plan *plan = NULL;
    ferry_status status = fy_reshard_plan_unpack(data, size, &plan, &error);
    promise((status == FERRY_OK) == (plan != NULL) && (unsigned)status <= FY_LAST_STATUS);
    promise((status == FERRY_OK) == (error.message[0] == '\0'));
    for (size_t i = 0; plan != NULL && i < ferry_reshard_plan_send_count(plan); i++) {
        check_op(plan, true, i);
    }
    for (size_t i = 0; plan != NULL && i < ferry_reshard_plan_receive_count(plan); i++) {
        check_op(plan, false, i);
    }
    ferry_reshard_plan_destroy(plan);
    return 0;
}
