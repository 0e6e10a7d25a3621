/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/agree.h"

#include "base/alloc.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* A vote as it travels: the status and the length of the bytes; bytes and sentence follow. */
typedef struct vote_head {
    uint32_t status;
    uint32_t n_bytes;
} vote_head;

/* A rank without memory for its message sends this much, so that the others need not wait. */
static const vote_head no_memory = {.status = FERRY_ERR_NO_MEMORY};

ferry_status fy_votes_gather(ferry_world *world, const fy_vote *vote, fy_votes *votes_out,
                             ferry_error *error)
{
    size_t sentence_bytes = vote->status == FERRY_OK ? 0 : strlen(vote->own->message);
    size_t n_bytes = sizeof(vote_head) + vote->n_bytes + sentence_bytes;

    vote_head head = {.status = (uint32_t)vote->status, .n_bytes = (uint32_t)vote->n_bytes};

    unsigned char *message = fy_alloc(n_bytes, 1);
    const void *sent = &no_memory;
    if (message == NULL) {
        n_bytes = sizeof no_memory;
    } else {
        memcpy(message, &head, sizeof head);
        if (vote->n_bytes != 0) {
            memcpy(message + sizeof head, vote->bytes, vote->n_bytes);
        }
        if (sentence_bytes != 0) {
            memcpy(message + sizeof head + vote->n_bytes, vote->own->message, sentence_bytes);
        }
        sent = message;
    }
    const void *all;
    const size_t *lengths;
    ferry_status status = ferry_world_all_gather_v(world, sent, n_bytes, &all, &lengths, error);
    fy_free(message);
    if (status == FERRY_OK) {
        *votes_out =
            (fy_votes){.all = all, .lengths = lengths, .n_ranks = ferry_world_n_ranks(world)};
    }
    return status;
}

/* The head and the bytes of a vote; one that is damaged reads as a rank without memory. */
static vote_head read_head(const unsigned char *message, size_t length)
{
    vote_head head = no_memory;
    if (length >= sizeof head) {
        memcpy(&head, message, sizeof head);
        if (head.n_bytes > length - sizeof head || head.status > FY_LAST_STATUS) {
            head = no_memory;
        }
    }
    return head;
}

/* A sentence that names a rank already, such as one that was agreed upon before, needs no other. */
static bool names_rank(const char *sentence, int length)
{
    return length > 5 && memcmp(sentence, "rank ", 5) == 0 && sentence[5] >= '0' &&
           sentence[5] <= '9';
}

ferry_status fy_votes_status(const fy_votes *votes, ferry_error *error)
{
    const unsigned char *at = votes->all;
    for (uint32_t rank = 0; rank < votes->n_ranks; rank++) {
        size_t length = votes->lengths[rank];
        vote_head head = read_head(at, length);
        if (head.status != FERRY_OK) {
            size_t used = sizeof head + head.n_bytes;
            int n_chars = length > used ? (int)(length - used) : 0;
            const char *sentence = n_chars > 0 ? (const char *)at + used
                                               : ferry_status_text((ferry_status)head.status);
            char prefix[32] = "";
            n_chars = n_chars > 0 ? n_chars : (int)strlen(sentence);
            if (!names_rank(sentence, n_chars)) {
                snprintf(prefix, sizeof prefix, "rank %u: ", rank);
            }
            return fy_fail(error, (ferry_status)head.status, "%s%.*s", prefix, n_chars, sentence);
        }
        at += length;
    }
    return FERRY_OK;
}

const void *fy_votes_next(const fy_votes *votes, uint32_t rank, size_t *at_inout,
                          size_t *n_bytes_out)
{
    if (rank >= votes->n_ranks) {
        return NULL;
    }
    const unsigned char *message = votes->all + *at_inout;
    *n_bytes_out = read_head(message, votes->lengths[rank]).n_bytes;
    *at_inout += votes->lengths[rank];
    return message + sizeof(vote_head);
}

ferry_status fy_agree(ferry_world *world, ferry_status status, ferry_error *error)
{
    ferry_error here;
    ferry_error *own = error == NULL ? &here : error;
    if (status != FERRY_OK && error == NULL) {
        fy_fail(own, status, "%s", ferry_status_text(status));
    }
    fy_vote vote = {.status = status, .own = own};
    fy_votes votes;
    ferry_status gathered = fy_votes_gather(world, &vote, &votes, error);
    return gathered != FERRY_OK ? gathered : fy_votes_status(&votes, error);
}

ferry_status fy_merge_numbers(ferry_world *world, fy_merged *numbers, size_t n, ferry_error *error)
{
    uint64_t own[FY_MOST_MERGED];
    const void *all = NULL;
    for (size_t i = 0; i < n; i++) {
        own[i] = numbers[i].value;
    }
    ferry_status status = ferry_world_all_gather(world, own, n * sizeof own[0], &all, error);
    for (size_t at = 0; status == FERRY_OK && at < n * ferry_world_n_ranks(world); at++) {
        fy_merged *number = &numbers[at % n];
        uint64_t its;
        memcpy(&its, (const char *)all + at * sizeof its, sizeof its);
        if (number->how == FY_LEAST ? its < number->value : its > number->value) {
            number->value = its;
        }
    }
    return status;
}
