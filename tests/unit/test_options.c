/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that callers hand in, as programs of other versions have them: an older one is shorter, a
 * newer one longer. Each lies against a page that nobody may touch, so that whoever reads behind
 * its end crashes. Structs that calls fill are in test_outputs.c.
 */
#include "base/options.h"

#include "support/small_checkpoint.h"
#include "support/spec.h"

#include <sys/mman.h>

static ferry_error error;

/* Where n bytes end at the guarded page; the bytes before them are 0xa5. */
static void *against_the_edge(size_t n)
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

/*
 * What the calls below need
 */

typedef struct scene {
    ferry_spec *spec;
    ferry_plan *plan;
    ferry_task_list *tasks;
    ferry_schedule *schedule;
    ferry_reference_workloads *workloads;
    ferry_model *model;
    ferry_group *group;
    ferry_checkpoint *checkpoint;
    ferry_world *world;
    ferry_service *service;
    unsigned char bytes[16];
} scene;

static scene s;

static int gather_own(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    static size_t length;
    static unsigned char kept[4096]; /* the caller may free its bytes */
    (void)context;
    assert_true(n_bytes <= sizeof kept);
    if (n_bytes > 0) {
        memcpy(kept, bytes, n_bytes);
    }
    length = n_bytes;
    *all_out = kept;
    *lengths_out = &length;
    return 0;
}

static int bootstrap_own(void *context, const void *bytes, size_t n_bytes, void *all_out)
{
    (void)context;
    memcpy(all_out, bytes, n_bytes);
    return 0;
}

static ferry_param_metadata metadata_of_rank_0(void)
{
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = "a.weight";
    m.n_dims = 1;
    m.shape[0] = 4;
    m.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
    m.is_tp = true;
    m.tensor_parallel_group_ranks = s.group;
    m.data_parallel_group_ranks = s.group;
    return m;
}

static ferry_box box_of_bytes(void)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = (ferry_buffer){.base = s.bytes, .bytes = sizeof s.bytes};
    box.n_dims = 1;
    box.length[0] = 4;
    box.stride[0] = 1;
    return box;
}

static void make_checkpoint(void)
{
    uint64_t shape[1] = {4};
    small_file file = {0};
    small_add(&file, "a.weight", "U8", shape, 1, "abcd", 4);
    small_write(&file, small_path("model.safetensors"), NULL);
    must(ferry_checkpoint_open(small_folder, &s.checkpoint, &error), &error);
}

static void make_service(void)
{
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    options.trace = true;
    must(ferry_world_create_threads(1, NULL, &s.world, &error), &error);
    must(ferry_service_create(s.world, &options, &s.service, &error), &error);
    must(ferry_service_init(s.service, FERRY_LOG_OFF, &error), &error);
    ferry_buffer buffer = {.base = s.bytes, .bytes = sizeof s.bytes};
    must(ferry_service_register_send(s.service, 1, &buffer, 0, 4, 0, &error), &error);
    must(ferry_service_register_receive(s.service, 1, &buffer, 8, 4, 0, &error), &error);
    must(ferry_service_schedule(s.service, &error), &error);
    must(ferry_service_run(s.service, NULL, &error), &error);
}

static ferry_spec *alone; /* of one rank */

static int make_scene(void **state)
{
    static const char *text = "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],"
                              "'dtype':'u8'}],'source':{'mesh':[['x',2]],'rules':[{'match':'*'}]},"
                              "'destination':{'mesh':[['x',2]],'first_rank':1,'rules':[{'match':"
                              "'*','shard':[{'dim':0,'axis':'x'}]}]}}";
    if (small_begin(state) != 0) {
        return 1;
    }
    must(try_spec(text, &s.spec, &error), &error);
    must(ferry_plan_create(s.spec, NULL, &s.plan, &error), &error);
    must(ferry_task_list_create(2, &s.tasks, &error), &error);
    must(ferry_schedule_create_for_plan(s.plan, NULL, &s.schedule, &error), &error);
    must(ferry_reference_workloads_create(0, 1, &s.workloads, &error), &error);
    must(ferry_reference_workloads_pack(s.workloads, 0, 0, &error), &error);
    must(ferry_group_create_range(0, 1, 1, &s.group, &error), &error);
    must(ferry_model_create(&s.model, &error), &error);
    ferry_param_metadata m = metadata_of_rank_0();
    must(ferry_model_add(s.model, &m, &error), &error);
    make_checkpoint();
    make_service();
    return 0;
}

