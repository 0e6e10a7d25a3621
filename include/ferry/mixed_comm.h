/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_MIXED_COMM_H
#define FERRY_MIXED_COMM_H

#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/memory.h>
#include <ferry/request.h>
#include <ferry/status.h>
#include <ferry/transport.h>
#include <ferry/world.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * The mixed collectives: sums over tensor-parallel ranks and concatenations over data-parallel
 * ones, fused, inside nodes and across them.
 *
 *     ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
 *     options.dtype         = FERRY_BF16;
 *     options.local_tp_size = 2;
 *     ferry_mixed_comm_create(world, &options, &comm, &error);
 *     ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &in, &out,
 *                          FERRY_MIXED_MODE_DEFAULT, NULL, &error);
 *     ferry_mixed_comm_destroy(comm);
 *
 * Collective calls are create, init_virtual_memory, init_nvshmem, run_autotune, run and start, and
 * shutdown: every rank makes them, in the same order and with the same arguments but for addresses.
 * A rank that does otherwise is detected, and every rank gets FERRY_ERR_MISUSE with a sentence that
 * says which rank called what; a rank that dies is FERRY_ERR_PEER_LOST on the others, and one that
 * makes no progress FERRY_ERR_TIMEOUT. After any of these the handle is broken: each call repeats
 * the sentence, and only destroy is left.
 *
 * A handle is used by one thread at a time: a second one gets FERRY_ERR_MISUSE. It holds a
 * reference to its world and its transport.
 */
typedef struct ferry_mixed_comm ferry_mixed_comm;

/*
 * Every operation, its number and its name. Lengths are those of the first dimension, B rows; dp
 * chunks, one for each data-parallel group.
 */
#define FERRY_MIXED_OP_MAP(X)                                                                      \
    X(ALL_REDUCE, 0, "all-reduce")                       /* B -> B, the sum over all ranks */      \
    X(ALL_GATHER, 1, "all-gather")                       /* B -> dp B, in the order of dp ranks */ \
    X(REDUCE_SCATTER, 2, "reduce-scatter")               /* dp B -> B, chunk dp_rank of the sum */ \
    X(ALL_REDUCE_ALL_GATHER, 3, "all-reduce-all-gather") /* B -> dp B: chunk k is the sum over the \
                                                            tensor-parallel ranks of group k */    \
    X(REDUCE_SCATTER_ALL_REDUCE, 4, "reduce-scatter-all-reduce") /* dp B -> B: chunk dp_rank of    \
                                                                    the sum over all ranks */

typedef enum ferry_mixed_op {
#define FERRY_MIXED_OP_ENUM(name, number, text) FERRY_MIXED_##name = number,
    FERRY_MIXED_OP_MAP(FERRY_MIXED_OP_ENUM)
#undef FERRY_MIXED_OP_ENUM
} ferry_mixed_op;
#define FERRY_MIXED_N_OPS 5

/*
 * Every mode, its number and its name: WAITS waits the fewest times, BYTES1 moves the fewest bytes
 * inside nodes, BYTES2 the fewest between nodes too. Multicast: what a rank writes once, all ranks
 * of its node read in place. Unicast: it writes to each of them. BASE: library collectives, over
 * the world, or over the tensor-parallel and over the data-parallel ranks.
 */
#define FERRY_MIXED_MODE_MAP(X)                                                                    \
    X(MODE_DEFAULT, 0, "default") /* AUTOTUNE if it is on, else BASE_TP_DP, else BASE_ONE, else    \
                                     (deterministic) the first of the list */                      \
    X(AUTOTUNE, 1, "autotune")    /* the fastest that was measured for this size */                \
    X(FUSED_WAITS_MULTICAST, 2, "fused-waits-multicast")                                           \
    X(FUSED_WAITS_UNICAST, 3, "fused-waits-unicast")                                               \
    X(FUSED_BYTES1_MULTICAST, 4, "fused-bytes1-multicast")                                         \
    X(FUSED_BYTES1_UNICAST, 5, "fused-bytes1-unicast")                                             \
    X(FUSED_BYTES2_MULTICAST, 6, "fused-bytes2-multicast")                                         \
    X(FUSED_BYTES2_UNICAST, 7, "fused-bytes2-unicast")                                             \
    X(BASE_ONE, 8, "base-one")                                                                     \
    X(BASE_TP_DP, 9, "base-tp-dp")

