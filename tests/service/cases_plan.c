/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Bound plans: tensors by name, other addresses, and versions that are swapped. */
#include "service/matrix.h"

#include <pthread.h>
#include <stdatomic.h>

static uint32_t replicas_of(const rank_context *me)
{
    return me->n_ranks % 2 == 0 ? 2 : 1;
}

/* memory: of the destinations. */
static void bind_once(rank_context *me, uint64_t number, bool from_ferry, bool swap)
{
    service_setup setup;
    uint64_t random = me->seed * 100 + number;
    setup_init(me, &setup, "");
    setup.options.slot_bytes =
        one_in(&random, 2) ? 0 : (1u << dice(&random, 8, 16)) + random_below(&random, 4);
    setup.options.checksum = random_below(&random, 3);
    setup.options.no_relays = one_in(&random, 2);
    setup.options.commit = swap ? FERRY_COMMIT_SWAP : FERRY_COMMIT_IN_PLACE;
    setup.options.paths = one_in(&random, 2) ? 0 : FERRY_PATH_STAGED;
    ferry_service *service = open_service(me, &setup.options);
    matrix *m =
        matrix_make(me, dice(&random, 1, MOST_TENSORS), replicas_of(me), dice(&random, 1, 9),
                    from_ferry ? ferry_service_transport(service) : NULL);
    matrix_schedule(me, m, service, swap);
    expect(me, ferry_service_destination_count(service) == m->n_tensors, "%llu destinations",
           (unsigned long long)ferry_service_destination_count(service));
    for (uint32_t version = 1; version <= 3; version++) {
        matrix_fill(me, m, version);
        must(me, ferry_service_run(service, NULL, &me->error));
        matrix_expect(me, m, swap ? version % 2 : 0, version, "a bound plan");
        for (uint32_t t = 0; t < m->n_tensors; t++) {
            ferry_destination found = destination_of(me, service, t);
            expect(me, found.state == FERRY_TENSOR_VALID && found.version == version,
                   "%s: state %u, version %llu", found.name, (unsigned)found.state,
                   (unsigned long long)found.version);
            expect(me, found.buffer.base == matrix_target(m, t, swap ? version % 2 : 0),
                   "%s lies elsewhere", found.name);
        }
    }
    clear_all(me, service);
    matrix_free(m);
    ferry_service_destroy(service);
}

void case_bind(rank_context *me)
{
    for (uint32_t i = 0; i < times_of(me, 6, 60); i++) {
        bind_once(me, i, i % 2 == 1, i % 3 == 2);
    }
}

/* Rank 0 puts one tensor where another is: all hear of it, and keep what they have. */
static void rebind_to_one(rank_context *me, ferry_service *service)
{
    ferry_tensors *same = NULL;
    must(me, ferry_tensors_create(&same, &me->error));
    for (uint64_t i = 0; i < 2; i++) {
        ferry_destination at = FERRY_DESTINATION_INIT, first = FERRY_DESTINATION_INIT;
        must(me, ferry_service_destination_at(service, i, &at, &me->error));
        must(me, ferry_service_destination_at(service, 0, &first, &me->error));
        must(me, ferry_tensors_add(same, at.name, &first.buffer, &me->error));
    }
    all_fail(me, FERRY_ERR_INVALID_INPUT, "write the same bytes",
             ferry_service_rebind(service, NULL, me->rank == 0 ? same : NULL, &me->error));
    ferry_tensors_destroy(same);
}

