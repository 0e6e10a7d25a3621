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
 * Whether there is one for each block, where rows and columns are the last two dimensions. Which
 * size blocks have is not asked: a matrix that was fused of others has more of them than its own
 * size tells.
 */
static bool is_of_blocks(const fy_tensor *codes, const fy_tensor *scales)
{
    bool is = scales->n_dims == codes->n_dims;
    for (uint32_t d = 0; is && d < codes->n_dims; d++) {
        bool is_cut = d + 2 >= codes->n_dims;
        is = scales->shape[d] == codes->shape[d] ||
             (is_cut && scales->shape[d] >= 1 && scales->shape[d] < codes->shape[d]);
    }
    return is;
}

/* Whether there is one for all, or for each index of leading dimensions: of a row, of a matrix. */
static bool is_of_leading(const fy_tensor *codes, const fy_tensor *scales)
{
    uint32_t n = scales->n_dims;
    while (n > 0 && scales->shape[n - 1] == 1) {
        n--;
    }
    bool is = n < codes->n_dims || n == 0;
    for (uint32_t d = 0; is && d < n; d++) {
        is = scales->shape[d] == codes->shape[d];
    }
    return is;
}

static bool fits(const fy_tensor *codes, const fy_tensor *scales)
{
    return is_of_blocks(codes, scales) || is_of_leading(codes, scales);
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
