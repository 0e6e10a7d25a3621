/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of what a rank gets as codes. Codes are widened within the copies like all that is cast,
 * so they lie where their values belong; the scales of their blocks come beside them. When both are
 * there, and nothing of the run is under way any more, each is multiplied by its scale. Until then
 * nothing of such a tensor counts as there: a run that completes a failed one brings all of it.
 */
#include "service/run.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "exec/now.h"
#include "service/registry.h"

enum { FAR_BYTES = 64 << 20 }; /* of values that a device multiplies in one step */

void fy_products_free(fy_registry *registry)
{
    for (size_t i = 0; i < registry->n_products; i++) {
        fy_free(registry->products[i].scales);
        fy_free(registry->products[i].matrix_scales);
    }
    fy_free(registry->products);
    fy_free(registry->factor_boxes);
}

ferry_status fy_registry_multiply(fy_registry *registry, const fy_products *products,
                                  fy_products **added_out, ferry_error *error)
{
    size_t n = registry->n_products;
    if (!FY_RESERVE(registry->products, registry->products_capacity, n + 1)) {
        return fy_fail_no_memory(error, "the scales of a plan");
    }
    fy_products *added = &registry->products[n];
    *added = *products;
    added->scales = fy_alloc_zeroed(added->scale_bytes + 1, 1);
    registry->n_products = n + 1;
    *added_out = added;
    return fy_check_memory(added->scales != NULL, "the scales of a plan", error);
}

ferry_status fy_registry_multiply_matrices(fy_products *products, uint64_t n, ferry_error *error)
{
    products->matrix_scales = fy_alloc_zeroed(n + 1, sizeof *products->matrix_scales);
    products->n_matrix_scales = n;
    return fy_check_memory(products->matrix_scales != NULL, "the scales of a plan", error);
}

static void note_lane(fy_registry *registry, const fy_lane *lane, bool is_local)
{
    for (size_t i = 0; i < lane->n_parts; i++) {
        uint32_t receive = is_local ? lane->parts[i].place : lane->parts[i].end;
        uint32_t destination = registry->held[registry->receives.items[receive].held].destination;
        if (destination != FY_NONE) { /* else values of which codes are made */
            registry->targets[destination].is_moved = true;
        }
    }
}

static fy_target *target_of_held(const fy_registry *registry, uint32_t held)
{
    return &registry->targets[registry->held[held].destination];
}

static fy_target *target_of(const fy_registry *registry, const fy_products *p)
{
    return target_of_held(registry, p->target);
}

uint64_t fy_products_scheduled(ferry_service *service)
{
    fy_registry *registry = &service->registry;
    const fy_service_program *program = service->program;
    uint64_t bytes = 0;
    for (size_t i = 0; i < registry->n_products; i++) {
        target_of(registry, &registry->products[i])->is_moved = false;
        bytes += registry->products[i].scale_bytes +
                 registry->products[i].n_matrix_scales * sizeof(float);
    }
    if (registry->n_products == 0) {
        return 0;
    }
    note_lane(registry, &program->local, true);
    for (uint32_t c = 0; c < program->n_channels; c++) {
        note_lane(registry, &program->channels[c].in, false);
    }
    return bytes;
}

/*
 * Runs
 */

/* What a step works on: bands of a destination from `first` on, each some rows of blocks, or a box
 * (value_boxes.c). */
typedef struct work {
    const fy_registry *registry;
    const fy_products *products;
    char *values; /* of the first element */
    fy_matrix_bands bands;
    uint64_t first;
} work;

static uint64_t scale_bytes(const fy_products *p)
{
    return p->q.format.scale_kind == FERRY_F32 ? sizeof(float) : 1;
}

/* The scales of a band; shape_out: of those of its matrix. */
static const char *scales_of(const work *w, uint64_t band, uint64_t shape_out[2])
{
    const fy_products *p = w->products;
    uint64_t block_row = band % w->bands.n * (w->bands.rows / p->q.format.block[0]);
    fy_scales_shape(&p->q, shape_out);
    uint64_t first = (band / w->bands.n * shape_out[0] + block_row) * shape_out[1];
    return p->scales + first * scale_bytes(p);
}

/* Cannot fail: what is wrong with a format or a shape was said when it was bound. */
static void make_band(void *context, uint64_t index)
{
    const work *w = context;
    uint64_t shape[2];
    fy_quantized q = w->products->q;
    fy_input scales = {.data = scales_of(w, w->first + index, shape)};
    uint64_t at = fy_band_at(&w->products->q, &w->bands, w->first + index, &q.n_rows);
    fy_scales_shape(&q, shape);
    uint64_t matrix = (w->first + index) / w->bands.n;
    const float *given = w->products->matrix_scales;
    q.tensor_scale = given == NULL ? 0 : given[matrix];
    scales.n_bytes = shape[0] * shape[1] * scale_bytes(w->products);
    fy_output values = {.data = w->values + at, .n_bytes = q.n_rows * w->bands.row_bytes};
    (void)fy_scale_values(&q, &scales, &values, NULL);
}

/*
 * In memory that the CPU does not touch its verbs do the same: of some bands of a matrix at once,
 * for each call there takes a while. How many they are, at most `most`.
 */
