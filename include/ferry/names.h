/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_NAMES_H
#define FERRY_NAMES_H

#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/map.h>
#include <ferry/side.h>
#include <ferry/spec.h>
#include <ferry/status.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * What the tensors of a model are called, and how they are cut and joined, in each of several
 * namings: "hf" (files of Hugging Face), "transformers" (its models in memory), "megatron",
 * "megatron-local" (Megatron-Core with and without Transformer Engine), "vllm". The rules of a
 * family of models are data, ferry.names/1 (docs/formats.md); shapes come from config.json.
 *
 * Made and used by one thread at a time. Texts that it hands out live as long as it does.
 */
typedef struct ferry_names ferry_names;

typedef struct ferry_names_options {
    size_t struct_size;
    const char *config; /* the text of config.json, which must be there */
    size_t config_length;
    const char *source_name; /* what begins sentences about the model; default "the model" */
    const char *family; /* a ferry.names/1 text; NULL: the built-in one of config's model_type */
    size_t family_length;
    ferry_dtype dtype; /* of tensors that nobody has seen; kind 0: what config.json says, or bf16 */
} ferry_names_options;

#define FERRY_NAMES_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(ferry_names_options), NULL, 0, NULL, NULL, 0,                                       \
        {                                                                                          \
            0, 0                                                                                   \
        }                                                                                          \
    }

/* FERRY_ERR_INVALID_INPUT if no family has the model_type, or config.json lacks a number. */
FERRY_API ferry_status ferry_names_create(const ferry_names_options *options,
                                          ferry_names **names_out, ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_names_destroy(ferry_names *names);

/* The built-in families: how many. */
FERRY_API size_t ferry_names_family_count(void);
/* The name of one and its text in ferry.names/1; NULL beyond the last. text_out may be NULL. */
FERRY_API const char *ferry_names_family_at(size_t index, const char **text_out);

/* How many namings the family has. */
FERRY_API size_t ferry_names_naming_count(const ferry_names *names);
/* The name of one; NULL beyond the last. */
FERRY_API const char *ferry_names_naming_at(const ferry_names *names, size_t index);

/* How many tensors the model has in a naming. */
FERRY_API ferry_status ferry_names_get_tensor_count(ferry_names *names, const char *naming,
                                                    size_t *count_out, ferry_error *error);
/* Fills *tensor_out, made with its _INIT value, with one of them; n_boxes stays 0. */
FERRY_API ferry_status ferry_names_tensor_at(ferry_names *names, const char *naming, size_t index,
                                             ferry_map_tensor *tensor_out, ferry_error *error);

/*
 * The naming that has the most of these tensors, the first of several: "hf", if it has them all.
 * FERRY_ERR_INVALID_INPUT if none has any.
 */
FERRY_API ferry_status ferry_names_find_naming(ferry_names *names, const char *const *tensors,
                                               size_t n_tensors, const char **naming_out,
                                               ferry_error *error);

/*
 * There is such a tensor in this naming. FERRY_ERR_INVALID_INPUT if no rule covers the name, or its
 * shape is not what config.json makes of it. Its type is that of maps from then on.
 */
FERRY_API ferry_status ferry_names_see(ferry_names *names, const char *naming, const char *tensor,
                                       ferry_dtype dtype, uint32_t n_dims, const uint64_t *shape,
                                       ferry_error *error);
/*
 * All have been seen that there are: FERRY_ERR_INVALID_INPUT names one that the model must have and
 * that nobody saw. What it may have and was not seen (layers that predict further tokens) is left
 * out of maps.
 */
FERRY_API ferry_status ferry_names_check_seen(ferry_names *names, const char *naming,
                                              ferry_error *error);

/*
 * A tensor of one naming of which another has nothing, or not all: maps to that leave it out, such
 * as those to vLLM the layers that predict further tokens. By number; *tensor_out is NULL behind
 * the last. It lives as long as the names.
 */
FERRY_API ferry_status ferry_names_left_out_at(ferry_names *names, const char *from, const char *to,
                                               size_t index, const char **tensor_out,
                                               ferry_error *error);

/*
 * How the tensors of one naming are made of those of another. FERRY_ERR_UNSUPPORTED where a tensor
 * is transposed, which a map cannot say: a side can.
 */
FERRY_API ferry_status ferry_names_get_map(ferry_names *names, const char *from, const char *to,
                                           ferry_map **map_out, ferry_error *error);

/* The same as a side in boxes: whole tensors of `to`, as parameters of each of these ranks. */
FERRY_API ferry_status ferry_names_get_side(ferry_names *names, const char *from, const char *to,
                                            const uint32_t *ranks, size_t n_ranks,
                                            ferry_side **side_out, ferry_error *error);

/*
 * The spec of a model that goes from ranks that hold it in one naming to ranks that want it in
 * another, cut by short forms such as "tp=4,pp=2" (NULL or "": one rank has all). Ranks of the
 * destination begin at first_rank. The namings may be the same. Where tensors are transposed on the
 * way, the side of the one rank that has all is in boxes; if both are cut, that is
 * FERRY_ERR_UNSUPPORTED.
 */
FERRY_API ferry_status ferry_names_get_spec(ferry_names *names, const char *from,
                                            const char *source, const char *to,
                                            const char *destination, uint32_t first_rank,
                                            ferry_spec **spec_out, ferry_error *error);

FERRY_END_DECLS

#endif
