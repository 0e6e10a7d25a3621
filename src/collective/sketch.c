/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What calls come to, read off their schedules: no rank, no memory, no clock. */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"
#include "collective/comm.h"

struct ferry_mixed_sketch {
    bool deterministic;
    fy_mix_program program;
};

ferry_status ferry_mixed_sketch_create(const ferry_mixed_comm_options *options, uint32_t reach,
                                       ferry_mixed_sketch **sketch_out, ferry_error *error)
{
    ferry_mixed_comm_options own;
    ferry_error spare;
    fy_topology topology;
    error = error == NULL ? &spare : error;
    if (sketch_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_mixed_sketch_create needs a place for it");
    }
    if (reach > FERRY_MIXED_REACH_OBJECTS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "there is no reach %u: ranks reach none of each other's memory (0), all of "
                       "it in place (1), or by multicast objects, too (2)",
                       reach);
    }
    FY_TRY(fy_take_mixed_comm_options(options, &own, error));
    FY_TRY(fy_mix_options_check(&own, error));
    fy_topology_wish wish = fy_mix_options_wish(&own);
    FY_TRY(fy_topology_make(&wish, &topology, error));
    ferry_mixed_sketch *sketch = fy_alloc_zeroed(1, sizeof *sketch);
    FY_TRY(fy_check_memory(sketch != NULL, "a sketch of mixed collectives", error));
    sketch->deterministic = own.deterministic;
    sketch->program.topology = topology;
    sketch->program.n_lanes = own.grid_size == 0 ? 1 : own.grid_size;
    sketch->program.mapped = reach != FERRY_MIXED_REACH_NONE;
    sketch->program.adds = reach == FERRY_MIXED_REACH_OBJECTS && !own.deterministic;
    fy_mix_program_take_type(&sketch->program, own.dtype);
    ferry_status status = fy_mix_program_make(&sketch->program, &own, error);
    if (status != FERRY_OK) {
        ferry_mixed_sketch_destroy(sketch);
        return status;
    }
    *sketch_out = sketch;
    return FERRY_OK;
}

void ferry_mixed_sketch_destroy(ferry_mixed_sketch *sketch)
{
    if (sketch != NULL) {
        fy_mix_program_cleanup(&sketch->program);
        fy_free(sketch);
    }
}

static ferry_status check_list(const ferry_mixed_sketch *sketch, const void *out,
                               const size_t *n_out, ferry_error *error)
{
    return sketch != NULL && out != NULL && n_out != NULL
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_MISUSE,
                         "a list of a sketch needs the sketch and places for both results");
}

ferry_status ferry_mixed_sketch_get_valid_op_list(const ferry_mixed_sketch *sketch,
                                                  uint32_t *ops_out, size_t room, size_t *n_out,
                                                  ferry_error *error)
{
    uint32_t ops[FERRY_MIXED_N_OPS];
    FY_TRY(check_list(sketch, ops_out, n_out, error));
    size_t n = fy_topology_list_ops(&sketch->program.topology, ops);
    fy_mix_give_list(ops, n, ops_out, room, n_out);
    return FERRY_OK;
}

ferry_status ferry_mixed_sketch_get_valid_mode_list(const ferry_mixed_sketch *sketch,
                                                    uint32_t *modes_out, size_t room, size_t *n_out,
                                                    ferry_error *error)
{
    uint32_t modes[FERRY_MIXED_N_MODES];
    FY_TRY(check_list(sketch, modes_out, n_out, error));
    const fy_mix_program *program = &sketch->program;
    size_t n =
        fy_topology_list_modes(&program->topology, program->mapped, sketch->deterministic, modes);
    fy_mix_give_list(modes, n, modes_out, room, n_out);
    return FERRY_OK;
}

/* ---- counting ---- */

/* Where bytes of a place count. */
static void count_place(const fy_mix_place *place, uint64_t bytes, uint64_t *inside,
                        uint64_t *tensor, uint64_t *own)
{
    bool is_tensor = place->kind == FY_MIX_PLACE_IN || place->kind == FY_MIX_PLACE_OUT;
    *(place->counts ? inside : is_tensor ? tensor : own) += bytes;
}

static void count_sum(const fy_mix_program *program, const fy_mix_schedule *schedule,
                      const fy_mix_sum *sum, uint64_t block, ferry_mixed_work *work)
{
    uint32_t bytes = program->element_bytes;
    uint64_t n = fy_mix_cut_span(&sum->cut, block, FY_MIX_LINE_BYTES / bytes).length;
    const fy_mix_place *sources = schedule->places + sum->first;
    uint64_t read = n * (sum->partial_sources ? sizeof(float) : bytes);
    uint64_t written = n * (sum->partial_targets ? sizeof(float) : bytes);
    for (uint32_t i = 0; i < sum->n; i++) {
        count_place(&sources[i], read, &work->inside_bytes_read, &work->tensor_bytes_read,
                    &work->own_bytes_read);
    }
    for (uint32_t i = 0; i < sum->n_targets; i++) {
        count_place(&sum->targets[i], written, &work->inside_bytes_written,
                    &work->tensor_bytes_written, &work->own_bytes_written);
    }
}

