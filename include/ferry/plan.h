/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_PLAN_H
#define FERRY_PLAN_H

#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/limits.h>
#include <ferry/spec.h>
#include <ferry/status.h>
#include <ferry/writer.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * A plan says which box of which tensor goes from which rank to which. It is a function of its
 * inputs alone: every rank that makes it gets the same moves, task ids and digest. It keeps layout
 * classes, not moves: moves are made while they are visited, and a plan of thousands of ranks is
 * small. A plan is immutable; several threads may use it.
 */
typedef struct ferry_plan ferry_plan;

/* How to choose among source ranks that hold the same bytes. */
typedef enum ferry_replica_policy {
    /* The busiest sender sends as little as possible; a rank that has the bytes keeps them. */
    FERRY_REPLICA_BALANCED = 0,
    /* The rule of the reference planner; appending destination ranks keeps existing task ids. */
    FERRY_REPLICA_SEED = 1
} ferry_replica_policy;

typedef struct ferry_plan_options {
    size_t struct_size;
    uint32_t replica; /* a ferry_replica_policy */
    /*
     * Only these destination tensors: patterns (* any text, ? one byte) with commas between them. A
     * name is in if it fits one and none of those behind a '!'; where all have a '!', every other
     * name is in. Each pattern must fit a tensor, but for one alone without a '!': the plan is then
     * empty. NULL: all.
     */
    const char *subset;
    /*
     * Ranks that are gone: nothing comes from them and nothing goes to them; what they alone held
     * is FERRY_ERR_INVALID_PLAN, which names the tensor, the slice and the rank. Those behind the
     * plan's last rank, in a world that has more, do not count. NULL: none.
     */
    const uint32_t *lost_ranks;
    size_t n_lost_ranks;
} ferry_plan_options;

#define FERRY_PLAN_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(ferry_plan_options), FERRY_REPLICA_BALANCED, NULL, NULL, 0                          \
    }

/*
 * A subset, as in ferry_plan_options, for callers that list tensors themselves. It is made once and
 * asked for each name, so both lists may be long.
 */
typedef struct ferry_subset ferry_subset;

/* list is copied; NULL: every name is in. */
FERRY_API ferry_status ferry_subset_create(const char *list, ferry_subset **subset_out,
                                           ferry_error *error);
FERRY_API void ferry_subset_destroy(ferry_subset *subset); /* NULL is allowed */
/* Whether the subset has this name. Of NULL for either: the name is in, or is not. */
FERRY_API bool ferry_subset_has(const ferry_subset *subset, const char *name);

/* Name i of those that there are; NULL fits nothing. */
typedef const char *(*ferry_subset_name_fn)(const void *context, size_t i);
/*
 * FERRY_ERR_INVALID_INPUT, with the pattern, where one fits none of n names: it is misspelt, and
 * nothing else would show it. One that stands alone and has no '!' may fit none.
 */
FERRY_API ferry_status ferry_subset_check(ferry_subset *subset, size_t n, ferry_subset_name_fn name,
                                          const void *context, ferry_error *error);

/* What becomes of elements on their way. */
typedef enum ferry_conversion_kind {
    FERRY_CONVERSION_CAST = 1,       /* each element by itself */
    FERRY_CONVERSION_CODES = 2,      /* values become codes, whose blocks share a scale */
    FERRY_CONVERSION_SCALES = 3,     /* values become the scales of their blocks */
    FERRY_CONVERSION_DEQUANTIZE = 4, /* codes become values again, by scales beside them */
} ferry_conversion_kind;

/*
 * How the elements of a move are converted. Of a cast: an element x of the sender's type becomes
 * the f32 v nearest to it; with a scale that is not 1, v becomes the f32 nearest to v x scale, and
 * with an add that is not 0, that nearest to v + add; and the result is the nearest to v in the
 * receiver's type. Ties go to the even one, each time. What is too large becomes infinite (in
 * f8e4m3, NaN), or the largest number where it saturates.
 */
