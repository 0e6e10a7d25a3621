/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes of a parameter that are multiplied band by band: every element once, by the scale of its
 * block, and nothing between them; and the same where memory is brought and put back.
 */
#include "service_ends.h"

#include "base/checked.h"
#include "service/registry.h"

#include <math.h>
#include <stdlib.h>

enum { N_CASES = 45, MOST_ELEMENTS = 1200000, MOST_GAP = 3 };

typedef struct product_case {
    uint32_t n_dims;
    uint64_t shape[4], strides[4], begin[4], first_block[4], blocks[4];
    uint64_t block[4]; /* 1 but for the last two */
    uint64_t offset, elements, n_scales;
    bool has_powers;
    float *before;
    unsigned char *scales;
} product_case;

static uint64_t between(uint64_t *random, uint64_t least, uint64_t most)
{
    return least + random_u64(random) % (most - least + 1);
}

/* Memory has the dimensions in a random order, or in their own, and gaps between all of them. */
static void draw_strides(product_case *c, bool in_order, uint64_t *random)
{
    uint32_t order[4] = {0, 1, 2, 3};
    uint64_t span = 1;
    for (uint32_t d = c->n_dims; !in_order && d-- > 1;) {
        uint32_t other = (uint32_t)between(random, 0, d), kept = order[d];
        order[d] = order[other];
        order[other] = kept;
    }
    for (uint32_t d = c->n_dims; d-- > 0;) {
        span += d + 1 < c->n_dims || (!in_order && between(random, 1, 4) == 1)
                    ? between(random, 0, MOST_GAP)
                    : 0;
        c->strides[order[d]] = span;
        span *= c->shape[order[d]];
    }
    c->offset = between(random, 0, 9);
    c->elements = c->offset + span + 5;
}

static void draw(product_case *c, uint64_t number)
{
    uint64_t random = number + 1, volume = 1;
    *c = (product_case){.n_dims = (uint32_t)between(&random, 2, 4), .has_powers = number % 2 == 1};
    bool has_runs = number % 6 == 1; /* longer than a band */
    uint32_t longest = has_runs ? c->n_dims - 1 : (uint32_t)between(&random, 0, c->n_dims - 1);
    for (uint32_t d = 0; d < c->n_dims; d++) {
        c->shape[d] = between(&random, 1, has_runs && d == 0 ? 3 : has_runs ? 1 : 6);
        volume *= c->shape[d];
    }
    if (number % 3 != 0) { /* of several bands */
        volume /= c->shape[longest];
        c->shape[longest] = between(&random, 1, MOST_ELEMENTS / volume);
    }
    c->n_scales = 1;
    for (uint32_t d = 0; d < c->n_dims; d++) {
        c->block[d] = d + 2 < c->n_dims ? 1 : between(&random, 1, 5);
        c->begin[d] = between(&random, 0, 9);
        c->first_block[d] = c->begin[d] / c->block[d];
        c->blocks[d] = (c->begin[d] + c->shape[d] - 1) / c->block[d] - c->first_block[d] + 1;
        c->n_scales *= c->blocks[d];
    }
    draw_strides(c, has_runs, &random);
    c->before = malloc(c->elements * sizeof *c->before);
    c->scales = malloc(c->n_scales * sizeof(float));
    assert_true(c->before != NULL && c->scales != NULL);
    for (uint64_t i = 0; i < c->elements; i++) {
        c->before[i] = (float)(int64_t)between(&random, 0, 2000) - 1000;
    }
    for (uint64_t i = 0; i < c->n_scales; i++) {
        float scale = (float)between(&random, 1, 1000) / 64;
        memcpy(c->scales + i * (c->has_powers ? 1 : sizeof scale), &scale,
               c->has_powers ? 0 : sizeof scale);
        if (c->has_powers) {
            c->scales[i] =
                between(&random, 1, 50) == 1 ? 255 : (unsigned char)between(&random, 110, 140);
        }
    }
}

static float scale_at(const product_case *c, uint64_t number)
{
    float scale;
    if (c->has_powers) {
        return c->scales[number] == 255 ? NAN : ldexpf(1, c->scales[number] - 127);
    }
    memcpy(&scale, c->scales + number * sizeof scale, sizeof scale);
    return scale;
}

