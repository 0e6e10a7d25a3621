/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans whose sides are in boxes: the same layouts as meshes and as boxes, and an expert model of
 * which ranks have traced every weight. Times are medians of runs in processes of their own.
 *
 *     bench_sides [--runs N] [--only CASE] [--json FILE]
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

enum { MOST_RUNS = 101, LAYERS = 61, EXPERTS = 256, WIDTH = 2048, HIDDEN = 7168 };

static ferry_error error;

static void must(ferry_status status)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_sides: %s\n", error.message);
        exit(1);
    }
}

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct measure {
    double seconds[MOST_RUNS]; /* of the plan and of one rank's visit; for traces, of those too */
    double cpu[MOST_RUNS]; /* the same in processor time, which other programs do not lengthen */
    long peak_kib;
    uint64_t n_moves, n_visited, n_boxes;
} measure;

static ferry_status count_move(void *context, const ferry_move *move)
{
    (void)move;
    ++*(uint64_t *)context;
    return FERRY_OK;
}

static void plan_and_visit(const ferry_spec *spec, uint32_t rank, measure *m)
{
    ferry_plan *plan = NULL;
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    must(ferry_plan_create(spec, NULL, &plan, &error));
    m->n_visited = 0;
    must(ferry_plan_visit(plan, rank, count_move, &m->n_visited, NULL, &error));
    must(ferry_plan_get_totals(plan, &totals, &error));
    m->n_moves = totals.n_moves;
    ferry_plan_destroy(plan);
}

/* ---- a mesh, and the same as boxes ----------------------------------------------------------- */

typedef struct tracing {
    ferry_side *side;
    uint32_t rank;
    uint64_t n_boxes;
} tracing;

/* Every dimension of a shard is one piece here. */
static ferry_status trace_shard(void *context, const ferry_shard *shard)
{
    tracing *t = context;
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    uint64_t stride = 1, local;
    size_t parameter;
    box.tensor = shard->tensor;
    box.n_dims = shard->n_dims;
    for (uint32_t d = shard->n_dims; d-- > 0;) {
        must(ferry_shard_piece_at(shard, d, 0, &local, &box.begin[d], &box.shape[d], &error));
        box.strides[d] = stride;
        stride *= shard->local[d];
    }
    must(ferry_side_add_parameter(t->side, &t->rank, 1, shard->tensor, &shard->dtype, stride, 0,
                                  &parameter, &error));
    must(ferry_side_add_box(t->side, parameter, &box, &error));
    t->n_boxes++;
    return FERRY_OK;
}

static ferry_side *trace(const ferry_plan *plan, ferry_side_role role, uint64_t *n_boxes)
{
    tracing t = {.n_boxes = 0};
    must(ferry_side_create(&t.side, &error));
    for (t.rank = 0; t.rank < ferry_plan_rank_count(plan); t.rank++) {
        must(ferry_plan_visit_shards(plan, role, t.rank, trace_shard, &t, &error));
    }
    *n_boxes += t.n_boxes;
    return t.side;
}

static void run_dense(bool as_boxes, int n_runs, measure *m)
{
    ferry_spec *mesh = NULL, *spec = NULL;
    must(ferry_spec_load(FERRY_BENCH_EXAMPLES "/llama-3-70b.json", &mesh, &error));
    if (as_boxes) {
        ferry_plan *plan = NULL;
        must(ferry_plan_create(mesh, NULL, &plan, &error));
        ferry_side *source = trace(plan, FERRY_SIDE_SOURCE, &m->n_boxes);
        ferry_side *destination = trace(plan, FERRY_SIDE_DESTINATION, &m->n_boxes);
        must(ferry_spec_create(mesh, source, destination, &spec, &error));
        ferry_side_destroy(source);
        ferry_side_destroy(destination);
        ferry_plan_destroy(plan);
    }
    for (int i = 0; i < n_runs; i++) {
        double begin = read_clock(CLOCK_MONOTONIC), cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID);
        plan_and_visit(as_boxes ? spec : mesh, 0, m);
        m->seconds[i] = read_clock(CLOCK_MONOTONIC) - begin;
        m->cpu[i] = read_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    }
    ferry_spec_destroy(mesh);
    ferry_spec_destroy(spec);
}

