/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A layout for people: the members of its JSON, and of lists of objects each in a line. */
#include "inspect.h"

#include "checkpoint_text.h"
#include "name_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct text_buffer {
    char *bytes;
    size_t length, capacity;
} text_buffer;

static int append(void *context, const char *bytes, size_t n_bytes)
{
    text_buffer *b = context;
    if (b->capacity - b->length <= n_bytes) {
        size_t capacity = (b->capacity + n_bytes + 1) * 2;
        char *grown = realloc(b->bytes, capacity);
        if (grown == NULL) {
            return -1;
        }
        b->bytes = grown;
        b->capacity = capacity;
    }
    memcpy(b->bytes + b->length, bytes, n_bytes);
    b->length += n_bytes;
    b->bytes[b->length] = '\0';
    return 0;
}

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* The end of the value at `at`: where a comma or bracket of what it stands in follows. */
static const char *find_end(const char *at)
{
    unsigned depth = 0;
    bool in_quote = false;
    for (; *at != '\0'; at++) {
        if (in_quote && *at == '\\' && at[1] != '\0') {
            at++;
        } else if (in_quote) {
            in_quote = *at != '"';
        } else if (*at == '"') {
            in_quote = true;
        } else if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == ',' || *at == '}' || *at == ']') {
            if (depth == 0) {
                break;
            }
            depth -= *at != ',';
        }
    }
    return at;
}

/* In one line, of at most so many bytes: one parameter of a side may have thousands of boxes. */
static void print_span(const char *begin, const char *end)
{
    enum { MOST_BYTES = 1000 };
    bool is_cut = end - begin > MOST_BYTES;
    end = is_cut ? begin + MOST_BYTES : end;
    while (is_cut && end > begin && ((unsigned char)*end & 0xc0) == 0x80) {
        end--; /* not within a character */
    }
    while (end > begin && strchr(" \t\r\n", end[-1]) != NULL) {
        end--;
    }
    while (begin < end) { /* blanks between values, and words that files may have chosen */
        const char *blank = begin + strcspn(begin, "\n\r\t");
        blank = blank < end ? blank : end;
        print_name_part(stdout, begin, (size_t)(blank - begin));
        begin = blank;
        for (; begin < end && strchr("\n\r\t", *begin) != NULL; begin++) {
            putchar(' ');
        }
    }
    fputs(is_cut ? " ...\n" : "\n", stdout);
}

enum { MOST_ENTRIES = 32, KEY_WIDTH = 12 };

static size_t count_entries(const char *list)
{
    size_t n = 0;
    for (const char *at = skip_space(list + 1), *end; (end = find_end(at)) > at; n++) {
        at = *end == ',' ? skip_space(end + 1) : end;
    }
    return n;
}

static void print_entries(const char *list)
{
    size_t n = count_entries(list);
    const char *at = skip_space(list + 1);
    for (size_t i = 0; i < n; i++) {
        const char *end = find_end(at);
        if (row_is_shown(i, n, MOST_ENTRIES)) {
            printf("%*s", i == 0 ? 0 : KEY_WIDTH + 2, "");
            print_span(at, end);
        } else {
            print_gap(i, n, MOST_ENTRIES);
        }
        at = *end == ',' ? skip_space(end + 1) : end;
    }
}

/* An object as ferry writes it: well formed. */
static void print_members(const char *object)
{
    const char *at = skip_space(object);
    at = *at == '{' ? skip_space(at + 1) : at;
    while (*at == '"') {
        const char *end = find_end(at);
        const char *colon = strchr(at, ':'); /* keys of layouts have none */
        if (colon == NULL || colon > end) {
            break;
        }
        const char *value = skip_space(colon + 1);
        printf("  %-*.*s", KEY_WIDTH, (int)(strcspn(at + 1, "\"")), at + 1);
        if (*value == '[' && *skip_space(value + 1) == '{') {
            print_entries(value);
        } else {
            print_span(value, end);
        }
        at = *end == ',' ? skip_space(end + 1) : end;
    }
}

ferry_status inspect_print_layout(const ferry_checkpoint *checkpoint, ferry_error *error)
{
    text_buffer text = {.bytes = NULL};
    ferry_status status = ferry_checkpoint_write_layout(checkpoint, append, &text, error);
    if (status == FERRY_OK && text.bytes != NULL) {
        printf("\nLayout:\n");
        print_members(text.bytes);
    }
    free(text.bytes);
    return status;
}
