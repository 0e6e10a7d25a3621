/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/verify.h"

#include "base/checked.h"
#include "base/options.h"
#include "checkpoint/cover.h"
#include "checkpoint/crew.h"
#include "checkpoint/maker_blocks.h"
#include "checkpoint/matrices.h"

#include <string.h>

/* ---- names, shapes, dtypes ---- */

static ferry_status fail_missing(const fy_verify_work *c, const char *tensor, int in,
                                 ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" is in %s, but not in %s", tensor,
                   c->sides[in].checkpoint->path, c->sides[1 - in].checkpoint->path);
}

/* A tensor of a as it changes that b has not. */
static ferry_status fail_lacking(const fy_verify_work *c, const char *tensor, ferry_error *error)
{
    return c->named.tensors == NULL
               ? fail_missing(c, tensor, 0, error)
               : fy_fail(error, FERRY_ERR_DIFFERENT,
                         "\"%s\" is in %s under the names \"%s\", but not in %s", tensor,
                         c->sides[0].checkpoint->path, c->options->names,
                         c->sides[1].checkpoint->path);
}

/* What only b has, what the subset leaves out, or what a has as scales that its changes consume.
 * number: in a; FY_NONE: it is not there */
static ferry_status fail_added(const fy_verify_work *c, const char *tensor, uint32_t number,
                               ferry_error *error)
{
    if (number == FY_NONE) {
        return fail_missing(c, tensor, 1, error);
    }
    bool has_other_name =
        c->named.tensors != NULL && c->sides[0].whole.spec->tensors[number].is_source_only;
    if (has_other_name) {
        return fy_fail(error, FERRY_ERR_DIFFERENT,
                       "\"%s\" is in %s, but the names \"%s\" have no tensor that is called so",
                       tensor, c->sides[1].checkpoint->path, c->options->names);
    }
    return fy_verify_leaves_out(c, number)
               ? fy_fail(error, FERRY_ERR_DIFFERENT,
                         "\"%s\" is in %s, but the subset \"%s\" leaves it out", tensor,
                         c->sides[1].checkpoint->path, c->options->subset)
               : fy_fail(error, FERRY_ERR_DIFFERENT,
                         "\"%s\" is in %s, but in %s it holds the scales of codes, which are not "
                         "there any more once they are dequantized",
                         tensor, c->sides[1].checkpoint->path, c->sides[0].checkpoint->path);
}

/* A tensor of a as it changes, with that of its name in b. */
static ferry_status compare_headers(const fy_verify_work *c, uint32_t t, const fy_ckpt_tensor *b,
                                    ferry_error *error)
{
    const fy_layout_job *job = &c->sides[0].whole;
    const fy_tensor *tensor = &job->problem.tensors[t];
    const fy_ckpt_tensor *model = fy_job_model_tensor(job, t);
    bool is_opaque = model->is_opaque;
    const char *word = fy_out_type_of(job, t).text;
    const uint64_t *shape = is_opaque ? model->file_shape : tensor->shape;
    uint32_t n_dims = is_opaque ? model->file_n_dims : tensor->n_dims;
    if (strcmp(word, b->dtype_text) != 0) {
        return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" is %s in %s, but %s in %s", tensor->name,
                       word, c->sides[0].checkpoint->path, b->dtype_text,
                       c->sides[1].checkpoint->path);
    }
    bool same = n_dims == b->file_n_dims;
    for (uint32_t d = 0; same && d < n_dims; d++) {
        same = shape[d] == b->file_shape[d];
    }
    if (!same) {
        char shapes[2][256];
        fy_format_shape(shape, n_dims, shapes[0], sizeof shapes[0]);
        fy_format_shape(b->file_shape, b->file_n_dims, shapes[1], sizeof shapes[1]);
        return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" has shape %s in %s, but %s in %s",
                       tensor->name, shapes[0], c->sides[0].checkpoint->path, shapes[1],
                       c->sides[1].checkpoint->path);
    }
    return FERRY_OK;
}

