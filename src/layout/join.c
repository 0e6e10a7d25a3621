/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/join.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "layout/hulls.h"

#include <string.h>

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Dimensions that are not used are zero, so all may be compared. */
static int compare_begins(const void *a, const void *b)
{
    const fy_box *x = a, *y = b;
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        if (x->begin[d] != y->begin[d]) {
            return x->begin[d] < y->begin[d] ? -1 : 1;
        }
    }
    return 0;
}

/* A box and where it stands in a row of boxes along the dimension at work. */
typedef struct beside {
    fy_box across; /* all but the dimension: alike in a row */
    uint64_t begin, length;
} beside;

static int compare_beside(const void *a, const void *b)
{
    const beside *x = a, *y = b;
    int across = compare_begins(&x->across, &y->across);
    for (uint32_t d = 0; across == 0 && d < FERRY_MAX_DIMS; d++) {
        across = compare_u64(&x->across.length[d], &y->across.length[d]);
    }
    return across != 0 ? across : compare_u64(&x->begin, &y->begin);
}

static bool follows(const beside *a, const beside *b)
{
    return a->begin + a->length == b->begin &&
           memcmp(a->across.begin, b->across.begin, sizeof a->across.begin) == 0 &&
           memcmp(a->across.length, b->across.length, sizeof a->across.length) == 0;
}

