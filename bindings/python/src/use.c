/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "guard.h"

#include <unistd.h>

void fp_use_init(fp_use *use, const char *what)
{
    *use = (fp_use){.what = what, .pid = getpid()};
}

bool fp_is_own(const fp_use *use)
{
    return use->pid == getpid();
}

bool fp_may_read(const fp_use *use, bool open)
{
    if (!fp_is_own(use)) {
        fp_raise_format(FERRY_ERR_MISUSE,
                        "%s belongs to process %ld, which forked this one: make another one here, "
                        "or start processes with the method \"spawn\"",
                        use->what, (long)use->pid);
    } else if (!open) {
        fp_raise_format(FERRY_ERR_MISUSE, "%s was closed: make another one", use->what);
    } else if (use->is_replaced) {
        fp_raise_format(FERRY_ERR_MISUSE,
                        "%s is in use: recover_onto() of another thread, which puts another one in "
                        "its place, has not returned",
                        use->what);
    }
    return open && fp_is_own(use) && !use->is_replaced;
}

bool fp_enter(fp_use *use, bool open)
{
    if (!fp_may_read(use, open)) {
        return false;
    }
    if (use->busy) {
        fp_raise_format(FERRY_ERR_MISUSE,
                        "%s is in use: a call of another thread, or the call that called back, has "
                        "not returned; one thread uses it at a time",
                        use->what);
        return false;
    }
    use->busy = true;
    return true;
}

void fp_leave(fp_use *use)
{
    use->busy = false;
}

bool fp_ended(ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK && !PyErr_Occurred() && PyErr_CheckSignals() == 0) {
        fp_raise_on_all(status, error->message);
    }
    return status == FERRY_OK;
}

bool fp_block(ferry_world *world, fp_call_fn call, void *context)
{
    ferry_error error;
    ferry_status status;
    bool guarded;
    if (!fp_guard_begin(world, &guarded)) {
        return false;
    }
    Py_BEGIN_ALLOW_THREADS
    status = call(context, &error);
    Py_END_ALLOW_THREADS
    fp_guard_end(guarded);
    return fp_ended(status, &error);
}

int fp_path_bytes(PyObject *path, void *bytes_out)
{
    int done = PyUnicode_FSConverter(path, bytes_out);
    if (done == 0 && PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        fp_raise(FERRY_ERR_INVALID_INPUT, "a path has a zero byte in it, which no file's name has");
    }
    return done;
}

int fp_optional_path_bytes(PyObject *path, void *bytes_out)
{
    if (path != Py_None) {
        return fp_path_bytes(path, bytes_out);
    }
    *(PyObject **)bytes_out = NULL;
    return 1;
}

bool fp_with_path(PyObject *path, fp_path_fn call, void *context)
{
    PyObject *bytes;
    ferry_error error;
    ferry_status status;
    if (!fp_path_bytes(path, &bytes)) {
        return false;
    }
    const char *text = PyBytes_AsString(bytes);
    Py_BEGIN_ALLOW_THREADS
    status = call(context, text, &error);
    Py_END_ALLOW_THREADS
    Py_DECREF(bytes);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

PyObject *fp_list_parts(const void *all, const size_t *lengths, uint32_t n_ranks)
{
    PyObject *list = PyList_New((Py_ssize_t)n_ranks);
    const char *at = all;
    for (uint32_t r = 0; list != NULL && r < n_ranks; at += lengths[r++]) {
        PyObject *part = PyBytes_FromStringAndSize(at, (Py_ssize_t)lengths[r]);
        if (part == NULL || PyList_SetItem(list, (Py_ssize_t)r, part) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}
