/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_ENDS_H
#define FY_SERVICE_ENDS_H

#include "service/run.h"

/*
 * Where the bytes of a part lie at its two ends. Every file that moves, hashes or unpacks bytes
 * asks here.
 */
typedef struct fy_part_end {
    fy_area area;
    char *base;
    fy_space space;
    const fy_task_cast *conversion; /* of the task's elements, as this end knows it; or NULL */
} fy_part_end;

/* Of what this rank sends: a source, or what it has received and passes on. */
fy_part_end fy_source_of(const ferry_service *service, const fy_item_part *part);

/* A receive's memory, which is here. */
fy_part_end fy_target_of(const ferry_service *service, uint32_t receive);
/* The same for a part that begins at this byte: values have it band by band. */
fy_part_end fy_target_at(const ferry_service *service, uint32_t receive, uint64_t first);

/* Where a part goes at the channel's peer, as it is mapped here; NULL: at a receive of this rank's
 * own. */
fy_part_end fy_goal_of(const ferry_service *service, const fy_channel *channel,
                       const fy_item_part *part);

/* Whether a part's elements travel as they are, and this rank casts them when they have come. */
static inline bool fy_casts_on_arrival(const fy_task_cast *conversion)
{
    return conversion != NULL && conversion->at_receiver;
}

/* Of a part of what is sent, or passed on: NULL, what travels is what lies here. */
static inline const fy_task_cast *fy_sent_conversion(const ferry_service *service,
                                                     const fy_item_part *part)
{
    const fy_registry *registry = &service->registry;
    return (part->end & FY_RELAYED) != 0
               ? NULL
               : fy_end_conversion(registry, &registry->sends.items[part->end]);
}

/* The runs of bytes of a part, cut where either end's area goes on elsewhere. */
typedef struct fy_both {
    fy_area_walk from, to;
    uint64_t from_at, to_at; /* of the next run, from the bases */
    uint64_t from_n, to_n;
    uint64_t left;
} fy_both;

fy_both fy_both_of(const fy_area *from, const fy_area *to, uint64_t first, uint64_t bytes);
bool fy_both_next(fy_both *walk, uint64_t *from_out, uint64_t *to_out, uint64_t *n_out);

#endif
