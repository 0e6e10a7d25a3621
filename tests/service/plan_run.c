/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * service_plan FOLDER RANKS [NAME=NUMBER ...] [engines=TEXT]
 *
 * Moves what a folder holds, for plans.py to look at. FOLDER/spec.json is the spec, and FOLDER/rR
 * lists what rank R has, a tensor a line: S or D, bytes, a file's name, the tensor's name. A source
 * is read from its file; a destination is written to FILE.V after run V, which moves the sources
 * with each byte xor V * 59. Ranks are processes, or with threads=1 threads. With FERRY_TEST_FAR
 * three of four buffers lie in memory of devices, and what is said of memory is true of their
 * image.
 */
#include "support/devices.h"

#include <ferry/pack.h>
#include <ferry/plan.h>
#include <ferry/service.h>
#include <ferry/spec.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 64, GUARD = 64, POISON = 0xc7 };

typedef struct tensor {
    bool is_source;
    uint64_t bytes;
    char file[32], name[256];
    unsigned char *own;       /* a source's bytes */
    unsigned char *memory[2]; /* with guards; a destination has two if it is swapped */
    ferry_buffer buffer[2];
    ferry_buffer far[2]; /* with guards, in memory of a device; base NULL: it is the host's */
} tensor;

typedef struct settings {
    const char *folder;
    uint32_t n_ranks, runs, threads, memory; /* memory: 1: from ferry */
    char engines[128];
    ferry_service_options options;
} settings;

typedef struct rank_state {
    const settings *settings;
    uint32_t rank;
    ferry_world *world;
    ferry_error error;
    tensor *tensors;
    size_t n_tensors;
} rank_state;

_Noreturn static void give_up(const rank_state *me, const char *what, const char *why)
{
    fprintf(stderr, "rank %u: %s: %s\n", (unsigned)me->rank, what, why);
    exit(1);
}

#define must(me, call)                                                                             \
    do {                                                                                           \
        if ((call) != FERRY_OK) {                                                                  \
            give_up((me), #call, (me)->error.message);                                             \
        }                                                                                          \
    } while (0)

static FILE *open_file(const rank_state *me, const char *name, const char *mode)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", me->settings->folder, name);
    FILE *file = fopen(path, mode);
    if (file == NULL) {
        give_up(me, path, strerror(errno));
    }
    return file;
}

/* All of it, at once. */
static void copy_bytes(rank_state *me, ferry_buffer to, ferry_buffer from)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    for (int i = 0; i < 2; i++) {
        boxes[i].buffer = i == 0 ? to : from;
        boxes[i].n_dims = 1;
        boxes[i].length[0] = from.bytes;
        boxes[i].stride[0] = 1;
    }
    must(me, ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, &me->error));
}

/* Between memory of a device and its image on the host. */
static void copy_images(rank_state *me, const tensor *t, bool back)
{
    for (unsigned i = 0; i < 2; i++) {
        if (t->far[i].base != NULL) {
            ferry_buffer image = ferry_buffer_of(t->memory[i], t->far[i].bytes);
            copy_bytes(me, back ? image : t->far[i], back ? t->far[i] : image);
        }
    }
}

/* One in four stays on the host; FERRY_TEST_FAR is a seed. Pairs lie together mostly. */
static void put_far(rank_state *me, tensor *t)
{
    const char *seed = getenv("FERRY_TEST_FAR");
    for (unsigned i = 0; i < 2 && seed != NULL; i++) {
        uint64_t number = strtoull(seed, NULL, 10) * 1009 + me->rank * 97 + me->n_tensors * 13;
        uint64_t drawn = (number + (me->n_tensors % 5 == 4 ? i : 0)) * 0x9e3779b97f4a7c15u >> 40;
        if (drawn % 4 == 0 && !device_has_all()) {
            continue;
        }
        must(me, ferry_memory_alloc(NULL, device_kind(), device_number((int32_t)(drawn / 4 % 2)),
                                    t->bytes + 2 * GUARD, &t->far[i], &me->error));
        t->buffer[i] = t->far[i];
        t->buffer[i].base = (unsigned char *)t->far[i].base + GUARD;
        t->buffer[i].bytes = t->bytes;
    }
    copy_images(me, t, false);
}

