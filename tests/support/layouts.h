/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_LAYOUTS_H
#define FERRY_TESTS_LAYOUTS_H

/*
 * Random tensors under random layouts, and what every rank holds of them, element by element, from
 * the public visit of a plan's shards: what files and memory should have, found in the slowest way.
 */
#include "support/random.h"
#include "support/spec.h"

#include <ferry/shard.h>

enum { LAYOUT_MOST_DIMS = 4, LAYOUT_MOST_TENSORS = 6 };

typedef struct layout_tensor {
    char name[16];
    const char *dtype; /* ferry's name */
    const char *word;  /* that of safetensors files */
    uint32_t bits;
    uint32_t n_dims;
    uint64_t shape[LAYOUT_MOST_DIMS];
    uint64_t n_elements;
    unsigned char *bytes; /* all of it */
} layout_tensor;

/* A mesh of two axes, "x" and "y". */
typedef struct layout_mesh {
    uint32_t size[2];
} layout_mesh;

static inline uint64_t layout_bytes(uint64_t n_elements, uint32_t bits)
{
    return (n_elements * bits + 7) / 8;
}

/* Of half bytes the first is the low one: which does not matter, as long as it is always so. */
static inline void layout_copy_element(void *to, uint64_t j, const void *from, uint64_t i,
                                       uint32_t bits)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    if (bits == 4) {
        unsigned value = (unsigned)f[i / 2] >> (i % 2 * 4) & 15u;
        t[j / 2] = (unsigned char)(j % 2 == 0 ? (t[j / 2] & 0xf0u) | value
                                              : (t[j / 2] & 15u) | value << 4);
        return;
    }
    memcpy(t + j * (bits / 8), f + i * (bits / 8), bits / 8);
}

static inline void layout_tensor_fill(uint64_t *random, layout_tensor *t)
{
    t->n_elements = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        t->n_elements *= t->shape[d];
    }
    uint64_t n = layout_bytes(t->n_elements, t->bits);
    t->bytes = calloc(n + 1, 1);
    assert_non_null(t->bytes);
    for (uint64_t i = 0; i < n; i++) {
        t->bytes[i] = (unsigned char)random_u64(random);
    }
}

static inline void layout_tensor_random(uint64_t *random, uint32_t number, layout_tensor *t)
{
    static const struct {
        const char *dtype, *word;
        uint32_t bits;
    } types[] = {{"u8", "U8", 8},    {"bf16", "BF16", 16}, {"f32", "F32", 32},
                 {"c64", "C64", 64}, {"f4", "F4", 4},      {"f8e4m3", "F8_E4M3", 8}};
    size_t type = random_below(random, COUNT_OF(types));
    uint32_t n_dims = random_below(random, LAYOUT_MOST_DIMS + 1);
    uint64_t n = 1;
    if (types[type].bits == 4 && n_dims == 0) { /* files have whole bytes */
        n_dims = 2;
    }
    *t = (layout_tensor){.dtype = types[type].dtype,
                         .word = types[type].word,
                         .bits = types[type].bits,
                         .n_dims = n_dims};
    snprintf(t->name, sizeof t->name, "t%u", number);
    for (uint32_t d = 0; d < n_dims; d++) {
        t->shape[d] = random_below(random, 12) == 0 ? 0 : 1 + random_below(random, 8);
        n *= t->shape[d];
    }
    if (t->bits == 4 && n % 2 != 0) {
        t->shape[random_below(random, n_dims)] *= 2;
    }
    layout_tensor_fill(random, t);
}

/* n numbers that sum to total. */
static inline void layout_numbers(uint64_t *random, text_buffer *out, uint64_t total, uint32_t n,
                                  uint32_t n_ranks)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t now = i + 1 == n ? total : random_below(random, (uint32_t)total + 1);
        uint32_t k = n_ranks > 0 ? 1 + random_below(random, n_ranks) : 1;
        if (n_ranks > 1 && n_ranks % k == 0) {
            text_printf(out, "%s[%llu,%u]", i == 0 ? "" : ",", (unsigned long long)now, k);
        } else {
            text_printf(out, "%s%llu", i == 0 ? "" : ",", (unsigned long long)now);
        }
        total -= now;
    }
}

/* How one dimension is cut over n ranks. */
static inline void layout_cut_random(uint64_t *random, text_buffer *out, uint64_t extent,
                                     uint32_t n)
{
    uint32_t few = 1 + random_below(random, n);
    switch (random_below(random, 8)) {
    case 0:
        text_printf(out, ",'stride':%u", 1 + random_below(random, 3));
        break;
    case 1:
        text_printf(out, ",'cycle':%u", 1 + random_below(random, 4));
        break;
    case 2:
        text_printf(out, ",'blocks':[");
        layout_numbers(random, out, extent, 1 + random_below(random, 3), n);
        text_printf(out, "]");
        break;
    case 3:
        text_printf(out, ",'sizes':[");
        layout_numbers(random, out, extent, n, 0);
        text_printf(out, "]");
        break;
    case 4:
        if (n % few == 0) {
            text_printf(out, ",'parts':%u", few);
        }
        break;
    case 5:
        text_printf(out, ",'unit':%u", extent % 2 == 0 ? 2 : 1);
        break;
    default:
        break;
    }
}

