/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_QUEUE_H
#define FY_MEMORY_CUDA_QUEUE_H

#include "exec/exec.h"
#include "memory/cuda/device.h"

#include <pthread.h>

/*
 * Queues are streams: ferry's own, or one of the caller's. What a stream cannot do by itself is
 * done by host functions (jobs) in its order, and by words in pinned memory: marks are numbers that
 * the stream writes when it has come to them. What comes behind a wait for a word of the host's is
 * kept until the word is there (late.h); but a stream of the caller's, on which he puts more,
 * waits for a gate, which the watcher (watch.h) opens.
 */

enum { FY_CUDA_N_PROBES = 64 };

/* What a queue has in pinned memory: a page for words, and behind it the staging. */
typedef struct fy_cuda_words {
    _Atomic uint64_t done;              /* the last mark that was reached: the stream writes it */
    _Alignas(64) _Atomic uint64_t gate; /* the last wait that is over: the watcher writes it */
    _Alignas(64) _Atomic uint64_t trial, probe; /* of apart.h, as what follows */
    _Atomic uint64_t probes[FY_CUDA_N_PROBES];
} fy_cuda_words;

enum {
    FY_CUDA_WORDS_BYTES = 4096,
    FY_CUDA_STAGING_BYTES = 1 << 20,
    FY_CUDA_SLOT_BYTES = 1280 /* what a digest of a device's leaves to the host */
};

_Static_assert(sizeof(fy_cuda_words) <= FY_CUDA_WORDS_BYTES, "a page holds them");

/*
 * A host function in a stream's order. run is called once in any case, perhaps by another thread,
 * with failed where the queue moves nothing any more. It calls nothing of CUDA. The job is the
 * first member of what it is about, and is freed by the queue.
 */
typedef struct fy_cuda_job {
    struct fy_cuda_job *next;
    fy_exec_queue *queue;
    void (*run)(struct fy_cuda_job *job, bool failed);
    _Atomic bool is_taken;
    bool is_over;
} fy_cuda_job;

/* A stream waits for a word of the host's: gate number `number`. Of watch.c. */
typedef struct fy_cuda_wait {
    struct fy_cuda_wait *next;
    _Atomic uint64_t *word;
    uint64_t value;
    uint64_t number;
} fy_cuda_wait;

/* Digests that kernels make, and the host ends: of digest.c. Under calls. */
typedef struct fy_cuda_digests {
    uint32_t n, n_blocks; /* of those that are under way; whose sums are in the scratch */
    uint64_t bytes[FY_CUDA_MOST_DIGESTS], first[FY_CUDA_MOST_DIGESTS];
    uint64_t *out[FY_CUDA_MOST_DIGESTS];
    fy_cuda_chain chain; /* the next launch */
} fy_cuda_digests;

struct fy_exec_queue {
    fy_exec_queue *next; /* of all that were ever made, open or not: they stay */
    const fy_cuda_device *device;
    uint32_t n_users; /* 0: it is closed, and waits for the next who opens one */
    uint32_t n_pins;  /* threads of the plugin's that look at the stream: it is not closed yet */
    CUstream stream, own;
    fy_cuda_words *words;
    char *staging;
    char *slots;         /* of digests, pinned as what is before them */
    CUdeviceptr scratch; /* scratch.h; 0: it has none yet. Of the list's lock when it is closed */

    pthread_mutex_t calls; /* who calls verbs has it, so that those of two callers do not mix */
    uint64_t n_marks, n_gates;
    uint64_t n_issued;                      /* what was put on the stream */
    struct fy_cuda_late *late, **last_late; /* what comes when a word is there, the wait first */
    _Atomic bool is_held;                   /* late is not NULL */
    bool is_late; /* what is performed just now was given before, and nobody hears of it */
    fy_cuda_digests digests;

    pthread_mutex_t lock; /* of what follows */
    fy_cuda_job *first, **last;
    ferry_status status; /* the first failure, and then for good */
    ferry_error error;

    uint64_t n_trials, n_probes; /* of the list's lock, as what follows: apart.c */
    CUstream other;              /* takes the place of its own */
    bool is_tried, is_apart; /* waits for a trial; went on in the last one, or has gone elsewhere */
    bool meets;              /* kernels on it wait for those of other queues */
    bool is_stuck;           /* had nothing to do and did not go on; calls are locked */

