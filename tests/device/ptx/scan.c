/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/ptx/scan.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_of_word(char c)
{
    return isalnum((unsigned char)c) || (c != 0 && strchr("_$%.", c) != NULL);
}

static void skip_comment(ptx_scan *scan)
{
    bool is_line = scan->at[1] == '/';
    const char *end = strstr(scan->at + 2, is_line ? "\n" : "*/");
    end = end == NULL ? scan->at + strlen(scan->at) : end + (is_line ? 0 : 2);
    for (; scan->at < end; scan->at++) {
        scan->line += *scan->at == '\n';
    }
}

static void skip_space(ptx_scan *scan)
{
    for (;;) {
        if (scan->at[0] == '/' && (scan->at[1] == '/' || scan->at[1] == '*')) {
            skip_comment(scan);
        } else if (isspace((unsigned char)*scan->at)) {
            scan->line += *scan->at == '\n';
            scan->at++;
        } else {
            return;
        }
    }
}

/* How long the word is that begins here. */
static size_t word_length(const char *at)
{
    size_t n = 0;
    if (*at == '"') {
        const char *end = strchr(at + 1, '"');
        return end == NULL ? strlen(at) : (size_t)(end - at) + 1;
    }
    while (is_of_word(at[n]) || (at[n] == ':' && at[n + 1] == ':')) {
        n += at[n] == ':' ? 2 : 1;
    }
    return n > 0 ? n : 1;
}

bool ptx_scan_next(ptx_scan *scan)
{
    skip_space(scan);
    scan->word[0] = 0;
    size_t n = *scan->at == 0 ? 0 : word_length(scan->at);
    if (n == 0 || n >= sizeof scan->word) {
        return false;
    }
    memcpy(scan->word, scan->at, n);
    scan->word[n] = 0;
    scan->at += n;
    return true;
}

bool ptx_scan_sees(ptx_scan *scan, char sign)
{
    skip_space(scan);
    return *scan->at == sign;
}

bool ptx_scan_number(const char *word, uint64_t *number_out)
{
    char *end;
    bool is_float = word[0] == '0' && (word[1] == 'f' || word[1] == 'F');
    bool is_double = word[0] == '0' && (word[1] == 'd' || word[1] == 'D');
    if (!isdigit((unsigned char)word[0])) {
        return false;
    }
    if (is_float || is_double) { /* its bits */
        *number_out = strtoull(word + 2, &end, 16);
        return *end == 0 && strlen(word) == (is_float ? 10 : 18);
    }
    *number_out = strtoull(word, &end, 0);
    end += *end == 'U';
    return *end == 0;
}
