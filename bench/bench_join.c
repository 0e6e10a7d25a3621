/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank that joins costs the others, beside its bytes: from their call to grow on until the
 * newcomer has their version, and so many versions may follow. Rank 0 has tensors, all others and
 * the newcomer want all of them; they are so small that their bytes take no time. The newcomer is
 * at the door already, as one that was started again is.
 *
 *     bench_join [--members N] [--tensors N] [--versions N] [--rounds N] [--json FILE]
 *
 * Without numbers it goes along each of these axes. Times are the slowest member's.
 */
#include <ferry/ferry.h>
#include <ferry/plan.h>
#include <ferry/service.h>
#include <ferry/spec.h>
#include <ferry/world.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_MEMBERS = 32, MOST_ROUNDS = 99, TENSOR_BYTES = 64, RUNS = 9 };
#define AT_DOOR_MS 200 /* what a newcomer has to come to the door, before members call it in */

typedef struct bench_case {
    uint32_t n_members, n_tensors, n_versions;
} bench_case;

/* The other two numbers of each axis are those of the first case. */
static const bench_case cases[] = {{2, 64, 2},  {4, 64, 2},   {8, 64, 2},
                                   {16, 64, 2}, {4, 1024, 2}, {4, 64, 16}};

/* Seconds of one member. */
typedef struct parts {
    double grow;    /* the call alone */
    double service; /* a plan and a service of the larger world, until it is scheduled */
    double run;     /* the run for the newcomer */
    double usual;   /* a run as any other, there */
} parts;

typedef struct actor {
    const bench_case *c;
    ferry_world *world;
    ferry_service *service;
    ferry_tensors *sources, *targets;
    ferry_error error;
} actor;

static parts *shared; /* by member */
static char start_path[64], meeting[80];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(actor *a, ferry_status status)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_join: %s\n", a->error.message);
        _exit(1);
    }
}

/* Once: a rank keeps its tensors. */
static void list_tensors(actor *a)
{
    must(a, ferry_tensors_create(&a->sources, &a->error));
    must(a, ferry_tensors_create(&a->targets, &a->error));
    char *memory = calloc(a->c->n_tensors, TENSOR_BYTES);
    for (uint32_t i = 0; i < a->c->n_tensors; i++) {
        char name[16];
        ferry_buffer buffer = ferry_buffer_of(memory + (size_t)i * TENSOR_BYTES, TENSOR_BYTES);
        snprintf(name, sizeof name, "t%u", i);
        bool has_it = ferry_world_rank(a->world) == 0;
        must(a, ferry_tensors_add(has_it ? a->sources : a->targets, name, &buffer, &a->error));
    }
}

