/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_OTHERS_H
#define FY_CHECKPOINT_OTHERS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * What lies in a checkpoint's folder beside its tensors: what of it is copied along into a result,
 * and what is not.
 */

/* Why a regular file of this name is not copied, a phrase that lives for ever; NULL: it is. Copies
 * of the weights in other formats would make a result twice as large, and contradict its layout. */
const char *fy_other_left_out(const char *name);

/*
 * Opens a file to be copied. A link is followed if what it leads to lies in the folder, or in the
 * blobs of the hub's cache that the folder is a snapshot of; who made another one may want files of
 * this host to be published. *descriptor_out is -1 for such a link, and of what is not a regular
 * file.
 */
ferry_status fy_other_open(int folder_fd, const char *name, const char *path, int *descriptor_out,
                           ferry_error *error);

/* Whether fy_other_open would follow this link; nothing that it leads to is opened. */
bool fy_other_link_stays(int folder_fd, const char *name);

/*
 * The text of a config.json in which every torch_dtype (or dtype) that names a floating type names
 * this one instead: of the model and of its parts ("text_config"), not of how it is quantized. All
 * other bytes stay. *text_out is for fy_free, or NULL where there is nothing to change. A text that
 * is no JSON is read as far as it looks like it.
 */
ferry_status fy_config_set_dtype(const char *text, size_t length, const char *dtype,
                                 char **text_out, size_t *length_out, ferry_error *error);

#endif
