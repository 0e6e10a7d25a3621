/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Heads, blocks of scales and stacked experts, from config.json and from shapes. */
#include "checkpoint/short_form_facts.h"

#include "base/checked.h"

#include <string.h>

enum {
    WIDEST_HEAD = 256,
    TOY_ROWS = 1024,
    MAX_SCALE_BLOCK = 65536,
    VOCABULARY_UNIT = 128,
    MX_BLOCK = 32, /* codes of MXFP4 and the like that share a scale */
};

static const uint64_t number_limit = UINT64_C(1) << 31;

typedef unsigned long long ull;

static ferry_status read_number(const fy_facts *facts, const json_t *object, const char *key,
                                uint64_t *number_out, ferry_error *error)
{
    const json_t *value = json_object_get(object, key);
    *number_out = 0;
    if (value == NULL || json_is_null(value)) {
        return FERRY_OK;
    }
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 1 || (uint64_t)number >= number_limit) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" of config.json must be a whole number above zero and below %llu "
                       "for a short form; write a layout file",
                       facts->source_name, key, (ull)number_limit);
    }
    *number_out = (uint64_t)number;
    return FERRY_OK;
}

ferry_status fy_facts_number(const fy_facts *facts, const char *const *keys, uint64_t *number_out,
                             ferry_error *error)
{
    const json_t *objects[] = {facts->text_config, facts->config};
    uint64_t number = 0;
    for (size_t i = 0; i < 2 && number == 0; i++) {
        for (const char *const *key = keys; *key != NULL && number == 0; key++) {
            FY_TRY(read_number(facts, objects[i], *key, &number, error));
        }
    }
    *number_out = number;
    return FERRY_OK;
}

static ferry_status number_of(const fy_facts *facts, const char *key, uint64_t *number_out,
                              ferry_error *error)
{
    const char *keys[] = {key, NULL};
    return fy_facts_number(facts, keys, number_out, error);
}

/* Of numbers below 2^31. */
static uint64_t least_multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b;
    while (y != 0) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* How many items of that size make a multiple of the block. */
static uint64_t items_for(uint64_t item, uint64_t block)
{
    return least_multiple(item, block) / item;
}

static ferry_status need_config(const fy_facts *facts, const char *why, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: tp=%u needs config.json with the number of heads: %s; put config.json "
                   "beside the tensors, or write a layout file",
                   facts->source_name, facts->tp, why);
}

/* A dimension of a sample, 0 if it has too few. */
static uint64_t extent_of(const fy_model_tensor *tensor, uint32_t dim)
{
    return tensor == NULL || tensor->n_dims <= dim ? 0 : tensor->shape[dim];
}

/* ---- blocks of scales ---- */

static ferry_status gather_blocks(fy_facts *facts, ferry_error *error)
{
    const json_t *quantization = json_object_get(facts->config, "quantization_config");
    if (quantization == NULL) {
        quantization = json_object_get(facts->text_config, "quantization_config");
    }
    const json_t *blocks = json_object_get(quantization, "weight_block_size");
    if (facts->has_scales && !json_is_array(blocks)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: tp=%u needs \"weight_block_size\" in the quantization_config of "
                       "config.json to cut scales like their weights; put it there, or write a "
                       "layout file",
                       facts->source_name, facts->tp);
    }
    for (size_t i = 0; json_is_array(blocks) && i < 2; i++) {
        const json_t *block = json_array_get(blocks, i);
        json_int_t number = json_integer_value(block);
        if (!json_is_integer(block) || number < 1 || number > MAX_SCALE_BLOCK) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: \"weight_block_size\" of config.json must be two whole numbers "
                           "from 1 to %d",
                           facts->source_name, MAX_SCALE_BLOCK);
        }
        bool counts = (facts->has_scales || facts->may_have_some) && !facts->is_plain;
        facts->block[i] = counts ? (uint64_t)number : 1;
    }
    facts->tile = least_multiple(facts->block[0], facts->block[1]);
    return FERRY_OK;
}

/* ---- attention ---- */

typedef struct heads {
    uint64_t size; /* 0: unknown */
    uint64_t q;    /* 0: config.json does not say */
    uint64_t kv;
} heads;

