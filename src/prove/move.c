/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/move.h"

#include "base/checked.h"
#include "base/print.h"
#include "prove/spec_read.h"

#include <stdio.h>
#include <string.h>

/* Longer names would push the numbers out of the sentence. */
enum { NAME_BYTES = 256 };

ferry_status fy_proof_move_fail(const fy_proof_spec *spec, const fy_proof_move *move,
                                ferry_error *error, const char *format, ...)
{
    const fy_proof_tensor *tensor = &spec->tensors[move->tensor];
    char what[600];
    char slice[200];
    va_list arguments;
    va_start(arguments, format);
    fy_vprint(what, sizeof what, format, arguments);
    va_end(arguments);
    const fy_proof_place *to = &move->places[FY_PROOF_DESTINATION];
    if (to->parameter != NULL) {
        fy_print(slice, sizeof slice, "element %llu of %.100s", (unsigned long long)to->offset,
                 to->parameter);
    } else {
        memcpy(slice, "local ", sizeof "local ");
        fy_proof_slice_format(slice + 6, sizeof slice - 6, tensor->entry->n_dims, move->dst,
                              move->length);
    }
    return fy_fail(error, FERRY_ERR_PROOF, "task %llu: %.*s, %s, from rank %llu to rank %llu: %s",
                   (unsigned long long)move->task_id, NAME_BYTES, tensor->name, slice,
                   (unsigned long long)move->from, (unsigned long long)move->to, what);
}

/* [[begin, length], ...], one per dimension. */
static ferry_status read_box(const json_t *json, const fy_json_place *place, uint64_t *begin,
                             uint64_t *length, size_t *n_out, ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    if (n > FY_PROOF_DIMS) {
        return fy_json_fail(place, error, "has %zu dimensions, more than %d", n, FY_PROOF_DIMS);
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        begin[d] = 0;
        length[d] = 1;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(json, i);
        size_t d = FY_PROOF_DIMS - n + i;
        fy_json_place inner = {.parent = place, .index = i};
        if (!json_is_array(pair) || json_array_size(pair) != 2) {
            return fy_json_fail(&inner, error, "must be [begin, length]");
        }
        FY_TRY(
            fy_json_get_size(json_array_get(pair, 0), &inner, 0, FY_PROOF_MOST, &begin[d], error));
        FY_TRY(
            fy_json_get_size(json_array_get(pair, 1), &inner, 0, FY_PROOF_MOST, &length[d], error));
    }
    *n_out = n;
    return FERRY_OK;
}

typedef struct move_json {
    fy_proof_move move;
    const char *tensor, *source;     /* the last may be NULL */
    const json_t *src, *dst, *shape; /* the last where a side is in boxes */
} move_json;

/* A whole number, which must be there. */
#define NUMBER(key, field)                                                                         \
    {                                                                                              \
        key, FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(move_json, field), .most = INT64_MAX \
    }

static const fy_json_field fields[] = {
    NUMBER("task_id", move.task_id),
    {"tensor", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(move_json, tensor)},
    NUMBER("from", move.from),
    NUMBER("to", move.to),
    {"src", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(move_json, src)},
    {"dst", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(move_json, dst)},
    NUMBER("bytes", move.bytes),
    {"source", FY_JSON_STRING, .offset = offsetof(move_json, source)},
    {"shape", FY_JSON_VALUE, .offset = offsetof(move_json, shape)},
    {"src_dtype", FY_JSON_STRING, .offset = offsetof(move_json, move.stated.src_dtype)},
    {"dst_dtype", FY_JSON_STRING, .offset = offsetof(move_json, move.stated.dst_dtype)},
    {"cast", FY_JSON_STRING, .offset = offsetof(move_json, move.stated.cast)},
    {"scale", FY_JSON_VALUE, .offset = offsetof(move_json, move.stated.scale)},
    {"add", FY_JSON_VALUE, .offset = offsetof(move_json, move.stated.add)},
    {"at", FY_JSON_STRING, .offset = offsetof(move_json, move.stated.at)},
    {"part", FY_JSON_STRING, .offset = offsetof(move_json, move.stated.part)},
    {"quantize", FY_JSON_VALUE, .offset = offsetof(move_json, move.stated.quantize)},
    {"dequantize", FY_JSON_VALUE, .offset = offsetof(move_json, move.stated.dequantize)},
    {.key = NULL},
};

typedef struct place_json {
    const char *parameter;
    const json_t *strides;
    uint64_t offset;
} place_json;

