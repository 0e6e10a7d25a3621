/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "binding.h"

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

/* DLPack, as its specification has it. */
typedef struct dl_tensor {
    void    *data;
    int32_t  device_type, device_id;
    int32_t  n_dims;
    uint8_t  code, bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* of elements; NULL: row-major */
    uint64_t byte_offset;
} dl_tensor;

enum { DL_CPU = 1, DL_CUDA_HOST = 3 };

/* What a library offers for its own tensors beside __dlpack__: version 1 of DLPack's table. */
typedef struct dl_exchange {
    uint32_t            major, minor;
    struct dl_exchange *older;
    void (*unused[3])(void);
    int (*describe)(void *object, dl_tensor *out); /* may be NULL; borrows from the object */
} dl_exchange;

static const char *called(const char *name, char text[160])
{
    if (name == NULL) {
        return "a tensor";
    }
    PyOS_snprintf(text, 160, "tensor \"%.140s\"", name);
    return text;
}

#define CALLED(name) called(name, (char[160]){0})

/* Shapes. */

static bool set_dim(fp_view *view, uint32_t at, uint64_t length, int64_t stride, const char *name)
{
    view->shape[at] = length;
    if (length > 1 && stride <= 0) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s has stride %lld in dim %u: ferry copies from and to memory where each "
                        "element has its own place in rising order; make it contiguous first",
                        CALLED(name), (long long)stride, at);
        return false;
    }
    view->stride[at] = (uint64_t)(stride < 0 ? 0 : stride);
    return true;
}

/* Counts bytes; strides of dims of one element become those of a row-major tensor. */
static bool finish(fp_view *view, const char *name)
{
    uint64_t element_bytes = view->dtype.element_bits / 8;
    uint64_t expected      = element_bytes;
    view->is_contiguous    = true;
    for (uint32_t d = view->n_dims; d-- > 0;) {
        uint64_t length = view->shape[d];
        if (length <= 1) {
            view->stride[d] = expected;
        }
        view->is_contiguous = view->is_contiguous && view->stride[d] == expected;
        if (length != 0 && expected > UINT64_MAX / length) {
            fp_raise_format(FERRY_ERR_LIMIT, "%s has more than 2^64 bytes", CALLED(name));
            return false;
        }
        expected *= length;
    }
    view->bytes         = expected;
    view->is_contiguous = view->is_contiguous || expected == 0;
    return true;
}

static bool check_dims(Py_ssize_t n_dims, const char *name)
{
    if (n_dims <= FERRY_MAX_DIMS) {
        return true;
    }
    fp_raise_format(FERRY_ERR_LIMIT, "%s has %zd dims, and ferry takes %d: view it with fewer",
                    CALLED(name), n_dims, FERRY_MAX_DIMS);
    return false;
}

/* What DLPack says. */

static ferry_dtype dtype_of_dlpack(const dl_tensor *tensor)
{
    enum { INT = 0, UINT = 1, FLOAT = 2, BFLOAT = 4, COMPLEX = 5, BOOL = 6 };
    enum { FLOAT8_E4M3FN = 10, FLOAT8_E5M2 = 12, FLOAT8_E8M0FNU = 14 };
    uint32_t bits = (uint32_t)tensor->bits * tensor->lanes;
    uint32_t kind = FERRY_BYTES;
    switch (tensor->lanes == 1 ? tensor->code : -1) {
    case INT:
        kind = bits == 8 ? FERRY_I8 : bits == 16 ? FERRY_I16 : bits == 32 ? FERRY_I32 : FERRY_I64;
        break;
    case UINT:
        kind = bits == 8 ? FERRY_U8 : bits == 16 ? FERRY_U16 : bits == 32 ? FERRY_U32 : FERRY_U64;
        break;
    case FLOAT:
        kind = bits == 16 ? FERRY_F16 : bits == 32 ? FERRY_F32 : bits == 64 ? FERRY_F64 : kind;
        break;
    case BFLOAT:
        kind = FERRY_BF16;
        break;
    case COMPLEX:
        kind = bits == 64 ? FERRY_C64 : kind;
        break;
    case BOOL:
        kind = FERRY_BOOL;
        break;
    case FLOAT8_E4M3FN:
        kind = FERRY_F8E4M3;
        break;
    case FLOAT8_E5M2:
        kind = FERRY_F8E5M2;
        break;
    case FLOAT8_E8M0FNU:
        kind = FERRY_F8E8M0;
        break;
    default:
        break;
    }
    return (ferry_dtype){kind, bits};
}

