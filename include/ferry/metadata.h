/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_METADATA_H
#define FERRY_METADATA_H

#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/group.h>
#include <ferry/limits.h>
#include <ferry/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * What one rank knows of one of its parameters, and needs to tell about it: the counterpart of the
 * reference's ParameterMetadata. A plain value: it borrows its texts, lists and groups, which must
 * live while it is used; ferry_model_add copies them.
 */
typedef struct ferry_param_metadata {
    size_t struct_size;
    const char *name;
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS]; /* of the local shard */
    ferry_dtype dtype;              /* its element_bits are the reference's element_size x 8 */
    bool is_tp;
    uint32_t partition_dim;
    uint64_t partition_stride;
    bool is_ep;
    bool has_num_experts;
    uint64_t num_experts; /* in the whole model */
    uint32_t owner_rank;
    ferry_group *tensor_parallel_group_ranks; /* NULL: not known */
    ferry_group *expert_parallel_group_ranks;
    ferry_group *data_parallel_group_ranks;
    ferry_group *pipeline_parallel_group_ranks;
    const char *resolved_name; /* NULL: the name */
    bool has_global_expert_index;
    uint64_t global_expert_index;
    /*
     * Packed blocks: the lengths, along partition_dim, of the components that this shard
     * concatenates, each cut by itself over the tensor-parallel ranks. NULL: one component. They
     * sum to the shard's length.
     */
    const uint64_t *partition_sizes;
    size_t n_partition_sizes;
} ferry_param_metadata;

#define FERRY_PARAM_METADATA_INIT                                                                  \
    {                                                                                              \
        sizeof(ferry_param_metadata), NULL, 0, {0}, {0, 0}, false, 0, 1, false, false, 0, 0, NULL, \
            NULL, NULL, NULL, NULL, false, 0, NULL, 0                                              \
    }

/*
 * The expert index in the name of a per-expert tensor: K of a dotted part that is exactly weight<K>
 * or bias<K>. *found_out is false for every other name. An index beyond 64 bits is an error.
 */
FERRY_API ferry_status ferry_param_detect_expert_index(const char *param_name, bool *found_out,
                                                       uint64_t *index_out, ferry_error *error);

/* From module prefixes of this pipeline stage ("decoder.layers.0") to global ones. */
typedef struct ferry_prefix_map ferry_prefix_map;

/* An empty map. */
FERRY_API ferry_status ferry_prefix_map_create(ferry_prefix_map **map_out, ferry_error *error);
/* Both are whole dotted parts. The same local prefix twice is an error. */
FERRY_API ferry_status ferry_prefix_map_add(ferry_prefix_map *map, const char *local_prefix,
                                            const char *global_prefix, ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_prefix_map_destroy(ferry_prefix_map *map);

/*
 * Gives the parameter its name in the whole model: the longest prefix of the map (NULL: none) is
 * replaced, then, with expert parallelism, a per-expert index by the global one, which is also
 * stored. The name is written to buffer, for which FERRY_NAME_BYTES are enough, and
 * metadata->resolved_name points there.
 */
FERRY_API ferry_status ferry_param_metadata_resolve_name(ferry_param_metadata *metadata,
                                                         const ferry_prefix_map *map, char *buffer,
                                                         size_t buffer_bytes, ferry_error *error);

/* A parameter as a framework shows it, for ferry_param_metadata_extract. */
typedef struct ferry_param_description {
    size_t struct_size;
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    ferry_dtype dtype;
    bool tensor_model_parallel;
    bool has_partition_dim;
    uint32_t partition_dim;
    bool has_partition_stride;
    uint64_t partition_stride;
    /* False for what is not reduced over data parallel ranks: that marks expert parameters. */
    bool allreduce;
    const uint64_t *partition_sizes;
    size_t n_partition_sizes;
} ferry_param_description;

#define FERRY_PARAM_DESCRIPTION_INIT                                                               \
    {                                                                                              \
        sizeof(ferry_param_description), 0, {0}, {0, 0}, false, false, 0, false, 1, true, NULL, 0  \
    }

/* The groups that a rank is in. NULL: it is in no such group. */
typedef struct ferry_process_groups {
    size_t struct_size;
    ferry_group *tensor_parallel;
    ferry_group *expert_tensor_parallel;
    ferry_group *expert_parallel;
    ferry_group *data_parallel;
    ferry_group *pipeline_parallel; /* NULL: the whole world */
    ferry_group *world;
} ferry_process_groups;

#define FERRY_PROCESS_GROUPS_INIT                                                                  \
    {                                                                                              \
        sizeof(ferry_process_groups), NULL, NULL, NULL, NULL, NULL, NULL                           \
    }

/*
 * Metadata from a description of the parameter and its rank's groups. num_experts may be NULL: not
 * given. *metadata_out was made with its _INIT value; it borrows name, groups and lists. Resolve
 * its name before planning with it.
 */
FERRY_API ferry_status ferry_param_metadata_extract(const ferry_param_description *param,
                                                    const char *param_name, uint32_t owner_rank,
                                                    const ferry_process_groups *groups,
                                                    const uint64_t *num_experts,
                                                    ferry_param_metadata *metadata_out,
                                                    ferry_error *error);

/*
 * The reference's choice of a source among those that hold the same parameter: sources are bucketed
 * by DP group; with one bucket its first entry, else bucket number (index of dst_rank in the
 * destination's DP group, 0 if it is no member) mod n in the order of the groups' rank tuples,
 * first entry.
 */
FERRY_API ferry_status
ferry_param_metadata_select_source(const ferry_param_metadata *const *sources, size_t n_sources,
                                   const ferry_param_metadata *destination, uint32_t dst_rank,
                                   size_t *chosen_out, ferry_error *error);

/* All parameters of one rank's model, in their order. Not thread safe while it is filled. */
typedef struct ferry_model ferry_model;

/* A model without parameters. */
FERRY_API ferry_status ferry_model_create(ferry_model **model_out, ferry_error *error);
/* Copies the metadata; groups are retained. Persistent buffers are added like parameters. */
FERRY_API ferry_status ferry_model_add(ferry_model *model, const ferry_param_metadata *metadata,
                                       ferry_error *error);
/* How many parameters were added. */
FERRY_API size_t ferry_model_count(const ferry_model *model);
/* Fills *metadata_out, made with its _INIT value; what it borrows lives until the model is
 * destroyed. */
FERRY_API ferry_status ferry_model_at(const ferry_model *model, size_t index,
                                      ferry_param_metadata *metadata_out, ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_model_destroy(ferry_model *model);

FERRY_END_DECLS

#endif
