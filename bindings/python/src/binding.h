/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_BINDING_H
#define FP_BINDING_H

/*
 * What the files of the extension module share. The module keeps to the limited API of Python 3.9,
 * so one binary serves all later versions; it includes public headers of ferry only. Names of this
 * folder begin with fp_.
 *
 * Conventions of Python's own API hold: -1 or NULL with an exception set is a failure. Every call
 * that can take long releases the interpreter's lock.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* errors.c: exceptions. */

/* Raises the exception of a status with its sentence; returns NULL, and fp_raise_int -1. */
PyObject *fp_raise(ferry_status status, const char *sentence);
int fp_raise_int(ferry_status status, const char *sentence);
/* The same of a collective call that has ended so on all ranks, as one that is no misuse does. */
PyObject *fp_raise_on_all(ferry_status status, const char *sentence);
/* Whether this is a type of ferry's exceptions. */
bool fp_is_error(PyObject *type);
/* The same of a sentence made here. Of arguments the caller got wrong: FERRY_ERR_INVALID_INPUT. */
PyObject *fp_raise_format(ferry_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* use.c: who may use a handle. */

/*
 * At the head of every object that stands for a handle of ferry. A handle belongs to the process
 * that made it, and to one thread at a time.
 */
typedef struct fp_use {
    const char *what; /* "the world", "the service": for sentences */
    pid_t pid;
    bool busy;        /* guarded by the interpreter's lock */
    bool is_replaced; /* busy with a call that puts another one in the handle's place */
} fp_use;

void fp_use_init(fp_use *use, const char *what);
/* False with an exception: another process's, in use by another thread, or closed (!open). */
bool fp_enter(fp_use *use, bool open);
/* The same for what only reads, which may be while a call is on: of this process, and open. */
bool fp_may_read(const fp_use *use, bool open);
void fp_leave(fp_use *use);
/* Whether the handle may be destroyed here: not in a child of fork. */
bool fp_is_own(const fp_use *use);

/*
 * Runs a call that may wait for other ranks, without the interpreter's lock. On the main thread
 * Ctrl-C aborts the world (NULL: of a call that looks for signals itself): see guard.h. True if
 * the call succeeded, whatever signals came: what it has made is the caller's. Else false with an
 * exception set, a signal handler's before the call's own.
 */
typedef ferry_status (*fp_call_fn)(void *context, ferry_error *error);
bool fp_block(ferry_world *world, fp_call_fn call, void *context);
/* What ranks have said, one behind the other, as a list of bytes. */
PyObject *fp_list_parts(const void *all, const size_t *lengths, uint32_t n_ranks);
/* The same of a call that has returned: whether it succeeded; else an exception is set. */
bool fp_ended(ferry_status status, const ferry_error *error);

/* Converts as PyUnicode_FSConverter does, and refuses zero bytes in a sentence of ferry's. */
int fp_path_bytes(PyObject *path, void *bytes_out);
/* The same; None is NULL. */
int fp_optional_path_bytes(PyObject *path, void *bytes_out);

/*
 * Calls with a path (a str, bytes or a PathLike) and without the interpreter's lock. False with an
 * exception, if there is no path in it or the call failed.
 */
typedef ferry_status (*fp_path_fn)(void *context, const char *path, ferry_error *error);
bool fp_with_path(PyObject *path, fp_path_fn call, void *context);

/* view.c: the caller's memory, as its library describes it (view_*.c). */

typedef enum fp_source {
    FP_SOURCE_TORCH,
    FP_SOURCE_BUFFER, /* the buffer protocol: the exporter keeps the memory while the view lives */
    FP_SOURCE_DLPACK,
    FP_SOURCE_POINTER,
    FP_SOURCE_CUDA /* __cuda_array_interface__: the object keeps the memory */
} fp_source;

/* Where memory lies; zeros: the host. */
typedef struct fp_space {
    uint32_t kind; /* ferry_memory_kind */
    int32_t device;
    void *stream; /* whose work must be done before the memory is used; NULL: none that is known */
} fp_space;

/*
 * A tensor of the caller, whatever library it is of. It holds what keeps the memory alive. Strides
 * are bytes. A pointer has n_bytes as the caller said and dtype "u8" of one dim.
 */
typedef struct fp_view {
    PyObject *owner; /* NULL: an empty view */
    fp_source source;
    char *base;     /* of element (0, 0, ...) */
    uint64_t bytes; /* of all elements together */
    ferry_dtype dtype;
    PyObject *raw; /* str: where dtype is FERRY_BYTES, which bytes its library says they are */
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t stride[FERRY_MAX_DIMS];
    bool is_contiguous; /* row-major without gaps */
    bool is_readonly;
    fp_space space;
    void *held; /* a Py_buffer or a DLPack capsule */
} fp_view;

#define FP_VIEW_INIT                                                                               \
    {                                                                                              \
        .owner = NULL                                                                              \
    }

/*
 * A view of a torch tensor, of anything with the buffer protocol, DLPack or
 * __cuda_array_interface__ (numpy among them), or of an int, a pointer to pointer_bytes bytes. name
 * stands in sentences and may be NULL. False with an exception: a tensor whose memory ferry cannot
 * use, that has none of its own, is read-only where writable is asked for, or has strides that are
 * negative or overlap.
 */
bool fp_view_of(PyObject *object, const char *name, bool writable, uint64_t pointer_bytes,
                fp_view *view_out);
void fp_view_clear(fp_view *view);
/* False with an exception that names it: the tensor's memory is no longer where it was. */
bool fp_view_check(const fp_view *view, uint64_t layout, const char *name);
/* Of shape, strides and dtype: another value is another tensor, also at the same place. */
uint64_t fp_view_layout(const fp_view *view);
/*
 * Waits, without the interpreter's lock, until what others have under way on the memory is done: of
 * a torch tensor, on the current stream of its device, else on the stream that is known. False with
 * an exception.
 */
bool fp_space_await(fp_space space, fp_source source);
/* All of the view as a box of ferry; it borrows the view's memory. */
void fp_view_box(const fp_view *view, ferry_box *box_out);

/* dtype.c */

/* Of a torch or numpy dtype, a ferry name ("bf16"), or a safetensors one ("BF16"). */
bool fp_dtype_of(PyObject *object, ferry_dtype *dtype_out);
/* "bf16" */
PyObject *fp_dtype_name(ferry_dtype dtype);
/* Of a dtype that ferry has no name for, that of its library: ">f4", "float8_e4m3fnuz". */
PyObject *fp_dtype_raw(PyObject *object);

/* convert.c: numbers and lists. False or NULL with an exception set. */

bool fp_u64(PyObject *number, const char *what, uint64_t *out);
bool fp_u32(PyObject *number, const char *what, uint32_t *out);
/* A sequence of ranks to a group, or None to NULL. The caller releases the group. */
bool fp_group(PyObject *ranks, const char *what, ferry_group **group_out);
PyObject *fp_u64_tuple(const uint64_t *numbers, uint32_t n);
/* Collects what a ferry_write_fn is given; fp_text_take makes it a str and frees it. */
typedef struct fp_text {
    char *bytes;
    size_t used, capacity;
} fp_text;
int fp_text_write(void *context, const char *bytes, size_t n_bytes);
PyObject *fp_text_take(fp_text *text);
void fp_text_clear(fp_text *text);

/* exchange.c: the caller's way to talk, as ferry_exchange wants it. */

/*
 * The object has `rank`, `size` and all_gather(bytes) -> list of bytes; it may have gather (a list
 * on rank 0, else None) and scatter(list or None) -> bytes. What it raises becomes the cause of the
 * ExchangeFailed that the call ends with.
 */
typedef struct fp_exchange {
    ferry_exchange exchange;
    PyObject *object;
    PyObject *answer; /* keeps what was handed out last */
    char *joined;
    size_t *lengths;
    size_t n_lengths;
    PyObject *type, *value, *trace; /* what the object raised */
} fp_exchange;

bool fp_exchange_of(PyObject *object, fp_exchange *exchange_out);
void fp_exchange_clear(fp_exchange *exchange);
/* Raises for a call that used the exchange, with its cause. */
PyObject *fp_raise_exchanged(fp_exchange *exchange, ferry_status status, const char *sentence);

/* world.c */

typedef struct fp_world {
    PyObject_HEAD
    fp_use use;
    ferry_world *world; /* NULL: closed */
    bool is_thread;     /* a rank of a world of threads */
} fp_world;

extern PyTypeObject *fp_world_type;
/* The world of an object of type World, open and of this process; NULL with an exception. */
ferry_world *fp_world_get(PyObject *object);

/* Each file adds its types and functions to the module. */
bool fp_add_errors(PyObject *module);
bool fp_add_view(PyObject *module);
bool fp_add_world(PyObject *module);
bool fp_add_service(PyObject *module);
bool fp_add_plan(PyObject *module);
bool fp_add_reshard(PyObject *module);
bool fp_add_map(PyObject *module);
bool fp_add_names(PyObject *module);
bool fp_add_schedule(PyObject *module);
bool fp_add_mixed(PyObject *module);
bool fp_add_checkpoint(PyObject *module);
bool fp_add_log(PyObject *module);
/* What a PyMethodDef has of a function that takes keywords. */
#define FP_KEYWORDS(function) (PyCFunction)(void (*)(void)) function, METH_VARARGS | METH_KEYWORDS
/* A docstring that begins with the name and the parameters: what inspect.signature and help show.
 */
#define FP_DOC(signature, text) signature "\n--\n\n" text
/* In a tp_traverse: objects of types that specs make hold their type. */
#define FP_VISIT_TYPE(self) Py_VISIT((PyObject *)Py_TYPE(self))
/* Makes a type of a spec and adds it under its last name. */
PyTypeObject *fp_add_type(PyObject *module, PyType_Spec *spec);
/*
 * Py_tp_new of types whose objects come from functions only: one that was never filled is of no
 * use. The sentence is the type's docstring, which says who makes them.
 */
PyObject *fp_refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
bool fp_add_functions(PyObject *module, PyMethodDef *functions);

#endif
