/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/matrix.h"
#include "service/scene.h"

#include "oracle/convert.h"
#include "support/devices.h"

enum { GUARD = 64, POISON = 0xdb };

static const struct {
    const char *name;
    oracle_type type; /* not of f64 */
    uint64_t bytes;
} numbers[] = {{"f32", ORACLE_F32, 4},       {"f16", ORACLE_F16, 2},       {"bf16", ORACLE_BF16, 2},
               {"f8e4m3", ORACLE_F8E4M3, 1}, {"f8e5m2", ORACLE_F8E5M2, 1}, {"f64", ORACLE_F32, 8}};
enum { F32 = 0, F64 = 5 };

/* Half of all matrices, and such that it is not a copy. */
static void draw_cast(matrix *m, uint64_t *random)
{
    static const float scales[] = {1, 1, 0.5f, -3, 0.1f, 1e30f}, adds[] = {0, 0, 0.75f, -100};
    matrix_cast *c = &m->cast;
    c->from = c->to = -1;
    m->target_element = m->element;
    if (getenv("FERRY_TEST_CAST") == NULL && random_below(random, 2) == 0) {
        return;
    }
    c->from = (int)random_below(random, COUNT_OF(numbers));
    c->to = c->from == F64 ? F32 : (int)random_below(random, F64);
    c->saturates = random_below(random, 2) == 0;
    c->scale = scales[random_below(random, COUNT_OF(scales))];
    c->add = adds[random_below(random, COUNT_OF(adds))];
    c->scale = c->from == c->to && c->scale == 1 ? 2 : c->scale;
    m->element = numbers[c->from].bytes;
    m->target_element = numbers[c->to].bytes;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A step of reckoning, rounded by itself; NaN becomes a quiet one. */
static uint32_t reckon(uint32_t bits, float scale, float add)
{
    volatile float value = float_of(bits);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return bits | 0x400000;
    }
    value = scale != 1 ? value * scale : value + add;
    return bits_of(value);
}

/* What an element becomes. */
static uint64_t converted(const matrix_cast *c, uint64_t code)
{
    uint32_t bits;
    if (c->from < 0) {
        return code;
    }
    if (c->from == F64) {
        double value;
        memcpy(&value, &code, sizeof value);
        bits = bits_of((float)value);
    } else {
        bits = oracle_cast(numbers[c->from].type, (uint32_t)code, ORACLE_F32, false);
    }
    bits = c->scale != 1 ? reckon(bits, c->scale, 0) : bits;
    bits = c->add != 0 ? reckon(bits, 1, c->add) : bits;
    return oracle_cast(ORACLE_F32, bits, numbers[c->to].type, c->saturates);
}

static uint64_t source_bytes(const matrix *m)
{
    return m->rows * m->columns * m->n_ranks * m->element;
}

static uint64_t target_bytes(const matrix *m)
{
    return m->rows * (m->n_ranks / m->replicas) * m->columns * m->target_element;
}

uint64_t matrix_bytes_in(const matrix *m)
{
    return m->n_tensors * target_bytes(m);
}

/* Far memory that a target, or a source, lies in; the bytes here are an image of it. */
static bool is_far(const ferry_buffer *buffer)
{
    return buffer->base != NULL && buffer->kind != FERRY_MEMORY_HOST;
}

/* From the image to far memory, where it is far; or back. */
static void write_target(rank_context *me, const matrix *m, uint32_t tensor, uint32_t which)
{
    const ferry_buffer *far = &m->region[tensor][which];
    if (is_far(far)) {
        copy_far(me, *far, ferry_buffer_of(m->target[tensor][which], far->bytes));
    }
}

static void read_target(rank_context *me, const matrix *m, uint32_t tensor, uint32_t which)
{
    const ferry_buffer *far = &m->region[tensor][which];
    if (is_far(far)) {
        copy_far(me, ferry_buffer_of(m->target[tensor][which], far->bytes), *far);
    }
}

static void take_source(rank_context *me, matrix *m, uint32_t tensor)
{
    int32_t device = draw_far(me->seed + m->element, me->rank, 3 * tensor);
    m->source[tensor] = take(me, source_bytes(m));
    if (device >= 0) {
        must(me, ferry_memory_alloc(NULL, device_kind(), device_number(device), source_bytes(m),
                                    &m->far_source[tensor], &me->error));
    }
}

