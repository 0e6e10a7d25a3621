/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes and scales that a rank makes itself, in memory of a device: there the values wait too, and
 * the device's verbs make what made.c makes on the host, with the same bits. A device finds the
 * largest magnitudes, which go to the host; the host makes scales of them, and a cast divides by
 * these, from the values to the codes' places. So a band takes two steps, and the run goes on
 * meanwhile: a band is made, and its place free for another, once the ticket behind the second step
 * is reached. What a device cannot do here the host does, one band at a time.
 */
#include "service/made.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "convert/scale.h"
#include "exec/now.h"
#include "memory/local.h"
#include "service/registry.h"

enum { FAR_BYTES = 8 << 20, LINE = 64 }; /* of values that a device works on at once */

static const fy_space host = {.kind = FERRY_MEMORY_HOST};

/*
 * Where values wait
 */

static bool makes_codes(const fy_exec *exec, const fy_quantized *q)
{
    const uint64_t *block = q->format.block;
    return exec != NULL &&
           (q->format.kind == FERRY_F4 ? exec->nvfp4 != NULL && block[0] == 1 && block[1] == 16
                                       : exec->largest != NULL);
}

/* Where codes go, if what lies there makes them; else the host. */
static fy_space wanted_space(const fy_registry *registry, const fy_code_maker *m)
{
    const fy_held *codes = &registry->held[registry->held[m->values.held].codes];
    fy_space its = fy_space_of(fy_held_target(codes));
    return !fy_is_host(its) && makes_codes(fy_exec_for(its, its).exec, &m->q) ? its : host;
}

uint64_t fy_makings_choose(fy_registry *registry)
{
    uint64_t n_spaces = 0;
    for (size_t i = 0; i < registry->n_makings; i++) {
        fy_code_maker *m = &registry->makings[i];
        size_t k = 0;
        m->space = wanted_space(registry, m);
        while (k < i && !fy_same_space(registry->makings[k].space, m->space)) {
            k++;
        }
        n_spaces += k == i;
    }
    return n_spaces;
}

void fy_gathered_free(fy_held *held)
{
    for (int i = 0; i < 2; i++) { /* nobody opens it any more */
        ferry_region_free(held->regions[i]);
        held->regions[i] = NULL;
    }
    if (fy_is_host(fy_space_of(&held->front))) {
        fy_free(held->front.base);
    } else {
        fy_local_free(held->front.base);
    }
    held->front.base = NULL;
}

static ferry_status take_memory(fy_space space, uint64_t bytes, void **memory_out,
                                ferry_error *error)
{
    if (!fy_is_host(space)) {
        return fy_local_alloc(space, bytes + 1, memory_out, error);
    }
    *memory_out = fy_alloc_zeroed(bytes + 1, 1);
    return fy_check_memory(*memory_out != NULL, "values that are quantized on arrival", error);
}

static void give_memory(fy_space space, void *memory)
{
    if (fy_is_host(space)) {
        fy_free(memory);
    } else if (memory != NULL) {
        fy_local_free(memory);
    }
}

/* All values of a buffer of codes in that space; nothing has come yet. */
static ferry_status move_gathered(fy_registry *registry, fy_held *held, fy_space space,
                                  ferry_error *error)
{
    void *memory = NULL;
    if (fy_same_space(space, fy_space_of(&held->front))) {
        return FERRY_OK;
    }
    FY_TRY(take_memory(space, held->front.bytes, &memory, error));
    uint64_t bytes = held->front.bytes;
    fy_gathered_free(held);
    held->front = ferry_buffer_of(memory, bytes);
    held->front.kind = space.kind;
    held->front.device = space.device;
    fy_registry_note(registry, &held->front);
    return FERRY_OK;
}

/* A device that has no memory for all of them leaves them to the host. */
ferry_status fy_makings_gather(fy_registry *registry, bool by_bands, ferry_error *error)
{
    for (size_t i = 0; i < registry->n_makings; i++) {
        fy_code_maker *m = &registry->makings[i];
        fy_held *held = &registry->held[m->values.held];
        fy_space space = by_bands ? host : m->space;
        if (move_gathered(registry, held, space, NULL) != FERRY_OK) {
            FY_TRY(move_gathered(registry, held, host, error));
        }
    }
    for (size_t i = 0; i < registry->n_makings && !by_bands; i++) {
        fy_code_maker *m = &registry->makings[i];
        m->space = fy_space_of(&registry->held[m->values.held].front);
    }
    return FERRY_OK;
}

/*
 * What runs need
 */

