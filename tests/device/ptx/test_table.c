/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * fy_cuda_copy_table, which no verb uses yet: random tables, executed from the PTX that STANDIN_PTX
 * names, against copies of unit after unit.
 */
#include "device/ptx/ptx.h"
#include "memory/cuda/arguments.h"
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROOM = 1 << 18, MOST_PIECES = 40, ROUNDS = 60, SEED = 11 };

static _Alignas(16) unsigned char to[ROOM], from[ROOM], wanted[ROOM];
static _Alignas(16) fy_cuda_piece pieces[MOST_PIECES];
static uint64_t state = SEED;

static uint64_t draw(uint64_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % n;
}

static void *look_up(void *context, uint64_t at, uint32_t bytes, bool writes)
{
    const struct {
        void *begin;
        size_t bytes;
        bool is_read_only;
    } known[] = {{to, sizeof to, false}, {from, sizeof from, true}, {pieces, sizeof pieces, true}};
    (void)context;
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        uint64_t offset = at - (uint64_t)(uintptr_t)known[i].begin;
        if (offset < known[i].bytes && bytes <= known[i].bytes - offset &&
            !(writes && known[i].is_read_only)) {
            return (void *)(uintptr_t)at;
        }
    }
    return NULL;
}

/* Rows of so many units, one behind the other in `to` and anywhere in `from`. */
static uint64_t draw_piece(fy_cuda_piece *one, uint64_t begin)
{
    uint32_t unit = 1u << draw(5), row = 1 + (uint32_t)draw(draw(2) == 0 ? 5 : 100);
    uint32_t n_rows = 1 + (uint32_t)draw(6), shift = 20;
    while (1u << (shift - 20) < row) {
        shift++;
    }
    uint64_t row_bytes = (uint64_t)row * unit, pitch = row_bytes + unit * draw(4);
    uint64_t from_at = draw((ROOM - 6 * (row_bytes + 64)) / unit) * unit;
    begin = (begin + unit - 1) / unit * unit;
    if (begin + n_rows * pitch > ROOM) {
        return ROOM;
    }
    *one = (fy_cuda_piece){.to = (uint64_t)(uintptr_t)to + begin,
                           .from = (uint64_t)(uintptr_t)from + from_at,
                           .to_pitch = pitch,
                           .from_pitch = row_bytes + unit * draw(3),
                           .row_units = row,
                           .multiplier = (uint32_t)(((UINT64_C(1) << shift) + row - 1) / row),
                           .n_units = row * n_rows - (uint32_t)draw(row),
                           .shift = (uint16_t)shift,
                           .unit_bytes = (uint16_t)unit};
    return begin + n_rows * pitch;
}

static void copy_piece(const fy_cuda_piece *one)
{
    for (uint64_t i = 0; i < one->n_units; i++) {
        uint64_t row = i / one->row_units, at = i % one->row_units * one->unit_bytes;
        uint64_t source = one->from - (uint64_t)(uintptr_t)from + row * one->from_pitch + at;
        uint64_t target = one->to - (uint64_t)(uintptr_t)to + row * one->to_pitch + at;
        memcpy(wanted + target, from + source, one->unit_bytes);
    }
}

static void check_round(const ptx_kernel *kernel, uint64_t round)
{
    char said[PTX_SAID_BYTES] = "";
    uint32_t n = 0, n_wanted = 1 + (uint32_t)draw(MOST_PIECES);
    for (size_t i = 0; i < ROOM; i++) {
        from[i] = (unsigned char)draw(256);
        to[i] = wanted[i] = (unsigned char)draw(256);
    }
    for (uint64_t end = 0; n < n_wanted && end < ROOM; n += end < ROOM) {
        end = draw_piece(&pieces[n], end);
    }
    for (uint32_t i = 0; i < n; i++) {
        copy_piece(&pieces[i]);
    }
    fy_cuda_table table = {.pieces = (uint64_t)(uintptr_t)pieces, .n_pieces = n};
    ptx_launch launch = {.blocks = 1 + (uint32_t)draw(3),
                         .threads = FY_CUDA_LANES * (1 + (uint32_t)draw(8)),
                         .argument = &table,
                         .argument_bytes = sizeof table,
                         .order = round,
                         .look_up = look_up};
    ptx_end end = ptx_run(kernel, &launch, said);
    check_at(end == PTX_DONE, "round %llu: %s", (unsigned long long)round, said);
    for (size_t i = 0; i < ROOM; i++) {
        check_at(to[i] == wanted[i], "byte %zu of round %llu is %02x, not %02x", i,
                 (unsigned long long)round, to[i], wanted[i]);
    }
}

static void test_table(void **unused)
{
    const char *path = getenv("STANDIN_PTX");
    char said[PTX_SAID_BYTES], *text = NULL;
    size_t room = 0;
    (void)unused;
    assert_non_null(path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(getdelim(&text, &room, 0, file) > 0);
    fclose(file);
    ptx_module *module = ptx_module_read(text, said);
    free(text);
    check_at(module != NULL, "%s: %s", path, said);
    const ptx_kernel *kernel = ptx_kernel_find(module, "fy_cuda_copy_table");
    assert_non_null(kernel);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        check_round(kernel, round);
    }
    ptx_module_free(module);
}

int main(void)
{
    print_message("seed %d\n", (int)SEED);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
