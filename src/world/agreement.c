/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks bring to an agreement, and how two of them become one. Merging has one result in
 * whatever order it is done: of failures the lowest rank's is kept; of a field that must be the
 * same the lowest rank's value, and the lowest rank that has another one.
 */
#include "base/print.h"
#include "world/agree.h"

#include <ferry/group.h>

#include <string.h>

/* One side of a comparison. */
typedef struct holder {
    bool is_there;
    uint32_t rank;
    uint64_t value;
    const char *text; /* not zero ended */
    size_t length;
} holder;

typedef struct entry {
    uint32_t how;
    uint64_t value;
    holder first, other; /* FY_SAME and FY_RANK_0 */
} entry;

typedef struct agreement {
    ferry_status status;
    uint32_t rank; /* that failed */
    const char *sentence;
    size_t sentence_bytes;
    size_t n;
    entry entries[FY_MOST_FIELDS];
} agreement;

/*
 * As bytes
 */

static void pack_holder(fy_pack *out, const holder *its)
{
    fy_pack_number(out, its->is_there);
    if (its->is_there) {
        fy_pack_number(out, its->rank);
        fy_pack_number(out, its->value);
        fy_pack_number(out, its->length);
        fy_pack_bytes(out, its->text, its->length);
    }
}

static void read_holder(fy_reader *in, holder *its)
{
    *its = (holder){.is_there = fy_read_number(in, 1) == 1};
    if (its->is_there) {
        its->rank = (uint32_t)fy_read_number(in, FERRY_MAX_RANKS - 1);
        its->value = fy_read_number(in, UINT64_MAX);
        its->text = fy_read_text(in, &its->length);
        in->failed = in->failed || its->length >= FY_FIELD_TEXT_BYTES;
    }
}

static bool is_held(uint32_t how)
{
    return how == FY_SAME || how == FY_RANK_0;
}

static void pack(fy_pack *out, const agreement *all)
{
    fy_pack_number(out, (uint64_t)all->status);
    if (all->status != FERRY_OK) {
        fy_pack_number(out, all->rank);
        fy_pack_number(out, all->sentence_bytes);
        fy_pack_bytes(out, all->sentence, all->sentence_bytes);
    }
    fy_pack_number(out, all->n);
    for (size_t i = 0; i < all->n; i++) {
        const entry *one = &all->entries[i];
        fy_pack_number(out, one->how);
        if (is_held(one->how)) {
            pack_holder(out, &one->first);
            pack_holder(out, &one->other);
        } else {
            fy_pack_number(out, one->value);
        }
    }
}

static bool is_sentence(const char *text, size_t length)
{
    return length > 0 && length < FERRY_ERROR_BYTES && memchr(text, 0, length) == NULL;
}

static bool unpack(const void *bytes, size_t n_bytes, agreement *all)
{
    fy_reader in = fy_reader_of(bytes, n_bytes);
    *all = (agreement){.status = (ferry_status)fy_read_number(&in, FY_LAST_STATUS)};
    if (all->status != FERRY_OK) {
        all->rank = (uint32_t)fy_read_number(&in, FERRY_MAX_RANKS - 1);
        all->sentence = fy_read_text(&in, &all->sentence_bytes);
        in.failed = in.failed || !is_sentence(all->sentence, all->sentence_bytes);
    }
    all->n = (size_t)fy_read_number(&in, FY_MOST_FIELDS);
    for (size_t i = 0; i < all->n; i++) {
        entry *one = &all->entries[i];
        one->how = (uint32_t)fy_read_number(&in, FY_N_HOWS - 1);
        if (is_held(one->how)) {
            read_holder(&in, &one->first);
            read_holder(&in, &one->other);
        } else {
            one->value = fy_read_number(&in, UINT64_MAX);
        }
    }
    return fy_read_all(&in);
}

/*
 * Merging
 */

static bool holds_other(const holder *a, const holder *b)
{
    return a->value != b->value || a->length != b->length ||
           (a->length > 0 && memcmp(a->text, b->text, a->length) != 0);
}

static void take_lower(holder *lowest, const holder *one, const holder *unlike)
{
    if (one->is_there && holds_other(one, unlike) &&
        (!lowest->is_there || one->rank < lowest->rank)) {
        *lowest = *one;
    }
}

static void merge_held(entry *a, const entry *b)
{
    bool b_leads = b->first.is_there && (!a->first.is_there || b->first.rank < a->first.rank);
    holder first = b_leads ? b->first : a->first;
    holder other = {.is_there = false};
    take_lower(&other, &a->first, &first);
    take_lower(&other, &a->other, &first);
    take_lower(&other, &b->first, &first);
    take_lower(&other, &b->other, &first);
    a->first = first;
    a->other = other;
}

static void merge_entry(entry *a, const entry *b)
{
    switch (a->how) {
    case FY_LEAST:
        a->value = b->value < a->value ? b->value : a->value;
        break;
    case FY_MOST:
        a->value = b->value > a->value ? b->value : a->value;
        break;
    case FY_SUM:
        a->value += b->value;
        break;
    case FY_AND:
        a->value &= b->value;
        break;
    default:
        merge_held(a, b);
        break;
    }
}

static bool has_same_fields(const agreement *a, const agreement *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) {
        same = a->entries[i].how == b->entries[i].how;
    }
    return same;
}

static void fail(agreement *all, uint32_t rank, ferry_status status, const char *sentence,
                 size_t n_bytes)
{
    if (all->status == FERRY_OK || rank < all->rank) {
        all->status = status;
        all->rank = rank;
        all->sentence = sentence;
        all->sentence_bytes = n_bytes;
    }
}

