/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Specs and saved plans as files. */
#include "base/alloc.h"
#include "base/json.h"
#include "checkpoint/model_headers.h"
#include "host/file.h"
#include "model/spec.h"

#include <stdio.h>
#include <string.h>

static const uint64_t MOST_SPEC_BYTES = 1u << 30;

/* A relative model path counts from the folder of the spec. */
static char *beside(const char *spec_path, const char *model)
{
    const char *slash = strrchr(spec_path, '/');
    if (model[0] == '/' || slash == NULL) {
        return fy_strdup(model);
    }
    size_t folder = (size_t)(slash - spec_path) + 1;
    char *path = fy_alloc(folder + strlen(model) + 1, 1);
    if (path != NULL) {
        memcpy(path, spec_path, folder);
        strcpy(path + folder, model);
    }
    return path;
}

/* Puts the tensors of the model in the place of its path. */
static ferry_status expand_model(const char *spec_path, json_t *root, ferry_error *error)
{
    const char *model = NULL;
    json_t *tensors;
    fy_json_place place = {.key = spec_path};
    fy_json_place at = {.parent = &place, .key = "model"};
    FY_TRY(fy_json_get_string(json_object_get(root, "model"), &at, &model, error));
    if (json_object_get(root, "tensors") != NULL) {
        return fy_json_fail(&at, error, "and tensors exclude each other");
    }
    char *path = beside(spec_path, model);
    ferry_status status = path == NULL ? fy_fail_no_memory(error, "a file name")
                                       : fy_model_read_tensors(path, &tensors, error);
    fy_free(path);
    if (status == FERRY_OK && (json_object_set_new(root, "tensors", tensors) != 0 ||
                               json_object_del(root, "model") != 0)) {
        status = fy_fail_no_memory(error, "the tensors of a model");
    }
    return status;
}

/* What a saved plan keeps: the file's own text, or with a model, the text with its tensors. */
static ferry_status keep_text(ferry_spec *spec, char **text_inout, const json_t *root,
                              bool expanded, ferry_error *error)
{
    if (!expanded) {
        spec->text = *text_inout;
        *text_inout = NULL;
        return FERRY_OK;
    }
    return fy_json_dump(root, &spec->text, error);
}

ferry_status ferry_spec_load(const char *path, ferry_spec **spec_out, ferry_error *error)
{
    char *text = NULL;
    size_t length = 0;
    json_t *root = NULL;
    ferry_spec *spec = NULL;
    FY_TRY(fy_check_use(path != NULL && spec_out != NULL,
                        "ferry_spec_load needs a path and a place for the result", error));
    ferry_status status = fy_file_read(path, MOST_SPEC_BYTES, &text, &length, error);
    FY_THEN(status, fy_json_parse(text, length, path, &root, error));
    bool has_model = json_object_get(root, "model") != NULL;
    if (status == FERRY_OK && has_model) {
        status = expand_model(path, root, error);
    }
    FY_THEN(status, fy_spec_from_json(root, path, &spec, error));
    FY_THEN(status, keep_text(spec, &text, root, has_model, error));
    if (status == FERRY_OK) {
        *spec_out = spec;
        spec = NULL;
    }
    ferry_spec_destroy(spec);
    json_decref(root);
    fy_free(text);
    return status;
}
