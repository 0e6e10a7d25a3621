/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_ST_JSON_H
#define FY_CHECKPOINT_ST_JSON_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Strict JSON (RFC 8259, valid UTF-8) read token by token, without a tree: headers and indexes are
 * up to 100 MB long and their values are wanted once. White space before a token is passed over.
 */
typedef struct fy_st_cursor {
    const char *text;
    size_t length;
    size_t at;
    const char *file;    /* all sentences begin with it, */
    const char *of;      /* go on with the byte, of the file or " of the header", */
    const char *subject; /* (optional) the tensor that is being read */
    const char *key;     /* (optional) and the key in it */
    char *scratch;       /* strings with escapes are decoded here */
    size_t scratch_capacity;
    ferry_error *error;
} fy_st_cursor;

/* Of a decoded string, not zero ended. Good until the next one is read. */
typedef struct fy_st_text {
    const char *bytes;
    size_t length;
} fy_st_text;

void fy_st_cursor_cleanup(fy_st_cursor *cursor);

/* FERRY_ERR_INVALID_INPUT with the place: the file, the byte of the header, the tensor, the key. */
ferry_status fy_st_fail(const fy_st_cursor *cursor, size_t at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What was expected and what stands there instead. */
ferry_status fy_st_fail_expected(const fy_st_cursor *cursor, const char *expected);

/* The next byte that is no white space; -1 at the end. */
int fy_st_peek(fy_st_cursor *cursor);

/* Takes a byte, such as '{'; expected is what a sentence calls it. */
ferry_status fy_st_take(fy_st_cursor *cursor, char byte, const char *expected);

/*
 * Goes on to the next item of an object or array that was entered, over the comma. *first_inout is
 * true before the first. *more_out is false when close was taken instead.
 */
ferry_status fy_st_next(fy_st_cursor *cursor, char close, bool *first_inout, bool *more_out);

ferry_status fy_st_take_string(fy_st_cursor *cursor, fy_st_text *text_out);

/* The key of a member and its colon. */
ferry_status fy_st_take_key(fy_st_cursor *cursor, fy_st_text *key_out);

/* Decimal digits without a sign, a leading zero, a fraction or an exponent, below 2^63. */
ferry_status fy_st_take_number(fy_st_cursor *cursor, uint64_t *number_out);

/* Passes over any value. */
ferry_status fy_st_skip_value(fy_st_cursor *cursor);

bool fy_st_text_is(fy_st_text text, const char *word);

#endif