static int remove_scene(void **state)
{
    ferry_service_destroy(s.service);
    ferry_world_destroy(s.world);
    ferry_checkpoint_destroy(s.checkpoint);
    ferry_model_destroy(s.model);
    ferry_group_destroy(s.group);
    ferry_reference_workloads_destroy(s.workloads);
    ferry_schedule_destroy(s.schedule);
    ferry_task_list_destroy(s.tasks);
    ferry_plan_destroy(s.plan);
    ferry_spec_destroy(s.spec);
    ferry_spec_destroy(alone);
    return small_end(state);
}

/*
 * Inputs: a function fills in what the call needs, another calls with the struct
 */

static ferry_status with_bootstrap(const void *given)
{
    ferry_world *world = NULL;
    ferry_status status = ferry_world_create_from_bootstrap(given, NULL, &world, &error);
    ferry_world_destroy(world);
    return status;
}

static void fill_bootstrap(void *given)
{
    ferry_bootstrap *bootstrap = given;
    bootstrap->n_ranks = 1;
    bootstrap->all_gather = bootstrap_own;
}

static ferry_status with_world(const void *given)
{
    ferry_world *world = NULL;
    ferry_status status = ferry_world_create_threads(1, given, &world, &error);
    ferry_world_destroy(world);
    return status;
}

static void fill_grow(void *given)
{
    static ferry_world *newcomer;
    ((ferry_grow_options *)given)->newcomers_out = &newcomer;
}

/* Of a world that can grow again, for the larger one is at once gone. */
static ferry_status with_grow(const void *given)
{
    ferry_world *larger = NULL;
    ferry_status status = ferry_world_grow(s.world, given, &larger, &error);
    ferry_world_abort(larger, "nobody is to wait for the newcomer");
    if (status == FERRY_OK) {
        ferry_world_destroy(((const ferry_grow_options *)given)->newcomers_out[0]);
    }
    ferry_world_destroy(larger);
    return status;
}

static ferry_status with_box_to(const void *given)
{
    ferry_box from = box_of_bytes();
    from.offset = 8;
    return ferry_box_copy(given, &from, NULL, NULL, &error);
}

static ferry_status with_box_from(const void *given)
{
    ferry_box to = box_of_bytes();
    to.offset = 8;
    return ferry_box_copy(&to, given, NULL, NULL, &error);
}

static ferry_status with_box_sent(const void *given)
{
    ferry_service *service = NULL;
    must(ferry_service_create(s.world, NULL, &service, &error), &error);
    must(ferry_service_init(service, FERRY_LOG_OFF, &error), &error);
    ferry_status status = ferry_service_register_send_box(service, 1, given, 0, &error);
    ferry_service_destroy(service);
    return status;
}

static void fill_box(void *given)
{
    *(ferry_box *)given = box_of_bytes();
}

static ferry_status with_copy(const void *given)
{
    ferry_box to = box_of_bytes(), from = box_of_bytes();
    from.offset = 8;
    return ferry_box_copy(&to, &from, given, NULL, &error);
}

static ferry_status with_reference_schedule(const void *given)
{
    ferry_exchange exchange = FERRY_EXCHANGE_INIT;
    ferry_reference_schedule *schedule = NULL;
    ferry_reference_summaries *summaries = NULL;
    exchange.n_ranks = 1;
    exchange.all_gather = gather_own;
    ferry_status status = ferry_reference_schedule_build(s.workloads, given, &exchange, &schedule,
                                                         &summaries, &error);
    ferry_reference_schedule_destroy(schedule);
    ferry_reference_summaries_destroy(summaries);
    return status;
}

