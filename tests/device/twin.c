/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/twin.h"

#include "memory/cuda/kernels.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

_Thread_local fy_twin_at fy_twin_place;
void *(*twin_look_up)(uint64_t at, uint32_t bytes, int writes);
uint32_t (*twin_look_up_all)(uint64_t at, uint32_t bytes, void *places[TWIN_MOST_PLACES]);
_Thread_local int twin_device;
bool (*twin_is_lost)(int device);
bool (*twin_is_of_fleet)(uint64_t at);

static _Thread_local jmp_buf out;
static _Thread_local twin_end end;

static const twin_kernel kernels[] = {
#define PLAIN(kernel, type) {#kernel, sizeof(type), kernel##_run, false},
#define MEETING(kernel, type) {#kernel, sizeof(type), kernel##_run, true},
    FY_CUDA_PLAIN_KERNELS(PLAIN) FY_CUDA_MEETING_KERNELS(MEETING)
#undef PLAIN
#undef MEETING
};

const twin_kernel *twin_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return &kernels[i];
        }
    }
    return NULL;
}

/* How often the block has read a word of others, and had when its threads have settled last. */
enum { MOST_THREADS = 64 };
static _Thread_local uint64_t n_acquired, settled[MOST_THREADS];

void fy_twin_acquired(void)
{
    n_acquired++;
}

static void check_settled(void)
{
    if (settled[fy_twin_place.thread % MOST_THREADS] != n_acquired) {
        end = TWIN_UNSETTLED;
        longjmp(out, 1);
    }
}

void *fy_twin_reach(uint64_t at, uint32_t bytes, int writes)
{
    if (at % bytes != 0) {
        end = TWIN_MISALIGNED;
        longjmp(out, 1);
    }
    bool (*is_of_fleet)(uint64_t at) = __atomic_load_n(&twin_is_of_fleet, __ATOMIC_ACQUIRE);
    if (writes == 0 && is_of_fleet != NULL && is_of_fleet(at)) {
        check_settled();
    }
    void *found = twin_look_up != NULL ? twin_look_up(at, bytes, writes) : (void *)(uintptr_t)at;
    if (found == NULL) {
        end = TWIN_OUTSIDE;
        longjmp(out, 1);
    }
    return found;
}

/*
 * Memory of a fleet
 */

/* A store that no other thread sees yet. */
typedef struct late_store {
    uint64_t at;
    uint32_t bytes, thread;
    unsigned char value[16];
} late_store;

static _Thread_local late_store *late;
static _Thread_local size_t n_late, late_room;

static uint32_t reach_all(uint64_t at, uint32_t bytes, void *places[TWIN_MOST_PLACES])
{
    uint32_t n = twin_look_up_all != NULL ? twin_look_up_all(at, bytes, places) : 0;
    if (at % bytes != 0 || n == 0) {
        end = n == 0 ? TWIN_OUTSIDE : TWIN_MISALIGNED;
        longjmp(out, 1);
    }
    return n;
}

void fy_twin_store_all(uint64_t at, uint32_t bytes, const void *v)
{
    void *places[TWIN_MOST_PLACES];
    (void)reach_all(at, bytes, places);
    if (n_late == late_room) {
        late_room = late_room == 0 ? 64 : 2 * late_room;
        late = realloc(late, late_room * sizeof *late);
        if (late == NULL) {
            abort();
        }
    }
    late[n_late] = (late_store){.at = at, .bytes = bytes, .thread = fy_twin_place.thread};
    memcpy(late[n_late++].value, v, bytes);
}

/* Those of this thread, or of all. */
static void settle(bool all)
{
    size_t n_left = 0;
    for (size_t i = 0; i < n_late; i++) {
        if (!all && late[i].thread != fy_twin_place.thread) {
            late[n_left++] = late[i];
            continue;
        }
        void *places[TWIN_MOST_PLACES];
        uint32_t n = reach_all(late[i].at, late[i].bytes, places);
        for (uint32_t k = 0; k < n; k++) {
            memcpy(places[k], late[i].value, late[i].bytes);
        }
    }
    n_late = n_left;
}

void fy_twin_settle(void)
{
    settle(false);
    settled[fy_twin_place.thread % MOST_THREADS] = n_acquired;
}

void fy_twin_sum(uint64_t at, uint32_t bytes, int type, void *v_out)
{
    static _Thread_local uint32_t n_sums;
    static const uint32_t types[] = {
        [FY_TWIN_F32] = FY_CUDA_F32, [FY_TWIN_F16] = FY_CUDA_F16, [FY_TWIN_BF16] = FY_CUDA_BF16};
    void *places[TWIN_MOST_PLACES];
    check_settled();
    uint32_t n = reach_all(at, bytes, places), step = bytes_of(types[type]), first = n_sums++ % n;
    for (uint32_t i = 0; i < bytes; i += step) {
        float sum = -0.0f; /* it changes nothing, not even a sum of such zeros */
        uint32_t bits = 0;
        for (uint32_t k = 0; k < n; k++) {
            memcpy(&bits, (const char *)places[(first + k) % n] + i, step);
            sum += widen_one(types[type], bits);
        }
        bits = narrow_one(types[type], sum);
        memcpy((char *)v_out + i, &bits, step);
    }
}

uint64_t fy_twin_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void fy_twin_pause(void)
{
    struct timespec moment = {.tv_nsec = 20000};
    nanosleep(&moment, NULL);
    if (twin_is_lost != NULL && twin_is_lost(twin_device)) {
        end = TWIN_LOST;
        longjmp(out, 1);
    }
}

