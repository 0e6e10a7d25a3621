/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Families of names: which one a model has, its namings, and what was seen of them. */
#include "model/naming.h"

#include "base/glob.h"
#include "base/hash.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

/* What all families share: groups of rules, and numbers. */
static const char SHARED[] = "shared";

/* ---- the built-in families ---- */

static bool is_family(const fy_naming_text *text)
{
    return strcmp(text->name, SHARED) != 0;
}

static const fy_naming_text *family_at(size_t index)
{
    for (const fy_naming_text *text = fy_naming_texts; text->name != NULL; text++) {
        if (is_family(text) && index-- == 0) {
            return text;
        }
    }
    return NULL;
}

size_t ferry_names_family_count(void)
{
    size_t n = 0;
    while (family_at(n) != NULL) {
        n++;
    }
    return n;
}

const char *ferry_names_family_at(size_t index, const char **text_out)
{
    const fy_naming_text *found = family_at(index);
    if (found == NULL) {
        return NULL;
    }
    if (text_out != NULL) {
        *text_out = found->text;
    }
    return found->name;
}

static ferry_status parse_text(const fy_naming_text *text, json_t **json_out, ferry_error *error)
{
    return fy_json_parse(text->text, text->length, text->name, json_out, error);
}

static ferry_status parse_shared(ferry_names *n, ferry_error *error)
{
    const fy_naming_text *text = fy_naming_texts;
    while (strcmp(text->name, SHARED) != 0) {
        text++;
    }
    return parse_text(text, &n->shared, error);
}

static bool has_model(const json_t *family, const char *model)
{
    const json_t *models = json_object_get(family, "models");
    for (size_t i = 0; i < json_array_size(models); i++) {
        const char *one = json_string_value(json_array_get(models, i));
        if (one != NULL && strcmp(one, model) == 0) {
            return true;
        }
    }
    return false;
}

/* The family of the config's model_type, or of the nested config's. */
static ferry_status find_family(ferry_names *n, ferry_error *error)
{
    const json_t *configs[] = {n->config, n->scope.text_config};
    const char *seen = NULL;
    for (size_t i = 0; i < 2; i++) {
        const char *model = json_string_value(json_object_get(configs[i], "model_type"));
        seen = seen == NULL ? model : seen;
        for (size_t f = 0; model != NULL && family_at(f) != NULL; f++) {
            json_t *family;
            FY_TRY(parse_text(family_at(f), &family, error));
            if (has_model(family, model)) {
                n->family = family;
                return FERRY_OK;
            }
            json_decref(family);
        }
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: no family of names has the model_type \"%.60s\" of its config.json; give a "
                   "family of your own, or one that is built the same",
                   n->source_name, seen == NULL ? "" : seen);
}

/* ---- reading a family ---- */

static ferry_status check_family(const ferry_names *n, ferry_error *error)
{
    static const char *const keys[] = {"format",  "family",  "models",  "numbers",  "texts",
                                       "namings", "tensors", "ignored", "optional", NULL};
    fy_json_place place = {.key = "the names"}, at = {.parent = &place, .key = "format"};
    const char *format;
    const json_t *member;
    FY_TRY(fy_json_expect_object(n->family, &place, keys, error));
    FY_TRY(fy_json_member(n->family, &place, "format", &member, error));
    FY_TRY(fy_json_get_string(member, &at, &format, error));
    if (strcmp(format, "ferry.names/1") != 0) {
        return fy_json_fail(&at, error, "is \"%.40s\"; this version reads ferry.names/1", format);
    }
    return fy_json_member(n->family, &place, "tensors", &member, error);
}

static ferry_status check_rule(const ferry_names *n, const json_t *rule, const fy_json_place *place,
                               ferry_error *error)
{
    static const char *const keys[] = {"each", "if", "parts", "dtype", "optional", NULL};
    const char *key;
    const json_t *value;
    if (!json_is_object(rule) || !json_is_object(json_object_get(rule, "parts"))) {
        return fy_json_fail(place, error, "must be an object with \"parts\"");
    }
    json_object_foreach ((json_t *)rule, key, value) {
        bool known = false;
        for (size_t i = 0; keys[i] != NULL; i++) {
            known = known || strcmp(keys[i], key) == 0;
        }
        for (size_t i = 0; i < n->n_namings; i++) {
            known = known || strcmp(n->namings[i].name, key) == 0;
        }
        if (!known) {
            return fy_json_fail(place, error, "has the unknown key \"%.60s\"", key);
        }
    }
    return FERRY_OK;
}

static ferry_status add_rule(ferry_names *n, const json_t *rule, const fy_json_place *place,
                             ferry_error *error)
{
    FY_TRY(check_rule(n, rule, place, error));
    n->rules[n->n_rules++] = rule;
    return FERRY_OK;
}

