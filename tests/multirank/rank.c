/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank that does what its arguments say, in order, and prints one line of JSON for each: the
 * scripts of this folder start many of them and hurt some.
 *
 *     create             from the environment       file:PATH:RANK:N   through a rendezvous file
 *     barrier:N          N barriers                 gather:BYTES:N     N all-gathers, checked
 *     broadcast:N        from each rank in turn     messages:N         around a ring, checked
 *     loop:SECONDS       all of these, at random, until an error or all agree that time is over
 *     open[=ENGINES]     a transport                traffic:SECONDS    puts and signals, checked
 *     first:PATH         the first bytes between two machines, once there is a file
 *     wait:SECONDS       for a signal that nobody raises
 *     sleep:SECONDS      outside the library        await:PATH         a file, outside the library
 *     signal:NUMBER      to itself
 *     abort:REASON       ends the world             state
 *     shrink[:MIN]       the survivors' world       close              the transport
 *     destroy            leaves                     count              descriptors and threads
 *     soon:SECONDS:WHAT  a thread that then does kill, exit, abort or stop to this rank
 *     survive:SECONDS    loop; when that fails, shrink and loop on, until it succeeds
 *     swap               the first world for the second, or back
 *     both:SECONDS       loop in both, in two threads
 *     interrupts:MS      a signal for the calling thread, again and again
 *
 * A step that ends in "!", such as create!, is the last one if it fails.
 */
#include "support/random.h"

#include <ferry/ferry.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The thread of the second world has its own. */
static _Thread_local ferry_world *world;
static _Thread_local ferry_transport *transport;
static ferry_world *other_world;

/* What a thread of soon: may abort, as long as nobody destroys it. */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static ferry_world *abortable;
static ferry_transport *other_transport;

static void set_abortable(ferry_world *now_valid)
{
    pthread_mutex_lock(&guard);
    abortable = now_valid;
    pthread_mutex_unlock(&guard);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A text as a JSON string; ours need no more than this. */
static void print_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            putchar('\\');
        }
        putchar(*text == '\n' ? ' ' : *text);
    }
    putchar('"');
}

static ferry_status wrong(ferry_error *error, const char *what)
{
    snprintf(error->message, sizeof error->message, "WRONG: %s", what);
    return FERRY_ERR_PROOF;
}

static ferry_status gather_once(uint64_t n_bytes, uint64_t round, ferry_error *error)
{
    uint32_t rank = ferry_world_rank(world), n = ferry_world_rank_count(world);
    size_t mine = (size_t)(n_bytes == 0 ? 0 : (n_bytes * (rank + 1) + round) % (n_bytes + 1));
    unsigned char *own = malloc(mine + 1);
    const void *all;
    const size_t *lengths;
    memset(own, (int)(rank + round), mine);
    ferry_status status = ferry_world_all_gather_v(world, own, mine, &all, &lengths, error);
    free(own);
    const unsigned char *at = all;
    for (uint32_t r = 0; status == FERRY_OK && r < n; r++) {
        if (lengths[r] != (n_bytes == 0 ? 0 : (n_bytes * (r + 1) + round) % (n_bytes + 1))) {
            return wrong(error, "length of a gather");
        }
        for (size_t i = 0; i < lengths[r]; i++) {
            if (*at++ != (unsigned char)(r + round)) {
                return wrong(error, "byte of a gather");
            }
        }
    }
    return status;
}

static ferry_status broadcast_once(uint64_t round, ferry_error *error)
{
    uint32_t root = (uint32_t)(round % ferry_world_rank_count(world));
    uint64_t own = round * 7 + root;
    const void *bytes;
    size_t n_bytes;
    ferry_status status =
        ferry_world_broadcast(world, root, &own, sizeof own, &bytes, &n_bytes, error);
    uint64_t got = 0;
    if (status == FERRY_OK && n_bytes == sizeof got) {
        memcpy(&got, bytes, sizeof got);
    }
    return status == FERRY_OK && got != round * 7 + root ? wrong(error, "broadcast") : status;
}

