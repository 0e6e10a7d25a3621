/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_LEDGER_H
#define FY_SERVICE_LEDGER_H

#include "service/service.h"

ferry_ledger *fy_ledger_retain(const ferry_ledger *ledger);

/* Of the run that failed: the number that a run which completes it takes. */
uint64_t fy_ledger_version(const ferry_ledger *ledger);
bool fy_ledger_is_begun(const ferry_ledger *ledger); /* else nothing of it is anywhere */

/*
 * What is taken of a service that loses its program: before one goes that has run. The service
 * keeps it until it has another.
 */
ferry_status fy_ledger_keep(ferry_service *service, ferry_error *error);

/* The newest version that was begun here, or is to be completed. */
uint64_t fy_ledger_newest(const ferry_service *service);

/* As ferry_service_take_ledger, also of a service that has never run. */
ferry_status fy_ledger_of(const ferry_service *service, ferry_ledger **ledger_out,
                          ferry_error *error);

/*
 * The states of destinations, and which buffer of a pair is the front: of those that are in the
 * same memory. Can be repeated.
 */
void fy_ledger_inherit(ferry_service *service, const ferry_ledger *ledger);

/* What the receives of the service still want, by its ledger, into the wire. They are sorted. */
ferry_status fy_ledger_apply(ferry_service *service, ferry_error *error);

#endif
