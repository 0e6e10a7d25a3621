/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a side on a mesh says and no tensor follows. Nothing of a plan depends on it. */
#include "model/spec.h"

#include "base/checked.h"
#include "base/glob.h"
#include "model/rule_index.h"

#include <string.h>

/* What the tensors of one side follow. */
typedef struct side_use {
    const ferry_spec *spec;
    const fy_side *side;
    fy_rule_index index;
    bool *rules;   /* [n_rules] a tensor follows it */
    size_t *first; /* [n_stages + 1] where the coordinates of its axis begin */
    bool *places;  /* of all stages: a tensor is put on this coordinate */
    bool *stages;  /* [n_stages] a tensor fits it */
} side_use;

/* Whether the side looks for a rule for it: scales follow what they are of. */
static bool is_placed(const side_use *u, const fy_tensor *tensor)
{
    bool at_source = u->side == &u->spec->source;
    bool has_none = at_source ? tensor->n_feeds > 0 || tensor->is_made : tensor->is_source_only;
    return tensor->scales == NULL && tensor->staged == NULL && !has_none;
}

static void note_stages(side_use *u, const char *name, size_t length)
{
    for (size_t i = 0; i < u->side->n_stages; i++) {
        const fy_stage *stage = &u->side->stages[i];
        uint64_t item;
        if (fy_glob_match_number(stage->match, name, length, &item) && item < stage->count) {
            u->stages[i] = true;
            u->places[u->first[i] + fy_stage_coordinate(u->side, stage, item)] = true;
        }
    }
}

static void note(side_use *u, const char *name)
{
    size_t length = strlen(name);
    const fy_rule *rule = fy_rule_index_find(&u->index, name, length);
    if (rule != NULL) {
        u->rules[rule - u->side->rules] = true;
    }
    if (rule != NULL && !rule->skip) {
        note_stages(u, name, length);
    }
}

static ferry_status make_use(side_use *u, ferry_error *error)
{
    const fy_side *side = u->side;
    size_t n_places = 0;
    u->first = fy_alloc(side->n_stages + 1, sizeof *u->first);
    FY_TRY(fy_check_memory(u->first != NULL, "the stages of a side", error));
    for (size_t i = 0; i < side->n_stages; i++) {
        u->first[i] = n_places;
        n_places += side->axes[side->stages[i].axis].size;
    }
    u->rules = fy_alloc_zeroed(side->n_rules, sizeof *u->rules);
    u->stages = fy_alloc_zeroed(side->n_stages, sizeof *u->stages);
    u->places = fy_alloc_zeroed(n_places, sizeof *u->places);
    FY_TRY(fy_check_memory(u->rules != NULL && u->stages != NULL && u->places != NULL,
                           "the rules of a side", error));
    FY_TRY(fy_rule_index_init(&u->index, side, error));
    for (uint32_t t = 0; t < u->spec->n_tensors; t++) {
        if (is_placed(u, &u->spec->tensors[t])) {
            note(u, u->spec->tensors[t].name);
        }
    }
    return FERRY_OK;
}

/* Whether a tensor fits a rule that none follows: rules before it take all of these. */
static bool is_hidden(const side_use *u, const fy_rule *rule)
{
    uint32_t named = fy_spec_find_tensor(u->spec, rule->match);
    if (named != FY_NONE) {
        return is_placed(u, &u->spec->tensors[named]);
    }
    bool is_name = strpbrk(rule->match, "*?") == NULL;
    for (uint32_t t = 0; t < u->spec->n_tensors && !is_name; t++) {
        const fy_tensor *tensor = &u->spec->tensors[t];
        if (is_placed(u, tensor) &&
            fy_glob_match(rule->match, rule->match_length, tensor->name, strlen(tensor->name))) {
            return true;
        }
    }
    return false;
}

/* A last rule for whatever is left says so, and need not find anything. */
static bool is_for_any(const fy_rule *rule)
{
    return strspn(rule->match, "*") == rule->match_length;
}

