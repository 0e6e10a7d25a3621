/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/stream.h"

#include "base/alloc.h"
#include "host/file.h"

#include <errno.h>
#include <string.h>

/* Far more than any one value of a plan that is taken as a tree. */
enum { MOST_VALUE_BYTES = 1 << 24 };

ferry_status fy_proof_stream_open(fy_proof_stream *stream, const char *path, ferry_error *error)
{
    uint64_t file_bytes;
    ferry_status status = fy_file_size(path, &file_bytes, error); /* and it is a regular file */
    if (status != FERRY_OK) {
        return status;
    }
    stream->file = fopen(path, "rbe");
    if (stream->file == NULL) {
        return fy_fail(error, FERRY_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    stream->path = path;
    stream->offset = 0;
    stream->used = 0;
    stream->filled = 0;
    stream->text = NULL;
    stream->length = 0;
    stream->capacity = 0;
    return FERRY_OK;
}

void fy_proof_stream_close(fy_proof_stream *stream)
{
    if (stream->file != NULL) {
        fclose(stream->file);
        fy_free(stream->text);
        stream->file = NULL;
    }
}

/* The byte at hand, or EOF. */
static int peek_byte(fy_proof_stream *stream)
{
    if (stream->used == stream->filled) {
        stream->offset += stream->filled;
        stream->used = 0;
        stream->filled = fread(stream->bytes, 1, sizeof stream->bytes, stream->file);
        if (stream->filled == 0) {
            return EOF;
        }
    }
    return (unsigned char)stream->bytes[stream->used];
}

static bool is_space(int byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

int fy_proof_stream_peek(fy_proof_stream *stream)
{
    int byte = peek_byte(stream);
    while (is_space(byte)) {
        stream->used++;
        byte = peek_byte(stream);
    }
    return byte;
}

static ferry_status fail_at(fy_proof_stream *stream, const char *wanted, ferry_error *error)
{
    if (ferror(stream->file)) {
        return fy_fail(error, FERRY_ERR_IO, "%s: cannot be read", stream->path);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: byte %llu: expected %s", stream->path,
                   (unsigned long long)(stream->offset + stream->used), wanted);
}

ferry_status fy_proof_stream_take(fy_proof_stream *stream, char wanted, ferry_error *error)
{
    char text[] = {'\'', wanted, '\'', '\0'};
    if (fy_proof_stream_peek(stream) != (unsigned char)wanted) {
        return fail_at(stream, text, error);
    }
    stream->used++;
    return FERRY_OK;
}

ferry_status fy_proof_stream_more(fy_proof_stream *stream, char closing, bool *more_out,
                                  ferry_error *error)
{
    *more_out = fy_proof_stream_peek(stream) == ',';
    return fy_proof_stream_take(stream, *more_out ? ',' : closing, error);
}

ferry_status fy_proof_stream_end(fy_proof_stream *stream, ferry_error *error)
{
    return fy_proof_stream_peek(stream) == EOF && !ferror(stream->file)
               ? FERRY_OK
               : fail_at(stream, "the end of the file", error);
}

/* Where a value ends is told by its quotes and brackets alone; jansson judges the rest. */
typedef struct scan {
    uint64_t depth;
    bool in_string;
    bool is_escaped;
    bool is_done;
} scan;

/* Looks at one byte of a value; false: the byte is behind the value. */
static bool scan_byte(scan *at, char byte)
{
    if (at->in_string) {
        if (at->is_escaped) {
            at->is_escaped = false;
        } else if (byte == '\\') {
            at->is_escaped = true;
        } else if (byte == '"') {
            at->in_string = false;
            at->is_done = at->depth == 0;
        }
        return true;
    }
    bool is_closing = byte == '}' || byte == ']';
    if (at->depth == 0 && (is_closing || byte == ',' || byte == ':' || is_space(byte))) {
        return false;
    }
    if (byte == '"') {
        at->in_string = true;
    } else if (byte == '{' || byte == '[') {
        at->depth++;
    } else if (is_closing) {
        at->is_done = --at->depth == 0;
    }
    return true;
}

static ferry_status keep_byte(fy_proof_stream *stream, char byte, ferry_error *error)
{
    if (stream->length == MOST_VALUE_BYTES) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%s: byte %llu: a value of more than %d bytes",
                       stream->path, (unsigned long long)(stream->offset + stream->used),
                       MOST_VALUE_BYTES);
    }
    FY_TRY(FY_GROW(stream->text, stream->capacity, stream->length + 1, "a value", error));
    stream->text[stream->length++] = byte;
    return FERRY_OK;
}

static ferry_status take_value(fy_proof_stream *stream, bool keep, ferry_error *error)
{
    scan at = {0};
    bool is_empty = true;
    stream->length = 0;
    fy_proof_stream_peek(stream);
    while (!at.is_done) {
        int byte = peek_byte(stream);
        if (byte == EOF && (at.depth > 0 || at.in_string)) {
            return fail_at(stream, "the rest of a value", error);
        }
        if (byte == EOF || !scan_byte(&at, (char)byte)) {
            break;
        }
        FY_TRY(keep ? keep_byte(stream, (char)byte, error) : FERRY_OK);
        stream->used++;
        is_empty = false;
    }
    return is_empty ? fail_at(stream, "a value", error) : FERRY_OK;
}

ferry_status fy_proof_stream_value(fy_proof_stream *stream, json_t **value_out, ferry_error *error)
{
    json_error_t reason;
    fy_proof_stream_peek(stream);
    uint64_t begin = stream->offset + stream->used;
    FY_TRY(take_value(stream, true, error));
    json_t *value =
        json_loadb(stream->text, stream->length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &reason);
    if (value == NULL && json_error_code(&reason) == json_error_out_of_memory) {
        return fy_fail_no_memory(error, "a value");
    }
    if (value == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: byte %llu: %s", stream->path,
                       (unsigned long long)begin + (unsigned long long)reason.position,
                       reason.text);
    }
    *value_out = value;
    return FERRY_OK;
}

ferry_status fy_proof_stream_skip(fy_proof_stream *stream, ferry_error *error)
{
    return take_value(stream, false, error);
}
