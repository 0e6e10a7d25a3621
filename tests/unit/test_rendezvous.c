/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/meeting.h"

#include "world/link.h"

#include "support/meeting.h"
#include "support/thread_state.h"

#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Rank 0 as a world has it: takes connections and lets each prove the key. */
typedef struct porter {
    fy_meeting meeting;
    pthread_t thread;
    atomic_bool stop;
} porter;

static void serve_one(const porter *at, int fd)
{
    fy_link *link = NULL;
    if (fy_link_create(fd, true, at->meeting.key, &link, NULL) != FERRY_OK) {
        return;
    }
    while (!at->stop) {
        struct pollfd item = {.fd = fy_link_fd(link), .events = fy_link_events(link)};
        poll(&item, 1, 10);
        if (fy_link_work(link, NULL) != FERRY_OK) {
            break;
        }
    }
    fy_link_destroy(link);
}

static void *serve(void *argument)
{
    porter *at = argument;
    while (!at->stop) {
        struct pollfd item = {.fd = at->meeting.listener, .events = POLLIN};
        int fd = poll(&item, 1, 10) == 1
                     ? accept4(at->meeting.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
                     : -1;
        if (fd >= 0) {
            serve_one(at, fd);
        }
    }
    return NULL;
}

static void open_porter(porter *at, const char *path, uint32_t n_ranks, char *secret)
{
    fy_settings settings = settings_of(10, secret);
    ferry_error error;
    at->meeting = (fy_meeting)FY_MEETING_INIT;
    atomic_init(&at->stop, false);
    must(fy_meet_file(&at->meeting, path, 0, n_ranks, &settings, &error), &error);
    assert_int_equal(pthread_create(&at->thread, NULL, serve, at), 0);
}

static void close_porter(porter *at)
{
    at->stop = true;
    pthread_join(at->thread, NULL);
    fy_meeting_cleanup(&at->meeting);
}

typedef struct guest {
    const char *path;
    uint32_t rank, n_ranks;
    fy_settings settings;
    fy_meeting meeting;
    ferry_status status;
    ferry_error error;
    pthread_t thread;
    _Atomic int number; /* of the thread, for the kernel */
} guest;

static void *visit(void *argument)
{
    guest *one = argument;
    one->meeting = (fy_meeting)FY_MEETING_INIT;
    atomic_store(&one->number, (int)syscall(SYS_gettid));
    one->status = fy_meet_file(&one->meeting, one->path, one->rank, one->n_ranks, &one->settings,
                               &one->error);
    return NULL;
}

static void send_patient_guest(guest *one, const char *path, uint32_t rank, uint32_t n_ranks,
                               double join, double deadline, char *secret)
{
    *one = (guest){
        .path = path, .rank = rank, .n_ranks = n_ranks, .settings = settings_of(join, secret)};
    one->settings.deadline_ns = (int64_t)(deadline * 1e9);
    assert_int_equal(pthread_create(&one->thread, NULL, visit, one), 0);
}

static void send_guest(guest *one, const char *path, uint32_t rank, uint32_t n_ranks, double join,
                       char *secret)
{
    send_patient_guest(one, path, rank, n_ranks, join, 0.2, secret);
}

static void await_guest(guest *one, const porter *root)
{
    pthread_join(one->thread, NULL);
    check_status("guest", FERRY_OK, one->status, &one->error);
    assert_int_equal(one->meeting.rank, one->rank);
    assert_int_equal(one->meeting.n_ranks, one->n_ranks);
    assert_int_equal(one->meeting.listener, -1);
    assert_string_equal(one->meeting.addresses, root->meeting.addresses);
    assert_true(same_key(&one->meeting, &root->meeting));
    fy_meeting_cleanup(&one->meeting);
}

/* A guest that finds what is there, and must not believe it. */
static void check_guest(const char *path, uint32_t n_ranks, double join, char *secret,
                        ferry_status expected, const char *sentence)
{
    guest one;
    send_guest(&one, path, 1, n_ranks, join, secret);
    pthread_join(one.thread, NULL);
    check_status(sentence, expected, one.status, &one.error);
    check_says(sentence, sentence, &one.error);
}

/* Until it has looked at the path, as good as surely, and sleeps before it looks again. */
static void let_look(guest *one)
{
    while (thread_state(atomic_load(&one->number)) != 'S') {
        sched_yield();
    }
}

static void test_file_meet(void **state)
{
    (void)state;
    const char *path = path_of("meet");
    for (int world = 0; world < 3; world++) { /* one after the other at one path */
        char *secret = world == 1 ? "a secret" : NULL;
        guest early, late;
        porter root;
        struct stat info;
        send_guest(&early, path, 1, 3, 20, secret);
        let_look(&early);
        open_porter(&root, path, 3, secret);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 07777, 0600);
        send_guest(&late, path, 2, 3, 20, secret);
        await_guest(&early, &root);
        await_guest(&late, &root);
        close_porter(&root);
        fy_meet_file_done(path);
        assert_int_equal(count_entries(folder), 0);
        fy_meet_file_done(path);
    }
}

