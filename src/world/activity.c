/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/activity.h"

#include "base/hash.h"
#include "world/wire.h"
#include "world/world.h"

#include <stdio.h>

static const struct {
    const char *name;
    fy_object_kind on;
} calls[] = {
    [FY_JOINT_START] = {"the start", FY_OBJECT_NONE},
    [FY_JOINT_BARRIER] = {"ferry_world_barrier", FY_OBJECT_NONE},
    [FY_JOINT_ALL_GATHER] = {"ferry_world_all_gather", FY_OBJECT_NONE},
    [FY_JOINT_ALL_GATHER_V] = {"ferry_world_all_gather_v", FY_OBJECT_NONE},
    [FY_JOINT_BROADCAST] = {"ferry_world_broadcast", FY_OBJECT_NONE},
    [FY_JOINT_SHRINK] = {"ferry_world_shrink", FY_OBJECT_NONE},
    [FY_JOINT_GROW] = {"ferry_world_grow", FY_OBJECT_NONE},
    [FY_JOINT_TRANSPORT_OPEN] = {"ferry_transport_open", FY_OBJECT_NONE},
    [FY_JOINT_REGION_ALLOC] = {"ferry_region_alloc", FY_OBJECT_TRANSPORT},
    [FY_JOINT_REGION_FREE] = {"ferry_region_free", FY_OBJECT_TRANSPORT},
    [FY_JOINT_SERVICE_INIT] = {"ferry_service_init", FY_OBJECT_NONE},
    [FY_JOINT_SERVICE_SCHEDULE] = {"ferry_service_schedule", FY_OBJECT_SERVICE},
    [FY_JOINT_SERVICE_REBIND] = {"ferry_service_rebind", FY_OBJECT_SERVICE},
    [FY_JOINT_SERVICE_RECOVER] = {"ferry_service_recover", FY_OBJECT_NONE},
    [FY_JOINT_SERVICE_RECOVER_ONTO] = {"ferry_service_recover_onto", FY_OBJECT_NONE},
    [FY_JOINT_SERVICE_RUN] = {"ferry_service_run", FY_OBJECT_SERVICE},
    [FY_JOINT_SERVICE_FINALIZE] = {"ferry_service_finalize", FY_OBJECT_SERVICE},
    [FY_JOINT_MIXED_CREATE] = {"ferry_mixed_comm_create", FY_OBJECT_NONE},
    [FY_JOINT_MIXED_INIT_VIRTUAL_MEMORY] = {"ferry_mixed_comm_init_virtual_memory",
                                            FY_OBJECT_MIXED},
    [FY_JOINT_MIXED_INIT_NVSHMEM] = {"ferry_mixed_comm_init_nvshmem", FY_OBJECT_MIXED},
    [FY_JOINT_MIXED_AUTOTUNE] = {"ferry_mixed_comm_run_autotune", FY_OBJECT_MIXED},
    [FY_JOINT_MIXED_RUN] = {"ferry_mixed_comm_run", FY_OBJECT_MIXED},
    [FY_JOINT_MIXED_SHUTDOWN] = {"ferry_mixed_comm_shutdown", FY_OBJECT_MIXED},
};
_Static_assert(sizeof calls / sizeof calls[0] == FY_N_JOINT_CALLS, "a name for each call");

static const char *const objects[] = {"", "transport", "service", "mixed collective"};

void fy_joint_format(const fy_joint *joint, char text[FY_JOINT_TEXT_BYTES])
{
    if (joint->call >= FY_N_JOINT_CALLS) {
        snprintf(text, FY_JOINT_TEXT_BYTES, "no joint call");
        return;
    }
    fy_object_kind on = calls[joint->call].on;
    uint32_t number = (uint32_t)(joint->object >> 32);
    uint32_t part = (uint32_t)joint->object;
    if (on == FY_OBJECT_NONE || number == 0) {
        snprintf(text, FY_JOINT_TEXT_BYTES, "%s", calls[joint->call].name);
    } else if (joint->call == FY_JOINT_REGION_FREE && part != 0) {
        snprintf(text, FY_JOINT_TEXT_BYTES, "%s of region %u of %s %u", calls[joint->call].name,
                 part / 2, objects[on], number);
    } else {
        snprintf(text, FY_JOINT_TEXT_BYTES, "%s of %s %u", calls[joint->call].name, objects[on],
                 number);
    }
}

void fy_activity_init(fy_activity *here)
{
    pthread_mutex_init(&here->lock, NULL);
    pthread_mutex_init(&here->stepping, NULL);
    here->outer.call = FY_N_JOINT_CALLS;
}

void fy_activity_cleanup(fy_activity *here)
{
    pthread_mutex_destroy(&here->lock);
    pthread_mutex_destroy(&here->stepping);
}

