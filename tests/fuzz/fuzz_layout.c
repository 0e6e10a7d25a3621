/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a ferry.layout/1 file; what it says of a side is written again and read to the same,
 * and goes to the reader of specs.
 */
#include "fuzz.h"

#include "base/alloc.h"
#include "base/json.h"
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
        json_decref(side);
        json_decref(tensors);
    }
    return 0;
}
