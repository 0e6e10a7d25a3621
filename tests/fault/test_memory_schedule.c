/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Schedules, simulations and scheduling among ranks when memory runs out. */
#include "steps.h"

#include "support/spec.h"
#include "support/workloads.h"

#include "schedule/part.h"

#include <ferry/reference.h>

enum { WORLD = 4, N_CALLS = 4, MAX_MESSAGE = 4096 };

/* Replicas that relay to each other, on nodes with ports. */
static const char spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[4,100],'dtype':'u8'},"
    "{'name':'b','shape':[12],'dtype':'f32'}],"
    "'source':{'mesh':[['x',2]],'rules':[{'match':'a','shard':[{'dim':0,'axis':'x'}]},"
    "{'match':'*'}]},"
    "'destination':{'mesh':[['x',3]],'first_rank':1,'rules':[{'match':'*'}]}%s}";
static const char cluster[] =
    ",'cluster':{'ranks_per_node':2,'rank_gbytes_per_s':40,'node_gbytes_per_s':30,"
    "'latency_us':1,'nodes':{'1':{'rank_gbytes_per_s':20}}}";

typedef struct message {
    bool is_set;
    size_t n_bytes;
    unsigned char bytes[MAX_MESSAGE];
} message;

/*
 * The messages of a run, so that one rank can run again with the others' as they were. A call whose
 * messages are not there yet fails.
 */
typedef struct tape {
    bool has_gather;
    bool is_recording;
    uint32_t n_ranks;
    message sent[N_CALLS][WORLD];
    size_t lengths[WORLD]; /* of what a call hands out */
    unsigned char all[WORLD * MAX_MESSAGE];
} tape;

typedef struct player {
    tape *tape;
    uint32_t rank;
    int call;
} player;

static void record(message *m, const void *bytes, size_t n_bytes)
{
    assert_in_range(n_bytes, 0, MAX_MESSAGE);
    memcpy(m->bytes, n_bytes == 0 ? (const void *)"" : bytes, n_bytes);
    m->n_bytes = n_bytes;
    m->is_set = true;
}

/* Everybody's messages of a call, the player's own as it is now. */
static int play_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                       const size_t **lengths_out)
{
    player *p = context;
    tape *t = p->tape;
    int call = p->call++;
    size_t used = 0;
    if (t->is_recording) {
        record(&t->sent[call][p->rank], bytes, n_bytes);
    }
    if (t->has_gather && p->rank != 0) {
        return 0;
    }
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const message *m = &t->sent[call][r];
        bool own = r == p->rank;
        if (!own && !m->is_set) {
            return 1;
        }
        t->lengths[r] = own ? n_bytes : m->n_bytes;
        assert_in_range(t->lengths[r], 0, MAX_MESSAGE);
        if (t->lengths[r] > 0) {
            memcpy(t->all + used, own ? bytes : m->bytes, t->lengths[r]);
        }
        used += t->lengths[r];
    }
    *all_out = t->all;
    *lengths_out = t->lengths;
    return 0;
}

/* What rank 0 scatters is kept by receiver. */
static int play_scatter(void *context, const void *all, const size_t *lengths,
                        const void **mine_out, size_t *n_bytes_out)
{
    player *p = context;
    tape *t = p->tape;
    int call = p->call++;
    const unsigned char *at = all;
    for (uint32_t r = 0; r < t->n_ranks && p->rank == 0; r++) {
        if (t->is_recording || r == 0) {
            record(&t->sent[call][r], at, lengths[r]);
        }
        at += lengths[r];
    }
    const message *mine = &t->sent[call][p->rank];
    *mine_out = mine->bytes;
    *n_bytes_out = mine->n_bytes;
    return mine->is_set ? 0 : 1;
}

static ferry_exchange exchange_of(player *p)
{
    ferry_exchange x = FERRY_EXCHANGE_INIT;
    x.context = p;
    x.rank = p->rank;
    x.n_ranks = p->tape->n_ranks;
    x.all_gather = play_gather;
    x.gather = p->tape->has_gather ? play_gather : NULL;
    x.scatter = p->tape->has_gather ? play_scatter : NULL;
    return x;
}

typedef struct scene {
    ferry_task_list *tasks;
    ferry_cluster *cluster;         /* of the variant; NULL: none */
    ferry_schedule_options options; /* of the variant */
    ferry_plan *plan;
    ferry_schedule *schedule; /* of the plan */
    fy_pack part;             /* of the schedule */
    ferry_simulation_options simulated;
    ferry_simulation *simulation;
    ferry_reference_workloads *workloads[2];
    tape plain, rooted, pes; /* ranks' messages */
    uint32_t rank;           /* who runs again */
    /* What steps make. */
    ferry_task_list *made_tasks;
    ferry_cluster *made_cluster;
    ferry_schedule *made_schedule;
    ferry_simulation *made_simulation;
    ferry_reference_workloads *made_workloads;
    ferry_reference_schedule *made_local;
    ferry_reference_summaries *made_summaries;
    text_buffer printed;
    bool is_printed;
} scene;