/* A block of a kernel that meets, and its threads. */
enum { STACK_BYTES = 256 << 10 };

typedef struct turn {
    ucontext_t context;
    bool is_over;
} turn;

typedef struct meeting {
    pthread_t thread;
    bool is_started;
    const twin_kernel *kernel;
    const void *argument;
    uint32_t block, blocks;
    uint64_t order;
    int device;
    twin_end end;
    uint32_t n_turns, now; /* threads of the block, and the one that runs */
    turn *turns;
    char *stacks;
    ucontext_t back;
} meeting;

static _Thread_local meeting *here; /* NULL: the block has one thread */

void fy_twin_barrier(void)
{
    if (here != NULL) {
        swapcontext(&here->turns[here->now].context, &here->back);
    }
}

static void take_turn(void)
{
    here->kernel->run(here->argument);
    here->turns[here->now].is_over = true;
}

/* From barrier to barrier, each time in another order; all threads of a block have as many. */
static void take_turns(meeting *one)
{
    uint32_t n_over = 0;
    while (n_over < one->n_turns) {
        one->order = one->order * UINT64_C(6364136223846793005) + 1;
        uint32_t first = (uint32_t)(one->order >> 33) % one->n_turns;
        bool forward = (one->order >> 40) % 2 == 0;
        n_over = 0;
        for (uint32_t i = 0; i < one->n_turns; i++) {
            uint32_t step = forward ? i : one->n_turns - 1 - i;
            one->now = (first + step) % one->n_turns;
            fy_twin_place.thread = one->now;
            if (!one->turns[one->now].is_over) {
                swapcontext(&one->back, &one->turns[one->now].context);
            }
            n_over += one->turns[one->now].is_over;
        }
    }
}

/* Alone, for what returns twice, as getcontext may, is said to spoil the counters of loops around
 * it. */
static __attribute__((noinline)) void make_turn(meeting *one, uint32_t i)
{
    ucontext_t *its = &one->turns[i].context;
    getcontext(its);
    its->uc_stack.ss_sp = one->stacks + (size_t)i * STACK_BYTES;
    its->uc_stack.ss_size = STACK_BYTES;
    its->uc_link = &one->back;
    makecontext(its, take_turn, 0);
}

static bool make_turns(meeting *one)
{
    one->turns = calloc(one->n_turns, sizeof *one->turns);
    one->stacks = malloc((size_t)one->n_turns * STACK_BYTES);
    bool has_memory = one->turns != NULL && one->stacks != NULL;
    for (uint32_t i = 0; has_memory && i < one->n_turns; i++) {
        make_turn(one, i);
    }
    return has_memory;
}

static void *meet(void *context)
{
    meeting *one = context;
    twin_device = one->device;
    fy_twin_place =
        (fy_twin_at){.threads = one->n_turns, .block = one->block, .blocks = one->blocks};
    end = TWIN_DONE;
    here = one->n_turns > 1 ? one : NULL;
    if (here != NULL && !make_turns(one)) {
        end = TWIN_LOST;
    } else if (setjmp(out) == 0) {
        if (here != NULL) {
            take_turns(one);
        } else {
            one->kernel->run(one->argument);
        }
        settle(true);
    }
    one->end = end;
    free(late);
    free(one->turns);
    free(one->stacks);
    return NULL;
}

static uint32_t count_threads(void)
{
    const char *text = getenv("STANDIN_THREADS");
    int n = text != NULL ? atoi(text) : 1;
    return n < 1 ? 1 : n > MOST_THREADS ? MOST_THREADS : (uint32_t)n;
}

/* The first block that has failed says how; one without a thread of its own never comes. */
static twin_end meet_all(const twin_kernel *kernel, uint32_t blocks, const void *argument,
                         uint64_t order)
{
    twin_end all = TWIN_DONE;
    meeting *each = calloc(blocks, sizeof *each);
    for (uint32_t i = 0; each != NULL && i < blocks; i++) {
        uint32_t b = (uint32_t)((i + order) % blocks);
        each[b] = (meeting){.kernel = kernel,
                            .argument = argument,
                            .block = b,
                            .blocks = blocks,
                            .order = order + i,
                            .n_turns = count_threads(),
                            .device = twin_device};
        each[b].is_started = pthread_create(&each[b].thread, NULL, meet, &each[b]) == 0;
    }
    for (uint32_t b = 0; each != NULL && b < blocks; b++) {
        if (each[b].is_started) {
            pthread_join(each[b].thread, NULL);
        }
        twin_end its = each[b].is_started ? each[b].end : TWIN_LOST;
        all = all == TWIN_DONE ? its : all;
    }
    all = each == NULL ? TWIN_LOST : all;
    free(each);
    return all;
}

static void run_all(const twin_kernel *kernel, const void *argument, uint64_t order)
{
    for (uint32_t b = 0; b < fy_twin_place.blocks; b++) {
        fy_twin_place.block = (uint32_t)((b + order) % fy_twin_place.blocks);
        for (uint32_t t = 0; t < fy_twin_place.threads; t++) {
            fy_twin_place.thread = order % 2 == 0 ? t : fy_twin_place.threads - 1 - t;
            kernel->run(argument);
        }
    }
}

twin_end twin_launch(const twin_kernel *kernel, uint32_t blocks, uint32_t threads,
                     const void *argument, uint64_t order)
{
    if (kernel->meets) {
        return meet_all(kernel, blocks, argument, order);
    }
    end = TWIN_DONE;
    fy_twin_place = (fy_twin_at){.threads = threads, .blocks = blocks};
    if (setjmp(out) == 0) {
        run_all(kernel, argument, order);
    }
    return end;
}
