/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From a plan to ends, where blocks share a scale: what the sender of codes makes of a shard, what
 * their receiver makes of values that it gets, and what codes become that come with their scales.
 */
#include "service/bind.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "convert/format.h"

#include <string.h>

/* Types of values that codes are made of. */
static const uint32_t value_kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16};
_Static_assert(sizeof value_kinds / sizeof value_kinds[0] == FY_N_BLOCK_VALUES, "as many as held");

/* What codes become that a rank gets: the format, and how it is stored. */
static fy_quantized products_of(const ferry_conversion *its, ferry_dtype values)
{
    bool is_power = its->scale_dtype.kind == FERRY_F8E8M0;
    return (fy_quantized){.format = {.kind = its->code_dtype.kind,
                                     .scale_kind = its->scale_dtype.kind,
                                     .rule = is_power ? FY_SCALE_COVER : FY_SCALE_LARGEST,
                                     .block = {its->block[0], its->block[1]}},
                          .kind = values.kind,
                          .tensor_scale = its->code_dtype.kind == FERRY_F4 ? 1 : 0};
}

/* The same by scales of this shape, of a shard. */
static ferry_status make_products(const fy_binding *b, const ferry_shard *scales,
                                  const fy_local_tensor *codes, fy_products *products)
{
    const ferry_conversion *its = codes->conversion;
    uint32_t n = codes->n_dims;
    fy_block_facts facts;
    if (its == NULL || its->kind != FERRY_CONVERSION_DEQUANTIZE || n < 2 ||
        scales->dtype.kind != its->scale_dtype.kind || !codes->is_whole) {
        return fy_fail(b->error, FERRY_ERR_INVALID_PLAN,
                       "%s: are scales of what is not dequantized by them", scales->tensor);
    }
    *products = (fy_products){.q = products_of(its, codes->dtype),
                              .n_planes = 1,
                              .target = codes->held,
                              .scale_bytes = scales->bytes};
    products->q.n_rows = codes->shape[n - 2];
    products->q.n_columns = codes->shape[n - 1];
    for (uint32_t d = 0; d + 2 < n; d++) {
        products->n_planes *= codes->shape[d];
    }
    FY_TRY(fy_check_quantized(&products->q, &facts, b->error));
    uint64_t expected = facts.scales[0] * facts.scale_row_bytes * products->n_planes;
    return expected == scales->bytes
               ? FERRY_OK
               : fy_fail(b->error, FERRY_ERR_INVALID_PLAN,
                         "%s: has other scales than its shard has blocks", scales->tensor);
}

/* Memory of the service's own for scales, as a destination that the caller does not see. */
static ferry_status hold_scales(fy_binding *b, const ferry_shard *shard, void *memory,
                                uint32_t *held_out)
{
    fy_local_side *side = &b->sides[FERRY_SIDE_DESTINATION];
    fy_local_tensor tensor = {.held = FY_NONE, .n_dims = shard->n_dims, .bytes = shard->bytes};
    fy_registry *registry = b->registry;
    size_t name;
    ferry_buffer buffer = ferry_buffer_of(memory, shard->bytes);
    FY_TRY(fy_registry_name(registry, shard->tensor, &name, b->error));
    FY_TRY(fy_registry_hold_tensor(registry, &buffer, NULL, name, true, &tensor.held, b->error));
    *held_out = tensor.held;
    registry->targets[registry->held[tensor.held].destination].is_staged = true;
    registry->first_staged =
        registry->n_staged == 0 ? registry->n_targets - 1 : registry->first_staged;
    registry->n_staged++;
    memcpy(tensor.shape, shard->local, shard->n_dims * sizeof *tensor.shape);
    tensor.staged = shard->tensor;
    if (!FY_RESERVE(side->items, side->capacity, side->n + 1)) {
        return fy_fail_no_memory(b->error, "the tensors of a plan");
    }
    side->items[side->n++] = tensor;
    return FERRY_OK;
}

