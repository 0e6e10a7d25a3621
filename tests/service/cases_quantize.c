/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans that quantize: a tensor of values, cut by rows, becomes one of codes and one of scales, cut
 * by columns. All of both is worked out from the definition, block by block.
 */
#include "service/scene.h"

#include "oracle/convert.h"
#include "support/devices.h"

enum { MOST_PLANES = 6, POISON_CODE = 0xdb };

static const struct {
    const char *name;
    oracle_type type;
    uint64_t bytes;
} values[] = {{"f32", ORACLE_F32, 4}, {"f16", ORACLE_F16, 2}, {"bf16", ORACLE_BF16, 2}};

typedef struct blocks {
    uint32_t n_ranks, rank;
    uint32_t value; /* of the table */
    oracle_block how;
    const char *format;                          /* of the spec */
    uint64_t block[2], planes[2], rows, columns; /* of the whole; planes 0: it has no such dim */
    uint64_t rank_rows, rank_columns;            /* of each; 0: each has all of them */
    ferry_buffer source, codes, scales, far[3];  /* far: base NULL: it is the host's */
} blocks;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t n_planes(const blocks *b)
{
    return (b->planes[0] == 0 ? 1 : b->planes[0]) * (b->planes[1] == 0 ? 1 : b->planes[1]);
}

/* What the rank has of the rows, or of the columns. */
static uint64_t own(uint64_t all, uint64_t each, uint32_t rank, uint64_t *first_out)
{
    *first_out = each * rank;
    return each == 0 ? all : each;
}

static uint64_t n_blocks(uint64_t elements, uint64_t block)
{
    return (elements + block - 1) / block;
}

static uint64_t scale_bytes(const blocks *b)
{
    return b->how.scale_type == ORACLE_F32 ? 4 : 1;
}

static void draw(rank_context *me, uint64_t seed, blocks *b)
{
    static const uint64_t shapes[][2] = {{4, 8}, {16, 16}, {8, 3}, {128, 128}, {5, 32}};
    static const struct {
        const char *text;
        oracle_type codes, scales;
        oracle_rule rule;
    } formats[] = {{"\"format\": \"f8e4m3\"", ORACLE_F8E4M3, ORACLE_F32, ORACLE_LARGEST},
                   {"\"format\": \"f8e5m2\"", ORACLE_F8E5M2, ORACLE_F32, ORACLE_LARGEST},
                   {"\"format\": \"f8e4m3\", \"scale_dtype\": \"f8e8m0\"", ORACLE_F8E4M3,
                    ORACLE_F8E8M0, ORACLE_COVER},
                   {"\"format\": \"f8e4m3\", \"scale_kind\": \"cover\"", ORACLE_F8E4M3, ORACLE_F32,
                    ORACLE_COVER},
                   {"\"format\": \"mxfp8\"", ORACLE_F8E4M3, ORACLE_F8E8M0, ORACLE_FLOOR}};
    uint64_t random = seed;
    size_t format = random_below(&random, COUNT_OF(formats));
    size_t shape = random_below(&random, COUNT_OF(shapes));
    bool is_mx = format == COUNT_OF(formats) - 1;
    *b = (blocks){.n_ranks = me->n_ranks,
                  .rank = me->rank,
                  .value = (uint32_t)random_below(&random, COUNT_OF(values)),
                  .format = formats[format].text,
                  .block = {is_mx ? 1 : shapes[shape][0], is_mx ? 32 : shapes[shape][1]}};
    b->how = (oracle_block){.from = values[b->value].type,
                            .to = formats[format].codes,
                            .scale_type = formats[format].scales,
                            .rule = formats[format].rule};
    b->planes[0] = random_below(&random, 3);
    b->planes[1] = b->planes[0] == 0 ? 0 : random_below(&random, 3);
    b->rank_rows = b->block[0] * dice(&random, 1, is_mx ? 20 : 3);
    b->rank_columns = b->block[1] * dice(&random, 1, 3);
    b->rows = b->rank_rows * b->n_ranks;
    b->columns = b->rank_columns * b->n_ranks;
    if (random_below(&random, 3) == 0) { /* what is not cut may end within a block */
        b->rows -= random_below(&random, (uint32_t)b->block[0]);
        b->rank_rows = 0;
    } else if (random_below(&random, 2) == 0) {
        b->columns -= random_below(&random, (uint32_t)b->block[1]);
        b->rank_columns = 0;
    }
}

