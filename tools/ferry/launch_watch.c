/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What happens while ranks run: signals, ends, output, and the steps by which all are ended. */
#include "launch.h"

#include "commands.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MS = 1000000,
    GIVE_UP_SECONDS = 10, /* after SIGKILL: what is left then hangs in the kernel */
    LEFT_MS = 20,         /* how often to look for groups whose end nobody announces */
    TERMINAL_MS = 500     /* how often to look whether the terminal is ours */
};

int64_t launch_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/*
 * Signals that this process inherited as ignored, as nohup does it, stay ignored here and in the
 * ranks.
 */
int launch_open_signals(launch_job *job)
{
    static const int caught[] = {SIGCHLD, SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                                 SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&job->caught);
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) {
        struct sigaction action;
        if (sigaction(caught[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(&job->caught, caught[i]);
        }
    }
    if (sigprocmask(SIG_BLOCK, &job->caught, &job->old_mask) != 0) {
        return fail(job->request->name, "signals could not be blocked");
    }
    job->signal_fd = signalfd(-1, &job->caught, SFD_CLOEXEC | SFD_NONBLOCK);
    return job->signal_fd >= 0 ? EXIT_DONE : fail(job->request->name, "no descriptor for signals");
}

/* ---- the end of all ---- */

static void kill_all(launch_job *job)
{
    launch_signal(job, SIGKILL);
    job->killed = true;
    job->ending = true;
    job->until_ns = launch_now_ns() + (int64_t)GIVE_UP_SECONDS * 1000 * MS;
}

/* A stopped process takes a signal that asks it to end only once it goes on. */
static void begin_end(launch_job *job)
{
    if (job->ending) {
        return;
    }
    if (job->told == 0 && !job->request->ranks_explain) {
        launch_signal(job, SIGTERM);
        launch_signal(job, SIGCONT);
        job->told = SIGTERM;
    }
    job->ending = true;
    job->until_ns = launch_now_ns() + (int64_t)(job->request->grace_seconds * 1e9);
}

void launch_end(launch_job *job, int status)
{
    if (job->status == 0) {
        job->status = status;
    }
    begin_end(job);
}

void launch_fail(launch_job *job, int status, const char *format, ...)
{
    char sentence[512];
    va_list arguments;
    if (job->status == 0) {
        va_start(arguments, format);
        vsnprintf(sentence, sizeof sentence, format, arguments);
        va_end(arguments);
        fail(job->request->name, sentence);
    }
    launch_end(job, status);
}

static void go_on_ending(launch_job *job)
{
    if (!job->ending && job->n_running == 0 && job->n_left > 0) {
        begin_end(job);
    }
    if (!job->ending || launch_now_ns() < job->until_ns) {
        return;
    }
    if (!job->killed) {
        if (job->request->ranks_explain && job->n_running > 0) {
            fail(job->request->name, "ranks that did not end by themselves were killed");
        }
        kill_all(job);
    } else if (job->n_running + job->n_left > 0) {
        launch_fail(job, EXIT_FAILED, "ranks that do not end although they were killed: %u",
                    job->n_running + job->n_left);
        job->n_running = 0;
        job->n_left = 0;
    }
}

/* ---- the end of a rank ---- */

static void fail_rank(launch_job *job, uint32_t local_rank, int how)
{
    uint32_t rank = job->request->first_rank + local_rank;
    int pid = job->ranks[local_rank].pid;
    int code = WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how);
    if (WIFSIGNALED(how)) {
        if (job->request->ranks_explain && job->status == EXIT_FAILED && !job->killed) {
            job->status = 0; /* others saw it before it was seen here: this is why they failed */
        }
        if (job->request->ranks_explain && (code == job->told || code == SIGINT)) {
            launch_fail(job, 128 + code, "interrupted by signal %d (%s)", code, strsignal(code));
            return;
        }
        launch_fail(job, 128 + code, "rank %u (pid %d) was killed by signal %d (%s)%s", rank, pid,
                    code, strsignal(code), WCOREDUMP(how) ? ", core dumped" : "");
        return;
    }
    int error = code == 127 ? launch_exec_error(job, local_rank) : 0;
    if (error != 0) {
        launch_fail(job, error == ENOENT ? 127 : 126, "\"%s\" cannot be run: %s",
                    job->request->program[0], strerror(error));
        return;
    }
    if (code == EXIT_FAILED && job->request->ranks_explain) {
        launch_end(job, code);
        return;
    }
    launch_fail(job, code, "rank %u (pid %d) exited with status %d", rank, pid, code);
}

/* The rank that this was, which may have left others in its group; n_ranks: it was none. */
static uint32_t end_process(launch_job *job, pid_t pid)
{
    for (uint32_t i = 0; i < job->n_started; i++) {
        if (job->ranks[i].running && job->ranks[i].pid == pid) {
            job->ranks[i].running = false;
            job->n_running--;
            job->n_left++;
            return i;
        }
    }
    return job->request->n_ranks;
}

/* A group's number may be given to strangers once it is empty: it is forgotten then. */
static void forget_empty_groups(launch_job *job)
{
    for (uint32_t i = 0; i < job->n_started && job->n_left > 0; i++) {
        if (!job->ranks[i].running && job->groups[i] > 0 && kill(-job->groups[i], 0) != 0 &&
            errno == ESRCH) {
            job->groups[i] = 0;
            job->n_left--;
        }
    }
}

/*
 * Takes all that have ended. The kernel keeps the first of several SIGCHLD, so first is the one
 * that ended first; of the others, one that was killed is a cause more likely than one that failed,
 * perhaps because it missed the other. Strangers are orphans that this process has inherited.
 */
