/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Random worlds of ranks (threads) that pack tasks and build a schedule, against slow and simple
 * versions of the packer and of both first-fit rules in this file; the optimal rule is checked for
 * what it promises. Groups, summaries and iterations must agree on all ranks.
 */
#include <ferry/ferry.h>
#include <ferry/reference.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "seed %llu: line %d: %s: %s\n", (unsigned long long)current_seed,      \
                    __LINE__, #condition, error.message);                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static unsigned long long current_seed;
static ferry_error error;
static uint64_t state;

static uint32_t pick(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

enum { MAX_WORLD = 8, MAX_TASKS = 24, MAX_SEGMENTS = 4096 };

/* The world. */

typedef struct task {
    uint64_t id, bytes, element;
} task;

typedef struct segment {
    uint64_t id, index, first, bytes;
    uint32_t batch;
} segment;

typedef struct pair {
    task tasks[MAX_TASKS];
    uint32_t n_tasks;
    segment segments[MAX_SEGMENTS];
    uint32_t n_segments;
    uint32_t n_batches;
} pair;

static pair pairs[MAX_WORLD][MAX_WORLD];
static uint32_t n_ranks, max_tasks;
static uint64_t slot;

static uint64_t random_id(void)
{
    uint64_t id = pick(2) == 0 ? pick(40) : ((uint64_t)pick(1u << 31) << 33) + pick(4);
    return pick(8) == 0 ? UINT64_MAX - pick(3) : id;
}

static void make_pair(pair *p, uint32_t density)
{
    static const uint64_t elements[] = {1, 2, 4, 8, 3};
    uint32_t n = pick(10) < density ? pick(MAX_TASKS) : 0;
    p->n_tasks = 0;
    for (uint32_t i = 0; i < n; i++) {
        task t = {.id = random_id(), .element = elements[pick(5)]};
        t.bytes = t.element * (1 + pick(pick(8) == 0 ? 300 : 12));
        bool is_new = true;
        for (uint32_t j = 0; j < p->n_tasks; j++) {
            is_new = is_new && p->tasks[j].id != t.id;
        }
        if (is_new) {
            p->tasks[p->n_tasks++] = t;
        }
    }
}

/* The slow packer: all segments, sorted by exchanging neighbours, then one after another. */

static bool goes_before(const segment *a, const segment *b)
{
    if (a->bytes != b->bytes) {
        return a->bytes > b->bytes;
    }
    return a->id != b->id ? a->id < b->id : a->index < b->index;
}

static void pack_slowly(pair *p)
{
    p->n_segments = p->n_batches = 0;
    for (uint32_t i = 0; i < p->n_tasks; i++) {
        const task *t = &p->tasks[i];
        uint64_t left = t->bytes, index = 0;
        while (left > 0) {
            uint64_t bytes = 0;
            while (bytes + t->element <= slot && bytes < left) {
                bytes += t->element;
            }
            segment s = {t->id, index++, t->bytes - left, bytes, 0};
            uint32_t at = p->n_segments++;
            CHECK(at < MAX_SEGMENTS);
            for (; at > 0 && goes_before(&s, &p->segments[at - 1]); at--) {
                p->segments[at] = p->segments[at - 1];
            }
            p->segments[at] = s;
            left -= bytes;
        }
    }
    uint64_t room = 0;
    uint32_t tasks = 0;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        if (p->n_batches == 0 || p->segments[i].bytes > room || tasks == max_tasks) {
            p->n_batches++;
            room = slot;
            tasks = 0;
        }
        room -= p->segments[i].bytes;
        tasks++;
        p->segments[i].batch = p->n_batches - 1;
    }
}

/* The slow rule: each batch into the first round whose sets of senders and receivers lack its
 * ranks.
 */

typedef struct batch {
    uint32_t from, to, index, round;
    uint64_t bytes;
} batch;

static batch batches[MAX_WORLD * MAX_WORLD * MAX_SEGMENTS];
static uint32_t n_batches;

static bool clash(const batch *a, const batch *b, bool half)
{
    return a->from == b->from || a->to == b->to || (half && (a->from == b->to || a->to == b->from));
}

