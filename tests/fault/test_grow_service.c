/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A service on a world that has grown: rank 0 has the weights, the others are replicas. A newcomer
 * gets the version that the others have whole, and nobody sends them a byte; what they have stays
 * valid, and where it is, also when the newcomer dies in the run. Every version after it moves all.
 */
#include "processes.h"

#include <ferry/plan.h>
#include <ferry/service.h>
#include <ferry/spec.h>

enum { CHECKED, READY };
enum { RANKS = 3, ALL = 4, NEWCOMER = 3 };
enum { N_BYTES = 3 * 100 * 1000 }; /* of each of two tensors, several slots of it */

static char meeting[64];

typedef struct row {
    const char *name;
    const char *nodes;
    bool swaps;
    bool dies; /* the newcomer, in the run that is for it */
} row;

/* What a rank has: destinations are pairs where runs swap. */
typedef struct memory {
    unsigned char source[2][N_BYTES];
    unsigned char front[2][N_BYTES], back[2][N_BYTES];
} memory;

typedef struct replica {
    rank_process *self;
    const row *row;
    memory *has;
    ferry_tensors *sources, *destinations;
    ferry_service *service;
} replica;

#define must_do(r, call) so((r)->self, (call) == FERRY_OK)

/* One rank with all of it, and replicas behind it: those of the grown world are one more. */
static ferry_plan *make_plan(replica *r, ferry_world *world)
{
    static const char format[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": ["
        " {\"name\": \"a\", \"shape\": [3, 100000], \"dtype\": \"u8\"},"
        " {\"name\": \"b\", \"shape\": [3, 100000], \"dtype\": \"u8\"}],"
        " \"source\": {\"mesh\": [[\"dp\", 1]], \"rules\": [{\"match\": \"*\"}]},"
        " \"destination\": {\"mesh\": [[\"dp\", %u]], \"first_rank\": 1,"
        "  \"rules\": [{\"match\": \"*\"}]}}";
    char text[sizeof format + 16];
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    snprintf(text, sizeof text, format, (unsigned)ferry_world_rank_count(world) - 1);
    must_do(r, ferry_spec_parse(text, strlen(text), "test", &spec, &r->self->error));
    must_do(r, ferry_plan_create(spec, NULL, &plan, &r->self->error));
    ferry_spec_destroy(spec);
    return plan;
}

static void add_all(replica *r)
{
    static const char *const names[] = {"a", "b"};
    ferry_error *error = &r->self->error;
    must_do(r, ferry_tensors_create(&r->sources, error));
    must_do(r, ferry_tensors_create(&r->destinations, error));
    for (int i = 0; i < 2; i++) {
        ferry_buffer source = ferry_buffer_of(r->has->source[i], N_BYTES);
        ferry_buffer front = ferry_buffer_of(r->has->front[i], N_BYTES);
        ferry_buffer back = ferry_buffer_of(r->has->back[i], N_BYTES);
        must_do(r, ferry_tensors_add(r->sources, names[i], &source, error));
        must_do(r, r->row->swaps
                       ? ferry_tensors_add_pair(r->destinations, names[i], &front, &back, error)
                       : ferry_tensors_add(r->destinations, names[i], &front, error));
    }
}

static void open_service(replica *r, ferry_world *world, const ferry_ledger *ledger)
{
    ferry_error *error = &r->self->error;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_plan *plan = make_plan(r, world);
    options.commit = r->row->swaps ? FERRY_COMMIT_SWAP : FERRY_COMMIT_IN_PLACE;
    options.slot_bytes = 16 << 10;
    must_do(r, ferry_service_create(world, &options, &r->service, error));
    must_do(r, ferry_service_init(r->service, FERRY_LOG_ERROR, error));
    must_do(r, ferry_service_bind(r->service, plan, r->sources, r->destinations, error));
    if (ledger != NULL) {
        must_do(r, ferry_service_resume(r->service, ledger, error));
    }
    must_do(r, ferry_service_schedule(r->service, error));
    ferry_plan_destroy(plan);
}

static void fill(replica *r, uint64_t version)
{
    for (size_t i = 0; i < 2 * (size_t)N_BYTES; i++) {
        ((unsigned char *)r->has->source)[i] = (unsigned char)(i * 7 + i / 251 + version * 31);
    }
}

/* The destinations are valid, of this version, and bit for bit what the source had; on rank 0 there
 * are none. base_out: where the first of them is. */
static void check_version(replica *r, uint64_t version, const void **base_out)
{
    uint64_t n = ferry_service_destination_count(r->service);
    fill(r, version); /* the same on all ranks */
    for (uint64_t d = 0; d < n; d++) {
        ferry_destination its = FERRY_DESTINATION_INIT;
        must_do(r, ferry_service_destination_at(r->service, d, &its, &r->self->error));
        so(r->self, its.state == FERRY_TENSOR_VALID);
        so(r->self, its.version == version);
        so(r->self, memcmp(its.buffer.base, r->has->source[its.name[0] == 'b'], N_BYTES) == 0);
        if (base_out != NULL && d == 0) {
            *base_out = its.buffer.base;
        }
    }
}

static uint64_t count_received(replica *r)
{
    ferry_service_statistics found = FERRY_SERVICE_STATISTICS_INIT;
    must_do(r, ferry_service_get_statistics(r->service, &found, &r->self->error));
    return found.bytes_received + found.bytes_local;
}

/* The next version, which moves everything to everybody, new or not. */
static void check_next(replica *r, uint32_t rank, uint64_t version)
{
    fill(r, version);
    must_do(r, ferry_service_run(r->service, NULL, &r->self->error));
    so(r->self, ferry_service_version(r->service) == version);
    so(r->self, count_received(r) == (rank == 0 ? 0 : 2 * (uint64_t)N_BYTES));
    check_version(r, version, NULL);
}

static replica begin(rank_process *self)
{
    replica r = {.self = self, .row = self->context, .has = calloc(1, sizeof(memory))};
    so(self, r.has != NULL);
    add_all(&r);
    return r;
}

static void end(replica *r)
{
    ferry_service_destroy(r->service);
    ferry_tensors_destroy(r->sources);
    ferry_tensors_destroy(r->destinations);
    free(r->has);
}

/* The newcomer died while it was sent its bytes: the others have what they had. */
static void check_loss(replica *r, const void *base)
{
    const void *still = NULL;
    so(r->self, ferry_service_run(r->service, NULL, &r->self->error) == FERRY_ERR_PEER_LOST);
    if (r->self->rank != 0) {
        check_version(r, 3, &still);
        so(r->self, still == base);
    }
}

static void run_member(rank_process *self)
{
    replica r = begin(self);
    const row *its = r.row;
    const void *base = NULL, *after = NULL;
    ferry_world *larger = NULL;
    ferry_ledger *ledger = NULL;
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    open_service(&r, self->world, NULL);
    for (uint64_t version = 1; version <= 3; version++) {
        fill(&r, version);
        must_do(&r, ferry_service_run(r.service, NULL, &self->error));
    }
    check_version(&r, 3, &base);
    options.path = meeting;
    must_do(&r, ferry_world_grow(self->world, &options, &larger, &self->error));
    must_do(&r, ferry_service_take_ledger(r.service, &ledger, &self->error));
    so(self, ferry_ledger_bytes(ledger) == (self->rank == 0 ? 0 : 2 * (uint64_t)N_BYTES));
    ferry_service_destroy(r.service);
    open_service(&r, larger, ledger);
    ferry_ledger_destroy(ledger);
    check_version(&r, 3, &after);
    so(self, after == base);
    add_mark(self->shared, READY);
    if (its->dies) {
        check_loss(&r, base);
    } else {
        must_do(&r, ferry_service_run(r.service, NULL, &self->error));
        so(self, count_received(&r) == 0);
        so(self, ferry_service_version(r.service) == 3);
        check_version(&r, 3, &after);
        so(self, after == base);
        check_next(&r, self->rank, 4);
        check_next(&r, self->rank, 5);
    }
    end(&r);
    ferry_world_destroy(self->world);
    self->world = larger;
}

static void run_newcomer(rank_process *self)
{
    replica r = begin(self);
    must_do(&r, ferry_world_join(meeting, &self->options, &self->world, &self->error));
    open_service(&r, self->world, NULL);
    so(self, ferry_service_version(r.service) == 2); /* the third is not whole on all ranks */
    if (r.row->dies) {
        await_mark(self->shared, READY, RANKS);
        kill(getpid(), SIGKILL);
    }
    must_do(&r, ferry_service_run(r.service, NULL, &self->error));
    so(self, count_received(&r) == 2 * (uint64_t)N_BYTES);
    so(self, ferry_service_version(r.service) == 3);
    check_version(&r, 3, NULL);
    check_next(&r, NEWCOMER, 4);
    check_next(&r, NEWCOMER, 5);
    end(&r);
}

static void run_row(const row *its)
{
    processes all;
    rank_process like = patient_ranks(its->name, RANKS);
    like.options.nodes = its->nodes;
    like.context = its;
    snprintf(meeting, sizeof meeting, "/tmp/ferry-grow-service-%d", (int)getpid());
    start_processes(&all, &like, run_member);
    all.pids[NEWCOMER] = fork();
    assert_true(all.pids[NEWCOMER] >= 0);
    if (all.pids[NEWCOMER] == 0) {
        rank_process self = like;
        self.rank = NEWCOMER;
        self.shared = all.shared;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_newcomer(&self);
        ferry_world_destroy(self.world);
        _exit(0);
    }
    end_processes(its->name, &all, ALL, its->dies ? NEWCOMER : FERRY_ANY_RANK);
}

static void test_service(void **state)
{
    static const row rows[] = {
        {"in place, one node", "1", false, false},
        {"swap, one node", "1", true, false},
        {"dies, in place", "1", false, true},
        {"dies, swap", "1", true, true},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        run_row(&rows[i]);
    }
}

static void test_nodes(void **state)
{
    static const row rows[] = {
        {"in place, nodes", "3", false, false},
        {"swap, nodes", "3", true, false},
    };
    (void)state;
    need_ucx();
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        run_row(&rows[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_service),
                                       cmocka_unit_test(test_nodes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
