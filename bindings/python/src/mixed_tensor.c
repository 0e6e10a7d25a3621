/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A call on a small message takes some microseconds, and a view of every kind of tensor nearly as
 * long. So plain tensors of torch are asked for no more than is needed, again at every call: what
 * is not remembered cannot be out of date.
 */
#include "mixed.h"

static struct {
    PyObject *type; /* torch.Tensor, once torch was imported */
    PyObject *data_ptr, *shape, *dtype, *is_contiguous, *is_cpu;
} torch;

static bool find_torch(void)
{
    PyObject *module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    if (module == NULL) {
        return false;
    }
    torch.data_ptr = PyUnicode_InternFromString("data_ptr");
    torch.shape = PyUnicode_InternFromString("shape");
    torch.dtype = PyUnicode_InternFromString("dtype");
    torch.is_contiguous = PyUnicode_InternFromString("is_contiguous");
    torch.is_cpu = PyUnicode_InternFromString("is_cpu");
    torch.type = PyObject_GetAttrString(module, "Tensor");
    PyErr_Clear(); /* a torch that is only half imported has none yet */
    return torch.type != NULL;
}

static bool is_plain_torch(PyObject *object)
{
    return (torch.type != NULL || find_torch()) && (PyObject *)Py_TYPE(object) == torch.type;
}

/* Whether an answer was True; it is taken. */
static bool is_yes(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer == Py_True;
}

static bool take_shape(PyObject *shape, fp_operand *operand)
{
    Py_ssize_t n = shape == NULL ? -1 : PyTuple_Size(shape);
    if (n < 1 || n > FERRY_MAX_DIMS) {
        return false;
    }
    operand->n_dims = (uint32_t)n;
    for (Py_ssize_t d = 0; d < n; d++) {
        operand->shape[d] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(shape, d));
    }
    return !PyErr_Occurred();
}

static bool torch_dtype(PyObject *tensor, ferry_dtype *dtype_out)
{
    PyObject *dtype = PyObject_GetAttr(tensor, torch.dtype);
    bool good = dtype != NULL && fp_dtype_of(dtype, dtype_out);
    Py_XDECREF(dtype);
    return good;
}

static bool torch_base(PyObject *tensor, void **base_out)
{
    PyObject *pointer = PyObject_CallMethodObjArgs(tensor, torch.data_ptr, NULL);
    *base_out = pointer == NULL ? NULL : PyLong_AsVoidPtr(pointer);
    Py_XDECREF(pointer);
    return *base_out != NULL;
}

/* False without an exception, wherever anything is unusual: then the long way says what. */
static bool ask_torch(PyObject *tensor, uint32_t dtype, fp_operand *operand)
{
    ferry_dtype own;
    PyObject *shape = PyObject_GetAttr(tensor, torch.shape);
    bool good = take_shape(shape, operand) && torch_dtype(tensor, &own) && own.kind == dtype &&
                is_yes(PyObject_GetAttr(tensor, torch.is_cpu)) &&
                is_yes(PyObject_CallMethodObjArgs(tensor, torch.is_contiguous, NULL)) &&
                torch_base(tensor, &operand->tensor.buffer.base);
    Py_XDECREF(shape);
    PyErr_Clear();
    return good;
}

static bool check_dtype(const fp_view *view, const char *name, uint32_t dtype)
{
    ferry_dtype own;
    ferry_dtype_of(dtype, &own, NULL);
    bool is_opaque = view->dtype.kind == FERRY_BYTES;
    if (view->dtype.kind == dtype || (is_opaque && view->dtype.element_bits == own.element_bits)) {
        return true;
    }
    char given[FERRY_DTYPE_TEXT_BYTES], wanted[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(view->dtype, given, sizeof given);
    ferry_dtype_format(own, wanted, sizeof wanted);
    fp_raise_format(FERRY_ERR_INVALID_INPUT,
                    "tensor \"%s\" has dtype %s, and the handler was made for %s: convert it, or "
                    "make a handler for %s%s",
                    name, given, wanted, given,
                    view->dtype.kind == FERRY_U16 && own.element_bits == 16
                        ? "; bits of 16-bit floats in a numpy array are taken as x.view(\"V2\")"
                        : "");
    return false;
}

static bool check_layout(const fp_view *view, const char *name)
{
    if (view->source == FP_SOURCE_POINTER) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "tensor \"%s\" is a bare number: a collective needs to know rows and "
                        "columns, so give a tensor or an array",
                        name);
    } else if (view->n_dims == 0) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "tensor \"%s\" has no dims: the first one counts rows, so give it one with "
                        "reshape(1)",
                        name);
    } else if (!view->is_contiguous) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "tensor \"%s\" is not contiguous: give a contiguous copy, as .contiguous() "
                        "of torch and ascontiguousarray of numpy make",
                        name);
    } else {
        return true;
    }
    return false;
}

static bool ask_view(PyObject *object, const char *name, uint32_t dtype, bool writable,
                     fp_operand *operand)
{
    fp_view *view = &operand->view;
    if (!fp_view_of(object, name, writable, 0, view) || !check_layout(view, name) ||
        !check_dtype(view, name, dtype)) {
        return false;
    }
    operand->tensor.buffer.base = view->base;
    operand->n_dims = view->n_dims;
    for (uint32_t d = 0; d < view->n_dims; d++) {
        operand->shape[d] = view->shape[d];
    }
    return true;
}

bool fp_operand_of(PyObject *object, const char *name, uint32_t dtype, bool writable,
                   fp_operand *operand)
{
    ferry_dtype own;
    if (!(is_plain_torch(object) && ask_torch(object, dtype, operand)) &&
        !ask_view(object, name, dtype, writable, operand)) {
        fp_operand_clear(operand);
        return false;
    }
    ferry_dtype_of(dtype, &own, NULL);
    uint64_t columns = 1; /* no overflow: the tensor exists */
    for (uint32_t d = 1; d < operand->n_dims; d++) {
        columns *= operand->shape[d];
    }
    operand->tensor.rows = operand->shape[0];
    operand->tensor.columns = columns;
    operand->tensor.buffer = ferry_buffer_of(operand->tensor.buffer.base,
                                             operand->shape[0] * columns * own.element_bits / 8);
    operand->tensor.buffer.kind = operand->view.space.kind;
    operand->tensor.buffer.device = operand->view.space.device;
    return true;
}

void fp_operand_clear(fp_operand *operand)
{
    if (operand->view.owner != NULL) {
        fp_view_clear(&operand->view);
    }
}
