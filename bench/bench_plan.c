/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How long planning takes, from the text of a spec to the finished moves of one rank or of all.
 * Each case runs in a process of its own, so that its peak memory is its own; times are medians of
 * several runs.
 *
 *     bench_plan [--json FILE] [--runs N] [--examples FOLDER] [--spec FILE]
 */
#include <ferry/ferry.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RUNS = 101, SPEC_BYTES = 1 << 14 };

typedef struct measure {
    double seconds[MAX_RUNS];
    uint64_t moves;
    uint64_t visited;
    uint64_t peers;
    uint64_t classes;
    long peak_kib;
    bool failed;
} measure;

typedef struct bench_case {
    const char *name;
    const char *path; /* of a spec file; NULL: the dense model below */
    uint32_t n_ranks;
    bool all;     /* all moves, not one rank's */
    bool summary; /* no moves: bytes of all ranks and the bound */
    bool last;    /* plan the last rank of the destination */
} bench_case;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/*
 * A dense model of 80 layers x 6 tensors, from TP8 x DP on the first half of the ranks to TP4 x DP
 * on the second: the bytes per destination rank stay the same at any number of ranks.
 */
static void dense_spec(char *text, uint32_t n_ranks)
{
    uint32_t half = n_ranks / 2;
    snprintf(
        text, SPEC_BYTES,
        "{\"format\":\"ferry.spec/1\",\"tensors\":["
        "{\"name\":\"layers.{0}.qkv.weight\",\"count\":[80],\"shape\":[10240,8192],\"dtype\":"
        "\"bf16\"},"
        "{\"name\":\"layers.{0}.proj.weight\",\"count\":[80],\"shape\":[8192,8192],\"dtype\":"
        "\"bf16\"},"
        "{\"name\":\"layers.{0}.fc1.weight\",\"count\":[80],\"shape\":[57344,8192],\"dtype\":"
        "\"bf16\"},"
        "{\"name\":\"layers.{0}.fc2.weight\",\"count\":[80],\"shape\":[8192,28672],\"dtype\":"
        "\"bf16\"},"
        "{\"name\":\"layers.{0}.norm1.weight\",\"count\":[80],\"shape\":[8192],\"dtype\":\"bf16\"},"
        "{\"name\":\"layers.{0}.norm2.weight\",\"count\":[80],\"shape\":[8192],\"dtype\":\"bf16\"}]"
        ","
        "\"source\":{\"mesh\":[[\"dp\",%u],[\"tp\",8]],\"rules\":["
        "{\"match\":\"*.qkv.*\",\"shard\":[{\"dim\":0,\"axis\":\"tp\"}]},"
        "{\"match\":\"*.fc1.*\",\"shard\":[{\"dim\":0,\"axis\":\"tp\",\"stride\":2}]},"
        "{\"match\":\"*.proj.*\",\"shard\":[{\"dim\":1,\"axis\":\"tp\"}]},"
        "{\"match\":\"*.fc2.*\",\"shard\":[{\"dim\":1,\"axis\":\"tp\"}]},{\"match\":\"*\"}]},"
        "\"destination\":{\"mesh\":[[\"dp\",%u],[\"tp\",4]],\"first_rank\":%u,\"rules\":["
        "{\"match\":\"*.qkv.*\",\"shard\":[{\"dim\":0,\"axis\":\"tp\"}]},"
        "{\"match\":\"*.fc1.*\",\"shard\":[{\"dim\":0,\"axis\":\"tp\",\"stride\":2}]},"
        "{\"match\":\"*.proj.*\",\"shard\":[{\"dim\":1,\"axis\":\"tp\"}]},"
        "{\"match\":\"*.fc2.*\",\"shard\":[{\"dim\":1,\"axis\":\"tp\"}]},{\"match\":\"*\"}]}}",
        half / 8, half / 4, half);
}

static ferry_status take(void *context, const ferry_move *move)
{
    uint64_t *sum = context; /* something to do with every move, so that none is optimised away */
    *sum += move->bytes + move->task_id;
    return FERRY_OK;
}

static bool run_once(const bench_case *c, const char *text, measure *m)
{
    ferry_error error;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    ferry_visit_statistics statistics = FERRY_VISIT_STATISTICS_INIT;
    uint64_t sum = 0;
    ferry_status status = c->path == NULL
                              ? ferry_spec_parse(text, strlen(text), c->name, &spec, &error)
                              : ferry_spec_load(c->path, &spec, &error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, NULL, &plan, &error);
    }
    if (status == FERRY_OK && !c->summary) {
        uint32_t rank = c->last ? ferry_plan_rank_count(plan) - 1 : 0;
        status = ferry_plan_visit(plan, c->all ? FERRY_ALL_RANKS : rank, take, &sum, &statistics,
                                  &error);
    }
    if (status == FERRY_OK) {
        status = ferry_plan_get_totals(plan, &totals, &error);
    }
    if (status != FERRY_OK) {
        fprintf(stderr, "%s: %s\n", c->name, error.message);
    }
    m->moves = totals.n_moves;
    m->visited = statistics.n_moves_visited;
    m->peers = statistics.n_peers;
    m->classes = statistics.n_layout_classes;
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    return status == FERRY_OK;
}

