/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/suite.h"

#include <stdlib.h>

void setup_init(const rank_context *me, service_setup *setup, const char *wrappers)
{
    setup->options = (ferry_service_options)FERRY_SERVICE_OPTIONS_INIT;
    setup->options.delta = getenv("FERRY_TEST_DELTA") != NULL;
    setup->options.engines = engines_of(me, wrappers, setup->engines, sizeof setup->engines);
}

void setup_draw(const rank_context *me, service_setup *setup, uint64_t *random)
{
    static const uint64_t slots[] = {0, 16, 100, 4096};
    setup_init(me, setup, "");
    setup->options.slot_bytes = slots[random_below(random, COUNT_OF(slots))];
    setup->options.checksum = random_below(random, 3);
    setup->options.n_threads = random_below(random, 4);
    setup->options.paths = one_in(random, 2) ? 0 : FERRY_PATH_STAGED;
    setup->options.delta = setup->options.delta != 0 || one_in(random, 3);
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

void clear_all(rank_context *me, ferry_service *service)
{
    must(me, ferry_service_clear_requests(service, &me->error));
    meet(me);
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

ferry_status run_some(rank_context *me, ferry_service *service, uint32_t n_steps)
{
    ferry_request *request = NULL;
    bool done = false;
    ferry_status status = FERRY_OK;
    must(me, ferry_service_start(service, NULL, &request, &me->error));
    for (uint32_t i = 0; n_steps != NEVER && i < n_steps && !done && status == FERRY_OK; i++) {
        status = ferry_request_test(request, &done, &me->error);
    }
    if (n_steps != NEVER) {
        ferry_request_cancel(request);
    }
    status = ferry_request_wait(request, &me->error);
    all_same(me, "a run that may be cancelled", status, status, NULL);
    expect(me, status == FERRY_OK || status == FERRY_ERR_ABORTED, "%s: %s",
           ferry_status_name(status), me->error.message);
    ferry_request_destroy(request);
    return status;
}
