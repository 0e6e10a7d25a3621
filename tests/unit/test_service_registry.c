/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank registered: kept, found, refused. */
#include "service_ends.h"

#include "service/registry.h"

static char memory[4096];

/* Everything that a call that fails must leave alone. */
typedef struct counts {
    size_t held, targets, names, dims, sends, receives;
} counts;

static counts count(const fy_registry *registry)
{
    return (counts){registry->n_held, registry->n_targets, registry->names_used,
                    registry->n_dims, registry->sends.n,   registry->receives.n};
}

static void test_ends(void **state)
{
    enum { N_ENDS = 20000 };
    fy_registry registry = {0};
    ferry_error error;
    char text[256];
    (void)state;
    for (uint64_t i = 0; i < N_ENDS; i++) {
        ferry_box box = FERRY_BOX_INIT;
        box.buffer = ferry_buffer_of(memory + i % 7, 1000 + i % 13);
        box.offset = i % 500;
        box.n_dims = 2;
        box.length[0] = 3;
        box.stride[0] = 20 + i % 5;
        box.length[1] = 1 + i % 20;
        box.stride[1] = 1;
        box.name = i % 7 == 3 ? "three" : NULL;
        add_end(&registry, i % 2 == 0, N_ENDS - i, (uint32_t)(i % 9), &box);
    }
    fy_registry_sort(&registry);
    assert_int_equal(registry.n_held, 7);
    assert_int_equal(registry.n_targets, 7);
    assert_int_equal(registry.sends.n, N_ENDS / 2);
    uint64_t bytes = 0;
    for (size_t i = 0; i < N_ENDS / 2; i++) {
        const fy_end *end = &registry.receives.items[i];
        uint64_t which = N_ENDS - end->task_id;
        fy_area area = fy_end_area(&registry, end);
        assert_true(i == 0 || end[-1].peer < end->peer ||
                    (end[-1].peer == end->peer && end[-1].task_id < end->task_id));
        assert_int_equal(end->peer, which % 9);
        assert_int_equal(end->bytes, 3 * (1 + which % 20));
        assert_int_equal(area.offset, which % 500);
        assert_int_equal(area.bytes, end->bytes);
        assert_true(registry.held[end->held].front.base == memory + which % 7);
        assert_int_equal(registry.held[end->held].front.bytes, 1012);
        bytes += end->bytes;
    }
    for (size_t i = 0; i < registry.n_targets; i++) {
        const fy_target *target = &registry.targets[i];
        assert_int_equal(registry.held[target->held].destination, i);
        assert_string_equal(registry.names + target->name,
                            registry.held[target->held].front.base == memory + 3 ? "three" : "");
        bytes -= target->bytes;
    }
    assert_int_equal(bytes, 0);
    for (size_t i = 0; i < registry.sends.n; i++) {
        if (registry.sends.items[i].task_id == N_ENDS - 10) {
            fy_end_describe(&registry, &registry.sends.items[i], true, 77, text, sizeof text);
            assert_string_equal(text, "task 19990 (three) from rank 77 to rank 1");
        }
    }
    (void)error;
    fy_registry_cleanup(&registry);
    fy_registry_cleanup(&registry);
}

/* One refused registration: the status, what it says, and nothing else. */
static void refuse(fy_registry *registry, const char *row, uint64_t task_id, const ferry_box *box,
                   ferry_status wanted, const char *says)
{
    counts before = count(registry);
    ferry_error error;
    for (int is_send = 0; is_send < 2; is_send++) {
        check_status(row, wanted, fy_registry_add(registry, is_send, task_id, 4, box, &error),
                     &error);
        check_says(row, says, &error);
        counts after = count(registry);
        check_row(row, memcmp(&before, &after, sizeof before) == 0);
    }
}

static void test_refusals(void **state)
{
    fy_registry registry = {0};
    ferry_box box = flat_box(memory, 100, 10, 20);
    ferry_error error;
    (void)state;
    add_end(&registry, true, 7, 4, &box);
    add_end(&registry, false, 7, 4, &box);
    add_end(&registry, true, 7, 5, &box); /* ids are unique for a pair only */
    add_end(&registry, true, 8, 4, &box);
    add_end(&registry, false, 8, 4, &box);
    box.name = "w";
    refuse(&registry, "twice", 7, &box, FERRY_ERR_INVALID_INPUT, "task 7 ");
    check_status("twice", FERRY_ERR_INVALID_INPUT,
                 fy_registry_add(&registry, true, 7, 4, &box, &error), &error);
    check_says("twice", "task 7 to rank 4 from this rank", &error);
    box.offset = 81;
    refuse(&registry, "outside", 9, &box, FERRY_ERR_INVALID_INPUT,
           "bytes [81, 101) of a buffer of 100");
    box.offset = 10;
    box.length[0] = 0;
    refuse(&registry, "nothing", 9, &box, FERRY_ERR_INVALID_INPUT, "task 9 has 0 bytes");
    box.length[0] = 20;
    box.buffer.kind = FERRY_MEMORY_CUDA;
    refuse(&registry, "device", 9, &box, FERRY_ERR_UNSUPPORTED, "kind cuda");
    box.buffer = ferry_buffer_of(NULL, 100);
    refuse(&registry, "address 0", 9, &box, FERRY_ERR_INVALID_INPUT, "address 0");
    fy_registry_cleanup(&registry);
}

/* In whatever order ids come, one that is there is refused: also behind the sort. */
static void test_ids(void **state)
{
    static const uint64_t ids[] = {3, 5, 9, 4, 20, 7, 0, 6, 30, 8};
    fy_registry registry = {0};
    ferry_box box = flat_box(memory, 100, 10, 20);
    (void)state;
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        add_end(&registry, true, ids[i], 4, &box);
        add_end(&registry, false, ids[i], 4, &box);
        for (size_t k = 0; k <= i; k++) {
            refuse(&registry, "there already", ids[k], &box, FERRY_ERR_INVALID_INPUT,
                   "is registered already");
        }
        if (i == 5) {
            fy_registry_sort(&registry);
        }
    }
    fy_registry_sort(&registry);
    for (uint64_t id = 0; id < 40; id++) {
        bool is_there = false;
        for (size_t k = 0; k < COUNT_OF(ids); k++) {
            is_there = is_there || ids[k] == id;
        }
        check_row("found", (fy_ends_find(&registry.sends, 4, id) != NULL) == is_there);
        check_row("not of this peer", fy_ends_find(&registry.sends, 5, id) == NULL);
    }
    fy_registry_cleanup(&registry);
}

static void test_lengths(void **state)
{
    fy_registry registry = {0};
    ferry_box box = flat_box(memory, 100, 0, 100);
    (void)state;
    add_end(&registry, true, 1, 0, &box);
    box = flat_box(memory, 200, 100, 100);
    add_end(&registry, true, 2, 0, &box);
    box = flat_box(memory, 50, 0, 50);
    add_end(&registry, true, 3, 0, &box);
    assert_int_equal(registry.n_held, 1);
    assert_int_equal(registry.held[0].front.bytes, 200);
    assert_int_equal(registry.held[0].destination, FY_NONE);
    assert_int_equal(registry.n_targets, 0);
    fy_registry_cleanup(&registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
