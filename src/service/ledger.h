/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_LEDGER_H
#define FY_SERVICE_LEDGER_H

#include "service/exec.h"

ferry_ledger *fy_ledger_retain(const ferry_ledger *ledger);

/* Of the run that failed: the number that a run which completes it takes. */
uint64_t fy_ledger_version(const ferry_ledger *ledger);

/* What the receives of the service still want, by its ledger, into exec->wants. They are sorted. */
ferry_status fy_ledger_apply(ferry_service *service, ferry_error *error);

#endif
