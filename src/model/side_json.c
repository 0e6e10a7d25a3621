/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A side in boxes from a spec's text, and back. */
#include "model/side.h"

#include "base/writer.h"

#include <string.h>

/* What stands in an entry, before it is known in which order. */
typedef struct said_parameter {
    const char *name;
    ferry_dtype dtype;
    uint32_t rank; /* FY_OWN_RANK: a list instead */
    uint32_t *ranks;
    size_t n_ranks;
    uint64_t elements;
    bool is_partial, has_shape;
    fy_said_cast cast;
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    const json_t *quantize, *dequantize;
    const json_t *holds;
    const json_t *fill;
} said_parameter;

/* What readers of an entry share. */
typedef struct side_reading {
    ferry_side *side;
    bool may_be_own; /* ranks may be left out: those of the rank that says it */
} side_reading;

static ferry_status parse_rank(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    uint64_t rank;
    (void)context;
    FY_TRY(fy_json_get_size(json, place, 0, FERRY_MAX_RANKS - 1, &rank, error));
    *(uint32_t *)object = (uint32_t)rank;
    return FERRY_OK;
}

static ferry_status parse_ranks(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    said_parameter *said = object;
    const side_reading *reading = context;
    FY_TRY(fy_json_read_items(json, place, parse_rank, NULL, &reading->side->arena,
                              sizeof *said->ranks, "a list of ranks", &said->ranks, &said->n_ranks,
                              error));
    return said->n_ranks > 0 ? FERRY_OK : fy_json_fail(place, error, "must have a rank");
}

static ferry_status parse_numbers(const json_t *json, const fy_json_place *place, uint32_t *n_out,
                                  uint64_t values[FERRY_MAX_DIMS], ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    if (n > FERRY_MAX_DIMS) {
        return fy_json_fail(place, error, "has %zu numbers, more than the limit of %d", n,
                            FERRY_MAX_DIMS);
    }
    for (size_t d = 0; d < n; d++) {
        fy_json_place at = {.parent = place, .index = d};
        FY_TRY(fy_json_get_size(json_array_get(json, d), &at, 0, INT64_MAX, &values[d], error));
    }
    *n_out = (uint32_t)n;
    return FERRY_OK;
}

static ferry_status parse_parameter_shape(const json_t *json, const fy_json_place *place,
                                          void *object, void *context, ferry_error *error)
{
    said_parameter *said = object;
    (void)context;
    said->has_shape = true;
    return parse_numbers(json, place, &said->n_dims, said->shape, error);
}

/* A list that has as many numbers as the box has dimensions. */
static ferry_status parse_as_many(const json_t *object, const fy_json_place *place, const char *key,
                                  uint32_t n_dims, uint64_t values[FERRY_MAX_DIMS],
                                  ferry_error *error)
{
    fy_json_place at = {.parent = place, .key = key};
    const json_t *json;
    uint32_t n = 0;
    FY_TRY(fy_json_member(object, place, key, &json, error));
    FY_TRY(parse_numbers(json, &at, &n, values, error));
    if (n != n_dims) {
        return fy_json_fail(&at, error, "has %u numbers, but shape has %u", n, n_dims);
    }
    return FERRY_OK;
}

static ferry_status parse_repeat(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    static const fy_json_field fields[] = {{"count", FY_JSON_SIZE, FY_JSON_NEEDED,
                                            offsetof(ferry_side_repeat, count), .least = 1,
                                            .most = INT64_MAX},
                                           {.key = "begin", .type = FY_JSON_UNREAD},
                                           {"offset", FY_JSON_SIZE, FY_JSON_NEEDED,
                                            offsetof(ferry_side_repeat, offset), .most = INT64_MAX},
                                           {.key = NULL}};
    const ferry_side_box *box = context;
    ferry_side_repeat *repeat = object;
    FY_TRY(fy_json_read(json, place, fields, repeat, NULL, error));
    return parse_as_many(json, place, "begin", box->n_dims, repeat->begin, error);
}

