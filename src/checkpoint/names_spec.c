/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* From the names of a model and two short forms to a spec. */
#include "base/alloc.h"
#include "checkpoint/names_boxes.h"
#include "checkpoint/short_form.h"
#include "model/map.h"
#include "model/naming.h"
#include "model/problem.h"
#include "model/spec.h"

#include <ferry/side.h>

#include <string.h>

/* ---- a side ---- */

static ferry_status make_short_side(ferry_names *names, const fy_naming *naming, const char *form,
                                    json_t **side_out, ferry_error *error)
{
    size_t n = 0;
    fy_model_tensor *tensors = fy_alloc(naming->n_tensors, sizeof *tensors);
    FY_TRY(fy_check_memory(tensors != NULL, "a short form", error));
    for (size_t i = 0; i < naming->n_tensors; i++) {
        const fy_naming_tensor *t = &naming->tensors[i];
        if (fy_naming_is_there(naming, t)) {
            tensors[n++] =
                (fy_model_tensor){.name = t->name, .n_dims = t->n_dims, .shape = t->shape};
        }
    }
    ferry_status status = fy_short_form_make(form, tensors, n, names->config, names->source_name,
                                             side_out, NULL, error);
    fy_free(tensors);
    return status;
}

static bool is_whole(const char *form)
{
    return form == NULL || *form == '\0';
}

static ferry_status make_side(ferry_names *names, const char *naming, const char *form,
                              json_t **side_out, ferry_error *error)
{
    fy_naming *found;
    FY_TRY(fy_naming_find(names, naming, &found, error));
    if (!is_whole(form)) {
        return make_short_side(names, found, form, side_out, error);
    }
    *side_out = json_pack("{s:[], s:[{s:s}]}", "mesh", "rules", "match", "*");
    return fy_check_memory(*side_out != NULL, "a spec", error);
}

/* ---- the spec ---- */

/* The targets without their sources: the map is applied to the spec that has them. */
static ferry_status list_targets(const ferry_map *map, json_t *list, ferry_error *error)
{
    for (uint32_t i = 0; i < map->targets.n; i++) {
        json_t *entry = fy_map_target_entry(map, i);
        json_object_del(entry, "source");
        if (json_array_append_new(list, entry) != 0) {
            return fy_fail_no_memory(error, "the tensors of a spec");
        }
    }
    return FERRY_OK;
}

static ferry_status parse_base(const json_t *root, ferry_spec **spec_out, ferry_error *error)
{
    char *text = NULL;
    FY_TRY(fy_json_dump(root, &text, error));
    ferry_status status = ferry_spec_parse(text, strlen(text), "the spec", spec_out, error);
    fy_free(text);
    return status;
}

/* A spec of tensors that lie alike on both sides. */
static ferry_status make_base(json_t *tensors, json_t *const sides[2], uint32_t first_rank,
                              ferry_spec **spec_out, ferry_error *error)
{
    json_t *root = json_object();
    bool done = json_object_set(root, "tensors", tensors) == 0 &&
                json_object_set_new(sides[1], "first_rank", json_integer(first_rank)) == 0 &&
                json_object_set_new(root, "format", json_string("ferry.spec/1")) == 0 &&
                json_object_set(root, "source", sides[0]) == 0 &&
                json_object_set(root, "destination", sides[1]) == 0;
    ferry_status status = fy_check_memory(done, "a spec", error);
    FY_THEN(status, parse_base(root, spec_out, error));
    json_decref(root);
    return status;
}

/* What is asked for, of the source and of the destination. */
typedef struct way {
    ferry_names *names;
    const char *namings[2];
    json_t *sides[2];
    bool is_whole[2]; /* one rank has all of it */
    uint32_t first_rank[2];
    bool is_boxed[2]; /* it is said in boxes of the other one's tensors; both: in the source's */
} way;

