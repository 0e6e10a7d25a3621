/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads ferry.map/1: entries that stand for many tensors, and boxes that stand for many. */
#include "model/map.h"

#include "base/checked.h"
#include "model/spec.h"

#include <stdio.h>
#include <string.h>

/* Loops of an entry, and of a box inside it: the numbers of both stand in names. */
enum { MOST_COUNTS = 8, MOST_REPEATS = 4, MOST_LOOPS = MOST_COUNTS + MOST_REPEATS };

typedef struct loops {
    size_t n;
    uint64_t counts[MOST_LOOPS];
    uint64_t at[MOST_LOOPS];
} loops;

/* Those from number first on; false: they have all been. */
static bool advance(loops *l, size_t first)
{
    for (size_t i = l->n; i > first; i--) {
        if (++l->at[i - 1] < l->counts[i - 1]) {
            return true;
        }
        l->at[i - 1] = 0;
    }
    return false;
}

/* The digits at *text, which are moved past; false: none, or too many. */
static bool read_number(const char **text, uint64_t *value_out)
{
    size_t n = 0;
    uint64_t value = 0;
    for (; (*text)[n] >= '0' && (*text)[n] <= '9'; n++) {
        if (!fy_mul(value, 10, &value) || !fy_add(value, (uint64_t)((*text)[n] - '0'), &value)) {
            return false;
        }
    }
    *text += n;
    *value_out = value;
    return n > 0;
}

/* {2}, {2+3} and {2-3}: number 2, and that with 3 added or taken away. */
typedef struct hole {
    uint64_t loop;
    uint64_t more, less;
    size_t length; /* of its text; 0: there is none */
} hole;

static hole read_hole(const char *text, size_t n_loops)
{
    const char *at = text + 1;
    hole h = {.length = 0}, none = h;
    if (*text != '{' || !read_number(&at, &h.loop) || h.loop >= n_loops) {
        return none;
    }
    if (*at == '+' || *at == '-') {
        uint64_t *by = *at++ == '+' ? &h.more : &h.less;
        if (!read_number(&at, by)) {
            return none;
        }
    }
    if (*at != '}') {
        return none;
    }
    h.length = (size_t)(at - text) + 1;
    return h;
}

static ferry_status fill_name(const char *pattern, const loops *l, const fy_json_place *place,
                              char name[FERRY_NAME_BYTES], size_t *length_out, ferry_error *error)
{
    size_t used = 0;
    while (*pattern != '\0') {
        hole h = read_hole(pattern, l->n);
        if (used + 24 > FERRY_NAME_BYTES) {
            return fy_json_fail(place, error, "has a name of more than %d bytes",
                                FERRY_NAME_BYTES - 24);
        }
        if (h.length == 0) {
            name[used++] = *pattern++;
            continue;
        }
        uint64_t value;
        if (!fy_add(l->at[h.loop], h.more, &value) || value < h.less) {
            return fy_json_fail(place, error, "\"%.200s\": %.*s is below 0 or beyond 2^64 for %llu",
                                pattern, (int)h.length, pattern, (unsigned long long)l->at[h.loop]);
        }
        used += (size_t)snprintf(name + used, 24, "%llu", (unsigned long long)(value - h.less));
        pattern += h.length;
    }
    name[used] = '\0';
    *length_out = used;
    return FERRY_OK;
}

/* A count whose number stands nowhere in the name would make the same tensor again. */
static ferry_status check_holes(const char *name, size_t n, const fy_json_place *place,
                                ferry_error *error)
{
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (const char *at = name; *at != '\0'; at++) {
            hole h = read_hole(at, n);
            found = found || (h.length > 0 && h.loop == i);
        }
        if (!found) {
            return fy_json_fail(place, error, "name \"%s\" lacks {%zu} for count number %zu", name,
                                i, i);
        }
    }
    return FERRY_OK;
}

