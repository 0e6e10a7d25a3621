/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_ST_DTYPE_H
#define FY_CHECKPOINT_ST_DTYPE_H

#include "checkpoint/safetensors.h"

typedef enum fy_st_width {
    FY_ST_KNOWN,    /* by dtype */
    FY_ST_OPAQUE,   /* by bits, without a dtype that could be cut */
    FY_ST_INFERRED, /* nobody told us: by the data */
} fy_st_width;

/* An element type as files write it. */
typedef struct fy_st_word {
    const char *text;
    fy_st_width width;
    ferry_dtype dtype;
    uint32_t bits;
} fy_st_word;

/* The word of files for a type; NULL: they have none of their own. */
const char *fy_st_word_of_kind(uint32_t kind);

/* Sets what the text says. */
void fy_st_word_classify(fy_st_word *word);

/* Checks that shape, word and offsets agree, and sets dtype and is_opaque. file is for sentences.
 */
ferry_status fy_st_measure(const char *file, const fy_st_word *word, fy_st_tensor *tensor,
                           ferry_error *error);

#endif
