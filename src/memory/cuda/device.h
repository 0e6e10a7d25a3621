/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_DEVICE_H
#define FY_MEMORY_CUDA_DEVICE_H

#include "memory/cuda/arguments.h"
#include "memory/cuda/driver.h"
#include "memory/kind.h"

#include <stdint.h>

/* Devices: their primary contexts, and the kernels in them. */

typedef enum fy_cuda_kernel {
#define FY_CUDA_NUMBER(name, type) FY_NUMBER_OF_##name,
    FY_CUDA_KERNELS(FY_CUDA_NUMBER) FY_CUDA_N_KERNELS
#undef FY_CUDA_NUMBER
} fy_cuda_kernel;

typedef struct fy_cuda_device {
    int32_t number;
    CUcontext context;
    CUfunction kernels[FY_CUDA_N_KERNELS];
    uint32_t n_processors;
    int ptx_version; /* that fy_cuda_lanes was compiled from: 90 is that of 9.0 */
    uint32_t n_blocks[FY_CUDA_N_KERNELS]; /* that a processor runs at once */
    _Atomic uint8_t *sees;                /* by device: see fy_cuda_sees */
} fy_cuda_device;

/*
 * How many times as many blocks as run at once a launch may have; 0: any number, which is what was
 * fastest on an H200: blocks that follow each other spread over its memory. For benchmarks.
 */
extern uint32_t fy_cuda_waves;

extern const fy_library *fy_cuda_library; /* plugin.c */

/*
 * The device with its context current on this thread, until fy_cuda_leave; calls may nest. A device
 * that is too old, and one whose context cannot be had, is refused. The first call prepares the
 * device for good: kernels are loaded then, not while one of them may wait for another.
 */
ferry_status fy_cuda_enter(int32_t number, const fy_cuda_device **device_out, ferry_error *error);
void fy_cuda_leave(void);
/* The same with a context that is known. */
CUresult fy_cuda_push(CUcontext context);

/* Whether the process has used the device: what it has of it stays. */
bool fy_cuda_is_used(int32_t number);
/* One that is, or 0: for what any device does, so that no other one gets a context for it. */
int32_t fy_cuda_any_used(void);
CUcontext fy_cuda_context_of(int32_t number); /* NULL: it is not used */
/*
 * Whether the device reads and writes memory of the other. Asked for once, and then it stays so:
 * both are devices of which there is memory.
 */
bool fy_cuda_sees(int32_t number, int32_t other);
/*
 * FERRY_ERR_UNSUPPORTED with a sentence: there are no multicast objects with the device. Kernels
 * may have been compiled by the driver, from code for devices that had none: that is known, and
 * asked, once the device is used, and nothing is loaded for it.
 */
ferry_status fy_cuda_check_multicast(int32_t number, ferry_error *error);
/* What names the device in all processes. */
ferry_status fy_cuda_uuid_of(int32_t number, CUuuid *uuid_out, ferry_error *error);

/*
 * Puts a kernel on the stream, with as many threads as it has units, or as many as the device runs
 * at once; units_of_thread are those that a thread takes in one turn. Entered.
 */
ferry_status fy_cuda_launch(const fy_cuda_device *device, CUstream stream, fy_cuda_kernel kernel,
                            const void *argument, uint64_t n_units, uint32_t units_of_thread,
                            ferry_error *error);

#endif
