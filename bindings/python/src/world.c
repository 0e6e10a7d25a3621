/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "binding.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

PyTypeObject *fp_world_type;

ferry_world *fp_world_get(PyObject *object)
{
    if (!PyObject_TypeCheck(object, fp_world_type)) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "a ferry.World is wanted here");
        return NULL;
    }
    fp_world *own = (fp_world *)object;
    if (!fp_enter(&own->use, own->world != NULL)) {
        return NULL;
    }
    fp_leave(&own->use);
    return own->world;
}

/* The same for what is known since the world began: also while a call is on. */
static ferry_world *read_world(PyObject *object)
{
    fp_world *own = (fp_world *)object;
    return fp_may_read(&own->use, own->world != NULL) ? own->world : NULL;
}

static PyObject *wrap(ferry_world *world)
{
    fp_world *own = PyObject_New(fp_world, fp_world_type);
    if (own == NULL) {
        ferry_world_destroy(world);
        return NULL;
    }
    fp_use_init(&own->use, "the world");
    own->world = world;
    own->is_thread = false;
    return (PyObject *)own;
}

/* Making. */

typedef struct making {
    ferry_world_options options;
    const ferry_bootstrap *bootstrap;
    const char *path;
    uint32_t rank, n_ranks;
    bool joins; /* a world that grows */
    ferry_world *world;
    ferry_world **worlds;
} making;

static ferry_status make(void *context, ferry_error *error)
{
    making *m = context;
    if (m->joins) {
        return ferry_world_join(m->path, &m->options, &m->world, error);
    }
    if (m->bootstrap != NULL) {
        return ferry_world_create_from_bootstrap(m->bootstrap, &m->options, &m->world, error);
    }
    if (m->worlds != NULL) {
        return ferry_world_create_threads(m->n_ranks, &m->options, m->worlds, error);
    }
    return m->path == NULL ? ferry_world_create(&m->options, &m->world, error)
                           : ferry_world_create_from_file(m->path, m->rank, m->n_ranks, &m->options,
                                                          &m->world, error);
}

/* Asked while a world waits for ranks: an exception of a signal's handler stays set, and ends it.
 */
static bool is_interrupted(void *unused)
{
    (void)unused;
    PyGILState_STATE state = PyGILState_Ensure();
    bool raised = PyErr_Occurred() != NULL || PyErr_CheckSignals() != 0;
    PyGILState_Release(state);
    return raised;
}

static ferry_world_options default_options(void)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.is_interrupted = is_interrupted;
    return options;
}

#define OPTION_NAMES "secret", "deadline", "entry_limit", "join_limit", "nodes", "host"
#define OPTION_FORMAT "$zdddzz"
#define OPTION_PLACES(o)                                                                           \
    &(o).secret, &(o).deadline_seconds, &(o).entry_seconds, &(o).join_seconds, &(o).nodes, &(o).host

PyDoc_STRVAR(from_environment_doc,
             FP_DOC("world_from_environment($module, /, *, secret=None, deadline=0.0, "
                    "entry_limit=0.0, join_limit=0.0, nodes=None, host=None)",
                    "Joins the world that the environment describes, as torchrun, mpirun, srun and "
                    "`ferry launch` set it."));

static PyObject *from_environment(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {OPTION_NAMES, NULL};
    making m = {.options = default_options()};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|" OPTION_FORMAT, names,
                                     OPTION_PLACES(m.options))) {
        return NULL;
    }
    return fp_block(NULL, make, &m) ? wrap(m.world) : NULL;
}

static PyObject *from_file(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"path", "rank", "size", OPTION_NAMES, NULL};
    making m = {.options = default_options()};
    PyObject *path = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&II|" OPTION_FORMAT, names, fp_path_bytes,
                                     &path, &m.rank, &m.n_ranks, OPTION_PLACES(m.options))) {
        return NULL;
    }
    m.path = PyBytes_AsString(path);
    PyObject *made = fp_block(NULL, make, &m) ? wrap(m.world) : NULL;
    Py_DECREF(path);
    return made;
}

static PyObject *join(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"path", OPTION_NAMES, NULL};
    making m = {.options = default_options(), .joins = true};
    PyObject *path = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&" OPTION_FORMAT, names,
                                     fp_optional_path_bytes, &path, OPTION_PLACES(m.options))) {
        return NULL;
    }
    m.path = path == NULL ? NULL : PyBytes_AsString(path);
    PyObject *made = fp_block(NULL, make, &m) ? wrap(m.world) : NULL;
    Py_XDECREF(path);
    return made;
}

