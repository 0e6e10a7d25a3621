/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "mixed.h"

/* Modes of the library in the order of Python's numbers, which begin at 0. */
static const uint32_t modes[] = {
    FERRY_MIXED_FUSED_WAITS_MULTICAST,
    FERRY_MIXED_FUSED_WAITS_UNICAST,
    FERRY_MIXED_FUSED_BYTES1_MULTICAST,
    FERRY_MIXED_FUSED_BYTES1_UNICAST,
    FERRY_MIXED_FUSED_BYTES2_MULTICAST,
    FERRY_MIXED_FUSED_BYTES2_UNICAST,
    FERRY_MIXED_BASE_ONE,
    FERRY_MIXED_BASE_TP_DP,
    FERRY_MIXED_AUTOTUNE,
};
enum { N_MODES = sizeof modes / sizeof modes[0] };
_Static_assert(N_MODES == FERRY_MIXED_N_MODES - 1, "every mode but the default has a number");

long fp_mixed_mode_number(uint32_t mode)
{
    for (long i = 0; i < N_MODES; i++) {
        if (modes[i] == mode) {
            return i;
        }
    }
    return -1;
}

/* A name is looked up in the enum of ferry._mixed, which knows ours as well. */
static PyObject *member_of(PyObject *name, const char *finder)
{
    PyObject *module = PyImport_ImportModule("ferry._mixed");
    PyObject *found = module == NULL ? NULL : PyObject_CallMethod(module, finder, "O", name);
    Py_XDECREF(module);
    return found;
}

static bool number_of(PyObject *object, const char *class_name, const char *finder, long n,
                      long *number_out)
{
    PyObject *member =
        PyUnicode_Check(object) ? member_of(object, finder) : (Py_INCREF(object), object);
    if (member == NULL) {
        return false;
    }
    bool is_number = PyLong_Check(member) && !PyBool_Check(member);
    long number = is_number ? PyLong_AsLong(member) : -1;
    Py_DECREF(member);
    PyErr_Clear(); /* beyond a long is beyond the enum */
    if (number < 0 || number >= n) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        is_number ? "the number is none of ferry.%s: they go from 0 to %ld"
                                  : "give a member of ferry.%s, its name, or a number up to %ld",
                        class_name, n - 1);
        return false;
    }
    *number_out = number;
    return true;
}

bool fp_mixed_op_of(PyObject *object, uint32_t *op_out)
{
    long number;
    if (!number_of(object, "MixedCommOp", "find_op", FERRY_MIXED_N_OPS, &number)) {
        return false;
    }
    *op_out = (uint32_t)number;
    return true;
}

bool fp_mixed_mode_of(PyObject *object, uint32_t *mode_out)
{
    long number;
    if (object == Py_None) {
        *mode_out = FERRY_MIXED_MODE_DEFAULT;
        return true;
    }
    if (!number_of(object, "MixedCommMode", "find_mode", N_MODES, &number)) {
        return false;
    }
    *mode_out = modes[number];
    return true;
}
