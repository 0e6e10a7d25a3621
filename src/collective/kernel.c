/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls by a kernel: how they are launched, and what the host sees of them. The kernel waits for
 * other ranks by itself; a board in pinned memory says for whom, so that the host judges a rank
 * that does not come as it does without a kernel, and tells the kernel when it is enough.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "collective/kernel_state.h"
#include "world/world.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* At a device that may be lost. */
enum { LOOKS_BETWEEN = 256 };

static fy_lanes_board *board_of(const fy_mix_kernel *kernel)
{
    return (fy_lanes_board *)kernel->post.page;
}

static fy_lanes_report *reports_of(const fy_mix_kernel *kernel)
{
    return (fy_lanes_report *)(kernel->post.page + sizeof(fy_lanes_board));
}

/*
 * What lanes wait for: a number that changes when one of them has come to another message, 0 where
 * none waits for long; and a link, by which the host judges.
 */
static uint64_t waits_of(const fy_mix_kernel *kernel, uint32_t *link_out)
{
    const fy_lanes_report *reports = reports_of(kernel);
    uint64_t all = 0;
    if (__atomic_load_n(&board_of(kernel)->has_waits, __ATOMIC_ACQUIRE) == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < kernel->program.n_lanes; i++) {
        uint64_t waits = __atomic_load_n(&reports[i].waits, __ATOMIC_ACQUIRE);
        *link_out = waits != 0 ? (uint32_t)waits - 1 : *link_out;
        all = all * 31 + waits;
    }
    return all;
}

/*
 * Launching
 */

static void fill_call(const fy_mix_kernel *kernel, const fy_mix_call *call,
                      const fy_mix_tensor_use use[2], fy_lanes_call *out)
{
    const fy_mix_program *program = &kernel->program;
    const fy_topology *t = &program->topology;
    uint64_t piece_bytes = call->geometry.n_elements * program->element_bytes;
    bool has_chunks = fy_mix_op_in_chunks(t, call->op) > 1 || fy_mix_op_out_chunks(t, call->op) > 1;
    uintptr_t ends = (uintptr_t)use[0].base | (uintptr_t)use[1].base;
    *out = (fy_lanes_call){.tables = kernel->tables[call->op][call->mode],
                           .watch = kernel->watch,
                           .title = {.number = call->number,
                                     .geometry = call->geometry_key,
                                     .op = call->op,
                                     .mode = call->mode,
                                     .dtype = program->dtype,
                                     .rank = t->world_rank},
                           .in = (uintptr_t)use[0].base,
                           .out = (uintptr_t)use[1].base,
                           .n_elements = call->geometry.n_elements,
                           .lane_elements = call->geometry.lane_elements,
                           .block_elements = call->geometry.block_elements,
                           .n_lanes = call->geometry.n_lanes,
                           .element_bytes = program->element_bytes,
                           .is_wide = ends % 16 == 0 && (!has_chunks || piece_bytes % 16 == 0),
                           .has_fleet = fy_mix_kernel_has_fleet(kernel),
                           .n_states = program->n_lanes};
    memcpy(out->cell_bytes, call->cell_bytes, sizeof call->cell_bytes);
}

ferry_status fy_mix_kernel_launch(fy_mix_kernel *kernel, const fy_mix_call *call,
                                  uint64_t deadline_ns, ferry_error *error)
{
    const fy_topology *t = &kernel->program.topology;
    uint64_t piece_bytes = call->geometry.n_elements * kernel->program.element_bytes;
    fy_lanes_call launch;
    fy_mix_tensor_use use[2];
    FY_TRY(fy_mix_device_find_tensor(&kernel->on, 0, call->in, call->in_space,
                                     piece_bytes * fy_mix_op_in_chunks(t, call->op), &use[0],
                                     error));
    FY_TRY(fy_mix_device_find_tensor(&kernel->on, 1, call->out, call->out_space,
                                     piece_bytes * fy_mix_op_out_chunks(t, call->op), &use[1],
                                     error));
    fill_call(kernel, call, use, &launch);
    launch.watch.deadline_ns = deadline_ns;
    kernel->at = kernel->on.queue;
    kernel->before = atomic_load(kernel->on.last);
    kernel->is_launched = true; /* also of what fails something may be under way: see drain */
    kernel->has_rung = false;
    kernel->waits = 0;
    ferry_status status = fy_mix_device_copy_in(&kernel->on, &use[0], error);
    if (!use[0].stands) {
        FY_THEN(status, kernel->on.exec->mark(kernel->on.queue, &kernel->before, error));
    }
    kernel->since_ns = fy_now_ns();
    FY_THEN(status, kernel->on.exec->lanes(kernel->on.queue, &launch, error));
    FY_THEN(status, fy_mix_device_copy_out(&kernel->on, &use[1], error));
    FY_THEN(status, kernel->on.exec->mark(kernel->on.queue, &kernel->ticket, error));
    if (status == FERRY_OK) {
        atomic_store(kernel->on.last, kernel->ticket);
    }
    return status;
}

