/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of devices, and events. The library finds out by itself what is no queue any more and what
 * another process has made, and lets any thread use one: so nothing is guarded here.
 */
#include "queue.h"

#include <string.h>

typedef struct fp_queue {
    PyObject_HEAD
    ferry_queue *queue; /* kept when it is closed: the library knows */
    bool is_closed;
} fp_queue;

typedef struct fp_event {
    PyObject_HEAD
    ferry_event *event;
} fp_event;

static PyTypeObject *queue_type, *event_type;

static PyObject *ended(ferry_status status, const ferry_error *error)
{
    return status == FERRY_OK ? (Py_INCREF(Py_None), Py_None) : fp_raise(status, error->message);
}

bool fp_queue_of(PyObject *object, ferry_queue **queue_out)
{
    *queue_out = NULL;
    if (object == NULL || object == Py_None) {
        return true;
    }
    if (!PyObject_TypeCheck(object, queue_type)) {
        PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
        if (name != NULL) {
            PyErr_Format(PyExc_TypeError, "a queue is a ferry.Queue, a stream of CUDA or None, not %U", name);
            Py_DECREF(name);
        }
        return false;
    }
    *queue_out = ((fp_queue *)object)->queue;
    return true;
}

/* The handle that a stream has; *native_out is NULL, without an exception, where it is none. */
static bool stream_handle(PyObject *object, void **native_out)
{
    PyObject *pair = PyObject_CallMethod(object, "__cuda_stream__", NULL);
    PyObject *number = NULL;
    *native_out = NULL;
    if (pair != NULL && PyTuple_Check(pair) && PyTuple_Size(pair) == 2) {
        number = PyTuple_GetItem(pair, 1); /* behind the protocol's version */
        Py_XINCREF(number);
    }
    PyErr_Clear();
    if (number == NULL) {
        number = PyObject_GetAttrString(object, "cuda_stream");
        PyErr_Clear();
    }
    if (number != NULL && PyLong_Check(number)) {
        *native_out = PyLong_AsVoidPtr(number);
        if (*native_out == NULL && !PyErr_Occurred()) {
            *native_out = (void *)(uintptr_t)1; /* the default stream, by its name */
        }
    }
    Py_XDECREF(number);
    Py_XDECREF(pair);
    return !PyErr_Occurred();
}

/* A device of torch has an index, one of cuda.core an id; 0 where there is neither. */
static int stream_device(PyObject *object)
{
    static const char *const names[] = {"index", "device_id"};
    PyObject *device = PyObject_GetAttrString(object, "device");
    long number = 0;
    PyErr_Clear();
    for (size_t i = 0; device != NULL && i < sizeof names / sizeof names[0]; i++) {
        PyObject *value = PyObject_GetAttrString(device, names[i]);
        if (value != NULL && PyLong_Check(value)) {
            number = PyLong_AsLong(value);
        }
        Py_XDECREF(value);
        PyErr_Clear();
    }
    Py_XDECREF(device);
    return (int)number;
}

PyObject *fp_queue_from(PyObject *object)
{
    void *native;
    if (object == Py_None || PyObject_TypeCheck(object, queue_type)) {
        Py_INCREF(object);
        return object;
    }
    if (!stream_handle(object, &native)) {
        return NULL;
    }
    if (native == NULL) { /* refused by its type when it is used */
        Py_INCREF(object);
        return object;
    }
    PyObject *made = NULL;
    PyObject *args = Py_BuildValue("(si)", "cuda", stream_device(object));
    PyObject *handle = args == NULL ? NULL : PyLong_FromVoidPtr(native);
    PyObject *kwargs = handle == NULL ? NULL : Py_BuildValue("{sO}", "native", handle);
    if (kwargs != NULL) {
        made = PyObject_Call((PyObject *)queue_type, args, kwargs);
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(handle);
    Py_XDECREF(args);
    return made;
}

/* False with an exception. */
static bool ask_capture(PyObject *queue, bool *is_captured_out)
{
    ferry_error error;
    if (!PyObject_TypeCheck(queue, queue_type) || ((fp_queue *)queue)->is_closed) {
        return true; /* which the call refuses, or None */
    }
    ferry_status status =
        ferry_queue_is_captured(((fp_queue *)queue)->queue, is_captured_out, &error);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

PyObject *fp_queue_for_call(PyObject *object, bool *is_captured_out)
{
    PyObject *queue = fp_queue_from(object);
    *is_captured_out = false;
    if (queue != NULL && !ask_capture(queue, is_captured_out)) {
        Py_CLEAR(queue);
    }
    if (queue == NULL || queue == object || *is_captured_out) {
        return queue;
    }
    ferry_event *event = NULL;
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_event_create(&event, &error);
    if (status == FERRY_OK) {
        status = ferry_event_record(event, ((fp_queue *)queue)->queue, &error);
    }
    if (status == FERRY_OK) {
        status = ferry_event_synchronize(event, &error);
    }
    ferry_event_destroy(event);
    PyEval_RestoreThread(thread);
    Py_DECREF(queue);
    return ended(status, &error);
}

/* A name, "far", to the number of a kind; false with an exception. */
static bool kind_of(PyObject *name, ferry_memory_kind *kind_out)
{
    for (size_t i = 0; i < ferry_memory_kind_count(); i++) {
        const char *its;
        if (ferry_memory_kind_at(i, &its, NULL, NULL, NULL, NULL) == FERRY_OK &&
            PyUnicode_CompareWithASCIIString(name, its) == 0) {
            *kind_out = (ferry_memory_kind)i;
            return true;
        }
    }
    PyObject *shown = PyObject_ASCII(name); /* it may have bytes that no sentence can have */
    PyObject *bytes = shown == NULL ? NULL : PyUnicode_AsUTF8String(shown);
    if (bytes != NULL) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "%.100s is no kind of memory: `ferry info` lists them",
                        PyBytes_AsString(bytes));
    }
    Py_XDECREF(shown);
    Py_XDECREF(bytes);
    return false;
}

