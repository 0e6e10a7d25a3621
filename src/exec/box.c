/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/box.h"

#include "base/checked.h"
#include "base/options.h"
#include "memory/kind.h"

static ferry_status check_form(uint64_t element_bytes, uint32_t n_dims, ferry_error *error)
{
    if (element_bytes == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "a box has elements of 0 bytes");
    }
    if (n_dims > FERRY_MAX_DIMS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a box has %u dimensions, at most %d are allowed", n_dims, FERRY_MAX_DIMS);
    }
    return FERRY_OK;
}

static ferry_status check_buffer(const ferry_buffer *buffer, ferry_error *error)
{
    unsigned long long bytes = buffer->bytes;
    if (buffer->base == NULL && bytes != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "a box lies in %llu bytes at address 0",
                       bytes);
    }
    if (bytes > UINTPTR_MAX - (uintptr_t)buffer->base) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a buffer of %llu bytes reaches beyond the end of memory", bytes);
    }
    return fy_buffer_check(buffer, "the memory of a box", error);
}

ferry_status fy_box_take(const ferry_box *given, ferry_box *box, fy_area *area_out,
                         ferry_error *error)
{
    FY_TRY(fy_check_use(given != NULL, "a box is needed, made with FERRY_BOX_INIT", error));
    FY_TRY(fy_take_box(given, box, error));
    return fy_box_area(box, area_out, error);
}

ferry_status fy_box_area(const ferry_box *box, fy_area *area_out, ferry_error *error)
{
    FY_TRY(check_form(box->element_bytes, box->n_dims, error));
    FY_TRY(check_buffer(&box->buffer, error));
    fy_area area;
    FY_TRY(fy_area_make(box->offset, box->element_bytes, box->n_dims, box->length, box->stride,
                        &area, error));
    uint64_t begin, end;
    fy_area_hull(&area, &begin, &end);
    if (end > box->buffer.bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a box takes bytes [%llu, %llu) of a buffer of %llu bytes",
                       (unsigned long long)begin, (unsigned long long)end,
                       (unsigned long long)box->buffer.bytes);
    }
    *area_out = area;
    return FERRY_OK;
}

/* Offset and strides of a box of a row-major tensor; *n_bytes_out are those of the tensor. */
static ferry_status lay_out(const uint64_t *shape, const uint64_t *begin, ferry_box *box,
                            uint64_t *n_bytes_out, ferry_error *error)
{
    uint64_t stride = box->element_bytes;
    for (uint32_t d = box->n_dims; d-- > 0;) {
        uint64_t end, skipped;
        if (!fy_add(begin[d], box->length[d], &end) || end > shape[d]) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "a box begins at %llu of dimension %u with length %llu, but the tensor "
                           "has length %llu there",
                           (unsigned long long)begin[d], d, (unsigned long long)box->length[d],
                           (unsigned long long)shape[d]);
        }
        box->stride[d] = stride;
        if (!fy_mul(begin[d], stride, &skipped) || !fy_add(box->offset, skipped, &box->offset) ||
            !fy_mul(stride, shape[d], &stride)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "a tensor whose dimension %u has length %llu is larger than memory", d,
                           (unsigned long long)shape[d]);
        }
    }
    *n_bytes_out = stride;
    return FERRY_OK;
}

/* Without elements a tensor has strides of zero, which say nothing. */
static void empty(ferry_box *box)
{
    box->offset = 0;
    for (uint32_t d = 0; d < box->n_dims; d++) {
        box->stride[d] = box->element_bytes;
    }
}

ferry_status ferry_box_of(const ferry_buffer *buffer, uint64_t element_bytes, uint32_t n_dims,
                          const uint64_t *shape, const uint64_t *begin, const uint64_t *length,
                          ferry_box *box_out, ferry_error *error)
{
    if (buffer == NULL || box_out == NULL ||
        (n_dims != 0 && (shape == NULL || begin == NULL || length == NULL))) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a box takes a buffer, and a shape, begins and lengths for its dimensions");
    }
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = *buffer;
    box.element_bytes = element_bytes;
    box.n_dims = n_dims;
    uint64_t bytes = 0;
    FY_TRY(check_form(element_bytes, n_dims, error));
    for (uint32_t d = 0; d < n_dims; d++) {
        box.length[d] = length[d];
    }
    FY_TRY(lay_out(shape, begin, &box, &bytes, error));
    if (bytes > buffer->bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a tensor of this shape has %llu bytes, but its buffer has %llu",
                       (unsigned long long)bytes, (unsigned long long)buffer->bytes);
    }
    if (bytes == 0) {
        empty(&box);
    }
    fy_area area;
    FY_TRY(fy_box_area(&box, &area, error));
    return fy_copy_out(&box, sizeof box, box_out, "ferry_box", error);
}
