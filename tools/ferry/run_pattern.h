/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_RUN_PATTERN_H
#define FERRY_TOOL_RUN_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * What the sources of a run hold: a stream of bytes for every tensor, of which byte i depends on
 * the tensor's name and on i alone, so that whoever knows what should lie where can tell without
 * seeing the source. Any four bytes that begin on a multiple of four differ from all others within
 * 16 GiB of the stream, and from those of other tensors as chance has it.
 */
typedef struct run_key {
    uint64_t bits;
    bool is_scale; /* what others are divided by: every f32 of it is from 2^-63 up to 2^65 */
} run_key;

run_key run_key_of(const char *tensor);

/* Byte `at` of the stream. */
uint8_t run_pattern_byte(run_key key, uint64_t at);

/* Writes bytes [at, at + n_bytes) of the stream; with poison, none of them is right. */
void run_pattern_fill(void *memory, run_key key, uint64_t at, uint64_t n_bytes, int poison);

/* How many bytes are right before the first wrong one: n_bytes if all are. */
uint64_t run_pattern_check(const void *memory, run_key key, uint64_t at, uint64_t n_bytes);

#endif
