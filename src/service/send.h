/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_SEND_H
#define FY_SERVICE_SEND_H

#include "service/slots.h"

/* What ways of sending share. */

static inline const fy_item_part *fy_part_at(const fy_channel *channel, const fy_item *item,
                                             uint32_t index)
{
    return &channel->out.parts[item->first_part + index];
}

/* Of the sending side's hashes, those of an item; NULL where none are wanted. */
uint64_t *fy_hashes_of(const ferry_service *service, const fy_channel *channel,
                       const fy_item *item);
void fy_hash_parts(const ferry_service *service, const fy_channel *channel, const fy_item *item);
/* To the peer: those of n items. */
ferry_status fy_hashes_put(ferry_service *service, const fy_channel *channel, const fy_item *items,
                           uint32_t n, ferry_error *error);

/*
 * An item into a slot: its payload, and its head. Where moves take their time the head is written
 * behind them.
 */
ferry_status fy_slot_fill(ferry_service *service, const fy_channel *channel, const fy_item *item,
                          const fy_slot *slot, ferry_error *error);
void fy_slot_head_write(ferry_service *service, const fy_channel *channel, const fy_item *item,
                        const fy_slot *slot);
/* Of the bytes behind a head, and of which they are. */
uint64_t fy_slot_hash(const fy_slot_head *head, const char *payload);

/* n more items are at the peer: the word that says so comes behind their bytes. */
ferry_signal fy_arrival_of(const ferry_service *service, const fy_channel_state *state, uint32_t n);
/* The same of all items of a channel up to this number. */
ferry_signal fy_arrival_after(const ferry_service *service, const fy_channel *channel, uint32_t n);

/* Steps of what goes out and of what comes in: items [first, first + n) of a channel. */
uint32_t fy_send_take(ferry_service *service, fy_channel_state *state, uint32_t first, uint32_t n);
fy_progress fy_send_move(ferry_service *service, fy_channel_state *state, uint32_t first,
                         uint32_t n);
fy_progress fy_send_put(ferry_service *service, fy_channel_state *state, uint32_t first,
                        uint32_t n);
fy_progress fy_send_signal(ferry_service *service, fy_channel_state *state, uint32_t first,
                           uint32_t n);
/* What was begun is over, and nothing more of it is done. */
void fy_send_drop(ferry_service *service, fy_channel_state *state);
fy_progress fy_receive_move(ferry_service *service, fy_channel_state *state, uint32_t first,
                            uint32_t n);
fy_progress fy_receive_signal(ferry_service *service, fy_channel_state *state, uint32_t first,
                              uint32_t n);

/* local.c: of the item that is next. */
enum { FY_LOCAL_PHASES = 3 };
fy_progress fy_local_move(ferry_service *service);
fy_progress fy_local_end(ferry_service *service);

/*
 * burst.c: what goes over a network: some items as one. What can begin, of at most n items, is
 * taken, with the memory that it is packed into; 0 where that is short. A put of what was packed
 * brings the signal with it.
 */
bool fy_burst_takes(const fy_channel *channel, const fy_item *item);
uint32_t fy_burst_take(ferry_service *service, fy_channel_state *state, uint32_t first, uint32_t n);
ferry_status fy_burst_pack(ferry_service *service, fy_channel_state *state, uint32_t first,
                           uint32_t n, ferry_error *error);
ferry_status fy_burst_put(ferry_service *service, fy_channel_state *state, uint32_t first,
                          uint32_t n, ferry_error *error);

/*
 * aside.c: the same where payloads go to memory of the peer's device. The put is begun, and the
 * lane goes on; once the bytes are in place, heads and signal follow. True if anything happened.
 */
ferry_status fy_aside_begin(ferry_service *service, const fy_channel_state *state, uint32_t first,
                            uint32_t n, ferry_error *error);
bool fy_aside_tell(ferry_service *service);
/*
 * Whether all that was put so is in place, of a run that is given up: a flush of the transport may
 * be one that another service has begun before. FERRY_ERR_TIMEOUT without a sentence: not yet.
 */
ferry_status fy_aside_is_there(ferry_service *service, uint32_t *peer_out, ferry_error *error);

#endif
