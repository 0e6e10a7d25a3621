/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "binding.h"

#include <ferry/reference.h>

static bool add_batch(ferry_reference_batches *batches, PyObject *key)
{
    ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
    ferry_error error;
    if (!PyTuple_Check(key) || PyTuple_Size(key) != 4) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "a batch is (source, destination, index, bytes) here");
        return false;
    }
    if (!fp_u32(PyTuple_GetItem(key, 0), "a batch's src_pe", &batch.from) ||
        !fp_u32(PyTuple_GetItem(key, 1), "a batch's dest_pe", &batch.to) ||
        !fp_u32(PyTuple_GetItem(key, 2), "a batch's batch_index", &batch.index) ||
        !fp_u64(PyTuple_GetItem(key, 3), "a batch's total_size", &batch.bytes)) {
        return false;
    }
    ferry_status status = ferry_reference_batches_add(batches, &batch, &error);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

static bool add_all(ferry_reference_batches *batches, PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        if (!add_batch(batches, PyList_GetItem(list, i))) {
            return false;
        }
    }
    return true;
}

static PyObject *iterations_of(const ferry_reference_batches *batches)
{
    uint64_t n = ferry_reference_batches_count(batches);
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (uint64_t i = 0; list != NULL && i < n; i++) {
        ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
        ferry_reference_batches_at(batches, i, &batch, NULL);
        PyObject *number = PyLong_FromUnsignedLong(batch.round);
        if (number == NULL || PyList_SetItem(list, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *assign(ferry_reference_batches *batches, unsigned rule, unsigned duplex)
{
    ferry_error error;
    uint32_t n = 0;
    PyThreadState *state = PyEval_SaveThread();
    ferry_status status = ferry_reference_batches_assign_rounds(batches, rule, duplex, &n, &error);
    PyEval_RestoreThread(state);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    PyObject *list = iterations_of(batches);
    return list == NULL ? NULL : Py_BuildValue("(IN)", n, list);
}

PyDoc_STRVAR(
    assign_iterations_doc,
    FP_DOC("assign_iterations($module, n_pes, batches, rule, duplex, /)",
           "Of (source, destination, index, bytes) in rising order: how many iterations there "
           "are, and which each batch gets."));

static PyObject *assign_iterations(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned n_pes, rule, duplex;
    PyObject *list;
    ferry_error error;
    ferry_reference_batches *batches = NULL;
    if (!PyArg_ParseTuple(args, "IO!II", &n_pes, &PyList_Type, &list, &rule, &duplex)) {
        return NULL;
    }
    ferry_status status = ferry_reference_batches_create(n_pes, &batches, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    PyObject *answer = add_all(batches, list) ? assign(batches, rule, duplex) : NULL;
    ferry_reference_batches_destroy(batches);
    return answer;
}

bool fp_add_schedule(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"assign_iterations", assign_iterations, METH_VARARGS, assign_iterations_doc},
        {NULL, NULL, 0, NULL},
    };
    return fp_add_functions(module, functions);
}
