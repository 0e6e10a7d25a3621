/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_PMIX_H
#define FY_WORLD_PMIX_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What the PMIx plugin gives the library: who this process is, and a text of one rank that others
 * can ask for. Calls come from one thread at a time.
 */
#define FY_PMIX_ABI 2u

typedef struct fy_pmix {
    uint32_t abi; /* FY_PMIX_ABI */
    /*
     * Joins the launcher's PMIx. It stays joined until the process exits, whatever else in the
     * process uses PMIx before or after, such as MPI. Further calls only return the numbers.
     */
    ferry_status (*begin)(uint32_t *rank_out, uint32_t *n_ranks_out, ferry_error *error);
    /* Under a name that this rank has not used before. */
    ferry_status (*publish)(const char *name, const char *text, ferry_error *error);
    /*
     * What rank publishes under name, waiting for it no longer than limit_ns: then
     * FERRY_ERR_TIMEOUT. A text that does not fit is FERRY_ERR_INVALID_INPUT. stop is asked
     * meanwhile; where it says yes the wait ends with FERRY_ERR_STOPPED.
     */
    ferry_status (*get)(uint32_t rank, const char *name, int64_t limit_ns,
                        bool (*stop)(void *context), void *context, char *text, size_t text_bytes,
                        ferry_error *error);
} fy_pmix;

/* The plugin exports this one function. */
#define FY_PMIX_PLUGIN_SYMBOL "ferry_pmix_plugin"
typedef const fy_pmix *(*fy_pmix_plugin_fn)(void);

#endif
