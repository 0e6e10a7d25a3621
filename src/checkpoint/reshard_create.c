/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/reshard.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/options.h"
#include "checkpoint/config_text.h"
#include "checkpoint/cover.h"
#include "checkpoint/crew.h"
#include "checkpoint/layout_file.h"
#include "checkpoint/open.h"
#include "checkpoint/others.h"
#include "checkpoint/short_form.h"
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
    /* Rows of blocks of 128 elements of the largest models, as long runs. */
    MOST_ROOM_BYTES = 4 << 20,
    /* What boxes in another order than the tensor's need of many rows: longer runs of each. */
    MOST_PART_BYTES = 16 << 20,
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
    b.room_bytes = 2 * b.window_bytes;
    return b;
}

static ferry_status fail_room(uint64_t least_bytes, uint64_t times, uint64_t cap,
                              ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_LIMIT,
                   "a block of a tensor and what it becomes need %llu bytes, %llu times of which "
                   "are more than a memory cap of %llu; a larger cap makes room",
                   (unsigned long long)least_bytes, (unsigned long long)times,
                   (unsigned long long)cap);
}

ferry_status fy_share_memory_for_tiles(uint64_t cap_bytes, uint32_t n_threads, uint64_t least_bytes,
                                       fy_buffers *buffers_out, ferry_error *error)
{
    fy_buffers b = fy_share_memory(cap_bytes, n_threads);
    uint64_t cap = cap_bytes == 0 ? DEFAULT_CAP_BYTES : cap_bytes;
    while (b.n_threads > 1 && cap / b.n_threads / 2 < least_bytes) {
        b = fy_share_memory(cap_bytes, b.n_threads - 1);
    }
    uint64_t share = cap / b.n_threads;
    if (share / 2 < least_bytes) {
        return fail_room(least_bytes, 2, cap, error);
    }
    b.room_bytes = fy_max(fy_min(share / 2, MOST_ROOM_BYTES), fy_max(least_bytes, b.room_bytes));
    *buffers_out = b;
    return FERRY_OK;
}

ferry_status fy_share_memory_for_boxes(uint64_t cap_bytes, uint32_t n_threads,
                                       const fy_boxes_need *need, fy_buffers *buffers_out,
                                       fy_maker_room *room_out, ferry_error *error)
{
    fy_buffers b = fy_share_memory(cap_bytes, n_threads);
    uint64_t cap = cap_bytes == 0 ? DEFAULT_CAP_BYTES : cap_bytes,
             n_parts = need->has_blocks ? 6 : 4;
    while (b.n_threads > 1 && cap / b.n_threads / n_parts < need->least_bytes + 64) {
        b = fy_share_memory(cap_bytes, b.n_threads - 1);
    }
    uint64_t part = cap / b.n_threads / n_parts;
    if (part < need->least_bytes + 64) {
        return fail_room(need->least_bytes, n_parts, cap, error);
    }
    b.span_bytes = fy_min(part, MOST_SPAN_BYTES);
    part = fy_min(part, fy_max(MOST_PART_BYTES, need->least_bytes + 64)) / 64 * 64;
    *room_out = (fy_maker_room){.window_bytes = part,
                                .hull_bytes = part,
                                .cast_bytes = need->casts || need->has_blocks ? part : 0,
                                .scales_bytes = need->has_blocks ? part / 128 * 64 : 0};
    b.room_bytes = fy_max(fy_maker_room_bytes(room_out), 2 * b.window_bytes);
    *buffers_out = b;
    return FERRY_OK;
}

