/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/*
 * The buffer protocol's structure and its two functions are the same in every CPython since 3.0,
 * and part of the limited API since 3.11; the limited API of 3.9 leaves them out, so they are
 * looked up in the interpreter.
 */
typedef struct py_buffer {
    void *buf;
    PyObject *obj;
    Py_ssize_t len;
    Py_ssize_t itemsize;
    int readonly;
    int ndim;
    char *format;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    Py_ssize_t *suboffsets;
    void *internal;
} py_buffer;

typedef int (*get_buffer_fn)(PyObject *object, py_buffer *view, int flags);
typedef void (*release_buffer_fn)(py_buffer *view);
static get_buffer_fn get_buffer;
static release_buffer_fn release_buffer;

/* Whether the interpreter has them, as all that there are do. */
static bool find_buffer_functions(void)
{
    void *get = get_buffer == NULL ? dlsym(RTLD_DEFAULT, "PyObject_GetBuffer") : NULL;
    void *release = get != NULL ? dlsym(RTLD_DEFAULT, "PyBuffer_Release") : NULL;
    if (get != NULL && release != NULL) {
        memcpy(&get_buffer, &get, sizeof get);
        memcpy(&release_buffer, &release, sizeof release);
    }
    return get_buffer != NULL;
}

enum { BUFFER_WRITABLE = 0x0001, BUFFER_FORMAT = 0x0004, BUFFER_STRIDES = 0x0010 | 0x0008 };

/* Whether elements of this format are stored the other way round than this machine does. */
static bool is_foreign_order(const char *format, Py_ssize_t itemsize)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return itemsize > 1 && format[0] == '<';
#else
    return itemsize > 1 && (format[0] == '>' || format[0] == '!');
#endif
}

/* The kind of a format of one letter and this width; 0: none that ferry has a name for. */
static uint32_t kind_of_format(const char *format, Py_ssize_t itemsize)
{
    static const uint32_t signed_kinds[] = {FERRY_I8, FERRY_I16, 0, FERRY_I32, 0, 0, 0, FERRY_I64};
    static const uint32_t unsigned_kinds[] = {FERRY_U8, FERRY_U16, 0, FERRY_U32,
                                              0,        0,         0, FERRY_U64};
    if (strcmp(format, "Zf") == 0) {
        return itemsize == 8 ? FERRY_C64 : 0;
    }
    if (format[0] == '\0' || format[1] != '\0' || itemsize < 1 || itemsize > 8) {
        return 0;
    }
    switch (format[0]) {
    case 'e':
        return itemsize == 2 ? FERRY_F16 : 0;
    case 'f':
        return itemsize == 4 ? FERRY_F32 : 0;
    case 'd':
        return itemsize == 8 ? FERRY_F64 : 0;
    case '?':
        return itemsize == 1 ? FERRY_BOOL : 0;
    default:
        return strchr("bhilqn", format[0]) != NULL    ? signed_kinds[itemsize - 1]
               : strchr("BHILQNc", format[0]) != NULL ? unsigned_kinds[itemsize - 1]
                                                      : 0;
    }
}

static bool set_dtype(PyObject *object, const py_buffer *held, fp_view *view)
{
    const char *format = held->format == NULL ? "B" : held->format;
    uint32_t kind = 0;
    if (!is_foreign_order(format, held->itemsize)) {
        bool has_order = format[0] != '\0' && strchr("@=<>!", format[0]) != NULL;
        kind = kind_of_format(format + has_order, held->itemsize);
    }
    if (kind != 0) {
        return ferry_dtype_of(kind, &view->dtype, NULL) == FERRY_OK;
    }
    PyObject *dtype = PyObject_GetAttrString(object, "dtype"); /* numpy's, as torch would say it */
    PyErr_Clear();
    view->dtype = (ferry_dtype){FERRY_BYTES, (uint32_t)held->itemsize * 8};
    view->raw = dtype != NULL ? fp_dtype_raw(dtype) : PyUnicode_FromString(format);
    Py_XDECREF(dtype);
    return view->raw != NULL;
}

static bool read_buffer(PyObject *object, const py_buffer *held, const char *name, fp_view *view)
{
    view->base = held->buf;
    view->is_readonly = held->readonly != 0;
    if (held->format != NULL && strchr(held->format, 'O') != NULL) {
        fp_raise_format(
            FERRY_ERR_INVALID_INPUT,
            "%s holds Python objects, which mean nothing on another rank: give an array "
            "of numbers",
            FP_CALLED(name));
        return false;
    }
    if (held->itemsize < 1 || held->itemsize > INT32_MAX / 8) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s has elements of %zd bytes", FP_CALLED(name),
                        held->itemsize);
        return false;
    }
    if (!fp_view_check_dims(held->ndim, name) || !set_dtype(object, held, view)) {
        return false;
    }
    view->n_dims = (uint32_t)held->ndim;
    int64_t step = held->itemsize;
    for (uint32_t d = view->n_dims; d-- > 0;) { /* ctypes leaves strides out: row-major */
        int64_t own = held->strides == NULL ? step : held->strides[d];
        own = held->len == 0 ? 1 : own; /* numpy's are 0 where there is no element */
        if (!fp_view_set_dim(view, d, held->shape[d], own, name)) {
            return false;
        }
        step *= held->shape[d];
    }
    return fp_view_finish(view, name);
}

