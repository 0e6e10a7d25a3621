/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/plugin.h"

#include "support/check.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];
static char path[160];

static const char *path_of(const char *name)
{
    snprintf(path, sizeof path, "%s/libferry_%s.so", folder, name);
    return path;
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ferry-plugins-XXXXXX");
    return mkdtemp(folder) == NULL || setenv("FERRY_PLUGINS", folder, 1) != 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path_of("real"));
    unlink(path_of("text"));
    return rmdir(folder);
}

static void test_missing(void **state)
{
    (void)state;
    fy_plugin_fn function = NULL;
    ferry_error error;
    char sentence[300];
    snprintf(sentence, sizeof sentence,
             "there is no plugin \"gone\": libferry_gone.so is not in %s; install it, or name its "
             "folder in FERRY_PLUGINS",
             folder);
    assert_int_equal(fy_plugin_load("gone", "f", &function, NULL, &error), FERRY_ERR_UNSUPPORTED);
    assert_string_equal(error.message, sentence);
    assert_true(function == NULL);

    /* Without the variable it is looked for around this program, and the folders are named. */
    char self[PATH_MAX] = "";
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    *strrchr(self, '/') = '\0';
    unsetenv("FERRY_PLUGINS");
    assert_int_equal(fy_plugin_load("gone", "f", &function, NULL, &error), FERRY_ERR_UNSUPPORTED);
    setenv("FERRY_PLUGINS", folder, 1);
    check_says("around", self, &error);
    check_says("around", "/ferry, ", &error);
    check_says("around", "; install it, or name its folder in FERRY_PLUGINS", &error);
}

static void test_no_library(void **state)
{
    (void)state;
    fy_plugin_fn function = NULL;
    ferry_error error;
    FILE *stream = fopen(path_of("text"), "w");
    fputs("no library\n", stream);
    fclose(stream);
    assert_int_equal(fy_plugin_load("text", "f", &function, NULL, &error), FERRY_ERR_UNSUPPORTED);
    check_says("text", "plugin \"text\" is there, but ", &error);
    check_says("text", "/libferry_text.so does not load: ", &error);
    /* It is no plugin for ever: once it is put right it loads. */
    unlink(path_of("text"));
    assert_int_equal(fy_plugin_load("text", "f", &function, NULL, &error), FERRY_ERR_UNSUPPORTED);
    check_says("text", "there is no plugin \"text\"", &error);
}

/* Any library will do that this program has anyway. */
static const char *some_library(void)
{
    static Dl_info info;
    fy_plugin_fn function = (fy_plugin_fn)_cmocka_run_group_tests;
    void *address;
    memcpy(&address, &function, sizeof address);
    assert_int_not_equal(dladdr(address, &info), 0);
    return info.dli_fname;
}

static void *load(void *place)
{
    static const char symbol[] = "_cmocka_run_group_tests";
    const char *where = NULL;
    fy_plugin_fn function = NULL;
    if (fy_plugin_load("real", symbol, &function, &where, NULL) == FERRY_OK && function != NULL) {
        *(const char **)place = where;
    }
    return NULL;
}

static void test_load(void **state)
{
    (void)state;
    enum { N_THREADS = 8 };
    pthread_t threads[N_THREADS];
    const char *places[N_THREADS] = {NULL};
    assert_int_equal(symlink(some_library(), path_of("real")), 0);
    for (size_t i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, load, &places[i]), 0);
    }
    for (size_t i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (size_t i = 0; i < N_THREADS; i++) {
        assert_ptr_equal(places[i], places[0]); /* one entry for all */
    }
    assert_string_equal(places[0], path_of("real"));

    fy_plugin_fn function = NULL;
    ferry_error error;
    char sentence[300];
    snprintf(sentence, sizeof sentence,
             "%s is not a plugin of this ferry: it has no function ferry_nothing", path);
    assert_int_equal(fy_plugin_load("real", "ferry_nothing", &function, NULL, &error),
                     FERRY_ERR_UNSUPPORTED);
    assert_string_equal(error.message, sentence);

    /* It stays, wherever the variable points by then. */
    const char *where = NULL;
    setenv("FERRY_PLUGINS", "/nowhere", 1);
    load(&where);
    setenv("FERRY_PLUGINS", folder, 1);
    assert_ptr_equal(where, places[0]);
}

static void test_abi(void **state)
{
    (void)state;
    ferry_error error;
    assert_int_equal(fy_plugin_check_abi("/p", 3, 3, &error), FERRY_OK);
    assert_int_equal(fy_plugin_check_abi("/p", 2, 3, &error), FERRY_ERR_UNSUPPORTED);
    assert_string_equal(error.message,
                        "/p speaks version 2 of the plugin interface and this library version 3: "
                        "install both from one release");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_no_library),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_abi),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
