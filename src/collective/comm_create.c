/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The making of a handle, and what it says of itself. */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/config.h"
#include "base/options.h"
#include "collective/comm.h"
#include "collective/kernel.h"
#include "collective/library.h"
#include "collective/tune.h"
#include "world/agree.h"
#include "world/order.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_LANES = 1024, MOST_FAR_LANES = 16 };

ferry_status fy_mix_options_check(const ferry_mixed_comm_options *options, ferry_error *error)
{
    if (options->dtype != FERRY_F16 && options->dtype != FERRY_BF16 &&
        options->dtype != FERRY_F32) {
        ferry_dtype dtype = {0, 0};
        char name[FERRY_DTYPE_TEXT_BYTES] = "bytes";
        if (ferry_dtype_of(options->dtype, &dtype, NULL) == FERRY_OK) {
            ferry_dtype_format(dtype, name, sizeof name);
        }
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "mixed collectives sum f16, bf16 and f32, not dtype %u (%s)", options->dtype,
                       name);
    }
    if (options->device.kind != FERRY_MEMORY_HOST) {
        fy_space space = {.kind = options->device.kind, .device = options->device.index};
        FY_TRY(fy_space_check(space, "device of the options", error));
    } else if (options->device.index != -1) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "device index %d is asked for: mixed collectives of this version place "
                       "nothing by NUMA node, and the index is -1",
                       options->device.index);
    }
    if (options->grid_size > MOST_LANES) {
        return fy_fail(error, FERRY_ERR_LIMIT, "grid_size %u is more than %d", options->grid_size,
                       (int)MOST_LANES);
    }
    if (options->min_block_size == 0 || options->min_num_steps == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "min_block_size %u and min_num_steps %u must be at least 1",
                       options->min_block_size, options->min_num_steps);
    }
    return FERRY_OK;
}

/* The world's own nodes, where the caller has not said any: equal ones, of ranks in order. */
static ferry_status wish_of_world(const ferry_world *world, fy_topology_wish *wish,
                                  ferry_error *error)
{
    uint32_t local = world->n_local_ranks;
    for (uint32_t rank = 0; rank < world->n_ranks; rank++) {
        if (world->n_ranks % local != 0 || world->node_of[rank] != rank / local) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "the world's %u ranks are not on nodes of %u ranks in order (rank %u is "
                           "on node %u): give local_size and inter_size",
                           world->n_ranks, local, rank, world->node_of[rank]);
        }
    }
    wish->world_rank = world->rank;
    wish->world_size = world->n_ranks;
    wish->local_rank = world->rank % local;
    wish->local_size = local;
    wish->inter_rank = world->rank / local;
    wish->inter_size = world->n_ranks / local;
    return FERRY_OK;
}

fy_topology_wish fy_mix_options_wish(const ferry_mixed_comm_options *o)
{
    return (fy_topology_wish){o->world_rank,    o->world_size,   o->local_rank,    o->local_size,
                              o->inter_rank,    o->inter_size,   o->local_tp_size, o->local_dp_size,
                              o->inter_tp_size, o->inter_dp_size};
}

static ferry_status find_topology(const ferry_world *world, const ferry_mixed_comm_options *options,
                                  fy_topology *topology_out, ferry_error *error)
{
    fy_topology_wish wish = fy_mix_options_wish(options);
    ferry_status status = FERRY_OK;
    if (wish.world_size == 0 && wish.local_size == 0 && wish.inter_size == 0) {
        status = wish_of_world(world, &wish, error);
    }
    FY_THEN(status, fy_topology_make(&wish, topology_out, error));
    if (status == FERRY_OK &&
        (topology_out->world_size != world->n_ranks || topology_out->world_rank != world->rank)) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "world_rank %u of world_size %u is not this rank, which is %u of %u",
                         topology_out->world_rank, topology_out->world_size, world->rank,
                         world->n_ranks);
    }
    return status;
}

/* Usable cores for each rank of a node; where ranks outnumber cores each has one lane. */
static uint32_t default_grid(const ferry_world *world, const fy_topology *topology)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    if (world->threads || n < (int)topology->local_size || world->spin_ns == 0) {
        return 1;
    }
    return (uint32_t)n / topology->local_size;
}

