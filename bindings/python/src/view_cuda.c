/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory of CUDA devices: what objects say of theirs, and the streams that are waited for. */
#include "view.h"

#include <stdlib.h>
#include <string.h>

static bool fail_device(const fp_view *view, int device, const ferry_buffer *found,
                        const char *name)
{
    if (found->kind != FERRY_MEMORY_CUDA) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s says that its memory at %p is a GPU's, and the CUDA driver knows none "
                        "there: was it freed, or is it the host's?",
                        FP_CALLED(name), (void *)view->base);
    } else {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s says that its memory at %p is of CUDA device %d, and it is of device "
                        "%d",
                        FP_CALLED(name), (void *)view->base, device, (int)found->device);
    }
    return false;
}

bool fp_view_on_cuda(fp_view *view, int device, const char *name)
{
    uint32_t n_devices = 0;
    const char *why_not = "";
    ferry_buffer found;
    (void)ferry_memory_kind_at(FERRY_MEMORY_CUDA, NULL, NULL, &n_devices, &why_not, NULL);
    if (n_devices == 0) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED,
                        "%s is in the memory of a GPU, which cannot be used here (%.500s): copy it "
                        "to the host, and what comes there back",
                        FP_CALLED(name), why_not);
        return false;
    }
    view->space.kind = FERRY_MEMORY_CUDA;
    view->space.device = device < 0 ? 0 : device;
    if (view->base == NULL || view->bytes == 0) {
        return true;
    }
    ferry_error error;
    ferry_status status = ferry_memory_query(view->base, &found, &error);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
        return false;
    }
    if (found.kind != FERRY_MEMORY_CUDA || (device >= 0 && found.device != device)) {
        return fail_device(view, device, &found, name);
    }
    view->space.device = found.device;
    return true;
}

/*
 * __cuda_array_interface__
 */

/* Of "<f4"; 0: none that ferry has a name for. */
static uint32_t kind_of(const char *type, long bytes)
{
    static const struct {
        char letter;
        uint8_t bytes;
        uint32_t kind;
    } kinds[] = {{'f', 2, FERRY_F16}, {'f', 4, FERRY_F32}, {'f', 8, FERRY_F64},
                 {'i', 1, FERRY_I8},  {'i', 2, FERRY_I16}, {'i', 4, FERRY_I32},
                 {'i', 8, FERRY_I64}, {'u', 1, FERRY_U8},  {'u', 2, FERRY_U16},
                 {'u', 4, FERRY_U32}, {'u', 8, FERRY_U64}, {'b', 1, FERRY_BOOL},
                 {'c', 8, FERRY_C64}};
    for (size_t i = 0; type[0] != '>' && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].letter == type[1] && kinds[i].bytes == bytes) {
            return kinds[i].kind;
        }
    }
    return 0;
}

/* What has no letter is a dtype that its library knows, as bfloat16, or so many bytes. */
static bool set_dtype(PyObject *object, PyObject *type, fp_view *view)
{
    PyObject *bytes = PyUnicode_AsUTF8String(type);
    const char *text = bytes == NULL ? "" : PyBytes_AsString(bytes);
    long width = strlen(text) < 3 ? 0 : strtol(text + 2, NULL, 10);
    bool good = width > 0 && width < INT32_MAX / 8 && text[1] != 'O';
    uint32_t kind = good ? kind_of(text, width) : 0;
    if (kind != 0) {
        good = ferry_dtype_of(kind, &view->dtype, NULL) == FERRY_OK;
    } else if (good) {
        PyObject *dtype = PyObject_GetAttrString(object, "dtype");
        bool is_known = dtype != NULL && fp_dtype_of(dtype, &view->dtype) &&
                        view->dtype.element_bits == 8 * (uint32_t)width;
        PyErr_Clear();
        if (!is_known) {
            view->dtype = (ferry_dtype){FERRY_BYTES, (uint32_t)width * 8};
            view->raw = dtype != NULL ? fp_dtype_raw(dtype) : NULL;
            PyErr_Clear();
            view->raw = view->raw != NULL ? view->raw : (Py_INCREF(type), type);
        }
        Py_XDECREF(dtype);
    }
    Py_XDECREF(bytes);
    return good;
}

