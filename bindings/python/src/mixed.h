/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_MIXED_H
#define FP_MIXED_H

#include "binding.h"

/* mixed_names.c: operations and modes are numbered in Python as the page of the class has them. */

/* Of a number, an enum's member or a name. False with an exception. */
bool fp_mixed_op_of(PyObject *object, uint32_t *op_out);
/* None is the default mode. */
bool fp_mixed_mode_of(PyObject *object, uint32_t *mode_out);
/* Python's number of a mode of the library. */
long fp_mixed_mode_number(uint32_t mode);

/* mixed_tensor.c: what a call is given. */

/* A tensor as a call needs it. The first dim counts rows; what the others make up are columns. */
typedef struct fp_operand {
    ferry_mixed_tensor tensor;
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    fp_view view; /* without an owner where torch was asked directly */
} fp_operand;

#define FP_OPERAND_INIT                                                                            \
    {                                                                                              \
        .view = FP_VIEW_INIT                                                                       \
    }

/* False with an exception: no tensor of this dtype, with one dim at least, in row-major order. */
bool fp_operand_of(PyObject *object, const char *name, uint32_t dtype, bool writable,
                   fp_operand *operand_out);
void fp_operand_clear(fp_operand *operand);

#endif