/* config.json, then the norm of a head, then how many have a sink, then hidden / heads. */
static ferry_status read_heads(const fy_facts *facts, const fy_model_tensor *const *samples,
                               heads *h, ferry_error *error)
{
    const fy_model_tensor *norm = samples[FY_WAY_HEAD_NORM];
    static const char *const size_keys[] = {"head_dim", "attention_head_dim", NULL};
    uint64_t hidden = 0;
    FY_TRY(fy_facts_number(facts, size_keys, &h->size, error));
    FY_TRY(number_of(facts, "num_attention_heads", &h->q, error));
    FY_TRY(number_of(facts, "num_key_value_heads", &h->kv, error));
    FY_TRY(number_of(facts, "hidden_size", &hidden, error));
    uint64_t length = norm != NULL && norm->n_dims == 1 ? norm->shape[0] : 0;
    if (h->size == 0 && length > 0 && length < facts->q_rows && facts->q_rows % length == 0 &&
        facts->kv_rows % length == 0) {
        h->size = length;
    }
    uint64_t n_sinks = extent_of(samples[FY_WAY_SINKS], 0);
    if (h->size == 0 && n_sinks > 0) {
        h->size = facts->q_rows / n_sinks;
    }
    if (h->size == 0 && h->q != 0) {
        h->size = hidden / h->q;
    }
    return FERRY_OK;
}

static ferry_status check_rows(const fy_facts *facts, const char *what, uint64_t rows,
                               uint64_t n_heads, uint64_t size, ferry_error *error)
{
    if (rows % size != 0 || (n_heads != 0 && rows / size != n_heads)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: %s has %llu rows, which are not %llu heads of %llu, as config.json and "
                       "shapes say; write a layout file",
                       facts->source_name, what, (ull)rows,
                       (ull)(n_heads != 0 ? n_heads : rows / size), (ull)size);
    }
    return FERRY_OK;
}

/*
 * Without the size of a head, cutting its rows evenly over tp is safe if any size up to the widest
 * fits: for a power of two whatever its odd factor, since the heads are whole in all rows. Where
 * every head has its own k and v a toy, whose heads may be of any size, is cut as it comes.
 */
static bool cuts_between_heads(uint64_t rows, uint64_t tp, bool grouped)
{
    bool by_two = (tp & (tp - 1)) == 0;
    bool toy = !grouped && rows < TOY_ROWS && rows % tp == 0;
    return toy || (by_two && rows % (WIDEST_HEAD * tp) == 0);
}

static ferry_status cut_unknown_heads(fy_facts *facts, ferry_error *error)
{
    bool grouped = facts->q_rows != facts->kv_rows;
    if (facts->q_rows % facts->kv_rows != 0 ||
        !cuts_between_heads(facts->kv_rows, facts->tp, grouped)) {
        return need_config(facts,
                           grouped ? "tp may exceed the KV heads, or cut through one"
                                   : "tp might cut through a head",
                           error);
    }
    facts->kv_unit = facts->kv_rows / facts->tp;
    facts->q_unit = facts->q_rows / facts->tp;
    return FERRY_OK;
}

static ferry_status cut_shared_heads(fy_facts *facts, const heads *h, uint64_t n_q, uint64_t n_kv,
                                     ferry_error *error)
{
    uint64_t tp = facts->tp;
    if (tp % n_kv != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: tp=%llu exceeds the %llu KV heads and is not a multiple of them",
                       facts->source_name, (ull)tp, (ull)n_kv);
    }
    if (n_q % tp != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: tp=%llu exceeds the %llu KV heads and does not divide the %llu heads",
                       facts->source_name, (ull)tp, (ull)n_kv, (ull)n_q);
    }
    facts->kv_parts = n_kv;
    facts->kv_unit = h->size;
    facts->q_unit = h->size;
    facts->head_unit = 1;
    return FERRY_OK;
}

