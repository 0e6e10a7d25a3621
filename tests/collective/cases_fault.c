/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Ranks that call something else, that stand still, and that die. */
#include "collective/suite.h"
#include "support/devices.h"
#include "support/graphs.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

/* Divergence: a world for each way, for it ends by that. */

typedef enum way {
    WAY_OP,
    WAY_MODE,
    WAY_ROWS,
    WAY_COLUMNS,
    WAY_LONGER, /* by many steps */
    WAY_MISSED, /* a call of another length */
    WAY_SHUTDOWN,
    WAY_AUTOTUNE,
    WAY_REFUSED, /* by the one rank alone, before it began */
    N_WAYS
} way;

static const char *const way_names[N_WAYS] = {"op",     "mode",     "rows",     "columns", "long",
                                              "missed", "shutdown", "autotune", "refused"};

/* The call of the rank that differs. */
static call other_call(const scene *c, way how, call what)
{
    switch (how) {
    case WAY_OP:
        what.op = what.op == c->ops[0] ? c->ops[1] : c->ops[0];
        break;
    case WAY_MODE:
        what.mode = what.mode == c->modes[0] ? c->modes[1] : c->modes[0];
        break;
    case WAY_ROWS:
        what.rows++;
        break;
    case WAY_COLUMNS:
        what.columns += 100;
        break;
    case WAY_LONGER:
        what.columns += 20000;
        break;
    default:
        break;
    }
    return what;
}

static ferry_status run_quietly(scene *c, const call *what)
{
    tensors t = scene_tensors(c, what);
    return call_tensors(c, what, &t);
}

static ferry_status diverge(scene *c, way how, const call *what)
{
    call other = other_call(c, how, *what);
    tensors t;
    switch (how) {
    case WAY_SHUTDOWN:
        return ferry_mixed_comm_shutdown(c->comm, &c->me->error);
    case WAY_AUTOTUNE:
        return ferry_mixed_comm_run_autotune(c->comm, &c->me->error);
    case WAY_MISSED:
        return FERRY_OK;
    case WAY_REFUSED:
        t = scene_tensors(c, what);
        t.out.columns++;
        must_fail(c->me, FERRY_ERR_INVALID_INPUT, NULL,
                  ferry_mixed_comm_run(c->comm, what->op, &t.in, &t.out, what->mode, NULL,
                                       &c->me->error));
        return FERRY_OK;
    default:
        return run_quietly(c, &other);
    }
}

/* The sentence says what was called. */
static void check_blame(rank_context *me, const scene *c, way how, const call *what)
{
    call other = other_call(c, how, *what);
    const char *text = me->error.message;
    char number[32];
    expect(me, strstr(text, "rank") != NULL, "%s: no rank is named: %.400s", way_names[how], text);
    if (how == WAY_OP) {
        expect(me,
               strstr(text, ferry_mixed_op_name(other.op)) != NULL &&
                   strstr(text, ferry_mixed_op_name(what->op)) != NULL,
               "the operations are not named: %.400s", text);
    }
    if (how == WAY_MODE) {
        expect(me,
               strstr(text, ferry_mixed_mode_name(other.mode)) != NULL &&
                   strstr(text, ferry_mixed_mode_name(what->mode)) != NULL,
               "the modes are not named: %.400s", text);
    }
    if (how == WAY_ROWS || how == WAY_COLUMNS || how == WAY_LONGER) {
        snprintf(number, sizeof number, "%llu", (unsigned long long)(other.rows * other.columns));
        expect(me, strstr(text, number) != NULL, "the length %s is not named: %.400s", number,
               text);
    }
}

