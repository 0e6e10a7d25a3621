/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/reshard.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/options.h"
#include "checkpoint/crew.h"
#include "checkpoint/layout_file.h"
#include "checkpoint/open.h"
#include "checkpoint/others.h"
#include "checkpoint/short_form.h"
#include "exec/cast.h"
#include "host/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const uint64_t DEFAULT_PART_BYTES = 5000000000u;
static const uint64_t DEFAULT_CAP_BYTES = (uint64_t)256 << 20;
static const uint64_t LEAST_CAP_BYTES = (uint64_t)1 << 20;
static const uint64_t MOST_CONFIG_BYTES = (uint64_t)64 << 20;

enum {
    /* A window and what it is made of stay in the second cache of a core. */
    MOST_WINDOW_BYTES = 512 << 10,
    MOST_SPAN_BYTES = 1 << 20,
    LEAST_SHARE_BYTES = 128 << 10,
    MOST_THREADS = 128
};

fy_buffers fy_share_memory(uint64_t cap_bytes, uint32_t n_threads)
{
    fy_buffers b = {.n_threads = n_threads == 0 ? fy_crew_default_size() : n_threads};
    uint64_t cap = cap_bytes == 0 ? DEFAULT_CAP_BYTES : cap_bytes;
    b.n_threads = (uint32_t)fy_min(b.n_threads, cap / LEAST_SHARE_BYTES);
    /* Of a thread's share: a span, a window, a window that was cast, and hashers. */
    uint64_t share = cap / b.n_threads;
    b.span_bytes = fy_min(share * 3 / 8, MOST_SPAN_BYTES);
    b.window_bytes = fy_min(share / 4, MOST_WINDOW_BYTES);
    return b;
}

ferry_status fy_check_buffers(uint64_t cap_bytes, uint32_t n_threads, ferry_error *error)
{
    if (n_threads > MOST_THREADS) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%u threads are more than the maximum of %d; 0 means one for each core",
                       n_threads, MOST_THREADS);
    }
    if (cap_bytes == 0 || cap_bytes >= LEAST_CAP_BYTES) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_MISUSE,
                   "a memory cap of %llu bytes is less than the minimum of %llu",
                   (unsigned long long)cap_bytes, (unsigned long long)LEAST_CAP_BYTES);
}

/* ---- where to ---- */

/* The source's config.json. */
typedef struct config_text {
    char *text; /* NULL: there is none, or nobody needs it */
    size_t length;
} config_text;

static bool copies_config(const ferry_checkpoint *from)
{
    for (size_t i = 0; i < from->n_others; i++) {
        if (from->others[i].left_out == NULL && strcmp(from->others[i].name, FY_CONFIG_NAME) == 0) {
            return true;
        }
    }
    return false;
}

/* Once for all: it may be another one later. */
static ferry_status read_config(const ferry_reshard *c, config_text *config_out, ferry_error *error)
{
    const ferry_checkpoint *from = c->from;
    if (!fy_short_form_is(c->to) && (c->cast == 0 || !copies_config(from))) {
        return FERRY_OK;
    }
    struct stat about;
    ferry_status status = FERRY_OK;
    char *path = fy_ckpt_join(from->folder, FY_CONFIG_NAME);
    FY_TRY(fy_check_memory(path != NULL, "a file name", error));
    if (fstatat(from->folder_fd, FY_CONFIG_NAME, &about, 0) == 0) {
        status = fy_file_read_in(from->folder_fd, FY_CONFIG_NAME, path, MOST_CONFIG_BYTES,
                                 &config_out->text, &config_out->length, error);
    }
    fy_free(path);
    return status;
}

static ferry_status parse_config(const ferry_checkpoint *from, const config_text *config,
                                 json_t **config_out, ferry_error *error)
{
    char *path = fy_ckpt_join(from->folder, FY_CONFIG_NAME);
    FY_TRY(fy_check_memory(path != NULL, "a file name", error));
    ferry_status status =
        config->text == NULL ? FERRY_OK
                             : fy_json_parse(config->text, config->length, path, config_out, error);
    fy_free(path);
    return status;
}

