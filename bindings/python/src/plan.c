/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Specs, and plans but for what is visited of them (plan_visit.c). */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct fp_spec {
    PyObject_HEAD
    ferry_spec *spec;
} fp_spec;

typedef struct fp_plan {
    PyObject_HEAD
    ferry_plan *plan;
} fp_plan;

static PyTypeObject *spec_type, *plan_type;

/* Specs. */

PyObject *fp_spec_wrap(ferry_spec *spec)
{
    fp_spec *own = PyObject_New(fp_spec, spec_type);
    if (own == NULL) {
        ferry_spec_destroy(spec);
        return NULL;
    }
    own->spec = spec;
    return (PyObject *)own;
}

static PyObject *spec_parse(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"text", "name", NULL};
    const char *text, *name = "spec";
    Py_ssize_t length;
    ferry_spec *spec;
    ferry_error error;
    ferry_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s#|s", names, &text, &length, &name)) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    status = ferry_spec_parse(text, (size_t)length, name, &spec, &error);
    PyEval_RestoreThread(thread);
    return status == FERRY_OK ? fp_spec_wrap(spec) : fp_raise(status, error.message);
}

/* A side of the rank itself; false with an exception. NULL of a text that is NULL. */
static bool side_of(const char *text, const char *role, ferry_side **side_out)
{
    ferry_error error;
    *side_out = NULL;
    ferry_status status =
        text == NULL ? FERRY_OK : ferry_side_parse(text, strlen(text), role, side_out, &error);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    return status == FERRY_OK;
}

/* side_check(text, role): what is wrong with a side by itself, before others are told of it. */
static PyObject *side_check(PyObject *module, PyObject *args)
{
    (void)module;
    const char *text, *role;
    ferry_side *side;
    if (!PyArg_ParseTuple(args, "ss", &text, &role) || !side_of(text, role, &side)) {
        return NULL;
    }
    ferry_side_destroy(side);
    Py_RETURN_NONE;
}

/* spec_exchange(base, source, destination, exchange). Texts that side_check has not let pass fail
 * on this rank alone. */
static PyObject *spec_exchange(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *base, *object, *own = NULL;
    const char *texts[2];
    ferry_side *sides[2] = {NULL, NULL};
    ferry_spec *made = NULL;
    fp_exchange exchange;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "OzzO", &base, &texts[0], &texts[1], &object)) {
        return NULL;
    }
    const ferry_spec *spec = fp_spec_get(base);
    if (spec == NULL || !fp_exchange_of(object, &exchange)) {
        return NULL;
    }
    if (side_of(texts[0], "source", &sides[0]) && side_of(texts[1], "destination", &sides[1])) {
        PyThreadState *thread = PyEval_SaveThread();
        ferry_status status =
            ferry_spec_exchange(spec, sides[0], sides[1], &exchange.exchange, &made, &error);
        PyEval_RestoreThread(thread);
        own = status == FERRY_OK ? fp_spec_wrap(made)
                                 : fp_raise_exchanged(&exchange, status, error.message);
    }
    ferry_side_destroy(sides[0]);
    ferry_side_destroy(sides[1]);
    fp_exchange_clear(&exchange);
    return own;
}

static ferry_status load_spec(void *spec_out, const char *path, ferry_error *error)
{
    return ferry_spec_load(path, spec_out, error);
}

static PyObject *spec_load(PyObject *module, PyObject *path)
{
    (void)module;
    ferry_spec *spec;
    return fp_with_path(path, load_spec, &spec) ? fp_spec_wrap(spec) : NULL;
}

const ferry_spec *fp_spec_get(PyObject *object)
{
    if (!PyObject_TypeCheck(object, spec_type)) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "a ferry.Spec is wanted here");
        return NULL;
    }
    return ((fp_spec *)object)->spec;
}

static PyObject *get_tensor_count(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(ferry_spec_tensor_count(((fp_spec *)self)->spec));
}

