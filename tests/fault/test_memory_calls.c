/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning and scheduling among ranks, one of which runs out of memory, at each of its allocations
 * in turn. Whatever it cannot do, it must come to every call of the exchange: the others wait for
 * it there.
 */
#include "failing.h"

#include "support/check.h"
#include "support/model.h"
#include "support/spec.h"

#include <pthread.h>

enum { N_RANKS = 3, MOST_BYTES = 1 << 16 };

/* Where the ranks meet. A rank that is gone comes to no meeting: who waits for it gives up. */
typedef struct hall {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    unsigned n_here, n_gone, turn;
    const void *sent[N_RANKS];
    size_t n_bytes[N_RANKS];
    const size_t *lengths; /* of what rank 0 scatters */
} hall;

typedef struct member {
    hall *hall;
    uint32_t rank;
    bool is_victim;
    int n_calls;
    bool was_left; /* waited for a rank that was gone */
    unsigned char all[N_RANKS * MOST_BYTES];
    size_t lengths[N_RANKS];
    ferry_status (*build)(struct member *self, ferry_error *error);
    ferry_status status;
    ferry_error error;
    pthread_t thread;
} member;

/* True: everybody is here. */
static bool meet(member *m)
{
    hall *h = m->hall;
    pthread_mutex_lock(&h->lock);
    unsigned turn = h->turn;
    if (++h->n_here == N_RANKS) {
        h->n_here = 0;
        h->turn++;
        pthread_cond_broadcast(&h->moved);
    }
    while (h->turn == turn && h->n_gone == 0) {
        pthread_cond_wait(&h->moved, &h->lock);
    }
    bool came = h->turn != turn;
    m->was_left = m->was_left || !came;
    pthread_mutex_unlock(&h->lock);
    return came;
}

static void leave(member *m)
{
    pthread_mutex_lock(&m->hall->lock);
    m->hall->n_gone++;
    pthread_cond_broadcast(&m->hall->moved);
    pthread_mutex_unlock(&m->hall->lock);
}

static int gather_all(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    member *m = context;
    size_t used = 0;
    m->hall->sent[m->rank] = bytes;
    m->hall->n_bytes[m->rank] = n_bytes;
    m->n_calls++;
    if (!meet(m)) {
        return 1;
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        m->lengths[r] = m->hall->n_bytes[r];
        if (used + m->lengths[r] > sizeof m->all) {
            return 1;
        }
        memcpy(m->all + used, m->lengths[r] == 0 ? "" : m->hall->sent[r], m->lengths[r]);
        used += m->lengths[r];
    }
    *all_out = m->all;
    *lengths_out = m->lengths;
    return meet(m) ? 0 : 1; /* before that, what others sent must stay */
}

static int gather_to_root(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                          const size_t **lengths_out)
{
    member *m = context;
    const void *all = NULL;
    const size_t *lengths = NULL;
    int failed = gather_all(context, bytes, n_bytes, &all, &lengths);
    if (m->rank == 0) {
        *all_out = all;
        *lengths_out = lengths;
    }
    return failed;
}

static int scatter(void *context, const void *all, const size_t *lengths, const void **mine_out,
                   size_t *n_bytes_out)
{
    member *m = context;
    m->n_calls++;
    if (m->rank == 0) {
        m->hall->sent[0] = all;
        m->hall->lengths = lengths;
    }
    if (!meet(m)) {
        return 1;
    }
    const unsigned char *mine = m->hall->sent[0];
    for (uint32_t r = 0; r < m->rank; r++) {
        mine += m->hall->lengths[r];
    }
    *n_bytes_out = m->hall->lengths[m->rank];
    if (*n_bytes_out > sizeof m->all) {
        return 1;
    }
    memcpy(m->all, *n_bytes_out == 0 ? (const unsigned char *)"" : mine, *n_bytes_out);
    *mine_out = m->all;
    return meet(m) ? 0 : 1;
}

static ferry_exchange exchange_of(member *m, bool with_root)
{
    ferry_exchange x = FERRY_EXCHANGE_INIT;
    x.context = m;
    x.rank = m->rank;
    x.n_ranks = N_RANKS;
    x.all_gather = gather_all;
    x.gather = with_root ? gather_to_root : NULL;
    x.scatter = with_root ? scatter : NULL;
    return x;
}

/* What every row needs, made once and only read. */
static ferry_model *source_models[N_RANKS], *destination_models[N_RANKS];
static ferry_plan *plan;

typedef ferry_status (*planner)(const ferry_model *, const ferry_model *, const uint64_t *,
                                const ferry_exchange *, const ferry_plan_options *,
                                ferry_reshard_plan **, ferry_error *);

static ferry_status plan_with(member *m, planner build, bool with_root, ferry_error *error)
{
    ferry_exchange x = exchange_of(m, with_root);
    ferry_reshard_plan *ops = NULL;
    ferry_status status =
        build(source_models[m->rank], destination_models[m->rank], NULL, &x, NULL, &ops, error);
    ferry_reshard_plan_destroy(ops);
    return status;
}

