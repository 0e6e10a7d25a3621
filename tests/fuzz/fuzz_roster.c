/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A byte for the number of ranks, and any bytes as their packed models, which other ranks send. */
#include "fuzz.h"

#include "model/roster.h"
#include "plan/core.h"

static bool is_small_model(const ferry_model *model)
{
    for (size_t i = 0; model != NULL && i < model->n_params; i++) {
        const ferry_param_metadata *m = &model->params[i];
        if (m->n_dims > MOST_DIMS || (m->is_tp && m->partition_stride > MOST_PIECES) ||
            m->n_partition_sizes > MOST_PIECES ||
            ferry_group_size(m->tensor_parallel_group_ranks) > MOST_WORLD) {
            return false;
        }
    }
    return true;
}

static bool is_small_roster(const ferry_roster *roster)
{
    for (uint32_t r = 0; r < roster->n_ranks; r++) {
        if (!is_small_model(roster->entries[r].src) || !is_small_model(roster->entries[r].dst)) {
            return false;
        }
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error   error  = {""};
    ferry_roster *roster = NULL;
    if (size == 0 || data[0] == 0) {
        return 0;
    }
    ferry_status status = fy_roster_unpack(data + 1, size - 1, data[0], &roster, &error);
    check_sentence(status, &error);
    promise((roster != NULL) == (status == FERRY_OK));
    for (uint32_t policy = 0; roster != NULL && is_small_roster(roster) && policy < 2; policy++) {
        ferry_plan        *plan    = NULL;
        ferry_error        reason  = {""};
        ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
        options.replica            = policy;
        status = ferry_plan_create_from_roster(roster, &options, &plan, &reason);
        check_sentence(status, &reason);
        if (plan != NULL) {
            check_plan(plan);
        }
        ferry_plan_destroy(plan);
    }
    ferry_roster_destroy(roster);
    return 0;
}