static PyObject *threads(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"size", OPTION_NAMES, NULL};
    making m = {.options = default_options()};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I|" OPTION_FORMAT, names, &m.n_ranks,
                                     OPTION_PLACES(m.options))) {
        return NULL;
    }
    if (m.n_ranks == 0 || m.n_ranks > FERRY_MAX_RANKS) {
        return fp_raise_format(FERRY_ERR_INVALID_INPUT, "a world of %u threads cannot be made",
                               m.n_ranks);
    }
    m.worlds = calloc(m.n_ranks, sizeof(ferry_world *));
    if (m.worlds == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *list = fp_block(NULL, make, &m) ? PyList_New((Py_ssize_t)m.n_ranks) : NULL;
    for (uint32_t r = 0; r < m.n_ranks && m.worlds[r] != NULL; r++) {
        if (list == NULL) { /* no memory: nobody is to wait for ranks that have no handle */
            ferry_world_abort(m.worlds[r], "its handle could not be made");
            ferry_world_destroy(m.worlds[r]);
            continue;
        }
        PyObject *one = wrap(m.worlds[r]);
        if (one == NULL) {
            Py_CLEAR(list);
            continue;
        }
        ((fp_world *)one)->is_thread = true;
        PyList_SetItem(list, (Py_ssize_t)r, one);
    }
    free(m.worlds);
    return list;
}

/* Over the caller's own way to talk: parts of one length are joined as they come. */

static int bootstrap_gather(void *context, const void *bytes, size_t n_bytes, void *all_out)
{
    fp_exchange *exchange = context;
    const void *all;
    const size_t *lengths;
    if (exchange->exchange.all_gather(exchange, bytes, n_bytes, &all, &lengths) != 0) {
        return -1;
    }
    for (uint32_t r = 0; r < exchange->exchange.n_ranks; r++) {
        if (lengths[r] != n_bytes) {
            return -1;
        }
    }
    memcpy(all_out, all, n_bytes * exchange->exchange.n_ranks);
    return 0;
}

PyDoc_STRVAR(from_exchange_doc,
             FP_DOC("world_from_exchange($module, /, exchange, *, secret=None, deadline=0.0, "
                    "entry_limit=0.0, join_limit=0.0, nodes=None, host=None)",
                    "Joins a world whose ranks find each other by an object with rank, size and "
                    "all_gather(bytes) -> list of bytes."));

static PyObject *from_exchange(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"exchange", OPTION_NAMES, NULL};
    making m = {.options = default_options()};
    PyObject *object;
    fp_exchange exchange;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|" OPTION_FORMAT, names, &object,
                                     OPTION_PLACES(m.options))) {
        return NULL;
    }
    if (!fp_exchange_of(object, &exchange)) {
        fp_exchange_clear(&exchange);
        return NULL;
    }
    ferry_bootstrap bootstrap = FERRY_BOOTSTRAP_INIT;
    bootstrap.context = &exchange;
    bootstrap.rank = exchange.exchange.rank;
    bootstrap.n_ranks = exchange.exchange.n_ranks;
    bootstrap.all_gather = bootstrap_gather;
    m.bootstrap = &bootstrap;
    ferry_error error;
    ferry_status status;
    /* Signals are looked for in the object's own calls. */
    Py_BEGIN_ALLOW_THREADS
    status = make(&m, &error);
    Py_END_ALLOW_THREADS
    PyObject *made = NULL;
    if (status == FERRY_OK) {
        made = wrap(m.world);
    } else if (!PyErr_Occurred()) {
        fp_raise_exchanged(&exchange, status, error.message);
    }
    fp_exchange_clear(&exchange);
    return made;
}

/* Numbers. */

#define NUMBER(name, call)                                                                         \
    static PyObject *get_##name(PyObject *self, void *unused)                                      \
    {                                                                                              \
        (void)unused;                                                                              \
        ferry_world *world = read_world(self);                                                     \
        return world == NULL ? NULL : PyLong_FromUnsignedLong(call);                               \
    }
NUMBER(rank, ferry_world_rank(world))
NUMBER(size, ferry_world_rank_count(world))
NUMBER(epoch, ferry_world_epoch(world))
NUMBER(n_nodes, ferry_world_node_count(world))
NUMBER(node, ferry_world_node_of(world, ferry_world_rank(world)))
NUMBER(local_rank, ferry_world_local_rank(world))
NUMBER(local_size, ferry_world_local_rank_count(world))
#undef NUMBER

