/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

const char *fp_view_called(const char *name, char text[160])
{
    if (name == NULL) {
        return "a tensor";
    }
    PyOS_snprintf(text, 160, "tensor \"%.140s\"", name);
    return text;
}

/* Shapes. */

bool fp_view_set_dim(fp_view *view, uint32_t at, int64_t length, int64_t stride, const char *name)
{
    if (length < 0) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s says that dim %u has %lld elements",
                        FP_CALLED(name), at, (long long)length);
        return false;
    }
    view->shape[at] = (uint64_t)length;
    if (length > 1 && stride <= 0) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s has stride %lld in dim %u: ferry copies from and to memory where each "
                        "element has its own place in rising order; make it contiguous first",
                        FP_CALLED(name), (long long)stride, at);
        return false;
    }
    view->stride[at] = (uint64_t)(stride < 0 ? 0 : stride);
    return true;
}

bool fp_view_finish(fp_view *view, const char *name)
{
    uint64_t element_bytes = view->dtype.element_bits / 8;
    uint64_t expected = element_bytes;
    view->is_contiguous = true;
    for (uint32_t d = view->n_dims; d-- > 0;) {
        uint64_t length = view->shape[d];
        if (length <= 1) {
            view->stride[d] = expected;
        }
        view->is_contiguous = view->is_contiguous && view->stride[d] == expected;
        if (length != 0 && expected > UINT64_MAX / length) {
            fp_raise_format(FERRY_ERR_LIMIT, "%s has more than 2^64 bytes", FP_CALLED(name));
            return false;
        }
        expected *= length;
    }
    view->bytes = expected;
    view->is_contiguous = view->is_contiguous || expected == 0;
    return true;
}

bool fp_view_check_dims(Py_ssize_t n_dims, const char *name)
{
    if (n_dims >= 0 && n_dims <= FERRY_MAX_DIMS) {
        return true;
    }
    fp_raise_format(FERRY_ERR_LIMIT, "%s has %zd dims, and ferry takes %d: view it with fewer",
                    FP_CALLED(name), n_dims, FERRY_MAX_DIMS);
    return false;
}

/* All of them. */

static bool view_pointer(PyObject *number, uint64_t bytes, fp_view *view)
{
    view->source = FP_SOURCE_POINTER;
    view->base = PyLong_AsVoidPtr(number);
    if (view->base == NULL) {
        if (!PyErr_Occurred()) {
            fp_raise(FERRY_ERR_INVALID_INPUT, "a tensor is given as the pointer 0");
        }
        return false;
    }
    ferry_buffer found;
    if (ferry_memory_query(view->base, &found, NULL) == FERRY_OK) { /* of kinds that were used */
        view->space = (fp_space){.kind = found.kind, .device = found.device};
    }
    ferry_dtype_of(FERRY_U8, &view->dtype, NULL);
    view->n_dims = 1;
    view->shape[0] = bytes;
    view->stride[0] = 1;
    view->bytes = bytes;
    view->is_contiguous = true;
    return true;
}

static bool fail_type(PyObject *object, const char *name)
{
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    PyObject *text = type == NULL ? NULL : PyUnicode_AsUTF8String(type);
    if (text != NULL) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is of type %s, whose memory cannot be found: give a torch tensor, an "
                        "object with the buffer protocol, DLPack or __cuda_array_interface__, or a "
                        "pointer as int",
                        FP_CALLED(name), PyBytes_AsString(text));
    }
    Py_XDECREF(text);
    Py_XDECREF(type);
    return false;
}

static bool view_any(PyObject *object, const char *name, bool writable, uint64_t pointer_bytes,
                     fp_view *view)
{
    if (fp_is_torch(object)) {
        return fp_view_torch(object, name, view);
    }
    if (PyLong_Check(object) && !PyBool_Check(object)) {
        return view_pointer(object, pointer_bytes, view);
    }
    int seen = fp_view_buffer(object, name, writable, view);
    seen = seen == 0 ? fp_view_interface(object, name, writable, view) : seen;
    seen = seen == 0 ? fp_view_cuda(object, name, writable, view) : seen;
    seen = seen == 0 ? fp_view_dlpack(object, name, writable, view) : seen;
    return seen > 0;
}

/* What an object's own methods raise, as a sentence with the tensor's name; the cause is kept. */
static void fail_otherwise(PyObject *object, const char *name)
{
    PyObject *type, *value, *trace, *own_type, *own, *own_trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (fp_is_error(type) || !PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
        PyErr_Restore(type, value, trace);
        return;
    }
    fail_type(object, name);
    PyErr_Fetch(&own_type, &own, &own_trace);
    PyErr_NormalizeException(&own_type, &own, &own_trace);
    if (own != NULL) {
        PyException_SetCause(own, value); /* takes the reference */
        value = NULL;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Restore(own_type, own, own_trace);
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
    bool good = view_any(object, name, writable, pointer_bytes, view_out);
    if (!good && !PyErr_Occurred()) {
        fail_type(object, name);
    } else if (!good) {
        fail_otherwise(object, name);
    }
    if (good && !view_out->is_contiguous && has_overlap(view_out)) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s has strides by which elements share memory: make it contiguous first",
                        FP_CALLED(name));
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
        fp_buffer_release(view->held);
    } else if (view->held != NULL) {
        Py_DECREF((PyObject *)view->held);
    }
    view->held = NULL;
    Py_CLEAR(view->raw);
    Py_CLEAR(view->owner);
}

