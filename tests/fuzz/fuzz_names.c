/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a ferry.names/1 of a small model: from each naming to each other one there is a map
 * and a side, or a sentence says why not.
 */
#include "fuzz.h"

#include <ferry/names.h>

static const char config[] = "{\"hidden_size\": 8, \"num_hidden_layers\": 2, \"num_experts\": 3}";

/* Whether its tensors follow from the rules. */
static bool has_tensors(ferry_names *names, const char *naming)
{
    ferry_error error = {""};
    size_t n;
    ferry_status status = ferry_names_get_tensor_count(names, naming, &n, &error);
    check_sentence(status, &error);
    return status == FERRY_OK;
}

static void join(ferry_names *names, const char *from, const char *to)
{
    const uint32_t rank = 1;
    ferry_map *map = NULL;
    ferry_side *side = NULL;
    ferry_error error = {""};
    ferry_status status = ferry_names_get_map(names, from, to, &map, &error);
    check_sentence(status, &error);
    promise((map != NULL) == (status == FERRY_OK));
    error.message[0] = '\0';
    status = ferry_names_get_side(names, from, to, &rank, 1, &side, &error);
    check_sentence(status, &error);
    promise((side != NULL) == (status == FERRY_OK));
    ferry_map_destroy(map);
    ferry_side_destroy(side);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    ferry_names *names = NULL;
    ferry_names_options options = FERRY_NAMES_OPTIONS_INIT;
    options.config = config;
    options.config_length = sizeof config - 1;
    options.family = (const char *)data;
    options.family_length = size;
    ferry_status status = ferry_names_create(&options, &names, &error);
    check_sentence(status, &error);
    promise((names != NULL) == (status == FERRY_OK));
    const char *good[4];
    size_t n = 0;
    for (size_t i = 0; i < ferry_names_naming_count(names) && i < 4; i++) {
        const char *naming = ferry_names_naming_at(names, i);
        if (has_tensors(names, naming)) {
            good[n++] = naming;
        }
    }
    for (size_t i = 0; i < n * n; i++) {
        join(names, good[i / n], good[i % n]);
    }
    ferry_names_destroy(names);
    return 0;
}