static ferry_status message_once(uint64_t round, ferry_error *error)
{
    uint32_t rank = ferry_world_rank(world), n = ferry_world_rank_count(world);
    uint64_t own = round * 1000 + rank;
    const void *bytes;
    size_t n_bytes;
    uint32_t before = (rank + n - 1) % n;
    ferry_status status = ferry_world_send(world, (rank + 1) % n, 7, &own, sizeof own, error);
    if (status == FERRY_OK) {
        status = ferry_world_receive(world, before, 7, -1, &bytes, &n_bytes, NULL, error);
    }
    uint64_t got = 0;
    if (status == FERRY_OK && n_bytes == sizeof got) {
        memcpy(&got, bytes, sizeof got);
    }
    return status == FERRY_OK && got != round * 1000 + before ? wrong(error, "message") : status;
}

/* The file whose coming ends a loop; NULL: time alone does. */
static const char *last_word;

/* Rank 0 says when time is over, so that all do the same number of rounds. */
static ferry_status loop(double seconds, ferry_error *error)
{
    double until = now() + seconds;
    ferry_status status = FERRY_OK;
    uint64_t random = 42;
    for (uint64_t round = 0; status == FERRY_OK; round++) {
        const void *bytes;
        size_t n_bytes;
        uint32_t go = now() < until && (last_word == NULL || access(last_word, F_OK) != 0);
        status = ferry_world_broadcast(world, 0, &go, sizeof go, &bytes, &n_bytes, error);
        if (status == FERRY_OK) {
            memcpy(&go, bytes, sizeof go);
            if (go == 0) {
                break;
            }
            switch (random_below(&random, 4)) {
            case 0:
                status = ferry_world_barrier(world, error);
                break;
            case 1:
                status = gather_once(random_below(&random, 3000), round, error);
                break;
            case 2:
                status = message_once(round, error);
                break;
            default:
                status = broadcast_once(round, error);
            }
        }
    }
    return status;
}

/* Around a ring: a block and a signal to the next rank, then the one from the rank before is
 * checked.
 */
static ferry_status traffic(double seconds, ferry_error *error)
{
    enum { BLOCK = 1 << 18, PLACE = 64 };
    uint32_t rank = ferry_world_rank(world), n = ferry_world_rank_count(world);
    uint32_t next = (rank + 1) % n, before = (rank + n - 1) % n;
    double until = now() + seconds;
    ferry_region *region;
    unsigned char *own = malloc(BLOCK);
    ferry_status status =
        ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, PLACE + 2 * BLOCK, &region, error);
    if (status != FERRY_OK) {
        free(own);
        return status;
    }
    unsigned char *base = ferry_region_base(region);
    for (uint64_t round = 1; status == FERRY_OK; round++) {
        /* The rank before says in its signal whether it stops, so the whole ring does. */
        uint64_t last = round > 1 && now() >= until;
        memset(own, (int)(rank + round), BLOCK);
        ferry_buffer source = ferry_buffer_of(own, BLOCK);
        ferry_signal signal = {
            .region = region, .offset = 0, .value = round, .op = FERRY_SIGNAL_SET};
        const void *bytes;
        size_t n_bytes;
        status = ferry_world_broadcast(world, 0, &last, sizeof last, &bytes, &n_bytes, error);
        if (status == FERRY_OK) {
            memcpy(&last, bytes, sizeof last);
            if (last != 0) {
                break;
            }
            status =
                ferry_transport_put_signal(transport, next, region, PLACE + (round % 2) * BLOCK,
                                           &source, &signal, NULL, error);
        }
        if (status == FERRY_OK) {
            status = ferry_transport_wait_signal(transport, region, 0, FERRY_COMPARE_GE, round,
                                                 before, -1, NULL, NULL, error);
        }
        for (size_t i = 0; status == FERRY_OK && i < BLOCK; i++) {
            if (base[PLACE + (round % 2) * BLOCK + i] != (unsigned char)(before + round)) {
                status = wrong(error, "byte of a put");
            }
        }
        if (status == FERRY_OK) {
            status = ferry_transport_flush(transport, FERRY_ANY_RANK, NULL, error);
        }
    }
    ferry_region_free(region);
    free(own);
    return status;
}

static void sleep_for(double seconds)
{
    struct timespec pause = {.tv_sec = (time_t)seconds};
    pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
    while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {}
}

