/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any two different calls on different ranks of a world: rank 1 makes one, ranks 0 and 2 the other.
 * Each of the three must get FERRY_ERR_MISUSE with a sentence that names both, from its call or
 * from the world, and nobody may wait for a limit: the deadline is longer than the program lets a
 * case take.
 *
 *     fault_diverging_calls threads|processes [--share N] [--patience FACTOR] [ODD OTHERS]
 *
 * --share takes one pair of N, spread over all calls; two names take one pair.
 */
#include <ferry/ferry.h>
#include <ferry/mixed_comm.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_RANKS = 3, ODD = 1, TENSOR_BYTES = 4096, DEADLINE_SECONDS = 300, CASE_SECONDS = 150 };

/* What a rank has when the calls begin. */
typedef struct scene {
    uint32_t rank;
    ferry_world *world;
    ferry_transport *transport;
    ferry_region *region;
    ferry_service *scheduled[2], *registered, *fresh, *bound;
    ferry_mixed_comm *mixed[2], *constructed;
    ferry_buffer from, to;
} scene;

typedef struct result {
    ferry_status status;
    char sentence[FERRY_ERROR_BYTES];
} result;

static ferry_status register_ring(scene *s, ferry_service *service, ferry_error *error)
{
    uint32_t next = (s->rank + 1) % N_RANKS, before = (s->rank + N_RANKS - 1) % N_RANKS;
    ferry_status status =
        ferry_service_register_send(service, s->rank, &s->from, 0, TENSOR_BYTES, next, error);
    if (status == FERRY_OK) {
        status =
            ferry_service_register_receive(service, before, &s->to, 0, TENSOR_BYTES, before, error);
    }
    return status;
}

/*
 * The calls
 */

static ferry_status call_barrier(scene *s, ferry_error *error)
{
    return ferry_world_barrier(s->world, error);
}

static ferry_status call_all_gather(scene *s, ferry_error *error)
{
    const void *all;
    return ferry_world_all_gather(s->world, "abc", 3, &all, error);
}

static ferry_status call_all_gather_v(scene *s, ferry_error *error)
{
    const void *all;
    const size_t *lengths;
    return ferry_world_all_gather_v(s->world, "abcd", s->rank + 1, &all, &lengths, error);
}

static ferry_status call_broadcast(scene *s, ferry_error *error)
{
    const void *bytes;
    size_t n_bytes;
    return ferry_world_broadcast(s->world, 0, "abc", 3, &bytes, &n_bytes, error);
}

static ferry_status call_shrink(scene *s, ferry_error *error)
{
    ferry_world *world = NULL;
    return ferry_world_shrink(s->world, 0, &world, error);
}

static ferry_status call_start(scene *s, ferry_error *error)
{
    ferry_request *request = NULL;
    ferry_status status = ferry_service_start(s->scheduled[0], NULL, &request, error);
    return status == FERRY_OK ? ferry_request_wait(request, error) : status;
}

static ferry_status call_open(scene *s, ferry_error *error)
{
    ferry_transport *transport = NULL;
    ferry_status status = ferry_transport_open(s->world, NULL, &transport, error);
    ferry_transport_close(transport);
    return status;
}

static ferry_status call_region_alloc(scene *s, ferry_error *error)
{
    ferry_region *region = NULL;
    ferry_status status =
        ferry_region_alloc(s->transport, FERRY_MEMORY_HOST, 0, 64, &region, error);
    return status;
}

static ferry_status call_region_free(scene *s, ferry_error *error)
{
    ferry_region_free(s->region);
    s->region = NULL;
    return ferry_world_state(s->world, NULL, error);
}

static ferry_status call_init(scene *s, ferry_error *error)
{
    return ferry_service_init(s->fresh, FERRY_LOG_OFF, error);
}

static ferry_status call_schedule(scene *s, ferry_error *error)
{
    return ferry_service_schedule(s->registered, error);
}

static ferry_status call_run(scene *s, ferry_error *error)
{
    return ferry_service_run(s->scheduled[0], NULL, error);
}

static ferry_status call_run_other(scene *s, ferry_error *error)
{
    return ferry_service_run(s->scheduled[1], NULL, error);
}

static ferry_status call_finalize(scene *s, ferry_error *error)
{
    ferry_status status = ferry_service_finalize(s->scheduled[0], error);
    return status == FERRY_OK ? ferry_world_state(s->world, NULL, error) : status;
}

static ferry_status call_destroy(scene *s, ferry_error *error)
{
    ferry_service_destroy(s->scheduled[1]);
    s->scheduled[1] = NULL;
    return ferry_world_state(s->world, NULL, error);
}

