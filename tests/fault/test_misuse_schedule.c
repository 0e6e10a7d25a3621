/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Mistakes in calls of schedule.h, and tasks that nobody can schedule: statuses with a sentence. */
#include "support/spec.h"

#include <ferry/schedule.h>

#include <math.h>

static ferry_error error;
static ferry_plan *plan, *other;
static ferry_task_list *tasks;
static ferry_cluster *cluster;
static ferry_schedule *schedule;
static ferry_simulation *simulation;
static ferry_cluster_options node = FERRY_CLUSTER_OPTIONS_INIT;
static ferry_schedule_options usual = FERRY_SCHEDULE_OPTIONS_INIT;

static ferry_status add(ferry_task_list *list, uint64_t id, uint32_t from, uint32_t to,
                        uint64_t bytes, uint64_t element_bytes, ferry_error *e)
{
    ferry_task task = FERRY_TASK_INIT;
    task.task_id = id;
    task.from = from;
    task.to = to;
    task.bytes = bytes;
    task.element_bytes = element_bytes;
    return ferry_task_list_add(list, &task, e);
}

static int make_scene(void **state)
{
    (void)state;
    static const char spec[] =
        "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],'dtype':'u8'}],"
        "'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
        "'destination':{'mesh':[['x',%d]],'first_rank':1,'rules':[{'match':'*'}]}}";
    char text[400];
    snprintf(text, sizeof text, spec, 2);
    plan = plan_of(text, NULL);
    snprintf(text, sizeof text, spec, 3);
    other = plan_of(text, NULL);
    node.rank_bytes_per_s = 10;
    node.node_bytes_per_s = 20;
    must(ferry_cluster_create(&node, &cluster, &error), &error);
    must(ferry_task_list_create(3, &tasks, &error), &error);
    must(add(tasks, 1, 0, 1, 8, 4, &error), &error);
    must(ferry_schedule_create_for_plan(plan, NULL, &schedule, &error), &error);
    must(ferry_simulation_create(schedule, NULL, &simulation, &error), &error);
    return 0;
}

static int remove_scene(void **state)
{
    (void)state;
    ferry_simulation_destroy(simulation);
    ferry_schedule_destroy(schedule);
    ferry_task_list_destroy(tasks);
    ferry_cluster_destroy(cluster);
    ferry_plan_destroy(plan);
    ferry_plan_destroy(other);
    return 0;
}

