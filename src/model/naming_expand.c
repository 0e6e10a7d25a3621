/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* From the rules of a family and config.json to the tensors of a naming. */
#include "model/naming.h"

#include "base/checked.h"
#include "base/hash.h"
#include "model/spec.h"

#include <ferry/dtype.h>

#include <stdio.h>
#include <string.h>

enum {
    MOST_TENSORS = 1 << 22,
    MOST_STEPS = 1 << 23, /* of a rule's indices: more than all its tensors need */
    MOST_FORMULA = 120
};

/* A rule while its indices run. */
typedef struct expanding {
    ferry_names *names;
    fy_naming *naming;
    fy_formula_scope scope;
    const json_t *rule;
    uint64_t number; /* of the rule */
    ferry_dtype dtype;
    const json_t *stands; /* of this naming in the rule: names and how they are made */
    uint64_t n_steps;     /* of its indices so far */
    fy_json_place place;
} expanding;

/* One tensor of a rule. */
typedef struct making {
    expanding *e;
    const json_t *how;
    fy_naming_tensor tensor;
    uint64_t blocks;
    const char *stack; /* an index, or NULL */
    uint64_t stack_count;
    fy_json_place place;
} making;

/* ---- formulas in JSON and in names ---- */

static ferry_status number_of(const expanding *e, const json_t *json, const fy_json_place *place,
                              uint64_t *value_out, ferry_error *error)
{
    if (json == NULL) {
        return fy_json_fail(place, error, "lacks a number, or a formula for one");
    }
    if (json_is_integer(json)) {
        return fy_json_get_size(json, place, 0, INT64_MAX, value_out, error);
    }
    const char *text;
    FY_TRY(fy_json_get_string(json, place, &text, error));
    return fy_formula_evaluate(&e->scope, text, value_out, error);
}

static ferry_status fill_hole(const expanding *e, const char *hole, size_t length, char *out,
                              size_t room, size_t *used_inout, ferry_error *error)
{
    char formula[MOST_FORMULA];
    uint64_t value;
    if (length >= sizeof formula) {
        return fy_json_fail(&e->place, error, "has a name with a hole of %zu bytes", length);
    }
    memcpy(formula, hole, length);
    formula[length] = '\0';
    FY_TRY(fy_formula_evaluate(&e->scope, formula, &value, error));
    *used_inout +=
        (size_t)snprintf(out + *used_inout, room - *used_inout, "%llu", (unsigned long long)value);
    return FERRY_OK;
}

/* A name while it is filled in; a text that fits no index leaves the tensor out. */
typedef struct filling {
    expanding *e;
    char name[FERRY_NAME_BYTES];
    size_t used;
    bool is_left_out;
} filling;

static ferry_status fill_pattern(filling *f, const char *pattern, bool has_texts,
                                 ferry_error *error);

/* What stands for a naming, or for the one that it is like. */
static const json_t *of_naming(const ferry_names *names, const json_t *object,
                               const fy_naming *naming)
{
    for (size_t i = 0; naming != NULL && i <= names->n_namings; i++) {
        const json_t *found = json_object_get(object, naming->name);
        if (found != NULL) {
            return found;
        }
        const fy_naming *next = NULL;
        for (size_t k = 0; naming->like != NULL && k < names->n_namings; k++) {
            next = strcmp(names->namings[k].name, naming->like) == 0 ? &names->namings[k] : next;
        }
        naming = next;
    }
    return NULL;
}

static const json_t *find_text(const expanding *e, const char *word)
{
    const json_t *owners[] = {e->names->family, e->names->shared};
    const json_t *found = NULL;
    for (size_t i = 0; i < 2 && found == NULL; i++) {
        found = of_naming(e->names, json_object_get(json_object_get(owners[i], "texts"), word),
                          e->naming);
    }
    return found;
}