/* Joins the boxes that are one behind the other on a dimension and else alike. */
static void join_rows(fy_boxes *boxes, uint32_t d, beside *rows)
{
    size_t n = 0;
    for (size_t i = 0; i < boxes->n; i++) {
        fy_box *box = &boxes->items[i];
        rows[i] = (beside){.across = *box, .begin = box->begin[d], .length = box->length[d]};
        rows[i].across.begin[d] = rows[i].across.length[d] = 0;
    }
    fy_sort(rows, boxes->n, sizeof *rows, compare_beside);
    for (size_t i = 0; i < boxes->n; i++) {
        if (n > 0 && follows(&rows[n - 1], &rows[i])) {
            rows[n - 1].length += rows[i].length;
        } else {
            rows[n++] = rows[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        boxes->items[i] = rows[i].across;
        boxes->items[i].begin[d] = rows[i].begin;
        boxes->items[i].length[d] = rows[i].length;
    }
    boxes->n = n;
}

/* What most unions come to: few boxes, of which no two are one. */
static ferry_status join_pairs(fy_boxes *boxes, uint32_t n_dims, ferry_error *error)
{
    beside *rows = fy_alloc(boxes->n, sizeof *rows);
    FY_TRY(fy_check_memory(rows != NULL, "boxes that are joined", error));
    for (uint32_t sweep = 0; sweep <= n_dims; sweep++) {
        size_t before = boxes->n;
        for (uint32_t d = n_dims; d-- > 0 && boxes->n > 1;) {
            join_rows(boxes, d, rows);
        }
        if (boxes->n == before) {
            break;
        }
    }
    fy_free(rows);
    return FERRY_OK;
}

typedef struct touching {
    const fy_boxes *boxes;
    uint32_t n_dims;
    uint32_t *parent; /* of each box; its own: the first of those that are connected */
    uint32_t at;
} touching;

static uint32_t first_of(uint32_t *parent, uint32_t box)
{
    while (parent[box] != box) {
        parent[box] = parent[parent[box]];
        box = parent[box];
    }
    return box;
}

/* Whether they have a piece of a face in common: not an edge or a corner only. */
static bool touches(const fy_box *a, const fy_box *b, uint32_t n_dims)
{
    uint32_t n_beside = 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t begin = fy_max(a->begin[d], b->begin[d]);
        uint64_t end = fy_min(a->begin[d] + a->length[d], b->begin[d] + b->length[d]);
        n_beside += begin >= end;
    }
    return n_beside == 1; /* visited because a margin of one reaches it */
}

static bool connect(void *context, size_t box)
{
    touching *t = context;
    uint32_t a = first_of(t->parent, t->at), b = first_of(t->parent, (uint32_t)box);
    if (a != b && touches(&t->boxes->items[t->at], &t->boxes->items[box], t->n_dims)) {
        t->parent[a > b ? a : b] = a > b ? b : a;
    }
    return true;
}

static ferry_status connect_all(touching *t, ferry_error *error)
{
    fy_hulls *hulls = fy_hulls_create(t->boxes->items, t->boxes->n, t->n_dims);
    FY_TRY(fy_check_memory(hulls != NULL, "boxes that are joined", error));
    for (t->at = 0; t->at < t->boxes->n; t->at++) {
        fy_box area = t->boxes->items[t->at];
        for (uint32_t d = 0; d < t->n_dims; d++) {
            uint64_t margin = area.begin[d] > 0;
            area.begin[d] -= margin;
            area.length[d] += margin + 1;
        }
        fy_hulls_visit(hulls, &area, connect, t);
    }
    fy_hulls_destroy(hulls);
    return FERRY_OK;
}

/*
 * Of one dimension: where any box begins or ends, the union across is looked at anew, in the
 * dimensions behind. What is the same as before goes on, what is not has ended.
 */
typedef struct sweep_level {
    fy_boxes done, open, next;
    const fy_box **sorted; /* by where they begin */
    const fy_box **active;
    uint64_t *stops;
    size_t capacity;
} sweep_level;

typedef struct sweeping {
    uint32_t n_dims;
    uint64_t n_looks;
    sweep_level level[FERRY_MAX_DIMS + 1];
} sweeping;

static ferry_status push(fy_boxes *boxes, const fy_box *box, ferry_error *error)
{
    FY_TRY(FY_GROW(boxes->items, boxes->capacity, boxes->n + 1, "boxes that are joined", error));
    boxes->items[boxes->n++] = *box;
    return FERRY_OK;
}

static bool level_reserve(sweep_level *level, size_t n)
{
    if (n <= level->capacity) {
        return true;
    }
    fy_free(level->sorted);
    fy_free(level->active);
    fy_free(level->stops);
    level->capacity = n;
    level->sorted = fy_alloc(n, sizeof *level->sorted);
    level->active = fy_alloc(n, sizeof *level->active);
    level->stops = fy_alloc(n, 2 * sizeof *level->stops);
    return level->sorted != NULL && level->active != NULL && level->stops != NULL;
}

static ferry_status close_box(sweep_level *level, uint32_t d, fy_box box, uint64_t stop,
                              ferry_error *error)
{
    box.length[d] = stop - box.begin[d];
    return push(&level->done, &box, error);
}

/* In the dimensions behind d; those before it are zero, and d itself is where it was opened. */
static int compare_across(const fy_box *a, const fy_box *b, uint32_t d)
{
    for (uint32_t k = d + 1; k < FERRY_MAX_DIMS; k++) {
        int order = compare_u64(&a->begin[k], &b->begin[k]);
        if (order != 0) {
            return order;
        }
    }
    for (uint32_t k = d + 1; k < FERRY_MAX_DIMS; k++) {
        int order = compare_u64(&a->length[k], &b->length[k]);
        if (order != 0) {
            return order;
        }
    }
    return 0;
}

/* At a stop: what is across now, in order, beside what is open, in order. */
static ferry_status pass_stop(sweeping *s, uint32_t d, const fy_boxes *across, uint64_t stop,
                              ferry_error *error)
{
    sweep_level *level = &s->level[d];
    size_t i = 0, j = 0;
    level->next.n = 0;
    s->n_looks += level->open.n + across->n;
    while (i < level->open.n || j < across->n) {
        int order = i == level->open.n ? 1
                    : j == across->n   ? -1
                                     : compare_across(&level->open.items[i], &across->items[j], d);
        if (order < 0) {
            FY_TRY(close_box(level, d, level->open.items[i++], stop, error));
            continue;
        }
        fy_box box = order == 0 ? level->open.items[i] : across->items[j];
        box.begin[d] = order == 0 ? box.begin[d] : stop;
        FY_TRY(push(&level->next, &box, error));
        i += order == 0;
        j++;
    }
    fy_boxes open = level->open;
    level->open = level->next;
    level->next = open;
    return FERRY_OK;
}

static ferry_status sweep(sweeping *s, uint32_t d, const fy_box *const *boxes, size_t n,
                          ferry_error *error);

/* What is across at a stop: the union of the boxes that are there, in the dimensions behind. */
static ferry_status look_across(sweeping *s, uint32_t d, size_t n_active, ferry_error *error)
{
    fy_boxes *across = &s->level[d + 1].done;
    across->n = 0;
    s->n_looks += n_active + 1;
    if (s->n_looks > FY_JOIN_WORK) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "the boxes are cut too finely: they join to none in %d looks", FY_JOIN_WORK);
    }
    if (n_active == 0) {
        return FERRY_OK;
    }
    if (n_active == 1 || d + 1 == s->n_dims) {
        fy_box box = {{0}, {0}};
        for (uint32_t k = d + 1; k < s->n_dims; k++) {
            box.begin[k] = s->level[d].active[0]->begin[k];
            box.length[k] = s->level[d].active[0]->length[k];
        }
        return push(across, &box, error);
    }
    return sweep(s, d + 1, s->level[d].active, n_active, error);
}

