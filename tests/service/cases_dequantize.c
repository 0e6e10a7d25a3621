/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans that dequantize: codes, cut by rows, and their scales become values, cut by columns; or by
 * columns within a block, in boxes that have them transposed; codes of half a byte as they are.
 * Each value is worked out from the definition, by its code and its scale, and that of its matrix.
 */
#include "service/scene.h"

#include "oracle/convert.h"
#include "support/devices.h"

typedef struct codes {
    uint32_t n_ranks, rank;
    oracle_block how;
    const char *names[3]; /* of the types: codes, scales, values */
    uint64_t value_bytes, scale_bytes;
    uint64_t block[2], planes, rows, columns; /* of the whole; planes 0: it has no such dim */
    uint64_t rank_rows, rank_columns;         /* of each */
    bool swaps, is_in_boxes;
    bool is_half;   /* codes are f4 */
    bool is_turned; /* boxes have columns of values side by side */
    ferry_buffer buffers[5], far[5];
} codes;

/* Values lie in one of two buffers; matrices are the scales of these, of f4. */
enum { CODES, SCALES, MATRICES, VALUES, BEHIND, N_BUFFERS };

static uint64_t n_blocks(uint64_t elements, uint64_t block)
{
    return (elements + block - 1) / block;
}

static uint64_t n_planes(const codes *c)
{
    return c->planes == 0 ? 1 : c->planes;
}

static void draw(rank_context *me, uint64_t seed, codes *c)
{
    static const uint64_t blocks[][2] = {{4, 8}, {1, 32}, {8, 3}, {128, 128}, {5, 1}};
    static const struct {
        const char *name;
        oracle_type type;
    } types[] = {{"f8e4m3", ORACLE_F8E4M3}, {"f8e5m2", ORACLE_F8E5M2}},
      scales[] = {{"f32", ORACLE_F32}, {"f8e8m0", ORACLE_F8E8M0}},
      values[] = {{"f32", ORACLE_F32}, {"f16", ORACLE_F16}, {"bf16", ORACLE_BF16}};
    uint64_t random = seed;
    uint32_t t = random_below(&random, 2), s = random_below(&random, 2);
    uint32_t v = random_below(&random, 3), b = random_below(&random, COUNT_OF(blocks));
    *c = (codes){.n_ranks = me->n_ranks,
                 .rank = me->rank,
                 .how = {.from = values[v].type, .to = types[t].type, .scale_type = scales[s].type},
                 .names = {types[t].name, scales[s].name, values[v].name},
                 .value_bytes = v == 0 ? 4 : 2,
                 .scale_bytes = s == 0 ? 4 : 1,
                 .block = {blocks[b][0], blocks[b][1]},
                 .planes = random_below(&random, 3),
                 .swaps = one_in(&random, 3),
                 .is_in_boxes = one_in(&random, 2),
                 .is_half = one_in(&random, 3)};
    if (c->is_half) {
        c->how.to = ORACLE_F4;
        c->how.scale_type = ORACLE_F8E4M3;
        c->names[CODES] = "f4";
        c->names[SCALES] = "f8e4m3";
        c->scale_bytes = c->block[0] = 1;
        c->block[1] = 16;
    }
    c->is_turned = c->is_in_boxes && !c->is_half;
    c->rank_columns = c->block[1] * dice(&random, 1, 3);
    if (c->is_in_boxes) {
        c->rank_columns = dice(&random, 1, (uint32_t)(3 * c->block[1]));
        c->rank_columns += c->is_half ? c->rank_columns % 2 : 0;
    }
    c->rank_rows = dice(&random, 1, 40);
    c->rows = c->rank_rows * c->n_ranks;
    c->columns = c->rank_columns * c->n_ranks;
}

