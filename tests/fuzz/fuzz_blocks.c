/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A line that says what is quantized, and a config.json that is told of it. What is read as a
 * format is printed as one that is read alike; a config.json stays JSON, loses what it had, gets
 * what it should, and keeps everything else.
 */
#include "fuzz.h"

#include "base/alloc.h"
#include "checkpoint/config_text.h"

#include <jansson.h>

static void read_choice(const char *text, bool may_be_auto)
{
    ferry_error error = {""};
    fy_block_choice choice, again;
    char printed[FY_FORMAT_TEXT_BYTES];
    ferry_status status = fy_block_choice_parse(text, may_be_auto, &choice, &error);
    check_sentence(status, &error);
    if (status != FERRY_OK || choice.is_auto) {
        return;
    }
    fy_format_print(&choice.format, printed);
    promise(fy_block_choice_parse(printed, false, &again, &error) == FERRY_OK);
    promise(again.format.kind == choice.format.kind && again.format.rule == choice.format.rule &&
            again.format.scale_kind == choice.format.scale_kind &&
            again.format.block[0] == choice.format.block[0] &&
            again.format.block[1] == choice.format.block[1]);
    fy_quantized q = {.format = choice.format, .n_rows = 1, .n_columns = 1};
    uint64_t shape[2];
    fy_scales_shape(&q, shape);
    promise(shape[0] == 1 && shape[1] == 1);
}

static bool is_part(const char *key)
{
    size_t n = strlen(key);
    return n >= 7 && strcmp(key + n - 7, "_config") == 0;
}

enum { MOST_DEPTH = 8 }; /* of what is looked at */

static void forget(json_t *model, int depth)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_del(model, "quantization_config");
    json_object_foreach_safe(model, next, key, value)
    {
        if (json_is_object(value) && is_part(key) && depth + 1 < MOST_DEPTH) {
            forget(value, depth + 1);
        }
    }
}

static void set_config(const char *text, size_t size, const char *value)
{
    ferry_error error = {""};
    char *changed = NULL;
    size_t length = 0;
    /* A key that is there twice, or written with escapes, is none that a package writes. */
    json_t *before = memchr(text, '\\', size) != NULL
                         ? NULL
                         : json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(before)) {
        json_decref(before);
        return;
    }
    promise(fy_config_set_quantization(text, size, value, &changed, &length, &error) == FERRY_OK);
    json_t *after = json_loadb(changed, length, JSON_REJECT_DUPLICATES, NULL);
    forget(before, 0);
    if (value != NULL) {
        json_object_set_new(before, "quantization_config", json_loads(value, 0, NULL));
    }
    promise(after != NULL && json_equal(before, after));
    json_decref(before);
    json_decref(after);
    fy_free(changed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char line[512];
    const char *text = size == 0 ? "" : (const char *)data;
    const char *newline = size == 0 ? NULL : memchr(text, '\n', size);
    size_t length = newline == NULL ? size : (size_t)(newline - text);
    if (length < sizeof line) {
        memcpy(line, text, length);
        line[length] = '\0';
        read_choice(line, false);
        read_choice(line, true);
    }
    if (newline != NULL) {
        set_config(newline + 1, size - length - 1, NULL);
        set_config(newline + 1, size - length - 1, "{\"quant_method\":\"fp8\"}");
    }
    return 0;
}
