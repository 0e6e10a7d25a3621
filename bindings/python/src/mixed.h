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

/* mixed.c: what ferry.MixedCommHandler is made of. */

typedef struct fp_mixed {
    PyObject_HEAD
    fp_use use;
    ferry_mixed_comm *comm; /* NULL: not made yet, or shut down */
    uint32_t n_requests;    /* whose end was not seen yet */
    bool is_abandoned;      /* the program ends, and nothing waits for others any more */
    PyObject *world_object;
    PyObject *lender;   /* the service whose transport it uses, or NULL */
    ferry_world *world; /* of that; the handle keeps it, also when the object is closed */
    uint32_t dtype;
    uint32_t dp_size;
} fp_mixed;

/* What a call is about; its tensors are held until it is cleared. */
typedef struct fp_mixed_call {
    uint32_t op, mode;
    fp_operand in, out;
    PyObject *x_in, *x_out; /* owned: a view of torch's has no owner */
    PyObject *queue_object; /* owned; None: host order */
    ferry_queue *queue;     /* of that */
    bool is_captured;       /* a graph keeps the call */
} fp_mixed_call;

#define FP_MIXED_CALL_INIT                                                                         \
    {                                                                                              \
        .in = FP_OPERAND_INIT, .out = FP_OPERAND_INIT                                              \
    }

/*
 * Of the arguments of run() and start(), behind fp_enter. False with an exception: the call is
 * refused on all ranks.
 */
bool fp_mixed_call_begin(fp_mixed *own, PyObject *const arguments[5], fp_mixed_call *call_out);
void fp_mixed_call_clear(fp_mixed_call *call);

/* mixed_request.c: a call that was begun, which start() returns. */
PyObject *fp_mixed_start(PyObject *self, PyObject *args, PyObject *kwargs);
bool fp_add_mixed_request(PyObject *module);

#endif
