/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/twin.h"

#include "memory/cuda/kernels.h"

#include <setjmp.h>
#include <string.h>

_Thread_local fy_twin_at fy_twin_place;
void *(*twin_look_up)(uint64_t at, uint32_t bytes, int writes);

static _Thread_local jmp_buf out;
static _Thread_local twin_end end;

static const twin_kernel kernels[] = {
#define KERNEL(kernel, type) {#kernel, sizeof(type), kernel##_run},
    FY_CUDA_KERNELS(KERNEL)
#undef KERNEL
};

const twin_kernel *twin_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return &kernels[i];
        }
    }
    return NULL;
}

void *fy_twin_reach(uint64_t at, uint32_t bytes, int writes)
{
    if (at % bytes != 0) {
        end = TWIN_MISALIGNED;
        longjmp(out, 1);
    }
    void *found =
        twin_look_up != NULL ? twin_look_up(at, bytes, writes) : (void *)(uintptr_t)at;
    if (found == NULL) {
        end = TWIN_OUTSIDE;
        longjmp(out, 1);
    }
    return found;
}

static void run_all(const twin_kernel *kernel, const void *argument, uint64_t order)
{
    for (uint32_t b = 0; b < fy_twin_place.blocks; b++) {
        fy_twin_place.block = (uint32_t)((b + order) % fy_twin_place.blocks);
        for (uint32_t t = 0; t < fy_twin_place.threads; t++) {
            fy_twin_place.thread = order % 2 == 0 ? t : fy_twin_place.threads - 1 - t;
            kernel->run(argument);
        }
    }
}

twin_end twin_launch(const twin_kernel *kernel, uint32_t blocks, uint32_t threads,
                     const void *argument, uint64_t order)
{
    end = TWIN_DONE;
    fy_twin_place = (fy_twin_at){.threads = threads, .blocks = blocks};
    if (setjmp(out) == 0) {
        run_all(kernel, argument, order);
    }
    return end;
}
