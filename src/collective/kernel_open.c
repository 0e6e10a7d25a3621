/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels of a handle need: boxes in the device's memory that all other devices reach, tables,
 * and as many blocks as are sure to run at once on each device. Whether kernels of all ranks do run
 * at once is found out by a small call, for nothing else tells: streams may hold each other up.
 * What one rank lacks all hear of, and the host goes through the schedules then.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "collective/kernel_state.h"
#include "transport/transport.h"
#include "world/agree.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { N_TRIALS = 3, ALIGNMENT = 256 };

/* The deadline of the call that tries whether kernels meet. */
static const uint64_t TRIAL_NS = (uint64_t)5000000000;

/* What each rank says of itself, in two turns. */
typedef struct first_word {
    uint64_t identity; /* of the device */
    uint64_t process;  /* of those that use the same device: which one it is */
    uint32_t most_lanes;
    uint32_t can; /* go on: what is wrong was logged */
    fy_mix_fleet_word fleet;
} first_word;

typedef struct second_word {
    uint32_t can, key_bytes;
    unsigned char key[FERRY_KEY_BYTES];
} second_word;

/* A kernel that is being opened, and why it cannot be; FERRY_OK of a status: nothing is wrong. */
typedef struct opening {
    ferry_mixed_comm *comm;
    fy_mix_kernel *kernel;
    uint64_t boxes_bytes, tables_bytes;
    uint64_t regions[FY_MIX_N_REGIONS];
    uint64_t fleet_unit; /* 0: there is to be no fleet */
    ferry_status status;
    ferry_error why;
} opening;

static uint64_t aligned(uint64_t bytes)
{
    return fy_ceil_div(bytes, ALIGNMENT) * ALIGNMENT;
}

/*
 * A rank's own part
 */

static ferry_status find_device(opening *o, first_word *word)
{
    fy_mix_kernel *kernel = o->kernel;
    FY_TRY(fy_mix_device_find(o->comm, &kernel->on, &o->why));
    if (kernel->on.exec->lanes == NULL) {
        return fy_fail(&o->why, FERRY_ERR_UNSUPPORTED, "devices of kind %s run no such kernels",
                       kernel->on.row->name);
    }
    FY_TRY(kernel->on.exec->most_lanes(kernel->on.number, &word->most_lanes, &word->identity,
                                       &o->why));
    word->process = (uint64_t)getpid();
    word->fleet = fy_mix_fleets_ask(o->comm, &kernel->on);
    return fy_mix_device_take_queue(o->comm->world, &kernel->on, &o->why);
}

/* Ranks that share a device share what it runs at once. */
static uint32_t count_lanes(const opening *o, const first_word *words, const first_word *own)
{
    uint32_t n_ranks = o->comm->world->n_ranks, n_sharing = 0;
    for (uint32_t i = 0; i < n_ranks; i++) {
        n_sharing += words[i].identity == own->identity;
    }
    return own->most_lanes / n_sharing;
}

/*
 * Other ranks of this process may have streams in the channels of this one's: a kernel there that
 * waits for theirs may hold them up.
 */
static bool is_alone(const opening *o, const first_word *words, const first_word *own)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->comm->world->n_ranks; i++) {
        n += words[i].identity == own->identity && words[i].process == own->process;
    }
    return n == 1;
}

static ferry_status check_sums(opening *o)
{
    const fy_mix_program *program = &o->kernel->program;
    for (uint32_t i = 0; i < FERRY_MIXED_N_OPS * FERRY_MIXED_N_MODES; i++) {
        fy_mix_schedule *schedule =
            program->schedules[i / FERRY_MIXED_N_MODES][i % FERRY_MIXED_N_MODES];
        for (uint32_t k = 0; schedule != NULL && k < schedule->n_sums; k++) {
            uint32_t n = schedule->sums[k].n + schedule->sums[k].n_targets;
            if (n > FY_LANES_MOST_OPERANDS) {
                return fy_fail(&o->why, FERRY_ERR_LIMIT,
                               "a sum has %u operands, and a kernel takes %d", n,
                               (int)FY_LANES_MOST_OPERANDS);
            }
        }
        if (schedule != NULL) {
            o->tables_bytes += aligned(fy_mix_tables_bytes(schedule));
            schedule->n_puts = 0; /* the transport carries none of them */
        }
    }
    return FERRY_OK;
}