static ferry_status call_recover(scene *s, ferry_error *error)
{
    uint64_t version;
    return ferry_service_recover(s->scheduled[0], s->world, &version, error);
}

/* Nodes with different numbers of ranks are divided by hand. */
static ferry_mixed_comm_options mixed_options(const scene *s)
{
    ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    options.use_autotune = false;
    if (getenv("FERRY_NODES") != NULL) {
        options.world_rank = options.inter_rank = s->rank;
        options.world_size = N_RANKS;
        options.local_size = 1;
        options.inter_size = N_RANKS;
    }
    return options;
}

static ferry_status call_rebind(scene *s, ferry_error *error)
{
    return ferry_service_rebind(s->bound, NULL, NULL, error);
}

static ferry_status call_mixed_create(scene *s, ferry_error *error)
{
    ferry_mixed_comm *comm = NULL;
    ferry_mixed_comm_options options = mixed_options(s);
    return ferry_mixed_comm_create(s->world, &options, &comm, error);
}

static ferry_status run_mixed(ferry_mixed_comm *comm, ferry_error *error)
{
    uint16_t in[4] = {0}, out[4] = {0};
    ferry_mixed_tensor from = {ferry_buffer_of(in, sizeof in), 1, 4};
    ferry_mixed_tensor to = {ferry_buffer_of(out, sizeof out), 1, 4};
    return ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE, &from, &to, FERRY_MIXED_MODE_DEFAULT,
                                NULL, error);
}

static ferry_status call_mixed_run(scene *s, ferry_error *error)
{
    return run_mixed(s->mixed[0], error);
}

static ferry_status call_mixed_run_other(scene *s, ferry_error *error)
{
    return run_mixed(s->mixed[1], error);
}

static ferry_status call_mixed_memory(scene *s, ferry_error *error)
{
    return ferry_mixed_comm_init_virtual_memory(s->constructed, error);
}

static ferry_status call_mixed_nvshmem(scene *s, ferry_error *error)
{
    return ferry_mixed_comm_init_nvshmem(s->constructed, error);
}

static ferry_status call_mixed_autotune(scene *s, ferry_error *error)
{
    return ferry_mixed_comm_run_autotune(s->mixed[0], error);
}

static ferry_status call_mixed_shutdown(scene *s, ferry_error *error)
{
    ferry_status status = ferry_mixed_comm_shutdown(s->mixed[0], error);
    return status == FERRY_OK ? ferry_world_state(s->world, NULL, error) : status;
}

static ferry_status call_mixed_destroy(scene *s, ferry_error *error)
{
    ferry_mixed_comm *comm = s->mixed[1];
    s->mixed[1] = NULL;
    ferry_mixed_comm_destroy(comm);
    return ferry_world_state(s->world, NULL, error);
}

/* What the sentence says of a call; within one mixed handle, which breaks and not the world, it has
 * its own words. */
static const struct call {
    const char *name;
    ferry_status (*make)(scene *s, ferry_error *error);
    const char *says;
    const char *mixed_says; /* NULL: it is no call of mixed[0] */
} calls[] = {
    {"barrier", call_barrier, "ferry_world_barrier", NULL},
    {"all_gather", call_all_gather, "ferry_world_all_gather", NULL},
    {"all_gather_v", call_all_gather_v, "ferry_world_all_gather_v", NULL},
    {"broadcast", call_broadcast, "ferry_world_broadcast", NULL},
    {"shrink", call_shrink, "ferry_world_shrink", NULL},
    {"open", call_open, "ferry_transport_open", NULL},
    {"region_alloc", call_region_alloc, "ferry_region_alloc", NULL},
    {"region_free", call_region_free, "ferry_region_free", NULL},
    {"init", call_init, "ferry_service_init", NULL},
    {"schedule", call_schedule, "ferry_service_schedule of service 3", NULL},
    {"run", call_run, "ferry_service_run of service 1", NULL},
    {"run_other", call_run_other, "ferry_service_run of service 2", NULL},
    {"start", call_start, "ferry_service_run of service 1", NULL},
    {"finalize", call_finalize, "ferry_service_finalize", NULL},
    {"destroy", call_destroy, "ferry_service_finalize of service 2", NULL},
    {"recover", call_recover, "ferry_service_recover", NULL},
    {"rebind", call_rebind, "ferry_service_rebind of service 4", NULL},
    {"mixed_create", call_mixed_create, "ferry_mixed_comm_create", NULL},
    {"mixed_memory", call_mixed_memory, "ferry_mixed_comm_init_virtual_memory", NULL},
    {"mixed_nvshmem", call_mixed_nvshmem, "ferry_mixed_comm_init_nvshmem", NULL},
    {"mixed_run", call_mixed_run, "ferry_mixed_comm_run of mixed collective 1", "all-reduce of 4"},
    {"mixed_run_other", call_mixed_run_other, "ferry_mixed_comm_run of mixed collective 2", NULL},
    {"mixed_autotune", call_mixed_autotune, "ferry_mixed_comm_run_autotune", "an autotune"},
    {"mixed_shutdown", call_mixed_shutdown, "ferry_mixed_comm_shutdown", "a shutdown"},
    {"mixed_destroy", call_mixed_destroy, "ferry_mixed_comm_shutdown of mixed collective 2", NULL},
};
enum { N_CALLS = sizeof calls / sizeof calls[0] };

