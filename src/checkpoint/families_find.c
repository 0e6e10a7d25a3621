/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which family a model belongs to: by config.json, else by the names of its tensors. */
#include "checkpoint/families.h"

#include "base/glob.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WORD = 64, MAX_PATTERN = 256 };

const json_t *fy_config_of_text(const json_t *config)
{
    static const char *const keys[] = {"text_config", "llm_config", "language_config", NULL};
    for (const char *const *key = keys; *key != NULL; key++) {
        const json_t *nested = json_object_get(config, *key);
        if (json_is_object(nested)) {
            return nested;
        }
    }
    return NULL;
}

bool fy_decoder_layer(const fy_decoder *decoder, const char *name, uint64_t *layer_out)
{
    size_t length = strlen(decoder->layers);
    uint64_t layer = 0;
    size_t n = 0;
    if (strncmp(name, decoder->layers, length) != 0) {
        return false;
    }
    const char *digits = name + length;
    while (digits[n] >= '0' && digits[n] <= '9' && n < 9) {
        layer = layer * 10 + (uint64_t)(digits[n++] - '0');
    }
    if (n == 0 || digits[n] != '.' || (n > 1 && digits[0] == '0')) {
        return false;
    }
    *layer_out = layer;
    return true;
}

ferry_status fy_decoder_find(const fy_model_tensor *tensors, size_t n_tensors,
                             const char *source_name, const fy_decoder **decoder_out,
                             ferry_error *error)
{
    uint64_t layer;
    for (const fy_decoder *decoder = fy_decoders; decoder->root != NULL; decoder++) {
        for (size_t i = 0; i < n_tensors; i++) {
            if (fy_decoder_layer(decoder, tensors[i].name, &layer)) {
                *decoder_out = decoder;
                return FERRY_OK;
            }
        }
    }
    if (n_tensors == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has no tensors, and short forms cut those of a model that they know: "
                       "write a layout file",
                       source_name);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: no tensor is named like one of a decoder's layer (model.layers.0. and the "
                   "like; the first of %zu is \"%s\"); short forms do not know this model: write a "
                   "layout file",
                   source_name, n_tensors, tensors[0].name);
}

/* "Qwen3MoeForCausalLM" and "qwen3_moe" are both "qwen3moe". */
static void plain_word(const char *name, char *word)
{
    size_t n = 0;
    const char *end = strstr(name, "For");
    if (end == NULL || end == name) {
        size_t length = strlen(name);
        bool model = length > 5 && strcmp(name + length - 5, "Model") == 0;
        end = name + length - (model ? 5 : 0);
    }
    for (const char *c = name; c < end && n + 1 < MAX_WORD; c++) {
        bool upper = *c >= 'A' && *c <= 'Z';
        if (upper || (*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9')) {
            word[n++] = (char)(upper ? *c - 'A' + 'a' : *c);
        }
    }
    word[n] = '\0';
}

/* The next word of a list with single spaces; false behind the last. */
static bool next_word(const char **list, char *word)
{
    size_t length = strcspn(*list, " ");
    if (length == 0 || length >= MAX_WORD) {
        return false;
    }
    memcpy(word, *list, length);
    word[length] = '\0';
    *list += length + ((*list)[length] == ' ');
    return true;
}

static const fy_family *family_of_word(const char *name)
{
    char wanted[MAX_WORD], word[MAX_WORD];
    plain_word(name, wanted);
    for (const fy_family *family = fy_families; family->words != NULL; family++) {
        const char *list = family->words;
        while (next_word(&list, word)) {
            if (strcmp(word, wanted) == 0) {
                return family;
            }
        }
    }
    return NULL;
}

/* What one object of config.json calls its architecture; *seen is set to the first that it says. */
static const fy_family *family_of_object(const json_t *object, const char **seen)
{
    const char *says[] = {
        json_string_value(json_array_get(json_object_get(object, "architectures"), 0)),
        json_string_value(json_object_get(object, "model_type"))};
    const fy_family *family = NULL;
    for (size_t i = 0; i < sizeof says / sizeof says[0] && family == NULL; i++) {
        if (says[i] != NULL) {
            *seen = *seen == NULL ? says[i] : *seen;
            family = family_of_word(says[i]);
        }
    }
    return family;
}

/* Whether some layer has the module, or a tensor of that name. */
static bool names_have(const fy_model_tensor *tensors, size_t n_tensors, const fy_decoder *decoder,
                       const char *module)
{
    char pattern[MAX_PATTERN];
    int written = snprintf(pattern, sizeof pattern, "%s*.%s.*", decoder->layers, module);
    size_t length = written < 2 ? 0 : (size_t)written;
    for (size_t i = 0; i < n_tensors; i++) {
        const char *name = tensors[i].name;
        size_t n = strlen(name);
        if (strstr(name, module) != NULL && /* cheaper than the pattern */
            (fy_glob_match(pattern, length, name, n) ||
             fy_glob_match(pattern, length - 2, name, n))) {
            return true;
        }
    }
    return false;
}

static const fy_family *family_of_names(const fy_model_tensor *tensors, size_t n_tensors,
                                        const fy_decoder *decoder)
{
    char module[MAX_WORD];
    for (const fy_family *family = fy_families; family->words != NULL; family++) {
        const char *list = family->signatures;
        bool all = true;
        while (all && next_word(&list, module)) {
            all = names_have(tensors, n_tensors, decoder, module);
        }
        if (all) {
            return family;
        }
    }
    return NULL;
}

ferry_status fy_family_find(const fy_model_tensor *tensors, size_t n_tensors,
                            const fy_decoder *decoder, const json_t *config,
                            const char *source_name, const fy_family **family_out,
                            ferry_error *error)
{
    const char *seen = NULL;
    const fy_family *family = family_of_object(config, &seen);
    if (family == NULL) {
        family = family_of_object(fy_config_of_text(config), &seen);
    }
    if (family == NULL && seen != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: short forms do not know the architecture \"%s\" of its config.json; "
                       "write a layout file",
                       source_name, seen);
    }
    if (family == NULL) {
        family = family_of_names(tensors, n_tensors, decoder);
    }
    if (family == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: %s names no architecture, and the names of the tensors (%s0. and so "
                       "on) are not those of one that short forms know; write a layout file",
                       source_name, config == NULL ? "a missing config.json" : "its config.json",
                       decoder->layers);
    }
    *family_out = family;
    return FERRY_OK;
}
