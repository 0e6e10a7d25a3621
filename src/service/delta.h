/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_DELTA_H
#define FY_SERVICE_DELTA_H

#include "service/run.h"

/*
 * Runs that move only what differs. Nothing is remembered from run to run: what is in a destination
 * is read there, each time. Where the sender maps it, or it is its own, it compares both
 * (fy_area_update). Else the receiver tells digests of what is there, for blocks of FY_DELTA_BYTES
 * of an item's bytes, and the sender leaves out the blocks whose digests are those of its own.
 * Devices make digests of their memory: there neither side brings to the host what is equal.
 *
 * Digests go ahead of items by a window: those of item number k lie where those of item k - window
 * lay, and are told once that item has come, which its sender has then dealt with.
 */

/* Blocks of an item; a bit for each is in a slot's head. */
static inline uint32_t fy_delta_n_blocks(uint64_t item_bytes)
{
    return (uint32_t)((item_bytes + FY_DELTA_BYTES - 1) / FY_DELTA_BYTES);
}
static inline uint64_t fy_delta_all_blocks(uint64_t item_bytes)
{
    uint32_t n = fy_delta_n_blocks(item_bytes);
    return n == 0 ? 0 : UINT64_MAX >> (64 - n);
}
/* A run of blocks that are in `blocks`, from *first_inout on: bytes of the item. */
bool fy_delta_next(uint64_t blocks, uint64_t item_bytes, uint32_t *block_inout, uint64_t *first_out,
                   uint64_t *bytes_out);

/* Whether digests are told of an item. */
static inline bool fy_delta_tells(const fy_service_program *program, const fy_item *item)
{
    return program->is_delta && item->path != FERRY_PATH_MAPPED;
}

/* Of a lane: the most bytes that an item's digests take. */
uint64_t fy_delta_item_bytes(const fy_lane *lane);
static inline uint64_t fy_delta_slot(uint64_t item_bytes, uint32_t item)
{
    return item % FY_DELTA_WINDOW * item_bytes;
}

/* Memory of a run for it. */
ferry_status fy_delta_open(const ferry_service *service, fy_run_state *run, ferry_error *error);
void fy_delta_close(fy_run_state *run);

/* A run begins: which sources are taken for equal, as their rank has said. */
void fy_delta_begin(ferry_service *service);
/* Whether a part of what is sent is of one of these. */
static inline bool fy_delta_keeps(const ferry_service *service, const fy_item_part *part)
{
    const fy_registry *registry = &service->registry;
    if ((part->end & FY_RELAYED) != 0) {
        return false;
    }
    const fy_end *end = &registry->sends.items[part->end];
    const fy_task_cast *how = fy_end_conversion(registry, end);
    /* What the last run brought is not there any more where the receiver has multiplied it. */
    return registry->held[end->held].is_kept && (how == NULL || !how->is_raw);
}

/* The receiver: steps of what comes in, for items [first, first + n). */
uint32_t fy_delta_take(const ferry_service *service, const fy_channel_state *state, uint32_t first,
                       uint32_t n);
fy_progress fy_delta_move(ferry_service *service, fy_channel_state *state, uint32_t first,
                          uint32_t n);
fy_progress fy_delta_signal(ferry_service *service, fy_channel_state *state, uint32_t first,
                            uint32_t n);

/* The sender: a step of what goes out. Digests of what devices have of these items. */
fy_progress fy_delta_look(ferry_service *service, fy_channel_state *state, uint32_t first,
                          uint32_t n);
/* Whether they were made: then only blocks that differ are packed. */
bool fy_delta_has_looked(const ferry_service *service, const fy_channel *channel,
                         const fy_item *item);

/*
 * Which blocks of an item differ from what its receiver has. packed: the item's bytes; or NULL:
 * they are read where they lie, which is in host memory, or a device has looked at them.
 */
uint64_t fy_delta_blocks(ferry_service *service, const fy_channel *channel, const fy_item *item,
                         const char *packed);
/* So many bytes. */
uint64_t fy_delta_bytes(uint64_t item_bytes, uint64_t blocks);
/* Leaves only those, one behind the other; returns their bytes. */
uint64_t fy_delta_compact(char *packed, uint64_t item_bytes, uint64_t blocks);

/* Bytes of the item that is sent now are there already. */
static inline void fy_delta_skip(fy_channel_state *state, uint64_t bytes)
{
    state->skipping += bytes;
}

#endif
