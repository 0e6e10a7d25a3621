/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Scales are cut where their weights are. What a rule says of weights is said of their scales by a
 * rule of the same words in blocks instead of elements; whether both have cut alike is checked on
 * the splits that come of it.
 */
#include "checkpoint/changes.h"

#include "base/checked.h"
#include "base/glob.h"
#include "checkpoint/job.h"
#include "model/rule_index.h"

#include <string.h>

typedef struct adding {
    json_t *side;
    const fy_side *parsed;
    const fy_rule_index *index;
    json_t **made;      /* [rules] what stands before each: an array, or NULL */
    uint32_t *made_for; /* [rules] the dimensions of the weights that its rules were made for */
} adding;

/* ---- one rule ---- */

static bool set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

/* Every number of a list, or the first of a pair, in blocks; the last one may be short. */
static json_t *list_in_blocks(const json_t *list, uint64_t block)
{
    json_t *made = json_array();
    uint64_t end = 0; /* a parsed rule's numbers: far below 2^64 */
    for (size_t i = 0; i < json_array_size(list) && made != NULL; i++) {
        const json_t *item = json_array_get(list, i);
        bool is_pair = json_is_array(item);
        uint64_t begin = fy_ceil_div(end, block);
        end += (uint64_t)json_integer_value(is_pair ? json_array_get(item, 0) : item);
        json_t *number = json_integer((json_int_t)(fy_ceil_div(end, block) - begin));
        json_t *one = is_pair ? json_pack("[o, O]", number, json_array_get(item, 1)) : number;
        if (json_array_append_new(made, one) != 0) {
            json_decref(made);
            made = NULL;
        }
    }
    return made;
}

/* A cut of a weight's dimension as one of its scales. Units that are no whole blocks may still cut
 * between blocks. */
static bool shard_in_blocks(json_t *shard, uint64_t block)
{
    static const char *const numbers[] = {"unit", "cycle"};
    static const char *const lists[] = {"sizes", "blocks"};
    bool done = true;
    for (size_t i = 0; i < 2 && done; i++) {
        const json_t *value = json_object_get(shard, numbers[i]);
        if (json_is_integer(value)) {
            uint64_t number = (uint64_t)json_integer_value(value);
            number = number % block == 0 ? number / block : 1;
            done = set(shard, numbers[i], json_integer((json_int_t)number));
        }
        const json_t *list = json_object_get(shard, lists[i]);
        if (done && json_is_array(list)) {
            done = set(shard, lists[i], list_in_blocks(list, block));
        }
    }
    return done;
}

/* The cuts of a rule: of matrices those of the leading dimensions only. */
static json_t *shards_in_blocks(const json_t *shards, const fy_change *change, bool of_matrices,
                                uint32_t n_dims)
{
    json_t *made = json_array();
    for (size_t i = 0; i < json_array_size(shards) && made != NULL; i++) {
        json_t *shard = json_deep_copy(json_array_get(shards, i));
        uint64_t dim = (uint64_t)json_integer_value(json_object_get(shard, "dim"));
        bool in_matrix = dim + 2 >= n_dims && dim < n_dims;
        bool done = shard != NULL;
        if (in_matrix && of_matrices) {
            json_decref(shard);
            continue;
        }
        if (done && in_matrix) {
            done = shard_in_blocks(shard, change->format.block[dim + 2 - n_dims]);
        }
        if (!done || json_array_append(made, shard) != 0) {
            json_decref(made);
            made = NULL;
        }
        json_decref(shard);
    }
    return made;
}

static bool put_match(json_t *object, const char *match, const char *suffix)
{
    json_t *text = json_sprintf("%s%s", match, suffix);
    return set(object, "match", text);
}

static json_t *rule_in_blocks(const json_t *rule, const char *match, const char *suffix,
                              const fy_change *change, bool of_matrices, uint32_t n_dims)
{
    json_t *made = json_deep_copy(rule);
    const json_t *shards = json_object_get(rule, "shard");
    bool done = made != NULL && put_match(made, match, suffix);
    if (done && shards != NULL) {
        done = set(made, "shard", shards_in_blocks(shards, change, of_matrices, n_dims));
    }
    if (!done) {
        json_decref(made);
        made = NULL;
    }
    return made;
}

/* ---- which rules ---- */

/* Whether scales need a rule of their own: those that there are fit weights as well. */
static bool needs_rule(const adding *a, const fy_tensor *weight, const char *scales)
{
    const fy_rule *rule = fy_rule_index_find(a->index, scales, strlen(scales));
    return rule == NULL ||
           fy_glob_match(rule->match, rule->match_length, weight->name, strlen(weight->name));
}

