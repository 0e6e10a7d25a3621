/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of ferry, which other ranks of the node map: that of one service, and that of the process,
 * which each service shares once a tensor in it is registered there.
 */
#include "service.h"

#include <stdlib.h>

typedef struct fp_memory {
    PyObject_HEAD
    fp_use use;
    fp_service *service; /* NULL: it is the process's */
    ferry_buffer buffer;
    struct fp_memory *next;
} fp_memory;

/* That a service's transport shares: the region is the transport's. */
typedef struct fp_shared {
    fp_memory *memory;
    ferry_region *region;
    struct fp_shared *next;
} fp_shared;

static PyTypeObject *memory_type;
static fp_memory *of_process; /* guarded by the interpreter's lock */

static fp_memory *find(fp_memory *list, const void *base, uint64_t bytes)
{
    uintptr_t at = (uintptr_t)base;
    for (fp_memory *m = list; m != NULL; m = m->next) {
        uintptr_t begin = (uintptr_t)m->buffer.base;
        if (at >= begin && at - begin < m->buffer.bytes &&
            bytes <= m->buffer.bytes - (at - begin)) {
            return m;
        }
    }
    return NULL;
}

/* Making, and the end. */

static PyObject *allocate(ferry_transport *transport, uint64_t bytes, fp_service *service)
{
    ferry_buffer buffer = ferry_buffer_of(NULL, 0);
    ferry_error error = {"memory of 0 bytes is asked for"};
    ferry_status status = FERRY_ERR_INVALID_INPUT;
    if (bytes > 0) {
        PyThreadState *thread = PyEval_SaveThread();
        status = ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, bytes, &buffer, &error);
        PyEval_RestoreThread(thread);
    }
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    fp_memory *memory = PyObject_New(fp_memory, memory_type);
    if (memory == NULL) {
        ferry_memory_free(&buffer);
        return NULL;
    }
    fp_memory **list = service == NULL ? &of_process : &service->memories;
    fp_use_init(&memory->use, "the memory");
    Py_XINCREF((PyObject *)service);
    memory->service = service;
    memory->buffer = buffer;
    memory->next = *list;
    *list = memory;
    return (PyObject *)memory;
}

PyObject *fp_service_alloc(PyObject *self, PyObject *number)
{
    fp_service *own = (fp_service *)self;
    uint64_t bytes;
    if (!fp_u64(number, "the length of the memory", &bytes) || !fp_service_enter(own)) {
        return NULL;
    }
    ferry_transport *transport = ferry_service_transport(own->service);
    PyObject *memory =
        transport != NULL
            ? allocate(transport, bytes, own)
            : fp_raise(FERRY_ERR_MISUSE,
                       "memory is made by a service that was initialized: call init()");
    fp_service_leave(own);
    return memory;
}

/* memory(n_bytes): of the process. */
static PyObject *process_memory(PyObject *module, PyObject *number)
{
    (void)module;
    uint64_t bytes;
    return fp_u64(number, "the length of the memory", &bytes) ? allocate(NULL, bytes, NULL) : NULL;
}

/* has_memory(address, n_bytes): whether all of it is the process's memory of ferry. */
static PyObject *has_memory(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long address, bytes;
    if (!PyArg_ParseTuple(args, "KK", &address, &bytes)) {
        return NULL;
    }
    return PyBool_FromLong(find(of_process, (const void *)(uintptr_t)address, bytes) != NULL);
}

