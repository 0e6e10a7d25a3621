/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "report/packed.h"

#include "base/alloc.h"

void fy_packed_add(fy_packed *packed, uint64_t value)
{
    enum { MOST_BYTES = 10 }; /* of 64 bits, seven a byte */
    if (packed->failed || !FY_RESERVE(packed->bytes, packed->capacity, packed->n + MOST_BYTES)) {
        packed->failed = true;
        return;
    }
    for (; value >= 128; value >>= 7) {
        packed->bytes[packed->n++] = (unsigned char)(value | 128);
    }
    packed->bytes[packed->n++] = (unsigned char)value;
}

static void write_base64(fy_writer *w, const unsigned char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t group = (uint32_t)bytes[i] << 16;
        group |= i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0;
        group |= i + 2 < n ? bytes[i + 2] : 0;
        char text[4] = {digits[group >> 18], digits[group >> 12 & 63], digits[group >> 6 & 63],
                        digits[group & 63]};
        text[2] = i + 1 < n ? text[2] : '=';
        text[3] = i + 2 < n ? text[3] : '=';
        fy_write_bytes(w, text, sizeof text);
    }
}

ferry_status fy_packed_write(fy_packed *packed, fy_writer *writer, const char *before,
                             ferry_error *error)
{
    ferry_status status = fy_check_memory(!packed->failed, "the numbers of a report", error);
    if (status == FERRY_OK) {
        fy_write_text(writer, before);
        fy_write_text(writer, "\"");
        write_base64(writer, packed->bytes, packed->n);
        fy_write_text(writer, "\"");
    }
    fy_free(packed->bytes);
    *packed = (fy_packed){0};
    return status;
}

void fy_report_number(fy_writer *writer, const char *before, uint64_t value)
{
    fy_write_text(writer, before);
    fy_write_u64(writer, value);
}

void fy_report_double(fy_writer *writer, const char *before, double value)
{
    fy_write_text(writer, before);
    fy_write_double(writer, value);
}

void fy_report_numbers(fy_writer *writer, const char *before, const uint64_t *values, size_t n)
{
    fy_write_text(writer, before);
    for (size_t i = 0; i < n; i++) {
        fy_report_number(writer, i == 0 ? "[" : ",", values[i]);
    }
    fy_write_text(writer, n == 0 ? "[]" : "]");
}
