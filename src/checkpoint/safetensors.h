/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SAFETENSORS_H
#define FY_CHECKPOINT_SAFETENSORS_H

#include "base/alloc.h"
#include "base/index.h"
#include "base/status.h"

#include <ferry/dtype.h>
#include <ferry/plan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The header of a safetensors file: eight bytes of length, that many bytes of JSON, then the data.
 * Nothing in it is trusted: lengths against the file, offsets against each other and the shapes.
 * It is parsed in one pass into records of some hundred bytes: files have hundreds of thousands of
 * tensors.
 */
typedef struct fy_st_tensor {
    const char *name;       /* in the header's arena, as all texts here */
    const char *dtype_text; /* the file's own word; one text for all tensors that have it */
    ferry_dtype dtype;      /* bytes:N where ferry has no name for it; see is_opaque */
    bool is_opaque;         /* elements are no whole bytes: dtype is bytes:1, not to be cut (F6) */
    bool has_checksum;      /* set by who knows what stands in the metadata */
    uint32_t n_dims;
    const uint64_t *shape;
    uint64_t begin; /* in the data section */
    uint64_t end;
    uint64_t checksum;
} fy_st_tensor;

typedef struct fy_st_entry {
    const char *key;
    const char *value;
} fy_st_entry;

typedef struct fy_st_header {
    fy_arena arena;
    fy_arena texts;        /* of the metadata: who has read them may drop them */
    fy_st_tensor *tensors; /* by ascending begin; empty ones before the one that begins there */
    size_t n_tensors, capacity;
    fy_index names;
    fy_st_entry *metadata; /* __metadata__, by ascending key */
    size_t n_metadata, metadata_capacity;
    uint64_t data_begin; /* in the file */
    uint64_t data_bytes;
} fy_st_header;

/* The header that a file of this text and so many bytes of data has. name stands in errors. */
ferry_status fy_st_parse(const char *text, size_t length, uint64_t data_bytes, const char *name,
                         fy_st_header *header, ferry_error *error);

/*
 * Of a file of an open folder, or AT_FDCWD; with what the file system says of the very file that
 * was read. path is for sentences.
 */
struct stat;
ferry_status fy_st_read_at(int folder_fd, const char *name, const char *path, fy_st_header *header,
                           struct stat *about_out, ferry_error *error);

/* NULL: there is none of this name. */
const fy_st_tensor *fy_st_find(const fy_st_header *header, const char *name);

void fy_st_cleanup(fy_st_header *header);

#endif