/* Of codes of f4, what was added last, by the scales of their blocks; NULL: nothing was. */
static fy_products *find_halves(const fy_binding *b, const fy_local_tensor *codes)
{
    fy_registry *registry = b->registry;
    fy_products *last =
        registry->n_products == 0 ? NULL : &registry->products[registry->n_products - 1];
    bool is_its = last != NULL && last->target == codes->held && last->matrix_scales == NULL &&
                  last->q.format.scale_kind == FERRY_F8E4M3;
    return is_its ? last : NULL;
}

/* Of a part of a tensor without elements: scales of matrices have a place, and nothing becomes of
 * them. */
static ferry_status hold_for_nothing(fy_binding *b, const ferry_shard *shard)
{
    const fy_products nothing = {.is_in_boxes = true, .held = FY_NONE};
    fy_products *products = NULL;
    FY_TRY(fy_registry_multiply(b->registry, &nothing, &products, b->error));
    FY_TRY(fy_registry_multiply_matrices(products, shard->bytes / sizeof(float), b->error));
    FY_TRY(hold_scales(b, shard, products->matrix_scales, &products->held_matrix_scales));
    products->target = products->held_matrix_scales; /* no band of it is multiplied */
    return FERRY_OK;
}

/* The scales of the matrices of f4, which come behind those of their blocks. */
static ferry_status hold_matrix_scales(fy_binding *b, const ferry_shard *shard,
                                       const fy_local_tensor *codes)
{
    fy_products *products = find_halves(b, codes);
    uint64_t n = shard->bytes / sizeof(float);
    if (products == NULL || (!products->is_in_boxes && products->n_planes != n)) {
        return fy_fail(b->error, FERRY_ERR_INVALID_PLAN,
                       "%s: are scales of matrices of what is not dequantized by them",
                       shard->tensor);
    }
    FY_TRY(fy_registry_multiply_matrices(products, n, b->error));
    return hold_scales(b, shard, products->matrix_scales, &products->held_matrix_scales);
}

/* Of f4 only those of matrices are f32. */
static bool is_of_matrices(const fy_binding *b, const ferry_shard *shard,
                           const fy_local_tensor *codes)
{
    bool has_halves = codes->conversion == NULL ? find_halves(b, codes) != NULL
                                                : codes->conversion->code_dtype.kind == FERRY_F4;
    return has_halves && shard->dtype.kind == FERRY_F32;
}

ferry_status fy_bind_staged(void *context, const ferry_shard *shard)
{
    fy_binding *b = context;
    fy_local_tensor *codes;
    fy_products products, *added;
    uint32_t held = FY_NONE;
    if (shard->bytes == 0) {
        return FERRY_OK;
    }
    FY_TRY(fy_bind_find(&b->sides[FERRY_SIDE_DESTINATION], shard->values, &codes, b->error));
    if (codes == NULL && shard->dtype.kind == FERRY_F32 && !shard->is_parameter) {
        return hold_for_nothing(b, shard); /* there are no scales of blocks then */
    }
    if (codes == NULL) {
        return fy_fail(b->error, FERRY_ERR_INVALID_PLAN, "%s: are scales without codes",
                       shard->tensor);
    }
    if (is_of_matrices(b, shard, codes)) {
        return hold_matrix_scales(b, shard, codes);
    }
    products = (fy_products){.q = {.format.scale_kind = shard->dtype.kind},
                             .is_in_boxes = true,
                             .target = codes->held,
                             .scale_bytes = shard->bytes};
    FY_TRY(shard->is_parameter ? FERRY_OK : make_products(b, shard, codes, &products));
    FY_TRY(fy_registry_multiply(b->registry, &products, &added, b->error));
    size_t number = b->registry->n_products - 1;
    FY_TRY(hold_scales(b, shard, added->scales, &held));
    b->registry->products[number].held = held;
    return FERRY_OK;
}

/* The last scale of a box is one of those that there are. */
static bool has_scales(const fy_product_box *box, const fy_products *products)
{
    uint64_t last = box->scales_offset;
    for (uint32_t d = 0; d < box->n_dims; d++) {
        bool is_outer = d + 2 < box->n_dims;
        uint64_t block = is_outer ? 1 : box->conversion->block[d + 2 - box->n_dims];
        uint64_t origin = is_outer ? 0 : box->origin[d + 2 - box->n_dims];
        last += (origin + box->shape[d] - 1) / block * box->scales_strides[d];
    }
    return last < products->scale_bytes / (box->conversion->scale_dtype.element_bits / 8);
}