/* A box as it is written; its numbers lie in the reading's arena. */
typedef struct box_pattern {
    const char *tensor;
    uint64_t *begin, *shape, *at;
    size_t n_begin, n_shape, n_at;
    size_t n_repeats;
    uint64_t counts[MOST_REPEATS];
    uint64_t *more_begin[MOST_REPEATS]; /* NULL: none */
    uint64_t *more_at[MOST_REPEATS];
} box_pattern;

typedef struct map_entry {
    const char *name;
    ferry_dtype dtype;
    uint64_t *shape;
    size_t n_dims;
    loops loops;
    const char *whole; /* "source": NAME */
    box_pattern *boxes;
    size_t n_boxes;
} map_entry;

typedef struct reading {
    ferry_map *map;
    fy_arena arena;
} reading;

static ferry_status read_sizes(reading *r, const json_t *json, const fy_json_place *place,
                               uint64_t **sizes_out, size_t *n_out, ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    if (json_array_size(json) > FERRY_MAX_DIMS) {
        return fy_json_fail(place, error, "has %zu numbers, more than the limit of %d dimensions",
                            json_array_size(json), FERRY_MAX_DIMS);
    }
    return fy_json_read_sizes(json, place, 0, INT64_MAX, &r->arena, "a map", sizes_out, n_out,
                              error);
}

static ferry_status read_count(const json_t *json, const fy_json_place *place, uint64_t *total,
                               uint64_t *count_out, ferry_error *error)
{
    FY_TRY(fy_json_get_size(json, place, 1, INT64_MAX, count_out, error));
    if (!fy_mul(*total, *count_out, total) || *total > FY_MAX_TENSORS) {
        return fy_json_fail(place, error, "makes more than %d", FY_MAX_TENSORS);
    }
    return FERRY_OK;
}

static ferry_status read_counts(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    loops *l = object;
    uint64_t total = 1;
    (void)context;
    FY_TRY(fy_json_expect_array(json, place, error));
    l->n = json_array_size(json);
    if (l->n == 0 || l->n > MOST_COUNTS) {
        return fy_json_fail(place, error, "must have from 1 to %d numbers, not %zu", MOST_COUNTS,
                            l->n);
    }
    for (size_t i = 0; i < l->n; i++) {
        fy_json_place at = {.parent = place, .index = i};
        FY_TRY(read_count(json_array_get(json, i), &at, &total, &l->counts[i], error));
    }
    return FERRY_OK;
}

static ferry_status read_shape(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    map_entry *e = object;
    return read_sizes(context, json, place, &e->shape, &e->n_dims, error);
}

static ferry_status read_dtype(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    const char *text;
    ferry_error inner;
    (void)context;
    FY_TRY(fy_json_get_string(json, place, &text, error));
    return ferry_dtype_parse(text, object, &inner) == FERRY_OK
               ? FERRY_OK
               : fy_json_fail(place, error, "%s", inner.message);
}

/* Maps keep the order of dimensions: plans can say another only for parameters. */
static ferry_status refuse_order(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    (void)json;
    (void)object;
    (void)context;
    return fy_json_fail(place, error,
                        "is nothing that a map can say: boxes keep the order of dimensions; a "
                        "transposition is said by the strides of a side in boxes");
}

static ferry_status read_box_sizes(const json_t *json, const fy_json_place *place, void *object,
                                   void *context, ferry_error *error)
{
    box_pattern *box = object;
    bool is_begin = strcmp(place->key, "begin") == 0;
    if (strcmp(place->key, "shape") == 0) {
        return read_sizes(context, json, place, &box->shape, &box->n_shape, error);
    }
    return read_sizes(context, json, place, is_begin ? &box->begin : &box->at,
                      is_begin ? &box->n_begin : &box->n_at, error);
}

typedef struct repeat_json {
    const json_t *count, *begin, *at;
} repeat_json;

static ferry_status read_more(reading *r, const json_t *json, const fy_json_place *place,
                              size_t n_dims, uint64_t **more_out, ferry_error *error)
{
    size_t n;
    if (json == NULL) {
        return FERRY_OK;
    }
    FY_TRY(read_sizes(r, json, place, more_out, &n, error));
    return n == n_dims
               ? FERRY_OK
               : fy_json_fail(place, error, "has %zu numbers, but the box has %zu", n, n_dims);
}

