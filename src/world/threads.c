/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/threads.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "world/agree.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

/*
 * Collective calls
 *
 * A rank posts what it brings and counts itself among the arrivals. The last one checks that all
 * make the same call, puts the result together, sets the count back and says that the call is done;
 * the others wait for that. What they brought is read only while the count is complete. A rank that
 * waits when the world fails therefore first breaks the count, so that it can never become
 * complete, and only then returns; if it is complete already, the rank waits for the end, which
 * depends on nobody else.
 */
static const uint64_t BROKEN = (uint64_t)1 << 63;

static void no_memory_for_all(fy_threads *all, uint64_t bytes)
{
    all->outcome = fy_fail(&all->sentence, FERRY_ERR_NO_MEMORY,
                           "out of memory while allocating %llu bytes that the ranks gather",
                           (unsigned long long)bytes);
}

/* Rank 0 is as right as any: the sentence names one from each side. */
static bool all_call_the_same(fy_threads *all)
{
    const fy_step *first = &all->ranks[0].step;
    for (uint32_t r = 1; r < all->n_ranks; r++) {
        if (!fy_step_equal(&all->ranks[r].step, first)) {
            all->odd = r;
            all->outcome = FERRY_ERR_MISUSE;
            fy_steps_say(&all->ranks[r].step, r, first, 0, all->sentence.message);
            return false;
        }
    }
    return true;
}

/* Room for a result. What was large once is not kept for ever. */
static bool make_room(fy_threads_gathered *result, uint64_t bytes)
{
    enum { KEPT_BYTES = 1 << 20 };
    if (bytes <= result->capacity && result->capacity <= KEPT_BYTES && result->bytes != NULL) {
        return true;
    }
    fy_free(result->bytes);
    result->capacity = 0;
    result->bytes = fy_alloc(bytes, 1);
    if (result->bytes == NULL) {
        return false;
    }
    result->capacity = bytes;
    return true;
}

static void merge_agreements(fy_threads *all, fy_threads_gathered *result)
{
    if (!make_room(result, FY_AGREEMENT_BYTES)) {
        no_memory_for_all(all, FY_AGREEMENT_BYTES);
        return;
    }
    fy_pack into = fy_pack_into(result->bytes, FY_AGREEMENT_BYTES);
    fy_pack_bytes(&into, all->ranks[0].bytes, all->ranks[0].n_bytes);
    for (uint32_t r = 1; r < all->n_ranks; r++) {
        fy_agreement_merge(&into, all->ranks[r].bytes, all->ranks[r].n_bytes, r);
    }
    result->lengths[0] = into.used;
}

static void put_together(fy_threads *all, uint64_t number)
{
    all->outcome = FERRY_OK;
    all->odd = FERRY_ANY_RANK;
    if (!all_call_the_same(all) || all->ranks[0].step.kind == FY_BARRIER) {
        return;
    }
    fy_threads_gathered *result = &all->gathered[number % 2];
    if (all->ranks[0].step.kind == FY_AGREEMENT) {
        merge_agreements(all, result);
        return;
    }
    uint64_t total = 0;
    for (uint32_t r = 0; r < all->n_ranks; r++) {
        result->lengths[r] = all->ranks[r].n_bytes;
        if (!fy_add(total, result->lengths[r], &total)) {
            no_memory_for_all(all, UINT64_MAX);
            return;
        }
    }
    if (!make_room(result, total)) {
        no_memory_for_all(all, total);
        return;
    }
    unsigned char *to = result->bytes;
    for (uint32_t r = 0; r < all->n_ranks; r++) {
        if (result->lengths[r] > 0) {
            memcpy(to, all->ranks[r].bytes, result->lengths[r]);
            to += result->lengths[r];
        }
    }
}

static void finish(fy_threads *all, uint64_t number)
{
    put_together(all, number);
    atomic_store(&all->arrivals, 0);
    atomic_store(&all->done, number);
    fy_bell_ring(&all->gate);
}

typedef struct entered_call {
    fy_threads *all;
    uint64_t number;
} entered_call;

static bool is_done(void *context)
{
    const entered_call *call = context;
    return atomic_load(&call->all->done) >= call->number;
}

