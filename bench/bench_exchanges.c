/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What it takes to make a service ready: what ranks exchange in ferry_service_init and in
 * ferry_service_schedule, and the seconds of it, and of binding a plan or registering tasks.
 *
 *     bench_exchanges [--ranks N] [--tensors N] [--rounds N] [--nodes N] [--engines TEXT]
 *                     [--threads] [--plan]
 *
 * Ranks are processes, or with --threads threads. Without --plan each tensor is one task between
 * two ranks; with it all are cut among half of the ranks and bound to all of them. The steps at
 * which all ranks wait for all and the letters are counted below the library, in the world's table.
 */
#include "world/world.h"

#include <ferry/ferry.h>
#include <ferry/plan.h>
#include <ferry/service.h>
#include <ferry/spec.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 64, MOST_ROUNDS = 99, TENSOR_BYTES = 2048 };

/* What one rank counts of a call. */
typedef struct counts {
    uint64_t steps;   /* at which all wait for all */
    uint64_t letters; /* that this rank sends to others */
    uint64_t bytes;   /* that this rank gives, to steps and letters */
    double seconds;
} counts;

typedef struct settings {
    uint32_t n_ranks, n_tensors, n_rounds, n_nodes;
    bool threads, plan;
    const char *engines;
    char file[64];
} settings;

/* Shared by all ranks, also by processes. */
typedef struct results {
    counts init[MOST_RANKS], fill[MOST_RANKS], schedule[MOST_RANKS];
    uint64_t stated[MOST_RANKS]; /* what the service itself says */
} results;

typedef struct rank_state {
    const settings *s;
    results *results;
    uint32_t rank;
    ferry_world *world;
    ferry_error error;
} rank_state;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(rank_state *me, ferry_status status)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "rank %u: %s\n", me->rank, me->error.message);
        exit(1);
    }
}

/*
 * The world's table, with counters before it
 */

static const fy_world_ops *real_ops;
static _Thread_local counts own;

static ferry_status count_barrier(ferry_world *world, ferry_error *error)
{
    own.steps++;
    return real_ops->barrier(world, error);
}

static ferry_status count_gather(ferry_world *world, fy_collective kind, uint32_t root,
                                 const void *bytes, size_t n_bytes, const void **all_out,
                                 const size_t **lengths_out, ferry_error *error)
{
    own.steps++;
    own.bytes += n_bytes;
    return real_ops->gather(world, kind, root, bytes, n_bytes, all_out, lengths_out, error);
}

static ferry_status count_send(ferry_world *world, uint32_t to, uint64_t tag, const void *bytes,
                               size_t n_bytes, bool waits, ferry_error *error)
{
    own.letters++;
    own.bytes += n_bytes;
    return real_ops->send(world, to, tag, bytes, n_bytes, waits, error);
}

static void count_from_here(ferry_world *world, fy_world_ops *ops)
{
    *ops = *world->ops;
    real_ops = world->ops; /* the same for all threads */
    ops->barrier = count_barrier;
    ops->gather = count_gather;
    ops->send = count_send;
    world->ops = ops;
}

/*
 * What is scheduled
 */

static void register_tasks(rank_state *me, ferry_service *service, char *source, char *target)
{
    uint32_t n = me->s->n_ranks;
    double begin = now();
    for (uint32_t i = 0; i < me->s->n_tensors; i++) {
        uint32_t from = i % n;
        uint32_t to = n == 1 ? 0 : (from + 1 + i / n % (n - 1)) % n;
        ferry_buffer buffer;
        if (from == me->rank) {
            buffer = ferry_buffer_of(source + (size_t)i * TENSOR_BYTES, TENSOR_BYTES);
            must(me,
                 ferry_service_register_send(service, i, &buffer, 0, TENSOR_BYTES, to, &me->error));
        }
        if (to == me->rank) {
            buffer = ferry_buffer_of(target + (size_t)i * TENSOR_BYTES, TENSOR_BYTES);
            must(me, ferry_service_register_receive(service, i, &buffer, 0, TENSOR_BYTES, from,
                                                    &me->error));
        }
    }
    own.seconds = now() - begin;
}

