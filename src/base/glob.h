/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_GLOB_H
#define FY_BASE_GLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether the whole text fits the pattern: `*` is any text, `?` any one byte, all else itself. */
bool fy_glob_match(const char *pattern, size_t pattern_length, const char *text,
                   size_t text_length);

/*
 * A pattern with exactly one `{}`, which stands for a decimal number without leading zeros. Of
 * several fits the leftmost number counts, and there the longest. A number beyond 64 bits is
 * UINT64_MAX.
 */
bool fy_glob_match_number(const char *pattern, const char *text, size_t text_length,
                          uint64_t *number_out);

/* How many `{}` a pattern has. */
size_t fy_glob_count_numbers(const char *pattern);

#endif
