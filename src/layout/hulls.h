/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_HULLS_H
#define FY_LAYOUT_HULLS_H

#include "layout/box.h"

/*
 * An index of boxes: those that share an element with an area are found without a look at the rest.
 * Boxes are put in an order in which neighbours lie near each other, and every FY_HULL_FAN of them
 * get the smallest box around them, every so many of those again, up to one.
 */
enum { FY_HULL_FAN = 8 };

typedef struct fy_hulls fy_hulls;

/* Borrows the boxes, of which there is at least one; NULL: there is no memory. */
fy_hulls *fy_hulls_create(const fy_box *boxes, size_t n, uint32_t n_dims);

/* NULL is allowed. */
void fy_hulls_destroy(fy_hulls *hulls);

/* Told the number of a box; false: no more are wanted. */
typedef bool (*fy_hulls_visit_fn)(void *context, size_t box);

/* Visits the boxes that share an element with the area, in an order that depends on nothing but
 * the boxes; false: the visitor ended it. */
bool fy_hulls_visit(const fy_hulls *hulls, const fy_box *area, fy_hulls_visit_fn visit,
                    void *context);

#endif