/* Names, shapes and dtypes of a as it changes; fills twin. */
static ferry_status verify_models(fy_verify_work *c, ferry_error *error)
{
    const fy_layout_job *job = &c->sides[0].whole;
    const ferry_checkpoint *b = c->sides[1].checkpoint;
    for (uint32_t i = 0; i < c->n_tensors; i++) {
        const char *name = job->problem.tensors[i].name;
        c->twin[i] = FY_NONE;
        if (!fy_verify_wants(c, i) || c->named.made != NULL) {
            continue; /* scales that are consumed, too */
        }
        c->twin[i] = fy_ckpt_find(b, name);
        if (c->twin[i] == FY_INDEX_NONE && b->boxed != NULL) {
            c->n_left_out += !job->spec->tensors[i].is_made; /* boxes need not have all */
            continue;
        }
        if (c->twin[i] == FY_INDEX_NONE) {
            return fail_lacking(c, name, error);
        }
        FY_TRY(fy_change_check_cast(job->spec, job->changes, i, error));
        FY_TRY(compare_headers(c, i, &b->tensors[c->twin[i]], error));
    }
    if (c->named.made != NULL) {
        return fy_verify_turn(c, error);
    }
    for (size_t i = 0; i < b->n_tensors; i++) {
        uint32_t t = fy_spec_find_tensor(job->spec, b->tensors[i].name);
        if (t == FY_NONE || !fy_verify_wants(c, t)) {
            return fail_added(c, b->tensors[i].name, t, error);
        }
    }
    return fy_verify_check_filled(c, error);
}

/* ---- the work ---- */

/* Boxes may also hold the scales of codes that others of them dequantize. */
static void keep_scales(ferry_spec *spec, const ferry_checkpoint *boxes)
{
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        fy_tensor *tensor = &spec->tensors[t];
        tensor->is_source_only =
            tensor->is_source_only && fy_ckpt_find(boxes, tensor->name) == FY_INDEX_NONE;
    }
}

/* All of a checkpoint at one rank. A failure leaves the job for fy_job_cleanup. */
static ferry_status make_whole(const ferry_checkpoint *checkpoint, const fy_job_target *one,
                               const ferry_checkpoint *other, fy_layout_job *job,
                               ferry_error *error)
{
    FY_TRY(fy_job_begin(checkpoint, one, job, error));
    if (other->boxed != NULL) {
        keep_scales(job->spec, other);
    }
    return fy_job_place(job, one, error);
}

/* options, subset, tensors, config: what it changes by; NULL: it stays as it is. other: the other
 * side's */
static ferry_status open_side(fy_verify_side *side, const ferry_checkpoint *checkpoint,
                              const fy_change_options *options, const char *subset,
                              const json_t *tensors, const json_t *config,
                              const ferry_checkpoint *other, ferry_error *error)
{
    bool makes_boxes = !side->is_b && other->boxed != NULL;
    fy_job_target one = {.name = checkpoint->path,
                         .tensors = tensors,
                         .lists_all = tensors != NULL,
                         .subset = makes_boxes ? NULL : subset, /* boxes are of whole tensors */
                         .options = options,
                         .config = config,
                         .may_lack = makes_boxes,
                         .is_compared = true};
    fy_job_target own = {.name = checkpoint->path, .side = checkpoint->layout};
    side->checkpoint = checkpoint;
    bool is_made_again = side->is_b && checkpoint->boxed != NULL;
    ferry_status status =
        is_made_again ? FERRY_OK : make_whole(checkpoint, &one, other, &side->whole, error);
    if (status == FERRY_OK && checkpoint->is_sharded && checkpoint->boxed == NULL) {
        status = fy_job_create(checkpoint, &own, &side->own, error);
        side->has_own = status == FERRY_OK;
    }
    FY_THEN(status, fy_files_of(checkpoint, &side->files, error));
    return status == FERRY_OK ? fy_checked_create(checkpoint, &side->checked, error) : status;
}

