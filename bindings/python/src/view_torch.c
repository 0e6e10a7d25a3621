/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include <string.h>

/* What a library offers for its own tensors beside __dlpack__: version 1 of DLPack's table. */
typedef struct dl_exchange {
    uint32_t major, minor;
    struct dl_exchange *older;
    void (*unused[3])(void);
    int (*describe)(void *object, fp_dl_tensor *out); /* may be NULL; borrows from the object */
} dl_exchange;

static PyObject *torch_names[10]; /* what is asked of every tensor, as str objects */
enum { DATA_PTR, SHAPE, STRIDE, DTYPE, IS_CPU, DEVICE, IS_NEG, IS_CONJ, IS_CUDA, GET_DEVICE };

/*
 * torch's own types, whose tensors describe themselves in one call (torch 2.10 and later): ten
 * times as quick as asking for attributes. Subclasses may mean something else by their memory.
 */
static PyObject *plain_types[2];
static int (*describe_plain)(void *object, fp_dl_tensor *out);

static void find_description(PyObject *torch, PyObject *type)
{
    PyObject *nn = PyObject_GetAttrString(torch, "nn");
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const dl_exchange *exchange = NULL;
    if (nn != NULL && capsule != NULL) {
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    }
    while (exchange != NULL && exchange->major > 1) {
        exchange = exchange->older;
    }
    if (exchange != NULL && exchange->major == 1) {
        plain_types[0] = type;
        plain_types[1] = PyObject_GetAttrString(nn, "Parameter");
        describe_plain = exchange->describe;
    }
    Py_XDECREF(capsule);
    Py_XDECREF(nn);
    PyErr_Clear();
}

static bool describes_itself(PyObject *tensor)
{
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    return describe_plain != NULL && (type == plain_types[0] || type == plain_types[1]);
}

static PyObject *torch_tensor(void)
{
    static PyObject *type;
    if (type != NULL) {
        return type;
    }
    static const char *const words[] = {"data_ptr", "shape",  "stride",  "dtype",   "is_cpu",
                                        "device",   "is_neg", "is_conj", "is_cuda", "get_device"};
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *torch = PyDict_GetItemString(modules, "torch");
    if (torch == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        torch_names[i] = PyUnicode_InternFromString(words[i]);
        if (torch_names[i] == NULL) {
            return NULL;
        }
    }
    type = PyObject_GetAttrString(torch, "Tensor");
    PyErr_Clear(); /* a torch that is only half imported has none yet */
    if (type != NULL) {
        find_description(torch, type);
    }
    return type;
}

bool fp_is_torch(PyObject *object)
{
    PyObject *type = torch_tensor();
    if (type == NULL) {
        PyErr_Clear();
        return false;
    }
    return (PyObject *)Py_TYPE(object) == type || PyObject_IsInstance(object, type) > 0;
}

static bool torch_pointer(PyObject *tensor, const char *name, char **base_out)
{
    PyObject *pointer = PyObject_CallMethodObjArgs(tensor, torch_names[DATA_PTR], NULL);
    if (pointer == NULL) {
        if (PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            PyErr_Clear();
            fp_raise_format(FERRY_ERR_INVALID_INPUT,
                            "%s has no memory of its own, as tensors that are sparse or fake: give "
                            "a dense one",
                            FP_CALLED(name));
        }
        return false;
    }
    *base_out = PyLong_AsVoidPtr(pointer);
    Py_DECREF(pointer);
    return *base_out != NULL || !PyErr_Occurred();
}

static bool is_true(PyObject *tensor, PyObject *attribute)
{
    PyObject *value = PyObject_GetAttr(tensor, attribute);
    bool yes = value == Py_True;
    Py_XDECREF(value);
    PyErr_Clear();
    return yes;
}

static bool torch_device(PyObject *tensor, int *device_out)
{
    PyObject *number = PyObject_CallMethodObjArgs(tensor, torch_names[GET_DEVICE], NULL);
    *device_out = number == NULL ? -1 : (int)PyLong_AsLong(number);
    Py_XDECREF(number);
    return !PyErr_Occurred();
}

/* On the host or on a GPU of CUDA: *device_out is -1 or its number. */
static bool torch_place(PyObject *tensor, const char *name, int *device_out)
{
    *device_out = -1;
    if (PyObject_HasAttrString(tensor, "placements") &&
        PyObject_HasAttrString(tensor, "to_local")) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is a DTensor, of which this process holds a part: give its to_local(), "
                        "or use ferry.adapters.torch, which knows placements",
                        FP_CALLED(name));
        return false;
    }
    if (is_true(tensor, torch_names[IS_CPU])) {
        return true;
    }
    if (is_true(tensor, torch_names[IS_CUDA])) {
        return torch_device(tensor, device_out);
    }
    PyObject *device = PyObject_GetAttr(tensor, torch_names[DEVICE]);
    PyObject *text = device == NULL ? NULL : PyObject_Str(device);
    PyObject *bytes = text == NULL ? NULL : PyUnicode_AsUTF8String(text);
    if (bytes != NULL && strcmp(PyBytes_AsString(bytes), "meta") == 0) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED,
                        "%s is on device meta: it has a shape and no memory; make it with "
                        "torch.empty_like(..., device=\"cpu\") first",
                        FP_CALLED(name));
    } else if (bytes != NULL) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED,
                        "%s is on device %s, which ferry does not know: copy it to the host with "
                        ".cpu(), and what comes there back",
                        FP_CALLED(name), PyBytes_AsString(bytes));
    }
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    Py_XDECREF(device);
    return false;
}

