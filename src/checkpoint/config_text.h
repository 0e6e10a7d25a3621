/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_CONFIG_TEXT_H
#define FY_CHECKPOINT_CONFIG_TEXT_H

#include "checkpoint/changes.h"

/* What a config.json says of quantized weights. */

/*
 * The text of a config.json, which is a JSON object, with this quantization_config instead of its
 * own ones, be they of the model or of its parts; NULL: with none. All other bytes stay. *text_out
 * is for fy_free.
 */
ferry_status fy_config_set_quantization(const char *text, size_t length, const char *value,
                                        char **text_out, size_t *length_out, ferry_error *error);

/*
 * The quantization_config of weights in this format, a JSON object on one line, for fy_free.
 * names: of tensors; those matrices of them that end in .weight, and are no embeddings, are listed
 * as modules that are not quantized.
 */
ferry_status fy_config_describe(const fy_block_format *format, const char *const *names,
                                size_t n_names, char **value_out, ferry_error *error);

/*
 * What a quantization_config becomes where these tensors are values now, and others stay codes:
 * the modules of these are added to each list of modules that are not converted, as loaders call
 * it, or to a new modules_to_not_convert. A JSON object on one line, for fy_free.
 */
ferry_status fy_config_describe_rest(const json_t *about, const char *const *names, size_t n_names,
                                     char **value_out, ferry_error *error);

/* The quantization_config of a model or of its text part, or NULL. */
const json_t *fy_config_quantization(const json_t *config);

#endif