static ferry_status visit_rules(const side_use *u, ferry_unused_visitor visitor, void *context)
{
    for (size_t i = 0; i < u->side->n_rules; i++) {
        const fy_rule *rule = &u->side->rules[i];
        if (u->rules[i] || is_for_any(rule)) {
            continue;
        }
        ferry_unused unused = {.is_destination = u->side == &u->spec->destination,
                               .index = i,
                               .match = rule->match,
                               .is_hidden = is_hidden(u, rule)};
        FY_TRY(visitor(context, &unused));
    }
    return FERRY_OK;
}

/* Whether a coordinate has no tensor of a stage that means it to have some. */
static bool is_bare(const side_use *u, size_t number, uint32_t coordinate)
{
    const fy_stage *stage = &u->side->stages[number];
    bool is_empty = stage->ends != NULL &&
                    stage->ends[coordinate] == (coordinate == 0 ? 0 : stage->ends[coordinate - 1]);
    return !is_empty && !u->places[u->first[number] + coordinate];
}

static ferry_status visit_stage(const side_use *u, size_t number, ferry_unused_visitor visitor,
                                void *context)
{
    const fy_stage *stage = &u->side->stages[number];
    uint32_t n = u->side->axes[stage->axis].size;
    ferry_unused unused = {.is_destination = u->side == &u->spec->destination,
                           .is_stage = true,
                           .index = number,
                           .match = stage->match};
    if (!u->stages[number]) {
        return visitor(context, &unused);
    }
    unused.axis = u->side->axes[stage->axis].name;
    for (uint32_t begin = 0, end; begin < n; begin = end + 1) {
        for (end = begin; end < n && is_bare(u, number, end); end++) {}
        unused.first_coordinate = begin;
        unused.n_coordinates = end - begin;
        FY_TRY(end == begin ? FERRY_OK : visitor(context, &unused));
    }
    return FERRY_OK;
}

static ferry_status visit_side(const ferry_spec *spec, const fy_side *side,
                               ferry_unused_visitor visitor, void *context, ferry_error *error)
{
    side_use u = {.spec = spec, .side = side};
    ferry_status status = side->boxes != NULL ? FERRY_OK : make_use(&u, error);
    if (status == FERRY_OK && side->boxes == NULL) {
        status = visit_rules(&u, visitor, context);
    }
    for (size_t i = 0; i < side->n_stages && side->boxes == NULL; i++) {
        FY_THEN(status, visit_stage(&u, i, visitor, context));
    }
    fy_rule_index_cleanup(&u.index);
    fy_free(u.first);
    fy_free(u.rules);
    fy_free(u.stages);
    fy_free(u.places);
    return status;
}

/* Nodes behind the one of the last rank. */
static ferry_status visit_nodes(const ferry_spec *spec, ferry_unused_visitor visitor, void *context)
{
    uint64_t world = fy_max(fy_side_world(&spec->source), fy_side_world(&spec->destination));
    uint32_t n_nodes = fy_cluster_node_count(&spec->cluster, (uint32_t)world);
    for (size_t i = 0; i < spec->cluster.n_overrides; i++) {
        uint32_t node = spec->cluster.overrides[i].node;
        ferry_unused unused = {.is_node = true, .index = node};
        FY_TRY(node < n_nodes ? FERRY_OK : visitor(context, &unused));
    }
    return FERRY_OK;
}

ferry_status ferry_spec_visit_unused(const ferry_spec *spec, ferry_unused_visitor visitor,
                                     void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(spec != NULL && visitor != NULL,
                        "ferry_spec_visit_unused needs a spec and a visitor", error));
    FY_TRY(visit_side(spec, &spec->source, visitor, context, error));
    FY_TRY(visit_side(spec, &spec->destination, visitor, context, error));
    return visit_nodes(spec, visitor, context);
}
