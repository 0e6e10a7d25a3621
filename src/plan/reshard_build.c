/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning among ranks that each know only their own models. Centralized: rank 0 gathers, plans and
 * scatters the ops. Local: every rank gathers the packed models and derives its own ops. A failure
 * of any rank is part of what it sends, so all ranks fail together and with the same sentence.
 */
#include "model/roster.h"
#include "plan/reshard_ops.h"

#include "base/checked.h"
#include "base/message.h"
#include "base/options.h"

#include <string.h>

static ferry_status take_exchange(const ferry_exchange *given, ferry_exchange *x,
                                  ferry_error *error)
{
    FY_TRY(fy_take_exchange(given, x, error));
    if (x->all_gather == NULL || x->n_ranks == 0 || x->rank >= x->n_ranks ||
        (x->gather == NULL) != (x->scatter == NULL)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "planning needs an exchange made with FERRY_EXCHANGE_INIT: an all_gather, "
                       "both of gather and scatter or none, and a rank of its world");
    }
    return FERRY_OK;
}

/* num_experts fills in what the metadata leaves open. */
static ferry_status complete(const ferry_model *model, const uint64_t *num_experts,
                             ferry_model **copy_out, ferry_error *error)
{
    if (model == NULL) {
        *copy_out = NULL;
        return FERRY_OK;
    }
    ferry_status status = fy_model_copy(model, copy_out, error);
    for (size_t i = 0; status == FERRY_OK && num_experts != NULL && i < (*copy_out)->n_params;
         i++) {
        ferry_param_metadata *m = &(*copy_out)->params[i];
        if (!m->has_num_experts) {
            m->has_num_experts = true;
            m->num_experts = *num_experts;
        }
    }
    return status;
}

/* Equal where options are: of lost ranks the order does not count. */
static fy_hash128 hash_options(const ferry_plan_options *options)
{
    fy_hash128 hash = fy_hash128_of(&options->replica, sizeof options->replica);
    if (options->subset != NULL) {
        hash = fy_hash128_add(hash, fy_hash128_of(options->subset, strlen(options->subset) + 1));
    }
    for (size_t i = 0; options->lost_ranks != NULL && i < options->n_lost_ranks; i++) {
        uint64_t lost[2] = {UINT64_MAX, options->lost_ranks[i]}; /* no text begins so */
        hash = fy_hash128_add(hash, fy_hash128_of(lost, sizeof lost));
    }
    return hash;
}

/* has_place: the caller has one for the plan; else no rank gets one, and none waits. */
static void pack_own(const ferry_model *src_model, const ferry_model *dst_model,
                     const uint64_t *num_experts, const ferry_plan_options *options, bool has_place,
                     fy_pack *out)
{
    ferry_model *src = NULL, *dst = NULL;
    ferry_error error;
    ferry_plan_options own;
    ferry_status status = fy_check_use(has_place, "planning needs a place for the plan", &error);
    FY_THEN(status, fy_take_plan_options(options, &own, &error));
    FY_THEN(status, complete(src_model, num_experts, &src, &error));
    FY_THEN(status, complete(dst_model, num_experts, &dst, &error));
    fy_message_begin(out, status, error.message);
    if (status == FERRY_OK) {
        fy_hash128 hash = hash_options(&own);
        fy_pack_u64(out, hash.low);
        fy_pack_u64(out, hash.high);
        fy_model_pack(src, out);
        fy_model_pack(dst, out);
    }
    ferry_model_destroy(src);
    ferry_model_destroy(dst);
}

/* Of ranks that each plan by their own. */
static ferry_status check_options(fy_hash128 its, fy_hash128 first, uint32_t rank,
                                  ferry_error *error)
{
    return its.low == first.low && its.high == first.high
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "rank %u plans with other options than rank 0: replica policy, subset and "
                         "lost ranks must be the same on all ranks",
                         rank);
}

/* By the options of this rank; is_local: others plan the same by theirs. */
static ferry_status plan_gathered(const fy_gathered *all, uint32_t n_ranks, bool is_local,
                                  const ferry_plan_options *options, ferry_plan **plan_out,
                                  ferry_error *error)
{
    fy_hash128 first = {0};
    const unsigned char *at = all->at;
    ferry_roster *roster = NULL;
    ferry_status status = ferry_roster_create(n_ranks, &roster, error);
    for (uint32_t r = 0; r < n_ranks && status == FERRY_OK; r++) {
        fy_reader in = fy_reader_of(at, all->lengths[r]);
        status = fy_message_read(&in, r, error);
        fy_hash128 its = {.low = fy_read_u64(&in)};
        its.high = fy_read_u64(&in);
        first = r == 0 ? its : first;
        if (is_local && !in.failed) { /* what is cut short is found out below */
            FY_THEN(status, check_options(its, first, r, error));
        }
        FY_THEN(status, fy_roster_set_packed(roster, r, &in, error));
        at += all->lengths[r];
    }
    FY_THEN(status, ferry_plan_create_from_roster(roster, options, plan_out, error));
    ferry_roster_destroy(roster);
    return status;
}