/* {"parameter", "offset", "strides"} */
static ferry_status read_place(const json_t *json, const fy_json_place *place,
                               fy_proof_place *place_out, size_t *n_out, ferry_error *error)
{
    static const fy_json_field members[] = {
        {"parameter", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(place_json, parameter)},
        {"offset", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(place_json, offset),
         .most = FY_PROOF_MOST},
        {"strides", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(place_json, strides)},
        {.key = NULL},
    };
    fy_json_place inner = {.parent = place, .key = "strides"};
    place_json p = {.parameter = NULL};
    FY_TRY(fy_json_read(json, place, members, &p, NULL, error));
    FY_TRY(fy_proof_read_dims(p.strides, &inner, 0, place_out->strides, n_out, error));
    place_out->parameter = p.parameter;
    place_out->offset = p.offset;
    return FERRY_OK;
}

static ferry_status find_tensor(const fy_proof_spec *spec, const char *key, const char *name,
                                uint64_t task_id, uint32_t *tensor_out, ferry_error *error)
{
    if (!fy_proof_spec_find(spec, name, tensor_out)) {
        return fy_fail(error, FERRY_ERR_PROOF, "task %llu: its %s %.*s is not in the spec",
                       (unsigned long long)task_id, key, NAME_BYTES, name);
    }
    return FERRY_OK;
}

/* "source" stands exactly where the spec has one, and names a tensor that feeds this one. */
static ferry_status check_source(const fy_proof_spec *spec, const char *source, fy_proof_move *move,
                                 ferry_error *error)
{
    const fy_proof_entry *entry = spec->tensors[move->tensor].entry;
    bool has_source = source != NULL;
    if (entry->scaling !=
        NULL) { /* they are made of the values, and counted as if they were there */
        const char *values = spec->tensors[entry->scaling->tensor].name;
        move->source = move->tensor;
        return has_source && strcmp(source, values) == 0
                   ? FERRY_OK
                   : fy_proof_move_fail(spec, move, error, "has scales of %.*s, and should name it",
                                        NAME_BYTES, values);
    }
    if (has_source != entry->has_source) {
        return fy_proof_move_fail(spec, move, error,
                                  "%s a source, but the spec gives the tensor %s",
                                  has_source ? "names" : "lacks", has_source ? "none" : "one");
    }
    if (!has_source) {
        move->source = move->tensor;
        return FERRY_OK;
    }
    FY_TRY(find_tensor(spec, "source", source, move->task_id, &move->source, error));
    if (fy_proof_spec_is_fed_by(spec, move->tensor, move->source)) {
        return FERRY_OK;
    }
    return fy_proof_move_fail(spec, move, error,
                              "names the source %.*s, but the tensor is fed from %.*s%s",
                              NAME_BYTES, spec->tensors[move->source].name, NAME_BYTES,
                              spec->tensors[fy_proof_spec_source(spec, move->tensor, 0)].name,
                              entry->n_boxes > 1 ? " and others" : "");
}

/* "src" or "dst": a box of a shard, or a place; then the lengths are those of "shape". */
static ferry_status read_end(const fy_proof_spec *spec, int side, move_json *m,
                             const fy_json_place *place, const uint64_t *shape, uint64_t *length,
                             size_t *n_out, ferry_error *error)
{
    bool is_source = side == FY_PROOF_SOURCE;
    const json_t *json = is_source ? m->src : m->dst;
    fy_json_place inner = {.parent = place, .key = is_source ? "src" : "dst"};
    if (spec->sides[side].memory == NULL) {
        return read_box(json, &inner, is_source ? m->move.src : m->move.dst, length, n_out, error);
    }
    memcpy(length, shape, FY_PROOF_DIMS * sizeof *length);
    return read_place(json, &inner, &m->move.places[side], n_out, error);
}

/* "shape" stands exactly where a side is in boxes; it has the lengths by the tensor's dimensions.
 */
static ferry_status read_shape(const fy_proof_spec *spec, move_json *m, const fy_json_place *place,
                               uint64_t *shape, ferry_error *error)
{
    bool in_boxes = spec->sides[FY_PROOF_SOURCE].memory != NULL ||
                    spec->sides[FY_PROOF_DESTINATION].memory != NULL;
    fy_json_place inner = {.parent = place, .key = "shape"};
    size_t n, n_dims = spec->tensors[m->move.tensor].entry->n_dims;
    if (in_boxes != (m->shape != NULL)) {
        return fy_json_fail(place, error,
                            in_boxes ? "lacks the key \"shape\"" : "has the unknown key \"shape\"");
    }
    if (!in_boxes) {
        return FERRY_OK;
    }
    FY_TRY(fy_proof_read_dims(m->shape, &inner, 1, shape, &n, error));
    return n == n_dims
               ? FERRY_OK
               : fy_proof_move_fail(spec, &m->move, error,
                                    "its shape has %zu dimensions, but the tensor %zu", n, n_dims);
}

