/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Where on each line one sender takes over from another. Each set's shares are laid onto each of
 * its lines in proportion, so all layout classes pass the same senders in the same order and a
 * receiver has few peers. A take-over falls between units where that costs the balance little;
 * otherwise it cuts a unit, at the coarsest row, plane or block that is fine enough.
 */
#include "plan/core.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

/* Of a sender's load, what rounding may add or take at one end of its stretches. */
static const double ROUNDING = 0.005;

/* A stretch of the line that its own holder wants: it does not travel and no sender is charged. */
typedef struct hole {
    uint64_t begin;
    uint64_t length;
    uint64_t before; /* the lengths of earlier holes */
} hole;

typedef struct drawing {
    ferry_plan *plan;
    const fy_route *route;
    fy_span span;
    fy_line *line;
    uint32_t set;
    uint32_t n; /* senders */
    const uint32_t *senders;
    const double *shares;
    hole *holes;
    size_t n_holes, hole_capacity;
    uint64_t travelling; /* elements of the line outside of holes */
    double budget;       /* elements by which an end may be off */
    fy_atoms atoms;      /* of the unit at work */
    uint64_t *atom_index;
    size_t atom_capacity;
    double level;   /* bytes of the busiest sender */
    double *excess; /* [ranks] bytes that rounding has given a sender so far, or taken */
    double *wanted; /* [n] elements that each sender is to get of this line */
    size_t wanted_capacity;
    uint32_t *ordered_senders;
    double *ordered_shares;
    size_t sender_capacity, share_capacity;
} drawing;

static void drawing_cleanup(drawing *d)
{
    fy_free(d->holes);
    fy_free(d->atom_index);
    fy_free(d->excess);
    fy_free(d->wanted);
    fy_free(d->ordered_senders);
    fy_free(d->ordered_shares);
    fy_atoms_cleanup(&d->atoms);
}

static int compare_holes(const void *a, const void *b)
{
    uint64_t x = ((const hole *)a)->begin, y = ((const hole *)b)->begin;
    return (x > y) - (x < y);
}

static ferry_status find_holes(drawing *d, ferry_error *error)
{
    const fy_holders *dst = fy_route_dst_holders(&d->plan->routes, d->route);
    d->n_holes = 0;
    d->travelling = d->span.length;
    if (!fy_route_may_be_local(&d->plan->routes, d->route)) {
        return FERRY_OK;
    }
    FY_TRY(FY_GROW(d->holes, d->hole_capacity, d->n, "the self moves of a shard", error));
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t slot = fy_holders_find(dst, d->senders[i]);
        if (slot == FY_NO_SLOT) {
            continue;
        }
        uint64_t volume;
        uint64_t begin = fy_span_begin(d->plan, &d->span, slot, &volume);
        if (volume > 0) {
            d->holes[d->n_holes++] = (hole){.begin = begin, .length = volume * d->span.n_units};
            d->travelling -= volume * d->span.n_units;
        }
    }
    fy_sort(d->holes, d->n_holes, sizeof *d->holes, compare_holes);
    for (size_t i = 1; i < d->n_holes; i++) {
        d->holes[i].before = d->holes[i - 1].before + d->holes[i - 1].length;
    }
    return FERRY_OK;
}

/* Elements before a position that travel. */
static uint64_t travelling_before(const drawing *d, uint64_t position)
{
    FY_BISECT(size_t, low, 0, d->n_holes, middle, d->holes[middle].begin < position);
    if (low == 0) {
        return position;
    }
    const hole *last = &d->holes[low - 1];
    return position - last->before - fy_min(last->length, position - last->begin);
}

/*
 * The order in which senders take over. With nodes, a sender is moved towards the place where
 * receivers of its own node stand: each located sender waits until the line has come to its place,
 * and those without receivers at home fill the gaps.
 */
typedef struct located {
    uint64_t at; /* UINT64_MAX: nobody at home wants anything */
    uint32_t member;
} located;

static int compare_located(const void *a, const void *b)
{
    const located *x = a, *y = b;
    if (x->at != y->at) {
        return x->at < y->at ? -1 : 1;
    }
    return (x->member > y->member) - (x->member < y->member);
}