typedef struct ferry_conversion {
    uint32_t kind;    /* a ferry_conversion_kind */
    bool at_receiver; /* who computes it; of casts what travels is of the type with fewer bits, of
                         codes the values if the receiver makes them, and of its scales nothing */
    bool saturates;
    float scale; /* 1: none */
    float add;   /* 0: none */
    /* Of blocks: who shares a scale is so many rows and columns of the last two dimensions. */
    ferry_dtype code_dtype;
    ferry_dtype scale_dtype;
    uint32_t scale_rule; /* 0: the largest over the codes' largest; 1: the least power of two that
                            covers it; 2: that of the microscaling formats */
    uint64_t block[2];
} ferry_conversion;

/* One box of one tensor from one rank to another, or to itself. */
typedef struct ferry_move {
    uint64_t task_id;
    const char *tensor;
    const char *source; /* the tensor that it is fed from, where the spec names one; that of which
                           scales are made, or that has them; else NULL */
    ferry_dtype dtype;  /* of what travels, and what bytes counts */
    uint32_t from;
    uint32_t to;
    uint32_t n_dims;                    /* of the receiver's shard */
    uint64_t dst_begin[FERRY_MAX_DIMS]; /* in the receiver's local shard */
    uint64_t length[FERRY_MAX_DIMS];
    /*
     * The same for the sender's shard. It differs where tensors are stacked: the lengths are those
     * of the receiver with leading ones added or taken away. Of scales it is the box of the values.
     */
    uint32_t src_n_dims;
    uint64_t src_begin[FERRY_MAX_DIMS];
    uint64_t src_length[FERRY_MAX_DIMS];
    uint64_t bytes;
    /*
     * Where a side is in boxes: the rank's parameter that the box lies in. Element i of the box is
     * element offset + i[0] strides[0] + i[1] strides[1] ... of it; strides are those of src_length
     * and of length, and begins are 0. NULL: the side is a mesh.
     */
    const char *src_parameter;
    const char *dst_parameter;
    uint64_t src_offset;
    uint64_t dst_offset;
    uint64_t src_strides[FERRY_MAX_DIMS];
    uint64_t dst_strides[FERRY_MAX_DIMS];
    /*
     * As the sender has the elements, and as the receiver wants them; all numbers above count
     * elements, so they hold at both ends. NULL: elements are copied, and the types are one.
     */
    ferry_dtype src_dtype;
    ferry_dtype dst_dtype;
    const ferry_conversion *conversion; /* lives as long as the plan */
    /*
     * Of codes of f4 and their scales: the tensor with an f32 for each matrix, of which whoever
     * makes them has those of its own, in their order. NULL: it takes none.
     */
    const char *tensor_scale;
} ferry_move;

typedef struct ferry_plan_totals {
    size_t struct_size;
    uint64_t n_moves;
    uint64_t moved_bytes; /* between ranks */
    uint64_t local_bytes; /* from a rank to itself */
} ferry_plan_totals;

#define FERRY_PLAN_TOTALS_INIT                                                                     \
    {                                                                                              \
        sizeof(ferry_plan_totals), 0, 0, 0                                                         \
    }

typedef struct ferry_rank_bytes {
    size_t struct_size;
    uint64_t in;
    uint64_t out;
    uint64_t local;
    uint64_t n_moves; /* moves that this rank receives, self moves included */
} ferry_rank_bytes;

#define FERRY_RANK_BYTES_INIT                                                                      \
    {                                                                                              \
        sizeof(ferry_rank_bytes), 0, 0, 0, 0                                                       \
    }

/* Which limit decides the lower bound of a plan. */
typedef enum ferry_bound_reason {
    FERRY_BOUND_NONE = 0, /* nothing travels */
    FERRY_BOUND_EGRESS = 1,
    FERRY_BOUND_INGRESS = 2,
    FERRY_BOUND_NODE_EGRESS = 3,
    FERRY_BOUND_NODE_INGRESS = 4
} ferry_bound_reason;

/* No plan without relays can be faster on this cluster, whichever replicas it chose. */
typedef struct ferry_plan_bound {
    size_t struct_size;
    uint32_t reason;  /* a ferry_bound_reason */
    uint32_t rank;    /* the rank that decides; of a node, its first */
    bool has_seconds; /* false without a cluster */
    double seconds;
    double
        busiest_bytes; /* the least that the busiest sender can send, with any choice of replicas */
} ferry_plan_bound;

