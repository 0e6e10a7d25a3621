/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways of copying a file into four, by two threads: what resharding is at its simplest. Every way
 * is taken once in each round, beginning with another one each time; a first round does not count.
 *
 *     bench_file_copy --folder DIR [--bytes N] [--rounds R] [--only TEXT] [--order files|windows]
 *                     [--cold 1] [--json FILE]
 *
 * A way's name is how bytes move and the window, then what is added: `hash` (XXH3 of each window,
 * where the bytes pass through memory anyway, else where they are mapped), `alloc` (fallocate
 * first), `early` (sync_file_range starts writing back each 8 MiB behind the copy). `direct` writes
 * around the page cache. --only takes the ways whose name has TEXT; with --order windows both
 * threads take the next window of the source, instead of two of the files each. Times are from
 * creating the files until syncfs has returned; `copied` is without that. Results are deleted, and
 * that is synced and its discards waited for, before the next way. --bytes may end in K, M or G; it
 * is rounded up to 16 MiB.
 */
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { N_FILES = 4, N_THREADS = 2, MOST_ROUNDS = 31, MOST_WAYS = 64 };

static const uint64_t MIB = 1 << 20, EARLY = 8 << 20;

typedef enum method { READ_WRITE, DIRECT, MAPPED, RANGE, N_METHODS } method;

static const char *const method_names[N_METHODS] = {"pread+pwrite", "pread+direct", "mmap+pwrite",
                                                    "copy_file_range"};

typedef struct way {
    char name[64];
    method method;
    size_t window;
    bool hash, allocate, early;
    bool is_refused; /* this file system cannot */
    double seconds[MOST_ROUNDS], copied[MOST_ROUNDS], cpu[MOST_ROUNDS];
} way;

typedef struct bench {
    const char *folder, *only;
    FILE *json;
    uint64_t bytes; /* of the source; each result has a fourth */
    int n_rounds;
    bool by_windows, is_cold;
    int source, results[N_FILES];
    const char *mapped;
    way ways[MOST_WAYS];
    int n_ways;
} bench;

typedef struct worker {
    bench *bench;
    const way *way;
    atomic_uint_fast64_t *next; /* the next window, for all */
    int number;
    char *buffer;
    uint64_t early_begin, hashes;
    int error;
} worker;

