/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Queues that handles have in common, and tensors that a device may not reach. */
#include "collective/device.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <ferry/pack.h>

#include <string.h>

/*
 * Queues
 */

struct fy_mix_queue {
    fy_mix_queue *next;
    const ferry_world *world;
    const fy_exec *exec;
    int32_t device;
    fy_exec_queue *queue;
    _Atomic fy_ticket last;
    fy_mix_turn *first, **end; /* calls that are not on the queue yet */
    uint32_t n_users;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list, and of turns */
static fy_mix_queue *queues;

ferry_status fy_mix_device_find(const ferry_mixed_comm *comm, fy_mix_device *device,
                                ferry_error *error)
{
    device->number = comm->options.device.index;
    FY_TRY(fy_memory_get(comm->options.device.kind, &device->row, error));
    device->exec = device->row->exec;
    return FERRY_OK;
}

/* Under the lock: into the list, or NULL, with a sentence. */
static fy_mix_queue *add_queue(const ferry_world *world, const fy_mix_device *device,
                               ferry_error *error)
{
    fy_exec_queue *queue;
    fy_mix_queue *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    if (fy_check_memory(fresh != NULL, "the queue of a device's collectives", error) != FERRY_OK ||
        device->exec->queue_open(device->number, NULL, &queue, error) != FERRY_OK) {
        fy_free(fresh);
        return NULL;
    }
    *fresh = (fy_mix_queue){.next = queues,
                            .world = world,
                            .exec = device->exec,
                            .device = device->number,
                            .queue = queue};
    fresh->end = &fresh->first;
    queues = fresh;
    return fresh;
}

/* One that has failed is nobody's any more but of those who have it. Under the lock. */
static fy_mix_queue *find_queue(const ferry_world *world, const fy_mix_device *device)
{
    fy_ticket ticket;
    for (fy_mix_queue *one = queues; one != NULL; one = one->next) {
        if (one->world == world && one->exec == device->exec && one->device == device->number) {
            if (one->exec->mark(one->queue, &ticket, NULL) == FERRY_OK) {
                return one;
            }
            one->world = NULL;
        }
    }
    return NULL;
}

ferry_status fy_mix_device_take_queue(const ferry_world *world, fy_mix_device *device,
                                      ferry_error *error)
{
    pthread_mutex_lock(&lock);
    fy_mix_queue *one = find_queue(world, device);
    one = one == NULL ? add_queue(world, device, error) : one;
    if (one != NULL) {
        one->n_users++;
        device->shared = one;
        device->queue = one->queue;
        device->last = &one->last;
    }
    pthread_mutex_unlock(&lock);
    return one != NULL ? FERRY_OK : FERRY_ERR_UNSUPPORTED;
}

void fy_mix_device_give_queue(fy_mix_device *device)
{
    fy_mix_queue *last = NULL, *shared = device->shared;
    if (shared == NULL) {
        return;
    }
    fy_mix_device_step_aside(device);
    pthread_mutex_lock(&lock);
    if (--shared->n_users == 0) {
        fy_mix_queue **at = &queues;
        while (*at != shared) {
            at = &(*at)->next;
        }
        *at = shared->next;
        last = shared;
    }
    pthread_mutex_unlock(&lock);
    if (last != NULL) {
        last->exec->queue_close(last->queue);
        fy_free(last);
    } else {
        fy_exec_finish(device->exec, device->queue, NULL);
    }
    device->shared = NULL;
    device->queue = NULL;
}

ferry_status fy_mix_device_ask(const fy_mix_device *device, fy_mix_question *question,
                               ferry_error *error)
{
    if (question->n_looks++ % question->n_between == 0) {
        FY_TRY(device->exec->mark(device->queue, &question->ticket, error));
    }
    ferry_status status = fy_exec_reached(device->exec, device->queue, question->ticket, error);
    return status == FERRY_ERR_TIMEOUT ? FERRY_OK : status;
}

/*
 * Turns
 */

void fy_mix_device_line_up(fy_mix_device *device)
{
    fy_mix_device_step_aside(device);
    pthread_mutex_lock(&lock);
    device->turn = (fy_mix_turn){.is_open = true};
    *device->shared->end = &device->turn;
    device->shared->end = &device->turn.next;
    pthread_mutex_unlock(&lock);
}

bool fy_mix_device_is_next(fy_mix_device *device)
{
    pthread_mutex_lock(&lock);
    bool is_next = !device->turn.is_open || device->shared->first == &device->turn;
    pthread_mutex_unlock(&lock);
    return is_next;
}

void fy_mix_device_step_aside(fy_mix_device *device)
{
    pthread_mutex_lock(&lock);
    if (device->turn.is_open) {
        fy_mix_turn **at = &device->shared->first;
        while (*at != &device->turn) {
            at = &(*at)->next;
        }
        *at = device->turn.next;
        device->shared->end = *at == NULL ? at : device->shared->end;
        device->turn.is_open = false;
    }
    pthread_mutex_unlock(&lock);
}

/*
 * Memory
 */

ferry_status fy_mix_device_alloc(const fy_mix_device *device, uint64_t bytes, ferry_buffer *out,
                                 ferry_error *error)
{
    void *base;
    FY_TRY(device->row->alloc(device->number, bytes, &base, error));
    *out = ferry_buffer_of(base, bytes);
    out->kind = device->row->kind;
    out->device = device->number;
    return FERRY_OK;
}

void fy_mix_device_free(const fy_mix_device *device, ferry_buffer *buffer)
{
    if (buffer->base != NULL) {
        device->row->free(device->number, buffer->base, buffer->bytes);
    }
    *buffer = (ferry_buffer){.base = NULL};
}

ferry_status fy_mix_device_make_room(const fy_mix_device *device, uint64_t bytes,
                                     ferry_buffer *inout, ferry_error *error)
{
    if (inout->bytes >= bytes) {
        return FERRY_OK;
    }
    fy_mix_device_free(device, inout);
    return fy_mix_device_alloc(device, bytes, inout, error);
}

ferry_status fy_mix_device_copy(const fy_mix_device *device, void *to, const void *from,
                                uint64_t bytes, ferry_error *error)
{
    fy_area flat = fy_area_flat(0, bytes);
    return device->exec->copy(device->queue, &flat, to, &flat, from, 0, bytes, NULL, error);
}

/*
 * Tensors
 */

/* Memory of another device may be reached in parts only, or not yet: it is copied. */
static bool is_reached(const fy_mix_device *device, fy_space space)
{
    return space.kind == device->row->kind && space.device == device->number;
}

ferry_status fy_mix_device_find_tensor(fy_mix_device *device, int which, const void *base,
                                       fy_space space, uint64_t bytes, fy_mix_tensor_use *out,
                                       ferry_error *error)
{
    ferry_buffer caller = ferry_buffer_of((void *)(uintptr_t)base, bytes);
    caller.kind = space.kind;
    caller.device = space.device;
    *out = (fy_mix_tensor_use){
        .base = caller.base, .stands = is_reached(device, space), .caller = caller};
    if (!out->stands) {
        FY_TRY(fy_mix_device_make_room(device, bytes, &device->scratch[which], error));
        out->base = device->scratch[which].base;
        out->is_apart = !fy_is_host(space);
    }
    return FERRY_OK;
}

/* Bytes from one device to another that does not reach it, at once. */
static ferry_status copy_apart(const ferry_buffer *to, const ferry_buffer *from, ferry_error *error)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    for (int i = 0; i < 2; i++) {
        boxes[i].buffer = i == 0 ? *to : *from;
        boxes[i].n_dims = 1;
        boxes[i].length[0] = fy_min(to->bytes, from->bytes);
        boxes[i].stride[0] = 1;
    }
    return ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, error);
}

ferry_status fy_mix_device_copy_in(fy_mix_device *device, const fy_mix_tensor_use *use,
                                   ferry_error *error)
{
    if (use->is_apart) {
        return copy_apart(&device->scratch[0], &use->caller, error);
    }
    return use->stands
               ? FERRY_OK
               : fy_mix_device_copy(device, use->base, use->caller.base, use->caller.bytes, error);
}

ferry_status fy_mix_device_copy_out(fy_mix_device *device, const fy_mix_tensor_use *use,
                                    ferry_error *error)
{
    device->late_out = use->is_apart ? use->caller : (ferry_buffer){.base = NULL};
    return use->stands || use->is_apart
               ? FERRY_OK
               : fy_mix_device_copy(device, use->caller.base, use->base, use->caller.bytes, error);
}

ferry_status fy_mix_device_end_out(fy_mix_device *device, ferry_error *error)
{
    return device->late_out.base == NULL
               ? FERRY_OK
               : copy_apart(&device->late_out, &device->scratch[1], error);
}
