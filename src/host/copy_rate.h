/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_COPY_RATE_H
#define FY_HOST_COPY_RATE_H

#include "base/status.h"

#include <stdint.h>

/*
 * Measures fy_copy with one thread on each of these CPUs, all at once, for about so many seconds
 * and three passes at least: the bytes that all of them copy in a second, median of the passes.
 *
 * A pass copies 256 MiB a thread; less when seconds are below a half, because touching the memory
 * first takes time too, and so that all threads together take a quarter of room_bytes at most, and
 * 4 GiB.
 */
ferry_status fy_copy_rate(const uint32_t *cpus, uint32_t n_cpus, uint64_t room_bytes,
                          double seconds, double *bytes_per_s_out, ferry_error *error);

#endif