static bool torch_dims(PyObject *tensor, fp_view *view, const char *name)
{
    PyObject *shape = PyObject_GetAttr(tensor, torch_names[SHAPE]);
    PyObject *stride =
        shape == NULL ? NULL : PyObject_CallMethodObjArgs(tensor, torch_names[STRIDE], NULL);
    bool good = stride != NULL && fp_view_check_dims(PyTuple_Size(shape), name);
    int64_t width = (int64_t)(view->dtype.element_bits / 8);
    if (good) {
        view->n_dims = (uint32_t)PyTuple_Size(shape);
    }
    for (uint32_t d = 0; good && d < view->n_dims; d++) {
        long long length = PyLong_AsLongLong(PyTuple_GetItem(shape, (Py_ssize_t)d));
        long long step = PyLong_AsLongLong(PyTuple_GetItem(stride, (Py_ssize_t)d));
        good = !PyErr_Occurred() && fp_view_set_dim(view, d, length, step * width, name);
    }
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    return good && fp_view_finish(view, name);
}

/* A dtype that ferry has no name for is so many bytes, of the name that torch has. */
static bool torch_dtype(PyObject *tensor, fp_view *view)
{
    PyObject *dtype = PyObject_GetAttr(tensor, torch_names[DTYPE]);
    bool good = dtype != NULL && fp_dtype_of(dtype, &view->dtype);
    if (!good && dtype != NULL) {
        PyErr_Clear();
        PyObject *width = PyObject_GetAttrString(dtype, "itemsize");
        view->dtype = (ferry_dtype){FERRY_BYTES, 0};
        view->raw = fp_dtype_raw(dtype);
        if (width != NULL) {
            view->dtype.element_bits = (uint32_t)PyLong_AsUnsignedLong(width) * 8;
        }
        good = width != NULL && view->raw != NULL && !PyErr_Occurred();
        Py_XDECREF(width);
    }
    Py_XDECREF(dtype);
    return good;
}

static bool ask(PyObject *tensor, PyObject *method)
{
    PyObject *answer = PyObject_CallMethodObjArgs(tensor, method, NULL);
    bool yes = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return yes;
}

/*
 * Conjugation and, of the imaginary parts of complex numbers, negation may be put off: memory lacks
 * them. Such parts lie two apart, so most tensors need not be asked.
 */
static bool torch_has_values(PyObject *tensor, const fp_view *view, const char *name)
{
    uint32_t kind = view->dtype.kind;
    bool real = (kind == FERRY_F16 || kind == FERRY_F32 || kind == FERRY_F64) &&
                (!view->is_contiguous || view->bytes <= view->dtype.element_bits / 8);
    bool neg = real && ask(tensor, torch_names[IS_NEG]);
    bool conj = (kind == FERRY_C64 || kind == FERRY_BYTES) && ask(tensor, torch_names[IS_CONJ]);
    if (neg || conj) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is a view whose values are not those in memory: call %s() on it first",
                        FP_CALLED(name), neg ? "resolve_neg" : "resolve_conj");
    }
    return !neg && !conj;
}

static bool view_attributes(PyObject *tensor, const char *name, fp_view *view)
{
    int device;
    return torch_dtype(tensor, view) && torch_place(tensor, name, &device) &&
           torch_pointer(tensor, name, &view->base) && torch_dims(tensor, view, name) &&
           (device < 0 || fp_view_on_cuda(view, device, name));
}

bool fp_view_torch(PyObject *tensor, const char *name, fp_view *view)
{
    view->source = FP_SOURCE_TORCH;
    fp_dl_tensor plain;
    if (describes_itself(tensor) && describe_plain(tensor, &plain) == 0) {
        if (!fp_view_read_dlpack(&plain, name, view)) {
            return false;
        }
    } else {
        PyErr_Clear(); /* attributes tell why there is no description */
        if (!view_attributes(tensor, name, view)) {
            return false;
        }
    }
    if (view->base == NULL && view->bytes != 0) {
        bool is_fake = PyObject_HasAttrString(tensor, "fake_mode") != 0;
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        is_fake ? "%s is a fake tensor, which has a shape and never had memory: "
                                  "make it outside of its FakeTensorMode"
                                : "%s has a shape, but its memory was freed: allocate it again",
                        FP_CALLED(name));
        return false;
    }
    return torch_has_values(tensor, view, name);
}
