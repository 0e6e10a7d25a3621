/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/job.h"

#include "base/checked.h"
#include "base/sort.h"
#include "base/subset.h"
#include "checkpoint/boxed.h"
#include "checkpoint/cover.h"

#include <stdio.h>
#include <string.h>

static ferry_status add_tensors(fy_layout_job *job, ferry_error *error)
{
    for (size_t i = 0; i < job->from->n_tensors; i++) {
        const fy_ckpt_tensor *t = &job->from->tensors[i];
        FY_TRY(fy_spec_add_tensor(job->spec, t->name, t->dtype, t->shape, t->n_dims, error));
    }
    return FERRY_OK;
}

/* ---- the target's own list of tensors ---- */

typedef struct listing {
    fy_layout_job *job;
    const fy_job_target *target;
    fy_json_place place;
    bool *is_listed; /* [tensors of the source] */
    json_t *own;     /* entries that say what is so */
    json_t *fed;     /* entries with a source of their own */
} listing;

/* An entry without a source names a tensor of the checkpoint, and says of it what is so. */
static ferry_status check_listed(listing *l, const fy_tensor *listed, ferry_error *error)
{
    const ferry_checkpoint *from = l->job->from;
    uint32_t number = fy_ckpt_find(from, listed->name);
    if (number == FY_INDEX_NONE) {
        return fy_json_fail(&l->place, error,
                            "has \"%s\", which is not a tensor of %s; a new one needs a \"source\"",
                            listed->name, from->path);
    }
    const fy_ckpt_tensor *tensor = &from->tensors[number];
    char has[FERRY_DTYPE_TEXT_BYTES], wanted[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(tensor->dtype, has, sizeof has);
    ferry_dtype_format(listed->dtype, wanted, sizeof wanted);
    if (strcmp(has, wanted) != 0) {
        return fy_json_fail(&l->place, error, "say that \"%s\" is %s, but in %s it is %s",
                            listed->name, wanted, from->path, has);
    }
    bool same = listed->n_dims == tensor->n_dims;
    for (uint32_t d = 0; same && d < tensor->n_dims; d++) {
        same = listed->shape[d] == tensor->shape[d];
    }
    l->is_listed[number] = true;
    return same ? FERRY_OK
                : fy_json_fail(&l->place, error, "give \"%s\" another shape than it has in %s",
                               listed->name, from->path);
}

/* The entries are read as those of a spec are, into one that is thrown away. */
static ferry_status check_own(listing *l, ferry_error *error)
{
    ferry_spec *spec = fy_spec_new();
    FY_TRY(fy_check_memory(spec != NULL, "the tensors of a layout", error));
    ferry_status status = fy_spec_parse_tensors(spec, l->own, &l->place, error);
    for (uint32_t t = 0; t < spec->n_tensors && status == FERRY_OK; t++) {
        status = check_listed(l, &spec->tensors[t], error);
    }
    ferry_spec_destroy(spec);
    return status;
}

static ferry_status read_listing(listing *l, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(l->target->tensors, &l->place, error);
    for (size_t i = 0; i < json_array_size(l->target->tensors) && status == FERRY_OK; i++) {
        json_t *entry = json_array_get(l->target->tensors, i);
        bool is_fed = json_object_get(entry, "source") != NULL;
        if (json_array_append(is_fed ? l->fed : l->own, entry) != 0) {
            status = fy_fail_no_memory(error, "the tensors of a layout");
        }
    }
    FY_THEN(status, check_own(l, error));
    return status == FERRY_OK ? fy_spec_parse_tensors(l->job->spec, l->fed, &l->place, error)
                              : status;
}

/* What a new tensor is made of is not in the result by itself, unless the list names it. */
static void note_consumed(const listing *l)
{
    ferry_spec *spec = l->job->spec;
    for (size_t t = 0; t < l->job->from->n_tensors && l->target->lists_all; t++) {
        spec->tensors[t].is_source_only = !l->is_listed[t];
    }
    for (size_t t = l->job->from->n_tensors; t < spec->n_tensors; t++) {
        for (uint32_t f = 0; f < spec->tensors[t].n_feeds; f++) {
            uint32_t source = spec->tensors[t].feeds[f].tensor;
            spec->tensors[source].is_source_only = !l->is_listed[source];
        }
    }
}

static ferry_status apply_listing(fy_layout_job *job, const fy_job_target *target,
                                  ferry_error *error)
{
    fy_json_place root = {.key = target->name};
    listing l = {.job = job,
                 .target = target,
                 .place = {.parent = &root, .key = "tensors"},
                 .is_listed = fy_alloc_zeroed(job->from->n_tensors, sizeof(bool)),
                 .own = json_array(),
                 .fed = json_array()};
    ferry_status status = l.is_listed == NULL || l.own == NULL || l.fed == NULL
                              ? fy_fail_no_memory(error, "the tensors of a layout")
                              : read_listing(&l, error);
    if (status == FERRY_OK) {
        note_consumed(&l);
    }
    json_decref(l.own);
    json_decref(l.fed);
    fy_free(l.is_listed);
    return status;
}

/* ---- sides ---- */

static json_t *side_of_one(void)
{
    return json_pack("{s:[[s, i]], s:[{s:s}]}", "mesh", "file", 1, "rules", "match", "*");
}

static ferry_status parse_side(fy_layout_job *job, const json_t *json, const char *name,
                               fy_side *side, ferry_error *error)
{
    fy_json_place place = {.key = name};
    side->name = name;
    return fy_spec_parse_side(job->spec, json, &place, side, error);
}

/* The side of a source in boxes. */
static ferry_status set_boxes(fy_layout_job *job, ferry_error *error)
{
    ferry_side *copy = NULL;
    FY_TRY(fy_boxed_copy_source(job->from->boxed, &copy, error));
    job->spec->source.name = job->from->layout_path;
    return fy_spec_set_boxes(job->spec, &job->spec->source, copy, error);
}

static ferry_status make_sides(fy_layout_job *job, const fy_job_target *target, const json_t *one,
                               ferry_error *error)
{
    const ferry_checkpoint *from = job->from;
    FY_TRY(from->boxed != NULL ? set_boxes(job, error)
                               : parse_side(job, from->is_sharded ? from->layout : one,
                                            from->is_sharded ? from->layout_path : from->path,
                                            &job->spec->source, error));
    const json_t *to = target->side == NULL ? one : target->side;
    fy_side *destination = &job->spec->destination;
    FY_TRY(parse_side(job, to, target->name, destination, error));
    return fy_side_refuse_casts(destination,
                                "what becomes of the tensors of a checkpoint is said by --cast and "
                                "--quantize, or by the options of the call",
                                error);
}

typedef struct rank_place {
    uint32_t rank;
    uint32_t place;
} rank_place;

static int compare_ranks(const void *a, const void *b)
{
    uint32_t x = ((const rank_place *)a)->rank, y = ((const rank_place *)b)->rank;
    return (x > y) - (x < y);
}

static ferry_status index_places(const fy_side *side, fy_places *places, ferry_error *error)
{
    *places = (fy_places){.side = side};
    if (side->ranks == NULL) {
        return FERRY_OK;
    }
    rank_place *pairs = fy_alloc(side->n_ranks, sizeof *pairs);
    places->by_rank = fy_alloc(side->n_ranks, sizeof *places->by_rank);
    if (pairs == NULL || places->by_rank == NULL) {
        fy_free(pairs);
        return fy_fail_no_memory(error, "the ranks of a layout");
    }
    for (uint32_t i = 0; i < side->n_ranks; i++) {
        pairs[i] = (rank_place){.rank = side->ranks[i], .place = i};
    }
    fy_sort(pairs, side->n_ranks, sizeof *pairs, compare_ranks);
    for (uint32_t i = 0; i < side->n_ranks; i++) {
        places->by_rank[i] = pairs[i].place;
    }
    fy_free(pairs);
    return FERRY_OK;
}

/* ---- what is wanted ---- */

static ferry_status note_wanted(fy_layout_job *job, const fy_job_target *target, ferry_error *error)
{
    fy_problem *problem = &job->problem;
    fy_subset subset;
    job->is_wanted = fy_alloc_zeroed(problem->n_tensors, sizeof *job->is_wanted);
    FY_TRY(fy_check_memory(job->is_wanted != NULL, "the tensors of a checkpoint", error));
    for (uint32_t t = 0; t < problem->n_tensors; t++) {
        const fy_tensor *tensor = &problem->tensors[t];
        if (t < job->from->n_tensors && tensor->src == FY_NONE && job->from->boxed == NULL) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: lists \"%s\", which its own rules skip", job->from->layout_path,
                           tensor->name);
        }
    }
    ferry_status status = fy_subset_create(target->subset, &subset, error);
    for (uint32_t t = 0; t < problem->n_tensors && status == FERRY_OK; t++) {
        const fy_tensor *tensor = &problem->tensors[t];
        /* Scales come behind their weights, and with them; of boxes they may come alone. */
        bool is_meant = tensor->is_made
                            ? target->side == NULL || job->is_wanted[job->changes[t].weight]
                            : fy_subset_has(&subset, tensor->name);
        job->is_wanted[t] = tensor->dst != FY_NONE && is_meant;
    }
    fy_subset_cleanup(&subset);
    return status;
}