/* The second handle's run and destroy are one handle's as well. */
static bool of_one_handle(size_t a, size_t b)
{
    bool second_a = calls[a].make == call_mixed_run_other || calls[a].make == call_mixed_destroy;
    bool second_b = calls[b].make == call_mixed_run_other || calls[b].make == call_mixed_destroy;
    return (calls[a].mixed_says != NULL && calls[b].mixed_says != NULL) || (second_a && second_b);
}

/*
 * The scene. Nothing is taken down after a case: the world has failed, or a handle of it, and the
 * process ends.
 */

static ferry_status make_service(scene *s, bool is_scheduled, ferry_service **service_out,
                                 ferry_error *error)
{
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    options.transport = s->transport;
    ferry_status status = ferry_service_create(s->world, &options, service_out, error);
    if (status == FERRY_OK) {
        status = ferry_service_init(*service_out, FERRY_LOG_OFF, error);
    }
    if (status == FERRY_OK) {
        status = register_ring(s, *service_out, error);
    }
    if (status == FERRY_OK && is_scheduled) {
        status = ferry_service_schedule(*service_out, error);
    }
    return status;
}

static const char SPEC[] =
    "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [3, 3],"
    " \"dtype\": \"u8\"}], \"source\": {\"mesh\": [[\"tp\", 3]], \"rules\": [{\"match\": \"*\","
    " \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}, \"destination\": {\"mesh\": [[\"tp\", 3]],"
    " \"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]}]}}";

/* A service with a plan, which is what can be bound anew. */
static ferry_status bind_plan(scene *s, ferry_plan *plan, ferry_error *error)
{
    ferry_tensors *sides[2] = {NULL, NULL};
    ferry_buffer memory[2] = {ferry_buffer_of(s->from.base, 3), ferry_buffer_of(s->to.base, 3)};
    ferry_status status = FERRY_OK;
    for (int i = 0; status == FERRY_OK && i < 2; i++) {
        status = ferry_tensors_create(&sides[i], error);
        if (status == FERRY_OK) {
            status = ferry_tensors_add(sides[i], "w", &memory[i], error);
        }
    }
    if (status == FERRY_OK) {
        status = ferry_service_bind(s->bound, plan, sides[0], sides[1], error);
    }
    ferry_tensors_destroy(sides[0]);
    ferry_tensors_destroy(sides[1]);
    return status;
}

