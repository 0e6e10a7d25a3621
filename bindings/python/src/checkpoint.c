/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints on disk. An opened one is immutable and plain memory: several threads may read it at
 * once, and a child of fork may go on with its copy. So it needs no fp_use. A reshard lives
 * within one call.
 */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

typedef struct fp_checkpoint {
    PyObject_HEAD
    ferry_checkpoint *checkpoint;
} fp_checkpoint;

static PyTypeObject *checkpoint_type;

/* While a call works without the interpreter's lock, and is asked now and then to tell. */
typedef struct watch {
    PyObject *progress; /* (optional) */
    PyObject *digests;  /* (optional) a dict that is filled */
    PyThreadState *thread;
    PyObject *type, *value, *trace; /* what was raised meanwhile */
} watch;

static void begin(watch *w)
{
    w->thread = PyEval_SaveThread();
}

/* False with an exception: what was raised meanwhile, or the failure of the call. */
static bool end(watch *w, ferry_status status, const ferry_error *error)
{
    PyEval_RestoreThread(w->thread);
    if (w->type != NULL) {
        PyErr_Restore(w->type, w->value, w->trace);
        return false;
    }
    if (status != FERRY_OK) {
        fp_raise(status, error->message);
        return false;
    }
    return true;
}

static void keep_raised(watch *w)
{
    if (PyErr_Occurred() && w->type == NULL) {
        PyErr_Fetch(&w->type, &w->value, &w->trace);
    }
    PyErr_Clear();
}

/* A ferry_work_progress_fn. A callback that returns False asks to stop; None goes on. */
static bool tell(void *context, const ferry_work_progress *p)
{
    watch *w = context;
    PyEval_RestoreThread(w->thread);
    bool goes_on = w->type == NULL && PyErr_CheckSignals() == 0;
    if (goes_on && w->progress != NULL) {
        PyObject *said = PyObject_CallFunction(w->progress, "sKKd", p->phase, (ull)p->done_bytes,
                                               (ull)p->total_bytes, p->seconds);
        goes_on = said != NULL && said != Py_False;
        Py_XDECREF(said);
    }
    keep_raised(w);
    w->thread = PyEval_SaveThread();
    return goes_on;
}

static void note_digest(void *context, const char *tensor, uint64_t bytes, uint64_t digest)
{
    watch *w = context;
    (void)bytes;
    PyEval_RestoreThread(w->thread);
    PyObject *number = PyLong_FromUnsignedLongLong(digest);
    if (number != NULL) {
        PyDict_SetItemString(w->digests, tensor, number);
    }
    Py_XDECREF(number);
    keep_raised(w);
    w->thread = PyEval_SaveThread();
}

/* Looking at one. */

static ferry_checkpoint *get(PyObject *object)
{
    return ((fp_checkpoint *)object)->checkpoint;
}

static ferry_status open_path(void *checkpoint_out, const char *path, ferry_error *error)
{
    return ferry_checkpoint_open(path, checkpoint_out, error);
}

static PyObject *checkpoint_open(PyObject *module, PyObject *path)
{
    (void)module;
    ferry_checkpoint *checkpoint;
    if (!fp_with_path(path, open_path, &checkpoint)) {
        return NULL;
    }
    fp_checkpoint *own = PyObject_New(fp_checkpoint, checkpoint_type);
    if (own == NULL) {
        ferry_checkpoint_destroy(checkpoint);
        return NULL;
    }
    own->checkpoint = checkpoint;
    return (PyObject *)own;
}

