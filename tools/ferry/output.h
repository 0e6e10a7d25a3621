/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Files that options name, for what a command finds out. */
#ifndef FERRY_CLI_OUTPUT_H
#define FERRY_CLI_OUTPUT_H

#include <ferry/status.h>

#include <stdbool.h>
#include <stdio.h>

/*
 * Replaces the file at path, or behind a link there, by what fill writes to it, or leaves it as it
 * was. A device or a pipe is written to; so is what is open, where the path names a descriptor
 * (/dev/stdout, /dev/fd/5), and a file that is still to come behind a link.
 */
typedef ferry_status (*fill_file_fn)(const void *context, FILE *file, ferry_error *error);
ferry_status replace_file(const char *path, fill_file_fn fill, const void *context,
                          ferry_error *error);

/*
 * Refuses, before any work, a path where no file can be made, with the system's reason and
 * EXIT_FAILED; and as wrong usage one where another output goes, or the command's input is. path
 * may be NULL, for an option that was not given. Called once for each output; all paths stay until
 * the command ends.
 */
int check_output(const char *name, const char *option, const char *path);

/* A file that the command reads: none of its outputs may be that. */
void note_input(const char *path);

/* Whether this process may be the one that writes them: other ranks may be on other machines. */
bool may_write_outputs(bool joins);

#endif