static PyObject *write_spec(PyObject *self, PyObject *unused)
{
    (void)unused;
    const ferry_spec *spec = ((fp_spec *)self)->spec;
    fp_text text = {NULL, 0, 0};
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_spec_write_json(spec, fp_text_write, &text, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_text_clear(&text);
        return fp_raise(status, error.message);
    }
    return fp_text_take(&text);
}

static void dealloc_spec(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_spec_destroy(((fp_spec *)self)->spec);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Making plans. */

PyObject *fp_plan_wrap(ferry_plan *plan)
{
    fp_plan *own = PyObject_New(fp_plan, plan_type);
    if (own == NULL) {
        ferry_plan_destroy(plan);
        return NULL;
    }
    own->plan = plan;
    return (PyObject *)own;
}

const ferry_plan *fp_plan_get(PyObject *object)
{
    if (!PyObject_TypeCheck(object, plan_type)) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "a ferry.Plan is wanted here");
        return NULL;
    }
    return ((fp_plan *)object)->plan;
}

bool fp_replica_of(const char *word, uint32_t *replica_out)
{
    bool is_seed = strcmp(word, "seed") == 0;
    if (!is_seed && strcmp(word, "balanced") != 0) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "replica is \"%.100s\"; give \"balanced\" or \"seed\"", word);
        return false;
    }
    *replica_out = is_seed ? FERRY_REPLICA_SEED : FERRY_REPLICA_BALANCED;
    return true;
}

/* A sequence of ranks to an array, which the caller frees. */
static bool ranks_of(PyObject *sequence, uint32_t **ranks_out, size_t *n_out)
{
    PyObject *list = sequence == NULL ? PyList_New(0) : PySequence_List(sequence);
    if (list == NULL) {
        return false;
    }
    size_t n = (size_t)PyList_Size(list);
    uint32_t *ranks = malloc((n + 1) * sizeof *ranks);
    bool good = ranks != NULL;
    if (!good) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; good && i < n; i++) {
        good = fp_u32(PyList_GetItem(list, (Py_ssize_t)i), "an entry of lost_ranks", &ranks[i]);
    }
    Py_DECREF(list);
    if (!good) {
        free(ranks);
        return false;
    }
    *ranks_out = ranks;
    *n_out = n;
    return true;
}

static PyObject *plan_create(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"spec", "replica", "subset", "lost_ranks", NULL};
    PyObject *spec, *lost = NULL;
    const char *replica = "balanced";
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    uint32_t *ranks = NULL;
    ferry_plan *plan;
    ferry_error error;
    ferry_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|szO", names, spec_type, &spec, &replica,
                                     &options.subset, &lost) ||
        !fp_replica_of(replica, &options.replica) ||
        !ranks_of(lost, &ranks, &options.n_lost_ranks)) {
        return NULL;
    }
    options.lost_ranks = ranks;
    const ferry_spec *from = ((fp_spec *)spec)->spec;
    PyThreadState *thread = PyEval_SaveThread();
    status = ferry_plan_create(from, &options, &plan, &error);
    PyEval_RestoreThread(thread);
    free(ranks);
    return status == FERRY_OK ? fp_plan_wrap(plan) : fp_raise(status, error.message);
}

static ferry_status load_plan(void *plan_out, const char *path, ferry_error *error)
{
    return ferry_plan_load(path, plan_out, error);
}

static PyObject *plan_load(PyObject *module, PyObject *path)
{
    (void)module;
    ferry_plan *plan;
    return fp_with_path(path, load_plan, &plan) ? fp_plan_wrap(plan) : NULL;
}

static ferry_status save_plan(void *plan, const char *path, ferry_error *error)
{
    return ferry_plan_save(plan, path, error);
}

