/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_VERIFY_STREAM_H
#define FY_VERIFY_STREAM_H

#include "base/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { FY_PROOF_STREAM_BYTES = 1 << 16 };

/*
 * One JSON document, read value by value: the caller walks its outer objects and arrays, and takes
 * the values in them as small trees. So a document of any length costs constant memory.
 */
typedef struct fy_proof_stream {
    const char *path;
    FILE *file;
    uint64_t offset; /* of the buffer's first byte */
    size_t used;
    size_t filled;
    char *text; /* of the value at hand */
    size_t length;
    size_t capacity;
    char bytes[FY_PROOF_STREAM_BYTES];
} fy_proof_stream;

/* The path must outlive the stream. */
ferry_status fy_proof_stream_open(fy_proof_stream *stream, const char *path, ferry_error *error);
void fy_proof_stream_close(fy_proof_stream *stream);

/* The next byte that is no space, without taking it; EOF at the end of the file. */
int fy_proof_stream_peek(fy_proof_stream *stream);

/* Takes the next byte that is no space, which must be this one. */
ferry_status fy_proof_stream_take(fy_proof_stream *stream, char wanted, ferry_error *error);

/* Takes a value; the caller gives it back with json_decref. */
ferry_status fy_proof_stream_value(fy_proof_stream *stream, json_t **value_out, ferry_error *error);

/* Takes a value of any length and forgets it. */
ferry_status fy_proof_stream_skip(fy_proof_stream *stream, ferry_error *error);

/* Behind an element or member: takes a comma, or the closing byte, and says which. */
ferry_status fy_proof_stream_more(fy_proof_stream *stream, char closing, bool *more_out,
                                  ferry_error *error);

/* Nothing but spaces may be left. */
ferry_status fy_proof_stream_end(fy_proof_stream *stream, ferry_error *error);

#endif