static void test_file_stale(void **state)
{
    (void)state;
    const char *path = path_of("stale");
    porter dead, root;
    guest one;
    open_porter(&dead, path, 8, NULL); /* of another size, too */
    close_porter(&dead);
    check_guest(path, 2, 0.3, NULL, FERRY_ERR_TIMEOUT,
                "rank 0 does not answer at what rendezvous \"");
    send_guest(&one, path, 1, 2, 20, NULL);
    let_look(&one);
    open_porter(&root, path, 2, NULL);
    assert_false(same_key(&dead.meeting, &root.meeting));
    await_guest(&one, &root);
    close_porter(&root);
    fy_meet_file_done(path);
}

static void test_file_stale_port_is_anothers(void **state)
{
    (void)state;
    /* The killed job's port now belongs to another world: it denies until the file is replaced. */
    const char *path = path_of("first");
    const char *copy = path_of("second");
    porter other, root;
    guest one;
    char text[2048];
    open_porter(&other, path, 2, NULL);
    FILE *stream = fopen(path, "r");
    size_t length = fread(text, 1, sizeof text - 1, stream);
    fclose(stream);
    text[length] = '\0';
    char *digit = strstr(text, "key ") + 4;
    *digit = *digit == '0' ? '1' : '0';
    int fd = open(copy, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, text, length), (ssize_t)length);
    close(fd);
    send_patient_guest(&one, copy, 1, 2, 20, 20, NULL);
    let_look(&one);
    open_porter(&root, copy, 2, NULL);
    await_guest(&one, &root);
    close_porter(&root);
    close_porter(&other);
    fy_meet_file_done(path);
    fy_meet_file_done(copy);
}

static void test_file_secrets(void **state)
{
    (void)state;
    const char *path = path_of("secrets");
    porter root;
    open_porter(&root, path, 2, "right");
    check_guest(path, 2, 20, "wrong", FERRY_ERR_DENIED, "secret");
    check_guest(path, 2, 20, NULL, FERRY_ERR_DENIED,
                "; rank 0 has a secret and this rank has none");
    close_porter(&root);
    open_porter(&root, path, 2, NULL);
    check_guest(path, 2, 20, "x", FERRY_ERR_DENIED, "; this rank has a secret and rank 0 has none");
    close_porter(&root);
    fy_meet_file_done(path);
}

static void test_file_sizes_differ(void **state)
{
    (void)state;
    const char *path = path_of("sizes");
    char sentence[256];
    porter root;
    open_porter(&root, path, 4, NULL);
    snprintf(sentence, sizeof sentence,
             "rendezvous \"%s\" is for 4 ranks, by rank 0, but rank 1 expects 3", path);
    check_guest(path, 3, 20, NULL, FERRY_ERR_INVALID_INPUT, sentence);
    close_porter(&root);
    fy_meet_file_done(path);
}