ferry_status ferry_reshard_plan_build_local(const ferry_model *src_model,
                                            const ferry_model *dst_model,
                                            const uint64_t *num_experts,
                                            const ferry_exchange *exchange,
                                            const ferry_plan_options *options,
                                            ferry_reshard_plan **plan_out, ferry_error *error)
{
    ferry_exchange own_exchange;
    ferry_status status = take_exchange(exchange, &own_exchange, error);
    exchange = &own_exchange;
    if (status != FERRY_OK) {
        return status;
    }
    fy_pack own = {0};
    fy_gathered all;
    ferry_plan *plan = NULL;
    pack_own(src_model, dst_model, num_experts, options, plan_out != NULL, &own);
    status = fy_exchange_gather(exchange, true, &own, &all, error);
    FY_THEN(status, plan_gathered(&all, exchange->n_ranks, true, options, &plan, error));
    FY_THEN(status, ferry_reshard_plan_create(plan, exchange->rank, plan_out, error));
    ferry_plan_destroy(plan);
    fy_pack_cleanup(&own);
    return status;
}

static void pack_slices(fy_pack *out, const ferry_slice *slices, uint32_t n_dims)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        fy_pack_number(out, slices[d].begin);
        fy_pack_number(out, slices[d].length);
    }
}

static void pack_ops(fy_pack *out, const ferry_transfer_op *ops, size_t n)
{
    fy_pack_number(out, n);
    for (size_t i = 0; i < n; i++) {
        const ferry_transfer_op *op = &ops[i];
        /* Most ops follow another of the same parameter: its name is sent once. */
        bool same = i > 0 && ops[i - 1].param_name == op->param_name &&
                    ops[i - 1].source_name == op->source_name;
        fy_pack_number(out, (same ? 1u : 0u) | (op->source_name != NULL ? 2u : 0u));
        if (!same) {
            fy_pack_text(out, op->param_name);
            if (op->source_name != NULL) {
                fy_pack_text(out, op->source_name);
            }
        }
        fy_pack_number(out, op->peer_rank);
        fy_pack_number(out, op->n_dims);
        fy_pack_number(out, op->peer_n_dims);
        pack_slices(out, op->my_slice, op->n_dims);
        pack_slices(out, op->peer_slice, op->peer_n_dims);
        fy_pack_number(out, op->task_id);
        fy_pack_number(out, op->bytes);
    }
}

static void read_slices(fy_reader *in, ferry_slice *slices, uint32_t n_dims)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        slices[d].begin = fy_read_number(in, UINT64_MAX);
        slices[d].length = fy_read_number(in, UINT64_MAX);
    }
}

static bool read_name(fy_reader *in, char *name)
{
    size_t length;
    const char *text = fy_read_text(in, &length);
    if (in->failed || length >= FERRY_NAME_BYTES) {
        in->failed = true;
        return false;
    }
    memcpy(name, text, length);
    name[length] = '\0';
    return true;
}

static ferry_status read_ops(fy_reader *in, bool is_send, ferry_reshard_plan *plan,
                             ferry_error *error)
{
    char names[2][FERRY_NAME_BYTES];
    uint64_t n = fy_read_number(in, (uint64_t)(in->end - in->at));
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; i < n && status == FERRY_OK && !in->failed; i++) {
        ferry_transfer_op op = FERRY_TRANSFER_OP_INIT;
        uint64_t flags = fy_read_number(in, 3);
        if ((flags & 1) == 0 &&
            (!read_name(in, names[0]) || ((flags & 2) != 0 && !read_name(in, names[1])))) {
            break;
        }
        op.param_name = names[0];
        op.source_name = (flags & 2) != 0 ? names[1] : NULL;
        op.is_send = is_send;
        op.peer_rank = (uint32_t)fy_read_number(in, FERRY_MAX_RANKS - 1);
        op.n_dims = (uint32_t)fy_read_number(in, FERRY_MAX_DIMS);
        op.peer_n_dims = (uint32_t)fy_read_number(in, FERRY_MAX_DIMS);
        read_slices(in, op.my_slice, op.n_dims);
        read_slices(in, op.peer_slice, op.peer_n_dims);
        op.has_task_id = true;
        op.task_id = fy_read_number(in, UINT64_MAX);
        op.bytes = fy_read_number(in, UINT64_MAX);
        if (!in->failed) {
            status = fy_reshard_plan_add(plan, &op, error);
        }
    }
    return status;
}

