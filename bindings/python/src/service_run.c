/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs. The library calls back about twenty times a second on the thread that waits, which is where
 * signals are looked for: no thread is made for that, so a run costs little more than in C.
 */
#include "service.h"

#include "queue.h"

#include <time.h>

static PyTypeObject *request_type;

typedef struct fp_request {
    PyObject_HEAD
    fp_service *service;
    ferry_request *request;
    PyObject *callback;
    PyObject *queue; /* that the run is on, or None */
    bool is_done;
} fp_request;

/* Watching. */

void fp_watch_clear(fp_watch *watch)
{
    Py_CLEAR(watch->type);
    Py_CLEAR(watch->value);
    Py_CLEAR(watch->trace);
    *watch = (fp_watch){.callback = NULL};
}

static void keep_raised(fp_watch *watch)
{
    if (watch->type == NULL) {
        PyErr_Fetch(&watch->type, &watch->value, &watch->trace);
    }
    PyErr_Clear();
    watch->is_cancelled = true;
}

static void tell(fp_watch *watch, const ferry_progress *progress)
{
    PyObject *answer =
        PyObject_CallFunction(watch->callback, "KKd", (unsigned long long)progress->bytes_done,
                              (unsigned long long)progress->bytes_total, progress->seconds);
    if (answer == NULL) {
        keep_raised(watch);
    } else if (answer == Py_False) {
        watch->is_cancelled = true;
    }
    Py_XDECREF(answer);
}

/*
 * A cancelled run ends soon, unless this rank has done its part of it and waits for others. One who
 * interrupts the program does not want to wait with it: then the world is ended.
 */
static void end_world(fp_service *own, double seconds, bool again)
{
    fp_watch *watch = &own->watch;
    if (!watch->is_aborted && (again || seconds - watch->stopped > own->patience)) {
        watch->is_aborted = true;
        ferry_world_abort(own->raw, watch->is_dropped
                                        ? "its program has dropped a run that it had begun, and "
                                          "other ranks did not come to end it"
                                        : "the program was interrupted");
    }
}

static void look_dropped(fp_service *own, const ferry_progress *progress)
{
    fp_watch *watch = &own->watch;
    if (!watch->is_interrupted) {
        watch->is_interrupted = watch->is_cancelled = true;
        watch->stopped = progress->seconds;
    }
    end_world(own, progress->seconds, false);
}

static void look(fp_service *own, const ferry_progress *progress)
{
    fp_watch *watch = &own->watch;
    if (PyErr_CheckSignals() != 0) {
        bool again = watch->is_interrupted;
        keep_raised(watch);
        watch->stopped = again ? watch->stopped : progress->seconds;
        watch->is_interrupted = true;
        end_world(own, progress->seconds, again);
    } else if (watch->is_interrupted) {
        end_world(own, progress->seconds, false);
    } else if (watch->callback != NULL && watch->type == NULL) {
        tell(watch, progress);
    }
}

bool fp_service_progress(void *context, const ferry_progress *progress)
{
    const double OFTEN = 0.04; /* the last call follows right after another one, or a short run */
    fp_service *own = context;
    fp_watch *watch = &own->watch;
    if (watch->is_dropped) {
        look_dropped(own, progress);
    } else if (watch->callback != NULL || progress->seconds - watch->looked > OFTEN) {
        watch->looked = progress->seconds;
        PyGILState_STATE lock = PyGILState_Ensure();
        look(own, progress);
        PyGILState_Release(lock);
    }
    return !watch->is_cancelled;
}

/* A run that was cancelled or refused in a world that lives has no bytes on their way. */
static void taint(fp_service *own, ferry_status status)
{
    bool is_ended = status == FERRY_ERR_ABORTED || status == FERRY_ERR_INVALID_INPUT;
    bool is_orderly = status == FERRY_OK || (is_ended && !own->watch.is_aborted);
    own->is_tainted = own->is_tainted || !is_orderly;
}

