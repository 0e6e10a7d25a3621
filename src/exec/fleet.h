/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_FLEET_H
#define FY_EXEC_FLEET_H

#include "base/status.h"

#include <stdint.h>

/*
 * A fleet: devices behind one switch, one of each rank, each with memory of its own and of the same
 * size. A kernel reaches its own at one address; at another one a store goes to the same place on
 * all devices, and a load brings the sum of what lies there on all of them, in an order of the
 * hardware's.
 *
 * Drivers wait inside some of these calls for devices that have not come yet, without end. So ranks
 * agree after each call that all have done it, before any makes the next one.
 */
typedef struct fy_fleet fy_fleet;

enum { FY_FLEET_HANDLE_BYTES = 128 };

typedef struct fy_fleet_addresses {
    uint64_t own; /* of this device's memory */
    uint64_t all; /* of that of all devices, for stores to all and loads of sums only */
} fy_fleet_addresses;

typedef struct fy_fleets {
    /*
     * FERRY_ERR_UNSUPPORTED with a sentence: the device can be in no fleet. *unit_out: the memory
     * is a multiple of so many bytes, a power of two.
     */
    ferry_status (*ask)(int32_t device, uint32_t n_devices, uint64_t bytes, uint64_t *unit_out,
                        ferry_error *error);
    /* By one rank: the handle is for the others, and this rank is part of it as they are. */
    ferry_status (*make)(int32_t device, uint32_t n_devices, uint64_t bytes, void *handle,
                         fy_fleet **fleet_out, ferry_error *error);
    ferry_status (*join)(int32_t device, uint64_t bytes, const void *handle, fy_fleet **fleet_out,
                         ferry_error *error);
    /* The device comes; its memory; and addresses of it. Memory begins with any bytes. */
    ferry_status (*enter)(fy_fleet *fleet, ferry_error *error);
    ferry_status (*bind)(fy_fleet *fleet, ferry_error *error);
    ferry_status (*map)(fy_fleet *fleet, fy_fleet_addresses *addresses_out, ferry_error *error);
    /*
     * In whatever state, once no kernel of any rank uses it: what this rank has of it goes when
     * queues of its device are done. NULL is allowed.
     */
    void (*leave)(fy_fleet *fleet);
} fy_fleets;

#endif
