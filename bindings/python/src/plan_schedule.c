/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Schedules of plans, their predicted timeline, and the proof of plans. */
#include "plan.h"

#include <string.h>

/* Immutable and plain memory, as plans are. */
typedef struct fp_schedule {
    PyObject_HEAD
    ferry_schedule *schedule;
} fp_schedule;

static PyTypeObject *schedule_type;

static bool find_word(const char *what, const char *word, const char *const *words,
                      uint32_t *number_out)
{
    for (uint32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], word) == 0) {
            *number_out = i;
            return true;
        }
    }
    return fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s is \"%.60s\": give \"%s\" or \"%s\"%s%s%s",
                           what, word, words[0], words[1], words[2] == NULL ? "" : ", or \"",
                           words[2] == NULL ? "" : words[2], words[2] == NULL ? "" : "\"") != NULL;
}

/* plan_schedule(plan, rule, duplex, slot_bytes, max_tasks, relays) */
static PyObject *plan_schedule(PyObject *module, PyObject *args)
{
    (void)module;
    static const char *const rules[] = {"optimal", "first-fit", "first-fit-half", NULL};
    static const char *const ways[] = {"full", "half", NULL};
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    PyObject *object;
    const char *rule, *duplex;
    unsigned long long slot_bytes;
    unsigned int max_tasks;
    int relays;
    ferry_schedule *schedule;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "OssKIp", &object, &rule, &duplex, &slot_bytes, &max_tasks,
                          &relays) ||
        !find_word("rule", rule, rules, &options.rule) ||
        !find_word("duplex", duplex, ways, &options.duplex)) {
        return NULL;
    }
    const ferry_plan *plan = fp_plan_get(object);
    if (plan == NULL) {
        return NULL;
    }
    options.slot_bytes = slot_bytes;
    options.max_tasks = max_tasks;
    options.no_relays = relays == 0;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_schedule_create_for_plan(plan, &options, &schedule, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    fp_schedule *own = PyObject_New(fp_schedule, schedule_type);
    if (own == NULL) {
        ferry_schedule_destroy(schedule);
        return NULL;
    }
    own->schedule = schedule;
    return (PyObject *)own;
}

static PyObject *get_digest(PyObject *self, void *unused)
{
    (void)unused;
    char text[64];
    ferry_schedule_digest(((fp_schedule *)self)->schedule, text, sizeof text);
    return PyUnicode_FromString(text);
}

/* (rounds, degree, batches, segments, bytes, relayed, has seconds, makespan, bound, ratio) */
static PyObject *get_report(PyObject *self, void *unused)
{
    (void)unused;
    ferry_schedule_report r = FERRY_SCHEDULE_REPORT_INIT;
    ferry_error error;
    ferry_status status = ferry_schedule_get_report(((fp_schedule *)self)->schedule, &r, &error);
    return status != FERRY_OK
               ? fp_raise(status, error.message)
               : Py_BuildValue("(IIKKKKOddd)", r.n_rounds, r.degree,
                               (unsigned long long)r.n_batches, (unsigned long long)r.n_segments,
                               (unsigned long long)r.bytes, (unsigned long long)r.relayed_bytes,
                               r.has_seconds ? Py_True : Py_False, r.makespan, r.bound, r.ratio);
}

static PyObject *finish_text(ferry_status status, const ferry_error *error, fp_text *text)
{
    if (status == FERRY_OK) {
        return fp_text_take(text);
    }
    fp_text_clear(text);
    return fp_raise(status, error->message);
}

/* write_json(plan, rank, summary) */
static PyObject *write_json(PyObject *self, PyObject *args)
{
    const ferry_schedule *schedule = ((fp_schedule *)self)->schedule;
    ferry_plan_json_options options = FERRY_PLAN_JSON_OPTIONS_INIT;
    PyObject *object, *rank;
    int summary;
    ferry_error error;
    fp_text text = {NULL, 0, 0};
    const ferry_plan *plan =
        PyArg_ParseTuple(args, "OOp", &object, &rank, &summary) ? fp_plan_get(object) : NULL;
    if (plan == NULL || !fp_plan_rank(plan, rank, &options.rank)) {
        return NULL;
    }
    options.summary = summary != 0;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status =
        ferry_schedule_write_json(schedule, plan, &options, fp_text_write, &text, &error);
    PyEval_RestoreThread(thread);
    return finish_text(status, &error, &text);
}

/* The timeline as a Chrome trace. */
static PyObject *write_trace(PyObject *self, PyObject *unused)
{
    (void)unused;
    ferry_simulation *simulation = NULL;
    ferry_error error;
    fp_text text = {NULL, 0, 0};
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status =
        ferry_simulation_create(((fp_schedule *)self)->schedule, NULL, &simulation, &error);
    if (status == FERRY_OK) {
        status = ferry_simulation_write_trace(simulation, fp_text_write, &text, &error);
    }
    ferry_simulation_destroy(simulation);
    PyEval_RestoreThread(thread);
    return finish_text(status, &error, &text);
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_schedule_destroy(((fp_schedule *)self)->schedule);
    PyObject_Free(self);
    Py_DECREF(type);
}

typedef struct proof_call {
    const char *spec_path;
    ferry_proof proof;
} proof_call;

static ferry_status prove(void *context, const char *path, ferry_error *error)
{
    proof_call *call = context;
    return ferry_plan_prove(call->spec_path, path, &call->proof, error);
}

/* plan_prove(spec_path, plan_path): paths that Python has made itself. */
static PyObject *plan_prove(PyObject *module, PyObject *args)
{
    (void)module;
    proof_call call = {.proof = FERRY_PROOF_INIT};
    PyObject *path;
    if (!PyArg_ParseTuple(args, "sO", &call.spec_path, &path) ||
        !fp_with_path(path, prove, &call)) {
        return NULL;
    }
    const ferry_proof *p = &call.proof;
    return Py_BuildValue("(KKKKK)", (unsigned long long)p->n_tensors,
                         (unsigned long long)p->n_moves,
                         (unsigned long long)p->n_destination_shards,
                         (unsigned long long)p->moved_bytes, (unsigned long long)p->local_bytes);
}

static bool add_schedule(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"write_json", write_json, METH_VARARGS,
         FP_DOC("write_json($self, plan, rank, summary, /)", "ferry.plan/1 with the schedule.")},
        {"write_trace", write_trace, METH_NOARGS,
         FP_DOC("write_trace($self, /)", "The timeline as a Chrome trace.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"digest", get_digest, NULL, "32 hex digits of every batch and segment.", NULL},
        {"report", get_report, NULL,
         "(rounds, degree, batches, segments, bytes, relayed, has seconds, makespan, bound, ratio)",
         NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, (void *)FP_DOC("Schedule()", "When moves travel; Plan.schedule makes one.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_dealloc, (void *)dealloc},
        {0, NULL},
    };
    static PyType_Spec type = {.name = "ferry._ferry.Schedule",
                               .basicsize = sizeof(fp_schedule),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    schedule_type = fp_add_type(module, &type);
    return schedule_type != NULL;
}

bool fp_add_plan_schedule(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"plan_schedule", plan_schedule, METH_VARARGS,
         FP_DOC("plan_schedule($module, plan, rule, duplex, slot_bytes, max_tasks, relays, /)",
                "When the moves of a plan travel.")},
        {"plan_prove", plan_prove, METH_VARARGS,
         FP_DOC("plan_prove($module, spec_path, plan_path, /)", "Checks every element.")},
        {NULL, NULL, 0, NULL},
    };
    return add_schedule(module) && fp_add_functions(module, functions);
}