static ferry_status parse_repeats(const json_t *json, const fy_json_place *place, void *object,
                                  void *context, ferry_error *error)
{
    ferry_side_box *box = object;
    (void)context;
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    if (n > FERRY_MAX_REPEATS) {
        return fy_json_fail(place, error, "has %zu loops, more than the limit of %d", n,
                            FERRY_MAX_REPEATS);
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place at = {.parent = place, .index = i};
        FY_TRY(parse_repeat(json_array_get(json, i), &at, &box->repeats[i], box, error));
    }
    box->n_repeats = (uint32_t)n;
    return FERRY_OK;
}

static ferry_status parse_shape(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    ferry_side_box *box = object;
    (void)context;
    return parse_numbers(json, place, &box->n_dims, box->shape, error);
}

static ferry_status parse_box(const json_t *json, const fy_json_place *place, ferry_side *side,
                              size_t parameter, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"tensor", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(ferry_side_box, tensor)},
        {"shape", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_shape},
        {.key = "begin", .type = FY_JSON_UNREAD},
        {"offset", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(ferry_side_box, offset),
         .most = INT64_MAX},
        {.key = "strides", .type = FY_JSON_UNREAD},
        {"repeat", FY_JSON_READ, .read = parse_repeats},
        {.key = NULL}};
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    FY_TRY(fy_json_read(json, place, fields, &box, NULL, error));
    FY_TRY(parse_as_many(json, place, "begin", box.n_dims, box.begin, error));
    FY_TRY(parse_as_many(json, place, "strides", box.n_dims, box.strides, error));
    return ferry_side_add_box(side, parameter, &box, error);
}

