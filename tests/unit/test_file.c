/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/file.h"

#include "base/alloc.h"

#include "support/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int n_interruptions; /* of the next fsync */

int fsync(int descriptor)
{
    if (n_interruptions > 0) {
        n_interruptions--;
        errno = EINTR;
        return -1;
    }
    return (int)syscall(SYS_fsync, descriptor);
}

/* What the kernel may answer, too. */
static bool fstat_fails, pread_fails;

int fstat(int descriptor, struct stat *about)
{
    if (fstat_fails) {
        errno = EIO;
        return -1;
    }
    return fstatat(descriptor, "", about, AT_EMPTY_PATH);
}

ssize_t pread(int descriptor, void *bytes, size_t n_bytes, off_t offset)
{
    if (pread_fails) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, descriptor, bytes, n_bytes, offset);
}

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ferry-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static size_t count_entries(void)
{
    size_t n = 0;
    DIR *dir = opendir(folder);
    struct dirent *item;
    while ((item = readdir(dir)) != NULL) {
        n += item->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"file", "fifo"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        unlink(path_of(names[i]));
    }
    return rmdir(folder);
}

static void put(const char *name, const char *bytes, size_t n_bytes)
{
    FILE *stream = fopen(path_of(name), "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, n_bytes, stream), n_bytes);
    fclose(stream);
}

static void test_read(void **state)
{
    (void)state;
    ferry_error error;
    char *text = NULL;
    size_t length = 0;
    put("file", "a\0b", 3);
    must(fy_file_read(path_of("file"), 3, &text, &length, &error), &error);
    assert_int_equal(length, 3);
    assert_memory_equal(text, "a\0b", 4); /* with the zero behind it */
    fy_free(text);
    text = NULL;
    assert_int_equal(fy_file_read(path_of("file"), 2, &text, &length, &error), FERRY_ERR_LIMIT);
    check_says("limit", "3 bytes", &error);
    assert_null(text);
    put("file", "", 0);
    must(fy_file_read(path_of("file"), 0, &text, &length, &error), &error);
    assert_true(length == 0 && text[0] == '\0');
    fy_free(text);
}

/* What is not a regular file is refused at once: a FIFO would wait, a device never end. */
static void test_read_what_is_no_file(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    const char *const paths[] = {strdup(path_of("none")), strdup(folder), strdup(path_of("fifo")),
                                 strdup("/dev/zero"), strdup("")};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        ferry_error error;
        char *text = NULL;
        size_t length;
        uint64_t bytes;
        check_status(paths[i], FERRY_ERR_IO, fy_file_read(paths[i], 100, &text, &length, &error),
                     &error);
        check_says(paths[i], paths[i], &error);
        check_status(paths[i], FERRY_ERR_IO, fy_file_size(paths[i], &bytes, &error), &error);
        check_row(paths[i], text == NULL);
        free((char *)paths[i]);
    }
}

static void test_read_at(void **state)
{
    (void)state;
    ferry_error error;
    uint64_t bytes;
    char part[8] = "";
    put("file", "0123456789", 10);
    must(fy_file_size(path_of("file"), &bytes, &error), &error);
    assert_int_equal(bytes, 10);
    must(fy_file_read_at(path_of("file"), 3, 4, part, &error), &error);
    assert_memory_equal(part, "3456", 4);
    must(fy_file_read_at(path_of("file"), 10, 0, part, &error), &error);
    assert_int_equal(fy_file_read_at(path_of("file"), 8, 3, part, &error), FERRY_ERR_IO);
    check_says("too far", "ends at byte 10", &error);
}

static char path_of_thread[300];

static ferry_status fill(void *context, void *stream, ferry_error *error)
{
    (void)error;
    const char *text = context;
    return fy_file_write(stream, text, strlen(text)) == 0 ? FERRY_OK : FERRY_ERR_IO;
}

static ferry_status fill_and_fail(void *context, void *stream, ferry_error *error)
{
    fill(context, stream, error);
    snprintf(error->message, sizeof error->message, "halfway");
    return FERRY_ERR_LIMIT;
}

