/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A program as a user would write it: the installed headers and library, nothing else. */
#include <ferry/ferry.h>

#include <stdio.h>
#include <string.h>

static const char spec_text[] =
    "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [8], \"dtype\": "
    "\"bf16\"}],"
    " \"source\": {\"mesh\": [[\"tp\", 2]],"
    "  \"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]},"
    " \"destination\": {\"mesh\": [[\"tp\", 4]],"
    "  \"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}}";

int main(void)
{
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    ferry_error error;
    if (strcmp(ferry_version(), FERRY_VERSION_TEXT) != 0) {
        fprintf(stderr, "headers %s, library %s\n", FERRY_VERSION_TEXT, ferry_version());
        return 1;
    }
    if (ferry_spec_parse(spec_text, strlen(spec_text), "spec", &spec, &error) != FERRY_OK ||
        ferry_plan_create(spec, NULL, &plan, &error) != FERRY_OK ||
        ferry_plan_get_totals(plan, &totals, &error) != FERRY_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("%llu moves\n", (unsigned long long)totals.n_moves);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    return totals.n_moves == 4 ? 0 : 1;
}
