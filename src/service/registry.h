/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_REGISTRY_H
#define FY_SERVICE_REGISTRY_H

#include "plan/shards.h"
#include "service/service.h"

/* What the files that fill and compare registries share. */

/* The end of a task, or NULL: after the sort. */
const fy_end *fy_ends_find(const fy_ends *ends, uint32_t peer, uint64_t task_id);

/* What a held buffer is called, or "". */
const char *fy_held_name(const fy_registry *registry, uint32_t held);

/*
 * A held buffer of its own for a tensor of a bound plan, whatever else lies at its base; with a
 * destination where it is one. name: into names. back may be NULL.
 */
ferry_status fy_registry_hold_tensor(fy_registry *registry, const ferry_buffer *front,
                                     const ferry_buffer *back, size_t name, bool is_destination,
                                     uint32_t *held_out, ferry_error *error);

/* fy_registry_add for an area of a buffer that is held. What becomes of its elements: 0, or a
 * number of fy_registry_convert. */
ferry_status fy_registry_add_area(fy_registry *registry, bool is_send, uint64_t task_id,
                                  uint32_t peer, uint32_t held, uint64_t element_bytes,
                                  uint32_t conversion, const fy_area *area, ferry_error *error);

/* Of a destination that is there: runs write this area, too. */
void fy_registry_count(fy_registry *registry, uint32_t held, const fy_area *area);

/* An area of a buffer that is held, as an end that is no task. */
ferry_status fy_registry_lay(fy_registry *registry, uint32_t held, const fy_area *area,
                             fy_end *end_out, ferry_error *error);

/*
 * value_boxes.c: a box of products; no others were given boxes since they had their first. turned:
 * its columns come before its rows in the area.
 */
ferry_status fy_registry_multiply_box(fy_registry *registry, fy_products *products,
                                      const fy_area *area, const fy_product_box *box, bool turned,
                                      ferry_error *error);

/* The number of a conversion, which tasks share. */
ferry_status fy_registry_convert(fy_registry *registry, const fy_task_cast *conversion,
                                 uint32_t *number_out, ferry_error *error);

/* fills.c: adds both ends of a task that writes elements of these bits to an area of `held`. */
ferry_status fy_registry_add_fill(fy_registry *registry, uint32_t my_rank, uint32_t held,
                                  const unsigned char *bits, uint64_t element_bytes,
                                  const fy_area *area, ferry_error *error);
void fy_patterns_free(fy_registry *registry);

#endif
