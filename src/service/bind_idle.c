/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of the world that have no part in the plan that is bound. That may be meant, so runs
 * succeed on them; but more often the plan is of another world, and nothing else would show it.
 */
#include "service/bind.h"

#include "base/alloc.h"
#include "base/log.h"

#include <stdio.h>

enum { MOST_NAMED = 8 };

/* Those that have no part, by the plan's numbers: "4-7, 12". */
typedef struct idle_list {
    char text[MOST_NAMED * 32];
    size_t used;
    uint32_t n_runs;
    uint32_t n_ranks;
} idle_list;

static void add_run(idle_list *list, uint32_t first, uint32_t last)
{
    list->n_ranks += last - first + 1;
    if (++list->n_runs > MOST_NAMED) {
        return;
    }
    int length =
        snprintf(list->text + list->used, sizeof list->text - list->used,
                 first == last ? "%s%u" : "%s%u-%u", list->n_runs == 1 ? "" : ", ", first, last);
    list->used += (size_t)length;
}

static ferry_status mark_idle(void *context, uint32_t first, uint32_t n_ranks)
{
    bool *idle = context;
    for (uint32_t i = 0; i < n_ranks; i++) {
        idle[first + i] = true;
    }
    return FERRY_OK;
}

static void list_idle(const fy_binding *b, const bool *idle, idle_list *list)
{
    uint32_t n_plan = ferry_plan_rank_count(b->plan);
    for (uint32_t i = 0, end; i < b->n_members; i = end + 1) {
        for (end = i; end < b->n_members; end++) {
            uint32_t member = b->members[end].member;
            bool follows = member - b->members[i].member == end - i;
            if (!follows || (member < n_plan && !idle[member])) {
                break;
            }
        }
        if (end > i) {
            add_run(list, b->members[i].member, b->members[end - 1].member);
            end--;
        }
    }
}

ferry_status fy_bind_note_idle(const fy_binding *b)
{
    idle_list list = {.used = 0};
    uint32_t n_plan = ferry_plan_rank_count(b->plan);
    if (b->my_rank != 0 || !fy_log_enabled(FERRY_LOG_WARN)) {
        return FERRY_OK; /* one rank says it for all */
    }
    bool *idle = fy_alloc_zeroed(n_plan, sizeof *idle);
    FY_TRY(fy_check_memory(idle != NULL, "the ranks of a plan", b->error));
    ferry_status status = ferry_plan_visit_idle(b->plan, mark_idle, idle, b->error);
    if (status == FERRY_OK) {
        list_idle(b, idle, &list);
    }
    if (list.n_ranks > 0) {
        fy_log(FERRY_LOG_WARN,
               "rank%s %s%s of this world of %u %s no part in the plan, which is of %u rank%s: "
               "nothing of %s is read or written",
               list.n_ranks == 1 ? "" : "s", list.text, list.n_runs > MOST_NAMED ? ", ..." : "",
               b->n_members, list.n_ranks == 1 ? "has" : "have", n_plan, n_plan == 1 ? "" : "s",
               list.n_ranks == 1 ? "it" : "them");
    }
    fy_free(idle);
    return status;
}