/* Hex digits, the highest first. Half a byte is the same in both halves. */
static ferry_status parse_bits(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    const char *text;
    fy_fill *fill = object;
    uint64_t value = 0;
    (void)context;
    FY_TRY(fy_json_get_string(json, place, &text, error));
    size_t n = strlen(text);
    if (n == 0 || n > 16 || strspn(text, "0123456789abcdef") != n) {
        return fy_json_fail(place, error,
                            "must be an element in hex digits from 0 to f, at most 16 of them");
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t digit = (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
        value = value << 4 | digit;
    }
    value = n == 1 ? value << 4 | value : value;
    for (size_t i = 0; i < sizeof fill->bits; i++) {
        fill->bits[i] = (unsigned char)(value >> (8 * i));
    }
    fill->n_digits = (uint32_t)n;
    return FERRY_OK;
}

static ferry_status parse_fill(const json_t *json, const fy_json_place *place, ferry_side *side,
                               size_t parameter, ferry_error *error)
{
    static const fy_json_field fields[] = {{"offset", FY_JSON_SIZE, FY_JSON_NEEDED,
                                            .offset = offsetof(fy_fill, offset), .most = INT64_MAX},
                                           {.key = "shape", .type = FY_JSON_UNREAD},
                                           {.key = "strides", .type = FY_JSON_UNREAD},
                                           {"bits", FY_JSON_READ, .read = parse_bits},
                                           {.key = NULL}};
    fy_fill fill = {.parameter = (uint32_t)parameter};
    uint64_t shape[FERRY_MAX_DIMS], strides[FERRY_MAX_DIMS];
    const json_t *shape_json;
    fy_json_place shape_at = {.parent = place, .key = "shape"};
    FY_TRY(fy_json_read(json, place, fields, &fill, NULL, error));
    FY_TRY(fy_json_member(json, place, "shape", &shape_json, error));
    FY_TRY(parse_numbers(shape_json, &shape_at, &fill.n_dims, shape, error));
    FY_TRY(parse_as_many(json, place, "strides", fill.n_dims, strides, error));
    FY_TRY(ferry_side_add_fill(side, parameter, fill.n_dims, fill.offset, shape, strides, fill.bits,
                               error));
    side->fills[side->n_fills - 1].n_digits = fill.n_digits;
    return FERRY_OK;
}

static ferry_status parse_lists(const said_parameter *said, const fy_json_place *place,
                                ferry_side *side, size_t parameter, ferry_error *error)
{
    fy_json_place holds_at = {.parent = place, .key = "holds"};
    fy_json_place fill_at = {.parent = place, .key = "fill"};
    FY_TRY(fy_json_expect_array(said->holds, &holds_at, error));
    for (size_t i = 0; i < json_array_size(said->holds); i++) {
        fy_json_place at = {.parent = &holds_at, .index = i};
        FY_TRY(parse_box(json_array_get(said->holds, i), &at, side, parameter, error));
    }
    if (said->fill == NULL) {
        return FERRY_OK;
    }
    FY_TRY(fy_json_expect_array(said->fill, &fill_at, error));
    for (size_t i = 0; i < json_array_size(said->fill); i++) {
        fy_json_place at = {.parent = &fill_at, .index = i};
        FY_TRY(parse_fill(json_array_get(said->fill, i), &at, side, parameter, error));
    }
    return FERRY_OK;
}

static ferry_status check_ranks(const said_parameter *said, const fy_json_place *place,
                                bool may_be_own, ferry_error *error)
{
    bool has_rank = said->rank != FY_OWN_RANK, has_ranks = said->ranks != NULL;
    if (has_rank && has_ranks) {
        return fy_json_fail(place, error, "must have either \"rank\" or \"ranks\"");
    }
    return has_rank || has_ranks || may_be_own
               ? FERRY_OK
               : fy_json_fail(place, error, "must have either \"rank\" or \"ranks\"");
}

/* What becomes of its tensors by blocks. */
static ferry_status parse_changes(const said_parameter *said, const fy_json_place *place,
                                  fy_arena *arena, const fy_said_blocks **blocks_out,
                                  const fy_said_blocks **codes_out, ferry_error *error)
{
    fy_json_place quantize = {.parent = place, .key = "quantize"};
    fy_json_place dequantize = {.parent = place, .key = "dequantize"};
    if (said->quantize != NULL) {
        return fy_blocks_read(said->quantize, &quantize, arena, blocks_out, error);
    }
    if (said->dequantize != NULL && !fy_blocks_take(said->dtype)) {
        return fy_json_fail(place, error,
                            "dequantizes, and must say what to: \"dtype\" f32, f16 or bf16");
    }
    return said->dequantize == NULL
               ? FERRY_OK
               : fy_codes_read(said->dequantize, &dequantize, arena, codes_out, error);
}

static ferry_status parse_parameter(const json_t *json, const fy_json_place *place,
                                    side_reading *reading, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"rank", FY_JSON_READ, .offset = offsetof(said_parameter, rank), .read = parse_rank},
        {"ranks", FY_JSON_READ, .read = parse_ranks},
        {"parameter", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(said_parameter, name)},
        {"dtype", FY_JSON_READ, .offset = offsetof(said_parameter, dtype),
         .read = fy_dtype_parse_json},
        {"elements", FY_JSON_SIZE, FY_JSON_NEEDED, .offset = offsetof(said_parameter, elements),
         .most = INT64_MAX},
        {"shape", FY_JSON_READ, .read = parse_parameter_shape},
        {"holds", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(said_parameter, holds)},
        {"fill", FY_JSON_VALUE, .offset = offsetof(said_parameter, fill)},
        {"partial", FY_JSON_BOOL, .offset = offsetof(said_parameter, is_partial)},
        {"cast", FY_JSON_READ, .offset = offsetof(said_parameter, cast),
         .read = fy_cast_parse_word},
        {"scale", FY_JSON_READ, .offset = offsetof(said_parameter, cast),
         .read = fy_cast_parse_scale},
        {"add", FY_JSON_READ, .offset = offsetof(said_parameter, cast), .read = fy_cast_parse_add},
        {"quantize", FY_JSON_VALUE, .offset = offsetof(said_parameter, quantize)},
        {"dequantize", FY_JSON_VALUE, .offset = offsetof(said_parameter, dequantize)},
        {.key = NULL}};
    said_parameter said = {.rank = FY_OWN_RANK};
    size_t number = 0;
    const fy_said_blocks *blocks = NULL, *codes = NULL;
    FY_TRY(fy_json_read(json, place, fields, &said, reading, error));
    FY_TRY(fy_cast_finish(json, place, &said.cast, error));
    FY_TRY(parse_changes(&said, place, &reading->side->arena, &blocks, &codes, error));
    FY_TRY(check_ranks(&said, place, reading->may_be_own, error));
    if (said.rank != FY_OWN_RANK) {
        said.ranks = &said.rank;
        said.n_ranks = 1;
    }
    FY_TRY(ferry_side_add_parameter(reading->side, said.ranks, said.n_ranks, said.name,
                                    said.dtype.kind == 0 ? NULL : &said.dtype, said.elements,
                                    said.is_partial ? FERRY_PARAMETER_PARTIAL : 0, &number, error));
    reading->side->parameters[number].cast = said.cast;
    if (said.has_shape) {
        FY_TRY(ferry_side_set_shape(reading->side, number, said.n_dims, said.shape, error));
    }
    reading->side->parameters[number].blocks = blocks;
    reading->side->parameters[number].codes = codes;
    return parse_lists(&said, place, reading->side, number, error);
}

