/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/config_text.h"

#include "base/alloc.h"
#include "base/json.h"

#include <string.h>

#define QUANTIZATION "quantization_config"

/* ---- reading a JSON text as it stands ---- */

enum { MOST_DEPTH = 8 };

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static size_t skip_space(const char *text, size_t length, size_t at)
{
    while (at < length && is_space(text[at])) {
        at++;
    }
    return at;
}

/* Behind the quotation mark that ends the string which begins at `at`. */
static size_t skip_string(const char *text, size_t length, size_t at)
{
    for (at++; at < length && text[at] != '"'; at++) {
        at += text[at] == '\\';
    }
    return at < length ? at + 1 : length;
}

/* Behind the value that begins at `at`. */
static size_t skip_value(const char *text, size_t length, size_t at)
{
    size_t depth = 0;
    do {
        char c = text[at];
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        at = c == '"' ? skip_string(text, length, at) : at + 1;
    } while (at < length && (depth > 0 || strchr(",}] \t\r\n", text[at]) == NULL));
    return at;
}

static bool has_key(const char *text, size_t begin, size_t end, const char *key)
{
    size_t n = strlen(key);
    return end - begin == n + 2 && memcmp(text + begin + 1, key, n) == 0;
}

static bool is_part(const char *text, size_t begin, size_t end)
{
    static const char tail[] = "_config\"";
    size_t n = sizeof tail - 1;
    return end - begin > n && memcmp(text + end - n, tail, n) == 0;
}

/* What stays of a text: it is written as it is read. */
typedef struct trimming {
    const char *text;
    size_t length;
    size_t copied; /* of the text, so far: what is behind it is still to be looked at */
    char *to;
    size_t used;
} trimming;

static void keep_until(trimming *t, size_t end)
{
    memcpy(t->to + t->used, t->text + t->copied, end - t->copied);
    t->used += end - t->copied;
    t->copied = end;
}

/* Leaves a member out, with the comma behind it, or before it where it is the last. */
static void leave_out(trimming *t, size_t begin, size_t end)
{
    keep_until(t, begin);
    t->copied = end;
    size_t next = skip_space(t->text, t->length, end);
    if (next < t->length && t->text[next] == ',') {
        t->copied = skip_space(t->text, t->length, next + 1);
        return;
    }
    while (t->used > 0 && is_space(t->to[t->used - 1])) {
        t->used--;
    }
    t->used -= t->used > 0 && t->to[t->used - 1] == ',';
}

/* Leaves every quantization_config out of the object that begins at `at`, and of parts of it. */
static void trim_object(trimming *t, size_t length, size_t at, size_t depth)
{
    const char *text = t->text;
    at = skip_space(text, length, at);
    if (at >= length || text[at] != '{' || depth == MOST_DEPTH) {
        return;
    }
    for (at = skip_space(text, length, at + 1); at < length && text[at] == '"';) {
        size_t key = at, key_end = skip_string(text, length, at);
        size_t value = skip_space(text, length, key_end);
        value = skip_space(text, length, value + 1); /* the colon */
        if (value >= length) {
            return;
        }
        size_t end = skip_value(text, length, value);
        if (has_key(text, key, key_end, QUANTIZATION)) {
            leave_out(t, key, end);
        } else if (is_part(text, key, key_end)) {
            trim_object(t, end, value, depth + 1);
        }
        at = skip_space(text, length, end);
        at = at < length && text[at] == ',' ? skip_space(text, length, at + 1) : length;
    }
}

static char *put(char *to, const char *text)
{
    size_t n = strlen(text);
    memcpy(to, text, n);
    return to + n;
}

/* Puts a member at the end of the object; the text has room. */
static size_t append_member(char *text, size_t length, const char *value)
{
    size_t brace = length;
    while (brace > 0 && text[brace - 1] != '}') {
        brace--;
    }
    brace -= brace > 0;
    size_t at = brace, tail = length - brace;
    while (at > 0 && is_space(text[at - 1])) {
        at--;
    }
    const char *comma = at == 0 || text[at - 1] == '{' ? "" : ",";
    size_t more = strlen(comma) + strlen("\n  \"" QUANTIZATION "\": ") + strlen(value) + 1;
    memmove(text + at + more, text + brace, tail);
    char *to = put(text + at, comma);
    to = put(to, "\n  \"" QUANTIZATION "\": ");
    to = put(to, value);
    (void)put(to, "\n");
    return at + more + tail;
}