static void bind_plan(rank_state *me, ferry_service *service, char *source, char *target)
{
    uint32_t n = me->s->n_ranks;
    uint64_t rows = 2 * (uint64_t)n;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_tensors *sides[2];
    char text[1024];
    int length = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"m{0}\", \"count\": [%u],"
        " \"shape\": [%llu, 32], \"dtype\": \"bf16\"}],"
        "\"source\": {\"mesh\": [[\"dp\", 2], [\"tp\", %u]], \"rules\": [{\"match\": \"*\","
        " \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]},"
        "\"destination\": {\"mesh\": [[\"tp\", %u]], \"rules\": [{\"match\": \"*\","
        " \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}}",
        me->s->n_tensors, (unsigned long long)rows, n / 2, n);
    must(me, ferry_spec_parse(text, (size_t)length, "bench", &spec, &me->error));
    must(me, ferry_plan_create(spec, NULL, &plan, &me->error));
    must(me, ferry_tensors_create(&sides[0], &me->error));
    must(me, ferry_tensors_create(&sides[1], &me->error));
    for (uint32_t i = 0; i < me->s->n_tensors; i++) {
        char name[16];
        ferry_buffer from = ferry_buffer_of(source + (size_t)i * 256, 256);
        ferry_buffer to = ferry_buffer_of(target + (size_t)i * 128, 128);
        snprintf(name, sizeof name, "m%u", i);
        must(me, ferry_tensors_add(sides[0], name, &from, &me->error));
        must(me, ferry_tensors_add(sides[1], name, &to, &me->error));
    }
    double begin = now();
    must(me, ferry_service_bind(service, plan, sides[0], sides[1], &me->error));
    own.seconds = now() - begin;
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    ferry_tensors_destroy(sides[0]);
    ferry_tensors_destroy(sides[1]);
}

/*
 * A round
 */

static void *run_rank(void *context)
{
    rank_state *me = context;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_service *service = NULL;
    fy_world_ops ops;
    const fy_world_ops *kept = me->world->ops;
    size_t bytes = (size_t)me->s->n_tensors * TENSOR_BYTES;
    char *source = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *target = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    options.engines = me->s->engines;
    must(me, ferry_service_create(me->world, &options, &service, &me->error));
    must(me, ferry_world_barrier(me->world, &me->error));
    count_from_here(me->world, &ops);

    own = (counts){0};
    double begin = now();
    must(me, ferry_service_init(service, FERRY_LOG_OFF, &me->error));
    own.seconds = now() - begin;
    me->results->init[me->rank] = own;

    own = (counts){0};
    (me->s->plan ? bind_plan : register_tasks)(me, service, source, target);
    me->results->fill[me->rank] = own;
    must(me, ferry_world_barrier(me->world, &me->error));
    own = (counts){0};
    begin = now();
    must(me, ferry_service_schedule(service, &me->error));
    own.seconds = now() - begin;
    me->results->schedule[me->rank] = own;
#ifdef FERRY_BENCH_COUNTS /* a library that counts them itself */
    ferry_service_statistics statistics = FERRY_SERVICE_STATISTICS_INIT;
    must(me, ferry_service_get_statistics(service, &statistics, &me->error));
    me->results->stated[me->rank] = statistics.n_exchanges;
#endif
    must(me, ferry_world_barrier(me->world, &me->error));
    me->world->ops = kept;
    ferry_service_destroy(service);
    ferry_world_destroy(me->world);
    munmap(source, bytes);
    munmap(target, bytes);
    return NULL;
}

static ferry_world_options options_of(const settings *s, char text[32])
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    if (s->n_nodes > 1) {
        snprintf(text, 32, "%u", s->n_nodes);
        options.nodes = text;
    }
    return options;
}

static void run_threads(const settings *s, results *all)
{
    ferry_world *worlds[MOST_RANKS];
    rank_state ranks[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    char nodes[32];
    ferry_world_options options = options_of(s, nodes);
    ranks[0].rank = 0;
    must(&ranks[0], ferry_world_create_threads(s->n_ranks, &options, worlds, &ranks[0].error));
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        ranks[r] = (rank_state){.s = s, .results = all, .rank = r, .world = worlds[r]};
        pthread_create(&threads[r], NULL, run_rank, &ranks[r]);
    }
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        pthread_join(threads[r], NULL);
    }
}

