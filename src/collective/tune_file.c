/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Saved tables: ferry.tuning/1 of docs/formats.md. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/writer.h"
#include "collective/tune_table.h"

#include <math.h>
#include <string.h>

#define TUNING_FORMAT "ferry.tuning/1"

static const uint64_t MOST_FILE_BYTES = 16u << 20;

enum { MOST_TIMINGS = 1 << 16 };

/* Sizes of a topology by the keys of the file. */
static const char *const TOPOLOGY_KEYS[] = {"local_tp", "local_dp", "inter_tp", "inter_dp", NULL};

static uint32_t topology_size(const fy_topology *t, size_t key)
{
    const uint32_t sizes[] = {t->local_tp, t->local_dp, t->inter_tp, t->inter_dp};
    return sizes[key];
}

static void format_dtype(const ferry_mixed_comm *comm, char text[FERRY_DTYPE_TEXT_BYTES])
{
    ferry_dtype dtype = {0, 0};
    ferry_dtype_of(comm->options.dtype, &dtype, NULL);
    ferry_dtype_format(dtype, text);
}

/* ---- writing ---- */

typedef struct document {
    const ferry_mixed_comm *comm;
    const fy_tuning *tuning;
    ferry_mixed_comm_info info;
} document;

static void write_head(fy_writer *w, const document *d)
{
    const fy_topology *t = &d->comm->topology;
    char dtype[FERRY_DTYPE_TEXT_BYTES];
    format_dtype(d->comm, dtype);
    fy_write_text(w, "{\n  \"format\": \"" TUNING_FORMAT "\",\n  \"topology\": {");
    for (size_t i = 0; TOPOLOGY_KEYS[i] != NULL; i++) {
        fy_write_text(w, i > 0 ? ", " : "");
        fy_write_string(w, TOPOLOGY_KEYS[i]);
        fy_write_text(w, ": ");
        fy_write_u64(w, topology_size(t, i));
    }
    fy_write_text(w, "},\n  \"dtype\": ");
    fy_write_string(w, dtype);
    fy_write_text(w, ",\n  \"deterministic\": ");
    fy_write_text(w, d->comm->options.deterministic ? "true" : "false");
    fy_write_text(w, ",\n  \"engines\": {\"inside\": ");
    fy_write_string(w, d->info.inside_engine);
    fy_write_text(w, ", \"between\": ");
    fy_write_string(w, d->info.between_engine);
    fy_write_text(w, "},\n  \"grid_size\": ");
    fy_write_u64(w, d->comm->n_lanes);
    fy_write_text(w, ",\n  \"timings\": [");
}

static void write_timing(fy_writer *w, const ferry_mixed_timing *t)
{
    fy_write_text(w, "\n    {\"op\": ");
    fy_write_string(w, ferry_mixed_op_name(t->op));
    fy_write_text(w, ", \"bytes\": ");
    fy_write_u64(w, t->bytes);
    fy_write_text(w, ", \"mode\": ");
    fy_write_string(w, ferry_mixed_mode_name(t->mode));
    fy_write_text(w, ", \"block_size\": ");
    fy_write_u64(w, t->block_size);
    fy_write_text(w, ", \"seconds\": ");
    fy_write_double(w, t->seconds);
    fy_write_text(w, t->chosen ? ", \"chosen\": true}" : ", \"chosen\": false}");
}

static ferry_status fill(void *context, void *stream, ferry_error *error)
{
    const document *d = context;
    fy_writer *w = fy_alloc(1, sizeof *w);
    if (w == NULL) {
        return fy_fail_no_memory(error, "a writer");
    }
    fy_writer_init(w, fy_file_write, stream);
    write_head(w, d);
    for (size_t i = 0; i < d->tuning->n; i++) {
        fy_write_text(w, i > 0 ? "," : "");
        write_timing(w, &d->tuning->timings[i]);
    }
    fy_write_text(w, "\n  ]\n}\n");
    ferry_status status = fy_writer_finish(w, error);
    fy_free(w);
    return status;
}

ferry_status fy_tuning_write(const ferry_mixed_comm *comm, const fy_tuning *tuning,
                             const char *path, ferry_error *error)
{
    document d = {comm, tuning, FERRY_MIXED_COMM_INFO_INIT};
    ferry_status status = ferry_mixed_comm_describe(comm, &d.info, error);
    return status == FERRY_OK ? fy_file_replace(path, fill, &d, error) : status;
}

/* ---- reading: what a table is for ---- */

/* A member and its place. */
typedef struct field {
    const json_t *json;
    fy_json_place place;
} field;

static ferry_status find_field(const json_t *object, const fy_json_place *parent, const char *key,
                               field *field_out, ferry_error *error)
{
    field_out->place = (fy_json_place){.parent = parent, .key = key};
    return fy_json_member(object, parent, key, &field_out->json, error);
}

