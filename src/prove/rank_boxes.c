/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/rank_boxes.h"

#include "base/sort.h"
#include "prove/boxes.h"
#include "prove/held.h"

typedef struct fy_proof_rank_tensor {
    uint32_t tensor;
    size_t first; /* of the boxes */
    const fy_proof_tree *tree;
} rank_tensor;

void fy_proof_rank_boxes_cleanup(fy_proof_rank_boxes *boxes)
{
    fy_arena_cleanup(&boxes->arena);
    *boxes = (fy_proof_rank_boxes){.n_boxes = 0};
}

static int by_tensor(const void *a, const void *b)
{
    const fy_proof_rank_box *x = a, *y = b;
    return fy_compare_u32(&x->held->tensor, &y->held->tensor);
}

/* From its first element to behind its last one: loops only go on. */
static void note_hull(const fy_proof_held *held, fy_proof_box *hull_out)
{
    uint64_t turns[FY_PROOF_STEPS] = {0}, last[FY_PROOF_DIMS];
    fy_proof_held_element(held, turns, hull_out->at);
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        turns[i] = held->steps[i].count - 1;
    }
    fy_proof_held_element(held, turns, last);
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        hull_out->shape[d] = last[d] + 1 - hull_out->at[d];
    }
}

static size_t count_boxes(const fy_proof_memory *memory, size_t position)
{
    size_t n = 0;
    for (size_t o = memory->first[position]; o < memory->first[position + 1]; o++) {
        n += memory->parameters[memory->owned[o]].n_boxes;
    }
    return n;
}

static void list_boxes(const fy_proof_memory *memory, size_t position, fy_proof_rank_boxes *all)
{
    size_t n = 0;
    for (size_t o = memory->first[position]; o < memory->first[position + 1]; o++) {
        const fy_proof_parameter *p = &memory->parameters[memory->owned[o]];
        for (size_t b = 0; b < p->n_boxes; b++) {
            if (p->boxes[b].tensor != FY_PROOF_FILL) {
                all->boxes[n++] = (fy_proof_rank_box){.owned = o, .held = &p->boxes[b]};
            }
        }
    }
    all->n_boxes = n;
    fy_sort(all->boxes, n, sizeof *all->boxes, by_tensor);
}

/* False: there is no memory. */
static bool grow_trees(fy_proof_rank_boxes *all, fy_proof_box *hulls)
{
    bool is_made = true;
    for (size_t i = 0, end; i < all->n_boxes && is_made; i = end) {
        uint32_t tensor = all->boxes[i].held->tensor;
        for (end = i; end < all->n_boxes && all->boxes[end].held->tensor == tensor; end++) {
            note_hull(all->boxes[end].held, &hulls[end]);
        }
        rank_tensor *one = &all->tensors[all->n_tensors++];
        *one = (rank_tensor){.tensor = tensor,
                             .first = i,
                             .tree = fy_proof_tree_make(&all->arena, hulls + i, end - i)};
        is_made = one->tree != NULL;
    }
    return is_made;
}

ferry_status fy_proof_rank_boxes_make(const fy_proof_memory *memory, size_t position,
                                      fy_proof_rank_boxes *boxes_out, ferry_error *error)
{
    fy_proof_rank_boxes *all = boxes_out;
    size_t n = count_boxes(memory, position);
    *all = (fy_proof_rank_boxes){.n_boxes = 0};
    fy_proof_box *hulls = fy_arena_alloc(&all->arena, n + 1, sizeof *hulls);
    all->boxes = fy_arena_alloc(&all->arena, n + 1, sizeof *all->boxes);
    all->tensors = fy_arena_alloc(&all->arena, n + 1, sizeof *all->tensors);
    bool is_made = hulls != NULL && all->boxes != NULL && all->tensors != NULL;
    if (is_made) {
        list_boxes(memory, position, all);
        is_made = grow_trees(all, hulls);
    }
    return fy_check_memory(is_made, "the boxes of a rank", error);
}

typedef struct visiting {
    const fy_proof_rank_box *boxes; /* of the tensor */
    fy_proof_visit_held_fn visit;
    void *context;
    ferry_error *error;
    ferry_status status;
} visiting;

static bool visit_one(void *context, size_t box)
{
    visiting *v = context;
    v->status = v->visit(v->context, &v->boxes[box], v->error);
    return v->status == FERRY_OK;
}

ferry_status fy_proof_rank_boxes_visit(const fy_proof_rank_boxes *boxes, uint32_t tensor,
                                       const uint64_t *begin, const uint64_t *end,
                                       fy_proof_visit_held_fn visit, void *context, uint64_t *looks,
                                       ferry_error *error)
{
    FY_BISECT(size_t, i, 0, boxes->n_tensors, at, boxes->tensors[at].tensor < tensor);
    if (i == boxes->n_tensors || boxes->tensors[i].tensor != tensor) {
        return FERRY_OK;
    }
    visiting v = {.boxes = boxes->boxes + boxes->tensors[i].first,
                  .visit = visit,
                  .context = context,
                  .error = error,
                  .status = FERRY_OK};
    fy_proof_tree_visit(boxes->tensors[i].tree, begin, end, visit_one, &v, looks);
    return v.status;
}
