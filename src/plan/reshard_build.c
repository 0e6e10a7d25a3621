/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning among ranks that each know only their own models. Centralized: rank 0 gathers, plans and
 * scatters the ops. Local: every rank gathers the packed models and derives its own ops. A failure
 * of any rank is part of what it sends, so all ranks fail together and with the same sentence.
 */
#include "model/roster.h"
#include "plan/reshard_ops.h"

#include "base/checked.h"
#include "base/options.h"

#include <string.h>

static ferry_status take_exchange(const ferry_exchange *given, const void *plan_out,
                                  ferry_exchange *x, ferry_error *error)
{
    ferry_status status = fy_take_exchange(given, x, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (plan_out == NULL || x->all_gather == NULL || x->n_ranks == 0 || x->rank >= x->n_ranks ||
        (x->gather == NULL) != (x->scatter == NULL)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "planning needs a place and an exchange made with FERRY_EXCHANGE_INIT: an "
                       "all_gather, both of gather and scatter or none, and a rank of its world");
    }
    return FERRY_OK;
}

/* A message is a status and, if that is FERRY_OK, a body; else the sentence. */
static void begin_message(fy_pack *out, ferry_status status, const char *sentence)
{
    out->used = 0;
    fy_pack_number(out, (uint64_t)status);
    if (status != FERRY_OK) {
        fy_pack_text(out, sentence);
    }
}

static ferry_status read_status(fy_reader *in, uint32_t rank, ferry_error *error)
{
    if (in->at == in->end) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "rank %u ran out of memory for its message",
                       rank);
    }
    ferry_status status = (ferry_status)fy_read_number(in, FY_LAST_STATUS);
    if (in->failed) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of rank %u is damaged", rank);
    }
    if (status != FERRY_OK) {
        size_t length;
        const char *text = fy_read_text(in, &length);
        if (in->failed || length == 0 || text[0] == '\0') {
            return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of rank %u is damaged", rank);
        }
        return fy_fail(error, status, "%.*s", (int)fy_min(length, FERRY_ERROR_BYTES), text);
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

static void pack_own(const ferry_model *src_model, const ferry_model *dst_model,
                     const uint64_t *num_experts, fy_pack *out)
{
    ferry_model *src = NULL, *dst = NULL;
    ferry_error error;
    ferry_status status = complete(src_model, num_experts, &src, &error);
    if (status == FERRY_OK) {
        status = complete(dst_model, num_experts, &dst, &error);
    }
    begin_message(out, status, error.message);
    if (status == FERRY_OK) {
        fy_model_pack(src, out);
        fy_model_pack(dst, out);
    }
    ferry_model_destroy(src);
    ferry_model_destroy(dst);
}

/* Plans from everybody's messages, which lie behind one another. */
static ferry_status plan_gathered(const void *all, const size_t *lengths, uint32_t n_ranks,
                                  const ferry_plan_options *options, ferry_plan **plan_out,
                                  ferry_error *error)
{
    const unsigned char *at = all;
    ferry_roster *roster = NULL;
    ferry_status status = ferry_roster_create(n_ranks, &roster, error);
    for (uint32_t r = 0; r < n_ranks && status == FERRY_OK; r++) {
        fy_reader in = {.at = at, .end = at + lengths[r]};
        status = read_status(&in, r, error);
        if (status == FERRY_OK) {
            status = fy_roster_set_packed(roster, r, &in, error);
        }
        at += lengths[r];
    }
    if (status == FERRY_OK) {
        status = ferry_plan_create_from_roster(roster, options, plan_out, error);
    }
    ferry_roster_destroy(roster);
    return status;
}

static ferry_status fail_exchange(ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE, "the caller's exchange between ranks failed");
}

