/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_RULES_H
#define FY_SCHEDULE_RULES_H

#include "schedule/edges.h"

#include <stdbool.h>

/*
 * First fit: each batch, in the order given, gets the first round in which its sender does not send
 * and its receiver does not receive yet; half: in which neither takes part in anything. Rounds are
 * below n_rounds and none is empty. Memory is linear in the batches. FERRY_ERR_INVALID_INPUT
 * for a batch of a rank to itself or of a rank that is not below n_ranks; FERRY_ERR_LIMIT where a
 * rank has more than 2^31 - 1 batches.
 */
ferry_status fy_first_fit(fy_edges *batches, bool half, ferry_error *error);

/*
 * Rounds by a ferry_schedule_rule and a ferry_duplex, either of which may ask for half duplex. The
 * first-fit rules take batches in the order given. FERRY_ERR_MISUSE for other numbers.
 */
ferry_status fy_choose_rounds(uint32_t rule, uint32_t duplex, fy_edges *batches,
                              ferry_error *error);

#endif
