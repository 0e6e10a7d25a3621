/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_CHECKPOINT_H
#define FY_CHECKPOINT_CHECKPOINT_H

#include "base/alloc.h"
#include "base/index.h"
#include "checkpoint/safetensors.h"

#include <ferry/checkpoint.h>

#include <jansson.h>

/*
 * A checkpoint that is open: its files' headers, and its tensors as one model. Immutable once open;
 * several threads may read it. Files are opened by those who read data, in the folder that is open.
 */
typedef struct fy_ckpt_file {
    char *path;       /* to open it */
    const char *name; /* within the folder: the end of path */
    uint64_t bytes;
    int64_t changed_s, changed_ns; /* st_mtim when it was opened */
    int64_t touched_s, touched_ns; /* st_ctim then */
    uint64_t inode;
    uint32_t rank; /* sharded: whose it is; logical: 0 */
    fy_st_header header;
} fy_ckpt_file;

/* What else lies in its folder. */
typedef struct fy_ckpt_other {
    char *name; /* of a folder with a slash behind it */
    uint64_t bytes;
    bool is_folder;
    const char *left_out; /* why it is not copied along with the tensors; NULL: it is */
} fy_ckpt_other;

/* A tensor of the model, whole: as the headers of a logical checkpoint, or the layout file, say. */
typedef struct fy_ckpt_tensor {
    const char *name;
    const char *dtype_text; /* the files' own word; NULL where no file lists it */
    ferry_dtype dtype;
    bool is_opaque; /* then bytes:1 in one dimension here, not to be cut; file_shape has its
                       own */
    uint32_t n_dims;
    const uint64_t *shape;
    uint32_t file_n_dims; /* as files write it; differs from shape only if opaque */
    const uint64_t *file_shape;
    uint32_t file; /* logical: the file that has it, and where in its header */
    uint32_t entry;
} fy_ckpt_tensor;

struct ferry_checkpoint {
    char *path;    /* as it was given, without slashes at its end */
    char *folder;  /* where its files lie, for sentences */
    int folder_fd; /* the same, wherever the process or the folder is moved */
    bool is_sharded;
    bool is_folder; /* other files lie there and belong to it */
    fy_arena arena;
    fy_ckpt_file *files; /* logical: by name; sharded: in the order of the mesh's ranks */
    size_t n_files, file_capacity;
    fy_ckpt_tensor
        *tensors; /* logical: file by file, by offset; sharded: as the layout lists them */
    size_t n_tensors, tensor_capacity;
    fy_index names;
    fy_st_entry *metadata; /* of all files, without keys that begin with "ferry."; by key */
    size_t n_metadata, metadata_capacity;
    json_t *layout;         /* sharded: ferry.layout.json without its tensors; else NULL */
    struct fy_boxed *boxed; /* instead of it, where files hold parameters made of boxes */
    char *layout_path;      /* of that file, for sentences */
    fy_ckpt_other *others;  /* sorted by name */
    size_t n_others, other_capacity;
    /* While it is opened: who is told, and how many files there will be. */
    ferry_work_progress_fn progress;
    void *progress_context;
    size_t n_expected;
    double began;
};

/* The number of the tensor of this name, or FY_INDEX_NONE. */
uint32_t fy_ckpt_find(const ferry_checkpoint *checkpoint, const char *name);

/*
 * The keys under which checksums stand in a rank file's metadata: this, then the tensor's name. The
 * value is XXH3 (64 bits) of the local tensor's bytes as 16 hex digits. When a sharded checkpoint
 * is open they are in the tensors of its headers, and no metadata any more.
 */
#define FY_CHECKSUM_KEY "ferry.xxh3."
#define FY_LAYOUT_NAME "ferry.layout.json"
#define FY_INDEX_NAME "model.safetensors.index.json"
#define FY_SINGLE_NAME "model.safetensors"
#define FY_CONFIG_NAME "config.json"

#endif