static size_t n_parameters(const fy_verify_work *c, uint32_t side)
{
    const fy_boxed *boxed = c->sides[side].checkpoint->boxed;
    return boxed == NULL ? 0 : boxed->side->n_parameters;
}

/* A part of each worker's share for parameters, if there are any. */
static ferry_status share_boxes(fy_verify_work *c, uint64_t least_bytes, ferry_error *error)
{
    const ferry_verify_options *o = c->options;
    fy_boxes_need need = {.casts = o->cast != 0,
                          .has_blocks = o->quantize != NULL || o->dequantize != NULL,
                          .least_bytes = 2 * least_bytes};
    if (n_parameters(c, 0) + n_parameters(c, 1) == 0 && c->named.made == NULL) {
        return FERRY_OK;
    }
    FY_TRY(fy_share_memory_for_boxes(o->memory_cap_bytes, o->n_threads, &need, &c->buffers,
                                     &c->maker_room, error));
    c->maker_room.window_bytes = c->maker_room.window_bytes / 128 * 64;
    c->maker_room.hull_bytes = c->maker_room.hull_bytes / 128 * 64;
    c->maker_room.cast_bytes = c->maker_room.cast_bytes / 128 * 64;
    c->maker_room.scales_bytes = c->maker_room.scales_bytes / 128 * 64;
    fy_widen_windows(&c->buffers, o->memory_cap_bytes, c->sides[0].checkpoint);
    c->buffers.span_bytes /= 2;
    c->buffers.window_bytes /= 4;
    c->buffers.room_bytes = 2 * c->buffers.window_bytes; /* of tiles, for digests */
    return FERRY_OK;
}

/* What is in boxes of a's tensors is so without these options, as when it was written. */
static ferry_status check_named_options(const fy_verify_work *c, ferry_error *error)
{
    const ferry_verify_options *o = c->options;
    const char *option = o->subset != NULL       ? "a subset"
                         : o->quantize != NULL   ? "--quantize"
                         : o->dequantize != NULL ? "--dequantize"
                                                 : NULL;
    if (option == NULL || (c->named.made == NULL && !c->named.is_boxed)) {
        return FERRY_OK;
    }
    return fy_fail(
        error, FERRY_ERR_UNSUPPORTED,
        "%s: under the names \"%s\" some tensors lie otherwise, or are in boxes, and are "
        "compared as they are: leave %s out",
        c->sides[0].checkpoint->path, o->names, option);
}

/* a's tensors under the names that are asked for. */
static ferry_status name_tensors(fy_verify_work *c, const ferry_checkpoint *a, ferry_error *error)
{
    const ferry_verify_options *o = c->options;
    char *text = NULL;
    size_t length = 0;
    if (o->names == NULL) {
        return o->config_path == NULL
                   ? FERRY_OK
                   : fy_fail(error, FERRY_ERR_INVALID_INPUT, "a config.json needs names");
    }
    const ferry_checkpoint *b = c->sides[1].checkpoint;
    c->named = (fy_named){.from = a, .to = b->path, .with = b};
    FY_TRY(fy_config_read(a, o->config_path, &text, &length, error));
    ferry_status status = fy_named_list(&c->named, o->names, text, length, error);
    /* What boxes have nothing of is counted with them. */
    c->n_left_out += c->named.is_boxed ? 0 : json_array_size(c->named.left_out);
    fy_free(text);
    return status == FERRY_OK ? check_named_options(c, error) : status;
}

