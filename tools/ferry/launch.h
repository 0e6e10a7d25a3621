/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_LAUNCH_H
#define FERRY_TOOL_LAUNCH_H

#include "options.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* What to start. */
typedef struct launch_request {
    const char *name;        /* of the command that asks, for its sentences */
    uint32_t n_ranks;        /* to start on this machine */
    uint32_t n_world;        /* of the whole world */
    uint32_t first_rank;     /* of those started here */
    const char *master_host; /* NULL: the world is on this machine alone */
    const char *master_port;
    double grace_seconds; /* between SIGTERM and SIGKILL */
    bool tag;             /* "[rank] " before every line of output */
    /*
     * The ranks are ferry's own: when one fails, the others notice, one of them says why, and they
     * end. So the first exit with EXIT_FAILED needs no sentence here and no SIGTERM for the others.
     */
    bool ranks_explain;
    char **program; /* arguments that end with NULL; not empty */
} launch_request;

enum { LAUNCH_GRACE_SECONDS = 5 };

extern const option_row launch_option_rows[];

/* EXIT_DONE, or EXIT_USAGE after a sentence on stderr. Sets the variables that options stand for.
 */
int launch_parse_arguments(int argc, char **argv, launch_request *request_out);

/*
 * Starts the ranks and waits for their end; returns the exit status. Changes what is the process's
 * own (signal mask, environment, parentage of orphans), so it is the last thing that a process
 * does.
 */
int launch(const launch_request *request);

/* The rest is shared by the files launch_*.c. */

/* Bytes on their way to this process's own standard output or error. */
typedef struct launch_sink {
    int fd;
    bool broken; /* nobody reads any more */
    char *bytes;
    size_t begin; /* of what is not yet written */
    size_t n_bytes;
    size_t capacity;
} launch_sink;

/* Standard output or error of one rank, with --tag. */
typedef struct launch_stream {
    int fd; /* of the pipe's end that is read; -1: at its end */
    uint32_t rank;
    launch_sink *sink;
    char *line; /* the begin of a line whose end has not come */
    size_t n_bytes;
    size_t capacity;
} launch_stream;

/* What is typed at a terminal, on its way to rank 0. */
typedef struct launch_input {
    int fd; /* of the pipe's end that is written; -1: none */
    char bytes[4096];
    size_t n_bytes;
} launch_input;

typedef struct launch_rank {
    pid_t pid;
    bool running;
} launch_rank;

typedef struct launch_job {
    const launch_request *request;
    launch_rank *ranks;
    uint32_t n_started;
    uint32_t n_running;

    /*
     * Shared with the guard: the process group of each rank, 0 when it is empty. A rank that has
     * ended may have left processes in its group.
     */
    volatile pid_t *groups;
    uint32_t n_left; /* groups that outlived their rank */
    pid_t guard;
    int guard_fd;

    int listener; /* for rank 0; -1: none */
    int null_fd;
    int signal_fd;
    int report[2];   /* where a rank that could not be executed says why */
    sigset_t caught; /* what signal_fd reads */
    sigset_t old_mask;
    struct rlimit old_files;

    launch_sink sinks[2];
    launch_stream *streams; /* two of each rank; NULL without --tag */
    launch_input input;

    struct pollfd *polls; /* as many as fill_polls needs */

    int status;       /* of the first failure; 0: none */
    int told;         /* the signal that has asked the ranks to end; 0: none */
    bool ending;      /* the clock runs */
    bool killed;      /* SIGKILL has been sent */
    int64_t until_ns; /* the next step of the end */
    int interrupts;   /* SIGINTs that came */
} launch_job;

/* launch_variables.c: what all ranks have in common; EXIT_DONE, or a status after a sentence. */
int launch_prepare(launch_job *job);
/* The variables of one rank, by its number on this machine. */
int launch_set_rank(const launch_job *job, uint32_t local_rank);

/* launch_ranks.c: */
int launch_start_guard(launch_job *job);
void launch_end_guard(launch_job *job);
int launch_start_rank(launch_job *job, uint32_t local_rank);
void launch_signal(launch_job *job, int signal);
/* Why the program of this rank could not be executed: an errno, or 0 if it was. */
int launch_exec_error(launch_job *job, uint32_t local_rank);

/* launch_watch.c: */
int64_t launch_now_ns(void);
int launch_open_signals(launch_job *job);
/* Handles what has happened, waiting for it if `wait` says so. */
void launch_watch(launch_job *job, bool wait);
/* The first status counts, and its sentence; then all ranks are asked to end. */
void launch_end(launch_job *job, int status);
void launch_fail(launch_job *job, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* launch_output.c: */
int launch_output_open(launch_job *job);
int launch_output_of_rank(launch_job *job, uint32_t local_rank, int fds_out[2]);
void launch_output_read(launch_stream *stream);
void launch_output_write(launch_sink *sink);
bool launch_output_full(const launch_sink *sink);
bool launch_output_waits(const launch_sink *sink); /* there is something to write */
/* Takes what is still in the pipes; whoever holds their other ends now is no rank. */
void launch_output_finish(launch_job *job);
void launch_output_close(launch_job *job);

/* launch_input.c: */
int launch_input_open(launch_job *job, int *fd_out);
bool launch_input_wants(const launch_input *input); /* to read: it is this process's turn */
void launch_input_read(launch_input *input);
void launch_input_write(launch_input *input);
void launch_input_close(launch_input *input);

#endif
