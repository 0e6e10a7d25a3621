/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that calls fill, as programs of other versions have them: an older one is shorter, a
 * newer one longer. Each lies against a page that nobody may touch, so that a call that writes
 * behind its end crashes. tests/abi/structs.txt says which there are, with all their fields, and
 * every one must have a row here, be read from callers (base/options.h), or be the library's own.
 */
#include "base/options.h"

#include "support/small_checkpoint.h"
#include "support/spec.h"

#include <sys/mman.h>

static ferry_error error;

/* What the calls below ask. */
static struct {
    ferry_spec *spec;
    ferry_plan *plan;
    ferry_cluster *cluster;
    ferry_task_list *tasks;
    ferry_schedule *schedule;
    ferry_simulation *simulation;
    ferry_reference_workloads *workloads;
    ferry_reference_batches *batches;
    ferry_reference_summaries *summaries;
    ferry_reference_schedule *rounds;
    ferry_model *model;
    ferry_group *group;
    ferry_transfers *transfers;
    ferry_reshard_plan *ops;
    ferry_map *map;
    ferry_checkpoint *checkpoint;
    ferry_reshard *reshard, *quantizing;
    ferry_world *world;
    ferry_service *service;
    ferry_mixed_comm *comm;
    ferry_mixed_sketch *sketch;
    unsigned char bytes[16];
} s;