/* The options of a's changes were asked for as those of a reshard. */
static ferry_status open_changed(fy_verify_work *c, const ferry_checkpoint *a, ferry_error *error)
{
    const ferry_verify_options *o = c->options;
    bool may_hold_scales = c->sides[1].checkpoint->boxed != NULL && o->quantize != NULL;
    fy_change_options options = {.cast = o->cast,
                                 .quantize = o->quantize,
                                 .dequantize = o->dequantize,
                                 .subset = may_hold_scales ? NULL : o->subset};
    fy_job_target one = {.name = a->path,
                         .tensors = c->named.tensors,
                         .lists_all = c->named.tensors != NULL,
                         .may_lack = c->sides[1].checkpoint->boxed != NULL};
    json_t *config = NULL;
    uint64_t least = 0, least_block = 0;
    ferry_status status = o->dequantize == NULL ? FERRY_OK : fy_config_load(a, &config, error);
    FY_THEN(status, open_side(&c->sides[0], a, &options, o->subset, c->named.tensors, config,
                              c->sides[1].checkpoint, error));
    json_decref(config);
    for (uint32_t t = 0; status == FERRY_OK && t < c->sides[0].whole.problem.n_tensors; t++) {
        least = fy_max(least, fy_change_least_room(&c->sides[0].whole, t));
        least_block = fy_max(least_block, fy_maker_least_bytes(&c->sides[0].whole, t));
    }
    c->has_tiles = least > 0;
    if (status == FERRY_OK && c->has_tiles) {
        status = fy_job_create(a, &one, &c->plain, error);
        c->has_plain = status == FERRY_OK;
    }
    if (status == FERRY_OK && least_block > 0 && c->sides[1].checkpoint->boxed != NULL) {
        status = share_boxes(c, least_block, error);
    } else if (status == FERRY_OK && c->has_tiles && c->sides[1].checkpoint->boxed == NULL) {
        /* What b has of a tile needs as much room as what a becomes, at most. */
        status = fy_share_memory_for_tiles(o->memory_cap_bytes, o->n_threads, 2 * least,
                                           &c->buffers, error);
        c->buffers.span_bytes /= 2;
        c->buffers.window_bytes /= 2;
    }
    return status;
}

static ferry_status make_changer(fy_verify_work *c, fy_verify_worker *w, ferry_error *error)
{
    fy_verify_side *a = &c->sides[0], *b = &c->sides[1];
    w->room = fy_alloc(c->buffers.room_bytes, 1);
    FY_TRY(fy_check_memory(w->room != NULL, "a buffer", error));
    FY_TRY(fy_changer_init(&w->changer, &a->whole, &c->plain, a->files, &a->checked,
                           c->buffers.span_bytes, error));
    w->changer.room = w->room;
    w->changer.room_bytes = c->buffers.room_bytes / 2;
    w->changer.beside.stops = &c->stops;
    if (b->checkpoint->boxed != NULL) { /* it is made again, and none of its tensors is read */
        return FERRY_OK;
    }
    ferry_status status =
        fy_gather_init(&w->beside, &b->whole, b->files, &b->checked, c->buffers.span_bytes, error);
    w->beside.stops = &c->stops;
    return status;
}

static ferry_status make_worker(fy_verify_work *c, fy_verify_worker *w, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    w->cast = c->options->cast == 0 ? NULL : fy_alloc(c->buffers.window_bytes, 1);
    if (c->options->cast != 0) {
        FY_TRY(fy_check_memory(w->cast != NULL, "a buffer", error));
    }
    if (c->has_tiles) {
        FY_TRY(make_changer(c, w, error));
    }
    for (int s = 0; s < 2 && status == FERRY_OK; s++) {
        fy_verify_side *side = &c->sides[s];
        w->window[s] = fy_alloc(c->buffers.window_bytes, 1);
        status = w->window[s] == NULL ? fy_fail_no_memory(error, "a buffer") : FERRY_OK;
        if (side->whole.from != NULL) {
            FY_THEN(status, fy_gather_init(&w->whole[s], &side->whole, side->files, &side->checked,
                                           c->buffers.span_bytes, error));
        }
        if (status == FERRY_OK && side->has_own) {
            status = fy_gather_init(&w->own[s], &side->own, side->files, &side->checked,
                                    c->buffers.span_bytes, error);
        }
        w->whole[s].stops = &c->stops;
        w->own[s].stops = &c->stops;
    }
    FY_THEN(status, fy_verify_make_makers(c, w, error));
    return status;
}