/* What it is now. The owner is borrowed: nothing is held. False with an exception. */
static bool look_again(const fp_view *view, const char *name, fp_view *now_out)
{
    *now_out = (fp_view)FP_VIEW_INIT;
    bool good = view->source == FP_SOURCE_TORCH  ? fp_view_torch(view->owner, name, now_out)
                : view->source == FP_SOURCE_CUDA ? fp_view_cuda(view->owner, name, false, now_out) >= 0
                                                 : fp_buffer_again(view, name, now_out);
    Py_CLEAR(now_out->raw);
    return good;
}

bool fp_view_check(const fp_view *view, uint64_t layout, const char *name)
{
    fp_view now;
    if (view->source == FP_SOURCE_DLPACK || view->source == FP_SOURCE_POINTER) {
        return true; /* the capsule keeps the memory, or the caller has promised to */
    }
    if (!look_again(view, name, &now)) {
        return false;
    }
    if (now.base != view->base || now.bytes != view->bytes) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s was moved or resized since it was registered (%llu bytes at %p, now "
                        "%llu at %p): register it again, or rebind it",
                        FP_CALLED(name), (unsigned long long)view->bytes, (void *)view->base,
                        (unsigned long long)now.bytes, (void *)now.base);
        return false;
    }
    if (fp_view_layout(&now) != layout) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s has another shape, other strides or another dtype than when it was "
                        "registered: register it again",
                        FP_CALLED(name));
        return false;
    }
    return true;
}

uint64_t fp_view_layout(const fp_view *view)
{
    uint64_t hash = (uint64_t)view->dtype.kind << 32 | view->dtype.element_bits;
    for (uint32_t d = 0; d < view->n_dims; d++) {
        hash = (hash ^ view->shape[d]) * UINT64_C(0x9e3779b97f4a7c15);
        hash = (hash ^ hash >> 29 ^ view->stride[d]) * UINT64_C(0xbf58476d1ce4e5b9);
    }
    return hash ^ hash >> 31;
}

/* place_of(tensor, name) -> (address, bytes, layout): equal as long as it is where it was. */
static PyObject *place_of(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tensor;
    const char *name;
    fp_view view;
    if (!PyArg_ParseTuple(args, "Oz", &tensor, &name) ||
        !fp_view_of(tensor, name, false, 0, &view)) {
        return NULL;
    }
    PyObject *place =
        Py_BuildValue("KKK", (unsigned long long)(uintptr_t)view.base,
                      (unsigned long long)view.bytes, (unsigned long long)fp_view_layout(&view));
    fp_view_clear(&view);
    return place;
}

/* view_of(tensor, name, writable) -> (shape, dtype, bytes, is_contiguous) */
static PyObject *view_of(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tensor;
    const char *name;
    int writable;
    fp_view view;
    if (!PyArg_ParseTuple(args, "Ozp", &tensor, &name, &writable) ||
        !fp_view_of(tensor, name, writable != 0, 0, &view)) {
        return NULL;
    }
    PyObject *seen = NULL;
    PyObject *dtype =
        view.raw != NULL ? (Py_INCREF(view.raw), view.raw) : fp_dtype_name(view.dtype);
    PyObject *shape = dtype == NULL ? NULL : fp_u64_tuple(view.shape, view.n_dims);
    if (shape != NULL) {
        seen = Py_BuildValue("OOKO", shape, dtype, (unsigned long long)view.bytes,
                             view.is_contiguous ? Py_True : Py_False);
    }
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    fp_view_clear(&view);
    return seen;
}

bool fp_add_view(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"view_of", view_of, METH_VARARGS,
         FP_DOC("view_of($module, tensor, name, writable, /)",
                "What a tensor is: shape, dtype, bytes, contiguous.")},
        {"place_of", place_of, METH_VARARGS,
         FP_DOC("place_of($module, tensor, name, /)", "Where a tensor is, and how it lies there.")},
        {NULL, NULL, 0, NULL},
    };
    return fp_add_functions(module, functions);
}

void fp_view_box(const fp_view *view, ferry_box *box_out)
{
    *box_out = (ferry_box)FERRY_BOX_INIT;
    uint64_t element_bytes = view->dtype.element_bits / 8;
    uint64_t extent = view->bytes == 0 ? 0 : element_bytes;
    box_out->element_bytes = element_bytes;
    box_out->n_dims = view->n_dims;
    for (uint32_t d = 0; d < view->n_dims; d++) {
        box_out->length[d] = view->shape[d];
        box_out->stride[d] = view->stride[d];
        if (view->bytes != 0) {
            extent += view->stride[d] * (view->shape[d] - 1);
        }
    }
    box_out->buffer = ferry_buffer_of(view->base, extent);
    box_out->buffer.kind = view->space.kind;
    box_out->buffer.device = view->space.device;
}
