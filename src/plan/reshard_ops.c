/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* One rank's ops: the reference's ReshardPlan, made from a visit or from what rank 0 scattered. */
#include "plan/reshard_ops.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

void ferry_reshard_plan_destroy(ferry_reshard_plan *plan)
{
    if (plan != NULL) {
        fy_free(plan->sends);
        fy_free(plan->recvs);
        fy_index_cleanup(&plan->names);
        fy_free(plan->name_list);
        fy_arena_cleanup(&plan->arena);
        fy_free(plan);
    }
}

/* One copy of each name, however many ops have it. */
static const char *keep_name(ferry_reshard_plan *plan, const char *name)
{
    uint64_t hash = fy_hash64(name, strlen(name));
    fy_index_cursor c = fy_index_first(&plan->names, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&plan->names, &c)) {
        if (strcmp(plan->name_list[c.value], name) == 0) {
            return plan->name_list[c.value];
        }
    }
    const char *copy = fy_arena_copy(&plan->arena, name, strlen(name));
    if (copy == NULL || !FY_RESERVE(plan->name_list, plan->name_capacity, plan->n_names + 1) ||
        !fy_index_insert(&plan->names, hash, (uint32_t)plan->n_names)) {
        return NULL;
    }
    plan->name_list[plan->n_names++] = copy;
    return copy;
}

static bool append(ferry_reshard_plan *plan, const ferry_transfer_op *op)
{
    fy_op_list *list = op->is_send ? &plan->send_list : &plan->recv_list;
    ferry_transfer_op **items = op->is_send ? &plan->sends : &plan->recvs;
    if (!FY_RESERVE(*items, list->capacity, list->n + 1)) {
        return false;
    }
    (*items)[list->n++] = *op;
    *(op->is_send ? &plan->send_bytes : &plan->recv_bytes) += op->bytes;
    return true;
}

ferry_status fy_reshard_plan_add(ferry_reshard_plan *plan, const ferry_transfer_op *op,
                                 ferry_error *error)
{
    ferry_transfer_op kept = *op;
    kept.param_name = keep_name(plan, op->param_name);
    if (op->source_name != NULL) {
        kept.source_name = keep_name(plan, op->source_name);
    }
    if (kept.param_name == NULL || (op->source_name != NULL && kept.source_name == NULL) ||
        !append(plan, &kept)) {
        return fy_fail_no_memory(error, "the ops of a rank");
    }
    return FERRY_OK;
}

static ferry_transfer_op op_of(const ferry_move *move, bool is_send)
{
    ferry_transfer_op op = FERRY_TRANSFER_OP_INIT;
    op.param_name = move->tensor;
    op.source_name = move->source;
    op.is_send = is_send;
    op.peer_rank = is_send ? move->to : move->from;
    op.n_dims = is_send ? move->src_n_dims : move->n_dims;
    op.peer_n_dims = is_send ? move->n_dims : move->src_n_dims;
    op.has_task_id = true;
    op.task_id = move->task_id;
    op.bytes = move->bytes;
    ferry_slice *src = is_send ? op.my_slice : op.peer_slice;
    ferry_slice *dst = is_send ? op.peer_slice : op.my_slice;
    for (uint32_t d = 0; d < move->src_n_dims; d++) {
        src[d] = (ferry_slice){.begin = move->src_begin[d], .length = move->src_length[d]};
    }
    for (uint32_t d = 0; d < move->n_dims; d++) {
        dst[d] = (ferry_slice){.begin = move->dst_begin[d], .length = move->length[d]};
    }
    return op;
}

typedef struct taking {
    ferry_reshard_plan *plan;
    uint32_t rank;
    ferry_error *error;
} taking;

static ferry_status take_move(void *context, const ferry_move *move)
{
    taking *t = context;
    ferry_status status = FERRY_OK;
    if (move->from == t->rank) {
        ferry_transfer_op op = op_of(move, true);
        status = fy_reshard_plan_add(t->plan, &op, t->error);
    }
    if (move->to == t->rank && status == FERRY_OK) {
        ferry_transfer_op op = op_of(move, false);
        status = fy_reshard_plan_add(t->plan, &op, t->error);
    }
    return status;
}

ferry_status fy_reshard_plan_new(const char digest[33], ferry_reshard_plan **plan_out,
                                 ferry_error *error)
{
    ferry_reshard_plan *plan = fy_alloc_zeroed(1, sizeof *plan);
    FY_TRY(fy_check_memory(plan != NULL, "the plan of a rank", error));
    memcpy(plan->digest, digest, sizeof plan->digest);
    *plan_out = plan;
    return FERRY_OK;
}

ferry_status ferry_reshard_plan_create(const ferry_plan *plan, uint32_t rank,
                                       ferry_reshard_plan **reshard_plan_out, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && reshard_plan_out != NULL,
                        "ferry_reshard_plan_create needs a plan and a place for the result",
                        error));
    char digest[33];
    ferry_reshard_plan *own = NULL;
    ferry_plan_digest(plan, digest, sizeof digest);
    ferry_status status = fy_reshard_plan_new(digest, &own, error);
    if (status == FERRY_OK) {
        taking t = {.plan = own, .rank = rank, .error = error};
        status = ferry_plan_visit(plan, rank == FERRY_ALL_RANKS ? UINT32_MAX - 1 : rank, take_move,
                                  &t, NULL, error);
    }
    if (status == FERRY_OK) {
        *reshard_plan_out = own;
        own = NULL;
    }
    ferry_reshard_plan_destroy(own);
    return status;
}

size_t ferry_reshard_plan_send_count(const ferry_reshard_plan *plan)
{
    return plan == NULL ? 0 : plan->send_list.n;
}

size_t ferry_reshard_plan_receive_count(const ferry_reshard_plan *plan)
{
    return plan == NULL ? 0 : plan->recv_list.n;
}

static ferry_status op_at(const ferry_transfer_op *items, size_t n, size_t index,
                          ferry_transfer_op *op_out, ferry_error *error)
{
    if (index >= n) {
        return fy_fail(error, FERRY_ERR_MISUSE, "op %zu of %zu", index, n);
    }
    return fy_copy_out(&items[index], sizeof items[index], op_out, "ferry_transfer_op", error);
}

ferry_status ferry_reshard_plan_send_at(const ferry_reshard_plan *plan, size_t index,
                                        ferry_transfer_op *op_out, ferry_error *error)
{
    return op_at(plan == NULL ? NULL : plan->sends, ferry_reshard_plan_send_count(plan), index,
                 op_out, error);
}

ferry_status ferry_reshard_plan_receive_at(const ferry_reshard_plan *plan, size_t index,
                                           ferry_transfer_op *op_out, ferry_error *error)
{
    return op_at(plan == NULL ? NULL : plan->recvs, ferry_reshard_plan_receive_count(plan), index,
                 op_out, error);
}

size_t ferry_reshard_plan_digest(const ferry_reshard_plan *plan, char *text, size_t text_bytes)
{
    return (size_t)snprintf(text, text_bytes, "%s",
                            plan == NULL ? "00000000000000000000000000000000" : plan->digest);
}

size_t ferry_reshard_plan_describe(const ferry_reshard_plan *plan, char *text, size_t text_bytes)
{
    if (plan == NULL) {
        return 0;
    }
    int length =
        snprintf(text, text_bytes,
                 "ReshardPlan(sends=%zu, receives=%zu, send_bytes=%llu, receive_bytes=%llu)",
                 plan->send_list.n, plan->recv_list.n, (unsigned long long)plan->send_bytes,
                 (unsigned long long)plan->recv_bytes);
    return (size_t)length;
}
