/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The copy service from its making to its end. */
#include "service.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

PyTypeObject *fp_service_type;
static PyTypeObject *ledger_type;

static fp_use *world_use(fp_service *own)
{
    return &((fp_world *)own->world)->use;
}

bool fp_service_enter(fp_service *own)
{
    if (!fp_enter(&own->use, !own->is_finalized)) {
        return false;
    }
    if (fp_enter(world_use(own), ((fp_world *)own->world)->world != NULL)) {
        fp_service_settle(own);
        return true;
    }
    fp_leave(&own->use);
    return false;
}

void fp_service_leave(fp_service *own)
{
    fp_leave(world_use(own));
    fp_leave(&own->use);
}

void fp_service_forget(fp_service *own)
{
    Py_CLEAR(own->bound[0]);
    Py_CLEAR(own->bound[1]);
    Py_CLEAR(own->plan);
    Py_CLEAR(own->written);
    fp_kinds_clear(&own->kinds);
    own->is_refused = false;
    if (own->is_tainted && !own->is_finalized) {
        if (fp_holds_move(&own->holds, &own->kept)) {
            return;
        }
        PyErr_Clear(); /* better kept for good than freed under the bytes that still come */
        own->holds = (fp_holds){.items = NULL};
        return;
    }
    fp_holds_clear(&own->holds);
}

/* Making. */

static PyObject *wrap(ferry_service *service, PyObject *world)
{
    fp_service *own = PyObject_GC_New(fp_service, fp_service_type);
    if (own == NULL) {
        ferry_service_destroy(service);
        return NULL;
    }
    memset((char *)own + offsetof(fp_service, use), 0, sizeof *own - offsetof(fp_service, use));
    fp_use_init(&own->use, "the service");
    Py_INCREF(world);
    own->service = service;
    own->world = world;
    own->raw = ((fp_world *)world)->world;
    own->patience = ferry_world_deadline(own->raw) / 2;
    ferry_service_set_progress(service, fp_service_progress, own);
    PyObject_GC_Track((PyObject *)own);
    return (PyObject *)own;
}

static PyObject *create(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"world",         "engines", "memory_cap", "slot_bytes", "threads",
                            "checksum",      "commit",  "paths",      "relays",     "trace",
                            "first_version", "delta",   NULL};
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    PyObject *world, *cap, *slot, *threads, *paths, *first;
    int relays, trace, delta;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OzOOOIIOppOp", names, &world, &options.engines,
                                     &cap, &slot, &threads, &options.checksum, &options.commit,
                                     &paths, &relays, &trace, &first, &delta)) {
        return NULL;
    }
    options.no_relays = relays == 0;
    options.trace = trace != 0;
    options.delta = delta != 0;
    ferry_world *raw = fp_world_get(world);
    if (raw == NULL || !fp_u64(cap, "memory_cap", &options.memory_cap) ||
        !fp_u64(slot, "slot_bytes", &options.slot_bytes) ||
        !fp_u32(threads, "threads", &options.n_threads) ||
        !fp_u32(paths, "paths", &options.paths) ||
        !fp_u64(first, "first_version", &options.first_version)) {
        return NULL;
    }
    ferry_error error;
    ferry_service *service = NULL;
    ferry_status status = ferry_service_create(raw, &options, &service, &error);
    return status == FERRY_OK ? wrap(service, world) : fp_raise(status, error.message);
}

/* Collective calls, and those that may wait for bytes on their way. */

typedef struct call {
    fp_service *own;
    ferry_log_level level;
    ferry_world *survivors;
    uint64_t version;
} call;

static ferry_status call_init(void *context, ferry_error *error)
{
    call *c = context;
    return ferry_service_init(c->own->service, c->level, error);
}

static ferry_status call_schedule(void *context, ferry_error *error)
{
    return ferry_service_schedule(((call *)context)->own->service, error);
}

static ferry_status call_finalize(void *context, ferry_error *error)
{
    return ferry_service_finalize(((call *)context)->own->service, error);
}

static ferry_status call_recover(void *context, ferry_error *error)
{
    call *c = context;
    return ferry_service_recover(c->own->service, c->survivors, &c->version, error);
}