static ferry_status add_rule(adding *a, const fy_tensor *weight, const fy_tensor *scales,
                             const fy_change *change, bool of_matrices, ferry_error *error)
{
    const fy_rule *of_weight = fy_rule_index_find(a->index, weight->name, strlen(weight->name));
    if (of_weight == NULL || of_weight->skip || !needs_rule(a, weight, scales->name)) {
        return FERRY_OK; /* without a rule the weight is refused */
    }
    size_t i = (size_t)(of_weight - a->parsed->rules);
    const char *suffix = scales->name + strlen(weight->name);
    size_t n_wanted = of_matrices ? 2 : 1;
    if (a->made[i] != NULL && a->made_for[i] != weight->n_dims) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: the rule \"%s\" is for weights of %u and of %u dimensions (\"%s\"), "
                       "whose scales need a rule each; give them two rules",
                       a->parsed->name, of_weight->match, a->made_for[i], weight->n_dims,
                       weight->name);
    }
    if (json_array_size(a->made[i]) >= n_wanted) {
        return FERRY_OK;
    }
    const json_t *rule = json_array_get(json_object_get(a->side, "rules"), i);
    a->made_for[i] = weight->n_dims;
    a->made[i] = a->made[i] == NULL ? json_array() : a->made[i];
    json_t *made =
        rule_in_blocks(rule, of_weight->match, suffix, change, of_matrices, weight->n_dims);
    return fy_check_memory(json_array_append_new(a->made[i], made) == 0, "the rules of scales",
                           error);
}

/* A stage that places a weight by its name must place its scales as well. */
static ferry_status add_stages(adding *a, const fy_tensor *weight, const fy_tensor *scales,
                               ferry_error *error)
{
    json_t *stages = json_object_get(a->side, "stages");
    const char *suffix = scales->name + strlen(weight->name);
    for (size_t i = 0; i < a->parsed->n_stages; i++) {
        const fy_stage *stage = &a->parsed->stages[i];
        uint64_t item;
        bool places = fy_glob_match_number(stage->match, weight->name, strlen(weight->name), &item);
        bool both = fy_glob_match_number(stage->match, scales->name, strlen(scales->name), &item);
        json_t *made;
        bool is_there = false;
        for (size_t j = a->parsed->n_stages; places && !both && j < json_array_size(stages); j++) {
            const char *match =
                json_string_value(json_object_get(json_array_get(stages, j), "match"));
            is_there = is_there || (strncmp(match, stage->match, strlen(stage->match)) == 0 &&
                                    strcmp(match + strlen(stage->match), suffix) == 0);
        }
        if (!places || both || is_there) {
            continue;
        }
        made = json_deep_copy(json_array_get(stages, i));
        if (made == NULL || !put_match(made, stage->match, suffix) ||
            json_array_append(stages, made) != 0) {
            json_decref(made);
            return fy_fail_no_memory(error, "the stages of scales");
        }
        json_decref(made);
    }
    return FERRY_OK;
}

static ferry_status add_all(adding *a, const ferry_spec *spec, const fy_change *changes,
                            ferry_error *error)
{
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        const fy_change *change = &changes[t];
        if (change->kind != FY_SCALES && change->kind != FY_MATRIX_SCALES) {
            continue;
        }
        const fy_tensor *weight = &spec->tensors[change->weight];
        const fy_change *its = &changes[change->weight];
        FY_TRY(
            add_rule(a, weight, &spec->tensors[t], its, change->kind == FY_MATRIX_SCALES, error));
        FY_TRY(add_stages(a, weight, &spec->tensors[t], error));
    }
    return FERRY_OK;
}

/* The rules with those that were made, each before the one that it was made of. */
static ferry_status put_rules(const adding *a, ferry_error *error)
{
    const json_t *rules = json_object_get(a->side, "rules");
    json_t *all = json_array();
    bool done = all != NULL;
    for (size_t i = 0; i < json_array_size(rules) && done; i++) {
        done = (a->made[i] == NULL || json_array_extend(all, a->made[i]) == 0) &&
               json_array_append(all, json_array_get(rules, i)) == 0;
    }
    done = done && json_object_set(a->side, "rules", all) == 0;
    json_decref(all);
    return fy_check_memory(done, "the rules of scales", error);
}

static ferry_status add_to_parsed(adding *a, const ferry_spec *spec, const fy_change *changes,
                                  ferry_error *error)
{
    fy_rule_index index;
    size_t n = a->parsed->n_rules;
    a->made = fy_alloc_zeroed(n, sizeof *a->made);
    a->made_for = fy_alloc_zeroed(n, sizeof *a->made_for);
    ferry_status status =
        fy_check_memory(a->made != NULL && a->made_for != NULL, "the rules of scales", error);
    FY_THEN(status, fy_rule_index_init(&index, a->parsed, error));
    if (status == FERRY_OK) {
        a->index = &index;
        status = add_all(a, spec, changes, error);
        fy_rule_index_cleanup(&index);
    }
    FY_THEN(status, put_rules(a, error));
    for (size_t i = 0; a->made != NULL && i < n; i++) {
        json_decref(a->made[i]);
    }
    fy_free(a->made);
    fy_free(a->made_for);
    return status;
}

ferry_status fy_scale_rules_add(json_t *side, const char *name, const ferry_spec *spec,
                                const fy_change *changes, ferry_error *error)
{
    fy_json_place place = {.key = name};
    fy_side parsed = {.name = name};
    ferry_spec *scratch = fy_spec_new();
    FY_TRY(fy_check_memory(scratch != NULL, "the rules of scales", error));
    ferry_status status = fy_spec_parse_side(scratch, side, &place, &parsed, error);
    adding a = {.side = side, .parsed = &parsed};
    FY_THEN(status, add_to_parsed(&a, spec, changes, error));
    ferry_spec_destroy(scratch);
    return status;
}

