/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/hash.h"
#include "prove/spec_read.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 1 << 26, MOST_OPAQUE_BYTES = 1 << 28 };

/* "bytes:N", N without a sign or leading zeros. */
static bool parse_opaque(const char *text, ferry_dtype *dtype_out)
{
    uint64_t n_bytes = 0;
    if (strncmp(text, "bytes:", 6) != 0 || text[6] == '\0' || text[6] == '0') {
        return false;
    }
    for (const char *digit = text + 6; *digit != '\0'; digit++) {
        if (*digit < '0' || *digit > '9') {
            return false;
        }
        n_bytes = n_bytes * 10 + (uint64_t)(*digit - '0');
        if (n_bytes > MOST_OPAQUE_BYTES) {
            return false;
        }
    }
    *dtype_out = (ferry_dtype){.kind = FERRY_BYTES, .element_bits = (uint32_t)n_bytes * 8};
    return true;
}

ferry_status fy_proof_read_dtype(const char *text, const fy_json_place *place, ferry_dtype *dtype,
                                 ferry_error *error)
{
    static const struct {
        const char *text;
        ferry_dtype dtype;
    } known[] = {
#define FY_ROW(name, number, text, safetensors, bits) {text, {number, bits}},
        FERRY_DTYPE_MAP(FY_ROW)
#undef FY_ROW
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].text, text) == 0) {
            *dtype = known[i].dtype;
            return FERRY_OK;
        }
    }
    if (!parse_opaque(text, dtype)) {
        return fy_json_fail(place, error, "has the unknown dtype \"%s\"", text);
    }
    return FERRY_OK;
}

static ferry_status measure(fy_proof_entry *entry, const char *name, ferry_error *error)
{
    uint64_t bits;
    entry->volume = 1;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (entry->shape[d] == 0) {
            entry->volume = 0;
            return FERRY_OK;
        }
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (!fy_mul(entry->volume, entry->shape[d], &entry->volume)) {
            return fy_fail(error, FERRY_ERR_LIMIT, "%s: has more than 2^64 elements", name);
        }
    }
    if (!fy_mul(entry->volume, entry->dtype.element_bits, &bits) || bits > FY_PROOF_MOST) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%s: has %llu elements of %u bits, too many", name,
                       (unsigned long long)entry->volume, entry->dtype.element_bits);
    }
    return FERRY_OK;
}

ferry_status fy_proof_finish_entry(fy_proof_spec *spec, fy_proof_entry *entry, const char *name,
                                   ferry_error *error)
{
    ferry_status status = measure(entry, name, error);
    if (status != FERRY_OK || entry->has_source) {
        return status;
    }
    fy_proof_box *box = fy_arena_alloc(&spec->arena, 1, sizeof *box);
    FY_TRY(fy_check_memory(box != NULL, "a tensor", error));
    *box = (fy_proof_box){.n_dims = entry->n_dims};
    memcpy(box->shape, entry->shape, sizeof box->shape);
    entry->boxes = box;
    entry->n_boxes = 1;
    return FERRY_OK;
}

const fy_proof_entry *fy_proof_keep_entry(fy_proof_spec *spec, const fy_proof_entry *entry)
{
    fy_proof_entry *kept = fy_arena_alloc(&spec->arena, 1, sizeof *kept);
    if (kept != NULL) {
        *kept = *entry;
    }
    return kept;
}

ferry_status fy_proof_add_tensor(fy_proof_spec *spec, const char *name, const fy_proof_entry *entry,
                                 uint64_t number, ferry_error *error)
{
    uint32_t same;
    if (fy_proof_spec_find(spec, name, &same)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: stands twice among the tensors", name);
    }
    if (spec->n_tensors == MOST_TENSORS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "there are more than %d tensors", MOST_TENSORS);
    }
    if (!FY_RESERVE(spec->tensors, spec->tensors_capacity, spec->n_tensors + 1) ||
        !fy_index_insert(&spec->by_name, fy_hash64(name, strlen(name)),
                         (uint32_t)spec->n_tensors)) {
        return fy_fail_no_memory(error, "the tensors");
    }
    spec->tensors[spec->n_tensors++] =
        (fy_proof_tensor){.name = name, .entry = entry, .number = number};
    return FERRY_OK;
}

/* The value of dimension i of the counts for tensor number `number`, row-major. */
static uint64_t count_index(const fy_proof_entry *entry, uint64_t number, size_t i)
{
    for (size_t j = entry->n_counts; j-- > i + 1;) {
        number /= entry->counts[j];
    }
    return number % entry->counts[i];
}

/* Whether text begins with {i}, i below the number of counts; then its length and i. */
static size_t parse_hole(const fy_proof_entry *entry, const char *text, size_t *i_out)
{
    char *end;
    if (text[0] != '{' || text[1] < '0' || text[1] > '9') {
        return 0;
    }
    unsigned long long i = strtoull(text + 1, &end, 10);
    if (*end != '}' || i >= entry->n_counts) {
        return 0;
    }
    *i_out = (size_t)i;
    return (size_t)(end - text) + 1;
}