/* Other addresses on some ranks and for some tensors, with nothing planned again. */
void case_rebind(rank_context *me)
{
    service_setup setup;
    setup_init(me, &setup, "");
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 3, replicas_of(me), 4, NULL);
    matrix *other = matrix_make(me, 3, replicas_of(me), 4, NULL);
    matrix_schedule(me, m, service, false);
    matrix_fill(me, m, 1);
    must(me, ferry_service_run(service, NULL, &me->error));
    uint64_t n_schedules = statistics_of(me, service).n_schedules;
    for (uint32_t version = 2; version <= 6; version++) {
        bool moves = (me->rank + version) % 2 == 0;
        uint32_t which = moves ? version / 2 % 2 : 0;
        matrix *from = version % 2 == 0 ? other : m;
        ferry_tensors *sources = matrix_sources(me, from);
        ferry_tensors *targets = matrix_targets(me, m, which, false);
        must(me, ferry_service_rebind(service, sources, targets, &me->error));
        ferry_tensors_destroy(sources);
        ferry_tensors_destroy(targets);
        matrix_poison(me, m, 0);
        matrix_poison(me, m, 1);
        matrix_fill(me, m, version % 2 == 0 ? 99 : version);
        matrix_fill(me, other, version % 2 == 0 ? version : 99);
        must(me, ferry_service_run(service, NULL, &me->error));
        matrix_expect(me, m, which, version, "a plan bound anew");
        must(me, ferry_service_rebind(service, NULL, NULL, &me->error)); /* all stay */
        must(me, ferry_service_run(service, NULL, &me->error));
        matrix_expect(me, m, which, version, "a plan bound anew to the same");
    }
    expect(me, statistics_of(me, service).n_schedules == n_schedules, "%llu plannings after %llu",
           (unsigned long long)statistics_of(me, service).n_schedules,
           (unsigned long long)n_schedules);
    ferry_tensors *wrong = NULL;
    ferry_buffer buffer = ferry_buffer_of(other->source[0], 8);
    must(me, ferry_tensors_create(&wrong, &me->error));
    must(me, ferry_tensors_add(wrong, me->rank == 0 ? "m1" : "nobody's", &buffer, &me->error));
    all_fail(me, FERRY_ERR_INVALID_INPUT, "m1",
             ferry_service_rebind(service, wrong, NULL, &me->error));
    ferry_tensors_destroy(wrong);
    matrix_fill(me, m, 9);
    matrix_fill(me, other, 9);
    must(me, ferry_service_run(service, NULL, &me->error));
    rebind_to_one(me, service);
    matrix_fill(me, other, 10);
    must(me, ferry_service_run(service, NULL, &me->error));
    matrix_expect(me, m, (me->rank + 6) % 2 == 0, 10, "a plan that was not bound anew");
    ferry_service_destroy(service);
    matrix_free(m);
    matrix_free(other);
}

/* Reads the front all the time: it must be whole, in the version that it has. */
typedef struct reader {
    rank_context *me;
    const matrix *m;
    _Atomic uint64_t version; /* shown by target version % 2; UINT64_MAX: end */
    _Atomic uint64_t n_read, wrong;
    _Atomic bool pause, paused;
} reader;

static void *read_front(void *context)
{
    reader *self = context;
    uint64_t version;
    while ((version = atomic_load(&self->version)) != UINT64_MAX) {
        if (atomic_load(&self->pause)) {
            atomic_store(&self->paused, true);
            sleep_ms(1);
            continue;
        }
        for (uint32_t t = 0; t < self->m->n_tensors; t++) {
            uint64_t wrong = matrix_wrong(self->me, self->m, t, version % 2, version);
            atomic_fetch_add(&self->wrong, wrong);
        }
        atomic_fetch_add(&self->n_read, 1);
    }
    return NULL;
}

/* Both look into the same images of memory of devices: nobody reads from here on. */
static void hold_reader(reader *r)
{
    atomic_store(&r->paused, false);
    atomic_store(&r->pause, true);
    while (!atomic_load(&r->paused)) {
        sleep_ms(1);
    }
}

static void let_read(reader *r, uint64_t version)
{
    atomic_store(&r->version, version);
    atomic_store(&r->pause, false);
}

static bool refuse(void *context, const ferry_progress *progress)
{
    (void)context;
    (void)progress;
    return false;
}

/* front: the version of the bytes there, and by oddness the buffer. */
static void expect_front(rank_context *me, const matrix *m, const ferry_service *service,
                         uint64_t version, uint64_t front)
{
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        ferry_destination found = destination_of(me, service, t);
        expect(me, found.state == FERRY_TENSOR_VALID && found.version == version,
               "m%u: state %u, version %llu and not %llu", (unsigned)t, (unsigned)found.state,
               (unsigned long long)found.version, (unsigned long long)version);
        expect(me, found.buffer.base == matrix_target(m, t, front % 2), "m%u lies elsewhere",
               (unsigned)t);
    }
    matrix_expect(me, m, front % 2, front, "the front");
}

