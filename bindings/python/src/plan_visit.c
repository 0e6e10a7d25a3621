/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is visited of plans: moves, traffic, shards, and what is computed of blocks. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* Texts of a plan come again and again in one place of memory: the last one is kept as a str. */
typedef struct words {
    const char *text;
    PyObject *object;
} words;

static PyObject *word(words *last, const char *text)
{
    if (text == NULL) {
        return Py_None;
    }
    if (last->text != text) {
        PyObject *object = PyUnicode_FromString(text);
        if (object == NULL) {
            return NULL;
        }
        Py_XDECREF(last->object);
        *last = (words){text, object};
    }
    return last->object;
}

/*
 * Moves, block by block. The library hands moves over until it is told to stop, while Python asks
 * for one after the other. So a block is collected, and for the next one a visit begins anew and
 * leaves out what has been seen. In a plan of very many moves that would be too much to leave out:
 * it is visited rank by rank instead, for the moves that the rank receives.
 */
enum { FIRST_BLOCK = 256, LARGEST_BLOCK = 1 << 15, MOST_LEFT_OUT = 1 << 22 };

typedef struct moves {
    PyObject_HEAD
    PyObject *object;       /* the plan's */
    const ferry_plan *plan; /* NULL: the end */
    uint32_t rank;          /* that is visited */
    bool rank_by_rank;
    bool busy;
    uint64_t n_seen; /* of this visit's moves */
    ferry_move *block;
    size_t capacity, n, next;
    words tensor, source;
    ferry_dtype dtype;
    PyObject *dtype_name;
} moves;

static PyTypeObject *moves_type;

typedef struct collecting {
    moves *own;
    uint64_t n_left_out;
} collecting;

static ferry_status collect(void *context, const ferry_move *move)
{
    collecting *c = context;
    moves *own = c->own;
    if (own->rank_by_rank && move->to != own->rank) {
        return FERRY_OK;
    }
    if (c->n_left_out < own->n_seen) {
        c->n_left_out++;
        return FERRY_OK;
    }
    if (own->n == own->capacity) {
        return FERRY_ERR_STOPPED;
    }
    own->block[own->n++] = *move;
    return FERRY_OK;
}

/* One visit more; sets plan to NULL when there is nothing behind this block. */
static ferry_status visit_block(moves *own, ferry_error *error)
{
    collecting c = {own, 0};
    ferry_status status = ferry_plan_visit(own->plan, own->rank, collect, &c, NULL, error);
    if (status == FERRY_ERR_STOPPED) {
        own->n_seen += own->n;
        return FERRY_OK;
    }
    own->n_seen = 0;
    if (!own->rank_by_rank || ++own->rank >= ferry_plan_rank_count(own->plan)) {
        own->plan = NULL;
    }
    return status;
}

static ferry_status fill_block(moves *own, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (own->capacity < LARGEST_BLOCK) {
        size_t capacity = own->capacity == 0 ? FIRST_BLOCK : 4 * own->capacity;
        free(own->block);
        own->capacity = capacity < LARGEST_BLOCK ? capacity : LARGEST_BLOCK;
        own->block = malloc(own->capacity * sizeof *own->block);
        if (own->block == NULL) {
            own->capacity = 0;
            return FERRY_ERR_NO_MEMORY;
        }
    }
    own->n = own->next = 0;
    while (status == FERRY_OK && own->n == 0 && own->plan != NULL) {
        status = visit_block(own, error);
    }
    return status;
}

