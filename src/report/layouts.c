/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds what. Thousands of tensors are placed alike, so a layout is written once: the splits,
 * the tables of holders, and which go together. Of a tensor there is its name and the number of its
 * layout. Shards are not written out: the page makes those of the tensor that is looked at.
 */
#include "report/packed.h"
#include "report/parts.h"

#include "base/alloc.h"
#include "base/index.h"
#include "plan/core.h"

#include <string.h>

/* What is finer than these, or is more than these, is no picture: the page says that it is not
 * shown. */
enum { MOST_PIECES = 4096, MOST_LEGS = 24, MOST_LAYOUTS = 2000, MOST_TENSORS = 1 << 17 };
static const uint64_t MOST_SLOTS = 1 << 21; /* of holders that are written, together */

/* Of the tensors that are written, as the spec has them, and of their layouts. */
typedef struct layout_writer {
    const ferry_plan *plan;
    fy_writer *w;
    ferry_error *error;
    uint32_t *legs; /* [n_legs] by whole tensor, then in their order */
    size_t n_legs;
    fy_index layouts;
    size_t n_layouts;
    size_t *first; /* [n_layouts] place of a layout's first leg among legs */
    size_t *count; /* [n_layouts] its legs */
    size_t first_capacity, count_capacity;
    bool *placements, *splits, *holders; /* that are in use */
    uint64_t n_slots;
    const char *last; /* the name before */
} layout_writer;

static uint32_t whole_of(const layout_writer *l, size_t place)
{
    const fy_leg *leg = &l->plan->routes.legs[l->legs[place]];
    return fy_problem_whole_number(&l->plan->problem, leg->tensor);
}

/* Legs of one whole tensor together: fragments stand behind all tensors. */
static ferry_status sort_legs(layout_writer *l)
{
    const fy_routes *routes = &l->plan->routes;
    const fy_problem *problem = &l->plan->problem;
    size_t *begin = fy_alloc_zeroed((size_t)problem->n_tensors + 1, sizeof *begin);
    l->n_legs = routes->n_legs;
    l->legs = fy_alloc(l->n_legs, sizeof *l->legs);
    if (begin == NULL || l->legs == NULL) {
        fy_free(begin);
        return fy_fail_no_memory(l->error, "the tensors of a report");
    }
    for (size_t i = 0; i < l->n_legs; i++) {
        begin[fy_problem_whole_number(problem, routes->legs[i].tensor) + 1]++;
    }
    for (uint32_t t = 0; t < problem->n_tensors; t++) {
        begin[t + 1] += begin[t];
    }
    for (size_t i = 0; i < l->n_legs; i++) {
        l->legs[begin[fy_problem_whole_number(problem, routes->legs[i].tensor)]++] = (uint32_t)i;
    }
    fy_free(begin);
    return FERRY_OK;
}

/* Where a part of a tensor begins in the whole; NULL: it is the whole. */
static const uint64_t *place_of(const fy_tensor *tensor)
{
    return tensor->fragment == NULL ? NULL : tensor->fragment->at;
}

static uint64_t hash_place(const fy_tensor *tensor, uint64_t hash)
{
    const uint64_t *at = place_of(tensor);
    for (uint32_t d = 0; at != NULL && d < tensor->n_dims; d++) {
        hash = fy_hash_mix(hash, at[d] + 1);
    }
    return hash;
}

static bool same_place(const fy_tensor *a, const fy_tensor *b)
{
    const uint64_t *x = place_of(a), *y = place_of(b);
    return x == NULL || y == NULL ? x == y : memcmp(x, y, a->n_dims * sizeof *x) == 0;
}

static uint64_t hash_legs(const layout_writer *l, size_t first, size_t count)
{
    const fy_tensor *tensors = l->plan->problem.tensors;
    uint64_t hash = count;
    for (size_t i = first; i < first + count; i++) {
        const fy_leg *leg = &l->plan->routes.legs[l->legs[i]];
        hash = fy_hash_mix(hash, leg->route);
        hash = hash_place(&tensors[leg->tensor], hash);
        hash = hash_place(&tensors[leg->source], hash);
    }
    return hash;
}

/* Elements of one size may be of two types. */
static bool is_layout(const layout_writer *l, size_t layout, size_t first, size_t count)
{
    const fy_tensor *tensors = l->plan->problem.tensors;
    if (l->count[layout] != count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const fy_leg *a = &l->plan->routes.legs[l->legs[l->first[layout] + i]];
        const fy_leg *b = &l->plan->routes.legs[l->legs[first + i]];
        if (a->route != b->route || !same_place(&tensors[a->tensor], &tensors[b->tensor]) ||
            !same_place(&tensors[a->source], &tensors[b->source]) ||
            memcmp(&tensors[a->tensor].dtype, &tensors[b->tensor].dtype, sizeof(ferry_dtype)) !=
                0) {
            return false;
        }
    }
    return true;
}

