/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_BLOCKS_H
#define FY_MODEL_BLOCKS_H

#include "base/alloc.h"
#include "model/conversion.h"

/*
 * The key "quantize" of a rule or a parameter: a tensor of values becomes one of codes, and another
 * tensor has the scale of each block of it.
 */
typedef struct fy_said_blocks {
    ferry_dtype codes;
    ferry_dtype scales;
    uint32_t rule; /* as in ferry_conversion */
    uint64_t block[2];
    const char *scale; /* the name of the tensor of scales; a star stands for that of the values */
} fy_said_blocks;

/* Reads the value; all of it lives in the arena. */
ferry_status fy_blocks_read(const json_t *json, const fy_json_place *place, fy_arena *arena,
                            const fy_said_blocks **blocks_out, ferry_error *error);

/* A copy that lives in the arena; NULL: no memory. */
const fy_said_blocks *fy_blocks_copy(const fy_said_blocks *blocks, fy_arena *arena);

/* Whether numbers that came from elsewhere are such a format, with a name. */
bool fy_blocks_are_valid(const fy_said_blocks *blocks);

/* Its member, with a comma in front. */
void fy_blocks_write(fy_writer *w, const fy_said_blocks *blocks);

/* The name of the scales of a tensor, cut to fit; whether it fits. */
bool fy_blocks_name(const fy_said_blocks *blocks, const char *tensor, char *name_out,
                    size_t name_bytes);

/* Whether two say the same of a tensor but for names. */
bool fy_blocks_are_alike(const fy_said_blocks *a, const fy_said_blocks *b);

/* Whether tensors of this type have blocks. */
bool fy_blocks_take(ferry_dtype values);

fy_conversion_key fy_blocks_key(const fy_said_blocks *blocks);

/* Of values to codes, or to scales. */
fy_conversion fy_blocks_conversion(const fy_said_blocks *blocks, ferry_dtype values, uint32_t kind);

#endif
