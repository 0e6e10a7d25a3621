/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the packed models of all ranks, which saved plans and messages of other ranks hold.
 */
#include "fuzz.h"

#include "model/roster.h"
#include "plan/core.h"

static bool is_small_param(const ferry_param_metadata *m)
{
    return m->n_dims <= MOST_DIMS && !(m->is_tp && m->partition_stride > MOST_PIECES) &&
           m->n_partition_sizes <= MOST_PIECES &&
           ferry_group_rank_count(m->tensor_parallel_group_ranks) <= MOST_WORLD;
}

static bool is_small_model(const fy_said *said)
{
    for (size_t i = 0; said->outline != NULL && i < said->outline->n_params; i++) {
        ferry_param_metadata m;
        fy_said_param(said, 0, i, &m);
        if (!is_small_param(&m)) {
            return false;
        }
    }
    return true;
}

static bool is_small_roster(const ferry_roster *roster)
{
    for (uint32_t r = 0; r < roster->n_ranks; r++) {
        const fy_said *said = roster->entries[r].said;
        if (!is_small_model(&said[0]) || !is_small_model(&said[1])) {
            return false;
        }
    }
    return true;
}

/* The bytes as hex digits, as a saved plan has them. */
static json_t *spell(const uint8_t *data, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    char *text = malloc(2 * size + 1);
    promise(text != NULL);
    for (size_t i = 0; i < size; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    json_t *json = json_stringn(text, 2 * size);
    free(text);
    return json;
}

static void plan_by(const ferry_roster *roster, uint32_t policy)
{
    ferry_error error = {""};
    ferry_plan *plan = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = policy;
    ferry_status status = ferry_plan_create_from_roster(roster, &options, &plan, &error);
    check_sentence(status, &error);
    promise((plan != NULL) == (status == FERRY_OK));
    if (plan != NULL) {
        check_plan(plan);
    }
    ferry_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    ferry_roster *roster = NULL;
    const fy_json_place place = {.key = "fuzz"};
    json_t *json = spell(data, size);
    ferry_status status = fy_roster_from_json(json, &place, &roster, &error);
    check_sentence(status, &error);
    promise((roster != NULL) == (status == FERRY_OK));
    if (roster != NULL && is_small_roster(roster)) {
        plan_by(roster, FERRY_REPLICA_BALANCED);
        plan_by(roster, FERRY_REPLICA_SEED);
    }
    ferry_roster_destroy(roster);
    json_decref(json);
    return 0;
}
