/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CONVERT_MATRIX_H
#define FY_CONVERT_MATRIX_H

#include "convert/convert.h"

#include <fenv.h>

/* What the calls of convert.h have in common. */

/* A matrix that was checked. */
typedef struct fy_rows_in {
    const char *data;
    uint64_t pitch;
} fy_rows_in;

typedef struct fy_rows_out {
    char *data;
    uint64_t pitch;
} fy_rows_out;

/*
 * Checks what is given for so many rows of row_bytes, of elements of element_bytes. `what` is for
 * the sentence.
 */
ferry_status fy_check_input(const char *what, uint64_t n_rows, uint64_t row_bytes,
                            size_t element_bytes, const fy_input *given, fy_rows_in *rows_out,
                            ferry_error *error);
ferry_status fy_check_output(const char *what, uint64_t n_rows, uint64_t row_bytes,
                             size_t element_bytes, const fy_output *given, fy_rows_out *rows_out,
                             ferry_error *error);

/* Rounding and subnormal numbers as they are by default, until fesetenv gives back what was. */
static inline fenv_t fy_plain_arithmetic(void)
{
    fenv_t before;
    (void)fegetenv(&before);
    (void)fesetenv(FE_DFL_ENV);
    return before;
}

#endif