static ferry_status make_bands_far(const ferry_buffer *target, const work *w, uint64_t most,
                                   uint64_t *n_out, ferry_error *error)
{
    const fy_quantized *q = &w->products->q;
    uint64_t left = w->bands.n - w->first % w->bands.n, shape[2], n_rows;
    uint64_t room = FAR_BYTES / (w->bands.rows * w->bands.row_bytes + 1) + 1;
    uint64_t n = fy_min(fy_min(most, left), room), last_at;
    uint64_t at = fy_band_at(q, &w->bands, w->first, &n_rows);
    last_at = fy_band_at(q, &w->bands, w->first + n - 1, &n_rows);
    n_rows += (last_at - at) / w->bands.row_bytes;
    const void *scales = scales_of(w, w->first, shape);
    const float *given = w->products->matrix_scales;
    uint32_t kind = q->format.scale_kind;
    fy_cast cast = {
        .from_kind = q->kind,
        .to_kind = q->kind,
        .overflow = FY_OVERFLOW_PLAIN,
        .has_plain_nans = true,
        .n_rows = n_rows,
        .n_columns = q->n_columns,
        .from_scales = {.values = kind == FERRY_F32 ? scales : NULL,
                        .powers = kind == FERRY_F8E8M0 ? scales : NULL,
                        .codes = kind == FERRY_F8E4M3 ? scales : NULL,
                        .of_matrices = given == NULL ? NULL : given + w->first / w->bands.n,
                        .block = {q->format.block[0], q->format.block[1]},
                        .pitch = shape[1]}};
    fy_area area = fy_area_flat(at, n_rows * w->bands.row_bytes);
    const fy_now_side there = {.space = fy_space_of(target), .area = &area, .base = target->base};
    *n_out = n;
    return fy_cast_now(&cast, &there, &there, 0, n_rows * q->n_columns, error);
}

/* The same of a parameter. */
static void make_box_band(void *context, uint64_t index)
{
    const work *w = context;
    fy_factor_band(w->registry, w->products, w->values, w->first + index);
}

/* How many bands were made. */
static uint64_t make_some(ferry_service *service, work *w, uint64_t most, ferry_status *status_out,
                          ferry_error *error)
{
    const ferry_buffer *target = fy_held_target(&service->registry.held[w->products->target]);
    bool is_in_boxes = w->products->is_in_boxes;
    if (target->kind != FERRY_MEMORY_HOST) {
        uint64_t n = 1;
        *status_out = is_in_boxes ? fy_factor_bands_far(w->registry, w->products, target, w->first,
                                                        most, &n, error)
                                  : make_bands_far(target, w, most, &n, error);
        return n;
    }
    uint64_t n = fy_min(most, fy_team_size(service->team));
    w->values = target->base;
    fy_team_run(service->team, n, is_in_boxes ? make_box_band : make_band, w);
    return n;
}

/* One that has come: others than these no quantization makes, and some would make no number of all
 * codes. */
static ferry_status check_matrix_scale(const ferry_service *service, const fy_products *p,
                                       uint64_t number, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    float scale = p->matrix_scales[number];
    return fy_is_tensor_scale(scale)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: element %llu at rank %u is %g, by which the f4 of \"%s\" cannot be "
                         "dequantized; scales of matrices are from 2^-117 to 2^119",
                         registry->names + target_of_held(registry, p->held_matrix_scales)->name,
                         (unsigned long long)number, service->world->rank, (double)scale,
                         registry->names + target_of(registry, p)->name);
}

/* Those of the matrices that are multiplied: between them lie others, of which none may come. */
static ferry_status check_matrix_scales(const ferry_service *service, const fy_products *p,
                                        ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    if (p->matrix_scales == NULL) {
        return FERRY_OK;
    }
    for (uint64_t i = 0; i < p->n_matrix_scales && !p->is_in_boxes; i++) {
        FY_TRY(check_matrix_scale(service, p, i, error));
    }
    for (size_t i = 0; i < p->n_boxes && p->is_in_boxes; i++) {
        const fy_factor_box *box = &registry->factor_boxes[p->first_box + i];
        for (uint64_t k = 0; k < fy_factor_box_planes(registry, box); k++) {
            uint64_t number = fy_factor_box_matrix(registry, box, k);
            FY_TRY(check_matrix_scale(service, p, number, error));
        }
    }
    return FERRY_OK;
}

bool fy_products_step(ferry_service *service)
{
    fy_run_state *run = service->run;
    const fy_registry *registry = &service->registry;
    if (run->products.n_done == registry->n_products || run->status != FERRY_OK || run->halted) {
        return false;
    }
    const fy_products *p = &registry->products[run->products.n_done];
    work w = {.registry = registry, .products = p, .first = run->products.n_bands};
    w.bands = p->is_in_boxes ? (fy_matrix_bands){.n = 0} : fy_matrix_bands_of(&p->q);
    uint64_t bands = p->is_in_boxes ? p->n_bands : w.bands.n * p->n_planes;
    uint64_t all = target_of(registry, p)->is_moved ? bands : 0;
    ferry_status status = FERRY_OK;
    ferry_error why;
    if (run->products.n_bands == 0 && all > 0) {
        status = check_matrix_scales(service, p, &why);
    }
    if (status == FERRY_OK && run->products.n_bands < all) {
        run->products.n_bands += make_some(service, &w, all - run->products.n_bands, &status, &why);
    }
    if (status != FERRY_OK) {
        fy_run_fail(service, status, service->world->rank, "%s", why.message);
    } else if (run->products.n_bands >= all) {
        run->products.n_done++;
        run->products.n_bands = 0;
    }
    return true;
}
