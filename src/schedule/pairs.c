/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/content.h"
#include "schedule/tasks.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

static int compare_numbers(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_receiver_then_id(const void *a, const void *b)
{
    const fy_listed_task *x = a, *y = b;
    return x->to != y->to ? compare_numbers(x->to, y->to) : compare_numbers(x->id, y->id);
}

static int largest_first(const void *a, const void *b)
{
    const fy_task *x = a, *y = b;
    return x->bytes != y->bytes ? compare_numbers(y->bytes, x->bytes)
                                : compare_numbers(x->id, y->id);
}

/* Sizes of a pair's tasks: mostly a few, for layers are alike. */
enum { FEW_SIZES = 32 };

typedef struct size_class {
    uint64_t bytes;
    uint32_t n;
} size_class;

typedef struct sorter {
    size_class classes[FEW_SIZES]; /* the largest first */
    uint32_t n_classes;
    fy_task *room;
    size_t room_capacity;
} sorter;

static uint32_t class_of(const sorter *s, uint64_t bytes, uint32_t guess)
{
    if (guess < s->n_classes && s->classes[guess].bytes == bytes) {
        return guess;
    }
    uint32_t c = 0;
    while (c < s->n_classes && s->classes[c].bytes > bytes) {
        c++;
    }
    return c;
}

/* False where there are too many sizes. */
static bool find_classes(sorter *s, const fy_task *tasks, uint32_t n)
{
    uint32_t c = 0;
    s->n_classes = 0;
    for (uint32_t i = 0; i < n; i++) {
        c = class_of(s, tasks[i].bytes, c);
        if (c == s->n_classes || s->classes[c].bytes != tasks[i].bytes) {
            if (s->n_classes == FEW_SIZES) {
                return false;
            }
            memmove(&s->classes[c + 1], &s->classes[c], (s->n_classes - c) * sizeof *s->classes);
            s->classes[c] = (size_class){.bytes = tasks[i].bytes};
            s->n_classes++;
        }
        s->classes[c].n++;
    }
    return true;
}

/* Tasks come by id, which their order within a size keeps. */
static ferry_status sort_by_size(sorter *s, fy_task *tasks, uint32_t n, ferry_error *error)
{
    if (!find_classes(s, tasks, n)) {
        fy_sort(tasks, n, sizeof *tasks, largest_first);
        return FERRY_OK;
    }
    if (s->n_classes < 2) {
        return FERRY_OK;
    }
    FY_TRY(FY_GROW(s->room, s->room_capacity, n, "the tasks of a pair", error));
    uint32_t begin[FEW_SIZES], sum = 0, c = 0;
    for (uint32_t i = 0; i < s->n_classes; i++) {
        begin[i] = sum;
        sum += s->classes[i].n;
    }
    for (uint32_t i = 0; i < n; i++) {
        c = class_of(s, tasks[i].bytes, c);
        s->room[begin[c]++] = tasks[i];
    }
    memcpy(tasks, s->room, n * sizeof *tasks);
    return FERRY_OK;
}

/* UINT64_MAX beyond 2^32. */
static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b;
    while (y != 0) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a >> 32 != 0 ? UINT64_MAX : a / x * b;
}

/* Adds a pair with its number of tasks up, which come by id, and sorts them. */
static ferry_status form_pair(fy_pairs *pairs, fy_pair *pair, sorter *s, ferry_error *error)
{
    fy_task *tasks = pairs->tasks + pair->first;
    uint32_t element = 0;
    pair->bytes = 0;
    for (uint32_t i = 0; i < pair->n_tasks; i++) {
        if (i > 0 && tasks[i].id <= tasks[i - 1].id) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "task %llu occurs twice from rank %u to rank %u: ids are distinct "
                           "within a pair of ranks",
                           (unsigned long long)tasks[i].id, pair->from, pair->to);
        }
        if (!fy_add(pair->bytes, tasks[i].bytes, &pair->bytes)) {
            return fy_fail(error, FERRY_ERR_LIMIT,
                           "the tasks from rank %u to rank %u exceed 2^64 bytes", pair->from,
                           pair->to);
        }
        if (tasks[i].element != element) {
            element = tasks[i].element;
            pairs->largest_element = fy_max(pairs->largest_element, element);
            pairs->common_element = common_multiple(pairs->common_element, element);
        }
    }
    if (!fy_add(pairs->bytes, pair->bytes, &pairs->bytes) || pairs->bytes >> 60 != 0) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a schedule moves less than 2^60 bytes in all");
    }
    return sort_by_size(s, tasks, pair->n_tasks, error);
}

static ferry_status form_all(fy_pairs *pairs, ferry_error *error)
{
    sorter s = {0};
    ferry_status status = FERRY_OK;
    pairs->common_element = 1;
    for (uint32_t i = 0; i < pairs->n_pairs && status == FERRY_OK; i++) {
        status = form_pair(pairs, &pairs->pairs[i], &s, error);
    }
    fy_free(s.room);
    return status;
}