static ferry_status read_repeat(reading *r, const json_t *json, const fy_json_place *place,
                                box_pattern *box, uint64_t *total, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"count", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(repeat_json, count)},
        {"begin", FY_JSON_VALUE, .offset = offsetof(repeat_json, begin)},
        {"at", FY_JSON_VALUE, .offset = offsetof(repeat_json, at)},
        {.key = NULL}};
    repeat_json repeat = {.count = NULL};
    size_t i = box->n_repeats;
    fy_json_place count_at = {.parent = place, .key = "count"};
    fy_json_place begin_at = {.parent = place, .key = "begin"};
    fy_json_place at_at = {.parent = place, .key = "at"};
    FY_TRY(fy_json_read(json, place, fields, &repeat, r, error));
    FY_TRY(read_count(repeat.count, &count_at, total, &box->counts[i], error));
    FY_TRY(read_more(r, repeat.begin, &begin_at, box->n_begin, &box->more_begin[i], error));
    FY_TRY(read_more(r, repeat.at, &at_at, box->n_at, &box->more_at[i], error));
    box->n_repeats++;
    return FERRY_OK;
}

static ferry_status read_repeats(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    uint64_t total = 1;
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    if (n == 0 || n > MOST_REPEATS) {
        return fy_json_fail(place, error, "must have from 1 to %d loops, not %zu", MOST_REPEATS, n);
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place at = {.parent = place, .index = i};
        FY_TRY(read_repeat(context, json_array_get(json, i), &at, object, &total, error));
    }
    return FERRY_OK;
}

static ferry_status read_box(const json_t *json, const fy_json_place *place, void *object,
                             void *context, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"tensor", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(box_pattern, tensor)},
        {"begin", FY_JSON_READ, FY_JSON_NEEDED, .read = read_box_sizes},
        {"shape", FY_JSON_READ, FY_JSON_NEEDED, .read = read_box_sizes},
        {"at", FY_JSON_READ, FY_JSON_NEEDED, .read = read_box_sizes},
        {"repeat", FY_JSON_READ, .read = read_repeats},
        {"strides", FY_JSON_READ, .read = refuse_order},
        {"permutation", FY_JSON_READ, .read = refuse_order},
        {.key = NULL}};
    const box_pattern *box = object;
    FY_TRY(fy_json_read(json, place, fields, object, context, error));
    if (box->n_begin != box->n_shape) {
        return fy_json_fail(place, error, "begin has %zu numbers and shape %zu", box->n_begin,
                            box->n_shape);
    }
    return FERRY_OK;
}

static ferry_status read_source(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    map_entry *e = object;
    reading *r = context;
    if (json_is_string(json)) {
        e->whole = json_string_value(json);
        return FERRY_OK;
    }
    if (!json_is_array(json)) {
        return fy_json_fail(place, error, "must be the name of a tensor or an array of boxes");
    }
    return fy_json_read_items(json, place, read_box, r, &r->arena, sizeof(box_pattern),
                              "the boxes of a map", &e->boxes, &e->n_boxes, error);
}

static ferry_status read_entry(reading *r, const json_t *json, const fy_json_place *place,
                               bool is_target, map_entry *e, ferry_error *error)
{
    static const fy_json_field target_fields[] = {
        {"name", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(map_entry, name)},
        {"shape", FY_JSON_READ, FY_JSON_NEEDED, .read = read_shape},
        {"dtype", FY_JSON_READ, FY_JSON_NEEDED, offsetof(map_entry, dtype), .read = read_dtype},
        {"count", FY_JSON_READ, .offset = offsetof(map_entry, loops), .read = read_counts},
        {"source", FY_JSON_READ, FY_JSON_NEEDED, .read = read_source},
        {.key = NULL}};
    /* The same without a source. */
    static const fy_json_field source_fields[] = {
        {"name", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(map_entry, name)},
        {"shape", FY_JSON_READ, FY_JSON_NEEDED, .read = read_shape},
        {"dtype", FY_JSON_READ, FY_JSON_NEEDED, offsetof(map_entry, dtype), .read = read_dtype},
        {"count", FY_JSON_READ, .offset = offsetof(map_entry, loops), .read = read_counts},
        {.key = NULL}};
    fy_json_place name_at = {.parent = place, .key = "name"};
    *e = (map_entry){.n_dims = 0};
    FY_TRY(fy_json_read(json, place, is_target ? target_fields : source_fields, e, r, error));
    return check_holes(e->name, e->loops.n, &name_at, error);
}

