/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_MOVES_H
#define FY_SERVICE_MOVES_H

#include "service/ends.h"

/*
 * Bytes from one kind of memory to another. A move is begun by a verb and done when a ticket is
 * reached: only then do the lane's next steps follow, the put, the signal or the answer that tell
 * of it. Between host memory the CPU moves at the call, and nothing is left to wait for.
 */
typedef struct fy_moves {
    fy_device_queues queues;
    char *bounce; /* what this rank sends to itself from device to device goes through here */
} fy_moves;

/* Bytes one behind the other, as they travel. */
typedef struct fy_payload {
    char *at;
    fy_space space;
} fy_payload;

static inline fy_payload fy_payload_here(const char *at)
{
    return (fy_payload){.at = (char *)(uintptr_t)at, .space = {.kind = FERRY_MEMORY_HOST}};
}

/* Opens the queues that a program's moves need; *moves_out stays where it needs none. */
ferry_status fy_moves_open(const ferry_service *service, fy_moves **moves_out, ferry_error *error);
void fy_moves_close(fy_moves *moves); /* waits for them; NULL is allowed */

/*
 * Verbs. A hash, where one is wanted, is there when the move is done. bytes are packed: [first,
 * first + bytes) of the task one behind the other, as they travel: a pack casts at the sender, an
 * unpack (which hashes nothing then) at the receiver, and a copy from end to end. Of what is cast
 * the hash is that of what the receiver has.
 */
ferry_status fy_move_pack(ferry_service *service, const fy_part_end *from, uint64_t first,
                          uint64_t bytes, fy_payload packed, uint64_t *hash_out,
                          ferry_error *error);
ferry_status fy_move_unpack(ferry_service *service, const fy_part_end *to, uint64_t first,
                            uint64_t bytes, fy_payload packed, uint64_t *hash_out,
                            ferry_error *error);
ferry_status fy_move_copy(ferry_service *service, const fy_part_end *to, const fy_part_end *from,
                          uint64_t first, uint64_t bytes, uint64_t *hash_out, ferry_error *error);
/* The hash of what elements become that have travelled as the sender has them. */
uint64_t fy_packed_hash(const fy_task_cast *conversion, const char *packed, uint64_t bytes);
/* Bytes of the memory that the end is, as they are; and the same, packed, whatever travels. */
ferry_status fy_move_hash(ferry_service *service, const fy_part_end *side, uint64_t first,
                          uint64_t bytes, uint64_t *hash_out, ferry_error *error);
ferry_status fy_move_gather(ferry_service *service, const fy_part_end *side, uint64_t first,
                            uint64_t bytes, char *packed, ferry_error *error);
/* Whether a device makes digests of its own memory; and those of parts of it: see fy_exec. */
bool fy_move_has_digests(fy_space space);
ferry_status fy_move_digests(ferry_service *service, fy_space space, const fy_exec_part *parts,
                             size_t n, char *digests_out, ferry_error *error);

/*
 * local.c: a part of an item of this rank's own, from one device to another that it does not reach:
 * to the host, and from there in the next phase.
 */
ferry_status fy_bounce_begin(ferry_service *service, const fy_item *item, uint32_t part,
                             const fy_part_end *from, uint64_t *hash_out, ferry_error *error);

static inline bool fy_moves_are_far(const ferry_service *service)
{
    return service->run->moves != NULL;
}

#endif
