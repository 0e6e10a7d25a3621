/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric memory of devices, on rows where an engine carries it beside those of the host's
 * memory: puts out of every kind of memory, and signals, which go another way and must not overtake
 * them.
 */
#include "conformance/suite.h"

#include "support/devices.h"

enum { PART = 60000, N_WORDS = 64, MOST_PUTS = 6 };

/* Bytes of this rank's part of a region, or of other memory of its device. */
static ferry_buffer device_bytes(const rank_context *me, void *base, uint64_t bytes)
{
    ferry_buffer buffer = ferry_buffer_of(base, bytes);
    buffer.kind = device_kind();
    buffer.device = own_device(me);
    return buffer;
}

/* What rank `from` puts at rank `to` in a round, as a copy in the host's memory; and where. */
typedef struct piece {
    uint64_t offset, bytes, seed;
} piece;

static uint32_t draw(const rank_context *me, uint32_t from, uint32_t to, uint32_t round,
                     piece pieces[MOST_PUTS])
{
    uint64_t random = seed_of(me, round, from, to), at = 0;
    uint32_t n = 0;
    while (n < MOST_PUTS) {
        uint64_t gap = random_below(&random, 300), bytes = 1 + random_below(&random, PART / 4);
        if (at + gap + bytes > PART) {
            break;
        }
        pieces[n++] = (piece){.offset = at + gap,
                              .bytes = bytes,
                              .seed = seed_of(me, round * 100 + n, from, 1000 + to)};
        at += gap + bytes;
    }
    return n;
}

/* Where sources lie: part 0 to n - 1 of a region are what others write, and behind them is room. */
typedef struct memory {
    ferry_region *region, *words;
    ferry_buffer far; /* of the same device, and not the engine's */
    unsigned char *host;
} memory;

static void put_one(rank_context *me, const memory *m, uint32_t to, const piece *one, uint32_t kind,
                    const ferry_signal *signal)
{
    ferry_buffer host = ferry_buffer_of(m->host + one->offset, one->bytes);
    char *room = (char *)ferry_region_base(m->region) + me->n_ranks * PART;
    ferry_buffer source = host;
    fill(host.base, host.bytes, one->seed);
    if (kind == 1) {
        source = device_bytes(me, room + one->offset, one->bytes);
    } else if (kind == 2) {
        source = device_bytes(me, (char *)m->far.base + one->offset, one->bytes);
    }
    if (kind != 0) {
        copy_flat(me, source, host);
    }
    uint64_t offset = me->rank * PART + one->offset;
    if (signal != NULL) {
        must(me, ferry_transport_put_signal(me->transport, to, m->region, offset, &source, signal,
                                            NULL, &me->error));
    } else {
        must(me,
             ferry_transport_put(me->transport, to, m->region, offset, &source, NULL, &me->error));
    }
}

/* The signal comes with the last bytes, or alone, behind all of them. */
static void put_round(rank_context *me, const memory *m, uint32_t to, uint32_t round)
{
    piece pieces[MOST_PUTS];
    uint64_t random = seed_of(me, round, me->rank, 77 + to);
    uint32_t n = draw(me, me->rank, to, round, pieces), kind = random_below(&random, 3);
    bool is_alone = random_below(&random, 2) == 0;
    ferry_signal signal = {.region = m->words, .offset = 8 * (uint64_t)me->rank, .value = round};
    for (uint32_t i = 0; i < n; i++) {
        put_one(me, m, to, &pieces[i], kind, i + 1 == n && !is_alone ? &signal : NULL);
    }
    if (is_alone || n == 0) {
        ferry_buffer nothing = ferry_buffer_of(NULL, 0);
        must(me, ferry_transport_put_signal(me->transport, to, m->region, 0, &nothing, &signal,
                                            NULL, &me->error));
    }
}

static void check_round(rank_context *me, const memory *m, uint32_t from, uint32_t round,
                        unsigned char *image)
{
    piece pieces[MOST_PUTS];
    uint32_t n = draw(me, from, me->rank, round, pieces);
    unsigned char *found = take(me, PART);
    for (uint32_t i = 0; i < n; i++) {
        fill(image + pieces[i].offset, pieces[i].bytes, pieces[i].seed);
    }
    copy_flat(me, ferry_buffer_of(found, PART),
              device_bytes(me, (char *)ferry_region_base(m->region) + from * PART, PART));
    uint64_t bad = 0;
    while (bad < PART && found[bad] == image[bad]) {
        bad++;
    }
    expect(me, bad == PART, "round %u: byte %llu from rank %u", (unsigned)round,
           (unsigned long long)bad, (unsigned)from);
    free(found);
}

/* Of ranks whose memory is mapped here devices copy it; NVSHMEM fetches nothing. */
static void get_from_all(rank_context *me, const memory *m)
{
    for (uint32_t k = 1; k < me->n_ranks; k++) {
        uint32_t peer = (me->rank + k) % me->n_ranks;
        bool is_mapped = ferry_region_pointer(m->region, peer) != NULL;
        ferry_status status =
            ferry_transport_get(me->transport, peer, m->region, 0, &m->far, NULL, &me->error);
        expect(me, status == (is_mapped ? FERRY_OK : FERRY_ERR_UNSUPPORTED),
               "a get from rank %u: %s", (unsigned)peer, ferry_status_name(status));
        bool says_why = strstr(me->error.message, "put") != NULL;
        expect(me, is_mapped || says_why, "a get is refused with: %s", me->error.message);
    }
}

