/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans that quantize: a tensor of values, cut by rows, becomes one of codes and one of scales, cut
 * by columns. All of both is worked out from the definition, block by block. Beside it another
 * tensor has codes, all of them 1, and becomes values.
 */
#include "service/scene.h"

#include "oracle/convert.h"
#include "support/devices.h"

/* What is looked at of what blocks became. */
enum { CODES = 1, SCALES = 2 };

/* Of the other tensor: rows of each rank at the source, columns of each, and a block. */
enum { ONE_ROWS = 3, ONE_COLUMNS = 4, ONE_HIGH = 2, ONE_CODE = 0x38 };

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
    ferry_buffer ones, one_scales, one_values;   /* of the other tensor */
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
    if (random_below(&random, 3) == 0) { /* cuts inside blocks: receivers make them */
        b->rank_rows = dice(&random, 1, (uint32_t)(2 * b->block[0] + 1));
        b->rows = b->rank_rows * b->n_ranks;
    } else if (random_below(&random, 3) == 0) { /* what is not cut may end within a block */
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
    uint64_t ones = (uint64_t)ONE_ROWS * ONE_COLUMNS * b->n_ranks;
    uint64_t ones_scaled = n_blocks(ONE_ROWS * b->n_ranks, ONE_HIGH) * b->n_ranks * sizeof(float);
    b->ones = ferry_buffer_of(take(me, ones), ones);
    b->one_scales = ferry_buffer_of(take(me, ones_scaled), ones_scaled);
    b->one_values = ferry_buffer_of(take(me, ones * sizeof(float)), ones * sizeof(float));
}

static void give_all(blocks *b)
{
    free(b->source.base);
    free(b->codes.base);
    free(b->scales.base);
    free(b->ones.base);
    free(b->one_scales.base);
    free(b->one_values.base);
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
    memset(b->ones.base, ONE_CODE, b->ones.bytes);
    for (uint64_t i = 0; i < b->one_scales.bytes / sizeof(float); i++) {
        ((float *)b->one_scales.base)[i] = (float)(version * 1000 + i + 1);
    }
}

static void check_ones(rank_context *me, const blocks *b, uint64_t version)
{
    for (uint64_t i = 0; i < b->one_values.bytes / sizeof(float); i++) {
        uint64_t block = i / ONE_COLUMNS / ONE_HIGH * b->n_ranks + b->rank;
        float value = ((float *)b->one_values.base)[i],
              wanted = (float)(version * 1000 + block + 1);
        expect(me, value == wanted, "value %llu is %g, not %g", (unsigned long long)i, value,
               wanted);
    }
}

/* A block of the whole, against what this rank has of it: CODES, SCALES or both. */
static void check_block(rank_context *me, const blocks *b, uint64_t version, uint32_t which,
                        uint64_t plane, uint64_t row, uint64_t column)
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
    expect(me, (which & SCALES) == 0 || found == scale,
           "scale of block %llu, %llu of plane %llu: %x, not %x", (unsigned long long)row,
           (unsigned long long)column, (unsigned long long)plane, found, scale);
    for (uint64_t i = 0; (which & CODES) != 0 && i < n; i++) {
        uint64_t at = (plane * b->rows + row + i / width) * columns + column - first + i % width;
        uint32_t code = ((unsigned char *)b->codes.base)[at];
        expect(me, code == codes[i], "code %llu, %llu of plane %llu: %x of %x, not %x",
               (unsigned long long)(row + i / width), (unsigned long long)(column + i % width),
               (unsigned long long)plane, code, elements[i], codes[i]);
    }
    free(elements);
    free(codes);
}

static void check_blocks(rank_context *me, const blocks *b, uint64_t version, uint32_t which)
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
                check_block(me, b, version, which, p, row, column);
            }
        }
    }
}

static void check_all(rank_context *me, const blocks *b, uint64_t version)
{
    check_ones(me, b, version);
    check_blocks(me, b, version, CODES | SCALES);
}

static void write_shard(char text[100], unsigned dim, uint64_t each)
{
    text[0] = '\0';
    if (each != 0) {
        snprintf(text, 100, ", \"shard\": [{\"dim\": %u, \"axis\": \"tp\", \"unit\": %llu}]", dim,
                 (unsigned long long)each);
    }
}

