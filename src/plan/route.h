/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_ROUTE_H
#define FY_PLAN_ROUTE_H

#include "layout/overlap.h"
#include "model/problem.h"

/*
 * A route is a layout class: everything that tensors with the same source placement, destination
 * placement and element size have in common (with the same boxes, where a tensor is fed from
 * boxes). Each tensor on a route is a unit of it. A leg is one feed of one destination tensor: a
 * route, its unit there, and the source tensor.
 *
 * The source cells of a route are rows over the cells of the source splits and the flat part: what
 * a set of replicas has in common. Destination cells are those of the destination's table of
 * holders.
 */
typedef struct fy_view fy_view;

/* The common part of a source cell and a destination cell, over all their atoms. */
typedef struct fy_cell_touch {
    uint64_t volume;
    uint64_t before; /* volumes of this source cell's touches with lower destination cells */
    uint32_t dst;    /* destination cell */
} fy_cell_touch;

typedef struct fy_route {
    uint32_t src; /* placements */
    uint32_t dst;
    uint32_t element_bits;
    uint64_t block_rows; /* of what is quantized; else 0: rows may be cut anywhere */
    uint32_t n_dims;     /* the larger number of the two sides */
    uint32_t src_pad;    /* leading ones that a side has in addition to its own dimensions */
    uint32_t dst_pad;
    uint32_t n_units;
    uint32_t first_unit; /* into the plan's unit_legs */
    const fy_view *view; /* who holds each source cell */
    uint32_t n_cells;    /* source cells */
    uint32_t cell_weight[FERRY_MAX_DIMS];
    fy_overlap *overlap[FERRY_MAX_DIMS]; /* shared with other routes */
    uint64_t src_begin[FERRY_MAX_DIMS];
    uint64_t dst_begin[FERRY_MAX_DIMS];
    uint64_t length[FERRY_MAX_DIMS];
    /*
     * A regular route is a product over the dimensions: counts and volumes have a closed form. A
     * flat cut or shared pieces break the product; then the touches are listed, and atoms counted.
     */
    bool is_regular;
    bool merges_by_rank;    /* shared source pieces: boxes of one sender may join */
    size_t *touch_begin;    /* irregular: [n_cells + 1] */
    fy_cell_touch *touches; /* irregular: by ascending destination */
    size_t *touch_atoms;    /* irregular: [touches + 1] into atom_index; NULL: not known */
    uint32_t *atom_index;   /* the places of a touch's atoms among all of its destination */
    uint32_t *atom_count;   /* irregular: [destination cells] */
    uint64_t *wanted;       /* irregular: [destination cells] elements */
    size_t first_line;      /* into the plan's lines, one per source cell */
} fy_route;

typedef struct fy_leg {
    uint32_t tensor; /* the destination tensor */
    uint32_t source; /* the tensor that it comes from */
    uint32_t route;
    uint32_t unit;
} fy_leg;

/*
 * Who holds each source cell. Where no pieces are shared, source cells are the cells of the table
 * of holders and the view borrows its lists; otherwise it owns lists in which a rank can stand in
 * several cells. set[] is the replica set of each cell, filled in when loads are balanced.
 */
struct fy_view {
    const fy_holders *holders;
    uint32_t n_cells;
    const uint32_t *cell_begin; /* [n_cells + 1] */
    const uint32_t *rank;
    uint32_t *owned_begin;
    uint32_t *owned_rank;
    uint32_t *set;
    uint32_t placement; /* of an owning view; FY_NONE: any with these holders */
};

static inline uint32_t fy_view_cell_size(const fy_view *view, uint32_t cell)
{
    return view->cell_begin[cell + 1] - view->cell_begin[cell];
}

typedef struct fy_routes {
    const fy_problem *problem;
    fy_route *routes;
    size_t n_routes, route_capacity;
    fy_leg *legs; /* by ascending tensor */
    size_t n_legs, leg_capacity;
    uint32_t *unit_legs; /* legs grouped by route, in order of units */
    fy_view **views;
    size_t n_views, view_capacity;
    fy_split *one; /* the split of a leading one */
    fy_overlap **overlaps;
    size_t n_overlaps, overlap_capacity;
    fy_index view_index;
    fy_index route_index;
    fy_index overlap_index;
    fy_hash128 *overlap_keys;
    size_t key_capacity;
    unsigned char *made; /* a bit for each tensor of scales that receivers make: no leg has it */
    uint64_t total_bytes;
    uint64_t flat_steps; /* n_steps of all irregular routes */
} fy_routes;

static inline bool fy_routes_make(const fy_routes *routes, uint32_t scales)
{
    return (routes->made[scales / 8] >> (scales % 8) & 1) != 0;
}

/* Routes and legs of every destination tensor that fits the subset pattern (NULL: all). */
ferry_status fy_routes_build(const fy_problem *problem, const char *subset, fy_routes *routes,
                             ferry_error *error);
void fy_routes_cleanup(fy_routes *routes);

/* FERRY_ERR_INVALID_PLAN where a box of elements smaller than a byte begins or ends inside one. */
ferry_status fy_routes_check_alignment(const fy_routes *routes, ferry_error *error);

static inline const fy_holders *fy_route_dst_holders(const fy_routes *routes, const fy_route *route)
{
    return fy_problem_holders(routes->problem, route->dst);
}

/* The view of a source placement, made at its first use; and its end, which fy_routes_cleanup
 * calls. */