static void first_fit_slowly(bool half)
{
    typedef struct round_sets {
        bool sends[MAX_WORLD], recvs[MAX_WORLD];
    } round_sets;
    round_sets *rounds = calloc(n_batches + 1, sizeof *rounds);
    for (uint32_t i = 0; i < n_batches; i++) {
        batch *b = &batches[i];
        uint32_t round = 0;
        while (rounds[round].sends[b->from] || rounds[round].recvs[b->to] ||
               (half && (rounds[round].recvs[b->from] || rounds[round].sends[b->to]))) {
            round++;
        }
        b->round = round;
        rounds[round].sends[b->from] = true;
        rounds[round].recvs[b->to] = true;
    }
    free(rounds);
}

static void list_batches(void)
{
    n_batches = 0;
    for (uint32_t from = 0; from < n_ranks; from++) {
        for (uint32_t to = 0; to < n_ranks; to++) {
            const pair *p = &pairs[from][to];
            for (uint32_t b = 0; b < p->n_batches && from != to; b++) {
                batch *new_batch = &batches[n_batches++];
                *new_batch = (batch){.from = from, .to = to, .index = b};
                for (uint32_t i = 0; i < p->n_segments; i++) {
                    new_batch->bytes += p->segments[i].batch == b ? p->segments[i].bytes : 0;
                }
            }
        }
    }
}

/* An exchange between threads. */

typedef struct hub {
    pthread_barrier_t barrier;
    const void *bytes[MAX_WORLD];
    size_t lengths[MAX_WORLD];
    size_t all_lengths[MAX_WORLD];
    char *all;
} hub;

typedef struct member {
    hub *h;
    uint32_t rank;
    ferry_reference_workloads *workloads;
    ferry_reference_schedule_options options;
    ferry_status status;
    ferry_error error;
    ferry_reference_schedule *schedule;
    ferry_reference_summaries *summaries;
} member;

static int all_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    member *m = context;
    hub *h = m->h;
    h->bytes[m->rank] = bytes;
    h->lengths[m->rank] = n_bytes;
    if (pthread_barrier_wait(&h->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
        size_t used = 0;
        for (uint32_t r = 0; r < n_ranks; r++) {
            used += h->lengths[r];
        }
        free(h->all);
        h->all = malloc(used + 1);
        used = 0;
        for (uint32_t r = 0; r < n_ranks; r++) {
            memcpy(h->all + used, h->bytes[r], h->lengths[r]);
            h->all_lengths[r] = h->lengths[r];
            used += h->lengths[r];
        }
    }
    pthread_barrier_wait(&h->barrier);
    *all_out = h->all;
    *lengths_out = h->all_lengths;
    return 0;
}

static void *run_member(void *argument)
{
    member *m = argument;
    ferry_exchange x = FERRY_EXCHANGE_INIT;
    x.context = m;
    x.rank = m->rank;
    x.n_ranks = n_ranks;
    x.all_gather = all_gather;
    m->status = ferry_reference_schedule_build(m->workloads, &m->options, &x, &m->schedule,
                                               &m->summaries, &m->error);
    return NULL;
}

/* Comparisons. */

static ferry_reference_workloads *make_workloads(uint32_t pe)
{
    ferry_reference_workloads *w = NULL;
    CHECK(ferry_reference_workloads_create(pe, n_ranks, &w, &error) == FERRY_OK);
    for (uint32_t to = n_ranks; to-- > 0;) {
        for (uint32_t i = 0; i < pairs[pe][to].n_tasks; i++) {
            const task *t = &pairs[pe][to].tasks[i];
            CHECK(ferry_reference_workloads_add_task(w, t->id, to, t->bytes, t->element, &error) ==
                  FERRY_OK);
        }
    }
    CHECK(ferry_reference_workloads_pack(w, slot, max_tasks, &error) == FERRY_OK);
    return w;
}

static void compare_batches(const ferry_reference_workloads *w, uint32_t from, uint32_t to,
                            const pair *p)
{
    uint32_t at = 0;
    CHECK(ferry_reference_workloads_batch_count(w, to) == p->n_batches);
    for (uint32_t b = 0; b < p->n_batches; b++) {
        ferry_reference_batch found = FERRY_REFERENCE_BATCH_INIT;
        uint64_t total = 0;
        CHECK(ferry_reference_workloads_batch_at(w, to, b, &found, &error) == FERRY_OK);
        CHECK(found.from == from && found.to == to && found.index == b &&
              found.round == FERRY_REFERENCE_NO_ROUND);
        for (uint32_t i = 0; i < ferry_reference_workloads_segment_count(w, to, b); i++, at++) {
            ferry_reference_segment_id id;
            uint64_t first, bytes;
            const segment *s = &p->segments[at];
            CHECK(ferry_reference_workloads_segment_at(w, to, b, i, &id, &first, &bytes, &error) ==
                  FERRY_OK);
            CHECK(at < p->n_segments && s->batch == b && id.task_id == s->id &&
                  id.segment_index == s->index && first == s->first && bytes == s->bytes);
            total += bytes;
        }
        CHECK(found.bytes == total && total <= slot);
    }
    CHECK(at == p->n_segments);
}

