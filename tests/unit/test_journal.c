/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/journal.h"

#include "base/alloc.h"
#include "checkpoint/folder.h"

#include "support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static int folder_fd = -1;

static const fy_journal_key KEY = {.part = {[FY_KEY_PROGRAM] = {.low = 17, .high = 3},
                                            [FY_KEY_SOURCE_FILES] = {.high = 0xfedcba9876543210},
                                            [FY_KEY_OPTIONS] = {.low = 1}}};

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ferry-test-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return folder_fd < 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlinkat(folder_fd, FY_JOURNAL_NAME, 0);
    unlinkat(folder_fd, "other", 0);
    close(folder_fd);
    return rmdir(folder);
}

/* Records that say by themselves whether they are right: value v of task t is 1000 t + v, and task
 * t has t values. */
enum { N_RECORDS = 5 };

static ferry_status append(const fy_journal *journal, uint64_t task, ferry_error *error)
{
    uint64_t values[64];
    for (uint64_t v = 0; v < task; v++) {
        values[v] = 1000 * task + v;
    }
    return fy_journal_append(journal, task, task == 0 ? NULL : values, (size_t)task, error);
}

typedef struct seen {
    uint64_t n;       /* they come in order, from task 0 */
    uint64_t fail_at; /* the visit that fails; 0: none, as visits count from 1 */
} seen;

static ferry_status see(void *context, uint64_t task, const uint64_t *values, size_t n_values,
                        ferry_error *error)
{
    seen *s = context;
    (void)error;
    assert_int_equal(task, s->n);
    assert_int_equal(n_values, task);
    for (uint64_t v = 0; v < n_values; v++) {
        assert_int_equal(values[v], 1000 * task + v);
    }
    s->n++;
    return s->n == s->fail_at ? FERRY_ERR_STOPPED : FERRY_OK;
}

static void write_journal(uint64_t n_records)
{
    ferry_error error;
    fy_journal journal = {.fd = -1};
    must(fy_journal_create(folder_fd, &KEY, &journal, &error), &error);
    for (uint64_t task = 0; task < n_records; task++) {
        must(append(&journal, task, &error), &error);
    }
    fy_journal_close(&journal);
    assert_int_equal(journal.fd, -1);
    fy_journal_close(&journal);
    fy_journal_close(NULL);
}

/* Returns why it does not fit, or NULL, and the number of records that were there. */
static const char *resume_key(const fy_journal_key *key, uint64_t *n_out)
{
    ferry_error error;
    fy_journal journal = {.fd = -1};
    seen s = {0};
    const char *misfit = "unset";
    must(fy_journal_resume(folder_fd, key, see, &s, &journal, &misfit, &error), &error);
    assert_true((misfit == NULL) == (journal.fd >= 0));
    assert_true(misfit == NULL || s.n == 0);
    assert_true(misfit != NULL || (fcntl(journal.fd, F_GETFD) & FD_CLOEXEC) != 0);
    fy_journal_close(&journal);
    *n_out = s.n;
    return misfit;
}

static bool resume(uint64_t *n_out)
{
    return resume_key(&KEY, n_out) == NULL;
}

static void test_round_trip(void **state)
{
    (void)state;
    uint64_t n;
    write_journal(N_RECORDS);
    for (int i = 0; i < 2; i++) { /* being read changes nothing */
        assert_true(resume(&n));
        assert_int_equal(n, N_RECORDS);
    }
    write_journal(0); /* anew */
    assert_true(resume(&n));
    assert_int_equal(n, 0);
}