static void fill_exchange(void *given)
{
    ferry_exchange *exchange = given;
    exchange->n_ranks = 1;
    exchange->all_gather = gather_own;
}

static ferry_status with_exchange(const void *given)
{
    ferry_reference_batches *batches = NULL;
    ferry_status status = ferry_reference_batches_collect(s.workloads, given, &batches, &error);
    ferry_reference_batches_destroy(batches);
    return status;
}

static ferry_status with_planning_exchange(const void *given)
{
    ferry_reshard_plan *ops = NULL;
    ferry_status status =
        ferry_reshard_plan_build_local(s.model, s.model, NULL, given, NULL, &ops, &error);
    ferry_reshard_plan_destroy(ops);
    return status;
}

static void fill_exchange_of_3(void *given)
{
    fill_exchange(given);
    ((ferry_exchange *)given)->n_ranks = 3; /* a plan of three ranks; the call says so */
}

static ferry_status with_plan_exchange(const void *given)
{
    ferry_schedule *part = NULL;
    ferry_status status = ferry_schedule_build_rooted(NULL, NULL, given, &part, &error);
    bool heard = status == FERRY_ERR_MISUSE && strstr(error.message, "needs a plan");
    return heard ? FERRY_OK : status; /* nobody else is there to schedule with */
}

static ferry_status with_cluster(const void *given)
{
    ferry_cluster *cluster = NULL;
    ferry_status status = ferry_cluster_create(given, &cluster, &error);
    ferry_cluster_destroy(cluster);
    return status;
}

static void fill_cluster(void *given)
{
    ferry_cluster_options *options = given;
    options->ranks_per_node = 1;
    options->rank_bytes_per_s = options->node_bytes_per_s = 1e9;
}

static ferry_status with_verify(const void *given)
{
    ferry_checkpoint *other = NULL;
    must(ferry_checkpoint_open(small_folder, &other, &error), &error);
    ferry_status status = ferry_checkpoint_verify(s.checkpoint, other, given, NULL, &error);
    ferry_checkpoint_destroy(other);
    return status;
}

static ferry_status with_statistics(const void *given)
{
    return ferry_checkpoint_measure(s.checkpoint, given, &error);
}

static ferry_status with_reshard(const void *given)
{
    ferry_reshard *reshard = NULL;
    ferry_status status = ferry_reshard_create(s.checkpoint, "hf", given, &reshard, &error);
    ferry_reshard_destroy(reshard);
    return status;
}

static ferry_status with_reshard_run(const void *given)
{
    ferry_reshard *reshard = NULL;
    must(ferry_reshard_create(s.checkpoint, "hf", NULL, &reshard, &error), &error);
    small_remove(small_path("result"));
    ferry_status status = ferry_reshard_run(reshard, small_path("result"), given, NULL, &error);
    ferry_reshard_destroy(reshard);
    return status;
}

static ferry_status with_mixed(const void *given)
{
    ferry_mixed_comm *comm = NULL;
    ferry_status status = ferry_mixed_comm_create(s.world, given, &comm, &error);
    ferry_mixed_comm_destroy(comm);
    return status;
}

static void fill_mixed(void *given)
{
    ((ferry_mixed_comm_options *)given)->only_construct = true;
}

static ferry_status with_description(const void *given)
{
    ferry_process_groups groups = FERRY_PROCESS_GROUPS_INIT;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    return ferry_param_metadata_extract(given, "a", 0, &groups, NULL, &m, &error);
}

static ferry_param_description description_of_bytes(void)
{
    ferry_param_description description = FERRY_PARAM_DESCRIPTION_INIT;
    description.n_dims = 1;
    description.shape[0] = 4;
    description.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
    return description;
}

static void fill_description(void *given)
{
    *(ferry_param_description *)given = description_of_bytes();
}

static ferry_status with_groups(const void *given)
{
    ferry_param_description description = description_of_bytes();
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    return ferry_param_metadata_extract(&description, "a", 0, given, NULL, &m, &error);
}

static void fill_metadata(void *given)
{
    *(ferry_param_metadata *)given = metadata_of_rank_0();
}

