/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane whose tensors lie where the CPU may not touch them. Boxes are the host's as ever, so a
 * waiting and a post are the host's too; a sum with such an operand goes on a queue of its device,
 * and is done when the queue's ticket is reached.
 *
 * A lane does not stop for that. What it must not do before the ticket is to tell others: a post
 * says that its message is written, and that all that the lane has read of theirs may be written
 * over. So a post keeps the tickets of all that stands before it in the lane, and is sent when they
 * are reached; posts keep their order. What the lane does meanwhile is: waiting for other ranks,
 * and sums on the same queue, which keeps their order. A sum on another queue, or of the CPU, may
 * read what is still being written, and is begun when all tickets are reached.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "collective/lane.h"
#include "host/copy.h"
#include "program/queues.h"

#include <string.h>

/* The input's device and the output's, which may be one. */
enum { MOST_QUEUES = 2, HOST_ONLY = -1 };

/* A post that waits for what stands before it. */
typedef struct late_post {
    fy_program_step step;
    uint64_t number; /* of the message's step */
    fy_ticket tickets[MOST_QUEUES];
} late_post;

enum { MOST_LATE = 16 };

struct fy_mix_far {
    fy_device_queues queues;
    fy_ticket last[MOST_QUEUES]; /* of what was called on each */
    fy_ticket rung[MOST_QUEUES]; /* up to which a ring of the bell is called */
    int in, out;                 /* the queue of the tensor's device, or HOST_ONLY */
    bool is_single;
    late_post late[MOST_LATE];
    uint32_t first_late, n_late;
    bool is_awaited; /* the lane is blocked by a device */
    bool is_staged;  /* the input's piece of the sum that is next is on its way to `stage` */
    char *stage;     /* for pieces between two devices that do not reach each other */
    uint64_t stage_bytes;
};

/* What a status of fy_queues_reached, or of a verb, means for the lane. */
static fy_progress progress_of(fy_mix_lane *lane, ferry_status status)
{
    lane->far->is_awaited = status == FERRY_ERR_TIMEOUT;
    if (status == FERRY_OK) {
        return FY_PROGRESS_DONE;
    }
    if (status == FERRY_ERR_TIMEOUT) {
        return FY_PROGRESS_BLOCKED;
    }
    lane->status = status;
    return FY_PROGRESS_FAILED;
}

/* Sends the posts whose tickets are reached. DONE: at least one of the room for them is free. */
static fy_progress send_late(fy_mix_lane *lane, uint32_t n_left)
{
    fy_mix_far *far = lane->far;
    while (far->n_late > 0) {
        const late_post *post = &far->late[far->first_late];
        ferry_status status = fy_queues_reached(&far->queues, post->tickets, &lane->error);
        if (status == FERRY_ERR_TIMEOUT && far->n_late <= n_left) {
            break;
        }
        fy_progress progress = progress_of(lane, status);
        if (progress != FY_PROGRESS_DONE) {
            return progress;
        }
        fy_verb *send = fy_mix_host_verbs.steps.run[post->step.kind];
        if (send(lane, 0, post->number, &post->step) == FY_PROGRESS_FAILED) {
            return FY_PROGRESS_FAILED;
        }
        far->first_late = (far->first_late + 1) % MOST_LATE;
        far->n_late--;
    }
    far->is_awaited = false;
    return FY_PROGRESS_DONE;
}

static fy_progress run_wait(void *context, uint32_t index, uint64_t number,
                            const fy_program_step *step)
{
    fy_progress progress = send_late(context, MOST_LATE);
    return progress == FY_PROGRESS_DONE ? fy_mix_links_wait(context, index, number, step)
                                        : progress;
}

/* A put or a signal. */
static fy_progress run_post(void *context, uint32_t index, uint64_t number,
                            const fy_program_step *step)
{
    fy_mix_lane *lane = context;
    fy_mix_far *far = lane->far;
    (void)index;
    fy_progress progress = send_late(lane, MOST_LATE - 1);
    if (progress != FY_PROGRESS_DONE) {
        return progress;
    }
    late_post *post = &far->late[(far->first_late + far->n_late++) % MOST_LATE];
    *post = (late_post){.step = *step, .number = number};
    memcpy(post->tickets, far->last, sizeof post->tickets);
    lane->moved++;
    return send_late(lane, MOST_LATE);
}

static int queue_of(const fy_mix_far *far, const fy_mix_place *place)
{
    return place->kind == FY_MIX_PLACE_IN    ? far->in
           : place->kind == FY_MIX_PLACE_OUT ? far->out
                                             : HOST_ONLY;
}

/* On which queues operands of a sum lie: a bit for each. */
static uint32_t queues_of(const fy_mix_far *far, const fy_mix_sum *sum, const fy_mix_place *sources)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < sum->n; i++) {
        int queue = queue_of(far, &sources[i]);
        bits |= queue == HOST_ONLY ? 0 : 1u << queue;
    }
    for (uint32_t i = 0; i < sum->n_targets; i++) {
        int queue = queue_of(far, &sum->targets[i]);
        bits |= queue == HOST_ONLY ? 0 : 1u << queue;
    }
    return bits;
}

