/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_UCX_PRINT_H
#define FY_UCX_PRINT_H

#include <stdbool.h>

/*
 * UCX has no query for what a context or an endpoint moves bytes with, but it prints it. Only what
 * is known by name counts: of a print that is not understood the answer is false, and false means
 * messages, which work everywhere.
 */

/* A context's print: whether it has a network of the kind that moves bytes without processors. */
bool fy_ucx_names_rdma(const char *context);
/* A context's print: whether it has TCP. */
bool fy_ucx_names_tcp(const char *context);
/* An endpoint's: whether what it does RMA with does so by itself. */
bool fy_ucx_names_native_rma(const char *endpoint);
/*
 * An endpoint's: whether its rank may write to this one's memory with its own processor. That is so
 * with xpmem alone: sysv and posix reach no memory of the caller's, and UCX makes puts of messages
 * where there is cma or knem.
 */
bool fy_ucx_names_xpmem(const char *endpoint);

#endif
