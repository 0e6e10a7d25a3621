/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a side in boxes quantizes. A result has one quantization_config, and a tensor one type: so
 * all that parameters say is one choice, as --quantize takes it, of the tensors of their boxes.
 */
#include "checkpoint/changes.h"

#include "base/checked.h"

#include <string.h>

typedef struct choosing {
    const ferry_side *boxes;
    const char *name;          /* of the side, for sentences */
    const fy_parameter *first; /* that says "quantize" */
    fy_block_format format;    /* which is this one */
} choosing;

bool fy_side_quantizes(const ferry_side *boxes)
{
    size_t p = 0;
    while (p < boxes->n_parameters && boxes->parameters[p].blocks == NULL) {
        p++;
    }
    return p < boxes->n_parameters;
}

static fy_block_format format_of(const fy_said_blocks *said)
{
    return (fy_block_format){.kind = said->codes.kind,
                             .scale_kind = said->scales.kind,
                             .rule = (fy_scale_rule)said->rule,
                             .block = {said->block[0], said->block[1]}};
}

static bool are_same(const fy_block_format *a, const fy_block_format *b)
{
    return a->kind == b->kind && a->scale_kind == b->scale_kind && a->rule == b->rule &&
           memcmp(a->block, b->block, sizeof a->block) == 0;
}

/* A format that the option has a word for, with scales that are called as it calls them. */
static ferry_status check_said(const choosing *c, const fy_parameter *p, ferry_error *error)
{
    const char *suffix = fy_scales_suffix(&c->format);
    char word[FY_FORMAT_TEXT_BYTES];
    fy_block_format again, its = format_of(p->blocks);
    if (!are_same(&its, &c->format)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: parameter \"%.200s\" quantizes by another format, block or kind of "
                       "scales than \"%.200s\"; a result has one quantization_config, so say the "
                       "same of both, or make two folders",
                       c->name, p->name, c->first->name);
    }
    fy_format_print(&its, word);
    if (fy_format_parse(word, strlen(word), &again, NULL) != FERRY_OK || !are_same(&its, &again)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: parameter \"%.200s\" quantizes by a \"scale_kind\" or a \"block\" that "
                       "files are not made of: \"floor\" is that of mxfp8, and blocks have at most "
                       "%d rows and columns",
                       c->name, p->name, FY_MOST_BLOCK);
    }
    if (p->blocks->tensor_scale != NULL &&
        strcmp(p->blocks->tensor_scale, "*" FY_MATRIX_SCALES_SUFFIX) != 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: parameter \"%.200s\" has the \"tensor_scale\" \"%.200s\"; files call "
                       "it \"*" FY_MATRIX_SCALES_SUFFIX "\", and it is made with the codes",
                       c->name, p->name, p->blocks->tensor_scale);
    }
    return p->blocks->scale[0] == '*' && strcmp(p->blocks->scale + 1, suffix) == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                         "%s: parameter \"%.200s\" calls its scales \"%.200s\"; files call those "
                         "of this format \"*%s\"",
                         c->name, p->name, p->blocks->scale, suffix);
}

static ferry_status check_all(choosing *c, ferry_error *error)
{
    for (size_t i = 0; i < c->boxes->n_parameters; i++) {
        const fy_parameter *p = &c->boxes->parameters[i];
        if (p->blocks == NULL) {
            continue;
        }
        if (c->first == NULL) {
            c->first = p;
            c->format = format_of(p->blocks);
        }
        FY_TRY(check_said(c, p, error));
    }
    return FERRY_OK;
}

/* Marks the tensors whose boxes are quantized; all false before. *bytes_out: of their names. */
static ferry_status mark(const choosing *c, bool *marked, size_t *bytes_out, ferry_error *error)
{
    *bytes_out = 0;
    for (size_t i = 0; i < c->boxes->n_boxes; i++) {
        const fy_said_box *box = &c->boxes->boxes[i];
        const char *tensor = c->boxes->tensors[box->tensor].name;
        const fy_parameter *p = &c->boxes->parameters[box->parameter];
        if (p->blocks == NULL || marked[box->tensor]) {
            continue;
        }
        if (tensor[0] == '!' || tensor[strcspn(tensor, "*?,")] != '\0') {
            return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                           "%s: parameter \"%.200s\" quantizes \"%.200s\", a name with signs of "
                           "patterns; leave \"quantize\" out, and say --quantize with a pattern "
                           "that fits it",
                           c->name, p->name, tensor);
        }
        marked[box->tensor] = true;
        *bytes_out += strlen(tensor) + 1;
    }
    return FERRY_OK;
}

