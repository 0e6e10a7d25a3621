/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Signals by themselves: sequences, sums, comparisons, and waits that end without one. */
#include "conformance/suite.h"

/* One word, set in order: the reader never sees it go back. Another, added to. */
void case_signals(rank_context *me)
{
    uint64_t n = me->is_long ? 200000 : 5000;
    ferry_region *words = alloc_region(me, 4096);
    if (me->rank == 0) {
        for (uint64_t i = 1; i <= n; i++) {
            raise_signal(me, 1, words, 0, i, FERRY_SIGNAL_SET);
            raise_signal(me, 1, words, 511, 3, FERRY_SIGNAL_ADD);
        }
        flush(me, 1);
    } else {
        uint64_t last = 0;
        while (last < n) {
            uint64_t seen = wait_signal(me, words, 0, FERRY_COMPARE_GT, last, 0);
            expect(me, seen > last && seen <= n, "%llu after %llu", (unsigned long long)seen,
                   (unsigned long long)last);
            last = seen;
        }
        wait_signal(me, words, 511, FERRY_COMPARE_EQ, 3 * n, 0);
    }
    meet(me);
    if (me->rank == 0) { /* sums wrap around: minus one, then the largest, then none at all */
        raise_signal(me, 1, words, 511, UINT64_MAX, FERRY_SIGNAL_ADD);
        raise_signal(me, 1, words, 2, UINT64_C(0x8000000000000000), FERRY_SIGNAL_SET);
        raise_signal(me, 1, words, 2, UINT64_C(0x7fffffffffffffff), FERRY_SIGNAL_ADD);
        raise_signal(me, 1, words, 3, 0, FERRY_SIGNAL_ADD);
        raise_signal(me, 1, words, 4, 1, FERRY_SIGNAL_SET);
    } else {
        wait_signal(me, words, 4, FERRY_COMPARE_EQ, 1, 0);
        wait_signal(me, words, 511, FERRY_COMPARE_EQ, 3 * n - 1, 0);
        wait_signal(me, words, 2, FERRY_COMPARE_EQ, UINT64_MAX, 0);
        wait_signal(me, words, 3, FERRY_COMPARE_EQ, 0, 0);
    }
    meet(me);
    ferry_region_free(words);
}

/*
 * Additions of many ranks to one word are all counted, the target's own too. For a time and not a
 * number, so that ranks meet at the word even where they take turns on a core.
 */
void case_many_adders(rank_context *me)
{
    enum { SUM = 1, WANTED = 2, FINISHED = 3, MOST = 200000 };
    ferry_region *words = alloc_region(me, 64);
    uint64_t n = 0;
    meet(me);
    int64_t end_ns = now_ns() + (me->is_long ? INT64_C(3000000000) : INT64_C(300000000));
    while (n < 500 || (n < MOST && now_ns() < end_ns)) {
        raise_signal(me, 0, words, SUM, me->rank + 1, FERRY_SIGNAL_ADD);
        n++;
    }
    flush(me, 0);
    meet(me);
    raise_signal(me, 0, words, WANTED, n * (me->rank + 1), FERRY_SIGNAL_ADD);
    raise_signal(me, 0, words, FINISHED, 1, FERRY_SIGNAL_ADD);
    if (me->rank == 0) {
        wait_signal(me, words, FINISHED, FERRY_COMPARE_EQ, me->n_ranks, FERRY_ANY_RANK);
        uint64_t wanted = wait_signal(me, words, WANTED, FERRY_COMPARE_GE, 0, FERRY_ANY_RANK);
        uint64_t seen = wait_signal(me, words, SUM, FERRY_COMPARE_GE, 0, FERRY_ANY_RANK);
        expect(me, seen == wanted, "%llu, not %llu", (unsigned long long)seen,
               (unsigned long long)wanted);
    }
    flush(me, FERRY_ANY_RANK);
    meet(me);
    ferry_region_free(words);
}

static ferry_status look(rank_context *me, ferry_region *words, uint64_t word, uint32_t compare,
                         uint64_t value, uint64_t *seen_out)
{
    return ferry_transport_wait_signal(me->transport, words, word * 8, (ferry_compare)compare,
                                       value, FERRY_ANY_RANK, 0, seen_out, NULL, &me->error);
}

