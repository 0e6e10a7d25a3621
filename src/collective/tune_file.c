/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Saved tables: ferry.tuning/1 of docs/formats.md. */
#include "base/alloc.h"
#include "base/json.h"
#include "base/log.h"
#include "base/writer.h"
#include "collective/library.h"
#include "collective/tune_table.h"
#include "host/file.h"

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
    ferry_dtype_format(dtype, text, FERRY_DTYPE_TEXT_BYTES);
}

/* ---- writing ---- */

typedef struct document {
    const ferry_mixed_comm *comm;
    const fy_tuning *tuning;
    ferry_mixed_comm_info info;
} document;

static void write_head(fy_writer *w, const document *d)
{
    const fy_topology *t = &d->comm->program.topology;
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
    if (d->comm->library != NULL) {
        fy_write_text(w, ", \"base\": ");
        fy_write_string(w, d->info.base_engine);
    }
    fy_write_text(w, "},\n  \"grid_size\": ");
    fy_write_u64(w, fy_comm_program(d->comm)->n_lanes);
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
    fy_write_u64(w, t->block_lines);
    fy_write_text(w, ", \"seconds\": ");
    fy_write_double(w, t->seconds);
    fy_write_text(w, t->chosen ? ", \"chosen\": true}" : ", \"chosen\": false}");
}

static ferry_status fill(void *context, void *stream, ferry_error *error)
{
    const document *d = context;
    fy_writer *w = fy_alloc(1, sizeof *w);
    FY_TRY(fy_check_memory(w != NULL, "a writer", error));
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
    FY_TRY(ferry_mixed_comm_get_info(comm, &d.info, error));
    return fy_file_replace(path, fill, &d, error);
}

/* ---- reading: what a table is for ---- */

/* What a table begins with. */
typedef struct head {
    const char *format, *dtype, *inside, *between, *base;
    uint32_t sizes[4]; /* by TOPOLOGY_KEYS */
    uint32_t n_lanes;
    bool is_deterministic;
    const json_t *timings;
} head;

static ferry_status read_topology(const json_t *json, const fy_json_place *place, void *object,
                                  void *context, ferry_error *error)
{
    uint32_t *sizes = object;
    const ferry_mixed_comm *comm = context;
    fy_json_field fields[] = {[4] = {.key = NULL}};
    for (size_t i = 0; TOPOLOGY_KEYS[i] != NULL; i++) {
        fields[i] = (fy_json_field){TOPOLOGY_KEYS[i], FY_JSON_U32,
                                    FY_JSON_NEEDED,   .offset = i * sizeof *sizes,
                                    .least = 1,       .most = FY_MIX_TOPOLOGY_MOST_RANKS};
    }
    FY_TRY(fy_json_read(json, place, fields, sizes, NULL, error));
    for (size_t i = 0; TOPOLOGY_KEYS[i] != NULL; i++) {
        uint32_t own = topology_size(&comm->program.topology, i);
        if (sizes[i] != own) {
            return fy_json_fail(place, error, "has %s %u, but that of this handle is %u",
                                TOPOLOGY_KEYS[i], sizes[i], own);
        }
    }
    return FERRY_OK;
}

static ferry_status read_engines(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"inside", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(head, inside)},
        {"between", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(head, between)},
        {"base", FY_JSON_STRING, FY_JSON_OPTIONAL, .offset = offsetof(head, base)},
        {.key = NULL}};
    return fy_json_read(json, place, fields, object, context, error);
}

static const fy_json_field head_fields[] = {
    {"format", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(head, format)},
    {"topology", FY_JSON_READ, FY_JSON_NEEDED, .offset = offsetof(head, sizes),
     .read = read_topology},
    {"dtype", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(head, dtype)},
    {"deterministic", FY_JSON_BOOL, FY_JSON_NEEDED, .offset = offsetof(head, is_deterministic)},
    {"engines", FY_JSON_READ, FY_JSON_NEEDED, .read = read_engines},
    {"grid_size", FY_JSON_U32, FY_JSON_NEEDED, .offset = offsetof(head, n_lanes), .least = 1,
     .most = UINT32_MAX},
    {"timings", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(head, timings)},
    {.key = NULL}};