/*
 * Joint calls. Only the thread that uses the world makes them; others may look.
 */

void fy_joint_enter(ferry_world *world, fy_joint_call call, uint64_t object)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    uint32_t before = here->depth == 0 ? 0 : here->outer.path;
    if (here->depth == 0) {
        here->outer.call = (uint32_t)call;
        here->outer.object = object;
    }
    if (here->depth < FY_MOST_NESTED) {
        here->paths[here->depth] = before;
    }
    here->depth++;
    uint64_t mixed = fy_hash_mix((uint64_t)before << 32 | (uint32_t)call, object);
    here->outer.path = (uint32_t)(mixed ^ mixed >> 32);
    pthread_mutex_unlock(&here->lock);
}

void fy_joint_leave(ferry_world *world)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    here->depth--;
    if (here->depth == 0) {
        here->outer = (fy_joint){.call = FY_N_JOINT_CALLS};
    } else if (here->depth < FY_MOST_NESTED) {
        here->outer.path = here->paths[here->depth];
    }
    pthread_mutex_unlock(&here->lock);
}

fy_joint fy_joint_now(ferry_world *world)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    fy_joint now = here->outer;
    pthread_mutex_unlock(&here->lock);
    return now;
}

uint64_t fy_exchange_begin(ferry_world *world)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    uint64_t number = ++here->n_exchanges;
    here->in_exchange = true;
    pthread_mutex_unlock(&here->lock);
    return number;
}

void fy_exchange_end(ferry_world *world)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    here->in_exchange = false;
    pthread_mutex_unlock(&here->lock);
}

/*
 * Objects and their runs
 */

uint32_t fy_object_propose(ferry_world *world, fy_object_kind kind)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    uint32_t number = here->next[kind] + 1;
    pthread_mutex_unlock(&here->lock);
    return number;
}

void fy_object_settle(ferry_world *world, fy_object_kind kind, uint32_t number)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    here->next[kind] = number > here->next[kind] ? number : here->next[kind];
    pthread_mutex_unlock(&here->lock);
}

void fy_work_add(ferry_world *world, fy_work *work, uint32_t number)
{
    fy_activity *here = world->here;
    fy_object_settle(world, work->kind, number);
    pthread_mutex_lock(&here->stepping);
    pthread_mutex_lock(&here->lock);
    work->number = number;
    work->next = here->works;
    here->works = work;
    pthread_mutex_unlock(&here->lock);
    pthread_mutex_unlock(&here->stepping);
}

static uint64_t begun_of(const fy_work *work)
{
    return work->is_broken ? UINT64_MAX : work->begun;
}

static void remember(fy_activity *here, const fy_work *work)
{
    here->ended[here->n_ended++ % FY_MOST_ENDED] =
        (fy_ended){.kind = (uint32_t)work->kind, .number = work->number, .begun = begun_of(work)};
}

/* Letters of an object; of one that has ended no more come: see fy_letter_is_late. */
static void forget_letters(ferry_world *world, const fy_work *work)
{
    for (uint32_t use = FY_LETTER_VOTE; use < FY_N_LETTER_USES; use++) {
        world->ops->forget(world, fy_letter_tag(use, work->kind, work->number, 0),
                           fy_letter_tag(use, work->kind, work->number, UINT32_MAX));
    }
}

void fy_work_remove(ferry_world *world, fy_work *work)
{
    fy_activity *here = world->here;
    if (work->number == 0) {
        return;
    }
    pthread_mutex_lock(&here->stepping);
    pthread_mutex_lock(&here->lock);
    for (fy_work **at = &here->works; *at != NULL; at = &(*at)->next) {
        if (*at == work) {
            *at = work->next;
            remember(here, work);
            break;
        }
    }
    pthread_mutex_unlock(&here->lock);
    pthread_mutex_unlock(&here->stepping);
    forget_letters(world, work);
    work->number = 0;
}

void fy_work_begin(ferry_world *world, fy_work *work, uint64_t run)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    work->begun = run;
    work->begun_ns = fy_now_ns();
    atomic_store_explicit(&work->active_ns, work->begun_ns, memory_order_relaxed);
    pthread_mutex_unlock(&here->lock);
}

void fy_work_break(ferry_world *world, fy_work *work)
{
    pthread_mutex_lock(&world->here->lock);
    work->is_broken = true;
    pthread_mutex_unlock(&world->here->lock);
}

void fy_work_over(ferry_world *world, fy_work *work)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    work->over = work->begun;
    pthread_mutex_unlock(&here->lock);
}

void fy_work_block(ferry_world *world, fy_work *work, fy_joint_call call)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    work->n_blocked++;
    work->blocked_in = call;
    pthread_mutex_unlock(&here->lock);
}