static void take_target(rank_context *me, matrix *m, uint32_t tensor, uint32_t which,
                        ferry_transport *transport)
{
    uint64_t all = target_bytes(m) + 2 * (uint64_t)GUARD;
    int32_t device = draw_far(me->seed + m->element, me->rank, 3 * tensor + 1 + which);
    ferry_buffer *region = &m->region[tensor][which];
    if (device >= 0) {
        must(me, ferry_memory_alloc(transport, device_kind(), device_number(device), all, region,
                                    &me->error));
    } else if (transport != NULL) {
        must(me, ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, all, region, &me->error));
        m->target[tensor][which] = region->base;
        return;
    }
    m->target[tensor][which] = take(me, all);
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
    m->target_boxes = random_below(&random, 2) == 0;
    m->source_boxes = m->target_boxes && random_below(&random, 2) == 0;
    draw_cast(m, &random);
    for (uint32_t t = 0; t < n_tensors; t++) {
        take_source(me, m, t);
        take_target(me, m, t, 0, transport);
        take_target(me, m, t, 1, transport);
    }
    matrix_poison(me, m, 0);
    matrix_poison(me, m, 1);
    return m;
}

void matrix_free(matrix *m)
{
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        free(m->source[t]);
        ferry_memory_free(&m->far_source[t]);
        for (uint32_t i = 0; i < 2; i++) {
            if (m->region[t][i].base == NULL || is_far(&m->region[t][i])) {
                free(m->target[t][i]);
            }
            ferry_memory_free(&m->region[t][i]);
        }
    }
    free(m);
}

/* What a destination says of its elements; "" where they stay what they are. */
static const char *cast_text(const matrix *m, char text[160])
{
    const matrix_cast *c = &m->cast;
    text[0] = '\0';
    if (c->from >= 0) {
        snprintf(text, 160, ", \"dtype\": \"%s\", \"cast\": \"%s\", \"scale\": %.9g, \"add\": %.9g",
                 numbers[c->to].name, c->saturates ? "saturate" : "round", (double)c->scale,
                 (double)c->add);
    }
    return text;
}

/* A side in boxes: what each rank has, by columns. */
static size_t write_boxes(const matrix *m, bool is_source, char *text, size_t n_bytes)
{
    uint32_t holders = m->n_ranks / m->replicas;
    unsigned long long rows = is_source ? m->rows : m->rows * holders;
    unsigned long long columns = is_source ? m->columns * m->n_ranks : m->columns;
    char cast[160];
    const char *changes = is_source ? "" : cast_text(m, cast);
    size_t used = (size_t)snprintf(text, n_bytes, "{\"boxes\": [");
    for (uint32_t i = 0; i < m->n_ranks * m->n_tensors; i++) {
        uint32_t rank = i / m->n_tensors, tensor = i % m->n_tensors;
        unsigned long long row = is_source ? rank % holders * rows : 0;
        unsigned long long column = is_source ? 0 : rank * columns;
        used += (size_t)snprintf(
            text + used, n_bytes - used,
            "%s{\"rank\": %u, \"parameter\": \"m%u\", \"elements\": %llu%s, \"holds\": [{"
            "\"tensor\": \"m%u\", \"begin\": [%llu, %llu], \"shape\": [%llu, %llu],"
            " \"offset\": 0, \"strides\": [1, %llu]}]}",
            i == 0 ? "" : ", ", (unsigned)rank, (unsigned)tensor, rows * columns, changes,
            (unsigned)tensor, row, column, rows, columns, rows);
    }
    return used + (size_t)snprintf(text + used, n_bytes - used, "]}");
}

static size_t write_mesh(const matrix *m, bool is_source, char *text, size_t n_bytes)
{
    char cast[160];
    return (size_t)(is_source
                        ? snprintf(text, n_bytes,
                                   "{\"mesh\": [[\"dp\", %u], [\"tp\", %u]], \"rules\": [{"
                                   "\"match\": \"*\","
                                   " \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}",
                                   (unsigned)m->replicas, (unsigned)(m->n_ranks / m->replicas))
                        : snprintf(text, n_bytes,
                                   "{\"mesh\": [[\"tp\", %u]], \"rules\": [{\"match\": \"*\","
                                   " \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]%s}]}",
                                   (unsigned)m->n_ranks, cast_text(m, cast)));
}

ferry_plan *matrix_plan(rank_context *me, const matrix *m, const uint32_t *lost, size_t n_lost)
{
    const size_t room = 1024 + (size_t)m->n_ranks * m->n_tensors * 800;
    char dtype[24];
    char *text = take(me, room);
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    unsigned holders = m->n_ranks / m->replicas;
    options.lost_ranks = lost;
    options.n_lost_ranks = n_lost;
    snprintf(dtype, sizeof dtype, "bytes:%llu", (unsigned long long)m->element);
    size_t used = (size_t)snprintf(
        text, room,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"m{0}\", \"count\": [%u],"
        " \"shape\": [%llu, %llu], \"dtype\": \"%s\"}], \"source\": ",
        (unsigned)m->n_tensors, (unsigned long long)(m->rows * holders),
        (unsigned long long)(m->columns * m->n_ranks),
        m->cast.from < 0 ? dtype : numbers[m->cast.from].name);
    used += m->source_boxes ? write_boxes(m, true, text + used, room - used)
                            : write_mesh(m, true, text + used, room - used);
    used += (size_t)snprintf(text + used, room - used, ", \"destination\": ");
    used += m->target_boxes ? write_boxes(m, false, text + used, room - used)
                            : write_mesh(m, false, text + used, room - used);
    used += (size_t)snprintf(text + used, room - used, "}");
    must(me, ferry_spec_parse(text, used, "matrix", &spec, &me->error));
    must(me, ferry_plan_create(spec, &options, &plan, &me->error));
    ferry_spec_destroy(spec);
    free(text);
    return plan;
}

