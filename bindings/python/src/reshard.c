/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Planning from what each rank says of its own parameters: models, rosters, and one rank's ops. */
#include "param.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

static PyTypeObject *model_type, *roster_type, *rank_plan_type;

/* Models. They do not change once they are made, so threads and forks may share them. */

typedef struct fp_model {
    PyObject_HEAD
    ferry_model *model;
    PyObject *names; /* resolved name: local name, where they differ */
} fp_model;

static const ferry_model *model_of(PyObject *object, bool *good_out)
{
    *good_out = object == Py_None || PyObject_TypeCheck(object, model_type);
    if (!*good_out) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "a Model or None is wanted here");
    }
    return *good_out && object != Py_None ? ((fp_model *)object)->model : NULL;
}

static bool check_owner(fp_param *p, uint32_t rank)
{
    if (p->has_owner && p->metadata.owner_rank != rank) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "its owner_rank is %u, but it is in the model of rank %u",
                        p->metadata.owner_rank, rank);
        return false;
    }
    p->metadata.owner_rank = rank;
    return true;
}

static bool keep_name(fp_model *own, const fp_param *p)
{
    if (strcmp(p->metadata.name, p->metadata.resolved_name) == 0) {
        return true;
    }
    return PyDict_SetItemString(own->names, p->metadata.resolved_name, p->name) == 0;
}

/* Expert parameters get their names in the whole model now, so that they lead back to local ones.
 */
static bool add_param(fp_model *own, fp_param *p, uint32_t rank, const uint64_t *num_experts)
{
    char buffer[FERRY_NAME_BYTES];
    ferry_param_metadata *m = &p->metadata;
    ferry_error error;
    ferry_status status = FERRY_OK;
    if (!check_owner(p, rank)) {
        return false;
    }
    if (num_experts != NULL && !m->has_num_experts) {
        m->has_num_experts = true;
        m->num_experts = *num_experts;
    }
    if (m->resolved_name == NULL && m->is_ep) {
        status = ferry_param_metadata_resolve_name(m, NULL, buffer, sizeof buffer, &error);
    } else if (m->resolved_name == NULL) {
        m->resolved_name = m->name;
    }
    if (status == FERRY_OK) {
        status = ferry_model_add(own->model, m, &error);
    }
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK && keep_name(own, p);
}

static bool fill_model(fp_model *own, PyObject *list, uint32_t rank, const uint64_t *num_experts)
{
    fp_groups groups;
    bool good = fp_groups_init(&groups);
    for (Py_ssize_t i = 0; good && i < PyTuple_Size(list); i++) {
        fp_param p;
        good = fp_param_read(PyTuple_GetItem(list, i), &groups, &p);
        if (good && !add_param(own, &p, rank, num_experts)) {
            fp_blame(p.name);
            good = false;
        }
        fp_param_clear(&p);
    }
    fp_groups_clear(&groups);
    return good;
}

static PyObject *new_model(void)
{
    fp_model *own = PyObject_New(fp_model, model_type);
    if (own == NULL) {
        return NULL;
    }
    own->model = NULL;
    own->names = PyDict_New();
    ferry_error error;
    ferry_status status = ferry_model_create(&own->model, &error);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    if (own->names == NULL || status != FERRY_OK) {
        Py_CLEAR(own);
    }
    return (PyObject *)own;
}

/* make_model(metadata, rank, num_experts=None) */
static PyObject *make_model(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *sequence, *number, *experts = Py_None;
    uint32_t rank;
    uint64_t n_experts = 0;
    if (!PyArg_ParseTuple(args, "OO|O", &sequence, &number, &experts) ||
        !fp_u32(number, "the rank", &rank) ||
        (experts != Py_None && !fp_u64(experts, "num_experts", &n_experts))) {
        return NULL;
    }
    PyObject *list = PySequence_Tuple(sequence);
    PyObject *own = list == NULL ? NULL : new_model();
    if (own != NULL &&
        !fill_model((fp_model *)own, list, rank, experts == Py_None ? NULL : &n_experts)) {
        Py_CLEAR(own);
    }
    Py_XDECREF(list);
    return own;
}

static Py_ssize_t model_length(PyObject *self)
{
    return (Py_ssize_t)ferry_model_count(((fp_model *)self)->model);
}

