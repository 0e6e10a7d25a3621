/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Sides as bytes, for ranks that each know only themselves. */
#include "model/side.h"

#include <string.h>

static void pack_numbers(fy_pack *out, const uint64_t *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fy_pack_number(out, values[i]);
    }
}

static void pack_dtype(fy_pack *out, ferry_dtype dtype)
{
    fy_pack_number(out, dtype.kind);
    fy_pack_number(out, dtype.element_bits);
}

static uint64_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void pack_cast(fy_pack *out, const fy_said_cast *cast)
{
    fy_pack_number(out, !cast->is_said ? 0 : cast->saturates ? 2 : 1);
    if (cast->is_said) {
        fy_pack_number(out, bits_of(cast->scale));
        fy_pack_number(out, bits_of(cast->add));
    }
}

static void pack_blocks(fy_pack *out, const fy_said_blocks *blocks)
{
    fy_pack_number(out, blocks != NULL);
    if (blocks != NULL) {
        pack_dtype(out, blocks->codes);
        pack_dtype(out, blocks->scales);
        fy_pack_number(out, blocks->rule);
        pack_numbers(out, blocks->block, 2);
        fy_pack_text(out, blocks->scale);
        fy_pack_text(out, blocks->tensor_scale == NULL ? "" : blocks->tensor_scale);
    }
}

static void pack_codes(fy_pack *out, const fy_said_blocks *codes)
{
    fy_pack_number(out, codes != NULL);
    if (codes != NULL) {
        pack_numbers(out, codes->block, 2);
        fy_pack_text(out, codes->scale);
    }
}

/* The numbers of a box are all that it has; so are those of a fill. */
void fy_side_pack(const ferry_side *side, fy_pack *out)
{
    fy_pack_number(out, side->n_tensors);
    for (size_t i = 0; i < side->n_tensors; i++) {
        const fy_side_tensor *tensor = &side->tensors[i];
        fy_pack_text(out, tensor->name);
        fy_pack_number(out, tensor->shape != NULL);
        if (tensor->shape != NULL) {
            pack_dtype(out, tensor->dtype);
            fy_pack_number(out, tensor->n_dims);
            pack_numbers(out, tensor->shape, tensor->n_dims);
        }
    }
    fy_pack_number(out, side->n_parameters);
    for (size_t i = 0; i < side->n_parameters; i++) {
        const fy_parameter *parameter = &side->parameters[i];
        fy_pack_text(out, parameter->name);
        pack_dtype(out, parameter->dtype);
        fy_pack_number(out, parameter->elements);
        fy_pack_number(out, parameter->is_partial);
        pack_cast(out, &parameter->cast);
        pack_blocks(out, parameter->blocks);
        pack_codes(out, parameter->codes);
        fy_pack_number(out, parameter->shape == NULL ? 0 : 1 + parameter->n_dims);
        pack_numbers(out, parameter->shape, parameter->n_dims);
    }
    fy_pack_number(out, side->n_boxes);
    for (size_t i = 0; i < side->n_boxes; i++) {
        const fy_said_box *box = &side->boxes[i];
        fy_pack_number(out, box->parameter);
        fy_pack_number(out, box->tensor);
        fy_pack_number(out, box->n_dims);
        fy_pack_number(out, box->n_repeats);
        fy_pack_number(out, box->offset);
        pack_numbers(out, box->numbers,
                     3 * (size_t)box->n_dims + (size_t)box->n_repeats * (2 + box->n_dims));
    }
    fy_pack_number(out, side->n_fills);
    for (size_t i = 0; i < side->n_fills; i++) {
        const fy_fill *fill = &side->fills[i];
        fy_pack_number(out, fill->parameter);
        fy_pack_number(out, fill->n_dims);
        fy_pack_number(out, fill->offset);
        pack_numbers(out, fill->numbers, 2 * (size_t)fill->n_dims);
        fy_pack_number(out, fill->n_digits);
        fy_pack_bytes(out, fill->bits, sizeof fill->bits);
    }
}

static void read_numbers(fy_reader *in, uint64_t *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = fy_read_number(in, UINT64_MAX);
    }
}

