/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/spans.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <string.h>

/* How many begin at or before the pointer. */
static size_t count_before(const fy_cuda_spans *spans, const void *pointer)
{
    FY_BISECT(size_t, first, 0, spans->n, middle,
              (uintptr_t)spans->all[middle].span.base <= (uintptr_t)pointer);
    return first;
}

bool fy_cuda_spans_add(fy_cuda_spans *spans, const fy_cuda_span *fresh)
{
    if (!FY_RESERVE(spans->all, spans->capacity, spans->n + 1)) {
        return false;
    }
    size_t at = count_before(spans, fresh->span.base);
    memmove(&spans->all[at + 1], &spans->all[at], (spans->n - at) * sizeof *spans->all);
    spans->all[at] = *fresh;
    spans->n++;
    return true;
}

fy_cuda_span *fy_cuda_spans_find(const fy_cuda_spans *spans, const void *pointer)
{
    size_t n = count_before(spans, pointer);
    fy_cuda_span *one = n == 0 ? NULL : &spans->all[n - 1];
    bool is_in = one != NULL && (uintptr_t)pointer - (uintptr_t)one->span.base < one->span.bytes;
    return is_in ? one : NULL;
}

void fy_cuda_spans_remove(fy_cuda_spans *spans, fy_cuda_span *one)
{
    size_t at = (size_t)(one - spans->all);
    memmove(one, one + 1, (spans->n - at - 1) * sizeof *one);
    if (--spans->n == 0) {
        fy_free(spans->all);
        *spans = (fy_cuda_spans){.all = NULL};
    }
}
