/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of a short form. Every tensor is given its row of the family's tables first, so that
 * what the cuts need to know of the model can be read off; then each row and parameter makes one
 * rule with a pattern. Where tensors of one pattern are cut differently (their shapes differ),
 * those that differ from the first get rules of their own, in front.
 */
#include "checkpoint/short_form_rules.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/glob.h"
#include "base/hash.h"
#include "base/index.h"

#include <ferry/limits.h>

#include <stdio.h>
#include <string.h>

enum { MAX_PATTERN = 192, NO_ROW = UINT16_MAX };

/* ---- rows ---- */

/* A row of the tables with its pattern for this model, and the rules made of it. */
typedef struct entry {
    const fy_family_row *row;
    fy_zone zone;              /* the row's, or that of predictors */
    char pattern[MAX_PATTERN]; /* of the module, or of the tensor for a raw row */
    size_t length;
    const char *tail; /* behind its last star */
    size_t tail_length;
    json_t *rules[FY_N_PARAMS]; /* NULL: not yet */
    const fy_model_tensor *first[FY_N_PARAMS];
    bool known[FY_N_PARAMS];
    bool in_blocks[FY_N_PARAMS]; /* one of the first one's shape was cut between blocks */
} entry;

typedef struct maker {
    fy_short_model *model;
    entry *entries;
    size_t n_entries;
    uint16_t *rows; /* of each tensor its entry, or NO_ROW */
    const fy_model_tensor *samples[FY_N_WAYS];
    fy_facts plain;    /* without blocks */
    fy_index names;    /* of tensors, where there are blocks */
    json_t *own_rules; /* of single tensors */
    json_t *unknown;
} maker;

/* layers: where those begin in which a row of a layer is looked for. */
static void fill_entry(const fy_decoder *decoder, const char *layers, const fy_family_row *row,
                       entry *e)
{
    bool in_layers = row->zone == FY_ZONE_LAYERS;
    const char *before = row->name[0] == '*' ? "" : decoder->root;
    snprintf(e->pattern, sizeof e->pattern, "%s%s%s", in_layers ? layers : before,
             in_layers ? "*." : "", row->name);
    const char *star = strrchr(e->pattern, '*');
    e->row = row;
    e->zone = in_layers && layers == decoder->predictors ? FY_ZONE_LAST : row->zone;
    e->length = strlen(e->pattern);
    e->tail = star == NULL ? e->pattern : star + 1;
    e->tail_length = strlen(e->tail);
}

/* Of a table all rows, or for predictors those of a layer. Without entries they are only counted.
 */
static void list_table(maker *m, const char *layers, const fy_family_row *table)
{
    const fy_decoder *decoder = m->model->decoder;
    for (const fy_family_row *row = table; row->name != NULL; row++) {
        if (layers == decoder->layers || row->zone == FY_ZONE_LAYERS) {
            if (m->entries != NULL) {
                fill_entry(decoder, layers, row, &m->entries[m->n_entries]);
            }
            m->n_entries++;
        }
    }
}

/* Predictors first: elsewhere a row says of all their tensors that nothing is known. */
static void list_tables(maker *m)
{
    const fy_decoder *decoder = m->model->decoder;
    const fy_family_row *const *groups = m->model->family->groups;
    m->n_entries = 0;
    if (decoder->predictors != NULL) {
        list_table(m, decoder->predictors, fy_predictor_rows);
    }
    for (size_t g = 0; decoder->predictors != NULL && g < FY_MAX_GROUPS && groups[g] != NULL; g++) {
        list_table(m, decoder->predictors, groups[g]);
    }
    for (size_t g = 0; g < FY_MAX_GROUPS && groups[g] != NULL; g++) {
        list_table(m, decoder->layers, groups[g]);
    }
}

static ferry_status list_rows(maker *m, ferry_error *error)
{
    list_tables(m);
    m->entries = fy_alloc_zeroed(m->n_entries, sizeof *m->entries);
    m->rows = fy_alloc(m->model->n_tensors, sizeof *m->rows);
    if (m->entries == NULL || m->rows == NULL) {
        m->n_entries = 0;
        return fy_fail_no_memory(error, "the rules of a short form");
    }
    list_tables(m);
    return FERRY_OK;
}

/* The parameter that a name ends in, and the length of the module's name before it. */
static fy_param split_name(const char *name, size_t length, size_t *module_out)
{
    const char *dot = memrchr(name, '.', length);
    *module_out = dot == NULL ? 0 : (size_t)(dot - name);
    return fy_param_of(dot == NULL ? name : dot + 1);
}

static bool entry_fits(const entry *e, const char *name, size_t length, size_t module)
{
    size_t n = e->row->raw ? length : module;
    return n >= e->tail_length && memcmp(name + n - e->tail_length, e->tail, e->tail_length) == 0 &&
           fy_glob_match(e->pattern, e->length, name, n);
}