const char *fy_reshard_torch_dtype(const ferry_reshard *c)
{
    switch (c->cast) {
    case FERRY_F32:
        return "float32";
    case FERRY_F16:
        return "float16";
    case FERRY_BF16:
        return "bfloat16";
    case FERRY_F8E4M3:
        return "float8_e4m3fn";
    case FERRY_F8E5M2:
        return "float8_e5m2";
    default:
        return NULL;
    }
}

static ferry_status apply_short_form(ferry_reshard *c, const config_text *text, ferry_error *error)
{
    const ferry_checkpoint *from = c->from;
    json_t *config = NULL;
    fy_model_tensor *tensors = fy_alloc(from->n_tensors, sizeof *tensors);
    ferry_status status = FERRY_OK;
    FY_TRY(fy_check_memory(tensors != NULL, "the tensors of a checkpoint", error));
    for (size_t i = 0; i < from->n_tensors; i++) {
        const fy_ckpt_tensor *t = &from->tensors[i];
        tensors[i] = (fy_model_tensor){.name = t->name, .n_dims = t->n_dims, .shape = t->shape};
    }
    status = parse_config(from, text, &config, error);
    FY_THEN(status, fy_short_form_make(c->to, tensors, from->n_tensors, config, from->path,
                                       &c->side, &c->replicated, error));
    json_decref(config);
    fy_free(tensors);
    return status;
}

static ferry_status find_target(ferry_reshard *c, const config_text *config, ferry_error *error)
{
    c->is_sharded = strcmp(c->to, "hf") != 0;
    if (!c->is_sharded) {
        return FERRY_OK;
    }
    if (fy_short_form_is(c->to)) {
        return apply_short_form(c, config, error);
    }
    ferry_error cause = {{0}};
    ferry_status status = fy_layout_load(c->to, &c->side, &c->tensors, &cause);
    if (status == FERRY_OK) {
        return FERRY_OK;
    }
    return fy_fail(error, status, "%s%s", cause.message,
                   status != FERRY_ERR_IO ? ""
                                          : "; a target is hf, a short form such as tp=4,pp=2, or "
                                            "a layout file");
}

/* ---- making ---- */

static ferry_status check_options(const ferry_reshard_options *o, ferry_error *error)
{
    if (o->cast != 0 && !fy_cast_exists(FERRY_F32, o->cast)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "tensors can be cast to f32, f16, bf16, f8e4m3 and f8e5m2, not to kind %u",
                       o->cast);
    }
    return fy_check_buffers(o->memory_cap_bytes, o->n_threads, error);
}

static ferry_status keep_options(ferry_reshard *c, const char *to, const ferry_reshard_options *o,
                                 ferry_error *error)
{
    c->to = fy_strdup(to);
    c->subset = o->subset == NULL ? NULL : fy_strdup(o->subset);
    c->cast = o->cast;
    c->part_bytes = o->part_bytes == 0 ? DEFAULT_PART_BYTES : o->part_bytes;
    c->buffers = fy_share_memory(o->memory_cap_bytes, o->n_threads);
    return c->to == NULL || (o->subset != NULL && c->subset == NULL)
               ? fy_fail_no_memory(error, "a reshard")
               : FERRY_OK;
}

/* What is copied along. */
static ferry_status count_others(ferry_reshard *c, const config_text *config, ferry_error *error)
{
    const ferry_checkpoint *from = c->from;
    for (size_t i = 0; i < from->n_others; i++) {
        const fy_ckpt_other *other = &from->others[i];
        if (other->left_out == NULL) {
            c->totals.other_bytes += other->bytes;
        }
    }
    c->totals.n_others = from->n_others;
    return c->cast != 0 && config->text != NULL && copies_config(from)
               ? fy_config_set_dtype(config->text, config->length, fy_reshard_torch_dtype(c),
                                     &c->config, &c->config_length, error)
               : FERRY_OK;
}

/* What the result is made of; a tensor that goes to several places counts once. */
static void count_read(ferry_reshard *c)
{
    for (uint32_t t = 0; t < c->job.problem.n_tensors; t++) {
        const fy_tensor *tensor = &c->job.problem.tensors[t];
        if (c->job.is_wanted[t]) {
            c->totals.read_bytes += fy_ceil_div(
                fy_box_volume(tensor->shape, tensor->n_dims) * tensor->dtype.element_bits, 8);
        }
    }
}