static ferry_buffer target_buffer(const matrix *m, uint32_t tensor, uint32_t which)
{
    ferry_buffer buffer = m->region[tensor][which];
    buffer.base = matrix_target(m, tensor, which);
    buffer.bytes = target_bytes(m);
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
        ferry_buffer buffer = is_far(&m->far_source[t])
                                  ? m->far_source[t]
                                  : ferry_buffer_of(m->source[t], source_bytes(m));
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

/* Byte b of element (row, column) of the whole tensor, at the source. */
static unsigned char byte_of(uint64_t all, uint32_t tensor, uint64_t row, uint64_t column,
                             uint64_t b)
{
    uint64_t edit = all / MATRIX_EDITS;
    bool is_edited = edit != 0 && (row / 5 + column / 64 + tensor + edit) % 9 == 0;
    uint64_t version = is_edited ? all : all % MATRIX_EDITS;
    uint64_t state = version * 1000003 + tensor;
    state = state * 0x100000001b3u + row;
    state = (state * 0x100000001b3u + column) * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u;
    return (unsigned char)(state >> 40);
}

/* Of the same element at the destination, all bytes. */
static uint64_t element_of(const matrix *m, uint64_t all, uint32_t tensor, uint64_t row,
                           uint64_t column)
{
    uint64_t code = 0;
    for (uint64_t b = 0; b < m->element; b++) {
        code |= (uint64_t)byte_of(all, tensor, row, column, b) << 8 * b;
    }
    return converted(&m->cast, code);
}

static bool is_wrong(const matrix *m, uint64_t all, uint32_t tensor, uint64_t row, uint64_t column,
                     uint64_t b, unsigned char found)
{
    return found != (m->cast.from < 0
                         ? byte_of(all, tensor, row, column, b)
                         : (unsigned char)(element_of(m, all, tensor, row, column) >> 8 * b));
}

void matrix_fill(rank_context *me, matrix *m, uint64_t version)
{
    uint64_t columns = m->columns * m->n_ranks;
    uint64_t first = m->member % (m->n_ranks / m->replicas) * m->rows;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        unsigned char *at = m->source[t];
        for (uint64_t i = 0; i < m->rows * columns * m->element; i++) {
            uint64_t element = i / m->element;
            uint64_t row = m->source_boxes ? element % m->rows : element / columns;
            uint64_t column = m->source_boxes ? element / m->rows : element % columns;
            *at++ = byte_of(version, t, first + row, column, i % m->element);
        }
        if (is_far(&m->far_source[t])) {
            copy_far(me, m->far_source[t], ferry_buffer_of(m->source[t], source_bytes(m)));
        }
    }
}

void matrix_poison(rank_context *me, matrix *m, uint32_t which)
{
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        memset(m->target[t][which], POISON, target_bytes(m) + 2 * (uint64_t)GUARD);
        write_target(me, m, t, which);
    }
}

char *matrix_target(const matrix *m, uint32_t tensor, uint32_t which)
{
    const ferry_buffer *region = &m->region[tensor][which];
    return (is_far(region) ? (char *)region->base : (char *)m->target[tensor][which]) + GUARD;
}

uint64_t matrix_wrong(rank_context *me, const matrix *m, uint32_t tensor, uint32_t which,
                      uint64_t version)
{
    const unsigned char *whole = m->target[tensor][which], *at = whole + GUARD;
    uint64_t wrong = 0, bytes = target_bytes(m);
    uint64_t first = m->member * m->columns;
    read_target(me, m, tensor, which);
    expect(me, mismatch_byte(whole, GUARD, POISON) == GUARD, "bytes before tensor %u",
           (unsigned)tensor);
    expect(me, mismatch_byte(at + bytes, GUARD, POISON) == GUARD, "bytes behind tensor %u",
           (unsigned)tensor);
    for (uint64_t i = 0; i < bytes; i++) {
        uint64_t element = i / m->target_element, rows = bytes / m->target_element / m->columns;
        uint64_t row = m->target_boxes ? element % rows : element / m->columns;
        uint64_t column = m->target_boxes ? element / rows : element % m->columns;
        wrong += is_wrong(m, version, tensor, row, first + column, i % m->target_element, at[i]);
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
