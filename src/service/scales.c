/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Scales of what a rank sends as codes. They are made when a run begins, before anything is sent:
 * then each code is a quotient that is rounded, and codes are cast within the copies like all that
 * is cast. Codes of half a byte are made here too, with a scale of each matrix that the caller
 * gives, and are sent from where they lie. Some rows of blocks are made in one step, for others
 * wait for signs of life.
 */
#include "service/run.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "exec/now.h"
#include "service/registry.h"

enum { FAR_BYTES = 64 << 20 }; /* of values that a device looks at in one step */

void fy_scalings_free(fy_registry *registry)
{
    for (size_t i = 0; i < registry->n_scalings; i++) {
        fy_free(registry->scalings[i].stored);
        fy_free(registry->scalings[i].divisors);
        fy_free(registry->scalings[i].codes);
        fy_free(registry->scalings[i].tensor_scales);
    }
    fy_free(registry->scalings);
    fy_index_cleanup(&registry->scalings_by_source);
}

static bool is_same(const fy_scaling *s, uint32_t source, const fy_quantized *q)
{
    const fy_block_format *a = &s->q.format, *b = &q->format;
    return s->source == source && a->kind == b->kind && a->scale_kind == b->scale_kind &&
           a->rule == b->rule && a->block[0] == b->block[0] && a->block[1] == b->block[1];
}

static uint64_t scale_bytes(const fy_scaling *s)
{
    return s->q.format.scale_kind == FERRY_F32 ? sizeof(float) : 1;
}

/* What codes of half a byte take. */
static ferry_status fill_in_codes(fy_registry *registry, fy_scaling *s, ferry_error *error)
{
    uint64_t bytes = fy_codes_row_bytes(&s->q) * s->q.n_rows * s->n_planes; /* less than values */
    s->codes = fy_alloc_zeroed(bytes + 1, 1);
    s->tensor_scales = fy_alloc_zeroed(s->n_planes + 1, sizeof *s->tensor_scales);
    FY_TRY(fy_check_memory(s->codes != NULL && s->tensor_scales != NULL, "the codes of a plan",
                           error));
    ferry_buffer buffer = ferry_buffer_of(s->codes, bytes);
    return fy_registry_hold_tensor(registry, &buffer, NULL, 0, false, &s->held_codes, error);
}

static ferry_status fill_in(fy_registry *registry, fy_scaling *s, ferry_error *error)
{
    uint64_t shape[2], all;
    fy_scales_shape(&s->q, shape);
    if (!fy_mul(shape[0], shape[1], &s->n) || !fy_mul(s->n, s->n_planes, &all)) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN, "a tensor has too many scales");
    }
    s->stored = fy_alloc_zeroed(all + 1, scale_bytes(s));
    s->divisors = s->given == FY_NONE ? fy_alloc_zeroed(all + 1, sizeof *s->divisors) : NULL;
    FY_TRY(fy_check_memory(s->stored != NULL && (s->divisors != NULL || s->given != FY_NONE),
                           "the scales of a plan", error));
    FY_TRY(s->given == FY_NONE ? FERRY_OK : fill_in_codes(registry, s, error));
    ferry_buffer buffer = ferry_buffer_of(s->stored, all * scale_bytes(s));
    return fy_registry_hold_tensor(registry, &buffer, NULL, 0, false, &s->held, error);
}

ferry_status fy_registry_scale(fy_registry *registry, uint32_t source, uint32_t given,
                               const fy_quantized *q, uint64_t n_planes, uint32_t *number_out,
                               ferry_error *error)
{
    uint64_t hash = fy_hash_mix(source, 2);
    fy_index_cursor c = fy_index_first(&registry->scalings_by_source, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&registry->scalings_by_source, &c)) {
        if (is_same(&registry->scalings[c.value], source, q)) {
            *number_out = c.value;
            return FERRY_OK;
        }
    }
    size_t n = registry->n_scalings;
    if (!FY_RESERVE(registry->scalings, registry->scaling_capacity, n + 1) ||
        !fy_index_insert(&registry->scalings_by_source, hash, (uint32_t)n)) {
        return fy_fail_no_memory(error, "the scales of a plan");
    }
    registry->scalings[n] = (fy_scaling){
        .q = *q, .n_planes = n_planes, .source = source, .given = given, .held_codes = FY_NONE};
    registry->n_scalings = n + 1;
    *number_out = (uint32_t)n;
    return fill_in(registry, &registry->scalings[n], error);
}

/*
 * Runs
 */

/* What a step works on: bands of a source from `first` on, each some rows of blocks. */
typedef struct work {
    const fy_scaling *scaling;
    const char *values; /* of the first element; or of the first of the first band, */
    bool is_brought;    /* which then is the only one */
    fy_matrix_bands bands;
    uint64_t first;
} work;

