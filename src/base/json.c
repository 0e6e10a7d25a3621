/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/alloc.h"
#include "base/print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void fy_json_place_format(const fy_json_place *place, char *text, size_t text_bytes)
{
    if (place->parent == NULL) {
        snprintf(text, text_bytes, "%s:", place->key);
        return;
    }
    fy_json_place_format(place->parent, text, text_bytes);
    size_t used = strlen(text);
    if (place->key == NULL) {
        snprintf(text + used, text_bytes - used, "[%zu]", place->index);
    } else {
        bool first = place->parent->parent == NULL;
        snprintf(text + used, text_bytes - used, "%s%s", first ? " " : ".", place->key);
    }
}

ferry_status fy_json_fail(const fy_json_place *place, ferry_error *error, const char *format, ...)
{
    char where[300];
    char what[600];
    va_list arguments;
    fy_json_place_format(place, where, sizeof where);
    va_start(arguments, format);
    fy_vprint(what, sizeof what, format, arguments);
    va_end(arguments);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s %s", where, what);
}

/* How much of a text that does not parse is quoted. */
enum { SHOWN_BYTES = 32 };

/* In jansson's words, where these are not about how it is called. */
static const char *reason_of(const json_error_t *reason)
{
    return json_error_code(reason) == json_error_null_character
               ? "\\u0000 is not allowed in a string"
               : reason->text;
}

ferry_status fy_json_parse(const char *text, size_t length, const char *name, json_t **json_out,
                           ferry_error *error)
{
    json_error_t reason;
    json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES, &reason);
    if (json == NULL) {
        /* Where jansson fails before it reads, it says nothing at all. */
        if (json_error_code(&reason) == json_error_out_of_memory || reason.text[0] == '\0') {
            return fy_fail_no_memory(error, "the JSON tree");
        }
        /* jansson stops behind the token that it refuses: show what stands there. */
        size_t end = reason.position < 0 ? 0 : (size_t)reason.position;
        end = end > length ? length : end;
        size_t begin = end > SHOWN_BYTES ? end - SHOWN_BYTES : 0;
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: line %d column %d: %s, after \"%.*s\"",
                       name, reason.line, reason.column, reason_of(&reason), (int)(end - begin),
                       text + begin);
    }
    *json_out = json;
    return FERRY_OK;
}

typedef struct dump {
    char *text;
    size_t used;
    size_t capacity;
    bool failed; /* jansson goes on after some failed writes */
} dump;

static int append_dump(const char *bytes, size_t n_bytes, void *context)
{
    dump *d = context;
    if (d->failed || !FY_RESERVE(d->text, d->capacity, d->used + n_bytes + 1)) {
        d->failed = true;
        return -1;
    }
    memcpy(d->text + d->used, bytes, n_bytes);
    d->used += n_bytes;
    d->text[d->used] = '\0';
    return 0;
}

ferry_status fy_json_dump(const json_t *json, char **text_out, ferry_error *error)
{
    dump d = {0};
    if (json_dump_callback(json, append_dump, &d, JSON_COMPACT) != 0 || d.failed) {
        fy_free(d.text);
        return fy_fail_no_memory(error, "a JSON text");
    }
    *text_out = d.text;
    return FERRY_OK;
}

