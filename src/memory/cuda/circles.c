/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Circles of ranks are communicators of NCCL's. These are made so that none of NCCL's calls blocks:
 * what takes time is under way until ncclCommGetAsyncError says otherwise.
 */
#include "exec/circle.h"

#include "base/alloc.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/nccl_library.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/watch.h"

#include <stdio.h>
#include <string.h>

enum { MOST_NAPS_OF_END = 2000 };

struct fy_circle {
    fy_exec_queue *queue;
    void *comm;
    uint32_t rank, n_ranks;
    bool meets; /* a call that may wait for other ranks is not known to be on the queue */
};

/* What NCCL says of the communicator last, or of results like this one. */
static ferry_status fail(const fy_circle *circle, int result, const char *what, ferry_error *error)
{
    const char *last = circle->comm == NULL ? NULL : fy_nccl.ncclGetLastError(circle->comm);
    const char *text = fy_nccl.ncclGetErrorString(result);
    bool has_last = last != NULL && last[0] != '\0';
    return fy_fail(error, FERRY_ERR_IO,
                   "rank %u of a group of %u: %s: NCCL says %s%s%.200s; with NCCL_DEBUG=WARN in "
                   "the environment it says more",
                   circle->rank, circle->n_ranks, what, text != NULL ? text : "nothing",
                   has_last ? ": " : "", has_last ? last : "");
}

static bool is_good(int result)
{
    return result == FY_NCCL_SUCCESS || result == FY_NCCL_IN_PROGRESS;
}

static ferry_status name(const char **name_out, ferry_error *error)
{
    const char *why, *found = fy_nccl_open_library(&why);
    if (found == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s", why);
    }
    *name_out = found;
    return FERRY_OK;
}

static ferry_status make_id(fy_exec_queue *queue, fy_circle_id *id_out, ferry_error *error)
{
    const fy_circle nobody = {.queue = queue};
    const fy_cuda_device *device;
    fy_nccl_id id;
    _Static_assert(sizeof id == sizeof *id_out, "an id of a circle is NCCL's");
    FY_TRY(fy_cuda_enter(queue->device->number, &device, error));
    int result = fy_nccl.ncclGetUniqueId(&id);
    fy_cuda_leave();
    if (result != FY_NCCL_SUCCESS) {
        return fail(&nobody, result, "an id for it cannot be made", error);
    }
    memcpy(id_out->bytes, id.internal, sizeof id);
    return FERRY_OK;
}

static ferry_status init(fy_circle *circle, const fy_circle_id *id, ferry_error *error)
{
    const fy_cuda_device *device;
    fy_nccl_config config = {.size = sizeof config,
                             .magic = FY_NCCL_MAGIC,
                             .version = FY_NCCL_CONFIG_VERSION,
                             .blocking = 0,
                             .cluster_size = FY_NCCL_UNSET,
                             .least_blocks = FY_NCCL_UNSET,
                             .most_blocks = FY_NCCL_UNSET,
                             .shares_when_split = FY_NCCL_UNSET};
    fy_nccl_id its;
    memcpy(its.internal, id->bytes, sizeof its);
    FY_TRY(fy_cuda_queue_meets(circle->queue, error));
    FY_TRY(fy_cuda_enter(circle->queue->device->number, &device, error));
    int result = fy_nccl.ncclCommInitRankConfig(&circle->comm, (int)circle->n_ranks, its,
                                                (int)circle->rank, &config);
    fy_cuda_leave();
    return is_good(result) ? FERRY_OK
                           : fail(circle, result, "its communicator does not start", error);
}

static void discard(fy_circle *circle, bool is_over);

static ferry_status open_circle(fy_exec_queue *queue, const fy_circle_id *id, uint32_t rank,
                                uint32_t n_ranks, fy_circle **circle_out, ferry_error *error)
{
    fy_circle *circle = fy_alloc_zeroed(1, sizeof *circle);
    FY_TRY(fy_check_memory(circle != NULL, "a circle of ranks", error));
    *circle = (fy_circle){.queue = queue, .rank = rank, .n_ranks = n_ranks};
    ferry_status status = init(circle, id, error);
    if (status != FERRY_OK) {
        discard(circle, false);
        return status;
    }
    *circle_out = circle;
    return FERRY_OK;
}

static void end_meeting(fy_cuda_job *job, bool failed)
{
    (void)job;
    (void)failed;
    fy_cuda_meeting_ends();
}

/* Behind the call, which is on the stream now. Entered, under the lock of calls. */
static ferry_status end_meeting_there(fy_circle *circle, ferry_error *error)
{
    fy_exec_queue *queue = circle->queue;
    fy_cuda_job *job = fy_alloc_zeroed(1, sizeof *job);
    FY_TRY(fy_check_memory(job != NULL, "a call of NCCL's", error));
    circle->meets = false;
    return fy_cuda_add_job(queue, job, end_meeting, error);
}

static ferry_status look(fy_circle *circle, ferry_error *error)
{
    int result = FY_NCCL_SUCCESS;
    int asked = fy_nccl.ncclCommGetAsyncError(circle->comm, &result);
    result = asked != FY_NCCL_SUCCESS ? asked : result;
    if (result == FY_NCCL_IN_PROGRESS) {
        return FERRY_ERR_TIMEOUT;
    }
    if (result != FY_NCCL_SUCCESS) {
        return fail(circle, result, "its communicator has failed", error);
    }
    return circle->meets ? end_meeting_there(circle, error) : FERRY_OK;
}