/* What must be the same on all ranks, and behind it what they settle together. */
enum { N_SAME = 16, LANES = N_SAME, NUMBER, N_FIELDS };

static void list_same(const ferry_mixed_comm *comm, fy_field fields[N_FIELDS])
{
    const ferry_mixed_comm_options *o = &comm->options;
    const fy_topology *t = &comm->program.topology;
    const struct {
        const char *name;
        uint64_t value;
    } same[N_SAME] = {{"mixed collective: local_size", t->local_size},
                      {"mixed collective: inter_size", t->inter_size},
                      {"mixed collective: local_tp_size", t->local_tp},
                      {"mixed collective: inter_tp_size", t->inter_tp},
                      {"mixed collective: dtype", o->dtype},
                      {"mixed collective: grid_size", o->grid_size},
                      {"mixed collective: max_block_size", o->max_block_size},
                      {"mixed collective: min_block_size", o->min_block_size},
                      {"mixed collective: min_num_steps", o->min_num_steps},
                      {"mixed collective: use_autotune", o->use_autotune},
                      {"mixed collective: deterministic", o->deterministic},
                      {"mixed collective: only_construct", o->only_construct},
                      {"mixed collective: transport given", o->transport != NULL},
                      {"mixed collective: autotune_bytes", o->autotune_bytes},
                      {"mixed collective: staging_bytes", o->staging_bytes},
                      {"mixed collective: should_init_nvshmem", o->should_init_nvshmem}};
    for (size_t i = 0; i < N_SAME; i++) {
        fields[i] = (fy_field){.name = same[i].name, .value = same[i].value, .how = FY_SAME};
    }
}

/*
 * All ranks bring valid options that agree, or all fail. Where the caller left the lanes open there
 * are as many as the rank with the fewest cores has.
 */
static ferry_status agree(ferry_mixed_comm *comm, ferry_status status, ferry_error *error)
{
    fy_field fields[N_FIELDS];
    /* Of a device's handle the grid is the kernels': a thread for each block would be too many. */
    bool is_far = comm->options.device.kind != FERRY_MEMORY_HOST;
    uint32_t lanes = comm->options.grid_size;
    lanes = is_far ? (uint32_t)fy_min(lanes, MOST_FAR_LANES) : lanes;
    list_same(comm, fields);
    if (status == FERRY_OK && lanes == 0) {
        lanes = default_grid(comm->world, &comm->program.topology);
    }
    fields[LANES] = (fy_field){.value = lanes, .how = FY_LEAST};
    fields[NUMBER] =
        (fy_field){.value = fy_object_propose(comm->world, FY_OBJECT_MIXED), .how = FY_MOST};
    status = fy_agree_on(comm->world, FY_JOINT_MIXED_CREATE, 0, fields, N_FIELDS, status, error);
    if (status == FERRY_OK) {
        comm->program.n_lanes = (uint32_t)fields[LANES].value;
        fy_comm_work_add(comm, (uint32_t)fields[NUMBER].value);
    }
    return status;
}

static ferry_status keep_texts(ferry_mixed_comm *comm, ferry_error *error)
{
    const char *file = comm->options.tune_file;
    file = file != NULL ? file : fy_config_text("FERRY_TUNE_FILE");
    comm->own_engines = comm->options.engines == NULL ? NULL : fy_strdup(comm->options.engines);
    comm->own_tune_file = file == NULL ? NULL : fy_strdup(file);
    if ((comm->options.engines != NULL && comm->own_engines == NULL) ||
        (file != NULL && comm->own_tune_file == NULL)) {
        return fy_fail_no_memory(error, "a mixed collective");
    }
    comm->options.engines = comm->own_engines;
    comm->options.tune_file = comm->own_tune_file;
    return FERRY_OK;
}

/* Until memory is opened it is not known whether ranks can read each other's. */
static void list_ops(ferry_mixed_comm *comm)
{
    const fy_topology *t = &comm->program.topology;
    comm->n_ops = fy_topology_list_ops(t, comm->ops);
    comm->n_modes = fy_topology_list_modes(t, true, comm->options.deterministic, comm->modes);
}

