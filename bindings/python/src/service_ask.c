/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a service tells of itself, as tuples that ferry/_service.py gives names to. */
#include "service.h"

static PyObject *append(PyObject *list, PyObject *item)
{
    if (list == NULL || item == NULL || PyList_Append(list, item) != 0) {
        Py_CLEAR(list);
    }
    Py_XDECREF(item);
    return list;
}

typedef unsigned long long ull;

PyObject *fp_service_statistics(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    ferry_service_statistics s = FERRY_SERVICE_STATISTICS_INIT;
    ferry_error error;
    if (!fp_enter(&own->use, !own->is_finalized)) {
        return NULL;
    }
    ferry_status status = ferry_service_get_statistics(own->service, &s, &error);
    fp_leave(&own->use);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    return Py_BuildValue(
        "(KKKKKKKKKKKKKKddddddKKK)", (ull)s.n_runs, (ull)s.n_schedules, (ull)s.n_allocations,
        (ull)s.n_registrations, (ull)s.staging_bytes, (ull)s.bytes_local, (ull)s.bytes_mapped,
        (ull)s.bytes_remote, (ull)s.bytes_staged, (ull)s.bytes_relayed, (ull)s.bytes_received,
        (ull)s.bytes_device, (ull)s.n_batches_sent, (ull)s.n_batches_received, s.seconds,
        s.seconds_pack, s.seconds_wire, s.seconds_unpack, s.seconds_check, s.seconds_wait,
        (ull)s.bytes_skipped, (ull)s.bytes_filled, (ull)s.bytes_device_slots);
}

static PyObject *path_names(uint32_t paths)
{
    PyObject *list = PyList_New(0);
    for (uint32_t path = 1; path < FERRY_PATH_ALL; path <<= 1) {
        if ((paths & path) != 0) {
            list = append(list, PyUnicode_FromString(ferry_service_path_name(path)));
        }
    }
    PyObject *tuple = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

PyObject *fp_service_peers(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    if (!fp_enter(&own->use, !own->is_finalized)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    uint32_t n = ferry_service_peer_count(own->service);
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        ferry_service_peer peer = FERRY_SERVICE_PEER_INIT;
        if (ferry_service_peer_at(own->service, i, &peer, NULL) == FERRY_OK) {
            list = append(list, Py_BuildValue("(INsKKK)", peer.peer, path_names(peer.paths),
                                              peer.engine, (ull)peer.bytes_out, (ull)peer.bytes_in,
                                              (ull)peer.bytes_skipped));
        }
    }
    fp_leave(&own->use);
    return list;
}

/* The caller's tensors by the address where they begin. */
static PyObject *owners_by_base(const fp_holds *holds)
{
    PyObject *owners = PyDict_New();
    for (size_t i = 0; owners != NULL && i < holds->n; i++) {
        PyObject *base = PyLong_FromVoidPtr(holds->items[i].base);
        if (base == NULL || PyDict_SetItem(owners, base, holds->items[i].owner) != 0) {
            Py_CLEAR(owners);
        }
        Py_XDECREF(base);
    }
    return owners;
}

static PyObject *describe(const ferry_destination *d, PyObject *owners)
{
    PyObject *base = PyLong_FromVoidPtr(d->buffer.base);
    if (base == NULL) {
        return NULL;
    }
    PyObject *owner = PyDict_GetItem(owners, base);
    PyObject *tuple = Py_BuildValue("(sIKKKOO)", d->name, d->state, (ull)d->version, (ull)d->bytes,
                                    (ull)d->missing, base, owner == NULL ? Py_None : owner);
    Py_DECREF(base);
    return tuple;
}

PyObject *fp_service_destinations(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    if (!fp_enter(&own->use, !own->is_finalized)) {
        return NULL;
    }
    PyObject *owners = owners_by_base(&own->holds);
    PyObject *list = owners == NULL ? NULL : PyList_New(0);
    uint64_t n = ferry_service_destination_count(own->service);
    for (uint64_t i = 0; list != NULL && i < n; i++) {
        ferry_destination d = FERRY_DESTINATION_INIT;
        if (ferry_service_destination_at(own->service, i, &d, NULL) == FERRY_OK) {
            list = append(list, describe(&d, owners));
        }
    }
    Py_XDECREF(owners);
    fp_leave(&own->use);
    return list;
}

PyObject *fp_service_spans(PyObject *self, PyObject *unused)
{
    (void)unused;
    fp_service *own = (fp_service *)self;
    if (!fp_enter(&own->use, !own->is_finalized)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    uint64_t n = ferry_service_span_count(own->service);
    for (uint64_t i = 0; list != NULL && i < n; i++) {
        ferry_span span = FERRY_SPAN_INIT;
        if (ferry_service_span_at(own->service, i, &span, NULL) == FERRY_OK) {
            list = append(list, Py_BuildValue("(IIKKdd)", span.kind, span.peer, (ull)span.batch,
                                              (ull)span.bytes, span.begin, span.end));
        }
    }
    fp_leave(&own->use);
    return list;
}