static ferry_plan *plan_of(rank_context *me, const blocks *b)
{
    char text[2000], planes[80] = "", block[60] = "", cuts[2][100];
    unsigned dim = b->planes[0] == 0 ? 0 : b->planes[1] == 0 ? 1 : 2, n = b->n_ranks;
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
    write_shard(cuts[0], dim, b->rank_rows);
    write_shard(cuts[1], dim + 1, b->rank_columns);
    int used = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [%s%llu, %llu],"
        " \"dtype\": \"%s\"}, {\"name\": \"v\", \"shape\": [%u, %u], \"dtype\": \"f8e4m3\"},"
        " {\"name\": \"v.s\", \"shape\": [%u, %u], \"dtype\": \"f32\"}],"
        " \"source\": {\"mesh\": [[\"tp\", %u]], \"rules\": [{\"match\": \"w\"%s},"
        " {\"match\": \"v\", \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}, {\"match\": \"v.s\"}]},"
        " \"destination\": {\"mesh\": [[\"tp\", %u]], \"rules\": [{\"match\": \"w\"%s,"
        " \"quantize\": {%s%s, \"scale\": \"w.scale\"}}, {\"match\": \"v\","
        " \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}], \"dtype\": \"f32\","
        " \"dequantize\": {\"scale\": \"*.s\", \"block\": [%u, %u]}},"
        " {\"match\": \"v.s\", \"skip\": true}]}}",
        planes, (unsigned long long)b->rows, (unsigned long long)b->columns, values[b->value].name,
        ONE_ROWS * n, ONE_COLUMNS * n, (unsigned)n_blocks(ONE_ROWS * n, ONE_HIGH), n, n, cuts[0], n,
        cuts[1], b->format, block, ONE_HIGH, ONE_COLUMNS);
    must(me, ferry_spec_parse(text, (size_t)used, "blocks", &spec, &me->error));
    must(me, ferry_plan_create(spec, NULL, &plan, &me->error));
    ferry_spec_destroy(spec);
    return plan;
}

/* ledger: what is resumed, and given back; or NULL. */
static void bind(rank_context *me, const blocks *b, ferry_service *service, ferry_ledger *ledger)
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
    must(me, ferry_tensors_add(sources, "v", &b->ones, &me->error));
    must(me, ferry_tensors_add(sources, "v.s", &b->one_scales, &me->error));
    must(me, ferry_tensors_add(targets, "v", &b->one_values, &me->error));
    must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
    if (ledger != NULL) {
        must(me, ferry_service_resume(service, ledger, &me->error));
        ferry_ledger_destroy(ledger);
    }
    must(me, ferry_service_schedule(service, &me->error));
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
}

