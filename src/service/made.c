/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes and scales that a rank makes itself, of blocks whose elements come from several ranks. The
 * values come into memory of the service's, as to any destination; once all of a run has arrived,
 * and before this rank votes, codes and scales are made of them, some rows of blocks in one step,
 * for others wait for signs of life. By the host here; in memory of a device see made_far.c.
 */
#include "service/made.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "convert/scale.h"
#include "exec/now.h"
#include "service/registry.h"

/* Of values that are read at once by one thread. */
enum { BAND_BYTES = 1 << 20, LINE = 64 };

static const fy_space host = {.kind = FERRY_MEMORY_HOST};

fy_matrix_bands fy_matrix_bands_of(const fy_quantized *q)
{
    fy_matrix_bands bands = {.row_bytes = q->n_columns * fy_cast_element_bytes(q->kind)};
    uint64_t unit = fy_row_unit(q->format.block[0]);
    uint64_t rows = BAND_BYTES / (bands.row_bytes + 1) / unit * unit;
    bands.rows = fy_max(rows, unit);
    bands.n = fy_ceil_div(q->n_rows, bands.rows);
    return bands;
}

uint64_t fy_band_at(const fy_quantized *q, const fy_matrix_bands *bands, uint64_t band,
                    uint64_t *n_rows_out)
{
    uint64_t row = band % bands->n * bands->rows;
    *n_rows_out = fy_min(bands->rows, q->n_rows - row);
    return (band / bands->n * q->n_rows + row) * bands->row_bytes;
}

/*
 * Registration
 */

void fy_makings_free(fy_registry *registry)
{
    for (size_t i = 0; i < registry->n_held; i++) {
        if (registry->held[i].codes != FY_NONE) {
            fy_gathered_free(&registry->held[i]);
        }
    }
    for (size_t i = 0; i < registry->n_makings; i++) {
        fy_free(registry->makings[i].tensor_scales);
    }
    fy_free(registry->makings);
    fy_free(registry->rows);
}

ferry_status fy_registry_gather(fy_registry *registry, uint32_t codes, uint64_t bytes,
                                uint32_t *held_out, ferry_error *error)
{
    uint64_t all;
    char *memory =
        fy_add(registry->gathered_bytes, bytes, &all) ? fy_alloc_zeroed(bytes + 1, 1) : NULL;
    FY_TRY(fy_check_memory(memory != NULL, "values that are quantized on arrival", error));
    ferry_buffer buffer = ferry_buffer_of(memory, bytes);
    ferry_status status =
        fy_registry_hold_tensor(registry, &buffer, NULL, 0, false, held_out, error);
    if (status != FERRY_OK) {
        fy_free(memory);
        return status;
    }
    registry->held[*held_out].codes = codes;
    registry->gathered_bytes = all;
    return FERRY_OK;
}

/* An area of a destination that this rank writes at the end of a run. */
static ferry_status add_made(fy_registry *registry, uint32_t held, const fy_area *area, fy_end *end,
                             ferry_error *error)
{
    if (held == FY_NONE) {
        return FERRY_OK;
    }
    FY_TRY(fy_registry_lay(registry, held, area, end, error));
    fy_registry_count(registry, held, area);
    return FERRY_OK;
}

/* Of f4, the scales of its matrices. */
static ferry_status add_given(fy_registry *registry, const fy_area *area, fy_code_maker *made,
                              ferry_error *error)
{
    if (made->given.held == FY_NONE) {
        return FERRY_OK;
    }
    FY_TRY(fy_registry_lay(registry, made->given.held, area, &made->given, error));
    registry->held[made->given.held].is_given = true;
    made->tensor_scales = fy_alloc_zeroed(made->n_planes + 1, sizeof *made->tensor_scales);
    return fy_check_memory(made->tensor_scales != NULL, "the codes of a plan", error);
}

ferry_status fy_registry_make(fy_registry *registry, const fy_code_maker *making,
                              const fy_area areas[4], ferry_error *error)
{
    fy_code_maker made = *making;
    fy_matrix_bands bands = fy_matrix_bands_of(&made.q);
    made.band_rows = bands.rows;
    made.n_bands = bands.n;
    made.first_band = registry->n_bands;
    FY_TRY(FY_GROW(registry->makings, registry->making_capacity, registry->n_makings + 1,
                   "the codes of a plan", error));
    FY_TRY(fy_registry_lay(registry, making->values.held, &areas[0], &made.values, error));
    FY_TRY(add_made(registry, making->codes.held, &areas[1], &made.codes, error));
    FY_TRY(add_made(registry, making->scales.held, &areas[2], &made.scales, error));
    FY_TRY(add_given(registry, &areas[3], &made, error));
    registry->held[made.values.held].making = (uint32_t)registry->n_makings;
    registry->n_bands += made.n_bands * made.n_planes;
    registry->makings[registry->n_makings++] = made;
    return FERRY_OK;
}