static void run_child(const bench_case *c, int n_runs, measure *m)
{
    static char text[SPEC_BYTES];
    dense_spec(text, c->n_ranks == 0 ? 512 : c->n_ranks);
    m->failed = !run_once(c, text, m); /* a first round, not counted */
    for (int i = 0; i < n_runs && !m->failed; i++) {
        double begin = now();
        m->failed = !run_once(c, text, m);
        m->seconds[i] = now() - begin;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    m->peak_kib = usage.ru_maxrss;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool run_case(const bench_case *c, int n_runs, measure *m)
{
    pid_t child = fork();
    if (child == 0) {
        run_child(c, n_runs, m);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0 || m->failed) {
        return false;
    }
    qsort(m->seconds, (size_t)n_runs, sizeof m->seconds[0], compare_doubles);
    return true;
}

static void print_json(FILE *json, const bench_case *c, const measure *m, int n_runs, bool first)
{
    fprintf(
        json,
        "%s\n  {\"case\": \"%s\", \"runs\": %d, \"median_s\": %.6g, \"min_s\": %.6g, \"max_s\": "
        "%.6g, \"peak_kib\": %ld, \"plan_moves\": %llu, \"moves_visited\": %llu, \"peers\": %llu, "
        "\"layout_classes\": %llu}",
        first ? "" : ",", c->name, n_runs, m->seconds[n_runs / 2], m->seconds[0],
        m->seconds[n_runs - 1], m->peak_kib, (unsigned long long)m->moves,
        (unsigned long long)m->visited, (unsigned long long)m->peers,
        (unsigned long long)m->classes);
}

static const bench_case cases[] = {
    {.name = "dense 256 -> 256, own plan of one rank", .n_ranks = 512, .last = true},
    {.name = "dense 256 -> 256, all moves of all ranks", .n_ranks = 512, .all = true},
    {.name = "dense, one rank of 64", .n_ranks = 64, .last = true},
    {.name = "dense, one rank of 256", .n_ranks = 256, .last = true},
    {.name = "dense, one rank of 1024", .n_ranks = 1024, .last = true},
    {.name = "dense, one rank of 4096", .n_ranks = 4096, .last = true},
    {.name = "dense, one rank of 16384", .n_ranks = 16384, .last = true},
    {.name = "dense, one sender of 64", .n_ranks = 64},
    {.name = "dense, one sender of 1024", .n_ranks = 1024},
    {.name = "dense, one sender of 16384", .n_ranks = 16384},
    {.name = "kimi-k2 16384, own plan of the first rank", .path = "kimi-k2-16384.json"},
    {.name = "kimi-k2 16384, own plan of the last rank",
     .path = "kimi-k2-16384.json",
     .last = true},
    {.name = "kimi-k2 16384, summary of all ranks", .path = "kimi-k2-16384.json", .summary = true},
    {.name = "kimi-k2 16384 -> 16384 disjoint, summary",
     .path = "kimi-k2-16384-disjoint.json",
     .summary = true},
};

/* Of a file that the caller names, so that another planner can be given the very same layouts. */
static const bench_case spec_cases[] = {
    {.name = "spec, own plan of the last rank", .last = true},
    {.name = "spec, all moves of all ranks", .all = true},
};

int main(int argc, char **argv)
{
    const char *json_path = NULL, *examples = "examples", *spec = NULL;
    int n_runs = 11;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--json") == 0) {
            json_path = argv[i + 1];
        } else if (strcmp(argv[i], "--examples") == 0) {
            examples = argv[i + 1];
        } else if (strcmp(argv[i], "--spec") == 0) {
            spec = argv[i + 1];
        } else if (strcmp(argv[i], "--runs") == 0) {
            n_runs = atoi(argv[i + 1]);
        }
    }
    n_runs = n_runs < 1 ? 1 : n_runs > MAX_RUNS ? MAX_RUNS : n_runs;
    FILE *json = json_path == NULL ? NULL : fopen(json_path, "w");
    if (json_path != NULL && json == NULL) {
        perror(json_path);
        return 1;
    }
    measure *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    int status = 0;
    printf("%-46s %10s %10s %10s %9s %10s %8s\n", "case", "median ms", "min ms", "max ms",
           "peak MiB", "visited", "peers");
    const bench_case *list = spec == NULL ? cases : spec_cases;
    size_t n_list =
        spec == NULL ? sizeof cases / sizeof cases[0] : sizeof spec_cases / sizeof spec_cases[0];
    for (size_t i = 0; i < n_list; i++) {
        bench_case c = list[i];
        char path[1024];
        if (spec != NULL) {
            c.path = spec;
        } else if (c.path != NULL) {
            snprintf(path, sizeof path, "%s/%s", examples, c.path);
            c.path = path;
        }
        *m = (measure){0};
        if (!run_case(&c, n_runs, m)) {
            status = 1;
            continue;
        }
        printf("%-46s %10.3f %10.3f %10.3f %9.1f %10llu %8llu\n", c.name,
               m->seconds[n_runs / 2] * 1e3, m->seconds[0] * 1e3, m->seconds[n_runs - 1] * 1e3,
               (double)m->peak_kib / 1024, (unsigned long long)m->visited,
               (unsigned long long)m->peers);
        fflush(stdout);
        if (json != NULL) {
            fprintf(json, "%s", i == 0 ? "[" : "");
            print_json(json, &c, m, n_runs, i == 0);
        }
    }
    if (json != NULL) {
        fprintf(json, "\n]\n");
        fclose(json);
    }
    return status;
}
