/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_SPEC_READ_H
#define FY_PROVE_SPEC_READ_H

#include "base/json.h"
#include "prove/spec.h"

/* What the files that read a spec share. All results live in the spec's arena. */

/* An array of whole numbers from least to most. */
ferry_status fy_proof_read_sizes(fy_proof_spec *spec, const json_t *json,
                                 const fy_json_place *place, uint64_t least, uint64_t most,
                                 const uint64_t **sizes_out, size_t *n_out, ferry_error *error);

/* At most FY_PROOF_DIMS numbers, aligned to the right; the dimensions before them become fill. */
ferry_status fy_proof_read_dims(const json_t *json, const fy_json_place *place, uint64_t fill,
                                uint64_t *dims_out, size_t *n_out, ferry_error *error);

/* A member that must be there and a text. */
ferry_status fy_proof_read_text(const json_t *object, const fy_json_place *place, const char *key,
                                const char **text_out, ferry_error *error);

/* The members "mesh" and "ranks" or "first_rank" of a side; the last two may be NULL. */
ferry_status fy_proof_read_mesh(fy_proof_spec *spec, const json_t *axes, const json_t *ranks,
                                const json_t *first_rank, const fy_json_place *place,
                                fy_proof_mesh *mesh, ferry_error *error);

/* "source" or "destination": mesh, ranks, stages and rules. */
ferry_status fy_proof_read_side(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_proof_side *side, ferry_error *error);

/* A side in boxes, once all tensors are there: "boxes" alone. side: its number. */
ferry_status fy_proof_read_memory(fy_proof_spec *spec, const json_t *json,
                                  const fy_json_place *place, int side, ferry_error *error);

/* No two boxes of a parameter share an element, and no element of a destination's lacks one. */
ferry_status fy_proof_check_parameter(const fy_proof_spec *spec, int side,
                                      const fy_proof_parameter *parameter, ferry_error *error);

ferry_status fy_proof_read_dtype(const char *text, const fy_json_place *place, ferry_dtype *dtype,
                                 ferry_error *error);

/* One entry of "shard"; with is_flat the value of "flat". Axes already used are an error. */
ferry_status fy_proof_read_cut(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                               const fy_json_place *place, bool is_flat, uint32_t *axes_used,
                               fy_proof_cut *cut, ferry_error *error);

/* The number of an axis of the mesh; one that *axes_used has is an error. */
ferry_status fy_proof_read_axis(const fy_proof_mesh *mesh, const char *name,
                                const fy_json_place *place, uint32_t *axes_used, size_t *axis_out,
                                ferry_error *error);

/* The value of "tensors". */
ferry_status fy_proof_read_tensors(fy_proof_spec *spec, const json_t *json,
                                   const fy_json_place *place, ferry_error *error);

/* "source" of an entry, whose shape and dtype are read. */
ferry_status fy_proof_read_source(fy_proof_spec *spec, const json_t *json,
                                  const fy_json_place *place, fy_proof_entry *entry,
                                  ferry_error *error);

/* Finds the source tensors of every tensor, once all are there. */
ferry_status fy_proof_link_sources(fy_proof_spec *spec, ferry_error *error);

/* Of tensors whose sources have sources: boxes of tensors that have none. All are linked. */
ferry_status fy_proof_follow_chains(fy_proof_spec *spec, ferry_error *error);

/* The names, shapes and dtypes of a safetensors file, an index file or a folder. */
ferry_status fy_proof_read_model(fy_proof_spec *spec, const char *path, ferry_error *error);

/* Fills volume and, without a source, the one box of the tensor itself; where names it. */
ferry_status fy_proof_finish_entry(fy_proof_spec *spec, fy_proof_entry *entry, const char *name,
                                   ferry_error *error);

/* A copy of the entry in the arena; NULL: out of memory. */
const fy_proof_entry *fy_proof_keep_entry(fy_proof_spec *spec, const fy_proof_entry *entry);

/* The name must live as long as the spec. */
ferry_status fy_proof_add_tensor(fy_proof_spec *spec, const char *name, const fy_proof_entry *entry,
                                 uint64_t number, ferry_error *error);

/* The name with {0}, {1} replaced for tensor number `number` of an entry; NULL: out of memory. */
const char *fy_proof_fill_name(fy_proof_spec *spec, const char *name, const fy_proof_entry *entry,
                               uint64_t number);

/* Rules and stages of every tensor on both sides, and whether they fit it. */
ferry_status fy_proof_place_tensors(fy_proof_spec *spec, ferry_error *error);

#endif
