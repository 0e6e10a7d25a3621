/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The fit behind `ferry bench mixed --predict`: it finds costs that predict what it was shown, of
 * costs that this test makes up, and what lies between; and it never finds one below 0.
 */
#include "bench_mixed_predict.h"
#include "support/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

ferry_status mixed_fail(ferry_error *error, ferry_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

enum { MOST = 1000 };

static uint64_t state;

static double draw(double least, double most)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return least * pow(most / least, (double)(state >> 11) / 9007199254740992.0);
}

static mixed_costs draw_costs(uint32_t processors)
{
    mixed_costs c = {.processors = processors,
                     .call = draw(1e-7, 1e-5),
                     .wait = draw(1e-7, 1e-5),
                     .turn = draw(1e-7, 1e-5),
                     .between_wait = draw(1e-6, 1e-4),
                     .step = draw(1e-8, 1e-6),
                     .write = draw(1e-11, 1e-10),
                     .read = draw(1e-11, 1e-10),
                     .between = draw(1e-10, 1e-8),
                     .n_knots = 3};
    for (size_t i = 0; i < c.n_knots; i++) {
        c.tensors[i] = (mixed_knot){pow(64, (double)i) * 8192, draw(1e-11, 1e-9)};
    }
    return c;
}

static mixed_sketches open_ranks(uint32_t nodes, uint32_t tp, uint32_t dp, uint32_t inter_tp)
{
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    mixed_sketches sketches = {.at = NULL};
    ferry_error error;
    o.local_size = tp * dp;
    o.inter_size = nodes;
    o.world_size = nodes * tp * dp;
    o.local_tp_size = tp;
    o.local_dp_size = dp;
    o.inter_tp_size = inter_tp;
    must(mixed_sketches_open(&o, true, o.world_size, &sketches, &error), &error);
    assert_int_equal(sketches.n, o.world_size);
    return sketches;
}

/* All calls of these sizes that have a schedule, with the seconds that the costs say. */
static size_t list_calls(const mixed_costs *costs, const mixed_sketches *sketches, double least,
                         double factor, mixed_sample *samples)
{
    size_t n = 0;
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
            for (double bytes = least; bytes <= 8192 * 4096.0; bytes *= factor) {
                mixed_sample *s = &samples[n];
                *s = (mixed_sample){op, mode, (uint64_t)bytes, (uint64_t)bytes / 2, 0};
                s->seconds = mixed_predict(costs, sketches, s);
                n += s->seconds > 0;
            }
        }
    }
    return n;
}

static void check_fit(const mixed_sketches *sketches, uint32_t processors)
{
    static mixed_sample shown[MOST], others[MOST];
    mixed_costs made_up = draw_costs(processors), found = {.processors = processors};
    ferry_error error;
    size_t n = list_calls(&made_up, sketches, 8192, 64, shown);
    size_t n_others = list_calls(&made_up, sketches, 8192 * 8, 64, others);
    assert_true(n > 8 && n_others > 5 && n < MOST && n_others < MOST);
    must(mixed_fit(shown, n, sketches, &found, &error), &error);
    assert_int_equal(found.n_knots, 3);
    for (size_t i = 0; i < n; i++) {
        double off = fabs(mixed_predict(&found, sketches, &shown[i]) / shown[i].seconds - 1);
        check_at(off < 0.02, "%s %s, %llu bytes: %g off", ferry_mixed_op_name(shown[i].op),
                 ferry_mixed_mode_name(shown[i].mode), (unsigned long long)shown[i].bytes, off);
    }
    for (size_t i = 0; i < n_others; i++) {
        double off = fabs(mixed_predict(&found, sketches, &others[i]) / others[i].seconds - 1);
        check_at(off < 0.05, "%s %s, %llu bytes between: %g off", ferry_mixed_op_name(others[i].op),
                 ferry_mixed_mode_name(others[i].mode), (unsigned long long)others[i].bytes, off);
    }
    const double all[] = {found.call, found.wait,  found.turn, found.between_wait,
                          found.step, found.write, found.read, found.between};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_true(all[i] >= 0);
    }
}

