/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_CASTS_H
#define FY_MEMORY_CUDA_CASTS_H

#include "memory/cuda/stage.h"

/* Elements [first, first + n) of both sides: by kernels where there is one, else by the host. */
ferry_status fy_cuda_cast_sides(fy_exec_queue *queue, const fy_cast *how,
                                const fy_cuda_side_of sides[2], uint64_t first, uint64_t n,
                                ferry_error *error);

#endif