static bool read_dlpack(const dl_tensor *tensor, const char *name, fp_view *view)
{
    if (tensor->device_type != DL_CPU && tensor->device_type != DL_CUDA_HOST) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED,
                        "%s is on a device (DLPack type %d, number %d), and this version moves "
                        "host memory only: copy it to the host and back",
                        CALLED(name), (int)tensor->device_type, (int)tensor->device_id);
        return false;
    }
    if (!check_dims(tensor->n_dims, name)) {
        return false;
    }
    view->base   = (char *)tensor->data + tensor->byte_offset;
    view->dtype  = dtype_of_dlpack(tensor);
    view->n_dims = (uint32_t)tensor->n_dims;
    if (view->dtype.element_bits % 8 != 0) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED, "%s has elements of %u bits: view it as bytes",
                        CALLED(name), view->dtype.element_bits);
        return false;
    }
    int64_t step = (int64_t)(view->dtype.element_bits / 8);
    for (uint32_t d = view->n_dims; d-- > 0;) {
        int64_t width = (int64_t)(view->dtype.element_bits / 8);
        int64_t own   = tensor->strides == NULL ? step : tensor->strides[d] * width;
        if (!set_dim(view, d, (uint64_t)tensor->shape[d], own, name)) {
            return false;
        }
        step *= tensor->shape[d];
    }
    return finish(view, name);
}

/* torch */

static PyObject *torch_names[9]; /* what is asked of every tensor, as str objects */
enum { DATA_PTR, SHAPE, STRIDE, DTYPE, IS_CPU, DEVICE, NBYTES, IS_NEG, IS_CONJ };

/*
 * torch's own types, whose tensors describe themselves in one call (torch 2.10 and later): ten
 * times as quick as asking for attributes. Subclasses may mean something else by their memory.
 */
static PyObject *plain_types[2];
static int (*describe_plain)(void *object, dl_tensor *out);

static void find_description(PyObject *torch, PyObject *type)
{
    PyObject          *nn       = PyObject_GetAttrString(torch, "nn");
    PyObject          *capsule  = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
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
    static const char *const words[] = {"data_ptr", "shape",  "stride", "dtype",  "is_cpu",
                                        "device",   "nbytes", "is_neg", "is_conj"};
    PyObject                *modules = PyImport_GetModuleDict();
    PyObject                *torch   = PyDict_GetItemString(modules, "torch");
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

static bool is_torch(PyObject *object)
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
                            CALLED(name));
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
    bool      yes   = value == Py_True;
    Py_XDECREF(value);
    PyErr_Clear();
    return yes;
}

static bool torch_on_host(PyObject *tensor, const char *name)
{
    if (PyObject_HasAttrString(tensor, "placements") &&
        PyObject_HasAttrString(tensor, "to_local")) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is a DTensor, of which this process holds a part: give its to_local(), "
                        "or use ferry.adapters.torch, which knows placements",
                        CALLED(name));
        return false;
    }
    if (is_true(tensor, torch_names[IS_CPU])) {
        return true;
    }
    PyObject *device = PyObject_GetAttr(tensor, torch_names[DEVICE]);
    PyObject *text   = device == NULL ? NULL : PyObject_Str(device);
    PyObject *bytes  = text == NULL ? NULL : PyUnicode_AsUTF8String(text);
    if (bytes != NULL) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED,
                        "%s is on device %s, and this version moves host memory only: copy it "
                        "with .cpu() and back",
                        CALLED(name), PyBytes_AsString(bytes));
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
    bool    good  = stride != NULL && check_dims(PyTuple_Size(shape), name);
    int64_t width = (int64_t)(view->dtype.element_bits / 8);
    if (good) {
        view->n_dims = (uint32_t)PyTuple_Size(shape);
    }
    for (uint32_t d = 0; good && d < view->n_dims; d++) {
        long long length = PyLong_AsLongLong(PyTuple_GetItem(shape, (Py_ssize_t)d));
        long long step   = PyLong_AsLongLong(PyTuple_GetItem(stride, (Py_ssize_t)d));
        good = !PyErr_Occurred() && set_dim(view, d, (uint64_t)length, step * width, name);
    }
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    return good && finish(view, name);
}

/* A dtype that ferry has no name for is so many bytes. */
static bool torch_dtype(PyObject *tensor, ferry_dtype *dtype_out)
{
    PyObject *dtype = PyObject_GetAttr(tensor, torch_names[DTYPE]);
    bool      good  = dtype != NULL && fp_dtype_of(dtype, dtype_out);
    if (!good && dtype != NULL) {
        PyErr_Clear();
        PyObject *width = PyObject_GetAttrString(dtype, "itemsize");
        *dtype_out      = (ferry_dtype){FERRY_BYTES, 0};
        if (width != NULL) {
            dtype_out->element_bits = (uint32_t)PyLong_AsUnsignedLong(width) * 8;
        }
        good = width != NULL && !PyErr_Occurred();
        Py_XDECREF(width);
    }
    Py_XDECREF(dtype);
    return good;
}

