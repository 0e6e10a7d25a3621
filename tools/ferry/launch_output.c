/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * --tag: the output of the ranks by whole lines, each with its rank. Nothing here waits: a reader
 * of the launcher's output who is slow holds up the ranks, as without the launcher, and not the
 * launcher.
 */
#include "launch.h"

#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LONGEST_LINE = 1 << 20, /* what is longer is cut into several */
    FULL_SINK = 1 << 18,    /* no more is read until some of it is written */
    LAST_READS = 256        /* of a pipe: more than it holds, but no end if somebody writes on */
};

int launch_output_open(launch_job *job)
{
    struct rlimit files;
    const launch_request *r = job->request;
    rlim_t wanted = 2 * (rlim_t)r->n_ranks + 64;
    job->streams = calloc(r->n_ranks, 2 * sizeof *job->streams);
    if (job->streams == NULL) {
        return fail(r->name, "out of memory");
    }
    for (uint32_t i = 0; i < 2 * r->n_ranks; i++) {
        job->streams[i].fd = -1;
        job->streams[i].rank = r->first_rank + i / 2;
        job->streams[i].sink = &job->sinks[i % 2];
    }
    files = job->old_files;
    if (files.rlim_cur < wanted) {
        files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
        setrlimit(RLIMIT_NOFILE, &files); /* if it is still too low, a pipe will say so */
    }
    return EXIT_DONE;
}

int launch_output_of_rank(launch_job *job, uint32_t local_rank, int fds_out[2])
{
    for (uint32_t i = 0; i < 2; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) {
            launch_fail(job, EXIT_FAILED, "no pipe for the output of rank %u: %s",
                        job->request->first_rank + local_rank, strerror(errno));
            return EXIT_FAILED;
        }
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        job->streams[2 * local_rank + i].fd = ends[0];
        fds_out[i] = ends[1];
    }
    return EXIT_DONE;
}

static bool append(char **bytes, size_t *n_bytes, size_t *capacity, const char *more, size_t n_more)
{
    if (n_more == 0) {
        return true;
    }
    if (*capacity - *n_bytes < n_more) {
        size_t larger = 2 * (*n_bytes + n_more);
        char *moved = realloc(*bytes, larger);
        if (moved == NULL) {
            return false;
        }
        *bytes = moved;
        *capacity = larger;
    }
    memcpy(*bytes + *n_bytes, more, n_more);
    *n_bytes += n_more;
    return true;
}

static void give(launch_sink *sink, const char *bytes, size_t n_bytes)
{
    if (sink->begin > sink->n_bytes / 2) {
        sink->n_bytes -= sink->begin;
        memmove(sink->bytes, sink->bytes + sink->begin, sink->n_bytes);
        sink->begin = 0;
    }
    if (!sink->broken && !append(&sink->bytes, &sink->n_bytes, &sink->capacity, bytes, n_bytes)) {
        sink->broken = true; /* no memory: as if nobody read */
    }
}

/* A line that ends with what `more` begins with. */
static void give_line(launch_stream *stream, const char *more, size_t n_more)
{
    char tag[24];
    int length = snprintf(tag, sizeof tag, "[%u] ", stream->rank);
    give(stream->sink, tag, (size_t)length);
    give(stream->sink, stream->line, stream->n_bytes);
    give(stream->sink, more, n_more);
    give(stream->sink, "\n", 1);
    stream->n_bytes = 0;
}

static void take(launch_stream *stream, const char *bytes, size_t n_bytes)
{
    const char *end;
    while ((end = memchr(bytes, '\n', n_bytes)) != NULL) {
        give_line(stream, bytes, (size_t)(end - bytes));
        n_bytes -= (size_t)(end + 1 - bytes);
        bytes = end + 1;
    }
    if (!append(&stream->line, &stream->n_bytes, &stream->capacity, bytes, n_bytes) ||
        stream->n_bytes > LONGEST_LINE) {
        give_line(stream, "", 0);
    }
}

static void close_stream(launch_stream *stream)
{
    if (stream->fd >= 0) {
        close(stream->fd);
        stream->fd = -1;
    }
    if (stream->n_bytes > 0) {
        give_line(stream, "", 0);
    }
    free(stream->line);
    stream->line = NULL;
    stream->capacity = 0;
}

void launch_output_read(launch_stream *stream)
{
    char bytes[16384];
    /* Whoever writes to a rank's output learns that nobody reads it, as without a launcher. */
    ssize_t n = stream->sink->broken ? 0 : read(stream->fd, bytes, sizeof bytes);
    if (n > 0) {
        take(stream, bytes, (size_t)n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        close_stream(stream);
    }
}

/* Called when the descriptor is ready: so much can then be written without waiting. */
void launch_output_write(launch_sink *sink)
{
    size_t left = sink->n_bytes - sink->begin;
    ssize_t n = write(sink->fd, sink->bytes + sink->begin, left < PIPE_BUF ? left : PIPE_BUF);
    if (n > 0) {
        sink->begin += (size_t)n;
    } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
        sink->broken = true;
        sink->begin = sink->n_bytes;
    }
}

bool launch_output_waits(const launch_sink *sink)
{
    return sink->begin < sink->n_bytes;
}

bool launch_output_full(const launch_sink *sink)
{
    return sink->n_bytes - sink->begin >= FULL_SINK;
}

void launch_output_finish(launch_job *job)
{
    for (uint32_t i = 0; job->streams != NULL && i < 2 * job->request->n_ranks; i++) {
        launch_stream *stream = &job->streams[i];
        struct pollfd ready = {.fd = stream->fd, .events = POLLIN};
        for (int n = 0; n < LAST_READS && stream->fd >= 0 && poll(&ready, 1, 0) > 0; n++) {
            launch_output_read(stream);
        }
        close_stream(stream);
    }
}

void launch_output_close(launch_job *job)
{
    for (uint32_t i = 0; job->streams != NULL && i < 2 * job->request->n_ranks; i++) {
        close_stream(&job->streams[i]);
    }
    free(job->streams);
    job->streams = NULL;
    for (int i = 0; i < 2; i++) {
        free(job->sinks[i].bytes);
        job->sinks[i].bytes = NULL;
    }
}