/* Units so that heads stay whole, and those of q with their KV head. */
static ferry_status cut_heads(fy_facts *facts, const heads *h, ferry_error *error)
{
    uint64_t n_kv = facts->kv_rows / h->size;
    uint64_t n_q = facts->q_rows / h->size;
    if (n_kv == 0 || n_q % n_kv != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: %llu heads are not a multiple of %llu KV heads", facts->source_name,
                       (ull)n_q, (ull)n_kv);
    }
    facts->heads = n_q;
    if (facts->tp > n_kv) {
        return cut_shared_heads(facts, h, n_q, n_kv, error);
    }
    uint64_t together =
        least_multiple(items_for(h->size, facts->block[0]), items_for(h->size, facts->block[1]));
    facts->kv_unit = fy_min(together, n_kv) * h->size;
    facts->q_unit = n_q / n_kv * facts->kv_unit;
    facts->head_unit = facts->q_unit / h->size;
    return FERRY_OK;
}

static ferry_status cut_groups(fy_facts *facts, const fy_model_tensor *groups, ferry_error *error)
{
    facts->group_rows = facts->q_rows + 2 * facts->kv_rows;
    facts->group_unit = facts->kv_unit * (facts->group_rows / facts->kv_rows);
    return facts->kv_parts == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: tp=%u exceeds the %llu groups of \"%s\"; write a layout file",
                         facts->source_name, facts->tp, (ull)facts->kv_parts, groups->name);
}

static ferry_status gather_attention(fy_facts *facts, const fy_model_tensor *const *samples,
                                     ferry_error *error)
{
    const fy_model_tensor *groups = samples[FY_WAY_GROUP_QKV];
    const fy_model_tensor *qkv = groups == NULL ? samples[FY_WAY_QKV] : groups;
    const fy_model_tensor *kv = samples[FY_WAY_KV];
    facts->q_rows = extent_of(samples[FY_WAY_Q], 0);
    facts->kv_rows = extent_of(kv, 0);
    if (qkv != NULL) { /* q has as many rows as o has columns */
        facts->q_rows = extent_of(samples[FY_WAY_O], 1);
        uint64_t rows = extent_of(qkv, 0);
        facts->kv_rows = rows > facts->q_rows ? (rows - facts->q_rows) / 2 : 0;
    }
    if (qkv == NULL && kv == NULL && samples[FY_WAY_Q] == NULL && samples[FY_WAY_O] == NULL) {
        return FERRY_OK; /* no attention of this kind */
    }
    if (facts->q_rows == 0 || facts->kv_rows == 0 || facts->q_rows >= number_limit ||
        facts->kv_rows >= number_limit) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the attention has %llu rows of q and %llu of k; a short form needs "
                       "both above zero and below %llu: write a layout file",
                       facts->source_name, (ull)facts->q_rows, (ull)facts->kv_rows,
                       (ull)number_limit);
    }
    heads h = {0};
    ferry_status status = read_heads(facts, samples, &h, error);
    if (status == FERRY_OK && h.size == 0) {
        return cut_unknown_heads(facts, error);
    }
    const char *q_name =
        samples[FY_WAY_Q] == NULL ? samples[FY_WAY_O]->name : samples[FY_WAY_Q]->name;
    FY_THEN(status, check_rows(facts, q_name, facts->q_rows, h.q, h.size, error));
    FY_THEN(status, check_rows(facts, qkv == NULL ? kv->name : qkv->name, facts->kv_rows, h.kv,
                               h.size, error));
    FY_THEN(status, cut_heads(facts, &h, error));
    if (status == FERRY_OK && qkv != NULL && facts->kv_parts == 0 &&
        facts->kv_rows / h.size % facts->tp != 0) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: tp=%u neither divides the %llu KV heads of \"%s\" nor is a multiple "
                         "of them",
                         facts->source_name, facts->tp, (ull)(facts->kv_rows / h.size), qkv->name);
    }
    return status == FERRY_OK && groups != NULL ? cut_groups(facts, groups, error) : status;
}

/* ---- latent attention ---- */

typedef struct latent {
    uint64_t heads, nope, rope, value;
} latent;

static ferry_status read_latent(const fy_facts *facts, latent *l, ferry_error *error)
{
    FY_TRY(number_of(facts, "num_attention_heads", &l->heads, error));
    FY_TRY(number_of(facts, "qk_nope_head_dim", &l->nope, error));
    FY_TRY(number_of(facts, "qk_rope_head_dim", &l->rope, error));
    return number_of(facts, "v_head_dim", &l->value, error);
}