static ferry_status add_pair(fy_pairs *pairs, uint32_t from, uint32_t to, uint32_t first,
                             ferry_error *error)
{
    FY_TRY(FY_GROW(pairs->pairs, pairs->pair_capacity, (size_t)pairs->n_pairs + 1,
                   "the pairs of a schedule", error));
    pairs->pairs[pairs->n_pairs++] = (fy_pair){.from = from, .to = to, .first = first};
    return FERRY_OK;
}

/* By sender in one pass, then each sender's by receiver and id. */
static ferry_status sort_listed(const ferry_task_list *list, fy_listed_task *sorted,
                                ferry_error *error)
{
    size_t n = list->n_ranks;
    size_t *next = fy_alloc_zeroed(n + 1, sizeof *next);
    FY_TRY(fy_check_memory(next != NULL, "the tasks of a schedule", error));
    for (size_t i = 0; i < list->n_tasks; i++) {
        next[list->tasks[i].from + 1]++;
    }
    for (size_t rank = 0; rank < n; rank++) {
        next[rank + 1] += next[rank];
    }
    for (size_t i = 0; i < list->n_tasks; i++) {
        sorted[next[list->tasks[i].from]++] = list->tasks[i];
    }
    for (size_t rank = 0; rank < n; rank++) { /* next[] is where the next rank's begin */
        size_t begin = rank == 0 ? 0 : next[rank - 1];
        fy_sort(sorted + begin, next[rank] - begin, sizeof *sorted, by_receiver_then_id);
    }
    fy_free(next);
    return FERRY_OK;
}

static ferry_status take_listed(fy_pairs *pairs, const fy_listed_task *listed, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < pairs->n_tasks && status == FERRY_OK; i++) {
        const fy_listed_task *task = &listed[i];
        pairs->tasks[i] = (fy_task){.id = task->id,
                                    .bytes = task->bytes,
                                    .element = task->element,
                                    .content = FY_NO_CONTENT};
        if (i == 0 || task->from != listed[i - 1].from || task->to != listed[i - 1].to) {
            status = add_pair(pairs, task->from, task->to, i, error);
        }
        if (status == FERRY_OK) {
            pairs->pairs[pairs->n_pairs - 1].n_tasks++;
        }
    }
    return status;
}

ferry_status fy_pairs_init(const ferry_task_list *list, fy_pairs *pairs, ferry_error *error)
{
    fy_listed_task *listed = fy_alloc(list->n_tasks, sizeof *listed);
    *pairs = (fy_pairs){.n_ranks = list->n_ranks, .n_tasks = (uint32_t)list->n_tasks};
    pairs->tasks = fy_alloc(list->n_tasks, sizeof *pairs->tasks);
    ferry_status status = FERRY_OK;
    if (listed == NULL || pairs->tasks == NULL) {
        status = fy_fail_no_memory(error, "the tasks of a schedule");
    }
    FY_THEN(status, sort_listed(list, listed, error));
    FY_THEN(status, take_listed(pairs, listed, error));
    FY_THEN(status, fy_contents_number(pairs, listed, error));
    fy_free(listed);
    FY_THEN(status, form_all(pairs, error));
    if (status != FERRY_OK) {
        fy_pairs_cleanup(pairs);
    }
    return status;
}

void fy_pairs_cleanup(fy_pairs *pairs)
{
    fy_free(pairs->tasks);
    fy_free(pairs->pairs);
    *pairs = (fy_pairs){0};
}

ferry_status fy_pairs_without(const fy_pairs *pairs, const bool *left_out, fy_pairs *rest,
                              ferry_error *error)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        n += !left_out[i];
    }
    *rest = (fy_pairs){.n_ranks = pairs->n_ranks,
                       .largest_element = pairs->largest_element,
                       .common_element = pairs->common_element};
    rest->tasks = fy_alloc(n, sizeof *rest->tasks);
    ferry_status status =
        rest->tasks == NULL ? fy_fail_no_memory(error, "the tasks of a schedule") : FERRY_OK;
    for (uint32_t i = 0; i < pairs->n_pairs && status == FERRY_OK; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        uint32_t first = rest->n_tasks;
        uint64_t bytes = 0;
        for (uint32_t t = pair->first; t < pair->first + pair->n_tasks; t++) {
            if (!left_out[t]) {
                bytes += pairs->tasks[t].bytes;
                rest->tasks[rest->n_tasks++] = pairs->tasks[t];
            }
        }
        if (bytes > 0) {
            status = add_pair(rest, pair->from, pair->to, first, error);
        }
        if (bytes > 0 && status == FERRY_OK) {
            rest->pairs[rest->n_pairs - 1].n_tasks = rest->n_tasks - first;
            rest->pairs[rest->n_pairs - 1].bytes = bytes;
            rest->bytes += bytes;
        }
    }
    if (status != FERRY_OK) {
        fy_pairs_cleanup(rest);
    }
    return status;
}

