/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_REQUEST_H
#define FERRY_REQUEST_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stdbool.h>

FERRY_BEGIN_DECLS

/*
 * What was begun and goes on: a service's run (ferry_service_start) or a mixed collective
 * (ferry_mixed_comm_start). The caller owns it, and may destroy it after the handle that began it.
 * Threads are those of that handle.
 */
typedef struct ferry_request ferry_request;

/* Works for a moment without waiting. *done_out: it has ended, and its outcome is returned. */
FERRY_API ferry_status ferry_request_test(ferry_request *request, bool *done_out,
                                          ferry_error *error);
/* Works until it has ended, and returns its outcome; again and again the same. */
FERRY_API ferry_status ferry_request_wait(ferry_request *request, ferry_error *error);
/*
 * Ends it with FERRY_ERR_ABORTED on all ranks; test or wait then say so. It comes too late where
 * this rank has sent and received all of its own: then it ends as if nothing was said.
 */
FERRY_API void ferry_request_cancel(ferry_request *request);
/*
 * Waits for the end if need be, a deadline at most, and then cancels. Where others do not hear of
 * that for another deadline, the world of the run fails; a collective's handle is broken at once.
 * NULL is allowed.
 */
FERRY_API void ferry_request_destroy(ferry_request *request);

FERRY_END_DECLS

#endif
