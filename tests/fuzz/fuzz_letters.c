/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Letters between the ranks of a service; the first byte says which. Votes and verdicts: what is
 * read is written again and read the same, and each reason is a failure of a rank that exists. A
 * message between two ranks, in letters of any lengths: what is put together is no longer than what
 * has come, and what a peer says in place of a message is a failure with a sentence.
 */
#include "fuzz.h"

#include "service/prepare.h"
#include "service/run.h"
#include "world/agree.h"

enum { N_RANKS = 300, PEER = 2 };

static void check_reasons(const fy_reasons *reasons)
{
    promise(reasons->n <= FY_MOST_REASONS);
    for (uint32_t i = 0; i < reasons->n; i++) {
        const fy_reason *reason = &reasons->items[i];
        promise(reason->status != FERRY_OK && reason->status <= FY_LAST_STATUS);
        promise(reason->rank < N_RANKS && reason->count <= N_RANKS);
        promise(reason->culprit < N_RANKS || reason->culprit == FERRY_ANY_RANK);
        promise(reason->text[0] != '\0');
        promise(memchr(reason->text, '\0', sizeof reason->text) != NULL);
    }
}

static void read_vote(const uint8_t *data, size_t size)
{
    static fy_reasons reasons, again;
    unsigned char bytes[FY_REASONS_BYTES];
    fy_pack out = fy_pack_into(bytes, sizeof bytes);
    if (!fy_reasons_read(data, size, N_RANKS, &reasons)) {
        return;
    }
    check_reasons(&reasons);
    fy_reasons_pack(&reasons, &out);
    promise(!out.failed);
    promise(fy_reasons_read(out.bytes, out.used, N_RANKS, &again));
    promise(again.n == reasons.n);
    for (uint32_t i = 0; i < again.n; i++) {
        promise(again.items[i].status == reasons.items[i].status);
        promise(again.items[i].culprit == reasons.items[i].culprit);
        promise(again.items[i].count == reasons.items[i].count);
        promise(again.items[i].rank == reasons.items[i].rank);
        promise(strcmp(again.items[i].text, reasons.items[i].text) == 0);
    }
}

/* The letters are the input's, each with its length before it, until one is refused. */
static void read_letters(const uint8_t *data, size_t size)
{
    static volatile unsigned sum;
    fy_talk talk = {.peer = PEER};
    ferry_status status = FERRY_OK;
    ferry_error error = {""};
    size_t heard = 0;
    for (size_t at = 0; at < size && status == FERRY_OK;) {
        size_t left = size - at - 1, n = data[at] < left ? data[at] : left;
        status = fy_talk_hear(&talk, data + at + 1, n, &error);
        check_sentence(status, &error);
        heard += status == FERRY_OK ? n - sizeof(uint64_t) : 0;
        at += 1 + n;
    }
    promise(talk.in.used == heard && talk.from.done == heard);
    promise(!talk.from.begun || talk.from.done <= talk.from.bytes);
    error.message[0] = '\0';
    status = fy_talk_open(&talk, &error);
    promise((status == FERRY_OK) == (error.message[0] == '\0'));
    promise(strpbrk(error.message, "\n\r\t\x1b") == NULL);
    promise(talk.message.used <= talk.in.used);
    for (size_t i = 0; i < talk.message.used; i++) {
        sum = sum + talk.message.bytes[i];
    }
    fy_pack_cleanup(&talk.in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0) {
        (data[0] % 2 == 0 ? read_vote : read_letters)(data + 1, size - 1);
    }
    return 0;
}