void fy_work_unblock(ferry_world *world, fy_work *work)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    work->n_blocked--;
    pthread_mutex_unlock(&here->lock);
}

void fy_work_start(ferry_world *world, fy_work *work, bool is_started)
{
    fy_activity *here = world->here;
    pthread_mutex_lock(&here->lock);
    if (work->is_started != is_started) {
        work->is_started = is_started;
        atomic_fetch_add(&here->n_started, is_started ? 1u : UINT32_MAX);
    }
    pthread_mutex_unlock(&here->lock);
}

/*
 * Started runs are moved on by every wait of the world and by tests of other runs, so that no order
 * of waits and tests keeps one from another; each for a moment at a time, however much there is to
 * do, for peers in the others would take this rank for stuck. Who waits within a step, or beside
 * another thread that moves them, leaves it at that.
 */
enum { MOVE_NS = 1000 * 1000 };

void fy_works_move(ferry_world *world)
{
    fy_activity *here = world->here;
    if (atomic_load_explicit(&here->n_started, memory_order_relaxed) == 0 ||
        pthread_mutex_trylock(&here->stepping) != 0) {
        return;
    }
    for (fy_work *work = here->works; work != NULL; work = work->next) {
        if (work->step != NULL) {
            work->step(work->context, fy_now_ns() + MOVE_NS);
        }
    }
    pthread_mutex_unlock(&here->stepping);
}

void fy_works_share(ferry_world *world, int64_t *shared_ns_inout)
{
    bool any = atomic_load_explicit(&world->here->n_started, memory_order_relaxed) != 0;
    if (any && fy_now_ns() - *shared_ns_inout > MOVE_NS) {
        fy_works_move(world);
        *shared_ns_inout = fy_now_ns();
    }
}

int64_t fy_works_sleep_ns(ferry_world *world)
{
    fy_activity *here = world->here;
    int64_t least = INT64_MAX;
    if (atomic_load_explicit(&here->n_started, memory_order_relaxed) == 0 ||
        pthread_mutex_trylock(&here->stepping) != 0) {
        return least;
    }
    for (fy_work *work = here->works; work != NULL; work = work->next) {
        int64_t its = work->sleep_ns == NULL ? INT64_MAX : work->sleep_ns(work->context);
        least = its < least ? its : least;
    }
    pthread_mutex_unlock(&here->stepping);
    return least;
}

/*
 * Answers
 */

static const fy_work *find_work(const fy_activity *here, uint32_t kind, uint32_t number)
{
    for (const fy_work *work = here->works; work != NULL; work = work->next) {
        if ((uint32_t)work->kind == kind && work->number == number) {
            return work;
        }
    }
    return NULL;
}

/* How many runs it had begun when it ended; false: it has not ended, as far as is known. */
static bool find_ended(const fy_activity *here, uint32_t kind, uint32_t number, uint64_t *begun_out)
{
    uint64_t n = here->n_ended < FY_MOST_ENDED ? here->n_ended : FY_MOST_ENDED;
    for (uint64_t i = 0; i < n; i++) {
        if (here->ended[i].kind == kind && here->ended[i].number == number) {
            *begun_out = here->ended[i].begun;
            return true;
        }
    }
    return false;
}

static void answer_run(const fy_activity *here, const fy_question *question, int64_t awake_ns,
                       fy_answer *answer)
{
    const fy_work *work = find_work(here, question->kind, question->number);
    uint64_t begun = 0;
    int64_t now_ns = fy_now_ns();
    if (work == NULL) {
        answer->ended = find_ended(here, question->kind, question->number, &begun);
        answer->begun = answer->over = begun >= question->run;
        return;
    }
    int64_t active_ns = atomic_load_explicit(&work->active_ns, memory_order_relaxed);
    active_ns = active_ns > awake_ns ? active_ns : awake_ns;
    answer->begun = begun_of(work) >= question->run;
    answer->over = work->over >= question->run;
    answer->age_ns = now_ns > active_ns ? now_ns - active_ns : 0;
    answer->since_ns = now_ns - work->begun_ns;
}

static void answer_blocked(const fy_activity *here, fy_answer *answer)
{
    if (here->in_exchange) {
        answer->blocked = true;
        answer->run = here->n_exchanges;
        answer->joint = here->outer;
        return;
    }
    for (const fy_work *work = here->works; work != NULL; work = work->next) {
        if (work->n_blocked > 0 && !work->is_broken) {
            answer->blocked = true;
            answer->kind = (uint32_t)work->kind;
            answer->number = work->number;
            answer->run = work->begun;
            answer->joint = (fy_joint){.call = (uint32_t)work->blocked_in,
                                       .object = fy_joint_object(work->number, work->begun)};
            return;
        }
    }
    answer->joint = here->outer;
}