static void test_another_key(void **state)
{
    (void)state;
    uint64_t n;
    write_journal(N_RECORDS);
    static const char *const says[FY_KEY_PARTS] = {[FY_KEY_PROGRAM] = "another version",
                                                   [FY_KEY_SOURCE_FILES] = "files of the source",
                                                   [FY_KEY_SOURCE_LAYOUT] = "layout of the source",
                                                   [FY_KEY_TARGET] = "target",
                                                   [FY_KEY_OPTIONS] = "options"};
    for (size_t i = 0; i < (size_t)2 * FY_KEY_PARTS; i++) {
        fy_journal_key other = KEY;
        *(i % 2 == 0 ? &other.part[i / 2].low : &other.part[i / 2].high) += 1;
        const char *misfit = resume_key(&other, &n);
        check_at(misfit != NULL && strstr(misfit, says[i / 2]) != NULL, "part %zu", i / 2);
    }
    assert_true(resume(&n) && n == N_RECORDS);
}

/* What no run has left is no journal: nothing is followed, waited for or changed. */
static void test_none(void **state)
{
    (void)state;
    uint64_t n;
    assert_false(resume(&n));
    write_journal(N_RECORDS);
    assert_int_equal(renameat(folder_fd, FY_JOURNAL_NAME, folder_fd, "other"), 0);
    assert_int_equal(symlinkat("other", folder_fd, FY_JOURNAL_NAME), 0);
    assert_false(resume(&n));
    write_journal(1); /* in the link's place */
    struct stat about;
    assert_int_equal(fstatat(folder_fd, "other", &about, 0), 0);
    assert_true(about.st_size > 100);
    unlinkat(folder_fd, FY_JOURNAL_NAME, 0);
    assert_int_equal(mkfifoat(folder_fd, FY_JOURNAL_NAME, 0600), 0);
    assert_false(resume(&n));
    unlinkat(folder_fd, FY_JOURNAL_NAME, 0);
    assert_int_equal(mkdirat(folder_fd, FY_JOURNAL_NAME, 0700), 0);
    assert_false(resume(&n));
    unlinkat(folder_fd, FY_JOURNAL_NAME, AT_REMOVEDIR);
}

static size_t load(unsigned char *bytes, size_t most)
{
    int fd = openat(folder_fd, FY_JOURNAL_NAME, O_RDONLY);
    ssize_t n = read(fd, bytes, most);
    close(fd);
    assert_true(n > 0 && (size_t)n < most);
    return (size_t)n;
}

static void store(const unsigned char *bytes, size_t n_bytes)
{
    int fd = openat(folder_fd, FY_JOURNAL_NAME, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, bytes, n_bytes), n_bytes);
    close(fd);
}

enum { HEAD_BYTES = 24 + 16 * FY_KEY_PARTS, MOST_BYTES = 1000 };

/* The bytes of the head and n records, and back. */
static size_t bytes_of(uint64_t n_records)
{
    return HEAD_BYTES + (size_t)(n_records * 24 + n_records * (n_records - 1) / 2 * 8);
}

static uint64_t records_in(size_t n_bytes)
{
    uint64_t n = 0;
    while (bytes_of(n + 1) <= n_bytes) {
        n++;
    }
    return n;
}

static void check_cut(size_t n_bytes)
{
    struct stat about;
    assert_int_equal(fstatat(folder_fd, FY_JOURNAL_NAME, &about, 0), 0);
    check_at((size_t)about.st_size == n_bytes, "%zu bytes, not %zu", (size_t)about.st_size,
             n_bytes);
}

/* Goes on behind what was whole, and all is there. */
static void check_goes_on(uint64_t n_whole)
{
    ferry_error error;
    fy_journal journal = {.fd = -1};
    seen s = {0};
    const char *misfit = "unset";
    must(fy_journal_resume(folder_fd, &KEY, see, &s, &journal, &misfit, &error), &error);
    check_at(misfit == NULL && s.n == n_whole, "%d records, not %d", (int)s.n, (int)n_whole);
    for (uint64_t task = n_whole; task < N_RECORDS; task++) {
        must(append(&journal, task, &error), &error);
    }
    fy_journal_close(&journal);
    uint64_t n;
    assert_true(resume(&n));
    assert_int_equal(n, N_RECORDS);
}

