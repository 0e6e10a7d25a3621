/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/suite.h"

#include <stdlib.h>

void setup_init(const rank_context *me, service_setup *setup, const char *wrappers)
{
    setup->options = (ferry_service_options)FERRY_SERVICE_OPTIONS_INIT;
    setup->options.delta = getenv("FERRY_TEST_DELTA") != NULL;
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
