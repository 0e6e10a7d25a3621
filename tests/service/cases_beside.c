/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Services and mixed collectives side by side on one world. All ranks make them in one order; each
 * starts their runs, and waits for them, in an order of its own.
 */
#include "service/scene.h"

#include <ferry/mixed_comm.h>

enum { N_SERVICES = 2, N_OBJECTS = 2 * N_SERVICES, COLUMNS = 700 };

/* A service with its scene, or a mixed collective that sums over all ranks. */
typedef struct object {
    uint64_t number; /* of all that were ever made */
    scene *scene;
    scene_memory memory;
    ferry_service *service; /* NULL: a collective */
    ferry_mixed_comm *comm;
    float in[COLUMNS], out[COLUMNS];
    ferry_request *request;
} object;

static void open_a_service(rank_context *me, object *o)
{
    scene_limits limits = {.most_tasks = 12, .most_bytes = 5000};
    service_setup setup;
    setup_init(me, &setup, "");
    o->service = open_service(me, &setup.options);
    o->scene = take(me, sizeof *o->scene);
    scene_draw(o->scene, me->seed * 70 + o->number, me->n_ranks, &limits);
    scene_take(me, o->scene, ferry_service_transport(o->service), &o->memory);
    scene_register(me, o->scene, o->service, &o->memory);
    must(me, ferry_service_schedule(o->service, &me->error));
}

static void open_a_collective(rank_context *me, object *o)
{
    ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    char engines[160];
    options.dtype = FERRY_F32;
    options.use_autotune = false;
    options.grid_size = 1;
    options.engines = engines_of(me, "", engines, sizeof engines);
    must(me, ferry_mixed_comm_create(me->world, &options, &o->comm, &me->error));
}

static object *open_object(rank_context *me, uint64_t number)
{
    object *o = take(me, sizeof *o);
    *o = (object){.number = number};
    if (number % 2 == 0) {
        open_a_service(me, o);
    } else {
        open_a_collective(me, o);
    }
    return o;
}

static void close_object(rank_context *me, object *o)
{
    if (o->service != NULL) {
        must(me, ferry_service_finalize(o->service, &me->error));
        scene_give_back(me, o->scene, &o->memory);
        ferry_service_destroy(o->service);
        free(o->scene);
    }
    ferry_mixed_comm_destroy(o->comm);
    free(o);
}

/* What rank `rank` brings to a sum: small whole numbers, which are summed exactly. */
static float share_of(const object *o, uint32_t rank, uint32_t column, uint64_t version)
{
    return (float)((o->number * 31 + version * 17 + column * (rank + 3)) % 1000);
}

static void start_object(rank_context *me, object *o, uint64_t version)
{
    if (o->service != NULL) {
        scene_fill(me, o->scene, &o->memory, version, true);
        must(me, ferry_service_start(o->service, NULL, &o->request, &me->error));
        return;
    }
    ferry_mixed_tensor in = {ferry_buffer_of(o->in, sizeof o->in), 1, COLUMNS};
    ferry_mixed_tensor out = {ferry_buffer_of(o->out, sizeof o->out), 1, COLUMNS};
    for (uint32_t i = 0; i < COLUMNS; i++) {
        o->in[i] = share_of(o, me->rank, i, version);
        o->out[i] = -1;
    }
    must(me, ferry_mixed_comm_start(o->comm, FERRY_MIXED_ALL_REDUCE, &in, &out,
                                    FERRY_MIXED_MODE_DEFAULT, NULL, &o->request, &me->error));
}

static void end_object(rank_context *me, object *o)
{
    must(me, ferry_request_wait(o->request, &me->error));
    ferry_request_destroy(o->request);
    o->request = NULL;
}

static void expect_object(rank_context *me, object *o, uint64_t version)
{
    if (o->service != NULL) {
        scene_expect(me, o->scene, o->service, &o->memory, version, "side by side");
        return;
    }
    for (uint32_t i = 0; i < COLUMNS; i++) {
        float sum = 0;
        for (uint32_t rank = 0; rank < me->n_ranks; rank++) {
            sum += share_of(o, rank, i, version);
        }
        expect(me, o->out[i] == sum, "version %llu, column %u: %g, not %g",
               (unsigned long long)version, (unsigned)i, (double)o->out[i], (double)sum);
    }
}

/* First one way round on even ranks and the other on odd ones, then as each rank draws it. */
static void draw_order(rank_context *me, uint64_t round, uint32_t order[N_OBJECTS])
{
    for (uint32_t i = 0; i < N_OBJECTS; i++) {
        order[i] = me->rank % 2 == 0 ? i : N_OBJECTS - 1 - i;
    }
    for (uint32_t i = N_OBJECTS - 1; i > 0 && round > 0; i--) {
        uint32_t k = random_below(&me->random, i + 1), kept = order[i];
        order[i] = order[k];
        order[k] = kept;
    }
}

/* After each round another one is made anew: what is left of the old one meets none of its own. */
void case_beside(rank_context *me)
{
    object *objects[N_OBJECTS];
    uint32_t order[N_OBJECTS];
    uint64_t n_made = 0, n_rounds = times_of(me, 5, 40);
    for (uint32_t i = 0; i < N_OBJECTS; i++) {
        objects[i] = open_object(me, n_made++);
    }
    for (uint64_t round = 0; round < n_rounds; round++) {
        draw_order(me, round, order);
        for (uint32_t i = 0; i < N_OBJECTS; i++) {
            start_object(me, objects[order[i]], round);
        }
        draw_order(me, round, order);
        for (uint32_t i = 0; i < N_OBJECTS; i++) {
            end_object(me, objects[order[i]]);
            expect_object(me, objects[order[i]], round);
        }
        close_object(me, objects[round % N_OBJECTS]);
        objects[round % N_OBJECTS] = open_object(me, n_made++);
    }
    for (uint32_t i = 0; i < N_OBJECTS; i++) {
        close_object(me, objects[i]);
    }
}
