/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_PTX_SCAN_H
#define FERRY_TESTS_DEVICE_PTX_SCAN_H

#include "device/ptx/program.h"

/* Words of PTX, without comments: names with their dots, numbers, strings, and single signs. */
typedef struct ptx_scan {
    const char *at;
    uint32_t line;
    char word[PTX_NAME_BYTES]; /* the last one; empty: that was the end, or a word too long */
} ptx_scan;

/* The next word; false: there is none. */
bool ptx_scan_next(ptx_scan *scan);
/* Whether the next word begins with that sign; it is not taken. */
bool ptx_scan_sees(ptx_scan *scan, char sign);
/* A number as the word has it; false: it is none. */
bool ptx_scan_number(const char *word, uint64_t *number_out);

#endif
