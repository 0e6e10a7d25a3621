/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_MIXED_SYMBOLS_H
#define FERRY_TESTS_MIXED_SYMBOLS_H

/*
 * Runs the schedules of all ranks on symbols: an element of an input is a symbol, what becomes of
 * it a tree of sums and roundings. Boxes are memory of slots, addressed as schedule.h says, where
 * every element remembers who wrote it in which use, and who has read it.
 */
#include "mixed_schedules.h"

#include <inttypes.h>

enum { TREES_ROOM = 1 << 14, FOREST_HASH = 1 << 15 };

/* All summands of a tree are the same element of the same chunk, so the trees are of ranks. */
typedef struct symbol_tree {
    uint32_t a, b;      /* a sum of two; b == ROUNDED: a rounded; b == LEAF: rank a's input */
    uint64_t ranks;     /* as bits */
    uint32_t roundings; /* on the longest way from an input to here */
} symbol_tree;

#define LEAF UINT32_MAX
#define ROUNDED (UINT32_MAX - 1)

typedef struct forest {
    symbol_tree trees[TREES_ROOM];
    uint32_t n;
    uint32_t hash[FOREST_HASH]; /* number + 1 */
} forest;

/* The number of a tree; equal ones have one number. */
static inline uint32_t plant(forest *f, uint32_t a, uint32_t b)
{
    uint32_t at = (a * 2654435761u ^ b * 2246822519u) % FOREST_HASH;
    for (; f->hash[at] != 0; at = (at + 1) % FOREST_HASH) {
        const symbol_tree *t = &f->trees[f->hash[at] - 1];
        if (t->a == a && t->b == b) {
            return f->hash[at] - 1;
        }
    }
    assert_true(f->n < TREES_ROOM);
    symbol_tree *t = &f->trees[f->n];
    *t = (symbol_tree){a, b, 0, 0};
    if (b == LEAF) {
        t->ranks = UINT64_C(1) << a;
    } else if (b == ROUNDED) {
        t->ranks = f->trees[a].ranks;
        t->roundings = f->trees[a].roundings + 1;
    } else {
        const symbol_tree *l = &f->trees[a], *r = &f->trees[b];
        assert_true((l->ranks & r->ranks) == 0); /* else somebody's input counts twice */
        t->ranks = l->ranks | r->ranks;
        t->roundings = l->roundings > r->roundings ? l->roundings : r->roundings;
    }
    f->hash[at] = ++f->n;
    return f->n - 1;
}

static inline uint32_t plant_rounded(forest *f, uint32_t tree)
{
    uint32_t b = f->trees[tree].b;
    return b == LEAF || b == ROUNDED ? tree : plant(f, tree, ROUNDED);
}

typedef struct symbol {
    uint32_t tree;
    uint32_t chunk, element;
    bool partial, there;
} symbol;

typedef struct box_element {
    symbol value;
    uint64_t use;
    uint32_t writer;
    bool read, read_by_other;
} box_element;

typedef struct rank_counts {
    uint64_t waits, inside_written, inside_read, between;
} rank_counts;

/* The boxes of an edge of one rank. */
typedef struct rank_box {
    box_element *outbox, *inbox;
} rank_box;

typedef struct rank_state {
    symbol *in, *out; /* in place: parts of the same memory */
    symbol *memory;
    uint64_t turn;
    uint32_t stage, step;
    bool done;
    rank_box boxes[FY_MIX_N_EDGES];
    /* Of messages to this rank, by edge and writer: the use after the last that came, or that it
     * has waited for. */
    uint64_t *posted, *heard;
    rank_counts flagged; /* by what places say */
    rank_counts seen;    /* by who reads what others have written */
} rank_state;

/* How a message is cut: the elements of a line are few here, so that blocks of few have parts. */
typedef struct cutting {
    uint32_t line;
    uint64_t block, length;
    uint32_t element_bytes;
    bool in_place;
} cutting;

typedef struct machine {
    const scheduled *w;
    cutting c;
    forest *trees;
    uint64_t n_steps;
    uint64_t uses[FY_MIX_N_EDGES];          /* before this call: any number will do */
    uint64_t message_room[FY_MIX_N_EDGES];  /* elements */
    uint64_t cell_elements[FY_MIX_N_EDGES]; /* of this call */
    rank_state *ranks;
} machine;

