/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_PIECE_H
#define FY_MEMORY_PIECE_H

#include "memory/kind.h"
#include "memory/pages.h"

/*
 * Memory of a space that was checked, freed by who knows its address only. Host memory is not
 * asked for room here: who allocates for many ranks has asked for all of them.
 */
static inline ferry_status fy_piece_alloc(fy_space space, uint64_t bytes, void **base_out,
                                          ferry_error *error)
{
    return fy_is_host(space)
               ? fy_pages_alloc(bytes, base_out, error)
               : fy_memory_row(space.kind)->alloc(space.device, bytes, base_out, error);
}

static inline void fy_piece_free(fy_space space, void *base, uint64_t bytes)
{
    if (base != NULL && !fy_is_host(space)) {
        fy_memory_row(space.kind)->free(space.device, base, bytes);
    } else {
        fy_pages_free(base, bytes);
    }
}

#endif
