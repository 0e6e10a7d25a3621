/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Transports among threads, with each wrapper, when memory runs out. */
#include "rank_runs.h"

#include <ferry/transport.h>

#include <string.h>

enum { DATA_BYTES = 100000, WORD = 0, DATA = 64, REGION_BYTES = DATA + DATA_BYTES };

/* What a rank has made. */
typedef struct belongings {
    ferry_transport *transport;
    ferry_region *region;
    ferry_region *own;    /* registered */
    ferry_buffer memory;  /* of ferry's */
    ferry_region *theirs; /* imported memory; NULL where it cannot be reached */
    unsigned char source[DATA_BYTES];
    unsigned char target[DATA_BYTES];
} belongings;

static _Thread_local belongings mine;

/* A call that makes something: on an error there is nothing. */
static ferry_status made(rank_run *self, ferry_status status, void *place)
{
    void *value;
    memcpy(&value, place, sizeof value);
    if (status != FERRY_OK) {
        self->wrong = value != UNTOUCHED ? "an output was set by a call that failed" : self->wrong;
        value = NULL;
        memcpy(place, &value, sizeof value);
    }
    return status;
}

static ferry_status open_all(rank_run *self)
{
    ferry_buffer buffer = ferry_buffer_of(mine.target, DATA_BYTES);
    mine.transport = UNTOUCHED;
    ferry_status status =
        made(self, ferry_transport_open(self->world, self->plan, &mine.transport, &self->error),
             &mine.transport);
    if (status == FERRY_OK) {
        mine.region = UNTOUCHED;
        status = made(self,
                      ferry_region_alloc(mine.transport, FERRY_MEMORY_HOST, 0, REGION_BYTES,
                                         &mine.region, &self->error),
                      &mine.region);
    }
    if (status == FERRY_OK) {
        mine.own = UNTOUCHED;
        status = made(self, ferry_region_register(mine.transport, &buffer, &mine.own, &self->error),
                      &mine.own);
    }
    if (status == FERRY_OK) {
        mine.memory.registration = UNTOUCHED;
        status = made(self,
                      ferry_memory_alloc(mine.transport, FERRY_MEMORY_HOST, 0, DATA_BYTES,
                                         &mine.memory, &self->error),
                      &mine.memory.registration);
    }
    return status;
}

/* Each rank gets a handle to the next one's target, unless the wrapper forbids it to all. */
static ferry_status exchange_keys(rank_run *self)
{
    unsigned char key[FERRY_KEY_BYTES];
    size_t n_bytes = 0;
    const void *all;
    const size_t *lengths;
    ferry_status status =
        ferry_region_export(mine.memory.registration, key, sizeof key, &n_bytes, &self->error);
    bool strict = strstr(self->plan, "strict") != NULL;
    if (status != FERRY_OK) {
        self->wrong = n_bytes != 0 ? "a length was set by a call that failed" : self->wrong;
        return strict && status == FERRY_ERR_UNSUPPORTED ? FERRY_OK : status;
    }
    status = ferry_world_all_gather_v(self->world, key, n_bytes, &all, &lengths, &self->error);
    const char *at = all;
    for (uint32_t r = 0; status == FERRY_OK && r < (self->rank + 1) % RUN_RANKS; r++) {
        at += lengths[r];
    }
    if (status != FERRY_OK) {
        return status;
    }
    mine.theirs = UNTOUCHED;
    status = made(self,
                  ferry_region_import(mine.transport, at, lengths[(self->rank + 1) % RUN_RANKS],
                                      &mine.theirs, &self->error),
                  &mine.theirs);
    return strict && status == FERRY_ERR_UNSUPPORTED ? FERRY_OK : status;
}

static ferry_status move(rank_run *self)
{
    uint32_t next = (self->rank + 1) % RUN_RANKS;
    ferry_buffer source = ferry_buffer_of(mine.source, DATA_BYTES);
    ferry_buffer part = ferry_buffer_of(mine.source, 1000);
    ferry_signal signal = {.region = mine.region, .offset = WORD, .value = 1};
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < 20 && status == FERRY_OK; i++) {
        status = ferry_transport_put(mine.transport, next, mine.region, DATA + i * 1000, &part,
                                     NULL, &self->error);
    }
    if (status == FERRY_OK && mine.theirs != NULL) {
        status =
            ferry_transport_put(mine.transport, next, mine.theirs, 0, &source, NULL, &self->error);
    }
    if (status == FERRY_OK) {
        status = ferry_transport_put_signal(mine.transport, next, mine.region, DATA, &source,
                                            &signal, NULL, &self->error);
    }
    if (status == FERRY_OK) {
        status = ferry_transport_wait_signal(mine.transport, mine.region, WORD, FERRY_COMPARE_EQ, 1,
                                             FERRY_ANY_RANK, RUN_SECONDS, NULL, NULL, &self->error);
    }
    return status;
}

static ferry_status fetch(rank_run *self)
{
    static _Thread_local unsigned char fetched[DATA_BYTES];
    ferry_buffer target = ferry_buffer_of(fetched, DATA_BYTES);
    uint32_t next = (self->rank + 1) % RUN_RANKS;
    ferry_status status =
        ferry_transport_get(mine.transport, next, mine.region, DATA, &target, NULL, &self->error);
    ferry_status flushed = ferry_transport_flush(mine.transport, FERRY_ANY_RANK, NULL,
                                                 status == FERRY_OK ? &self->error : NULL);
    status = status == FERRY_OK ? flushed : status;
    if (status == FERRY_OK && strstr(self->plan, "flip") == NULL &&
        (fetched[0] != self->rank + 1 || fetched[DATA_BYTES - 1] != self->rank + 1)) {
        self->wrong = "the bytes that were put did not come back";
    }
    return status;
}

static ferry_status use_transport(rank_run *self)
{
    memset(&mine, 0, sizeof mine);
    memset(mine.source, (int)self->rank + 1, sizeof mine.source);
    ferry_status status = open_all(self);
    if (status == FERRY_OK) {
        status = exchange_keys(self);
    }
    if (status == FERRY_OK) {
        status = move(self);
    }
    if (status == FERRY_OK) {
        status = fetch(self);
    }
    if (status == FERRY_OK) {
        status = ferry_world_barrier(self->world, &self->error);
    }
    if (status != FERRY_OK) { /* the others stop here as well: nobody puts to what goes */
        ferry_world_abort(self->world, self->error.message);
    }
    ferry_region_free(mine.theirs);
    ferry_memory_free(&mine.memory);
    ferry_region_free(mine.own);
    ferry_region_free(mine.region);
    ferry_transport_close(mine.transport);
    return status;
}

static void test_wrappers(void **state)
{
    static const char *const engines[] = {
        "inproc",
        "strict:inproc",
        "trace:inproc",
        "delay=50us:inproc",
        "flip=2:inproc",
        "lose=0@100000:inproc",
        "strict:trace:delay=20us:flip=3:inproc",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(engines); i++) {
        rank_script script = {.name = engines[i], .plan = engines[i], .run = use_transport};
        run_script(&script, 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrappers),
    };
    failing_init();
    failing_by_thread = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