/* The first of [[formula, text], ...] whose formula is true, or the only text. */
static ferry_status choose_text(const expanding *e, const json_t *choices, const char **text_out,
                                ferry_error *error)
{
    *text_out = json_string_value(choices);
    for (size_t i = 0; i < json_array_size(choices) && *text_out == NULL; i++) {
        const json_t *pair = json_array_get(choices, i);
        uint64_t fits;
        if (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 1))) {
            return fy_json_fail(&e->place, error,
                                "has a name with a text whose choice %zu is not "
                                "[formula, text]",
                                i);
        }
        FY_TRY(number_of(e, json_array_get(pair, 0), &e->place, &fits, error));
        *text_out = fits != 0 ? json_string_value(json_array_get(pair, 1)) : NULL;
    }
    return FERRY_OK;
}

/* <layer>: a text that namings have each for itself. */
static ferry_status fill_text(filling *f, const char *word, size_t length, ferry_error *error)
{
    char key[MOST_FORMULA];
    const char *text;
    snprintf(key, sizeof key, "%.*s", (int)fy_min(length, sizeof key - 1), word);
    const json_t *choices = find_text(f->e, key);
    if (choices == NULL) {
        return fy_json_fail(&f->e->place, error, "has a name with <%s>, which is no text of %s",
                            key, f->e->naming->name);
    }
    FY_TRY(choose_text(f->e, choices, &text, error));
    f->is_left_out = f->is_left_out || text == NULL;
    return text == NULL ? FERRY_OK : fill_pattern(f, text, false, error);
}

static ferry_status fill_pattern(filling *f, const char *pattern, bool has_texts,
                                 ferry_error *error)
{
    while (*pattern != '\0') {
        bool is_text = has_texts && *pattern == '<';
        const char *end = *pattern == '{' ? strchr(pattern, '}') : NULL;
        end = is_text ? strchr(pattern, '>') : end;
        if (f->used + 24 > sizeof f->name) {
            return fy_json_fail(&f->e->place, error, "has a name of more than %d bytes",
                                FERRY_NAME_BYTES - 24);
        }
        if (end == NULL) {
            f->name[f->used++] = *pattern++;
            continue;
        }
        size_t length = (size_t)(end - pattern) - 1;
        FY_TRY(is_text ? fill_text(f, pattern + 1, length, error)
                       : fill_hole(f->e, pattern + 1, length, f->name, sizeof f->name, &f->used,
                                   error));
        pattern = end + 1;
    }
    return FERRY_OK;
}

/* "<layer>.w{expert}" with its texts and the values of its formulas; NULL: it is left out. */
static ferry_status fill_name(expanding *e, const char *pattern, const char **name_out,
                              ferry_error *error)
{
    filling f = {.e = e};
    FY_TRY(fill_pattern(&f, pattern, true, error));
    if (f.is_left_out) {
        *name_out = NULL;
        return FERRY_OK;
    }
    *name_out = fy_arena_copy(&e->names->arena, f.name, f.used);
    return fy_check_memory(*name_out != NULL, "the names of a model", error);
}

/* ---- parts ---- */

static uint64_t hash_part(const fy_naming_part *part)
{
    uint64_t values[1 + FY_MAX_INDICES] = {part->rule};
    memcpy(values + 1, part->indices, sizeof part->indices);
    return fy_hash64(values, sizeof values);
}

static ferry_status read_part_shape(const expanding *e, const json_t *json,
                                    const fy_json_place *place, fy_naming_part *part,
                                    ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    part->n_dims = (uint32_t)json_array_size(json);
    if (part->n_dims < 1 || json_array_size(json) >= FERRY_MAX_DIMS) {
        return fy_json_fail(place, error, "must have from 1 to %d lengths", FERRY_MAX_DIMS - 1);
    }
    for (uint32_t d = 0; d < part->n_dims; d++) {
        fy_json_place at = {.parent = place, .index = d};
        FY_TRY(number_of(e, json_array_get(json, d), &at, &part->shape[d], error));
        if (part->shape[d] > INT64_MAX) {
            return fy_json_fail(&at, error, "is %llu, which no tensor is long",
                                (unsigned long long)part->shape[d]);
        }
    }
    return FERRY_OK;
}

