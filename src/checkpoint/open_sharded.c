/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A folder of ferry.layout.json and a file for each rank. */
#include "base/checked.h"
#include "base/json.h"
#include "base/sort.h"
#include "checkpoint/boxed.h"
#include "checkpoint/form.h"
#include "checkpoint/layout_file.h"
#include "checkpoint/open.h"
#include "model/spec.h"

#include <stdlib.h>
#include <string.h>

/* ---- the tensors that the layout lists ---- */

/* With empty dimensions taken as 1, bits must be countable in 63 bits, as everywhere in ferry. */
static ferry_status check_size(const fy_ckpt_tensor *tensor, const fy_json_place *place,
                               ferry_error *error)
{
    uint64_t most = tensor->dtype.element_bits;
    uint64_t bits = tensor->dtype.element_bits;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        bits *= tensor->shape[d]; /* does not overflow where the next does not */
        if (!fy_mul(most, fy_max(tensor->shape[d], 1), &most) || most > INT64_MAX) {
            return fy_json_fail(place, error, "has more than 2^63 bits");
        }
    }
    if (bits % 8 != 0) {
        return fy_json_fail(place, error, "has %llu bits, which are not whole bytes",
                            (unsigned long long)bits);
    }
    return FERRY_OK;
}

static ferry_status read_shape(ferry_checkpoint *checkpoint, const json_t *json,
                               const fy_json_place *place, fy_ckpt_tensor *tensor,
                               ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    size_t n = json_array_size(json);
    if (status == FERRY_OK && n > FERRY_MAX_DIMS) {
        status = fy_json_fail(place, error, "has %zu dimensions, more than the limit of %d", n,
                              FERRY_MAX_DIMS);
    }
    if (status != FERRY_OK) {
        return status;
    }
    uint64_t *shape = fy_arena_alloc(&checkpoint->arena, n, sizeof *shape);
    FY_TRY(fy_check_memory(shape != NULL, "a shape", error));
    for (size_t d = 0; d < n && status == FERRY_OK; d++) {
        fy_json_place at = {.parent = place, .index = d};
        status = fy_json_get_size(json_array_get(json, d), &at, 0, INT64_MAX, &shape[d], error);
    }
    tensor->n_dims = tensor->file_n_dims = (uint32_t)n;
    tensor->shape = tensor->file_shape = shape;
    return status;
}

static ferry_status read_dtype(const json_t *json, const fy_json_place *place,
                               fy_ckpt_tensor *tensor, ferry_error *error)
{
    const char *text = NULL;
    ferry_error why = {""};
    FY_TRY(fy_json_get_string(json, place, &text, error));
    if (ferry_dtype_parse(text, &tensor->dtype, &why) != FERRY_OK) {
        return fy_json_fail(place, error, "is wrong: %s", why.message);
    }
    return FERRY_OK;
}

static ferry_status read_name(ferry_checkpoint *checkpoint, const json_t *json,
                              const fy_json_place *place, fy_ckpt_tensor *tensor,
                              ferry_error *error)
{
    const char *name = NULL;
    FY_TRY(fy_json_get_string(json, place, &name, error));
    if (name[0] == '\0') {
        return fy_json_fail(place, error, "must not be empty");
    }
    tensor->name = fy_arena_copy(&checkpoint->arena, name, strlen(name));
    return tensor->name == NULL ? fy_fail_no_memory(error, "the tensors of a checkpoint")
                                : FERRY_OK;
}

/* Each tensor is listed by itself, and is what its name says: no short forms, no assembly. */
static ferry_status check_keys(const json_t *json, const fy_json_place *place, ferry_error *error)
{
    static const char *const known[] = {"name", "shape", "dtype", NULL};
    static const char *const barred[] = {"count", "source"};
    for (size_t i = 0; i < sizeof barred / sizeof barred[0]; i++) {
        if (json_object_get(json, barred[i]) != NULL) {
            return fy_json_fail(place, error,
                                "has the key \"%s\", which the layout of a checkpoint may not: it "
                                "lists each tensor as it is",
                                barred[i]);
        }
    }
    FY_TRY(fy_json_expect_object(json, place, known, error));
    for (size_t i = 0; known[i] != NULL; i++) {
        const json_t *member;
        FY_TRY(fy_json_member(json, place, known[i], &member, error));
    }
    return FERRY_OK;
}

