/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };

/* As the specification numbers what numbers are; raw where ferry has no name, as torch has it. */
static const struct {
    uint8_t code, bits;
    uint32_t kind;
    const char *raw;
} dtypes[] = {
    {0, 8, FERRY_I8, NULL},
    {0, 16, FERRY_I16, NULL},
    {0, 32, FERRY_I32, NULL},
    {0, 64, FERRY_I64, NULL},
    {1, 8, FERRY_U8, NULL},
    {1, 16, FERRY_U16, NULL},
    {1, 32, FERRY_U32, NULL},
    {1, 64, FERRY_U64, NULL},
    {2, 16, FERRY_F16, NULL},
    {2, 32, FERRY_F32, NULL},
    {2, 64, FERRY_F64, NULL},
    {4, 16, FERRY_BF16, NULL},
    {5, 32, FERRY_BYTES, "complex32"},
    {5, 64, FERRY_C64, NULL},
    {5, 128, FERRY_BYTES, "complex128"},
    {6, 8, FERRY_BOOL, NULL},
    {7, 8, FERRY_BYTES, "float8_e3m4"},
    {8, 8, FERRY_BYTES, "float8_e4m3"},
    {9, 8, FERRY_BYTES, "float8_e4m3b11fnuz"},
    {10, 8, FERRY_F8E4M3, NULL},
    {11, 8, FERRY_BYTES, "float8_e4m3fnuz"},
    {12, 8, FERRY_F8E5M2, NULL},
    {13, 8, FERRY_BYTES, "float8_e5m2fnuz"},
    {14, 8, FERRY_F8E8M0, NULL},
};

static bool set_dtype(const fp_dl_tensor *tensor, const char *name, fp_view *view)
{
    uint32_t bits = (uint32_t)tensor->bits * tensor->lanes;
    if (bits == 0 || bits % 8 != 0) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED, "%s has elements of %u bits: view it as bytes",
                        FP_CALLED(name), bits);
        return false;
    }
    view->dtype = (ferry_dtype){FERRY_BYTES, bits};
    for (size_t i = 0; tensor->lanes == 1 && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (dtypes[i].code == tensor->code && dtypes[i].bits == tensor->bits) {
            view->dtype.kind = dtypes[i].kind;
            view->raw = dtypes[i].raw == NULL ? NULL : PyUnicode_FromString(dtypes[i].raw);
            return dtypes[i].raw == NULL || view->raw != NULL;
        }
    }
    view->raw = PyUnicode_FromFormat("DLPack code %d, %d bits, %d lanes", (int)tensor->code,
                                     (int)tensor->bits, (int)tensor->lanes);
    return view->raw != NULL;
}

/* Steps are elements; a product that does not fit is a tensor that lies. */
static bool set_dims(const fp_dl_tensor *tensor, const char *name, fp_view *view)
{
    int64_t width = (int64_t)(view->dtype.element_bits / 8), step = width;
    for (uint32_t d = view->n_dims; d-- > 0;) {
        int64_t own = step;
        if ((tensor->strides != NULL && __builtin_mul_overflow(tensor->strides[d], width, &own)) ||
            __builtin_mul_overflow(step, tensor->shape[d] > 0 ? tensor->shape[d] : 1, &step)) {
            fp_raise_format(FERRY_ERR_LIMIT, "%s has more than 2^63 bytes", FP_CALLED(name));
            return false;
        }
        if (!fp_view_set_dim(view, d, tensor->shape[d], own, name)) {
            return false;
        }
    }
    return fp_view_finish(view, name);
}

bool fp_view_read_dlpack(const fp_dl_tensor *tensor, const char *name, fp_view *view)
{
    bool is_host = tensor->device_type == DL_CPU || tensor->device_type == DL_CUDA_HOST ||
                   tensor->device_type == DL_CUDA_MANAGED; /* which the host reaches as well */
    if (!is_host && tensor->device_type != DL_CUDA) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED,
                        "%s is on a device (DLPack type %d, number %d) that ferry does not know: "
                        "copy it to the host, and what comes there back",
                        FP_CALLED(name), (int)tensor->device_type, (int)tensor->device_id);
        return false;
    }
    if (!fp_view_check_dims(tensor->n_dims, name)) {
        return false;
    }
    if (tensor->n_dims > 0 && tensor->shape == NULL) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s has %d dims and no shape", FP_CALLED(name),
                        (int)tensor->n_dims);
        return false;
    }
    view->base = (char *)tensor->data + tensor->byte_offset;
    view->n_dims = (uint32_t)tensor->n_dims;
    return set_dtype(tensor, name, view) && set_dims(tensor, name, view) &&
           (is_host || fp_view_on_cuda(view, tensor->device_id, name));
}

