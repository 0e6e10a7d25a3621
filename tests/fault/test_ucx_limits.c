/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A rank that may have few descriptors, or little address space: UCX is refused with a sentence
 * before it can end the process. */
#include "processes.h"

#include <ferry/ferry.h>

#include <fcntl.h>
#include <sys/resource.h>

typedef struct few {
    __rlimit_resource_t resource;
    rlim_t more; /* than what is in use */
    const char *says;
} few;

enum { UNSUPPORTED };

static rlim_t in_use(rank_process *self, __rlimit_resource_t resource)
{
    if (resource == RLIMIT_NOFILE) {
        int next = open("/dev/null", O_RDONLY);
        so(self, next >= 0);
        close(next);
        return (rlim_t)next;
    }
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    so(self, file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return (rlim_t)pages * 4096;
}

static void run(rank_process *self)
{
    const few *limited = self->context;
    ferry_transport *transport = NULL;
    ferry_status status = ferry_transport_open(self->world, "ucx", &transport, &self->error);
    if (status != FERRY_OK) {
        add_mark(self->shared, UNSUPPORTED);
        return;
    }
    ferry_transport_close(transport); /* the plugin is loaded now */
    if (self->rank == 1) {
        rlim_t most = in_use(self, limited->resource) + limited->more;
        struct rlimit limit = {most, most};
        so(self, setrlimit(limited->resource, &limit) == 0);
    }
    status = ferry_transport_open(self->world, "ucx", &transport, &self->error);
    so(self, status != FERRY_OK);
    if (self->rank == 1) {
        so(self, strstr(self->error.message, limited->says) != NULL);
    }
    ferry_world_abort(self->world, "that was all");
}

static void test_limits(void **state)
{
    (void)state;
    static const few rows[] = {
        {RLIMIT_NOFILE, 6, "RLIMIT_NOFILE"},
        {RLIMIT_NOFILE, 16, "RLIMIT_NOFILE"},
        {RLIMIT_AS, 16 << 20, "RLIMIT_AS"},
        {RLIMIT_AS, 24 << 20, "RLIMIT_AS"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        rank_process like = patient_ranks(rows[i].says, 2);
        processes all;
        like.context = &rows[i];
        like.options.nodes = "2";
        start_processes(&all, &like, run);
        for (uint32_t rank = 0; rank < 2; rank++) {
            siginfo_t info;
            assert_int_equal(waitid(P_PID, (id_t)all.pids[rank], &info, WEXITED | WNOWAIT), 0);
        }
        bool is_there = atomic_load(&all.shared->mark[UNSUPPORTED]) == 0;
        end_processes(rows[i].says, &all, 2, FERRY_ANY_RANK);
        if (!is_there) {
            skip_engine("ucx");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
