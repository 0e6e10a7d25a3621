/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/st_json.h"

#include "base/alloc.h"
#include "base/print.h"

#include <stdio.h>
#include <string.h>

/* Deeper values are ignored ones at best: nothing that is wanted has more than two levels. */
enum { MOST_DEPTH = 128 };

void fy_st_cursor_cleanup(fy_st_cursor *cursor)
{
    fy_free(cursor->scratch);
    cursor->scratch = NULL;
    cursor->scratch_capacity = 0;
}

bool fy_st_text_is(fy_st_text text, const char *word)
{
    return strlen(word) == text.length && memcmp(text.bytes, word, text.length) == 0;
}

ferry_status fy_st_fail(const fy_st_cursor *cursor, size_t at, const char *format, ...)
{
    char what[400];
    char where[240] = "";
    va_list arguments;
    va_start(arguments, format);
    fy_vprint(what, sizeof what, format, arguments);
    va_end(arguments);
    if (cursor->subject != NULL) {
        snprintf(where, sizeof where, "\"%.200s\"%s%s ", cursor->subject,
                 cursor->key == NULL ? "" : " ", cursor->key == NULL ? "" : cursor->key);
    }
    return fy_fail(cursor->error, FERRY_ERR_INVALID_INPUT, "%s: byte %zu%s: %s%s", cursor->file, at,
                   cursor->of, where, what);
}

static bool is_space(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

int fy_st_peek(fy_st_cursor *cursor)
{
    while (cursor->at < cursor->length && is_space(cursor->text[cursor->at])) {
        cursor->at++;
    }
    return cursor->at < cursor->length ? (unsigned char)cursor->text[cursor->at] : -1;
}

/* How much of what stands there is quoted. */
enum { SHOWN_BYTES = 16 };

ferry_status fy_st_fail_expected(const fy_st_cursor *cursor, const char *expected)
{
    size_t n = 0;
    while (n < SHOWN_BYTES && cursor->at + n < cursor->length) {
        char byte = cursor->text[cursor->at + n];
        if (byte < 0x20 || byte > 0x7e || (n > 0 && strchr(",]}", byte) != NULL)) {
            break;
        }
        n++;
    }
    if (cursor->at == cursor->length) {
        return fy_st_fail(cursor, cursor->at, "it ends where %s was expected", expected);
    }
    if (n == 0) {
        return fy_st_fail(cursor, cursor->at, "expected %s, not the byte 0x%02x", expected,
                          (unsigned char)cursor->text[cursor->at]);
    }
    return fy_st_fail(cursor, cursor->at, "expected %s, not '%.*s'", expected, (int)n,
                      cursor->text + cursor->at);
}

ferry_status fy_st_take(fy_st_cursor *cursor, char byte, const char *expected)
{
    if (fy_st_peek(cursor) != byte) {
        return fy_st_fail_expected(cursor, expected);
    }
    cursor->at++;
    return FERRY_OK;
}

ferry_status fy_st_next(fy_st_cursor *cursor, char close, bool *first_inout, bool *more_out)
{
    bool is_first = *first_inout;
    int byte = fy_st_peek(cursor);
    *first_inout = false;
    *more_out = byte != close;
    if (byte == close) {
        cursor->at++;
        return FERRY_OK;
    }
    if (is_first) {
        return FERRY_OK;
    }
    return fy_st_take(cursor, ',', close == '}' ? "',' or '}'" : "',' or ']'");
}

/* The length of the UTF-8 sequence at bytes; 0: it is none (overlong, a surrogate, beyond Unicode).
 */
static size_t sequence_bytes(const unsigned char *bytes, size_t left)
{
    unsigned char first = bytes[0];
    size_t n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || left < n) {
        return 0;
    }
    unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (n > 1 && (bytes[1] < least || bytes[1] > most)) {
        return 0;
    }
    for (size_t i = 2; i < n; i++) {
        if (bytes[i] < 0x80 || bytes[i] > 0xbf) {
            return 0;
        }
    }
    return n;
}

/* Passes over what stands for itself, up to a quote, a backslash, or something to refuse. */
static void pass_plain(fy_st_cursor *cursor)
{
    const unsigned char *text = (const unsigned char *)cursor->text;
    size_t at = cursor->at;
    while (at < cursor->length && text[at] >= 0x20 && text[at] != '"' && text[at] != '\\') {
        size_t n = text[at] < 0x80 ? 1 : sequence_bytes(text + at, cursor->length - at);
        if (n == 0) {
            break;
        }
        at += n;
    }
    cursor->at = at;
}