/* All bits there are, of codes as of scales. */
static uint32_t bits_of(const codes *c, bool is_scale, uint64_t version, uint64_t index)
{
    uint64_t state = (version * 2 + is_scale + 1) * 0x100000001b3u + index;
    state = (state ^ state >> 29) * 0x9e3779b97f4a7c15u;
    uint32_t bits = (uint32_t)(state ^ state >> 32);
    if (!is_scale || c->scale_bytes == 1) {
        return bits & 0xff;
    }
    return bits % 7 == 0 ? bits : (bits & 0x807fffff) | (120 + bits % 14) << 23;
}

/* The bits of the f32 of a matrix, from 2^-27 to 2^23. */
static uint32_t matrix_bits(const codes *c, uint64_t version, uint64_t plane)
{
    uint32_t bits = bits_of(c, false, version, plane + 1000) * 0x010101u;
    return (bits & 0x7fffff) | (100 + bits % 50) << 23;
}

static void take_one(rank_context *me, codes *c, uint32_t which, uint64_t bytes)
{
    int32_t device = draw_far(me->seed + c->rows, me->rank, which);
    if (device >= 0) {
        must(me, ferry_memory_alloc(NULL, device_kind(), device_number(device), bytes,
                                    &c->far[which], &me->error));
    }
    c->buffers[which] = ferry_buffer_of(take(me, bytes + 1), bytes);
}

static uint64_t all_scales(const codes *c)
{
    return n_planes(c) * n_blocks(c->rows, c->block[0]) * n_blocks(c->columns, c->block[1]);
}

static void take_all(rank_context *me, codes *c)
{
    uint64_t values = n_planes(c) * c->rows * c->rank_columns * c->value_bytes;
    take_one(me, c, CODES, n_planes(c) * c->rank_rows * c->columns / (c->is_half ? 2 : 1));
    take_one(me, c, SCALES, all_scales(c) * c->scale_bytes);
    take_one(me, c, MATRICES, n_planes(c) * sizeof(uint32_t));
    take_one(me, c, VALUES, values);
    take_one(me, c, BEHIND, values);
}

static void give_all(codes *c)
{
    for (int i = 0; i < N_BUFFERS; i++) {
        free(c->buffers[i].base);
        ferry_memory_free(&c->far[i]);
    }
}

static const ferry_buffer *given(const codes *c, uint32_t which)
{
    return c->far[which].base != NULL ? &c->far[which] : &c->buffers[which];
}

static void fill_sources(rank_context *me, const codes *c, uint64_t of_codes, uint64_t of_scales)
{
    unsigned char *at = c->buffers[CODES].base, *scales = c->buffers[SCALES].base;
    for (uint64_t i = 0; i < n_planes(c) * c->rank_rows * c->columns; i++) {
        uint64_t plane = i / c->columns / c->rank_rows;
        uint64_t row = c->rank * c->rank_rows + i / c->columns % c->rank_rows;
        uint32_t code =
            bits_of(c, false, of_codes, (plane * c->rows + row) * c->columns + i % c->columns);
        if (!c->is_half) {
            at[i] = (unsigned char)code;
        } else {
            at[i / 2] = (unsigned char)(i % 2 == 0 ? code & 15 : at[i / 2] | (code & 15) << 4);
        }
    }
    for (uint64_t i = 0; i < n_planes(c); i++) {
        uint32_t bits = matrix_bits(c, of_scales, i);
        memcpy((char *)c->buffers[MATRICES].base + i * sizeof bits, &bits, sizeof bits);
    }
    for (uint64_t i = 0; i < all_scales(c); i++) {
        uint32_t bits = bits_of(c, true, of_scales, i);
        memcpy(scales + i * c->scale_bytes, &bits, c->scale_bytes);
    }
    for (uint32_t i = CODES; i <= MATRICES; i++) {
        if (c->far[i].base != NULL) {
            copy_far(me, c->far[i], c->buffers[i]);
        }
    }
}

