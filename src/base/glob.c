/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/glob.h"

#include "base/checked.h"

#include <string.h>

/*
 * A pattern is pieces between stars. Those in the middle may lie anywhere in order, so each takes
 * the first place that is left, and nothing is ever tried again: patterns come from files, and no
 * pattern may take long on any name.
 */

static bool fits_at(const char *piece, size_t length, const char *text)
{
    for (size_t i = 0; i < length; i++) {
        if (piece[i] != text[i] && piece[i] != '?') {
            return false;
        }
    }
    return true;
}

/* Where the piece first fits within [from, end) of the text; SIZE_MAX: nowhere. */
static size_t find_first(const char *piece, size_t length, const char *text, size_t from,
                         size_t end)
{
    for (size_t at = from; at <= end && length <= end - at; at++) {
        if (fits_at(piece, length, text + at)) {
            return at;
        }
    }
    return SIZE_MAX;
}

/* Where it last fits there, as the place behind it. */
static size_t find_last(const char *piece, size_t length, const char *text, size_t from, size_t end)
{
    for (size_t at = end; at >= from && length <= at - from; at--) {
        if (fits_at(piece, length, text + at - length)) {
            return at - length;
        }
    }
    return SIZE_MAX;
}

/* What stands before, or behind, some place of a text: its outer pieces have found their places. */
typedef struct side {
    const char *text;
    const char *edge; /* the piece that ends, or begins, at the place */
    size_t edge_length;
    size_t limit; /* the edge lies behind it, or before it */
    bool floats;  /* a star lies between the edge and the limit; else they touch */
} side;

/* False where the pattern fits before no place at all. */
static bool find_before(const char *pattern, size_t pattern_length, const char *text,
                        size_t text_length, side *s)
{
    const char *end = pattern + pattern_length;
    const char *star = memchr(pattern, '*', pattern_length);
    *s = (side){.text = text, .edge = pattern, .edge_length = pattern_length};
    if (star == NULL) {
        return true;
    }
    s->floats = true;
    s->limit = (size_t)(star - pattern);
    if (s->limit > text_length || !fits_at(pattern, s->limit, text)) {
        return false;
    }
    for (;;) {
        s->edge = star + 1;
        star = memchr(s->edge, '*', (size_t)(end - s->edge));
        s->edge_length = (size_t)((star == NULL ? end : star) - s->edge);
        if (star == NULL) {
            return true;
        }
        size_t at = find_first(s->edge, s->edge_length, text, s->limit, text_length);
        if (at == SIZE_MAX) {
            return false;
        }
        s->limit = at + s->edge_length;
    }
}

static bool fits_before(const side *s, size_t place)
{
    if (place < s->limit || place - s->limit < s->edge_length ||
        (!s->floats && place != s->edge_length)) {
        return false;
    }
    return fits_at(s->edge, s->edge_length, s->text + place - s->edge_length);
}

static bool find_behind(const char *pattern, size_t pattern_length, const char *text,
                        size_t text_length, side *s)
{
    const char *end = pattern + pattern_length;
    const char *star = memrchr(pattern, '*', pattern_length);
    *s = (side){.text = text, .edge = pattern, .edge_length = pattern_length, .limit = text_length};
    if (star == NULL) {
        return true;
    }
    size_t tail = (size_t)(end - (star + 1));
    s->floats = true;
    if (tail > text_length || !fits_at(star + 1, tail, text + text_length - tail)) {
        return false;
    }
    s->limit = text_length - tail;
    for (;;) {
        end = star;
        star = memrchr(pattern, '*', (size_t)(end - pattern));
        s->edge = star == NULL ? pattern : star + 1;
        s->edge_length = (size_t)(end - s->edge);
        if (star == NULL) {
            return true;
        }
        s->limit = find_last(s->edge, s->edge_length, text, 0, s->limit);
        if (s->limit == SIZE_MAX) {
            return false;
        }
    }
}

static bool fits_behind(const side *s, size_t place)
{
    if (place > s->limit || s->limit - place < s->edge_length ||
        (!s->floats && s->limit - place != s->edge_length)) {
        return false;
    }
    return fits_at(s->edge, s->edge_length, s->text + place);
}

bool fy_glob_match(const char *pattern, size_t pattern_length, const char *text, size_t text_length)
{
    side before;
    return find_before(pattern, pattern_length, text, text_length, &before) &&
           fits_before(&before, text_length);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A number beyond 64 bits saturates: it is larger than anything it is compared with. */
static uint64_t parse_digits(const char *digits, size_t length)
{
    uint64_t number = 0;
    for (size_t i = 0; i < length; i++) {
        if (!fy_mul(number, 10, &number) || !fy_add(number, (uint64_t)(digits[i] - '0'), &number)) {
            return UINT64_MAX;
        }
    }
    return number;
}

/*
 * The last place up to end, and above begin, that what follows the number may begin at; SIZE_MAX:
 * none. All numbers that begin in one run of digits share it, but for those that begin with 0.
 */
static size_t last_end(const side *behind, size_t begin, size_t end)
{
    while (end > begin && !fits_behind(behind, end)) {
        end--;
    }
    return end > begin ? end : SIZE_MAX;
}

bool fy_glob_match_number(const char *pattern, const char *text, size_t text_length,
                          uint64_t *number_out)
{
    const char *hole = strstr(pattern, "{}");
    side before, behind;
    if (!find_before(pattern, (size_t)(hole - pattern), text, text_length, &before) ||
        !find_behind(hole + 2, strlen(hole + 2), text, text_length, &behind)) {
        return false;
    }
    size_t run_end = 0, run_last = SIZE_MAX; /* of the digits around begin */
    for (size_t begin = 0; begin < text_length; begin++) {
        if (!is_digit(text[begin])) {
            continue;
        }
        if (begin >= run_end) {
            run_end = begin + 1;
            while (run_end < text_length && is_digit(text[run_end])) {
                run_end++;
            }
            run_last = last_end(&behind, begin, run_end);
        }
        if (!fits_before(&before, begin)) {
            continue;
        }
        size_t end = text[begin] != '0'                ? run_last
                     : fits_behind(&behind, begin + 1) ? begin + 1
                                                       : SIZE_MAX;
        if (end != SIZE_MAX && end > begin) {
            *number_out = parse_digits(text + begin, end - begin);
            return true;
        }
    }
    return false;
}

size_t fy_glob_count_numbers(const char *pattern)
{
    size_t count = 0;
    for (const char *hole = pattern; (hole = strstr(hole, "{}")) != NULL; hole += 2) {
        count++;
    }
    return count;
}