static PyObject *list_written(const fp_holds *holds)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < holds->n; i++) {
        const fp_hold *hold = &holds->items[i];
        if (hold->is_written && hold->source == FP_SOURCE_TORCH &&
            PyList_Append(list, hold->owner) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/*
 * Torch's autograd counts writes to a tensor, so that no gradient is made of values that are gone.
 * A run that failed may have written too. What goes wrong here is reported to nobody's harm.
 */
static void tell_torch(fp_service *own)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (own->written == NULL) {
        own->written = list_written(&own->holds);
    }
    if (own->written != NULL && PyList_Size(own->written) != 0) {
        PyObject *module = PyImport_ImportModule("ferry._service");
        PyObject *done =
            module == NULL ? NULL : PyObject_CallMethod(module, "_note_writes", "O", own->written);
        Py_XDECREF(done);
        Py_XDECREF(module);
    }
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(NULL);
    }
    PyErr_Restore(type, value, trace);
}

/* What the run ends with here: what was raised beside it goes before what that has led to. */
static bool watch_end(fp_service *own, ferry_status status, const char *sentence)
{
    fp_watch *watch = &own->watch;
    watch->callback = NULL;
    watch->is_cancelled = false; /* runs of graphs may follow */
    own->is_running = false;
    taint(own, status);
    tell_torch(own);
    PyObject *type = watch->type;
    bool raised = type != NULL;
    if (raised) {
        PyErr_Restore(type, watch->value, watch->trace);
        watch->type = watch->value = watch->trace = NULL;
    } else if (status != FERRY_OK) {
        fp_raise_on_all(status, sentence);
    }
    return !raised && status == FERRY_OK;
}

/* Runs. */

typedef struct beginning {
    ferry_service *service;
    ferry_queue *queue;
    ferry_request *request;
} beginning;

static ferry_status call_start(void *context, ferry_error *error)
{
    beginning *b = context;
    return ferry_service_start(b->service, b->queue, &b->request, error);
}

