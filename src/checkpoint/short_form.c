/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* From "tp=4,pp=2" to a side: the text, the mesh and the stages. */
#include "checkpoint/short_form.h"

#include "base/checked.h"
#include "checkpoint/short_form_rules.h"

#include <ferry/group.h>

#include <stdio.h>
#include <string.h>

enum { MAX_PATTERN = 192 };

static const char *const axis_names[FY_N_SHORT_AXES] = {"pp", "dp", "ep", "tp"};

typedef unsigned long long ull;

/* ---- the text ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool fy_short_form_is(const char *text)
{
    size_t n = 0;
    while (is_letter(text[n])) {
        n++;
    }
    return n > 0 && text[n] == '=';
}

static ferry_status parse_item(const char *text, const char *item, size_t length,
                               fy_short_mesh *mesh, ferry_error *error)
{
    const char *equals = memchr(item, '=', length);
    size_t n_name = equals == NULL ? length : (size_t)(equals - item);
    size_t axis = 0;
    uint64_t size = 0;
    while (axis < FY_N_SHORT_AXES &&
           (strlen(axis_names[axis]) != n_name || memcmp(axis_names[axis], item, n_name) != 0)) {
        axis++;
    }
    if (axis == FY_N_SHORT_AXES || equals == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%.100s\": \"%.*s\" is none of pp=, dp=, ep= and tp= with a number; a "
                       "short form is like tp=4,pp=2",
                       text, (int)fy_min(length, 100), item);
    }
    for (const char *c = equals + 1; c < item + length; c++) {
        if (*c < '0' || *c > '9' || size > FERRY_MAX_RANKS) {
            size = 0;
            break;
        }
        size = size * 10 + (uint64_t)(*c - '0');
    }
    if (size == 0 || size >= FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%.100s\": \"%.*s\" must give a whole number above zero and below %u",
                       text, (int)fy_min(length, 100), item, FERRY_MAX_RANKS);
    }
    if (mesh->size[axis] != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "\"%.100s\": names the axis %s twice", text,
                       axis_names[axis]);
    }
    mesh->size[axis] = (uint32_t)size;
    return FERRY_OK;
}

static ferry_status parse_text(const char *text, fy_short_mesh *mesh, ferry_error *error)
{
    uint64_t n_ranks = 1;
    const char *item = text;
    *mesh = (fy_short_mesh){0};
    for (;;) {
        size_t length = strcspn(item, ",");
        FY_TRY(parse_item(text, item, length, mesh, error));
        if (item[length] == '\0') {
            break;
        }
        item += length + 1;
    }
    for (size_t axis = 0; axis < FY_N_SHORT_AXES; axis++) {
        n_ranks *= mesh->size[axis] == 0 ? 1 : mesh->size[axis];
        if (n_ranks >= FERRY_MAX_RANKS) { /* both factors are below 2^24 */
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "\"%.100s\": makes %llu ranks or more; a short form has fewer than %u",
                           text, (ull)n_ranks, FERRY_MAX_RANKS);
        }
    }
    return FERRY_OK;
}

/* ---- mesh and stages ---- */

static bool append(json_t *list, json_t *item)
{
    return json_array_append_new(list, item) == 0;
}

static bool has_axis(const fy_short_model *m, fy_short_axis axis)
{
    return m->mesh.size[axis] > 1;
}