ferry_status ferry_build_local_reshard_plan(const ferry_model *src_model,
                                            const ferry_model *dst_model,
                                            const uint64_t *num_experts,
                                            const ferry_exchange *exchange,
                                            const ferry_plan_options *options,
                                            ferry_reshard_plan **plan_out, ferry_error *error)
{
    ferry_exchange own_exchange;
    ferry_status status = take_exchange(exchange, plan_out, &own_exchange, error);
    exchange = &own_exchange;
    if (status != FERRY_OK) {
        return status;
    }
    fy_pack own = {0};
    const void *all = NULL;
    const size_t *lengths = NULL;
    ferry_plan *plan = NULL;
    pack_own(src_model, dst_model, num_experts, &own);
    /* Without memory for its own message a rank still takes part, with an empty one. */
    if (exchange->all_gather(exchange->context, own.bytes, own.failed ? 0 : own.used, &all,
                             &lengths) != 0) {
        status = fail_exchange(error);
    }
    if (status == FERRY_OK) {
        status = plan_gathered(all, lengths, exchange->n_ranks, options, &plan, error);
    }
    if (status == FERRY_OK) {
        status = ferry_reshard_plan_create(plan, exchange->rank, plan_out, error);
    }
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
    begin_message(out, FERRY_OK, NULL);
    fy_pack_text(out, plan->digest);
    pack_ops(out, plan->sends, plan->send_list.n);
    pack_ops(out, plan->recvs, plan->recv_list.n);
}

ferry_status fy_reshard_plan_unpack(const void *bytes, size_t n_bytes,
                                    ferry_reshard_plan **plan_out, ferry_error *error)
{
    fy_reader in = {.at = bytes, .end = (const unsigned char *)bytes + n_bytes};
    ferry_status status = read_status(&in, 0, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t length;
    const char *text = fy_read_text(&in, &length);
    char digest[33] = {0};
    ferry_reshard_plan *plan = NULL;
    memcpy(digest, text, length < 32 ? length : 32);
    status = fy_reshard_plan_new(digest, &plan, error);
    if (status == FERRY_OK) {
        status = read_ops(&in, true, plan, error);
    }
    if (status == FERRY_OK) {
        status = read_ops(&in, false, plan, error);
    }
    if (status == FERRY_OK && in.failed) {
        status = fy_fail(error, FERRY_ERR_EXCHANGE, "the ops that rank 0 sent are damaged");
    }
    if (status == FERRY_OK) {
        *plan_out = plan;
        plan = NULL;
    }
    ferry_reshard_plan_destroy(plan);
    return status;
}

/*
 * On rank 0: everybody's ops behind one another, or everybody's error. All zero is a rank 0 without
 * memory: it takes part all the same, with empty messages, so that nobody waits for it in vain.
 */
typedef struct outbox {
    fy_pack bytes;
    size_t *lengths; /* NULL: there was no memory for them */
} outbox;

static bool post(outbox *box, uint32_t rank, const fy_pack *message)
{
    if (message->failed || !fy_reserve((void **)&box->bytes.bytes, &box->bytes.capacity,
                                       box->bytes.used + message->used + 1, 1)) {
        return false;
    }
    memcpy(box->bytes.bytes + box->bytes.used, message->bytes, message->used);
    box->bytes.used += message->used;
    box->lengths[rank] = message->used;
    return true;
}

static ferry_status post_plans(outbox *box, const ferry_plan *plan, uint32_t n_ranks,
                               ferry_error *error)
{
    fy_pack message = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t r = 0; r < n_ranks && status == FERRY_OK; r++) {
        ferry_reshard_plan *own = NULL;
        status = ferry_reshard_plan_create(plan, r, &own, error);
        if (status == FERRY_OK) {
            pack_reshard_plan(own, &message);
            if (!post(box, r, &message)) {
                status = fy_fail_no_memory(error, "the ops of all ranks");
            }
        }
        ferry_reshard_plan_destroy(own);
    }
    fy_pack_cleanup(&message);
    return status;
}

static void post_error(outbox *box, uint32_t n_ranks, ferry_status status, const char *sentence)
{
    fy_pack message = {0};
    begin_message(&message, status, sentence);
    box->bytes.used = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (!post(box, r, &message)) {
            box->lengths[r] = 0; /* reads as a lack of memory, which it is */
        }
    }
    fy_pack_cleanup(&message);
}

static void plan_for_all(const void *all, const size_t *lengths, const ferry_exchange *x,
                         const ferry_plan_options *options, outbox *box)
{
    ferry_error error;
    ferry_plan *plan = NULL;
    ferry_status status = plan_gathered(all, lengths, x->n_ranks, options, &plan, &error);
    if (status == FERRY_OK) {
        status = post_plans(box, plan, x->n_ranks, &error);
    }
    if (status != FERRY_OK) {
        post_error(box, x->n_ranks, status, error.message);
    }
    ferry_plan_destroy(plan);
}