static ferry_status with_metadata_added(const void *given)
{
    ferry_model *model = NULL;
    must(ferry_model_create(&model, &error), &error);
    ferry_status status = ferry_model_add(model, given, &error);
    ferry_model_destroy(model);
    return status;
}

static ferry_status with_metadata_named(const void *given)
{
    char buffer[FERRY_NAME_BYTES];
    return ferry_param_metadata_resolve_name((void *)(uintptr_t)given, NULL, buffer, sizeof buffer,
                                             &error);
}

static ferry_status with_metadata_chosen(const void *given)
{
    const ferry_param_metadata *sources[1] = {given};
    size_t chosen = 0;
    return ferry_param_metadata_select_source(sources, 1, given, 0, &chosen, &error);
}

static ferry_status with_metadata_planned(const void *given)
{
    ferry_transfers *transfers = NULL;
    ferry_status status = ferry_transfers_find_sources("a", given, given, 0, &transfers, &error);
    ferry_transfers_destroy(transfers);
    return status;
}

static void fill_whole_metadata(void *given)
{
    fill_metadata(given);
    ((ferry_param_metadata *)given)->is_tp = false;
}

static ferry_status with_metadata_finalized(const void *given)
{
    ferry_transfers *transfers = NULL;
    ferry_status status = ferry_transfers_finalize_dp("a", given, given, 0, &transfers, &error);
    ferry_transfers_destroy(transfers);
    return status;
}

static ferry_status with_descriptor(const void *given)
{
    ferry_param_metadata m = metadata_of_rank_0();
    ferry_transfers *transfers = NULL;
    ferry_status status = ferry_transfers_plan_lcm("a", &m, &m, given, 1, 0, &transfers, &error);
    ferry_transfers_destroy(transfers);
    return status;
}

static void fill_descriptor(void *given)
{
    ferry_sharding_descriptor *d = given;
    d->name = "tp";
    d->src_dim_ranks = d->dst_dim_ranks = s.group;
}

static ferry_status with_json(const void *given)
{
    text_buffer printed = {0};
    ferry_status status = ferry_plan_write_json(s.plan, given, text_write, &printed, &error);
    text_cleanup(&printed);
    return status;
}

static ferry_status with_schedule_json(const void *given)
{
    text_buffer printed = {0};
    ferry_status status =
        ferry_schedule_write_json(s.schedule, s.plan, given, text_write, &printed, &error);
    text_cleanup(&printed);
    return status;
}

static ferry_status with_report(const void *given)
{
    text_buffer printed = {0};
    ferry_status status = ferry_plan_write_html(s.plan, given, text_write, &printed, &error);
    text_cleanup(&printed);
    return status;
}

static void fill_names(void *given)
{
    static const char config[] = "{\"model_type\": \"llama\", \"hidden_size\": 8, "
                                 "\"intermediate_size\": 16, \"num_hidden_layers\": 1, "
                                 "\"num_attention_heads\": 2, \"vocab_size\": 32}";
    ferry_names_options *options = given;
    options->config = config;
    options->config_length = sizeof config - 1;
}

static ferry_status with_names(const void *given)
{
    ferry_names *names = NULL;
    ferry_status status = ferry_names_create(given, &names, &error);
    ferry_names_destroy(names);
    return status;
}

static ferry_status with_plan(const void *given)
{
    ferry_plan *plan = NULL;
    ferry_status status = ferry_plan_create(s.spec, given, &plan, &error);
    ferry_plan_destroy(plan);
    return status;
}

static ferry_status with_roster_plan(const void *given)
{
    ferry_plan *plan = NULL;
    ferry_roster *roster = NULL;
    must(ferry_roster_create(1, &roster, &error), &error);
    must(ferry_roster_set(roster, 0, s.model, s.model, &error), &error);
    ferry_status status = ferry_plan_create_from_roster(roster, given, &plan, &error);
    ferry_roster_destroy(roster);
    ferry_plan_destroy(plan);
    return status;
}

static ferry_status with_schedule(const void *given)
{
    ferry_schedule *schedule = NULL;
    ferry_status status = ferry_schedule_create(s.tasks, NULL, given, &schedule, &error);
    ferry_schedule_destroy(schedule);
    return status;
}