static void bind(actor *a)
{
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    char text[600];
    int length = snprintf(text, sizeof text,
                          "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"t{0}\", "
                          "\"count\": [%u], \"shape\": [%d], \"dtype\": \"u8\"}],"
                          "\"source\": {\"mesh\": [[\"dp\", 1]], \"rules\": [{\"match\": \"*\"}]},"
                          "\"destination\": {\"mesh\": [[\"dp\", %u]], \"first_rank\": 1,"
                          " \"rules\": [{\"match\": \"*\"}]}}",
                          a->c->n_tensors, (int)TENSOR_BYTES, ferry_world_rank_count(a->world) - 1);
    must(a, ferry_spec_parse(text, (size_t)length, "bench", &spec, &a->error));
    must(a, ferry_plan_create(spec, NULL, &plan, &a->error));
    must(a, ferry_service_bind(a->service, plan, a->sources, a->targets, &a->error));
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

/* A service that can run; the ledger is NULL at the start, and a newcomer's. */
static void open_service(actor *a, ferry_ledger *ledger)
{
    must(a, ferry_service_create(a->world, NULL, &a->service, &a->error));
    must(a, ferry_service_init(a->service, FERRY_LOG_OFF, &a->error));
    bind(a);
    if (ledger != NULL) {
        must(a, ferry_service_resume(a->service, ledger, &a->error));
    }
    must(a, ferry_service_schedule(a->service, &a->error));
}

static double run(actor *a)
{
    double begin = now();
    must(a, ferry_service_run(a->service, NULL, &a->error));
    return now() - begin;
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double usual_run(actor *a)
{
    double seconds[RUNS];
    for (int i = 0; i < RUNS; i++) {
        seconds[i] = run(a);
    }
    qsort(seconds, RUNS, sizeof *seconds, compare);
    return seconds[RUNS / 2];
}

static void be_member(actor *a, uint32_t rank)
{
    parts *mine = &shared[rank];
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    ferry_world *larger = NULL;
    ferry_ledger *ledger = NULL;
    options.path = meeting;
    must(a, ferry_world_create_from_file(start_path, rank, a->c->n_members, NULL, &a->world,
                                         &a->error));
    list_tensors(a);
    open_service(a, NULL);
    for (uint32_t i = 0; i < a->c->n_versions; i++) {
        (void)run(a);
    }
    nanosleep(&(struct timespec){.tv_nsec = AT_DOOR_MS * 1000000L}, NULL);
    must(a, ferry_world_barrier(a->world, &a->error));
    double begin = now();
    must(a, ferry_world_grow(a->world, &options, &larger, &a->error));
    double grown = now();
    must(a, ferry_service_take_ledger(a->service, &ledger, &a->error));
    ferry_service *old = a->service;
    ferry_world *smaller = a->world;
    a->world = larger;
    open_service(a, ledger);
    double ready = now();
    mine->run = run(a);
    mine->grow = grown - begin;
    mine->service = ready - grown;
    mine->usual = usual_run(a);
    ferry_service_destroy(old);
    ferry_world_destroy(smaller);
}

static void be_newcomer(actor *a)
{
    must(a, ferry_world_join(meeting, NULL, &a->world, &a->error));
    list_tensors(a);
    open_service(a, NULL);
    (void)run(a);
    (void)usual_run(a);
}

static pid_t start(const bench_case *c, uint32_t rank)
{
    pid_t pid = fork();
    if (pid == 0) {
        actor a = {.c = c};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (rank < c->n_members) {
            be_member(&a, rank);
        } else {
            be_newcomer(&a);
        }
        ferry_service_destroy(a.service);
        ferry_world_destroy(a.world);
        _exit(0);
    }
    return pid;
}

/* One join; the slowest member's parts, each by itself, and of their sum. */
static bool run_round(const bench_case *c, parts *most, double *all)
{
    pid_t pids[MOST_MEMBERS + 1];
    bool is_well = true;
    fflush(NULL);
    for (uint32_t r = 0; r <= c->n_members; r++) {
        pids[r] = start(c, r);
    }
    for (uint32_t r = 0; r <= c->n_members; r++) {
        int how = 0;
        is_well = waitpid(pids[r], &how, 0) == pids[r] && how == 0 && is_well;
    }
    *most = (parts){0};
    *all = 0;
    for (uint32_t r = 0; r < c->n_members; r++) {
        const parts *its = &shared[r];
        double sum = its->grow + its->service + its->run;
        most->grow = its->grow > most->grow ? its->grow : most->grow;
        most->service = its->service > most->service ? its->service : most->service;
        most->run = its->run > most->run ? its->run : most->run;
        most->usual = its->usual > most->usual ? its->usual : most->usual;
        *all = sum > *all ? sum : *all;
    }
    return is_well;
}

static double middle(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[n / 2];
}

static bool run_case(const bench_case *c, int n_rounds, FILE *json, bool is_first)
{
    double grow[MOST_ROUNDS], service[MOST_ROUNDS], brings[MOST_ROUNDS], usual[MOST_ROUNDS];
    double all[MOST_ROUNDS];
    for (int i = 0; i < n_rounds; i++) {
        parts most;
        if (!run_round(c, &most, &all[i])) {
            return false;
        }
        grow[i] = most.grow, service[i] = most.service;
        brings[i] = most.run, usual[i] = most.usual;
    }
    double grow_s = middle(grow, n_rounds), service_s = middle(service, n_rounds);
    double run_s = middle(brings, n_rounds), usual_s = middle(usual, n_rounds);
    double all_s = middle(all, n_rounds);
    printf("%7u %8u %8u %10.1f %10.1f %10.1f %10.1f %10.1f %10.2f\n", c->n_members, c->n_tensors,
           c->n_versions, all_s * 1e3, all[n_rounds - 1] * 1e3, grow_s * 1e3, service_s * 1e3,
           run_s * 1e3, usual_s * 1e3);
    fflush(stdout);
    if (json != NULL) {
        fprintf(json, "%s{\"members\": %u, \"tensors\": %u, \"versions\": %u, \"all_s\": [",
                is_first ? "" : ",\n", c->n_members, c->n_tensors, c->n_versions);
        for (int i = 0; i < n_rounds; i++) {
            fprintf(json, "%s%.6f", i == 0 ? "" : ", ", all[i]);
        }
        fprintf(json,
                "], \"grow_s\": %.6f, \"service_s\": %.6f, \"run_s\": %.6f, \"usual_run_s\": %.6f}",
                grow_s, service_s, run_s, usual_s);
    }
    return true;
}

typedef struct options {
    bench_case asked;
    bool has_asked;
    uint32_t n_rounds;
    FILE *json;
} options;

/* A whole number, and nothing behind it. */
static bool read_number(const char *text, uint32_t *number_out)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    *number_out = (uint32_t)number;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && number <= UINT32_MAX;
}

/* False if it is not understood, or, with a sentence, if the file cannot be written. */
static bool read_option(options *o, const char *name, const char *value)
{
    uint32_t *place = strcmp(name, "--members") == 0    ? &o->asked.n_members
                      : strcmp(name, "--tensors") == 0  ? &o->asked.n_tensors
                      : strcmp(name, "--versions") == 0 ? &o->asked.n_versions
                                                        : NULL;
    if (place != NULL) {
        o->has_asked = true;
        return read_number(value, place);
    }
    if (strcmp(name, "--rounds") == 0) {
        return read_number(value, &o->n_rounds);
    }
    if (strcmp(name, "--json") == 0 && o->json == NULL) {
        o->json = fopen(value, "w");
        if (o->json == NULL) {
            perror(value);
        }
        return o->json != NULL;
    }
    return false;
}

static bool read_options(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (!read_option(o, argv[i], i + 1 < argc ? argv[i + 1] : "")) {
            return false;
        }
    }
    return o->asked.n_members >= 2 && o->asked.n_members <= MOST_MEMBERS &&
           o->asked.n_tensors > 0 && o->n_rounds >= 1 && o->n_rounds <= MOST_ROUNDS;
}

