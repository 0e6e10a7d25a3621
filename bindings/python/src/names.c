/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Names of a model's tensors in several namings. */
#include "plan.h"

#include <stdlib.h>

typedef struct fp_names {
    PyObject_HEAD
    fp_use use;
    ferry_names *names;
} fp_names;

static PyTypeObject *names_type;

static ferry_names *enter(PyObject *self)
{
    fp_names *own = (fp_names *)self;
    return fp_enter(&own->use, true) ? own->names : NULL;
}

static void leave(PyObject *self)
{
    fp_leave(&((fp_names *)self)->use);
}

/* names_make(config, source_name, family=None, dtype=None) */
static PyObject *names_make(PyObject *module, PyObject *args)
{
    (void)module;
    ferry_names_options options = FERRY_NAMES_OPTIONS_INIT;
    Py_ssize_t config_length, family_length = 0;
    PyObject *dtype = Py_None;
    ferry_names *names;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "s#s|z#O", &options.config, &config_length, &options.source_name,
                          &options.family, &family_length, &dtype) ||
        (dtype != Py_None && !fp_dtype_of(dtype, &options.dtype))) {
        return NULL;
    }
    options.config_length = (size_t)config_length;
    options.family_length = (size_t)family_length;
    ferry_status status = ferry_names_create(&options, &names, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    fp_names *own = PyObject_New(fp_names, names_type);
    if (own == NULL) {
        ferry_names_destroy(names);
        return NULL;
    }
    fp_use_init(&own->use, "the names");
    own->names = names;
    return (PyObject *)own;
}

