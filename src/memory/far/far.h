/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_FAR_FAR_H
#define FY_MEMORY_FAR_FAR_H

#include "exec/exec.h"
#include "memory/kind.h"

/*
 * The test kind. An allocation is mapped once, and its first half is barred: that is the pointer
 * the world sees, which no CPU and no system call can use. The second half is the memory, which
 * only this plugin's verbs find. They run on a thread for each queue, after random delays, so that
 * who does not wait sees what was there before.
 */

enum { FY_FAR_DEVICES = 2 };

extern const fy_library *fy_far_library;
extern const fy_exec fy_far_exec; /* exec.c */

/* A far allocation. */
typedef struct fy_far_span fy_far_span;

/*
 * Where verbs of a device find what the pointer says: itself for the host's memory, else the
 * memory behind it, which stays until *span_out is dropped (NULL: nothing to drop).
 * FERRY_ERR_MISUSE: it is another device's.
 */
ferry_status fy_far_find(int32_t device, const void *pointer, void **found_out,
                         fy_far_span **span_out, ferry_error *error);
void fy_far_drop(fy_far_span *span); /* NULL is allowed */

/* A number in the order of FERRY_FAR_SEED, which is logged; each queue has its own order. */
uint64_t fy_far_seed(void);

#endif
