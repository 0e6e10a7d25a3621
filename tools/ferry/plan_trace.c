/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry plan --trace: the timeline of a schedule as a file. */
#include "plan.h"

#include "commands.h"
#include "steps.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
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

/* flags: of open, beside those of writing. */
static ferry_status write_file(const char *path, int flags, fill_file_fn fill, const void *context,
                               ferry_error *error)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (file == NULL) {
        return fail_file(path, "cannot be created", error);
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

/* A device or a pipe is written to; renaming would put a file in its place. */
static bool is_replaceable(const char *path)
{
    struct stat about;
    return stat(path, &about) != 0 || S_ISREG(about.st_mode);
}

ferry_status replace_file(const char *path, fill_file_fn fill, const void *context,
                          ferry_error *error)
{
    if (!is_replaceable(path)) {
        return write_file(path, 0, fill, context, error);
    }
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

static ferry_status fill_trace(const void *context, FILE *file, ferry_error *error)
{
    return ferry_simulation_write_trace(context, write_stream, file, error);
}

int plan_write_trace(const ferry_schedule *schedule, const char *path)
{
    ferry_error error;
    ferry_simulation *simulation = NULL;
    ferry_status status = ferry_simulation_create(schedule, NULL, &simulation, &error);
    FY_THEN(status, replace_file(path, fill_trace, simulation, &error));
    ferry_simulation_destroy(simulation);
    return status == FERRY_OK ? EXIT_DONE : fail("plan", error.message);
}
