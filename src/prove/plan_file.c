/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/plan_file.h"

#include "base/alloc.h"
#include "base/json.h"
#include "prove/stream.h"

#include <string.h>

typedef struct plan_file {
    fy_proof_stream stream;
    fy_json_place root;
    fy_proof_tally *tally;
    fy_proof_move_fn take;
    void *context;
} plan_file;

/* A small value of the plan, by its key. */
typedef ferry_status (*value_fn)(plan_file *file, const json_t *json, const fy_json_place *place,
                                 ferry_error *error);

static ferry_status read_format(plan_file *file, const json_t *json, const fy_json_place *place,
                                ferry_error *error)
{
    const char *format;
    (void)file;
    ferry_status status = fy_json_get_string(json, place, &format, error);
    if (status == FERRY_OK && strcmp(format, "ferry.plan/1") != 0) {
        return fy_json_fail(place, error, "is \"%s\", not ferry.plan/1", format);
    }
    return status;
}

static ferry_status read_digest(plan_file *file, const json_t *json, const fy_json_place *place,
                                ferry_error *error)
{
    const char *digest;
    (void)file;
    ferry_status status = fy_json_get_string(json, place, &digest, error);
    if (status == FERRY_OK && (strlen(digest) != 32 || strspn(digest, "0123456789abcdef") != 32)) {
        return fy_json_fail(place, error, "must be 32 hexadecimal digits");
    }
    return status;
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
    static const char *const keys[] = {"seconds", "rank", "why", NULL};
    (void)file;
    return fy_json_expect_object(json, place, keys, error);
}

static ferry_status get_number(const json_t *json, const fy_json_place *place, const char *key,
                               uint64_t *value_out, ferry_error *error)
{
    const json_t *member;
    fy_json_place inner = {.parent = place, .key = key};
    ferry_status status = fy_json_member(json, place, key, &member, error);
    return status == FERRY_OK ? fy_json_get_size(member, &inner, 0, INT64_MAX, value_out, error)
                              : status;
}

static ferry_status read_bytes(plan_file *file, const json_t *json, const fy_json_place *place,
                               ferry_error *error)
{
    static const char *const keys[] = {"moved", "local", "total", NULL};
    fy_proof_tally *tally = file->tally;
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = get_number(json, place, "moved", &tally->stated_moved, error);
    }
    if (status == FERRY_OK) {
        status = get_number(json, place, "local", &tally->stated_local, error);
    }
    if (status == FERRY_OK) {
        status = get_number(json, place, "total", &tally->stated_total, error);
    }
    return status;
}

static ferry_status read_rank(plan_file *file, const json_t *json, const fy_json_place *place,
                              ferry_error *error)
{
    static const char *const keys[] = {"rank", "in", "out", "local", NULL};
    uint64_t rank;
    fy_proof_bytes bytes;
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = get_number(json, place, "rank", &rank, error);
    }
    if (status == FERRY_OK) {
        status = get_number(json, place, "in", &bytes.in, error);
    }
    if (status == FERRY_OK) {
        status = get_number(json, place, "out", &bytes.out, error);
    }
    if (status == FERRY_OK) {
        status = get_number(json, place, "local", &bytes.local, error);
    }
    return status == FERRY_OK ? fy_proof_tally_rank(file->tally, rank, bytes, error) : status;
}

static ferry_status read_move(plan_file *file, const json_t *json, const fy_json_place *place,
                              ferry_error *error)
{
    fy_proof_move move;
    ferry_status status = fy_proof_move_read(file->tally->spec, json, place, &move, error);
    return status == FERRY_OK ? file->take(file->context, &move, error) : status;
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
    ferry_status status = fy_proof_stream_take(&file->stream, '[', error);
    if (status != FERRY_OK) {
        return status;
    }
    if (fy_proof_stream_peek(&file->stream) == ']') {
        return fy_proof_stream_take(&file->stream, ']', error);
    }
    bool more = true;
    while (status == FERRY_OK && more) {
        status = read_value(file, read, &inner, error);
        if (status == FERRY_OK) {
            status = fy_proof_stream_more(&file->stream, ']', &more, error);
        }
        inner.index++;
    }
    return status;
}

/* A schedule is only carried along: its read is NULL, and it may be absent. */
static const struct {
    const char *key;
    bool is_array;
    value_fn read;
} members[] = {
    {"format", false, read_format},   {"digest", false, read_digest}, {"world", false, read_world},
    {"tensors", false, read_tensors}, {"bytes", false, read_bytes},   {"bound", false, read_bound},
    {"ranks", true, read_rank},       {"moves", true, read_move},     {"schedule", false, NULL},
};

enum { N_MEMBERS = sizeof members / sizeof *members };

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
    ferry_status status = fy_proof_stream_value(&file->stream, &key, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t i = 0;
    while (i < N_MEMBERS &&
           (!json_is_string(key) || strcmp(members[i].key, json_string_value(key)) != 0)) {
        i++;
    }
    if (i == N_MEMBERS || seen[i]) {
        const char *text = json_is_string(key) ? json_string_value(key) : "(no text)";
        status = fy_json_fail(&file->root, error, "has the %s key \"%s\"",
                              i == N_MEMBERS ? "unknown" : "repeated", text);
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
    if (status == FERRY_OK) {
        status = fy_proof_stream_end(&file->stream, error);
    }
    for (size_t i = 0; status == FERRY_OK && i < N_MEMBERS; i++) {
        if (!seen[i] && members[i].read != NULL) {
            status = fy_json_fail(&file->root, error,
                                  "lacks the key \"%s\"; only whole plans can be proven",
                                  members[i].key);
        }
    }
    return status;
}

ferry_status fy_proof_plan_read(const char *path, fy_proof_tally *tally, fy_proof_move_fn take,
                                void *context, ferry_error *error)
{
    plan_file *file = fy_alloc_zeroed(1, sizeof *file);
    if (file == NULL) {
        return fy_fail_no_memory(error, "the plan's reader");
    }
    file->root.key = path;
    file->tally = tally;
    file->take = take;
    file->context = context;
    ferry_status status = fy_proof_stream_open(&file->stream, path, error);
    if (status == FERRY_OK) {
        status = read_document(file, error);
    }
    fy_proof_stream_close(&file->stream);
    fy_free(file);
    return status;
}
