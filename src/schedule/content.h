/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_CONTENT_H
#define FY_SCHEDULE_CONTENT_H

#include "schedule/tasks.h"

/* Tasks that carry the same bytes of one sender to several receivers. */
typedef struct fy_contents {
    uint32_t  n;
    uint32_t *begin; /* [n + 1] into tasks */
    uint32_t *tasks; /* numbers of tasks, by receiver within a content */
} fy_contents;

/* Only contents of two tasks or more are listed. */
ferry_status fy_contents_init(const fy_pairs *pairs, fy_contents *contents, ferry_error *error);
void         fy_contents_cleanup(fy_contents *contents);

#endif
