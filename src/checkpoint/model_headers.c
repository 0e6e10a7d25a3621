/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/model_headers.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sort.h"
#include "checkpoint/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const uint64_t MOST_INDEX_BYTES = 1u << 30;

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static char *join_path(const char *folder, const char *file)
{
    size_t bytes = strlen(folder) + strlen(file) + 2;
    char  *path  = fy_alloc(bytes, 1);
    if (path != NULL) {
        snprintf(path, bytes, "%s/%s", folder, file);
    }
    return path;
}

/* NULL if memory ran out anywhere: a shape must not lose a dimension. */
static json_t *describe(const fy_st_tensor *tensor)
{
    char    dtype[FERRY_DTYPE_TEXT_BYTES];
    json_t *shape = json_array();
    bool    whole = shape != NULL;
    ferry_dtype_format(tensor->dtype, dtype);
    for (uint32_t d = 0; whole && d < tensor->n_dims; d++) {
        whole = json_array_append_new(shape, json_integer((json_int_t)tensor->shape[d])) == 0;
    }
    if (!whole) {
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:s}", "name", tensor->name, "shape", shape, "dtype", dtype);
}

/* Appends a file's tensors. With a weight map, the file and the map must agree on what it holds. */
static ferry_status append_file(const char *path, const char *file, const json_t *weight_map,
                                json_t *tensors, size_t *n_inout, ferry_error *error)
{
    fy_st_header header;
    ferry_status status = fy_st_read(path, &header, error);
    if (status != FERRY_OK) {
        return status;
    }
    for (size_t i = 0; i < header.n_tensors && status == FERRY_OK; i++) {
        const char *name = header.tensors[i].name;
        const char *part = json_string_value(json_object_get(weight_map, name));
        if (weight_map != NULL && (part == NULL || strcmp(part, file) != 0)) {
            status = fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: holds \"%s\", which the index %s",
                             path, name, part == NULL ? "does not name" : "places in another part");
        } else if (json_array_append_new(tensors, describe(&header.tensors[i])) != 0) {
            status = fy_fail_no_memory(error, "the tensors of a model");
        }
    }
    *n_inout += header.n_tensors;
    fy_st_cleanup(&header);
    return status;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct parts that a weight map names, sorted. They are borrowed from the map. */
static ferry_status list_parts(const json_t *weight_map, const fy_json_place *place,
                               const char ***parts_out, size_t *n_out, ferry_error *error)
{
    const char  *name;
    json_t      *value;
    size_t       n      = 0;
    const char **parts  = fy_alloc(json_object_size(weight_map), sizeof *parts);
    ferry_status status = FERRY_OK;
    if (parts == NULL) {
        return fy_fail_no_memory(error, "the parts of a model");
    }
    json_object_foreach ((json_t *)weight_map, name, value) {
        fy_json_place at = {.parent = place, .key = name};
        status           = fy_json_get_string(value, &at, &parts[n], error);
        if (status == FERRY_OK && (strchr(parts[n], '/') != NULL || parts[n][0] == '\0')) {
            status =
                fy_json_fail(&at, error, "must name a file beside the index, not \"%s\"", parts[n]);
        }
        if (status != FERRY_OK) {
            fy_free(parts);
            return status;
        }
        n++;
    }
    fy_sort(parts, n, sizeof *parts, compare_texts);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || strcmp(parts[kept - 1], parts[i]) != 0) {
            parts[kept++] = parts[i];
        }
    }
    *parts_out = parts;
    *n_out     = kept;
    return FERRY_OK;
}

/* The parts hold fewer tensors than the map names: says which is the first that is missing. */
static ferry_status fail_missing(const json_t *weight_map, const json_t *tensors,
                                 const fy_json_place *place, ferry_error *error)
{
    const char *name;
    json_t     *value;
    json_t     *held = json_object();
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *tensor = json_array_get(tensors, i);
        json_object_set_new(held, json_string_value(json_object_get(tensor, "name")), json_true());
    }
    ferry_status status = FERRY_OK;
    json_object_foreach ((json_t *)weight_map, name, value) {
        if (json_object_get(held, name) == NULL) {
            status = fy_json_fail(place, error, "places \"%s\" in %s, which does not hold it", name,
                                  json_string_value(value));
            break;
        }
    }
    json_decref(held);
    return status;
}