/* Longer than the host ever waits: only one that sees nothing any more leaves it to the kernel. */
static uint64_t deadline_of(const fy_settings *settings)
{
    return settings->entry_ns < 0 ? 0 : 2 * (uint64_t)(settings->deadline_ns + settings->entry_ns);
}

/*
 * Going ahead
 */

static bool is_same(fy_space a, fy_space b)
{
    return a.kind == b.kind && a.device == b.device;
}

bool fy_mix_kernel_may_go_ahead(const fy_mix_kernel *kernel, const fy_mix_call *call,
                                fy_space queue)
{
    const fy_space own = {.kind = kernel->on.row->kind, .device = kernel->on.number};
    return kernel->is_alone && is_same(queue, own) && is_same(call->in_space, own) &&
           is_same(call->out_space, own);
}

/* For good: then what was asked of it may have been put there in part. */
static bool has_failed(const fy_mix_kernel *kernel, fy_exec_queue *queue)
{
    return kernel->on.exec->reached(queue, 0, NULL) != FERRY_OK;
}

void fy_mix_kernel_fill(const fy_mix_kernel *kernel, const fy_mix_call *call, uint32_t which,
                        fy_lanes_call *out)
{
    fy_mix_tensor_use use[2] = {{.base = (void *)(uintptr_t)call->in}, {.base = call->out}};
    fill_call(kernel, call, use, out);
    out->watch.deadline_ns = deadline_of(kernel->settings);
    out->title.which = which;
    if (which != 0) {
        out->title.number = fy_mix_graphs_counted(kernel->graphs);
    }
}

ferry_status fy_mix_kernel_go_ahead(fy_mix_kernel *kernel, const fy_mix_call *call,
                                    fy_exec_queue *queue, fy_mix_ahead *ahead_out,
                                    ferry_error *error)
{
    fy_mix_ahead ahead = {.is_there = true,
                          .number = call->number,
                          .n_lanes = call->geometry.n_lanes,
                          .queue = queue};
    fy_lanes_call launch;
    if (call->number == 0) {
        fy_mix_graphs_has_named(kernel->graphs);
        ahead.which = FY_MIX_NAMES_AHEAD | (kernel->n_named++ % FY_MIX_NAMES_AHEAD);
    }
    fy_mix_kernel_fill(kernel, call, ahead.which, &launch);
    ferry_status status = kernel->on.exec->lanes(queue, &launch, error);
    bool may_be_there = status == FERRY_OK || has_failed(kernel, queue);
    FY_THEN(status, kernel->on.exec->mark(queue, &ahead.end, error));
    if (status != FERRY_OK && may_be_there) { /* nobody will look on at it */
        fy_mix_kernel_stop(kernel);
    }
    *ahead_out = ahead;
    return status;
}

/* Or has stopped, and is in none now: then lanes may be in different ones, and begin no more. */
static bool has_left(const fy_lanes_report *report, uint64_t number, bool has_stopped)
{
    uint64_t begun = __atomic_load_n(&report->begun, __ATOMIC_ACQUIRE);
    uint64_t ended = __atomic_load_n(&report->ended, __ATOMIC_ACQUIRE);
    return ended >= number || (has_stopped && (uint32_t)begun == (uint32_t)ended);
}

