/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

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

/* Names come from files that nobody has checked: a control character must not reach a terminal. */
static void neutralise(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || (unsigned char)*text == 0x7f) {
            *text = '?';
        }
    }
}

ferry_status fy_fail(ferry_error *error, ferry_status status, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        int length = vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        if (length >= (int)sizeof error->message) {
            memcpy(error->message + sizeof error->message - 4, "...", 4);
        }
        neutralise(error->message);
    }
    return status;
}

ferry_status fy_fail_no_memory(ferry_error *error, const char *what)
{
    return fy_fail(error, FERRY_ERR_NO_MEMORY, "out of memory while allocating %s", what);
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
    ferry_status status = fy_check_out(to, what, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t wanted = *(const size_t *)to;
    size_t bytes  = wanted < from_bytes ? wanted : from_bytes;
    memcpy(to, from, bytes);
    *(size_t *)to = wanted;
    return FERRY_OK;
}