/* Some runs fail, others do not; who reads the front meanwhile sees whole versions only. */
void case_swap(rank_context *me)
{
    service_setup setup;
    pthread_t thread;
    reader r = {.me = me};
    uint64_t front = 1;
    uint64_t number = 0; /* of the service's version */
    setup_init(me, &setup, "");
    setup.options.commit = FERRY_COMMIT_SWAP;
    setup.options.slot_bytes = 2048;
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 2, replicas_of(me), 4, NULL);
    r.m = m;
    matrix_schedule(me, m, service, true);
    matrix_fill(me, m, front);
    must(me, ferry_service_run(service, NULL, &me->error));
    number = ferry_service_version(service);
    expect_front(me, m, service, number, front);
    atomic_store(&r.version, front);
    expect(me, pthread_create(&thread, NULL, read_front, &r) == 0, "no thread");
    for (uint32_t i = 0; i < times_of(me, 12, 60); i++) {
        bool cancel = i % 3 == 1;
        matrix_fill(me, m, front + 1);
        ferry_service_set_progress(service, cancel && me->rank == 0 ? refuse : NULL, NULL);
        ferry_status status = ferry_service_run(service, NULL, &me->error);
        all_same(me, "a run that swaps", status, status, NULL);
        expect(me, status == FERRY_OK || (cancel && status == FERRY_ERR_ABORTED), "%s: %s",
               ferry_status_name(status), me->error.message);
        if (status == FERRY_OK) {
            expect(me, ferry_service_version(service) > number, "version %llu after %llu",
                   (unsigned long long)ferry_service_version(service), (unsigned long long)number);
            number = ferry_service_version(service);
            front++;
        }
        hold_reader(&r);
        expect_front(me, m, service, number, front);
        let_read(&r, front);
    }
    atomic_store(&r.version, UINT64_MAX);
    pthread_join(thread, NULL);
    expect(me, atomic_load(&r.wrong) == 0, "%llu torn bytes were seen in %llu readings",
           (unsigned long long)r.wrong, (unsigned long long)r.n_read);
    ferry_service_destroy(service);
    matrix_free(m);
}

static void expect_bad_bind(rank_context *me, ferry_service *service, const ferry_plan *plan,
                            const ferry_tensors *sources, const ferry_tensors *targets,
                            const char *words)
{
    must_fail(me, FERRY_ERR_INVALID_INPUT, words,
              ferry_service_bind(service, plan, sources, targets, &me->error));
}

/* Sources hold version 5. */
static void swap_without_pairs(rank_context *me, const matrix *m, const ferry_plan *plan,
                               const ferry_tensors *sources, const ferry_tensors *targets)
{
    service_setup setup;
    ferry_tensors *pairs = matrix_targets(me, m, 0, true);
    setup_init(me, &setup, "");
    setup.options.commit = FERRY_COMMIT_SWAP;
    ferry_service *service = open_service(me, &setup.options);
    expect_bad_bind(me, service, plan, sources, targets, "m0");
    must(me, ferry_service_bind(service, plan, sources, pairs, &me->error));
    must(me, ferry_service_schedule(service, &me->error));
    must(me, ferry_service_run(service, NULL, &me->error));
    matrix_expect(me, m, 1, 5, "a pair");
    ferry_service_destroy(service);
    ferry_tensors_destroy(pairs);
}

