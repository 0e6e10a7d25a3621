/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_ARGUMENTS_H
#define FERRY_TOOL_ARGUMENTS_H

#include "options.h"

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What commands do alike with their arguments. Each function that takes the command's name returns
 * EXIT_DONE, or EXIT_USAGE after a sentence on stderr, which begins with that name.
 */

/* A number from least to most. */
int parse_within(const char *name, const char *option, const char *text, uint32_t least,
                 uint32_t most, uint32_t *value_out);

/* A number from 1 to most. */
int parse_count(const char *name, const char *option, const char *text, uint32_t most,
                uint32_t *value_out);

/* A size of at least one byte. */
int parse_size(const char *name, const char *option, const char *text, uint64_t *bytes_out);

/* A size of at least one MiB, as buffers of files need. */
int parse_cap(const char *name, const char *option, const char *text, uint64_t *bytes_out);

/* "4096", "512K", "16M", "1G": at least 1. */
bool parse_bytes(const char *text, uint64_t *bytes_out);

/* One of the words that an option takes; a table of them ends with NULL. */
typedef struct option_word {
    const char *text;
    uint32_t value;
} option_word;

bool find_word(const option_word *words, const char *text, size_t length, uint32_t *value_out);
/* The sentence names all the words of the table. */
int parse_word(const char *name, const char *option, const option_word *words, const char *text,
               uint32_t *value_out);

/* What --cast says: a ferry_dtype_kind. */
int parse_cast(const char *name, const char *text, uint32_t *kind_out);

/* ---- options that several commands take: the same number, row and reader in each ---- */

enum {
    SHARED_OPT_REPLICA = 2048,
    SHARED_OPT_INCLUDE,
    SHARED_OPT_EXCLUDE,
    SHARED_OPT_SUBSET,
    SHARED_OPT_SLOT_BYTES,
    SHARED_OPT_NO_RELAYS,
    SHARED_OPT_TRANSPORT,
    SHARED_OPT_JOIN
};

/* clang-format off */
#define REPLICA_ROW                                                                               \
    OPTION_WORDS("balanced seed", "replica", "POLICY", SHARED_OPT_REPLICA,                        \
                 "how to choose among ranks that hold the same bytes: balanced (default), so "    \
                 "that the busiest sender sends as little as possible, or seed, the rule of the " \
                 "reference planner")
/* Of what: "destination tensors". */
#define PATTERN_ROWS(of_what)                                                                     \
    OPTION_LIST("include", "PATTERN", SHARED_OPT_INCLUDE,                                              \
           "only " of_what " whose names fit PATTERN (* is any text, ? one byte); more of them "    \
           "with commas between, or the option again"),                                           \
    OPTION_LIST("exclude", "PATTERN", SHARED_OPT_EXCLUDE,                                              \
           "leave out those whose names fit PATTERN; more of them likewise"),                     \
    OPTION_LIST("subset", "LIST", SHARED_OPT_SUBSET,                                                   \
           "the same as one list: patterns with commas between them; !PATTERN leaves out")
/* The end of the text says what is special to the command. */
#define SLOT_BYTES_ROW(more)                                                                      \
    OPTION("slot-bytes", "SIZE", SHARED_OPT_SLOT_BYTES,                                           \
           "the most bytes of a batch, at least an element's: a number, or one with K, M or G "   \
           "for KiB, MiB or GiB; default 16M" more)
#define NO_RELAYS_ROW                                                                             \
    OPTION("no-relays", NULL, SHARED_OPT_NO_RELAYS,                                               \
           "receivers pass nothing on: every byte comes from a rank that had it at the start")
#define TRANSPORT_ROW(more)                                                                       \
    OPTION_WORDS("shm ucx inproc", "transport", "ENGINE", SHARED_OPT_TRANSPORT,                   \
                 "what carries bytes between ranks: shm (shared memory) or ucx (networks), also " \
                 "with wrappers for tests, such as strict:shm; default the best for each pair" more)
#define INPROC_TEXT ". With inproc the ranks are threads of one process"
#define JOIN_ROW                                                                                  \
    OPTION("join", NULL, SHARED_OPT_JOIN,                                                         \
           "start no ranks: be one of a world that mpirun, srun or another launcher has started. "\
           "With RANK and WORLD_SIZE in the environment, as under ferry launch, this is so by "   \
           "itself")
/* clang-format on */

/*
 * Adds what --include, --exclude or --subset says to the process's only subset (the text that
 * ferry_plan_options takes), and sets *subset_out to it.
 */
int add_pattern(const char *name, int option, const char *value, const char **subset_out);

/* SHARED_OPT_REPLICA or one of the patterns, whose value is optarg. */
int apply_planning_option(const char *name, int option, ferry_plan_options *planning);

/* Of one that reads and writes files, and of a copy service: what the library takes. */
enum { MOST_FILE_THREADS = 128, MOST_COPY_THREADS = 1024 };

#endif
