/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_UNITS_H
#define FERRY_TOOL_UNITS_H

#include <stdint.h>

/*
 * Numbers as people read them, in all tables; JSON has them plain. Each writes to text, which it
 * returns.
 */
enum { UNIT_TEXT_BYTES = 32 };

/* "1.25 GiB"; exact below a KiB. */
const char *format_bytes(double bytes, char text[UNIT_TEXT_BYTES]);

/* "2.34 us", "37.4 ms", "1.25 s", "16 min 34 s", "3 h 5 min"; "0 s". */
const char *format_seconds(double seconds, char text[UNIT_TEXT_BYTES]);

/* "245,760" */
const char *format_count(uint64_t n, char text[UNIT_TEXT_BYTES]);

/* What "rank" ends with behind this number: "" or "s". */
const char *plural(uint64_t n);

/* "16x", "1.98x", "0.753x": three digits that count. */
const char *format_times(double factor, char text[UNIT_TEXT_BYTES]);

/* "1.25 GB/s", "340 MB/s": powers of ten, as networks and disks are sold. */
const char *format_rate(double bytes_per_s, char text[UNIT_TEXT_BYTES]);

#endif