void case_bad_plans(rank_context *me)
{
    service_setup setup;
    setup_init(me, &setup, "");
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 2, 1, 4, NULL);
    matrix *larger = matrix_make(me, 2, 1, 4, NULL);
    matrix *more = matrix_make(me, 3, 1, 4, NULL);
    ferry_plan *plan = matrix_plan(me, m, NULL, 0);
    ferry_tensors *sources = matrix_sources(me, m), *targets = matrix_targets(me, m, 0, false);
    ferry_tensors *short_ones = NULL;
    must(me, ferry_tensors_create(&short_ones, &me->error));
    ferry_buffer buffer = ferry_buffer_of(m->source[0], 3);
    must(me, ferry_tensors_add(short_ones, "m0", &buffer, &me->error));
    must_fail(me, FERRY_ERR_INVALID_INPUT, "m0",
              ferry_tensors_add(short_ones, "m0", &buffer, &me->error));
    must(me, ferry_tensors_add(short_ones, "m1", &buffer, &me->error));
    expect_bad_bind(me, service, plan, NULL, targets, "m0");
    expect_bad_bind(me, service, plan, sources, NULL, "m0");
    expect_bad_bind(me, service, plan, short_ones, targets, "m0");
    expect_bad_bind(me, service, plan, sources, short_ones, "m0");
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_service_bind(service, NULL, sources, targets, &me->error));
    larger->n_ranks++; /* a world that is not this one */
    ferry_plan *beyond = matrix_plan(me, larger, NULL, 0);
    larger->n_ranks--;
    must(me, ferry_service_clear_requests(service, &me->error));
    ferry_status status = ferry_service_bind(service, beyond, sources, targets, &me->error);
    expect(me, status == FERRY_ERR_INVALID_INPUT, "a plan for more ranks: %s",
           ferry_status_name(status));

    ferry_plan *third = matrix_plan(me, more, NULL, 0); /* a rank of another mind */
    ferry_tensors *sources3 = matrix_sources(me, more),
                  *targets3 = matrix_targets(me, more, 0, false);
    bool odd = me->n_ranks > 1 && me->rank == 1;
    must(me, ferry_service_clear_requests(service, &me->error));
    must(me, ferry_service_bind(service, odd ? third : plan, odd ? sources3 : sources,
                                odd ? targets3 : targets, &me->error));
    all_fail(me, me->n_ranks > 1 ? FERRY_ERR_DIGEST : FERRY_OK, NULL,
             ferry_service_schedule(service, &me->error));
    must(me, ferry_service_clear_requests(service, &me->error));
    must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
    must(me, ferry_service_schedule(service, &me->error));
    matrix_fill(me, m, 5);
    must(me, ferry_service_run(service, NULL, &me->error));
    matrix_expect(me, m, 0, 5, "after bad plans");
    ferry_service_destroy(service);

    swap_without_pairs(me, m, plan, sources, targets);
    ferry_plan_destroy(plan);
    ferry_plan_destroy(third);
    ferry_plan_destroy(beyond);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_tensors_destroy(sources3);
    ferry_tensors_destroy(targets3);
    ferry_tensors_destroy(short_ones);
    matrix_free(m);
    matrix_free(larger);
    matrix_free(more);
}

enum { RELAY_BYTES = 400000 };

/* Rank 0 has a tensor that all others want. */
static void bind_broadcast(rank_context *me, ferry_service *service, unsigned char *from,
                           unsigned char *to)
{
    char text[512];
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_tensors *sides[2];
    ferry_buffer source = ferry_buffer_of(from, RELAY_BYTES);
    ferry_buffer target = ferry_buffer_of(to, RELAY_BYTES);
    int length = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [%d],"
        " \"dtype\": \"u8\"}], \"source\": {\"mesh\": [[\"dp\", 1]], \"rules\": [{\"match\":"
        " \"*\"}]}, \"destination\": {\"mesh\": [[\"dp\", %u]], \"first_rank\": 1, \"rules\":"
        " [{\"match\": \"*\"}]}}",
        RELAY_BYTES, (unsigned)me->n_ranks - 1);
    must(me, ferry_spec_parse(text, (size_t)length, "one for all", &spec, &me->error));
    must(me, ferry_plan_create(spec, NULL, &plan, &me->error));
    must(me, ferry_tensors_create(&sides[0], &me->error));
    must(me, ferry_tensors_create(&sides[1], &me->error));
    must(me, ferry_tensors_add(sides[0], "w", &source, &me->error));
    must(me, ferry_tensors_add(sides[1], "w", &target, &me->error));
    must(me, ferry_service_bind(service, plan, sides[0], sides[1], &me->error));
    must(me, ferry_service_schedule(service, &me->error));
    ferry_tensors_destroy(sides[0]);
    ferry_tensors_destroy(sides[1]);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

