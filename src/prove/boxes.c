/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/boxes.h"

#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

enum { LEAF_BOXES = 8 };

typedef struct hull {
    uint64_t begin[FY_PROOF_DIMS];
    uint64_t end[FY_PROOF_DIMS];
} hull;

/* Its first half stands right behind it. A leaf has no second one. */
typedef struct node {
    hull hull;
    uint32_t first, n; /* of the order */
    uint32_t second;   /* a node; 0: a leaf */
} node;

typedef struct place {
    uint64_t key;
    uint32_t box;
} place;

struct fy_proof_tree {
    const fy_proof_box *boxes;
    place *order;
    node *nodes;
    uint32_t n_nodes;
};

static bool meets(const uint64_t *begin, const uint64_t *end, const hull *other)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (begin[d] >= other->end[d] || other->begin[d] >= end[d]) {
            return false;
        }
    }
    return true;
}

static hull hull_of_box(const fy_proof_box *box)
{
    hull h;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        h.begin[d] = box->at[d];
        h.end[d] = box->at[d] + box->shape[d];
    }
    return h;
}

static hull hull_of(const fy_proof_tree *tree, size_t first, size_t n)
{
    hull all = hull_of_box(&tree->boxes[tree->order[first].box]);
    for (size_t i = first + 1; i < first + n; i++) {
        hull h = hull_of_box(&tree->boxes[tree->order[i].box]);
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            all.begin[d] = fy_min(all.begin[d], h.begin[d]);
            all.end[d] = fy_max(all.end[d], h.end[d]);
        }
    }
    return all;
}

/* The dimension that has the most boxes beside each other: how far they begin apart, in extents. */
static size_t longest_row(const fy_proof_tree *tree, size_t first, size_t n)
{
    size_t best = 0;
    double most = -1;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t least = UINT64_MAX, last = 0;
        double extents = 0;
        for (size_t i = first; i < first + n; i++) {
            const fy_proof_box *box = &tree->boxes[tree->order[i].box];
            least = fy_min(least, box->at[d]);
            last = fy_max(last, box->at[d]);
            extents += (double)box->shape[d];
        }
        double beside = (double)(last - least) / extents;
        if (beside > most) {
            most = beside;
            best = d;
        }
    }
    return best;
}

static int by_key(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->box > y->box) - (x->box < y->box);
}

/* As deep as the logarithm of n. */
static void grow(fy_proof_tree *tree, size_t first, size_t n)
{
    uint32_t number = tree->n_nodes++;
    tree->nodes[number] = (node){
        .hull = hull_of(tree, first, n), .first = (uint32_t)first, .n = (uint32_t)n, .second = 0};
    if (n <= LEAF_BOXES) {
        return;
    }
    size_t d = longest_row(tree, first, n);
    for (size_t i = first; i < first + n; i++) {
        tree->order[i].key = tree->boxes[tree->order[i].box].at[d];
    }
    fy_sort(tree->order + first, n, sizeof *tree->order, by_key);
    grow(tree, first, n / 2);
    tree->nodes[number].second = tree->n_nodes;
    grow(tree, first + n / 2, n - n / 2);
}

const fy_proof_tree *fy_proof_tree_make(fy_arena *arena, const fy_proof_box *boxes, size_t n)
{
    /* A leaf has more than half of LEAF_BOXES, or is all. */
    size_t most_nodes = 2 * (n / (LEAF_BOXES / 2)) + 1;
    fy_proof_tree *tree = fy_arena_alloc(arena, 1, sizeof *tree);
    if (tree == NULL) {
        return NULL;
    }
    *tree = (fy_proof_tree){.boxes = boxes,
                            .order = fy_arena_alloc(arena, n, sizeof *tree->order),
                            .nodes = fy_arena_alloc(arena, most_nodes, sizeof *tree->nodes)};
    if (tree->order == NULL || tree->nodes == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        tree->order[i] = (place){.box = (uint32_t)i};
    }
    grow(tree, 0, n);
    return tree;
}

static bool visit_leaf(const fy_proof_tree *tree, const node *leaf, const uint64_t *begin,
                       const uint64_t *end, fy_proof_visit_box_fn visit, void *context,
                       uint64_t *looks)
{
    for (uint32_t i = leaf->first; i < leaf->first + leaf->n; i++) {
        hull h = hull_of_box(&tree->boxes[tree->order[i].box]);
        ++*looks;
        if (meets(begin, end, &h) && !visit(context, tree->order[i].box)) {
            return false;
        }
    }
    return true;
}

static bool visit_node(const fy_proof_tree *tree, uint32_t number, const uint64_t *begin,
                       const uint64_t *end, fy_proof_visit_box_fn visit, void *context,
                       uint64_t *looks)
{
    const node *at = &tree->nodes[number];
    ++*looks;
    if (!meets(begin, end, &at->hull)) {
        return true;
    }
    if (at->second == 0) {
        return visit_leaf(tree, at, begin, end, visit, context, looks);
    }
    return visit_node(tree, number + 1, begin, end, visit, context, looks) &&
           visit_node(tree, at->second, begin, end, visit, context, looks);
}

bool fy_proof_tree_visit(const fy_proof_tree *tree, const uint64_t *begin, const uint64_t *end,
                         fy_proof_visit_box_fn visit, void *context, uint64_t *looks)
{
    return visit_node(tree, 0, begin, end, visit, context, looks);
}