static bool is_whole(const fy_problem *problem, uint32_t placement)
{
    const fy_layout *layout = &problem->placements[placement].layout;
    bool whole = layout->n_flat == 0;
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        whole = whole && fy_problem_split(problem, layout, d)->n_parts == 1;
    }
    return whole;
}

/* Tensors whose elements are not whole bytes travel as they are: uncut, and not into others. */
static ferry_status check_opaque(const fy_layout_job *job, ferry_error *error)
{
    const fy_problem *problem = &job->problem;
    for (uint32_t t = 0; t < problem->n_tensors; t++) {
        const fy_tensor *tensor = &problem->tensors[t];
        const fy_ckpt_tensor *model = fy_job_model_tensor(job, t);
        bool is_same = tensor->n_feeds == 0 || (tensor->n_feeds == 1 && tensor->n_dims == 1 &&
                                                tensor->shape[0] == model->shape[0]);
        if (model->is_opaque && tensor->dst != FY_NONE &&
            (!is_same || !is_whole(problem, tensor->dst))) {
            return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                           "\"%s\" is %s, whose elements are not whole bytes: it cannot be cut; "
                           "give it a rule without shard",
                           tensor->name, model->dtype_text);
        }
    }
    return FERRY_OK;
}

static const fy_ckpt_tensor *fed_from(const fy_layout_job *job, const fy_feed *feed)
{
    return &job->from->tensors[fy_problem_whole_number(&job->problem, feed->tensor)];
}