static void diverge_once(rank_context *me, way how, uint64_t *random)
{
    uint32_t odd = random_below(random, me->n_ranks);
    shape s = draw_shape(random, me->n_ranks);
    scene c;
    while (how == WAY_OP && s.dp == 1) { /* that offers only one */
        s = draw_shape(random, me->n_ranks);
    }
    ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(random), random);
    scene_open(&c, me, &s, &options);
    for (uint32_t i = random_below(random, 10); i > 0; i--) {
        call what = draw_call(&c, random, 900);
        scene_call(&c, &what);
    }
    scene_compare(&c); /* and so nobody is still in one of these calls */
    meet(me);
    call what = {.op = c.ops[0], .rows = dice(random, 1, 7), .columns = 96};
    ferry_status status = FERRY_OK;
    what.mode = c.modes[random_below(random, (uint32_t)c.n_modes)];
    what.form = (call_form)random_below(random, N_FORMS);
    status = me->rank == odd ? diverge(&c, how, &what) : run_quietly(&c, &what);
    for (uint32_t i = 0; i < 20 && status == FERRY_OK; i++) { /* if it was not among those asked */
        call next = what;
        next.columns += how == WAY_MISSED;
        status = run_quietly(&c, &next);
    }
    expect(me, status == FERRY_ERR_MISUSE, "%s: %s form %d: rank %u, other %s: %s: %.200s", c.name,
           ferry_mixed_mode_name(what.mode), (int)what.form, (unsigned)odd, way_names[how],
           ferry_status_name(status), status == FERRY_OK ? "" : me->error.message);
    if (how != WAY_SHUTDOWN || me->rank != odd) { /* its handle may just be shut down */
        check_blame(me, &c, how, &what);
        must_fail(me, FERRY_ERR_MISUSE, "rank", run_quietly(&c, &what));
        must_fail(me, FERRY_ERR_MISUSE, "rank", ferry_mixed_comm_run_autotune(c.comm, &me->error));
    }
    scene_drop(&c);
}

void case_diverging(rank_context *me)
{
    uint64_t random = seed_of(me, 30, me->n_ranks, 0);
    ferry_world *first = me->world;
    bool simple = strchr(me->engine->name, '_') != NULL || me->engine->engines[0] == '\0';
    for (uint32_t i = 0; i < times_of(me, simple ? 3 : 2 * N_WAYS, 6 * N_WAYS); i++) {
        way how = simple && !me->is_long ? (way)random_below(&random, N_WAYS) : (way)(i % N_WAYS);
        me->world = first;
        me->world = another_world(me, i);
        diverge_once(me, how, &random);
        ferry_world_destroy(me->world);
        me->world = first;
    }
}

/* What stands still and what is lost */

/* Runs until a call fails. false: none did. */
static bool run_until_failure(scene *c, uint64_t *random, uint32_t most, ferry_status *status_out)
{
    for (uint32_t i = 0; i < most; i++) {
        call what = draw_call(c, random, 2500);
        *status_out = scene_try(c, &what);
        if (*status_out != FERRY_OK) {
            expect(c->me, strlen(c->me->error.message) > 10, "%s has no sentence",
                   ferry_status_name(*status_out));
            return true;
        }
    }
    return false;
}

static ferry_status try_to_open(scene *c, rank_context *me, uint64_t *random, const char *wrapper,
                                char *text, size_t n_bytes)
{
    shape s = draw_shape(random, me->n_ranks);
    ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(random), random);
    options.engines = engines_of(me, wrapper, text, n_bytes);
    scene_begin(c, me, &s, &options);
    ferry_status status = ferry_mixed_comm_create(me->world, &options, &c->comm, &me->error);
    if (status != FERRY_OK) {
        return status;
    }
    must(me, ferry_mixed_comm_get_valid_op_list(c->comm, c->ops, FERRY_MIXED_N_OPS, &c->n_ops,
                                                &me->error));
    must(me, ferry_mixed_comm_get_valid_mode_list(c->comm, c->modes, FERRY_MIXED_N_MODES,
                                                  &c->n_modes, &me->error));
    return FERRY_OK;
}

static void open_for_fault(scene *c, rank_context *me, uint64_t *random)
{
    must(me, try_to_open(c, me, random, "", NULL, 0));
}