static ferry_status with_plan_schedule(const void *given)
{
    ferry_schedule *schedule = NULL;
    ferry_status status = ferry_schedule_create_for_plan(s.plan, given, &schedule, &error);
    ferry_schedule_destroy(schedule);
    return status;
}

static ferry_status with_simulation(const void *given)
{
    ferry_simulation *simulation = NULL;
    ferry_status status = ferry_simulation_create(s.schedule, given, &simulation, &error);
    ferry_simulation_destroy(simulation);
    bool no_cluster = status != FERRY_OK && strstr(error.message, "struct_size") == NULL;
    return no_cluster ? FERRY_OK : status; /* what is asked here is whether the options are read */
}

static ferry_status with_batch(const void *given)
{
    ferry_reference_batches *batches = NULL;
    must(ferry_reference_batches_create(2, &batches, &error), &error);
    ferry_status status = ferry_reference_batches_add(batches, given, &error);
    ferry_reference_batches_destroy(batches);
    return status;
}

static ferry_status with_conflict(const void *given)
{
    ferry_reference_batches *batches = NULL;
    bool conflict = true;
    must(ferry_reference_batches_create(2, &batches, &error), &error);
    ferry_status status = ferry_reference_batches_has_conflict(batches, given, 0, FERRY_DUPLEX_FULL,
                                                               &conflict, &error);
    ferry_reference_batches_destroy(batches);
    return status;
}

static void fill_batch(void *given)
{
    ((ferry_reference_batch *)given)->to = 1;
}

static ferry_status with_task(const void *given)
{
    return ferry_task_list_add(s.tasks, given, &error);
}

static void fill_task(void *given)
{
    ferry_task *task = given;
    task->to = 1;
    task->bytes = 4;
    task->element_bytes = 1;
}

static ferry_status with_service(const void *given)
{
    ferry_service *service = NULL;
    ferry_status status = ferry_service_create(s.world, given, &service, &error);
    ferry_service_destroy(service);
    return status;
}

static void fill_recovery(void *given)
{
    static const char *text = "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],"
                              "'dtype':'u8'}],'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
                              "'destination':{'mesh':[['x',1]],'rules':[{'match':'*'}]}}";
    if (alone == NULL) {
        must(try_spec(text, &alone, &error), &error);
    }
    ((ferry_recovery_options *)given)->spec = alone;
}

/* In a world that lives, where there is nothing to do but to look at the options. */
static ferry_status with_recovery(const void *given)
{
    ferry_service *service = NULL;
    ferry_tensors *sources = NULL, *targets = NULL;
    ferry_plan *plan = NULL;
    ferry_buffer from = {.base = s.bytes, .bytes = 8}, to = {.base = s.bytes + 8, .bytes = 8};
    must(ferry_plan_create(alone, NULL, &plan, &error), &error);
    must(ferry_tensors_create(&sources, &error), &error);
    must(ferry_tensors_create(&targets, &error), &error);
    must(ferry_tensors_add(sources, "a", &from, &error), &error);
    must(ferry_tensors_add(targets, "a", &to, &error), &error);
    must(ferry_service_create(s.world, NULL, &service, &error), &error);
    must(ferry_service_init(service, FERRY_LOG_OFF, &error), &error);
    must(ferry_service_bind(service, plan, sources, targets, &error), &error);
    must(ferry_service_schedule(service, &error), &error);
    ferry_status status =
        ferry_service_recover_onto(&service, &s.world, given, sources, targets, NULL, &error);
    ferry_service_destroy(service);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
    return status;
}

typedef struct input {
    const char *name;  /* of the call */
    const char *macro; /* that the sentence must name */
    size_t bytes;
    size_t first_bytes; /* of the first version, as they were written down then */
    const void *init;
    void (*fill)(void *given); /* (optional) */
    ferry_status (*call)(const void *given);
} input;