/* Rounds, and relays with them, are for what takes a network's way: of slots alone it is sure. */
static void check_relayed(rank_context *me, const ferry_service *service, const char *what,
                          const ferry_service_options *options)
{
    ferry_service_statistics now = statistics_of(me, service);
    uint64_t direct = (me->n_ranks - 1) * (uint64_t)RELAY_BYTES;
    expect(me, !options->no_relays || now.bytes_relayed == 0, "%s: %llu bytes relayed", what,
           (unsigned long long)now.bytes_relayed);
    if (me->rank == 0 && options->no_relays) {
        expect(me, bytes_sent(&now) == direct, "%s: %llu bytes sent without relays", what,
               (unsigned long long)bytes_sent(&now));
    } else if (me->rank == 0 && options->paths == FERRY_PATH_STAGED) {
        expect(me, bytes_sent(&now) < direct, "%s: nothing was relayed", what);
    }
    expect(me, now.bytes_received == (me->rank == 0 ? 0 : RELAY_BYTES), "%s: %llu bytes received",
           what, (unsigned long long)now.bytes_received);
    expect(me, me->rank == 0 || bytes_sent(&now) == now.bytes_relayed,
           "%s: %llu bytes sent, %llu of them relayed", what, (unsigned long long)bytes_sent(&now),
           (unsigned long long)now.bytes_relayed);
}

/* Relays are on in every other case, and in half of these everything goes through slots. */
static void relay_once(rank_context *me, uint32_t number)
{
    static const uint64_t caps[] = {0, 64 << 10, 1 << 20};
    uint64_t random = me->seed * 100 + number;
    service_setup setup;
    char what[128];
    unsigned char *from = take(me, RELAY_BYTES), *to = take(me, RELAY_BYTES);
    bool flips = number % 4 != 0 && one_in(&random, 3);
    setup_init(me, &setup, flips ? "flip=20:" : "");
    setup.options.slot_bytes = 1u << dice(&random, 9, 16);
    setup.options.memory_cap = caps[random_below(&random, COUNT_OF(caps))];
    setup.options.max_tasks = random_below(&random, 2);
    setup.options.checksum = flips ? dice(&random, 1, 2) : random_below(&random, 3);
    setup.options.no_relays = number % 2 == 1;
    setup.options.paths = number % 4 == 2 ? 0 : FERRY_PATH_STAGED;
    snprintf(what, sizeof what, "slots %llu, cap %llu, checksum %u, paths %u, no relays %d",
             (unsigned long long)setup.options.slot_bytes,
             (unsigned long long)setup.options.memory_cap, (unsigned)setup.options.checksum,
             (unsigned)setup.options.paths, setup.options.no_relays);
    ferry_service *service = open_service(me, &setup.options);
    bind_broadcast(me, service, from, to);
    for (uint64_t run = 1; run <= 3; run++) {
        fill(from, RELAY_BYTES, run);
        memset(to, 0, RELAY_BYTES);
        ferry_status status = ferry_service_run(service, NULL, &me->error);
        all_same(me, what, status, status, NULL);
        expect(me, flips || status == FERRY_OK, "%s: %s", what, me->error.message);
        if (status == FERRY_OK) {
            expect(me, me->rank == 0 || mismatch(to, RELAY_BYTES, run) == RELAY_BYTES,
                   "%s, run %llu: byte %zu", what, (unsigned long long)run,
                   mismatch(to, RELAY_BYTES, run));
            check_relayed(me, service, what, &setup.options);
        }
    }
    ferry_service_destroy(service);
    free(from);
    free(to);
}

/* Who gets a tensor may pass it on, also when bits are flipped on the way. */
void case_relays(rank_context *me)
{
    for (uint32_t i = 0; i < times_of(me, 4, 60); i++) {
        relay_once(me, i);
    }
}
