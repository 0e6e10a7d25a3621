/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of a checkpoint are cast, quantized or dequantized. */
#include "checkpoint/changes.h"

#include "base/checked.h"
#include "base/glob.h"
#include "checkpoint/job.h"
#include "exec/cast.h"

#include <stdio.h>
#include <string.h>

/* ---- what was asked for ---- */

ferry_status fy_block_choice_parse(const char *text, bool may_be_auto, fy_block_choice *choice_out,
                                   ferry_error *error)
{
    *choice_out = (fy_block_choice){.is_made = text != NULL};
    if (text == NULL) {
        return FERRY_OK;
    }
    size_t length = strcspn(text, "=");
    if (text[length] == '=') {
        choice_out->patterns = text + length + 1;
        if (*choice_out->patterns == '\0') {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "\"%.100s\" has no pattern behind its =; without it the usual tensors "
                           "are meant",
                           text);
        }
    }
    if (may_be_auto && length == 4 && memcmp(text, "auto", 4) == 0) {
        choice_out->is_auto = true;
        return FERRY_OK;
    }
    return fy_format_parse(text, length, &choice_out->format, error);
}

/* Of sentences: what --cast or cast asks for. */
static const char *name_of(uint32_t kind, char text[FERRY_DTYPE_TEXT_BYTES])
{
    ferry_dtype dtype = {.kind = 0};
    if (ferry_dtype_of(kind, &dtype, NULL) != FERRY_OK) {
        return "what is no type";
    }
    ferry_dtype_format(dtype, text, FERRY_DTYPE_TEXT_BYTES);
    return text;
}

ferry_status fy_change_options_check(const fy_change_options *o, ferry_error *error)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    fy_block_choice choice;
    if (o->cast != 0 && !fy_cast_exists(FERRY_F32, o->cast)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "tensors can be cast to f32, f16, bf16, f8e4m3 and f8e5m2, not to %s",
                       name_of(o->cast, text));
    }
    if (o->quantize != NULL && o->dequantize != NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "tensors are either quantized or dequantized: to change the format, do one "
                       "after the other");
    }
    bool is_value = o->cast == FERRY_F32 || o->cast == FERRY_F16 || o->cast == FERRY_BF16;
    if (o->dequantize != NULL && o->cast != 0 && !is_value) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "tensors are dequantized to f32, f16 or bf16, not to %s",
                       name_of(o->cast, text));
    }
    FY_TRY(fy_block_choice_parse(o->quantize, false, &choice, error));
    return fy_block_choice_parse(o->dequantize, true, &choice, error);
}

const char *fy_scales_suffix(const fy_block_format *format)
{
    bool is_mx = format->rule == FY_SCALE_FLOOR || fy_format_has_tensor_scale(format);
    return is_mx ? "_scale" : "_scale_inv";
}

/* ---- the usual ones ---- */

static bool fits_any(const char *const *patterns, const char *name)
{
    for (; *patterns != NULL; patterns++) {
        if (fy_glob_match(*patterns, strlen(*patterns), name, strlen(name))) {
            return true;
        }
    }
    return false;
}

/* Whether a part of the name between dots is a number: that of a layer. */
static bool has_number(const char *name)
{
    for (const char *at = name; at != NULL; at = strchr(at, '.')) {
        at += at != name;
        size_t n = strspn(at, "0123456789");
        if (n > 0 && at[n] == '.') {
            return true;
        }
    }
    return false;
}