/* And so is that of its last matrix, of f4. */
static bool has_matrix_scales(const fy_product_box *box, const fy_products *products)
{
    uint64_t last = box->matrix_scales_offset;
    for (uint32_t d = 0; d + 2 < box->n_dims; d++) {
        last += (box->shape[d] - 1) * box->matrix_scales_strides[d];
    }
    return (products->matrix_scales == NULL) == (box->matrix_scales == NULL) &&
           (box->matrix_scales == NULL || last < products->n_matrix_scales);
}

/* Boxes come in the order of the parameters with scales. */
static ferry_status find_products(fy_binding *b, const fy_product_box *box, fy_products **found_out)
{
    fy_registry *registry = b->registry;
    fy_local_tensor *scales;
    FY_TRY(fy_bind_find(&b->sides[FERRY_SIDE_DESTINATION], box->scales, &scales, b->error));
    while (scales != NULL && b->product < registry->n_products &&
           registry->products[b->product].held != scales->held) {
        b->product++;
    }
    if (scales == NULL || b->product == registry->n_products ||
        !has_scales(box, &registry->products[b->product]) ||
        !has_matrix_scales(box, &registry->products[b->product])) {
        return fy_fail(b->error, FERRY_ERR_INVALID_PLAN,
                       "%s: a box of it has no scales at rank %u of the plan", box->parameter,
                       b->me);
    }
    *found_out = &registry->products[b->product];
    return FERRY_OK;
}

/* Where a box has columns side by side in memory, it is walked by columns: is_turned. */
static fy_element_box walk_of(const fy_product_box *box, bool *is_turned)
{
    uint32_t n = box->n_dims;
    uint64_t shape[FERRY_MAX_DIMS], strides[FERRY_MAX_DIMS];
    memcpy(shape, box->shape, n * sizeof *shape);
    memcpy(strides, box->strides, n * sizeof *strides);
    *is_turned = shape[n - 2] > 1 && shape[n - 1] > 1 && strides[n - 2] < strides[n - 1];
    if (*is_turned) {
        shape[n - 2] = box->shape[n - 1];
        shape[n - 1] = box->shape[n - 2];
        strides[n - 2] = box->strides[n - 1];
        strides[n - 1] = box->strides[n - 2];
    }
    return fy_element_box_of(box->offset, n, shape, strides);
}

ferry_status fy_bind_product(void *context, const fy_product_box *box)
{
    fy_binding *b = context;
    uint32_t bits = box->values.element_bits, n = box->n_dims;
    uint64_t bytes = bits / 8; /* of what lies in a tensor: it fits, or the area will not */
    fy_local_tensor *values;
    fy_products *products = NULL;
    fy_block_facts facts;
    fy_area area;
    FY_TRY(find_products(b, box, &products));
    FY_TRY(fy_bind_find(&b->sides[FERRY_SIDE_DESTINATION], box->parameter, &values, b->error));
    if (values == NULL || values->held != products->target) {
        return fy_fail(b->error, FERRY_ERR_INVALID_PLAN, "%s: are scales of another parameter",
                       box->scales);
    }
    bool is_turned;
    fy_element_box places = walk_of(box, &is_turned);
    for (uint32_t d = 0; d < n; d++) {
        bytes *= box->shape[d];
    }
    FY_TRY(fy_bind_parameter_area(b, box->parameter, &places, bits, bytes, values, &area));
    products->q = products_of(box->conversion, box->values);
    products->q.n_rows = box->shape[n - 2];
    products->q.n_columns = box->shape[n - 1];
    FY_TRY(fy_check_quantized(&products->q, &facts, b->error));
    return fy_registry_multiply_box(b->registry, products, &area, box, is_turned, b->error);
}

/*
 * Blocks that share a scale. The sender makes them: to its receiver codes and scales are tensors
 * like others. In the shard blocks begin at its first element.
 */

