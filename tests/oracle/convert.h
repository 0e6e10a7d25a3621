/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_ORACLE_CONVERT_H
#define FERRY_TESTS_ORACLE_CONVERT_H

/*
 * What casts and quantized blocks must be, from the definitions in src/convert/convert.h: numbers
 * are integers times powers of two, and every sum of digits is exact until it is rounded in one
 * place. Slow, and shares no code and no header with what it checks.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum oracle_type {
    ORACLE_F32,
    ORACLE_F16,
    ORACLE_BF16,
    ORACLE_F8E4M3,
    ORACLE_F8E5M2,
    ORACLE_F4,
    ORACLE_F8E8M0,
    ORACLE_N_TYPES
} oracle_type;

int oracle_bits(oracle_type type);

/* The code of type `to` that a code of type `from` becomes; f8e8m0 and f4 are no such types. */
uint32_t oracle_cast(oracle_type from, uint32_t code, oracle_type to, bool saturates);

/* A block: its elements' codes of type `from` become those of a quantized block, and its scale. */
typedef enum oracle_rule { ORACLE_LARGEST, ORACLE_COVER, ORACLE_FLOOR } oracle_rule;

typedef struct oracle_block {
    oracle_type from, to, scale_type;
    oracle_rule rule;
    uint32_t tensor_scale; /* an f32; of scales in f8e4m3 */
} oracle_block;

uint32_t oracle_quantize(const oracle_block *block, const uint32_t *elements, size_t n,
                         uint32_t *codes);

/* One value of type block->from, of a code and its block's scale. */
uint32_t oracle_dequantize(const oracle_block *block, uint32_t code, uint32_t scale);

#endif
