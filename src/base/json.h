/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_JSON_H
#define FY_BASE_JSON_H

#include "base/alloc.h"
#include "base/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Strict reading of JSON: what was expected and what was found is said with the place, such as
 * source.rules[3].shard[0].dim. A place is a chain of these on the caller's stack and costs nothing
 * until an error prints it.
 */
typedef struct fy_json_place {
    const struct fy_json_place *parent; /* NULL: the document, and key is its name */
    const char *key;                    /* NULL: an element of an array */
    size_t index;
} fy_json_place;

/* "spec: source.rules[3].dim", cut to fit. */
void fy_json_place_format(const fy_json_place *place, char *text, size_t text_bytes);

ferry_status fy_json_fail(const fy_json_place *place, ferry_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Parses a whole document; duplicate keys and anything behind it are errors. */
ferry_status fy_json_parse(const char *text, size_t length, const char *name, json_t **json_out,
                           ferry_error *error);

/*
 * Compact text of a value, for fy_free. (jansson's own json_dumps drops what it has no memory for.)
 */
ferry_status fy_json_dump(const json_t *json, char **text_out, ferry_error *error);

/* The value must be an object and have no keys but these (NULL ends the list). */
ferry_status fy_json_expect_object(const json_t *json, const fy_json_place *place,
                                   const char *const *keys, ferry_error *error);
ferry_status fy_json_expect_array(const json_t *json, const fy_json_place *place,
                                  ferry_error *error);
ferry_status fy_json_get_string(const json_t *json, const fy_json_place *place,
                                const char **text_out, ferry_error *error);
ferry_status fy_json_get_bool(const json_t *json, const fy_json_place *place, bool *value_out,
                              ferry_error *error);
ferry_status fy_json_get_integer(const json_t *json, const fy_json_place *place, int64_t least,
                                 int64_t most, int64_t *value_out, ferry_error *error);
ferry_status fy_json_get_size(const json_t *json, const fy_json_place *place, uint64_t least,
                              uint64_t most, uint64_t *value_out, ferry_error *error);
/* A whole or decimal number above zero. */
ferry_status fy_json_get_positive(const json_t *json, const fy_json_place *place, double *value_out,
                                  ferry_error *error);

/* The member of an object, which must be there. */
ferry_status fy_json_member(const json_t *object, const fy_json_place *place, const char *key,
                            const json_t **member_out, ferry_error *error);

/* Reads a value that is more than one text or number; context is whose who asked. */
typedef ferry_status (*fy_json_read_fn)(const json_t *json, const fy_json_place *place,
                                        void *object, void *context, ferry_error *error);

/* What stands in an object for a member. */
typedef enum fy_json_type {
    FY_JSON_UNREAD = 0, /* it may be there, and others look at it */
    FY_JSON_VALUE,      /* a const json_t * */
    FY_JSON_STRING,     /* a const char * */
    FY_JSON_BOOL,
    FY_JSON_U32,
    FY_JSON_SIZE, /* a uint64_t */
    FY_JSON_READ, /* whatever read makes of it */
} fy_json_type;

enum { FY_JSON_OPTIONAL = 0, FY_JSON_NEEDED = 1 };

/* A member of an object, a row of a table that ends with one without a key. */
typedef struct fy_json_field {
    const char *key;
    fy_json_type type;
    bool is_needed;
    size_t offset;        /* in the object */
    uint64_t least, most; /* of numbers */
    fy_json_read_fn read;
} fy_json_field;

/*
 * Reads the members that the table has, in its order, each to object + offset. Other members are an
 * error, and so is one that is needed and not there; what else is not there is left as it was.
 */
ferry_status fy_json_read(const json_t *json, const fy_json_place *place,
                          const fy_json_field *fields, void *object, void *context,
                          ferry_error *error);

/* The elements of an array, into zeroed items of the arena; *items_out is a pointer to them. */
ferry_status fy_json_read_items(const json_t *json, const fy_json_place *place,
                                fy_json_read_fn read, void *context, fy_arena *arena,
                                size_t item_bytes, const char *what, void *items_out, size_t *n_out,
                                ferry_error *error);
ferry_status fy_json_read_sizes(const json_t *json, const fy_json_place *place, uint64_t least,
                                uint64_t most, fy_arena *arena, const char *what,
                                uint64_t **sizes_out, size_t *n_out, ferry_error *error);

/* Whether a text may stand in JSON: well-formed UTF-8, without surrogates. */
bool fy_is_utf8(const char *text);

#endif
