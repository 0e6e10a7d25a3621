/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_SERVICE_H
#define FP_SERVICE_H

#include "binding.h"

/*
 * The copy service in six files: service.c makes and ends it, service_hold.c keeps the caller's
 * tensors, memory.c is the memory of ferry that they may lie in, service_register.c registers and
 * binds them, service_run.c moves the bytes, and service_recover.c goes on after a loss. What only
 * reads numbers is in service_ask.c.
 */

/* A tensor that the service keeps alive: what is needed of an fp_view to check and to end it. */
typedef struct fp_hold {
    PyObject *owner;
    PyObject *name; /* str, or NULL: then the task tells it apart */
    PyObject *raw;  /* as an fp_view has it */
    void *held;
    char *base;
    uint64_t bytes;
    uint64_t layout; /* as fp_view_layout has it */
    uint64_t task_id;
    ferry_dtype dtype;
    fp_source source;
    fp_space space;
    bool is_front;   /* of a pair: the back follows */
    bool is_written; /* by runs */
} fp_hold;

typedef struct fp_holds {
    fp_hold *items;
    size_t n, capacity;
    uint32_t *slots; /* by owner: number + 1; 0 is free */
    size_t n_slots;
} fp_holds;

/* Room for one more; false with an exception. */
bool fp_holds_reserve(fp_holds *holds);
/* The one of the same object at the same place, or NULL. */
fp_hold *fp_holds_find(const fp_holds *holds, const fp_view *view);
/* There is room. Takes over the view, which is empty then. name may be NULL. */
fp_hold *fp_holds_put(fp_holds *holds, fp_view *view, PyObject *name, uint64_t task_id);
void fp_hold_clear(fp_hold *hold);
void fp_holds_clear(fp_holds *holds);
/* For the collector of cycles: every reference that the holds have. */
int fp_holds_visit(const fp_holds *holds, visitproc visit, void *arg);
/* Appends all of one to the other, which has room for nothing else then; false: no memory. */
bool fp_holds_move(fp_holds *from, fp_holds *to);
/* False with an exception that names the tensor whose memory is no longer where it was. */
bool fp_holds_check(const fp_holds *holds);
/* Waits for what others have under way on tensors of devices. False with an exception. */
bool fp_holds_await(const fp_holds *holds);
/* `tensor "NAME"` is how sentences go on: the name, or "task 7". */
void fp_hold_words(PyObject *name, uint64_t task_id, char text[160]);

/*
 * What the elements of each task are, to be compared between its two ends once the library has
 * found that both are there. The sum of all ranks is zero where all agree.
 */
typedef struct fp_kind {
    uint64_t task_id;
    uint32_t peer;
    bool is_send;
    PyObject *dtype; /* str; NULL: any bytes, or as the view has it */
    PyObject *name;  /* str or NULL */
} fp_kind;

typedef struct fp_kinds {
    fp_kind *items;
    size_t n, capacity;
    uint64_t sum;
} fp_kinds;

/* Of a registered end; false with an exception. name may be NULL. */
bool fp_kinds_add(fp_kinds *kinds, const fp_view *view, const fp_kind *end, uint32_t my_rank);
void fp_kinds_clear(fp_kinds *kinds);
/* The dtype's text, or Py_None of what carries any bytes. A new reference. */
PyObject *fp_kind_text(ferry_dtype dtype, PyObject *raw);

/* What happens beside a run: signals are looked for, and the caller's function is told. */
typedef struct fp_watch {
    PyObject *callback; /* borrowed; NULL: none */
    PyObject *type, *value, *trace;
    double looked;  /* seconds of the run */
    double stopped; /* since an interrupt */
    bool is_interrupted, is_cancelled, is_aborted;
    bool is_dropped; /* nobody waits: no handler and no function of the program is called */
} fp_watch;

void fp_watch_clear(fp_watch *watch);

struct fp_memory;