/* Anew, where there is one already. */
static ferry_status make_program(opening *o, uint32_t n_lanes, bool adds)
{
    const ferry_mixed_comm *comm = o->comm;
    fy_mix_program *program = &o->kernel->program;
    fy_mix_program_cleanup(program);
    program->topology = comm->program.topology;
    fy_mix_program_take_type(program, comm->options.dtype);
    program->n_lanes = n_lanes;
    program->mapped = true;
    program->adds = adds && !comm->options.deterministic;
    o->boxes_bytes = o->tables_bytes = 0;
    FY_TRY(fy_mix_program_make(program, &comm->options, &o->why));
    for (int i = 0; i < FY_MIX_N_REGIONS; i++) {
        o->regions[i] = o->boxes_bytes;
        o->boxes_bytes += aligned(program->layout.lane_bytes[i] * n_lanes);
    }
    return check_sums(o);
}

static ferry_status take_page(opening *o)
{
    void *page;
    FY_TRY(o->kernel->on.exec->lanes_take(o->kernel->on.queue, &page, &o->why));
    o->kernel->post.page = page;
    return FERRY_OK;
}

/* What kernels look at beside boxes. */
static ferry_status make_post(opening *o)
{
    fy_mix_kernel *kernel = o->kernel;
    uint32_t n_lanes = kernel->program.n_lanes;
    uint64_t bytes = ALIGNMENT + n_lanes * sizeof(fy_lanes_state);
    kernel->post.on = kernel->on;
    kernel->post.n_lanes = n_lanes;
    FY_TRY(take_page(o));
    FY_TRY(fy_mix_device_alloc(&kernel->on, bytes, &kernel->post.words, &o->why));
    uint64_t page = (uintptr_t)kernel->post.page, words = (uintptr_t)kernel->post.words.base;
    kernel->watch = (fy_lanes_watch){.states = words + ALIGNMENT,
                                     .reports = page + sizeof(fy_lanes_board),
                                     .board = page,
                                     .halt = words,
                                     .patience_ns = FY_MIX_KERNEL_PATIENCE_NS};
    return kernel->is_alone && kernel->on.exec->capture_lanes != NULL
               ? fy_mix_graphs_create(o->comm, &kernel->post, &kernel->graphs, &o->why)
               : FERRY_OK;
}

/* Boxes come first, at the same place on all ranks. */
static ferry_status make_memory(opening *o, second_word *word)
{
    fy_mix_kernel *kernel = o->kernel;
    size_t key_bytes = 0;
    FY_TRY(make_post(o));
    FY_TRY(fy_mix_device_alloc(&kernel->on, o->boxes_bytes + o->tables_bytes, &kernel->memory,
                               &o->why));
    kernel->counted = fy_alloc_zeroed(kernel->program.n_lanes, sizeof *kernel->counted);
    kernel->theirs = fy_alloc_zeroed(o->comm->world->n_ranks, sizeof(ferry_region *));
    if (kernel->counted == NULL || kernel->theirs == NULL) {
        return fy_fail_no_memory(&o->why, "a kernel of a mixed collective");
    }
    FY_TRY(ferry_region_register(o->comm->wires.transport, &kernel->memory, &kernel->own, &o->why));
    FY_TRY(ferry_region_export(kernel->own, word->key, sizeof word->key, &key_bytes, &o->why));
    word->key_bytes = (uint32_t)key_bytes;
    return FERRY_OK;
}