static const char *type_name(const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction or exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

static bool is_known(const char *key, const char *const *keys)
{
    for (; *keys != NULL; keys++) {
        if (strcmp(key, *keys) == 0) {
            return true;
        }
    }
    return false;
}

static void join(const char *const *keys, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (; *keys != NULL && used + 1 < text_bytes; keys++) {
        snprintf(text + used, text_bytes - used, "%s%s", used == 0 ? "" : ", ", *keys);
        used = strlen(text);
    }
}

ferry_status fy_json_expect_object(const json_t *json, const fy_json_place *place,
                                   const char *const *keys, ferry_error *error)
{
    if (!json_is_object(json)) {
        return fy_json_fail(place, error, "must be an object, not %s", type_name(json));
    }
    for (void *i = json_object_iter((json_t *)json); i != NULL;
         i = json_object_iter_next((json_t *)json, i)) {
        if (!is_known(json_object_iter_key(i), keys)) {
            char known[300];
            join(keys, known, sizeof known);
            return fy_json_fail(place, error, "has the unknown key \"%s\"; known are %s",
                                json_object_iter_key(i), known);
        }
    }
    return FERRY_OK;
}

ferry_status fy_json_expect_array(const json_t *json, const fy_json_place *place,
                                  ferry_error *error)
{
    if (!json_is_array(json)) {
        return fy_json_fail(place, error, "must be an array, not %s", type_name(json));
    }
    return FERRY_OK;
}

ferry_status fy_json_get_string(const json_t *json, const fy_json_place *place,
                                const char **text_out, ferry_error *error)
{
    if (!json_is_string(json)) {
        return fy_json_fail(place, error, "must be a string, not %s", type_name(json));
    }
    *text_out = json_string_value(json);
    return FERRY_OK;
}

ferry_status fy_json_get_bool(const json_t *json, const fy_json_place *place, bool *value_out,
                              ferry_error *error)
{
    if (!json_is_boolean(json)) {
        return fy_json_fail(place, error, "must be true or false, not %s", type_name(json));
    }
    *value_out = json_is_true(json);
    return FERRY_OK;
}

ferry_status fy_json_get_integer(const json_t *json, const fy_json_place *place, int64_t least,
                                 int64_t most, int64_t *value_out, ferry_error *error)
{
    if (!json_is_integer(json)) {
        return fy_json_fail(place, error, "must be a whole number, not %s", type_name(json));
    }
    json_int_t value = json_integer_value(json);
    if (value < least || value > most) {
        return fy_json_fail(place, error, "must be from %lld to %lld, not %lld", (long long)least,
                            (long long)most, (long long)value);
    }
    *value_out = value;
    return FERRY_OK;
}

ferry_status fy_json_get_size(const json_t *json, const fy_json_place *place, uint64_t least,
                              uint64_t most, uint64_t *value_out, ferry_error *error)
{
    int64_t value = 0;
    int64_t limit = most > INT64_MAX ? INT64_MAX : (int64_t)most;
    FY_TRY(fy_json_get_integer(json, place, (int64_t)least, limit, &value, error));
    *value_out = (uint64_t)value;
    return FERRY_OK;
}

ferry_status fy_json_get_positive(const json_t *json, const fy_json_place *place, double *value_out,
                                  ferry_error *error)
{
    if (!json_is_number(json)) {
        return fy_json_fail(place, error, "must be a number, not %s", type_name(json));
    }
    double value = json_number_value(json);
    if (!(value > 0) || !isfinite(value)) {
        return fy_json_fail(place, error, "must be above zero, not %g", value);
    }
    *value_out = value;
    return FERRY_OK;
}

ferry_status fy_json_member(const json_t *object, const fy_json_place *place, const char *key,
                            const json_t **member_out, ferry_error *error)
{
    const json_t *member = json_object_get(object, key);
    if (member == NULL) {
        return fy_json_fail(place, error, "lacks the key \"%s\"", key);
    }
    *member_out = member;
    return FERRY_OK;
}

static ferry_status read_field(const json_t *json, const fy_json_place *place,
                               const fy_json_field *field, void *object, void *context,
                               ferry_error *error)
{
    uint64_t number;
    switch (field->type) {
    case FY_JSON_VALUE:
        *(const json_t **)object = json;
        return FERRY_OK;
    case FY_JSON_STRING:
        return fy_json_get_string(json, place, object, error);
    case FY_JSON_BOOL:
        return fy_json_get_bool(json, place, object, error);
    case FY_JSON_U32:
        FY_TRY(fy_json_get_size(json, place, field->least, field->most, &number, error));
        *(uint32_t *)object = (uint32_t)number;
        return FERRY_OK;
    case FY_JSON_SIZE:
        return fy_json_get_size(json, place, field->least, field->most, object, error);
    case FY_JSON_READ:
        return field->read(json, place, object, context, error);
    case FY_JSON_UNREAD:
        break;
    }
    return FERRY_OK;
}

enum { MOST_FIELDS = 31 };

ferry_status fy_json_read(const json_t *json, const fy_json_place *place,
                          const fy_json_field *fields, void *object, void *context,
                          ferry_error *error)
{
    const char *keys[MOST_FIELDS + 1] = {NULL};
    for (size_t i = 0; i < MOST_FIELDS && fields[i].key != NULL; i++) {
        keys[i] = fields[i].key;
    }
    FY_TRY(fy_json_expect_object(json, place, keys, error));
    for (const fy_json_field *field = fields; field->key != NULL; field++) {
        const json_t *member = json_object_get(json, field->key);
        fy_json_place at = {.parent = place, .key = field->key};
        if (member != NULL) {
            char *to = (char *)object + field->offset;
            FY_TRY(read_field(member, &at, field, to, context, error));
        } else if (field->is_needed) {
            return fy_json_member(json, place, field->key, &member, error);
        }
    }
    return FERRY_OK;
}

ferry_status fy_json_read_items(const json_t *json, const fy_json_place *place,
                                fy_json_read_fn read, void *context, fy_arena *arena,
                                size_t item_bytes, const char *what, void *items_out, size_t *n_out,
                                ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    char *items = fy_arena_alloc(arena, n, item_bytes);
    FY_TRY(fy_check_memory(items != NULL, what, error));
    memset(items, 0, n * item_bytes);
    memcpy(items_out, &items, sizeof items);
    *n_out = n;
    for (size_t i = 0; i < n; i++) {
        fy_json_place at = {.parent = place, .index = i};
        FY_TRY(read(json_array_get(json, i), &at, items + i * item_bytes, context, error));
    }
    return FERRY_OK;
}

typedef struct bounds {
    uint64_t least, most;
} bounds;

static ferry_status read_size(const json_t *json, const fy_json_place *place, void *object,
                              void *context, ferry_error *error)
{
    const bounds *b = context;
    return fy_json_get_size(json, place, b->least, b->most, object, error);
}

ferry_status fy_json_read_sizes(const json_t *json, const fy_json_place *place, uint64_t least,
                                uint64_t most, fy_arena *arena, const char *what,
                                uint64_t **sizes_out, size_t *n_out, ferry_error *error)
{
    bounds b = {least, most};
    return fy_json_read_items(json, place, read_size, &b, arena, sizeof **sizes_out, what,
                              sizes_out, n_out, error);
}

/* The bytes behind a first byte, and the least number that may need so many; 0: no first byte. */
static uint32_t sequence_of(unsigned char first, uint32_t *least_out)
{
    if (first >= 0xc2 && first < 0xe0) {
        *least_out = 0x80;
        return 1;
    }
    if (first >= 0xe0 && first < 0xf0) {
        *least_out = 0x800;
        return 2;
    }
    *least_out = 0x10000;
    return first >= 0xf0 && first < 0xf5 ? 3 : 0;
}

bool fy_is_utf8(const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at < 0x80) {
            continue;
        }
        uint32_t least, n = sequence_of(*at, &least);
        uint32_t number = *at & (0x3fu >> n);
        if (n == 0) {
            return false;
        }
        for (uint32_t i = 0; i < n; i++) {
            if ((*++at & 0xc0) != 0x80) {
                return false;
            }
            number = number << 6 | (*at & 0x3fu);
        }
        if (number < least || number > 0x10ffff || (number >= 0xd800 && number < 0xe000)) {
            return false;
        }
    }
    return true;
}
