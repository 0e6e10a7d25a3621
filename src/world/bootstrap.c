/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/meeting.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "world/auth.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/*
 * What every rank tells all others, in one all-gather: rank 0's place and key, and from everybody
 * what it believes, so that contradictions, and rank 0's failure to listen, are known to all.
 */
enum { CARD_MAGIC = 0x66797231, JOB_BYTES = 2 * FY_KEY_BYTES + 32 };

typedef struct card {
    uint32_t magic; /* changes with this struct */
    uint32_t rank;
    uint32_t n_ranks;
    uint32_t status; /* of what this rank did so far */
    uint32_t has_secret;
    char text[FY_ADDRESSES_BYTES]; /* rank 0's addresses, or the sentence of a failure */
    unsigned char key[FY_KEY_BYTES];
} card;

static ferry_status check_bootstrap(const ferry_bootstrap *bootstrap, ferry_error *error)
{
    if (bootstrap->n_ranks == 0 || bootstrap->rank >= bootstrap->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "a bootstrap says rank %u of %u", bootstrap->rank,
                       bootstrap->n_ranks);
    }
    if (bootstrap->all_gather == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "a bootstrap needs its function all_gather");
    }
    return FERRY_OK;
}

static void fill_root(card *own, fy_meeting *meeting, const fy_settings *settings)
{
    ferry_error error;
    uint16_t port = 0;
    ferry_status status = fy_auth_begin(&error);
    FY_THEN(status, fy_listen(NULL, 0, &meeting->listener, &port, &error));
    FY_THEN(status, fy_own_addresses(settings->host, port, own->text, &error));
    own->status = (uint32_t)status;
    if (status != FERRY_OK) {
        snprintf(own->text, sizeof own->text, "%.*s", (int)sizeof own->text - 1, error.message);
        return;
    }
    fy_auth_random(own->key, sizeof own->key);
}

/* All ranks look at the same cards, and all but one of these say the same to each. */
static ferry_status check_cards(const card *cards, const ferry_bootstrap *bootstrap,
                                ferry_error *error)
{
    for (uint32_t r = 0; r < bootstrap->n_ranks; r++) {
        const card *one = &cards[r];
        if (one->magic != CARD_MAGIC) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "what all_gather brought from rank %u is not what that rank gave, or "
                           "it runs another version of ferry",
                           r);
        }
        if (one->rank != r) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "all_gather returned the bytes of rank %u in the place of rank %u: they "
                           "must be in order of ranks, and each rank there once",
                           one->rank, r);
        }
        if (one->n_ranks != cards[0].n_ranks) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "rank %u expects %u ranks, but rank 0 expects %u", r, one->n_ranks,
                           cards[0].n_ranks);
        }
        if ((one->has_secret != 0) != (cards[0].has_secret != 0)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "rank %u has %s secret and rank 0 has %s: set FERRY_SECRET on all ranks "
                           "or on none",
                           r, one->has_secret != 0 ? "a" : "no",
                           cards[0].has_secret != 0 ? "one" : "none");
        }
    }
    if (cards[0].status != FERRY_OK) {
        return fy_fail(error, (ferry_status)cards[0].status, "rank 0: %.*s",
                       (int)sizeof cards[0].text - 1, cards[0].text);
    }
    return FERRY_OK;
}

/* The key that rank 0 made reached nobody but the ranks; with a secret both must be known. */
static void take_root(fy_meeting *meeting, const card *root, const fy_settings *settings)
{
    memcpy(meeting->addresses, root->text, sizeof meeting->addresses);
    meeting->addresses[sizeof meeting->addresses - 1] = '\0';
    char job[JOB_BYTES] = "bootstrap ";
    size_t used = strlen(job);
    for (size_t i = 0; i < sizeof root->key; i++) {
        snprintf(job + used + 2 * i, 3, "%02x", root->key[i]);
    }
    fy_meeting_key(meeting, settings->secret, job);
    fy_auth_wipe(job, sizeof job);
}

ferry_status fy_meet_bootstrap(fy_meeting *meeting, const ferry_bootstrap *bootstrap,
                               const fy_settings *settings, ferry_error *error)
{
    FY_TRY(check_bootstrap(bootstrap, error));
    ferry_status status = FERRY_OK;
    meeting->rank = bootstrap->rank;
    meeting->n_ranks = bootstrap->n_ranks;
    if (bootstrap->n_ranks == 1) {
        return FERRY_OK;
    }
    card own = {.magic = CARD_MAGIC,
                .rank = bootstrap->rank,
                .n_ranks = bootstrap->n_ranks,
                .has_secret = settings->secret != NULL};
    card *cards = fy_alloc_zeroed(bootstrap->n_ranks, sizeof *cards);
    FY_TRY(fy_check_memory(cards != NULL, "what the ranks tell each other", error));
    if (own.rank == 0) {
        fill_root(&own, meeting, settings);
    }
    int result = bootstrap->all_gather(bootstrap->context, &own, sizeof own, cards);
    if (result != 0) {
        status = fy_fail(error, FERRY_ERR_EXCHANGE,
                         "the bootstrap's all_gather returned %d on rank %u", result, own.rank);
        goto out;
    }
    status = check_cards(cards, bootstrap, error);
    if (status == FERRY_OK) {
        take_root(meeting, &cards[0], settings);
    }
out:
    fy_auth_wipe(&own, sizeof own);
    fy_auth_wipe(cards, (size_t)bootstrap->n_ranks * sizeof *cards);
    fy_free(cards);
    if (status != FERRY_OK) {
        fy_meeting_cleanup(meeting);
    }
    return status;
}
