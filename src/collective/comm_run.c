/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Calls in host order: how they begin, and who may make them. */
#include "base/alloc.h"
#include "base/checked.h"
#include "collective/comm.h"
#include "collective/kernel.h"
#include "collective/library.h"
#include "collective/tune.h"
#include "collective/wait.h"
#include "host/cache.h"
#include "transport/host.h"
#include "world/order.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>

const fy_mix_program *fy_comm_program(const ferry_mixed_comm *comm)
{
    return comm->state.by_kernel ? fy_mix_kernel_program(comm->kernel) : &comm->program;
}

ferry_status fy_comm_check_ready(const ferry_mixed_comm *comm, const char *what, ferry_error *error)
{
    if (!comm->inside_ready || (!comm->between_ready && comm->program.topology.inter_size > 1)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s needs init_virtual_memory, and with several nodes init_nvshmem, "
                       "before it",
                       what);
    }
    return FERRY_OK;
}

static void set_tensors(fy_mix_call *call, const ferry_mixed_tensor *in,
                        const ferry_mixed_tensor *out)
{
    call->in = in->buffer.base;
    call->out = out->buffer.base;
    call->in_space = fy_space_of(&in->buffer);
    call->out_space = fy_space_of(&out->buffer);
}

/* Other ranks come to the same: what they differ in would be seen by the headers. */
static void cut_call(const fy_mix_program *program, fy_mix_call *call, uint32_t op, uint32_t mode,
                     uint64_t n_elements, uint32_t block_lines)
{
    fy_geometry_limits limits = program->limits;
    if (block_lines != 0) { /* one that autotune has found: also where it is a whole range */
        limits.max_lines = block_lines;
        limits.min_lines = limits.min_lines < block_lines ? limits.min_lines : block_lines;
        limits.min_steps = 1;
    }
    call->schedule = program->schedules[op][mode];
    call->geometry = fy_geometry_of(&limits, n_elements, program->element_bytes);
    call->geometry_key = call->geometry.block_elements ^ ((uint64_t)call->geometry.n_lanes << 48);
    for (uint32_t i = 0; i < call->schedule->n_used; i++) {
        uint32_t edge = call->schedule->used[i];
        call->cell_bytes[edge] = fy_mix_cell_bytes(
            &call->schedule->edges[edge], call->geometry.block_elements, program->element_bytes);
    }
}

/* What messages and boards say of it. */
static void name_call(const ferry_mixed_comm *comm, fy_mix_call *call, uint32_t op, uint32_t mode,
                      const ferry_mixed_tensor *in)
{
    call->op = op;
    call->mode = mode;
    call->count = fy_mix_call_piece(comm, op, in);
}

void fy_comm_foresee(const ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                     const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                     fy_mix_call *call_out)
{
    name_call(comm, call_out, op, mode, in);
    set_tensors(call_out, in, out);
    cut_call(fy_comm_program(comm), call_out, op, mode, call_out->count, block_lines);
}

static void set_call(ferry_mixed_comm *comm, uint32_t op, uint32_t mode, uint32_t block_lines,
                     const ferry_mixed_tensor *in, const ferry_mixed_tensor *out)
{
    fy_mix_call *call = &comm->state.call;
    fy_caches caches = fy_caches_here();
    fy_comm_foresee(comm, op, in, out, mode, block_lines, call);
    call->stream = fy_caches_are_passed(&caches, comm->world->n_local_ranks, in->buffer.base,
                                        in->buffer.bytes, out->buffer.base, out->buffer.bytes);
}

/* Tensors of the smallest call, in the handle's own memory. */
static void list_meeting(const ferry_mixed_comm *comm, ferry_mixed_tensor tensors_out[2])
{
    const fy_topology *t = &comm->program.topology;
    uint32_t op = comm->ops[0];
    uint64_t rows[2] = {fy_mix_op_in_chunks(t, op), fy_mix_op_out_chunks(t, op)};
    char *memory = comm->meeting;
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = rows[i] * comm->program.element_bytes;
        tensors_out[i] = (ferry_mixed_tensor){ferry_buffer_of(memory, bytes), rows[i], 1};
        memory += bytes;
    }
}

/*
 * A library makes it once all ranks have met, in the smallest call there is, whose messages say
 * what this one is.
 */
static void set_library_call(ferry_mixed_comm *comm, uint32_t op, uint32_t mode,
                             const ferry_mixed_tensor *in, const ferry_mixed_tensor *out)
{
    fy_mix_call *call = &comm->state.call;
    ferry_mixed_tensor meeting[2];
    list_meeting(comm, meeting);
    name_call(comm, call, op, mode, in);
    call->stream = false;
    set_tensors(call, &meeting[0], &meeting[1]);
    cut_call(&comm->program, call, comm->ops[0], comm->modes[0], 1, 0);
    fy_mix_library_begin(comm->library, call, in, out);
}