#define check_machine(m, rank, condition)                                                          \
    check_at(                                                                                      \
        condition,                                                                                 \
        "rank %u, turn %" PRIu64 ", stage %u, step %u, block %" PRIu64 " of %" PRIu64              \
        ", %s, %s%s%s: local tp %u x dp %u, inter tp %u x dp %u",                                  \
        rank, (m)->ranks[rank].turn, (m)->ranks[rank].stage, (m)->ranks[rank].step, (m)->c.block,  \
        (m)->c.length, ferry_mixed_op_name((m)->w->k.op), ferry_mixed_mode_name((m)->w->k.mode),   \
        (m)->w->k.deterministic ? ", deterministic" : "", (m)->w->k.mapped ? "" : ", not mapped",  \
        (m)->w->s->local_tp, (m)->w->s->local_dp, (m)->w->s->inter_tp, (m)->w->s->inter_dp)

static inline void *get_zeroed(uint64_t n, size_t bytes)
{
    void *got = calloc(n == 0 ? 1 : n, bytes);
    assert_non_null(got);
    return got;
}

static inline uint32_t chunks_in(const machine *m)
{
    return op_rows[m->w->k.op].shrinks ? m->w->topologies[0].dp : 1;
}

static inline uint32_t chunks_out(const machine *m)
{
    return op_rows[m->w->k.op].grows ? m->w->topologies[0].dp : 1;
}

/* Inputs are symbols; outputs are nothing yet. */
static inline void fill_tensors(machine *m, uint32_t rank)
{
    rank_state *r = &m->ranks[rank];
    uint64_t n_in = chunks_in(m) * m->c.length, n_out = chunks_out(m) * m->c.length;
    uint64_t chunk = m->w->topologies[rank].dp_rank * m->c.length;
    r->memory = get_zeroed(n_in + n_out, sizeof *r->memory);
    r->in = r->memory;
    r->out = r->memory + n_in;
    if (m->c.in_place) {
        r->in = r->memory + (n_in < n_out ? chunk : 0);
        r->out = r->memory + (n_out < n_in ? chunk : 0);
    }
    for (uint64_t i = 0; i < n_in; i++) {
        r->in[i] = (symbol){plant(m->trees, rank, LEAF), (uint32_t)(i / m->c.length),
                            (uint32_t)(i % m->c.length), false, true};
    }
}

static inline void make_boxes(machine *m, uint32_t rank, int edge)
{
    const fy_mix_edge_use *use = &m->w->schedules[rank].edges[edge];
    rank_box *box = &m->ranks[rank].boxes[edge];
    m->cell_elements[edge] = fy_mix_cell_elements(use, m->c.block, m->c.line);
    m->message_room[edge] = use->n_cells * m->cell_elements[edge];
    box->outbox =
        get_zeroed(FY_MIX_N_SLOTS * use->n_messages * m->message_room[edge], sizeof *box->outbox);
    box->inbox =
        get_zeroed(FY_MIX_N_SLOTS * use->n_senders * m->message_room[edge], sizeof *box->inbox);
}

static inline void machine_make(machine *m, const scheduled *w, const cutting *c)
{
    *m = (machine){.w = w, .c = *c};
    m->n_steps = (c->length + c->block - 1) / c->block;
    m->trees = get_zeroed(1, sizeof *m->trees);
    m->ranks = get_zeroed(w->n_ranks, sizeof *m->ranks);
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        rank_state *r = &m->ranks[rank];
        fill_tensors(m, rank);
        for (int edge = 0; edge < FY_MIX_N_EDGES; edge++) {
            make_boxes(m, rank, edge);
            m->uses[edge] = 1000 + 7 * (uint64_t)edge;
        }
        r->posted = get_zeroed((uint64_t)FY_MIX_N_EDGES * w->n_ranks, sizeof *r->posted);
        r->heard = get_zeroed((uint64_t)FY_MIX_N_EDGES * w->n_ranks, sizeof *r->heard);
    }
}

static inline void machine_forget(machine *m)
{
    for (uint32_t rank = 0; rank < m->w->n_ranks; rank++) {
        rank_state *r = &m->ranks[rank];
        for (int edge = 0; edge < FY_MIX_N_EDGES; edge++) {
            free(r->boxes[edge].outbox);
            free(r->boxes[edge].inbox);
        }
        free(r->memory);
        free(r->posted);
        free(r->heard);
    }
    free(m->ranks);
    free(m->trees);
}

