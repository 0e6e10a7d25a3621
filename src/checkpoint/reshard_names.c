/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A reshard to another naming: the list of its tensors, with what they are made of. */
#include "checkpoint/reshard.h"

#include "checkpoint/changes.h"
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

static bool ends_in(const char *name, const char *with)
{
    size_t length = strlen(name), n = strlen(with);
    return length >= n && strcmp(name + length - n, with) == 0;
}

/* Names are those of values. Patterns choose by names of the result, and are no help here. */
static ferry_status fail_unnamed(const ferry_reshard *c, const char *naming, const char *name,
                                 ferry_error *error)
{
    bool is_turned = ends_in(name, "_proj_blocks") || ends_in(name, "_proj_scales");
    if (is_turned) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "%s: \"%s\" is of MXFP4 codes, which %s has no names for; names are those of "
            "values, and ferry makes no values of such codes: take a checkpoint of values, "
            "or leave --names out",
            c->from->path, name, naming);
    }
    if (fy_is_scale_name(name)) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "%s: \"%s\" holds scales of codes, which %s has no names for; names are those "
            "of values: make a folder of these first, with --to hf --dequantize, and "
            "give it other names then",
            c->from->path, name, naming);
    }
    return fy_fail(
        error, FERRY_ERR_INVALID_INPUT,
        "%s: no rule of %s covers the tensor \"%s\"; make a folder without it first, with "
        "--to hf --exclude, and give that other names then",
        c->from->path, naming, name);
}

/* What the model's names leave out on purpose is seen, and passed over. */
static ferry_status see(const ferry_reshard *c, ferry_names *names, const fy_naming *naming,
                        const fy_ckpt_tensor *t, ferry_error *error)
{
    ferry_error cause = {{0}};
    ferry_status status =
        ferry_names_see(names, naming->name, t->name, t->dtype, t->n_dims, t->shape, &cause);
    if (status == FERRY_ERR_INVALID_INPUT &&
        fy_naming_find_tensor(naming, t->name) == FY_INDEX_NONE) {
        return fail_unnamed(c, naming->name, t->name, error);
    }
    return status == FERRY_OK ? FERRY_OK : fy_fail(error, status, "%s", cause.message);
}

static ferry_status see_all(const ferry_reshard *c, ferry_names *names, const char *naming,
                            ferry_error *error)
{
    fy_naming *found;
    FY_TRY(fy_naming_find(names, naming, &found, error));
    for (size_t i = 0; i < c->from->n_tensors; i++) {
        FY_TRY(see(c, names, found, &c->from->tensors[i], error));
    }
    return ferry_names_check_seen(names, naming, error);
}

/* Why a tensor of the source is not in the result; NULL: it is. */
static const char *why_left_out(const fy_naming *from, const fy_naming *to, const char *name)
{
    uint32_t number = fy_naming_find_tensor(from, name);
    if (number == FY_INDEX_NONE) { /* or it would not have been seen */
        return "left out of all names: others have the same, or models compute it";
    }
    if (!fy_naming_lacks(to, from, &from->tensors[number])) {
        return NULL;
    }
    return from->tensors[number].is_optional
               ? "no place in these names, as for layers that predict further tokens"
               : "no place in these names";
}

/* Whatever the subset: its patterns are of names that these have not. */
static ferry_status list_left_out(ferry_reshard *c, ferry_names *names, const way *w,
                                  ferry_error *error)
{
    fy_naming *from, *to;
    FY_TRY(fy_naming_find(names, w->from, &from, error));
    FY_TRY(fy_naming_find(names, w->to, &to, error));
    c->left_out = json_array();
    bool done = c->left_out != NULL;
    for (size_t i = 0; i < c->from->n_tensors && done; i++) {
        const char *name = c->from->tensors[i].name, *why = why_left_out(from, to, name);
        done =
            why == NULL || json_array_append_new(c->left_out, json_pack("[s, s]", name, why)) == 0;
    }
    return fy_check_memory(done, "the tensors that names leave out", error);
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
    FY_TRY(list_left_out(c, names, w, error));
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
