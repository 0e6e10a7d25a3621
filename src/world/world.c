/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/world.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/sort.h"

#include <stdio.h>
#include <string.h>

void fy_collective_format(uint32_t kind, uint32_t root, char text[FY_COLLECTIVE_TEXT_BYTES])
{
    switch (kind) {
    case FY_BARRIER:
        snprintf(text, FY_COLLECTIVE_TEXT_BYTES, "barrier");
        break;
    case FY_ALL_GATHER:
        snprintf(text, FY_COLLECTIVE_TEXT_BYTES, "all-gather");
        break;
    case FY_AGREEMENT:
        snprintf(text, FY_COLLECTIVE_TEXT_BYTES, "agreement");
        break;
    case FY_BROADCAST:
        snprintf(text, FY_COLLECTIVE_TEXT_BYTES,
                 root == FERRY_ANY_RANK ? "broadcast" : "broadcast from rank %u", root);
        break;
    default:
        snprintf(text, FY_COLLECTIVE_TEXT_BYTES, "collective of kind %u", kind);
        break;
    }
}

void fy_step_format(const fy_step *step, char text[FY_STEP_TEXT_BYTES])
{
    char call[FY_JOINT_TEXT_BYTES], kind[FY_COLLECTIVE_TEXT_BYTES];
    fy_joint_format(&step->joint, call);
    fy_collective_format(step->kind, step->root, kind);
    if (step->joint.call >= FY_N_JOINT_CALLS) {
        snprintf(text, FY_STEP_TEXT_BYTES, "%s", kind);
    } else if (step->joint.call == FY_JOINT_BROADCAST) {
        snprintf(text, FY_STEP_TEXT_BYTES, "ferry_world_broadcast (%s)", kind);
    } else {
        snprintf(text, FY_STEP_TEXT_BYTES, "%s", call);
    }
}

bool fy_step_equal(const fy_step *a, const fy_step *b)
{
    return a->kind == b->kind && a->root == b->root && fy_joint_equal(&a->joint, &b->joint);
}

void fy_steps_say(const fy_step *odd, uint32_t odd_rank, const fy_step *step, uint32_t rank,
                  char sentence[FERRY_ERROR_BYTES])
{
    char its[FY_STEP_TEXT_BYTES], own[FY_STEP_TEXT_BYTES];
    fy_step_format(odd, its);
    fy_step_format(step, own);
    bool one_call = strcmp(its, own) == 0;
    snprintf(sentence, FERRY_ERROR_BYTES,
             "rank %u is in %s where rank %u is in %s%s: " FY_SAME_CALLS, odd_rank, its, rank, own,
             one_call ? ", at another step of it" : "");
}

/*
 * Making and ending
 */

ferry_status fy_world_new(uint32_t rank, uint32_t n_ranks, fy_settings *settings,
                          ferry_world **world_out, ferry_error *error)
{
    ferry_world *world = fy_alloc_zeroed(1, sizeof *world);
    FY_TRY(fy_check_memory(world != NULL, "a world", error));
    atomic_init(&world->references, 1);
    pthread_mutex_init(&world->shrink_hook_lock, NULL);
    world->rank = rank;
    world->n_ranks = n_ranks;
    world->n_first = n_ranks;
    world->members = fy_alloc(n_ranks, sizeof *world->members);
    world->node_of = fy_alloc_zeroed(n_ranks, sizeof *world->node_of);
    world->may_live = fy_alloc_zeroed(n_ranks, sizeof *world->may_live);
    uint64_t *same_node = fy_alloc_zeroed(n_ranks, sizeof *same_node);
    if (world->members == NULL || world->node_of == NULL || world->may_live == NULL ||
        same_node == NULL || fy_world_set_nodes(world, same_node, NULL) != FERRY_OK) {
        fy_free(same_node);
        fy_world_free(world);
        return fy_fail_no_memory(error, "a world");
    }
    fy_free(same_node);
    for (uint32_t r = 0; r < n_ranks; r++) {
        world->members[r] = r;
    }
    world->here = &world->own_here;
    fy_activity_init(&world->own_here);
    world->settings = *settings;
    *settings = (fy_settings){0};
    fy_fork_enter(world);
    *world_out = world;
    return FERRY_OK;
}

void fy_world_free(ferry_world *world)
{
    if (world == NULL) {
        return;
    }
    fy_fork_leave(world);
    if (world->here != NULL) {
        fy_activity_cleanup(&world->own_here);
    }
    fy_free(world->members);
    fy_free(world->node_of);
    fy_free(world->local_ranks);
    fy_free(world->may_live);
    fy_settings_cleanup(&world->settings);
    pthread_mutex_destroy(&world->shrink_hook_lock);
    fy_free(world);
}

void fy_world_retain(ferry_world *world)
{
    atomic_fetch_add_explicit(&world->references, 1, memory_order_relaxed);
}

void ferry_world_destroy(ferry_world *world)
{
    /* Acquire-release: the last holder must see every write of the others before it frees. */
    if (world != NULL &&
        atomic_fetch_sub_explicit(&world->references, 1, memory_order_acq_rel) == 1) {
        if (!fy_world_is_inherited(world)) {
            world->ops->close(world);
        }
        fy_world_free(world);
    }
}

void ferry_world_leave(ferry_world *world, const char *reason)
{
    if (world == NULL || fy_world_is_inherited(world)) {
        return;
    }
    if (reason != NULL) {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, world->rank, "rank %u has left the world: %s",
                      world->rank, reason);
    } else if (world->ops->leave != NULL) {
        world->ops->leave(world);
    }
}

