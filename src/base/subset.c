/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/subset.h"

#include "base/glob.h"

#include <string.h>

fy_subset_pattern fy_subset_next(const char **at)
{
    fy_subset_pattern pattern = {.text = *at, .length = strcspn(*at, ",")};
    *at = pattern.text[pattern.length] == ',' ? pattern.text + pattern.length + 1 : NULL;
    pattern.leaves_out = pattern.length > 0 && pattern.text[0] == '!';
    pattern.text += pattern.leaves_out;
    pattern.length -= pattern.leaves_out;
    return pattern;
}

bool fy_subset_has(const char *subset, const char *name)
{
    size_t length    = strlen(name);
    bool   wants_one = false, has_one = false;
    while (subset != NULL) {
        fy_subset_pattern pattern = fy_subset_next(&subset);
        bool              fits    = fy_glob_match(pattern.text, pattern.length, name, length);
        if (fits && pattern.leaves_out) {
            return false;
        }
        wants_one = wants_one || !pattern.leaves_out;
        has_one   = has_one || fits;
    }
    return has_one || !wants_one;
}

bool fy_subset_find_unused(const char *subset, size_t n, fy_subset_name_fn name,
                           const void *context, fy_subset_pattern *pattern_out)
{
    if (subset == NULL || strchr(subset, ',') == NULL) {
        return false;
    }
    while (subset != NULL) {
        fy_subset_pattern pattern = fy_subset_next(&subset);
        bool              fits    = false;
        for (size_t i = 0; i < n && !fits; i++) {
            const char *one = name(context, i);
            fits = one != NULL && fy_glob_match(pattern.text, pattern.length, one, strlen(one));
        }
        if (!fits) {
            *pattern_out = pattern;
            return true;
        }
    }
    return false;
}