static PyObject *get_totals(PyObject *self, void *unused)
{
    (void)unused;
    ferry_checkpoint_totals t = FERRY_CHECKPOINT_TOTALS_INIT;
    ferry_error error;
    ferry_status status = ferry_checkpoint_get_totals(get(self), &t, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    return Py_BuildValue("NKKKK", PyBool_FromLong(t.is_sharded), (ull)t.n_files, (ull)t.n_tensors,
                         (ull)t.file_bytes, (ull)t.tensor_bytes);
}

/* (name, rank or None, bytes, tensors) */
static PyObject *file_tuple(const ferry_checkpoint_file *file, bool is_sharded)
{
    PyObject *name = PyUnicode_DecodeFSDefault(file->name);
    PyObject *rank =
        is_sharded ? PyLong_FromUnsignedLong(file->rank) : (Py_INCREF(Py_None), Py_None);
    if (name == NULL || rank == NULL) {
        Py_XDECREF(name);
        Py_XDECREF(rank);
        return NULL;
    }
    return Py_BuildValue("NNKK", name, rank, (ull)file->bytes, (ull)file->n_tensors);
}

static PyObject *file_at(PyObject *self, PyObject *number)
{
    ferry_checkpoint_totals totals = FERRY_CHECKPOINT_TOTALS_INIT;
    ferry_checkpoint_file file = FERRY_CHECKPOINT_FILE_INIT;
    uint64_t index;
    ferry_error error;
    if (!fp_u64(number, "the index of a file", &index)) {
        return NULL;
    }
    ferry_status status = ferry_checkpoint_get_totals(get(self), &totals, &error);
    if (status == FERRY_OK) {
        status = ferry_checkpoint_file_at(get(self), index, &file, &error);
    }
    return status == FERRY_OK ? file_tuple(&file, totals.is_sharded)
                              : fp_raise(status, error.message);
}

/* The file's word for a type by its name in ferry; the word itself where there is none. */
static const char *name_of_word(const char *text)
{
#define TRY(kind, number, name, safetensors, bits)                                                 \
    if (strcmp(text, safetensors) == 0) {                                                          \
        return name;                                                                               \
    }
    FERRY_DTYPE_MAP(TRY)
#undef TRY
    return text;
}

static PyObject *tensor_at(PyObject *self, PyObject *number)
{
    ferry_checkpoint_tensor t = FERRY_CHECKPOINT_TENSOR_INIT;
    uint64_t index;
    ferry_error error;
    if (!fp_u64(number, "the index of a tensor", &index)) {
        return NULL;
    }
    ferry_status status = ferry_checkpoint_tensor_at(get(self), index, &t, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    PyObject *shape = fp_u64_tuple(t.shape, t.n_dims);
    return shape == NULL
               ? NULL
               : Py_BuildValue("ssNK", t.name, name_of_word(t.dtype), shape, (ull)t.bytes);
}

static PyObject *write_layout(PyObject *self, PyObject *unused)
{
    (void)unused;
    const ferry_checkpoint *checkpoint = get(self);
    fp_text text = {NULL, 0, 0};
    ferry_error error;
    ferry_status status;
    PyThreadState *thread = PyEval_SaveThread();
    status = ferry_checkpoint_write_layout(checkpoint, fp_text_write, &text, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_text_clear(&text);
        return fp_raise(status, error.message);
    }
    return fp_text_take(&text);
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_checkpoint_destroy(get(self));
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Another layout. */

typedef struct reshard_call {
    ferry_checkpoint *from;
    const char *to;
    PyObject *path; /* bytes; NULL: none was given */
    ferry_reshard_options options;
    bool resume, dry_run;
    PyObject *onto; /* likewise */
    const char *onto_path;
    ferry_reshard *made;
    ferry_reshard_totals totals;
    ferry_reshard_result result;
    bool has_estimate;
    double estimate;
} reshard_call;

static ferry_status run(reshard_call *c, const char *path, watch *w, ferry_error *error)
{
    ferry_reshard_run_options options = FERRY_RESHARD_RUN_OPTIONS_INIT;
    options.resume = c->resume;
    options.onto = c->onto_path;
    options.progress = tell;
    options.context = w;
    return ferry_reshard_run(c->made, path, &options, &c->result, error);
}

static ferry_status estimate(reshard_call *c, const char *path, ferry_error *error)
{
    ferry_status status = path == NULL ? FERRY_ERR_UNSUPPORTED
                                       : ferry_reshard_estimate(c->made, path, &c->estimate, error);
    c->has_estimate = status == FERRY_OK;
    /* What lies in the earlier result may be all that there is no room for. */
    bool is_left_open =
        status == FERRY_ERR_UNSUPPORTED || (status == FERRY_ERR_IO && c->onto_path != NULL);
    return is_left_open ? FERRY_OK : status;
}

/* Without the interpreter's lock. */
static ferry_status work(reshard_call *c, const char *path, watch *w, ferry_error *error)
{
    ferry_status status = ferry_reshard_create(c->from, c->to, &c->options, &c->made, error);
    if (status == FERRY_OK) {
        status = ferry_reshard_get_totals(c->made, &c->totals, error);
    }
    if (status == FERRY_OK) {
        status = c->dry_run && c->onto_path != NULL
                     ? ferry_reshard_check_onto(c->made, c->onto_path, error)
                     : FERRY_OK;
    }
    if (status == FERRY_OK) {
        status = c->dry_run ? estimate(c, path, error) : run(c, path, w, error);
    }
    return status;
}

static PyObject *list_files(const reshard_call *c)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < c->totals.n_files; i++) {
        ferry_checkpoint_file file = FERRY_CHECKPOINT_FILE_INIT;
        ferry_error error;
        ferry_status status = ferry_reshard_file_at(c->made, i, &file, &error);
        PyObject *tuple = status == FERRY_OK ? file_tuple(&file, c->totals.is_sharded)
                                             : fp_raise(status, error.message);
        if (tuple == NULL || PyList_Append(list, tuple) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(tuple);
    }
    return list;
}

static PyObject *list_replicated(const reshard_call *c)
{
    PyObject *list = PyList_New(0);
    const char *name;
    for (size_t i = 0; list != NULL && (name = ferry_reshard_replicated_at(c->made, i)); i++) {
        PyObject *text = PyUnicode_FromString(name);
        if (text == NULL || PyList_Append(list, text) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(text);
    }
    return list;
}

static PyObject *list_left_out(const reshard_call *c)
{
    PyObject *list = PyList_New(0);
    const char *name, *why;
    for (size_t i = 0; list != NULL && (name = ferry_reshard_left_out_at(c->made, i, &why)); i++) {
        PyObject *pair = Py_BuildValue("(ss)", name, why);
        if (pair == NULL || PyList_Append(list, pair) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
    }
    return list;
}

/* The weights that got scales, or lost them. */
static PyObject *list_changes(const reshard_call *c)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < c->totals.n_quantized + c->totals.n_dequantized; i++) {
        ferry_reshard_change change = FERRY_RESHARD_CHANGE_INIT;
        char types[2][FERRY_DTYPE_TEXT_BYTES];
        ferry_error error;
        ferry_status status = ferry_reshard_change_at(c->made, i, &change, &error);
        ferry_dtype_format(change.from, types[0], sizeof types[0]);
        ferry_dtype_format(change.to, types[1], sizeof types[1]);
        PyObject *tuple =
            status != FERRY_OK
                ? fp_raise(status, error.message)
                : Py_BuildValue("(ssss(KK))", change.tensor, types[0], types[1], change.scales,
                                (ull)change.block[0], (ull)change.block[1]);
        if (tuple == NULL || PyList_Append(list, tuple) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(tuple);
    }
    return list;
}

/* What was done, by the names of ferry.ReshardResult's fields. */
static PyObject *report(const reshard_call *c)
{
    PyObject *files = list_files(c);
    PyObject *replicated = files == NULL ? NULL : list_replicated(c);
    PyObject *left_out = replicated == NULL ? NULL : list_left_out(c);
    PyObject *changes = left_out == NULL ? NULL : list_changes(c);
    PyObject *seconds =
        c->has_estimate ? PyFloat_FromDouble(c->estimate) : (Py_INCREF(Py_None), Py_None);
    PyObject *made = NULL;
    if (changes != NULL && seconds != NULL) {
        made = Py_BuildValue(
            "{s:O,s:K,s:K,s:K,s:O,s:O,s:O,s:O,s:K,s:K,s:K,s:d,s:d,s:O,s:z,s:K,s:K}", "is_sharded",
            c->totals.is_sharded ? Py_True : Py_False, "n_tensors", (ull)c->totals.n_tensors,
            "read_bytes", (ull)c->totals.read_bytes, "file_bytes", (ull)c->totals.file_bytes,
            "files", files, "replicated", replicated, "left_out", left_out, "changes", changes,
            "written_bytes", (ull)c->result.written_bytes, "resumed_bytes",
            (ull)c->result.resumed_bytes, "n_checked", (ull)c->result.n_checked, "seconds",
            c->result.seconds, "copy_seconds", c->result.copy_seconds, "estimated_seconds", seconds,
            "anew", c->result.anew, "kept_bytes", (ull)c->result.kept_bytes, "n_kept_files",
            (ull)c->result.n_kept_files);
    }
    Py_XDECREF(files);
    Py_XDECREF(replicated);
    Py_XDECREF(left_out);
    Py_XDECREF(changes);
    Py_XDECREF(seconds);
    return made;
}

static PyObject *reshard_all(reshard_call *c, PyObject *progress)
{
    watch w = {.progress = progress == Py_None ? NULL : progress};
    const char *path = c->path == NULL ? NULL : PyBytes_AsString(c->path);
    ferry_error error;
    c->onto_path = c->onto == NULL ? NULL : PyBytes_AsString(c->onto);
    begin(&w);
    ferry_status status = work(c, path, &w, &error);
    PyObject *made = end(&w, status, &error) ? report(c) : NULL;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_reshard_destroy(c->made);
    PyEval_RestoreThread(thread);
    return made;
}

/* Numbers: 0 is the default. */
static bool take_options(reshard_call *c, PyObject *cast, PyObject *part, PyObject *cap,
                         PyObject *threads)
{
    ferry_dtype dtype = {0, 0};
    bool good = (cast == Py_None || fp_dtype_of(cast, &dtype)) &&
                fp_u64(part, "part_bytes", &c->options.part_bytes) &&
                fp_u64(cap, "memory_cap", &c->options.memory_cap_bytes) &&
                fp_u32(threads, "threads", &c->options.n_threads);
    c->options.cast = dtype.kind;
    return good;
}

static PyObject *reshard(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"checkpoint", "to",         "path",       "subset",     "cast",
                            "quantize",   "dequantize", "part_bytes", "memory_cap", "threads",
                            "resume",     "dry_run",    "progress",   "onto",       "names",
                            "config",     NULL};
    reshard_call c = {.options = FERRY_RESHARD_OPTIONS_INIT,
                      .totals = FERRY_RESHARD_TOTALS_INIT,
                      .result = FERRY_RESHARD_RESULT_INIT};
    PyObject *from, *to = NULL, *path, *cast, *part, *cap, *threads, *progress, *onto, *config;
    PyObject *config_path = NULL;
    int resume, dry_run;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!O&OzOzzOOOppOOzO", names, checkpoint_type, &from, fp_path_bytes, &to,
            &path, &c.options.subset, &cast, &c.options.quantize, &c.options.dequantize, &part,
            &cap, &threads, &resume, &dry_run, &progress, &onto, &c.options.names, &config)) {
        return NULL;
    }
    PyObject *made = NULL;
    c.from = get(from);
    c.to = PyBytes_AsString(to);
    c.resume = resume != 0;
    c.dry_run = dry_run != 0;
    if (path == Py_None && !c.dry_run) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "dst is missing: only a dry run does without it");
    } else if ((path == Py_None || fp_path_bytes(path, &c.path)) &&
               (onto == Py_None || fp_path_bytes(onto, &c.onto)) &&
               (config == Py_None || fp_path_bytes(config, &config_path)) &&
               take_options(&c, cast, part, cap, threads)) {
        c.options.config_path = config_path == NULL ? NULL : PyBytes_AsString(config_path);
        made = reshard_all(&c, progress);
    }
    Py_XDECREF(c.path);
    Py_XDECREF(c.onto);
    Py_XDECREF(config_path);
    Py_DECREF(to);
    return made;
}

