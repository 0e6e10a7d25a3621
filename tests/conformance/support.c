/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "conformance/suite.h"

#include "support/devices.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

_Noreturn void fail_run(const rank_context *me, const char *file, int line, const char *format, ...)
{
    uint32_t none = 0;
    const char *name = strrchr(file, '/');
    if (atomic_compare_exchange_strong(&me->shared->failed, &none, 1)) {
        char text[REPORT_BYTES / 2];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        snprintf(me->shared->report, REPORT_BYTES, "rank %u of %u, %s:%d: %s", (unsigned)me->rank,
                 (unsigned)me->n_ranks, name == NULL ? file : name + 1, line, text);
        atomic_store(&me->shared->failed, 2);
    }
    _exit(1); /* of threads, all of them: the one that runs the suite reports and goes on */
}

void check_failure(const rank_context *me, const char *file, int line, const char *call,
                   ferry_status wanted, const char *words, ferry_status got)
{
    if (got != wanted) {
        fail_run(me, file, line, "%s: %s, not %s: %s", call, ferry_status_name(got),
                 ferry_status_name(wanted), got == FERRY_OK ? "" : me->error.message);
    }
    if (me->error.message[0] == '\0') {
        fail_run(me, file, line, "%s: %s has no sentence", call, ferry_status_name(got));
    }
    if (words != NULL && strstr(me->error.message, words) == NULL) {
        fail_run(me, file, line, "%s: \"%s\" does not say \"%s\"", call, me->error.message, words);
    }
}

typedef struct outcome {
    uint32_t status;
    char message[FERRY_ERROR_BYTES];
} outcome;

void all_same(rank_context *me, const char *what, ferry_status got, ferry_status wanted,
              const char *words)
{
    outcome mine = {.status = (uint32_t)got};
    const void *all = NULL;
    if (got != FERRY_OK) {
        snprintf(mine.message, sizeof mine.message, "%s", me->error.message);
    }
    must(me, ferry_world_all_gather(me->world, &mine, sizeof mine, &all, &me->error));
    const outcome *theirs = all;
    for (uint32_t r = 0; r < me->n_ranks; r++) {
        if (theirs[r].status != (uint32_t)wanted) {
            fail(me, "%s: rank %u: %s, not %s: %.600s", what, (unsigned)r,
                 ferry_status_name((ferry_status)theirs[r].status), ferry_status_name(wanted),
                 theirs[r].message);
        }
        if (strcmp(theirs[r].message, theirs[0].message) != 0) {
            fail(me, "%s: rank %u says \"%.300s\", rank 0 \"%.300s\"", what, (unsigned)r,
                 theirs[r].message, theirs[0].message);
        }
    }
    if (wanted != FERRY_OK && strlen(mine.message) < 10) {
        fail(me, "%s: %s has no sentence", what, ferry_status_name(wanted));
    }
    if (words != NULL && strstr(mine.message, words) == NULL) {
        fail(me, "%s: \"%.600s\" does not say \"%s\"", what, mine.message, words);
    }
}

void *take(const rank_context *me, size_t bytes)
{
    void *memory = malloc(bytes == 0 ? 1 : bytes);
    if (memory == NULL) {
        fail(me, "the test itself has no memory for %zu bytes", bytes);
    }
    return memory;
}

void fill(void *bytes, size_t n_bytes, uint64_t seed)
{
    unsigned char *at = bytes;
    for (; n_bytes >= 8; n_bytes -= 8, at += 8) {
        uint64_t word = random_u64(&seed);
        memcpy(at, &word, 8);
    }
    uint64_t word = random_u64(&seed);
    memcpy(at, &word, n_bytes);
}

size_t mismatch(const void *bytes, size_t n_bytes, uint64_t seed)
{
    const unsigned char *begin = bytes;
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t word = random_u64(&seed);
        size_t n = n_bytes - i < 8 ? n_bytes - i : 8;
        if (memcmp(begin + i, &word, n) != 0) {
            unsigned char wanted[8];
            memcpy(wanted, &word, 8);
            for (size_t j = 0; j < n; j++) {
                if (begin[i + j] != wanted[j]) {
                    return i + j;
                }
            }
        }
    }
    return n_bytes;
}

