/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/content.h"

#include "base/alloc.h"

#include <string.h>

typedef struct entry {
    uint64_t content;
    uint32_t task;
} entry;

enum { DIGIT_BITS = 16, N_DIGITS = 1 << DIGIT_BITS };

/* One stable pass of a radix sort; false where all digits are equal, and nothing was done. */
static bool sort_by_digit(const entry *from, uint32_t n, uint32_t shift, uint32_t *count, entry *to)
{
    memset(count, 0, N_DIGITS * sizeof *count);
    for (uint32_t i = 0; i < n; i++) {
        count[from[i].content >> shift & (N_DIGITS - 1)]++;
    }
    if (count[from[0].content >> shift & (N_DIGITS - 1)] == n) {
        return false;
    }
    for (uint32_t digit = 0, sum = 0; digit < N_DIGITS; digit++) {
        uint32_t here = count[digit];
        count[digit] = sum;
        sum += here;
    }
    for (uint32_t i = 0; i < n; i++) {
        to[count[from[i].content >> shift & (N_DIGITS - 1)]++] = from[i];
    }
    return true;
}

/*
 * By content; the tasks of one stay in their order, which is by receiver, as they have one sender.
 * Contents are mostly small numbers, so that few passes have anything to do.
 */
static ferry_status sort_entries(entry **entries, uint32_t n, ferry_error *error)
{
    uint32_t *count = fy_alloc(N_DIGITS, sizeof *count);
    entry *other = fy_alloc(n, sizeof *other);
    ferry_status status = FERRY_OK;
    if (count == NULL || other == NULL) {
        status = fy_fail_no_memory(error, "the contents of tasks");
    }
    for (uint32_t shift = 0; shift < 64 && n > 1 && status == FERRY_OK; shift += DIGIT_BITS) {
        if (sort_by_digit(*entries, n, shift, count, other)) {
            entry *sorted = other;
            other = *entries;
            *entries = sorted;
        }
    }
    fy_free(count);
    fy_free(other);
    return status;
}

static ferry_status check_equal(const fy_listed_task *a, const fy_listed_task *b,
                                ferry_error *error)
{
    if (a->from != b->from || a->bytes != b->bytes || a->element != b->element) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "tasks %llu (rank %u to %u, %llu bytes) and %llu (rank %u to %u, %llu "
                       "bytes) claim the same content %llu: sender, bytes and element must agree",
                       (unsigned long long)a->id, a->from, a->to, (unsigned long long)a->bytes,
                       (unsigned long long)b->id, b->from, b->to, (unsigned long long)b->bytes,
                       (unsigned long long)a->content);
    }
    return FERRY_OK;
}

static uint32_t end_of(const entry *entries, uint32_t n, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < n && entries[end].content == entries[first].content) {
        end++;
    }
    return end;
}

static ferry_status number_entries(fy_pairs *pairs, const fy_listed_task *listed,
                                   const entry *entries, uint32_t n, ferry_error *error)
{
    for (uint32_t first = 0, end; first < n; first = end) {
        end = end_of(entries, n, first);
        for (uint32_t i = first; i < end && end - first > 1; i++) {
            FY_TRY(check_equal(&listed[entries[first].task], &listed[entries[i].task], error));
            pairs->tasks[entries[i].task].content = pairs->n_contents;
        }
        pairs->n_contents += end - first > 1;
    }
    return FERRY_OK;
}

ferry_status fy_contents_number(fy_pairs *pairs, const fy_listed_task *listed, ferry_error *error)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        n += listed[i].has_content;
    }
    entry *entries = fy_alloc(n, sizeof *entries);
    FY_TRY(fy_check_memory(entries != NULL, "the contents of tasks", error));
    n = 0;
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        if (listed[i].has_content) {
            entries[n++] = (entry){.content = listed[i].content, .task = i};
        }
    }
    ferry_status status = sort_entries(&entries, n, error);
    FY_THEN(status, number_entries(pairs, listed, entries, n, error));
    fy_free(entries);
    return status;
}

/* The tasks of one sender by origin: a table that fits a cache, made anew for each sender. */
typedef struct origins {
    const fy_hash128 *origin;
    uint32_t *slots; /* tasks, or FY_NO_CONTENT */
    size_t capacity;
} origins;

/* The first task of the same origin, which is the given one if there is none yet. */
static uint32_t first_alike(const origins *o, uint32_t mask, uint32_t task)
{
    const fy_hash128 *wanted = &o->origin[task];
    uint32_t slot = (uint32_t)wanted->low & mask;
    while (o->slots[slot] != FY_NO_CONTENT) {
        const fy_hash128 *other = &o->origin[o->slots[slot]];
        if (other->low == wanted->low && other->high == wanted->high) {
            return o->slots[slot];
        }
        slot = (slot + 1) & mask;
    }
    o->slots[slot] = task;
    return task;
}