bool fy_quantizes_by_default(const char *name, uint32_t n_dims)
{
    static const char *const stacked[] = {"*experts.*", "*_moe.*put_linear.weight", NULL};
    static const char *const left[] = {"*norm*",
                                       "*embed*",
                                       "*lm_head*",
                                       "*shared_head*",
                                       "*eh_proj*",
                                       "*.gate.weight",
                                       "*router*",
                                       "*_gate.weight",
                                       "*conv1d*",
                                       "*.x_proj.*",
                                       "*.dt_proj.*",
                                       "*visual.*",
                                       "*vision_*",
                                       "*audio_*",
                                       "*multi_modal_projector*",
                                       NULL};
    size_t length = strlen(name);
    bool is_weight = length > 7 && strcmp(name + length - 7, ".weight") == 0;
    bool is_matrix = n_dims == 2 && is_weight;
    bool is_stack = n_dims == 3 && fits_any(stacked, name);
    return (is_matrix || is_stack) && has_number(name) && !fits_any(left, name);
}

/* ---- one job's changes ---- */

typedef struct making {
    const ferry_checkpoint *from;
    ferry_spec *spec;
    const fy_change_options *options;
    fy_block_choice quantize, dequantize;
    fy_subset quantize_set, dequantize_set, wanted;
    uint64_t config_block[2]; /* 0: config.json says nothing */
    uint32_t n_weights;       /* of the spec, before scales are added */
    fy_change *changes;
    size_t capacity;
} making;

static bool is_value_kind(uint32_t kind)
{
    return kind == FERRY_F32 || kind == FERRY_F16 || kind == FERRY_BF16;
}

static const char *word_of(ferry_dtype dtype, char text[FERRY_DTYPE_TEXT_BYTES])
{
    ferry_dtype_format(dtype, text, FERRY_DTYPE_TEXT_BYTES);
    return text;
}

/* The name of a weight and a suffix, in the spec's memory. */
static const char *join(const making *m, const char *name, const char *suffix)
{
    size_t n = strlen(name), more = strlen(suffix);
    char *joined = fy_arena_alloc(&m->spec->arena, n + more + 1, 1);
    if (joined != NULL) {
        memcpy(joined, name, n);
        memcpy(joined + n, suffix, more + 1);
    }
    return joined;
}

void fy_change_scales_shape(const fy_block_format *format, const uint64_t *shape, uint32_t n_dims,
                            uint64_t shape_out[FERRY_MAX_DIMS])
{
    for (uint32_t d = 0; d < n_dims; d++) {
        shape_out[d] = fy_ceil_div(shape[d], fy_block_extent(format, n_dims, d));
    }
}

void fy_change_scales_box(const fy_block_format *format, uint32_t n_dims, const fy_box *of,
                          fy_box *scales)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t block = fy_block_extent(format, n_dims, d), begin = of->begin[d] / block;
        scales->length[d] = fy_ceil_div(of->begin[d] + of->length[d], block) - begin;
        scales->begin[d] = begin;
    }
}

void fy_change_values_box(const fy_block_format *format, const uint64_t *shape, uint32_t n_dims,
                          const fy_box *scales, fy_box *values)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t block = fy_block_extent(format, n_dims, d);
        uint64_t end = fy_min((scales->begin[d] + scales->length[d]) * block, shape[d]);
        values->begin[d] = scales->begin[d] * block;
        values->length[d] = end - values->begin[d];
    }
}

/* ---- quantizing ---- */

ferry_status fy_change_check_rows(const fy_tensor *weight, uint32_t code_kind, ferry_error *error)
{
    uint64_t columns = weight->shape[weight->n_dims - 1];
    return code_kind != FERRY_F4 || columns % 2 == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "\"%s\" has rows of %llu elements, and rows of f4 must be whole bytes",
                         weight->name, (unsigned long long)columns);
}

static ferry_status check_values(const making *m, const fy_tensor *t, ferry_error *error)
{
    char text[FERRY_DTYPE_TEXT_BYTES], format[FY_FORMAT_TEXT_BYTES];
    fy_format_print(&m->quantize.format, format);
    if (fy_is_code_kind(t->dtype.kind)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" is %s already and cannot be quantized to %s; dequantize the "
                       "checkpoint first, or leave the tensor out by a pattern",
                       t->name, word_of(t->dtype, text), format);
    }
    return fy_change_check_rows(t, m->quantize.format.kind, error);
}

