/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Any text as a spec; what parses and is small is planned by both policies. */
#include "fuzz.h"

static void plan_by(const ferry_spec *spec, uint32_t policy, ferry_status *status_out)
{
    ferry_error error = {""};
    ferry_plan *plan = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = policy;
    *status_out = ferry_plan_create(spec, &options, &plan, &error);
    check_sentence(*status_out, &error);
    promise((plan != NULL) == (*status_out == FERRY_OK));
    if (plan != NULL) {
        check_plan(plan);
    }
    ferry_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    ferry_spec *spec = NULL;
    ferry_status status = ferry_spec_parse((const char *)data, size, "fuzz", &spec, &error);
    check_sentence(status, &error);
    promise((spec != NULL) == (status == FERRY_OK));
    if (spec != NULL && is_small(spec)) {
        ferry_status balanced, seed;
        plan_by(spec, FERRY_REPLICA_BALANCED, &balanced);
        plan_by(spec, FERRY_REPLICA_SEED, &seed);
        promise((balanced == FERRY_OK) == (seed == FERRY_OK));
    }
    ferry_spec_destroy(spec);
    return 0;
}
