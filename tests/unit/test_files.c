/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/files.h"

#include "support/random.h"
#include "support/small_checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- a kernel that does as it is told ---- */

typedef struct kernel {
    int error;        /* of the next call */
    bool has_nothing; /* it returns 0 */
    size_t most;      /* bytes of a call; 0: all */
    _Atomic size_t n_calls;
} kernel;

static kernel reading, writing, copying, closing;

/* False: the call is to be made, with *n_bytes of it. */
static bool stands_in(kernel *k, size_t *n_bytes, ssize_t *result)
{
    k->n_calls++;
    if (k->error != 0 || k->has_nothing) {
        *result = k->has_nothing ? 0 : -1;
        errno = k->error;
        k->error = 0;
        k->has_nothing = false;
        return true;
    }
    *n_bytes = k->most != 0 && *n_bytes > k->most ? k->most : *n_bytes;
    return false;
}

ssize_t pread(int descriptor, void *bytes, size_t n_bytes, off_t offset)
{
    ssize_t result;
    return stands_in(&reading, &n_bytes, &result)
               ? result
               : syscall(SYS_pread64, descriptor, bytes, n_bytes, offset);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t n_bytes, off_t offset)
{
    ssize_t result;
    return stands_in(&writing, &n_bytes, &result)
               ? result
               : syscall(SYS_pwrite64, descriptor, bytes, n_bytes, offset);
}

ssize_t copy_file_range(int in, off_t *in_at, int out, off_t *out_at, size_t n_bytes,
                        unsigned flags)
{
    ssize_t result;
    return stands_in(&copying, &n_bytes, &result)
               ? result
               : syscall(SYS_copy_file_range, in, in_at, out, out_at, n_bytes, flags);
}

/* Gone is the descriptor in any case. */
int close(int descriptor)
{
    ssize_t result;
    size_t none = 0;
    int closed = (int)syscall(SYS_close, descriptor);
    return stands_in(&closing, &none, &result) ? (int)result : closed;
}

static void behave(void)
{
    kernel *all[] = {&reading, &writing, &copying, &closing};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        all[i]->error = 0;
        all[i]->has_nothing = false;
        all[i]->most = 0;
        all[i]->n_calls = 0;
    }
}

static size_t count_descriptors(void)
{
    size_t n = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        n++;
    }
    closedir(folder);
    return n - 3; /* two dots, and the folder itself */
}