static ferry_status check_quantized(const making *m, const fy_tensor *t, ferry_error *error)
{
    ferry_error cause;
    ferry_status status = check_values(m, t, &cause);
    bool is_said = m->options->boxes != NULL;
    return status == FERRY_OK ? FERRY_OK
                              : fy_fail(error, status, "%s%s%s", is_said ? m->options->boxes : "",
                                        is_said ? ": " : "", cause.message);
}

/* A tensor of scales that the result has and the source has not. */
static ferry_status add_scales(making *m, uint32_t weight, const char *suffix, uint32_t kind,
                               fy_change_kind change, uint32_t *number_out, ferry_error *error)
{
    const fy_tensor *w = &m->spec->tensors[weight];
    const char *name = join(m, w->name, suffix);
    uint32_t n_dims = change == FY_SCALES ? w->n_dims : w->n_dims - 2;
    uint64_t *shape = fy_arena_alloc(&m->spec->arena, FERRY_MAX_DIMS, sizeof *shape);
    ferry_dtype dtype;
    FY_TRY(fy_check_memory(name != NULL && shape != NULL, "the scales of a tensor", error));
    if (fy_spec_find_tensor(m->spec, name) != FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" cannot be quantized: \"%s\", which would hold its scales, is there "
                       "already",
                       w->name, name);
    }
    if (fy_subset_leaves_out(&m->wanted, name)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" cannot be quantized without \"%s\", which --exclude leaves out: its "
                       "codes need the scales; leave out both, or none",
                       w->name, name);
    }
    FY_TRY(ferry_dtype_of(kind, &dtype, error));
    fy_change_scales_shape(&m->quantize.format, w->shape, w->n_dims, shape);
    *number_out = m->spec->n_tensors;
    FY_TRY(fy_spec_add_tensor(m->spec, name, dtype, shape, n_dims, error));
    m->spec->tensors[*number_out].is_made = true;
    m->spec->tensors[*number_out].is_middle = m->spec->tensors[weight].is_middle;
    FY_TRY(FY_GROW(m->changes, m->capacity, m->spec->n_tensors, "the tensors of a result", error));
    m->changes[*number_out] = (fy_change){.kind = change,
                                          .dtype = dtype,
                                          .weight = weight,
                                          .scales = FY_NONE,
                                          .matrix_scales = FY_NONE};
    return FERRY_OK;
}

static ferry_status quantize(making *m, uint32_t t, ferry_error *error)
{
    const fy_block_format *format = &m->quantize.format;
    FY_TRY(check_quantized(m, &m->spec->tensors[t], error));
    fy_change change = {
        .kind = FY_QUANTIZED, .format = *format, .weight = t, .matrix_scales = FY_NONE};
    FY_TRY(ferry_dtype_of(format->kind, &change.dtype, error));
    FY_TRY(add_scales(m, t, fy_scales_suffix(format), format->scale_kind, FY_SCALES, &change.scales,
                      error));
    if (fy_format_has_tensor_scale(format)) {
        FY_TRY(add_scales(m, t, FY_MATRIX_SCALES_SUFFIX, FERRY_F32, FY_MATRIX_SCALES,
                          &change.matrix_scales, error));
    }
    m->changes[t] = change;
    return FERRY_OK;
}

/* ---- dequantizing ---- */

/* A tensor of the checkpoint beside a weight, or FY_NONE. */
static uint32_t find_beside(const making *m, const fy_tensor *w, const char *suffix,
                            const char **name_out)
{
    *name_out = join(m, w->name, suffix);
    uint32_t number = *name_out == NULL ? FY_INDEX_NONE : fy_ckpt_find(m->from, *name_out);
    return number == FY_INDEX_NONE ? FY_NONE : number;
}