/* FERRY_ERR_TIMEOUT: it goes on. */
static ferry_status end_of_graphs(const fy_mix_kernel *kernel, const fy_mix_ahead *ahead)
{
    const fy_lanes_report *reports = reports_of(kernel);
    bool all = true, has_stopped = fy_mix_kernel_has_stopped(kernel);
    for (uint32_t i = 0; i < ahead->n_lanes && all; i++) {
        all = has_left(&reports[i], ahead->number, has_stopped);
    }
    ferry_status status = all ? FERRY_OK : fy_mix_device_ask(&kernel->on, ahead->question, NULL);
    return all || status != FERRY_OK ? status : FERRY_ERR_TIMEOUT;
}

static bool is_over(const fy_mix_kernel *kernel, const fy_mix_ahead *ahead)
{
    ferry_status status = ahead->is_graphs
                              ? end_of_graphs(kernel, ahead)
                              : fy_exec_reached(kernel->on.exec, ahead->queue, ahead->end, NULL);
    return status != FERRY_ERR_TIMEOUT;
}

/* The number of a call that has a name, as a lane says it; 0: it says nothing of it. */
static uint64_t number_of(const fy_mix_kernel *kernel, const fy_mix_ahead *ahead)
{
    const fy_lanes_report *reports = reports_of(kernel);
    uint64_t found = 0;
    for (uint32_t i = 0; i < ahead->n_lanes && found == 0; i++) {
        uint64_t begun = __atomic_load_n(&reports[i].begun, __ATOMIC_ACQUIRE);
        found = begun >> 32 == ahead->which ? fy_mix_graphs_number(kernel->graphs, i, begun) : 0;
    }
    return found;
}

/* Or in a call behind it. */
static bool is_in(const fy_lanes_report *report, uint64_t number)
{
    uint64_t begun = __atomic_load_n(&report->begun, __ATOMIC_ACQUIRE);
    return (int32_t)((uint32_t)begun - (uint32_t)number) >= 0;
}

static bool has_come(const fy_mix_kernel *kernel, const fy_mix_ahead *ahead)
{
    const fy_lanes_report *reports = reports_of(kernel);
    bool has = ahead->which != 0 && number_of(kernel, ahead) != 0;
    for (uint32_t i = 0; ahead->which == 0 && i < ahead->n_lanes && !has; i++) {
        has = is_in(&reports[i], ahead->number);
    }
    return has || is_over(kernel, ahead);
}

/* Nobody waits for the host here, and what lies before the call may take long. */
static void pause_longer(uint32_t n_looks)
{
    enum { SHORT_LOOKS = 200, LONG_NS = 500000 };
    const struct timespec moment = {.tv_nsec = LONG_NS};
    if (n_looks < SHORT_LOOKS) {
        fy_exec_pause(n_looks);
    } else {
        nanosleep(&moment, NULL);
    }
}

void fy_mix_kernel_await(const fy_mix_kernel *kernel, const fy_mix_ahead *ahead)
{
    for (uint32_t i = 0; !has_come(kernel, ahead); i++) {
        pause_longer(i);
    }
}

bool fy_mix_kernel_number(ferry_mixed_comm *comm, fy_mix_ahead *ahead, ferry_status *status_out,
                          ferry_error *error)
{
    const fy_mix_kernel *kernel = comm->kernel;
    *status_out = FERRY_OK;
    ahead->number = ahead->which == 0 ? ahead->number : number_of(kernel, ahead);
    if (ahead->number > comm->state.call.number) {
        return true;
    }
    *status_out = fy_comm_state(comm, error);
    if (*status_out == FERRY_OK && fy_mix_kernel_has_stopped(kernel)) { /* nobody has said so yet */
        *status_out = fy_mix_kernel_say_stop(kernel, UINT64_MAX, error);
        fy_comm_break(comm, *status_out, "%s", error->message);
    }
    return false;
}

static void await_end(const fy_mix_kernel *kernel, const fy_mix_ahead *ahead)
{
    for (uint32_t i = 0; !is_over(kernel, ahead); i++) {
        fy_exec_pause(i);
    }
}

void fy_mix_kernel_expect(ferry_mixed_comm *comm, const fy_mix_ahead *ahead)
{
    comm->kernel->ahead = ahead;
    if (ahead->which != 0 || ahead->is_graphs) { /* others have come before it */
        fy_comm_catch_up(comm, ahead->number - 1);
    }
}

