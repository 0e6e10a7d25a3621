/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Folders like those of /sys, written here, tell of caches; and what is stored past them. */
#include "host/cache.h"

#include "support/check.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static char folder[] = "/tmp/ferry-test-cache-XXXXXX";

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

static void put_file(unsigned index, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/index%u", folder, index);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/index%u/%s", folder, index, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void put_cache(unsigned index, const char *level, const char *size)
{
    put_file(index, "level", level);
    put_file(index, "size", size);
}

static void expect_last(uint64_t bytes, uint32_t n_sharing)
{
    fy_caches caches;
    fy_caches_look(folder, &caches);
    assert_int_equal(caches.shared_bytes, bytes);
    assert_int_equal(caches.n_sharing, n_sharing);
}

static void test_the_last_level_counts(void **state)
{
    (void)state;
    expect_last(0, 1);
    put_cache(0, "1\n", "48K\n");
    put_cache(1, "1\n", "32K\n");
    expect_last(48 << 10, 1);
    put_cache(2, "2\n", "1024K\n");
    put_file(2, "shared_cpu_list", "0\n");
    expect_last(MIB, 1);
    put_cache(3, "3\n", "32768K\n");
    put_file(3, "shared_cpu_list", "0-7,64,66-67\n");
    expect_last(32 * MIB, 11);
    put_file(4, "level", "4\n"); /* one without a size is none */
    expect_last(32 * MIB, 11);
}

static void test_this_machine(void **state)
{
    (void)state;
    fy_caches here = fy_caches_here(), again = fy_caches_here();
    assert_true(here.shared_bytes >= 64 << 10);
    assert_true(here.n_sharing >= 1 && here.n_cores >= 1);
    assert_true(here.n_cores <= (uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
    assert_memory_equal(&here, &again, sizeof here);
}

static char memory[64];

/* Of an input at the begin of some memory, and an output so far behind it. */
static bool passes(uint32_t n_ranks, uint64_t in_bytes, uint64_t out_bytes, uint64_t behind)
{
    fy_caches caches = {.shared_bytes = 32 * MIB, .n_sharing = 2, .n_cores = 2};
    const char *out = (const char *)((uintptr_t)memory + behind);
    return fy_caches_are_passed(&caches, n_ranks, memory, in_bytes, out, out_bytes);
}

static void test_what_does_not_fit_goes_past(void **state)
{
    (void)state;
    uint64_t apart = 1024 * MIB;
    assert_false(passes(2, 4 * MIB, 8 * MIB, apart));
    assert_false(passes(2, 8 * MIB - 1, 8 * MIB, apart));
    assert_true(passes(2, 8 * MIB, 8 * MIB, apart));
    assert_false(passes(8, 1 * MIB, 1 * MIB, apart));
    assert_true(passes(8, MIB / 2, 4 * MIB, apart));
    assert_true(passes(1, 16 * MIB, 16 * MIB, 16 * MIB)); /* right behind it */
    assert_true(passes(1, 16 * MIB, 16 * MIB, (uint64_t)0 - 16 * MIB));
}

static void test_in_place_a_core_of_its_own_reads_first(void **state)
{
    (void)state;
    assert_false(passes(2, 64 * MIB, 64 * MIB, 0));
    assert_false(passes(2, 128 * MIB, 64 * MIB, 64 * MIB)); /* its chunk of what is scattered */
    assert_true(passes(2, 128 * MIB, 64 * MIB, 64 * MIB + 1));
    assert_true(passes(2, 8 * MIB, 16 * MIB, (uint64_t)0 - 8 * MIB)); /* others' chunks, gathered */
    assert_false(passes(2, 7 * MIB, 16 * MIB - 1, (uint64_t)0 - 7 * MIB));
    assert_true(passes(4, 8 * MIB, 8 * MIB, 0));
    assert_false(passes(4, 8 * MIB - 1, 8 * MIB - 1, 0));
    assert_true(passes(4, 4 * MIB, 8 * MIB, (uint64_t)0 - 4 * MIB));
}

/* 64 cores in groups of 8 that share a cache: ranks beyond the cores that share take it in turns.
 */
static void test_a_machine_of_several_caches(void **state)
{
    (void)state;
    fy_caches caches = {.shared_bytes = 32 * MIB, .n_sharing = 8, .n_cores = 64};
    const char *out = memory + 16;
    for (uint32_t n_ranks = 8; n_ranks <= 64; n_ranks *= 2) {
        assert_false(fy_caches_are_passed(&caches, n_ranks, memory, 16, out, 4 * MIB - 17));
        assert_true(fy_caches_are_passed(&caches, n_ranks, memory, 16, out, 4 * MIB - 16));
    }
    assert_false(fy_caches_are_passed(&caches, 2, memory, 16, out, 16 * MIB - 17));
    assert_true(fy_caches_are_passed(&caches, 2, memory, 16, out, 16 * MIB - 16));
    assert_false(fy_caches_are_passed(&caches, 128, memory, 16, out, 2 * MIB - 17));
    assert_true(fy_caches_are_passed(&caches, 128, memory, 16, out, 2 * MIB - 16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_last_level_counts, set_up, tear_down),
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_what_does_not_fit_goes_past),
        cmocka_unit_test(test_in_place_a_core_of_its_own_reads_first),
        cmocka_unit_test(test_a_machine_of_several_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