static PyObject *get_members(PyObject *self, void *unused)
{
    (void)unused;
    ferry_world *world = read_world(self);
    PyObject *tuple = world == NULL ? NULL : PyTuple_New(ferry_world_rank_count(world));
    for (uint32_t r = 0; tuple != NULL && r < ferry_world_rank_count(world); r++) {
        PyTuple_SetItem(tuple, (Py_ssize_t)r,
                        PyLong_FromUnsignedLong(ferry_world_member_of(world, r)));
    }
    return tuple;
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((fp_world *)self)->world == NULL);
}

/* Collective calls. */

typedef struct collective {
    ferry_world *world;
    const char *bytes;
    Py_ssize_t n_bytes;
    uint32_t root;
    const void *all;
    const size_t *lengths;
    size_t n_all;
    uint32_t min_ranks;
    ferry_world *smaller;
    ferry_grow_options growth;
    ferry_world *larger;
} collective;

static ferry_status call_barrier(void *context, ferry_error *error)
{
    return ferry_world_barrier(((collective *)context)->world, error);
}

static ferry_status call_all_gather(void *context, ferry_error *error)
{
    collective *c = context;
    return ferry_world_all_gather_v(c->world, c->bytes, (size_t)c->n_bytes, &c->all, &c->lengths,
                                    error);
}

static ferry_status call_broadcast(void *context, ferry_error *error)
{
    collective *c = context;
    return ferry_world_broadcast(c->world, c->root, c->bytes, (size_t)c->n_bytes, &c->all,
                                 &c->n_all, error);
}

static ferry_status call_shrink(void *context, ferry_error *error)
{
    collective *c = context;
    return ferry_world_shrink(c->world, c->min_ranks, &c->smaller, error);
}

static ferry_status call_grow(void *context, ferry_error *error)
{
    collective *c = context;
    return ferry_world_grow(c->world, &c->growth, &c->larger, error);
}

/* Runs one on an open world; false with an exception. The world stays entered: fp_leave follows. */
static bool collect(PyObject *self, fp_call_fn call, collective *c)
{
    fp_world *own = (fp_world *)self;
    if (!fp_enter(&own->use, own->world != NULL)) {
        return false;
    }
    c->world = own->world;
    if (fp_block(own->world, call, c)) {
        return true;
    }
    fp_leave(&own->use);
    return false;
}

static PyObject *barrier(PyObject *self, PyObject *unused)
{
    (void)unused;
    collective c = {0};
    if (!collect(self, call_barrier, &c)) {
        return NULL;
    }
    fp_leave(&((fp_world *)self)->use);
    Py_RETURN_NONE;
}

static PyObject *all_gather(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", NULL};
    collective c = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#", names, &c.bytes, &c.n_bytes) ||
        !collect(self, call_all_gather, &c)) {
        return NULL;
    }
    PyObject *list = fp_list_parts(c.all, c.lengths, ferry_world_rank_count(c.world));
    fp_leave(&((fp_world *)self)->use);
    return list;
}

static PyObject *broadcast(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", "root", NULL};
    collective c = {0};
    PyObject *root = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "z#|O", names, &c.bytes, &c.n_bytes, &root) ||
        (root != NULL && !fp_u32(root, "root", &c.root)) || !collect(self, call_broadcast, &c)) {
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(c.all, (Py_ssize_t)c.n_all);
    fp_leave(&((fp_world *)self)->use);
    return bytes;
}

static PyObject *shrink(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"min_size", NULL};
    collective c = {0};
    PyObject *least = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &least) ||
        (least != NULL && !fp_u32(least, "min_size", &c.min_ranks)) ||
        !collect(self, call_shrink, &c)) {
        return NULL;
    }
    fp_leave(&((fp_world *)self)->use);
    PyObject *made = wrap(c.smaller);
    if (made != NULL) {
        ((fp_world *)made)->is_thread = ((fp_world *)self)->is_thread;
    }
    return made;
}

/* A sequence of numbers, to be freed with PyMem_Free; None is NULL. */
static bool take_members(PyObject *given, uint32_t **members_out, uint32_t n_wanted)
{
    if (given == Py_None) {
        return true;
    }
    Py_ssize_t n = PySequence_Size(given);
    if (n < 0) {
        return false;
    }
    if ((size_t)n != n_wanted) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "members has %zd numbers for %u newcomers", n,
                        n_wanted);
        return false;
    }
    uint32_t *members = PyMem_Calloc((size_t)n + 1, sizeof *members);
    if (members == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *one = PySequence_GetItem(given, i);
        bool fits = one != NULL && fp_u32(one, "a member", &members[i]);
        Py_XDECREF(one);
        if (!fits) {
            PyMem_Free(members);
            return false;
        }
    }
    *members_out = members;
    return true;
}

