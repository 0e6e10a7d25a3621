/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores and atomic operations, in whatever memory. */
#include "device/ptx/program.h"

#include <string.h>

static const char *const space_names[] = {"generic", "global", "shared", "local", "param"};

/* Where bytes of a variable lie; NULL: beside all of them, or never written. */
static unsigned char *of_variable(ptx_thread *thread, ptx_space space, const ptx_room *room,
                                  uint64_t at, uint32_t bytes, bool writes)
{
    const ptx_module *module = thread->block->run->kernel->module;
    for (uint32_t i = 0; i < module->n_variables; i++) {
        const ptx_variable *one = &module->variables[i];
        if (one->space != space || at < one->begin || at - one->begin >= one->bytes ||
            bytes > one->bytes - (at - one->begin)) {
            continue;
        }
        if (writes) {
            memset(room->is_written + at, 1, bytes);
        } else if (memchr(room->is_written + at, 0, bytes) != NULL) {
            ptx_fault(thread, PTX_WRONG, "%u bytes at %s+%llu are read and were never written",
                      bytes, one->name, (unsigned long long)(at - one->begin));
            return NULL;
        }
        return room->bytes + at;
    }
    ptx_fault(thread, PTX_OUTSIDE, "%u bytes at %llu of %s memory are in no variable", bytes,
              (unsigned long long)at, space_names[space]);
    return NULL;
}

static unsigned char *of_world(ptx_thread *thread, uint64_t at, uint32_t bytes, bool writes)
{
    const ptx_launch *launch = thread->block->run->launch;
    void *found =
        launch->look_up != NULL ? launch->look_up(launch->context, at, bytes, writes) : NULL;
    if (found == NULL) {
        ptx_fault(thread, PTX_OUTSIDE, "%u bytes at %#llx are nobody's", bytes,
                  (unsigned long long)at);
    }
    return found;
}

/* Parameters are read only. */
static unsigned char *of_parameter(ptx_thread *thread, uint64_t at, uint32_t bytes)
{
    const ptx_launch *launch = thread->block->run->launch;
    if (at > launch->argument_bytes || bytes > launch->argument_bytes - at) {
        ptx_fault(thread, PTX_OUTSIDE, "%u bytes at %llu of a parameter of %zu", bytes,
                  (unsigned long long)at, launch->argument_bytes);
        return NULL;
    }
    return (unsigned char *)(uintptr_t)launch->argument + at;
}

/* Where all bytes of an access lie; NULL: the launch ends with a fault. */
static unsigned char *reach(ptx_thread *thread, const ptx_instruction *one, bool writes)
{
    uint64_t at = ptx_value(thread, &one->base) + (uint64_t)one->offset;
    uint32_t bytes = one->access.bytes * one->access.n;
    ptx_space space = one->access.space;
    if (thread->state == PTX_STOPPED) {
        return NULL;
    }
    if (at % bytes != 0) {
        ptx_fault(thread, PTX_MISALIGNED, "%u bytes at %#llx, which is no multiple", bytes,
                  (unsigned long long)at);
        return NULL;
    }
    if (space == PTX_GENERIC) {
        bool is_shared = at - PTX_SHARED_WINDOW < PTX_WINDOW_BYTES;
        bool is_local = at - PTX_LOCAL_WINDOW < PTX_WINDOW_BYTES;
        space = is_shared ? PTX_SHARED : is_local ? PTX_LOCAL : PTX_GLOBAL;
        at -= is_shared ? PTX_SHARED_WINDOW : is_local ? PTX_LOCAL_WINDOW : 0;
    }
    switch (space) {
    case PTX_SHARED:
        return of_variable(thread, space, &thread->block->shared, at, bytes, writes);
    case PTX_LOCAL:
        return of_variable(thread, space, &thread->local, at, bytes, writes);
    case PTX_PARAM:
        return of_parameter(thread, at, bytes);
    default:
        return of_world(thread, at, bytes, writes);
    }
}

/* An element as other threads of this machine see it at once. */
static uint64_t load_word(const void *at, uint32_t bytes, bool acquires)
{
    if (bytes == 8) {
        return acquires ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE)
                        : __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
    }
    return acquires ? __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE)
                    : __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED);
}

static void store_word(void *at, uint32_t bytes, bool releases, uint64_t value)
{
    if (bytes == 8 && releases) {
        __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELEASE);
    } else if (bytes == 8) {
        __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELAXED);
    } else if (releases) {
        __atomic_store_n((uint32_t *)at, (uint32_t)value, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n((uint32_t *)at, (uint32_t)value, __ATOMIC_RELAXED);
    }
}

static uint64_t signed_or_not(uint64_t value, uint32_t bytes, bool is_signed)
{
    uint32_t above = 64 - 8 * bytes;
    return is_signed ? (uint64_t)((int64_t)(value << above) >> above) : value;
}

void ptx_perform_load(ptx_thread *thread, const ptx_instruction *one)
{
    const unsigned char *from = reach(thread, one, false);
    const ptx_access *access = &one->access;
    for (uint32_t i = 0; from != NULL && i < access->n; i++) {
        uint64_t value = 0;
        if (access->order != PTX_WEAK) {
            value = load_word(from, access->bytes, access->order == PTX_ACQUIRE);
        } else {
            memcpy(&value, from + (size_t)i * access->bytes, access->bytes);
        }
        value = signed_or_not(value, access->bytes, access->is_signed);
        ptx_put(thread, one->targets[i], value & one->mask);
    }
}

void ptx_perform_store(ptx_thread *thread, const ptx_instruction *one)
{
    const ptx_access *access = &one->access;
    uint64_t values[PTX_MOST_VALUES];
    for (uint32_t i = 0; i < access->n; i++) {
        values[i] = ptx_value(thread, &one->sources[i]);
    }
    unsigned char *to = reach(thread, one, true);
    for (uint32_t i = 0; to != NULL && i < access->n; i++) {
        if (access->order != PTX_WEAK) {
            store_word(to, access->bytes, access->order == PTX_RELEASE, values[i]);
        } else {
            memcpy(to + (size_t)i * access->bytes, &values[i], access->bytes);
        }
    }
}

void ptx_perform_atomic(ptx_thread *thread, const ptx_instruction *one)
{
    uint64_t b = ptx_value(thread, &one->sources[0]);
    uint64_t c = one->n_sources > 1 ? ptx_value(thread, &one->sources[1]) : 0;
    void *at = reach(thread, one, false); /* what it changes was there */
    if (at == NULL || reach(thread, one, true) == NULL) {
        return;
    }
    bool is_done = false;
    uint64_t old = 0;
    while (!is_done) {
        old = load_word(at, one->access.bytes, false);
        uint64_t value = one->reckon(old, b, c, 0);
        if (one->access.bytes == 8) {
            is_done = __atomic_compare_exchange_n((uint64_t *)at, &old, value, false,
                                                  __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
        } else {
            uint32_t expected = (uint32_t)old;
            is_done = __atomic_compare_exchange_n((uint32_t *)at, &expected, (uint32_t)value, false,
                                                  __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
        }
    }
    if (one->n_targets > 0) {
        ptx_put(thread, one->targets[0], old);
    }
}
