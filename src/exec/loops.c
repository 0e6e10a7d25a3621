/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/loops.h"

#include "base/checked.h"

#include <string.h>

/* A side, taken apart from its fastest dimension on. */
typedef struct rest {
    const fy_area *area;
    uint32_t dim; /* those before it are to come */
    uint64_t left, stride;
} rest;

static rest rest_of(const fy_area *area, uint64_t element)
{
    return (rest){
        .area = area, .dim = area->n_dims, .left = area->run_bytes / element, .stride = element};
}

static bool settle(rest *r)
{
    while (r->left == 1 && r->dim > 0) {
        r->dim--;
        r->left = r->area->length[r->dim];
        r->stride = r->area->stride[r->dim];
    }
    return r->left > 1;
}

static void take(rest *r, uint64_t length)
{
    r->left /= length;
    r->stride *= length;
}

bool fy_loops_of(const fy_area *to, uint64_t to_element, const fy_area *from, uint64_t from_element,
                 fy_loops *loops_out)
{
    rest t = rest_of(to, to_element), f = rest_of(from, from_element);
    uint32_t at = FY_MOST_LOOPS;
    while (settle(&t) && settle(&f)) {
        uint64_t length = fy_min(t.left, f.left);
        if (t.left % length != 0 || f.left % length != 0 || at == 0) {
            return false;
        }
        loops_out->dims[--at] = (fy_loop){.length = length, .to = t.stride, .from = f.stride};
        take(&t, length);
        take(&f, length);
    }
    loops_out->n = FY_MOST_LOOPS - at;
    memmove(loops_out->dims, loops_out->dims + at, loops_out->n * sizeof *loops_out->dims);
    return true;
}

/* ---- a range ---- */

typedef struct range {
    const fy_loops *loops;
    uint64_t size[FY_MOST_LOOPS]; /* elements of an index of each dimension */
    fy_loops_fn visit;
    void *context;
} range;

/* The dimensions from d on, of which the first has so many indices. */
static void visit_part(const range *r, uint32_t d, uint64_t length, uint64_t to, uint64_t from)
{
    fy_loops box = {.n = r->loops->n - d};
    memcpy(box.dims, r->loops->dims + d, box.n * sizeof *box.dims);
    box.dims[0].length = length;
    r->visit(r->context, &box, to, from);
}

/* Elements of the dimensions from d on: what begins or ends within an index is cut once more. */
static void cut(const range *r, uint32_t d, uint64_t to, uint64_t from, uint64_t first, uint64_t n)
{
    const fy_loop *its = &r->loops->dims[d];
    uint64_t size = r->size[d], at = first / size, skipped = first % size;
    if (skipped != 0) {
        uint64_t part = fy_min(size - skipped, n);
        cut(r, d + 1, to + at * its->to, from + at * its->from, skipped, part);
        n -= part;
        at++;
    }
    uint64_t n_whole = n / size;
    if (n_whole != 0) {
        visit_part(r, d, n_whole, to + at * its->to, from + at * its->from);
        at += n_whole;
    }
    if (n % size != 0) {
        cut(r, d + 1, to + at * its->to, from + at * its->from, 0, n % size);
    }
}

void fy_loops_visit(const fy_loops *loops, uint64_t first, uint64_t n, fy_loops_fn visit,
                    void *context)
{
    range r = {.loops = loops, .visit = visit, .context = context};
    uint64_t size = 1;
    for (uint32_t d = loops->n; d-- > 0; size *= loops->dims[d].length) {
        r.size[d] = size;
    }
    if (loops->n == 0) {
        visit(context, loops, 0, 0);
    } else {
        cut(&r, 0, 0, 0, first, n);
    }
}
