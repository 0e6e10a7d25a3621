/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Calls that break the contract: an error, and nothing moves. */
#include "conformance/suite.h"

enum { BYTES = 10000 };

static ferry_status try_put(rank_context *me, ferry_region *region, uint64_t offset,
                            const void *source, uint64_t bytes)
{
    ferry_buffer buffer = ferry_buffer_of(source, bytes);
    return ferry_transport_put(me->transport, next_rank(me), region, offset, &buffer, NULL,
                               &me->error);
}

static ferry_status try_signal(rank_context *me, ferry_region *region, uint64_t offset,
                               ferry_region *words, uint64_t word_offset, uint32_t op)
{
    static const unsigned char ones[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                           0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    ferry_buffer buffer = ferry_buffer_of(ones, sizeof ones);
    ferry_signal signal = {.region = words, .offset = word_offset, .value = 77, .op = op};
    return ferry_transport_put_signal(me->transport, next_rank(me), region, offset, &buffer,
                                      &signal, NULL, &me->error);
}

/* After everybody's bad calls: good ones arrive, and nothing else did. */
static void check_untouched(rank_context *me, ferry_region *region, ferry_region *words)
{
    flush(me, FERRY_ANY_RANK);
    meet(me);
    expect(me, mismatch_byte(base_of(region), BYTES, 0) == BYTES, "byte %zu was written",
           mismatch_byte(base_of(region), BYTES, 0));
    expect(me, mismatch_byte(base_of(words), 64, 0) == 64, "a signal was raised");
    meet(me);
    raise_signal(me, next_rank(me), words, 7, 5, FERRY_SIGNAL_SET);
    wait_signal(me, words, 7, FERRY_COMPARE_EQ, 5, previous_rank(me));
}

void case_outside(rank_context *me)
{
    static const struct {
        uint64_t offset, bytes;
    } rows[] = {
        {BYTES, 1},
        {BYTES - 1, 2},
        {0, BYTES + 1},
        {BYTES + 1, 0},
        {UINT64_MAX, 1},
        {UINT64_MAX - 5, 100},
        {UINT64_MAX, UINT64_MAX},
        {1, UINT64_MAX},
        {UINT64_C(1) << 32, 1},
        {4096 * 3, 1}, /* behind the region, in its last page or behind that */
    };
    unsigned char source[BYTES + 64];
    ferry_region *region = alloc_region(me, BYTES);
    ferry_region *words = alloc_region(me, 64);
    memset(source, 0xff, sizeof source);
    meet(me);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        must_fail(me, FERRY_ERR_MISUSE, NULL,
                  try_put(me, region, rows[i].offset, source, rows[i].bytes));
    }
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, BYTES - 15, words, 0, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, 0, words, 64, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, 0, words, 57, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, 0, words, UINT64_MAX - 7, 0));
    for (uint64_t offset = 1; offset < 8; offset++) {
        must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, 0, words, offset, 0));
    }
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, 0, words, 0, 2));
    must(me, try_put(me, region, BYTES, source, 0)); /* nothing, at the end: allowed */
    check_untouched(me, region, words);
    ferry_region_free(region);
    ferry_region_free(words);
}

