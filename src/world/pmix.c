/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/pmix.h"

#include "host/plugin.h"
#include "world/auth.h"
#include "world/meeting.h"

#include <ferry/group.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What rank 0 publishes: "ferry.root/1 KEY ADDRESSES", or "ferry.fail/1 STATUS SENTENCE". */
static const char first_word[] = "ferry.root/1 ";
static const char fail_word[] = "ferry.fail/1 ";
enum { KEY_DIGITS = 2 * FY_KEY_BYTES, TEXT_BYTES = FY_ADDRESSES_BYTES + KEY_DIGITS + 32 };

bool fy_pmix_offered(void)
{
    return getenv("PMIX_RANK") != NULL && getenv("PMIX_NAMESPACE") != NULL;
}

static ferry_status load(const fy_pmix **pmix_out, ferry_error *error)
{
    fy_plugin_fn function = NULL;
    const char *path = NULL;
    ferry_error inner;
    ferry_status status = fy_plugin_load("pmix", FY_PMIX_PLUGIN_SYMBOL, &function, &path, &inner);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "the launcher offers PMIx, but %s", inner.message);
    }
    const fy_pmix *pmix = ((fy_pmix_plugin_fn)function)();
    FY_TRY(fy_plugin_check_abi(path, pmix->abi, FY_PMIX_ABI, error));
    *pmix_out = pmix;
    return FERRY_OK;
}

/* The key is secret as far as the launcher's own channel is; with a secret both must be known. */
static void make_key(fy_meeting *meeting, const fy_settings *settings, const char *key_text)
{
    char job[KEY_DIGITS + 16];
    snprintf(job, sizeof job, "pmix %.*s", (int)KEY_DIGITS, key_text);
    fy_meeting_key(meeting, settings->secret, job);
    fy_auth_wipe(job, sizeof job);
}

static ferry_status listen_as_root(fy_meeting *meeting, const fy_settings *settings,
                                   ferry_error *error)
{
    uint16_t port = 0;
    FY_TRY(fy_auth_begin(error));
    FY_TRY(fy_listen(NULL, 0, &meeting->listener, &port, error));
    return fy_own_addresses(settings->host, port, meeting->addresses, error);
}

static ferry_status publish_root(const fy_pmix *pmix, const char *name, fy_meeting *meeting,
                                 const fy_settings *settings, ferry_error *error)
{
    unsigned char key[FY_KEY_BYTES];
    char key_text[KEY_DIGITS + 1];
    char text[TEXT_BYTES];
    ferry_error inner;
    ferry_status status = listen_as_root(meeting, settings, &inner);
    if (status != FERRY_OK) {
        /* The others wait for it. */
        snprintf(text, sizeof text, "%s%u %.*s", fail_word, (unsigned)status, FY_ADDRESSES_BYTES,
                 inner.message);
        (void)pmix->publish(name, text, NULL);
        return fy_forward(error, status, &inner);
    }
    fy_auth_random(key, sizeof key);
    for (size_t i = 0; i < sizeof key; i++) {
        snprintf(key_text + 2 * i, 3, "%02x", key[i]);
    }
    snprintf(text, sizeof text, "%s%s %s", first_word, key_text, meeting->addresses);
    status = pmix->publish(name, text, error);
    make_key(meeting, settings, key_text);
    fy_auth_wipe(key, sizeof key);
    fy_auth_wipe(key_text, sizeof key_text);
    fy_auth_wipe(text, sizeof text);
    return status;
}

ferry_status fy_pmix_take_root(fy_meeting *meeting, const fy_settings *settings, const char *text,
                               ferry_error *error)
{
    if (strncmp(text, fail_word, sizeof fail_word - 1) == 0) {
        char *sentence;
        unsigned long status = strtoul(text + sizeof fail_word - 1, &sentence, 10);
        bool is_known = status != FERRY_OK && status <= FY_LAST_STATUS;
        return fy_fail(error, is_known ? (ferry_status)status : FERRY_ERR_IO, "rank 0:%s",
                       sentence);
    }
    const char *key_text = text + sizeof first_word - 1;
    size_t digits = 0;
    if (strncmp(text, first_word, sizeof first_word - 1) == 0) {
        digits = strspn(key_text, "0123456789abcdef");
    }
    const char *addresses = key_text + KEY_DIGITS + 1;
    if (digits != KEY_DIGITS || key_text[KEY_DIGITS] != ' ' || addresses[0] == '\0' ||
        strlen(addresses) >= sizeof meeting->addresses) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "rank 0 runs another version of ferry: what it told PMIx does not begin "
                       "with \"%s\" and a key",
                       first_word);
    }
    memcpy(meeting->addresses, addresses, strlen(addresses) + 1);
    make_key(meeting, settings, key_text);
    return FERRY_OK;
}

static ferry_status get_root(const fy_pmix *pmix, const char *name, fy_meeting *meeting,
                             const fy_settings *settings, ferry_error *error)
{
    char text[TEXT_BYTES];
    ferry_error inner;
    ferry_status status = pmix->get(0, name, settings->join_ns, fy_interrupted, settings->interrupt,
                                    text, sizeof text, &inner);
    if (status == FERRY_ERR_STOPPED) {
        return fy_interrupt_fail(error);
    }
    if (status == FERRY_ERR_TIMEOUT) {
        return fy_fail(error, status,
                       "rank 0 of %u has told PMIx no address within %g s: does it make a world, "
                       "too?",
                       meeting->n_ranks, (double)settings->join_ns / 1e9);
    }
    if (status != FERRY_OK) {
        return fy_forward(error, status, &inner);
    }
    status = fy_pmix_take_root(meeting, settings, text, error);
    fy_auth_wipe(text, sizeof text);
    return status;
}

/*
 * Worlds are made by all ranks in one order, and PMIx forgets nothing: so the number of a world in
 * this process is part of the name under which its ranks meet.
 */
static ferry_status meet(fy_meeting *meeting, const fy_settings *settings, ferry_error *error)
{
    static uint32_t n_worlds;
    char name[64];
    const fy_pmix *pmix = NULL;
    FY_TRY(load(&pmix, error));
    FY_TRY(pmix->begin(&meeting->rank, &meeting->n_ranks, error));
    if (meeting->n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "PMIx says %u ranks; a world has at most %u",
                       meeting->n_ranks, FERRY_MAX_RANKS);
    }
    snprintf(name, sizeof name, "ferry.root.%u", n_worlds++);
    if (meeting->n_ranks == 1) {
        return FERRY_OK;
    }
    return meeting->rank == 0 ? publish_root(pmix, name, meeting, settings, error)
                              : get_root(pmix, name, meeting, settings, error);
}

ferry_status fy_meet_pmix(fy_meeting *meeting, const fy_settings *settings, ferry_error *error)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    ferry_status status = meet(meeting, settings, error);
    pthread_mutex_unlock(&lock);
    if (status != FERRY_OK) {
        fy_meeting_cleanup(meeting);
    }
    return status;
}