/* The format, as far as types and config.json say it, of a weight with such scales. */
static fy_block_format guess_format(const making *m, const fy_tensor *w, const fy_tensor *scales,
                                    bool is_inverse)
{
    if (w->dtype.kind == FERRY_F4) {
        return fy_format_nvfp4();
    }
    bool is_mx = !is_inverse && scales->dtype.kind == FERRY_F8E8M0;
    fy_block_format format = is_mx ? fy_format_mxfp8() : fy_format_f8(128, 128);
    format.kind = w->dtype.kind;
    if (m->config_block[0] != 0) {
        format.block[0] = m->config_block[0];
        format.block[1] = m->config_block[1];
    }
    if (scales->dtype.kind == FERRY_F8E8M0) {
        format.scale_kind = FERRY_F8E8M0;
        format.rule = is_mx ? FY_SCALE_FLOOR : FY_SCALE_COVER;
    }
    return format;
}

static ferry_status check_scales(const fy_tensor *w, const fy_tensor *scales,
                                 const fy_block_format *f, ferry_error *error)
{
    uint64_t wanted[FERRY_MAX_DIMS];
    char has[256], wants[256], word[FERRY_DTYPE_TEXT_BYTES];
    fy_change_scales_shape(f, w->shape, w->n_dims, wanted);
    if (scales->dtype.kind != f->scale_kind) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" is %s, but scales of \"%s\" in this format are %s", scales->name,
                       word_of(scales->dtype, word), w->name,
                       f->scale_kind == FERRY_F32      ? "f32"
                       : f->scale_kind == FERRY_F8E8M0 ? "f8e8m0"
                                                       : "f8e4m3");
    }
    bool same = scales->n_dims == w->n_dims;
    for (uint32_t d = 0; same && d < w->n_dims; d++) {
        same = scales->shape[d] == wanted[d];
    }
    if (!same) {
        fy_format_shape(scales->shape, scales->n_dims, has, sizeof has);
        fy_format_shape(wanted, w->n_dims, wants, sizeof wants);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" has shape %s, but \"%s\" in blocks of %llux%llu needs scales of %s; "
                       "say the blocks in weight_block_size of config.json, or give the format",
                       scales->name, has, w->name, (unsigned long long)f->block[0],
                       (unsigned long long)f->block[1], wants);
    }
    return FERRY_OK;
}

ferry_status fy_change_check_matrix_scales(const ferry_spec *spec, const fy_tensor *weight,
                                           uint32_t scales, const char *name, ferry_error *error)
{
    bool same = scales != FY_NONE;
    if (same) {
        const fy_tensor *its = &spec->tensors[scales];
        same = its->dtype.kind == FERRY_F32 && its->n_dims == weight->n_dims - 2;
        for (uint32_t d = 0; same && d < its->n_dims; d++) {
            same = its->shape[d] == weight->shape[d];
        }
    }
    return same ? FERRY_OK
                : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                          "\"%s\" is f4, whose matrices have an f32 scale each, but \"%s\" is not "
                          "there, or not f32 and one for each matrix",
                          weight->name, name);
}

/* The weight's scales, by their names. */
static ferry_status find_scales(const making *m, uint32_t t, fy_change *change, ferry_error *error)
{
    const fy_tensor *w = &m->spec->tensors[t];
    const char *inverse, *plain, *second;
    uint32_t scales = find_beside(m, w, "_scale_inv", &inverse);
    uint32_t other = find_beside(m, w, "_scale", &plain);
    uint32_t matrix = find_beside(m, w, FY_MATRIX_SCALES_SUFFIX, &second);
    FY_TRY(fy_check_memory(inverse != NULL && plain != NULL && second != NULL,
                           "the scales of a tensor", error));
    bool is_inverse = scales != FY_NONE && w->dtype.kind != FERRY_F4;
    scales = is_inverse ? scales : other;
    if (scales == FY_NONE) {
        char word[FERRY_DTYPE_TEXT_BYTES];
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "\"%s\" is %s, but its scales are missing: neither \"%s\" nor \"%s\" is there", w->name,
            word_of(w->dtype, word), inverse, plain);
    }
    change->scales = scales;
    change->format = m->dequantize.is_auto
                         ? guess_format(m, w, &m->spec->tensors[scales], is_inverse)
                         : m->dequantize.format;
    FY_TRY(check_scales(w, &m->spec->tensors[scales], &change->format, error));
    if (fy_format_has_tensor_scale(&change->format)) {
        FY_TRY(fy_change_check_matrix_scales(m->spec, w, matrix, second, error));
        change->matrix_scales = matrix;
        m->spec->tensors[matrix].is_source_only = true;
    }
    m->spec->tensors[scales].is_source_only = true;
    return FERRY_OK;
}

