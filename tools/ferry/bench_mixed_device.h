/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_BENCH_MIXED_DEVICE_H
#define FERRY_TOOL_BENCH_MIXED_DEVICE_H

#include "bench_mixed.h"

/* Where the tensors of `ferry bench mixed` lie: on the host, or on a device of each rank. */

/* Memory of tensors. The host's is always there: a device's is filled and checked by way of it. */
typedef struct mixed_memory {
    void *host;
    uint64_t bytes;
    ferry_buffer device; /* what calls are given, as long; of no bytes: the host's itself */
} mixed_memory;

/* "host", "cuda": for ever. */
const char *mixed_kind_name(uint32_t kind);

/* Zeroed memory is memory that nobody has taken: it may be given back. */
ferry_status mixed_memory_take(const mixed_rank *rank, uint64_t bytes, mixed_memory *memory_out,
                               ferry_error *error);
void mixed_memory_give(mixed_memory *memory);

/* What a call is given of a part. */
ferry_buffer mixed_memory_part(const mixed_memory *memory, uint64_t offset, uint64_t bytes);

/* After the host's memory was written, and before it is read; nothing where tensors are there. */
ferry_status mixed_memory_send(const mixed_memory *memory, uint64_t offset, uint64_t bytes,
                               ferry_error *error);
ferry_status mixed_memory_fetch(const mixed_memory *memory, uint64_t offset, uint64_t bytes,
                                ferry_error *error);

/* Collective: what each rank says of its device, by rank; to be freed. NULL where there is none. */
ferry_status mixed_devices_gather(const mixed_rank *rank, mixed_device **devices_out,
                                  ferry_error *error);

/* Lines about devices and who makes the calls on them; and as members of a JSON object. */
void mixed_devices_print(const mixed_report *report);
void mixed_devices_print_json(const mixed_report *report);

#endif