static void test_every_truncation(void **state)
{
    (void)state;
    unsigned char bytes[MOST_BYTES];
    uint64_t n;
    write_journal(N_RECORDS);
    size_t n_bytes = load(bytes, sizeof bytes);
    assert_int_equal(n_bytes, bytes_of(N_RECORDS));
    for (size_t length = 0; length <= n_bytes; length++) {
        store(bytes, length);
        if (length < HEAD_BYTES) {
            check_at(!resume(&n), "length %zu", length);
            continue;
        }
        check_at(resume(&n) && n == records_in(length), "length %zu", length);
        check_cut(bytes_of(n));
        check_goes_on(n);
    }
}

static void test_every_flipped_bit(void **state)
{
    (void)state;
    unsigned char bytes[MOST_BYTES];
    write_journal(N_RECORDS);
    size_t n_bytes = load(bytes, sizeof bytes);
    for (size_t bit = 0; bit < 8 * n_bytes; bit++) {
        uint64_t n;
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        store(bytes, n_bytes);
        bool fits = resume(&n);
        check_at(fits == (bit / 8 >= HEAD_BYTES), "bit %zu", bit);
        if (fits) {
            check_at(n == records_in(bit / 8), "bit %zu: %d records", bit, (int)n);
            check_cut(bytes_of(n));
        }
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

/* A record that claims more than there may be takes no memory for it. */
static void test_claims(void **state)
{
    (void)state;
    static const uint64_t claims[] = {UINT64_MAX, UINT64_MAX - 2, FY_JOURNAL_MOST_VALUES + 1,
                                      FY_JOURNAL_MOST_VALUES};
    for (size_t i = 0; i < COUNT_OF(claims); i++) {
        unsigned char bytes[MOST_BYTES];
        uint64_t record[3] = {2, claims[i], 0};
        write_journal(2);
        size_t n_bytes = load(bytes, sizeof bytes);
        memcpy(bytes + n_bytes, record, sizeof record);
        store(bytes, n_bytes + sizeof record);
        check_goes_on(2);
    }
}

static void test_limits(void **state)
{
    (void)state;
    ferry_error error;
    fy_journal journal = {.fd = -1};
    uint64_t *values = calloc(FY_JOURNAL_MOST_VALUES + 1, sizeof *values);
    assert_non_null(values);
    must(fy_journal_create(folder_fd, &KEY, &journal, &error), &error);
    must(fy_journal_append(&journal, 1, values, FY_JOURNAL_MOST_VALUES, &error), &error);
    assert_int_equal(fy_journal_append(&journal, 1, values, FY_JOURNAL_MOST_VALUES + 1, &error),
                     FERRY_ERR_LIMIT);
    fy_journal_close(&journal);
    free(values);
}

static void test_visitor_fails(void **state)
{
    (void)state;
    ferry_error error;
    fy_journal journal = {.fd = -1};
    seen s = {.fail_at = 3};
    const char *misfit = "unset";
    uint64_t n;
    write_journal(N_RECORDS);
    assert_int_equal(fy_journal_resume(folder_fd, &KEY, see, &s, &journal, &misfit, &error),
                     FERRY_ERR_STOPPED);
    assert_true(misfit != NULL && journal.fd == -1);
    check_cut(bytes_of(N_RECORDS));
    assert_true(resume(&n) && n == N_RECORDS);
}

static void test_no_memory(void **state)
{
    (void)state;
    ferry_error error;
    fy_journal journal = {.fd = -1};
    const char *misfit = "unset";
    ferry_status status = FERRY_ERR_NO_MEMORY;
    write_journal(N_RECORDS);
    for (int64_t n = 0; status != FERRY_OK; n++) {
        seen s = {0};
        fy_alloc_fail_after(n);
        status = fy_journal_resume(folder_fd, &KEY, see, &s, &journal, &misfit, &error);
        fy_alloc_fail_after(-1);
        assert_true(status == FERRY_OK || (status == FERRY_ERR_NO_MEMORY && journal.fd == -1));
    }
    fy_alloc_fail_after(0);
    status = append(&journal, N_RECORDS, &error);
    fy_alloc_fail_after(-1);
    assert_int_equal(status, FERRY_ERR_NO_MEMORY);
    fy_journal_close(&journal);
    check_cut(bytes_of(N_RECORDS));
}

/* A file that may not grow stands for a full disk. */
static void test_full(void **state)
{
    (void)state;
    ferry_error error;
    fy_journal journal = {.fd = -1};
    struct rlimit old, small;
    uint64_t n;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = bytes_of(3) + 20, .rlim_max = old.rlim_max};
    void (*old_handler)(int) = signal(SIGXFSZ, SIG_IGN);
    must(fy_journal_create(folder_fd, &KEY, &journal, &error), &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    ferry_status status = FERRY_OK;
    uint64_t task = 0;
    while (status == FERRY_OK) {
        status = append(&journal, task++, &error);
    }
    small.rlim_cur = HEAD_BYTES - 1;
    setrlimit(RLIMIT_FSIZE, &small);
    ferry_error other_error;
    fy_journal other = {.fd = -1};
    int at = openat(folder_fd, "other", O_RDONLY | O_CREAT, 0600);
    ferry_status failed = FERRY_OK;
    bool is_gone;
    fy_journal_close(&journal);
    assert_int_equal(renameat(folder_fd, FY_JOURNAL_NAME, folder_fd, "other"), 0);
    failed = fy_journal_create(folder_fd, &KEY, &other, &other_error);
    is_gone = faccessat(folder_fd, FY_JOURNAL_NAME, F_OK, 0) != 0;
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, old_handler);
    close(at);
    assert_int_equal(status, FERRY_ERR_IO);
    check_says("full", FY_JOURNAL_NAME, &error);
    assert_int_equal(task, 4);
    assert_int_equal(failed, FERRY_ERR_IO);
    assert_true(is_gone && other.fd == -1);
    assert_int_equal(renameat(folder_fd, "other", folder_fd, FY_JOURNAL_NAME), 0);
    assert_true(resume(&n));
    assert_int_equal(n, 3);
}

enum { N_THREADS = 4, N_EACH = 200 };

static void *append_many(void *context)
{
    const fy_journal *journal = context;
    ferry_error error;
    for (uint64_t i = 0; i < N_EACH; i++) {
        if (append(journal, i % 50, &error) != FERRY_OK) {
            return &folder; /* not NULL */
        }
    }
    return NULL;
}

static ferry_status count(void *context, uint64_t task, const uint64_t *values, size_t n_values,
                          ferry_error *error)
{
    (void)error;
    assert_int_equal(n_values, task);
    assert_true(n_values == 0 || values[n_values - 1] == 1000 * task + n_values - 1);
    ++*(uint64_t *)context;
    return FERRY_OK;
}

static void test_threads(void **state)
{
    (void)state;
    ferry_error error;
    pthread_t threads[N_THREADS];
    fy_journal journal = {.fd = -1};
    uint64_t n = 0;
    const char *misfit = "unset";
    must(fy_journal_create(folder_fd, &KEY, &journal, &error), &error);
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, append_many, &journal), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    fy_journal_close(&journal);
    must(fy_journal_resume(folder_fd, &KEY, count, &n, &journal, &misfit, &error), &error);
    fy_journal_close(&journal);
    assert_int_equal(n, N_THREADS * N_EACH);
}

#define ROW(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROW(test_round_trip),
        ROW(test_another_key),
        ROW(test_none),
        ROW(test_every_truncation),
        ROW(test_every_flipped_bit),
        ROW(test_claims),
        ROW(test_limits),
        ROW(test_visitor_fails),
        ROW(test_no_memory),
        ROW(test_full),
        ROW(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
