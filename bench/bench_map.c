/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps of a model of 61 layers with 256 experts, of which the first three are dense as in
 * DeepSeek-V3: a trainer's names to a checkpoint's, those to others, and those to a server's
 * stacked ones. How long it takes to read each, to compose all three, to write, turn round and
 * apply the result; medians of several runs.
 *
 *     bench_map [--json FILE] [--runs N]
 */
#include <ferry/ferry.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MOST_RUNS = 101 };

#define COUNT "\"count\":[58,256],"

/* fc1 has gate and up, one above the other. */
static const char to_checkpoint[] =
    "{\"format\":\"ferry.map/1\",\"sources\":["
    "{\"name\":\"decoder.layers.{0+3}.mlp.experts.linear_fc1.weight{1}\"," COUNT
    "\"shape\":[4096,7168],\"dtype\":\"bf16\"},"
    "{\"name\":\"decoder.layers.{0+3}.mlp.experts.linear_fc2.weight{1}\"," COUNT
    "\"shape\":[7168,2048],\"dtype\":\"bf16\"}],\"targets\":["
    "{\"name\":\"model.layers.{0+3}.mlp.experts.{1}.gate_proj.weight\"," COUNT
    "\"shape\":[2048,7168],\"dtype\":\"bf16\",\"source\":["
    "{\"tensor\":\"decoder.layers.{0+3}.mlp.experts.linear_fc1.weight{1}\",\"begin\":[0,0],"
    "\"shape\":[2048,7168],\"at\":[0,0]}]},"
    "{\"name\":\"model.layers.{0+3}.mlp.experts.{1}.up_proj.weight\"," COUNT
    "\"shape\":[2048,7168],\"dtype\":\"bf16\",\"source\":["
    "{\"tensor\":\"decoder.layers.{0+3}.mlp.experts.linear_fc1.weight{1}\",\"begin\":[2048,0],"
    "\"shape\":[2048,7168],\"at\":[0,0]}]},"
    "{\"name\":\"model.layers.{0+3}.mlp.experts.{1}.down_proj.weight\"," COUNT
    "\"shape\":[7168,2048],\"dtype\":\"bf16\",\"source\":"
    "\"decoder.layers.{0+3}.mlp.experts.linear_fc2.weight{1}\"}]}";

#define PROJECTION(to, name, shape)                                                                \
    "{\"name\":\"" to "layers.{0+3}.mlp.experts.{1}." name "_proj.weight\"," COUNT                 \
    "\"shape\":" shape ",\"dtype\":\"bf16\""

#define RENAMED(name, shape)                                                                       \
    PROJECTION("language_model.", name, shape)                                                     \
    ",\"source\":\"model.layers.{0+3}.mlp.experts.{1}." name "_proj.weight\"}"

static const char to_other_names[] = "{\"format\":\"ferry.map/1\",\"sources\":[" PROJECTION(
    "model.", "gate",
    "[2048,7168]") "}," PROJECTION("model.", "up",
                                   "[2048,7168]") "}," PROJECTION("model.", "down",
                                                                  "[7168,2048]") "}],\"targets\":"
                                                                                 "[" RENAMED("gate",
                                                                                             "[2048"
                                                                                             ",7168"
                                                                                             "]") "," RENAMED("up",
                                                                                                              "[2048,7168]") "," RENAMED("down",
                                                                                                                                         "[7168,2048]") "]}";

#define STACKED(name, shape, at)                                                                   \
    "{\"tensor\":\"language_model.layers.{0+3}.mlp.experts.{1}." name "_proj.weight\","            \
    "\"begin\":[0,0],\"shape\":" shape ",\"at\":" at                                               \
    ",\"repeat\":[{\"count\":256,\"at\":[1,0,0]}]}"

static const char to_server[] =
    "{\"format\":\"ferry.map/1\",\"sources\":[" PROJECTION("language_model.", "gate", "[2048,7168]") "}," PROJECTION(
        "language_model.",
        "up", "[2048,7168]") "}," PROJECTION("language_model.", "down",
                                             "[7168,2048]") "}],\"targets\":["
                                                            "{\"name\":\"layers.{0+3}.w13_weight\","
                                                            "\"count\":[58],\"shape\":[256,4096,"
                                                            "7168],"
                                                            "\"dtype\":\"bf16\",\"source\":"
                                                            "[" STACKED("gate", "[2048,7168]", "[0,0,0]") "," STACKED(
                                                                "up", "[2048,7168]",
                                                                "[0,2048,0]") "]},"
                                                                              "{\"name\":\"layers.{"
                                                                              "0+3}.w2_weight\","
                                                                              "\"count\":[58],"
                                                                              "\"shape\":[256,7168,"
                                                                              "2048],"
                                                                              "\"dtype\":\"bf16\","
                                                                              "\"source\":"
                                                                              "[" STACKED(
                                                                                  "down",
                                                                                  "[7168,2048]",
                                                                                  "[0,0,0]") "]}]}";