/*
 * Who goes through the call, and how; queues of devices, where a tensor lies on one. A failure
 * leaves the call not begun.
 */
static ferry_status set_verbs(ferry_mixed_comm *comm, bool by_library, ferry_error *error)
{
    const fy_mix_call *call = &comm->state.call;
    bool is_far = !fy_is_host(call->in_space) || !fy_is_host(call->out_space);
    bool by_kernel = comm->state.by_kernel && !by_library;
    ferry_status status = FERRY_OK;
    comm->state.call.n_driven = by_kernel ? 1 : call->geometry.n_lanes;
    for (uint32_t i = 0; i < comm->program.n_lanes; i++) {
        comm->state.lanes[i].kernel = comm->kernel;
        comm->state.lanes[i].library = comm->library;
        comm->state.lanes[i].verbs = by_library  ? &fy_mix_library_verbs
                                     : by_kernel ? &fy_mix_kernel_verbs
                                     : is_far    ? comm->far_verbs
                                                 : comm->host_verbs;
        if (is_far && !by_kernel && status == FERRY_OK && i < call->geometry.n_lanes) {
            status = fy_mix_far_open(&comm->state.lanes[i], error);
        }
    }
    if (by_kernel) {
        fy_mix_kernel_line_up(comm->kernel);
    }
    return status;
}

/* A call that all ranks may make. */
static ferry_status prepare_call(ferry_mixed_comm *comm, uint32_t op, uint32_t mode,
                                 uint32_t block_lines, const ferry_mixed_tensor *in,
                                 const ferry_mixed_tensor *out, ferry_error *error)
{
    bool by_library = fy_mix_library_makes(comm->library, mode);
    if (by_library) {
        set_library_call(comm, op, mode, in, out);
    } else {
        set_call(comm, op, mode, block_lines, in, out);
    }
    return set_verbs(comm, by_library, error);
}

static void start_call(ferry_mixed_comm *comm)
{
    const fy_mix_call *call = &comm->state.call;
    comm->state.n_calls++;
    fy_mix_forget_answers(comm);
    fy_work_begin(comm->world, &comm->work, call->number);
    comm->boards.told = false;
    comm->boards.n_waiting = 0;
    fy_mix_board_write(comm, call->number, call->op, call->mode, call->count, false);
    for (uint32_t i = 0; i < comm->program.n_lanes; i++) {
        fy_mix_lane_begin(&comm->state.lanes[i]);
    }
}

void fy_comm_catch_up(ferry_mixed_comm *comm, uint64_t number)
{
    uint64_t counted = comm->state.call.number;
    if (number > counted) {
        comm->state.call.number = number;
        comm->state.n_calls += number - counted;
        fy_mix_kernel_add_ahead(comm->kernel, number - counted);
    }
}

ferry_status fy_comm_begin(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                           const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                           ferry_status refusal, ferry_error *error)
{
    ferry_error own;
    ferry_status status =
        fy_comm_call_state(comm, comm->state.call.number + 1, refusal == FERRY_OK ? error : &own);
    if (status == FERRY_OK) {
        status = fy_comm_check_ready(comm, "run", refusal == FERRY_OK ? error : &own);
    }
    if (status != FERRY_OK) {
        return refusal == FERRY_OK ? status : refusal;
    }
    fy_mix_kernel_catch_up(comm);
    comm->state.call.number++;
    status = refusal == FERRY_OK ? fy_mix_call_check(comm, op, in, out, error) : refusal;
    if (status == FERRY_OK) {
        status = fy_mix_call_mode(comm, op,
                                  fy_mix_call_piece(comm, op, in) * comm->program.element_bytes,
                                  &mode, &block_lines, error);
    }
    if (status == FERRY_OK) {
        status = prepare_call(comm, op, mode, block_lines, in, out, error);
    }
    if (status == FERRY_OK) {
        start_call(comm);
    } else {
        pthread_mutex_lock(&comm->wires.network);
        fy_mix_board_write(comm, comm->state.call.number, FY_MIX_OP_REFUSED, 0, 0, false);
        fy_mix_board_tell(comm);
        pthread_mutex_unlock(&comm->wires.network);
    }
    fy_mix_kernel_has_counted(comm, status == FERRY_OK &&
                                        comm->state.lanes[0].verbs == &fy_mix_kernel_verbs);
    return status;
}

