/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/file.h"
#include "prove/spec_read.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Headers of safetensors files: only names, shapes and dtypes are wanted here. */
enum { LENGTH_BYTES = 8, MOST_HEADER_BYTES = 100000000 };

static ferry_status read_header(const char *path, json_t **json_out, ferry_error *error)
{
    unsigned char bytes[LENGTH_BYTES];
    FY_TRY(fy_file_read_at(path, 0, LENGTH_BYTES, (char *)bytes, error));
    uint64_t length = 0;
    for (size_t i = LENGTH_BYTES; i-- > 0;) {
        length = length << 8 | bytes[i];
    }
    if (length > MOST_HEADER_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: states a header of %llu bytes, more than %d", path,
                       (unsigned long long)length, MOST_HEADER_BYTES);
    }
    char *text = fy_alloc((size_t)length + 1, 1);
    FY_TRY(fy_check_memory(text != NULL, "a header", error));
    ferry_status status = fy_file_read_at(path, LENGTH_BYTES, length, text, error);
    FY_THEN(status, fy_json_parse(text, (size_t)length, path, json_out, error));
    fy_free(text);
    if (status == FERRY_OK && !json_is_object(*json_out)) {
        json_decref(*json_out);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: its header is not an object", path);
    }
    return status;
}

/* Elements of whole bytes, of as many as "bytes:N" may have, can be cut. Others are bytes. */
static void take_as_bytes(fy_proof_entry *entry, uint64_t n_bytes)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        entry->shape[d] = 1;
    }
    entry->n_dims = 1;
    entry->shape[FY_PROOF_DIMS - 1] = n_bytes;
}

/* An element type without a name of ferry's is as wide as its data say. */
static ferry_status measure_unknown(const json_t *json, const fy_json_place *place,
                                    const char *word, fy_proof_entry *entry, ferry_error *error)
{
    enum { MOST_ELEMENT_BITS = 8 << 20 };
    const json_t *offsets = json_object_get(json, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    if (!json_is_array(offsets) || begin < 0 || end < begin || (uint64_t)end > FY_PROOF_MOST / 8) {
        return fy_json_fail(place, error, "has the dtype \"%s\" and no data_offsets", word);
    }
    uint64_t bits = (uint64_t)(end - begin) * 8;
    uint64_t volume = 1;
    for (size_t d = 0; d < FY_PROOF_DIMS && volume <= bits; d++) {
        volume *= entry->shape[d]; /* beyond bits it cannot divide them */
    }
    entry->dtype = (ferry_dtype){.kind = FERRY_BYTES, .element_bits = 8};
    if (volume == 0) {
        return FERRY_OK;
    }
    if (volume > bits || bits % volume != 0) {
        return fy_json_fail(place, error, "has the dtype \"%s\" and %llu bits that do not fit",
                            word, (unsigned long long)bits);
    }
    if (bits / volume % 8 != 0 || bits / volume > MOST_ELEMENT_BITS) {
        take_as_bytes(entry, bits / 8);
    } else {
        entry->dtype.element_bits = (uint32_t)(bits / volume);
    }
    return FERRY_OK;
}

static ferry_status read_word(const json_t *json, const fy_json_place *place, fy_proof_entry *entry,
                              ferry_error *error)
{
    static const struct {
        const char *word;
        ferry_dtype dtype;
    } known[] = {
#define FY_ROW(name, number, text, safetensors, bits) {safetensors, {number, bits}},
        FERRY_DTYPE_MAP(FY_ROW)
#undef FY_ROW
    };
    const char *word;
    FY_TRY(fy_proof_read_text(json, place, "dtype", &word, error));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].word, word) == 0) {
            entry->dtype = known[i].dtype;
            return FERRY_OK;
        }
    }
    return measure_unknown(json, place, word, entry, error);
}

static ferry_status add_header_tensor(fy_proof_spec *spec, const char *name, const json_t *json,
                                      const fy_json_place *place, ferry_error *error)
{
    fy_json_place shape_place = {.parent = place, .key = "shape"};
    fy_proof_entry entry = {0};
    const json_t *shape;
    ferry_status status = fy_json_member(json, place, "shape", &shape, error);
    if (status != FERRY_OK ||
        (status = fy_proof_read_dims(shape, &shape_place, 1, entry.shape, &entry.n_dims, error)) !=
            FERRY_OK ||
        (status = read_word(json, place, &entry, error)) != FERRY_OK ||
        (status = fy_proof_finish_entry(spec, &entry, name, error)) != FERRY_OK) {
        return status;
    }
    const char *copy = fy_arena_copy(&spec->arena, name, strlen(name));
    const fy_proof_entry *kept = fy_proof_keep_entry(spec, &entry);
    FY_TRY(fy_check_memory(copy != NULL && kept != NULL, "a tensor", error));
    return fy_proof_add_tensor(spec, copy, kept, 0, error);
}

/* With a map, every tensor of the file must be one that the map places there. */
static ferry_status read_file(fy_proof_spec *spec, const char *path, const json_t *map,
                              const char *file, ferry_error *error)
{
    json_t *header;
    fy_json_place place = {.key = path};
    FY_TRY(read_header(path, &header, error));
    ferry_status status = FERRY_OK;
    for (void *i = json_object_iter(header); status == FERRY_OK && i != NULL;
         i = json_object_iter_next(header, i)) {
        const char *name = json_object_iter_key(i);
        fy_json_place inner = {.parent = &place, .key = name};
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        const char *home = json_string_value(json_object_get(map, name));
        if (map != NULL && (home == NULL || strcmp(home, file) != 0)) {
            status = fy_json_fail(&inner, error, "is not placed in this file by the index");
            break;
        }
        status = add_header_tensor(spec, name, json_object_iter_value(i), &inner, error);
    }
    json_decref(header);
    return status;
}

