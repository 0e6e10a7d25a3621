/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Specs of sides in boxes that were made by calls, and the text of a spec. */
#include "model/spec.h"

#include "base/checked.h"
#include "base/message.h"
#include "base/options.h"

#include <string.h>

/*
 * The same tensors under the same numbers; their shapes and feeds are the base's. Scales, which
 * come behind all others, are those of its destination.
 */
static ferry_status copy_tensors(ferry_spec *spec, const ferry_spec *base, bool with_scales,
                                 ferry_error *error)
{
    for (uint32_t t = 0; t < base->n_tensors; t++) {
        const fy_tensor *tensor = &base->tensors[t];
        if ((tensor->scales != NULL || tensor->staged != NULL) && !with_scales) {
            break;
        }
        FY_TRY(fy_spec_add_tensor(spec, tensor->name, tensor->dtype, tensor->shape, tensor->n_dims,
                                  error));
        const char *own = spec->tensors[t].name;
        spec->tensors[t] = *tensor;
        spec->tensors[t].name = own;
        spec->tensors[t].tensor_scale = with_scales ? tensor->tensor_scale : 0;
    }
    return FERRY_OK;
}

/* Tensors that a side has been told of; both may have been told of the same. */
static ferry_status add_tensors(ferry_spec *spec, const ferry_side *side, ferry_error *error)
{
    for (size_t t = 0; side != NULL && t < side->n_tensors; t++) {
        const fy_side_tensor *tensor = &side->tensors[t];
        if (tensor->shape == NULL || fy_spec_find_tensor(spec, tensor->name) != FY_NONE) {
            continue;
        }
        uint64_t *shape = fy_arena_alloc(&spec->arena, tensor->n_dims + 1u, sizeof *shape);
        FY_TRY(fy_check_memory(shape != NULL, "the tensors of a spec", error));
        memcpy(shape, tensor->shape, tensor->n_dims * sizeof *shape);
        FY_TRY(fy_spec_add_tensor(spec, tensor->name, tensor->dtype, shape, tensor->n_dims, error));
    }
    return FERRY_OK;
}

/* Boxes that were said, or those of the base, as a side of the spec. */
static ferry_status set_side(ferry_spec *spec, fy_side *side, const fy_side *base,
                             const ferry_side *boxes, ferry_error *error)
{
    const ferry_side *from = boxes != NULL ? boxes : base->boxes;
    ferry_side *copy = NULL;
    if (from == NULL) {
        *side = *base;
        return FERRY_OK;
    }
    FY_TRY(ferry_side_create(&copy, error));
    ferry_status status = fy_side_append(copy, from, NULL, 0, error);
    if (status != FERRY_OK) {
        ferry_side_destroy(copy);
        return status;
    }
    return fy_spec_set_boxes(spec, side, copy, error);
}

static ferry_status fill_spec(ferry_spec *spec, const ferry_spec *base, const ferry_side *source,
                              const ferry_side *destination, ferry_error *error)
{
    if (base != NULL) {
        spec->base = fy_spec_retain(base);
        spec->cluster = base->cluster;
        FY_TRY(copy_tensors(spec, base, destination == NULL, error));
    } else {
        FY_TRY(add_tensors(spec, source, error));
        FY_TRY(add_tensors(spec, destination, error));
    }
    FY_TRY(set_side(spec, &spec->source, base == NULL ? NULL : &base->source, source, error));
    return set_side(spec, &spec->destination, base == NULL ? NULL : &base->destination, destination,
                    error);
}

ferry_status ferry_spec_create(const ferry_spec *base, const ferry_side *source,
                               const ferry_side *destination, ferry_spec **spec_out,
                               ferry_error *error)
{
    FY_TRY(fy_check_use(
        spec_out != NULL && (base != NULL || (source != NULL && destination != NULL)),
        "ferry_spec_create needs a base or both sides, and a place for the result", error));
    ferry_spec *spec = fy_spec_new();
    FY_TRY(fy_check_memory(spec != NULL, "a spec", error));
    ferry_status status = fill_spec(spec, base, source, destination, error);
    if (status == FERRY_OK) {
        *spec_out = spec;
        spec = NULL;
    }
    ferry_spec_destroy(spec);
    return status;
}

