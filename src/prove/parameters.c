/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/hash.h"
#include "base/sort.h"
#include "prove/cast.h"
#include "prove/codes.h"
#include "prove/lattice.h"
#include "prove/quantize.h"
#include "prove/spec_read.h"

#include <ferry/group.h>

#include <string.h>

/* A side in boxes: which parameters its ranks have, and what these hold. */

enum { MOST_BOXES = 1 << 24, MOST_CROSSINGS = 1 << 10 };

/* What the readers share. */
typedef struct reading {
    fy_proof_spec *spec;
    int side;
    fy_proof_parameter *parameter;
    fy_proof_held *boxes; /* of the parameter at hand */
    size_t n_boxes;
} reading;

typedef struct loop_json {
    uint64_t count, offset;
    const json_t *begin;
} loop_json;

static ferry_status read_loop(const json_t *json, const fy_json_place *place, size_t n_dims,
                              fy_proof_step *step, uint64_t *begin, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"count", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(loop_json, count), .least = 1,
         .most = FY_PROOF_MOST},
        {"begin", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(loop_json, begin)},
        {"offset", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(loop_json, offset),
         .most = FY_PROOF_MOST},
        {.key = NULL}};
    fy_json_place inner = {.parent = place, .key = "begin"};
    loop_json l = {.begin = NULL};
    size_t n;
    FY_TRY(fy_json_read(json, place, fields, &l, NULL, error));
    FY_TRY(fy_proof_read_dims(l.begin, &inner, 0, begin, &n, error));
    if (n != n_dims) {
        return fy_json_fail(&inner, error, "has %zu numbers for %zu dimensions", n, n_dims);
    }
    *step = (fy_proof_step){.count = l.count, .stride = l.offset};
    return FERRY_OK;
}

static ferry_status read_loops(const reading *r, const json_t *json, const fy_json_place *place,
                               size_t n_dims, fy_proof_held *box, ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    if (n > FY_PROOF_LOOPS) {
        return fy_json_fail(place, error, "has %zu loops, more than %d", n, FY_PROOF_LOOPS);
    }
    uint64_t(*loops)[FY_PROOF_DIMS] =
        fy_arena_alloc(&r->spec->arena, FY_PROOF_LOOPS, sizeof *loops);
    FY_TRY(fy_check_memory(loops != NULL, "the loops of a box", error));
    memset(loops, 0, FY_PROOF_LOOPS * sizeof *loops);
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        size_t at = FY_PROOF_LOOPS - n + i;
        FY_TRY(
            read_loop(json_array_get(json, i), &inner, n_dims, &box->steps[at], loops[at], error));
    }
    box->loops = n == 0 ? NULL : (const uint64_t(*)[FY_PROOF_DIMS])loops;
    return FERRY_OK;
}

/* shape and strides, one of each for each dimension. */
static ferry_status read_steps(const json_t *shape, const json_t *strides,
                               const fy_json_place *place, fy_proof_held *box, size_t *n_dims_out,
                               ferry_error *error)
{
    fy_json_place shape_place = {.parent = place, .key = "shape"};
    fy_json_place strides_place = {.parent = place, .key = "strides"};
    uint64_t counts[FY_PROOF_DIMS], steps[FY_PROOF_DIMS];
    size_t n_strides;
    FY_TRY(fy_proof_read_dims(shape, &shape_place, 1, counts, n_dims_out, error));
    FY_TRY(fy_proof_read_dims(strides, &strides_place, 0, steps, &n_strides, error));
    if (n_strides != *n_dims_out) {
        return fy_json_fail(&strides_place, error, "has %zu numbers for a box of %zu dimensions",
                            n_strides, *n_dims_out);
    }
    for (size_t i = 0; i < FY_PROOF_LOOPS; i++) {
        box->steps[i] = (fy_proof_step){.count = 1};
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        box->steps[FY_PROOF_LOOPS + d] = (fy_proof_step){.count = counts[d], .stride = steps[d]};
    }
    return FERRY_OK;
}

static bool is_empty(const fy_proof_held *box)
{
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        if (box->steps[i].count == 0) {
            return true;
        }
    }
    return false;
}

