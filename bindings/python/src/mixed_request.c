/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "guard.h"
#include "mixed.h"

/* A call that was begun: ferry.MixedRequest. */
typedef struct fp_mixed_request {
    PyObject_HEAD
    fp_mixed *handler;
    fp_mixed_call call;     /* its x_out, and until the end its tensors */
    ferry_request *request; /* NULL: the end was seen, and these say how it was */
    ferry_status status;
    char *sentence; /* of PyMem, or NULL */
} fp_mixed_request;

static PyTypeObject *request_type;

PyObject *fp_mixed_start(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"op", "x_in", "x_out", "mode", "queue", NULL};
    fp_mixed *own = (fp_mixed *)self;
    PyObject *a[5] = {NULL, NULL, Py_None, Py_None, Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OOO", names, &a[0], &a[1], &a[2], &a[3],
                                     &a[4]) ||
        !fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    fp_mixed_request *made = PyObject_GC_New(fp_mixed_request, request_type);
    if (made == NULL) {
        fp_leave(&own->use);
        return NULL;
    }
    const fp_mixed_call empty = FP_MIXED_CALL_INIT;
    Py_INCREF(self);
    made->handler = own;
    made->call = empty;
    made->request = NULL;
    made->status = FERRY_OK;
    made->sentence = NULL;
    bool good = fp_mixed_call_begin(own, a, &made->call);
    if (good) {
        const fp_mixed_call *c = &made->call;
        ferry_error error;
        PyThreadState *state = PyEval_SaveThread();
        ferry_status status =
            ferry_mixed_comm_start(own->comm, c->op, &c->in.tensor, &c->out.tensor, c->mode,
                                   c->queue, &made->request, &error);
        PyEval_RestoreThread(state);
        own->n_requests += status == FERRY_OK;
        good = fp_ended(status, &error);
    }
    fp_leave(&own->use);
    PyObject_GC_Track((PyObject *)made);
    if (!good) {
        Py_CLEAR(made);
    }
    return (PyObject *)made;
}

/*
 * The library's request is given back at once, for its handle begins no other before, and the
 * tensors are the caller's again. The outcome stays.
 */
static void end(fp_mixed_request *own, ferry_status status, const ferry_error *error)
{
    ferry_request *request = own->request;
    own->request = NULL;
    own->status = status;
    if (status != FERRY_OK) {
        size_t bytes = strlen(error->message) + 1;
        own->sentence = PyMem_Malloc(bytes);
        if (own->sentence != NULL) {
            memcpy(own->sentence, error->message, bytes);
        }
    }
    PyThreadState *state = PyEval_SaveThread();
    ferry_request_destroy(request);
    PyEval_RestoreThread(state);
    own->handler->n_requests--;
    fp_operand_clear(&own->call.in);
    fp_operand_clear(&own->call.out);
    Py_CLEAR(own->call.x_in);
}

/* The same each time that it is asked for. */
static bool outcome(const fp_mixed_request *own)
{
    if (own->status != FERRY_OK) {
        fp_raise_on_all(own->status, own->sentence != NULL ? own->sentence : "the call failed");
    }
    return own->status == FERRY_OK;
}

typedef ferry_status (*ask_fn)(ferry_request *request, bool *done_out, ferry_error *error);

static ferry_status ask_to_end(ferry_request *request, bool *done_out, ferry_error *error)
{
    *done_out = true;
    return ferry_request_wait(request, error);
}

/* False with an exception: that of the call, or one that came meanwhile. */
static bool ask(fp_mixed_request *own, ask_fn asked, bool *done_out)
{
    *done_out = true;
    if (own->request == NULL) {
        return outcome(own);
    }
    bool guarded, done;
    if (!fp_enter(&own->handler->use, true)) {
        return false;
    }
    if (!fp_guard_begin(own->handler->world, &guarded)) {
        fp_leave(&own->handler->use);
        return false;
    }
    ferry_error error;
    PyThreadState *state = PyEval_SaveThread();
    ferry_status status = asked(own->request, &done, &error);
    PyEval_RestoreThread(state);
    fp_guard_end(guarded);
    if (done) {
        end(own, status, &error);
    }
    fp_leave(&own->handler->use);
    *done_out = done;
    return fp_ended(status, &error);
}

