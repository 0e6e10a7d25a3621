/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/subset.h"

#include "base/alloc.h"

#include <ferry/plan.h>

#include <string.h>

struct ferry_subset {
    fy_subset patterns;
    char *list; /* which they point into */
};

ferry_status ferry_subset_create(const char *list, ferry_subset **subset_out, ferry_error *error)
{
    FY_TRY(fy_check_use(subset_out != NULL, "ferry_subset_create needs a place for the subset",
                        error));
    *subset_out = NULL;
    ferry_subset *subset = fy_alloc_zeroed(1, sizeof *subset);
    if (subset == NULL || (list != NULL && (subset->list = fy_strdup(list)) == NULL)) {
        ferry_subset_destroy(subset);
        return fy_fail_no_memory(error, "a subset");
    }
    ferry_status status = fy_subset_create(subset->list, &subset->patterns, error);
    if (status != FERRY_OK) {
        ferry_subset_destroy(subset);
        return status;
    }
    *subset_out = subset;
    return FERRY_OK;
}

void ferry_subset_destroy(ferry_subset *subset)
{
    if (subset != NULL) {
        fy_subset_cleanup(&subset->patterns);
        fy_free(subset->list);
        fy_free(subset);
    }
}

bool ferry_subset_has(const ferry_subset *subset, const char *name)
{
    return name != NULL && (subset == NULL || fy_subset_has(&subset->patterns, name));
}

ferry_status ferry_subset_check(ferry_subset *subset, size_t n, ferry_subset_name_fn name,
                                const void *context, ferry_error *error)
{
    if (subset == NULL || (name == NULL && n != 0)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_subset_check needs a subset and names");
    }
    const fy_subset_pattern *unused = fy_subset_find_unused(&subset->patterns, n, name, context);
    if (unused == NULL) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "no tensor fits \"%.*s\"",
                   unused->length < 200 ? (int)unused->length : 200, unused->text);
}
