/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static ferry_status fail_file(const char *path, const char *what, ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "%.800s: %s: %s", path, what, strerror(errno));
    return FERRY_ERR_IO;
}

/* Takes the descriptor, which may be -1 with errno. */
static ferry_status write_to(int descriptor, const char *path, fill_file_fn fill,
                             const void *context, ferry_error *error)
{
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (file == NULL) {
        ferry_status status = fail_file(path, "cannot be created", error);
        if (descriptor >= 0) {
            close(descriptor);
        }
        return status;
    }
    ferry_status status = fill(context, file, error);
    bool full = status == FERRY_OK && fflush(file) != 0;
    if (status == FERRY_ERR_IO || full) {
        status = fail_file(path, "cannot be written", error);
    }
    if (fclose(file) != 0 && status == FERRY_OK) {
        status = fail_file(path, "cannot be written", error);
    }
    return status;
}

/* flags: of open, beside those of writing. */
static ferry_status write_file(const char *path, int flags, fill_file_fn fill, const void *context,
                               ferry_error *error)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    return write_to(descriptor, path, fill, context, error);
}

/* The descriptor that a path names, as /dev/stdout does; -1: none. */
static int descriptor_named(const char *path)
{
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        size_t length = strlen(folders[i]);
        if (strncmp(path, folders[i], length) == 0) {
            char *end;
            long number = strtol(path + length, &end, 10);
            bool is_number = end != path + length && *end == '\0' && number >= 0;
            return is_number && number <= INT_MAX ? (int)number : -1;
        }
    }
    return strcmp(path, "/dev/stdout") == 0   ? STDOUT_FILENO
           : strcmp(path, "/dev/stderr") == 0 ? STDERR_FILENO
                                              : -1;
}

/* The same of a link to such a path. */
static int descriptor_behind(const char *path)
{
    char target[64];
    int named = descriptor_named(path);
    ssize_t length = named >= 0 ? -1 : readlink(path, target, sizeof target - 1);
    if (length > 0) {
        target[length] = '\0';
        named = descriptor_named(target);
    }
    return named;
}

static ferry_status replace_regular(const char *path, fill_file_fn fill, const void *context,
                                    ferry_error *error)
{
    uint64_t number = 0; /* a name that nobody can have made a link of in a shared folder */
    if (getrandom(&number, sizeof number, 0) != sizeof number) {
        return fail_file(path, "cannot be named", error);
    }
    size_t bytes = strlen(path) + 32;
    char *temporary = malloc(bytes);
    if (temporary == NULL) {
        snprintf(error->message, sizeof error->message, "out of memory");
        return FERRY_ERR_NO_MEMORY;
    }
    snprintf(temporary, bytes, "%s.%016" PRIx64 ".tmp", path, number);
    ferry_status status = write_file(temporary, O_EXCL, fill, context, error);
    if (status == FERRY_OK && rename(temporary, path) != 0) {
        status = fail_file(path, "cannot be replaced", error);
    }
    if (status != FERRY_OK) {
        unlink(temporary);
    }
    free(temporary);
    return status;
}

static bool is_link(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 && S_ISLNK(about.st_mode);
}

ferry_status replace_file(const char *path, fill_file_fn fill, const void *context,
                          ferry_error *error)
{
    struct stat about;
    bool exists = stat(path, &about) == 0;
    int named = descriptor_behind(path);
    if (named >= 0) { /* behind what was written there, whatever it is */
        fflush(stdout);
        return write_to(fcntl(named, F_DUPFD_CLOEXEC, 0), path, fill, context, error);
    }
    if (exists ? !S_ISREG(about.st_mode) : is_link(path)) {
        /* Renaming would put a file in the place of a device, or of a link whose file is to come.
         */
        return write_file(path, 0, fill, context, error);
    }
    if (!is_link(path)) {
        return replace_regular(path, fill, context, error);
    }
    char *target = realpath(path, NULL);
    ferry_status status = target == NULL ? fail_file(path, "cannot be followed", error)
                                         : replace_regular(target, fill, context, error);
    free(target);
    return status;
}

/* ---- before the work ---- */

/* The folder that a path lies in, for free. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    return slash == NULL ? strdup(".") : length == 0 ? strdup("/") : strndup(path, length);
}

/* Whether a regular file can be put there beside its old self. */
static bool has_room_beside(const char *path)
{
    char *folder = path == NULL || *path == '\0' ? NULL : folder_of(path);
    bool has = folder != NULL && access(folder, W_OK | X_OK) == 0;
    free(folder);
    return has;
}

static bool is_writable_place(const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0) {
        return has_room_beside(path);
    }
    if (!S_ISREG(about.st_mode)) {
        return !S_ISDIR(about.st_mode) && access(path, W_OK) == 0;
    }
    char *target = realpath(path, NULL);
    bool is = has_room_beside(target);
    free(target);
    return is;
}

int check_output(const char *name, const char *option, const char *path)
{
    return path == NULL || is_writable_place(path)
               ? EXIT_DONE
               : fail_usage(name, "%s: no file can be made at \"%s\"", option, path);
}

bool may_write_outputs(bool joins)
{
    const char *rank = getenv("RANK");
    return !joins || (rank != NULL && strcmp(rank, "0") == 0);
}
