/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_PRINT_H
#define FY_BASE_PRINT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * snprintf, vsnprintf and strtod as they are in the C locale, whatever locale the program has set
 * for itself: under many of them 0.5 is printed and read as "0,5", which is no JSON and no value of
 * a variable. All text with numbers that have fractions goes through these.
 */
int fy_print(char *text, size_t n_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int fy_vprint(char *text, size_t n_bytes, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));

/* The number that text begins with; *end_out is behind it, or text if there is none. */
double fy_read_double(const char *text, char **end_out);

#endif
