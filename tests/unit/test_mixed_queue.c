/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Mixed collectives in the order of a queue of far memory. */
#include "mixed_handle.h"

#include <ferry/pack.h>
#include <ferry/queue.h>

#include <sched.h>
#include <stdatomic.h>

/* Work of a queue that ends when the test says so. */
typedef struct gate {
    _Atomic bool is_open, was_passed;
} gate;

static void pass(void *context)
{
    gate *g = context;
    while (!atomic_load(&g->is_open)) {
        sched_yield();
    }
    atomic_store(&g->was_passed, true);
}

static void copy(rank_thread *self, const ferry_buffer *to, const ferry_buffer *from)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    for (int i = 0; i < 2; i++) {
        boxes[i].buffer = i == 0 ? *to : *from;
        boxes[i].n_dims = 1;
        boxes[i].length[0] = to->bytes;
        boxes[i].stride[0] = 1;
    }
    expect_ok(self, ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, &self->error));
}

/* The known call with its tensors on a device. */
typedef struct far_call {
    tensors here;
    ferry_buffer in, out;
    ferry_mixed_tensor from, to;
} far_call;

static void make_call(rank_thread *self, int32_t device, far_call *c)
{
    fill(&c->here, self->rank);
    expect_ok(self, ferry_memory_alloc(NULL, FERRY_MEMORY_FAR, device, sizeof c->here.in, &c->in,
                                       &self->error));
    expect_ok(self, ferry_memory_alloc(NULL, FERRY_MEMORY_FAR, device, sizeof c->here.out, &c->out,
                                       &self->error));
    copy(self, &c->in, &c->here.from.buffer);
    c->from = (ferry_mixed_tensor){c->in, 1, MIXED_COLUMNS};
    c->to = (ferry_mixed_tensor){c->out, 2, MIXED_COLUMNS};
}

static bool has_result(rank_thread *self, far_call *c)
{
    copy(self, &c->here.to.buffer, &c->out);
    return is_gathered(&c->here);
}

static void end_call(far_call *c)
{
    ferry_memory_free(&c->in);
    ferry_memory_free(&c->out);
}

static ferry_status gather_on(rank_thread *self, ferry_mixed_comm *comm, const far_call *c,
                              ferry_queue *queue)
{
    return ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &c->from, &c->to,
                                FERRY_MIXED_FUSED_WAITS_UNICAST, queue, &self->error);
}

/* What the handle, or another of its world, would do beside the queue's thread. */
static void refused_meanwhile(rank_thread *self, ferry_mixed_comm *comm)
{
    ferry_mixed_comm *second = NULL;
    expect_status(self, FERRY_ERR_MISUSE, open_handle(self, &second));
    expect_says(self, "ferry_mixed_comm_create: work of this world is under way on a queue");
    expect(self, second == NULL);
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_run_autotune(comm, &self->error));
    expect_says(self, "run_autotune: work of this world");
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_shutdown(comm, &self->error));
    expect_says(self, "shutdown: work of this world");
}

/*
 * A call behind other work of the queue returns before that has ended, and keeps the handle for
 * the queue; then its result is there, and what comes behind it finds it.
 */
static void in_order(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_queue *queue = NULL, *other = NULL;
    ferry_request *request = NULL;
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    gate g = {false, false};
    bool done = true;
    far_call c, d;
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, ferry_queue_create(FERRY_MEMORY_FAR, 1, &queue, &self->error));
    expect_ok(self, ferry_queue_create(FERRY_MEMORY_FAR, 1, &other, &self->error));
    make_call(self, 1, &c);
    make_call(self, 1, &d);
    expect_ok(self, ferry_queue_call(queue, pass, &g, &self->error));
    expect_ok(self, gather_on(self, comm, &c, queue));
    expect_ok(self, ferry_mixed_comm_start(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &d.from, &d.to,
                                           FERRY_MIXED_BASE_ONE, queue, &request, &self->error));
    expect(self, !atomic_load(&g.was_passed));
    expect_ok(self, ferry_request_test(request, &done, &self->error));
    expect(self, !done);
    expect_status(self, FERRY_ERR_MISUSE, gather_on(self, comm, &c, other));
    expect_says(self, "another queue");
    expect_status(self, FERRY_ERR_MISUSE, gather_on(self, comm, &c, NULL));
    expect_says(self, "run: work of this world is under way on a queue");
    refused_meanwhile(self, comm);
    atomic_store(&g.is_open, true);
    expect_ok(self, ferry_request_wait(request, &self->error));
    expect(self, has_result(self, &d));
    ferry_request_destroy(request);
    expect_ok(self, ferry_queue_synchronize(queue, &self->error));
    expect(self, has_result(self, &c));
    expect_ok(self, gather_on(self, comm, &d, NULL));
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &counts, &self->error));
    expect(self, counts.n_calls == 3 && counts.n_device_elements > 0);
    /* The handle waits for what is on a queue when it goes. */
    expect_ok(self, gather_on(self, comm, &c, other));
    ferry_mixed_comm_destroy(comm);
    expect_ok(self, ferry_queue_synchronize(other, &self->error));
    expect(self, has_result(self, &c));
    ferry_queue_destroy(queue);
    ferry_queue_destroy(other);
    end_call(&c);
    end_call(&d);
}

