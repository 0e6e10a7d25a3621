/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A logical checkpoint in parts: an index says which part holds which tensor. */
#include "base/hash.h"
#include "base/sort.h"
#include "checkpoint/open.h"
#include "checkpoint/st_json.h"
#include "host/file.h"

#include <string.h>

static const uint64_t MOST_INDEX_BYTES = 1u << 30;

/* A tensor and the number of its part. */
typedef struct place {
    const char *tensor;
    uint32_t part;
} place;

typedef struct part {
    const char *name;
    const char *tensor; /* the first that the index places there */
    uint32_t number;    /* places know it by, however the parts are sorted */
} part;

typedef struct weight_map {
    const char *path; /* of the index */
    bool is_there;
    fy_arena arena;
    place *places;
    size_t n_places, place_capacity;
    fy_index tensors;
    part *parts;
    size_t n_parts, part_capacity;
    fy_index part_names;
} weight_map;

static void cleanup(weight_map *map)
{
    fy_arena_cleanup(&map->arena);
    fy_free(map->places);
    fy_free(map->parts);
    fy_index_cleanup(&map->tensors);
    fy_index_cleanup(&map->part_names);
}

static const place *find_place(const weight_map *map, const char *tensor)
{
    fy_index_cursor c = fy_index_first(&map->tensors, fy_hash64(tensor, strlen(tensor)));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&map->tensors, &c)) {
        if (strcmp(map->places[c.value].tensor, tensor) == 0) {
            return &map->places[c.value];
        }
    }
    return NULL;
}

/* ---- reading it ---- */

static ferry_status keep_text(weight_map *map, const fy_st_cursor *cursor, fy_st_text text,
                              size_t at, const char **kept_out)
{
    if (text.length == 0 || memchr(text.bytes, '\0', text.length) != NULL) {
        return fy_st_fail(cursor, at, "a name is empty or holds a zero");
    }
    *kept_out = fy_arena_copy(&map->arena, text.bytes, text.length);
    return *kept_out == NULL ? fy_fail_no_memory(cursor->error, "an index") : FERRY_OK;
}

static ferry_status add_part(weight_map *map, const fy_st_cursor *cursor, fy_st_text text,
                             const char *tensor, size_t at)
{
    part new_part = {.tensor = tensor, .number = (uint32_t)map->n_parts};
    if (memchr(text.bytes, '/', text.length) != NULL) {
        return fy_st_fail(cursor, at, "must name a file beside the index, not \"%.*s\"",
                          text.length > 200 ? 200 : (int)text.length, text.bytes);
    }
    FY_TRY(keep_text(map, cursor, text, at, &new_part.name));
    if (!FY_RESERVE(map->parts, map->part_capacity, map->n_parts + 1) ||
        !fy_index_insert(&map->part_names, fy_hash64(text.bytes, text.length), new_part.number)) {
        return fy_fail_no_memory(cursor->error, "the parts of a checkpoint");
    }
    map->parts[map->n_parts++] = new_part;
    return FERRY_OK;
}

static ferry_status take_part(weight_map *map, fy_st_cursor *cursor, place *to)
{
    fy_st_text text;
    fy_st_peek(cursor);
    size_t at = cursor->at;
    FY_TRY(fy_st_take_string(cursor, &text));
    fy_index_cursor c = fy_index_first(&map->part_names, fy_hash64(text.bytes, text.length));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&map->part_names, &c)) {
        if (fy_st_text_is(text, map->parts[c.value].name)) {
            to->part = c.value;
            return FERRY_OK;
        }
    }
    to->part = (uint32_t)map->n_parts;
    return add_part(map, cursor, text, to->tensor, at);
}

static ferry_status take_place(weight_map *map, fy_st_cursor *cursor)
{
    fy_st_text text;
    place new_place = {NULL, 0};
    fy_st_peek(cursor);
    size_t at = cursor->at;
    FY_TRY(fy_st_take_key(cursor, &text));
    FY_TRY(keep_text(map, cursor, text, at, &new_place.tensor));
    cursor->key = new_place.tensor;
    if (find_place(map, new_place.tensor) != NULL) {
        return fy_st_fail(cursor, at, "is there twice");
    }
    FY_TRY(take_part(map, cursor, &new_place));
    uint64_t hash = fy_hash64(new_place.tensor, strlen(new_place.tensor));
    if (!FY_RESERVE(map->places, map->place_capacity, map->n_places + 1) ||
        !fy_index_insert(&map->tensors, hash, (uint32_t)map->n_places)) {
        return fy_fail_no_memory(cursor->error, "the tensors of an index");
    }
    map->places[map->n_places++] = new_place;
    cursor->key = NULL;
    return FERRY_OK;
}