/* A text stands for a group of rules that families share. */
static const json_t *group_of(const ferry_names *n, const json_t *item)
{
    return json_object_get(json_object_get(n->shared, "groups"), json_string_value(item));
}

static size_t count_rules(const ferry_names *n, const json_t *list)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        count += json_is_string(item) ? json_array_size(group_of(n, item)) : 1;
    }
    return count;
}

static ferry_status list_rules(ferry_names *n, ferry_error *error)
{
    const json_t *list = json_object_get(n->family, "tensors");
    fy_json_place root = {.key = "the names"}, place = {.parent = &root, .key = "tensors"};
    FY_TRY(fy_json_expect_array(list, &place, error));
    n->rules = fy_alloc(count_rules(n, list), sizeof *n->rules);
    FY_TRY(fy_check_memory(n->rules != NULL, "the names of a model", error));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *group = group_of(n, item);
        fy_json_place at = {.parent = &place, .index = i};
        if (!json_is_string(item)) {
            FY_TRY(add_rule(n, item, &at, error));
            continue;
        }
        if (group == NULL) {
            return fy_json_fail(&at, error, "is \"%.60s\", which is no group that families share",
                                json_string_value(item));
        }
        for (size_t k = 0; k < json_array_size(group); k++) {
            FY_TRY(add_rule(n, json_array_get(group, k), &at, error));
        }
    }
    return FERRY_OK;
}

static ferry_status list_namings(ferry_names *n, ferry_error *error)
{
    const json_t *own = json_object_get(n->family, "namings");
    const json_t *all = own == NULL ? json_object_get(n->shared, "namings") : own;
    fy_json_place root = {.key = "the names"}, place = {.parent = &root, .key = "namings"};
    const char *key;
    const json_t *value;
    if (!json_is_object(all)) {
        return fy_json_fail(&place, error, "must be an object");
    }
    n->namings = fy_alloc_zeroed(json_object_size(all), sizeof *n->namings);
    FY_TRY(fy_check_memory(n->namings != NULL, "the names of a model", error));
    json_object_foreach ((json_t *)all, key, value) {
        n->namings[n->n_namings++] =
            (fy_naming){.name = key, .like = json_string_value(json_object_get(value, "like"))};
    }
    return FERRY_OK;
}

/* ---- making ---- */

static ferry_dtype default_dtype(const ferry_names *n)
{
    static const struct {
        const char *word;
        ferry_dtype dtype;
    } rows[] = {{"float32", {FERRY_F32, 32}}, {"float16", {FERRY_F16, 16}}};
    const json_t *configs[] = {n->config, n->scope.text_config};
    for (size_t i = 0; i < 2; i++) {
        const char *word = json_string_value(json_object_get(configs[i], "dtype"));
        word = word == NULL ? json_string_value(json_object_get(configs[i], "torch_dtype")) : word;
        for (size_t k = 0; word != NULL && k < sizeof rows / sizeof rows[0]; k++) {
            if (strcmp(word, rows[k].word) == 0) {
                return rows[k].dtype;
            }
        }
    }
    return (ferry_dtype){FERRY_BF16, 16};
}

/* The nested config of a multimodal model's language part. */
static const json_t *nested_config(const json_t *config)
{
    const json_t *nested = json_object_get(config, "text_config");
    return json_is_object(nested) ? nested : NULL;
}

static ferry_status read_all(ferry_names *n, const ferry_names_options *o, ferry_error *error)
{
    const char *source = o->source_name == NULL ? "the model" : o->source_name;
    n->source_name = fy_arena_copy(&n->arena, source, strlen(source));
    FY_TRY(fy_check_memory(n->source_name != NULL, "the names of a model", error));
    FY_TRY(fy_json_parse(o->config, o->config_length, n->source_name, &n->config, error));
    if (!json_is_object(n->config)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: its config.json is no JSON object",
                       n->source_name);
    }
    FY_TRY(parse_shared(n, error));
    n->scope = (fy_formula_scope){.source_name = n->source_name,
                                  .config = n->config,
                                  .text_config = nested_config(n->config)};
    FY_TRY(o->family == NULL
               ? find_family(n, error)
               : fy_json_parse(o->family, o->family_length, "the names", &n->family, error));
    FY_TRY(check_family(n, error));
    n->scope.numbers[0] = json_object_get(n->family, "numbers");
    n->scope.numbers[1] = json_object_get(n->shared, "numbers");
    n->dtype = o->dtype.kind == 0 ? default_dtype(n) : o->dtype;
    FY_TRY(list_namings(n, error));
    return list_rules(n, error);
}