int fp_view_buffer(PyObject *object, const char *name, bool writable, fp_view *view)
{
    if (!find_buffer_functions()) {
        return 0;
    }
    py_buffer *held = calloc(1, sizeof *held);
    if (held == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int flags = BUFFER_STRIDES | BUFFER_FORMAT;
    if (get_buffer(object, held, flags | (writable ? BUFFER_WRITABLE : 0)) != 0) {
        PyErr_Clear();
        bool readonly = writable && get_buffer(object, held, flags) == 0;
        PyErr_Clear();
        if (readonly) {
            release_buffer(held);
            fp_raise_format(FERRY_ERR_INVALID_INPUT,
                            "%s is read-only: what is received needs memory to write to",
                            FP_CALLED(name));
        }
        free(held);
        return readonly ? -1 : 0;
    }
    view->source = FP_SOURCE_BUFFER;
    view->held = held;
    return read_buffer(object, held, name, view) ? 1 : -1;
}

PyObject *fp_buffer_object(const void *held)
{
    return ((const py_buffer *)held)->obj;
}

void fp_buffer_release(void *held)
{
    release_buffer(held);
    free(held);
}

bool fp_view_set_dims(PyObject *shape, PyObject *strides, const char *name, fp_view *view)
{
    int64_t step = (int64_t)(view->dtype.element_bits / 8);
    view->n_dims = (uint32_t)PyTuple_Size(shape);
    for (uint32_t d = view->n_dims; d-- > 0;) {
        long long length = PyLong_AsLongLong(PyTuple_GetItem(shape, (Py_ssize_t)d));
        long long own =
            strides == NULL ? step : PyLong_AsLongLong(PyTuple_GetItem(strides, (Py_ssize_t)d));
        if (PyErr_Occurred() || !fp_view_set_dim(view, d, length, own, name)) {
            return false;
        }
        step = (int64_t)((uint64_t)step * (uint64_t)length); /* too long: found at the end */
    }
    return fp_view_finish(view, name);
}

/*
 * numpy's own description, for dtypes that its buffers and DLPack have no word for: bfloat16 of
 * ml_dtypes, dates. The array itself keeps the memory.
 */
static bool interface_dtype(PyObject *object, fp_view *view)
{
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *width = dtype == NULL ? NULL : PyObject_GetAttrString(dtype, "itemsize");
    unsigned long bytes = width == NULL ? 0 : PyLong_AsUnsignedLong(width);
    bool good = bytes > 0 && bytes < UINT32_MAX / 8 && !PyErr_Occurred();
    if (good && (!fp_dtype_of(dtype, &view->dtype) || view->dtype.element_bits != bytes * 8)) {
        PyErr_Clear();
        view->dtype = (ferry_dtype){FERRY_BYTES, (uint32_t)bytes * 8};
        view->raw = fp_dtype_raw(dtype);
        good = view->raw != NULL;
    }
    Py_XDECREF(width);
    Py_XDECREF(dtype);
    return good;
}

static bool read_interface(PyObject *object, PyObject *interface, const char *name, bool writable,
                           fp_view *view)
{
    PyObject *data = PyDict_GetItemString(interface, "data");
    PyObject *shape = PyDict_GetItemString(interface, "shape");
    PyObject *strides = PyDict_GetItemString(interface, "strides");
    PyObject *type = PyDict_GetItemString(interface, "typestr");
    if (data == NULL || shape == NULL || type == NULL || !PyTuple_Check(data) ||
        PyTuple_Size(data) != 2 || !PyLong_Check(PyTuple_GetItem(data, 0)) ||
        !PyTuple_Check(shape) || !PyUnicode_Check(type) ||
        PyUnicode_FindChar(type, 'O', 0, PyUnicode_GetLength(type), 1) >= 0 ||
        !interface_dtype(object, view) || !fp_view_check_dims(PyTuple_Size(shape), name)) {
        return false;
    }
    bool has_strides = strides != NULL && PyTuple_Check(strides);
    view->source = FP_SOURCE_BUFFER;
    view->base = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
    view->is_readonly = PyObject_IsTrue(PyTuple_GetItem(data, 1)) != 0;
    if (PyErr_Occurred() || (has_strides && PyTuple_Size(strides) != PyTuple_Size(shape))) {
        return false;
    }
    if (view->is_readonly && writable) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is read-only: what is received needs memory to write to",
                        FP_CALLED(name));
        return false;
    }
    return fp_view_set_dims(shape, has_strides ? strides : NULL, name, view) &&
           (view->base != NULL || view->bytes == 0);
}

int fp_view_interface(PyObject *object, const char *name, bool writable, fp_view *view)
{
    PyObject *interface = PyObject_GetAttrString(object, "__array_interface__");
    if (interface == NULL || !PyDict_Check(interface)) {
        PyErr_Clear();
        Py_XDECREF(interface);
        return 0;
    }
    bool good = read_interface(object, interface, name, writable, view);
    Py_DECREF(interface);
    return good ? 1 : PyErr_Occurred() ? -1 : 0;
}

bool fp_buffer_again(const fp_view *view, const char *name, fp_view *now_out)
{
    if (view->held == NULL) { /* seen by __array_interface__ */
        return fp_view_interface(view->owner, name, false, now_out) >= 0;
    }
    py_buffer now = {.buf = NULL};
    if (get_buffer(view->owner, &now, BUFFER_STRIDES | BUFFER_FORMAT) != 0) {
        PyErr_Clear(); /* it has no memory now */
        return true;
    }
    bool good = read_buffer(view->owner, &now, name, now_out);
    release_buffer(&now);
    return good;
}
