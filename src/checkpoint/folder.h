/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_FOLDER_H
#define FY_CHECKPOINT_FOLDER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * A folder that comes into being whole or not at all. It is filled under another name beside its
 * own (".NAME.ferry-partial"), locked while its writer lives, and renamed when it is synced. A name
 * that exists by then, in whatever form, is refused; so is one that another live run is writing.
 *
 * What a dead run has left is removed when the next begins, unless keep says that it may be gone on
 * with: then its files are there, *resumed_out is true, and the caller reads its journal. Left
 * files are kept only if all are plain files with one name; what is removed are files and links
 * (never what they point to), and a folder among them is an error: no run makes one.
 *
 * All zero is a folder that was not begun; fy_folder_end may be called with it.
 */
typedef struct fy_folder {
    char *path;    /* the final name, without slashes at its end; NULL: not begun */
    char *parent;  /* the folder that both lie in */
    char *partial; /* the path of the partial folder */
    int   parent_fd;
    int   fd;      /* of the partial folder */
    int   lock;    /* a file in it, held until the end */
    bool  is_done; /* committed: nothing of it may be removed any more */
} fy_folder;

/*
 * FERRY_ERR_IO where path exists, its parent does not, or another run lives; FERRY_ERR_LIMIT where
 * the partial folder's name would be too long. The folder is as it was then.
 */
ferry_status fy_folder_begin(const char *path, bool keep, fy_folder *folder, bool *resumed_out,
                             ferry_error *error);

/* Empties the partial folder (all but the lock): what was left does not fit. */
ferry_status fy_folder_clear(fy_folder *folder, ferry_error *error);

/*
 * Removes the journal, syncs the folder (its files are synced by who wrote them), renames it
 * without replacing, syncs the parent, and removes the lock last: it must hold off others until the
 * partial name is gone. A run that is killed between the last two leaves a whole result and the
 * lock in it.
 */
ferry_status fy_folder_commit(fy_folder *folder, ferry_error *error);

/* Ends it without a result. keep: leaves the partial folder for the next run. Also after commit. */
void fy_folder_end(fy_folder *folder, bool keep);

#define FY_LOCK_NAME ".ferry-lock"
#define FY_JOURNAL_NAME ".ferry-journal"

#endif
