/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What an item costs a rank that has many channels: rank 0 exchanges the same number of small items
 * with few ranks, and with many. Ranks are threads of this process.
 *
 *     bench_channels [--items N] [--runs N] RANKS ...
 *
 * Counted is the time of the processor that rank 0's thread takes in a run, per item: on however
 * busy a machine, and however long it waits for others.
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
    double us[MOST_RUNS]; /* of an item, in each run */
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

static void register_all(const member *me, ferry_service *service, char *memory)
{
    const settings *s = me->s;
    uint64_t bytes = (uint64_t)s->items_each * ITEM_BYTES;
    ferry_error error;
    for (uint32_t peer = 1; peer <= s->n_peers; peer++) {
        bool is_mine = me->rank == 0 || me->rank == peer;
        ferry_buffer buffer =
            ferry_buffer_of(memory + (me->rank == 0 ? peer - 1 : 0) * bytes, bytes);
        uint32_t other = me->rank == 0 ? peer : 0;
        if (is_mine && (me->rank == 0) == (s->way == OUT)) {
            must(ferry_service_register_send(service, peer, &buffer, 0, bytes, other, &error),
                 &error);
        } else if (is_mine) {
            must(ferry_service_register_receive(service, peer, &buffer, 0, bytes, other, &error),
                 &error);
        }
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
    options.slot_bytes = ITEM_BYTES;
    options.n_threads = 1;
    options.engines = "inproc";
    must(ferry_service_create(me->world, &options, &service, &error), &error);
    must(ferry_service_init(service, FERRY_LOG_OFF, &error), &error);
    register_all(me, service, memory);
    must(ferry_service_schedule(service, &error), &error);
    for (uint32_t r = 0; r < s->n_runs; r++) {
        double begin = processor_us();
        must(ferry_service_run(service, NULL, &error), &error);
        if (me->rank == 0) {
            s->us[r] = (processor_us() - begin) / ((double)s->items_each * s->n_peers);
        }
    }
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

static double median_of(settings *s)
{
    uint32_t n = s->n_peers + 1;
    ferry_error error;
    ferry_world **worlds = calloc(n, sizeof *worlds);
    member *members = calloc(n, sizeof *members);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 512 << 10);
    if (worlds == NULL || members == NULL) {
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
    free(members);
    free(worlds);
    qsort(s->us, s->n_runs, sizeof s->us[0], compare);
    return s->us[s->n_runs / 2];
}

int main(int argc, char **argv)
{
    uint32_t n_items = 65536, n_runs = 5;
    printf("%8s %14s %14s   (us of rank 0's processor per item of %d bytes)\n", "channels", "sent",
           "received", ITEM_BYTES);
    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--items") == 0) {
            n_items = (uint32_t)atoi(argv[++i]);
        } else if (i + 1 < argc && strcmp(argv[i], "--runs") == 0) {
            n_runs = (uint32_t)atoi(argv[++i]);
        } else {
            uint32_t n = (uint32_t)atoi(argv[i]);
            if (n < 1 || n > n_items || n_runs < 1 || n_runs > MOST_RUNS) {
                fprintf(stderr, "usage: bench_channels [--items N] [--runs N] RANKS ...\n");
                return 2;
            }
            settings s = {.n_peers = n, .items_each = n_items / n, .n_runs = n_runs, .way = OUT};
            double sent = median_of(&s);
            s.way = IN;
            printf("%8u %14.3f %14.3f\n", n, sent, median_of(&s));
            fflush(stdout);
        }
    }
    return 0;
}