static ferry_status with_side_box(const void *given)
{
    static const ferry_dtype u8 = {.kind = FERRY_U8, .element_bits = 8};
    ferry_side *side = NULL;
    size_t parameter;
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_parameter(side, NULL, 0, "p", &u8, 1, 0, &parameter, &error), &error);
    ferry_status status = ferry_side_add_box(side, parameter, given, &error);
    ferry_side_destroy(side);
    return status;
}

static void fill_side_box(void *given)
{
    ((ferry_side_box *)given)->tensor = "a.weight"; /* a scalar */
}

static ferry_status with_quantization(const void *given)
{
    ferry_side *side = NULL;
    size_t parameter;
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_parameter(side, NULL, 0, "p", NULL, 1, 0, &parameter, &error), &error);
    ferry_status status = ferry_side_set_quantize(side, parameter, given, &error);
    ferry_side_destroy(side);
    return status;
}

static void fill_quantization(void *given)
{
    ferry_quantization *quantization = given;
    quantization->code_dtype = (ferry_dtype){FERRY_F8E4M3, 8};
    quantization->scale_dtype = (ferry_dtype){FERRY_F32, 32};
    quantization->block[0] = quantization->block[1] = 128;
    quantization->scale = "*_scale_inv";
}

static ferry_status with_side_exchange(const void *given)
{
    ferry_spec *spec = NULL;
    ferry_status status = ferry_spec_exchange(s.spec, NULL, NULL, given, &spec, &error);
    ferry_spec_destroy(spec);
    return status;
}

static ferry_status with_map_box(const void *given)
{
    static const ferry_dtype u8 = {.kind = FERRY_U8, .element_bits = 8};
    ferry_map *map = NULL;
    must(ferry_map_create(&map, &error), &error);
    must(ferry_map_add_source(map, "from", u8, 0, NULL, &error), &error);
    must(ferry_map_add_target(map, "to", u8, 0, NULL, &error), &error);
    ferry_status status = ferry_map_add_box(map, given, &error);
    ferry_map_destroy(map);
    return status;
}

static void fill_map_box(void *given)
{
    ferry_map_box *box = given;
    box->target = "to";
    box->source = "from";
}

#define ROW(text, type, MACRO, first, fill, call)                                                  \
    {                                                                                              \
        text, #MACRO, sizeof(ferry_##type), first, &(const ferry_##type)MACRO, fill, call          \
    }