static ferry_status make_mapped(const way *w, ferry_spec **spec_out, ferry_error *error)
{
    ferry_spec *base = NULL;
    ferry_map *map = NULL;
    json_t *tensors = json_array();
    ferry_status status = ferry_names_get_map(w->names, w->namings[0], w->namings[1], &map, error);
    FY_THEN(status, list_targets(map, tensors, error));
    FY_THEN(status, make_base(tensors, w->sides, w->first_rank[1], &base, error));
    FY_THEN(status, ferry_map_apply(map, base, spec_out, error));
    ferry_spec_destroy(base);
    ferry_map_destroy(map);
    json_decref(tensors);
    return status;
}

/* ---- sides in boxes ---- */

static int64_t axis_parts(const json_t *axis)
{
    return json_integer_value(json_array_get(axis, 1));
}

/* Whether a rank is the first along an axis of a mesh, of which the last axis is the fastest. */
static bool is_first_along(const json_t *side, uint32_t first_rank, const char *axis, uint32_t rank)
{
    const json_t *mesh = json_object_get(side, "mesh");
    uint64_t index = rank - first_rank;
    for (size_t i = json_array_size(mesh); i-- > 0;) {
        const json_t *one = json_array_get(mesh, i);
        uint64_t n = (uint64_t)axis_parts(one);
        if (strcmp(json_string_value(json_array_get(one, 0)), axis) == 0) {
            return index % n == 0;
        }
        index /= n;
    }
    return true;
}

typedef struct cut_side {
    const json_t *side;
    uint32_t first_rank;
} cut_side;

static bool is_first(void *context, const char *axis, uint32_t rank)
{
    const cut_side *c = context;
    return is_first_along(c->side, c->first_rank, axis, rank);
}

/* Whether some rank of a side has zeros in place of a tensor. */
static ferry_status has_zeros(const way *w, int side, bool *zeros_out, ferry_error *error)
{
    const json_t *mesh = json_object_get(w->sides[side], "mesh");
    fy_naming *naming;
    *zeros_out = false;
    FY_TRY(fy_naming_find(w->names, w->namings[side], &naming, error));
    for (size_t i = 0; i < naming->n_tensors; i++) {
        const char *axis = naming->tensors[i].first_of;
        for (size_t k = 0; axis != NULL && k < json_array_size(mesh); k++) {
            const json_t *one = json_array_get(mesh, k);
            *zeros_out |= strcmp(json_string_value(json_array_get(one, 0)), axis) == 0 &&
                          axis_parts(one) > 1 && fy_naming_is_there(naming, &naming->tensors[i]);
        }
    }
    return FERRY_OK;
}

/* The side of one naming in boxes of the tensors of another. */
static ferry_status make_boxed(const way *w, int side, const char *of, ferry_side **side_out,
                               ferry_error *error)
{
    const char *own = w->namings[side];
    if (w->is_whole[side]) {
        return fy_naming_side(w->names, of, own, w->first_rank[side], side_out, error);
    }
    ferry_spec *spec = NULL;
    fy_problem problem = {.n_ranks = 0};
    json_t *tensors = json_array(), *both[2] = {json_deep_copy(w->sides[side]), w->sides[side]};
    cut_side c = {.side = w->sides[side], .first_rank = w->first_rank[side]};
    fy_naming_cut cut = {
        .problem = &problem, .is_source = side == 0, .is_first = is_first, .context = &c};
    ferry_status status = fy_naming_list(w->names, of, own, tensors, error);
    FY_THEN(status, fy_check_memory(both[0] != NULL, "a spec", error));
    FY_THEN(status, make_base(tensors, both, w->first_rank[side], &spec, error));
    if (status == FERRY_OK) {
        status = fy_spec_lower(spec, &problem, error);
        FY_THEN(status, fy_naming_side_of_cut(w->names, of, own, &cut, side_out, error));
        fy_problem_cleanup(&problem);
    }
    ferry_spec_destroy(spec);
    json_decref(both[0]);
    json_decref(tensors);
    return status;
}

/* A side that is not in boxes, or in the place of one that is, which a spec asks for as well. */
static ferry_status side_of_base(const way *w, int side, json_t **side_out, ferry_error *error)
{
    *side_out = w->is_boxed[side] ? json_pack("{s:[], s:[{s:s}]}", "mesh", "rules", "match", "*")
                                  : json_incref(w->sides[side]);
    return fy_check_memory(*side_out != NULL, "a spec", error);
}