void fy_mix_kernel_part(fy_mix_kernel *kernel)
{
    if (!is_over(kernel, kernel->ahead)) {
        fy_mix_kernel_stop(kernel);
        await_end(kernel, kernel->ahead);
    }
    kernel->ahead = NULL;
}

/* The call that begins here is the one that went ahead. */
static ferry_status join(fy_mix_kernel *kernel, const fy_mix_call *call, ferry_error *error)
{
    const fy_mix_ahead *ahead = kernel->ahead;
    if (ahead->number != call->number) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "mixed collective: call %llu of rank %u was put on its stream as call %llu: "
                       "another thread has made calls of this handle meanwhile",
                       (unsigned long long)call->number, kernel->program.topology.world_rank,
                       (unsigned long long)ahead->number);
    }
    kernel->n_ahead++;
    kernel->is_launched = true;
    kernel->at = ahead->is_graphs ? kernel->on.queue : ahead->queue;
    kernel->before = 0;
    kernel->ticket = ahead->end;
    kernel->since_ns = fy_now_ns();
    kernel->waits = 0;
    kernel->on.late_out = (ferry_buffer){.base = NULL};
    return FERRY_OK;
}

/*
 * Counting
 */

struct fy_mix_graphs *fy_mix_kernel_graphs(const fy_mix_kernel *kernel)
{
    return kernel->graphs;
}

void fy_mix_kernel_await_graphs(const ferry_mixed_comm *comm)
{
    const fy_mix_kernel *kernel = comm->kernel;
    fy_mix_question question = {.n_between = LOOKS_BETWEEN};
    for (uint32_t i = 0;
         kernel != NULL && fy_mix_graphs_go_on(kernel->graphs) &&
         atomic_load(&comm->broken) == FERRY_OK && !fy_failed(comm->world->failure) &&
         fy_mix_device_ask(&kernel->on, &question, NULL) == FERRY_OK;
         i++) {
        pause_longer(i);
    }
}

void fy_mix_kernel_add_ahead(fy_mix_kernel *kernel, uint64_t n)
{
    kernel->n_ahead += n;
}

void fy_mix_kernel_catch_up(ferry_mixed_comm *comm)
{
    if (comm->kernel != NULL && comm->kernel->ahead == NULL) {
        fy_comm_catch_up(comm, fy_mix_graphs_last(comm->kernel->graphs));
    }
}

/* First what a launch is given, and then whether there is one: one of the two sees the other. */
void fy_mix_kernel_has_counted(ferry_mixed_comm *comm, bool by_kernel)
{
    fy_mix_kernel *kernel = comm->kernel;
    if (kernel == NULL) {
        return;
    }
    uint64_t number = comm->state.call.number;
    fy_mix_graphs_has_counted(kernel->graphs, number);
    if (!by_kernel && fy_mix_graphs_have_named(kernel->graphs) &&
        fy_mix_graphs_say_floor(kernel->graphs, number) == FERRY_ERR_TIMEOUT) {
        fy_comm_break(comm, FERRY_ERR_TIMEOUT,
                      "mixed collective: device %d did not hear within %g s that rank %u has made "
                      "call %llu without a kernel: it waits in a call of another handle",
                      kernel->on.number, (double)FY_MIX_GRAPHS_PATIENCE_NS * 1e-9,
                      kernel->program.topology.world_rank, (unsigned long long)number);
    }
}

/*
 * Looking on
 */

/* FERRY_ERR_TIMEOUT: the call goes on. */
static ferry_status end_of(const fy_mix_kernel *kernel, ferry_error *error)
{
    if (kernel->ahead == NULL || !kernel->ahead->is_graphs) {
        return fy_exec_reached(kernel->on.exec, kernel->at, kernel->ticket, error);
    }
    ferry_status status = end_of_graphs(kernel, kernel->ahead);
    return status == FERRY_OK || status == FERRY_ERR_TIMEOUT
               ? status
               : fy_exec_reached(kernel->on.exec, kernel->on.queue, UINT64_MAX, error);
}

/*
 * What lanes of this call wait for, as waits_of. Another call may be on the queue behind it, whose
 * lanes say the like: so what is read counts where this one is not over.
 */