ferry_status fy_pair_maker_init(fy_pair_maker *maker, uint32_t n_ranks, uint64_t n_ids,
                                fy_pairs *pairs, ferry_error *error)
{
    *maker = (fy_pair_maker){.pairs = pairs, .n_ids = n_ids};
    *pairs = (fy_pairs){.n_ranks = n_ranks};
    maker->pair_of = fy_alloc(n_ranks, sizeof *maker->pair_of);
    maker->n_put = fy_alloc_zeroed(n_ranks, sizeof *maker->n_put);
    if (maker->pair_of == NULL || maker->n_put == NULL) {
        return fy_fail_no_memory(error, "the pairs of a schedule");
    }
    memset(maker->pair_of, 0xff, n_ranks * sizeof *maker->pair_of);
    return FERRY_OK;
}

void fy_pair_maker_cleanup(fy_pair_maker *maker)
{
    fy_free(maker->pair_of);
    fy_free(maker->n_put);
    fy_free(maker->origin);
    *maker = (fy_pair_maker){0};
}

ferry_status fy_pair_maker_count(fy_pair_maker *maker, uint32_t from, uint32_t to,
                                 ferry_error *error)
{
    fy_pairs *pairs = maker->pairs;
    uint32_t last = maker->pair_of[from];
    if (pairs->n_tasks == INT32_MAX) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a schedule has at most 2^31 - 1 tasks");
    }
    if (last == UINT32_MAX || pairs->pairs[last].to != to) {
        FY_TRY(add_pair(pairs, from, to, 0, error));
        last = maker->pair_of[from] = pairs->n_pairs - 1;
    }
    pairs->pairs[last].n_tasks++;
    pairs->n_tasks++;
    return FERRY_OK;
}

/* They come by receiver; now by sender, too. */
static ferry_status sort_pairs(fy_pair_maker *maker, ferry_error *error)
{
    fy_pairs *pairs = maker->pairs;
    fy_pair *sorted = fy_alloc(pairs->n_pairs, sizeof *sorted);
    uint32_t *next = maker->pair_of;
    FY_TRY(fy_check_memory(sorted != NULL, "the pairs of a schedule", error));
    memset(next, 0, pairs->n_ranks * sizeof *next);
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        next[pairs->pairs[i].from]++;
    }
    for (uint32_t rank = 0, sum = 0; rank < pairs->n_ranks; rank++) {
        uint32_t here = next[rank];
        next[rank] = sum;
        sum += here;
    }
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        sorted[next[pairs->pairs[i].from]++] = pairs->pairs[i];
    }
    fy_free(pairs->pairs);
    pairs->pairs = sorted;
    pairs->pair_capacity = pairs->n_pairs;
    for (uint32_t i = pairs->n_pairs; i-- > 0;) {
        maker->pair_of[sorted[i].from] = i; /* the first one in the end */
    }
    return FERRY_OK;
}

ferry_status fy_pair_maker_turn(fy_pair_maker *maker, ferry_error *error)
{
    fy_pairs *pairs = maker->pairs;
    FY_TRY(sort_pairs(maker, error));
    for (uint32_t i = 0, first = 0; i < pairs->n_pairs; i++) {
        pairs->pairs[i].first = first;
        first += pairs->pairs[i].n_tasks;
    }
    pairs->tasks = fy_alloc(pairs->n_tasks, sizeof *pairs->tasks);
    maker->origin = fy_alloc(pairs->n_tasks, sizeof *maker->origin);
    return pairs->tasks == NULL || maker->origin == NULL
               ? fy_fail_no_memory(error, "the tasks of a schedule")
               : FERRY_OK;
}

ferry_status fy_pair_maker_put(fy_pair_maker *maker, uint32_t from, uint32_t to,
                               const fy_task *task, fy_hash128 origin, ferry_error *error)
{
    const fy_pairs *pairs = maker->pairs;
    uint32_t *at = &maker->pair_of[from];
    if (*at < pairs->n_pairs && pairs->pairs[*at].to != to) {
        ++*at;
        maker->n_put[from] = 0;
    }
    const fy_pair *pair = *at < pairs->n_pairs ? &pairs->pairs[*at] : NULL;
    if (pair == NULL || pair->from != from || pair->to != to ||
        maker->n_put[from] == pair->n_tasks) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "rank %u has other tasks for rank %u than were counted", from, to);
    }
    uint32_t place = pair->first + maker->n_put[from]++;
    pairs->tasks[place] = *task;
    maker->origin[place] = origin;
    maker->n_all++;
    return FERRY_OK;
}

ferry_status fy_pair_maker_finish(fy_pair_maker *maker, ferry_error *error)
{
    if (maker->n_all != maker->pairs->n_tasks) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "%u tasks between ranks were counted, and %u came", maker->pairs->n_tasks,
                       maker->n_all);
    }
    ferry_status status = fy_contents_find(maker->pairs, maker->origin, maker->n_ids, error);
    fy_free(maker->origin);
    maker->origin = NULL;
    return status == FERRY_OK ? form_all(maker->pairs, error) : status;
}
