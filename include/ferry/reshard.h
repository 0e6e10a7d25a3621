/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_RESHARD_H
#define FERRY_RESHARD_H

#include <ferry/export.h>
#include <ferry/group.h>
#include <ferry/metadata.h>
#include <ferry/plan.h>
#include <ferry/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * Planning from what each rank says of its own parameters: the reference planner's functions. The
 * same layouts described by a ferry_spec give the same plan. Checkpoints on disk are resharded by
 * ferry_reshard_run of checkpoint.h.
 */

/* [begin, begin + length) of one dimension. */
typedef struct ferry_slice {
    uint64_t begin;
    uint64_t length;
} ferry_slice;

/* One half of a move, as one of its two ranks sees it. */
typedef struct ferry_transfer_op {
    size_t struct_size;
    const char *param_name; /* lives as long as the plan */
    uint32_t peer_rank;
    bool is_send;
    uint32_t n_dims;
    ferry_slice my_slice[FERRY_MAX_DIMS]; /* in this rank's shard */
    uint32_t peer_n_dims;                 /* differs from n_dims only where tensors are stacked */
    ferry_slice peer_slice[FERRY_MAX_DIMS];
    bool has_task_id;
    uint64_t task_id;
    uint64_t bytes;
    const char *source_name; /* of the tensor it comes from, where that is another; else NULL */
} ferry_transfer_op;

#define FERRY_TRANSFER_OP_INIT                                                                     \
    {                                                                                              \
        sizeof(ferry_transfer_op), NULL, 0, false, 0, {{0, 0}}, 0, {{0, 0}}, false, 0, 0, NULL     \
    }

/* How one dimension of a parameter is cut on both sides. The lists are retained groups. */
typedef struct ferry_sharding_descriptor {
    size_t struct_size;
    const char *name; /* "tp" */
    uint32_t dim;
    uint64_t src_stride;
    uint64_t dst_stride;
    const ferry_group *src_dim_ranks; /* borrowed from the metadata */
    const ferry_group *dst_dim_ranks;
} ferry_sharding_descriptor;

#define FERRY_SHARDING_DESCRIPTOR_INIT                                                             \
    {                                                                                              \
        sizeof(ferry_sharding_descriptor), NULL, 0, 1, 1, NULL, NULL                               \
    }

/*
 * The descriptors of a parameter, at most one, in *descriptor_out, which was made with its _INIT
 * value: *n_out is 0 when neither side is TP, or when a group is not known. Source ranks x local
 * length must equal destination ranks x local length, else FERRY_ERR_INVALID_PLAN: a replicated
 * tensor must not pass as sharded.
 */
FERRY_API ferry_status ferry_sharding_descriptor_build(const ferry_param_metadata *src,
                                                       const ferry_param_metadata *dst,
                                                       ferry_sharding_descriptor *descriptor_out,
                                                       size_t *n_out, ferry_error *error);

/* What one rank receives of one parameter: from which rank, and the slices on both sides. */
typedef struct ferry_transfers ferry_transfers;

typedef struct ferry_transfer {
    size_t struct_size;
    uint32_t src_rank;
    uint32_t n_dims;
    ferry_slice src_slice[FERRY_MAX_DIMS]; /* in the sender's shard */
    ferry_slice dst_slice[FERRY_MAX_DIMS]; /* in the receiver's */
} ferry_transfer;

#define FERRY_TRANSFER_INIT                                                                        \
    {                                                                                              \
        sizeof(ferry_transfer), 0, 0, {{0, 0}},                                                    \
        {                                                                                          \
            {                                                                                      \
                0, 0                                                                               \
            }                                                                                      \
        }                                                                                          \
    }

