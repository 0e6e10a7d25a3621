/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "mixed.h"

#include "guard.h"
#include "queue.h"
#include "service.h"

/* The class itself, with what it says of its arguments, is in ferry/_mixed.py. */

/* Making and ending. */

static PyObject *new_handle(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = PyType_GenericNew(type, args, kwargs);
    if (self != NULL) {
        fp_use_init(&((fp_mixed *)self)->use, "the handler");
    }
    return self;
}

typedef struct making {
    ferry_world *world;
    PyObject *lender;
    ferry_mixed_comm_options options;
    ferry_mixed_comm *comm;
} making;

static ferry_status make(void *context, ferry_error *error)
{
    making *m = context;
    return ferry_mixed_comm_create(m->world, &m->options, &m->comm, error);
}

/* Of a service that was initialized, which the handle keeps. */
static bool borrow_transport(making *m)
{
    if (m->lender == NULL || m->lender == Py_None) {
        m->lender = NULL;
        return true;
    }
    if (!PyObject_TypeCheck(m->lender, fp_service_type)) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "transport is not of a service that was initialized");
        return false;
    }
    fp_service *service = (fp_service *)m->lender;
    if (!fp_may_read(&service->use, !service->is_finalized)) {
        return false;
    }
    m->options.transport = ferry_service_transport(service->service);
    return true;
}

static bool parse_making(PyObject *args, PyObject *kwargs, making *m, PyObject **world,
                         ferry_dtype *dtype)
{
    static char *names[] = {
        "world",          "dtype",          "world_rank",      "world_size",
        "local_rank",     "local_size",     "inter_rank",      "inter_size",
        "local_tp_size",  "local_dp_size",  "inter_tp_size",   "inter_dp_size",
        "grid_size",      "max_block_size", "min_block_size",  "min_num_steps",
        "autotune_bytes", "cuda_device",    "ib_enable_ibgda", "should_init_nvshmem",
        "use_autotune",   "deterministic",  "only_construct",  "engines",
        "tune_file",      "transport",      "refusal",         NULL};
    ferry_mixed_comm_options *o = &m->options;
    PyObject *dtype_object;
    int flags[5], cuda_device = -1;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OO$IIIIIIIIIIIIIIKipppppzzOz", names, world, &dtype_object,
            &o->world_rank, &o->world_size, &o->local_rank, &o->local_size, &o->inter_rank,
            &o->inter_size, &o->local_tp_size, &o->local_dp_size, &o->inter_tp_size,
            &o->inter_dp_size, &o->grid_size, &o->max_block_size, &o->min_block_size,
            &o->min_num_steps, &o->autotune_bytes, &cuda_device, &flags[0], &flags[1], &flags[2],
            &flags[3], &flags[4], &o->engines, &o->tune_file, &m->lender, &o->refusal) ||
        !fp_dtype_of(dtype_object, dtype) || !borrow_transport(m)) {
        return false;
    }
    if (cuda_device >= 0) {
        o->device = (ferry_device){FERRY_MEMORY_CUDA, cuda_device};
    }
    o->dtype = dtype->kind;
    o->ib_enable_ibgda = flags[0] != 0;
    o->should_init_nvshmem = flags[1] != 0;
    o->use_autotune = flags[2] != 0;
    o->deterministic = flags[3] != 0;
    o->only_construct = flags[4] != 0;
    return true;
}

static void adopt(fp_mixed *own, const making *m, PyObject *world)
{
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm_get_info(m->comm, &info, NULL);
    Py_INCREF(world);
    Py_XINCREF(m->lender);
    if (m->lender != NULL) {
        ((fp_service *)m->lender)->n_lent++;
    }
    own->world_object = world;
    own->lender = m->lender;
    own->world = m->world;
    own->dtype = m->options.dtype;
    own->dp_size = info.dp_size;
    own->comm = m->comm;
}

