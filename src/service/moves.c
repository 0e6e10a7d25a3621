/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/moves.h"

#include "base/alloc.h"
#include "host/copy.h"
#include "transport/transport.h"

/*
 * Queues
 */

static const fy_space host = {.kind = FERRY_MEMORY_HOST};

static ferry_status add_queue(fy_moves *moves, fy_space from, fy_space to, ferry_error *error)
{
    return fy_is_host(from) && fy_is_host(to)
               ? FERRY_OK
               : fy_queues_add(&moves->queues, fy_exec_for(from, to), error);
}

/* Of memory here, and of peers' that is mapped here, in each direction that bytes may take. */
static ferry_status add_queues(const ferry_service *service, fy_moves *moves, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    const fy_service_program *program = service->program;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && registry->has_far && i < registry->n_held; i++) {
        const ferry_buffer *sides[] = {&registry->held[i].front, &registry->held[i].back};
        for (int s = 0; status == FERRY_OK && s < 2; s++) {
            status = add_queue(moves, fy_space_of(sides[s]), host, error);
        }
    }
    for (uint32_t c = 0; status == FERRY_OK && c < program->n_channels; c++) {
        const fy_channel *channel = &program->channels[c];
        if (channel->out_aside || channel->in_aside) {
            fy_space aside = fy_transport_aside_space(service->transport);
            status = add_queue(moves, aside, aside, error);
        }
        for (uint32_t b = 0; status == FERRY_OK && b < 2 * channel->n_bases; b++) {
            const fy_spot *spot = &channel->bases[b / 2].spots[b % 2];
            if (spot->mapped != NULL) {
                status = add_queue(moves, host, spot->space, error);
            }
        }
    }
    return status;
}

static ferry_status make_bounce(const ferry_service *service, fy_moves *moves, ferry_error *error)
{
    const fy_lane *local = &service->program->local;
    uint64_t most = 0;
    for (size_t i = 0; i < local->n_items; i++) {
        most = local->items[i].bytes > most ? local->items[i].bytes : most;
    }
    moves->bounce = fy_alloc(most + 1, 1);
    return moves->bounce == NULL ? fy_fail_no_memory(error, "moves between devices") : FERRY_OK;
}

ferry_status fy_moves_open(const ferry_service *service, fy_moves **moves_out, ferry_error *error)
{
    fy_moves *moves = fy_alloc_zeroed(1, sizeof *moves);
    if (moves == NULL) {
        return fy_fail_no_memory(error, "moves between devices");
    }
    ferry_status status = add_queues(service, moves, error);
    if (status == FERRY_OK && moves->queues.n > 0) {
        status = make_bounce(service, moves, error);
    }
    if (status != FERRY_OK || moves->queues.n == 0) {
        fy_moves_close(moves);
        return status;
    }
    *moves_out = moves;
    return FERRY_OK;
}

void fy_moves_close(fy_moves *moves)
{
    if (moves != NULL) {
        fy_queues_close(&moves->queues);
        fy_free(moves->bounce);
        fy_free(moves);
    }
}

/*
 * Verbs
 */

/* Who moves between the two; NULL: the CPU. */
static fy_device_queue *mover_of(ferry_service *service, fy_space from, fy_space to)
{
    return fy_is_host(from) && fy_is_host(to)
               ? NULL
               : fy_queues_use(&service->run->moves->queues, from, to);
}

/* An area in which packed bytes are those of the same numbers, with its base. */
static char *base_of_packed(const char *packed, uint64_t first)
{
    return (char *)((uintptr_t)packed - first);
}

/*
 * Casts: of bytes that travel, the same elements in the packed bytes and in an area.
 */
typedef struct casting {
    const fy_task_cast *how;
    fy_device_queue *by; /* NULL: the CPU */
    uint64_t first, n;   /* elements */
    fy_area flat;        /* all of the task's, packed */
    char *packed;        /* its base */
} casting;

static casting casting_of(const fy_task_cast *how, fy_device_queue *by, const fy_area *area,
                          uint64_t element_bytes, uint64_t first, uint64_t bytes,
                          const char *packed)
{
    uint64_t wire = how->wire_bytes;
    return (casting){.how = how,
                     .by = by,
                     .first = first / wire,
                     .n = bytes / wire,
                     .flat = fy_area_flat(0, area->bytes / element_bytes * wire),
                     .packed = base_of_packed(packed, first)};
}

static ferry_status pack_cast(ferry_service *service, const fy_part_end *from, const casting *c,
                              uint64_t *hash_out, ferry_error *error)
{
    const fy_cast *cast = &c->how->cast;
    if (c->by != NULL) {
        service->statistics.bytes_device += c->n * c->how->wire_bytes;
        return c->by->exec->cast(c->by->queue, cast, &c->flat, c->packed, &from->area, from->base,
                                 c->first, c->n, hash_out, error);
    }
    if (hash_out != NULL) {
        *hash_out =
            fy_area_cast_hash(cast, &c->flat, c->packed, &from->area, from->base, c->first, c->n);
    } else {
        fy_area_cast_cached(cast, &c->flat, c->packed, &from->area, from->base, c->first, c->n);
    }
    return FERRY_OK;
}