static ferry_status read_part(fy_proof_spec *spec, const char *index_path, const char *file,
                              const json_t *map, ferry_error *error)
{
    const char *slash = strrchr(index_path, '/');
    int folder = slash == NULL ? 0 : (int)(slash - index_path) + 1;
    size_t bytes = (size_t)folder + strlen(file) + 1;
    char *path = fy_alloc(bytes, 1);
    FY_TRY(fy_check_memory(path != NULL, "a file name", error));
    snprintf(path, bytes, "%.*s%s", folder, index_path, file);
    ferry_status status = read_file(spec, path, map, file, error);
    fy_free(path);
    return status;
}

static ferry_status read_weight_map(fy_proof_spec *spec, const char *path, const json_t *map,
                                    const fy_json_place *place, ferry_error *error)
{
    json_t *done = json_object(); /* the files that were read */
    ferry_status status = done == NULL ? fy_fail_no_memory(error, "a list of files") : FERRY_OK;
    for (void *i = json_object_iter((json_t *)map); status == FERRY_OK && i != NULL;
         i = json_object_iter_next((json_t *)map, i)) {
        const char *file = json_string_value(json_object_iter_value(i));
        if (file == NULL) {
            status =
                fy_json_fail(place, error, "places \"%s\" in no file", json_object_iter_key(i));
        } else if (json_object_get(done, file) == NULL) {
            status = read_part(spec, path, file, map, error);
            if (status == FERRY_OK && json_object_set_new(done, file, json_true()) != 0) {
                status = fy_fail_no_memory(error, "a list of files");
            }
        }
    }
    for (void *i = json_object_iter((json_t *)map); status == FERRY_OK && i != NULL;
         i = json_object_iter_next((json_t *)map, i)) {
        uint32_t tensor;
        if (!fy_proof_spec_find(spec, json_object_iter_key(i), &tensor)) {
            status = fy_json_fail(place, error, "places \"%s\" in a file that lacks it",
                                  json_object_iter_key(i));
        }
    }
    json_decref(done);
    return status;
}

static ferry_status read_index(fy_proof_spec *spec, const char *path, ferry_error *error)
{
    char *text;
    size_t length;
    json_t *json;
    const json_t *map;
    fy_json_place place = {.key = path};
    fy_json_place map_place = {.parent = &place, .key = "weight_map"};
    FY_TRY(fy_file_read(path, MOST_HEADER_BYTES, &text, &length, error));
    ferry_status status = fy_json_parse(text, length, path, &json, error);
    fy_free(text);
    if (status != FERRY_OK) {
        return status;
    }
    status = fy_json_member(json, &place, "weight_map", &map, error);
    if (status == FERRY_OK && !json_is_object(map)) {
        status = fy_json_fail(&map_place, error, "must be an object");
    }
    FY_THEN(status, read_weight_map(spec, path, map, &map_place, error));
    json_decref(json);
    return status;
}

static bool ends_in(const char *text, const char *tail)
{
    size_t length = strlen(text), tail_length = strlen(tail);
    return length >= tail_length && strcmp(text + length - tail_length, tail) == 0;
}

static int is_part(const struct dirent *entry)
{
    return ends_in(entry->d_name, ".safetensors");
}

/* Without an index, all safetensors files of the folder, by name. */
static ferry_status read_parts(fy_proof_spec *spec, const char *index_path, const char *folder,
                               ferry_error *error)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, is_part, alphasort);
    if (n < 0) {
        return fy_fail(error, FERRY_ERR_IO, "%s: cannot be listed", folder);
    }
    ferry_status status = FERRY_OK;
    if (n == 0) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: holds no safetensors file", folder);
    }
    for (int i = 0; i < n; i++) {
        FY_THEN(status, read_part(spec, index_path, entries[i]->d_name, NULL, error));
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* The index wins, then the file of the usual name. */
static ferry_status read_folder(fy_proof_spec *spec, const char *folder, ferry_error *error)
{
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors"};
    size_t bytes = strlen(folder) + 64;
    char *path = fy_alloc(bytes, 1);
    struct stat about;
    FY_TRY(fy_check_memory(path != NULL, "a file name", error));
    ferry_status status;
    snprintf(path, bytes, "%s/%s", folder, names[0]);
    if (stat(path, &about) == 0) {
        status = read_index(spec, path, error);
        goto out;
    }
    snprintf(path, bytes, "%s/%s", folder, names[1]);
    status = stat(path, &about) == 0 ? read_file(spec, path, NULL, NULL, error)
                                     : read_parts(spec, path, folder, error);
out:
    fy_free(path);
    return status;
}

ferry_status fy_proof_read_model(fy_proof_spec *spec, const char *path, ferry_error *error)
{
    struct stat about;
    if (stat(path, &about) != 0) {
        return fy_fail(error, FERRY_ERR_IO, "%s: cannot be found", path);
    }
    if (S_ISDIR(about.st_mode)) {
        return read_folder(spec, path, error);
    }
    return ends_in(path, ".json") ? read_index(spec, path, error)
                                  : read_file(spec, path, NULL, NULL, error);
}