static void quantize_once(rank_context *me, uint64_t seed)
{
    service_setup setup;
    blocks b;
    uint64_t random = seed;
    setup_draw(me, &setup, &random);
    draw(me, seed, &b);
    take_all(me, &b);
    ferry_service *service = open_service(me, &setup.options);
    bind(me, &b, service, NULL);
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

/* What is called valid is whole, whatever the others are; whether all is. */
static bool look_at_valid(rank_context *me, const blocks *b, const ferry_service *service,
                          uint64_t version)
{
    uint64_t n = ferry_service_destination_count(service), n_valid = 0;
    for (uint64_t d = 0; d < n; d++) {
        ferry_destination found = destination_of(me, service, d);
        if (found.state != FERRY_TENSOR_VALID) {
            continue;
        }
        n_valid++;
        expect(me, found.missing == 0, "\"%s\" is valid, and misses", found.name);
        if (strcmp(found.name, "v") == 0) {
            check_ones(me, b, version);
        } else {
            check_blocks(me, b, version, strcmp(found.name, "w") == 0 ? CODES : SCALES);
        }
    }
    return n_valid == n;
}

/* A ledger has no more of what destinations need than these do, and scales of the service's own. */
static void look_at_ledger(rank_context *me, const blocks *b, const ferry_service *service,
                           const ferry_ledger *ledger)
{
    uint64_t n = ferry_service_destination_count(service), bytes = 0;
    for (uint64_t d = 0; d < n; d++) {
        ferry_destination found = FERRY_DESTINATION_INIT;
        must(me, ferry_service_destination_at(service, d, &found, &me->error));
        bytes += found.bytes - found.missing;
    }
    bytes += n_blocks(ONE_ROWS * b->n_ranks, ONE_HIGH) * sizeof(float);
    expect(me, ferry_ledger_bytes(ledger) <= bytes, "a ledger of %llu bytes, of which %llu came",
           (unsigned long long)ferry_ledger_bytes(ledger), (unsigned long long)bytes);
}

/* Runs that a rank gives up, each resumed by another service from the ledger of the one before. */
static void resume_once(rank_context *me, uint64_t seed)
{
    enum { MOST_ATTEMPTS = 4 };
    service_setup setup;
    blocks b;
    uint64_t random = seed;
    ferry_ledger *ledger = NULL;
    ferry_status status = FERRY_ERR_ABORTED;
    setup_init(me, &setup, "");
    setup.options.slot_bytes = one_in(&random, 2) ? 64 : 1024;
    setup.options.checksum = random_below(&random, 3);
    setup.options.paths = one_in(&random, 2) ? 0 : FERRY_PATH_STAGED;
    draw(me, seed, &b);
    take_all(me, &b);
    for (uint32_t attempt = 0; status != FERRY_OK; attempt++) {
        uint32_t n_steps = random_below(&random, 1u << random_below(&random, 9));
        bool gives_up = random_below(&random, me->n_ranks) == me->rank;
        ferry_service *service = open_service(me, &setup.options);
        bind(me, &b, service, ledger);
        ledger = NULL;
        fill_source(me, &b, 1);
        status = run_some(me, service, gives_up && attempt < MOST_ATTEMPTS ? n_steps : NEVER);
        bool is_whole = look_at_valid(me, &b, service, 1);
        expect(me, status != FERRY_OK || is_whole, "a run ended well, and something is not valid");
        if (status != FERRY_OK) {
            must(me, ferry_service_take_ledger(service, &ledger, &me->error));
            look_at_ledger(me, &b, service, ledger);
        }
        meet(me);
        ferry_service_destroy(service);
    }
    give_all(&b);
}

void case_quantize_resume(rank_context *me)
{
    for (uint32_t i = 0; i < times_of(me, 6, 60); i++) {
        resume_once(me, me->seed * 1000 + me->n_ranks * 100 + i + 50000);
    }
}

/*
 * Bands: more than there are places for, of two tensors with matrices in them, from ranks that have
 * some rows or columns of each block, and from this one. Rank 0 wants all of it.
 */
enum { BAND_ROWS = 700, BAND_COLUMNS = 640, BAND_PLANES = 2, N_BANDED = 2 };

static float banded_value(uint64_t run, uint64_t tensor, uint64_t i)
{
    return (float)((i * 2654435761u + tensor * 97 + run * 31) % 65521) - 32000.0f;
}

/* What the scale of a block and its codes are, of f32 and f8e4m3 in blocks of 48 x 80. */
static void check_banded(rank_context *me, uint64_t run, uint64_t tensor,
                         const unsigned char *codes, const float *scales)
{
    enum { HIGH = 48, WIDE = 80, N = HIGH * WIDE };
    static const oracle_block how = {
        .from = ORACLE_F32, .to = ORACLE_F8E4M3, .scale_type = ORACLE_F32, .rule = ORACLE_LARGEST};
    uint32_t *elements = take(me, N * sizeof *elements), *wanted = take(me, N * sizeof *wanted);
    uint64_t number = 0;
    for (uint64_t row = 0; row < BAND_PLANES * BAND_ROWS;
         row += least(HIGH, BAND_ROWS - row % BAND_ROWS)) {
        uint64_t height = least(HIGH, BAND_ROWS - row % BAND_ROWS);
        for (uint64_t column = 0; column < BAND_COLUMNS; column += WIDE, number++) {
            if (number % 7 != run) { /* the oracle is slow */
                continue;
            }
            for (uint64_t i = 0; i < height * WIDE; i++) {
                uint64_t at = (row + i / WIDE) * BAND_COLUMNS + column + i % WIDE;
                float value = banded_value(run, tensor, at);
                memcpy(&elements[i], &value, sizeof value);
            }
            uint32_t scale = oracle_quantize(&how, elements, height * WIDE, wanted);
            expect(me, memcmp(&scale, &scales[number], sizeof scale) == 0, "scale %llu of w%llu",
                   (unsigned long long)number, (unsigned long long)tensor);
            for (uint64_t i = 0; i < height * WIDE; i++) {
                uint64_t at = (row + i / WIDE) * BAND_COLUMNS + column + i % WIDE;
                expect(me, codes[at] == wanted[i], "code %llu of w%llu", (unsigned long long)at,
                       (unsigned long long)tensor);
            }
        }
    }
    free(elements);
    free(wanted);
}

/* A rank has the rows of w0, or the columns of w1, from `first` to `end`. */
static void fill_banded(uint64_t run, uint64_t tensor, uint64_t first, uint64_t end, float *to)
{
    for (uint64_t i = 0; i < BAND_PLANES * BAND_ROWS * BAND_COLUMNS; i++) {
        uint64_t at = tensor == 0 ? i / BAND_COLUMNS % BAND_ROWS : i % BAND_COLUMNS;
        if (at >= first && at < end) {
            *to++ = banded_value(run, tensor, i);
        }
    }
}

typedef struct banded {
    ferry_tensors *sources, *targets;
    float *own[N_BANDED], *scales[N_BANDED];
    unsigned char *codes[N_BANDED];
    ferry_buffer far[N_BANDED][2]; /* codes and scales in memory of a device; base NULL: here */
} banded;

static const uint64_t banded_ends[N_BANDED][4] = {{0, 100, 433, 700}, {0, 11, 611, 640}};

static void take_banded(rank_context *me, banded *b)
{
    enum { ALL = BAND_PLANES * BAND_ROWS * BAND_COLUMNS, N_SCALES = BAND_PLANES * 15 * 8 };
    must(me, ferry_tensors_create(&b->sources, &me->error));
    must(me, ferry_tensors_create(&b->targets, &me->error));
    for (uint64_t t = 0; t < N_BANDED; t++) {
        uint64_t extent = t == 0 ? BAND_ROWS : BAND_COLUMNS;
        uint64_t has = banded_ends[t][me->rank + 1] - banded_ends[t][me->rank];
        uint64_t bytes = ALL / extent * has * sizeof(float);
        const char *names[] = {t == 0 ? "w0" : "w1", t == 0 ? "w0.s" : "w1.s"};
        b->own[t] = take(me, bytes);
        b->codes[t] = take(me, ALL);
        b->scales[t] = take(me, N_SCALES * sizeof(float));
        ferry_buffer buffers[] = {ferry_buffer_of(b->own[t], bytes),
                                  ferry_buffer_of(b->codes[t], ALL),
                                  ferry_buffer_of(b->scales[t], N_SCALES * sizeof(float))};
        for (int i = 0; i < 2 && getenv("FERRY_TEST_FAR") != NULL; i++) {
            must(me, ferry_memory_alloc(NULL, device_kind(), device_number((int32_t)t),
                                        buffers[i + 1].bytes, &b->far[t][i], &me->error));
            buffers[i + 1] = b->far[t][i];
        }
        must(me, ferry_tensors_add(b->sources, names[0], &buffers[0], &me->error));
        must(me, ferry_tensors_add(b->targets, names[0], &buffers[1], &me->error));
        must(me, ferry_tensors_add(b->targets, names[1], &buffers[2], &me->error));
    }
}

/* What devices have, to the host. */
static void bring_banded(rank_context *me, const banded *b, uint64_t t)
{
    void *here[2] = {b->codes[t], b->scales[t]};
    for (int i = 0; i < 2; i++) {
        if (b->far[t][i].base != NULL) {
            copy_far(me, ferry_buffer_of(here[i], b->far[t][i].bytes), b->far[t][i]);
        }
    }
}

/* With a cap: whether the schedule is refused, over a network or for too small a cap. */
static bool run_banded(rank_context *me, const banded *b, const ferry_plan *plan, uint64_t cap,
                       uint32_t n_threads, bool is_delta, uint64_t *staging_bytes_out)
{
    service_setup setup;
    setup_init(me, &setup, "");
    setup.options.delta = is_delta;
    setup.options.memory_cap = cap;
    setup.options.n_threads = n_threads;
    ferry_service *service = open_service(me, &setup.options);
    must(me, ferry_service_bind(service, plan, b->sources, b->targets, &me->error));
    ferry_status status = ferry_service_schedule(service, &me->error);
    if (status != FERRY_OK) {
        all_same(me, "a schedule", status, FERRY_ERR_LIMIT, "quantizes values itself");
    }
    for (uint64_t run = 0; run < 2 && status == FERRY_OK; run++) {
        for (uint64_t t = 0; t < N_BANDED; t++) {
            fill_banded(run, t, banded_ends[t][me->rank], banded_ends[t][me->rank + 1], b->own[t]);
        }
        must(me, ferry_service_run(service, NULL, &me->error));
        for (uint64_t t = 0; t < N_BANDED && me->rank == 0; t++) {
            bring_banded(me, b, t);
            check_banded(me, run, t, b->codes[t], b->scales[t]);
        }
    }
    ferry_service_statistics found = FERRY_SERVICE_STATISTICS_INIT;
    must(me, ferry_service_get_statistics(service, &found, &me->error));
    *staging_bytes_out = found.staging_bytes;
    ferry_service_destroy(service);
    return status != FERRY_OK;
}

void case_quantize_bands(rank_context *me)
{
    static const char spec_text[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w{0}\", \"count\": [2], "
        "\"shape\": [2, 700, 640], \"dtype\": \"f32\"}], \"source\": {\"mesh\": [[\"r\", 3]], "
        "\"rules\": [{\"match\": \"w0\", \"shard\": [{\"dim\": 1, \"axis\": \"r\", \"sizes\": "
        "[100, 333, 267]}]}, {\"match\": \"w1\", \"shard\": [{\"dim\": 2, \"axis\": \"r\", "
        "\"sizes\": [11, 600, 29]}]}]}, \"destination\": {\"mesh\": [], \"rules\": [{\"match\": "
        "\"*\", \"quantize\": {\"format\": \"f8e4m3\", \"block\": [48, 80], \"scale\": "
        "\"*.s\"}}]}}";
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    uint64_t few = 0, many = 0;
    banded b = {.sources = NULL};
    must(me, ferry_spec_parse(spec_text, strlen(spec_text), "bands", &spec, &me->error));
    must(me, ferry_plan_create(spec, NULL, &plan, &me->error));
    take_banded(me, &b);
    run_banded(me, &b, plan, 3 << 20, 1 + me->seed % 2, false, &few);
    run_banded(me, &b, plan, FERRY_MEMORY_CAP, 1, true, &few);
    run_banded(me, &b, plan, FERRY_MEMORY_CAP, 1, false, &few);
    run_banded(me, &b, plan, FERRY_MEMORY_CAP, 8, false, &many);
    expect(me, many <= few + (64 << 10), "eight threads take %llu bytes, of which one takes %llu",
           (unsigned long long)many, (unsigned long long)few);
    expect(me, run_banded(me, &b, plan, 128 << 10, 1, false, &few),
           "128 KiB have room for bands of a MiB");
    for (uint64_t t = 0; t < N_BANDED; t++) {
        free(b.own[t]);
        free(b.codes[t]);
        free(b.scales[t]);
        ferry_memory_free(&b.far[t][0]);
        ferry_memory_free(&b.far[t][1]);
    }
    ferry_tensors_destroy(b.sources);
    ferry_tensors_destroy(b.targets);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

/* Each 16 elements of a row; scales and codes of nvfp4 by the scale of their matrix. */
static void check_halves(rank_context *me, uint64_t run, const float *given,
                         const unsigned char *codes, const unsigned char *scales)
{
    enum { WIDE = 16, ALL = BAND_PLANES * BAND_ROWS * BAND_COLUMNS };
    for (uint64_t block = run; block < ALL / WIDE; block += 13) { /* the oracle is slow */
        uint32_t elements[WIDE], wanted[WIDE];
        oracle_block how = {.from = ORACLE_F32,
                            .to = ORACLE_F4,
                            .scale_type = ORACLE_F8E4M3,
                            .rule = ORACLE_LARGEST};
        memcpy(&how.tensor_scale, &given[block * WIDE / (BAND_ROWS * BAND_COLUMNS)], sizeof *given);
        for (uint64_t i = 0; i < WIDE; i++) {
            float value = banded_value(run, 0, block * WIDE + i);
            memcpy(&elements[i], &value, sizeof value);
        }
        uint32_t scale = oracle_quantize(&how, elements, WIDE, wanted);
        expect(me, scale == scales[block], "scale %llu", (unsigned long long)block);
        for (uint64_t i = 0; i < WIDE; i++) {
            uint32_t code = codes[(block * WIDE + i) / 2] >> i % 2 * 4 & 15;
            expect(me, code == wanted[i], "code %llu", (unsigned long long)(block * WIDE + i));
        }
    }
}

/* Those of matrices, in a run. */
static void give_scales(uint64_t run, float given[BAND_PLANES])
{
    given[0] = run == 0 ? 12.5f : 0.75f;
    given[1] = run == 0 ? 3.0f : 100.0f;
}

/* A plan with values w and the f32 of their matrices g, and of them codes and scales: bound. */
typedef struct halves {
    ferry_spec *spec;
    ferry_plan *plan;
    ferry_tensors *sources, *targets;
    ferry_service *service;
    float given[BAND_PLANES], got[BAND_PLANES];
    unsigned char *codes, *scales;
    ferry_buffer far; /* codes in memory of a device; base NULL: here */
} halves;

static void bind_halves(rank_context *me, const char *spec_text, bool is_delta,
                        ferry_buffer numbers, halves *h)
{
    enum { ALL = BAND_PLANES * BAND_ROWS * BAND_COLUMNS };
    h->codes = take(me, ALL / 2);
    h->scales = take(me, ALL / 16);
    if (getenv("FERRY_TEST_FAR") != NULL) {
        must(me, ferry_memory_alloc(NULL, device_kind(), 0, ALL / 2, &h->far, &me->error));
    }
    const ferry_buffer buffers[] = {
        numbers, ferry_buffer_of(h->given, sizeof h->given),
        h->far.base != NULL ? h->far : ferry_buffer_of(h->codes, ALL / 2),
        ferry_buffer_of(h->scales, ALL / 16), ferry_buffer_of(h->got, sizeof h->got)};
    static const char *const names[] = {"w", "g", "w", "w.s", "g"};
    must(me, ferry_spec_parse(spec_text, strlen(spec_text), "halves", &h->spec, &me->error));
    must(me, ferry_plan_create(h->spec, NULL, &h->plan, &me->error));
    must(me, ferry_tensors_create(&h->sources, &me->error));
    must(me, ferry_tensors_create(&h->targets, &me->error));
    for (size_t i = 0; i < 5; i++) {
        must(me,
             ferry_tensors_add(i < 2 ? h->sources : h->targets, names[i], &buffers[i], &me->error));
    }
    service_setup setup;
    setup_init(me, &setup, "");
    setup.options.delta = is_delta ? setup.options.delta : 0;
    h->service = open_service(me, &setup.options);
    must(me, ferry_service_bind(h->service, h->plan, h->sources, h->targets, &me->error));
    must(me, ferry_service_schedule(h->service, &me->error));
}

static void free_halves(halves *h)
{
    ferry_service_destroy(h->service);
    ferry_tensors_destroy(h->sources);
    ferry_tensors_destroy(h->targets);
    ferry_plan_destroy(h->plan);
    ferry_spec_destroy(h->spec);
    free(h->codes);
    free(h->scales);
    ferry_memory_free(&h->far);
}

static void run_halves(rank_context *me, const halves *h)
{
    enum { ALL = BAND_PLANES * BAND_ROWS * BAND_COLUMNS };
    must(me, ferry_service_run(h->service, NULL, &me->error));
    if (h->far.base != NULL) {
        copy_far(me, ferry_buffer_of(h->codes, ALL / 2), h->far);
    }
}

/*
 * Bands of nvfp4, of a flat source: the first are all here, while the scales of their matrices are
 * still with the last rank.
 */
void case_nvfp4_bands(rank_context *me)
{
    static const char spec_text[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [2, 700, 640], "
        "\"dtype\": \"f32\"}, {\"name\": \"g\", \"shape\": [2], \"dtype\": \"f32\"}], \"source\": "
        "{\"mesh\": [[\"r\", 3]], \"rules\": [{\"match\": \"w\", \"flat\": {\"axis\": \"r\", "
        "\"sizes\": [500001, 200000, 195999]}}, {\"match\": \"g\", \"on\": {\"r\": 2}}]}, "
        "\"destination\": {\"mesh\": [], \"rules\": [{\"match\": \"w\", \"quantize\": {\"format\": "
        "\"nvfp4\", \"scale\": \"*.s\", \"tensor_scale\": \"g\"}}, {\"match\": \"g\"}]}}";
    enum { ALL = BAND_PLANES * BAND_ROWS * BAND_COLUMNS };
    static const uint64_t ends[4] = {0, 500001, 700001, ALL};
    uint64_t has = (ends[me->rank + 1] - ends[me->rank]) * sizeof(float);
    float *own = take(me, has);
    halves h = {.spec = NULL};
    bind_halves(me, spec_text, false, ferry_buffer_of(own, has), &h);
    for (uint64_t run = 0; run < 2; run++) {
        for (uint64_t i = ends[me->rank]; i < ends[me->rank + 1]; i++) {
            own[i - ends[me->rank]] = banded_value(run, 0, i);
        }
        give_scales(run, h.given);
        memset(h.got, 0, sizeof h.got);
        run_halves(me, &h);
        if (me->rank == 0) {
            check_halves(me, run, h.given, h.codes, h.scales);
        }
    }
    free_halves(&h);
    free(own);
}

/* A sender that has the matrices in memory of a device. */
void case_nvfp4_devices(rank_context *me)
{
    static const char spec_text[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [2, 700, 640], "
        "\"dtype\": \"f32\"}, {\"name\": \"g\", \"shape\": [2], \"dtype\": \"f32\"}], \"source\": "
        "{\"mesh\": [[\"r\", 2]], \"rules\": [{\"match\": \"*\", \"on\": {\"r\": 0}}]}, "
        "\"destination\": {\"mesh\": [[\"r\", 2]], \"rules\": [{\"match\": \"w\", \"on\": {\"r\": "
        "1}, "
        "\"quantize\": {\"format\": \"nvfp4\", \"scale\": \"*.s\", \"tensor_scale\": \"g\"}}, "
        "{\"match\": \"g\", \"on\": {\"r\": 1}}]}}";
    enum { ALL = BAND_PLANES * BAND_ROWS * BAND_COLUMNS };
    const uint64_t bytes = ALL * sizeof(float);
    bool is_far = getenv("FERRY_TEST_FAR") != NULL;
    float *own = take(me, bytes);
    ferry_buffer there = ferry_buffer_of(own, bytes);
    if (is_far) {
        must(me, ferry_memory_alloc(NULL, device_kind(), 0, bytes, &there, &me->error));
    }
    halves h = {.spec = NULL};
    bind_halves(me, spec_text, true, there, &h);
    for (uint64_t run = 0; run < 2; run++) {
        for (uint64_t i = 0; i < ALL; i++) {
            own[i] = banded_value(run, 0, i);
        }
        if (is_far) {
            copy_far(me, there, ferry_buffer_of(own, bytes));
        }
        give_scales(run, h.given);
        run_halves(me, &h);
        if (me->rank == 1) {
            check_halves(me, run, h.given, h.codes, h.scales);
        }
    }
    free_halves(&h);
    if (is_far) {
        ferry_memory_free(&there);
    }
    free(own);
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