static ferry_status get_text(const json_t *object, const fy_json_place *place, const char *key,
                             const char **text_out, ferry_error *error)
{
    field f;
    ferry_status status = find_field(object, place, key, &f, error);
    return status == FERRY_OK ? fy_json_get_string(f.json, &f.place, text_out, error) : status;
}

static ferry_status get_number(const json_t *object, const fy_json_place *place, const char *key,
                               uint64_t least, uint64_t most, uint64_t *number_out,
                               ferry_error *error)
{
    field f;
    ferry_status status = find_field(object, place, key, &f, error);
    return status == FERRY_OK ? fy_json_get_size(f.json, &f.place, least, most, number_out, error)
                              : status;
}

static ferry_status get_flag(const json_t *object, const fy_json_place *place, const char *key,
                             bool *flag_out, ferry_error *error)
{
    field f;
    ferry_status status = find_field(object, place, key, &f, error);
    return status == FERRY_OK ? fy_json_get_bool(f.json, &f.place, flag_out, error) : status;
}

static ferry_status check_topology(const ferry_mixed_comm *comm, const json_t *root,
                                   const fy_json_place *place, ferry_error *error)
{
    field f;
    ferry_status status = find_field(root, place, "topology", &f, error);
    if (status == FERRY_OK) {
        status = fy_json_expect_object(f.json, &f.place, TOPOLOGY_KEYS, error);
    }
    for (size_t i = 0; status == FERRY_OK && TOPOLOGY_KEYS[i] != NULL; i++) {
        uint64_t size = 0;
        uint32_t own = topology_size(&comm->topology, i);
        status =
            get_number(f.json, &f.place, TOPOLOGY_KEYS[i], 1, FY_TOPOLOGY_MOST_RANKS, &size, error);
        if (status == FERRY_OK && size != own) {
            status = fy_json_fail(&f.place, error, "has %s %llu, but that of this handle is %u",
                                  TOPOLOGY_KEYS[i], (unsigned long long)size, own);
        }
    }
    return status;
}

static ferry_status check_dtype(const ferry_mixed_comm *comm, const json_t *root,
                                const fy_json_place *place, ferry_error *error)
{
    char own[FERRY_DTYPE_TEXT_BYTES];
    const char *text = NULL;
    ferry_status status = get_text(root, place, "dtype", &text, error);
    format_dtype(comm, own);
    if (status == FERRY_OK && strcmp(text, own) != 0) {
        status = fy_json_fail(place, error, "dtype is \"%s\", but that of this handle is \"%s\"",
                              text, own);
    }
    return status;
}

static ferry_status check_tree(const ferry_mixed_comm *comm, const json_t *root,
                               const fy_json_place *place, ferry_error *error)
{
    bool flag = false;
    ferry_status status = get_flag(root, place, "deterministic", &flag, error);
    if (status == FERRY_OK && flag != comm->options.deterministic) {
        status =
            fy_json_fail(place, error, "deterministic is %s, but %s for this handle",
                         flag ? "true" : "false", comm->options.deterministic ? "true" : "false");
    }
    return status;
}

/* Times of other engines or lanes are worth less, but no harm. */
static ferry_status note_engines(const ferry_mixed_comm *comm, const json_t *root,
                                 const fy_json_place *place, ferry_error *error)
{
    static const char *const keys[] = {"inside", "between", NULL};

    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    const char *inside = NULL, *between = NULL;
    uint64_t lanes = 0;
    field f;
    ferry_status status = find_field(root, place, "engines", &f, error);
    if (status == FERRY_OK) {
        status = fy_json_expect_object(f.json, &f.place, keys, error);
    }
    if (status == FERRY_OK) {
        status = get_text(f.json, &f.place, "inside", &inside, error);
    }
    if (status == FERRY_OK) {
        status = get_text(f.json, &f.place, "between", &between, error);
    }
    if (status == FERRY_OK) {
        status = get_number(root, place, "grid_size", 1, UINT32_MAX, &lanes, error);
    }
    if (status == FERRY_OK) {
        status = ferry_mixed_comm_describe(comm, &info, error);
    }
    if (status == FERRY_OK &&
        (strcmp(inside, info.inside_engine) != 0 || strcmp(between, info.between_engine) != 0 ||
         lanes != comm->n_lanes)) {
        fy_log(FERRY_LOG_INFO,
               "%s was measured with %llu lanes and engines \"%s\" and \"%s\"; this handle has %u, "
               "\"%s\" and \"%s\"",
               place->key, (unsigned long long)lanes, inside, between, comm->n_lanes,
               info.inside_engine, info.between_engine);
    }
    return status;
}

