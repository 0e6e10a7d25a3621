/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_SEND_H
#define FY_SERVICE_SEND_H

#include "service/exec.h"

/* What ways of sending share. */

/* Where the bytes of a part come from. */
typedef struct fy_origin {
    fy_area area;
    const char *base;
} fy_origin;

fy_origin fy_origin_of(const ferry_service *service, const fy_part_of *part);

static inline const fy_part_of *fy_part_at(const fy_channel *channel, const fy_item *item,
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

/* An item into a slot: its payload and its head. */
void fy_slot_fill(ferry_service *service, const fy_channel *channel, const fy_item *item,
                  char *slot);

/* n more items are at the peer: the word that says so comes behind their bytes. */
ferry_signal fy_arrival_of(const ferry_service *service, const fy_channel *channel, uint32_t n);

/* Whether item number index may go, as far as the peer and other ranks are concerned. */
bool fy_item_may_go(const fy_exec *exec, const fy_channel *channel, uint32_t index);

/*
 * burst.c: what goes over a network: some items as one. The length is 0 where memory for packing is
 * short; sending sets the signal too.
 */
bool fy_burst_takes(const fy_channel *channel, const fy_item *item);
uint32_t fy_burst_length(const ferry_service *service, const fy_channel *channel);
ferry_status fy_burst_send(ferry_service *service, const fy_channel *channel, uint32_t n,
                           ferry_error *error);

#endif