static PyObject *open_handle(PyObject *self, PyObject *args, PyObject *kwargs)
{
    fp_mixed *own = (fp_mixed *)self;
    making m = {.options = FERRY_MIXED_COMM_OPTIONS_INIT};
    PyObject *world;
    ferry_dtype dtype;
    if (!parse_making(args, kwargs, &m, &world, &dtype)) {
        return NULL;
    }
    if (own->world_object != NULL) {
        return fp_raise(FERRY_ERR_MISUSE, "the handler was made before: make another one");
    }
    m.world = fp_world_get(world);
    if (m.world == NULL || !fp_enter(&((fp_world *)world)->use, true)) {
        return NULL;
    }
    bool made = fp_block(m.world, make, &m);
    fp_leave(&((fp_world *)world)->use);
    if (!made) {
        return NULL;
    }
    adopt(own, &m, world);
    Py_RETURN_NONE;
}

/* What was not shut down before is by this. */
static void destroy(fp_mixed *own)
{
    ferry_mixed_comm *comm = own->comm;
    own->comm = NULL;
    PyThreadState *state = PyEval_SaveThread();
    ferry_mixed_comm_destroy(comm);
    PyEval_RestoreThread(state);
    if (own->lender != NULL) {
        ((fp_service *)own->lender)->n_lent--;
    }
}

typedef struct shutting {
    ferry_mixed_comm *comm;
    bool was_called;
} shutting;

static ferry_status call_shut_down(void *context, ferry_error *error)
{
    shutting *s = context;
    s->was_called = true;
    return ferry_mixed_comm_shutdown(s->comm, error);
}

/* It waits for the other ranks, so Ctrl-C ends it, and the world, as in a call. */
static PyObject *shut_down(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_mixed *own = (fp_mixed *)self;
    if (own->comm == NULL || !fp_is_own(&own->use)) {
        Py_RETURN_NONE;
    }
    if (own->n_requests > 0) {
        return fp_raise(FERRY_ERR_MISUSE,
                        "shutdown while a call is under way: wait for its request first");
    }
    if (!fp_enter(&own->use, true)) {
        return NULL;
    }
    shutting s = {.comm = own->comm};
    bool good = fp_block(own->world, call_shut_down, &s);
    if (s.was_called) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        destroy(own);
        PyErr_Restore(type, value, trace);
    }
    fp_leave(&own->use);
    return good ? (Py_INCREF(Py_None), Py_None) : NULL;
}

/* The program ends, and with it the handle: to shut it down would be to wait for other ranks. */
static PyObject *abandon(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((fp_mixed *)self)->comm = NULL;
    ((fp_mixed *)self)->is_abandoned = true;
    Py_RETURN_NONE;
}

static void dealloc(PyObject *self)
{
    fp_mixed *own = (fp_mixed *)self;
    PyTypeObject *type = Py_TYPE(self);
    freefunc free = (freefunc)PyType_GetSlot(type, Py_tp_free);
    PyObject_GC_UnTrack(self);
    if (own->comm != NULL && fp_is_own(&own->use)) {
        destroy(own);
    }
    Py_XDECREF(own->world_object);
    Py_XDECREF(own->lender);
    free(self);
    Py_DECREF(type);
}

/* A service that was lent its transport holds tensors, whose attributes may hold the handler. */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
    const fp_mixed *own = (fp_mixed *)self;
    Py_VISIT(own->world_object);
    Py_VISIT(own->lender);
    FP_VISIT_TYPE(self);
    return 0;
}

/* The parts of making. */

typedef ferry_status (*part_fn)(ferry_mixed_comm *comm, ferry_error *error);

typedef struct part {
    ferry_mixed_comm *comm;
    part_fn call;
} part;

static ferry_status call_part(void *context, ferry_error *error)
{
    part *p = context;
    return p->call(p->comm, error);
}

