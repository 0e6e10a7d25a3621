/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Folders like /proc and /sys/fs/cgroup, written here, tell the figures. */
#include "base/alloc.h"
#include "host/room.h"

#include "support/check.h"
#include "support/emulated.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static char folder[] = "/tmp/ferry-test-room-XXXXXX";

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *ftw)
{
    (void)about;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A file of the folder with all the folders above it; @ in the text stands for the folder. */
static void put(const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (; *text != '\0'; text++) {
        if (*text == '@') {
            fputs(folder, file);
        } else {
            fputc(*text, file);
        }
    }
    assert_int_equal(fclose(file), 0);
}

static void put_number(const char *name, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)number);
    put(name, text);
}

/* 16 GiB, of which 10 are available; swap that must not count. */
static void put_machine(void)
{
    put("proc/meminfo", "MemTotal:       16777216 kB\n"
                        "MemFree:         1048576 kB\n"
                        "MemAvailable:   10485760 kB\n"
                        "SwapTotal:      99999999 kB\n"
                        "SwapFree:       99999999 kB\n");
}

static ferry_status look(uint64_t address_space, fy_room_found *found, ferry_error *error)
{
    char proc[100];
    snprintf(proc, sizeof proc, "%s/proc", folder);
    return fy_room_look(proc, address_space, found, error);
}

static uint64_t less_reserve(uint64_t bytes)
{
    return bytes - 32 * MIB - bytes / 256;
}

static void expect(uint64_t address_space, const char *limit, uint64_t allowed, uint64_t used)
{
    fy_room_found found;
    ferry_error error;
    must(look(address_space, &found, &error), &error);
    assert_string_equal(found.limit, limit);
    assert_int_equal(found.allowed_bytes, allowed);
    assert_int_equal(found.used_bytes, used);
    assert_int_equal(found.room_bytes, less_reserve(allowed - used));
}

static void test_machine_alone(void **state)
{
    (void)state;
    put_machine();
    expect(UINT64_MAX, "the machine has", 16 * GIB, 6 * GIB);
}

/* Where no file can be opened, that is what is said, and not that there is none. */
static void test_no_descriptor(void **state)
{
    (void)state;
    struct rlimit before;
    fy_room_found found = {.room_bytes = 77};
    ferry_error error = {""};
    put_machine();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(STDERR_FILENO);
    assert_true(next >= 0);
    close(next);
    struct rlimit none = {.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    ferry_status status = look(UINT64_MAX, &found, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    check_status("no descriptor", FERRY_ERR_LIMIT, status, &error);
    check_says("no descriptor", "no descriptor is left", &error);
}

static void test_no_proc(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "MemTotal: 0 kB\n", "MemTotal: 5 kB\nMemAvailable: 6 kB\n", "MemTotalling: 5 kB\n",
        "MemTotal: 99999999999999999999 kB\n"};
    fy_room_found found = {.room_bytes = 77};
    ferry_error error;
    check_status("none", FERRY_ERR_IO, look(UINT64_MAX, &found, &error), &error);
    check_says("none", "is /proc mounted", &error);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        put("proc/meminfo", texts[i]);
        check_status(texts[i], FERRY_ERR_IO, look(UINT64_MAX, &found, &error), &error);
    }
    assert_int_equal(found.room_bytes, 77);
}

/* Version 2, mounted whole: a limit of any level counts. */
static void put_v2(void)
{
    put_machine();
    put("proc/self/cgroup", "0::/jobs/seven\n");
    put("proc/self/mountinfo", "21 20 0:19 / /proc rw - proc proc rw\n"
                               "31 23 0:28 / @/cg rw,relatime shared:9 - cgroup2 cgroup2 rw\n");
    put("cg/cgroup.procs", "");
    put("cg/jobs/memory.max", "max\n");
    put_number("cg/jobs/memory.current", 5 * GIB);
    put_number("cg/jobs/seven/memory.max", 4 * GIB);
    put_number("cg/jobs/seven/memory.current", 3 * GIB);
}