static const input inputs[] = {
    ROW("bootstrap", bootstrap, FERRY_BOOTSTRAP_INIT, 32, fill_bootstrap, with_bootstrap),
    ROW("world", world_options, FERRY_WORLD_OPTIONS_INIT, 56, NULL, with_world),
    ROW("grow", grow_options, FERRY_GROW_OPTIONS_INIT, 48, fill_grow, with_grow),
    ROW("box to", box, FERRY_BOX_INIT, 216, fill_box, with_box_to),
    ROW("box from", box, FERRY_BOX_INIT, 216, fill_box, with_box_from),
    ROW("box to send", box, FERRY_BOX_INIT, 216, fill_box, with_box_sent),
    ROW("copy", copy_options, FERRY_COPY_OPTIONS_INIT, 160, NULL, with_copy),
    ROW("reference_schedule", reference_schedule_options, FERRY_REFERENCE_SCHEDULE_OPTIONS_INIT, 16,
        NULL, with_reference_schedule),
    ROW("scheduling exchange", exchange, FERRY_EXCHANGE_INIT, 48, fill_exchange, with_exchange),
    ROW("planning exchange", exchange, FERRY_EXCHANGE_INIT, 48, fill_exchange,
        with_planning_exchange),
    ROW("exchange of sides", exchange, FERRY_EXCHANGE_INIT, 48, fill_exchange, with_side_exchange),
    ROW("box of a side", side_box, FERRY_SIDE_BOX_INIT, 544, fill_side_box, with_side_box),
    ROW("quantization", quantization, FERRY_QUANTIZATION_INIT, 52, fill_quantization,
        with_quantization),
    ROW("box of a map", map_box, FERRY_MAP_BOX_INIT, 216, fill_map_box, with_map_box),
    ROW("exchange of a plan", exchange, FERRY_EXCHANGE_INIT, 48, fill_exchange_of_3,
        with_plan_exchange),
    ROW("cluster", cluster_options, FERRY_CLUSTER_OPTIONS_INIT, 40, fill_cluster, with_cluster),
    ROW("verify", verify_options, FERRY_VERIFY_OPTIONS_INIT, 48, NULL, with_verify),
    ROW("statistics", statistics_options, FERRY_STATISTICS_OPTIONS_INIT, 48, NULL, with_statistics),
    ROW("reshard", reshard_options, FERRY_RESHARD_OPTIONS_INIT, 44, NULL, with_reshard),
    ROW("reshard run", reshard_run_options, FERRY_RESHARD_RUN_OPTIONS_INIT, 32, NULL,
        with_reshard_run),
    ROW("mixed", mixed_comm_options, FERRY_MIXED_COMM_OPTIONS_INIT, 128, fill_mixed, with_mixed),
    ROW("description", param_description, FERRY_PARAM_DESCRIPTION_INIT, 136, fill_description,
        with_description),
    ROW("groups", process_groups, FERRY_PROCESS_GROUPS_INIT, 56, NULL, with_groups),
    ROW("metadata added", param_metadata, FERRY_PARAM_METADATA_INIT, 208, fill_metadata,
        with_metadata_added),
    ROW("metadata named", param_metadata, FERRY_PARAM_METADATA_INIT, 208, fill_metadata,
        with_metadata_named),
    ROW("metadata chosen", param_metadata, FERRY_PARAM_METADATA_INIT, 208, fill_metadata,
        with_metadata_chosen),
    ROW("metadata planned", param_metadata, FERRY_PARAM_METADATA_INIT, 208, fill_metadata,
        with_metadata_planned),
    ROW("metadata finalized", param_metadata, FERRY_PARAM_METADATA_INIT, 208, fill_whole_metadata,
        with_metadata_finalized),
    ROW("descriptor", sharding_descriptor, FERRY_SHARDING_DESCRIPTOR_INIT, 56, fill_descriptor,
        with_descriptor),
    ROW("plan JSON", plan_json_options, FERRY_PLAN_JSON_OPTIONS_INIT, 13, NULL, with_json),
    ROW("schedule JSON", plan_json_options, FERRY_PLAN_JSON_OPTIONS_INIT, 13, NULL,
        with_schedule_json),
    ROW("report", report_options, FERRY_REPORT_OPTIONS_INIT, 32, NULL, with_report),
    ROW("names", names_options, FERRY_NAMES_OPTIONS_INIT, 56, fill_names, with_names),
    ROW("plan", plan_options, FERRY_PLAN_OPTIONS_INIT, 40, NULL, with_plan),
    ROW("plan of a roster", plan_options, FERRY_PLAN_OPTIONS_INIT, 40, NULL, with_roster_plan),
    ROW("recovery", recovery_options, FERRY_RECOVERY_OPTIONS_INIT, 44, fill_recovery,
        with_recovery),
    ROW("schedule", schedule_options, FERRY_SCHEDULE_OPTIONS_INIT, 29, NULL, with_schedule),
    ROW("schedule of a plan", schedule_options, FERRY_SCHEDULE_OPTIONS_INIT, 29, NULL,
        with_plan_schedule),
    ROW("simulation", simulation_options, FERRY_SIMULATION_OPTIONS_INIT, 24, NULL, with_simulation),
    ROW("batch", reference_batch, FERRY_REFERENCE_BATCH_INIT, 32, fill_batch, with_batch),
    ROW("conflict", reference_batch, FERRY_REFERENCE_BATCH_INIT, 32, fill_batch, with_conflict),
    ROW("task", task, FERRY_TASK_INIT, 56, fill_task, with_task),
    ROW("service", service_options, FERRY_SERVICE_OPTIONS_INIT, 62, NULL, with_service),
};