/*
 * What a map cannot say: tensors that are transposed on the way, and ranks with zeros in place of
 * one. Such a side says in boxes which elements it has of the other one's tensors, which are cut as
 * usual unless that one is in boxes as well.
 */
static ferry_status make_in_boxes(const way *w, ferry_spec **spec_out, ferry_error *error)
{
    const char *of = w->is_boxed[0] && !w->is_boxed[1] ? w->namings[1] : w->namings[0];
    ferry_spec *base = NULL;
    ferry_side *boxed[2] = {NULL, NULL};
    json_t *tensors = json_array(), *sides[2] = {NULL, NULL};
    ferry_status status = fy_naming_list(w->names, w->namings[0], of, tensors, error);
    for (int side = 0; side < 2; side++) {
        FY_THEN(status, side_of_base(w, side, &sides[side], error));
        if (w->is_boxed[side]) {
            FY_THEN(status, make_boxed(w, side, of, &boxed[side], error));
        }
    }
    FY_THEN(status, make_base(tensors, sides, w->first_rank[1], &base, error));
    FY_THEN(status, ferry_spec_create(base, boxed[0], boxed[1], spec_out, error));
    ferry_spec_destroy(base);
    for (int side = 0; side < 2; side++) {
        ferry_side_destroy(boxed[side]);
        json_decref(sides[side]);
    }
    json_decref(tensors);
    return status;
}

/* Of two sides either may be in boxes where tensors are transposed: that of which these are fewer,
 * or else that which one rank has. */
static ferry_status choose_boxes(way *w, ferry_error *error)
{
    bool turned = false;
    uint64_t blocks[2]; /* of the other side */
    for (int side = 0; side < 2; side++) {
        FY_TRY(has_zeros(w, side, &w->is_boxed[side], error));
    }
    FY_TRY(fy_naming_is_turned(w->names, w->namings[0], w->namings[1], &turned, blocks, error));
    if (turned && !w->is_boxed[0] && !w->is_boxed[1]) {
        bool boxes_source = blocks[0] != blocks[1] ? blocks[0] > blocks[1] : w->is_whole[0];
        w->is_boxed[boxes_source ? 0 : 1] = true;
    }
    return FERRY_OK;
}

ferry_status ferry_names_get_spec(ferry_names *names, const char *from, const char *source,
                                  const char *to, const char *destination, uint32_t first_rank,
                                  ferry_spec **spec_out, ferry_error *error)
{
    way w = {.names = names,
             .namings = {from, to},
             .first_rank = {0, first_rank},
             .is_whole = {is_whole(source), is_whole(destination)}};
    FY_TRY(fy_check_use(names != NULL && from != NULL && to != NULL && spec_out != NULL,
                        "ferry_names_get_spec needs names, two namings and a place for the result",
                        error));
    ferry_status status = make_side(names, from, source, &w.sides[0], error);
    FY_THEN(status, make_side(names, to, destination, &w.sides[1], error));
    FY_THEN(status, choose_boxes(&w, error));
    FY_THEN(status, w.is_boxed[0] || w.is_boxed[1] ? make_in_boxes(&w, spec_out, error)
                                                   : make_mapped(&w, spec_out, error));
    json_decref(w.sides[0]);
    json_decref(w.sides[1]);
    return status;
}

ferry_status fy_names_box_side(ferry_names *names, const char *from, const char *to,
                               const char *form, ferry_side **side_out, ferry_error *error)
{
    way w = {.names = names, .namings = {from, to}, .is_whole = {true, is_whole(form)}};
    uint64_t blocks[2];
    *side_out = NULL;
    ferry_status status = make_side(names, to, form, &w.sides[1], error);
    FY_THEN(status, has_zeros(&w, 1, &w.is_boxed[1], error));
    if (!w.is_boxed[1]) {
        FY_THEN(status, fy_naming_is_turned(names, from, to, &w.is_boxed[1], blocks, error));
    }
    if (w.is_boxed[1]) {
        FY_THEN(status, make_boxed(&w, 1, from, side_out, error));
    }
    json_decref(w.sides[1]);
    return status;
}