static void test_v2(void **state)
{
    (void)state;
    put_v2();
    expect(UINT64_MAX, "the cgroup /jobs/seven allows", 4 * GIB, 3 * GIB);
    put_number("cg/jobs/memory.max", 5 * GIB + 512 * MIB);
    expect(UINT64_MAX, "the cgroup /jobs allows", 5 * GIB + 512 * MIB, 5 * GIB);
    put_number("cg/jobs/seven/memory.high", 3 * GIB + 256 * MIB);
    expect(UINT64_MAX, "the cgroup /jobs/seven allows", 3 * GIB + 256 * MIB, 3 * GIB);
}

static void test_v2_reclaimable(void **state)
{
    (void)state;
    put_v2();
    put("cg/jobs/seven/memory.stat", "anon 1\nfile 3221225472\nshmem 9\n"
                                     "inactive_anon 1073741824\nactive_file 1073741824\n"
                                     "inactive_file 1073741824\nunevictable 0\n");
    expect(UINT64_MAX, "the cgroup /jobs/seven allows", 4 * GIB, GIB + 512 * MIB);
    put("cg/jobs/seven/memory.stat", "inactive_file 99999999999999\n");
    expect(UINT64_MAX, "the cgroup /jobs/seven allows", 4 * GIB, 0);
}

static void test_v2_exhausted(void **state)
{
    (void)state;
    static const uint64_t used[] = {4 * GIB, 5 * GIB, 4 * GIB - 20 * MIB};
    fy_room_found found;
    ferry_error error;
    put_v2();
    for (size_t i = 0; i < COUNT_OF(used); i++) {
        put_number("cg/jobs/seven/memory.current", used[i]);
        must(look(UINT64_MAX, &found, &error), &error);
        assert_int_equal(found.room_bytes, 0);
        assert_int_equal(found.allowed_bytes, 4 * GIB);
        assert_int_equal(found.used_bytes, used[i]);
    }
    put_number("cg/jobs/seven/memory.max", 0);
    must(look(UINT64_MAX, &found, &error), &error);
    assert_int_equal(found.room_bytes, 0);
}

/* In a container of its own namespace the group is "/" and its files lie at the mount. */
static void test_v2_namespace(void **state)
{
    (void)state;
    put_machine();
    put("proc/self/cgroup", "0::/\n");
    put("proc/self/mountinfo", "31 23 0:28 / @/cg\\040group rw - cgroup2 cgroup rw\n");
    put_number("cg group/memory.max", 2 * GIB);
    put_number("cg group/memory.current", GIB);
    expect(UINT64_MAX, "the cgroup / allows", 2 * GIB, GIB);
    put("proc/self/cgroup", "0::/../elsewhere\n"); /* not below what is shown */
    expect(UINT64_MAX, "the machine has", 16 * GIB, 6 * GIB);
}

/* A whole tree of version 1, beside a version 2 without a memory controller. */
static void test_v1(void **state)
{
    (void)state;
    put_machine();
    put("proc/self/cgroup", "8:pids:/a/b\n4:cpu,memory:/a/b\n1:name=systemd:/\n0::/\n");
    put("proc/self/mountinfo", "35 31 0:32 / @/mem rw - cgroup cgroup rw,cpu,memory\n"
                               "36 31 0:33 / @/pids rw - cgroup cgroup rw,pids\n"
                               "41 31 0:38 / @/unified rw - cgroup2 cgroup2 rw\n");
    put_number("mem/memory.limit_in_bytes", 9223372036854771712u);
    put_number("mem/memory.usage_in_bytes", 6 * GIB);
    put_number("mem/a/memory.limit_in_bytes", 5 * GIB);
    put_number("mem/a/memory.usage_in_bytes", 4 * GIB);
    put_number("mem/a/b/memory.limit_in_bytes", 3 * GIB);
    put_number("mem/a/b/memory.usage_in_bytes", GIB);
    put_number("pids/a/b/memory.limit_in_bytes", 7); /* of no memory controller */
    put_number("pids/a/b/memory.usage_in_bytes", 6);
    expect(UINT64_MAX, "the cgroup /a allows", 5 * GIB, 4 * GIB);
    put("mem/a/memory.stat", "inactive_file 5\ntotal_inactive_file 3221225472\n");
    expect(UINT64_MAX, "the cgroup /a/b allows", 3 * GIB, GIB);
    put("proc/self/cgroup", "0::/\n4:cpu,memory:/a/b\n8:pids:/a/b\n"); /* in any order */
    expect(UINT64_MAX, "the cgroup /a/b allows", 3 * GIB, GIB);
    put_number("mem/memory.limit_in_bytes", 7 * GIB); /* the root of what is shown counts too */
    expect(UINT64_MAX, "the cgroup / allows", 7 * GIB, 6 * GIB);
}

