/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Maps. They are finished when Python sees them: immutable and plain memory, as specs are. */
#include "plan.h"

typedef struct fp_map {
    PyObject_HEAD
    ferry_map *map;
} fp_map;

static PyTypeObject *map_type;

static PyObject *wrap_map(ferry_map *map)
{
    fp_map *own = PyObject_New(fp_map, map_type);
    if (own == NULL) {
        ferry_map_destroy(map);
        return NULL;
    }
    own->map = map;
    return (PyObject *)own;
}

static const ferry_map *get_map(PyObject *object)
{
    if (!PyObject_TypeCheck(object, map_type)) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "a ferry.Map is wanted here");
        return NULL;
    }
    return ((fp_map *)object)->map;
}

static PyObject *map_parse(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"text", "name", NULL};
    const char *text, *name = "the map";
    Py_ssize_t length;
    ferry_map *map;
    ferry_error error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s#|s", names, &text, &length, &name)) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_map_parse(text, (size_t)length, name, &map, &error);
    PyEval_RestoreThread(thread);
    return status == FERRY_OK ? wrap_map(map) : fp_raise(status, error.message);
}

static ferry_status load_map(void *map_out, const char *path, ferry_error *error)
{
    return ferry_map_load(path, map_out, error);
}

static PyObject *map_load(PyObject *module, PyObject *path)
{
    (void)module;
    ferry_map *map;
    return fp_with_path(path, load_map, &map) ? wrap_map(map) : NULL;
}

