/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Scales that come with codes. A destination that dequantizes wants values, of which its ranks get
 * codes; each also gets the scales of these, in memory that is not the caller's: a tensor of the
 * plan that is fed from the one that the source has. Of f4 it gets another one, with a scale of
 * each matrix.
 */
#include "model/spec.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "model/rule_index.h"

#include <stdio.h>
#include <string.h>

enum { TITLE_BYTES = 512, SHAPE_BYTES = 24 * FERRY_MAX_DIMS };

static void write_shape(const uint64_t *shape, uint32_t n_dims, char text[SHAPE_BYTES])
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t d = 0; d < n_dims; d++) {
        used += (size_t)snprintf(text + used, SHAPE_BYTES - used, d == 0 ? "%llu" : ", %llu",
                                 (unsigned long long)shape[d]);
    }
}

/* Codes of half a byte have blocks of one size, and rows of whole bytes. */
static ferry_status check_halves(const fy_tensor *codes, const fy_said_blocks *said,
                                 const char *title, ferry_error *error)
{
    uint64_t columns = codes->shape[codes->n_dims - 1];
    if (said->block[0] != 1 || said->block[1] != 16) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" is f4, whose blocks are of 1 x 16: \"block\" must be [1, 16]",
                       title, codes->name);
    }
    return columns % 2 == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: \"%s\" has rows of %llu elements, and rows of f4 must be whole bytes",
                         title, codes->name, (unsigned long long)columns);
}

static ferry_status check_codes(const fy_tensor *codes, const fy_said_blocks *said,
                                const char *title, ferry_error *error)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(codes->dtype, text, sizeof text);
    if (!fy_codes_are(codes->dtype)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" is %s; codes that are dequantized are f8e4m3, f8e5m2 or f4",
                       title, codes->name, text);
    }
    if (codes->n_dims < 2) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" has %u dimensions; blocks are of rows and columns", title,
                       codes->name, codes->n_dims);
    }
    return codes->dtype.kind == FERRY_F4 ? check_halves(codes, said, title, error) : FERRY_OK;
}

/* The shape that the scales of a tensor must have. */
static void divide_shape(const fy_tensor *codes, const uint64_t block[2],
                         uint64_t shape[FERRY_MAX_DIMS])
{
    memcpy(shape, codes->shape, codes->n_dims * sizeof *shape);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t d = codes->n_dims - 2 + i;
        shape[d] = fy_ceil_div(shape[d], block[i]);
    }
}

static ferry_status check_scales(const fy_tensor *codes, const fy_said_blocks *said,
                                 const fy_tensor *scales, const char *title, ferry_error *error)
{
    uint64_t shape[FERRY_MAX_DIMS];
    char text[FERRY_DTYPE_TEXT_BYTES], has[SHAPE_BYTES], wants[SHAPE_BYTES];
    divide_shape(codes, said->block, shape);
    if (!fy_codes_have_scales(codes->dtype, scales->dtype) || scales->scales != NULL) {
        ferry_dtype_format(scales->dtype, text, sizeof text);
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "%s: the scales \"%s\" of \"%s\" are %s%s; they must be %s", title, scales->name,
            codes->name, text, scales->scales != NULL ? " and made on the way" : "",
            codes->dtype.kind == FERRY_F4 ? "f8e4m3, as those of f4 are" : "f32 or f8e8m0");
    }
    if (scales->n_dims == codes->n_dims &&
        memcmp(scales->shape, shape, codes->n_dims * sizeof *shape) == 0) {
        return FERRY_OK;
    }
    write_shape(scales->shape, scales->n_dims, has);
    write_shape(shape, codes->n_dims, wants);
    return fy_fail(
        error, FERRY_ERR_INVALID_INPUT,
        "%s: the scales \"%s\" have the shape [%s], but \"%s\" has [%s] blocks of %llu x "
        "%llu",
        title, scales->name, has, codes->name, wants, (unsigned long long)said->block[0],
        (unsigned long long)said->block[1]);
}

