/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_CONFIG_H
#define FY_BASE_CONFIG_H

#include <ferry/config.h>

#include <stddef.h>

/* The value of FERRY_LOG as a ferry_log_level, FERRY_LOG_OFF when it is unset or wrong. */
int fy_config_log_level(void);

/* The value of FERRY_ISA as an fy_isa, the best one when it is unset or wrong. */
int fy_config_isa(void);

/*
 * For a variable that decides what is done, such as who a rank is: a wrong value is then an error
 * and not the default.
 */
ferry_status fy_config_check_one(const char *name, ferry_error *error);

/* Of variables that the table of config.c lists; unset or wrong is NULL, or otherwise. */
const char *fy_config_text(const char *name);
double fy_config_seconds(const char *name, double otherwise);

#endif
