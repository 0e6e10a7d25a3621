/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/agree.h"

static ferry_status exchange(ferry_world *world, fy_field *fields, size_t n, ferry_status status,
                             const char *sentence, ferry_error *error)
{
    unsigned char message[FY_AGREEMENT_BYTES];
    fy_pack out = fy_pack_into(message, sizeof message);
    const void *all = NULL;
    const size_t *lengths = NULL;
    fy_agreement_pack(world->rank, fields, n, status, sentence, &out);
    ferry_status met = fy_failure_get(world->failure, NULL, error);
    if (met == FERRY_OK) {
        fy_exchange_begin(world);
        met =
            world->ops->gather(world, FY_AGREEMENT, 0, out.bytes, out.used, &all, &lengths, error);
        fy_exchange_end(world);
    }
    return met == FERRY_OK ? fy_agreement_read(all, lengths[0], fields, n, error) : met;
}

ferry_status fy_agree_on(ferry_world *world, fy_joint_call call, uint64_t object, fy_field *fields,
                         size_t n, ferry_status status, ferry_error *error)
{
    ferry_error own = {.message = ""};
    if (status != FERRY_OK && error != NULL) {
        own = *error;
    }
    fy_joint_enter(world, call, object);
    status = exchange(world, fields, n, status, own.message, error);
    fy_joint_leave(world);
    return status;
}

ferry_status fy_agree(ferry_world *world, ferry_status status, ferry_error *error)
{
    fy_joint now = fy_joint_now(world);
    fy_joint_call call = now.call < FY_N_JOINT_CALLS ? (fy_joint_call)now.call : FY_JOINT_BARRIER;
    return fy_agree_on(world, call, now.object, NULL, 0, status, error);
}
