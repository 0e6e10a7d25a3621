/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/glob.h"

#include "base/checked.h"

#include <string.h>

/*
 * Most patterns end in a literal that decides at once: the text must end in what stands behind the
 * last star, or in all of the pattern.
 */
static bool tail_differs(const char *pattern, size_t pattern_length, const char *text,
                         size_t text_length)
{
    const char *star   = memrchr(pattern, '*', pattern_length);
    const char *tail   = star == NULL ? pattern : star + 1;
    size_t      length = (size_t)(pattern + pattern_length - tail);
    if (length > text_length) {
        return true;
    }
    return memcmp(tail, text + text_length - length, length) != 0 &&
           memchr(tail, '?', length) == NULL;
}

bool fy_glob_match(const char *pattern, size_t pattern_length, const char *text, size_t text_length)
{
    if (tail_differs(pattern, pattern_length, text, text_length)) {
        return false;
    }
    size_t p = 0, t = 0;
    size_t star = SIZE_MAX, resume = 0; /* where to go on when the last star must take more */
    while (t < text_length) {
        if (p < pattern_length && pattern[p] == '*') {
            star   = p++;
            resume = t;
        } else if (p < pattern_length && (pattern[p] == '?' || pattern[p] == text[t])) {
            p++;
            t++;
        } else if (star != SIZE_MAX) {
            p = star + 1;
            t = ++resume;
        } else {
            return false;
        }
    }
    while (p < pattern_length && pattern[p] == '*') {
        p++;
    }
    return p == pattern_length;
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

/* The number that begins at begin, if it and what follows fit; the longest first. */
static bool match_at(const char *right, size_t right_length, const char *text, size_t text_length,
                     size_t begin, uint64_t *number_out)
{
    size_t most = 1;
    while (text[begin] != '0' && begin + most < text_length && is_digit(text[begin + most])) {
        most++;
    }
    for (size_t length = most; length > 0; length--) {
        size_t end = begin + length;
        if (fy_glob_match(right, right_length, text + end, text_length - end)) {
            *number_out = parse_digits(text + begin, length);
            return true;
        }
    }
    return false;
}

bool fy_glob_match_number(const char *pattern, const char *text, size_t text_length,
                          uint64_t *number_out)
{
    const char *hole         = strstr(pattern, "{}");
    size_t      left_length  = (size_t)(hole - pattern);
    const char *right        = hole + 2;
    size_t      right_length = strlen(right);
    size_t      first = 0, last = text_length;
    if (memchr(pattern, '*', left_length) == NULL) {
        first = last = left_length; /* without a star there is one place for the number */
    }
    if (first >= text_length || tail_differs(right, right_length, text, text_length)) {
        return false;
    }
    for (size_t begin = first; begin <= last && begin < text_length; begin++) {
        if (is_digit(text[begin]) && fy_glob_match(pattern, left_length, text, begin) &&
            match_at(right, right_length, text, text_length, begin, number_out)) {
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
