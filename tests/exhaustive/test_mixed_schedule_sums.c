/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What schedules compute, on symbols: in all topologies of up to 16 ranks and some larger ones, for
 * every operation and mode that is offered, every element of every output is the right sum of the
 * right inputs, and no byte is moved that nobody wants.
 */
#include "mixed_symbols.h"

/* Whose inputs are in chunk k of a rank's output, as bits. */
static uint64_t ranks_of(const scheduled *w, uint32_t chunk)
{
    uint64_t ranks = 0;
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        if (!op_rows[w->k.op].grows || w->topologies[rank].dp_rank == chunk) {
            ranks |= UINT64_C(1) << rank;
        }
    }
    return ranks;
}

/* Local ranks ascending, then nodes ascending, rounded once if there was anything to add. */
static uint32_t plant_canonical(forest *f, const scheduled *w, uint64_t ranks)
{
    const uint32_t none = UINT32_MAX;
    uint32_t sum = none, local = local_size(w->s);
    for (uint32_t node = 0; node < inter_size(w->s); node++) {
        uint32_t inside = none;
        for (uint32_t i = 0; i < local; i++) {
            uint32_t rank = i + node * local;
            if ((ranks >> rank & 1) != 0) {
                uint32_t leaf = plant(f, rank, LEAF);
                inside = inside == none ? leaf : plant(f, inside, leaf);
            }
        }
        if (inside != none) {
            sum = sum == none ? inside : plant(f, sum, inside);
        }
    }
    return plant_rounded(f, sum);
}

/* Sums that may be rounded one within another: once a level, but rings round at every rank. */
static uint32_t most_roundings(const scheduled *w)
{
    const fy_topology *t = &w->topologies[0];
    if (w->k.deterministic) {
        return 1;
    }
    return is_base(w->k.mode) ? w->n_ranks : t->inter_size > 1 && t->local_size > 1 ? 2 : 1;
}

static void check_output(machine *m, uint32_t rank, uint32_t chunk, uint32_t *replica)
{
    const scheduled *w = m->w;
    const fy_topology *t = &w->topologies[rank];
    uint64_t ranks = ranks_of(w, chunk);
    uint32_t source = op_rows[w->k.op].shrinks ? t->dp_rank : 0;
    uint32_t tree = plant_canonical(m->trees, w, ranks);
    for (uint64_t i = 0; i < m->c.length; i++) {
        const symbol *s = &m->ranks[rank].out[chunk * m->c.length + i];
        const symbol_tree *made = &m->trees->trees[s->tree];
        check_machine(m, rank, s->there && !s->partial);
        check_machine(m, rank, s->chunk == source && s->element == i);
        check_machine(m, rank, made->ranks == ranks);
        check_machine(m, rank, made->roundings <= most_roundings(w));
        check_machine(m, rank, !w->k.deterministic || s->tree == tree);
        /* Replicas: the first of them has left its trees here. */
        check_machine(m, rank, replica[i] == UINT32_MAX || replica[i] == s->tree);
        replica[i] = s->tree;
    }
}

static void check_outputs(machine *m)
{
    uint32_t n_chunks = chunks_out(m), dp = m->w->topologies[0].dp;
    uint64_t n = (uint64_t)dp * m->c.length;
    uint32_t *replicas = get_zeroed(n, sizeof *replicas);
    memset(replicas, 0xff, n * sizeof *replicas);
    for (uint32_t rank = 0; rank < m->w->n_ranks; rank++) {
        uint32_t own = op_rows[m->w->k.op].shrinks ? m->w->topologies[rank].dp_rank : 0;
        for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
            check_output(m, rank, chunk, &replicas[(own + chunk) * m->c.length]);
        }
    }
    free(replicas);
}

/* Flags of places against who has read what; puts are counted in whole cells on both sides. */
static void check_flags(const machine *m)
{
    for (uint32_t rank = 0; rank < m->w->n_ranks; rank++) {
        const rank_counts *flagged = &m->ranks[rank].flagged, *seen = &m->ranks[rank].seen;
        check_machine(m, rank, flagged->inside_written == seen->inside_written);
        check_machine(m, rank, flagged->inside_read == seen->inside_read);
        check_machine(m, rank, flagged->between == seen->between);
        check_machine(m, rank,
                      flagged->waits ==
                          m->n_steps * count_steps(&m->w->schedules[rank], FY_STEP_WAIT));
    }
}

static void run_cutting(const scheduled *w, const cutting *c)
{
    machine m;
    machine_make(&m, w, c);
    machine_run(&m);
    check_outputs(&m);
    check_flags(&m);
    machine_forget(&m);
}

static uint64_t n_runs;

static void run_kind(const shape *s, const kind *k)
{
    scheduled w;
    uint64_t n = world_size(s);
    schedule_all(s, k, &w);
    const cutting cuttings[] = {
        {1, 2 * n, 4 * n, 2, false}, /* parts and halves of them, all alike */
        {1, 2 * n, 4 * n, 2, true},  /* the same in place */
        {1, 3, 17, 2, false},        /* mostly empty parts, and slots used again */
        {3, 3 * (n / 2 + 1), 3 * (n / 2 + 1) + 4, 4, true}, /* lines of several elements */
        {4, 4, 1, 2, false},
    };
    for (size_t i = 0; i < COUNT_OF(cuttings); i++) {
        run_cutting(&w, &cuttings[i]);
        n_runs++;
    }
    forget_schedules(&w);
}

static void run_shape(const shape *s)
{
    kind kinds[2 * MOST_KINDS];
    uint32_t n = list_kinds(s, kinds);
    n += list_adding_kinds(s, kinds + n);
    for (uint32_t i = 0; i < n; i++) {
        run_kind(s, &kinds[i]);
    }
}

static void test_all(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 16; n++) {
        walk_shapes_of(n, run_shape);
    }
    print_message("%" PRIu64 " runs\n", n_runs);
}

static void test_large(void **state)
{
    (void)state;
    const shape shapes[] = {{2, 2, 2, 3},  {3, 2, 3, 2},  {1, 5, 5, 1}, {4, 2, 2, 2},
                            {27, 1, 1, 1}, {1, 23, 1, 1}, {2, 1, 1, 11}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        run_shape(&shapes[i]);
    }
}

/* The trees themselves, by hand. */
static void test_trees(void **state)
{
    (void)state;
    forest *f = get_zeroed(1, sizeof *f);
    uint32_t a = plant(f, 0, LEAF), b = plant(f, 1, LEAF), c = plant(f, 2, LEAF);
    assert_int_equal(plant(f, 1, LEAF), b);
    assert_int_equal(plant_rounded(f, a), a);
    uint32_t ab = plant(f, a, b), rounded = plant_rounded(f, ab);
    assert_int_not_equal(plant(f, b, a), ab);
    assert_int_not_equal(rounded, ab);
    assert_int_equal(plant_rounded(f, rounded), rounded);
    assert_int_not_equal(plant(f, ab, c), plant(f, a, plant(f, b, c)));
    assert_int_equal(f->trees[plant(f, rounded, c)].roundings, 1);
    assert_int_equal(f->trees[plant_rounded(f, plant(f, rounded, c))].roundings, 2);
    assert_int_equal(f->trees[plant(f, ab, c)].ranks, 7);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
