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

static void test_the_last_level_counts(void **state)
{
    (void)state;
    assert_int_equal(fy_shared_cache_look(folder), 0);
    put_cache(0, "1\n", "48K\n");
    put_cache(1, "1\n", "32K\n");
    assert_int_equal(fy_shared_cache_look(folder), 48 << 10);
    put_cache(2, "2\n", "1024K\n");
    assert_int_equal(fy_shared_cache_look(folder), MIB);
    put_cache(3, "3\n", "32768K\n");
    assert_int_equal(fy_shared_cache_look(folder), 32 * MIB);
    put_file(4, "level", "4\n"); /* one without a size is none */
    assert_int_equal(fy_shared_cache_look(folder), 32 * MIB);
}

static void test_this_machine(void **state)
{
    (void)state;
    fy_caches here = fy_caches_here(), again = fy_caches_here();
    assert_true(here.shared_bytes >= 64 << 10);
    assert_int_equal(here.n_cores, (uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
    assert_memory_equal(&here, &again, sizeof here);
}

static char memory[64];

/* Of an input at the begin of some memory, and an output so far behind it. */
static bool passes(uint32_t n_ranks, uint64_t in_bytes, uint64_t out_bytes, uint64_t behind)
{
    fy_caches caches = {.shared_bytes = 32 * MIB, .n_cores = 2};
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
    assert_false(passes(2, 64 * MIB, 128 * MIB, (uint64_t)0 - 64 * MIB)); /* its chunk */
    assert_false(passes(2, 128 * MIB, 64 * MIB, 64 * MIB));
    assert_true(passes(4, 8 * MIB, 8 * MIB, 0));
    assert_false(passes(4, 8 * MIB - 1, 8 * MIB - 1, 0));
    assert_true(passes(4, 4 * MIB, 8 * MIB, (uint64_t)0 - 4 * MIB));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_last_level_counts, set_up, tear_down),
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_what_does_not_fit_goes_past),
        cmocka_unit_test(test_in_place_a_core_of_its_own_reads_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
