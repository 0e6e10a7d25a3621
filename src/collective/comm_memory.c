/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a handle opens, and in which order it lets go of it. */
#include "base/alloc.h"
#include "base/checked.h"
#include "collective/comm.h"
#include "collective/graphs.h"
#include "collective/kernel.h"
#include "collective/library.h"
#include "world/agree.h"
#include "world/world.h"

#include <string.h>

static uint32_t rank_of_local(const fy_topology *t, uint32_t local_rank)
{
    return local_rank + t->inter_rank * t->local_size;
}

/* Whether all other ranks of the node can be looked into, on every node. */
static ferry_status find_mapped(ferry_mixed_comm *comm, ferry_error *error)
{
    const fy_topology *t = &comm->program.topology;
    enum { MAPPED, BY_DEVICE, N_FIELDS };
    fy_field fields[N_FIELDS] = {
        {.value = 1, .how = FY_AND},
        {.value = comm->options.device.kind != FERRY_MEMORY_HOST, .how = FY_AND}};
    for (uint32_t i = 0; i < t->local_size; i++) {
        uint32_t rank = rank_of_local(t, i);
        fields[MAPPED].value &=
            rank == t->world_rank ||
            (fy_transport_capabilities(comm->wires.transport, rank) & FERRY_CAN_PEER_POINTER) != 0;
    }
    FY_TRY(fy_agree_on(comm->world, FY_JOINT_MIXED_INIT_VIRTUAL_MEMORY,
                       fy_joint_object(comm->work.number, 0), fields, N_FIELDS, FERRY_OK, error));
    comm->program.mapped = fields[MAPPED].value != 0;
    comm->all_name_devices = fields[BY_DEVICE].value != 0;
    comm->by_device = comm->program.mapped && comm->all_name_devices;
    return FERRY_OK;
}

static size_t most_sources(const ferry_mixed_comm *comm)
{
    size_t most = 1;
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
            const fy_mix_schedule *schedule = comm->program.schedules[op][mode];
            for (uint32_t i = 0; schedule != NULL && i < schedule->n_sums; i++) {
                most = fy_max(most, schedule->sums[i].n);
            }
        }
    }
    return most;
}

static ferry_status make_lanes(ferry_mixed_comm *comm, ferry_error *error)
{
    size_t n_sources = most_sources(comm);
    const fy_program *any = &comm->program.schedules[comm->ops[0]][comm->modes[0]]->program;
    uint64_t rows = fy_mix_op_in_chunks(&comm->program.topology, comm->ops[0]) +
                    (uint64_t)fy_mix_op_out_chunks(&comm->program.topology, comm->ops[0]);
    comm->meeting = fy_alloc_zeroed(rows, comm->program.element_bytes);
    comm->state.lanes = fy_alloc_zeroed(comm->program.n_lanes, sizeof *comm->state.lanes);
    if (comm->state.lanes == NULL || comm->meeting == NULL) {
        return fy_fail_no_memory(error, "the lanes of a mixed collective");
    }
    for (uint32_t i = 0; i < comm->program.n_lanes; i++) {
        fy_mix_lane *lane = &comm->state.lanes[i];
        *lane = (fy_mix_lane){.program = &comm->program,
                              .call = &comm->state.call,
                              .wires = &comm->wires,
                              .index = i,
                              .done = true,
                              .sources = fy_alloc_zeroed(n_sources, sizeof *lane->sources)};
        FY_TRY(fy_check_memory(lane->sources != NULL, "the lanes of a mixed collective", error));
        FY_TRY(fy_drive_open(&lane->drive, any, NULL, error));
    }
    return comm->program.n_lanes > 1 ? fy_team_create(comm->program.n_lanes, &comm->team, error)
                                     : FERRY_OK;
}

/* Where the node's ranks have their parts of a region. */
static ferry_status find_peers(const ferry_mixed_comm *comm, const ferry_region *region,
                               char ***peers_out, ferry_error *error)
{
    const fy_topology *t = &comm->program.topology;
    char **peers = fy_alloc_zeroed(t->local_size, sizeof *peers);
    if (peers == NULL) {
        return fy_fail_no_memory(error, "pointers to peers");
    }
    for (uint32_t i = 0; comm->program.mapped && i < t->local_size; i++) {
        uint32_t rank = rank_of_local(t, i);
        peers[i] =
            rank == t->world_rank ? ferry_region_base(region) : ferry_region_pointer(region, rank);
    }
    *peers_out = peers;
    return FERRY_OK;
}

