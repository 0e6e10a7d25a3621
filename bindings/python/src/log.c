/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's log as bytes of a pipe. Lines come from any thread, also from one that holds a lock
 * which the interpreter's thread waits for: to take the interpreter's lock for a line could end in a
 * deadlock. So a line is written to a pipe, or counted where that is full, and a thread of Python
 * reads it.
 */
#include "binding.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* In front of each line; _log.py reads it. */
typedef struct line_head {
    uint64_t n_lost; /* lines before this one that found the pipe full */
    uint32_t level;
    uint32_t bytes;
} line_head;

/* One write of so much is whole or not at all: POSIX promises that for 512 bytes, Linux for 4096. */
enum { MOST_BYTES = 4096 };

/* Calls of the sink do not overlap. */
static struct {
    int fd;
    pid_t pid; /* a child of fork shares the pipe and has no thread that reads it */
    uint64_t n_lost;
} open_pipe = {.fd = -1};

static void write_line(void *unused, ferry_log_level level, const char *line)
{
    (void)unused;
    char record[MOST_BYTES];
    size_t bytes = strlen(line);
    if (open_pipe.pid != getpid()) {
        fprintf(stderr, "ferry: %s\n", line);
        return;
    }
    if (bytes > sizeof record - sizeof(line_head)) {
        bytes = sizeof record - sizeof(line_head);
    }
    line_head head = {.n_lost = open_pipe.n_lost, .level = level, .bytes = (uint32_t)bytes};
    memcpy(record, &head, sizeof head);
    memcpy(record + sizeof head, line, bytes);
    int problem = errno; /* which who logs may still want */
    bool written = write(open_pipe.fd, record, sizeof head + bytes) > 0;
    errno = problem;
    open_pipe.n_lost = written ? 0 : open_pipe.n_lost + 1;
}

/* log_open(fd, level) */
static PyObject *log_open(PyObject *module, PyObject *args)
{
    (void)module;
    int fd;
    const char *text;
    ferry_log_level level;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "is:log_open", &fd, &text)) {
        return NULL;
    }
    ferry_status status = ferry_log_level_parse(text, &level, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    ferry_log_configure(FERRY_LOG_OFF, NULL, NULL); /* no sink is running from here on */
    open_pipe.fd = fd;
    open_pipe.pid = getpid();
    open_pipe.n_lost = 0;
    ferry_log_configure(level, write_line, NULL);
    Py_RETURN_NONE;
}

/* log_close(level) -> how many lines were lost since the last one that was written */
static PyObject *log_close(PyObject *module, PyObject *args)
{
    (void)module;
    const char *text;
    ferry_log_level level;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "s:log_close", &text)) {
        return NULL;
    }
    ferry_status status = ferry_log_level_parse(text, &level, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    ferry_log_configure(level, NULL, NULL);
    open_pipe.fd = -1;
    return PyLong_FromUnsignedLongLong(open_pipe.n_lost);
}

bool fp_add_log(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"log_open", log_open, METH_VARARGS,
         FP_DOC("log_open($module, fd, level, /)", "Lines of the log go to a pipe.")},
        {"log_close", log_close, METH_VARARGS,
         FP_DOC("log_close($module, level, /)", "They go to standard error; lines lost.")},
        {NULL, NULL, 0, NULL},
    };
    return fp_add_functions(module, functions);
}