/* True if the call can no longer become whole; else it has. See above. */
static bool break_off(const entered_call *call)
{
    uint64_t before = atomic_fetch_or(&call->all->arrivals, BROKEN);
    if (atomic_load(&call->all->done) >= call->number) {
        return false;
    }
    if ((before & ~BROKEN) < call->all->n_ranks) {
        return true;
    }
    while (atomic_load(&call->all->done) < call->number) {
        sched_yield();
    }
    return false;
}

/* A rank that left before this call never enters it. */
static void blame_who_left(ferry_world *world, const entered_call *call)
{
    for (uint32_t r = 0; r < world->n_ranks; r++) {
        const fy_thread *other = &call->all->ranks[r];
        if (atomic_load(&other->left) && atomic_load(&other->entered) < call->number) {
            fy_world_fail(world, FERRY_ERR_PEER_LOST, r,
                          "rank %u has left the world, and rank %u waits for it", r, world->rank);
            return;
        }
    }
}

/* False if nobody is missing any more. */
static bool blame_who_is_late(ferry_world *world, const entered_call *call)
{
    const fy_thread *self = &call->all->ranks[world->rank];
    for (uint32_t r = 0; r < world->n_ranks; r++) {
        if (atomic_load(&call->all->ranks[r].entered) < call->number) {
            char text[FY_STEP_TEXT_BYTES];
            fy_step_format(&self->step, text);
            fy_world_fail(world, FERRY_ERR_TIMEOUT, r,
                          "rank %u has not entered %s, collective number %llu, for %g s", r, text,
                          (unsigned long long)call->number, (double)world->settings.entry_ns / 1e9);
            return true;
        }
    }
    return false;
}

static ferry_status wait_for_rest(ferry_world *world, entered_call *call, ferry_error *error)
{
    if (atomic_load(&call->all->n_left) > 0) {
        blame_who_left(world, call);
    }
    ferry_status status;
    do {
        status = fy_world_wait_on(world, &call->all->gate, is_done, NULL, call,
                                  world->settings.entry_ns, error);
    } while (status == FERRY_ERR_TIMEOUT && !fy_failed(world->failure) &&
             !blame_who_is_late(world, call));
    if (status != FERRY_OK && break_off(call)) {
        return fy_failure_get(world->failure, NULL, error);
    }
    return FERRY_OK;
}

static ferry_status meet(ferry_world *world, fy_collective kind, uint32_t root, const void *bytes,
                         size_t n_bytes, uint64_t *number_out, ferry_error *error)
{
    fy_threads *all = fy_threads_of(world);
    fy_thread *self = &all->ranks[world->rank];
    entered_call call = {.all = all, .number = atomic_load(&self->entered) + 1};
    self->step = (fy_step){.joint = fy_joint_now(world), .kind = kind, .root = root};
    self->bytes = bytes;
    self->n_bytes = n_bytes;
    atomic_store(&self->entered, call.number);
    uint64_t before = atomic_fetch_add(&all->arrivals, 1);
    if ((before & BROKEN) != 0) {
        return fy_failure_get(world->failure, NULL, error);
    }
    if (before + 1 == all->n_ranks) {
        finish(all, call.number);
    } else {
        FY_TRY(wait_for_rest(world, &call, error));
    }
    *number_out = call.number;
    if (all->outcome != FERRY_OK && all->odd != FERRY_ANY_RANK) {
        /* Some of them cannot say so themselves, such as a free: nothing fits together any more. */
        fy_world_fail(world, all->outcome, all->odd, "%s", all->sentence.message);
        return fy_failure_get(world->failure, NULL, error);
    }
    if (all->outcome != FERRY_OK) {
        return fy_forward(error, all->outcome, &all->sentence);
    }
    return FERRY_OK;
}

static ferry_status threads_barrier(ferry_world *world, ferry_error *error)
{
    uint64_t number;
    return meet(world, FY_BARRIER, 0, NULL, 0, &number, error);
}

static ferry_status threads_gather(ferry_world *world, fy_collective kind, uint32_t root,
                                   const void *bytes, size_t n_bytes, const void **all_out,
                                   const size_t **lengths_out, ferry_error *error)
{
    uint64_t number;
    FY_TRY(meet(world, kind, root, bytes, n_bytes, &number, error));
    const fy_threads_gathered *result = &fy_threads_of(world)->gathered[number % 2];
    *all_out = result->bytes;
    *lengths_out = result->lengths;
    return FERRY_OK;
}