/* Where the device finds another rank's boxes. */
static ferry_status open_peer(opening *o, uint32_t rank, const second_word *word,
                              uint64_t *base_out)
{
    fy_mix_kernel *kernel = o->kernel;
    FY_TRY(ferry_region_import(o->comm->wires.transport, word->key, word->key_bytes,
                               &kernel->theirs[rank], &o->why));
    void *base = ferry_region_pointer(kernel->theirs[rank], rank);
    fy_space space = {.kind = FERRY_MEMORY_HOST};
    if (base != NULL) {
        space = fy_memory_query(base, NULL);
    }
    if (fy_is_host(space) || !kernel->on.exec->reaches(kernel->on.number, space)) {
        return fy_fail(&o->why, FERRY_ERR_UNSUPPORTED,
                       "device %d does not reach the memory of rank %u", kernel->on.number, rank);
    }
    *base_out = (uintptr_t)base;
    return FERRY_OK;
}

static ferry_status open_peers(opening *o, const second_word *words, uint64_t *bases)
{
    const fy_topology *t = &o->kernel->program.topology;
    bases[t->world_rank] = (uintptr_t)o->kernel->memory.base;
    for (uint32_t rank = 0; rank < t->world_size; rank++) {
        if (rank != t->world_rank) {
            FY_TRY(open_peer(o, rank, &words[rank], &bases[rank]));
        }
    }
    return FERRY_OK;
}

/* All tables, as they will lie in the device's memory, and then there. */
static ferry_status write_tables(opening *o, const uint64_t *bases, char *bytes)
{
    fy_mix_kernel *kernel = o->kernel;
    fy_mix_boxes boxes = {.bases = bases, .regions = {o->regions[0], o->regions[1]}};
    for (int i = 0; i < FY_MIX_N_FLEETS; i++) {
        boxes.fleets[i] = kernel->fleets.of[i].at;
        boxes.area_bytes[i] = kernel->fleets.of[i].area_bytes;
    }
    uint64_t used = 0;
    char *there = (char *)kernel->memory.base + kernel->memory.bytes - o->tables_bytes;
    for (uint32_t i = 0; i < FERRY_MIXED_N_OPS * FERRY_MIXED_N_MODES; i++) {
        uint32_t op = i / FERRY_MIXED_N_MODES, mode = i % FERRY_MIXED_N_MODES;
        const fy_mix_schedule *schedule = kernel->program.schedules[op][mode];
        if (schedule != NULL) {
            fy_mix_tables_write(&kernel->program, schedule, &boxes, (uintptr_t)there + used,
                                bytes + used, &kernel->tables[op][mode]);
            used += aligned(fy_mix_tables_bytes(schedule));
        }
    }
    fy_area flat = fy_area_flat(0, used);
    FY_TRY(kernel->on.exec->copy(kernel->on.queue, &flat, there, &flat, bytes, 0, used, NULL,
                                 &o->why));
    return fy_exec_finish(kernel->on.exec, kernel->on.queue, &o->why);
}

static ferry_status connect(opening *o, const second_word *words)
{
    uint64_t *bases = fy_alloc_zeroed(o->comm->world->n_ranks, sizeof *bases);
    char *bytes = fy_alloc_zeroed(o->tables_bytes, 1);
    ferry_status status = bases == NULL || bytes == NULL
                              ? fy_fail_no_memory(&o->why, "the tables of a kernel")
                              : open_peers(o, words, bases);
    if (status == FERRY_OK) {
        status = write_tables(o, bases, bytes);
    }
    fy_free(bases);
    fy_free(bytes);
    return status;
}

