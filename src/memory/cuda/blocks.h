/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_BLOCKS_H
#define FY_MEMORY_CUDA_BLOCKS_H

#include "memory/cuda/queue.h"

/* fy_exec's largest, where there is memory for it on the device, and launches count that far. */
ferry_status fy_cuda_largest_of(fy_exec_queue *queue, const fy_blocks *blocks, const void *base,
                                float *largest_out, ferry_error *error);
/* nvfp4.c: its nvfp4, likewise. */
ferry_status fy_cuda_nvfp4_of(fy_exec_queue *queue, const fy_halves *matrix, const void *base,
                              const fy_exec_place *codes, const fy_exec_place *scales,
                              ferry_error *error);

#endif
