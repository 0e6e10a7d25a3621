/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Sides of ranks that each know only themselves. First every rank tells the digest of what it has;
 * then the lowest rank of each digest tells what that is. So a thousand ranks that are alike cost
 * what one does, and a thousand digests.
 */
#include "model/spec.h"

#include "base/checked.h"
#include "base/message.h"
#include "base/options.h"

#include <string.h>

typedef struct side_exchange {
    const ferry_exchange *x;
    ferry_status misuse; /* how this rank calls, and the sentence about it: all ranks are told */
    ferry_error why;
    fy_pack own; /* both sides of this rank */
    fy_hash128 own_hash;
    fy_hash128 *hashes; /* [n_ranks] */
    uint32_t *first;    /* [n_ranks] the lowest rank with the same */
    uint32_t *next;     /* [n_ranks] the next one; FY_NONE: there is none */
    uint32_t *last;     /* [n_ranks] of each lowest rank: the last one so far */
    ferry_side *sides[2];
} side_exchange;

/* A side as it is told: its ranks are whoever tells it. */
static ferry_status check_own(const ferry_side *side, ferry_error *error)
{
    for (size_t p = 0; side != NULL && p < side->n_parameters; p++) {
        if (side->parameters[p].ranks != FY_OWN_RANK) {
            return fy_fail(
                error, FERRY_ERR_INVALID_INPUT,
                "the parameter \"%s\" has ranks; each rank tells the others only its own "
                "parameters, which have none",
                side->parameters[p].name);
        }
    }
    return FERRY_OK;
}

static int put_text(void *context, const char *bytes, size_t n_bytes)
{
    fy_digest *texts = context;
    fy_hash128 hash = fy_hash128_of(bytes, n_bytes);
    fy_digest_hash(texts, hash);
    return 0; /* without memory the digest has failed, which is looked at in the end */
}

/* Whether ranks begin with the same: its text has tensors, what they are made of, and sides. */
static ferry_status hash_base(const ferry_spec *base, fy_hash128 *hash_out, ferry_error *error)
{
    fy_digest texts = {0};
    ferry_status status =
        base == NULL ? FERRY_OK : ferry_spec_write_json(base, put_text, &texts, error);
    fy_digest_u64(&texts, base != NULL);
    *hash_out = fy_digest_take(&texts);
    FY_THEN(status, fy_check_memory(!texts.failed, "what a rank begins with", error));
    fy_digest_cleanup(&texts);
    return status;
}

static void pack_side(const ferry_side *side, fy_pack *out)
{
    fy_pack_number(out, side != NULL);
    if (side != NULL) {
        fy_side_pack(side, out);
    }
}

/* A rank without memory says so, rather than nothing. */
static void pack_digests(side_exchange *e, const ferry_spec *base, const ferry_side *const sides[2],
                         fy_pack *out)
{
    ferry_error error = e->why;
    fy_hash128 hash = {0};
    ferry_status status = e->misuse;
    FY_THEN(status, fy_check_memory(e->hashes != NULL && e->first != NULL && e->next != NULL &&
                                        e->last != NULL,
                                    "what ranks have", &error));
    FY_THEN(status, check_own(sides[0], &error));
    FY_THEN(status, check_own(sides[1], &error));
    if (status == FERRY_OK) {
        pack_side(sides[0], &e->own);
        pack_side(sides[1], &e->own);
    }
    FY_THEN(status, fy_check_memory(!e->own.failed, "what a rank has", &error));
    FY_THEN(status, hash_base(base, &hash, &error));
    fy_message_begin(out, status, error.message);
    if (status == FERRY_OK) {
        e->own_hash = fy_hash128_of(e->own.bytes, e->own.used);
        fy_pack_u64(out, hash.low);
        fy_pack_u64(out, hash.high);
        fy_pack_u64(out, e->own_hash.low);
        fy_pack_u64(out, e->own_hash.high);
    }
}

static fy_hash128 read_hash(fy_reader *in)
{
    fy_hash128 hash = {.low = fy_read_u64(in)};
    hash.high = fy_read_u64(in);
    return hash;
}

static ferry_status read_digests(side_exchange *e, const fy_gathered *all, ferry_error *error)
{
    fy_hash128 base = {0};
    const unsigned char *at = all->at;
    for (uint32_t r = 0; r < e->x->n_ranks; r++) {
        fy_reader in = fy_reader_of(at, all->lengths[r]);
        FY_TRY(fy_message_read(&in, r, error));
        fy_hash128 its = read_hash(&in);
        e->hashes[r] = read_hash(&in);
        if (!fy_read_all(&in)) {
            return fy_message_fail(r, error);
        }
        base = r == 0 ? its : base;
        if (its.low != base.low || its.high != base.high) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "rank %u makes the spec from another base than rank 0", r);
        }
        at += all->lengths[r];
    }
    return FERRY_OK;
}

/* The lowest rank with the same digest, for each rank. */
static ferry_status find_alike(side_exchange *e, ferry_error *error)
{
    fy_index index = {0};
    bool fits = true;
    for (uint32_t r = 0; r < e->x->n_ranks && fits; r++) {
        fy_index_cursor c = fy_index_first(&index, e->hashes[r].low);
        while (c.value != FY_INDEX_NONE && e->hashes[c.value].high != e->hashes[r].high) {
            fy_index_next(&index, &c);
        }
        e->first[r] = c.value == FY_INDEX_NONE ? r : c.value;
        fits = c.value != FY_INDEX_NONE || fy_index_insert(&index, e->hashes[r].low, r);
        e->next[r] = FY_NONE;
        if (c.value != FY_INDEX_NONE) {
            e->next[e->last[c.value]] = r;
        }
        e->last[e->first[r]] = r;
    }
    fy_index_cleanup(&index);
    return fy_check_memory(fits, "what ranks have", error);
}

