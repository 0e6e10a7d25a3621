/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a config.json whose type follows a cast. What is JSON stays JSON, with the types of
 * the model changed and nothing else, as a walk over the parsed tree says; a second time there is
 * nothing to do.
 */
#include "fuzz.h"

#include "base/alloc.h"
#include "checkpoint/others.h"

#include <jansson.h>

static const char CAST[] = "float16";

enum { MOST_DEPTH = 64 };

static bool names_float(const char *text)
{
    static const char *const names[] = {"float64",       "float32",     "float16",
                                        "bfloat16",      "float",       "half",
                                        "float8_e4m3fn", "float8_e5m2", "double"};
    text += strncmp(text, "torch.", 6) == 0 ? 6 : 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_part(const char *key)
{
    size_t n = strlen(key);
    return n >= 7 && strcmp(key + n - 7, "_config") == 0 && strcmp(key, "quantization_config") != 0;
}

/* What is to be done to the object of a model, in the tree. */
static void cast_model(json_t *model, int depth)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(model, next, key, value)
    {
        if (json_is_object(value) && is_part(key) && depth < MOST_DEPTH) {
            cast_model(value, depth + 1);
        } else if (json_is_string(value) && names_float(json_string_value(value)) &&
                   (strcmp(key, "torch_dtype") == 0 || strcmp(key, "dtype") == 0)) {
            promise(json_object_set_new(model, key, json_string(CAST)) == 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    char *changed = NULL, *again = NULL;
    const char *text = size == 0 ? "" : (const char *)data;
    size_t length = 0;
    promise(fy_config_set_dtype(text, size, CAST, &changed, &length, &error) == FERRY_OK);
    const char *result = changed == NULL ? text : changed;
    length = changed == NULL ? size : length;
    /* Escapes are ways to write a key that no package writes, and they are not looked for. */
    json_t *before = memchr(text, '\\', size) != NULL ? NULL : json_loadb(text, size, 0, NULL);
    if (before != NULL) {
        json_t *after = json_loadb(result, length, 0, NULL);
        if (json_is_object(before)) {
            cast_model(before, 1);
        }
        promise(after != NULL && json_equal(before, after));
        json_decref(after);
        size_t unused = 0;
        promise(fy_config_set_dtype(result, length, CAST, &again, &unused, &error) == FERRY_OK);
        promise(again == NULL);
    }
    json_decref(before);
    fy_free(changed);
    return 0;
}
