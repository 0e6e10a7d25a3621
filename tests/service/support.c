/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/suite.h"

const char *engines_of(const rank_context *me, const char *wrappers, char *text, size_t n_bytes)
{
    snprintf(text, n_bytes, "%s%s", wrappers, me->engine->engines);
    size_t length = strlen(text);
    if (length > 0 && text[length - 1] == ':') { /* wrappers around the best for each pair */
        text[length - 1] = '\0';
    }
    return text[0] == '\0' ? NULL : text;
}

void setup_init(const rank_context *me, service_setup *setup, const char *wrappers)
{
    setup->options         = (ferry_service_options)FERRY_SERVICE_OPTIONS_INIT;
    setup->options.engines = engines_of(me, wrappers, setup->engines, sizeof setup->engines);
}

ferry_service *open_service(rank_context *me, const ferry_service_options *options)
{
    ferry_service *service = NULL;
    must(me, ferry_service_create(me->world, options, &service, &me->error));
    expect(me, !ferry_service_initialized(service), "a service before init");
    must(me, ferry_service_init(service, FERRY_LOG_ERROR, &me->error));
    expect(me, ferry_service_initialized(service), "a service after init");
    return service;
}

typedef struct outcome {
    uint32_t status;
    char     message[FERRY_ERROR_BYTES];
} outcome;

void all_same(rank_context *me, const char *what, ferry_status got, ferry_status wanted,
              const char *words)
{
    outcome     mine = {.status = (uint32_t)got};
    const void *all  = NULL;
    if (got != FERRY_OK) {
        snprintf(mine.message, sizeof mine.message, "%s", me->error.message);
    }
    must(me, ferry_world_all_gather(me->world, &mine, sizeof mine, &all, &me->error));
    const outcome *theirs = all;
    for (uint32_t r = 0; r < me->n_ranks; r++) {
        if (theirs[r].status != (uint32_t)wanted) {
            fail(me, "%s: rank %u: %s, not %s: %s", what, (unsigned)r,
                 ferry_status_name((ferry_status)theirs[r].status), ferry_status_name(wanted),
                 theirs[r].message);
        }
        if (strcmp(theirs[r].message, theirs[0].message) != 0) {
            fail(me, "%s: rank %u says \"%s\", rank 0 \"%s\"", what, (unsigned)r, theirs[r].message,
                 theirs[0].message);
        }
    }
    if (wanted != FERRY_OK && strlen(mine.message) < 10) {
        fail(me, "%s: %s has no sentence", what, ferry_status_name(wanted));
    }
    if (words != NULL && strstr(mine.message, words) == NULL) {
        fail(me, "%s: \"%s\" does not say \"%s\"", what, mine.message, words);
    }
}

ferry_service_statistics statistics_of(rank_context *me, const ferry_service *service)
{
    ferry_service_statistics statistics = FERRY_SERVICE_STATISTICS_INIT;
    must(me, ferry_service_get_statistics(service, &statistics, &me->error));
    return statistics;
}

ferry_destination destination_of(rank_context *me, const ferry_service *service, uint64_t index)
{
    ferry_destination destination = FERRY_DESTINATION_INIT;
    must(me, ferry_service_destination_at(service, index, &destination, &me->error));
    return destination;
}
