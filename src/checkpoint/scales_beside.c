/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of a checkpoint are codes with scales, and which are scales, by names and shapes.
 */
#include "checkpoint/changes.h"

#include <stdio.h>
#include <string.h>

/* What names of scales end in, and what those of their codes have in place of that. */
typedef struct ending {
    const char *scales, *codes;
} ending;

static const ending endings[] = {
    {"_scale_inv", ""},
    {"_scale", ""},
    {FY_MATRIX_SCALES_SUFFIX, ""},
    /* As compressed-tensors calls codes of which an integer has several. */
    {"_scale", "_packed"},
    {"_global_scale", "_packed"},
    /* Of activations: whoever multiplies by the codes makes codes of those, too. */
    {".input_scale", ".weight"},
    {".input_global_scale", ".weight_packed"}};

enum {
    N_ENDINGS = sizeof endings / sizeof *endings,
    N_BEHIND = 3 /* the first ones are behind the whole name of the codes; and others end so, too */
};

static bool ends_in(const char *name, const char *with)
{
    size_t length = strlen(name), n = strlen(with);
    return length >= n && strcmp(name + length - n, with) == 0;
}

bool fy_is_scale_name(const char *name)
{
    bool is = false;
    for (size_t i = 0; i < N_BEHIND && !is; i++) {
        is = ends_in(name, endings[i].scales);
    }
    return is;
}

/*
 * Whether there are not more than what they scale. Which of them go with which codes is not asked:
 * a matrix that was fused of others, or cut out of one, has scales of shapes that its own does not
 * tell. Rather too much is taken for scales than too little, since codes that have lost theirs look
 * like any values.
 */
static bool fits(const fy_tensor *codes, const fy_tensor *scales)
{
    uint64_t n = fy_box_volume(scales->shape, scales->n_dims);
    return n >= 1 && n <= fy_max(fy_box_volume(codes->shape, codes->n_dims), 1);
}

uint32_t fy_find_any_scales(const ferry_spec *spec, uint32_t tensor)
{
    const fy_tensor *codes = &spec->tensors[tensor];
    for (size_t i = 0; i < N_BEHIND; i++) {
        char name[FERRY_NAME_BYTES];
        int n = snprintf(name, sizeof name, "%s%s", codes->name, endings[i].scales);
        bool is_name = n >= 0 && (size_t)n < sizeof name;
        uint32_t found = is_name ? fy_spec_find_tensor(spec, name) : FY_NONE;
        if (found != FY_NONE && fits(codes, &spec->tensors[found])) {
            return found;
        }
    }
    return FY_NONE;
}

/* Also integers, which no cast changes: their scales are theirs all the same. */
static bool may_have_scales(uint32_t kind, bool is_packed)
{
    return fy_is_code_kind(kind) || kind == FERRY_I8 || kind == FERRY_U8 ||
           (is_packed && kind == FERRY_I32);
}

/* The codes whose name differs from that of scales by an ending. */
static uint32_t find_by(const ferry_spec *spec, const fy_tensor *scales, const ending *by)
{
    char name[FERRY_NAME_BYTES];
    if (!ends_in(scales->name, by->scales)) {
        return FY_NONE;
    }
    int stem = (int)(strlen(scales->name) - strlen(by->scales));
    int n = snprintf(name, sizeof name, "%.*s%s", stem, scales->name, by->codes);
    bool is_name = n >= 0 && (size_t)n < sizeof name;
    uint32_t codes = is_name ? fy_spec_find_tensor(spec, name) : FY_NONE;
    bool is = codes != FY_NONE &&
              may_have_scales(spec->tensors[codes].dtype.kind, ends_in(name, "_packed")) &&
              fits(&spec->tensors[codes], scales);
    return is ? codes : FY_NONE;
}

uint32_t fy_find_codes(const ferry_spec *spec, uint32_t tensor)
{
    uint32_t codes = FY_NONE;
    for (size_t i = 0; i < N_ENDINGS && codes == FY_NONE; i++) {
        codes = find_by(spec, &spec->tensors[tensor], &endings[i]);
    }
    return codes;
}
