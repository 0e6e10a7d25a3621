/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "binding.h"

#include <string.h>

/* Names of torch and numpy where they differ from ferry's. */
static const struct {
    const char *text;
    uint32_t kind;
} others[] = {
    {"float64", FERRY_F64},
    {"double", FERRY_F64},
    {"float32", FERRY_F32},
    {"float", FERRY_F64}, /* Python's own, as torch and numpy take it */
    {"float16", FERRY_F16},
    {"half", FERRY_F16},
    {"bfloat16", FERRY_BF16},
    {"float8_e4m3fn", FERRY_F8E4M3},
    {"float8_e5m2", FERRY_F8E5M2},
    {"float8_e8m0fnu", FERRY_F8E8M0},
    {"int64", FERRY_I64},
    {"uint64", FERRY_U64},
    {"int32", FERRY_I32},
    {"uint32", FERRY_U32},
    {"int16", FERRY_I16},
    {"uint16", FERRY_U16},
    {"int8", FERRY_I8},
    {"uint8", FERRY_U8},
    {"bool", FERRY_BOOL},
    {"complex64", FERRY_C64},
};

static bool by_other_name(const char *text, ferry_dtype *dtype_out)
{
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(text, others[i].text) == 0) {
            return ferry_dtype_of(others[i].kind, dtype_out, NULL) == FERRY_OK;
        }
    }
    return false;
}

static bool by_safetensors_name(const char *text, ferry_dtype *dtype_out)
{
#define TRY(kind, number, name, safetensors, bits)                                                 \
    if (strcmp(text, safetensors) == 0) {                                                          \
        return ferry_dtype_of(FERRY_##kind, dtype_out, NULL) == FERRY_OK;                          \
    }
    FERRY_DTYPE_MAP(TRY)
#undef TRY
    return false;
}

/* What follows the last point of str(object): "torch.bfloat16" is "bfloat16". */
static bool name_of(PyObject *object, char *text, size_t text_bytes)
{
    PyObject *string = PyUnicode_Check(object) ? (Py_INCREF(object), object) : PyObject_Str(object);
    PyObject *bytes = string == NULL ? NULL : PyUnicode_AsUTF8String(string);
    Py_XDECREF(string);
    if (bytes == NULL) {
        return false;
    }
    const char *whole = PyBytes_AsString(bytes);
    if (strncmp(whole, "torch.", 6) == 0) {
        whole += 6;
    }
    size_t length = strlen(whole);
    length = length < text_bytes ? length : text_bytes - 1;
    memcpy(text, whole, length);
    text[length] = '\0';
    Py_DECREF(bytes);
    return true;
}

/* numpy.float32 is a class; numpy.dtype(...) of it has the name. */
static PyObject *name_of_class(PyObject *object)
{
    return PyType_Check(object) ? PyObject_GetAttrString(object, "__name__")
                                : (Py_INCREF(object), object);
}

bool fp_dtype_of(PyObject *object, ferry_dtype *dtype_out)
{
    /* Dtypes of a library are few objects that live as long as it: each is read once. */
    static PyObject *known;
    if (known == NULL && (known = PyDict_New()) == NULL) {
        return false;
    }
    PyObject *found = PyDict_GetItemWithError(known, object);
    if (found != NULL) {
        unsigned long long packed = PyLong_AsUnsignedLongLong(found);
        *dtype_out = (ferry_dtype){(uint32_t)(packed >> 32), (uint32_t)packed};
        return true;
    }
    PyErr_Clear(); /* what cannot be hashed is not a dtype, and says so below */
    char text[96];
    PyObject *named = name_of_class(object);
    bool read = named != NULL && name_of(named, text, sizeof text);
    Py_XDECREF(named);
    if (!read) {
        return false;
    }
    if (!by_other_name(text, dtype_out) && !by_safetensors_name(text, dtype_out) &&
        ferry_dtype_parse(text, dtype_out, NULL) != FERRY_OK) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED,
                        "dtype %s is none that ferry knows; it moves any bytes as \"bytes:N\"",
                        text);
        return false;
    }
    PyObject *packed = PyLong_FromUnsignedLongLong((unsigned long long)dtype_out->kind << 32 |
                                                   dtype_out->element_bits);
    bool kept = packed != NULL && PyDict_SetItem(known, object, packed) == 0;
    Py_XDECREF(packed);
    return kept;
}

static PyObject *prefix(void)
{
    static PyObject *text;
    return text != NULL ? text : (text = PyUnicode_InternFromString("torch."));
}

PyObject *fp_dtype_raw(PyObject *object)
{
    PyObject *text = PyObject_Str(object);
    if (text != NULL && PyUnicode_Tailmatch(text, prefix(), 0, PY_SSIZE_T_MAX, -1) == 1) {
        PyObject *rest = PyUnicode_Substring(text, PyUnicode_GetLength(prefix()), PY_SSIZE_T_MAX);
        Py_DECREF(text);
        text = rest;
    }
    return text;
}

PyObject *fp_dtype_name(ferry_dtype dtype)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(dtype, text, sizeof text);
    return PyUnicode_FromString(text);
}
