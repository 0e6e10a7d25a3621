/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The memory that shards lie in: one piece for each side of a rank. */
#include "run.h"
#include "steps.h"

#include "units.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static ferry_status open_plain(uint64_t bytes, ferry_buffer *buffer_out, ferry_error *error)
{
    char text[32];
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        snprintf(error->message, sizeof error->message, "%s for shards cannot be had: %s",
                 format_bytes((double)bytes, text), strerror(errno));
        return FERRY_ERR_NO_MEMORY;
    }
    *buffer_out = ferry_buffer_of(memory, bytes);
    return FERRY_OK;
}

static const struct {
    const char *name, *title;
    ferry_memory_kind kind;
} memories[N_RUN_MEMORIES] = {
    [RUN_MEMORY_FERRY] = {"ferry", "ferry_memory_alloc", FERRY_MEMORY_HOST},
    [RUN_MEMORY_MALLOC] = {"malloc", "malloc", FERRY_MEMORY_HOST},
    [RUN_MEMORY_CUDA] = {"cuda", "cuda", FERRY_MEMORY_CUDA},
    [RUN_MEMORY_FAR] = {"far", "far", FERRY_MEMORY_FAR},
};

const char *run_memory_name(uint32_t memory)
{
    return memories[memory].name;
}

const char *run_memory_title(uint32_t memory)
{
    return memories[memory].title;
}

bool run_memory_is_device(uint32_t memory)
{
    return memories[memory].kind != FERRY_MEMORY_HOST;
}

static ferry_status open_device(ferry_transport *transport, ferry_memory_kind kind,
                                uint32_t local_rank, uint64_t bytes, ferry_buffer *buffer_out,
                                ferry_error *error)
{
    uint32_t n_devices = 0;
    FY_TRY(ferry_memory_kind_at((size_t)kind, NULL, NULL, &n_devices, NULL, error));
    int32_t device = n_devices == 0 ? 0 : (int32_t)(local_rank % n_devices); /* 0: alloc says why */
    return ferry_memory_alloc(transport, kind, device, bytes, buffer_out, error);
}

ferry_status run_arena_open(ferry_transport *transport, uint32_t memory, uint32_t local_rank,
                            uint64_t bytes, run_arena *arena_out, ferry_error *error)
{
    run_arena arena = {.is_plain = memory == RUN_MEMORY_MALLOC};
    uint64_t wanted = bytes > 0 ? bytes : 1; /* a rank without shards has a place for none */
    FY_TRY(arena.is_plain ? open_plain(wanted, &arena.buffer, error)
                          : open_device(transport, memories[memory].kind, local_rank, wanted,
                                        &arena.buffer, error));
    *arena_out = arena;
    return FERRY_OK;
}

static ferry_status copy(const ferry_buffer *to, const ferry_buffer *from, uint64_t bytes,
                         ferry_error *error)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    boxes[0].buffer = *to;
    boxes[1].buffer = *from;
    for (int i = 0; i < 2; i++) {
        boxes[i].n_dims = 1;
        boxes[i].length[0] = bytes;
        boxes[i].stride[0] = 1;
    }
    return ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, error);
}

ferry_status run_arena_write(const run_arena *arena, const void *from, uint64_t bytes,
                             ferry_error *error)
{
    ferry_buffer host = ferry_buffer_of(from, bytes);
    return copy(&arena->buffer, &host, bytes, error);
}

ferry_status run_arena_read(const run_arena *arena, void *to, uint64_t bytes, ferry_error *error)
{
    ferry_buffer host = ferry_buffer_of(to, bytes);
    return copy(&host, &arena->buffer, bytes, error);
}

void run_arena_close(run_arena *arena)
{
    if (arena->buffer.base != NULL && arena->is_plain) {
        munmap(arena->buffer.base, arena->buffer.bytes);
    } else if (arena->buffer.base != NULL) {
        ferry_memory_free(&arena->buffer);
    }
    *arena = (run_arena){0};
}
