/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices of quantized blocks by the definitions (tests/oracle/convert.c), for tests in Python:
 *
 *     blocks_oracle quantize|dequantize TYPE CODES SCALES RULE ROWS COLUMNS BLOCK_ROWS
 * BLOCK_COLUMNS TENSOR_SCALE
 *
 * TYPE is of the values; TENSOR_SCALE the bits of an f32. stdin has the values, or codes and then
 * scales; stdout gets codes and then scales, or values. All row-major; two f4 in a byte, the first
 * in the lower half.
 */
#include "oracle/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct matrix {
    oracle_type type;
    size_t rows, columns;
    unsigned char *bytes;
} matrix;

static void stop(const char *why)
{
    fprintf(stderr, "blocks_oracle: %s\n", why);
    exit(2);
}

static oracle_type type_of(const char *name)
{
    static const char *const names[] = {"f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f4", "f8e8m0"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            return (oracle_type)i;
        }
    }
    stop("no such type");
    return ORACLE_F32;
}

static size_t bytes_of(const matrix *m)
{
    return m->rows * m->columns * (size_t)oracle_bits(m->type) / 8;
}

static matrix make(oracle_type type, size_t rows, size_t columns)
{
    matrix m = {type, rows, columns, NULL};
    m.bytes = calloc(bytes_of(&m) + 1, 1);
    if (m.bytes == NULL) {
        stop("no memory");
    }
    return m;
}

static void load(const matrix *m)
{
    if (fread(m->bytes, 1, bytes_of(m), stdin) != bytes_of(m)) {
        stop("stdin is too short");
    }
}

static void store(const matrix *m)
{
    if (fwrite(m->bytes, 1, bytes_of(m), stdout) != bytes_of(m)) {
        stop("stdout cannot be written");
    }
}

static uint32_t get(const matrix *m, size_t row, size_t column)
{
    size_t at = row * m->columns + column, size = (size_t)oracle_bits(m->type) / 8;
    uint32_t code = 0;
    if (m->type == ORACLE_F4) {
        return (uint32_t)(m->bytes[at / 2] >> (at % 2 * 4)) & 15;
    }
    memcpy(&code, m->bytes + at * size, size); /* little-endian */
    return code;
}

static void put(const matrix *m, size_t row, size_t column, uint32_t code)
{
    size_t at = row * m->columns + column, size = (size_t)oracle_bits(m->type) / 8;
    if (m->type == ORACLE_F4) {
        m->bytes[at / 2] |= (unsigned char)(code << (at % 2 * 4));
        return;
    }
    memcpy(m->bytes + at * size, &code, size);
}

static void quantize_block(const oracle_block *block, const matrix *values, const matrix *codes,
                           const matrix *scales, size_t row, size_t column, const size_t size[2])
{
    size_t rows = values->rows - row * size[0], columns = values->columns - column * size[1];
    rows = rows < size[0] ? rows : size[0];
    columns = columns < size[1] ? columns : size[1];
    size_t n = rows * columns;
    uint32_t *elements = calloc(n, sizeof *elements), *made = calloc(n, sizeof *made);
    if (elements == NULL || made == NULL) {
        stop("no memory");
    }
    for (size_t i = 0; i < n; i++) {
        elements[i] = get(values, row * size[0] + i / columns, column * size[1] + i % columns);
    }
    put(scales, row, column, oracle_quantize(block, elements, n, made));
    for (size_t i = 0; i < n; i++) {
        put(codes, row * size[0] + i / columns, column * size[1] + i % columns, made[i]);
    }
    free(elements);
    free(made);
}

static void quantize(const oracle_block *block, const matrix *values, const matrix *codes,
                     const matrix *scales, const size_t size[2])
{
    load(values);
    for (size_t row = 0; row < scales->rows; row++) {
        for (size_t column = 0; column < scales->columns; column++) {
            quantize_block(block, values, codes, scales, row, column, size);
        }
    }
    store(codes);
    store(scales);
}

static void dequantize(const oracle_block *block, const matrix *values, const matrix *codes,
                       const matrix *scales, const size_t size[2])
{
    load(codes);
    load(scales);
    for (size_t row = 0; row < values->rows; row++) {
        for (size_t column = 0; column < values->columns; column++) {
            put(values, row, column,
                oracle_dequantize(block, get(codes, row, column),
                                  get(scales, row / size[0], column / size[1])));
        }
    }
    store(values);
}

int main(int argc, char **argv)
{
    if (argc != 11) {
        stop("ten arguments are needed");
    }
    oracle_block block = {.from = type_of(argv[2]),
                          .to = type_of(argv[3]),
                          .scale_type = type_of(argv[4]),
                          .rule = (oracle_rule)atoi(argv[5]),
                          .tensor_scale = (uint32_t)strtoul(argv[10], NULL, 0)};
    size_t rows = strtoul(argv[6], NULL, 10), columns = strtoul(argv[7], NULL, 10);
    size_t size[2] = {strtoul(argv[8], NULL, 10), strtoul(argv[9], NULL, 10)};
    matrix values = make(block.from, rows, columns), codes = make(block.to, rows, columns);
    matrix scales =
        make(block.scale_type, (rows + size[0] - 1) / size[0], (columns + size[1] - 1) / size[1]);
    (strcmp(argv[1], "quantize") == 0 ? quantize : dequantize)(&block, &values, &codes, &scales,
                                                               size);
    free(values.bytes);
    free(codes.bytes);
    free(scales.bytes);
    return 0;
}