void fp_service_decline(fp_service *own, PyObject **type, PyObject **value, PyObject **trace)
{
    PyErr_Fetch(type, value, trace);
    PyErr_NormalizeException(type, value, trace);
    PyObject *kind = PyObject_GetAttrString(*type, "__name__");
    PyObject *said = *value == NULL ? NULL : PyObject_Str(*value);
    bool plain = fp_is_error(*type);
    PyObject *text = kind == NULL || said == NULL ? NULL
                     : plain                      ? (Py_INCREF(said), said)
                                                  : PyUnicode_FromFormat("%U: %U", kind, said);
    PyObject *bytes = text == NULL ? NULL : PyUnicode_AsUTF8String(text);
    const char *why = "its tensors could not be looked at";
    ferry_service_refuse(own->service, bytes == NULL ? why : PyBytes_AsString(bytes));
    if (*value != NULL) {
        PyObject_SetAttrString(*value, "_ferry_on_all", Py_True);
    }
    PyErr_Clear();
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    Py_XDECREF(said);
    Py_XDECREF(kind);
}

bool fp_service_call(fp_service *own, bool good, fp_call_fn function, void *context)
{
    return fp_service_call_in(own->raw, own, good, function, context);
}

bool fp_service_call_in(ferry_world *raw, fp_service *own, bool good, fp_call_fn function,
                        void *context)
{
    if (good) {
        return fp_block(raw, function, context);
    }
    PyObject *type, *value, *trace;
    fp_service_decline(own, &type, &value, &trace);
    fp_block(raw, function, context);
    ferry_service_refuse(own->service, NULL); /* of a call that did not come so far */
    PyObject *heard[3];
    PyErr_Fetch(&heard[0], &heard[1], &heard[2]);
    if (heard[0] == NULL || fp_is_error(heard[0])) {
        PyErr_Restore(type, value, trace);
    } else { /* what a signal's handler raised */
        PyErr_Restore(heard[0], heard[1], heard[2]);
        heard[0] = type, heard[1] = value, heard[2] = trace;
    }
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(heard[i]);
    }
    return false;
}

static PyObject *none_if(bool good)
{
    if (!good) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static bool parse_level(PyObject *args, ferry_log_level *level_out)
{
    const char *text;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "s", &text)) {
        return false;
    }
    ferry_status status = ferry_log_level_parse(text, level_out, &error);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

static PyObject *init(PyObject *self, PyObject *args)
{
    fp_service *own = (fp_service *)self;
    call c = {.own = own, .level = FERRY_LOG_INFO};
    if (!fp_service_enter(own)) {
        return NULL;
    }
    bool good = fp_service_call(own, parse_level(args, &c.level), call_init, &c);
    fp_service_leave(own);
    return none_if(good);
}

static PyObject *schedule(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    call c = {.own = own};
    if (!fp_service_enter(own)) {
        return NULL;
    }
    bool good = fp_service_call(own, fp_holds_check(&own->holds), call_schedule, &c);
    fp_service_leave(own);
    return none_if(good);
}