/* The smallest call, of all lanes that it has, on memory of the device's own. */
static ferry_status try_call(opening *o)
{
    fy_mix_kernel *kernel = o->kernel;
    const fy_mix_program *program = &kernel->program;
    const fy_topology *t = &program->topology;
    uint32_t op = o->comm->ops[0];
    fy_mix_call call = {.op = op, .mode = o->comm->modes[0]};
    uint64_t n_lines = fy_max(program->limits.min_lines, 1) * program->n_lanes;
    uint64_t bytes = n_lines * FY_MIX_LINE_BYTES;
    call.schedule = program->schedules[op][call.mode];
    call.geometry =
        fy_geometry_of(&program->limits, bytes / program->element_bytes, program->element_bytes);
    for (uint32_t i = 0; i < call.schedule->n_used; i++) {
        uint32_t edge = call.schedule->used[i];
        call.cell_bytes[edge] = fy_mix_cell_bytes(
            &call.schedule->edges[edge], call.geometry.block_elements, program->element_bytes);
    }
    for (int i = 0; i < 2; i++) {
        uint64_t chunks = i == 0 ? fy_mix_op_in_chunks(t, op) : fy_mix_op_out_chunks(t, op);
        FY_TRY(fy_mix_device_alloc(&kernel->on, bytes * chunks, &kernel->on.scratch[i], &o->why));
    }
    call.in = kernel->on.scratch[0].base;
    call.out = kernel->on.scratch[1].base;
    call.in_space = call.out_space = fy_space_of(&kernel->on.scratch[0]);
    uint64_t limit_ns = fy_min(TRIAL_NS, (uint64_t)kernel->settings->deadline_ns / 2);
    FY_TRY(fy_mix_kernel_launch(kernel, &call, limit_ns, &o->why));
    FY_TRY(fy_exec_finish(kernel->on.exec, kernel->on.queue, &o->why));
    kernel->is_launched = false;
    FY_TRY(fy_mix_kernel_reset(kernel, &o->why)); /* this call is not the caller's */
    return fy_mix_kernel_has_stopped(kernel)
               ? fy_fail(&o->why, FERRY_ERR_UNSUPPORTED,
                         "kernels of all ranks did not come to run at once within %g s",
                         (double)TRIAL_NS * 1e-9)
               : FERRY_OK;
}

/*
 * All ranks
 */

/* How long memory waits for kernels of others, where nobody can be asked any more. */
static const int64_t FAREWELL_NS = 1000000000;

static _Atomic uint64_t *farewell_of(const fy_mix_kernel *kernel, uint32_t rank)
{
    return ferry_region_pointer(kernel->farewells, rank);
}

/* In a world that has failed: whether all others have said that their kernels write no more. */
static bool have_all_left(const fy_mix_kernel *kernel, const ferry_world *world)
{
    int64_t until = fy_now_ns() + FAREWELL_NS;
    uint32_t n_ranks = world->n_ranks, rank = 0, n_looks = 0, lost = FERRY_ANY_RANK;
    if (fy_failure_get(world->failure, &lost, NULL) != FERRY_ERR_PEER_LOST) {
        lost = FERRY_ANY_RANK;
    }
    while (rank < n_ranks && fy_now_ns() < until) {
        const _Atomic uint64_t *word = farewell_of(kernel, rank);
        if (rank == lost) { /* its kernels went with its process */
            rank++;
        } else if (word != NULL && atomic_load_explicit(word, memory_order_acquire) != 0) {
            rank++;
        } else {
            fy_exec_pause(n_looks++);
        }
    }
    return rank == n_ranks;
}

/*
 * Collective, but where the world has failed: no kernel uses this rank's memory any more, and
 * nobody has it open. A rank that has died has none; of one that was stopped nobody knows, and what
 * it may yet write to stays.
 */
static bool part(fy_mix_kernel *kernel, ferry_world *world)
{
    if (kernel->farewells == NULL) {
        return true;
    }
    atomic_store_explicit(farewell_of(kernel, world->rank), 1, memory_order_release);
    bool may_free = fy_agree(world, FERRY_OK, NULL) == FERRY_OK || have_all_left(kernel, world);
    ferry_region_free(kernel->farewells);
    return may_free;
}

