/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How many bytes the elements of a safetensors file have. */
#include "checkpoint/st_dtype.h"

#include "base/checked.h"
#include "model/dtype.h"

#include <string.h>

void fy_st_word_classify(fy_st_word *word)
{
    static const struct {
        const char *text;
        uint32_t bits;
    } further[] = {{"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}};
    word->width = FY_ST_INFERRED;
    if (fy_dtype_from_safetensors(word->text, &word->dtype)) {
        word->width = FY_ST_KNOWN;
        word->bits = word->dtype.element_bits;
    }
    for (size_t i = 0; i < sizeof further / sizeof further[0]; i++) {
        if (strcmp(word->text, further[i].text) == 0) {
            word->width = further[i].bits % 8 == 0 ? FY_ST_KNOWN : FY_ST_OPAQUE;
            word->bits = further[i].bits;
            word->dtype = (ferry_dtype){.kind = FERRY_BYTES, .element_bits = further[i].bits};
        }
    }
}

const char *fy_st_word_of_kind(uint32_t kind)
{
    switch (kind) {
#define WORD(name, number, text, safetensors, bits)                                                \
    case FERRY_##name:                                                                             \
        return safetensors;
        FERRY_DTYPE_MAP(WORD)
#undef WORD
    default:
        return NULL;
    }
}

/* With empty dimensions taken as 1, bits must be countable in 63 bits, as everywhere in ferry. */
static bool count_elements(const fy_st_tensor *tensor, uint64_t bits, uint64_t *volume_out)
{
    uint64_t most = fy_max(bits, 1);
    uint64_t volume = 1;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        volume *= tensor->shape[d]; /* does not overflow where the next does not */
        if (!fy_mul(most, fy_max(tensor->shape[d], 1), &most) || most > INT64_MAX) {
            return false;
        }
    }
    *volume_out = volume;
    return true;
}

static ferry_status fail_bytes(const char *file, const fy_st_tensor *tensor, uint64_t bits,
                               ferry_error *error)
{
    unsigned long long has = tensor->end - tensor->begin;
    if (bits % 8 != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%.200s\" has %llu bits of %s, which are not whole bytes", file,
                       tensor->name, (unsigned long long)bits, tensor->dtype_text);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: \"%.200s\" needs %llu bytes for its shape and its dtype %.40s, but its "
                   "data_offsets give it %llu",
                   file, tensor->name, (unsigned long long)(bits / 8), tensor->dtype_text, has);
}

/* Carried as the bytes that it has: they travel, but only together. */
static void make_opaque(fy_st_tensor *tensor)
{
    tensor->dtype = (ferry_dtype){.kind = FERRY_BYTES, .element_bits = 8};
    tensor->is_opaque = true;
}

/* A word that nobody told us of: elements of whole bytes can be cut, others travel whole. */
static ferry_status infer(const char *file, fy_st_tensor *tensor, uint64_t volume,
                          ferry_error *error)
{
    uint64_t bytes = tensor->end - tensor->begin;
    if (bytes == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%.200s\" has %llu elements of the unknown dtype %.40s and no bytes",
                       file, tensor->name, (unsigned long long)volume, tensor->dtype_text);
    }
    ferry_dtype dtype = {.kind = FERRY_BYTES};
    if (bytes % volume == 0 && bytes / volume <= UINT32_MAX / 8) {
        dtype.element_bits = (uint32_t)(bytes / volume) * 8;
    }
    if (fy_dtype_is_valid(dtype)) {
        tensor->dtype = dtype;
        return FERRY_OK;
    }
    if (bytes > UINT64_MAX / 8 || bytes * 8 % volume != 0) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "%s: \"%.200s\" has %llu bytes for %llu elements of the unknown dtype %.40s, "
            "which are not a whole number of bits each",
            file, tensor->name, (unsigned long long)bytes, (unsigned long long)volume,
            tensor->dtype_text);
    }
    make_opaque(tensor);
    return FERRY_OK;
}

ferry_status fy_st_measure(const char *file, const fy_st_word *word, fy_st_tensor *tensor,
                           ferry_error *error)
{
    uint64_t volume = 0;
    uint64_t has = tensor->end - tensor->begin;
    bool inferred = word->width == FY_ST_INFERRED;
    if (!count_elements(tensor, inferred ? 8 : word->bits, &volume)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%.200s\" has a shape of more than 2^63 bits", file, tensor->name);
    }
    if (volume == 0 && word->width != FY_ST_KNOWN) {
        tensor->dtype = (ferry_dtype){.kind = FERRY_BYTES, .element_bits = 8};
        return has == 0 ? FERRY_OK : fail_bytes(file, tensor, 0, error);
    }
    if (inferred) {
        return infer(file, tensor, volume, error);
    }
    uint64_t bits = volume * word->bits;
    if (bits % 8 != 0 || bits / 8 != has) {
        return fail_bytes(file, tensor, bits, error);
    }
    tensor->dtype = word->dtype;
    if (word->width == FY_ST_OPAQUE) {
        make_opaque(tensor);
    }
    return FERRY_OK;
}