/* decline(reason): the next collective call ends on all ranks with this sentence. */
static PyObject *decline(PyObject *self, PyObject *reason)
{
    fp_service *own = (fp_service *)self;
    PyObject *bytes = PyUnicode_AsUTF8String(reason);
    if (bytes == NULL || !fp_service_enter(own)) {
        Py_XDECREF(bytes);
        return NULL;
    }
    ferry_service_refuse(own->service, PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    fp_service_leave(own);
    Py_RETURN_NONE;
}

/* check_memory(): raises if a tensor is not where it was. */
static PyObject *check_memory(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    if (!fp_service_enter(own)) {
        return NULL;
    }
    bool good = fp_holds_check(&own->holds);
    fp_service_leave(own);
    return none_if(good);
}

static PyObject *recover(PyObject *self, PyObject *survivors)
{
    fp_service *own = (fp_service *)self;
    call c = {.own = own, .survivors = fp_world_get(survivors)};
    if (c.survivors == NULL || !fp_enter(&own->use, !own->is_finalized)) {
        return NULL;
    }
    /* The service's own world has failed, and may be closed: the survivors' one is used. */
    bool good = fp_enter(&((fp_world *)survivors)->use, true);
    if (good) {
        good = fp_block(c.survivors, call_recover, &c);
        fp_leave(&((fp_world *)survivors)->use);
    }
    fp_leave(&own->use);
    return good ? PyLong_FromUnsignedLongLong(c.version) : NULL;
}

/*
 * abandon(): the program ends, and with it what the library and the tensors are; to finalize would
 * be to wait for ranks that are elsewhere.
 */
static PyObject *abandon(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    if (!own->is_finalized) {
        own->is_finalized = own->is_abandoned = true;
        Py_INCREF(self); /* peers may write to its tensors until the process has ended */
    }
    Py_RETURN_NONE;
}

static PyObject *clear_requests(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    ferry_error error;
    ferry_status status;
    if (!fp_service_enter(own)) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    status = ferry_service_clear_requests(own->service, &error);
    PyEval_RestoreThread(thread);
    if (status == FERRY_OK) {
        own->is_resumed = false;
        fp_service_forget(own);
        fp_service_unshare(own);
    }
    fp_service_leave(own);
    return status == FERRY_OK ? none_if(true) : fp_raise(status, error.message);
}

/* Ledgers: what a failed run has brought. */

typedef struct fp_ledger {
    PyObject_HEAD
    ferry_ledger *ledger;
} fp_ledger;

static PyObject *take_ledger(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    ferry_ledger *ledger = NULL;
    ferry_error error;
    if (!fp_enter(&own->use, !own->is_finalized)) {
        return NULL;
    }
    ferry_status status = ferry_service_take_ledger(own->service, &ledger, &error);
    fp_leave(&own->use);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    fp_ledger *made = PyObject_New(fp_ledger, ledger_type);
    if (made == NULL) {
        ferry_ledger_destroy(ledger);
        return NULL;
    }
    made->ledger = ledger;
    return (PyObject *)made;
}

static PyObject *resume(PyObject *self, PyObject *ledger)
{
    fp_service *own = (fp_service *)self;
    ferry_error error;
    if (!PyObject_TypeCheck(ledger, ledger_type)) {
        return fp_raise(FERRY_ERR_INVALID_INPUT, "a ledger of take_ledger() is wanted here");
    }
    if (!fp_service_enter(own)) {
        return NULL;
    }
    ferry_status status = ferry_service_resume(own->service, ((fp_ledger *)ledger)->ledger, &error);
    own->is_resumed = own->is_resumed || status == FERRY_OK;
    fp_service_leave(own);
    return status == FERRY_OK ? none_if(true) : fp_raise(status, error.message);
}

static PyObject *mark_unchanged(PyObject *self, PyObject *names)
{
    fp_service *own = (fp_service *)self;
    PyObject *bytes = names == Py_None ? NULL : PyUnicode_AsUTF8String(names);
    ferry_error error;
    if ((names != Py_None && bytes == NULL) || !fp_service_enter(own)) {
        Py_XDECREF(bytes);
        return NULL;
    }
    ferry_status status = ferry_service_mark_unchanged(
        own->service, bytes == NULL ? NULL : PyBytes_AsString(bytes), &error);
    fp_service_leave(own);
    Py_XDECREF(bytes);
    return status == FERRY_OK ? none_if(true) : fp_raise(status, error.message);
}

static PyObject *ledger_bytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ferry_ledger_bytes(((fp_ledger *)self)->ledger));
}

static PyObject *ledger_repr(PyObject *self)
{
    return PyUnicode_FromFormat(
        "<ferry.Ledger, %llu bytes in place>",
        (unsigned long long)ferry_ledger_bytes(((fp_ledger *)self)->ledger));
}

static void ledger_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_ledger_destroy(((fp_ledger *)self)->ledger);
    PyObject_Free(self);
    Py_DECREF(type);
}

/*
 * The end. It waits for the other ranks, so a service that nobody finalized (a program that ends by
 * an exception, say) gives them some time and then ends the world.
 */

typedef struct leaving {
    ferry_world *world;
    bool done;
    pthread_mutex_t lock;
    pthread_cond_t ended;
} leaving;

static void *watch_leaving(void *context)
{
    enum { LEAVE_SECONDS = 10 };
    leaving *l = context;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LEAVE_SECONDS;
    pthread_mutex_lock(&l->lock);
    int waited = 0;
    while (!l->done && waited == 0) {
        waited = pthread_cond_timedwait(&l->ended, &l->lock, &until);
    }
    bool done = l->done;
    pthread_mutex_unlock(&l->lock);
    if (!done) {
        ferry_world_abort(l->world, "its program has ended, and other ranks go on with a service");
    }
    return NULL;
}