static void fail(const char *what)
{
    fprintf(stderr, "bench_file_copy: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- one way ---- */

static bool read_window(int file, char *to, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(file, to + done, n - done, (off_t)(at + done));
        if (got <= 0) {
            errno = got == 0 ? EIO : errno;
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

static bool write_window(int file, const char *from, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(file, from + done, n - done, (off_t)(at + done));
        if (put <= 0) {
            errno = put == 0 ? EIO : errno;
            return false;
        }
        done += (size_t)put;
    }
    return true;
}

static bool copy_range(int from, int to, size_t n, uint64_t from_at, uint64_t to_at)
{
    off_t in = (off_t)from_at, out = (off_t)to_at;
    while (n > 0) {
        ssize_t done = copy_file_range(from, &in, to, &out, n, 0);
        if (done <= 0) {
            errno = done == 0 ? EIO : errno;
            return false;
        }
        n -= (size_t)done;
    }
    return true;
}

static bool copy_window(worker *w, int file, size_t n, uint64_t from_at, uint64_t to_at)
{
    const bench *b = w->bench;
    const char *bytes = w->way->method >= MAPPED ? b->mapped + from_at : w->buffer;
    int to = b->results[file];
    if (bytes == w->buffer && !read_window(b->source, w->buffer, n, from_at)) {
        return false;
    }
    if (w->way->hash) {
        w->hashes += fy_hash64(bytes, n);
    }
    if (w->way->method == RANGE) {
        return copy_range(b->source, to, n, from_at, to_at);
    }
    return write_window(to, bytes, n, to_at);
}

/* Starts writing back what lies behind the copy, once it is enough. */
static bool start_early(worker *w, int file, uint64_t end, bool is_last)
{
    if (!w->way->early || (end - w->early_begin < EARLY && !is_last)) {
        return true;
    }
    bool ok = sync_file_range(w->bench->results[file], (off_t)w->early_begin,
                              (off_t)(end - w->early_begin), SYNC_FILE_RANGE_WRITE) == 0;
    w->early_begin = is_last ? 0 : end;
    return ok;
}

static bool copy_files(worker *w)
{
    uint64_t each = w->bench->bytes / N_FILES;
    size_t n = w->way->window;
    int own = N_FILES / N_THREADS;
    for (int file = w->number * own; file < (w->number + 1) * own; file++) {
        for (uint64_t at = 0; at < each; at += n) {
            if (!copy_window(w, file, n, (uint64_t)file * each + at, at) ||
                !start_early(w, file, at + n, at + n == each)) {
                return false;
            }
        }
    }
    return true;
}

/* Write-back is started for each window by itself here: a thread's windows are no range. */
static bool copy_windows(worker *w)
{
    uint64_t each = w->bench->bytes / N_FILES;
    size_t n = w->way->window;
    for (;;) {
        uint64_t at = atomic_fetch_add(w->next, 1) * n;
        if (at >= w->bench->bytes) {
            return true;
        }
        int file = (int)(at / each);
        w->early_begin = at % each;
        if (!copy_window(w, file, n, at, at % each) ||
            (w->way->early && !start_early(w, file, at % each + n, true))) {
            return false;
        }
    }
}

static void *work(void *context)
{
    worker *w = context;
    bool ok = w->bench->by_windows ? copy_windows(w) : copy_files(w);
    w->error = ok ? 0 : errno;
    return NULL;
}

static void result_path(const bench *b, int file, char path[4096])
{
    snprintf(path, 4096, "%s/file-copy-%d", b->folder, file);
}

/* 0, or the errno of a system call that this file system refuses. */
static int open_results(bench *b, const way *it)
{
    char path[4096];
    for (int i = 0; i < N_FILES; i++) {
        result_path(b, i, path);
        int direct = it->method == DIRECT ? O_DIRECT : 0;
        b->results[i] = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC | direct, 0666);
        if (b->results[i] < 0) {
            return errno;
        }
        off_t size = (off_t)(b->bytes / N_FILES);
        if (it->allocate ? fallocate(b->results[i], 0, 0, size) != 0
                         : ftruncate(b->results[i], size) != 0) {
            return errno;
        }
    }
    return 0;
}

static void sync_folder(const bench *b)
{
    int folder = open(b->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || syncfs(folder) != 0) {
        fail(b->folder);
    }
    close(folder);
}

/* Requests on their way, and discards so far; false where the device does not say. */
static bool read_counters(const bench *b, unsigned long long counters_out[2])
{
    char path[128], format[] = "%*u %*u %*u %*u %*u %*u %*u %*u %llu %*u %*u %llu";
    struct stat about;
    if (stat(b->folder, &about) != 0) {
        return false;
    }
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/stat", major(about.st_dev),
             minor(about.st_dev));
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool ok = fscanf(file, format, &counters_out[0], &counters_out[1]) == 2;
    fclose(file);
    return ok;
}

/* Until nothing was discarded for half a second, and nothing is on its way; a minute at most. */
static void wait_for_discards(const bench *b)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    unsigned long long last[2], now[2] = {1, 0};
    int n_quiet = 0;
    for (int i = 0; i < 3000 && (n_quiet < 25 || now[0] != 0) && read_counters(b, last); i++) {
        nanosleep(&pause, NULL);
        n_quiet = read_counters(b, now) && now[1] == last[1] ? n_quiet + 1 : 0;
    }
}

static void remove_results(bench *b)
{
    char path[4096];
    for (int i = 0; i < N_FILES; i++) {
        if (b->results[i] >= 0) {
            close(b->results[i]);
        }
        b->results[i] = -1;
        result_path(b, i, path);
        unlink(path);
    }
    sync_folder(b);
    wait_for_discards(b);
}

static int run_threads(bench *b, const way *it, char *buffers[N_THREADS])
{
    atomic_uint_fast64_t next = 0;
    worker workers[N_THREADS];
    pthread_t threads[N_THREADS];
    int error = 0;
    for (int i = 0; i < N_THREADS; i++) {
        workers[i] =
            (worker){.bench = b, .way = it, .next = &next, .number = i, .buffer = buffers[i]};
        if ((errno = pthread_create(&threads[i], NULL, work, &workers[i])) != 0) {
            fail("a thread");
        }
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        error = workers[i].error != 0 ? workers[i].error : error;
    }
    return error;
}

/* Whether the results hold what the source does; read through the page cache. */
static bool is_equal(const bench *b, char *buffer)
{
    uint64_t each = b->bytes / N_FILES;
    for (int file = 0; file < N_FILES; file++) {
        for (uint64_t at = 0; at < each; at += 4 * MIB) {
            if (!read_window(b->results[file], buffer, (size_t)(4 * MIB), at) ||
                memcmp(buffer, b->mapped + (uint64_t)file * each + at, (size_t)(4 * MIB)) != 0) {
                return false;
            }
        }
    }
    return true;
}