fy_ring *fy_ring_of(const fy_run_state *run, fy_space space)
{
    uint32_t i = 0;
    while (i < run->made.n_rings && !fy_same_space(run->made.rings[i].space, space)) {
        i++;
    }
    return i == run->made.n_rings ? NULL : &run->made.rings[i];
}

static ferry_status add_ring(const ferry_service *service, fy_run_state *run, fy_space space,
                             ferry_error *error)
{
    const fy_service_program *program = service->program;
    fy_ring ring = {.space = space};
    if (fy_ring_of(run, space) != NULL) {
        return FERRY_OK;
    }
    if (program->n_places > 0) {
        void *memory = NULL;
        FY_TRY(take_memory(space, program->n_places * program->place_bytes, &memory, error));
        ring.base = memory;
    }
    run->made.rings[run->made.n_rings++] = ring;
    return FERRY_OK;
}

static uint64_t band_bytes(const fy_code_maker *m)
{
    return fy_min(m->band_rows, m->q.n_rows) * m->q.n_columns * fy_cast_element_bytes(m->q.kind);
}

/* Where bands in boxes are brought together; one that finds no room for that is the host's. */
static void add_packed(const fy_registry *registry, fy_ring *ring)
{
    uint64_t most = 0;
    for (size_t i = 0; i < registry->n_makings; i++) {
        const fy_code_maker *m = &registry->makings[i];
        bool is_its = m->values.n_dims != 0 && fy_same_space(m->space, ring->space);
        most = is_its ? fy_max(most, band_bytes(m)) : most;
    }
    void *memory = NULL;
    if (most > 0 && fy_local_alloc(ring->space, most, &memory, NULL) == FERRY_OK) {
        ring->packed = memory;
        ring->packed_bytes = most;
    }
}

/* A device without memory for the values of some makings leaves those to the host. */
static void leave(fy_registry *registry, fy_space space)
{
    for (size_t i = 0; i < registry->n_makings; i++) {
        fy_code_maker *m = &registry->makings[i];
        m->space = fy_same_space(m->space, space) ? host : m->space;
    }
}

ferry_status fy_rings_open(ferry_service *service, fy_run_state *run, ferry_error *error)
{
    fy_registry *registry = &service->registry;
    run->made.rings = fy_alloc_zeroed(registry->n_makings + 1, sizeof *run->made.rings);
    FY_TRY(fy_check_memory(run->made.rings != NULL, "values that are quantized on arrival", error));
    for (size_t i = 0; i < registry->n_makings; i++) {
        const fy_code_maker *m = &registry->makings[i];
        if (!fy_is_host(m->space) && add_ring(service, run, m->space, NULL) != FERRY_OK) {
            leave(registry, m->space);
        }
        FY_TRY(add_ring(service, run, m->space, error)); /* the host's, or one that is there */
    }
    for (uint32_t i = 0; i < run->made.n_rings; i++) {
        fy_ring *ring = &run->made.rings[i];
        if (!fy_is_host(ring->space)) {
            add_packed(registry, ring);
            FY_TRY(fy_queues_add(&run->made.queues, fy_exec_for(ring->space, ring->space), error));
        }
    }
    return FERRY_OK;
}

uint64_t fy_packed_bytes(const fy_run_state *run)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < run->made.n_rings; i++) {
        bytes += run->made.rings[i].packed_bytes;
    }
    return bytes;
}

void fy_rings_close(fy_run_state *run)
{
    fy_queues_close(&run->made.queues);
    for (uint32_t i = 0; i < run->made.n_rings; i++) {
        give_memory(run->made.rings[i].space, run->made.rings[i].base);
        give_memory(run->made.rings[i].space, run->made.rings[i].packed);
    }
    fy_free(run->made.rings);
}

/*
 * What a device works on at once
 */

/* Bands of one matrix from a number on, which lie side by side; one where they need not. */
static uint64_t bands_at_once(const ferry_service *service, const fy_code_maker *m, uint64_t number)
{
    bool is_one = service->program->n_places > 0 || m->values.n_dims != 0;
    uint64_t left = m->n_bands - number % m->n_bands;
    return is_one ? 1 : fy_min(left, fy_max(FAR_BYTES / (band_bytes(m) + 1), 1));
}

typedef struct work {
    const fy_code_maker *m;
    fy_device_queue *by;
    fy_made_part part;
    const char *values; /* side by side, in memory of the device */
    float *largest;     /* of each block; then what its elements are divided by */
    char *stored;       /* and its scale */
} work;

