/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of random results gathered from files of random layouts, with buffers so small that every
 * way of reading is taken; what comes out is compared with element-wise copies.
 */
#include "gather_case.h"

/* A tensor that is two others one behind the other along the first dimension. */
static void add_fused(uint64_t *random, layout_case *c)
{
    layout_tensor *a = &c->tensors[0], *b = &c->tensors[1], *t = &c->tensors[c->n_tensors];
    if (a->n_dims == 0 || random_below(random, 3) != 0) {
        return;
    }
    free(b->bytes);
    *b = *a;
    snprintf(b->name, sizeof b->name, "t1");
    layout_tensor_fill(random, b);
    *t = *a;
    snprintf(t->name, sizeof t->name, "fused");
    t->shape[0] *= 2;
    layout_tensor_fill(random, t);
    for (uint64_t i = 0; i < a->n_elements; i++) {
        layout_copy_element(t->bytes, i, a->bytes, i, a->bits);
        layout_copy_element(t->bytes, a->n_elements + i, b->bytes, i, a->bits);
    }
    text_buffer entry = {0};
    layout_tensor_print(&entry, t);
    entry.bytes[--entry.used] = '\0'; /* the brace that closes it */
    text_printf(&c->fused, "%s,'source':[", entry.bytes);
    for (int part = 0; part < 2; part++) {
        text_printf(&c->fused, "%s{'tensor':'t%d','begin':[", part == 0 ? "" : ",", part);
        for (uint32_t d = 0; d < a->n_dims; d++) {
            text_printf(&c->fused, d == 0 ? "0" : ",0");
        }
        text_printf(&c->fused, "],'shape':[");
        for (uint32_t d = 0; d < a->n_dims; d++) {
            text_printf(&c->fused, "%s%llu", d == 0 ? "" : ",", (unsigned long long)a->shape[d]);
        }
        text_printf(&c->fused, "],'at':[%llu", (unsigned long long)(part == 0 ? 0 : a->shape[0]));
        for (uint32_t d = 1; d < a->n_dims; d++) {
            text_printf(&c->fused, ",0");
        }
        text_printf(&c->fused, "]}");
    }
    text_printf(&c->fused, "]}");
    text_cleanup(&entry);
    c->n_fused = 2;
    c->n_tensors++;
}

/* Half of what comes out cannot be planned; false then. */
static bool case_random(uint64_t seed, layout_case *c)
{
    uint64_t random = seed;
    layout_mesh mesh;
    text_buffer side = {0};
    *c = (layout_case){.seed = seed, .n_tensors = 2 + random_below(&random, 3)};
    for (uint32_t i = 0; i < c->n_tensors; i++) {
        layout_tensor_random(&random, i, &c->tensors[i]);
    }
    /* One that is never empty: a plan of nothing is an error. */
    layout_tensor *last = &c->tensors[c->n_tensors - 1];
    free(last->bytes);
    *last = (layout_tensor){.dtype = "u8", .word = "U8", .bits = 8, .n_dims = 1, .shape = {3}};
    snprintf(last->name, sizeof last->name, "last");
    layout_tensor_fill(&random, last);
    if (c->n_tensors > 2) {
        add_fused(&random, c);
    }
    c->is_sharded = random_below(&random, 4) != 0;
    c->has_checksums = c->is_sharded && random_below(&random, 2) != 0;
    if (c->is_sharded) {
        layout_side_random(&random, &c->source, c->tensors, c->n_tensors - c->n_fused / 2, &mesh);
    } else {
        text_printf(&c->source, "'mesh':[['file',1]],'rules':[{'match':'*'}]");
    }
    /* The parts of the fused one are not in the result by themselves: first rules win. */
    layout_side_random(&random, &side, c->tensors + c->n_fused, c->n_tensors - c->n_fused, &mesh);
    if (c->n_fused > 0) {
        const char *rules = strstr(side.bytes, "'rules':[") + 9;
        text_printf(&c->destination, "%.*s{'match':'t0','skip':true},{'match':'t1','skip':true},%s",
                    (int)(rules - side.bytes), side.bytes, rules);
    } else {
        text_append(&c->destination, side.bytes, side.used);
    }
    text_cleanup(&side);
    return plan_case(c);
}

typedef struct comparison {
    gathering *g;
    uint32_t rank;
    size_t n_seen;
} comparison;