#define FERRY_PLAN_BOUND_INIT                                                                      \
    {                                                                                              \
        sizeof(ferry_plan_bound), 0, 0, false, 0, 0                                                \
    }

/* What planning touched: the cost of a rank's plan is its own moves + layout classes x peers. */
typedef struct ferry_plan_statistics {
    size_t struct_size;
    uint64_t n_tensors;        /* destination tensors in the plan */
    uint64_t n_layout_classes; /* distinct pairs of placements */
    uint64_t n_replica_sets;   /* distinct sets of ranks that hold the same bytes */
    uint64_t n_holder_entries; /* ranks, summed over the distinct tables of holders */
    uint64_t n_cuts;       /* places where the load of one replica set passes to the next rank */
    uint64_t n_flat_steps; /* boxes that were looked at where flat cuts divide shards */
} ferry_plan_statistics;

#define FERRY_PLAN_STATISTICS_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_plan_statistics), 0, 0, 0, 0, 0, 0                                            \
    }

/*
 * Plans a spec. FERRY_ERR_INVALID_PLAN or FERRY_ERR_INVALID_INPUT name the tensor, the side and the
 * numbers; a plan that moves and copies nothing at all is FERRY_ERR_INVALID_PLAN. options may be
 * NULL.
 */
FERRY_API ferry_status ferry_plan_create(const ferry_spec *spec, const ferry_plan_options *options,
                                         ferry_plan **plan_out, ferry_error *error);

/* NULL is allowed. */
FERRY_API void ferry_plan_destroy(ferry_plan *plan);

/* The world is 0 .. size - 1: ranks without any tensor are in it too. */
FERRY_API uint32_t ferry_plan_rank_count(const ferry_plan *plan);

/* Is handed ranks first .. first + n_ranks - 1; anything but FERRY_OK ends the visit. */
typedef ferry_status (*ferry_idle_visitor)(void *context, uint32_t first, uint32_t n_ranks);
/*
 * Visits the ranks of the world that have no part of any tensor, on neither side, ascending and
 * neighbours at once: nothing of such a rank is read or written. Lost ranks are not among them.
 */
FERRY_API ferry_status ferry_plan_visit_idle(const ferry_plan *plan, ferry_idle_visitor visitor,
                                             void *context, ferry_error *error);

/*
 * Writes the digest of the placements, the policy, the subset and the planner's version, 32 hex
 * digits (of no plan, zeros), to text, cut to fit, and returns 32: the form of snprintf.
 */
FERRY_API size_t ferry_plan_digest(const ferry_plan *plan, char *text, size_t text_bytes);

/* How many moves, and how many bytes they are. */
FERRY_API ferry_status ferry_plan_get_totals(const ferry_plan *plan, ferry_plan_totals *totals_out,
                                             ferry_error *error);
/* What one rank of the world sends, receives and keeps. */
FERRY_API ferry_status ferry_plan_get_rank_bytes(const ferry_plan *plan, uint32_t rank,
                                                 ferry_rank_bytes *bytes_out, ferry_error *error);
/* The lower bound of the time that the plan takes on its cluster, and what decides it. */
FERRY_API ferry_status ferry_plan_get_bound(const ferry_plan *plan, ferry_plan_bound *bound_out,
                                            ferry_error *error);
/* What the cost of planning depends on. */
FERRY_API ferry_status ferry_plan_get_statistics(const ferry_plan *plan,
                                                 ferry_plan_statistics *statistics_out,
                                                 ferry_error *error);

/*
 * Is handed each move; the move and its texts live until the call returns (the texts as long as the
 * plan). Anything but FERRY_OK ends the visit, which then returns that.
 */
typedef ferry_status (*ferry_move_visitor)(void *context, const ferry_move *move);

#define FERRY_ALL_RANKS UINT32_MAX

/* What a visit touched. n_peers: other ranks that this rank exchanges moves with. */
typedef struct ferry_visit_statistics {
    size_t struct_size;
    uint64_t n_peers;
    uint64_t n_layout_classes; /* those that the rank takes part in */
    uint64_t n_moves_visited;  /* handed over, and looked at on the way to a task id */
} ferry_visit_statistics;

