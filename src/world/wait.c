/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/world.h"

#include <sched.h>
#include <unistd.h>

/*
 * A rank waits in three steps. It spins for as long as a peer on another core needs to answer; with
 * more ranks than cores that peer may need this very core, so it does not spin at all. Then it
 * yields: on a free core that is spinning, on a shared one it hands the core to those that it waits
 * for. At last it sleeps. Measured on two cores: a barrier of 16 ranks takes 10 us with yields, 45
 * without; and spinning for 50 us costs as much each time when the kernel has put both ranks on one
 * core, which happens whenever somebody else is busy.
 */
enum { SPIN_NS = 2000, SPIN_CROWDED_NS = 0, YIELD_NS = 200000 };

/*
 * Who yields to a stranger that computes waits for the end of its time slice, but a sleeper is
 * woken ahead of it. So a yield that takes so long is the last one for a while: for a short one,
 * since it may have been a peer at the start of its work, and for a longer one when that happens
 * again soon after. The longer one is short too, and costs one time slice of every twenty or so
 * where there are strangers: with eight ranks on two cores a call takes four times as long while
 * some of them sleep. Where ranks share cores it may be a peer that computed, which this rank had
 * to wait for anyway: that is so as long as what it waits for has not come. And three peers that
 * add up half a megabyte each take about half a millisecond, so there only what takes nearly a
 * time slice is a stranger's. With Linux 6.18 and 250 ticks a second that is 4 ms; where it is less
 * than this, strangers cost a slice each time. Measured with eight ranks on two cores, 6 rounds of
 * 5 batches of 10 ms: an all-gather of 512 KiB took 0.97 ms in the middle and 1.70 in the upper
 * quarter, and takes 0.80 and 0.82. Beside one and two strangers nothing changed, but with a limit
 * of 8 ms calls took three to ten times as long there.
 */
enum {
    LONG_YIELD_NS = 500000,
    LONG_YIELD_CROWDED_NS = 1800000,
    NO_YIELDS_NS = 16000000,
    NO_YIELDS_AGAIN_NS = 64000000
};

void fy_world_share_cores(ferry_world *world, uint32_t n_ranks_here)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    /* More cores than fit into the set are plenty. */
    bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
    int n = known ? CPU_COUNT(&cores) : 0;
    /* A rank that is bound to one core says nothing about the others': each may have its own. */
    long n_cores = n > 1 ? n : sysconf(_SC_NPROCESSORS_ONLN);
    bool is_crowded = n_cores > 0 && n_ranks_here > (uint32_t)n_cores;
    world->ranks_per_core = is_crowded ? n_ranks_here / (uint32_t)n_cores : 1;
    world->spin_ns = is_crowded ? SPIN_CROWDED_NS : SPIN_NS;
}

/* Looks at the clock cost about as much as so many looks at memory. */
enum { LOOKS_PER_CLOCK = 8 };

/*
 * No sleep lasts longer, rung or not: a peer in another process can be killed between changing
 * memory and ringing, and what it had changed may be all that this rank waits for.
 */
static const int64_t LONGEST_SLEEP_NS = 1000000000;

typedef struct wait_state {
    ferry_world *world;
    fy_bell *bell;
    fy_ready_fn ready;
    fy_sleep_fn sleep_ns;
    void *context;
    int64_t begin_ns;
    int64_t limit_ns;
} wait_state;

typedef enum outcome { WAITING, READY, FAILED, TOO_LATE, STOPPED } outcome;

static outcome look(const wait_state *wait)
{
    if (wait->ready(wait->context)) {
        return READY;
    }
    fy_works_move(wait->world);
    return fy_failed(wait->world->failure) ? FAILED : WAITING;
}

/* Time that is left; negative means forever. */
static int64_t time_left(const wait_state *wait)
{
    if (wait->limit_ns < 0) {
        return -1;
    }
    int64_t passed = fy_now_ns() - wait->begin_ns;
    return passed < wait->limit_ns ? wait->limit_ns - passed : 0;
}

static outcome spin(const wait_state *wait)
{
    for (;;) {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            outcome now = look(wait);
            if (now != WAITING) {
                return now;
            }
            fy_pause();
        }
        int64_t passed = fy_now_ns() - wait->begin_ns;
        if (wait->limit_ns >= 0 && passed >= wait->limit_ns) {
            return TOO_LATE;
        }
        if (passed >= wait->world->spin_ns) {
            return WAITING;
        }
    }
}

/* How long after a long yield, which began then: yields that were fine for a while are forgiven. */
static int64_t next_pause_ns(const ferry_world *world, int64_t began_ns)
{
    int64_t from_ns = atomic_load_explicit(&world->yields_from_ns, memory_order_relaxed);
    int64_t pause_ns = atomic_load_explicit(&world->no_yields_ns, memory_order_relaxed);
    bool is_again = pause_ns != 0 && began_ns - from_ns <= pause_ns;
    return is_again ? NO_YIELDS_AGAIN_NS : NO_YIELDS_NS;
}

