/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "launch.h"

#include <ferry/ferry.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char help[] =
    "Usage: ferry launch -n N [OPTION]... [--] PROGRAM [ARGUMENT]...\n"
    "\n"
    "Starts N ranks of a program on this machine, waits for them, and exits with the status of\n"
    "the first that fails. When one fails, all others are ended. Nothing is left behind: whatever\n"
    "a rank has started in its process group ends with it, also when the launcher is killed.\n";

static const char more_help[] =
    "\n"
    "What a rank finds:\n"
    "  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun\n"
    "  sets them. On one host also GROUP_RANK, 0; FERRY_PORT, where ferry's ranks meet, so that\n"
    "  MASTER_PORT is free for the program; and FERRY_SECRET, made of random bytes unless it was\n"
    "  set. Rank 0 inherits the socket of FERRY_PORT as descriptor 3, which FERRY_LISTEN_FD says.\n"
    "  With FERRY_RENDEZVOUS, there is no such socket.\n"
    "\n"
    "  Rank 0 has the standard input, all others /dev/null. Other open files are not passed on.\n"
    "  What is typed at a terminal reaches rank 0 through a pipe: ranks are not in the group in\n"
    "  the foreground. Each is the leader of a process group of its own.\n"
    "\n"
    "Signals:\n"
    "  SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the process groups\n"
    "  of all ranks. A second SIGINT kills them. SIGTSTP stops ranks and launcher, SIGCONT\n"
    "  continues them.\n"
    "\n"
    "Exit status:\n"
    "  0 when all ranks exit with 0; else the status of the first that failed, or 128 and the\n"
    "  number of the signal that killed it. 127 if there is no such program, 126 if it cannot be\n"
    "  executed, 1 if ranks could not be started, 2 wrong usage. One sentence on stderr says\n"
    "  which rank it was.\n"
    "\n"
    "Examples:\n"
    "  ferry launch -n 4 -- python3 train.py --steps 100\n"
    "  ferry launch -n 8 --nodes 2 --tag ./program\n"
    "  ferry launch -n 8 --world 16 --first-rank 8 --master node1:29500 ./program\n";

/* The three standard descriptors are open from here on, and no other reaches a rank. */
static int close_to_ranks(const launch_job *job)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0) {
        return fail(job->request->name, "/dev/null cannot be opened");
    }
    close(fd);
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        fd = atoi(entry->d_name);
        if (fd > STDERR_FILENO) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
        }
    }
    if (folder == NULL) {
        return fail(job->request->name, "/proc/self/fd cannot be read; is /proc mounted?");
    }
    closedir(folder);
    return EXIT_DONE;
}

/* Above the descriptors that a rank is given. */
static int open_report(launch_job *job)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return fail(job->request->name, "no pipe could be made");
    }
    job->report[0] = ends[0];
    job->report[1] = fcntl(ends[1], F_DUPFD_CLOEXEC, 16);
    close(ends[1]);
    return job->report[1] >= 0 ? EXIT_DONE : fail(job->request->name, "no pipe could be made");
}

static int open_job(launch_job *job)
{
    size_t n = job->request->n_ranks;
    void *shared =
        mmap(NULL, n * sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job->groups = shared == MAP_FAILED ? NULL : shared;
    job->ranks = calloc(n, sizeof *job->ranks);
    job->polls = calloc(2 * n + 8, sizeof *job->polls);
    if (job->groups == NULL || job->ranks == NULL || job->polls == NULL) {
        return fail(job->request->name, "out of memory");
    }
    getrlimit(RLIMIT_NOFILE, &job->old_files);
    /* Orphans of ranks become this process's children, so that their end is seen. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int status = close_to_ranks(job);
    if (status == EXIT_DONE) {
        job->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        status = launch_open_signals(job);
    }
    if (status == EXIT_DONE) {
        status = launch_start_guard(job);
    }
    if (status == EXIT_DONE) {
        status = open_report(job);
    }
    if (status == EXIT_DONE && job->request->tag) {
        status = launch_output_open(job);
    }
    return status == EXIT_DONE ? launch_prepare(job) : status;
}

static void close_job(launch_job *job)
{
    const int fds[] = {job->listener, job->null_fd, job->signal_fd, job->report[0], job->report[1]};
    launch_end_guard(job);
    launch_output_close(job);
    launch_input_close(&job->input);
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    if (job->groups != NULL) {
        munmap((void *)job->groups, job->request->n_ranks * sizeof(pid_t));
    }
    free(job->ranks);
    free(job->polls);
}

static void run_job(launch_job *job)
{
    uint32_t n_ranks = job->request->n_ranks;
    for (uint32_t i = 0; i < n_ranks && job->told == 0 && !job->ending; i++) {
        int status = launch_start_rank(job, i);
        if (status != EXIT_DONE) {
            launch_end(job, status);
        }
        launch_watch(job, false);
    }
    if (job->n_started < n_ranks) {
        launch_fail(job, 128 + job->told, "a signal came when %u of %u ranks were started",
                    job->n_started, n_ranks);
    }
    while (job->n_running + job->n_left > 0) {
        launch_watch(job, true);
    }
    launch_output_finish(job);
    while (launch_output_waits(&job->sinks[0]) || launch_output_waits(&job->sinks[1])) {
        launch_watch(job, true);
    }
}

int launch(const launch_request *request)
{
    launch_job job = {.request = request,
                      .guard = -1,
                      .guard_fd = -1,
                      .listener = -1,
                      .null_fd = -1,
                      .signal_fd = -1,
                      .report = {-1, -1},
                      .sinks = {{.fd = STDOUT_FILENO}, {.fd = STDERR_FILENO}},
                      .input = {.fd = -1}};
    int status = open_job(&job);
    if (status == EXIT_DONE) {
        run_job(&job);
        status = job.status;
    }
    close_job(&job);
    return status;
}

static int run(int argc, char **argv)
{
    launch_request request;
    int status = launch_parse_arguments(argc, argv, &request);
    return status == EXIT_DONE ? launch(&request) : status;
}

const command command_launch = {.name = "launch",
                                .group = "Ranks and machines",
                                .summary = "start the ranks of a program on this machine",
                                .help = help,
                                .options = launch_option_rows,
                                .more_help = more_help,
                                .starts_program = true,
                                .run = run};