/* The number of a part, which is made where no naming had it before. */
static ferry_status find_part(expanding *e, const char *word, const fy_json_place *place,
                              uint32_t *number_out, ferry_error *error)
{
    ferry_names *n = e->names;
    const json_t *parts = json_object_get(e->rule, "parts");
    fy_naming_part part = {.name = word};
    size_t at = 0;
    const char *key;
    const json_t *shape, *found = NULL;
    json_object_foreach ((json_t *)parts, key, shape) {
        at++;
        if (strcmp(key, word) == 0) {
            found = shape;
            part.name = key;
            break;
        }
    }
    if (found == NULL) {
        return fy_json_fail(place, error, "names \"%s\", which is not among the parts", word);
    }
    part.rule = e->number << 16 | at;
    memcpy(part.indices, e->scope.values, e->scope.n_indices * sizeof *part.indices);
    fy_index_cursor c = fy_index_first(&n->part_index, hash_part(&part));
    while (c.value != FY_INDEX_NONE &&
           (n->parts[c.value].rule != part.rule ||
            memcmp(n->parts[c.value].indices, part.indices, sizeof part.indices) != 0)) {
        fy_index_next(&n->part_index, &c);
    }
    *number_out = c.value;
    if (c.value != FY_INDEX_NONE) {
        return FERRY_OK;
    }
    FY_TRY(read_part_shape(e, found, place, &part, error));
    if (n->n_parts == MOST_TENSORS) {
        return fy_json_fail(place, error, "makes more than %d parts", MOST_TENSORS);
    }
    if (!FY_RESERVE(n->parts, n->part_capacity, n->n_parts + 1) ||
        !fy_index_insert(&n->part_index, hash_part(&part), (uint32_t)n->n_parts)) {
        return fy_fail_no_memory(error, "the parts of a model");
    }
    *number_out = (uint32_t)n->n_parts;
    n->parts[n->n_parts++] = part;
    return FERRY_OK;
}

static ferry_status set_run(fy_naming *naming, uint32_t part, const fy_naming_run *run,
                            ferry_error *error)
{
    size_t had = naming->n_runs;
    if (part >= had) {
        FY_TRY(
            FY_GROW(naming->runs, naming->run_capacity, part + 1, "the parts of a model", error));
        memset(naming->runs + had, 0, (part + 1 - had) * sizeof *naming->runs);
        naming->n_runs = part + 1;
    }
    naming->runs[part] = *run;
    return FERRY_OK;
}

/* ---- a tensor ---- */

static const char *made_name(const making *m)
{
    return m->tensor.name;
}

/* The tensor is as long as the part, but for its rows. */
static ferry_status check_tail(const making *m, const fy_naming_part *part, ferry_error *error)
{
    const fy_naming_tensor *t = &m->tensor;
    uint32_t lead = t->is_stacked;
    bool same = t->n_dims == part->n_dims + lead;
    for (uint32_t d = 1; same && d < part->n_dims; d++) {
        same = t->shape[lead + d] == part->shape[d];
    }
    return same ? FERRY_OK
                : fy_json_fail(&m->place, error, "joins parts of different lengths in \"%s\"",
                               made_name(m));
}

/* The rows of a part behind those that are there: *row_inout is where its first block begins. */
static ferry_status add_part(making *m, const char *word, uint64_t place, uint64_t *row_inout,
                             ferry_error *error)
{
    expanding *e = m->e;
    fy_naming *naming = e->naming;
    uint32_t number;
    FY_TRY(find_part(e, word, &m->place, &number, error));
    const fy_naming_part *part = &e->names->parts[number];
    if (m->tensor.n_dims == 0) {
        m->tensor.n_dims = part->n_dims + m->tensor.is_stacked;
        memcpy(m->tensor.shape + m->tensor.is_stacked, part->shape,
               part->n_dims * sizeof *part->shape);
        m->tensor.shape[m->tensor.is_stacked] = 0;
    }
    FY_TRY(check_tail(m, part, error));
    uint64_t rows = part->shape[0];
    if (m->blocks == 0 || rows % m->blocks != 0) {
        return fy_json_fail(&m->place, error, "cuts the %llu rows of \"%s\" into %llu blocks",
                            (unsigned long long)rows, word, (unsigned long long)m->blocks);
    }
    fy_naming_run run = {.tensor = (uint32_t)naming->n_tensors,
                         .count = rows == 0 ? 1 : m->blocks,
                         .rows = rows / m->blocks,
                         .row = *row_inout,
                         .place = place};
    if (!fy_add(*row_inout, run.rows, row_inout)) {
        return fy_json_fail(&m->place, error, "makes \"%s\" too long", made_name(m));
    }
    if (number < naming->n_runs && naming->runs[number].count != 0) {
        return fy_json_fail(&m->place, error, "has \"%s\" in two tensors", word);
    }
    FY_TRY(set_run(naming, number, &run, error));
    FY_TRY(FY_GROW(naming->part_numbers, naming->part_number_capacity, naming->n_part_numbers + 1,
                   "the parts of a model", error));
    naming->part_numbers[naming->n_part_numbers++] = number;
    m->tensor.n_parts++;
    return FERRY_OK;
}