static ferry_status build_centralized(member *m, ferry_error *error)
{
    return plan_with(m, ferry_reshard_plan_build_centralized, true, error);
}

static ferry_status build_by_all_gather(member *m, ferry_error *error)
{
    return plan_with(m, ferry_reshard_plan_build_centralized, false, error);
}

static ferry_status build_local(member *m, ferry_error *error)
{
    return plan_with(m, ferry_reshard_plan_build_local, false, error);
}

static ferry_status schedule_with(member *m, bool with_root, ferry_error *error)
{
    ferry_exchange x = exchange_of(m, with_root);
    ferry_schedule *schedule = NULL;
    ferry_status status = ferry_schedule_build_rooted(plan, NULL, &x, &schedule, error);
    ferry_schedule_destroy(schedule);
    return status;
}

static ferry_status schedule_rooted(member *m, ferry_error *error)
{
    return schedule_with(m, true, error);
}

static ferry_status schedule_by_all_gather(member *m, ferry_error *error)
{
    return schedule_with(m, false, error);
}

static const struct {
    const char *name;
    ferry_status (*build)(member *self, ferry_error *error);
    int n_calls;
} rows[] = {
    {"centralized", build_centralized, 2},
    {"centralized by all-gather", build_by_all_gather, 2},
    {"local", build_local, 1},
    {"rooted schedule", schedule_rooted, 4},
    {"schedule by all-gather", schedule_by_all_gather, 3},
};

static void *run_member(void *argument)
{
    member *m = argument;
    failing_mine = m->is_victim;
    m->status = m->build(m, &m->error);
    failing_mine = false;
    leave(m);
    return NULL;
}

/* One run in which allocation n of the victim is refused. False: it needed no more. */
static bool run_world(size_t row, uint32_t victim, int64_t n, bool for_good)
{
    static member members[N_RANKS];
    hall h = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    int64_t live = failing_live;
    failing_start(n, for_good);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        members[r] =
            (member){.hall = &h, .rank = r, .is_victim = r == victim, .build = rows[row].build};
        assert_int_equal(pthread_create(&members[r].thread, NULL, run_member, &members[r]), 0);
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        pthread_join(members[r].thread, NULL);
    }
    bool refused = failing_stop();
    for (uint32_t r = 0; r < N_RANKS; r++) {
        const member *m = &members[r];
        check_at(m->n_calls == rows[row].n_calls && !m->was_left,
                 "%s, allocation %lld of rank %u refused: rank %u made %d of %d calls: %s",
                 rows[row].name, (long long)n, victim, r, m->n_calls, rows[row].n_calls,
                 m->status == FERRY_OK ? "" : m->error.message);
        check_at(m->status == FERRY_OK || refused, "%s: rank %u: %s", rows[row].name, r,
                 m->error.message);
        check_at(m->status == FERRY_OK || m->status == FERRY_ERR_NO_MEMORY ||
                     m->status == FERRY_ERR_EXCHANGE,
                 "%s: rank %u: %s", rows[row].name, r, m->error.message);
    }
    check_at(failing_live == live, "%s, allocation %lld of rank %u refused: %lld blocks are kept",
             rows[row].name, (long long)n, victim, (long long)(failing_live - live));
    return refused;
}

static void test_calls(void **state)
{
    (void)state;
    failing_by_thread = true;
    for (size_t row = 0; row < COUNT_OF(rows); row++) {
        for (uint32_t victim = 0; victim < N_RANKS; victim++) {
            for (int for_good = 0; for_good < 2; for_good++) {
                int64_t n = 0;
                while (run_world(row, victim, n, for_good == 1)) {
                    n++;
                }
                check_at(n > 3, "%s: rank %u allocates %lld times", rows[row].name, victim,
                         (long long)n);
            }
        }
    }
}

static int set_up(void **state)
{
    static const grid from = {.first = 0, .dp = 1, .tp = 2}, to = {.first = 1, .dp = 2, .tp = 1};
    ferry_error error;
    (void)state;
    for (uint32_t r = 0; r < N_RANKS; r++) {
        must(try_model(&from, r, &source_models[r], &error), &error);
        must(try_model(&to, r, &destination_models[r], &error), &error);
    }
    plan = plan_of("{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[6,10],'dtype':'u8'}],"
                   "'source':{'mesh':[['x',2]],'rules':[{'match':'a','shard':[{'dim':0,'axis':'x'"
                   "}]}]},'destination':{'mesh':[['x',2]],'first_rank':1,'rules':[{'match':'*'}]}}",
                   NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ferry_model_destroy(source_models[r]);
        ferry_model_destroy(destination_models[r]);
    }
    ferry_plan_destroy(plan);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
    };
    failing_init();
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