static void warm_or_cool(const bench *b, char *buffer)
{
    if (b->is_cold) {
        if (posix_fadvise(b->source, 0, 0, POSIX_FADV_DONTNEED) != 0) {
            fail("dropping the source from the page cache");
        }
        return;
    }
    for (uint64_t at = 0; at < b->bytes; at += 4 * MIB) {
        if (!read_window(b->source, buffer, (size_t)(4 * MIB), at)) {
            fail("reading the source");
        }
    }
}

/* The mapping is made for each run: pages of an older one would be mapped already, and stay. */
static void map_source(bench *b)
{
    b->mapped = mmap(NULL, b->bytes, PROT_READ, MAP_SHARED, b->source, 0);
    if (b->mapped == MAP_FAILED) {
        fail("mapping the source");
    }
    madvise((void *)(uintptr_t)b->mapped, b->bytes, MADV_SEQUENTIAL);
}

static void run_way(bench *b, way *it, int round, char *buffers[N_THREADS])
{
    warm_or_cool(b, buffers[0]);
    double cpu = now_s(CLOCK_PROCESS_CPUTIME_ID), begin = now_s(CLOCK_MONOTONIC);
    map_source(b);
    int error = open_results(b, it);
    error = error == 0 ? run_threads(b, it, buffers) : error;
    if (error == EINVAL || error == EOPNOTSUPP || error == EXDEV || error == ENOSYS) {
        it->is_refused = true;
    } else if (error != 0) {
        errno = error;
        remove_results(b);
        fail(it->name);
    }
    double copied = now_s(CLOCK_MONOTONIC) - begin;
    sync_folder(b);
    double seconds = now_s(CLOCK_MONOTONIC) - begin;
    cpu = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    if (round < 0 && !it->is_refused && !is_equal(b, buffers[0])) {
        fprintf(stderr, "bench_file_copy: %s: the results differ from the source\n", it->name);
        exit(1);
    }
    munmap((void *)(uintptr_t)b->mapped, b->bytes);
    remove_results(b);
    if (round >= 0) {
        it->seconds[round] = seconds;
        it->copied[round] = copied;
        it->cpu[round] = cpu;
    }
}

/* ---- all of them ---- */

static void add_way(bench *b, method kind, size_t window, int extras)
{
    way *it = &b->ways[b->n_ways];
    const char *unit = window >= MIB ? "M" : "K";
    size_t number = window >= MIB ? window >> 20 : window >> 10;
    *it = (way){.method = kind,
                .window = window,
                .hash = (extras & 1) != 0,
                .allocate = (extras & 2) != 0,
                .early = (extras & 4) != 0};
    snprintf(it->name, sizeof it->name, "%s %zu%s%s%s%s", method_names[kind], number, unit,
             it->hash ? " hash" : "", it->allocate ? " alloc" : "", it->early ? " early" : "");
    if (b->only == NULL || strstr(it->name, b->only) != NULL) {
        b->n_ways++;
    }
}

/* Every window plain and with the hash; every mixture of what is added at one window. */
static void add_ways(bench *b)
{
    for (method kind = 0; kind < N_METHODS; kind++) {
        for (size_t window = 64 << 10; window <= 4 << 20; window *= 4) {
            for (int extras = 0; extras < (window == 1 << 20 ? 8 : 2); extras++) {
                add_way(b, kind, window, extras);
            }
        }
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *values, int n, int fourths)
{
    double sorted[MOST_ROUNDS];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    return sorted[(n - 1) * fourths / 4];
}

static void report(const bench *b)
{
    printf("%-40s %8s %8s %8s %8s %8s\n", "way", "GB/s", "spread", "copied", "cpu s", "of first");
    for (int i = 0; i < b->n_ways; i++) {
        const way *it = &b->ways[i];
        int n = b->n_rounds;
        double ratios[MOST_ROUNDS], bytes = (double)b->bytes * 1e-9;
        if (it->is_refused) {
            printf("%-40s        -\n", it->name);
            continue;
        }
        for (int r = 0; r < n; r++) {
            ratios[r] = b->ways[0].seconds[r] / it->seconds[r];
        }
        double middle = quantile(it->seconds, n, 2);
        double spread = (quantile(it->seconds, n, 3) - quantile(it->seconds, n, 1)) / middle;
        double copied = quantile(it->copied, n, 2), cpu = quantile(it->cpu, n, 2);
        double over = b->ways[0].is_refused ? 0 : quantile(ratios, n, 2);
        printf("%-40s %8.3f %7.1f%% %8.3f %8.2f %8.3f\n", it->name, bytes / middle, spread * 100,
               bytes / copied, cpu, over);
        if (b->json != NULL) {
            fprintf(b->json,
                    "%s\n  {\"way\": \"%s\", \"gbytes_per_s\": %.4g, \"spread\": %.3f, "
                    "\"copied_gbytes_per_s\": %.4g, \"cpu_s\": %.4g, \"over_first\": %.3f}",
                    i == 0 ? "" : ",", it->name, bytes / middle, spread, bytes / copied, cpu, over);
        }
    }
}

static void make_source(bench *b, char *buffer)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/file-copy-source", b->folder);
    b->source = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0666);
    if (b->source < 0) {
        fail(path);
    }
    unlink(path); /* it lives as long as this process */
    uint64_t x = 1;
    for (uint64_t at = 0; at < b->bytes; at += 4 * MIB) {
        for (size_t i = 0; i < 4 * MIB; i += sizeof x) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            memcpy(buffer + i, &x, sizeof x);
        }
        if (!write_window(b->source, buffer, (size_t)(4 * MIB), at)) {
            fail("writing the source");
        }
    }
    sync_folder(b);
}

