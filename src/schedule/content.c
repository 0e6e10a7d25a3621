/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/content.h"

#include "base/alloc.h"

#include <string.h>

typedef struct entry {
    uint64_t content;
    uint32_t task;
} entry;

enum { DIGIT_BITS = 16, N_DIGITS = 1 << DIGIT_BITS };

/* One stable pass of a radix sort; false where all digits are equal, and nothing was done. */
static bool sort_by_digit(const entry *from, uint32_t n, uint32_t shift, uint32_t *count, entry *to)
{
    memset(count, 0, N_DIGITS * sizeof *count);
    for (uint32_t i = 0; i < n; i++) {
        count[from[i].content >> shift & (N_DIGITS - 1)]++;
    }
    if (count[from[0].content >> shift & (N_DIGITS - 1)] == n) {
        return false;
    }
    for (uint32_t digit = 0, sum = 0; digit < N_DIGITS; digit++) {
        uint32_t here = count[digit];
        count[digit]  = sum;
        sum += here;
    }
    for (uint32_t i = 0; i < n; i++) {
        to[count[from[i].content >> shift & (N_DIGITS - 1)]++] = from[i];
    }
    return true;
}

/*
 * By content; the tasks of one stay in their order, which is by receiver, as they have one sender.
 * Contents are mostly small numbers, so that few passes have anything to do.
 */
static ferry_status sort_entries(entry **entries, uint32_t n, ferry_error *error)
{
    uint32_t    *count  = fy_alloc(N_DIGITS, sizeof *count);
    entry       *other  = fy_alloc(n, sizeof *other);
    ferry_status status = FERRY_OK;
    if (count == NULL || other == NULL) {
        status = fy_fail_no_memory(error, "the contents of tasks");
    }
    for (uint32_t shift = 0; shift < 64 && n > 1 && status == FERRY_OK; shift += DIGIT_BITS) {
        if (sort_by_digit(*entries, n, shift, count, other)) {
            entry *sorted = other;
            other         = *entries;
            *entries      = sorted;
        }
    }
    fy_free(count);
    fy_free(other);
    return status;
}

static ferry_status check_equal(const fy_task *a, const fy_task *b, ferry_error *error)
{
    if (a->from != b->from || a->bytes != b->bytes || a->element != b->element) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "tasks %llu (rank %u to %u, %llu bytes) and %llu (rank %u to %u, %llu "
                       "bytes) claim the same content %llu: sender, bytes and element must agree",
                       (unsigned long long)a->id, a->from, a->to, (unsigned long long)a->bytes,
                       (unsigned long long)b->id, b->from, b->to, (unsigned long long)b->bytes,
                       (unsigned long long)a->content);
    }
    return FERRY_OK;
}

static uint32_t end_of(const entry *entries, uint32_t n, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < n && entries[end].content == entries[first].content) {
        end++;
    }
    return end;
}

static ferry_status list_contents(const fy_pairs *pairs, const entry *entries, uint32_t n,
                                  fy_contents *contents, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint32_t     used   = 0;
    for (uint32_t first = 0, end; first < n && status == FERRY_OK; first = end) {
        end = end_of(entries, n, first);
        if (end - first < 2) {
            continue;
        }
        contents->begin[contents->n++] = used;
        for (uint32_t i = first; i < end && status == FERRY_OK; i++) {
            contents->tasks[used++] = entries[i].task;
            status = check_equal(&pairs->tasks[entries[first].task], &pairs->tasks[entries[i].task],
                                 error);
        }
    }
    contents->begin[contents->n] = used;
    return status;
}

ferry_status fy_contents_init(const fy_pairs *pairs, fy_contents *contents, ferry_error *error)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        n += pairs->tasks[i].has_content;
    }
    entry *entries  = fy_alloc(n, sizeof *entries);
    *contents       = (fy_contents){0};
    contents->begin = fy_alloc((size_t)n / 2 + 1, sizeof *contents->begin);
    contents->tasks = fy_alloc(n, sizeof *contents->tasks);
    ferry_status status;
    if (entries == NULL || contents->begin == NULL || contents->tasks == NULL) {
        status = fy_fail_no_memory(error, "the contents of tasks");
        goto out;
    }
    n = 0;
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        const fy_task *task = &pairs->tasks[i];
        if (task->has_content) {
            entries[n++] = (entry){.content = task->content, .task = i};
        }
    }
    status = sort_entries(&entries, n, error);
    if (status == FERRY_OK) {
        status = list_contents(pairs, entries, n, contents, error);
    }
out:
    fy_free(entries);
    if (status != FERRY_OK) {
        fy_contents_cleanup(contents);
    }
    return status;
}

void fy_contents_cleanup(fy_contents *contents)
{
    fy_free(contents->begin);
    fy_free(contents->tasks);
    *contents = (fy_contents){0};
}
