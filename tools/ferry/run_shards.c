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

/* Things by name, of which there may be a great many. */
typedef struct named {
    const char *name;
    void *memory;
} named;

typedef struct named_list {
    named *items;
    size_t n, capacity;
} named_list;

typedef struct pass {
    const run_shards *shards;
    run_work work;
    char *const *memories;
    size_t index;
    uint64_t done;
    run_aid aid;
    run_parts parts;
    named_list parameters;
    /* Scales as they come beside codes, which the copy service has where nobody sees them: by their
     * own name, and by that of the codes, which is a tensor's or a parameter's; of f4 those of its
     * matrices apart. */
    named_list staged, staged_by_codes, matrices_by_codes;
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

static ferry_status out_of_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "out of memory");
    return FERRY_ERR_NO_MEMORY;
}

static ferry_status add_named(named_list *list, const char *name, void *memory, ferry_error *error)
{
    if (list->n == list->capacity) {
        size_t capacity = 2 * list->n + 16;
        named *grown = realloc(list->items, capacity * sizeof *grown);
        if (grown == NULL) {
            return out_of_memory(error);
        }
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->n++] = (named){name, memory};
    return FERRY_OK;
}

static int compare_named(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static void sort_named(named_list *list)
{
    if (list->n > 1) {
        qsort(list->items, list->n, sizeof *list->items, compare_named);
    }
}

/* NULL: nothing is called that. */
static void *find_named(const named_list *list, const char *name)
{
    named wanted = {.name = name};
    const named *found =
        list->n == 0 ? NULL
                     : bsearch(&wanted, list->items, list->n, sizeof *list->items, compare_named);
    return found == NULL ? NULL : found->memory;
}

/* Those of matrices follow those of blocks of the same codes. */
static named_list *list_of(pass *p, const char *codes)
{
    const named_list *blocks = &p->staged_by_codes;
    bool is_second = blocks->n > 0 && strcmp(blocks->items[blocks->n - 1].name, codes) == 0;
    return is_second ? &p->matrices_by_codes : &p->staged_by_codes;
}

static ferry_status reckon_staged(void *context, const ferry_shard *shard)
{
    pass *p = context;
    run_mismatch ignored;
    void *scales = calloc(shard->bytes + 1, 1);
    if (scales == NULL) {
        return out_of_memory(p->error);
    }
    ferry_status status = add_named(&p->staged, shard->tensor, scales, p->error);
    if (status != FERRY_OK) {
        free(scales);
        return status;
    }
    FY_THEN(status, add_named(list_of(p, shard->values), shard->values, scales, p->error));
    if (shard->is_parameter) { /* its boxes follow */
        return status;
    }
    FY_THEN(status,
            run_walk(shard, FERRY_SIDE_DESTINATION, RUN_FILL, scales, &p->aid, &ignored, p->error));
    return status;
}

static ferry_status reckon_staged_box(void *context, const ferry_held_box *box)
{
    pass *p = context;
    void *scales = find_named(&p->staged, box->parameter);
    return scales == NULL ? FERRY_OK : run_walk_box(box, RUN_FILL, scales, &p->aid, NULL);
}

/* All tensors whose codes are f4, twice: see run_aid. */
typedef struct given_list {
    run_given *items;
    size_t n, capacity;
    bool dequantizes;
    ferry_error *error;
} given_list;

static ferry_status add_given(given_list *list, const char *tensor, const char *scale)
{
    const run_given *last = list->n == 0 ? NULL : &list->items[list->n - 1];
    if (last != NULL && last->scale == scale && strcmp(last->tensor, tensor) == 0) {
        return FERRY_OK;
    }
    if (list->n == list->capacity) {
        size_t capacity = 2 * list->n + 16;
        run_given *grown = realloc(list->items, 2 * capacity * sizeof *grown);
        if (grown == NULL) {
            return out_of_memory(list->error);
        }
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->n++] = (run_given){tensor, scale};
    return FERRY_OK;
}

static ferry_status note_given(void *context, const ferry_block_work *work)
{
    given_list *list = context;
    list->dequantizes = list->dequantizes || work->dequantizes;
    return work->tensor_scale == NULL ? FERRY_OK
                                      : add_given(list, work->tensor, work->tensor_scale);
}

/* What scales of matrices come from that are beside codes of f4: they are called so. */
static ferry_status note_beside(void *context, const ferry_move *move)
{
    static const char suffix[] = ":scales_2";
    size_t n = strlen(move->tensor), of_suffix = sizeof suffix - 1;
    bool is_beside = n > of_suffix && strcmp(move->tensor + n - of_suffix, suffix) == 0;
    return is_beside && move->source != NULL ? add_given(context, "", move->source) : FERRY_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const run_given *)a)->tensor, ((const run_given *)b)->tensor);
}

static int compare_scales(const void *a, const void *b)
{
    return strcmp(((const run_given *)a)->scale, ((const run_given *)b)->scale);
}

static ferry_status list_given(const ferry_plan *plan, given_list *list, run_aid *aid,
                               ferry_error *error)
{
    FY_TRY(ferry_plan_visit_block_work(plan, note_given, list, error));
    if (list->dequantizes) {
        FY_TRY(ferry_plan_visit(plan, FERRY_ALL_RANKS, note_beside, list, NULL, error));
    }
    aid->n_given = list->n;
    if (list->n > 0) {
        memcpy(list->items + list->n, list->items, list->n * sizeof *list->items);
        qsort(list->items, list->n, sizeof *list->items, compare_tensors);
        qsort(list->items + list->n, list->n, sizeof *list->items, compare_scales);
        aid->by_tensor = list->items;
        aid->by_scale = list->items + list->n;
    }
    return FERRY_OK;
}

