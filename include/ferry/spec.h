/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_SPEC_H
#define FERRY_SPEC_H

#include <ferry/export.h>
#include <ferry/status.h>
#include <ferry/writer.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * Two layouts of one model: a parsed ferry.spec/1 (docs/formats.md). Immutable once made; may be
 * used from several threads. A plan keeps its own reference, so the order of destruction is free.
 */
typedef struct ferry_spec ferry_spec;

/* Parses text. A spec that names a model file needs ferry_spec_load. name stands in error
 * sentences. */
FERRY_API ferry_status ferry_spec_parse(const char *text, size_t length, const char *name,
                                        ferry_spec **spec_out, ferry_error *error);

/* Reads a spec from a file, and the headers of the model that it names, relative to that file. */
FERRY_API ferry_status ferry_spec_load(const char *path, ferry_spec **spec_out, ferry_error *error);

/* Writes ferry.spec/1, with the headers of its model in place of the file's name. */
FERRY_API ferry_status ferry_spec_write_json(const ferry_spec *spec, ferry_write_fn write,
                                             void *context, ferry_error *error);

/* How many tensors the spec lists, repeated entries expanded. */
FERRY_API size_t ferry_spec_tensor_count(const ferry_spec *spec);

/* Gives the caller's reference back; NULL is allowed. */
FERRY_API void ferry_spec_destroy(ferry_spec *spec);

FERRY_END_DECLS

#endif