static void run_processes(settings *s, results *all)
{
    pid_t children[MOST_RANKS];
    snprintf(s->file, sizeof s->file, "/tmp/bench_exchanges.%d", (int)getpid());
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        children[r] = fork();
        if (children[r] == 0) {
            rank_state me = {.s = s, .results = all, .rank = r};
            char nodes[32];
            ferry_world_options options = options_of(s, nodes);
            must(&me, ferry_world_create_from_file(s->file, r, s->n_ranks, &options, &me.world,
                                                   &me.error));
            run_rank(&me);
            _exit(0);
        }
    }
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        int how = 0;
        if (waitpid(children[r], &how, 0) < 0 || how != 0) {
            fprintf(stderr, "bench_exchanges: rank %u has failed\n", r);
            exit(1);
        }
    }
}

static counts most_of(const counts *all, uint32_t n)
{
    counts most = {0};
    for (uint32_t r = 0; r < n; r++) {
        most.steps = all[r].steps > most.steps ? all[r].steps : most.steps;
        most.letters = all[r].letters > most.letters ? all[r].letters : most.letters;
        most.bytes = all[r].bytes > most.bytes ? all[r].bytes : most.bytes;
        most.seconds = all[r].seconds > most.seconds ? all[r].seconds : most.seconds;
    }
    return most;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Counts are those of the last round: they are the same in all. Seconds are the slowest rank's. */
static void print_line(const char *call, const counts *most, double *seconds, uint32_t n)
{
    qsort(seconds, n, sizeof *seconds, compare_doubles);
    printf("%-9s %4llu steps %5llu letters %9llu bytes of the busiest rank;  %.4f s (median of %u, "
           "least %.4f)\n",
           call, (unsigned long long)most->steps, (unsigned long long)most->letters,
           (unsigned long long)most->bytes, seconds[n / 2], n, seconds[0]);
}

static bool read_arguments(int argc, char **argv, settings *s)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        uint32_t number = (uint32_t)strtoul(value, NULL, 10);
        if (strcmp(argv[i], "--threads") == 0) {
            s->threads = true;
            continue;
        }
        if (strcmp(argv[i], "--plan") == 0) {
            s->plan = true;
            continue;
        }
        if (strcmp(argv[i], "--ranks") == 0) {
            s->n_ranks = number;
        } else if (strcmp(argv[i], "--tensors") == 0) {
            s->n_tensors = number;
        } else if (strcmp(argv[i], "--rounds") == 0) {
            s->n_rounds = number;
        } else if (strcmp(argv[i], "--nodes") == 0) {
            s->n_nodes = number;
        } else if (strcmp(argv[i], "--engines") == 0) {
            s->engines = value;
        } else {
            return false;
        }
        i++;
    }
    return s->n_ranks > 0 && s->n_ranks <= MOST_RANKS && s->n_tensors > 0 && s->n_rounds > 0 &&
           s->n_rounds <= MOST_ROUNDS && (!s->plan || s->n_ranks % 2 == 0);
}

int main(int argc, char **argv)
{
    settings s = {.n_ranks = 2, .n_tensors = 1, .n_rounds = 5};
    double init_seconds[MOST_ROUNDS], fill_seconds[MOST_ROUNDS], schedule_seconds[MOST_ROUNDS];
    if (!read_arguments(argc, argv, &s)) {
        fprintf(stderr, "bench_exchanges [--ranks N] [--tensors N] [--rounds N] [--nodes N] "
                        "[--engines TEXT] [--threads] [--plan]\n");
        return 2;
    }
    results *all =
        mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uint32_t round = 0; round < s.n_rounds; round++) {
        memset(all, 0, sizeof *all);
        if (s.threads) {
            run_threads(&s, all);
        } else {
            run_processes(&s, all);
        }
        init_seconds[round] = most_of(all->init, s.n_ranks).seconds;
        fill_seconds[round] = most_of(all->fill, s.n_ranks).seconds;
        schedule_seconds[round] = most_of(all->schedule, s.n_ranks).seconds;
    }
    counts init = most_of(all->init, s.n_ranks);
    counts fill = most_of(all->fill, s.n_ranks);
    counts schedule = most_of(all->schedule, s.n_ranks);
    printf("%u ranks as %s, %u tensors%s\n", s.n_ranks, s.threads ? "threads" : "processes",
           s.n_tensors, s.plan ? " of a plan" : "");
    print_line("init", &init, init_seconds, s.n_rounds);
    print_line(s.plan ? "bind" : "register", &fill, fill_seconds, s.n_rounds);
    print_line("schedule", &schedule, schedule_seconds, s.n_rounds);
    if (all->stated[0] > 0) {
        printf("the service counts %llu exchanges\n", (unsigned long long)all->stated[0]);
    }
    return 0;
}