ferry_status fy_side_from_json(const json_t *json, const fy_json_place *place, bool may_be_own,
                               ferry_side **side_out, ferry_error *error)
{
    side_reading reading = {.may_be_own = may_be_own};
    FY_TRY(fy_json_expect_array(json, place, error));
    if (json_array_size(json) == 0 && !may_be_own) {
        return fy_json_fail(place, error, "must have a parameter");
    }
    FY_TRY(ferry_side_create(&reading.side, error));
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < json_array_size(json) && status == FERRY_OK; i++) {
        fy_json_place at = {.parent = place, .index = i};
        ferry_error inner;
        status = parse_parameter(json_array_get(json, i), &at, &reading, &inner);
        if (status != FERRY_OK) {
            char text[256];
            fy_json_place_format(&at, text, sizeof text);
            /* Sentences about numbers name the parameter, those about JSON the place. */
            bool placed = strncmp(inner.message, text, strlen(text)) == 0;
            status = placed ? fy_forward(error, status, &inner)
                            : fy_fail(error, status, "%s: %s", text, inner.message);
        }
    }
    if (status == FERRY_OK) {
        *side_out = reading.side;
        reading.side = NULL;
    }
    ferry_side_destroy(reading.side);
    return status;
}

ferry_status ferry_side_parse(const char *text, size_t text_bytes, const char *name,
                              ferry_side **side_out, ferry_error *error)
{
    FY_TRY(fy_check_use(text != NULL && name != NULL && side_out != NULL,
                        "ferry_side_parse needs a text, a name and a place for the side", error));
    json_t *root = NULL;
    const json_t *boxes;
    static const char *const keys[] = {"boxes", NULL};
    FY_TRY(fy_json_parse(text, text_bytes, name, &root, error));
    fy_json_place top = {.key = name}, place = {.parent = &top, .key = "boxes"};
    ferry_status status = fy_json_expect_object(root, &top, keys, error);
    FY_THEN(status, fy_json_member(root, &top, "boxes", &boxes, error));
    FY_THEN(status, fy_side_from_json(boxes, &place, true, side_out, error));
    json_decref(root);
    return status;
}