/* Cannot fail: what is wrong with a format or a shape was said when it was bound. */
static void make_band(void *context, uint64_t index)
{
    const work *w = context;
    const fy_scaling *s = w->scaling;
    uint64_t band = w->first + index, shape[2];
    fy_quantized q = s->q;
    uint64_t at = fy_band_at(&s->q, &w->bands, band, &q.n_rows);
    fy_scales_shape(&q, shape);
    uint64_t block_row = band % w->bands.n * (w->bands.rows / q.format.block[0]);
    uint64_t first = band / w->bands.n * s->n + block_row * shape[1], n = shape[0] * shape[1];
    fy_input values = {.data = w->values + (w->is_brought ? 0 : at),
                       .n_bytes = q.n_rows * w->bands.row_bytes};
    fy_output stored = {.data = s->stored + first * scale_bytes(s), .n_bytes = n * scale_bytes(s)};
    if (s->given != FY_NONE) {
        uint64_t row_bytes = fy_codes_row_bytes(&q);
        fy_output codes = {.data = s->codes + at / w->bands.row_bytes * row_bytes,
                           .n_bytes = q.n_rows * row_bytes};
        q.tensor_scale = s->tensor_scales[band / w->bands.n];
        (void)fy_quantize(&q, &values, &codes, &stored, NULL);
        return;
    }
    fy_output divisors = {.data = s->divisors + first, .n_bytes = n * sizeof(float)};
    (void)fy_block_scales(&q, &values, &stored, &divisors, NULL);
}

ferry_status fy_scales_check_given(const ferry_service *service, uint32_t given,
                                   const float *scales, uint64_t n, uint32_t values,
                                   ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    for (uint64_t i = 0; i < n; i++) {
        float scale = scales[i];
        if (!fy_is_tensor_scale(scale)) {
            return fy_fail(
                error, FERRY_ERR_INVALID_INPUT,
                "%s: element %llu at rank %u is %g, by which \"%s\" cannot become nvfp4; "
                "give the largest magnitude of the matrix / 2688, from 2^-117 to 2^119, "
                "and 1 where that is 0",
                registry->names + registry->held[given].name, (unsigned long long)i,
                service->world->rank, (double)scale, registry->names + registry->held[values].name);
        }
    }
    return FERRY_OK;
}

/* The scales of its matrices that the caller gives, as they are now. */
static ferry_status read_given(ferry_service *service, const fy_scaling *s, ferry_error *error)
{
    const fy_space host = {.kind = FERRY_MEMORY_HOST};
    const ferry_buffer *given = &service->registry.held[s->given].front;
    FY_TRY(fy_move_now(host, s->tensor_scales, fy_space_of(given), given->base,
                       s->n_planes * sizeof *s->tensor_scales, error));
    return fy_scales_check_given(service, s->given, s->tensor_scales, s->n_planes, s->source,
                                 error);
}

/* One band of memory that the CPU does not touch, or that begins within an element. */
static ferry_status bring_band(const ferry_buffer *source, work *w, ferry_error *error)
{
    const fy_space host = {.kind = FERRY_MEMORY_HOST};
    uint64_t n_rows, at = fy_band_at(&w->scaling->q, &w->bands, w->first, &n_rows);
    uint64_t bytes = n_rows * w->bands.row_bytes;
    char *memory = fy_alloc(bytes + 1, 1);
    FY_TRY(fy_check_memory(memory != NULL, "the scales of a plan", error));
    ferry_status status = fy_move_now(host, memory, fy_space_of(source),
                                      (const char *)source->base + at, bytes, error);
    w->values = memory;
    w->is_brought = true;
    if (status == FERRY_OK) {
        make_band(w, 0);
    }
    fy_free(memory);
    return status;
}

/* Some bands of a matrix, at most `most`, and no more than a device looks at in one step. */
typedef struct part_of {
    fy_quantized q;       /* they alone */
    uint64_t n;           /* bands */
    uint64_t at;          /* bytes of the source */
    uint64_t first_scale; /* of all of its matrices' */
} part_of;

static part_of part_of_bands(const work *w, uint64_t most)
{
    const fy_scaling *s = w->scaling;
    uint64_t left = w->bands.n - w->first % w->bands.n, n_rows, shape[2];
    uint64_t room = FAR_BYTES / (w->bands.rows * w->bands.row_bytes + 1) + 1;
    part_of part = {.q = s->q, .n = fy_min(fy_min(most, left), room)};
    part.at = fy_band_at(&s->q, &w->bands, w->first, &n_rows);
    uint64_t last_at = fy_band_at(&s->q, &w->bands, w->first + part.n - 1, &n_rows);
    part.q.n_rows = n_rows + (last_at - part.at) / w->bands.row_bytes;
    fy_scales_shape(&part.q, shape);
    uint64_t block_row = w->first % w->bands.n * (w->bands.rows / s->q.format.block[0]);
    part.first_scale = w->first / w->bands.n * s->n + block_row * shape[1];
    return part;
}