static uint64_t look(fy_mix_lane *lane)
{
    const fy_mix_kernel *kernel = lane->kernel;
    uint32_t link = lane->link;
    uint64_t waits = waits_of(kernel, &link);
    if (end_of(kernel, NULL) != FERRY_ERR_TIMEOUT) {
        return 0;
    }
    lane->link = link;
    return waits;
}

/*
 * What a lane has said as it stopped, in that call: one behind it may have stopped by now, too.
 * NULL: none has. One that was only stopped knows least.
 */
static const fy_lanes_report *find_report(const fy_mix_kernel *kernel, uint64_t call)
{
    const fy_lanes_report *reports = reports_of(kernel);
    const fy_lanes_report *found = NULL;
    for (uint32_t i = 0; i < kernel->program.n_lanes; i++) {
        uint32_t why = (uint32_t)__atomic_load_n(&reports[i].why, __ATOMIC_ACQUIRE);
        if (why != FY_LANES_GOES && reports[i].call <= call &&
            (found == NULL || (uint32_t)found->why == FY_LANES_STOPPED)) {
            found = &reports[i];
        }
    }
    return found;
}

ferry_status fy_mix_kernel_say_stop(const fy_mix_kernel *kernel, uint64_t call, ferry_error *error)
{
    uint32_t rank = kernel->program.topology.world_rank;
    const fy_lanes_report *report = find_report(kernel, call);
    if (report != NULL && (uint32_t)report->why == FY_LANES_BESIDE) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "mixed collective: two calls of rank %u were on device %d at once, or in another order "
            "than they were asked for in (one as call %llu): calls of a handle, also those of "
            "graphs, go on one stream, or wait for each other's",
            rank, kernel->on.number, (unsigned long long)report->call);
    }
    return fy_fail(error, FERRY_ERR_ABORTED,
                   "mixed collective: the kernel of rank %u was stopped in call %llu", rank,
                   (unsigned long long)(report != NULL ? report->call : call));
}

static fy_progress fail_by_report(fy_mix_lane *lane, const fy_lanes_report *report)
{
    const fy_mix_call *call = lane->call;
    uint32_t why = (uint32_t)report->why;
    if (report->call != call->number || report->link >= call->schedule->n_links ||
        why == FY_LANES_BESIDE) { /* links are of that call's schedule */
        lane->status = fy_mix_kernel_say_stop(lane->kernel, call->number, &lane->error);
        return FY_PROGRESS_FAILED;
    }
    const fy_mix_link *link = &call->schedule->links[report->link];
    const fy_lanes_header *h = &report->header;
    fy_mix_header header = {.call = h->call,
                            .count = h->count,
                            .op = h->op,
                            .mode = h->mode,
                            .dtype = h->dtype,
                            .rank = h->rank,
                            .geometry = h->geometry};
    switch (why) {
    case FY_LANES_DIFFERS:
        return fy_mix_fail_by_header(lane, &header, link->rank);
    case FY_LANES_OVERRUN:
        return fy_mix_fail_by_epoch(lane, link, h->epoch, report->use);
    case FY_LANES_LATE:
        lane->status = fy_fail(&lane->error, FERRY_ERR_TIMEOUT,
                               "mixed collective: the kernel of rank %u has waited in call %llu "
                               "for rank %u for longer than any deadline of the host",
                               lane->program->topology.world_rank, (unsigned long long)call->number,
                               link->rank);
        return FY_PROGRESS_FAILED;
    default:
        lane->status = fy_mix_kernel_say_stop(lane->kernel, call->number, &lane->error);
        return FY_PROGRESS_FAILED;
    }
}

/*
 * Blocks that do not begin. Work of the caller's may fill the device, and a stream of his that
 * waits, and that ferry does not know, may hold up the kernel's. Other ranks see this one in the
 * call and hear nothing from it, so it says what is the matter before they give it up.
 */

static bool has_begun(const fy_mix_kernel *kernel, const fy_mix_call *call)
{
    const fy_lanes_report *reports = reports_of(kernel);
    uint32_t n_lanes = kernel->ahead != NULL ? kernel->ahead->n_lanes : call->geometry.n_lanes;
    bool all = true;
    for (uint32_t i = 0; i < n_lanes && all; i++) {
        all = is_in(&reports[i], call->number);
    }
    return all;
}

/*
 * Looked at once in so long a time, for whoever waits looks here all the while. What lies before
 * the kernel, as a call of another handle of this rank, takes as long as it likes.
 */
