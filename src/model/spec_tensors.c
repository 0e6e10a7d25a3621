/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a spec: repeated entries are expanded, sources resolved and their tilings checked.
 */
#include "model/spec.h"

#include "base/checked.h"
#include "model/chains.h"
#include "model/compose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A name whose {0}, {1} ... stand for the numbers of a repeated entry. */
enum { MAX_COUNTS = 8, MAX_NAME_BYTES = 4096 };

typedef struct repeat {
    size_t n_counts;
    uint64_t counts[MAX_COUNTS];
    uint64_t at[MAX_COUNTS];
} repeat;

/* Whether "{k}" stands at text, with k below the number of counts. */
static bool read_hole(const char *text, const repeat *numbers, size_t *index_out)
{
    if (text[0] != '{' || text[1] < '0' || text[1] > '9' || text[2] != '}') {
        return false;
    }
    *index_out = (size_t)(text[1] - '0');
    return *index_out < numbers->n_counts;
}

static ferry_status expand_name(const char *pattern, const repeat *numbers, char *name,
                                size_t *length_out, const fy_json_place *place, ferry_error *error)
{
    size_t used = 0;
    while (*pattern != '\0') {
        size_t index;
        if (used + 24 > MAX_NAME_BYTES) {
            return fy_json_fail(place, error, "has a name of more than %d bytes",
                                MAX_NAME_BYTES - 24);
        }
        if (numbers->n_counts > 0 && read_hole(pattern, numbers, &index)) {
            used +=
                (size_t)snprintf(name + used, 24, "%llu", (unsigned long long)numbers->at[index]);
            pattern += 3;
        } else {
            name[used++] = *pattern++;
        }
    }
    name[used] = '\0';
    *length_out = used;
    return FERRY_OK;
}

/* A count whose number stands nowhere in the name would make the same tensor again. */
static ferry_status check_holes(const char *name, const repeat *numbers, const fy_json_place *place,
                                ferry_error *error)
{
    for (size_t i = 0; i < numbers->n_counts; i++) {
        char hole[24];
        snprintf(hole, sizeof hole, "{%zu}", i);
        if (strstr(name, hole) == NULL) {
            return fy_json_fail(place, error, "name \"%s\" lacks %s for count number %zu", name,
                                hole, i);
        }
    }
    return FERRY_OK;
}

static ferry_status parse_counts(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    repeat *numbers = object;
    uint64_t total = 1;
    (void)context;
    FY_TRY(fy_json_expect_array(json, place, error));
    numbers->n_counts = json_array_size(json);
    if (numbers->n_counts == 0 || numbers->n_counts > MAX_COUNTS) {
        return fy_json_fail(place, error, "must have from 1 to %d numbers, not %zu", MAX_COUNTS,
                            numbers->n_counts);
    }
    for (size_t i = 0; i < numbers->n_counts; i++) {
        fy_json_place at = {.parent = place, .index = i};
        FY_TRY(fy_json_get_size(json_array_get(json, i), &at, 1, INT64_MAX, &numbers->counts[i],
                                error));
        if (!fy_mul(total, numbers->counts[i], &total) || total > FY_MAX_TENSORS) {
            return fy_json_fail(place, error, "makes more than %d tensors", FY_MAX_TENSORS);
        }
    }
    return FERRY_OK;
}

static bool next_numbers(repeat *numbers)
{
    for (size_t i = numbers->n_counts; i > 0; i--) {
        if (++numbers->at[i - 1] < numbers->counts[i - 1]) {
            return true;
        }
        numbers->at[i - 1] = 0;
    }
    return false;
}

/* The bytes of a shape must be countable in 63 bits, with empty dimensions taken as 1. */
static ferry_status check_size(const uint64_t *shape, uint32_t n_dims, ferry_dtype dtype,
                               const fy_json_place *place, ferry_error *error)
{
    uint64_t bits = dtype.element_bits;
    uint32_t n_empty = 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        n_empty += shape[d] == 0;
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        if (!fy_mul(bits, fy_max(shape[d], 1), &bits) || bits > INT64_MAX) {
            return fy_json_fail(place, error, "has more than 2^63 bits%s",
                                n_empty > 0 ? ", with 1 in the place of each 0" : "");
        }
    }
    return FERRY_OK;
}

enum { MOST_NAME_BYTES = 1 << 28 };

