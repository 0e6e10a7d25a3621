/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_BLOCKS_H
#define FY_MODEL_BLOCKS_H

#include "base/alloc.h"
#include "model/conversion.h"

#include <ferry/side.h>

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
    /* Of f4 that of the tensor with a scale of each matrix, which the source has; else NULL. */
    const char *tensor_scale;
} fy_said_blocks;

/* Reads the value; all of it lives in the arena. */
ferry_status fy_blocks_read(const json_t *json, const fy_json_place *place, fy_arena *arena,
                            const fy_said_blocks **blocks_out, ferry_error *error);

/* Of what a caller gives: the name is not copied. A sentence without a subject where it is none. */
ferry_status fy_blocks_make(const ferry_quantization *given, fy_said_blocks *blocks_out,
                            ferry_error *error);

/* A copy that lives in the arena; NULL: no memory. */
const fy_said_blocks *fy_blocks_copy(const fy_said_blocks *blocks, fy_arena *arena);

/* Whether numbers that came from elsewhere are such a format, with a name. */
bool fy_blocks_are_valid(const fy_said_blocks *blocks);

/* Its member, with a comma in front. */
void fy_blocks_write(fy_writer *w, const fy_said_blocks *blocks);

/* The name of the scales of a tensor, cut to fit; whether it fits. */
bool fy_blocks_name(const fy_said_blocks *blocks, const char *tensor, char *name_out,
                    size_t name_bytes);

/* The same of the tensor with a scale of each matrix, where tensor_scale is not NULL. */
bool fy_blocks_tensor_scale(const fy_said_blocks *blocks, const char *tensor, char *name_out,
                            size_t name_bytes);

/* Whether two say the same of a tensor but for names. */
bool fy_blocks_are_alike(const fy_said_blocks *a, const fy_said_blocks *b);

/*
 * The value of "dequantize" of a rule or a parameter: its tensors are codes, of which the tensor
 * with that name has the scales; types are not said, but those of the two tensors.
 */
ferry_status fy_codes_read(const json_t *json, const fy_json_place *place, fy_arena *arena,
                           const fy_said_blocks **codes_out, ferry_error *error);

/* The same of what a caller gives, as fy_blocks_make; and its member, as fy_blocks_write. */
ferry_status fy_codes_make(const char *scale, const uint64_t block[2], fy_said_blocks *codes_out,
                           ferry_error *error);
void fy_codes_write(fy_writer *w, const fy_said_blocks *codes);

/* Whether tensors of this type are codes, and whether those of that type are their scales. */
bool fy_codes_are(ferry_dtype codes);
bool fy_codes_have_scales(ferry_dtype codes, ferry_dtype scales);

/* Whether tensors of this type have blocks. */
bool fy_blocks_take(ferry_dtype values);

fy_conversion_key fy_blocks_key(const fy_said_blocks *blocks);

/* Of values to codes, or to scales, by the sender. */
fy_conversion fy_blocks_conversion(const fy_said_blocks *blocks, ferry_dtype values, uint32_t kind);

/* Of codes to values: zero where `to` is no type of values. */
fy_conversion_key fy_codes_key(const fy_said_blocks *codes, ferry_dtype scales, ferry_dtype to);
fy_conversion fy_codes_conversion(const fy_said_blocks *codes, ferry_dtype from, ferry_dtype scales,
                                  ferry_dtype to);

/* The same by the receiver: values travel. */
fy_conversion fy_blocks_at_receiver(const fy_conversion *at_sender);

#endif
