/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_BENCH_DEVICE_H
#define FERRY_TOOL_BENCH_DEVICE_H

#include <ferry/ferry.h>

#include <stdint.h>

/* What benchmarks of devices share. */

enum { BENCH_AT_ONCE = 8 }; /* copies on a queue, of which one time is taken */
#define BENCH_DEVICE_BYTES ((uint64_t)256 << 20)

ferry_box bench_flat_box(const ferry_buffer *buffer, uint64_t bytes);

/* All bytes of a buffer, wherever it lies. */
ferry_status bench_fill(const ferry_buffer *buffer, int value, ferry_error *error);

#endif