/* names_families() -> [(name, text), ...] */
static PyObject *names_families(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < ferry_names_family_count(); i++) {
        const char *text, *name = ferry_names_family_at(i, &text);
        PyObject *one = Py_BuildValue("(ss)", name, text);
        if (one == NULL || PyList_Append(list, one) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *get_namings(PyObject *self, void *unused)
{
    (void)unused;
    const ferry_names *names = ((fp_names *)self)->names;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < ferry_names_naming_count(names); i++) {
        PyObject *one = PyUnicode_FromString(ferry_names_naming_at(names, i));
        if (one == NULL || PyList_Append(list, one) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *tensor_at(ferry_names *names, const char *naming, size_t index)
{
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    ferry_error error;
    ferry_status status = ferry_names_tensor_at(names, naming, index, &tensor, &error);
    return status != FERRY_OK ? fp_raise(status, error.message)
                              : Py_BuildValue("(sNN)", tensor.name, fp_dtype_name(tensor.dtype),
                                              fp_u64_tuple(tensor.shape, tensor.n_dims));
}

static PyObject *list_tensors(ferry_names *names, const char *naming)
{
    size_t n;
    ferry_error error;
    ferry_status status = ferry_names_get_tensor_count(names, naming, &n, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < n; i++) {
        PyObject *one = tensor_at(names, naming, i);
        if (one == NULL || PyList_Append(list, one) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *tensors(PyObject *self, PyObject *args)
{
    const char *naming;
    ferry_names *names = PyArg_ParseTuple(args, "s", &naming) ? enter(self) : NULL;
    if (names == NULL) {
        return NULL;
    }
    PyObject *list = list_tensors(names, naming);
    leave(self);
    return list;
}

/* The shape of a tensor, a sequence of numbers. */
static bool shape_of(PyObject *sequence, uint64_t shape[FERRY_MAX_DIMS], uint32_t *n_dims_out)
{
    Py_ssize_t n = PySequence_Size(sequence);
    if (n < 0 || n > FERRY_MAX_DIMS) {
        return n >= 0 && fp_raise_format(FERRY_ERR_INVALID_INPUT,
                                         "a shape has %zd dimensions, of which %d are possible", n,
                                         FERRY_MAX_DIMS) != NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *one = PySequence_GetItem(sequence, i);
        bool is_number = one != NULL && fp_u64(one, "a length", &shape[i]);
        Py_XDECREF(one);
        if (!is_number) {
            return false;
        }
    }
    *n_dims_out = (uint32_t)n;
    return true;
}

/* see(naming, name, dtype, shape) */
static PyObject *see(PyObject *self, PyObject *args)
{
    const char *naming, *name;
    PyObject *dtype_object, *shape_object;
    ferry_dtype dtype;
    uint64_t shape[FERRY_MAX_DIMS];
    uint32_t n_dims = 0;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "ssOO", &naming, &name, &dtype_object, &shape_object) ||
        !fp_dtype_of(dtype_object, &dtype) || !shape_of(shape_object, shape, &n_dims)) {
        return NULL;
    }
    ferry_names *names = enter(self);
    if (names == NULL) {
        return NULL;
    }
    ferry_status status = ferry_names_see(names, naming, name, dtype, n_dims, shape, &error);
    leave(self);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    Py_RETURN_NONE;
}

static PyObject *check_seen(PyObject *self, PyObject *args)
{
    const char *naming;
    ferry_error error;
    ferry_names *names = PyArg_ParseTuple(args, "s", &naming) ? enter(self) : NULL;
    if (names == NULL) {
        return NULL;
    }
    ferry_status status = ferry_names_check_seen(names, naming, &error);
    leave(self);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    Py_RETURN_NONE;
}

/* find_naming(names of tensors, a list of bytes) */
static PyObject *find_naming(PyObject *self, PyObject *list)
{
    Py_ssize_t n = PySequence_Size(list);
    const char *found;
    ferry_error error;
    if (n < 0) {
        return NULL;
    }
    PyObject *items = PySequence_Tuple(list);
    const char **texts = malloc((size_t)(n + 1) * sizeof *texts);
    bool filled = items != NULL && texts != NULL;
    if (texts == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < n && filled; i++) {
        texts[i] = PyBytes_AsString(PyTuple_GetItem(items, i));
        filled = texts[i] != NULL;
    }
    ferry_names *names = filled ? enter(self) : NULL;
    PyObject *result = NULL;
    if (names != NULL) {
        ferry_status status = ferry_names_find_naming(names, texts, (size_t)n, &found, &error);
        leave(self);
        result = status == FERRY_OK ? PyUnicode_FromString(found) : fp_raise(status, error.message);
    }
    free(texts);
    Py_XDECREF(items);
    return result;
}

static PyObject *list_left_out(ferry_names *names, const char *from, const char *to)
{
    PyObject *list = PyList_New(0);
    const char *name = NULL;
    for (size_t i = 0; list != NULL && (i == 0 || name != NULL); i++) {
        ferry_error error;
        ferry_status status = ferry_names_left_out_at(names, from, to, i, &name, &error);
        PyObject *one = status != FERRY_OK ? fp_raise(status, error.message)
                        : name == NULL     ? (Py_INCREF(Py_None), Py_None)
                                           : PyUnicode_FromString(name);
        if (one == NULL || (name != NULL && PyList_Append(list, one) != 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

/* left_out(from, to) -> the names of the tensors that the other naming lacks */
static PyObject *left_out(PyObject *self, PyObject *args)
{
    const char *from, *to;
    ferry_names *names = PyArg_ParseTuple(args, "ss", &from, &to) ? enter(self) : NULL;
    if (names == NULL) {
        return NULL;
    }
    PyObject *list = list_left_out(names, from, to);
    leave(self);
    return list;
}

/* map(from, to) -> the text of a ferry.map/1 */
static PyObject *map(PyObject *self, PyObject *args)
{
    const char *from, *to;
    ferry_map *made = NULL;
    ferry_error error;
    fp_text text = {NULL, 0, 0};
    ferry_names *names = PyArg_ParseTuple(args, "ss", &from, &to) ? enter(self) : NULL;
    if (names == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_names_get_map(names, from, to, &made, &error);
    if (status == FERRY_OK) {
        status = ferry_map_write_json(made, fp_text_write, &text, &error);
    }
    ferry_map_destroy(made);
    PyEval_RestoreThread(thread);
    leave(self);
    if (status != FERRY_OK) {
        fp_text_clear(&text);
        return fp_raise(status, error.message);
    }
    return fp_text_take(&text);
}

static ferry_status write_side(ferry_names *names, const char *from, const char *to,
                               const ferry_group *ranks, fp_text *text, ferry_error *error)
{
    ferry_side *side = NULL;
    size_t n = ferry_group_rank_count(ranks);
    uint32_t *numbers = malloc((n + 1) * sizeof *numbers);
    for (size_t i = 0; numbers != NULL && i < n; i++) {
        numbers[i] = ferry_group_rank_at(ranks, i);
    }
    ferry_status status = ferry_names_get_side(names, from, to, numbers, n, &side, error);
    if (status == FERRY_OK) {
        status = ferry_side_write_json(side, fp_text_write, text, error);
    }
    free(numbers);
    ferry_side_destroy(side);
    return status;
}

/* side(from, to, ranks) -> the text of a side in boxes */
static PyObject *side(PyObject *self, PyObject *args)
{
    const char *from, *to;
    PyObject *list;
    ferry_group *ranks = NULL;
    ferry_error error;
    fp_text text = {NULL, 0, 0};
    if (!PyArg_ParseTuple(args, "ssO", &from, &to, &list) || !fp_group(list, "ranks", &ranks)) {
        return NULL;
    }
    ferry_names *names = enter(self);
    if (names == NULL) {
        ferry_group_destroy(ranks);
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = write_side(names, from, to, ranks, &text, &error);
    PyEval_RestoreThread(thread);
    leave(self);
    ferry_group_destroy(ranks);
    if (status != FERRY_OK) {
        fp_text_clear(&text);
        return fp_raise(status, error.message);
    }
    return fp_text_take(&text);
}

/* spec(from, source, to, destination, first_rank) -> _ferry.Spec */
static PyObject *spec(PyObject *self, PyObject *args)
{
    const char *from, *source, *to, *destination;
    PyObject *first;
    uint32_t first_rank;
    ferry_spec *made = NULL;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "szszO", &from, &source, &to, &destination, &first) ||
        !fp_u32(first, "first_rank", &first_rank)) {
        return NULL;
    }
    ferry_names *names = enter(self);
    if (names == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status =
        ferry_names_get_spec(names, from, source, to, destination, first_rank, &made, &error);
    PyEval_RestoreThread(thread);
    leave(self);
    return status == FERRY_OK ? fp_spec_wrap(made) : fp_raise(status, error.message);
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_names_destroy(((fp_names *)self)->names);
    PyObject_Free(self);
    Py_DECREF(type);
}

static bool add_names(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"tensors", tensors, METH_VARARGS,
         FP_DOC("tensors($self, naming, /)", "[(name, dtype, shape)] of a naming.")},
        {"see", see, METH_VARARGS,
         FP_DOC("see($self, naming, name, dtype, shape, /)", "There is such a tensor.")},
        {"check_seen", check_seen, METH_VARARGS,
         FP_DOC("check_seen($self, naming, /)", "Raises which tensor nobody saw.")},
        {"find_naming", find_naming, METH_O,
         FP_DOC("find_naming($self, names, /)", "The naming that has most of the tensors.")},
        {"left_out", left_out, METH_VARARGS,
         FP_DOC("left_out($self, source, target, /)", "Names of what the target lacks.")},
        {"map", map, METH_VARARGS, FP_DOC("map($self, source, target, /)", "ferry.map/1.")},
        {"side", side, METH_VARARGS,
         FP_DOC("side($self, source, target, ranks, /)", "The text of a side in boxes.")},
        {"spec", spec, METH_VARARGS,
         FP_DOC("spec($self, from_, source, to, destination, first_rank, /)",
                "A spec of two short forms.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"namings", get_namings, NULL, "The names of the namings.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, (void *)FP_DOC("Names()", "Names of tensors; ferry.Names makes them.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_dealloc, (void *)dealloc},
        {0, NULL},
    };
    static PyType_Spec type = {.name = "ferry._ferry.Names",
                               .basicsize = sizeof(fp_names),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    names_type = fp_add_type(module, &type);
    return names_type != NULL;
}

bool fp_add_names(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"names_make", names_make, METH_VARARGS,
         FP_DOC("names_make($module, config, source_name, family=None, dtype=None, /)",
                "Names of a model, of its config.json.")},
        {"names_families", names_families, METH_NOARGS,
         FP_DOC("names_families($module, /)", "[(name, ferry.names/1 text)]")},
        {NULL, NULL, 0, NULL},
    };
    return add_names(module) && fp_add_functions(module, functions);
}
