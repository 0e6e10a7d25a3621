/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_GAP_H
#define FY_LAYOUT_GAP_H

#include "base/status.h"
#include "layout/box.h"

/*
 * The first place, in row-major order, that n boxes leave out of an array of this shape. They lie
 * in it, no two have an element in common, and they are put into another order. Where they leave
 * nothing out, place_out means nothing: volumes tell that.
 */
ferry_status fy_boxes_find_gap(fy_box *boxes, size_t n, const uint64_t *shape, uint32_t n_dims,
                               uint64_t place_out[FERRY_MAX_DIMS], ferry_error *error);

#endif
