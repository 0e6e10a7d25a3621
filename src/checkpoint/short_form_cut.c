/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From a way and a tensor to the "shard" of a rule. A cut is first made for the module's weight;
 * its bias and its scales follow it, scales in blocks instead of rows.
 */
#include "checkpoint/short_form_rules.h"

#include "base/checked.h"

#include <string.h>

typedef unsigned long long ull;

enum { MAX_BLOCKS = 5 };

typedef struct block {
    uint64_t size;
    uint64_t parts; /* 0: one a rank */
} block;

/* How one dimension of a weight is cut over tp. */
typedef struct cut {
    uint32_t dim;
    uint64_t unit;
    uint64_t parts;  /* 0: one a rank */
    uint64_t extent; /* that the facts expect, 0: any */
    size_t n_blocks;
    block blocks[MAX_BLOCKS];
    bool pair;    /* two blocks, half the extent each */
    bool is_even; /* all parts have as much, in whole blocks of scales */
} cut;

fy_param fy_param_of(const char *component)
{
    static const struct {
        const char *name;
        fy_param param;
    } rows[] = {{"weight", FY_PARAM_WEIGHT},
                {"bias", FY_PARAM_BIAS},
                {"weight_scale", FY_PARAM_SCALE},
                {"weight_scale_inv", FY_PARAM_BLOCK_SCALE}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, component) == 0) {
            return rows[i].param;
        }
    }
    return FY_PARAM_OTHER;
}

/* ---- ways to cuts ---- */

#define AT(member) offsetof(fy_facts, member)

/* What a way's cut takes from where in the facts; 0: nothing. Missing ways cut nothing. Tensors of
 * so many dimensions or more that `stacked` says have experts along their first; 0: none. */
static const struct {
    bool is_cut;
    bool pair;
    uint32_t stacked;
    uint32_t dim;
    size_t unit;
    size_t extent;
    size_t parts;
} ways[FY_N_WAYS] = {
    [FY_WAY_PLAIN] = {.is_cut = true},
    [FY_WAY_COLUMN] = {.is_cut = true, .unit = AT(tile)},
    [FY_WAY_ROW] = {.is_cut = true, .unit = AT(tile), .dim = 1},
    [FY_WAY_PAIR] = {.is_cut = true, .unit = AT(tile), .pair = true},
    [FY_WAY_Q] = {.is_cut = true, .unit = AT(q_unit), .extent = AT(q_rows)},
    [FY_WAY_KV] = {.is_cut = true,
                   .unit = AT(kv_unit),
                   .extent = AT(kv_rows),
                   .parts = AT(kv_parts)},
    [FY_WAY_O] = {.is_cut = true, .unit = AT(q_unit), .extent = AT(q_rows), .dim = 1},
    [FY_WAY_QKV] = {.is_cut = true, .unit = AT(kv_unit)},
    [FY_WAY_GROUP_QKV] = {.is_cut = true, .unit = AT(group_unit), .extent = AT(group_rows)},
    [FY_WAY_VOCABULARY] = {.is_cut = true, .unit = AT(vocabulary_unit)},
    [FY_WAY_MLA_Q] = {.is_cut = true, .unit = AT(mla_q_unit), .extent = AT(mla_q_rows)},
    [FY_WAY_MLA_KV] = {.is_cut = true, .unit = AT(mla_kv_unit), .extent = AT(mla_kv_rows)},
    [FY_WAY_MLA_O] = {.is_cut = true,
                      .unit = AT(mla_o_unit),
                      .extent = AT(mla_o_columns),
                      .dim = 1},
    [FY_WAY_MIXED_QKV] = {.is_cut = true, .unit = AT(mixed_qkv_unit), .extent = AT(mixed_rows)},
    [FY_WAY_MIXED_O] = {.is_cut = true,
                        .unit = AT(mixed_o_unit),
                        .extent = AT(mixed_columns),
                        .dim = 1},
    [FY_WAY_SSM_IN] = {.is_cut = true, .pair = true},
    [FY_WAY_SSM_CONV] = {.is_cut = true},
    [FY_WAY_SSM_X] = {.is_cut = true, .dim = 1},
    [FY_WAY_SSM_HEADS] = {.is_cut = true, .extent = AT(ssm_heads)},
    [FY_WAY_SSM_OUT] = {.is_cut = true, .extent = AT(ssm_inner), .dim = 1},
    [FY_WAY_SINKS] = {.is_cut = true, .unit = AT(head_unit), .extent = AT(heads)},
    [FY_WAY_STACKED_PAIR] =
        {.is_cut = true, .unit = AT(tile), .stacked = 3, .dim = 1, .pair = true},
    [FY_WAY_STACKED_DOWN] = {.is_cut = true, .unit = AT(inner_unit), .stacked = 3, .dim = 2},
    [FY_WAY_STACKED_TURNS] =
        {.is_cut = true, .unit = AT(turns_unit), .extent = AT(turns_rows), .stacked = 3, .dim = 1},
    [FY_WAY_TURNS_ROWS] =
        {.is_cut = true, .unit = AT(turns_unit), .extent = AT(turns_rows), .stacked = 2, .dim = 1},
    [FY_WAY_DOWN_BLOCKS] = {.is_cut = true, .extent = AT(inner_blocks), .stacked = 3, .dim = 2},
    [FY_WAY_DOWN_BIAS] = {.stacked = 2},
};