static ferry_status read_tensor(ferry_checkpoint *checkpoint, const json_t *json,
                                const fy_json_place *place, ferry_error *error)
{
    fy_ckpt_tensor tensor = {.dtype_text = NULL};
    uint32_t twin = FY_INDEX_NONE;
    fy_json_place name_at = {.parent = place, .key = "name"};
    fy_json_place shape_at = {.parent = place, .key = "shape"};
    fy_json_place dtype_at = {.parent = place, .key = "dtype"};
    FY_TRY(check_keys(json, place, error));
    FY_TRY(read_name(checkpoint, json_object_get(json, "name"), &name_at, &tensor, error));
    FY_TRY(read_shape(checkpoint, json_object_get(json, "shape"), &shape_at, &tensor, error));
    FY_TRY(read_dtype(json_object_get(json, "dtype"), &dtype_at, &tensor, error));
    FY_TRY(check_size(&tensor, place, error));
    FY_TRY(fy_ckpt_add_tensor(checkpoint, &tensor, &twin, error));
    if (twin != FY_INDEX_NONE) {
        return fy_json_fail(&name_at, error, "\"%.200s\" is there twice", tensor.name);
    }
    return FERRY_OK;
}

static ferry_status read_tensors(ferry_checkpoint *checkpoint, const json_t *tensors,
                                 ferry_error *error)
{
    fy_json_place place = {.key = checkpoint->layout_path};
    fy_json_place at = {.parent = &place, .key = "tensors"};
    if (tensors == NULL) {
        return fy_json_fail(&place, error, "lacks the key \"tensors\", which a checkpoint's has");
    }
    FY_TRY(fy_json_expect_array(tensors, &at, error));
    FY_TRY(fy_ckpt_reserve(checkpoint, json_array_size(tensors), error));
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        fy_json_place item = {.parent = &at, .index = i};
        FY_TRY(read_tensor(checkpoint, json_array_get(tensors, i), &item, error));
    }
    return FERRY_OK;
}

/* ---- the files of its ranks ---- */

/* A dtype that only data can tell: of a shard without data it is not known. */
static bool is_unknown(const fy_st_tensor *entry)
{
    return entry->begin == entry->end && entry->dtype.kind == FERRY_BYTES;
}

static bool fits_layout(const fy_ckpt_tensor *tensor, const fy_st_tensor *entry)
{
    return tensor->dtype.kind == entry->dtype.kind &&
           (tensor->dtype.element_bits == entry->dtype.element_bits || is_unknown(entry)) &&
           (!entry->is_opaque ||
            (tensor->n_dims == 1 && tensor->shape[0] == entry->end - entry->begin));
}

static ferry_status fail_layout(const fy_ckpt_file *file, const fy_ckpt_tensor *tensor,
                                const fy_st_tensor *entry, ferry_error *error)
{
    char says[FERRY_DTYPE_TEXT_BYTES], wanted[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(tensor->dtype, says, sizeof says);
    ferry_dtype_format(entry->dtype, wanted, sizeof wanted);
    if (entry->is_opaque) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%.200s\" is %.40s, which cannot be cut: " FY_LAYOUT_NAME
                       " must list it with shape [%llu] and dtype %s",
                       file->path, tensor->name, entry->dtype_text,
                       (unsigned long long)(entry->end - entry->begin), wanted);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: \"%.200s\" is %.40s (%s), but " FY_LAYOUT_NAME " says %s", file->path,
                   tensor->name, entry->dtype_text, wanted, says);
}

static bool same_shape(const fy_ckpt_tensor *tensor, const fy_st_tensor *entry)
{
    bool same = tensor->file_n_dims == entry->n_dims;
    for (uint32_t d = 0; same && d < entry->n_dims; d++) {
        same = tensor->file_shape[d] == entry->shape[d];
    }
    return same;
}

