/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The cases of bench_refit and mpi_refit. No part of ferry or MPI is used here. */
#include "refit_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, MAX_RANKS = 64 };

/* What one side of a case looks like: ranks from first on, tp fastest, then dp, then pp. */
typedef struct side {
    int first, tp, dp, pp;
} side;

static refit_case *make_empty(int n_ranks)
{
    refit_case *c = calloc(1, sizeof *c);
    if (c == NULL || n_ranks < 1 || n_ranks > MAX_RANKS) {
        free(c);
        return NULL;
    }
    c->n_ranks = n_ranks;
    c->source_bytes = calloc((size_t)n_ranks, sizeof *c->source_bytes);
    c->destination_bytes = calloc((size_t)n_ranks, sizeof *c->destination_bytes);
    if (c->source_bytes == NULL || c->destination_bytes == NULL) {
        refit_case_free(c);
        return NULL;
    }
    return c;
}

void refit_case_free(refit_case *c)
{
    if (c != NULL) {
        free(c->source_bytes);
        free(c->destination_bytes);
        free(c->moves);
        free(c);
    }
}

static bool add_move(refit_case *c, const refit_move *move)
{
    if ((c->n_moves & (c->n_moves - 1)) == 0) { /* full at every power of two */
        size_t room = c->n_moves == 0 ? 1 : 2 * c->n_moves;
        refit_move *moves = realloc(c->moves, room * sizeof *moves);
        if (moves == NULL) {
            return false;
        }
        c->moves = moves;
    }
    c->moves[c->n_moves++] = *move;
    c->bytes += move->rows * move->columns * REFIT_ELEMENT_BYTES;
    return true;
}

