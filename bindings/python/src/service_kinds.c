/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The library moves bytes; what they mean, both ends of a task must agree on. Each end is a hash, a
 * send's added and a receive's taken away, so that one number a rank says whether all agree. Lists
 * travel only where they do not, or where one end is bytes that may be anything.
 */
#include "service.h"

#include <stdlib.h>
#include <string.h>

PyObject *fp_kind_text(ferry_dtype dtype, PyObject *raw)
{
    if (raw != NULL) {
        return Py_INCREF(raw), raw;
    }
    if (dtype.kind == FERRY_U8) {
        Py_RETURN_NONE;
    }
    return fp_dtype_name(dtype);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* FNV-1a: the same on all ranks, as a hash of Python's is not. */
static bool hash_text(PyObject *text, uint64_t *hash_out)
{
    PyObject *bytes = PyUnicode_AsUTF8String(text);
    if (bytes == NULL) {
        return false;
    }
    *hash_out = UINT64_C(0xcbf29ce484222325);
    for (const char *at = PyBytes_AsString(bytes); *at != '\0'; at++) {
        *hash_out = (*hash_out ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    }
    Py_DECREF(bytes);
    return true;
}

static bool reserve(fp_kinds *kinds)
{
    if (kinds->n < kinds->capacity) {
        return true;
    }
    size_t capacity = kinds->capacity == 0 ? 64 : 2 * kinds->capacity;
    fp_kind *items = realloc(kinds->items, capacity * sizeof *items);
    if (items == NULL) {
        PyErr_NoMemory();
        return false;
    }
    kinds->items = items;
    kinds->capacity = capacity;
    return true;
}

bool fp_kinds_add(fp_kinds *kinds, const fp_view *view, const fp_kind *end, uint32_t my_rank)
{
    PyObject *dtype = end->dtype != NULL ? (Py_INCREF(end->dtype), end->dtype)
                                         : fp_kind_text(view->dtype, view->raw);
    uint64_t text_hash = 0;
    if (dtype == NULL || !reserve(kinds) || (dtype != Py_None && !hash_text(dtype, &text_hash))) {
        Py_XDECREF(dtype);
        return false;
    }
    if (dtype == Py_None) {
        Py_CLEAR(dtype);
    }
    Py_XINCREF(end->name);
    kinds->items[kinds->n] = *end;
    kinds->items[kinds->n].dtype = dtype;
    kinds->n++;
    uint64_t from = end->is_send ? my_rank : end->peer, to = end->is_send ? end->peer : my_rank;
    uint64_t hash = mix(mix(mix(mix(0, from), to), end->task_id), text_hash);
    kinds->sum += end->is_send ? hash : 0 - hash;
    return true;
}

void fp_kinds_clear(fp_kinds *kinds)
{
    for (size_t i = 0; i < kinds->n; i++) {
        Py_XDECREF(kinds->items[i].dtype);
        Py_XDECREF(kinds->items[i].name);
    }
    free(kinds->items);
    *kinds = (fp_kinds){.items = NULL};
}

/* What bound tensors are where the plan says no more than how many bytes: by side, name to text. */
static PyObject *raw_of_plan(const fp_service *own)
{
    PyObject *sides = PyList_New(0);
    for (int side = 0; sides != NULL && side < 2; side++) {
        PyObject *found = PyDict_New();
        if (found == NULL || PyList_Append(sides, found) != 0) {
            Py_CLEAR(sides);
        }
        Py_XDECREF(found);
    }
    for (size_t i = 0; sides != NULL && own->bound[0] != NULL && i < own->holds.n; i++) {
        const fp_hold *hold = &own->holds.items[i];
        if (hold->raw == NULL || hold->name == NULL) {
            continue;
        }
        if (PyDict_SetItem(PyList_GetItem(sides, i < own->n_sources ? 0 : 1), hold->name,
                           hold->raw) != 0) {
            Py_CLEAR(sides);
        }
    }
    return sides;
}

/* kinds_sum() -> int: zero over all ranks where all ends agree. */
PyObject *fp_service_kinds_sum(PyObject *self, PyObject *unused)
{
    (void)unused;
    const fp_service *own = (fp_service *)self;
    uint64_t sum = own->kinds.sum;
    for (size_t i = 0; own->bound[0] != NULL && i < own->holds.n; i++) {
        sum = own->holds.items[i].raw != NULL ? mix(sum, 1) : sum;
    }
    return PyLong_FromUnsignedLongLong(sum);
}

/* kinds() -> (list of (is_send, task_id, peer, dtype or None, name or None), [dict, dict]) */
PyObject *fp_service_kinds(PyObject *self, PyObject *unused)
{
    (void)unused;
    const fp_service *own = (fp_service *)self;
    PyObject *sides = raw_of_plan(own);
    PyObject *list = sides == NULL ? NULL : PyList_New(0);
    for (size_t i = 0; list != NULL && i < own->kinds.n; i++) {
        const fp_kind *kind = &own->kinds.items[i];
        PyObject *item = Py_BuildValue("(OKIOO)", kind->is_send ? Py_True : Py_False,
                                       (unsigned long long)kind->task_id, kind->peer,
                                       kind->dtype == NULL ? Py_None : kind->dtype,
                                       kind->name == NULL ? Py_None : kind->name);
        if (item == NULL || PyList_Append(list, item) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    PyObject *both = list == NULL ? NULL : PyTuple_Pack(2, list, sides);
    Py_XDECREF(list);
    Py_XDECREF(sides);
    return both;
}

/* refuse(): ends of a task do not agree, so what is scheduled must not run. */
PyObject *fp_service_refuse(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((fp_service *)self)->is_refused = true;
    Py_RETURN_NONE;
}
