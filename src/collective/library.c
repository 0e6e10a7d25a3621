/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Calls by a library: what is put on the queue when all ranks have begun the same call. */
#include "collective/library_state.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "world/bell.h"
#include "world/world.h"

enum { LOOK_NS = 5000000 };

bool fy_mix_library_makes(const fy_mix_library *library, uint32_t mode)
{
    return library != NULL && (mode == FERRY_MIXED_BASE_ONE || mode == FERRY_MIXED_BASE_TP_DP);
}

const char *fy_mix_library_name(const fy_mix_library *library)
{
    return library == NULL ? "ferry" : library->name;
}

const fy_mix_device *fy_mix_library_device(const fy_mix_library *library)
{
    return &library->on;
}

void fy_mix_library_begin(fy_mix_library *library, const fy_mix_call *call,
                          const ferry_mixed_tensor *in, const ferry_mixed_tensor *out)
{
    library->number = call->number;
    library->op = call->op;
    library->n_elements = call->count;
    library->in = *in;
    library->out = *out;
    library->phase = FY_MIX_LIBRARY_IDLE;
    library->at = 0;
    library->is_called = library->has_rung = false;
    fy_mix_steps_make(&library->program->topology, call->op, call->mode, &library->steps);
    fy_mix_device_line_up(&library->on);
}

/*
 * Steps
 */

static uint64_t piece_bytes(const fy_mix_library *library)
{
    return library->n_elements * library->program->element_bytes;
}

static char *place_of(const fy_mix_library *library, const fy_mix_step_end *end)
{
    char *base = end->place == FY_MIX_STEP_IN    ? library->use[0].base
                 : end->place == FY_MIX_STEP_OUT ? library->use[1].base
                                                 : library->between.base;
    return base + end->chunk * piece_bytes(library);
}

/* The pieces of each TP group, which lie by ranks of the world, in the order of its ranks. */
static ferry_status put_sums(const fy_mix_library *library, const fy_mix_step *step,
                             ferry_error *error)
{
    const fy_topology *t = &library->program->topology;
    const char *from = place_of(library, &step->from);
    char *to = place_of(library, &step->to);
    uint64_t bytes = piece_bytes(library);
    const void **sources = fy_alloc(t->tp, sizeof *sources);
    FY_TRY(fy_check_memory(sources != NULL, "the sums of a mixed collective", error));
    ferry_status status = FERRY_OK;
    for (uint32_t dp = 0; dp < t->dp && status == FERRY_OK; dp++) {
        for (uint32_t tp = 0; tp < t->tp; tp++) {
            sources[tp] = from + fy_topology_rank_of(t, tp, dp) * bytes;
        }
        fy_sum sum = {.sources = sources,
                      .n_sources = t->tp,
                      .source_type = library->program->type,
                      .targets = {to + dp * bytes, NULL},
                      .target_type = library->program->type,
                      .n = library->n_elements};
        status = library->on.exec->sum(library->on.queue, &sum, error);
    }
    fy_free(sources);
    return status;
}

static ferry_status put_call(fy_mix_library *library, const fy_mix_step *step, ferry_error *error)
{
    fy_circle *group = library->members[step->group];
    if (!library->is_called) {
        fy_circle_call call = {.verb = step->verb,
                               .type = library->program->type,
                               .in = place_of(library, &step->from),
                               .out = place_of(library, &step->to),
                               .n = library->n_elements * step->chunks};
        FY_TRY(library->circles->call(group, &call, error));
        library->is_called = true;
    }
    FY_TRY(library->circles->state(group, error));
    library->is_called = false;
    return FERRY_OK;
}

ferry_status fy_mix_library_put(fy_mix_library *library, const fy_mix_step *step,
                                ferry_error *error)
{
    switch (step->kind) {
    case FY_MIX_STEP_CALL:
        return put_call(library, step, error);
    case FY_MIX_STEP_SUM:
        return put_sums(library, step, error);
    default:
        return fy_mix_device_copy(&library->on, place_of(library, &step->to),
                                  place_of(library, &step->from), piece_bytes(library), error);
    }
}

/*
 * A call
 */