static bool is_held_up(const fy_mix_lane *lane)
{
    fy_mix_kernel *kernel = lane->kernel;
    int64_t now_ns = fy_now_ns();
    if (now_ns - kernel->since_ns <= kernel->settings->deadline_ns / 4 * 3) {
        return false;
    }
    if (has_begun(kernel, lane->call) ||
        fy_exec_reached(kernel->on.exec, kernel->at, kernel->before, NULL) == FERRY_ERR_TIMEOUT) {
        kernel->since_ns = now_ns;
        return false;
    }
    return true;
}

/* This rank must wait for the kernel all the same, so the log has the sentence at once. */
static fy_progress fail_held_up(fy_mix_lane *lane)
{
    const fy_mix_kernel *kernel = lane->kernel;
    lane->status = fy_fail(
        &lane->error, FERRY_ERR_TIMEOUT,
        "mixed collective: the kernel of rank %u has not begun call %llu for %g s: device %d is "
        "full of other work, or holds the kernel back behind a stream that waits: let ferry know "
        "of that stream (ferry_queue_adopt), or set CUDA_DEVICE_MAX_CONNECTIONS=32 in the "
        "environment",
        lane->program->topology.world_rank, (unsigned long long)lane->call->number,
        (double)(fy_now_ns() - kernel->since_ns) / 1e9, kernel->on.number);
    fy_log(FERRY_LOG_ERROR, "%s; this rank returns when it has begun: its tensors are in use",
           lane->error.message);
    return FY_PROGRESS_FAILED;
}

/* The whole call: launched, and then looked at. */
static fy_progress run(fy_mix_lane *lane)
{
    fy_mix_kernel *kernel = lane->kernel;
    if (!kernel->is_launched) {
        if (kernel->ahead == NULL && !fy_mix_device_is_next(&kernel->on)) {
            return FY_PROGRESS_BLOCKED;
        }
        lane->status = kernel->ahead != NULL
                           ? join(kernel, lane->call, &lane->error)
                           : fy_mix_kernel_launch(kernel, lane->call, deadline_of(kernel->settings),
                                                  &lane->error);
        fy_mix_device_step_aside(&kernel->on);
        lane->moved++;
        if (lane->status != FERRY_OK) {
            return FY_PROGRESS_FAILED;
        }
    }
    ferry_status status = end_of(kernel, &lane->error);
    if (status == FERRY_ERR_TIMEOUT) {
        uint64_t waits = look(lane);
        lane->moved += waits != kernel->waits;
        kernel->waits = waits;
        return is_held_up(lane) ? fail_held_up(lane) : FY_PROGRESS_BLOCKED;
    }
    kernel->is_launched = false;
    lane->status = status;
    lane->moved++;
    const fy_lanes_report *report =
        status == FERRY_OK ? find_report(kernel, lane->call->number) : NULL;
    if (report != NULL) {
        return fail_by_report(lane, report);
    }
    if (status == FERRY_OK) {
        lane->status = fy_mix_device_end_out(&kernel->on, &lane->error);
    }
    return lane->status == FERRY_OK ? FY_PROGRESS_DONE : FY_PROGRESS_FAILED;
}

static bool is_awaited(fy_mix_lane *lane)
{
    return look(lane) == 0;
}

static void ring(void *context)
{
    fy_bell_ring(context);
}

static bool ring_when_done(fy_mix_lane *lane, fy_bell *bell)
{
    fy_mix_kernel *kernel = lane->kernel;
    if (!kernel->is_launched || kernel->ahead != NULL) { /* a host function would hold up others */
        return false;
    }
    kernel->has_rung =
        kernel->has_rung || kernel->on.exec->call(kernel->on.queue, ring, bell, NULL) == FERRY_OK;
    return true;
}

bool fy_mix_kernel_has_stopped(const fy_mix_kernel *kernel)
{
    return find_report(kernel, UINT64_MAX) != NULL;
}

void fy_mix_kernel_stop(const fy_mix_kernel *kernel)
{
    __atomic_store_n(&board_of(kernel)->stop, 1, __ATOMIC_RELEASE);
}