const char *fy_proof_fill_name(fy_proof_spec *spec, const char *name, const fy_proof_entry *entry,
                               uint64_t number)
{
    if (entry->n_counts == 0) {
        return name;
    }
    /* A hole takes at least three bytes and a number below 2^26 at most eight. */
    char *filled = fy_arena_alloc(&spec->arena, strlen(name) * 3 + 1, 1);
    if (filled == NULL) {
        return NULL;
    }
    size_t used = 0;
    while (*name != '\0') {
        size_t i;
        size_t hole = parse_hole(entry, name, &i);
        if (hole == 0) {
            filled[used++] = *name++;
            continue;
        }
        char digits[24];
        size_t n = 0;
        uint64_t value = count_index(entry, number, i);
        do {
            digits[n++] = (char)('0' + value % 10);
            value /= 10;
        } while (value != 0);
        while (n > 0) {
            filled[used++] = digits[--n];
        }
        name += hole;
    }
    filled[used] = '\0';
    return filled;
}

static ferry_status read_counts(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_proof_entry *entry, uint64_t *n_out, ferry_error *error)
{
    FY_TRY(fy_proof_read_sizes(spec, json, place, 1, MOST_TENSORS, &entry->counts, &entry->n_counts,
                               error));
    for (size_t i = 0; i < entry->n_counts; i++) {
        *n_out *= entry->counts[i]; /* both at most 2^26 */
        if (*n_out > MOST_TENSORS) {
            return fy_fail(error, FERRY_ERR_LIMIT, "there are more than %d tensors", MOST_TENSORS);
        }
    }
    return FERRY_OK;
}

typedef struct entry_json {
    const char *name, *dtype, *only;
    const json_t *shape, *count, *source;
} entry_json;

static ferry_status read_entry(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                               fy_proof_entry *entry, const char **name_out, uint64_t *n_out,
                               ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"name", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(entry_json, name)},
        {"shape", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(entry_json, shape)},
        {"dtype", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(entry_json, dtype)},
        {"count", FY_JSON_VALUE, .offset = offsetof(entry_json, count)},
        {"source", FY_JSON_VALUE, .offset = offsetof(entry_json, source)},
        {"only", FY_JSON_STRING, .offset = offsetof(entry_json, only)},
        {.key = NULL}};
    fy_json_place shape_place = {.parent = place, .key = "shape"};
    fy_json_place count_place = {.parent = place, .key = "count"};
    fy_json_place source_place = {.parent = place, .key = "source"};
    entry_json e = {.count = NULL};
    FY_TRY(fy_json_read(json, place, fields, &e, NULL, error));
    *name_out = e.name;
    FY_TRY(fy_proof_read_dims(e.shape, &shape_place, 1, entry->shape, &entry->n_dims, error));
    FY_TRY(fy_proof_read_dtype(e.dtype, place, &entry->dtype, error));
    if (e.count != NULL) {
        FY_TRY(read_counts(spec, e.count, &count_place, entry, n_out, error));
    }
    entry->is_source_only = e.only != NULL;
    if (e.only != NULL && (strcmp(e.only, "source") != 0 || e.source != NULL)) {
        return fy_json_fail(place, error,
                            "may be only at the source, and then without a source of its own");
    }
    if (e.source != NULL) {
        FY_TRY(fy_proof_read_source(spec, e.source, &source_place, entry, error));
    }
    return fy_proof_finish_entry(spec, entry, e.name, error);
}

static ferry_status expand(fy_proof_spec *spec, const fy_proof_entry *entry, const char *name,
                           uint64_t n, ferry_error *error)
{
    const fy_proof_entry *kept = fy_proof_keep_entry(spec, entry);
    FY_TRY(fy_check_memory(kept != NULL, "a tensor", error));
    for (uint64_t number = 0; number < n; number++) {
        const char *filled = fy_proof_fill_name(spec, name, kept, number);
        FY_TRY(fy_check_memory(filled != NULL, "the name of a tensor", error));
        FY_TRY(fy_proof_add_tensor(spec, filled, kept, number, error));
    }
    return FERRY_OK;
}

ferry_status fy_proof_read_tensors(fy_proof_spec *spec, const json_t *json,
                                   const fy_json_place *place, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    size_t n = json_array_size(json);
    for (size_t i = 0; status == FERRY_OK && i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        fy_proof_entry entry = {0};
        const char *name;
        uint64_t n_copies = 1;
        status = read_entry(spec, json_array_get(json, i), &inner, &entry, &name, &n_copies, error);
        FY_THEN(status, expand(spec, &entry, name, n_copies, error));
    }
    return status;
}
