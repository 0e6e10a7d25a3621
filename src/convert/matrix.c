/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/matrix.h"

#include "base/checked.h"

ferry_status fy_check_input(const char *what, uint64_t n_rows, uint64_t row_bytes,
                            size_t element_bytes, const fy_input *given, fy_rows_in *rows_out,
                            ferry_error *error)
{
    uint64_t pitch = given->pitch == 0 ? row_bytes : given->pitch, before_last, need;
    if (n_rows == 0 || row_bytes == 0) {
        *rows_out = (fy_rows_in){0};
        return FERRY_OK;
    }
    if (pitch < row_bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: rows of %llu bytes cannot lie %llu bytes apart", what,
                       (unsigned long long)row_bytes, (unsigned long long)pitch);
    }
    if (pitch % element_bytes != 0 || (uintptr_t)given->data % element_bytes != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: data and pitch must be multiples of the %zu bytes of an element", what,
                       element_bytes);
    }
    if (!fy_mul(n_rows - 1, pitch, &before_last) || !fy_add(before_last, row_bytes, &need) ||
        need > given->n_bytes || given->data == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: %llu rows of %llu bytes, %llu apart, do not fit into the %llu bytes "
                       "given",
                       what, (unsigned long long)n_rows, (unsigned long long)row_bytes,
                       (unsigned long long)pitch,
                       given->data == NULL ? 0ULL : (unsigned long long)given->n_bytes);
    }
    *rows_out = (fy_rows_in){given->data, pitch};
    return FERRY_OK;
}

ferry_status fy_check_output(const char *what, uint64_t n_rows, uint64_t row_bytes,
                             size_t element_bytes, const fy_output *given, fy_rows_out *rows_out,
                             ferry_error *error)
{
    fy_input same = {given->data, given->n_bytes, given->pitch};
    fy_rows_in rows = {0};
    FY_TRY(fy_check_input(what, n_rows, row_bytes, element_bytes, &same, &rows, error));
    *rows_out = (fy_rows_out){rows.data == NULL ? NULL : given->data, rows.pitch};
    return FERRY_OK;
}
