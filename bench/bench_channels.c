/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What an item costs a rank that has many channels: rank 0 exchanges the same number of small items
 * with few ranks, and with many. Ranks are threads of this process.
 *
 *     bench_channels [--items N] [--runs N] [--tasks] RANKS ...
 *
 * Counted is the time of the processor that rank 0's thread takes in a run, per item: on however
 * busy a machine, and however long it waits for others. All of a run is in it: that each peer is
 * told, once, that its last item has come, is woken for it, and votes. So what a channel costs is
 * spread over its items; with as many items as ranks it is all that is seen. What is `sent` rank 0
 * copies itself, and beside it stands what memcpy takes for the same items between the same areas,
 * one area after the other. What is `received` the peers copy.
 *
 * Items lie side by side in one task for each peer; with --tasks each is a task of its own, and no
 * two that follow one another are neighbours in memory. Of several runs the median is shown: the
 * first one also meets memory that nobody has touched.
 */
#include <ferry/ferry.h>
#include <ferry/service.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ITEM_BYTES = 1024, MOST_RUNS = 99 };

typedef enum direction { OUT, IN } direction;

typedef struct settings {
    uint32_t n_peers, items_each, n_runs;
    direction way;
    bool has_tasks;
    char **memory; /* of each rank */
    pthread_barrier_t measured;
    double us[MOST_RUNS]; /* of an item, in each run */
    double copy_us[MOST_RUNS];
} settings;

typedef struct member {
    settings *s;
    ferry_world *world;
    uint32_t rank;
    pthread_t thread;
} member;

static void must(ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_channels: %s\n", error->message);
        exit(1);
    }
}

static double processor_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Bytes [offset, offset + bytes) of what a channel has, which this rank has here. */
static void register_task(const member *me, ferry_service *service, uint64_t id, uint32_t peer,
                          char *memory, uint64_t offset, uint64_t bytes)
{
    const settings *s = me->s;
    ferry_error error;
    ferry_buffer buffer = ferry_buffer_of(memory, (uint64_t)s->items_each * ITEM_BYTES);
    uint32_t other = me->rank == 0 ? peer : 0;
    ferry_status status =
        (me->rank == 0) == (s->way == OUT)
            ? ferry_service_register_send(service, id, &buffer, offset, bytes, other, &error)
            : ferry_service_register_receive(service, id, &buffer, offset, bytes, other, &error);
    must(status, &error);
}

/* What rank 0 has for one peer behind the other; what a peer has. */
static char *memory_of(const settings *s, uint32_t rank, uint32_t peer)
{
    return s->memory[rank] + (rank == 0 ? peer - 1 : 0) * (uint64_t)s->items_each * ITEM_BYTES;
}

static void register_all(const member *me, ferry_service *service)
{
    enum { FAR = 389 }; /* a prime: neighbours lie so many items from one another */
    const settings *s = me->s;
    uint32_t n = s->items_each;
    for (uint32_t peer = 1; peer <= s->n_peers; peer++) {
        if (me->rank != 0 && me->rank != peer) {
            continue;
        }
        char *memory = memory_of(s, me->rank, peer);
        if (!s->has_tasks) {
            register_task(me, service, peer, peer, memory, 0, (uint64_t)n * ITEM_BYTES);
            continue;
        }
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = n % FAR == 0 ? i : i * FAR % n;
            register_task(me, service, peer * (uint64_t)n + i, peer, memory, at * ITEM_BYTES,
                          ITEM_BYTES);
        }
    }
}

static void copy_all(settings *s)
{
    for (uint32_t r = 0; r < s->n_runs; r++) {
        double begin = processor_us();
        for (uint32_t peer = 1; peer <= s->n_peers; peer++) {
            char *to = memory_of(s, peer, peer);
            const char *from = memory_of(s, 0, peer);
            for (uint64_t i = 0; i < s->items_each; i++) {
                memcpy(to + i * ITEM_BYTES, from + i * ITEM_BYTES, ITEM_BYTES);
            }
        }
        s->copy_us[r] = (processor_us() - begin) / ((double)s->items_each * s->n_peers);
    }
}

