/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Exceptions are classes of ferry/_errors.py, which also reads tensor, ranks and slice out of the
 * sentence. They are looked up at the first failure, so that importing ferry stays quick.
 */
#include "binding.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static PyObject *raise(ferry_status status, const char *sentence, bool on_all)
{
    /* A path in it may be no UTF-8. */
    PyObject *text = PyUnicode_DecodeUTF8(sentence, (Py_ssize_t)strlen(sentence), "replace");
    PyObject *errors = text == NULL ? NULL : PyImport_ImportModule("ferry._errors");
    PyObject *made = errors == NULL ? NULL
                                    : PyObject_CallMethod(errors, "of_status", "iOO", (int)status,
                                                          text, on_all ? Py_True : Py_False);
    if (made != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    }
    Py_XDECREF(made);
    Py_XDECREF(errors);
    Py_XDECREF(text);
    return NULL;
}

PyObject *fp_raise(ferry_status status, const char *sentence)
{
    return raise(status, sentence, false);
}

PyObject *fp_raise_on_all(ferry_status status, const char *sentence)
{
    return raise(status, sentence, status != FERRY_ERR_MISUSE);
}

bool fp_is_error(PyObject *type)
{
    PyObject *errors = PyImport_ImportModule("ferry._errors");
    PyObject *base = errors == NULL ? NULL : PyObject_GetAttrString(errors, "Error");
    bool yes = base != NULL && PyErr_GivenExceptionMatches(type, base) != 0;
    Py_XDECREF(base);
    Py_XDECREF(errors);
    return yes;
}

int fp_raise_int(ferry_status status, const char *sentence)
{
    fp_raise(status, sentence);
    return -1;
}

PyObject *fp_raise_format(ferry_status status, const char *format, ...)
{
    char sentence[FERRY_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return fp_raise(status, sentence);
}

/* status_names() -> {number: "ERR_IO", ...}: what _errors.py makes its classes fit. */
static PyObject *status_names(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *names = PyDict_New();
#define ADD(name, number, text)                                                                    \
    if (names != NULL) {                                                                           \
        PyObject *key = PyLong_FromLong(number);                                                   \
        PyObject *word = PyUnicode_FromString(#name);                                              \
        if (key == NULL || word == NULL || PyDict_SetItem(names, key, word) != 0) {                \
            Py_CLEAR(names);                                                                       \
        }                                                                                          \
        Py_XDECREF(key);                                                                           \
        Py_XDECREF(word);                                                                          \
    }
    FERRY_STATUS_MAP(ADD)
#undef ADD
    return names;
}

bool fp_add_errors(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"status_names", status_names, METH_NOARGS,
         FP_DOC("status_names($module, /)", "The library's statuses by number.")},
        {NULL, NULL, 0, NULL},
    };
    return fp_add_functions(module, functions);
}