static ferry_status take_side(ferry_side **all_inout, fy_reader *in, const uint32_t *ranks,
                              size_t n, ferry_error *error)
{
    ferry_side *side = NULL;
    FY_TRY(fy_side_unpack(in, &side, error));
    if (side == NULL) {
        return FERRY_OK; /* it is damaged, which the reader knows */
    }
    ferry_status status = *all_inout == NULL ? ferry_side_create(all_inout, error) : FERRY_OK;
    FY_THEN(status, fy_side_append(*all_inout, side, ranks, n, error));
    ferry_side_destroy(side);
    return status;
}

static ferry_status take_sides(side_exchange *e, fy_reader *in, const uint32_t *ranks, size_t n,
                               ferry_error *error)
{
    for (uint32_t which = 0; which < 2; which++) {
        bool there = fy_read_number(in, 1) == 1;
        if (!there || in->failed) {
            continue;
        }
        ferry_error inner;
        ferry_status status = take_side(&e->sides[which], in, ranks, n, &inner);
        if (status != FERRY_OK) {
            return fy_fail(error, status, "%s of rank %u: %s",
                           which == 0 ? "the source" : "the destination", ranks[0], inner.message);
        }
    }
    return fy_read_all(in) ? FERRY_OK : fy_message_fail(ranks[0], error);
}

static ferry_status read_sides(side_exchange *e, const fy_gathered *all, ferry_error *error)
{
    const unsigned char *at = all->at;
    uint32_t *ranks = fy_alloc(e->x->n_ranks, sizeof *ranks);
    ferry_status status = fy_check_memory(ranks != NULL, "what ranks have", error);
    for (uint32_t r = 0; r < e->x->n_ranks && status == FERRY_OK; r++) {
        fy_reader in = fy_reader_of(at, all->lengths[r]);
        status = fy_message_read(&in, r, error);
        at += all->lengths[r];
        if (status != FERRY_OK || e->first[r] != r) {
            continue;
        }
        size_t n = 0;
        for (uint32_t like = r; like != FY_NONE; like = e->next[like]) {
            ranks[n++] = like;
        }
        status = take_sides(e, &in, ranks, n, error);
    }
    fy_free(ranks);
    return status;
}

/* An exchange of one rank may hand back what it was given, so messages stay until they are read. */
static ferry_status tell_digests(side_exchange *e, const ferry_spec *base,
                                 const ferry_side *const sides[2], ferry_error *error)
{
    fy_pack digests = {0};
    fy_gathered all;
    pack_digests(e, base, sides, &digests);
    ferry_status status = fy_exchange_gather(e->x, true, &digests, &all, error);
    FY_THEN(status, read_digests(e, &all, error)); /* the same on all ranks */
    fy_pack_cleanup(&digests);
    return status;
}

static ferry_status tell_sides(side_exchange *e, ferry_error *error)
{
    fy_pack content = {0};
    fy_gathered all;
    ferry_error inner;
    ferry_status status = find_alike(e, &inner);
    fy_message_begin(&content, status, inner.message);
    if (status == FERRY_OK && e->first[e->x->rank] == e->x->rank) {
        fy_pack_bytes(&content, e->own.bytes, e->own.used);
    }
    status = fy_exchange_gather(e->x, true, &content, &all, error);
    FY_THEN(status, read_sides(e, &all, error));
    fy_pack_cleanup(&content);
    return status;
}

ferry_status ferry_spec_exchange(const ferry_spec *base, const ferry_side *source,
                                 const ferry_side *destination, const ferry_exchange *exchange,
                                 ferry_spec **spec_out, ferry_error *error)
{
    ferry_exchange own;
    const ferry_side *const sides[2] = {source, destination};
    FY_TRY(fy_take_exchange(exchange, &own, error));
    FY_TRY(fy_check_use(own.all_gather != NULL && own.n_ranks > 0 && own.rank < own.n_ranks,
                        "ferry_spec_exchange needs an exchange made with FERRY_EXCHANGE_INIT: an "
                        "all_gather, and a rank of its world",
                        error));
    side_exchange e = {.x = &own};
    if (spec_out == NULL) { /* the others must not wait for this rank */
        e.misuse = fy_fail(&e.why, FERRY_ERR_MISUSE,
                           "ferry_spec_exchange needs a place for the spec, which rank %u has not",
                           own.rank);
    }
    e.hashes = fy_alloc(own.n_ranks, sizeof *e.hashes);
    e.first = fy_alloc(own.n_ranks, sizeof *e.first);
    e.next = fy_alloc(own.n_ranks, sizeof *e.next);
    e.last = fy_alloc(own.n_ranks, sizeof *e.last);
    ferry_status status = tell_digests(&e, base, sides, error);
    FY_THEN(status, tell_sides(&e, error));
    if (status == FERRY_OK && base == NULL && (e.sides[0] == NULL || e.sides[1] == NULL)) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "no rank has anything of the %s, and there is no base that says it",
                         e.sides[0] == NULL ? "source" : "destination");
    }
    FY_THEN(status, ferry_spec_create(base, e.sides[0], e.sides[1], spec_out, error));
    ferry_side_destroy(e.sides[0]);
    ferry_side_destroy(e.sides[1]);
    fy_free(e.hashes);
    fy_free(e.first);
    fy_free(e.next);
    fy_free(e.last);
    fy_pack_cleanup(&e.own);
    return status;
}