static PyObject *run_part(PyObject *self, part_fn call)
{
    fp_mixed *own = (fp_mixed *)self;
    if (!fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    part p = {own->comm, call};
    bool good = fp_block(own->world, call_part, &p);
    fp_leave(&own->use);
    return good ? (Py_INCREF(Py_None), Py_None) : NULL;
}

static PyObject *init_virtual_memory(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run_part(self, ferry_mixed_comm_init_virtual_memory);
}

static PyObject *init_nvshmem(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run_part(self, ferry_mixed_comm_init_nvshmem);
}

static PyObject *run_autotune(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run_part(self, ferry_mixed_comm_run_autotune);
}

/* Calls. */

static uint64_t rows_out(const fp_mixed *own, uint32_t op, uint64_t rows)
{
    switch (op) {
    case FERRY_MIXED_ALL_GATHER:
    case FERRY_MIXED_ALL_REDUCE_ALL_GATHER:
        return rows * own->dp_size;
    case FERRY_MIXED_REDUCE_SCATTER:
    case FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE:
        return rows / own->dp_size; /* a rest is refused by the library */
    default:
        return rows;
    }
}

static PyObject *make_out(const fp_mixed *own, const fp_mixed_call *c, PyObject *x_in)
{
    unsigned long long rows = rows_out(own, c->op, c->in.tensor.rows);
    PyObject *module = PyImport_ImportModule("ferry._mixed");
    PyObject *made = NULL;
    if (module != NULL) {
        made = PyObject_CallMethod(module, "empty_like", "OK", x_in, rows);
        Py_DECREF(module);
    }
    return made;
}

/* Dims behind the first are the input's; the library, which sees columns only, checks the rows. */
static bool check_dims(const fp_mixed_call *c)
{
    const fp_operand *in = &c->in, *out = &c->out;
    if (in->n_dims != out->n_dims) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "tensor \"x_out\" has %u dims and x_in has %u: give it as many",
                        out->n_dims, in->n_dims);
        return false;
    }
    for (uint32_t d = 1; d < in->n_dims; d++) {
        if (in->shape[d] != out->shape[d]) {
            fp_raise_format(FERRY_ERR_INVALID_INPUT,
                            "tensor \"x_out\" has length %llu in dim %u and x_in has %llu: only "
                            "the first dim may differ",
                            (unsigned long long)out->shape[d], d, (unsigned long long)in->shape[d]);
            return false;
        }
    }
    return true;
}

static bool prepare(const fp_mixed *own, PyObject *op, PyObject *x_in, PyObject *x_out,
                    PyObject *mode, fp_mixed_call *c)
{
    if (!fp_mixed_op_of(op, &c->op) || !fp_mixed_mode_of(mode, &c->mode) ||
        !fp_operand_of(x_in, "x_in", own->dtype, false, &c->in)) {
        return false;
    }
    Py_INCREF(x_in);
    c->x_in = x_in;
    c->x_out = x_out == Py_None ? make_out(own, c, x_in) : (Py_INCREF(x_out), x_out);
    return c->x_out != NULL && fp_operand_of(c->x_out, "x_out", own->dtype, true, &c->out) &&
           check_dims(c);
}

/* In host order it begins behind what is under way on tensors; on a device's queue, behind that. */
static bool await_others(const fp_mixed_call *c)
{
    return ferry_queue_kind(c->queue) == FERRY_MEMORY_CUDA ||
           (fp_space_await(c->in.view.space, c->in.view.source) &&
            fp_space_await(c->out.view.space, c->out.view.source));
}

/*
 * The other ranks may be in this call already: the library refuses an empty one too, uses up its
 * number and tells them, so that they neither wait nor take this rank's next call for this one. An
 * interrupt is no refusal: nothing was called.
 */
static void refuse(fp_mixed *own)
{
    PyObject *type, *value, *trace;
    ferry_mixed_tensor nothing = {ferry_buffer_of(NULL, 0), 0, 0};
    PyErr_Fetch(&type, &value, &trace);
    if (PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
        PyThreadState *state = PyEval_SaveThread();
        ferry_mixed_comm_run(own->comm, FERRY_MIXED_N_OPS, &nothing, &nothing,
                             FERRY_MIXED_MODE_DEFAULT, NULL, NULL);
        PyEval_RestoreThread(state);
    }
    PyErr_Restore(type, value, trace);
}

/* Its own end is waited for, not that of what else is on the queue. */
static ferry_status call_on_queue(fp_mixed *own, const fp_mixed_call *c, ferry_error *error)
{
    ferry_request *request = NULL;
    ferry_status status = ferry_mixed_comm_start(own->comm, c->op, &c->in.tensor, &c->out.tensor,
                                                 c->mode, c->queue, &request, error);
    if (status == FERRY_OK) {
        status = ferry_request_wait(request, error);
        ferry_request_destroy(request);
    }
    return status;
}

