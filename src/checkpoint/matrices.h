/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_MATRICES_H
#define FY_CHECKPOINT_MATRICES_H

#include "checkpoint/maker.h"

/*
 * The scales of whole matrices, of weights that become codes in boxes. They follow from the largest
 * of all values, so a weight is read once more for them: by the thread that needs them first, while
 * others that do wait. All threads of a job share one of these.
 */

/* *matrices_out: NULL where no weight of the job has such scales. */
ferry_status fy_matrices_create(const fy_layout_job *job, fy_matrices **matrices_out,
                                ferry_error *error);
void fy_matrices_destroy(fy_matrices *matrices); /* NULL is allowed */

/* Of a weight: one for each matrix. They live as long as the maker's matrices. Uses the room of
 * hulls, and reads what is beside. */
ferry_status fy_matrices_of(fy_maker *maker, uint32_t weight, const float **scales_out,
                            ferry_error *error);

/* The number of the matrix that is the i-th of a box, in its order, of the weight's leading
 * dimensions. */
uint64_t fy_matrix_at(const fy_tensor *weight, const fy_box *box, uint64_t i);

#endif
