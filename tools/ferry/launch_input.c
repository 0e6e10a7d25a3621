/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Standard input of rank 0. A file or a pipe is simply inherited. A terminal cannot be: a rank is
 * no member of the group in the foreground, and whoever else reads the terminal is stopped. So the
 * launcher reads it and passes on what is typed.
 */
#include "launch.h"

#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int launch_input_open(launch_job *job, int *fd_out)
{
    int ends[2];
    if (!isatty(STDIN_FILENO)) {
        *fd_out = STDIN_FILENO;
        return EXIT_DONE;
    }
    if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) {
        return fail(job->request->name, "no pipe could be made for the terminal's input");
    }
    job->input.fd = ends[1];
    *fd_out = ends[0];
    return EXIT_DONE;
}

bool launch_input_wants(const launch_input *input)
{
    return input->fd >= 0 && input->n_bytes == 0 && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

void launch_input_read(launch_input *input)
{
    ssize_t n = read(STDIN_FILENO, input->bytes, sizeof input->bytes);
    if (n > 0) {
        input->n_bytes = (size_t)n;
        launch_input_write(input);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        launch_input_close(input);
    }
}

void launch_input_write(launch_input *input)
{
    ssize_t n = write(input->fd, input->bytes, input->n_bytes);
    if (n > 0) {
        input->n_bytes -= (size_t)n;
        memmove(input->bytes, input->bytes + n, input->n_bytes);
    } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
        launch_input_close(input); /* rank 0 reads no more */
    }
}

void launch_input_close(launch_input *input)
{
    if (input->fd >= 0) {
        close(input->fd);
        input->fd = -1;
    }
    input->n_bytes = 0;
}
