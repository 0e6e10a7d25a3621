/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_PTX_DECODE_H
#define FERRY_TESTS_DEVICE_PTX_DECODE_H

#include "device/ptx/program.h"

/* A statement, as it is written: operands are values, {values}, [value + offset], or a label. */
typedef enum ptx_item_kind { PTX_VALUE, PTX_LIST, PTX_PLACE, PTX_LABEL } ptx_item_kind;

enum { PTX_MOST_ITEMS = 6, PTX_ANY_BITS = 0 /* of a number, and of the address of a variable */ };

typedef struct ptx_item {
    ptx_item_kind kind;
    uint32_t n;
    ptx_operand values[PTX_MOST_VALUES];
    uint32_t bits[PTX_MOST_VALUES];
    int64_t offset;
    ptx_space space; /* of a variable whose name it is; PTX_GENERIC: none */
    char label[PTX_NAME_BYTES];
} ptx_item;

typedef struct ptx_statement {
    char mnemonic[PTX_NAME_BYTES];
    uint32_t n_items;
    ptx_item items[PTX_MOST_ITEMS];
} ptx_statement;

/*
 * Fills in what the mnemonic and the operands say, but not the guard, the line and where a jump
 * goes; false: the instruction is unknown, or its operands do not fit, which `why` says.
 */
bool ptx_decode(const ptx_statement *statement, ptx_instruction *one_out, const char **why);

/* The width of a type such as "u32", in bits; predicates have 1. 0: there is no such type. */
uint32_t ptx_type_bits(const char *type, bool *is_signed_out);

#endif
