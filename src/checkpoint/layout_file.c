/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/layout_file.h"

#include "base/alloc.h"
#include "base/json.h"
#include "host/file.h"

#include <string.h>

static const uint64_t MOST_LAYOUT_BYTES = 1u << 30;

#define LAYOUT_FORMAT "ferry.layout/1"

static const char *const LAYOUT_KEYS[] = {"format", "mesh",  "first_rank", "ranks", "stages",
                                          "rules",  "boxes", "tensors",    NULL};

/* ---- reading ---- */

static ferry_status check_format(const json_t *root, const fy_json_place *place, ferry_error *error)
{
    const json_t *format = json_object_get(root, "format");
    const char *text = NULL;
    fy_json_place at = {.parent = place, .key = "format"};
    if (format == NULL) {
        return FERRY_OK;
    }
    FY_TRY(fy_json_get_string(format, &at, &text, error));
    if (strcmp(text, LAYOUT_FORMAT) != 0) {
        return fy_json_fail(&at, error, "must be \"%s\", not \"%s\"", LAYOUT_FORMAT, text);
    }
    return FERRY_OK;
}

static ferry_status check_members(const json_t *root, const char *name, ferry_error *error)
{
    fy_json_place place = {.key = name};
    fy_json_place at = {.parent = &place, .key = "tensors"};
    ferry_status status = fy_json_expect_object(root, &place, LAYOUT_KEYS, error);
    FY_THEN(status, check_format(root, &place, error));
    const json_t *tensors = json_object_get(root, "tensors");
    if (status == FERRY_OK && tensors != NULL) {
        status = fy_json_expect_array(tensors, &at, error);
    }
    return status;
}

ferry_status fy_layout_parse(const char *text, size_t length, const char *name, json_t **side_out,
                             json_t **tensors_out, ferry_error *error)
{
    json_t *root = NULL;
    ferry_status status = fy_json_parse(text, length, name, &root, error);
    FY_THEN(status, check_members(root, name, error));
    if (status == FERRY_OK) {
        *tensors_out = json_incref(json_object_get(root, "tensors"));
        json_object_del(root, "tensors"); /* where there are none, it fails, and that is well */
        json_object_del(root, "format");
        *side_out = root;
        root = NULL;
    }
    json_decref(root);
    return status;
}

ferry_status fy_layout_load(const char *path, json_t **side_out, json_t **tensors_out,
                            ferry_error *error)
{
    char *text = NULL;
    size_t length = 0;
    ferry_status status = fy_file_read(path, MOST_LAYOUT_BYTES, &text, &length, error);
    FY_THEN(status, fy_layout_parse(text, length, path, side_out, tensors_out, error));
    fy_free(text);
    return status;
}

/* ---- writing ---- */

static int write_on(const char *bytes, size_t n_bytes, void *context)
{
    fy_writer *writer = context;
    fy_write_bytes(writer, bytes, n_bytes);
    return writer->failed ? -1 : 0;
}

/* On one line. What jansson cannot write, for want of memory, fails the output. */
static void write_value(fy_writer *writer, const json_t *json)
{
    if (json_dump_callback(json, write_on, writer, JSON_ENCODE_ANY) != 0) {
        writer->failed = true;
    }
}

static void write_lines(fy_writer *writer, const json_t *array)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        fy_write_text(writer, i > 0 ? ",\n    " : "\n    ");
        write_value(writer, json_array_get(array, i));
    }
    fy_write_text(writer, json_array_size(array) > 0 ? "\n  ]" : "]");
}

/* A member of the side, if it is there; one line for each of its elements where is_list. */
static void write_member(fy_writer *writer, const json_t *side, const char *key, bool is_list)
{
    const json_t *value = json_object_get(side, key);
    if (value == NULL) {
        return;
    }
    fy_write_text(writer, ",\n  \"");
    fy_write_text(writer, key);
    fy_write_text(writer, "\": ");
    if (is_list && json_is_array(value)) {
        fy_write_text(writer, "[");
        write_lines(writer, value);
    } else {
        write_value(writer, value);
    }
}

void fy_layout_write_begin(fy_writer *writer, const json_t *side)
{
    fy_write_text(writer, "{\n  \"format\": \"" LAYOUT_FORMAT "\"");
    write_member(writer, side, "mesh", false);
    write_member(writer, side, "first_rank", false);
    write_member(writer, side, "ranks", false);
    write_member(writer, side, "stages", true);
    write_member(writer, side, "rules", true);
    fy_write_text(writer, ",\n  \"tensors\": [");
}

void fy_layout_write_tensor(fy_writer *writer, size_t number, const char *name, const char *dtype,
                            const uint64_t *shape, uint32_t n_dims)
{
    fy_write_text(writer, number > 0 ? ",\n    {\"name\": " : "\n    {\"name\": ");
    fy_write_string(writer, name);
    fy_write_text(writer, ", \"shape\": [");
    for (uint32_t d = 0; d < n_dims; d++) {
        fy_write_text(writer, d > 0 ? ", " : "");
        fy_write_u64(writer, shape[d]);
    }
    fy_write_text(writer, "], \"dtype\": ");
    fy_write_string(writer, dtype);
    fy_write_text(writer, "}");
}

void fy_layout_write_end(fy_writer *writer)
{
    fy_write_text(writer, "\n  ]\n}\n");
}
