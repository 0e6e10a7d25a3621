/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/print.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* The C library keeps this locale itself: making it costs no memory, and freeing it does nothing.
 */
static locale_t plain_locale(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

int fy_vprint(char *text, size_t n_bytes, const char *format, va_list arguments)
{
    locale_t plain = plain_locale();
    locale_t before = plain == (locale_t)0 ? (locale_t)0 : uselocale(plain); /* of this thread */
    int length = vsnprintf(text, n_bytes, format, arguments);
    if (plain != (locale_t)0) {
        uselocale(before);
        freelocale(plain);
    }
    return length;
}

int fy_print(char *text, size_t n_bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = fy_vprint(text, n_bytes, format, arguments);
    va_end(arguments);
    return length;
}

double fy_read_double(const char *text, char **end_out)
{
    locale_t plain = plain_locale();
    locale_t before = plain == (locale_t)0 ? (locale_t)0 : uselocale(plain);
    double number = strtod(text, end_out);
    if (plain != (locale_t)0) {
        uselocale(before);
        freelocale(plain);
    }
    return number;
}
