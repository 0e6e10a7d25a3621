/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes that receivers make of values, for the source is cut inside blocks: all ranks get all of
 * them, in memory of devices where FERRY_TEST_FAR says so, while values come from the host's. Each
 * block is worked out from the definition.
 */
#include "service/scene.h"

#include "oracle/convert.h"
#include "support/devices.h"

typedef struct made_format {
    const char *text; /* of the spec; without blocks, of which it says nothing where they are 0 */
    oracle_type codes, scales;
    oracle_rule rule;
    uint64_t block[2];
} made_format;

static const made_format formats[] = {
    {"\"format\": \"f8e4m3\"", ORACLE_F8E4M3, ORACLE_F32, ORACLE_LARGEST, {128, 128}},
    {"\"format\": \"f8e4m3\"", ORACLE_F8E4M3, ORACLE_F32, ORACLE_LARGEST, {1, 128}},
    {"\"format\": \"f8e4m3\"", ORACLE_F8E4M3, ORACLE_F32, ORACLE_LARGEST, {1, 4096}},
    {"\"format\": \"f8e4m3\"", ORACLE_F8E4M3, ORACLE_F32, ORACLE_LARGEST, {4096, 4096}},
    {"\"format\": \"f8e4m3\"", ORACLE_F8E4M3, ORACLE_F32, ORACLE_LARGEST, {16, 24}},
    {"\"format\": \"f8e5m2\"", ORACLE_F8E5M2, ORACLE_F32, ORACLE_LARGEST, {7, 5}},
    {"\"format\": \"f8e5m2\", \"scale_kind\": \"cover\"",
     ORACLE_F8E5M2,
     ORACLE_F32,
     ORACLE_COVER,
     {20, 8}},
    {"\"format\": \"f8e4m3\", \"scale_dtype\": \"f8e8m0\"",
     ORACLE_F8E4M3,
     ORACLE_F8E8M0,
     ORACLE_COVER,
     {128, 128}},
    {"\"format\": \"mxfp8\"", ORACLE_F8E4M3, ORACLE_F8E8M0, ORACLE_FLOOR, {1, 32}},
    {"\"format\": \"nvfp4\", \"tensor_scale\": \"g\"",
     ORACLE_F4,
     ORACLE_F8E4M3,
     ORACLE_LARGEST,
     {1, 16}}};

static const struct {
    const char *name;
    oracle_type type;
    uint64_t bytes;
} values[] = {{"f32", ORACLE_F32, 4}, {"f16", ORACLE_F16, 2}, {"bf16", ORACLE_BF16, 2}};

enum { MOST_CUTS = 8, MOST_PLANES = 2 };

typedef struct made_case {
    const made_format *format;
    uint32_t value; /* of the table */
    uint64_t planes, rows, columns;
    uint64_t ends[MOST_CUTS + 1]; /* a rank has columns from its end to the next one */
    ferry_buffer source, codes, scales, far[2]; /* far: of codes and of scales, or base NULL */
    float given[MOST_PLANES], got[MOST_PLANES];
} made_case;

static bool is_half(const made_case *c)
{
    return c->format->codes == ORACLE_F4;
}

static uint64_t n_blocks(uint64_t elements, uint64_t block)
{
    return (elements + block - 1) / block;
}

static uint64_t scale_bytes(const made_case *c)
{
    return c->format->scales == ORACLE_F32 ? 4 : 1;
}

/* Mostly numbers of like magnitudes; subnormal ones, zeros, blocks of these, and what is none. */
static uint32_t element_of(const made_case *c, uint64_t run, uint64_t plane, uint64_t row,
                           uint64_t column)
{
    uint64_t state = ((run * 31 + plane) * 0x100000001b3u + row) * 0x100000001b3u + column;
    state = (state ^ state >> 29) * 0x9e3779b97f4a7c15u;
    state ^= state >> 32;
    uint32_t bits = (uint32_t)state & 0x807fffff, odd = (uint32_t)(state >> 40) % 997;
    uint64_t place = row / c->format->block[0] * 3 + column / c->format->block[1];
    bits |= (uint32_t)(118 + (state >> 33) % 12) << 23;
    bits = odd == 1 ? 0x7f800000 : odd == 2 ? 0xffc00000 : odd < 9 ? 0x80000000 : bits;
    bits = odd >= 9 && odd < 20 ? bits & 0x8000ffff : bits;
    bits = place % 5 == 1 ? bits & 0x80000000 : place % 7 == 3 ? bits & 0x807fffff : bits;
    return oracle_cast(ORACLE_F32, bits, values[c->value].type, false);
}

