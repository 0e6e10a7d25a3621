/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether every send has its receive. A task is a source, a destination, an id and a number of
 * bytes; the hashes of all sends less those of all receives sum to zero if they are the same set.
 * One agreement on the sum says so. If not, the first task that differs is found by narrowing:
 * the ranks of sources, then of destinations, then the ids are cut into parts, and the first part
 * whose sum is not zero is cut again. No list of tasks ever travels.
 */
#include "base/alloc.h"
#include "base/hash.h"
#include "service/registry.h"
#include "world/agree.h"

#include <stdio.h>
#include <string.h>

enum { N_PARTS = 16 };

/* The coordinates of a task, in the order in which they are narrowed. */
enum { SOURCE, DESTINATION, TASK, N_COORDINATES };

/* The tasks that are looked at: those before `at` are known, `at` is within [first, last]. */
typedef struct search {
    uint64_t known[N_COORDINATES];
    int at;
    uint64_t first, last;
} search;

typedef struct sums {
    fy_hash128 parts[N_PARTS];
} sums;

/* What the source or the destination knows of the task that was found. */
typedef struct finding {
    uint64_t has; /* whether it registered the task */
    uint64_t bytes;
    uint64_t n_tasks; /* of this pair */
    char name[FY_FIELD_TEXT_BYTES];
} finding;

/* Halves are summed one by one, each modulo 2^64, as the ranks' are. */
static fy_hash128 add(fy_hash128 a, fy_hash128 b)
{
    return (fy_hash128){.low = a.low + b.low, .high = a.high + b.high};
}

static void locate(const fy_end *end, bool is_send, uint32_t my_rank,
                   uint64_t coordinates[N_COORDINATES])
{
    coordinates[SOURCE] = is_send ? my_rank : end->peer;
    coordinates[DESTINATION] = is_send ? end->peer : my_rank;
    coordinates[TASK] = end->task_id;
}

/* Positive for a send, negative for a receive. */
static fy_hash128 weigh(const fy_end *end, bool is_send, const uint64_t coordinates[N_COORDINATES])
{
    uint64_t values[] = {coordinates[SOURCE], coordinates[DESTINATION], coordinates[TASK],
                         end->bytes};
    fy_hash128 hash = fy_hash128_of(values, sizeof values);
    return is_send ? hash : (fy_hash128){.low = -hash.low, .high = -hash.high};
}

static fy_hash128 sum_ends(const fy_ends *ends, bool is_send, uint32_t my_rank)
{
    fy_hash128 sum = {0};
    for (size_t i = 0; i < ends->n; i++) {
        uint64_t coordinates[N_COORDINATES];
        locate(&ends->items[i], is_send, my_rank, coordinates);
        sum = add(sum, weigh(&ends->items[i], is_send, coordinates));
    }
    return sum;
}

static uint64_t part_width(const search *s)
{
    return (s->last - s->first) / N_PARTS + 1;
}

/* What is looked at, part by part. */
static void sum_parts(const search *s, const fy_ends *ends, bool is_send, uint32_t my_rank,
                      sums *sums_inout)
{
    for (size_t i = 0; i < ends->n; i++) {
        uint64_t coordinates[N_COORDINATES];
        bool looked_at = true;
        locate(&ends->items[i], is_send, my_rank, coordinates);
        for (int c = 0; c < s->at; c++) {
            looked_at = looked_at && coordinates[c] == s->known[c];
        }
        uint64_t value = coordinates[s->at];
        if (looked_at && value >= s->first && value <= s->last) {
            fy_hash128 *part = &sums_inout->parts[(value - s->first) / part_width(s)];
            *part = add(*part, weigh(&ends->items[i], is_send, coordinates));
        }
    }
}

/* One round: to the first part whose sum over all ranks is not zero; false if there is none. */
static ferry_status narrow(ferry_world *world, const fy_registry *registry, search *s,
                           bool *found_out, ferry_error *error)
{
    uint32_t my_rank = ferry_world_rank(world);
    sums mine = {0};
    fy_field fields[2 * N_PARTS];
    sum_parts(s, &registry->sends, true, my_rank, &mine);
    sum_parts(s, &registry->receives, false, my_rank, &mine);
    for (int p = 0; p < N_PARTS; p++) {
        fields[2 * p] = (fy_field){.value = mine.parts[p].low, .how = FY_SUM};
        fields[2 * p + 1] = (fy_field){.value = mine.parts[p].high, .how = FY_SUM};
    }
    FY_TRY(fy_agree_on(world, FY_JOINT_SERVICE_SCHEDULE, (uint64_t)s->at, fields, 2 * N_PARTS,
                       FERRY_OK, error));
    uint64_t p = 0;
    while (p < N_PARTS && fields[2 * p].value == 0 && fields[2 * p + 1].value == 0) {
        p++;
    }
    /* There are no values behind the last part, so nobody has tasks there. */
    *found_out = p <= (s->last - s->first) / part_width(s) && p < N_PARTS;
    if (*found_out) {
        uint64_t width = part_width(s);
        s->first += p * width;
        s->last = s->last - s->first < width ? s->last : s->first + (width - 1);
    }
    return FERRY_OK;
}