static void compare_summary(const ferry_reference_summaries *summaries, uint64_t number,
                            const batch *b)
{
    const pair *p = &pairs[b->from][b->to];
    ferry_reference_batch found = FERRY_REFERENCE_BATCH_INIT;
    uint32_t at = 0,
             n = ferry_reference_summaries_segment_count(summaries, b->from, b->to, b->index);
    CHECK(ferry_reference_summaries_at(summaries, number, &found, &error) == FERRY_OK);
    CHECK(found.from == b->from && found.to == b->to && found.index == b->index &&
          found.bytes == b->bytes);
    while (p->segments[at].batch != b->index) {
        at++;
    }
    for (uint32_t i = 0; i < n; i++, at++) {
        ferry_reference_segment_id id;
        uint64_t bytes;
        CHECK(ferry_reference_summaries_segment_at(summaries, b->from, b->to, b->index, i, &id,
                                                   &bytes, &error) == FERRY_OK);
        CHECK(at < p->n_segments && p->segments[at].batch == b->index &&
              p->segments[at].id == id.task_id && p->segments[at].index == id.segment_index &&
              p->segments[at].bytes == bytes);
    }
    CHECK(at == p->n_segments || p->segments[at].batch == b->index + 1);
}

static batch *find_batch(const ferry_reference_batch *found)
{
    batch *known = batches;
    while (known < batches + n_batches &&
           (known->from != found->from || known->to != found->to || known->index != found->index)) {
        known++;
    }
    CHECK(known < batches + n_batches && found->bytes == known->bytes);
    return known;
}

/* Looks up this rank's batches; the rounds of others are filled in by their own ranks. */
static uint32_t compare_schedule(const member *m, bool has_rounds)
{
    uint32_t n_own = 0, n_rounds = ferry_reference_schedule_round_count(m->schedule);
    for (uint32_t i = 0; i < n_rounds; i++) {
        ferry_reference_batch found = FERRY_REFERENCE_BATCH_INIT;
        bool sends = false, receives = false;
        CHECK(ferry_reference_schedule_send_at(m->schedule, i, &sends, &found, &error) == FERRY_OK);
        if (sends) {
            batch *known = find_batch(&found);
            CHECK(found.from == m->rank && found.round == i && (!has_rounds || known->round == i));
            known->round = i;
        }
        CHECK(ferry_reference_schedule_receive_at(m->schedule, i, &receives, &found, &error) ==
              FERRY_OK);
        if (receives) {
            const batch *known = find_batch(&found);
            CHECK(found.to == m->rank && found.round == i);
            CHECK((!has_rounds && m->rank < found.from) || known->round == i);
        }
        n_own += (sends ? 1u : 0u) + (receives ? 1u : 0u);
    }
    return n_own;
}

/* No two batches of a round clash, no round is empty, and there are as few as promised. */
static void check_optimum(uint32_t n_rounds, bool half)
{
    uint32_t sends[MAX_WORLD] = {0}, recvs[MAX_WORLD] = {0}, degree = 0;
    char *used = calloc(n_rounds + 1, 1);
    for (uint32_t i = 0; i < n_batches; i++) {
        CHECK(batches[i].round < n_rounds);
        used[batches[i].round] = 1;
        sends[batches[i].from]++;
        recvs[batches[i].to]++;
        for (uint32_t j = 0; j < i; j++) {
            CHECK(batches[j].round != batches[i].round || !clash(&batches[i], &batches[j], half));
        }
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint32_t d = half ? sends[r] + recvs[r] : sends[r] > recvs[r] ? sends[r] : recvs[r];
        degree = d > degree ? d : degree;
    }
    CHECK(half ? n_rounds <= degree + degree / 2 : n_rounds == degree);
    CHECK(memchr(used, 0, n_rounds) == NULL);
    free(used);
}