static void write_tensors(fy_writer *w, const ferry_spec *spec)
{
    for (uint32_t t = 0;
         t < spec->n_tensors && spec->tensors[t].scales == NULL && spec->tensors[t].staged == NULL;
         t++) {
        const fy_tensor *tensor = &spec->tensors[t];
        char text[FERRY_DTYPE_TEXT_BYTES];
        ferry_dtype_format(tensor->dtype, text, sizeof text);
        fy_write_text(w, t == 0 ? "\n{\"name\":" : ",\n{\"name\":");
        fy_write_string(w, tensor->name);
        fy_write_text(w, ",\"dtype\":");
        fy_write_string(w, text);
        fy_write_text(w, ",\"shape\":[");
        for (uint32_t d = 0; d < tensor->n_dims; d++) {
            fy_write_text(w, d == 0 ? "" : ",");
            fy_write_u64(w, tensor->shape[d]);
        }
        fy_write_text(w, "]}");
    }
}

/* A member of the text of a base, as it stands there. */
static ferry_status write_member(fy_writer *w, const json_t *root, const char *key,
                                 ferry_error *error)
{
    const json_t *json = json_object_get(root, key);
    char *text = NULL;
    if (json == NULL) {
        return FERRY_OK;
    }
    FY_TRY(fy_json_dump(json, &text, error));
    fy_write_text(w, ",\"");
    fy_write_text(w, key);
    fy_write_text(w, "\":");
    fy_write_text(w, text);
    fy_free(text);
    return FERRY_OK;
}

static ferry_status write_side(fy_writer *w, const fy_side *side, const json_t *root,
                               ferry_error *error)
{
    if (side->boxes == NULL) {
        return write_member(w, root, side->name, error);
    }
    fy_write_text(w, ",\n\"");
    fy_write_text(w, side->name);
    fy_write_text(w, "\":");
    fy_side_write(w, side->boxes);
    return FERRY_OK;
}

/* The text that an oldest base was read from has what calls cannot make: sources and meshes. */
static const char *oldest_text(const ferry_spec *spec)
{
    while (spec->text == NULL && spec->base != NULL) {
        spec = spec->base;
    }
    return spec->text;
}

ferry_status fy_spec_write(const ferry_spec *spec, fy_writer *w, ferry_error *error)
{
    const char *text = oldest_text(spec);
    json_t *root = NULL;
    if (spec->text != NULL) {
        fy_write_text(w, spec->text);
        return FERRY_OK;
    }
    FY_TRY(text == NULL ? FERRY_OK : fy_json_parse(text, strlen(text), "base", &root, error));
    ferry_status status = FERRY_OK;
    fy_write_text(w, "{\"format\":\"ferry.spec/1\"");
    if (root == NULL) {
        fy_write_text(w, ",\"tensors\":[");
        write_tensors(w, spec);
        fy_write_text(w, "]");
    } else {
        status = write_member(w, root, "tensors", error);
    }
    FY_THEN(status, write_side(w, &spec->source, root, error));
    FY_THEN(status, write_side(w, &spec->destination, root, error));
    FY_THEN(status, write_member(w, root, "cluster", error));
    fy_write_text(w, "}");
    json_decref(root);
    return status;
}

ferry_status ferry_spec_write_json(const ferry_spec *spec, ferry_write_fn write, void *context,
                                   ferry_error *error)
{
    FY_TRY(fy_check_use(spec != NULL && write != NULL,
                        "ferry_spec_write_json needs a spec and a writer", error));
    fy_writer *w = fy_alloc(1, sizeof *w);
    FY_TRY(fy_check_memory(w != NULL, "an output buffer", error));
    fy_writer_init(w, write, context);
    ferry_status status = fy_spec_write(spec, w, error);
    FY_THEN(status, fy_writer_finish(w, error));
    fy_free(w);
    return status;
}
