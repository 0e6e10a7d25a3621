/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_RESHARD_FILES_H
#define FY_CHECKPOINT_RESHARD_FILES_H

#include "checkpoint/reshard.h"

/* What a run does to the partial folder, beside filling tensors in. */

/* Begins the journal of a run that may be gone on with, or goes on with one that fits. */
ferry_status fy_reshard_open_journal(fy_reshard_work *work, fy_leftover left, ferry_error *error);

/* Makes the result's files in their full sizes; a disk that is too small shows at once. */
ferry_status fy_reshard_make_files(fy_reshard_work *work, ferry_error *error);

/* Writes a file's header and syncs it. */
ferry_status fy_reshard_finish_file(fy_reshard_work *work, size_t file, ferry_error *error);

/* The layout file or the index. */
ferry_status fy_reshard_write_text(fy_reshard_work *work, ferry_error *error);

/* One of the source's other files, if it is to be copied; by a worker, in its window. */
ferry_status fy_reshard_copy_other(fy_reshard_work *work, uint32_t worker, size_t other,
                                   ferry_error *error);

#endif