static void refuse(rank_context *me, const memory *m)
{
    ferry_region *other = NULL;
    ferry_buffer far = m->far;
    int32_t wrong = (own_device(me) + 1) % device_kind_count();
    if (device_kind_count() > 1) {
        all_fail(me, FERRY_ERR_UNSUPPORTED, "is memory of its device",
                 ferry_region_alloc(me->transport, device_kind(), wrong, 4096, &other, &me->error));
    }
    all_fail(me, FERRY_ERR_NO_MEMORY, "NVSHMEM_SYMMETRIC_SIZE",
             ferry_region_alloc(me->transport, device_kind(), own_device(me), (uint64_t)1 << 40,
                                &other, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "past its end",
              ferry_transport_put(me->transport, (me->rank + 1) % me->n_ranks, m->region,
                                  (me->n_ranks + 1) * PART - 1, &far, NULL, &me->error));
}

/*
 * Bytes for each of the others; then others of the own node are flushed, which tells nothing of the
 * bytes; and a signal, that comes with no bytes at all.
 */
static void put_and_flush_others(rank_context *me, const memory *m, uint32_t round)
{
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_signal signal = {.region = m->words, .offset = 8 * (uint64_t)me->rank, .value = round};
    const piece whole = {.bytes = PART, .seed = seed_of(me, round, me->rank, 5)};
    uint32_t own_node = ferry_world_node_of(me->world, me->rank);
    for (uint32_t k = 1; k < me->n_ranks; k++) {
        uint32_t to = (me->rank + k) % me->n_ranks;
        put_one(me, m, to, &whole, 1, NULL);
        for (uint32_t other = 0; other < me->n_ranks; other++) {
            if (other != to && ferry_world_node_of(me->world, other) == own_node) {
                must(me, ferry_transport_flush(me->transport, other, NULL, &me->error));
            }
        }
        must(me, ferry_transport_put_signal(me->transport, to, m->region, 0, &nothing, &signal,
                                            NULL, &me->error));
    }
}

static void check_others(rank_context *me, const memory *m, uint32_t round, unsigned char *images)
{
    unsigned char *found = take(me, PART);
    for (uint32_t from = 0; from < me->n_ranks; from++) {
        if (from == me->rank) {
            continue;
        }
        wait_signal(me, m->words, from, FERRY_COMPARE_GE, round, from);
        fill(images + from * PART, PART, seed_of(me, round, from, 5));
        copy_flat(me, ferry_buffer_of(found, PART),
                  device_bytes(me, (char *)ferry_region_base(m->region) + from * PART, PART));
        expect(me, memcmp(found, images + from * PART, PART) == 0,
               "round %u: a signal of rank %u has overtaken its bytes", (unsigned)round,
               (unsigned)from);
    }
    free(found);
    meet(me);
}

void case_aside(rank_context *me)
{
    memory m = {.host = take(me, PART)};
    unsigned char *images = take(me, me->n_ranks * PART);
    must(me, ferry_region_alloc(me->transport, device_kind(), own_device(me),
                                (me->n_ranks + 1) * PART, &m.region, &me->error));
    m.words = alloc_region(me, N_WORDS * 8);
    must(me, ferry_memory_alloc(NULL, device_kind(), own_device(me), PART, &m.far, &me->error));
    memset(images, 0, me->n_ranks * PART); /* the region is zero */
    refuse(me, &m);
    get_from_all(me, &m);
    for (uint32_t round = 1; round <= (me->is_long ? 300u : 30u); round++) {
        for (uint32_t k = 1; k <= me->n_ranks; k++) {
            uint32_t to = (me->rank + k) % me->n_ranks;
            put_round(me, &m, to, round);
            must(me, ferry_transport_flush(me->transport, to, NULL, &me->error));
        }
        for (uint32_t from = 0; from < me->n_ranks; from++) {
            wait_signal(me, m.words, from, FERRY_COMPARE_GE, round, from);
            check_round(me, &m, from, round, images + from * PART);
        }
        meet(me);
        put_and_flush_others(me, &m, 1000 + round);
        check_others(me, &m, 1000 + round, images);
        ferry_signal again = {.region = m.words, .value = 0};
        for (uint32_t from = 0; from < me->n_ranks; from++) { /* words of the next round */
            again.offset = 8 * (uint64_t)from;
            ferry_buffer nothing = ferry_buffer_of(NULL, 0);
            must(me, ferry_transport_put_signal(me->transport, me->rank, m.words, 0, &nothing,
                                                &again, NULL, &me->error));
        }
        meet(me);
    }
    ferry_memory_free(&m.far);
    ferry_region_free(m.words);
    ferry_region_free(m.region);
    free(images);
    free(m.host);
}