/* The struct as a program has it that was built with struct_size bytes of it. */
static void *struct_of(const input *row, size_t struct_size)
{
    size_t room = (struct_size + 7) / 8 * 8;
    unsigned char whole[4096 + 64] = {0};
    memcpy(whole, row->init, row->bytes);
    if (row->fill != NULL) {
        row->fill(whole);
    }
    memcpy(whole, &struct_size, sizeof struct_size);
    return memcpy(against_the_edge(room), whole, room);
}

static void test_inputs(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        const input *row = &inputs[i];
        check_status(row->name, FERRY_OK, row->call(struct_of(row, row->bytes)), &error);
        check_status(row->name, FERRY_OK, row->call(struct_of(row, row->first_bytes)), &error);
        check_status(row->name, FERRY_OK, row->call(struct_of(row, row->bytes + 8)), &error);
        unsigned char *newer = struct_of(row, row->bytes + 8);
        newer[row->bytes + 7] = 1;
        check_status(row->name, FERRY_ERR_UNSUPPORTED, row->call(newer), &error);
        size_t bad[] = {0, 8, row->first_bytes / 2, row->first_bytes - 1, 4097, SIZE_MAX};
        for (size_t b = 0; b < COUNT_OF(bad); b++) {
            unsigned char *wrong = struct_of(row, row->bytes);
            memcpy(wrong, &bad[b], sizeof bad[b]);
            check_status(row->name, FERRY_ERR_MISUSE, row->call(wrong), &error);
            check_says(row->name, row->macro, &error);
            check_says(row->name, "struct_size", &error);
        }
    }
}

/* Every struct of the table is tried, and the sizes written here are those of the table. */
static void test_all_inputs_are_tried(void **state)
{
    (void)state;
#define SIZE(name, init, last) {#init, FY_FIRST_BYTES(ferry_##name, last)},
    static const struct {
        const char *macro;
        size_t first_bytes;
    } table[] = {FY_INPUT_STRUCTS(SIZE)};
#undef SIZE
    for (size_t t = 0; t < COUNT_OF(table); t++) {
        size_t n = 0;
        for (size_t i = 0; i < COUNT_OF(inputs); i++) {
            if (strcmp(inputs[i].macro, table[t].macro) == 0) {
                check_at(inputs[i].first_bytes == table[t].first_bytes, "%s: %zu", table[t].macro,
                         table[t].first_bytes);
                n++;
            }
        }
        check_row(table[t].macro, n > 0);
    }
}

/* A struct that has grown since its first version, which no public one has yet. */

typedef struct grown {
    size_t struct_size;
    uint32_t colour;
    bool loud; /* the last of the first version, with padding behind it */
    uint64_t weight;
    const char *name;
} grown;

enum { FIRST_BYTES = offsetof(grown, loud) + 1, FIRST_SIZE = 16, SECOND_SIZE = 24 };

static ferry_status read_grown(const void *given, grown *own)
{
    *own = (grown){sizeof *own, 7, false, 70, "seven"};
    return fy_copy_in(given, FIRST_BYTES, own, sizeof *own, "a grown struct", "GROWN", &error);
}

static void test_older_structs(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t struct_size;
        uint64_t weight;
        const char *text;
    } rows[] = {
        {"the first version", FIRST_SIZE, 70, "seven"},
        {"the second version", SECOND_SIZE, 80, "seven"},
        {"this version", sizeof(grown), 80, "eight"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        grown given = {rows[i].struct_size, 8, true, 80, "eight"}, own;
        void *edge = against_the_edge(rows[i].struct_size);
        memcpy(edge, &given, rows[i].struct_size);
        check_status(rows[i].name, FERRY_OK, read_grown(edge, &own), &error);
        check_row(rows[i].name, own.struct_size == sizeof own);
        check_row(rows[i].name, own.colour == 8 && own.loud);
        check_row(rows[i].name, own.weight == rows[i].weight);
        check_row(rows[i].name, strcmp(own.name, rows[i].text) == 0);
    }
    grown own;
    assert_int_equal(read_grown(NULL, &own), FERRY_OK);
    assert_true(own.colour == 7 && own.weight == 70);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_all_inputs_are_tried),
        cmocka_unit_test(test_older_structs),
    };
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