static ferry_dtype read_dtype(fy_reader *in)
{
    ferry_dtype dtype = {.kind = (uint32_t)fy_read_number(in, UINT32_MAX)};
    dtype.element_bits = (uint32_t)fy_read_number(in, UINT32_MAX);
    return dtype;
}

static float read_float(fy_reader *in)
{
    uint32_t bits = (uint32_t)fy_read_number(in, UINT32_MAX);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* names: room for those that the blocks have; false: there are none, or damaged ones. */
static bool read_blocks(fy_reader *in, fy_said_blocks *blocks, char names[2][FERRY_NAME_BYTES])
{
    if (fy_read_number(in, 1) == 0) {
        return false;
    }
    blocks->codes = read_dtype(in);
    blocks->scales = read_dtype(in);
    blocks->rule = (uint32_t)fy_read_number(in, UINT32_MAX);
    read_numbers(in, blocks->block, 2);
    fy_read_string(in, names[0], FERRY_NAME_BYTES);
    fy_read_string(in, names[1], FERRY_NAME_BYTES);
    blocks->scale = names[0];
    blocks->tensor_scale = names[1][0] == '\0' ? NULL : names[1];
    in->failed = in->failed || !fy_blocks_are_valid(blocks);
    return !in->failed;
}

/* Of values of this type; as read_blocks. */
static bool read_codes(fy_reader *in, ferry_dtype dtype, fy_said_blocks *codes,
                       char scale[FERRY_NAME_BYTES])
{
    ferry_error ignored;
    if (fy_read_number(in, 1) == 0) {
        return false;
    }
    uint64_t block[2];
    read_numbers(in, block, 2);
    fy_read_string(in, scale, FERRY_NAME_BYTES);
    in->failed = in->failed || !fy_blocks_take(dtype) ||
                 fy_codes_make(scale, block, codes, &ignored) != FERRY_OK;
    return !in->failed;
}

static ferry_status unpack_tensor(ferry_side *side, fy_reader *in, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    uint64_t shape[FERRY_MAX_DIMS];
    uint32_t number;
    fy_read_string(in, name, sizeof name);
    bool has_shape = fy_read_number(in, 1) == 1;
    if (in->failed || !has_shape) {
        return in->failed ? FERRY_OK : fy_side_name_tensor(side, name, &number, error);
    }
    ferry_dtype dtype = read_dtype(in);
    uint32_t n_dims = (uint32_t)fy_read_number(in, FERRY_MAX_DIMS);
    read_numbers(in, shape, n_dims);
    return in->failed ? FERRY_OK : ferry_side_add_tensor(side, name, dtype, n_dims, shape, error);
}

static ferry_status unpack_parameter(ferry_side *side, fy_reader *in, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    size_t number;
    fy_read_string(in, name, sizeof name);
    ferry_dtype dtype = read_dtype(in);
    uint64_t elements = fy_read_number(in, UINT64_MAX);
    bool is_partial = fy_read_number(in, 1) == 1;
    uint64_t cast = fy_read_number(in, 2);
    float scale = cast == 0 ? 1 : read_float(in), add = cast == 0 ? 0 : read_float(in);
    fy_said_blocks blocks, codes;
    char blocks_names[2][FERRY_NAME_BYTES], codes_scale[FERRY_NAME_BYTES];
    bool has_blocks = read_blocks(in, &blocks, blocks_names);
    bool has_codes = read_codes(in, dtype, &codes, codes_scale);
    uint64_t shape[FERRY_MAX_DIMS];
    uint32_t n_dims = (uint32_t)fy_read_number(in, 1 + FERRY_MAX_DIMS);
    read_numbers(in, shape, n_dims == 0 ? 0 : n_dims - 1);
    if (in->failed) {
        return FERRY_OK;
    }
    FY_TRY(ferry_side_add_parameter(side, NULL, 0, name, dtype.kind == 0 ? NULL : &dtype, elements,
                                    is_partial ? FERRY_PARAMETER_PARTIAL : 0, &number, error));
    if (cast != 0) {
        FY_TRY(ferry_side_set_cast(side, number, cast == 2, scale, add, error));
    }
    if (has_blocks) {
        side->parameters[number].blocks = fy_blocks_copy(&blocks, &side->arena);
        FY_TRY(fy_check_memory(side->parameters[number].blocks != NULL, "a side", error));
    }
    if (has_codes) {
        FY_TRY(ferry_side_set_dequantize(side, number, codes.scale, codes.block, error));
    }
    return n_dims == 0 ? FERRY_OK : ferry_side_set_shape(side, number, n_dims - 1, shape, error);
}

static ferry_status unpack_box(ferry_side *side, fy_reader *in, ferry_error *error)
{
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    size_t n = side->n_tensors;
    size_t parameter = (size_t)fy_read_number(in, FY_MAX_PARAMETERS);
    size_t tensor = (size_t)fy_read_number(in, n == 0 ? 0 : n - 1);
    box.n_dims = (uint32_t)fy_read_number(in, FERRY_MAX_DIMS);
    box.n_repeats = (uint32_t)fy_read_number(in, FERRY_MAX_REPEATS);
    box.offset = fy_read_number(in, UINT64_MAX);
    read_numbers(in, box.begin, box.n_dims);
    read_numbers(in, box.shape, box.n_dims);
    read_numbers(in, box.strides, box.n_dims);
    for (uint32_t i = 0; i < box.n_repeats; i++) {
        box.repeats[i].count = fy_read_number(in, UINT64_MAX);
        box.repeats[i].offset = fy_read_number(in, UINT64_MAX);
        read_numbers(in, box.repeats[i].begin, box.n_dims);
    }
    in->failed = in->failed || n == 0;
    if (in->failed) {
        return FERRY_OK;
    }
    box.tensor = side->tensors[tensor].name;
    return ferry_side_add_box(side, parameter, &box, error);
}

static ferry_status unpack_fill(ferry_side *side, fy_reader *in, ferry_error *error)
{
    uint64_t numbers[2 * FERRY_MAX_DIMS], offset;
    size_t parameter = (size_t)fy_read_number(in, FY_MAX_PARAMETERS);
    uint32_t n_dims = (uint32_t)fy_read_number(in, FERRY_MAX_DIMS);
    offset = fy_read_number(in, UINT64_MAX);
    read_numbers(in, numbers, 2 * (size_t)n_dims);
    uint32_t n_digits = (uint32_t)fy_read_number(in, 16);
    const unsigned char *bits = fy_read_bytes(in, 8);
    if (in->failed) {
        return FERRY_OK;
    }
    FY_TRY(ferry_side_add_fill(side, parameter, n_dims, offset, numbers, numbers + n_dims, bits,
                               error));
    side->fills[side->n_fills - 1].n_digits = n_digits;
    return FERRY_OK;
}

/* Numbers of what follows are no room that is taken: each one must be there. */
ferry_status fy_side_unpack(fy_reader *in, ferry_side **side_out, ferry_error *error)
{
    ferry_side *side = NULL;
    FY_TRY(ferry_side_create(&side, error));
    ferry_status status = FERRY_OK;
    uint64_t n = fy_read_number(in, UINT32_MAX);
    for (uint64_t i = 0; i < n && !in->failed && status == FERRY_OK; i++) {
        status = unpack_tensor(side, in, error);
    }
    n = fy_read_number(in, FY_MAX_PARAMETERS);
    for (uint64_t i = 0; i < n && !in->failed && status == FERRY_OK; i++) {
        status = unpack_parameter(side, in, error);
    }
    n = fy_read_number(in, FY_MAX_BOXES);
    for (uint64_t i = 0; i < n && !in->failed && status == FERRY_OK; i++) {
        status = unpack_box(side, in, error);
    }
    n = fy_read_number(in, UINT32_MAX);
    for (uint64_t i = 0; i < n && !in->failed && status == FERRY_OK; i++) {
        status = unpack_fill(side, in, error);
    }
    if (status == FERRY_OK && !in->failed) {
        *side_out = side;
        side = NULL;
    } else if (status == FERRY_OK) {
        *side_out = NULL;
    }
    ferry_side_destroy(side);
    return status;
}
