/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_VIEW_H
#define FP_VIEW_H

#include "binding.h"

/*
 * What the files that view the caller's memory share: view.c asks the others in turn, and has what
 * is common to all. name is that of the tensor, for sentences, or NULL.
 */

/* view.c */

/* 'tensor "name"', made in text, or "a tensor". */
const char *fp_view_called(const char *name, char text[160]);
#define FP_CALLED(name) fp_view_called(name, (char[160]){0})

/* First the number of dims, then each of them, then fp_view_finish. False with an exception. */
bool fp_view_check_dims(Py_ssize_t n_dims, const char *name);
bool fp_view_set_dim(fp_view *view, uint32_t at, int64_t length, int64_t stride, const char *name);
/* Counts bytes; strides of dims of one element become those of a row-major tensor. */
bool fp_view_finish(fp_view *view, const char *name);
/* All of that from two tuples, of a view whose dtype is set; strides NULL: row-major. */
bool fp_view_set_dims(PyObject *shape, PyObject *strides, const char *name, fp_view *view);

/* view_torch.c */

bool fp_is_torch(PyObject *object);
/* False with an exception. */
bool fp_view_torch(PyObject *tensor, const char *name, fp_view *view);

/* view_buffer.c. 1: a view; 0: the object has no such description; -1: an exception. */

int fp_view_buffer(PyObject *object, const char *name, bool writable, fp_view *view);
/*
 * What the view's owner is now; it has no base where it has no memory. An exporter should keep
 * elements in place while a view is held, but numpy's resize(refcheck=False) does not. False with
 * an exception. Nothing but now_out->raw is held.
 */
bool fp_buffer_again(const fp_view *view, const char *name, fp_view *now_out);
/* What the view of a buffer holds, and its giving back. */
PyObject *fp_buffer_object(const void *held);
void fp_buffer_release(void *held);
/* __array_interface__ */
int fp_view_interface(PyObject *object, const char *name, bool writable, fp_view *view);

/* view_cuda.c */

/*
 * The memory at the view's base is said to be a CUDA device's; device -1: the driver knows which.
 * False with an exception: there is no driver, or it knows better.
 */
bool fp_view_on_cuda(fp_view *view, int device, const char *name);
/* __cuda_array_interface__. 1, 0 or -1, as those of view_buffer.c. */
int fp_view_cuda(PyObject *object, const char *name, bool writable, fp_view *view);

/* view_dlpack.c */

/* DLPack, as its specification has it. */
typedef struct fp_dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t n_dims;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* of elements; NULL: row-major */
    uint64_t byte_offset;
} fp_dl_tensor;

/* False with an exception. */
bool fp_view_read_dlpack(const fp_dl_tensor *tensor, const char *name, fp_view *view);
/* 1, 0 or -1, as those of view_buffer.c. */
int fp_view_dlpack(PyObject *object, const char *name, bool writable, fp_view *view);

#endif