/* Each task's content becomes the first task of its kind, if that is another; marks those. */
static ferry_status find_alike(origins *o, fy_pairs *pairs, uint32_t first, uint32_t end,
                               ferry_error *error)
{
    uint32_t n_slots = 16;
    while (n_slots / 2 < end - first && n_slots < (uint32_t)1 << 31) {
        n_slots *= 2;
    }
    FY_TRY(FY_GROW(o->slots, o->capacity, n_slots, "the contents of tasks", error));
    memset(o->slots, 0xff, n_slots * sizeof *o->slots);
    for (uint32_t i = first; i < end; i++) {
        uint32_t alike = first_alike(o, n_slots - 1, i);
        pairs->tasks[i].content = FY_NO_CONTENT;
        if (alike != i) {
            pairs->tasks[i].content = pairs->tasks[alike].content = alike;
        }
    }
    return FERRY_OK;
}

/* Numbers of ids in a set: bits, and how many are set in the words before. */
typedef struct ranking {
    uint64_t *bits;
    uint32_t *before;
} ranking;

static uint32_t rank_of(const ranking *r, uint64_t id)
{
    uint64_t below = r->bits[id / 64] & (((uint64_t)1 << id % 64) - 1);
    return r->before[id / 64] + (uint32_t)__builtin_popcountll(below);
}

/* In the order of the first tasks' ids: a sender's own order is not that of all. */
static ferry_status number_by_id(fy_pairs *pairs, uint64_t n_ids, ferry_error *error)
{
    size_t n_words = (size_t)(n_ids / 64 + 1);
    ranking r = {.bits = fy_alloc_zeroed(n_words, sizeof *r.bits),
                 .before = fy_alloc(n_words, sizeof *r.before)};
    fy_task *tasks = pairs->tasks;
    if (r.bits == NULL || r.before == NULL) {
        fy_free(r.bits);
        fy_free(r.before);
        return fy_fail_no_memory(error, "the contents of tasks");
    }
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        if (tasks[i].content == i) {
            r.bits[tasks[i].id / 64] |= (uint64_t)1 << tasks[i].id % 64;
        }
    }
    for (size_t w = 0; w < n_words; w++) {
        r.before[w] = pairs->n_contents;
        pairs->n_contents += (uint32_t)__builtin_popcountll(r.bits[w]);
    }
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        if (tasks[i].content != FY_NO_CONTENT) {
            tasks[i].content = rank_of(&r, tasks[tasks[i].content].id);
        }
    }
    fy_free(r.bits);
    fy_free(r.before);
    return FERRY_OK;
}

ferry_status fy_contents_find(fy_pairs *pairs, const fy_hash128 *origin, uint64_t n_ids,
                              ferry_error *error)
{
    origins o = {.origin = origin};
    ferry_status status = FERRY_OK;
    for (uint32_t first = 0, next; first < pairs->n_pairs && status == FERRY_OK; first = next) {
        uint32_t end = 0;
        for (next = first; next < pairs->n_pairs; next++) {
            if (pairs->pairs[next].from != pairs->pairs[first].from) {
                break;
            }
            end = pairs->pairs[next].first + pairs->pairs[next].n_tasks;
        }
        status = find_alike(&o, pairs, pairs->pairs[first].first, end, error);
    }
    fy_free(o.slots);
    return status == FERRY_OK ? number_by_id(pairs, n_ids, error) : status;
}

static bool is_wanted(const fy_pairs *pairs, const bool *wanted, uint32_t task)
{
    uint32_t content = pairs->tasks[task].content;
    return content != FY_NO_CONTENT && wanted[content];
}

/* Where each content's tasks begin, and the end so far is the begin; returns how many they are. */
static uint32_t place_contents(const fy_pairs *pairs, const bool *wanted, fy_contents *contents)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        if (is_wanted(pairs, wanted, i)) {
            contents->contents[pairs->tasks[i].content].end++;
        }
    }
    for (uint32_t c = 0; c < contents->n; c++) {
        uint32_t n = contents->contents[c].end;
        contents->contents[c] = (fy_content){.begin = sum, .end = sum};
        sum += n;
    }
    return sum;
}

ferry_status fy_contents_init(const fy_pairs *pairs, const bool *wanted, fy_contents *contents,
                              ferry_error *error)
{
    *contents = (fy_contents){.n = pairs->n_contents};
    contents->contents = fy_alloc_zeroed(pairs->n_contents, sizeof *contents->contents);
    if (contents->contents != NULL) {
        contents->tasks =
            fy_alloc(place_contents(pairs, wanted, contents), sizeof *contents->tasks);
    }
    if (contents->contents == NULL || contents->tasks == NULL) {
        fy_contents_cleanup(contents);
        return fy_fail_no_memory(error, "the contents of tasks");
    }
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        for (uint32_t t = pair->first; t < pair->first + pair->n_tasks; t++) {
            if (is_wanted(pairs, wanted, t)) {
                fy_content *content = &contents->contents[pairs->tasks[t].content];
                content->from = pair->from;
                contents->tasks[content->end++] = (fy_content_task){.task = t, .to = pair->to};
            }
        }
    }
    return FERRY_OK;
}

void fy_contents_cleanup(fy_contents *contents)
{
    fy_free(contents->contents);
    fy_free(contents->tasks);
    *contents = (fy_contents){0};
}
