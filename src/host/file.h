/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_FILE_H
#define FY_HOST_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Reads a whole regular file of at most most_bytes into memory that fy_free gives back, zero ended.
 */
ferry_status fy_file_read(const char *path, uint64_t most_bytes, char **text_out,
                          size_t *length_out, ferry_error *error);

/* The same of a file of an open folder; path is for sentences. */
ferry_status fy_file_read_in(int folder_fd, const char *name, const char *path, uint64_t most_bytes,
                             char **text_out, size_t *length_out, ferry_error *error);

/*
 * Reads n_bytes from the file at offset, exactly; a file that ends early is an error that says so.
 */
ferry_status fy_file_read_at(const char *path, uint64_t offset, uint64_t n_bytes, char *bytes,
                             ferry_error *error);

/* Opens a regular file of an open folder for reading; path is for sentences. */
struct stat;
ferry_status fy_file_open_at(int folder_fd, const char *name, const char *path, int *descriptor_out,
                             struct stat *about_out, ferry_error *error);

/* Reads from one that is open; path is for sentences. */
ferry_status fy_file_read_exactly(int descriptor, const char *path, uint64_t offset,
                                  uint64_t n_bytes, char *bytes, ferry_error *error);

/* The number that a file of /sys or /proc consists of; 0 where there is none. */
uint64_t fy_file_number(const char *path);

ferry_status fy_file_size(const char *path, uint64_t *bytes_out, ferry_error *error);

/*
 * Writes a file so that a reader sees the old one or the whole new one: beside it first, synced,
 * then renamed. The writing is the caller's, through the stream. A link is followed to its file; a
 * device or a pipe is written to, and stays what it is; so is what is open, where the path names a
 * descriptor (/dev/stdout), and a file that is still to come behind a link.
 */
typedef ferry_status (*fy_file_fill_fn)(void *context, void *stream, ferry_error *error);
ferry_status fy_file_replace(const char *path, fy_file_fill_fn fill, void *context,
                             ferry_error *error);

/* fsync, which network file systems may break off for a signal. */
int fy_file_sync(int descriptor);

/* A ferry_write_fn whose context is a FILE. */
int fy_file_write(void *stream, const char *bytes, size_t n_bytes);

/* "PATH: WHAT: " and the reason of this errno; a full disk is called so. Returns FERRY_ERR_IO. */
ferry_status fy_fail_errno(const char *path, const char *what, int reason, ferry_error *error);

#endif
