/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_GATHER_READ_H
#define FY_CHECKPOINT_GATHER_READ_H

#include "checkpoint/gather.h"

/* The shard of a source cell of one of the tensor's legs; it moves when the next is looked for. */
ferry_status fy_gather_find_shard(fy_gather *gather, uint32_t leg, uint32_t cell,
                                  const fy_source_shard **shard_out, ferry_error *error);

/* A box of the source, with offsets in the file, to one of the window: byte k is byte k. */
ferry_status fy_gather_read_area(fy_gather *gather, const fy_source_shard *shard,
                                 const fy_area *from, const fy_area *to_area, char *to,
                                 ferry_error *error);

#endif
