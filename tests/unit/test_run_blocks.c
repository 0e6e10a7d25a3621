/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How often `ferry run` reads the values of a block to reckon its codes: each block is met anew
 * with every row of elements, however many blocks are side by side, and whatever these are made of.
 */
#include "../../tools/ferry/run_blocks.c"
#include "../../tools/ferry/run_cast.c"
#include "../../tools/ferry/run_parts.c"

#include "support/check.h"

#include <string.h>

enum { ROWS = 6, PARTS = 3, NO_PARTS = 0 };

static uint64_t bytes_read;

/* In place of run_pattern.c: as many bytes as are asked for. */
void run_pattern_fill(void *memory, run_key key, uint64_t at, uint64_t n_bytes, int poison)
{
    (void)key;
    (void)at;
    (void)poison;
    memset(memory, 0x3f, n_bytes);
    bytes_read += n_bytes;
}

run_key run_key_of(const char *tensor)
{
    return (run_key){.bits = strlen(tensor)};
}

/* Rows of other tensors, one after the other. */
static run_parted rows_of_others(run_part *others, uint64_t n_columns)
{
    for (uint64_t i = 0; i < PARTS; i++) {
        others[i] = (run_part){.n_dims = 2,
                               .source_n_dims = 2,
                               .at = {i * (ROWS / PARTS)},
                               .shape = {ROWS / PARTS, n_columns},
                               .source_global = {ROWS, n_columns}};
    }
    return (run_parted){
        .n_dims = 2, .global = {ROWS, n_columns}, .parts = others, .n_parts = PARTS};
}

static void reckon_rows(run_blocks *blocks, uint64_t n_columns, size_t n_parts)
{
    const ferry_conversion conversion = {.kind = FERRY_CONVERSION_CODES,
                                         .code_dtype = {FERRY_F8E4M3, 8},
                                         .scale_dtype = {FERRY_F32, 32},
                                         .block = {ROWS, 1}};
    const uint64_t shape[] = {ROWS, n_columns};
    run_quantized q = run_quantized_of("w", (ferry_dtype){FERRY_F32, 32}, &conversion, shape, 2);
    run_part others[PARTS];
    run_parted parted = rows_of_others(others, n_columns);
    q.parts = n_parts == NO_PARTS ? NULL : &parted;
    bytes_read = 0;
    for (uint64_t i = 0; i < ROWS * n_columns; i++) {
        uint64_t code = run_blocks_code(blocks, &q, i, 0x3f3f3f3f);
        check_at(code == 0x7e, "element %llu is %llx", (unsigned long long)i,
                 (unsigned long long)code);
    }
    check_at(bytes_read == ROWS * n_columns * sizeof(float),
             "%llu columns, %zu parts: %llu bytes were read", (unsigned long long)n_columns,
             n_parts, (unsigned long long)bytes_read);
}

static void test_each_block_once(void **state)
{
    static const uint64_t columns[] = {1, 100, 1024, 1025, 20000};
    (void)state;
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        run_blocks blocks = {.kept = NULL};
        reckon_rows(&blocks, columns[i], NO_PARTS);
        run_blocks_free(&blocks);
        reckon_rows(&blocks, columns[i], PARTS);
        run_blocks_free(&blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_block_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