/* The call has failed: the kernel ends at its next look. */
static void drain(fy_mix_lane *lane)
{
    if (lane->index == 0) {
        fy_mix_device_step_aside(&lane->kernel->on);
    }
    if (lane->index == 0 && lane->kernel->is_launched) {
        fy_mix_kernel_stop(lane->kernel);
        if (lane->kernel->ahead != NULL) {
            await_end(lane->kernel, lane->kernel->ahead);
        } else {
            fy_exec_finish(lane->kernel->on.exec, lane->kernel->on.queue, NULL);
        }
        lane->kernel->is_launched = false;
    }
}

/* A turn that has come rings no bell, and neither does the end of a call that went ahead. */
static bool is_polled(fy_mix_lane *lane)
{
    const fy_mix_kernel *kernel = lane->kernel;
    return kernel->ahead != NULL ||
           (!kernel->is_launched && !fy_mix_device_is_next(&lane->kernel->on));
}

const fy_mix_verbs fy_mix_kernel_verbs = {.whole = run,
                                          .is_awaited = is_awaited,
                                          .is_polled = is_polled,
                                          .ring_when_done = ring_when_done,
                                          .drain = drain};

/*
 * Counts
 */

static ferry_status read_states(fy_mix_kernel *kernel, fy_lanes_state *states, ferry_error *error)
{
    uint64_t bytes = kernel->program.n_lanes * sizeof *states;
    const void *there = (const void *)(uintptr_t)kernel->watch.states;
    FY_TRY(fy_mix_device_copy(&kernel->on, states, there, bytes, error));
    return fy_exec_finish(kernel->on.exec, kernel->on.queue, error);
}

static ferry_status check_idle(const fy_mix_kernel *kernel, const char *what, ferry_error *error)
{
    return kernel->is_launched || fy_mix_graphs_go_on(kernel->graphs)
               ? fy_fail(error, FERRY_ERR_MISUSE, "%s: a call of this handle is under way", what)
               : FERRY_OK;
}

ferry_status fy_mix_kernel_count(const ferry_mixed_comm *comm, ferry_mixed_counts *counts,
                                 ferry_error *error)
{
    fy_mix_kernel *kernel = comm->kernel;
    FY_TRY(check_idle(kernel, "get_counts", error)); /* to read them is to wait for its end */
    uint64_t last = fy_mix_graphs_last(kernel->graphs), counted = comm->state.call.number;
    uint64_t n_more = last > counted ? last - counted : 0; /* that no call has caught up with yet */
    counts->n_calls += n_more;
    counts->n_ahead = kernel->n_ahead + n_more;
    fy_lanes_state *now = fy_alloc_zeroed(kernel->program.n_lanes, sizeof *now);
    FY_TRY(fy_check_memory(now != NULL, "the counts of a kernel", error));
    ferry_status status = read_states(kernel, now, error);
    for (uint32_t i = 0; i < kernel->program.n_lanes && status == FERRY_OK; i++) {
        const fy_lanes_state *before = &kernel->counted[i];
        counts->n_steps += now[i].n_steps - before->n_steps;
        counts->n_waits = fy_max(counts->n_waits, now[i].n_waits - before->n_waits);
        counts->inside_bytes_written += now[i].inside_written - before->inside_written;
        counts->inside_bytes_read += now[i].inside_read - before->inside_read;
        counts->between_bytes += now[i].between - before->between;
        counts->n_device_elements += now[i].elements - before->elements;
    }
    fy_free(now);
    return status;
}

ferry_status fy_mix_kernel_reset(fy_mix_kernel *kernel, ferry_error *error)
{
    FY_TRY(check_idle(kernel, "reset_counts", error));
    FY_TRY(read_states(kernel, kernel->counted, error));
    kernel->n_ahead = 0;
    return FERRY_OK;
}

const fy_mix_program *fy_mix_kernel_program(const fy_mix_kernel *kernel)
{
    return &kernel->program;
}

void fy_mix_kernel_line_up(fy_mix_kernel *kernel)
{
    fy_mix_device_line_up(&kernel->on);
}

bool fy_mix_kernel_has_fleet(const fy_mix_kernel *kernel)
{
    return kernel->fleets.of[FY_MIX_FLEET_NODE].fleet != NULL;
}

const fy_mix_device *fy_mix_kernel_device(const fy_mix_kernel *kernel)
{
    return &kernel->on;
}