void fy_answer_make(fy_activity *here, const fy_question *question, bool leaves, int64_t awake_ns,
                    fy_answer *answer_out)
{
    *answer_out = (fy_answer){.leaves = leaves};
    answer_out->joint.call = FY_N_JOINT_CALLS;
    pthread_mutex_lock(&here->lock);
    answer_out->n_exchanges = here->n_exchanges;
    if (question->kind == FY_OBJECT_NONE) {
        answer_out->begun = here->n_exchanges >= question->run;
        answer_out->over = here->n_exchanges > question->run ||
                           (here->n_exchanges == question->run && !here->in_exchange);
    } else {
        answer_run(here, question, awake_ns, answer_out);
    }
    answer_blocked(here, answer_out);
    pthread_mutex_unlock(&here->lock);
}

enum { IS_BEGUN = 1, IS_OVER = 2, HAS_ENDED = 4, LEAVES = 8, IS_BLOCKED = 16 };

void fy_answer_pack(const fy_answer *answer, unsigned char bytes[FY_ANSWER_BYTES])
{
    fy_pack packer = fy_pack_into(bytes, FY_ANSWER_BYTES);
    fy_pack_u32(&packer, (answer->begun ? (uint32_t)IS_BEGUN : 0) |
                             (answer->over ? (uint32_t)IS_OVER : 0) |
                             (answer->ended ? (uint32_t)HAS_ENDED : 0) |
                             (answer->leaves ? (uint32_t)LEAVES : 0) |
                             (answer->blocked ? (uint32_t)IS_BLOCKED : 0));
    fy_pack_u32(&packer, answer->kind);
    fy_pack_u64(&packer, (uint64_t)answer->age_ns);
    fy_pack_u64(&packer, (uint64_t)answer->since_ns);
    fy_pack_u64(&packer, answer->n_exchanges);
    fy_pack_u32(&packer, answer->number);
    fy_pack_u32(&packer, answer->joint.call);
    fy_pack_u64(&packer, answer->run);
    fy_pack_u32(&packer, answer->joint.path);
    fy_pack_u32(&packer, 0);
    fy_pack_u64(&packer, answer->joint.object);
    fy_pack_u64(&packer, 0);
}

bool fy_answer_read(const unsigned char *bytes, size_t n_bytes, fy_answer *answer_out)
{
    fy_reader reader = fy_reader_of(bytes, n_bytes);
    uint32_t flags = fy_read_u32(&reader);
    *answer_out = (fy_answer){.begun = (flags & IS_BEGUN) != 0,
                              .over = (flags & IS_OVER) != 0,
                              .ended = (flags & HAS_ENDED) != 0,
                              .leaves = (flags & LEAVES) != 0,
                              .blocked = (flags & IS_BLOCKED) != 0};

    answer_out->kind = fy_read_u32(&reader);
    answer_out->age_ns = (int64_t)fy_read_u64(&reader);
    answer_out->since_ns = (int64_t)fy_read_u64(&reader);
    answer_out->n_exchanges = fy_read_u64(&reader);
    answer_out->number = fy_read_u32(&reader);
    answer_out->joint.call = fy_read_u32(&reader);
    answer_out->run = fy_read_u64(&reader);
    answer_out->joint.path = fy_read_u32(&reader);
    fy_read_u32(&reader);
    answer_out->joint.object = fy_read_u64(&reader);
    fy_read_u64(&reader);
    return fy_read_all(&reader) && answer_out->age_ns >= 0 && answer_out->since_ns >= 0;
}

bool fy_answer_blocks(fy_activity *here, const fy_answer *answer)
{
    if (!answer->blocked) {
        return false;
    }
    pthread_mutex_lock(&here->lock);
    bool begun;
    if (answer->kind == FY_OBJECT_NONE) {
        begun = here->n_exchanges >= answer->run;
    } else {
        const fy_work *work = find_work(here, answer->kind, answer->number);
        uint64_t n = work != NULL ? begun_of(work) : 0;
        if (work == NULL) {
            find_ended(here, answer->kind, answer->number, &n);
        }
        begun = n >= answer->run;
    }
    pthread_mutex_unlock(&here->lock);
    return !begun;
}

bool fy_letter_is_late(fy_activity *here, uint64_t tag)
{
    uint32_t kind, number;
    uint64_t begun;
    if (!fy_letter_object(tag, &kind, &number)) {
        return false;
    }
    pthread_mutex_lock(&here->lock);
    bool is_late = find_work(here, kind, number) == NULL && find_ended(here, kind, number, &begun);
    pthread_mutex_unlock(&here->lock);
    return is_late;
}