static uint64_t fact_at(const fy_facts *facts, size_t offset, uint64_t otherwise)
{
    return offset == 0 ? otherwise : *(const uint64_t *)((const char *)facts + offset);
}

static void set_blocks(cut *c, const block *blocks, size_t n_blocks)
{
    c->pair = false;
    c->n_blocks = n_blocks;
    c->extent = 0;
    for (size_t i = 0; i < n_blocks; i++) {
        c->blocks[i] = blocks[i];
        c->extent += blocks[i].size;
    }
}

/* The ways that take more than the table has. */
static void refine(const fy_facts *f, fy_way way, cut *c)
{
    bool grouped = f->ssm_groups != 0;
    block kv = {f->kv_rows, f->kv_parts};
    block qkv[] = {{f->q_rows, 0}, kv, kv};
    block x = {f->ssm_inner, 0};
    block b = {f->ssm_states, f->tp > f->ssm_groups ? f->ssm_groups : 0};
    block in[] = {x, x, b, b, {f->ssm_heads, 0}}; /* z, x, B, C, dt */
    if (way == FY_WAY_QKV) {
        set_blocks(c, qkv, 3);
    } else if (way == FY_WAY_SSM_IN && grouped) {
        set_blocks(c, in, 5);
    } else if (way == FY_WAY_SSM_CONV && grouped) {
        set_blocks(c, in + 1, 3);
    } else if ((way == FY_WAY_STACKED_PAIR || way == FY_WAY_STACKED_TURNS ||
                way == FY_WAY_STACKED_DOWN) &&
               f->stacked_transposed) {
        c->dim = 3 - c->dim;
    }
}

/* False: nothing is cut. */
static bool cut_of(const fy_facts *facts, fy_way way, cut *c)
{
    *c = (cut){.dim = ways[way].dim,
               .unit = fact_at(facts, ways[way].unit, 1),
               .parts = fact_at(facts, ways[way].parts, 0),
               .extent = fact_at(facts, ways[way].extent, 0),
               .pair = ways[way].pair};
    refine(facts, way, c);
    return ways[way].is_cut;
}

static ferry_status wrong_extent(const fy_facts *facts, const fy_model_tensor *tensor, uint32_t dim,
                                 uint64_t expected, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: \"%s\" has %llu elements in dim %u, but the model's other tensors and "
                   "config.json make it %llu; write a layout file",
                   facts->source_name, tensor->name, (ull)tensor->shape[dim], dim, (ull)expected);
}

/* ---- between blocks that share a scale ---- */

bool fy_short_is_block_scale(const fy_facts *facts, fy_param param, const fy_model_tensor *tensor)
{
    bool by_rows = tensor->n_dims == 1 || (tensor->n_dims == 2 && tensor->shape[1] == 1);
    /* Of the second, config.json says of which blocks. */
    return param == FY_PARAM_BLOCK_SCALE ||
           (param == FY_PARAM_SCALE && tensor->n_dims == 2 && !by_rows && facts->tile > 1);
}

/* What is cut by itself along a dimension, each with its number of parts. */
typedef struct runs {
    size_t n;
    block of[MAX_BLOCKS];
} runs;

static runs runs_of(const cut *c, uint64_t extent, uint64_t tp)
{
    runs r = {.n = c->n_blocks > 0 ? c->n_blocks : 1};
    for (size_t i = 0; i < r.n; i++) {
        block whole = {c->pair ? extent / 2 : extent, c->parts};
        r.of[i] = c->n_blocks > 0 ? c->blocks[i] : whole;
        r.of[i].parts = r.of[i].parts == 0 ? tp : r.of[i].parts;
    }
    return r;
}

static bool is_even(const runs *r, uint64_t unit)
{
    bool is = true;
    for (size_t i = 0; i < r->n; i++) {
        is = is && r->of[i].size % unit == 0 && r->of[i].size / unit % r->of[i].parts == 0;
    }
    return is;
}

