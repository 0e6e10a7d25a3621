/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/gap.h"

#include "support/check.h"
#include "support/random.h"
#include "support/seed.h"

enum { MOST_BOXES = 64, MOST_LENGTH = 5, CASES = 4000 };

/* Cuts one of the boxes in two, if it has room for that. */
static void cut_one(fy_box *boxes, size_t *n, uint32_t n_dims, uint64_t *state)
{
    fy_box *low = &boxes[random_below(state, (uint32_t)*n)];
    uint32_t d = random_below(state, n_dims);
    if (low->length[d] < 2 || *n == MOST_BOXES) {
        return;
    }
    fy_box *high = &boxes[(*n)++];
    *high = *low;
    low->length[d] = 1 + random_below(state, (uint32_t)low->length[d] - 1);
    high->begin[d] += low->length[d];
    high->length[d] -= low->length[d];
}

static bool has(const fy_box *box, uint32_t n_dims, const uint64_t *place)
{
    bool is_in = true;
    for (uint32_t d = 0; d < n_dims; d++) {
        is_in = is_in && place[d] >= box->begin[d] && place[d] < box->begin[d] + box->length[d];
    }
    return is_in;
}

/* One place after the other. */
static bool find_slowly(const fy_box *boxes, size_t n, const uint64_t *shape, uint32_t n_dims,
                        uint64_t *place)
{
    for (uint64_t number = 0; number < fy_box_volume(shape, n_dims); number++) {
        uint64_t rest = number;
        bool is_there = false;
        for (uint32_t d = n_dims; d-- > 0; rest /= shape[d]) {
            place[d] = rest % shape[d];
        }
        for (size_t i = 0; i < n && !is_there; i++) {
            is_there = has(&boxes[i], n_dims, place);
        }
        if (!is_there) {
            return true;
        }
    }
    return false;
}

static void check_case(uint64_t seed)
{
    uint64_t state = seed, shape[FERRY_MAX_DIMS] = {0}, found[FERRY_MAX_DIMS];
    uint64_t wanted[FERRY_MAX_DIMS] = {0};
    uint32_t n_dims = 1 + random_below(&state, 3), n_cuts = random_below(&state, 40);
    fy_box boxes[MOST_BOXES] = {{{0}, {0}}};
    size_t n = 1, kept = 0;
    ferry_error error;
    for (uint32_t d = 0; d < n_dims; d++) {
        shape[d] = boxes[0].length[d] = 1 + random_below(&state, MOST_LENGTH);
    }
    for (uint32_t i = 0; i < n_cuts; i++) {
        cut_one(boxes, &n, n_dims, &state);
    }
    for (size_t i = 0; i < n; i++) {
        if (random_below(&state, 5) != 0) {
            boxes[kept++] = boxes[i];
        }
    }
    if (!find_slowly(boxes, kept, shape, n_dims, wanted)) {
        return;
    }
    assert_int_equal(fy_boxes_find_gap(boxes, kept, shape, n_dims, found, &error), FERRY_OK);
    for (uint32_t d = 0; d < n_dims; d++) {
        check_at(found[d] == wanted[d], "seed %llu, dim %u: %llu, not %llu",
                 (unsigned long long)seed, d, (unsigned long long)found[d],
                 (unsigned long long)wanted[d]);
    }
}

static void test_random(void **context)
{
    uint64_t first = first_seed_of(1);
    (void)context;
    for (uint64_t seed = first; seed < first + CASES; seed++) {
        check_case(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