size_t mismatch_byte(const void *bytes, size_t n_bytes, unsigned char value)
{
    const unsigned char *begin = bytes;
    for (size_t i = 0; i < n_bytes; i++) {
        if (begin[i] != value) {
            return i;
        }
    }
    return n_bytes;
}

void copy_flat(rank_context *me, ferry_buffer to, ferry_buffer from)
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

int32_t own_device(const rank_context *me)
{
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < me->rank; rank++) {
        n += ferry_world_node_of(me->world, rank) == ferry_world_node_of(me->world, me->rank);
    }
    return device_number((int32_t)n);
}

ferry_region *alloc_region(rank_context *me, uint64_t bytes)
{
    ferry_region *region = NULL;
    must(me, ferry_region_alloc(me->transport, FERRY_MEMORY_HOST, 0, bytes, &region, &me->error));
    expect(me, ferry_region_bytes(region) == bytes, "%llu, not %llu bytes",
           (unsigned long long)ferry_region_bytes(region), (unsigned long long)bytes);
    expect(me, ferry_region_base(region) != NULL, "a region of %llu bytes",
           (unsigned long long)bytes);
    return region;
}

void put(rank_context *me, uint32_t peer, ferry_region *region, uint64_t offset, const void *source,
         uint64_t bytes)
{
    ferry_buffer buffer = ferry_buffer_of(source, bytes);
    must(me, ferry_transport_put(me->transport, peer, region, offset, &buffer, NULL, &me->error));
}

void put_signal(rank_context *me, uint32_t peer, ferry_region *region, uint64_t offset,
                const void *source, uint64_t bytes, ferry_region *words, uint64_t word,
                uint64_t value, ferry_signal_op op)
{
    ferry_buffer buffer = ferry_buffer_of(source, bytes);
    ferry_signal signal = {.region = words, .offset = word * 8, .value = value, .op = (uint32_t)op};
    must(me, ferry_transport_put_signal(me->transport, peer, region, offset, &buffer, &signal, NULL,
                                        &me->error));
}

void raise_signal(rank_context *me, uint32_t peer, ferry_region *words, uint64_t word,
                  uint64_t value, ferry_signal_op op)
{
    put_signal(me, peer, words, 0, NULL, 0, words, word, value, op);
}

uint64_t wait_signal(rank_context *me, ferry_region *words, uint64_t word, ferry_compare compare,
                     uint64_t value, uint32_t from)
{
    uint64_t seen = 0;
    must(me, ferry_transport_wait_signal(me->transport, words, word * 8, compare, value, from,
                                         limit_of(me), &seen, NULL, &me->error));
    return seen;
}

void flush(rank_context *me, uint32_t peer)
{
    must(me, ferry_transport_flush(me->transport, peer, NULL, &me->error));
}

ferry_transport *open_transport(rank_context *me, ferry_world *world, const char *wrappers)
{
    char text[160];
    snprintf(text, sizeof text, "%s%s", wrappers, me->engine->engines);
    ferry_transport *transport = NULL;
    must(me, ferry_transport_open(world, text, &transport, &me->error));
    return transport;
}

static ferry_world *another_of_threads(rank_context *me, uint32_t number)
{
    ferry_world **worlds = me->extra + (size_t)number * MOST_RANKS;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.deadline_seconds = 10 * me->patience;
    if (me->rank == 0) {
        must(me, ferry_world_create_threads(me->n_ranks, &options, worlds, &me->error));
    }
    meet(me);
    return worlds[me->rank];
}

ferry_world *another_world(rank_context *me, uint32_t number)
{
    expect(me, number < MOST_EXTRA_WORLDS, "world number %u", (unsigned)number);
    if (me->engine->threads) {
        return another_of_threads(me, number);
    }
    char path[256];
    ferry_world *world = NULL;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.deadline_seconds = 10 * me->patience;
    snprintf(path, sizeof path, "%s/another-%u", me->folder, (unsigned)number);
    must(me,
         ferry_world_create_from_file(path, me->rank, me->n_ranks, &options, &world, &me->error));
    return world;
}