static void null_handles(rank_context *me, ferry_region *region)
{
    ferry_buffer buffer = ferry_buffer_of("x", 1);
    ferry_region *made;
    ferry_transport *opened;
    size_t n_bytes;
    unsigned char key[FERRY_KEY_BYTES];
    ferry_error *e = &me->error;
    ferry_transport *t = me->transport;
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_open(NULL, NULL, &opened, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_open(me->world, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_get_peer(NULL, 0, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_region_alloc(NULL, FERRY_MEMORY_HOST, 0, 1, &made, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_region_alloc(t, FERRY_MEMORY_HOST, 0, 1, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_region_register(NULL, &buffer, &made, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_region_register(t, NULL, &made, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_region_register(t, &buffer, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_region_export(NULL, key, sizeof key, &n_bytes, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_region_export(region, key, sizeof key, &n_bytes, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_region_import(NULL, key, 1, &made, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_region_import(t, NULL, 1, &made, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_put(NULL, 0, region, 0, &buffer, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_put(t, 0, NULL, 0, &buffer, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_put(t, 0, region, 0, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_put(t, me->n_ranks, region, 0, &buffer, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_put(t, FERRY_ANY_RANK, region, 0, &buffer, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_put_signal(t, 0, region, 0, &buffer, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_get(t, 0, region, 0, NULL, NULL, e));
    must_fail(
        me, FERRY_ERR_MISUSE, NULL,
        ferry_transport_wait_signal(NULL, region, 0, FERRY_COMPARE_EQ, 0, 0, 0, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_wait_signal(t, NULL, 0, FERRY_COMPARE_EQ, 0, 0, 0, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_wait_signal(t, region, 4, FERRY_COMPARE_EQ, 0, 0, 0, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_flush(NULL, 0, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_flush(t, me->n_ranks, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_transport_progress(NULL, e));
    expect(me, ferry_transport_put(t, 0, NULL, 0, &buffer, NULL, NULL) == FERRY_ERR_MISUSE,
           "no error text");
    ferry_region_free(NULL);
    ferry_transport_close(NULL);
    expect(me,
           ferry_region_base(NULL) == NULL && ferry_region_bytes(NULL) == 0 &&
               ferry_region_pointer(NULL, 0) == NULL,
           "what a region that is none has");
}

/* Regions of one kind where another is wanted, memory of an unknown kind, a queue. */
static void wrong_kinds(rank_context *me, ferry_region *region, ferry_region *words)
{
    static unsigned char memory[MOST_RANKS][256];
    ferry_region *own = NULL;
    ferry_buffer buffer = ferry_buffer_of(memory[me->rank], sizeof memory[0]);
    must(me, ferry_region_register(me->transport, &buffer, &own, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_put(me, own, 0, "x", 1)); /* it is this rank's own */
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, 0, own, 0, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, 0, NULL, 0, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_wait_signal(me->transport, own, 0, FERRY_COMPARE_EQ, 0, 0, 0, NULL,
                                          NULL, &me->error));
    ferry_region_free(own);

    ferry_transport *other = open_transport(me, me->world, "");
    ferry_region *foreign = NULL;
    must(me, ferry_region_alloc(other, FERRY_MEMORY_HOST, 0, BYTES, &foreign, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_put(me, foreign, 0, "x", 1));
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, foreign, 0, words, 0, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, try_signal(me, region, 0, foreign, 0, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_wait_signal(me->transport, foreign, 0, FERRY_COMPARE_EQ, 0, 0, 0,
                                          NULL, NULL, &me->error));
    expect(me, mismatch_byte(base_of(foreign), BYTES, 0) == BYTES, "a foreign region was written");
    meet(me);
    ferry_region_free(foreign);
    ferry_transport_close(other);

    buffer = ferry_buffer_of("x", 1);
    buffer.kind = FERRY_MEMORY_CUDA;
    must_fail(
        me, FERRY_ERR_UNSUPPORTED, NULL,
        ferry_transport_put(me->transport, next_rank(me), region, 0, &buffer, NULL, &me->error));
    buffer = ferry_buffer_of(NULL, 1);
    must_fail(
        me, FERRY_ERR_MISUSE, NULL,
        ferry_transport_put(me->transport, next_rank(me), region, 0, &buffer, NULL, &me->error));
    buffer = ferry_buffer_of("x", 1);
    ferry_queue *queue = (ferry_queue *)me;
    must_fail(
        me, FERRY_ERR_MISUSE, "is no queue",
        ferry_transport_put(me->transport, next_rank(me), region, 0, &buffer, queue, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "is no queue",
              ferry_transport_flush(me->transport, next_rank(me), queue, &me->error));
}

/* What does not come in time is said, whatever the world is made of. */
static void receive_in_vain(rank_context *me)
{
    static const double limits[] = {0, 1e-300, 1e-3};
    const void *bytes;
    size_t n_bytes;
    char says[96];
    for (uint32_t i = 0; i < 2 * COUNT_OF(limits); i++) {
        bool is_any = i % 2 != 0;
        uint32_t tag = 4000 + i; /* of its own: what an earlier call said is not taken for its */
        snprintf(says, sizeof says,
                 is_any ? "no message with tag %u from any rank within "
                        : "no message with tag %u from rank %u within ",
                 tag, next_rank(me));
        must_fail(me, FERRY_ERR_TIMEOUT, says,
                  ferry_world_receive(me->world, is_any ? FERRY_ANY_RANK : next_rank(me), tag,
                                      limits[i / 2], &bytes, &n_bytes, NULL, &me->error));
    }
}

void case_misuse(rank_context *me)
{
    receive_in_vain(me);
    ferry_region *region = alloc_region(me, BYTES);
    ferry_region *words = alloc_region(me, 64);
    null_handles(me, region);
    wrong_kinds(me, region, words);
    check_untouched(me, region, words);
    ferry_region_free(region);
    ferry_region_free(words);
}
