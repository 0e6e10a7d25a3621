/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How a difference is said. */
#include "checkpoint/verify.h"

#include "base/print.h"

#include "exec/cast.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint64_t fy_first_difference(const char *a, const char *b, uint64_t n_bytes)
{
    enum { STRIDE = 4096 };
    uint64_t at = 0;
    while (at < n_bytes) {
        uint64_t n = n_bytes - at < STRIDE ? n_bytes - at : STRIDE;
        if (memcmp(a + at, b + at, (size_t)n) != 0) {
            while (a[at] == b[at]) {
                at++;
            }
            return at;
        }
        at += n;
    }
    return n_bytes;
}

static uint64_t little_endian(const char *bytes, size_t n)
{
    uint64_t value = 0;
    memcpy(&value, bytes, n);
    return value;
}

static double float_value(uint32_t kind, const char *element)
{
    if (kind == FERRY_F64) {
        double value;
        memcpy(&value, element, sizeof value);
        return value;
    }
    fy_area in = fy_area_flat(0, fy_cast_element_bytes(kind)), out = fy_area_flat(0, 4);
    fy_cast cast = {.from_kind = kind, .to_kind = FERRY_F32, .n_rows = 1, .n_columns = 1};
    float value;
    fy_area_cast(&cast, &out, &value, &in, element, 0, 1);
    return (double)value;
}

static int64_t sign_extended(uint64_t bits, uint32_t n_bits)
{
    return (int64_t)(bits << (64 - n_bits)) >> (64 - n_bits);
}

static void format_hex(const char *bytes, uint64_t n, uint64_t differs_at, char *text,
                       size_t text_bytes)
{
    enum { MOST = 16 };
    uint64_t from = n <= MOST ? 0 : differs_at, used;
    uint64_t end = n - from < MOST ? n : from + MOST;
    used = (uint64_t)snprintf(text, text_bytes, from == 0 ? "bytes " : "... ");
    for (uint64_t i = from; i < end && used < text_bytes; i++) {
        used += (uint64_t)snprintf(text + used, text_bytes - used, "%02x", (unsigned char)bytes[i]);
    }
    if (end < n && used < text_bytes) {
        snprintf(text + used, text_bytes - used, "...");
    }
}

void fy_format_value(ferry_dtype dtype, const char *element, bool high_half, uint64_t differs_at,
                     char *text, size_t text_bytes)
{
    size_t n = (dtype.element_bits + 7) / 8;
    uint64_t bits = n <= 8 ? little_endian(element, n) : 0;
    switch (dtype.kind) {
    case FERRY_F64:
    case FERRY_F32:
    case FERRY_F16:
    case FERRY_BF16:
    case FERRY_F8E4M3:
    case FERRY_F8E5M2:
        fy_print(text, text_bytes, "%.*g (0x%0*" PRIx64 ")", dtype.kind == FERRY_F64 ? 17 : 9,
                 float_value(dtype.kind, element), (int)(2 * n), bits);
        return;
    case FERRY_I64:
    case FERRY_I32:
    case FERRY_I16:
    case FERRY_I8:
        snprintf(text, text_bytes, "%" PRId64, sign_extended(bits, dtype.element_bits));
        return;
    case FERRY_U64:
    case FERRY_U32:
    case FERRY_U16:
    case FERRY_U8:
    case FERRY_BOOL:
        snprintf(text, text_bytes, "%" PRIu64, bits);
        return;
    case FERRY_F4:
        snprintf(text, text_bytes, "0x%" PRIx64, (high_half ? bits >> 4 : bits) & 15);
        return;
    case FERRY_C64:
        fy_print(text, text_bytes, "%.9g%+.9gi (0x%016" PRIx64 ")", float_value(FERRY_F32, element),
                 float_value(FERRY_F32, element + 4), bits);
        return;
    default:
        format_hex(element, n, differs_at, text, text_bytes);
        return;
    }
}