static ferry_status add_tensor(ferry_spec *spec, const fy_tensor *like, const char *name,
                               size_t length, const fy_json_place *place, ferry_error *error)
{
    if (length == 0) {
        return fy_json_fail(place, error, "has an empty name");
    }
    if (fy_spec_find_tensor(spec, name) != FY_NONE) {
        return fy_json_fail(place, error, "names the tensor \"%s\" again", name);
    }
    if (spec->n_tensors == FY_MAX_TENSORS) {
        return fy_json_fail(place, error, "is beyond the limit of %d tensors", FY_MAX_TENSORS);
    }
    /* A count multiplies the name: a small file must not ask for all memory. */
    spec->name_bytes += length;
    if (spec->name_bytes > MOST_NAME_BYTES) {
        return fy_json_fail(place, error, "is beyond the limit of %d bytes for all names together",
                            MOST_NAME_BYTES);
    }
    char *copy = fy_arena_copy(&spec->arena, name, length);
    if (copy == NULL || !FY_RESERVE(spec->tensors, spec->tensor_capacity, spec->n_tensors + 1u) ||
        !fy_index_insert(&spec->names, fy_hash64(name, length), spec->n_tensors)) {
        return fy_fail_no_memory(error, "the tensors");
    }
    fy_tensor *tensor = &spec->tensors[spec->n_tensors++];
    *tensor = *like;
    tensor->name = copy;
    return FERRY_OK;
}

ferry_status fy_spec_add_tensor(ferry_spec *spec, const char *name, ferry_dtype dtype,
                                const uint64_t *shape, uint32_t n_dims, ferry_error *error)
{
    fy_json_place place = {.key = name};
    fy_tensor tensor = {
        .shape = shape, .dtype = dtype, .n_dims = n_dims, .src = FY_NONE, .dst = FY_NONE};
    FY_TRY(check_size(shape, n_dims, dtype, &place, error));
    return add_tensor(spec, &tensor, name, strlen(name), &place, error);
}

typedef struct entry {
    const char *name;
    const json_t *source;
    fy_tensor tensor;
    repeat numbers;
} entry;

static ferry_status parse_shape(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    fy_tensor *tensor = object;
    uint64_t *shape = NULL;
    size_t n_dims = json_array_size(json);
    if (n_dims > FERRY_MAX_DIMS) {
        return fy_json_fail(place, error, "has %zu dimensions, more than the limit of %d", n_dims,
                            FERRY_MAX_DIMS);
    }
    FY_TRY(fy_json_read_sizes(json, place, 0, INT64_MAX, &((ferry_spec *)context)->arena, "a shape",
                              &shape, &n_dims, error));
    tensor->shape = shape;
    tensor->n_dims = (uint32_t)n_dims;
    return FERRY_OK;
}

static ferry_status parse_dtype(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    fy_tensor *tensor = object;
    fy_json_place shape_at = {.parent = place->parent, .key = "shape"};
    const char *text;
    ferry_error inner;
    (void)context;
    FY_TRY(fy_json_get_string(json, place, &text, error));
    if (ferry_dtype_parse(text, &tensor->dtype, &inner) != FERRY_OK) {
        return fy_json_fail(place, error, "%s", inner.message);
    }
    return check_size(tensor->shape, tensor->n_dims, tensor->dtype, &shape_at, error);
}

/* A tensor that is there to be the source of others. */
static ferry_status parse_only(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    const char *side;
    (void)context;
    FY_TRY(fy_json_get_string(json, place, &side, error));
    if (strcmp(side, "source") != 0) {
        return fy_json_fail(place, error, "must be \"source\", not \"%s\"", side);
    }
    ((fy_tensor *)object)->is_source_only = true;
    return FERRY_OK;
}

static ferry_status parse_entry(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                entry *entry_out, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"name", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(entry, name)},
        {"shape", FY_JSON_READ, FY_JSON_NEEDED, offsetof(entry, tensor), .read = parse_shape},
        {"dtype", FY_JSON_READ, FY_JSON_NEEDED, offsetof(entry, tensor), .read = parse_dtype},
        {"count", FY_JSON_READ, .offset = offsetof(entry, numbers), .read = parse_counts},
        {"source", FY_JSON_VALUE, .offset = offsetof(entry, source)},
        {"only", FY_JSON_READ, .offset = offsetof(entry, tensor), .read = parse_only},
        {.key = NULL}};
    fy_json_place name_at = {.parent = place, .key = "name"};
    *entry_out = (entry){.tensor = {.src = FY_NONE, .dst = FY_NONE}};
    FY_TRY(fy_json_read(json, place, fields, entry_out, spec, error));
    if (entry_out->source != NULL && entry_out->tensor.is_source_only) {
        return fy_json_fail(place, error,
                            "has a source, so it is not at the source side, and \"only\" says that "
                            "it is nowhere else");
    }
    return check_holes(entry_out->name, &entry_out->numbers, &name_at, error);
}