/* Where the first rank of a node that wants something stands: near enough to the others of its
 * node. */
static uint64_t place_of_node(const drawing *d, uint32_t node)
{
    const fy_cluster *cluster = &d->plan->problem.cluster;
    const fy_holders *dst = fy_route_dst_holders(&d->plan->routes, d->route);
    uint64_t first = (uint64_t)node * cluster->ranks_per_node;
    uint64_t last = fy_min(first + cluster->ranks_per_node - 1, dst->last_rank);
    for (uint64_t rank = fy_max(first, dst->first_rank); rank <= last; rank++) {
        uint32_t slot = fy_holders_find(dst, (uint32_t)rank);
        uint64_t volume = 0, begin = 0;
        if (slot != FY_NO_SLOT) {
            begin = fy_span_begin(d->plan, &d->span, slot, &volume);
        }
        if (volume > 0) {
            return begin;
        }
    }
    return UINT64_MAX;
}

static void merge_located(drawing *d, const located *order, uint32_t n_located)
{
    double total = 0, done = 0;
    uint32_t home = 0, away = n_located;
    for (uint32_t i = 0; i < d->n; i++) {
        total += d->shares[i];
    }
    for (uint32_t i = 0; i < d->n; i++) {
        double at = total > 0 ? done / total * (double)d->span.length : 0;
        bool take_home =
            home < n_located && (away == d->n || (double)order[home].at <= at * (1 + 1e-9));
        uint32_t member = order[take_home ? home++ : away++].member;
        d->ordered_senders[i] = d->senders[member];
        d->ordered_shares[i] = d->shares[member];
        done += d->shares[member];
    }
    d->senders = d->ordered_senders;
    d->shares = d->ordered_shares;
}

static ferry_status order_by_node(drawing *d, ferry_error *error)
{
    const fy_cluster *cluster = &d->plan->problem.cluster;
    if (!cluster->present ||
        fy_node_of(cluster, d->senders[0]) == fy_node_of(cluster, d->senders[d->n - 1])) {
        return FERRY_OK; /* members ascend: all on one node */
    }
    located *order = fy_alloc(d->n, sizeof *order);
    if (order == NULL || !FY_RESERVE(d->ordered_senders, d->sender_capacity, d->n) ||
        !FY_RESERVE(d->ordered_shares, d->share_capacity, d->n)) {
        fy_free(order);
        return fy_fail_no_memory(error, "the order of senders");
    }
    uint32_t n_located = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t node = fy_node_of(cluster, d->senders[i]);
        bool same = i > 0 && fy_node_of(cluster, d->senders[i - 1]) == node;
        order[i] = (located){.at = same ? order[i - 1].at : place_of_node(d, node), .member = i};
        n_located += order[i].at != UINT64_MAX;
    }
    fy_sort(order, d->n, sizeof *order, compare_located);
    merge_located(d, order, n_located);
    fy_free(order);
    return FERRY_OK;
}

static double distance(double a, double b)
{
    return a < b ? b - a : a - b;
}

/* The same of what is quantized: whole matrices, or if they have many, whole rows of blocks. */
static uint64_t block_granule_of(const drawing *d, const fy_atom *atom)
{
    uint32_t n = d->route->n_dims;
    uint64_t inner = atom->volume, rows = atom->length[n - 2];
    for (uint32_t k = 0; k + 2 < n; k++) {
        inner /= atom->length[k];
        if ((double)inner <= d->budget) {
            return inner;
        }
    }
    /* Rows of blocks are at the same places of every matrix only if these have whole ones. */
    if (n == 2 || rows % d->route->block_rows == 0) {
        inner = fy_min(inner, atom->length[n - 1] * d->route->block_rows);
    }
    return inner;
}