/* heads x (nope + rope), heads x (nope + value), heads x value: with the rope's size they tell. */
static void derive_latent(const fy_facts *facts, uint64_t rope, latent *l)
{
    uint64_t q = facts->mla_q_rows, kv = facts->mla_kv_rows, o = facts->mla_o_columns;
    *l = (latent){.rope = rope};
    if (rope == 0 || q + o < kv + rope || kv < o) {
        return;
    }
    l->heads = (q + o - kv) / rope;
    l->value = o / l->heads;
    l->nope = (kv - o) / l->heads;
}

static ferry_status gather_latent(fy_facts *facts, const fy_model_tensor *const *samples,
                                  ferry_error *error)
{
    latent l = {0};
    facts->mla_q_rows = extent_of(samples[FY_WAY_MLA_Q], 0);
    facts->mla_kv_rows = extent_of(samples[FY_WAY_MLA_KV], 0);
    facts->mla_o_columns = extent_of(samples[FY_WAY_MLA_O], 1);
    if (samples[FY_WAY_MLA_Q] == NULL && samples[FY_WAY_MLA_KV] == NULL &&
        samples[FY_WAY_MLA_O] == NULL) {
        return FERRY_OK;
    }
    FY_TRY(read_latent(facts, &l, error));
    uint64_t down = extent_of(samples[FY_WAY_MLA_KV_A], 0);
    uint64_t rank = extent_of(samples[FY_WAY_MLA_NORM], 0);
    bool small = fy_max(fy_max(facts->mla_q_rows, facts->mla_kv_rows),
                        fy_max(facts->mla_o_columns, down)) < number_limit;
    if (small && (l.heads == 0 || l.nope == 0 || l.rope == 0 || l.value == 0)) {
        derive_latent(facts, down > rank ? down - rank : 0, &l);
    }
    if (!small || l.heads == 0 || l.nope + l.rope == 0 || l.value == 0 ||
        facts->mla_q_rows != l.heads * (l.nope + l.rope) ||
        facts->mla_kv_rows != l.heads * (l.nope + l.value) ||
        facts->mla_o_columns != l.heads * l.value) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the latent attention has %llu rows of q, %llu of kv_b and %llu columns "
                       "of o, which are not %llu heads of %llu + %llu and %llu; write a layout "
                       "file",
                       facts->source_name, (ull)facts->mla_q_rows, (ull)facts->mla_kv_rows,
                       (ull)facts->mla_o_columns, (ull)l.heads, (ull)l.nope, (ull)l.rope,
                       (ull)l.value);
    }
    if (facts->tp > l.heads) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: tp=%u exceeds the %llu heads",
                       facts->source_name, facts->tp, (ull)l.heads);
    }
    uint64_t together = least_multiple(items_for(l.nope + l.rope, facts->block[0]),
                                       least_multiple(items_for(l.nope + l.value, facts->block[0]),
                                                      items_for(l.value, facts->block[1])));
    together = fy_min(together, l.heads);
    facts->mla_q_unit = together * (l.nope + l.rope);
    facts->mla_kv_unit = together * (l.nope + l.value);
    facts->mla_o_unit = together * l.value;
    return FERRY_OK;
}

/* ---- heads with their own q, k and v ---- */

static ferry_status gather_mixed(fy_facts *facts, const fy_model_tensor *const *samples,
                                 ferry_error *error)
{
    const fy_model_tensor *mixed = samples[FY_WAY_MIXED_QKV];
    if (mixed == NULL) {
        return FERRY_OK;
    }
    uint64_t rows = extent_of(mixed, 0);
    uint64_t n = 0;
    FY_TRY(number_of(facts, "num_attention_heads", &n, error));
    if (rows == 0 || rows % 3 != 0 || (n != 0 && rows / 3 % n != 0) || rows >= number_limit) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: %s has %llu rows, which are not q, k and v of %llu heads; write a "
                       "layout file",
                       facts->source_name, mixed->name, (ull)rows, (ull)n);
    }
    if (n == 0 && !cuts_between_heads(rows / 3, facts->tp, false)) {
        return need_config(facts, "tp might cut through a head", error);
    }
    if (n != 0 && facts->tp > n) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: tp=%u exceeds the %llu heads",
                       facts->source_name, facts->tp, (ull)n);
    }
    n = n == 0 ? facts->tp : n;
    facts->mixed_rows = rows;
    facts->mixed_columns = rows / 3;
    facts->mixed_qkv_unit = rows / n;
    facts->mixed_o_unit = rows / n / 3;
    return FERRY_OK;
}

