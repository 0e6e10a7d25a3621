/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_NVSHMEM_WORK_H
#define FY_NVSHMEM_WORK_H

#include "transport/engine.h"

#include <stdatomic.h>

/*
 * The one thread of the process that calls NVSHMEM, and what it has to do, in order. NVSHMEM's
 * calls have no limit of time: a rank that waits for them waits for this thread instead, and leaves
 * it behind when it has waited long enough.
 */
typedef enum fy_nvshmem_verb {
    FY_NVSHMEM_CALL = 1,
    FY_NVSHMEM_PUT = 2,
    FY_NVSHMEM_GET = 3,
    FY_NVSHMEM_SIGNAL = 4, /* behind all puts before it */
    FY_NVSHMEM_QUIET = 5,  /* all before it is in place */
    FY_NVSHMEM_CLEAR = 6,  /* zeroes, here, in a heap of the device's */
} fy_nvshmem_verb;

typedef struct fy_nvshmem_op {
    fy_nvshmem_verb verb;
    uint32_t pe;
    char *there; /* in the own part of the heap: NVSHMEM's address of the same place at pe */
    char *here;  /* a put's source, a get's target */
    uint64_t bytes;
    uint64_t value; /* of a signal */
    uint32_t how;   /* ferry_signal_op */
    void (*call)(void);
} fy_nvshmem_op;

/* What the thread uses, and nobody else: the first call fills it. */
typedef struct fy_nvshmem_tools {
    void *context;     /* of the device */
    void *stream;      /* of it: signals that add go by it, and copies in its memory */
    bool is_of_device; /* the heap lies in its memory */
    bool must_settle;  /* and it does not see by itself what the network writes there */
    char *pool;        /* of the symmetric heap, and its length: sources there need no copy */
    uint64_t bytes;
    char *bounce;                /* in the pool: for what lies elsewhere */
    _Atomic(const char *) fault; /* what has failed for good; NULL: nothing */
} fy_nvshmem_tools;

enum { FY_NVSHMEM_BOUNCE_BYTES = 1 << 20 };

extern fy_nvshmem_tools fy_nvshmem_its;

/* Puts it last, and starts the thread with the first; its number counts what was posted. */
ferry_status fy_nvshmem_post(const fy_nvshmem_op *op, uint64_t *number_out, ferry_error *error);

/* Whether all up to that number is done. */
bool fy_nvshmem_is_done(uint64_t number);

/*
 * Waits until it is. For as long as something gets done that may take any time; when for limit_ns
 * nothing was, FERRY_ERR_TIMEOUT comes without a sentence, and *pe_out is to whom it put last.
 */
ferry_status fy_nvshmem_await(const fy_host *host, uint64_t number, int64_t limit_ns,
                              uint32_t *pe_out, ferry_error *error);

/* How long what the thread does already lasts, and to whom it put last; 0: nothing. */
int64_t fy_nvshmem_lasts_ns(uint32_t *pe_out);

/* Forgets all that has not begun: from here on the thread touches no memory of the caller's. */
void fy_nvshmem_cut(void);

#endif
