/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "bench_mixed_device.h"

#include "bench_device.h"
#include "json_text.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- memory ---- */

static ferry_status map(uint64_t bytes, void **memory_out, ferry_error *error)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        return mixed_fail(error, FERRY_ERR_NO_MEMORY, "no memory for a tensor of %llu bytes",
                          (unsigned long long)bytes);
    }
    *memory_out = memory;
    return FERRY_OK;
}

static bool is_on_device(const mixed_memory *memory)
{
    return memory->device.bytes > 0;
}

ferry_status mixed_memory_take(const mixed_rank *rank, uint64_t bytes, mixed_memory *memory_out,
                               ferry_error *error)
{
    mixed_memory memory = {.bytes = bytes};
    if (rank->device.kind != FERRY_MEMORY_HOST) {
        FY_TRY(ferry_memory_alloc(NULL, (ferry_memory_kind)rank->device.kind, rank->device.index,
                                  bytes, &memory.device, error));
    }
    ferry_status status = map(bytes, &memory.host, error);
    if (status != FERRY_OK) {
        ferry_memory_free(&memory.device);
        return status;
    }
    *memory_out = memory;
    return FERRY_OK;
}

void mixed_memory_give(mixed_memory *memory)
{
    ferry_memory_free(&memory->device);
    if (memory->host != NULL) {
        munmap(memory->host, memory->bytes);
    }
    *memory = (mixed_memory){.host = NULL};
}

static ferry_buffer host_part(const mixed_memory *memory, uint64_t offset, uint64_t bytes)
{
    return ferry_buffer_of((char *)memory->host + offset, bytes);
}

ferry_buffer mixed_memory_part(const mixed_memory *memory, uint64_t offset, uint64_t bytes)
{
    ferry_buffer part = memory->device;
    if (!is_on_device(memory)) {
        return host_part(memory, offset, bytes);
    }
    part.base = (char *)part.base + offset;
    part.bytes = bytes;
    return part;
}

static ferry_status copy(const ferry_buffer *to, const ferry_buffer *from, ferry_error *error)
{
    ferry_box target = bench_flat_box(to, to->bytes), source = bench_flat_box(from, from->bytes);
    return ferry_box_copy(&target, &source, NULL, NULL, error);
}

ferry_status mixed_memory_send(const mixed_memory *memory, uint64_t offset, uint64_t bytes,
                               ferry_error *error)
{
    ferry_buffer there = mixed_memory_part(memory, offset, bytes);
    ferry_buffer here = host_part(memory, offset, bytes);
    return is_on_device(memory) ? copy(&there, &here, error) : FERRY_OK;
}

ferry_status mixed_memory_fetch(const mixed_memory *memory, uint64_t offset, uint64_t bytes,
                                ferry_error *error)
{
    ferry_buffer there = mixed_memory_part(memory, offset, bytes);
    ferry_buffer here = host_part(memory, offset, bytes);
    return is_on_device(memory) ? copy(&here, &there, error) : FERRY_OK;
}

/* ---- what devices are ---- */

ferry_status mixed_devices_gather(const mixed_rank *rank, mixed_device **devices_out,
                                  ferry_error *error)
{
    const ferry_device *device = &rank->device;
    mixed_device own = {.index = device->index};
    const char *summary = "";
    const void *all = NULL;
    if (device->kind == FERRY_MEMORY_HOST) {
        *devices_out = NULL;
        return FERRY_OK;
    }
    FY_TRY(ferry_memory_device_at((ferry_memory_kind)device->kind, device->index, &summary, error));
    snprintf(own.summary, sizeof own.summary, "%s", summary);
    FY_TRY(ferry_world_all_gather(rank->world, &own, sizeof own, &all, error));
    mixed_device *devices = calloc(rank->n_ranks, sizeof *devices);
    if (devices == NULL) {
        return mixed_fail(error, FERRY_ERR_NO_MEMORY, "out of memory");
    }
    memcpy(devices, all, rank->n_ranks * sizeof *devices);
    *devices_out = devices;
    return FERRY_OK;
}

const char *mixed_kind_name(uint32_t kind)
{
    const char *name = "";
    (void)ferry_memory_kind_at(kind, &name, NULL, NULL, NULL, NULL);
    return name;
}

static bool is_alike(const mixed_device *a, const mixed_device *b)
{
    return a->index == b->index && strcmp(a->summary, b->summary) == 0;
}

/* A line for all ranks that say the same; it stands where the first of them does. */
static void print_device(const mixed_report *report, uint32_t rank)
{
    const mixed_device *devices = report->devices;
    uint32_t n = 0;
    for (uint32_t before = 0; before < rank; before++) {
        if (is_alike(&devices[before], &devices[rank])) {
            return;
        }
    }
    for (uint32_t i = rank; i < report->rank->n_ranks; i++) {
        n += is_alike(&devices[i], &devices[rank]);
    }
    printf("# %s %d of rank%s", mixed_kind_name(report->request->memory), (int)devices[rank].index,
           plural(n));
    for (uint32_t i = rank; i < report->rank->n_ranks; i++) {
        if (is_alike(&devices[i], &devices[rank])) {
            printf("%s %u", i > rank ? "," : "", i);
        }
    }
    printf("%s%s\n", devices[rank].summary[0] == '\0' ? "" : ": ", devices[rank].summary);
}

void mixed_devices_print(const mixed_report *report)
{
    const ferry_mixed_comm_info *info = &report->rank->info;
    for (uint32_t rank = 0; rank < report->rank->n_ranks; rank++) {
        print_device(report, rank);
    }
    if (info->kernels) {
        printf("# kernels make the calls, of %u block%s on each rank's device\n", info->grid_size,
               plural(info->grid_size));
    } else {
        printf("# the host makes the calls, for kernels cannot: FERRY_LOG=warn says why\n");
    }
    if (strcmp(info->base_engine, "ferry") != 0) {
        printf("# base modes are collectives of %s\n", info->base_engine);
    }
    printf("# a time is the host's, %s\n",
           report->order == MIXED_ORDER_HOST
               ? "of a call that returns when its output is there"
               : "from a call on a stream of the device until the stream is done");
}

void mixed_devices_print_json(const mixed_report *report)
{
    printf(",\"devices\":[");
    for (uint32_t rank = 0; rank < report->rank->n_ranks; rank++) {
        printf("%s{\"rank\":%u,\"device\":%d,\"summary\":", rank > 0 ? "," : "", rank,
               (int)report->devices[rank].index);
        print_json_text(report->devices[rank].summary);
        putchar('}');
    }
    printf("],\"by\":\"%s\",\"base\":", report->rank->info.kernels ? "kernels" : "host");
    print_json_text(report->rank->info.base_engine);
    printf(",\"order\":\"%s\"", report->order == MIXED_ORDER_HOST ? "host" : "stream");
}
