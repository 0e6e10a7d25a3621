/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "splits.h"

#include "base/alloc.h"

#include <stdlib.h>

static size_t n_checked;

static uint32_t bits_of(const fy_piece *piece)
{
    return ((1u << piece->n_owners) - 1) << piece->part;
}

/* Pieces cover the extent in order, and each ends exactly where the owners change. */
static void check_pieces(const fy_split *split, const naive *n)
{
    uint64_t at = 0;
    for (size_t i = 0; i < split->n_pieces; i++) {
        const fy_piece *piece = &split->pieces[i];
        check_row(n->name, piece->global == at && piece->length > 0);
        check_row(n->name, piece->n_owners >= 1 && piece->part + piece->n_owners <= split->n_parts);
        check_row(n->name, i == 0 || bits_of(piece) != bits_of(piece - 1));
        for (uint64_t e = at; e < at + piece->length; e++) {
            check_row(n->name, n->owners[e] == bits_of(piece));
        }
        at += piece->length;
    }
    check_row(n->name, at == n->extent);
}

/* A shard is the part's elements in global order. */
static void check_shards(const fy_split *split, const naive *n)
{
    for (uint32_t p = 0; p < n->n_parts; p++) {
        uint64_t local = 0;
        for (uint64_t e = 0; e < n->extent; e++) {
            if ((n->owners[e] >> p & 1) != 0) {
                check_row(n->name, fy_split_local(split, p, e) == local);
                local++;
            }
        }
        check_row(n->name, split->part_length[p] == local);
    }
}

/* Cells stand for sets of owners: unshared ones for their part, each shared one for its own set. */
static void check_cells(const fy_split *split, const naive *n)
{
    bool shared = false;
    check_row(n->name, split->n_cells >= split->n_parts);
    for (uint32_t c = 0; c < split->n_cells; c++) {
        fy_owners owners = fy_split_cell_owners(split, c);
        check_row(n->name,
                  c >= split->n_parts ? owners.count > 1 : owners.first == c && owners.count == 1);
        for (uint32_t d = 0; d < c; d++) {
            fy_owners below = fy_split_cell_owners(split, d);
            check_row(n->name, below.first != owners.first || below.count != owners.count);
        }
    }
    for (size_t i = 0; i < split->n_pieces; i++) {
        const fy_piece *piece = &split->pieces[i];
        fy_owners owners = fy_split_cell_owners(split, piece->cell);
        check_row(n->name, owners.first == piece->part && owners.count == piece->n_owners);
        shared = shared || piece->n_owners > 1;
    }
    check_row(n->name, fy_split_is_shared(split) == shared);
}

/* What was seen, to hold hashes against: equal content has equal hashes, other content other ones.
 */
typedef struct seen {
    naive n;
    fy_hash128 hash;
} seen;

typedef struct record {
    seen *items;
    size_t n_items, capacity;
} record;