static void free_memory(fy_mix_kernel *kernel, bool may_free)
{
    for (int i = 0; i < 2; i++) {
        fy_mix_device_free(&kernel->on, &kernel->on.scratch[i]);
    }
    if (may_free) {
        fy_mix_fleets_close(&kernel->fleets);
        fy_mix_device_free(&kernel->on, &kernel->memory);
    } else {
        fy_log(FERRY_LOG_WARN,
               "%llu bytes of device %d stay: kernels of ranks that give no sign may use them",
               (unsigned long long)kernel->memory.bytes, kernel->on.number);
    }
}

static void discard(fy_mix_kernel *kernel, ferry_world *world)
{
    if (kernel == NULL) {
        return;
    }
    if (kernel->post.page != NULL) {
        fy_mix_kernel_stop(kernel);
    }
    bool post_stays = fy_mix_graphs_part(kernel->graphs);
    fy_mix_device_give_queue(&kernel->on);
    if (!post_stays) {
        fy_mix_post_free(&kernel->post);
    }
    for (uint32_t i = 0; kernel->theirs != NULL && i < world->n_ranks; i++) {
        ferry_region_free(kernel->theirs[i]);
    }
    bool may_free = part(kernel, world);
    ferry_region_free(kernel->own);
    free_memory(kernel, may_free);
    fy_free(kernel->theirs);
    fy_free(kernel->counted);
    fy_mix_program_cleanup(&kernel->program);
    fy_free(kernel);
}

/* Whether all ranks can go on; what is wrong here is said. */
static ferry_status all_can(opening *o, bool *all_out, ferry_error *error)
{
    fy_field can = {.value = o->status == FERRY_OK, .how = FY_AND};
    FY_TRY(fy_agree_on(o->comm->world, FY_JOINT_MIXED_INIT_VIRTUAL_MEMORY, fy_comm_object(o->comm),
                       &can, 1, FERRY_OK, error));
    *all_out = can.value != 0;
    return FERRY_OK;
}

/*
 * The largest unit of the ranks' devices; 0: some rank can be in no fleet, or two of a node share a
 * device.
 */
static uint64_t fleet_unit(const opening *o, const first_word *words)
{
    uint32_t n_ranks = o->comm->world->n_ranks, n_local = o->comm->program.topology.local_size;
    uint64_t unit = 0;
    for (uint32_t i = 0; i < n_ranks; i++) {
        if (words[i].fleet.can == 0) {
            return 0;
        }
        for (uint32_t k = i - i % n_local; k < i; k++) {
            if (words[k].identity == words[i].identity) {
                fy_log(FERRY_LOG_INFO,
                       "a mixed collective goes without multicast objects: ranks %u and %u share a "
                       "device",
                       k, i);
                return 0;
            }
        }
        unit = fy_max(unit, words[i].fleet.unit);
    }
    return unit;
}

/*
 * Where all ranks can be in fleets: what these have memory for is known with the program, and that
 * is made anew if there are none after all.
 */
static ferry_status settle_fleets(opening *o, ferry_error *error)
{
    fy_mix_kernel *kernel = o->kernel;
    bool all = false;
    if (o->fleet_unit == 0) {
        return FERRY_OK;
    }
    FY_TRY(all_can(o, &all, error));
    if (!all) {
        return FERRY_OK;
    }
    FY_TRY(fy_mix_fleets_open(o->comm, &kernel->on, o->fleet_unit, &kernel->program,
                              &kernel->fleets, error));
    if (!fy_mix_kernel_has_fleet(kernel) && kernel->program.adds) {
        o->status = make_program(o, kernel->program.n_lanes, false);
    }
    return FERRY_OK;
}

