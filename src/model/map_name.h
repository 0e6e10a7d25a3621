/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_MAP_NAME_H
#define FY_MODEL_MAP_NAME_H

#include "base/alloc.h"
#include "base/status.h"
#include "model/problem.h"

/*
 * A name and the numbers in it. Those of alike tensors of layers and experts have one text: theirs
 * with FY_MAP_NUMBER in the place of every number. Digits with a leading zero, or more than 18, are
 * text.
 */
enum { FY_MAP_NUMBER = 1, FY_MAP_MOST_NUMBERS = 16 };

typedef struct fy_map_name {
    const char *name;
    const char *text;
    const fy_tensor *tensor; /* whose name it is */
    uint32_t n_numbers;
    const uint64_t *numbers;
    const unsigned char *places; /* the numbers, by how they count in the order: first the first */
} fy_map_name;

/*
 * The names of tensors, in an order that depends on nothing but the tensors, and has those together
 * that are alike: by text, by type and shape, and then by numbers. So layer 10 stands behind layer
 * 9. Of alike tensors, a number that leaves values out counts before those that do not: it tells
 * kinds apart, as in w1 and w3, and each kind is by itself.
 */
ferry_status fy_map_names_sort(fy_arena *arena, const fy_tensor *tensors, uint32_t n,
                               fy_map_name *names_out, ferry_error *error);

/* Whether the texts are equal, and so the places of the numbers. */
bool fy_map_name_is_alike(const fy_map_name *a, const fy_map_name *b);

#endif