static ferry_status find_tensors(fy_mix_library *library, ferry_error *error)
{
    const ferry_buffer *in = &library->in.buffer, *out = &library->out.buffer;
    uint64_t between = library->steps.n_between * piece_bytes(library);
    FY_TRY(fy_mix_device_find_tensor(&library->on, 0, in->base, fy_space_of(in), in->bytes,
                                     &library->use[0], error));
    FY_TRY(fy_mix_device_find_tensor(&library->on, 1, out->base, fy_space_of(out), out->bytes,
                                     &library->use[1], error));
    return fy_mix_device_make_room(&library->on, between, &library->between, error);
}

/* What a library says knows neither the call nor the rank's number in the world. */
static ferry_status blame(const fy_mix_library *library, ferry_status status, ferry_error *error)
{
    if (status == FERRY_OK || status == FERRY_ERR_TIMEOUT) {
        return status;
    }
    ferry_error why = *error;
    return fy_fail(error, status, "mixed collective: call %llu of rank %u by %s: %.800s",
                   (unsigned long long)library->number, library->program->topology.world_rank,
                   library->name, why.message);
}

/* All ranks are there, and it is this call's turn. From here on something may be under way. */
static ferry_status begin_steps(fy_mix_library *library, ferry_error *error)
{
    FY_TRY(find_tensors(library, error));
    library->phase = FY_MIX_LIBRARY_STEPS;
    library->before = atomic_load(library->on.last);
    library->since_ns = library->looked_ns = fy_now_ns();
    return fy_mix_device_copy_in(&library->on, &library->use[0], error);
}

static ferry_status put_steps(fy_mix_library *library, ferry_error *error)
{
    while (library->at < library->steps.n) {
        const fy_mix_step *step = &library->steps.steps[library->at];
        FY_TRY(blame(library, fy_mix_library_put(library, step, error), error));
        library->at++;
    }
    FY_TRY(fy_mix_device_copy_out(&library->on, &library->use[1], error));
    FY_TRY(library->on.exec->mark(library->on.queue, &library->ticket, error));
    atomic_store(library->on.last, library->ticket);
    library->phase = FY_MIX_LIBRARY_MARKED;
    return FERRY_OK;
}

/* The library may know of a failure by itself. */
static ferry_status check_groups(const fy_mix_library *library, ferry_error *error)
{
    for (int i = 0; i < FY_MIX_N_GROUPS; i++) {
        ferry_status status = library->members[i] == NULL
                                  ? FERRY_OK
                                  : library->circles->state(library->members[i], error);
        if (status != FERRY_OK && status != FERRY_ERR_TIMEOUT) {
            return status;
        }
    }
    return FERRY_OK;
}

/*
 * All ranks had begun the call, so each is about to put its part on its device. One that dies or
 * stops is found by the world; what remains is a library, or a device, that does nothing. What lies
 * before the call takes as long as it likes.
 */
static ferry_status look_after(fy_mix_library *library, ferry_error *error)
{
    enum { N_DEADLINES = 3 };
    int64_t now_ns = fy_now_ns();
    if (now_ns - library->looked_ns < LOOK_NS) {
        return FERRY_ERR_TIMEOUT;
    }
    library->looked_ns = now_ns;
    FY_TRY(blame(library, check_groups(library, error), error));
    if (fy_exec_reached(library->on.exec, library->on.queue, library->before, NULL) ==
        FERRY_ERR_TIMEOUT) {
        library->since_ns = now_ns;
    }
    if (now_ns - library->since_ns > N_DEADLINES * library->settings->deadline_ns) {
        return fy_fail(error, FERRY_ERR_IO,
                       "mixed collective: %s has not ended call %llu, %s, on rank %u for %g s, "
                       "though all ranks have begun it: NCCL_DEBUG=WARN in the environment lets it "
                       "say more",
                       library->name, (unsigned long long)library->number,
                       ferry_mixed_op_name(library->op), library->program->topology.world_rank,
                       (double)(now_ns - library->since_ns) / 1e9);
    }
    return FERRY_ERR_TIMEOUT;
}

/*
 * Whether nothing is on the queue, nor comes on it before this call has ended: who has to abort it
 * waits for what the queue has, and other handles' work there may wait for a rank that is lost.
 */
