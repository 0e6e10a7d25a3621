/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Blocks and threads of a launch, and whose turn it is. */
#include "device/ptx/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ROOM_ALIGNMENT = 64,
    PAUSE_NS = 20000,
    /* Instructions of a thread whose kernel waits for nothing: more, and it never ends. */
    MOST_PERFORMED = 200000000
};

static uint64_t draw(ptx_run_state *run, uint64_t n)
{
    run->draws = run->draws * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (run->draws >> 33) % n;
}

/* A stride that goes through all of n from any of them on. */
static uint32_t draw_stride(ptx_run_state *run, uint32_t n)
{
    uint32_t stride = 1 + (uint32_t)draw(run, n), a, b;
    for (;; stride++) {
        for (a = stride, b = n; b != 0;) {
            uint32_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) {
            return stride;
        }
    }
}

static bool open_room(ptx_room *room, uint32_t bytes)
{
    size_t all = ((size_t)bytes + ROOM_ALIGNMENT) / ROOM_ALIGNMENT * ROOM_ALIGNMENT;
    room->bytes = aligned_alloc(ROOM_ALIGNMENT, all);
    room->is_written = calloc(all, 1);
    if (room->bytes == NULL || room->is_written == NULL) {
        return false;
    }
    memset(room->bytes, 0xa5, all);
    return true;
}

static void close_room(ptx_room *room)
{
    free(room->bytes);
    free(room->is_written);
}

static bool open_thread(ptx_thread *thread, ptx_block *block, uint32_t number)
{
    const ptx_kernel *kernel = block->run->kernel;
    *thread = (ptx_thread){.block = block, .number = number, .stamp = 1};
    thread->values = calloc(kernel->n_registers + 1, sizeof *thread->values);
    thread->stamps = calloc(kernel->n_registers + 1, sizeof *thread->stamps);
    return thread->values != NULL && thread->stamps != NULL &&
           open_room(&thread->local, kernel->module->local_bytes);
}

static void close_thread(ptx_thread *thread)
{
    free(thread->values);
    free(thread->stamps);
    free(thread->late);
    close_room(&thread->local);
}

static bool no_memory(ptx_run_state *run)
{
    run->end = PTX_WRONG;
    snprintf(run->said, PTX_SAID_BYTES, "no memory for the threads of %s", run->kernel->name);
    return false;
}

/* So many instructions, or as many as it can do now. */
static void go(ptx_thread *thread, uint64_t most)
{
    const ptx_kernel *kernel = thread->block->run->kernel;
    uint64_t n = 0;
    for (; n < most && thread->state == PTX_GOES; n++) {
        const ptx_instruction *one = &kernel->code[thread->at++];
        if (one->guard != PTX_NUMBER) {
            const ptx_operand guard = {.reg = one->guard};
            if ((ptx_value(thread, &guard) != 0) == one->guard_is_not) {
                continue;
            }
        }
        one->perform(thread, one);
    }
    thread->block->run->launch->n_performed += n;
}

/*
 * Kernels without barriers: one thread after the other, which use the same registers, each with a
 * stamp of its own.
 */
static void run_one_by_one(ptx_run_state *run)
{
    const ptx_launch *launch = run->launch;
    ptx_block block = {.run = run};
    ptx_thread thread;
    uint32_t block_stride = draw_stride(run, launch->blocks);
    uint32_t stride = draw_stride(run, launch->threads);
    bool has_memory = open_thread(&thread, &block, 0) &&
                      open_room(&block.shared, run->kernel->module->shared_bytes);
    if (!has_memory) {
        (void)no_memory(run);
    }
    for (uint64_t i = 0; has_memory && i < launch->blocks && run->end == PTX_DONE; i++) {
        block.number = (uint32_t)(i * block_stride % launch->blocks);
        memset(block.shared.is_written, 0, run->kernel->module->shared_bytes);
        for (uint64_t t = 0; t < launch->threads && run->end == PTX_DONE; t++) {
            thread.number = (uint32_t)(t * stride % launch->threads);
            thread.at = 0;
            thread.stamp++;
            memset(thread.local.is_written, 0, run->kernel->module->local_bytes);
            for (thread.state = PTX_GOES; thread.state == PTX_PAUSES || thread.state == PTX_GOES;) {
                thread.state = PTX_GOES;
                go(&thread, MOST_PERFORMED);
                if (thread.state == PTX_GOES) {
                    ptx_fault(&thread, PTX_WRONG, "it does not end");
                }
            }
        }
    }
    close_thread(&thread);
    close_room(&block.shared);
}

/*
 * Kernels with barriers: threads of some blocks side by side
 */

static bool open_block(ptx_block *block, ptx_run_state *run, uint32_t number)
{
    uint32_t n = run->launch->threads;
    *block = (ptx_block){.run = run, .number = number};
    block->threads = calloc(n, sizeof *block->threads);
    bool is_open =
        block->threads != NULL && open_room(&block->shared, run->kernel->module->shared_bytes);
    for (uint32_t t = 0; is_open && t < n; t++) {
        is_open = open_thread(&block->threads[t], block, t);
    }
    return is_open || no_memory(run);
}