static uint16_t find_row(const maker *m, const char *name, bool in_layers)
{
    size_t length = strlen(name), module;
    split_name(name, length, &module);
    for (size_t i = 0; i < m->n_entries; i++) {
        const entry *e = &m->entries[i];
        if ((e->zone == FY_ZONE_LAYERS) == in_layers && entry_fits(e, name, length, module)) {
            return (uint16_t)i;
        }
    }
    return NO_ROW;
}

static bool is_in_layers(const maker *m, const char *name)
{
    return strncmp(name, m->model->decoder->layers, strlen(m->model->decoder->layers)) == 0;
}

typedef struct expert_patterns {
    char text[FY_N_EXPERT_PATTERNS][MAX_PATTERN];
} expert_patterns;

static void note_numbers(maker *m, const char *name, const expert_patterns *patterns)
{
    uint64_t number;
    if (fy_decoder_layer(m->model->decoder, name, &number)) {
        m->model->n_layers = fy_max(m->model->n_layers, number + 1);
    }
    for (size_t i = 0; i < FY_N_EXPERT_PATTERNS && strstr(name, ".experts.") != NULL; i++) {
        if (patterns->text[i][0] != '\0' &&
            fy_glob_match_number(patterns->text[i], name, strlen(name), &number) &&
            number < INT64_MAX) {
            m->model->n_experts[i] = fy_max(m->model->n_experts[i], number + 1);
        }
    }
}

void fy_short_expert_pattern(const fy_decoder *decoder, size_t number, char *pattern,
                             size_t pattern_bytes)
{
    static const char *const tails[FY_N_EXPERT_TAILS] = {"experts.{}.*",
                                                         "experts.local_experts.{}.*",
                                                         "experts.linear_fc1.weight{}",
                                                         "experts.linear_fc2.weight{}",
                                                         "experts.linear_fc1.bias{}",
                                                         "experts.linear_fc2.bias{}"};
    bool predicts = number >= FY_N_EXPERT_TAILS;
    const char *layers = predicts ? decoder->predictors : decoder->layers;
    snprintf(pattern, pattern_bytes, "%s%s%s", layers == NULL ? "" : layers,
             layers == NULL ? "" : "*.", layers == NULL ? "" : tails[number % FY_N_EXPERT_TAILS]);
}

/* Gives tensors their rows, and notes layers, experts and a sample of every way. */
static void sort_tensors(maker *m)
{
    expert_patterns patterns;
    for (size_t i = 0; i < FY_N_EXPERT_PATTERNS; i++) {
        fy_short_expert_pattern(m->model->decoder, i, patterns.text[i], sizeof patterns.text[i]);
    }
    for (size_t i = 0; i < m->model->n_tensors; i++) {
        const fy_model_tensor *t = &m->model->tensors[i];
        bool in_layers = is_in_layers(m, t->name);
        size_t module;
        m->rows[i] = find_row(m, t->name, in_layers);
        note_numbers(m, t->name, &patterns);
        if (m->rows[i] == NO_ROW) {
            continue;
        }
        const fy_family_row *row = m->entries[m->rows[i]].row;
        fy_param param = split_name(t->name, strlen(t->name), &module);
        if ((row->raw || param == FY_PARAM_WEIGHT) && m->samples[row->way] == NULL) {
            m->samples[row->way] = t;
        }
        bool is_scale = !row->raw && param == FY_PARAM_BLOCK_SCALE;
        if (row->way != FY_WAY_WHOLE && (is_scale || t->has_scales)) {
            m->model->facts.has_scales = true;
        }
        if (row->way != FY_WAY_WHOLE && !row->raw && param == FY_PARAM_SCALE) {
            m->model->facts.may_have_some = true;
        }
    }
}

/* ---- codes and their scales ---- */

static ferry_status index_names(maker *m, ferry_error *error)
{
    for (size_t i = 0; i < m->model->n_tensors && m->model->facts.tile > 1; i++) {
        const char *name = m->model->tensors[i].name;
        if (!fy_index_insert(&m->names, fy_hash64(name, strlen(name)), (uint32_t)i)) {
            return fy_fail_no_memory(error, "the names of a short form");
        }
    }
    return FERRY_OK;
}

static const fy_model_tensor *find_tensor(const maker *m, const char *name)
{
    fy_index_cursor c = fy_index_first(&m->names, fy_hash64(name, strlen(name)));
    while (c.value != FY_INDEX_NONE && strcmp(m->model->tensors[c.value].name, name) != 0) {
        fy_index_next(&m->names, &c);
    }
    return c.value == FY_INDEX_NONE ? NULL : &m->model->tensors[c.value];
}