static void dealloc_model(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_model_destroy(((fp_model *)self)->model);
    Py_XDECREF(((fp_model *)self)->names);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Options of planning. */

static bool options_of(const char *replica, const char *subset, ferry_plan_options *out)
{
    bool is_seed = strcmp(replica, "seed") == 0;
    if (!is_seed && strcmp(replica, "balanced") != 0) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "replica is \"%.100s\"; give \"balanced\" or \"seed\"", replica);
        return false;
    }
    *out = (ferry_plan_options)FERRY_PLAN_OPTIONS_INIT;
    out->replica = is_seed ? FERRY_REPLICA_SEED : FERRY_REPLICA_BALANCED;
    out->subset = subset;
    return true;
}

/* Rosters. */

typedef struct fp_roster {
    PyObject_HEAD
    fp_use use; /* set and plan may not meet */
    ferry_roster *roster;
} fp_roster;

static PyObject *make_roster(PyObject *module, PyObject *number)
{
    (void)module;
    uint32_t n_ranks;
    ferry_roster *roster = NULL;
    ferry_error error;
    if (!fp_u32(number, "the number of ranks", &n_ranks)) {
        return NULL;
    }
    if (n_ranks == 0) {
        return fp_raise(FERRY_ERR_INVALID_INPUT, "a roster needs at least one rank");
    }
    ferry_status status = ferry_roster_create(n_ranks, &roster, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    fp_roster *own = PyObject_New(fp_roster, roster_type);
    if (own == NULL) {
        ferry_roster_destroy(roster);
        return NULL;
    }
    fp_use_init(&own->use, "the roster");
    own->roster = roster;
    return (PyObject *)own;
}

static PyObject *roster_set(PyObject *self, PyObject *args)
{
    fp_roster *own = (fp_roster *)self;
    PyObject *number, *src, *dst;
    uint32_t rank;
    bool good;
    if (!PyArg_ParseTuple(args, "OOO", &number, &src, &dst) || !fp_u32(number, "the rank", &rank)) {
        return NULL;
    }
    const ferry_model *src_model = model_of(src, &good);
    const ferry_model *dst_model = good ? model_of(dst, &good) : NULL;
    if (!good || !fp_enter(&own->use, true)) {
        return NULL;
    }
    ferry_error error;
    ferry_status status = ferry_roster_set(own->roster, rank, src_model, dst_model, &error);
    fp_leave(&own->use);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    Py_RETURN_NONE;
}

static PyObject *roster_plan(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"replica", "subset", NULL};
    fp_roster *own = (fp_roster *)self;
    const char *replica = "balanced", *subset = NULL;
    ferry_plan_options options;
    ferry_plan *plan = NULL;
    ferry_error error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|sz", names, &replica, &subset) ||
        !options_of(replica, subset, &options) || !fp_enter(&own->use, true)) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_plan_create_from_roster(own->roster, &options, &plan, &error);
    PyEval_RestoreThread(thread);
    fp_leave(&own->use);
    return status == FERRY_OK ? fp_plan_wrap(plan) : fp_raise(status, error.message);
}

static void dealloc_roster(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_roster_destroy(((fp_roster *)self)->roster);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* One rank's ops. They do not change either. */

typedef struct fp_rank_plan {
    PyObject_HEAD
    ferry_reshard_plan *plan;
    /* From names in the whole model to those of this rank's models; NULL where there is none. */
    PyObject *src_names, *dst_names;
    /* Many ops in a row are of one parameter: the last name that was looked up. */
    const char *last[2];
    PyObject *last_name[2];
} fp_rank_plan;

static PyObject *names_of(PyObject *model)
{
    PyObject *names = model == Py_None ? NULL : ((fp_model *)model)->names;
    if (names == NULL || PyDict_Size(names) == 0) {
        return NULL;
    }
    Py_INCREF(names);
    return names;
}

static PyObject *wrap_rank_plan(ferry_reshard_plan *plan, PyObject *src, PyObject *dst)
{
    fp_rank_plan *own = PyObject_New(fp_rank_plan, rank_plan_type);
    if (own == NULL) {
        ferry_reshard_plan_destroy(plan);
        return NULL;
    }
    own->plan = plan;
    own->src_names = names_of(src);
    own->dst_names = names_of(dst);
    own->last[0] = own->last[1] = NULL;
    own->last_name[0] = own->last_name[1] = NULL;
    return (PyObject *)own;
}

/* rank_plan(plan, rank, src_model, dst_model) */
static PyObject *rank_plan(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *object, *number, *src, *dst;
    uint32_t rank;
    bool good;
    ferry_reshard_plan *made = NULL;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "OOOO", &object, &number, &src, &dst) ||
        !fp_u32(number, "the rank", &rank)) {
        return NULL;
    }
    const ferry_plan *plan = fp_plan_get(object);
    if (plan == NULL || (model_of(src, &good), !good) || (model_of(dst, &good), !good)) {
        return NULL;
    }
    if (rank >= ferry_plan_rank_count(plan)) {
        return fp_raise_format(FERRY_ERR_INVALID_INPUT, "rank %u is none of the plan's %u ranks",
                               rank, ferry_plan_rank_count(plan));
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_reshard_plan_create(plan, rank, &made, &error);
    PyEval_RestoreThread(thread);
    return status == FERRY_OK ? wrap_rank_plan(made, src, dst) : fp_raise(status, error.message);
}

