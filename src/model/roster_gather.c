/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The first half of lowering a roster: which parameters of which outlines are one tensor. */
#include "model/roster_gather.h"

#include "base/sort.h"

#include <string.h>

void fy_gathering_cleanup(fy_roster_gathering *g)
{
    fy_index_cleanup(&g->names);
    fy_free(g->tensors);
    fy_free(g->uses);
    for (int side = 0; side < 2; side++) {
        fy_free(g->first_rank[side]);
        fy_free(g->next_rank[side]);
    }
}

uint32_t fy_gathering_find(const fy_roster_gathering *g, const char *name)
{
    fy_index_cursor c = fy_index_first(&g->names, fy_hash64(name, strlen(name)));
    while (c.value != FY_INDEX_NONE && strcmp(g->problem->tensors[c.value].name, name) != 0) {
        fy_index_next(&g->names, &c);
    }
    return c.value;
}

bool fy_gathering_first(const fy_roster_gathering *g, uint32_t tensor, int side,
                        ferry_param_metadata *metadata_out)
{
    uint32_t i = g->tensors[tensor].first[side];
    if (i == FY_NONE) {
        return false;
    }
    const fy_use *use = &g->uses[i];
    uint32_t rank = g->first_rank[side][use->outline];
    fy_said_param(&g->roster->entries[rank].said[side], rank, use->param, metadata_out);
    return true;
}

/* The ranks of each outline, ascending. */
static ferry_status chain_ranks(fy_roster_gathering *g, int side, ferry_error *error)
{
    size_t n_outlines = g->roster->outlines.n_outlines;
    g->first_rank[side] = fy_alloc(n_outlines, sizeof *g->first_rank[side]);
    g->next_rank[side] = fy_alloc(g->roster->n_ranks, sizeof *g->next_rank[side]);
    if (g->first_rank[side] == NULL || g->next_rank[side] == NULL) {
        return fy_fail_no_memory(error, "the ranks of a roster");
    }
    for (size_t i = 0; i < n_outlines; i++) {
        g->first_rank[side][i] = FY_NONE;
    }
    for (uint32_t r = g->roster->n_ranks; r-- > 0;) {
        const fy_outline *outline = g->roster->entries[r].said[side].outline;
        if (outline != NULL) {
            g->next_rank[side][r] = g->first_rank[side][outline->number];
            g->first_rank[side][outline->number] = r;
        }
    }
    return FERRY_OK;
}

/* The ranks list their tensors in much the same order: guess is the number that comes next. */
static ferry_status find_or_add(fy_roster_gathering *g, const ferry_param_metadata *m,
                                uint32_t guess, uint32_t *number_out, ferry_error *error)
{
    fy_problem *problem = g->problem;
    const char *name = fy_metadata_name(m);
    bool guessed = guess < problem->n_tensors && strcmp(problem->tensors[guess].name, name) == 0;
    *number_out = guessed ? guess : fy_gathering_find(g, name);
    if (*number_out != FY_NONE) {
        return FERRY_OK;
    }
    uint32_t n = problem->n_tensors;
    if (!FY_RESERVE(problem->tensors, g->tensor_capacity, n + 1u) ||
        !FY_RESERVE(g->tensors, g->uses_capacity, n + 1u) ||
        !fy_index_insert(&g->names, fy_hash64(name, strlen(name)), n)) {
        return fy_fail_no_memory(error, "the tensors of a roster");
    }
    problem->tensors[n] = (fy_tensor){
        .name = name, .dtype = m->dtype, .n_dims = m->n_dims, .src = FY_NONE, .dst = FY_NONE};
    g->tensors[n] = (fy_uses){.first = {FY_NONE, FY_NONE}, .last = {FY_NONE, FY_NONE}};
    problem->n_tensors++;
    *number_out = n;
    return FERRY_OK;
}