/* A rule for one tensor. An axis shards a dimension, cuts the flat shard, is fixed or replicates.
 */
static inline void layout_rule_random(uint64_t *random, text_buffer *out, const layout_tensor *t,
                                      const layout_mesh *mesh)
{
    uint32_t use[2]; /* dimensions, then: flat, on, nothing */
    const char *names = "xy", *between = "";
    for (int a = 0; a < 2; a++) {
        use[a] = random_below(random, t->n_dims + 3);
        use[a] = random_below(random, 2) == 0 && t->n_dims > 0 ? use[a] % t->n_dims : use[a];
    }
    use[1] += use[0] == use[1] && use[0] >= t->n_dims && use[0] < t->n_dims + 2 ? 1 : 0;
    text_printf(out, "{'match':'%s'", t->name);
    text_printf(out, ",'shard':[");
    if (use[0] == use[1] && use[0] < t->n_dims) {
        text_printf(out, "{'dim':%u,'axis':['x','y']", use[0]);
        layout_cut_random(random, out, t->shape[use[0]], mesh->size[0] * mesh->size[1]);
        text_printf(out, "}");
    } else {
        for (int a = 0; a < 2; a++) {
            if (use[a] < t->n_dims) {
                text_printf(out, "%s{'dim':%u,'axis':'%c'", between, use[a], names[a]);
                layout_cut_random(random, out, t->shape[use[a]], mesh->size[a]);
                text_printf(out, "}");
                between = ",";
            }
        }
    }
    text_printf(out, "]");
    for (int a = 0; a < 2; a++) {
        if (use[a] == t->n_dims) {
            text_printf(out, ",'flat':{'axis':'%c'}", names[a]);
        } else if (use[a] == t->n_dims + 1) {
            text_printf(out, ",'on':{'%c':%u}", names[a], random_below(random, mesh->size[a]));
        }
    }
    text_printf(out, "}");
}

/* The members of a side: mesh and rules. */
static inline void layout_side_random(uint64_t *random, text_buffer *out, const layout_tensor *t,
                                      size_t n, layout_mesh *mesh_out)
{
    *mesh_out = (layout_mesh){{1 + random_below(random, 3), 1 + random_below(random, 3)}};
    text_printf(out, "'mesh':[['x',%u],['y',%u]],'rules':[", mesh_out->size[0], mesh_out->size[1]);
    for (size_t i = 0; i < n; i++) {
        layout_rule_random(random, out, &t[i], mesh_out);
        text_printf(out, ",");
    }
    text_printf(out, "{'match':'*'}]");
}

static inline void layout_tensor_print(text_buffer *out, const layout_tensor *t)
{
    text_printf(out, "{'name':'%s','shape':[", t->name);
    for (uint32_t d = 0; d < t->n_dims; d++) {
        text_printf(out, "%s%llu", d == 0 ? "" : ",", (unsigned long long)t->shape[d]);
    }
    text_printf(out, "],'dtype':'%s'}", t->dtype);
}

/* ---- what a rank holds ---- */

/* Where each local index of a dimension lies in the whole tensor; the caller frees it. */
static inline uint64_t *layout_global_indices(const ferry_shard *shard, uint32_t dim)
{
    uint64_t *global = calloc(shard->local[dim] + 1, sizeof *global);
    assert_non_null(global);
    for (size_t p = 0; p < ferry_shard_piece_count(shard, dim); p++) {
        uint64_t local, first, length;
        ferry_error error;
        must(ferry_shard_piece_at(shard, dim, p, &local, &first, &length, &error), &error);
        for (uint64_t i = 0; i < length; i++) {
            global[local + i] = first + i;
        }
    }
    return global;
}

/* The number in the whole tensor of each element that the shard has; the caller frees it. */
static inline uint64_t *layout_elements(const ferry_shard *shard)
{
    uint64_t *dims[LAYOUT_MOST_DIMS], n = shard->flat_end - shard->flat_begin;
    uint64_t *elements = calloc(n + 1, sizeof *elements);
    assert_non_null(elements);
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        dims[d] = layout_global_indices(shard, d);
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t rest = shard->flat_begin + i, at = 0, pitch = 1;
        for (uint32_t d = shard->n_dims; d-- > 0;) {
            at += dims[d][rest % shard->local[d]] * pitch;
            rest /= shard->local[d];
            pitch *= shard->global[d];
        }
        elements[i] = at;
    }
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        free(dims[d]);
    }
    return elements;
}

/* The bytes of a shard; the caller frees them. */
static inline unsigned char *layout_shard_bytes(const layout_tensor *t, const ferry_shard *shard)
{
    unsigned char *bytes = calloc(shard->bytes + 1, 1);
    uint64_t *elements = layout_elements(shard);
    assert_non_null(bytes);
    for (uint64_t i = 0; i < shard->flat_end - shard->flat_begin; i++) {
        layout_copy_element(bytes, i, t->bytes, elements[i], t->bits);
    }
    free(elements);
    return bytes;
}

#endif