static ferry_status take_map(weight_map *map, fy_st_cursor *cursor, size_t at)
{
    bool first = true;
    bool more = true;
    cursor->subject = "weight_map";
    if (map->is_there) {
        return fy_st_fail(cursor, at, "is there twice");
    }
    map->is_there = true;
    ferry_status status = fy_st_take(cursor, '{', "an object from tensors to files");
    while (status == FERRY_OK) {
        status = fy_st_next(cursor, '}', &first, &more);
        if (status != FERRY_OK || !more) {
            break;
        }
        status = take_place(map, cursor);
    }
    if (status == FERRY_OK) {
        cursor->subject = NULL;
    }
    return status;
}

/* All else that an index says is passed over. */
static ferry_status take_index(weight_map *map, fy_st_cursor *cursor)
{
    bool first = true;
    bool more = true;
    ferry_status status = fy_st_take(cursor, '{', "an object");
    while (status == FERRY_OK) {
        fy_st_text key;
        status = fy_st_next(cursor, '}', &first, &more);
        if (status != FERRY_OK || !more) {
            break;
        }
        fy_st_peek(cursor);
        size_t at = cursor->at;
        status = fy_st_take_key(cursor, &key);
        FY_THEN(status, fy_st_text_is(key, "weight_map") ? take_map(map, cursor, at)
                                                         : fy_st_skip_value(cursor));
    }
    if (status == FERRY_OK && fy_st_peek(cursor) != -1) {
        status = fy_st_fail_expected(cursor, "nothing but white space behind the object");
    }
    if (status == FERRY_OK && !map->is_there) {
        status = fy_fail(cursor->error, FERRY_ERR_INVALID_INPUT, "%s: lacks the key \"weight_map\"",
                         map->path);
    }
    return status;
}

static ferry_status read_map(weight_map *map, ferry_error *error)
{
    char *text = NULL;
    size_t length = 0;
    ferry_status status = fy_file_read(map->path, MOST_INDEX_BYTES, &text, &length, error);
    if (status == FERRY_OK) {
        fy_st_cursor cursor = {
            .text = text, .length = length, .file = map->path, .of = "", .error = error};
        status = take_index(map, &cursor);
        fy_st_cursor_cleanup(&cursor);
    }
    fy_free(text);
    return status;
}

/* ---- the parts ---- */

static int compare_parts(const void *a, const void *b)
{
    return strcmp(((const part *)a)->name, ((const part *)b)->name);
}

/* The index and the file must agree on what it holds. */
static ferry_status open_part(ferry_checkpoint *checkpoint, const weight_map *map, const part *p,
                              ferry_error *error)
{
    if (!fy_ckpt_lists(checkpoint, p->name)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: places \"%.200s\" in %.200s, which is not there", map->path, p->tensor,
                       p->name);
    }
    FY_TRY(fy_ckpt_add_file(checkpoint, fy_ckpt_join(checkpoint->folder, p->name), 0, error));
    const fy_ckpt_file *file = &checkpoint->files[checkpoint->n_files - 1];
    for (size_t i = 0; i < file->header.n_tensors; i++) {
        const char *name = file->header.tensors[i].name;
        const place *it = find_place(map, name);
        if (it == NULL || it->part != p->number) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: holds \"%.200s\", which the index %s", file->path, name,
                           it == NULL ? "does not name" : "places in another part");
        }
    }
    return FERRY_OK;
}

/* What the index has and no part holds; the other way round was looked at with each part. */
static ferry_status check_missing(const ferry_checkpoint *checkpoint, weight_map *map,
                                  ferry_error *error)
{
    for (size_t i = 0; i < map->n_places; i++) {
        const char *tensor = map->places[i].tensor;
        uint32_t p = 0;
        if (fy_ckpt_find(checkpoint, tensor) != FY_INDEX_NONE) {
            continue;
        }
        while (map->parts[p].number != map->places[i].part) {
            p++;
        }
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: places \"%.200s\" in %.200s, which does not hold it", map->path, tensor,
                       map->parts[p].name);
    }
    return FERRY_OK;
}

ferry_status fy_ckpt_open_index(ferry_checkpoint *checkpoint, const char *path, ferry_error *error)
{
    weight_map map = {.path = path};
    ferry_status status = read_map(&map, error);
    checkpoint->n_expected = map.n_parts;
    fy_sort(map.parts, map.n_parts, sizeof *map.parts, compare_parts);
    for (size_t i = 0; i < map.n_parts && status == FERRY_OK; i++) {
        status = open_part(checkpoint, &map, &map.parts[i], error);
    }
    FY_THEN(status, fy_ckpt_add_all_tensors(checkpoint, error));
    if (status == FERRY_OK && checkpoint->n_tensors != map.n_places) {
        status = check_missing(checkpoint, &map, error);
    }
    cleanup(&map);
    return status;
}
