/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_LOG_H
#define FERRY_LOG_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stdint.h>

FERRY_BEGIN_DECLS

typedef enum ferry_log_level {
    FERRY_LOG_TRACE = 0,
    FERRY_LOG_DEBUG = 1,
    FERRY_LOG_INFO = 2,
    FERRY_LOG_WARN = 3,
    FERRY_LOG_ERROR = 4,
    FERRY_LOG_OFF = 5
} ferry_log_level;

/*
 * Receives one line without a newline. May be called from any thread; calls do not overlap. It may
 * call the library, and configure the log: lines that would be logged meanwhile by its thread are
 * left out. It must not wait for another thread that may log.
 */
typedef void (*ferry_log_sink)(void *context, ferry_log_level level, const char *line);

/*
 * The library is silent until asked: by this call, or by FERRY_LOG=trace|debug|info|warn|error in
 * the environment, which is read once. A sink of NULL means standard error.
 */
FERRY_API void ferry_log_configure(ferry_log_level level, ferry_log_sink sink, void *context);

/* Puts "[rank N]" in front of every line of this process; a negative number takes it away. */
FERRY_API void ferry_log_set_rank(int64_t rank);

/* "trace" .. "error" or "off", in any case, to a level; FERRY_ERR_INVALID_INPUT for anything else.
 */
FERRY_API ferry_status ferry_log_level_parse(const char *text, ferry_log_level *level_out,
                                             ferry_error *error);

FERRY_END_DECLS

#endif