ferry_status ferry_names_create(const ferry_names_options *options, ferry_names **names_out,
                                ferry_error *error)
{
    ferry_names_options own;
    FY_TRY(fy_take_names_options(options, &own, error));
    FY_TRY(fy_check_use(own.config != NULL && names_out != NULL,
                        "ferry_names_create needs the text of a config.json and a place for the "
                        "result",
                        error));
    ferry_names *n = fy_alloc_zeroed(1, sizeof *n);
    FY_TRY(fy_check_memory(n != NULL, "the names of a model", error));
    ferry_status status = read_all(n, &own, error);
    if (status == FERRY_OK) {
        *names_out = n;
        n = NULL;
    }
    ferry_names_destroy(n);
    return status;
}

void ferry_names_destroy(ferry_names *n)
{
    if (n == NULL) {
        return;
    }
    for (size_t i = 0; i < n->n_namings; i++) {
        fy_naming *naming = &n->namings[i];
        fy_free(naming->tensors);
        fy_free(naming->part_numbers);
        fy_free(naming->runs);
        fy_index_cleanup(&naming->names);
    }
    fy_free(n->namings);
    fy_free(n->rules);
    fy_free(n->parts);
    fy_index_cleanup(&n->part_index);
    json_decref(n->family);
    json_decref(n->shared);
    json_decref(n->config);
    fy_arena_cleanup(&n->arena);
    fy_free(n);
}

/* ---- namings ---- */

size_t ferry_names_naming_count(const ferry_names *names)
{
    return names == NULL ? 0 : names->n_namings;
}

const char *ferry_names_naming_at(const ferry_names *names, size_t index)
{
    return index < ferry_names_naming_count(names) ? names->namings[index].name : NULL;
}

static ferry_status no_naming(const ferry_names *n, const char *name, ferry_error *error)
{
    char list[300] = "";
    for (size_t i = 0, used = 0; i < n->n_namings && used < sizeof list; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : ", ",
                                 n->namings[i].name);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: there is no naming \"%.60s\", but %s",
                   n->source_name, name, list);
}

ferry_status fy_naming_find(ferry_names *n, const char *name, fy_naming **naming_out,
                            ferry_error *error)
{
    for (size_t i = 0; i < n->n_namings; i++) {
        if (strcmp(n->namings[i].name, name) == 0) {
            *naming_out = &n->namings[i];
            return n->namings[i].is_expanded ? FERRY_OK
                                             : fy_naming_expand(n, &n->namings[i], error);
        }
    }
    return no_naming(n, name, error);
}

uint32_t fy_naming_find_tensor(const fy_naming *naming, const char *name)
{
    fy_index_cursor c = fy_index_first(&naming->names, fy_hash64(name, strlen(name)));
    while (c.value != FY_INDEX_NONE && strcmp(naming->tensors[c.value].name, name) != 0) {
        fy_index_next(&naming->names, &c);
    }
    return c.value;
}

bool fy_naming_is_there(const fy_naming *naming, const fy_naming_tensor *tensor)
{
    return !naming->is_seen || tensor->is_seen;
}

static ferry_status check_asked(const ferry_names *names, bool has_rest, const char *call,
                                ferry_error *error)
{
    return names != NULL && has_rest ? FERRY_OK
                                     : fy_fail(error, FERRY_ERR_MISUSE,
                                               "%s needs names, and what is asked of them", call);
}

ferry_status ferry_names_get_tensor_count(ferry_names *names, const char *naming, size_t *count_out,
                                          ferry_error *error)
{
    fy_naming *found = NULL;
    FY_TRY(check_asked(names, naming != NULL && count_out != NULL, "ferry_names_get_tensor_count",
                       error));
    FY_TRY(fy_naming_find(names, naming, &found, error));
    *count_out = found->n_tensors;
    return FERRY_OK;
}

ferry_status ferry_names_tensor_at(ferry_names *names, const char *naming, size_t index,
                                   ferry_map_tensor *tensor_out, ferry_error *error)
{
    fy_naming *found = NULL;
    FY_TRY(
        check_asked(names, naming != NULL && tensor_out != NULL, "ferry_names_tensor_at", error));
    FY_TRY(fy_naming_find(names, naming, &found, error));
    if (index >= found->n_tensors) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: there is no tensor %zu of the %zu in %s", names->source_name, index,
                       found->n_tensors, naming);
    }
    const fy_naming_tensor *t = &found->tensors[index];
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    tensor.name = t->name;
    tensor.dtype = t->dtype;
    tensor.n_dims = t->n_dims;
    memcpy(tensor.shape, t->shape, sizeof tensor.shape);
    return fy_copy_out(&tensor, sizeof tensor, tensor_out, "ferry_map_tensor", error);
}

/* ---- what was seen ---- */

