/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_PROCESSES_H
#define FERRY_TESTS_PROCESSES_H

#include "support/check.h"
#include "support/required.h"

#include <ferry/world.h>

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*
 * Ranks that are processes and run one function each. Marks, in memory that all share, say how far
 * everybody is: nobody waits for time to pass. What is not so ends a rank with a line that says it.
 */
enum { MOST_PROCESSES = 8, MOST_MARKS = 16 };

typedef struct shared_marks {
    _Atomic int mark[MOST_MARKS];
} shared_marks;

typedef struct rank_process {
    const char *row;
    uint32_t rank;
    uint32_t n_ranks;
    ferry_world_options options;
    ferry_world *world;
    ferry_error error;
    shared_marks *shared;
    const void *context;
} rank_process;

#define so(self, condition)                                                                        \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s: rank %u, line %d: not so: %s (%s)\n", (self)->row, (self)->rank,  \
                    __LINE__, #condition, (self)->error.message);                                  \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* Until somebody has set it; who never does is found by the test's own limit. */
static inline void await_mark(shared_marks *shared, int mark, int value)
{
    while (atomic_load(&shared->mark[mark]) < value) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static inline void add_mark(shared_marks *shared, int mark)
{
    atomic_fetch_add(&shared->mark[mark], 1);
}

/* Waits for a message that nobody sends: until the world fails. */
static inline ferry_status await_failure(rank_process *self, uint32_t *rank_out)
{
    const void *bytes;
    size_t n_bytes;
    ferry_status status = ferry_world_receive(self->world, FERRY_ANY_RANK, 4711, 1e9, &bytes,
                                              &n_bytes, NULL, &self->error);
    so(self, status != FERRY_OK);
    so(self, ferry_world_state(self->world, rank_out, &self->error) == status);
    return status;
}

typedef struct processes {
    char folder[64];
    char path[96];
    pid_t pids[MOST_PROCESSES];
    shared_marks *shared;
} processes;

/* A process of this rank; true in it, which ends by _exit. */
static inline bool fork_rank(processes *all, const rank_process *like, uint32_t rank,
                             rank_process *self_out)
{
    fflush(NULL);
    all->pids[rank] = fork();
    assert_true(all->pids[rank] >= 0);
    if (all->pids[rank] != 0) {
        return false;
    }
    *self_out = *like;
    self_out->rank = rank;
    self_out->shared = all->shared;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return true;
}

/* like: what all have in common. run ends a rank by returning, with its world or without. */
static inline void start_processes(processes *all, const rank_process *like,
                                   void (*run)(rank_process *self))
{
    assert_true(like->n_ranks <= MOST_PROCESSES);
    *all = (processes){.folder = "/tmp/ferry-processes-XXXXXX"};
    assert_non_null(mkdtemp(all->folder));
    snprintf(all->path, sizeof all->path, "%.*s/ranks", (int)sizeof all->folder, all->folder);
    all->shared =
        mmap(NULL, sizeof *all->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(all->shared != MAP_FAILED);
    rank_process self;
    for (uint32_t rank = 0; rank < like->n_ranks; rank++) {
        if (fork_rank(all, like, rank, &self)) {
            so(&self, ferry_world_create_from_file(all->path, rank, like->n_ranks, &self.options,
                                                   &self.world, &self.error) == FERRY_OK);
            run(&self);
            ferry_world_destroy(self.world);
            _exit(0);
        }
    }
}

/* Returns when this rank's process has stopped. */
static inline void await_stop(const processes *all, uint32_t rank)
{
    int status = 0;
    assert_int_equal(waitpid(all->pids[rank], &status, WUNTRACED), all->pids[rank]);
    assert_true(WIFSTOPPED(status));
}

/* killed: the rank that ends by SIGKILL, or FERRY_ANY_RANK. */
static inline void end_processes(const char *row, processes *all, uint32_t n_ranks, uint32_t killed)
{
    uint32_t n_wrong = 0;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        int status = 0;
        assert_int_equal(waitpid(all->pids[rank], &status, 0), all->pids[rank]);
        bool is_right = rank == killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                       : WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!is_right) {
            fprintf(stderr, "%s: rank %u ended with status %d\n", row, rank, status);
        }
        n_wrong += !is_right;
    }
    munmap(all->shared, sizeof *all->shared);
    unlink(all->path);
    check_row(row, rmdir(all->folder) == 0);
    check_row(row, n_wrong == 0);
}

/* An engine that is not here: a failure where it is required. */
static inline void skip_engine(const char *name)
{
    if (is_required(name)) {
        fail_msg("engine %s cannot run here, but MUST_NOT_SKIP has it", name);
    }
    print_message("SKIPPED: engine %s cannot run here\n", name);
    skip();
}

/* Between nodes there is ucx only. */
static inline void need_ucx(void)
{
    char path[512];
    const char *folder = getenv("FERRY_PLUGINS");
    snprintf(path, sizeof path, "%s/libferry_ucx.so", folder == NULL ? "." : folder);
    if (access(path, R_OK) != 0) {
        skip_engine("ucx");
    }
}

static inline rank_process patient_ranks(const char *row, uint32_t n_ranks)
{
    rank_process like = {.row = row, .n_ranks = n_ranks, .options = FERRY_WORLD_OPTIONS_INIT};
    /* No silence counts and nobody is waited for in vain: what ends a wait is something else. */
    like.options.deadline_seconds = 3600;
    like.options.join_seconds = 3600;
    return like;
}

#endif
