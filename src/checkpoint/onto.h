/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_ONTO_H
#define FY_CHECKPOINT_ONTO_H

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/form.h"

/*
 * A result that is made onto an older one: what that holds already is read there, compared, and not
 * written. A file of the new result shares the old one's blocks from the begin where the file
 * system can (a clone). Else nothing is written to it before something differs, which then takes a
 * copy of the old one; a file in which nothing does becomes a second name of it, a hard link. The
 * old result is never written to.
 *
 * Files are numbered as those of the new result; both have as many, of equal names.
 */
typedef struct fy_onto fy_onto;

/* A file of the new result. */
typedef struct fy_onto_target {
    const char *name;
    const fy_form *form;
} fy_onto_target;
typedef fy_onto_target (*fy_onto_target_fn)(const void *context, size_t file);

/*
 * Opens the old result and holds it against the new one: the same files with the same tensors of
 * the same types and shapes at the same places. What does not fit is FERRY_ERR_INVALID_INPUT, with
 * its path; so is a file that is a link.
 */
ferry_status fy_onto_open(const char *path, bool is_sharded, size_t n_files,
                          fy_onto_target_fn target, const void *context, fy_pace *pace,
                          fy_onto **onto_out, ferry_error *error);
void fy_onto_close(fy_onto *onto); /* NULL is allowed */

/* The new files are there, and empty: those that can share blocks do from now on. */
ferry_status fy_onto_begin(fy_onto *onto, fy_files *out, ferry_error *error);

/* As fy_files_write, where the old file has something else. From several threads. *written_out says
 * how many bytes that were. */
ferry_status fy_onto_write(fy_onto *onto, size_t file, uint64_t offset, const void *bytes,
                           uint64_t n_bytes, uint64_t *written_out, ferry_error *error);

/* Bytes that were written before, from where they are: in the old file as long as nothing differs.
 */
ferry_status fy_onto_read(fy_onto *onto, size_t file, uint64_t offset, void *bytes,
                          uint64_t n_bytes, ferry_error *error);

/* Whether the new file is one of its own, so that it must be synced. */
bool fy_onto_is_own(const fy_onto *onto, size_t file);

/* Files in which nothing differs are old ones from now on, or copies of them. Once all is written,
 * by one thread. */
ferry_status fy_onto_finish(fy_onto *onto, int folder_fd, ferry_error *error);

/* What was not written, and files that are not the new result's alone. */
void fy_onto_count(const fy_onto *onto, uint64_t *kept_bytes_out, uint64_t *n_kept_files_out);

#endif