static bool is_ignored(const ferry_names *n, const char *name)
{
    const json_t *lists[] = {json_object_get(n->family, "ignored"),
                             json_object_get(n->shared, "ignored")};
    for (size_t l = 0; l < 2; l++) {
        for (size_t i = 0; i < json_array_size(lists[l]); i++) {
            const char *pattern = json_string_value(json_array_get(lists[l], i));
            if (pattern != NULL && fy_glob_match(pattern, strlen(pattern), name, strlen(name))) {
                return true;
            }
        }
    }
    return false;
}

static void print_shape(uint32_t n_dims, const uint64_t *shape, char text[200])
{
    size_t used = (size_t)snprintf(text, 200, "[");
    for (uint32_t d = 0; d < n_dims && used < 150; d++) {
        used += (size_t)snprintf(text + used, 200 - used, "%s%llu", d == 0 ? "" : ", ",
                                 (unsigned long long)shape[d]);
    }
    snprintf(text + used, 200 - used, "]");
}

static ferry_status check_shape(const ferry_names *n, const char *naming, const fy_naming_tensor *t,
                                uint32_t n_dims, const uint64_t *shape, ferry_error *error)
{
    char has[200], wanted[200];
    if (n_dims == t->n_dims && memcmp(shape, t->shape, n_dims * sizeof *shape) == 0) {
        return FERRY_OK;
    }
    print_shape(n_dims, shape, has);
    print_shape(t->n_dims, t->shape, wanted);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: \"%s\" has the shape %s, but %s makes it %s of its config.json; give the "
                   "config of this model",
                   n->source_name, t->name, has, naming, wanted);
}

ferry_status ferry_names_see(ferry_names *names, const char *naming, const char *tensor,
                             ferry_dtype dtype, uint32_t n_dims, const uint64_t *shape,
                             ferry_error *error)
{
    fy_naming *found = NULL;
    FY_TRY(check_asked(names, naming != NULL && tensor != NULL && (shape != NULL || n_dims == 0),
                       "ferry_names_see", error));
    FY_TRY(fy_naming_find(names, naming, &found, error));
    uint32_t number = fy_naming_find_tensor(found, tensor);
    if (number == FY_INDEX_NONE) {
        return is_ignored(names, tensor)
                   ? FERRY_OK
                   : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "%s: no rule of %s covers the tensor \"%s\"; leave it out, or give "
                             "a family of names that has it",
                             names->source_name, naming, tensor);
    }
    fy_naming_tensor *t = &found->tensors[number];
    FY_TRY(check_shape(names, naming, t, n_dims, shape, error));
    found->is_seen = true;
    t->is_seen = true;
    t->dtype = dtype;
    return FERRY_OK;
}

ferry_status ferry_names_check_seen(ferry_names *names, const char *naming, ferry_error *error)
{
    fy_naming *found = NULL;
    FY_TRY(check_asked(names, naming != NULL, "ferry_names_check_seen", error));
    FY_TRY(fy_naming_find(names, naming, &found, error));
    for (size_t i = 0; i < found->n_tensors; i++) {
        const fy_naming_tensor *t = &found->tensors[i];
        if (!t->is_seen && !t->is_optional) {
            return fy_fail(
                error, FERRY_ERR_INVALID_INPUT,
                "%s: lacks the tensor \"%s\", which models of its config.json have in %s",
                names->source_name, t->name, naming);
        }
    }
    return FERRY_OK;
}

/* How many of the tensors a naming has. */
static ferry_status count_found(ferry_names *n, const char *naming, const char *const *tensors,
                                size_t n_tensors, size_t *count_out, ferry_error *error)
{
    fy_naming *found = NULL;
    FY_TRY(fy_naming_find(n, naming, &found, error));
    *count_out = 0;
    for (size_t i = 0; i < n_tensors; i++) {
        *count_out += fy_naming_find_tensor(found, tensors[i]) != FY_INDEX_NONE;
    }
    return FERRY_OK;
}

ferry_status ferry_names_find_naming(ferry_names *names, const char *const *tensors,
                                     size_t n_tensors, const char **naming_out, ferry_error *error)
{
    size_t most = 0, count;
    const char *best = NULL;
    FY_TRY(check_asked(names, (tensors != NULL || n_tensors == 0) && naming_out != NULL,
                       "ferry_names_find_naming", error));
    for (size_t i = 0; i < names->n_namings && most < n_tensors; i++) {
        FY_TRY(count_found(names, names->namings[i].name, tensors, n_tensors, &count, error));
        if (count > most) {
            most = count;
            best = names->namings[i].name;
        }
    }
    if (best == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: no naming has any of the %zu tensors (the first is \"%s\"); give the "
                       "config of this model, or a family of names that has them",
                       names->source_name, n_tensors, n_tensors == 0 ? "" : tensors[0]);
    }
    *naming_out = best;
    return FERRY_OK;
}
