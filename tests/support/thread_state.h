/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_THREAD_STATE_H
#define FERRY_TESTS_THREAD_STATE_H

#include <stdio.h>
#include <string.h>

/* What a thread of this process, by the kernel's number, does: 'S' if it sleeps, 'R' if it runs;
 * ' ' if it is none. */
static inline char thread_state(int number)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", number);
    FILE *file = fopen(path, "re");
    size_t length = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    text[length] = '\0';
    char *end = strrchr(text, ')');
    if (file != NULL) {
        fclose(file);
    }
    return end == NULL ? ' ' : end[2];
}

#endif