/* The step that a rank is at. */
typedef struct at_step {
    uint64_t number, begin, length;
} at_step;

static inline at_step step_at(const machine *m, uint64_t number)
{
    uint64_t begin = number * m->c.block, left = m->c.length - begin;
    return (at_step){number, begin, left < m->c.block ? left : m->c.block};
}

/* The first element of a place's cell that a cut is about. */
static inline box_element *find_in_box(machine *m, uint32_t rank, const fy_mix_place *p,
                                       const fy_mix_cut *cut, const at_step *step)
{
    const fy_mix_edge_use *use = &m->w->schedules[rank].edges[p->edge];
    bool inbox = p->kind == FY_MIX_PLACE_INBOX || p->kind == FY_MIX_PLACE_PEER_INBOX;
    bool own = p->kind == FY_MIX_PLACE_OUTBOX || p->kind == FY_MIX_PLACE_INBOX;
    uint32_t room = inbox ? use->n_senders : use->n_messages;
    check_machine(m, rank, p->kind <= FY_MIX_PLACE_PEER_INBOX && p->edge < FY_MIX_N_EDGES);
    check_machine(m, rank, p->use < use->uses && p->message < room && p->cell < use->n_cells);
    check_machine(m, rank, own || (same_node(m->w, rank, p->rank) && p->rank != rank));
    check_machine(m, rank, own || m->w->k.mapped);
    check_machine(m, rank, p->origin == use->origin);
    check_machine(m, rank,
                  p->origin == FY_MIX_ORIGIN_BLOCK || (cut->n == use->n && use->n_sub == 1) ||
                      (cut->n == use->n && cut->n_sub == use->n_sub) || use->n_sub == 1);
    fy_mix_cut part = {cut->n, cut->index, 1, 0};
    fy_mix_span span = fy_mix_cut_span(cut, step->length, m->c.line);
    uint64_t begin = p->origin == FY_MIX_ORIGIN_BLOCK ? 0
                     : p->origin == FY_MIX_ORIGIN_PART
                         ? fy_mix_cut_span(&part, step->length, m->c.line).begin
                         : span.begin;
    check_machine(m, rank, span.begin - begin + span.length <= m->cell_elements[p->edge]);
    uint64_t number = m->uses[p->edge] + step->number * use->uses + p->use;
    uint64_t message = (number % FY_MIX_N_SLOTS) * room + p->message;
    rank_box *box = &m->ranks[own ? rank : p->rank].boxes[p->edge];
    return (inbox ? box->inbox : box->outbox) + message * m->message_room[p->edge] +
           p->cell * m->cell_elements[p->edge] + (span.begin - begin);
}

static inline uint64_t number_of_use(const machine *m, uint32_t rank, uint32_t edge,
                                     const at_step *step, uint32_t use)
{
    return m->uses[edge] + step->number * m->w->schedules[rank].edges[edge].uses + use;
}

static inline uint64_t *of_writer(const machine *m, uint64_t *list, uint32_t edge, uint32_t writer)
{
    return &list[(uint64_t)edge * m->w->n_ranks + writer];
}

/* Reads element i of a source in a box, and sees that it was allowed to. */
static inline symbol read_box(machine *m, uint32_t rank, const fy_mix_place *p, const at_step *step,
                              box_element *e)
{
    uint64_t number = number_of_use(m, rank, p->edge, step, p->use);
    uint32_t writer = p->kind == FY_MIX_PLACE_OUTBOX ? rank : p->rank;
    rank_state *r = &m->ranks[rank];
    check_machine(m, rank, p->kind != FY_MIX_PLACE_PEER_INBOX);
    check_machine(m, rank, e->value.there && e->use == number && e->writer == writer);
    if (writer != rank) {
        check_machine(m, rank, *of_writer(m, r->heard, p->edge, writer) == number + 1);
    }
    if (writer != rank && same_node(m->w, rank, writer)) {
        uint64_t bytes = e->value.partial ? 4 : m->c.element_bytes;
        r->seen.inside_read += bytes;
        if (p->kind == FY_MIX_PLACE_PEER_OUTBOX && !e->read_by_other) {
            m->ranks[writer].seen.inside_written += bytes;
        }
    }
    e->read = true;
    e->read_by_other = e->read_by_other || writer != rank;
    return e->value;
}

/*
 * What is written over, or left at the end, in a box somebody has read: nothing moves in vain. But
 * a library's all-reduce behind a reduce-scatter brings chunks to who does not want them.
 */