static uint64_t parse_bytes(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 10);
    int shift = *end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0;
    return n << shift;
}

static void read_arguments(bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--folder") == 0) {
            b->folder = value;
        } else if (strcmp(argv[i], "--bytes") == 0) {
            b->bytes = parse_bytes(value);
        } else if (strcmp(argv[i], "--rounds") == 0) {
            b->n_rounds = atoi(value);
        } else if (strcmp(argv[i], "--only") == 0) {
            b->only = value;
        } else if (strcmp(argv[i], "--order") == 0) {
            b->by_windows = strcmp(value, "windows") == 0;
        } else if (strcmp(argv[i], "--cold") == 0) {
            b->is_cold = atoi(value) != 0;
        } else if (strcmp(argv[i], "--json") == 0) {
            if ((b->json = fopen(value, "w")) == NULL) {
                fail(value);
            }
        } else {
            fprintf(stderr, "bench_file_copy: unknown option %s\n", argv[i]);
            exit(2);
        }
    }
    if (b->folder == NULL) {
        fprintf(stderr, "bench_file_copy: --folder DIR is needed\n");
        exit(2);
    }
    b->bytes = (b->bytes + 16 * MIB - 1) / (16 * MIB) * (16 * MIB);
    b->bytes = b->bytes == 0 ? 16 * MIB : b->bytes;
    b->n_rounds = b->n_rounds < 1 ? 1 : b->n_rounds > MOST_ROUNDS ? MOST_ROUNDS : b->n_rounds;
}

static void write_head(const bench *b)
{
    double busy = -1;
    if (getloadavg(&busy, 1) < 1) {
        busy = -1;
    }
    printf("%ld cores, load %.2f, %llu MiB, %d rounds, by %s, page cache %s\n",
           sysconf(_SC_NPROCESSORS_ONLN), busy, (unsigned long long)(b->bytes >> 20), b->n_rounds,
           b->by_windows ? "windows" : "files", b->is_cold ? "cold" : "warm");
    if (b->json != NULL) {
        fprintf(b->json,
                "{\"cores\": %ld, \"load\": %.2f, \"bytes\": %llu, \"rounds\": %d, "
                "\"order\": \"%s\", \"page_cache\": \"%s\",\n \"cases\": [",
                sysconf(_SC_NPROCESSORS_ONLN), busy, (unsigned long long)b->bytes, b->n_rounds,
                b->by_windows ? "windows" : "files", b->is_cold ? "cold" : "warm");
    }
}

int main(int argc, char **argv)
{
    static bench b = {.bytes = 1 << 30, .n_rounds = 5, .results = {-1, -1, -1, -1}};
    char *buffers[N_THREADS];
    read_arguments(&b, argc, argv);
    add_ways(&b);
    if (b.n_ways == 0) {
        fprintf(stderr, "bench_file_copy: no way has %s in its name\n", b.only);
        return 2;
    }
    for (int i = 0; i < N_THREADS; i++) {
        if ((buffers[i] = aligned_alloc(4096, (size_t)(4 * MIB))) == NULL) {
            fail("a buffer");
        }
    }
    make_source(&b, buffers[0]);
    write_head(&b);
    for (int round = -1; round < b.n_rounds; round++) { /* the first warms up */
        for (int i = 0; i < b.n_ways; i++) {
            way *it = &b.ways[(i + round + 1) % b.n_ways];
            if (!it->is_refused) {
                run_way(&b, it, round, buffers);
            }
        }
    }
    report(&b);
    if (b.json != NULL) {
        fprintf(b.json, "\n]}\n");
        fclose(b.json);
    }
    for (int i = 0; i < N_THREADS; i++) {
        free(buffers[i]);
    }
    close(b.source);
    return 0;
}
