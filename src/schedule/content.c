/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/content.h"

#include "base/alloc.h"
#include "base/sort.h"

typedef struct entry {
    uint64_t content;
    uint32_t to;
    uint32_t task;
} entry;

static int by_content(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->content != y->content) {
        return x->content < y->content ? -1 : 1;
    }
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    return (x->task > y->task) - (x->task < y->task);
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
            entries[n++] = (entry){.content = task->content, .to = task->to, .task = i};
        }
    }
    fy_sort(entries, n, sizeof *entries, by_content);
    status = list_contents(pairs, entries, n, contents, error);
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
