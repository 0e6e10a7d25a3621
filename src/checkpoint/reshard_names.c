/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A reshard to another naming: the list of its tensors, with what they are made of. */
#include "checkpoint/reshard.h"

#include "checkpoint/names_boxes.h"
#include "checkpoint/short_form.h"
#include "convert/convert.h"
#include "model/map.h"
#include "model/naming.h"

#include <ferry/names.h>

#include <string.h>

enum { MOST_NAMING = 64 };

/* Which namings: "TO", or "FROM:TO". */
typedef struct way {
    char from[MOST_NAMING]; /* "": to be found */
    const char *to;
} way;

static ferry_status parse_way(const char *text, way *w, ferry_error *error)
{
    const char *colon = strchr(text, ':');
    size_t length = colon == NULL ? 0 : (size_t)(colon - text);
    if (*text == '\0' || length >= sizeof w->from || (colon != NULL && colon[1] == '\0')) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "names are \"%.60s\": give a naming such as hf, or two such as megatron:hf",
                       text);
    }
    memcpy(w->from, text, length);
    w->from[length] = '\0';
    w->to = colon == NULL ? text : colon + 1;
    return FERRY_OK;
}

static ferry_status find_from(const ferry_reshard *c, ferry_names *names, way *w,
                              ferry_error *error)
{
    const ferry_checkpoint *from = c->from;
    const char *found = NULL;
    if (w->from[0] != '\0') {
        return FERRY_OK;
    }
    const char **tensors = fy_alloc(from->n_tensors, sizeof *tensors);
    FY_TRY(fy_check_memory(tensors != NULL, "the names of a checkpoint", error));
    for (size_t i = 0; i < from->n_tensors; i++) {
        tensors[i] = from->tensors[i].name;
    }
    ferry_status status = ferry_names_find_naming(names, tensors, from->n_tensors, &found, error);
    fy_free(tensors);
    if (status == FERRY_OK) {
        snprintf(w->from, sizeof w->from, "%s", found);
    }
    return status;
}

static ferry_status see_all(const ferry_reshard *c, ferry_names *names, const char *naming,
                            ferry_error *error)
{
    for (size_t i = 0; i < c->from->n_tensors; i++) {
        const fy_ckpt_tensor *t = &c->from->tensors[i];
        FY_TRY(ferry_names_see(names, naming, t->name, t->dtype, t->n_dims, t->shape, error));
    }
    return ferry_names_check_seen(names, naming, error);
}

static ferry_status list_targets(ferry_reshard *c, const ferry_map *map, ferry_error *error)
{
    c->tensors = json_array();
    bool done = c->tensors != NULL;
    for (uint32_t i = 0; i < map->targets.n && done; i++) {
        done = json_array_append_new(c->tensors, fy_map_target_entry(map, i)) == 0;
    }
    return fy_check_memory(done, "the tensors of a reshard", error);
}

/* Of what is not in boxes. */
static ferry_status check_straight(const ferry_reshard *c, ferry_names *names, const way *w,
                                   ferry_error *error)
{
    bool turned;
    uint64_t blocks[2];
    FY_TRY(fy_naming_is_turned(names, w->from, w->to, &turned, blocks, error));
    return turned ? fy_fail(error, FERRY_ERR_UNSUPPORTED,
                            "%s: %s has tensors that %s has transposed, and a folder of ranks can "
                            "have them, but not %s; give a short form: tp=1 is one file that has "
                            "all",
                            c->from->path, w->from, w->to, c->to)
                  : FERRY_OK;
}

/* What ranks have zeros in place of has the type that the tensor gets on the others. */
static void cast_fills(ferry_reshard *c)
{
    for (size_t i = 0; i < c->boxes->n_fills && c->cast != 0; i++) {
        ferry_dtype *dtype = &c->boxes->parameters[c->boxes->fills[i].parameter].dtype;
        if (fy_cast_element_bytes(dtype->kind) != 0) {
            ferry_dtype_of(c->cast, dtype, NULL);
        }
    }
}

/* Boxes are of the source's tensors, and so would be the names that these options choose by. */
static ferry_status check_boxes(const ferry_reshard *c, const way *w, ferry_error *error)
{
    const char *option = c->subset != NULL       ? "a subset"
                         : c->quantize != NULL   ? "--quantize"
                         : c->dequantize != NULL ? "--dequantize"
                                                 : NULL;
    return option == NULL
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                         "%s: %s has tensors that lie otherwise in %s, which are written in boxes, "
                         "as they are: leave %s out",
                         c->from->path, w->from, w->to, option);
}

static ferry_status name_tensors(ferry_reshard *c, ferry_names *names, way *w, ferry_error *error)
{
    ferry_map *map = NULL;
    FY_TRY(find_from(c, names, w, error));
    FY_TRY(see_all(c, names, w->from, error));
    if (c->is_sharded && fy_short_form_is(c->to)) {
        FY_TRY(fy_names_box_side(names, w->from, w->to, c->to, &c->boxes, error));
        if (c->boxes != NULL) {
            cast_fills(c);
            return check_boxes(c, w, error);
        }
    }
    FY_TRY(check_straight(c, names, w, error));
    FY_TRY(ferry_names_get_map(names, w->from, w->to, &map, error));
    ferry_status status = list_targets(c, map, error);
    ferry_map_destroy(map);
    return status;
}

ferry_status fy_reshard_name_tensors(ferry_reshard *c, const char *config, size_t config_length,
                                     ferry_error *error)
{
    way w;
    ferry_names *names = NULL;
    ferry_names_options options = FERRY_NAMES_OPTIONS_INIT;
    FY_TRY(parse_way(c->names, &w, error));
    if (config == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has no config.json, which other names need: give one", c->from->path);
    }
    if (c->tensors != NULL || c->boxes != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has tensors of its own, and names are asked for, too: give one of them",
                       c->to);
    }
    options.config = config;
    options.config_length = config_length;
    options.source_name = c->from->path;
    FY_TRY(ferry_names_create(&options, &names, error));
    ferry_status status = name_tensors(c, names, &w, error);
    ferry_names_destroy(names);
    return status;
}
