/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_OPEN_H
#define FY_CHECKPOINT_OPEN_H

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "model/side.h"

/*
 * The steps of opening, one file each. A checkpoint is filled step by step; after a failure the
 * caller destroys it. While it is opened, `others` holds all that its folder has.
 */

/* "FOLDER/FILE", for fy_free; NULL: no memory. */
char *fy_ckpt_join(const char *folder, const char *file);

/* Lists the folder's regular files and folders into others, sorted. */
ferry_status fy_ckpt_list(ferry_checkpoint *checkpoint, ferry_error *error);
/* Whether the folder has a regular file of this name. */
bool fy_ckpt_lists(const ferry_checkpoint *checkpoint, const char *name);
bool fy_ckpt_is_safetensors(const char *name);
/* Leaves in others what is to be copied along, and what somebody might miss in a result: not the
 * checkpoint's own files and nothing that describes them. */
void fy_ckpt_keep_others(ferry_checkpoint *checkpoint);

/* Reads the header of a file of the folder, the path of which becomes the checkpoint's. */
ferry_status fy_ckpt_add_file(ferry_checkpoint *checkpoint, char *path, uint32_t rank,
                              ferry_error *error);
/* Room for n_more tensors. */
ferry_status fy_ckpt_reserve(ferry_checkpoint *checkpoint, size_t n_more, ferry_error *error);
/* *twin_out is the number of the tensor that has the name already, else FY_INDEX_NONE. */
ferry_status fy_ckpt_add_tensor(ferry_checkpoint *checkpoint, const fy_ckpt_tensor *tensor,
                                uint32_t *twin_out, ferry_error *error);

/* The tensors of all files of a logical checkpoint, once all those are there. */
ferry_status fy_ckpt_add_all_tensors(ferry_checkpoint *checkpoint, ferry_error *error);

ferry_status fy_ckpt_open_file(ferry_checkpoint *checkpoint, ferry_error *error);
ferry_status fy_ckpt_open_index(ferry_checkpoint *checkpoint, const char *path, ferry_error *error);
/* All safetensors files of the folder, or the one of this name. */
ferry_status fy_ckpt_open_all(ferry_checkpoint *checkpoint, const char *only, ferry_error *error);
ferry_status fy_ckpt_open_sharded(ferry_checkpoint *checkpoint, ferry_error *error);
/* Whose layout is in boxes, and lists the tensors that there are; takes the side over. */
ferry_status fy_ckpt_open_boxed(ferry_checkpoint *checkpoint, ferry_side *side, ferry_error *error);
/* The file of a rank, without what a layout in boxes says of it. */
ferry_status fy_ckpt_add_rank(ferry_checkpoint *checkpoint, uint32_t rank, ferry_error *error);

/* The metadata of all files as one. */
ferry_status fy_ckpt_merge_metadata(ferry_checkpoint *checkpoint, ferry_error *error);

#endif