ferry_status fy_config_set_quantization(const char *text, size_t length, const char *value,
                                        char **text_out, size_t *length_out, ferry_error *error)
{
    size_t more = value == NULL ? 0 : strlen(value) + sizeof QUANTIZATION + 16;
    char *changed = fy_alloc(length + more + 1, 1);
    FY_TRY(fy_check_memory(changed != NULL, "a config.json", error));
    trimming t = {.text = text, .length = length, .to = changed};
    trim_object(&t, length, 0, 0);
    keep_until(&t, length);
    length = t.used;
    if (value != NULL) {
        length = append_member(changed, length, value);
    }
    changed[length] = '\0';
    *text_out = changed;
    *length_out = length;
    return FERRY_OK;
}

/* ---- what is said ---- */

const json_t *fy_config_quantization(const json_t *config)
{
    const json_t *about = json_object_get(config, QUANTIZATION);
    return about != NULL ? about
                         : json_object_get(json_object_get(config, "text_config"), QUANTIZATION);
}

/* The bytes of X in X.weight, the weight of the module X; 0: the name is of none. */
static size_t module_bytes(const char *name)
{
    static const char tail[] = ".weight";
    size_t n = strlen(name), n_tail = sizeof tail - 1;
    return n > n_tail && strcmp(name + n - n_tail, tail) == 0 ? n - n_tail : 0;
}

static json_t *modules_left(const char *const *names, size_t n_names)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n_names && list != NULL; i++) {
        size_t n = module_bytes(names[i]);
        if (n == 0 || strstr(names[i], "embed") != NULL) {
            continue;
        }
        if (json_array_append_new(list, json_stringn(names[i], n)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* What is of no module is listed by its whole name. */
static bool add_module(json_t *list, const char *name)
{
    size_t n = module_bytes(name);
    return json_array_append_new(list, json_stringn(name, n == 0 ? strlen(name) : n)) == 0;
}

/* Adds them to a list of the object, if it has one. */
static bool add_modules(const json_t *about, const char *key, const char *const *names,
                        size_t n_names)
{
    json_t *list = json_object_get(about, key);
    for (size_t i = 0; json_is_array(list) && i < n_names; i++) {
        if (!add_module(list, names[i])) {
            return false;
        }
    }
    return true;
}

ferry_status fy_config_describe_rest(const json_t *about, const char *const *names, size_t n_names,
                                     char **value_out, ferry_error *error)
{
    /* Of Hugging Face, of vLLM, which then ignores the first, and of compressed-tensors. */
    static const char *const keys[] = {"modules_to_not_convert", "ignored_layers", "ignore"};
    enum { N_KEYS = sizeof keys / sizeof *keys };
    json_t *rest = json_deep_copy(about);
    bool done = rest != NULL, has_list = false;
    for (size_t k = 0; k < N_KEYS; k++) {
        has_list = has_list || json_is_array(json_object_get(rest, keys[k]));
    }
    if (done && !has_list) {
        done = json_object_set_new(rest, keys[0], json_array()) == 0;
    }
    for (size_t k = 0; k < N_KEYS && done; k++) {
        done = add_modules(rest, keys[k], names, n_names);
    }
    char *text = NULL;
    ferry_status status = fy_check_memory(done, "a quantization_config", error);
    FY_THEN(status, fy_json_dump(rest, &text, error));
    json_decref(rest);
    *value_out = text;
    return status;
}

static const char *method_of(const fy_block_format *format)
{
    return fy_format_has_tensor_scale(format) ? "nvfp4"
           : format->rule == FY_SCALE_FLOOR   ? "mxfp8"
                                              : "fp8";
}

static const char *code_word(const fy_block_format *format)
{
    return format->kind == FERRY_F4 ? "e2m1" : format->kind == FERRY_F8E5M2 ? "e5m2" : "e4m3";
}

ferry_status fy_config_describe(const fy_block_format *format, const char *const *names,
                                size_t n_names, char **value_out, ferry_error *error)
{
    json_t *about =
        json_pack("{s:s, s:s, s:s, s:[I, I]}", "quant_method", method_of(format), "fmt",
                  code_word(format), "activation_scheme", "dynamic", "weight_block_size",
                  (json_int_t)format->block[0], (json_int_t)format->block[1]);
    bool done = about != NULL;
    if (done && (format->rule != FY_SCALE_LARGEST)) {
        done = json_object_set_new(about, "scale_fmt", json_string("ue8m0")) == 0;
    }
    done = done &&
           json_object_set_new(about, "modules_to_not_convert", modules_left(names, n_names)) == 0;
    char *text = NULL;
    ferry_status status = fy_check_memory(done, "a quantization_config", error);
    FY_THEN(status, fy_json_dump(about, &text, error));
    json_decref(about);
    *value_out = text;
    return status;
}
