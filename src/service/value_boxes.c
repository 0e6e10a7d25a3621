/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Values in boxes of what a rank gets as codes: as values.c has them of shards, but elements lie
 * anywhere in a parameter, and blocks begin and end within boxes. What is worked on at once is a
 * band. In memory of a device its own verbs do it, where the values lie.
 */
#include "service/run.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "exec/cast.h"
#include "exec/now.h"
#include "service/registry.h"

#include <string.h>

/* Of values that are read at once by one thread; and so many of these by a device. */
enum { BAND_BYTES = 1 << 20, FAR_BANDS = 64 };

/*
 * How an area is cut into bands: each is at one index of its first n_outer dimensions, and has up
 * to `most` of the `length` parts of inner bytes that there are.
 */
typedef struct cut {
    uint32_t n_outer;
    bool is_all;  /* there is one band */
    bool of_runs; /* the parts are elements of a run; else indices of the next dimension */
    uint64_t inner, most, length;
    uint64_t n; /* bands of one index */
} cut;

static cut cut_of(const fy_area *area, uint64_t element_bytes)
{
    cut c = {.n_outer = area->n_dims, .inner = area->run_bytes, .most = 1, .length = 1, .n = 1};
    if (c.inner > BAND_BYTES) {
        c.of_runs = true;
        c.length = c.inner / element_bytes;
        c.inner = element_bytes;
    } else {
        while (c.n_outer > 0 && area->length[c.n_outer - 1] <= BAND_BYTES / c.inner) {
            c.inner *= area->length[--c.n_outer];
        }
        if (c.n_outer == 0) {
            c.is_all = true;
            return c;
        }
        c.length = area->length[--c.n_outer];
    }
    c.most = BAND_BYTES / c.inner;
    c.n = fy_ceil_div(c.length, c.most);
    return c;
}

static uint64_t count_bands(const fy_area *area, uint64_t element_bytes)
{
    cut c = cut_of(area, element_bytes);
    uint64_t n = c.n;
    for (uint32_t d = 0; d < c.n_outer; d++) {
        n *= area->length[d];
    }
    return n;
}

ferry_status fy_registry_multiply_box(fy_registry *registry, fy_products *products,
                                      const fy_area *area, const fy_product_box *box, bool turned,
                                      ferry_error *error)
{
    uint32_t n = box->n_dims, row = turned ? n - 1 : n - 2, column = turned ? n - 2 : n - 1;
    fy_factor_box added = {.first_band = products->n_bands,
                           .n_rows = box->shape[row],
                           .n_columns = box->shape[column],
                           .is_turned = turned,
                           .origin = {box->origin[turned ? 1 : 0], box->origin[turned ? 0 : 1]},
                           .scale = box->scales_offset,
                           .pitch = box->scales_strides[row],
                           .step = box->scales_strides[column],
                           .matrix_scale = box->matrix_scales_offset,
                           .n_planes = n - 2};
    FY_TRY(fy_registry_lay(registry, products->target, area, &added.values, error));
    added.planes = (uint32_t)registry->n_dims;
    if (!FY_RESERVE(registry->dims, registry->dims_capacity,
                    registry->n_dims + 3 * (size_t)added.n_planes) ||
        !FY_RESERVE(registry->factor_boxes, registry->factor_box_capacity,
                    registry->n_factor_boxes + 1)) {
        return fy_fail_no_memory(error, "the scales of a plan");
    }
    for (uint32_t d = 0; d < added.n_planes; d++) {
        registry->dims[added.planes + d] = box->shape[d];
        registry->dims[added.planes + added.n_planes + d] = box->scales_strides[d];
        registry->dims[added.planes + 2 * added.n_planes + d] = box->matrix_scales_strides[d];
    }
    registry->n_dims += 3 * (size_t)added.n_planes;
    products->first_box = products->n_boxes == 0 ? registry->n_factor_boxes : products->first_box;
    registry->factor_boxes[registry->n_factor_boxes++] = added;
    products->n_boxes++;
    products->n_bands += count_bands(area, fy_cast_element_bytes(products->q.kind));
    return FERRY_OK;
}

/* A band: which bytes of its box, in row-major order, and where these lie. */
typedef struct band {
    const fy_factor_box *box;
    fy_area all; /* of the box */
    uint64_t first, bytes;
} band;

