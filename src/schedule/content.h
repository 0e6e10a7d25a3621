/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_CONTENT_H
#define FY_SCHEDULE_CONTENT_H

#include "schedule/tasks.h"

/*
 * Contents are what several tasks of one sender carry. They are numbered from 0 in the order of the
 * caller's own numbers; a content that only one task has gets none.
 */

/* listed[i] is what tasks[i] was made of; FERRY_ERR_INVALID_INPUT where a content's tasks differ.
 */
ferry_status fy_contents_number(fy_pairs *pairs, const fy_listed_task *listed, ferry_error *error);

/*
 * Tasks of equal origins ([n_tasks]) of one sender have one content, whose number is that of the
 * first one's id among all such. Ids are below n_ids, and a sender's ascend with its tasks.
 */
ferry_status fy_contents_find(fy_pairs *pairs, const fy_hash128 *origin, uint64_t n_ids,
                              ferry_error *error);

/* A task of a content, and who receives it. */
typedef struct fy_content_task {
    uint32_t task;
    uint32_t to;
} fy_content_task;

typedef struct fy_content {
    uint32_t from;
    uint32_t begin; /* into tasks */
    uint32_t end;
} fy_content;

typedef struct fy_contents {
    uint32_t n;
    fy_content *contents;
    fy_content_task *tasks; /* by receiver within a content */
} fy_contents;

/* The tasks of the contents that are wanted ([n_contents]), content by content. */
ferry_status fy_contents_init(const fy_pairs *pairs, const bool *wanted, fy_contents *contents,
                              ferry_error *error);
void fy_contents_cleanup(fy_contents *contents);

#endif