static void await(const char *path)
{
    while (access(path, F_OK) != 0) {
        sleep_for(0.005);
    }
}

/* The first bytes that an engine is given, to the rank half the way round, once there is a file. */
static ferry_status say_first(const char *path, ferry_error *error)
{
    uint32_t n = ferry_world_rank_count(world);
    uint32_t peer = (ferry_world_rank(world) + n / 2) % n;
    uint64_t word = 1;
    ferry_buffer source = ferry_buffer_of(&word, sizeof word);
    ferry_region *region;
    ferry_status status = ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 64, &region, error);
    if (status == FERRY_OK) {
        status = ferry_world_barrier(world, error);
        await(path);
        if (status == FERRY_OK) {
            status = ferry_transport_put(transport, peer, region, 0, &source, NULL, error);
        }
        if (status == FERRY_OK) {
            status = ferry_transport_flush(transport, FERRY_ANY_RANK, NULL, error);
        }
        ferry_region_free(region);
    }
    return status;
}

static ferry_status wait_for_ever(double seconds, ferry_error *error)
{
    ferry_region *region;
    ferry_status status = ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 64, &region, error);
    if (status == FERRY_OK) {
        status = ferry_transport_wait_signal(transport, region, 0, FERRY_COMPARE_EQ, 1, 0, seconds,
                                             NULL, NULL, error);
        ferry_region_free(region);
    }
    return status;
}

static size_t count_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t n = 0;
    while (dir != NULL && readdir(dir) != NULL) {
        n++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return n;
}

static size_t resident_kb(void)
{
    unsigned long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL) {
        if (fscanf(file, "%lu %lu", &size, &resident) != 2) {
            resident = 0;
        }
        fclose(file);
    }
    return resident * (size_t)sysconf(_SC_PAGESIZE) / 1024;
}

static ferry_status shrink(uint32_t min_ranks, ferry_error *error)
{
    ferry_world *smaller = NULL;
    ferry_status status = ferry_world_shrink(world, min_ranks, &smaller, error);
    if (status == FERRY_OK) {
        set_abortable(smaller);
        ferry_transport_close(transport);
        ferry_world_destroy(world);
        transport = NULL;
        world = smaller;
    }
    return status;
}

typedef struct plan {
    double at;
    char what[16];
} plan;

static void report(const char *op, ferry_status status, double ms, const ferry_error *error);

static void *do_soon(void *context)
{
    plan *own = context;
    double left = own->at - now();
    struct timespec pause;
    ferry_error error = {""};
    left = left < 0 ? 0 : left;
    pause.tv_sec = (time_t)left;
    pause.tv_nsec = (long)((left - (double)pause.tv_sec) * 1e9);
    nanosleep(&pause, NULL);
    report(own->what, FERRY_OK, 0, &error);
    if (strcmp(own->what, "abort") == 0) {
        pthread_mutex_lock(&guard);
        if (abortable != NULL) {
            ferry_world_abort(abortable, "a thread wanted it so");
        }
        pthread_mutex_unlock(&guard);
    } else if (strcmp(own->what, "exit") == 0) {
        _exit(3);
    } else {
        kill(getpid(), strcmp(own->what, "stop") == 0 ? SIGSTOP : SIGKILL);
    }
    free(own);
    return NULL;
}

static ferry_status start_thread(void *(*run)(void *), void *context, pthread_t *thread_out,
                                 ferry_error *error)
{
    return pthread_create(thread_out, NULL, run, context) == 0 ? FERRY_OK
                                                               : wrong(error, "no thread");
}

static ferry_status soon(const char *text, ferry_error *error)
{
    pthread_t thread;
    plan *own = calloc(1, sizeof *own);
    own->at = now() + atof(text);
    const char *what = strchr(text, ':');
    set_abortable(world);
    snprintf(own->what, sizeof own->what, "%s", what == NULL ? "kill" : what + 1);
    ferry_status status = start_thread(do_soon, own, &thread, error);
    if (status == FERRY_OK) {
        pthread_detach(thread);
    }
    return status;
}

static ferry_status shrink(uint32_t min_ranks, ferry_error *error);

