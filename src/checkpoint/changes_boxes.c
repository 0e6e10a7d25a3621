/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a side in boxes dequantizes. In a checkpoint a tensor has one type, wherever it is: so what
 * a parameter says becomes the change of its tensors, and the side is then as any other.
 */
#include "checkpoint/changes.h"

#include "base/checked.h"
#include "checkpoint/job.h"

#include <stdio.h>
#include <string.h>

enum { TITLE_BYTES = 320, SHAPE_BYTES = 256 };

typedef struct taking {
    const ferry_checkpoint *from;
    const ferry_spec *spec;
    ferry_side *boxes;
    const char *name;    /* of the side, for sentences */
    fy_change *changes;  /* [spec->n_tensors] */
    uint32_t *said_with; /* [spec->n_tensors] 1 + the box that said what it becomes; 0: none */
} taking;

/* `parameter "w" of rank 3, box 2 ("layers.0.q")`. */
static const char *title_of(const taking *t, uint32_t number, char text[TITLE_BYTES])
{
    const fy_said_box *box = &t->boxes->boxes[number];
    const fy_parameter *p = &t->boxes->parameters[box->parameter];
    snprintf(text, TITLE_BYTES, "parameter \"%.100s\" of rank %u, box %u (\"%.100s\")", p->name,
             t->boxes->lists[p->ranks].ranks[0], number - p->first_box,
             t->boxes->tensors[box->tensor].name);
    return text;
}

static ferry_status fail(const taking *t, uint32_t box, ferry_status status, const char *sentence,
                         ferry_error *error)
{
    char title[TITLE_BYTES];
    return fy_fail(error, status, "%s: %s: %s", t->name, title_of(t, box, title), sentence);
}

static ferry_status check_codes(const taking *t, uint32_t box, const fy_tensor *codes,
                                ferry_error *error)
{
    char word[FERRY_DTYPE_TEXT_BYTES], sentence[TITLE_BYTES];
    if (codes->n_feeds > 0) {
        return fail(t, box, FERRY_ERR_UNSUPPORTED,
                    "the tensor is composed of others, which cannot be dequantized on the way; "
                    "dequantize the checkpoint first, by --to hf --dequantize",
                    error);
    }
    if (!fy_is_code_kind(codes->dtype.kind) || codes->n_dims < 2) {
        ferry_dtype_format(codes->dtype, word, sizeof word);
        snprintf(sentence, sizeof sentence,
                 "the tensor is %s with %u dimensions; what boxes dequantize is f8e4m3, f8e5m2 or "
                 "f4, with rows and columns",
                 word, codes->n_dims);
        return fail(t, box, FERRY_ERR_INVALID_INPUT, sentence, error);
    }
    ferry_error cause;
    ferry_status status = fy_change_check_rows(codes, codes->dtype.kind, &cause);
    return status == FERRY_OK ? FERRY_OK : fail(t, box, status, cause.message, error);
}

static ferry_status check_scales(const taking *t, uint32_t box, const fy_tensor *codes,
                                 const fy_tensor *scales, const fy_block_format *format,
                                 ferry_error *error)
{
    uint64_t wanted[FERRY_MAX_DIMS];
    char has[SHAPE_BYTES], wants[SHAPE_BYTES], word[FERRY_DTYPE_TEXT_BYTES], title[TITLE_BYTES];
    fy_change_scales_shape(format, codes->shape, codes->n_dims, wanted);
    ferry_dtype_format(scales->dtype, word, sizeof word);
    bool is_half = format->kind == FERRY_F4;
    if (!fy_codes_have_scales(codes->dtype, scales->dtype)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: %s: its scales \"%s\" are %s; they must be %s", t->name,
                       title_of(t, box, title), scales->name, word,
                       is_half ? "f8e4m3, as those of f4 are" : "f32 or f8e8m0");
    }
    if (scales->n_dims == codes->n_dims &&
        memcmp(scales->shape, wanted, codes->n_dims * sizeof *wanted) == 0) {
        return FERRY_OK;
    }
    fy_format_shape(scales->shape, scales->n_dims, has, sizeof has);
    fy_format_shape(wanted, codes->n_dims, wants, sizeof wants);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: %s: its scales \"%s\" have shape %s, but blocks of %llux%llu need %s; say "
                   "the \"block\" that they are of",
                   t->name, title_of(t, box, title), scales->name, has,
                   (unsigned long long)format->block[0], (unsigned long long)format->block[1],
                   wants);
}

/* The tensor of scales, which the checkpoint must have. */
static ferry_status find_scales(const taking *t, uint32_t box, const fy_tensor *codes,
                                const fy_said_blocks *said, uint32_t *scales_out,
                                ferry_error *error)
{
    char name[FERRY_NAME_BYTES], title[TITLE_BYTES];
    bool fits = fy_blocks_name(said, codes->name, name, sizeof name);
    *scales_out = fits ? fy_ckpt_find(t->from, name) : FY_INDEX_NONE;
    return *scales_out != FY_INDEX_NONE
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: %s: is dequantized by the scales \"%s\", and %s has no tensor of "
                         "this name",
                         t->name, title_of(t, box, title), fits ? name : said->scale,
                         t->from->path);
}

/* That of the types, and the blocks that are said: those of f4 have one size. */
static ferry_status make_format(const taking *t, uint32_t box, const fy_tensor *codes,
                                const fy_tensor *scales, const fy_said_blocks *said,
                                fy_block_format *format_out, ferry_error *error)
{
    bool is_power = scales->dtype.kind == FERRY_F8E8M0;
    *format_out = codes->dtype.kind == FERRY_F4
                      ? fy_format_nvfp4()
                      : (fy_block_format){.kind = codes->dtype.kind,
                                          .scale_kind = scales->dtype.kind,
                                          .rule = is_power ? FY_SCALE_COVER : FY_SCALE_LARGEST,
                                          .block = {said->block[0], said->block[1]}};
    return memcmp(format_out->block, said->block, sizeof said->block) == 0
               ? FERRY_OK
               : fail(t, box, FERRY_ERR_INVALID_INPUT,
                      "the tensor is f4, whose blocks are of 1 x 16: \"block\" must be [1, 16]",
                      error);
}

