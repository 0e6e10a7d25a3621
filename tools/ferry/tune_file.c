/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Reading a ferry.tuning/1 document: docs/formats.md. */
#include "tune.h"

#include <jansson.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1 << 20, MOST_TIMINGS = 1 << 16 };

/* The first failure counts; what is asked after it is zero. */
typedef struct reader {
    const char *path;
    char place[64]; /* such as "timings[3]." */
    ferry_status status;
    ferry_error *error;
} reader;

static void refuse(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void refuse(reader *r, const char *format, ...)
{
    char text[256];
    va_list arguments;
    if (r->status != FERRY_OK) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    r->status = mixed_fail(r->error, FERRY_ERR_INVALID_INPUT, "%s: %s%s", r->path, r->place, text);
}

/* keys end with NULL. */
static void expect_keys(reader *r, const json_t *object, const char *const *keys)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) {
        refuse(r, "an object is expected");
        return;
    }
    json_object_foreach ((json_t *)(uintptr_t)object, key, value) {
        const char *const *known = keys;
        while (*known != NULL && strcmp(*known, key) != 0) {
            known++;
        }
        if (*known == NULL) {
            refuse(r, "\"%s\" is not a key of the format ferry.tuning/1", key);
        }
    }
}

static const json_t *member(reader *r, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL) {
        refuse(r, "%s is missing", key);
    }
    return value;
}

static const char *text_of(reader *r, const json_t *object, const char *key)
{
    const json_t *value = member(r, object, key);
    if (value != NULL && !json_is_string(value)) {
        refuse(r, "%s is not a string", key);
    }
    return json_is_string(value) ? json_string_value(value) : "";
}

static uint64_t number_of(reader *r, const json_t *object, const char *key, uint64_t least,
                          uint64_t most)
{
    const json_t *value = member(r, object, key);
    json_int_t number = json_integer_value(value);
    if (value != NULL && (!json_is_integer(value) || number < 0 || (uint64_t)number < least ||
                          (uint64_t)number > most)) {
        refuse(r, "%s is not a whole number from %llu to %llu", key, (unsigned long long)least,
               (unsigned long long)most);
        return least;
    }
    return value == NULL ? least : (uint64_t)number;
}

static bool flag_of(reader *r, const json_t *object, const char *key)
{
    const json_t *value = member(r, object, key);
    if (value != NULL && !json_is_boolean(value)) {
        refuse(r, "%s is neither true nor false", key);
    }
    return json_is_true(value);
}

/* A name as the library writes it. */
static uint32_t name_of(reader *r, const json_t *object, const char *key,
                        ferry_status (*parse)(const char *, uint32_t *, ferry_error *),
                        const char *(*name)(uint32_t))
{
    const char *text = text_of(r, object, key);
    uint32_t number = 0;
    ferry_error why;
    if (r->status == FERRY_OK && parse(text, &number, &why) != FERRY_OK) {
        refuse(r, "%s: %s", key, why.message);
    } else if (r->status == FERRY_OK && strcmp(text, name(number)) != 0) {
        refuse(r, "%s is \"%s\", which is written \"%s\"", key, text, name(number));
    }
    return number;
}

/* ---- the parts ---- */

static void read_topology(reader *r, const json_t *json, ferry_mixed_comm_info *info)
{
    static const char *const keys[] = {"local_tp", "local_dp", "inter_tp", "inter_dp", NULL};
    snprintf(r->place, sizeof r->place, "topology.");
    expect_keys(r, json, keys);
    info->local_tp_size = (uint32_t)number_of(r, json, "local_tp", 1, MOST_RANKS);
    info->local_dp_size = (uint32_t)number_of(r, json, "local_dp", 1, MOST_RANKS);
    info->inter_tp_size = (uint32_t)number_of(r, json, "inter_tp", 1, MOST_RANKS);
    info->inter_dp_size = (uint32_t)number_of(r, json, "inter_dp", 1, MOST_RANKS);
    double ranks = (double)info->local_tp_size * info->local_dp_size *
                   ((double)info->inter_tp_size * info->inter_dp_size);
    if (ranks > MOST_RANKS) {
        refuse(r, "the sizes make %.0f ranks, more than %d", ranks, MOST_RANKS);
        return;
    }
    info->local_size = info->local_tp_size * info->local_dp_size;
    info->inter_size = info->inter_tp_size * info->inter_dp_size;
    info->world_size = info->local_size * info->inter_size;
    info->tp_size = info->local_tp_size * info->inter_tp_size;
    info->dp_size = info->local_dp_size * info->inter_dp_size;
}

static void read_engines(reader *r, const json_t *json, tune_table *table)
{
    static const char *const keys[] = {"inside", "between", NULL};
    snprintf(r->place, sizeof r->place, "engines.");
    expect_keys(r, json, keys);
    snprintf(table->info.inside_engine, sizeof table->info.inside_engine, "%s",
             text_of(r, json, "inside"));
    snprintf(table->info.between_engine, sizeof table->info.between_engine, "%s",
             text_of(r, json, "between"));
}

static void read_dtype(reader *r, const json_t *json, ferry_mixed_comm_info *info)
{
    const char *text = text_of(r, json, "dtype");
    ferry_dtype dtype = {0};
    if (r->status == FERRY_OK &&
        (ferry_dtype_parse(text, &dtype, NULL) != FERRY_OK ||
         (dtype.kind != FERRY_F16 && dtype.kind != FERRY_BF16 && dtype.kind != FERRY_F32))) {
        refuse(r, "dtype is f16, bf16 or f32, not \"%s\"", text);
    }
    info->dtype = dtype.kind;
}

