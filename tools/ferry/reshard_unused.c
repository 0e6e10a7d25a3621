/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules and stages of a layout file that no tensor of the source follows: a misspelt pattern leaves
 * its tensors to a last rule for any name, which gives them whole to every rank.
 */
#include "reshard.h"

#include "plan.h"
#include "steps.h"
#include "terminal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_LAYOUT_BYTES = 16 << 20 };

/* One that somebody wrote: those of checkpoints list their tensors, and their rules are ferry's. */
static json_t *load_layout(const char *path)
{
    struct stat about;
    bool is_file = stat(path, &about) == 0 && S_ISREG(about.st_mode);
    json_t *layout =
        is_file && about.st_size <= MOST_LAYOUT_BYTES ? json_load_file(path, 0, NULL) : NULL;
    if (json_object_get(layout, "rules") == NULL || json_object_get(layout, "tensors") != NULL) {
        json_decref(layout);
        return NULL;
    }
    json_object_del(layout, "format");
    return layout;
}

/* Their names are what patterns are of: shapes and types do not matter. */
static json_t *list_tensors(const ferry_checkpoint *source, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n && list != NULL; i++) {
        ferry_checkpoint_tensor tensor = FERRY_CHECKPOINT_TENSOR_INIT;
        bool done = ferry_checkpoint_tensor_at(source, i, &tensor, NULL) == FERRY_OK &&
                    json_array_append_new(list, json_pack("{s:s,s:[],s:s}", "name", tensor.name,
                                                          "shape", "dtype", "u8")) == 0;
        if (!done) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* What a name or a number makes impossible here, the reshard has said, or nobody needs. */
void reshard_note_unused(const reshard_report *report)
{
    const reshard_request *r = report->request;
    bool has_others = /* names that the source has not */
        r->options.names != NULL || r->options.quantize != NULL || r->options.dequantize != NULL;
    json_t *layout = has_others ? NULL : load_layout(r->to);
    json_t *tensors =
        layout == NULL ? NULL : list_tensors(report->checkpoint, report->source.n_tensors);
    if (tensors == NULL) {
        json_decref(layout);
        return;
    }
    json_t *root =
        json_pack("{s:s,s:o,s:{s:[],s:[{s:s}]},s:o}", "format", "ferry.spec/1", "tensors", tensors,
                  "source", "mesh", "rules", "match", "*", "destination", layout);
    char *text = json_dumps(root, JSON_COMPACT);
    ferry_spec *spec = NULL;
    if (text != NULL && ferry_spec_parse(text, strlen(text), r->to, &spec, NULL) == FERRY_OK) {
        (void)plan_note_unused("reshard", spec, NULL);
    }
    ferry_spec_destroy(spec);
    free(text);
    json_decref(root);
}
