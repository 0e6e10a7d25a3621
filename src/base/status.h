/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_STATUS_H
#define FY_BASE_STATUS_H

#include <ferry/status.h>

#include <stdarg.h>
#include <stddef.h>

/*
 * Writes the sentence, if the caller wants one, and returns status, so that the function that knows
 * the cause can say `return fy_fail(error, FERRY_ERR_IO, ...)`. Callers above only forward.
 */
ferry_status fy_fail(ferry_error *error, ferry_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

ferry_status fy_fail_no_memory(ferry_error *error, const char *what);

/*
 * Reads a caller's struct that begins with a struct_size into *own, which holds the defaults. An
 * older, shorter one sets the fields that it has; least_bytes are those of its first version. A
 * newer, longer one is fine as long as what is unknown here is zero, which means the default. given
 * may be NULL: the defaults stay. src/base/options.h has one call for each struct.
 */
ferry_status fy_copy_in(const void *given, size_t least_bytes, void *own, size_t own_bytes,
                        const char *what, const char *init, ferry_error *error);

/*
 * Fills a caller's struct that begins with a struct_size: callers with an older, shorter one get
 * its fields, those with a newer one ours.
 */
ferry_status fy_copy_out(const void *from, size_t from_bytes, void *to, const char *what,
                         ferry_error *error);

/* Only whether that would work: for calls that do much before they have something to say. */
ferry_status fy_check_out(const void *to, const char *what, ferry_error *error);

/* Statuses are numbered without gaps: what a message says of one is no more than the last. */
#define FY_COUNT_STATUS(name, number, text) FY_STATUS_##name = (number),
enum { FERRY_STATUS_MAP(FY_COUNT_STATUS) FY_N_STATUSES, FY_LAST_STATUS = FY_N_STATUSES - 1 };
#undef FY_COUNT_STATUS

#endif
