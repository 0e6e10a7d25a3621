/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What one sender sends to several receivers. Moves that read one box of a tensor carry the same
 * bytes, a content, which those who have it can pass on; what is known of a sender counts for all
 * that are alike.
 */
#include "simulate.h"

#include "steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 1024, FULL_MESH = 64 };

typedef struct content {
    uint64_t key;       /* a hash of what is read; 0: the place is free */
    uint64_t receivers; /* a hash of who they are */
    uint64_t bytes;
    uint32_t n_receivers;
    uint32_t n_outside; /* receivers on other nodes, */
    uint32_t n_nodes;   /* and these nodes */
    uint32_t last_node;
} content;

struct simulate_fans {
    uint32_t n_ranks, ranks_per_node;
    content *contents; /* of the sender at hand, in a table of places */
    size_t capacity, n;
    double *delivered;        /* [n_ranks + 1] bytes, by the receivers that want the same */
    double entering, entered; /* bytes that enter nodes, and if each content does so once */
    double links;             /* among who may pass on to whom */
};

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "no memory for what may be relayed");
    return FERRY_ERR_NO_MEMORY;
}

ferry_status simulate_open_fans(uint32_t n_ranks, uint32_t ranks_per_node, simulate_fans **fans_out,
                                ferry_error *error)
{
    simulate_fans *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return fail_memory(error);
    }
    *f = (simulate_fans){.n_ranks = n_ranks, .ranks_per_node = ranks_per_node};
    f->capacity = FIRST_CAPACITY;
    f->contents = calloc(f->capacity, sizeof *f->contents);
    f->delivered = calloc((size_t)n_ranks + 1, sizeof *f->delivered);
    if (f->contents == NULL || f->delivered == NULL) {
        simulate_close_fans(f);
        return fail_memory(error);
    }
    *fans_out = f;
    return FERRY_OK;
}

void simulate_close_fans(simulate_fans *fans)
{
    if (fans != NULL) {
        free(fans->contents);
        free(fans->delivered);
        free(fans);
    }
}

/* ---- contents ---- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    uint64_t x = (hash ^ value) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A plan has one text for equal names. What the receiver converts nobody else can pass on. */
static uint64_t key_of(const ferry_move *move)
{
    const char *source = move->source == NULL ? move->tensor : move->source;
    uint64_t key = mix((uint64_t)(uintptr_t)source, move->bytes);
    if (move->src_parameter != NULL) {
        key = mix(mix(key, (uint64_t)(uintptr_t)move->src_parameter), move->src_offset);
    }
    if (move->conversion != NULL) {
        key = mix(key, move->conversion->at_receiver ? move->task_id : move->dst_dtype.kind);
    }
    for (uint32_t d = 0; d < move->src_n_dims; d++) {
        key = mix(key, move->src_parameter != NULL ? move->src_strides[d] : move->src_begin[d]);
        key = mix(key, move->src_length[d]);
    }
    return key == 0 ? 1 : key;
}

static content *find_place(content *contents, size_t capacity, uint64_t key)
{
    size_t at = (size_t)key & (capacity - 1);
    while (contents[at].key != 0 && contents[at].key != key) {
        at = (at + 1) & (capacity - 1);
    }
    return &contents[at];
}

static ferry_status make_room(simulate_fans *f, ferry_error *error)
{
    if (2 * f->n < f->capacity) {
        return FERRY_OK;
    }
    content *larger = calloc(2 * f->capacity, sizeof *larger);
    if (larger == NULL) {
        return fail_memory(error);
    }
    for (size_t i = 0; i < f->capacity; i++) {
        if (f->contents[i].key != 0) {
            *find_place(larger, 2 * f->capacity, f->contents[i].key) = f->contents[i];
        }
    }
    free(f->contents);
    f->contents = larger;
    f->capacity *= 2;
    return FERRY_OK;
}

/* Receivers of one content ascend, so those of a node come together. */
ferry_status simulate_add_to_fans(simulate_fans *f, const ferry_move *move, ferry_error *error)
{
    FY_TRY(make_room(f, error));
    uint64_t key = key_of(move);
    content *c = find_place(f->contents, f->capacity, key);
    if (c->key == 0) {
        *c = (content){.key = key, .bytes = move->bytes, .last_node = UINT32_MAX};
        f->n++;
    }
    c->n_receivers++;
    c->receivers += mix(1, move->to);
    uint32_t node = move->to / f->ranks_per_node;
    if (node != move->from / f->ranks_per_node) {
        c->n_outside++;
        c->n_nodes += node != c->last_node;
        c->last_node = node;
    }
    return FERRY_OK;
}

/* ---- senders ---- */

static int by_receivers(const void *a, const void *b)
{
    const content *x = a, *y = b;
    return (x->receivers > y->receivers) - (x->receivers < y->receivers);
}

/* Those with the same receivers are one group, whose members are linked: all of few, or to some. */
static double links_of(uint32_t n_receivers)
{
    double k = n_receivers;
    return k <= FULL_MESH ? k * k : k + 2 * k * ceil(log2(k));
}

simulate_sent_once simulate_end_sender(simulate_fans *f, uint32_t n_alike)
{
    simulate_sent_once once = {0, 0};
    size_t n = 0;
    for (size_t i = 0; i < f->capacity; i++) {
        if (f->contents[i].key != 0) {
            f->contents[n++] = f->contents[i];
        }
    }
    qsort(f->contents, n, sizeof *f->contents, by_receivers);
    for (size_t i = 0; i < n; i++) {
        const content *c = &f->contents[i];
        double bytes = (double)c->bytes, all = n_alike * bytes;
        once.bytes += bytes;
        once.leaving += c->n_outside > 0 ? bytes : 0;
        f->delivered[c->n_receivers] += all * c->n_receivers;
        f->entering += all * c->n_outside;
        f->entered += all * c->n_nodes;
        bool is_group = c->n_receivers > 1 && (i == 0 || c->receivers != c[-1].receivers);
        f->links += is_group ? n_alike * links_of(c->n_receivers) : 0;
    }
    memset(f->contents, 0, f->capacity * sizeof *f->contents);
    f->n = 0;
    return once;
}

/* ---- all of them ---- */

uint32_t simulate_most_receivers(const simulate_fans *f)
{
    uint32_t most = f->n_ranks;
    while (most > 0 && f->delivered[most] <= 0) {
        most--;
    }
    return most;
}

double simulate_share_entering(const simulate_fans *f)
{
    return f->entering > 0 ? f->entered / f->entering : 1;
}

double simulate_count_links(const simulate_fans *f)
{
    return f->links;
}

double simulate_end_of_fans(const simulate_fans *f, double busy, double hop, bool chain)
{
    double all = 0, behind = 0, end = busy;
    for (uint32_t k = 1; k <= f->n_ranks; k++) {
        all += f->delivered[k];
    }
    for (uint32_t k = f->n_ranks; k > 1 && all > 0; k--) {
        if (f->delivered[k] > 0) {
            behind += f->delivered[k];
            double hops = chain ? k - 1 : ceil(log2((double)k + 1)) - 1;
            end = fmax(end, hops * hop + busy * behind / all);
        }
    }
    return end;
}