/*
 * How often the search for an element may have to try several turns: where smaller strides add up
 * to more than a larger one. Boxes of a model have none of this.
 */
static bool crosses_too_often(const fy_proof_held *box)
{
    uint64_t crossings = 1;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        uint64_t smaller = 0;
        for (size_t k = 0; k < FY_PROOF_STEPS && box->steps[i].count > 1; k++) {
            if (box->steps[k].stride < box->steps[i].stride) {
                smaller += (box->steps[k].count - 1) * box->steps[k].stride;
            }
        }
        if (box->steps[i].count > 1) {
            crossings *= fy_min(smaller / box->steps[i].stride, MOST_CROSSINGS) + 1;
        }
        if (crossings > MOST_CROSSINGS) {
            return true;
        }
    }
    return false;
}

/* A box that is not empty: its elements are inside the parameter. */
static ferry_status check_memory(const reading *r, const fy_json_place *place,
                                 const fy_proof_held *box, ferry_error *error)
{
    uint64_t last = box->offset;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        uint64_t way;
        const fy_proof_step *step = &box->steps[i];
        if (step->count > 1 && step->stride == 0) {
            return fy_json_fail(
                place, error,
                "puts %llu elements of %s on one: a stride is 0 where the length is "
                "more than 1",
                (unsigned long long)step->count, r->parameter->name);
        }
        if (!fy_mul(step->count - 1, step->stride, &way) || !fy_add(last, way, &last) ||
            last >= r->parameter->elements) {
            last = UINT64_MAX;
            break;
        }
    }
    if (last >= r->parameter->elements) {
        return fy_json_fail(place, error, "leaves the parameter %s of %llu elements",
                            r->parameter->name, (unsigned long long)r->parameter->elements);
    }
    if (crosses_too_often(box)) {
        return fy_json_fail(place, error, "has strides that cross each other too often");
    }
    return FERRY_OK;
}

/* The box, wherever its loops set it down, is inside the tensor. */
static ferry_status check_tensor(const fy_proof_tensor *tensor, const fy_json_place *place,
                                 const fy_proof_held *box, ferry_error *error)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t end = box->begin[d] + box->steps[FY_PROOF_LOOPS + d].count; /* both below 2^62 */
        for (size_t i = 0; i < FY_PROOF_LOOPS && box->loops != NULL; i++) {
            uint64_t way;
            if (!fy_mul(box->steps[i].count - 1, box->loops[i][d], &way) ||
                !fy_add(end, way, &end)) {
                end = UINT64_MAX;
            }
        }
        if (end > tensor->entry->shape[d]) {
            return fy_json_fail(place, error, "leaves %s, which has %llu elements on dim %d",
                                tensor->name, (unsigned long long)tensor->entry->shape[d],
                                (int)d - (FY_PROOF_DIMS - (int)tensor->entry->n_dims));
        }
    }
    return FERRY_OK;
}

/* Wherever its loops set it down, a box that is quantized is of whole blocks. */
static ferry_status check_blocks(const reading *r, const fy_json_place *place,
                                 const fy_proof_held *box, ferry_error *error)
{
    const fy_proof_quantize *q = r->parameter->quantize;
    for (size_t d = FY_PROOF_DIMS - 2; d < FY_PROOF_DIMS && q != NULL; d++) {
        uint64_t block = q->block[d + 2 - FY_PROOF_DIMS];
        uint64_t end = box->begin[d] + box->steps[FY_PROOF_LOOPS + d].count;
        bool is_whole = box->begin[d] % block == 0 &&
                        (end % block == 0 || end == r->spec->tensors[box->tensor].entry->shape[d]);
        for (size_t i = 0; i < FY_PROOF_LOOPS && box->loops != NULL; i++) {
            is_whole = is_whole && (box->steps[i].count == 1 || box->loops[i][d] % block == 0);
        }
        if (!is_whole) {
            return fy_json_fail(place, error, "begins or ends inside a block of %llu",
                                (unsigned long long)block);
        }
    }
    return FERRY_OK;
}

/*
 * A loop that goes on where the box ends, in the tensor and in memory, makes it longer: so a move
 * over all its turns is within one box. The inner loops are tried first.
 */