static void draw(rank_context *me, uint64_t *random, made_case *c)
{
    *c = (made_case){.format = &formats[random_below(random, COUNT_OF(formats))],
                     .value = (uint32_t)random_below(random, COUNT_OF(values)),
                     .planes = dice(random, 1, MOST_PLANES),
                     .rows = dice(random, 1, 150)};
    for (uint32_t r = 0; r < me->n_ranks; r++) { /* an odd number is no end of blocks */
        c->ends[r + 1] = c->ends[r] + dice(random, 1, 45) * 2 - 1;
    }
    c->columns = c->ends[me->n_ranks];
    if (c->columns % 2 == 1) { /* rows of half bytes are whole bytes */
        c->columns = ++c->ends[me->n_ranks];
    }
}

static ferry_plan *plan_of(rank_context *me, const made_case *c)
{
    char text[2000], block[60] = "", cuts[200] = "";
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    bool has_block = strncmp(c->format->text, "\"format\": \"f8", 13) == 0;
    for (uint32_t r = 0; r < me->n_ranks; r++) {
        size_t used = strlen(cuts);
        snprintf(cuts + used, sizeof cuts - used, "%s%llu", r == 0 ? "" : ", ",
                 (unsigned long long)(c->ends[r + 1] - c->ends[r]));
    }
    if (has_block) {
        snprintf(block, sizeof block, ", \"block\": [%llu, %llu]",
                 (unsigned long long)c->format->block[0], (unsigned long long)c->format->block[1]);
    }
    int used = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [%llu, %llu, "
        "%llu], \"dtype\": \"%s\"}, {\"name\": \"g\", \"shape\": [%llu], \"dtype\": \"f32\"}], "
        "\"source\": {\"mesh\": [[\"r\", %u]], \"rules\": [{\"match\": \"w\", \"shard\": "
        "[{\"dim\": 2, \"axis\": \"r\", \"sizes\": [%s]}]}, {\"match\": \"g\", \"on\": {\"r\": "
        "0}}]}, \"destination\": {\"mesh\": [[\"r\", %u]], \"rules\": [{\"match\": \"w\", "
        "\"quantize\": {%s%s, \"scale\": \"w.s\"}}, {\"match\": \"g\"}]}}",
        (unsigned long long)c->planes, (unsigned long long)c->rows, (unsigned long long)c->columns,
        values[c->value].name, (unsigned long long)c->planes, me->n_ranks, cuts, me->n_ranks,
        c->format->text, block);
    must(me, ferry_spec_parse(text, (size_t)used, "made", &spec, &me->error));
    must(me, ferry_plan_create(spec, NULL, &plan, &me->error));
    ferry_spec_destroy(spec);
    return plan;
}

static ferry_buffer take_far(rank_context *me, uint64_t bytes, bool is_far, ferry_buffer *far)
{
    *far = ferry_buffer_of(NULL, 0);
    if (is_far) {
        int32_t device = device_number((int32_t)(me->rank % 2));
        must(me, ferry_memory_alloc(NULL, device_kind(), device, bytes, far, &me->error));
    }
    return ferry_buffer_of(take(me, bytes), bytes);
}

static void take_all(rank_context *me, made_case *c, uint64_t *random)
{
    uint64_t own = c->ends[me->rank + 1] - c->ends[me->rank], all = c->planes * c->rows;
    uint64_t scales = c->planes * n_blocks(c->rows, c->format->block[0]) *
                      n_blocks(c->columns, c->format->block[1]);
    bool is_far = getenv("FERRY_TEST_FAR") != NULL, are_scales = random_below(random, 4) > 0;
    c->source = ferry_buffer_of(take(me, all * own * values[c->value].bytes),
                                all * own * values[c->value].bytes);
    c->codes = take_far(me, all * c->columns / (is_half(c) ? 2 : 1), is_far, &c->far[0]);
    c->scales = take_far(me, scales * scale_bytes(c), is_far && are_scales, &c->far[1]);
}

static void give_all(made_case *c)
{
    free(c->source.base);
    free(c->codes.base);
    free(c->scales.base);
    ferry_memory_free(&c->far[0]);
    ferry_memory_free(&c->far[1]);
}

static void fill_source(rank_context *me, made_case *c, uint64_t run)
{
    char *to = c->source.base;
    for (uint64_t i = 0; i < c->planes * c->rows; i++) {
        for (uint64_t column = c->ends[me->rank]; column < c->ends[me->rank + 1]; column++) {
            uint32_t bits = element_of(c, run, i / c->rows, i % c->rows, column);
            memcpy(to, &bits, values[c->value].bytes);
            to += values[c->value].bytes;
        }
    }
    c->given[0] = run == 0 ? 0.01f : 3;
    c->given[1] = 0.5f;
}