static bool has_queue(fy_mix_library *library)
{
    return fy_mix_device_is_next(&library->on) &&
           fy_exec_reached(library->on.exec, library->on.queue, atomic_load(library->on.last),
                           NULL) != FERRY_ERR_TIMEOUT;
}

/* FERRY_ERR_TIMEOUT without a sentence: not yet. */
static ferry_status go_on(fy_mix_library *library, ferry_error *error)
{
    if (library->phase == FY_MIX_LIBRARY_MET) {
        if (!has_queue(library)) {
            return FERRY_ERR_TIMEOUT;
        }
        FY_TRY(begin_steps(library, error));
    }
    ferry_status status = FERRY_OK;
    if (library->phase == FY_MIX_LIBRARY_STEPS) {
        status = put_steps(library, error);
    }
    FY_THEN(status, fy_exec_reached(library->on.exec, library->on.queue, library->ticket, error));
    return status == FERRY_ERR_TIMEOUT ? look_after(library, error) : status;
}

/* Behind the meeting of all ranks. */
static fy_progress end(fy_mix_lane *lane)
{
    fy_mix_library *library = lane->library;
    if (library->phase == FY_MIX_LIBRARY_IDLE) {
        library->phase = FY_MIX_LIBRARY_MET;
    }
    uint64_t before = library->phase + library->at;
    lane->status = go_on(library, &lane->error);
    lane->moved += library->phase + library->at != before;
    if (lane->status == FERRY_ERR_TIMEOUT) {
        lane->status = FERRY_OK;
        return FY_PROGRESS_BLOCKED;
    }
    FY_THEN(lane->status, fy_mix_device_end_out(&library->on, &lane->error));
    if (lane->status != FERRY_OK) {
        return FY_PROGRESS_FAILED;
    }
    fy_mix_device_step_aside(&library->on);
    library->phase = FY_MIX_LIBRARY_IDLE;
    lane->device_elements += library->n_elements;
    return FY_PROGRESS_DONE;
}

/* No message is waited for any more. */
static bool is_awaited(fy_mix_lane *lane)
{
    return lane->library->phase != FY_MIX_LIBRARY_IDLE;
}

static void ring(void *context)
{
    fy_bell_ring(context);
}

static bool ring_when_done(fy_mix_lane *lane, fy_bell *bell)
{
    fy_mix_library *library = lane->library;
    if (library->phase != FY_MIX_LIBRARY_MARKED) {
        return false;
    }
    library->has_rung = library->has_rung ||
                        library->on.exec->call(library->on.queue, ring, bell, NULL) == FERRY_OK;
    return true;
}

void fy_mix_library_abort(fy_mix_library *library)
{
    for (int i = 0; i < FY_MIX_N_GROUPS; i++) {
        library->circles->close(library->members[i], false);
        library->members[i] = NULL;
    }
    fy_exec_finish(library->on.exec, library->on.queue, NULL);
    library->phase = FY_MIX_LIBRARY_IDLE;
}

/* The call has failed, and the handle with it. */
static void drain(fy_mix_lane *lane)
{
    if (lane->index == 0) {
        if (lane->library->phase >= FY_MIX_LIBRARY_STEPS) {
            fy_mix_library_abort(lane->library);
        }
        fy_mix_device_step_aside(&lane->library->on);
    }
}

/* NCCL tells nobody that a call is on its way, nor does a turn that has come. */
static bool is_polled(fy_mix_lane *lane)
{
    const fy_mix_library *library = lane->library;
    return library->phase == FY_MIX_LIBRARY_MET || library->phase == FY_MIX_LIBRARY_STEPS;
}

const fy_mix_verbs fy_mix_library_verbs = {.steps.run = {[FY_STEP_WAIT] = fy_mix_links_wait,
                                                         [FY_STEP_SUM] = fy_mix_lane_run_sum,
                                                         [FY_STEP_PUT] = fy_mix_links_put,
                                                         [FY_STEP_SIGNAL] = fy_mix_links_signal},
                                           .end = end,
                                           .is_awaited = is_awaited,
                                           .is_polled = is_polled,
                                           .ring_when_done = ring_when_done,
                                           .drain = drain};