static void unroll(fy_proof_held *box)
{
    for (size_t i = FY_PROOF_LOOPS; i-- > 0 && box->loops != NULL;) {
        fy_proof_step *loop = &box->steps[i];
        size_t longer = FY_PROOF_DIMS, n_moving = 0;
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            if (box->loops[i][d] != 0) {
                longer = d;
                n_moving++;
            }
        }
        if (loop->count == 1 || n_moving != 1) {
            continue;
        }
        fy_proof_step *step = &box->steps[FY_PROOF_LOOPS + longer];
        uint64_t stride = step->count == 1 ? loop->stride : step->stride;
        if (box->loops[i][longer] == step->count && stride == loop->stride / step->count &&
            loop->stride % step->count == 0) {
            step->stride = stride;
            step->count *= loop->count;
            loop->count = 1;
        }
    }
}

typedef struct hold_json {
    const char *tensor;
    const json_t *begin, *shape, *strides, *repeat;
    uint64_t offset;
} hold_json;

static ferry_status check_dtype(const reading *r, const fy_json_place *place, uint32_t t,
                                ferry_error *error)
{
    const ferry_dtype *dtype = &r->spec->tensors[t].entry->dtype;
    fy_proof_parameter *p = r->parameter;
    if (p->dtype.element_bits == 0) { /* the first that says what it is */
        p->dtype = *dtype;
    }
    bool is_same = dtype->kind == p->dtype.kind && dtype->element_bits == p->dtype.element_bits;
    bool changes = p->quantize != NULL || p->codes != NULL || p->cast.scale != 1 ||
                   p->cast.add != 0 || !is_same;
    if (r->spec->tensors[t].entry->scaling != NULL && changes) {
        return fy_json_fail(place, error, "holds %s, scales of blocks, and changes them",
                            r->spec->tensors[t].name);
    }
    if (p->quantize != NULL) {
        return FERRY_OK; /* it has scales, so its type has blocks */
    }
    if (p->codes != NULL) {
        return fy_proof_codes_allow(&r->spec->tensors[t], p->dtype, error);
    }
    if (r->side == FY_PROOF_SOURCE ? !is_same : !fy_proof_cast_allows(&p->cast, *dtype, p->dtype)) {
        return fy_json_fail(place, error, "holds %s, whose dtype is not that of the parameter %s",
                            r->spec->tensors[t].name, p->name);
    }
    return FERRY_OK;
}

static ferry_status find_tensor(const reading *r, const fy_json_place *place, const char *name,
                                size_t n_dims, fy_proof_held *box, ferry_error *error)
{
    if (!fy_proof_spec_find(r->spec, name, &box->tensor)) {
        return fy_json_fail(place, error, "holds %s, which is not among the tensors", name);
    }
    const fy_proof_tensor *tensor = &r->spec->tensors[box->tensor];
    if (n_dims != tensor->entry->n_dims) {
        return fy_json_fail(place, error, "has %zu dimensions, but %s has %zu", n_dims, name,
                            tensor->entry->n_dims);
    }
    if (r->side == FY_PROOF_SOURCE && tensor->entry->has_source) {
        return fy_json_fail(place, error, "holds %s, which has a source: it is made on the way",
                            name);
    }
    if (r->side == FY_PROOF_DESTINATION && tensor->entry->is_source_only) {
        return fy_json_fail(place, error, "holds %s, which is only at the source", name);
    }
    return check_dtype(r, place, box->tensor, error);
}