static void pack_reshard_plan(const ferry_reshard_plan *plan, fy_pack *out)
{
    fy_message_begin(out, FERRY_OK, NULL);
    fy_pack_text(out, plan->digest);
    pack_ops(out, plan->sends, plan->send_list.n);
    pack_ops(out, plan->recvs, plan->recv_list.n);
}

static ferry_status fail_ops(ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE, "the ops that rank 0 sent are damaged");
}

ferry_status fy_reshard_plan_unpack(const void *bytes, size_t n_bytes,
                                    ferry_reshard_plan **plan_out, ferry_error *error)
{
    fy_reader in = {.at = bytes, .end = (const unsigned char *)bytes + n_bytes};
    FY_TRY(fy_message_read(&in, 0, error));
    size_t length;
    const char *text = fy_read_text(&in, &length);
    char digest[33] = {0};
    ferry_reshard_plan *plan = NULL;
    memcpy(digest, text, length < 32 ? length : 32);
    ferry_status status = fy_reshard_plan_new(digest, &plan, error);
    FY_THEN(status, read_ops(&in, true, plan, error));
    FY_THEN(status, read_ops(&in, false, plan, error));
    if (status == FERRY_OK && in.failed) {
        status = fail_ops(error);
    }
    if (status == FERRY_OK) {
        *plan_out = plan;
        plan = NULL;
    }
    ferry_reshard_plan_destroy(plan);
    return status;
}

static ferry_status post_plans(fy_outbox *box, const ferry_plan *plan, uint32_t n_ranks,
                               ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t r = 0; r < n_ranks && status == FERRY_OK; r++) {
        ferry_reshard_plan *own = NULL;
        size_t before = box->bytes.used;
        status = ferry_reshard_plan_create(plan, r, &own, error);
        if (status == FERRY_OK) {
            pack_reshard_plan(own, &box->bytes);
            box->lengths[r] = box->bytes.used - before;
        }
        ferry_reshard_plan_destroy(own);
    }
    FY_THEN(status, fy_check_memory(!box->bytes.failed, "the ops of all ranks", error));
    return status;
}

static void plan_for_all(const fy_gathered *all, const ferry_exchange *x,
                         const ferry_plan_options *options, fy_outbox *box)
{
    ferry_error error;
    ferry_plan *plan = NULL;
    fy_pack message = {0};
    ferry_status status = plan_gathered(all, x->n_ranks, false, options, &plan, &error);
    FY_THEN(status, post_plans(box, plan, x->n_ranks, &error));
    if (status != FERRY_OK) {
        fy_message_begin(&message, status, error.message);
        fy_outbox_post_to_all(box, x->n_ranks, &message);
    }
    fy_pack_cleanup(&message);
    ferry_plan_destroy(plan);
}

ferry_status ferry_reshard_plan_build_centralized(const ferry_model *src_model,
                                                  const ferry_model *dst_model,
                                                  const uint64_t *num_experts,
                                                  const ferry_exchange *exchange,
                                                  const ferry_plan_options *options,
                                                  ferry_reshard_plan **plan_out, ferry_error *error)
{
    ferry_exchange own_exchange;
    ferry_status status = take_exchange(exchange, &own_exchange, error);
    exchange = &own_exchange;
    if (status != FERRY_OK) {
        return status;
    }
    fy_pack own = {0};
    fy_gathered all;
    fy_reader mine = {0};
    fy_outbox box = {0};
    pack_own(src_model, dst_model, num_experts, options, plan_out != NULL, &own);
    status = fy_exchange_gather(exchange, false, &own, &all, error);
    if (status == FERRY_OK && exchange->rank == 0) {
        box.lengths = fy_alloc_zeroed(exchange->n_ranks, sizeof *box.lengths);
    }
    if (box.lengths != NULL) {
        plan_for_all(&all, exchange, options, &box);
    }
    FY_THEN(status, fy_exchange_scatter(exchange, &box, &mine, error));
    if (status == FERRY_OK && mine.failed) {
        status = fail_ops(error);
    }
    FY_THEN(status, fy_reshard_plan_unpack(mine.at, fy_read_left(&mine), plan_out, error));
    fy_pack_cleanup(&own);
    fy_outbox_cleanup(&box);
    return status;
}