static size_t list_stops(sweep_level *level, const fy_box *const *boxes, size_t n, uint32_t d)
{
    size_t n_stops = 0;
    for (size_t i = 0; i < n; i++) {
        level->sorted[i] = boxes[i];
        level->stops[n_stops++] = boxes[i]->begin[d];
        level->stops[n_stops++] = boxes[i]->begin[d] + boxes[i]->length[d];
    }
    fy_sort(level->stops, n_stops, sizeof *level->stops, compare_u64);
    size_t n_kept = 0;
    for (size_t i = 0; i < n_stops; i++) {
        if (n_kept == 0 || level->stops[n_kept - 1] != level->stops[i]) {
            level->stops[n_kept++] = level->stops[i];
        }
    }
    return n_kept;
}

/* qsort takes no context: a comparator for each dimension. */
#define COMPARE_DIM(d)                                                                             \
    static int compare_dim_##d(const void *a, const void *b)                                       \
    {                                                                                              \
        return compare_u64(&(*(const fy_box *const *)a)->begin[d],                                 \
                           &(*(const fy_box *const *)b)->begin[d]);                                \
    }
COMPARE_DIM(0)
COMPARE_DIM(1)
COMPARE_DIM(2)
COMPARE_DIM(3)
COMPARE_DIM(4)
COMPARE_DIM(5)
COMPARE_DIM(6)
COMPARE_DIM(7)
_Static_assert(FERRY_MAX_DIMS == 8, "one for each dimension");

static int (*const compare_dim[FERRY_MAX_DIMS])(const void *, const void *) = {
    compare_dim_0, compare_dim_1, compare_dim_2, compare_dim_3,
    compare_dim_4, compare_dim_5, compare_dim_6, compare_dim_7};

/* Leaves the union, in order, in the level's done. As deep as there are dimensions. */
static ferry_status sweep(sweeping *s, uint32_t d, const fy_box *const *boxes, size_t n,
                          ferry_error *error)
{
    sweep_level *level = &s->level[d];
    FY_TRY(fy_check_memory(level_reserve(level, n), "boxes that are joined", error));
    size_t n_stops = list_stops(level, boxes, n, d), n_active = 0, n_begun = 0;
    level->done.n = level->open.n = 0;
    fy_sort(level->sorted, n, sizeof *level->sorted, compare_dim[d]);
    for (size_t i = 0; i < n_stops; i++) {
        uint64_t stop = level->stops[i];
        size_t n_left = 0;
        for (size_t k = 0; k < n_active; k++) {
            if (level->active[k]->begin[d] + level->active[k]->length[d] > stop) {
                level->active[n_left++] = level->active[k];
            }
        }
        n_active = n_left;
        while (n_begun < n && level->sorted[n_begun]->begin[d] == stop) {
            level->active[n_active++] = level->sorted[n_begun++];
        }
        FY_TRY(look_across(s, d, n_active, error));
        FY_TRY(pass_stop(s, d, &s->level[d + 1].done, stop, error));
    }
    fy_sort(level->done.items, level->done.n, sizeof *level->done.items, compare_begins);
    return FERRY_OK;
}