/* All parts of one place of the stack; without a stack there is one place. */
static ferry_status add_parts(making *m, const json_t *of, uint64_t place, ferry_error *error)
{
    uint64_t row = 0;
    fy_naming *naming = m->e->naming;
    size_t first = naming->n_part_numbers;
    if (json_is_string(of)) {
        FY_TRY(add_part(m, json_string_value(of), place, &row, error));
    }
    for (size_t i = 0; i < json_array_size(of); i++) {
        const char *word;
        FY_TRY(fy_json_get_string(json_array_get(of, i), &m->place, &word, error));
        FY_TRY(add_part(m, word, place, &row, error));
    }
    for (size_t i = first; i < naming->n_part_numbers; i++) {
        naming->runs[naming->part_numbers[i]].step = row;
    }
    uint64_t rows;
    if (!fy_mul(row, m->blocks, &rows) || rows > INT64_MAX) {
        return fy_json_fail(&m->place, error, "makes \"%s\" too long", made_name(m));
    }
    m->tensor.shape[m->tensor.is_stacked] = rows;
    return FERRY_OK;
}

static ferry_status add_stack(making *m, const json_t *of, ferry_error *error)
{
    fy_formula_scope *s = &m->e->scope;
    size_t at = s->n_indices - 1;
    if (m->stack == NULL) {
        return add_parts(m, of, 0, error);
    }
    if (s->n_indices == 0 || strcmp(s->indices[at], m->stack) != 0) {
        return fy_json_fail(&m->place, error, "stacks \"%s\", which is not the last index",
                            m->stack);
    }
    for (uint64_t i = 0; i < m->stack_count; i++) {
        s->values[at] = i;
        FY_TRY(add_parts(m, of, i, error));
    }
    s->values[at] = 0;
    m->tensor.shape[0] = m->stack_count;
    return FERRY_OK;
}

static void transpose(fy_naming_tensor *t)
{
    if (t->is_transposed && t->n_dims >= 2) {
        uint64_t last = t->shape[t->n_dims - 1];
        t->shape[t->n_dims - 1] = t->shape[t->n_dims - 2];
        t->shape[t->n_dims - 2] = last;
    }
}

static ferry_status keep(making *m, ferry_error *error)
{
    fy_naming *naming = m->e->naming;
    const char *name = made_name(m);
    if (fy_naming_find_tensor(naming, name) != FY_INDEX_NONE) {
        return fy_json_fail(&m->place, error, "makes a second tensor \"%s\"", name);
    }
    if (naming->n_tensors == MOST_TENSORS) {
        return fy_json_fail(&m->place, error, "makes more than %d tensors", MOST_TENSORS);
    }
    if (!FY_RESERVE(naming->tensors, naming->tensor_capacity, naming->n_tensors + 1) ||
        !fy_index_insert(&naming->names, fy_hash64(name, strlen(name)),
                         (uint32_t)naming->n_tensors)) {
        return fy_fail_no_memory(error, "the names of a model");
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < m->tensor.n_dims; d++) {
        if (!fy_mul(elements, fy_max(m->tensor.shape[d], 1), &elements) || elements > INT64_MAX) {
            return fy_json_fail(&m->place, error, "makes \"%s\" too long", name);
        }
    }
    transpose(&m->tensor);
    naming->tensors[naming->n_tensors++] = m->tensor;
    return FERRY_OK;
}

