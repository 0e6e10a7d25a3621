/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/plugin.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(fy_plugin_fn) == sizeof(void *), "dlsym returns functions as pointers");

typedef struct module {
    struct module *next;
    char *name;
    char *path;
    void *handle;
} module;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static module *loaded;

/* Where plugins may lie, as seen from the folder of the object that holds this code. */
static const char *const beside[] = {
    "",
    "/ferry",
    "/../lib/ferry",
#if defined(__x86_64__)
    "/../lib/x86_64-linux-gnu/ferry",
#elif defined(__aarch64__)
    "/../lib/aarch64-linux-gnu/ferry",
#elif defined(__powerpc64__)
    "/../lib/powerpc64le-linux-gnu/ferry",
#elif defined(__riscv)
    "/../lib/riscv64-linux-gnu/ferry",
#endif
    "/../lib64/ferry",
};

/*
 * The folder of libferry.so, or of the program that holds this code. The loader knows a program by
 * its argv[0] only, which says nothing about a folder.
 */
static bool own_folder(char folder[PATH_MAX])
{
    static const char here = 0;
    Dl_info info;
    void *extra = NULL;
    char path[PATH_MAX];
    if (dladdr1(&here, &info, &extra, RTLD_DL_LINKMAP) == 0 || extra == NULL) {
        return false;
    }
    const char *name = ((const struct link_map *)extra)->l_name;
    if (name == NULL || name[0] == '\0') {
        name = "/proc/self/exe";
    }
    if (realpath(name, path) == NULL) {
        return false;
    }
    *strrchr(path, '/') = '\0';
    memcpy(folder, path, strlen(path) + 1);
    return true;
}

/* What was looked at, for the sentence. */
typedef struct lookup {
    const char *name;
    char path[PATH_MAX];
    char places[FERRY_ERROR_BYTES - 384];
} lookup;

static bool look_in(lookup *at, const char *folder, const char *below)
{
    int length =
        snprintf(at->path, sizeof at->path, "%s%s/libferry_%s.so", folder, below, at->name);
    if (length >= (int)sizeof at->path) {
        return false;
    }
    if (access(at->path, F_OK) == 0) {
        return true;
    }
    size_t used = strlen(at->places);
    snprintf(at->places + used, sizeof at->places - used, "%s%s%s", used > 0 ? ", " : "", folder,
             below);
    return false;
}

static bool find_file(lookup *at)
{
    char folder[PATH_MAX];
    const char *only = fy_config_text("FERRY_PLUGINS");
    if (only != NULL) {
        return look_in(at, only, "");
    }
    if (own_folder(folder)) {
        for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
            if (look_in(at, folder, beside[i])) {
                return true;
            }
        }
    }
#ifdef FERRY_PLUGIN_DIR
    if (look_in(at, FERRY_PLUGIN_DIR, "")) {
        return true;
    }
#endif
    return false;
}

static ferry_status open_file(const lookup *at, module **module_out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    module *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    if (fresh == NULL || (fresh->name = fy_strdup(at->name)) == NULL ||
        (fresh->path = fy_strdup(at->path)) == NULL) {
        status = fy_fail_no_memory(error, "a plugin's entry");
        goto out;
    }
    fresh->handle = dlopen(at->path, RTLD_NOW | RTLD_LOCAL);
    if (fresh->handle == NULL) {
        const char *why = dlerror();
        status = fy_fail(error, FERRY_ERR_UNSUPPORTED,
                         "plugin \"%s\" is there, but %s does not load: %s", at->name, at->path,
                         why != NULL ? why : "no reason was given");
        goto out;
    }
    fy_log(FERRY_LOG_DEBUG, "plugin \"%s\" is %s", fresh->name, fresh->path);
    fresh->next = loaded;
    loaded = fresh;
    *module_out = fresh;
    fresh = NULL;
out:
    if (fresh != NULL) {
        fy_free(fresh->name);
        fy_free(fresh->path);
        fy_free(fresh);
    }
    return status;
}

/* Under the lock. */
static ferry_status get(const char *name, module **module_out, ferry_error *error)
{
    for (module *one = loaded; one != NULL; one = one->next) {
        if (strcmp(one->name, name) == 0) {
            *module_out = one;
            return FERRY_OK;
        }
    }
    lookup at = {.name = name};
    if (!find_file(&at)) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "there is no plugin \"%s\": libferry_%s.so is not in %s; install it, or name "
            "its folder in FERRY_PLUGINS",
            name, name, at.places[0] != '\0' ? at.places : "any folder");
    }
    return open_file(&at, module_out, error);
}

ferry_status fy_plugin_load(const char *name, const char *symbol, fy_plugin_fn *function_out,
                            const char **path_out, ferry_error *error)
{
    module *found = NULL;
    pthread_mutex_lock(&lock);
    ferry_status status = get(name, &found, error);
    pthread_mutex_unlock(&lock);
    if (status != FERRY_OK) {
        return status;
    }
    void *address = dlsym(found->handle, symbol);
    if (address == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s is not a plugin of this ferry: it has no function %s", found->path,
                       symbol);
    }
    memcpy(function_out, &address, sizeof address);
    if (path_out != NULL) {
        *path_out = found->path;
    }
    return FERRY_OK;
}

ferry_status fy_plugin_check_abi(const char *path, uint32_t found, uint32_t wanted,
                                 ferry_error *error)
{
    if (found == wanted) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "%s speaks version %u of the plugin interface and this library version %u: "
                   "install both from one release",
                   path, (unsigned)found, (unsigned)wanted);
}
