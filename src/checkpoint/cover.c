/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/cover.h"

#include "layout/box_tree.h"
#include "layout/gap.h"

#include <string.h>

/* The boxes of a tensor that a source has, one behind the other; no two have an element in common.
 */
struct fy_cover {
    size_t n, capacity;
    fy_box *boxes;
    fy_box_tree *tree; /* NULL: there are few */
};

enum { TREE_FROM = 8 };

static void cover_destroy(fy_cover *cover)
{
    if (cover != NULL) {
        fy_box_tree_destroy(cover->tree);
        fy_free(cover->boxes);
        fy_free(cover);
    }
}

void fy_covers_destroy(fy_layout_job *job)
{
    for (uint32_t t = 0; job->covers != NULL && t < job->problem.n_tensors; t++) {
        cover_destroy(job->covers[t]);
    }
    fy_free(job->covers);
    job->covers = NULL;
}

/* ---- what there is ---- */

/* Whether nobody has a cell of the source that is wanted. */
static bool has_gap(const fy_route *route)
{
    bool has = false;
    for (uint32_t cell = 0; cell < route->n_cells && !has; cell++) {
        has = fy_view_cell_size(route->view, cell) == 0 && fy_route_cell_total(route, cell) > 0;
    }
    return has;
}

static bool is_part(const fy_layout_job *job, uint32_t tensor, const bool *have_gaps)
{
    const fy_fragment *fragment = job->problem.tensors[tensor].fragment;
    bool is = job->problem.tensors[tensor].dst != FY_NONE && fragment != NULL &&
              fragment->missing != NULL;
    for (size_t l = job->first_leg[tensor]; l < job->first_leg[tensor + 1] && !is; l++) {
        is = have_gaps[job->routes.legs[l].route];
    }
    return is;
}

/* What the one rank of the destination gets of a leg. */
static ferry_status add_leg(const fy_layout_job *job, size_t leg, fy_cover *cover, fy_atoms *atoms,
                            ferry_error *error)
{
    const fy_route *route = &job->routes.routes[job->routes.legs[leg].route];
    uint32_t n_dims = route->n_dims - route->dst_pad;
    FY_TRY(fy_route_list_atoms(&job->routes, route, 0, atoms, error));
    FY_TRY(FY_GROW(cover->boxes, cover->capacity, cover->n + atoms->n_items,
                   "what a checkpoint has of a tensor", error));
    for (size_t i = 0; i < atoms->n_items; i++) {
        const fy_atom *atom = &atoms->items[i];
        if (fy_view_cell_size(route->view, atom->cell) > 0) {
            fy_box *box = &cover->boxes[cover->n++];
            memcpy(box->begin, atom->dst_begin + route->dst_pad, n_dims * sizeof *box->begin);
            memcpy(box->length, atom->length + route->dst_pad, n_dims * sizeof *box->length);
        }
    }
    return FERRY_OK;
}

static ferry_status make_tree(fy_cover *cover, uint32_t n_dims, ferry_error *error)
{
    uint64_t *begin = fy_alloc(cover->n * n_dims, sizeof *begin);
    uint64_t *length = fy_alloc(cover->n * n_dims, sizeof *length);
    ferry_status status = fy_check_memory(begin != NULL && length != NULL,
                                          "what a checkpoint has of a tensor", error);
    for (size_t i = 0; i < cover->n && status == FERRY_OK; i++) {
        memcpy(begin + i * n_dims, cover->boxes[i].begin, n_dims * sizeof *begin);
        memcpy(length + i * n_dims, cover->boxes[i].length, n_dims * sizeof *length);
    }
    FY_THEN(status, fy_box_tree_create(begin, length, cover->n, n_dims, &cover->tree, error));
    fy_free(begin);
    fy_free(length);
    return status;
}