static ferry_status is_optional(const expanding *e, bool *optional_out, ferry_error *error)
{
    const json_t *own = json_object_get(e->rule, "optional");
    const json_t *said = own == NULL ? json_object_get(e->names->family, "optional") : own;
    uint64_t value = 0;
    if (said != NULL) {
        FY_TRY(number_of(e, said, &e->place, &value, error));
    }
    *optional_out = value != 0;
    return FERRY_OK;
}

static ferry_status check_axis(const char *axis, const fy_json_place *place, ferry_error *error)
{
    static const char *const axes[] = {"pp", "dp", "ep", "tp"};
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        if (strcmp(axis, axes[i]) == 0) {
            return FERRY_OK;
        }
    }
    return fy_json_fail(place, error, "is \"%s\", which is none of pp, dp, ep, tp", axis);
}

static ferry_status make_tensor(making *m, const char *pattern, ferry_error *error)
{
    const expanding *e = m->e;
    const json_t *of = json_is_string(m->how) ? m->how : json_object_get(m->how, "of");
    const json_t *blocks = json_object_get(m->how, "blocks");
    const json_t *first_of = json_object_get(m->how, "first_of");
    m->blocks = 1;
    m->tensor =
        (fy_naming_tensor){.how = m->how,
                           .rule = e->number,
                           .is_stacked = m->stack != NULL,
                           .is_transposed = json_is_true(json_object_get(m->how, "transpose")),
                           .dtype = e->dtype,
                           .first_part = e->naming->n_part_numbers};
    FY_TRY(fill_name(m->e, pattern, &m->tensor.name, error));
    if (m->tensor.name == NULL) {
        return FERRY_OK;
    }
    FY_TRY(is_optional(e, &m->tensor.is_optional, error));
    if (first_of != NULL) {
        fy_json_place place = {.parent = &m->place, .key = "first_of"};
        FY_TRY(fy_json_get_string(first_of, &place, &m->tensor.first_of, error));
        FY_TRY(check_axis(m->tensor.first_of, &place, error));
    }
    if (blocks != NULL) {
        FY_TRY(number_of(e, blocks, &m->place, &m->blocks, error));
    }
    FY_TRY(add_stack(m, of, error));
    return m->tensor.n_parts == 0 ? FERRY_OK : keep(m, error);
}

/* ---- a rule ---- */

/* How many values an index has, from 0 on: those below a first one are passed over. */
static ferry_status read_range(const expanding *e, const json_t *json, const fy_json_place *place,
                               uint64_t *first_out, uint64_t *end_out, ferry_error *error)
{
    *first_out = 0;
    if (json_is_array(json) && json_array_size(json) == 2) {
        FY_TRY(number_of(e, json_array_get(json, 0), place, first_out, error));
        json = json_array_get(json, 1);
    }
    FY_TRY(number_of(e, json, place, end_out, error));
    return *end_out <= MOST_TENSORS
               ? FERRY_OK
               : fy_json_fail(place, error, "makes more than %d tensors", MOST_TENSORS);
}

static ferry_status is_meant(const expanding *e, bool *meant_out, ferry_error *error)
{
    const json_t *condition = json_object_get(e->rule, "if");
    uint64_t value = 1;
    if (condition != NULL) {
        FY_TRY(number_of(e, condition, &e->place, &value, error));
    }
    *meant_out = value != 0;
    return FERRY_OK;
}

/* What is stacked is made once for all values of its index, the rest once for each. */
static ferry_status make_tensors(expanding *e, bool stacked, uint64_t stack_count,
                                 ferry_error *error)
{
    static const char *const keys[] = {"of", "blocks", "stack", "transpose", "first_of", NULL};
    const char *pattern;
    const json_t *how;
    json_object_foreach ((json_t *)e->stands, pattern, how) {
        making m = {.e = e, .how = how, .place = {.parent = &e->place, .key = pattern}};
        if (!json_is_string(how)) {
            FY_TRY(fy_json_expect_object(how, &m.place, keys, error));
        }
        m.stack = json_string_value(json_object_get(how, "stack"));
        m.stack_count = stack_count;
        if ((m.stack != NULL) == stacked) {
            FY_TRY(make_tensor(&m, pattern, error));
        }
    }
    return FERRY_OK;
}