static fy_quantized format_of(const ferry_conversion *its, ferry_dtype values)
{
    return (fy_quantized){.format = {.kind = its->code_dtype.kind,
                                     .scale_kind = its->scale_dtype.kind,
                                     .rule = (fy_scale_rule)its->scale_rule,
                                     .block = {its->block[0], its->block[1]}},
                          .kind = values.kind,
                          .tensor_scale = its->code_dtype.kind == FERRY_F4 ? 1 : 0};
}

/* Of f4 the caller's scale of each matrix, which a run reads when it begins; else FY_NONE. */
static ferry_status find_given(fy_binding *b, const ferry_move *move, uint64_t n_planes,
                               uint32_t *held_out)
{
    fy_local_side *side = &b->sides[FERRY_SIDE_SOURCE];
    fy_local_tensor *given = NULL;
    *held_out = FY_NONE;
    if (move->conversion->code_dtype.kind != FERRY_F4) {
        return FERRY_OK;
    }
    if (move->tensor_scale != NULL) {
        FY_TRY(fy_bind_find(side, move->tensor_scale, &given, b->error));
    }
    if (given == NULL || given->bytes / sizeof(float) != n_planes) {
        return fy_bind_fail_move(b, move, "has no scale of each matrix at its sender");
    }
    FY_TRY(given->held == FY_NONE ? fy_bind_hold(b, side, given) : FERRY_OK);
    *held_out = given->held;
    return FERRY_OK;
}

static ferry_status take_scaling(fy_binding *b, const ferry_move *move,
                                 const fy_local_tensor *tensor, uint32_t *number_out)
{
    const ferry_conversion *its = move->conversion;
    uint32_t n = tensor->n_dims;
    fy_quantized q = format_of(its, move->src_dtype);
    fy_block_facts facts;
    uint64_t n_planes = 1;
    uint32_t given = FY_NONE;
    if (!tensor->is_whole || n < 2 || move->src_n_dims != n || its->at_receiver ||
        move->src_parameter != NULL) {
        return fy_bind_fail_move(b, move,
                                 "quantizes what is no box of whole blocks of the sender's");
    }
    q.n_rows = tensor->shape[n - 2];
    q.n_columns = tensor->shape[n - 1];
    for (uint32_t d = 0; d + 2 < n; d++) {
        n_planes *= tensor->shape[d];
    }
    FY_TRY(fy_check_quantized(&q, &facts, b->error));
    FY_TRY(find_given(b, move, n_planes, &given));
    return fy_registry_scale(b->registry, tensor->held, given, &q, n_planes, number_out, b->error);
}

/* The shard's scales, or codes, as a tensor of its own. */
static fy_local_tensor scaled_of(const fy_scaling *s, const fy_local_tensor *values, bool is_codes)
{
    fy_local_tensor scales = *values;
    if (is_codes) {
        scales.held = s->held_codes;
        return scales;
    }
    fy_scales_shape(&s->q, &scales.shape[values->n_dims - 2]);
    scales.held = s->held;
    return scales;
}

ferry_status fy_bind_scaled(fy_binding *b, const ferry_move *move, const fy_local_tensor *values,
                            uint32_t peer)
{
    bool is_codes = move->conversion->kind == FERRY_CONVERSION_CODES;
    uint64_t begin[FERRY_MAX_DIMS], length[FERRY_MAX_DIMS];
    uint32_t number = 0, n = values->n_dims, bits = move->dtype.element_bits;
    fy_element_box box;
    fy_area area;
    FY_TRY(take_scaling(b, move, values, &number));
    fy_local_tensor scales = scaled_of(&b->registry->scalings[number], values, is_codes);
    for (uint32_t d = 0; d < n; d++) {
        uint64_t block = d + 2 < n || is_codes ? 1 : move->conversion->block[d + 2 - n];
        begin[d] = move->src_begin[d] / block;
        length[d] = fy_ceil_div(move->src_length[d], block);
        if (move->src_begin[d] % block != 0) {
            return fy_bind_fail_move(b, move, "has scales of blocks that begin before it");
        }
    }
    if (!fy_element_box_within(&scales, begin, length, &box) ||
        !fy_element_box_to_bytes(&box, bits)) {
        return fy_bind_fail_move(b, move, "has a box outside the shard");
    }
    FY_TRY(fy_area_make(box.first, box.run, box.n_dims, box.length, box.stride, &area, b->error));
    if (area.bytes != move->bytes) {
        return fy_bind_fail_move(b, move, "has other codes, or scales, than its box");
    }
    return fy_registry_add_area(b->registry, true, move->task_id, peer, scales.held,
                                bits % 8 == 0 ? bits / 8 : 1, 0, &area, b->error);
}