static ferry_status add_cover(fy_layout_job *job, uint32_t tensor, fy_atoms *atoms,
                              ferry_error *error)
{
    if (job->covers == NULL) {
        job->covers = fy_alloc_zeroed(job->problem.n_tensors, sizeof(fy_cover *));
        FY_TRY(fy_check_memory(job->covers != NULL, "what a checkpoint has", error));
    }
    fy_cover *cover = fy_alloc_zeroed(1, sizeof *cover);
    FY_TRY(fy_check_memory(cover != NULL, "what a checkpoint has of a tensor", error));
    job->covers[tensor] = cover;
    for (size_t l = job->first_leg[tensor]; l < job->first_leg[tensor + 1]; l++) {
        FY_TRY(add_leg(job, l, cover, atoms, error));
    }
    return cover->n <= TREE_FROM ? FERRY_OK
                                 : make_tree(cover, job->problem.tensors[tensor].n_dims, error);
}

ferry_status fy_covers_create(fy_layout_job *job, ferry_error *error)
{
    fy_atoms atoms = {0};
    bool *have_gaps = fy_alloc(job->routes.n_routes, sizeof *have_gaps);
    ferry_status status = fy_check_memory(have_gaps != NULL, "what a checkpoint has", error);
    for (size_t r = 0; r < job->routes.n_routes && status == FERRY_OK; r++) {
        have_gaps[r] = has_gap(&job->routes.routes[r]);
    }
    for (uint32_t t = 0; t < job->problem.n_tensors && status == FERRY_OK; t++) {
        status = is_part(job, t, have_gaps) ? add_cover(job, t, &atoms, error) : FERRY_OK;
    }
    fy_atoms_cleanup(&atoms);
    fy_free(have_gaps);
    return status;
}

/* ---- what there is not ---- */

/* What a cover has of a box, in its coordinates. */
static ferry_status list_common(const fy_cover *cover, const fy_box *box, uint32_t n_dims,
                                fy_box **boxes_out, size_t *n_out, ferry_error *error)
{
    uint32_t *found = NULL;
    size_t capacity = 0, n = cover->n, kept = 0;
    ferry_status status = FERRY_OK;
    if (cover->tree != NULL) {
        status =
            fy_box_tree_find(cover->tree, box->begin, box->length, &found, &capacity, &n, error);
    }
    fy_box *common = fy_alloc(n, sizeof *common);
    FY_THEN(status, fy_check_memory(common != NULL, "what a checkpoint has of a box", error));
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        const fy_box *has = &cover->boxes[found == NULL ? i : found[i]];
        fy_box *both = &common[kept];
        kept += fy_box_meet(box->begin, box->length, has->begin, has->length, n_dims, both->begin,
                            both->length);
    }
    fy_free(found);
    for (size_t i = 0; i < kept; i++) {
        for (uint32_t d = 0; d < n_dims; d++) {
            common[i].begin[d] -= box->begin[d];
        }
    }
    *boxes_out = common;
    *n_out = kept;
    return status;
}

ferry_status fy_job_find_missing(const fy_layout_job *job, uint32_t tensor, const fy_box *box,
                                 bool *is_missing_out, uint64_t place_out[FERRY_MAX_DIMS],
                                 ferry_error *error)
{
    uint32_t n_dims = job->problem.tensors[tensor].n_dims;
    fy_box *common = NULL;
    size_t n = 0;
    uint64_t there = 0;
    *is_missing_out = false;
    if (!fy_job_lacks(job, tensor)) {
        return FERRY_OK;
    }
    ferry_status status = list_common(job->covers[tensor], box, n_dims, &common, &n, error);
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        there += fy_box_volume(common[i].length, n_dims);
    }
    if (status == FERRY_OK && there != fy_box_volume(box->length, n_dims)) {
        *is_missing_out = true;
        status = fy_boxes_find_gap(common, n, box->length, n_dims, place_out, error);
        for (uint32_t d = 0; d < n_dims; d++) {
            place_out[d] += box->begin[d];
        }
    }
    fy_free(common);
    return status;
}
