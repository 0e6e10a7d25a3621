/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The cases of the mixed collectives, and where each runs: conformance/rows.h tells how. */
#include "collective/suite.h"

enum {
    ALL = 1 << 0,     /* any row */
    PLAIN = 1 << 1,   /* quick: only where no wrapper stands, and not over ucx */
    THREADS = 1 << 2, /* only inproc */
    DIES = 1 << 3,    /* only processes */
    UCX = 1 << 4,     /* quick: only ucx without a wrapper */
    KERNELS = 1 << 5  /* only by name, where kernels make the calls */
};

typedef struct collective_case {
    case_row row;
    uint32_t where;
} collective_case;

#define CASE(text, ranks, function, flags)                                                         \
    {                                                                                              \
        .row = {.name = (text), .n_ranks = (ranks), .run = (function)}, .where = (flags)           \
    }
/*
 * Where no case waits for a deadline it is a long one: a rank that is kept off the cores is neither
 * silent nor late. Only where a rank is to be missed that lives there is a short entry limit.
 */
#define FAULT(text, ranks, function, flags, deadline, entry)                                       \
    {                                                                                              \
        .row = {.name = (text),                                                                    \
                .n_ranks = (ranks),                                                                \
                .run = (function),                                                                 \
                .deadline_seconds = (deadline),                                                    \
                .entry_seconds = (entry),                                                          \
                .processes_only = ((flags)&DIES) != 0,                                             \
                .dies = ((flags)&DIES) != 0},                                                      \
        .where = (flags)                                                                           \
    }