static bool run_cases(const options *o)
{
    size_t n_cases = o->has_asked ? 1 : sizeof cases / sizeof *cases;
    printf("%7s %8s %8s %10s %10s %10s %10s %10s %10s\n", "members", "tensors", "versions",
           "all ms", "most ms", "grow ms", "service ms", "run ms", "usual run");
    for (size_t i = 0; i < n_cases; i++) {
        const bench_case *c = o->has_asked ? &o->asked : &cases[i];
        if (!run_case(c, (int)o->n_rounds, o->json, i == 0)) {
            fprintf(stderr, "bench_join: a rank failed, of %u members\n", c->n_members);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    options o = {.asked = cases[1], .n_rounds = 5};
    if (!read_options(&o, argc, argv)) {
        fprintf(stderr,
                "usage: bench_join [--members 2..%d] [--tensors N, 1 at least] [--versions N] "
                "[--rounds 1..%d] [--json FILE]\n",
                (int)MOST_MEMBERS, (int)MOST_ROUNDS);
        return 2;
    }
    shared = mmap(NULL, MOST_MEMBERS * sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("bench_join");
        return 1;
    }
    snprintf(start_path, sizeof start_path, "/tmp/bench_join.%d", (int)getpid());
    snprintf(meeting, sizeof meeting, "%s.meet", start_path);
    if (o.json != NULL) {
        fprintf(o.json, "[");
    }
    bool is_well = run_cases(&o);
    /* Whole also where a round failed: what was measured before it can be read. */
    if (o.json != NULL && (fprintf(o.json, "]\n") < 0 || fclose(o.json) != 0)) {
        perror("bench_join: --json");
        is_well = false;
    }
    return is_well ? 0 : 1;
}
