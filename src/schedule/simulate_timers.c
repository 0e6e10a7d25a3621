/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/simulate_timers.h"

#include "base/alloc.h"

#define OFF UINT32_MAX

enum { N_CHILDREN = 4 };

bool fy_timers_init(fy_timers *timers, uint32_t n_timers)
{
    timers->heap = fy_alloc(n_timers, sizeof *timers->heap);
    timers->position = fy_alloc(n_timers, sizeof *timers->position);
    timers->n_set = 0;
    if (timers->heap == NULL || timers->position == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < n_timers; i++) {
        timers->position[i] = OFF;
    }
    return true;
}

void fy_timers_cleanup(fy_timers *timers)
{
    fy_free(timers->heap);
    fy_free(timers->position);
    *timers = (fy_timers){0};
}

static bool is_before(const fy_timer *a, const fy_timer *b)
{
    return a->when < b->when || (a->when == b->when && a->id < b->id);
}

static void put(fy_timers *timers, uint32_t position, fy_timer timer)
{
    timers->heap[position] = timer;
    timers->position[timer.id] = position;
}

static void rise(fy_timers *timers, uint32_t position, fy_timer timer)
{
    while (position > 0) {
        uint32_t parent = (position - 1) / N_CHILDREN;
        if (!is_before(&timer, &timers->heap[parent])) {
            break;
        }
        put(timers, position, timers->heap[parent]);
        position = parent;
    }
    put(timers, position, timer);
}

static void sink(fy_timers *timers, uint32_t position, fy_timer timer)
{
    for (;;) {
        uint32_t first = position * N_CHILDREN + 1;
        if (first >= timers->n_set) {
            break;
        }
        uint32_t end = timers->n_set - first < N_CHILDREN ? timers->n_set : first + N_CHILDREN;
        uint32_t earliest = first;
        for (uint32_t i = first + 1; i < end; i++) {
            if (is_before(&timers->heap[i], &timers->heap[earliest])) {
                earliest = i;
            }
        }
        if (!is_before(&timers->heap[earliest], &timer)) {
            break;
        }
        put(timers, position, timers->heap[earliest]);
        position = earliest;
    }
    put(timers, position, timer);
}

void fy_timers_set(fy_timers *timers, uint32_t id, double when)
{
    fy_timer timer = {.when = when, .id = id};
    uint32_t position = timers->position[id];
    if (position == OFF) {
        rise(timers, timers->n_set++, timer);
    } else if (is_before(&timer, &timers->heap[position])) {
        rise(timers, position, timer);
    } else {
        sink(timers, position, timer);
    }
}

fy_timer fy_timers_take(fy_timers *timers)
{
    fy_timer first = timers->heap[0];
    timers->position[first.id] = OFF;
    timers->n_set--;
    if (timers->n_set > 0) {
        sink(timers, 0, timers->heap[timers->n_set]);
    }
    return first;
}
