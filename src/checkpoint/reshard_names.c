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

static ferry_status find_from(const fy_named *n, ferry_names *names, way *w, ferry_error *error)
{
    const ferry_checkpoint *from = n->from;
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
    size_t length = strlen(name), tail = strlen(with);
    return length >= tail && strcmp(name + length - tail, with) == 0;
}

/* Names are those of values. Patterns choose by names of the result, and are no help here. */
static ferry_status fail_unnamed(const fy_named *n, const char *naming, const char *name,
                                 ferry_error *error)
{
    bool is_turned = ends_in(name, "_proj_blocks") || ends_in(name, "_proj_scales");
    if (is_turned) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "%s: \"%s\" is of MXFP4 codes, which %s has no names for; names are those of "
            "values, and ferry makes no values of such codes: take a checkpoint of values, "
            "or leave --names out",
            n->from->path, name, naming);
    }
    if (fy_is_scale_name(name)) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "%s: \"%s\" holds scales of codes, which %s has no names for; names are those "
            "of values: make a folder of these first, with --to hf --dequantize, and "
            "give it other names then",
            n->from->path, name, naming);
    }
    return fy_fail(
        error, FERRY_ERR_INVALID_INPUT,
        "%s: no rule of %s covers the tensor \"%s\"; make a folder without it first, with "
        "--to hf --exclude, and give that other names then",
        n->from->path, naming, name);
}

/* What the model's names leave out on purpose is seen, and passed over. */
static ferry_status see(const fy_named *n, ferry_names *names, const fy_naming *naming,
                        const fy_ckpt_tensor *t, ferry_error *error)
{
    ferry_error cause = {{0}};
    ferry_status status =
        ferry_names_see(names, naming->name, t->name, t->dtype, t->n_dims, t->shape, &cause);
    if (status == FERRY_ERR_INVALID_INPUT &&
        fy_naming_find_tensor(naming, t->name) == FY_INDEX_NONE) {
        return fail_unnamed(n, naming->name, t->name, error);
    }
    return status == FERRY_OK ? FERRY_OK : fy_fail(error, status, "%s", cause.message);
}