static ferry_status check_head(const ferry_mixed_comm *comm, const json_t *root,
                               const fy_json_place *place, ferry_error *error)
{
    static const char *const keys[] = {"format",  "topology",  "dtype",   "deterministic",
                                       "engines", "grid_size", "timings", NULL};

    const char *format = NULL;
    ferry_status status = fy_json_expect_object(root, place, keys, error);
    if (status == FERRY_OK) {
        status = get_text(root, place, "format", &format, error);
    }
    if (status == FERRY_OK && strcmp(format, TUNING_FORMAT) != 0) {
        status =
            fy_json_fail(place, error, "format must be \"%s\", not \"%s\"", TUNING_FORMAT, format);
    }
    if (status == FERRY_OK) {
        status = check_topology(comm, root, place, error);
    }
    if (status == FERRY_OK) {
        status = check_dtype(comm, root, place, error);
    }
    if (status == FERRY_OK) {
        status = check_tree(comm, root, place, error);
    }
    return status == FERRY_OK ? note_engines(comm, root, place, error) : status;
}

/* ---- reading: its times ---- */

static bool offers_op(const ferry_mixed_comm *comm, uint32_t op)
{
    for (size_t i = 0; i < comm->n_ops; i++) {
        if (comm->ops[i] == op) {
            return true;
        }
    }
    return false;
}