static ferry_status read_boxes(const fy_proof_spec *spec, move_json *m, const fy_json_place *place,
                               ferry_error *error)
{
    fy_proof_move *move = &m->move;
    uint64_t src_length[FY_PROOF_DIMS], shape[FY_PROOF_DIMS];
    size_t n_src, n_dst;
    FY_TRY(read_shape(spec, m, place, shape, error));
    FY_TRY(read_end(spec, FY_PROOF_SOURCE, m, place, shape, src_length, &n_src, error));
    FY_TRY(read_end(spec, FY_PROOF_DESTINATION, m, place, shape, move->length, &n_dst, error));
    FY_TRY(check_source(spec, m->source, move, error));
    size_t src_dims = spec->tensors[move->source].entry->n_dims;
    size_t dst_dims = spec->tensors[move->tensor].entry->n_dims;
    if (n_src != src_dims || n_dst != dst_dims) {
        return fy_proof_move_fail(
            spec, move, error,
            "has %zu dimensions at the source and %zu at the destination, but "
            "the tensors have %zu and %zu",
            n_src, n_dst, src_dims, dst_dims);
    }
    memcpy(move->src_length, src_length, sizeof src_length);
    if (spec->tensors[move->tensor].entry->scaling != NULL) {
        memcpy(src_length, move->length, sizeof src_length); /* checked with the shard of values */
    }
    if (memcmp(src_length, move->length, sizeof src_length) != 0 ||
        (m->shape != NULL && memcmp(shape, move->length, sizeof shape) != 0)) {
        char slice[200];
        fy_proof_slice_format(slice, sizeof slice, src_dims, move->src, src_length);
        return fy_proof_move_fail(spec, move, error, "the source box %s has another shape", slice);
    }
    return FERRY_OK;
}

ferry_status fy_proof_move_read(const fy_proof_spec *spec, const json_t *json,
                                const fy_json_place *place, fy_proof_move *move_out,
                                ferry_error *error)
{
    move_json m = {.source = NULL};
    FY_TRY(fy_json_read(json, place, fields, &m, NULL, error));
    FY_TRY(find_tensor(spec, "tensor", m.tensor, m.move.task_id, &m.move.tensor, error));
    FY_TRY(read_boxes(spec, &m, place, error));
    *move_out = m.move;
    return FERRY_OK;
}

static ferry_status check_inside(const fy_proof_spec *spec, const fy_proof_move *move,
                                 const char *side, const fy_proof_shard *shard, size_t n_dims,
                                 const uint64_t *begin, ferry_error *error)
{
    uint64_t last[FY_PROOF_DIMS];
    char box[200];
    fy_proof_slice_format(box, sizeof box, n_dims, begin, move->length);
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (move->length[d] == 0) {
            return fy_proof_move_fail(spec, move, error, "its box is empty");
        }
        if (begin[d] > shard->shape[d] || move->length[d] > shard->shape[d] - begin[d]) {
            char shape[200];
            fy_proof_element_format(shape, sizeof shape, n_dims, shard->shape);
            return fy_proof_move_fail(spec, move, error,
                                      "the %s box %s is outside the local shard of shape %s", side,
                                      box, shape);
        }
        last[d] = begin[d] + move->length[d] - 1;
    }
    uint64_t first_number = fy_proof_shard_number(shard, begin);
    uint64_t last_number = fy_proof_shard_number(shard, last);
    if (first_number < shard->flat_begin || last_number >= shard->flat_end) {
        return fy_proof_move_fail(
            spec, move, error,
            "the %s box %s spans the elements %llu to %llu, outside the flat range [%llu, %llu)",
            side, box, (unsigned long long)first_number, (unsigned long long)last_number,
            (unsigned long long)shard->flat_begin, (unsigned long long)shard->flat_end);
    }
    return FERRY_OK;
}

