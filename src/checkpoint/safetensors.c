/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/safetensors.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sort.h"
#include "model/dtype.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8 };
/* What the safetensors package itself takes. */
static const uint64_t MOST_HEADER_BYTES = 100000000;

void fy_st_cleanup(fy_st_header *header)
{
    json_decref(header->json);
    fy_free(header->tensors);
    *header = (fy_st_header){0};
}

static ferry_status parse_shape(const json_t *json, const fy_json_place *place,
                                fy_st_tensor *tensor, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status == FERRY_OK && json_array_size(json) > FERRY_MAX_DIMS) {
        status = fy_json_fail(place, error, "has %zu dimensions, more than the limit of %d",
                              json_array_size(json), FERRY_MAX_DIMS);
    }
    if (status != FERRY_OK) {
        return status;
    }
    tensor->n_dims = (uint32_t)json_array_size(json);
    for (uint32_t d = 0; d < tensor->n_dims && status == FERRY_OK; d++) {
        fy_json_place at = {.parent = place, .index = d};
        status =
            fy_json_get_size(json_array_get(json, d), &at, 0, INT64_MAX, &tensor->shape[d], error);
    }
    return status;
}

static ferry_status parse_offsets(const json_t *json, const fy_json_place *place,
                                  uint64_t data_bytes, fy_st_tensor *tensor, ferry_error *error)
{
    if (!json_is_array(json) || json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must be a pair of offsets");
    }
    uint64_t    *offsets[2] = {&tensor->begin, &tensor->end};
    ferry_status status     = FERRY_OK;
    for (size_t i = 0; i < 2 && status == FERRY_OK; i++) {
        fy_json_place at = {.parent = place, .index = i};
        status = fy_json_get_size(json_array_get(json, i), &at, 0, INT64_MAX, offsets[i], error);
    }
    if (status == FERRY_OK && (tensor->begin > tensor->end || tensor->end > data_bytes)) {
        status = fy_json_fail(place, error, "[%llu, %llu] lie outside the %llu bytes of data",
                              (unsigned long long)tensor->begin, (unsigned long long)tensor->end,
                              (unsigned long long)data_bytes);
    }
    return status;
}

static ferry_status check_bytes(const fy_json_place *place, const fy_st_tensor *tensor,
                                ferry_error *error)
{
    uint64_t bits = tensor->dtype.element_bits;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        if (!fy_mul(bits, tensor->shape[d], &bits)) {
            return fy_json_fail(place, error, "has a shape that overflows 64 bits");
        }
    }
    if (bits % 8 != 0 || bits / 8 != tensor->end - tensor->begin) {
        return fy_json_fail(place, error, "needs %llu bytes for its shape and dtype, but has %llu",
                            (unsigned long long)(bits / 8),
                            (unsigned long long)(tensor->end - tensor->begin));
    }
    return FERRY_OK;
}

static ferry_status parse_tensor(const json_t *json, const fy_json_place *place,
                                 uint64_t data_bytes, fy_st_tensor *tensor, ferry_error *error)
{
    const json_t *member     = NULL;
    fy_json_place dtype_at   = {.parent = place, .key = "dtype"};
    fy_json_place shape_at   = {.parent = place, .key = "shape"};
    fy_json_place offsets_at = {.parent = place, .key = "data_offsets"};
    if (!json_is_object(json)) {
        return fy_json_fail(place, error, "must be an object");
    }
    ferry_status status = fy_json_member(json, place, "dtype", &member, error);
    if (status == FERRY_OK) {
        status = fy_json_get_string(member, &dtype_at, &tensor->dtype_text, error);
    }
    if (status == FERRY_OK && !fy_dtype_from_safetensors(tensor->dtype_text, &tensor->dtype)) {
        status =
            fy_json_fail(&dtype_at, error, "is \"%s\", which ferry cannot cut", tensor->dtype_text);
    }
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "shape", &member, error);
    }
    if (status == FERRY_OK) {
        status = parse_shape(member, &shape_at, tensor, error);
    }
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "data_offsets", &member, error);
    }
    if (status == FERRY_OK) {
        status = parse_offsets(member, &offsets_at, data_bytes, tensor, error);
    }
    return status == FERRY_OK ? check_bytes(place, tensor, error) : status;
}

static int compare_begins(const void *a, const void *b)
{
    const fy_st_tensor *x = *(const fy_st_tensor *const *)a, *y = *(const fy_st_tensor *const *)b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end); /* empty ones first */
}