static ferry_status read_hold(const json_t *json, const fy_json_place *place, reading *r,
                              ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"tensor", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(hold_json, tensor)},
        {"begin", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(hold_json, begin)},
        {"shape", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(hold_json, shape)},
        {"offset", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(hold_json, offset),
         .most = FY_PROOF_MOST},
        {"strides", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(hold_json, strides)},
        {"repeat", FY_JSON_VALUE, .offset = offsetof(hold_json, repeat)},
        {.key = NULL}};
    fy_json_place begin = {.parent = place, .key = "begin"};
    fy_json_place repeat = {.parent = place, .key = "repeat"};
    hold_json h = {.repeat = NULL};
    size_t n_dims, n_begins;
    fy_proof_held *box = &r->boxes[r->n_boxes];
    *box = (fy_proof_held){.tensor = FY_PROOF_FILL};
    FY_TRY(fy_json_read(json, place, fields, &h, NULL, error));
    box->offset = h.offset;
    FY_TRY(read_steps(h.shape, h.strides, place, box, &n_dims, error));
    FY_TRY(fy_proof_read_dims(h.begin, &begin, 0, box->begin, &n_begins, error));
    if (n_begins != n_dims) {
        return fy_json_fail(&begin, error, "has %zu numbers for a box of %zu dimensions", n_begins,
                            n_dims);
    }
    FY_TRY(find_tensor(r, place, h.tensor, n_dims, box, error));
    if (h.repeat != NULL) {
        FY_TRY(read_loops(r, h.repeat, &repeat, n_dims, box, error));
    }
    FY_TRY(check_tensor(&r->spec->tensors[box->tensor], place, box, error));
    FY_TRY(check_blocks(r, place, box, error));
    if (is_empty(box)) {
        return FERRY_OK;
    }
    FY_TRY(check_memory(r, place, box, error));
    unroll(box);
    r->spec->tensors[box->tensor].is_held[r->side] = true;
    r->n_boxes++;
    return FERRY_OK;
}

typedef struct fill_json {
    const json_t *shape, *strides;
    const char *bits;
    uint64_t offset;
} fill_json;

static ferry_status read_fill(const json_t *json, const fy_json_place *place, reading *r,
                              ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"offset", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(fill_json, offset),
         .most = FY_PROOF_MOST},
        {"shape", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(fill_json, shape)},
        {"strides", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(fill_json, strides)},
        {"bits", FY_JSON_STRING, .offset = offsetof(fill_json, bits)},
        {.key = NULL}};
    fill_json f = {.bits = NULL};
    size_t n_dims;
    fy_proof_held *box = &r->boxes[r->n_boxes];
    *box = (fy_proof_held){.tensor = FY_PROOF_FILL};
    FY_TRY(fy_json_read(json, place, fields, &f, NULL, error));
    box->offset = f.offset;
    box->bits = f.bits;
    FY_TRY(read_steps(f.shape, f.strides, place, box, &n_dims, error));
    if (f.bits != NULL && (strlen(f.bits) != r->parameter->dtype.element_bits / 4 ||
                           strspn(f.bits, "0123456789abcdefABCDEF") != strlen(f.bits))) {
        return fy_json_fail(place, error, "has the bits \"%s\", not %u hexadecimal digits", f.bits,
                            r->parameter->dtype.element_bits / 4);
    }
    if (is_empty(box)) {
        return FERRY_OK;
    }
    FY_TRY(check_memory(r, place, box, error));
    r->n_boxes++;
    return FERRY_OK;
}

typedef struct parameter_json {
    const json_t *rank, *ranks, *holds, *fill, *quantize, *dequantize;
    const char *name;
    fy_proof_cast_json said;
    uint64_t elements;
    bool is_partial;
} parameter_json;

static ferry_status read_list(const json_t *json, const fy_json_place *place, reading *r,
                              ferry_status (*read)(const json_t *, const fy_json_place *, reading *,
                                                   ferry_error *),
                              ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < json_array_size(json); i++) {
        fy_json_place inner = {.parent = place, .index = i};
        status = read(json_array_get(json, i), &inner, r, error);
    }
    return status;
}

