/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank sends to itself: one item after the other, each in phases. */
#include "service/send.h"

/* A phase begins when what the one before has begun is done. */
enum phase { COPIES, LANDS, READS_AGAIN };
_Static_assert(READS_AGAIN + 1 == FY_LOCAL_PHASES, "a step for each");

static const fy_item *item_of(const ferry_service *service)
{
    return &service->program->local.items[service->run->n_local];
}

static const fy_item_part *part_of(const ferry_service *service, const fy_item *item, uint32_t p)
{
    return &service->program->local.parts[item->first_part + p];
}

static uint64_t *hashes_of(const ferry_service *service, const fy_item *item)
{
    const fy_service_program *program = service->program;
    return program->checks_ends ? service->run->hashes + program->local_hashes + item->first_part
                                : NULL;
}

static uint64_t *found_of(const ferry_service *service, const fy_item *item)
{
    return service->run->found + service->program->local_found + item->first_part;
}

/*
 * From one device to another that it does not reach
 */

/* A part's bytes among those of its item. */
static char *bounce_of(const ferry_service *service, const fy_item *item, uint32_t part)
{
    char *at = service->run->moves->bounce;
    for (uint32_t p = 0; p < part; p++) {
        at += part_of(service, item, p)->bytes;
    }
    return at;
}

ferry_status fy_bounce_begin(ferry_service *service, const fy_item *item, uint32_t part,
                             const fy_part_end *from, uint64_t *hash_out, ferry_error *error)
{
    const fy_item_part *its = part_of(service, item, part);
    bool is_hashed_later = fy_casts_on_arrival(from->conversion);
    return fy_move_pack(service, from, its->first, its->bytes,
                        fy_payload_here(bounce_of(service, item, part)),
                        is_hashed_later ? NULL : hash_out, error);
}

static ferry_status land(ferry_service *service, const fy_item *item, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t p = 0; fy_moves_are_far(service) && status == FERRY_OK && p < item->n_parts;
         p++) {
        const fy_item_part *part = part_of(service, item, p);
        fy_part_end from = fy_source_of(service, part);
        fy_part_end to = fy_goal_of(service, NULL, part);
        if (fy_exec_for(from.space, to.space).exec == NULL) {
            const char *bytes = bounce_of(service, item, p);
            uint64_t *hashes = hashes_of(service, item);
            if (hashes != NULL && fy_casts_on_arrival(to.conversion)) {
                hashes[p] = fy_packed_hash(to.conversion, bytes, part->bytes);
            }
            status = fy_move_unpack(service, &to, part->first, part->bytes, fy_payload_here(bytes),
                                    NULL, error);
        }
    }
    return status;
}

/*
 * The end
 */

static ferry_status read_again(ferry_service *service, const fy_item *item, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t p = 0; service->program->checks_ends && status == FERRY_OK && p < item->n_parts;
         p++) {
        const fy_item_part *part = part_of(service, item, p);
        fy_part_end to = fy_target_at(service, part->place, part->first);
        status = fy_move_hash(service, &to, fy_bytes_there(to.conversion, part->first),
                              fy_bytes_there(to.conversion, part->bytes),
                              &found_of(service, item)[p], error);
    }
    return status;
}

static bool check(ferry_service *service, const fy_item *item)
{
    const uint64_t *hashes = hashes_of(service, item);
    for (uint32_t p = 0; hashes != NULL && p < item->n_parts; p++) {
        const fy_item_part *part = part_of(service, item, p);
        if (found_of(service, item)[p] != hashes[p]) {
            char task[400];
            fy_end_describe(&service->registry, &service->registry.receives.items[part->place],
                            false, service->world->rank, task, sizeof task);
            fy_run_fail(service, FERRY_ERR_DIGEST, service->world->rank,
                        "bytes %llu to %llu of %s are not what left the source",
                        (unsigned long long)part->first,
                        (unsigned long long)(part->first + part->bytes), task);
            return false;
        }
    }
    return true;
}

static ferry_status begin_phase(ferry_service *service, const fy_item *item, ferry_error *error)
{
    switch (service->run->local_phase) {
    case COPIES:
        service->run->local_ns = fy_now_ns();
        return fy_copy_mapped(service, NULL, item, 1, hashes_of(service, item),
                              &service->run->delta.local_skipping, error);
    case LANDS:
        return land(service, item, error);
    default:
        service->run->copied_ns = fy_now_ns();
        return read_again(service, item, error);
    }
}

fy_progress fy_local_move(ferry_service *service)
{
    ferry_error why;
    ferry_status status = begin_phase(service, item_of(service), &why);
    service->run->local_phase++;
    if (status != FERRY_OK) {
        fy_run_fail(service, status, service->world->rank, "%s", why.message);
    }
    return status == FERRY_OK ? FY_PROGRESS_DONE : FY_PROGRESS_FAILED;
}

fy_progress fy_local_end(ferry_service *service)
{
    fy_run_state *run = service->run;
    const fy_item *item = item_of(service);
    run->local_phase = COPIES;
    if (!check(service, item)) {
        return FY_PROGRESS_FAILED;
    }
    fy_bands_take(service, &service->program->local, item, true);
    run->n_local++;
    run->done_bytes += item->bytes;
    fy_statistics_local(service, item, run->local_ns, run->copied_ns);
    fy_statistics_skipped(service, FERRY_PATH_LOCAL, run->delta.local_skipping);
    run->delta.local_skipped += run->delta.local_skipping;
    run->delta.local_skipping = 0;
    return FY_PROGRESS_DONE;
}

bool fy_local_step(ferry_service *service)
{
    return fy_drive_step(&service->run->drive, FY_GRADE_LOCAL);
}