/*
 * Nodes
 */

typedef struct located_rank {
    uint64_t node_id;
    uint32_t rank;
} located_rank;

static int compare_located(const void *a, const void *b)
{
    const located_rank *x = a, *y = b;
    if (x->node_id != y->node_id) {
        return x->node_id < y->node_id ? -1 : 1;
    }
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* For every rank the lowest rank on its node, into lowest_out; scratch is of n_ranks. */
static void find_lowest(const uint64_t *node_ids, uint32_t n_ranks, located_rank *scratch,
                        uint32_t *lowest_out)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        scratch[r] = (located_rank){.node_id = node_ids[r], .rank = r};
    }
    fy_sort(scratch, n_ranks, sizeof *scratch, compare_located);
    uint32_t lowest = 0;
    for (uint32_t i = 0; i < n_ranks; i++) {
        if (i == 0 || scratch[i].node_id != scratch[i - 1].node_id) {
            lowest = scratch[i].rank;
        }
        lowest_out[scratch[i].rank] = lowest;
    }
}

static void count_local(ferry_world *world, const uint64_t *node_ids)
{
    world->n_local_ranks = 0;
    for (uint32_t r = 0; r < world->n_ranks; r++) {
        if (node_ids[r] == node_ids[world->rank]) {
            if (r == world->rank) {
                world->local_rank = world->n_local_ranks;
            }
            world->local_ranks[world->n_local_ranks++] = r;
        }
    }
}

ferry_status fy_world_set_nodes(ferry_world *world, const uint64_t *node_ids, ferry_error *error)
{
    uint32_t n_ranks = world->n_ranks;
    uint32_t *local_ranks = fy_realloc(world->local_ranks, n_ranks, sizeof *local_ranks);
    located_rank *scratch = fy_alloc(n_ranks, sizeof *scratch);
    world->local_ranks = local_ranks == NULL ? world->local_ranks : local_ranks;
    if (local_ranks == NULL || scratch == NULL) {
        fy_free(scratch);
        return fy_fail_no_memory(error, "the nodes of a world");
    }
    find_lowest(node_ids, n_ranks, scratch, world->node_of);
    fy_free(scratch);
    world->n_nodes = 0;
    /* A node's lowest rank comes first and turns from a rank into the node's number. */
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint32_t lowest = world->node_of[r];
        world->node_of[r] = lowest == r ? world->n_nodes++ : world->node_of[lowest];
    }
    count_local(world, node_ids);
    fy_world_share_cores(world, world->settings.nodes == NULL ? world->n_local_ranks : n_ranks);
    return FERRY_OK;
}

/*
 * Failing
 */

void fy_world_fail(ferry_world *world, ferry_status status, uint32_t rank, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool first = fy_failure_set_v(world->failure, status, rank, format, arguments);
    va_end(arguments);
    if (first) {
        world->ops->spread_failure(world);
        /* Who leaves knows it, and means it: only to others is it a loss. */
        bool leaves = status == FERRY_ERR_PEER_LOST && rank == world->rank;
        fy_log(leaves ? FERRY_LOG_INFO : FERRY_LOG_WARN,
               "the world has failed for rank %u of %u: %s", world->rank, world->n_ranks,
               world->failure->sentence);
    }
}

void ferry_world_abort(ferry_world *world, const char *reason)
{
    if (world != NULL) {
        fy_world_fail(world, FERRY_ERR_ABORTED, world->rank, "rank %u ended the world: %s",
                      world->rank, reason == NULL ? "it gave no reason" : reason);
    }
}

ferry_status ferry_world_state(ferry_world *world, uint32_t *rank_out, ferry_error *error)
{
    if (world == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_world_state needs a world");
    }
    return fy_failure_get(world->failure, rank_out, error);
}

bool fy_world_may_only_be_slow(ferry_world *world, uint32_t rank, int64_t silent_ns)
{
    enum { PATIENCE = 3 };
    if (silent_ns >= PATIENCE * world->settings.deadline_ns) {
        return false;
    }
    return world->ops->seems_to_run == NULL || world->ops->seems_to_run(world, rank);
}

/*
 * Numbers
 */

uint32_t ferry_world_rank(const ferry_world *world)
{
    return world == NULL ? UINT32_MAX : world->rank;
}

uint32_t ferry_world_rank_count(const ferry_world *world)
{
    return world == NULL ? 0 : world->n_ranks;
}

double ferry_world_deadline(const ferry_world *world)
{
    return world == NULL ? 0 : (double)world->settings.deadline_ns / 1e9;
}

uint32_t ferry_world_epoch(const ferry_world *world)
{
    return world == NULL ? 0 : world->epoch;
}

uint32_t ferry_world_member_of(const ferry_world *world, uint32_t rank)
{
    return world == NULL || rank >= world->n_ranks ? UINT32_MAX : world->members[rank];
}

uint32_t ferry_world_node_count(const ferry_world *world)
{
    return world == NULL ? 0 : world->n_nodes;
}

uint32_t ferry_world_node_of(const ferry_world *world, uint32_t rank)
{
    return world == NULL || rank >= world->n_ranks ? UINT32_MAX : world->node_of[rank];
}

uint32_t ferry_world_local_rank(const ferry_world *world)
{
    return world == NULL ? UINT32_MAX : world->local_rank;
}

uint32_t ferry_world_local_rank_count(const ferry_world *world)
{
    return world == NULL ? 0 : world->n_local_ranks;
}