static ferry_status check_subset(const ferry_reshard *c, ferry_error *error)
{
    if (c->subset != NULL && c->totals.n_tensors == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: no tensor matches the subset \"%s\"",
                       c->from->path, c->subset);
    }
    return FERRY_OK;
}

ferry_status fy_reshard_digest_json(fy_digest *digest, const json_t *json, ferry_error *error)
{
    char *text = NULL;
    ferry_status status = json == NULL ? FERRY_OK : fy_json_dump(json, &text, error);
    fy_digest_text(digest, text == NULL ? "" : text);
    fy_free(text);
    return status;
}

/* Of the target as it was resolved: a layout file may be another one by the next run. */
static ferry_status make_key(ferry_reshard *c, ferry_error *error)
{
    fy_digest digest = {0};
    ferry_status status = fy_reshard_digest_json(&digest, c->side, error);
    FY_THEN(status, fy_reshard_digest_json(&digest, c->tensors, error));
    bool failed = digest.failed != 0;
    c->target_key = fy_digest_take(&digest);
    fy_digest_cleanup(&digest);
    return status == FERRY_OK && failed ? fy_fail_no_memory(error, "the key of a reshard") : status;
}

static ferry_status make_from(ferry_reshard *c, const config_text *config, ferry_error *error)
{
    FY_TRY(find_target(c, config, error));
    fy_job_target target = {
        .name = c->to, .side = c->side, .tensors = c->tensors, .subset = c->subset};
    ferry_status status = fy_job_create(c->from, &target, &c->job, error);
    FY_THEN(status, make_key(c, error));
    json_decref(c->tensors); /* they are in the job now */
    c->tensors = NULL;
    FY_THEN(status, fy_reshard_make_forms(c, error));
    FY_THEN(status, check_subset(c, error));
    FY_THEN(status, count_others(c, config, error));
    if (status == FERRY_OK) {
        count_read(c);
        c->totals.is_sharded = c->is_sharded;
        c->totals.n_replicated = json_array_size(c->replicated);
    }
    return status;
}

static ferry_status make(ferry_reshard *c, ferry_error *error)
{
    config_text config = {0};
    ferry_status status = read_config(c, &config, error);
    FY_THEN(status, make_from(c, &config, error));
    fy_free(config.text);
    return status;
}

ferry_status ferry_reshard_create(const ferry_checkpoint *from, const char *to,
                                  const ferry_reshard_options *options, ferry_reshard **reshard_out,
                                  ferry_error *error)
{
    FY_TRY(fy_check_use(
        from != NULL && to != NULL && reshard_out != NULL,
        "ferry_reshard_create needs a checkpoint, a target and a place for the result", error));
    ferry_reshard_options own;
    FY_TRY(fy_take_reshard_options(options, &own, error));
    FY_TRY(check_options(&own, error));
    ferry_reshard *c = fy_alloc_zeroed(1, sizeof *c);
    FY_TRY(fy_check_memory(c != NULL, "a reshard", error));
    c->from = from;
    c->totals.struct_size = sizeof c->totals;
    ferry_status status = keep_options(c, to, &own, error);
    FY_THEN(status, make(c, error));
    if (status == FERRY_OK) {
        *reshard_out = c;
        c = NULL;
    }
    ferry_reshard_destroy(c);
    return status;
}

void ferry_reshard_destroy(ferry_reshard *c)
{
    if (c == NULL) {
        return;
    }
    for (size_t i = 0; i < c->n_out; i++) {
        fy_free(c->out[i].name);
        fy_free(c->out[i].form.tensors);
        fy_free(c->out[i].by_tag);
    }
    fy_free(c->out);
    fy_free(c->part_of);
    fy_job_cleanup(&c->job);
    json_decref(c->side);
    json_decref(c->tensors);
    json_decref(c->replicated);
    fy_arena_cleanup(&c->arena);
    fy_free(c->config);
    fy_free(c->subset);
    fy_free(c->to);
    fy_free(c);
}
