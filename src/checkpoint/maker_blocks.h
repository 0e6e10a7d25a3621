/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_MAKER_BLOCKS_H
#define FY_CHECKPOINT_MAKER_BLOCKS_H

#include "checkpoint/maker.h"

/*
 * Codes and scales that a maker sets down. Each is made of all values of its block, so what a
 * window has of a tensor is widened to whole blocks first, wherever boxes begin and end. Values of
 * codes of half a byte are made so as well, for whole blocks lie on bytes.
 */

/* Whether the tensor has codes that are made, or their scales, or values of half bytes. Boxes of
 * codes are counted in the units of their parameter: two codes of half a byte are one. */
bool fy_maker_makes_blocks(const fy_maker *maker, uint32_t tensor);

/* Bytes of values that are quantized at once, at least: a block; 0: the tensor stays. */
uint64_t fy_maker_least_bytes(const fy_layout_job *job, uint32_t tensor);

/* Whether the blocks of a hull fit. */
bool fy_maker_has_room_for(const fy_maker *maker, const fy_box *hull);

/* Whether they are mostly blocks of which the nest, whose hull it is, wants something. */
bool fy_maker_wants_blocks(const fy_maker *maker, const fy_nest *nest);

/* How many of n turns of a loop to do at once: up to a line between blocks, where one is reached.
 * first: the turns before them */
uint64_t fy_maker_turns_to_line(const fy_maker *maker, uint32_t tensor, const fy_nest *nest,
                                uint32_t loop, uint64_t first, uint64_t n);

/* Makes a hull: *made_out has it within the box *around_out, which lies side by side. */
ferry_status fy_maker_make_blocks(fy_maker *maker, const fy_box *hull, const char **made_out,
                                  fy_box *around_out, ferry_error *error);

/* ---- of the maker ---- */

/* Reads a box of a tensor, its rows side by side; beside: of the tensors as they are. */
ferry_status fy_maker_gather(fy_maker *maker, bool beside, uint32_t tensor, const fy_box *hull,
                             char *to, ferry_error *error);

#endif
