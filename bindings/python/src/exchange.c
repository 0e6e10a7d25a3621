/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

/* Keeps what was raised, for the exception that the call ends with. */
static int keep_raised(fp_exchange *own)
{
    if (own->type == NULL) {
        PyErr_Fetch(&own->type, &own->value, &own->trace);
    }
    PyErr_Clear();
    return -1;
}

/* A list of size bytes objects becomes what C is handed: all of them in one piece. */
static bool join(fp_exchange *own, PyObject *list)
{
    Py_ssize_t n = PySequence_Size(list);
    size_t total = 0;
    if (n != (Py_ssize_t)own->exchange.n_ranks) {
        if (n >= 0) {
            PyErr_Format(PyExc_ValueError, "the exchange gave %zd parts to %u ranks", n,
                         own->exchange.n_ranks);
        }
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *part = PySequence_GetItem(list, i);
        char *bytes;
        Py_ssize_t length;
        bool good = part != NULL && PyBytes_AsStringAndSize(part, &bytes, &length) == 0;
        char *grown = good ? realloc(own->joined, total + (size_t)length + 1) : NULL;
        if (grown != NULL) {
            own->joined = grown;
            memcpy(grown + total, bytes, (size_t)length);
            own->lengths[i] = (size_t)length;
            total += (size_t)length;
        } else if (good) {
            PyErr_NoMemory();
        }
        Py_XDECREF(part);
        if (grown == NULL) {
            return false;
        }
    }
    return true;
}

static bool gather_by(fp_exchange *own, const char *method, const void *bytes, size_t n_bytes,
                      bool gets)
{
    PyObject *list =
        PyObject_CallMethod(own->object, method, "y#", (const char *)bytes, (Py_ssize_t)n_bytes);
    bool good = list != NULL && (!gets || join(own, list));
    Py_XDECREF(list);
    return good;
}

static int gather_as(fp_exchange *own, const char *method, const void *bytes, size_t n_bytes,
                     bool gets, const void **all_out, const size_t **lengths_out)
{
    PyGILState_STATE state = PyGILState_Ensure();
    static const char nothing[1];
    int failed = gather_by(own, method, bytes == NULL ? nothing : bytes, n_bytes, gets)
                     ? 0
                     : keep_raised(own);
    PyGILState_Release(state);
    *all_out = own->joined == NULL ? nothing : own->joined;
    *lengths_out = own->lengths;
    return failed;
}

static int all_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    return gather_as(context, "all_gather", bytes, n_bytes, true, all_out, lengths_out);
}

static int gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                  const size_t **lengths_out)
{
    fp_exchange *own = context;
    return gather_as(own, "gather", bytes, n_bytes, own->exchange.rank == 0, all_out, lengths_out);
}

static PyObject *parts_of(const fp_exchange *own, const char *all, const size_t *lengths)
{
    if (own->exchange.rank != 0) {
        Py_RETURN_NONE;
    }
    PyObject *list = PyList_New((Py_ssize_t)own->exchange.n_ranks);
    for (uint32_t r = 0; list != NULL && r < own->exchange.n_ranks; r++) {
        PyObject *part = PyBytes_FromStringAndSize(all, (Py_ssize_t)lengths[r]);
        if (part == NULL || PyList_SetItem(list, (Py_ssize_t)r, part) != 0) {
            Py_CLEAR(list);
        }
        all += lengths[r];
    }
    return list;
}

static int scatter(void *context, const void *all, const size_t *lengths, const void **mine_out,
                   size_t *n_bytes_out)
{
    fp_exchange *own = context;
    PyGILState_STATE state = PyGILState_Ensure();
    int failed = -1;
    char *bytes;
    Py_ssize_t length;
    PyObject *parts = parts_of(own, all, lengths);
    PyObject *mine = parts == NULL ? NULL : PyObject_CallMethod(own->object, "scatter", "O", parts);
    Py_XDECREF(parts);
    if (mine != NULL && PyBytes_AsStringAndSize(mine, &bytes, &length) == 0) {
        Py_XDECREF(own->answer);
        own->answer = mine; /* its bytes live until the next one */
        *mine_out = bytes;
        *n_bytes_out = (size_t)length;
        failed = 0;
    } else {
        Py_XDECREF(mine);
        keep_raised(own);
    }
    PyGILState_Release(state);
    return failed;
}

static bool number_of(PyObject *object, const char *name, uint32_t *out)
{
    PyObject *number = PyObject_GetAttrString(object, name);
    bool good = number != NULL && fp_u32(number, name, out);
    Py_XDECREF(number);
    return good;
}

bool fp_exchange_of(PyObject *object, fp_exchange *exchange_out)
{
    *exchange_out = (fp_exchange){.exchange = FERRY_EXCHANGE_INIT};
    ferry_exchange *plain = &exchange_out->exchange;
    plain->context = exchange_out;
    plain->all_gather = all_gather;
    if (!number_of(object, "rank", &plain->rank) || !number_of(object, "size", &plain->n_ranks)) {
        return false;
    }
    exchange_out->lengths = calloc((size_t)plain->n_ranks + 1, sizeof *exchange_out->lengths);
    if (exchange_out->lengths == NULL) {
        PyErr_NoMemory();
        return false;
    }
    if (PyObject_HasAttrString(object, "gather") && PyObject_HasAttrString(object, "scatter")) {
        plain->gather = gather;
        plain->scatter = scatter;
    }
    Py_INCREF(object);
    exchange_out->object = object;
    return true;
}

void fp_exchange_clear(fp_exchange *exchange)
{
    free(exchange->joined);
    free(exchange->lengths);
    exchange->joined = NULL;
    exchange->lengths = NULL;
    Py_CLEAR(exchange->object);
    Py_CLEAR(exchange->answer);
    Py_CLEAR(exchange->type);
    Py_CLEAR(exchange->value);
    Py_CLEAR(exchange->trace);
}

PyObject *fp_raise_exchanged(fp_exchange *exchange, ferry_status status, const char *sentence)
{
    fp_raise(status, sentence);
    if (exchange->type == NULL) {
        return NULL;
    }
    if (!PyErr_GivenExceptionMatches(exchange->type, PyExc_Exception)) {
        PyErr_Restore(exchange->type, exchange->value, exchange->trace); /* KeyboardInterrupt */
        exchange->type = exchange->value = exchange->trace = NULL;
        return NULL;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyErr_NormalizeException(&exchange->type, &exchange->value, &exchange->trace);
    Py_XINCREF(exchange->value);
    PyException_SetCause(value, exchange->value); /* takes the reference */
    PyErr_Restore(type, value, trace);
    return NULL;
}