/* What a new tensor is made of has one type, also in the words of files. */
static ferry_status check_words(const fy_layout_job *job, ferry_error *error)
{
    for (uint32_t t = 0; t < job->problem.n_tensors; t++) {
        const fy_tensor *tensor = &job->problem.tensors[t];
        for (uint32_t f = 1; f < tensor->n_feeds; f++) {
            const fy_ckpt_tensor *first = fed_from(job, &tensor->feeds[0]);
            const fy_ckpt_tensor *other = fed_from(job, &tensor->feeds[f]);
            if (strcmp(first->dtype_text, other->dtype_text) != 0) {
                return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                               "\"%s\" is made of \"%s\", which is %s, and of \"%s\", which is %s",
                               tensor->name, first->name, first->dtype_text, other->name,
                               other->dtype_text);
            }
        }
    }
    return FERRY_OK;
}

static ferry_status list_legs(fy_layout_job *job, ferry_error *error)
{
    size_t n = job->problem.n_tensors;
    job->first_leg = fy_alloc_zeroed(n + 1, sizeof *job->first_leg);
    FY_TRY(fy_check_memory(job->first_leg != NULL, "the tensors of a checkpoint", error));
    size_t leg = 0;
    for (size_t t = 0; t <= n; t++) {
        while (leg < job->routes.n_legs && job->routes.legs[leg].tensor < t) {
            leg++;
        }
        job->first_leg[t] = leg;
    }
    return FERRY_OK;
}

