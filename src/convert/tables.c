/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/tables.h"

#include <string.h>

/*
 * WORTH: from so many elements on a table costs less than it saves. Exponents, with the bias of
 * f32: within these, normal bf16 have quotients that are as exact as those of the table, and
 * subnormal ones give no normal codes.
 */
enum { N_ENTRIES = 128, WORTH = 2048, LEAST_EXPONENT = 32, MOST_EXPONENT = 222 };

bool fy_tables_pay(const fy_convert_kernels *k, const fy_block_facts *facts, size_t n_blocks,
                   uint64_t block_elements)
{
    return k->quantize_by_tables != NULL && facts->value == FY_VALUE_BF16 &&
           facts->code == FY_CODE_F8E4M3 && n_blocks <= FY_MOST_TABLES && block_elements >= WORTH;
}

/* Numbers of the scale's own size have quotients around 1, whose codes are normal. */
static bool make_table(const fy_convert_kernels *k, float scale, fy_code_table *table)
{
    uint32_t bits, exponent;
    uint16_t values[N_ENTRIES];
    unsigned char codes[N_ENTRIES];
    memcpy(&bits, &scale, sizeof bits);
    exponent = bits >> 23;
    if (exponent < LEAST_EXPONENT || exponent > MOST_EXPONENT) {
        return false;
    }
    for (uint32_t i = 0; i < N_ENTRIES; i++) {
        values[i] = (uint16_t)(exponent << 7 | i);
    }
    k->quantize[FY_VALUE_BF16][FY_CODE_F8E4M3](codes, values, N_ENTRIES, N_ENTRIES, &scale);
    for (uint32_t i = 0; i < N_ENTRIES; i++) {
        table->entries[i] = (uint16_t)(codes[i] - (exponent << 3));
    }
    table->scale = scale;
    return true;
}

bool fy_quantize_tables(const fy_convert_kernels *k, const float *scales, size_t n,
                        fy_code_table *tables)
{
    for (size_t i = 0; i < n; i++) {
        if (!make_table(k, scales[i], &tables[i])) {
            return false;
        }
    }
    return true;
}

void fy_dequantize_tables(const fy_convert_kernels *k, const float *scales, size_t n,
                          fy_code_table *tables)
{
    unsigned char codes[N_ENTRIES];
    for (unsigned i = 0; i < N_ENTRIES; i++) {
        codes[i] = (unsigned char)i;
    }
    for (size_t i = 0; i < n; i++) {
        k->dequantize[FY_VALUE_BF16][FY_CODE_F8E4M3](tables[i].entries, codes, N_ENTRIES, N_ENTRIES,
                                                     &scales[i]);
        tables[i].scale = scales[i];
    }
}