/* How many values of a buffer are not those of these versions. */
static uint64_t count_wrong(rank_context *me, const codes *c, uint32_t which, uint64_t of_codes,
                            uint64_t of_scales)
{
    const unsigned char *at = c->buffers[which].base;
    uint64_t wrong = 0, across = n_blocks(c->columns, c->block[1]);
    if (c->far[which].base != NULL) {
        copy_far(me, c->buffers[which], c->far[which]);
    }
    for (uint64_t i = 0; i < n_planes(c) * c->rows * c->rank_columns; i++) {
        uint64_t plane = i / c->rank_columns / c->rows, row = i / c->rank_columns % c->rows;
        uint64_t column = c->rank * c->rank_columns + i % c->rank_columns;
        if (c->is_turned) {
            row = i % c->rows;
            column = c->rank * c->rank_columns + i / c->rows % c->rank_columns;
        }
        uint64_t block = (plane * n_blocks(c->rows, c->block[0]) + row / c->block[0]) * across +
                         column / c->block[1];
        uint32_t code = bits_of(c, false, of_codes, (plane * c->rows + row) * c->columns + column);
        oracle_block how = c->how;
        how.tensor_scale = matrix_bits(c, of_scales, plane);
        code = c->is_half ? code & 15 : code;
        uint32_t wanted = oracle_dequantize(&how, code, bits_of(c, true, of_scales, block));
        wrong += memcmp(at + i * c->value_bytes, &wanted, c->value_bytes) != 0;
    }
    return wrong;
}

static void expect_all(rank_context *me, const codes *c, const ferry_service *service,
                       uint64_t of_codes, uint64_t of_scales, const char *what)
{
    ferry_destination found = destination_of(me, service, 0);
    uint32_t which = found.buffer.base == given(c, BEHIND)->base ? BEHIND : VALUES;
    uint64_t wrong = count_wrong(me, c, which, of_codes, of_scales);
    expect(me, found.state == FERRY_TENSOR_VALID && found.missing == 0, "%s: not valid", what);
    expect(me, wrong == 0, "%s: %llu of %llu values are wrong", what, (unsigned long long)wrong,
           (unsigned long long)(n_planes(c) * c->rows * c->rank_columns));
}

static ferry_side *boxes_of(rank_context *me, const codes *c)
{
    ferry_side *side = NULL;
    oracle_type type = c->how.from;
    const ferry_dtype dtype = {.kind = type == ORACLE_F32   ? FERRY_F32
                                       : type == ORACLE_F16 ? FERRY_F16
                                                            : FERRY_BF16,
                               .element_bits = (uint32_t)c->value_bytes * 8};
    const uint64_t volume = c->rows * c->rank_columns;
    must(me, ferry_side_create(&side, &me->error));
    for (uint32_t rank = 0; rank < c->n_ranks; rank++) {
        size_t number = 0;
        uint32_t d = 0;
        ferry_side_box box = FERRY_SIDE_BOX_INIT;
        box.tensor = "w";
        if (c->planes != 0) {
            box.shape[d] = c->planes;
            box.strides[d++] = volume;
        }
        box.shape[d] = c->rows;
        box.strides[d++] = c->is_turned ? 1 : c->rank_columns;
        box.begin[d] = rank * c->rank_columns;
        box.shape[d] = c->rank_columns;
        box.strides[d++] = c->is_turned ? c->rows : 1;
        box.n_dims = d;
        must(me, ferry_side_add_parameter(side, &rank, 1, "w", &dtype, n_planes(c) * volume, 0,
                                          &number, &me->error));
        must(me, ferry_side_set_dequantize(side, number, "*.s", c->block, &me->error));
        must(me, ferry_side_add_box(side, number, &box, &me->error));
    }
    return side;
}

