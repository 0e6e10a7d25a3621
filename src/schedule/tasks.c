/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/tasks.h"

#include "base/alloc.h"
#include "base/options.h"

#include <ferry/group.h>

ferry_status ferry_task_list_create(uint32_t n_ranks, ferry_task_list **tasks_out,
                                    ferry_error *error)
{
    FY_TRY(fy_check_use(tasks_out != NULL, "ferry_task_list_create: tasks_out is NULL", error));
    if (n_ranks == 0 || n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a task list for %u ranks: there must be 1 to %u", n_ranks, FERRY_MAX_RANKS);
    }
    ferry_task_list *list = fy_alloc_zeroed(1, sizeof *list);
    FY_TRY(fy_check_memory(list != NULL, "a task list", error));
    list->n_ranks = n_ranks;
    *tasks_out = list;
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
                       "task %llu from rank %u to rank %u: %llu bytes are not a whole number of "
                       "elements of %llu bytes (1 to 2^32 - 1 are possible)",
                       id, task->from, task->to, bytes, element);
    }
    return FERRY_OK;
}

static ferry_status append(ferry_task_list *list, const ferry_task *task, ferry_error *error)
{
    if (list->n_tasks == INT32_MAX) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a task list holds at most 2^31 - 1 tasks");
    }
    FY_TRY(
        FY_GROW(list->tasks, list->capacity, list->n_tasks + 1, "the tasks of a schedule", error));
    list->tasks[list->n_tasks++] = (fy_listed_task){.id = task->task_id,
                                                    .bytes = task->bytes,
                                                    .content = task->content,
                                                    .element = (uint32_t)task->element_bytes,
                                                    .from = task->from,
                                                    .to = task->to,
                                                    .has_content = task->has_content};
    return FERRY_OK;
}

ferry_status ferry_task_list_add(ferry_task_list *tasks, const ferry_task *task, ferry_error *error)
{
    FY_TRY(fy_check_use(
        tasks != NULL && task != NULL,
        "ferry_task_list_add needs a list and a task that starts as FERRY_TASK_INIT", error));
    ferry_task own;
    ferry_status status = fy_take_task(task, &own, error);
    FY_THEN(status, check_task(tasks, &own, error));
    return status != FERRY_OK || own.from == own.to ? status : append(tasks, &own, error);
}