/* The first file that lists a tensor says its word, and the shape of an opaque one. */
static ferry_status check_entry(ferry_checkpoint *checkpoint, uint32_t number,
                                const fy_st_tensor *entry, ferry_error *error)
{
    const fy_ckpt_file *file = &checkpoint->files[checkpoint->n_files - 1];
    uint32_t t = fy_ckpt_find(checkpoint, entry->name);
    if (t == FY_INDEX_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: holds \"%.200s\", which %s does not list", file->path, entry->name,
                       checkpoint->layout_path);
    }
    fy_ckpt_tensor *tensor = &checkpoint->tensors[t];
    if (!fits_layout(tensor, entry)) {
        return fail_layout(file, tensor, entry, error);
    }
    if (tensor->dtype_text == NULL) {
        tensor->dtype_text = entry->dtype_text;
        tensor->file = number;
        tensor->is_opaque = entry->is_opaque;
        if (entry->is_opaque) {
            tensor->file_n_dims = entry->n_dims;
            tensor->file_shape = entry->shape;
        }
        return FERRY_OK;
    }
    if (strcmp(tensor->dtype_text, entry->dtype_text) != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%.200s\" is %.40s, but in %s it is %.40s", file->path, entry->name,
                       entry->dtype_text, checkpoint->files[tensor->file].name, tensor->dtype_text);
    }
    if (tensor->is_opaque != entry->is_opaque || (entry->is_opaque && !same_shape(tensor, entry))) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%.200s\" has another shape than in %s, but %.40s cannot be cut",
                       file->path, entry->name, checkpoint->files[tensor->file].name,
                       entry->dtype_text);
    }
    return FERRY_OK;
}

/* ---- checksums ---- */

static bool read_checksum(const char *text, uint64_t *checksum_out)
{
    uint64_t checksum = 0;
    size_t n = 0;
    for (; text[n] != '\0'; n++) {
        char byte = text[n];
        if (n == 16 || !((byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f'))) {
            return false;
        }
        checksum = checksum << 4 | (uint64_t)(byte <= '9' ? byte - '0' : byte - 'a' + 10);
    }
    *checksum_out = checksum;
    return n == 16;
}

static bool is_checksum(const fy_st_entry *entry)
{
    return strncmp(entry->key, FY_CHECKSUM_KEY, sizeof FY_CHECKSUM_KEY - 1) == 0;
}

static ferry_status take_checksum(const fy_ckpt_file *file, const fy_st_entry *entry,
                                  ferry_error *error)
{
    const char *name = entry->key + sizeof FY_CHECKSUM_KEY - 1;
    const fy_st_tensor *found = fy_st_find(&file->header, name);
    if (found == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has a checksum of \"%.200s\", which it does not hold", file->path,
                       name);
    }
    fy_st_tensor *tensor = &file->header.tensors[found - file->header.tensors];
    if (!read_checksum(entry->value, &tensor->checksum)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the checksum of \"%.200s\" is \"%.40s\", not 16 hex digits", file->path,
                       name, entry->value);
    }
    tensor->has_checksum = true;
    return FERRY_OK;
}

/* Checksums go to their tensors, and their texts, most of what a header takes, are dropped. */
static ferry_status take_checksums(fy_ckpt_file *file, ferry_error *error)
{
    fy_st_header *header = &file->header;
    size_t kept = 0;
    for (size_t i = 0; i < header->n_metadata; i++) {
        fy_st_entry entry = header->metadata[i];
        if (is_checksum(&entry)) {
            FY_TRY(take_checksum(file, &entry, error));
            continue;
        }
        entry.key = fy_arena_copy(&header->arena, entry.key, strlen(entry.key));
        entry.value = fy_arena_copy(&header->arena, entry.value, strlen(entry.value));
        if (entry.key == NULL || entry.value == NULL) {
            return fy_fail_no_memory(error, "the metadata of a file");
        }
        header->metadata[kept++] = entry;
    }
    fy_arena_cleanup(&header->texts);
    header->n_metadata = kept;
    fy_st_entry *shrunken = fy_realloc(header->metadata, kept, sizeof *shrunken);
    if (shrunken != NULL) {
        header->metadata = shrunken;
        header->metadata_capacity = kept;
    }
    return FERRY_OK;
}

/* ---- the files of its ranks, one by one ---- */