static void put_text(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEAD "ferry.rendezvous/1\nranks 2\nsecret no\nkey " KEY "\n"

static void test_file_damaged(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "ferry.rendezvous/1",
        "ferry.rendezvous/2\nranks 2\nsecret no\nkey " KEY "\nby x\nat 127.0.0.1:1\nend\n",
        HEAD,
        HEAD "by x\nat 127.0.0.1:1\n",
        HEAD "by x\nat 127.0.0.1:1\nend",
        HEAD "by x\nat 127.0.0.1:1\nend\nmore\n",
        HEAD "at 127.0.0.1:1\nby x\nend\n",
        "ferry.rendezvous/1\nranks 0\nsecret no\nkey " KEY "\nby x\nat 127.0.0.1:1\nend\n",
        "ferry.rendezvous/1\nranks 2x\nsecret no\nkey " KEY "\nby x\nat 127.0.0.1:1\nend\n",
        "ferry.rendezvous/1\nranks 99999999999\nsecret no\nkey " KEY "\nby x\nat a:1\nend\n",
        "ferry.rendezvous/1\nranks 2\nsecret no\nkey 12\nby x\nat 127.0.0.1:1\nend\n",
        "ferry.rendezvous/1\nranks 2\nsecret no\nkey x" KEY "\nby x\nat 127.0.0.1:1\nend\n",
    };
    const char *path = path_of("damaged");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        put_text(path, rows[i], 0600);
        check_guest(path, 2, 0.01, NULL, FERRY_ERR_TIMEOUT, "is cut off, or of another version");
    }
    /* Rank 0 replaces such a file, and who waits goes on. */
    guest one;
    porter root;
    send_guest(&one, path, 1, 2, 20, NULL);
    let_look(&one);
    open_porter(&root, path, 2, NULL);
    await_guest(&one, &root);
    close_porter(&root);
    fy_meet_file_done(path);
}

/* Both sides refuse what is at the path, and nothing of it changes. */
static void check_refused(const char *path, const char *sentence)
{
    fy_settings settings = settings_of(20, NULL);
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_error error;
    check_guest(path, 2, 20, NULL, FERRY_ERR_INVALID_INPUT, sentence);
    check_status(path, FERRY_ERR_INVALID_INPUT,
                 fy_meet_file(&meeting, path, 0, 2, &settings, &error), &error);
    check_says(path, sentence, &error);
    fy_meet_file_done(path);
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    assert_int_equal(count_entries(folder), 1);
    assert_int_equal(meeting.listener, -1);
}

static void test_file_refused(void **state)
{
    (void)state;
    const char *path = path_of("refused");
    put_text(path, "the weights of a model\n", 0600);
    check_refused(path, "exists and is not a rendezvous file: name another path, or remove it");
    put_text(path, "\n", 0600);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(truncate(path, 1 << 20), 0); /* all zeros: somebody's, and sparse */
    check_refused(path, "exists and is not a rendezvous file: name another path, or remove it");
    put_text(path, HEAD "by x\nat 127.0.0.1:1\nend\n", 0620);
    check_refused(path, "has mode 0620: others could have written it; remove it");
    put_text(path, HEAD "by x\nat 127.0.0.1:1\nend\n", 0600);
    if (geteuid() == 0) { /* only root can give a file away */
        assert_int_equal(chown(path, 12345, 12345), 0);
        check_refused(path, "belongs to user 12345, and this is user 0");
    }
    unlink(path);
    assert_int_equal(symlink("/dev/null", path), 0);
    check_refused(path, "it is a symbolic link");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    check_refused(path, "is not a regular file");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    check_refused(path, "is not a regular file");
    rmdir(path);
}