/* Whose destination is on a mesh, or nowhere. */
static ferry_spec *spec_of(rank_context *me, const codes *c)
{
    char text[1600], planes[40] = "", matrices[120] = "";
    unsigned dim = c->planes == 0 ? 0 : 1;
    ferry_spec *spec = NULL;
    if (dim == 1) {
        snprintf(planes, sizeof planes, "%llu, ", (unsigned long long)c->planes);
    }
    if (c->is_half) {
        snprintf(matrices, sizeof matrices,
                 ", {\"name\": \"w.s_2\", \"shape\": [%.*s], \"dtype\": \"f32\"}",
                 (int)strcspn(planes, ","), planes);
    }
    int used = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [%s%llu, %llu],"
        " \"dtype\": \"%s\"}, {\"name\": \"w.s\", \"shape\": [%s%llu, %llu], \"dtype\": \"%s\"}%s],"
        " \"source\": {\"mesh\": [[\"tp\", %u]], \"rules\": [{\"match\": \"w\", \"shard\": "
        "[{\"dim\": %u, \"axis\": \"tp\"}]}, {\"match\": \"*\"}]}, \"destination\": {\"mesh\": "
        "[[\"tp\", %u]], \"rules\": [%s{\"match\": \"w\", \"shard\": [{\"dim\": %u, \"axis\": "
        "\"tp\"}], \"dtype\": \"%s\", \"dequantize\": {\"scale\": \"*.s\", \"block\": [%llu, "
        "%llu]}}, {\"match\": \"*\", \"skip\": true}]}}",
        planes, (unsigned long long)c->rows, (unsigned long long)c->columns, c->names[CODES],
        planes, (unsigned long long)n_blocks(c->rows, c->block[0]),
        (unsigned long long)n_blocks(c->columns, c->block[1]), c->names[SCALES], matrices,
        (unsigned)c->n_ranks, dim, (unsigned)c->n_ranks,
        c->is_in_boxes ? "{\"match\": \"*\", \"skip\": true}, " : "", dim + 1, c->names[2],
        (unsigned long long)c->block[0], (unsigned long long)c->block[1]);
    must(me, ferry_spec_parse(text, (size_t)used, "codes", &spec, &me->error));
    return spec;
}

static ferry_plan *plan_of(rank_context *me, const codes *c)
{
    ferry_spec *spec = spec_of(me, c), *with_boxes = NULL;
    ferry_plan *plan = NULL;
    if (c->is_in_boxes) {
        ferry_side *side = boxes_of(me, c);
        must(me, ferry_spec_create(spec, NULL, side, &with_boxes, &me->error));
        ferry_side_destroy(side);
    }
    must(me, ferry_plan_create(with_boxes != NULL ? with_boxes : spec, NULL, &plan, &me->error));
    ferry_spec_destroy(with_boxes);
    ferry_spec_destroy(spec);
    return plan;
}

static ferry_tensors *targets_of(rank_context *me, const codes *c)
{
    ferry_tensors *targets = NULL;
    must(me, ferry_tensors_create(&targets, &me->error));
    must(me, c->swaps ? ferry_tensors_add_pair(targets, "w", given(c, VALUES), given(c, BEHIND),
                                               &me->error)
                      : ferry_tensors_add(targets, "w", given(c, VALUES), &me->error));
    return targets;
}

/* To the same memory; and a tensor of the caller's is called as the service calls the scales. */
static void bind_anew(rank_context *me, const codes *c, ferry_service *service)
{
    ferry_tensors *targets = targets_of(me, c);
    uint64_t bytes = n_planes(c) * n_blocks(c->rows, c->block[0]) *
                     n_blocks(c->rank_columns, c->block[1]) * c->scale_bytes;
    unsigned char *own = take(me, bytes);
    ferry_buffer buffer = ferry_buffer_of(own, bytes);
    uint64_t written = 0;
    memset(own, 0xa5, bytes);
    must(me, ferry_tensors_add(targets, "w:scales", &buffer, &me->error));
    must(me, ferry_service_rebind(service, NULL, targets, &me->error));
    fill_sources(me, c, 7, 7);
    must(me, ferry_service_run(service, NULL, &me->error));
    expect_all(me, c, service, 7, 7, "a run that was bound anew");
    for (uint64_t i = 0; i < bytes; i++) {
        written += own[i] != 0xa5;
    }
    expect(me, written == 0, "%llu bytes of a tensor that is not in the plan were written",
           (unsigned long long)written);
    ferry_tensors_destroy(targets);
    free(own);
}