/* ---- stacked experts ---- */

/* What rows of gate and up lie in, whole matrices or turns, and down. */
static const fy_model_tensor *gate_and_up(const fy_model_tensor *const *samples)
{
    const fy_model_tensor *pair = samples[FY_WAY_STACKED_PAIR];
    return pair == NULL ? samples[FY_WAY_STACKED_TURNS] : pair;
}

/* [e, 2i, h] with [e, h, i], or [e, h, 2i] with [e, i, h]: no shapes fit both. */
static ferry_status gather_stacked(fy_facts *facts, const fy_model_tensor *const *samples,
                                   ferry_error *error)
{
    const fy_model_tensor *pair = gate_and_up(samples);
    const fy_model_tensor *down = samples[FY_WAY_STACKED_DOWN];
    if (pair == NULL && down == NULL) {
        return FERRY_OK;
    }
    if (pair != NULL && down != NULL && pair->n_dims == 3 && down->n_dims == 3) {
        const uint64_t *p = pair->shape, *d = down->shape;
        bool plain = p[2] == d[1] && p[1] % 2 == 0 && p[1] / 2 == d[2];
        bool swapped = p[1] == d[2] && p[2] % 2 == 0 && p[2] / 2 == d[1];
        facts->stacked_transposed = swapped;
        if (plain != swapped) {
            return FERRY_OK;
        }
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: the shapes of %s and of its partner are not those of stacked experts (gate "
                   "and up, and down); write a layout file",
                   facts->source_name, pair == NULL ? down->name : pair->name);
}

/*
 * Gate and up in turns: a rank has whole turns, and where the columns of down share scales in
 * blocks, so many that whole blocks of down go with them. Biases are cut like what they belong to.
 */
static ferry_status gather_turns(fy_facts *facts, const fy_model_tensor *const *samples,
                                 ferry_error *error)
{
    const fy_model_tensor *rows = samples[FY_WAY_TURNS_ROWS];
    const fy_model_tensor *turns = samples[FY_WAY_STACKED_TURNS];
    bool in_blocks = samples[FY_WAY_DOWN_BLOCKS] != NULL;
    facts->has_inner_blocks = in_blocks;
    facts->inner_unit = in_blocks && !facts->is_plain ? MX_BLOCK : facts->tile;
    facts->turns_unit = 2 * facts->inner_unit;
    if (rows == NULL && turns == NULL) {
        return FERRY_OK;
    }
    uint64_t unit = in_blocks ? 2 * MX_BLOCK : 2; /* what all of them are whole multiples of */
    facts->turns_rows =
        turns == NULL ? extent_of(rows, 1) : extent_of(turns, facts->stacked_transposed ? 2 : 1);
    facts->inner_blocks = facts->turns_rows / (2 * MX_BLOCK);
    if (facts->turns_rows == 0 || facts->turns_rows % unit != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" has %llu rows of gate and up in turns, which are no multiple of "
                       "%llu above zero; write a layout file",
                       facts->source_name, turns == NULL ? rows->name : turns->name,
                       (ull)facts->turns_rows, (ull)unit);
    }
    return FERRY_OK;
}

ferry_status fy_facts_gather(fy_facts *facts, const fy_model_tensor *const *samples,
                             ferry_error *error)
{
    facts->block[0] = facts->block[1] = facts->tile = facts->inner_unit = 1;
    facts->vocabulary_unit = VOCABULARY_UNIT;
    if (facts->tp <= 1) {
        return FERRY_OK; /* uncut dimensions need no numbers */
    }
    FY_TRY(gather_stacked(facts, samples, error));
    FY_TRY(gather_blocks(facts, error));
    FY_TRY(gather_turns(facts, samples, error));
    FY_TRY(gather_attention(facts, samples, error));
    FY_TRY(gather_latent(facts, samples, error));
    FY_TRY(gather_mixed(facts, samples, error));
    return fy_facts_gather_ssm(facts, samples, error);
}