/* The registry with the case's memory, a destination, and its box. */
static fy_products *open_case(const product_case *c, fy_registry *registry, float *memory)
{
    ferry_error error;
    fy_products products = {.is_in_boxes = true}, *added = NULL;
    fy_area area;
    ferry_buffer buffer = ferry_buffer_of(memory, c->elements * sizeof *memory);
    ferry_conversion conversion = {.block = {c->block[c->n_dims - 2], c->block[c->n_dims - 1]}};
    fy_product_box box = {.conversion = &conversion, .n_dims = c->n_dims};
    uint64_t byte_strides[4], step = 1;
    must(fy_registry_hold_tensor(registry, &buffer, NULL, 0, true, &products.target, &error),
         &error);
    products.q = (fy_quantized){.format = {.kind = FERRY_F8E4M3,
                                           .scale_kind = c->has_powers ? FERRY_F8E8M0 : FERRY_F32,
                                           .block = {conversion.block[0], conversion.block[1]}},
                                .kind = FERRY_F32};
    products.scale_bytes = c->n_scales * (c->has_powers ? 1 : sizeof(float));
    must(fy_registry_multiply(registry, &products, &added, &error), &error);
    memcpy(added->scales, c->scales, added->scale_bytes);
    for (uint32_t d = c->n_dims; d-- > 0; step *= c->blocks[d]) {
        box.shape[d] = c->shape[d];
        box.scales_strides[d] = step;
        byte_strides[d] = c->strides[d] * sizeof *memory;
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t d = c->n_dims - 2 + i;
        box.origin[i] = c->begin[d] % c->block[d];
    }
    uint64_t shape[4];
    bool turned = (c->elements & 4) != 0; /* whatever memory has */
    memcpy(shape, c->shape, sizeof shape);
    if (turned) {
        uint32_t d = c->n_dims - 2;
        uint64_t stride = byte_strides[d];
        shape[d] = c->shape[d + 1];
        shape[d + 1] = c->shape[d];
        byte_strides[d] = byte_strides[d + 1];
        byte_strides[d + 1] = stride;
    }
    must(fy_area_make(c->offset * sizeof *memory, sizeof *memory, c->n_dims, shape, byte_strides,
                      &area, &error),
         &error);
    must(fy_registry_multiply_box(registry, added, &area, &box, turned, &error), &error);
    return added;
}

static void expect_products(const product_case *c, const float *memory, uint64_t number)
{
    float *wanted = malloc(c->elements * sizeof *wanted);
    uint64_t index[4] = {0};
    assert_non_null(wanted);
    memcpy(wanted, c->before, c->elements * sizeof *wanted);
    for (;;) {
        uint64_t at = c->offset, scale = 0;
        uint32_t d = c->n_dims;
        for (uint32_t k = 0; k < c->n_dims; k++) {
            at += index[k] * c->strides[k];
            scale =
                scale * c->blocks[k] + (c->begin[k] + index[k]) / c->block[k] - c->first_block[k];
        }
        wanted[at] = c->before[at] * scale_at(c, scale);
        while (d > 0 && ++index[d - 1] == c->shape[d - 1]) {
            index[--d] = 0;
        }
        if (d == 0) {
            break;
        }
    }
    for (uint64_t i = 0; i < c->elements; i++) {
        bool is_right = isnan(wanted[i]) ? isnan(memory[i]) : wanted[i] == memory[i];
        check_at(is_right, "case %llu, element %llu", (unsigned long long)number,
                 (unsigned long long)i);
    }
    free(wanted);
}

static void test_bands(void **state)
{
    uint64_t most = 0;
    (void)state;
    for (uint64_t number = 0; number < N_CASES; number++) {
        product_case c;
        draw(&c, number);
        for (int is_far = 0; is_far < 2; is_far++) {
            ferry_error error;
            fy_registry registry = {0};
            float *memory = malloc(c.elements * sizeof *memory);
            assert_non_null(memory);
            memcpy(memory, c.before, c.elements * sizeof *memory);
            const fy_products *p = open_case(&c, &registry, memory);
            const ferry_buffer target = ferry_buffer_of(memory, c.elements * sizeof *memory);
            most = p->n_bands > most ? p->n_bands : most;
            for (uint64_t band = p->n_bands; is_far == 0 && band-- > 0;) {
                fy_factor_band(&registry, p, memory, band);
            }
            for (uint64_t band = 0, n; is_far == 1 && band < p->n_bands; band += n) {
                uint64_t limit = fy_min(1 + number % 3, p->n_bands - band);
                must(fy_factor_bands_far(&registry, p, &target, band, limit, &n, &error), &error);
                assert_in_range(n, 1, limit);
            }
            expect_products(&c, memory, number);
            fy_registry_cleanup(&registry);
            free(memory);
        }
        free(c.before);
        free(c.scales);
    }
    assert_true(most > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