/* None: there is nothing to wait for. 0 means several streams, and is not allowed. */
static bool set_stream(PyObject *stream, const char *name, fp_view *view)
{
    if (stream == NULL || stream == Py_None) {
        return true;
    }
    view->space.stream = PyLong_AsVoidPtr(stream);
    if (view->space.stream == NULL && !PyErr_Occurred()) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s names stream 0 in its __cuda_array_interface__, which may be two: 1 is "
                        "the legacy one, 2 the thread's",
                        FP_CALLED(name));
    }
    return view->space.stream != NULL;
}

static bool read_described(PyObject *object, PyObject *described, const char *name, bool writable,
                           fp_view *view)
{
    PyObject *data = PyDict_GetItemString(described, "data");
    PyObject *shape = PyDict_GetItemString(described, "shape");
    PyObject *strides = PyDict_GetItemString(described, "strides");
    PyObject *type = PyDict_GetItemString(described, "typestr");
    PyObject *mask = PyDict_GetItemString(described, "mask");
    bool has_strides = strides != NULL && strides != Py_None;
    if (data == NULL || shape == NULL || type == NULL || !PyTuple_Check(data) ||
        PyTuple_Size(data) != 2 || !PyLong_Check(PyTuple_GetItem(data, 0)) ||
        !PyTuple_Check(shape) || !PyUnicode_Check(type) || (mask != NULL && mask != Py_None) ||
        (has_strides &&
         (!PyTuple_Check(strides) || PyTuple_Size(strides) != PyTuple_Size(shape))) ||
        !set_dtype(object, type, view) || !fp_view_check_dims(PyTuple_Size(shape), name)) {
        return false;
    }
    view->source = FP_SOURCE_CUDA;
    view->base = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
    view->is_readonly = PyObject_IsTrue(PyTuple_GetItem(data, 1)) != 0;
    if (PyErr_Occurred() || !fp_view_set_dims(shape, has_strides ? strides : NULL, name, view) ||
        !set_stream(PyDict_GetItemString(described, "stream"), name, view)) {
        return false;
    }
    if (view->is_readonly && writable) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s is read-only: what is received needs memory to write to",
                        FP_CALLED(name));
        return false;
    }
    return (view->base != NULL || view->bytes == 0) && fp_view_on_cuda(view, -1, name);
}

int fp_view_cuda(PyObject *object, const char *name, bool writable, fp_view *view)
{
    PyObject *described = PyObject_GetAttrString(object, "__cuda_array_interface__");
    if (described == NULL || !PyDict_Check(described)) {
        PyErr_Clear();
        Py_XDECREF(described);
        return 0;
    }
    bool good = read_described(object, described, name, writable, view);
    Py_DECREF(described);
    if (!good && !PyErr_Occurred()) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%s has a __cuda_array_interface__ that cannot be read: it needs data, "
                        "shape and typestr, and no mask",
                        FP_CALLED(name));
    }
    return good ? 1 : -1;
}

/*
 * Waiting
 */

/* All that is on a stream so far: a queue that adopts it and ends has waited for it. */
static bool await_stream(fp_space space)
{
    ferry_queue *queue = NULL;
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_queue_adopt((ferry_memory_kind)space.kind, space.device,
                                            space.stream, &queue, &error);
    if (status == FERRY_OK) {
        ferry_event *event = NULL; /* which fails where the device has */
        status = ferry_event_create(&event, &error);
        status = status == FERRY_OK ? ferry_event_record(event, queue, &error) : status;
        status = status == FERRY_OK ? ferry_event_synchronize(event, &error) : status;
        ferry_event_destroy(event);
    }
    ferry_queue_destroy(queue);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

/* torch knows its own: it may have made none yet. */
static bool await_torch(int device)
{
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    PyObject *cuda = torch == NULL ? NULL : PyObject_GetAttrString(torch, "cuda");
    PyObject *stream =
        cuda == NULL ? NULL : PyObject_CallMethod(cuda, "current_stream", "i", device);
    PyObject *done = stream == NULL ? NULL : PyObject_CallMethod(stream, "synchronize", NULL);
    bool good = torch == NULL || done != NULL;
    Py_XDECREF(done);
    Py_XDECREF(stream);
    Py_XDECREF(cuda);
    return good;
}

bool fp_space_await(fp_space space, fp_source source)
{
    if (space.kind != FERRY_MEMORY_CUDA) {
        return true;
    }
    return source == FP_SOURCE_TORCH ? await_torch(space.device)
           : space.stream != NULL    ? await_stream(space)
                                     : true;
}
