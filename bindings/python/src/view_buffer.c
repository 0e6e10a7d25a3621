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
    void       *buf;
    PyObject   *obj;
    Py_ssize_t  len;
    Py_ssize_t  itemsize;
    int         readonly;
    int         ndim;
    char       *format;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    Py_ssize_t *suboffsets;
    void       *internal;
} py_buffer;

typedef int (*get_buffer_fn)(PyObject *object, py_buffer *view, int flags);
typedef void (*release_buffer_fn)(py_buffer *view);
static get_buffer_fn     get_buffer;
static release_buffer_fn release_buffer;

/* Whether the interpreter has them, as all that there are do. */
static bool find_buffer_functions(void)
{
    void *get     = get_buffer == NULL ? dlsym(RTLD_DEFAULT, "PyObject_GetBuffer") : NULL;
    void *release = get != NULL ? dlsym(RTLD_DEFAULT, "PyBuffer_Release") : NULL;
    if (get != NULL && release != NULL) {
        memcpy(&get_buffer, &get, sizeof get);
        memcpy(&release_buffer, &release, sizeof release);
    }
    return get_buffer != NULL;
}

enum { BUFFER_WRITABLE = 0x0001, BUFFER_FORMAT = 0x0004, BUFFER_STRIDES = 0x0010 | 0x0008 };

static ferry_dtype dtype_of_format(const char *format, Py_ssize_t itemsize)
{
    static const struct {
        char     code;
        uint32_t kind;
    } codes[] = {{'e', FERRY_F16}, {'f', FERRY_F32}, {'d', FERRY_F64}, {'?', FERRY_BOOL}};
    static const uint32_t signed_kinds[] = {FERRY_I8, FERRY_I16, 0, FERRY_I32, 0, 0, 0, FERRY_I64};
    static const uint32_t unsigned_kinds[] = {FERRY_U8, FERRY_U16, 0, FERRY_U32,
                                              0,        0,         0, FERRY_U64};
    ferry_dtype           dtype            = {FERRY_BYTES, (uint32_t)itemsize * 8};
    if (format == NULL) {
        ferry_dtype_of(FERRY_U8, &dtype, NULL);
        return dtype;
    }
    format += strchr("@=<", format[0]) != NULL && format[0] != '\0';
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (format[0] == codes[i].code && format[1] == '\0') {
            dtype.kind = codes[i].kind;
        }
    }
    if (strcmp(format, "Zf") == 0) {
        dtype.kind = FERRY_C64;
    }
    if (format[0] != '\0' && format[1] == '\0' && itemsize >= 1 && itemsize <= 8) {
        uint32_t kind = strchr("bhilqn", format[0]) != NULL    ? signed_kinds[itemsize - 1]
                        : strchr("BHILQNc", format[0]) != NULL ? unsigned_kinds[itemsize - 1]
                                                               : 0;
        dtype.kind    = kind != 0 ? kind : dtype.kind;
    }
    return dtype;
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
    view->source      = FP_SOURCE_BUFFER;
    view->held        = held;
    view->base        = held->buf;
    view->is_readonly = held->readonly != 0;
    view->dtype       = dtype_of_format(held->format, held->itemsize);
    if (held->format != NULL && strchr(held->format, 'O') != NULL) {
        fp_raise_format(
            FERRY_ERR_INVALID_INPUT,
            "%s holds Python objects, which mean nothing on another rank: give an array "
            "of numbers",
            FP_CALLED(name));
        return -1;
    }
    if (!fp_view_check_dims(held->ndim, name)) {
        return -1;
    }
    view->n_dims = (uint32_t)held->ndim;
    int64_t step = held->itemsize;
    for (uint32_t d = view->n_dims; d-- > 0;) { /* ctypes leaves strides out: row-major */
        int64_t own = held->strides == NULL ? step : held->strides[d];
        own         = held->len == 0 ? 1 : own; /* numpy's are 0 where there is no element */
        if (!fp_view_set_dim(view, d, (uint64_t)held->shape[d], own, name)) {
            return -1;
        }
        step *= held->shape[d];
    }
    return fp_view_finish(view, name) ? 1 : -1;
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

