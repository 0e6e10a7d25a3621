/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/file.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

ferry_status fy_fail_errno(const char *path, const char *what, int reason, ferry_error *error)
{
    bool is_full = reason == ENOSPC || reason == EDQUOT;
    return fy_fail(error, FERRY_ERR_IO, "%s: %s: %s%s%s", path, what,
                   is_full ? "the disk is full (" : "", strerror(reason), is_full ? ")" : "");
}

static ferry_status fail_errno(const char *path, const char *what, ferry_error *error)
{
    return fy_fail_errno(path, what, errno, error);
}

ferry_status fy_file_open_at(int folder_fd, const char *name, const char *path, int *descriptor_out,
                             struct stat *about_out, ferry_error *error)
{
    /* Not blocking: a FIFO would wait for a writer before we could refuse it. */
    int descriptor = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return fail_errno(path, "cannot be opened", error);
    }
    if (fstat(descriptor, about_out) != 0) {
        ferry_status status = fail_errno(path, "cannot be examined", error);
        close(descriptor);
        return status;
    }
    if (!S_ISREG(about_out->st_mode)) {
        close(descriptor);
        return fy_fail(error, FERRY_ERR_IO, "%s: is not a regular file", path);
    }
    *descriptor_out = descriptor;
    return FERRY_OK;
}

static ferry_status open_regular(int folder_fd, const char *name, const char *path,
                                 int *descriptor_out, uint64_t *bytes_out, ferry_error *error)
{
    struct stat about;
    FY_TRY(fy_file_open_at(folder_fd, name, path, descriptor_out, &about, error));
    *bytes_out = (uint64_t)about.st_size;
    return FERRY_OK;
}

ferry_status fy_file_read_exactly(int descriptor, const char *path, uint64_t offset,
                                  uint64_t n_bytes, char *bytes, ferry_error *error)
{
    uint64_t done = 0;
    while (done < n_bytes) {
        ssize_t now =
            pread(descriptor, bytes + done, (size_t)(n_bytes - done), (off_t)(offset + done));
        if (now < 0 && errno == EINTR) {
            continue;
        }
        if (now < 0) {
            return fail_errno(path, "cannot be read", error);
        }
        if (now == 0) {
            return fy_fail(error, FERRY_ERR_IO,
                           "%s: ends at byte %llu, but %llu bytes at offset %llu were expected",
                           path, (unsigned long long)(offset + done), (unsigned long long)n_bytes,
                           (unsigned long long)offset);
        }
        done += (uint64_t)now;
    }
    return FERRY_OK;
}

ferry_status fy_file_read(const char *path, uint64_t most_bytes, char **text_out,
                          size_t *length_out, ferry_error *error)
{
    return fy_file_read_in(AT_FDCWD, path, path, most_bytes, text_out, length_out, error);
}

ferry_status fy_file_read_in(int folder_fd, const char *name, const char *path, uint64_t most_bytes,
                             char **text_out, size_t *length_out, ferry_error *error)
{
    int descriptor;
    uint64_t n_bytes;
    FY_TRY(open_regular(folder_fd, name, path, &descriptor, &n_bytes, error));
    ferry_status status = FERRY_OK;
    char *text = NULL;
    if (n_bytes > most_bytes) {
        status = fy_fail(error, FERRY_ERR_LIMIT, "%s: has %llu bytes, more than the limit of %llu",
                         path, (unsigned long long)n_bytes, (unsigned long long)most_bytes);
        goto out;
    }
    text = fy_alloc((size_t)n_bytes + 1, 1);
    if (text == NULL) {
        status = fy_fail_no_memory(error, path);
        goto out;
    }
    status = fy_file_read_exactly(descriptor, path, 0, n_bytes, text, error);
    if (status != FERRY_OK) {
        goto out;
    }
    text[n_bytes] = '\0';
    *text_out = text;
    *length_out = (size_t)n_bytes;
    text = NULL;
out:
    fy_free(text);
    close(descriptor);
    return status;
}

ferry_status fy_file_read_at(const char *path, uint64_t offset, uint64_t n_bytes, char *bytes,
                             ferry_error *error)
{
    int descriptor;
    uint64_t file_bytes;
    ferry_status status = open_regular(AT_FDCWD, path, path, &descriptor, &file_bytes, error);
    if (status == FERRY_OK) {
        status = fy_file_read_exactly(descriptor, path, offset, n_bytes, bytes, error);
        close(descriptor);
    }
    return status;
}

ferry_status fy_file_size(const char *path, uint64_t *bytes_out, ferry_error *error)
{
    int descriptor = -1;
    FY_TRY(open_regular(AT_FDCWD, path, path, &descriptor, bytes_out, error));
    close(descriptor);
    return FERRY_OK;
}

int fy_file_sync(int descriptor)
{
    int rc;
    do {
        rc = fsync(descriptor);
    } while (rc != 0 && errno == EINTR);
    return rc;
}