static ferry_status append_parts(const char *folder, const json_t *weight_map,
                                 const fy_json_place *place, json_t *tensors, ferry_error *error)
{
    const char **parts   = NULL;
    size_t       n_parts = 0, n_tensors = 0;
    ferry_status status = list_parts(weight_map, place, &parts, &n_parts, error);
    for (size_t i = 0; i < n_parts && status == FERRY_OK; i++) {
        char *path = join_path(folder, parts[i]);
        status     = path == NULL ? fy_fail_no_memory(error, "a file name")
                                  : append_file(path, parts[i], weight_map, tensors, &n_tensors, error);
        fy_free(path);
    }
    if (status == FERRY_OK && n_tensors != json_object_size(weight_map)) {
        status = fail_missing(weight_map, tensors, place, error);
    }
    fy_free(parts);
    return status;
}

static ferry_status read_index(const char *folder, const char *path, json_t *tensors,
                               ferry_error *error)
{
    char         *text   = NULL;
    json_t       *root   = NULL;
    size_t        length = 0;
    const json_t *map    = NULL;
    fy_json_place place  = {.key = path};
    fy_json_place map_at = {.parent = &place, .key = "weight_map"};
    ferry_status  status = fy_file_read(path, MOST_INDEX_BYTES, &text, &length, error);
    if (status == FERRY_OK) {
        status = fy_json_parse(text, length, path, &root, error);
    }
    if (status == FERRY_OK && !json_is_object(root)) {
        status = fy_json_fail(&place, error, "must be an object");
    }
    if (status == FERRY_OK) {
        status = fy_json_member(root, &place, "weight_map", &map, error);
    }
    if (status == FERRY_OK && !json_is_object(map)) {
        status = fy_json_fail(&map_at, error, "must be an object from tensors to files");
    }
    if (status == FERRY_OK) {
        status = append_parts(folder, map, &map_at, tensors, error);
    }
    json_decref(root);
    fy_free(text);
    return status;
}

static int is_safetensors(const struct dirent *entry)
{
    return ends_with(entry->d_name, ".safetensors");
}

static ferry_status read_folder(const char *path, json_t *tensors, ferry_error *error)
{
    struct stat  about;
    char        *index  = join_path(path, "model.safetensors.index.json");
    ferry_status status = FERRY_OK;
    if (index == NULL) {
        return fy_fail_no_memory(error, "a file name");
    }
    if (stat(index, &about) == 0) {
        status = read_index(path, index, tensors, error);
        fy_free(index);
        return status;
    }
    fy_free(index);
    struct dirent **entries;
    int             n = scandir(path, &entries, is_safetensors, alphasort);
    if (n < 0) {
        return fy_fail(error, FERRY_ERR_IO, "%s: cannot be listed: %s", path, strerror(errno));
    }
    size_t n_tensors = 0;
    for (int i = 0; i < n; i++) {
        char *file = status == FERRY_OK ? join_path(path, entries[i]->d_name) : NULL;
        if (file != NULL) {
            status = append_file(file, entries[i]->d_name, NULL, tensors, &n_tensors, error);
        } else if (status == FERRY_OK) {
            status = fy_fail_no_memory(error, "a file name");
        }
        fy_free(file);
        free(entries[i]); /* scandir's own */
    }
    free(entries);
    if (status == FERRY_OK && n == 0) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: holds no safetensors file", path);
    }
    return status;
}

static ferry_status read_any(const char *path, json_t *tensors, ferry_error *error)
{
    struct stat about;
    size_t      n = 0;
    if (stat(path, &about) != 0) {
        return fy_fail(error, FERRY_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    if (S_ISDIR(about.st_mode)) {
        return read_folder(path, tensors, error);
    }
    if (!ends_with(path, ".json")) {
        return append_file(path, path, NULL, tensors, &n, error);
    }
    const char *slash  = strrchr(path, '/');
    char       *folder = fy_strdup(slash == NULL ? "." : path);
    if (folder == NULL) {
        return fy_fail_no_memory(error, "a file name");
    }
    if (slash != NULL) {
        folder[slash - path] = '\0';
    }
    ferry_status status = read_index(folder, path, tensors, error);
    fy_free(folder);
    return status;
}

ferry_status fy_model_read_tensors(const char *path, json_t **tensors_out, ferry_error *error)
{
    json_t *tensors = json_array();
    if (tensors == NULL) {
        return fy_fail_no_memory(error, "the tensors of a model");
    }
    ferry_status status = read_any(path, tensors, error);
    if (status == FERRY_OK) {
        *tensors_out = tensors;
    } else {
        json_decref(tensors);
    }
    return status;
}
