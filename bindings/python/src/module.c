/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "binding.h"
#include "queue.h"

#include <string.h>

/*
 * Types, exceptions and the library's own state are one per process, so the module serves one
 * interpreter. Another one would see objects of the first.
 */
static int64_t own_interpreter = -1;

static bool is_first_interpreter(void)
{
    int64_t id = PyInterpreterState_GetID(PyInterpreterState_Get());
    if (id < 0) {
        return false;
    }
    if (own_interpreter < 0) {
        own_interpreter = id;
    }
    if (own_interpreter != id) {
        PyErr_SetString(PyExc_ImportError,
                        "ferry serves one interpreter of a process, and another one has imported "
                        "it already: use it there, or in a process of its own");
        return false;
    }
    return true;
}

PyTypeObject *fp_add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    const char *name = strrchr(spec->name, '.') + 1;
    if (type == NULL) {
        return NULL;
    }
    Py_INCREF(type); /* one reference is the module's, one stays here for good */
    if (PyModule_AddObject(module, name, type) != 0) {
        Py_DECREF(type);
        Py_DECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type;
}

PyObject *fp_refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    PyObject *name = PyObject_GetAttrString((PyObject *)type, "__name__");
    PyObject *doc = name == NULL ? NULL : PyObject_GetAttrString((PyObject *)type, "__doc__");
    if (doc != NULL) {
        PyErr_Format(PyExc_TypeError, "%U is not made by calling it: %U", name, doc);
    }
    Py_XDECREF(doc);
    Py_XDECREF(name);
    return NULL;
}

bool fp_add_functions(PyObject *module, PyMethodDef *functions)
{
    return PyModule_AddFunctions(module, functions) == 0;
}

/* engines() -> [(name, summary, why it is missing or None), ...] */
static PyObject *engines(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < ferry_engine_count(); i++) {
        const char *name, *summary, *why_not;
        bool available;
        ferry_error error;
        ferry_status status = ferry_engine_at(i, &name, &summary, &available, &why_not, &error);
        PyObject *one = status != FERRY_OK
                            ? fp_raise(status, error.message)
                            : Py_BuildValue("(ssz)", name, summary, available ? NULL : why_not);
        if (one == NULL || PyList_Append(list, one) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

/* memory_kinds() -> [(name, summary, devices, why there are none or None), ...] */
static PyObject *memory_kinds(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < ferry_memory_kind_count(); i++) {
        const char *name, *summary, *why_not;
        uint32_t n;
        ferry_error error;
        ferry_status status = ferry_memory_kind_at(i, &name, &summary, &n, &why_not, &error);
        PyObject *one = status != FERRY_OK
                            ? fp_raise(status, error.message)
                            : Py_BuildValue("(ssIz)", name, summary, n, n > 0 ? NULL : why_not);
        if (one == NULL || PyList_Append(list, one) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

static int fill(PyObject *module)
{
    if (!is_first_interpreter()) {
        return -1;
    }
    static PyMethodDef functions[] = {
        {"engines", engines, METH_NOARGS,
         FP_DOC("engines($module, /)", "What carries bytes: name, summary, why it is missing.")},
        {"memory_kinds", memory_kinds, METH_NOARGS,
         FP_DOC("memory_kinds($module, /)",
                "Kinds of memory: name, summary, devices, why there are none.")},
        {NULL, NULL, 0, NULL},
    };
    if (PyModule_AddStringConstant(module, "version", ferry_version()) != 0 ||
        !fp_add_functions(module, functions)) {
        return -1;
    }
    bool all = fp_add_errors(module) && fp_add_view(module) && fp_add_world(module) &&
               fp_add_service(module) && fp_add_plan(module) && fp_add_map(module) &&
               fp_add_names(module) && fp_add_reshard(module) && fp_add_schedule(module) &&
               fp_add_mixed(module) && fp_add_checkpoint(module) && fp_add_queue(module) &&
               fp_add_log(module);
    return all ? 0 : -1;
}

PyMODINIT_FUNC PyInit__ferry(void);

PyMODINIT_FUNC PyInit__ferry(void)
{
    static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, {0, NULL}};
    static struct PyModuleDef definition = {
        PyModuleDef_HEAD_INIT,
        .m_name = "ferry._ferry",
        .m_doc = "The C library ferry, as the package ferry needs it.",
        .m_slots = slots,
    };
    return PyModuleDef_Init(&definition);
}