/* build_rank_plan(src_model, dst_model, exchange, centralized, replica, subset) */
static PyObject *build_rank_plan(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *src, *dst, *object;
    int centralized;
    const char *replica, *subset;
    bool good;
    fp_exchange exchange;
    ferry_plan_options options;
    ferry_reshard_plan *made = NULL;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "OOOpsz", &src, &dst, &object, &centralized, &replica, &subset) ||
        !options_of(replica, subset, &options)) {
        return NULL;
    }
    const ferry_model *src_model = model_of(src, &good);
    const ferry_model *dst_model = good ? model_of(dst, &good) : NULL;
    if (!good) {
        return NULL;
    }
    if (!fp_exchange_of(object, &exchange)) {
        fp_exchange_clear(&exchange);
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status =
        (centralized ? ferry_reshard_plan_build_centralized : ferry_reshard_plan_build_local)(
            src_model, dst_model, NULL, &exchange.exchange, &options, &made, &error);
    PyEval_RestoreThread(thread);
    PyObject *own = status == FERRY_OK ? wrap_rank_plan(made, src, dst)
                                       : fp_raise_exchanged(&exchange, status, error.message);
    fp_exchange_clear(&exchange);
    return own;
}

/* The name that this rank's own model has for it. */
static PyObject *local_name(fp_rank_plan *own, const ferry_transfer_op *op)
{
    const char *text = op->is_send && op->source_name != NULL ? op->source_name : op->param_name;
    int side = op->is_send ? 0 : 1;
    PyObject *names = op->is_send ? own->src_names : own->dst_names;
    if (own->last[side] != text) {
        PyObject *name = PyUnicode_FromString(text);
        PyObject *local =
            name == NULL || names == NULL ? NULL : PyDict_GetItemWithError(names, name);
        if (local != NULL) {
            Py_INCREF(local);
            Py_DECREF(name);
            name = local;
        }
        if (name == NULL || PyErr_Occurred()) {
            Py_XDECREF(name);
            return NULL;
        }
        Py_XDECREF(own->last_name[side]);
        own->last_name[side] = name;
        own->last[side] = text;
    }
    Py_INCREF(own->last_name[side]);
    return own->last_name[side];
}

/* The fields of TransferOp in their order. */
static PyObject *fields_of(fp_rank_plan *own, const ferry_transfer_op *op)
{
    PyObject *name = local_name(own, op);
    PyObject *mine = name == NULL ? NULL : fp_slices(op->my_slice, op->n_dims);
    PyObject *peer = mine == NULL ? NULL : fp_slices(op->peer_slice, op->peer_n_dims);
    PyObject *made = NULL;
    if (peer != NULL) {
        made = Py_BuildValue("(OIOOOK)", name, op->peer_rank, op->is_send ? Py_True : Py_False,
                             mine, peer, (unsigned long long)op->task_id);
    }
    Py_XDECREF(name);
    Py_XDECREF(mine);
    Py_XDECREF(peer);
    return made;
}