static PyObject *save(PyObject *self, PyObject *path)
{
    if (!fp_with_path(path, save_plan, ((fp_plan *)self)->plan)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Numbers. */

static PyObject *get_world_size(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(ferry_plan_rank_count(((fp_plan *)self)->plan));
}

static PyObject *get_digest(PyObject *self, void *unused)
{
    (void)unused;
    char digest[FERRY_DIGEST_BYTES];
    ferry_plan_digest(((fp_plan *)self)->plan, digest, sizeof digest);
    return PyUnicode_FromString(digest);
}

static PyObject *get_totals(PyObject *self, void *unused)
{
    (void)unused;
    ferry_plan_totals t = FERRY_PLAN_TOTALS_INIT;
    ferry_error error;
    ferry_status status = ferry_plan_get_totals(((fp_plan *)self)->plan, &t, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    return Py_BuildValue("KKK", (unsigned long long)t.n_moves, (unsigned long long)t.moved_bytes,
                         (unsigned long long)t.local_bytes);
}

static PyObject *get_in_boxes(PyObject *self, void *unused)
{
    (void)unused;
    const ferry_plan *plan = ((fp_plan *)self)->plan;
    return Py_BuildValue("OO", ferry_plan_is_in_boxes(plan, FERRY_SIDE_SOURCE) ? Py_True : Py_False,
                         ferry_plan_is_in_boxes(plan, FERRY_SIDE_DESTINATION) ? Py_True : Py_False);
}

/* The first that is converted; its name lives as long as the plan. */
static ferry_status find_converted(void *context, const ferry_shard *shard)
{
    const char **name_out = context;
    if (shard->conversion == NULL) {
        return FERRY_OK;
    }
    *name_out = shard->tensor;
    return FERRY_ERR_STOPPED;
}

static PyObject *get_converted(PyObject *self, void *unused)
{
    (void)unused;
    const ferry_plan *plan = ((fp_plan *)self)->plan;
    const char *name = NULL;
    ferry_error error;
    ferry_status status = FERRY_OK;
    for (uint32_t r = 0; status == FERRY_OK && r < ferry_plan_rank_count(plan); r++) {
        status =
            ferry_plan_visit_shards(plan, FERRY_SIDE_DESTINATION, r, find_converted, &name, &error);
    }
    if (status != FERRY_OK && name == NULL) {
        return fp_raise(status, error.message);
    }
    return name == NULL ? (Py_INCREF(Py_None), Py_None) : PyUnicode_FromString(name);
}

static PyObject *get_bound(PyObject *self, void *unused)
{
    (void)unused;
    const ferry_plan *plan = ((fp_plan *)self)->plan;
    ferry_plan_bound b = FERRY_PLAN_BOUND_INIT;
    ferry_error error;
    ferry_status status;
    PyThreadState *thread = PyEval_SaveThread();
    status = ferry_plan_get_bound(plan, &b, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    PyObject *seconds =
        b.has_seconds ? PyFloat_FromDouble(b.seconds) : (Py_INCREF(Py_None), Py_None);
    return seconds == NULL ? NULL
                           : Py_BuildValue("NIsd", seconds, (unsigned)b.rank,
                                           ferry_plan_bound_reason_name(b.reason), b.busiest_bytes);
}

static PyObject *get_statistics(PyObject *self, void *unused)
{
    (void)unused;
    ferry_plan_statistics s = FERRY_PLAN_STATISTICS_INIT;
    ferry_error error;
    ferry_status status = ferry_plan_get_statistics(((fp_plan *)self)->plan, &s, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    return Py_BuildValue("KKKKK", (unsigned long long)s.n_tensors,
                         (unsigned long long)s.n_layout_classes,
                         (unsigned long long)s.n_replica_sets,
                         (unsigned long long)s.n_holder_entries, (unsigned long long)s.n_cuts);
}

bool fp_plan_rank(const ferry_plan *plan, PyObject *rank, uint32_t *rank_out)
{
    *rank_out = FERRY_ALL_RANKS;
    if (rank == Py_None) {
        return true;
    }
    if (!fp_u32(rank, "the rank", rank_out)) {
        return false;
    }
    if (*rank_out >= ferry_plan_rank_count(plan)) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "the plan has ranks 0 to %u, and was asked about rank %u",
                        ferry_plan_rank_count(plan) - 1, *rank_out);
        return false;
    }
    return true;
}

static PyObject *rank_bytes(PyObject *self, PyObject *number)
{
    const ferry_plan *plan = ((fp_plan *)self)->plan;
    ferry_rank_bytes b = FERRY_RANK_BYTES_INIT;
    uint32_t rank;
    ferry_error error;
    if (!fp_plan_rank(plan, number, &rank)) {
        return NULL;
    }
    ferry_status status = ferry_plan_get_rank_bytes(plan, rank, &b, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    return Py_BuildValue("KKKK", (unsigned long long)b.in, (unsigned long long)b.out,
                         (unsigned long long)b.local, (unsigned long long)b.n_moves);
}

static PyObject *write_json(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"rank", "summary", NULL};
    const ferry_plan *plan = ((fp_plan *)self)->plan;
    ferry_plan_json_options options = FERRY_PLAN_JSON_OPTIONS_INIT;
    fp_text text = {NULL, 0, 0};
    PyObject *rank = Py_None;
    int summary = 0;
    ferry_error error;
    ferry_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|Op", names, &rank, &summary) ||
        !fp_plan_rank(plan, rank, &options.rank)) {
        return NULL;
    }
    options.summary = summary != 0;
    PyThreadState *thread = PyEval_SaveThread();
    status = ferry_plan_write_json(plan, &options, fp_text_write, &text, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_text_clear(&text);
        return fp_raise(status, error.message);
    }
    return fp_text_take(&text);
}

static ferry_status make_html(const ferry_plan *plan, const char *title, bool has_schedule,
                              fp_text *text, ferry_error *error)
{
    ferry_report_options options = FERRY_REPORT_OPTIONS_INIT;
    ferry_schedule *schedule = NULL;
    ferry_status status = FERRY_OK;
    if (has_schedule) {
        status = ferry_schedule_create_for_plan(plan, NULL, &schedule, error);
    }
    options.title = title;
    options.schedule = schedule;
    if (status == FERRY_OK) {
        status = ferry_plan_write_html(plan, &options, fp_text_write, text, error);
    }
    ferry_schedule_destroy(schedule);
    return status;
}

static PyObject *write_html(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"title", "schedule", NULL};
    fp_text text = {NULL, 0, 0};
    const char *title = NULL;
    int schedule = 0;
    ferry_error error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zp", names, &title, &schedule)) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = make_html(((fp_plan *)self)->plan, title, schedule != 0, &text, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_text_clear(&text);
        return fp_raise(status, error.message);
    }
    return fp_text_take(&text);
}