static bool same_hash(fy_hash128 a, fy_hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

static void check_part_hashes(const fy_split *split, const naive *n)
{
    bool shared = fy_split_is_shared(split);
    for (uint32_t p = 0; p < n->n_parts; p++) {
        for (uint32_t q = 0; q < p; q++) {
            bool equal = true;
            for (uint64_t e = 0; e < n->extent; e++) {
                equal = equal && (n->owners[e] >> p & 1) == (n->owners[e] >> q & 1);
            }
            bool hashes = same_hash(split->part_hash[p], split->part_hash[q]);
            check_row(n->name, hashes == equal || (shared && equal));
        }
    }
}

static int compare_seen(const void *a, const void *b)
{
    const seen *x = a, *y = b;
    if (x->n.extent != y->n.extent || x->n.n_parts != y->n.n_parts) {
        return x->n.extent * MOST_PARTS + x->n.n_parts < y->n.extent * MOST_PARTS + y->n.n_parts
                   ? -1
                   : 1;
    }
    return memcmp(x->n.owners, y->n.owners, sizeof x->n.owners);
}

static int compare_hashes(const void *a, const void *b)
{
    const seen *x = a, *y = b;
    if (x->hash.low != y->hash.low) {
        return x->hash.low < y->hash.low ? -1 : 1;
    }
    return (x->hash.high > y->hash.high) - (x->hash.high < y->hash.high);
}

/* Sorted by content, neighbours of equal content have equal hashes; sorted by hash, the reverse. */
static void check_hashes(record *r)
{
    qsort(r->items, r->n_items, sizeof *r->items, compare_seen);
    for (size_t i = 1; i < r->n_items; i++) {
        bool same = compare_seen(&r->items[i - 1], &r->items[i]) == 0;
        check_row(r->items[i].n.name, !same || same_hash(r->items[i - 1].hash, r->items[i].hash));
    }
    qsort(r->items, r->n_items, sizeof *r->items, compare_hashes);
    for (size_t i = 1; i < r->n_items; i++) {
        bool same = same_hash(r->items[i - 1].hash, r->items[i].hash);
        check_row(r->items[i].n.name, !same || compare_seen(&r->items[i - 1], &r->items[i]) == 0);
    }
}

static void check_split(void *context, fy_split *split, const naive *n)
{
    record *r = context;
    check_row(n->name, split->extent == n->extent && split->n_parts == n->n_parts);
    check_pieces(split, n);
    check_shards(split, n);
    check_cells(split, n);
    check_part_hashes(split, n);
    if (!fy_reserve((void **)&r->items, &r->capacity, r->n_items + 1, sizeof *r->items)) {
        abort();
    }
    r->items[r->n_items++] = (seen){.n = *n, .hash = split->hash};
    fy_split_destroy(split);
    n_checked++;
}

static void test_all_splits(void **state)
{
    (void)state;
    for (uint64_t extent = 0; extent <= MOST_EXTENT; extent++) {
        record r = {0};
        for (uint32_t n_parts = 1; n_parts <= MOST_PARTS; n_parts++) {
            if (n_parts <= 5 || extent <= 6) {
                visit_splits(extent, n_parts, check_split, &r);
            }
        }
        check_hashes(&r);
        fy_free(r.items);
    }
    print_message("%zu splits\n", n_checked);
    assert_in_range(n_checked, 50000, 10000000);
}

static void test_whole(void **state)
{
    (void)state;
    for (uint64_t extent = 0; extent <= MOST_EXTENT; extent++) {
        fy_split *split = NULL, *even = NULL;
        ferry_error error;
        must(fy_split_whole(extent, &split, &error), &error);
        must(fy_split_even(extent, 1, 1, &even, &error), &error);
        check_at(split->n_parts == 1 && split->part_length[0] == extent, "%llu",
                 (unsigned long long)extent);
        check_at(same_hash(split->hash, even->hash), "%llu", (unsigned long long)extent);
        fy_split_destroy(split);
        fy_split_destroy(even);
    }
    fy_split_destroy(NULL);
}

/* What no element-wise definition covers: numbers at the ends of their types, and refusals. */
static void test_large(void **state)
{
    (void)state;
    fy_split *split = NULL;
    ferry_error error;
    uint64_t most = INT64_MAX;
    must(fy_split_even(most, 3, 1, &split, &error), &error);
    assert_true(split->n_pieces == 3 && split->part_length[2] == most - 2 * (most / 3 + 1));
    fy_split_destroy(split);
    assert_int_equal(fy_split_strided(most, 3, most, 1, &split, &error), FERRY_ERR_LIMIT);
    must(fy_split_strided(12, 3, most / 3, 1, &split, &error), &error);
    assert_true(split->n_pieces == 12);
    fy_split_destroy(split);
    must(fy_split_cyclic(12, 3, most, &split, &error), &error);
    assert_true(split->n_pieces == 1 && split->part_length[0] == 12);
    fy_split_destroy(split);
}

static void test_refused(void **state)
{
    (void)state;
    ferry_error error;
    fy_split *split = NULL;
    uint64_t wraps[2] = {UINT64_MAX, 2}, sizes[2] = {3, 4};
    fy_split_block one = {.size = 8, .n_parts = 3}, none = {.size = 8, .n_parts = 0};
    fy_split_block wrapping[2] = {{.size = UINT64_MAX, .n_parts = 1}, {.size = 9, .n_parts = 1}};
    fy_split_block half = {.size = FY_MAX_PIECES / 2 + 1, .n_parts = FY_MAX_PIECES / 2 + 1};
    fy_split_block wide[2] = {half, half};
    fy_split_block short_of = {.size = 7, .n_parts = 1};
    uint32_t counts[3] = {1u << 20, 1u << 20, 1u << 20};
    const struct {
        const char *name;
        ferry_status wanted;
        ferry_status status;
    } rows[] = {
        {"unit", FERRY_ERR_INVALID_INPUT, fy_split_even(7, 2, 2, &split, &error)},
        {"unit of a stride", FERRY_ERR_INVALID_INPUT, fy_split_strided(7, 2, 2, 2, &split, &error)},
        {"unit, nested", FERRY_ERR_INVALID_INPUT, fy_split_nested(7, counts, 0, 2, &split, &error)},
        {"parts", FERRY_ERR_LIMIT, fy_split_even(8, UINT32_MAX, 1, &split, &error)},
        {"cyclic pieces", FERRY_ERR_LIMIT, fy_split_cyclic(1ull << 40, 2, 1, &split, &error)},
        {"strided pieces", FERRY_ERR_LIMIT,
         fy_split_strided(1ull << 40, 2, 1ull << 39, 1, &split, &error)},
        {"segments that overflow", FERRY_ERR_LIMIT,
         fy_split_strided(8, UINT32_MAX, UINT64_MAX, 1, &split, &error)},
        {"sizes", FERRY_ERR_INVALID_INPUT, fy_split_sizes(8, sizes, 2, &split, &error)},
        {"sizes that wrap", FERRY_ERR_INVALID_INPUT, fy_split_sizes(1, wraps, 2, &split, &error)},
        {"segments that wrap", FERRY_ERR_INVALID_INPUT,
         fy_split_segments(2, wraps, 1, &split, &error)},
        {"segments", FERRY_ERR_LIMIT, fy_split_segments(2, wraps, SIZE_MAX, &split, &error)},
        {"parts that do not divide", FERRY_ERR_INVALID_INPUT,
         fy_split_blocks(8, 4, &one, 1, 1, &split, &error)},
        {"no parts", FERRY_ERR_INVALID_INPUT, fy_split_blocks(8, 4, &none, 1, 1, &split, &error)},
        {"blocks of too many pieces", FERRY_ERR_LIMIT,
         fy_split_blocks(FY_MAX_PIECES + 2, FY_MAX_PIECES / 2 + 1, wide, 2, 1, &split, &error)},
        {"blocks that wrap", FERRY_ERR_INVALID_INPUT,
         fy_split_blocks(8, 4, wrapping, 2, 1, &split, &error)},
        {"blocks too short", FERRY_ERR_INVALID_INPUT,
         fy_split_blocks(8, 4, &short_of, 1, 1, &split, &error)},
        {"nested parts", FERRY_ERR_LIMIT, fy_split_nested(8, counts, 3, 1, &split, &error)},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_status(rows[i].name, rows[i].wanted, rows[i].status, &error);
    }
    assert_null(split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_splits),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
