/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_NOW_H
#define FY_EXEC_NOW_H

#include "exec/exec.h"

/*
 * Work between any two spaces of this process, done when the call returns: by the CPU, by a
 * device's exec on a queue for this alone, or through host memory where no exec reaches both
 * sides. Spaces were checked.
 */
typedef struct fy_now_side {
    fy_space space;
    const fy_area *area;
    void *base; /* of a source only read */
} fy_now_side;

/* All bytes of `from` to `to`; hash_out may be NULL. */
ferry_status fy_copy_now(const fy_now_side *to, const fy_now_side *from, uint64_t *hash_out,
                         ferry_error *error);
/* Bytes [first, first + bytes) of both; between two devices all of them. */
ferry_status fy_copy_part_now(const fy_now_side *to, const fy_now_side *from, uint64_t first,
                              uint64_t bytes, ferry_error *error);
/* Elements [first, first + n), with a cast; between two devices all of them. */
ferry_status fy_cast_now(const fy_cast *cast, const fy_now_side *to, const fy_now_side *from,
                         uint64_t first, uint64_t n, ferry_error *error);
/* fy_exec's largest, of elements in memory of a device. FERRY_ERR_UNSUPPORTED: it has no such verb.
 */
ferry_status fy_largest_now(fy_space space, const fy_blocks *blocks, const void *base,
                            float *largest_out, ferry_error *error);
/* fy_exec's nvfp4, likewise, to host memory without gaps. */
ferry_status fy_nvfp4_now(fy_space space, const fy_halves *matrix, const void *base,
                          void *codes_out, void *scales_out, ferry_error *error);
/* bytes without gaps, from anywhere to anywhere; they may overlap. */
ferry_status fy_move_now(fy_space to_space, void *to, fy_space from_space, const void *from,
                         uint64_t bytes, ferry_error *error);

#endif