/*
 * Of memory of a device some bands of a matrix at once, where the device finds what their scales
 * are made of; how many they are, at most `most`.
 */
static ferry_status make_bands_far(const ferry_buffer *source, const work *w, uint64_t most,
                                   uint64_t *n_out, ferry_error *error)
{
    const fy_scaling *s = w->scaling;
    const fy_quantized *q = &s->q;
    const part_of part = part_of_bands(w, most);
    uint64_t shape[2];
    fy_scales_shape(&part.q, shape);
    const fy_blocks blocks = {.kind = q->kind,
                              .n_rows = part.q.n_rows,
                              .n_columns = q->n_columns,
                              .block = {q->format.block[0], q->format.block[1]}};
    FY_TRY(fy_largest_now(fy_space_of(source), &blocks, (const char *)source->base + part.at,
                          s->divisors + part.first_scale, error));
    fy_scales_of_largest(q, s->divisors + part.first_scale,
                         s->stored + part.first_scale * scale_bytes(s), shape[0] * shape[1]);
    *n_out = part.n;
    return FERRY_OK;
}

/* The same of codes of half a byte, which the device makes with their scales. */
static ferry_status make_halves_far(const ferry_buffer *source, const work *w, uint64_t most,
                                    uint64_t *n_out, ferry_error *error)
{
    const fy_scaling *s = w->scaling;
    const part_of part = part_of_bands(w, most);
    const fy_halves halves = {.kind = s->q.kind,
                              .of_matrix = s->tensor_scales[w->first / w->bands.n],
                              .n_rows = part.q.n_rows,
                              .n_columns = s->q.n_columns};
    const uint64_t *block = s->q.format.block;
    uint64_t row = part.at / w->bands.row_bytes;
    if (block[0] != 1 || block[1] != 16) {
        return FERRY_ERR_UNSUPPORTED;
    }
    *n_out = part.n;
    return fy_nvfp4_now(fy_space_of(source), &halves, (const char *)source->base + part.at,
                        s->codes + row * fy_codes_row_bytes(&s->q),
                        s->stored + part.first_scale * scale_bytes(s), error);
}

/* How many bands were made. */
static uint64_t make_some(ferry_service *service, work *w, uint64_t most, ferry_status *status_out,
                          ferry_error *error)
{
    const ferry_buffer *source = &service->registry.held[w->scaling->source].front;
    bool is_aligned = (uintptr_t)source->base % fy_cast_element_bytes(w->scaling->q.kind) == 0;
    uint64_t n_far = 0;
    bool is_far = source->kind != FERRY_MEMORY_HOST && is_aligned;
    if (is_far && (w->scaling->given == FY_NONE ? make_bands_far : make_halves_far)(
                      source, w, most, &n_far, NULL) == FERRY_OK) {
        return n_far;
    }
    if (source->kind != FERRY_MEMORY_HOST || !is_aligned) {
        *status_out = bring_band(source, w, error);
        return 1;
    }
    uint64_t n = fy_min(most, fy_team_size(service->team));
    w->values = source->base;
    fy_team_run(service->team, n, make_band, w);
    return n;
}

bool fy_scales_step(ferry_service *service)
{
    fy_run_state *run = service->run;
    const fy_registry *registry = &service->registry;
    if (run->scaled.n_done == registry->n_scalings) {
        return false;
    }
    work w = {.scaling = &registry->scalings[run->scaled.n_done], .first = run->scaled.n_bands};
    w.bands = fy_matrix_bands_of(&w.scaling->q);
    uint64_t all = w.bands.n * w.scaling->n_planes;
    ferry_status status = FERRY_OK;
    ferry_error why;
    if (run->scaled.n_bands == 0 && w.scaling->given != FY_NONE) {
        status = read_given(service, w.scaling, &why);
        run->scaled.n_bands = status == FERRY_OK ? 0 : all;
    }
    if (run->scaled.n_bands < all) {
        run->scaled.n_bands += make_some(service, &w, all - run->scaled.n_bands, &status, &why);
    }
    if (status != FERRY_OK) {
        fy_run_fail(service, status, service->world->rank, "%s", why.message);
    }
    if (run->scaled.n_bands >= all) {
        run->scaled.n_done++;
        run->scaled.n_bands = 0;
    }
    return true;
}