typedef enum ferry_mixed_mode {
#define FERRY_MIXED_MODE_ENUM(name, number, text) FERRY_MIXED_##name = number,
    FERRY_MIXED_MODE_MAP(FERRY_MIXED_MODE_ENUM)
#undef FERRY_MIXED_MODE_ENUM
} ferry_mixed_mode;
#define FERRY_MIXED_N_MODES 10

/* "all-gather", "fused-waits-unicast"; "" for a number that is none. */
FERRY_API const char *ferry_mixed_op_name(uint32_t op);
/* The same for a mode. */
FERRY_API const char *ferry_mixed_mode_name(uint32_t mode);
/* And back; case and '_' for '-' do not matter. FERRY_ERR_INVALID_INPUT names those that exist. */
FERRY_API ferry_status ferry_mixed_op_parse(const char *text, uint32_t *op_out, ferry_error *error);
/* The same for a mode. */
FERRY_API ferry_status ferry_mixed_mode_parse(const char *text, uint32_t *mode_out,
                                              ferry_error *error);

/*
 * A device that must be there for this rank's tensors, which say themselves where they lie: one
 * that cannot be had is refused when the handle is made, not at its first call. Where all ranks
 * name one, and these reach each other's memory, a kernel on it makes each call.
 */
typedef struct ferry_device {
    uint32_t kind; /* ferry_memory_kind */
    int32_t index; /* -1 on hosts; another one is refused by this version */
} ferry_device;

/* What a worker takes at a time: sizes of blocks count these. */
#define FERRY_MIXED_BLOCK_BYTES 256

/*
 * The constructor's parameters. Ranks and sizes: with world_size, local_size and inter_size all 0
 * they are the world's own, and the ranks are not looked at; else they say
 *
 *     world_rank = local_rank + inter_rank * local_size
 *
 * which is this rank's number in the world. Ranks of a node are those whose memory can be mapped;
 * where it cannot (a wrapped transport) only unicast modes are offered. Sizes of a level: none
 * given (0) means tp is all and dp is 1; one given, the other is the quotient.
 */
typedef struct ferry_mixed_comm_options {
    size_t struct_size;
    uint32_t world_rank, world_size;
    uint32_t local_rank, local_size; /* local_rank = local_tp_rank + local_dp_rank * local_tp */
    uint32_t inter_rank, inter_size; /* inter_rank = inter_tp_rank + inter_dp_rank * inter_tp */
    uint32_t local_tp_size, local_dp_size;
    uint32_t inter_tp_size, inter_dp_size;
    uint32_t dtype; /* ferry_dtype_kind: FERRY_F16, FERRY_BF16 or FERRY_F32 */
    ferry_device device;
    uint32_t grid_size;       /* lanes; 0: the usable cores for each rank of a node, at least 1; of
                                 kernels blocks, at most as many as the device runs at once; where
                                 a device is named and the host makes the calls, at most 16 */
    uint32_t max_block_size;  /* in FERRY_MIXED_BLOCK_BYTES; 0: what fits the staging memory */
    uint32_t min_block_size;  /* of a message of several steps */
    uint32_t min_num_steps;   /* of a message whose blocks are the largest possible */
    bool ib_enable_ibgda;     /* GPUs' own network access; hosts have none and ignore it */
    bool should_init_nvshmem; /* open the engine between nodes; else attach to `transport`, which
                                 the caller has opened */
    bool use_autotune;
    /* Beyond the constructor: */
    bool deterministic;         /* one tree of sums in all modes, sizes and runs */
    bool only_construct;        /* create opens nothing: the caller makes the init calls */
    ferry_transport *transport; /* default: the handle's own */
    const char *engines;        /* for that one: see ferry_transport_open */
    const char *tune_file;      /* a saved table; default FERRY_TUNE_FILE, or none */
    uint64_t autotune_bytes;    /* the largest piece that autotune measures; 0: 64 MiB */
    uint64_t staging_bytes;     /* the most staging memory of a rank, without multicast objects,
                                   which come on top; 0: by the topology */
    const char *refusal;        /* why this rank cannot take part, as a caller knows that looks at
                                   more than these: create fails on all ranks, who hear it */
} ferry_mixed_comm_options;

#define FERRY_MIXED_COMM_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(ferry_mixed_comm_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, FERRY_BF16,                \
            {FERRY_MEMORY_HOST, -1}, 0, 0, 256, 4, true, true, true, false, false, NULL, NULL,     \
            NULL, 0, 0, NULL                                                                       \
    }