/* The place, in front of what a call said that knows none. */
static ferry_status fail_at(const fy_json_place *place, ferry_status status,
                            const ferry_error *inner, ferry_error *error)
{
    char text[300];
    fy_json_place_format(place, text, sizeof text);
    return fy_fail(error, status, "%s: %s", text, inner->message);
}

static ferry_status add_tensor(reading *r, fy_map_side *side, map_entry *e,
                               const fy_json_place *place, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    size_t length;
    ferry_error inner;
    FY_TRY(fill_name(e->name, &e->loops, place, name, &length, error));
    ferry_status status = fy_map_add_tensor(r->map, side, name, length, e->dtype,
                                            (uint32_t)e->n_dims, e->shape, &inner);
    return status == FERRY_OK ? FERRY_OK : fail_at(place, status, &inner, error);
}

/* Where a box begins after so many steps of its loops. */
static bool move_by(uint64_t *to, const uint64_t *from, size_t n, uint64_t *const *more,
                    const loops *l, size_t first)
{
    memcpy(to, from, n * sizeof *to);
    for (size_t i = first; i < l->n; i++) {
        for (size_t d = 0; d < n && more[i - first] != NULL; d++) {
            uint64_t step;
            if (!fy_mul(l->at[i], more[i - first][d], &step) || !fy_add(to[d], step, &to[d])) {
                return false;
            }
        }
    }
    return true;
}

static ferry_status add_one(reading *r, uint32_t target, const box_pattern *box, const loops *l,
                            size_t first, const fy_json_place *place, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    size_t length;
    uint64_t begin[FERRY_MAX_DIMS], at[FERRY_MAX_DIMS];
    ferry_error inner;
    const fy_tensor *to = &r->map->targets.tensors[target];
    FY_TRY(fill_name(box->tensor, l, place, name, &length, error));
    uint32_t source = fy_map_find(&r->map->sources, name);
    if (source == FY_NONE) {
        return fy_json_fail(place, error, "of \"%s\" names \"%s\", which is not among the sources",
                            to->name, name);
    }
    uint32_t n_dims = r->map->sources.tensors[source].n_dims;
    if (box->n_begin != n_dims || box->n_at != to->n_dims) {
        return fy_json_fail(place, error,
                            "begins with %zu numbers at %zu, but \"%s\" has %u dimensions and "
                            "\"%s\" %u",
                            box->n_begin, box->n_at, name, n_dims, to->name, to->n_dims);
    }
    if (!move_by(begin, box->begin, n_dims, box->more_begin, l, first) ||
        !move_by(at, box->at, to->n_dims, box->more_at, l, first)) {
        return fy_json_fail(place, error, "of \"%s\" is repeated beyond 2^64", to->name);
    }
    ferry_status status = fy_map_add_piece(r->map, target, source, begin, box->shape, at, &inner);
    return status == FERRY_OK ? FERRY_OK : fail_at(place, status, &inner, error);
}

/* A box, and what its loops make of it. */
static ferry_status add_boxes(reading *r, uint32_t target, const box_pattern *box,
                              const loops *outer, const fy_json_place *place, ferry_error *error)
{
    loops l = *outer;
    for (size_t i = 0; i < box->n_repeats; i++) {
        l.counts[l.n] = box->counts[i];
        l.at[l.n++] = 0;
    }
    do {
        FY_TRY(add_one(r, target, box, &l, outer->n, place, error));
    } while (advance(&l, outer->n));
    return FERRY_OK;
}

