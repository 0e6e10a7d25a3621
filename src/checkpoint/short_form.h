/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SHORT_FORM_H
#define FY_CHECKPOINT_SHORT_FORM_H

#include "base/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * From "tp=4,pp=2" and a known architecture to a side of a spec: mesh, stages and rules. Pure: the
 * names and shapes of the model's tensors, and config.json as a text, are all it sees.
 */
typedef struct fy_model_tensor {
    const char *name;
    uint32_t n_dims;
    const uint64_t *shape;
    bool has_scales; /* of blocks, which are not listed: it is cut between those */
} fy_model_tensor;

/* Whether a --to text is meant as a short form: comma-separated axis=number. */
bool fy_short_form_is(const char *text);

/*
 * *side_out is an object of mesh, stages and rules, the caller's. *replicated_out (may be NULL) is
 * an array of the names of tensors that no built-in rule knows: they are replicated on the ranks of
 * their stage; the user is told.
 * config is the parsed config.json, NULL where there is none. source_name stands in sentences.
 */
ferry_status fy_short_form_make(const char *text, const fy_model_tensor *tensors, size_t n_tensors,
                                const json_t *config, const char *source_name, json_t **side_out,
                                json_t **replicated_out, ferry_error *error);

#endif
