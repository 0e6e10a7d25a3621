/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether every send has its receive. A task is a source, a destination, an id and a number of
 * bytes; the hashes of all sends less those of all receives sum to zero if they are the same set.
 * One gather of a sum a rank says so. If not, the first task that differs is found by narrowing:
 * the ranks of sources, then of destinations, then the ids are cut into parts, and the first part
 * whose sum is not zero is cut again. No list of tasks ever travels.
 */
#include "base/alloc.h"
#include "base/hash.h"
#include "service/registry.h"
#include "transport/agree.h"

#include <stdio.h>
#include <string.h>

enum { N_PARTS = 16, DIGEST_BYTES = 33, NAME_BYTES = 200 };

/* What a rank brings when all is well. */
typedef struct summary {
    fy_hash128 sum;
    uint64_t options_hash;
    uint32_t has_plan;
    char plan[DIGEST_BYTES + 3];
} summary;

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
    char name[NAME_BYTES];
} finding;

static fy_hash128 negate(fy_hash128 a)
{
    fy_hash128 one = {.low = 1}, inverted = {.low = ~a.low, .high = ~a.high};
    return fy_hash128_add(inverted, one);
}

static bool is_zero(fy_hash128 a)
{
    return a.low == 0 && a.high == 0;
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
    return is_send ? hash : negate(hash);
}

static fy_hash128 sum_ends(const fy_ends *ends, bool is_send, uint32_t my_rank)
{
    fy_hash128 sum = {0};
    for (size_t i = 0; i < ends->n; i++) {
        uint64_t coordinates[N_COORDINATES];
        locate(&ends->items[i], is_send, my_rank, coordinates);
        sum = fy_hash128_add(sum, weigh(&ends->items[i], is_send, coordinates));
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
            *part = fy_hash128_add(*part, weigh(&ends->items[i], is_send, coordinates));
        }
    }
}

static ferry_status fail_damaged(uint32_t rank, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of rank %u is damaged", rank);
}

/* There are no values behind the last part, so nobody has tasks there. */
static bool is_in_range(const search *s, const sums *theirs)
{
    for (uint64_t p = (s->last - s->first) / part_width(s) + 1; p < N_PARTS; p++) {
        if (!is_zero(theirs->parts[p])) {
            return false;
        }
    }
    return true;
}

