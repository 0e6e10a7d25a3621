/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/tape.h"

/* Streams of all ranks wait at once, each in a channel; the stand-in may have two. */
bool tape_is_shown(void)
{
    return device_kind() == FERRY_MEMORY_CUDA &&
           (device_is_real() || getenv("STANDIN_CHANNELS") != NULL);
}

static ferry_mixed_tensor put_there(const tape *t, const ferry_mixed_tensor *here,
                                    ferry_buffer *there)
{
    rank_context *me = t->c.me;
    ferry_mixed_tensor tensor = *here;
    must(me, ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, t->device, here->buffer.bytes, there,
                                &me->error));
    tensor.buffer = *there;
    return tensor;
}

static void draw_taped(tape *t, taped *one, uint64_t *random)
{
    one->what = draw_call(&t->c, random, MOST_ELEMENTS);
    one->what.form = FORM_RUN;
    one->what.in_place = false;
    tensors here = scene_tensors(&t->c, &one->what);
    one->in_there = put_there(t, &here.in, &one->in);
    one->out_there = put_there(t, &here.out, &one->out);
    one->given = graphs_pinned(here.in.buffer.bytes);
    one->found = graphs_pinned(here.out.buffer.bytes);
}

void tape_open(rank_context *me, tape *t, int32_t device, uint64_t *random)
{
    shape s = draw_shape(random, me->n_ranks);
    ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(random), random);
    *t = (tape){.n = dice(random, 1, MOST_TAPED), .device = device};
    options.deterministic = one_in(random, 3);
    scene_open(&t->c, me, &s, &options);
    graphs_enter(device);
    t->stream = graphs_new_stream();
    must(me, ferry_queue_adopt(FERRY_MEMORY_CUDA, device, t->stream, &t->queue, &me->error));
    for (uint32_t i = 0; i < t->n; i++) {
        draw_taped(t, &t->calls[i], random);
    }
}

void tape_close(tape *t)
{
    ferry_queue_destroy(t->queue);
    for (uint32_t i = 0; i < t->n; i++) {
        ferry_memory_free(&t->calls[i].in);
        ferry_memory_free(&t->calls[i].out);
        graphs_free_pinned(t->calls[i].given);
        graphs_free_pinned(t->calls[i].found);
    }
    graphs_close(t->stream);
    graphs_leave(t->device);
}

void tape_give(tape *t, uint64_t launch)
{
    for (uint32_t i = 0; i < t->n; i++) {
        taped *one = &t->calls[i];
        one->what.seed += launch;
        tensors here = scene_tensors(&t->c, &one->what);
        memcpy(one->given, here.in.buffer.base, one->in.bytes);
        memset(one->found, 0xc3, one->out.bytes);
    }
}

void tape_check(tape *t)
{
    tape_check_first(t, t->n);
}

void tape_check_first(tape *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const taped *one = &t->calls[i];
        tensors here = scene_tensors(&t->c, &one->what);
        memcpy(here.out.buffer.base, one->found, one->out.bytes);
        scene_check(&t->c, &one->what, &here);
    }
}

/* The stream waits for the word to be `value`, which it is when many calls lie behind that. */
void tape_shut(void *stream, _Atomic uint64_t *word, uint64_t value)
{
    driver_must("cuStreamWaitValue64_v2", (uintptr_t)stream, (uintptr_t)word, value, 0);
}

void tape_open_late(_Atomic uint64_t *word, uint64_t value)
{
    sleep_ms(20);
    atomic_store(word, value);
}

uint64_t tape_count_ahead(const tape *t)
{
    rank_context *me = t->c.me;
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    must(me, ferry_mixed_comm_get_counts(t->c.comm, &counts, &me->error));
    return counts.n_ahead;
}

void tape_launch(const tape *t, const taped *one, void *stream, ferry_queue *queue)
{
    rank_context *me = t->c.me;
    graphs_copy(stream, one->in.base, one->given, one->in.bytes);
    must(me, ferry_mixed_comm_run(t->c.comm, one->what.op, &one->in_there, &one->out_there,
                                  one->what.mode, queue, &me->error));
    graphs_copy(stream, one->found, one->out.base, one->out.bytes);
}

/* A graph's calls have no requests: that is refused, and the capture goes on. */
static void expect_refusal(const tape *t)
{
    const taped *one = &t->calls[0];
    rank_context *me = t->c.me;
    ferry_request *request = NULL;
    must_fail(me, FERRY_ERR_UNSUPPORTED, "call run",
              ferry_mixed_comm_start(t->c.comm, one->what.op, &one->in_there, &one->out_there,
                                     one->what.mode, t->queue, &request, &me->error));
}

/*
 * Each rank for itself: a call whose input is the host's memory is begun and ended by the host, and
 * others are kernels, `by_kernel_out` in number.
 */
void *tape_capture(const tape *t, uint32_t n, uint32_t by_host, uint32_t *by_kernel_out)
{
    rank_context *me = t->c.me;
    *by_kernel_out = n;
    meet(me); /* ranks that are threads make no capture fail by what they call then */
    graphs_begin(t->stream, me->rank % 2 == 0 ? GRAPHS_GLOBAL : GRAPHS_RELAXED);
    expect_refusal(t);
    for (uint32_t i = 0; i < n; i++) {
        const taped *one = &t->calls[i];
        ferry_mixed_tensor in = one->in_there;
        if (by_host > 0 && one_in(&me->random, by_host)) {
            in.buffer = ferry_buffer_of(one->given, one->in.bytes);
            --*by_kernel_out;
        } else {
            graphs_copy(t->stream, one->in.base, one->given, one->in.bytes);
        }
        must(me, ferry_mixed_comm_run(t->c.comm, one->what.op, &in, &one->out_there, one->what.mode,
                                      t->queue, &me->error));
        graphs_copy(t->stream, one->found, one->out.base, one->out.bytes);
    }
    void *graph = graphs_end(t->stream);
    meet(me);
    return graph;
}
