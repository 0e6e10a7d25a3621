/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <ferry/dtype.h>

#include "base/status.h"
#include "model/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct named_dtype {
    uint32_t kind;
    uint32_t bits;
    const char *name;
    const char *safetensors;
} dtypes[] = {
#define FY_ROW(id, number, text, safetensors_text, n_bits)                                         \
    {FERRY_##id, n_bits, text, safetensors_text},
    FERRY_DTYPE_MAP(FY_ROW)
#undef FY_ROW
};

enum {
    N_DTYPES = sizeof dtypes / sizeof dtypes[0],
    /* Keeps element bits in 32 bits, and a shape's bytes within reach of the checks. */
    LARGEST_OPAQUE_BYTES = 1 << 20,
};

static ferry_status parse_opaque(const char *digits, const char *text, ferry_dtype *dtype_out,
                                 ferry_error *error)
{
    char *end;
    unsigned long bytes = strtoul(digits, &end, 10);
    if (*digits < '1' || *digits > '9' || *end != '\0' || bytes > LARGEST_OPAQUE_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "dtype \"%s\": N of bytes:N must be a number from 1 to %d", text,
                       LARGEST_OPAQUE_BYTES);
    }
    *dtype_out = (ferry_dtype){.kind = FERRY_BYTES, .element_bits = (uint32_t)bytes * 8};
    return FERRY_OK;
}

ferry_status ferry_dtype_parse(const char *text, ferry_dtype *dtype_out, ferry_error *error)
{
    FY_TRY(fy_check_use(text != NULL && dtype_out != NULL,
                        "ferry_dtype_parse needs a text and a place for the result", error));
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *dtype_out = (ferry_dtype){.kind = dtypes[i].kind, .element_bits = dtypes[i].bits};
            return FERRY_OK;
        }
    }
    if (strncmp(text, "bytes:", 6) == 0) {
        return parse_opaque(text + 6, text, dtype_out, error);
    }
    return fy_fail(
        error, FERRY_ERR_INVALID_INPUT,
        "\"%s\" is not a dtype; known are f64 f32 f16 bf16 f8e4m3 f8e5m2 f8e8m0 f4 i64 u64 "
        "i32 u32 i16 u16 i8 u8 bool c64 and bytes:N",
        text);
}

ferry_status ferry_dtype_of(uint32_t kind, ferry_dtype *dtype_out, ferry_error *error)
{
    for (size_t i = 0; dtype_out != NULL && i < N_DTYPES; i++) {
        if (dtypes[i].kind == kind) {
            *dtype_out = (ferry_dtype){.kind = kind, .element_bits = dtypes[i].bits};
            return FERRY_OK;
        }
    }
    return fy_fail(error, FERRY_ERR_MISUSE, "%u is not a dtype with a size of its own", kind);
}

size_t ferry_dtype_format(ferry_dtype dtype, char *text, size_t text_bytes)
{
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (dtypes[i].kind == dtype.kind) {
            return (size_t)snprintf(text, text_bytes, "%s", dtypes[i].name);
        }
    }
    return (size_t)snprintf(text, text_bytes, "bytes:%u", dtype.element_bits / 8);
}

bool fy_dtype_from_safetensors(const char *text, ferry_dtype *dtype_out)
{
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (strcmp(text, dtypes[i].safetensors) == 0) {
            *dtype_out = (ferry_dtype){.kind = dtypes[i].kind, .element_bits = dtypes[i].bits};
            return true;
        }
    }
    return false;
}

bool fy_dtype_is_valid(ferry_dtype dtype)
{
    if (dtype.kind == FERRY_BYTES) {
        return dtype.element_bits >= 8 && dtype.element_bits % 8 == 0 &&
               dtype.element_bits / 8 <= LARGEST_OPAQUE_BYTES;
    }
    ferry_dtype same = {0};
    return ferry_dtype_of(dtype.kind, &same, NULL) == FERRY_OK &&
           same.element_bits == dtype.element_bits;
}
