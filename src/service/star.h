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
    fy_pack *out; /* [n_ranks - 1] on rank 0, which has all others; else [1] */
    fy_pack *in;
    fy_pack box;     /* what was handed out last */
    size_t *lengths; /* [n_ranks] on rank 0 */
} fy_star;

/* Without memory the exchange's functions go on taking part. */
ferry_exchange fy_star_init(fy_star *star, ferry_service *service);
void fy_star_cleanup(fy_star *star);

#endif