/* Are two the same? */

static PyObject *verify(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"a",          "b",          "subset",  "cast",    "quantize",
                            "dequantize", "memory_cap", "threads", "digests", "progress",
                            "names",      "config",     NULL};
    PyObject *a, *b, *cast, *cap, *threads, *digests, *progress, *config;
    ferry_dtype dtype = {0, 0};
    ferry_verify_options options = FERRY_VERIFY_OPTIONS_INIT;
    ferry_verify_result result = FERRY_VERIFY_RESULT_INIT;
    ferry_error error;
    PyObject *config_path = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!zOzzOOOOzO", names, checkpoint_type, &a,
                                     checkpoint_type, &b, &options.subset, &cast, &options.quantize,
                                     &options.dequantize, &cap, &threads, &digests, &progress,
                                     &options.names, &config) ||
        (cast != Py_None && !fp_dtype_of(cast, &dtype)) ||
        !fp_u64(cap, "memory_cap", &options.memory_cap_bytes) ||
        !fp_u32(threads, "threads", &options.n_threads) ||
        (config != Py_None && !fp_path_bytes(config, &config_path))) {
        return NULL;
    }
    options.config_path = config_path == NULL ? NULL : PyBytes_AsString(config_path);
    watch w = {.progress = progress == Py_None ? NULL : progress, .digests = digests};
    options.cast = dtype.kind;
    options.progress = tell;
    options.visitor = digests == Py_None ? NULL : note_digest;
    options.context = &w;
    begin(&w);
    ferry_status status = ferry_checkpoint_verify(get(a), get(b), &options, &result, &error);
    bool done = end(&w, status, &error);
    Py_XDECREF(config_path);
    if (!done) {
        return NULL;
    }
    return Py_BuildValue("KKKKdK", (ull)result.n_tensors, (ull)result.tensor_bytes,
                         (ull)result.n_replicas, (ull)result.n_checked, result.seconds,
                         (ull)result.n_left_out);
}