static void leave(fp_service *own)
{
    leaving l = {.world = own->raw, .done = false};
    pthread_t thread;
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.ended, NULL);
    bool watched = pthread_create(&thread, NULL, watch_leaving, &l) == 0;
    ferry_service_finalize(own->service, NULL);
    pthread_mutex_lock(&l.lock);
    l.done = true;
    pthread_cond_signal(&l.ended);
    pthread_mutex_unlock(&l.lock);
    if (watched) {
        pthread_join(thread, NULL);
    }
    pthread_mutex_destroy(&l.lock);
    pthread_cond_destroy(&l.ended);
}

/* finalize(quickly): quickly is for a program that ends. */
static PyObject *finalize(PyObject *self, PyObject *args)
{
    fp_service *own = (fp_service *)self;
    call c = {.own = own};
    int quickly = 0;
    if (!PyArg_ParseTuple(args, "p", &quickly) || !fp_enter(&own->use, !own->is_finalized)) {
        return NULL;
    }
    bool open = ((fp_world *)own->world)->world != NULL;
    if (open && !fp_enter(world_use(own), true)) {
        fp_leave(&own->use);
        return NULL;
    }
    bool good = true;
    if (quickly) {
        PyThreadState *thread = PyEval_SaveThread();
        leave(own);
        PyEval_RestoreThread(thread);
    } else {
        good = fp_block(own->raw, call_finalize, &c);
    }
    if (open) {
        fp_leave(world_use(own));
    }
    /* An interrupted end is one all the same: the world was ended. */
    own->is_finalized = !ferry_service_initialized(own->service);
    fp_leave(&own->use);
    if (own->is_finalized) {
        ferry_request_destroy(own->dropped); /* finalizing has ended its run */
        own->dropped = NULL;
        fp_service_unshare(own);
        fp_service_forget(own);
        fp_holds_clear(&own->kept);
    }
    return none_if(good);
}

/*
 * Ends what was never finalized. What peers may still write to is kept to the end, so tensors go
 * only here.
 */
static void end_service(fp_service *own)
{
    if (fp_is_own(&own->use) && !own->is_finalized) {
        PyThreadState *thread = PyEval_SaveThread();
        leave(own);
        PyEval_RestoreThread(thread);
    }
    own->is_finalized = true;
    fp_service_unshare(own);
    fp_service_forget(own);
    fp_holds_clear(&own->kept);
    fp_watch_clear(&own->watch);
}

/*
 * No code of Python runs: this goes because the program ends, by an exit out of the function that
 * has the service, say, before functions that are called at the end. What it holds stays until the
 * process has ended, as peers may write to it.
 */
static void leave_with_program(fp_service *own)
{
    PyThreadState *thread = PyEval_SaveThread();
    ferry_world_leave(own->raw, NULL);
    PyEval_RestoreThread(thread);
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    fp_service *own = (fp_service *)self;
    PyObject_GC_UnTrack(self);
    if (!own->is_finalized && fp_is_own(&own->use) && PyEval_GetFrame() == NULL) {
        leave_with_program(own);
        Py_DECREF(type);
        return;
    }
    end_service(own);
    if (fp_is_own(&own->use)) {
        PyThreadState *thread = PyEval_SaveThread();
        ferry_request_destroy(own->dropped);
        ferry_service_destroy(own->service);
        PyEval_RestoreThread(thread);
    }
    Py_DECREF(own->world);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    fp_service *own = (fp_service *)self;
    const fp_holds *lists[] = {&own->holds, &own->kept};
    for (size_t list = 0; list < 2; list++) {
        int stopped = fp_holds_visit(lists[list], visit, arg);
        if (stopped != 0) {
            return stopped;
        }
        Py_VISIT(own->bound[list]);
    }
    Py_VISIT(own->plan);
    Py_VISIT(own->written);
    Py_VISIT(own->watch.value);
    Py_VISIT(own->watch.trace);
    Py_VISIT(own->world);
    FP_VISIT_TYPE(self);
    return 0;
}