static ferry_status dequantize(making *m, uint32_t t, ferry_error *error)
{
    const fy_tensor *w = &m->spec->tensors[t];
    uint32_t kind = m->options->cast == 0 ? FERRY_BF16 : m->options->cast;
    fy_change change = {.kind = FY_DEQUANTIZED, .weight = t, .matrix_scales = FY_NONE};
    if (w->n_feeds > 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "\"%s\" is composed of others, which cannot be dequantized on the way; "
                       "dequantize the checkpoint first",
                       w->name);
    }
    FY_TRY(ferry_dtype_of(kind, &change.dtype, error));
    FY_TRY(find_scales(m, t, &change, error));
    FY_TRY(fy_change_check_rows(w, w->dtype.kind, error));
    m->changes[t] = change;
    return FERRY_OK;
}

/* ---- all ---- */

static bool is_opaque(const making *m, uint32_t t)
{
    const fy_tensor *tensor = &m->spec->tensors[t];
    return m->from->tensors[tensor->n_feeds == 0 ? t : tensor->feeds[0].tensor].is_opaque;
}

/* Whether a tensor is of those meant by a choice: what is no matrix of such a type never is. */
static bool is_meant(const making *m, uint32_t t, const fy_block_choice *choice,
                     const fy_subset *set)
{
    const fy_tensor *tensor = &m->spec->tensors[t];
    uint32_t kind = tensor->dtype.kind;
    bool quantizes = choice == &m->quantize;
    bool fits = quantizes         ? is_value_kind(kind) || fy_is_code_kind(kind)
                : choice->is_auto ? fy_is_code_kind(kind)
                                  : kind == choice->format.kind;
    if (!choice->is_made || tensor->is_source_only || tensor->n_dims < 2 || !fits ||
        is_opaque(m, t) || !fy_subset_has(&m->wanted, tensor->name)) {
        return false;
    }
    return choice->patterns != NULL
               ? fy_subset_has(set, tensor->name)
               : !quantizes || fy_quantizes_by_default(tensor->name, tensor->n_dims);
}

/* number: of what is cast, or of a part of it */
static ferry_status check_cast_source(const ferry_spec *spec, uint32_t number,
                                      const fy_change *change, ferry_error *error)
{
    char from[FERRY_DTYPE_TEXT_BYTES], to[FERRY_DTYPE_TEXT_BYTES];
    const fy_tensor *source = &spec->tensors[number];
    bool is_code = fy_is_code_kind(source->dtype.kind) && !fy_is_scale_name(source->name);
    uint32_t scales = is_code ? fy_find_any_scales(spec, number) : FY_NONE;
    return scales == FY_NONE
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "\"%s\" is %s, codes whose scales are \"%s\", and a cast to %s would "
                         "make numbers of them without these; use --dequantize, or leave the "
                         "tensor out by --exclude",
                         source->name, word_of(source->dtype, from), spec->tensors[scales].name,
                         word_of(change->dtype, to));
}

