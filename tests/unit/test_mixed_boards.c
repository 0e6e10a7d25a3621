/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank that is refused tells ranks of other nodes, over an engine that holds back what is
 * put until it is flushed, as slow networks do: sources are read then.
 */
#include "mixed_handle.h"

#include "collective/comm.h"
#include "transport/transport.h"

enum { MOST_HELD = 2 * FY_MIX_N_SENT };

typedef struct held_put {
    uint32_t peer;
    fy_region_view region, words;
    void *attachment;
    uint64_t offset;
    const void *source;
    uint64_t bytes;
    fy_signal_view signal;
    unsigned char then[sizeof(fy_mix_board)]; /* what the source held when it was put */
} held_put;

/* The engine of one rank, of which the case has only one. */
static struct {
    const fy_engine *inner;
    fy_engine table;
    held_put puts[MOST_HELD];
    size_t n, n_flushes, n_changed, n_strange;
} held;

static ferry_status hold_put(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                             const fy_signal_view *signal, ferry_error *error)
{
    if (held.n == MOST_HELD || signal == NULL || bytes > sizeof held.puts[0].then) {
        held.n_strange++; /* no board */
        return held.inner->put(state, peer, region, attachment, offset, source, bytes, signal,
                               error);
    }
    held_put *put = &held.puts[held.n++];
    *put = (held_put){.peer = peer,
                      .region = *region,
                      .words = *signal->region,
                      .attachment = attachment,
                      .offset = offset,
                      .source = source,
                      .bytes = bytes,
                      .signal = *signal};
    memcpy(put->then, source, bytes);
    return FERRY_OK;
}

static ferry_status hold_flush(void *state, uint32_t peer, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    held.n_flushes++;
    for (size_t i = 0; i < held.n && status == FERRY_OK; i++) {
        held_put *put = &held.puts[i];
        put->signal.region = &put->words;
        held.n_changed += memcmp(put->source, put->then, put->bytes) != 0;
        status = held.inner->put(state, put->peer, &put->region, put->attachment, put->offset,
                                 put->source, put->bytes, &put->signal, error);
    }
    held.n = 0;
    return status == FERRY_OK ? held.inner->flush(state, peer, error) : status;
}

static void hold_back(ferry_mixed_comm *comm)
{
    fy_open_engine *engine = fy_engine_for(comm->wires.transport, 1);
    memset(&held, 0, sizeof held);
    held.inner = engine->table;
    held.table = *held.inner;
    held.table.put = hold_put;
    held.table.flush = hold_flush;
    engine->table = &held.table;
}

static ferry_status reduce(ferry_mixed_comm *comm, const tensors *t, ferry_error *error)
{
    return ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE, &t->from, &t->same,
                                FERRY_MIXED_MODE_DEFAULT, NULL, error);
}

_Static_assert(FY_MIX_N_SENT == 16, "refused_alone counts one call more");

/* All that fit are told without a wait; the next one waits until they have arrived. */
static void be_refused(rank_thread *self, ferry_mixed_comm *comm, tensors *t)
{
    hold_back(comm);
    t->same.columns++;
    for (size_t i = 1; i <= FY_MIX_N_SENT; i++) {
        expect_status(self, FERRY_ERR_INVALID_INPUT, reduce(comm, t, &self->error));
        expect(self, held.n == i && held.n_flushes == 0);
    }
    expect_status(self, FERRY_ERR_INVALID_INPUT, reduce(comm, t, &self->error));
    expect(self, held.n == 1 && held.n_flushes == 1);
    expect_ok(self,
              ferry_transport_flush(comm->wires.transport, FERRY_ANY_RANK, NULL, &self->error));
    expect(self, held.n_changed == 0 && held.n_strange == 0);
    fy_engine_for(comm->wires.transport, 1)->table = held.inner;
}

/* Rank 0 is alone in being refused, so rank 1's call ends by what it was told. */
static void refused_alone(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    tensors t;
    fill(&t, self->rank);
    expect_ok(self, open_handle(self, &comm));
    if (self->rank == 0) {
        be_refused(self, comm, &t);
        if (self->wrong[0] != '\0') {
            return;
        }
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    if (self->rank == 1) {
        expect_status(self, FERRY_ERR_MISUSE, reduce(comm, &t, &self->error));
        expect_says(self, "call 17 of rank 0 is one that was refused there");
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error)); /* before rank 0 shuts down */
    ferry_mixed_comm_destroy(comm);
}

static void test_refused_alone(void **state)
{
    static const mixed_shape nodes_of_1 = {1, 1, 2, NULL};
    (void)state;
    run_ranks(2, NULL, refused_alone, (void *)(uintptr_t)&nodes_of_1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
