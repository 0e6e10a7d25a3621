/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/pace.h"

#include "checkpoint/crew.h"

#include <time.h>

static const double BURST_SECONDS = 0.25;
/* How long a wish to stop may wait for one who waits. */
static const double MOST_NAP = 0.1;

ferry_status fy_pace_init(fy_pace *pace, uint64_t bytes_per_s, ferry_error *error)
{
    *pace = (fy_pace){.bytes_per_s = bytes_per_s};
    return pthread_mutex_init(&pace->lock, NULL) == 0 ? FERRY_OK
                                                      : fy_fail_no_memory(error, "a limit");
}

void fy_pace_cleanup(fy_pace *pace)
{
    pthread_mutex_destroy(&pace->lock);
}

static double now_of(const fy_pace *pace)
{
    return pace->now != NULL ? pace->now(pace->context) : fy_seconds_now();
}

static void nap(const fy_pace *pace, double seconds)
{
    seconds = seconds < MOST_NAP ? seconds : MOST_NAP;
    if (pace->sleep != NULL) {
        pace->sleep(pace->context, seconds);
    } else {
        nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
    }
}

/* The time at which the bytes are paid for: nothing is saved up beyond the burst. */
static double book(fy_pace *pace, uint64_t n_bytes)
{
    pthread_mutex_lock(&pace->lock);
    double least = now_of(pace) - BURST_SECONDS;
    pace->paid = pace->paid > least ? pace->paid : least;
    pace->paid += (double)n_bytes / (double)pace->bytes_per_s;
    double paid = pace->paid;
    pthread_mutex_unlock(&pace->lock);
    return paid;
}

ferry_status fy_pace_take(fy_pace *pace, uint64_t n_bytes, ferry_error *error)
{
    if (pace == NULL) {
        return FERRY_OK;
    }
    atomic_fetch_add(&pace->taken_bytes, n_bytes);
    if (pace->bytes_per_s == 0) {
        return FERRY_OK;
    }
    double paid = book(pace, n_bytes);
    for (double now = now_of(pace); now < paid; now = now_of(pace)) {
        if (pace->stops != NULL && atomic_load(pace->stops)) {
            return fy_fail(error, FERRY_ERR_STOPPED, "was stopped before it was done");
        }
        nap(pace, paid - now);
    }
    return FERRY_OK;
}