static ferry_status unpack_cast(ferry_service *service, const fy_part_end *to, const casting *c,
                                ferry_error *error)
{
    const fy_cast *cast = &c->how->cast;
    if (c->by != NULL) {
        service->statistics.bytes_device += c->n * c->how->wire_bytes;
        return c->by->exec->cast(c->by->queue, cast, &to->area, to->base, &c->flat, c->packed,
                                 c->first, c->n, NULL, error);
    }
    fy_area_cast(cast, &to->area, to->base, &c->flat, c->packed, c->first, c->n);
    return FERRY_OK;
}

ferry_status fy_move_pack(ferry_service *service, const fy_part_end *from, uint64_t first,
                          uint64_t bytes, fy_payload packed, uint64_t *hash_out, ferry_error *error)
{
    fy_device_queue *by = mover_of(service, from->space, packed.space);
    if (from->conversion != NULL && !from->conversion->at_receiver) {
        casting c = casting_of(from->conversion, by, &from->area, from->conversion->from_bytes,
                               first, bytes, packed.at);
        return pack_cast(service, from, &c, hash_out, error);
    }
    if (by != NULL) {
        service->statistics.bytes_device += bytes;
        fy_area flat = fy_area_flat(0, from->area.bytes);
        return by->exec->copy(by->queue, &flat, base_of_packed(packed.at, first), &from->area,
                              from->base, first, bytes, hash_out, error);
    }
    if (hash_out != NULL) {
        *hash_out = fy_area_pack_hash(packed.at, &from->area, from->base, first, bytes);
    } else {
        fy_area_pack_cached(packed.at, &from->area, from->base, first, bytes);
    }
    return FERRY_OK;
}

ferry_status fy_move_unpack(ferry_service *service, const fy_part_end *to, uint64_t first,
                            uint64_t bytes, fy_payload packed, uint64_t *hash_out,
                            ferry_error *error)
{
    fy_device_queue *by = mover_of(service, packed.space, to->space);
    if (fy_casts_on_arrival(to->conversion)) {
        casting c = casting_of(to->conversion, by, &to->area, to->conversion->to_bytes, first,
                               bytes, packed.at);
        return unpack_cast(service, to, &c, error);
    }
    if (by != NULL) {
        service->statistics.bytes_device += bytes;
        fy_area flat = fy_area_flat(0, to->area.bytes);
        return by->exec->copy(by->queue, &to->area, to->base, &flat,
                              base_of_packed(packed.at, first), first, bytes, hash_out, error);
    }
    if (hash_out != NULL) {
        *hash_out = fy_area_unpack_hash(&to->area, to->base, packed.at, first, bytes);
    } else {
        fy_area_unpack(&to->area, to->base, packed.at, first, bytes);
    }
    return FERRY_OK;
}

ferry_status fy_move_copy(ferry_service *service, const fy_part_end *to, const fy_part_end *from,
                          uint64_t first, uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    fy_device_queue *by = mover_of(service, from->space, to->space);
    const fy_task_cast *how = from->conversion;
    service->statistics.bytes_device += bytes;
    if (how != NULL) {
        return by->exec->cast(by->queue, &how->cast, &to->area, to->base, &from->area, from->base,
                              first / how->wire_bytes, bytes / how->wire_bytes, hash_out, error);
    }
    return by->exec->copy(by->queue, &to->area, to->base, &from->area, from->base, first, bytes,
                          hash_out, error);
}

uint64_t fy_packed_hash(const fy_task_cast *conversion, const char *packed, uint64_t bytes)
{
    fy_area flat = fy_area_flat(0, bytes);
    return fy_area_cast_hash(&conversion->cast, NULL, NULL, &flat, packed, 0,
                             bytes / conversion->wire_bytes);
}

ferry_status fy_move_hash(ferry_service *service, const fy_part_end *side, uint64_t first,
                          uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    fy_device_queue *by = mover_of(service, side->space, side->space);
    if (by != NULL) {
        return by->exec->hash(by->queue, &side->area, side->base, first, bytes, hash_out, error);
    }
    *hash_out = fy_area_hash(&side->area, side->base, first, bytes);
    return FERRY_OK;
}

ferry_status fy_move_gather(ferry_service *service, const fy_part_end *side, uint64_t first,
                            uint64_t bytes, char *packed, ferry_error *error)
{
    fy_part_end plain = *side;
    plain.conversion = NULL;
    return fy_move_pack(service, &plain, first, bytes, fy_payload_here(packed), NULL, error);
}

bool fy_move_has_digests(fy_space space)
{
    const fy_exec *exec = fy_exec_for(space, space).exec;
    return exec != NULL && exec->digests != NULL;
}

ferry_status fy_move_digests(ferry_service *service, fy_space space, const fy_exec_part *parts,
                             size_t n, char *digests_out, ferry_error *error)
{
    fy_device_queue *by = mover_of(service, space, space);
    return by->exec->digests(by->queue, parts, n, digests_out, error);
}