static ferry_status see_all(const fy_named *n, ferry_names *names, const char *naming,
                            ferry_error *error)
{
    fy_naming *found;
    FY_TRY(fy_naming_find(names, naming, &found, error));
    for (size_t i = 0; i < n->from->n_tensors; i++) {
        FY_TRY(see(n, names, found, &n->from->tensors[i], error));
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
static ferry_status list_left_out(fy_named *n, ferry_names *names, const way *w, ferry_error *error)
{
    fy_naming *from, *to;
    FY_TRY(fy_naming_find(names, w->from, &from, error));
    FY_TRY(fy_naming_find(names, w->to, &to, error));
    n->left_out = json_array();
    bool done = n->left_out != NULL;
    for (size_t i = 0; i < n->from->n_tensors && done; i++) {
        const char *name = n->from->tensors[i].name, *why = why_left_out(from, to, name);
        done =
            why == NULL || json_array_append_new(n->left_out, json_pack("[s, s]", name, why)) == 0;
    }
    return fy_check_memory(done, "the tensors that names leave out", error);
}

static ferry_status list_targets(fy_named *n, const ferry_map *map, ferry_error *error)
{
    n->tensors = json_array();
    bool done = n->tensors != NULL;
    for (uint32_t i = 0; i < map->targets.n && done; i++) {
        done = json_array_append_new(n->tensors, fy_map_target_entry(map, i)) == 0;
    }
    return fy_check_memory(done, "the tensors of a reshard", error);
}

/* Of what is not in boxes. */
static ferry_status check_straight(const fy_named *n, ferry_names *names, const way *w,
                                   ferry_error *error)
{
    bool turned;
    uint64_t blocks[2];
    FY_TRY(fy_naming_is_turned(names, w->from, w->to, &turned, blocks, error));
    if (turned && n->with != NULL) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "%s: %s has tensors that %s has transposed, and %s is in boxes of the latter: "
            "write it with --to hf first, and compare that",
            n->from->path, w->from, w->to, n->to);
    }
    return turned ? fy_fail(error, FERRY_ERR_UNSUPPORTED,
                            "%s: %s has tensors that %s has transposed, and a folder of ranks can "
                            "have them, but not %s; give a short form: tp=1 is one file that has "
                            "all",
                            n->from->path, w->from, w->to, n->to)
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

/* Which namings, and that the source is of the first. */
static ferry_status begin_names(fy_named *n, ferry_names *names, way *w, ferry_error *error)
{
    FY_TRY(find_from(n, names, w, error));
    FY_TRY(see_all(n, names, w->from, error));
    return list_left_out(n, names, w, error);
}

static ferry_status list_straight(fy_named *n, ferry_names *names, const way *w, ferry_error *error)
{
    ferry_map *map = NULL;
    FY_TRY(check_straight(n, names, w, error));
    FY_TRY(ferry_names_get_map(names, w->from, w->to, &map, error));
    ferry_status status = list_targets(n, map, error);
    ferry_map_destroy(map);
    return status;
}

static ferry_status name_tensors(ferry_reshard *c, fy_named *n, ferry_names *names, way *w,
                                 ferry_error *error)
{
    FY_TRY(begin_names(n, names, w, error));
    if (c->is_sharded && fy_short_form_is(c->to)) {
        FY_TRY(fy_names_box_side(names, w->from, w->to, c->to, &c->boxes, error));
        if (c->boxes != NULL) {
            cast_fills(c);
            return check_boxes(c, w, error);
        }
    }
    return list_straight(n, names, w, error);
}

static ferry_status open_names(const ferry_checkpoint *from, const char *config,
                               size_t config_length, ferry_names **names_out, ferry_error *error)
{
    ferry_names_options options = FERRY_NAMES_OPTIONS_INIT;
    if (config == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has no config.json, which other names need: give one", from->path);
    }
    options.config = config;
    options.config_length = config_length;
    options.source_name = from->path;
    return ferry_names_create(&options, names_out, error);
}

ferry_status fy_reshard_name_tensors(ferry_reshard *c, const char *config, size_t config_length,
                                     ferry_error *error)
{
    way w;
    ferry_names *names = NULL;
    fy_named n = {.from = c->from, .to = c->to};
    FY_TRY(parse_way(c->names, &w, error));
    FY_TRY(open_names(c->from, config, config_length, &names, error));
    ferry_status status =
        c->tensors != NULL || c->boxes != NULL
            ? fy_fail(error, FERRY_ERR_INVALID_INPUT,
                      "%s: has tensors of its own, and names are asked for, too: give one of them",
                      c->to)
            : FERRY_OK;
    if (status == FERRY_OK) {
        status = name_tensors(c, &n, names, &w, error);
        c->tensors = n.tensors;
        c->left_out = n.left_out;
    }
    ferry_names_destroy(names);
    return status;
}

/* ---- what is there, and compared ---- */

/* Whether the other one is in boxes of tensors that are called as those of this one. */
static bool has_own_boxes(const fy_named *n)
{
    bool has = n->with->boxed != NULL;
    for (size_t i = 0; i < n->with->n_tensors && has; i++) {
        has = fy_ckpt_find(n->from, n->with->tensors[i].name) != FY_INDEX_NONE;
    }
    return has;
}

/* A parameter is what the names call so: its dimensions, and of which tensors its boxes are. */
static ferry_status check_parameter(const fy_named *n, const fy_naming *from, const fy_naming *to,
                                    const fy_parameter *p, const fy_naming_tensor *t,
                                    ferry_error *error)
{
    const fy_boxed *boxed = n->with->boxed;
    bool fits = p->shape == NULL || p->n_dims == t->n_dims;
    for (uint32_t d = 0; fits && p->shape != NULL && d < p->n_dims; d++) {
        fits = p->shape[d] <= t->shape[d];
    }
    if (!fits) {
        return fy_fail(error, FERRY_ERR_DIFFERENT,
                       "parameter \"%s\" of %s is no part of what %s calls so: it has other "
                       "dimensions, or larger ones",
                       p->name, n->to, to->name);
    }
    for (uint32_t i = 0; i < p->n_boxes; i++) {
        const char *source =
            boxed->spec->tensors[fy_boxed_tensor_of(boxed, &boxed->side->boxes[p->first_box + i])]
                .name;
        if (!fy_naming_makes(from, to, t, source)) {
            return fy_fail(
                error, FERRY_ERR_DIFFERENT,
                "parameter \"%s\" of %s has a box of \"%s\", of which %s does not make it", p->name,
                n->to, source, to->name);
        }
    }
    return FERRY_OK;
}

static ferry_status check_parameters(const fy_named *n, const fy_naming *from, const fy_naming *to,
                                     bool *is_seen, ferry_error *error)
{
    const ferry_side *side = n->with->boxed->side;
    for (size_t i = 0; i < side->n_parameters; i++) {
        uint32_t number = fy_naming_find_tensor(to, side->parameters[i].name);
        if (number == FY_INDEX_NONE) {
            return fy_fail(error, FERRY_ERR_DIFFERENT,
                           "\"%s\" is a parameter of %s, but %s has no tensor that is called so",
                           side->parameters[i].name, n->to, to->name);
        }
        is_seen[number] = true;
        FY_TRY(check_parameter(n, from, to, &side->parameters[i], &to->tensors[number], error));
    }
    for (size_t t = 0; t < to->n_tensors; t++) {
        const fy_naming_tensor *tensor = &to->tensors[t];
        if (!is_seen[t] && !fy_naming_lacks(from, to, tensor)) {
            return fy_fail(error, FERRY_ERR_DIFFERENT,
                           "%s of %s has \"%s\", but no rank of %s has anything of it", to->name,
                           n->from->path, tensor->name, n->to);
        }
    }
    return FERRY_OK;
}

static ferry_status check_own_boxes(fy_named *n, ferry_names *names, const way *w,
                                    ferry_error *error)
{
    fy_naming *from, *to;
    FY_TRY(fy_naming_find(names, w->from, &from, error));
    FY_TRY(fy_naming_find(names, w->to, &to, error));
    bool *is_seen = fy_alloc_zeroed(to->n_tensors, sizeof *is_seen);
    FY_TRY(fy_check_memory(is_seen != NULL, "the names of a checkpoint", error));
    ferry_status status = check_parameters(n, from, to, is_seen, error);
    fy_free(is_seen);
    n->is_boxed = status == FERRY_OK;
    return status;
}

/* As a reshard under these names would make it, whichever ranks have it. */
static ferry_status list_compared(fy_named *n, ferry_names *names, const way *w, ferry_error *error)
{
    if (has_own_boxes(n)) {
        return check_own_boxes(n, names, w, error);
    }
    if (n->with->boxed == NULL) {
        FY_TRY(fy_names_box_side(names, w->from, w->to, NULL, &n->made, error));
    }
    return n->made != NULL ? FERRY_OK : list_straight(n, names, w, error);
}

ferry_status fy_named_list(fy_named *n, const char *as, const char *config, size_t config_length,
                           ferry_error *error)
{
    way w;
    ferry_names *names = NULL;
    FY_TRY(parse_way(as, &w, error));
    FY_TRY(open_names(n->from, config, config_length, &names, error));
    ferry_status status = begin_names(n, names, &w, error);
    FY_THEN(status, list_compared(n, names, &w, error));
    ferry_names_destroy(names);
    return status;
}
