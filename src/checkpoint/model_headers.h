/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_MODEL_HEADERS_H
#define FY_CHECKPOINT_MODEL_HEADERS_H

#include "base/status.h"

#include <jansson.h>

/*
 * The tensors of a model as the "tensors" array of a spec. path is whatever
 * ferry_checkpoint_open takes; of a sharded one they are those that its layout lists. Only headers
 * are read. A tensor that ferry cannot cut is a scalar of bytes:N.
 */
ferry_status fy_model_read_tensors(const char *path, json_t **tensors_out, ferry_error *error);

#endif