ferry_status fy_bind_codes(fy_binding *b, const ferry_move *move, const fy_local_tensor *values,
                           uint32_t *number_out)
{
    uint32_t number = 0, n = values->n_dims;
    uint64_t shape[2], step;
    FY_TRY(take_scaling(b, move, values, &number));
    const fy_scaling *s = &b->registry->scalings[number];
    const uint64_t *block = s->q.format.block;
    const uint64_t *begin = move->src_begin, *length = move->src_length;
    fy_scales_shape(&s->q, shape);
    fy_task_cast codes = {.cast = {.from_kind = s->q.kind,
                                   .to_kind = s->q.format.kind,
                                   .overflow = FY_OVERFLOW_CODES,
                                   .n_rows = length[n - 2],
                                   .n_columns = length[n - 1]},
                          .from_bytes = (uint32_t)fy_cast_element_bytes(s->q.kind),
                          .to_bytes = 1,
                          .wire_bytes = 1};
    fy_cast_scales *scales = &codes.cast.to_scales;
    uint64_t first = begin[n - 2] / block[0] * shape[1] + begin[n - 1] / block[1];
    *scales = (fy_cast_scales){.block = {block[0], block[1]},
                               .origin = {begin[n - 2] % block[0], begin[n - 1] % block[1]},
                               .pitch = shape[1],
                               .n_plane_dims = n - 2};
    step = s->n;
    for (uint32_t d = n - 2; d-- > 0; step *= values->shape[d]) {
        scales->plane_length[d] = length[d];
        scales->plane_stride[d] = step;
        first += begin[d] * step;
    }
    scales->values = s->divisors + first;
    return fy_registry_convert(b->registry, &codes, number_out, b->error);
}

/*
 * Blocks that this rank makes itself: their values come into memory of the service's, where they
 * lie as their codes will.
 */

ferry_status fy_bind_gather(const fy_binding *b, fy_local_tensor *codes, uint32_t code_bits,
                            ferry_dtype values, const char *name, fy_local_tensor *gathered_out)
{
    size_t kind = 0;
    uint64_t bytes;
    while (kind < FY_N_BLOCK_VALUES && value_kinds[kind] != values.kind) {
        kind++;
    }
    if (kind == FY_N_BLOCK_VALUES ||
        !fy_mul(codes->bytes, values.element_bits / code_bits, &bytes)) {
        return fy_fail(b->error, FERRY_ERR_INVALID_PLAN,
                       "%s: its codes would be made of what has no blocks", name);
    }
    if (codes->gathered[kind] == 0) {
        uint32_t held = 0;
        FY_TRY(fy_registry_gather(b->registry, codes->held, bytes, &held, b->error));
        codes->gathered[kind] = held;
    }
    *gathered_out = *codes;
    gathered_out->held = codes->gathered[kind];
    gathered_out->bytes = bytes;
    return FERRY_OK;
}

/* A box of elements that lie so far apart. */
static ferry_status find_area(const fy_binding *b, const char *name, const fy_made_place *place,
                              uint32_t n_dims, const uint64_t *shape, uint32_t bits,
                              const fy_local_tensor *tensor, fy_area *area_out)
{
    uint64_t all_bits = bits; /* of what lies in a tensor: it fits, or the area will not */
    fy_element_box box = fy_element_box_of(place->offset, n_dims, shape, place->strides);
    for (uint32_t d = 0; d < n_dims; d++) {
        all_bits *= shape[d];
    }
    return fy_bind_parameter_area(b, name, &box, bits, all_bits / 8, tensor, area_out);
}