/* What tensors are made of that the rank has codes of. */
static ferry_status list_parts(pass *p, ferry_error *error)
{
    const run_shards *s = p->shards;
    p->parts.error = p->error;
    FY_TRY(
        ferry_plan_visit_shards(s->plan, s->side, s->rank, run_parts_note_shard, &p->parts, error));
    FY_TRY(ferry_plan_visit_held_boxes(s->plan, s->side, s->rank, run_parts_note_box, &p->parts,
                                       error));
    run_parts_settle(&p->parts);
    for (size_t i = 0; i < p->parts.n_parts; i++) {
        p->parts.parts[i].key = run_aid_key(&p->aid, p->parts.parts[i].source);
    }
    for (size_t i = 0; i < p->parts.n_tensors; i++) {
        p->parts.tensors[i].key = run_aid_key(&p->aid, p->parts.tensors[i].tensor);
    }
    return FERRY_OK;
}

static const void *scales_of(const named_list *by_codes, const ferry_shard *shard)
{
    bool has_codes =
        shard->conversion != NULL && shard->conversion->kind == FERRY_CONVERSION_DEQUANTIZE;
    return has_codes ? find_named(by_codes, shard->tensor) : NULL;
}

static ferry_status work_on_shard(void *context, const ferry_shard *shard)
{
    pass *p = context;
    run_mismatch wrong = {0};
    ferry_status status = FERRY_OK;
    if (!shard->is_parameter) { /* else boxes and fills are worked on */
        p->aid.scales = scales_of(&p->staged_by_codes, shard);
        p->aid.matrix_scales = scales_of(&p->matrices_by_codes, shard);
        status = run_walk(shard, p->shards->side, p->work, p->memories[p->index], &p->aid, &wrong,
                          p->error);
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

static ferry_status work_on_box(void *context, const ferry_held_box *held)
{
    pass *p = context;
    const ferry_held_box own = run_own_box(held, &p->aid), *box = &own;
    run_mismatch wrong = {0};
    char tensor[800], element[1400];
    void *memory = find_named(&p->parameters, box->parameter);
    p->aid.scales = box->scales == NULL ? NULL : find_named(&p->staged, box->scales);
    p->aid.matrix_scales =
        box->matrix_scales == NULL ? NULL : find_named(&p->staged, box->matrix_scales);
    if (memory == NULL || run_walk_box(box, p->work, memory, &p->aid, &wrong) == FERRY_OK) {
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
    void *memory = find_named(&p->parameters, fill->parameter);
    if (memory == NULL || run_walk_fill(fill, p->work, memory, &wrong) == FERRY_OK) {
        return FERRY_OK;
    }
    snprintf(element, sizeof element, "element %llu of %.500s, which is filled,",
             (unsigned long long)wrong.element, fill->parameter);
    return fail_wrong(p, element, &wrong);
}

static ferry_status list_parameters(pass *p)
{
    const run_shards *s = p->shards;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < s->n && status == FERRY_OK; i++) {
        status = add_named(&p->parameters, s->names[i], p->memories[i], p->error);
    }
    sort_named(&p->parameters);
    return status;
}

ferry_status run_shards_work(const run_shards *shards, uint32_t work, char *const *memories,
                             run_progress_fn progress, void *context, ferry_error *error)
{
    ferry_error said = {{0}};
    run_blocks blocks = {.kept = NULL};
    pass p = {.shards = shards,
              .work = (run_work)work,
              .aid = {.blocks = &blocks},
              .memories = memories,
              .progress = progress,
              .context = context,
              .error = &said};
    p.aid.parts = &p.parts;
    given_list given = {.error = &said};
    ferry_status status = list_parameters(&p);
    FY_THEN(status, list_given(shards->plan, &given, &p.aid, error));
    if (status == FERRY_OK && shards->side == FERRY_SIDE_DESTINATION) {
        status = list_parts(&p, error);
        FY_THEN(status,
                ferry_plan_visit_staged(shards->plan, shards->rank, reckon_staged, &p, error));
        sort_named(&p.staged);
        sort_named(&p.staged_by_codes);
        sort_named(&p.matrices_by_codes);
        FY_THEN(status, ferry_plan_visit_held_boxes(shards->plan, shards->side, shards->rank,
                                                    reckon_staged_box, &p, error));
    }
    FY_THEN(status, ferry_plan_visit_shards(shards->plan, shards->side, shards->rank, work_on_shard,
                                            &p, error));
    FY_THEN(status, ferry_plan_visit_held_boxes(shards->plan, shards->side, shards->rank,
                                                work_on_box, &p, error));
    if (status == FERRY_OK && shards->side == FERRY_SIDE_DESTINATION) {
        status = ferry_plan_visit_fills(shards->plan, shards->rank, work_on_fill, &p, error);
    }
    for (size_t i = 0; i < p.staged.n; i++) {
        free(p.staged.items[i].memory);
    }
    free(p.staged.items);
    free(p.staged_by_codes.items);
    free(p.matrices_by_codes.items);
    free(p.parameters.items);
    free(given.items);
    run_parts_free(&p.parts);
    run_blocks_free(&blocks);
    if (status != FERRY_OK && said.message[0] != '\0') {
        *error = said; /* what the visitor knew; the visit itself has nothing to add */
    }
    return status;
}
