/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_MAPPED_FILE_H
#define FY_TRANSPORT_MAPPED_FILE_H

#include "base/status.h"

#include <stdint.h>

/*
 * Files in memory that processes share: sealed, so that their length never changes and no access to
 * a mapping of one ends in a signal.
 */

/*
 * A file of that many bytes, a multiple of its pages. No page is there yet. what names the memory
 * in sentences; name is the file's, as /proc shows it.
 */
ferry_status fy_shared_file_make(const char *name, const char *what, uint64_t bytes, int *fd_out,
                                 ferry_error *error);

/*
 * The same of huge pages, all of which are promised to it, or -1: the machine's pool has too few.
 * bytes is a multiple of FY_HUGE_BYTES.
 */
int fy_shared_file_make_huge(const char *name, const char *what, uint64_t bytes);

/* What its pages have, or 0 where it cannot be told; bytes_out may be NULL. */
uint64_t fy_shared_file_page_bytes(int fd, uint64_t *bytes_out);

/* Maps it from its beginning, where a huge page begins if it is large; NULL and errno. */
char *fy_shared_file_map(int fd, uint64_t bytes);

#endif
