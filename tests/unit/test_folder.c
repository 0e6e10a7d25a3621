/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/claim.h"
#include "checkpoint/folder.h"
#include "host/file.h"

#include "base/alloc.h"

#include "support/check.h"
#include "support/emulated.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char base[64];

#define PARTIAL ".out.ferry-partial"

static const char *path_of(const char *name)
{
    static char paths[4][400];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

static int make_base(void **state)
{
    (void)state;
    snprintf(base, sizeof base, "/tmp/ferry-test-XXXXXX");
    return mkdtemp(base) == NULL;
}

/* All that lies in a folder, two levels deep at most here; links are not followed. */
static void remove_tree(const char *path)
{
    char inner[700];
    DIR *dir = opendir(path);
    struct dirent *item;
    while (dir != NULL && (item = readdir(dir)) != NULL) {
        struct stat about;
        snprintf(inner, sizeof inner, "%s/%s", path, item->d_name);
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0 ||
            lstat(inner, &about) != 0) {
            continue;
        }
        if (S_ISDIR(about.st_mode)) {
            remove_tree(inner);
        } else {
            unlink(inner);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(path);
}

static int remove_base(void **state)
{
    (void)state;
    remove_tree(base);
    return access(base, F_OK) == 0;
}

static void put(const char *name, const char *text)
{
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    check_row(name, fd >= 0);
    check_row(name, write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static bool holds(const char *name, const char *text)
{
    char bytes[64];
    int fd = open(path_of(name), O_RDONLY | O_NOFOLLOW);
    ssize_t n = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    if (fd >= 0) {
        close(fd);
    }
    return n == (ssize_t)strlen(text) && memcmp(bytes, text, (size_t)n) == 0;
}

static bool is_there(const char *name)
{
    struct stat about;
    return lstat(path_of(name), &about) == 0;
}

/* How many entries a folder of the base has; -1: it is none. */
static int entries_of(const char *name)
{
    int n = 0;
    DIR *dir = opendir(path_of(name));
    struct dirent *item;
    if (dir == NULL) {
        return -1;
    }
    while ((item = readdir(dir)) != NULL) {
        n += strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0;
    }
    closedir(dir);
    return n;
}

static fy_folder begin(const char *path, bool keep, fy_leftover expected)
{
    ferry_error error;
    fy_folder folder = {0};
    fy_leftover left = FY_LEFT_STRANGE + 1;
    must(fy_folder_begin(path, keep, &folder, &left, &error), &error);
    check_row(path, left == expected);
    return folder;
}

static void refuse(const char *row, const char *path, bool keep, ferry_status expected,
                   const char *says)
{
    ferry_error error;
    fy_folder folder = {0};
    fy_leftover left = FY_LEFT_NOTHING;
    check_status(row, expected, fy_folder_begin(path, keep, &folder, &left, &error), &error);
    check_says(row, says, &error);
    check_row(row, folder.path == NULL && left == FY_LEFT_NOTHING);
    fy_folder_end(&folder, keep); /* nothing */
}

static void put_into(const fy_folder *folder, const char *name, const char *text)
{
    int fd = openat(folder->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    check_row(name, fd >= 0);
    check_row(name, write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* ---- the plain life ---- */

static void test_commit(void **state)
{
    (void)state;
    ferry_error error;
    struct stat about;
    mode_t mask = umask(027);
    fy_folder folder = begin(path_of("out"), false, FY_LEFT_NOTHING);
    umask(mask);
    assert_string_equal(folder.path, path_of("out"));
    assert_string_equal(folder.parent, base);
    assert_string_equal(folder.partial, path_of(PARTIAL));
    put_into(&folder, "a", "1");
    put_into(&folder, FY_JOURNAL_NAME, "journal");
    assert_true(is_there(PARTIAL "/a") && !is_there("out"));
    for (const int *fd = &folder.parent_fd; fd <= &folder.lock; fd++) {
        assert_true((fcntl(*fd, F_GETFD) & FD_CLOEXEC) != 0);
    }
    must(fy_folder_commit(&folder, &error), &error);
    fy_folder_end(&folder, false);
    assert_null(folder.path);
    fy_folder_end(&folder, false); /* again: nothing */
    assert_int_equal(entries_of("."), 1);
    assert_int_equal(entries_of("out"), 1);
    assert_true(holds("out/a", "1"));
    assert_int_equal(stat(path_of("out"), &about), 0);
    assert_int_equal(about.st_mode & 07777, 0750);
}

static void test_end_without_result(void **state)
{
    (void)state;
    fy_folder folder = begin(path_of("out"), true, FY_LEFT_NOTHING);
    put_into(&folder, "a", "1");
    fy_folder_end(&folder, false);
    assert_int_equal(entries_of("."), 0);
    folder = begin(path_of("out"), false, FY_LEFT_NOTHING);
    fy_folder_end(&folder, true);
    assert_int_equal(entries_of(PARTIAL), 1); /* the lock */
    folder = begin(path_of("out"), true, FY_LEFT_NOTHING);
    fy_folder_end(&folder, false);
    assert_int_equal(entries_of("."), 0);
}

static void test_resume(void **state)
{
    (void)state;
    ferry_error error;
    fy_folder folder = begin(path_of("out"), true, FY_LEFT_NOTHING);
    put_into(&folder, "a", "1");
    fy_folder_end(&folder, true);
    folder = begin(path_of("out"), true, FY_LEFT_FILES);
    assert_true(holds(PARTIAL "/a", "1"));
    put_into(&folder, "b", "2");
    fy_folder_end(&folder, true);
    folder = begin(path_of("out"), true, FY_LEFT_FILES);
    must(fy_folder_clear(&folder, &error), &error); /* it does not fit */
    assert_int_equal(entries_of(PARTIAL), 1);
    put_into(&folder, "a", "3");
    fy_folder_end(&folder, true);
    folder = begin(path_of("out"), true, FY_LEFT_FILES);
    must(fy_folder_commit(&folder, &error), &error);
    fy_folder_end(&folder, true);
    assert_int_equal(entries_of("."), 1);
    assert_true(holds("out/a", "3"));
}

/* A plain run begins anew, whatever lies there. */
static void test_leftovers_go(void **state)
{
    (void)state;
    fy_folder folder = begin(path_of("out"), true, FY_LEFT_NOTHING);
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        put_into(&folder, name, "x");
    }
    fy_folder_end(&folder, true);
    unlink(path_of(PARTIAL "/" FY_LOCK_NAME)); /* as after a loss of power */
    folder = begin(path_of("out"), false, FY_LEFT_NOTHING);
    assert_int_equal(entries_of(PARTIAL), 1);
    fy_folder_end(&folder, false);
    assert_int_equal(entries_of("."), 0);
}

static void test_forms_of_path(void **state)
{
    (void)state;
    static const struct {
        const char *path, *partial;
    } rows[] = {{"out", ".out.ferry-partial"},
                {"out///", ".out.ferry-partial"},
                {"./out/", "./.out.ferry-partial"},
                {"in/../out", "in/../.out.ferry-partial"},
                {".hidden", "..hidden.ferry-partial"}};
    ferry_error error;
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(chdir(base), 0);
    mkdir("in", 0700);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_folder folder = begin(rows[i].path, false, FY_LEFT_NOTHING);
        check_row(rows[i].path, strcmp(folder.partial, rows[i].partial) == 0);
        check_row(rows[i].path, access(rows[i].partial, F_OK) == 0);
        must(fy_folder_commit(&folder, &error), &error);
        check_row(rows[i].path, rmdir(folder.path) == 0);
        fy_folder_end(&folder, false);
        check_row(rows[i].path, entries_of(".") == 1);
    }
    assert_int_equal(fchdir(here), 0);
    close(here);
}

/* ---- what is refused ---- */

static void test_exists(void **state)
{
    (void)state;
    static const char *const names[] = {"file", "empty", "none", "pipe"};
    put("file", "x");
    mkdir(path_of("empty"), 0700);
    assert_int_equal(symlink("nowhere", path_of("none")), 0);
    mkfifo(path_of("pipe"), 0600);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        refuse(names[i], path_of(names[i]), false, FERRY_ERR_IO, path_of(names[i]));
        refuse(names[i], path_of(names[i]), true, FERRY_ERR_IO, "exists");
    }
    refuse("slashes", path_of("empty//"), false, FERRY_ERR_IO, "exists");
    refuse("slashes", path_of("file/"), false, FERRY_ERR_IO, "exists");
    assert_int_equal(entries_of("."), COUNT_OF(names));
    assert_int_equal(entries_of("empty"), 0);
}

static void test_no_place(void **state)
{
    (void)state;
    char name[NAME_MAX + 2], longer[9000];
    put("file", "x");
    refuse("empty", "", false, FERRY_ERR_IO, "empty");
    refuse("root", "/", false, FERRY_ERR_IO, "exists");
    refuse("roots", "///", false, FERRY_ERR_IO, "exists");
    refuse("here", ".", false, FERRY_ERR_IO, "exists");
    refuse("above", "..", false, FERRY_ERR_IO, "exists");
    refuse("no parent", path_of("none/out"), false, FERRY_ERR_IO, path_of("none"));
    refuse("parent is a file", path_of("file/out"), false, FERRY_ERR_IO, path_of("file"));
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    refuse("long path", longer, false, FERRY_ERR_LIMIT, "long");
    memset(name, 'x', sizeof name);
    name[NAME_MAX - 14] = '\0'; /* one dot and .ferry-partial are 15 */
    refuse("long name", path_of(name), false, FERRY_ERR_LIMIT, name);
    assert_int_equal(entries_of("."), 1);
    name[NAME_MAX - 15] = '\0';
    fy_folder folder = begin(path_of(name), false, FY_LEFT_NOTHING);
    fy_folder_end(&folder, false);
    assert_int_equal(entries_of("."), 1);
}

/* Another one has made it since: it stays as it is, and what was written can be gone on with. */
static void test_appears_meanwhile(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        ferry_error error;
        fy_folder folder = begin(path_of("out"), false, FY_LEFT_NOTHING);
        put_into(&folder, "a", "1");
        put_into(&folder, FY_JOURNAL_NAME, "journal");
        if (kind == 0) {
            assert_int_equal(mkdir(path_of("out"), 0700), 0);
        } else if (kind == 1) {
            put("out", "other");
        } else if (kind == 2) {
            assert_int_equal(symlink("nowhere", path_of("out")), 0);
        } else {
            assert_int_equal(symlink(PARTIAL, path_of("out")), 0);
        }
        assert_int_equal(fy_folder_commit(&folder, &error), FERRY_ERR_IO);
        check_says("appeared", path_of("out"), &error);
        check_says("appeared", "exists", &error);
        assert_true(is_there(PARTIAL "/" FY_JOURNAL_NAME));
        fy_folder_end(&folder, false);
        assert_int_equal(entries_of("."), 1);
        assert_true(kind != 0 || entries_of("out") == 0);
        assert_true(kind != 1 || holds("out", "other"));
        remove(path_of("out"));
    }
}

/* ---- strange leftovers ---- */

/* Links are removed, never what they lead to. */
static void test_links_left(void **state)
{
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        put("precious", "1");
        mkdir(path_of("around"), 0700);
        put("around/too", "2");
        mkdir(path_of(PARTIAL), 0700);
        assert_int_equal(symlink("../precious", path_of(PARTIAL "/a")), 0);
        assert_int_equal(symlink("../around", path_of(PARTIAL "/b")), 0);
        assert_int_equal(link(path_of("precious"), path_of(PARTIAL "/c")), 0);
        assert_int_equal(mkfifo(path_of(PARTIAL "/d"), 0600), 0);
        fy_folder folder =
            begin(path_of("out"), keep != 0, keep != 0 ? FY_LEFT_STRANGE : FY_LEFT_NOTHING);
        assert_int_equal(entries_of(PARTIAL), 1);
        fy_folder_end(&folder, false);
        assert_true(holds("precious", "1") && holds("around/too", "2"));
        assert_int_equal(entries_of("."), 2);
    }
    mkdir(path_of(PARTIAL), 0700); /* a second name alone is one that is not the run's own */
    assert_int_equal(link(path_of("precious"), path_of(PARTIAL "/c")), 0);
    fy_folder folder = begin(path_of("out"), true, FY_LEFT_STRANGE);
    fy_folder_end(&folder, false);
    assert_true(holds("precious", "1"));
}

/* A folder is none of ours: nothing at all is removed. */
static void test_folder_left(void **state)
{
    (void)state;
    mkdir(path_of(PARTIAL), 0700);
    mkdir(path_of(PARTIAL "/sub"), 0700);
    put(PARTIAL "/file", "1");
    put(PARTIAL "/sub/file", "2");
    refuse("sub", path_of("out"), false, FERRY_ERR_IO, PARTIAL "/sub");
    refuse("sub", path_of("out"), true, FERRY_ERR_IO, PARTIAL "/sub");
    assert_true(holds(PARTIAL "/file", "1") && holds(PARTIAL "/sub/file", "2"));
}

static void test_no_partial_folder(void **state)
{
    (void)state;
    mkdir(path_of("around"), 0700);
    put("around/file", "1");
    put("file", "2");
    assert_int_equal(symlink("around", path_of(PARTIAL)), 0);
    refuse("link", path_of("out"), false, FERRY_ERR_IO, PARTIAL);
    unlink(path_of(PARTIAL));
    put(PARTIAL, "3");
    refuse("file", path_of("out"), false, FERRY_ERR_IO, PARTIAL);
    assert_true(holds(PARTIAL, "3"));
    unlink(path_of(PARTIAL));
    mkdir(path_of(PARTIAL), 0700);
    assert_int_equal(symlink("../file", path_of(PARTIAL "/" FY_LOCK_NAME)), 0);
    refuse("lock is a link", path_of("out"), false, FERRY_ERR_IO, FY_LOCK_NAME);
    unlink(path_of(PARTIAL "/" FY_LOCK_NAME));
    mkfifo(path_of(PARTIAL "/" FY_LOCK_NAME), 0600);
    refuse("lock is a pipe", path_of("out"), false, FERRY_ERR_IO, FY_LOCK_NAME);
    assert_true(holds("around/file", "1") && holds("file", "2"));
}

/* ---- folders that others made ---- */

/* One of another user, or one that others may write into, would become the result. */
static void test_foreign_folder(void **state)
{
    (void)state;
    mode_t mask = umask(022);
    assert_int_equal(mkdir(path_of(PARTIAL), 0700), 0);
    assert_int_equal(chmod(path_of(PARTIAL), 0777), 0);
    refuse("writable", path_of("out"), false, FERRY_ERR_IO, "others may write");
    refuse("writable", path_of("out"), true, FERRY_ERR_IO, "0777");
    assert_int_equal(chmod(path_of(PARTIAL), 0770), 0);
    refuse("group", path_of("out"), true, FERRY_ERR_IO, "others may write");
    assert_int_equal(entries_of(PARTIAL), 0);
    umask(002); /* who lets his group write everywhere trusts it */
    fy_folder folder = begin(path_of("out"), true, FY_LEFT_NOTHING);
    fy_folder_end(&folder, false);
    umask(022);
    if (geteuid() == 0) {
        assert_int_equal(mkdir(path_of(PARTIAL), 0755), 0);
        assert_int_equal(chown(path_of(PARTIAL), 65534, 65534), 0);
        refuse("foreign", path_of("out"), false, FERRY_ERR_IO, "belongs to user 65534");
        refuse("foreign", path_of("out"), true, FERRY_ERR_IO, "belongs to user 65534");
        assert_int_equal(entries_of(PARTIAL), 0);
        assert_int_equal(rmdir(path_of(PARTIAL)), 0);
        folder = begin(path_of("out"), true, FY_LEFT_NOTHING);
        put_into(&folder, "a", "1");
        fy_folder_end(&folder, true);
        assert_int_equal(chown(path_of(PARTIAL "/a"), 65534, 65534), 0);
        folder = begin(path_of("out"), true, FY_LEFT_STRANGE); /* a file of his is not trusted */
        assert_int_equal(entries_of(PARTIAL), 1);
        fy_folder_end(&folder, false);
    }
    umask(mask);
}

/* What a run that was killed behind its rename has left in its result is removed by the next. */
static void test_killed_behind_the_rename(void **state)
{
    (void)state;
    for (int has_journal = 0; has_journal < 2; has_journal++) {
        assert_int_equal(mkdir(path_of("out"), 0755), 0);
        put("out/a", "1");
        put("out/" FY_LOCK_NAME, "1\n");
        if (has_journal != 0) {
            put("out/" FY_JOURNAL_NAME, "journal");
        }
        int lock = open(path_of("out/" FY_LOCK_NAME), O_RDWR | O_CLOEXEC);
        assert_int_equal(flock(lock, LOCK_EX), 0); /* it is still at it */
        refuse("lives", path_of("out"), true, FERRY_ERR_IO, "exists");
        assert_int_equal(entries_of("out"), 2 + has_journal);
        close(lock);
        refuse("dead", path_of("out"), true, FERRY_ERR_IO, "exists");
        assert_int_equal(entries_of("out"), 1);
        assert_true(holds("out/a", "1"));
        remove_tree(path_of("out"));
    }
}

/* The journal is there until the name is given, and what was made is not lost without it. */
static void test_rename_fails(void **state)
{
    (void)state;
    ferry_error error;
    fy_folder folder = begin(path_of("out"), true, FY_LEFT_NOTHING);
    put_into(&folder, "a", "1");
    put_into(&folder, FY_JOURNAL_NAME, "journal");
    put("out", "in the way"); /* seen by the look before the rename and, without it, by that */
    assert_int_equal(fy_folder_commit(&folder, &error), FERRY_ERR_IO);
    fy_folder_end(&folder, true);
    assert_int_equal(unlink(path_of("out")), 0);
    folder = begin(path_of("out"), true, FY_LEFT_FILES);
    assert_true(holds(PARTIAL "/" FY_JOURNAL_NAME, "journal"));
    must(fy_folder_commit(&folder, &error), &error);
    fy_folder_end(&folder, true);
    assert_int_equal(entries_of("out"), 1);
    assert_int_equal(entries_of("."), 1);
}

static bool is_a(const void *context, const char *name)
{
    (void)context;
    return strcmp(name, "a") == 0;
}

static void test_keep_only(void **state)
{
    (void)state;
    ferry_error error;
    fy_folder folder = begin(path_of("out"), true, FY_LEFT_NOTHING);
    put_into(&folder, "a", "1");
    put_into(&folder, "b", "2");
    put_into(&folder, "ab", "3");
    must(fy_folder_keep_only(&folder, is_a, NULL, &error), &error);
    assert_int_equal(entries_of(PARTIAL), 2); /* and the lock */
    assert_true(holds(PARTIAL "/a", "1"));
    fy_folder_end(&folder, false);
}

/* ---- other runs ---- */

/* Begins in a child, which then lives until it is killed. */
static pid_t start_run(const char *path)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        fy_folder folder = {0};
        fy_leftover left;
        ferry_error error;
        int fd = -1;
        alarm(280);
        if (fy_folder_begin(path, true, &folder, &left, &error) == FERRY_OK) {
            fd = openat(folder.fd, "data", O_WRONLY | O_CREAT, 0600);
        }
        if (fd >= 0 && write(ready[1], "r", 1) == 1) {
            pause();
        }
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void test_live_run(void **state)
{
    (void)state;
    char says[40];
    pid_t child = start_run(path_of("out"));
    snprintf(says, sizeof says, "another run (process %ld)", (long)child);
    refuse("live", path_of("out"), false, FERRY_ERR_IO, says);
    refuse("live", path_of("out"), true, FERRY_ERR_IO, says);
    put(PARTIAL "/" FY_LOCK_NAME, "not a number");
    refuse("nameless", path_of("out"), false, FERRY_ERR_IO, "another run is");
    assert_true(is_there(PARTIAL "/data"));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    fy_folder folder = begin(path_of("out"), true, FY_LEFT_FILES);
    refuse("own", path_of("out"), false, FERRY_ERR_IO, "another run (process");
    fy_folder_end(&folder, true);
    folder = begin(path_of("out"), false, FY_LEFT_NOTHING);
    assert_int_equal(entries_of(PARTIAL), 1);
    fy_folder_end(&folder, false);
    assert_int_equal(entries_of("."), 0);
}

enum { N_RUNS = 4, N_ROUNDS = 60 };

/*
 * Whether the result holds nothing else. A run that was about to make its lock while the folder got
 * its new name may have made it in the result: it sees that, and takes it away again.
 */
static bool is_alone(void)
{
    for (int i = 0; i < 200000; i++) {
        if (entries_of("out") == 1) {
            return true;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

/* What one of many runs finds wrong; NULL: nothing. Counts the folders that it got. */
static const char *run_once(long id, int *n_begun)
{
    fy_folder folder = {0};
    fy_leftover left;
    ferry_error error;
    char text[32], away[32];
    snprintf(text, sizeof text, "%ld", id);
    snprintf(away, sizeof away, "away-%ld", id);
    if (fy_folder_begin(path_of("out"), false, &folder, &left, &error) != FERRY_OK) {
        bool expected =
            strstr(error.message, "another run") != NULL || strstr(error.message, "exists") != NULL;
        return expected ? NULL : "begin fails otherwise";
    }
    int fd = openat(folder.fd, "data", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, strlen(text)) < 0 || close(fd) != 0) {
        return "another run's file is in the folder, or the folder is gone";
    }
    if (++*n_begun % 3 == 0) {
        fy_folder_end(&folder, false);
        return NULL;
    }
    if (fy_folder_commit(&folder, &error) != FERRY_OK) {
        fy_folder_end(&folder, false);
        return "nobody else makes results now, and yet there is one";
    }
    if (!holds("out/data", text)) {
        return "the result is not what was written";
    }
    if (!is_alone()) {
        return "there is something beside the result";
    }
    fy_folder_end(&folder, false);
    if (!holds("out/data", text) || !is_alone() || rename(path_of("out"), path_of(away)) != 0) {
        return "the result does not stay";
    }
    remove_tree(path_of(away));
    return NULL;
}

/* Runs that come, end and are replaced all the time never meet in one folder. */
static void test_many_runs(void **state)
{
    (void)state;
    pid_t runs[N_RUNS];
    int n_failed = 0;
    for (int r = 0; r < N_RUNS; r++) {
        runs[r] = fork();
        if (runs[r] == 0) {
            int n_begun = 0;
            alarm(280);
            while (n_begun < N_ROUNDS) {
                const char *wrong = run_once((long)getpid(), &n_begun);
                if (wrong != NULL) {
                    fprintf(stderr, "round %d: %s\n", n_begun, wrong);
                    _exit(2);
                }
            }
            _exit(0);
        }
    }
    for (int r = 0; r < N_RUNS; r++) {
        int how = 0;
        assert_int_equal(waitpid(runs[r], &how, 0), runs[r]);
        n_failed += how != 0;
    }
    assert_int_equal(n_failed, 0);
    assert_int_equal(entries_of("."), 0);
}

/* ---- without locks ---- */

static const char *host_name = "machine";
static bool has_proc = true;

int gethostname(char *name, size_t n_bytes)
{
    snprintf(name, n_bytes, "%s", host_name);
    return 0;
}

FILE *fopen(const char *path, const char *mode)
{
    bool hides = !has_proc && strncmp(path, "/proc/", 6) == 0;
    int flags = mode[0] == 'r' ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC;
    int fd = hides ? -1 : open(path, flags | O_CLOEXEC, 0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}

static bool has_flock = true;

int flock(int fd, int operation)
{
    errno = ENOSYS;
    return has_flock ? (int)syscall(SYS_flock, fd, operation) : -1;
}

/* The text of the claim in the base, as a string that lasts until the next call. */
static const char *claim_text(void)
{
    static char text[600];
    ssize_t n = readlink(path_of(FY_CLAIM_NAME), text, sizeof text - 1);
    text[n < 0 ? 0 : n] = '\0';
    return text;
}

static int open_base(void)
{
    int fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void test_claims(void **state)
{
    (void)state;
    ferry_error error;
    char says[40], changed[700];
    int fd = open_base();
    must(fy_claim_refuse(fd, "out", &error), &error);
    assert_true(fy_claim_is_free(fd));
    must(fy_claim_take(fd, "out", &error), &error);
    assert_false(fy_claim_is_free(fd)); /* this process lives */
    snprintf(says, sizeof says, "another run (process %ld)", (long)getpid());
    assert_int_equal(fy_claim_take(fd, "out", &error), FERRY_ERR_IO);
    check_says("taken", says, &error);
    assert_int_equal(fy_claim_refuse(fd, "out", &error), FERRY_ERR_IO);

    /* The same number of a process that began at another time. */
    unsigned long long began = 0;
    long pid = 0;
    int at = 0;
    assert_int_equal(sscanf(claim_text(), "%ld %llu%n", &pid, &began, &at), 2);
    assert_true(pid == (long)getpid() && began > 0);
    snprintf(changed, sizeof changed, "%ld %llu%s", pid, began + 1, claim_text() + at);
    unlink(path_of(FY_CLAIM_NAME));
    assert_int_equal(symlink(changed, path_of(FY_CLAIM_NAME)), 0);
    assert_true(fy_claim_is_free(fd));
    must(fy_claim_refuse(fd, "out", &error), &error);
    assert_int_equal(entries_of("."), 0);

    /* Of another machine, and of nobody knows whom: not known to be dead. */
    static const char *const strange[] = {"1 1 elsewhere 0-0/pid:[1]", "x", "1 1", "0 0 a b"};
    for (size_t i = 0; i < COUNT_OF(strange); i++) {
        assert_int_equal(symlink(strange[i], path_of(FY_CLAIM_NAME)), 0);
        assert_int_equal(fy_claim_take(fd, "out", &error), FERRY_ERR_IO);
        check_says(strange[i], "remove the partial folder", &error);
        assert_string_equal(claim_text(), strange[i]);
        unlink(path_of(FY_CLAIM_NAME));
    }
    close(fd);
}

/* A process takes the claim and ends. */
static void take_and_die(int fd)
{
    ferry_error error;
    int how = 0;
    pid_t child = fork();
    if (child == 0) {
        _exit(fy_claim_take(fd, "out", &error) == FERRY_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    assert_true(atol(claim_text()) == (long)child);
}

/* Whatever the machine is called. */
static void test_claim_of_the_dead(void **state)
{
    (void)state;
    static const char *const names[] = {"machine", "", "two words"};
    ferry_error error;
    int fd = open_base();
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        host_name = names[i];
        take_and_die(fd);
        check_row(names[i], fy_claim_is_free(fd));
        must(fy_claim_take(fd, "out", &error), &error);
        assert_true(atol(claim_text()) == (long)getpid());
        assert_int_equal(entries_of("."), 1);
        unlink(path_of(FY_CLAIM_NAME));
    }
    host_name = names[0];
    close(fd);
}

/* Two machines that do not know which they are must not take each other's processes for dead. */
static void test_claim_of_nowhere(void **state)
{
    (void)state;
    ferry_error error;
    int fd = open_base();
    has_proc = false;
    take_and_die(fd);
    assert_false(fy_claim_is_free(fd));
    assert_int_equal(fy_claim_take(fd, "out", &error), FERRY_ERR_IO);
    check_says("nowhere", "remove the partial folder", &error);
    has_proc = true;
    close(fd);
}

/* Nothing of a claim is left where a folder ends, however it does. */
static void test_ends_of_claimed_folders(void **state)
{
    (void)state;
    ferry_error error;
    fy_folder folder;
    fy_leftover left;
    has_flock = false;
    must(fy_folder_begin(path_of("out"), true, &folder, &left, &error), &error);
    assert_int_equal(access(path_of(PARTIAL "/" FY_LOCK_NAME), F_OK), 0);
    assert_int_equal(entries_of(PARTIAL), 2); /* the lock file, and the claim */
    fy_folder_end(&folder, false);
    assert_int_equal(entries_of("."), 0);

    must(fy_folder_begin(path_of("out"), true, &folder, &left, &error), &error);
    put(PARTIAL "/data", "1");
    fy_folder_end(&folder, true);
    assert_int_equal(entries_of(PARTIAL), 2); /* the lock file, and the data */
    must(fy_folder_begin(path_of("out"), true, &folder, &left, &error), &error);
    assert_int_equal(left, FY_LEFT_FILES);
    must(fy_folder_commit(&folder, &error), &error);
    fy_folder_end(&folder, false);
    assert_int_equal(entries_of("."), 1);
    assert_int_equal(entries_of("out"), 1);
    has_flock = true;
}

/* One that has ended, and whose parent has not asked for it. */
static void test_claim_of_a_zombie(void **state)
{
    (void)state;
    ferry_error error;
    siginfo_t about;
    int fd = open_base();
    pid_t child = fork();
    if (child == 0) {
        _exit(fy_claim_take(fd, "out", &error) == FERRY_OK ? 0 : 1);
    }
    assert_int_equal(waitid(P_PID, (id_t)child, &about, WEXITED | WNOWAIT), 0);
    assert_true(atol(claim_text()) == (long)child);
    assert_true(fy_claim_is_free(fd));
    must(fy_claim_take(fd, "out", &error), &error);
    fy_claim_drop(fd);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(entries_of("."), 0);
    close(fd);
}

/* ---- several at once, each of whom comes at a step of the one before ---- */

enum { N_TAKERS = 3, MOST_STEPS = 6 };

typedef enum ending {
    HOLD,       /* the claim until all have tried */
    DROP,       /* it at once */
    DIE,        /* and leave it */
    DIE_AT_STEP /* where the next one has come */
} ending;

static struct taker {
    int step; /* at which the next one comes */
    ending ending;
} takers[N_TAKERS];

static int taker;           /* which of them this process is */
static int steps_left = -1; /* below 0: they are not counted */
static int results[2], release[2], claimed_fd;
static int tried_fd = -1; /* open until this one has tried: nobody else may keep it open */

enum { WAS_GONE = 1, WAS_REFUSED, HAS_FAILED, HAS_HELD };

static void come(void);

/* The next one lives until it has tried, or to the end. */
static void start_next(void)
{
    int tried[2];
    char byte;
    if (pipe(tried) != 0) {
        _exit(1);
    }
    pid_t child = fork();
    if (child == 0) {
        close(tried[0]);
        if (tried_fd >= 0) {
            close(tried_fd);
        }
        tried_fd = tried[1];
        taker++;
        come();
        if (takers[taker].ending == HOLD) {
            close(tried[1]);
            (void)!read(release[0], &byte, 1);
        }
        _exit(0);
    }
    close(tried[1]);
    (void)!read(tried[0], &byte, 1); /* until it is closed */
    close(tried[0]);
    if (takers[taker + 1].ending != HOLD) {
        waitpid(child, NULL, 0);
    }
}

static void tell(char what)
{
    char result[2] = {(char)taker, what};
    (void)!write(results[1], result, sizeof result);
}

static void take_step(void)
{
    if (steps_left < 0 || steps_left-- > 0) {
        return;
    }
    if (taker + 1 < N_TAKERS) {
        start_next();
    }
    if (takers[taker].ending == DIE_AT_STEP) {
        tell(WAS_GONE);
        _exit(0);
    }
}

int symlinkat(const char *text, int fd, const char *name)
{
    take_step();
    return (int)syscall(SYS_symlinkat, text, fd, name);
}

ssize_t readlinkat(int fd, const char *name, char *text, size_t n_bytes)
{
    take_step();
    return (ssize_t)syscall(SYS_readlinkat, fd, name, text, n_bytes);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    take_step();
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int unlinkat(int fd, const char *name, int flags)
{
    take_step();
    return (int)syscall(SYS_unlinkat, fd, name, flags);
}

static void come(void)
{
    ferry_error error;
    steps_left = takers[taker].step;
    ferry_status status = fy_claim_take(claimed_fd, "out", &error);
    steps_left = -1;
    if (status == FERRY_OK && takers[taker].ending == DROP) {
        fy_claim_drop(claimed_fd);
    }
    tell(status == FERRY_OK                             ? HAS_HELD
         : strstr(error.message, "another run") != NULL ? WAS_REFUSED
                                                        : HAS_FAILED);
}

static void wait_for_all(void)
{
    while (waitpid(-1, NULL, 0) > 0) {}
}

/* found: what each has told, or 0 of one who never came. */
static void run_takers(char found[N_TAKERS])
{
    char result[2];
    assert_int_equal(pipe(results), 0);
    assert_int_equal(pipe(release), 0);
    memset(found, 0, N_TAKERS);
    pid_t first = fork();
    if (first == 0) {
        close(release[1]);
        taker = 0;
        come();
        _exit(0);
    }
    close(results[1]);
    close(release[0]);
    assert_int_equal(waitpid(first, NULL, 0), first);
    close(release[1]); /* now who still holds may end */
    wait_for_all();
    while (read(results[0], result, sizeof result) == (ssize_t)sizeof result) {
        found[(int)result[0]] = result[1];
    }
    close(results[0]);
}

static bool check_takers(const char *row)
{
    ferry_error error;
    char found[N_TAKERS];
    int n_holders = 0;
    take_and_die(claimed_fd);
    run_takers(found);
    for (int i = 0; i < N_TAKERS; i++) {
        check_row(row, found[i] != HAS_FAILED);
        n_holders += found[i] == HAS_HELD && (i == 0 || takers[i].ending == HOLD);
    }
    /* The first one ends last: it has the claim if nobody else still has. */
    check_row(row, n_holders == 1 || (n_holders == 0 && found[0] == WAS_GONE));
    must(fy_claim_take(claimed_fd, "out", &error), &error);
    fy_claim_drop(claimed_fd);
    check_row(row, entries_of(".") == 0); /* also of those who died on their way */
    return found[N_TAKERS - 1] != 0;
}

/* Of three who find a dead claim, whenever each comes, only one has it, and one has it. */
static void test_claims_of_three(void **state)
{
    (void)state;
    if (is_left_out(__func__, "lets no process adopt others (PR_SET_CHILD_SUBREAPER)")) {
        return;
    }
    static const ending endings[][N_TAKERS] = {
        {HOLD, HOLD, HOLD}, {HOLD, DROP, HOLD},        {HOLD, DIE, HOLD},
        {HOLD, HOLD, DIE},  {HOLD, DIE_AT_STEP, HOLD}, {HOLD, DIE_AT_STEP, DIE},
        {HOLD, DIE, DIE},   {DIE_AT_STEP, DIE, HOLD},  {DIE_AT_STEP, DIE_AT_STEP, DIE}};
    char row[80];
    int n_full = 0; /* scenes in which all three came */
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    claimed_fd = open_base();
    for (size_t e = 0; e < COUNT_OF(endings); e++) {
        for (int k = 0; k < MOST_STEPS * MOST_STEPS; k++) {
            int steps[N_TAKERS] = {k / MOST_STEPS, k % MOST_STEPS, -1};
            for (int i = 0; i < N_TAKERS; i++) {
                takers[i] = (struct taker){.step = steps[i], .ending = endings[e][i]};
            }
            snprintf(row, sizeof row, "endings %zu, steps %d and %d", e, steps[0], steps[1]);
            n_full += check_takers(row);
        }
    }
    assert_true(n_full >= (int)COUNT_OF(endings) * 16);
    close(claimed_fd);
}

/* ---- the rest ---- */

static int open_files(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *item;
    while ((item = readdir(dir)) != NULL) {
        n += item->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

static void test_no_memory(void **state)
{
    (void)state;
    ferry_status status = FERRY_ERR_NO_MEMORY;
    int n_files = open_files();
    int64_t n = 0;
    fy_folder folder = {0};
    for (; status != FERRY_OK; n++) {
        ferry_error error;
        fy_leftover left;
        fy_alloc_fail_after(n);
        status = fy_folder_begin(path_of("out"), true, &folder, &left, &error);
        fy_alloc_fail_after(-1);
        assert_true(status == FERRY_OK || status == FERRY_ERR_NO_MEMORY);
        assert_true(status == FERRY_OK || open_files() == n_files);
    }
    assert_true(n > 3);
    fy_folder_end(&folder, false);
    assert_int_equal(open_files(), n_files);
    assert_int_equal(entries_of("."), 0);
}

static void test_sentences(void **state)
{
    (void)state;
    ferry_error error;
    assert_int_equal(fy_fail_errno("a/b", "cannot be written", ENOSPC, &error), FERRY_ERR_IO);
    assert_string_equal(error.message,
                        "a/b: cannot be written: the disk is full (No space left on device)");
    fy_fail_errno("a/b", "cannot be written", EDQUOT, &error);
    check_says("quota", "the disk is full (", &error);
    fy_fail_errno("a/b", "cannot be written", EIO, &error);
    assert_string_equal(error.message, "a/b: cannot be written: Input/output error");
}

#define ROW(test) cmocka_unit_test_setup_teardown(test, make_base, remove_base)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROW(test_commit),
        ROW(test_end_without_result),
        ROW(test_resume),
        ROW(test_leftovers_go),
        ROW(test_forms_of_path),
        ROW(test_exists),
        ROW(test_no_place),
        ROW(test_appears_meanwhile),
        ROW(test_links_left),
        ROW(test_folder_left),
        ROW(test_no_partial_folder),
        ROW(test_live_run),
        ROW(test_many_runs),
        ROW(test_no_memory),
        ROW(test_sentences),
        ROW(test_foreign_folder),
        ROW(test_killed_behind_the_rename),
        ROW(test_rename_fails),
        ROW(test_keep_only),
        ROW(test_claims),
        ROW(test_claim_of_the_dead),
        ROW(test_claim_of_nowhere),
        ROW(test_ends_of_claimed_folders),
        ROW(test_claim_of_a_zombie),
        ROW(test_claims_of_three),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