/* The first run whose equal parts are no whole blocks, or NULL. */
static const block *inside_block(const runs *r, uint64_t size)
{
    size_t i = 0;
    while (i < r->n && r->of[i].size / r->of[i].parts % size == 0) {
        i++;
    }
    return i < r->n ? &r->of[i] : NULL;
}

/* The first run of which the chunk rule in units leaves parts without any, or NULL. */
static const block *with_empty_part(const runs *r, uint64_t unit)
{
    for (size_t i = 0; i < r->n; i++) {
        uint64_t n_units = fy_ceil_div(r->of[i].size, unit);
        uint64_t most = fy_ceil_div(n_units, r->of[i].parts);
        if (most > 0 && fy_ceil_div(n_units, most) < r->of[i].parts) {
            return &r->of[i];
        }
    }
    return NULL;
}

static ferry_status refuse(const fy_model_tensor *tensor, const cut *c, const block *run,
                           uint64_t size, fy_blocked *blocked_out)
{
    blocked_out->tensor = tensor;
    blocked_out->dim = c->dim;
    blocked_out->extent = run->size;
    blocked_out->parts = run->parts;
    blocked_out->block = size;
    return FERRY_ERR_INVALID_INPUT;
}

/* Of experts in turns the last ranks may have fewer blocks, as engines have it, but some. */
static ferry_status settle_turns(const fy_facts *facts, const fy_to_cut *t, const cut *c,
                                 fy_blocked *blocked_out)
{
    runs r = runs_of(c, t->tensor->shape[c->dim], facts->tp);
    bool is_down = t->way == FY_WAY_DOWN_BLOCKS;
    block run = r.of[0];
    run.size = is_down ? run.size * facts->inner_unit : run.size;
    if (with_empty_part(&r, c->unit) == NULL || run.size / (is_down ? 1 : 2) < facts->tp) {
        return FERRY_OK;
    }
    blocked_out->leaves_out = true;
    blocked_out->is_turned = true;
    return refuse(t->tensor, c, &run, is_down ? facts->inner_unit : c->unit, blocked_out);
}

/*
 * What is cut evenly where no scales are shared is cut so where they are, or not at all: else some
 * ranks would have more heads than others, or have all of them. What is cut unevenly anyway is cut
 * between blocks, if no rank goes without.
 */
static ferry_status settle(const fy_facts *facts, const fy_to_cut *t, cut *c,
                           fy_blocked *blocked_out)
{
    const fy_model_tensor *sized = t->codes == NULL ? t->tensor : t->codes;
    cut plain;
    if (sized->n_dims <= c->dim || (t->codes == NULL && facts->tile == 1)) {
        return FERRY_OK;
    }
    cut_of(facts->plain, t->way, &plain);
    runs r = runs_of(c, sized->shape[c->dim], facts->tp);
    uint32_t first = sized->n_dims < 2 ? 0 : sized->n_dims - 2; /* of rows and columns */
    uint64_t size = t->codes == NULL || c->dim < first ? 1 : facts->block[c->dim - first];
    if (is_even(&r, plain.unit)) {
        const block *inside = inside_block(&r, size);
        c->is_even = inside == NULL;
        c->unit = is_even(&r, c->unit) ? c->unit : plain.unit;
        return inside == NULL ? FERRY_OK : refuse(sized, c, inside, size, blocked_out);
    }
    const block *empty = with_empty_part(&r, c->unit);
    if (empty == NULL || with_empty_part(&r, plain.unit) != NULL) {
        return FERRY_OK;
    }
    blocked_out->leaves_out = true;
    return refuse(sized, c, empty, c->unit, blocked_out);
}

/* The weight's cut in blocks of scales. */
static ferry_status scale_cut(const fy_facts *facts, const fy_model_tensor *tensor, cut *c,
                              ferry_error *error)
{
    uint64_t size = facts->block[c->dim];
    bool fits = c->is_even || c->unit % size == 0;
    for (size_t i = 0; i < c->n_blocks; i++) {
        fits = fits && c->blocks[i].size % size == 0;
        c->blocks[i].size /= size;
    }
    if (!fits) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the parts of \"%s\" do not begin on blocks of %llu that share a scale; "
                       "write a layout file",
                       facts->source_name, tensor->name, (ull)size);
    }
    c->unit = c->unit % size == 0 ? c->unit / size : 1;
    c->extent = fy_ceil_div(c->extent, size);
    return FERRY_OK;
}

/* ---- cuts to JSON; NULL or false: no memory ---- */