/* Every call gives its descriptor back, whether it was good for anything or not. */
static void test_keeps_no_descriptor(void **state)
{
    (void)state;
    ferry_error error;
    uint64_t bytes;
    char part[8];
    char *text = NULL;
    size_t length;
    int before = dup(STDERR_FILENO);
    close(before);
    put("file", "0123456789", 10);
    must(fy_file_size(path_of("file"), &bytes, &error), &error);
    must(fy_file_read_at(path_of("file"), 0, 4, part, &error), &error);
    must(fy_file_read(path_of("file"), 10, &text, &length, &error), &error);
    fy_free(text);
    must(fy_file_replace(path_of("file"), fill, "0123", &error), &error);
    assert_int_equal(fy_file_read_at(path_of("file"), 0, 8, part, &error), FERRY_ERR_IO);
    assert_int_equal(fy_file_read(path_of("file"), 3, &text, &length, &error), FERRY_ERR_LIMIT);
    assert_int_equal(fy_file_size(folder, &bytes, &error), FERRY_ERR_IO);
    int after = dup(STDERR_FILENO);
    close(after);
    assert_int_equal(before, after);
}

/* Errors of a file that is open: what could not be done with which file, and nothing is kept. */
static void test_broken_disk(void **state)
{
    (void)state;
    ferry_error error;
    uint64_t bytes;
    size_t length;
    char *text = NULL;
    static const char large[20000]; /* small pieces may lie about without being in use */
    put("file", large, sizeof large);
    fstat_fails = true;
    ferry_status status = fy_file_size(path_of("file"), &bytes, &error);
    fstat_fails = false;
    check_status("fstat", FERRY_ERR_IO, status, &error);
    check_says("fstat", "/file: cannot be examined: Input/output error", &error);
    size_t used = mallinfo2().uordblks;
    pread_fails = true;
    status = fy_file_read(path_of("file"), sizeof large, &text, &length, &error);
    pread_fails = false;
    assert_int_equal(mallinfo2().uordblks, used);
    assert_null(text);
    check_status("pread", FERRY_ERR_IO, status, &error);
    check_says("pread", "/file: cannot be read: Input/output error", &error);
}

/* A reader sees the old file or the whole new one; nothing is left beside it. */
static void test_replace(void **state)
{
    (void)state;
    ferry_error error;
    char part[4] = "";
    must(fy_file_replace(path_of("file"), fill, "old", &error), &error);
    assert_int_equal(fy_file_replace(path_of("file"), fill_and_fail, "new", &error),
                     FERRY_ERR_LIMIT);
    assert_string_equal(error.message, "halfway");
    must(fy_file_read_at(path_of("file"), 0, 3, part, &error), &error);
    assert_string_equal(part, "old");
    n_interruptions = 2; /* which break off no work */
    must(fy_file_replace(path_of("file"), fill, "new", &error), &error);
    assert_int_equal(n_interruptions, 0);
    must(fy_file_read_at(path_of("file"), 0, 3, part, &error), &error);
    assert_string_equal(part, "new");
    assert_int_equal(count_entries(), 1);
}

/* In a shared folder: links under names that were guessed, to a file that is not to be written. */
static void test_replace_follows_no_link(void **state)
{
    (void)state;
    ferry_error error;
    char part[8] = "", name[64], target[200];
    struct stat about;
    put("precious", "precious", 8);
    snprintf(target, sizeof target, "%s", path_of("precious"));
    snprintf(name, sizeof name, "file.%ld.tmp", (long)getpid());
    assert_int_equal(symlink(target, path_of(name)), 0);
    assert_int_equal(symlink(target, path_of("file.tmp")), 0);
    must(fy_file_replace(path_of("file"), fill, "new", &error), &error);
    must(fy_file_read_at(target, 0, 8, part, &error), &error);
    assert_memory_equal(part, "precious", 8);
    assert_int_equal(lstat(path_of("file"), &about), 0);
    assert_true(S_ISREG(about.st_mode));
    assert_int_equal(count_entries(), 4);
    unlink(path_of(name));
    unlink(path_of("file.tmp"));
    unlink(path_of("precious"));
}

/* Who may read the old file may read the new one, and nobody else. */
static void test_replace_keeps_permissions(void **state)
{
    (void)state;
    static const mode_t modes[] = {0600, 0666, 0640, 0400};
    ferry_error error;
    struct stat about;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        put("file", "old", 3);
        assert_int_equal(chmod(path_of("file"), modes[i]), 0);
        must(fy_file_replace(path_of("file"), fill, "newer", &error), &error);
        assert_int_equal(stat(path_of("file"), &about), 0);
        assert_int_equal(about.st_mode & 07777, modes[i]);
        assert_int_equal(about.st_size, 5);
        unlink(path_of("file"));
    }
}

/* A pipe is written to, a link is followed, also to a file that is to come; all stay as they are.
 */
