/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/cast.h"

#include "base/checked.h"
#include "convert/matrix.h"

#include <ferry/dtype.h>

#include <string.h>

/* Elements that are cast at once: what lies between stays in the fastest cache. */
enum { PIECE = 1024 };

size_t fy_cast_element_bytes(uint32_t kind)
{
    switch (kind) {
    case FERRY_F64:
        return 8;
    case FERRY_F32:
        return 4;
    case FERRY_F16:
    case FERRY_BF16:
        return 2;
    case FERRY_F8E4M3:
    case FERRY_F8E5M2:
        return 1;
    default:
        return 0;
    }
}

bool fy_cast_exists(uint32_t from_kind, uint32_t to_kind)
{
    if (fy_cast_element_bytes(from_kind) == 0 || fy_cast_element_bytes(to_kind) == 0) {
        return false;
    }
    return to_kind != FERRY_F64 && (from_kind != FERRY_F64 || to_kind == FERRY_F32);
}

void fy_widen(const fy_convert_kernels *k, uint32_t kind, float *to, const void *from, size_t n)
{
    switch (kind) {
    case FERRY_F64:
        k->narrow_f64(to, from, n);
        return;
    case FERRY_F16:
        k->widen_f16(to, from, n);
        return;
    case FERRY_BF16:
        k->widen_bf16(to, from, n);
        return;
    case FERRY_F8E4M3:
        k->widen_f8e4m3(to, from, n);
        return;
    case FERRY_F8E5M2:
        k->widen_f8e5m2(to, from, n);
        return;
    case FERRY_F4:
        k->widen_f4(to, from, n);
        return;
    default:
        memcpy(to, from, n * sizeof *to);
    }
}

void fy_narrow(const fy_convert_kernels *k, uint32_t kind, fy_overflow overflow, void *to,
               const float *from, size_t n)
{
    bool saturates = overflow != FY_OVERFLOW_PLAIN;
    switch (kind) {
    case FERRY_F16:
        (saturates ? k->saturate_f16 : k->narrow_f16)(to, from, n);
        return;
    case FERRY_BF16:
        (saturates ? k->saturate_bf16 : k->narrow_bf16)(to, from, n);
        return;
    case FERRY_F8E4M3:
        (overflow == FY_OVERFLOW_CODES ? k->codes_f8e4m3
         : saturates                   ? k->saturate_f8e4m3
                                       : k->narrow_f8e4m3)(to, from, n);
        return;
    case FERRY_F8E5M2:
        (saturates ? k->saturate_f8e5m2 : k->narrow_f8e5m2)(to, from, n);
        return;
    default:
        memcpy(to, from, n * sizeof *from);
    }
}

static void cast_row(const fy_cast_matrix *cast, const fy_convert_kernels *k, char *to,
                     const char *from, uint64_t n)
{
    float values[PIECE];
    size_t to_bytes = fy_cast_element_bytes(cast->to_kind);
    size_t from_bytes = fy_cast_element_bytes(cast->from_kind);
    if (cast->to_kind == cast->from_kind) {
        memcpy(to, from, (size_t)n * to_bytes);
    } else if (cast->to_kind == FERRY_F32) {
        fy_widen(k, cast->from_kind, (float *)(void *)to, from, (size_t)n);
    } else if (cast->from_kind == FERRY_F32) {
        fy_narrow(k, cast->to_kind, cast->overflow, to, (const float *)(const void *)from,
                  (size_t)n);
    } else {
        for (uint64_t at = 0; at < n; at += PIECE) {
            size_t here = (size_t)fy_min(n - at, PIECE);
            fy_widen(k, cast->from_kind, values, from + at * from_bytes, here);
            fy_narrow(k, cast->to_kind, cast->overflow, to + at * to_bytes, values, here);
        }
    }
}

ferry_status fy_cast_run(const fy_cast_matrix *cast, ferry_error *error)
{
    size_t to_bytes = fy_cast_element_bytes(cast->to_kind);
    size_t from_bytes = fy_cast_element_bytes(cast->from_kind);
    uint64_t to_row, from_row;
    fy_rows_in from;
    fy_rows_out to;
    if (!fy_cast_exists(cast->from_kind, cast->to_kind)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "there is no cast of kind %u to kind %u",
                       cast->from_kind, cast->to_kind);
    }
    if (!fy_mul(cast->n_columns, to_bytes, &to_row) ||
        !fy_mul(cast->n_columns, from_bytes, &from_row)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "a row of %llu elements has too many bytes",
                       (unsigned long long)cast->n_columns);
    }
    FY_TRY(fy_check_input("what is cast", cast->n_rows, from_row, from_bytes, &cast->from, &from,
                          error));
    FY_TRY(fy_check_output("the result of the cast", cast->n_rows, to_row, to_bytes, &cast->to, &to,
                           error));
    if (from.data == NULL) {
        return FERRY_OK;
    }
    fenv_t before = fy_plain_arithmetic();
    for (uint64_t row = 0; row < cast->n_rows; row++) {
        cast_row(cast, fy_convert_kernels_here(), to.data + row * to.pitch,
                 from.data + row * from.pitch, cast->n_columns);
    }
    (void)fesetenv(&before);
    return FERRY_OK;
}