static void clean_up(fy_verify_work *c)
{
    for (uint32_t i = 0; c->workers != NULL && i < c->buffers.n_threads; i++) {
        for (int s = 0; s < 2; s++) {
            fy_gather_cleanup(&c->workers[i].whole[s]);
            fy_gather_cleanup(&c->workers[i].own[s]);
            fy_free(c->workers[i].window[s]);
        }
        fy_changer_cleanup(&c->workers[i].changer);
        fy_gather_cleanup(&c->workers[i].beside);
        fy_free(c->workers[i].room);
        fy_free(c->workers[i].cast);
        fy_free(c->workers[i].boxes);
    }
    if (c->has_plain) {
        fy_job_cleanup(&c->plain);
    }
    for (int s = 0; s < 2; s++) {
        fy_job_cleanup(&c->sides[s].whole);
        fy_job_cleanup(&c->sides[s].own);
        fy_files_destroy(c->sides[s].files);
        fy_checked_cleanup(&c->sides[s].checked);
    }
    fy_free(c->workers);
    fy_subset_cleanup(&c->subset);
    json_decref(c->named.tensors);
    json_decref(c->named.left_out);
    ferry_side_destroy(c->named.made);
    fy_boxed_destroy(c->turned);
    fy_free(c->turned_in_b);
    fy_free(c->turned_digests);
    fy_matrices_destroy(c->matrices);
    fy_free(c->twin);
    fy_free(c->digests);
    fy_free(c->number_in_a);
}

static bool tick(void *context)
{
    fy_verify_work *c = context;
    ferry_work_progress progress = {.phase = "verifying",
                                    .done_bytes = atomic_load(&c->done_bytes),
                                    .total_bytes = c->total_bytes,
                                    .seconds = fy_seconds_now() - c->began};
    if (c->options->progress == NULL || c->options->progress(c->options->context, &progress)) {
        return true;
    }
    atomic_store(&c->stops, true);
    return false;
}

/* Whether a has all that a tensor is made of: then that has a digest. */
static bool has_whole(const fy_verify_work *c, uint32_t tensor)
{
    const fy_layout_job *plain = c->has_plain ? &c->plain : &c->sides[0].whole;
    const fy_change *change = &c->sides[0].whole.changes[tensor];
    uint32_t of = fy_change_is_made(change) ? change->weight : tensor;
    bool reads_scales = change->kind == FY_DEQUANTIZED;
    return !fy_job_lacks(plain, of) && !(reads_scales && fy_job_lacks(plain, change->scales)) &&
           !(reads_scales && change->matrix_scales != FY_NONE &&
             fy_job_lacks(plain, change->matrix_scales));
}

/* Of b in boxes a tensor is only hashed, if somebody wants that. */
static ferry_status compare_tensor(fy_verify_work *c, fy_verify_worker *w, uint32_t a,
                                   ferry_error *error)
{
    if (c->sides[1].checkpoint->boxed == NULL) {
        return fy_verify_tensor(c, w, a, error);
    }
    return c->options->visitor == NULL || !has_whole(c, a) ? FERRY_OK
                                                           : fy_verify_digest(c, w, a, error);
}

/* A tensor in all its forms, so that the first that differs is the first in the order of a. Scales
 * that are made are compared with their weights. Parameters of sides in boxes come last. */
