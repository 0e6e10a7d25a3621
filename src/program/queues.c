/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "program/queues.h"

#include "base/alloc.h"

fy_device_queue *fy_queues_find(const fy_device_queues *queues, fy_exec_choice choice)
{
    for (uint32_t i = 0; i < queues->n; i++) {
        if (queues->items[i].exec == choice.exec && queues->items[i].device == choice.device) {
            return &queues->items[i];
        }
    }
    return NULL;
}

ferry_status fy_queues_add(fy_device_queues *queues, fy_exec_choice choice, ferry_error *error)
{
    if (choice.exec == NULL || choice.exec == &fy_cpu_exec ||
        fy_queues_find(queues, choice) != NULL) {
        return FERRY_OK;
    }
    fy_device_queue *items = fy_realloc(queues->items, queues->n + 1, sizeof *items);
    if (items == NULL) {
        return fy_fail_no_memory(error, "queues of devices");
    }
    queues->items = items;
    items[queues->n] = (fy_device_queue){.exec = choice.exec, .device = choice.device};
    ferry_status status =
        choice.exec->queue_open(choice.device, NULL, &items[queues->n].queue, error);
    queues->n += status == FERRY_OK;
    return status;
}

void fy_queues_close(fy_device_queues *queues)
{
    for (uint32_t i = 0; i < queues->n; i++) {
        queues->items[i].exec->queue_close(queues->items[i].queue);
    }
    fy_free(queues->items);
    *queues = (fy_device_queues){.n = 0};
}

fy_device_queue *fy_queues_use(fy_device_queues *queues, fy_space from, fy_space to)
{
    if (fy_is_host(from) && fy_is_host(to)) {
        return NULL;
    }
    fy_device_queue *queue = fy_queues_find(queues, fy_exec_for_devices(from, to));
    queue->used = true;
    return queue;
}

ferry_status fy_queues_mark(fy_device_queues *queues, fy_ticket *tickets, bool *waits_out,
                            ferry_error *error)
{
    ferry_status status = FERRY_OK;
    *waits_out = false;
    for (uint32_t i = 0; i < queues->n; i++) {
        fy_device_queue *queue = &queues->items[i];
        tickets[i] = 0;
        if (!queue->used) {
            continue;
        }
        queue->used = false;
        ferry_error why;
        ferry_status its = queue->exec->mark(queue->queue, &tickets[i], &why);
        if (its != FERRY_OK && status == FERRY_OK) {
            status = fy_forward(error, its, &why);
        }
        *waits_out = *waits_out || tickets[i] != 0;
    }
    return status;
}

ferry_status fy_queues_reached(const fy_device_queues *queues, const fy_ticket *tickets,
                               ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < queues->n && status == FERRY_OK; i++) {
        const fy_device_queue *queue = &queues->items[i];
        status = fy_exec_reached(queue->exec, queue->queue, tickets[i], error);
    }
    return status;
}

void fy_queues_finish(fy_device_queues *queues)
{
    for (uint32_t i = 0; i < queues->n; i++) {
        fy_exec_finish(queues->items[i].exec, queues->items[i].queue, NULL);
    }
}