/* ---- an expert model, traced ----------------------------------------------------------------- */

/* Of 64 trainers each has four experts of every layer, gate, up and down of each. */
static char *make_base(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (file == NULL) {
        exit(1);
    }
    fprintf(file, "{\"format\":\"ferry.spec/1\",\"tensors\":[");
    static const char *const names[] = {"gate", "up", "down"};
    for (int i = 0; i < 3; i++) {
        fprintf(file,
                "%s{\"name\":\"layers.{0}.experts.{1}.%s\",\"count\":[%d,%d],"
                "\"shape\":[%d,%d],\"dtype\":\"bf16\"}",
                i == 0 ? "" : ",", names[i], LAYERS, EXPERTS, i == 2 ? HIDDEN : WIDTH,
                i == 2 ? WIDTH : HIDDEN);
    }
    fprintf(file,
            "],\"source\":{\"mesh\":[[\"ep\",64]],\"stages\":[{\"match\":"
            "\"*.experts.{}.*\",\"count\":%d,\"axis\":\"ep\"}],\"rules\":[{\"match\":\"*\"}]},"
            "\"destination\":{\"mesh\":[],\"rules\":[{\"match\":\"*\"}]}}",
            EXPERTS);
    fclose(file);
    return text;
}

static void add_expert(ferry_side *side, size_t parameter, int layer, int expert, int which,
                       uint64_t offset, uint64_t share, uint64_t part)
{
    static const char *const names[] = {"gate", "up", "down"};
    char name[64];
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    snprintf(name, sizeof name, "layers.%d.experts.%d.%s", layer, expert, names[which]);
    box.tensor = name;
    box.n_dims = 2;
    box.shape[0] = which == 2 ? HIDDEN : share;
    box.shape[1] = which == 2 ? share : HIDDEN;
    box.begin[which == 2] = part * share;
    box.offset = offset;
    box.strides[0] = box.shape[1];
    box.strides[1] = 1;
    must(ferry_side_add_box(side, parameter, &box, &error));
}

/* A server's rank: gate and up of a share of all experts stacked, and down. */
static uint64_t add_server(ferry_side *side, const uint32_t *ranks, size_t n_ranks, uint64_t share,
                           uint64_t part)
{
    const ferry_dtype bf16 = {FERRY_BF16, 16};
    uint64_t half = share * HIDDEN, n = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[64];
        size_t parameter;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.w13_weight", layer);
        must(ferry_side_add_parameter(side, ranks, n_ranks, name, &bf16, EXPERTS * 2 * half, 0,
                                      &parameter, &error));
        for (int expert = 0; expert < EXPERTS; expert++) {
            add_expert(side, parameter, layer, expert, 0, (uint64_t)expert * 2 * half, share, part);
            add_expert(side, parameter, layer, expert, 1, (uint64_t)expert * 2 * half + half, share,
                       part);
        }
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.w2_weight", layer);
        must(ferry_side_add_parameter(side, ranks, n_ranks, name, &bf16, EXPERTS * half, 0,
                                      &parameter, &error));
        for (int expert = 0; expert < EXPERTS; expert++) {
            add_expert(side, parameter, layer, expert, 2, (uint64_t)expert * half, share, part);
        }
        n += 3 * EXPERTS;
    }
    return n;
}

typedef struct trace_case {
    const char *name;
    uint32_t n_ranks;
    bool is_alike; /* one list of ranks; else each has a part of its own */
} trace_case;

static void run_traced(const trace_case *c, int n_runs, measure *m)
{
    char *text = make_base();
    ferry_spec *base = NULL;
    must(ferry_spec_parse(text, strlen(text), "base", &base, &error));
    free(text);
    uint32_t *ranks = malloc(c->n_ranks * sizeof *ranks);
    for (uint32_t r = 0; ranks != NULL && r < c->n_ranks; r++) {
        ranks[r] = 64 + r;
    }
    for (int i = 0; ranks != NULL && i < n_runs; i++) {
        ferry_side *side = NULL;
        ferry_spec *spec = NULL;
        double begin = read_clock(CLOCK_MONOTONIC), cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID);
        must(ferry_side_create(&side, &error));
        m->n_boxes = 0;
        for (uint32_t r = 0; r < (c->is_alike ? 1 : c->n_ranks); r++) {
            m->n_boxes +=
                add_server(side, ranks + r, c->is_alike ? c->n_ranks : 1, WIDTH / 8, r % 8);
        }
        must(ferry_spec_create(base, NULL, side, &spec, &error));
        ferry_side_destroy(side);
        plan_and_visit(spec, 64, m);
        m->seconds[i] = read_clock(CLOCK_MONOTONIC) - begin;
        m->cpu[i] = read_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        ferry_spec_destroy(spec);
    }
    ferry_spec_destroy(base);
    free(ranks);
}

