/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_CACHE_H
#define FY_HOST_CACHE_H

#include <stdint.h>

/*
 * Bytes of the last cache before memory, which cores share, as the system says of the first core; a
 * guess where it says nothing. Looked up once, then remembered.
 */
uint64_t fy_shared_cache(void);

/* The same from a folder like /sys/devices/system/cpu/cpu0/cache; 0: it says nothing. */
uint64_t fy_shared_cache_look(const char *folder);

/* Cores of this machine that run, whichever of them this process may use. */
unsigned fy_running_cores(void);

#endif