static const char spec_text[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],'dtype':'u8'}],'source':{'mesh':[["
    "'x',2]],'rules':[{'match':'*'}]},'destination':{'mesh':[['x',2]],'first_rank':1,'rules':[{"
    "'match':'*','shard':[{'dim':0,'axis':'x'}]}]}}";

/*
 * The scene
 */

static ferry_param_metadata metadata_of_rank_0(void)
{
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = "a.weight";
    m.n_dims = 1;
    m.shape[0] = 4;
    m.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
    m.tensor_parallel_group_ranks = s.group;
    m.data_parallel_group_ranks = s.group;
    return m;
}

static void make_plan(void)
{
    ferry_cluster_options options = FERRY_CLUSTER_OPTIONS_INIT;
    ferry_task task = FERRY_TASK_INIT;
    options.ranks_per_node = 1;
    options.rank_bytes_per_s = options.node_bytes_per_s = 1e9;
    task.to = 1;
    task.bytes = 4;
    must(try_spec(spec_text, &s.spec, &error), &error);
    must(ferry_plan_create(s.spec, NULL, &s.plan, &error), &error);
    must(ferry_cluster_create(&options, &s.cluster, &error), &error);
    must(ferry_task_list_create(2, &s.tasks, &error), &error);
    must(ferry_task_list_add(s.tasks, &task, &error), &error);
    must(ferry_schedule_create(s.tasks, s.cluster, NULL, &s.schedule, &error), &error);
    must(ferry_simulation_create(s.schedule, NULL, &s.simulation, &error), &error);
}

static void make_reference(void)
{
    ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
    batch.to = 1;
    batch.bytes = 4;
    must(ferry_reference_workloads_create(0, 2, &s.workloads, &error), &error);
    must(ferry_reference_workloads_add_task(s.workloads, 7, 1, 4, 1, &error), &error);
    must(ferry_reference_workloads_pack(s.workloads, 0, 0, &error), &error);
    must(ferry_reference_batches_create(2, &s.batches, &error), &error);
    must(ferry_reference_batches_add(s.batches, &batch, &error), &error);
}

static void make_model(void)
{
    must(ferry_group_create_range(0, 1, 1, &s.group, &error), &error);
    ferry_param_metadata m = metadata_of_rank_0();
    must(ferry_model_create(&s.model, &error), &error);
    must(ferry_model_add(s.model, &m, &error), &error);
    must(ferry_transfers_find_sources("a.weight", &m, &m, 0, &s.transfers, &error), &error);
    must(ferry_reshard_plan_create(s.plan, 1, &s.ops, &error), &error);
}

static void make_map(void)
{
    const ferry_dtype bytes = {.kind = FERRY_U8, .element_bits = 8};
    const uint64_t shape[1] = {8};
    must(ferry_map_create(&s.map, &error), &error);
    must(ferry_map_add_source(s.map, "a", bytes, 1, shape, &error), &error);
    must(ferry_map_add_target(s.map, "b", bytes, 1, shape, &error), &error);
    must(ferry_map_add_copy(s.map, "b", "a", &error), &error);
    must(ferry_map_finish(s.map, &error), &error);
}

static void make_checkpoint(void)
{
    static const uint64_t shape[1] = {4}, square[2] = {4, 4};
    static const unsigned char zeros[32];
    ferry_reshard_options options = FERRY_RESHARD_OPTIONS_INIT;
    small_file file = {0};
    options.quantize = "f8e4m3:2x2=*_proj.weight";
    assert_int_equal(mkdir(small_path("model"), 0700), 0);
    small_add(&file, "a.weight", "U8", shape, 1, "abcd", 4);
    small_add(&file, "b_proj.weight", "BF16", square, 2, zeros, sizeof zeros);
    small_write(&file, small_path("model/model.safetensors"), NULL);
    small_put_text(small_path("model/tokenizer.json"), "{}");
    must(ferry_checkpoint_open(small_path("model"), &s.checkpoint, &error), &error);
    must(ferry_reshard_create(s.checkpoint, "hf", NULL, &s.reshard, &error), &error);
    must(ferry_reshard_create(s.checkpoint, "hf", &options, &s.quantizing, &error), &error);
}

static void make_service(void)
{
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_buffer buffer = ferry_buffer_of(s.bytes, sizeof s.bytes);
    options.trace = true;
    must(ferry_world_create_threads(1, NULL, &s.world, &error), &error);
    must(ferry_service_create(s.world, &options, &s.service, &error), &error);
    must(ferry_service_init(s.service, FERRY_LOG_OFF, &error), &error);
    must(ferry_service_register_send(s.service, 1, &buffer, 0, 4, 0, &error), &error);
    must(ferry_service_register_receive(s.service, 1, &buffer, 8, 4, 0, &error), &error);
    must(ferry_service_schedule(s.service, &error), &error);
    must(ferry_service_run(s.service, NULL, &error), &error);
}

static void make_comm(void)
{
    ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    options.use_autotune = true;
    options.autotune_bytes = 1 << 16;
    must(ferry_mixed_comm_create(s.world, &options, &s.comm, &error), &error);
    must(ferry_mixed_comm_run_autotune(s.comm, &error), &error);
    options.world_size = options.local_size = 2;
    options.inter_size = 1;
    must(ferry_mixed_sketch_create(&options, FERRY_MIXED_REACH_IN_PLACE, &s.sketch, &error),
         &error);
}

static int make_scene(void **state)
{
    if (small_begin(state) != 0) {
        return 1;
    }
    make_plan();
    make_reference();
    make_model();
    make_map();
    make_checkpoint();
    make_service();
    make_comm();
    return 0;
}

static int remove_scene(void **state)
{
    ferry_mixed_comm_destroy(s.comm);
    ferry_mixed_sketch_destroy(s.sketch);
    ferry_service_destroy(s.service);
    ferry_world_destroy(s.world);
    ferry_reshard_destroy(s.quantizing);
    ferry_reshard_destroy(s.reshard);
    ferry_checkpoint_destroy(s.checkpoint);
    ferry_reshard_plan_destroy(s.ops);
    ferry_transfers_destroy(s.transfers);
    ferry_map_destroy(s.map);
    ferry_model_destroy(s.model);
    ferry_group_destroy(s.group);
    ferry_reference_batches_destroy(s.batches);
    ferry_reference_workloads_destroy(s.workloads);
    ferry_simulation_destroy(s.simulation);
    ferry_schedule_destroy(s.schedule);
    ferry_task_list_destroy(s.tasks);
    ferry_cluster_destroy(s.cluster);
    ferry_plan_destroy(s.plan);
    ferry_spec_destroy(s.spec);
    return small_end(state);
}

/*
 * The calls: those that need more than an object and a number come first
 */

static ferry_status get_box(void *out)
{
    const ferry_buffer buffer = ferry_buffer_of(s.bytes, sizeof s.bytes);
    const uint64_t shape[1] = {16}, begin[1] = {4}, length[1] = {8};
    return ferry_box_of(&buffer, 1, 1, shape, begin, length, out, &error);
}

static ferry_status get_machine(void *out)
{
    return ferry_machine_probe(0, out, &error);
}

static ferry_status ask_origin(void *context, const ferry_shard *shard)
{
    return ferry_shard_origin_at(shard, 0, context, &error);
}

static ferry_status get_origin(void *out)
{
    return ferry_plan_visit_shards(s.plan, FERRY_SIDE_DESTINATION, 1, ask_origin, out, &error);
}

static ferry_status get_metadata(void *out)
{
    ferry_param_description description = FERRY_PARAM_DESCRIPTION_INIT;
    ferry_process_groups groups = FERRY_PROCESS_GROUPS_INIT;
    description.n_dims = 1;
    description.shape[0] = 4;
    description.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
    return ferry_param_metadata_extract(&description, "a", 0, &groups, NULL, out, &error);
}

static ferry_status get_descriptor(void *out)
{
    ferry_param_metadata m = metadata_of_rank_0();
    size_t n = 0;
    m.is_tp = true;
    ferry_status status = ferry_sharding_descriptor_build(&m, &m, out, &n, &error);
    assert_true(status != FERRY_OK || n == 1);
    return status;
}

static ferry_status get_proof(void *out)
{
    text_buffer printed = print_plan(s.plan);
    FILE *stream = fopen(small_path("plan.json"), "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(printed.bytes, 1, printed.used, stream), printed.used);
    assert_int_equal(fclose(stream), 0);
    text_cleanup(&printed);
    small_put_text(small_path("spec.json"), spec_text);
    return ferry_plan_prove(small_path("spec.json"), small_path("plan.json"), out, &error);
}

static ferry_status skip_move(void *context, const ferry_move *one)
{
    (void)context;
    (void)one;
    return FERRY_OK;
}

static ferry_status get_visit(void *out)
{
    return ferry_plan_visit(s.plan, 1, skip_move, NULL, out, &error);
}

/* In a world that lives, where nothing is to be recovered. */
static ferry_status get_recovery(void *out)
{
    static const char alone[] =
        "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],'dtype':'u8'}],'source':{"
        "'mesh':[['x',1]],'rules':[{'match':'*'}]},'destination':{'mesh':[['x',1]],'rules':[{"
        "'match':'*'}]}}";
    ferry_recovery_options options = FERRY_RECOVERY_OPTIONS_INIT;
    ferry_buffer from = ferry_buffer_of(s.bytes, 8), to = ferry_buffer_of(s.bytes + 8, 8);
    ferry_tensors *sources = NULL, *targets = NULL;
    ferry_service *service = NULL;
    ferry_plan *plan = NULL;
    ferry_spec *spec = NULL;
    must(try_spec(alone, &spec, &error), &error);
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    must(ferry_tensors_create(&sources, &error), &error);
    must(ferry_tensors_create(&targets, &error), &error);
    must(ferry_tensors_add(sources, "a", &from, &error), &error);
    must(ferry_tensors_add(targets, "a", &to, &error), &error);
    must(ferry_service_create(s.world, NULL, &service, &error), &error);
    must(ferry_service_init(service, FERRY_LOG_OFF, &error), &error);
    must(ferry_service_bind(service, plan, sources, targets, &error), &error);
    must(ferry_service_schedule(service, &error), &error);
    options.spec = spec;
    ferry_status status =
        ferry_service_recover_onto(&service, &s.world, &options, sources, targets, out, &error);
    ferry_service_destroy(service);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    return status;
}

static ferry_status get_result(void *out)
{
    small_remove(small_path("result"));
    return ferry_reshard_run(s.reshard, small_path("result"), NULL, out, &error);
}

static ferry_status get_verified(void *out)
{
    return ferry_checkpoint_verify(s.checkpoint, s.checkpoint, NULL, out, &error);
}

#define GET(name, ...)                                                                             \
    static ferry_status get_##name(void *out)                                                      \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
GET(batch, ferry_schedule_batch_at(s.schedule, 0, out, &error))
GET(checkpoint_file, ferry_checkpoint_file_at(s.checkpoint, 0, out, &error))
GET(checkpoint_other, ferry_checkpoint_other_at(s.checkpoint, 0, out, &error))
GET(checkpoint_shard, ferry_checkpoint_shard_at(s.checkpoint, 0, 0, out, &error))
GET(checkpoint_tensor, ferry_checkpoint_tensor_at(s.checkpoint, 0, out, &error))
GET(checkpoint_totals, ferry_checkpoint_get_totals(s.checkpoint, out, &error))
GET(destination, ferry_service_destination_at(s.service, 0, out, &error))
GET(comm_info, ferry_mixed_comm_get_info(s.comm, out, &error))
GET(counts, ferry_mixed_comm_get_counts(s.comm, out, &error))
GET(work, ferry_mixed_sketch_count(s.sketch, 0, FERRY_MIXED_BASE_ONE, 8, out, &error))
GET(timing, ferry_mixed_comm_timing_at(s.comm, 0, out, &error))
GET(map_source, ferry_map_source_at(s.map, 0, out, &error))
GET(map_target, ferry_map_target_at(s.map, 0, out, &error))
GET(model_param, ferry_model_at(s.model, 0, out, &error))
GET(bound, ferry_plan_get_bound(s.plan, out, &error))
GET(plan_statistics, ferry_plan_get_statistics(s.plan, out, &error))
GET(plan_totals, ferry_plan_get_totals(s.plan, out, &error))
GET(rank_bytes, ferry_plan_get_rank_bytes(s.plan, 1, out, &error))
GET(packed_batch, ferry_reference_workloads_batch_at(s.workloads, 1, 0, out, &error))
GET(listed_batch, ferry_reference_batches_at(s.batches, 0, out, &error))
GET(reshard_change, ferry_reshard_change_at(s.quantizing, 0, out, &error))
GET(reshard_file, ferry_reshard_file_at(s.reshard, 0, out, &error))
GET(reshard_other, ferry_reshard_other_at(s.reshard, 0, out, &error))
GET(reshard_totals, ferry_reshard_get_totals(s.reshard, out, &error))
GET(report, ferry_schedule_get_report(s.schedule, out, &error))
GET(segment, ferry_schedule_segment_at(s.schedule, 0, out, &error))
GET(peer, ferry_service_peer_at(s.service, 0, out, &error))
GET(service_statistics, ferry_service_get_statistics(s.service, out, &error))
GET(simulated_rank, ferry_simulation_get_rank(s.simulation, 0, out, &error))
GET(simulated, ferry_simulation_get_report(s.simulation, out, &error))
GET(span, ferry_service_span_at(s.service, 0, out, &error))
GET(transfer, ferry_transfers_at(s.transfers, 0, out, &error))
GET(op, ferry_reshard_plan_receive_at(s.ops, 0, out, &error))
#undef GET

static const struct {
    const char *name; /* of the struct */
    ferry_status (*get)(void *out);
    bool varies; /* another call may say something else */
} outputs[] = {
    {"ferry_batch", get_batch, false},
    {"ferry_box", get_box, false},
    {"ferry_checkpoint_file", get_checkpoint_file, false},
    {"ferry_checkpoint_file", get_reshard_file, false},
    {"ferry_checkpoint_other", get_checkpoint_other, false},
    {"ferry_checkpoint_shard", get_checkpoint_shard, false},
    {"ferry_checkpoint_tensor", get_checkpoint_tensor, false},
    {"ferry_checkpoint_totals", get_checkpoint_totals, false},
    {"ferry_destination", get_destination, false},
    {"ferry_machine", get_machine, true},
    {"ferry_map_tensor", get_map_source, false},
    {"ferry_map_tensor", get_map_target, false},
    {"ferry_mixed_comm_info", get_comm_info, false},
    {"ferry_mixed_counts", get_counts, false},
    {"ferry_mixed_timing", get_timing, false},
    {"ferry_mixed_work", get_work, false},
    {"ferry_origin", get_origin, false},
    {"ferry_param_metadata", get_metadata, false},
    {"ferry_param_metadata", get_model_param, false},
    {"ferry_plan_bound", get_bound, false},
    {"ferry_plan_statistics", get_plan_statistics, false},
    {"ferry_plan_totals", get_plan_totals, false},
    {"ferry_proof", get_proof, false},
    {"ferry_rank_bytes", get_rank_bytes, false},
    {"ferry_recovery", get_recovery, true},
    {"ferry_reference_batch", get_packed_batch, false},
    {"ferry_reference_batch", get_listed_batch, false},
    {"ferry_reshard_change", get_reshard_change, false},
    {"ferry_reshard_other", get_reshard_other, false},
    {"ferry_reshard_result", get_result, true},
    {"ferry_reshard_totals", get_reshard_totals, false},
    {"ferry_schedule_report", get_report, false},
    {"ferry_segment", get_segment, false},
    {"ferry_service_peer", get_peer, false},
    {"ferry_service_statistics", get_service_statistics, false},
    {"ferry_sharding_descriptor", get_descriptor, false},
    {"ferry_simulation_rank", get_simulated_rank, false},
    {"ferry_simulation_report", get_simulated, false},
    {"ferry_span", get_span, false},
    {"ferry_transfer", get_transfer, false},
    {"ferry_transfer_op", get_op, false},
    {"ferry_verify_result", get_verified, true},
    {"ferry_visit_statistics", get_visit, false},
};

/* Handed to a function of the caller's, by the library that made them. */
static const char *const handed[] = {"ferry_progress", "ferry_tensor_statistics"};

/*
 * The list of structs
 */

enum { MOST_STRUCTS = 256, MOST_FIELDS = 64 };

static struct listed {
    char name[64];
    size_t n_fields;
    size_t begin[MOST_FIELDS], bytes[MOST_FIELDS];
} structs[MOST_STRUCTS];
static size_t n_structs;

static void read_list(void)
{
    char name[64], field[64];
    size_t offset, bytes;
    FILE *list = fopen(FERRY_TEST_STRUCTS, "r");
    assert_non_null(list);
    while (fscanf(list, "%63s %63s %zu %zu", name, field, &offset, &bytes) == 4) {
        if (n_structs == 0 || strcmp(structs[n_structs - 1].name, name) != 0) {
            assert_true(n_structs < MOST_STRUCTS);
            snprintf(structs[n_structs++].name, sizeof name, "%s", name);
        }
        struct listed *one = &structs[n_structs - 1];
        assert_true(one->n_fields < MOST_FIELDS);
        one->begin[one->n_fields] = offset;
        one->bytes[one->n_fields++] = bytes;
    }
    fclose(list);
    assert_true(n_structs > 40);
}

static const struct listed *find_struct(const char *name)
{
    for (size_t i = 0; i < n_structs; i++) {
        if (strcmp(structs[i].name, name) == 0) {
            return &structs[i];
        }
    }
    fail_msg("%s is not in the list of structs", name);
    return NULL;
}

/* Of a program that knows so many fields. */
static size_t bytes_of(const struct listed *one, size_t n_fields)
{
    return (one->begin[n_fields - 1] + one->bytes[n_fields - 1] + 7) / 8 * 8;
}

/* What lies between fields is nobody's. */
static bool same_fields(const struct listed *one, size_t n_fields, const unsigned char *a,
                        const unsigned char *b)
{
    bool same = true;
    for (size_t f = 1; f < n_fields; f++) {
        same = same && memcmp(a + one->begin[f], b + one->begin[f], one->bytes[f]) == 0;
    }
    return same;
}

static bool is_input(const char *name)
{
#define NAME(type, init, last) "ferry_" #type,
    static const char *const inputs[] = {FY_INPUT_STRUCTS(NAME)};
#undef NAME
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        if (strcmp(inputs[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void test_all_are_tried(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_structs; i++) {
        const char *name = structs[i].name;
        bool known = is_input(name);
        for (size_t k = 0; k < COUNT_OF(outputs); k++) {
            known = known || strcmp(outputs[k].name, name) == 0;
        }
        for (size_t k = 0; k < COUNT_OF(handed); k++) {
            known = known || strcmp(handed[k], name) == 0;
        }
        check_row(name, known);
    }
}

/* Where n bytes end at the guarded page; the bytes before them are 0xa5. */
static unsigned char *against_the_edge(size_t n)
{
    static unsigned char *pages;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (pages == NULL) {
        pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(pages, MAP_FAILED);
        assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    }
    memset(pages, 0xa5, page);
    return pages + page - n;
}

/* The call by a program whose struct has so many bytes, all zero but the first field. */
static unsigned char *ask(size_t row, size_t bytes)
{
    unsigned char *out = memset(against_the_edge(bytes), 0, bytes);
    memcpy(out, &bytes, sizeof bytes);
    check_status(outputs[row].name, FERRY_OK, outputs[row].get(out), &error);
    check_row(outputs[row].name, memcmp(out, &bytes, sizeof bytes) == 0);
    check_row(outputs[row].name, out[-1] == 0xa5);
    return out;
}

/* An older caller gets its fields and nothing behind them; a newer one those that are known. */
static void test_outputs(void **state)
{
    (void)state;
    static const unsigned char nothing[1024];
    unsigned char whole[1024];
    for (size_t i = 0; i < COUNT_OF(outputs); i++) {
        const struct listed *one = find_struct(outputs[i].name);
        size_t n_fields = one->n_fields, n = bytes_of(one, n_fields);
        assert_true(n + 64 <= sizeof whole);
        memcpy(whole, ask(i, n), n);
        check_row(one->name, !same_fields(one, n_fields, whole, nothing));
        for (size_t known = 2; known < n_fields; known++) {
            const unsigned char *out = ask(i, bytes_of(one, known));
            check_at(outputs[i].varies || same_fields(one, known, out, whole),
                     "%s: a program that knows %zu fields", one->name, known);
        }
        unsigned char *out = ask(i, n + 64);
        check_row(one->name, outputs[i].varies || same_fields(one, n_fields, out, whole));
        check_row(one->name, memcmp(out + n, nothing, 64) == 0);
        out = memset(against_the_edge(n), 0, n);
        check_status(one->name, FERRY_ERR_MISUSE, outputs[i].get(out), &error);
        check_says(one->name, "struct_size", &error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_tried),
        cmocka_unit_test(test_outputs),
    };
    read_list();
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
