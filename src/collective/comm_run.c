/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Calls: how they begin, how lanes are driven, and when waiting ends. */
#include "base/alloc.h"
#include "base/checked.h"
#include "collective/comm.h"
#include "collective/tune.h"
#include "transport/host.h"
#include "world/world.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>

/* Outputs of so many bytes and more would only push other things out of the caches. */
enum { STREAM_FROM_BYTES = 1 << 20 };

static ferry_status check_ready(const ferry_mixed_comm *comm, ferry_error *error)
{
    if (!comm->inside_ready || (!comm->between_ready && comm->topology.inter_size > 1)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "run needs init_virtual_memory, and with several nodes init_nvshmem, "
                       "before it");
    }
    return FERRY_OK;
}

/*
 * Who has not begun the call is asked where it is: it may be in another one, which this rank will
 * not make while it waits. What comes when the call is over is forgotten.
 */
static uint64_t answer_tag(const ferry_mixed_comm *comm, uint32_t call)
{
    return fy_letter_tag(FY_LETTER_ANSWER, FY_THING_MIXED, comm->work.number, call);
}

static void forget_answers(ferry_mixed_comm *comm)
{
    if (atomic_exchange(&comm->has_asked, false)) {
        comm->world->ops->forget(comm->world, answer_tag(comm, 0), answer_tag(comm, UINT32_MAX));
    }
}

/* All ranks come to the same: what they differ in would be seen by the headers. */
static void set_call(ferry_mixed_comm *comm, uint32_t op, uint32_t mode, uint32_t block_lines,
                     const ferry_mixed_tensor *in, const ferry_mixed_tensor *out)
{
    fy_call *call = &comm->call;
    fy_geometry_limits limits = comm->limits;
    if (block_lines != 0) { /* one that autotune has found: also where it is a whole range */
        limits.max_lines = block_lines;
        limits.min_lines = limits.min_lines < block_lines ? limits.min_lines : block_lines;
        limits.min_steps = 1;
    }
    call->op = op;
    call->mode = mode;
    call->schedule = comm->schedules[op][mode];
    call->in = in->buffer.base;
    call->out = out->buffer.base;
    call->stream = out->buffer.bytes >= STREAM_FROM_BYTES;
    call->geometry = fy_geometry_of(&limits, fy_call_piece(comm, op, in), comm->element_bytes);
    call->geometry_key = call->geometry.block_elements ^ ((uint64_t)call->geometry.n_lanes << 48);
    for (int edge = 0; edge < FY_N_EDGES; edge++) {
        const fy_edge_use *use = &call->schedule->edges[edge];
        if (use->uses != 0) {
            call->cell_bytes[edge] =
                fy_cell_bytes(use, call->geometry.block_elements, comm->element_bytes);
        }
    }
    comm->n_calls++;
    forget_answers(comm);
    fy_work_begin(comm->world, &comm->work, call->number);
    comm->told = false;
    comm->n_waiting = 0;
    fy_board_write(comm, call->number, op, mode, call->geometry.n_elements, false);
    for (uint32_t i = 0; i < comm->n_lanes; i++) {
        fy_lane_begin(&comm->lanes[i]);
    }
}

/*
 * A call that is refused here may have begun on other ranks: its number is used up, so that they
 * find out, and where all refuse it nothing is lost.
 */