/* The first task that differs, by source, destination and id. */
static ferry_status find_task(ferry_world *world, const fy_registry *registry, search *s,
                              bool *found_out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    bool found = true;
    for (s->at = 0; s->at < N_COORDINATES && found && status == FERRY_OK; s->at++) {
        s->first = 0;
        s->last = s->at == TASK ? UINT64_MAX : ferry_world_rank_count(world) - 1;
        /* Once at least: a coordinate of one value is still to be looked at. */
        do {
            status = narrow(world, registry, s, &found, error);
        } while (status == FERRY_OK && found && s->first < s->last);
        s->known[s->at] = s->first;
    }
    *found_out = found;
    return status;
}

static void look_up(const fy_registry *registry, bool is_send, uint32_t peer, uint64_t task_id,
                    finding *out)
{
    const fy_ends *ends = is_send ? &registry->sends : &registry->receives;
    const fy_end *end = fy_ends_find(ends, peer, task_id);
    *out = (finding){.has = end != NULL};
    for (size_t i = 0; i < ends->n; i++) {
        out->n_tasks += ends->items[i].peer == peer;
    }
    if (end != NULL) {
        out->bytes = end->bytes;
        snprintf(out->name, sizeof out->name, "%s", fy_held_name(registry, end->held));
    }
}

/* One side's part of what is told; only the rank of that side has anything. */
enum { HAS, SIZE, N_TASKS, NAME, N_TOLD };

static void list_finding(finding *own, bool is_mine, fy_field fields[N_TOLD])
{
    fields[HAS] = (fy_field){.value = own->has, .how = FY_SUM};
    fields[SIZE] = (fy_field){.value = own->bytes, .how = FY_SUM};
    fields[N_TASKS] = (fy_field){.value = own->n_tasks, .how = FY_SUM};
    fields[NAME] = (fy_field){.name = "the name of a task",
                              .text = own->name,
                              .text_out = own->name,
                              .how = FY_SAME,
                              .has_none = !is_mine};
}

static void take_finding(const fy_field fields[N_TOLD], finding *out)
{
    out->has = fields[HAS].value;
    out->bytes = fields[SIZE].value;
    out->n_tasks = fields[N_TASKS].value;
}

/* What the two ranks of a task know of it, to all. */
static ferry_status tell(ferry_world *world, const search *s, finding *source, finding *destination,
                         ferry_error *error)
{
    fy_field fields[2 * N_TOLD];
    list_finding(source, world->rank == s->known[SOURCE], fields);
    list_finding(destination, world->rank == s->known[DESTINATION], fields + N_TOLD);
    FY_TRY(fy_agree_on(world, FY_JOINT_SERVICE_SCHEDULE, N_COORDINATES, fields, 2 * N_TOLD,
                       FERRY_OK, error));
    take_finding(fields, source);
    take_finding(fields + N_TOLD, destination);
    return FERRY_OK;
}

/* The sentence of a task that is not the same on both sides. */
static ferry_status fail_task(const search *s, const finding *source, const finding *destination,
                              ferry_error *error)
{
    const char *name = source->name[0] != '\0' ? source->name : destination->name;
    bool both = source->has && destination->has;
    char sent[96], received[96];
    uint32_t from = (uint32_t)s->known[SOURCE], to = (uint32_t)s->known[DESTINATION];
    snprintf(sent, sizeof sent, source->has ? "rank %u sends %llu bytes" : "rank %u does not send",
             from, (unsigned long long)source->bytes);
    snprintf(received, sizeof received,
             destination->has ? "rank %u receives %llu bytes" : "rank %u does not receive it", to,
             (unsigned long long)destination->bytes);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "task %llu%s%s%s from rank %u to rank %u: %s, %s (of %llu sends and %llu "
                   "receives that these two registered): register %s",
                   (unsigned long long)s->known[TASK], name[0] == '\0' ? "" : " (", name,
                   name[0] == '\0' ? "" : ")", from, to, sent, received,
                   (unsigned long long)source->n_tasks, (unsigned long long)destination->n_tasks,
                   both ? "the same size on both sides" : "it on both sides, or on neither");
}

ferry_status fy_match_explain(ferry_world *world, const fy_registry *registry, ferry_error *error)
{
    search s = {0};
    bool found = false;
    FY_TRY(find_task(world, registry, &s, &found, error));
    if (!found) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the sends and the receives that the ranks registered do not match");
    }
    uint32_t my_rank = ferry_world_rank(world);
    uint32_t from = (uint32_t)s.known[SOURCE], to = (uint32_t)s.known[DESTINATION];
    finding source = {0}, destination = {0};
    if (my_rank == from) {
        look_up(registry, true, to, s.known[TASK], &source);
    }
    if (my_rank == to) {
        look_up(registry, false, from, s.known[TASK], &destination);
    }
    FY_TRY(tell(world, &s, &source, &destination, error));
    return fail_task(&s, &source, &destination, error);
}

fy_hash128 fy_match_sum(const fy_registry *registry, uint32_t my_rank)
{
    return add(sum_ends(&registry->sends, true, my_rank),
               sum_ends(&registry->receives, false, my_rank));
}
