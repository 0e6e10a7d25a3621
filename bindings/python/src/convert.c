/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

bool fp_u64(PyObject *number, const char *what, uint64_t *out)
{
    PyObject *index = PyNumber_Index(number);
    if (index == NULL) {
        PyErr_Clear();
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s is not a whole number%s", what,
                        PyUnicode_Check(number) ? ", but a text: sizes are numbers of bytes, such "
                                                  "as 64 << 20"
                                                : "");
        return false;
    }
    unsigned long long value = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s is negative or beyond 64 bits", what);
        return false;
    }
    *out = value;
    return true;
}

bool fp_u32(PyObject *number, const char *what, uint32_t *out)
{
    uint64_t value;
    if (!fp_u64(number, what, &value)) {
        return false;
    }
    if (value > UINT32_MAX) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s is %llu, beyond 32 bits", what,
                        (unsigned long long)value);
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

bool fp_group(PyObject *ranks, const char *what, ferry_group **group_out)
{
    *group_out = NULL;
    if (ranks == Py_None) {
        return true;
    }
    PyObject *list = PySequence_List(ranks);
    if (list == NULL) {
        return false;
    }
    size_t n = (size_t)PyList_Size(list);
    uint32_t *numbers = malloc((n + 1) * sizeof *numbers);
    bool good = numbers != NULL;
    if (!good) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; good && i < n; i++) {
        good = fp_u32(PyList_GetItem(list, (Py_ssize_t)i), what, &numbers[i]);
    }
    ferry_error error;
    ferry_status status = good ? ferry_group_create(numbers, n, group_out, &error) : FERRY_OK;
    free(numbers);
    Py_DECREF(list);
    if (status != FERRY_OK) {
        fp_raise_format(status, "%s: %s", what, error.message);
    }
    return good && status == FERRY_OK;
}

PyObject *fp_u64_tuple(const uint64_t *numbers, uint32_t n)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; tuple != NULL && i < n; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

int fp_text_write(void *context, const char *bytes, size_t n_bytes)
{
    fp_text *text = context;
    if (text->capacity - text->used < n_bytes) {
        size_t capacity = text->capacity < 4096 ? 4096 : text->capacity;
        while (capacity - text->used < n_bytes) {
            capacity *= 2;
        }
        char *grown = realloc(text->bytes, capacity);
        if (grown == NULL) {
            return -1;
        }
        text->bytes = grown;
        text->capacity = capacity;
    }
    memcpy(text->bytes + text->used, bytes, n_bytes);
    text->used += n_bytes;
    return 0;
}

void fp_text_clear(fp_text *text)
{
    free(text->bytes);
    *text = (fp_text){NULL, 0, 0};
}

PyObject *fp_text_take(fp_text *text)
{
    PyObject *taken =
        PyUnicode_FromStringAndSize(text->bytes == NULL ? "" : text->bytes, (Py_ssize_t)text->used);
    fp_text_clear(text);
    return taken;
}
