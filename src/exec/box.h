/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_BOX_H
#define FY_EXEC_BOX_H

#include "exec/area.h"

#include <ferry/box.h>

/* A caller's box as an area of its buffer, once it was found to lie in it. */
ferry_status fy_box_area(const ferry_box *box, fy_area *area_out, ferry_error *error);

/* The same of a struct as a caller gives it, which may be an older one. */
ferry_status fy_box_take(const ferry_box *given, ferry_box *box, fy_area *area_out,
                         ferry_error *error);

#endif