static bool is_fine(const layout_writer *l, uint32_t placement)
{
    const fy_problem *problem = &l->plan->problem;
    const fy_layout *layout = &problem->placements[placement].layout;
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        if (fy_problem_split(problem, layout, d)->n_pieces > MOST_PIECES) {
            return true;
        }
    }
    return layout->n_flat > MOST_PIECES;
}

/* Notes what a placement needs; it counts what was not needed before. */
static void use_placement(layout_writer *l, uint32_t number)
{
    const fy_problem *problem = &l->plan->problem;
    const fy_placement *placement = &problem->placements[number];
    if (l->placements[number]) {
        return;
    }
    l->placements[number] = true;
    for (uint32_t d = 0; d < placement->layout.n_dims; d++) {
        l->splits[placement->layout.split[d]] = true;
    }
    if (!l->holders[placement->holders]) {
        l->holders[placement->holders] = true;
        l->n_slots += problem->holders[placement->holders]->n_slots;
    }
}

/* The number of the layout of these legs, or SIZE_MAX: it is not drawn. */
static ferry_status find_layout(layout_writer *l, size_t first, size_t count, size_t *number_out)
{
    uint64_t hash = hash_legs(l, first, count);
    fy_index_cursor c = fy_index_first(&l->layouts, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&l->layouts, &c)) {
        if (is_layout(l, c.value, first, count)) {
            *number_out = c.value;
            return FERRY_OK;
        }
    }
    *number_out = SIZE_MAX;
    bool drawn = count <= MOST_LEGS && l->n_layouts < MOST_LAYOUTS && l->n_slots < MOST_SLOTS;
    for (size_t i = first; drawn && i < first + count; i++) {
        const fy_route *route = &l->plan->routes.routes[l->plan->routes.legs[l->legs[i]].route];
        drawn = !is_fine(l, route->src) && !is_fine(l, route->dst);
    }
    if (!drawn) {
        return FERRY_OK;
    }
    bool fits = FY_RESERVE(l->first, l->first_capacity, l->n_layouts + 1) &&
                FY_RESERVE(l->count, l->count_capacity, l->n_layouts + 1) &&
                fy_index_insert(&l->layouts, hash, (uint32_t)l->n_layouts);
    FY_TRY(fy_check_memory(fits, "the layouts of a report", l->error));
    for (size_t i = first; i < first + count; i++) {
        const fy_route *route = &l->plan->routes.routes[l->plan->routes.legs[l->legs[i]].route];
        use_placement(l, route->src);
        use_placement(l, route->dst);
    }
    l->first[l->n_layouts] = first;
    l->count[l->n_layouts] = count;
    *number_out = l->n_layouts++;
    return FERRY_OK;
}

/* ---- tensors ---- */