static ferry_status settle_lanes(opening *o, bool *all_out, ferry_error *error)
{
    first_word own = {.can = 0};
    const void *all;
    uint32_t wished = o->comm->options.grid_size;
    uint32_t n_lanes = wished != 0 && wished < FY_LANES_MOST_LANES ? wished : FY_LANES_MOST_LANES;
    o->status = find_device(o, &own);
    own.can = o->status == FERRY_OK;
    FY_TRY(ferry_world_all_gather(o->comm->world, &own, sizeof own, &all, error));
    const first_word *words = all;
    *all_out = true;
    for (uint32_t i = 0; i < o->comm->world->n_ranks; i++) {
        uint32_t its = words[i].can != 0 ? count_lanes(o, words, &words[i]) : 0;
        n_lanes = its < n_lanes ? its : n_lanes;
        *all_out = *all_out && words[i].can != 0;
    }
    if (*all_out && n_lanes == 0) {
        o->status = fy_fail(&o->why, FERRY_ERR_LIMIT,
                            "device %d does not run a block for each of the ranks that share it",
                            o->kernel->on.number);
        *all_out = false;
    }
    if (*all_out) {
        o->kernel->is_alone = is_alone(o, words, &own);
        o->fleet_unit = fleet_unit(o, words);
        o->status = make_program(o, n_lanes, o->fleet_unit != 0);
    }
    return FERRY_OK;
}

static ferry_status settle_memory(opening *o, bool *all_out, ferry_error *error)
{
    second_word own = {.can = 0};
    const void *all;
    if (o->status == FERRY_OK) {
        o->status = make_memory(o, &own);
    }
    own.can = o->status == FERRY_OK;
    FY_TRY(ferry_world_all_gather(o->comm->world, &own, sizeof own, &all, error));
    const second_word *words = all;
    *all_out = true;
    for (uint32_t i = 0; i < o->comm->world->n_ranks; i++) {
        *all_out = *all_out && words[i].can != 0;
    }
    if (*all_out) { /* from here on others may have this rank's memory open */
        FY_TRY(ferry_region_alloc(o->comm->wires.transport, FERRY_MEMORY_HOST, 0, sizeof(uint64_t),
                                  &o->kernel->farewells, error));
        o->status = connect(o, words);
        FY_TRY(all_can(o, all_out, error));
    }
    return FERRY_OK;
}

/* From the beginning; *all_out: kernels of all ranks have met. *once_more: they may the next time.
 */
static ferry_status open_once(opening *o, bool *all_out, bool *once_more, ferry_error *error)
{
    *once_more = false;
    FY_TRY(settle_lanes(o, all_out, error));
    if (*all_out) {
        FY_TRY(settle_fleets(o, error));
        FY_TRY(settle_memory(o, all_out, error));
    }
    if (*all_out) {
        o->status = try_call(o);
        FY_TRY(all_can(o, all_out, error));
        *once_more = !*all_out;
    }
    return FERRY_OK;
}

static void say_why_not(const opening *o)
{
    fy_log(o->status == FERRY_OK ? FERRY_LOG_DEBUG : FERRY_LOG_WARN,
           "a mixed collective of device %d goes without kernels, by the host: %s",
           o->comm->options.device.index,
           o->status == FERRY_OK ? "another rank could not do otherwise" : o->why.message);
}

ferry_status fy_mix_kernel_open(ferry_mixed_comm *comm, ferry_error *error)
{
    bool all = false, once_more = comm->by_device;
    ferry_status status = FERRY_OK;
    for (int i = 0; i < N_TRIALS && once_more && status == FERRY_OK; i++) {
        opening o = {.comm = comm, .status = FERRY_OK};
        o.kernel = fy_alloc_zeroed(1, sizeof *o.kernel);
        status = fy_agree(comm->world, fy_check_memory(o.kernel != NULL, "a kernel", error), error);
        if (status == FERRY_OK) {
            o.kernel->settings = &comm->world->settings;
            status = open_once(&o, &all, &once_more, error);
        }
        if (status == FERRY_OK && all) {
            comm->kernel = o.kernel;
            break;
        }
        if (status == FERRY_OK) {
            say_why_not(&o);
        }
        discard(o.kernel, comm->world);
    }
    return status;
}

void fy_mix_kernel_close(ferry_mixed_comm *comm)
{
    discard(comm->kernel, comm->world);
    comm->kernel = NULL;
}