/* A place such as tensors[17].shape says little to a reader who knows tensors by name. */
static ferry_status parse_named_entry(ferry_spec *spec, const json_t *json,
                                      const fy_json_place *place, entry *entry_out,
                                      ferry_error *error)
{
    ferry_error inner;
    ferry_status status = parse_entry(spec, json, place, entry_out, &inner);
    if (status != FERRY_OK && entry_out->name != NULL) {
        return fy_fail(error, status, "%s (tensor \"%s\")", inner.message, entry_out->name);
    }
    return fy_forward(error, status, &inner);
}

/* Adds every tensor of an entry; their sources follow when all names are known. */
static ferry_status add_entry(ferry_spec *spec, entry *e, const fy_json_place *place,
                              ferry_error *error)
{
    char name[MAX_NAME_BYTES];
    size_t length;
    do {
        FY_TRY(expand_name(e->name, &e->numbers, name, &length, place, error));
        FY_TRY(add_tensor(spec, &e->tensor, name, length, place, error));
    } while (next_numbers(&e->numbers));
    return FERRY_OK;
}

static ferry_status find_source(const ferry_spec *spec, const fy_tensor *tensor,
                                const char *pattern, const repeat *numbers,
                                const fy_json_place *place, uint32_t *number_out,
                                ferry_error *error)
{
    char name[MAX_NAME_BYTES];
    size_t length;
    FY_TRY(expand_name(pattern, numbers, name, &length, place, error));
    uint32_t number = fy_spec_find_tensor(spec, name);
    if (number == FY_NONE) {
        return fy_json_fail(place, error,
                            "of \"%s\" names \"%s\", which is not an entry of tensors",
                            tensor->name, name);
    }
    const fy_tensor *source = &spec->tensors[number];
    if (source->dtype.kind != tensor->dtype.kind ||
        source->dtype.element_bits != tensor->dtype.element_bits) {
        char have[FERRY_DTYPE_TEXT_BYTES], want[FERRY_DTYPE_TEXT_BYTES];
        ferry_dtype_format(source->dtype, have, sizeof have);
        ferry_dtype_format(tensor->dtype, want, sizeof want);
        return fy_json_fail(place, error,
                            "of \"%s\" (%s) names \"%s\", which is %s; dtypes must agree",
                            tensor->name, want, name, have);
    }
    *number_out = number;
    return FERRY_OK;
}

static ferry_status tie(const ferry_spec *spec, const fy_tensor *tensor, const char *pattern,
                        const repeat *numbers, const fy_json_place *place, fy_feed *feed,
                        ferry_error *error)
{
    FY_TRY(find_source(spec, tensor, pattern, numbers, place, &feed->tensor, error));
    const fy_tensor *source = &spec->tensors[feed->tensor];
    bool same = source->n_dims == tensor->n_dims;
    feed->n_dims = tensor->n_dims;
    for (uint32_t d = 0; same && d < tensor->n_dims; d++) {
        same = source->shape[d] == tensor->shape[d];
        feed->shape[d] = tensor->shape[d];
    }
    if (!same) {
        return fy_json_fail(place, error, "of \"%s\" names \"%s\", whose shape differs",
                            tensor->name, source->name);
    }
    return FERRY_OK;
}

static ferry_status parse_corner(const json_t *json, const fy_json_place *place, const char *key,
                                 uint32_t n_dims, uint64_t values[FERRY_MAX_DIMS],
                                 ferry_error *error)
{
    fy_json_place at = {.parent = place, .key = key};
    FY_TRY(fy_json_expect_array(json, &at, error));
    if (json_array_size(json) != n_dims) {
        return fy_json_fail(&at, error, "has %zu numbers, but the tensor has %u dimensions",
                            json_array_size(json), n_dims);
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        fy_json_place number_at = {.parent = &at, .index = d};
        FY_TRY(
            fy_json_get_size(json_array_get(json, d), &number_at, 0, INT64_MAX, &values[d], error));
    }
    return FERRY_OK;
}

static ferry_status check_inside(const char *name, const uint64_t *shape, const uint64_t *begin,
                                 const uint64_t *length, uint32_t n_dims,
                                 const fy_json_place *place, ferry_error *error)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        if (begin[d] + length[d] > shape[d]) { /* both below 2^63 */
            return fy_json_fail(
                place, error, "reaches from %llu to %llu on dim %u of \"%s\", whose extent is %llu",
                (unsigned long long)begin[d], (unsigned long long)(begin[d] + length[d]), d, name,
                (unsigned long long)shape[d]);
        }
    }
    return FERRY_OK;
}