/* "nccl" of "nccl 2.28.3": another version is worth less, but does the same. */
static bool has_same_base(const ferry_mixed_comm *comm, const head *h)
{
    const char *own = fy_mix_library_name(comm->library);
    size_t n = strcspn(own, " ");
    return strcspn(h->base, " ") == n && strncmp(h->base, own, n) == 0;
}

/* Times of other engines or lanes are worth less, but no harm. */
static ferry_status note_engines(const ferry_mixed_comm *comm, const head *h, const char *path,
                                 ferry_error *error)
{
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    FY_TRY(ferry_mixed_comm_get_info(comm, &info, error));
    if (strcmp(h->inside, info.inside_engine) != 0 ||
        strcmp(h->between, info.between_engine) != 0 ||
        h->n_lanes != fy_comm_program(comm)->n_lanes) {
        fy_log(FERRY_LOG_INFO,
               "%s was measured with %u lanes and engines \"%s\" and \"%s\"; this handle has %u, "
               "\"%s\" and \"%s\"",
               path, h->n_lanes, h->inside, h->between, fy_comm_program(comm)->n_lanes,
               info.inside_engine, info.between_engine);
    }
    if (!has_same_base(comm, h)) {
        fy_log(
            FERRY_LOG_INFO,
            "the base modes of %s are those of %s, and of this handle those of %s: autotune takes "
            "none of them",
            path, h->base, info.base_engine);
    }
    return FERRY_OK;
}