static ferry_status append(fy_st_cursor *cursor, size_t *used_inout, const char *bytes,
                           size_t n_bytes)
{
    if (n_bytes == 0) {
        return FERRY_OK; /* there may be no scratch yet */
    }
    FY_TRY(FY_GROW(cursor->scratch, cursor->scratch_capacity, *used_inout + n_bytes,
                   "a string of a header", cursor->error));
    memcpy(cursor->scratch + *used_inout, bytes, n_bytes);
    *used_inout += n_bytes;
    return FERRY_OK;
}

/* The four hex digits behind a \u, whose backslash stands at begin. */
static ferry_status take_hex(fy_st_cursor *cursor, size_t begin, uint32_t *unit_out)
{
    uint32_t unit = 0;
    for (size_t i = 0; i < 4; i++) {
        char byte = cursor->at < cursor->length ? cursor->text[cursor->at] : '\0';
        uint32_t digit;
        if (byte >= '0' && byte <= '9') {
            digit = (uint32_t)(byte - '0');
        } else if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f') {
            digit = (uint32_t)((byte | 0x20) - 'a') + 10;
        } else {
            return fy_st_fail(cursor, begin, "\\u must be followed by four hex digits");
        }
        unit = unit << 4 | digit;
        cursor->at++;
    }
    *unit_out = unit;
    return FERRY_OK;
}

/* Behind the "\u": one unit, or two that make a character beyond 0xffff. */
static ferry_status take_unicode(fy_st_cursor *cursor, uint32_t *code_out)
{
    size_t begin = cursor->at - 2;
    uint32_t low = 0;
    ferry_status status = take_hex(cursor, begin, code_out);
    if (status != FERRY_OK || *code_out < 0xd800 || *code_out > 0xdfff) {
        return status;
    }
    bool is_pair = *code_out < 0xdc00 && cursor->length - cursor->at >= 2 &&
                   memcmp(cursor->text + cursor->at, "\\u", 2) == 0;
    if (is_pair) {
        cursor->at += 2;
        status = take_hex(cursor, cursor->at - 2, &low);
    }
    if (status == FERRY_OK && (!is_pair || low < 0xdc00 || low > 0xdfff)) {
        status =
            fy_st_fail(cursor, begin, "\\u%04x is half of a surrogate pair", (unsigned)*code_out);
    }
    *code_out = 0x10000 + ((*code_out - 0xd800) << 10) + (low - 0xdc00);
    return status;
}

