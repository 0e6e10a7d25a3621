/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_GATHER_H
#define FY_CHECKPOINT_GATHER_H

#include "base/hash.h"
#include "checkpoint/files.h"
#include "checkpoint/window.h"
#include "exec/area.h"

#include <stdatomic.h>

/* A local tensor of the source, as it takes part in the tensor at work. */
typedef struct fy_source_shard {
    uint32_t leg;
    uint32_t cell;
    uint32_t file;
    const fy_st_tensor *entry;
    uint64_t base;                      /* of its data in the file */
    uint64_t shape[FERRY_MAX_DIMS];     /* before flattening, in the route's dimensions */
    uint32_t parts[FERRY_MAX_DIMS + 1]; /* likewise */
    uint64_t flat_begin;
    uint32_t check; /* into checks, or FY_NONE */
} fy_source_shard;

typedef struct fy_source_check {
    uint32_t file;
    const fy_st_tensor *entry;
    uint64_t next; /* byte of the tensor up to which it was hashed */
    fy_hasher *hasher;
    void *raw; /* of the hasher; kept for the next tensor */
} fy_source_check;

/* Which tensors of the source have been checked, by all threads of a job. */
typedef struct fy_checked {
    const ferry_checkpoint *from;
    size_t *first; /* [n_files + 1] into the flags */
    _Atomic unsigned char *flags;
    _Atomic uint64_t n_checked;
} fy_checked;

ferry_status fy_checked_create(const ferry_checkpoint *from, fy_checked *checked,
                               ferry_error *error);
void fy_checked_cleanup(fy_checked *checked);

/* What a whole tensor of a file was found to hash to; FERRY_ERR_DIGEST: it is damaged. */
ferry_status fy_checked_compare(fy_checked *checked, uint32_t file, const fy_st_tensor *entry,
                                uint64_t found, ferry_error *error);

/*
 * Reads what windows of destination shards are made of from the files of the source. One for each
 * thread. Whatever its windows' order, each stretch of a file is read once as long as the windows
 * that share it follow each other: what was read last is kept.
 *
 * Source tensors with a recorded checksum are hashed as they are read; what was not read from begin
 * to end in order is read again for that, once in a job.
 */
typedef struct fy_gather {
    const fy_layout_job *job;
    fy_files *files;
    fy_checked *checked;
    const _Atomic bool *stops; /* whether the caller wants an end; NULL: never */
    uint32_t tensor;
    uint32_t atoms_cell; /* whose atoms are listed, or FY_NONE */
    fy_atoms *atoms;     /* of each leg that is not regular */
    uint64_t last_first; /* element of the last window */
    size_t *first_atom;  /* of each of these legs: those before it lie before the window */
    size_t n_atoms, atoms_capacity, first_capacity;

    fy_source_shard *shards;
    size_t n_shards, shard_capacity, last_shard;
    fy_index shard_index;
    fy_index check_index;
    fy_source_check *checks;
    size_t n_checks, made_checks, check_capacity;

    char *span; /* what was read last: [span_begin, span_end) of span_file */
    uint64_t span_bytes;
    uint32_t span_file;
    uint64_t span_begin, span_end;
    /* If the last window came from one place: where. */
    bool only_locates;
    uint32_t *found; /* boxes of a source in boxes; scratch */
    size_t found_capacity;
    size_t n_boxes; /* of the last window */
    bool is_whole;
    bool is_one_file; /* it came from whole_file alone */
    uint32_t whole_file;
    uint64_t whole_offset;
} fy_gather;

ferry_status fy_gather_init(fy_gather *gather, const fy_layout_job *job, fy_files *files,
                            fy_checked *checked, uint64_t span_bytes, ferry_error *error);
void fy_gather_cleanup(fy_gather *gather);

/* FERRY_ERR_STOPPED once the caller wants an end: for loops that take long. */
ferry_status fy_gather_check_stop(const fy_gather *gather, ferry_error *error);

/* Turns to a tensor of the result. */
ferry_status fy_gather_begin(fy_gather *gather, uint32_t tensor, ferry_error *error);
/* Turns to another tensor of the same work, which may go back to one that it had: what was read of
 * all of them is known until it ends. */
ferry_status fy_gather_turn(fy_gather *gather, uint32_t tensor, ferry_error *error);
/* Whether windows of several cells may take turns without work being done again for each. */
bool fy_gather_takes_turns(const fy_gather *gather);
/* Fills `to` with the window's bytes. */
ferry_status fy_gather_read(fy_gather *gather, const fy_window *window, char *to,
                            ferry_error *error);
/* Only finds out whether the window lies in one place, and where: is_whole and what follows it. */
ferry_status fy_gather_look(fy_gather *gather, const fy_window *window, ferry_error *error);
/* The same for a window that is one element: FERRY_ERR_LIMIT where it does not. */
ferry_status fy_gather_locate(fy_gather *gather, const fy_window *window, ferry_error *error);
/* Checks the checksums of what was read since the begin. */
ferry_status fy_gather_end(fy_gather *gather, ferry_error *error);

/* Reads a tensor of a file whole and compares its checksum, if it has one that was not checked. */
ferry_status fy_gather_check_whole(fy_gather *gather, uint32_t file, const fy_st_tensor *entry,
                                   ferry_error *error);

/* The shard of a source cell of one of the tensor's legs; it moves when the next is looked for. */
ferry_status fy_gather_find_shard(fy_gather *gather, uint32_t leg, uint32_t cell,
                                  const fy_source_shard **shard_out, ferry_error *error);

/* The check of a shard whose file and entry are known. */
ferry_status fy_gather_find_check(fy_gather *gather, fy_source_shard *shard, ferry_error *error);

/* A box of the source, with offsets in the file, to one of the window: byte k is byte k. */
ferry_status fy_gather_read_area(fy_gather *gather, const fy_source_shard *shard,
                                 const fy_area *from, const fy_area *to_area, char *to,
                                 ferry_error *error);

#endif
