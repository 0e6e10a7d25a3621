/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_STAR_H
#define FY_SERVICE_STAR_H

#include "service/prepare.h"

/*
 * The exchange of a service's ranks: what goes to rank 0, and what comes from it, travels as
 * letters between the two, so that a rank gets nothing but its own. Collective, as all of it.
 */
typedef struct fy_star {
    ferry_service *service;
    fy_talk *talks; /* [n_ranks - 1] on rank 0, which has all others; else [1]; and */
    fy_pack *out;   /* as many */
    fy_pack *in;
    fy_pack box;     /* what was handed out last */
    size_t *lengths; /* [n_ranks] on rank 0 */
} fy_star;

/*
 * One agreement on how all have fared until here, and on the memory for it: from then on what fails
 * is part of the messages. What was opened is cleaned up, also where that failed.
 */
ferry_status fy_star_open(fy_star *star, ferry_service *service, ferry_status before,
                          ferry_exchange *exchange_out, ferry_error *error);
void fy_star_cleanup(fy_star *star);

#endif
