/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/spec_read.h"

#include <stdio.h>
#include <string.h>

ferry_status fy_proof_read_sizes(fy_proof_spec *spec, const json_t *json,
                                 const fy_json_place *place, uint64_t least, uint64_t most,
                                 const uint64_t **sizes_out, size_t *n_out, ferry_error *error)
{
    uint64_t *sizes;
    FY_TRY(fy_json_read_sizes(json, place, least, most, &spec->arena, "a list of sizes", &sizes,
                              n_out, error));
    *sizes_out = sizes;
    return FERRY_OK;
}

ferry_status fy_proof_read_dims(const json_t *json, const fy_json_place *place, uint64_t fill,
                                uint64_t *dims_out, size_t *n_out, ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    if (n > FY_PROOF_DIMS) {
        return fy_json_fail(place, error, "has %zu dimensions, more than %d", n, FY_PROOF_DIMS);
    }
    size_t lead = FY_PROOF_DIMS - n;
    for (size_t d = 0; d < lead; d++) {
        dims_out[d] = fill;
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        FY_TRY(fy_json_get_size(json_array_get(json, i), &inner, 0, FY_PROOF_MOST,
                                &dims_out[lead + i], error));
    }
    *n_out = n;
    return FERRY_OK;
}

ferry_status fy_proof_read_text(const json_t *object, const fy_json_place *place, const char *key,
                                const char **text_out, ferry_error *error)
{
    const json_t *json;
    fy_json_place inner = {.parent = place, .key = key};
    FY_TRY(fy_json_member(object, place, key, &json, error));
    return fy_json_get_string(json, &inner, text_out, error);
}

/* Appends to a text of limited room; what does not fit is cut. */
static void append(char *text, size_t text_bytes, const char *separator, uint64_t number)
{
    size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, "%s%llu", separator, (unsigned long long)number);
}

static void close_bracket(char *text, size_t text_bytes)
{
    size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, "]");
}

void fy_proof_slice_format(char *text, size_t text_bytes, size_t n_dims, const uint64_t *begin,
                           const uint64_t *length)
{
    snprintf(text, text_bytes, "[");
    for (size_t d = FY_PROOF_DIMS - n_dims; d < FY_PROOF_DIMS; d++) {
        append(text, text_bytes, d == FY_PROOF_DIMS - n_dims ? "" : ", ", begin[d]);
        append(text, text_bytes, ":", begin[d] + length[d]);
    }
    close_bracket(text, text_bytes);
}

void fy_proof_element_format(char *text, size_t text_bytes, size_t n_dims, const uint64_t *element)
{
    snprintf(text, text_bytes, "[");
    for (size_t d = FY_PROOF_DIMS - n_dims; d < FY_PROOF_DIMS; d++) {
        append(text, text_bytes, d == FY_PROOF_DIMS - n_dims ? "" : ", ", element[d]);
    }
    close_bracket(text, text_bytes);
}