static ferry_mixed_timing read_timing(reader *r, const json_t *json, size_t index)
{
    static const char *const keys[] = {"op",      "bytes",  "mode", "block_size",
                                       "seconds", "chosen", NULL};
    ferry_mixed_timing t = FERRY_MIXED_TIMING_INIT;
    snprintf(r->place, sizeof r->place, "timings[%zu].", index);
    expect_keys(r, json, keys);
    t.op = name_of(r, json, "op", ferry_mixed_op_parse, ferry_mixed_op_name);
    t.mode = name_of(r, json, "mode", ferry_mixed_mode_parse, ferry_mixed_mode_name);
    t.bytes = number_of(r, json, "bytes", 1, INT64_MAX);
    t.block_lines = (uint32_t)number_of(r, json, "block_size", 0, UINT32_MAX);
    t.chosen = flag_of(r, json, "chosen");
    const json_t *seconds = member(r, json, "seconds");
    t.seconds = json_number_value(seconds);
    if (seconds != NULL && (!json_is_number(seconds) || !(t.seconds >= 0) || isinf(t.seconds))) {
        refuse(r, "seconds is not a number from 0 on");
    }
    if (t.mode == FERRY_MIXED_MODE_DEFAULT || t.mode == FERRY_MIXED_AUTOTUNE) {
        refuse(r, "mode %s is none that is measured", ferry_mixed_mode_name(t.mode));
    }
    if (t.chosen && !(t.seconds > 0)) {
        refuse(r, "it is chosen and has no time");
    }
    return t;
}

static bool is_before(const ferry_mixed_timing *a, const ferry_mixed_timing *b)
{
    return a->op != b->op         ? a->op < b->op
           : a->bytes != b->bytes ? a->bytes < b->bytes
                                  : a->mode < b->mode;
}

/* In order, and one of each operation and size is chosen. */
static void check_timings(reader *r, const tune_table *table)
{
    size_t n_chosen = 0;
    for (size_t i = 0; i < table->n; i++) {
        const ferry_mixed_timing *t = &table->timings[i], *next = t + 1;
        bool is_last = i + 1 == table->n;
        snprintf(r->place, sizeof r->place, "timings[%zu]: ", i);
        if (!is_last && !is_before(t, next)) {
            refuse(r, "the next one does not come behind it by op, bytes and mode");
        }
        n_chosen += t->chosen;
        if (is_last || next->op != t->op || next->bytes != t->bytes) {
            if (n_chosen != 1) {
                refuse(r, "%zu modes are chosen for %s at %llu bytes, and not one", n_chosen,
                       ferry_mixed_op_name(t->op), (unsigned long long)t->bytes);
            }
            n_chosen = 0;
        }
    }
}

static void read_timings(reader *r, const json_t *json, tune_table *table)
{
    size_t n = json_array_size(json);
    if (!json_is_array(json) || n > MOST_TIMINGS) {
        refuse(r, "timings is not a list of at most %d", MOST_TIMINGS);
        return;
    }
    table->timings = calloc(n > 0 ? n : 1, sizeof *table->timings);
    if (table->timings == NULL) {
        r->status = mixed_fail(r->error, FERRY_ERR_NO_MEMORY, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        table->timings[i] = read_timing(r, json_array_get(json, i), i);
    }
    table->n = n;
    if (r->status == FERRY_OK) {
        check_timings(r, table);
    }
}

static void read_document(reader *r, const json_t *json, tune_table *table)
{
    static const char *const keys[] = {"format",  "topology",  "dtype",   "deterministic",
                                       "engines", "grid_size", "timings", NULL};
    expect_keys(r, json, keys);
    const char *format = text_of(r, json, "format");
    if (strcmp(format, "ferry.tuning/1") != 0) {
        refuse(r, "format is \"%s\", not \"ferry.tuning/1\"", format);
    }
    table->info.deterministic = flag_of(r, json, "deterministic");
    table->info.grid_size = (uint32_t)number_of(r, json, "grid_size", 1, UINT32_MAX);
    read_dtype(r, json, &table->info);
    const json_t *timings = member(r, json, "timings");
    read_topology(r, member(r, json, "topology"), &table->info);
    snprintf(r->place, sizeof r->place, "%s", "");
    read_engines(r, member(r, json, "engines"), table);
    snprintf(r->place, sizeof r->place, "%s", "");
    if (r->status == FERRY_OK) {
        read_timings(r, timings, table);
    }
}

ferry_status tune_read(const char *path, tune_table *table_out, ferry_error *error)
{
    json_error_t why;
    tune_table table = {.info = FERRY_MIXED_COMM_INFO_INIT};
    reader r = {.path = path, .error = error};
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (json == NULL) {
        return why.line < 0 ? mixed_fail(error, FERRY_ERR_INVALID_INPUT, "%s", why.text)
                            : mixed_fail(error, FERRY_ERR_INVALID_INPUT, "%s:%d: %s", path,
                                         why.line, why.text);
    }
    read_document(&r, json, &table);
    json_decref(json);
    if (r.status != FERRY_OK) {
        tune_table_free(&table);
        return r.status;
    }
    table.info.multicast = true; /* a file does not say, and nothing is remarked */
    *table_out = table;
    return FERRY_OK;
}