typedef struct fp_service {
    PyObject_HEAD
    fp_use use;
    ferry_service *service;
    ferry_world *raw; /* which lives as long as the service */
    PyObject *world;  /* a World */
    fp_holds holds;
    fp_holds kept; /* of a run that failed with bytes on their way: until the end */
    fp_kinds kinds;
    PyObject *written;          /* a list of torch's tensors that runs write, once one has ended */
    PyObject *plan;             /* that is bound, or NULL */
    PyObject *bound[2];         /* by ferry_side_role: name to the number of its hold there */
    size_t n_sources;           /* of bound holds: those of destinations follow */
    struct fp_memory *memories; /* of its transport */
    struct fp_shared *shared;   /* of the process, that its transport shares */
    ferry_request *dropped; /* a run that nobody has a request of: it is ended before all else */
    fp_watch watch;
    size_t n_lent;   /* handlers of collectives that use its transport */
    double patience; /* seconds that an interrupted run has for an orderly end */
    unsigned long long n_agreed; /* agreements before runs that were begun */
    bool is_finalized, is_running, is_resumed, is_tainted;
    bool is_abandoned;
    bool is_refused; /* it is scheduled, and ends of a task are of different dtypes */
} fp_service;

/*
 * The service and its world are this thread's until fp_service_leave. False with an exception:
 * another's, or finalized, or the world was closed.
 */
bool fp_service_enter(fp_service *own);
void fp_service_leave(fp_service *own);
/* Cancels and ends the run that was dropped, if one was; within the service's patience. */
void fp_service_settle(fp_service *own);
/*
 * A collective call of the service, which is entered. Not good: an exception says what is wrong
 * with this rank's tensors. Then the call ends on all ranks, who hear it, and that exception stays
 * set.
 */
bool fp_service_call(fp_service *own, bool good, fp_call_fn function, void *context);
/* The same; raw: the world that an interrupt aborts, NULL: none. */
bool fp_service_call_in(ferry_world *raw, fp_service *own, bool good, fp_call_fn function,
                        void *context);
/* Has all ranks hear in the next call what is raised here, which goes to the three. */
void fp_service_decline(fp_service *own, PyObject **type, PyObject **value, PyObject **trace);
/* Called within runs, on the thread that waits for them. */
bool fp_service_progress(void *context, const ferry_progress *progress);
/* Forgets the tensors, once the service has. */
void fp_service_forget(fp_service *own);
/*
 * Of a tensor's memory. What lies in memory of ferry gets the region that other ranks map, which is
 * made when first asked for. False with an exception.
 */
bool fp_service_buffer(fp_service *own, fp_space space, const void *base, uint64_t bytes,
                       ferry_buffer *buffer_out);
/*
 * Its transport shares from now on only what tensors that are held lie in, and nothing once the
 * service is finalized: nobody is to write to the rest.
 */
void fp_service_unshare(fp_service *own);

extern PyTypeObject *fp_service_type;

/* Methods of the type. */
PyObject *fp_service_register(PyObject *self, PyObject *args);       /* is_send, six values */
PyObject *fp_service_register_many(PyObject *self, PyObject *args);  /* is_send, sequence */
PyObject *fp_service_register_boxes(PyObject *self, PyObject *args); /* is_send, sequence */
PyObject *fp_service_bind(PyObject *self, PyObject *args);
PyObject *fp_service_rebind(PyObject *self, PyObject *args);
PyObject *fp_service_kinds_sum(PyObject *self, PyObject *unused);
PyObject *fp_service_kinds(PyObject *self, PyObject *unused);
PyObject *fp_service_refuse(PyObject *self, PyObject *unused);
/* callback, queue, and what this rank says in an agreement before it: a list if some say no. */
PyObject *fp_service_run(PyObject *self, PyObject *args);
PyObject *fp_service_start(PyObject *self, PyObject *args);
PyObject *fp_service_recover_onto(PyObject *self, PyObject *args);
PyObject *fp_service_time_runs(PyObject *self, PyObject *number);
PyObject *fp_service_alloc(PyObject *self, PyObject *number);
PyObject *fp_service_statistics(PyObject *self, PyObject *unused);
PyObject *fp_service_peers(PyObject *self, PyObject *unused);
PyObject *fp_service_destinations(PyObject *self, PyObject *unused);
PyObject *fp_service_spans(PyObject *self, PyObject *unused);

bool fp_add_service_run(PyObject *module);
bool fp_add_memory(PyObject *module);

#endif