static void take_tensor(rank_state *me, tensor *t, ferry_transport *transport)
{
    uint64_t all = t->bytes + 2 * GUARD;
    bool is_far = getenv("FERRY_TEST_FAR") != NULL;
    for (unsigned i = 0; i < 2; i++) {
        if (!is_far && me->settings->memory == 1 && !t->is_source) {
            must(me, ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, all, &t->buffer[i],
                                        &me->error));
        } else {
            t->buffer[i] = ferry_buffer_of(malloc(all), all);
        }
        t->memory[i] = t->buffer[i].base;
        if (t->memory[i] == NULL) {
            give_up(me, t->name, "no memory");
        }
        memset(t->memory[i], POISON, all);
        t->buffer[i].base = t->memory[i] + GUARD;
        t->buffer[i].bytes = t->bytes;
    }
    put_far(me, t);
    if (t->is_source) {
        FILE *file = open_file(me, t->file, "rb");
        t->own = malloc(t->bytes + 1);
        if (t->own == NULL || fread(t->own, 1, t->bytes, file) != t->bytes) {
            give_up(me, t->file, "it is too short");
        }
        fclose(file);
    }
}

static void read_tensors(rank_state *me, ferry_transport *transport)
{
    char name[32], line[512];
    snprintf(name, sizeof name, "r%u", (unsigned)me->rank);
    FILE *file = open_file(me, name, "r");
    while (fgets(line, sizeof line, file) != NULL) {
        tensor *more = realloc(me->tensors, (me->n_tensors + 1) * sizeof *more);
        tensor t = {0};
        char kind;
        unsigned long long bytes;
        if (more == NULL ||
            sscanf(line, "%c %llu %31s %255[^\n]", &kind, &bytes, t.file, t.name) != 4) {
            give_up(me, name, line);
        }
        t.is_source = kind == 'S';
        t.bytes = bytes;
        take_tensor(me, &t, transport);
        me->tensors = more;
        me->tensors[me->n_tensors++] = t;
    }
    fclose(file);
}

static void bind_all(rank_state *me, ferry_service *service)
{
    bool swap = me->settings->options.commit == FERRY_COMMIT_SWAP;
    ferry_tensors *sides[2];
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    char path[512];
    must(me, ferry_tensors_create(&sides[0], &me->error));
    must(me, ferry_tensors_create(&sides[1], &me->error));
    for (size_t i = 0; i < me->n_tensors; i++) {
        const tensor *t = &me->tensors[i];
        if (swap && !t->is_source) {
            must(me, ferry_tensors_add_pair(sides[1], t->name, &t->buffer[0], &t->buffer[1],
                                            &me->error));
        } else {
            must(me, ferry_tensors_add(sides[!t->is_source], t->name, &t->buffer[0], &me->error));
        }
    }
    snprintf(path, sizeof path, "%s/spec.json", me->settings->folder);
    must(me, ferry_spec_load(path, &spec, &me->error));
    must(me, ferry_plan_create(spec, NULL, &plan, &me->error));
    must(me, ferry_service_bind(service, plan, sides[0], sides[1], &me->error));
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    ferry_tensors_destroy(sides[0]);
    ferry_tensors_destroy(sides[1]);
    must(me, ferry_service_schedule(service, &me->error));
}

static void check_guards(const rank_state *me, const tensor *t)
{
    for (unsigned i = 0; i < 2; i++) {
        for (size_t j = 0; j < GUARD; j++) {
            if (t->memory[i][j] != POISON || t->memory[i][GUARD + t->bytes + j] != POISON) {
                give_up(me, t->name, "bytes beside it were written");
            }
        }
    }
}

static void write_out(const rank_state *me, const tensor *t, uint32_t run)
{
    char name[64];
    bool swap = me->settings->options.commit == FERRY_COMMIT_SWAP;
    snprintf(name, sizeof name, "%s.%u", t->file, (unsigned)run);
    FILE *file = open_file(me, name, "wb");
    if (fwrite(t->memory[swap ? (run + 1) % 2 : 0] + GUARD, 1, t->bytes, file) != t->bytes ||
        fclose(file) != 0) {
        give_up(me, name, "cannot be written");
    }
}

