/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/plan_file.h"

#include "base/alloc.h"
#include "base/json.h"
#include "prove/spec_read.h"
#include "prove/stream.h"

#include <string.h>

typedef struct plan_file {
    fy_proof_stream stream;
    fy_json_place root;
    fy_proof_tally *tally;
    const fy_proof_takers *takers;
} plan_file;

/* A small value of the plan, by its key. */
typedef ferry_status (*value_fn)(plan_file *file, const json_t *json, const fy_json_place *place,
                                 ferry_error *error);

static ferry_status read_format(plan_file *file, const json_t *json, const fy_json_place *place,
                                ferry_error *error)
{
    const char *format;
    (void)file;
    FY_TRY(fy_json_get_string(json, place, &format, error));
    if (strcmp(format, "ferry.plan/1") != 0) {
        return fy_json_fail(place, error, "is \"%s\", not ferry.plan/1", format);
    }
    return FERRY_OK;
}

static ferry_status read_digest(plan_file *file, const json_t *json, const fy_json_place *place,
                                ferry_error *error)
{
    const char *digest;
    (void)file;
    FY_TRY(fy_json_get_string(json, place, &digest, error));
    if (strlen(digest) != 32 || strspn(digest, "0123456789abcdef") != 32) {
        return fy_json_fail(place, error, "must be 32 hexadecimal digits");
    }
    return FERRY_OK;
}

static ferry_status read_world(plan_file *file, const json_t *json, const fy_json_place *place,
                               ferry_error *error)
{
    return fy_json_get_size(json, place, 0, INT64_MAX, &file->tally->world, error);
}

static ferry_status read_tensors(plan_file *file, const json_t *json, const fy_json_place *place,
                                 ferry_error *error)
{
    return fy_json_get_size(json, place, 0, INT64_MAX, &file->tally->n_tensors, error);
}

/* The lower bound is the planner's opinion and not proven here. */
static ferry_status read_bound(plan_file *file, const json_t *json, const fy_json_place *place,
                               ferry_error *error)
{
    static const fy_json_field fields[] = {
        {.key = "seconds"}, {.key = "rank"}, {.key = "why"}, {.key = NULL}};
    return fy_json_read(json, place, fields, file, NULL, error);
}

/* A count of bytes or a rank, which must be there. */
#define NUMBER(key, type, field)                                                                   \
    {                                                                                              \
        key, FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(type, field), .most = INT64_MAX      \
    }

static ferry_status read_bytes(plan_file *file, const json_t *json, const fy_json_place *place,
                               ferry_error *error)
{
    static const fy_json_field fields[] = {
        NUMBER("moved", fy_proof_tally, stated_moved),
        NUMBER("local", fy_proof_tally, stated_local),
        NUMBER("total", fy_proof_tally, stated_total),
        {.key = NULL},
    };
    return fy_json_read(json, place, fields, file->tally, NULL, error);
}

typedef struct rank_json {
    uint64_t rank;
    fy_proof_bytes bytes;
} rank_json;

static ferry_status read_rank(plan_file *file, const json_t *json, const fy_json_place *place,
                              ferry_error *error)
{
    static const fy_json_field fields[] = {
        NUMBER("rank", rank_json, rank),
        NUMBER("in", rank_json, bytes.in),
        NUMBER("out", rank_json, bytes.out),
        NUMBER("local", rank_json, bytes.local),
        {.key = NULL},
    };
    rank_json r;
    FY_TRY(fy_json_read(json, place, fields, &r, NULL, error));
    return fy_proof_tally_rank(file->tally, r.rank, r.bytes, error);
}

static ferry_status read_move(plan_file *file, const json_t *json, const fy_json_place *place,
                              ferry_error *error)
{
    fy_proof_move move;
    FY_TRY(fy_proof_move_read(file->tally->spec, json, place, &move, error));
    return file->takers->take_move(file->takers->context, &move, error);
}

typedef struct fill_json {
    fy_proof_fill fill;
    const json_t *shape, *strides;
} fill_json;

static ferry_status read_fill(plan_file *file, const json_t *json, const fy_json_place *place,
                              ferry_error *error)
{
    static const fy_json_field fields[] = {
        NUMBER("rank", fill_json, fill.rank),
        {"parameter", FY_JSON_STRING, FY_JSON_NEEDED,
         .offset = offsetof(fill_json, fill.parameter)},
        NUMBER("offset", fill_json, fill.offset),
        {"shape", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(fill_json, shape)},
        {"strides", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(fill_json, strides)},
        {"bits", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(fill_json, fill.bits)},
        {.key = NULL},
    };
    fy_json_place shape = {.parent = place, .key = "shape"};
    fy_json_place strides = {.parent = place, .key = "strides"};
    fill_json f;
    size_t n_strides;
    FY_TRY(fy_json_read(json, place, fields, &f, NULL, error));
    FY_TRY(fy_proof_read_dims(f.shape, &shape, 1, f.fill.shape, &f.fill.n_dims, error));
    FY_TRY(fy_proof_read_dims(f.strides, &strides, 0, f.fill.strides, &n_strides, error));
    if (n_strides != f.fill.n_dims) {
        return fy_json_fail(&strides, error, "has %zu numbers for %zu dimensions", n_strides,
                            f.fill.n_dims);
    }
    return file->takers->take_fill(file->takers->context, &f.fill, error);
}

