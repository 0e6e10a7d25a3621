/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_VIRTUAL_H
#define FERRY_TESTS_DEVICE_VIRTUAL_H

#include "device/standin/standin.h"

/*
 * What the calls of virtual memory have handles of: memory without addresses, and multicast
 * objects. Each lies in a file, and who has that, in whatever process, has it; it goes with the
 * last. Behind the bytes there is a page that says what it is.
 */

/* The first page of the file of a multicast object; memory of each device lies behind it. */
typedef struct fleet_page {
    uint64_t magic;
    size_t bytes; /* of each device */
    unsigned n_devices;
    bool is_shared;
    _Atomic unsigned n_added;
    _Atomic int devices[MOST_DEVICES]; /* that were added: 1 + the number that all processes know */
    _Atomic bool is_bound[MOST_DEVICES];
} fleet_page;

typedef struct physical {
    struct physical *next;
    int file;
    uint64_t at; /* where its bytes begin there */
    size_t bytes;
    int device; /* that it lies on; of an object: none */
    bool is_shared;
    unsigned n_users;                      /* handles that were not released, and mappings */
    fleet_page *fleet;                     /* of an object: its whole file; of memory: NULL */
    CUmemGenericAllocationHandle bound_to; /* of memory that is bound: the object; else 0 */
} physical;

#define STANDIN_FLEET_MAGIC 0x7465656c662d6e69u

extern pthread_mutex_t standin_virtual_lock; /* of all that follows */
/* Under the lock. NULL: there is none. */
physical *standin_physical_known(CUmemGenericAllocationHandle handle);
/* One more, with one user; what is kept of `what` is copied, and its file is closed if it fails. */
CUresult standin_physical_keep(const physical *what, CUmemGenericAllocationHandle *place);

/* multicast.c: an object of its file, or NULL; and its end. */
fleet_page *standin_fleet_open(int file, size_t file_bytes);
void standin_fleet_close(fleet_page *fleet);
/* As the driver does: until all devices were added. */
void standin_fleet_await(const fleet_page *fleet);
/* Where memory of the device lies in the file; false: it was not added. */
bool standin_fleet_place(const fleet_page *fleet, int device, uint64_t *at_out);
/* virtual.c: memory of the device is bound to the object no more. */
void standin_virtual_unbind(CUmemGenericAllocationHandle object, int device);
enum { FLEET_GRAIN = 64 << 10 };

#endif