/* A sum on one of the queues, and the ticket for it. */
static ferry_status begin_sum(fy_mix_lane *lane, int index, const fy_sum *sum)
{
    fy_mix_far *far = lane->far;
    fy_device_queue *q = &far->queues.items[index];
    FY_TRY(q->exec->sum(q->queue, sum, &lane->error));
    return q->exec->mark(q->queue, &far->last[index], &lane->error);
}

/*
 * Pieces of the input, on their way to the output's device through the host. The stage is free: the
 * caller has seen that all tickets are reached.
 */
static ferry_status stage_sources(fy_mix_lane *lane, const fy_mix_summing *s)
{
    fy_mix_far *far = lane->far;
    uint64_t bytes = s->sum.n * fy_sum_type_bytes(s->sum.source_type);
    ferry_status status = FERRY_OK;
    char *to = far->stage;
    for (size_t i = 0; i < s->sum.n_sources && status == FERRY_OK; i++) {
        if (queue_of(far, &s->places[i]) == far->in) {
            fy_sum copy = {.sources = &s->sum.sources[i],
                           .n_sources = 1,
                           .source_type = s->sum.source_type,
                           .targets = {to},
                           .target_type = s->sum.source_type,
                           .n = s->sum.n};
            status = begin_sum(lane, far->in, &copy);
            to += bytes;
        }
    }
    return status;
}

/* The sources that were staged, where they are now. */
static void take_staged(fy_mix_lane *lane, const fy_mix_summing *s)
{
    const fy_mix_far *far = lane->far;
    char *at = far->stage;
    for (size_t i = 0; i < s->sum.n_sources; i++) {
        if (queue_of(far, &s->places[i]) == far->in) {
            lane->sources[i] = at;
            at += s->sum.n * fy_sum_type_bytes(s->sum.source_type);
        }
    }
}

static ferry_status sum_on(fy_mix_lane *lane, int index, fy_mix_summing *s)
{
    s->sum.stream = false;
    ferry_status status = begin_sum(lane, index, &s->sum);
    lane->device_elements += status == FERRY_OK ? s->sum.n : 0;
    return status;
}

/*
 * The output's device cannot read the input: so that is staged, and the sum is made where the
 * output lies. BLOCKED between the two.
 */
static fy_progress sum_across(fy_mix_lane *lane, fy_mix_summing *s)
{
    fy_mix_far *far = lane->far;
    if (!far->is_staged) {
        ferry_status status = stage_sources(lane, s);
        far->is_staged = status == FERRY_OK;
        return progress_of(lane, status == FERRY_OK ? FERRY_ERR_TIMEOUT : status);
    }
    take_staged(lane, s);
    far->is_staged = false;
    return progress_of(lane, sum_on(lane, far->out, s));
}

static fy_progress run_sum(void *context, uint32_t index, uint64_t number,
                           const fy_program_step *step)
{
    fy_mix_lane *lane = context;
    fy_mix_far *far = lane->far;
    const fy_mix_schedule *schedule = lane->call->schedule;
    const fy_mix_sum *sum = &schedule->sums[step->first];
    (void)index;
    fy_progress progress = send_late(lane, MOST_LATE);
    if (progress != FY_PROGRESS_DONE) {
        return progress;
    }
    uint32_t bits = queues_of(far, sum, schedule->places + sum->first);
    bool crosses = bits == 3;
    /* One queue keeps the order of what is called on it. */
    bool is_ordered = far->is_single && bits != 0;
    progress = progress_of(
        lane, is_ordered ? FERRY_OK : fy_queues_reached(&far->queues, far->last, &lane->error));
    if (progress != FY_PROGRESS_DONE) {
        return progress;
    }
    fy_mix_summing s;
    fy_mix_lane_sum(lane, sum, number, !far->is_staged, &s);
    lane->moved++;
    if (s.is_nothing) {
        return FY_PROGRESS_DONE;
    }
    if (bits == 0) {
        fy_sum_run(&s.sum);
        return FY_PROGRESS_DONE;
    }
    return crosses ? sum_across(lane, &s) : progress_of(lane, sum_on(lane, bits == 1 ? 0 : 1, &s));
}

/* Nothing of the call is under way any more: neither on a queue nor in a post. */
static fy_progress end(fy_mix_lane *lane)
{
    fy_mix_far *far = lane->far;
    fy_progress progress = send_late(lane, 0);
    fy_copy_fence(); /* of sums that were the CPU's */
    if (progress == FY_PROGRESS_DONE) {
        progress = progress_of(lane, fy_queues_reached(&far->queues, far->last, &lane->error));
    }
    return progress;
}

/*
 * Opening and closing
 */

static fy_exec_choice choice_of(fy_space space)
{
    return fy_exec_for(space, (fy_space){.kind = FERRY_MEMORY_HOST});
}