ferry_status fy_proof_move_check_boxes(const fy_proof_spec *spec, const fy_proof_move *move,
                                       const fy_proof_shard *from, const fy_proof_shard *to,
                                       ferry_error *error)
{
    FY_TRY(fy_proof_move_check_box(spec, move, FY_PROOF_SOURCE, from, error));
    return fy_proof_move_check_box(spec, move, FY_PROOF_DESTINATION, to, error);
}

ferry_status fy_proof_move_check_box(const fy_proof_spec *spec, const fy_proof_move *move, int side,
                                     const fy_proof_shard *shard, ferry_error *error)
{
    bool is_source = side == FY_PROOF_SOURCE;
    size_t n_dims = spec->tensors[is_source ? move->source : move->tensor].entry->n_dims;
    return check_inside(spec, move, is_source ? "source" : "destination", shard, n_dims,
                        is_source ? move->src : move->dst, error);
}

/* No piece goes on where the one before it ends, so a box that jumps is one that leaves a piece. */
static ferry_status check_jumps(const fy_proof_spec *spec, const fy_proof_move *move,
                                const char *side, const fy_proof_shard *shard, size_t n_dims,
                                const uint64_t *begin, ferry_error *error)
{
    for (size_t d = FY_PROOF_DIMS - n_dims; d < FY_PROOF_DIMS; d++) {
        const fy_proof_piece *piece =
            &shard->dims[d].items[fy_proof_pieces_find(&shard->dims[d], begin[d])];
        uint64_t kept = piece->local + piece->length - begin[d];
        if (kept < move->length[d]) {
            return fy_proof_move_fail(
                spec, move, error,
                "the %s box jumps in the global index on dim %zu, from %llu to %llu: it should be "
                "two moves",
                side, d - (FY_PROOF_DIMS - n_dims),
                (unsigned long long)(piece->global + piece->length - 1),
                (unsigned long long)piece[1].global);
        }
    }
    return FERRY_OK;
}

ferry_status fy_proof_move_check_jumps(const fy_proof_spec *spec, const fy_proof_move *move,
                                       const fy_proof_shard *from, const fy_proof_shard *to,
                                       ferry_error *error)
{
    size_t src_dims = spec->tensors[move->source].entry->n_dims;
    size_t dst_dims = spec->tensors[move->tensor].entry->n_dims;
    ferry_status status = check_jumps(spec, move, "source", from, src_dims, move->src, error);
    return status == FERRY_OK
               ? check_jumps(spec, move, "destination", to, dst_dims, move->dst, error)
               : status;
}

/*
 * In memory a box is a set of runs of equal length. From the last dimension on, a dimension that
 * the box fills joins its runs into one; the first that it does not fill ends that. Runs begin at
 * the box's first element plus multiples of the strides of the dimensions before.
 */
static bool is_on_bytes(const fy_proof_shard *shard, const uint64_t *begin, const uint64_t *length,
                        uint64_t bits)
{
    uint64_t first = fy_proof_shard_number(shard, begin) - shard->flat_begin;
    uint64_t run = 1;
    uint64_t stride = 1;
    bool is_one_run = true;
    if (first * bits % 8 != 0) {
        return false;
    }
    for (size_t d = FY_PROOF_DIMS; d-- > 0;) {
        if (is_one_run) {
            run *= length[d];
        } else if (length[d] > 1 && stride * bits % 8 != 0) {
            return false;
        }
        is_one_run = is_one_run && length[d] == shard->shape[d];
        stride *= shard->shape[d];
    }
    return run * bits % 8 == 0;
}

ferry_status fy_proof_move_check_bytes(const fy_proof_spec *spec, const fy_proof_move *move,
                                       const fy_proof_shard *from, const fy_proof_shard *to,
                                       ferry_error *error)
{
    uint64_t bits = move->bits;
    uint64_t elements = 1;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        elements *= move->length[d]; /* inside a shard, whose bits are below 2^62 */
    }
    if (elements * bits % 8 != 0 || elements * bits / 8 != move->bytes) {
        return fy_proof_move_fail(spec, move, error,
                                  "has %llu elements of %llu bits, but states %llu bytes",
                                  (unsigned long long)elements, (unsigned long long)bits,
                                  (unsigned long long)move->bytes);
    }
    if (!is_on_bytes(from, move->src, move->length, bits) ||
        !is_on_bytes(to, move->dst, move->length, bits)) {
        return fy_proof_move_fail(spec, move, error,
                                  "its boxes do not start and end on bytes, with elements of %llu "
                                  "bits",
                                  (unsigned long long)bits);
    }
    return FERRY_OK;
}