/* Bytes that begin characters: a name is cut between characters only. */
static bool begins(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

/*
 * A name as what it has in common with the one before: so many bytes at the begin and at the end,
 * and what is between them. Names of layers and experts differ in a number.
 */
static void write_name(layout_writer *l, const char *name)
{
    size_t length = strlen(name), before = strlen(l->last);
    size_t most = length < before ? length : before, head = 0, tail = 0;
    while (head < most && name[head] == l->last[head]) {
        head++;
    }
    while (head > 0 && !begins(name[head])) {
        head--;
    }
    while (tail < most - head && name[length - 1 - tail] == l->last[before - 1 - tail]) {
        tail++;
    }
    while (tail > 0 && !begins(name[length - tail])) {
        tail--;
    }
    char *middle = fy_strdup(name + head);
    if (middle != NULL) {
        middle[length - head - tail] = '\0';
        fy_report_number(l->w, "", head);
        fy_write_text(l->w, ",");
        fy_write_string(l->w, middle);
        fy_report_number(l->w, ",", tail);
    }
    l->last = middle == NULL ? NULL : name;
    fy_free(middle);
}

static ferry_status write_tensor(layout_writer *l, size_t first, size_t count, bool is_first)
{
    const fy_tensor *tensors = l->plan->problem.tensors;
    size_t layout = 0;
    FY_TRY(find_layout(l, first, count, &layout));
    uint32_t whole = whole_of(l, first);
    fy_write_text(l->w, is_first ? "\n[" : ",\n[");
    const fy_leg *leg = &l->plan->routes.legs[l->legs[first]];
    write_name(l, fy_problem_whole(&l->plan->problem, leg->tensor)->name);
    FY_TRY(fy_check_memory(l->last != NULL, "a tensor's name", l->error));
    if (layout == SIZE_MAX) {
        fy_write_text(l->w, ",-1");
    } else {
        fy_report_number(l->w, ",", layout);
    }
    bool is_fed = false;
    for (size_t i = first; i < first + count; i++) {
        leg = &l->plan->routes.legs[l->legs[i]];
        is_fed = is_fed || fy_problem_whole_number(&l->plan->problem, leg->source) != whole;
    }
    for (size_t i = first; is_fed && i < first + count && layout != SIZE_MAX; i++) {
        leg = &l->plan->routes.legs[l->legs[i]];
        fy_write_text(l->w, ",");
        fy_write_string(l->w,
                        tensors[fy_problem_whole_number(&l->plan->problem, leg->source)].name);
    }
    fy_write_text(l->w, "]");
    return FERRY_OK;
}

static ferry_status write_tensors(layout_writer *l)
{
    size_t n = 0, left = 0;
    fy_write_text(l->w, ",\n\"names\":[");
    for (size_t first = 0; first < l->n_legs;) {
        size_t end = first + 1;
        while (end < l->n_legs && whole_of(l, end) == whole_of(l, first)) {
            end++;
        }
        if (n < MOST_TENSORS) {
            FY_TRY(write_tensor(l, first, end - first, n == 0));
            n++;
        } else {
            left++;
        }
        first = end;
    }
    fy_report_number(l->w, "],\"names_left\":", left);
    return FERRY_OK;
}

/* ---- layouts and what they are made of ---- */

static void write_at(fy_writer *w, const fy_tensor *tensor)
{
    fy_report_numbers(w, ",", place_of(tensor), place_of(tensor) == NULL ? 0 : tensor->n_dims);
}

/* In the order in which page.html reads them. */
static void write_leg(layout_writer *l, const fy_leg *leg)
{
    const fy_problem *problem = &l->plan->problem;
    const fy_route *route = &l->plan->routes.routes[leg->route];
    const fy_tensor *source = &problem->tensors[leg->source];
    fy_report_number(l->w, "[", route->src);
    write_at(l->w, source);
    const fy_tensor *whole = fy_problem_whole(problem, leg->source);
    fy_report_numbers(l->w, ",", whole->shape, whole->n_dims);
    fy_report_number(l->w, ",", route->dst);
    write_at(l->w, &problem->tensors[leg->tensor]);
    fy_report_number(l->w, ",", route->src_pad);
    fy_report_number(l->w, ",", route->dst_pad);
    fy_report_numbers(l->w, ",", route->src_begin, route->n_dims);
    fy_report_numbers(l->w, ",", route->dst_begin, route->n_dims);
    fy_report_numbers(l->w, ",", route->length, route->n_dims);
    fy_write_text(l->w, "]");
}

static void write_type(fy_writer *w, const char *before, ferry_dtype dtype)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(dtype, text, sizeof text);
    fy_write_text(w, before);
    fy_write_string(w, text);
}

static void write_layouts(layout_writer *l)
{
    const fy_problem *problem = &l->plan->problem;
    fy_write_text(l->w, ",\n\"layouts\":[");
    for (size_t i = 0; i < l->n_layouts; i++) {
        const fy_leg *leg = &l->plan->routes.legs[l->legs[l->first[i]]];
        const fy_tensor *whole = fy_problem_whole(problem, leg->tensor);
        fy_write_text(l->w, i == 0 ? "\n{" : ",\n{");
        fy_report_numbers(l->w, "\"shape\":", whole->shape, whole->n_dims);
        write_type(l->w, ",\"from\":", problem->tensors[leg->source].dtype);
        write_type(l->w, ",\"to\":", fy_tensor_wanted(&problem->tensors[leg->tensor]));
        fy_write_text(l->w, ",\"legs\":[");
        for (size_t k = 0; k < l->count[i]; k++) {
            fy_write_text(l->w, k == 0 ? "" : ",");
            write_leg(l, &l->plan->routes.legs[l->legs[l->first[i] + k]]);
        }
        fy_write_text(l->w, "]}");
    }
    fy_write_text(l->w, "]");
}

/* The key of one that is used: a JSON object's member. */
static void write_key(fy_writer *w, size_t number, bool *any)
{
    fy_report_number(w, *any ? ",\n\"" : "\n\"", number);
    fy_write_text(w, "\":");
    *any = true;
}