/* The global index of a local element, as a mismatch is told with. */
static void check_index(gathering *g, uint32_t tensor, uint32_t cell, const ferry_shard *shard)
{
    uint64_t *elements = layout_elements(shard);
    for (uint64_t i = 0; i < shard->flat_end - shard->flat_begin; i++) {
        uint64_t index[FERRY_MAX_DIMS] = {0}, at = 0;
        fy_placement_global(&g->job.problem, g->job.problem.tensors[tensor].dst, cell, i, index);
        for (uint32_t d = 0; d < shard->n_dims; d++) {
            at = at * shard->global[d] + index[d];
        }
        assert_true(at == elements[i]);
    }
    free(elements);
}

static ferry_status compare_shard(void *context, const ferry_shard *shard)
{
    comparison *k = context;
    gathering *g = k->g;
    const layout_tensor *t = tensor_named(g->layouts, shard->tensor);
    uint32_t tensor;
    for (tensor = 0; strcmp(g->job.problem.tensors[tensor].name, t->name) != 0; tensor++) {
        assert_true(tensor + 1 < g->job.problem.n_tensors);
    }
    if (g->gather.tensor != tensor || g->cells == NULL) {
        return FERRY_OK; /* another one's turn */
    }
    const fy_holders *holders =
        fy_problem_holders(&g->job.problem, g->job.problem.tensors[tensor].dst);
    uint32_t slot = fy_holders_find(holders, k->rank);
    assert_true(slot != FY_NO_SLOT);
    unsigned char *wanted = layout_shard_bytes(t, shard);
    const char *cell = (const char *)g->cells[holders->cell[slot]];
    uint64_t at = fy_first_difference(cell, (const char *)wanted, shard->bytes);
    check_at(at == shard->bytes, "seed %llu, \"%s\" of rank %u, byte %llu; window %llu, span %llu",
             (unsigned long long)g->layouts->seed, t->name, k->rank, (unsigned long long)at,
             (unsigned long long)g->most_window, (unsigned long long)g->most_span);
    check_index(g, tensor, holders->cell[slot], shard);
    free(wanted);
    k->n_seen++;
    return FERRY_OK;
}

/* Every tensor, and then every rank's shard of it. */
static void check_case(const layout_case *c, const ferry_checkpoint *from, uint64_t random)
{
    gathering g;
    ferry_error error;
    gathering_begin(c, from, random, &g);
    for (uint32_t tensor = 0; tensor < g.job.problem.n_tensors; tensor++) {
        if (!g.job.is_wanted[tensor]) {
            continue;
        }
        uint32_t placement = g.job.problem.tensors[tensor].dst;
        const fy_holders *holders = fy_problem_holders(&g.job.problem, placement);
        comparison k = {.g = &g};
        g.cells = calloc(holders->n_cells, sizeof *g.cells);
        assert_non_null(g.cells);
        gather_tensor(&g, tensor, random_below(&random, 2) != 0);
        for (k.rank = 0; k.rank < ferry_plan_rank_count(c->plan); k.rank++) {
            must(ferry_plan_visit_shards(c->plan, FERRY_SIDE_DESTINATION, k.rank, compare_shard, &k,
                                         &error),
                 &error);
        }
        assert_int_equal(k.n_seen, holders->n_slots);
        for (uint32_t cell = 0; cell < holders->n_cells; cell++) {
            free(g.cells[cell]);
        }
        free(g.cells);
        g.cells = NULL;
    }
    assert_true(c->has_checksums || g.checked.n_checked == 0);
    gathering_end(&g);
}

static void test_random(void **state)
{
    (void)state;
    enum { N_CASES = 400 };
    uint32_t n_checked = 0;
    for (uint64_t seed = 1; seed <= N_CASES; seed++) {
        layout_case c;
        if (case_random(seed, &c)) {
            write_source(&c);
            ferry_checkpoint *from = NULL;
            ferry_error error;
            ferry_status status = ferry_checkpoint_open(small_folder, &from, &error);
            for (uint64_t round = 0; round < 4 && from != NULL; round++) {
                check_case(&c, from, seed * 4 + round);
            }
            /* Half bytes may go from here to there, but not to one rank: that is not opened. */
            if (status != FERRY_ERR_INVALID_PLAN) {
                must(status, &error);
                n_checked++;
            }
            ferry_checkpoint_destroy(from);
        }
        case_cleanup(&c);
    }
    print_message("%u of %d cases could be planned\n", n_checked, N_CASES);
    assert_true(n_checked > N_CASES / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, small_begin, small_end);
}