ferry_status fy_change_check_cast(const ferry_spec *spec, const fy_change *changes, uint32_t tensor,
                                  ferry_error *error)
{
    const fy_tensor *t = &spec->tensors[tensor];
    if (changes[tensor].kind != FY_CAST) {
        return FERRY_OK;
    }
    for (uint32_t f = 0; f < t->n_feeds; f++) {
        FY_TRY(check_cast_source(spec, t->feeds[f].tensor, &changes[tensor], error));
    }
    return check_cast_source(spec, tensor, &changes[tensor], error);
}

/* Whether a tensor is scales, which a cast leaves as they are: whoever reads codes reads their
 * scales in the type in which they were made. But what is asked for by itself is cast. */
static bool is_kept_scales(const making *m, uint32_t t)
{
    uint32_t codes = fy_find_codes(m->spec, t);
    return codes != FY_NONE &&
           !fy_subset_asks_for(&m->wanted, m->spec->tensors[t].name, m->spec->tensors[codes].name);
}

/* A part of a tensor that is composed, which may be asked for itself: and not for its own codes,
 * or, where there are none that are called so, for those of the part. */
static bool is_kept_part(const making *m, uint32_t t, uint32_t part)
{
    const fy_tensor *tensors = m->spec->tensors;
    uint32_t codes = fy_find_codes(m->spec, part), own = fy_find_codes(m->spec, t);
    return is_kept_scales(m, part) &&
           !fy_subset_asks_for(&m->wanted, tensors[t].name,
                               tensors[own == FY_NONE ? codes : own].name);
}

/* Whether it is scales, or is composed of some. */
static bool has_kept_scales(const making *m, uint32_t t)
{
    const fy_tensor *tensor = &m->spec->tensors[t];
    bool has = is_kept_scales(m, t);
    for (uint32_t f = 0; f < tensor->n_feeds && !has; f++) {
        has = is_kept_part(m, t, tensor->feeds[f].tensor);
    }
    return has;
}

static void keep_or_cast(making *m, uint32_t t)
{
    const fy_tensor *tensor = &m->spec->tensors[t];
    uint32_t cast = m->options->cast;
    fy_change change = {
        .dtype = tensor->dtype, .weight = FY_NONE, .scales = FY_NONE, .matrix_scales = FY_NONE};
    if (cast != 0 && cast != tensor->dtype.kind && !is_opaque(m, t) &&
        fy_cast_element_bytes(tensor->dtype.kind) != 0 && !has_kept_scales(m, t)) {
        ferry_dtype_of(cast, &change.dtype, NULL);
        change.kind = FY_CAST;
    }
    m->changes[t] = change;
}

static ferry_status change_all(making *m, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t t = 0; t < m->n_weights; t++) {
        keep_or_cast(m, t);
    }
    for (uint32_t t = 0; t < m->n_weights && status == FERRY_OK; t++) {
        if (fy_is_scale_name(m->spec->tensors[t].name)) {
            continue;
        }
        if (is_meant(m, t, &m->quantize, &m->quantize_set)) {
            status = quantize(m, t, error);
        } else if (is_meant(m, t, &m->dequantize, &m->dequantize_set)) {
            status = dequantize(m, t, error);
        }
    }
    return status;
}

static const char *name_at(const void *context, size_t i)
{
    return ((const making *)context)->spec->tensors[i].name;
}

/* Codes of other tensors' names than those with scales beside them: of GPT-OSS, as MXFP4. */
static const char *find_other_codes(const making *m)
{
    for (uint32_t t = 0; t < m->n_weights; t++) {
        const char *name = m->spec->tensors[t].name;
        size_t length = strlen(name), n = strlen("_blocks");
        if (m->spec->tensors[t].dtype.kind == FERRY_U8 && length > n &&
            strcmp(name + length - n, "_blocks") == 0) {
            return name;
        }
    }
    return NULL;
}