/* So many, or until a file is there. */
static double seconds_of(const char *text)
{
    last_word = text[0] == '/' ? text : NULL;
    return last_word == NULL ? atof(text) : 3600;
}

/* A loop, and then all are there once more: who was hurt before the end is missed. */
static ferry_status loop_and_meet(double seconds, ferry_error *error)
{
    ferry_status status = loop(seconds, error);
    return status == FERRY_OK ? ferry_world_barrier(world, error) : status;
}

/*
 * For so many seconds, or until a file is there. A shrink fails when somebody dies during it;
 * whoever was counted as lost is told so and ends.
 */
static ferry_status survive(const char *text, ferry_error *error)
{
    double until = now() + seconds_of(text);
    ferry_status status = loop_and_meet(until - now(), error);
    for (int i = 0; status != FERRY_OK && i < 6; i++) {
        report("loop", status, 0, error);
        double before = now();
        status = shrink(0, error);
        report("shrink", status, (now() - before) * 1e3, error);
        if (status == FERRY_OK) {
            double left = until - now();
            status = loop_and_meet(left < 0.1 ? 0.1 : left, error);
        }
    }
    return status;
}

static void swap(void)
{
    ferry_world *kept_world = world;
    ferry_transport *kept_transport = transport;
    world = other_world;
    transport = other_transport;
    other_world = kept_world;
    other_transport = kept_transport;
}

typedef struct second {
    double seconds;
    ferry_status status;
    ferry_error error;
} second;

static void *loop_second(void *context)
{
    second *own = context;
    world = other_world;
    own->status = loop(own->seconds, &own->error);
    return NULL;
}

static ferry_status both(double seconds, ferry_error *error)
{
    second own = {.seconds = seconds};
    pthread_t thread;
    ferry_status status = start_thread(loop_second, &own, &thread, error);
    if (status == FERRY_OK) {
        status = loop(seconds, error);
        pthread_join(thread, NULL);
        if (status == FERRY_OK && own.status != FERRY_OK) {
            *error = own.error;
            status = own.status;
        }
    }
    return status;
}

static void ignore(int number)
{
    (void)number;
}

static void interrupt(double ms)
{
    struct sigaction action = {.sa_handler = ignore};
    struct itimerval timer = {.it_interval.tv_usec = (suseconds_t)(ms * 1000),
                              .it_value.tv_usec = (suseconds_t)(ms * 1000)};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static ferry_status create_from_file(const char *text, ferry_error *error)
{
    char path[512];
    unsigned rank, n;
    if (sscanf(text, "%500[^:]:%u:%u", path, &rank, &n) != 3) {
        return wrong(error, "file:PATH:RANK:N");
    }
    return ferry_world_create_from_file(path, rank, n, NULL, &world, error);
}

static ferry_status repeat(const char *op, uint64_t count, uint64_t bytes, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; status == FERRY_OK && i < count; i++) {
        status = op[0] == 'g'                 ? gather_once(bytes, i, error)
                 : op[0] == 'm'               ? message_once(i, error)
                 : strcmp(op, "barrier") == 0 ? ferry_world_barrier(world, error)
                                              : broadcast_once(i, error);
    }
    return status;
}

/* Steps that cannot fail, but for those that there are not. */
static ferry_status act(const char *op, const char *argument, ferry_error *error)
{
    double number = atof(argument);
    if (strcmp(op, "swap") == 0) {
        swap();
    } else if (strcmp(op, "interrupts") == 0) {
        interrupt(number);
    } else if (strcmp(op, "sleep") == 0) {
        sleep_for(number);
    } else if (strcmp(op, "await") == 0) {
        await(argument);
    } else if (strcmp(op, "signal") == 0) {
        raise((int)number);
    } else if (strcmp(op, "abort") == 0) {
        ferry_world_abort(world, argument);
    } else if (strcmp(op, "close") == 0) {
        ferry_transport_close(transport);
        transport = NULL;
    } else if (strcmp(op, "destroy") == 0) {
        set_abortable(NULL);
        ferry_transport_close(transport);
        ferry_world_destroy(world);
        transport = NULL;
        world = NULL;
    } else if (strcmp(op, "count") != 0) {
        return wrong(error, "no such step");
    }
    return FERRY_OK;
}

