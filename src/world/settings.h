/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_SETTINGS_H
#define FY_WORLD_SETTINGS_H

#include "base/status.h"
#include "world/interrupt.h"

#include <ferry/world.h>

#include <stdint.h>

/* The options of a world with the variables and defaults filled in. Texts are copies. */
typedef struct fy_settings {
    int64_t deadline_ns;
    int64_t entry_ns; /* negative: no limit */
    int64_t join_ns;
    char *secret;            /* NULL: none was given */
    char *nodes;             /* NULL: real ones */
    char *host;              /* NULL: found out */
    fy_interrupt *interrupt; /* NULL: none; what it holds changes, whoever has the settings */
} fy_settings;

ferry_status fy_settings_init(fy_settings *settings, const ferry_world_options *options,
                              ferry_error *error);
/* For a world made from another one. */
ferry_status fy_settings_copy(const fy_settings *from, fy_settings *to_out, ferry_error *error);
void fy_settings_cleanup(fy_settings *settings); /* wipes the secret */

/*
 * Which of the faked nodes a rank is on, by the text of `nodes`: "2" is two nodes of (almost) equal
 * size by the chunk rule, none of them empty, but that one rank alone is on the first of any
 * number; "3,5" gives sizes, which sum to n_ranks.
 */
ferry_status fy_settings_fake_node(const char *nodes, uint32_t rank, uint32_t n_ranks,
                                   uint32_t *node_out, ferry_error *error);
/* The last of the faked nodes, on which newcomers are. */
ferry_status fy_settings_last_node(const char *nodes, uint32_t *node_out, ferry_error *error);

#endif
