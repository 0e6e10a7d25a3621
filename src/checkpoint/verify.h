/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_VERIFY_H
#define FY_CHECKPOINT_VERIFY_H

#include "checkpoint/reshard.h"

/* One of two checkpoints that are compared: as a whole, and each local tensor with the others. */
typedef struct fy_verify_side {
    const ferry_checkpoint *checkpoint;
    fy_layout_job whole; /* to one rank that has everything; not of b in boxes */
    fy_layout_job own;   /* sharded: to its own layout */
    fy_files *files;
    fy_checked checked;
    bool has_own;
    bool is_b; /* the second one: whose boxes are compared one by one */
} fy_verify_side;

typedef struct fy_verify_worker {
    fy_gather whole[2];
    fy_gather own[2];
    char *window[2];
    char *cast; /* what a window of a becomes */
    /* Where weights of a change in tiles. */
    fy_changer changer;
    fy_gather beside; /* of b: scales of the weight */
    char *room;       /* the changer's, and then as much for what b has */
    /* Where a side is in boxes; its own gather is then of whole tensors. */
    fy_maker maker[2];
    char *boxes; /* the room of both */
} fy_verify_worker;

typedef struct fy_verify_work {
    fy_verify_side sides[2];
    const ferry_verify_options *options;
    fy_subset subset; /* what of a is compared; all zero: everything */
    fy_named named;   /* a's tensors as b is to have them; without a list: as they are */
    fy_buffers buffers;
    fy_boxed *turned; /* what b is to have, in boxes of a's tensors, where names transpose some */
    uint32_t *turned_in_b; /* [its parameters] the tensors of b that are called so */
    uint64_t *turned_digests;
    fy_maker_room maker_room;
    uint32_t *number_in_a; /* of b's tensors, where b is in boxes */
    uint64_t n_left_out;   /* tensors of a that b, in boxes, has nothing of */
    fy_matrices *matrices; /* of what b, in boxes, has of a; NULL: there are none */
    fy_layout_job plain;   /* of a, to one rank, unchanged: where changes read scales */
    bool has_plain;
    bool has_tiles;
    fy_verify_worker *workers;
    size_t n_tensors; /* of a as it changes: its own, and scales that are made */
    uint32_t *twin;   /* [n_tensors] their numbers in b; FY_NONE: consumed */
    uint64_t *digests;
    _Atomic uint64_t done_bytes;
    _Atomic uint64_t n_replicas;
    _Atomic bool stops;
    uint64_t total_bytes;
    double began;
} fy_verify_work;

/* A weight of a that changes in tiles, its scales, and what b has of them. */
ferry_status fy_verify_weight(fy_verify_work *work, fy_verify_worker *worker, uint32_t tensor,
                              ferry_error *error);

/* Only the digest of the values that codes of a become. */
ferry_status fy_verify_digest_weight(fy_verify_work *work, fy_verify_worker *worker,
                                     uint32_t tensor, ferry_error *error);

/* Two memories that should be equal, and how to say that they are not. */
typedef struct fy_verify_pair {
    const char *tensor;
    ferry_dtype dtype;
    const fy_problem *problem; /* NULL: elements are bytes */
    uint32_t placement;
    uint32_t cell; /* of which both memories are a stretch */
    const char *where[2];
    uint64_t first_byte; /* of the cell: that of both memories */
    const char *note;    /* behind the sentence */
} fy_verify_pair;

/* Of a tensor of a as it changes, and its twin. */
fy_verify_pair fy_verify_pair_of(const fy_verify_work *work, uint32_t tensor);

ferry_status fy_verify_bytes(const fy_verify_pair *pair, const char *a, const char *b,
                             uint64_t n_bytes, ferry_error *error);

/* Adds to a sentence which side is damaged, where a recorded checksum tells. */
void fy_verify_add_damage(fy_verify_worker *worker, ferry_error *error);

/* Every bit of a tensor of a and its twin. */
ferry_status fy_verify_tensor(fy_verify_work *work, fy_verify_worker *worker, uint32_t tensor,
                              ferry_error *error);

/* Every local tensor of a side, with what the first of those who hold the same has. */
ferry_status fy_verify_replicas(fy_verify_work *work, fy_verify_worker *worker, uint32_t side,
                                uint32_t tensor, ferry_error *error);

/* ---- what is compared ---- */

/* Whether the subset leaves out a tensor of a as it changes; scales that are made come with their
 * weights. */
bool fy_verify_leaves_out(const fy_verify_work *work, uint32_t tensor);
/* Whether it is in what a becomes, and the subset takes it. */
bool fy_verify_wants(const fy_verify_work *work, uint32_t tensor);
/* Whether what a itself has of a tensor is looked at: also scales that its changes consume. */
bool fy_verify_reads(const fy_verify_work *work, uint32_t tensor);
/* Whether a parameter of a side in boxes is made again: of b all are. */
bool fy_verify_wants_parameter(const fy_verify_work *work, uint32_t side, size_t number);

/* Refuses a subset that a reshard of a would refuse. */
ferry_status fy_verify_check_subset(fy_verify_work *work, ferry_error *error);
/* Whether b, in boxes, has a parameter of fills alone that the subset leaves out. */
ferry_status fy_verify_check_filled(const fy_verify_work *work, ferry_error *error);

/* What a side's files hold of that, where each is looked at by itself. */
uint64_t fy_verify_local_bytes(const fy_verify_work *work, uint32_t side);

/* ---- a side in boxes ---- */

/* Which tensors of a the boxes of b are of. */
ferry_status fy_verify_map_boxes(fy_verify_work *work, ferry_error *error);
ferry_status fy_verify_make_makers(fy_verify_work *work, fy_verify_worker *worker,
                                   ferry_error *error);
/* A parameter of a side, made again of the tensors of a, in all files that have it. */
ferry_status fy_verify_parameter(fy_verify_work *work, fy_verify_worker *worker, uint32_t side,
                                 uint32_t number, ferry_error *error);
/* Only the digest of a tensor of a, as it changes. */
ferry_status fy_verify_digest(fy_verify_work *work, fy_verify_worker *worker, uint32_t tensor,
                              ferry_error *error);
/* Reads a window of a, and hashes what it becomes. */
ferry_status fy_verify_hash_window(fy_verify_work *work, fy_verify_worker *worker,
                                   const fy_window *window, fy_hasher *hasher, ferry_error *error);

/* ---- names that transpose ---- */

/* What b is to have, of a's tensors as they change; and that it has such tensors, and no others. */
ferry_status fy_verify_turn(fy_verify_work *work, ferry_error *error);
/* One of them, made of a, and every local tensor of b that is a part of it. */
ferry_status fy_verify_turned(fy_verify_work *work, fy_verify_worker *worker, uint32_t parameter,
                              ferry_error *error);
void fy_verify_visit_turned(const fy_verify_work *work);

/* The first byte in which two memories differ; n_bytes where they do not. */
uint64_t fy_first_difference(const char *a, const char *b, uint64_t n_bytes);

/*
 * An element's value, with its bits: "1.5 (0x3fc0)". Of half bytes, one of the two; of long opaque
 * elements, the bytes from the one that differs.
 */
void fy_format_value(ferry_dtype dtype, const char *element, bool high_half, uint64_t differs_at,
                     char *text, size_t text_bytes);

#endif