static bool ask(PyObject *tensor, PyObject *method)
{
    PyObject *answer = PyObject_CallMethodObjArgs(tensor, method, NULL);
    bool      yes    = answer == Py_True;
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
    bool     real = (kind == FERRY_F16 || kind == FERRY_F32 || kind == FERRY_F64) &&
                (!view->is_contiguous || view->bytes <= view->dtype.element_bits / 8);
    bool neg  = real && ask(tensor, torch_names[IS_NEG]);
    bool conj = (kind == FERRY_C64 || kind == FERRY_BYTES) && ask(tensor, torch_names[IS_CONJ]);
    if (neg || conj) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is a view whose values are not those in memory: call %s() on it first",
                        CALLED(name), neg ? "resolve_neg" : "resolve_conj");
    }
    return !neg && !conj;
}

static bool view_attributes(PyObject *tensor, const char *name, fp_view *view)
{
    return torch_dtype(tensor, &view->dtype) && torch_on_host(tensor, name) &&
           torch_pointer(tensor, name, &view->base) && torch_dims(tensor, view, name);
}

static bool view_torch(PyObject *tensor, const char *name, fp_view *view)
{
    view->source = FP_SOURCE_TORCH;
    dl_tensor plain;
    if (describes_itself(tensor) && describe_plain(tensor, &plain) == 0) {
        if (!read_dlpack(&plain, name, view)) {
            return false;
        }
    } else {
        PyErr_Clear(); /* attributes tell why there is no description */
        if (!view_attributes(tensor, name, view)) {
            return false;
        }
    }
    if (view->base == NULL && view->bytes != 0) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s has a shape, but its memory was freed: allocate it again",
                        CALLED(name));
        return false;
    }
    return torch_has_values(tensor, view, name);
}

/* The buffer protocol. */

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

/* 1: a view; 0: the object has no buffer; -1: an exception. */
static int view_buffer(PyObject *object, const char *name, bool writable, fp_view *view)
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
                            CALLED(name));
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
            CALLED(name));
        return -1;
    }
    if (!check_dims(held->ndim, name)) {
        return -1;
    }
    view->n_dims = (uint32_t)held->ndim;
    int64_t step = held->itemsize;
    for (uint32_t d = view->n_dims; d-- > 0;) { /* ctypes leaves strides out: row-major */
        int64_t own = held->strides == NULL ? step : held->strides[d];
        if (!set_dim(view, d, (uint64_t)held->shape[d], own, name)) {
            return -1;
        }
        step *= held->shape[d];
    }
    return finish(view, name) ? 1 : -1;
}

/* DLPack's objects. */

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
        if (PyErr_Occurred() || !set_dim(view, d, (uint64_t)length, own, name)) {
            return false;
        }
        step *= length;
    }
    return finish(view, name);
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
        !interface_dtype(object, &view->dtype) || !check_dims(PyTuple_Size(shape), name)) {
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
                        "%s is read-only: what is received needs memory to write to", CALLED(name));
        return false;
    }
    return interface_dims(shape, has_strides ? strides : NULL, view, name);
}

/* 1, 0 or -1, as view_buffer. */
static int view_interface(PyObject *object, const char *name, bool writable, fp_view *view)
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

/* 1, 0 or -1, as view_buffer. */
static int view_dlpack(PyObject *object, const char *name, fp_view *view)
{
    if (!PyObject_HasAttrString(object, "__dlpack__")) {
        return 0;
    }
    PyObject *capsule = PyObject_CallMethod(object, "__dlpack__", NULL);
    if (capsule == NULL) {
        return -1;
    }
    view->source = FP_SOURCE_DLPACK;
    view->held   = capsule; /* its destructor gives the tensor back: it is never renamed */
    const dl_tensor *tensor = PyCapsule_GetPointer(capsule, "dltensor");
    return tensor != NULL && read_dlpack(tensor, name, view) ? 1 : -1;
}

/* All of them. */

static bool view_pointer(PyObject *number, uint64_t bytes, fp_view *view)
{
    view->source = FP_SOURCE_POINTER;
    view->base   = PyLong_AsVoidPtr(number);
    if (view->base == NULL) {
        if (!PyErr_Occurred()) {
            fp_raise(FERRY_ERR_INVALID_INPUT, "a tensor is given as the pointer 0");
        }
        return false;
    }
    ferry_dtype_of(FERRY_U8, &view->dtype, NULL);
    view->n_dims        = 1;
    view->shape[0]      = bytes;
    view->stride[0]     = 1;
    view->bytes         = bytes;
    view->is_contiguous = true;
    return true;
}

static bool fail_type(PyObject *object, const char *name)
{
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    PyObject *text = type == NULL ? NULL : PyUnicode_AsUTF8String(type);
    if (text != NULL) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is of type %s: give a torch tensor, an object with the buffer protocol "
                        "or DLPack, or a pointer as int",
                        CALLED(name), PyBytes_AsString(text));
    }
    Py_XDECREF(text);
    Py_XDECREF(type);
    return false;
}