static inline void check_was_read(const machine *m, uint32_t rank, uint32_t owner,
                                  const box_element *e)
{
    bool whole =
        m->w->k.mode == FERRY_MIXED_BASE_ONE && m->w->k.op == FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE;
    bool foreign = e->value.chunk != m->w->topologies[owner].dp_rank;
    check_machine(m, rank, !e->value.there || e->read || (whole && foreign));
}

static inline void write_box(machine *m, uint32_t rank, const fy_mix_place *p, const at_step *step,
                             box_element *e, const symbol *value)
{
    uint64_t number = number_of_use(m, rank, p->edge, step, p->use);
    check_machine(m, rank, p->kind == FY_MIX_PLACE_OUTBOX || p->kind == FY_MIX_PLACE_PEER_INBOX);
    check_machine(m, rank, !e->value.there || e->use < number); /* once in a use */
    check_machine(m, rank, value->partial == m->w->schedules[rank].edges[p->edge].partial);
    if (p->kind == FY_MIX_PLACE_PEER_INBOX) {
        uint64_t bytes = value->partial ? 4 : m->c.element_bytes;
        m->ranks[rank].seen.inside_written += bytes;
    }
    check_was_read(m, rank, p->kind == FY_MIX_PLACE_PEER_INBOX ? p->rank : rank, e);
    *e = (box_element){*value, number, rank, false, false};
}

static inline symbol *in_tensor(machine *m, uint32_t rank, const fy_mix_place *p, uint64_t element)
{
    bool in = p->kind == FY_MIX_PLACE_IN;
    uint32_t n_chunks = in ? chunks_in(m) : chunks_out(m);
    check_machine(m, rank, p->cell < n_chunks && element < m->c.length);
    return (in ? m->ranks[rank].in : m->ranks[rank].out) + p->cell * m->c.length + element;
}

/* One element of a source; from the input it is still what it was before the call. */
static inline symbol read_source(machine *m, uint32_t rank, const fy_mix_place *p,
                                 const fy_mix_cut *cut, const at_step *step, uint64_t i)
{
    if (p->kind != FY_MIX_PLACE_IN && p->kind != FY_MIX_PLACE_OUT) {
        return read_box(m, rank, p, step, find_in_box(m, rank, p, cut, step) + i);
    }
    uint64_t element = step->begin + fy_mix_cut_span(cut, step->length, m->c.line).begin + i;
    symbol s = *in_tensor(m, rank, p, element);
    check_machine(m, rank, s.there);
    if (p->kind == FY_MIX_PLACE_IN) {
        check_machine(m, rank, s.tree == plant(m->trees, rank, LEAF) && s.element == element);
    }
    return s;
}

/*
 * What all ranks of the node, or of its tensor-parallel group, have in the same place, in the order
 * of ranks from this one on: another rank would come to other bits.
 */
static inline symbol read_added(machine *m, uint32_t rank, const fy_mix_place *p,
                                const fy_mix_cut *cut, const at_step *step, uint64_t i)
{
    const fy_topology *t = &m->w->topologies[rank];
    uint64_t before = m->ranks[rank].seen.inside_read;
    symbol sum = {0};
    bool is_of_node = p->edge == FY_MIX_EDGE_SPREAD_ALL;
    uint32_t n = is_of_node ? t->local_size : t->local_tp;
    check_machine(m, rank, is_of_node || p->edge == FY_MIX_EDGE_SPREAD_TP);
    check_machine(m, rank, m->w->k.adds && m->w->schedules[rank].edges[p->edge].added);
    for (uint32_t j = 0; j < n; j++) {
        fy_mix_place one = *p;
        one.rank = rank - t->local_rank % n + (t->local_rank + j) % n;
        one.kind = j == 0 ? FY_MIX_PLACE_OUTBOX : FY_MIX_PLACE_PEER_OUTBOX;
        symbol s = read_box(m, rank, &one, step, find_in_box(m, rank, &one, cut, step) + i);
        check_machine(m, rank, j == 0 || (s.chunk == sum.chunk && s.element == sum.element));
        s.tree = j == 0 ? s.tree : plant(m->trees, sum.tree, s.tree);
        sum = s;
    }
    m->ranks[rank].seen.inside_read = before + m->c.element_bytes; /* one sum comes */
    return sum;
}