static ferry_status find_bells(ferry_mixed_comm *comm, ferry_error *error)
{
    const fy_topology *t = &comm->program.topology;
    comm->wires.bells = fy_alloc_zeroed(t->local_size, sizeof *comm->wires.bells);
    if (comm->wires.bells == NULL) {
        return fy_fail_no_memory(error, "bells");
    }
    for (uint32_t i = 0; comm->program.mapped && i < t->local_size; i++) {
        comm->wires.bells[i] = comm->world->bell_of(comm->world, rank_of_local(t, i));
    }
    return FERRY_OK;
}

/* What needs no other rank; a failure of one must become that of all. */
static ferry_status prepare(ferry_mixed_comm *comm, ferry_error *error)
{
    comm->n_modes = fy_topology_list_modes(&comm->program.topology, comm->program.mapped,
                                           comm->options.deterministic, comm->modes);
    ferry_status status = fy_mix_program_make(&comm->program, &comm->options, error);
    FY_THEN(status, make_lanes(comm, error));
    return status == FERRY_OK ? find_bells(comm, error) : status;
}

ferry_status fy_comm_open(ferry_mixed_comm *comm, ferry_error *error)
{
    if (comm->opened) {
        return FERRY_OK;
    }
    ferry_status status = FERRY_OK;
    if (comm->wires.transport == NULL) {
        status =
            ferry_transport_open(comm->world, comm->own_engines, &comm->wires.transport, error);
    }
    FY_THEN(status, find_mapped(comm, error));
    FY_THEN(status, fy_agree(comm->world, prepare(comm, error), error));
    FY_THEN(status, ferry_region_alloc(comm->wires.transport, FERRY_MEMORY_HOST, 0,
                                       fy_mix_control_bytes(comm), &comm->boards.control, error));
    FY_THEN(status,
            fy_agree(comm->world,
                     find_peers(comm, comm->boards.control, &comm->boards.peer_controls, error),
                     error));
    comm->opened = status == FERRY_OK;
    return status;
}

/* Boxes of a region, and where the node's ranks have theirs. Collective. */
static ferry_status open_region(ferry_mixed_comm *comm, fy_mix_region_index index,
                                ferry_error *error)
{
    ferry_status status = fy_comm_open(comm, error);
    uint64_t bytes = comm->program.layout.lane_bytes[index] * comm->program.n_lanes;
    if (status != FERRY_OK || bytes == 0) {
        return status;
    }
    status = ferry_region_alloc(comm->wires.transport, FERRY_MEMORY_HOST, 0, bytes,
                                &comm->wires.regions[index], error);
    if (status != FERRY_OK) {
        return status;
    }
    comm->wires.own[index] = ferry_region_base(comm->wires.regions[index]);
    return fy_agree(comm->world,
                    find_peers(comm, comm->wires.regions[index], &comm->wires.peers[index], error),
                    error);
}

static ferry_status init_region(ferry_mixed_comm *comm, const char *what, fy_joint_call as,
                                fy_mix_region_index index, bool *ready, ferry_error *error)
{
    ferry_status status = fy_comm_take(comm, what, error);
    if (status != FERRY_OK) {
        return status;
    }
    status = fy_comm_state(comm, error);
    if (status != FERRY_OK) {
        fy_comm_give_back(comm);
        return status;
    }
    if (!*ready) {
        fy_joint_enter(comm->world, as, fy_comm_object(comm));
        status = open_region(comm, index, error);
        if (index == FY_MIX_REGION_INSIDE) {
            FY_THEN(status, fy_mix_kernel_open(comm, error));
            comm->state.by_kernel = comm->kernel != NULL;
            FY_THEN(status, fy_mix_library_open(comm, error));
        }
        fy_joint_leave(comm->world);
        *ready = status == FERRY_OK;
    }
    if (status != FERRY_OK) {
        fy_comm_break(comm, status, "%s failed", what);
    }
    fy_comm_give_back(comm);
    return status;
}