static void *run_rank(void *context)
{
    rank_state *me = context;
    ferry_service_options options = me->settings->options;
    ferry_service *service = NULL;
    options.engines = me->settings->engines[0] != '\0' ? me->settings->engines : NULL;
    must(me, ferry_service_create(me->world, &options, &service, &me->error));
    must(me, ferry_service_init(service, FERRY_LOG_ERROR, &me->error));
    read_tensors(me, ferry_service_transport(service));
    bind_all(me, service);
    for (uint32_t run = 0; run < me->settings->runs; run++) {
        for (size_t i = 0; i < me->n_tensors; i++) {
            const tensor *t = &me->tensors[i];
            for (uint64_t j = 0; t->is_source && j < t->bytes; j++) {
                t->memory[0][GUARD + j] = (unsigned char)(t->own[j] ^ (run * 59));
            }
            copy_images(me, t, false);
        }
        must(me, ferry_service_run(service, NULL, &me->error));
        for (size_t i = 0; i < me->n_tensors; i++) {
            copy_images(me, &me->tensors[i], true);
            check_guards(me, &me->tensors[i]);
            if (!me->tensors[i].is_source) {
                write_out(me, &me->tensors[i], run);
            }
        }
    }
    must(me, ferry_service_clear_requests(service, &me->error));
    must(me, ferry_world_barrier(me->world, &me->error)); /* nobody has it open any more */
    for (size_t i = 0; i < me->n_tensors; i++) {
        tensor *t = &me->tensors[i];
        for (unsigned j = 0; j < 2; j++) {
            if (t->buffer[j].registration != NULL) {
                t->buffer[j].base = t->memory[j];
                ferry_memory_free(&t->buffer[j]);
            } else {
                free(t->memory[j]);
            }
            ferry_memory_free(&t->far[j]);
        }
        free(t->own);
    }
    free(me->tensors);
    ferry_service_destroy(service);
    ferry_world_destroy(me->world);
    return NULL;
}

static int run_threads(const settings *s)
{
    static rank_state me[MOST_RANKS];
    ferry_world *worlds[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    must(&me[0], ferry_world_create_threads(s->n_ranks, NULL, worlds, &me[0].error));
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        me[r] = (rank_state){.settings = s, .rank = r, .world = worlds[r]};
        if (pthread_create(&threads[r], NULL, run_rank, &me[r]) != 0) {
            give_up(&me[r], "pthread_create", "no thread");
        }
    }
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    return 0;
}

static int run_process(const settings *s, uint32_t rank)
{
    rank_state me = {.settings = s, .rank = rank};
    char path[512];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(path, sizeof path, "%s/meet", s->folder);
    must(&me, ferry_world_create_from_file(path, rank, s->n_ranks, NULL, &me.world, &me.error));
    run_rank(&me);
    return 0;
}

static int run_processes(const settings *s)
{
    int result = 0, status;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            exit(run_process(s, r));
        }
        result |= pid < 0;
    }
    while (wait(&status) > 0) {
        result |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return result;
}

static bool set(settings *s, const char *name, const char *value)
{
    ferry_service_options *o = &s->options;
    uint64_t number = strtoull(value, NULL, 10);
    if (strcmp(name, "engines") == 0) {
        snprintf(s->engines, sizeof s->engines, "%s", value);
    } else if (strcmp(name, "slot") == 0) {
        o->slot_bytes = number;
    } else if (strcmp(name, "cap") == 0) {
        o->memory_cap = number;
    } else if (strcmp(name, "delta") == 0) {
        o->delta = number;
    } else {
        uint32_t *places[] = {&s->runs,     &s->threads,   &s->memory, &o->max_tasks,
                              &o->checksum, &o->n_threads, &o->commit, &o->paths};
        static const char *const names[] = {"runs",     "threads", "memory", "tasks",
                                            "checksum", "team",    "commit", "paths"};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (strcmp(names[i], name) == 0) {
                *places[i] = (uint32_t)number;
                return true;
            }
        }
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    settings s = {.runs = 2, .options = FERRY_SERVICE_OPTIONS_INIT};
    bool good = argc >= 3;
    for (int i = 3; i < argc && good; i++) {
        char *value = strchr(argv[i], '=');
        good = value != NULL;
        if (good) {
            *value = '\0';
            good = set(&s, argv[i], value + 1);
        }
    }
    s.folder = argc >= 2 ? argv[1] : "";
    s.n_ranks = good ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    if (s.n_ranks == 0 || s.n_ranks > MOST_RANKS) {
        fprintf(stderr, "service_plan FOLDER RANKS [NAME=NUMBER ...] [engines=TEXT]\n");
        return 2;
    }
    return s.threads != 0 ? run_threads(&s) : run_processes(&s);
}