/*
 * Collective: agrees with all ranks on the options, sets up memory inside nodes and the engine
 * between them, and runs autotune or loads its table. A parameter that does not fit, or differs
 * between ranks, is FERRY_ERR_INVALID_INPUT with the numbers, a dtype or device that this version
 * lacks is FERRY_ERR_UNSUPPORTED; both are found before anything is opened.
 */
FERRY_API ferry_status ferry_mixed_comm_create(ferry_world *world,
                                               const ferry_mixed_comm_options *options,
                                               ferry_mixed_comm **comm_out, ferry_error *error);

/*
 * The parts of create, for callers that want them one by one (only_construct). Each is collective,
 * and doing it twice has the effect of once. init_nvshmem opens what carries bytes between nodes:
 * on hosts that is UCX or, for nodes set by FERRY_NODES, whatever the transport has for these
 * ranks, and ferry_mixed_comm_get_info says so. With one node there is nothing to open.
 */
FERRY_API ferry_status ferry_mixed_comm_init_virtual_memory(ferry_mixed_comm *comm,
                                                            ferry_error *error);
/* Opens what carries bytes between nodes: see above. */
FERRY_API ferry_status ferry_mixed_comm_init_nvshmem(ferry_mixed_comm *comm, ferry_error *error);

/*
 * Collective: measures every (op, mode) at pieces of 8 KiB x 2^k and remembers which is the
 * fastest, and with which blocks. The slowest rank's time counts, so all ranks make the same
 * choice.
 */
FERRY_API ferry_status ferry_mixed_comm_run_autotune(ferry_mixed_comm *comm, ferry_error *error);

/*
 * Collective: frees memory and closes what was opened; only destroy may follow. Where other ranks
 * make another call on this handle all get FERRY_ERR_MISUSE, and the memory stays until destroy.
 */
FERRY_API ferry_status ferry_mixed_comm_shutdown(ferry_mixed_comm *comm, ferry_error *error);
/* Shuts down first if that was not done. NULL is allowed. */
FERRY_API void ferry_mixed_comm_destroy(ferry_mixed_comm *comm);

/*
 * The operations and modes of this topology: numbers of ferry_mixed_op, and of ferry_mixed_mode.
 * Every mode of the list works for every operation of the other; AUTOTUNE is among them once its
 * table exists. As many as there is room for are written; *n_out is how many there are, at most
 * FERRY_MIXED_N_OPS and FERRY_MIXED_N_MODES.
 */
FERRY_API ferry_status ferry_mixed_comm_get_valid_op_list(const ferry_mixed_comm *comm,
                                                          uint32_t *ops_out, size_t room,
                                                          size_t *n_out, ferry_error *error);
/* The modes that this topology offers: see above. */
FERRY_API ferry_status ferry_mixed_comm_get_valid_mode_list(const ferry_mixed_comm *comm,
                                                            uint32_t *modes_out, size_t room,
                                                            size_t *n_out, ferry_error *error);

/* `rows` rows of `columns` elements each, side by side, in a buffer of exactly as many bytes. */
typedef struct ferry_mixed_tensor {
    ferry_buffer buffer;
    uint64_t rows;
    uint64_t columns;
} ferry_mixed_tensor;

/*
 * One operation. out has the rows that the operation makes of those of in, and the same columns.
 * It may be in itself: for all-reduce the same memory; where one is dp times the other, the larger
 * one's chunk dp_rank. Any other overlap, an empty tensor, rows that dp does not divide, a pointer
 * that is not a multiple of the element's size, an operation or a mode that is not offered are
 * FERRY_ERR_INVALID_INPUT, and nothing was moved. Where all ranks are refused alike the handle goes
 * on; where one is, the others get FERRY_ERR_MISUSE, for they wait for a call that never began.
 *
 * Tensors may lie in memory of any kind, the two in different ones, and elsewhere on other ranks:
 * each buffer says where. What cannot be had is FERRY_ERR_UNSUPPORTED, what is not as the buffer
 * says FERRY_ERR_MISUSE.
 *
 * queue: NULL is host order, whatever the tensors' memory: the call returns when the output is
 * there. On a queue of a device, which must have access to both tensors, it returns at once; the
 * call begins when earlier work of the queue is done, later work of the queue begins when the
 * output is there, and ferry_queue_synchronize says what became of it. Ranks need not agree on
 * that. Until then the tensors' memory stays, and the handle is that queue's: a call on another
 * queue or in host order is FERRY_ERR_MISUSE, and destroy waits. Where a kernel makes the call of
 * tensors of its own device, nothing on the queue waits for the host (docs/collectives.md,
 * n_ahead).
 */