static ferry_status read_boxes(const parameter_json *p, const fy_json_place *place, reading *r,
                               ferry_error *error)
{
    fy_json_place holds = {.parent = place, .key = "holds"};
    fy_json_place fills = {.parent = place, .key = "fill"};
    if (p->fill != NULL && r->side == FY_PROOF_SOURCE) {
        return fy_json_fail(&fills, error, "stands at the source, which is not written");
    }
    FY_TRY(fy_json_expect_array(p->holds, &holds, error));
    FY_TRY(p->fill == NULL ? FERRY_OK : fy_json_expect_array(p->fill, &fills, error));
    size_t n = json_array_size(p->holds) + json_array_size(p->fill);
    if (n > MOST_BOXES) {
        return fy_json_fail(place, error, "has %zu boxes, more than %d", n, MOST_BOXES);
    }
    r->boxes = fy_arena_alloc(&r->spec->arena, n, sizeof *r->boxes);
    r->n_boxes = 0;
    FY_TRY(fy_check_memory(r->boxes != NULL, "the boxes of a parameter", error));
    FY_TRY(read_list(p->holds, &holds, r, read_hold, error));
    if (r->parameter->dtype.element_bits == 0) {
        return fy_json_fail(place, error, "holds nothing that says what its dtype is");
    }
    uint64_t bits;
    if (!fy_mul(r->parameter->elements, r->parameter->dtype.element_bits, &bits) ||
        bits > FY_PROOF_MOST) {
        return fy_json_fail(place, error, "has %llu elements of %u bits, too many",
                            (unsigned long long)r->parameter->elements,
                            r->parameter->dtype.element_bits);
    }
    FY_TRY(read_list(p->fill, &fills, r, read_fill, error));
    r->parameter->boxes = r->boxes;
    r->parameter->n_boxes = r->n_boxes;
    r->parameter->lattice = fy_proof_lattice_make(&r->spec->arena, r->boxes, r->n_boxes);
    return fy_check_memory(r->parameter->lattice != NULL, "the boxes of a parameter", error);
}

/* The ranks of an entry, in the arena. */
static ferry_status read_ranks(fy_proof_spec *spec, const parameter_json *p,
                               const fy_json_place *place, const uint64_t **ranks_out,
                               size_t *n_out, ferry_error *error)
{
    fy_json_place rank = {.parent = place, .key = "rank"};
    fy_json_place ranks = {.parent = place, .key = "ranks"};
    if ((p->rank == NULL) == (p->ranks == NULL)) {
        return fy_json_fail(place, error, "must have either \"rank\" or \"ranks\"");
    }
    if (p->ranks != NULL) {
        FY_TRY(fy_proof_read_sizes(spec, p->ranks, &ranks, 0, FERRY_MAX_RANKS - 1, ranks_out, n_out,
                                   error));
        return *n_out > 0 ? FERRY_OK : fy_json_fail(&ranks, error, "names no rank");
    }
    uint64_t *one = fy_arena_alloc(&spec->arena, 1, sizeof *one);
    FY_TRY(fy_check_memory(one != NULL, "the ranks of a parameter", error));
    *ranks_out = one;
    *n_out = 1;
    return fy_json_get_size(p->rank, &rank, 0, FERRY_MAX_RANKS - 1, one, error);
}

/* Which rank has which parameter: one of them. */
typedef struct pair {
    uint32_t rank;
    uint32_t parameter;
} pair;

typedef struct pairs {
    pair *items;
    size_t n;
    size_t capacity;
} pairs;

static ferry_status add_pairs(pairs *all, const uint64_t *ranks, size_t n, uint32_t parameter,
                              ferry_error *error)
{
    FY_TRY(FY_GROW(all->items, all->capacity, all->n + n, "the ranks of a parameter", error));
    for (size_t i = 0; i < n; i++) {
        all->items[all->n++] = (pair){.rank = (uint32_t)ranks[i], .parameter = parameter};
    }
    return FERRY_OK;
}

static ferry_status read_quantize(const reading *r, const parameter_json *p,
                                  const fy_json_place *place, ferry_error *error)
{
    fy_json_place inner = {.parent = place, .key = "quantize"};
    fy_proof_parameter *parameter = r->parameter;
    if (r->side == FY_PROOF_SOURCE || parameter->cast.is_said) {
        return fy_json_fail(&inner, error, "stands at the source, or beside a cast");
    }
    FY_TRY(fy_proof_quantize_read(r->spec, p->quantize, &inner, &parameter->quantize, error));
    ferry_dtype codes = parameter->quantize->codes;
    if (parameter->dtype.element_bits != 0 && parameter->dtype.kind != codes.kind) {
        return fy_json_fail(place, error, "has another dtype than that of its codes");
    }
    parameter->dtype = codes;
    return FERRY_OK;
}

static ferry_status read_dequantize(const reading *r, const parameter_json *p,
                                    const fy_json_place *place, ferry_error *error)
{
    fy_json_place inner = {.parent = place, .key = "dequantize"};
    fy_proof_parameter *parameter = r->parameter;
    if (r->side == FY_PROOF_SOURCE || parameter->cast.is_said || parameter->quantize != NULL) {
        return fy_json_fail(&inner, error, "stands at the source, or beside a cast");
    }
    return fy_proof_codes_read(r->spec, p->dequantize, &inner, &parameter->codes, error);
}