static const char *name_of(ferry_memory_kind kind)
{
    const char *name = "";
    ferry_memory_kind_at(kind, &name, NULL, NULL, NULL, NULL);
    return name;
}

static bool native_of(PyObject *object, void **native_out)
{
    *native_out = object == Py_None ? NULL : PyLong_AsVoidPtr(object);
    if (*native_out == NULL && object != Py_None && !PyErr_Occurred()) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "a native handle is a number that is not 0");
    }
    return !PyErr_Occurred();
}

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "device", "native", NULL};
    PyObject *name;
    int device = 0;
    PyObject *native_object = Py_None;
    void *native;
    ferry_memory_kind kind;
    ferry_queue *queue = NULL;
    ferry_error error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|i$O", names, &name, &device,
                                     &native_object) ||
        !kind_of(name, &kind) || !native_of(native_object, &native)) {
        return NULL;
    }
    ferry_status status = native == NULL ? ferry_queue_create(kind, device, &queue, &error)
                                         : ferry_queue_adopt(kind, device, native, &queue, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    fp_queue *own = (fp_queue *)make(type, 0);
    if (own == NULL) {
        ferry_queue_destroy(queue);
        return NULL;
    }
    own->queue = queue;
    return (PyObject *)own;
}

static void end_queue(fp_queue *own)
{
    if (!own->is_closed) {
        own->is_closed = true;
        PyThreadState *thread = PyEval_SaveThread();
        ferry_queue_destroy(own->queue);
        PyEval_RestoreThread(thread);
    }
}

static void queue_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    end_queue((fp_queue *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *queue_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    end_queue((fp_queue *)self);
    Py_RETURN_NONE;
}

static PyObject *queue_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_INCREF(self);
    return self;
}

static PyObject *queue_exit(PyObject *self, PyObject *args)
{
    (void)args;
    return queue_close(self, NULL);
}

static PyObject *queue_synchronize(PyObject *self, PyObject *unused)
{
    (void)unused;
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_queue_synchronize(((fp_queue *)self)->queue, &error);
    PyEval_RestoreThread(thread);
    return ended(status, &error);
}

static PyObject *queue_kind(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(name_of(ferry_queue_kind(((fp_queue *)self)->queue)));
}

static PyObject *queue_device(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(ferry_queue_device(((fp_queue *)self)->queue));
}

static PyObject *queue_native(PyObject *self, void *unused)
{
    (void)unused;
    void *native = ferry_queue_native(((fp_queue *)self)->queue);
    return native == NULL ? (Py_INCREF(Py_None), Py_None) : PyLong_FromVoidPtr(native);
}

static PyObject *queue_repr(PyObject *self)
{
    const fp_queue *own = (fp_queue *)self;
    return own->is_closed ? PyUnicode_FromString("<ferry.Queue, closed>")
                          : PyUnicode_FromFormat("<ferry.Queue of %s, device %d>",
                                                 name_of(ferry_queue_kind(own->queue)),
                                                 (int)ferry_queue_device(own->queue));
}

/* Events. */