/* The elements that a cut inside a box must be a multiple of: whole rows if that is fine enough. */
static uint64_t granule_of(const drawing *d, const fy_atom *atom)
{
    uint32_t bits = d->route->element_bits;
    uint64_t inner = atom->volume, best = atom->volume;
    if (d->route->block_rows != 0) {
        return block_granule_of(d, atom);
    }
    if (bits % 8 != 0 && d->plan->has_odd_bytes) {
        return best; /* bytes lie in memory as they like */
    }
    for (uint32_t k = 0; k < d->route->n_dims; k++) {
        inner /= atom->length[k];
        if (inner * bits % 8 != 0) {
            break;
        }
        best = inner;
        if ((double)inner <= d->budget) {
            return inner;
        }
    }
    if (bits % 8 != 0 && d->route->n_dims > 0 &&
        (d->route->n_dims == 1 || atom->length[d->route->n_dims - 1] % 2 == 0)) {
        best = fy_min(best, 2); /* two elements of four bits */
    }
    return best;
}

/* Moves a cut inside a unit to a good place: between boxes, or at a row of one. */
static ferry_status settle_inside(drawing *d, const fy_unit_place *place, uint64_t *offset_inout,
                                  ferry_error *error)
{
    const fy_holders *dst = fy_route_dst_holders(&d->plan->routes, d->route);
    uint64_t offset = *offset_inout, begin = 0;
    ferry_status status =
        fy_route_list_cell_atoms(&d->plan->routes, d->route, d->span.cell, dst->cell[place->slot],
                                 &d->atoms, &d->atom_index, &d->atom_capacity, error);
    for (size_t i = 0; status == FERRY_OK && i < d->atoms.n_items; i++) {
        const fy_atom *atom = &d->atoms.items[i];
        if (offset >= begin + atom->volume) {
            begin += atom->volume;
            continue;
        }
        uint64_t inside = offset - begin;
        uint64_t nearest = inside * 2 < atom->volume ? 0 : atom->volume;
        uint64_t granule = granule_of(d, atom);
        if (distance((double)inside, (double)nearest) > d->budget) {
            nearest = fy_min((inside + granule / 2) / granule * granule, atom->volume);
        }
        *offset_inout = begin + nearest;
        break;
    }
    return status;
}

/* Rounds a take-over to a place that makes few extra boxes. */
static ferry_status settle_end(drawing *d, uint64_t position, uint64_t *end_out, ferry_error *error)
{
    if (position >= d->span.length) {
        *end_out = d->span.length;
        return FERRY_OK;
    }
    fy_unit_place place = fy_span_locate(d->plan, &d->span, position);
    uint64_t offset = position - place.begin;
    uint64_t nearest = offset * 2 < place.volume ? 0 : place.volume;
    ferry_status status = FERRY_OK;
    if (distance((double)offset, (double)nearest) <= d->budget) {
        offset = nearest;
    } else {
        status = settle_inside(d, &place, &offset, error);
    }
    *end_out = place.begin + offset;
    return status;
}

/* From a count of travelling elements to a position among holes. */
static uint64_t position_of(const drawing *d, uint64_t travelling, size_t *next_hole,
                            uint64_t *skipped)
{
    while (*next_hole < d->n_holes && d->holes[*next_hole].begin < travelling + *skipped) {
        *skipped += d->holes[(*next_hole)++].length;
    }
    return travelling + *skipped;
}

/*
 * An end may be off by half a percent of what the sender sends on this line, or of the busiest
 * sender's load shared among the lines of the set: either way the sum stays small.
 */
static double budget_of(const drawing *d)
{
    double bytes_per_element = d->route->element_bits / 8.0;
    double own = ROUNDING * (double)d->travelling / d->n;
    double world = ROUNDING * d->level / bytes_per_element / d->plan->sets.n_lines[d->set];
    return own > world ? own : world;
}

/*
 * A sender gets its share of the line, less what rounding has given it too much on earlier lines:
 * so errors do not add up, however many small lines a sender takes part in. Returns the sum.
 */
static double want_shares(drawing *d)
{
    double bytes_per_element = d->route->element_bits / 8.0;
    double shares = 0, sum = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        shares += d->shares[i];
    }
    for (uint32_t i = 0; i < d->n; i++) {
        double part = shares > 0 ? d->shares[i] / shares : 1.0 / d->n;
        double wanted = (double)d->travelling * part;
        wanted -= d->excess[d->senders[i]] / bytes_per_element;
        d->wanted[i] = wanted > 0 ? wanted : 0;
        sum += d->wanted[i];
    }
    return sum;
}