/* Runs index number `at` of the rule and those inside it. */
static ferry_status run_indices(expanding *e, const json_t *each, void *at, ferry_error *error)
{
    bool meant;
    if (++e->n_steps > MOST_STEPS) {
        return fy_json_fail(&e->place, error, "has indices of more than %d values together",
                            MOST_STEPS);
    }
    if (at == NULL) {
        FY_TRY(is_meant(e, &meant, error));
        if (meant && e->scope.n_indices == 0) { /* what is stacked here has no index */
            FY_TRY(make_tensors(e, true, 0, error));
        }
        return meant ? make_tensors(e, false, 0, error) : FERRY_OK;
    }
    size_t number = e->scope.n_indices;
    uint64_t first, end;
    fy_json_place place = {.parent = &e->place, .key = json_object_iter_key(at)};
    if (number == FY_MAX_INDICES) {
        return fy_json_fail(&place, error, "is one index too many; there may be %d",
                            FY_MAX_INDICES);
    }
    FY_TRY(read_range(e, json_object_iter_value(at), &place, &first, &end, error));
    void *next = json_object_iter_next((json_t *)each, at);
    e->scope.indices[number] = json_object_iter_key(at);
    e->scope.n_indices = number + 1;
    if (next == NULL && first == 0) {
        e->scope.values[number] = 0;
        FY_TRY(is_meant(e, &meant, error));
        if (meant) {
            FY_TRY(make_tensors(e, true, end, error));
        }
    }
    for (uint64_t i = first; i < end; i++) {
        e->scope.values[number] = i;
        FY_TRY(run_indices(e, each, next, error));
    }
    e->scope.values[number] = 0;
    e->scope.n_indices = number;
    return FERRY_OK;
}

static ferry_status read_dtype(expanding *e, ferry_error *error)
{
    const json_t *said = json_object_get(e->rule, "dtype");
    fy_json_place place = {.parent = &e->place, .key = "dtype"};
    const char *text;
    e->dtype = e->names->dtype;
    if (said == NULL) {
        return FERRY_OK;
    }
    FY_TRY(fy_json_get_string(said, &place, &text, error));
    return ferry_dtype_parse(text, &e->dtype, error);
}

static ferry_status expand_rule(ferry_names *names, fy_naming *naming, size_t number,
                                ferry_error *error)
{
    fy_json_place root = {.key = "the names"}, rules = {.parent = &root, .key = "tensors"};
    expanding e = {.names = names,
                   .naming = naming,
                   .scope = names->scope,
                   .rule = names->rules[number],
                   .number = number,
                   .place = {.parent = &rules, .index = number}};
    const json_t *each = json_object_get(e.rule, "each");
    if (each != NULL && !json_is_object(each)) {
        return fy_json_fail(&e.place, error, "has \"each\", which must be an object of indices");
    }
    e.stands = of_naming(names, e.rule, naming);
    if (e.stands == NULL) {
        return FERRY_OK;
    }
    if (!json_is_object(e.stands)) {
        return fy_json_fail(&e.place, error, "\"%s\" must be an object of names", naming->name);
    }
    FY_TRY(read_dtype(&e, error));
    return run_indices(&e, each, json_object_iter((json_t *)each), error);
}

/* Of what has failed nothing stays, so that it can be tried again; parts are known by their rules.
 */
static void forget(fy_naming *naming)
{
    fy_index_cleanup(&naming->names);
    naming->n_tensors = 0;
    naming->n_part_numbers = 0;
    naming->n_runs = 0;
}

ferry_status fy_naming_expand(ferry_names *names, fy_naming *naming, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < names->n_rules && status == FERRY_OK; i++) {
        status = expand_rule(names, naming, i, error);
    }
    naming->is_expanded = status == FERRY_OK;
    if (status != FERRY_OK) {
        forget(naming);
    }
    return status;
}
