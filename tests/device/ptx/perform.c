/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What instructions do that touch no memory. */
#include "device/ptx/program.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void ptx_fault(ptx_thread *thread, ptx_end end, const char *format, ...)
{
    ptx_run_state *run = thread->block->run;
    thread->state = PTX_STOPPED;
    if (run->end != PTX_DONE) {
        return;
    }
    run->end = end;
    int n = snprintf(run->said, PTX_SAID_BYTES,
                     "line %u, thread %u of block %u: ", run->kernel->code[thread->at - 1].line,
                     thread->number, thread->block->number);
    va_list arguments;
    va_start(arguments, format);
    if (n > 0 && n < PTX_SAID_BYTES) {
        vsnprintf(run->said + n, PTX_SAID_BYTES - (size_t)n, format, arguments);
    }
    va_end(arguments);
}

void ptx_fault_unwritten(ptx_thread *thread, int32_t reg)
{
    const ptx_kernel *kernel = thread->block->run->kernel;
    for (uint32_t i = 0; i < kernel->n_families; i++) {
        const ptx_family *one = &kernel->families[i];
        uint32_t number = (uint32_t)reg - one->first;
        if ((uint32_t)reg >= one->first && number < (one->count > 0 ? one->count : 1)) {
            char suffix[16] = "";
            if (one->count > 0) {
                snprintf(suffix, sizeof suffix, "%u", number);
            }
            ptx_fault(thread, PTX_WRONG, "register %s%s is read and was never written", one->name,
                      suffix);
        }
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t ptx_special_value(const ptx_thread *thread, ptx_special which)
{
    switch (which) {
    case PTX_TID:
        return thread->number;
    case PTX_NTID:
        return thread->block->run->launch->threads;
    case PTX_CTAID:
        return thread->block->number;
    case PTX_NCTAID:
        return thread->block->run->launch->blocks;
    case PTX_LANEID:
        return thread->number % 32;
    case PTX_TIMER:
        return now_ns();
    case PTX_IS_ONE:
        return 1;
    default:
        return 0;
    }
}

static const struct {
    const char *name;
    ptx_special which;
    uint32_t bits;
} specials[] = {
    {"%tid.x", PTX_TID, 32},       {"%tid.y", PTX_IS_ZERO, 32},     {"%tid.z", PTX_IS_ZERO, 32},
    {"%ntid.x", PTX_NTID, 32},     {"%ntid.y", PTX_IS_ONE, 32},     {"%ntid.z", PTX_IS_ONE, 32},
    {"%ctaid.x", PTX_CTAID, 32},   {"%ctaid.y", PTX_IS_ZERO, 32},   {"%ctaid.z", PTX_IS_ZERO, 32},
    {"%nctaid.x", PTX_NCTAID, 32}, {"%nctaid.y", PTX_IS_ONE, 32},   {"%nctaid.z", PTX_IS_ONE, 32},
    {"%laneid", PTX_LANEID, 32},   {"%globaltimer", PTX_TIMER, 64},
};

bool ptx_special_find(const char *name, ptx_operand *value_out, uint32_t *bits_out)
{
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
        if (strcmp(specials[i].name, name) == 0) {
            *value_out = (ptx_operand){.reg = PTX_SPECIAL, .number = specials[i].which};
            *bits_out = specials[i].bits;
            return true;
        }
    }
    return false;
}

static void perform_1(ptx_thread *thread, const ptx_instruction *one)
{
    uint64_t a = ptx_value(thread, &one->sources[0]);
    ptx_put(thread, one->targets[0], one->reckon(a, 0, 0, 0) & one->mask);
}

static void perform_2(ptx_thread *thread, const ptx_instruction *one)
{
    uint64_t a = ptx_value(thread, &one->sources[0]), b = ptx_value(thread, &one->sources[1]);
    if (one->divides && b == 0) {
        ptx_fault(thread, PTX_WRONG, "a division by 0");
        return;
    }
    ptx_put(thread, one->targets[0], one->reckon(a, b, 0, 0) & one->mask);
}

static void perform_3(ptx_thread *thread, const ptx_instruction *one)
{
    uint64_t a = ptx_value(thread, &one->sources[0]), b = ptx_value(thread, &one->sources[1]);
    uint64_t c = ptx_value(thread, &one->sources[2]);
    ptx_put(thread, one->targets[0], one->reckon(a, b, c, 0) & one->mask);
}

static void perform_4(ptx_thread *thread, const ptx_instruction *one)
{
    uint64_t a = ptx_value(thread, &one->sources[0]), b = ptx_value(thread, &one->sources[1]);
    uint64_t c = ptx_value(thread, &one->sources[2]), d = ptx_value(thread, &one->sources[3]);
    ptx_put(thread, one->targets[0], one->reckon(a, b, c, d) & one->mask);
}

ptx_perform ptx_perform_of(uint32_t n_sources)
{
    static const ptx_perform by_count[] = {perform_1, perform_2, perform_3, perform_4};
    return by_count[n_sources - 1];
}

/* Parts to a whole, the first one lowest; the mask is that of a part. */
void ptx_perform_pack(ptx_thread *thread, const ptx_instruction *one)
{
    uint64_t whole = 0;
    uint32_t bits = one->access.bytes * 8;
    for (uint32_t i = 0; i < one->n_sources; i++) {
        whole |= (ptx_value(thread, &one->sources[i]) & one->mask) << bits * i;
    }
    ptx_put(thread, one->targets[0], whole);
}

void ptx_perform_unpack(ptx_thread *thread, const ptx_instruction *one)
{
    uint64_t whole = ptx_value(thread, &one->sources[0]);
    uint32_t bits = one->access.bytes * 8;
    for (uint32_t i = 0; i < one->n_targets; i++) {
        ptx_put(thread, one->targets[i], whole >> bits * i & one->mask);
    }
}

void ptx_perform_jump(ptx_thread *thread, const ptx_instruction *one)
{
    thread->at = one->jump;
}

void ptx_perform_end(ptx_thread *thread, const ptx_instruction *one)
{
    ptx_perform_settle(thread, one); /* at the latest */
    thread->state = PTX_OVER;
    thread->block->n_over++;
}

void ptx_perform_barrier(ptx_thread *thread, const ptx_instruction *one)
{
    (void)one;
    thread->state = PTX_AT_BARRIER;
    thread->block->n_waiting++;
}

void ptx_perform_pause(ptx_thread *thread, const ptx_instruction *one)
{
    (void)ptx_value(thread, &one->sources[0]);
    if (thread->state == PTX_GOES) {
        thread->state = PTX_PAUSES;
    }
}

void ptx_perform_trap(ptx_thread *thread, const ptx_instruction *one)
{
    (void)one;
    ptx_fault(thread, PTX_WRONG, "a trap");
}

/* Addresses of shared and local memory as generic ones, and back: `offset` is the window's. */
void ptx_perform_window(ptx_thread *thread, const ptx_instruction *one)
{
    uint64_t at = ptx_value(thread, &one->sources[0]);
    uint64_t window = (uint64_t)one->offset;
    if (one->from_generic) {
        bool is_global = at < PTX_SHARED_WINDOW;
        if (window == 0 ? !is_global : at - window >= PTX_WINDOW_BYTES) {
            ptx_fault(thread, PTX_OUTSIDE, "the generic address %#llx is of another space",
                      (unsigned long long)at);
            return;
        }
        at -= window;
    } else {
        at += window;
    }
    ptx_put(thread, one->targets[0], at);
}
