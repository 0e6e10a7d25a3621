/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_FOLDER_H
#define FY_CHECKPOINT_FOLDER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * A folder that comes into being whole or not at all. It is filled under another name beside its
 * own (".NAME.ferry-partial"), locked while its writer lives, and renamed when it is synced. A name
 * that exists by then, in whatever form, is refused; so is one that another live run is writing,
 * and a partial folder that another user has made or could write into: it would become the result.
 *
 * What a dead run has left is removed when the next begins, unless keep says that it may be gone on
 * with: then its files are there, *left_out is FY_LEFT_FILES, and the caller reads its journal.
 * Left files are kept only if all are plain files of this user with one name; what is removed are
 * files and links (never what they point to), and a folder among them is an error: no run makes
 * one.
 *
 * The lock is flock on a file. Where a file system has none, it is a claim: a link that leads
 * nowhere and whose text says which process of which machine has made it. The claim of a process
 * that has died on this machine is taken over; of another machine nobody can know.
 *
 * All zero is a folder that was not begun; fy_folder_end may be called with it.
 */
typedef struct fy_folder {
    char *path;    /* the final name, without slashes at its end; NULL: not begun */
    char *parent;  /* the folder that both lie in */
    char *partial; /* the path of the partial folder */
    int parent_fd;
    int fd;       /* of the partial folder */
    int lock;     /* a file in it, held until the end */
    bool is_made; /* the partial folder, by this run */
    bool has_claim;
    bool is_done; /* committed: nothing of it may be removed any more */
} fy_folder;

typedef enum fy_leftover {
    FY_LEFT_NOTHING,
    FY_LEFT_FILES,  /* of a run that may be gone on with */
    FY_LEFT_STRANGE /* there was something else; all of it was removed */
} fy_leftover;

/*
 * FERRY_ERR_IO where path exists, its parent does not, or another run lives; FERRY_ERR_LIMIT where
 * the partial folder's name would be too long. The folder is as it was then, but for one thing: a
 * result that was killed behind its rename loses what the run has left in it.
 */
ferry_status fy_folder_begin(const char *path, bool keep, fy_folder *folder, fy_leftover *left_out,
                             ferry_error *error);

/* What fy_folder_begin would say of the path alone. */
ferry_status fy_folder_check(const char *path, ferry_error *error);

/* Whether the partial folder of path is there, and a journal in it. */
bool fy_folder_has_journal(const char *path);

/* Empties the partial folder (all but the lock): what was left does not fit. */
ferry_status fy_folder_clear(fy_folder *folder, ferry_error *error);

/* The same for all files that keeps(context, name) does not want. */
typedef bool (*fy_folder_keeps_fn)(const void *context, const char *name);
ferry_status fy_folder_keep_only(fy_folder *folder, fy_folder_keeps_fn keeps, const void *context,
                                 ferry_error *error);

/*
 * Syncs the folder (its files are synced by who wrote them), renames it without replacing and syncs
 * the parent. Only then go the journal, which whoever comes after a failure until here needs, and
 * the lock last: it must hold off others until the partial name is gone. A run that is killed
 * between leaves a whole result with these in it, which no reader takes for its own; the next run
 * to that name removes them.
 */
ferry_status fy_folder_commit(fy_folder *folder, ferry_error *error);

/* Ends it without a result. keep: leaves the partial folder for the next run. Also after commit. */
void fy_folder_end(fy_folder *folder, bool keep);

#define FY_LOCK_NAME ".ferry-lock"
#define FY_CLAIM_NAME ".ferry-claim"
#define FY_JOURNAL_NAME ".ferry-journal"

#endif
