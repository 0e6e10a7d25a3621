/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_LOG_H
#define FY_BASE_LOG_H

#include <ferry/log.h>

#include <stdbool.h>

/* Ask first where building the arguments costs something. */
bool fy_log_enabled(ferry_log_level level);

/* As ferry_log_configure, with the sink as it was. */
void fy_log_set_level(ferry_log_level level);

void fy_log(ferry_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
