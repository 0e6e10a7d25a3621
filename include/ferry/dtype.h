/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_DTYPE_H
#define FERRY_DTYPE_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/* Every element type with its name in ferry's files, its name in safetensors files, and its bits.
 */
#define FERRY_DTYPE_MAP(X)                                                                         \
    X(F64, 1, "f64", "F64", 64)                                                                    \
    X(F32, 2, "f32", "F32", 32)                                                                    \
    X(F16, 3, "f16", "F16", 16)                                                                    \
    X(BF16, 4, "bf16", "BF16", 16)                                                                 \
    X(F8E4M3, 5, "f8e4m3", "F8_E4M3", 8)                                                           \
    X(F8E5M2, 6, "f8e5m2", "F8_E5M2", 8)                                                           \
    X(F8E8M0, 7, "f8e8m0", "F8_E8M0", 8)                                                           \
    X(F4, 8, "f4", "F4", 4)                                                                        \
    X(I64, 9, "i64", "I64", 64)                                                                    \
    X(U64, 10, "u64", "U64", 64)                                                                   \
    X(I32, 11, "i32", "I32", 32)                                                                   \
    X(U32, 12, "u32", "U32", 32)                                                                   \
    X(I16, 13, "i16", "I16", 16)                                                                   \
    X(U16, 14, "u16", "U16", 16)                                                                   \
    X(I8, 15, "i8", "I8", 8)                                                                       \
    X(U8, 16, "u8", "U8", 8)                                                                       \
    X(BOOL, 17, "bool", "BOOL", 8)                                                                 \
    X(C64, 18, "c64", "C64", 64)

typedef enum ferry_dtype_kind {
#define FERRY_DTYPE_ENUM(name, number, text, safetensors, bits) FERRY_##name = number,
    FERRY_DTYPE_MAP(FERRY_DTYPE_ENUM)
#undef FERRY_DTYPE_ENUM
    /* Opaque elements of any whole number of bytes, "bytes:N". */
    FERRY_BYTES = 255
} ferry_dtype_kind;

/* An element type by value. Sub-byte types are why the size is in bits. */
typedef struct ferry_dtype {
    uint32_t kind; /* a ferry_dtype_kind */
    uint32_t element_bits;
} ferry_dtype;

/* "bf16", "bytes:12": to a type. */
FERRY_API ferry_status ferry_dtype_parse(const char *text, ferry_dtype *dtype_out,
                                         ferry_error *error);

/* A named kind with its own size; FERRY_ERR_MISUSE for FERRY_BYTES, which has none. */
FERRY_API ferry_status ferry_dtype_of(uint32_t kind, ferry_dtype *dtype_out, ferry_error *error);

/* The longest text of a type, with its terminating zero. */
#define FERRY_DTYPE_TEXT_BYTES 24

/* Writes the type's name to text, cut to fit, and returns its length: the form of snprintf. */
FERRY_API size_t ferry_dtype_format(ferry_dtype dtype, char *text, size_t text_bytes);

FERRY_END_DECLS

#endif
