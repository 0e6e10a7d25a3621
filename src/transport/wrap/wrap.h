/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_WRAP_WRAP_H
#define FY_TRANSPORT_WRAP_WRAP_H

#include "transport/engine.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Wrappers: the same engine table around any engine. A chain is one element or several with colons
 * between them, the outermost first, such as "trace:delay=200us".
 */

/* The elements with their arguments, for sentences: "delay=TIME, lose=RANK@N, ...". */
const char *fy_wrap_list(void);

/* Whether an element, given with its length and with or without an argument, names a wrapper. */
bool fy_wrap_known(const char *element, size_t length);

/* FERRY_OK, or FERRY_ERR_INVALID_INPUT for an unknown wrapper or a bad argument. No effects. */
ferry_status fy_wrap_check(const char *chain, ferry_error *error);

/*
 * Opens inner and puts the chain around it; collective, as inner's open is. What comes out is used
 * like any open engine: engine_out->put(*state_out, ...), and engine_out->close(*state_out) closes
 * inner and frees everything, the table itself included: name and summary are not to be read after
 * it. The table's open is NULL, for the engine is open; optional functions that inner lacks are
 * NULL unless the wrapper brings them. Its name is the chain, a colon and inner's name. An error
 * comes on every rank where it is the chain's (inner's own errors are inner's), and leaves nothing.
 */
ferry_status fy_wrap_open(const char *chain, const fy_engine *inner, const fy_host *host,
                          const fy_engine **engine_out, void **state_out, ferry_error *error);

#endif