/* What a sum makes of its i-th element. */
static inline symbol sum_element(machine *m, uint32_t rank, const fy_mix_sum *a,
                                 const at_step *step, uint64_t i)
{
    const fy_mix_place *places = m->w->schedules[rank].places + a->first;
    symbol sum = places[0].kind == FY_MIX_PLACE_ADDED
                     ? read_added(m, rank, &places[0], &a->cut, step, i)
                     : read_source(m, rank, &places[0], &a->cut, step, i);
    check_machine(m, rank, sum.partial == a->partial_sources);
    for (uint32_t j = 1; j < a->n; j++) {
        symbol s = read_source(m, rank, &places[j], &a->cut, step, i);
        check_machine(m, rank, s.partial == a->partial_sources);
        check_machine(m, rank, s.chunk == sum.chunk && s.element == sum.element);
        sum.tree = plant(m->trees, sum.tree, s.tree);
    }
    sum.partial = a->partial_targets;
    sum.tree = a->partial_targets ? sum.tree : plant_rounded(m->trees, sum.tree);
    return sum;
}

static inline void count_places(machine *m, uint32_t rank, const fy_mix_sum *a, uint64_t n)
{
    const fy_mix_place *places = m->w->schedules[rank].places + a->first;
    rank_counts *flagged = &m->ranks[rank].flagged;
    for (uint32_t j = 0; j < a->n; j++) {
        uint64_t bytes = a->partial_sources ? 4 : m->c.element_bytes;
        flagged->inside_read += places[j].counts ? n * bytes : 0;
    }
    for (uint32_t j = 0; j < a->n_targets; j++) {
        uint64_t bytes = a->partial_targets ? 4 : m->c.element_bytes;
        flagged->inside_written += a->targets[j].counts ? n * bytes : 0;
    }
}

static inline void do_sum(machine *m, uint32_t rank, const fy_mix_sum *a, const at_step *step)
{
    fy_mix_span span = fy_mix_cut_span(&a->cut, step->length, m->c.line);
    count_places(m, rank, a, span.length);
    check_machine(m, rank, a->n >= 1 && (a->n_targets == 1 || a->n_targets == 2));
    for (uint64_t i = 0; i < span.length; i++) {
        symbol sum = sum_element(m, rank, a, step, i);
        for (uint32_t j = 0; j < a->n_targets; j++) {
            const fy_mix_place *p = &a->targets[j];
            if (p->kind == FY_MIX_PLACE_OUT) {
                check_machine(m, rank, !sum.partial);
                *in_tensor(m, rank, p, step->begin + span.begin + i) = sum;
            } else {
                write_box(m, rank, p, step, find_in_box(m, rank, p, &a->cut, step) + i, &sum);
            }
        }
    }
}

/* Puts a message as links.c does: all cells but the last with what pads them. */
static inline void do_put(machine *m, uint32_t rank, const fy_mix_link *link, uint64_t number,
                          const at_step *step)
{
    const fy_mix_edge_use *use = &m->w->schedules[rank].edges[link->edge];
    uint32_t sender = fy_mix_edge_sender(&m->w->topologies[link->rank], link->edge, rank);
    uint64_t last = fy_mix_cell_elements(use, step->length, m->c.line);
    uint64_t n = (use->n_cells - 1) * m->cell_elements[link->edge] + last;
    uint64_t bytes = use->n_cells * last * (use->partial ? 4 : m->c.element_bytes);
    uint64_t slot = number % FY_MIX_N_SLOTS;
    check_machine(m, rank, link->message < use->n_messages && sender < use->n_senders);
    box_element *from = m->ranks[rank].boxes[link->edge].outbox +
                        (slot * use->n_messages + link->message) * m->message_room[link->edge];
    box_element *to = m->ranks[link->rank].boxes[link->edge].inbox +
                      (slot * use->n_senders + sender) * m->message_room[link->edge];
    for (uint64_t i = 0; i < n; i++) {
        bool fresh = from[i].value.there && from[i].use == number;
        check_was_read(m, rank, link->rank, &to[i]);
        from[i].read = from[i].read || fresh;
        to[i] = (box_element){from[i].value, number, rank, false, false};
        to[i].value.there = fresh;
    }
    rank_counts *seen = &m->ranks[rank].seen, *flagged = &m->ranks[rank].flagged;
    if (same_node(m->w, rank, link->rank)) {
        seen->inside_written += bytes;
        flagged->inside_written += bytes;
    } else {
        seen->between += bytes;
        flagged->between += bytes;
    }
}

