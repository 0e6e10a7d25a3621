/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/writer.h"

#include "base/print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fy_writer_init(fy_writer *writer, ferry_write_fn write, void *context)
{
    writer->write = write;
    writer->context = context;
    writer->used = 0;
    writer->failed = false;
}

static void flush(fy_writer *writer)
{
    if (!writer->failed && writer->used > 0) {
        writer->failed = writer->write(writer->context, writer->bytes, writer->used) != 0;
    }
    writer->used = 0;
}

void fy_write_bytes(fy_writer *writer, const char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        size_t room = FY_WRITER_BYTES - writer->used;
        size_t now = n_bytes < room ? n_bytes : room;
        memcpy(writer->bytes + writer->used, bytes, now);
        writer->used += now;
        bytes += now;
        n_bytes -= now;
        if (writer->used == FY_WRITER_BYTES) {
            flush(writer);
        }
    }
}

void fy_write_text(fy_writer *writer, const char *text)
{
    fy_write_bytes(writer, text, strlen(text));
}

void fy_write_u64(fy_writer *writer, uint64_t value)
{
    char digits[20];
    char *first = digits + sizeof digits;
    do {
        *--first = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    fy_write_bytes(writer, first, (size_t)(digits + sizeof digits - first));
}

void fy_write_double(fy_writer *writer, double value)
{
    char text[40];
    for (int precision = 15; precision <= 17; precision++) {
        fy_print(text, sizeof text, "%.*g", precision, value);
        if (fy_read_double(text, NULL) == value) {
            break;
        }
    }
    fy_write_text(writer, text);
}

void fy_write_string(fy_writer *writer, const char *text)
{
    fy_write_bytes(writer, "\"", 1);
    const char *plain = text;
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        char escape[8];
        snprintf(escape, sizeof escape, "\\u%04x", c);
        fy_write_bytes(writer, plain, (size_t)(text - plain));
        fy_write_text(writer, escape);
        plain = text + 1;
    }
    fy_write_bytes(writer, plain, (size_t)(text - plain));
    fy_write_bytes(writer, "\"", 1);
}

ferry_status fy_writer_finish(fy_writer *writer, ferry_error *error)
{
    flush(writer);
    if (writer->failed) {
        return fy_fail(error, FERRY_ERR_IO, "the output could not be written");
    }
    return FERRY_OK;
}