static int index_of(const fy_mix_far *far, fy_space space)
{
    const fy_device_queue *queue = fy_queues_find(&far->queues, choice_of(space));
    return queue == NULL ? HOST_ONLY : (int)(queue - far->queues.items);
}

/* The queue of a space, opened if it is not yet. */
static ferry_status need_queue(fy_mix_far *far, fy_space space, ferry_error *error)
{
    if (choice_of(space).exec == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "mixed collective: nothing sums between the host and %s memory of device %d",
                       fy_memory_name(space.kind), space.device);
    }
    return fy_queues_add(&far->queues, choice_of(space), error);
}

/* The space on whose queue both tensors' sums go: the input's, where that reaches the output. */
static bool is_reached(fy_space from, fy_space to)
{
    fy_exec_choice choice = fy_exec_for(from, to);
    return choice.exec != NULL && !fy_is_host(from) && !fy_is_host(to) &&
           choice.device == from.device;
}

static ferry_status open_queues(fy_mix_far *far, const fy_mix_call *call, ferry_error *error)
{
    fy_space in = call->in_space;
    fy_space out = is_reached(in, call->out_space) ? in : call->out_space;
    if (far->queues.n == MOST_QUEUES) { /* room for those of this call */
        fy_queues_close(&far->queues);
        memset(far->last, 0, sizeof far->last);
        memset(far->rung, 0, sizeof far->rung);
    }
    FY_TRY(need_queue(far, in, error));
    FY_TRY(need_queue(far, out, error));
    far->in = index_of(far, in);
    far->out = index_of(far, out);
    far->is_single = far->in == far->out || far->in == HOST_ONLY || far->out == HOST_ONLY;
    return FERRY_OK;
}

/* Room for as many pieces of the input as any sum of the schedule has. */
static ferry_status open_stage(fy_mix_lane *lane, ferry_error *error)
{
    fy_mix_far *far = lane->far;
    const fy_mix_schedule *schedule = lane->call->schedule;
    uint64_t most = 0;
    for (uint32_t i = 0; i < schedule->n_sums; i++) {
        const fy_mix_sum *sum = &schedule->sums[i];
        uint64_t n = 0;
        for (uint32_t j = 0; j < sum->n; j++) {
            n += schedule->places[sum->first + j].kind == FY_MIX_PLACE_IN;
        }
        most = fy_max(most, n);
    }
    uint64_t bytes = most * lane->call->geometry.block_elements * lane->program->element_bytes;
    if (far->is_single || bytes <= far->stage_bytes) {
        return FERRY_OK;
    }
    fy_free(far->stage);
    far->stage_bytes = 0;
    far->stage = fy_alloc(bytes, 1);
    if (far->stage == NULL) {
        return fy_fail_no_memory(error, "the stage between two devices");
    }
    far->stage_bytes = bytes;
    return FERRY_OK;
}

ferry_status fy_mix_far_open(fy_mix_lane *lane, ferry_error *error)
{
    if (lane->far == NULL) {
        lane->far = fy_alloc_zeroed(1, sizeof *lane->far);
        if (lane->far == NULL) {
            return fy_fail_no_memory(error, "the queues of a mixed collective");
        }
    }
    lane->far->n_late = 0;
    lane->far->is_awaited = lane->far->is_staged = false;
    ferry_status status = open_queues(lane->far, lane->call, error);
    return status == FERRY_OK ? open_stage(lane, error) : status;
}

static void drain(fy_mix_lane *lane)
{
    if (lane->far != NULL) {
        fy_queues_finish(&lane->far->queues);
    }
}

void fy_mix_far_close(fy_mix_lane *lane)
{
    if (lane->far != NULL) {
        fy_queues_close(&lane->far->queues);
        fy_free(lane->far->stage);
        fy_free(lane->far);
        lane->far = NULL;
    }
}

static bool is_awaited(fy_mix_lane *lane)
{
    return lane->far != NULL && lane->far->is_awaited;
}

static void ring(void *context)
{
    fy_bell_ring(context);
}

static bool ring_when_done(fy_mix_lane *lane, fy_bell *bell)
{
    fy_mix_far *far = lane->far;
    bool is_open = false;
    for (uint32_t i = 0; far != NULL && i < far->queues.n; i++) {
        const fy_device_queue *q = &far->queues.items[i];
        bool is_done = fy_exec_reached(q->exec, q->queue, far->last[i], NULL) == FERRY_OK;
        is_open |= !is_done;
        if (!is_done && far->rung[i] < far->last[i] &&
            q->exec->call(q->queue, ring, bell, NULL) == FERRY_OK) {
            far->rung[i] = far->last[i];
        }
    }
    return is_open;
}

const fy_mix_verbs fy_mix_far_verbs = {.steps.run = {[FY_STEP_WAIT] = run_wait,
                                                     [FY_STEP_SUM] = run_sum,
                                                     [FY_STEP_PUT] = run_post,
                                                     [FY_STEP_SIGNAL] = run_post},
                                       .end = end,
                                       .is_awaited = is_awaited,
                                       .ring_when_done = ring_when_done,
                                       .drain = drain};
