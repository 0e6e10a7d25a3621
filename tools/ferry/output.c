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
    bool is_full = errno == ENOSPC || errno == EDQUOT;
    snprintf(error->message, sizeof error->message, "%.800s: %s: %s%s%s", path, what,
             is_full ? "the disk is full (" : "", strerror(errno), is_full ? ")" : "");
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

/* With the permissions of the old file, and its owner where that can be given to another one. */
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
    int descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    ferry_status status = write_to(descriptor, path, fill, context, error);
    if (status == FERRY_OK && exists && chown(temporary, old.st_uid, old.st_gid) != 0) {
        errno = 0; /* as for most users */
    }
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
        int descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        return write_to(descriptor, path, fill, context, error);
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

/* Why no regular file can be put there beside its old self, as errno says it; 0: it can. */
static int why_no_room_beside(const char *path)
{
    char *folder = *path == '\0' ? NULL : folder_of(path);
    int why = folder == NULL ? ENOENT : access(folder, W_OK | X_OK) == 0 ? 0 : errno;
    free(folder);
    return why;
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
    if (at != NULL && is_link(at)) { /* they lead in a circle */
        free(at);
        at = NULL;
    }
    return at;
}

static int why_closed_for_writing(int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    return flags < 0 ? errno : (flags & O_ACCMODE) == O_RDONLY ? EBADF : 0;
}

/* Why nothing can be written to the path, as errno says it; 0: it can. */
static int why_not_writable(const char *path)
{
    struct stat about;
    int named = descriptor_behind(path);
    if (named >= 0) {
        return why_closed_for_writing(named);
    }
    bool is_there = stat(path, &about) == 0;
    if (is_there && !S_ISREG(about.st_mode)) {
        return S_ISDIR(about.st_mode)    ? EISDIR
               : S_ISSOCK(about.st_mode) ? ENXIO
               : access(path, W_OK) == 0 ? 0
                                         : errno;
    }
    /* Also of a link whose file is still to come. */
    char *end = is_there ? realpath(path, NULL) : end_of_links(path);
    int why = end == NULL ? ELOOP : why_no_room_beside(end);
    free(end);
    return why;
}

/* What this command reads, and what it has been told to write until now. */
static struct {
    const char *option; /* NULL: it is read */
    const char *path;
} taken[16];
static size_t n_taken;

/* Of a file that is still to come. */
static bool is_one_place(const char *a, const char *b)
{
    char *ends[] = {end_of_links(a), end_of_links(b)}, *folders[2] = {NULL, NULL};
    const char *names[2] = {NULL, NULL};
    for (int i = 0; i < 2 && ends[i] != NULL; i++) {
        const char *slash = strrchr(ends[i], '/');
        char *folder = folder_of(ends[i]);
        names[i] = slash == NULL ? ends[i] : slash + 1;
        folders[i] = folder == NULL ? NULL : realpath(folder, NULL);
        free(folder);
    }
    bool is = folders[0] != NULL && folders[1] != NULL && strcmp(folders[0], folders[1]) == 0 &&
              strcmp(names[0], names[1]) == 0;
    for (int i = 0; i < 2; i++) {
        free(ends[i]);
        free(folders[i]);
    }
    return is;
}

/* Devices and pipes take what comes, one thing behind another. */
static bool is_one_file(const char *a, const char *b)
{
    struct stat one, other;
    bool is_there = stat(a, &one) == 0;
    if (stat(b, &other) != 0) {
        return !is_there && is_one_place(a, b);
    }
    if (!is_there) {
        return false;
    }
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino && S_ISREG(one.st_mode) &&
           descriptor_behind(a) < 0 && descriptor_behind(b) < 0;
}

/* Of a folder that is read, such as a checkpoint's, any file that is there. */
static bool is_read_with(const char *input, const char *path)
{
    struct stat about;
    char *folder = folder_of(path), *whole = folder == NULL ? NULL : realpath(folder, NULL);
    char *read = realpath(input, NULL);
    bool is = whole != NULL && read != NULL && strcmp(whole, read) == 0 && stat(path, &about) == 0;
    free(folder);
    free(whole);
    free(read);
    return is;
}

static void take(const char *option, const char *path)
{
    if (n_taken < sizeof taken / sizeof taken[0]) {
        taken[n_taken].option = option;
        taken[n_taken++].path = path;
    }
}

void note_input(const char *path)
{
    if (path != NULL) {
        take(NULL, path);
    }
}

int check_output(const char *name, const char *option, const char *path)
{
    if (path == NULL) {
        return EXIT_DONE;
    }
    int why = why_not_writable(path);
    if (why != 0) {
        char sentence[PATH_MAX + 128];
        snprintf(sentence, sizeof sentence, "%s: no file can be made at \"%s\": %s", option, path,
                 strerror(why));
        return fail(name, sentence);
    }
    for (size_t i = 0; i < n_taken; i++) {
        if (is_one_file(taken[i].path, path) ||
            (taken[i].option == NULL && is_read_with(taken[i].path, path))) {
            return taken[i].option == NULL
                       ? fail_usage(name, "%s: \"%s\" is the file that is read", option, path)
                       : fail_usage(name, "%s: \"%s\" is what %s names, too", option, path,
                                    taken[i].option);
        }
    }
    take(option, path);
    return EXIT_DONE;
}

bool may_write_outputs(bool joins)
{
    const char *rank = getenv("RANK");
    return !joins || (rank != NULL && strcmp(rank, "0") == 0);
}