static bool begin_now(beginning *b)
{
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = call_start(b, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

/* Of a run that did not begin: what is wrong with this rank's tensors goes before what that led to.
 */
static void prefer_watched(fp_service *own)
{
    fp_watch *watch = &own->watch;
    if (watch->type != NULL) {
        PyErr_Restore(watch->type, watch->value, watch->trace);
        watch->type = watch->value = watch->trace = NULL;
    }
}

/* The service is entered. awaits: others may have work on tensors. NULL with an exception. */
static ferry_request *begin(fp_service *own, PyObject *callback, PyObject *queue, bool awaits)
{
    beginning b = {.service = own->service, .request = NULL};
    if (!fp_queue_of(queue, &b.queue)) {
        return NULL;
    }
    if (own->is_running) {
        return (ferry_request *)fp_raise(
            FERRY_ERR_MISUSE, "a run is under way: wait for its request before the next one");
    }
    if (own->is_refused) {
        return (ferry_request *)fp_raise(FERRY_ERR_MISUSE,
                                         "a run needs a schedule, and the last one was refused: "
                                         "clear the requests and register them again");
    }
    fp_watch_clear(&own->watch);
    own->watch.callback = callback == Py_None ? NULL : callback;
    /* In host order the run begins behind what is under way; on a device's queue, behind that. */
    awaits = awaits && ferry_queue_kind(b.queue) != FERRY_MEMORY_CUDA;
    if (!fp_holds_check(&own->holds) ||
        (awaits &&
         !fp_holds_await(&own->holds))) { /* the others are in the run, and hear of it there */
        fp_watch *watch = &own->watch;
        fp_service_decline(own, &watch->type, &watch->value, &watch->trace);
        watch->callback = NULL;
    }
    /* After a ledger all ranks prepare once more together: that may wait. */
    own->is_running = own->is_resumed ? fp_block(own->raw, call_start, &b) : begin_now(&b);
    ferry_service_refuse(own->service, NULL); /* of a run that could not begin */
    if (!own->is_running) {
        prefer_watched(own);
    }
    return own->is_running ? b.request : NULL;
}

/* Without the interpreter's lock; false: a signal came before. */
static bool wait_a_moment(ferry_request *request, bool *done_out, ferry_status *status_out,
                          ferry_error *error)
{
    const struct timespec moment = {.tv_nsec = 200000};
    for (int i = 0; i < 50; i++) {
        *status_out = ferry_request_test(request, done_out, error);
        if (*done_out) {
            return true;
        }
        nanosleep(&moment, NULL);
    }
    return false;
}

/*
 * The run's callbacks come on the queue's thread, where no signals are looked for: that is done
 * here, from time to time. Who interrupts the program cancels the run.
 */
static ferry_status await(fp_service *own, ferry_request *request, bool on_queue,
                          ferry_error *error)
{
    bool done = false;
    ferry_status status = FERRY_OK;
    while (on_queue && !done) {
        PyThreadState *thread = PyEval_SaveThread();
        bool ended = wait_a_moment(request, &done, &status, error);
        PyEval_RestoreThread(thread);
        if (!ended && PyErr_CheckSignals() != 0) {
            keep_raised(&own->watch);
            ferry_request_cancel(request);
        }
    }
    PyThreadState *thread = PyEval_SaveThread();
    status = ferry_request_wait(request, error);
    PyEval_RestoreThread(thread);
    return status;
}

/* A graph keeps the run, and what becomes of its launches is the queue's. */
static bool capture(fp_service *own, PyObject *object)
{
    ferry_queue *queue;
    ferry_error error;
    if (!fp_queue_of(object, &queue) || !fp_holds_check(&own->holds)) {
        return false;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_service_run(own->service, queue, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

static bool run_to_end(fp_service *own, PyObject *callback, PyObject *queue, bool awaits)
{
    ferry_request *request = begin(own, callback, queue, awaits);
    if (request == NULL) {
        return false;
    }
    ferry_error error;
    ferry_status status = await(own, request, queue != Py_None, &error);
    PyThreadState *thread = PyEval_SaveThread();
    ferry_request_destroy(request);
    PyEval_RestoreThread(thread);
    return watch_end(own, status, error.message);
}

/*
 * An agreement before a run: what each rank says, "+" for yes. It is one call with the run, for in
 * between a signal's handler could raise, and the others would be in a run without this rank.
 */
typedef struct agreement {
    fp_service *own;
    const char *said;
    Py_ssize_t n_said;
    const void *all;
    const size_t *lengths;
} agreement;

static ferry_status call_gather(void *context, ferry_error *error)
{
    agreement *a = context;
    a->own->n_agreed++; /* the others hear of it from here on */
    return ferry_world_all_gather_v(a->own->raw, a->said, (size_t)a->n_said, &a->all, &a->lengths,
                                    error);
}

/* None: all say yes. A list of what they say, or NULL with an exception. */
static PyObject *agree(fp_service *own, PyObject *said)
{
    agreement a = {.own = own, .said = PyBytes_AsString(said)};
    if (a.said == NULL) {
        return NULL;
    }
    a.n_said = PyBytes_Size(said);
    if (!fp_block(own->raw, call_gather, &a)) {
        return NULL;
    }
    uint32_t n = ferry_world_rank_count(own->raw);
    const char *at = a.all;
    bool yes = true;
    for (uint32_t r = 0; r < n; at += a.lengths[r++]) {
        yes = yes && a.lengths[r] > 0 && *at == '+';
    }
    return yes ? (Py_INCREF(Py_None), Py_None) : fp_list_parts(a.all, a.lengths, n);
}

PyObject *fp_service_run(PyObject *self, PyObject *args)
{
    fp_service *own = (fp_service *)self;
    PyObject *callback, *queue = Py_None, *said = Py_None, *heard = Py_None;
    bool is_captured, good = true;
    if (!PyArg_ParseTuple(args, "O|OO", &callback, &queue, &said)) {
        return NULL;
    }
    PyObject *given = queue;
    queue = fp_queue_for_call(queue, &is_captured); /* which has waited for a stream */
    if (queue == NULL || !fp_service_enter(own)) {
        Py_XDECREF(queue);
        return NULL;
    }
    heard = said == Py_None ? (Py_INCREF(Py_None), Py_None) : agree(own, said);
    if (heard == Py_None) {
        good = is_captured ? capture(own, queue) : run_to_end(own, callback, queue, queue == given);
    }
    fp_service_leave(own);
    Py_DECREF(queue);
    if (!good) {
        Py_CLEAR(heard);
    }
    return heard;
}

PyObject *fp_service_start(PyObject *self, PyObject *args)
{
    fp_service *own = (fp_service *)self;
    PyObject *callback, *queue = Py_None, *said = Py_None;
    if (!PyArg_ParseTuple(args, "O|OO", &callback, &queue, &said)) {
        return NULL;
    }
    queue = fp_queue_from(queue);
    if (queue == NULL || !fp_service_enter(own)) {
        Py_XDECREF(queue);
        return NULL;
    }
    PyObject *heard = said == Py_None ? (Py_INCREF(Py_None), Py_None) : agree(own, said);
    if (heard != Py_None) {
        fp_service_leave(own);
        Py_DECREF(queue);
        return heard;
    }
    Py_DECREF(heard);
    fp_request *made = PyObject_GC_New(fp_request, request_type);
    if (made != NULL) {
        Py_INCREF(self);
        Py_INCREF(callback);
        made->service = own;
        made->callback = callback;
        Py_INCREF(queue);
        made->queue = queue;
        made->is_done = false;
        made->request = begin(own, callback, queue, true);
        PyObject_GC_Track((PyObject *)made);
        if (made->request == NULL) {
            Py_CLEAR(made);
        }
    }
    fp_service_leave(own);
    Py_DECREF(queue);
    return (PyObject *)made;
}

/* time_runs(n): the seconds of n runs in a loop of C, to compare run() with. */
PyObject *fp_service_time_runs(PyObject *self, PyObject *number)
{
    fp_service *own = (fp_service *)self;
    uint64_t n;
    if (!fp_u64(number, "the number of runs", &n) || !fp_service_enter(own)) {
        return NULL;
    }
    fp_watch_clear(&own->watch);
    ferry_error error;
    ferry_status status = FERRY_OK;
    struct timespec begin, end;
    PyThreadState *thread = PyEval_SaveThread();
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint64_t i = 0; status == FERRY_OK && i < n && !own->watch.is_cancelled; i++) {
        status = ferry_service_run(own->service, NULL, &error);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    PyEval_RestoreThread(thread);
    bool good = watch_end(own, status, error.message);
    fp_service_leave(own);
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    return good ? PyFloat_FromDouble(seconds) : NULL;
}

/* Requests. */

/* As far as the run goes the world is this thread's; what has ended needs neither. */
static bool enter(fp_request *own)
{
    return own->is_done ? fp_enter(&own->service->use, true) : fp_service_enter(own->service);
}

static void leave(fp_request *own, bool was_done)
{
    if (was_done) {
        fp_leave(&own->service->use);
    } else {
        fp_service_leave(own->service);
    }
}

static bool request_end(fp_request *own, bool was_done, ferry_status status, const char *sentence)
{
    own->is_done = true;
    Py_CLEAR(own->callback); /* the program's own, which may hold this request */
    if (!was_done) {
        return watch_end(own->service, status, sentence);
    }
    if (status != FERRY_OK) {
        fp_raise_on_all(status, sentence);
    }
    return status == FERRY_OK;
}

static PyObject *request_wait(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_request *own = (fp_request *)self;
    bool was_done = own->is_done;
    ferry_error error;
    if (!enter(own)) {
        return NULL;
    }
    ferry_status status =
        await(own->service, own->request, own->queue != Py_None && !was_done, &error);
    bool good = request_end(own, was_done, status, error.message);
    leave(own, was_done);
    return good ? (Py_INCREF(Py_None), Py_None) : NULL;
}

static PyObject *request_test(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_request *own = (fp_request *)self;
    bool was_done = own->is_done, done = false, good = true;
    ferry_error error;
    if (!enter(own)) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_request_test(own->request, &done, &error);
    PyEval_RestoreThread(thread);
    if (done) {
        good = request_end(own, was_done, status, error.message);
    }
    leave(own, was_done);
    return good ? PyBool_FromLong(done) : NULL;
}

/* From any thread, also while another one waits. */
static PyObject *request_cancel(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_request *own = (fp_request *)self;
    if (!fp_is_own(&own->service->use)) {
        return fp_raise(FERRY_ERR_MISUSE, "the run belongs to the process that began it");
    }
    if (!own->is_done) {
        ferry_request_cancel(own->request);
    }
    Py_RETURN_NONE;
}

static PyObject *request_done(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((fp_request *)self)->is_done);
}

/*
 * A request that is let go before its run has ended cancels it: who should wait is elsewhere, so
 * the others may be too, and an end that waits for them could take for ever. They get
 * FERRY_ERR_ABORTED; where they do not even come to hear it, the world is ended.
 */
void fp_service_settle(fp_service *own)
{
    ferry_request *request = own->dropped;
    if (request == NULL) {
        return;
    }
    own->dropped = NULL;
    fp_watch_clear(&own->watch);
    own->watch.is_dropped = true;
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_request_cancel(request);
    ferry_status status = ferry_request_wait(request, &error);
    ferry_request_destroy(request);
    PyEval_RestoreThread(thread);
    own->watch.is_dropped = false;
    own->is_running = false;
    taint(own, status);
    tell_torch(own);
    if (status != FERRY_OK) {
        fp_raise_format(FERRY_ERR_MISUSE,
                        "a run was cancelled, as its request was dropped before the end (keep what "
                        "start() returns, and wait): %.400s",
                        error.message);
        PyErr_WriteUnraisable(NULL); /* nobody is there to catch it */
    }
}

/* The object is going: nothing here may take a reference to it. */
static void request_drop(fp_request *own)
{
    fp_service *service = own->service;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    service->dropped = own->request;
    /* In another thread's hands, or a callback's: then its next call ends the run. */
    if (service->is_abandoned) {
        service->dropped = NULL; /* it goes with the process */
    } else if (service->is_finalized) {
        service->dropped = NULL;
        ferry_request_destroy(own->request);
    } else if (!service->use.busy && fp_service_enter(service)) {
        fp_service_leave(service);
    }
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

static void request_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    fp_request *own = (fp_request *)self;
    PyObject_GC_UnTrack(self);
    if (own->request != NULL && fp_is_own(&own->service->use)) {
        if (own->is_done) {
            ferry_request_destroy(own->request);
        } else {
            request_drop(own);
        }
    }
    Py_XDECREF(own->callback);
    Py_XDECREF(own->queue);
    Py_DECREF((PyObject *)own->service);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int request_traverse(PyObject *self, visitproc visit, void *arg)
{
    fp_request *own = (fp_request *)self;
    Py_VISIT(own->callback);
    Py_VISIT((PyObject *)own->service);
    FP_VISIT_TYPE(self);
    return 0;
}

/* The service stays until the end: it ends the run. */
static int request_clear(PyObject *self)
{
    fp_request *own = (fp_request *)self;
    if (!own->is_done) {
        own->service->watch.callback = NULL; /* which borrowed it */
    }
    Py_CLEAR(own->callback);
    return 0;
}

/* Of an end that is known; nothing is asked. */
static PyObject *request_repr(PyObject *self)
{
    const fp_request *own = (fp_request *)self;
    return PyUnicode_FromString(own->is_done ? "<ferry.Request, ended>"
                                : fp_is_own(&own->service->use)
                                    ? "<ferry.Request, under way>"
                                    : "<ferry.Request of another process>");
}

bool fp_add_service_run(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"wait", request_wait, METH_NOARGS,
         FP_DOC("wait($self, /)", "Waits for the end; raises what the run ended with.")},
        {"test", request_test, METH_NOARGS,
         FP_DOC("test($self, /)", "Works for a moment; whether the run has ended.")},
        {"cancel", request_cancel, METH_NOARGS,
         FP_DOC("cancel($self, /)", "Ends the run on all ranks; from any thread.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"done", request_done, NULL, "Whether test or wait have seen the end.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, (void *)FP_DOC("Request()", "A run that was begun, which start() returns.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_repr, (void *)request_repr},
        {Py_tp_dealloc, (void *)request_dealloc},
        {Py_tp_traverse, (void *)request_traverse},
        {Py_tp_clear, (void *)request_clear},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry.Request",
                               .basicsize = sizeof(fp_request),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                               .slots = slots};
    request_type = fp_add_type(module, &spec);
    return request_type != NULL;
}