/* ---- have they cut alike? ---- */

typedef struct checking {
    const fy_problem *problem;
    const char *side;
    const fy_tensor *weight, *scales;
    const fy_block_format *format;
} checking;

static const fy_split *split_of(const checking *c, const fy_tensor *tensor, uint32_t dim)
{
    return fy_problem_split(c->problem, &c->problem->placements[tensor->dst].layout, dim);
}

static uint64_t block_of(const checking *c, uint32_t dim)
{
    return fy_block_extent(c->format, c->weight->n_dims, dim);
}

static ferry_status check_lines(const checking *c, ferry_error *error)
{
    if (c->problem->placements[c->weight->dst].layout.n_flat != 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: \"%s\" is cut flat, and has no rows to be quantized in blocks; give it "
                       "a rule without flat",
                       c->side, c->weight->name);
    }
    for (uint32_t dim = 0; dim < c->weight->n_dims; dim++) {
        const fy_split *split = split_of(c, c->weight, dim);
        unsigned long long block = block_of(c, dim);
        for (size_t i = 0; i < split->n_pieces; i++) {
            if (split->pieces[i].global % block != 0) {
                return fy_fail(
                    error, FERRY_ERR_INVALID_PLAN,
                    "%s: the part of \"%s\" with number %u begins at index %llu of dim "
                    "%u, inside a block of %llu that shares a scale; cut it at multiples "
                    "of %llu (\"unit\": %llu)",
                    c->side, c->weight->name, split->pieces[i].part,
                    (unsigned long long)split->pieces[i].global, dim, block, block, block);
            }
        }
    }
    return FERRY_OK;
}

/* A piece of a weight's dimension and the piece of its scales that must be the same in blocks. */
static bool is_same_piece(const fy_piece *w, const fy_piece *s, uint64_t block)
{
    return s->global == w->global / block && s->length == fy_ceil_div(w->length, block) &&
           s->part == w->part && s->n_owners == w->n_owners;
}

static bool is_cut_alike(const checking *c)
{
    bool same = c->scales->dst != FY_NONE && c->problem->placements[c->weight->dst].holders ==
                                                 c->problem->placements[c->scales->dst].holders;
    for (uint32_t dim = 0; same && dim < c->weight->n_dims; dim++) {
        const fy_split *w = split_of(c, c->weight, dim), *s = split_of(c, c->scales, dim);
        same = w->n_parts == s->n_parts && w->n_pieces == s->n_pieces;
        for (size_t i = 0; same && i < w->n_pieces; i++) {
            same = is_same_piece(&w->pieces[i], &s->pieces[i], block_of(c, dim));
        }
    }
    return same;
}

static ferry_status check_cuts(const checking *c, ferry_error *error)
{
    return is_cut_alike(c)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_PLAN,
                         "%s: \"%s\" and its scales \"%s\" are not cut alike, or on different "
                         "ranks; the rule of the scales must say the same in blocks of %llux%llu, "
                         "or there must be none that is for them alone",
                         c->side, c->weight->name, c->scales->name,
                         (unsigned long long)c->format->block[0],
                         (unsigned long long)c->format->block[1]);
}

/* Thousands of weights are placed alike: each placement of them is checked once, with one of
 * scales. */
static ferry_status check_all(const fy_problem *problem, const fy_change *changes, const char *side,
                              bool with_scales, ferry_error *error)
{
    uint32_t *checked = fy_alloc(problem->n_placements, sizeof *checked);
    ferry_status status = fy_check_memory(checked != NULL, "the scales of tensors", error);
    for (size_t i = 0; status == FERRY_OK && i < problem->n_placements; i++) {
        checked[i] = FY_NONE;
    }
    for (uint32_t t = 0; t < problem->n_tensors && status == FERRY_OK; t++) {
        checking c = {.problem = problem,
                      .side = side,
                      .weight = &problem->tensors[t],
                      .format = &changes[t].format};
        if (changes[t].kind != FY_QUANTIZED || c.weight->dst == FY_NONE) {
            continue;
        }
        c.scales = &problem->tensors[changes[t].scales];
        uint32_t mark = with_scales ? c.scales->dst : 0;
        if (mark == FY_NONE || checked[c.weight->dst] != mark) {
            status = with_scales ? check_cuts(&c, error) : check_lines(&c, error);
            checked[c.weight->dst] = mark;
        }
    }
    fy_free(checked);
    return status;
}

ferry_status fy_changes_check_lines(const fy_problem *problem, const fy_change *changes,
                                    const char *side, ferry_error *error)
{
    return check_all(problem, changes, side, false, error);
}

ferry_status fy_changes_check_cuts(const fy_problem *problem, const fy_change *changes,
                                   const char *side, ferry_error *error)
{
    return check_all(problem, changes, side, true, error);
}