ferry_status fy_routes_find_view(fy_routes *routes, uint32_t placement, const fy_view **view_out,
                                 ferry_error *error);
void fy_view_destroy(fy_view *view);

/*
 * The ranks of a table that hold a source cell of the placement, ascending; a list for the caller
 * to free. The table may be another than the placement's own, with the same cells.
 */
ferry_status fy_routes_list_holders(const fy_routes *routes, uint32_t placement,
                                    const fy_holders *holders, uint32_t cell, uint32_t **ranks_out,
                                    size_t *n_out, ferry_error *error);

/* Whether a rank holds a source cell. */
bool fy_view_has_rank(const fy_view *view, uint32_t cell, uint32_t rank);

/*
 * The source cells that a rank holds, ascending; *cells_inout grows as needed. None if the rank is
 * no holder.
 */
ferry_status fy_route_cells_of_rank(const fy_routes *routes, const fy_route *route, uint32_t rank,
                                    uint32_t **cells_inout, size_t *capacity, size_t *n_out,
                                    ferry_error *error);

/* The split of a dimension of the route on one side. */
static inline const fy_split *fy_route_split(const fy_routes *routes, uint32_t placement,
                                             uint32_t pad, uint32_t dim)
{
    const fy_layout *layout = &routes->problem->placements[placement].layout;
    return dim < pad ? routes->one : fy_problem_split(routes->problem, layout, dim - pad);
}

/* The parts of a cell of the destination, one per dimension of the route, the flat part last. */
void fy_route_dst_parts(const fy_routes *routes, const fy_route *route, uint32_t dst,
                        uint32_t parts_out[FERRY_MAX_DIMS + 1]);

/* The shape of a shard before flattening, in the dimensions of the route; returns its elements. */
uint64_t fy_route_shard(const fy_routes *routes, const fy_route *route, uint32_t placement,
                        uint32_t pad, const uint32_t *parts, uint64_t shape_out[FERRY_MAX_DIMS]);

/* The leg of a unit. */
static inline uint32_t fy_route_leg(const fy_routes *routes, const fy_route *route, uint32_t unit)
{
    return routes->unit_legs[route->first_unit + unit];
}

/* Elements that one destination replica of all cells wants of a source cell. */
uint64_t fy_route_cell_total(const fy_route *route, uint32_t cell);
/* Whether the atoms of a source cell can be listed without those of others. */
static inline bool fy_route_is_listed_by_cell(const fy_route *route)
{
    return route->is_regular || route->touch_atoms != NULL;
}

/* Volume and position of what a destination cell wants of a source cell; volume 0: nothing. */
fy_cell_touch fy_route_touch(const fy_routes *routes, const fy_route *route, uint32_t cell,
                             uint32_t dst);
/* The touch in which position, below the cell's total, lies. */
fy_cell_touch fy_route_touch_at(const fy_routes *routes, const fy_route *route, uint32_t cell,
                                uint64_t position);
/* The number of atoms of a destination cell, and the elements that it wants from this route. */
uint64_t fy_route_atom_count(const fy_routes *routes, const fy_route *route, uint32_t dst);
uint64_t fy_route_wanted(const fy_routes *routes, const fy_route *route, uint32_t dst);

/* An atom: a maximal box that one set of replicas has and one destination cell wants. */
typedef struct fy_atom {
    uint64_t
        src_begin[FERRY_MAX_DIMS]; /* in the sender's shard; FY_LOCAL_BY_OWNER: by src_global */
    uint64_t src_global[FERRY_MAX_DIMS];
    uint64_t dst_begin[FERRY_MAX_DIMS];
    uint64_t length[FERRY_MAX_DIMS];
    uint64_t volume;
    uint32_t cell;
} fy_atom;

typedef struct fy_atoms {
    fy_atom *items;
    size_t n_items;
    size_t capacity;
    uint64_t n_steps; /* boxes looked at to cut and join them, since the beginning */
} fy_atoms;

/* More than this many boxes of one tensor for one rank is FERRY_ERR_LIMIT. */
enum { FY_MAX_ATOMS = 1 << 24 };

/* All atoms of a destination cell, sorted by destination begin. Clears the list first. */
ferry_status fy_route_list_atoms(const fy_routes *routes, const fy_route *route, uint32_t dst,
                                 fy_atoms *atoms, ferry_error *error);
/*
 * Only those of one source cell, in the same order; index[i] is where atom i stands among all. The
 * others are not visited, unless owners of flat parts are chosen.
 */
ferry_status fy_route_list_cell_atoms(const fy_routes *routes, const fy_route *route, uint32_t cell,
                                      uint32_t dst, fy_atoms *atoms, uint64_t **index_inout,
                                      size_t *index_capacity, ferry_error *error);
bool fy_atoms_push(fy_atoms *atoms, const fy_atom *atom);
/*
 * Joins boxes of one cell, from item first on, that are a box together until no two are. What is
 * adjacent in the global index is so in both shards too, but not the other way round: only the
 * global index decides. Leaves them in some order.
 */
void fy_atoms_join(fy_atoms *atoms, size_t first, uint32_t n_dims);
void fy_atoms_cleanup(fy_atoms *atoms);

/* The destination cells that want something of a source cell, ascending. */
ferry_status fy_route_list_touches(const fy_routes *routes, const fy_route *route, uint32_t cell,
                                   fy_cell_touch **touches_inout, size_t *capacity, size_t *n_out,
                                   ferry_error *error);

#endif