static void test_in_order(void **state)
{
    (void)state;
    run_shape(&one_node, in_order);
    run_shape(&two_nodes, in_order);
}

/* Tensors of two devices cannot be reached from one queue, whichever of the two it is. */
static void two_devices(rank_thread *self, ferry_mixed_comm *comm)
{
    far_call c, d;
    make_call(self, 0, &c);
    make_call(self, 1, &d);
    ferry_mixed_tensor across = d.to;
    for (int32_t device = 0; device < 2; device++) {
        ferry_queue *queue = NULL;
        ferry_request *request = NULL;
        expect_ok(self, ferry_queue_create(FERRY_MEMORY_FAR, device, &queue, &self->error));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_start(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &c.from,
                                             &across, FERRY_MIXED_BASE_ONE, queue, &request,
                                             &self->error));
        expect_says(self, device == 0 ? "has no access to memory of kind far, device 1"
                                      : "has no access to memory of kind far, device 0");
        expect(self, request == NULL);
        expect_status(self, FERRY_ERR_MISUSE, ferry_queue_synchronize(queue, &self->error));
        ferry_queue_destroy(queue);
    }
    end_call(&c);
    end_call(&d);
}

/* Refused alike on all ranks, the handle goes on; a queue that is gone is found out. */
static void refusals(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_queue *queue = NULL, *host = NULL;
    far_call c;
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, ferry_queue_create(FERRY_MEMORY_FAR, 0, &queue, &self->error));
    expect_ok(self, ferry_queue_create(FERRY_MEMORY_HOST, 0, &host, &self->error));
    make_call(self, 1, &c);
    two_devices(self, comm);
    expect_status(self, FERRY_ERR_MISUSE, gather_on(self, comm, &c, queue));
    expect_says(self, "device 1");
    expect_status(self, FERRY_ERR_MISUSE, ferry_queue_synchronize(queue, &self->error));
    expect_ok(self, ferry_queue_synchronize(queue, &self->error));
    ferry_queue_destroy(queue);
    expect_status(self, FERRY_ERR_MISUSE, gather_on(self, comm, &c, queue));
    expect_says(self, "destroyed");
    expect_ok(self, gather_on(self, comm, &c, host)); /* which is host order */
    expect(self, has_result(self, &c));
    ferry_queue_destroy(host);
    ferry_mixed_comm_destroy(comm);
    end_call(&c);
}

static void test_refusals(void **state)
{
    (void)state;
    run_shape(&one_node, refusals);
}

/* One rank's call on a queue is refused: the others, on their queues, hear of it. */
static void refused_alone(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_queue *queue = NULL;
    far_call c;
    int32_t device = self->rank == 2;
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, ferry_queue_create(FERRY_MEMORY_FAR, 0, &queue, &self->error));
    make_call(self, device, &c);
    ferry_status status = gather_on(self, comm, &c, queue);
    expect(self, status == (device == 0 ? FERRY_OK : FERRY_ERR_MISUSE));
    expect_status(self, FERRY_ERR_MISUSE, ferry_queue_synchronize(queue, &self->error));
    if (self->rank != 2) {
        expect_says(self, "rank");
    }
    ferry_queue_destroy(queue);
    ferry_mixed_comm_destroy(comm);
    end_call(&c);
}

static void test_refused_alone(void **state)
{
    (void)state;
    run_shape(&one_node, refused_alone);
}

/* A cancelled call ends with its handle, wherever the queue was. */
static void cancelled(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_queue *queue = NULL;
    ferry_request *request = NULL;
    gate g = {false, false};
    far_call c;
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, ferry_queue_create(FERRY_MEMORY_FAR, 0, &queue, &self->error));
    make_call(self, 0, &c);
    expect_ok(self, ferry_queue_call(queue, pass, &g, &self->error));
    expect_ok(self, ferry_mixed_comm_start(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &c.from, &c.to,
                                           FERRY_MIXED_BASE_ONE, queue, &request, &self->error));
    if (self->rank == 1) {
        ferry_request_cancel(request);
    }
    atomic_store(&g.is_open, true);
    expect_status(self, FERRY_ERR_ABORTED, ferry_request_wait(request, &self->error));
    expect_says(self, "rank 1 cancelled");
    ferry_request_destroy(request);
    ferry_queue_destroy(queue);
    ferry_mixed_comm_destroy(comm);
    end_call(&c);
}

static void test_cancelled(void **state)
{
    (void)state;
    run_shape(&one_node, cancelled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refused_alone),
        cmocka_unit_test(test_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
