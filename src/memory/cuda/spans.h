/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_SPANS_H
#define FY_MEMORY_CUDA_SPANS_H

#include "memory/kind.h"

/* Allocations that ferry has made or imported, in the order of their addresses. */
typedef struct fy_cuda_span {
    fy_memory_span span;
    uint64_t given; /* what the driver has given, where the span may begin later */
    bool is_freed;  /* and stays until what uses it is done */
    void *import;   /* another process's: of import.c; else NULL */
} fy_cuda_span;

typedef struct fy_cuda_spans {
    fy_cuda_span *all;
    size_t n, capacity;
} fy_cuda_spans;

/* False without memory. */
bool fy_cuda_spans_add(fy_cuda_spans *spans, const fy_cuda_span *fresh);
/* The span that the pointer lies in; NULL: none. */
fy_cuda_span *fy_cuda_spans_find(const fy_cuda_spans *spans, const void *pointer);
void fy_cuda_spans_remove(fy_cuda_spans *spans, fy_cuda_span *one);

#endif
