/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_MEMORY_H
#define FY_MEMORY_CUDA_MEMORY_H

#include "memory/cuda/device.h"
#include "memory/cuda/spans.h"

/* What the driver says of a pointer; all zeros where it knows nothing. */
typedef struct fy_cuda_found {
    CUmemorytype type;
    int device;
    CUcontext context;
    uint32_t is_managed;
    CUdeviceptr begin;
    size_t bytes;
    uint32_t has_ipc;          /* it is an allocation, and no virtual memory */
    unsigned long long buffer; /* no other allocation of this process has it */
} fy_cuda_found;

void fy_cuda_ask(const void *pointer, fy_cuda_found *found);

static inline bool fy_cuda_is_device_memory(const fy_cuda_found *found)
{
    return found->type == CU_MEMORYTYPE_DEVICE && found->is_managed == 0;
}

/* The table of what ferry has allocated and imported. */
ferry_status fy_cuda_span_enter(const fy_cuda_span *span, ferry_error *error);
bool fy_cuda_span_find(const void *pointer, fy_cuda_span *span_out);
void fy_cuda_span_free(const void *base, bool is_freed);
void fy_cuda_span_forget(const void *base);

/* share.c: see memory/kind.h. */
ferry_status fy_cuda_export(const void *pointer, uint64_t bytes, void *handle, size_t *n_bytes_out,
                            fy_memory_span *span_out, ferry_error *error);
void fy_cuda_withdraw(const void *handle, size_t n_bytes);
/* import.c */
ferry_status fy_cuda_import(const void *handle, size_t n_bytes, fy_memory_span *span_out,
                            ferry_error *error);
void fy_cuda_release(void *base);

/* What a pointer is to a device. */
typedef enum fy_cuda_reach {
    FY_CUDA_OURS,    /* the device's own memory */
    FY_CUDA_PINNED,  /* the host's, which the device can reach */
    FY_CUDA_PAGEABLE /* the host's, which only host functions reach */
} fy_cuda_reach;

/*
 * Of the bytes [begin, end) behind base, in one allocation; of no bytes they are pageable.
 * FERRY_ERR_MISUSE: memory of another device or of another context, and memory that was freed,
 * unless it may be, as of what was given to a queue before. A
 * range that is pinned in parts only is pageable. Entered.
 */
ferry_status fy_cuda_reach_of(const fy_cuda_device *device, const void *base, uint64_t begin,
                              uint64_t end, bool may_be_freed, fy_cuda_reach *reach_out,
                              ferry_error *error);

/* Memory that a host and all devices reach, at one address; on whatever thread. */
ferry_status fy_cuda_pinned_alloc(uint64_t bytes, void **base_out, ferry_error *error);

/* describe.c */
ferry_status fy_cuda_describe(int32_t number, char *text, size_t bytes, ferry_error *error);

extern const fy_memory_kind fy_cuda_memory;

#endif
