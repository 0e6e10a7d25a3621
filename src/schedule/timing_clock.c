/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/timing_clock.h"

#include "base/alloc.h"

#include <stdbool.h>

ferry_status fy_clock_init(fy_clock *clock, uint32_t n_ranks, ferry_error *error)
{
    *clock = (fy_clock){.time = fy_alloc(n_ranks, sizeof *clock->time),
                        .heap = fy_alloc(n_ranks, sizeof *clock->heap),
                        .place = fy_alloc(n_ranks, sizeof *clock->place)};
    if (clock->time == NULL || clock->heap == NULL || clock->place == NULL) {
        fy_clock_cleanup(clock);
        return fy_fail_no_memory(error, "the events of a schedule");
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        clock->place[rank] = FY_CLOCK_NOWHERE;
    }
    return FERRY_OK;
}

void fy_clock_cleanup(fy_clock *clock)
{
    fy_free(clock->time);
    fy_free(clock->heap);
    fy_free(clock->place);
    *clock = (fy_clock){0};
}

static bool is_before(const fy_clock *clock, uint32_t a, uint32_t b)
{
    return clock->time[a] < clock->time[b] || (clock->time[a] == clock->time[b] && a < b);
}

static void put(fy_clock *clock, uint32_t place, uint32_t rank)
{
    clock->heap[place] = rank;
    clock->place[rank] = place;
}

/* Finds the place of a rank from an empty one upwards. */
static void rise(fy_clock *clock, uint32_t place, uint32_t rank)
{
    while (place > 0) {
        uint32_t parent = (place - 1) / 4;
        if (!is_before(clock, rank, clock->heap[parent])) {
            break;
        }
        put(clock, place, clock->heap[parent]);
        place = parent;
    }
    put(clock, place, rank);
}

static void sink(fy_clock *clock, uint32_t place, uint32_t rank)
{
    for (;;) {
        uint32_t child = 4 * place + 1, first = child;
        if (first >= clock->n_events) {
            break;
        }
        for (uint32_t i = first + 1; i < first + 4 && i < clock->n_events; i++) {
            child = is_before(clock, clock->heap[i], clock->heap[child]) ? i : child;
        }
        if (!is_before(clock, clock->heap[child], rank)) {
            break;
        }
        put(clock, place, clock->heap[child]);
        place = child;
    }
    put(clock, place, rank);
}

void fy_clock_set(fy_clock *clock, uint32_t rank, double time)
{
    uint32_t place = clock->place[rank];
    bool is_later = place != FY_CLOCK_NOWHERE && time > clock->time[rank];
    clock->time[rank] = time;
    if (place == FY_CLOCK_NOWHERE) {
        place = clock->n_events++;
    }
    if (is_later) {
        sink(clock, place, rank);
    } else {
        rise(clock, place, rank);
    }
}

void fy_clock_pop(fy_clock *clock)
{
    clock->place[clock->heap[0]] = FY_CLOCK_NOWHERE;
    clock->n_events--;
    if (clock->n_events > 0) {
        sink(clock, 0, clock->heap[clock->n_events]);
    }
}
