/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DESCRIPTORS_H
#define FERRY_TESTS_DESCRIPTORS_H

#include "support/check.h"

#include <dirent.h>

/* How many descriptors this process has open, and some more that are always there. */
static inline size_t count_descriptors(void)
{
    size_t n = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        n++;
    }
    closedir(folder);
    return n;
}

#endif
