/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What receivers write themselves. A fill is a task from this rank to itself, whose source is a
 * little memory of the service's that is read again and again: so runs, states, ledgers, checksums
 * and memory that the CPU must not touch know nothing of fills.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "service/registry.h"

#include <string.h>

/* Of a pattern: long enough that a copy of it costs little beside its bytes. */
enum { PATTERN_BYTES = 4096 };

void fy_patterns_free(fy_registry *registry)
{
    for (size_t i = 0; i < registry->n_patterns; i++) {
        fy_free(registry->patterns[i].memory);
    }
    fy_free(registry->patterns);
    fy_index_cleanup(&registry->patterns_by_bits);
}

static uint64_t hash_of(const unsigned char *bits, uint64_t element_bytes)
{
    uint64_t value = 0;
    memcpy(&value, bits, (size_t)element_bytes);
    return fy_hash_mix(value, element_bytes);
}

static ferry_status make_pattern(fy_registry *registry, const unsigned char *bits,
                                 uint64_t element_bytes, fy_pattern *pattern, ferry_error *error)
{
    memcpy(pattern->bits, bits, (size_t)element_bytes);
    pattern->element_bytes = element_bytes;
    pattern->memory = fy_alloc(PATTERN_BYTES, 1);
    FY_TRY(fy_check_memory(pattern->memory != NULL, "the fills of a plan", error));
    for (uint64_t at = 0; at + element_bytes <= PATTERN_BYTES; at += element_bytes) {
        memcpy(pattern->memory + at, bits, (size_t)element_bytes);
    }
    ferry_buffer buffer = ferry_buffer_of(pattern->memory, PATTERN_BYTES);
    return fy_registry_hold_tensor(registry, &buffer, NULL, 0, false, &pattern->held, error);
}

/* The held buffer with elements of these bits, made where there is none yet. */
static ferry_status find_pattern(fy_registry *registry, const unsigned char *bits,
                                 uint64_t element_bytes, uint32_t *held_out, ferry_error *error)
{
    uint64_t hash = hash_of(bits, element_bytes);
    fy_index_cursor c = fy_index_first(&registry->patterns_by_bits, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&registry->patterns_by_bits, &c)) {
        const fy_pattern *its = &registry->patterns[c.value];
        if (its->element_bytes == element_bytes &&
            memcmp(its->bits, bits, (size_t)element_bytes) == 0) {
            *held_out = its->held;
            return FERRY_OK;
        }
    }
    if (!FY_RESERVE(registry->patterns, registry->pattern_capacity, registry->n_patterns + 1) ||
        !fy_index_insert(&registry->patterns_by_bits, hash, (uint32_t)registry->n_patterns)) {
        return fy_fail_no_memory(error, "the fills of a plan");
    }
    fy_pattern *fresh = &registry->patterns[registry->n_patterns++];
    *fresh = (fy_pattern){.element_bytes = 0};
    ferry_status status = make_pattern(registry, bits, element_bytes, fresh, error);
    *held_out = fresh->held;
    return status;
}

/* As much of a run as the pattern has, so that runs are so often that. */
static uint64_t part_of_run(uint64_t run_bytes, uint64_t element_bytes)
{
    uint64_t n = run_bytes / element_bytes;
    uint64_t part = fy_min(n, PATTERN_BYTES / element_bytes);
    while (n % part != 0) {
        part--;
    }
    return part * element_bytes;
}

/* An area of which every run is so often a part of the pattern. */
static ferry_status add_parts(fy_registry *registry, uint32_t my_rank, uint32_t held,
                              uint32_t pattern, uint64_t part, uint64_t element_bytes,
                              const fy_area *area, ferry_error *error)
{
    uint64_t n = area->bytes / part, none = 0;
    fy_area from = fy_area_of(0, part, 1, &n, &none);
    uint64_t task = FY_FILL_TASKS + registry->n_fills++;
    FY_TRY(fy_registry_add_area(registry, true, task, my_rank, pattern, element_bytes, 0, &from,
                                error));
    return fy_registry_add_area(registry, false, task, my_rank, held, element_bytes, 0, area,
                                error);
}

/* Bytes [first, first + bytes) of every run. */
static fy_area part_of_runs(const fy_area *area, uint64_t first, uint64_t bytes)
{
    fy_area part = *area;
    part.offset += first;
    part.run_bytes = bytes;
    part.bytes = area->bytes / area->run_bytes * bytes;
    return part;
}

/* Where only small parts make a run, as of one with a prime number of elements, the whole pattern
 * makes most of it, and one part what is left. */
ferry_status fy_registry_add_fill(fy_registry *registry, uint32_t my_rank, uint32_t held,
                                  const unsigned char *bits, uint64_t element_bytes,
                                  const fy_area *area, ferry_error *error)
{
    uint32_t pattern = FY_NONE;
    FY_TRY(find_pattern(registry, bits, element_bytes, &pattern, error));
    uint64_t part = part_of_run(area->run_bytes, element_bytes);
    if (part == area->run_bytes || part >= PATTERN_BYTES / 4) {
        return add_parts(registry, my_rank, held, pattern, part, element_bytes, area, error);
    }
    uint64_t whole = PATTERN_BYTES / element_bytes * element_bytes;
    uint64_t most = area->run_bytes / whole * whole;
    fy_area begin = part_of_runs(area, 0, most);
    fy_area rest = part_of_runs(area, most, area->run_bytes - most);
    FY_TRY(add_parts(registry, my_rank, held, pattern, whole, element_bytes, &begin, error));
    return add_parts(registry, my_rank, held, pattern, rest.run_bytes, element_bytes, &rest, error);
}
