/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/message.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <string.h>

void fy_message_begin(fy_pack *out, ferry_status status, const char *sentence)
{
    fy_pack_number(out, (uint64_t)status);
    if (status != FERRY_OK) {
        fy_pack_text(out, sentence);
    }
}

ferry_status fy_message_fail(uint32_t rank, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of rank %u is damaged", rank);
}

ferry_status fy_message_read(fy_reader *in, uint32_t rank, ferry_error *error)
{
    if (!in->failed && in->at == in->end) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "rank %u ran out of memory for its message",
                       rank);
    }
    ferry_status status = (ferry_status)fy_read_number(in, FY_LAST_STATUS);
    if (in->failed) {
        return fy_message_fail(rank, error);
    }
    if (status == FERRY_OK) {
        return FERRY_OK;
    }
    size_t length;
    const char *text = fy_read_text(in, &length);
    return in->failed || length == 0 || text[0] == '\0'
               ? fy_message_fail(rank, error)
               : fy_fail(error, status, "%.*s", (int)fy_min(length, FERRY_ERROR_BYTES), text);
}

static ferry_status check_exchange(bool worked, ferry_error *error)
{
    return worked
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_EXCHANGE, "the caller's exchange between ranks failed");
}

ferry_status fy_exchange_gather(const ferry_exchange *x, bool to_all, const fy_pack *message,
                                fy_gathered *all_out, ferry_error *error)
{
    const void *all = NULL;
    const size_t *lengths = NULL;
    size_t n_bytes = message->failed ? 0 : message->used;
    bool knows = to_all || x->gather == NULL || x->rank == 0;
    int failed = to_all || x->gather == NULL
                     ? x->all_gather(x->context, message->bytes, n_bytes, &all, &lengths)
                     : x->gather(x->context, message->bytes, n_bytes, &all, &lengths);
    /* No bytes at all: nobody had memory for a message. */
    all_out->at = all == NULL ? (const unsigned char *)"" : all;
    all_out->lengths = lengths;
    return check_exchange(failed == 0 && (!knows || lengths != NULL), error);
}

void fy_outbox_cleanup(fy_outbox *box)
{
    fy_pack_cleanup(&box->bytes);
    fy_free(box->lengths);
    *box = (fy_outbox){0};
}

void fy_outbox_post_to_all(fy_outbox *box, uint32_t n_ranks, const fy_pack *message)
{
    box->bytes.used = 0;
    box->bytes.failed = message->failed;
    for (uint32_t r = 0; box->lengths != NULL && r < n_ranks; r++) {
        fy_pack_bytes(&box->bytes, message->bytes, message->used);
        box->lengths[r] = message->used;
    }
}

static bool has_answers(const fy_outbox *box)
{
    return box->lengths != NULL && !box->bytes.failed && box->bytes.used > 0;
}

static ferry_status scatter_to_all(const ferry_exchange *x, const fy_outbox *box,
                                   fy_reader *mine_out, ferry_error *error)
{
    fy_pack message = {0};
    const void *all = NULL;
    const size_t *lengths = NULL;
    for (uint32_t r = 0; has_answers(box) && r < x->n_ranks; r++) {
        fy_pack_number(&message, box->lengths[r]);
    }
    if (has_answers(box)) {
        fy_pack_bytes(&message, box->bytes.bytes, box->bytes.used);
    }
    int failed =
        x->all_gather(x->context, message.bytes, message.failed ? 0 : message.used, &all, &lengths);
    fy_pack_cleanup(&message);
    FY_TRY(check_exchange(failed == 0 && lengths != NULL, error));
    fy_reader in = fy_reader_of(all, lengths[0]);
    uint64_t before = 0, own = 0, total = 0;
    for (uint32_t r = 0; r < x->n_ranks && lengths[0] > 0; r++) {
        uint64_t length = fy_read_number(&in, lengths[0]);
        before = r == x->rank ? total : before;
        own = r == x->rank ? length : own;
        in.failed = in.failed || !fy_add(total, length, &total);
    }
    in.failed = in.failed || total != fy_read_left(&in);
    *mine_out = in.failed ? in : fy_reader_of(in.at + before, own);
    return FERRY_OK;
}

ferry_status fy_exchange_scatter(const ferry_exchange *x, const fy_outbox *box, fy_reader *mine_out,
                                 ferry_error *error)
{
    const void *all = NULL, *mine = NULL;
    const size_t *lengths = NULL;
    size_t n_bytes = 0;
    if (x->scatter == NULL) {
        return scatter_to_all(x, box, mine_out, error);
    }
    if (x->rank == 0) {
        all = has_answers(box) ? (const void *)box->bytes.bytes : "";
        lengths = has_answers(box) ? box->lengths : fy_no_lengths(x->n_ranks);
        FY_TRY(fy_check_memory(lengths != NULL, "the lengths of messages to all ranks", error));
    }
    int failed = x->scatter(x->context, all, lengths, &mine, &n_bytes);
    *mine_out = fy_reader_of(mine, n_bytes);
    return check_exchange(failed == 0 && (mine != NULL || n_bytes == 0), error);
}