static json_t *join_mesh(const fy_short_model *m)
{
    json_t *list = json_array();
    for (size_t axis = 0; axis < FY_N_SHORT_AXES; axis++) {
        if (m->mesh.size[axis] > 0 &&
            !append(list, json_pack("[s, i]", axis_names[axis], (int)m->mesh.size[axis]))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Layers by floor(i pp / count); those behind the counted ones go to the last coordinate. */
static bool put_layer_sizes(json_t *stage, uint64_t counted, uint64_t n_layers, uint64_t pp)
{
    json_t *sizes = json_array();
    bool done = sizes != NULL;
    uint64_t begin = 0;
    for (uint64_t p = 1; p <= pp && done; p++) {
        uint64_t end = p == pp ? n_layers : fy_ceil_div(p * counted, pp); /* below 2^54 */
        done = append(sizes, json_integer((json_int_t)(end - begin)));
        begin = end;
    }
    done = done && json_object_set(stage, "sizes", sizes) == 0;
    json_decref(sizes);
    return done;
}

static json_t *stage_of(const char *match, const char *axis)
{
    return json_pack("{s:s, s:s}", "match", match, "axis", axis);
}

static json_t *layer_stage(const fy_short_model *m, uint64_t counted)
{
    char pattern[MAX_PATTERN];
    snprintf(pattern, sizeof pattern, "%s{}.*", m->decoder->layers);
    json_t *stage = stage_of(pattern, "pp");
    bool done = stage != NULL;
    if (done && m->n_layers > counted) {
        done = put_layer_sizes(stage, counted, m->n_layers, m->mesh.size[FY_AXIS_PP]);
    } else if (done) {
        done = json_object_set_new(stage, "count", json_integer((json_int_t)counted)) == 0;
    }
    if (!done) {
        json_decref(stage);
        stage = NULL;
    }
    return stage;
}

static json_t *expert_stage(const fy_short_model *m, size_t number)
{
    char pattern[MAX_PATTERN];
    fy_short_expert_pattern(m->decoder, number, pattern, sizeof pattern);
    json_t *stage = stage_of(pattern, "ep");
    json_t *count = json_integer((json_int_t)m->n_experts[number]);
    if (json_object_set_new(stage, "count", count) != 0) {
        json_decref(stage);
        stage = NULL;
    }
    return stage;
}

static json_t *join_stages(const fy_short_model *m, uint64_t counted_layers)
{
    json_t *list = json_array();
    bool done = list != NULL;
    if (done && has_axis(m, FY_AXIS_PP)) {
        done = append(list, layer_stage(m, counted_layers));
    }
    for (size_t i = 0; i < FY_N_EXPERT_PATTERNS; i++) {
        if (done && has_axis(m, FY_AXIS_EP) && m->n_experts[i] > 0) {
            done = append(list, expert_stage(m, i));
        }
    }
    if (!done) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

static ferry_status count_layers(const fy_short_model *m, uint64_t *counted_out, ferry_error *error)
{
    static const char *const keys[] = {"num_hidden_layers", "n_layer", "num_layers", NULL};
    uint64_t number = 0;
    FY_TRY(fy_facts_number(&m->facts, keys, &number, error));
    *counted_out = number == 0 ? m->n_layers : number;
    return FERRY_OK;
}

static ferry_status join_side(const fy_short_model *m, json_t *rules, json_t **side_out,
                              ferry_error *error)
{
    uint64_t counted;
    FY_TRY(count_layers(m, &counted, error));
    json_t *side = json_object();
    bool done = side != NULL && json_object_set_new(side, "mesh", join_mesh(m)) == 0 &&
                json_object_set_new(side, "stages", join_stages(m, counted)) == 0 &&
                json_object_set(side, "rules", rules) == 0;
    if (!done) {
        json_decref(side);
        return fy_fail_no_memory(error, "the rules of a short form");
    }
    *side_out = side;
    return FERRY_OK;
}

/* ---- what blocks are in the way of ---- */

/* A lesser tp that all tensors can be cut by, or 1: of its divisors, the greatest one. */
static uint32_t find_other_tp(const fy_short_model *model)
{
    uint32_t tp = model->mesh.size[FY_AXIS_TP];
    uint32_t found = 1;
    for (uint32_t by = 2; by <= tp / 2 && found == 1; by++) {
        fy_short_model other = *model;
        json_t *rules = NULL, *unknown = NULL;
        if (tp % by != 0) {
            continue;
        }
        other.mesh.size[FY_AXIS_TP] = other.facts.tp = tp / by;
        if (fy_short_rules_make(&other, &rules, &unknown, NULL) == FERRY_OK) {
            found = tp / by;
        }
        json_decref(rules);
        json_decref(unknown);
    }
    return found;
}

/* What else than the blocks could be otherwise. */
static const char *other_way(const fy_short_model *model, const fy_blocked *b)
{
    bool are_made = false; /* scales, on the way */
    for (size_t i = 0; i < model->n_tensors; i++) {
        are_made = are_made || model->tensors[i].has_scales;
    }
    if (b->is_turned || (are_made && b->leaves_out)) {
        return "";
    }
    return are_made ? "leave it out of --quantize, "
                    : "make values of codes on the way (--dequantize), ";
}

/* model: as it was before its rules were made. */
static ferry_status fail_blocked(const fy_short_model *model, const fy_blocked *b,
                                 ferry_error *error)
{
    uint32_t tp = find_other_tp(model);
    char remedy[64] = "";
    if (tp > 1) {
        snprintf(remedy, sizeof remedy, "use tp=%u, which cuts between blocks, ", tp);
    }
    if (b->leaves_out) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: tp=%u would leave ranks without any of \"%s\": %llu elements in dim %u "
                       "are %llu pieces of %llu for %llu parts, and a piece shares scales; %s%sor "
                       "write a layout file",
                       model->facts.source_name, model->facts.tp, b->tensor->name, (ull)b->extent,
                       b->dim, (ull)fy_ceil_div(b->extent, b->block), (ull)b->block, (ull)b->parts,
                       remedy, other_way(model, b));
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: tp=%u would cut \"%s\", %llu elements in dim %u, into %llu parts of %llu, "
                   "inside blocks of %llu that share a scale; %s%sor write a layout file",
                   model->facts.source_name, model->facts.tp, b->tensor->name, (ull)b->extent,
                   b->dim, (ull)b->parts, (ull)(b->extent / b->parts), (ull)b->block, remedy,
                   other_way(model, b));
}

ferry_status fy_short_form_make(const char *text, const fy_model_tensor *tensors, size_t n_tensors,
                                const json_t *config, const char *source_name, json_t **side_out,
                                json_t **replicated_out, ferry_error *error)
{
    fy_short_model m = {.tensors = tensors, .n_tensors = n_tensors};
    json_t *rules = NULL;
    json_t *unknown = NULL;
    FY_TRY(parse_text(text, &m.mesh, error));
    FY_TRY(fy_decoder_find(tensors, n_tensors, source_name, &m.decoder, error));
    FY_TRY(fy_family_find(tensors, n_tensors, m.decoder, config, source_name, &m.family, error));
    m.facts = (fy_facts){.source_name = source_name,
                         .config = config,
                         .text_config = fy_config_of_text(config),
                         .tp = (uint32_t)fy_max(m.mesh.size[FY_AXIS_TP], 1),
                         .ep = (uint32_t)fy_max(m.mesh.size[FY_AXIS_EP], 1)};
    fy_short_model before = m;
    ferry_status status = fy_short_rules_make(&m, &rules, &unknown, error);
    if (m.blocked.tensor != NULL) {
        return fail_blocked(&before, &m.blocked, error);
    }
    FY_THEN(status, join_side(&m, rules, side_out, error));
    if (status == FERRY_OK && replicated_out != NULL) {
        *replicated_out = json_incref(unknown);
    }
    json_decref(rules);
    json_decref(unknown);
    return status;
}
