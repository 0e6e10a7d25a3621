/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_MEETING_H
#define FERRY_TESTS_MEETING_H

/* What the tests of meetings share: a folder that must end empty, and no descriptor left. */
#include "world/meeting.h"

#include "support/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];
static size_t n_descriptors;

static inline size_t count_entries(const char *path)
{
    size_t n = 0;
    DIR *dir = opendir(path);
    struct dirent *item;
    while ((item = readdir(dir)) != NULL) {
        n += item->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

/* A path in the folder; the last four stay valid. */
static inline const char *path_of(const char *name)
{
    static char paths[4][160];
    static size_t next;
    char *path = paths[next++ % COUNT_OF(paths)];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline int begin_meetings(void **state)
{
    (void)state;
    n_descriptors = count_entries("/proc/self/fd");
    snprintf(folder, sizeof folder, "/tmp/ferry-meeting-XXXXXX");
    return mkdtemp(folder) == NULL;
}

/* Fails if a test left a file. */
static inline int end_meetings(void **state)
{
    (void)state;
    return rmdir(folder);
}

/* The last of a program's tests. */
static inline void test_no_descriptor_left(void **state)
{
    (void)state;
    assert_int_equal(count_entries("/proc/self/fd"), n_descriptors);
}

static inline fy_settings settings_of(double join, char *secret)
{
    return (fy_settings){.deadline_ns = 200000000,
                         .entry_ns = -1,
                         .join_ns = (int64_t)(join * 1e9),
                         .secret = secret};
}

static inline bool same_key(const fy_meeting *a, const fy_meeting *b)
{
    return memcmp(a->key, b->key, sizeof a->key) == 0;
}

#endif