/*
 * numpy's own description, for dtypes that its buffers and DLPack have no word for: bfloat16 of
 * ml_dtypes, dates. The array itself keeps the memory.
 */
static bool interface_dims(PyObject *shape, PyObject *strides, fp_view *view, const char *name)
{
    int64_t step = (int64_t)(view->dtype.element_bits / 8);
    for (uint32_t d = view->n_dims; d-- > 0;) {
        long long length = PyLong_AsLongLong(PyTuple_GetItem(shape, (Py_ssize_t)d));
        long long own =
            strides == NULL ? step : PyLong_AsLongLong(PyTuple_GetItem(strides, (Py_ssize_t)d));
        if (PyErr_Occurred() || !fp_view_set_dim(view, d, (uint64_t)length, own, name)) {
            return false;
        }
        step *= length;
    }
    return fp_view_finish(view, name);
}

static bool interface_dtype(PyObject *object, ferry_dtype *dtype_out)
{
    PyObject     *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject     *width = dtype == NULL ? NULL : PyObject_GetAttrString(dtype, "itemsize");
    unsigned long bytes = width == NULL ? 0 : PyLong_AsUnsignedLong(width);
    bool          good  = bytes > 0 && bytes < UINT32_MAX / 8 && !PyErr_Occurred();
    if (good && (!fp_dtype_of(dtype, dtype_out) || dtype_out->element_bits != bytes * 8)) {
        PyErr_Clear();
        *dtype_out = (ferry_dtype){FERRY_BYTES, (uint32_t)bytes * 8};
    }
    Py_XDECREF(width);
    Py_XDECREF(dtype);
    return good;
}

static bool read_interface(PyObject *object, PyObject *interface, const char *name, bool writable,
                           fp_view *view)
{
    PyObject *data    = PyDict_GetItemString(interface, "data");
    PyObject *shape   = PyDict_GetItemString(interface, "shape");
    PyObject *strides = PyDict_GetItemString(interface, "strides");
    PyObject *type    = PyDict_GetItemString(interface, "typestr");
    if (data == NULL || shape == NULL || type == NULL || !PyTuple_Check(data) ||
        !PyTuple_Check(shape) || PyUnicode_FindChar(type, 'O', 0, 4, 1) >= 0 ||
        !interface_dtype(object, &view->dtype) || !fp_view_check_dims(PyTuple_Size(shape), name)) {
        return false;
    }
    bool has_strides  = strides != NULL && PyTuple_Check(strides);
    view->source      = FP_SOURCE_BUFFER;
    view->base        = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
    view->is_readonly = PyObject_IsTrue(PyTuple_GetItem(data, 1)) != 0;
    view->n_dims      = (uint32_t)PyTuple_Size(shape);
    if (PyErr_Occurred() || (has_strides && PyTuple_Size(strides) != PyTuple_Size(shape))) {
        return false;
    }
    if (view->is_readonly && writable) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is read-only: what is received needs memory to write to",
                        FP_CALLED(name));
        return false;
    }
    return interface_dims(shape, has_strides ? strides : NULL, view, name);
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

bool fp_buffer_locate(const fp_view *view, const char *name, char **base_out, uint64_t *bytes_out)
{
    *base_out  = NULL;
    *bytes_out = 0;
    if (view->held == NULL) { /* seen by __array_interface__ */
        fp_view now   = FP_VIEW_INIT;
        int     found = fp_view_interface(view->owner, name, false, &now);
        *base_out     = now.base;
        *bytes_out    = now.bytes;
        return found >= 0;
    }
    py_buffer now = {.buf = NULL};
    if (get_buffer(view->owner, &now, BUFFER_STRIDES) != 0) {
        PyErr_Clear(); /* it has no memory now */
        return true;
    }
    *base_out  = now.buf;
    *bytes_out = (uint64_t)now.len;
    release_buffer(&now);
    return true;
}
