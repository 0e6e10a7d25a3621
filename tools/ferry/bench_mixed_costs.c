/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry.costs/1: what parts of a call of the mixed collectives cost. */
#include "bench_mixed_predict.h"

#include "json_text.h"
#include "output.h"
#include "plan.h"
#include "steps.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Microseconds, and rates in 10^9 bytes per second, of which a rate left out costs nothing. */
static const struct cost_key {
    const char *key;
    size_t offset; /* of its field */
    bool is_rate;
} keys[] = {{"call_us", offsetof(mixed_costs, call), false},
            {"wait_us", offsetof(mixed_costs, wait), false},
            {"turn_us", offsetof(mixed_costs, turn), false},
            {"between_wait_us", offsetof(mixed_costs, between_wait), false},
            {"step_us", offsetof(mixed_costs, step), false},
            {"write_gbytes_per_s", offsetof(mixed_costs, write), true},
            {"read_gbytes_per_s", offsetof(mixed_costs, read), true},
            {"between_gbytes_per_s", offsetof(mixed_costs, between), true}};
enum { N_KEYS = sizeof keys / sizeof keys[0], MOST_FILE_BYTES = 1 << 20 };
static const char *const other_keys[] = {"format",  "name",     "comment",          "processors",
                                         "tensors", "overlaps", "multicast_objects"};

static double *field_of(mixed_costs *costs, const struct cost_key *key)
{
    return (double *)(void *)((char *)costs + key->offset);
}

static ferry_status check_keys(const json_t *json, const char *path, ferry_error *error)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)json, key, value) {
        bool known = false;
        for (size_t i = 0; i < N_KEYS; i++) {
            known = known || strcmp(key, keys[i].key) == 0;
        }
        for (size_t i = 0; i < sizeof other_keys / sizeof other_keys[0]; i++) {
            known = known || strcmp(key, other_keys[i]) == 0;
        }
        if (!known) {
            return mixed_fail(error, FERRY_ERR_INVALID_INPUT,
                              "%.300s: unknown key \"%.60s\"; it may have format, name, comment, "
                              "call_us, wait_us, turn_us, between_wait_us, step_us, "
                              "write_gbytes_per_s, read_gbytes_per_s, between_gbytes_per_s, "
                              "tensors, overlaps, multicast_objects, processors",
                              path, key);
        }
    }
    return FERRY_OK;
}

/* From 1e-6 to 1e9, which all clocks and memories are between; a time may be 0 as well. */
static ferry_status read_number(const json_t *value, const char *key, bool is_rate, double *out,
                                const char *path, ferry_error *error)
{
    double number = json_is_number(value) ? json_number_value(value) : -1;
    bool fits = number >= 1e-6 && number <= 1e9;
    if (!fits && (is_rate || !json_is_number(value) || number < 0 || number > 0)) {
        return mixed_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%.300s: \"%s\" must be a number from 1e-6 to 1e9%s", path, key,
                          is_rate ? "" : ", or 0");
    }
    *out = is_rate ? 1e-9 / number : 1e-6 * number;
    return FERRY_OK;
}

static ferry_status read_flag(const json_t *json, const char *key, bool *out, const char *path,
                              ferry_error *error)
{
    const json_t *value = json_object_get(json, key);
    *out = json_is_true(value);
    return value == NULL || json_is_boolean(value)
               ? FERRY_OK
               : mixed_fail(error, FERRY_ERR_INVALID_INPUT, "%.300s: \"%s\" must be true or false",
                            path, key);
}