static ferry_status place_ends(drawing *d, ferry_error *error)
{
    fy_lines *lines = &d->plan->lines;
    double done = 0;
    size_t next_hole = 0;
    uint64_t skipped = 0, last = 0;
    if (!FY_RESERVE(lines->end, lines->end_capacity, lines->n_ends + d->n) ||
        !FY_RESERVE(lines->sender, lines->sender_capacity, lines->n_ends + d->n) ||
        !FY_RESERVE(d->wanted, d->wanted_capacity, d->n)) {
        return fy_fail_no_memory(error, "the senders of a shard");
    }
    double total = want_shares(d);
    *d->line = (fy_line){.first = lines->n_ends, .n = d->n};
    for (uint32_t i = 0; i < d->n; i++) {
        done += d->wanted[i];
        double part = total > 0 ? done / total : (double)(i + 1) / d->n;
        uint64_t end = d->span.length;
        if (i + 1 < d->n) {
            uint64_t travelling = (uint64_t)((double)d->travelling * part + 0.5);
            travelling = fy_min(travelling, d->travelling);
            FY_TRY(settle_end(d, position_of(d, travelling, &next_hole, &skipped), &end, error));
            end = fy_max(end, last);
        }
        lines->end[lines->n_ends] = end;
        lines->sender[lines->n_ends++] = d->senders[i];
        last = end;
    }
    return FERRY_OK;
}

/* Boxes that the ends inside one unit add. */
static ferry_status count_extra(drawing *d, const fy_unit_place *place, uint32_t *count_out,
                                ferry_error *error)
{
    const fy_holders *dst = fy_route_dst_holders(&d->plan->routes, d->route);
    const fy_lines *lines = &d->plan->lines;
    uint64_t begin = place->begin;
    size_t boxes = 0;
    fy_box scratch[FY_MAX_RANGE_BOXES];
    FY_TRY(fy_route_list_cell_atoms(&d->plan->routes, d->route, d->span.cell,
                                    dst->cell[place->slot], &d->atoms, &d->atom_index,
                                    &d->atom_capacity, error));
    for (size_t i = 0; i < d->atoms.n_items; i++) {
        const fy_atom *atom = &d->atoms.items[i];
        uint64_t at = begin, end = begin + atom->volume;
        for (uint32_t s = fy_line_find(lines, d->line, at); at < end; s++) {
            uint64_t until = fy_min(end, lines->end[d->line->first + s]);
            boxes +=
                fy_range_boxes(atom->length, d->route->n_dims, at - begin, until - begin, scratch);
            at = until;
        }
        begin = end;
    }
    *count_out = (uint32_t)(boxes - d->atoms.n_items);
    return FERRY_OK;
}

static ferry_status note_extras(drawing *d, ferry_error *error)
{
    fy_lines *lines = &d->plan->lines;
    const fy_holders *dst = fy_route_dst_holders(&d->plan->routes, d->route);
    uint64_t last_unit = UINT64_MAX;
    for (uint32_t i = 0; i + 1 < d->n; i++) {
        uint64_t end = lines->end[d->line->first + i];
        if (end >= d->span.length) {
            break;
        }
        fy_unit_place place = fy_span_locate(d->plan, &d->span, end);
        if (place.begin == end || place.begin == last_unit) {
            continue;
        }
        last_unit = place.begin;
        fy_extra extra = {.rank = dst->rank[place.slot],
                          .leg = fy_route_leg(&d->plan->routes, d->route, (uint32_t)place.unit)};
        FY_TRY(count_extra(d, &place, &extra.count, error));
        if (extra.count == 0) {
            continue;
        }
        FY_TRY(FY_GROW(lines->extras, lines->extra_capacity, lines->n_extras + 1,
                       "the senders of a shard", error));
        lines->extras[lines->n_extras++] = extra;
    }
    return FERRY_OK;
}