static ferry_status add_use(fy_roster_gathering *g, uint32_t tensor, int side,
                            const fy_outline *outline, size_t param, ferry_error *error)
{
    fy_uses *uses = &g->tensors[tensor];
    if (uses->last[side] != FY_NONE && g->uses[uses->last[side]].outline == outline->number) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "rank %u has two %s parameters with the resolved name \"%s\"",
                       g->first_rank[side][outline->number], side == 0 ? "source" : "destination",
                       g->problem->tensors[tensor].name);
    }
    uint32_t n = (uint32_t)g->n_uses;
    FY_TRY(FY_GROW(g->uses, g->use_capacity, g->n_uses + 1, "the parameters of a roster", error));
    g->uses[g->n_uses++] = (fy_use){.outline = outline->number,
                                    .param = (uint32_t)param,
                                    .kind = outline->params[param].kind,
                                    .next = FY_NONE};
    if (uses->first[side] == FY_NONE) {
        uses->first[side] = n;
    } else {
        g->uses[uses->last[side]].next = n;
    }
    uses->last[side] = n;
    return FERRY_OK;
}

typedef struct ranked_tensor {
    uint32_t tensor;
    uint32_t position;
} ranked_tensor;

static int compare_tensors(const void *a, const void *b)
{
    uint32_t x = ((const ranked_tensor *)a)->tensor, y = ((const ranked_tensor *)b)->tensor;
    return (x > y) - (x < y);
}

static ferry_status make_order(fy_roster_gathering *g, const fy_outline *outline,
                               fy_order *order_out, ferry_error *error)
{
    fy_arena *arena = &g->problem->arena;
    fy_order order = {.n = (uint32_t)outline->n_params};
    ranked_tensor *by_tensor = fy_alloc(order.n, sizeof *by_tensor);
    order.tensors = fy_arena_alloc(arena, order.n, sizeof *order.tensors);
    order.sorted = fy_arena_alloc(arena, order.n, sizeof *order.sorted);
    if (by_tensor == NULL || order.tensors == NULL || order.sorted == NULL) {
        fy_free(by_tensor);
        return fy_fail_no_memory(error, "the order of parameters");
    }
    for (uint32_t i = 0; i < order.n; i++) {
        order.tensors[i] = fy_gathering_find(g, fy_metadata_name(&outline->params[i].said));
        by_tensor[i] = (ranked_tensor){.tensor = order.tensors[i], .position = i};
    }
    fy_sort(by_tensor, order.n, sizeof *by_tensor, compare_tensors);
    for (uint32_t i = 0; i < order.n; i++) {
        order.sorted[i] = by_tensor[i].position;
    }
    fy_free(by_tensor);
    *order_out = order;
    return FERRY_OK;
}

/* All ranks of an outline share its order. */
static ferry_status note_order(fy_roster_gathering *g, const fy_outline *outline,
                               ferry_error *error)
{
    fy_problem *problem = g->problem;
    fy_order order;
    if (problem->rank_order == NULL) {
        problem->rank_order =
            fy_arena_alloc(&problem->arena, problem->n_ranks, sizeof *problem->rank_order);
        FY_TRY(fy_check_memory(problem->rank_order != NULL, "the order of parameters", error));
        memset(problem->rank_order, 0, problem->n_ranks * sizeof *problem->rank_order);
    }
    ferry_status status = make_order(g, outline, &order, error);
    for (uint32_t r = g->first_rank[1][outline->number]; status == FERRY_OK && r != FY_NONE;
         r = g->next_rank[1][r]) {
        problem->rank_order[r] = order;
    }
    return status;
}

static ferry_status gather_outline(fy_roster_gathering *g, const fy_outline *outline, int side,
                                   ferry_error *error)
{
    ferry_status status = FERRY_OK;
    bool sorted = true;
    uint32_t last = 0;
    for (size_t i = 0; i < outline->n_params && status == FERRY_OK; i++) {
        uint32_t tensor, guess = i == 0 ? 0 : last + 1;
        status = find_or_add(g, &outline->params[i].said, guess, &tensor, error);
        if (status == FERRY_OK) {
            status = add_use(g, tensor, side, outline, i, error);
            sorted = sorted && (i == 0 || last < tensor);
            last = tensor;
        }
    }
    bool has_order = status == FERRY_OK && side == 1 && !sorted;
    return has_order ? note_order(g, outline, error) : status;
}

ferry_status fy_gathering_make(fy_roster_gathering *g, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (int side = 1; side >= 0 && status == FERRY_OK; side--) {
        status = chain_ranks(g, side, error);
        for (uint32_t r = 0; r < g->roster->n_ranks && status == FERRY_OK; r++) {
            const fy_outline *outline = g->roster->entries[r].said[side].outline;
            if (outline != NULL && g->first_rank[side][outline->number] == r) {
                status = gather_outline(g, outline, side, error);
            }
        }
    }
    return status;
}
