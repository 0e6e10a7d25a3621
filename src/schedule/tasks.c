/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/tasks.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"
#include "base/sort.h"

#include <ferry/group.h>

#include <string.h>

ferry_status ferry_task_list_create(uint32_t n_ranks, ferry_task_list **tasks_out,
                                    ferry_error *error)
{
    if (tasks_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_task_list_create: tasks_out is NULL");
    }
    if (n_ranks == 0 || n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a task list for %u ranks: there must be 1 to %u", n_ranks, FERRY_MAX_RANKS);
    }
    ferry_task_list *list = fy_alloc_zeroed(1, sizeof *list);
    if (list == NULL) {
        return fy_fail_no_memory(error, "a task list");
    }
    list->n_ranks = n_ranks;
    *tasks_out    = list;
    return FERRY_OK;
}

void ferry_task_list_destroy(ferry_task_list *tasks)
{
    if (tasks != NULL) {
        fy_free(tasks->tasks);
        fy_free(tasks);
    }
}

static ferry_status check_task(const ferry_task_list *list, const ferry_task *task,
                               ferry_error *error)
{
    unsigned long long id = task->task_id, bytes = task->bytes, element = task->element_bytes;
    if (task->from >= list->n_ranks || task->to >= list->n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu goes from rank %u to rank %u, but there are only %u ranks", id,
                       task->from, task->to, list->n_ranks);
    }
    if (bytes == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu from rank %u to rank %u has no bytes: leave it out", id,
                       task->from, task->to);
    }
    if (element == 0 || element > UINT32_MAX || bytes % element != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu from rank %u to rank %u: %llu bytes are no whole number of "
                       "elements of %llu bytes (1 to 2^32 - 1 are possible)",
                       id, task->from, task->to, bytes, element);
    }
    return FERRY_OK;
}

static void put(ferry_task_list *tasks, size_t at, const ferry_task *task)
{
    tasks->tasks[at] = (fy_task){.id          = task->task_id,
                                 .bytes       = task->bytes,
                                 .content     = task->content,
                                 .element     = (uint32_t)task->element_bytes,
                                 .from        = task->from,
                                 .to          = task->to,
                                 .has_content = task->has_content};
}

ferry_status ferry_task_list_add(ferry_task_list *tasks, const ferry_task *task, ferry_error *error)
{
    if (tasks == NULL || task == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_task_list_add needs a list and a task that starts as "
                       "FERRY_TASK_INIT");
    }
    ferry_task   own;
    ferry_status status = fy_take_task(task, &own, error);
    if (status == FERRY_OK) {
        status = check_task(tasks, &own, error);
    }
    if (status != FERRY_OK || own.from == own.to) {
        return status;
    }
    status = fy_task_list_resize(tasks, tasks->n_tasks + 1, error);
    if (status == FERRY_OK) {
        put(tasks, tasks->n_tasks - 1, &own);
    }
    return status;
}

ferry_status fy_task_list_resize(ferry_task_list *tasks, size_t n, ferry_error *error)
{
    if (n > INT32_MAX) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a task list holds at most 2^31 - 1 tasks");
    }
    if (!fy_reserve((void **)&tasks->tasks, &tasks->capacity, n, sizeof *tasks->tasks)) {
        return fy_fail_no_memory(error, "the tasks of a schedule");
    }
    tasks->n_tasks = n;
    return FERRY_OK;
}

ferry_status fy_task_list_put(ferry_task_list *tasks, size_t at, const ferry_task *task,
                              ferry_error *error)
{
    ferry_status status = check_task(tasks, task, error);
    if (status == FERRY_OK) {
        put(tasks, at, task);
    }
    return status;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_receiver_then_id(const void *a, const void *b)
{
    const fy_task *x = a, *y = b;
    return x->to != y->to ? compare_numbers(x->to, y->to) : compare_numbers(x->id, y->id);
}

static int largest_first(const void *a, const void *b)
{
    const fy_task *x = a, *y = b;
    return x->bytes != y->bytes ? compare_numbers(y->bytes, x->bytes)
                                : compare_numbers(x->id, y->id);
}

/* Mostly there is nothing to do: plans are visited in this order. */
static void sort_unless_sorted(fy_task *tasks, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        if (by_receiver_then_id(&tasks[i - 1], &tasks[i]) > 0) {
            fy_sort(tasks, n, sizeof *tasks, by_receiver_then_id);
            return;
        }
    }
}

/* Every task goes to its sender's part, in cycles: there may be gigabytes, and no room for two. */
static void part_by_sender(fy_task *tasks, uint32_t n_ranks, size_t *next, const size_t *end)
{
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        while (next[rank] < end[rank]) {
            fy_task task = tasks[next[rank]];
            while (task.from != rank) {
                fy_task *home = &tasks[next[task.from]++];
                fy_task  out  = *home;
                *home         = task;
                task          = out;
            }
            tasks[next[rank]++] = task;
        }
    }
}