static ferry_status state(fy_circle *circle, ferry_error *error)
{
    fy_exec_queue *queue = circle->queue;
    uint64_t before;
    pthread_mutex_lock(&queue->calls);
    ferry_status status = fy_cuda_begin_sound(queue, &before, error);
    if (status == FERRY_OK) {
        status = look(circle, error);
        if (status == FERRY_ERR_TIMEOUT) {
            (void)fy_cuda_end(queue, before, FERRY_OK, error);
        } else {
            status = fy_cuda_end(queue, before, status, error);
        }
    }
    pthread_mutex_unlock(&queue->calls);
    return status;
}

static int nccl_type(fy_sum_type type)
{
    return type == FY_SUM_F32 ? FY_NCCL_F32 : type == FY_SUM_F16 ? FY_NCCL_F16 : FY_NCCL_BF16;
}

static ferry_status launch(const fy_circle *circle, const fy_circle_call *call, ferry_error *error)
{
    void *stream = circle->queue->stream;
    size_t n = (size_t)call->n;
    int type = nccl_type(call->type), result = FY_NCCL_SUCCESS;
    switch (call->verb) {
    case FY_CIRCLE_ALL_REDUCE:
        result =
            fy_nccl.ncclAllReduce(call->in, call->out, n, type, FY_NCCL_SUM, circle->comm, stream);
        break;
    case FY_CIRCLE_ALL_GATHER:
        result = fy_nccl.ncclAllGather(call->in, call->out, n, type, circle->comm, stream);
        break;
    case FY_CIRCLE_REDUCE_SCATTER:
        result = fy_nccl.ncclReduceScatter(call->in, call->out, n, type, FY_NCCL_SUM, circle->comm,
                                           stream);
        break;
    }
    return is_good(result) ? FERRY_OK : fail(circle, result, "a collective does not begin", error);
}

/* Tensors are memory of the device's own, of its primary context, and not freed. Entered. */
static ferry_status check_tensors(const fy_circle *circle, const fy_circle_call *what,
                                  ferry_error *error)
{
    uint64_t bytes = what->n * fy_sum_type_bytes(what->type);
    uint64_t in_bytes = what->verb == FY_CIRCLE_REDUCE_SCATTER ? bytes * circle->n_ranks : bytes;
    uint64_t out_bytes = what->verb == FY_CIRCLE_ALL_GATHER ? bytes * circle->n_ranks : bytes;
    for (int i = 0; i < 2; i++) {
        fy_cuda_reach reach;
        const void *base = i == 0 ? what->in : what->out;
        FY_TRY(fy_cuda_reach_of(circle->queue->device, base, 0, i == 0 ? in_bytes : out_bytes,
                                false, &reach, error));
        if (reach != FY_CUDA_OURS) {
            return fy_fail(error, FERRY_ERR_MISUSE, "%p is no memory of device %d", base,
                           circle->queue->device->number);
        }
    }
    return FERRY_OK;
}

static ferry_status begin(fy_circle *circle, const fy_circle_call *what, ferry_error *error)
{
    FY_TRY(check_tensors(circle, what, error));
    fy_cuda_meeting_begins();
    ferry_status status = launch(circle, what, error);
    if (status == FERRY_OK) {
        circle->meets = true;
        circle->queue->n_issued++;
    } else {
        fy_cuda_meeting_ends();
    }
    return status;
}

/* Nobody lets such a queue wait for a word, so nothing is kept for later. */
static ferry_status call(fy_circle *circle, const fy_circle_call *what, ferry_error *error)
{
    fy_exec_queue *queue = circle->queue;
    uint64_t before;
    pthread_mutex_lock(&queue->calls);
    ferry_status status = fy_cuda_begin_sound(queue, &before, error);
    if (status == FERRY_OK) {
        status = fy_cuda_end(queue, before, begin(circle, what, error), error);
    }
    pthread_mutex_unlock(&queue->calls);
    return status;
}

/* Whether all that NCCL has of it is quiet, so that it can be destroyed without a wait. */
static bool is_finalized(const fy_circle *circle)
{
    int result = FY_NCCL_SUCCESS;
    if (!is_good(fy_nccl.ncclCommFinalize(circle->comm))) {
        return false;
    }
    for (uint32_t i = 0; i < MOST_NAPS_OF_END; i++) {
        if (fy_nccl.ncclCommGetAsyncError(circle->comm, &result) != FY_NCCL_SUCCESS) {
            return false;
        }
        if (result != FY_NCCL_IN_PROGRESS) {
            return result == FY_NCCL_SUCCESS;
        }
        fy_cuda_nap(i);
    }
    return false;
}

static void discard(fy_circle *circle, bool is_over)
{
    const fy_cuda_device *device;
    if (circle->comm != NULL &&
        fy_cuda_enter(circle->queue->device->number, &device, NULL) == FERRY_OK) {
        bool is_quiet = is_over && is_finalized(circle);
        (void)(is_quiet ? fy_nccl.ncclCommDestroy : fy_nccl.ncclCommAbort)(circle->comm);
        fy_cuda_leave();
    }
    if (circle->meets) {
        fy_cuda_meeting_ends();
    }
    fy_free(circle);
}

static void close_circle(fy_circle *circle, bool is_over)
{
    if (circle != NULL) {
        discard(circle, is_over);
    }
}

const fy_circles fy_nccl_circles = {.name = name,
                                    .make_id = make_id,
                                    .open = open_circle,
                                    .state = state,
                                    .call = call,
                                    .close = close_circle};