static ferry_status note_longest(fy_layout_job *job, ferry_error *error)
{
    const fy_problem *problem = &job->problem;
    job->longest = fy_alloc_zeroed(problem->n_splits, sizeof *job->longest);
    FY_TRY(fy_check_memory(job->longest != NULL, "the layouts of a checkpoint", error));
    for (size_t i = 0; i < problem->n_splits; i++) {
        for (uint32_t p = 0; p < problem->splits[i]->n_parts; p++) {
            job->longest[i] = fy_max(job->longest[i], problem->splits[i]->part_length[p]);
        }
    }
    return FERRY_OK;
}

/* Whether an element comes before another one, row-major. */
static bool is_before(const uint64_t *a, const uint64_t *b, uint32_t n_dims)
{
    uint32_t d = 0;
    while (d < n_dims && a[d] == b[d]) {
        d++;
    }
    return d < n_dims && a[d] < b[d];
}

/* The first element of the source that a route needs and nobody has: there is one. */
static ferry_status find_lacking(const fy_layout_job *job, const fy_route *route,
                                 uint64_t place_out[FERRY_MAX_DIMS], ferry_error *error)
{
    uint32_t n_cells = fy_route_dst_holders(&job->routes, route)->n_cells;
    fy_atoms atoms = {0};
    ferry_status status = FERRY_OK;
    bool is_found = false;
    for (uint32_t cell = 0; cell < n_cells && status == FERRY_OK; cell++) {
        status = fy_route_list_atoms(&job->routes, route, cell, &atoms, error);
        for (size_t i = 0; i < atoms.n_items && status == FERRY_OK; i++) {
            const uint64_t *place = atoms.items[i].src_global;
            if (fy_view_cell_size(route->view, atoms.items[i].cell) == 0 &&
                (!is_found || is_before(place, place_out, route->n_dims))) {
                memcpy(place_out, place, route->n_dims * sizeof *place);
                is_found = true;
            }
        }
    }
    fy_atoms_cleanup(&atoms);
    return status;
}

static ferry_status fail_lacking(const fy_layout_job *job, const fy_route *route, bool is_compared,
                                 ferry_error *error)
{
    const fy_leg *leg = &job->routes.legs[fy_route_leg(&job->routes, route, 0)];
    const fy_tensor *source = &job->problem.tensors[leg->source];
    uint64_t place[FERRY_MAX_DIMS] = {0};
    char index[24 * FERRY_MAX_DIMS];
    FY_TRY(find_lacking(job, route, place, error));
    for (uint32_t d = 0; source->fragment != NULL && d < source->n_dims; d++) {
        place[route->src_pad + d] += source->fragment->at[d];
    }
    fy_format_shape(place + route->src_pad, source->n_dims, index, sizeof index);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: no rank holds element %s of \"%s\" that %s",
                   job->from->path, index, source->name,
                   is_compared ? "is to be compared; if the other checkpoint has all of it, swap "
                                 "the two"
                               : "the result needs");
}

/* A cell that is wanted, and that the rules of the source give to nobody. */
static ferry_status check_holders(const fy_layout_job *job, bool is_compared, ferry_error *error)
{
    for (size_t r = 0; r < job->routes.n_routes; r++) {
        const fy_route *route = &job->routes.routes[r];
        for (uint32_t cell = 0; cell < route->n_cells; cell++) {
            if (fy_view_cell_size(route->view, cell) == 0 && fy_route_cell_total(route, cell) > 0) {
                return fail_lacking(job, route, is_compared, error);
            }
        }
    }
    return FERRY_OK;
}

static bool makes_scales(const fy_layout_job *job)
{
    uint32_t n = job->spec->n_tensors;
    return n > 0 && job->spec->tensors[n - 1].is_made; /* they are the last ones */
}

static void show_made(fy_layout_job *job, bool is_shown)
{
    for (uint32_t t = 0; t < job->spec->n_tensors; t++) {
        fy_tensor *tensor = &job->spec->tensors[t];
        tensor->is_source_only = tensor->is_made ? !is_shown : tensor->is_source_only;
    }
}

/* Regions of tensors that a source in boxes has are tensors of the problem: nothing becomes of
 * them. */
static ferry_status extend_changes(fy_layout_job *job, ferry_error *error)
{
    size_t n = job->problem.n_tensors;
    fy_change *changes = fy_realloc(job->changes, n, sizeof *changes);
    FY_TRY(fy_check_memory(changes != NULL, "the tensors of a checkpoint", error));
    job->changes = changes;
    for (size_t t = job->spec->n_tensors; t < n; t++) {
        job->changes[t] = (fy_change){.dtype = job->problem.tensors[t].dtype,
                                      .weight = FY_NONE,
                                      .scales = FY_NONE,
                                      .matrix_scales = FY_NONE};
    }
    return FERRY_OK;
}