static inline void do_post(machine *m, uint32_t rank, const fy_program_step *its,
                           const at_step *step)
{
    for (uint32_t j = 0; j < its->n; j++) {
        const fy_mix_link *link = &m->w->schedules[rank].links[its->first + j];
        uint64_t number = number_of_use(m, rank, link->edge, step, link->use);
        uint64_t *posted = of_writer(m, m->ranks[link->rank].posted, link->edge, rank);
        check_machine(m, rank, *posted <= number); /* in order, and once */
        if (link->form == FY_MIX_FORM_PUT) {
            do_put(m, rank, link, number, step);
        }
        *posted = number + 1;
    }
}

/* Whether all that is waited for is there. */
static inline bool do_wait(machine *m, uint32_t rank, const fy_program_step *its,
                           const at_step *step)
{
    rank_state *r = &m->ranks[rank];
    for (uint32_t j = 0; j < its->n; j++) {
        const fy_mix_link *link = &m->w->schedules[rank].links[its->first + j];
        uint64_t number = number_of_use(m, rank, link->edge, step, link->use);
        if (*of_writer(m, r->posted, link->edge, link->rank) <= number) {
            return false;
        }
        *of_writer(m, r->heard, link->edge, link->rank) = number + 1;
    }
    r->flagged.waits++;
    r->seen.waits++;
    return true;
}

static inline bool run_one_stage(machine *m, uint32_t rank, uint64_t number)
{
    const fy_mix_schedule *s = &m->w->schedules[rank];
    rank_state *r = &m->ranks[rank];
    at_step step = step_at(m, number);
    for (; r->step < s->program.blocks[r->stage].n_steps; r->step++) {
        const fy_program_step *its = step_of_stage(s, r->stage, r->step);
        if (its->kind == FY_STEP_WAIT && !do_wait(m, rank, its, &step)) {
            return false;
        }
        if (its->kind == FY_STEP_SUM) {
            do_sum(m, rank, &s->sums[its->first], &step);
        } else if (its->kind != FY_STEP_WAIT) {
            do_post(m, rank, its, &step);
        }
    }
    r->step = 0;
    return true;
}

/* Runs a rank until it must wait; whether it did anything. */
static inline bool run_rank(machine *m, uint32_t rank)
{
    const fy_mix_schedule *s = &m->w->schedules[rank];
    rank_state *r = &m->ranks[rank];
    uint64_t turns = m->n_steps + (is_pipelined(s) ? s->program.n_blocks - 1 : 0);
    bool went = false;
    for (; r->turn < turns; r->turn++, r->stage = 0) {
        for (; r->stage < s->program.n_blocks; r->stage++) {
            uint64_t number = is_pipelined(s) ? r->turn - r->stage : r->turn;
            bool has = number < m->n_steps && (!is_pipelined(s) || r->turn >= r->stage);
            if (has && !run_one_stage(m, rank, number)) {
                return went;
            }
            went = went || has;
        }
    }
    went = went || !r->done;
    r->done = true;
    return went;
}

static inline void check_all_was_read(const machine *m, uint32_t rank)
{
    for (int edge = 0; edge < FY_MIX_N_EDGES; edge++) {
        const fy_mix_edge_use *use = &m->w->schedules[rank].edges[edge];
        const rank_box *box = &m->ranks[rank].boxes[edge];
        for (uint64_t i = 0; i < FY_MIX_N_SLOTS * use->n_messages * m->message_room[edge]; i++) {
            check_was_read(m, rank, rank, &box->outbox[i]);
        }
        for (uint64_t i = 0; i < FY_MIX_N_SLOTS * use->n_senders * m->message_room[edge]; i++) {
            check_was_read(m, rank, rank, &box->inbox[i]);
        }
    }
}

/* All ranks to the end; each runs as far ahead as it can before the next one does. */
static inline void machine_run(machine *m)
{
    bool done = false, went = true;
    while (!done) {
        check_scheduled(m->w, went); /* else all wait for one another */
        done = true, went = false;
        for (uint32_t rank = 0; rank < m->w->n_ranks; rank++) {
            went = (!m->ranks[rank].done && run_rank(m, rank)) || went;
            done = done && m->ranks[rank].done;
        }
    }
    for (uint32_t rank = 0; rank < m->w->n_ranks; rank++) {
        check_all_was_read(m, rank);
    }
}

#endif