static PyObject *compose(PyObject *self, PyObject *other)
{
    const ferry_map *first = ((fp_map *)self)->map, *second = get_map(other);
    ferry_map *map;
    ferry_error error;
    if (second == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_map_compose(first, second, &map, &error);
    PyEval_RestoreThread(thread);
    return status == FERRY_OK ? wrap_map(map) : fp_raise(status, error.message);
}

static PyObject *invert(PyObject *self, PyObject *unused)
{
    (void)unused;
    const ferry_map *map = ((fp_map *)self)->map;
    ferry_map *inverse;
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_map_invert(map, &inverse, &error);
    PyEval_RestoreThread(thread);
    return status == FERRY_OK ? wrap_map(inverse) : fp_raise(status, error.message);
}

static PyObject *apply(PyObject *self, PyObject *spec)
{
    const ferry_map *map = ((fp_map *)self)->map;
    const ferry_spec *from = fp_spec_get(spec);
    ferry_spec *fed;
    ferry_error error;
    if (from == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_map_apply(map, from, &fed, &error);
    PyEval_RestoreThread(thread);
    return status == FERRY_OK ? fp_spec_wrap(fed) : fp_raise(status, error.message);
}

static PyObject *write_json(PyObject *self, PyObject *unused)
{
    (void)unused;
    const ferry_map *map = ((fp_map *)self)->map;
    fp_text text = {NULL, 0, 0};
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status = ferry_map_write_json(map, fp_text_write, &text, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_text_clear(&text);
        return fp_raise(status, error.message);
    }
    return fp_text_take(&text);
}

static PyObject *get_counts(PyObject *self, void *unused)
{
    (void)unused;
    const ferry_map *map = ((fp_map *)self)->map;
    return Py_BuildValue("(KKK)", (unsigned long long)ferry_map_source_count(map),
                         (unsigned long long)ferry_map_target_count(map),
                         (unsigned long long)ferry_map_box_count(map));
}

/* (name, dtype, shape, number of boxes) */
static PyObject *describe(const ferry_map_tensor *tensor)
{
    return Py_BuildValue("(sNNK)", tensor->name, fp_dtype_name(tensor->dtype),
                         fp_u64_tuple(tensor->shape, tensor->n_dims),
                         (unsigned long long)tensor->n_boxes);
}

static PyObject *source_at(PyObject *self, PyObject *number)
{
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    ferry_error error;
    uint64_t index;
    if (!fp_u64(number, "the number of a source", &index)) {
        return NULL;
    }
    ferry_status status =
        ferry_map_source_at(((fp_map *)self)->map, (size_t)index, &tensor, &error);
    return status == FERRY_OK ? describe(&tensor) : fp_raise(status, error.message);
}

static PyObject *target_at(PyObject *self, PyObject *number)
{
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    ferry_error error;
    uint64_t index;
    if (!fp_u64(number, "the number of a target", &index)) {
        return NULL;
    }
    ferry_status status =
        ferry_map_target_at(((fp_map *)self)->map, (size_t)index, &tensor, &error);
    return status == FERRY_OK ? describe(&tensor) : fp_raise(status, error.message);
}

/* The number of dimensions of a box's source, by its name. */
static bool source_dims(const ferry_map *map, const char *name, uint32_t *n_dims_out)
{
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    ferry_error error;
    size_t index;
    ferry_status status = ferry_map_find_source(map, name, &index, &error);
    if (status == FERRY_OK) {
        status = ferry_map_source_at(map, index, &tensor, &error);
    }
    *n_dims_out = tensor.n_dims;
    return status == FERRY_OK || fp_raise(status, error.message) != NULL;
}

/* (source, begin, shape, at) */
static PyObject *box_at(const ferry_map *map, size_t target, size_t index, uint32_t n_dims)
{
    ferry_map_box box = FERRY_MAP_BOX_INIT;
    ferry_error error;
    uint32_t n_source_dims;
    ferry_status status = ferry_map_box_at(map, target, index, &box, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    if (!source_dims(map, box.source, &n_source_dims)) {
        return NULL;
    }
    return Py_BuildValue("(sNNN)", box.source, fp_u64_tuple(box.begin, n_source_dims),
                         fp_u64_tuple(box.shape, n_source_dims), fp_u64_tuple(box.at, n_dims));
}

static PyObject *boxes(PyObject *self, PyObject *number)
{
    const ferry_map *map = ((fp_map *)self)->map;
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    ferry_error error;
    uint64_t index;
    if (!fp_u64(number, "the number of a target", &index)) {
        return NULL;
    }
    ferry_status status = ferry_map_target_at(map, (size_t)index, &tensor, &error);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < tensor.n_boxes; i++) {
        PyObject *one = box_at(map, (size_t)index, i, tensor.n_dims);
        if (one == NULL || PyList_Append(list, one) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *find_target(PyObject *self, PyObject *args)
{
    const char *name;
    ferry_error error;
    size_t index;
    if (!PyArg_ParseTuple(args, "s", &name)) {
        return NULL;
    }
    if (ferry_map_find_target(((fp_map *)self)->map, name, &index, &error) != FERRY_OK) {
        Py_RETURN_NONE;
    }
    return PyLong_FromSize_t(index);
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ferry_map_destroy(((fp_map *)self)->map);
    PyObject_Free(self);
    Py_DECREF(type);
}

static bool add_map(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"compose", compose, METH_O,
         FP_DOC("compose($self, second, /)", "From its sources to the targets of another.")},
        {"invert", invert, METH_NOARGS, FP_DOC("invert($self, /)", "From targets to sources.")},
        {"apply", apply, METH_O, FP_DOC("apply($self, spec, /)", "A spec with sources.")},
        {"write_json", write_json, METH_NOARGS,
         FP_DOC("write_json($self, /)", "ferry.map/1 as a text.")},
        {"source_at", source_at, METH_O,
         FP_DOC("source_at($self, index, /)", "(name, dtype, shape, 0) of a source.")},
        {"target_at", target_at, METH_O,
         FP_DOC("target_at($self, index, /)", "(name, dtype, shape, boxes) of a target.")},
        {"boxes", boxes, METH_O,
         FP_DOC("boxes($self, index, /)", "[(source, begin, shape, at)] of a target.")},
        {"find_target", find_target, METH_VARARGS,
         FP_DOC("find_target($self, name, /)", "The number of a target, or None.")},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"counts", get_counts, NULL, "(sources, targets, boxes)", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc,
         (void *)FP_DOC("Map()", "How tensors are made of others; ferry.Map makes one.")},
        {Py_tp_new, (void *)fp_refuse_new},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_dealloc, (void *)dealloc},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ferry._ferry.Map",
                               .basicsize = sizeof(fp_map),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    map_type = fp_add_type(module, &spec);
    return map_type != NULL;
}

bool fp_add_map(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"map_parse", FP_KEYWORDS(map_parse),
         FP_DOC("map_parse($module, /, text, name='the map')", "A map of a JSON text.")},
        {"map_load", map_load, METH_O, FP_DOC("map_load($module, path, /)", "A map of a file.")},
        {NULL, NULL, 0, NULL},
    };
    return add_map(module) && fp_add_functions(module, functions);
}