/* Blanks in names are written as numbers, in the root of a mount as well. */
static void test_names_with_blanks(void **state)
{
    (void)state;
    put_machine();
    put("proc/self/cgroup", "4:memory:/my jobs/0f\n");
    put("proc/self/mountinfo", "35 31 0:32 /my\\040jobs @/mem rw - cgroup cgroup rw,memory\n");
    put_number("mem/memory.limit_in_bytes", 9 * GIB);
    put_number("mem/memory.usage_in_bytes", GIB);
    put_number("mem/0f/memory.limit_in_bytes", 2 * GIB);
    put_number("mem/0f/memory.usage_in_bytes", GIB);
    expect(UINT64_MAX, "the cgroup /my jobs/0f allows", 2 * GIB, GIB);
}

/* A container that sees its own group only: the mount's root is the group or is elsewhere. */
static void test_v1_container(void **state)
{
    (void)state;
    static const char *const mounts[] = {
        "35 31 0:32 /docker/0f @/mem rw - cgroup cgroup rw,memory\n",
        "35 31 0:32 /docker @/mem rw - cgroup cgroup rw,memory\n",
        "35 31 0:32 /other/1e @/mem rw - cgroup cgroup rw,memory\n",
        "35 31 0:32 /docker/0 @/mem rw - cgroup cgroup rw,memory\n",
    };
    put_machine();
    put("proc/self/cgroup", "4:memory:/docker/0f\n");
    for (size_t i = 0; i < COUNT_OF(mounts); i++) {
        const char *own = i == 1 ? "mem/0f" : "mem";
        char name[64];
        put("proc/self/mountinfo", mounts[i]);
        snprintf(name, sizeof name, "%s/memory.limit_in_bytes", own);
        put_number(name, 2 * GIB);
        snprintf(name, sizeof name, "%s/memory.usage_in_bytes", own);
        put_number(name, GIB);
        expect(UINT64_MAX, "the cgroup /docker/0f allows", 2 * GIB, GIB);
        tear_down(NULL);
        set_up(NULL);
        put_machine();
        put("proc/self/cgroup", "4:memory:/docker/0f\n");
    }
}

static void put_addresses(uint64_t used_bytes)
{
    char text[64];
    snprintf(text, sizeof text, "%llu 5 5 1 0 9 0\n",
             (unsigned long long)(used_bytes / (uint64_t)sysconf(_SC_PAGESIZE)));
    put("proc/self/statm", text);
}

static void test_address_space(void **state)
{
    (void)state;
    put_machine();
    expect(GIB * 2, "the machine has", 16 * GIB, 6 * GIB); /* no statm: no figure */
    put_addresses(GIB);
    expect(GIB * 2, "the limit on address space (RLIMIT_AS, ulimit -v) is", 2 * GIB, GIB);
    expect(GIB * 50, "the machine has", 16 * GIB, 6 * GIB);
}