static band band_of(const fy_registry *registry, const fy_products *p, uint64_t number)
{
    const fy_factor_box *boxes = registry->factor_boxes + p->first_box;
    FY_BISECT_LAST(size_t, at, 0, p->n_boxes, middle, boxes[middle].first_band <= number);
    band b = {.box = &boxes[at], .all = fy_end_area(registry, &boxes[at].values)};
    cut c = cut_of(&b.all, fy_cast_element_bytes(p->q.kind));
    uint64_t outer = (number - b.box->first_band) / c.n;
    uint64_t part = (number - b.box->first_band) % c.n * c.most;
    b.first = (outer * c.length + part) * c.inner;
    b.bytes = fy_min(c.most, c.length - part) * c.inner;
    return b;
}

/* The scales of a box, from the first one on, as one of their types. */
static void point_at_scales(const fy_products *p, const fy_factor_box *box, fy_cast_scales *scales)
{
    const unsigned char *stored = (const unsigned char *)p->scales;
    switch (p->q.format.scale_kind) {
    case FERRY_F32:
        scales->values = (const float *)(const void *)stored + box->scale;
        return;
    case FERRY_F8E4M3:
        scales->codes = stored + box->scale;
        scales->of_matrices = p->matrix_scales + box->matrix_scale;
        return;
    default:
        scales->powers = stored + box->scale;
    }
}

/* Values times scales, of the type that they have. */
static fy_cast cast_of(const fy_registry *registry, const fy_products *p, const fy_factor_box *box)
{
    const uint64_t *planes = registry->dims + box->planes;
    const uint64_t *block = p->q.format.block;
    fy_cast cast = {
        .from_kind = p->q.kind,
        .to_kind = p->q.kind,
        .overflow = FY_OVERFLOW_PLAIN,
        .has_plain_nans = true,
        .n_rows = box->n_rows,
        .n_columns = box->n_columns,
        .from_scales = {.block = {block[box->is_turned ? 1 : 0], block[box->is_turned ? 0 : 1]},
                        .origin = {box->origin[0], box->origin[1]},
                        .pitch = box->pitch,
                        .step = box->step,
                        .n_plane_dims = box->n_planes}};
    for (uint32_t d = 0; d < box->n_planes; d++) {
        cast.from_scales.plane_length[d] = planes[d];
        cast.from_scales.plane_stride[d] = planes[box->n_planes + d];
        cast.from_scales.matrix_stride[d] = planes[2 * box->n_planes + d];
    }
    point_at_scales(p, box, &cast.from_scales);
    return cast;
}

uint64_t fy_factor_box_planes(const fy_registry *registry, const fy_factor_box *box)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < box->n_planes; d++) {
        n *= registry->dims[box->planes + d];
    }
    return n;
}

uint64_t fy_factor_box_matrix(const fy_registry *registry, const fy_factor_box *box, uint64_t plane)
{
    const uint64_t *lengths = registry->dims + box->planes;
    const uint64_t *strides = lengths + 2 * box->n_planes;
    uint64_t number = box->matrix_scale;
    for (uint32_t d = box->n_planes; d-- > 0;) {
        number += plane % lengths[d] * strides[d];
        plane /= lengths[d];
    }
    return number;
}

void fy_factor_band(const fy_registry *registry, const fy_products *p, void *base, uint64_t number)
{
    band b = band_of(registry, p, number);
    fy_cast cast = cast_of(registry, p, b.box);
    uint64_t bytes = fy_cast_element_bytes(cast.to_kind);
    fy_area_cast_cached(&cast, &b.all, base, &b.all, base, b.first / bytes, b.bytes / bytes);
}

/* Bands of a box follow each other in the order of its bytes. */
ferry_status fy_factor_bands_far(const fy_registry *registry, const fy_products *p,
                                 const ferry_buffer *target, uint64_t number, uint64_t most,
                                 uint64_t *n_out, ferry_error *error)
{
    band b = band_of(registry, p, number);
    uint64_t n = 1;
    for (uint64_t limit = fy_min(most, FAR_BANDS); n < limit; n++) {
        band next = band_of(registry, p, number + n);
        if (next.box != b.box) {
            break;
        }
        b.bytes += next.bytes;
    }
    *n_out = n;
    fy_cast cast = cast_of(registry, p, b.box);
    uint64_t bytes = fy_cast_element_bytes(cast.to_kind);
    const fy_now_side there = {.space = fy_space_of(target), .area = &b.all, .base = target->base};
    return fy_cast_now(&cast, &there, &there, b.first / bytes, b.bytes / bytes, error);
}
