/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

enum { DL_CPU = 1, DL_CUDA_HOST = 3 };

static ferry_dtype dtype_of_dlpack(const fp_dl_tensor *tensor)
{
    enum { INT = 0, UINT = 1, FLOAT = 2, BFLOAT = 4, COMPLEX = 5, BOOL = 6 };
    enum { FLOAT8_E4M3FN = 10, FLOAT8_E5M2 = 12, FLOAT8_E8M0FNU = 14 };
    uint32_t bits = (uint32_t)tensor->bits * tensor->lanes;
    uint32_t kind = FERRY_BYTES;
    switch (tensor->lanes == 1 ? tensor->code : -1) {
    case INT:
        kind = bits == 8 ? FERRY_I8 : bits == 16 ? FERRY_I16 : bits == 32 ? FERRY_I32 : FERRY_I64;
        break;
    case UINT:
        kind = bits == 8 ? FERRY_U8 : bits == 16 ? FERRY_U16 : bits == 32 ? FERRY_U32 : FERRY_U64;
        break;
    case FLOAT:
        kind = bits == 16 ? FERRY_F16 : bits == 32 ? FERRY_F32 : bits == 64 ? FERRY_F64 : kind;
        break;
    case BFLOAT:
        kind = FERRY_BF16;
        break;
    case COMPLEX:
        kind = bits == 64 ? FERRY_C64 : kind;
        break;
    case BOOL:
        kind = FERRY_BOOL;
        break;
    case FLOAT8_E4M3FN:
        kind = FERRY_F8E4M3;
        break;
    case FLOAT8_E5M2:
        kind = FERRY_F8E5M2;
        break;
    case FLOAT8_E8M0FNU:
        kind = FERRY_F8E8M0;
        break;
    default:
        break;
    }
    return (ferry_dtype){kind, bits};
}

bool fp_view_read_dlpack(const fp_dl_tensor *tensor, const char *name, fp_view *view)
{
    if (tensor->device_type != DL_CPU && tensor->device_type != DL_CUDA_HOST) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED,
                        "%s is on a device (DLPack type %d, number %d), and this version moves "
                        "host memory only: copy it to the host and back",
                        FP_CALLED(name), (int)tensor->device_type, (int)tensor->device_id);
        return false;
    }
    if (!fp_view_check_dims(tensor->n_dims, name)) {
        return false;
    }
    view->base   = (char *)tensor->data + tensor->byte_offset;
    view->dtype  = dtype_of_dlpack(tensor);
    view->n_dims = (uint32_t)tensor->n_dims;
    if (view->dtype.element_bits % 8 != 0) {
        fp_raise_format(FERRY_ERR_UNSUPPORTED, "%s has elements of %u bits: view it as bytes",
                        FP_CALLED(name), view->dtype.element_bits);
        return false;
    }
    int64_t step = (int64_t)(view->dtype.element_bits / 8);
    for (uint32_t d = view->n_dims; d-- > 0;) {
        int64_t width = (int64_t)(view->dtype.element_bits / 8);
        int64_t own   = tensor->strides == NULL ? step : tensor->strides[d] * width;
        if (!fp_view_set_dim(view, d, (uint64_t)tensor->shape[d], own, name)) {
            return false;
        }
        step *= tensor->shape[d];
    }
    return fp_view_finish(view, name);
}

int fp_view_dlpack(PyObject *object, const char *name, fp_view *view)
{
    if (!PyObject_HasAttrString(object, "__dlpack__")) {
        return 0;
    }
    PyObject *capsule = PyObject_CallMethod(object, "__dlpack__", NULL);
    if (capsule == NULL) {
        return -1;
    }
    view->source = FP_SOURCE_DLPACK;
    view->held   = capsule; /* its destructor gives the tensor back: it is never renamed */
    const fp_dl_tensor *tensor = PyCapsule_GetPointer(capsule, "dltensor");
    return tensor != NULL && fp_view_read_dlpack(tensor, name, view) ? 1 : -1;
}