static ferry_status fail_none(const making *m, const char *what, bool takes_codes,
                              ferry_error *error)
{
    const char *other = takes_codes ? find_other_codes(m) : NULL;
    return other == NULL
               ? fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: no tensor to be %s is there",
                         m->from->path, what)
               : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                         "%s: no tensor to be %s is there; \"%s\" is of codes in another form "
                         "(MXFP4, with scales for blocks of 32), which ferry makes no values of",
                         m->from->path, what, other);
}

/* A choice that means nothing is a mistake. */
static ferry_status check_meant(const making *m, const fy_block_choice *choice, fy_subset *set,
                                fy_change_kind kind, ferry_error *error)
{
    bool any = !choice->is_made;
    for (uint32_t t = 0; t < m->n_weights && !any; t++) {
        any = m->changes[t].kind == kind;
    }
    const char *what = kind == FY_QUANTIZED ? "quantized" : "dequantized";
    const fy_subset_pattern *unused =
        choice->patterns == NULL ? NULL : fy_subset_find_unused(set, m->n_weights, name_at, m);
    if (any && unused == NULL) {
        return FERRY_OK;
    }
    if (choice->patterns == NULL) {
        return fail_none(m, what, kind == FY_DEQUANTIZED, error);
    }
    int length = unused == NULL || unused->length > 200 ? 200 : (int)unused->length;
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: no tensor to be %s fits the pattern \"%.*s\"", m->from->path, what, length,
                   unused == NULL ? choice->patterns : unused->text);
}

static void read_blocks(making *m, const json_t *config)
{
    const json_t *about = json_object_get(config, "quantization_config");
    if (about == NULL) {
        about = json_object_get(json_object_get(config, "text_config"), "quantization_config");
    }
    const json_t *block = json_object_get(about, "weight_block_size");
    json_int_t rows = json_integer_value(json_array_get(block, 0));
    json_int_t columns = json_integer_value(json_array_get(block, 1));
    if (rows >= 1 && rows <= FY_MOST_BLOCK && columns >= 1 && columns <= FY_MOST_BLOCK) {
        m->config_block[0] = (uint64_t)rows;
        m->config_block[1] = (uint64_t)columns;
    }
}

static ferry_status read_choices(making *m, ferry_error *error)
{
    FY_TRY(fy_change_options_check(m->options, error));
    FY_TRY(fy_block_choice_parse(m->options->quantize, false, &m->quantize, error));
    FY_TRY(fy_block_choice_parse(m->options->dequantize, true, &m->dequantize, error));
    FY_TRY(fy_subset_create(m->quantize.patterns, &m->quantize_set, error));
    FY_TRY(fy_subset_create(m->dequantize.patterns, &m->dequantize_set, error));
    FY_TRY(fy_subset_create(m->options->subset, &m->wanted, error));
    return FY_GROW(m->changes, m->capacity, m->n_weights, "the tensors of a result", error);
}

ferry_status fy_changes_make(const ferry_checkpoint *from, ferry_spec *spec,
                             const fy_change_options *options, const json_t *config,
                             fy_change **changes_out, ferry_error *error)
{
    static const fy_change_options none = {0};
    making m = {.from = from,
                .spec = spec,
                .options = options == NULL ? &none : options,
                .n_weights = spec->n_tensors};
    read_blocks(&m, config);
    ferry_status status = read_choices(&m, error);
    FY_THEN(status, change_all(&m, error));
    if (m.options->boxes == NULL) {
        FY_THEN(status, check_meant(&m, &m.quantize, &m.quantize_set, FY_QUANTIZED, error));
    }
    FY_THEN(status, check_meant(&m, &m.dequantize, &m.dequantize_set, FY_DEQUANTIZED, error));
    fy_subset_cleanup(&m.quantize_set);
    fy_subset_cleanup(&m.dequantize_set);
    fy_subset_cleanup(&m.wanted);
    if (status != FERRY_OK) {
        fy_free(m.changes);
        m.changes = NULL;
    }
    *changes_out = m.changes;
    return status;
}
