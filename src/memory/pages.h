/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_PAGES_H
#define FY_MEMORY_PAGES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* What a huge page covers here; parts of this size and more begin on such a boundary. */
#define FY_HUGE_BYTES ((uint64_t)2 << 20)

/* bytes up to a multiple of page_bytes, a power of two; false if that is more than can be mapped.
 */
bool fy_pages_round(uint64_t bytes, uint64_t page_bytes, uint64_t *rounded_out);

uint64_t fy_page_bytes(void);

/* Private memory of whole pages: zero, and every page is there. */
ferry_status fy_pages_alloc(uint64_t bytes, void **base_out, ferry_error *error);
void fy_pages_free(void *base, uint64_t bytes); /* NULL is allowed */
/* The same, and nothing will lie at these addresses again: who writes there gets an error. */
void fy_pages_bar(void *base, uint64_t bytes);

/*
 * Makes every page of mapped memory present and writable here; its content stays. An older kernel
 * cannot do that: false from fy_pages_can_populate, and FERRY_OK without effect.
 */
ferry_status fy_pages_populate(void *base, uint64_t bytes, ferry_error *error);
bool fy_pages_can_populate(void *base);

/* The same in huge pages, where the kernel can. Best effort: what is missing comes page by page. */
void fy_pages_gather(void *base, uint64_t bytes);

/*
 * For such kernels: makes sure that a file in memory has pages from offset on, for to touch them
 * could not fail politely.
 */
ferry_status fy_pages_reserve(int fd, uint64_t offset, uint64_t bytes, ferry_error *error);

/*
 * Makes fresh memory present where nobody has asked for all ranks of the node whether there is
 * room: this asks before each step, for others may take memory at the same time. fd is the file
 * that is mapped at base from its beginning, or -1 for private memory.
 */
ferry_status fy_pages_fill(void *base, uint64_t bytes, int fd, ferry_error *error);

/* fy_pages_alloc, filled in that way. */
ferry_status fy_pages_alloc_checked(uint64_t bytes, void **base_out, ferry_error *error);

/*
 * Puts private pages in the place of mapped ones, with what is there now; the address is that of a
 * page. An error changes nothing.
 */
ferry_status fy_pages_renew(void *base, uint64_t bytes, ferry_error *error);

/* Memory is renewed in pieces of so much, so that it needs no more beside what there is. */
#define FY_RENEW_BYTES ((uint64_t)16 << 20)

/* Writes a zero to each page: for fresh memory where populating is not known. */
void fy_pages_touch(void *base, uint64_t bytes);

#endif