/* Gives the tensor with fewer dimensions leading ones. */
static ferry_status align_feed(const fy_tensor *source, const fy_tensor *tensor,
                               const uint64_t *begin, const uint64_t *shape, const uint64_t *at,
                               const fy_json_place *place, fy_feed *feed, ferry_error *error)
{
    uint32_t n = source->n_dims > tensor->n_dims ? source->n_dims : tensor->n_dims;
    uint32_t src_pad = n - source->n_dims, dst_pad = n - tensor->n_dims;
    feed->n_dims = n;
    for (uint32_t d = 0; d < n; d++) {
        feed->begin[d] = d < src_pad ? 0 : begin[d - src_pad];
        feed->shape[d] = d < src_pad ? 1 : shape[d - src_pad];
        feed->at[d] = d < dst_pad ? 0 : at[d - dst_pad];
        if (d < dst_pad && feed->shape[d] != 1) {
            return fy_json_fail(place, error,
                                "\"%s\" has %u dimensions and \"%s\" %u, so the box may be only 1 "
                                "long on dim %u, not %llu",
                                source->name, source->n_dims, tensor->name, tensor->n_dims, d,
                                (unsigned long long)feed->shape[d]);
        }
    }
    return FERRY_OK;
}

typedef struct feed_json {
    const char *tensor;
    const json_t *begin, *shape, *at;
} feed_json;

static ferry_status parse_feed(const ferry_spec *spec, const fy_tensor *tensor, const json_t *json,
                               const repeat *numbers, const fy_json_place *place, fy_feed *feed,
                               ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"tensor", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(feed_json, tensor)},
        {"begin", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(feed_json, begin)},
        {"shape", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(feed_json, shape)},
        {"at", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(feed_json, at)},
        {.key = NULL}};
    feed_json box;
    fy_json_place tensor_at = {.parent = place, .key = "tensor"};
    FY_TRY(fy_json_read(json, place, fields, &box, NULL, error));
    FY_TRY(find_source(spec, tensor, box.tensor, numbers, &tensor_at, &feed->tensor, error));
    const fy_tensor *source = &spec->tensors[feed->tensor];
    uint64_t begin[FERRY_MAX_DIMS] = {0}, shape[FERRY_MAX_DIMS] = {0}, at[FERRY_MAX_DIMS] = {0};
    FY_TRY(parse_corner(box.begin, place, "begin", source->n_dims, begin, error));
    FY_TRY(parse_corner(box.shape, place, "shape", source->n_dims, shape, error));
    FY_TRY(parse_corner(box.at, place, "at", tensor->n_dims, at, error));
    FY_TRY(check_inside(source->name, source->shape, begin, shape, source->n_dims, place, error));
    FY_TRY(align_feed(source, tensor, begin, shape, at, place, feed, error));
    uint32_t pad = feed->n_dims - tensor->n_dims;
    return check_inside(tensor->name, tensor->shape, feed->at + pad, feed->shape + pad,
                        tensor->n_dims, place, error);
}

/*
 * A measure of boxes: the product over dimensions of h(end) - h(begin), for a random h of each. It
 * adds up as volumes do, however space is cut, and modulo 2^64, twice, no other set of boxes has
 * that of the whole but by chance. So no box is held against the others. The hash is no secret: who
 * searches for feeds that overlap and pass finds some, and has a plan of his own that `--prove`,
 * which does compare boxes, refuses, as services do that would write a byte twice. A secret one
 * would make the answer another from process to process.
 */
static fy_hash128 place_hash(uint32_t dim, uint64_t at)
{
    uint64_t values[2] = {dim, at};
    return fy_hash128_of(values, sizeof values);
}

static fy_hash128 measure(const fy_box *box, uint32_t n_dims)
{
    fy_hash128 product = {.low = 1, .high = 1};
    for (uint32_t d = 0; d < n_dims; d++) {
        fy_hash128 begin = place_hash(d, box->begin[d]);
        fy_hash128 end = place_hash(d, box->begin[d] + box->length[d]);
        product.low *= end.low - begin.low;
        product.high *= end.high - begin.high;
    }
    return product;
}

