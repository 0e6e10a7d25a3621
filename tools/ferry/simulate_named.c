/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Of a model by its config.json: the meshes that --from and --to ask for, as a spec has them, so
 * that --sweep and --fit change them there; and the spec of meshes that were changed, which is made
 * anew, because how tensors are cut depends on how often.
 */
#include "simulate.h"

#include "plan.h"
#include "steps.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FORM = 256 };

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "no memory for a spec");
    return FERRY_ERR_NO_MEMORY;
}

/* ---- short forms ---- */

/* "tp=4,pp=2" as axes of a mesh: whether it is a short form, the library has said. */
static json_t *mesh_of_form(const char *form)
{
    json_t *mesh = json_array();
    for (const char *at = form; at != NULL && *at != '\0';) {
        size_t name = strcspn(at, "="), length = strcspn(at, ",");
        json_t *axis = name < length ? json_pack("[s#, I]", at, (int)name,
                                                 (json_int_t)strtoull(at + name + 1, NULL, 10))
                                     : NULL;
        if (json_array_append_new(mesh, axis) != 0) {
            json_decref(mesh);
            return NULL;
        }
        at += length + (at[length] == ',');
    }
    return mesh;
}

static bool form_of_mesh(const json_t *mesh, char form[MOST_FORM])
{
    size_t used = 0;
    form[0] = '\0';
    for (size_t i = 0; i < json_array_size(mesh) && used < MOST_FORM; i++) {
        const json_t *axis = json_array_get(mesh, i);
        used += (size_t)snprintf(form + used, MOST_FORM - used, "%s%s=%lld", i == 0 ? "" : ",",
                                 json_string_value(json_array_get(axis, 0)),
                                 (long long)json_integer_value(json_array_get(axis, 1)));
    }
    return used < MOST_FORM;
}

ferry_status simulate_name_meshes(const simulate_request *r, json_t **root_out, ferry_error *error)
{
    json_t *sides[2] = {mesh_of_form(r->model.forms[0]), mesh_of_form(r->model.forms[1])};
    *root_out = json_pack("{s:{s:o?}, s:{s:o?}}", "source", "mesh", sides[0], "destination", "mesh",
                          sides[1]);
    return *root_out != NULL && sides[0] != NULL && sides[1] != NULL ? FERRY_OK
                                                                     : fail_memory(error);
}

/* ---- the spec ---- */

static json_t *mesh_of(const json_t *root, const char *side)
{
    return json_object_get(json_object_get(root, side), "mesh");
}

typedef struct spec_text {
    char *bytes;
    size_t n, capacity;
} spec_text;

static int append(void *context, const char *bytes, size_t n)
{
    spec_text *t = context;
    if (t->n + n > t->capacity) {
        size_t more = 2 * (t->n + n);
        char *grown = realloc(t->bytes, more);
        if (grown == NULL) {
            return -1;
        }
        t->bytes = grown;
        t->capacity = more;
    }
    memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
    return 0;
}

ferry_status simulate_json_of(const ferry_spec *spec, json_t **root_out, ferry_error *error)
{
    spec_text text = {.n = 0};
    ferry_status status = ferry_spec_write_json(spec, append, &text, error);
    if (status == FERRY_OK) {
        *root_out = json_loadb(text.bytes, text.n, 0, NULL);
        status = *root_out == NULL ? fail_memory(error) : FERRY_OK;
    }
    free(text.bytes);
    return status;
}

ferry_status simulate_name_spec(const simulate_request *r, const char *who, const json_t *meshes,
                                json_t **root_out, ferry_error *error)
{
    char forms[2][MOST_FORM];
    named_model model = r->model;
    ferry_spec *spec = NULL;
    static const char *const sides[2] = {"source", "destination"};
    for (int i = 0; i < 2; i++) {
        if (meshes != NULL && !form_of_mesh(mesh_of(meshes, sides[i]), forms[i])) {
            return fail_memory(error);
        }
        if (meshes != NULL) {
            model.forms[i] = forms[i][0] == '\0' ? NULL : forms[i];
        }
    }
    ferry_status status = plan_name_spec(who, &model, r->path, &spec, error);
    FY_THEN(status, simulate_json_of(spec, root_out, error));
    ferry_spec_destroy(spec);
    return status;
}
