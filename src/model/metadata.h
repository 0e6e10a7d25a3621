/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_METADATA_H
#define FY_MODEL_METADATA_H

#include "base/alloc.h"
#include "base/status.h"

#include <ferry/metadata.h>

/* A rank's parameters. Texts, lists and references to groups belong to the model. */
struct ferry_model {
    fy_arena arena;
    ferry_param_metadata *params;
    size_t n_params;
    size_t capacity;
};

/* Reads a caller's metadata and checks it. */
ferry_status fy_metadata_take(const ferry_param_metadata *given, ferry_param_metadata *metadata,
                              ferry_error *error);

/* The name in the whole model. */
static inline const char *fy_metadata_name(const ferry_param_metadata *metadata)
{
    return metadata->resolved_name == NULL ? metadata->name : metadata->resolved_name;
}

/* Moves its texts and lists into the arena. */
bool fy_metadata_copy_texts(fy_arena *arena, ferry_param_metadata *metadata);

ferry_status fy_model_copy(const ferry_model *model, ferry_model **copy_out, ferry_error *error);

#endif
