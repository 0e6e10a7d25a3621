/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_CLAIM_H
#define FY_CHECKPOINT_CLAIM_H

#include "base/status.h"

#include <stdbool.h>

/*
 * What stands for a lock in a folder of a file system without flock: a link FY_CLAIM_NAME that
 * leads nowhere, since making a link is the one step that makes a name with its text at once. The
 * text names the process that has made it, when that began, and its machine. One that succeeds a
 * dead process's has FY_CLAIM_NAME and a suffix for a name until it is in its place. Paths are for
 * sentences.
 */

/* Makes the claim, or takes that of a dead process over. FERRY_ERR_IO where another lives, or may
 * live on another machine. */
ferry_status fy_claim_take(int folder_fd, const char *path, ferry_error *error);

/* Removes the claim that this process has made, and what dead ones have left. */
void fy_claim_drop(int folder_fd);

/* Fails as fy_claim_take does where there is such a claim, and leaves none; a dead one goes. */
ferry_status fy_claim_refuse(int folder_fd, const char *path, ferry_error *error);

/* Whether there is none, or only that of a dead process. */
bool fy_claim_is_free(int folder_fd);

/* Whether a claim, or what succeeds one, has such a name. */
bool fy_claim_is_name(const char *name);

#endif
