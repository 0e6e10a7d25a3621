/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CONVERT_TABLES_H
#define FY_CONVERT_TABLES_H

#include "convert/format.h"

/* The faster way of kernels.h: whether it is one, and its tables. */

/* The most blocks beside each other that have tables. */
enum { FY_MOST_TABLES = 128 };

/* Whether n_blocks of so many elements each, of these types, are worth tables. */
bool fy_tables_pay(const fy_convert_kernels *k, const fy_block_facts *facts, size_t n_blocks,
                   uint64_t block_elements);

/* Those of n blocks, at most FY_MOST_TABLES. False: a scale is too large or small for this way. */
bool fy_quantize_tables(const fy_convert_kernels *k, const float *scales, size_t n,
                        fy_code_table *tables);
void fy_dequantize_tables(const fy_convert_kernels *k, const float *scales, size_t n,
                          fy_code_table *tables);

#endif
