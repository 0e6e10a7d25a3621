/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/spec.h"

#include "base/hash.h"
#include "host/file.h"
#include "prove/boxes.h"
#include "prove/quantize.h"
#include "prove/spec_read.h"

#include <string.h>

enum { MOST_SPEC_BYTES = 1 << 30 };

/* PATH of "model" is relative to the folder of the spec. */
static char *beside(fy_proof_spec *spec, const char *spec_path, const char *path)
{
    const char *slash = strrchr(spec_path, '/');
    size_t folder = slash == NULL || path[0] == '/' ? 0 : (size_t)(slash - spec_path) + 1;
    size_t length = strlen(path);
    char *joined = fy_arena_alloc(&spec->arena, folder + length + 1, 1);
    if (joined != NULL) {
        memcpy(joined, spec_path, folder);
        memcpy(joined + folder, path, length + 1);
    }
    return joined;
}

static ferry_status read_model(fy_proof_spec *spec, const char *spec_path,
                               const fy_json_place *place, ferry_error *error)
{
    const char *path;
    FY_TRY(fy_proof_read_text(spec->json, place, "model", &path, error));
    char *joined = beside(spec, spec_path, path);
    FY_TRY(fy_check_memory(joined != NULL, "a file name", error));
    return fy_proof_read_model(spec, joined, error);
}

static ferry_status read_all_tensors(fy_proof_spec *spec, const char *path,
                                     const fy_json_place *place, ferry_error *error)
{
    const json_t *tensors = json_object_get(spec->json, "tensors");
    const json_t *model = json_object_get(spec->json, "model");
    if ((tensors == NULL) == (model == NULL)) {
        return fy_json_fail(place, error, "must have either \"tensors\" or \"model\"");
    }
    spec->is_listed = tensors != NULL;
    ferry_status status;
    if (tensors != NULL) {
        fy_json_place inner = {.parent = place, .key = "tensors"};
        status = fy_proof_read_tensors(spec, tensors, &inner, error);
    } else {
        status = read_model(spec, path, place, error);
    }
    FY_THEN(status, fy_proof_link_sources(spec, error));
    return status;
}

static ferry_status read_document(fy_proof_spec *spec, const char *path, ferry_error *error)
{
    static const char *const keys[] = {"format",      "tensors", "model", "source",
                                       "destination", "cluster", NULL};
    static const char *const names[FY_PROOF_SIDES] = {"source", "destination"};
    fy_json_place place = {.key = path};
    const char *format;
    FY_TRY(fy_json_expect_object(spec->json, &place, keys, error));
    FY_TRY(fy_proof_read_text(spec->json, &place, "format", &format, error));
    if (strcmp(format, "ferry.spec/1") != 0) {
        return fy_json_fail(&place, error, "has the format \"%s\", not ferry.spec/1", format);
    }
    const json_t *sides[FY_PROOF_SIDES];
    for (int i = 0; i < FY_PROOF_SIDES; i++) {
        fy_json_place inner = {.parent = &place, .key = names[i]};
        FY_TRY(fy_json_member(spec->json, &place, names[i], &sides[i], error));
        spec->sides[i].name = names[i];
        if (json_object_get(sides[i], "boxes") == NULL) {
            FY_TRY(fy_proof_read_side(spec, sides[i], &inner, &spec->sides[i], error));
        }
    }
    FY_TRY(read_all_tensors(spec, path, &place, error));
    fy_json_place to = {.parent = &place, .key = names[FY_PROOF_DESTINATION]};
    FY_TRY(fy_proof_scales_of_boxes(spec, sides[FY_PROOF_DESTINATION], &to, error));
    for (int i = 0; i < FY_PROOF_SIDES; i++) {
        fy_json_place inner = {.parent = &place, .key = names[i]};
        if (json_object_get(sides[i], "boxes") != NULL) {
            FY_TRY(fy_proof_read_memory(spec, sides[i], &inner, i, error));
        }
    }
    return fy_proof_place_tensors(spec, error);
}

ferry_status fy_proof_spec_read(const char *path, fy_proof_spec *spec, ferry_error *error)
{
    char *text;
    size_t length;
    FY_TRY(fy_file_read(path, MOST_SPEC_BYTES, &text, &length, error));
    ferry_status status = fy_json_parse(text, length, path, &spec->json, error);
    fy_free(text);
    return status == FERRY_OK ? read_document(spec, path, error) : status;
}

void fy_proof_spec_cleanup(fy_proof_spec *spec)
{
    json_decref(spec->json);
    for (int i = 0; i < FY_PROOF_SIDES; i++) {
        if (spec->sides[i].memory != NULL) {
            fy_index_cleanup(&spec->sides[i].memory->by_name);
        }
    }
    fy_index_cleanup(&spec->by_name);
    fy_free(spec->tensors);
    fy_arena_cleanup(&spec->arena);
    *spec = (fy_proof_spec){0};
}

bool fy_proof_spec_find(const fy_proof_spec *spec, const char *name, uint32_t *tensor_out)
{
    uint64_t hash = fy_hash64(name, strlen(name));
    fy_index_cursor c = fy_index_first(&spec->by_name, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&spec->by_name, &c)) {
        if (strcmp(spec->tensors[c.value].name, name) == 0) {
            *tensor_out = c.value;
            return true;
        }
    }
    return false;
}

uint32_t fy_proof_spec_source(const fy_proof_spec *spec, uint32_t tensor, size_t box)
{
    const uint32_t *sources = spec->tensors[tensor].sources;
    return sources == NULL ? tensor : sources[box];
}

static bool box_holds(const fy_proof_box *box, const uint64_t *element)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (element[d] < box->at[d] || element[d] - box->at[d] >= box->shape[d]) {
            return false;
        }
    }
    return true;
}

static bool take_first(void *context, size_t box)
{
    *(size_t *)context = box;
    return false;
}

size_t fy_proof_box_at(const fy_proof_spec *spec, const fy_proof_entry *entry,
                       const uint64_t *element, size_t hint)
{
    uint64_t end[FY_PROOF_DIMS];
    size_t found = hint; /* the boxes tile the tensor, so there is one */
    if (entry->tree == NULL || box_holds(&entry->boxes[hint], element)) {
        return hint;
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        end[d] = element[d] + 1;
    }
    fy_proof_tree_visit(entry->tree, element, end, take_first, &found, spec->looks);
    return found;
}

bool fy_proof_spec_is_fed_by(const fy_proof_spec *spec, uint32_t tensor, uint32_t source)
{
    const fy_proof_tensor *t = &spec->tensors[tensor];
    size_t low = 0, high = t->entry->n_boxes;
    if (t->fed_by == NULL) {
        return tensor == source;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        ++*spec->looks;
        if (t->fed_by[middle] < source) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < t->entry->n_boxes && t->fed_by[low] == source;
}