static const char spec_text[] =
    "{\"format\":\"ferry.spec/1\",\"tensors\":["
    "{\"name\":\"layers.{0}.w13_weight\",\"count\":[61],\"shape\":[256,4096,7168],"
    "\"dtype\":\"bf16\"},"
    "{\"name\":\"layers.{0}.w2_weight\",\"count\":[61],\"shape\":[256,7168,2048],"
    "\"dtype\":\"bf16\"}],\"source\":{\"mesh\":[[\"ep\",64]],\"stages\":["
    "{\"match\":\"*.linear_fc1.weight{}\",\"axis\":\"ep\",\"count\":256},"
    "{\"match\":\"*.linear_fc2.weight{}\",\"axis\":\"ep\",\"count\":256}],"
    "\"rules\":[{\"match\":\"*\"}]},\"destination\":{\"mesh\":[[\"ep\",32]],\"first_rank\":64,"
    "\"rules\":[{\"match\":\"*\",\"shard\":[{\"dim\":0,\"axis\":\"ep\"}]}]}}";

enum { READ, COMPOSE, WRITE, INVERT, APPLY, PLAN, N_PARTS };
static const char *const part_names[N_PARTS] = {"read three maps",  "compose them",
                                                "write the result", "invert it",
                                                "apply it",         "plan the spec"};

typedef struct maps {
    ferry_map *read[3], *two, *all, *inverse;
    ferry_spec *spec, *fed;
    ferry_plan *plan;
    size_t text_bytes;
} maps;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_map: %s\n", error->message);
        exit(1);
    }
}

static int count_bytes(void *context, const char *bytes, size_t n_bytes)
{
    (void)bytes;
    *(size_t *)context += n_bytes;
    return 0;
}

static void run_part(maps *m, int part)
{
    static const char *const texts[] = {to_checkpoint, to_other_names, to_server};
    ferry_error error = {""};
    switch (part) {
    case READ:
        for (int i = 0; i < 3; i++) {
            must(ferry_map_parse(texts[i], strlen(texts[i]), "map", &m->read[i], &error), &error);
        }
        break;
    case COMPOSE:
        must(ferry_map_compose(m->read[0], m->read[1], &m->two, &error), &error);
        must(ferry_map_compose(m->two, m->read[2], &m->all, &error), &error);
        break;
    case WRITE:
        must(ferry_map_write_json(m->all, count_bytes, &m->text_bytes, &error), &error);
        break;
    case INVERT:
        must(ferry_map_invert(m->all, &m->inverse, &error), &error);
        break;
    case APPLY:
        must(ferry_spec_parse(spec_text, strlen(spec_text), "spec", &m->spec, &error), &error);
        must(ferry_map_apply(m->all, m->spec, &m->fed, &error), &error);
        break;
    default:
        must(ferry_plan_create(m->fed, NULL, &m->plan, &error), &error);
    }
}

static void give_back(maps *m)
{
    for (int i = 0; i < 3; i++) {
        ferry_map_destroy(m->read[i]);
    }
    ferry_map_destroy(m->two);
    ferry_map_destroy(m->all);
    ferry_map_destroy(m->inverse);
    ferry_spec_destroy(m->spec);
    ferry_spec_destroy(m->fed);
    ferry_plan_destroy(m->plan);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_all(double seconds[N_PARTS][MOST_RUNS], int n_runs, const maps *m, size_t n_boxes,
                      FILE *json)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%zu boxes composed; %zu bytes of ferry.map/1; peak memory %ld MiB; %d runs\n", n_boxes,
           m->text_bytes, usage.ru_maxrss >> 10, n_runs);
    if (json != NULL) {
        fprintf(json,
                "{\"format\":\"ferry.bench-map/1\",\"boxes\":%zu,\"bytes\":%zu,"
                "\"peak_kib\":%ld,\"runs\":%d,\"parts\":[",
                n_boxes, m->text_bytes, usage.ru_maxrss, n_runs);
    }
    for (int part = 0; part < N_PARTS; part++) {
        qsort(seconds[part], (size_t)n_runs, sizeof(double), compare_doubles);
        double median = seconds[part][n_runs / 2];
        printf("%-18s median %7.1f ms, fastest %7.1f ms\n", part_names[part], median * 1e3,
               seconds[part][0] * 1e3);
        if (json != NULL) {
            fprintf(json, "%s{\"name\":\"%s\",\"median_s\":%.6f,\"fastest_s\":%.6f}",
                    part == 0 ? "" : ",", part_names[part], median, seconds[part][0]);
        }
    }
    if (json != NULL) {
        fprintf(json, "]}\n");
    }
}

int main(int argc, char **argv)
{
    static double seconds[N_PARTS][MOST_RUNS];
    const char *path = NULL;
    int n_runs = 11;
    size_t n_boxes = 0;
    maps m = {.text_bytes = 0};
    for (int i = 1; i + 1 < argc; i += 2) {
        path = strcmp(argv[i], "--json") == 0 ? argv[i + 1] : path;
        n_runs = strcmp(argv[i], "--runs") == 0 ? atoi(argv[i + 1]) : n_runs;
    }
    n_runs = n_runs < 1 ? 1 : n_runs > MOST_RUNS ? MOST_RUNS : n_runs;
    for (int run = 0; run < n_runs; run++) {
        m = (maps){.text_bytes = 0};
        for (int part = 0; part < N_PARTS; part++) {
            double begin = now();
            run_part(&m, part);
            seconds[part][run] = now() - begin;
        }
        n_boxes = ferry_map_box_count(m.all);
        give_back(&m);
    }
    FILE *json = path == NULL ? NULL : fopen(path, "w");
    print_all(seconds, n_runs, &m, n_boxes, json);
    return json != NULL && fclose(json) != 0;
}
