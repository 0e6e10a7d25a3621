/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory the schedule of a plan takes for each of its tasks, at the worst moment: large
 * plans have a hundred million. Memory is counted, not measured.
 */
#include "support/check.h"
#include "support/counted_memory.h"
#include "support/spec.h"

typedef struct cost {
    size_t most, kept;
} cost;

/* Of many small tensors that n_replicas ranks each want from four: contents are shared. */
static cost schedule_cost(uint32_t n_tensors, uint32_t n_replicas)
{
    char quoted[1024];
    snprintf(quoted, sizeof quoted,
             "{'format':'ferry.spec/1','tensors':[{'name':'layers.{0}','count':[%u],"
             "'shape':[8,3],'dtype':'f32'}],'source':{'mesh':[['tp',4]],'rules':[{'match':'*',"
             "'shard':[{'dim':0,'axis':'tp'}]}]},'destination':{'first_rank':4,'mesh':[['dp',%u]],"
             "'rules':[{'match':'*'}]}}",
             n_tensors, n_replicas);
    ferry_plan *plan = plan_of(quoted, NULL);
    ferry_schedule *schedule = NULL;
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    ferry_schedule_report report = FERRY_SCHEDULE_REPORT_INIT;
    ferry_error error;
    options.no_relays = true;
    options.max_tasks = 64; /* a digest is made of 512 batches at a time, whatever they hold */
    size_t before = live;
    most = live;
    must(ferry_schedule_create_for_plan(plan, &options, &schedule, &error), &error);
    cost c = {.most = most - before, .kept = live - before};
    must(ferry_schedule_get_report(schedule, &report, &error), &error);
    assert_true(report.n_segments >= 4 * (uint64_t)n_tensors * n_replicas);
    ferry_schedule_destroy(schedule);
    assert_int_equal(live, before);
    ferry_plan_destroy(plan);
    return c;
}

/* Beside what a schedule of a tenth takes, for ranks have their price, too. */
static void test_tasks(void **state)
{
    enum { FEW = 2000, MANY = 20000, REPLICAS = 6, MORE = 4 * (MANY - FEW) * REPLICAS };
    (void)state;
    cost few = schedule_cost(FEW, REPLICAS), many = schedule_cost(MANY, REPLICAS);
    check_at((many.most - few.most) / MORE <= 48, "%zu bytes a task at most",
             (many.most - few.most) / MORE);
    check_at((many.kept - few.kept) / MORE <= 26, "%zu bytes a task in the end",
             (many.kept - few.kept) / MORE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
