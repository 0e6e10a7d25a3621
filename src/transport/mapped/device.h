/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_MAPPED_DEVICE_H
#define FY_TRANSPORT_MAPPED_DEVICE_H

#include "transport/engine.h"

/*
 * Memory of devices that processes of a node open of each other, by the handles of its kind. What a
 * region's key says of it is a handle, or why there is none.
 */
typedef struct fy_device_memory fy_device_memory;

/* Whether memory of that kind can be opened by other processes at all. */
bool fy_device_memory_is_shared(uint32_t kind);

/* Registered: it is named when its key is asked for. Imported: opened, or a sentence of why not. */
ferry_status fy_device_memory_attach(const fy_region_view *region, fy_device_memory **memory_out,
                                     ferry_error *error);
/* Registered as it is made, zeroed: base is where it lies. */
ferry_status fy_device_memory_create(const fy_region_view *region, fy_device_memory **memory_out,
                                     void **base_out, ferry_error *error);
/* Names or memory that was opened, or made, end. NULL is allowed. */
void fy_device_memory_release(fy_device_memory *memory);

/* Writes at most FY_ENGINE_KEY_BYTES: how many. */
size_t fy_device_memory_key(fy_device_memory *memory, const fy_region_view *region, void *key);

/* Of imported memory: where it begins here. */
void *fy_device_memory_base(const fy_device_memory *memory);

/* Whether its key was given out, so that others may have it open. */
bool fy_device_memory_is_known(const fy_device_memory *memory);

#endif