bool fp_add_checkpoint(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"file_at", file_at, METH_O,
         FP_DOC("file_at($self, index, /)", "(name, rank or None, bytes, tensors)")},
        {"tensor_at", tensor_at, METH_O,
         FP_DOC("tensor_at($self, index, /)", "(name, dtype, shape, bytes) of a whole tensor.")},
        {"write_layout", write_layout, METH_NOARGS,
         FP_DOC("write_layout($self, /)", "The layout as JSON; null of a logical one.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"totals", get_totals, NULL, "(sharded, files, tensors, file bytes, tensor bytes)", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("Checkpoint()",
                        "A checkpoint whose headers have been read; ferry.inspect opens one.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_dealloc, (void *)dealloc},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.Checkpoint",
                               .basicsize = sizeof(fp_checkpoint),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    static PyMethodDef functions[] = {
        {"checkpoint_open", checkpoint_open, METH_O,
         FP_DOC("checkpoint_open($module, path, /)", "Opens a checkpoint.")},
        {"reshard", FP_KEYWORDS(reshard),
         FP_DOC("reshard($module, /, checkpoint, to, path, subset, cast, quantize, dequantize, "
                "part_bytes, memory_cap, "
                "threads, resume, dry_run, progress, onto, names, config)",
                "Writes a checkpoint in another layout, or says what that would write.")},
        {"verify", FP_KEYWORDS(verify),
         FP_DOC("verify($module, /, a, b, subset, cast, quantize, dequantize, memory_cap, threads, "
                "digests, progress, names, config)",
                "(tensors, bytes, replicas, checksums, seconds) of equals.")},
        {NULL, NULL, 0, NULL},
    };
    checkpoint_type = fp_add_type(module, &spec);
    return checkpoint_type != NULL && fp_add_functions(module, functions);
}
