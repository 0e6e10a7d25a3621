/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_FAILURE_H
#define FY_WORLD_FAILURE_H

#include "base/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Why a world has failed: set once, by whoever learns it first, and read by all threads without a
 * lock. All zero is a world that is well.
 */
typedef struct fy_failure {
    _Atomic uint32_t state; /* 0 well, 1 being written, 2 failed */
    uint32_t status;
    uint32_t rank; /* whom it names, or FERRY_ANY_RANK */
    char sentence[FERRY_ERROR_BYTES];
} fy_failure;

/*
 * False if the world had failed before: then nothing changes. The caller rings the bells. After it
 * fy_failed is true in any case.
 */
bool fy_failure_set(fy_failure *failure, ferry_status status, uint32_t rank, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));
bool fy_failure_set_v(fy_failure *failure, ferry_status status, uint32_t rank, const char *format,
                      va_list arguments) __attribute__((format(printf, 4, 0)));

/* What stands in it counts, whatever there was before: where no other thread can be. */
void fy_failure_settle(fy_failure *failure);

/* Whether a failure says that the rank it names is gone. Of others it only says what that did. */
static inline bool fy_status_is_loss(ferry_status status)
{
    return status == FERRY_ERR_PEER_LOST || status == FERRY_ERR_TIMEOUT;
}

/* One load: for loops that spin. */
static inline bool fy_failed(const fy_failure *failure)
{
    return atomic_load_explicit(&failure->state, memory_order_seq_cst) == 2;
}

/* FERRY_OK, or the status and its sentence. rank_out may be NULL. */
ferry_status fy_failure_get(const fy_failure *failure, uint32_t *rank_out, ferry_error *error);

#endif