/* A file system that takes no more: the path and the reason are said, and nothing stays there. */
static void test_file_cannot_be_written(void **state)
{
    (void)state;
    const char *path = path_of("full");
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    void (*usual)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    ferry_world *world = NULL;
    ferry_error error = {""};
    ferry_status status = ferry_world_create_from_file(path, 0, 2, NULL, &world, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, usual);
    check_status("full", FERRY_ERR_IO, status, &error);
    check_says("full", "full", &error);
    check_says("full", " cannot be written: File too large", &error);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_file_absent(void **state)
{
    (void)state;
    const char *path = path_of("absent");
    char sentence[256];
    snprintf(sentence, sizeof sentence,
             "rank 0 made no rendezvous \"%s\" within 0.05 s: does it run, and does it see this "
             "folder?",
             path);
    check_guest(path, 2, 0.05, NULL, FERRY_ERR_TIMEOUT, sentence);
    fy_settings settings = settings_of(1, NULL);
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_error error;
    path = path_of("no-such-folder/file");
    check_status("folder", FERRY_ERR_IO, fy_meet_file(&meeting, path, 0, 2, &settings, &error),
                 &error);
    check_says("folder", "cannot be made: No such file or directory", &error);
    assert_int_equal(meeting.listener, -1);
}

/* Looks are frequent at first, and rare where nothing was heard for long. */
static void test_pauses(void **state)
{
    (void)state;
    static const struct {
        int64_t waited_ms, pause_ms;
    } rows[] = {{0, 8}, {800, 8}, {1000, 10}, {4000, 40}, {5000, 50}, {3600000, 50}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(fy_meet_pause_ns(rows[i].waited_ms * 1000000), rows[i].pause_ms * 1000000);
    }
}

static void test_file_of_another(void **state)
{
    (void)state;
    /* A file that another process made by now is not this one's to remove. */
    const char *path = path_of("another");
    put_text(path, HEAD "by process 1 on another-host at now\nat 127.0.0.1:1\nend\n", 0600);
    fy_meet_file_done(path);
    assert_int_equal(unlink(path), 0);
    fy_meet_file_done(NULL);
}

/* Another's file is at the path just when this process moves what it takes for its own. */
static const char *overtaken;
static int n_overtakings;

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

int __wrap_rename(const char *from, const char *to)
{
    static const char other[] = HEAD "by process 1 on another-host at now\nat 127.0.0.1:1\nend\n";
    bool is_there = overtaken != NULL && strcmp(from, overtaken) == 0;
    if (is_there) {
        assert_int_equal(unlink(from), 0);
        put_text(from, other, 0600);
    }
    int failed = __real_rename(from, to);
    if (is_there && n_overtakings > 1) { /* and yet another comes before that is put back */
        put_text(from, other, 0600);
        assert_int_equal(chmod(from, 0400), 0);
    }
    return failed;
}

static void test_file_overtaken(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        porter p;
        struct stat info;
        char pattern[256];
        const char *path = path_of("overtaken");
        open_porter(&p, path, 2, NULL);
        overtaken = path;
        n_overtakings = n;
        fy_meet_file_done(path);
        overtaken = NULL;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 0777, n == 1 ? 0600 : 0400); /* the last that came */
        assert_int_equal(info.st_nlink, 1);
        assert_int_equal(unlink(path), 0);
        snprintf(pattern, sizeof pattern, "%s.*", path);
        assert_int_equal(glob(pattern, 0, NULL, &(glob_t){0}), GLOB_NOMATCH); /* nothing is left */
        close_porter(&p);
    }
}

static void test_file_numbers(void **state)
{
    (void)state;
    fy_settings settings = settings_of(1, NULL);
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_error error;
    const char *path = path_of("numbers");
    must(fy_meet_file(&meeting, path, 0, 1, &settings, &error), &error); /* nobody to meet */
    assert_int_equal(meeting.listener, -1);
    assert_int_equal(count_entries(folder), 0);
    assert_int_equal(fy_meet_file(&meeting, path, 2, 2, &settings, &error), FERRY_ERR_MISUSE);
    assert_int_equal(fy_meet_file(&meeting, path, 0, 0, &settings, &error), FERRY_ERR_MISUSE);
    assert_int_equal(fy_meet_file(&meeting, NULL, 0, 2, &settings, &error), FERRY_ERR_MISUSE);
    assert_int_equal(fy_meet_file(&meeting, path, 0, UINT32_MAX, &settings, &error),
                     FERRY_ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_meet),
        cmocka_unit_test(test_file_stale),
        cmocka_unit_test(test_file_stale_port_is_anothers),
        cmocka_unit_test(test_file_secrets),
        cmocka_unit_test(test_file_sizes_differ),
        cmocka_unit_test(test_file_damaged),
        cmocka_unit_test(test_file_refused),
        cmocka_unit_test(test_file_cannot_be_written),
        cmocka_unit_test(test_file_absent),
        cmocka_unit_test(test_file_of_another),
        cmocka_unit_test(test_file_overtaken),
        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_file_numbers),
        cmocka_unit_test(test_no_descriptor_left),
    };
    return cmocka_run_group_tests(tests, begin_meetings, end_meetings);
}
