/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_SUBSET_H
#define FY_BASE_SUBSET_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Which names are meant: patterns (base/glob.h) with commas between them. A name is in if it fits
 * one of them and none of those behind a '!'; where all have one, every other name is in. The order
 * does not matter. "*.weight,!layers.0.*" is all weights but those of a layer.
 */

/* subset NULL: every name is in. */
bool fy_subset_has(const char *subset, const char *name);

/* Goes over the patterns: *at begins as the subset and is NULL behind the last. */
typedef struct fy_subset_pattern {
    const char *text; /* not ended by a zero */
    size_t      length;
    bool        leaves_out;
} fy_subset_pattern;

fy_subset_pattern fy_subset_next(const char **at);

/*
 * The first pattern that none of n names fits, if the subset has several: one of them would be
 * wrong without a sign of it. False: there is none. name(context, i) may be NULL, which fits none.
 */
typedef const char *(*fy_subset_name_fn)(const void *context, size_t i);
bool fy_subset_find_unused(const char *subset, size_t n, fy_subset_name_fn name,
                           const void *context, fy_subset_pattern *pattern_out);

#endif
