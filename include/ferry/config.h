/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_CONFIG_H
#define FERRY_CONFIG_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stddef.h>

FERRY_BEGIN_DECLS

/*
 * Checks every FERRY_* variable of the environment: an unknown name or a value that does not parse
 * is FERRY_ERR_INVALID_INPUT, and the sentence names it and what would be right. The command calls
 * this first. A library must not fail its host over a stray variable, so inside it a wrong value
 * counts as unset.
 */
FERRY_API ferry_status ferry_config_check(ferry_error *error);

/* The number of variables that ferry reads. */
FERRY_API size_t ferry_config_count(void);

/*
 * Variable number index: its name, its meaning, and its value now (NULL when unset). Each out
 * pointer may be NULL. The texts live as long as the library and the environment.
 */
FERRY_API ferry_status ferry_config_at(size_t index, const char **name_out,
                                       const char **meaning_out, const char **value_out,
                                       ferry_error *error);

FERRY_END_DECLS

#endif
