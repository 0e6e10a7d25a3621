/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/exec.h"

#include "host/copy.h"

/*
 * The CPU's row of verbs: done when the call returns, and fenced, so that whoever sees a word that
 * is raised next sees the bytes.
 */

static ferry_status queue_open(int32_t device, void *native, fy_exec_queue **queue_out,
                               ferry_error *error)
{
    (void)device;
    FY_TRY(fy_check_use(native == NULL, "the host has no queues that could be adopted", error));
    *queue_out = NULL;
    return FERRY_OK;
}

static void queue_close(fy_exec_queue *queue)
{
    (void)queue;
}

static bool reaches(int32_t device, fy_space space)
{
    (void)device;
    return fy_is_host(space);
}

static ferry_status copy(fy_exec_queue *queue, const fy_area *to, void *to_base,
                         const fy_area *from, const void *from_base, uint64_t first, uint64_t bytes,
                         uint64_t *hash_out, ferry_error *error)
{
    (void)queue;
    (void)error;
    if (hash_out != NULL) {
        *hash_out = fy_area_copy_hash(to, to_base, from, from_base, first, bytes);
    } else {
        fy_area_copy(to, to_base, from, from_base, first, bytes);
    }
    fy_copy_fence();
    return FERRY_OK;
}

static ferry_status hash(fy_exec_queue *queue, const fy_area *area, const void *base,
                         uint64_t first, uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    (void)queue;
    (void)error;
    *hash_out = fy_area_hash(area, base, first, bytes);
    return FERRY_OK;
}

static ferry_status cast(fy_exec_queue *queue, const fy_cast *how, const fy_area *to, void *to_base,
                         const fy_area *from, const void *from_base, uint64_t first, uint64_t n,
                         uint64_t *hash_out, ferry_error *error)
{
    (void)queue;
    (void)error;
    if (hash_out != NULL) {
        *hash_out = fy_area_cast_hash(how, to, to_base, from, from_base, first, n);
    } else {
        fy_area_cast(how, to, to_base, from, from_base, first, n);
    }
    fy_copy_fence();
    return FERRY_OK;
}

static ferry_status sum(fy_exec_queue *queue, const fy_sum *what, ferry_error *error)
{
    (void)queue;
    (void)error;
    fy_sum_run(what);
    fy_copy_fence();
    return FERRY_OK;
}

static ferry_status word_set(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                             ferry_error *error)
{
    (void)queue;
    (void)error;
    atomic_store(word, value);
    return FERRY_OK;
}

static ferry_status word_wait(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                              ferry_error *error)
{
    (void)queue;
    uint64_t seen = atomic_load(word);
    return seen >= value ? FERRY_OK
                         : fy_fail(error, FERRY_ERR_MISUSE,
                                   "the CPU cannot wait for a word in the order of a queue: it is "
                                   "%llu and not yet %llu",
                                   (unsigned long long)seen, (unsigned long long)value);
}

static ferry_status call(fy_exec_queue *queue, void (*function)(void *context), void *context,
                         ferry_error *error)
{
    (void)queue;
    (void)error;
    function(context);
    return FERRY_OK;
}

static ferry_status mark(fy_exec_queue *queue, fy_ticket *ticket_out, ferry_error *error)
{
    (void)queue;
    (void)error;
    *ticket_out = 0;
    return FERRY_OK;
}

static ferry_status reached(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error)
{
    (void)queue;
    (void)ticket;
    (void)error;
    return FERRY_OK;
}

const fy_exec fy_cpu_exec = {.name = "cpu",
                             .queue_open = queue_open,
                             .queue_close = queue_close,
                             .reaches = reaches,
                             .copy = copy,
                             .hash = hash,
                             .cast = cast,
                             .sum = sum,
                             .word_set = word_set,
                             .word_wait = word_wait,
                             .call = call,
                             .mark = mark,
                             .reached = reached};