ferry_status ferry_mixed_comm_init_virtual_memory(ferry_mixed_comm *comm, ferry_error *error)
{
    return init_region(comm, "init_virtual_memory", FY_JOINT_MIXED_INIT_VIRTUAL_MEMORY,
                       FY_MIX_REGION_INSIDE, comm == NULL ? NULL : &comm->inside_ready, error);
}

ferry_status ferry_mixed_comm_init_nvshmem(ferry_mixed_comm *comm, ferry_error *error)
{
    if (comm != NULL && !comm->options.should_init_nvshmem && comm->options.transport == NULL &&
        comm->program.topology.inter_size > 1) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "init_nvshmem: should_init_nvshmem is false, so the engine between the %u "
                       "nodes must be opened by the caller: pass options.transport",
                       comm->program.topology.inter_size);
    }
    return init_region(comm, "init_nvshmem", FY_JOINT_MIXED_INIT_NVSHMEM, FY_MIX_REGION_BETWEEN,
                       comm == NULL ? NULL : &comm->between_ready, error);
}

void fy_comm_close(ferry_mixed_comm *comm)
{
    /* First what may still read and write boxes. */
    fy_mix_library_close(comm);
    fy_mix_kernel_close(comm);
    comm->state.by_kernel = false;
    for (uint32_t i = 0; comm->state.lanes != NULL && i < comm->program.n_lanes; i++) {
        fy_mix_far_close(&comm->state.lanes[i]);
    }
    for (int i = FY_MIX_N_REGIONS - 1; i >= 0; i--) {
        ferry_region_free(comm->wires.regions[i]);
        fy_free(comm->wires.peers[i]);
        comm->wires.regions[i] = NULL;
        comm->wires.peers[i] = NULL;
        comm->wires.own[i] = NULL;
    }
    ferry_region_free(comm->boards.control);
    comm->boards.control = NULL;
    fy_free(comm->boards.peer_controls);
    comm->boards.peer_controls = NULL;
    fy_free(comm->wires.bells);
    comm->wires.bells = NULL;
    fy_team_destroy(comm->team);
    comm->team = NULL;
    for (uint32_t i = 0; comm->state.lanes != NULL && i < comm->program.n_lanes; i++) {
        fy_free(comm->state.lanes[i].sources);
        fy_drive_close(&comm->state.lanes[i].drive);
    }
    fy_free(comm->state.lanes);
    fy_free(comm->meeting);
    comm->state.lanes = NULL;
    comm->meeting = NULL;
    fy_mix_program_cleanup(&comm->program);
    ferry_transport_close(comm->wires.transport);
    comm->wires.transport = NULL;
    comm->opened = comm->inside_ready = comm->between_ready = false;
}

/* Collective, but where the world has failed. */
static void finish(ferry_mixed_comm *comm)
{
    fy_joint_enter(comm->world, FY_JOINT_MIXED_SHUTDOWN, fy_comm_object(comm));
    fy_comm_close(comm);
    fy_joint_leave(comm->world);
    fy_captures_end(&comm->captures);
    comm->finished = true;
}

void fy_comm_finish(ferry_mixed_comm *comm)
{
    if (!comm->finished) {
        ferry_mixed_comm_shutdown(comm, NULL);
    }
    if (!comm->finished) { /* the handle is broken, and the others free it as well */
        finish(comm);
    }
}

ferry_status ferry_mixed_comm_shutdown(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_status status = fy_comm_take(comm, "shutdown", error);
    if (status != FERRY_OK) {
        return status;
    }
    /* Launches of graphs that have not come to a call move nothing from here on; one that has, has
     * the world. */
    fy_captures_end(&comm->captures);
    status = fy_world_check_order(comm->world, "shutdown", error);
    if (status != FERRY_OK) {
        fy_comm_give_back(comm);
        return status;
    }
    if (comm->kernel != NULL) {
        fy_mix_graphs_end(fy_mix_kernel_graphs(comm->kernel));
    }
    status = fy_comm_state(comm, error);
    if (status == FERRY_OK && comm->inside_ready &&
        (comm->between_ready || comm->program.topology.inter_size == 1)) {
        status = fy_comm_meet(comm, FY_MIX_OP_SHUTDOWN, error);
        if (status != FERRY_OK) { /* nobody else frees the memory now: destroy does */
            fy_comm_give_back(comm);
            return status;
        }
    }
    finish(comm);
    fy_comm_give_back(comm);
    return status;
}
