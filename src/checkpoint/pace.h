/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_PACE_H
#define FY_CHECKPOINT_PACE_H

#include "base/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A limit of bytes a second for all threads of a job together: a bucket that fills at that rate, up
 * to what a quarter of a second brings. Who takes more than it holds waits until that is made up,
 * and so do those who come behind.
 */
typedef struct fy_pace {
    uint64_t bytes_per_s;         /* 0: no limit */
    const _Atomic bool *stops;    /* who waits gives up when it is set; NULL: never */
    double (*now)(void *context); /* seconds; NULL: the machine's clock, and its sleep */
    void (*sleep)(void *context, double seconds);
    void *context;
    pthread_mutex_t lock;
    double paid; /* the time up to which all that was taken is paid for */
    _Atomic uint64_t taken_bytes;
} fy_pace;

/* The other fields are the caller's to fill in, before anything is taken. */
ferry_status fy_pace_init(fy_pace *pace, uint64_t bytes_per_s, ferry_error *error);
void fy_pace_cleanup(fy_pace *pace);

/* Before so many bytes are read or written. pace may be NULL. FERRY_ERR_STOPPED while waiting. */
ferry_status fy_pace_take(fy_pace *pace, uint64_t n_bytes, ferry_error *error);

#endif