/*
 * Failing and leaving
 */

static void ring_all(fy_threads *all)
{
    fy_bell_ring(&all->gate);
    for (uint32_t r = 0; r < all->n_ranks; r++) {
        fy_bell_ring(&all->ranks[r].bell);
    }
}

static void threads_spread_failure(ferry_world *world)
{
    ring_all(fy_threads_of(world));
}

static bool all_have_left(void *context)
{
    fy_threads *all = context;
    return atomic_load(&all->n_left) == all->n_ranks;
}

static bool somebody_waits_for(fy_threads *all, uint32_t rank)
{
    uint64_t entered = atomic_load(&all->ranks[rank].entered);
    for (uint32_t r = 0; r < all->n_ranks; r++) {
        if (atomic_load(&all->ranks[r].entered) > entered) {
            return true;
        }
    }
    return false;
}

static void release(fy_threads *all)
{
    if (all == NULL || atomic_fetch_sub(&all->references, 1) != 1) {
        return;
    }
    for (uint32_t r = 0; r < all->n_ranks; r++) {
        fy_mailbox_cleanup(&all->ranks[r].box);
        fy_activity_cleanup(&all->ranks[r].here);
    }
    for (int i = 0; i < 2; i++) {
        fy_free(all->gathered[i].bytes);
        fy_free(all->gathered[i].lengths);
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    fy_free(all);
}

static void threads_close(ferry_world *world)
{
    fy_thread_world *own = world->impl;
    fy_threads *all = own->all;
    atomic_store(&all->ranks[world->rank].left, true);
    atomic_fetch_add(&all->n_left, 1);
    if (somebody_waits_for(all, world->rank)) {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, world->rank,
                      "rank %u has left the world while others wait for it", world->rank);
    }
    /* Those that wait for a message from here, or for the last one to leave. */
    ring_all(all);
    pthread_mutex_lock(&all->lock);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    ferry_status status = fy_world_wait_on(world, &all->gate, all_have_left, NULL, all,
                                           world->settings.deadline_ns, NULL);
    /* The others may wait for what only this rank could do. */
    if (status == FERRY_ERR_TIMEOUT && !fy_failed(world->failure)) {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, world->rank, "rank %u has left the world",
                      world->rank);
    }
    fy_free(own->held);
    fy_free(own);
    release(all);
}

/*
 * Making
 */

static fy_bell *threads_bell_of(ferry_world *world, uint32_t rank)
{
    return &fy_threads_of(world)->ranks[rank].bell;
}

static int32_t threads_pid_of(ferry_world *world, uint32_t rank)
{
    return fy_world_same_node(world, rank) ? (int32_t)getpid() : 0;
}

static const fy_world_ops threads_ops = {
    .barrier = threads_barrier,
    .gather = threads_gather,
    .send = fy_threads_send,
    .receive = fy_threads_receive,
    .take = fy_threads_take,
    .forget = fy_threads_forget,
    .ask = fy_threads_ask,
    .spread_failure = threads_spread_failure,
    .shrink = fy_threads_shrink,
    .grow = fy_threads_grow,
    .close = threads_close,
};

static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* With one reference: the maker's. */
static fy_threads *new_threads(uint32_t n_ranks)
{
    fy_threads *all = fy_alloc_zeroed(1, sizeof *all + n_ranks * sizeof all->ranks[0]);
    if (all == NULL) {
        return NULL;
    }
    atomic_init(&all->references, 1);
    all->n_ranks = n_ranks;
    pthread_mutex_init(&all->lock, NULL);
    init_condition(&all->changed);
    for (uint32_t r = 0; r < n_ranks; r++) {
        fy_mailbox_init(&all->ranks[r].box);
        fy_activity_init(&all->ranks[r].here);
    }
    for (int i = 0; i < 2; i++) {
        all->gathered[i].lengths = fy_alloc_zeroed(n_ranks, sizeof(size_t));
        if (all->gathered[i].lengths == NULL) {
            release(all);
            return NULL;
        }
    }
    return all;
}