static bool put(json_t *entry, const char *key, json_t *value)
{
    return json_object_set_new(entry, key, value) == 0;
}

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static bool put_blocks(json_t *entry, const cut *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_blocks; i++) {
        const block *b = &c->blocks[i];
        json_t *item = b->parts == 0
                           ? number(b->size)
                           : json_pack("[I, I]", (json_int_t)b->size, (json_int_t)b->parts);
        if (json_array_append_new(list, item) != 0) {
            json_decref(list);
            return false;
        }
    }
    return put(entry, "blocks", list);
}

/* The chunk rule in units, where the last unit may be short. */
static bool put_sizes(json_t *entry, uint64_t extent, uint64_t unit, uint64_t parts)
{
    json_t *list = json_array();
    uint64_t most = fy_ceil_div(fy_ceil_div(extent, unit), parts) * unit;
    uint64_t begin = 0;
    for (uint64_t p = 0; p < parts; p++) {
        uint64_t size = fy_min(most, extent - begin);
        if (json_array_append_new(list, number(size)) != 0) {
            json_decref(list);
            return false;
        }
        begin += size;
    }
    return put(entry, "sizes", list);
}

static bool put_cut(json_t *entry, const cut *c, uint64_t extent, uint64_t tp)
{
    if (c->pair && extent % (2 * tp * c->unit) == 0) {
        return put(entry, "stride", json_integer(2)) &&
               (c->unit == 1 || put(entry, "unit", number(c->unit)));
    }
    if (c->pair) { /* a stride would not begin its second half where the first ends */
        cut halves = {.unit = c->unit, .n_blocks = 2, .blocks = {{extent / 2, 0}, {extent / 2, 0}}};
        return put_cut(entry, &halves, extent, tp);
    }
    if (c->n_blocks > 0) {
        return put_blocks(entry, c) && (c->unit == 1 || put(entry, "unit", number(c->unit)));
    }
    if (c->parts == 0 && extent % c->unit != 0) {
        return put_sizes(entry, extent, c->unit, tp);
    }
    return (c->parts == 0 || put(entry, "parts", number(c->parts))) &&
           (c->unit == 1 || put(entry, "unit", number(c->unit)));
}

static json_t *entry_of(const cut *c, uint64_t extent, uint64_t tp)
{
    json_t *entry = json_pack("{s:i, s:s}", "dim", (int)c->dim, "axis", "tp");
    if (entry != NULL && !put_cut(entry, c, extent, tp)) {
        json_decref(entry);
        entry = NULL;
    }
    return entry;
}

/* Expert i lives where a stage would place it, also when they are stacked in one tensor. */
static json_t *experts_entry(uint64_t n_experts, uint64_t ep)
{
    json_t *entry = json_pack("{s:i, s:s}", "dim", 0, "axis", "ep");
    if (entry == NULL || n_experts % ep == 0) {
        return entry;
    }
    json_t *sizes = json_array();
    bool done = sizes != NULL;
    uint64_t begin = 0;
    for (uint64_t p = 1; p <= ep && done; p++) {
        /* the first expert of coordinate p is the least i with i ep >= p n */
        __extension__ typedef unsigned __int128 wide;
        uint64_t end = (uint64_t)(((wide)p * n_experts + ep - 1) / ep);
        done = json_array_append_new(sizes, number(end - begin)) == 0;
        begin = end;
    }
    done = done && put(entry, "sizes", json_incref(sizes));
    json_decref(sizes);
    if (!done) {
        json_decref(entry);
        entry = NULL;
    }
    return entry;
}

/* ---- putting it together ---- */

/* What the parameter makes of its weight's cut, which is along its own dim. */
static void adapt(const fy_facts *facts, const fy_to_cut *t, const cut *c, bool *whole_out,
                  bool *known_out)
{
    const fy_model_tensor *tensor = t->tensor;
    bool by_rows = tensor->n_dims == 1 || (tensor->n_dims == 2 && tensor->shape[1] == 1);
    bool in_blocks = fy_short_is_block_scale(facts, t->param, tensor);
    *whole_out = false;
    *known_out = true;
    switch (in_blocks ? FY_PARAM_BLOCK_SCALE : t->param) {
    case FY_PARAM_BIAS:
        *whole_out = c->dim != 0;
        *known_out = tensor->n_dims == 1;
        break;
    case FY_PARAM_SCALE:
        *whole_out = c->dim != 0;
        *known_out = by_rows || facts->tp == 1; /* nothing is cut, whatever it is */
        break;
    case FY_PARAM_BLOCK_SCALE:
        *known_out = tensor->n_dims == 2;
        break;
    case FY_PARAM_OTHER:
        *known_out = false;
        break;
    case FY_PARAM_WEIGHT:
    case FY_N_PARAMS:
        break;
    }
}

