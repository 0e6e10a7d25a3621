/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_JSON_TEXT_H
#define FERRY_TOOL_JSON_TEXT_H

#include <stdio.h>

/* The text as a JSON string, quotes included; NULL is null. What is no UTF-8 becomes U+FFFD. */
void write_json_text(FILE *file, const char *text);
/* The same on stdout. */
void print_json_text(const char *text);

#endif