int fy_file_write(void *stream, const char *bytes, size_t n_bytes)
{
    return fwrite(bytes, 1, n_bytes, stream) == n_bytes ? 0 : -1;
}

static ferry_status fill_and_sync(FILE *stream, const char *path, fy_file_fill_fn fill,
                                  void *context, ferry_error *error)
{
    FY_TRY(fill(context, stream, error));
    if (fflush(stream) != 0 || fy_file_sync(fileno(stream)) != 0) {
        FY_TRY(fail_errno(path, "cannot be written", error));
    }
    return FERRY_OK;
}

/*
 * A new file under a name that nobody has, written to temporary: neither another thread's file nor
 * a link that somebody left in a shared folder is ever written to.
 */
static FILE *create_beside(const char *path, mode_t mode, char *temporary, size_t n_bytes,
                           ferry_error *error)
{
    enum { MOST_TRIES = 16 };
    int descriptor = -1;
    for (int tries = 0; tries < MOST_TRIES && descriptor < 0; tries++) {
        uint64_t number = 0;
        if (getrandom(&number, sizeof number, 0) != sizeof number) {
            break;
        }
        snprintf(temporary, n_bytes, "%s.%016llx.tmp", path, (unsigned long long)number);
        descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (descriptor < 0 && errno != EEXIST) {
            break;
        }
    }
    FILE *stream = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (stream == NULL) {
        fail_errno(path, "cannot be created", error);
        if (descriptor >= 0) {
            close(descriptor);
            unlink(temporary);
        }
    }
    return stream;
}

/* With the permissions of the old file, and its owner where that can be given to another one. */
static ferry_status replace_regular(const char *path, fy_file_fill_fn fill, void *context,
                                    ferry_error *error)
{
    struct stat old;
    bool exists = stat(path, &old) == 0;
    mode_t mode = exists ? old.st_mode & 0777 : 0666;
    size_t bytes = strlen(path) + 32;
    char *temporary = fy_alloc(bytes, 1);
    FY_TRY(fy_check_memory(temporary != NULL, "a file name", error));
    snprintf(temporary, bytes, "%s", path);
    ferry_status status;
    FILE *stream = create_beside(path, mode, temporary, bytes, error);
    if (stream == NULL) {
        status = FERRY_ERR_IO;
        goto out;
    }
    if (exists && fchown(fileno(stream), old.st_uid, old.st_gid) != 0) {
        errno = 0; /* as for most users */
    }
    if (exists && fchmod(fileno(stream), mode) != 0) { /* umask has cut it */
        status = fail_errno(path, "the old file's permissions cannot be kept", error);
    } else {
        status = fill_and_sync(stream, path, fill, context, error);
    }
    if (fclose(stream) != 0 && status == FERRY_OK) {
        status = fail_errno(path, "cannot be written", error);
    }
    if (status == FERRY_OK && rename(temporary, path) != 0) {
        status = fail_errno(path, "cannot be replaced", error);
    }
    if (status != FERRY_OK) {
        unlink(temporary);
    }
out:
    fy_free(temporary);
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

/*
 * What cannot be replaced: a device or a pipe, a descriptor, or a link whose file is still to come.
 * Takes the descriptor, which may be -1 with errno.
 */
static ferry_status write_in_place(int descriptor, const char *path, fy_file_fill_fn fill,
                                   void *context, ferry_error *error)
{
    FILE *stream = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (stream == NULL) {
        ferry_status status = fail_errno(path, "cannot be opened", error);
        if (descriptor >= 0) {
            close(descriptor);
        }
        return status;
    }
    ferry_status status = fill(context, stream, error);
    if (fclose(stream) != 0 && status == FERRY_OK) {
        status = fail_errno(path, "cannot be written", error);
    }
    return status;
}

static bool is_link(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 && S_ISLNK(about.st_mode);
}

ferry_status fy_file_replace(const char *path, fy_file_fill_fn fill, void *context,
                             ferry_error *error)
{
    struct stat about;
    bool exists = stat(path, &about) == 0;
    int named = descriptor_behind(path);
    if (named >= 0) {
        fflush(stdout); /* what was printed comes first */
        return write_in_place(fcntl(named, F_DUPFD_CLOEXEC, 0), path, fill, context, error);
    }
    if (exists ? !S_ISREG(about.st_mode) : is_link(path)) {
        return write_in_place(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666), path, fill, context,
                              error);
    }
    if (!is_link(path)) {
        return replace_regular(path, fill, context, error);
    }
    char *target = realpath(path, NULL);
    ferry_status status = target == NULL ? fail_errno(path, "cannot be followed", error)
                                         : replace_regular(target, fill, context, error);
    free(target); /* which is realpath's, not of fy_alloc */
    return status;
}

uint64_t fy_file_number(const char *path)
{
    unsigned long long number = 0;
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%llu", &number) != 1) {
            number = 0;
        }
        fclose(file);
    }
    return number;
}