/* Takes room for a shard and returns its offset. */
static uint64_t take(uint64_t *bytes, uint64_t n_elements)
{
    uint64_t at = *bytes;
    *bytes = at + (n_elements * REFIT_ELEMENT_BYTES + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* ---- layers and matrices: tensors that both sides cut along dimension 0 or 1, or not ---- */

typedef struct tensor {
    uint64_t shape[2];
    int source_cut, destination_cut; /* 2: every rank has all of it */
    int layer, n_layers;             /* which of the pipeline's ranks has it */
} tensor;

/* A shard: where it lies in its rank's memory, and which part of the tensor it is. */
typedef struct shard {
    int rank, part;
    uint64_t offset, begin[2], length[2];
} shard;

static int place_shards(const tensor *t, const side *s, int cut, uint64_t *bytes, shard *out)
{
    int n = 0, stage = t->layer * s->pp / t->n_layers;
    for (int i = 0; i < s->dp * s->tp; i++) {
        shard *own = &out[n++];
        *own = (shard){.rank = s->first + stage * s->dp * s->tp + i,
                       .part = i % s->tp,
                       .length = {t->shape[0], t->shape[1]}};
        if (cut < 2) {
            own->length[cut] = t->shape[cut] / (uint64_t)s->tp;
            own->begin[cut] = own->length[cut] * (uint64_t)own->part;
        }
        own->offset = take(&bytes[own->rank], own->length[0] * own->length[1]);
    }
    return n;
}

static bool add_overlap(refit_case *c, const shard *from, const shard *to)
{
    uint64_t begin[2], length[2];
    for (int d = 0; d < 2; d++) {
        uint64_t end = from->begin[d] + from->length[d], other = to->begin[d] + to->length[d];
        begin[d] = from->begin[d] > to->begin[d] ? from->begin[d] : to->begin[d];
        end = end < other ? end : other;
        if (end <= begin[d]) {
            return true;
        }
        length[d] = end - begin[d];
    }
    refit_move move = {.from = from->rank,
                       .to = to->rank,
                       .source = {from->offset, from->length[0], from->length[1],
                                  begin[0] - from->begin[0], begin[1] - from->begin[1]},
                       .rows = length[0],
                       .columns = length[1]};
    move.destination = (refit_place){to->offset, to->length[0], to->length[1],
                                     begin[0] - to->begin[0], begin[1] - to->begin[1]};
    return add_move(c, &move);
}

/* Copies beyond the first are no sources; a tensor that is whole everywhere comes from one. */
static bool add_tensor(refit_case *c, const tensor *t, const side *from, const side *to)
{
    shard sources[MAX_RANKS], destinations[MAX_RANKS];
    int n_from = place_shards(t, from, t->source_cut, c->source_bytes, sources);
    int n_to = place_shards(t, to, t->destination_cut, c->destination_bytes, destinations);
    for (int d = 0; d < n_to; d++) {
        for (int s = 0; s < from->tp && s < n_from; s++) {
            bool is_wanted = t->source_cut < 2 || s == destinations[d].part % from->tp;
            if (is_wanted && !add_overlap(c, &sources[s], &destinations[d])) {
                return false;
            }
        }
    }
    return true;
}

static refit_case *make_of_sides(int n_ranks, const tensor *t, const side *from, const side *to)
{
    refit_case *c = make_empty(n_ranks);
    if (c != NULL && !add_tensor(c, t, from, to)) {
        refit_case_free(c);
        c = NULL;
    }
    return c;
}

static refit_case *make_send(const char *text)
{
    unsigned long long rows = 0, columns = 0;
    const side from = {0, 1, 1, 1}, to = {1, 1, 1, 1};
    if (sscanf(text, "send:%llu:%llu", &rows, &columns) != 2 || rows < 1 || columns < 1) {
        return NULL;
    }
    tensor t = {{rows, columns}, 2, 2, 0, 1};
    return make_of_sides(2, &t, &from, &to);
}

static refit_case *make_matrix(const char *text)
{
    int from = 0, to = 0;
    unsigned long long rows = 16384, columns = 32768;
    if (sscanf(text, "matrix:%d:%d:%llu:%llu", &from, &to, &rows, &columns) < 2 || from < 1 ||
        to < 1 || rows % (unsigned)from != 0 || columns % (unsigned)to != 0) {
        return NULL;
    }
    const side left = {0, from, 1, 1}, right = {0, to, 1, 1};
    tensor t = {{rows, columns}, 0, 1, 0, 1};
    return make_of_sides(from > to ? from : to, &t, &left, &right);
}

static bool add_layers(refit_case *c, uint64_t scale, const side *from, const side *to)
{
    uint64_t hidden = 8192 / scale, wide = 28672 / scale, narrow = 1024 / scale;
    uint64_t words = 32000 / scale;
    const tensor outer[] = {{{words, hidden}, 0, 0, 0, 2}, {{words, hidden}, 0, 0, 1, 2}};
    const tensor layer[] = {
        {{hidden, hidden}, 0, 0, 0, 2}, {{narrow, hidden}, 0, 0, 0, 2},
        {{narrow, hidden}, 0, 0, 0, 2}, {{hidden, hidden}, 1, 1, 0, 2},
        {{wide, hidden}, 0, 0, 0, 2},   {{wide, hidden}, 0, 0, 0, 2},
        {{hidden, wide}, 1, 1, 0, 2},   {{1, hidden}, 2, 2, 0, 2},
        {{1, hidden}, 2, 2, 0, 2},
    };
    bool is_good = add_tensor(c, &outer[0], from, to) && add_tensor(c, &outer[1], from, to);
    for (int l = 0; l < 2; l++) {
        for (size_t i = 0; i < sizeof layer / sizeof layer[0] && is_good; i++) {
            tensor t = layer[i];
            t.layer = l;
            is_good = add_tensor(c, &t, from, to);
        }
    }
    return is_good;
}

static refit_case *make_layers(const char *text)
{
    static const struct {
        const char *name;
        side from, to;
    } layouts[] = {{"tp8-tp4dp2", {0, 8, 1, 1}, {0, 4, 2, 1}},
                   {"tp4-tp2pp2", {0, 4, 1, 1}, {4, 2, 1, 2}}};
    char name[32] = "";
    unsigned scale = 1;
    int n_read = sscanf(text, "layers:%31[^:]:%u", name, &scale);
    bool is_fit = scale == 1 || scale == 2 || scale == 4 || scale == 8 || scale == 16;
    for (size_t i = 0; n_read >= 1 && is_fit && i < sizeof layouts / sizeof layouts[0]; i++) {
        if (strcmp(name, layouts[i].name) == 0) {
            refit_case *c = make_empty(8);
            if (c != NULL && !add_layers(c, scale, &layouts[i].from, &layouts[i].to)) {
                refit_case_free(c);
                c = NULL;
            }
            return c;
        }
    }
    return NULL;
}

/* ---- small tensors ---- */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Receivers have the tensors in another order than senders: neighbours do not stay neighbours. */
static void place_in_random_order(refit_case *c)
{
    size_t *order = malloc(c->n_moves * sizeof *order);
    if (order == NULL) {
        abort();
    }
    for (size_t i = 0; i < c->n_moves; i++) {
        order[i] = i;
    }
    for (size_t i = c->n_moves - 1; i > 0; i--) {
        size_t j = mix(i + 77) % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (size_t i = 0; i < c->n_moves; i++) {
        refit_move *move = &c->moves[order[i]];
        move->destination.offset = take(&c->destination_bytes[move->to], move->columns);
    }
    free(order);
}

static refit_case *make_small(const char *text)
{
    int n = 0;
    const int n_ranks = 2;
    if (sscanf(text, "small:%d", &n) != 1 || n < 2) {
        return NULL;
    }
    refit_case *c = make_empty(n_ranks);
    for (int i = 0; c != NULL && i < n; i++) {
        uint64_t columns = (1024 + mix((uint64_t)i) % (15 * 1024 + 1)) / 16 * 16 / 2;
        int from = i % n_ranks;
        refit_move move = {.from = from,
                           .to = (from + 1) % n_ranks,
                           .rows = 1,
                           .columns = columns,
                           .source = {.rows = 1, .columns = columns}};
        move.destination = move.source;
        move.source.offset = take(&c->source_bytes[from], columns);
        if (!add_move(c, &move)) {
            refit_case_free(c);
            return NULL;
        }
    }
    if (c != NULL) {
        place_in_random_order(c);
    }
    return c;
}

refit_case *refit_case_make(const char *text)
{
    refit_case *c = strncmp(text, "matrix:", 7) == 0   ? make_matrix(text)
                    : strncmp(text, "layers:", 7) == 0 ? make_layers(text)
                    : strncmp(text, "small:", 6) == 0  ? make_small(text)
                    : strncmp(text, "send:", 5) == 0   ? make_send(text)
                                                       : NULL;
    if (c == NULL) {
        fprintf(stderr, "%s is no case: see refit_cases.h\n", text);
    }
    return c;
}

/* ---- contents ---- */

static uint64_t word_of(int rank, uint64_t index)
{
    return mix(((uint64_t)rank << 48) ^ index);
}

void refit_fill(const refit_case *c, int rank, void *source)
{
    uint64_t *words = source;
    for (uint64_t i = 0; i < c->source_bytes[rank] / 8; i++) {
        words[i] = word_of(rank, i);
    }
}

/* Memory is made of whole words; a row may begin and end within one. */
static bool row_is_right(int from, uint64_t at, const char *row, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t word = word_of(from, (at + done) / 8), skip = (at + done) % 8;
        uint64_t n = 8 - skip < bytes - done ? 8 - skip : bytes - done;
        if (memcmp((const char *)&word + skip, row + done, n) != 0) {
            return false;
        }
        done += n;
    }
    return true;
}

uint64_t refit_count_wrong(const refit_case *c, int rank, const void *destination)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < c->n_moves; i++) {
        const refit_move *move = &c->moves[i];
        for (uint64_t r = 0; move->to == rank && r < move->rows; r++) {
            const char *row = (const char *)destination + refit_row_at(&move->destination, r);
            wrong += !row_is_right(move->from, refit_row_at(&move->source, r), row,
                                   move->columns * REFIT_ELEMENT_BYTES);
        }
    }
    return wrong;
}