static ferry_status add_whole(reading *r, uint32_t target, const map_entry *e,
                              const fy_json_place *place, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    size_t length;
    ferry_error inner;
    FY_TRY(fill_name(e->whole, &e->loops, place, name, &length, error));
    uint32_t source = fy_map_find(&r->map->sources, name);
    if (source == FY_NONE) {
        return fy_json_fail(place, error, "of \"%s\" names \"%s\", which is not among the sources",
                            r->map->targets.tensors[target].name, name);
    }
    ferry_status status = fy_map_add_whole(r->map, target, source, &inner);
    return status == FERRY_OK ? FERRY_OK : fail_at(place, status, &inner, error);
}

static ferry_status add_sources(reading *r, const map_entry *e, uint32_t target,
                                const fy_json_place *place, ferry_error *error)
{
    fy_json_place source_at = {.parent = place, .key = "source"};
    if (e->whole != NULL) {
        return add_whole(r, target, e, &source_at, error);
    }
    for (size_t i = 0; i < e->n_boxes; i++) {
        fy_json_place at = {.parent = &source_at, .index = i};
        FY_TRY(add_boxes(r, target, &e->boxes[i], &e->loops, &at, error));
    }
    return FERRY_OK;
}

static ferry_status read_list(reading *r, const json_t *json, const fy_json_place *place,
                              bool is_target, ferry_error *error)
{
    fy_map_side *side = is_target ? &r->map->targets : &r->map->sources;
    FY_TRY(fy_json_expect_array(json, place, error));
    for (size_t i = 0; i < json_array_size(json); i++) {
        fy_json_place at = {.parent = place, .index = i};
        map_entry e;
        FY_TRY(read_entry(r, json_array_get(json, i), &at, is_target, &e, error));
        do {
            FY_TRY(add_tensor(r, side, &e, &at, error));
            if (is_target) {
                FY_TRY(add_sources(r, &e, side->n - 1, &at, error));
            }
        } while (advance(&e.loops, 0));
    }
    return FERRY_OK;
}

typedef struct map_json {
    const char *format;
    const json_t *sources, *targets;
} map_json;

static ferry_status read_map(reading *r, const json_t *root, const fy_json_place *place,
                             ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"format", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(map_json, format)},
        {"sources", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(map_json, sources)},
        {"targets", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(map_json, targets)},
        {.key = NULL}};
    fy_json_place format_at = {.parent = place, .key = "format"};
    fy_json_place sources_at = {.parent = place, .key = "sources"};
    fy_json_place targets_at = {.parent = place, .key = "targets"};
    map_json m = {.format = NULL};
    FY_TRY(fy_json_read(root, place, fields, &m, NULL, error));
    if (strcmp(m.format, "ferry.map/1") != 0) {
        return fy_json_fail(&format_at, error, "is \"%s\"; this version reads ferry.map/1",
                            m.format);
    }
    FY_TRY(read_list(r, m.sources, &sources_at, false, error));
    return read_list(r, m.targets, &targets_at, true, error);
}

ferry_status ferry_map_parse(const char *text, size_t length, const char *name, ferry_map **map_out,
                             ferry_error *error)
{
    FY_TRY(fy_check_use(text != NULL && map_out != NULL,
                        "ferry_map_parse needs a text and a place for the result", error));
    reading r = {.map = NULL};
    json_t *root = NULL;
    fy_json_place place = {.key = name == NULL ? "map" : name};
    ferry_error inner;
    FY_TRY(fy_json_parse(text, length, place.key, &root, error));
    ferry_status status = ferry_map_create(&r.map, error);
    FY_THEN(status, read_map(&r, root, &place, error));
    if (status == FERRY_OK) {
        status = ferry_map_finish(r.map, &inner);
        if (status != FERRY_OK) {
            (void)fail_at(&place, status, &inner, error);
        }
    }
    if (status == FERRY_OK) {
        *map_out = r.map;
        r.map = NULL;
    }
    ferry_map_destroy(r.map);
    fy_arena_cleanup(&r.arena);
    json_decref(root);
    return status;
}
