/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/loan.h"

#include "base/alloc.h"
#include "base/log.h"
#include "transport/mapped/local.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

typedef struct owned {
    fy_local_memory local;
    pid_t process; /* whose it is: a child of fork has the same pages, and may not take them away */
    bool is_kept;  /* by an owner */
    bool is_exposed; /* borrowers of a loan that has ended may still write */
    fy_loan *loans;
    struct owned *next; /* in `all`, if it is not of one transport */
} owned;

struct fy_loan {
    owned *memory;
    ferry_world *world;
    bool has_borrowers; /* its key was given out since the pages were last renewed */
    fy_loan *next;
};

/* Of all that is here. It is held while pages are renewed: nobody may borrow them meanwhile. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static owned *all;
static _Atomic uint32_t n_exposed;

static void set_exposed(owned *memory, bool is_exposed)
{
    if (memory->is_exposed != is_exposed) {
        memory->is_exposed = is_exposed;
        atomic_fetch_add(&n_exposed, is_exposed ? 1 : UINT32_MAX);
    }
}

static bool is_ours(const owned *memory)
{
    return memory->process == getpid();
}

/* Under the lock: what nobody keeps goes. */
static void release(owned *memory)
{
    if (memory->is_kept || memory->loans != NULL) {
        return;
    }
    owned **link = &all;
    while (*link != NULL && *link != memory) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        *link = memory->next;
    }
    set_exposed(memory, false);
    fy_local_memory_cleanup(&memory->local);
    fy_free(memory);
}

static bool begins_in(const owned *memory, const void *base, uint64_t bytes)
{
    return memory->local.map == base && bytes <= memory->local.map_bytes;
}

static bool overlaps(const owned *memory, const void *base, uint64_t bytes)
{
    uintptr_t its = (uintptr_t)memory->local.map;
    uintptr_t first = (uintptr_t)base;
    return first < its + memory->local.map_bytes && its < first + bytes;
}

/* Under the lock. Borrowers of that world (NULL: of worlds that have failed) are to lose it. */
static ferry_status renew(owned *memory, const ferry_world *world, ferry_error *error)
{
    if (!is_ours(memory)) {
        return FERRY_OK;
    }
    for (const fy_loan *loan = memory->loans; loan != NULL; loan = loan->next) {
        if (loan->has_borrowers && loan->world != world && !fy_failed(loan->world->failure)) {
            return fy_fail(error, FERRY_ERR_MISUSE,
                           "ranks of another world have this memory as well: end what that world "
                           "does with it first");
        }
    }
    FY_TRY(fy_local_memory_renew(&memory->local, error));
    for (fy_loan *loan = memory->loans; loan != NULL; loan = loan->next) {
        loan->has_borrowers = false;
    }
    set_exposed(memory, false);
    return FERRY_OK;
}

/* Whether a world that has failed may have left somebody who writes. */
static bool is_doubtful(const owned *memory)
{
    bool is = memory->is_exposed;
    for (const fy_loan *loan = memory->loans; !is && loan != NULL; loan = loan->next) {
        is = loan->has_borrowers && fy_failed(loan->world->failure);
    }
    return is;
}

/*
 * Owners
 */

ferry_status fy_owned_alloc(uint64_t bytes, void **base_out, ferry_error *error)
{
    owned *memory = fy_alloc_zeroed(1, sizeof *memory);
    FY_TRY(fy_check_memory(memory != NULL, "memory", error));
    ferry_status status = fy_local_memory_create(bytes, &memory->local, error);
    if (status == FERRY_OK && memory->local.fd < 0) {
        fy_local_memory_cleanup(&memory->local);
        status = fy_fail(error, FERRY_ERR_LIMIT,
                         "memory of %llu bytes that other ranks can map takes a descriptor, and "
                         "half of those that this process may have are in use: take few large "
                         "pieces and cut them, or raise `ulimit -n`",
                         (unsigned long long)bytes);
    }
    if (status != FERRY_OK) {
        fy_free(memory);
        return status;
    }
    memory->process = getpid();
    memory->is_kept = true;
    *base_out = memory->local.map;
    pthread_mutex_lock(&lock);
    memory->next = all;
    all = memory;
    pthread_mutex_unlock(&lock);
    return FERRY_OK;
}

bool fy_owned_free(void *base)
{
    pthread_mutex_lock(&lock);
    owned *memory = all;
    while (memory != NULL && (memory->local.map != base || !memory->is_kept)) {
        memory = memory->next;
    }
    if (memory != NULL) {
        memory->is_kept = false;
        release(memory);
    }
    pthread_mutex_unlock(&lock);
    return memory != NULL;
}