/* What a capsule of version 1 has before its tensor. */
typedef struct dl_versioned {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(void *self);
    uint64_t flags;
    fp_dl_tensor tensor;
} dl_versioned;

enum { DL_READ_ONLY = 1, DL_IS_COPIED = 2 };

/* Whether it is in the memory of a GPU: then it is given in the order of a stream. */
static bool is_on_cuda(PyObject *object)
{
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    PyObject *type = device != NULL && PyTuple_Check(device) && PyTuple_Size(device) == 2
                         ? PyTuple_GetItem(device, 0)
                         : NULL;
    PyObject *number = type == NULL ? NULL : PyNumber_Index(type); /* it may be an enum's member */
    bool is = number != NULL && PyLong_AsLong(number) == DL_CUDA;
    Py_XDECREF(number);
    Py_XDECREF(device);
    PyErr_Clear();
    return is;
}

enum { LEGACY_STREAM = 1 };

/*
 * Of version 1 where the library knows it, as only that tells of memory that is read-only. What the
 * library has under way with memory of a GPU comes before what the legacy stream does later.
 */
static PyObject *get_capsule(PyObject *object, bool on_cuda)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *none = method == NULL ? NULL : PyTuple_New(0);
    PyObject *stream = none == NULL ? NULL
                       : on_cuda    ? Py_BuildValue("{si}", "stream", LEGACY_STREAM)
                                    : PyDict_New();
    PyObject *newest = stream == NULL ? NULL : PyDict_Copy(stream);
    PyObject *version = newest == NULL ? NULL : Py_BuildValue("(ii)", 1, 0);
    bool good = version != NULL && PyDict_SetItemString(newest, "max_version", version) == 0;
    PyObject *made = good ? PyObject_Call(method, none, newest) : NULL;
    if (made == NULL && good && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* a library that is older */
        made = PyObject_Call(method, none, stream);
    }
    Py_XDECREF(version);
    Py_XDECREF(newest);
    Py_XDECREF(stream);
    Py_XDECREF(none);
    Py_XDECREF(method);
    return made;
}

static const fp_dl_tensor *read_versioned(PyObject *capsule, const char *name, bool writable,
                                          fp_view *view)
{
    const dl_versioned *all = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (all == NULL) {
        return NULL;
    }
    if (all->major != 1) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED, "%s is given by DLPack %u.%u, and ferry reads 1",
                        FP_CALLED(name), all->major, all->minor);
        return NULL;
    }
    view->is_readonly = (all->flags & DL_READ_ONLY) != 0;
    if ((all->flags & DL_IS_COPIED) != 0 || (view->is_readonly && writable)) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        view->is_readonly
                            ? "%s is read-only: what is received needs memory to write to"
                            : "%s is given as a copy by its library, and not as its own memory",
                        FP_CALLED(name));
        return NULL;
    }
    return &all->tensor;
}

int fp_view_dlpack(PyObject *object, const char *name, bool writable, fp_view *view)
{
    if (!PyObject_HasAttrString(object, "__dlpack__")) {
        return 0;
    }
    bool on_cuda = is_on_cuda(object);
    PyObject *capsule = get_capsule(object, on_cuda);
    if (capsule == NULL) {
        return -1;
    }
    view->space.stream = on_cuda ? (void *)(uintptr_t)LEGACY_STREAM : NULL;
    view->source = FP_SOURCE_DLPACK;
    view->held = capsule; /* its destructor gives the tensor back: it is never renamed */
    const fp_dl_tensor *tensor = PyCapsule_IsValid(capsule, "dltensor_versioned")
                                     ? read_versioned(capsule, name, writable, view)
                                     : PyCapsule_GetPointer(capsule, "dltensor");
    if (tensor == NULL || !fp_view_read_dlpack(tensor, name, view)) {
        return -1;
    }
    if (view->base == NULL && view->bytes != 0) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s has a shape and no memory", FP_CALLED(name));
        return -1;
    }
    return 1;
}