/* A rate, or [[bytes, rate], ...] by ascending bytes; a rate may be null, which costs nothing. */
static ferry_status read_tensors(const json_t *value, mixed_costs *costs, const char *path,
                                 ferry_error *error)
{
    if (json_is_number(value)) {
        costs->n_knots = 1;
        costs->tensors[0].bytes = 1;
        return read_number(value, "tensors", true, &costs->tensors[0].each, path, error);
    }
    size_t n = json_array_size(value);
    double last = 0;
    for (size_t i = 0; i < n && n <= MIXED_MOST_KNOTS; i++) {
        const json_t *pair = json_array_get(value, i), *bytes = json_array_get(pair, 0);
        const json_t *rate = json_array_get(pair, 1);
        mixed_knot *knot = &costs->tensors[i];
        char key[32];
        snprintf(key, sizeof key, "tensors[%zu][1]", i);
        knot->bytes = json_is_number(bytes) ? json_number_value(bytes) : 0;
        if (json_array_size(pair) != 2 || knot->bytes < 1 || knot->bytes <= last) {
            n = 0;
            break;
        }
        last = knot->bytes;
        if (!json_is_null(rate)) {
            FY_TRY(read_number(rate, key, true, &knot->each, path, error));
        }
    }
    if (n == 0 || n > MIXED_MOST_KNOTS) {
        return mixed_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%.300s: \"tensors\" must be a rate, or a list of 1 to %d pairs [bytes, "
                          "rate] by ascending bytes",
                          path, MIXED_MOST_KNOTS);
    }
    costs->n_knots = n;
    return FERRY_OK;
}

/* What tables call it: a line of its own, so nothing that would end it. */
static ferry_status read_name(const json_t *json, const char *path, mixed_costs *costs,
                              ferry_error *error)
{
    const json_t *value = json_object_get(json, "name");
    const char *slash = strrchr(path, '/');
    const char *name =
        value == NULL ? (slash == NULL ? path : slash + 1) : json_string_value(value);
    bool fits = name != NULL && (value == NULL || strlen(name) < sizeof costs->name);
    for (const char *at = name; fits && *at != '\0'; at++) {
        fits = (unsigned char)*at >= ' ' && *at != 0x7f;
    }
    if (!fits) {
        return mixed_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%.300s: \"name\" must be a text of less than %zu bytes without control "
                          "characters",
                          path, sizeof costs->name);
    }
    snprintf(costs->name, sizeof costs->name, "%.60s", name);
    return FERRY_OK;
}

/* Of nothing but zeros every call would take no time at all. */
static ferry_status check_any(mixed_costs *costs, const char *path, ferry_error *error)
{
    bool any = costs->n_knots > 0;
    for (size_t i = 0; i < N_KEYS; i++) {
        any = any || *field_of(costs, &keys[i]) > 0;
    }
    return any ? FERRY_OK
               : mixed_fail(error, FERRY_ERR_INVALID_INPUT,
                            "%.300s: there is no cost in it: no call would take any time", path);
}

static ferry_status read_costs(const json_t *json, const char *path, mixed_costs *costs,
                               ferry_error *error)
{
    const char *format = json_string_value(json_object_get(json, "format"));
    const json_t *processors = json_object_get(json, "processors");
    if (format == NULL || strcmp(format, "ferry.costs/1") != 0) {
        return mixed_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%.300s: \"format\" must be \"ferry.costs/1\"", path);
    }
    FY_TRY(check_keys(json, path, error));
    json_int_t n = json_integer_value(processors);
    if (processors != NULL && (!json_is_integer(processors) || n < 1 || n > 1 << 20)) {
        return mixed_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%.300s: \"processors\" must be a whole number from 1 to %d", path,
                          1 << 20);
    }
    FY_TRY(read_flag(json, "overlaps", &costs->overlaps, path, error));
    FY_TRY(read_flag(json, "multicast_objects", &costs->multicast_objects, path, error));
    FY_TRY(read_name(json, path, costs, error));
    costs->processors = (uint32_t)n;
    for (size_t i = 0; i < N_KEYS; i++) {
        const json_t *value = json_object_get(json, keys[i].key);
        if (value != NULL) {
            FY_TRY(read_number(value, keys[i].key, keys[i].is_rate, field_of(costs, &keys[i]), path,
                               error));
        }
    }
    const json_t *tensors = json_object_get(json, "tensors");
    FY_TRY(tensors == NULL ? FERRY_OK : read_tensors(tensors, costs, path, error));
    return check_any(costs, path, error);
}

