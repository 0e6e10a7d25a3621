/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_SUBSET_H
#define FY_BASE_SUBSET_H

#include "base/index.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which names are meant: patterns (base/glob.h) with commas between them. A name is in if it fits
 * one of them and none of those behind a '!'; where all have one, every other name is in. The order
 * does not matter. "*.weight,!layers.0.*" is all weights but those of a layer.
 */
typedef struct fy_subset_pattern {
    const char *text; /* within the list, not ended by a zero */
    size_t length;
    bool leaves_out;
    bool is_used; /* a name that fy_subset_find_unused was given fits it */
} fy_subset_pattern;

/* A list made ready for many names: one of names without stars may be as long as theirs. All zero:
 * every name is in. */
typedef struct fy_subset {
    fy_subset_pattern *patterns; /* in the order of the list */
    size_t n_patterns;
    fy_index names;  /* the numbers of patterns that are one name */
    uint32_t *globs; /* those of the others */
    size_t n_globs;
    bool wants_one;
} fy_subset;

/* Keeps pointers into the list. NULL: every name is in. To be cleaned up also after a failure. */
ferry_status fy_subset_create(const char *list, fy_subset *subset_out, ferry_error *error);
void fy_subset_cleanup(fy_subset *subset);

bool fy_subset_has(const fy_subset *subset, const char *name);

/* Whether a pattern behind a '!' fits a name. */
bool fy_subset_leaves_out(const fy_subset *subset, const char *name);

/* Whether a pattern asks for a name, and not for the other one as well. */
bool fy_subset_asks_for(const fy_subset *subset, const char *name, const char *other);

/*
 * The first pattern that none of n names fits: it is wrong, and nothing else would show it. But one
 * that stands alone and leaves nothing out may fit none: the empty result shows that. NULL: there
 * is no such pattern. name(context, i) may be NULL, which fits none.
 */
typedef const char *(*fy_subset_name_fn)(const void *context, size_t i);
const fy_subset_pattern *fy_subset_find_unused(fy_subset *subset, size_t n, fy_subset_name_fn name,
                                               const void *context);

#endif