static ferry_status check_extent(const fy_facts *facts, const fy_model_tensor *tensor, const cut *c,
                                 ferry_error *error)
{
    if (tensor->n_dims <= c->dim) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" has %u dimensions, but tp cuts dim %u; write a layout file",
                       facts->source_name, tensor->name, tensor->n_dims, c->dim);
    }
    uint64_t extent = tensor->shape[c->dim];
    if (c->extent != 0 && extent != c->extent) {
        return wrong_extent(facts, tensor, c->dim, c->extent, error);
    }
    return FERRY_OK;
}

static ferry_status check_halves(const fy_facts *facts, const fy_model_tensor *tensor, const cut *c,
                                 ferry_error *error)
{
    uint64_t extent = tensor->shape[c->dim];
    bool halves = extent % 2 == 0 && extent / 2 % c->unit == 0;
    if (extent > INT64_MAX || (c->pair && !halves)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: dim %u of \"%s\" has %llu elements, which are not two halves in units "
                       "of %llu; write a layout file",
                       facts->source_name, c->dim, tensor->name, (ull)extent, (ull)c->unit);
    }
    return FERRY_OK;
}

/* The entries of a tensor's rule; an axis that does not cut it has none. */
static ferry_status list_entries(const fy_facts *facts, const fy_model_tensor *tensor, const cut *c,
                                 bool by_ep, bool by_tp, json_t **shard_out, ferry_error *error)
{
    if (!by_ep && !by_tp) {
        return FERRY_OK;
    }
    json_t *shard = json_array();
    bool done = shard != NULL;
    if (done && by_ep) {
        done = json_array_append_new(shard, experts_entry(tensor->shape[0], facts->ep)) == 0;
    }
    if (done && by_tp) {
        done = json_array_append_new(shard, entry_of(c, tensor->shape[c->dim], facts->tp)) == 0;
    }
    if (!done) {
        json_decref(shard);
        return fy_fail_no_memory(error, "the rules of a short form");
    }
    *shard_out = shard;
    return FERRY_OK;
}

/* The cut along tp, as it is for this very tensor. */
static ferry_status fit_cut(const fy_facts *facts, const fy_to_cut *t, cut *c,
                            fy_blocked *blocked_out, ferry_error *error)
{
    bool is_turned = t->way == FY_WAY_TURNS_ROWS || t->way == FY_WAY_DOWN_BLOCKS;
    bool in_blocks = fy_short_is_block_scale(facts, t->param, t->tensor);
    if (!in_blocks) {
        FY_TRY(check_extent(facts, t->tensor, c, error));
    }
    if (is_turned && facts->has_inner_blocks) {
        return settle_turns(facts, t, c, blocked_out);
    }
    FY_TRY(in_blocks && t->codes == NULL ? FERRY_OK : settle(facts, t, c, blocked_out));
    if (in_blocks) {
        FY_TRY(scale_cut(facts, t->tensor, c, error));
        FY_TRY(check_extent(facts, t->tensor, c, error));
    }
    return check_halves(facts, t->tensor, c, error);
}

ferry_status fy_short_cut(const fy_facts *facts, const fy_to_cut *to_cut, json_t **shard_out,
                          bool *known_out, fy_blocked *blocked_out, ferry_error *error)
{
    cut c;
    const fy_model_tensor *tensor = to_cut->tensor;
    fy_way way = to_cut->way;
    bool by_ep = ways[way].stacked != 0 && facts->ep > 1 && tensor->n_dims >= ways[way].stacked &&
                 tensor->shape[0] <= INT64_MAX;
    bool is_cut = cut_of(facts, way, &c);
    bool by_tp = is_cut && facts->tp > 1;
    bool whole = false;
    *known_out = way != FY_WAY_UNKNOWN;
    *shard_out = NULL;
    bool single = tensor->n_dims == 0 || (tensor->n_dims == 1 && tensor->shape[0] == 1);
    if ((!is_cut && !by_ep) || (single && to_cut->param != FY_PARAM_WEIGHT)) {
        return FERRY_OK;
    }
    if (c.unit == 0 && by_tp) { /* a bias without its weight */
        *known_out = false;
        return FERRY_OK;
    }
    adapt(facts, to_cut, &c, &whole, known_out);
    if (whole || !*known_out) {
        return FERRY_OK;
    }
    FY_TRY(by_tp ? fit_cut(facts, to_cut, &c, blocked_out, error) : FERRY_OK);
    return list_entries(facts, tensor, &c, by_ep, by_tp, shard_out, error);
}