/* How many transfers there are. */
FERRY_API size_t ferry_transfers_count(const ferry_transfers *transfers);
/* A transfer, by number. */
FERRY_API ferry_status ferry_transfers_at(const ferry_transfers *transfers, size_t index,
                                          ferry_transfer *transfer_out, ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_transfers_destroy(ferry_transfers *transfers);

/*
 * A parameter that a side cuts: exactly one descriptor is needed. Each side is cut along its own
 * partition_dim, with its stride or packed blocks; slices are maximal contiguous runs, in order of
 * the destination. my_rank must be in the destination's group.
 */
FERRY_API ferry_status ferry_transfers_plan_lcm(
    const char *param_name, const ferry_param_metadata *src, const ferry_param_metadata *dst,
    const ferry_sharding_descriptor *descriptors, size_t n_descriptors, uint32_t my_rank,
    ferry_transfers **transfers_out, ferry_error *error);

/*
 * A parameter that no side cuts, of equal shapes: nothing for a rank outside the destination's DP
 * group; a local copy for a rank of the source's DP group, which has it already; else from source
 * DP rank number (my_rank mod size).
 */
FERRY_API ferry_status ferry_transfers_finalize_dp(
    const char *param_name, const ferry_param_metadata *src, const ferry_param_metadata *dst,
    uint32_t my_rank, ferry_transfers **transfers_out, ferry_error *error);

/* Chooses between the two; a parameter that is TP on a side but has no descriptor is refused. */
FERRY_API ferry_status ferry_transfers_find_sources(
    const char *param_name, const ferry_param_metadata *src, const ferry_param_metadata *dst,
    uint32_t my_rank, ferry_transfers **transfers_out, ferry_error *error);

/* What every rank has: its source and destination models, each of which may be missing. */
typedef struct ferry_roster ferry_roster;

/* A roster of n_ranks ranks, which have no models yet. */
FERRY_API ferry_status ferry_roster_create(uint32_t n_ranks, ferry_roster **roster_out,
                                           ferry_error *error);
/*
 * Each rank at most once, and before the roster is planned for the first time: from then on it
 * stays what it is, as its plans do. Either model may be NULL. The models are copied.
 */
FERRY_API ferry_status ferry_roster_set(ferry_roster *roster, uint32_t rank,
                                        const ferry_model *src_model, const ferry_model *dst_model,
                                        ferry_error *error);
/* NULL is allowed. Plans that were made of it stay. */
FERRY_API void ferry_roster_destroy(ferry_roster *roster);

/* Plans a roster, as ferry_plan_create does a spec. */
FERRY_API ferry_status ferry_plan_create_from_roster(const ferry_roster *roster,
                                                     const ferry_plan_options *options,
                                                     ferry_plan **plan_out, ferry_error *error);

/* The ops of one rank: the reference's ReshardPlan. Both lists are in order of task ids. */
typedef struct ferry_reshard_plan ferry_reshard_plan;

/* One rank's part of a plan; a self move is both a send and a receive. */
FERRY_API ferry_status ferry_reshard_plan_create(const ferry_plan *plan, uint32_t rank,
                                                 ferry_reshard_plan **reshard_plan_out,
                                                 ferry_error *error);
/* How many ops this rank sends. */
FERRY_API size_t ferry_reshard_plan_send_count(const ferry_reshard_plan *plan);
/* How many ops this rank receives. */
FERRY_API size_t ferry_reshard_plan_receive_count(const ferry_reshard_plan *plan);
/* op_out starts as FERRY_TRANSFER_OP_INIT; its texts live as long as the plan of this rank. */
FERRY_API ferry_status ferry_reshard_plan_send_at(const ferry_reshard_plan *plan, size_t index,
                                                  ferry_transfer_op *op_out, ferry_error *error);
/* The same of what this rank receives. */
FERRY_API ferry_status ferry_reshard_plan_receive_at(const ferry_reshard_plan *plan, size_t index,
                                                     ferry_transfer_op *op_out, ferry_error *error);
/* The digest of the whole plan, equal on all ranks: see ferry_plan_digest. */
FERRY_API size_t ferry_reshard_plan_digest(const ferry_reshard_plan *plan, char *text,
                                           size_t text_bytes);

/*
 * Writes "ReshardPlan(sends=2, receives=3, send_bytes=64, receive_bytes=96)" to text, cut to fit,
 * and returns the full length without the ending zero: the form of snprintf.
 */
FERRY_API size_t ferry_reshard_plan_describe(const ferry_reshard_plan *plan, char *text,
                                             size_t text_bytes);
/* NULL is allowed. */
FERRY_API void ferry_reshard_plan_destroy(ferry_reshard_plan *plan);

/*
 * The caller's way to talk to the other ranks: every rank calls with its own bytes, of any length.
 * all_gather returns everybody's, concatenated in rank order, with n_ranks lengths; gather does so
 * on rank 0 only; scatter gives each rank its piece of what rank 0 has. Memory that a function
 * hands out stays valid until the next call of the exchange. Each returns 0, or anything else for a
 * failure. gather and scatter are optional: without them centralized planning uses all_gather for
 * both.
 */
typedef struct ferry_exchange {
    size_t struct_size;
    void *context;
    uint32_t rank;
    uint32_t n_ranks;
    int (*all_gather)(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out);
    int (*gather)(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                  const size_t **lengths_out);
    int (*scatter)(void *context, const void *all, const size_t *lengths, const void **mine_out,
                   size_t *n_bytes_out);
} ferry_exchange;

#define FERRY_EXCHANGE_INIT                                                                        \
    {                                                                                              \
        sizeof(ferry_exchange), NULL, 0, 0, NULL, NULL, NULL                                       \
    }

/*
 * Centralized: rank 0 gathers what every rank has, plans, and scatters each rank's ops. Either
 * model may be NULL, on any rank. num_experts may be NULL; it fills in what the metadata leaves
 * open. All ranks fail together, with the same sentence.
 */
FERRY_API ferry_status ferry_reshard_plan_build_centralized(
    const ferry_model *src_model, const ferry_model *dst_model, const uint64_t *num_experts,
    const ferry_exchange *exchange, const ferry_plan_options *options,
    ferry_reshard_plan **plan_out, ferry_error *error);

/*
 * Local: every rank gathers the compact descriptions and derives its own plan. Same ids, same
 * digest. options must be the same on all ranks, else FERRY_ERR_INVALID_INPUT names the first that
 * has others than rank 0. (Centralized, those of rank 0 count.)
 */
FERRY_API ferry_status ferry_reshard_plan_build_local(
    const ferry_model *src_model, const ferry_model *dst_model, const uint64_t *num_experts,
    const ferry_exchange *exchange, const ferry_plan_options *options,
    ferry_reshard_plan **plan_out, ferry_error *error);

FERRY_END_DECLS

#endif