static void test_made_up_costs(void **unused)
{
    (void)unused;
    const uint32_t shapes[][4] = {
        {1, 2, 1, 1}, {1, 2, 2, 1}, {1, 1, 4, 1}, {2, 2, 2, 2}, {4, 2, 1, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        mixed_sketches sketches =
            open_ranks(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
        for (uint32_t turn = 0; turn < 8; turn++) {
            state = 1000 * i + turn;
            check_fit(&sketches, turn % 3);
        }
        mixed_sketches_close(&sketches);
    }
}

static double power_of(const mixed_sample *sample)
{
    return (double)((sample->op * FERRY_MIXED_N_MODES + sample->mode) % 7) / 120 - 0.025;
}

/*
 * Operations and modes that each take longer than the costs say, or shorter, by a power of the
 * size: that is a straight line between logarithms, so beside samples it is known.
 */
static void test_beside_samples(void **unused)
{
    (void)unused;
    static mixed_sample shown[MOST], others[MOST];
    mixed_sketches sketches = open_ranks(1, 2, 2, 1);
    mixed_costs costs = draw_costs(2);
    size_t n = list_calls(&costs, &sketches, 8192, 64, shown);
    size_t n_others = list_calls(&costs, &sketches, 8192 * 8, 64, others);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        shown[i].seconds *= pow((double)shown[i].bytes, power_of(&shown[i]));
    }
    for (size_t i = 0; i < n_others; i++) {
        const mixed_sample *s = &others[i];
        double off = pow((double)s->bytes, power_of(s));
        double found = mixed_predict_beside(&costs, &sketches, shown, n, s) / s->seconds;
        worst = fmax(worst, fabs(off - 1));
        check_at(fabs(found / off - 1) < 1e-9, "%s %s, %llu bytes: %g, not %g",
                 ferry_mixed_op_name(s->op), ferry_mixed_mode_name(s->mode),
                 (unsigned long long)s->bytes, found, off);
    }
    for (size_t i = 0; i < n; i++) {
        double found = mixed_predict_beside(&costs, &sketches, shown, n, &shown[i]);
        assert_true(fabs(found / shown[i].seconds - 1) < 1e-9);
    }
    assert_true(n_others > 5 && worst > 0.3);
    mixed_sketches_close(&sketches);
}

/* Beyond all samples the nearest one counts, and without any the costs alone do. */
static void test_beside_nothing(void **unused)
{
    (void)unused;
    mixed_sketches sketches = open_ranks(1, 2, 1, 1);
    mixed_costs costs = draw_costs(2);
    mixed_sample call = {FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_BASE_ONE, 1 << 20, 1 << 19, 0};
    mixed_sample samples[] = {call, call};
    double alone = mixed_predict(&costs, &sketches, &call);
    samples[0].bytes = 1 << 16;
    samples[0].count = 1 << 15;
    samples[1].op = FERRY_MIXED_ALL_GATHER;
    samples[1].seconds = 100;
    assert_true(alone > 0);
    assert_true(mixed_predict_beside(&costs, &sketches, samples, 0, &call) == alone);
    for (double off = 1.5; off < 200; off *= 1.3) {
        samples[0].seconds = off * mixed_predict(&costs, &sketches, &samples[0]);
        double found = mixed_predict_beside(&costs, &sketches, samples, 2, &call) / alone;
        assert_true(fabs(found - fmin(off, 2)) < 1e-9);
        samples[0].seconds /= off * off;
        found = mixed_predict_beside(&costs, &sketches, samples, 2, &call) / alone;
        assert_true(fabs(found - fmax(1 / off, 0.5)) < 1e-9);
    }
    mixed_sketches_close(&sketches);
}

/* Samples that no costs explain: a call that is shorter the more it moves. None is below 0. */
static void test_nothing_below_zero(void **unused)
{
    (void)unused;
    mixed_sample samples[MOST];
    mixed_costs costs = draw_costs(2), found = {.processors = 2};
    mixed_sketches sketches = open_ranks(1, 2, 2, 1);
    ferry_error error;
    size_t n = list_calls(&costs, &sketches, 8192, 64, samples);
    for (size_t i = 0; i < n; i++) {
        samples[i].seconds = 1e-3 / (double)samples[i].bytes;
    }
    must(mixed_fit(samples, n, &sketches, &found, &error), &error);
    assert_true(found.call >= 0 && found.write >= 0 && found.read >= 0 && found.step >= 0);
    for (size_t i = 0; i < found.n_knots; i++) {
        assert_true(found.tensors[i].each >= 0);
    }
    mixed_sketches_close(&sketches);
}

static void test_nothing_to_learn(void **unused)
{
    (void)unused;
    const mixed_sample sample = {FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_AUTOTUNE, 8192, 4096, 1};
    mixed_costs found = {.processors = 2};
    mixed_sketches sketches = open_ranks(1, 2, 1, 1);
    ferry_error error;
    assert_int_equal(mixed_fit(&sample, 1, &sketches, &found, &error), FERRY_ERR_INVALID_INPUT);
    assert_non_null(strstr(error.message, "no call to which costs can be fitted"));
    assert_true(mixed_predict(&found, &sketches, &sample) == 0);
    mixed_sketches_close(&sketches);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_up_costs),    cmocka_unit_test(test_beside_samples),
        cmocka_unit_test(test_beside_nothing),   cmocka_unit_test(test_nothing_below_zero),
        cmocka_unit_test(test_nothing_to_learn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