static bool carry_out(fp_mixed *own, const fp_mixed_call *c)
{
    ferry_error error;
    bool guarded;
    if (!fp_guard_begin(own->world, &guarded)) {
        return false;
    }
    PyThreadState *state = PyEval_SaveThread();
    ferry_status status = c->queue == NULL || c->is_captured
                              ? ferry_mixed_comm_run(own->comm, c->op, &c->in.tensor,
                                                     &c->out.tensor, c->mode, c->queue, &error)
                              : call_on_queue(own, c, &error);
    PyEval_RestoreThread(state);
    fp_guard_end(guarded);
    return fp_ended(status, &error);
}

PyDoc_STRVAR(
    run_doc,
    FP_DOC("run($self, /, op, x_in, x_out=None, mode=None, queue=None)",
           "Collective: carries out an operation and returns x_out, which is made where it is "
           "None. The first dim counts rows; mode None is the one that was measured as the "
           "fastest. It begins when the earlier work of the queue is done, and returns at its "
           "end."));

bool fp_mixed_call_begin(fp_mixed *own, PyObject *const arguments[5], fp_mixed_call *c)
{
    PyObject *given = arguments[4];
    c->queue_object = fp_queue_for_call(given, &c->is_captured); /* which has waited for a stream */
    bool good = c->queue_object != NULL && fp_queue_of(c->queue_object, &c->queue) &&
                prepare(own, arguments[0], arguments[1], arguments[2], arguments[3], c) &&
                (c->queue_object != given || await_others(c));
    if (!good && !c->is_captured) { /* a capture calls nothing */
        refuse(own);
    }
    return good;
}

void fp_mixed_call_clear(fp_mixed_call *c)
{
    Py_CLEAR(c->queue_object);
    Py_CLEAR(c->x_in);
    Py_CLEAR(c->x_out);
    fp_operand_clear(&c->in);
    fp_operand_clear(&c->out);
}

static PyObject *run(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"op", "x_in", "x_out", "mode", "queue", NULL};
    fp_mixed *own = (fp_mixed *)self;
    fp_mixed_call c = FP_MIXED_CALL_INIT;
    PyObject *a[5] = {NULL, NULL, Py_None, Py_None, Py_None}, *made = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OOO", names, &a[0], &a[1], &a[2], &a[3],
                                     &a[4]) ||
        !fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    if (fp_mixed_call_begin(own, a, &c) && carry_out(own, &c)) {
        made = c.x_out;
        Py_INCREF(made);
    }
    fp_leave(&own->use);
    fp_mixed_call_clear(&c);
    return made;
}

