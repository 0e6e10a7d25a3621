/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_HELD_H
#define FY_PROVE_HELD_H

#include "prove/lattice.h"

/* What boxes hold, element by element. */

/* Told each element of memory, in the order of the turns; false: no more are wanted. */
typedef bool (*fy_proof_visit_element_fn)(void *context, uint64_t element);

/* Elements of a box from these turns of its steps on, so many of each; false if it was ended. */
bool fy_proof_held_visit(const fy_proof_held *box, const uint64_t *turns, const uint64_t *counts,
                         fy_proof_visit_element_fn visit, void *context);

/* The numbers of all turns. */
void fy_proof_held_counts(const fy_proof_held *box, uint64_t *counts_out);

/* owners has an item for every element, all zero: it becomes 1 + the box that holds it. */
fy_proof_clash fy_proof_parameter_own(const fy_proof_parameter *parameter, uint32_t *owners);

/* Which element of its tensor some turns of a box are. */
void fy_proof_held_element(const fy_proof_held *box, const uint64_t *turns, uint64_t *element_out);

/* "q", or "a fill". */
const char *fy_proof_held_name(const fy_proof_spec *spec, const fy_proof_held *box);

#endif