/* The small folder, until the next call. */
static int folder_fd(void)
{
    static int fd = -1;
    if (fd >= 0) {
        close(fd);
    }
    fd = open(small_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* ---- many files ---- */

enum { N_FILES = 150, N_THREADS = 6, N_ROUNDS = 400 };

static const char *name_of(const void *context, size_t i)
{
    static char name[40];
    snprintf(name, sizeof name, "%s%zu", (const char *)context, i);
    return name;
}

/* Part i has one tensor of 8 bytes: "00000017". */
static ferry_checkpoint *many_parts(void)
{
    const uint64_t shape[] = {8};
    text_buffer index = {0};
    text_append(&index, "{'weight_map':{", 15);
    small_empty();
    for (int i = 0; i < N_FILES; i++) {
        char text[16], name[32], file_name[40];
        small_file file = {0};
        snprintf(text, sizeof text, "%08d", i);
        snprintf(name, sizeof name, "w%03d", i);
        snprintf(file_name, sizeof file_name, "part-%03d.safetensors", i);
        small_add(&file, name, "U8", shape, 1, text, 8);
        small_write(&file, small_path(file_name), NULL);
        text_printf(&index, "%s'%s':'%s'", i == 0 ? "" : ",", name, file_name);
    }
    text_append(&index, "}}", 2);
    small_put_text(small_path("model.safetensors.index.json"), index.bytes);
    text_cleanup(&index);
    return small_open(small_folder);
}

typedef struct reader {
    const ferry_checkpoint *checkpoint;
    fy_files *in, *out;
    uint64_t random;
    bool failed;
} reader;

/* Copies parts in any order, and again. */
static void *read_at_random(void *argument)
{
    reader *r = argument;
    for (int round = 0; round < N_ROUNDS && !r->failed; round++) {
        char text[16], wanted[16];
        ferry_error error;
        uint32_t i = random_below(&r->random, N_FILES);
        uint64_t at = r->checkpoint->files[i].header.data_begin;
        r->failed = fy_files_read(r->in, i, at, text, 8, &error) != FERRY_OK ||
                    fy_files_write(r->out, i, 8, text, 8, &error) != FERRY_OK;
        text[8] = '\0';
        snprintf(wanted, sizeof wanted, "%08u", i);
        r->failed = r->failed || strcmp(text, wanted) != 0;
    }
    return NULL;
}

static void test_few_descriptors(void **state)
{
    (void)state;
    struct rlimit limit, before;
    reader readers[N_THREADS];
    pthread_t threads[N_THREADS];
    fy_files *in = NULL, *out = NULL;
    ferry_error error;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    size_t n_open = count_descriptors();
    ferry_checkpoint *checkpoint = many_parts();
    assert_int_equal(count_descriptors(), n_open + 1); /* its folder */
    int at = folder_fd();
    n_open = count_descriptors() - 1;
    must(fy_files_of(checkpoint, &in, &error), &error);
    must(fy_files_make(at, small_folder, N_FILES, name_of, "out-", &out, &error), &error);
    assert_string_equal(fy_files_path(in, 7), checkpoint->files[7].path);
    for (size_t t = 0; t < N_THREADS; t++) {
        readers[t] = (reader){.checkpoint = checkpoint, .in = in, .out = out, .random = t};
        assert_int_equal(pthread_create(&threads[t], NULL, read_at_random, &readers[t]), 0);
    }
    for (size_t t = 0; t < N_THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_false(readers[t].failed);
    }
    assert_true(count_descriptors() <= n_open + 2 * 16 + 2 * N_THREADS);
    for (size_t i = 0; i < N_FILES; i++) { /* whoever wrote last, and with a hole before it */
        char text[16];
        must(fy_files_write(out, i, 8, "12345678", 8, &error), &error);
        must(fy_files_read(out, i, 0, text, 16, &error), &error);
        assert_memory_equal(text, "\0\0\0\0\0\0\0\00012345678", 16);
    }
    fy_files_destroy(in);
    fy_files_destroy(out);
    ferry_checkpoint_destroy(checkpoint);
    assert_int_equal(count_descriptors(), n_open);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* More are in use than should be open: all stay open, and are closed when they may be. */
static void test_all_in_use(void **state)
{
    (void)state;
    enum { N = 40, MOST = 16 };
    struct rlimit limit, before;
    fy_files *files = NULL;
    ferry_error error;
    int descriptors[N], at = folder_fd();
    size_t n_open = count_descriptors();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    must(fy_files_make(at, small_folder, N, name_of, "used-", &files, &error), &error);
    for (size_t i = 0; i < N; i++) {
        must(fy_files_get(files, i, &descriptors[i], &error), &error);
    }
    for (size_t i = 0; i < N; i++) {
        int again;
        assert_true(fcntl(descriptors[i], F_GETFD) & FD_CLOEXEC);
        must(fy_files_get(files, i, &again, &error), &error);
        assert_int_equal(again, descriptors[i]);
        fy_files_put(files, i);
        fy_files_put(files, i);
    }
    assert_int_equal(count_descriptors(), n_open + N);
    fy_files_destroy(files);
    assert_int_equal(count_descriptors(), n_open);
    /* The limit itself is a sentence. */
    limit.rlim_cur = n_open + 10;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    must(fy_files_make(at, small_folder, N, name_of, "used-", &files, &error), &error);
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < N && status == FERRY_OK; i++) {
        status = fy_files_get(files, i, &descriptors[i], &error);
    }
    assert_int_equal(status, FERRY_ERR_IO);
    check_says("limit", strerror(EMFILE), &error);
    fy_files_destroy(files);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* What was written and could not be kept when its file had to be closed for others. */
static void test_lost_by_closing(void **state)
{
    (void)state;
    enum { N = 40, MOST = 16 };
    struct rlimit limit, before;
    fy_files *files = NULL;
    ferry_error error = {""};
    int at = folder_fd();
    size_t n_failed = 0;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = 4 * MOST;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    must(fy_files_make(at, small_folder, N, name_of, "lost-", &files, &error), &error);
    for (size_t i = 0; i < N; i++) {
        if (i == MOST) { /* the first that another is closed for */
            closing.error = EDQUOT;
        }
        must(fy_files_write(files, i, 0, "data", 4, &error), &error);
    }
    assert_int_equal(closing.error, 0);
    for (size_t i = 0; i < N; i++) {
        int descriptor;
        if (fy_files_get(files, i, &descriptor, &error) == FERRY_OK) {
            fy_files_put(files, i);
        } else {
            check_says("lost", "cannot be written: the disk is full", &error);
            n_failed++;
        }
    }
    assert_int_equal(n_failed, 1);
    fy_files_destroy(files);
    behave();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* ---- files that change ---- */

static const char part[] = "model.safetensors";

static ferry_checkpoint *one_part(void)
{
    const uint64_t shape[] = {16};
    small_file file = {0};
    small_empty();
    small_add(&file, "w", "U8", shape, 1, "0123456789abcdef", 16);
    small_write(&file, small_path(part), NULL);
    return small_open(small_path(part));
}

static void change_time(const ferry_checkpoint *checkpoint)
{
    struct timespec times[2] = {{0, UTIME_OMIT}, {checkpoint->files[0].changed_s + 1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, small_path(part), times, 0), 0);
}

static void change_size(const ferry_checkpoint *checkpoint)
{
    const struct timespec times[2] = {
        {0, UTIME_OMIT}, {checkpoint->files[0].changed_s, checkpoint->files[0].changed_ns}};
    assert_int_equal(truncate(small_path(part), (off_t)checkpoint->files[0].bytes - 1), 0);
    assert_int_equal(utimensat(AT_FDCWD, small_path(part), times, 0), 0);
}

/* The same size and time, but another file. */
static void replace(const ferry_checkpoint *checkpoint)
{
    const struct timespec times[2] = {
        {0, UTIME_OMIT}, {checkpoint->files[0].changed_s, checkpoint->files[0].changed_ns}};
    small_put_text(small_path("other"), "");
    assert_int_equal(truncate(small_path("other"), (off_t)checkpoint->files[0].bytes), 0);
    assert_int_equal(utimensat(AT_FDCWD, small_path("other"), times, 0), 0);
    assert_int_equal(rename(small_path("other"), small_path(part)), 0);
}

/* Other bytes in the same file, and its time set back. Clocks of files tick slowly: again until the
 * change shows at all. */
static void write_over(const ferry_checkpoint *checkpoint)
{
    const struct timespec times[2] = {
        {0, UTIME_OMIT}, {checkpoint->files[0].changed_s, checkpoint->files[0].changed_ns}};
    struct stat about;
    do {
        int fd = open(small_path(part), O_WRONLY);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, "x", 1, (off_t)checkpoint->files[0].bytes - 1), 1);
        assert_int_equal(futimens(fd, times), 0);
        assert_int_equal(fstat(fd, &about), 0);
        assert_int_equal(close(fd), 0);
    } while (about.st_ctim.tv_sec == checkpoint->files[0].touched_s &&
             about.st_ctim.tv_nsec == checkpoint->files[0].touched_ns);
}

static void take_away(const ferry_checkpoint *checkpoint)
{
    (void)checkpoint;
    assert_int_equal(unlink(small_path(part)), 0);
}

static void test_changed(void **state)
{
    (void)state;
    const struct {
        const char *name;
        void (*change)(const ferry_checkpoint *checkpoint);
        const char *says;
    } rows[] = {{"time", change_time, "was changed after its header had been read"},
                {"size", change_size, "was changed after its header had been read"},
                {"another", replace, "was changed after its header had been read"},
                {"written over", write_over, "was changed after its header had been read"},
                {"away", take_away, "cannot be opened: No such file"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_checkpoint *checkpoint = one_part();
        fy_files *files = NULL;
        ferry_error error = {""};
        char byte;
        size_t n_open = count_descriptors();
        must(fy_files_of(checkpoint, &files, &error), &error);
        rows[i].change(checkpoint);
        check_status(rows[i].name, FERRY_ERR_IO, fy_files_read(files, 0, 0, &byte, 1, &error),
                     &error);
        check_says(rows[i].name, rows[i].says, &error);
        check_says(rows[i].name, part, &error);
        check_row(rows[i].name, count_descriptors() == n_open);
        fy_files_destroy(files);
        ferry_checkpoint_destroy(checkpoint);
    }
}

/* A file that stays open is looked at once more in the end; one that was never read is not. */
static void test_changed_while_read(void **state)
{
    (void)state;
    void (*const changes[])(const ferry_checkpoint *checkpoint) = {change_time, change_size,
                                                                   replace, write_over, take_away};
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        for (int reads = 0; reads < 2; reads++) {
            ferry_checkpoint *checkpoint = one_part();
            fy_files *files = NULL;
            ferry_error error = {""};
            char byte;
            must(fy_files_of(checkpoint, &files, &error), &error);
            if (reads) {
                must(fy_files_read(files, 0, 0, &byte, 1, &error), &error);
            }
            must(fy_files_check_unchanged(files, &error), &error);
            changes[i](checkpoint);
            ferry_status status = fy_files_check_unchanged(files, &error);
            check_status("changed", reads ? FERRY_ERR_IO : FERRY_OK, status, &error);
            check_says("changed", reads ? part : "", &error);
            fy_files_destroy(files);
            ferry_checkpoint_destroy(checkpoint);
        }
    }
}

static void test_cut_while_read(void **state)
{
    (void)state;
    ferry_checkpoint *checkpoint = one_part();
    fy_files *files = NULL;
    ferry_error error = {""};
    char bytes[16], says[64];
    uint64_t at = checkpoint->files[0].header.data_begin;
    must(fy_files_of(checkpoint, &files, &error), &error);
    must(fy_files_read(files, 0, at, bytes, 16, &error), &error);
    assert_memory_equal(bytes, "0123456789abcdef", 16);
    assert_int_equal(truncate(small_path(part), (off_t)at + 7), 0);
    assert_int_equal(fy_files_read(files, 0, at + 2, bytes, 14, &error), FERRY_ERR_IO);
    snprintf(says, sizeof says, "ends at byte %llu, but", (unsigned long long)at + 7);
    check_says("cut", says, &error);
    must(fy_files_read(files, 0, at, bytes, 7, &error), &error);
    must(fy_files_read(files, 0, at + 100, bytes, 0, &error), &error); /* nothing is asked for */
    fy_files_destroy(files);
    ferry_checkpoint_destroy(checkpoint);
}

/* ---- reading and writing in parts ---- */

static void test_in_parts(void **state)
{
    (void)state;
    fy_files *files = NULL;
    ferry_error error = {""};
    char bytes[16];
    behave();
    must(fy_files_make(folder_fd(), small_folder, 1, name_of, "parts-", &files, &error), &error);
    writing.most = reading.most = 3;
    writing.error = reading.error = EINTR;
    must(fy_files_write(files, 0, 5, "0123456789abcdef", 16, &error), &error);
    assert_int_equal(writing.n_calls, 7);
    must(fy_files_read(files, 0, 5, bytes, 16, &error), &error);
    assert_int_equal(reading.n_calls, 7);
    assert_memory_equal(bytes, "0123456789abcdef", 16);
    reading.error = EIO;
    assert_int_equal(fy_files_read(files, 0, 0, bytes, 1, &error), FERRY_ERR_IO);
    check_says("reading", "parts-0: cannot be read: ", &error);
    const int full[] = {ENOSPC, EDQUOT};
    for (size_t i = 0; i < COUNT_OF(full); i++) {
        writing.error = full[i];
        assert_int_equal(fy_files_write(files, 0, 0, bytes, 1, &error), FERRY_ERR_IO);
        check_says("full", "parts-0: cannot be written: the disk is full", &error);
    }
    writing.error = EIO;
    assert_int_equal(fy_files_write(files, 0, 0, bytes, 1, &error), FERRY_ERR_IO);
    check_says("writing", strerror(EIO), &error);
    writing.has_nothing = true; /* no error and no progress must not become a loop */
    assert_int_equal(fy_files_write(files, 0, 0, bytes, 1, &error), FERRY_ERR_IO);
    fy_files_destroy(files);
    behave();
}

/* ---- within the kernel ---- */

static void test_copy(void **state)
{
    (void)state;
    ferry_checkpoint *checkpoint = one_part();
    fy_files *in = NULL, *out = NULL;
    ferry_error error = {""};
    char bytes[16];
    bool copied = false;
    uint64_t at = checkpoint->files[0].header.data_begin;
    behave();
    must(fy_files_of(checkpoint, &in, &error), &error);
    must(fy_files_make(folder_fd(), small_folder, 2, name_of, "copy-", &out, &error), &error);
    copying.most = 5;
    copying.error = EINTR;
    must(fy_files_copy(in, 0, at, out, 0, 0, 16, &copied, &error), &error);
    if (copied) { /* where the file system can */
        assert_int_equal(copying.n_calls, 5);
        must(fy_files_read(out, 0, 0, bytes, 16, &error), &error);
        assert_memory_equal(bytes, "0123456789abcdef", 16);
    }
    const int cannot[] = {EXDEV, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EBADF};
    for (size_t i = 0; i < COUNT_OF(cannot); i++) {
        copied = true;
        copying.error = cannot[i];
        must(fy_files_copy(in, 0, at, out, 1, 0, 16, &copied, &error), &error);
        assert_false(copied);
    }
    must(fy_files_write(out, 1, 0, "0123", 4, &error), &error); /* as the caller does then */
    copying.error = ENOSPC;
    assert_int_equal(fy_files_copy(in, 0, at, out, 1, 0, 16, &copied, &error), FERRY_ERR_IO);
    check_says("full", "copy-1: cannot be written: the disk is full", &error);
    fy_files_destroy(in);
    fy_files_destroy(out);
    ferry_checkpoint_destroy(checkpoint);
    behave();
}

/* Where one of the two cannot be opened, that is the outcome, and both may be closed for others. */
static void test_copy_without_a_file(void **state)
{
    (void)state;
    enum { N = 40, MOST = 16 };
    struct rlimit limit, before;
    fy_files *in = NULL, *out = NULL;
    ferry_error error = {""};
    char path[300];
    bool copied;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = 4 * MOST;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ferry_checkpoint *checkpoint = many_parts();
    int at = folder_fd();
    size_t n_open = count_descriptors();
    must(fy_files_of(checkpoint, &in, &error), &error);
    must(fy_files_make(at, small_folder, N, name_of, "shut-", &out, &error), &error);
    for (size_t i = 0; i < N; i++) {
        snprintf(path, sizeof path, "%s/%s", small_folder, name_of("shut-", i));
        assert_int_equal(symlink("nowhere", path), 0);
        assert_int_equal(fy_files_copy(in, i, 0, out, i, 0, 8, &copied, &error), FERRY_ERR_IO);
        check_says(path, "cannot be written: ", &error);
        assert_int_equal(unlink(path), 0);
    }
    for (size_t i = 0; i < N; i++) {
        must(fy_files_write(out, i, 0, "12345678", 8, &error), &error);
    }
    assert_true(count_descriptors() <= n_open + 2 * MOST);
    fy_files_destroy(in);
    must(fy_files_of(checkpoint, &in, &error), &error);
    assert_int_equal(unlink(checkpoint->files[0].path), 0);
    assert_int_equal(fy_files_copy(in, 0, 0, out, 0, 0, 8, &copied, &error), FERRY_ERR_IO);
    check_says("no source", "cannot be opened: No such file", &error);
    fy_files_destroy(in);
    fy_files_destroy(out);
    ferry_checkpoint_destroy(checkpoint);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* What lies there already is gone on with; a link is not followed. */
static void test_make(void **state)
{
    (void)state;
    fy_files *files = NULL;
    ferry_error error = {""};
    char bytes[8];
    small_put_text(small_path("there-0"), "12345678");
    small_put_text(small_path("elsewhere"), "12345678");
    assert_int_equal(symlink(small_path("elsewhere"), small_path("there-1")), 0);
    must(fy_files_make(folder_fd(), small_folder, 2, name_of, "there-", &files, &error), &error);
    must(fy_files_write(files, 0, 2, "xx", 2, &error), &error);
    must(fy_files_read(files, 0, 0, bytes, 8, &error), &error);
    assert_memory_equal(bytes, "12xx5678", 8);
    assert_int_equal(fy_files_write(files, 1, 0, "xx", 2, &error), FERRY_ERR_IO);
    check_says("link", "there-1: cannot be written: ", &error);
    fy_files_destroy(files);
    fy_files_destroy(NULL);
    must(fy_files_make(folder_fd(), small_folder, 0, name_of, "none-", &files, &error), &error);
    fy_files_destroy(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_descriptors),
        cmocka_unit_test(test_all_in_use),
        cmocka_unit_test(test_lost_by_closing),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_changed_while_read),
        cmocka_unit_test(test_cut_while_read),
        cmocka_unit_test(test_in_parts),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_copy_without_a_file),
        cmocka_unit_test(test_make),
    };
    return cmocka_run_group_tests(tests, small_begin, small_end);
}