static void *read_fifo(void *context)
{
    char *bytes = context;
    int descriptor = open(path_of_thread, O_RDONLY | O_CLOEXEC);
    ssize_t n = descriptor < 0 ? -1 : read(descriptor, bytes, 7);
    close(descriptor);
    return n == 3 ? NULL : "failed";
}

static void test_replace_what_is_no_file(void **state)
{
    (void)state;
    ferry_error error;
    pthread_t reader;
    struct stat about;
    char bytes[8] = "";
    void *result;
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    snprintf(path_of_thread, sizeof path_of_thread, "%s", path_of("fifo"));
    assert_int_equal(pthread_create(&reader, NULL, read_fifo, bytes), 0);
    must(fy_file_replace(path_of("fifo"), fill, "new", &error), &error);
    assert_int_equal(pthread_join(reader, &result), 0);
    assert_null(result);
    assert_string_equal(bytes, "new");
    assert_int_equal(lstat(path_of("fifo"), &about), 0);
    assert_true(S_ISFIFO(about.st_mode));
    assert_int_equal(fy_file_replace("/dev/full", fill, "new", &error), FERRY_ERR_IO);
    check_says("full", "/dev/full: cannot be written", &error);
    assert_int_equal(count_entries(), 1);
}

static void test_replace_behind_a_link(void **state)
{
    (void)state;
    static const char *const texts[] = {"one", "two"}; /* a file that is to come, and one there */
    ferry_error error;
    struct stat about;
    char part[4] = "";
    assert_int_equal(symlink("file", path_of("fifo")), 0);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        must(fy_file_replace(path_of("fifo"), fill, (void *)texts[i], &error), &error);
        assert_int_equal(lstat(path_of("fifo"), &about), 0);
        assert_true(S_ISLNK(about.st_mode));
        assert_int_equal(lstat(path_of("file"), &about), 0);
        assert_true(S_ISREG(about.st_mode));
        must(fy_file_read_at(path_of("file"), 0, 3, part, &error), &error);
        assert_string_equal(part, texts[i]);
    }
    assert_int_equal(fy_file_replace(path_of("fifo"), fill_and_fail, "new", &error),
                     FERRY_ERR_LIMIT);
    must(fy_file_read_at(path_of("file"), 0, 3, part, &error), &error);
    assert_string_equal(part, "two");
    assert_int_equal(count_entries(), 2);
}

/* Several threads that write one file: one of their texts is there whole, and nothing else. */
static void *replace_often(void *context)
{
    static char texts[4][3000];
    size_t number = (size_t)(uintptr_t)context;
    ferry_error error;
    memset(texts[number], 'a' + (int)number, sizeof texts[number] - 1);
    for (int i = 0; i < 50; i++) {
        if (fy_file_replace(path_of_thread, fill, texts[number], &error) != FERRY_OK) {
            return "failed";
        }
    }
    return NULL;
}

static void test_replace_by_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    char bytes[2999];
    ferry_error error;
    snprintf(path_of_thread, sizeof path_of_thread, "%s", path_of("file"));
    for (size_t t = 0; t < COUNT_OF(threads); t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, replace_often, (void *)(uintptr_t)t), 0);
    }
    for (size_t t = 0; t < COUNT_OF(threads); t++) {
        void *result = NULL;
        assert_int_equal(pthread_join(threads[t], &result), 0);
        assert_null(result);
    }
    must(fy_file_read_at(path_of_thread, 0, sizeof bytes, bytes, &error), &error);
    for (size_t i = 1; i < sizeof bytes; i++) {
        assert_true(bytes[i] == bytes[0]);
    }
    assert_int_equal(count_entries(), 1);
}

static void test_replace_where_nothing_can_be(void **state)
{
    (void)state;
    ferry_error error;
    assert_int_equal(fy_file_replace(path_of("none/file"), fill, "x", &error), FERRY_ERR_IO);
    check_says("no folder", "none/file", &error);
    assert_int_equal(fy_file_replace(folder, fill, "x", &error), FERRY_ERR_IO);
    check_says("a folder", folder, &error);
    assert_int_equal(count_entries(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_read_what_is_no_file, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_read_at, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_broken_disk, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_keeps_no_descriptor, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_replace, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_replace_follows_no_link, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_replace_keeps_permissions, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_replace_what_is_no_file, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_replace_behind_a_link, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_replace_by_threads, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_replace_where_nothing_can_be, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