static size_t count_entries(const rank_context *me, const char *folder)
{
    DIR *dir = opendir(folder);
    size_t n = 0;
    if (dir == NULL) {
        fail(me, "%s cannot be read", folder);
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        n += entry->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

/*
 * Who joins a thread is let go before the kernel has taken it off the list: such a one has ended
 * all the same, and says so in its flags, which stand behind "PID (NAME) STATE" and five numbers.
 */
static bool is_ending(const char *number)
{
    enum { PF_EXITING = 4 };
    char path[64], text[512];
    unsigned long flags = 0;
    snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", number);
    FILE *file = fopen(path, "re");
    size_t used = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    text[used] = '\0';
    const char *end = strrchr(text, ')');
    bool is_read = end != NULL && sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags) == 1;
    if (file != NULL) {
        fclose(file);
    }
    return !is_read || (flags & PF_EXITING) != 0;
}

static size_t count_threads(const rank_context *me)
{
    DIR *dir = opendir("/proc/self/task");
    size_t n = 0;
    if (dir == NULL) {
        fail(me, "/proc/self/task cannot be read");
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        n += entry->d_name[0] != '.' && !is_ending(entry->d_name);
    }
    closedir(dir);
    return n;
}

/* The last of them, for who has one too many, is left in last. */
static size_t count_shared_maps(const rank_context *me, char last[512])
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    size_t n = 0;
    if (maps == NULL) {
        fail(me, "/proc/self/maps cannot be read");
    }
    while (fgets(line, sizeof line, maps) != NULL) {
        const char *mode = strchr(line, ' ');
        if (mode != NULL && strlen(mode) > 4 && mode[4] == 's') {
            memcpy(last, line, sizeof line);
            n++;
        }
    }
    fclose(maps);
    return n;
}

/* Threads of one process would count each other's open folder; a real device's driver is free. */
possessions possessions_of(const rank_context *me)
{
    if ((me->rank != 0 && me->engine->threads) || device_is_real()) {
        return (possessions){0};
    }
    char last[512];
    return (possessions){.fds = count_entries(me, "/proc/self/fd") - 1,
                         .threads = count_threads(me),
                         .shared_maps = count_shared_maps(me, last)};
}

/* Closed queues keep a little of a device's memory, until an allocation finds none there. */
static void ask_for_kept_memory(void)
{
    const char *kind = getenv("FERRY_TEST_MEMORY");
    for (int32_t device = 0; kind != NULL && strcmp(kind, "cuda") == 0 && device < 8; device++) {
        ferry_buffer none;
        (void)ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, device, (uint64_t)1 << 45, &none, NULL);
    }
}

void check_possessions(const rank_context *me, const possessions *before)
{
    possessions now = possessions_of(me);
    if (now.fds > before->fds || now.shared_maps > before->shared_maps) {
        ask_for_kept_memory();
        now = possessions_of(me);
    }
    int64_t end_ns = now_ns() + INT64_C(60000000000);
    /* Queues that copies of far memory took at the call are kept by the process, with threads. */
    bool is_far = getenv("FERRY_TEST_FAR") != NULL;
    /*
     * What a thread is about to give back, or a file that one looks into, shows for a moment; it
     * may have shown in the count before, too, so that fewer now are no fault: only a leak is.
     */
    while (((now.threads > before->threads && !is_far) || now.fds > before->fds ||
            now.shared_maps > before->shared_maps) &&
           now_ns() < end_ns) {
        sleep_ms(1);
        now = possessions_of(me);
    }
    expect(me, now.fds <= before->fds, "%zu descriptors before, %zu after", before->fds, now.fds);
    expect(me, now.threads <= before->threads || is_far, "%zu threads before, %zu after",
           before->threads, now.threads);
    if (now.shared_maps > before->shared_maps) {
        char last[512] = "none";
        (void)count_shared_maps(me, last);
        fail(me, "%zu shared mappings before, %zu after, the last is %s", before->shared_maps,
             now.shared_maps, last);
    }
}

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void sleep_ms(unsigned ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}
