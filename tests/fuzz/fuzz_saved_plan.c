/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Any file as a saved plan. */
#include "fuzz.h"

/* Loading plans at once, so the spec is looked at beforehand. */
static bool holds_small_spec(const uint8_t *data, size_t size)
{
    json_error_t reason;
    ferry_spec *spec = NULL;
    bool small = true;
    json_t *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, &reason);
    json_t *json = json_object_get(root, "spec");
    if (json != NULL && fy_spec_from_json(json, "fuzz", &spec, NULL) == FERRY_OK) {
        small = is_small(spec);
    }
    ferry_spec_destroy(spec);
    json_decref(root);
    return small;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!holds_small_spec(data, size)) {
        return 0;
    }
    ferry_error error = {""};
    ferry_plan *plan = NULL;
    memory_file file = open_memory(data, size);
    ferry_status status = ferry_plan_load(file.path, &plan, &error);
    check_sentence(status, &error);
    promise((plan != NULL) == (status == FERRY_OK));
    if (plan != NULL) {
        check_plan(plan);
    }
    ferry_plan_destroy(plan);
    close_memory(&file);
    return 0;
}