/* By sender in one pass, then each sender's by receiver and id. */
static ferry_status sort_tasks(fy_pairs *pairs, ferry_error *error)
{
    fy_task *tasks = pairs->tasks;
    size_t   n     = pairs->n_ranks;
    size_t  *next  = fy_alloc_zeroed(2 * n + 1, sizeof *next);
    if (next == NULL) {
        return fy_fail_no_memory(error, "the tasks of a schedule");
    }
    size_t *end = next + n;
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        end[tasks[i].from + 1]++;
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        end[rank + 1] += end[rank];
        next[rank] = end[rank];
    }
    part_by_sender(tasks, pairs->n_ranks, next, end + 1);
    for (uint32_t rank = 0; rank < n; rank++) {
        sort_unless_sorted(tasks + end[rank], end[rank + 1] - end[rank]);
    }
    fy_free(next);
    return FERRY_OK;
}

static bool same_pair(const fy_task *a, const fy_task *b)
{
    return a->from == b->from && a->to == b->to;
}

/* UINT64_MAX beyond 2^32. */
static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b;
    while (y != 0) {
        uint64_t rest = x % y;
        x             = y;
        y             = rest;
    }
    return a >> 32 != 0 ? UINT64_MAX : a / x * b;
}

static ferry_status form_pair(fy_pairs *pairs, uint32_t first, uint32_t end, ferry_error *error)
{
    fy_task *tasks = pairs->tasks;
    fy_pair  pair  = {
          .from = tasks[first].from, .to = tasks[first].to, .first = first, .n_tasks = end - first};
    for (uint32_t i = first; i < end; i++) {
        if (i > first && tasks[i].id == tasks[i - 1].id) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "task %llu occurs twice from rank %u to rank %u: ids are distinct "
                           "within a pair of ranks",
                           (unsigned long long)tasks[i].id, pair.from, pair.to);
        }
        if (!fy_add(pair.bytes, tasks[i].bytes, &pair.bytes)) {
            return fy_fail(error, FERRY_ERR_LIMIT,
                           "the tasks from rank %u to rank %u exceed 2^64 bytes", pair.from,
                           pair.to);
        }
        pairs->largest_element = fy_max(pairs->largest_element, tasks[i].element);
        pairs->common_element  = common_multiple(pairs->common_element, tasks[i].element);
    }
    if (!fy_add(pairs->bytes, pair.bytes, &pairs->bytes) || pairs->bytes >> 60 != 0) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a schedule moves less than 2^60 bytes in all");
    }
    fy_sort(tasks + first, end - first, sizeof *tasks, largest_first);
    pairs->pairs[pairs->n_pairs++] = pair;
    return FERRY_OK;
}

static ferry_status form_pairs(fy_pairs *pairs, ferry_error *error)
{
    uint32_t     n      = pairs->n_tasks != 0;
    ferry_status status = FERRY_OK;
    for (uint32_t i = 1; i < pairs->n_tasks; i++) {
        n += !same_pair(&pairs->tasks[i - 1], &pairs->tasks[i]);
    }
    pairs->pairs = fy_alloc(n, sizeof *pairs->pairs);
    if (pairs->pairs == NULL) {
        return fy_fail_no_memory(error, "the pairs of a schedule");
    }
    for (uint32_t first = 0, end; first < pairs->n_tasks && status == FERRY_OK; first = end) {
        end = first + 1;
        while (end < pairs->n_tasks && same_pair(&pairs->tasks[first], &pairs->tasks[end])) {
            end++;
        }
        status = form_pair(pairs, first, end, error);
    }
    return status;
}

ferry_status fy_pairs_init(const ferry_task_list *list, fy_pairs *pairs, ferry_error *error)
{
    ferry_task_list copy = {.n_ranks = list->n_ranks, .n_tasks = list->n_tasks};
    copy.tasks           = fy_alloc(list->n_tasks, sizeof *copy.tasks);
    if (copy.tasks == NULL) {
        *pairs = (fy_pairs){0};
        return fy_fail_no_memory(error, "the tasks of a schedule");
    }
    if (list->n_tasks > 0) {
        memcpy(copy.tasks, list->tasks, list->n_tasks * sizeof *copy.tasks);
    }
    return fy_pairs_take(&copy, pairs, error);
}

ferry_status fy_pairs_take(ferry_task_list *list, fy_pairs *pairs, ferry_error *error)
{
    *pairs              = (fy_pairs){.n_ranks        = list->n_ranks,
                                     .n_tasks        = (uint32_t)list->n_tasks,
                                     .tasks          = list->tasks,
                                     .common_element = 1};
    *list               = (ferry_task_list){.n_ranks = list->n_ranks};
    ferry_status status = sort_tasks(pairs, error);
    if (status == FERRY_OK) {
        status = form_pairs(pairs, error);
    }
    if (status != FERRY_OK) {
        fy_pairs_cleanup(pairs);
    }
    return status;
}

void fy_pairs_cleanup(fy_pairs *pairs)
{
    fy_free(pairs->tasks);
    fy_free(pairs->pairs);
    *pairs = (fy_pairs){0};
}