static const trace_case traces[] = {
    {.name = "61 x 256 experts, one rank of 64 traced", .n_ranks = 1, .is_alike = true},
    {.name = "61 x 256 experts, 1,024 alike ranks", .n_ranks = 1024, .is_alike = true},
    {.name = "61 x 256 experts, 8 ranks with parts of their own", .n_ranks = 8},
    {.name = "61 x 256 experts, 64 ranks with parts of their own", .n_ranks = 64},
};

enum { N_TRACES = sizeof traces / sizeof traces[0], N_CASES = N_TRACES + 2 };

static void run_child(int number, int n_runs, measure *m)
{
    struct rusage usage;
    if (number < 2) {
        run_dense(number == 1, n_runs, m);
    } else {
        run_traced(&traces[number - 2], n_runs, m);
    }
    getrusage(RUSAGE_SELF, &usage);
    m->peak_kib = usage.ru_maxrss;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const char *name_of(int number)
{
    return number == 0   ? "llama 70B, TP8 -> TP4 x DP2, meshes"
           : number == 1 ? "llama 70B, TP8 -> TP4 x DP2, the same as boxes"
                         : traces[number - 2].name;
}

int main(int argc, char **argv)
{
    int n_runs = 5, only = -1;
    const char *path = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        n_runs = strcmp(argv[i], "--runs") == 0 ? atoi(argv[i + 1]) : n_runs;
        only = strcmp(argv[i], "--only") == 0 ? atoi(argv[i + 1]) : only;
        path = strcmp(argv[i], "--json") == 0 ? argv[i + 1] : path;
    }
    n_runs = n_runs < 1 ? 1 : n_runs > MOST_RUNS ? MOST_RUNS : n_runs;
    measure *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FILE *json = path == NULL ? NULL : fopen(path, "w");
    if (m == MAP_FAILED || (path != NULL && json == NULL)) {
        return 1;
    }
    printf("%-52s %9s %9s %9s %9s %8s %10s\n", "case", "median s", "min s", "max s", "cpu s", "MiB",
           "boxes");
    for (int number = 0; number < N_CASES; number++) {
        if (only >= 0 && number != only) {
            continue;
        }
        int status = 1;
        memset(m, 0, sizeof *m);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            run_child(number, n_runs, m);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            return 1;
        }
        qsort(m->seconds, (size_t)n_runs, sizeof m->seconds[0], compare_doubles);
        qsort(m->cpu, (size_t)n_runs, sizeof m->cpu[0], compare_doubles);
        printf("%-52s %9.4f %9.4f %9.4f %9.4f %8.1f %10llu\n", name_of(number),
               m->seconds[n_runs / 2], m->seconds[0], m->seconds[n_runs - 1], m->cpu[n_runs / 2],
               (double)m->peak_kib / 1024, (unsigned long long)m->n_boxes);
        if (json != NULL) {
            fprintf(json,
                    "%s\n  {\"case\": \"%s\", \"runs\": %d, \"median_s\": %.6g, \"min_s\": %.6g, "
                    "\"max_s\": %.6g, \"cpu_s\": %.6g, \"peak_kib\": %ld, \"boxes\": %llu, "
                    "\"moves\": %llu, "
                    "\"moves_visited\": %llu}",
                    number == 0 ? "[" : ",", name_of(number), n_runs, m->seconds[n_runs / 2],
                    m->seconds[0], m->seconds[n_runs - 1], m->cpu[n_runs / 2], m->peak_kib,
                    (unsigned long long)m->n_boxes, (unsigned long long)m->n_moves,
                    (unsigned long long)m->n_visited);
        }
    }
    if (json != NULL) {
        fprintf(json, "\n]\n");
        fclose(json);
    }
    return 0;
}