/* ops(is_send, begin, end) -> list of tuples; the caller has checked the range. */
static PyObject *ops(PyObject *self, PyObject *args)
{
    fp_rank_plan *own = (fp_rank_plan *)self;
    int is_send;
    Py_ssize_t begin, end;
    if (!PyArg_ParseTuple(args, "pnn", &is_send, &begin, &end)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = begin; list != NULL && i < end; i++) {
        ferry_transfer_op op = FERRY_TRANSFER_OP_INIT;
        ferry_error error;
        ferry_status status =
            is_send ? ferry_reshard_plan_send_at(own->plan, (size_t)i, &op, &error)
                    : ferry_reshard_plan_receive_at(own->plan, (size_t)i, &op, &error);
        PyObject *one = status == FERRY_OK ? fields_of(own, &op) : fp_raise(status, error.message);
        if (one == NULL || PyList_Append(list, one) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *get_n_sends(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(ferry_reshard_plan_send_count(((fp_rank_plan *)self)->plan));
}

static PyObject *get_n_recvs(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(ferry_reshard_plan_receive_count(((fp_rank_plan *)self)->plan));
}

static PyObject *get_digest(PyObject *self, void *unused)
{
    (void)unused;
    char digest[FERRY_DIGEST_BYTES];
    ferry_reshard_plan_digest(((fp_rank_plan *)self)->plan, digest, sizeof digest);
    return PyUnicode_FromString(digest);
}

static PyObject *describe(PyObject *self, PyObject *unused)
{
    (void)unused;
    char text[256];
    ferry_reshard_plan_describe(((fp_rank_plan *)self)->plan, text, sizeof text);
    return PyUnicode_FromString(text);
}

static void dealloc_rank_plan(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    fp_rank_plan *own = (fp_rank_plan *)self;
    ferry_reshard_plan_destroy(own->plan);
    Py_XDECREF(own->src_names);
    Py_XDECREF(own->dst_names);
    Py_XDECREF(own->last_name[0]);
    Py_XDECREF(own->last_name[1]);
    PyObject_Free(self);
    Py_DECREF(type);
}

static bool add_types(PyObject *module)
{
    static PyType_Slot model_slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("Model()", "What one rank has on one side; make_model makes it.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_sq_length, (void *)model_length},
        {Py_tp_dealloc, (void *)dealloc_model},
        {0, NULL},
    };
    static PyType_Spec model_spec = {.name = "ferry._ferry.Model",
                                     .basicsize = sizeof(fp_model),
                                     .flags = Py_TPFLAGS_DEFAULT,
                                     .slots = model_slots};
    static PyMethodDef roster_methods[] = {
        {"set", roster_set, METH_VARARGS,
         FP_DOC("set($self, rank, src_model, dst_model, /)",
                "What a rank has: source and destination model.")},
        {"plan", FP_KEYWORDS(roster_plan),
         FP_DOC("plan($self, /, replica='balanced', subset=None)", "The plan of all ranks.")},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot roster_slots[] = {
        {Py_tp_doc, (void *)FP_DOC("Roster()", "What every rank has; make_roster makes it.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, roster_methods},
        {Py_tp_dealloc, (void *)dealloc_roster},
        {0, NULL},
    };
    static PyType_Spec roster_spec = {.name = "ferry._ferry.Roster",
                                      .basicsize = sizeof(fp_roster),
                                      .flags = Py_TPFLAGS_DEFAULT,
                                      .slots = roster_slots};
    model_type = fp_add_type(module, &model_spec);
    roster_type = model_type == NULL ? NULL : fp_add_type(module, &roster_spec);
    return roster_type != NULL;
}

static bool add_rank_plan(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"ops", ops, METH_VARARGS,
         FP_DOC("ops($self, is_send, begin, end, /)", "The fields of some sends or receives.")},
        {"describe", describe, METH_NOARGS,
         FP_DOC("describe($self, /)", "Counts and bytes as a text.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"n_sends", get_n_sends, NULL, "How many sends there are.", NULL},
        {"n_recvs", get_n_recvs, NULL, "How many receives there are.", NULL},
        {"digest", get_digest, NULL, "Of the whole plan: equal on all ranks.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("RankPlan()",
                        "The ops of one rank; rank_plan and build_rank_plan make them.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_dealloc, (void *)dealloc_rank_plan},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.RankPlan",
                               .basicsize = sizeof(fp_rank_plan),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    rank_plan_type = fp_add_type(module, &spec);
    return rank_plan_type != NULL;
}

bool fp_add_reshard(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"make_model", make_model, METH_VARARGS,
         FP_DOC("make_model($module, metadata, rank, num_experts=None, /)",
                "A model of ParameterMetadata.")},
        {"make_roster", make_roster, METH_O,
         FP_DOC("make_roster($module, n_ranks, /)",
                "A roster of so many ranks, which have nothing yet.")},
        {"rank_plan", rank_plan, METH_VARARGS,
         FP_DOC("rank_plan($module, plan, rank, src_model, dst_model, /)",
                "The ops of one rank of a plan.")},
        {"build_rank_plan", build_rank_plan, METH_VARARGS,
         FP_DOC("build_rank_plan($module, src_model, dst_model, exchange, centralized, replica, "
                "subset, /)",
                "The same among ranks that talk.")},
        {NULL, NULL, 0, NULL},
    };
    return add_types(module) && add_rank_plan(module) && fp_add_param(module) &&
           fp_add_functions(module, functions);
}
