/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Items that are copied at once: parts that go on where the one before ends are one copy, and what
 * only looks like it is not. Bytes of a task are known by their values.
 */
#include "support/check.h"

#include "exec/team.h"
#include "service/moves.h"

enum { TASKS = 2, TASK_BYTES = 16, MOST_PARTS = 4 };

static char from[TASKS][TASK_BYTES], to[TASKS][TASK_BYTES];

static void fill(void)
{
    for (int t = 0; t < TASKS; t++) {
        for (int i = 0; i < TASK_BYTES; i++) {
            from[t][i] = (char)(1 + TASK_BYTES * t + i);
        }
    }
    memset(to, 0, sizeof to);
}

/* Of each task all bytes that a part names, and no others. */
static void check_copied(size_t row, const fy_item_part *parts, size_t n)
{
    char wanted[TASKS][TASK_BYTES] = {{0}};
    for (size_t p = 0; p < n; p++) {
        for (uint64_t i = parts[p].first; i < parts[p].first + parts[p].bytes; i++) {
            wanted[parts[p].place][i] = from[parts[p].end][i];
        }
    }
    check_at(memcmp(to, wanted, sizeof to) == 0, "row %zu", row);
}

static void test_joined(void **state)
{
    /* Parts of two items: end, place, first byte, bytes. */
    static const struct {
        uint32_t n_parts[2];
        fy_item_part parts[MOST_PARTS];
    } rows[] = {
        {{1, 1}, {{0, 0, 0, 8}, {0, 0, 8, 8}}}, /* one copy */
        {{1, 1}, {{0, 0, 0, 4}, {0, 0, 8, 4}}}, /* a gap */
        {{1, 1}, {{0, 0, 8, 4}, {0, 0, 0, 4}}}, /* the other way round */
        {{1, 1}, {{0, 0, 0, 8}, {1, 1, 8, 8}}}, /* of another task */
        {{1, 1}, {{0, 0, 0, 8}, {0, 1, 8, 8}}}, /* to another */
        {{2, 2}, {{0, 0, 0, 3}, {0, 0, 3, 5}, {0, 0, 8, 2}, {1, 1, 10, 6}}}, /* across items */
    };
    (void)state;
    ferry_error error;
    fy_team *team = NULL;
    must(fy_team_create(1, &team, &error), &error);
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        fy_held held[2 * TASKS];
        fy_end ends[2 * TASKS];
        for (uint32_t t = 0; t < TASKS; t++) {
            held[t] = (fy_held){.front = ferry_buffer_of(from[t], TASK_BYTES)};
            held[TASKS + t] = (fy_held){.front = ferry_buffer_of(to[t], TASK_BYTES)};
        }
        for (uint32_t e = 0; e < 2 * TASKS; e++) {
            ends[e] = (fy_end){.held = e, .run_bytes = TASK_BYTES, .bytes = TASK_BYTES};
        }
        fy_item_part parts[MOST_PARTS];
        memcpy(parts, rows[r].parts, sizeof parts);
        fy_item items[2] = {{.n_parts = rows[r].n_parts[0]},
                            {.n_parts = rows[r].n_parts[1], .first_part = rows[r].n_parts[0]}};
        fy_service_program program = {.local = {.items = items, .n_items = 2, .parts = parts}};
        fy_run_state run = {.number = 1};
        ferry_service service = {.program = &program, .run = &run, .team = team};
        service.registry.held = held;
        service.registry.n_held = COUNT_OF(held);
        service.registry.sends.items = ends;
        service.registry.receives.items = ends + TASKS;
        fill();
        uint64_t skipped = 0;
        must(fy_copy_mapped(&service, NULL, items, 2, NULL, &skipped, &error), &error);
        assert_int_equal(skipped, 0);
        check_copied(r, parts, rows[r].n_parts[0] + rows[r].n_parts[1]);
    }
    fy_team_destroy(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_joined)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