static void write_splits(layout_writer *l)
{
    bool any = false;
    fy_write_text(l->w, ",\n\"splits\":{");
    for (size_t i = 0; i < l->plan->problem.n_splits; i++) {
        const fy_split *split = l->plan->problem.splits[i];
        if (!l->splits[i]) {
            continue;
        }
        write_key(l->w, i, &any);
        fy_report_number(l->w, "[", split->n_parts);
        for (size_t k = 0; k < split->n_pieces; k++) {
            const fy_piece *piece = &split->pieces[k];
            fy_report_number(l->w, ",", piece->global);
            fy_report_number(l->w, ",", piece->length);
            fy_report_number(l->w, ",", piece->part);
            fy_report_number(l->w, ",", piece->n_owners);
        }
        fy_write_text(l->w, "]");
    }
    fy_write_text(l->w, "}");
}

static void write_placements(layout_writer *l)
{
    bool any = false;
    fy_write_text(l->w, ",\n\"placements\":{");
    for (size_t i = 0; i < l->plan->problem.n_placements; i++) {
        const fy_placement *placement = &l->plan->problem.placements[i];
        const fy_layout *layout = &placement->layout;
        uint64_t splits[FERRY_MAX_DIMS];
        if (!l->placements[i]) {
            continue;
        }
        for (uint32_t d = 0; d < layout->n_dims; d++) {
            splits[d] = layout->split[d];
        }
        write_key(l->w, i, &any);
        fy_report_number(l->w, "[", placement->holders);
        fy_report_numbers(l->w, ",", layout->shape, layout->n_dims);
        fy_report_numbers(l->w, ",", splits, layout->n_dims);
        fy_report_number(l->w, ",", layout->n_flat);
        fy_report_numbers(l->w, ",", layout->flat_begin,
                          layout->flat_begin == NULL ? 0 : (size_t)layout->n_flat + 1);
        fy_write_text(l->w, "]");
    }
    fy_write_text(l->w, "}");
}

/* Of each cell: how many runs; of each run the step from the last rank, the stride, how many. */
static void pack_holders(fy_packed *packed, const fy_holders *holders)
{
    for (uint32_t c = 0; c < holders->n_cells; c++) {
        const uint32_t *rank = &holders->rank[holders->cell_begin[c]];
        uint32_t n = fy_holders_cell_size(holders, c), n_runs = 0, last = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (uint32_t i = 0; i < n;) {
                uint32_t stride = i + 1 < n ? rank[i + 1] - rank[i] : 1, end = i + 1;
                while (end < n && rank[end] - rank[end - 1] == stride) {
                    end++;
                }
                if (pass == 0) {
                    n_runs++;
                } else {
                    fy_packed_add(packed, rank[i] - last);
                    fy_packed_add(packed, stride);
                    fy_packed_add(packed, end - i);
                    last = rank[end - 1];
                }
                i = end;
            }
            if (pass == 0) {
                fy_packed_add(packed, n_runs);
            }
        }
    }
}

static ferry_status write_holders(layout_writer *l)
{
    bool any = false;
    ferry_status status = FERRY_OK;
    fy_write_text(l->w, ",\n\"holders\":{");
    for (size_t i = 0; i < l->plan->problem.n_holders && status == FERRY_OK; i++) {
        fy_packed packed = {0};
        if (l->holders[i]) {
            write_key(l->w, i, &any);
            pack_holders(&packed, l->plan->problem.holders[i]);
            status = fy_packed_write(&packed, l->w, "", l->error);
        }
    }
    fy_write_text(l->w, "}");
    return status;
}

ferry_status fy_report_write_layouts(const ferry_plan *plan, fy_writer *writer, ferry_error *error)
{
    const fy_problem *problem = &plan->problem;
    layout_writer l = {.plan = plan, .w = writer, .error = error, .last = ""};
    l.placements = fy_alloc_zeroed(problem->n_placements + 1, sizeof *l.placements);
    l.splits = fy_alloc_zeroed(problem->n_splits + 1, sizeof *l.splits);
    l.holders = fy_alloc_zeroed(problem->n_holders + 1, sizeof *l.holders);
    ferry_status status =
        fy_check_memory(l.placements != NULL && l.splits != NULL && l.holders != NULL,
                        "the layouts of a report", error);
    FY_THEN(status, sort_legs(&l));
    FY_THEN(status, write_tensors(&l));
    if (status == FERRY_OK) {
        write_layouts(&l);
        write_placements(&l);
        write_splits(&l);
        status = write_holders(&l);
    }
    fy_index_cleanup(&l.layouts);
    fy_free(l.legs);
    fy_free(l.first);
    fy_free(l.count);
    fy_free(l.placements);
    fy_free(l.splits);
    fy_free(l.holders);
    return status;
}