static PyObject *wait_for(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_mixed_request *own = (fp_mixed_request *)self;
    bool done;
    if (!ask(own, ask_to_end, &done)) {
        return NULL;
    }
    Py_INCREF(own->call.x_out);
    return own->call.x_out;
}

static PyObject *test(PyObject *self, PyObject *unused)
{
    (void)unused;
    bool done;
    return ask((fp_mixed_request *)self, ferry_request_test, &done) ? PyBool_FromLong(done) : NULL;
}

/* From any thread, also while another one waits: the interpreter's lock keeps the request. */
static PyObject *cancel(PyObject *self, PyObject *unused)
{
    (void)unused;
    const fp_mixed_request *own = (fp_mixed_request *)self;
    if (!fp_is_own(&own->handler->use)) {
        return fp_raise(FERRY_ERR_MISUSE, "the call belongs to the process that began it");
    }
    if (own->request != NULL) {
        ferry_request_cancel(own->request);
    }
    Py_RETURN_NONE;
}

static PyObject *get_done(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((fp_mixed_request *)self)->request == NULL);
}

/*
 * Who lets a request go does not cancel the call: the others may have it behind them. It ends here,
 * within a deadline, as it would in wait(); the handler's next call says if it has failed.
 */
static void drop(fp_mixed_request *own)
{
    PyObject *type, *value, *trace;
    bool guarded;
    PyErr_Fetch(&type, &value, &trace);
    if (!fp_guard_begin(own->handler->world, &guarded)) {
        PyErr_WriteUnraisable(NULL);
    }
    PyThreadState *state = PyEval_SaveThread();
    ferry_request_destroy(own->request);
    PyEval_RestoreThread(state);
    own->handler->n_requests--; /* until now it held the handler open */
    fp_guard_end(guarded);
    PyErr_Restore(type, value, trace);
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    fp_mixed_request *own = (fp_mixed_request *)self;
    PyObject_GC_UnTrack(self);
    if (own->request != NULL && fp_is_own(&own->handler->use) && !own->handler->is_abandoned) {
        drop(own);
    }
    fp_mixed_call_clear(&own->call);
    PyMem_Free(own->sentence);
    Py_DECREF((PyObject *)own->handler);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    const fp_mixed_request *own = (fp_mixed_request *)self;
    Py_VISIT((PyObject *)own->handler);
    Py_VISIT(own->call.x_in);
    Py_VISIT(own->call.x_out);
    Py_VISIT(own->call.in.view.owner);
    Py_VISIT(own->call.out.view.owner);
    FP_VISIT_TYPE(self);
    return 0;
}

/* Of an end that is known; nothing is asked. */
static PyObject *repr(PyObject *self)
{
    const fp_mixed_request *own = (fp_mixed_request *)self;
    return PyUnicode_FromString(own->request == NULL ? "<ferry.MixedRequest, ended>"
                                : fp_is_own(&own->handler->use)
                                    ? "<ferry.MixedRequest, under way>"
                                    : "<ferry.MixedRequest of another process>");
}

bool fp_add_mixed_request(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"wait", wait_for, METH_NOARGS,
         FP_DOC("wait($self, /)",
                "Waits for the end, and returns x_out; raises what the call ended with.")},
        {"test", test, METH_NOARGS,
         FP_DOC("test($self, /)", "Works for a moment; whether the call has ended.")},
        {"cancel", cancel, METH_NOARGS,
         FP_DOC("cancel($self, /)", "Ends the call on all ranks, and with it the handler: no other "
                                    "call follows. From any thread.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"done", get_done, NULL, "Whether test or wait have seen the end.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, (void *)FP_DOC("MixedRequest()",
                                   "A mixed collective that was begun, which start() of a handler "
                                   "returns. One that is let go waits for its end, as wait() does, "
                                   "but not longer than a deadline.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_repr, (void *)repr},
        {Py_tp_dealloc, (void *)dealloc},
        {Py_tp_traverse, (void *)traverse},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry.MixedRequest",
                               .basicsize = sizeof(fp_mixed_request),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                               .slots = slots};
    request_type = fp_add_type(module, &spec);
    return request_type != NULL;
}