/* One rank lives and does not call any more. */
void case_idle(rank_context *me)
{
    uint64_t random = seed_of(me, 31, 0, 0);
    uint32_t victim = random_below(&random, me->n_ranks);
    uint32_t calls = dice(&random, 1, 30);
    ferry_status status = FERRY_OK;
    scene c;
    open_for_fault(&c, me, &random);
    if (me->rank == victim) {
        expect(me, !run_until_failure(&c, &random, calls, &status), "%s: %.400s",
               ferry_status_name(status), me->error.message);
        while (atomic_load(&me->shared->word[0]) < me->n_ranks - 1) {
            sleep_ms(1);
        }
    } else {
        expect(me, run_until_failure(&c, &random, calls + 50, &status), "nobody was missed");
        expect(me, status == FERRY_ERR_TIMEOUT, "%s: %.400s", ferry_status_name(status),
               me->error.message);
        atomic_fetch_add(&me->shared->word[0], 1);
    }
    call what = draw_call(&c, &random, 300);
    must_fail(me, FERRY_ERR_TIMEOUT, NULL, run_quietly(&c, &what));
    scene_drop(&c);
}

static void hurt_in_calls(rank_context *me, bool stops)
{
    uint64_t random = seed_of(me, 32, 0, 0);
    uint32_t victim = random_below(&random, me->n_ranks);
    uint32_t us = dice(&random, 200, 60000);
    ferry_status status = FERRY_OK, wanted = stops ? FERRY_ERR_TIMEOUT : FERRY_ERR_PEER_LOST;
    scene c;
    open_for_fault(&c, me, &random);
    meet_outside(me);
    if (me->rank == victim) {
        end_later(me, us, stops);
    }
    expect(me, run_until_failure(&c, &random, UINT32_MAX, &status), "nobody was missed");
    expect(me, status == wanted, "%s, not %s: %.400s", ferry_status_name(status),
           ferry_status_name(wanted), me->error.message);
    expect_named(me, victim);
    call what = draw_call(&c, &random, 300);
    must_fail(me, wanted, NULL, run_quietly(&c, &what));
    expect_named(me, victim);
    scene_drop(&c);
}

void case_killed(rank_context *me)
{
    hurt_in_calls(me, false);
}

void case_stopped(rank_context *me)
{
    me->keeps = device_has_kernels();
    hurt_in_calls(me, true);
}

/* Calls of a handle of this world, every element of them looked at. */
static void run_whole(rank_context *me, uint64_t *random, uint32_t n_calls)
{
    shape s = draw_shape(random, me->n_ranks);
    ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(random), random);
    scene c;
    scene_open(&c, me, &s, &options);
    for (uint32_t i = 0; i < n_calls; i++) {
        call what = draw_call(&c, random, 900);
        scene_call(&c, &what);
    }
    scene_close(&c);
}

/*
 * The rank that passes the news on is stopped in the middle of calls. The others drop their
 * handles, and with them their connections, before all can know why: nobody who lives is named for
 * that or left out. Then it wakes, and finds that they have gone on.
 */
void case_stopped_first(rank_context *me)
{
    uint64_t random = seed_of(me, 37, 0, 0);
    uint32_t us = dice(&random, 200, 60000);
    _Atomic uint64_t *pid = &me->shared->word[0];
    _Atomic uint64_t *is_done = &me->shared->word[1];
    ferry_world *smaller = NULL;
    ferry_status status = FERRY_OK;
    scene c;
    open_for_fault(&c, me, &random);
    if (me->rank == 0) {
        atomic_store(pid, (uint64_t)getpid());
    }
    meet_outside(me);
    if (me->rank == 0) {
        end_later(me, us, true);
    }
    expect(me, run_until_failure(&c, &random, UINT32_MAX, &status), "nobody was missed");
    ferry_error first = me->error;
    scene_drop(&c);
    if (me->rank == 0) {
        status = ferry_world_shrink(me->world, 0, &smaller, &me->error);
        expect(me, status != FERRY_OK, "who was given up made a world of %u ranks",
               ferry_world_rank_count(smaller));
        atomic_store(is_done, 1);
        return;
    }
    expect(me, status == FERRY_ERR_TIMEOUT && strstr(first.message, "rank 0") != NULL, "%s: %.400s",
           ferry_status_name(status), first.message);
    must(me, ferry_world_shrink(me->world, 0, &smaller, &me->error));
    rank_context other = *me;
    other.world = smaller;
    other.rank = ferry_world_rank(smaller);
    other.n_ranks = ferry_world_rank_count(smaller);
    expect(me, other.n_ranks == me->n_ranks - 1, "a world of %u ranks; first: %.400s",
           other.n_ranks, first.message);
    uint64_t after = seed_of(me, 38, 0, 0); /* they made different numbers of calls before */
    run_whole(&other, &after, 3);
    if (other.rank == 0) {
        kill((pid_t)atomic_load(pid), SIGCONT);
    }
    for (uint64_t seen = 0; seen == 0;) { /* what the first one has seen, so that all go on alike */
        const void *all;
        run_whole(&other, &after, 3);
        seen = atomic_load(is_done);
        must(me, ferry_world_all_gather(smaller, &seen, sizeof seen, &all, &me->error));
        memcpy(&seen, all, sizeof seen);
    }
    ferry_world_destroy(smaller);
}

