/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/matrix.h"

enum { GUARD = 64, POISON = 0xdb };

static uint64_t source_bytes(const matrix *m)
{
    return m->rows * m->columns * m->n_ranks * m->element;
}

static uint64_t target_bytes(const matrix *m)
{
    return m->rows * (m->n_ranks / m->replicas) * m->columns * m->element;
}

uint64_t matrix_bytes_in(const matrix *m)
{
    return m->n_tensors * target_bytes(m);
}

matrix *matrix_make(rank_context *me, uint32_t n_tensors, uint32_t replicas, uint64_t element,
                    ferry_transport *transport)
{
    uint64_t random = me->seed * 31 + n_tensors + element;
    matrix *m = take(me, sizeof *m);
    *m = (matrix){.n_ranks = me->n_ranks,
                  .member = me->rank,
                  .n_tensors = n_tensors,
                  .replicas = replicas,
                  .rows = dice(&random, 1, 60),
                  .columns = dice(&random, 1, 200),
                  .element = element};
    for (uint32_t t = 0; t < n_tensors; t++) {
        m->source[t] = take(me, source_bytes(m));
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t all = target_bytes(m) + 2 * (uint64_t)GUARD;
            if (transport != NULL) {
                must(me, ferry_memory_alloc(transport, all, &m->region[t][i], &me->error));
                m->target[t][i] = m->region[t][i].base;
            } else {
                m->target[t][i] = take(me, all);
            }
        }
    }
    matrix_poison(m, 0);
    matrix_poison(m, 1);
    return m;
}

void matrix_free(matrix *m)
{
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        free(m->source[t]);
        for (uint32_t i = 0; i < 2; i++) {
            if (m->region[t][i].base != NULL) {
                ferry_memory_free(&m->region[t][i]);
            } else {
                free(m->target[t][i]);
            }
        }
    }
    free(m);
}

ferry_plan *matrix_plan(rank_context *me, const matrix *m, const uint32_t *lost, size_t n_lost)
{
    char text[1024];
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    unsigned holders = m->n_ranks / m->replicas;
    options.lost_ranks = lost;
    options.n_lost_ranks = n_lost;
    int length = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"m{0}\", \"count\": [%u],"
        " \"shape\": [%llu, %llu], \"dtype\": \"bytes:%llu\"}],"
        "\"source\": {\"mesh\": [[\"dp\", %u], [\"tp\", %u]], \"rules\": [{\"match\": \"*\","
        " \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]},"
        "\"destination\": {\"mesh\": [[\"tp\", %u]], \"rules\": [{\"match\": \"*\","
        " \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]}]}}",
        (unsigned)m->n_tensors, (unsigned long long)(m->rows * holders),
        (unsigned long long)(m->columns * m->n_ranks), (unsigned long long)m->element,
        (unsigned)m->replicas, holders, (unsigned)m->n_ranks);
    must(me, ferry_spec_parse(text, (size_t)length, "matrix", &spec, &me->error));
    must(me, ferry_plan_create(spec, &options, &plan, &me->error));
    ferry_spec_destroy(spec);
    return plan;
}

static ferry_buffer target_buffer(const matrix *m, uint32_t tensor, uint32_t which)
{
    ferry_buffer buffer = ferry_buffer_of(matrix_target(m, tensor, which), target_bytes(m));
    buffer.registration = m->region[tensor][which].registration;
    return buffer;
}

static void name_of(char text[16], uint32_t tensor)
{
    snprintf(text, 16, "m%u", (unsigned)tensor);
}

ferry_tensors *matrix_sources(rank_context *me, const matrix *m)
{
    ferry_tensors *tensors = NULL;
    char name[16];
    must(me, ferry_tensors_create(&tensors, &me->error));
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        ferry_buffer buffer = ferry_buffer_of(m->source[t], source_bytes(m));
        name_of(name, t);
        must(me, ferry_tensors_add(tensors, name, &buffer, &me->error));
    }
    return tensors;
}

ferry_tensors *matrix_targets(rank_context *me, const matrix *m, uint32_t which, bool pairs)
{
    ferry_tensors *tensors = NULL;
    char name[16];
    must(me, ferry_tensors_create(&tensors, &me->error));
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        ferry_buffer one = target_buffer(m, t, which), other = target_buffer(m, t, 1 - which);
        name_of(name, t);
        if (pairs) {
            must(me, ferry_tensors_add_pair(tensors, name, &one, &other, &me->error));
        } else {
            must(me, ferry_tensors_add(tensors, name, &one, &me->error));
        }
    }
    return tensors;
}

void matrix_bind(rank_context *me, const matrix *m, ferry_service *service, bool pairs)
{
    ferry_plan *plan = matrix_plan(me, m, NULL, 0);
    ferry_tensors *sources = matrix_sources(me, m), *targets = matrix_targets(me, m, 0, pairs);
    must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
}

void matrix_schedule(rank_context *me, const matrix *m, ferry_service *service, bool pairs)
{
    matrix_bind(me, m, service, pairs);
    must(me, ferry_service_schedule(service, &me->error));
}

/* Byte b of element (row, column) of the whole tensor. */
static unsigned char byte_of(uint64_t version, uint32_t tensor, uint64_t row, uint64_t column,
                             uint64_t b)
{
    uint64_t state = version * 1000003 + tensor;
    state = state * 0x100000001b3u + row;
    state = (state * 0x100000001b3u + column) * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u;
    return (unsigned char)(state >> 40);
}

void matrix_fill(matrix *m, uint64_t version)
{
    uint64_t columns = m->columns * m->n_ranks;
    uint64_t first = m->member % (m->n_ranks / m->replicas) * m->rows;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        unsigned char *at = m->source[t];
        for (uint64_t i = 0; i < m->rows * columns * m->element; i++) {
            uint64_t element = i / m->element;
            *at++ =
                byte_of(version, t, first + element / columns, element % columns, i % m->element);
        }
    }
}

void matrix_poison(matrix *m, uint32_t which)
{
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        memset(m->target[t][which], POISON, target_bytes(m) + 2 * (uint64_t)GUARD);
    }
}

char *matrix_target(const matrix *m, uint32_t tensor, uint32_t which)
{
    return (char *)m->target[tensor][which] + GUARD;
}

uint64_t matrix_wrong(rank_context *me, const matrix *m, uint32_t tensor, uint32_t which,
                      uint64_t version)
{
    const unsigned char *whole = m->target[tensor][which], *at = whole + GUARD;
    uint64_t wrong = 0, bytes = target_bytes(m);
    uint64_t first = m->member * m->columns;
    expect(me, mismatch_byte(whole, GUARD, POISON) == GUARD, "bytes before tensor %u",
           (unsigned)tensor);
    expect(me, mismatch_byte(at + bytes, GUARD, POISON) == GUARD, "bytes behind tensor %u",
           (unsigned)tensor);
    for (uint64_t i = 0; i < bytes; i++) {
        uint64_t element = i / m->element;
        wrong += at[i] != byte_of(version, tensor, element / m->columns,
                                  first + element % m->columns, i % m->element);
    }
    return wrong;
}

void matrix_expect(rank_context *me, const matrix *m, uint32_t which, uint64_t version,
                   const char *what)
{
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        uint64_t wrong = matrix_wrong(me, m, t, which, version);
        expect(me, wrong == 0, "%s: %llu of %llu bytes of m%u are not those of version %llu", what,
               (unsigned long long)wrong, (unsigned long long)target_bytes(m), (unsigned)t,
               (unsigned long long)version);
    }
}