bool fy_owned_is_exposed(void)
{
    return atomic_load(&n_exposed) != 0;
}

ferry_status fy_owned_secure(const void *base, uint64_t bytes, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (base == NULL || !fy_owned_is_exposed()) {
        return FERRY_OK;
    }
    pthread_mutex_lock(&lock);
    for (owned *memory = all; status == FERRY_OK && memory != NULL; memory = memory->next) {
        if (memory->is_exposed && overlaps(memory, base, bytes)) {
            status = renew(memory, NULL, error);
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/*
 * Loans
 */

/* Under the lock. */
static void add_loan(owned *memory, ferry_world *world, fy_loan *loan)
{
    *loan = (fy_loan){.memory = memory, .world = world, .next = memory->loans};
    memory->loans = loan;
}

ferry_status fy_loan_create(ferry_world *world, uint64_t bytes, fy_loan **loan_out, void **base_out,
                            ferry_error *error)
{
    fy_loan *loan = fy_alloc_zeroed(1, sizeof *loan);
    owned *memory = fy_alloc_zeroed(1, sizeof *memory);
    ferry_status status =
        fy_check_memory(loan != NULL && memory != NULL, "memory that others can map", error);
    FY_THEN(status, fy_local_memory_create(bytes, &memory->local, error));
    if (status != FERRY_OK) {
        fy_free(memory);
        fy_free(loan);
        return status;
    }
    memory->process = getpid();
    add_loan(memory, world, loan);
    *base_out = memory->local.map;
    *loan_out = loan;
    return FERRY_OK;
}

ferry_status fy_loan_begin(ferry_world *world, const void *base, uint64_t bytes, fy_loan **loan_out,
                           ferry_error *error)
{
    fy_loan *loan = NULL;
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&lock);
    owned *memory = all;
    while (memory != NULL && (!begins_in(memory, base, bytes) || !is_ours(memory))) {
        memory = memory->next;
    }
    if (memory != NULL) {
        status = is_doubtful(memory) ? renew(memory, NULL, error) : FERRY_OK;
        if (status == FERRY_OK) {
            loan = fy_alloc_zeroed(1, sizeof *loan);
            status = fy_check_memory(loan != NULL, "memory that others can map", error);
        }
        if (status == FERRY_OK) {
            add_loan(memory, world, loan);
        }
    }
    pthread_mutex_unlock(&lock);
    if (status == FERRY_OK) {
        *loan_out = loan;
    }
    return status;
}

/* Under the lock. The world has failed: none of its borrowers is to write any more. */
static void take_back(owned *memory, const ferry_world *world)
{
    ferry_error why;
    if (renew(memory, world, &why) != FERRY_OK) {
        set_exposed(memory, true);
        fy_log(FERRY_LOG_WARN,
               "a rank of a world that has failed can still write to %llu bytes at "
               "%p: %s",
               (unsigned long long)memory->local.map_bytes, (void *)memory->local.map, why.message);
    }
}

void fy_loan_end(fy_loan *loan)
{
    if (loan == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    owned *memory = loan->memory;
    fy_loan **link = &memory->loans;
    while (*link != loan) {
        link = &(*link)->next;
    }
    *link = loan->next;
    bool stays = memory->is_kept || memory->loans != NULL;
    if (stays && loan->has_borrowers && fy_failed(loan->world->failure)) {
        take_back(memory, loan->world);
    }
    release(memory);
    pthread_mutex_unlock(&lock);
    fy_free(loan);
}

size_t fy_loan_key(fy_loan *loan, void *key)
{
    pthread_mutex_lock(&lock);
    size_t n_bytes = fy_local_memory_key(&loan->memory->local, key);
    loan->has_borrowers = loan->has_borrowers || n_bytes != 0;
    pthread_mutex_unlock(&lock);
    return n_bytes;
}

ferry_status fy_loan_revoke(fy_loan *loan, ferry_error *error)
{
    pthread_mutex_lock(&lock);
    ferry_status status = loan->has_borrowers ? renew(loan->memory, loan->world, error) : FERRY_OK;
    pthread_mutex_unlock(&lock);
    return status;
}

void fy_loan_move(fy_loan *loan, ferry_world *world)
{
    pthread_mutex_lock(&lock);
    loan->world = world;
    pthread_mutex_unlock(&lock);
}