/* The data must be covered without holes and without overlap, as the safetensors package demands.
 */
static ferry_status check_cover(const fy_st_header *header, const char *name, ferry_error *error)
{
    const fy_st_tensor **sorted = fy_alloc(header->n_tensors, sizeof *sorted);
    uint64_t             at     = 0;
    ferry_status         status = FERRY_OK;
    if (sorted == NULL) {
        return fy_fail_no_memory(error, "a safetensors header");
    }
    for (size_t i = 0; i < header->n_tensors; i++) {
        sorted[i] = &header->tensors[i];
    }
    fy_sort(sorted, header->n_tensors, sizeof *sorted, compare_begins);
    for (size_t i = 0; i < header->n_tensors && status == FERRY_OK; i++) {
        if (sorted[i]->begin != at) {
            status =
                fy_fail(error, FERRY_ERR_INVALID_INPUT,
                        "%s: \"%s\" begins at byte %llu of the data, but %s ends at %llu", name,
                        sorted[i]->name, (unsigned long long)sorted[i]->begin,
                        i == 0 ? "the header" : "the tensor before it", (unsigned long long)at);
        }
        at = sorted[i]->end;
    }
    if (status == FERRY_OK && at != header->data_bytes) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: the tensors end at byte %llu of the data, which has %llu bytes", name,
                         (unsigned long long)at, (unsigned long long)header->data_bytes);
    }
    fy_free(sorted);
    return status;
}

static ferry_status parse_tensors(fy_st_header *header, const char *name, ferry_error *error)
{
    fy_json_place root = {.key = name};
    const char   *key;
    json_t       *value;
    if (!json_is_object(header->json)) {
        return fy_json_fail(&root, error, "header must be an object");
    }
    header->tensors = fy_alloc_zeroed(json_object_size(header->json), sizeof *header->tensors);
    if (header->tensors == NULL) {
        return fy_fail_no_memory(error, "a safetensors header");
    }
    json_object_foreach (header->json, key, value) {
        fy_json_place at = {.parent = &root, .key = key};
        if (strcmp(key, "__metadata__") == 0) {
            continue;
        }
        fy_st_tensor *tensor = &header->tensors[header->n_tensors++];
        tensor->name         = key;
        ferry_status status  = parse_tensor(value, &at, header->data_bytes, tensor, error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    return check_cover(header, name, error);
}

ferry_status fy_st_parse(const char *text, size_t length, uint64_t data_bytes, const char *name,
                         fy_st_header *header, ferry_error *error)
{
    *header             = (fy_st_header){.data_bytes = data_bytes};
    ferry_status status = fy_json_parse(text, length, name, &header->json, error);
    if (status == FERRY_OK) {
        status = parse_tensors(header, name, error);
    }
    if (status != FERRY_OK) {
        fy_st_cleanup(header);
    }
    return status;
}

static uint64_t little_endian(const unsigned char *bytes)
{
    uint64_t value = 0;
    for (int i = LENGTH_BYTES; i > 0; i--) {
        value = (value << 8) | bytes[i - 1];
    }
    return value;
}

ferry_status fy_st_read(const char *path, fy_st_header *header, ferry_error *error)
{
    unsigned char bytes[LENGTH_BYTES];
    uint64_t      file_bytes;
    ferry_status  status = fy_file_size(path, &file_bytes, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (file_bytes < LENGTH_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has %llu bytes, too few for a safetensors header", path,
                       (unsigned long long)file_bytes);
    }
    status = fy_file_read_at(path, 0, LENGTH_BYTES, (char *)bytes, error);
    if (status != FERRY_OK) {
        return status;
    }
    uint64_t length = little_endian(bytes);
    if (length > file_bytes - LENGTH_BYTES || length > MOST_HEADER_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the header claims %llu bytes, but the file has %llu and the limit is "
                       "%llu",
                       path, (unsigned long long)length, (unsigned long long)file_bytes,
                       (unsigned long long)MOST_HEADER_BYTES);
    }
    char *text = fy_alloc((size_t)length, 1);
    if (text == NULL) {
        return fy_fail_no_memory(error, "a safetensors header");
    }
    status = fy_file_read_at(path, LENGTH_BYTES, length, text, error);
    if (status == FERRY_OK) {
        status = fy_st_parse(text, (size_t)length, file_bytes - LENGTH_BYTES - length, path, header,
                             error);
    }
    fy_free(text);
    return status;
}