static ferry_status compare_part(void *context, uint32_t worker, size_t part, ferry_error *error)
{
    fy_verify_work *c = context;
    fy_verify_worker *w = &c->workers[worker];
    if (part >= c->n_tensors) {
        size_t number = part - c->n_tensors, n = n_parameters(c, 0);
        if (c->turned != NULL && number >= n) {
            return fy_verify_turned(c, w, (uint32_t)(number - n), error);
        }
        uint32_t side = number < n ? 0 : 1;
        number -= side == 0 ? 0 : n;
        return fy_verify_wants_parameter(c, side, number)
                   ? fy_verify_parameter(c, w, side, (uint32_t)number, error)
                   : FERRY_OK;
    }
    uint32_t a = (uint32_t)part, b = c->twin[part];
    bool is_made = c->sides[0].whole.problem.tensors[a].is_made;
    bool is_alone = !is_made || c->sides[1].checkpoint->boxed != NULL;
    ferry_status status = b != FY_NONE && is_alone ? compare_tensor(c, w, a, error) : FERRY_OK;
    bool is_own = part < c->sides[0].checkpoint->n_tensors; /* and not made of others, by names */
    if (c->sides[0].has_own && is_own && fy_verify_reads(c, a)) {
        FY_THEN(status, fy_verify_replicas(c, w, 0, a, error));
    }
    if (c->sides[1].has_own && b != FY_NONE) {
        FY_THEN(status, fy_verify_replicas(c, w, 1, b, error));
    }
    return status;
}

static uint64_t tensor_bytes(const fy_ckpt_tensor *t)
{
    return fy_ceil_div(fy_box_volume(t->shape, t->n_dims) * t->dtype.element_bits, 8);
}

static uint64_t all_bytes(const ferry_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint->n_tensors; i++) {
        bytes += tensor_bytes(&checkpoint->tensors[i]);
    }
    return bytes;
}

static ferry_status run(fy_verify_work *c, ferry_error *error)
{
    fy_crew_job job = {.n_workers = c->buffers.n_threads,
                       .n_parts =
                           c->n_tensors + n_parameters(c, 0) +
                           (c->turned != NULL ? c->turned->side->n_parameters : n_parameters(c, 1)),
                       .work = compare_part,
                       .tick = tick,
                       .context = c};
    const ferry_checkpoint *a = c->sides[0].checkpoint;
    bool reads_a = c->sides[1].checkpoint->boxed == NULL || c->options->visitor != NULL;
    for (uint32_t t = 0; reads_a && t < a->n_tensors; t++) {
        c->total_bytes += fy_verify_reads(c, t) ? tensor_bytes(&a->tensors[t]) : 0;
    }
    for (uint32_t s = 0; s < 2; s++) {
        c->total_bytes += fy_verify_local_bytes(c, s);
    }
    return fy_crew_run(&job, error);
}

/* Whether a has all that the boxes of b are made of. */
static ferry_status check_there(const fy_verify_work *c, ferry_error *error)
{
    fy_making_of making = {.boxed = c->sides[1].checkpoint->boxed,
                           .number_in_job = c->number_in_a,
                           .job = &c->sides[0].whole,
                           .plain = c->has_plain ? &c->plain : &c->sides[0].whole,
                           .status = FERRY_ERR_DIFFERENT};
    return making.boxed == NULL ? FERRY_OK : fy_making_check(&making, error);
}