/* Shared contents, sizes of all kinds, and both ways between some ranks. */
static ferry_status fill_tasks(ferry_task_list **tasks_out, ferry_error *error)
{
    ferry_task_list *tasks = NULL;
    ferry_status status = ferry_task_list_create(6, &tasks, error);
    for (uint32_t i = 0; i < 24 && status == FERRY_OK; i++) {
        ferry_task added = FERRY_TASK_INIT;
        added.task_id = i;
        added.from = i < 15 ? 0 : i % 6;
        added.to = i < 15 ? 1 + i % 5 : (i * 5 + 1) % 6;
        added.bytes = i < 15 ? 400 : 8 * (i + 1);
        added.has_content = i < 15;
        added.content = i / 5;
        status = ferry_task_list_add(tasks, &added, error);
    }
    if (status == FERRY_OK) {
        *tasks_out = tasks;
        tasks = NULL;
    }
    ferry_task_list_destroy(tasks);
    return status;
}

static ferry_status fill_cluster(ferry_cluster **cluster_out, ferry_error *error)
{
    ferry_cluster *made = NULL;
    ferry_cluster_options options = FERRY_CLUSTER_OPTIONS_INIT;
    options.ranks_per_node = 2;
    options.rank_bytes_per_s = 100;
    options.node_bytes_per_s = 120;
    options.latency_s = 0.01;
    ferry_status status = ferry_cluster_create(&options, &made, error);
    for (uint32_t node = 1; node < 3 && status == FERRY_OK; node++) {
        status = ferry_cluster_set_node(made, node, 80, 90, error);
    }
    if (status == FERRY_OK) {
        *cluster_out = made;
        made = NULL;
    }
    ferry_cluster_destroy(made);
    return status;
}

static ferry_status make_tasks(void *context, ferry_error *error)
{
    scene *s = context;
    return fill_tasks(&s->made_tasks, error);
}

static ferry_status make_cluster(void *context, ferry_error *error)
{
    scene *s = context;
    return fill_cluster(&s->made_cluster, error);
}

static ferry_status make_schedule(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_schedule_create(s->tasks, s->cluster, &s->options, &s->made_schedule, error);
}

static ferry_status make_for_plan(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_schedule_create_for_plan(s->plan, &s->options, &s->made_schedule, error);
}

static ferry_status read_part(void *context, ferry_error *error)
{
    scene *s = context;
    return fy_part_read(s->part.bytes, s->part.used, 1, WORLD, &s->made_schedule, error);
}

static int collect(void *context, const char *bytes, size_t n_bytes)
{
    int64_t countdown = failing_countdown; /* the test's own memory does not fail */
    failing_countdown = -1;
    text_append(context, bytes, n_bytes);
    failing_countdown = countdown;
    return 0;
}

static ferry_status print_schedule(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_status status =
        ferry_schedule_write_json(s->schedule, s->plan, NULL, collect, &s->printed, error);
    s->is_printed = status == FERRY_OK;
    return status;
}

static ferry_status print_report(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_report_options options = FERRY_REPORT_OPTIONS_INIT;
    options.schedule = s->schedule;
    options.sections = "[{\"title\":\"a\"}]";
    ferry_status status = ferry_plan_write_html(s->plan, &options, collect, &s->printed, error);
    s->is_printed = status == FERRY_OK;
    return status;
}

static ferry_status make_simulation(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_simulation_create(s->schedule, &s->simulated, &s->made_simulation, error);
}

static ferry_status print_trace(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_status status = ferry_simulation_write_trace(s->simulation, collect, &s->printed, error);
    s->is_printed = status == FERRY_OK;
    return status;
}

static const task pe_tasks[2][3] = {{{5, 1, 24, 4}, {6, 1, 8, 8}, {7, 0, 4, 4}},
                                    {{5, 0, 40, 4}, {6, 0, 16, 8}, {7, 1, 4, 4}}};

static ferry_status make_workloads(void *context, ferry_error *error)
{
    scene *s = context;
    return try_workloads(0, 2, pe_tasks[0], 3, 16, 8, &s->made_workloads, error);
}

