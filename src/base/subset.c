/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/subset.h"

#include "base/alloc.h"
#include "base/glob.h"
#include "base/hash.h"

#include <string.h>

/* *at begins as the list and is NULL behind its last pattern. */
static fy_subset_pattern take_pattern(const char **at)
{
    fy_subset_pattern pattern = {.text = *at, .length = strcspn(*at, ",")};
    *at = pattern.text[pattern.length] == ',' ? pattern.text + pattern.length + 1 : NULL;
    pattern.leaves_out = pattern.length > 0 && pattern.text[0] == '!';
    pattern.text += pattern.leaves_out;
    pattern.length -= pattern.leaves_out;
    return pattern;
}

static bool is_name(const fy_subset_pattern *pattern)
{
    return memchr(pattern->text, '*', pattern->length) == NULL &&
           memchr(pattern->text, '?', pattern->length) == NULL;
}

ferry_status fy_subset_create(const char *list, fy_subset *subset_out, ferry_error *error)
{
    fy_subset *s = subset_out;
    size_t n = 1;
    bool has_room = true;
    *s = (fy_subset){.patterns = NULL};
    if (list == NULL) {
        return FERRY_OK;
    }
    for (const char *at = list; (at = strchr(at, ',')) != NULL; at++) {
        n++;
    }
    s->patterns = fy_alloc(n, sizeof *s->patterns);
    s->globs = fy_alloc(n, sizeof *s->globs);
    has_room = n < FY_INDEX_NONE && s->patterns != NULL && s->globs != NULL;
    for (const char *at = list; at != NULL && has_room;) {
        uint32_t number = (uint32_t)s->n_patterns++;
        fy_subset_pattern *pattern = &s->patterns[number];
        *pattern = take_pattern(&at);
        s->wants_one = s->wants_one || !pattern->leaves_out;
        if (is_name(pattern)) {
            has_room =
                fy_index_insert(&s->names, fy_hash64(pattern->text, pattern->length), number);
        } else {
            s->globs[s->n_globs++] = number;
        }
    }
    return has_room ? FERRY_OK : fy_fail_no_memory(error, "the patterns of a subset");
}

void fy_subset_cleanup(fy_subset *subset)
{
    fy_free(subset->patterns);
    fy_free(subset->globs);
    fy_index_cleanup(&subset->names);
    *subset = (fy_subset){.patterns = NULL};
}

static bool is_same(const fy_subset_pattern *pattern, const char *name, size_t length)
{
    return pattern->length == length && memcmp(pattern->text, name, length) == 0;
}

bool fy_subset_has(const fy_subset *subset, const char *name)
{
    size_t length = strlen(name);
    bool has_one = false;
    if (subset->n_patterns == 0) {
        return true;
    }
    fy_index_cursor c = fy_index_first(&subset->names, fy_hash64(name, length));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&subset->names, &c)) {
        const fy_subset_pattern *pattern = &subset->patterns[c.value];
        if (is_same(pattern, name, length)) {
            if (pattern->leaves_out) {
                return false;
            }
            has_one = true;
        }
    }
    for (size_t i = 0; i < subset->n_globs; i++) {
        const fy_subset_pattern *pattern = &subset->patterns[subset->globs[i]];
        if ((pattern->leaves_out || !has_one) &&
            fy_glob_match(pattern->text, pattern->length, name, length)) {
            if (pattern->leaves_out) {
                return false;
            }
            has_one = true;
        }
    }
    return has_one || !subset->wants_one;
}

bool fy_subset_leaves_out(const fy_subset *subset, const char *name)
{
    size_t length = strlen(name);
    bool leaves_out = false;
    for (size_t i = 0; i < subset->n_patterns && !leaves_out; i++) {
        const fy_subset_pattern *pattern = &subset->patterns[i];
        leaves_out =
            pattern->leaves_out && fy_glob_match(pattern->text, pattern->length, name, length);
    }
    return leaves_out;
}

bool fy_subset_asks_for(const fy_subset *subset, const char *name, const char *other)
{
    size_t length = strlen(name), other_length = strlen(other);
    fy_index_cursor c = fy_index_first(&subset->names, fy_hash64(name, length));
    bool asks = false;
    for (; c.value != FY_INDEX_NONE && !asks; fy_index_next(&subset->names, &c)) {
        const fy_subset_pattern *pattern = &subset->patterns[c.value];
        asks = !pattern->leaves_out && is_same(pattern, name, length);
    }
    for (size_t i = 0; i < subset->n_globs && !asks; i++) {
        const fy_subset_pattern *pattern = &subset->patterns[subset->globs[i]];
        asks = !pattern->leaves_out &&
               fy_glob_match(pattern->text, pattern->length, name, length) &&
               !fy_glob_match(pattern->text, pattern->length, other, other_length);
    }
    return asks;
}

static void mark_used(fy_subset *subset, const char *name)
{
    size_t length = strlen(name);
    fy_index_cursor c = fy_index_first(&subset->names, fy_hash64(name, length));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&subset->names, &c)) {
        fy_subset_pattern *pattern = &subset->patterns[c.value];
        pattern->is_used = pattern->is_used || is_same(pattern, name, length);
    }
    for (size_t i = 0; i < subset->n_globs; i++) {
        fy_subset_pattern *pattern = &subset->patterns[subset->globs[i]];
        pattern->is_used =
            pattern->is_used || fy_glob_match(pattern->text, pattern->length, name, length);
    }
}

const fy_subset_pattern *fy_subset_find_unused(fy_subset *subset, size_t n, fy_subset_name_fn name,
                                               const void *context)
{
    if (subset->n_patterns == 0 || (subset->n_patterns == 1 && subset->wants_one)) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        const char *one = name(context, i);
        if (one != NULL) {
            mark_used(subset, one);
        }
    }
    for (size_t i = 0; i < subset->n_patterns; i++) {
        if (!subset->patterns[i].is_used) {
            return &subset->patterns[i];
        }
    }
    return NULL;
}
