/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of memory that several devices have at one address. */
#include "device/ptx/program.h"

#include <stdlib.h>
#include <string.h>

/* The number of devices, after a fault 0. */
static uint32_t reach_all(ptx_thread *thread, uint64_t at, uint32_t bytes,
                          void *places[PTX_MOST_PLACES])
{
    const ptx_launch *launch = thread->block->run->launch;
    if (thread->state == PTX_STOPPED) {
        return 0;
    }
    if (at % bytes != 0) {
        ptx_fault(thread, PTX_MISALIGNED, "%u bytes at %#llx, which is no multiple", bytes,
                  (unsigned long long)at);
        return 0;
    }
    uint32_t n =
        launch->look_up_all != NULL ? launch->look_up_all(launch->context, at, bytes, places) : 0;
    if (n == 0) {
        ptx_fault(thread, PTX_OUTSIDE, "%u bytes at %#llx are no multimem address", bytes,
                  (unsigned long long)at);
    }
    return n;
}

static void perform_store(ptx_thread *thread, const ptx_instruction *one)
{
    ptx_late fresh = {.at = ptx_value(thread, &one->base) + (uint64_t)one->offset,
                      .bytes = one->access.bytes * one->access.n};
    void *places[PTX_MOST_PLACES];
    for (uint32_t i = 0; i < one->access.n; i++) {
        uint64_t value = ptx_value(thread, &one->sources[i]);
        memcpy(fresh.value + (size_t)i * one->access.bytes, &value, one->access.bytes);
    }
    if (reach_all(thread, fresh.at, fresh.bytes, places) == 0) {
        return;
    }
    if (thread->n_late == thread->late_room) {
        thread->late_room = thread->late_room == 0 ? 16 : 2 * thread->late_room;
        thread->late = realloc(thread->late, thread->late_room * sizeof *thread->late);
        if (thread->late == NULL) {
            abort();
        }
    }
    thread->late[thread->n_late++] = fresh;
}

void ptx_perform_settle(ptx_thread *thread, const ptx_instruction *one)
{
    (void)one;
    for (uint32_t i = 0; i < thread->n_late; i++) {
        const ptx_late *its = &thread->late[i];
        void *places[PTX_MOST_PLACES];
        uint32_t n = reach_all(thread, its->at, its->bytes, places);
        for (uint32_t k = 0; k < n; k++) {
            memcpy(places[k], its->value, its->bytes);
        }
    }
    thread->n_late = 0;
}

/* One number of an element: in f32, in the order of devices from `first` on, and rounded once. */
static uint64_t sum_of(void *const places[PTX_MOST_PLACES], uint32_t n, uint32_t first,
                       uint32_t offset, const ptx_instruction *one)
{
    uint32_t bytes = one->of_pairs ? 2 : 4;
    ptx_reckon add = ptx_float_row("add.rn.f32")->reckon;
    uint64_t sum = 0x80000000u; /* -0, which changes nothing */
    for (uint32_t k = 0; k < n; k++) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)places[(first + k) % n] + offset, bytes);
        sum = add(sum, one->of_pairs ? one->reckon(bits, 0, 0, 0) : bits, 0, 0) & 0xffffffff;
    }
    if (!one->of_pairs) {
        return sum;
    }
    bool is_f16 = one->reckon == ptx_float_row("cvt.f32.f16")->reckon;
    return ptx_float_row(is_f16 ? "cvt.rn.f16.f32" : "cvt.rn.bf16.f32")->reckon(sum, 0, 0, 0) &
           0xffff;
}

static void perform_sum(ptx_thread *thread, const ptx_instruction *one)
{
    static _Thread_local uint32_t n_sums;
    uint64_t at = ptx_value(thread, &one->base) + (uint64_t)one->offset;
    void *places[PTX_MOST_PLACES];
    uint32_t n = reach_all(thread, at, 4u * one->access.n, places), first = n_sums++;
    for (uint32_t i = 0; n > 0 && i < one->access.n; i++) {
        uint64_t value = sum_of(places, n, first % n, 4 * i, one);
        if (one->of_pairs) {
            value |= sum_of(places, n, first % n, 4 * i + 2, one) << 16;
        }
        ptx_put(thread, one->targets[i], value);
    }
}

bool ptx_decode_multimem(const char *name, ptx_instruction *one, bool *loads_out)
{
    static const struct {
        const char *name;
        uint32_t n;
        const char *widens; /* of pairs: a number to f32 */
        bool loads;
    } known[] = {{"multimem.st.weak.global.v4.bf16x2", 4, NULL, false},
                 {"multimem.st.weak.global.b32", 1, NULL, false},
                 {"multimem.ld_reduce.weak.global.add.v4.f32", 4, NULL, true},
                 {"multimem.ld_reduce.weak.global.add.f32", 1, NULL, true},
                 {"multimem.ld_reduce.weak.global.add.acc::f32.v4.f16x2", 4, "cvt.f32.f16", true},
                 {"multimem.ld_reduce.weak.global.add.acc::f32.f16x2", 1, "cvt.f32.f16", true},
                 {"multimem.ld_reduce.weak.global.add.acc::f32.v4.bf16x2", 4, "cvt.f32.bf16", true},
                 {"multimem.ld_reduce.weak.global.add.acc::f32.bf16x2", 1, "cvt.f32.bf16", true}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, name) == 0) {
            one->access = (ptx_access){.space = PTX_GLOBAL, .bytes = 4, .n = known[i].n};
            one->of_pairs = known[i].widens != NULL;
            one->reckon = one->of_pairs ? ptx_float_row(known[i].widens)->reckon : NULL;
            one->perform = known[i].loads ? perform_sum : perform_store;
            *loads_out = known[i].loads;
            return true;
        }
    }
    return false;
}