/* A service that only what it holds can reach: its tensors go when nothing writes to them. */
static int clear(PyObject *self)
{
    fp_service *own = (fp_service *)self;
    if (!own->is_abandoned) {
        end_service(own);
    }
    return 0;
}

/* Numbers. */

#define NUMBER(name, make, call)                                                                   \
    static PyObject *get_##name(PyObject *self, void *unused)                                      \
    {                                                                                              \
        (void)unused;                                                                              \
        fp_service *own = (fp_service *)self;                                                      \
        const ferry_service *service = own->service;                                               \
        return own->use.is_replaced && !fp_may_read(&own->use, true) ? NULL : make(call);          \
    }
NUMBER(my_pe, PyLong_FromUnsignedLong, ferry_service_my_pe(service))
NUMBER(n_pes, PyLong_FromUnsignedLong, ferry_service_pe_count(service))
NUMBER(version, PyLong_FromUnsignedLongLong, ferry_service_version(service))
NUMBER(next_version, PyLong_FromUnsignedLongLong, ferry_service_next_version(service))
#undef NUMBER

static PyObject *get_agreed(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((fp_service *)self)->n_agreed);
}

static PyObject *get_initialized(PyObject *self, void *unused)
{
    (void)unused;
    const fp_service *own = (fp_service *)self;
    return PyBool_FromLong(own->use.is_replaced || ferry_service_initialized(own->service));
}

/* Tests do not wait for half of a deadline that slow ranks keep. */
static PyObject *get_patience(PyObject *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble(((fp_service *)self)->patience);
}

static int set_patience(PyObject *self, PyObject *value, void *unused)
{
    (void)unused;
    double seconds = value == NULL ? -1 : PyFloat_AsDouble(value);
    if (!PyErr_Occurred() && !(seconds >= 0)) {
        return fp_raise_int(FERRY_ERR_INVALID_INPUT, "patience is a number of seconds");
    }
    ((fp_service *)self)->patience = seconds;
    return PyErr_Occurred() ? -1 : 0;
}