/* Boxes inside a tensor tile it if their measure is its own. */
static ferry_status check_tiling(const fy_tensor *tensor, const fy_feed *feeds, size_t n_feeds,
                                 const fy_json_place *place, ferry_error *error)
{
    uint32_t n_dims = tensor->n_dims;
    uint64_t volume = 0, wanted = fy_box_volume(tensor->shape, n_dims);
    fy_hash128 sum = {0};
    fy_box all = {{0}, {0}};
    for (size_t i = 0; i < n_feeds; i++) {
        fy_box box = fy_feed_filled(&feeds[i], n_dims);
        fy_hash128 its = measure(&box, n_dims);
        sum.low += its.low; /* each half by itself, without a carry */
        sum.high += its.high;
        if (!fy_add(volume, fy_box_volume(box.length, n_dims), &volume)) {
            volume = UINT64_MAX;
        }
    }
    if (volume != wanted) {
        return fy_json_fail(place, error,
                            "boxes of \"%s\" have %llu elements, but the tensor has %llu",
                            tensor->name, (unsigned long long)volume, (unsigned long long)wanted);
    }
    memcpy(all.length, tensor->shape, n_dims * sizeof *all.length);
    fy_hash128 whole = measure(&all, n_dims);
    if (sum.low != whole.low || sum.high != whole.high) {
        return fy_json_fail(place, error, "boxes of \"%s\" overlap", tensor->name);
    }
    return FERRY_OK;
}

static ferry_status parse_feeds(ferry_spec *spec, fy_tensor *tensor, const json_t *json,
                                const repeat *numbers, const fy_json_place *place,
                                ferry_error *error)
{
    bool is_name = json_is_string(json);
    size_t n = is_name ? 1 : json_array_size(json);
    if (!is_name && !json_is_array(json)) {
        return fy_json_fail(place, error, "must be the name of a tensor or an array of boxes");
    }
    if (n == 0 || n > FY_MAX_FEEDS) {
        return fy_json_fail(place, error, "of \"%s\" has %zu boxes; from 1 to %d are possible",
                            tensor->name, n, FY_MAX_FEEDS);
    }
    fy_feed *feeds = fy_arena_alloc(&spec->arena, n, sizeof *feeds);
    FY_TRY(fy_check_memory(feeds != NULL, "the sources of a tensor", error));
    memset(feeds, 0, n * sizeof *feeds);
    ferry_status status = FERRY_OK;
    if (is_name) {
        status = tie(spec, tensor, json_string_value(json), numbers, place, feeds, error);
    }
    for (size_t i = 0; !is_name && i < n && status == FERRY_OK; i++) {
        fy_json_place at = {.parent = place, .index = i};
        ferry_error inner;
        status = parse_feed(spec, tensor, json_array_get(json, i), numbers, &at, &feeds[i], &inner);
        if (status != FERRY_OK) {
            return fy_fail(error, status, "%s (tensor \"%s\")", inner.message, tensor->name);
        }
    }
    if (status == FERRY_OK && !is_name) {
        status = check_tiling(tensor, feeds, n, place, error);
    }
    tensor->feeds = feeds;
    tensor->n_feeds = (uint32_t)n;
    return status;
}

/* Goes over the expansion of an entry again, now that every name has its number. */
static ferry_status resolve_entry(ferry_spec *spec, const json_t *json, uint32_t first,
                                  const fy_json_place *place, uint32_t *next_out,
                                  ferry_error *error)
{
    const json_t *source = json_object_get(json, "source");
    const json_t *count = json_object_get(json, "count");
    fy_json_place source_at = {.parent = place, .key = "source"};
    repeat numbers = {0};
    for (size_t i = 0; i < json_array_size(count); i++) {
        numbers.counts[numbers.n_counts++] = (uint64_t)json_integer_value(json_array_get(count, i));
    }
    do {
        if (source != NULL) {
            FY_TRY(parse_feeds(spec, &spec->tensors[first], source, &numbers, &source_at, error));
        }
        first++;
    } while (next_numbers(&numbers));
    *next_out = first;
    return FERRY_OK;
}

ferry_status fy_spec_parse_tensors(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                   ferry_error *error)
{
    uint32_t next = spec->n_tensors;
    ferry_status status = fy_json_expect_array(json, place, error);
    for (size_t i = 0; i < json_array_size(json) && status == FERRY_OK; i++) {
        entry e;
        fy_json_place at = {.parent = place, .index = i};
        status = parse_named_entry(spec, json_array_get(json, i), &at, &e, error);
        FY_THEN(status, add_entry(spec, &e, &at, error));
    }
    for (size_t i = 0; i < json_array_size(json) && status == FERRY_OK; i++) {
        fy_json_place at = {.parent = place, .index = i};
        status = resolve_entry(spec, json_array_get(json, i), next, &at, &next, error);
    }
    return status == FERRY_OK ? fy_spec_compose(spec, place, error) : status;
}
