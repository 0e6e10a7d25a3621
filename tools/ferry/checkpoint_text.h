/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_CHECKPOINT_TEXT_H
#define FERRY_TOOL_CHECKPOINT_TEXT_H

#include <ferry/checkpoint.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ferry's name of an element type ("f8e4m3") for a safetensors word ("F8_E4M3"), or the word. */
const char *dtype_name(const char *word);

/* Room for the shape of any tensor. */
enum { SHAPE_TEXT_BYTES = FERRY_MAX_DIMS * 24 };

/* "4096 x 128"; "scalar" without dimensions. Returns text. */
const char *format_shape(const uint64_t *shape, uint32_t n_dims, char text[SHAPE_TEXT_BYTES]);

/*
 * The rows of a table that are printed: all of a few, of many the first and the last. A row is
 * printed if row_is_shown; the first that is not says how many are left out.
 */
bool row_is_shown(size_t index, size_t n, size_t most);
/* "  ... 112 more ..." where the first row is left out; nothing at others. */
void print_gap(size_t index, size_t n, size_t most);

/* The table of a checkpoint's files, or of those that a reshard would write. */
typedef ferry_status (*file_at_fn)(const void *of, size_t index, ferry_checkpoint_file *file_out,
                                   ferry_error *error);
ferry_status print_files(const void *of, file_at_fn at, size_t n_files, bool is_sharded,
                         ferry_error *error);

#endif
