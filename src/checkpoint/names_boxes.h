/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_NAMES_BOXES_H
#define FY_CHECKPOINT_NAMES_BOXES_H

#include <ferry/names.h>
#include <ferry/side.h>

/*
 * A short form's ranks in one naming, in boxes of the tensors of another; NULL where a map and a
 * mesh say it: nothing is transposed on the way, and nobody has zeros in place of a tensor.
 */
ferry_status fy_names_box_side(ferry_names *names, const char *from, const char *to,
                               const char *form, ferry_side **side_out, ferry_error *error);

#endif