static ferry_status make_handle(const fy_threads_plan *plan, uint32_t rank, fy_threads *all,
                                ferry_world **world_out, ferry_error *error)
{
    fy_settings settings;
    ferry_world *world = NULL;
    fy_thread_world *own = NULL;
    FY_TRY(fy_settings_copy(plan->settings, &settings, error));
    ferry_status status = fy_world_new(rank, plan->n_ranks, &settings, &world, error);
    FY_THEN(status, fy_world_set_nodes(world, plan->node_ids, error));
    if (status == FERRY_OK && (own = fy_alloc_zeroed(1, sizeof *own)) == NULL) {
        status = fy_fail_no_memory(error, "a world of threads");
    }
    if (status != FERRY_OK) {
        fy_settings_cleanup(&settings);
        fy_world_free(world);
        return status;
    }
    atomic_fetch_add(&all->references, 1);
    own->all = all;
    world->ops = &threads_ops;
    world->impl = own;
    world->epoch = plan->epoch;
    world->failure = &all->failure;
    world->here = &all->ranks[rank].here;
    world->bell = &all->ranks[rank].bell;
    world->bell_of = threads_bell_of;
    world->pid_of = threads_pid_of;
    world->threads = true;
    fy_world_share_cores(world, plan->n_ranks);
    memcpy(world->members, plan->members, plan->n_ranks * sizeof *world->members);
    *world_out = world;
    return FERRY_OK;
}

void fy_threads_dispose(ferry_world **worlds, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        fy_threads *all = fy_threads_of(worlds[r]);
        fy_free(worlds[r]->impl);
        fy_world_free(worlds[r]);
        worlds[r] = NULL;
        release(all);
    }
}

ferry_status fy_threads_make(const fy_threads_plan *plan, ferry_world **worlds_out,
                             ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint32_t n_made = 0;
    fy_threads *all = new_threads(plan->n_ranks);
    FY_TRY(fy_check_memory(all != NULL, "a world of threads", error));
    while (n_made < plan->n_ranks && status == FERRY_OK) {
        status = make_handle(plan, n_made, all, &worlds_out[n_made], error);
        n_made += status == FERRY_OK;
    }
    if (status != FERRY_OK) {
        fy_threads_dispose(worlds_out, n_made);
    }
    release(all);
    return status;
}

static ferry_status create(uint32_t n_ranks, const fy_settings *settings, ferry_world **worlds,
                           ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint64_t *node_ids = fy_alloc_zeroed(n_ranks, sizeof *node_ids);
    uint32_t *members = fy_alloc(n_ranks, sizeof *members);
    if (node_ids == NULL || members == NULL) {
        status = fy_fail_no_memory(error, "a world of threads");
    }
    for (uint32_t r = 0; r < n_ranks && status == FERRY_OK; r++) {
        uint32_t node = 0;
        members[r] = r;
        if (settings->nodes != NULL) {
            status = fy_settings_fake_node(settings->nodes, r, n_ranks, &node, error);
        }
        node_ids[r] = node;
    }
    if (status == FERRY_OK) {
        fy_threads_plan plan = {
            .n_ranks = n_ranks, .settings = settings, .node_ids = node_ids, .members = members};
        status = fy_threads_make(&plan, worlds, error);
    }
    fy_free(node_ids);
    fy_free(members);
    return status;
}

ferry_status ferry_world_create_threads(uint32_t n_ranks, const ferry_world_options *options,
                                        ferry_world **worlds_out, ferry_error *error)
{
    if (n_ranks == 0 || worlds_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_world_create_threads needs at least one rank and places for the "
                       "worlds");
    }
    if (n_ranks > FY_MOST_THREADS) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "ferry_world_create_threads: %u ranks; a world of threads has at most %d",
                       n_ranks, (int)FY_MOST_THREADS);
    }
    fy_settings settings;
    FY_TRY(fy_settings_init(&settings, options, error));
    /* Outputs are set on success only. */
    ferry_world **worlds = fy_alloc_zeroed(n_ranks, sizeof(ferry_world *));
    ferry_status status = worlds == NULL ? fy_fail_no_memory(error, "a world of threads")
                                         : create(n_ranks, &settings, worlds, error);
    if (status == FERRY_OK) {
        memcpy(worlds_out, worlds, n_ranks * sizeof(ferry_world *));
    }
    fy_free(worlds);
    fy_settings_cleanup(&settings);
    return status;
}