/* What a tensor is the scales of, by its name. */
static const fy_model_tensor *scaled_by(const maker *m, const fy_model_tensor *scales,
                                        fy_param param)
{
    char name[FERRY_NAME_BYTES];
    const char *suffix = param == FY_PARAM_BLOCK_SCALE ? "_scale_inv" : "_scale";
    int n = snprintf(name, sizeof name, "%.*s", (int)(strlen(scales->name) - strlen(suffix)),
                     scales->name);
    return n >= 0 && (size_t)n < sizeof name ? find_tensor(m, name) : NULL;
}

/* Of a weight that has its scales in a tensor beside it, that says what blocks are in the way of.
 */
static const fy_model_tensor *codes_of(const maker *m, const fy_model_tensor *tensor,
                                       fy_param param)
{
    if (m->model->facts.tile <= 1 || tensor->n_dims < 2) {
        return NULL;
    }
    if (fy_short_is_block_scale(&m->model->facts, param, tensor)) {
        return scaled_by(m, tensor, param);
    }
    return param == FY_PARAM_WEIGHT && tensor->has_scales ? tensor : NULL;
}

/* ---- rules ---- */

/* Where the tensors of a zone are pinned; layers are placed by stages. NULL too for no memory. */
static bool put_zone(const maker *m, fy_zone zone, json_t *rule)
{
    if (zone == FY_ZONE_LAYERS || m->model->mesh.size[FY_AXIS_PP] <= 1) {
        return true;
    }
    json_t *on = json_pack("{s:i}", "pp", zone == FY_ZONE_LAST ? -1 : 0);
    return json_object_set_new(rule, "on", on) == 0;
}

static json_t *make_rule(const maker *m, const char *match, fy_zone zone, json_t *shard)
{
    json_t *rule = json_object();
    bool done = json_object_set_new(rule, "match", json_string(match)) == 0;
    done = done && put_zone(m, zone, rule);
    done = done && (shard == NULL || json_object_set(rule, "shard", shard) == 0);
    if (!done) {
        json_decref(rule);
        rule = NULL;
    }
    return rule;
}

static bool same_shape(const fy_model_tensor *a, const fy_model_tensor *b)
{
    return a->n_dims == b->n_dims &&
           (a->n_dims == 0 || memcmp(a->shape, b->shape, a->n_dims * sizeof *a->shape) == 0);
}

static ferry_status note_unknown(maker *m, const char *name, ferry_error *error)
{
    if (json_array_append_new(m->unknown, json_string(name)) != 0) {
        return fy_fail_no_memory(error, "the names of replicated tensors");
    }
    return FERRY_OK;
}

/* A rule for one tensor that its row's rule does not fit. */
static ferry_status add_own_rule(maker *m, const fy_model_tensor *tensor, fy_zone zone,
                                 json_t *shard, ferry_error *error)
{
    if (strpbrk(tensor->name, "*?") != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" needs a rule of its own, but its name has * or ?; write a "
                       "layout file",
                       m->model->facts.source_name, tensor->name);
    }
    if (json_array_append_new(m->own_rules, make_rule(m, tensor->name, zone, shard)) != 0) {
        return fy_fail_no_memory(error, "the rules of a short form");
    }
    return FERRY_OK;
}

static ferry_status set_row_rule(maker *m, entry *e, size_t slot, const fy_model_tensor *tensor,
                                 json_t *shard, ferry_error *error)
{
    char match[MAX_PATTERN + 32];
    const char *parameter = strrchr(tensor->name, '.');
    snprintf(match, sizeof match, "%s%.31s", e->pattern,
             e->row->raw || parameter == NULL ? "" : parameter);
    e->first[slot] = tensor;
    e->rules[slot] = make_rule(m, match, e->zone, shard);
    return e->rules[slot] == NULL ? fy_fail_no_memory(error, "the rules of a short form")
                                  : FERRY_OK;
}

/* Parameters with other names are whole; in a layer that needs no rule. */
static ferry_status rule_other(maker *m, const entry *e, const fy_model_tensor *tensor,
                               ferry_error *error)
{
    return e->zone == FY_ZONE_LAYERS ? FERRY_OK : add_own_rule(m, tensor, e->zone, NULL, error);
}