static void compare_world(member *members, bool has_rounds, bool half)
{
    uint32_t n_rounds = 0, n_listed = 0;
    char first[33], other[33];
    for (uint32_t i = 0; i < n_batches && has_rounds; i++) {
        n_rounds = batches[i].round + 1 > n_rounds ? batches[i].round + 1 : n_rounds;
    }
    ferry_reference_schedule_digest(members[0].schedule, first, sizeof first);
    for (uint32_t r = 0; r < n_ranks; r++) {
        const member *m = &members[r];
        ferry_reference_schedule_digest(m->schedule, other, sizeof other);
        CHECK(strcmp(first, other) == 0);
        CHECK(!has_rounds || ferry_reference_schedule_round_count(m->schedule) == n_rounds);
        CHECK(ferry_reference_summaries_count(m->summaries) == n_batches);
        n_listed += compare_schedule(m, has_rounds);
        for (uint32_t i = 0; i < n_batches; i++) {
            compare_summary(m->summaries, i, &batches[i]);
        }
    }
    CHECK(n_listed == 2 * n_batches);
    if (!has_rounds) {
        check_optimum(ferry_reference_schedule_round_count(members[0].schedule), half);
    }
}

static void build_among_ranks(ferry_reference_workloads **workloads, uint32_t rule, uint32_t duplex)
{
    hub h = {.all = NULL};
    member members[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    bool half = rule == FERRY_SCHEDULE_FIRST_FIT_HALF || duplex == FERRY_DUPLEX_HALF;
    pthread_barrier_init(&h.barrier, NULL, n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        members[r] = (member){.h = &h,
                              .rank = r,
                              .workloads = workloads[r],
                              .options = {sizeof(ferry_reference_schedule_options), rule, duplex}};
        pthread_create(&threads[r], NULL, run_member, &members[r]);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        pthread_join(threads[r], NULL);
        error = members[r].error;
        CHECK(members[r].status == FERRY_OK);
    }
    if (rule != FERRY_SCHEDULE_OPTIMAL) {
        first_fit_slowly(half);
    }
    compare_world(members, rule != FERRY_SCHEDULE_OPTIMAL, half);
    for (uint32_t r = 0; r < n_ranks; r++) {
        ferry_reference_schedule_destroy(members[r].schedule);
        ferry_reference_summaries_destroy(members[r].summaries);
    }
    pthread_barrier_destroy(&h.barrier);
    free(h.all);
}

static void run_seed(unsigned long long seed)
{
    static const uint64_t slots[] = {8, 16, 30, 100, 1000};
    ferry_reference_workloads *workloads[MAX_WORLD];
    current_seed = seed;
    state = seed * 0x9e3779b97f4a7c15u + 1;
    n_ranks = 1 + pick(MAX_WORLD);
    slot = slots[pick(5)];
    max_tasks = 1 + pick(pick(2) == 0 ? 3 : 40);
    uint32_t density = 1 + pick(slot < 100 ? 2 : 10);
    for (uint32_t from = 0; from < n_ranks; from++) {
        for (uint32_t to = 0; to < n_ranks; to++) {
            make_pair(&pairs[from][to], density);
            pack_slowly(&pairs[from][to]);
        }
    }
    list_batches();
    for (uint32_t r = 0; r < n_ranks; r++) {
        workloads[r] = make_workloads(r);
        for (uint32_t to = 0; to < n_ranks; to++) {
            compare_batches(workloads[r], r, to, &pairs[r][to]);
        }
    }
    build_among_ranks(workloads, FERRY_SCHEDULE_FIRST_FIT, pick(2));
    build_among_ranks(workloads, FERRY_SCHEDULE_FIRST_FIT_HALF, pick(2));
    build_among_ranks(workloads, FERRY_SCHEDULE_OPTIMAL, pick(2));
    for (uint32_t r = 0; r < n_ranks; r++) {
        ferry_reference_workloads_destroy(workloads[r]);
    }
}

int main(int n_arguments, char **arguments)
{
    unsigned long long first = n_arguments > 1 ? strtoull(arguments[1], NULL, 10) : 1;
    unsigned long long count = n_arguments > 2 ? strtoull(arguments[2], NULL, 10) : 200;
    for (unsigned long long seed = first; seed < first + count; seed++) {
        run_seed(seed);
    }
    printf("%llu seeds from %llu: packer, rules, summaries and iterations agree\n", count, first);
    return 0;
}