ferry_dtype fy_side_dtype(const ferry_side *side, const fy_parameter *parameter)
{
    size_t number = (size_t)(parameter - side->parameters);
    if (parameter->dtype.kind != 0) {
        return parameter->dtype;
    }
    if (side->is_sorted) {
        return parameter->n_boxes == 0
                   ? parameter->dtype
                   : side->tensors[side->boxes[parameter->first_box].tensor].dtype;
    }
    for (size_t i = 0; i < side->n_boxes; i++) {
        if (side->boxes[i].parameter == number) {
            return side->tensors[side->boxes[i].tensor].dtype;
        }
    }
    return parameter->dtype;
}

void fy_fill_format(const unsigned char bits[8], uint32_t element_bits, char text_out[17])
{
    uint32_t n_digits = element_bits / 4 < 16 ? element_bits / 4 : 16;
    for (uint32_t i = 0; i < n_digits; i++) {
        uint32_t from = n_digits - 1 - i;
        text_out[i] = "0123456789abcdef"[bits[from / 2] >> (from % 2 * 4) & 15];
    }
    text_out[n_digits] = '\0';
}

static void write_numbers(fy_writer *w, const char *key, const uint64_t *values, uint32_t n)
{
    fy_write_text(w, key);
    for (uint32_t d = 0; d < n; d++) {
        fy_write_text(w, d == 0 ? "" : ",");
        fy_write_u64(w, values[d]);
    }
    fy_write_text(w, "]");
}

static void write_box(fy_writer *w, const ferry_side *side, const fy_said_box *box)
{
    fy_write_text(w, "{\"tensor\":");
    fy_write_string(w, side->tensors[box->tensor].name);
    write_numbers(w, ",\"begin\":[", box->numbers, box->n_dims);
    write_numbers(w, ",\"shape\":[", fy_said_box_shape(box), box->n_dims);
    fy_write_text(w, ",\"offset\":");
    fy_write_u64(w, box->offset);
    write_numbers(w, ",\"strides\":[", fy_said_box_strides(box), box->n_dims);
    for (uint32_t i = 0; i < box->n_repeats; i++) {
        const uint64_t *repeat = fy_said_box_repeat(box, i);
        fy_write_text(w, i == 0 ? ",\"repeat\":[{\"count\":" : ",{\"count\":");
        fy_write_u64(w, repeat[0]);
        write_numbers(w, ",\"begin\":[", repeat + 2, box->n_dims);
        fy_write_text(w, ",\"offset\":");
        fy_write_u64(w, repeat[1]);
        fy_write_text(w, i + 1 < box->n_repeats ? "}" : "}]");
    }
    fy_write_text(w, "}");
}

static void write_fill(fy_writer *w, const fy_fill *fill, uint32_t element_bits)
{
    char bits[17];
    fy_fill_format(fill->bits, element_bits, bits);
    fy_write_text(w, "{\"offset\":");
    fy_write_u64(w, fill->offset);
    write_numbers(w, ",\"shape\":[", fill->numbers, fill->n_dims);
    write_numbers(w, ",\"strides\":[", fill->numbers + fill->n_dims, fill->n_dims);
    fy_write_text(w, ",\"bits\":\"");
    fy_write_text(w, bits);
    fy_write_text(w, "\"}");
}

static void write_head(fy_writer *w, const ferry_side *side, const fy_parameter *parameter)
{
    ferry_dtype dtype = fy_side_dtype(side, parameter);
    fy_write_text(w, "{\"ranks\":[");
    for (uint32_t i = 0; parameter->ranks != FY_OWN_RANK && i < side->lists[parameter->ranks].n;
         i++) {
        fy_write_text(w, i == 0 ? "" : ",");
        fy_write_u64(w, side->lists[parameter->ranks].ranks[i]);
    }
    fy_write_text(w, "],\"parameter\":");
    fy_write_string(w, parameter->name);
    if (dtype.kind != 0) {
        char text[FERRY_DTYPE_TEXT_BYTES];
        ferry_dtype_format(dtype, text, sizeof text);
        fy_write_text(w, ",\"dtype\":");
        fy_write_string(w, text);
    }
    fy_write_text(w, ",\"elements\":");
    fy_write_u64(w, parameter->elements);
    fy_cast_write(w, &parameter->cast);
    if (parameter->shape != NULL) {
        write_numbers(w, ",\"shape\":[", parameter->shape, parameter->n_dims);
    }
    if (parameter->blocks != NULL) {
        fy_blocks_write(w, parameter->blocks);
    }
    if (parameter->codes != NULL) {
        fy_codes_write(w, parameter->codes);
    }
}