/* Somewhere in the life of handles. */
void case_killed_early(rank_context *me)
{
    uint64_t random = seed_of(me, 33, 0, 0);
    uint32_t victim = random_below(&random, me->n_ranks);
    uint32_t us = dice(&random, 200, 60000);
    ferry_status status = FERRY_OK;
    if (me->rank == victim) {
        end_later(me, us, false);
    }
    while (status == FERRY_OK) {
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene c;
        options.use_autotune = one_in(&random, 4);
        options.autotune_bytes = 8192;
        scene_begin(&c, me, &s, &options);
        status = ferry_mixed_comm_create(me->world, &options, &c.comm, &me->error);
        if (status == FERRY_OK) {
            call what = {.op = FERRY_MIXED_ALL_REDUCE, .rows = 5, .columns = 99};
            what.op = s.dp == 1  ? FERRY_MIXED_ALL_REDUCE
                      : s.tp > 1 ? FERRY_MIXED_ALL_REDUCE_ALL_GATHER
                                 : FERRY_MIXED_REDUCE_SCATTER;
            what.mode = FERRY_MIXED_BASE_ONE;
            status = run_quietly(&c, &what);
        }
        if (status == FERRY_OK && one_in(&random, 2)) {
            status = ferry_mixed_comm_shutdown(c.comm, &me->error);
        }
        scene_drop(&c);
    }
    expect(me, status == FERRY_ERR_PEER_LOST, "%s: %.400s", ferry_status_name(status),
           me->error.message);
    expect_named(me, victim);
}

/* One rank ends the world while others wait for it, or in the midst of a call of its own. */
void case_abort(rank_context *me)
{
    uint64_t random = seed_of(me, 34, 0, 0);
    uint32_t victim = random_below(&random, me->n_ranks);
    uint32_t calls = dice(&random, 1, 40);
    ferry_request *request = NULL;
    ferry_status status = FERRY_OK;
    bool done = false;
    scene c;
    open_for_fault(&c, me, &random);
    meet_outside(me);
    if (me->rank == victim) {
        expect(me, !run_until_failure(&c, &random, calls, &status), "%.400s", me->error.message);
        call what = draw_call(&c, &random, 2500);
        tensors t = scene_tensors(&c, &what);
        must(me, ferry_mixed_comm_start(c.comm, what.op, &t.in, &t.out, what.mode, NULL, &request,
                                        &me->error));
        must(me, ferry_request_test(request, &done, &me->error));
        ferry_world_abort(me->world, "this rank does not go on");
        status = ferry_request_wait(request, &me->error);
        expect(me, status == FERRY_ERR_ABORTED || status == FERRY_OK, "%s: %.400s",
               ferry_status_name(status), me->error.message);
        ferry_request_destroy(request);
    } else {
        expect(me, run_until_failure(&c, &random, calls + 50, &status), "nobody was missed");
        expect(me, status == FERRY_ERR_ABORTED, "%s: %.400s", ferry_status_name(status),
               me->error.message);
    }
    call what = draw_call(&c, &random, 300);
    must_fail(me, FERRY_ERR_ABORTED, "does not go on", run_quietly(&c, &what));
    scene_drop(&c);
}

