/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_ARGUMENTS_H
#define FERRY_TOOL_ARGUMENTS_H

#include <getopt.h>
#include <stdint.h>

/*
 * What commands do alike with their arguments. Each returns EXIT_DONE, or EXIT_USAGE after a
 * sentence on stderr, which begins with the command's name.
 */

/* Is handed each option; optarg is its value. */
typedef int (*apply_option_fn)(int option, void *request);

/* Options may stand anywhere; afterwards argv[optind] is the first argument that is none. */
int parse_options(const char *name, int argc, char **argv, const struct option *options,
                  apply_option_fn apply, void *request);

/* After getopt_long has returned ':' or '?': names the option that is wrong. */
int fail_option(const char *name, int option, char **argv);

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
