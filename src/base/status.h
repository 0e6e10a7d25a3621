/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_STATUS_H
#define FY_BASE_STATUS_H

#include <ferry/status.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Writes the sentence, if the caller wants one, and returns status, so that the function that knows
 * the cause can say `return fy_fail(error, FERRY_ERR_IO, ...)`. Callers above only forward.
 */
ferry_status fy_fail(ferry_error *error, ferry_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The status of a call that had an error of its own; if that is a failure its sentence is passed
 * on. */
ferry_status fy_forward(ferry_error *error, ferry_status status, const ferry_error *own);

ferry_status fy_fail_no_memory(ferry_error *error, const char *what);

/* That, unless there is enough of it: what was allocated is there. */
static inline ferry_status fy_check_memory(bool enough, const char *what, ferry_error *error)
{
    if (!enough) {
        (void)fy_fail_no_memory(error, what);
    }
    return enough ? FERRY_OK : FERRY_ERR_NO_MEMORY; /* so that a compiler knows it, too */
}

/* FERRY_ERR_MISUSE with the sentence, unless the caller has used the call right. */
static inline ferry_status fy_check_use(bool is_right, const char *sentence, ferry_error *error)
{
    return is_right ? FERRY_OK : fy_fail(error, FERRY_ERR_MISUSE, "%s", sentence);
}

/* The call, and the end of this function if it fails: where nothing is to be released. */
#define FY_TRY(call)                                                                               \
    do {                                                                                           \
        ferry_status fy_tried = (call);                                                            \
        if (fy_tried != FERRY_OK) {                                                                \
            return fy_tried;                                                                       \
        }                                                                                          \
    } while (0)

/* The call, unless something failed before: where the end of this function releases something. */
#define FY_THEN(status, call)                                                                      \
    do {                                                                                           \
        if ((status) == FERRY_OK) {                                                                \
            (status) = (call);                                                                     \
        }                                                                                          \
    } while (0)

/*
 * Around calls of a caller's function that may end what is under way: its own sentence stands, if
 * it wrote one to the same error, and else one says that it was the caller's function.
 */
void fy_before_callback(ferry_error *error);
ferry_status fy_after_callback(ferry_status status, const char *what, ferry_error *error);

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
