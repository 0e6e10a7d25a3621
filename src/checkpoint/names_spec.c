/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* From the names of a model and two short forms to a spec. */
#include "base/alloc.h"
#include "checkpoint/short_form.h"
#include "model/map.h"
#include "model/naming.h"

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

/* What is asked for. */
typedef struct way {
    ferry_names *names;
    const char *from, *to;
    json_t *sides[2];
    bool is_whole[2]; /* one rank has all of it */
    uint32_t first_rank;
} way;

static ferry_status make_mapped(const way *w, ferry_spec **spec_out, ferry_error *error)
{
    ferry_spec *base = NULL;
    ferry_map *map = NULL;
    json_t *tensors = json_array();
    ferry_status status = ferry_names_get_map(w->names, w->from, w->to, &map, error);
    FY_THEN(status, list_targets(map, tensors, error));
    FY_THEN(status, make_base(tensors, w->sides, w->first_rank, &base, error));
    FY_THEN(status, ferry_map_apply(map, base, spec_out, error));
    ferry_spec_destroy(base);
    ferry_map_destroy(map);
    json_decref(tensors);
    return status;
}

/*
 * Where tensors are transposed on the way, the side of the rank that has all of its tensors says in
 * boxes which elements they are of those of the other one, which are cut as usual.
 */
static ferry_status make_turned(const way *w, ferry_spec **spec_out, ferry_error *error)
{
    if (!w->is_whole[0] && !w->is_whole[1]) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "the model's %s has tensors that %s has transposed, and both are cut: let one "
            "rank have all of one of them",
            w->from, w->to);
    }
    int whole = w->is_whole[0] ? 0 : 1;
    const char *cut = whole == 0 ? w->to : w->from, *boxed = whole == 0 ? w->from : w->to;
    ferry_spec *base = NULL;
    ferry_side *side = NULL;
    json_t *tensors = json_array();
    ferry_status status = fy_naming_list(w->names, w->from, cut, tensors, error);
    FY_THEN(status, make_base(tensors, w->sides, w->first_rank, &base, error));
    FY_THEN(status,
            fy_naming_side(w->names, cut, boxed, whole == 0 ? 0 : w->first_rank, &side, error));
    FY_THEN(status, ferry_spec_create(base, whole == 0 ? side : NULL, whole == 1 ? side : NULL,
                                      spec_out, error));
    ferry_spec_destroy(base);
    ferry_side_destroy(side);
    json_decref(tensors);
    return status;
}

ferry_status ferry_names_get_spec(ferry_names *names, const char *from, const char *source,
                                  const char *to, const char *destination, uint32_t first_rank,
                                  ferry_spec **spec_out, ferry_error *error)
{
    way w = {.names = names,
             .from = from,
             .to = to,
             .first_rank = first_rank,
             .is_whole = {is_whole(source), is_whole(destination)}};
    bool turned = false;
    FY_TRY(fy_check_use(names != NULL && from != NULL && to != NULL && spec_out != NULL,
                        "ferry_names_get_spec needs names, two namings and a place for the result",
                        error));
    ferry_status status = make_side(names, from, source, &w.sides[0], error);
    FY_THEN(status, make_side(names, to, destination, &w.sides[1], error));
    FY_THEN(status, fy_naming_is_turned(names, from, to, &turned, error));
    FY_THEN(status, turned ? make_turned(&w, spec_out, error) : make_mapped(&w, spec_out, error));
    json_decref(w.sides[0]);
    json_decref(w.sides[1]);
    return status;
}
