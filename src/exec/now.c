/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/now.h"

#include "base/checked.h"
#include "host/copy.h"
#include "memory/pages.h"

#include <string.h>

enum { HALVES = 16 }; /* that share a scale */

/* One verb: of blocks, of halves, or a cast, or a copy where there is neither. */
typedef struct verb {
    const fy_blocks *blocks;
    float *largest_out;
    const fy_halves *halves;
    fy_exec_place codes, scales;
    const fy_cast *cast;
    uint64_t first, n; /* bytes, or elements where it casts */
    uint64_t *hash_out;
} verb;

static ferry_status perform(const verb *what, fy_exec_choice choice, fy_exec_queue *queue,
                            const fy_now_side *to, const fy_now_side *from, ferry_error *error)
{
    if (what->blocks != NULL) {
        return choice.exec->largest(queue, what->blocks, from->base, what->largest_out, error);
    }
    if (what->halves != NULL) {
        return choice.exec->nvfp4(queue, what->halves, from->base, &what->codes, &what->scales,
                                  error);
    }
    return what->cast != NULL ? choice.exec->cast(queue, what->cast, to->area, to->base, from->area,
                                                  from->base, what->first, what->n, NULL, error)
                              : choice.exec->copy(queue, to->area, to->base, from->area, from->base,
                                                  what->first, what->n, what->hash_out, error);
}

static ferry_status do_by(const verb *what, fy_exec_choice choice, const fy_now_side *to,
                          const fy_now_side *from, ferry_error *error)
{
    fy_exec_queue *queue = NULL;
    ferry_status status = choice.exec->queue_open(choice.device, NULL, &queue, error);
    FY_THEN(status, perform(what, choice, queue, to, from, error));
    FY_THEN(status, fy_exec_finish(choice.exec, queue, error));
    choice.exec->queue_close(queue);
    return status;
}

/* Between two devices: what the source's made is taken to the target's as it is. */
static ferry_status stage(const verb *what, const fy_now_side *to, const fy_now_side *from,
                          ferry_error *error)
{
    const fy_space host = {.kind = FERRY_MEMORY_HOST};
    fy_area flat = fy_area_flat(0, to->area->bytes);
    fy_now_side middle = {.space = host, .area = &flat};
    ferry_status status = fy_pages_alloc_checked(flat.bytes, &middle.base, error);
    FY_THEN(status, do_by(what, fy_exec_for(from->space, host), &middle, from, error));
    if (status == FERRY_OK) {
        verb second = {.n = flat.bytes};
        status = do_by(&second, fy_exec_for(host, to->space), to, &middle, error);
    }
    fy_pages_free(middle.base, flat.bytes);
    return status;
}

static ferry_status between(const verb *what, const fy_now_side *to, const fy_now_side *from,
                            ferry_error *error)
{
    fy_exec_choice choice = fy_exec_for(from->space, to->space);
    if (to->area->bytes == 0 && what->hash_out == NULL) {
        return FERRY_OK;
    }
    return choice.exec != NULL ? do_by(what, choice, to, from, error)
                               : stage(what, to, from, error);
}

ferry_status fy_copy_now(const fy_now_side *to, const fy_now_side *from, uint64_t *hash_out,
                         ferry_error *error)
{
    verb what = {.n = from->area->bytes, .hash_out = hash_out};
    return between(&what, to, from, error);
}

ferry_status fy_copy_part_now(const fy_now_side *to, const fy_now_side *from, uint64_t first,
                              uint64_t bytes, ferry_error *error)
{
    verb what = {.first = first, .n = bytes};
    return between(&what, to, from, error);
}

ferry_status fy_cast_now(const fy_cast *cast, const fy_now_side *to, const fy_now_side *from,
                         uint64_t first, uint64_t n, ferry_error *error)
{
    verb what = {.cast = cast, .first = first, .n = n};
    return between(&what, to, from, error);
}

ferry_status fy_largest_now(fy_space space, const fy_blocks *blocks, const void *base,
                            float *largest_out, ferry_error *error)
{
    fy_exec_choice choice = fy_exec_for(space, space);
    const fy_now_side side = {.space = space, .base = (void *)(uintptr_t)base};
    verb what = {.blocks = blocks, .largest_out = largest_out};
    return choice.exec->largest != NULL
               ? do_by(&what, choice, &side, &side, error)
               : fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s memory finds no largest magnitudes",
                         fy_memory_name(space.kind));
}

ferry_status fy_nvfp4_now(fy_space space, const fy_halves *matrix, const void *base,
                          void *codes_out, void *scales_out, ferry_error *error)
{
    fy_exec_choice choice = fy_exec_for(space, space);
    const fy_now_side side = {.space = space, .base = (void *)(uintptr_t)base};
    uint64_t code_bytes = matrix->n_rows * fy_ceil_div(matrix->n_columns, 2);
    uint64_t scale_bytes = matrix->n_rows * fy_ceil_div(matrix->n_columns, HALVES);
    verb what = {.halves = matrix,
                 .codes = {.area = fy_area_flat(0, code_bytes), .base = codes_out},
                 .scales = {.area = fy_area_flat(0, scale_bytes), .base = scales_out}};
    return choice.exec->nvfp4 != NULL
               ? do_by(&what, choice, &side, &side, error)
               : fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s memory makes no codes of half a byte",
                         fy_memory_name(space.kind));
}

static bool overlap(const void *a, const void *b, uint64_t bytes)
{
    return (uintptr_t)a - (uintptr_t)b < bytes || (uintptr_t)b - (uintptr_t)a < bytes;
}

ferry_status fy_move_now(fy_space to_space, void *to, fy_space from_space, const void *from,
                         uint64_t bytes, ferry_error *error)
{
    fy_area area = fy_area_flat(0, bytes);
    fy_now_side target = {to_space, &area, to};
    fy_now_side source = {from_space, &area, (void *)(uintptr_t)from};
    bool both_here = fy_is_host(to_space) && fy_is_host(from_space);
    verb what = {.n = bytes};
    if (overlap(to, from, bytes)) {
        if (!both_here) {
            return stage(&what, &target, &source, error);
        }
        memmove(to, from, (size_t)bytes);
        return FERRY_OK;
    }
    return between(&what, &target, &source, error);
}
