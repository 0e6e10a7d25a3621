/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_FORMULA_H
#define FY_MODEL_FORMULA_H

#include "base/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FY_MAX_INDICES = 4 };

/*
 * What the words of a formula stand for: an index, else a number that the family or all families
 * define by a formula of its own, else a key of config.json, in the nested config first. A word
 * that its own formula has is config.json's.
 */
typedef struct fy_formula_scope {
    const char *source_name; /* of config.json, for sentences */
    const json_t *config, *text_config;
    const json_t *numbers[2]; /* of the family, of all; objects, or NULL */
    size_t n_indices;
    const char *indices[FY_MAX_INDICES];
    uint64_t values[FY_MAX_INDICES];
} fy_formula_scope;

/*
 * The value of "head_dim ?? hidden / heads": whole numbers from 0 on, truths as 0 and 1. From weak
 * to strong: ?? (the right side if config.json lacks a word of the left one, or has null for it),
 * ||,
 * &&, one of == != < <= > >= in, + -, * / %, !. Division rounds down. `in` looks into a list.
 */
ferry_status fy_formula_evaluate(const fy_formula_scope *scope, const char *text,
                                 uint64_t *value_out, ferry_error *error);

#endif
