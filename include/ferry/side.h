/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_SIDE_H
#define FERRY_SIDE_H

#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/limits.h>
#include <ferry/reshard.h>
#include <ferry/spec.h>
#include <ferry/status.h>
#include <ferry/writer.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * One side of a plan in boxes: which box of which tensor of the model lies where in which parameter
 * of which ranks. What a model's own code does with its weights (fuse, stack, pad, transpose,
 * interleave, spread experts) is said this way. Made by one thread; numbers are checked against the
 * tensors when a spec is made of it, so the order of calls is free but for a parameter's number.
 */
typedef struct ferry_side ferry_side;

/* A side without parameters. */
FERRY_API ferry_status ferry_side_create(ferry_side **side_out, ferry_error *error);
FERRY_API void ferry_side_destroy(ferry_side *side); /* NULL is allowed */

/*
 * A tensor of the model, of which boxes are. Needed where no spec says it. The same again is
 * allowed; another shape or type is FERRY_ERR_INVALID_INPUT.
 */
FERRY_API ferry_status ferry_side_add_tensor(ferry_side *side, const char *name, ferry_dtype dtype,
                                             uint32_t n_dims, const uint64_t *shape,
                                             ferry_error *error);

/* The parameter has elements that no box and no fill gives, and keeps what it has there. */
#define FERRY_PARAMETER_PARTIAL 1u

/*
 * A parameter of these ranks: elements of its memory, one behind the other. Ranks that have it
 * alike are told in one call. n_ranks 0: the rank that ferry_spec_exchange is called by. dtype
 * NULL: that of the tensor of its first box. flags: FERRY_PARAMETER_ constants. *parameter_out is
 * its number, for the calls below.
 */
FERRY_API ferry_status ferry_side_add_parameter(ferry_side *side, const uint32_t *ranks,
                                                size_t n_ranks, const char *name,
                                                const ferry_dtype *dtype, uint64_t elements,
                                                uint32_t flags, size_t *parameter_out,
                                                ferry_error *error);

/*
 * The elements of a destination's parameter are cast on their way, from the type of their tensor to
 * that of the parameter: see ferry_conversion. scale 1 and add 0 change nothing; a scale is finite
 * and not 0, an add finite. The last call counts, and it takes the place of a quantization.
 */
FERRY_API ferry_status ferry_side_set_cast(ferry_side *side, size_t parameter, bool saturates,
                                           float scale, float add, ferry_error *error);

/*
 * What tensors become where a destination wants codes, and how a tensor of scales that the plan
 * adds for each of them is made: see ferry_conversion. Of f4 all is fixed, as NVFP4: scales f8e4m3
 * by rule 0 in blocks of 1 x 16, and over these an f32 for each matrix, which is given: a tensor of
 * the source, of the shape that is before the last two dimensions.
 */
typedef struct ferry_quantization {
    size_t struct_size;
    ferry_dtype code_dtype;   /* f8e4m3, f8e5m2 or f4 */
    ferry_dtype scale_dtype;  /* f32, or f8e8m0 for powers of two */
    uint64_t block[2];        /* rows and columns of the last two dimensions, from 1 on */
    const char *scale;        /* the name of the tensor of scales; a * stands for the tensor's */
    uint32_t scale_rule;      /* as in ferry_conversion; 0 is for f32 only, and for f4 */
    const char *tensor_scale; /* of f4 the name of the tensor that is given, as scale; else NULL */
} ferry_quantization;

#define FERRY_QUANTIZATION_INIT                                                                    \
    {                                                                                              \
        sizeof(ferry_quantization), {0, 0}, {0, 0}, {0, 0}, NULL, 0, NULL                          \
    }

/*
 * The tensors of a destination's parameter are quantized on their way: it has codes, and is of
 * their type. Another parameter, of this rank or of another one, may have a box of the tensor of
 * scales. In place of a cast; the last call counts. MXFP8 is f8e4m3 in blocks of 1 x 32 with f8e8m0
 * by rule 2.
 */
FERRY_API ferry_status ferry_side_set_quantize(ferry_side *side, size_t parameter,
                                               const ferry_quantization *quantization,
                                               ferry_error *error);