void case_compare(rank_context *me)
{
    static const struct {
        ferry_compare compare;
        uint64_t word, value;
        bool holds;
    } rows[] = {
        {FERRY_COMPARE_EQ, 7, 7, true},
        {FERRY_COMPARE_EQ, 7, 8, false},
        {FERRY_COMPARE_NE, 7, 8, true},
        {FERRY_COMPARE_NE, 7, 7, false},
        {FERRY_COMPARE_GE, 7, 7, true},
        {FERRY_COMPARE_GE, 7, 6, true},
        {FERRY_COMPARE_GE, 7, 8, false},
        {FERRY_COMPARE_GT, 7, 6, true},
        {FERRY_COMPARE_GT, 7, 7, false},
        {FERRY_COMPARE_GT, UINT64_MAX, INT64_MAX, true}, /* without a sign */
        {FERRY_COMPARE_GE, 0, UINT64_MAX, false},
        {FERRY_COMPARE_EQ, UINT64_C(1) << 32, 0, false}, /* all 64 bits */
    };
    ferry_region *words = alloc_region(me, 64);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint64_t seen = 99;
        raise_signal(me, next_rank(me), words, 0, rows[i].word, FERRY_SIGNAL_SET);
        raise_signal(me, next_rank(me), words, 1, i + 1, FERRY_SIGNAL_SET);
        wait_signal(me, words, 1, FERRY_COMPARE_EQ, i + 1, previous_rank(me));
        if (rows[i].holds) {
            must(me, look(me, words, 0, rows[i].compare, rows[i].value, &seen));
            expect(me, seen == rows[i].word, "row %zu: the word is %llu", i,
                   (unsigned long long)seen);
            must(me, look(me, words, 0, rows[i].compare, rows[i].value, NULL));
        } else {
            must_fail(me, FERRY_ERR_TIMEOUT, NULL,
                      look(me, words, 0, rows[i].compare, rows[i].value, &seen));
            expect(me, seen == 99, "row %zu: a failed call wrote its output", i);
        }
        flush(me, next_rank(me));
        meet(me);
    }
    must_fail(me, FERRY_ERR_MISUSE, NULL, look(me, words, 0, 4, 0, NULL));
    must_fail(me, FERRY_ERR_MISUSE, NULL, look(me, words, 8, FERRY_COMPARE_EQ, 0, NULL));
    meet(me);
    ferry_region_free(words);
}

/* A wait ends by its limit and names who did not come; the world stays well. */
void case_timeouts(rank_context *me)
{
    ferry_region *words = alloc_region(me, 64);
    uint32_t peer = next_rank(me);
    char name[32];
    snprintf(name, sizeof name, "rank %u", (unsigned)peer);
    static const double limits[] = {0, 0.001, 0.2};
    for (size_t i = 0; i < COUNT_OF(limits); i++) {
        int64_t begin_ns = now_ns();
        must_fail(me, FERRY_ERR_TIMEOUT, name,
                  ferry_transport_wait_signal(me->transport, words, 0, FERRY_COMPARE_EQ, 1, peer,
                                              limits[i], NULL, NULL, &me->error));
        double took = (double)(now_ns() - begin_ns) / 1e9;
        expect(me, took >= limits[i], "a limit of %g s took %g s", limits[i], took);
    }
    must_fail(me, FERRY_ERR_TIMEOUT, NULL,
              ferry_transport_wait_signal(me->transport, words, 0, FERRY_COMPARE_EQ, 1,
                                          FERRY_ANY_RANK, 0.01, NULL, NULL, &me->error));
    must(me, ferry_world_state(me->world, NULL, &me->error));
    must(me, ferry_transport_progress(me->transport, &me->error));
    meet(me);
    raise_signal(me, peer, words, 0, 1, FERRY_SIGNAL_SET);
    wait_signal(me, words, 0, FERRY_COMPARE_EQ, 1, peer);
    flush(me, peer);
    meet(me);
    ferry_region_free(words);
}
