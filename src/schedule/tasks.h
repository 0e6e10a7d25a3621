/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_TASKS_H
#define FY_SCHEDULE_TASKS_H

#include "schedule/schedule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What ferry_task says, in the order in which it came. */
typedef struct fy_listed_task {
    uint64_t id;
    uint64_t bytes;
    uint64_t content; /* counts where has_content */
    uint32_t element; /* bytes */
    uint32_t from;
    uint32_t to;
    bool has_content;
} fy_listed_task;

struct ferry_task_list {
    uint32_t n_ranks;
    fy_listed_task *tasks; /* none to oneself */
    size_t n_tasks, capacity;
};

/* The tasks of one sender for one receiver. */
typedef struct fy_pair {
    uint32_t from;
    uint32_t to;
    uint32_t first; /* into the tasks */
    uint32_t n_tasks;
    uint64_t bytes;
} fy_pair;

/* Pairs in order of (from, to), and their tasks in order of (largest first, id). */
struct fy_pairs {
    uint32_t n_ranks;
    uint32_t n_tasks;
    uint32_t n_pairs;
    uint32_t n_contents; /* numbered in the order of what the caller numbered */
    fy_task *tasks;
    fy_pair *pairs;
    size_t pair_capacity;
    uint64_t largest_element;
    uint64_t common_element; /* their least common multiple, or UINT64_MAX */
    uint64_t bytes;
};

/*
 * FERRY_ERR_INVALID_INPUT where a pair has a task id twice, or where tasks of one content differ in
 * sender, bytes or element.
 */
ferry_status fy_pairs_init(const ferry_task_list *list, fy_pairs *pairs, ferry_error *error);
void fy_pairs_cleanup(fy_pairs *pairs);

/* Those of the tasks that are not left out ([n_tasks]), without contents. */
ferry_status fy_pairs_without(const fy_pairs *pairs, const bool *left_out, fy_pairs *rest,
                              ferry_error *error);

/*
 * Pairs of tasks that come twice in one order, by ascending receiver and for each pair by ascending
 * id: they are counted, and then put where they belong. Nothing is sorted but what a pair has, and
 * nothing is in memory twice.
 */
typedef struct fy_pair_maker {
    fy_pairs *pairs;
    uint32_t *pair_of;  /* [n_ranks] by sender: the pair that it was last met in */
    uint32_t *n_put;    /* [n_ranks] of that pair's tasks */
    fy_hash128 *origin; /* [n_tasks] equal for tasks of one content */
    uint64_t n_ids;     /* ids are below */
    uint32_t n_all;     /* that were put */
} fy_pair_maker;

ferry_status fy_pair_maker_init(fy_pair_maker *maker, uint32_t n_ranks, uint64_t n_ids,
                                fy_pairs *pairs, ferry_error *error);
void fy_pair_maker_cleanup(fy_pair_maker *maker); /* not the pairs */
ferry_status fy_pair_maker_count(fy_pair_maker *maker, uint32_t from, uint32_t to,
                                 ferry_error *error);
/* Between counting and putting. */
ferry_status fy_pair_maker_turn(fy_pair_maker *maker, ferry_error *error);
/* origin is a hash of what the task reads, in which all that must be equal is contained. */
ferry_status fy_pair_maker_put(fy_pair_maker *maker, uint32_t from, uint32_t to,
                               const fy_task *task, fy_hash128 origin, ferry_error *error);
/* FERRY_ERR_INVALID_PLAN where not all have come that were counted. */
ferry_status fy_pair_maker_finish(fy_pair_maker *maker, ferry_error *error);

/*
 * No schedule is faster, whatever it relays: what a rank must receive, what a rank must send
 * (contents count once), and the same for what crosses the borders of nodes. Half duplex adds a
 * rank's two directions.
 */
typedef struct fy_bound {
    double time;
    uint32_t reason; /* a ferry_bound_reason */
    uint32_t rank;
} fy_bound;

ferry_status fy_bound_of(const fy_pairs *pairs, const fy_network *network, uint32_t duplex,
                         fy_bound *bound_out, ferry_error *error);

#endif