static ferry_status append_code(fy_st_cursor *cursor, size_t *used_inout, uint32_t code)
{
    char bytes[4];
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1;) {
        bytes[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    static const unsigned char marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    bytes[0] = (char)(marks[n] | code);
    return append(cursor, used_inout, bytes, n);
}

/* The escape whose backslash the cursor stands at. */
static ferry_status append_escape(fy_st_cursor *cursor, size_t *used_inout)
{
    static const char letters[] = "\"\\/bfnrt";
    static const char meant[] = "\"\\/\b\f\n\r\t";
    size_t begin = cursor->at;
    char letter = begin + 1 < cursor->length ? cursor->text[begin + 1] : '\0';
    const char *found = letter == '\0' ? NULL : strchr(letters, letter);
    cursor->at += 2;
    if (found != NULL) {
        return append(cursor, used_inout, &meant[found - letters], 1);
    }
    if (letter != 'u') {
        return fy_st_fail(cursor, begin,
                          "a backslash is followed by something that is not an escape");
    }
    uint32_t code = 0;
    FY_TRY(take_unicode(cursor, &code));
    return append_code(cursor, used_inout, code);
}

static ferry_status fail_string(const fy_st_cursor *cursor, size_t begin)
{
    if (cursor->at == cursor->length) {
        return fy_st_fail(cursor, begin, "a string begins that does not end");
    }
    unsigned char byte = (unsigned char)cursor->text[cursor->at];
    if (byte < 0x20) {
        return fy_st_fail(cursor, cursor->at, "a string holds the control character 0x%02x", byte);
    }
    return fy_st_fail(cursor, cursor->at, "a string holds bytes that are not UTF-8");
}

ferry_status fy_st_take_string(fy_st_cursor *cursor, fy_st_text *text_out)
{
    ferry_status status = fy_st_take(cursor, '"', "a string");
    size_t begin = cursor->at;
    size_t used = 0;
    bool is_decoded = false;
    while (status == FERRY_OK) {
        size_t run = cursor->at;
        pass_plain(cursor);
        char byte = cursor->at < cursor->length ? cursor->text[cursor->at] : '\0';
        if (byte == '"' && !is_decoded) {
            *text_out = (fy_st_text){cursor->text + run, cursor->at - run};
            cursor->at++;
            return FERRY_OK;
        }
        if (byte != '"' && byte != '\\') {
            return fail_string(cursor, begin - 1);
        }
        status = append(cursor, &used, cursor->text + run, cursor->at - run);
        if (status == FERRY_OK && byte == '"') {
            *text_out = (fy_st_text){cursor->scratch, used};
            cursor->at++;
            return FERRY_OK;
        }
        if (status == FERRY_OK) {
            status = append_escape(cursor, &used);
            is_decoded = true;
        }
    }
    return status;
}

ferry_status fy_st_take_key(fy_st_cursor *cursor, fy_st_text *key_out)
{
    FY_TRY(fy_st_take_string(cursor, key_out));
    return fy_st_take(cursor, ':', "':'");
}

static bool is_digit(const fy_st_cursor *cursor)
{
    return cursor->at < cursor->length && cursor->text[cursor->at] >= '0' &&
           cursor->text[cursor->at] <= '9';
}

/* Whether a number goes on at the cursor: then it was no whole one. */
static bool is_inside_number(const fy_st_cursor *cursor)
{
    return cursor->at < cursor->length && strchr("0123456789.eE+-", cursor->text[cursor->at]) &&
           cursor->text[cursor->at] != '\0';
}

ferry_status fy_st_take_number(fy_st_cursor *cursor, uint64_t *number_out)
{
    static const char expected[] = "a whole number from 0 to 2^63 - 1";
    uint64_t number = 0;
    fy_st_peek(cursor);
    size_t begin = cursor->at;
    bool fits = is_digit(cursor);
    while (fits && is_digit(cursor)) {
        uint64_t digit = (uint64_t)(cursor->text[cursor->at] - '0');
        fits = number <= (INT64_MAX - digit) / 10;
        number = fits ? number * 10 + digit : number;
        cursor->at += fits;
    }
    bool has_leading_zero = cursor->at - begin > 1 && cursor->text[begin] == '0';
    if (!fits || has_leading_zero || is_inside_number(cursor)) {
        cursor->at = begin;
        return fy_st_fail_expected(cursor, expected);
    }
    *number_out = number;
    return FERRY_OK;
}

static bool pass_digits(fy_st_cursor *cursor)
{
    size_t begin = cursor->at;
    while (is_digit(cursor)) {
        cursor->at++;
    }
    return cursor->at > begin;
}

static bool pass_byte(fy_st_cursor *cursor, const char *bytes)
{
    bool fits = cursor->at < cursor->length && cursor->text[cursor->at] != '\0' &&
                strchr(bytes, cursor->text[cursor->at]) != NULL;
    cursor->at += fits;
    return fits;
}

/* Any number of JSON. */
static bool pass_number(fy_st_cursor *cursor)
{
    pass_byte(cursor, "-");
    if (!pass_byte(cursor, "0") && !pass_digits(cursor)) {
        return false;
    }
    if (pass_byte(cursor, ".") && !pass_digits(cursor)) {
        return false;
    }
    if (pass_byte(cursor, "eE")) {
        pass_byte(cursor, "+-");
        return pass_digits(cursor);
    }
    return true;
}

static bool pass_word(fy_st_cursor *cursor, const char *word)
{
    size_t n = strlen(word);
    bool fits = cursor->length - cursor->at >= n && memcmp(cursor->text + cursor->at, word, n) == 0;
    cursor->at += fits ? n : 0;
    return fits;
}

static ferry_status skip_value(fy_st_cursor *cursor, int depth);

static ferry_status skip_items(fy_st_cursor *cursor, char open, int depth)
{
    char close = open == '{' ? '}' : ']';
    bool first = true;
    bool more = true;
    fy_st_text key;
    ferry_status status = FERRY_OK;
    if (depth >= MOST_DEPTH) {
        return fy_st_fail(cursor, cursor->at, "values are nested more than %d deep", MOST_DEPTH);
    }
    cursor->at++;
    while (status == FERRY_OK) {
        status = fy_st_next(cursor, close, &first, &more);
        if (status != FERRY_OK || !more) {
            break;
        }
        if (open == '{') {
            status = fy_st_take_key(cursor, &key);
        }
        FY_THEN(status, skip_value(cursor, depth + 1));
    }
    return status;
}

static ferry_status skip_value(fy_st_cursor *cursor, int depth)
{
    fy_st_text text;
    int byte = fy_st_peek(cursor);
    if (byte == '"') {
        return fy_st_take_string(cursor, &text);
    }
    if (byte == '{' || byte == '[') {
        return skip_items(cursor, (char)byte, depth);
    }
    size_t begin = cursor->at;
    if (pass_word(cursor, "true") || pass_word(cursor, "false") || pass_word(cursor, "null") ||
        pass_number(cursor)) {
        return FERRY_OK;
    }
    cursor->at = begin;
    return fy_st_fail_expected(cursor, "a value");
}

ferry_status fy_st_skip_value(fy_st_cursor *cursor)
{
    return skip_value(cursor, 0);
}