static ferry_status run(const char *op, const char *argument, ferry_error *error)
{
    double number = atof(argument);
    if (strcmp(op, "create") == 0) {
        return ferry_world_create(NULL, &world, error);
    }
    if (strcmp(op, "file") == 0) {
        return create_from_file(argument, error);
    }
    if (strcmp(op, "barrier") == 0 || strcmp(op, "broadcast") == 0 || strcmp(op, "messages") == 0) {
        return repeat(op, (uint64_t)number, 0, error);
    }
    if (strcmp(op, "gather") == 0) {
        const char *count = strchr(argument, ':');
        return repeat(op, count == NULL ? 1 : (uint64_t)atoi(count + 1), (uint64_t)number, error);
    }
    if (strcmp(op, "loop") == 0) {
        return loop(seconds_of(argument), error);
    }
    if (strcmp(op, "open") == 0) {
        return ferry_transport_open(world, argument[0] == '\0' ? NULL : argument, &transport,
                                    error);
    }
    if (strcmp(op, "traffic") == 0) {
        return traffic(number, error);
    }
    if (strcmp(op, "first") == 0) {
        return say_first(argument, error);
    }
    if (strcmp(op, "wait") == 0) {
        return wait_for_ever(number, error);
    }
    if (strcmp(op, "state") == 0) {
        return ferry_world_state(world, NULL, error);
    }
    if (strcmp(op, "shrink") == 0) {
        return shrink((uint32_t)number, error);
    }
    if (strcmp(op, "soon") == 0) {
        return soon(argument, error);
    }
    if (strcmp(op, "survive") == 0) {
        return survive(argument, error);
    }
    if (strcmp(op, "both") == 0) {
        return both(seconds_of(argument), error);
    }
    return act(op, argument, error);
}

static void report(const char *op, ferry_status status, double ms, const ferry_error *error)
{
    const char *engine = "";
    flockfile(stdout);
    if (transport != NULL && ferry_world_rank_count(world) > 1) {
        uint32_t next = (ferry_world_rank(world) + 1) % ferry_world_rank_count(world);
        ferry_transport_get_peer(transport, next, &engine, NULL, NULL);
    }
    printf("{\"t\":%.4f,\"rss_kb\":%zu,\"pid\":%d,\"op\":\"%s\",\"status\":\"%s\",\"ms\":%.1f,"
           "\"text\":",
           now(), resident_kb(), (int)getpid(), op, ferry_status_name(status), ms);
    print_text(status == FERRY_OK ? "" : error->message);
    printf(",\"rank\":%lld,\"n_ranks\":%lld,\"epoch\":%lld,\"nodes\":%lld,\"node\":%lld,"
           "\"engine\":\"%s\",\"fds\":%zu,\"threads\":%zu}\n",
           world == NULL ? -1LL : (long long)ferry_world_rank(world),
           world == NULL ? -1LL : (long long)ferry_world_rank_count(world),
           world == NULL ? -1LL : (long long)ferry_world_epoch(world),
           world == NULL ? -1LL : (long long)ferry_world_node_count(world),
           world == NULL ? -1LL : (long long)ferry_world_node_of(world, ferry_world_rank(world)),
           engine, count_entries("/proc/self/fd"), count_entries("/proc/self/task"));
    fflush(stdout);
    funlockfile(stdout);
}

int main(int argc, char **argv)
{
    int failed = 0;
    char op[32];
    for (int i = 1; i < argc; i++) {
        size_t length = strcspn(argv[i], ":=");
        size_t whole = strlen(argv[i]);
        bool last = argv[i][whole - 1] == '!';
        if (last) {
            argv[i][whole - 1] = '\0';
            length -= length == whole;
        }
        snprintf(op, sizeof op, "%.*s", (int)length, argv[i]);
        const char *argument = argv[i][length] == '\0' ? "" : argv[i] + length + 1;
        ferry_error error = {""};
        double before = now();
        ferry_status status = run(op, argument, &error);
        report(op, status, (now() - before) * 1e3, &error);
        failed |= status != FERRY_OK;
        if (last && status != FERRY_OK) {
            break;
        }
    }
    return failed;
}
