/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_TEXT_H
#define FERRY_TESTS_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A growing text, and a ferry_write_fn that fills one. All zero is an empty text. */
typedef struct text_buffer {
    char *bytes;
    size_t used;
    size_t capacity;
} text_buffer;

static inline void text_append(text_buffer *t, const char *bytes, size_t n_bytes)
{
    if (t->used + n_bytes + 1 > t->capacity) {
        t->capacity = (t->used + n_bytes + 1) * 2;
        t->bytes = realloc(t->bytes, t->capacity);
        if (t->bytes == NULL) {
            abort(); /* the test's own memory, not what is tested */
        }
    }
    memcpy(t->bytes + t->used, bytes, n_bytes);
    t->used += n_bytes;
    t->bytes[t->used] = '\0';
}

__attribute__((format(printf, 2, 3))) static inline void text_printf(text_buffer *t,
                                                                     const char *format, ...)
{
    char part[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(part, sizeof part, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof part) {
        abort();
    }
    text_append(t, part, (size_t)length);
}

static inline int text_write(void *context, const char *bytes, size_t n_bytes)
{
    text_append(context, bytes, n_bytes);
    return 0;
}

static inline void text_cleanup(text_buffer *t)
{
    free(t->bytes);
    *t = (text_buffer){0};
}

#endif