/* Those of matrices: an f32 for each. */
static ferry_status check_matrix_scales(const fy_tensor *codes, const fy_tensor *scales,
                                        const char *title, ferry_error *error)
{
    uint32_t n = codes->n_dims - 2;
    bool is_f32 =
        scales->dtype.kind == FERRY_F32 && scales->scales == NULL && scales->staged == NULL;
    bool fits = scales->n_dims == n && /* a scalar has no array */
                (n == 0 || memcmp(scales->shape, codes->shape, n * sizeof *codes->shape) == 0);
    return is_f32 && fits
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: \"%s\" is f4, and \"%s\" must have one f32 for each of its matrices: "
                         "the shape of \"%s\" without its last two dimensions",
                         title, codes->name, scales->name, codes->name);
}

static int compare_feeds(const void *a, const void *b)
{
    const fy_feed *x = a, *y = b;
    if (x->tensor != y->tensor) {
        return x->tensor < y->tensor ? -1 : 1;
    }
    for (uint32_t d = 0; d < x->n_dims; d++) { /* as many as the other one's: of one tensor */
        uint64_t from = x->begin[d] - x->at[d], to = y->begin[d] - y->at[d];
        if (from != to) {
            return from < to ? -1 : 1;
        }
    }
    return 0;
}

/* What a tensor is fed, boxes that belong together beside each other: to be freed. */
static ferry_status sort_feeds(const fy_tensor *tensor, fy_feed **sorted_out, ferry_error *error)
{
    fy_feed *sorted = fy_alloc(tensor->n_feeds + 1, sizeof *sorted);
    FY_TRY(fy_check_memory(sorted != NULL, "the sources of a tensor", error));
    for (uint32_t i = 0; i < tensor->n_feeds; i++) {
        sorted[i] = tensor->feeds[i];
    }
    fy_sort(sorted, tensor->n_feeds, sizeof *sorted, compare_feeds);
    *sorted_out = sorted;
    return FERRY_OK;
}

static bool is_one_part(const fy_feed *sorted, size_t n)
{
    return n < 2 || compare_feeds(&sorted[0], &sorted[n - 1]) == 0;
}

/* Where the first n boxes, which are one part, begin within a block; false: between two. */
static bool find_cut(const fy_feed *sorted, size_t n, const uint64_t block[2], uint32_t *side_out,
                     uint64_t *at_out)
{
    for (uint32_t side = 0; side < 2; side++) {
        uint64_t at = UINT64_MAX;
        for (size_t i = 0; i < n; i++) {
            at = fy_min(at, sorted[i].at[sorted[i].n_dims - 2 + side]);
        }
        if (at % block[side] != 0) {
            *side_out = side;
            *at_out = at;
            return true;
        }
    }
    return false;
}

static ferry_status check_cuts(const fy_tensor *codes, const fy_said_blocks *said,
                               const fy_feed *parts, const char *title, ferry_error *error)
{
    uint32_t side = 0;
    uint64_t at = 0;
    for (size_t i = 0, n; i < codes->n_feeds; i += n) {
        for (n = 1; i + n < codes->n_feeds && compare_feeds(parts + i, parts + i + n) == 0;) {
            n++;
        }
        if (find_cut(parts + i, n, said->block, &side, &at)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: \"%s\" and its scales are made of parts, of which one begins at "
                           "%llu of dim %u, inside a block of %llu: two would share a scale; "
                           "dequantize the parts, each by its own",
                           title, codes->name, (unsigned long long)at, codes->n_dims - 2 + side,
                           (unsigned long long)said->block[side]);
        }
    }
    return FERRY_OK;
}

/*
 * Where codes and scales are both made of parts, a block is of one part: its scale is. Boxes that
 * lie in one tensor as they lie here are one part, however they are cut.
 */
static ferry_status check_parts(const fy_tensor *codes, const fy_said_blocks *said,
                                const fy_tensor *scales, const char *title, ferry_error *error)
{
    fy_feed *of_codes = NULL, *of_scales = NULL;
    ferry_status status = sort_feeds(codes, &of_codes, error);
    FY_THEN(status, sort_feeds(scales, &of_scales, error));
    if (status == FERRY_OK && !is_one_part(of_scales, scales->n_feeds)) {
        status = check_cuts(codes, said, of_codes, title, error);
    }
    fy_free(of_codes);
    fy_free(of_scales);
    return status;
}