static uint32_t code_at(const made_case *c, uint64_t element)
{
    const unsigned char *codes = c->codes.base;
    return is_half(c) ? (uint32_t)codes[element / 2] >> element % 2 * 4 & 15 : codes[element];
}

static void check_block(rank_context *me, const made_case *c, uint64_t run, uint64_t plane,
                        uint64_t row, uint64_t column)
{
    const made_format *f = c->format;
    uint64_t height = c->rows - row < f->block[0] ? c->rows - row : f->block[0];
    uint64_t width = c->columns - column < f->block[1] ? c->columns - column : f->block[1];
    uint32_t *elements = take(me, height * width * sizeof *elements);
    uint32_t *wanted = take(me, height * width * sizeof *wanted), found = 0;
    oracle_block how = {
        .from = values[c->value].type, .to = f->codes, .scale_type = f->scales, .rule = f->rule};
    memcpy(&how.tensor_scale, &c->given[plane], sizeof how.tensor_scale);
    for (uint64_t i = 0; i < height * width; i++) {
        elements[i] = element_of(c, run, plane, row + i / width, column + i % width);
    }
    uint32_t scale = oracle_quantize(&how, elements, height * width, wanted);
    uint64_t number = (plane * n_blocks(c->rows, f->block[0]) + row / f->block[0]) *
                          n_blocks(c->columns, f->block[1]) +
                      column / f->block[1];
    memcpy(&found, (char *)c->scales.base + number * scale_bytes(c), scale_bytes(c));
    expect(me, found == scale, "%s: scale %llu is %x, not %x", f->text, (unsigned long long)number,
           found, scale);
    for (uint64_t i = 0; i < height * width; i++) {
        uint64_t at = (plane * c->rows + row + i / width) * c->columns + column + i % width;
        expect(me, code_at(c, at) == wanted[i], "%s: code %llu of %x is %x, not %x", f->text,
               (unsigned long long)at, elements[i], code_at(c, at), wanted[i]);
    }
    free(elements);
    free(wanted);
}

static void check_all(rank_context *me, const made_case *c, uint64_t run)
{
    if (c->far[0].base != NULL) {
        copy_far(me, c->codes, c->far[0]);
    }
    if (c->far[1].base != NULL) {
        copy_far(me, c->scales, c->far[1]);
    }
    for (uint64_t plane = 0; plane < c->planes; plane++) {
        for (uint64_t row = 0; row < c->rows; row += c->format->block[0]) {
            for (uint64_t column = 0; column < c->columns; column += c->format->block[1]) {
                check_block(me, c, run, plane, row, column);
            }
        }
    }
}

static ferry_service *bind(rank_context *me, const made_case *c, bool is_delta)
{
    ferry_tensors *sources = NULL, *targets = NULL;
    ferry_plan *plan = plan_of(me, c);
    service_setup setup;
    setup_init(me, &setup, "");
    setup.options.delta = is_delta;
    ferry_service *service = open_service(me, &setup.options);
    ferry_buffer given = ferry_buffer_of(c->given, c->planes * sizeof *c->given);
    ferry_buffer got = ferry_buffer_of(c->got, c->planes * sizeof *c->got);
    must(me, ferry_tensors_create(&sources, &me->error));
    must(me, ferry_tensors_create(&targets, &me->error));
    must(me, ferry_tensors_add(sources, "w", &c->source, &me->error));
    must(me, ferry_tensors_add(sources, "g", &given, &me->error));
    must(me, ferry_tensors_add(targets, "w", c->far[0].base != NULL ? &c->far[0] : &c->codes,
                               &me->error));
    must(me, ferry_tensors_add(targets, "w.s", c->far[1].base != NULL ? &c->far[1] : &c->scales,
                               &me->error));
    must(me, ferry_tensors_add(targets, "g", &got, &me->error));
    must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
    must(me, ferry_service_schedule(service, &me->error));
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
    return service;
}

void case_made(rank_context *me)
{
    uint64_t random = me->seed * 1000 + me->n_ranks;
    for (uint32_t i = 0; i < times_of(me, 10, 200); i++) {
        made_case c;
        draw(me, &random, &c);
        bool is_delta = random_below(&random, 3) == 0;
        take_all(me, &c, &random);
        ferry_service *service = bind(me, &c, is_delta);
        for (uint64_t run = 0; run < 2; run++) {
            fill_source(me, &c, run);
            must(me, ferry_service_run(service, NULL, &me->error));
            check_all(me, &c, run);
        }
        ferry_service_destroy(service);
        give_all(&c);
    }
}