/* A service that is scheduled; it goes on from a ledger, if there is one. */
static ferry_service *bind(rank_context *me, const codes *c, const ferry_service_options *options,
                           const ferry_ledger *ledger)
{
    ferry_tensors *sources = NULL, *targets = targets_of(me, c);
    ferry_plan *plan = plan_of(me, c);
    ferry_service *service = open_service(me, options);
    must(me, ferry_tensors_create(&sources, &me->error));
    must(me, ferry_tensors_add(sources, "w", given(c, CODES), &me->error));
    must(me, ferry_tensors_add(sources, "w.s", given(c, SCALES), &me->error));
    if (c->is_half) {
        must(me, ferry_tensors_add(sources, "w.s_2", given(c, MATRICES), &me->error));
    }
    must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
    expect(me, ferry_service_destination_count(service) == 1, "%llu destinations",
           (unsigned long long)ferry_service_destination_count(service));
    if (ledger != NULL) {
        must(me, ferry_service_resume(service, ledger, &me->error));
    }
    must(me, ferry_service_schedule(service, &me->error));
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
    return service;
}

/* A run that one rank ends somewhere, and another service that goes on. */
static ferry_service *break_off(rank_context *me, const codes *c, ferry_service *service,
                                const ferry_service_options *options, uint64_t seed)
{
    uint64_t random = seed;
    uint32_t who = random_below(&random, me->n_ranks);
    uint32_t n_steps = random_below(&random, 1u << random_below(&random, 9));
    ferry_ledger *ledger = NULL;
    fill_sources(me, c, 5, 5);
    ferry_status status = run_some(me, service, me->rank == who ? n_steps : NEVER);
    if (status == FERRY_OK) {
        expect_all(me, c, service, 5, 5, "a run that nobody broke off");
        return service;
    }
    ferry_destination found = destination_of(me, service, 0);
    expect(me,
           c->swaps || found.state != FERRY_TENSOR_VALID || count_wrong(me, c, VALUES, 5, 5) == 0,
           "what a run that was broken off calls valid is not");
    must(me, ferry_service_take_ledger(service, &ledger, &me->error));
    must(me, ferry_service_clear_requests(service, &me->error));
    ferry_service_destroy(service);
    service = bind(me, c, options, ledger);
    ferry_ledger_destroy(ledger);
    must(me, ferry_service_run(service, NULL, &me->error));
    expect_all(me, c, service, 5, 5, "a run that goes on");
    return service;
}

static void dequantize_once(rank_context *me, uint64_t seed)
{
    service_setup setup;
    codes c;
    uint64_t random = seed;
    setup_draw(me, &setup, &random);
    draw(me, seed, &c);
    setup.options.commit = c.swaps ? FERRY_COMMIT_SWAP : setup.options.commit;
    take_all(me, &c);
    ferry_service *service = bind(me, &c, &setup.options, NULL);
    for (uint64_t run = 0; run < 4; run++) { /* codes stay, and scales, and both */
        uint64_t of_codes = run / 2, of_scales = (run + 1) / 2;
        fill_sources(me, &c, of_codes, of_scales);
        if (run % 2 == 1 && setup.options.delta != 0) {
            must(me, ferry_service_mark_unchanged(service, "w", &me->error));
        }
        must(me, ferry_service_run(service, NULL, &me->error));
        expect_all(me, &c, service, of_codes, of_scales, "a run");
    }
    service = break_off(me, &c, service, &setup.options, seed);
    fill_sources(me, &c, 6, 6);
    must(me, ferry_service_run(service, NULL, &me->error));
    expect_all(me, &c, service, 6, 6, "a run after all");
    bind_anew(me, &c, service);
    must(me, ferry_service_clear_requests(service, &me->error));
    ferry_service_destroy(service);
    give_all(&c);
}

void case_dequantize(rank_context *me)
{
    for (uint32_t i = 0; i < times_of(me, 8, 100); i++) {
        dequantize_once(me, me->seed * 1000 + me->n_ranks * 100 + i);
    }
}