ferry_status fy_ckpt_add_rank(ferry_checkpoint *checkpoint, uint32_t rank, ferry_error *error)
{
    char name[64];
    fy_form_rank_name(rank, name, sizeof name);
    if (!fy_ckpt_lists(checkpoint, name)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: has rank %u%s, but %s is not there",
                       checkpoint->layout_path, rank,
                       checkpoint->boxed == NULL ? " in its mesh" : "", name);
    }
    FY_TRY(fy_ckpt_add_file(checkpoint, fy_ckpt_join(checkpoint->folder, name), rank, error));
    ferry_status status = FERRY_OK;
    fy_ckpt_file *file = &checkpoint->files[checkpoint->n_files - 1];
    uint32_t number = (uint32_t)checkpoint->n_files - 1;
    bool holds_shards = checkpoint->boxed == NULL; /* of parameters, the layout tells later */
    for (size_t i = 0; holds_shards && i < file->header.n_tensors && status == FERRY_OK; i++) {
        status = check_entry(checkpoint, number, &file->header.tensors[i], error);
    }
    return status == FERRY_OK ? take_checksums(file, error) : status;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A rank file that the layout has no rank for: the folder is of two checkpoints. */
static ferry_status check_strays(const ferry_checkpoint *checkpoint, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    const char **names = fy_alloc(checkpoint->n_files, sizeof *names);
    FY_TRY(fy_check_memory(names != NULL, "the files of a checkpoint", error));
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        names[i] = checkpoint->files[i].name;
    }
    fy_sort(names, checkpoint->n_files, sizeof *names, compare_names);
    for (size_t i = 0; i < checkpoint->n_others && status == FERRY_OK; i++) {
        const char *name = checkpoint->others[i].name;
        if (strncmp(name, "rank-", 5) == 0 && fy_ckpt_is_safetensors(name) &&
            bsearch(&name, names, checkpoint->n_files, sizeof *names, compare_names) == NULL) {
            status =
                fy_fail(error, FERRY_ERR_INVALID_INPUT,
                        "%s/%s: belongs to no rank of " FY_LAYOUT_NAME, checkpoint->folder, name);
        }
    }
    fy_free(names);
    return status;
}

static ferry_status open_ranks(ferry_checkpoint *checkpoint, ferry_error *error)
{
    fy_json_place place = {.key = checkpoint->layout_path};
    ferry_spec *spec = fy_spec_new();
    FY_TRY(fy_check_memory(spec != NULL, "a layout", error));
    fy_side *side = &spec->source;
    ferry_status status = fy_spec_parse_side(spec, checkpoint->layout, &place, side, error);
    checkpoint->n_expected = status == FERRY_OK ? side->n_ranks : 0;
    for (uint32_t i = 0; status == FERRY_OK && i < side->n_ranks; i++) {
        uint32_t rank = side->ranks == NULL ? side->first_rank + i : side->ranks[i];
        status = fy_ckpt_add_rank(checkpoint, rank, error);
    }
    ferry_spec_destroy(spec);
    return status;
}

static ferry_status open_boxes(ferry_checkpoint *checkpoint, ferry_error *error)
{
    ferry_side *side = NULL;
    FY_TRY(fy_boxed_parse(checkpoint->layout, checkpoint->layout_path, &side, error));
    json_decref(checkpoint->layout); /* it is many times larger, too */
    checkpoint->layout = NULL;
    return fy_ckpt_open_boxed(checkpoint, side, error);
}

ferry_status fy_ckpt_open_sharded(ferry_checkpoint *checkpoint, ferry_error *error)
{
    json_t *tensors = NULL;
    checkpoint->is_sharded = true;
    checkpoint->layout_path = fy_ckpt_join(checkpoint->folder, FY_LAYOUT_NAME);
    FY_TRY(fy_check_memory(checkpoint->layout_path != NULL, "a file name", error));
    ferry_status status =
        fy_layout_load(checkpoint->layout_path, &checkpoint->layout, &tensors, error);
    FY_THEN(status, read_tensors(checkpoint, tensors, error));
    json_decref(tensors); /* it is many times larger than what was read from it */
    if (status == FERRY_OK) {
        bool in_boxes = json_object_get(checkpoint->layout, "boxes") != NULL;
        status = in_boxes ? open_boxes(checkpoint, error) : open_ranks(checkpoint, error);
    }
    return status == FERRY_OK ? check_strays(checkpoint, error) : status;
}