/* "FORMAT=NAME,NAME" */
static ferry_status write_choice(const choosing *c, const bool *marked, size_t n_bytes,
                                 char **choice_out, ferry_error *error)
{
    char *choice = fy_alloc(FY_FORMAT_TEXT_BYTES + n_bytes + 1, 1);
    FY_TRY(fy_check_memory(choice != NULL, "what a layout quantizes", error));
    fy_format_print(&c->format, choice);
    char *at = choice + strlen(choice), separator = '=';
    for (size_t t = 0; t < c->boxes->n_tensors; t++) {
        if (marked[t]) {
            size_t n = strlen(c->boxes->tensors[t].name);
            *at++ = separator;
            memcpy(at, c->boxes->tensors[t].name, n);
            at += n;
            separator = ',';
        }
    }
    *at = '\0';
    *choice_out = choice;
    return FERRY_OK;
}

ferry_status fy_side_quantize_choice(const ferry_side *boxes, const char *name, char **choice_out,
                                     ferry_error *error)
{
    choosing c = {.boxes = boxes, .name = name};
    size_t n_bytes = 0;
    FY_TRY(check_all(&c, error));
    bool *marked = fy_alloc_zeroed(boxes->n_tensors + 1, sizeof *marked);
    FY_TRY(fy_check_memory(marked != NULL, "what a layout quantizes", error));
    ferry_status status = mark(&c, marked, &n_bytes, error);
    if (status == FERRY_OK && n_bytes == 0) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: parameter \"%.200s\" quantizes, and has no box of a tensor; leave "
                         "\"quantize\" out of it",
                         name, c.first->name);
    }
    FY_THEN(status, write_choice(&c, marked, n_bytes, choice_out, error));
    fy_free(marked);
    return status;
}

/* ---- what came of it ---- */

/* A box of a tensor that the checkpoint has. */
static ferry_status check_box(const ferry_spec *spec, const fy_change *change, const char *name,
                              const fy_parameter *p, uint32_t tensor, ferry_error *error)
{
    const fy_tensor *t = &spec->tensors[tensor];
    char word[FERRY_DTYPE_TEXT_BYTES];
    bool is_quantized = change->kind == FY_QUANTIZED, says = p->blocks != NULL;
    if (is_quantized && !says) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: parameter \"%.200s\" holds the values \"%.200s\" that another one "
                       "quantizes; in a checkpoint a tensor has one type, so say \"quantize\" of "
                       "both, or make two folders",
                       name, p->name, t->name);
    }
    ferry_dtype_format(t->dtype, word, sizeof word);
    return is_quantized || !says
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: parameter \"%.200s\" quantizes \"%.200s\", which is %s with %u "
                         "dimensions; what becomes codes is f32, f16 or bf16, with rows and "
                         "columns",
                         name, p->name, t->name, word, t->n_dims);
}

ferry_status fy_changes_end_quantize(const ferry_spec *spec, const fy_change *changes,
                                     ferry_side *boxes, const char *name, ferry_error *error)
{
    for (size_t i = 0; i < boxes->n_boxes; i++) {
        const fy_said_box *box = &boxes->boxes[i];
        uint32_t t = fy_spec_find_tensor(spec, boxes->tensors[box->tensor].name);
        FY_TRY(t == FY_NONE ? FERRY_OK
                            : check_box(spec, &changes[t], name, &boxes->parameters[box->parameter],
                                        t, error));
    }
    for (size_t p = 0; p < boxes->n_parameters; p++) {
        boxes->parameters[p].blocks = NULL;
    }
    return FERRY_OK;
}
