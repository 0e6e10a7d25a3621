/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_BOX_H
#define FERRY_BOX_H

#include <ferry/export.h>
#include <ferry/limits.h>
#include <ferry/memory.h>
#include <ferry/status.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * An n-dimensional box in memory: element (i, j, ...) lies at offset + i stride[0] + j stride[1] +
 * ... bytes. Strides are bytes, positive, and such that no two elements share a byte.
 */
typedef struct ferry_box {
    size_t struct_size;
    ferry_buffer buffer;
    const char *name; /* for sentences and states; copied; may be NULL */
    uint64_t element_bytes;
    uint64_t offset;
    uint32_t n_dims; /* 0: one element */
    uint64_t length[FERRY_MAX_DIMS];
    uint64_t stride[FERRY_MAX_DIMS];
} ferry_box;

#define FERRY_BOX_INIT                                                                             \
    {                                                                                              \
        sizeof(ferry_box), {NULL, 0, FERRY_MEMORY_HOST, 0, NULL, {0, 0}}, NULL, 1, 0, 0, {0},      \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* The box [begin, begin + length) of a row-major tensor of this shape at the buffer's begin. */
FERRY_API ferry_status ferry_box_of(const ferry_buffer *buffer, uint64_t element_bytes,
                                    uint32_t n_dims, const uint64_t *shape, const uint64_t *begin,
                                    const uint64_t *length, ferry_box *box_out, ferry_error *error);

FERRY_END_DECLS

#endif
