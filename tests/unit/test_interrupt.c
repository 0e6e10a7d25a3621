/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A caller who thinks better of it while a world is made: wherever the call waits it ends with
 * FERRY_ERR_STOPPED and leaves nothing behind. Every limit is longer than the test may take, so
 * that nothing else ends a wait.
 */
#include "support/check.h"

#include <ferry/world.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LONG_SECONDS 3600.0

/* Says yes to question number last, or once the flag is set. */
typedef struct wish {
    pthread_t thread;
    int last;
    atomic_bool *flag; /* NULL: none */
    int n_asked;
    bool is_wrong; /* asked by another thread, or again after a yes */
    bool said_yes;
} wish;

static bool ask(void *context)
{
    wish *own = context;
    own->is_wrong = own->is_wrong || own->said_yes || !pthread_equal(own->thread, pthread_self());
    own->n_asked++;
    own->said_yes = own->flag != NULL ? atomic_load(own->flag) : own->n_asked == own->last;
    return own->said_yes;
}

/* That of this thread, where one function and context are those of several. */
static _Thread_local wish *wish_here;

static void wish_from_here(wish *own)
{
    own->thread = pthread_self();
    wish_here = own;
}

static ferry_world_options options_of(wish *own)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    wish_from_here(own);
    options.deadline_seconds = LONG_SECONDS;
    options.join_seconds = LONG_SECONDS;
    options.is_interrupted = ask;
    options.interrupt_context = own;
    return options;
}

/* Threads and descriptors of this process. */
static size_t count_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t n = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    closedir(dir);
    return n;
}

typedef struct scene {
    char folder[64];
    char path[80];
    size_t n_fds;
    size_t n_threads;
} scene;

static void begin(scene *s)
{
    strcpy(s->folder, "/tmp/ferry-interrupt-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->path, sizeof s->path, "%s/ranks", s->folder);
    s->n_fds = count_entries("/proc/self/fd");
    s->n_threads = count_entries("/proc/self/task");
}

/* A thread that was waited for is still counted for a moment, until the kernel has done with it. */
static bool has_threads(size_t n)
{
    for (int ms = 0; count_entries("/proc/self/task") != n && ms < 60000; ms++) {
        usleep(1000);
    }
    return count_entries("/proc/self/task") == n;
}

static void end(const char *row, scene *s, bool may_keep_file)
{
    check_row(row, count_entries("/proc/self/fd") == s->n_fds);
    check_row(row, has_threads(s->n_threads));
    check_row(row, unlink(s->path) != 0 || may_keep_file);
    check_row(row, rmdir(s->folder) == 0);
}

static void check_stopped(const char *row, const wish *own, ferry_status status,
                          const ferry_error *error)
{
    check_status(row, FERRY_ERR_STOPPED, status, error);
    check_says(row, "is_interrupted", error);
    check_row(row, own->said_yes && !own->is_wrong);
}

/* Nobody else comes: before the first wait, and after some. */
static void test_alone(void **state)
{
    (void)state;
    static const int lasts[] = {1, 2, 7};
    for (size_t i = 0; i < COUNT_OF(lasts); i++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            char row[48];
            scene s;
            wish own = {.last = lasts[i]};
            ferry_world *world = NULL;
            ferry_error error = {""};
            snprintf(row, sizeof row, "rank %u, question %d", rank, lasts[i]);
            begin(&s);
            ferry_world_options options = options_of(&own);
            ferry_status status =
                ferry_world_create_from_file(s.path, rank, 2, &options, &world, &error);
            check_stopped(row, &own, status, &error);
            assert_null(world);
            end(row, &s, false);
        }
    }
}

static int listen_here(uint16_t *port_out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port_out = ntohs(address.sin_port);
    return fd;
}

/* By the variables: where rank 0 should be somebody takes connections and says nothing. */
static void test_mute_root(void **state)
{
    (void)state;
    uint16_t port;
    int fd = listen_here(&port);
    char text[8];
    snprintf(text, sizeof text, "%u", port);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text, 1);
    scene s;
    wish own = {.last = 3};
    ferry_world *world = NULL;
    ferry_error error = {""};
    begin(&s);
    ferry_world_options options = options_of(&own);
    ferry_status status = ferry_world_create(&options, &world, &error);
    check_stopped("mute root", &own, status, &error);
    end("mute root", &s, false);
    close(fd);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
}

/* A rank on a thread of its own. */
typedef struct rank_of {
    pthread_t thread;
    const char *path;
    uint32_t rank;
    uint32_t n_ranks;
    wish own;
    ferry_status status;
    ferry_error error;
    ferry_world *world;
    ferry_world *smaller;
} rank_of;

static void *join_rank(void *context)
{
    rank_of *self = context;
    ferry_world_options options = options_of(&self->own);
    self->status = ferry_world_create_from_file(self->path, self->rank, self->n_ranks, &options,
                                                &self->world, &self->error);
    return NULL;
}

/*
 * Rank 2 of 3 never comes. One of the others stops at one of its questions, whatever it then waits
 * for; the other loses it and says so, for its own wish never comes true.
 */
