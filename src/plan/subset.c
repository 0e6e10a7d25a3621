/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/subset.h"

#include <ferry/plan.h>

bool ferry_subset_has(const char *subset, const char *name)
{
    return name != NULL && fy_subset_list_has(subset, name);
}