static PyMethodDef methods[] = {
    {"init", init, METH_VARARGS,
     FP_DOC("init($self, log_level, /)", "Opens the transport; collective.")},
    {"register", fp_service_register, METH_VARARGS,
     FP_DOC("register($self, is_send, task_id, tensor, pos, size, pe, name, /)",
            "Registers one end of a task.")},
    {"register_many", fp_service_register_many, METH_VARARGS,
     FP_DOC("register_many($self, is_send, items, /)", "Registers a sequence of ends.")},
    {"register_boxes", fp_service_register_boxes, METH_VARARGS,
     FP_DOC("register_boxes($self, is_send, items, /)", "Registers boxes of shards.")},
    {"bind", fp_service_bind, METH_VARARGS,
     FP_DOC("bind($self, plan, sources, destinations, /)",
            "Registers what this rank does of a plan.")},
    {"rebind", fp_service_rebind, METH_VARARGS,
     FP_DOC("rebind($self, sources, destinations, /)", "Other tensors for a plan; collective.")},
    {"check_memory", check_memory, METH_NOARGS,
     FP_DOC("check_memory($self, /)", "Raises if a tensor is not where it was.")},
    {"schedule", schedule, METH_NOARGS, FP_DOC("schedule($self, /)", "Prepares runs; collective.")},
    {"kinds_sum", fp_service_kinds_sum, METH_NOARGS,
     FP_DOC("kinds_sum($self, /)", "Zero over all ranks: dtypes agree.")},
    {"kinds", fp_service_kinds, METH_NOARGS,
     FP_DOC("kinds($self, /)", "The dtypes of what is registered.")},
    {"refuse", fp_service_refuse, METH_NOARGS,
     FP_DOC("refuse($self, /)", "Dtypes do not agree: nothing is to run.")},
    {"run", fp_service_run, METH_VARARGS,
     FP_DOC("run($self, report, queue=None, said=None, /)", "One run; collective.")},
    {"start", fp_service_start, METH_VARARGS,
     FP_DOC("start($self, report, queue=None, said=None, /)", "Begins a run; collective.")},
    {"time_runs", fp_service_time_runs, METH_O,
     FP_DOC("time_runs($self, n, /)", "The seconds of n runs in a loop of C.")},
    {"decline", decline, METH_O,
     FP_DOC("decline($self, reason, /)", "What is wrong here, for all ranks to hear next.")},
    {"abandon", abandon, METH_NOARGS,
     FP_DOC("abandon($self, /)", "Leaves it to the end of the program.")},
    {"clear_requests", clear_requests, METH_NOARGS,
     FP_DOC("clear_requests($self, /)", "Forgets what was registered.")},
    {"finalize", finalize, METH_VARARGS,
     FP_DOC("finalize($self, quickly, /)", "Ends the service; collective.")},
    {"recover", recover, METH_O,
     FP_DOC("recover($self, survivors, /)",
            "The version that all survivors have; collective among them.")},
    {"recover_onto", fp_service_recover_onto, METH_VARARGS,
     FP_DOC("recover_onto($self, refused, spec, replica, subset, min_size, /)",
            "Goes on after a loss; collective.")},
    {"take_ledger", take_ledger, METH_NOARGS,
     FP_DOC("take_ledger($self, /)", "What the run that failed has brought.")},
    {"resume", resume, METH_O,
     FP_DOC("resume($self, ledger, /)", "The next run moves what is missing in a ledger.")},
    {"mark_unchanged", mark_unchanged, METH_O,
     FP_DOC("mark_unchanged($self, names, /)", "Sources that the next run takes for equal.")},
    {"alloc", fp_service_alloc, METH_O,
     FP_DOC("alloc($self, n_bytes, /)", "Memory that other ranks reach best.")},
    {"statistics", fp_service_statistics, METH_NOARGS,
     FP_DOC("statistics($self, /)", "Numbers of this rank.")},
    {"peers", fp_service_peers, METH_NOARGS,
     FP_DOC("peers($self, /)", "The ranks that this one exchanges with.")},
    {"destinations", fp_service_destinations, METH_NOARGS,
     FP_DOC("destinations($self, /)", "What runs write, and its state.")},
    {"spans", fp_service_spans, METH_NOARGS,
     FP_DOC("spans($self, /)", "The batches of the last run, if traced.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"my_pe", get_my_pe, NULL, "This rank.", NULL},
    {"n_pes", get_n_pes, NULL, "How many ranks there are.", NULL},
    {"version", get_version, NULL, "The newest version that is whole on all ranks.", NULL},
    {"next_version", get_next_version, NULL, "The version that the next run makes.", NULL},
    {"agreed", get_agreed, NULL, "How many agreements before runs were begun.", NULL},
    {"initialized", get_initialized, NULL, "Between init and finalize.", NULL},
    {"patience", get_patience, set_patience, "Seconds that a cancelled run has to end.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject *add_service_type(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("Service()", "A copy service, which a ferry.RemoteCopyService has.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_dealloc, (void *)dealloc},
        {Py_tp_traverse, (void *)traverse},
        {Py_tp_clear, (void *)clear},
        {Py_tp_getset, properties},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.Service",
                               .basicsize = sizeof(fp_service),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                               .slots = slots};
    return fp_add_type(module, &spec);
}

bool fp_add_service(PyObject *module)
{
    static PyGetSetDef of_ledger[] = {
        {"bytes", ledger_bytes, NULL, "Bytes that are in place.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyMethodDef functions[] = {
        {"service", FP_KEYWORDS(create),
         FP_DOC("service($module, /, world, engines, memory_cap, slot_bytes, threads, checksum, "
                "commit, paths, relays, trace, first_version, delta)",
                "A copy service of a world.")},
        {NULL, NULL, 0, NULL},
    };
    fp_service_type = add_service_type(module);
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         FP_DOC("Ledger()", "What a run that failed has brought, which take_ledger() returns.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_dealloc, (void *)ledger_dealloc},
        {Py_tp_getset, of_ledger},
        {Py_tp_repr, (void *)ledger_repr},
        {0, NULL},
    };
    static PyType_Spec ledger_spec = {.name = "ferry.Ledger",
                                      .basicsize = sizeof(fp_ledger),
                                      .flags = Py_TPFLAGS_DEFAULT,
                                      .slots = slots};
    ledger_type = fp_add_type(module, &ledger_spec);
    return fp_service_type != NULL && ledger_type != NULL && fp_add_functions(module, functions) &&
           fp_add_memory(module) && fp_add_service_run(module);
}