#define FERRY_VISIT_STATISTICS_INIT                                                                \
    {                                                                                              \
        sizeof(ferry_visit_statistics), 0, 0, 0                                                    \
    }

/* "egress", "node_ingress", ...: the words of ferry.plan/1; "none" for any other number. */
FERRY_API const char *ferry_plan_bound_reason_name(uint32_t reason);

/*
 * Visits in order of task ids: the moves that rank sends or receives, or all with FERRY_ALL_RANKS.
 * The moves of other ranks are not made on the way. statistics_out may be NULL.
 */
FERRY_API ferry_status ferry_plan_visit(const ferry_plan *plan, uint32_t rank,
                                        ferry_move_visitor visitor, void *context,
                                        ferry_visit_statistics *statistics_out, ferry_error *error);

/* Elements of a destination's parameter that no tensor gives: its rank writes them itself. */
typedef struct ferry_fill {
    const char *parameter; /* lives as long as the plan */
    ferry_dtype dtype;
    uint32_t rank;
    uint32_t n_dims;
    uint64_t offset; /* in elements; strides as in ferry_move */
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t strides[FERRY_MAX_DIMS];
    unsigned char bits[8]; /* an element as it lies in memory; of f4, two alike */
    uint64_t bytes;
} ferry_fill;

/* Is handed each fill. Anything but FERRY_OK ends the visit, which then returns that. */
typedef ferry_status (*ferry_fill_visitor)(void *context, const ferry_fill *fill);

/* Visits the fills of rank, or of all ranks with FERRY_ALL_RANKS: by rank, parameter and offset. */
FERRY_API ferry_status ferry_plan_visit_fills(const ferry_plan *plan, uint32_t rank,
                                              ferry_fill_visitor visitor, void *context,
                                              ferry_error *error);

/*
 * What a rank computes of a tensor whose blocks share scales, and the memory that the copy service
 * takes for that beside the caller's: of a sender of codes the scales, as they are stored and as
 * divisors, or of f4 with the codes of its shard; of a receiver that multiplies codes their scales;
 * of a receiver that makes codes all of the values, of which it has a few bands of rows at once
 * where they come in order.
 */
typedef struct ferry_block_work {
    const char *tensor; /* that is codes, or values of codes, at the destination */
    bool dequantizes;
    bool at_receiver;
    uint32_t rank;
    uint64_t staging_bytes;
    const char *tensor_scale; /* as in ferry_move */
} ferry_block_work;

/* Anything but FERRY_OK ends the visit, which then returns that. */
typedef ferry_status (*ferry_block_work_visitor)(void *context, const ferry_block_work *work);

/*
 * Visits the tensors of the plan that are quantized or dequantized, in the order of the spec, and
 * of each the ranks that compute it, ascending: of senders all that have some of it.
 */
FERRY_API ferry_status ferry_plan_visit_block_work(const ferry_plan *plan,
                                                   ferry_block_work_visitor visitor, void *context,
                                                   ferry_error *error);

/* What to print of a plan. */
typedef struct ferry_plan_json_options {
    size_t struct_size;
    uint32_t rank; /* only this rank's moves, or FERRY_ALL_RANKS */
    bool summary;  /* no moves */
} ferry_plan_json_options;

#define FERRY_PLAN_JSON_OPTIONS_INIT                                                               \
    {                                                                                              \
        sizeof(ferry_plan_json_options), FERRY_ALL_RANKS, false                                    \
    }

/* Streams ferry.plan/1; options may be NULL. */
FERRY_API ferry_status ferry_plan_write_json(const ferry_plan *plan,
                                             const ferry_plan_json_options *options,
                                             ferry_write_fn write, void *context,
                                             ferry_error *error);

/*
 * Saves what the plan is made from and its digest, not its moves: small whatever the model's size.
 * Loading plans again and fails with FERRY_ERR_DIGEST if the outcome is not the plan that was
 * saved.
 */
FERRY_API ferry_status ferry_plan_save(const ferry_plan *plan, const char *path,
                                       ferry_error *error);
/* Reads a saved plan, and plans again: see above. */
FERRY_API ferry_status ferry_plan_load(const char *path, ferry_plan **plan_out, ferry_error *error);

FERRY_END_DECLS

#endif