static bool view_any(PyObject *object, const char *name, bool writable, uint64_t pointer_bytes,
                     fp_view *view)
{
    if (is_torch(object)) {
        return view_torch(object, name, view);
    }
    if (PyLong_Check(object) && !PyBool_Check(object)) {
        return view_pointer(object, pointer_bytes, view);
    }
    int seen = view_buffer(object, name, writable, view);
    seen     = seen == 0 ? view_interface(object, name, writable, view) : seen;
    seen     = seen == 0 ? view_dlpack(object, name, view) : seen;
    return seen > 0 || (seen == 0 && fail_type(object, name));
}

/*
 * Distinct elements at distinct places: with dims in order of rising strides, each stride must
 * pass what the dims below it span.
 */
static bool has_overlap(const fp_view *view)
{
    uint32_t order[FERRY_MAX_DIMS];
    for (uint32_t d = 0; d < view->n_dims; d++) {
        uint32_t at = d;
        for (; at > 0 && view->stride[order[at - 1]] > view->stride[d]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = d;
    }
    uint64_t span = view->dtype.element_bits / 8;
    for (uint32_t i = 0; i < view->n_dims; i++) {
        uint32_t d = order[i];
        if (view->shape[d] > 1) {
            if (view->stride[d] < span) {
                return true;
            }
            span += view->stride[d] * (view->shape[d] - 1);
        }
    }
    return false;
}

bool fp_view_of(PyObject *object, const char *name, bool writable, uint64_t pointer_bytes,
                fp_view *view_out)
{
    *view_out = (fp_view)FP_VIEW_INIT;
    Py_INCREF(object);
    view_out->owner = object;
    bool good       = view_any(object, name, writable, pointer_bytes, view_out);
    if (good && !view_out->is_contiguous && has_overlap(view_out)) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s has strides by which elements share memory: make it contiguous first",
                        CALLED(name));
        good = false;
    }
    if (!good) {
        fp_view_clear(view_out);
    }
    return good;
}

void fp_view_clear(fp_view *view)
{
    if (view->held != NULL && view->source == FP_SOURCE_BUFFER) {
        release_buffer(view->held);
        free(view->held);
    } else if (view->held != NULL) {
        Py_DECREF((PyObject *)view->held);
    }
    view->held = NULL;
    Py_CLEAR(view->owner);
}

/* Where a torch tensor's elements are now, and how many bytes they have. */
static bool locate(PyObject *tensor, const char *name, char **base_out, uint64_t *bytes_out)
{
    dl_tensor plain;
    if (describes_itself(tensor) && describe_plain(tensor, &plain) == 0) {
        uint64_t bytes = (uint64_t)plain.bits * plain.lanes / 8;
        for (int32_t d = 0; d < plain.n_dims; d++) {
            bytes *= (uint64_t)plain.shape[d];
        }
        *base_out  = (char *)plain.data + plain.byte_offset;
        *bytes_out = bytes;
        return true;
    }
    PyErr_Clear();
    if (!torch_pointer(tensor, name, base_out)) {
        return false;
    }
    PyObject *number = PyObject_GetAttr(tensor, torch_names[NBYTES]);
    *bytes_out       = number == NULL ? 0 : PyLong_AsUnsignedLongLong(number);
    Py_XDECREF(number);
    return !PyErr_Occurred();
}

bool fp_view_check(const fp_view *view, const char *name)
{
    char    *base;
    uint64_t bytes;
    if (view->source != FP_SOURCE_TORCH) {
        return true; /* the exporter keeps the memory, or the caller has promised to */
    }
    if (!locate(view->owner, name, &base, &bytes)) {
        return false;
    }
    if (base != view->base || bytes != view->bytes) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s was moved or resized since it was registered (%llu bytes at %p, now "
                        "%llu at %p): register it again, or rebind it",
                        CALLED(name), (unsigned long long)view->bytes, (void *)view->base,
                        (unsigned long long)bytes, (void *)base);
        return false;
    }
    return true;
}

void fp_view_box(const fp_view *view, ferry_box *box_out)
{
    *box_out               = (ferry_box)FERRY_BOX_INIT;
    uint64_t element_bytes = view->dtype.element_bits / 8;
    uint64_t extent        = view->bytes == 0 ? 0 : element_bytes;
    box_out->element_bytes = element_bytes;
    box_out->n_dims        = view->n_dims;
    for (uint32_t d = 0; d < view->n_dims; d++) {
        box_out->length[d] = view->shape[d];
        box_out->stride[d] = view->stride[d];
        if (view->bytes != 0) {
            extent += view->stride[d] * (view->shape[d] - 1);
        }
    }
    box_out->buffer = ferry_buffer_of(view->base, extent);
}