/* All of a tensor that has no source. */
static ferry_status feed_whole(ferry_spec *spec, uint32_t tensor, const fy_feed **feeds_out,
                               ferry_error *error)
{
    const fy_tensor *source = &spec->tensors[tensor];
    fy_feed *feed = fy_arena_alloc(&spec->arena, 1, sizeof *feed);
    FY_TRY(fy_check_memory(feed != NULL, "the scales of a tensor", error));
    *feed = (fy_feed){.tensor = tensor, .n_dims = source->n_dims};
    memcpy(feed->shape, source->shape, source->n_dims * sizeof *feed->shape);
    *feeds_out = feed;
    return FERRY_OK;
}

/* What is added to the name of codes for that of their scales. */
static const char *suffix_of(bool is_of_matrices)
{
    return is_of_matrices ? ":scales_2" : ":scales";
}

static ferry_status add_staged(ferry_spec *spec, uint32_t from, const fy_scales *its,
                               const char *title, uint32_t *number_out, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    const fy_tensor source = spec->tensors[from];
    const char *codes = spec->tensors[its->tensor].name;
    int n = snprintf(name, sizeof name, "%s%s", codes, suffix_of(its->is_of_matrices));
    const fy_feed *feeds = source.feeds;
    fy_scales *staged = fy_arena_alloc(&spec->arena, 1, sizeof *staged);
    FY_TRY(fy_check_memory(staged != NULL, "the scales of a tensor", error));
    if (n < 0 || (size_t)n >= sizeof name || fy_spec_find_tensor(spec, name) != FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the scales that come with \"%s\" are called \"%.200s\", which is %s",
                       title, codes, name,
                       (size_t)n >= sizeof name ? "too long" : "a tensor of the spec");
    }
    if (source.n_feeds == 0) {
        FY_TRY(feed_whole(spec, from, &feeds, error));
    }
    *staged = *its;
    FY_TRY(fy_spec_add_tensor(spec, name, source.dtype, source.shape, source.n_dims, error));
    *number_out = spec->n_tensors - 1;
    fy_tensor *added = &spec->tensors[*number_out];
    added->staged = staged;
    added->feeds = feeds;
    added->n_feeds = source.n_feeds == 0 ? 1 : source.n_feeds;
    return FERRY_OK;
}

/* The scales of a tensor, if they were added: FY_NONE. */
static uint32_t find_staged(const ferry_spec *spec, uint32_t codes, bool is_of_matrices)
{
    char name[FERRY_NAME_BYTES];
    int n =
        snprintf(name, sizeof name, "%s%s", spec->tensors[codes].name, suffix_of(is_of_matrices));
    bool fits = n > 0 && (size_t)n < sizeof name;
    uint32_t found = fits ? fy_spec_find_tensor(spec, name) : FY_NONE;
    bool is_its = found != FY_NONE && spec->tensors[found].staged != NULL &&
                  spec->tensors[found].staged->tensor == codes;
    return is_its ? found : FY_NONE;
}

/* Codes come with one tensor of scales, whoever dequantizes them. */
static ferry_status check_same(const ferry_spec *spec, uint32_t staged, const fy_said_blocks *said,
                               const char *scales, const char *title, ferry_error *error)
{
    char other[FERRY_NAME_BYTES] = "";
    const fy_scales *its = spec->tensors[staged].staged;
    const fy_tensor *codes = &spec->tensors[its->tensor];
    (void)fy_blocks_name(&its->blocks, codes->name, other, sizeof other);
    bool is_same = strcmp(scales, other) == 0 && said->block[0] == its->blocks.block[0] &&
                   said->block[1] == its->blocks.block[1];
    return is_same ? FERRY_OK
                   : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "%s: \"%s\" is dequantized by the scales \"%s\" in blocks of %llu x "
                             "%llu, but elsewhere by \"%s\" in blocks of %llu x %llu; say one "
                             "\"scale\" and \"block\" for a tensor",
                             title, codes->name, scales, (unsigned long long)said->block[0],
                             (unsigned long long)said->block[1], other,
                             (unsigned long long)its->blocks.block[0],
                             (unsigned long long)its->blocks.block[1]);
}

/*
 * Of f4 each matrix has a scale as well, in the tensor that is called like the scales of its blocks
 * with _2 behind. A matrix is of one part then, as a block is.
 */
