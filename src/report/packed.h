/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_REPORT_PACKED_H
#define FY_REPORT_PACKED_H

#include "base/writer.h"

/*
 * Many numbers in few characters: seven bits a byte, the lowest first, and a bit that says that
 * more follow; then base64. Errors stick: add on, and ask when it is written.
 */
typedef struct fy_packed {
    unsigned char *bytes;
    size_t n, capacity;
    bool failed;
} fy_packed;

void fy_packed_add(fy_packed *packed, uint64_t value);
/* The base64 as a JSON string behind a text; what was packed is gone, with its memory. */
ferry_status fy_packed_write(fy_packed *packed, fy_writer *writer, const char *before,
                             ferry_error *error);

/* Numbers in JSON: behind a text, and as an array. */
void fy_report_number(fy_writer *writer, const char *before, uint64_t value);
void fy_report_double(fy_writer *writer, const char *before, double value);
void fy_report_numbers(fy_writer *writer, const char *before, const uint64_t *values, size_t n);

#endif