/* Without gather and scatter: rank 0 sends all ops in its part of an all-gather, the others
 * nothing. */
static ferry_status scatter_by_all_gather(const ferry_exchange *x, const outbox *box,
                                          const void **mine_out, size_t *n_bytes_out,
                                          ferry_error *error)
{
    fy_pack message = {0};
    const void *all = NULL;
    const size_t *lengths = NULL;
    for (uint32_t r = 0; box->lengths != NULL && r < x->n_ranks; r++) {
        fy_pack_number(&message, box->lengths[r]);
    }
    size_t head = message.used;
    if (box->lengths != NULL && !message.failed &&
        fy_reserve((void **)&message.bytes, &message.capacity, head + box->bytes.used + 1, 1)) {
        memcpy(message.bytes + head, box->bytes.bytes, box->bytes.used);
        message.used = head + box->bytes.used;
    } else {
        message.used = 0;
    }
    int failed = x->all_gather(x->context, message.bytes, message.used, &all, &lengths);
    fy_pack_cleanup(&message);
    if (failed != 0) {
        return fail_exchange(error);
    }
    fy_reader in = {.at = all, .end = (const unsigned char *)all + lengths[0]};
    uint64_t before = 0, mine = 0;
    for (uint32_t r = 0; lengths[0] > 0 && r < x->n_ranks; r++) {
        uint64_t length = fy_read_number(&in, lengths[0]);
        before += r < x->rank ? length : 0;
        mine = r == x->rank ? length : mine;
    }
    if (in.failed || before + mine > (uint64_t)(in.end - in.at)) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "the ops that rank 0 sent are damaged");
    }
    *mine_out = in.at + before;
    *n_bytes_out = (size_t)mine;
    return FERRY_OK;
}

static ferry_status scatter(const ferry_exchange *x, const outbox *box, const void **mine_out,
                            size_t *n_bytes_out, ferry_error *error)
{
    if (x->scatter == NULL) {
        return scatter_by_all_gather(x, box, mine_out, n_bytes_out, error);
    }
    const void *all = NULL;
    const size_t *lengths = NULL;
    if (x->rank == 0) {
        bool answers = box->bytes.used > 0;
        all = answers ? (const void *)box->bytes.bytes : "";
        lengths = answers ? box->lengths : fy_no_lengths(x->n_ranks);
        if (lengths == NULL) {
            return fy_fail_no_memory(error, "the lengths of messages to all ranks");
        }
    }
    return x->scatter(x->context, all, lengths, mine_out, n_bytes_out) != 0 ? fail_exchange(error)
                                                                            : FERRY_OK;
}

ferry_status ferry_build_centralized_reshard_plan(const ferry_model *src_model,
                                                  const ferry_model *dst_model,
                                                  const uint64_t *num_experts,
                                                  const ferry_exchange *exchange,
                                                  const ferry_plan_options *options,
                                                  ferry_reshard_plan **plan_out, ferry_error *error)
{
    ferry_exchange own_exchange;
    ferry_status status = take_exchange(exchange, plan_out, &own_exchange, error);
    exchange = &own_exchange;
    if (status != FERRY_OK) {
        return status;
    }
    fy_pack own = {0};
    const void *all = NULL, *mine = NULL;
    const size_t *lengths = NULL;
    size_t n_bytes = 0;
    outbox box = {0};
    pack_own(src_model, dst_model, num_experts, &own);
    int (*gather)(void *, const void *, size_t, const void **, const size_t **) =
        exchange->gather == NULL ? exchange->all_gather : exchange->gather;
    if (gather(exchange->context, own.bytes, own.failed ? 0 : own.used, &all, &lengths) != 0) {
        status = fail_exchange(error);
    }
    if (status == FERRY_OK && exchange->rank == 0) {
        box.lengths = fy_alloc_zeroed(exchange->n_ranks, sizeof *box.lengths);
    }
    if (box.lengths != NULL) {
        plan_for_all(all, lengths, exchange, options, &box);
    }
    if (status == FERRY_OK) {
        status = scatter(exchange, &box, &mine, &n_bytes, error);
    }
    if (status == FERRY_OK) {
        status = fy_reshard_plan_unpack(mine, n_bytes, plan_out, error);
    }
    fy_pack_cleanup(&own);
    fy_pack_cleanup(&box.bytes);
    fy_free(box.lengths);
    return status;
}