static ferry_status stage_matrix_scales(ferry_spec *spec, uint32_t codes,
                                        const fy_said_blocks *said, const char *scales,
                                        const char *title, uint32_t *staged_out, ferry_error *error)
{
    char name[FERRY_NAME_BYTES + 2];
    const fy_tensor *tensor = &spec->tensors[codes];
    const uint64_t *size = tensor->shape + tensor->n_dims - 2;
    const fy_said_blocks matrix = {.block = {fy_max(size[0], 1), fy_max(size[1], 1)}};
    const fy_scales its = {.tensor = codes, .blocks = *said, .is_of_matrices = true};
    snprintf(name, sizeof name, "%s_2", scales);
    uint32_t from = strlen(name) < FERRY_NAME_BYTES ? fy_spec_find_tensor(spec, name) : FY_NONE;
    if (from == FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" is f4, whose matrices have an f32 scale each, in \"%s\", and "
                       "the spec has no tensor of this name",
                       title, tensor->name, name);
    }
    FY_TRY(check_matrix_scales(tensor, &spec->tensors[from], title, error));
    FY_TRY(check_parts(tensor, &matrix, &spec->tensors[from], title, error));
    return add_staged(spec, from, &its, title, staged_out, error);
}

ferry_status fy_spec_stage_scales(ferry_spec *spec, uint32_t codes, const fy_said_blocks *said,
                                  const char *title, fy_staged *staged_out, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    const fy_tensor *tensor = &spec->tensors[codes];
    const fy_scales its = {.tensor = codes, .blocks = *said};
    bool is_half = tensor->dtype.kind == FERRY_F4;
    FY_TRY(check_codes(tensor, said, title, error));
    bool fits = fy_blocks_name(said, tensor->name, name, sizeof name);
    uint32_t from = fits ? fy_spec_find_tensor(spec, name) : FY_NONE;
    if (from == FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" is dequantized by the scales \"%s\", and the spec has no tensor "
                       "of this name",
                       title, tensor->name, fits ? name : said->scale);
    }
    *staged_out = (fy_staged){.of_blocks = find_staged(spec, codes, false),
                              .of_matrices = is_half ? find_staged(spec, codes, true) : FY_NONE};
    if (staged_out->of_blocks != FY_NONE) {
        return check_same(spec, staged_out->of_blocks, said, name, title, error);
    }
    FY_TRY(check_scales(tensor, said, &spec->tensors[from], title, error));
    FY_TRY(check_parts(tensor, said, &spec->tensors[from], title, error));
    FY_TRY(add_staged(spec, from, &its, title, &staged_out->of_blocks, error));
    return is_half ? stage_matrix_scales(spec, codes, said, name, title, &staged_out->of_matrices,
                                         error)
                   : FERRY_OK;
}

static ferry_status add_for(ferry_spec *spec, uint32_t codes, const fy_rule *rule,
                            ferry_error *error)
{
    char title[TITLE_BYTES];
    fy_staged staged;
    snprintf(title, sizeof title, "destination: rule \"%.400s\"", rule->match);
    return fy_spec_stage_scales(spec, codes, rule->codes, title, &staged, error);
}

static bool has_codes(const fy_side *side)
{
    size_t i = 0;
    while (i < side->n_rules && side->rules[i].codes == NULL) {
        i++;
    }
    return i < side->n_rules;
}

ferry_status fy_spec_add_staged(ferry_spec *spec, ferry_error *error)
{
    fy_rule_index rules = {0};
    uint32_t n = spec->n_tensors;
    if (!has_codes(&spec->destination)) {
        return FERRY_OK;
    }
    ferry_status status = fy_rule_index_init(&rules, &spec->destination, error);
    for (uint32_t t = 0; t < n && status == FERRY_OK; t++) {
        const fy_tensor *tensor = &spec->tensors[t];
        const fy_rule *rule = fy_rule_index_find(&rules, tensor->name, strlen(tensor->name));
        if (rule != NULL && !rule->skip && rule->codes != NULL && !tensor->is_source_only &&
            tensor->scales == NULL) {
            status = add_for(spec, t, rule, error);
        }
    }
    fy_rule_index_cleanup(&rules);
    return status;
}
