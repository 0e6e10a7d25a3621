/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* From the names of a model and two short forms to a spec. */
#include "base/alloc.h"
#include "checkpoint/short_form.h"
#include "model/map.h"
#include "model/naming.h"

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

static ferry_status make_side(ferry_names *names, const char *naming, const char *form,
                              json_t **side_out, ferry_error *error)
{
    fy_naming *found;
    FY_TRY(fy_naming_find(names, naming, &found, error));
    if (form != NULL && *form != '\0') {
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

static ferry_status make_spec(const ferry_map *map, json_t *source, json_t *destination,
                              uint32_t first_rank, ferry_spec **spec_out, ferry_error *error)
{
    ferry_spec *base = NULL;
    json_t *tensors = json_array(), *root = json_object();
    bool done = json_object_set(root, "tensors", tensors) == 0 &&
                json_object_set_new(destination, "first_rank", json_integer(first_rank)) == 0 &&
                json_object_set_new(root, "format", json_string("ferry.spec/1")) == 0 &&
                json_object_set(root, "source", source) == 0 &&
                json_object_set(root, "destination", destination) == 0;
    ferry_status status = fy_check_memory(done, "a spec", error);
    FY_THEN(status, list_targets(map, tensors, error));
    FY_THEN(status, parse_base(root, &base, error));
    FY_THEN(status, ferry_map_apply(map, base, spec_out, error));
    ferry_spec_destroy(base);
    json_decref(tensors);
    json_decref(root);
    return status;
}

ferry_status ferry_names_get_spec(ferry_names *names, const char *from, const char *source,
                                  const char *to, const char *destination, uint32_t first_rank,
                                  ferry_spec **spec_out, ferry_error *error)
{
    json_t *sides[2] = {NULL, NULL};
    ferry_map *map = NULL;
    FY_TRY(fy_check_use(names != NULL && from != NULL && to != NULL && spec_out != NULL,
                        "ferry_names_get_spec needs names, two namings and a place for the result",
                        error));
    ferry_status status = make_side(names, from, source, &sides[0], error);
    FY_THEN(status, make_side(names, to, destination, &sides[1], error));
    FY_THEN(status, ferry_names_get_map(names, from, to, &map, error));
    FY_THEN(status, make_spec(map, sides[0], sides[1], first_rank, spec_out, error));
    ferry_map_destroy(map);
    json_decref(sides[0]);
    json_decref(sides[1]);
    return status;
}
