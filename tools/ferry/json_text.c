/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "json_text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* How many bytes the character at text has; 0: these bytes are not UTF-8. */
static size_t character_bytes(const unsigned char *text)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned first = text[0];
    size_t n = first < 0x80             ? 1
               : (first & 0xe0) == 0xc0 ? 2
               : (first & 0xf0) == 0xe0 ? 3
               : (first & 0xf8) == 0xf0 ? 4
                                        : 0;
    unsigned code = n > 1 ? first & (0x7fu >> n) : first;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) { /* also at the end of the text */
            return 0;
        }
        code = code << 6 | (text[i] & 0x3fu);
    }
    bool surrogate = code >= 0xd800 && code < 0xe000;
    return n > 1 && (code < least[n] || code > 0x10ffff || surrogate) ? 0 : n;
}

void write_json_text(FILE *file, const char *text)
{
    if (text == NULL) {
        fputs("null", file);
        return;
    }
    putc('"', file);
    while (*text != '\0') {
        size_t n = character_bytes((const unsigned char *)text);
        if (n == 0) {
            fputs("\\ufffd", file);
            n = 1;
        } else if (n == 1 && (*text == '"' || *text == '\\')) {
            fprintf(file, "\\%c", *text);
        } else if (n == 1 && (unsigned char)*text < 0x20) {
            fprintf(file, "\\u%04x", (unsigned)*text);
        } else {
            fwrite(text, 1, n, file);
        }
        text += n;
    }
    putc('"', file);
}

void print_json_text(const char *text)
{
    write_json_text(stdout, text);
}
