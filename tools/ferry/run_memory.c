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

ferry_status run_arena_open(ferry_transport *transport, bool plain, uint64_t bytes,
                            run_arena *arena_out, ferry_error *error)
{
    run_arena arena = {.is_plain = plain};
    uint64_t wanted = bytes > 0 ? bytes : 1; /* a rank without shards has a place for none */
    FY_TRY(plain
               ? open_plain(wanted, &arena.buffer, error)
               : ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, wanted, &arena.buffer, error));
    *arena_out = arena;
    return FERRY_OK;
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