static PyObject *grow(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"newcomers", "members", "path", "join_limit", NULL};
    collective c = {.growth = FERRY_GROW_OPTIONS_INIT};
    PyObject *members = Py_None, *path = NULL, *made = NULL;
    uint32_t *numbers = NULL;
    const fp_world *own = (const fp_world *)self;
    long n_newcomers = 1;
    if (own->is_thread && own->world != NULL && ferry_world_rank_count(own->world) > 1) {
        return fp_raise(FERRY_ERR_MISUSE,
                        "grow: processes join a world of processes, or of one rank, and this one "
                        "has several threads: start its ranks as processes (`ferry launch`), or "
                        "make it with as many threads as there will be");
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|l$OO&d", names, &n_newcomers, &members,
                                     fp_optional_path_bytes, &path, &c.growth.join_seconds)) {
        return NULL;
    }
    if (n_newcomers < 1) {
        Py_XDECREF(path);
        return fp_raise_format(FERRY_ERR_INVALID_INPUT,
                               "grow: newcomers is %ld; a world grows by one rank at least",
                               n_newcomers);
    }
    c.growth.n_newcomers = n_newcomers > UINT32_MAX ? UINT32_MAX : (uint32_t)n_newcomers;
    if (take_members(members, &numbers, c.growth.n_newcomers)) {
        c.growth.members = numbers;
        c.growth.path = path == NULL ? NULL : PyBytes_AsString(path);
        if (collect(self, call_grow, &c)) {
            fp_leave(&((fp_world *)self)->use);
            made = wrap(c.larger);
        }
    }
    PyMem_Free(numbers);
    Py_XDECREF(path);
    return made;
}

/* From any thread, also while another one waits in a call. */
static PyObject *abort_world(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"reason", NULL};
    const char *reason = "the program ended the world";
    fp_world *own = (fp_world *)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|s", names, &reason)) {
        return NULL;
    }
    if (own->world != NULL && fp_is_own(&own->use)) {
        if (!fp_may_read(&own->use, true)) {
            return NULL;
        }
        ferry_world_abort(own->world, reason);
    }
    Py_RETURN_NONE;
}