static ferry_status begin(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                          const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                          const ferry_queue *queue, ferry_error *error)
{
    ferry_status status = fy_comm_state(comm, error);
    if (status == FERRY_OK) {
        status = check_ready(comm, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    comm->call.number++;
    status = fy_call_check(comm, op, in, out, queue, error);
    if (status == FERRY_OK) {
        status = fy_call_mode(comm, op, fy_call_piece(comm, op, in) * comm->element_bytes, &mode,
                              &block_lines, error);
    }
    if (status == FERRY_OK) {
        set_call(comm, op, mode, block_lines, in, out);
    } else {
        pthread_mutex_lock(&comm->network);
        fy_board_write(comm, comm->call.number, FY_OP_REFUSED, 0, 0, false);
        fy_board_tell(comm);
        pthread_mutex_unlock(&comm->network);
    }
    return status;
}

/*
 * Waiting. Lanes of one thread take turns; with a team each lane has a thread and waits by itself.
 */
typedef struct driver {
    ferry_mixed_comm *comm;
    uint32_t first, n; /* lanes */
    bool worked;       /* anything was done since this was set to false */
    bool blocks;       /* a thread waits; else it is polled */
    bool waits;        /* what the board says */
    int64_t worked_ns;
} driver;

static bool is_over(const driver *d)
{
    for (uint32_t i = d->first; i < d->first + d->n; i++) {
        if (!d->comm->lanes[i].done) {
            return false;
        }
    }
    return true;
}

static void work_network(ferry_mixed_comm *comm)
{
    if (comm->call.schedule->n_puts != 0 && pthread_mutex_trylock(&comm->network) == 0) {
        fy_transport_work(comm->transport);
        pthread_mutex_unlock(&comm->network);
    }
}

/* Goes as far as it gets. */
static void work(driver *d)
{
    for (uint32_t i = d->first; i < d->first + d->n; i++) {
        fy_lane *lane = &d->comm->lanes[i];
        uint64_t moved = lane->moved;
        if (!lane->done && fy_lane_advance(lane) == FY_LANE_FAILED) {
            d->worked = true;
            return;
        }
        d->worked |= lane->moved != moved;
    }
}

static bool has_news(const ferry_mixed_comm *comm)
{
    const _Atomic uint64_t *notices = (const _Atomic uint64_t *)ferry_region_base(comm->control);
    return atomic_load(&comm->broken) != FERRY_OK || atomic_load(notices) != 0;
}

static bool ready(void *context)
{
    driver *d = context;
    work_network(d->comm);
    work(d);
    return d->worked || has_news(d->comm);
}

/* Who finds another lane in the transport looks again soon: that one need not wake this. */
static int64_t sleep_ns(void *context)
{
    ferry_mixed_comm *comm = ((driver *)context)->comm;
    int64_t ns = INT64_MAX;
    if (comm->call.schedule->n_puts != 0) {
        ns = 50000;
        if (pthread_mutex_trylock(&comm->network) == 0) {
            ns = fy_transport_sleep_ns(comm->transport);
            pthread_mutex_unlock(&comm->network);
        }
    }
    return ns;
}

/* Lanes of a team wait each by itself, and share the board. */
static void say_waits(driver *d, bool waits)
{
    ferry_mixed_comm *comm = d->comm;
    const fy_call *call = &comm->call;
    pthread_mutex_lock(&comm->network);
    if (waits != d->waits || !comm->told) {
        comm->n_waiting = comm->n_waiting + waits - d->waits;
        comm->told = true;
        d->waits = waits;
        fy_board_write(comm, call->number, call->op, call->mode, call->geometry.n_elements,
                       comm->n_waiting != 0);
        fy_board_tell(comm);
    }
    pthread_mutex_unlock(&comm->network);
}

static void ask(ferry_mixed_comm *comm, uint32_t rank)
{
    atomic_store(&comm->has_asked, true);
    fy_question question = {.kind = FY_THING_MIXED,
                            .number = comm->work.number,
                            .run = comm->call.number,
                            .tag = answer_tag(comm, (uint32_t)comm->call.number)};
    comm->world->ops->ask(comm->world, rank, &question);
}

static void judge_absent(const driver *d, uint32_t rank, const fy_answer *answer)
{
    ferry_world *world = d->comm->world;
    fy_joint own = {.call = (uint32_t)d->comm->work.blocked_in, .object = fy_comm_object(d->comm)};
    char theirs[FY_JOINT_TEXT_BYTES], ours[FY_JOINT_TEXT_BYTES];
    fy_joint_format(&own, ours);
    if (answer->leaves) {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, rank,
                      "rank %u has left the world, and call %llu of mixed collective %u, which "
                      "others are in, waits for it",
                      rank, (unsigned long long)d->comm->call.number, d->comm->work.number);
    } else if (d->blocks && fy_answer_blocks(world->here, answer)) {
        fy_joint_format(&answer->joint, theirs);
        fy_world_fail(world, FERRY_ERR_MISUSE, rank,
                      "rank %u is in %s where rank %u is in %s: all ranks make the same calls in "
                      "the same order",
                      rank, theirs, world->rank, ours);
    }
}

static void read_answers(const driver *d)
{
    ferry_world *world = d->comm->world;
    unsigned char bytes[FY_ANSWER_BYTES];
    size_t n_bytes;
    uint32_t from;
    while (world->ops->take(world, FERRY_ANY_RANK,
                            answer_tag(d->comm, (uint32_t)d->comm->call.number), bytes,
                            sizeof bytes, &n_bytes, &from)) {
        fy_answer answer;
        if (fy_answer_read(bytes, n_bytes, &answer) && !answer.begun) {
            judge_absent(d, from, &answer);
        }
    }
}

/*
 * Nothing was done for a while. A rank that is in this call, waits for nobody who is missing, and
 * gives no sign for the deadline, has lost something; one that has not begun the call may take as
 * long as the entry limit says.
 */
static void look_around(driver *d)
{
    ferry_mixed_comm *comm = d->comm;
    const fy_settings *settings = &comm->world->settings;
    int64_t idle_ns = fy_now_ns() - d->worked_ns;
    bool was_there = false, waits = false;
    uint32_t rank = FERRY_ANY_RANK;
    read_answers(d);
    for (uint32_t i = d->first; i < d->first + d->n && !has_news(comm); i++) {
        fy_lane *lane = &comm->lanes[i];
        if (lane->done) {
            continue;
        }
        rank = fy_lane_awaited(lane);
        fy_suspicion suspicion = fy_lane_suspect(lane);
        if (suspicion == FY_NOT_THERE) {
            ask(comm, rank);
        }
        was_there |= suspicion == FY_ENTERED;
        waits |= suspicion == FY_NOT_THERE || suspicion == FY_WAITS_TOO;
    }
    if (is_over(d) || has_news(comm)) {
        return;
    }
    if (was_there && idle_ns > settings->deadline_ns &&
        !fy_world_may_only_be_slow(comm->world, rank, idle_ns)) {
        fy_comm_break(
            comm, FERRY_ERR_TIMEOUT,
            "mixed collective: rank %u is in call %llu too, but rank %u has heard nothing "
            "from it for %g s",
            rank, (unsigned long long)comm->call.number, comm->topology.world_rank,
            (double)idle_ns / 1e9);
    } else if (waits && settings->entry_ns >= 0 && idle_ns > settings->entry_ns) {
        fy_comm_break(comm, FERRY_ERR_TIMEOUT,
                      "mixed collective: rank %u waits in call %llu for rank %u, which has not "
                      "begun it for %g s",
                      comm->topology.world_rank, (unsigned long long)comm->call.number, rank,
                      (double)idle_ns / 1e9);
    } else {
        say_waits(d, waits);
    }
}

/* How long nothing is done before it is asked why. */
enum { FIRST_PATIENCE_NS = 20000000, MOST_PATIENCE_NS = 100000000 };

static ferry_status drive(driver *d, ferry_error *error)
{
    ferry_mixed_comm *comm = d->comm;
    int64_t patience_ns = FIRST_PATIENCE_NS, shared_ns = 0;
    ferry_status status = FERRY_OK;
    d->worked_ns = 0;
    work(d);
    while (!is_over(d)) {
        status = fy_comm_state(comm, error);
        if (status != FERRY_OK) {
            return status;
        }
        fy_works_share(comm->world, &shared_ns);
        d->worked = false;
        status = fy_world_wait(comm->world, ready, sleep_ns, d, patience_ns, error);
        if (d->worked) {
            d->worked_ns = 0;
            patience_ns = FIRST_PATIENCE_NS;
            if (d->waits) {
                say_waits(d, false);
            }
        } else if (status == FERRY_ERR_TIMEOUT && !fy_failed(comm->world->failure)) {
            d->worked_ns = d->worked_ns == 0 ? fy_now_ns() - patience_ns : d->worked_ns;
            look_around(d);
            patience_ns = patience_ns < MOST_PATIENCE_NS ? 2 * patience_ns : patience_ns;
        }
    }
    return FERRY_OK;
}

/* One lane of a team: its outcome is the handle's. */
static void drive_lane(void *context, uint64_t part)
{
    ferry_error error;
    driver d = {.comm = context, .first = (uint32_t)part, .n = 1, .blocks = true};
    drive(&d, &error);
}

/* What was put has arrived, so that nobody waits for a rank that is elsewhere by now. */
static ferry_status settle(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (comm->call.schedule->n_puts != 0) {
        status = ferry_flush(comm->transport, FERRY_ANY_RANK, NULL, error);
        if (status == FERRY_OK) {
            comm->n_sent = 0;
        }
    }
    if (status != FERRY_OK) {
        fy_comm_break(comm, status, "%s", error->message);
    }
    return status;
}

static ferry_status work_until_over(ferry_mixed_comm *comm, fy_joint_call as, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint32_t n_lanes = comm->call.geometry.n_lanes;
    fy_work_block(comm->world, &comm->work, as);
    if (comm->team != NULL && n_lanes > 1) {
        fy_team_run(comm->team, n_lanes, drive_lane, comm);
        driver all = {.comm = comm, .first = 0, .n = n_lanes};
        status = is_over(&all) ? FERRY_OK : fy_comm_state(comm, error);
    } else {
        driver all = {.comm = comm, .first = 0, .n = n_lanes, .blocks = true};
        status = drive(&all, error);
    }
    fy_work_unblock(comm->world, &comm->work);
    return status == FERRY_OK ? settle(comm, error) : status;
}

static ferry_status take(ferry_mixed_comm *comm, const char *what, ferry_error *error)
{
    if (comm == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a mixed collective", what);
    }
    ferry_status status = fy_world_check_process(comm->world, error);
    if (status != FERRY_OK) {
        return status;
    }
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

static void give_back(ferry_mixed_comm *comm)
{
    atomic_store_explicit(&comm->busy, false, memory_order_release);
}

ferry_status fy_comm_run(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                         const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                         ferry_error *error)
{
    ferry_status status = begin(comm, op, in, out, mode, block_lines, NULL, error);
    return status == FERRY_OK ? work_until_over(comm, FY_JOINT_MIXED_AUTOTUNE, error) : status;
}

ferry_status fy_comm_meet(ferry_mixed_comm *comm, uint32_t as, ferry_error *error)
{
    ferry_error own;
    error = error == NULL ? &own : error;
    const fy_topology *t = &comm->topology;
    uint32_t op = comm->ops[0];
    uint64_t rows[2] = {fy_op_in_chunks(t, op), fy_op_out_chunks(t, op)};
    char *memory = comm->meeting;
    char *second = memory + rows[0] * comm->element_bytes;
    ferry_mixed_tensor in = {ferry_buffer_of(memory, rows[0] * comm->element_bytes), rows[0], 1};
    ferry_mixed_tensor out = {ferry_buffer_of(second, rows[1] * comm->element_bytes), rows[1], 1};
    ferry_status status = begin(comm, op, &in, &out, comm->modes[0], 0, NULL, error);
    if (status == FERRY_OK) {
        comm->call.op = as;
        fy_board_write(comm, comm->call.number, as, comm->modes[0], 1, false);
        status = work_until_over(
            comm, as == FY_OP_TUNE ? FY_JOINT_MIXED_AUTOTUNE : FY_JOINT_MIXED_SHUTDOWN, error);
    }
    return status;
}

ferry_status ferry_mixed_comm_run(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                                  const ferry_mixed_tensor *out, uint32_t mode, ferry_queue *queue,
                                  ferry_error *error)
{
    ferry_error own;
    ferry_status status = take(comm, "run", error);
    if (status != FERRY_OK) {
        return status;
    }
    error = error == NULL ? &own : error;
    status = begin(comm, op, in, out, mode, 0, queue, error);
    if (status == FERRY_OK) {
        status = work_until_over(comm, FY_JOINT_MIXED_RUN, error);
    }
    give_back(comm);
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
    ferry_status status = fy_call_check_input(comm, op, in, error);
    if (status == FERRY_OK) {
        status = fy_call_mode(comm, op, fy_call_piece(comm, op, in) * comm->element_bytes, &mode,
                              &block_lines, error);
    }
    if (status == FERRY_OK) {
        *mode_out = mode;
    }
    return status;
}

/*
 * Requests
 */

/* Who has it moves the call on, and looks at what it has come to. */
static bool seize(fy_mixed_request *request)
{
    return !atomic_exchange_explicit(&request->is_moved, true, memory_order_acquire);
}

static void let_go(fy_mixed_request *request)
{
    atomic_store_explicit(&request->is_moved, false, memory_order_release);
}

static void close_request(fy_mixed_request *request, ferry_status status)
{
    ferry_mixed_comm *comm = request->comm;
    request->status = status;
    request->done = true;
    fy_work_start(comm->world, &comm->work, false);
    give_back(comm);
}

static ferry_status outcome_of(const fy_mixed_request *request, ferry_error *error)
{
    return request->status == FERRY_OK
               ? FERRY_OK
               : fy_fail(error, request->status, "%s", request->error.message);
}

/* Too late where this rank has done its part: the others may have the call behind them. */
static void obey_cancel(fy_mixed_request *request)
{
    ferry_mixed_comm *comm = request->comm;
    driver d = {.comm = comm, .n = comm->call.geometry.n_lanes};
    if (atomic_load(&request->cancelled) && !is_over(&d)) {
        fy_comm_break(comm, FERRY_ERR_ABORTED, "rank %u cancelled call %llu",
                      comm->topology.world_rank, (unsigned long long)comm->call.number);
    }
}

static void hurry(ferry_mixed_comm *comm, bool hurries)
{
    if (comm->call.schedule->n_puts != 0) {
        pthread_mutex_lock(&comm->network);
        fy_transport_hurry(comm->transport, hurries);
        pthread_mutex_unlock(&comm->network);
    }
}

/* Who only polls looks around as well, as often as who waits. */
static void poll_once(fy_mixed_request *request)
{
    ferry_mixed_comm *comm = request->comm;
    driver d = {.comm = comm,
                .n = comm->call.geometry.n_lanes,
                .waits = request->waits,
                .worked_ns = request->worked_ns};
    work_network(comm);
    hurry(comm, true);
    work(&d);
    hurry(comm, false);
    int64_t now_ns = fy_now_ns();
    if (d.worked || request->worked_ns == 0) {
        request->worked_ns = request->looked_ns = now_ns;
    } else if (now_ns - request->looked_ns > FIRST_PATIENCE_NS && !is_over(&d)) {
        look_around(&d);
        request->waits = d.waits;
        request->looked_ns = now_ns;
    }
}

/* A child by fork has the request, but not the call. */
static ferry_status check_process(const fy_mixed_request *request, ferry_error *error)
{
    return request->comm == NULL ? FERRY_OK : fy_world_check_process(request->comm->world, error);
}

/* The flush of a call that is polled is polled as well, but not for longer than a deadline. */
static void end_polled(fy_mixed_request *request)
{
    ferry_mixed_comm *comm = request->comm;
    uint32_t peer = FERRY_ANY_RANK;
    int64_t now_ns = fy_now_ns();
    ferry_status status = FERRY_OK;
    if (comm->call.schedule->n_puts != 0) {
        request->settling_ns = request->settling_ns == 0 ? now_ns : request->settling_ns;
        status = fy_transport_try_flush(comm->transport, &peer, &request->error);
    }
    if (status == FERRY_ERR_TIMEOUT &&
        now_ns - request->settling_ns <= comm->world->settings.deadline_ns) {
        return;
    }
    if (status == FERRY_ERR_TIMEOUT) {
        status = fy_fail(&request->error, status,
                         "rank %u has not answered to what rank %u has put there", peer,
                         comm->world->rank);
    }
    if (status != FERRY_OK) {
        fy_comm_break(comm, status, "%s", request->error.message);
    } else {
        comm->n_sent = 0;
    }
    close_request(request, status);
}

static void test_once(fy_mixed_request *request)
{
    ferry_mixed_comm *comm = request->comm;
    driver d = {.comm = comm, .n = comm->call.geometry.n_lanes};
    ferry_status status;
    obey_cancel(request);
    poll_once(request);
    fy_works_move(comm->world);
    status = fy_comm_state(comm, &request->error);
    if (status != FERRY_OK) {
        close_request(request, status);
    } else if (is_over(&d)) {
        end_polled(request);
    }
}

static ferry_status test_request(ferry_request *base, bool *done_out, ferry_error *error)
{
    fy_mixed_request *request = (fy_mixed_request *)base;
    if (check_process(request, error) != FERRY_OK) {
        *done_out = true;
        return FERRY_ERR_MISUSE;
    }
    *done_out = false;
    if (!seize(request)) {
        return FERRY_OK; /* another thread's wait moves it on */
    }
    if (!request->done) {
        test_once(request);
    }
    *done_out = request->done;
    let_go(request);
    return *done_out ? outcome_of(request, error) : FERRY_OK;
}

static ferry_status wait_request(ferry_request *base, ferry_error *error)
{
    fy_mixed_request *request = (fy_mixed_request *)base;
    ferry_status status = check_process(request, error);
    if (status != FERRY_OK) {
        return status;
    }
    while (!seize(request)) {
        sched_yield();
    }
    if (!request->done) {
        obey_cancel(request);
        status = fy_comm_state(request->comm, &request->error);
        status = status == FERRY_OK
                     ? work_until_over(request->comm, FY_JOINT_MIXED_RUN, &request->error)
                     : status;
        close_request(request, status);
    }
    let_go(request);
    return outcome_of(request, error);
}

/* From within other waits and tests: see fy_work. Its own test or wait ends it. */
static void move_on(void *context, int64_t until_ns)
{
    ferry_mixed_comm *comm = context;
    fy_mixed_request *request = comm->request;
    (void)until_ns; /* once is short */
    if (request != NULL && seize(request)) {
        if (request->is_held && !request->done) {
            obey_cancel(request);
            poll_once(request);
        }
        let_go(request);
    }
}

static int64_t look_again_ns(void *context)
{
    enum { AGAIN_NS = 1000000 };
    (void)context;
    return AGAIN_NS;
}

void fy_comm_work_add(ferry_mixed_comm *comm, uint32_t number)
{
    comm->work = (fy_work){
        .kind = FY_THING_MIXED, .step = move_on, .sleep_ns = look_again_ns, .context = comm};
    fy_work_add(comm->world, &comm->work, number);
}

static void cancel_request(ferry_request *base)
{
    atomic_store(&((fy_mixed_request *)base)->cancelled, true);
}

static bool has_ended(void *context)
{
    bool done = false;
    test_request(context, &done, NULL);
    return done;
}

static int64_t look_often_ns(void *context)
{
    (void)context;
    return FIRST_PATIENCE_NS / 10;
}

/* A cancelled call breaks its handle: so it may end by itself, but the wait for that is bounded. */
static void destroy_request(ferry_request *base)
{
    fy_mixed_request *request = (fy_mixed_request *)base;
    if (check_process(request, NULL) != FERRY_OK) {
        return;
    }
    if (request->comm != NULL) {
        ferry_world *world = request->comm->world;
        fy_world_wait(world, has_ended, look_often_ns, request, world->settings.deadline_ns, NULL);
    }
    if (!request->done) {
        cancel_request(base);
    }
    wait_request(base, NULL);
    request->is_held = false;
    if (request->comm == NULL) { /* its handle is gone */
        fy_free(request);
    }
}

static const fy_request_ops request_ops = {.test = test_request,
                                           .wait = wait_request,
                                           .cancel = cancel_request,
                                           .destroy = destroy_request};

ferry_status ferry_mixed_comm_start(ferry_mixed_comm *comm, uint32_t op,
                                    const ferry_mixed_tensor *in, const ferry_mixed_tensor *out,
                                    uint32_t mode, ferry_queue *queue, ferry_request **request_out,
                                    ferry_error *error)
{
    if (request_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "start needs a place for the request");
    }
    ferry_status status = take(comm, "start", error);
    if (status != FERRY_OK) {
        return status;
    }
    if (comm->request->is_held) {
        give_back(comm);
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "start: destroy the request of the call before this one first");
    }
    status = begin(comm, op, in, out, mode, 0, queue, error);
    if (status != FERRY_OK) {
        give_back(comm);
        return status;
    }
    fy_mixed_request *request = comm->request;
    while (!seize(request)) {
        sched_yield();
    }
    request->base.ops = &request_ops;
    request->done = false;
    request->is_held = true;
    request->waits = false;
    request->worked_ns = 0;
    request->settling_ns = 0;
    atomic_store(&request->cancelled, false);
    driver d = {.comm = comm, .n = comm->call.geometry.n_lanes};
    work(&d);
    let_go(request);
    fy_work_start(comm->world, &comm->work, true);
    *request_out = &request->base;
    return FERRY_OK;
}

void fy_comm_release_request(ferry_mixed_comm *comm)
{
    fy_mixed_request *request = comm->request;
    if (request == NULL) {
        return;
    }
    if (request->is_held && !request->done) {
        cancel_request(&request->base);
        wait_request(&request->base, NULL);
    }
    pthread_mutex_lock(&comm->world->here->stepping); /* nobody moves it on any more */
    request->comm = NULL;
    comm->request = NULL;
    pthread_mutex_unlock(&comm->world->here->stepping);
    if (!request->is_held) {
        fy_free(request);
    }
}
