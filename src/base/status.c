/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include "base/print.h"

#include <stdio.h>
#include <string.h>

const char *ferry_status_name(ferry_status status)
{
    switch (status) {
#define FY_CASE(name, number, text)                                                                \
    case FERRY_##name:                                                                             \
        return #name;
        FERRY_STATUS_MAP(FY_CASE)
#undef FY_CASE
    }
    return "ERR_UNKNOWN";
}

const char *ferry_status_text(ferry_status status)
{
    switch (status) {
#define FY_CASE(name, number, text)                                                                \
    case FERRY_##name:                                                                             \
        return text;
        FERRY_STATUS_MAP(FY_CASE)
#undef FY_CASE
    }
    return "an unknown status";
}

/* The bytes of a character that a terminal would obey and not show; 0: the text begins with another
 * one. */
static size_t obeyed_bytes(const char *text)
{
    unsigned char first = (unsigned char)text[0];
    if (first < 0x20 || first == 0x7f) {
        return 1;
    }
    unsigned char second = (unsigned char)text[1];
    if (first == 0xc2 && second >= 0x80 && second < 0xa0) { /* controls of two bytes in UTF-8 */
        return 2;
    }
    /* U+2028 to U+202E and U+2066 to U+2069 end a line, or turn its direction. */
    unsigned char third = first != 0xe2 || second == 0 ? 0 : (unsigned char)text[2];
    return (second == 0x80 && third >= 0xa8 && third <= 0xae) ||
                   (second == 0x81 && third >= 0xa6 && third <= 0xa9)
               ? 3
               : 0;
}

/* Names come from files that nobody has checked: such a character must not reach a terminal. */
static void neutralise(char *text)
{
    while (*text != '\0') {
        size_t obeyed = obeyed_bytes(text);
        memset(text, '?', obeyed);
        text += obeyed > 0 ? obeyed : 1;
    }
}

ferry_status fy_fail(ferry_error *error, ferry_status status, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        int length = fy_vprint(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        if (length >= (int)sizeof error->message) {
            memcpy(error->message + sizeof error->message - 4, "...", 4);
        }
        neutralise(error->message);
    }
    return status;
}

ferry_status fy_forward(ferry_error *error, ferry_status status, const ferry_error *own)
{
    return status == FERRY_OK ? FERRY_OK : fy_fail(error, status, "%s", own->message);
}

ferry_status fy_fail_no_memory(ferry_error *error, const char *what)
{
    return fy_fail(error, FERRY_ERR_NO_MEMORY, "out of memory while allocating %s", what);
}

/* No struct of any version is longer: a size above is memory that nobody has initialised. */
enum { MOST_STRUCT_BYTES = 4096 };

ferry_status fy_copy_in(const void *given, size_t least_bytes, void *own, size_t own_bytes,
                        const char *what, const char *init, ferry_error *error)
{
    if (given == NULL) {
        return FERRY_OK;
    }
    size_t given_bytes;
    memcpy(&given_bytes, given, sizeof given_bytes);
    if (given_bytes < least_bytes || given_bytes > MOST_STRUCT_BYTES) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s has struct_size %zu, which no version of it has: make it with %s", what,
                       given_bytes, init);
    }
    for (size_t i = own_bytes; i < given_bytes; i++) {
        if (((const unsigned char *)given)[i] != 0) {
            return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                           "%s has struct_size %zu, and byte %zu of it is not 0; this library "
                           "knows the first %zu: leave the newer fields at 0, or run with the "
                           "library that the program was built for",
                           what, given_bytes, i, own_bytes);
        }
    }
    memcpy(own, given, given_bytes < own_bytes ? given_bytes : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return FERRY_OK;
}

ferry_status fy_check_out(const void *to, const char *what, ferry_error *error)
{
    size_t wanted = to == NULL ? 0 : *(const size_t *)to;
    return wanted >= sizeof(size_t) * 2
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_MISUSE, "%s needs its _INIT value: struct_size is %zu",
                         what, wanted);
}

ferry_status fy_copy_out(const void *from, size_t from_bytes, void *to, const char *what,
                         ferry_error *error)
{
    FY_TRY(fy_check_out(to, what, error));
    size_t wanted = *(const size_t *)to;
    size_t bytes = wanted < from_bytes ? wanted : from_bytes;
    memcpy(to, from, bytes);
    *(size_t *)to = wanted;
    return FERRY_OK;
}

void fy_before_callback(ferry_error *error)
{
    if (error != NULL) {
        error->message[0] = '\0';
    }
}

ferry_status fy_after_callback(ferry_status status, const char *what, ferry_error *error)
{
    if (status != FERRY_OK && error != NULL && error->message[0] == '\0') {
        return fy_fail(error, status, "the %s ended the call: %s", what, ferry_status_text(status));
    }
    return status;
}