/* Of a side that is sorted. */
static void write_parameter(fy_writer *w, const ferry_side *side, const fy_parameter *parameter)
{
    write_head(w, side, parameter);
    fy_write_text(w, ",\"holds\":[");
    for (uint32_t i = 0; i < parameter->n_boxes; i++) {
        fy_write_text(w, i == 0 ? "\n" : ",\n");
        write_box(w, side, &side->boxes[parameter->first_box + i]);
    }
    fy_write_text(w, "]");
    for (uint32_t i = 0; i < parameter->n_fills; i++) {
        fy_write_text(w, i == 0 ? ",\"fill\":[" : ",");
        write_fill(w, &side->fills[parameter->first_fill + i],
                   fy_side_dtype(side, parameter).element_bits);
    }
    fy_write_text(w, parameter->n_fills > 0 ? "]" : "");
    fy_write_text(w, parameter->is_partial ? ",\"partial\":true}" : "}");
}

static ferry_status check_writable(const ferry_side *side, ferry_error *error)
{
    for (size_t p = 0; p < side->n_parameters; p++) {
        const fy_parameter *parameter = &side->parameters[p];
        if (parameter->ranks == FY_OWN_RANK) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "the parameter \"%s\" has no ranks; those that know only themselves "
                           "tell each other what they have first",
                           parameter->name);
        }
        if (parameter->n_fills > 0 && fy_side_dtype(side, parameter).kind == 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "the parameter \"%s\" has fills, but no type is known of it; add its "
                           "type, or the tensor of its first box",
                           parameter->name);
        }
    }
    return FERRY_OK;
}

void fy_side_write_parameters(fy_writer *w, const ferry_side *sorted, const bool *are_wanted)
{
    bool any = false;
    fy_write_text(w, "[");
    for (size_t p = 0; p < sorted->n_parameters; p++) {
        if (sorted->parameters[p].staged == 0 && (are_wanted == NULL || are_wanted[p])) {
            fy_write_text(w, any ? ",\n" : "\n");
            write_parameter(w, sorted, &sorted->parameters[p]);
            any = true;
        }
    }
    fy_write_text(w, "]");
}

void fy_side_write(fy_writer *w, const ferry_side *sorted)
{
    fy_write_text(w, "{\"boxes\":");
    fy_side_write_parameters(w, sorted, NULL);
    fy_write_text(w, "}");
}

ferry_status ferry_side_write_json(const ferry_side *side, ferry_write_fn write, void *context,
                                   ferry_error *error)
{
    FY_TRY(fy_check_use(side != NULL && write != NULL,
                        "ferry_side_write_json needs a side and a writer", error));
    ferry_side *copy = NULL;
    fy_writer *w = fy_alloc(1, sizeof *w);
    FY_TRY(fy_check_memory(w != NULL, "an output buffer", error));
    fy_writer_init(w, write, context);
    ferry_status status = ferry_side_create(&copy, error);
    FY_THEN(status, fy_side_append(copy, side, NULL, 0, error));
    FY_THEN(status, fy_side_sort(copy, error));
    FY_THEN(status, check_writable(copy, error));
    if (status == FERRY_OK) {
        fy_side_write(w, copy);
        status = fy_writer_finish(w, error);
    }
    ferry_side_destroy(copy);
    fy_free(w);
    return status;
}