/* One rank's traffic ends after some operations: no rank waits much longer than its limits. */
void case_lose(rank_context *me)
{
    uint64_t random = seed_of(me, 35, 0, 0);
    ferry_status status = FERRY_OK;
    char wrapper[64], text[160];
    scene c;
    snprintf(wrapper, sizeof wrapper, "lose=%u@%u:", (unsigned)random_below(&random, me->n_ranks),
             (unsigned)dice(&random, 100, 800));
    status = try_to_open(&c, me, &random, wrapper, text, sizeof text);
    if (status != FERRY_OK) { /* a rank was kept off the cores for longer than that deadline */
        expect(me, status == FERRY_ERR_TIMEOUT, "%s: %.400s", ferry_status_name(status),
               me->error.message);
        scene_drop(&c);
        return;
    }
    expect(me, run_until_failure(&c, &random, 5000, &status), "nothing was lost in 5000 calls");
    ferry_error first = me->error;
    call what = draw_call(&c, &random, 300);
    expect(me, run_quietly(&c, &what) == status, "%.200s; and then: %.250s", first.message,
           me->error.message);
    scene_drop(&c);
}

/*
 * A request that one rank cancels ends on all, as a whole call or with ABORTED; the calls before it
 * end well, also on ranks that are still in them.
 */
void case_cancel(rank_context *me)
{
    uint64_t random = seed_of(me, 36, 0, 0);
    ferry_world *first = me->world;
    for (uint32_t i = 0; i < times_of(me, 4, 40); i++) {
        me->world = first;
        me->world = another_world(me, i);
        ferry_request *request = NULL;
        ferry_status status = FERRY_OK;
        bool done = false;
        scene c;
        open_for_fault(&c, me, &random);
        expect(me, !run_until_failure(&c, &random, 5, &status), "%.400s", me->error.message);
        call what = draw_call(&c, &random, 4000);
        tensors t = scene_tensors(&c, &what);
        uint32_t victim = random_below(&random, me->n_ranks), tests = random_below(&random, 3);
        status = ferry_mixed_comm_start(c.comm, what.op, &t.in, &t.out, what.mode, NULL, &request,
                                        &me->error);
        for (uint32_t k = 0; me->rank == victim && k < tests && !done && status == FERRY_OK; k++) {
            status = ferry_request_test(request, &done, &me->error);
        }
        if (me->rank == victim && request != NULL) {
            ferry_request_cancel(request);
        }
        if (request != NULL) { /* else another rank was faster in cancelling it */
            status = ferry_request_wait(request, &me->error);
        }
        expect(me, status == FERRY_OK || status == FERRY_ERR_ABORTED, "%s: %.400s",
               ferry_status_name(status), me->error.message);
        ferry_request_destroy(request);
        if (status == FERRY_ERR_ABORTED) {
            must_fail(me, FERRY_ERR_ABORTED, NULL, run_quietly(&c, &what));
        } else {
            status = run_quietly(&c, &what);
            expect(me, status == FERRY_OK || status == FERRY_ERR_ABORTED, "%s: %.400s",
                   ferry_status_name(status), me->error.message);
        }
        scene_drop(&c);
        ferry_world_destroy(me->world);
        me->world = first;
    }
}

/*
 * Streams of a caller's that ferry does not know, as many as fill all channels of rank 0's device,
 * and all wait: so its kernel does not begin.
 */
enum { N_HOLDING = 16 };

static _Atomic int said;

typedef struct holding {
    const rank_context *me;
    _Atomic int was_said; /* in the log, before they went on */
    void *streams[N_HOLDING];
    _Atomic uint64_t *word; /* 1: they go on */
} holding;

static void hold_up(holding *h)
{
    h->streams[0] = graphs_open_stream();
    h->word = graphs_pinned(sizeof *h->word);
    atomic_store(h->word, 0);
    for (int i = 1; i < N_HOLDING; i++) {
        h->streams[i] = graphs_new_stream();
    }
    for (int i = 0; i < N_HOLDING; i++) {
        driver_must("cuStreamWaitValue64_v2", (uintptr_t)h->streams[i], (uintptr_t)h->word, 1, 0);
    }
}