static void count_put(const fy_mix_program *program, const fy_mix_schedule *schedule,
                      const fy_mix_link *link, uint64_t block, ferry_mixed_work *work)
{
    const fy_topology *t = &program->topology;
    const fy_mix_edge_use *use = &schedule->edges[link->edge];
    uint32_t element = program->element_bytes;
    uint64_t bytes = use->n_cells * fy_mix_cell_elements(use, block, FY_MIX_LINE_BYTES / element) *
                     (use->partial ? sizeof(float) : element);
    if (link->rank / t->local_size == t->inter_rank) {
        work->inside_bytes_written += bytes;
    } else {
        work->between_bytes += bytes;
    }
}

static void count_wait(const fy_mix_program *program, const fy_mix_link *links, uint32_t n,
                       ferry_mixed_work *work)
{
    const fy_topology *t = &program->topology;
    bool between = false;
    for (uint32_t i = 0; i < n; i++) {
        between = between || links[i].rank / t->local_size != t->inter_rank;
    }
    work->n_between_waits += between;
    work->n_inside_waits += !between;
}

/* One step, of a block of so many elements. */
static void count_step(const fy_mix_program *program, const fy_mix_schedule *schedule,
                       uint64_t block, ferry_mixed_work *work)
{
    const fy_program *steps = &schedule->program;
    for (size_t i = 0; i < steps->n_steps; i++) {
        const fy_program_step *step = &steps->steps[i];
        const fy_mix_link *links = schedule->links + step->first;
        switch (step->kind) {
        case FY_STEP_SUM:
            count_sum(program, schedule, &schedule->sums[step->first], block, work);
            break;
        case FY_STEP_WAIT:
            count_wait(program, links, step->n, work);
            break;
        case FY_STEP_PUT:
            for (uint32_t k = 0; k < step->n; k++) {
                count_put(program, schedule, &links[k], block, work);
            }
            break;
        default: /* a SIGNAL moves no bytes */
            break;
        }
    }
}

static void add_bytes(ferry_mixed_work *to, const ferry_mixed_work *step, uint64_t times)
{
    to->inside_bytes_written += times * step->inside_bytes_written;
    to->inside_bytes_read += times * step->inside_bytes_read;
    to->between_bytes += times * step->between_bytes;
    to->own_bytes_written += times * step->own_bytes_written;
    to->own_bytes_read += times * step->own_bytes_read;
    to->tensor_bytes_read += times * step->tensor_bytes_read;
    to->tensor_bytes_written += times * step->tensor_bytes_written;
}

/* All whole blocks of all lanes are alike, so a lane costs two looks at its schedule at most. */
static ferry_mixed_work count_call(const fy_mix_program *program, const fy_mix_schedule *schedule,
                                   uint64_t count)
{
    fy_geometry g = fy_geometry_of(&program->limits, count, program->element_bytes);
    ferry_mixed_work work = FERRY_MIXED_WORK_INIT, whole = FERRY_MIXED_WORK_INIT;
    work.n_lanes = g.n_lanes;
    work.is_pipelined = schedule->program.lanes[0].is_pipelined;
    count_step(program, schedule, g.block_elements, &whole);
    work.n_inside_waits = whole.n_inside_waits;
    work.n_between_waits = whole.n_between_waits;
    for (uint32_t lane = 0; lane < g.n_lanes; lane++) {
        ferry_mixed_work last = FERRY_MIXED_WORK_INIT;
        uint64_t n_steps = fy_geometry_lane_steps(&g, lane);
        uint64_t rest = fy_geometry_lane_length(&g, lane) - (n_steps - 1) * g.block_elements;
        count_step(program, schedule, rest, &last);
        add_bytes(&work, &whole, n_steps - 1);
        add_bytes(&work, &last, 1);
        work.n_steps = fy_max(work.n_steps, n_steps);
    }
    return work;
}

ferry_status ferry_mixed_sketch_count(const ferry_mixed_sketch *sketch, uint32_t op, uint32_t mode,
                                      uint64_t count, ferry_mixed_work *work_out,
                                      ferry_error *error)
{
    if (sketch == NULL || work_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_mixed_sketch_count needs a sketch and a place for the work");
    }
    const fy_mix_program *program = &sketch->program;
    const fy_mix_schedule *schedule =
        op < FERRY_MIXED_N_OPS && mode < FERRY_MIXED_N_MODES ? program->schedules[op][mode] : NULL;
    if (schedule == NULL) {
        const char *op_name = ferry_mixed_op_name(op), *mode_name = ferry_mixed_mode_name(mode);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "these ranks have no operation %u (%s) in mode %u (%s)", op,
                       *op_name == '\0' ? "there is none" : op_name, mode,
                       *mode_name == '\0' ? "there is none" : mode_name);
    }
    uint64_t most = (UINT64_MAX >> 8) / program->topology.world_size;
    if (count == 0 || count > most) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a piece of %llu elements: there are from 1 to %llu",
                       (unsigned long long)count, (unsigned long long)most);
    }
    ferry_mixed_work work = count_call(program, schedule, count);
    return fy_copy_out(&work, sizeof work, work_out, "ferry_mixed_work", error);
}
