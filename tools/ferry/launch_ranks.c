/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The processes of a launch: the ranks, each in a group of its own, and the guard. */
#include "launch.h"

#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The descriptor under which rank 0 finds the listener; launch_set_rank says so. */
enum { LISTENER_IN_RANK = 3 };

typedef struct exec_report {
    uint32_t local_rank;
    int error;
} exec_report;

/*
 * The guard outlives a launcher that is killed: it waits for the end of the pipe whose other end
 * only the launcher holds, and then kills every group. PR_SET_PDEATHSIG would end the ranks, but
 * not what they have started. It is in its own group, so that a signal to that of the launcher does
 * not reach it, and holds none of the launcher's files.
 */
static _Noreturn void run_guard(const launch_job *job, int pipe_fd)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};
    char byte;
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        signal(ignored[i], SIG_IGN);
    }
    setpgid(0, 0);
    prctl(PR_SET_NAME, "ferry-guard");
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        dup2(job->null_fd, fd);
    }
    while (read(pipe_fd, &byte, 1) < 0 && errno == EINTR) {}
    for (uint32_t i = 0; i < job->request->n_ranks; i++) {
        if (job->groups[i] > 0) {
            kill(-job->groups[i], SIGKILL);
        }
    }
    _exit(0);
}

int launch_start_guard(launch_job *job)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return fail(job->request->name, "no pipe could be made");
    }
    job->guard = fork();
    if (job->guard == 0) {
        close(ends[1]);
        run_guard(job, ends[0]);
    }
    close(ends[0]);
    job->guard_fd = ends[1];
    if (job->guard < 0) {
        return fail(job->request->name, "no process could be started");
    }
    setpgid(job->guard, job->guard);
    return EXIT_DONE;
}

void launch_end_guard(launch_job *job)
{
    if (job->guard_fd >= 0) {
        close(job->guard_fd);
        job->guard_fd = -1;
    }
    if (job->guard > 0) {
        while (waitpid(job->guard, NULL, 0) < 0 && errno == EINTR) {}
        job->guard = -1;
    }
}

/* Only what may be called between fork and exec. */
static _Noreturn void become_rank(const launch_job *job, uint32_t local_rank, pid_t launcher,
                                  const int fds[3])
{
    setpgid(0, 0);
    job->groups[local_rank] = getpid();
    /* A launcher that died before the call sends no signal: then the parent is another. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != launcher) {
        _exit(1);
    }
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fds[fd] != fd) {
            dup2(fds[fd], fd);
        }
    }
    if (local_rank == 0 && job->listener >= 0) {
        dup2(job->listener, LISTENER_IN_RANK);
    }
    setrlimit(RLIMIT_NOFILE, &job->old_files);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
    execvp(job->request->program[0], job->request->program);
    exec_report report = {.local_rank = local_rank, .error = errno};
    ssize_t written = write(job->report[1], &report, sizeof report);
    (void)written; /* nobody is left to be told */
    _exit(127);
}

static int start_process(launch_job *job, uint32_t local_rank, const int fds[3])
{
    pid_t launcher = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        become_rank(job, local_rank, launcher, fds);
    }
    if (pid < 0) {
        launch_fail(job, EXIT_FAILED, "rank %u of %u could not be started: %s%s",
                    job->request->first_rank + local_rank, job->request->n_world, strerror(errno),
                    errno == EAGAIN ? "; is the limit of processes reached (ulimit -u, or the pids "
                                      "limit of the container)?"
                                    : "");
        return EXIT_FAILED;
    }
    setpgid(pid, pid); /* the child may not have come so far when it is to be signalled */
    job->groups[local_rank] = pid;
    job->ranks[local_rank] = (launch_rank){.pid = pid, .running = true};
    job->n_started++;
    job->n_running++;
    return EXIT_DONE;
}

int launch_start_rank(launch_job *job, uint32_t local_rank)
{
    int fds[3] = {job->null_fd, STDOUT_FILENO, STDERR_FILENO};
    int status = EXIT_DONE;
    bool is_first = job->request->first_rank + local_rank == 0;
    if (is_first) {
        status = launch_input_open(job, &fds[0]);
    }
    if (status == EXIT_DONE && job->streams != NULL) {
        status = launch_output_of_rank(job, local_rank, &fds[1]);
    }
    if (status == EXIT_DONE) {
        status = launch_set_rank(job, local_rank);
    }
    if (status == EXIT_DONE) {
        status = start_process(job, local_rank, fds);
    }
    for (int i = 0; i < 3; i++) {
        if (fds[i] > STDERR_FILENO && fds[i] != job->null_fd) {
            close(fds[i]);
        }
    }
    if (local_rank == 0 && job->listener >= 0) {
        /* When rank 0 has died, nobody shall wait for an answer of this port. */
        close(job->listener);
        job->listener = -1;
    }
    return status;
}

void launch_signal(launch_job *job, int signal_number)
{
    for (uint32_t i = 0; i < job->n_started; i++) {
        if (job->groups[i] > 0) {
            kill(-job->groups[i], signal_number);
        }
    }
}

int launch_exec_error(launch_job *job, uint32_t local_rank)
{
    exec_report report;
    while (read(job->report[0], &report, sizeof report) == (ssize_t)sizeof report) {
        if (report.local_rank == local_rank) {
            return report.error;
        }
    }
    return 0;
}
