/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_CHOOSE_H
#define FY_TRANSPORT_CHOOSE_H

#include "transport/registry.h"
#include "transport/transport.h"

#include <stddef.h>

enum { FY_ENGINES_BYTES = 256 };

/* The text "trace:delay=200us:ucx", taken apart. */
typedef struct fy_choice {
    char chain[FY_ENGINES_BYTES]; /* the wrappers, "" for none */
    uint32_t n_engines;
    size_t engines[FY_MOST_ENGINES]; /* indices of the registry: the local one first */
    bool has_aside;                  /* the last one carries memory of devices alone */
} fy_choice;

/*
 * Wrappers and, if there is one, the engine's name: checked, without effects. n_engines is 0 where
 * the best for each pair is asked for.
 */
ferry_status fy_choice_parse(const char *text, fy_choice *choice_out, ferry_error *error);

/* Fills in the best engines for a world if none were named; from what all ranks know. */
void fy_choice_complete(fy_choice *choice, const ferry_world *world);

/* The tables of the chosen engines; the sentence says what to install. */
ferry_status fy_choice_tables(const fy_choice *choice, const ferry_world *world,
                              const fy_engine *tables_out[FY_MOST_ENGINES], ferry_error *error);

/* The position in choice->engines of the engine that carries bytes to peer. */
uint32_t fy_choice_of(const fy_choice *choice, const ferry_world *world, uint32_t peer);

#endif
