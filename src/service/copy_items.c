/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Copies from tensor to tensor, shared by the threads of the team. */
#include "service/exec.h"

#include "base/copy.h"

/* Work for one thread at a time: large enough that sharing costs nothing. */
enum { CHUNK_BYTES = 512 << 10 };

typedef struct job {
    const ferry_service *service;
    const fy_channel *channel; /* NULL: within this rank */
    const fy_lane *lane;
    const fy_item *item;
    uint64_t *hashes; /* one for each part; NULL: none */
} job;

static fy_area source_of(const job *j, const fy_part_of *part, const char **base_out)
{
    const fy_registry *registry = &j->service->registry;
    bool relayed = (part->end & FY_RELAYED) != 0;
    const fy_end *end = relayed ? &registry->receives.items[part->end & ~FY_RELAYED]
                                : &registry->sends.items[part->end];
    const fy_held *held = &registry->held[end->held];
    *base_out = relayed ? fy_held_target_base(held) : fy_held_base(held);
    return fy_end_area(registry, end);
}

static fy_area target_of(const job *j, const fy_part_of *part, char **base_out)
{
    const fy_registry *registry = &j->service->registry;
    if (j->channel == NULL) {
        const fy_end *end = &registry->receives.items[part->place];
        *base_out = fy_held_target_base(&registry->held[end->held]);
        return fy_end_area(registry, end);
    }
    const fy_place *place = &j->channel->places[part->place];
    *base_out = place->spots[j->service->exec->side].mapped;
    return fy_place_area(j->channel, place);
}

static bool is_in_place(const fy_area *to, const char *to_base, const fy_area *from,
                        const char *from_base)
{
    if (to_base + to->offset != from_base + from->offset || to->run_bytes != from->run_bytes ||
        to->n_dims != from->n_dims) {
        return false;
    }
    for (uint32_t d = 0; d < to->n_dims; d++) {
        if (to->length[d] != from->length[d] || to->stride[d] != from->stride[d]) {
            return false;
        }
    }
    return true;
}

static uint64_t copy_part(const job *j, const fy_part_of *part, uint64_t skip, uint64_t bytes)
{
    const char *from_base;
    char *to_base;
    fy_area from = source_of(j, part, &from_base);
    fy_area to = target_of(j, part, &to_base);
    if (j->hashes != NULL) {
        if (is_in_place(&to, to_base, &from, from_base)) {
            return fy_area_hash(&from, from_base, part->first + skip, bytes);
        }
        return fy_area_copy_hash(&to, to_base, &from, from_base, part->first + skip, bytes);
    }
    if (!is_in_place(&to, to_base, &from, from_base)) {
        fy_area_copy(&to, to_base, &from, from_base, part->first + skip, bytes);
    }
    return 0;
}

/* The fence belongs to the thread that stored. */
static void copy_whole_part(void *context, uint64_t index)
{
    const job *j = context;
    const fy_part_of *part = &j->lane->parts[j->item->first_part + index];
    uint64_t hash = copy_part(j, part, 0, part->bytes);
    if (j->hashes != NULL) {
        j->hashes[index] = hash;
    }
    fy_copy_fence();
}

static void copy_chunk(void *context, uint64_t index)
{
    const job *j = context;
    uint64_t begin = index * CHUNK_BYTES;
    uint64_t end = begin + CHUNK_BYTES;
    uint64_t at = 0;
    for (uint32_t p = 0; p < j->item->n_parts && at < end; p++) {
        const fy_part_of *part = &j->lane->parts[j->item->first_part + p];
        uint64_t from = at > begin ? at : begin;
        uint64_t to = at + part->bytes < end ? at + part->bytes : end;
        if (from < to) {
            copy_part(j, part, from - at, to - from);
        }
        at += part->bytes;
    }
    fy_copy_fence();
}

static void copy_all(ferry_service *service, job *j)
{
    if (fy_team_size(service->team) == 1) {
        for (uint32_t p = 0; p < j->item->n_parts; p++) {
            const fy_part_of *part = &j->lane->parts[j->item->first_part + p];
            uint64_t hash = copy_part(j, part, 0, part->bytes);
            if (j->hashes != NULL) {
                j->hashes[p] = hash;
            }
        }
        fy_copy_fence();
    } else if (j->hashes != NULL) {
        fy_team_run(service->team, j->item->n_parts, copy_whole_part, j);
    } else {
        fy_team_run(service->team, (j->item->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES, copy_chunk, j);
    }
}

void fy_copy_mapped(ferry_service *service, const fy_channel *channel, const fy_item *item,
                    uint64_t *hashes)
{
    job j = {.service = service,
             .channel = channel,
             .lane = channel == NULL ? &service->exec->local : &channel->out,
             .item = item,
             .hashes = hashes};
    copy_all(service, &j);
}
