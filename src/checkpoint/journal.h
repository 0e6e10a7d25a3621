/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_JOURNAL_H
#define FY_CHECKPOINT_JOURNAL_H

#include "base/hash.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a reshard has done, in a file of its partial folder, so that another run can go on: first
 * the key of the reshard (hashes of all that its bytes depend on), then a record for each task
 * that is done: its number and the checksums of what it wrote. Records are appended with one write
 * each and guarded by a checksum; what is torn or damaged ends the journal and everything behind it
 * counts as not done. A record says that data were written, not that they were synced: who resumes
 * reads them again and compares their checksums.
 */
typedef struct fy_journal {
    int fd; /* -1: none */
} fy_journal;

/* All that the bytes written depend on, in parts, so that a run that starts anew can say why. */
enum {
    FY_KEY_PROGRAM,       /* the version that wrote it */
    FY_KEY_SOURCE_FILES,  /* their names, sizes, times and inodes */
    FY_KEY_SOURCE_LAYOUT, /* as it was understood */
    FY_KEY_TARGET,        /* as it was resolved */
    FY_KEY_OPTIONS,
    FY_KEY_PARTS
};

typedef struct fy_journal_key {
    fy_hash128 part[FY_KEY_PARTS];
} fy_journal_key;

/* A record has no more values than this: what a damaged one claims is bounded so. */
enum { FY_JOURNAL_MOST_VALUES = 1 << 20 };

/* One record, as it is read back; values live until the visit ends. */
typedef ferry_status (*fy_journal_visitor)(void *context, uint64_t task, const uint64_t *values,
                                           size_t n_values, ferry_error *error);

/* Makes the journal anew in a folder; one that is there is removed. */
ferry_status fy_journal_create(int folder_fd, const fy_journal_key *key, fy_journal *journal,
                               ferry_error *error);

/*
 * Reads the journal that is there, visits its records, cuts it behind the last whole one and opens
 * it to go on. Where there is none that fits, the journal is closed and *misfit_out a phrase that
 * says why ("the layout of the source has changed"), which lives for ever; else it is NULL. A
 * visitor that fails ends the call with its status, and the journal is as it was.
 */
ferry_status fy_journal_resume(int folder_fd, const fy_journal_key *key, fy_journal_visitor visitor,
                               void *context, fy_journal *journal, const char **misfit_out,
                               ferry_error *error);

/*
 * May be called from several threads. After an error (the disk is full) records may be lost that
 * are appended later, for a torn one may stand before them.
 */
ferry_status fy_journal_append(const fy_journal *journal, uint64_t task, const uint64_t *values,
                               size_t n_values, ferry_error *error);

/* NULL and one that is closed, {.fd = -1}, are allowed. */
void fy_journal_close(fy_journal *journal);

#endif