ferry_status mixed_costs_load(const char *path, mixed_costs *costs_out, ferry_error *error)
{
    json_error_t reason;
    mixed_costs costs = {.n_knots = 0};
    struct stat about;
    if (stat(path, &about) == 0 && about.st_size > MOST_FILE_BYTES) {
        return mixed_fail(error, FERRY_ERR_LIMIT, "%.300s has more than %d bytes", path,
                          (int)MOST_FILE_BYTES);
    }
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &reason);
    if (json == NULL && reason.line < 0) { /* it says which file this is */
        return mixed_fail(error, FERRY_ERR_IO, "%.300s", reason.text);
    }
    if (json == NULL) {
        return mixed_fail(error, FERRY_ERR_INVALID_INPUT, "%.300s: line %d column %d: %.200s", path,
                          reason.line, reason.column, reason.text);
    }
    ferry_status status = read_costs(json, path, &costs, error);
    json_decref(json);
    if (status == FERRY_OK) {
        *costs_out = costs;
    }
    return status;
}

/* ---- writing ---- */

static void write_costs(const mixed_costs *costs, FILE *file)
{
    fprintf(file, "{\"format\":\"ferry.costs/1\",\"name\":");
    write_json_text(file, costs->name);
    fprintf(file, ",\"overlaps\":%s", costs->overlaps ? "true" : "false");
    if (costs->multicast_objects) {
        fprintf(file, ",\"multicast_objects\":true");
    }
    if (costs->processors > 0) {
        fprintf(file, ",\"processors\":%u", costs->processors);
    }
    for (size_t i = 0; i < N_KEYS; i++) {
        const double *value = (const double *)(const void *)((const char *)costs + keys[i].offset);
        if (!keys[i].is_rate) {
            fprintf(file, ",\"%s\":%.9g", keys[i].key, *value >= 1e-12 ? *value * 1e6 : 0);
        } else if (*value >= 1e-18) { /* what costs nothing has no rate */
            fprintf(file, ",\"%s\":%.9g", keys[i].key, 1e-9 / *value);
        }
    }
    fprintf(file, ",\"tensors\":[");
    for (size_t i = 0; i < costs->n_knots; i++) {
        double each = costs->tensors[i].each;
        fprintf(file, "%s[%.0f,", i > 0 ? "," : "", costs->tensors[i].bytes);
        if (each >= 1e-18) {
            fprintf(file, "%.9g]", 1e-9 / each);
        } else {
            fprintf(file, "null]");
        }
    }
    fprintf(file, "]}");
}

void mixed_costs_print_json(const mixed_costs *costs)
{
    write_costs(costs, stdout);
}

/* What costs nothing is left out. */
void mixed_costs_print(const mixed_costs *costs, const char *before)
{
    printf("%s%s", before, costs->name);
    for (size_t i = 0; i < N_KEYS; i++) {
        const double *value = (const double *)(const void *)((const char *)costs + keys[i].offset);
        if (*value >= (keys[i].is_rate ? 1e-18 : 1e-12)) {
            printf(", %s %.4g", keys[i].key, keys[i].is_rate ? 1e-9 / *value : *value * 1e6);
        }
    }
    for (size_t i = 0; i < costs->n_knots; i++) {
        char of_size[32] = "";
        if (costs->n_knots > 1) {
            snprintf(of_size, sizeof of_size, " at %.0f B", costs->tensors[i].bytes);
        }
        if (costs->tensors[i].each >= 1e-18) {
            printf(", tensors_gbytes_per_s %.4g%s", 1e-9 / costs->tensors[i].each, of_size);
        }
    }
    printf("%s\n", costs->multicast_objects ? ", multicast_objects" : "");
}

static ferry_status fill_costs(const void *context, FILE *file, ferry_error *error)
{
    (void)error;
    write_costs(context, file);
    fputc('\n', file);
    return FERRY_OK;
}

ferry_status mixed_costs_save(const mixed_costs *costs, const char *path, ferry_error *error)
{
    return replace_file(path, fill_costs, costs, error);
}
