/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_SPEC_H
#define FERRY_SPEC_H

#include <ferry/export.h>
#include <ferry/status.h>
#include <ferry/writer.h>

#include <stdbool.h>
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

/*
 * What a side on a mesh says and no tensor follows, which is mostly a slip in a pattern: a rule or
 * a stage that fits none, a rule all of whose tensors rules before it take, or coordinates of a
 * stage's axis that it puts no tensor on. Not among them are rules for any name ("*"), and
 * coordinates for which "sizes" says 0. And rates of a node of the cluster that no rank is on.
 */
typedef struct ferry_unused {
    bool is_destination;
    bool is_stage;
    bool is_node;      /* of the cluster's "nodes", and of no side */
    size_t index;      /* in the side's "rules" or "stages"; of a node its number */
    const char *match; /* its pattern, which lives as long as the spec; NULL of a node */
    bool is_hidden;    /* of a rule: tensors fit it, and rules before it take them all */
    const char *axis;  /* of a stage: it puts nothing on these coordinates of it; NULL: anywhere */
    uint32_t first_coordinate;
    uint32_t n_coordinates;
} ferry_unused;

/* Anything but FERRY_OK ends the visit, which then returns that. */
typedef ferry_status (*ferry_unused_visitor)(void *context, const ferry_unused *unused);

/* The source comes first, and of a side its rules; nodes come last. */
FERRY_API ferry_status ferry_spec_visit_unused(const ferry_spec *spec, ferry_unused_visitor visitor,
                                               void *context, ferry_error *error);

/* Gives the caller's reference back; NULL is allowed. */
FERRY_API void ferry_spec_destroy(ferry_spec *spec);

FERRY_END_DECLS

#endif
