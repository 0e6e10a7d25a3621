/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
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

static ferry_status fill_and_close(FILE *file, const char *path, fill_file_fn fill,
                                   const void *context, ferry_error *error)
{
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

/*
 * Takes the descriptor, which may be -1 with errno. A reader of a pipe that has left is an error
 * like any other, and not a signal that ends the command without a word.
 */
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
    struct sigaction ignored = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignored, &before);
    ferry_status status = fill_and_close(file, path, fill, context, error);
    sigaction(SIGPIPE, &before, NULL);
    return status;
}

/* flags: of open, beside those of writing. */
static ferry_status write_file(const char *path, int flags, mode_t mode, fill_file_fn fill,
                               const void *context, ferry_error *error)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, mode);
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

/* Whoever may read and write the old file, and nobody else, may do so with the new one. */
static ferry_status replace_regular(const char *path, fill_file_fn fill, const void *context,
                                    ferry_error *error)
{
    struct stat old;
    bool exists = stat(path, &old) == 0;
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
    mode_t mode = exists ? old.st_mode & 0777 : 0666;
    ferry_status status = write_file(temporary, O_EXCL, mode, fill, context, error);
    if (status == FERRY_OK && exists && chmod(temporary, mode) != 0) { /* umask has cut it */
        status = fail_file(path, "its permissions cannot be kept", error);
    }
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
        return write_file(path, 0, 0666, fill, context, error);
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

/* Where a link leads to, at most as far as the system itself goes; for free. */
static char *end_of_links(const char *path)
{
    enum { MOST_LINKS = 40 };
    char *at = strdup(path);
    for (int i = 0; at != NULL && i < MOST_LINKS && is_link(at); i++) {
        char target[PATH_MAX];
        ssize_t length = readlink(at, target, sizeof target - 1);
        char *folder = folder_of(at), *next = NULL;
        if (length > 0 && folder != NULL) {
            target[length] = '\0';
            bool is_whole = target[0] == '/';
            next = malloc(strlen(folder) + (size_t)length + 2);
            if (next != NULL) {
                sprintf(next, "%s%s%s", is_whole ? "" : folder, is_whole ? "" : "/", target);
            }
        }
        free(folder);
        free(at);
        at = next;
    }
    return at;
}

static bool is_open_for_writing(int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

static bool is_writable_place(const char *path)
{
    struct stat about;
    int named = descriptor_behind(path);
    if (named >= 0) {
        return is_open_for_writing(named);
    }
    if (stat(path, &about) != 0) { /* also a link whose file is still to come */
        char *end = end_of_links(path);
        bool is = has_room_beside(end);
        free(end);
        return is;
    }
    if (!S_ISREG(about.st_mode)) {
        return !S_ISDIR(about.st_mode) && !S_ISSOCK(about.st_mode) && access(path, W_OK) == 0;
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