static void *run_member(void *argument)
{
    member *me = argument;
    settings *s = me->s;
    ferry_error error;
    ferry_service *service = NULL;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    uint64_t bytes = (uint64_t)s->items_each * ITEM_BYTES;
    char *memory = calloc(me->rank == 0 ? s->n_peers : 1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "bench_channels: no memory\n");
        exit(1);
    }
    s->memory[me->rank] = memory;
    options.slot_bytes = ITEM_BYTES;
    options.n_threads = 1;
    options.engines = "inproc";
    must(ferry_service_create(me->world, &options, &service, &error), &error);
    must(ferry_service_init(service, FERRY_LOG_OFF, &error), &error);
    register_all(me, service);
    must(ferry_service_schedule(service, &error), &error);
    for (uint32_t r = 0; r < s->n_runs; r++) {
        double begin = processor_us();
        must(ferry_service_run(service, NULL, &error), &error);
        if (me->rank == 0) {
            s->us[r] = (processor_us() - begin) / ((double)s->items_each * s->n_peers);
        }
    }
    if (me->rank == 0 && s->way == OUT) { /* all have run, and are behind their last call */
        copy_all(s);
    }
    pthread_barrier_wait(&s->measured);
    ferry_service_destroy(service);
    ferry_world_destroy(me->world);
    free(memory);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *us, uint32_t n)
{
    qsort(us, n, sizeof us[0], compare);
    return us[n / 2];
}

static void measure(settings *s)
{
    uint32_t n = s->n_peers + 1;
    ferry_error error;
    ferry_world **worlds = calloc(n, sizeof *worlds);
    member *members = calloc(n, sizeof *members);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 512 << 10);
    s->memory = calloc(n, sizeof *s->memory);
    if (worlds == NULL || members == NULL || s->memory == NULL ||
        pthread_barrier_init(&s->measured, NULL, n) != 0) {
        exit(1);
    }
    must(ferry_world_create_threads(n, NULL, worlds, &error), &error);
    for (uint32_t i = 0; i < n; i++) {
        members[i] = (member){.s = s, .world = worlds[i], .rank = i};
        if (pthread_create(&members[i].thread, &small, run_member, &members[i]) != 0) {
            fprintf(stderr, "bench_channels: no thread for rank %u\n", i);
            exit(1);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        pthread_join(members[i].thread, NULL);
    }
    pthread_barrier_destroy(&s->measured);
    free(s->memory);
    free(members);
    free(worlds);
}

int main(int argc, char **argv)
{
    uint32_t n_items = 65536, n_runs = 5;
    bool has_tasks = false;
    printf("%8s %14s %14s %14s   (us of rank 0's processor per item of %d bytes)\n", "channels",
           "sent", "by memcpy", "received", ITEM_BYTES);
    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--items") == 0) {
            n_items = (uint32_t)atoi(argv[++i]);
        } else if (i + 1 < argc && strcmp(argv[i], "--runs") == 0) {
            n_runs = (uint32_t)atoi(argv[++i]);
        } else if (strcmp(argv[i], "--tasks") == 0) {
            has_tasks = true;
        } else {
            uint32_t n = (uint32_t)atoi(argv[i]);
            if (n < 1 || n > n_items || n_runs < 1 || n_runs > MOST_RUNS) {
                fprintf(stderr,
                        "usage: bench_channels [--items N] [--runs N] [--tasks] RANKS ...\n");
                return 2;
            }
            settings s = {.n_peers = n,
                          .items_each = n_items / n,
                          .n_runs = n_runs,
                          .way = OUT,
                          .has_tasks = has_tasks};
            measure(&s);
            printf("%8u %14.3f %14.3f", n, median_of(s.us, n_runs), median_of(s.copy_us, n_runs));
            s.way = IN;
            measure(&s);
            printf(" %14.3f\n", median_of(s.us, n_runs));
            fflush(stdout);
        }
    }
    return 0;
}