FERRY_API ferry_status ferry_mixed_comm_run(ferry_mixed_comm *comm, uint32_t op,
                                            const ferry_mixed_tensor *in,
                                            const ferry_mixed_tensor *out, uint32_t mode,
                                            ferry_queue *queue, ferry_error *error);

/*
 * The same, begun. In host order the bytes move within ferry_request_test and ferry_request_wait,
 * and while the rank waits for something else in this world, one call at a time; on a queue they
 * move in its order, and there may be as many requests as calls.
 */
FERRY_API ferry_status ferry_mixed_comm_start(ferry_mixed_comm *comm, uint32_t op,
                                              const ferry_mixed_tensor *in,
                                              const ferry_mixed_tensor *out, uint32_t mode,
                                              ferry_queue *queue, ferry_request **request_out,
                                              ferry_error *error);

/* The mode that AUTOTUNE takes for this input; local, nothing runs. */
FERRY_API ferry_status ferry_mixed_comm_select_autotune_mode(ferry_mixed_comm *comm, uint32_t op,
                                                             const ferry_mixed_tensor *in,
                                                             uint32_t *mode_out,
                                                             ferry_error *error);

/* Writes what autotune has measured to a file, whole or not at all; one rank is enough. */
FERRY_API ferry_status ferry_mixed_comm_save_tuning(const ferry_mixed_comm *comm, const char *path,
                                                    ferry_error *error);

/*
 * What was measured, in order of operations, sizes and modes: one entry for each.
 */
typedef struct ferry_mixed_timing {
    size_t struct_size;
    uint32_t op;
    uint32_t mode;
    uint64_t bytes;       /* of the local piece: the input; for reduce-scatter input / dp */
    uint32_t block_lines; /* of 64 bytes, that it was fastest with; 0: the default geometry's */
    double seconds;       /* of the slowest rank, the median; 0: left out, being far behind */
    bool chosen;          /* AUTOTUNE takes it for sizes near this one */
} ferry_mixed_timing;

#define FERRY_MIXED_TIMING_INIT                                                                    \
    {                                                                                              \
        sizeof(ferry_mixed_timing), 0, 0, 0, 0, 0, false                                           \
    }

/* How many timings there are; 0 before autotune. */
FERRY_API size_t ferry_mixed_comm_timing_count(const ferry_mixed_comm *comm);
/* A timing, by number. */
FERRY_API ferry_status ferry_mixed_comm_timing_at(const ferry_mixed_comm *comm, size_t index,
                                                  ferry_mixed_timing *timing_out,
                                                  ferry_error *error);

/* What this rank has done since it was created, or since the last reset: docs/collectives.md has
 * the formulas. */
typedef struct ferry_mixed_counts {
    size_t struct_size;
    uint64_t n_calls;
    uint64_t n_steps;              /* blocks, of all lanes */
    uint64_t n_waits;              /* of the lane that waited most, in its steps */
    uint64_t inside_bytes_written; /* for ranks of this node: once for each copy that is written */
    uint64_t inside_bytes_read; /* of what ranks of this node have written; sums that devices make
                                   of it on the way count as what comes */
    uint64_t between_bytes;     /* put to other nodes */
    uint64_t n_device_elements; /* of pieces that were copied or summed in memory of another kind */
    uint64_t n_ahead;           /* calls that kernels made on streams, ahead of the host, or in graphs */
} ferry_mixed_counts;

#define FERRY_MIXED_COUNTS_INIT                                                                    \
    {                                                                                              \
        sizeof(ferry_mixed_counts), 0, 0, 0, 0, 0, 0, 0, 0                                         \
    }

/* What this rank has done since then. */
FERRY_API ferry_status ferry_mixed_comm_get_counts(const ferry_mixed_comm *comm,
                                                   ferry_mixed_counts *counts_out,
                                                   ferry_error *error);
/* Counts from 0 again. */
FERRY_API ferry_status ferry_mixed_comm_reset_counts(ferry_mixed_comm *comm, ferry_error *error);

/*
 * The calls of a handle as they would be, without ranks: for what a choice comes to before anything
 * is started. It is of one rank, which the options name with the sizes of its world, node and
 * nodes; what they say of engines, tables and queues is not looked at, and grid_size 0 is one lane.
 */
typedef struct ferry_mixed_sketch ferry_mixed_sketch;

/* How a rank would reach the memory of the others of its node. */
typedef enum ferry_mixed_reach {
    FERRY_MIXED_REACH_NONE = 0, /* not at all: everything is put */
    FERRY_MIXED_REACH_IN_PLACE, /* each other's memory is read and written in place */
    FERRY_MIXED_REACH_OBJECTS   /* and by multicast objects: one access writes or adds up all */
} ferry_mixed_reach;

