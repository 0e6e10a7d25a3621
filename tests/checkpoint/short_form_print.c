/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The built-in rules as a filter, for families.py: reads {"to", "tensors": [[name, [extents]],
 * ...], "config"} lines and prints for each {"side", "replicated"} or {"error"}.
 */
#include "checkpoint/short_form.h"

#include <stdio.h>
#include <stdlib.h>

static void *allocate(size_t count, size_t item_bytes)
{
    void *items = calloc(count + 1, item_bytes);
    if (items == NULL) {
        fprintf(stderr, "short_form_print: no memory\n");
        exit(2);
    }
    return items;
}

static fy_model_tensor *read_tensors(const json_t *list)
{
    size_t n_tensors = json_array_size(list);
    fy_model_tensor *tensors = allocate(n_tensors, sizeof *tensors);
    for (size_t i = 0; i < n_tensors; i++) {
        const json_t *item = json_array_get(list, i);
        const json_t *extents = json_array_get(item, 1);
        size_t n_dims = json_array_size(extents);
        uint64_t *shape = allocate(n_dims, sizeof *shape);
        for (size_t d = 0; d < n_dims; d++) {
            shape[d] = (uint64_t)json_integer_value(json_array_get(extents, d));
        }
        tensors[i] = (fy_model_tensor){.name = json_string_value(json_array_get(item, 0)),
                                       .n_dims = (uint32_t)n_dims,
                                       .shape = shape};
    }
    return tensors;
}

static json_t *answer(const json_t *question)
{
    const json_t *list = json_object_get(question, "tensors");
    size_t n_tensors = json_array_size(list);
    fy_model_tensor *tensors = read_tensors(list);
    const char *text = json_string_value(json_object_get(question, "to"));
    json_t *side = NULL;
    json_t *replicated = NULL;
    ferry_error error;
    ferry_status status =
        fy_short_form_make(text, tensors, n_tensors, json_object_get(question, "config"), "model",
                           &side, &replicated, &error);
    for (size_t i = 0; i < n_tensors; i++) {
        free((void *)(uintptr_t)tensors[i].shape);
    }
    free(tensors);
    return status == FERRY_OK ? json_pack("{s:o, s:o}", "side", side, "replicated", replicated)
                              : json_pack("{s:s}", "error", error.message);
}

int main(void)
{
    json_error_t parse;
    json_t *question;
    while ((question = json_loadf(stdin, JSON_DISABLE_EOF_CHECK, &parse)) != NULL) {
        json_t *result = answer(question);
        json_dumpf(result, stdout, JSON_COMPACT);
        printf("\n");
        fflush(stdout);
        json_decref(result);
        json_decref(question);
    }
    return 0;
}