static PyObject *select_mode(PyObject *self, PyObject *args)
{
    fp_mixed *own = (fp_mixed *)self;
    fp_operand in = FP_OPERAND_INIT;
    PyObject *op_object, *x_in;
    uint32_t op, mode = 0;
    ferry_error error;
    ferry_status status = FERRY_OK;
    if (!PyArg_ParseTuple(args, "OO", &op_object, &x_in) ||
        !fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    bool good =
        fp_mixed_op_of(op_object, &op) && fp_operand_of(x_in, "x_in", own->dtype, false, &in);
    if (good) {
        status = ferry_mixed_comm_select_autotune_mode(own->comm, op, &in.tensor, &mode, &error);
    }
    fp_leave(&own->use);
    fp_operand_clear(&in);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    return good ? PyLong_FromLong(fp_mixed_mode_number(mode)) : NULL;
}

/* What a handle says of itself. Nothing here waits, so the interpreter's lock is kept. */

static PyObject *numbers_of(const uint32_t *numbers, size_t n, long (*number_of)(uint32_t))
{
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list != NULL && i < n; i++) {
        PyObject *number = PyLong_FromLong(number_of(numbers[i]));
        if (number == NULL || PyList_SetItem(list, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static long op_number(uint32_t op)
{
    return (long)op;
}

static PyObject *answer(fp_mixed *own, ferry_status status, const ferry_error *error,
                        PyObject *(*make_answer)(const void *answer), const void *content)
{
    fp_leave(&own->use);
    return status == FERRY_OK ? make_answer(content) : fp_raise(status, error->message);
}

static PyObject *valid(PyObject *self, bool modes)
{
    fp_mixed *own = (fp_mixed *)self;
    uint32_t
        numbers[FERRY_MIXED_N_OPS > FERRY_MIXED_N_MODES ? FERRY_MIXED_N_OPS : FERRY_MIXED_N_MODES];
    size_t n;
    ferry_error error;
    if (!fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    ferry_status status =
        modes
            ? ferry_mixed_comm_get_valid_mode_list(own->comm, numbers, FERRY_MIXED_N_MODES, &n,
                                                   &error)
            : ferry_mixed_comm_get_valid_op_list(own->comm, numbers, FERRY_MIXED_N_OPS, &n, &error);
    PyObject *list = status != FERRY_OK
                         ? fp_raise(status, error.message)
                         : numbers_of(numbers, n, modes ? fp_mixed_mode_number : op_number);
    fp_leave(&own->use);
    return list;
}

static PyObject *valid_ops(PyObject *self, PyObject *unused)
{
    (void)unused;
    return valid(self, false);
}

static PyObject *valid_modes(PyObject *self, PyObject *unused)
{
    (void)unused;
    return valid(self, true);
}

static PyObject *info_tuple(const void *content)
{
    const ferry_mixed_comm_info *i = content;
    ferry_dtype kind = {0, 0};
    ferry_dtype_of(i->dtype, &kind, NULL);
    PyObject *dtype = fp_dtype_name(kind);
    return dtype == NULL
               ? NULL
               : Py_BuildValue(
                     "(IIIIIIIIIIIIIINIIKNNNNNzzzNzN)", i->world_rank, i->world_size, i->local_rank,
                     i->local_size, i->inter_rank, i->inter_size, i->local_tp_size,
                     i->local_dp_size, i->inter_tp_size, i->inter_dp_size, i->tp_rank, i->tp_size,
                     i->dp_rank, i->dp_size, dtype, i->grid_size, i->max_block_size,
                     (unsigned long long)i->staging_bytes, PyBool_FromLong(i->virtual_memory),
                     PyBool_FromLong(i->multicast), PyBool_FromLong(i->between_nodes),
                     PyBool_FromLong(i->tuned), PyBool_FromLong(i->deterministic), i->inside_engine,
                     i->between_engine, i->between_note, PyBool_FromLong(i->kernels),
                     i->base_engine, PyBool_FromLong(i->reach == FERRY_MIXED_REACH_OBJECTS));
}

static PyObject *describe(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_mixed *own = (fp_mixed *)self;
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_error error;
    if (!fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    ferry_status status = ferry_mixed_comm_get_info(own->comm, &info, &error);
    return answer(own, status, &error, info_tuple, &info);
}

static PyObject *counts_tuple(const void *content)
{
    const ferry_mixed_counts *c = content;
    return Py_BuildValue("(KKKKKKK)", (unsigned long long)c->n_calls,
                         (unsigned long long)c->n_steps, (unsigned long long)c->n_waits,
                         (unsigned long long)c->inside_bytes_written,
                         (unsigned long long)c->inside_bytes_read,
                         (unsigned long long)c->between_bytes, (unsigned long long)c->n_ahead);
}

static PyObject *counts(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_mixed *own = (fp_mixed *)self;
    ferry_mixed_counts found = FERRY_MIXED_COUNTS_INIT;
    ferry_error error;
    if (!fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    ferry_status status = ferry_mixed_comm_get_counts(own->comm, &found, &error);
    return answer(own, status, &error, counts_tuple, &found);
}

static PyObject *none(const void *unused)
{
    (void)unused;
    Py_RETURN_NONE;
}

static PyObject *reset_counts(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_mixed *own = (fp_mixed *)self;
    ferry_error error;
    if (!fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    ferry_status status = ferry_mixed_comm_reset_counts(own->comm, &error);
    return answer(own, status, &error, none, NULL);
}

static PyObject *save_tuning(PyObject *self, PyObject *args)
{
    fp_mixed *own = (fp_mixed *)self;
    const char *path;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "s", &path) || !fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    ferry_status status = ferry_mixed_comm_save_tuning(own->comm, path, &error);
    return answer(own, status, &error, none, NULL);
}

static PyObject *timing_tuple(const ferry_mixed_comm *comm, size_t index)
{
    ferry_mixed_timing t = FERRY_MIXED_TIMING_INIT;
    ferry_error error;
    ferry_status status = ferry_mixed_comm_timing_at(comm, index, &t, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    return Py_BuildValue("(IlKIdN)", t.op, fp_mixed_mode_number(t.mode),
                         (unsigned long long)t.bytes, t.block_lines, t.seconds,
                         PyBool_FromLong(t.chosen));
}

static PyObject *timings(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_mixed *own = (fp_mixed *)self;
    if (!fp_enter(&own->use, own->comm != NULL)) {
        return NULL;
    }
    size_t n = ferry_mixed_comm_timing_count(own->comm);
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list != NULL && i < n; i++) {
        PyObject *timing = timing_tuple(own->comm, i);
        if (timing == NULL || PyList_SetItem(list, (Py_ssize_t)i, timing) != 0) {
            Py_CLEAR(list);
        }
    }
    fp_leave(&own->use);
    return list;
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((fp_mixed *)self)->comm == NULL);
}

static PyMethodDef methods[] = {
    {"_open", FP_KEYWORDS(open_handle),
     FP_DOC("_open($self, /, world, dtype, *, world_rank, world_size, local_rank, local_size, "
            "inter_rank, inter_size, local_tp_size, local_dp_size, inter_tp_size, "
            "inter_dp_size, grid_size, max_block_size, min_block_size, min_num_steps, "
            "autotune_bytes, cuda_device, ib_enable_ibgda, should_init_nvshmem, use_autotune, "
            "deterministic, only_construct, engines, tune_file, transport, refusal=None)",
            "Makes the handle.")},
    {"_shut_down", shut_down, METH_NOARGS,
     FP_DOC("_shut_down($self, /)", "Ends the handle; again does nothing.")},
    {"_abandon", abandon, METH_NOARGS,
     FP_DOC("_abandon($self, /)", "Leaves the handle to the end of the program.")},
    {"init_virtual_memory", init_virtual_memory, METH_NOARGS,
     FP_DOC("init_virtual_memory($self, /)",
            "Collective: initializes memory that the ranks of a node share.")},
    {"init_nvshmem", init_nvshmem, METH_NOARGS,
     FP_DOC("init_nvshmem($self, /)",
            "Collective: opens what carries bytes between nodes, which on hosts is UCX.")},
    {"run_autotune", run_autotune, METH_NOARGS,
     FP_DOC("run_autotune($self, /)",
            "Collective: measures every operation in every mode and remembers the fastest.")},
    {"run", FP_KEYWORDS(run), run_doc},
    {"start", FP_KEYWORDS(fp_mixed_start),
     FP_DOC("start($self, /, op, x_in, x_out=None, mode=None, queue=None)",
            "Collective: begins what run() carries out, and returns a ferry.MixedRequest. Bytes "
            "move within its test() and wait(), and while this rank waits in another call of the "
            "world; on a device's queue, in its order. Until the end both tensors are the "
            "library's, and in host order the handler begins nothing else.")},
    {"_select_mode", select_mode, METH_VARARGS,
     FP_DOC("_select_mode($self, op, x_in, /)", "The number of the mode that was chosen.")},
    {"_valid_ops", valid_ops, METH_NOARGS,
     FP_DOC("_valid_ops($self, /)", "Numbers of operations.")},
    {"_valid_modes", valid_modes, METH_NOARGS,
     FP_DOC("_valid_modes($self, /)", "Numbers of modes.")},
    {"_describe", describe, METH_NOARGS,
     FP_DOC("_describe($self, /)", "The fields of a MixedCommInfo.")},
    {"_counts", counts, METH_NOARGS,
     FP_DOC("_counts($self, /)", "The fields of a MixedCommCounts.")},
    {"reset_counts", reset_counts, METH_NOARGS,
     FP_DOC("reset_counts($self, /)", "Sets the counts to zero.")},
    {"_timings", timings, METH_NOARGS,
     FP_DOC("_timings($self, /)", "The fields of each MixedCommTiming.")},
    {"_save_tuning", save_tuning, METH_VARARGS,
     FP_DOC("_save_tuning($self, path, /)", "Writes the table of autotune to a file.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"closed", get_closed, NULL, "Whether shutdown() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

bool fp_add_mixed(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc, (void *)FP_DOC("MixedComm()", "The handle under a ferry.MixedCommHandler.")},
        {Py_tp_new, (void *)new_handle},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_dealloc, (void *)dealloc},
        {Py_tp_traverse, (void *)traverse},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.MixedComm",
                               .basicsize = sizeof(fp_mixed),
                               .flags =
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                               .slots = slots};
    return fp_add_type(module, &spec) != NULL && fp_add_mixed_request(module);
}