static ferry_status prepare(fy_verify_work *c, const ferry_checkpoint *a, const ferry_checkpoint *b,
                            ferry_error *error)
{
    c->sides[0].checkpoint = a;
    c->sides[1].checkpoint = b;
    c->sides[1].is_b = true;
    FY_TRY(fy_subset_create(c->options->subset, &c->subset, error));
    FY_TRY(name_tensors(c, a, error));
    FY_TRY(share_boxes(c, 0, error));
    FY_TRY(open_changed(c, a, error));
    c->n_tensors = c->sides[0].whole.problem.n_tensors;
    c->twin = fy_alloc_zeroed(c->n_tensors, sizeof *c->twin);
    c->digests = fy_alloc_zeroed(c->n_tensors, sizeof *c->digests);
    c->workers = fy_alloc_zeroed(c->buffers.n_threads, sizeof *c->workers);
    if (c->twin == NULL || c->digests == NULL || c->workers == NULL) {
        return fy_fail_no_memory(error, "what verifying needs");
    }
    FY_TRY(fy_verify_map_boxes(c, error));
    FY_TRY(b->boxed == NULL ? FERRY_OK
                            : fy_matrices_create(&c->sides[0].whole, &c->matrices, error));
    FY_TRY(fy_verify_check_subset(c, error));
    FY_TRY(verify_models(c, error));
    FY_TRY(check_there(c, error));
    FY_TRY(open_side(&c->sides[1], b, NULL, NULL, NULL, NULL, a, error));
    for (uint32_t i = 0; i < c->buffers.n_threads; i++) {
        FY_TRY(make_worker(c, &c->workers[i], error));
    }
    return FERRY_OK;
}

static void visit(const fy_verify_work *c)
{
    const ferry_checkpoint *b = c->sides[1].checkpoint;
    if (c->turned != NULL) {
        fy_verify_visit_turned(c);
    }
    for (size_t i = 0; c->options->visitor != NULL && i < c->n_tensors; i++) {
        if (c->twin[i] != FY_NONE && has_whole(c, (uint32_t)i)) {
            const fy_ckpt_tensor *t = &b->tensors[c->twin[i]];
            c->options->visitor(c->options->context, t->name, tensor_bytes(t), c->digests[i]);
        }
    }
}

ferry_status ferry_checkpoint_verify(const ferry_checkpoint *a, const ferry_checkpoint *b,
                                     const ferry_verify_options *options,
                                     ferry_verify_result *result_out, ferry_error *error)
{
    FY_TRY(fy_check_use(a != NULL && b != NULL, "ferry_checkpoint_verify needs two checkpoints",
                        error));
    ferry_verify_options own;
    FY_TRY(fy_take_verify_options(options, &own, error));
    if (result_out != NULL) {
        FY_TRY(fy_check_out(result_out, "ferry_verify_result", error));
    }
    fy_change_options changes = {
        .cast = own.cast, .quantize = own.quantize, .dequantize = own.dequantize};
    FY_TRY(fy_change_options_check(&changes, error));
    FY_TRY(fy_check_buffers(own.memory_cap_bytes, own.n_threads, error));
    fy_verify_work c = {.options = &own, .began = fy_seconds_now()};
    /* A worker has a span and a window for each side, and more spans for replicas. */
    c.buffers = fy_share_memory(c.options->memory_cap_bytes, c.options->n_threads);
    fy_widen_windows(&c.buffers, c.options->memory_cap_bytes, a);
    fy_widen_windows(&c.buffers, c.options->memory_cap_bytes, b);
    c.buffers.span_bytes /= 2;
    c.buffers.window_bytes /= 2;
    ferry_status status = prepare(&c, a, b, error);
    FY_THEN(status, run(&c, error));
    for (int s = 0; s < 2 && status == FERRY_OK; s++) {
        status = fy_files_check_unchanged(c.sides[s].files, error);
    }
    if (status == FERRY_OK) {
        visit(&c);
    }
    if (status == FERRY_OK && result_out != NULL) {
        ferry_verify_result result = {.struct_size = sizeof result,
                                      .n_tensors = b->n_tensors,
                                      .tensor_bytes = all_bytes(b),
                                      .n_replicas = atomic_load(&c.n_replicas),
                                      .n_checked = atomic_load(&c.sides[0].checked.n_checked) +
                                                   atomic_load(&c.sides[1].checked.n_checked),
                                      .seconds = fy_seconds_now() - c.began,
                                      .n_left_out = c.n_left_out};
        status = fy_copy_out(&result, sizeof result, result_out, "ferry_verify_result", error);
    }
    clean_up(&c);
    return status;
}