/* One round: to the first part whose sum over all ranks is not zero; false if there is none. */
static ferry_status narrow(ferry_world *world, const fy_registry *registry, search *s,
                           bool *found_out, ferry_error *error)
{
    uint32_t my_rank = ferry_world_rank(world);
    sums mine = {0};
    const void *all;
    sum_parts(s, &registry->sends, true, my_rank, &mine);
    sum_parts(s, &registry->receives, false, my_rank, &mine);
    ferry_status status = ferry_world_all_gather(world, &mine, sizeof mine, &all, error);
    if (status != FERRY_OK) {
        return status;
    }
    sums total = {0};
    for (uint32_t r = 0; r < ferry_world_n_ranks(world); r++) {
        sums theirs;
        memcpy(&theirs, (const char *)all + r * sizeof theirs, sizeof theirs);
        if (!is_in_range(s, &theirs)) {
            return fail_damaged(r, error);
        }
        for (int p = 0; p < N_PARTS; p++) {
            total.parts[p] = fy_hash128_add(total.parts[p], theirs.parts[p]);
        }
    }
    uint64_t p = 0;
    while (p < N_PARTS && is_zero(total.parts[p])) {
        p++;
    }
    *found_out = p < N_PARTS;
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
        s->last = s->at == TASK ? UINT64_MAX : ferry_world_n_ranks(world) - 1;
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

/* What root knows, to all. */
static ferry_status tell(ferry_world *world, uint32_t root, finding *finding_inout,
                         ferry_error *error)
{
    const void *bytes;
    size_t n_bytes;
    ferry_status status = ferry_world_broadcast(world, root, finding_inout, sizeof *finding_inout,
                                                &bytes, &n_bytes, error);
    if (status == FERRY_OK && n_bytes != sizeof *finding_inout) {
        status = fail_damaged(root, error);
    }
    if (status == FERRY_OK) {
        memcpy(finding_inout, bytes, sizeof *finding_inout);
        if (finding_inout->has > 1 || memchr(finding_inout->name, 0, NAME_BYTES) == NULL) {
            status = fail_damaged(root, error);
        }
    }
    return status;
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

static ferry_status explain(ferry_world *world, const fy_registry *registry, ferry_error *error)
{
    search s = {0};
    bool found = false;
    ferry_status status = find_task(world, registry, &s, &found, error);
    if (status != FERRY_OK) {
        return status;
    }
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
    status = tell(world, from, &source, error);
    if (status == FERRY_OK) {
        status = tell(world, to, &destination, error);
    }
    return status == FERRY_OK ? fail_task(&s, &source, &destination, error) : status;
}

static void summarise(const ferry_world *world, const fy_registry *registry, uint64_t options_hash,
                      summary *out)
{
    uint32_t my_rank = ferry_world_rank(world);
    memset(out, 0, sizeof *out);
    out->sum = fy_hash128_add(sum_ends(&registry->sends, true, my_rank),
                              sum_ends(&registry->receives, false, my_rank));
    out->options_hash = options_hash;
    out->has_plan = registry->plan != NULL;
    if (registry->plan != NULL) {
        ferry_plan_digest(registry->plan, out->plan);
    }
}

/* A rank's summary is compared with rank 0's, its plan with the first one's that has any. */
typedef struct comparison {
    summary first;
    summary planned;
    uint32_t planned_rank;
    fy_hash128 sum;
} comparison;

static bool is_whole(const summary *theirs)
{
    bool is_digest = theirs->plan[DIGEST_BYTES - 1] == '\0';
    for (int i = 0; i < DIGEST_BYTES - 1; i++) {
        char c = theirs->plan[i];
        is_digest = is_digest && ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'));
    }
    return theirs->has_plan == 0 || (theirs->has_plan == 1 && is_digest);
}

static ferry_status compare(comparison *c, uint32_t rank, const summary *theirs, ferry_error *error)
{
    if (!is_whole(theirs)) {
        return fail_damaged(rank, error);
    }
    if (rank == 0) {
        c->first = *theirs;
    }
    if (theirs->options_hash != c->first.options_hash) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "rank %u made its service with other options than rank 0: all but the "
                       "transport must be the same on all ranks",
                       rank);
    }
    if (theirs->has_plan != 0 && c->planned.has_plan == 0) {
        c->planned = *theirs;
        c->planned_rank = rank;
    }
    if (theirs->has_plan != 0 && memcmp(theirs->plan, c->planned.plan, DIGEST_BYTES) != 0) {
        return fy_fail(error, FERRY_ERR_DIGEST,
                       "rank %u bound plan %.32s and rank %u plan %.32s: all ranks bind the same",
                       rank, theirs->plan, c->planned_rank, c->planned.plan);
    }
    c->sum = fy_hash128_add(c->sum, theirs->sum);
    return FERRY_OK;
}

static ferry_status compare_all(const fy_votes *votes, bool *match_out, ferry_error *error)
{
    comparison c = {0};
    ferry_status status = FERRY_OK;
    size_t at = 0, n_bytes;
    for (uint32_t rank = 0; rank < votes->n_ranks && status == FERRY_OK; rank++) {
        summary theirs;
        const void *bytes = fy_votes_next(votes, rank, &at, &n_bytes);
        if (n_bytes != sizeof theirs) {
            return fail_damaged(rank, error);
        }
        memcpy(&theirs, bytes, sizeof theirs);
        status = compare(&c, rank, &theirs, error);
    }
    *match_out = is_zero(c.sum);
    return status;
}

ferry_status fy_match(ferry_world *world, const fy_registry *registry, uint64_t options_hash,
                      ferry_status own, const ferry_error *own_error, ferry_error *error)
{
    ferry_error unsaid;
    summary mine;
    fy_votes votes;
    fy_fail(&unsaid, own, "%s", ferry_status_text(own));
    if (own == FERRY_OK) {
        summarise(world, registry, options_hash, &mine);
    }
    fy_vote vote = {.status = own,
                    .own = own_error == NULL ? &unsaid : own_error,
                    .bytes = &mine,
                    .n_bytes = own == FERRY_OK ? sizeof mine : 0};
    ferry_status status = fy_votes_gather(world, &vote, &votes, error);
    if (status == FERRY_OK) {
        status = fy_votes_status(&votes, error);
    }
    bool match = true;
    if (status == FERRY_OK) {
        status = compare_all(&votes, &match, error);
    }
    return status == FERRY_OK && !match ? explain(world, registry, error) : status;
}