static void dealloc_plan(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_plan *plan = ((fp_plan *)self)->plan;
    ferry_plan_destroy(plan);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* The types. */

static bool add_spec(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"write_json", write_spec, METH_NOARGS,
         FP_DOC("write_json($self, /)", "ferry.spec/1 as a text.")},
        {"unused", fp_spec_unused, METH_NOARGS,
         FP_DOC(
             "unused($self, /)",
             "(side, kind, number, match, is hidden, axis, first coordinate, number of them), in a "
             "list: what nothing follows.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"tensor_count", get_tensor_count, NULL, "How many tensors the model has.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, (void *)FP_DOC("Spec()", "Two layouts of one model; ferry.Spec makes one.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_dealloc, (void *)dealloc_spec},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.Spec",
                               .basicsize = sizeof(fp_spec),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    spec_type = fp_add_type(module, &spec);
    return spec_type != NULL;
}

static bool add_plan(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"save", save, METH_O,
         FP_DOC("save($self, path, /)", "Saves what the plan is made from, and its digest.")},
        {"rank_bytes", rank_bytes, METH_O,
         FP_DOC("rank_bytes($self, rank, /)",
                "(in, out, local, number of moves to it) of a rank.")},
        {"write_json", FP_KEYWORDS(write_json),
         FP_DOC("write_json($self, /, rank=None, summary=False)", "ferry.plan/1 as a text.")},
        {"write_html", FP_KEYWORDS(write_html),
         FP_DOC("write_html($self, /, title=None, schedule=False)", "The report, a page of HTML.")},
        {"moves", fp_plan_moves, METH_O,
         FP_DOC("moves($self, rank, /)", "An iterator of moves: of a rank, or with None of all.")},
        {"traffic", fp_plan_traffic, METH_O,
         FP_DOC("traffic($self, rank, /)", "{(from, to): bytes} of a rank, or with None of all.")},
        {"shards", fp_plan_shards, METH_VARARGS,
         FP_DOC("shards($self, side, rank, /)", "What a rank holds: shards(side, rank).")},
        {"block_work", fp_plan_block_work, METH_NOARGS,
         FP_DOC("block_work($self, /)", "(tensor, makes, at, rank, staging bytes), in a list.")},
        {"idle", fp_plan_idle, METH_NOARGS,
         FP_DOC("idle($self, /)",
                "(first rank, number of them) of those without a part, in a list.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"world_size", get_world_size, NULL, "How many ranks the plan's world has.", NULL},
        {"digest", get_digest, NULL, "32 hex digits of what the plan is made from.", NULL},
        {"totals", get_totals, NULL, "(moves, moved bytes, local bytes)", NULL},
        {"bound", get_bound, NULL, "(seconds or None, rank, reason, busiest bytes)", NULL},
        {"statistics", get_statistics, NULL,
         "(tensors, layout classes, replica sets, holder entries, cuts)", NULL},
        {"in_boxes", get_in_boxes, NULL, "(source, destination)", NULL},
        {"converted", get_converted, NULL, "a tensor that is converted on its way, or None", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC(
             "Plan()",
             "Which box of which tensor goes from which rank to which; ferry.plan makes one.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_dealloc, (void *)dealloc_plan},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.Plan",
                               .basicsize = sizeof(fp_plan),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    plan_type = fp_add_type(module, &spec);
    return plan_type != NULL;
}

/* What a spec may say instead of a name: a dtype of torch or numpy, or a word of safetensors. */
static PyObject *dtype_name(PyObject *module, PyObject *object)
{
    (void)module;
    ferry_dtype dtype;
    return fp_dtype_of(object, &dtype) ? fp_dtype_name(dtype) : NULL;
}

bool fp_add_plan(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"spec_parse", FP_KEYWORDS(spec_parse),
         FP_DOC("spec_parse($module, /, text, name='the spec')", "A spec of a JSON text.")},
        {"spec_load", spec_load, METH_O,
         FP_DOC("spec_load($module, path, /)",
                "A spec of a file, with the headers that it names.")},
        {"side_check", side_check, METH_VARARGS,
         FP_DOC("side_check($module, text, role, /)", "Raises what is wrong with a side.")},
        {"spec_exchange", spec_exchange, METH_VARARGS,
         FP_DOC("spec_exchange($module, base, source, destination, exchange, /)",
                "A spec of ranks that each say their own sides.")},
        {"plan_create", FP_KEYWORDS(plan_create),
         FP_DOC("plan_create($module, /, spec, replica='balanced', subset=None, lost_ranks=())",
                "Plans a spec.")},
        {"plan_load", plan_load, METH_O,
         FP_DOC("plan_load($module, path, /)", "A plan of a file that save() wrote.")},
        {"dtype_name", dtype_name, METH_O,
         FP_DOC("dtype_name($module, dtype, /)",
                "The name of a dtype of torch, numpy or safetensors.")},
        {NULL, NULL, 0, NULL},
    };
    return add_spec(module) && add_plan(module) && fp_add_plan_visit(module) &&
           fp_add_plan_schedule(module) && fp_add_functions(module, functions);
}