static const collective_case cases[] = {
    CASE("oracle", 1, case_oracle, THREADS),
    CASE("all1", 1, case_all, ALL),
    CASE("all2", 2, case_all, ALL),
    CASE("all3", 3, case_all, PLAIN),
    CASE("all4", 4, case_all, ALL),
    CASE("all5", 5, case_all, PLAIN),
    CASE("all6", 6, case_all, PLAIN),
    CASE("all7", 7, case_all, THREADS),
    CASE("all8", 8, case_all, PLAIN),
    CASE("all9", 9, case_all, THREADS),
    CASE("all10", 10, case_all, THREADS),
    CASE("all11", 11, case_all, THREADS),
    CASE("all12", 12, case_all, THREADS),
    CASE("all13", 13, case_all, THREADS),
    CASE("all14", 14, case_all, THREADS),
    CASE("all15", 15, case_all, THREADS),
    CASE("all16", 16, case_all, THREADS),
    CASE("large", 4, case_large, PLAIN),
    CASE("large3", 3, case_large, PLAIN),
    CASE("ranks24", 24, case_many_ranks, THREADS),
    CASE("ranks37", 37, case_many_ranks, THREADS),
    CASE("ranks64", 64, case_many_ranks, THREADS),
    CASE("deterministic2", 2, case_deterministic, ALL),
    CASE("deterministic3", 3, case_deterministic, PLAIN),
    CASE("deterministic4", 4, case_deterministic, ALL),
    CASE("deterministic6", 6, case_deterministic, PLAIN),
    CASE("deterministic8", 8, case_deterministic, THREADS),
    CASE("deterministic12", 12, case_deterministic, THREADS),
    CASE("random2", 2, case_random, ALL),
    CASE("random3", 3, case_random, PLAIN),
    CASE("random4", 4, case_random, ALL),
    CASE("random6", 6, case_random, ALL),
    CASE("random8", 8, case_random, PLAIN),
    CASE("random12", 12, case_random, THREADS),
    CASE("far2", 2, case_far, ALL),
    CASE("far4", 4, case_far, ALL),
    CASE("far6", 6, case_far, PLAIN),
    CASE("two_handles", 4, case_two_handles, PLAIN),
    CASE("requests", 4, case_requests, ALL),
    CASE("autotune", 4, case_autotune, PLAIN),
    CASE("life", 4, case_life, ALL),
    CASE("life1", 1, case_life, PLAIN),
    CASE("shared_transport", 4, case_shared_transport, ALL),
    CASE("bad_create", 4, case_bad_create, PLAIN),
    CASE("bad_calls", 4, case_bad_calls, PLAIN),
    CASE("bad_calls3", 3, case_bad_calls, PLAIN),
    CASE("bad_order", 4, case_bad_order, PLAIN),
    CASE("differing_options", 3, case_differing_options, PLAIN),
    CASE("two_threads", 2, case_two_threads, PLAIN),
    CASE("cancel", 4, case_cancel, PLAIN),
    CASE("captured2", 2, case_captured, KERNELS),
    CASE("captured4", 4, case_captured, KERNELS),
    CASE("graph2", 2, case_graph, KERNELS),
    CASE("graph4", 4, case_graph, KERNELS),
    CASE("graph_late", 3, case_graph_late, KERNELS),
    CASE("graph_ends", 2, case_graph_ends, KERNELS),
    CASE("graph_differs", 2, case_graph_differs, KERNELS),
    CASE("graph_silent", 2, case_graph_silent, KERNELS),
    CASE("graph_order", 2, case_graph_order, KERNELS),
    CASE("ahead2", 2, case_ahead, KERNELS),
    CASE("ahead4", 4, case_ahead, KERNELS),
    CASE("ahead_differs", 2, case_ahead_differs, KERNELS),
    CASE("ahead_streams", 2, case_ahead_streams, KERNELS),
    CASE("ahead_counts", 2, case_ahead_counts, KERNELS),
    CASE("ahead_beside", 2, case_ahead_beside, KERNELS),
    CASE("ahead_ends", 2, case_ahead_ends, KERNELS),
    CASE("ahead_ends4", 4, case_ahead_ends, KERNELS),
    CASE("diverging", 4, case_diverging, ALL),
    FAULT("turns", 4, case_turns, PLAIN, 4, 0),
    FAULT("refused_alone", 2, case_refused_alone, ALL, 20, 0),
    FAULT("idle", 4, case_idle, PLAIN, 20, 6),
    FAULT("held_up", 2, case_held_up, KERNELS, 4, 0),
    FAULT("graph_idle", 2, case_graph_idle, KERNELS, 20, 2),
    FAULT("graph_beside", 2, case_graph_beside, KERNELS, 20, 0),
    FAULT("graph_fork", 2, case_graph_fork, KERNELS, 20, 0),
    FAULT("graph_request", 2, case_graph_request, KERNELS, 4, 2),
    FAULT("graph_wakes", 2, case_graph_wakes, KERNELS, 20, 0),
    FAULT("graph_lost", 2, case_graph_lost, KERNELS, 20, 0),
    FAULT("graph_killed", 2, case_graph_killed, KERNELS | DIES, 20, 0),
    FAULT("graph_killed4", 4, case_graph_killed, KERNELS | DIES, 20, 0),
    FAULT("ahead_idle", 2, case_ahead_idle, KERNELS, 20, 2),
    FAULT("ahead_fails", 2, case_ahead_fails, KERNELS, 20, 2),
    FAULT("ahead_killed", 2, case_ahead_killed, KERNELS | DIES, 20, 0),
    FAULT("ahead_killed4", 4, case_ahead_killed, KERNELS | DIES, 20, 0),
    FAULT("abort", 4, case_abort, PLAIN, 20, 0),
    FAULT("lose", 4, case_lose, PLAIN, 1, 3),
    FAULT("killed", 4, case_killed, ALL | DIES, 20, 0),
    FAULT("killed2", 2, case_killed, PLAIN | DIES, 20, 0),
    FAULT("killed_early", 4, case_killed_early, PLAIN | DIES, 20, 0),
    FAULT("stopped", 4, case_stopped, PLAIN | DIES, 7, 0),
    FAULT("stopped_first", 8, case_stopped_first, UCX | DIES, 7, 0),
};

static const case_row *case_at(size_t index)
{
    return &cases[index].row;
}

static bool is_wanted(const suite_options *o, size_t index)
{
    const collective_case *it = &cases[index];
    const engine_row *engine = o->engine;
    if (o->only == NULL && (it->where & KERNELS) != 0) {
        return false;
    }
    if (o->only == NULL && (it->where & THREADS) != 0) {
        return strcmp(engine->name, "inproc") == 0 || (o->is_long && it->row.n_ranks <= MOST_RANKS);
    }
    if ((it->where & UCX) != 0 && o->only == NULL && !o->is_long) {
        return strcmp(engine->name, "ucx") == 0;
    }
    return o->only != NULL || o->is_long || row_is_plain(engine) || (it->where & ALL) != 0;
}

int main(int argc, char **argv)
{
    static const row_suite suite = {.name = "collective",
                                    .n_cases = COUNT_OF(cases),
                                    .case_at = case_at,
                                    .is_wanted = is_wanted,
                                    .long_seconds = 1800};
    unsetenv("FERRY_TUNE_FILE");
    suite_uses_far = true;
    return run_suite(&suite, argc, argv);
}