static void close_block(ptx_block *block)
{
    for (uint32_t t = 0; block->threads != NULL && t < block->run->launch->threads; t++) {
        close_thread(&block->threads[t]);
    }
    free(block->threads);
    if (block->run != NULL) {
        close_room(&block->shared);
    }
}

/* All that wait at a barrier go on once nobody is missing. */
static void open_barrier(ptx_block *block)
{
    uint32_t n = block->run->launch->threads;
    if (block->n_waiting == 0 || block->n_waiting + block->n_over < n) {
        return;
    }
    for (uint32_t t = 0; t < n; t++) {
        ptx_thread *one = &block->threads[t];
        if (block->n_over > 0 && one->state == PTX_AT_BARRIER) {
            ptx_fault(one, PTX_WRONG, "it is at a barrier to which %u of %u threads never come",
                      block->n_over, n);
            return;
        }
        one->state = PTX_GOES;
    }
    block->n_waiting = 0;
}

/* A turn for each thread of a block; true if one did more than to pause. */
static bool take_turns(ptx_block *block, uint64_t most)
{
    ptx_run_state *run = block->run;
    uint32_t n = run->launch->threads, at = (uint32_t)draw(run, n);
    uint32_t stride = draw_stride(run, n);
    bool has_gone = false;
    for (uint32_t i = 0; i < n && run->end == PTX_DONE; i++) {
        ptx_thread *one = &block->threads[(at + (uint64_t)i * stride) % n];
        one->state = one->state == PTX_PAUSES ? PTX_GOES : one->state;
        if (one->state == PTX_GOES) {
            go(one, 1 + draw(run, most));
            has_gone |= one->state != PTX_PAUSES;
        }
    }
    if (run->end == PTX_DONE) {
        open_barrier(block);
    }
    return has_gone;
}

/* Until all of them are over, or one has failed. */
static void take_all_turns(ptx_run_state *run, ptx_block *blocks, uint32_t n)
{
    static const uint64_t lengths[] = {5, 100, 3000, 100000};
    const struct timespec moment = {.tv_nsec = PAUSE_NS};
    uint64_t most = lengths[draw(run, sizeof lengths / sizeof lengths[0])];
    const ptx_launch *launch = run->launch;
    for (uint32_t n_over = 0; n_over < n && run->end == PTX_DONE;) {
        uint32_t first = (uint32_t)draw(run, n);
        bool has_gone = false;
        n_over = 0;
        for (uint32_t i = 0; i < n && run->end == PTX_DONE; i++) {
            ptx_block *one = &blocks[(first + i) % n];
            has_gone |= take_turns(one, most);
            n_over += one->n_over == launch->threads;
        }
        if (!has_gone && run->end == PTX_DONE) { /* all wait for somebody else */
            nanosleep(&moment, NULL);
            if (launch->is_lost != NULL && launch->is_lost(launch->context)) {
                run->end = PTX_LOST;
                snprintf(run->said, PTX_SAID_BYTES, "%s: the device is lost", run->kernel->name);
            }
        }
    }
}

static void run_together(ptx_run_state *run)
{
    const ptx_launch *launch = run->launch;
    uint32_t at_once = launch->meets ? launch->blocks : 1;
    uint32_t stride = draw_stride(run, launch->blocks);
    ptx_block *blocks = calloc(at_once, sizeof *blocks);
    if (blocks == NULL) {
        (void)no_memory(run);
        return;
    }
    for (uint64_t first = 0; first < launch->blocks && run->end == PTX_DONE; first += at_once) {
        uint32_t n = 0;
        bool is_open = true;
        for (; is_open && n < at_once; n++) {
            is_open =
                open_block(&blocks[n], run, (uint32_t)((first + n) * stride % launch->blocks));
        }
        if (is_open) {
            take_all_turns(run, blocks, n);
        }
        for (uint32_t i = 0; i < n; i++) {
            close_block(&blocks[i]);
        }
    }
    free(blocks);
}

ptx_end ptx_run(const ptx_kernel *kernel, ptx_launch *launch, char said[PTX_SAID_BYTES])
{
    ptx_run_state run = {.kernel = kernel, .launch = launch, .said = said, .draws = launch->order};
    launch->n_performed = 0;
    if (launch->argument_bytes != kernel->argument_bytes) {
        snprintf(said, PTX_SAID_BYTES, "%s has a parameter of %u bytes, and is given %zu",
                 kernel->name, kernel->argument_bytes, launch->argument_bytes);
        return PTX_WRONG;
    }
    if (launch->threads == 0 || launch->threads > kernel->most_threads || launch->blocks == 0) {
        snprintf(said, PTX_SAID_BYTES, "%s is launched with %u blocks of %u threads, of %u at most",
                 kernel->name, launch->blocks, launch->threads, kernel->most_threads);
        return PTX_WRONG;
    }
    if (kernel->has_barrier || launch->meets) {
        run_together(&run);
    } else {
        run_one_by_one(&run);
    }
    return run.end;
}