static void reap(launch_job *job, pid_t first)
{
    uint32_t none = job->request->n_ranks, failed = none;
    int how = 0, how_failed = 0;
    pid_t pid = first > 0 ? waitpid(first, &how, WNOHANG) : 0;
    if (pid > 0) {
        uint32_t rank = end_process(job, pid);
        if (rank != none && how != 0) {
            fail_rank(job, rank, how);
        }
    }
    while ((pid = waitpid(-1, &how, WNOHANG)) > 0) {
        uint32_t rank = end_process(job, pid);
        if (pid == job->guard) {
            job->guard = -1;
        }
        if (rank != none && how != 0 &&
            (failed == none || (WIFSIGNALED(how) && !WIFSIGNALED(how_failed)))) {
            failed = rank;
            how_failed = how;
        }
    }
    if (failed != none) {
        fail_rank(job, failed, how_failed);
    }
    forget_empty_groups(job);
}

/* ---- signals ---- */

static void interrupt(launch_job *job)
{
    if (job->n_running + job->n_left == 0) { /* only output is left, and nobody takes it */
        for (int i = 0; i < 2; i++) {
            job->sinks[i].broken = true;
            job->sinks[i].begin = job->sinks[i].n_bytes;
        }
    } else if (++job->interrupts > 1) {
        if (job->status == 0) {
            fail(job->request->name, "interrupted twice, so all ranks were killed");
            job->status = 128 + SIGINT;
        }
        kill_all(job);
        return;
    }
    job->told = SIGINT;
    launch_signal(job, SIGINT);
}

static void take_signal(launch_job *job, const struct signalfd_siginfo *info)
{
    switch (info->ssi_signo) {
    case SIGCHLD:
        reap(job, (pid_t)info->ssi_pid);
        break;
    case SIGINT:
        interrupt(job);
        break;
    case SIGTSTP: /* SIGSTOP for both: a rank that ignores the other would go on alone */
        launch_signal(job, SIGSTOP);
        raise(SIGSTOP);
        break;
    case SIGTERM:
    case SIGHUP:
    case SIGQUIT:
        job->told = (int)info->ssi_signo;
        launch_signal(job, job->told);
        break;
    default:
        launch_signal(job, (int)info->ssi_signo);
    }
}

static void take_signals(launch_job *job)
{
    struct signalfd_siginfo info;
    while (read(job->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        take_signal(job, &info);
    }
}

/* ---- one turn ---- */

static int patience_ms(const launch_job *job)
{
    int64_t ms = -1;
    if (job->ending) {
        ms = (job->until_ns - launch_now_ns() + MS - 1) / MS;
        ms = ms < 0 ? 0 : ms;
    }
    int64_t look = job->n_running == 0 && job->n_left > 0 ? LEFT_MS
                   : job->input.fd >= 0                   ? TERMINAL_MS
                                                          : -1;
    if (look >= 0 && (ms < 0 || look < ms)) {
        ms = look;
    }
    return ms > 60000 ? 60000 : (int)ms;
}

/* The first four entries are fixed, then come the streams; what is not wanted is negative. */
enum { POLL_SIGNALS, POLL_TERMINAL, POLL_INPUT, POLL_SINKS, POLL_STREAMS = POLL_SINKS + 2 };

static uint32_t fill_polls(const launch_job *job, struct pollfd *polls)
{
    const launch_input *input = &job->input;
    uint32_t n_streams = job->streams == NULL ? 0 : 2 * job->n_started;
    polls[POLL_SIGNALS] = (struct pollfd){.fd = job->signal_fd, .events = POLLIN};
    polls[POLL_TERMINAL] =
        (struct pollfd){.fd = launch_input_wants(input) ? STDIN_FILENO : -1, .events = POLLIN};
    /* Without events, to hear that rank 0 reads no more. */
    polls[POLL_INPUT] =
        (struct pollfd){.fd = input->fd, .events = input->n_bytes > 0 ? POLLOUT : 0};
    for (int i = 0; i < 2; i++) {
        polls[POLL_SINKS + i] = (struct pollfd){
            .fd = launch_output_waits(&job->sinks[i]) ? job->sinks[i].fd : -1, .events = POLLOUT};
    }
    for (uint32_t i = 0; i < n_streams; i++) {
        const launch_stream *stream = &job->streams[i];
        polls[POLL_STREAMS + i] = (struct pollfd){
            .fd = launch_output_full(stream->sink) ? -1 : stream->fd, .events = POLLIN};
    }
    return POLL_STREAMS + n_streams;
}

static void take_polls(launch_job *job, const struct pollfd *polls, uint32_t n)
{
    if (polls[POLL_SIGNALS].revents != 0) {
        take_signals(job);
    }
    if (polls[POLL_TERMINAL].revents != 0) {
        launch_input_read(&job->input);
    }
    if (polls[POLL_INPUT].revents & POLLERR) {
        launch_input_close(&job->input);
    } else if (polls[POLL_INPUT].revents != 0 && job->input.n_bytes > 0) {
        launch_input_write(&job->input);
    }
    for (int i = 0; i < 2; i++) {
        if (polls[POLL_SINKS + i].revents != 0 && launch_output_waits(&job->sinks[i])) {
            launch_output_write(&job->sinks[i]);
        }
    }
    for (uint32_t i = POLL_STREAMS; i < n; i++) {
        if (polls[i].revents != 0) {
            launch_output_read(&job->streams[i - POLL_STREAMS]);
        }
    }
}

void launch_watch(launch_job *job, bool wait)
{
    uint32_t n = fill_polls(job, job->polls);
    if (poll(job->polls, n, wait ? patience_ms(job) : 0) > 0) {
        take_polls(job, job->polls, n);
    }
    if (job->n_running == 0 && job->n_left > 0) {
        reap(job, 0); /* orphans whose signal came together with another's */
    }
    go_on_ending(job);
}
