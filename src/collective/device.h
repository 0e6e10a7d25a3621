/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_DEVICE_H
#define FY_COLLECTIVE_DEVICE_H

#include "collective/comm.h"

/*
 * What a handle has of the device that its options name: for kernels, and for a library of the
 * device's. A stream in which a rank's work waits for that of others may hold up another one, and
 * whoever that one is to bring forward: so all handles of a rank have one queue in common for each
 * device, on which their calls are in the order in which they have begun.
 */
typedef struct fy_mix_queue fy_mix_queue; /* device.c */

/* Whose turn it is to put a call on the queue. */
typedef struct fy_mix_turn {
    struct fy_mix_turn *next;
    bool is_open; /* it has been asked for, and not given up */
} fy_mix_turn;

typedef struct fy_mix_device {
    const fy_memory_kind *row;
    const fy_exec *exec;
    int32_t number;
    fy_mix_queue *shared;
    fy_exec_queue *queue;
    _Atomic fy_ticket *last; /* of the calls of all handles that have the queue */
    fy_mix_turn turn;
    ferry_buffer scratch[2]; /* for an input and an output that the device does not reach */
    ferry_buffer late_out;   /* where the output goes from the scratch, when the call is over */
} fy_mix_device;

/* The row and the verbs of the options' device; zeroed before, and the queue is taken apart. */
ferry_status fy_mix_device_find(const ferry_mixed_comm *comm, fy_mix_device *device,
                                ferry_error *error);
ferry_status fy_mix_device_take_queue(const ferry_world *world, fy_mix_device *device,
                                      ferry_error *error);
/* Waits for what is under way. What has no queue is allowed. */
void fy_mix_device_give_queue(fy_mix_device *device);

/*
 * Whether the device still does anything, for who waits for something else than its queue: one that
 * is lost says nothing by itself. One look in n_between puts something there.
 */
typedef struct fy_mix_question {
    uint32_t n_between, n_looks;
    fy_ticket ticket;
} fy_mix_question;
ferry_status fy_mix_device_ask(const fy_mix_device *device, fy_mix_question *question,
                               ferry_error *error);

/* A call has begun, and will be put on the queue when those that began before it are. */
void fy_mix_device_line_up(fy_mix_device *device);
bool fy_mix_device_is_next(fy_mix_device *device);
/* It is on the queue, or has ended there, or never will be; also where it was not asked for. */
void fy_mix_device_step_aside(fy_mix_device *device);

ferry_status fy_mix_device_alloc(const fy_mix_device *device, uint64_t bytes, ferry_buffer *out,
                                 ferry_error *error);
void fy_mix_device_free(const fy_mix_device *device, ferry_buffer *buffer);
/* At least so many bytes, what was there is lost. */
ferry_status fy_mix_device_make_room(const fy_mix_device *device, uint64_t bytes,
                                     ferry_buffer *inout, ferry_error *error);
/* In the queue's order; either side may be the host's. */
ferry_status fy_mix_device_copy(const fy_mix_device *device, void *to, const void *from,
                                uint64_t bytes, ferry_error *error);

/*
 * One tensor of a call. It is the caller's, or a copy of it: the host's memory is copied in the
 * queue's order, that of a device out of reach before the launch and behind the call's end.
 */
typedef struct fy_mix_tensor_use {
    void *base; /* where the device finds it */
    bool stands, is_apart;
    ferry_buffer caller;
} fy_mix_tensor_use;

/* which: 0 is the input, 1 the output. */
ferry_status fy_mix_device_find_tensor(fy_mix_device *device, int which, const void *base,
                                       fy_space space, uint64_t bytes, fy_mix_tensor_use *out,
                                       ferry_error *error);
ferry_status fy_mix_device_copy_in(fy_mix_device *device, const fy_mix_tensor_use *use,
                                   ferry_error *error);
ferry_status fy_mix_device_copy_out(fy_mix_device *device, const fy_mix_tensor_use *use,
                                    ferry_error *error);
/* The call is over. */
ferry_status fy_mix_device_end_out(fy_mix_device *device, ferry_error *error);

#endif
