/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_ARGUMENTS_H
#define FERRY_TOOL_ARGUMENTS_H

#include <stdint.h>

/*
 * What commands do alike with their arguments. Each returns EXIT_DONE, or EXIT_USAGE after a
 * sentence on stderr, which begins with the command's name.
 */

/* A number from 1 to most. */
int parse_count(const char *name, const char *option, const char *text, uint32_t most,
                uint32_t *value_out);

/* A size of at least one byte. */
int parse_size(const char *name, const char *option, const char *text, uint64_t *bytes_out);

/* A size of at least one MiB, as buffers of files need. */
int parse_cap(const char *name, const char *option, const char *text, uint64_t *bytes_out);

/* Of one that reads and writes files, and of a copy service: what the library takes. */
enum { MOST_FILE_THREADS = 128, MOST_COPY_THREADS = 1024 };

#endif
