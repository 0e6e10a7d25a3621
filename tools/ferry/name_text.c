/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "name_text.h"

#include <string.h>

/* The bytes of such a character in UTF-8, up to three; 0: the text begins with another one. */
static size_t obeyed_bytes(const unsigned char *at, size_t n_bytes)
{
    if (at[0] < 0x20 || at[0] == 0x7f) {
        return 1;
    }
    if (n_bytes >= 2 && at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0) {
        return 2;
    }
    /* U+2028 to U+202E, and U+2066 to U+2069 */
    return n_bytes >= 3 && at[0] == 0xe2 &&
                   ((at[1] == 0x80 && at[2] >= 0xa8 && at[2] <= 0xae) ||
                    (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9))
               ? 3
               : 0;
}

void print_name_part(FILE *stream, const char *text, size_t n_bytes)
{
    for (const char *end = text + n_bytes; text < end;) {
        size_t obeyed = obeyed_bytes((const unsigned char *)text, (size_t)(end - text));
        putc(obeyed > 0 ? '?' : *text, stream);
        text += obeyed > 0 ? obeyed : 1;
    }
}

void print_name(FILE *stream, const char *name)
{
    print_name_part(stream, name, strlen(name));
}