/* What a rank can find out by itself. */
static ferry_status set_up(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_mixed_comm_options *o = &comm->options;
    ferry_status status = fy_mix_options_check(o, error);
    FY_THEN(status, find_topology(comm->world, o, &comm->program.topology, error));
    if (status == FERRY_OK && o->transport != NULL && o->transport->world != comm->world) {
        status = fy_fail(error, FERRY_ERR_MISUSE,
                         "the transport of the options belongs to another world");
    }
    FY_THEN(status, keep_texts(comm, error));
    if (status != FERRY_OK) {
        return status;
    }
    fy_mix_program_take_type(&comm->program, o->dtype);
    comm->host_verbs = &fy_mix_host_verbs;
    comm->far_verbs = &fy_mix_far_verbs;
    comm->request = fy_alloc_zeroed(1, sizeof *comm->request);
    if (comm->request == NULL) {
        return fy_fail_no_memory(error, "a mixed collective");
    }
    comm->request->comm = comm;
    list_ops(comm);
    if (o->transport != NULL) {
        fy_transport_retain(o->transport);
        comm->wires.transport = o->transport;
    }
    return FERRY_OK;
}

/*
 * Some ranks may read a table and others measure: both meet first, and then hear which of them does
 * what.
 */
static ferry_status tune(ferry_mixed_comm *comm, ferry_error *error)
{
    FY_TRY(fy_comm_meet(comm, FY_MIX_OP_TUNE, error));
    return comm->own_tune_file != NULL ? fy_tune_load(comm, comm->own_tune_file, error)
                                       : fy_tune_run(comm, error);
}

static ferry_status init_all(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_status status = ferry_mixed_comm_init_virtual_memory(comm, error);
    FY_THEN(status, ferry_mixed_comm_init_nvshmem(comm, error));
    if (status == FERRY_OK && comm->options.use_autotune) {
        status = tune(comm, error);
    }
    /* So that none begins a call, and perhaps breaks the handle, before all have their own. */
    return fy_agree(comm->world, status, error);
}

ferry_status ferry_mixed_comm_create(ferry_world *world, const ferry_mixed_comm_options *options,
                                     ferry_mixed_comm **comm_out, ferry_error *error)
{
    ferry_error own;
    error = error == NULL ? &own : error;
    if (world == NULL || comm_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_mixed_comm_create needs a world and a place for the handle");
    }
    FY_TRY(fy_world_check_order(world, "ferry_mixed_comm_create", error));
    ferry_mixed_comm *comm = fy_alloc_zeroed(1, sizeof *comm);
    if (comm == NULL) {
        fy_joint_enter(world, FY_JOINT_MIXED_CREATE, 0);
        ferry_status agreed =
            fy_agree(world, fy_fail_no_memory(error, "a mixed collective"), error);
        fy_joint_leave(world);
        return agreed;
    }
    comm->world = world;
    fy_world_retain(world);
    pthread_mutex_init(&comm->wires.network, NULL);
    pthread_mutex_init(&comm->asked.lock, NULL);
    fy_joint_enter(world, FY_JOINT_MIXED_CREATE, 0);
    ferry_status status = fy_take_mixed_comm_options(options, &comm->options, error);
    if (status == FERRY_OK && comm->options.refusal != NULL) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s", comm->options.refusal);
    }
    FY_THEN(status, set_up(comm, error));
    status = agree(comm, status, error);
    if (status == FERRY_OK && !comm->options.only_construct) {
        status = init_all(comm, error);
    }
    fy_joint_leave(world);
    if (status != FERRY_OK) {
        ferry_mixed_comm_destroy(comm);
        return status;
    }
    *comm_out = comm;
    return FERRY_OK;
}

void ferry_mixed_comm_destroy(ferry_mixed_comm *comm)
{
    if (comm == NULL || fy_world_is_inherited(comm->world)) {
        return;
    }
    fy_captures_end(&comm->captures);
    fy_order_await(comm->world);
    fy_mix_kernel_await_graphs(comm);
    fy_comm_release_request(comm);
    fy_comm_finish(comm);
    fy_work_remove(comm->world, &comm->work);
    fy_tune_destroy(comm->tuning);
    fy_free(comm->own_engines);
    fy_free(comm->own_tune_file);
    pthread_mutex_destroy(&comm->wires.network);
    pthread_mutex_destroy(&comm->asked.lock);
    ferry_world_destroy(comm->world);
    fy_free(comm);
}

