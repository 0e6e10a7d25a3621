/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_TASKS_H
#define FY_SCHEDULE_TASKS_H

#include "schedule/schedule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The work of a schedule: what ferry_task says, without self tasks. */
typedef struct fy_task {
    uint64_t id;
    uint64_t bytes;
    uint64_t content; /* counts where has_content */
    uint32_t element; /* bytes */
    uint32_t from;
    uint32_t to;
    bool     has_content;
} fy_task;

struct ferry_task_list {
    uint32_t n_ranks;
    fy_task *tasks;
    size_t   n_tasks, capacity;
};

/*
 * For who knows all tasks beforehand: a list of n tasks of nothing, and one put in its place. Tasks
 * to oneself are left out beforehand, too.
 */
ferry_status fy_task_list_resize(ferry_task_list *tasks, size_t n, ferry_error *error);
ferry_status fy_task_list_put(ferry_task_list *tasks, size_t at, const ferry_task *task,
                              ferry_error *error);

/* The tasks of one sender for one receiver. */
typedef struct fy_pair {
    uint32_t from;
    uint32_t to;
    uint32_t first; /* into the tasks */
    uint32_t n_tasks;
    uint64_t bytes;
} fy_pair;

/* Tasks in order of (from, to, largest first, id), and the pairs that they form. */
typedef struct fy_pairs {
    uint32_t n_ranks;
    uint32_t n_tasks;
    fy_task *tasks;
    fy_pair *pairs;
    uint32_t n_pairs;
    uint64_t largest_element;
    uint64_t common_element; /* their least common multiple, or UINT64_MAX */
    uint64_t bytes;
} fy_pairs;

/*
 * FERRY_ERR_INVALID_INPUT where a pair has a task id twice, or where tasks of one content differ in
 * sender, bytes or element.
 */
ferry_status fy_pairs_init(const ferry_task_list *list, fy_pairs *pairs, ferry_error *error);
/* The same with the list's own memory, also on failure: the list is empty then. */
ferry_status fy_pairs_take(ferry_task_list *list, fy_pairs *pairs, ferry_error *error);
void         fy_pairs_cleanup(fy_pairs *pairs);

/*
 * No schedule is faster, whatever it relays: what a rank must receive, what a rank must send
 * (contents count once), and the same for what crosses the borders of nodes. Half duplex adds a
 * rank's two directions.
 */
typedef struct fy_bound {
    double   time;
    uint32_t reason; /* a ferry_bound_reason */
    uint32_t rank;
} fy_bound;

ferry_status fy_bound_of(const fy_pairs *pairs, const fy_network *network, uint32_t duplex,
                         fy_bound *bound_out, ferry_error *error);

#endif
