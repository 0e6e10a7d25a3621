/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_LATTICE_H
#define FY_PROVE_LATTICE_H

#include "prove/spec.h"

/*
 * Which box of a parameter an element of memory is in, without looking at all boxes. Boxes whose
 * first to last elements overlap are a cluster. In a cluster those of equal strides are a group:
 * with these strides as the places of a number system, the digits of an element's number lie in a
 * box of digits, so that boxes within each other's gaps are boxes beside each other.
 */
struct fy_proof_lattice;

/* It lives as long as the arena and refers to the boxes. NULL where there is no memory. */
const fy_proof_lattice *fy_proof_lattice_make(fy_arena *arena, const fy_proof_held *boxes,
                                              size_t n);

/* The box with an element, and which turn of each of its steps makes it; false: there is none. */
bool fy_proof_lattice_find(const fy_proof_lattice *lattice, uint64_t element, size_t *box_out,
                           uint64_t *turns_out, uint64_t *looks);

/* Two boxes on one element of memory, or one box that comes to it twice. */
typedef struct fy_proof_clash {
    bool is_found;
    bool is_unknown; /* nothing found, but the search was given up: the strides are too many */
    size_t boxes[2];
    uint64_t element;
} fy_proof_clash;

fy_proof_clash fy_proof_lattice_clash(const fy_proof_lattice *lattice, uint64_t *looks);

/* Whether the box has the element of memory, and by which turns. */
bool fy_proof_held_find(const fy_proof_held *box, uint64_t element, uint64_t *turns_out);

uint64_t fy_proof_held_last(const fy_proof_held *box);
uint64_t fy_proof_held_volume(const fy_proof_held *box);

/* Whether two boxes, or with b NULL two turns of one, meet, and then where. */
fy_proof_clash fy_proof_held_meet(const fy_proof_held *a, const fy_proof_held *b);

#endif
