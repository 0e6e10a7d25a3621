/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The tensors that a rank holds: where each lies in memory, what is in it, whether it fits. */
#include "run.h"

#include "plan.h"
#include "run_walk.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALL_ALIGNMENT = 64,
    PAGE_ALIGNMENT = 4096,
    LARGE_BYTES = 1 << 20,
    RANK_BYTES = 8 << 20 /* what a rank needs beside shards and staging */
};

/* Offsets are counted from 0 in every pass alike. */
static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t alignment = bytes >= LARGE_BYTES ? PAGE_ALIGNMENT : SMALL_ALIGNMENT;
    uint64_t begin = (*end + alignment - 1) / alignment * alignment;
    *end = begin + bytes;
    return begin;
}

typedef struct collecting {
    run_shards *shards;
    size_t capacity;
    bool counts_only;
    ferry_error *error;
} collecting;

static ferry_status grow(collecting *c)
{
    run_shards *s = c->shards;
    size_t capacity = c->capacity == 0 ? 64 : 2 * c->capacity;
    uint64_t *offsets = realloc(s->offsets, capacity * sizeof *offsets);
    s->offsets = offsets != NULL ? offsets : s->offsets;
    uint64_t *bytes = realloc(s->bytes, capacity * sizeof *bytes);
    s->bytes = bytes != NULL ? bytes : s->bytes;
    const char **names = realloc(s->names, capacity * sizeof *names);
    s->names = names != NULL ? names : s->names;
    if (offsets == NULL || bytes == NULL || names == NULL) {
        snprintf(c->error->message, sizeof c->error->message, "out of memory");
        return FERRY_ERR_NO_MEMORY;
    }
    c->capacity = capacity;
    return FERRY_OK;
}

static ferry_status collect(void *context, const ferry_shard *shard)
{
    collecting *c = context;
    run_shards *s = c->shards;
    uint64_t offset = place(&s->memory_bytes, shard->bytes);
    s->tensor_bytes += shard->bytes;
    if (!c->counts_only) {
        if (s->n == c->capacity && grow(c) != FERRY_OK) {
            return FERRY_ERR_NO_MEMORY;
        }
        s->offsets[s->n] = offset;
        s->bytes[s->n] = shard->bytes;
        s->names[s->n] = shard->tensor;
    }
    s->n++;
    return FERRY_OK;
}

static ferry_status collect_all(const ferry_plan *plan, ferry_side_role side, uint32_t rank,
                                bool counts_only, run_shards *shards, ferry_error *error)
{
    *shards = (run_shards){.plan = plan, .side = side, .rank = rank};
    collecting c = {.shards = shards, .counts_only = counts_only, .error = error};
    return ferry_plan_visit_shards(plan, side, rank, collect, &c, error);
}

ferry_status run_shards_open(const ferry_plan *plan, ferry_side_role side, uint32_t rank,
                             run_shards *shards_out, ferry_error *error)
{
    run_shards shards;
    ferry_status status = collect_all(plan, side, rank, false, &shards, error);
    if (status != FERRY_OK) {
        run_shards_close(&shards);
        return status;
    }
    *shards_out = shards;
    return FERRY_OK;
}

void run_shards_close(run_shards *shards)
{
    free(shards->offsets);
    free(shards->bytes);
    free(shards->names);
    *shards = (run_shards){0};
}

ferry_status run_needed_bytes(const run_request *request, const ferry_plan *plan, uint32_t rank,
                              uint64_t *bytes_out, ferry_error *error)
{
    run_shards sources, destinations;
    ferry_rank_bytes traffic = FERRY_RANK_BYTES_INIT;
    FY_TRY(collect_all(plan, FERRY_SIDE_SOURCE, rank, true, &sources, error));
    FY_TRY(collect_all(plan, FERRY_SIDE_DESTINATION, rank, true, &destinations, error));
    FY_TRY(ferry_plan_get_rank_bytes(plan, rank, &traffic, error));
    uint64_t cap = request->service.memory_cap > 0 ? request->service.memory_cap : FERRY_MEMORY_CAP;
    uint64_t travels = traffic.in + traffic.out;
    bool swaps = request->service.commit == FERRY_COMMIT_SWAP;
    uint64_t shards = sources.memory_bytes + destinations.memory_bytes * (swaps ? 2 : 1);
    if (run_memory_is_device(request->memory)) { /* one side at a time passes through the host */
        uint64_t side = sources.memory_bytes > destinations.memory_bytes
                            ? sources.memory_bytes
                            : destinations.memory_bytes;
        shards = request->memory == RUN_MEMORY_FAR ? shards + side : side;
    }
    *bytes_out = shards + (travels < cap ? travels : cap) + RANK_BYTES;
    return FERRY_OK;
}

ferry_status run_check_room(uint64_t needed, uint64_t room, uint32_t n_ranks, ferry_error *error)
{
    char text[2][32];
    if (needed <= room) {
        return FERRY_OK;
    }
    snprintf(error->message, sizeof error->message,
             "%u rank%s of this run need%s at least %s of memory on this machine, which has %s "
             "free; take part of the model with --subset, or spread the ranks over machines with "
             "ferry launch",
             n_ranks, n_ranks == 1 ? "" : "s", n_ranks == 1 ? "s" : "",
             format_bytes((double)needed, text[0]), format_bytes((double)room, text[1]));
    return FERRY_ERR_NO_MEMORY;
}

