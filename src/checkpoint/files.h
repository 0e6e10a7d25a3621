/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_FILES_H
#define FY_CHECKPOINT_FILES_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/pace.h"

/*
 * Files that several threads read or write: opened when they are first needed, and closed when too
 * many are open, since there may be thousands of ranks and few descriptors.
 */
typedef struct fy_files fy_files;

/* The files of a checkpoint, for reading: each must be as it was when the checkpoint was opened. */
ferry_status fy_files_of(const ferry_checkpoint *checkpoint, fy_files **files_out,
                         ferry_error *error);

/* n files of an open folder that are made, or gone on with; name(context, i) is copied. The
 * folder's path is for sentences. */
typedef const char *(*fy_file_name_fn)(const void *context, size_t i);
ferry_status fy_files_make(int folder_fd, const char *folder, size_t n, fy_file_name_fn name,
                           const void *context, fy_files **files_out, ferry_error *error);

void fy_files_destroy(fy_files *files); /* NULL is allowed */

/* What is read, written and copied (which is both) is taken from this from now on. */
void fy_files_set_pace(fy_files *files, fy_pace *pace);

/* They may get other names meanwhile, and lose them: that counts as no change. */
void fy_files_allow_links(fy_files *files);

/* Whether those that were read are still as they were; for the end of the work. */
ferry_status fy_files_check_unchanged(const fy_files *files, ferry_error *error);

/* Whether one of those that were read is known to have been changed: what cannot be looked at is
 * not. */
bool fy_files_were_changed(const fy_files *files);

const char *fy_files_path(const fy_files *files, size_t i);

/* A descriptor that stays open until it is put back. */
ferry_status fy_files_get(fy_files *files, size_t i, int *descriptor_out, ferry_error *error);
void fy_files_put(fy_files *files, size_t i);

/* All n_bytes at offset. A file that ends before them was cut while it was read. */
ferry_status fy_files_read(fy_files *files, size_t i, uint64_t offset, void *bytes,
                           uint64_t n_bytes, ferry_error *error);
ferry_status fy_files_write(fy_files *files, size_t i, uint64_t offset, const void *bytes,
                            uint64_t n_bytes, ferry_error *error);

/*
 * From one file to another within the kernel. *copied_out is false where the two file systems
 * cannot do that, and nothing was written that matters.
 */
ferry_status fy_files_copy(fy_files *from, size_t i, uint64_t from_offset, fy_files *to, size_t j,
                           uint64_t to_offset, uint64_t n_bytes, bool *copied_out,
                           ferry_error *error);

#endif