/* Of f4 each matrix has a scale as well, in a tensor that is called like the scales and "_2". */
static ferry_status find_matrix_scales(const taking *t, uint32_t box, const fy_tensor *codes,
                                       fy_change *change, ferry_error *error)
{
    char name[FERRY_NAME_BYTES + 2];
    ferry_error cause;
    if (!fy_format_has_tensor_scale(&change->format)) {
        return FERRY_OK;
    }
    snprintf(name, sizeof name, "%s_2", t->spec->tensors[change->scales].name);
    uint32_t number = fy_ckpt_find(t->from, name);
    change->matrix_scales = number == FY_INDEX_NONE ? FY_NONE : number;
    ferry_status status =
        fy_change_check_matrix_scales(t->spec, codes, change->matrix_scales, name, &cause);
    return status == FERRY_OK ? FERRY_OK : fail(t, box, status, cause.message, error);
}

/* What the tensor of a box becomes. */
static ferry_status make_change(const taking *t, uint32_t box, uint32_t tensor,
                                fy_change *change_out, ferry_error *error)
{
    const fy_parameter *p = &t->boxes->parameters[t->boxes->boxes[box].parameter];
    const fy_tensor *codes = &t->spec->tensors[tensor];
    fy_change change = {
        .kind = FY_DEQUANTIZED, .dtype = p->dtype, .weight = tensor, .matrix_scales = FY_NONE};
    FY_TRY(check_codes(t, box, codes, error));
    FY_TRY(find_scales(t, box, codes, p->codes, &change.scales, error));
    const fy_tensor *scales = &t->spec->tensors[change.scales];
    FY_TRY(make_format(t, box, codes, scales, p->codes, &change.format, error));
    FY_TRY(check_scales(t, box, codes, scales, &change.format, error));
    FY_TRY(find_matrix_scales(t, box, codes, &change, error));
    *change_out = change;
    return FERRY_OK;
}

static ferry_status take_box(const taking *t, uint32_t box, uint32_t tensor, ferry_error *error)
{
    char titles[2][TITLE_BYTES];
    fy_change change;
    fy_change *before = &t->changes[tensor];
    FY_TRY(make_change(t, box, tensor, &change, error));
    if (t->said_with[tensor] == 0) {
        t->said_with[tensor] = 1 + box;
        *before = change;
        return FERRY_OK;
    }
    bool same = before->dtype.kind == change.dtype.kind && before->scales == change.scales &&
                memcmp(before->format.block, change.format.block, sizeof change.format.block) == 0;
    return same ? FERRY_OK
                : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%s: %s: is dequantized to another dtype, or by another scale or block, "
                          "than by %s; in a checkpoint a tensor has one type, so say the same of "
                          "both, or make two folders",
                          t->name, title_of(t, box, titles[0]),
                          title_of(t, t->said_with[tensor] - 1, titles[1]));
}

/* A box of what another one dequantizes. */
static ferry_status check_plain(const taking *t, uint32_t box, uint32_t tensor, ferry_error *error)
{
    char titles[2][TITLE_BYTES];
    return t->said_with[tensor] == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: %s: holds the codes that %s dequantizes; in a checkpoint a tensor "
                         "has one type, so say \"dequantize\" of both, or make two folders",
                         t->name, title_of(t, box, titles[0]),
                         title_of(t, t->said_with[tensor] - 1, titles[1]));
}

/* Of all boxes whose parameters dequantize, or do not; names that no tensor has are told later. */
static ferry_status visit(const taking *t, bool dequantizes, ferry_error *error)
{
    for (uint32_t i = 0; i < t->boxes->n_boxes; i++) {
        const fy_said_box *box = &t->boxes->boxes[i];
        uint32_t tensor = fy_spec_find_tensor(t->spec, t->boxes->tensors[box->tensor].name);
        bool its = t->boxes->parameters[box->parameter].codes != NULL;
        if (tensor != FY_NONE && its == dequantizes) {
            FY_TRY(its ? take_box(t, i, tensor, error) : check_plain(t, i, tensor, error));
        }
    }
    return FERRY_OK;
}

bool fy_side_dequantizes(const ferry_side *boxes)
{
    size_t p = 0;
    while (p < boxes->n_parameters && boxes->parameters[p].codes == NULL) {
        p++;
    }
    return p < boxes->n_parameters;
}

ferry_status fy_changes_take_boxes(const ferry_checkpoint *from, const ferry_spec *spec,
                                   ferry_side *boxes, const char *name, fy_change *changes,
                                   ferry_error *error)
{
    taking t = {.from = from, .spec = spec, .boxes = boxes, .name = name, .changes = changes};
    if (!fy_side_dequantizes(boxes)) {
        return FERRY_OK;
    }
    FY_TRY(boxes->is_sorted ? FERRY_OK : fy_side_sort(boxes, error));
    t.said_with = fy_alloc_zeroed(spec->n_tensors, sizeof *t.said_with);
    FY_TRY(fy_check_memory(t.said_with != NULL, "the tensors of a layout", error));
    ferry_status status = visit(&t, true, error);
    FY_THEN(status, visit(&t, false, error));
    for (size_t p = 0; p < boxes->n_parameters; p++) {
        boxes->parameters[p].codes = NULL;
    }
    fy_free(t.said_with);
    return status;
}