/* A value of the stream, handed to read. */
static ferry_status read_value(plan_file *file, value_fn read, const fy_json_place *place,
                               ferry_error *error)
{
    json_t *json;
    ferry_status status = fy_proof_stream_value(&file->stream, &json, error);
    if (status == FERRY_OK) {
        status = read(file, json, place, error);
        json_decref(json);
    }
    return status;
}

/* An array of any length, element by element. */
static ferry_status read_array(plan_file *file, value_fn read, const fy_json_place *place,
                               ferry_error *error)
{
    fy_json_place inner = {.parent = place};
    FY_TRY(fy_proof_stream_take(&file->stream, '[', error));
    ferry_status status = FERRY_OK;
    if (fy_proof_stream_peek(&file->stream) == ']') {
        return fy_proof_stream_take(&file->stream, ']', error);
    }
    bool more = true;
    while (status == FERRY_OK && more) {
        status = read_value(file, read, &inner, error);
        FY_THEN(status, fy_proof_stream_more(&file->stream, ']', &more, error));
        inner.index++;
    }
    return status;
}

/*
 * A schedule is only carried along, as is what blocks take of memory: their read is NULL, and they
 * may be absent. Fills stand where the destination is in boxes.
 */
static const struct {
    const char *key;
    bool is_array;
    value_fn read;
} members[] = {
    {"format", false, read_format},   {"digest", false, read_digest}, {"world", false, read_world},
    {"tensors", false, read_tensors}, {"bytes", false, read_bytes},   {"bound", false, read_bound},
    {"ranks", true, read_rank},       {"moves", true, read_move},     {"fills", true, read_fill},
    {"blocks", true, NULL},           {"schedule", false, NULL},
};

enum { N_MEMBERS = sizeof members / sizeof *members };

static bool has_member(const plan_file *file, size_t i)
{
    return members[i].read != read_fill ||
           file->tally->spec->sides[FY_PROOF_DESTINATION].memory != NULL;
}

static ferry_status read_member_value(plan_file *file, size_t i, ferry_error *error)
{
    fy_json_place place = {.parent = &file->root, .key = members[i].key};
    if (members[i].read == NULL) {
        return fy_proof_stream_skip(&file->stream, error);
    }
    return members[i].is_array ? read_array(file, members[i].read, &place, error)
                               : read_value(file, members[i].read, &place, error);
}

/* key: value */
static ferry_status read_member(plan_file *file, bool *seen, ferry_error *error)
{
    json_t *key;
    FY_TRY(fy_proof_stream_value(&file->stream, &key, error));
    ferry_status status = FERRY_OK;
    size_t i = 0;
    while (i < N_MEMBERS &&
           (!json_is_string(key) || strcmp(members[i].key, json_string_value(key)) != 0)) {
        i++;
    }
    bool is_known = i < N_MEMBERS && has_member(file, i);
    if (!is_known || seen[i]) {
        const char *text = json_is_string(key) ? json_string_value(key) : "(no text)";
        status = fy_json_fail(&file->root, error, "has the %s key \"%s\"",
                              is_known ? "repeated" : "unknown", text);
    }
    json_decref(key);
    if (status == FERRY_OK) {
        seen[i] = true;
        status = fy_proof_stream_take(&file->stream, ':', error);
    }
    return status == FERRY_OK ? read_member_value(file, i, error) : status;
}

static ferry_status read_document(plan_file *file, ferry_error *error)
{
    bool seen[N_MEMBERS] = {false};
    bool more = true;
    ferry_status status = fy_proof_stream_take(&file->stream, '{', error);
    while (status == FERRY_OK && more) {
        status = read_member(file, seen, error);
        if (status == FERRY_OK) {
            status = fy_proof_stream_more(&file->stream, '}', &more, error);
        }
    }
    FY_THEN(status, fy_proof_stream_end(&file->stream, error));
    for (size_t i = 0; status == FERRY_OK && i < N_MEMBERS; i++) {
        if (!seen[i] && members[i].read != NULL && has_member(file, i)) {
            status = fy_json_fail(&file->root, error,
                                  "lacks the key \"%s\"; only whole plans can be proven",
                                  members[i].key);
        }
    }
    return status;
}

ferry_status fy_proof_plan_read(const char *path, fy_proof_tally *tally,
                                const fy_proof_takers *takers, ferry_error *error)
{
    plan_file *file = fy_alloc_zeroed(1, sizeof *file);
    FY_TRY(fy_check_memory(file != NULL, "the plan's reader", error));
    file->root.key = path;
    file->tally = tally;
    file->takers = takers;
    ferry_status status = fy_proof_stream_open(&file->stream, path, error);
    FY_THEN(status, read_document(file, error));
    fy_proof_stream_close(&file->stream);
    fy_free(file);
    return status;
}