/* ---- passes over all ---- */

typedef struct pass {
    const run_shards *shards;
    run_work work;
    char *const *memories;
    size_t index;
    size_t parameter; /* that was worked on last */
    uint64_t done;
    run_progress_fn progress;
    void *context;
    ferry_error *error;
} pass;

/* element: which one it is, in words. */
static ferry_status fail_wrong(const pass *p, const char *element, const run_mismatch *wrong)
{
    char expected[40] = "", found[40] = "";
    for (uint64_t i = wrong->n_bytes; i-- > 0;) { /* as one reads a number */
        size_t used = strlen(found);
        snprintf(found + used, sizeof found - used, "%02x", wrong->found[i]);
        snprintf(expected + used, sizeof expected - used, "%02x", wrong->expected[i]);
    }
    snprintf(p->error->message, sizeof p->error->message,
             "%s on rank %u is 0x%s, and should be 0x%s", element, p->shards->rank, found,
             expected);
    return FERRY_ERR_DIGEST;
}

/* What the command can reckon, element by element, so as to compare it. */
static ferry_status check_known(const pass *p, const char *name, const ferry_conversion *conversion)
{
    if (conversion == NULL || conversion->kind == FERRY_CONVERSION_CAST) {
        return FERRY_OK;
    }
    snprintf(p->error->message, sizeof p->error->message,
             "%.500s is quantized on its way, which is moved here, but not verified: use --verify "
             "none",
             name);
    return FERRY_ERR_UNSUPPORTED;
}

static ferry_status work_on_shard(void *context, const ferry_shard *shard)
{
    pass *p = context;
    run_mismatch wrong = {0};
    ferry_status status = check_known(p, shard->tensor, shard->conversion);
    if (status == FERRY_OK && !shard->is_parameter) { /* else boxes and fills are worked on */
        status = run_walk(shard, p->shards->side, p->work, p->memories[p->index], &wrong, p->error);
    }
    if (status == FERRY_ERR_DIGEST) {
        char element[800];
        run_element_text(shard, wrong.element, element, sizeof element);
        return fail_wrong(p, element, &wrong);
    }
    p->index++;
    p->done += shard->bytes;
    if (p->progress != NULL) {
        p->progress(p->context, p->done, p->shards->tensor_bytes);
    }
    return status;
}

/* Boxes and fills come in the order of the parameters. */
static void *memory_of(pass *p, const char *parameter)
{
    const run_shards *s = p->shards;
    for (size_t i = 0; i < s->n; i++) {
        size_t at = (p->parameter + i) % s->n;
        if (strcmp(s->names[at], parameter) == 0) {
            p->parameter = at;
            return p->memories[at];
        }
    }
    return NULL;
}

static ferry_status work_on_box(void *context, const ferry_held_box *box)
{
    pass *p = context;
    run_mismatch wrong = {0};
    char tensor[800], element[1400];
    void *memory = memory_of(p, box->parameter);
    ferry_status known = check_known(p, box->parameter, box->conversion);
    if (known != FERRY_OK) {
        return known;
    }
    if (memory == NULL || run_walk_box(box, p->work, memory, &wrong) == FERRY_OK) {
        return FERRY_OK;
    }
    run_box_text(box, wrong.from, tensor, sizeof tensor);
    snprintf(element, sizeof element, "element %llu of %.500s, which is %s,",
             (unsigned long long)wrong.element, box->parameter, tensor);
    return fail_wrong(p, element, &wrong);
}

static ferry_status work_on_fill(void *context, const ferry_fill *fill)
{
    pass *p = context;
    run_mismatch wrong = {0};
    char element[700];
    void *memory = memory_of(p, fill->parameter);
    if (memory == NULL || run_walk_fill(fill, p->work, memory, &wrong) == FERRY_OK) {
        return FERRY_OK;
    }
    snprintf(element, sizeof element, "element %llu of %.500s, which is filled,",
             (unsigned long long)wrong.element, fill->parameter);
    return fail_wrong(p, element, &wrong);
}

ferry_status run_shards_work(const run_shards *shards, uint32_t work, char *const *memories,
                             run_progress_fn progress, void *context, ferry_error *error)
{
    ferry_error said = {{0}};
    pass p = {.shards = shards,
              .work = (run_work)work,
              .memories = memories,
              .progress = progress,
              .context = context,
              .error = &said};
    ferry_status status =
        ferry_plan_visit_shards(shards->plan, shards->side, shards->rank, work_on_shard, &p, error);
    FY_THEN(status, ferry_plan_visit_held_boxes(shards->plan, shards->side, shards->rank,
                                                work_on_box, &p, error));
    if (status == FERRY_OK && shards->side == FERRY_SIDE_DESTINATION) {
        status = ferry_plan_visit_fills(shards->plan, shards->rank, work_on_fill, &p, error);
    }
    if (status != FERRY_OK && said.message[0] != '\0') {
        *error = said; /* what the visitor knew; the visit itself has nothing to add */
    }
    return status;
}