/* One call: it must be refused as misuse, with a sentence, and again without a place for one. */
#define refuse(call_with_error)                                                                    \
    do {                                                                                           \
        ferry_error *e = &error;                                                                   \
        error.message[0] = '\0';                                                                   \
        check_status(#call_with_error, FERRY_ERR_MISUSE, call_with_error, &error);                 \
        check_row(#call_with_error, strlen(error.message) > 5);                                    \
        e = NULL;                                                                                  \
        check_row(#call_with_error, (call_with_error) == FERRY_ERR_MISUSE);                        \
    } while (0)

static void test_clusters(void **state)
{
    (void)state;
    ferry_cluster *made = NULL;
    ferry_cluster_options none = {0};
    refuse(ferry_cluster_create(NULL, &made, e));
    refuse(ferry_cluster_create(&none, &made, e));
    refuse(ferry_cluster_create(&node, NULL, e));
    refuse(ferry_cluster_set_node(NULL, 0, 1, 1, e));
    for (size_t i = 0; i < 6; i++) {
        static const double wrong[] = {0, -1, NAN, INFINITY, 0, 0};
        ferry_cluster_options bad = node;
        *(i % 2 == 0 ? &bad.rank_bytes_per_s : &bad.node_bytes_per_s) = wrong[i];
        assert_int_equal(ferry_cluster_create(&bad, &made, &error), FERRY_ERR_INVALID_INPUT);
        check_says("rates", "rates are from 1e-6 to 1e30", &error);
        bad = node;
        bad.latency_s = i % 2 == 0 ? -1 : NAN;
        assert_int_equal(ferry_cluster_create(&bad, &made, &error), FERRY_ERR_INVALID_INPUT);
        check_says("latency", "latency", &error);
    }
    assert_null(made);
    ferry_cluster_destroy(NULL);
}

static void test_tasks(void **state)
{
    (void)state;
    ferry_task_list *made = NULL;
    ferry_task none = {0};
    refuse(ferry_task_list_create(3, NULL, e));
    refuse(ferry_task_list_add(NULL, &(ferry_task)FERRY_TASK_INIT, e));
    refuse(ferry_task_list_add(tasks, NULL, e));
    refuse(ferry_task_list_add(tasks, &none, e));
    assert_true(ferry_task_list_create(0, &made, &error) != FERRY_OK);
    assert_true(ferry_task_list_create(UINT32_MAX, &made, &error) != FERRY_OK);
    check_says("ranks", "4294967295 ranks", &error);
    assert_null(made);
    ferry_task_list_destroy(NULL);
}

static void test_schedules(void **state)
{
    (void)state;
    ferry_schedule *made = NULL;
    ferry_schedule_options none = {0}, rule = usual, duplex = usual;
    rule.rule = 3;
    duplex.duplex = 2;
    refuse(ferry_schedule_create(NULL, cluster, &usual, &made, e));
    refuse(ferry_schedule_create(tasks, cluster, &usual, NULL, e));
    refuse(ferry_schedule_create(tasks, cluster, &none, &made, e));
    refuse(ferry_schedule_create(tasks, cluster, &rule, &made, e));
    refuse(ferry_schedule_create(tasks, cluster, &duplex, &made, e));
    refuse(ferry_schedule_create_for_plan(NULL, &usual, &made, e));
    refuse(ferry_schedule_create_for_plan(plan, &usual, NULL, e));
    refuse(ferry_schedule_create_for_plan(plan, &none, &made, e));
    refuse(ferry_schedule_create_for_plan(plan, &rule, &made, e));
    assert_null(made);
    ferry_schedule_destroy(NULL);
}

static void test_questions(void **state)
{
    (void)state;
    ferry_schedule_report report = FERRY_SCHEDULE_REPORT_INIT, no_report = {0};
    ferry_batch batch = FERRY_BATCH_INIT, no_batch = {0};
    ferry_segment segment = FERRY_SEGMENT_INIT, no_segment = {0};
    uint64_t number = 4711;
    double idle = 4711;
    char digest[33];
    must(ferry_schedule_get_report(schedule, &report, &error), &error);
    uint64_t n_batches = report.n_batches, n_segments = report.n_segments;
    uint32_t n_sends = ferry_schedule_send_count(schedule, 0);
    uint32_t n_recvs = ferry_schedule_receive_count(schedule, 1);
    assert_true(n_batches > 0 && n_sends > 0 && n_recvs > 0);
    refuse(ferry_schedule_get_report(NULL, &report, e));
    refuse(ferry_schedule_get_report(schedule, NULL, e));
    refuse(ferry_schedule_get_report(schedule, &no_report, e));
    refuse(ferry_schedule_batch_at(NULL, 0, &batch, e));
    refuse(ferry_schedule_batch_at(schedule, n_batches, &batch, e));
    refuse(ferry_schedule_batch_at(schedule, UINT64_MAX, &batch, e));
    refuse(ferry_schedule_batch_at(schedule, 0, NULL, e));
    refuse(ferry_schedule_batch_at(schedule, 0, &no_batch, e));
    refuse(ferry_schedule_segment_at(NULL, 0, &segment, e));
    refuse(ferry_schedule_segment_at(schedule, n_segments, &segment, e));
    refuse(ferry_schedule_segment_at(schedule, 0, NULL, e));
    refuse(ferry_schedule_segment_at(schedule, 0, &no_segment, e));
    refuse(ferry_schedule_send_at(NULL, 0, 0, &number, e));
    refuse(ferry_schedule_send_at(schedule, 3, 0, &number, e));
    refuse(ferry_schedule_send_at(schedule, 0, n_sends, &number, e));
    refuse(ferry_schedule_send_at(schedule, 0, 0, NULL, e));
    refuse(ferry_schedule_receive_at(NULL, 1, 0, &number, e));
    refuse(ferry_schedule_receive_at(schedule, UINT32_MAX, 0, &number, e));
    refuse(ferry_schedule_receive_at(schedule, 1, n_recvs, &number, e));
    refuse(ferry_schedule_receive_at(schedule, 1, 0, NULL, e));
    refuse(ferry_schedule_get_idle(NULL, 0, &idle, e));
    refuse(ferry_schedule_get_idle(schedule, 3, &idle, e));
    refuse(ferry_schedule_get_idle(schedule, 0, NULL, e));
    assert_true(number == 4711 && idle == 4711 && batch.bytes == 0 && segment.bytes == 0);
    assert_int_equal(ferry_schedule_send_count(NULL, 0), 0);
    assert_int_equal(ferry_schedule_receive_count(NULL, 0), 0);
    assert_int_equal(ferry_schedule_send_count(schedule, 3), 0);
    assert_int_equal(ferry_schedule_receive_count(schedule, UINT32_MAX), 0);
    ferry_schedule_digest(NULL, digest, sizeof digest);
    assert_string_equal(digest, "00000000000000000000000000000000");
}

static int write_nowhere(void *context, const char *bytes, size_t n_bytes)
{
    (void)context;
    (void)bytes;
    (void)n_bytes;
    return -1;
}

static void test_output(void **state)
{
    (void)state;
    ferry_plan_json_options none = {0};
    refuse(ferry_schedule_write_json(NULL, plan, NULL, write_nowhere, NULL, e));
    refuse(ferry_schedule_write_json(schedule, NULL, NULL, write_nowhere, NULL, e));
    refuse(ferry_schedule_write_json(schedule, plan, NULL, NULL, NULL, e));
    refuse(ferry_schedule_write_json(schedule, plan, &none, write_nowhere, NULL, e));
    refuse(ferry_schedule_write_json(schedule, other, NULL, write_nowhere, NULL, e));
    check_says("worlds", "3 ranks cannot be that of a plan of 4 ranks", &error);
    ferry_report_options of_other = FERRY_REPORT_OPTIONS_INIT;
    of_other.schedule = schedule;
    refuse(ferry_plan_write_html(other, &of_other, write_nowhere, NULL, e));
    check_says("worlds", "3 ranks cannot be that of a plan of 4 ranks", &error);
    assert_int_equal(ferry_schedule_write_json(schedule, plan, NULL, write_nowhere, NULL, &error),
                     FERRY_ERR_IO);
    refuse(ferry_simulation_write_trace(NULL, write_nowhere, NULL, e));
    refuse(ferry_simulation_write_trace(simulation, NULL, NULL, e));
    assert_int_equal(ferry_simulation_write_trace(simulation, write_nowhere, NULL, &error),
                     FERRY_ERR_IO);
}

static void test_simulations(void **state)
{
    (void)state;
    ferry_simulation *made = NULL;
    ferry_simulation_options none = {0}, back = FERRY_SIMULATION_OPTIONS_INIT, odd = back;
    ferry_simulation_report report = FERRY_SIMULATION_REPORT_INIT, no_report = {0};
    ferry_simulation_rank rank = FERRY_SIMULATION_RANK_INIT, no_rank = {0};
    double start = 4711, end = 4711;
    back.pack_bytes_per_s = -1;
    odd.pack_bytes_per_s = NAN;
    refuse(ferry_simulation_create(NULL, NULL, &made, e));
    refuse(ferry_simulation_create(schedule, NULL, NULL, e));
    refuse(ferry_simulation_create(schedule, &none, &made, e));
    refuse(ferry_simulation_create(schedule, &back, &made, e));
    refuse(ferry_simulation_create(schedule, &odd, &made, e));
    refuse(ferry_simulation_get_report(NULL, &report, e));
    refuse(ferry_simulation_get_report(simulation, NULL, e));
    refuse(ferry_simulation_get_report(simulation, &no_report, e));
    refuse(ferry_simulation_get_rank(NULL, 0, &rank, e));
    refuse(ferry_simulation_get_rank(simulation, 3, &rank, e));
    refuse(ferry_simulation_get_rank(simulation, 0, NULL, e));
    refuse(ferry_simulation_get_rank(simulation, 0, &no_rank, e));
    refuse(ferry_simulation_get_batch_time(NULL, 0, &start, &end, e));
    refuse(ferry_simulation_get_batch_time(simulation, UINT64_MAX, &start, &end, e));
    refuse(ferry_simulation_get_batch_time(simulation, 0, NULL, &end, e));
    refuse(ferry_simulation_get_batch_time(simulation, 0, &start, NULL, e));
    assert_true(made == NULL && start == 4711 && end == 4711);
    ferry_simulation_destroy(NULL);
}

/* Up to two tasks that are refused when they are added, or when they are scheduled. */
typedef struct bad_tasks {
    const char *name;
    uint64_t slot_bytes;
    ferry_task tasks[2];
    const char *says;
} bad_tasks;

#define TASK(id, f, t, n, element)                                                                 \
    {                                                                                              \
        .struct_size = sizeof(ferry_task), .task_id = id, .from = f, .to = t, .bytes = n,          \
        .element_bytes = element                                                                   \
    }

static const bad_tasks bad_rows[] = {
    {"no bytes", 0, {TASK(7, 0, 1, 0, 1)}, "task 7 from rank 0 to rank 1 has no bytes"},
    {"no elements", 0, {TASK(7, 0, 1, 8, 0)}, "8 bytes are not a whole number of elements of 0"},
    {"half an element",
     0,
     {TASK(7, 0, 1, 6, 4)},
     "6 bytes are not a whole number of elements of 4"},
    {"a huge element", 0, {TASK(7, 0, 1, 1ull << 33, 1ull << 33)}, "elements of 8589934592 bytes"},
    {"no sender",
     0,
     {TASK(7, 3, 1, 8, 1)},
     "task 7 goes from rank 3 to rank 1, but there are only 3"},
    {"no receiver", 0, {TASK(7, 0, 99, 8, 1)}, "from rank 0 to rank 99, but there are only 3"},
    {"a slot of no element", 3, {TASK(7, 0, 1, 8, 4)}, "do not fit a slot of 3 bytes"},
    {"one id twice",
     0,
     {TASK(7, 0, 1, 8, 4), TASK(7, 0, 1, 4, 4)},
     "task 7 occurs twice from rank 0 to rank 1"},
    {"beyond 2^64",
     0,
     {TASK(7, 0, 1, 1ull << 63, 1), TASK(8, 0, 1, 1ull << 63, 1)},
     "from rank 0 to rank 1 exceed 2^64 bytes"},
    {"beyond 2^60", 0, {TASK(7, 0, 1, 1ull << 60, 1)}, "less than 2^60 bytes"},
    {"beyond 2^31 batches", 16, {TASK(7, 0, 1, 1ull << 40, 1)}, "take larger slots"},
};

static void test_bad_input(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad_rows); i++) {
        const bad_tasks *row = &bad_rows[i];
        ferry_schedule_options options = usual;
        options.slot_bytes = row->slot_bytes;
        for (uint32_t rule = 0; rule < 3; rule++) {
            ferry_task_list *list = NULL;
            ferry_schedule *made = NULL;
            ferry_status status = ferry_task_list_create(3, &list, &error);
            for (size_t t = 0; t < 2 && row->tasks[t].bytes + row->tasks[t].task_id > 0; t++) {
                status =
                    status == FERRY_OK ? ferry_task_list_add(list, &row->tasks[t], &error) : status;
            }
            options.rule = rule;
            if (status == FERRY_OK) {
                status = ferry_schedule_create(list, NULL, &options, &made, &error);
            }
            check_row(row->name, status == FERRY_ERR_INVALID_INPUT || status == FERRY_ERR_LIMIT);
            check_says(row->name, row->says, &error);
            assert_null(made);
            ferry_task_list_destroy(list);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clusters),  cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_schedules), cmocka_unit_test(test_questions),
        cmocka_unit_test(test_output),    cmocka_unit_test(test_simulations),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
