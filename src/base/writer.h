/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_WRITER_H
#define FY_BASE_WRITER_H

#include "base/status.h"

#include <ferry/writer.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Streams text to a callback through one buffer, so that output of any length costs constant
 * memory. Errors stick: write on, and ask fy_writer_finish once.
 */
enum { FY_WRITER_BYTES = 1 << 16 };

typedef struct fy_writer {
    ferry_write_fn write;
    void *context;
    size_t used;
    bool failed;
    char bytes[FY_WRITER_BYTES];
} fy_writer;

void fy_writer_init(fy_writer *writer, ferry_write_fn write, void *context);
void fy_write_text(fy_writer *writer, const char *text);
void fy_write_bytes(fy_writer *writer, const char *bytes, size_t n_bytes);
void fy_write_u64(fy_writer *writer, uint64_t value);
/* With as few digits as read back to the same number. */
void fy_write_double(fy_writer *writer, double value);
/* A JSON string with its quotes and escapes. */
void fy_write_string(fy_writer *writer, const char *text);
/* Hands over the rest. FERRY_ERR_IO if any write failed. */
ferry_status fy_writer_finish(fy_writer *writer, ferry_error *error);

#endif
