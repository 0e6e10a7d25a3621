/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_MADE_H
#define FY_SERVICE_MADE_H

#include "service/run.h"

/* What made.c, which makes codes on the host, and made_far.c, by devices, have in common. */

/* Some rows of a matrix of a making: whole rows of blocks, or to the matrix's end. */
typedef struct fy_made_part {
    fy_quantized q;                    /* they alone, with the scale of their matrix */
    uint64_t first;                    /* element, of all of the making, */
    uint64_t first_value, value_bytes; /* and in bytes of values, */
    uint64_t first_code, code_bytes;   /* and of codes; */
    uint64_t first_scale, n_scales;    /* scales, */
    uint64_t scales_of_row;            /* so many of each row of blocks */
} fy_made_part;

fy_made_part fy_made_part_of(const fy_code_maker *making, uint64_t plane, uint64_t row,
                             uint64_t n_rows);

/* Bytes of the host's, without gaps, to bytes from `first` on of their place in a destination. */
ferry_status fy_made_put(const fy_registry *registry, const fy_end *end, uint64_t first,
                         uint64_t bytes, const char *from, ferry_error *error);

/* made_far.c: of one of a run's spaces what runs need, and what is held for it meanwhile. */
ferry_status fy_rings_open(ferry_service *service, fy_run_state *run, ferry_error *error);
/* Of memory in which devices bring values together. */
uint64_t fy_packed_bytes(const fy_run_state *run);
/* NULL: no values wait there. */
fy_ring *fy_ring_of(const fy_run_state *run, fy_space space);
/* Of the run's scratch. */
uint64_t fy_far_scratch(const ferry_service *service, const fy_code_maker *making);

/*
 * Begins to make bands from the run's next on by a device: false where the host is to make that
 * one. Then the other, until it says how many were made: FERRY_ERR_TIMEOUT without a sentence where
 * it must wait for the device.
 */
bool fy_far_begin(ferry_service *service, const fy_code_maker *making);
ferry_status fy_far_go_on(ferry_service *service, const fy_code_maker *making, uint64_t *n_out,
                          ferry_error *error);

#endif