/* A parameter that does not fit is FERRY_ERR_INVALID_INPUT, as ferry_mixed_comm_create has it. */
FERRY_API ferry_status ferry_mixed_sketch_create(const ferry_mixed_comm_options *options,
                                                 uint32_t reach, ferry_mixed_sketch **sketch_out,
                                                 ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_mixed_sketch_destroy(ferry_mixed_sketch *sketch);

/* The operations and modes that such a handle would have, but AUTOTUNE. */
FERRY_API ferry_status ferry_mixed_sketch_get_valid_op_list(const ferry_mixed_sketch *sketch,
                                                            uint32_t *ops_out, size_t room,
                                                            size_t *n_out, ferry_error *error);
/* The modes: see above. */
FERRY_API ferry_status ferry_mixed_sketch_get_valid_mode_list(const ferry_mixed_sketch *sketch,
                                                              uint32_t *modes_out, size_t room,
                                                              size_t *n_out, ferry_error *error);

/* What the rank does in one call whose output has memory of its own. */
typedef struct ferry_mixed_work {
    size_t struct_size;
    uint32_t n_lanes;              /* that have something to do */
    bool is_pipelined;             /* a step is begun before the one before it has ended */
    uint64_t n_steps;              /* blocks, of the longest lane */
    uint64_t n_inside_waits;       /* in each of them, for ranks of this node only */
    uint64_t n_between_waits;      /* in each of them, for ranks of other nodes, too */
    uint64_t inside_bytes_written; /* these three as ferry_mixed_counts has them */
    uint64_t inside_bytes_read;
    uint64_t between_bytes;
    uint64_t own_bytes_written; /* to memory between stages that no other rank of the node reads */
    uint64_t own_bytes_read;    /* of that, and of what came from other nodes */
    uint64_t tensor_bytes_read; /* of the input, and of what the output has already */
    uint64_t tensor_bytes_written;
} ferry_mixed_work;

#define FERRY_MIXED_WORK_INIT                                                                      \
    {                                                                                              \
        sizeof(ferry_mixed_work), 0, false, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                           \
    }

/* Of a piece of `count` elements: of the input; of what scatters, of a chunk of it. */
FERRY_API ferry_status ferry_mixed_sketch_count(const ferry_mixed_sketch *sketch, uint32_t op,
                                                uint32_t mode, uint64_t count,
                                                ferry_mixed_work *work_out, ferry_error *error);

#define FERRY_MIXED_ENGINE_BYTES 64

/* The topology and the engines of a handle, with what options left open filled in. */
typedef struct ferry_mixed_comm_info {
    size_t struct_size;
    uint32_t world_rank, world_size, local_rank, local_size, inter_rank, inter_size;
    uint32_t local_tp_size, local_dp_size, inter_tp_size, inter_dp_size;
    uint32_t tp_rank, tp_size, dp_rank, dp_size;
    uint32_t dtype;
    uint32_t grid_size;
    uint32_t max_block_size; /* the largest block that the staging memory has room for */
    uint64_t staging_bytes;  /* of this rank */
    bool virtual_memory;     /* init_virtual_memory is done */
    bool multicast;          /* ranks of the node read each other's memory in place */
    bool between_nodes;      /* init_nvshmem is done */
    bool tuned;
    bool deterministic;
    char inside_engine[FERRY_MIXED_ENGINE_BYTES];  /* "shm"; "" where there is no other rank */
    char between_engine[FERRY_MIXED_ENGINE_BYTES]; /* "ucx" */
    const char *between_note; /* for ever; such as: UCX stands in for NVSHMEM on hosts */
    bool kernels; /* a kernel of the options' device makes each call; else the host does */
    const char *base_engine; /* for ever; whose collectives BASE modes are: "ferry", or those of a
                                library of the devices', "nccl 2.28.3" */
    uint32_t reach;          /* ferry_mixed_reach of this rank; a sketch takes it */
} ferry_mixed_comm_info;

#define FERRY_MIXED_COMM_INFO_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_mixed_comm_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,       \
            false, false, false, false, false, "", "", NULL, false, NULL, 0                        \
    }

/* What the handle found and chose. */
FERRY_API ferry_status ferry_mixed_comm_get_info(const ferry_mixed_comm *comm,
                                                 ferry_mixed_comm_info *info_out,
                                                 ferry_error *error);

FERRY_END_DECLS

#endif