/* In a child of fork the memory is the parent's, and stays until the child ends. */
static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    fp_memory *memory = (fp_memory *)self;
    fp_memory **at = memory->service == NULL ? &of_process : &memory->service->memories;
    while (*at != memory) {
        at = &(*at)->next;
    }
    *at = memory->next;
    if (fp_is_own(&memory->use)) {
        Py_BEGIN_ALLOW_THREADS /* other memory may be about to get other pages, which takes time */
        ferry_memory_free(&memory->buffer);
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF((PyObject *)memory->service);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Sharing. */

/* False with an exception. */
static bool share(fp_service *own, ferry_transport *transport, fp_memory *memory,
                  ferry_region **region_out)
{
    fp_shared *fresh = calloc(1, sizeof *fresh);
    ferry_error error;
    if (fresh == NULL) {
        PyErr_NoMemory();
        return false;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_region_register(transport, &memory->buffer, &fresh->region, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        free(fresh);
        fp_raise(status, error.message);
        return false;
    }
    Py_INCREF((PyObject *)memory);
    fresh->memory = memory;
    fresh->next = own->shared;
    own->shared = fresh;
    *region_out = fresh->region;
    return true;
}

bool fp_service_buffer(fp_service *own, fp_space space, const void *base, uint64_t bytes,
                       ferry_buffer *buffer_out)
{
    *buffer_out = ferry_buffer_of(base, bytes);
    buffer_out->kind = space.kind;
    buffer_out->device = space.device;
    if (space.kind != FERRY_MEMORY_HOST) {
        return true;
    }
    fp_memory *memory = find(own->memories, base, bytes);
    if (memory != NULL) {
        buffer_out->registration = memory->buffer.registration;
        return true;
    }
    ferry_transport *transport = ferry_service_transport(own->service);
    memory = find(of_process, base, bytes);
    if (memory == NULL || transport == NULL || !fp_is_own(&memory->use)) {
        return true;
    }
    for (const fp_shared *s = own->shared; s != NULL; s = s->next) {
        if (s->memory == memory) {
            buffer_out->registration = s->region;
            return true;
        }
    }
    return share(own, transport, memory, &buffer_out->registration);
}

static bool is_held(const fp_holds *holds, const fp_memory *memory)
{
    for (size_t i = 0; i < holds->n; i++) {
        uintptr_t at = (uintptr_t)holds->items[i].base, begin = (uintptr_t)memory->buffer.base;
        if (at >= begin && at - begin < memory->buffer.bytes) {
            return true;
        }
    }
    return false;
}

void fp_service_unshare(fp_service *own)
{
    fp_shared **link = &own->shared;
    while (*link != NULL) {
        fp_shared *one = *link;
        if (!own->is_finalized &&
            (is_held(&own->holds, one->memory) || is_held(&own->kept, one->memory))) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        PyThreadState *thread = PyEval_SaveThread();
        ferry_region_free(one->region);
        PyEval_RestoreThread(thread);
        Py_DECREF((PyObject *)one->memory);
        free(one);
    }
}

/* Numbers. */

static PyObject *get_address(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((fp_memory *)self)->buffer.base);
}

static PyObject *get_bytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((fp_memory *)self)->buffer.bytes);
}

static PyObject *repr(PyObject *self)
{
    const fp_memory *own = (fp_memory *)self;
    return PyUnicode_FromFormat("<memory of ferry, %llu bytes at %p>",
                                (unsigned long long)own->buffer.bytes, own->buffer.base);
}

bool fp_add_memory(PyObject *module)
{
    static PyGetSetDef properties[] = {
        {"address", get_address, NULL, "Where it begins.", NULL},
        {"bytes", get_bytes, NULL, "How long it is.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, FP_DOC("Memory()", "Memory that other ranks reach best, which alloc() and "
                                       "memory() return.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_dealloc, (void *)dealloc},
        {Py_tp_getset, properties},
        {Py_tp_repr, (void *)repr},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.Memory",
                               .basicsize = sizeof(fp_memory),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    static PyMethodDef functions[] = {
        {"memory", process_memory, METH_O,
         FP_DOC("memory($module, n_bytes, /)", "Memory that every service of the process shares.")},
        {"has_memory", has_memory, METH_VARARGS,
         FP_DOC("has_memory($module, address, n_bytes, /)", "Whether bytes are in such memory.")},
        {NULL, NULL, 0, NULL},
    };
    memory_type = fp_add_type(module, &spec);
    return memory_type != NULL && fp_add_functions(module, functions);
}