static ferry_status check_query(const ferry_mixed_comm *comm, const void *out, const char *what,
                                ferry_error *error)
{
    if (comm == NULL || out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s needs a mixed collective and a place for its answer", what);
    }
    return FERRY_OK;
}

/* As many numbers as the caller has room for; how many there are is said in any case. */
void fy_mix_give_list(const uint32_t *list, size_t n, uint32_t *out, size_t room, size_t *n_out)
{
    memcpy(out, list, fy_min(n, room) * sizeof *list);
    *n_out = n;
}

ferry_status ferry_mixed_comm_get_valid_op_list(const ferry_mixed_comm *comm, uint32_t *ops_out,
                                                size_t room, size_t *n_out, ferry_error *error)
{
    ferry_status status =
        check_query(comm, ops_out == NULL ? NULL : n_out, "get_valid_op_list", error);
    if (status == FERRY_OK) {
        fy_mix_give_list(comm->ops, comm->n_ops, ops_out, room, n_out);
    }
    return status;
}

bool fy_comm_has_mode(const ferry_mixed_comm *comm, uint32_t mode)
{
    for (size_t i = 0; i < comm->n_modes; i++) {
        if (comm->modes[i] == mode) {
            return true;
        }
    }
    return false;
}

ferry_status ferry_mixed_comm_get_valid_mode_list(const ferry_mixed_comm *comm, uint32_t *modes_out,
                                                  size_t room, size_t *n_out, ferry_error *error)
{
    ferry_status status =
        check_query(comm, modes_out == NULL ? NULL : n_out, "get_valid_mode_list", error);
    if (status == FERRY_OK) {
        fy_mix_give_list(comm->modes, comm->n_modes, modes_out, room, n_out);
    }
    return status;
}

ferry_status ferry_mixed_comm_get_counts(const ferry_mixed_comm *comm,
                                         ferry_mixed_counts *counts_out, ferry_error *error)
{
    FY_TRY(check_query(comm, counts_out, "get_counts", error));
    if (comm->kernel != NULL) { /* first: it may wait for who counts the last call */
        FY_TRY(fy_world_check_order(comm->world, "get_counts", error));
    }
    ferry_mixed_counts counts = {.struct_size = sizeof counts, .n_calls = comm->state.n_calls};
    for (uint32_t i = 0; comm->state.lanes != NULL && i < comm->program.n_lanes; i++) {
        const fy_mix_lane *lane = &comm->state.lanes[i];
        counts.n_steps += lane->n_steps_done;
        counts.n_waits = fy_max(counts.n_waits, lane->n_waits);
        counts.inside_bytes_written += lane->inside_written;
        counts.inside_bytes_read += lane->inside_read;
        counts.between_bytes += lane->between;
        counts.n_device_elements += lane->device_elements;
    }
    if (comm->kernel != NULL) {
        FY_TRY(fy_mix_kernel_count(comm, &counts, error));
    }
    return fy_copy_out(&counts, sizeof counts, counts_out, "ferry_mixed_counts", error);
}

ferry_status ferry_mixed_comm_reset_counts(ferry_mixed_comm *comm, ferry_error *error)
{
    if (comm == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "reset_counts needs a mixed collective");
    }
    if (comm->kernel != NULL) {
        FY_TRY(fy_world_check_order(comm->world, "reset_counts", error));
        fy_mix_kernel_catch_up(comm);
        FY_TRY(fy_mix_kernel_reset(comm->kernel, error));
    }
    comm->state.n_calls = 0;
    for (uint32_t i = 0; comm->state.lanes != NULL && i < comm->program.n_lanes; i++) {
        fy_mix_lane *lane = &comm->state.lanes[i];
        lane->n_steps_done = lane->n_waits = 0;
        lane->inside_written = lane->inside_read = lane->between = lane->device_elements = 0;
    }
    return FERRY_OK;
}