static ferry_status make_bound(scene *s, ferry_error *error)
{
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_plan_options how = FERRY_PLAN_OPTIONS_INIT;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    options.transport = s->transport;
    ferry_status status = ferry_spec_parse(SPEC, sizeof SPEC - 1, "rows", &spec, error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, &how, &plan, error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_create(s->world, &options, &s->bound, error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_init(s->bound, FERRY_LOG_OFF, error);
    }
    if (status == FERRY_OK) {
        status = bind_plan(s, plan, error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_schedule(s->bound, error);
    }
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    return status;
}

static ferry_status make_mixed(scene *s, bool only_construct, ferry_mixed_comm **comm_out,
                               ferry_error *error)
{
    ferry_mixed_comm_options options = mixed_options(s);
    options.only_construct = only_construct;
    options.transport = s->transport;
    return ferry_mixed_comm_create(s->world, &options, comm_out, error);
}

static ferry_status make_scene(scene *s, ferry_error *error)
{
    ferry_service_options fresh = FERRY_SERVICE_OPTIONS_INIT;
    ferry_status status = ferry_transport_open(s->world, NULL, &s->transport, error);
    if (status == FERRY_OK) {
        status = ferry_region_alloc(s->transport, FERRY_MEMORY_HOST, 0, 64, &s->region, error);
    }
    if (status == FERRY_OK) {
        status =
            ferry_memory_alloc(s->transport, FERRY_MEMORY_HOST, 0, TENSOR_BYTES, &s->from, error);
    }
    if (status == FERRY_OK) {
        status =
            ferry_memory_alloc(s->transport, FERRY_MEMORY_HOST, 0, TENSOR_BYTES, &s->to, error);
    }
    for (int i = 0; status == FERRY_OK && i < 2; i++) {
        status = make_service(s, true, &s->scheduled[i], error);
    }
    if (status == FERRY_OK) {
        status = make_service(s, false, &s->registered, error);
    }
    if (status == FERRY_OK) {
        status = make_bound(s, error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_create(s->world, &fresh, &s->fresh, error);
    }
    for (int i = 0; status == FERRY_OK && i < 2; i++) {
        status = make_mixed(s, false, &s->mixed[i], error);
    }
    return status == FERRY_OK ? make_mixed(s, true, &s->constructed, error) : status;
}

/*
 * A case: processes that end when they are done, or are ended.
 */

typedef struct pair {
    size_t odd, others;
} pair;

static const struct call *call_of(const pair *p, uint32_t rank)
{
    return &calls[rank == ODD ? p->odd : p->others];
}

static void be_rank(const pair *p, ferry_world *world, uint32_t rank, result *result_out)
{
    scene s = {.rank = rank, .world = world};
    ferry_error error = {""};
    ferry_error state = {""};
    *result_out = (result){.status = make_scene(&s, &error)};
    if (result_out->status != FERRY_OK) {
        snprintf(result_out->sentence, sizeof result_out->sentence, "the scene: %.900s",
                 error.message);
        return;
    }
    result_out->status = call_of(p, rank)->make(&s, &error);
    if (of_one_handle(p->odd, p->others)) {
        /* As every program does whose handle has broken: a destroy waits for the others'. */
        ferry_mixed_comm_destroy(s.mixed[0]);
        ferry_mixed_comm_destroy(s.mixed[1]);
    }
    memcpy(result_out->sentence, error.message, sizeof error.message);
    if (result_out->status == FERRY_OK) {
        result_out->status = ferry_world_state(world, NULL, &state);
        memcpy(result_out->sentence, state.message, sizeof state.message);
    }
}

typedef struct rank_thread {
    const pair *p;
    ferry_world *world;
    uint32_t rank;
    result result;
} rank_thread;

static void *thread_main(void *argument)
{
    rank_thread *self = argument;
    be_rank(self->p, self->world, self->rank, &self->result);
    return NULL;
}

static void say(int fd, const result *one)
{
    if (write(fd, one, sizeof *one) != (ssize_t)sizeof *one) {
        _exit(3);
    }
}

static void be_threads(const pair *p, int fd)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_world *worlds[N_RANKS];
    rank_thread ranks[N_RANKS];
    pthread_t threads[N_RANKS];
    options.deadline_seconds = DEADLINE_SECONDS;
    if (ferry_world_create_threads(N_RANKS, &options, worlds, NULL) != FERRY_OK) {
        _exit(4);
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ranks[r] = (rank_thread){.p = p, .world = worlds[r], .rank = r};
        if (pthread_create(&threads[r], NULL, thread_main, &ranks[r]) != 0) {
            _exit(4);
        }
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        pthread_join(threads[r], NULL);
        say(fd, &ranks[r].result);
    }
}

static void be_process(const pair *p, const char *meeting, uint32_t rank, int fd, int go)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_world *world = NULL;
    result one = {0};
    ferry_error error;
    char byte;
    options.deadline_seconds = DEADLINE_SECONDS;
    options.join_seconds = CASE_SECONDS;
    options.secret = "a test";
    one.status = ferry_world_create_from_file(meeting, rank, N_RANKS, &options, &world, &error);
    if (one.status != FERRY_OK) {
        snprintf(one.sentence, sizeof one.sentence, "the world: %.900s", error.message);
    } else {
        be_rank(p, world, rank, &one);
    }
    say(fd, &one);
    /* Whose process ends is lost: not before all have said what they found. */
    while (read(go, &byte, 1) < 0 && errno == EINTR) {}
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool read_result(int fd, double until, result *one)
{
    struct pollfd waits = {.fd = fd, .events = POLLIN};
    while (now() < until) {
        if (poll(&waits, 1, 200) > 0) {
            return read(fd, one, sizeof *one) == (ssize_t)sizeof *one;
        }
    }
    return false;
}

static bool is_right(const pair *p, uint32_t rank, const result *one, char *why, size_t why_bytes)
{
    const struct call *odd = &calls[p->odd], *others = &calls[p->others];
    bool one_handle = of_one_handle(p->odd, p->others);
    /* A destroy cannot say that its handle has broken. */
    if (one_handle && call_of(p, rank)->make == call_mixed_destroy) {
        return true;
    }
    const char *says[2] = {odd->says, others->says};
    if (one_handle && odd->mixed_says != NULL) {
        says[0] = odd->mixed_says;
        says[1] = others->mixed_says;
    } else if (one_handle) {
        says[0] = "a shutdown";
        says[1] = "all-reduce of 4";
    }
    if (one->status != FERRY_ERR_MISUSE || strstr(one->sentence, says[0]) == NULL ||
        strstr(one->sentence, says[1]) == NULL) {
        snprintf(why, why_bytes, "rank %u: %s: \"%s\", where \"%s\" and \"%s\" were awaited", rank,
                 ferry_status_name(one->status), one->sentence, says[0], says[1]);
        return false;
    }
    return true;
}

/* The pids are waited for by number: nobody else's process is touched. */
static bool run_case(const pair *p, bool threads, double patience, char *why, size_t why_bytes)
{
    uint32_t n_processes = threads ? 1 : N_RANKS;
    pid_t pids[N_RANKS];
    int results[N_RANKS][2], go[2];
    char meeting[96];
    double until = now() + CASE_SECONDS * patience;
    bool fine = true;
    snprintf(meeting, sizeof meeting, "/tmp/ferry-diverging-%d-%zu-%zu", getpid(), p->odd,
             p->others);
    if (pipe(go) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < n_processes; i++) {
        if (pipe(results[i]) != 0 || (pids[i] = fork()) < 0) {
            snprintf(why, why_bytes, "no process: %s", strerror(errno));
            return false;
        }
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(go[1]);
            if (threads) {
                be_threads(p, results[i][1]);
            } else {
                be_process(p, meeting, i, results[i][1], go[0]);
            }
            _exit(0);
        }
        close(results[i][1]);
    }
    for (uint32_t r = 0; r < N_RANKS && fine; r++) {
        result one;
        if (!read_result(results[threads ? 0 : r][0], until, &one)) {
            snprintf(why, why_bytes, "rank %u has not come back", r);
            fine = false;
        } else {
            fine = is_right(p, r, &one, why, why_bytes);
        }
    }
    close(go[0]);
    close(go[1]);
    for (uint32_t i = 0; i < n_processes; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        close(results[i][0]);
    }
    unlink(meeting);
    return fine;
}

static size_t call_named(const char *name)
{
    for (size_t i = 0; i < N_CALLS; i++) {
        if (strcmp(calls[i].name, name) == 0) {
            return i;
        }
    }
    return N_CALLS;
}

int main(int argc, char **argv)
{
    double patience = 1;
    unsigned share = 1;
    pair only = {N_CALLS, N_CALLS};
    bool threads = argc > 1 && strcmp(argv[1], "threads") == 0;
    if (argc < 2 || (!threads && strcmp(argv[1], "processes") != 0)) {
        fprintf(stderr, "usage: %s threads|processes [--share N] [--patience N] [ODD OTHERS]\n",
                argv[0]);
        return 2;
    }
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--share") == 0) {
            share = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--patience") == 0) {
            patience = strtod(argv[i + 1], NULL);
        } else {
            only = (pair){call_named(argv[i]), call_named(argv[i + 1])};
        }
    }
    size_t n_run = 0, n_wrong = 0, number = 0;
    for (size_t odd = 0; odd < N_CALLS; odd++) {
        for (size_t others = 0; others < N_CALLS; others++) {
            pair p = {odd, others};
            char why[2 * FERRY_ERROR_BYTES];
            bool asks = only.odd == N_CALLS ? number % share == 0
                                            : only.odd == odd && only.others == others;
            bool one_call = strcmp(calls[odd].says, calls[others].says) == 0;
            /* A run is a start and a wait; and the second of two that shrink may come when the
             * world has failed by the first, and then it shrinks. */
            if (one_call || calls[others].make == call_shrink) {
                continue;
            }
            number++;
            if (!asks) {
                continue;
            }
            n_run++;
            if (!run_case(&p, threads, patience, why, sizeof why)) {
                n_wrong++;
                printf("rank %d %s, others %s: %s\n", ODD, calls[odd].name, calls[others].name,
                       why);
                fflush(stdout);
            }
        }
    }
    printf("%zu pairs of calls, %zu wrong\n", n_run, n_wrong);
    return n_run == 0 || n_wrong != 0;
}
