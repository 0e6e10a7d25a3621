/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of a checkpoint are codes with scales, and which are scales, by names and shapes.
 */
#include "checkpoint/changes.h"

#include <stdio.h>
#include <string.h>

static const char *const suffixes[] = {"_scale_inv", "_scale", FY_MATRIX_SCALES_SUFFIX};

enum { N_SUFFIXES = sizeof suffixes / sizeof *suffixes };

/* What a name of scales ends in; NULL: it is no such name. */
static const char *suffix_of(const char *name)
{
    size_t length = strlen(name);
    const char *found = NULL;
    for (size_t i = 0; i < N_SUFFIXES && found == NULL; i++) {
        size_t n = strlen(suffixes[i]);
        if (length >= n && strcmp(name + length - n, suffixes[i]) == 0) {
            found = name + length - n;
        }
    }
    return found;
}

bool fy_is_scale_name(const char *name)
{
    return suffix_of(name) != NULL;
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
    for (size_t i = 0; i < N_SUFFIXES; i++) {
        char name[FERRY_NAME_BYTES];
        int n = snprintf(name, sizeof name, "%s%s", codes->name, suffixes[i]);
        bool is_name = n >= 0 && (size_t)n < sizeof name;
        uint32_t found = is_name ? fy_spec_find_tensor(spec, name) : FY_NONE;
        if (found != FY_NONE && fits(codes, &spec->tensors[found])) {
            return found;
        }
    }
    return FY_NONE;
}

/* Also integers of 8 bits, which no cast changes: their scales are theirs all the same. */
static bool may_have_scales(uint32_t kind)
{
    return fy_is_code_kind(kind) || kind == FERRY_I8 || kind == FERRY_U8;
}

uint32_t fy_find_codes(const ferry_spec *spec, uint32_t tensor)
{
    const fy_tensor *scales = &spec->tensors[tensor];
    const char *suffix = suffix_of(scales->name);
    char name[FERRY_NAME_BYTES];
    if (suffix == NULL || (size_t)(suffix - scales->name) >= sizeof name) {
        return FY_NONE;
    }
    memcpy(name, scales->name, (size_t)(suffix - scales->name));
    name[suffix - scales->name] = '\0';
    uint32_t codes = fy_spec_find_tensor(spec, name);
    bool is = codes != FY_NONE && may_have_scales(spec->tensors[codes].dtype.kind) &&
              fits(&spec->tensors[codes], scales);
    return is ? codes : FY_NONE;
}