static void sweeping_cleanup(sweeping *s)
{
    for (uint32_t d = 0; d <= FERRY_MAX_DIMS; d++) {
        fy_free(s->level[d].done.items);
        fy_free(s->level[d].open.items);
        fy_free(s->level[d].next.items);
        fy_free(s->level[d].sorted);
        fy_free(s->level[d].active);
        fy_free(s->level[d].stops);
    }
}

typedef struct member {
    uint32_t first, box;
} member;

static int compare_members(const void *a, const void *b)
{
    const member *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1)
                                : (x->box > y->box) - (x->box < y->box);
}

/* The connected boxes of `members`, which are n, as the boxes that their union is made of. */
static ferry_status join_connected(sweeping *s, const fy_boxes *from, const member *members,
                                   size_t n, const fy_box **pointers, fy_boxes *to,
                                   ferry_error *error)
{
    if (n == 1) {
        return push(to, &from->items[members[0].box], error);
    }
    for (size_t i = 0; i < n; i++) {
        pointers[i] = &from->items[members[i].box];
    }
    FY_TRY(sweep(s, 0, pointers, n, error));
    for (size_t i = 0; i < s->level[0].done.n; i++) {
        FY_TRY(push(to, &s->level[0].done.items[i], error));
    }
    return FERRY_OK;
}

static ferry_status join_members(fy_boxes *boxes, uint32_t n_dims, const member *members,
                                 fy_boxes *joined, ferry_error *error)
{
    sweeping s = {.n_dims = n_dims};
    const fy_box **pointers = fy_alloc(boxes->n, sizeof *pointers);
    ferry_status status = fy_check_memory(pointers != NULL, "boxes that are joined", error);
    for (size_t i = 0, end; i < boxes->n && status == FERRY_OK; i = end) {
        for (end = i + 1; end < boxes->n && members[end].first == members[i].first; end++) {}
        status = join_connected(&s, boxes, &members[i], end - i, pointers, joined, error);
    }
    sweeping_cleanup(&s);
    fy_free(pointers);
    return status;
}

static ferry_status join_touching(fy_boxes *boxes, uint32_t n_dims, ferry_error *error)
{
    touching t = {.boxes = boxes, .n_dims = n_dims};
    fy_boxes joined = {0};
    t.parent = fy_alloc(boxes->n, sizeof *t.parent);
    member *members = fy_alloc(boxes->n, sizeof *members);
    ferry_status status =
        fy_check_memory(t.parent != NULL && members != NULL, "boxes that are joined", error);
    for (uint32_t i = 0; i < boxes->n && status == FERRY_OK; i++) {
        t.parent[i] = i;
    }
    FY_THEN(status, connect_all(&t, error));
    for (uint32_t i = 0; i < boxes->n && status == FERRY_OK; i++) {
        members[i] = (member){.first = first_of(t.parent, i), .box = i};
    }
    if (status == FERRY_OK) {
        fy_sort(members, boxes->n, sizeof *members, compare_members);
        status = join_members(boxes, n_dims, members, &joined, error);
    }
    fy_free(t.parent);
    fy_free(members);
    if (status != FERRY_OK) {
        fy_free(joined.items);
        return status;
    }
    fy_free(boxes->items);
    *boxes = joined;
    return FERRY_OK;
}

ferry_status fy_boxes_join(fy_boxes *boxes, uint32_t n_dims, ferry_error *error)
{
    if (boxes->n > 1) {
        FY_TRY(join_pairs(boxes, n_dims, error));
    }
    if (boxes->n > 1) {
        FY_TRY(join_touching(boxes, n_dims, error));
        fy_sort(boxes->items, boxes->n, sizeof *boxes->items, compare_begins);
    }
    return FERRY_OK;
}