ferry_status fy_comm_take(ferry_mixed_comm *comm, const char *what, ferry_error *error)
{
    if (comm == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a mixed collective", what);
    }
    ferry_status status = fy_world_check_process(comm->world, error);
    if (status != FERRY_OK) {
        return status;
    }
    FY_TRY(fy_world_check_order(comm->world, what, error));
    if (atomic_exchange_explicit(&comm->busy, true, memory_order_acquire)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: another thread, or a request, uses this handle now", what);
    }
    if (comm->finished) {
        atomic_store(&comm->busy, false);
        return fy_fail(error, FERRY_ERR_MISUSE, "%s after shutdown; only destroy may follow", what);
    }
    return FERRY_OK;
}

void fy_comm_give_back(ferry_mixed_comm *comm)
{
    atomic_store_explicit(&comm->busy, false, memory_order_release);
}

ferry_status fy_comm_run(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                         const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                         ferry_error *error)
{
    ferry_status status = fy_comm_begin(comm, op, in, out, mode, block_lines, FERRY_OK, error);
    return status == FERRY_OK ? fy_mix_work_until_over(comm, FY_JOINT_MIXED_AUTOTUNE, error)
                              : status;
}

ferry_status fy_comm_meet(ferry_mixed_comm *comm, uint32_t as, ferry_error *error)
{
    ferry_error own;
    error = error == NULL ? &own : error;
    ferry_mixed_tensor meeting[2];
    list_meeting(comm, meeting);
    comm->state.by_kernel = false; /* what all can do, whatever becomes of devices */
    ferry_status status = fy_comm_begin(comm, comm->ops[0], &meeting[0], &meeting[1],
                                        comm->modes[0], 0, FERRY_OK, error);
    comm->state.by_kernel = comm->kernel != NULL;
    if (status == FERRY_OK) {
        comm->state.call.op = as;
        fy_mix_board_write(comm, comm->state.call.number, as, comm->modes[0], 1, false);
        status = fy_mix_work_until_over(
            comm, as == FY_MIX_OP_TUNE ? FY_JOINT_MIXED_AUTOTUNE : FY_JOINT_MIXED_SHUTDOWN, error);
    }
    return status;
}

ferry_status fy_comm_call(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                          const ferry_mixed_tensor *out, uint32_t mode, ferry_status refusal,
                          ferry_error *error)
{
    ferry_status status = fy_comm_begin(comm, op, in, out, mode, 0, refusal, error);
    return status == FERRY_OK ? fy_mix_work_until_over(comm, FY_JOINT_MIXED_RUN, error) : status;
}

ferry_status ferry_mixed_comm_run(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                                  const ferry_mixed_tensor *out, uint32_t mode, ferry_queue *queue,
                                  ferry_error *error)
{
    ferry_error own;
    error = error == NULL ? &own : error;
    if (queue != NULL) {
        return fy_comm_call_on(comm, op, in, out, mode, queue, NULL, error);
    }
    ferry_status status = fy_comm_take(comm, "run", error);
    if (status == FERRY_OK) {
        status = fy_comm_call(comm, op, in, out, mode, FERRY_OK, error);
        fy_comm_give_back(comm);
    }
    return status;
}

ferry_status ferry_mixed_comm_select_autotune_mode(ferry_mixed_comm *comm, uint32_t op,
                                                   const ferry_mixed_tensor *in, uint32_t *mode_out,
                                                   ferry_error *error)
{
    uint32_t block_lines = 0, mode = FERRY_MIXED_AUTOTUNE;
    if (comm == NULL || mode_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "select_autotune_mode needs a mixed collective and a place for its answer");
    }
    ferry_status status = fy_mix_call_check_input(comm, op, in, error);
    if (status == FERRY_OK) {
        status = fy_mix_call_mode(comm, op,
                                  fy_mix_call_piece(comm, op, in) * comm->program.element_bytes,
                                  &mode, &block_lines, error);
    }
    if (status == FERRY_OK) {
        *mode_out = mode;
    }
    return status;
}

ferry_status ferry_mixed_comm_start(ferry_mixed_comm *comm, uint32_t op,
                                    const ferry_mixed_tensor *in, const ferry_mixed_tensor *out,
                                    uint32_t mode, ferry_queue *queue, ferry_request **request_out,
                                    ferry_error *error)
{
    ferry_error own;
    error = error == NULL ? &own : error;
    if (request_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "start needs a place for the request");
    }
    if (queue != NULL) {
        return fy_comm_call_on(comm, op, in, out, mode, queue, request_out, error);
    }
    ferry_status status = fy_comm_take(comm, "start", error);
    if (status == FERRY_OK) {
        status = fy_comm_start(comm, op, in, out, mode, FERRY_OK, request_out, error);
        if (status != FERRY_OK) {
            fy_comm_give_back(comm);
        }
    }
    return status;
}