static ferry_status find_made_tensor(fy_binding *b, const fy_made_codes *made, const char *name,
                                     fy_local_tensor **tensor_out)
{
    FY_TRY(fy_bind_find(&b->sides[FERRY_SIDE_DESTINATION], name, tensor_out, b->error));
    return *tensor_out != NULL ? FERRY_OK
                               : fy_fail(b->error, FERRY_ERR_INVALID_PLAN,
                                         "%s: rank %u quantizes it into \"%s\", which it does not "
                                         "have",
                                         made->tensor, b->me, name);
}

/* Of f4 the scale of each matrix, which this rank gets too. */
static ferry_status find_made_given(fy_binding *b, const fy_made_codes *made, fy_area *area_out,
                                    uint32_t *held_out)
{
    fy_local_tensor *given;
    FY_TRY(find_made_tensor(b, made, made->given.name, &given));
    *held_out = given->held;
    return find_area(b, made->tensor, &made->given, made->n_dims - 2, made->shape, 32, given,
                     area_out);
}

ferry_status fy_bind_made(void *context, const fy_made_codes *made)
{
    fy_binding *b = context;
    const ferry_conversion *its = made->conversion;
    uint32_t n = made->n_dims;
    fy_code_maker making = {.q = format_of(its, made->values),
                            .n_planes = 1,
                            .scales.held = FY_NONE,
                            .given.held = FY_NONE};
    fy_local_tensor *codes, *scales, values;
    fy_area areas[4] = {{0}, {0}, {0}, {0}};
    fy_block_facts facts;
    uint64_t n_scales[FERRY_MAX_DIMS];
    making.q.n_rows = made->shape[n - 2];
    making.q.n_columns = made->shape[n - 1];
    FY_TRY(fy_check_quantized(&making.q, &facts, b->error));
    FY_TRY(find_made_tensor(b, made, made->codes.name, &codes));
    FY_TRY(fy_bind_gather(b, codes, its->code_dtype.element_bits, made->values, made->tensor,
                          &values));
    FY_TRY(find_area(b, made->tensor, &made->codes, n, made->shape, made->values.element_bits,
                     &values, &areas[0]));
    FY_TRY(find_area(b, made->tensor, &made->codes, n, made->shape, its->code_dtype.element_bits,
                     codes, &areas[1]));
    making.values.held = values.held;
    making.codes.held = made->stores_codes ? codes->held : FY_NONE;
    if (made->scales.name != NULL) {
        fy_made_shape(made, n_scales);
        FY_TRY(find_made_tensor(b, made, made->scales.name, &scales));
        FY_TRY(find_area(b, made->tensor, &made->scales, n, n_scales, its->scale_dtype.element_bits,
                         scales, &areas[2]));
        making.scales.held = scales->held;
    }
    FY_TRY(made->given.name == NULL ? FERRY_OK
                                    : find_made_given(b, made, &areas[3], &making.given.held));
    for (uint32_t d = 0; d + 2 < n; d++) {
        making.n_planes *= made->shape[d];
    }
    return fy_registry_make(b->registry, &making, areas, b->error);
}

ferry_status fy_bind_rows(fy_binding *b, const ferry_move *move, uint32_t *number_out)
{
    fy_registry *registry = b->registry;
    uint32_t n = move->n_dims;
    const fy_rows *last = registry->n_rows == 0 ? NULL : &registry->rows[registry->n_rows - 1];
    bool goes_on = last != NULL && b->rows_to == move->to && b->rows_of == move->tensor;
    fy_rows rows = {.group = goes_on ? last->group : move->task_id,
                    .n_lead = n - 2,
                    .first = move->dst_begin[n - 2],
                    .n = move->length[n - 2],
                    .row_bytes = move->length[n - 1] * (move->dtype.element_bits / 8),
                    .unit = fy_row_unit(move->conversion->block[0])};
    memcpy(rows.lead, move->dst_begin, (n - 2) * sizeof *rows.lead);
    memcpy(rows.lead_length, move->length, (n - 2) * sizeof *rows.lead);
    FY_TRY(FY_GROW(registry->rows, registry->rows_capacity, registry->n_rows + 1,
                   "the tasks of a rank", b->error));
    registry->rows[registry->n_rows++] = rows;
    *number_out = (uint32_t)registry->n_rows;
    b->rows_to = move->to;
    b->rows_of = move->tensor;
    return FERRY_OK;
}