static void charge_senders(drawing *d)
{
    const fy_lines *lines = &d->plan->lines;
    double bytes_per_element = d->route->element_bits / 8.0;
    double shares = 0;
    uint64_t last = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        shares += d->shares[i];
    }
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t sender = lines->sender[d->line->first + i];
        uint64_t before = travelling_before(d, lines->end[d->line->first + i]);
        double part = shares > 0 ? d->shares[i] / shares : 1.0 / d->n;
        d->excess[sender] +=
            ((double)(before - last) - (double)d->travelling * part) * bytes_per_element;
        d->plan->out_bytes[sender] += fy_bytes(before - last, d->route->element_bits);
        last = before;
    }
}

static ferry_status draw(drawing *d, ferry_error *error)
{
    const fy_sets *sets = &d->plan->sets;
    size_t first = sets->member_begin[d->set];
    d->n = (uint32_t)(sets->member_begin[d->set + 1] - first);
    d->senders = sets->members + first;
    d->shares = sets->share + first;
    *d->line = (fy_line){0};
    FY_TRY(find_holes(d, error));
    if (d->n == 1) {
        d->plan->out_bytes[d->senders[0]] += fy_bytes(d->travelling, d->route->element_bits);
        return FERRY_OK;
    }
    d->budget = budget_of(d);
    FY_TRY(order_by_node(d, error));
    FY_TRY(place_ends(d, error));
    charge_senders(d);
    return d->route->merges_by_rank ? FERRY_OK : note_extras(d, error);
}

static int compare_extras(const void *a, const void *b)
{
    const fy_extra *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return (x->leg > y->leg) - (x->leg < y->leg);
}

/* Several source cells of one leg may each have extra boxes: one entry for all. */
static void sum_extras(fy_lines *lines)
{
    size_t kept = 0;
    fy_sort(lines->extras, lines->n_extras, sizeof *lines->extras, compare_extras);
    for (size_t i = 0; i < lines->n_extras; i++) {
        if (kept > 0 && compare_extras(&lines->extras[kept - 1], &lines->extras[i]) == 0) {
            lines->extras[kept - 1].count += lines->extras[i].count;
        } else {
            lines->extras[kept++] = lines->extras[i];
        }
    }
    lines->n_extras = kept;
}

uint32_t fy_lines_extra(const fy_lines *lines, uint32_t rank, uint32_t leg)
{
    fy_extra wanted = {.rank = rank, .leg = leg};
    FY_BISECT(size_t, low, 0, lines->n_extras, middle,
              compare_extras(&lines->extras[middle], &wanted) < 0);
    bool found = low < lines->n_extras && compare_extras(&lines->extras[low], &wanted) == 0;
    return found ? lines->extras[low].count : 0;
}

static ferry_status allocate_lines(ferry_plan *plan, ferry_error *error)
{
    fy_lines *lines = &plan->lines;
    for (size_t r = 0; r < plan->routes.n_routes; r++) {
        plan->routes.routes[r].first_line = lines->n_lines;
        lines->n_lines += plan->routes.routes[r].n_cells;
    }
    lines->lines = fy_alloc_zeroed(lines->n_lines, sizeof *lines->lines);
    return lines->lines == NULL ? fy_fail_no_memory(error, "the senders of all shards") : FERRY_OK;
}

ferry_status fy_plan_draw_lines(ferry_plan *plan, double level, ferry_error *error)
{
    drawing d = {.plan = plan, .level = level};
    ferry_status status = allocate_lines(plan, error);
    d.excess = fy_alloc_zeroed(plan->problem.n_ranks, sizeof *d.excess);
    FY_THEN(status, fy_check_memory(d.excess != NULL, "the balance of senders", error));
    for (size_t r = 0; r < plan->routes.n_routes && status == FERRY_OK; r++) {
        d.route = &plan->routes.routes[r];
        for (uint32_t cell = 0; cell < d.route->n_cells && status == FERRY_OK; cell++) {
            status = fy_span_init(plan, d.route, cell, &d.span, error);
            if (status != FERRY_OK) {
                break;
            }
            if (d.span.length > 0) {
                d.set = d.route->view->set[cell];
                d.line = &plan->lines.lines[d.route->first_line + cell];
                status = draw(&d, error);
            }
            fy_span_cleanup(&d.span);
        }
    }
    sum_extras(&plan->lines);
    drawing_cleanup(&d);
    return status;
}