/* The engine towards the first other rank inside the node, or on another node; "" if none is. */
static const char *engine_towards(const ferry_mixed_comm *comm, bool inside)
{
    const fy_topology *t = &comm->program.topology;
    const char *engine = "";
    uint32_t rank = inside ? (t->local_rank + 1) % t->local_size + t->inter_rank * t->local_size
                           : (t->world_rank + t->local_size) % t->world_size;
    if (comm->wires.transport != NULL && rank != t->world_rank) {
        ferry_transport_get_peer(comm->wires.transport, rank, &engine, NULL, NULL);
    }
    return engine;
}

static ferry_mixed_reach reach_of(const ferry_mixed_comm *comm)
{
    if (!comm->opened || !comm->program.mapped) {
        return FERRY_MIXED_REACH_NONE;
    }
    return comm->kernel != NULL && fy_mix_kernel_has_fleet(comm->kernel)
               ? FERRY_MIXED_REACH_OBJECTS
               : FERRY_MIXED_REACH_IN_PLACE;
}

static const char *note_on(const ferry_mixed_comm *comm)
{
    if (comm->program.topology.inter_size == 1) {
        return "one node: nothing is between";
    }
    if (comm->kernel != NULL) {
        return "kernels put to the devices of other nodes, whose memory they reach";
    }
    return strstr(engine_towards(comm, false), "ucx") != NULL
               ? "UCX stands in for NVSHMEM on hosts"
               : "the transport's own engine stands in for NVSHMEM on hosts";
}

ferry_status ferry_mixed_comm_get_info(const ferry_mixed_comm *comm,
                                       ferry_mixed_comm_info *info_out, ferry_error *error)
{
    FY_TRY(check_query(comm, info_out, "describe", error));
    const fy_topology *t = &comm->program.topology;
    const fy_mix_program *program = fy_comm_program(comm);
    ferry_mixed_comm_info info = {.struct_size = sizeof info,
                                  .world_rank = t->world_rank,
                                  .world_size = t->world_size,
                                  .local_rank = t->local_rank,
                                  .local_size = t->local_size,
                                  .inter_rank = t->inter_rank,
                                  .inter_size = t->inter_size,
                                  .local_tp_size = t->local_tp,
                                  .local_dp_size = t->local_dp,
                                  .inter_tp_size = t->inter_tp,
                                  .inter_dp_size = t->inter_dp,
                                  .tp_rank = t->tp_rank,
                                  .tp_size = t->tp,
                                  .dp_rank = t->dp_rank,
                                  .dp_size = t->dp,
                                  .dtype = comm->options.dtype,
                                  .grid_size = program->n_lanes,
                                  .max_block_size = program->limits.most_lines /
                                                    (FERRY_MIXED_BLOCK_BYTES / FY_MIX_LINE_BYTES),
                                  .staging_bytes =
                                      (program->layout.lane_bytes[FY_MIX_REGION_INSIDE] +
                                       program->layout.lane_bytes[FY_MIX_REGION_BETWEEN]) *
                                      program->n_lanes,
                                  .virtual_memory = comm->inside_ready,
                                  .multicast = comm->opened && comm->program.mapped,
                                  .between_nodes = comm->between_ready,
                                  .tuned = comm->tuning != NULL,
                                  .deterministic = comm->options.deterministic,
                                  .between_note = note_on(comm),
                                  .kernels = comm->kernel != NULL,
                                  .reach = reach_of(comm)};
    const char *device = comm->kernel != NULL ? fy_memory_name(comm->options.device.kind) : NULL;
    bool is_inside = t->local_size > 1, is_between = t->inter_size > 1;
    snprintf(info.inside_engine, sizeof info.inside_engine, "%s",
             device != NULL && is_inside ? device : engine_towards(comm, true));
    info.base_engine = fy_mix_library_name(comm->library);
    snprintf(info.between_engine, sizeof info.between_engine, "%s",
             !is_between      ? ""
             : device != NULL ? device
                              : engine_towards(comm, false));
    return fy_copy_out(&info, sizeof info, info_out, "ferry_mixed_comm_info", error);
}