static PyObject *event_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    ferry_event *event = NULL;
    ferry_error error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names)) {
        return NULL;
    }
    ferry_status status = ferry_event_create(&event, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    fp_event *own = (fp_event *)make(type, 0);
    if (own == NULL) {
        ferry_event_destroy(event);
        return NULL;
    }
    own->event = event;
    return (PyObject *)own;
}

static void event_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_event_destroy(((fp_event *)self)->event);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

typedef ferry_status (*event_fn)(ferry_event *event, ferry_queue *queue, ferry_error *error);

static PyObject *event_call(PyObject *self, PyObject *args, PyObject *kwargs, event_fn call)
{
    static char *names[] = {"queue", NULL};
    PyObject *object = Py_None;
    ferry_queue *queue;
    ferry_error error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &object) ||
        !fp_queue_of(object, &queue)) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = call(((fp_event *)self)->event, queue, &error);
    PyEval_RestoreThread(thread);
    return ended(status, &error);
}

static PyObject *event_record(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return event_call(self, args, kwargs, ferry_event_record);
}

static PyObject *event_wait(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return event_call(self, args, kwargs, ferry_event_wait);
}

static PyObject *event_done(PyObject *self, void *unused)
{
    (void)unused;
    bool done = false;
    ferry_error error;
    ferry_status status = ferry_event_test(((fp_event *)self)->event, &done, &error);
    return status == FERRY_OK ? PyBool_FromLong(done) : fp_raise(status, error.message);
}

static PyObject *event_repr(PyObject *self)
{
    bool done = false;
    ferry_event_test(((fp_event *)self)->event, &done, NULL);
    return PyUnicode_FromString(done ? "<ferry.Event, has come>" : "<ferry.Event, to come>");
}

static bool add_queue(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"synchronize", queue_synchronize, METH_NOARGS,
         FP_DOC("synchronize($self, /)",
                "Waits until all work on it is done; raises the first failure since the last time, "
                "once.")},
        {"close", queue_close, METH_NOARGS,
         FP_DOC("close($self, /)", "Waits for its work and ends it; again is allowed.")},
        {"__enter__", queue_enter, METH_NOARGS, FP_DOC("__enter__($self, /)", "The queue.")},
        {"__exit__", queue_exit, METH_VARARGS, FP_DOC("__exit__($self, /, *args)", "Closes it.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"kind", queue_kind, NULL, "The kind of memory whose devices have such queues.", NULL},
        {"device", queue_device, NULL, "The device that does its work.", NULL},
        {"native", queue_native, NULL,
         "The handle of its order, for others to adopt; None of a queue of the host.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("Queue(kind, device=0, *, native=None)",
                        "The order of a device's work, as a stream is with CUDA.\n\n"
                        "What is put on it begins when the earlier work of the queue is done. "
                        "``kind`` is the\nname of a kind of memory, ``\"far\"`` in tests; with "
                        "``\"host\"`` everything is done at the call.\n``native`` is the handle of "
                        "an order that exists, which is taken over as it is: what\nanother queue "
                        "has as :attr:`native`. Any thread may use it.\n\n"
                        ">>> import ferry\n"
                        ">>> with ferry.Queue(\"host\") as queue:\n"
                        "...     queue.synchronize()")},
        {Py_tp_new, (void *)queue_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_repr, (void *)queue_repr},
        {Py_tp_dealloc, (void *)queue_dealloc},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry.Queue",
                               .basicsize = sizeof(fp_queue),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    queue_type = fp_add_type(module, &spec);
    return queue_type != NULL;
}

static bool add_event(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"record", FP_KEYWORDS(event_record),
         FP_DOC("record($self, /, queue=None)",
                "From here on it is the moment when all that is on the queue so far is done.")},
        {"wait", FP_KEYWORDS(event_wait),
         FP_DOC("wait($self, /, queue=None)",
                "Later work of the queue waits for the moment; without a queue the caller does.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"done", event_done, NULL, "Whether the moment has come; never waits.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("Event()",
                        "A moment of a queue, for others to wait for; one that was never recorded "
                        "has come.\n\n"
                        ">>> import ferry\n"
                        ">>> event = ferry.Event()\n"
                        ">>> event.record()\n"
                        ">>> event.done\n"
                        "True")},
        {Py_tp_new, (void *)event_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_repr, (void *)event_repr},
        {Py_tp_dealloc, (void *)event_dealloc},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry.Event",
                               .basicsize = sizeof(fp_event),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    event_type = fp_add_type(module, &spec);
    return event_type != NULL;
}

bool fp_add_queue(PyObject *module)
{
    return add_queue(module) && add_event(module);
}