    _Atomic uint64_t meets_until;     /* the mark behind the last kernel that waits for others */
    _Atomic bool is_dead;             /* the context is lost: the stream does nothing any more */
    fy_cuda_wait *waits, **last_wait; /* of the watcher's lock */
};

/* What a verb puts on the stream: the context is current from begin to end. Under calls. */
ferry_status fy_cuda_begin(fy_exec_queue *queue, ferry_error *error);
/* The same, but nothing is put on a queue that has failed. */
ferry_status fy_cuda_begin_sound(fy_exec_queue *queue, uint64_t *before_out, ferry_error *error);
/* `status` is returned; a failure after something was put on the stream is the queue's. */
ferry_status fy_cuda_end(fy_exec_queue *queue, uint64_t n_before, ferry_status status,
                         ferry_error *error);

/* Puts a job on the stream, which owns it from here on, also where this fails. */
ferry_status fy_cuda_add_job(fy_exec_queue *queue, fy_cuda_job *job,
                             void (*run)(fy_cuda_job *job, bool failed), ferry_error *error);

/* A mark of a number that is n_marks now, or was given to what is performed late. Begun. */
ferry_status fy_cuda_put_mark(fy_exec_queue *queue, uint64_t number, ferry_error *error);

/* The first failure is kept, and said for good. */
void fy_cuda_remember(fy_exec_queue *queue, ferry_status status, const ferry_error *error);

/*
 * Looks whether the stream has failed, and does what is left then: jobs are run as failed, and
 * waits are forgotten.
 */
void fy_cuda_look(fy_exec_queue *queue);

/* Whether nothing is under way on any open queue of the device. Entered. */
bool fy_cuda_is_idle(const fy_cuda_device *device);
/* Waits until what is under way now on queues of the device is done. May take long. */
void fy_cuda_await_all(const fy_cuda_device *device);

/* All that were ever made, new ones first: they stay. */
fy_exec_queue *fy_cuda_first_queue(void);

/* What a closed queue of the device has kept, which is the caller's now; 0: none has any. */
CUdeviceptr fy_cuda_take_scratch(const fy_cuda_device *device);

/* Looks at all that are open. */
void fy_cuda_look_at_all(void);

/* Calls `visit`, which does not look at the stream, with each queue that is open. */
void fy_cuda_each_open(void (*visit)(fy_exec_queue *queue));

/* queue.c; verbs in verbs.c. */
ferry_status fy_cuda_queue_open(int32_t device, void *native, fy_exec_queue **queue_out,
                                ferry_error *error);
void fy_cuda_queue_close(fy_exec_queue *queue);
void fy_cuda_make_way(fy_exec_queue *queue);
ferry_status fy_cuda_mark(fy_exec_queue *queue, fy_ticket *ticket_out, ferry_error *error);
ferry_status fy_cuda_reached(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error);
ferry_status fy_cuda_word_set(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                              ferry_error *error);
ferry_status fy_cuda_word_wait(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                               ferry_error *error);
ferry_status fy_cuda_call(fy_exec_queue *queue, void (*function)(void *context), void *context,
                          ferry_error *error);

/* Kernels on this queue are to wait for those of others: no other queue may share its channel. */
ferry_status fy_cuda_queue_meets(fy_exec_queue *queue, ferry_error *error);

/* lanes.c */
ferry_status fy_cuda_run_lanes(fy_exec_queue *queue, const fy_lanes_call *call, ferry_error *error);
ferry_status fy_cuda_lanes_take(fy_exec_queue *queue, void **page_out, ferry_error *error);
void fy_cuda_lanes_give(void *page);
/* On its stream, which may be captured, without a mark; and what must hold before. Entered. */
ferry_status fy_cuda_check_lanes(const fy_exec_queue *queue, const fy_lanes_call *call,
                                 ferry_error *error);
ferry_status fy_cuda_launch_lanes(const fy_exec_queue *queue, const fy_lanes_call *call,
                                  ferry_error *error);
/* Whether a graph's lanes run just now. */
bool fy_cuda_lanes_run(void);
ferry_status fy_cuda_most_lanes(int32_t device, uint32_t *n_out, uint64_t *identity_out,
                                ferry_error *error);

extern const fy_fleets fy_cuda_fleets;   /* fleet.c */
extern const fy_circles fy_nccl_circles; /* circles.c */
extern const fy_exec fy_cuda_exec;

#endif
