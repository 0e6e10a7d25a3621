/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/box_tree.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <string.h>

enum { LEAF_BOXES = 4, MOST_DEPTH = 64 };

/* Of the boxes order[first .. first + count). A node of more than a leaf's has two below it. */
typedef struct tree_node {
    uint32_t first;
    uint32_t count;
    uint32_t right; /* the left one is the next node; 0: a leaf */
} tree_node;

struct fy_box_tree {
    uint32_t n_dims;
    size_t n;
    uint64_t *bounds; /* of each box: n_dims begins, then n_dims ends */
    uint32_t *order;
    tree_node *nodes;
    uint64_t *node_bounds;
    size_t n_nodes;
};

void fy_box_tree_destroy(fy_box_tree *tree)
{
    if (tree != NULL) {
        fy_free(tree->bounds);
        fy_free(tree->order);
        fy_free(tree->nodes);
        fy_free(tree->node_bounds);
        fy_free(tree);
    }
}

static const uint64_t *bounds_of(const fy_box_tree *tree, size_t at)
{
    return tree->bounds + (size_t)tree->order[at] * 2 * tree->n_dims;
}

static void surround(const fy_box_tree *tree, const tree_node *node, uint64_t *around)
{
    uint32_t n = tree->n_dims;
    memcpy(around, bounds_of(tree, node->first), 2 * n * sizeof *around);
    for (uint32_t i = 1; i < node->count; i++) {
        const uint64_t *box = bounds_of(tree, node->first + i);
        for (uint32_t d = 0; d < n; d++) {
            around[d] = box[d] < around[d] ? box[d] : around[d];
            around[n + d] = box[n + d] > around[n + d] ? box[n + d] : around[n + d];
        }
    }
}

/* Twice the middle of a box along a dimension: ends are below 2^63. */
static uint64_t middle_of(const fy_box_tree *tree, size_t at, uint32_t dim)
{
    const uint64_t *box = bounds_of(tree, at);
    return box[dim] + box[tree->n_dims + dim];
}

/* Where middles differ most. */
static uint32_t widest(const fy_box_tree *tree, const tree_node *node)
{
    uint32_t best = 0;
    uint64_t most = 0;
    for (uint32_t d = 0; d < tree->n_dims; d++) {
        uint64_t low = UINT64_MAX, high = 0;
        for (uint32_t i = 0; i < node->count; i++) {
            uint64_t middle = middle_of(tree, node->first + i, d);
            low = middle < low ? middle : low;
            high = middle > high ? middle : high;
        }
        if (high - low > most) {
            most = high - low;
            best = d;
        }
    }
    return best;
}

/* Puts the lower half of order[low .. high) in front. */
static void halve(fy_box_tree *tree, size_t low, size_t high, size_t half, uint32_t dim)
{
    while (high - low > 1) {
        uint64_t pivot = middle_of(tree, low + (high - low) / 2, dim);
        size_t i = low, k = high - 1;
        while (i <= k) {
            while (middle_of(tree, i, dim) < pivot) {
                i++;
            }
            while (middle_of(tree, k, dim) > pivot) {
                k--;
            }
            if (i <= k) {
                uint32_t other = tree->order[i];
                tree->order[i++] = tree->order[k];
                tree->order[k] = other;
                if (k == low) {
                    break;
                }
                k--;
            }
        }
        if (half <= k && k >= low && k < i) {
            high = k + 1;
        } else if (half >= i) {
            low = i;
        } else {
            return;
        }
    }
}

/* Every node halves, so there are few levels. */
static uint32_t build(fy_box_tree *tree, uint32_t first, uint32_t count)
{
    uint32_t number = (uint32_t)tree->n_nodes++;
    tree_node *node = &tree->nodes[number];
    *node = (tree_node){.first = first, .count = count};
    surround(tree, node, tree->node_bounds + (size_t)number * 2 * tree->n_dims);
    if (count > LEAF_BOXES && tree->n_dims > 0) {
        uint32_t half = count / 2;
        halve(tree, first, (size_t)first + count, (size_t)first + half, widest(tree, node));
        (void)build(tree, first, half);
        uint32_t right = build(tree, first + half, count - half);
        tree->nodes[number].right = right;
    }
    return number;
}

ferry_status fy_box_tree_create(const uint64_t *begin, const uint64_t *length, size_t n,
                                uint32_t n_dims, fy_box_tree **tree_out, ferry_error *error)
{
    fy_box_tree *tree = fy_alloc_zeroed(1, sizeof *tree);
    FY_TRY(fy_check_memory(tree != NULL, "an index of boxes", error));
    size_t most_nodes = n + 1; /* leaves have two boxes or more, where there are so many */
    tree->n = n;
    tree->n_dims = n_dims;
    tree->bounds = fy_alloc(n, 2 * (size_t)n_dims * sizeof *tree->bounds + 1);
    tree->order = fy_alloc(n, sizeof *tree->order);
    tree->nodes = fy_alloc(most_nodes, sizeof *tree->nodes);
    tree->node_bounds = fy_alloc(most_nodes, 2 * (size_t)n_dims * sizeof *tree->node_bounds + 1);
    if (tree->bounds == NULL || tree->order == NULL || tree->nodes == NULL ||
        tree->node_bounds == NULL) {
        fy_box_tree_destroy(tree);
        return fy_fail_no_memory(error, "an index of boxes");
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t *bounds = tree->bounds + i * 2 * n_dims;
        tree->order[i] = (uint32_t)i;
        for (uint32_t d = 0; d < n_dims; d++) {
            bounds[d] = begin[i * n_dims + d];
            bounds[n_dims + d] = bounds[d] + length[i * n_dims + d];
        }
    }
    if (n > 0) {
        (void)build(tree, 0, (uint32_t)n);
    }
    *tree_out = tree;
    return FERRY_OK;
}

static bool touches(const uint64_t *bounds, const uint64_t *begin, const uint64_t *length,
                    uint32_t n_dims)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        if (bounds[d] >= begin[d] + length[d] || bounds[n_dims + d] <= begin[d] || length[d] == 0 ||
            bounds[d] == bounds[n_dims + d]) {
            return false;
        }
    }
    return true;
}

ferry_status fy_box_tree_find(const fy_box_tree *tree, const uint64_t *begin,
                              const uint64_t *length, uint32_t **found_inout, size_t *capacity,
                              size_t *n_out, ferry_error *error)
{
    uint32_t stack[MOST_DEPTH];
    size_t depth = 0, n = 0, width = 2 * (size_t)tree->n_dims;
    *n_out = 0;
    if (tree->n > 0) {
        stack[depth++] = 0;
    }
    while (depth > 0) {
        uint32_t number = stack[--depth];
        const tree_node *node = &tree->nodes[number];
        if (!touches(tree->node_bounds + number * width, begin, length, tree->n_dims)) {
            continue;
        }
        if (node->right != 0) {
            stack[depth++] = node->right;
            stack[depth++] = number + 1;
            continue;
        }
        FY_TRY(FY_GROW(*found_inout, *capacity, n + node->count, "boxes that meet", error));
        for (uint32_t i = 0; i < node->count; i++) {
            if (touches(bounds_of(tree, node->first + i), begin, length, tree->n_dims)) {
                (*found_inout)[n++] = tree->order[node->first + i];
            }
        }
    }
    fy_sort(*found_inout, n, sizeof **found_inout, fy_compare_u32);
    *n_out = n;
    return FERRY_OK;
}
