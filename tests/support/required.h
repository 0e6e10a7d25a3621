/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_REQUIRED_H
#define FERRY_TESTS_REQUIRED_H

/* What must not be skipped: see tests/support/skips.py. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Whether MUST_NOT_SKIP, words with commas between, has this one. */
static inline bool is_required(const char *word)
{
    const char *at = getenv("MUST_NOT_SKIP");
    size_t length = strlen(word);
    while (at != NULL && *at != '\0') {
        size_t n = strcspn(at, ",");
        if (n == length && strncmp(at, word, n) == 0) {
            return true;
        }
        at += n + (at[n] == ',');
    }
    return false;
}

#endif