static void fail_damaged(agreement *all, uint32_t from, char text[FERRY_ERROR_BYTES])
{
    fy_print(text, FERRY_ERROR_BYTES, "the message of rank %u is damaged", from);
    fail(all, from, FERRY_ERR_EXCHANGE, text, strlen(text));
}

void fy_agreement_merge(fy_pack *into, const void *bytes, size_t n_bytes, uint32_t from)
{
    unsigned char merged[FY_AGREEMENT_BYTES];
    char text[FERRY_ERROR_BYTES];
    fy_pack out = fy_pack_into(merged, sizeof merged);
    agreement own, its;
    if (!unpack(into->bytes, into->used, &own)) {
        own.status = FERRY_OK; /* of one that cannot be: what comes next is as good */
        own.n = 0;
    }
    if (!unpack(bytes, n_bytes, &its) || !has_same_fields(&own, &its)) {
        fail_damaged(&own, from, text);
    } else {
        if (its.status != FERRY_OK) {
            fail(&own, its.rank, its.status, its.sentence, its.sentence_bytes);
        }
        for (size_t i = 0; i < own.n; i++) {
            merge_entry(&own.entries[i], &its.entries[i]);
        }
    }
    pack(&out, &own);
    into->used = 0;
    fy_pack_bytes(into, out.bytes, out.used);
    into->failed = into->failed || out.failed;
}

/*
 * Of one rank, and for it
 */

/* A sentence that names a rank already, such as one that was agreed upon before, needs no other. */
static bool names_rank(const char *sentence)
{
    return strncmp(sentence, "rank ", 5) == 0 && sentence[5] >= '0' && sentence[5] <= '9';
}

static holder hold(uint32_t rank, const fy_field *field)
{
    return (holder){.is_there = !field->has_none && (field->how == FY_SAME || rank == 0),
                    .rank = rank,
                    .value = field->text == NULL ? field->value : 0,
                    .text = field->text,
                    .length =
                        field->text == NULL ? 0 : strnlen(field->text, FY_FIELD_TEXT_BYTES - 1)};
}

void fy_agreement_pack(uint32_t rank, const fy_field *fields, size_t n, ferry_status status,
                       const char *sentence, fy_pack *out)
{
    agreement own = {.status = status, .rank = rank, .n = n};
    char text[FERRY_ERROR_BYTES];
    if (status != FERRY_OK) {
        const char *why =
            sentence == NULL || sentence[0] == '\0' ? ferry_status_text(status) : sentence;
        char prefix[32] = "";
        if (!names_rank(why)) {
            fy_print(prefix, sizeof prefix, "rank %u: ", rank);
        }
        fy_print(text, sizeof text, "%s%.*s", prefix, FERRY_ERROR_BYTES - 32, why);
        own.sentence = text;
        own.sentence_bytes = strlen(text);
    }
    for (size_t i = 0; i < n; i++) {
        own.entries[i] = (entry){.how = fields[i].how, .value = fields[i].value};
        if (is_held(fields[i].how)) {
            own.entries[i].first = hold(rank, &fields[i]);
        }
    }
    pack(out, &own);
}

/* A text is quoted. */
enum { SAID_BYTES = FY_FIELD_TEXT_BYTES + 2 };

static void describe(const holder *its, bool is_text, char text[SAID_BYTES])
{
    if (is_text) {
        fy_print(text, SAID_BYTES, "\"%.*s\"", (int)its->length, its->length == 0 ? "" : its->text);
    } else {
        fy_print(text, SAID_BYTES, "%llu", (unsigned long long)its->value);
    }
}

static ferry_status fail_field(const fy_field *field, const entry *one, ferry_error *error)
{
    char first[SAID_BYTES], other[SAID_BYTES];
    describe(&one->first, field->text != NULL, first);
    describe(&one->other, field->text != NULL, other);
    return fy_fail(error, field->status == FERRY_OK ? FERRY_ERR_INVALID_INPUT : field->status,
                   "%s is %s on rank %u and %s on rank %u%s", field->name, first, one->first.rank,
                   other, one->other.rank,
                   field->remedy == NULL ? ": it must be the same on all ranks" : field->remedy);
}

static void take_value(fy_field *field, const entry *one)
{
    if (!is_held(field->how)) {
        field->value = one->value;
    } else if (field->how == FY_RANK_0) {
        field->value = one->first.value;
    } else if (field->text_out != NULL) {
        fy_print(field->text_out, FY_FIELD_TEXT_BYTES, "%.*s", (int)one->first.length,
                 one->first.length == 0 ? "" : one->first.text);
    }
}

ferry_status fy_agreement_read(const void *bytes, size_t n_bytes, fy_field *fields, size_t n,
                               ferry_error *error)
{
    agreement all;
    if (!unpack(bytes, n_bytes, &all) || (all.status == FERRY_OK && all.n != n)) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "what the ranks agreed on is damaged");
    }
    if (all.status != FERRY_OK) {
        return fy_fail(error, all.status, "%.*s", (int)all.sentence_bytes, all.sentence);
    }
    for (size_t i = 0; i < n; i++) {
        const entry *one = &all.entries[i];
        if (one->how != (uint32_t)fields[i].how) {
            return fy_fail(error, FERRY_ERR_EXCHANGE, "what the ranks agreed on is damaged");
        }
        if (one->how == FY_SAME && one->other.is_there) {
            return fail_field(&fields[i], one, error);
        }
    }
    for (size_t i = 0; i < n; i++) {
        take_value(&fields[i], &all.entries[i]);
    }
    return FERRY_OK;
}