static PyObject *check(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_world *own = (fp_world *)self;
    ferry_error error;
    if (read_world(self) == NULL) {
        return NULL;
    }
    ferry_status status = ferry_world_state(own->world, NULL, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    Py_RETURN_NONE;
}

/* The end. */

static void close_handle(fp_world *own)
{
    ferry_world *world = own->world;
    own->world = NULL;
    if (world != NULL && fp_is_own(&own->use)) {
        Py_BEGIN_ALLOW_THREADS
        ferry_world_destroy(world);
        Py_END_ALLOW_THREADS
    }
}

static PyObject *close_world(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_world *own = (fp_world *)self;
    if (own->world == NULL || !fp_is_own(&own->use)) {
        Py_RETURN_NONE;
    }
    if (!fp_enter(&own->use, true)) {
        return NULL;
    }
    close_handle(own);
    fp_leave(&own->use);
    Py_RETURN_NONE;
}

/* With whatever stands on the world, at the end of a program or for a reason: see
 * ferry_world_leave. */
static PyObject *leave_for_good(PyObject *self, PyObject *args)
{
    fp_world *own = (fp_world *)self;
    const char *reason = NULL;
    if (!PyArg_ParseTuple(args, "|z", &reason)) {
        return NULL;
    }
    if (own->world != NULL && !own->use.is_replaced && fp_is_own(&own->use)) {
        Py_BEGIN_ALLOW_THREADS
        ferry_world_leave(own->world, reason);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static void *leave(void *world)
{
    ferry_world_destroy(world);
    return NULL;
}

/*
 * Leaving waits for the other ranks. Of a world of threads the collector lets go one after the
 * other, on one thread: each leaves on a thread of its own, or the first would wait for the second.
 */
static void leave_apart(fp_world *own)
{
    pthread_t thread;
    if (own->is_thread && own->world != NULL && fp_is_own(&own->use) &&
        pthread_create(&thread, NULL, leave, own->world) == 0) {
        pthread_detach(thread);
        own->world = NULL;
    }
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    leave_apart((fp_world *)self);
    close_handle((fp_world *)self);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* <ferry.World, rank 1 of 4> */
static PyObject *repr(PyObject *self)
{
    const fp_world *own = (fp_world *)self;
    if (own->world == NULL || !fp_is_own(&own->use)) {
        return PyUnicode_FromString(own->world == NULL ? "<ferry.World, closed>"
                                                       : "<ferry.World of another process>");
    }
    if (own->use.is_replaced) {
        return PyUnicode_FromString("<ferry.World, which is replaced by a smaller one>");
    }
    return PyUnicode_FromFormat("<ferry.World, rank %u of %u>", ferry_world_rank(own->world),
                                ferry_world_rank_count(own->world));
}

static PyMethodDef methods[] = {
    {"barrier", barrier, METH_NOARGS, FP_DOC("barrier($self, /)", "Waits for all ranks.")},
    {"all_gather", FP_KEYWORDS(all_gather),
     FP_DOC("all_gather($self, /, data)", "Everybody's bytes, in order of ranks.")},
    {"broadcast", FP_KEYWORDS(broadcast),
     FP_DOC("broadcast($self, /, data, root=0)", "What rank `root` gives, on every rank.")},
    {"shrink", FP_KEYWORDS(shrink),
     FP_DOC("shrink($self, /, min_size=0)", "After a loss: a world of the ranks that live.")},
    {"grow", FP_KEYWORDS(grow),
     FP_DOC("grow($self, /, newcomers=1, *, members=None, path=None, join_limit=0.0)",
            "A world of these ranks and of newcomers, which call ferry.init(join=) meanwhile.")},
    {"abort", FP_KEYWORDS(abort_world),
     FP_DOC("abort($self, /, reason='the program ended the world')",
            "Ends the world on every rank, with a reason.")},
    {"check", check, METH_NOARGS,
     FP_DOC("check($self, /)", "Raises why the world has failed, if it has.")},
    {"_leave", leave_for_good, METH_VARARGS,
     FP_DOC("_leave($self, reason=None, /)",
            "Takes part in nothing any more: as the program ends, or at once for a reason.")},
    {"close", close_world, METH_NOARGS, FP_DOC("close($self, /)", "Leaves the world.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"rank", get_rank, NULL, "This rank.", NULL},
    {"size", get_size, NULL, "How many ranks there are.", NULL},
    {"epoch", get_epoch, NULL, "How often the world has shrunk or grown.", NULL},
    {"members", get_members, NULL, "Who each rank is among all members, by which plans name ranks.",
     NULL},
    {"n_nodes", get_n_nodes, NULL, "How many nodes there are.", NULL},
    {"node", get_node, NULL, "The node of this rank.", NULL},
    {"local_rank", get_local_rank, NULL, "This rank's number on its node.", NULL},
    {"local_size", get_local_size, NULL, "How many ranks this node has.", NULL},
    {"closed", get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef functions[] = {
    {"world_from_environment", FP_KEYWORDS(from_environment), from_environment_doc},
    {"world_from_file", FP_KEYWORDS(from_file),
     FP_DOC("world_from_file($module, /, path, rank, size, *, secret=None, deadline=0.0, "
            "entry_limit=0.0, join_limit=0.0, nodes=None, host=None)",
            "Joins a world whose ranks meet in a file.")},
    {"world_join", FP_KEYWORDS(join),
     FP_DOC("world_join($module, /, path=None, *, secret=None, deadline=0.0, entry_limit=0.0, "
            "join_limit=0.0, nodes=None, host=None)",
            "Joins a world whose members call World.grow.")},
    {"world_from_exchange", FP_KEYWORDS(from_exchange), from_exchange_doc},
    {"world_of_threads", FP_KEYWORDS(threads),
     FP_DOC("world_of_threads($module, /, size, *, secret=None, deadline=0.0, entry_limit=0.0, "
            "join_limit=0.0, nodes=None, host=None)",
            "A list of worlds, one for each thread.")},
    {NULL, NULL, 0, NULL},
};

bool fp_add_world(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("World()", "A set of ranks that found each other; ferry.world() has one.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_repr, (void *)repr},
        {Py_tp_dealloc, (void *)dealloc},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry.World",
                               .basicsize = sizeof(fp_world),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    fp_world_type = fp_add_type(module, &spec);
    return fp_world_type != NULL && fp_add_functions(module, functions);
}