/* Whatever the files hold, a look ends with a room that the machine has. */
static void test_strange_files(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "\n\n",
                                        ":",
                                        "::",
                                        "0::",
                                        "0:::",
                                        "4:memory",
                                        "4:memory:",
                                        "0::jobs",
                                        "- ",
                                        " - ",
                                        "1 2 3 4 5 - cgroup2",
                                        "1 2 3 4 5 - cgroup2 ",
                                        "1 - cgroup2 x y",
                                        "1 2 3 \\04 \\777 - cgroup2 x y",
                                        "1 2 3 / @ - cgroup x memory",
                                        "max",
                                        "12abc"};
    fy_room_found found;
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        for (size_t j = 0; j < COUNT_OF(texts); j++) {
            put_v2();
            put("proc/self/cgroup", texts[i]);
            put("proc/self/mountinfo", texts[j]);
            must(look(UINT64_MAX, &found, &error), &error);
            assert_string_equal(found.limit, "the machine has");
        }
        put_v2();
        put("cg/jobs/seven/memory.max", texts[i]);
        put("cg/jobs/seven/memory.stat", texts[i]);
        must(look(UINT64_MAX, &found, &error), &error);
        assert_true(found.room_bytes < 16 * GIB);
    }
}

static void test_check(void **state)
{
    (void)state;
    ferry_error error;
    fy_room_found found = {
        .room_bytes = 60 * MIB, .allowed_bytes = 2 * GIB, .used_bytes = 2 * GIB - 100 * MIB};
    strcpy(found.limit, "the cgroup /foo allows");
    must(fy_room_check_found(&found, 60 * MIB, "it", &error), &error);
    check_status("one more", FERRY_ERR_NO_MEMORY,
                 fy_room_check_found(&found, 60 * MIB + 1, "shared memory", &error), &error);
    assert_string_equal(error.message, "shared memory needs 60.0 MiB, but the cgroup /foo allows "
                                       "2.0 GiB and 1.9 GiB are used, which leaves room for "
                                       "60.0 MiB");
}

static void test_this_machine(void **state)
{
    (void)state;
    ferry_error error;
    uint64_t bytes = 0;
    must(fy_room(&bytes, &error), &error);
    assert_true(bytes > 0);
    must(fy_room_check(1, "a byte", &error), &error);
    check_status("all", FERRY_ERR_NO_MEMORY, fy_room_check(UINT64_MAX, "all", &error), &error);
}

/* In a child, because the limit would stay. Sanitizers take terabytes, so it is set just above. */
static void test_this_address_space(void **state)
{
    (void)state;
    if (is_left_out(__func__, "knows no limit of the address space (RLIMIT_AS)")) {
        return;
    }
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    pid_t child = fork();
    if (child == 0) {
        uint64_t bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE) + 256 * MIB;
        struct rlimit limit = {bytes, bytes};
        ferry_error error = {""};
        if (setrlimit(RLIMIT_AS, &limit) != 0 ||
            fy_room_check(GIB, "it", &error) != FERRY_ERR_NO_MEMORY) {
            _exit(2);
        }
        _exit(strstr(error.message, "RLIMIT_AS") != NULL ? 0 : 1);
    }
    int result = -1;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}

static void test_allocations_fail(void **state)
{
    (void)state;
    ferry_error error;
    fy_room_found found = {.room_bytes = 77};
    int failures = 0;
    put_v2();
    put_addresses(7 * GIB / 2);
    for (;; failures++) {
        fy_alloc_fail_after(failures);
        ferry_status status = look(4 * GIB, &found, &error);
        fy_alloc_fail_after(-1);
        if (status == FERRY_OK) {
            break;
        }
        check_status("allocation", FERRY_ERR_NO_MEMORY, status, &error);
        assert_int_equal(found.room_bytes, 77);
    }
    assert_true(failures > 5);
    assert_int_equal(found.room_bytes, less_reserve(GIB / 2)); /* nothing was left out */
}

int main(void)
{
#define ROOM_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        ROOM_TEST(test_machine_alone),
        ROOM_TEST(test_no_descriptor),
        ROOM_TEST(test_no_proc),
        ROOM_TEST(test_v2),
        ROOM_TEST(test_v2_reclaimable),
        ROOM_TEST(test_v2_exhausted),
        ROOM_TEST(test_v2_namespace),
        ROOM_TEST(test_v1),
        ROOM_TEST(test_v1_container),
        ROOM_TEST(test_names_with_blanks),
        ROOM_TEST(test_address_space),
        ROOM_TEST(test_strange_files),
        ROOM_TEST(test_check),
        ROOM_TEST(test_this_machine),
        ROOM_TEST(test_this_address_space),
        ROOM_TEST(test_allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