static ferry_status read_head(const ferry_mixed_comm *comm, const json_t *root,
                              const fy_json_place *place, head *h, ferry_error *error)
{
    char own[FERRY_DTYPE_TEXT_BYTES];
    FY_TRY(fy_json_read(root, place, head_fields, h, (void *)(uintptr_t)comm, error));
    if (strcmp(h->format, TUNING_FORMAT) != 0) {
        return fy_json_fail(place, error, "format must be \"%s\", not \"%s\"", TUNING_FORMAT,
                            h->format);
    }
    format_dtype(comm, own);
    if (strcmp(h->dtype, own) != 0) {
        return fy_json_fail(place, error, "dtype is \"%s\", but that of this handle is \"%s\"",
                            h->dtype, own);
    }
    if (h->is_deterministic != comm->options.deterministic) {
        return fy_json_fail(place, error, "deterministic is %s, but %s for this handle",
                            h->is_deterministic ? "true" : "false",
                            comm->options.deterministic ? "true" : "false");
    }
    return note_engines(comm, h, place->key, error);
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
static ferry_status check_names(const ferry_mixed_comm *comm, const char *op, const char *mode,
                                const fy_json_place *place, ferry_mixed_timing *timing,
                                ferry_error *error)
{
    ferry_error why;
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

static ferry_status read_seconds(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    double seconds = json_number_value(json);
    (void)context;
    if (!json_is_number(json) || !(seconds >= 0) || isinf(seconds)) {
        return fy_json_fail(place, error, "must be a number from 0 on");
    }
    *(double *)object = seconds;
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
    if (t->block_lines > fy_tuning_most_lines(comm)) {
        return fy_json_fail(place, error,
                            "is chosen, but its block_size %u is more than the %u lines that "
                            "max_block_size and staging_bytes of this handle allow",
                            t->block_lines, fy_tuning_most_lines(comm));
    }
    return FERRY_OK;
}

typedef struct timing_json {
    const char *op, *mode;
    ferry_mixed_timing timing;
} timing_json;

static ferry_status read_timing(const ferry_mixed_comm *comm, const json_t *json,
                                const fy_json_place *place, ferry_mixed_timing *timing,
                                ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"op", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(timing_json, op)},
        {"bytes", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(timing_json, timing.bytes),
         .least = 1, .most = INT64_MAX},
        {"mode", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(timing_json, mode)},
        {"block_size", FY_JSON_U32, FY_JSON_NEEDED,
         .offset = offsetof(timing_json, timing.block_lines), .most = UINT32_MAX},
        {"seconds", FY_JSON_READ, FY_JSON_NEEDED, .offset = offsetof(timing_json, timing.seconds),
         .read = read_seconds},
        {"chosen", FY_JSON_BOOL, FY_JSON_NEEDED, .offset = offsetof(timing_json, timing.chosen)},
        {.key = NULL}};
    timing_json t = {.timing = {.struct_size = sizeof *timing}};
    FY_TRY(fy_json_read(json, place, fields, &t, NULL, error));
    FY_TRY(check_names(comm, t.op, t.mode, place, &t.timing, error));
    *timing = t.timing;
    return timing->chosen ? check_chosen(comm, timing, place, error) : FERRY_OK;
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

/* Of timings of one operation and size, without BASE modes, the fastest; NULL: none has a time. */
static ferry_mixed_timing *fastest_fused(const ferry_mixed_comm *comm, ferry_mixed_timing *timings,
                                         size_t n)
{
    ferry_mixed_timing *best = NULL;
    for (size_t i = 0; i < n; i++) {
        ferry_mixed_timing *t = &timings[i];
        bool may = t->mode < FERRY_MIXED_BASE_ONE && t->seconds > 0 &&
                   fy_comm_has_mode(comm, t->mode) && t->block_lines <= fy_tuning_most_lines(comm);
        best = may && (best == NULL || t->seconds < best->seconds) ? t : best;
    }
    return best;
}

/* The table's BASE modes are another's collectives: what they took says nothing of this handle's.
 */
static void leave_base_out(const ferry_mixed_comm *comm, fy_tuning *tuning)
{
    for (size_t first = 0, n; first < tuning->n; first += n) {
        ferry_mixed_timing *t = &tuning->timings[first], *chosen = NULL;
        for (n = 0; first + n < tuning->n && t[n].op == t->op && t[n].bytes == t->bytes; n++) {
            chosen = t[n].chosen ? &t[n] : chosen;
        }
        ferry_mixed_timing *best = fastest_fused(comm, t, n);
        if (chosen->mode >= FERRY_MIXED_BASE_ONE && best != NULL) {
            chosen->chosen = false;
            best->chosen = true;
        }
    }
}

static ferry_status read_timings(const ferry_mixed_comm *comm, const json_t *json,
                                 const fy_json_place *list, bool has_base, fy_tuning *tuning,
                                 ferry_error *error)
{
    for (size_t i = 0; i < tuning->room; i++) {
        fy_json_place place = {.parent = list, .index = i};
        FY_TRY(read_timing(comm, json_array_get(json, i), &place, &tuning->timings[i], error));
        tuning->n = i + 1;
    }
    FY_TRY(check_order(tuning, list, error));
    if (!has_base) {
        leave_base_out(comm, tuning);
    }
    fy_tuning_index(tuning);
    return check_ops(comm, tuning, list, error);
}

static ferry_status read_document(const ferry_mixed_comm *comm, const json_t *root,
                                  const char *path, fy_tuning **tuning_out, ferry_error *error)
{
    fy_json_place place = {.key = path};
    fy_json_place list = {.parent = &place, .key = "timings"};
    head h = {.base = "ferry"};
    FY_TRY(read_head(comm, root, &place, &h, error));
    FY_TRY(fy_json_expect_array(h.timings, &list, error));
    size_t n = json_array_size(h.timings);
    if (n > MOST_TIMINGS) {
        return fy_json_fail(&list, error, "has %zu times, more than %d", n, (int)MOST_TIMINGS);
    }
    fy_tuning *tuning = fy_tuning_create(n);
    FY_TRY(fy_check_memory(tuning != NULL, path, error));
    ferry_status status =
        read_timings(comm, h.timings, &list, has_same_base(comm, &h), tuning, error);
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
    FY_THEN(status, fy_json_parse(text, length, path, &root, error));
    FY_THEN(status, read_document(comm, root, path, tuning_out, error));
    json_decref(root);
    fy_free(text);
    return add_remedy(status, error);
}