static bool refill(moves *own)
{
    ferry_error error = {"moves of a plan: memory could not be allocated"};
    ferry_status status;
    if (own->busy) {
        fp_raise(FERRY_ERR_MISUSE, "another thread is in this iterator of moves: call "
                                   "plan.moves() once for each thread");
        return false;
    }
    own->busy = true;
    PyThreadState *thread = PyEval_SaveThread();
    status = fill_block(own, &error);
    PyEval_RestoreThread(thread);
    own->busy = false;
    if (status != FERRY_OK) {
        own->plan = NULL;
        own->n = own->next = 0;
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

static PyObject *name_dtype(moves *own, ferry_dtype dtype)
{
    if (own->dtype_name == NULL || own->dtype.kind != dtype.kind ||
        own->dtype.element_bits != dtype.element_bits) {
        PyObject *name = fp_dtype_name(dtype);
        if (name == NULL) {
            return NULL;
        }
        Py_XDECREF(own->dtype_name);
        own->dtype_name = name;
        own->dtype = dtype;
    }
    return own->dtype_name;
}

/* The lengths on the two sides are mostly equal, and then one object. */
static PyObject *source_lengths(const ferry_move *m, PyObject *lengths)
{
    if (lengths != NULL && m->n_dims == m->src_n_dims &&
        memcmp(m->length, m->src_length, m->n_dims * sizeof m->length[0]) == 0) {
        Py_INCREF(lengths);
        return lengths;
    }
    return lengths == NULL ? NULL : fp_u64_tuple(m->src_length, m->src_n_dims);
}

/* Where a box begins in a parameter of a side in boxes, and the strides of its dimensions. */
static bool put_place(PyObject *tuple, Py_ssize_t first, const char *parameter, uint64_t offset,
                      const uint64_t *strides, uint32_t n_dims)
{
    bool is_there = parameter != NULL;
    PyObject *fields[3] = {PyUnicode_FromString(is_there ? parameter : ""),
                           PyLong_FromUnsignedLongLong(is_there ? offset : 0),
                           fp_u64_tuple(strides, is_there ? n_dims : 0)};
    bool good = true;
    if (!is_there && fields[0] != NULL) {
        Py_DECREF(fields[0]);
        fields[0] = Py_None;
        Py_INCREF(Py_None);
    }
    for (Py_ssize_t i = 0; i < 3; i++) {
        good = good && fields[i] != NULL;
        PyTuple_SetItem(tuple, first + i, fields[i]);
    }
    return good;
}

enum { FIELDS_OF_ALL = 11, FIELDS_OF_MOVE = FIELDS_OF_ALL + 6 };

/* In the order of ferry.Move's fields. */
static PyObject *tuple_of(moves *own, const ferry_move *m)
{
    PyObject *tensor = word(&own->tensor, m->tensor);
    PyObject *source = tensor == NULL ? NULL : word(&own->source, m->source);
    PyObject *dtype = source == NULL ? NULL : name_dtype(own, m->dtype);
    PyObject *lengths = dtype == NULL ? NULL : fp_u64_tuple(m->length, m->n_dims);
    PyObject *others = source_lengths(m, lengths);
    PyObject *at = others == NULL ? NULL : fp_u64_tuple(m->dst_begin, m->n_dims);
    PyObject *begin = at == NULL ? NULL : fp_u64_tuple(m->src_begin, m->src_n_dims);
    PyObject *tuple = begin == NULL ? NULL : PyTuple_New(FIELDS_OF_MOVE);
    PyObject *fields[FIELDS_OF_ALL];
    bool good = tuple != NULL;
    if (good) {
        Py_INCREF(tensor), Py_INCREF(source), Py_INCREF(dtype);
        Py_INCREF(at), Py_INCREF(begin), Py_INCREF(lengths), Py_INCREF(others);
        fields[0] = PyLong_FromUnsignedLongLong(m->task_id);
        fields[1] = tensor, fields[2] = source, fields[3] = dtype;
        fields[4] = PyLong_FromUnsignedLong(m->from);
        fields[5] = PyLong_FromUnsignedLong(m->to);
        fields[6] = at, fields[7] = begin, fields[8] = lengths, fields[9] = others;
        fields[10] = PyLong_FromUnsignedLongLong(m->bytes);
    }
    for (Py_ssize_t i = 0; tuple != NULL && i < FIELDS_OF_ALL; i++) {
        good = good && fields[i] != NULL;
        PyTuple_SetItem(tuple, i, fields[i]); /* a new tuple takes what it is given, NULL too */
    }
    Py_XDECREF(lengths);
    Py_XDECREF(others);
    Py_XDECREF(at);
    Py_XDECREF(begin);
    good = good && put_place(tuple, FIELDS_OF_ALL, m->dst_parameter, m->dst_offset, m->dst_strides,
                             m->n_dims);
    good = good && put_place(tuple, FIELDS_OF_ALL + 3, m->src_parameter, m->src_offset,
                             m->src_strides, m->src_n_dims);
    if (!good) {
        Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *next_move(PyObject *self)
{
    moves *own = (moves *)self;
    if (own->busy || (own->next == own->n && own->plan != NULL)) {
        if (!refill(own)) {
            return NULL;
        }
    }
    return own->next < own->n ? tuple_of(own, &own->block[own->next++]) : NULL;
}

static PyObject *same(PyObject *self)
{
    Py_INCREF(self);
    return self;
}

static void dealloc_moves(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    moves *own = (moves *)self;
    free(own->block);
    Py_XDECREF(own->tensor.object);
    Py_XDECREF(own->source.object);
    Py_XDECREF(own->dtype_name);
    Py_XDECREF(own->object);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyObject *fp_plan_moves(PyObject *self, PyObject *number)
{
    const ferry_plan *plan = fp_plan_get(self);
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    uint32_t rank;
    ferry_error error;
    if (plan == NULL || !fp_plan_rank(plan, number, &rank)) {
        return NULL;
    }
    ferry_status status = ferry_plan_get_totals(plan, &totals, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    moves *own = PyObject_New(moves, moves_type);
    if (own == NULL) {
        return NULL;
    }
    memset((char *)own + sizeof(PyObject), 0, sizeof *own - sizeof(PyObject));
    Py_INCREF(self);
    own->object = self;
    own->plan = plan;
    own->rank_by_rank = rank == FERRY_ALL_RANKS && totals.n_moves > MOST_LEFT_OUT;
    own->rank = own->rank_by_rank ? 0 : rank;
    return (PyObject *)own;
}

/*
 * Traffic. Moves come in order of receivers, so what one receiver gets from each sender is summed
 * in a row, which is read when the next receiver comes.
 */
typedef struct flow {
    uint32_t from, to;
    uint64_t bytes;
} flow;

typedef struct traffic {
    uint64_t *row;     /* by sender; 0: none yet */
    uint32_t *senders; /* of the row */
    uint32_t n_senders;
    uint32_t to;
    flow *flows;
    size_t n, capacity;
    uint64_t n_visited;
    PyThreadState *thread;
    bool interrupted;
} traffic;

static ferry_status end_row(traffic *t)
{
    if (t->capacity - t->n < t->n_senders) {
        size_t capacity = 2 * t->capacity + t->n_senders;
        flow *grown = realloc(t->flows, capacity * sizeof *grown);
        if (grown == NULL) {
            return FERRY_ERR_NO_MEMORY;
        }
        t->flows = grown;
        t->capacity = capacity;
    }
    for (uint32_t i = 0; i < t->n_senders; i++) {
        uint32_t from = t->senders[i];
        t->flows[t->n++] = (flow){from, t->to, t->row[from]};
        t->row[from] = 0;
    }
    t->n_senders = 0;
    return FERRY_OK;
}

/* Plans may have many moves: Ctrl-C is looked for now and then. */
static bool is_interrupted(traffic *t)
{
    PyEval_RestoreThread(t->thread);
    t->interrupted = PyErr_CheckSignals() != 0;
    t->thread = PyEval_SaveThread();
    return t->interrupted;
}

static ferry_status sum_up(void *context, const ferry_move *move)
{
    enum { BETWEEN_LOOKS = 1 << 22 };
    traffic *t = context;
    ferry_status status = FERRY_OK;
    if (++t->n_visited % BETWEEN_LOOKS == 0 && is_interrupted(t)) {
        return FERRY_ERR_STOPPED;
    }
    if (move->to != t->to) {
        status = end_row(t);
        t->to = move->to;
    }
    if (status == FERRY_OK && move->bytes != 0) {
        if (t->row[move->from] == 0) {
            t->senders[t->n_senders++] = move->from;
        }
        t->row[move->from] += move->bytes;
    }
    return status;
}

static PyObject *dict_of_flows(const traffic *t)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < t->n; i++) {
        const flow *f = &t->flows[i];
        PyObject *key = Py_BuildValue("(II)", (unsigned)f->from, (unsigned)f->to);
        PyObject *sum = PyLong_FromUnsignedLongLong(f->bytes);
        if (key == NULL || sum == NULL || PyDict_SetItem(dict, key, sum) != 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(key);
        Py_XDECREF(sum);
    }
    return dict;
}

PyObject *fp_plan_traffic(PyObject *self, PyObject *number)
{
    const ferry_plan *plan = fp_plan_get(self);
    uint32_t rank;
    traffic t = {.to = 0};
    ferry_error error = {"traffic of a plan: memory could not be allocated"};
    ferry_status status;
    if (plan == NULL || !fp_plan_rank(plan, number, &rank)) {
        return NULL;
    }
    size_t world = ferry_plan_rank_count(plan);
    t.row = calloc(world, sizeof *t.row);
    t.senders = calloc(world, sizeof *t.senders);
    status = t.row == NULL || t.senders == NULL ? FERRY_ERR_NO_MEMORY : FERRY_OK;
    t.thread = PyEval_SaveThread();
    if (status == FERRY_OK) {
        status = ferry_plan_visit(plan, rank, sum_up, &t, NULL, &error);
    }
    status = status == FERRY_OK ? end_row(&t) : status;
    PyEval_RestoreThread(t.thread);
    PyObject *dict = NULL;
    if (status == FERRY_OK) {
        dict = dict_of_flows(&t);
    } else if (!t.interrupted) {
        fp_raise(status, error.message);
    }
    free(t.row);
    free(t.senders);
    free(t.flows);
    return dict;
}

/* Shards. A rank has as many as the model has tensors, so objects are made in the visit. */

static ferry_status add_shard(void *context, const ferry_shard *s)
{
    PyObject *global = fp_u64_tuple(s->global, s->n_dims);
    PyObject *local = fp_u64_tuple(s->local, s->n_dims);
    PyObject *dtype = fp_dtype_name(s->dtype);
    PyObject *flat = s->is_flat ? Py_BuildValue("(KK)", (unsigned long long)s->flat_begin,
                                                (unsigned long long)s->flat_end)
                                : (Py_INCREF(Py_None), Py_None);
    PyObject *shard = NULL;
    if (global != NULL && local != NULL && dtype != NULL && flat != NULL) {
        shard = Py_BuildValue("(sOOOOK)", s->tensor, dtype, local, global, flat,
                              (unsigned long long)s->bytes);
    }
    int failed = shard == NULL ? -1 : PyList_Append(context, shard);
    Py_XDECREF(global);
    Py_XDECREF(local);
    Py_XDECREF(dtype);
    Py_XDECREF(flat);
    Py_XDECREF(shard);
    return failed == 0 ? FERRY_OK : FERRY_ERR_STOPPED;
}

PyObject *fp_plan_shards(PyObject *self, PyObject *args)
{
    const ferry_plan *plan = fp_plan_get(self);
    const char *side;
    PyObject *number, *list;
    uint32_t rank;
    ferry_error error;
    if (plan == NULL || !PyArg_ParseTuple(args, "sO", &side, &number) ||
        !fp_plan_rank(plan, number, &rank)) {
        return NULL;
    }
    bool at_source = strcmp(side, "source") == 0;
    if (!at_source && strcmp(side, "destination") != 0) {
        return fp_raise_format(FERRY_ERR_INVALID_INPUT,
                               "the side is \"%.100s\"; give \"source\" or \"destination\"", side);
    }
    if (rank == FERRY_ALL_RANKS) {
        return fp_raise(FERRY_ERR_INVALID_INPUT, "shards are asked for by rank");
    }
    list = PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    ferry_status status =
        ferry_plan_visit_shards(plan, at_source ? FERRY_SIDE_SOURCE : FERRY_SIDE_DESTINATION, rank,
                                add_shard, list, &error);
    if (status != FERRY_OK) {
        Py_DECREF(list);
        return PyErr_Occurred() ? NULL : fp_raise(status, error.message);
    }
    return list;
}

/* Lists of tuples, one for each that is visited. */

/* Takes the tuple; a list that could not grow ends the visit with an exception. */
static ferry_status append(PyObject *list, PyObject *tuple)
{
    int failed = tuple == NULL ? -1 : PyList_Append(list, tuple);
    Py_XDECREF(tuple);
    return failed == 0 ? FERRY_OK : FERRY_ERR_STOPPED;
}

/* Takes the list. */
static PyObject *visited(PyObject *list, ferry_status status, const ferry_error *error)
{
    if (status == FERRY_OK) {
        return list;
    }
    Py_DECREF(list);
    return PyErr_Occurred() ? NULL : fp_raise(status, error->message);
}

static ferry_status add_block_work(void *context, const ferry_block_work *w)
{
    return append(context, Py_BuildValue("(sssIK)", w->tensor, w->dequantizes ? "values" : "codes",
                                         w->at_receiver ? "receiver" : "sender", (unsigned)w->rank,
                                         (unsigned long long)w->staging_bytes));
}

PyObject *fp_plan_block_work(PyObject *self, PyObject *unused)
{
    (void)unused;
    const ferry_plan *plan = fp_plan_get(self);
    ferry_error error;
    PyObject *list = plan == NULL ? NULL : PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    return visited(list, ferry_plan_visit_block_work(plan, add_block_work, list, &error), &error);
}

static ferry_status add_idle(void *context, uint32_t first, uint32_t n_ranks)
{
    return append(context, Py_BuildValue("(II)", (unsigned)first, (unsigned)n_ranks));
}

PyObject *fp_plan_idle(PyObject *self, PyObject *unused)
{
    (void)unused;
    const ferry_plan *plan = fp_plan_get(self);
    ferry_error error;
    PyObject *list = plan == NULL ? NULL : PyList_New(0);
    return list == NULL
               ? NULL
               : visited(list, ferry_plan_visit_idle(plan, add_idle, list, &error), &error);
}

static ferry_status add_unused(void *context, const ferry_unused *u)
{
    return append(
        context, Py_BuildValue("(ssnzOzII)",
                               u->is_node          ? "cluster"
                               : u->is_destination ? "destination"
                                                   : "source",
                               u->is_node    ? "node"
                               : u->is_stage ? "stage"
                                             : "rule",
                               (Py_ssize_t)u->index, u->match, u->is_hidden ? Py_True : Py_False,
                               u->axis, (unsigned)u->first_coordinate, (unsigned)u->n_coordinates));
}

PyObject *fp_spec_unused(PyObject *self, PyObject *unused)
{
    (void)unused;
    const ferry_spec *spec = fp_spec_get(self);
    ferry_error error;
    PyObject *list = spec == NULL ? NULL : PyList_New(0);
    return list == NULL
               ? NULL
               : visited(list, ferry_spec_visit_unused(spec, add_unused, list, &error), &error);
}

bool fp_add_plan_visit(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("Moves()",
                        "Moves of a plan as tuples, one after the other; moves() returns them.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_iter, (void *)same},
        {Py_tp_iternext, (void *)next_move},
        {Py_tp_dealloc, (void *)dealloc_moves},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.Moves",
                               .basicsize = sizeof(moves),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    moves_type = fp_add_type(module, &spec);
    return moves_type != NULL;
}
