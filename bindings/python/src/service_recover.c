/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From a service that has failed to one that goes on. The handles stay the caller's: the service
 * and its world are the same objects, with other ones of the library inside, and what is held stays
 * where it is. So all that reads a handle without entering it is kept out meanwhile (is_replaced).
 */
#include "plan.h"
#include "service.h"

typedef struct recovering {
    fp_service *own;
    fp_world *world_object;
    ferry_service *service;
    ferry_world *world;
    ferry_recovery_options options;
    ferry_plan_options plan;
    ferry_tensors *sides[2];
    ferry_recovery found;
} recovering;

static bool add_held(fp_service *own, const fp_hold *hold, ferry_tensors *tensors)
{
    PyObject *name = PyUnicode_AsUTF8String(hold->name);
    if (name == NULL) {
        return false;
    }
    const char *text = PyBytes_AsString(name);
    ferry_buffer front, back;
    ferry_error error;
    if (!fp_service_buffer(own, hold->space, hold->base, hold->bytes, &front) ||
        (hold->is_front &&
         !fp_service_buffer(own, hold[1].space, hold[1].base, hold[1].bytes, &back))) {
        Py_DECREF(name);
        return false;
    }
    ferry_status status = hold->is_front
                              ? ferry_tensors_add_pair(tensors, text, &front, &back, &error)
                              : ferry_tensors_add(tensors, text, &front, &error);
    Py_DECREF(name);
    return status == FERRY_OK || fp_raise(status, error.message) != NULL;
}

/* The lists that bind was given, with what rebind has put into them. */
static bool list_held(recovering *r)
{
    const fp_holds *holds = &r->own->holds;
    size_t ends[] = {0, r->own->n_sources, holds->n};
    for (int side = 0; side < 2; side++) {
        ferry_error error;
        ferry_status status = ferry_tensors_create(&r->sides[side], &error);
        if (status != FERRY_OK) {
            return fp_raise(status, error.message) != NULL;
        }
        for (size_t i = ends[side]; i < ends[side + 1]; i += holds->items[i].is_front ? 2 : 1) {
            if (!add_held(r->own, &holds->items[i], r->sides[side])) {
                return false;
            }
        }
    }
    return true;
}

static bool may_recover(const fp_service *own)
{
    const char *why = NULL;
    if (own->bound[0] == NULL) {
        why =
            "recover_onto() needs a service with a bound plan: for tasks that were registered one "
            "by one there are recover(), take_ledger() and resume()";
    } else if (own->is_running) {
        why = "a run is under way: wait for its request before recover_onto()";
    } else if (own->n_lent != 0) {
        why = "a handler of mixed collectives uses the service's transport: shut it down before "
              "recover_onto()";
    }
    return why == NULL || fp_raise(FERRY_ERR_MISUSE, why) != NULL;
}

static ferry_status call_recover_onto(void *context, ferry_error *error)
{
    recovering *r = context;
    return ferry_service_recover_onto(&r->service, &r->world, &r->options, r->sides[0], r->sides[1],
                                      &r->found, error);
}

/*
 * What the call leaves is the handles', whatever it ended with. Ctrl-C ends the shrinking, which
 * asks for it; no world is there all the time that an interrupt could abort.
 */
static bool replace(recovering *r, bool prepared)
{
    fp_service *own = r->own;
    r->service = own->service;
    r->world = r->world_object->world;
    own->use.is_replaced = true;
    r->world_object->use.is_replaced = true;
    bool good = fp_service_call_in(NULL, own, prepared, call_recover_onto, r);
    r->world_object->use.is_replaced = false;
    own->use.is_replaced = false;
    r->world_object->world = r->world;
    if (r->service != own->service) {
        own->service = r->service;
        own->raw = r->world;
        own->is_tainted = false; /* what bytes could still come by is closed */
    }
    /* Ranks that prepare once more wait for each other. */
    own->is_resumed = own->is_resumed || good;
    return good;
}

/* For a rank that refuses: nobody comes so far. */
static ferry_status plan_nothing(void *context, const uint32_t *lost, size_t n_lost,
                                 ferry_plan **plan_out, ferry_error *error)
{
    (void)context, (void)lost, (void)n_lost, (void)plan_out, (void)error;
    return FERRY_ERR_MISUSE;
}

/* False with an exception: what is wrong on this rank, which all are to hear of in the call. */
static bool prepare(recovering *r, PyObject *refused, PyObject *spec, const char *replica)
{
    if (refused != Py_None) {
        PyErr_SetObject((PyObject *)Py_TYPE(refused), refused);
        return false;
    }
    return (r->options.spec = fp_spec_get(spec)) != NULL &&
           fp_replica_of(replica, &r->plan.replica) && fp_holds_check(&r->own->holds) &&
           list_held(r);
}

/*
 * recover_onto(refused, spec, replica, subset, min_size) -> (is_replaced, whole, next,
 * bytes_in_place, n_lost). refused: an exception that was raised before, or None. Of the plan that
 * is bound only what it says of this rank's shards is used from now on, and no lost rank changes
 * that.
 */
PyObject *fp_service_recover_onto(PyObject *self, PyObject *args)
{
    fp_service *own = (fp_service *)self;
    recovering r = {.own = own,
                    .options = FERRY_RECOVERY_OPTIONS_INIT,
                    .plan = FERRY_PLAN_OPTIONS_INIT,
                    .found = FERRY_RECOVERY_INIT};
    PyObject *refused, *spec;
    const char *replica;
    if (!PyArg_ParseTuple(args, "OOszI", &refused, &spec, &replica, &r.plan.subset,
                          &r.options.min_ranks) ||
        !fp_service_enter(own)) {
        return NULL;
    }
    r.options.plan_options = &r.plan;
    r.world_object = (fp_world *)own->world;
    const ferry_service *failed = own->service;
    bool good = false;
    if (may_recover(own)) {
        bool prepared = prepare(&r, refused, spec, replica);
        r.options.spec = prepared ? r.options.spec : NULL;
        r.options.replan = prepared ? NULL : plan_nothing;
        good = replace(&r, prepared);
    }
    bool is_new = own->service != failed;
    fp_service_leave(own);
    ferry_tensors_destroy(r.sides[0]);
    ferry_tensors_destroy(r.sides[1]);
    if (is_new) {
        fp_holds_clear(&own->kept);
    }
    typedef unsigned long long ull;
    return good ? Py_BuildValue("(OKKKI)", is_new ? Py_True : Py_False, (ull)r.found.whole,
                                (ull)r.found.next, (ull)r.found.bytes_in_place, r.found.n_lost)
                : NULL;
}