/* Mostly numbers of like magnitudes, zeros and what is not finite among them. */
static uint32_t code_of(const blocks *b, uint64_t version, uint64_t plane, uint64_t row,
                        uint64_t column)
{
    uint64_t state = ((version * 31 + plane) * 0x100000001b3u + row) * 0x100000001b3u + column;
    state = (state ^ state >> 29) * 0x9e3779b97f4a7c15u;
    state ^= state >> 32;
    uint32_t bits = (uint32_t)state & 0x807fffff, odd = (uint32_t)(state >> 40) % 997;
    bits |= (uint32_t)(118 + (state >> 33) % 12) << 23;
    bits = odd == 1 ? 0x7f800000 : odd == 2 ? 0xffc00000 : odd < 9 ? 0x80000000 : bits;
    return oracle_cast(ORACLE_F32, bits, b->how.from, false);
}

static ferry_buffer take_buffer(rank_context *me, blocks *b, uint32_t which, uint64_t bytes)
{
    int32_t device = draw_far(me->seed + b->rows, me->rank, which);
    if (device >= 0 && bytes > 0) {
        must(me, ferry_memory_alloc(NULL, device_kind(), device_number(device), bytes,
                                    &b->far[which], &me->error));
    }
    return ferry_buffer_of(take(me, bytes + 1), bytes);
}

static void take_all(rank_context *me, blocks *b)
{
    uint64_t first, rows = own(b->rows, b->rank_rows, b->rank, &first);
    uint64_t columns = own(b->columns, b->rank_columns, b->rank, &first), n = n_planes(b);
    uint64_t scales = n_blocks(b->rows, b->block[0]) * n_blocks(columns, b->block[1]);
    b->source = take_buffer(me, b, 0, n * rows * b->columns * values[b->value].bytes);
    b->codes = take_buffer(me, b, 1, n * b->rows * columns);
    b->scales = take_buffer(me, b, 2, n * scales * scale_bytes(b));
}

static void give_all(blocks *b)
{
    free(b->source.base);
    free(b->codes.base);
    free(b->scales.base);
    for (int i = 0; i < 3; i++) {
        ferry_memory_free(&b->far[i]);
    }
}

static void fill_source(rank_context *me, const blocks *b, uint64_t version)
{
    uint64_t first, rows = own(b->rows, b->rank_rows, b->rank, &first);
    char *at = b->source.base;
    for (uint64_t i = 0; i < n_planes(b) * rows * b->columns; i++) {
        uint32_t code = code_of(b, version, i / b->columns / rows, first + i / b->columns % rows,
                                i % b->columns);
        memcpy(at, &code, values[b->value].bytes);
        at += values[b->value].bytes;
    }
    if (b->far[0].base != NULL) {
        copy_far(me, b->far[0], b->source);
    }
}

/* A block of the whole, against what this rank has of it. */
static void check_block(rank_context *me, const blocks *b, uint64_t version, uint64_t plane,
                        uint64_t row, uint64_t column)
{
    uint64_t first, columns = own(b->columns, b->rank_columns, b->rank, &first);
    uint64_t height = least(b->block[0], b->rows - row);
    uint64_t width = least(b->block[1], first + columns - column), n = 0;
    uint32_t *elements = take(me, height * width * sizeof *elements);
    uint32_t *codes = take(me, height * width * sizeof *codes), found = 0;
    for (uint64_t i = 0; i < height * width; i++) {
        elements[n++] = code_of(b, version, plane, row + i / width, column + i % width);
    }
    uint32_t scale = oracle_quantize(&b->how, elements, n, codes);
    uint64_t pitch = n_blocks(columns, b->block[1]);
    uint64_t index = (plane * n_blocks(b->rows, b->block[0]) + row / b->block[0]) * pitch +
                     (column - first) / b->block[1];
    memcpy(&found, (char *)b->scales.base + index * scale_bytes(b), scale_bytes(b));
    expect(me, found == scale, "scale of block %llu, %llu of plane %llu: %x, not %x",
           (unsigned long long)row, (unsigned long long)column, (unsigned long long)plane, found,
           scale);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = (plane * b->rows + row + i / width) * columns + column - first + i % width;
        uint32_t code = ((unsigned char *)b->codes.base)[at];
        expect(me, code == codes[i], "code %llu, %llu of plane %llu: %x of %x, not %x",
               (unsigned long long)(row + i / width), (unsigned long long)(column + i % width),
               (unsigned long long)plane, code, elements[i], codes[i]);
    }
    free(elements);
    free(codes);
}