void fy_widen_windows(fy_buffers *b, uint64_t cap_bytes, const ferry_checkpoint *from)
{
    uint64_t share = (cap_bytes == 0 ? DEFAULT_CAP_BYTES : cap_bytes) / b->n_threads;
    if (from->boxed != NULL && fy_boxed_is_permuted(from->boxed)) {
        b->window_bytes = fy_max(b->window_bytes, fy_min(share / 4, MOST_PART_BYTES));
        b->room_bytes = fy_max(b->room_bytes, 2 * b->window_bytes);
    }
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

static ferry_status read_config_text(const ferry_checkpoint *from, config_text *config_out,
                                     ferry_error *error)
{
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

/* Whether something is dequantized, by an option or by boxes. */
static bool dequantizes(const ferry_reshard *c)
{
    return c->dequantize != NULL || c->boxes_dequantize;
}

/* Once for all: it may be another one later. */
static ferry_status read_config(const ferry_reshard *c, config_text *config_out, ferry_error *error)
{
    bool changes = c->cast != 0 && copies_config(c->from);
    if (!fy_short_form_is(c->to) && !changes && c->quantize == NULL && !dequantizes(c) &&
        c->names == NULL) {
        return FERRY_OK;
    }
    return read_config_text(c->from, config_out, error);
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

ferry_status fy_config_load(const ferry_checkpoint *from, json_t **config_out, ferry_error *error)
{
    config_text text = {0};
    ferry_status status = read_config_text(from, &text, error);
    FY_THEN(status, parse_config(from, &text, config_out, error));
    fy_free(text.text);
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

/* The tensors of the result, without scales that are made or consumed. */
static size_t list_model(const ferry_reshard *c, fy_model_tensor *tensors)
{
    size_t n = 0;
    for (uint32_t i = 0; i < c->job.spec->n_tensors; i++) {
        const fy_tensor *t = &c->job.spec->tensors[i];
        if (!t->is_source_only && !t->is_made) {
            tensors[n++] = (fy_model_tensor){.name = t->name,
                                             .n_dims = t->n_dims,
                                             .shape = t->shape,
                                             .has_scales = c->job.changes[i].kind == FY_QUANTIZED};
        }
    }
    return n;
}

/* What is quantized in the result: nothing of it is left, or it has other blocks. */
static ferry_status apply_changes(const ferry_reshard *c, json_t *config, ferry_error *error)
{
    fy_block_choice choice;
    FY_TRY(fy_block_choice_parse(c->quantize, false, &choice, error));
    if (!choice.is_made || config == NULL) {
        return FERRY_OK;
    }
    json_t *about = json_pack("{s:[I, I]}", "weight_block_size", (json_int_t)choice.format.block[0],
                              (json_int_t)choice.format.block[1]);
    return fy_check_memory(json_object_set_new(config, "quantization_config", about) == 0,
                           "a config.json", error);
}

/* Whether the result has codes that are not dequantized, and have scales: 8 bits alone are not what
 * a quantization_config means. */
static bool has_codes(const ferry_reshard *c)
{
    const ferry_spec *spec = c->job.spec;
    bool has = false;
    for (uint32_t t = 0; t < spec->n_tensors && !has; t++) {
        const fy_change *change = &c->job.changes[t];
        uint32_t kind = change->dtype.kind;
        bool is_code = fy_is_code_kind(kind);
        bool is_there =
            c->job.is_wanted == NULL ? !spec->tensors[t].is_source_only : c->job.is_wanted[t];
        has = is_code && is_there && change->kind != FY_DEQUANTIZED &&
              fy_find_any_scales(spec, t) != FY_NONE;
    }
    return has;
}

/* A layout file may have a name that is read as a short form. */
static ferry_status point_to_file(const ferry_reshard *c, ferry_status status, ferry_error *error)
{
    struct stat about;
    if (status != FERRY_ERR_INVALID_INPUT || error == NULL || stat(c->to, &about) != 0) {
        return status;
    }
    ferry_error own = *error;
    return fy_fail(error, status, "%s; the file of that name is ./%.100s", own.message, c->to);
}

static ferry_status apply_short_form(ferry_reshard *c, const json_t *source_config,
                                     ferry_error *error)
{
    const ferry_checkpoint *from = c->from;
    json_t *config = source_config == NULL && c->quantize != NULL ? json_object()
                                                                  : json_deep_copy(source_config);
    fy_model_tensor *tensors = fy_alloc(c->job.spec->n_tensors, sizeof *tensors);
    ferry_status status = fy_check_memory(
        tensors != NULL && (config != NULL || source_config == NULL), "a short form", error);
    FY_THEN(status, apply_changes(c, config, error));
    if (status == FERRY_OK) {
        size_t n = list_model(c, tensors);
        if (c->dequantize != NULL && !has_codes(c)) {
            json_object_del(config, "quantization_config");
            json_object_del(json_object_get(config, "text_config"), "quantization_config");
        }
        status = fy_short_form_make(c->to, tensors, n, config, from->path, &c->side, &c->replicated,
                                    error);
        status = point_to_file(c, status, error);
    }
    json_decref(config);
    fy_free(tensors);
    return status;
}

/* What parameters say is said by no option, and goes one way. */
static ferry_status check_ways(const ferry_reshard *c, ferry_error *error)
{
    bool takes = c->boxes_dequantize, makes = c->boxes_quantize;
    const char *option = c->dequantize != NULL ? "dequantize" : "quantize";
    if (takes && makes) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: some parameters say \"quantize\" and some \"dequantize\", and a result "
                       "has one of these; make two folders",
                       c->to);
    }
    if ((takes || makes) && (c->dequantize != NULL || c->quantize != NULL)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: parameters say what they %s; leave --%s out, or take %s out of the "
                       "side",
                       c->to, takes ? "dequantize" : "quantize", option,
                       takes ? "\"dequantize\" and \"dtype\"" : "\"quantize\"");
    }
    return FERRY_OK;
}

/* The text of a side of many boxes is many times larger than what is read from it. */
static ferry_status take_boxes(ferry_reshard *c, ferry_error *error)
{
    ferry_status status = fy_boxed_parse(c->side, c->to, &c->boxes, error);
    json_decref(c->side);
    c->side = NULL;
    c->boxes_dequantize = status == FERRY_OK && fy_side_dequantizes(c->boxes);
    c->boxes_quantize = status == FERRY_OK && fy_side_quantizes(c->boxes);
    FY_THEN(status, check_ways(c, error));
    if (c->boxes_quantize) {
        FY_THEN(status, fy_side_quantize_choice(c->boxes, c->to, &c->quantize, error));
    }
    return status;
}

/* The side of a layout file, and its tensors. */
static ferry_status load_layout(ferry_reshard *c, ferry_error *error)
{
    c->is_sharded = strcmp(c->to, "hf") != 0;
    if (!c->is_sharded || fy_short_form_is(c->to)) {
        return FERRY_OK;
    }
    ferry_error cause = {{0}};
    ferry_status status = fy_layout_load(c->to, &c->side, &c->tensors, &cause);
    if (status == FERRY_OK) {
        return json_object_get(c->side, "boxes") == NULL ? FERRY_OK : take_boxes(c, error);
    }
    return fy_fail(error, status, "%s%s", cause.message,
                   status != FERRY_ERR_IO ? ""
                                          : "; a target is hf, a short form such as tp=4,pp=2, or "
                                            "a layout file");
}

/* The side that is written, complete. */
static ferry_status make_side(ferry_reshard *c, const json_t *config, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (c->is_sharded && c->boxed == NULL && fy_short_form_is(c->to)) {
        status = apply_short_form(c, config, error);
    }
    if (c->is_sharded && c->boxed == NULL && c->quantize != NULL) {
        FY_THEN(status, fy_scale_rules_add(c->side, c->to, c->job.spec, c->job.changes, error));
    }
    return status;
}

/* ---- making ---- */

static ferry_status check_options(const ferry_reshard_options *o, ferry_error *error)
{
    fy_change_options changes = {
        .cast = o->cast, .quantize = o->quantize, .dequantize = o->dequantize};
    FY_TRY(fy_change_options_check(&changes, error));
    return fy_check_buffers(o->memory_cap_bytes, o->n_threads, error);
}

static ferry_status keep_options(ferry_reshard *c, const char *to, const ferry_reshard_options *o,
                                 ferry_error *error)
{
    c->to = fy_strdup(to);
    c->subset = o->subset == NULL ? NULL : fy_strdup(o->subset);
    c->cast = o->cast;
    c->quantize = o->quantize == NULL ? NULL : fy_strdup(o->quantize);
    c->dequantize = o->dequantize == NULL ? NULL : fy_strdup(o->dequantize);
    c->names = o->names == NULL ? NULL : fy_strdup(o->names);
    c->cap_bytes = o->memory_cap_bytes;
    c->asked_threads = o->n_threads;
    c->part_bytes = o->part_bytes == 0 ? DEFAULT_PART_BYTES : o->part_bytes;
    c->buffers = fy_share_memory(o->memory_cap_bytes, o->n_threads);
    fy_widen_windows(&c->buffers, o->memory_cap_bytes, c->from);
    bool is_short =
        (o->subset != NULL && c->subset == NULL) || (o->quantize != NULL && c->quantize == NULL) ||
        (o->dequantize != NULL && c->dequantize == NULL) || (o->names != NULL && c->names == NULL);
    return fy_check_memory(c->to != NULL && !is_short, "a reshard", error);
}

/* ---- config.json ---- */

/* The names of the tensors that stay as they are, beside what is quantized. */
static const char **list_kept(const ferry_reshard *c, size_t *n_out)
{
    const fy_problem *problem = &c->job.problem;
    const char **names = fy_alloc(problem->n_tensors, sizeof *names);
    *n_out = 0;
    for (uint32_t t = 0; t < problem->n_tensors && names != NULL; t++) {
        const fy_change *change = &c->job.changes[t];
        bool is_kept = change->kind == FY_KEPT || change->kind == FY_CAST;
        if (c->job.is_wanted[t] && is_kept && problem->tensors[t].n_dims == 2) {
            names[(*n_out)++] = problem->tensors[t].name;
        }
    }
    return names;
}

/* Takes the place of the text that there is so far, of the source's or of c->config. */
static ferry_status set_quantization(ferry_reshard *c, const config_text *config, const char *value,
                                     ferry_error *error)
{
    char *text = NULL;
    size_t length = 0;
    const char *from = c->config == NULL ? config->text : c->config;
    FY_TRY(fy_config_set_quantization(from, c->config == NULL ? config->length : c->config_length,
                                      value, &text, &length, error));
    fy_free(c->config);
    c->config = text;
    c->config_length = length;
    return FERRY_OK;
}

static ferry_status describe_quantized(ferry_reshard *c, ferry_error *error)
{
    size_t n;
    fy_block_choice choice;
    FY_TRY(fy_block_choice_parse(c->quantize, false, &choice, error));
    const char **names = list_kept(c, &n);
    FY_TRY(fy_check_memory(names != NULL, "a quantization_config", error));
    ferry_status status = fy_config_describe(&choice.format, names, n, &c->quantization, error);
    fy_free(names);
    return status;
}

/* Where some stay codes a loader must be told which do not; else it must not look for codes. */
static ferry_status describe_dequantized(ferry_reshard *c, const config_text *config,
                                         const json_t *about, ferry_error *error)
{
    c->drops_quantization = !has_codes(c);
    if (c->drops_quantization) {
        return set_quantization(c, config, NULL, error);
    }
    if (!json_is_object(about) || c->totals.n_dequantized == 0) {
        return FERRY_OK;
    }
    const char **names = fy_alloc(c->n_changed, sizeof *names);
    FY_TRY(fy_check_memory(names != NULL, "a quantization_config", error));
    for (size_t i = 0; i < c->n_changed; i++) {
        names[i] = c->job.problem.tensors[c->changed[i]].name;
    }
    ferry_status status =
        fy_config_describe_rest(about, names, c->n_changed, &c->quantization, error);
    fy_free(names);
    FY_THEN(status, set_quantization(c, config, c->quantization, error));
    return status;
}

/* parsed: the same config.json, or NULL. */
static ferry_status change_config(ferry_reshard *c, const config_text *config, const json_t *parsed,
                                  ferry_error *error)
{
    if (config->text == NULL || !copies_config(c->from)) {
        return FERRY_OK;
    }
    if (c->cast != 0) {
        FY_TRY(fy_config_set_dtype(config->text, config->length, fy_reshard_torch_dtype(c),
                                   &c->config, &c->config_length, error));
    }
    bool leaves_codes_out = c->boxes_quantize && c->totals.n_quantized == 0; /* by the subset */
    if (c->quantize != NULL && !leaves_codes_out) {
        FY_TRY(describe_quantized(c, error));
        return set_quantization(c, config, c->quantization, error);
    }
    return dequantizes(c) ? describe_dequantized(c, config, fy_config_quantization(parsed), error)
                          : FERRY_OK;
}

/* What is copied along. */
static ferry_status count_others(ferry_reshard *c, const config_text *config, const json_t *parsed,
                                 ferry_error *error)
{
    const ferry_checkpoint *from = c->from;
    for (size_t i = 0; i < from->n_others; i++) {
        const fy_ckpt_other *other = &from->others[i];
        if (other->left_out == NULL) {
            c->totals.other_bytes += other->bytes;
        }
    }
    c->totals.n_others = from->n_others;
    return change_config(c, config, parsed, error);
}

/* ---- what is changed ---- */

static ferry_status list_changed(ferry_reshard *c, ferry_error *error)
{
    uint64_t least = 0;
    c->changed = fy_alloc(c->job.problem.n_tensors, sizeof *c->changed);
    FY_TRY(fy_check_memory(c->changed != NULL, "the tensors of a reshard", error));
    for (uint32_t t = 0; t < c->job.problem.n_tensors; t++) {
        if (c->job.is_wanted[t] && fy_change_has_tiles(&c->job.changes[t])) {
            c->changed[c->n_changed++] = t;
            c->totals.n_quantized += c->job.changes[t].kind == FY_QUANTIZED;
            c->totals.n_dequantized += c->job.changes[t].kind == FY_DEQUANTIZED;
            least = fy_max(least, fy_change_least_room(&c->job, t));
        }
    }
    return c->n_changed == 0 || c->boxed != NULL
               ? FERRY_OK
               : fy_share_memory_for_tiles(c->cap_bytes, c->asked_threads, least, &c->buffers,
                                           error);
}

/* Scales lie anywhere in the source, and the largest value of a matrix too. */
static ferry_status make_whole(ferry_reshard *c, ferry_error *error)
{
    bool is_needed = c->totals.n_dequantized > 0 || (c->boxed != NULL && c->quantize != NULL);
    for (size_t i = 0; i < c->n_changed; i++) {
        is_needed = is_needed || c->job.changes[c->changed[i]].matrix_scales != FY_NONE;
    }
    fy_job_target one = {.name = c->to,
                         .tensors = c->tensors,
                         .lists_all = c->names != NULL,
                         .may_lack = c->boxed != NULL};
    ferry_status status = is_needed ? fy_job_create(c->from, &one, &c->whole, error) : FERRY_OK;
    c->has_whole = is_needed && status == FERRY_OK;
    return status;
}

/* Of parts of tensors, which only boxes may be made of, all that they need must be there. */
static ferry_status check_there(const ferry_reshard *c, ferry_error *error)
{
    fy_making_of making = {.boxed = c->boxed,
                           .are_wanted = c->wants_parameter,
                           .job = &c->job,
                           .plain = c->has_whole ? &c->whole : &c->job,
                           .status = FERRY_ERR_INVALID_INPUT};
    return c->boxed == NULL ? FERRY_OK : fy_making_check(&making, error);
}

static uint64_t source_bytes(const ferry_reshard *c, uint32_t tensor)
{
    const fy_tensor *t = &c->job.problem.tensors[tensor];
    return fy_ceil_div(fy_box_volume(t->shape, t->n_dims) * t->dtype.element_bits, 8);
}

/* What the result is made of; a tensor that goes to several places counts once. */
static void count_read(ferry_reshard *c)
{
    for (uint32_t t = 0; t < c->job.problem.n_tensors; t++) {
        const fy_change *change = &c->job.changes[t];
        if (!c->job.is_wanted[t] || c->job.problem.tensors[t].is_made) {
            continue;
        }
        c->totals.read_bytes += source_bytes(c, t);
        if (change->kind == FY_DEQUANTIZED) {
            c->totals.read_bytes += source_bytes(c, change->scales);
            c->totals.read_bytes +=
                change->matrix_scales == FY_NONE ? 0 : source_bytes(c, change->matrix_scales);
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

/* By what boxes are dequantized, which the side does not say any more. */
static void digest_codes(const ferry_reshard *c, fy_digest *digest)
{
    for (uint32_t t = 0; t < c->job.problem.n_tensors; t++) {
        const fy_change *change = &c->job.changes[t];
        if (c->job.is_wanted[t] && change->kind == FY_DEQUANTIZED) {
            fy_digest_u64(digest, t);
            fy_digest_u64(digest, change->scales);
            fy_digest_u64(digest, change->format.block[0]);
            fy_digest_u64(digest, change->format.block[1]);
        }
    }
}

/* Of the target as it was resolved: a layout file may be another one by the next run. */
static ferry_status make_key(ferry_reshard *c, ferry_error *error)
{
    fy_digest digest = {0};
    ferry_status status = fy_reshard_digest_json(&digest, c->side, error);
    FY_THEN(status, fy_reshard_digest_json(&digest, c->tensors, error));
    if (status == FERRY_OK && c->boxed != NULL) {
        fy_hash128 hash = {0};
        status = fy_boxed_digest(c->boxed, &hash, error);
        fy_digest_hash(&digest, hash);
        digest_codes(c, &digest);
    }
    bool failed = digest.failed != 0;
    c->target_key = fy_digest_take(&digest);
    fy_digest_cleanup(&digest);
    return status == FERRY_OK && failed ? fy_fail_no_memory(error, "the key of a reshard") : status;
}

/* Weights that were quantized once would be so a second time; and only an object can say it. */
static ferry_status check_config(const ferry_reshard *c, const json_t *config, ferry_error *error)
{
    if (c->quantize != NULL && config != NULL && !json_is_object(config)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: its config.json is no JSON object, and cannot say how the result is "
                       "quantized; mend it, or take it out of the folder",
                       c->from->path);
    }
    const json_t *about = c->quantize == NULL ? NULL : fy_config_quantization(config);
    const char *method = json_string_value(json_object_get(about, "quant_method"));
    return about == NULL || json_is_null(about)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: its config.json says that it is quantized already (%.60s); "
                         "dequantize it first",
                         c->from->path, method == NULL ? "quantization_config" : method);
}

static ferry_status check_casts(const fy_layout_job *job, ferry_error *error)
{
    for (uint32_t t = 0; t < job->spec->n_tensors; t++) {
        FY_TRY(job->is_wanted[t] ? fy_change_check_cast(job->spec, job->changes, t, error)
                                 : FERRY_OK);
    }
    return FERRY_OK;
}

/* What becomes of the tensors of boxes, and the room for it. */
static ferry_status take_changes(ferry_reshard *c, ferry_error *error)
{
    fy_boxes_need need = {.casts = c->cast != 0,
                          .has_blocks = dequantizes(c) || c->quantize != NULL};
    FY_TRY(fy_changes_take_boxes(c->from, c->job.spec, c->boxes, c->to, c->job.changes, error));
    if (c->boxes_quantize) {
        FY_TRY(fy_changes_end_quantize(c->job.spec, c->job.changes, c->boxes, c->to, error));
    }
    if (c->quantize != NULL) {
        FY_TRY(fy_changes_add_scale_boxes(c->job.spec, c->job.changes, c->boxes, c->to, error));
    }
    FY_TRY(fy_reshard_make_boxed(c, error));
    need.least_bytes = fy_reshard_least_bytes(c);
    return fy_share_memory_for_boxes(c->cap_bytes, c->asked_threads, &need, &c->buffers,
                                     &c->maker_room, error);
}

static ferry_status make_job(ferry_reshard *c, const json_t *config, ferry_error *error)
{
    bool may_hold_scales = c->boxes != NULL && c->quantize != NULL; /* whatever is taken of them */
    fy_change_options changes = {.cast = c->cast,
                                 .quantize = c->quantize,
                                 .dequantize = c->dequantize,
                                 .subset = may_hold_scales ? NULL : c->subset,
                                 .boxes = c->boxes_quantize ? c->to : NULL};
    fy_job_target target = {.name = c->to,
                            .tensors = c->tensors,
                            .lists_all = c->names != NULL && c->boxes == NULL,
                            .subset = c->subset,
                            .options = &changes,
                            .config = config};
    FY_TRY(fy_job_begin(c->from, &target, &c->job, error));
    FY_TRY(check_config(c, config, error));
    if (c->boxes != NULL) { /* of whole tensors, of which boxes are taken */
        FY_TRY(take_changes(c, error));
        target.subset = NULL;
        target.may_lack = true;
    }
    FY_TRY(make_side(c, config, error));
    target.side = c->side;
    FY_TRY(fy_job_place(&c->job, &target, error));
    return check_casts(&c->job, error);
}

ferry_status fy_config_read(const ferry_checkpoint *from, const char *path, char **text_out,
                            size_t *length_out, ferry_error *error)
{
    config_text own = {0};
    if (path != NULL) {
        return fy_file_read(path, MOST_CONFIG_BYTES, text_out, length_out, error);
    }
    FY_TRY(read_config_text(from, &own, error));
    *text_out = own.text;
    *length_out = own.length;
    return FERRY_OK;
}

static ferry_status name_tensors(ferry_reshard *c, const config_text *text, const char *config_path,
                                 ferry_error *error)
{
    char *own = NULL;
    size_t length = text->length;
    if (c->names == NULL) {
        return FERRY_OK;
    }
    if (config_path != NULL) {
        FY_TRY(fy_config_read(c->from, config_path, &own, &length, error));
    }
    const char *config = own == NULL ? text->text : own;
    ferry_status status = fy_reshard_name_tensors(c, config, length, error);
    fy_free(own);
    return status;
}

static ferry_status make_from(ferry_reshard *c, const config_text *text, const char *config_path,
                              ferry_error *error)
{
    json_t *config = NULL;
    ferry_status status = name_tensors(c, text, config_path, error);
    FY_THEN(status, parse_config(c->from, text, &config, error));
    FY_THEN(status, make_job(c, config, error));
    FY_THEN(status, make_key(c, error));
    FY_THEN(status, list_changed(c, error));
    FY_THEN(status, make_whole(c, error));
    FY_THEN(status, check_there(c, error));
    json_decref(c->tensors); /* they are in the job now */
    c->tensors = NULL;
    FY_THEN(status, fy_reshard_make_forms(c, error));
    FY_THEN(status, check_subset(c, error));
    FY_THEN(status, count_others(c, text, config, error));
    json_decref(config);
    if (status == FERRY_OK && c->boxed != NULL) {
        status = fy_reshard_count_boxes(c, error);
    }
    if (status == FERRY_OK) {
        if (c->boxed == NULL) {
            count_read(c);
        }
        c->totals.is_sharded = c->is_sharded;
        c->totals.n_replicated = json_array_size(c->replicated);
        c->totals.n_left_out = json_array_size(c->left_out);
    }
    return status;
}

static ferry_status make(ferry_reshard *c, const char *config_path, ferry_error *error)
{
    config_text config = {0};
    ferry_status status = load_layout(c, error);
    FY_THEN(status, read_config(c, &config, error));
    FY_THEN(status, make_from(c, &config, config_path, error));
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
    FY_THEN(status, make(c, own.config_path, error));
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
    ferry_side_destroy(c->boxes);
    fy_boxed_destroy(c->boxed); /* which the job's shapes outlive */
    fy_free(c->wants_parameter);
    fy_job_cleanup(&c->job);
    if (c->has_whole) {
        fy_job_cleanup(&c->whole);
    }
    fy_free(c->changed);
    json_decref(c->side);
    json_decref(c->tensors);
    json_decref(c->replicated);
    json_decref(c->left_out);
    fy_arena_cleanup(&c->arena);
    fy_free(c->config);
    fy_free(c->quantization);
    fy_free(c->quantize);
    fy_free(c->dequantize);
    fy_free(c->names);
    fy_free(c->subset);
    fy_free(c->to);
    fy_free(c);
}
