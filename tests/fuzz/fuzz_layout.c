/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a ferry.layout/1 file; what it says of a side is written again and read to the same,
 * and goes to the reader of specs. Boxes are cut by windows, as a reshard cuts them.
 */
#include "fuzz.h"

#include "base/alloc.h"
#include "base/json.h"
#include "checkpoint/boxed.h"
#include "checkpoint/layout_file.h"

/* As the side of a spec with a tensor of its own, which says whether it is one. */
static void read_as_side(json_t *side)
{
    ferry_error error = {""};
    ferry_spec *spec = NULL;
    char *text = NULL;
    json_t *whole = json_pack("{s:s, s:[{s:s, s:[i,i], s:s}], s:O, s:O}", "format", "ferry.spec/1",
                              "tensors", "name", "w", "shape", 8, 12, "dtype", "bf16", "source",
                              side, "destination", side);
    promise(whole != NULL);
    promise(fy_json_dump(whole, &text, &error) == FERRY_OK);
    ferry_status status = ferry_spec_parse(text, strlen(text), "layout", &spec, &error);
    check_sentence(status, &error);
    ferry_spec_destroy(spec);
    fy_free(text);
    json_decref(whole);
}

/* How many places of windows parts of a nest have. */
static ferry_status count_part(void *context, fy_nest *part, ferry_error *error)
{
    (void)error;
    *(uint64_t *)context += fy_nest_volume(part);
    return FERRY_OK;
}

/* Whatever a side says, windows of its parameters have each place once. */
static void cut_parameters(const fy_boxed *boxed)
{
    enum { MOST_PLACES = 2000 };
    for (size_t i = 0; i < boxed->side->n_boxes; i++) {
        const fy_said_box *box = &boxed->side->boxes[i];
        uint32_t bits = boxed->side->parameters[box->parameter].dtype.element_bits;
        uint64_t n = 0;
        fy_nest nest;
        if (!fy_nest_of_box(box, bits, &nest) || fy_nest_volume(&nest) > MOST_PLACES) {
            continue;
        }
        uint64_t last = fy_nest_last(&nest), step = (last - nest.offset) / 7 + 1;
        for (uint64_t begin = nest.offset; begin <= last; begin += step) {
            promise(fy_nest_clip(&nest, begin, begin + step, count_part, &n, NULL) == FERRY_OK);
        }
        promise(n == fy_nest_volume(&nest));
    }
}

/* As that of a checkpoint whose files hold parameters. */
static void read_as_boxes(const json_t *json)
{
    static const uint64_t shape[] = {8, 12};
    const fy_boxed_tensor w = {.name = "w", .dtype = {FERRY_BF16, 16}, .shape = shape, .n_dims = 2};
    ferry_error error = {""};
    ferry_side *side = NULL;
    fy_boxed *boxed = NULL;
    ferry_status status = fy_boxed_parse(json, "layout", &side, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        status = fy_boxed_create(side, "layout", &w, 1, &boxed, &error);
        check_sentence(status, &error);
    }
    if (status == FERRY_OK) {
        fy_hash128 hash;
        promise(boxed->n_ranks > 0);
        promise(fy_boxed_digest(boxed, &hash, &error) == FERRY_OK);
        (void)fy_boxed_is_permuted(boxed);
        cut_parameters(boxed);
    }
    fy_boxed_destroy(boxed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    json_t *side = NULL, *tensors = NULL;
    ferry_status status =
        fy_layout_parse((const char *)data, size, "layout", &side, &tensors, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        promise(json_is_object(side) && json_object_get(side, "format") == NULL);
        promise(json_object_get(side, "tensors") == NULL);
        read_as_side(side);
        if (json_object_get(side, "boxes") != NULL) {
            read_as_boxes(side);
        }
        json_decref(side);
        json_decref(tensors);
    }
    return 0;
}