static ferry_status rule_tensor(maker *m, size_t i, ferry_error *error)
{
    const fy_model_tensor *tensor = &m->model->tensors[i];
    json_t *shard = NULL;
    size_t module;
    bool known;
    if (m->rows[i] == NO_ROW) {
        return note_unknown(m, tensor->name, error);
    }
    entry *e = &m->entries[m->rows[i]];
    fy_param param = split_name(tensor->name, strlen(tensor->name), &module);
    size_t slot = e->row->raw ? FY_PARAM_WEIGHT : param;
    fy_to_cut to_cut = {.way = e->row->way,
                        .param = (fy_param)slot,
                        .tensor = tensor,
                        .codes = codes_of(m, tensor, (fy_param)slot)};
    bool is_alike = e->first[slot] != NULL && same_shape(e->first[slot], tensor);
    if (is_alike && e->known[slot] && (to_cut.codes == NULL || e->in_blocks[slot])) {
        return FERRY_OK;
    }
    ferry_status status =
        fy_short_cut(&m->model->facts, &to_cut, &shard, &known, &m->model->blocked, error);
    if (status == FERRY_OK && !known) {
        status = note_unknown(m, tensor->name, error);
    }
    if (status == FERRY_OK && slot == FY_PARAM_OTHER) {
        status = rule_other(m, e, tensor, error);
    } else if (status == FERRY_OK && e->rules[slot] == NULL) {
        e->known[slot] = known;
        status = set_row_rule(m, e, slot, tensor, shard, error);
    } else if (status == FERRY_OK) {
        const json_t *had = json_object_get(e->rules[slot], "shard");
        bool same = had == NULL || shard == NULL ? had == shard : json_equal(had, shard);
        status = same ? status : add_own_rule(m, tensor, e->zone, shard, error);
    }
    if (status == FERRY_OK && to_cut.codes != NULL && same_shape(e->first[slot], tensor)) {
        e->in_blocks[slot] = true;
    }
    json_decref(shard);
    return status;
}

/* Appends a rule to a list that takes it over. */
static bool append(json_t *list, json_t *rule)
{
    return json_array_append_new(list, rule) == 0;
}

static bool append_zone(maker *m, json_t *list, bool layers)
{
    for (size_t i = 0; i < m->n_entries; i++) {
        entry *e = &m->entries[i];
        for (size_t p = 0; p < FY_N_PARAMS; p++) {
            if (e->rules[p] != NULL && (e->zone == FY_ZONE_LAYERS) == layers &&
                json_array_append(list, e->rules[p]) != 0) {
                return false;
            }
        }
    }
    return true;
}

/* Single tensors, the layers' rows, other layer tensors, the rows outside, and all else. */
static json_t *join_rules(maker *m)
{
    char layers[MAX_PATTERN];
    snprintf(layers, sizeof layers, "%s*", m->model->decoder->layers);
    json_t *list = json_array();
    bool done = list != NULL && json_array_extend(list, m->own_rules) == 0;
    done = done && append_zone(m, list, true);
    done = done && append(list, make_rule(m, layers, FY_ZONE_LAYERS, NULL));
    done = done && append_zone(m, list, false);
    done = done && append(list, make_rule(m, "*", FY_ZONE_FIRST, NULL));
    if (!done) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

static ferry_status make_rules(maker *m, ferry_error *error)
{
    m->plain = m->model->facts;
    m->plain.is_plain = true;
    ferry_status status = fy_facts_gather(&m->model->facts, m->samples, error);
    FY_THEN(status, fy_facts_gather(&m->plain, m->samples, error));
    FY_THEN(status, index_names(m, error));
    m->model->facts.plain = &m->plain;
    m->own_rules = json_array();
    m->unknown = json_array();
    if (status == FERRY_OK && (m->own_rules == NULL || m->unknown == NULL)) {
        status = fy_fail_no_memory(error, "the rules of a short form");
    }
    for (size_t i = 0; i < m->model->n_tensors && status == FERRY_OK; i++) {
        status = rule_tensor(m, i, error);
    }
    return status;
}

static void cleanup(maker *m)
{
    for (size_t i = 0; m->entries != NULL && i < m->n_entries; i++) {
        for (size_t p = 0; p < FY_N_PARAMS; p++) {
            json_decref(m->entries[i].rules[p]);
        }
    }
    fy_free(m->entries);
    fy_free(m->rows);
    fy_index_cleanup(&m->names);
    m->model->facts.plain = NULL;
    json_decref(m->own_rules);
    json_decref(m->unknown);
}

ferry_status fy_short_rules_make(fy_short_model *model, json_t **rules_out, json_t **unknown_out,
                                 ferry_error *error)
{
    maker m = {.model = model};
    json_t *rules = NULL;
    ferry_status status = list_rows(&m, error);
    if (status != FERRY_OK) {
        goto out;
    }
    sort_tensors(&m);
    status = make_rules(&m, error);
    if (status != FERRY_OK) {
        goto out;
    }
    rules = join_rules(&m);
    if (rules == NULL) {
        status = fy_fail_no_memory(error, "the rules of a short form");
        goto out;
    }
    *rules_out = rules;
    *unknown_out = json_incref(m.unknown);
out:
    cleanup(&m);
    return status;
}