static ferry_status read_parameter(const json_t *json, const fy_json_place *place, reading *r,
                                   pairs *all, uint32_t number, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"rank", FY_JSON_VALUE, .offset = offsetof(parameter_json, rank)},
        {"ranks", FY_JSON_VALUE, .offset = offsetof(parameter_json, ranks)},
        {"parameter", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(parameter_json, name)},
        FY_PROOF_CAST_FIELDS(parameter_json, said),
        {"quantize", FY_JSON_VALUE, .offset = offsetof(parameter_json, quantize)},
        {"dequantize", FY_JSON_VALUE, .offset = offsetof(parameter_json, dequantize)},
        {"elements", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(parameter_json, elements),
         .most = FY_PROOF_MOST},
        {"holds", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(parameter_json, holds)},
        {"fill", FY_JSON_VALUE, .offset = offsetof(parameter_json, fill)},
        {"partial", FY_JSON_BOOL, .offset = offsetof(parameter_json, is_partial)},
        {.key = "shape", .type = FY_JSON_UNREAD}, /* of files: no plan depends on it */
        {.key = NULL}};
    parameter_json p = {.rank = NULL};
    const uint64_t *ranks;
    size_t n;
    FY_TRY(fy_json_read(json, place, fields, &p, NULL, error));
    FY_TRY(read_ranks(r->spec, &p, place, &ranks, &n, error));
    *r->parameter = (fy_proof_parameter){.name = p.name,
                                         .elements = p.elements,
                                         .is_partial = p.is_partial,
                                         .rank = (uint32_t)ranks[0]};
    FY_TRY(fy_proof_cast_read(&p.said, place, r->side, &r->parameter->dtype, &r->parameter->cast,
                              error));
    if (p.quantize != NULL) {
        FY_TRY(read_quantize(r, &p, place, error));
    }
    if (p.dequantize != NULL) {
        FY_TRY(read_dequantize(r, &p, place, error));
    }
    FY_TRY(read_boxes(&p, place, r, error));
    return add_pairs(all, ranks, n, number, error);
}

/* Behind all that the side says, what comes beside those that dequantize, to the same ranks. */
static ferry_status stage_parameters(fy_proof_spec *spec, fy_proof_memory *memory,
                                     fy_proof_parameter *parameters, pairs *all, ferry_error *error)
{
    const size_t n = memory->n_parameters, n_pairs = all->n;
    for (size_t i = 0, pair_at = 0; i < n; i++) {
        fy_proof_parameter *staged = &parameters[memory->n_parameters];
        size_t end = pair_at;
        while (end < n_pairs && all->items[end].parameter == i) {
            end++;
        }
        FY_TRY(parameters[i].codes == NULL
                   ? FERRY_OK
                   : fy_proof_staged_parameter(spec, &parameters[i], staged, error));
        for (size_t s = 0; s < 2 && parameters[i].codes != NULL && staged[s].n_boxes > 0; s++) {
            FY_TRY(FY_GROW(all->items, all->capacity, all->n + (end - pair_at),
                           "the ranks of a parameter", error));
            for (size_t k = pair_at; k < end; k++) {
                all->items[all->n++] =
                    (pair){.rank = all->items[k].rank, .parameter = (uint32_t)memory->n_parameters};
            }
            memory->n_parameters++;
        }
        pair_at = end;
    }
    return FERRY_OK;
}

static int by_rank(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1)
                              : (x->parameter > y->parameter) - (x->parameter < y->parameter);
}

static uint64_t hash_owned(size_t position, const char *name)
{
    return fy_hash64(name, strlen(name)) ^ (position * UINT64_C(0x9e3779b97f4a7c15));
}

size_t fy_proof_memory_find(const fy_proof_memory *memory, size_t position, const char *name)
{
    fy_index_cursor c = fy_index_first(&memory->by_name, hash_owned(position, name));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&memory->by_name, &c)) {
        if (c.value >= memory->first[position] && c.value < memory->first[position + 1] &&
            strcmp(memory->parameters[memory->owned[c.value]].name, name) == 0) {
            return c.value;
        }
    }
    return SIZE_MAX;
}