/* The names as they are written: without the freedom that people have. */
static ferry_status read_names(const ferry_mixed_comm *comm, const json_t *json,
                               const fy_json_place *place, ferry_mixed_timing *timing,
                               ferry_error *error)
{
    const char *op = NULL, *mode = NULL;
    ferry_error why;
    ferry_status status = get_text(json, place, "op", &op, error);
    if (status == FERRY_OK) {
        status = get_text(json, place, "mode", &mode, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (ferry_mixed_op_parse(op, &timing->op, &why) != FERRY_OK ||
        ferry_mixed_mode_parse(mode, &timing->mode, &why) != FERRY_OK) {
        return fy_json_fail(place, error, "%s", why.message);
    }
    if (strcmp(op, ferry_mixed_op_name(timing->op)) != 0 ||
        strcmp(mode, ferry_mixed_mode_name(timing->mode)) != 0) {
        return fy_json_fail(place, error, "must be written \"%s\" and \"%s\"",
                            ferry_mixed_op_name(timing->op), ferry_mixed_mode_name(timing->mode));
    }
    if (!offers_op(comm, timing->op)) {
        return fy_json_fail(place, error, "op %s is not offered by this topology",
                            ferry_mixed_op_name(timing->op));
    }
    if (timing->mode < FERRY_MIXED_FUSED_WAITS_MULTICAST) {
        return fy_json_fail(place, error, "mode %s is none that is measured",
                            ferry_mixed_mode_name(timing->mode));
    }
    return FERRY_OK;
}

static ferry_status read_seconds(const json_t *json, const fy_json_place *place,
                                 double *seconds_out, ferry_error *error)
{
    field f;
    ferry_status status = find_field(json, place, "seconds", &f, error);
    if (status != FERRY_OK) {
        return status;
    }
    double seconds = json_number_value(f.json);
    if (!json_is_number(f.json) || !(seconds >= 0) || isinf(seconds)) {
        return fy_json_fail(&f.place, error, "must be a number from 0 on");
    }
    *seconds_out = seconds;
    return FERRY_OK;
}

static ferry_status check_chosen(const ferry_mixed_comm *comm, const ferry_mixed_timing *t,
                                 const fy_json_place *place, ferry_error *error)
{
    if (t->seconds == 0) {
        return fy_json_fail(place, error, "is chosen, but has no time");
    }
    if (!fy_comm_has_mode(comm, t->mode)) {
        return fy_json_fail(place, error, "is chosen, but mode %s is not offered by this handle",
                            ferry_mixed_mode_name(t->mode));
    }
    if (t->block_size > fy_tuning_most_lines(comm)) {
        return fy_json_fail(place, error,
                            "is chosen, but its block_size %u is more than the %u lines that "
                            "max_block_size and staging_bytes of this handle allow",
                            t->block_size, fy_tuning_most_lines(comm));
    }
    return FERRY_OK;
}

static ferry_status read_timing(const ferry_mixed_comm *comm, const json_t *json,
                                const fy_json_place *place, ferry_mixed_timing *timing,
                                ferry_error *error)
{
    static const char *const keys[] = {"op",      "bytes",  "mode", "block_size",
                                       "seconds", "chosen", NULL};

    uint64_t block = 0;
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    timing->struct_size = sizeof *timing;
    if (status == FERRY_OK) {
        status = read_names(comm, json, place, timing, error);
    }
    if (status == FERRY_OK) {
        status = get_number(json, place, "bytes", 1, INT64_MAX, &timing->bytes, error);
    }
    if (status == FERRY_OK) {
        status = get_number(json, place, "block_size", 0, UINT32_MAX, &block, error);
    }
    if (status == FERRY_OK) {
        status = read_seconds(json, place, &timing->seconds, error);
    }
    if (status == FERRY_OK) {
        status = get_flag(json, place, "chosen", &timing->chosen, error);
    }
    timing->block_size = (uint32_t)block;
    return status == FERRY_OK && timing->chosen ? check_chosen(comm, timing, place, error) : status;
}

static bool is_before(const ferry_mixed_timing *a, const ferry_mixed_timing *b)
{
    return a->op != b->op         ? a->op < b->op
           : a->bytes != b->bytes ? a->bytes < b->bytes
                                  : a->mode < b->mode;
}

/* In order, and of each operation and size one is chosen. */
static ferry_status check_order(const fy_tuning *tuning, const fy_json_place *list,
                                ferry_error *error)
{
    size_t n_chosen = 0;
    for (size_t i = 0; i < tuning->n; i++) {
        const ferry_mixed_timing *t = &tuning->timings[i];
        fy_json_place place = {.parent = list, .index = i};
        bool last = i + 1 == tuning->n;
        if (!last && !is_before(t, t + 1)) {
            place.index = i + 1;
            return fy_json_fail(&place, error,
                                "must come after the one before it by op, bytes and mode");
        }
        n_chosen += t->chosen;
        if (last || t[1].op != t->op || t[1].bytes != t->bytes) {
            if (n_chosen != 1) {
                return fy_json_fail(
                    &place, error, "ends %s at %llu bytes, of which %zu are chosen, and not one",
                    ferry_mixed_op_name(t->op), (unsigned long long)t->bytes, n_chosen);
            }
            n_chosen = 0;
        }
    }
    return FERRY_OK;
}

static ferry_status check_ops(const ferry_mixed_comm *comm, const fy_tuning *tuning,
                              const fy_json_place *list, ferry_error *error)
{
    for (size_t i = 0; i < comm->n_ops; i++) {
        uint32_t op = comm->ops[i];
        if (tuning->first[op] == tuning->first[op + 1]) {
            return fy_json_fail(list, error, "has no time of %s", ferry_mixed_op_name(op));
        }
    }
    return FERRY_OK;
}

static ferry_status read_timings(const ferry_mixed_comm *comm, const field *list, fy_tuning *tuning,
                                 ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < tuning->room; i++) {
        fy_json_place place = {.parent = &list->place, .index = i};
        status =
            read_timing(comm, json_array_get(list->json, i), &place, &tuning->timings[i], error);
        tuning->n = i + 1;
    }
    if (status == FERRY_OK) {
        status = check_order(tuning, &list->place, error);
    }
    if (status == FERRY_OK) {
        fy_tuning_index(tuning);
        status = check_ops(comm, tuning, &list->place, error);
    }
    return status;
}

static ferry_status read_document(const ferry_mixed_comm *comm, const json_t *root,
                                  const char *path, fy_tuning **tuning_out, ferry_error *error)
{
    fy_json_place place = {.key = path};
    field list;
    ferry_status status = check_head(comm, root, &place, error);
    if (status == FERRY_OK) {
        status = find_field(root, &place, "timings", &list, error);
    }
    if (status == FERRY_OK) {
        status = fy_json_expect_array(list.json, &list.place, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    size_t n = json_array_size(list.json);
    if (n > MOST_TIMINGS) {
        return fy_json_fail(&list.place, error, "has %zu times, more than %d", n,
                            (int)MOST_TIMINGS);
    }
    fy_tuning *tuning = fy_tuning_create(n);
    if (tuning == NULL) {
        return fy_fail_no_memory(error, path);
    }
    status = read_timings(comm, &list, tuning, error);
    if (status != FERRY_OK) {
        fy_tune_destroy(tuning);
        return status;
    }
    *tuning_out = tuning;
    return FERRY_OK;
}

/* What is wrong with a table is nothing that its user mends: a new one is made. */
static ferry_status add_remedy(ferry_status status, ferry_error *error)
{
    if (status != FERRY_ERR_INVALID_INPUT || error == NULL) {
        return status;
    }
    ferry_error why = *error;
    return fy_fail(error, status,
                   "%.900s; `ferry tune --out` makes a table for a topology and type", why.message);
}

ferry_status fy_tuning_read(const ferry_mixed_comm *comm, const char *path, fy_tuning **tuning_out,
                            ferry_error *error)
{
    char *text = NULL;
    size_t length = 0;
    json_t *root = NULL;
    ferry_status status = fy_file_read(path, MOST_FILE_BYTES, &text, &length, error);
    if (status == FERRY_OK) {
        status = fy_json_parse(text, length, path, &root, error);
    }
    if (status == FERRY_OK) {
        status = read_document(comm, root, path, tuning_out, error);
    }
    json_decref(root);
    fy_free(text);
    return add_remedy(status, error);
}