static void let_go(holding *h)
{
    for (int i = N_HOLDING; i-- > 0;) {
        graphs_synchronize(h->streams[i]);
        if (i > 0) {
            graphs_close(h->streams[i]);
        }
    }
    graphs_free_pinned((void *)(uintptr_t)h->word);
    graphs_close_stream(h->streams[0]);
}

/* When the others have heard of it, their tensors are free: rank 0's are in use until then. */
static void *let_go_on_later(void *context)
{
    holding *h = context;
    while (atomic_load(&h->me->shared->word[0]) < h->me->n_ranks - 1) {
        sleep_ms(1);
    }
    atomic_fetch_add(&h->was_said, atomic_load(&said));
    atomic_store(h->word, 1);
    return NULL;
}

static void look_for_sentence(void *context, ferry_log_level level, const char *line)
{
    (void)context;
    if (level == FERRY_LOG_ERROR && strstr(line, "the kernel of rank 0 has not begun") != NULL) {
        atomic_store(&said, 1);
    }
}

/*
 * Rank 1 comes late: rank 0's first kernel waits for it, and the second lies behind the first one.
 * Both take longer than a kernel may take to begin, and that is nobody's fault.
 */
static void come_late(rank_context *me, uint64_t *random)
{
    scene c[2];
    ferry_request *requests[2];
    for (int i = 0; i < 2; i++) {
        shape s = shape_of(me->n_ranks, 1, me->n_ranks, 1);
        ferry_mixed_comm_options options = scene_options(me, &s, FERRY_F32, random);
        scene_open(&c[i], me, &s, &options);
    }
    if (me->rank == 1) {
        sleep_ms(4000);
    }
    for (int i = 0; i < 2; i++) {
        call what = draw_call(&c[i], random, 900);
        tensors t = scene_tensors(&c[i], &what);
        must(me, ferry_mixed_comm_start(c[i].comm, what.op, &t.in, &t.out, what.mode, NULL,
                                        &requests[i], &me->error));
    }
    for (int i = 0; i < 2; i++) {
        must(me, ferry_request_wait(requests[i], &me->error));
        ferry_request_destroy(requests[i]);
    }
    scene_close(&c[0]);
    scene_close(&c[1]);
}

/*
 * The others hear why before their own deadline, the log of rank 0 says it while it waits, and then
 * it hears it, too. Afterwards the device is as good as before.
 */
void case_held_up(rank_context *me)
{
    enum { N = 4096, BYTES = N * sizeof(float) };
    uint64_t random = seed_of(me, 39, 0, 0);
    shape s = shape_of(me->n_ranks, 1, me->n_ranks, 1);
    ferry_mixed_comm_options options = scene_options(me, &s, FERRY_F32, &random);
    ferry_buffer far[2];
    holding held = {.me = me};
    pthread_t thread;
    scene c;
    expect(me, device_has_kernels(), "this case is one of kernels");
    scene_open(&c, me, &s, &options);
    for (int i = 0; i < 2; i++) {
        must(me, ferry_memory_alloc(NULL, device_kind(), device_number((int32_t)(me->rank % 2)),
                                    BYTES, &far[i], &me->error));
    }
    ferry_mixed_tensor in = {far[0], N, 1}, out = {far[1], N, 1};
    if (me->rank == 0) {
        ferry_log_configure(FERRY_LOG_ERROR, look_for_sentence, NULL);
        hold_up(&held);
        expect(me, pthread_create(&thread, NULL, let_go_on_later, &held) == 0, "no thread");
    }
    must_fail(me, FERRY_ERR_TIMEOUT, "the kernel of rank 0 has not begun call",
              ferry_mixed_comm_run(c.comm, FERRY_MIXED_ALL_REDUCE, &in, &out, c.modes[0], NULL,
                                   &me->error));
    if (me->rank == 0) {
        pthread_join(thread, NULL);
        expect(me, atomic_load(&held.was_said) == 1, "the log says nothing");
        let_go(&held);
    } else {
        atomic_fetch_add(&me->shared->word[0], 1);
    }
    scene_drop(&c);
    for (int i = 0; i < 2; i++) {
        ferry_memory_free(&far[i]);
    }
    run_whole(me, &random, 3);
    come_late(me, &random);
}
