/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_FORM_H
#define FY_CHECKPOINT_FORM_H

#include "base/status.h"
#include "base/writer.h"
#include "checkpoint/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The form of a safetensors file that ferry writes, a function of its tensors and metadata alone:
 * tensors by element size, largest first, then by name (bytes compare); data without holes, which
 * begin at a multiple of 8; the header is compact JSON, __metadata__ first with its keys in order,
 * and padded with spaces. Where all tensors have one dtype it is what the safetensors package
 * writes.
 */
typedef struct fy_form_tensor {
    const char *name;
    const char *dtype_text;
    uint32_t element_bits; /* opaque ones: those of the file's type, such as 6 */
    uint32_t n_dims;
    const uint64_t *shape;
    uint64_t bytes;
    uint64_t begin;    /* set by fy_form_arrange: in the data section */
    uint64_t checksum; /* set by the caller before the header is written */
    uint32_t tag;      /* the caller's own number for it */
} fy_form_tensor;

typedef struct fy_form {
    fy_form_tensor *tensors; /* the caller's */
    size_t n_tensors;
    const fy_st_entry *metadata; /* by ascending key; keys that begin with "ferry." are not here */
    size_t n_metadata;
    bool has_checksums; /* one for each tensor, under FY_CHECKSUM_KEY and its name */
    /* Set by fy_form_arrange. */
    uint64_t header_bytes; /* the length field, the JSON and its padding: where data begin */
    uint64_t data_bytes;
} fy_form;

/* Sorts the tensors (their names differ) and sets begins and sizes. FERRY_ERR_LIMIT: no reader
 * takes such a header. Checksums are not needed yet: they take as much room whatever they are. */
ferry_status fy_form_arrange(fy_form *form, const char *file_name, ferry_error *error);

/* Writes exactly header_bytes. */
void fy_form_write_header(const fy_form *form, fy_writer *writer);

/* Which part each of n tensors goes to, in the order given: a new one begins where bytes would
 * exceed part_bytes; a larger tensor has its own. Returns the number of parts, at least 1. */
uint32_t fy_form_parts(const uint64_t *bytes, size_t n, uint64_t part_bytes, uint32_t *part_out);

/* Parts count from 0: model-00001-of-00003.safetensors is part 0 of 3. model.safetensors where
 * there is one part. */
void fy_form_part_name(uint32_t part, uint32_t n_parts, char *name, size_t name_bytes);

/* rank-00000.safetensors. */
void fy_form_rank_name(uint32_t rank, char *name, size_t name_bytes);

/* model.safetensors.index.json: {"metadata":{"total_size":N},"weight_map":{...}}, tensors by name.
 * Fails for want of memory only; the writer is the caller's to finish. */
ferry_status fy_form_write_index(const char *const *names, const uint32_t *part, size_t n,
                                 uint32_t n_parts, uint64_t total_bytes, fy_writer *writer,
                                 ferry_error *error);

#endif