static void check_all(rank_context *me, const blocks *b, uint64_t version)
{
    uint64_t first, columns = own(b->columns, b->rank_columns, b->rank, &first);
    if (b->far[1].base != NULL) {
        copy_far(me, b->codes, b->far[1]);
    }
    if (b->far[2].base != NULL) {
        copy_far(me, b->scales, b->far[2]);
    }
    for (uint64_t p = 0; p < n_planes(b); p++) {
        for (uint64_t row = 0; row < b->rows; row += b->block[0]) {
            for (uint64_t column = first; column < first + columns; column += b->block[1]) {
                check_block(me, b, version, p, row, column);
            }
        }
    }
}

static void write_shard(char text[100], unsigned dim, uint64_t each, uint64_t unit)
{
    text[0] = '\0';
    if (each != 0) {
        snprintf(text, 100, ", \"shard\": [{\"dim\": %u, \"axis\": \"tp\", \"unit\": %llu}]", dim,
                 (unsigned long long)unit);
    }
}

static ferry_plan *plan_of(rank_context *me, const blocks *b)
{
    char text[1400], planes[80] = "", block[60] = "", cuts[2][100];
    unsigned dim = b->planes[0] == 0 ? 0 : b->planes[1] == 0 ? 1 : 2;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    for (unsigned i = 0; i < dim; i++) {
        size_t used = strlen(planes);
        snprintf(planes + used, sizeof planes - used, "%llu, ", (unsigned long long)b->planes[i]);
    }
    if (strstr(b->format, "mxfp8") == NULL) {
        snprintf(block, sizeof block, ", \"block\": [%llu, %llu]", (unsigned long long)b->block[0],
                 (unsigned long long)b->block[1]);
    }
    write_shard(cuts[0], dim, b->rank_rows, b->block[0]);
    write_shard(cuts[1], dim + 1, b->rank_columns, b->block[1]);
    int used = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [%s%llu, %llu],"
        " \"dtype\": \"%s\"}], \"source\": {\"mesh\": [[\"tp\", %u]], \"rules\": [{\"match\": "
        "\"*\"%s}]},"
        " \"destination\": {\"mesh\": [[\"tp\", %u]], \"rules\": [{\"match\": \"w\"%s,"
        " \"quantize\": {%s%s, \"scale\": \"w.scale\"}}]}}",
        planes, (unsigned long long)b->rows, (unsigned long long)b->columns, values[b->value].name,
        (unsigned)b->n_ranks, cuts[0], (unsigned)b->n_ranks, cuts[1], b->format, block);
    must(me, ferry_spec_parse(text, (size_t)used, "blocks", &spec, &me->error));
    must(me, ferry_plan_create(spec, NULL, &plan, &me->error));
    ferry_spec_destroy(spec);
    return plan;
}

static void bind(rank_context *me, const blocks *b, ferry_service *service)
{
    ferry_tensors *sources = NULL, *targets = NULL;
    ferry_plan *plan = plan_of(me, b);
    const ferry_buffer *front[] = {&b->source, &b->codes, &b->scales};
    const char *const names[] = {"w", "w", "w.scale"};
    must(me, ferry_tensors_create(&sources, &me->error));
    must(me, ferry_tensors_create(&targets, &me->error));
    for (int i = 0; i < 3; i++) {
        const ferry_buffer *buffer = b->far[i].base != NULL ? &b->far[i] : front[i];
        must(me, ferry_tensors_add(i == 0 ? sources : targets, names[i], buffer, &me->error));
    }
    must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
    must(me, ferry_service_schedule(service, &me->error));
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
}