/*
 * Runs
 */

/* What a thread needs for a band: values, codes and scales, each from a line of its own on. */
typedef struct band_memory {
    uint64_t codes, scales, bytes;
} band_memory;

static uint64_t whole_lines(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static band_memory memory_of(const fy_code_maker *making, uint64_t rows)
{
    fy_quantized band = making->q;
    uint64_t shape[2];
    band.n_rows = fy_min(rows, band.n_rows);
    uint64_t n = band.n_rows * band.n_columns; /* it fits: the values lie in memory */
    fy_scales_shape(&band, shape);
    band_memory m = {.codes = whole_lines(n * fy_cast_element_bytes(band.kind))};
    m.scales = m.codes + whole_lines(band.n_rows * fy_codes_row_bytes(&band));
    m.bytes = m.scales + whole_lines(shape[0] * shape[1] * fy_scale_bytes(band.format.scale_kind));
    return m;
}

fy_made_part fy_made_part_of(const fy_code_maker *m, uint64_t plane, uint64_t row, uint64_t n_rows)
{
    uint64_t shape[2], value = fy_cast_element_bytes(m->q.kind);
    uint64_t code_row = fy_codes_row_bytes(&m->q);
    fy_made_part part = {.q = m->q, .first = (plane * m->q.n_rows + row) * m->q.n_columns};
    fy_scales_shape(&m->q, shape);
    part.first_scale = (plane * shape[0] + row / m->q.format.block[0]) * shape[1];
    part.scales_of_row = shape[1];
    part.q.n_rows = n_rows;
    part.q.tensor_scale = m->tensor_scales == NULL ? 0 : m->tensor_scales[plane];
    fy_scales_shape(&part.q, shape);
    part.n_scales = shape[0] * shape[1];
    part.first_value = part.first * value;
    part.value_bytes = n_rows * m->q.n_columns * value;
    part.first_code = (plane * m->q.n_rows + row) * code_row;
    part.code_bytes = n_rows * code_row;
    return part;
}

/* The rows of a band; the last of a matrix may have fewer. */
static uint64_t rows_of_band(const fy_code_maker *m)
{
    return fy_min(m->band_rows, m->q.n_rows);
}

/*
 * Rows that a thread makes at once, of a shorter band, too: fewer threads work on that, and none
 * has more than there is memory for. is_far: one thread makes all.
 */
static uint64_t rows_of_thread(const ferry_service *service, const fy_code_maker *m, bool is_far)
{
    uint64_t block = m->q.format.block[0], n_blocks = fy_ceil_div(rows_of_band(m), block);
    uint64_t n = is_far ? 1 : fy_min(fy_team_size(service->team), n_blocks);
    return fy_ceil_div(n_blocks, n) * block;
}

/* May, or must: values may wait where the CPU does not touch them. */
static bool may_be_far(const fy_registry *registry, uint32_t held)
{
    if (held == FY_NONE) {
        return false;
    }
    const fy_held *its = &registry->held[held];
    return its->front.kind != FERRY_MEMORY_HOST ||
           (its->back.base != NULL && its->back.kind != FERRY_MEMORY_HOST);
}

/* What all threads need at once. */
static uint64_t scratch_of(const ferry_service *service, const fy_code_maker *m)
{
    uint64_t most = rows_of_band(m), rows = rows_of_thread(service, m, false);
    uint64_t bytes = fy_ceil_div(most, rows) * (memory_of(m, rows).bytes + LINE);
    bool is_far = !fy_is_host(m->space) || may_be_far(&service->registry, m->codes.held) ||
                  may_be_far(&service->registry, m->scales.held);
    bytes = fy_max(bytes, fy_far_scratch(service, m));
    return is_far ? fy_max(bytes, memory_of(m, most).bytes + LINE) : bytes;
}

ferry_status fy_makings_open(ferry_service *service, fy_run_state *run, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    if (registry->n_makings == 0) {
        return FERRY_OK;
    }
    FY_TRY(fy_rings_open(service, run, error));
    for (size_t i = 0; i < registry->n_makings; i++) {
        run->made.scratch_bytes =
            fy_max(run->made.scratch_bytes, scratch_of(service, &registry->makings[i]));
    }
    run->made.scratch = fy_alloc(run->made.scratch_bytes, 1);
    FY_TRY(
        fy_check_memory(run->made.scratch != NULL, "values that are quantized on arrival", error));
    return fy_bands_open(service, run, error);
}

uint64_t fy_makings_bytes(const ferry_service *service)
{
    const fy_run_state *run = service->run;
    return fy_bands_bytes(service) + fy_packed_bytes(run) + run->made.scratch_bytes;
}

/* What a step works on: some rows of a band, for each thread, from `first` of a matrix on. */
typedef struct work {
    const ferry_service *service;
    const fy_code_maker *making;
    const char *base; /* of the values' memory */
    uint64_t plane, first, end, rows;
} work;

ferry_status fy_made_put(const fy_registry *registry, const fy_end *end, uint64_t first,
                         uint64_t bytes, const char *from, ferry_error *error)
{
    if (end->held == FY_NONE) {
        return FERRY_OK;
    }
    const ferry_buffer *to = fy_held_target(&registry->held[end->held]);
    fy_area area = fy_end_area(registry, end);
    if (to->kind == FERRY_MEMORY_HOST) {
        fy_area_unpack(&area, to->base, from, first, bytes);
        return FERRY_OK;
    }
    fy_area flat = fy_area_flat(0, area.bytes);
    const fy_now_side there = {.space = fy_space_of(to), .area = &area, .base = to->base};
    const fy_now_side here = {
        .space = host, .area = &flat, .base = (void *)((uintptr_t)from - (uintptr_t)first)};
    return fy_copy_part_now(&there, &here, first, bytes, error);
}

/* Of f4 the scales of its matrices, which have come. */
static ferry_status read_given(const ferry_service *service, const fy_code_maker *m,
                               ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    const ferry_buffer *from = fy_held_target(&registry->held[m->given.held]);
    fy_area all = fy_end_area(registry, &m->given), flat = fy_area_flat(0, all.bytes);
    const fy_now_side here = {.space = host, .area = &flat, .base = m->tensor_scales};
    const fy_now_side there = {.space = fy_space_of(from), .area = &all, .base = from->base};
    FY_TRY(fy_copy_now(&here, &there, NULL, error));
    return fy_scales_check_given(service, m->given.held, m->tensor_scales, m->n_planes,
                                 m->codes.held != FY_NONE ? m->codes.held : m->scales.held, error);
}

/* Values side by side: where they lie, or brought together. */
static ferry_status take_values(const work *w, uint64_t first, uint64_t bytes, char *memory,
                                const void **values_out, ferry_error *error)
{
    const fy_end *end = &w->making->values;
    fy_area area = fy_end_area(&w->service->registry, end), flat = fy_area_flat(0, area.bytes);
    *values_out = memory;
    if (!fy_is_host(w->making->space)) {
        const fy_now_side here = {
            .space = host, .area = &flat, .base = (void *)((uintptr_t)memory - (uintptr_t)first)};
        const fy_now_side there = {
            .space = w->making->space, .area = &area, .base = (void *)(uintptr_t)w->base};
        return fy_copy_part_now(&here, &there, first, bytes, error);
    }
    if (end->n_dims == 0) {
        *values_out = (const void *)((uintptr_t)w->base + end->offset + first);
    } else {
        fy_area_pack_cached(memory, &area, w->base, first, bytes);
    }
    return FERRY_OK;
}

/* Fails only in memory of a device: what is wrong with a format was said when it was bound. */
static ferry_status make_rows(const work *w, uint64_t index, ferry_error *error)
{
    const fy_code_maker *m = w->making;
    const fy_run_state *run = w->service->run;
    const fy_registry *registry = &w->service->registry;
    uint64_t row = w->first + index * w->rows;
    fy_made_part p = fy_made_part_of(m, w->plane, row, fy_min(w->rows, w->end - row));
    uint64_t scale = fy_scale_bytes(p.q.format.scale_kind);
    band_memory parts = memory_of(m, w->rows);
    uint64_t slot = (uint64_t)(uintptr_t)run->made.scratch + index * (parts.bytes + LINE);
    char *memory = run->made.scratch + (whole_lines(slot) - (uint64_t)(uintptr_t)run->made.scratch);
    fy_input values = {.n_bytes = p.value_bytes};
    fy_output codes = {.data = memory + parts.codes, .n_bytes = p.code_bytes};
    fy_output scales = {.data = memory + parts.scales, .n_bytes = p.n_scales * scale};
    FY_TRY(take_values(w, p.first_value, p.value_bytes, memory, &values.data, error));
    FY_TRY(fy_quantize(&p.q, &values, &codes, &scales, error));
    FY_TRY(fy_made_put(registry, &m->codes, p.first_code, codes.n_bytes, codes.data, error));
    return fy_made_put(registry, &m->scales, p.first_scale * scale, scales.n_bytes, scales.data,
                       error);
}

static void make_rows_of_team(void *context, uint64_t index)
{
    (void)make_rows(context, index, NULL);
}

static bool is_host(const fy_registry *registry, uint32_t held)
{
    return held == FY_NONE || fy_held_target(&registry->held[held])->kind == FERRY_MEMORY_HOST;
}

/* A band; the threads have some rows of blocks each. */
static ferry_status make_band(ferry_service *service, const fy_code_maker *m, uint64_t band,
                              ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    uint64_t number = band - m->first_band;
    work w = {.service = service,
              .making = m,
              .base = fy_band_base(service, m->values.held, band),
              .plane = number / m->n_bands,
              .first = number % m->n_bands * m->band_rows};
    w.end = fy_min(w.first + m->band_rows, m->q.n_rows);
    bool is_far = !fy_is_host(m->space) || !is_host(registry, m->codes.held) ||
                  !is_host(registry, m->scales.held);
    w.rows = rows_of_thread(service, m, is_far);
    if (is_far) {
        return make_rows(&w, 0, error);
    }
    fy_team_run(service->team, fy_ceil_div(w.end - w.first, w.rows), make_rows_of_team, &w);
    return FERRY_OK;
}

/* Bands are made, whose places are free. */
static void count(ferry_service *service, const fy_code_maker *m, uint64_t n_bands)
{
    fy_run_state *run = service->run;
    run->made.n_bands += n_bands;
    run->made.n += run->made.n_bands == m->first_band + m->n_bands * m->n_planes;
    fy_drive_raise(&run->drive, fy_counter_of(service->program->n_channels, 0), run->made.n_bands);
}

/* The next bands, or one: *n_out were made. By a device they may take several steps. */
static ferry_status make_next(ferry_service *service, const fy_code_maker *m, uint64_t *n_out,
                              ferry_error *error)
{
    uint64_t band = service->run->made.n_bands;
    bool reads = m->tensor_scales != NULL && band == m->first_band;
    *n_out = 0;
    if (service->run->made.far.by != NULL) {
        return fy_far_go_on(service, m, n_out, error);
    }
    FY_TRY(reads ? read_given(service, m, error) : FERRY_OK);
    if (fy_far_begin(service, m)) {
        return FERRY_OK;
    }
    *n_out = 1;
    return make_band(service, m, band, error);
}

bool fy_makings_step(ferry_service *service)
{
    fy_run_state *run = service->run;
    const fy_registry *registry = &service->registry;
    ferry_error why;
    uint64_t n;
    if (run->made.n == registry->n_makings || !fy_band_is_there(service, run->made.n_bands)) {
        return false;
    }
    const fy_code_maker *making = &registry->makings[run->made.n];
    ferry_status status = make_next(service, making, &n, &why);
    if (status == FERRY_ERR_TIMEOUT) {
        return false;
    }
    if (status != FERRY_OK) {
        fy_run_fail(service, status, service->world->rank, "%s", why.message);
        return true;
    }
    count(service, making, n);
    return true;
}

void fy_makings_miss(ferry_service *service)
{
    const fy_registry *registry = &service->registry;
    for (size_t i = service->run->made.n; i < registry->n_makings; i++) {
        const fy_end *made[] = {&registry->makings[i].codes, &registry->makings[i].scales};
        for (size_t k = 0; k < 2; k++) {
            if (made[k]->held != FY_NONE) {
                registry->targets[registry->held[made[k]->held].destination].missing +=
                    made[k]->bytes;
            }
        }
    }
}
