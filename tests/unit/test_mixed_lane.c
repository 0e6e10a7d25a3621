/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane whose last step is over before its device is: its end counts as something that was done.
 * Who drives it sleeps until the bell rings, and looks at nothing else to know whether it may go
 * on.
 */
#include "collective/lane.h"
#include "support/check.h"

static int n_late; /* looks at which the device is not done yet */

static fy_progress end_late(fy_mix_lane *lane)
{
    (void)lane;
    return n_late-- > 0 ? FY_PROGRESS_BLOCKED : FY_PROGRESS_DONE;
}

static void test_the_end_of_a_device(void **state)
{
    static const fy_mix_verbs verbs = {.end = end_late};
    fy_mix_schedule schedule = {.op = FERRY_MIXED_ALL_REDUCE};
    fy_mix_call call = {.schedule = &schedule};
    fy_mix_lane lane = {.call = &call, .verbs = &verbs};
    ferry_error error;
    (void)state;
    assert_int_equal(fy_program_lane_add(&schedule.program, FY_ALONE, false, false, &error),
                     FERRY_OK);
    assert_int_equal(fy_drive_open(&lane.drive, &schedule.program, NULL, &error), FERRY_OK);
    fy_drive_begin(&lane.drive, &schedule.program, &verbs.steps, &lane, 0);
    n_late = 2;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fy_mix_lane_advance(&lane), FY_PROGRESS_BLOCKED);
        assert_false(lane.done);
        assert_int_equal(lane.moved, 0);
    }
    assert_int_equal(fy_mix_lane_advance(&lane), FY_PROGRESS_DONE);
    assert_true(lane.done);
    assert_int_equal(lane.moved, 1);
    fy_drive_close(&lane.drive);
    fy_program_cleanup(&schedule.program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_end_of_a_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
