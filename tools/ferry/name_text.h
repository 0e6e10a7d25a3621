/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_NAME_TEXT_H
#define FERRY_TOOL_NAME_TEXT_H

#include <stddef.h>
#include <stdio.h>

/*
 * A name from a file, for people: one question mark for each character that a terminal would obey
 * and not show. These are controls, and those of Unicode that end a line or turn its direction.
 */
void print_name(FILE *stream, const char *name);

/* The same of a text that goes on behind n_bytes. */
void print_name_part(FILE *stream, const char *text, size_t n_bytes);

#endif