/*
 * The tensors of a destination's parameter are codes at the source, f8e4m3, f8e5m2 or f4, and
 * become values of its type, which was f32, f16 or bf16 when it was added: each code times the
 * scale of its block of rows and columns of the last two dimensions. A * in scale, the name of the
 * tensor of scales, stands for that of the codes. Who has the parameter gets the scales too, in
 * memory of the copy service. A tensor has one of them, whatever parameters it becomes values in.
 * Of f4, NVFP4, blocks are of 1 x 16, and each matrix has an f32 in the tensor that is called like
 * the scales with _2 behind. In place of a cast; the last call counts.
 */
FERRY_API ferry_status ferry_side_set_dequantize(ferry_side *side, size_t parameter,
                                                 const char *scale, const uint64_t block[2],
                                                 ferry_error *error);

/*
 * The shape that the parameter has in the files of a checkpoint, of as many elements. Without one
 * it has one dimension there. Plans take no notice of it.
 */
FERRY_API ferry_status ferry_side_set_shape(ferry_side *side, size_t parameter, uint32_t n_dims,
                                            const uint64_t *shape, ferry_error *error);

/* How often a box comes again, each time so many elements further in the tensor and in memory. */
typedef struct ferry_side_repeat {
    uint64_t count;
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t offset;
} ferry_side_repeat;

#define FERRY_MAX_REPEATS 4

/*
 * Element begin + i of the tensor, with i below shape, is element offset + i[0] strides[0] + i[1]
 * strides[1] + ... of the parameter. Repeats are nested, the outer one first.
 */
typedef struct ferry_side_box {
    size_t struct_size;
    const char *tensor;
    uint32_t n_dims;
    uint32_t n_repeats;
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t offset;
    uint64_t strides[FERRY_MAX_DIMS];
    ferry_side_repeat repeats[FERRY_MAX_REPEATS];
} ferry_side_box;

#define FERRY_SIDE_BOX_INIT                                                                        \
    {                                                                                              \
        sizeof(ferry_side_box), NULL, 0, 0, {0}, {0}, 0, {0},                                      \
        {                                                                                          \
            {                                                                                      \
                0, {0}, 0                                                                          \
            }                                                                                      \
        }                                                                                          \
    }

/* Says that a box of a tensor lies in a parameter. */
FERRY_API ferry_status ferry_side_add_box(ferry_side *side, size_t parameter,
                                          const ferry_side_box *box, ferry_error *error);

/*
 * Elements of a destination's parameter that no tensor gives. bits: 8 bytes, of which the first are
 * an element as it lies in memory (of f4, two alike) and the rest says nothing; NULL: zero. An
 * element may have up to 8 bytes.
 */
FERRY_API ferry_status ferry_side_add_fill(ferry_side *side, size_t parameter, uint32_t n_dims,
                                           uint64_t offset, const uint64_t *shape,
                                           const uint64_t *strides, const unsigned char *bits,
                                           ferry_error *error);

/* How many parameters a side has, whatever their ranks. */
FERRY_API size_t ferry_side_parameter_count(const ferry_side *side);

/* Writes the value of "source" or "destination" in ferry.spec/1. */
FERRY_API ferry_status ferry_side_write_json(const ferry_side *side, ferry_write_fn write,
                                             void *context, ferry_error *error);

/*
 * Reads what ferry_side_write_json writes. Parameters without ranks are those of the rank that
 * ferry_spec_exchange is called by. name begins the sentences about what is wrong.
 */
FERRY_API ferry_status ferry_side_parse(const char *text, size_t text_bytes, const char *name,
                                        ferry_side **side_out, ferry_error *error);

/*
 * A spec of the tensors of a base, or of the two sides where base is NULL, with these sides in
 * place of its own; a side of NULL is the base's, which must then be there. Sides are copied.
 */
FERRY_API ferry_status ferry_spec_create(const ferry_spec *base, const ferry_side *source,
                                         const ferry_side *destination, ferry_spec **spec_out,
                                         ferry_error *error);

/*
 * The same for ranks that each know only themselves: sides have parameters without ranks. Every
 * rank calls, with the same base, and with NULL for a side that it has nothing of; all get the same
 * spec, and fail together. Whatever ranks have alike is told once. A side of which no rank has
 * anything is the base's.
 */
FERRY_API ferry_status ferry_spec_exchange(const ferry_spec *base, const ferry_side *source,
                                           const ferry_side *destination,
                                           const ferry_exchange *exchange, ferry_spec **spec_out,
                                           ferry_error *error);

FERRY_END_DECLS

#endif