/*
 * Weights by themselves first: where they are cut inside blocks, the cuts of their scales may be
 * none at all, and a sentence about those would tell nothing.
 */
static ferry_status check_lines(fy_layout_job *job, const fy_job_target *target, ferry_error *error)
{
    show_made(job, false);
    ferry_status status = fy_spec_lower(job->spec, &job->problem, error);
    FY_THEN(status, extend_changes(job, error));
    FY_THEN(status, fy_changes_check_lines(&job->problem, job->changes, target->name, error));
    fy_problem_cleanup(&job->problem);
    show_made(job, true);
    return status;
}

static ferry_status lower(fy_layout_job *job, const fy_job_target *target, ferry_error *error)
{
    bool is_cut = target->side != NULL; /* else one rank has all blocks whole */
    if (is_cut && makes_scales(job)) {
        FY_TRY(check_lines(job, target, error));
    }
    FY_TRY(fy_spec_lower(job->spec, &job->problem, error));
    FY_TRY(extend_changes(job, error));
    FY_TRY(is_cut ? fy_changes_check_cuts(&job->problem, job->changes, target->name, error)
                  : FERRY_OK);
    FY_TRY(note_wanted(job, target, error));
    FY_TRY(check_opaque(job, error));
    FY_TRY(check_words(job, error));
    job->problem.may_lack = target->may_lack && job->from->boxed != NULL;
    FY_TRY(fy_routes_build(&job->problem, target->subset, &job->routes, error));
    FY_TRY(fy_routes_check_alignment(&job->routes, error));
    FY_TRY(note_longest(job, error));
    FY_TRY(list_legs(job, error));
    return job->problem.may_lack ? fy_covers_create(job, error)
                                 : check_holders(job, target->is_compared, error);
}

ferry_status fy_job_begin(const ferry_checkpoint *from, const fy_job_target *target,
                          fy_layout_job *job, ferry_error *error)
{
    *job = (fy_layout_job){.from = from, .spec = fy_spec_new()};
    ferry_status status = fy_check_memory(job->spec != NULL, "a reshard", error);
    FY_THEN(status, add_tensors(job, error));
    if (status == FERRY_OK && target->tensors != NULL) {
        status = apply_listing(job, target, error);
    }
    FY_THEN(status, fy_changes_make(from, job->spec, target->options, target->config, &job->changes,
                                    error));
    if (status != FERRY_OK) {
        fy_job_cleanup(job);
    }
    return status;
}

ferry_status fy_job_place(fy_layout_job *job, const fy_job_target *target, ferry_error *error)
{
    json_t *one = side_of_one();
    ferry_status status = fy_check_memory(one != NULL, "a reshard", error);
    FY_THEN(status, make_sides(job, target, one, error));
    FY_THEN(status, index_places(&job->spec->source, &job->from_places, error));
    FY_THEN(status, index_places(&job->spec->destination, &job->to_places, error));
    FY_THEN(status, lower(job, target, error));
    json_decref(one);
    return status;
}

ferry_status fy_job_create(const ferry_checkpoint *from, const fy_job_target *target,
                           fy_layout_job *job, ferry_error *error)
{
    FY_TRY(fy_job_begin(from, target, job, error));
    ferry_status status = fy_job_place(job, target, error);
    if (status != FERRY_OK) {
        fy_job_cleanup(job);
    }
    return status;
}

void fy_job_cleanup(fy_layout_job *job)
{
    fy_covers_destroy(job); /* of as many tensors as the problem has */
    fy_routes_cleanup(&job->routes);
    fy_problem_cleanup(&job->problem);
    ferry_spec_destroy(job->spec);
    fy_free(job->from_places.by_rank);
    fy_free(job->to_places.by_rank);
    fy_free(job->first_leg);
    fy_free(job->longest);
    fy_free(job->is_wanted);
    fy_free(job->changes);
    *job = (fy_layout_job){0};
}