static void stop_yielding(ferry_world *world, int64_t began_ns, int64_t now_ns)
{
    int64_t pause_ns = next_pause_ns(world, began_ns);
    atomic_store_explicit(&world->no_yields_ns, pause_ns, memory_order_relaxed);
    atomic_store_explicit(&world->yields_from_ns, now_ns + pause_ns, memory_order_relaxed);
}

void fy_world_forgive_yields(ferry_world *world)
{
    atomic_store_explicit(&world->no_yields_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&world->yields_from_ns, 0, memory_order_relaxed);
}

static outcome yield(const wait_state *wait)
{
    _Atomic int64_t *yields_from_ns = &wait->world->yields_from_ns;
    bool shares_cores = wait->world->spin_ns == 0;
    int64_t long_ns = shares_cores ? LONG_YIELD_CROWDED_NS : LONG_YIELD_NS;
    int64_t now_ns = fy_now_ns();
    int64_t end_ns = now_ns + YIELD_NS;
    if (now_ns < atomic_load_explicit(yields_from_ns, memory_order_relaxed)) {
        return WAITING;
    }
    do {
        int64_t before_ns = now_ns;
        sched_yield();
        now_ns = fy_now_ns();
        outcome now = look(wait);
        bool was_in_time = shares_cores && now == WAITING;
        if (now_ns - before_ns > long_ns && !was_in_time) {
            stop_yielding(wait->world, before_ns, now_ns);
        }
        if (now != WAITING) {
            return now;
        }
    } while (now_ns < end_ns);
    return WAITING;
}

/* Only while the world is made: nobody else can have asked for it. */
static fy_interrupt *interrupt_of(const ferry_world *world)
{
    return world->is_being_made ? world->settings.interrupt : NULL;
}

/* How long started runs may be left alone. What moves them on rings this rank's own bell. */
static int64_t started_ns(const wait_state *wait)
{
    enum { OTHER_BELL_NS = 1000000 };
    int64_t sleep_ns = fy_works_sleep_ns(wait->world);
    bool is_own = wait->bell == wait->world->bell;
    return sleep_ns == INT64_MAX || is_own || sleep_ns < OTHER_BELL_NS ? sleep_ns
                                                                       : (int64_t)OTHER_BELL_NS;
}

static outcome sleep_once(const wait_state *wait)
{
    fy_interrupt *interrupt = interrupt_of(wait->world);
    if (fy_interrupted(interrupt)) {
        return STOPPED;
    }
    int64_t most = wait->sleep_ns == NULL ? INT64_MAX : wait->sleep_ns(wait->context);
    int64_t left = time_left(wait);
    int64_t runs = started_ns(wait);
    most = runs < most ? runs : most;
    if (left == 0) {
        return look(wait) == READY ? READY : TOO_LATE;
    }
    if (most <= 0) {
        sched_yield();
        return look(wait);
    }
    most = most > LONGEST_SLEEP_NS ? LONGEST_SLEEP_NS : most;
    most = left >= 0 && left < most ? left : most;
    most = fy_interrupt_slice_ns(interrupt, most);
    uint32_t seen = fy_bell_announce(wait->bell);
    outcome now = look(wait);
    if (now == WAITING) {
        fy_bell_sleep(wait->bell, seen, most);
    }
    fy_bell_withdraw(wait->bell);
    return now == WAITING ? look(wait) : now;
}

ferry_status fy_world_wait_on(ferry_world *world, fy_bell *bell, fy_ready_fn ready,
                              fy_sleep_fn sleep_ns, void *context, int64_t limit_ns,
                              ferry_error *error)
{
    wait_state wait = {.world = world,
                       .bell = bell,
                       .ready = ready,
                       .sleep_ns = sleep_ns,
                       .context = context,
                       .limit_ns = limit_ns};

    outcome now = look(&wait);
    if (now == WAITING) {
        wait.begin_ns = fy_now_ns();
        now = world->spin_ns > 0 ? spin(&wait) : WAITING;
    }
    if (now == WAITING) {
        now = yield(&wait);
    }
    while (now == WAITING) {
        now = sleep_once(&wait);
    }
    if (now == FAILED) {
        return fy_failure_get(world->failure, NULL, error);
    }
    if (now == STOPPED) {
        return fy_interrupt_fail(error);
    }
    return now == READY ? FERRY_OK : FERRY_ERR_TIMEOUT;
}

ferry_status fy_world_wait(ferry_world *world, fy_ready_fn ready, fy_sleep_fn sleep_ns,
                           void *context, int64_t limit_ns, ferry_error *error)
{
    return fy_world_wait_on(world, world->bell, ready, sleep_ns, context, limit_ns, error);
}