static void test_taken_in(void **state)
{
    (void)state;
    size_t n_lost = 0;
    for (int last = 1; last <= 6; last++) {
        for (uint32_t stops = 0; stops < 2; stops++) {
            char row[48];
            scene s;
            rank_of ranks[2] = {{.rank = 0}, {.rank = 1}};
            snprintf(row, sizeof row, "rank %u, question %d", stops, last);
            begin(&s);
            atomic_bool over = false;
            ranks[stops].own.last = last;
            ranks[1 - stops].own.flag = &over;
            for (uint32_t r = 0; r < 2; r++) {
                ranks[r].path = s.path;
                ranks[r].n_ranks = 3;
                assert_int_equal(pthread_create(&ranks[r].thread, NULL, join_rank, &ranks[r]), 0);
            }
            pthread_join(ranks[stops].thread, NULL);
            check_stopped(row, &ranks[stops].own, ranks[stops].status, &ranks[stops].error);
            /* The other one may have heard of it already; where it never met it, it does now. */
            atomic_store(&over, true);
            pthread_join(ranks[1 - stops].thread, NULL);
            check_row(row, ranks[1 - stops].status == FERRY_ERR_STOPPED ||
                               ranks[1 - stops].status == FERRY_ERR_PEER_LOST);
            n_lost += ranks[1 - stops].status == FERRY_ERR_PEER_LOST;
            end(row, &s, true);
        }
    }
    assert_true(n_lost > 0); /* somebody had met somebody */
}

/* Three make a world, which ends. One shrinks alone and stops; then all do, and are a world. */
static void *shrink_rank(void *context)
{
    rank_of *self = context;
    wish_from_here(&self->own);
    self->status = ferry_world_shrink(self->world, 0, &self->smaller, &self->error);
    return NULL;
}

static void shrink_all(const char *row, rank_of *ranks, uint32_t n_ranks)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, shrink_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        check_status(row, FERRY_OK, ranks[r].status, &ranks[r].error);
        check_row(row, ferry_world_rank_count(ranks[r].smaller) == n_ranks);
    }
}

static void *leave_rank(void *context)
{
    rank_of *self = context;
    ferry_world_destroy(self->smaller);
    ferry_world_destroy(self->world);
    return NULL;
}

static void check_shrink(const char *row, rank_of *ranks, uint32_t n_ranks, uint32_t stops)
{
    ferry_error error = {""};
    ferry_world_abort(ranks[0].world, "enough");
    for (uint32_t r = 0; r < n_ranks; r++) { /* the news is on its way to the others */
        const void *bytes;
        size_t n_bytes;
        ferry_status status = ferry_world_receive(ranks[r].world, FERRY_ANY_RANK, 1, -1, &bytes,
                                                  &n_bytes, NULL, &error);
        check_status(row, FERRY_ERR_ABORTED, status, &error);
    }
    for (int last = 1; last <= 4; last++) { /* again and again */
        wish *own = &ranks[stops].own;
        *own = (wish){.last = last};
        wish_from_here(own);
        check_stopped(row, own,
                      ferry_world_shrink(ranks[stops].world, 0, &ranks[stops].smaller, &error),
                      &error);
        check_row(row, own->n_asked == last);
        *own = (wish){.thread = pthread_self()};
    }
    shrink_all(row, ranks, n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, leave_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
}

static void test_shrink(void **state)
{
    (void)state;
    for (uint32_t stops = 0; stops < 3; stops++) {
        char row[48];
        scene s;
        rank_of ranks[3] = {{0}};
        snprintf(row, sizeof row, "processes, rank %u", stops);
        begin(&s);
        for (uint32_t r = 0; r < 3; r++) {
            ranks[r] = (rank_of){.path = s.path, .rank = r, .n_ranks = 3};
            assert_int_equal(pthread_create(&ranks[r].thread, NULL, join_rank, &ranks[r]), 0);
        }
        for (uint32_t r = 0; r < 3; r++) {
            pthread_join(ranks[r].thread, NULL);
            check_status(row, FERRY_OK, ranks[r].status, &ranks[r].error);
        }
        check_shrink(row, ranks, 3, stops);
        end(row, &s, false);
    }
}

/* Options are the same for all threads, which have wishes of their own. */
static bool ask_own(void *context)
{
    (void)context;
    return wish_here != NULL && ask(wish_here);
}

static void test_shrink_threads(void **state)
{
    (void)state;
    for (uint32_t stops = 0; stops < 3; stops++) {
        char row[48];
        scene s;
        ferry_error error;
        ferry_world *worlds[3];
        rank_of ranks[3] = {{0}};
        wish none = {0};
        ferry_world_options options = options_of(&none);
        snprintf(row, sizeof row, "threads, rank %u", stops);
        begin(&s);
        wish_here = NULL;
        options.is_interrupted = ask_own;
        must(ferry_world_create_threads(3, &options, worlds, &error), &error);
        for (uint32_t r = 0; r < 3; r++) {
            ranks[r].world = worlds[r];
        }
        check_shrink(row, ranks, 3, stops);
        end(row, &s, false);
    }
}

static void *do_nothing(void *context)
{
    return context;
}

int main(void)
{
    pthread_t first; /* with which the thread sanitizer starts one of its own, for good */
    if (pthread_create(&first, NULL, do_nothing, NULL) == 0) {
        pthread_join(first, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),          cmocka_unit_test(test_mute_root),
        cmocka_unit_test(test_taken_in),       cmocka_unit_test(test_shrink),
        cmocka_unit_test(test_shrink_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
