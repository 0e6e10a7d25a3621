/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_LAYOUT_FILE_H
#define FY_CHECKPOINT_LAYOUT_FILE_H

#include "base/status.h"
#include "base/writer.h"

#include <jansson.h>

/*
 * ferry.layout/1: one side of a spec and the tensors that are placed so.
 *
 * Reads one: an object of mesh, first_rank or ranks, stages, rules, tensors and format, and no
 * other keys; what the members hold is for the spec's own reader. *tensors_out is NULL where there
 * are none; *side_out has the other keys but format. Both are the caller's.
 */
ferry_status fy_layout_parse(const char *text, size_t length, const char *name, json_t **side_out,
                             json_t **tensors_out, ferry_error *error);
ferry_status fy_layout_load(const char *path, json_t **side_out, json_t **tensors_out,
                            ferry_error *error);

/*
 * Writes one of a side, with tensors that the caller adds one by one between begin and end: number
 * counts them from 0, dtype is ferry's name. A line for each stage, rule and tensor. The caller
 * finishes the writer, and what could not be written is an error then.
 */
void fy_layout_write_begin(fy_writer *writer, const json_t *side);
void fy_layout_write_tensor(fy_writer *writer, size_t number, const char *name, const char *dtype,
                            const uint64_t *shape, uint32_t n_dims);
void fy_layout_write_end(fy_writer *writer);

#endif