static ferry_status name_owned(fy_proof_memory *memory, size_t position, uint32_t rank,
                               ferry_error *error)
{
    for (size_t i = memory->first[position]; i < memory->first[position + 1]; i++) {
        const char *name = memory->parameters[memory->owned[i]].name;
        if (fy_proof_memory_find(memory, position, name) != SIZE_MAX) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "rank %u has two parameters %s", rank,
                           name);
        }
        FY_TRY(fy_check_memory(
            fy_index_insert(&memory->by_name, hash_owned(position, name), (uint32_t)i),
            "the parameters of a rank", error));
    }
    return FERRY_OK;
}

/* From pairs by rank to the list of each rank. */
static ferry_status deal(fy_proof_spec *spec, fy_proof_side *side, const pairs *all,
                         ferry_error *error)
{
    fy_proof_memory *memory = side->memory;
    size_t n_ranks = 0;
    for (size_t i = 0; i < all->n; i++) {
        n_ranks += i == 0 || all->items[i].rank != all->items[i - 1].rank;
    }
    fy_proof_member *members = fy_arena_alloc(&spec->arena, n_ranks, sizeof *members);
    size_t *first = fy_arena_alloc(&spec->arena, n_ranks + 1, sizeof *first);
    uint32_t *owned = fy_arena_alloc(&spec->arena, all->n, sizeof *owned);
    FY_TRY(fy_check_memory(members != NULL && first != NULL && owned != NULL, "the ranks of a side",
                           error));
    n_ranks = 0;
    for (size_t i = 0; i < all->n; i++) {
        uint32_t rank = all->items[i].rank;
        owned[i] = all->items[i].parameter;
        if (i == 0 || rank != all->items[i - 1].rank) {
            members[n_ranks] = (fy_proof_member){.rank = rank, .index = (uint32_t)n_ranks};
            first[n_ranks++] = i;
        }
    }
    first[n_ranks] = all->n;
    memory->first = first;
    memory->owned = owned;
    side->mesh.members = members;
    side->mesh.n_ranks = n_ranks;
    for (size_t i = 0; i < n_ranks; i++) {
        FY_TRY(name_owned(memory, i, members[i].rank, error));
    }
    return FERRY_OK;
}

static ferry_status read_parameters(reading *r, const json_t *json, const fy_json_place *place,
                                    fy_proof_side *side, pairs *all, ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    if (n == 0) {
        return fy_json_fail(place, error, "must name at least one parameter");
    }
    side->memory = fy_arena_alloc(&r->spec->arena, 1, sizeof *side->memory);
    /* With room for twice as many that come beside them. */
    fy_proof_parameter *parameters = fy_arena_alloc(&r->spec->arena, 3 * n, sizeof *parameters);
    FY_TRY(fy_check_memory(side->memory != NULL && parameters != NULL, "the parameters", error));
    *side->memory = (fy_proof_memory){.n_parameters = n, .parameters = parameters};
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        r->parameter = &parameters[i];
        FY_TRY(read_parameter(json_array_get(json, i), &inner, r, all, (uint32_t)i, error));
        FY_TRY(fy_proof_check_parameter(r->spec, r->side, r->parameter, error));
    }
    FY_TRY(stage_parameters(r->spec, side->memory, parameters, all, error));
    fy_sort(all->items, all->n, sizeof *all->items, by_rank);
    return deal(r->spec, side, all, error);
}

ferry_status fy_proof_read_memory(fy_proof_spec *spec, const json_t *json,
                                  const fy_json_place *place, int side, ferry_error *error)
{
    static const char *const keys[] = {"boxes", NULL};
    reading r = {.spec = spec, .side = side};
    pairs all = {.items = NULL};
    fy_json_place inner = {.parent = place, .key = "boxes"};
    FY_TRY(fy_json_expect_object(json, place, keys, error));
    ferry_status status = read_parameters(&r, json_object_get(json, "boxes"), &inner,
                                          &spec->sides[side], &all, error);
    fy_free(all.items);
    return status;
}