static ferry_status build_schedule(void *context, ferry_error *error)
{
    scene *s = context;
    player p = {.tape = &s->pes, .rank = s->rank};
    ferry_exchange x = exchange_of(&p);
    return ferry_reference_schedule_build(s->workloads[s->rank], NULL, &x, &s->made_local,
                                          &s->made_summaries, error);
}

static ferry_status build_rooted(scene *s, tape *t, ferry_error *error)
{
    player p = {.tape = t, .rank = s->rank};
    ferry_exchange x = exchange_of(&p);
    return ferry_schedule_build_rooted(s->plan, &s->options, &x, &s->made_schedule, error);
}

static ferry_status build_with_scatter(void *context, ferry_error *error)
{
    scene *s = context;
    return build_rooted(s, &s->rooted, error);
}

static ferry_status build_by_all_gather(void *context, ferry_error *error)
{
    scene *s = context;
    return build_rooted(s, &s->plain, error);
}

static void describe_schedule(const ferry_schedule *schedule, text_buffer *out)
{
    char digest[33];
    ferry_schedule_digest(schedule, digest, sizeof digest);
    text_printf(out, "schedule %s:", digest);
    for (uint64_t i = 0; i < schedule->n_batches; i++) {
        text_printf(out, " %u to %u", schedule->batches[i].from, schedule->batches[i].to);
    }
    text_printf(out, "\n");
}

static void describe_scene(const void *context, text_buffer *out)
{
    const scene *s = context;
    char digest[33];
    if (s->made_schedule != NULL) {
        describe_schedule(s->made_schedule, out);
    }
    if (s->made_simulation != NULL) {
        ferry_simulation_report report = FERRY_SIMULATION_REPORT_INIT;
        ferry_error error;
        must(ferry_simulation_get_report(s->made_simulation, &report, &error), &error);
        text_printf(out, "%g s\n", report.seconds);
    }
    if (s->is_printed) {
        text_append(out, s->printed.bytes, s->printed.used);
    }
    ferry_reference_schedule_digest(s->made_local, digest, sizeof digest);
    text_printf(out, "%s, tasks %d, cluster %d, %u groups, %llu summaries\n", digest,
                s->made_tasks != NULL, s->made_cluster != NULL,
                ferry_reference_workloads_batch_count(s->made_workloads, 1),
                s->made_summaries == NULL
                    ? 0
                    : (unsigned long long)ferry_reference_summaries_count(s->made_summaries));
}

static void give_back(void *context)
{
    scene *s = context;
    ferry_task_list_destroy(s->made_tasks);
    ferry_cluster_destroy(s->made_cluster);
    ferry_schedule_destroy(s->made_schedule);
    ferry_simulation_destroy(s->made_simulation);
    ferry_reference_workloads_destroy(s->made_workloads);
    ferry_reference_schedule_destroy(s->made_local);
    ferry_reference_summaries_destroy(s->made_summaries);
    s->made_tasks = NULL;
    s->made_cluster = NULL;
    s->made_schedule = NULL;
    s->made_simulation = NULL;
    s->made_workloads = NULL;
    s->made_local = NULL;
    s->made_summaries = NULL;
    s->is_printed = false;
    text_cleanup(&s->printed);
}

static void run_named(scene *s, const char *name, ferry_status (*run)(void *, ferry_error *))
{
    const step t = {name, run, describe_scene, give_back, FERRY_OK};
    run_step(&t, s);
}

/* Runs the ranks in turn until all have what they need of each other. */
static void fill_tape(scene *s, tape *t, ferry_status (*run)(void *, ferry_error *))
{
    uint32_t n_done = 0;
    ferry_error error = {""};
    t->is_recording = true;
    for (int pass = 0; pass < 2 * N_CALLS && n_done < t->n_ranks; pass++) {
        n_done = 0;
        for (s->rank = 0; s->rank < t->n_ranks; s->rank++) {
            n_done += run(s, &error) == FERRY_OK;
            give_back(s);
        }
    }
    if (n_done < t->n_ranks) {
        fail_msg("recording: %s", error.message);
    }
    t->is_recording = false;
    s->rank = 0;
}

static ferry_plan *make_plan(const char *tail)
{
    char text[2000];
    snprintf(text, sizeof text, spec, tail);
    return plan_of(text, NULL);
}

