/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_MODEL_HEADERS_H
#define FY_CHECKPOINT_MODEL_HEADERS_H

#include "base/status.h"

#include <jansson.h>

/*
 * The tensors of a model as the "tensors" array of a spec. path is a safetensors file, an index
 * file, or a folder: its model.safetensors.index.json if there is one, else all its safetensors
 * files by name. Only headers are read.
 */
ferry_status fy_model_read_tensors(const char *path, json_t **tensors_out, ferry_error *error);

#endif