static void quantize_once(rank_context *me, uint64_t seed)
{
    static const uint64_t slots[] = {0, 16, 100, 4096};
    service_setup setup;
    blocks b;
    uint64_t random = seed;
    setup_init(me, &setup, "");
    setup.options.slot_bytes = slots[random_below(&random, COUNT_OF(slots))];
    setup.options.checksum = random_below(&random, 3);
    setup.options.n_threads = random_below(&random, 4);
    setup.options.paths = one_in(&random, 2) ? 0 : FERRY_PATH_STAGED;
    setup.options.delta = setup.options.delta != 0 || one_in(&random, 3);
    draw(me, seed, &b);
    take_all(me, &b);
    ferry_service *service = open_service(me, &setup.options);
    bind(me, &b, service);
    for (uint64_t run = 0; run < 3; run++) {
        uint64_t version = run == 2 ? 1 : run; /* the last is the one before */
        fill_source(me, &b, version);
        must(me, ferry_service_run(service, NULL, &me->error));
        check_all(me, &b, version);
    }
    must(me, ferry_service_clear_requests(service, &me->error));
    ferry_service_destroy(service);
    give_all(&b);
}

void case_quantize(rank_context *me)
{
    for (uint32_t i = 0; i < times_of(me, 8, 100); i++) {
        quantize_once(me, me->seed * 1000 + me->n_ranks * 100 + i);
    }
}

/*
 * Scales are made of a whole shard: what arrives may not lie on rows of it that nobody wants. Rank
 * 0 has the values and wants v at their end; the last rank has v, and wants the upper half's codes.
 */
void case_bad_quantize(rank_context *me)
{
    static const char spec_text[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [16, 8], "
        "\"dtype\": \"f32\"}, {\"name\": \"v\", \"shape\": [32], \"dtype\": \"f32\"}],"
        " \"source\": {\"mesh\": [[\"r\", 2]], \"rules\": [{\"match\": \"w\", \"on\": {\"r\": 0}}, "
        "{\"match\": \"v\", \"on\": {\"r\": 1}}]},"
        " \"destination\": {\"boxes\": [{\"rank\": 1, \"parameter\": \"c\", \"elements\": 64, "
        "\"holds\": [{\"tensor\": \"w\", \"begin\": [0, 0], \"shape\": [8, 8], \"offset\": 0, "
        "\"strides\": [8, 1]}], \"quantize\": {\"format\": \"f8e4m3\", \"block\": [8, 8], "
        "\"scale\": \"*_s\"}}, {\"rank\": 0, \"parameter\": \"v\", \"elements\": 32, \"holds\": "
        "[{\"tensor\": \"v\", \"begin\": [0], \"shape\": [32], \"offset\": 0, \"strides\": "
        "[1]}]}]}}";
    static const struct {
        uint64_t at; /* of v, in elements of the memory that w has the first 128 of */
        bool fails;
    } rows[] = {{96, true}, {64, true}, {0, true}, {127, true}, {128, false}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        service_setup setup;
        ferry_tensors *sources = NULL, *targets = NULL;
        ferry_spec *spec = NULL;
        ferry_plan *plan = NULL;
        float *memory = take(me, 160 * sizeof *memory);
        for (size_t k = 0; k < 160; k++) {
            memory[k] = (float)k;
        }
        ferry_buffer w = ferry_buffer_of(memory, 128 * sizeof *memory);
        ferry_buffer v = ferry_buffer_of(memory + rows[i].at, 32 * sizeof *memory);
        ferry_buffer codes = ferry_buffer_of(memory + 64, 64);
        setup_init(me, &setup, "");
        ferry_service *service = open_service(me, &setup.options);
        must(me, ferry_spec_parse(spec_text, strlen(spec_text), "rows", &spec, &me->error));
        must(me, ferry_plan_create(spec, NULL, &plan, &me->error));
        must(me, ferry_tensors_create(&sources, &me->error));
        must(me, ferry_tensors_create(&targets, &me->error));
        must(me, ferry_tensors_add(sources, me->rank == 0 ? "w" : "v", me->rank == 0 ? &w : &v,
                                   &me->error));
        must(me, ferry_tensors_add(targets, me->rank == 0 ? "v" : "c", me->rank == 0 ? &v : &codes,
                                   &me->error));
        must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
        if (rows[i].fails) {
            all_fail(me, FERRY_ERR_INVALID_INPUT, "of all of which scales are made",
                     ferry_service_schedule(service, &me->error));
        } else {
            must(me, ferry_service_schedule(service, &me->error));
        }
        ferry_tensors_destroy(sources);
        ferry_tensors_destroy(targets);
        ferry_plan_destroy(plan);
        ferry_spec_destroy(spec);
        ferry_service_destroy(service);
        free(memory);
    }
}