static int make_scene(void **state)
{
    static scene s;
    ferry_error error;
    s.options = (ferry_schedule_options)FERRY_SCHEDULE_OPTIONS_INIT;
    s.options.slot_bytes = 64;
    s.simulated = (ferry_simulation_options)FERRY_SIMULATION_OPTIONS_INIT;
    must(fill_tasks(&s.tasks, &error), &error);
    s.plan = make_plan(cluster);
    must(ferry_schedule_create_for_plan(s.plan, &s.options, &s.schedule, &error), &error);
    fy_part_pack(s.schedule, 1, &s.part);
    assert_false(s.part.failed);
    must(ferry_simulation_create(s.schedule, NULL, &s.simulation, &error), &error);
    for (uint32_t pe = 0; pe < 2; pe++) {
        must(try_workloads(pe, 2, pe_tasks[pe], 3, 16, 8, &s.workloads[pe], &error), &error);
    }
    s.plain.n_ranks = s.rooted.n_ranks = WORLD;
    s.pes.n_ranks = 2;
    s.rooted.has_gather = true;
    *state = &s;
    return 0;
}

static int remove_scene(void **state)
{
    scene *s = *state;
    ferry_task_list_destroy(s->tasks);
    ferry_simulation_destroy(s->simulation);
    ferry_schedule_destroy(s->schedule);
    ferry_plan_destroy(s->plan);
    fy_pack_cleanup(&s->part);
    ferry_reference_workloads_destroy(s->workloads[0]);
    ferry_reference_workloads_destroy(s->workloads[1]);
    return 0;
}

static void test_inputs(void **state)
{
    run_named(*state, "task list", make_tasks);
    run_named(*state, "cluster", make_cluster);
    run_named(*state, "workloads", make_workloads);
}

static bool is_long; /* every combination of options, not a quarter of them */

/*
 * Every rule and duplex, with relays and without, and networks of ranks alone and of nodes. Of any
 * two of these every combination is among the quarter, but for some of the rules.
 */
static bool is_wanted(uint32_t variant)
{
    uint32_t rule = variant % 3, duplex = variant / 3 % 2, alone = variant / 6 % 2;
    uint32_t nodes = variant / 12;
    return is_long || (nodes == (duplex ^ alone) && rule == (variant / 3 + nodes) % 3) ||
           (rule == 2 && duplex == 0 && alone == 0);
}

static void test_schedules(void **state)
{
    scene *s = *state;
    const ferry_schedule_options before = s->options;
    ferry_cluster *nodes = NULL;
    ferry_error error;
    char name[80];
    must(fill_cluster(&nodes, &error), &error);
    for (uint32_t variant = 0; variant < 24; variant++) {
        s->options.rule = variant % 3;
        s->options.duplex = variant / 3 % 2;
        s->options.no_relays = variant / 6 % 2 == 1;
        s->options.slot_bytes = 256;
        s->cluster = variant < 12 ? NULL : nodes;
        if (!is_wanted(variant)) {
            continue;
        }
        snprintf(name, sizeof name, "rule %u, duplex %u, relays %d, nodes %d", s->options.rule,
                 s->options.duplex, !s->options.no_relays, s->cluster != NULL);
        run_named(s, name, make_schedule);
    }
    s->options = before;
    s->cluster = NULL;
    ferry_cluster_destroy(nodes);
}

static void test_plans(void **state)
{
    scene *s = *state;
    assert_true(s->schedule->report.relayed_bytes > 0);
    run_named(s, "schedule of a plan", make_for_plan);
    run_named(s, "JSON", print_schedule);
    run_named(s, "report", print_report);
    run_named(s, "part", read_part);
}

static void test_simulations(void **state)
{
    scene *s = *state;
    run_named(s, "simulation", make_simulation);
    s->simulated.n_send_slots = 1;
    s->simulated.n_receive_slots = 2;
    s->simulated.pack_bytes_per_s = 1e9;
    run_named(s, "simulation with few slots", make_simulation);
    run_named(s, "trace", print_trace);
}

static void test_building(void **state)
{
    scene *s = *state;
    char name[80];
    fill_tape(s, &s->pes, build_schedule);
    fill_tape(s, &s->rooted, build_with_scatter);
    fill_tape(s, &s->plain, build_by_all_gather);
    for (s->rank = 0; s->rank < 2; s->rank++) {
        snprintf(name, sizeof name, "build_schedule, PE %u", s->rank);
        run_named(s, name, build_schedule);
        snprintf(name, sizeof name, "rooted, rank %u", s->rank);
        run_named(s, name, build_with_scatter);
        snprintf(name, sizeof name, "rooted by all-gather, rank %u", s->rank);
        run_named(s, name, build_by_all_gather);
    }
}

int main(int argc, char **argv)
{
    is_long = argc > 1 && strcmp(argv[1], "--long") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs),   cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_plans),    cmocka_unit_test(test_simulations),
        cmocka_unit_test(test_building),
    };
    failing_init();
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