static uint64_t lines_of(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

uint64_t fy_far_scratch(const ferry_service *service, const fy_code_maker *m)
{
    fy_quantized q = m->q;
    uint64_t shape[2];
    if (fy_is_host(m->space) || q.format.kind == FERRY_F4) {
        return 0;
    }
    q.n_rows = fy_min(bands_at_once(service, m, 0) * m->band_rows, q.n_rows);
    fy_scales_shape(&q, shape);
    return lines_of(shape[0] * shape[1] * sizeof(float)) +
           shape[0] * shape[1] * fy_scale_bytes(q.format.scale_kind) + LINE;
}

static work work_of(ferry_service *service, const fy_code_maker *m, fy_device_queue *by,
                    uint64_t n_bands)
{
    fy_run_state *run = service->run;
    uint64_t number = run->made.n_bands - m->first_band, row = number % m->n_bands * m->band_rows;
    work w = {.m = m, .by = by};
    w.part = fy_made_part_of(m, number / m->n_bands, row,
                             fy_min(n_bands * m->band_rows, m->q.n_rows - row));
    char *base = fy_band_base(service, m->values.held, run->made.n_bands);
    w.values = m->values.n_dims != 0
                   ? fy_ring_of(run, m->space)->packed
                   : (char *)((uintptr_t)base + m->values.offset + w.part.first_value);
    uintptr_t scratch = (uintptr_t)run->made.scratch;
    char *at = run->made.scratch + (lines_of(scratch) - scratch);
    w.largest = (float *)(void *)at;
    w.stored = at + lines_of(w.part.n_scales * sizeof(float));
    return w;
}

/* Memory whose first byte is that of number `first`, as the base of an area without gaps. */
static void *base_from(const void *memory, uint64_t first)
{
    return (void *)((uintptr_t)memory - (uintptr_t)first);
}

/*
 * Steps
 */

/* Values of a box come side by side first. */
static ferry_status pack(const ferry_service *service, const work *w, ferry_error *error)
{
    uint64_t first = w->part.first_value, bytes = w->part.value_bytes;
    if (w->m->values.n_dims == 0) {
        return FERRY_OK;
    }
    fy_area area = fy_end_area(&service->registry, &w->m->values);
    fy_area flat = fy_area_flat(0, area.bytes);
    const char *base = fy_band_base(service, w->m->values.held, service->run->made.n_bands);
    return w->by->exec->copy(w->by->queue, &flat, base_from(w->values, first), &area, base, first,
                             bytes, NULL, error);
}

static fy_exec_place place_of(const ferry_service *service, const fy_end *end, uint64_t first)
{
    const fy_registry *registry = &service->registry;
    fy_exec_place place = {.first = first};
    if (end->held != FY_NONE) {
        place.area = fy_end_area(registry, end);
        place.base = fy_held_target(&registry->held[end->held])->base;
    }
    return place;
}

static ferry_status make_halves(const ferry_service *service, const work *w, ferry_error *error)
{
    const fy_made_part *p = &w->part;
    const fy_halves halves = {.kind = p->q.kind,
                              .of_matrix = p->q.tensor_scale,
                              .n_rows = p->q.n_rows,
                              .n_columns = p->q.n_columns};
    const fy_exec_place codes = place_of(service, &w->m->codes, p->first_code);
    const fy_exec_place scales = place_of(service, &w->m->scales, p->first_scale);
    return w->by->exec->nvfp4(w->by->queue, &halves, w->values, &codes, &scales, error);
}

static ferry_status find_largest(const work *w, ferry_error *error)
{
    const fy_quantized *q = &w->part.q;
    const fy_blocks blocks = {.kind = q->kind,
                              .n_rows = q->n_rows,
                              .n_columns = q->n_columns,
                              .block = {q->format.block[0], q->format.block[1]}};
    return w->by->exec->largest(w->by->queue, &blocks, w->values, w->largest, error);
}

/* Elements of the making, in whose matrices they lie as in those of the codes. */
static ferry_status divide(const ferry_service *service, const work *w, ferry_error *error)
{
    const fy_made_part *p = &w->part;
    const fy_code_maker *m = w->m;
    const fy_exec_place codes = place_of(service, &m->codes, 0);
    uint64_t value = fy_cast_element_bytes(p->q.kind), row = p->first / m->q.n_columns;
    uint64_t scales_before = row % m->q.n_rows / m->q.format.block[0] * p->scales_of_row;
    const fy_cast cast = {
        .from_kind = m->q.kind,
        .to_kind = m->q.format.kind,
        .overflow = FY_OVERFLOW_CODES,
        .n_rows = m->q.n_rows,
        .n_columns = m->q.n_columns,
        .to_scales = {.values = base_from(w->largest, scales_before * sizeof *w->largest),
                      .block = {m->q.format.block[0], m->q.format.block[1]},
                      .pitch = p->scales_of_row}};
    fy_area values = fy_area_flat(0, codes.area.bytes * value);
    return m->codes.held == FY_NONE
               ? FERRY_OK
               : w->by->exec->cast(w->by->queue, &cast, &codes.area, codes.base, &values,
                                   base_from(w->values, p->first_value), p->first,
                                   p->q.n_rows * p->q.n_columns, NULL, error);
}

static ferry_status put_scales(const ferry_service *service, const work *w, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    const fy_end *end = &w->m->scales;
    uint64_t each = fy_scale_bytes(w->m->q.format.scale_kind);
    uint64_t first = w->part.first_scale * each, bytes = w->part.n_scales * each;
    if (end->held == FY_NONE) {
        return FERRY_OK;
    }
    const ferry_buffer *to = fy_held_target(&registry->held[end->held]);
    if (!fy_same_space(fy_space_of(to), w->m->space)) {
        return fy_made_put(registry, end, first, bytes, w->stored, error);
    }
    fy_area area = fy_end_area(registry, end), flat = fy_area_flat(0, area.bytes);
    return w->by->exec->copy(w->by->queue, &area, to->base, &flat, base_from(w->stored, first),
                             first, bytes, NULL, error);
}

static ferry_status mark(fy_run_state *run, ferry_error *error)
{
    const fy_device_queue *by = run->made.far.by;
    return by->exec->mark(by->queue, &run->made.far.ticket, error);
}

/* Whether the device of the values is that of the codes: a run may write to the other of a pair. */
static bool is_near(const fy_registry *registry, const fy_code_maker *m)
{
    return !fy_is_host(m->space) &&
           (m->codes.held == FY_NONE ||
            fy_same_space(fy_space_of(fy_held_target(&registry->held[m->codes.held])), m->space));
}

bool fy_far_begin(ferry_service *service, const fy_code_maker *m)
{
    fy_run_state *run = service->run;
    uint64_t n_bands = bands_at_once(service, m, run->made.n_bands - m->first_band);
    bool needs_packed = m->values.n_dims != 0;
    if (!is_near(&service->registry, m) ||
        (needs_packed && fy_ring_of(run, m->space)->packed == NULL)) {
        return false;
    }
    fy_device_queue *by = fy_queues_find(&run->made.queues, fy_exec_for(m->space, m->space));
    work w = work_of(service, m, by, n_bands);
    bool is_half = m->q.format.kind == FERRY_F4;
    run->made.far = (fy_far_making){.by = by, .n_bands = n_bands, .is_coded = is_half};
    ferry_status status = pack(service, &w, NULL);
    FY_THEN(status, is_half ? make_halves(service, &w, NULL) : find_largest(&w, NULL));
    FY_THEN(status, mark(run, NULL));
    if (status != FERRY_OK) { /* the host makes it, once nothing of this is under way */
        fy_makings_finish(service);
    }
    return status == FERRY_OK;
}

/* What scales are made of is here. */
static ferry_status make_codes(ferry_service *service, const fy_code_maker *m, ferry_error *error)
{
    fy_far_making *far = &service->run->made.far;
    work w = work_of(service, m, far->by, far->n_bands);
    fy_scales_of_largest(&m->q, w.largest, w.stored, w.part.n_scales);
    FY_TRY(divide(service, &w, error));
    FY_TRY(put_scales(service, &w, error));
    far->is_coded = true;
    return mark(service->run, error);
}

ferry_status fy_far_go_on(ferry_service *service, const fy_code_maker *m, uint64_t *n_out,
                          ferry_error *error)
{
    fy_far_making *far = &service->run->made.far;
    ferry_status status = fy_exec_reached(far->by->exec, far->by->queue, far->ticket, error);
    *n_out = 0;
    if (status == FERRY_OK && !far->is_coded) {
        status = make_codes(service, m, error);
    } else if (status == FERRY_OK) {
        *n_out = far->n_bands;
        far->by = NULL;
    }
    if (status != FERRY_OK && status != FERRY_ERR_TIMEOUT) {
        fy_makings_finish(service);
    }
    return status;
}

void fy_makings_finish(ferry_service *service)
{
    fy_far_making *far = &service->run->made.far;
    if (far->by != NULL) {
        (void)fy_exec_finish(far->by->exec, far->by->queue, NULL);
        far->by = NULL;
    }
}

bool fy_makings_are_still(ferry_service *service, bool gives_up)
{
    fy_far_making *far = &service->run->made.far;
    if (far->by != NULL && gives_up &&
        fy_exec_reached(far->by->exec, far->by->queue, far->ticket, NULL) != FERRY_ERR_TIMEOUT) {
        far->by = NULL;
    }
    return far->by == NULL;
}
