/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_MAPPED_LOAN_H
#define FY_TRANSPORT_MAPPED_LOAN_H

#include "base/status.h"
#include "world/world.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Memory of this process that others of its node can map, and who lends it to them: a region of a
 * transport is a loan. Memory of one transport has one loan, and goes with it. Memory that no
 * transport made is its owner's, who lends it to as many as there are, of several worlds even, and
 * it goes when neither the owner nor a loan is left. All functions may be called by any thread.
 * To a child of fork what its parent has is plain memory.
 */
typedef struct fy_loan fy_loan;

/*
 * Memory of an owner: zero, and every page is there. Where descriptors run short it could not be
 * lent: FERRY_ERR_LIMIT.
 */
ferry_status fy_owned_alloc(uint64_t bytes, void **base_out, ferry_error *error);
/* The owner needs it no more. False where there is no such memory. */
bool fy_owned_free(void *base);

/* Memory that a loan alone keeps. The world is one that lives as long as the loan. */
ferry_status fy_loan_create(ferry_world *world, uint64_t bytes, fy_loan **loan_out, void **base_out,
                            ferry_error *error);
/*
 * Lends an owner's memory, from its beginning on; NULL and FERRY_OK where these bytes are not such
 * memory. What others may still write to (below) is taken from them first, or that is the error.
 */
ferry_status fy_loan_begin(ferry_world *world, const void *base, uint64_t bytes, fy_loan **loan_out,
                           ferry_error *error);
/*
 * NULL is allowed. Of an owner's memory, in a world that has failed, borrowers may be stopped in
 * the middle of a copy: it is taken from them, and where that fails it is as fy_owned_secure says.
 */
void fy_loan_end(fy_loan *loan);

/* As fy_local_memory_key. Whoever has the key is a borrower. */
size_t fy_loan_key(fy_loan *loan, void *key);
/*
 * Borrowers of this loan write to other pages from now on: see fy_local_memory_renew.
 * FERRY_ERR_MISUSE, and nothing is done, where another world that lives has borrowers of the same
 * memory, for theirs would go as well.
 */
ferry_status fy_loan_revoke(fy_loan *loan, ferry_error *error);
/* From now on the loan is that of another world. */
void fy_loan_move(fy_loan *loan, ferry_world *world);

/* Whether there is memory whose last loan ended while borrowers could still write to it. */
bool fy_owned_is_exposed(void);
/* Takes what overlaps these bytes from them, or says why it cannot. */
ferry_status fy_owned_secure(const void *base, uint64_t bytes, ferry_error *error);

#endif
