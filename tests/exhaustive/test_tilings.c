/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Boxes from which a tensor is put together: taken if they tile it, by counting its elements. */
#include "support/spec.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { BOARD = 3, N_SQUARES = BOARD * BOARD, N_RECTANGLES = 36, MOST_BOXES = 5 };

typedef struct rectangle {
    int begin[2], length[2];
} rectangle;

static size_t list_rectangles(rectangle *all)
{
    size_t n = 0;
    for (int y = 0; y < BOARD; y++) {
        for (int x = 0; x < BOARD; x++) {
            for (int height = 1; y + height <= BOARD; height++) {
                for (int width = 1; x + width <= BOARD; width++) {
                    all[n++] = (rectangle){{y, x}, {height, width}};
                }
            }
        }
    }
    return n;
}

static size_t print_box(char *text, size_t n, const rectangle *r)
{
    return (size_t)snprintf(text, n, "{'tensor':'s','begin':[%d,%d],'shape':[%d,%d],'at':[%d,%d]}",
                            r->begin[0], r->begin[1], r->length[0], r->length[1], r->begin[0],
                            r->begin[1]);
}

/* A tensor of side x side that is fed from these boxes. */
static ferry_status feed(const rectangle *const *boxes, size_t n, int side, ferry_error *error)
{
    size_t room = 600 + n * 120, used = 0;
    char *text = malloc(room);
    assert_non_null(text);
    used += (size_t)snprintf(text, room,
                             "{'format':'ferry.spec/1','tensors':["
                             "{'name':'s','shape':[%d,%d],'dtype':'u8'},"
                             "{'name':'t','shape':[%d,%d],'dtype':'u8','source':[",
                             side, side, side, side);
    for (size_t i = 0; i < n; i++) {
        used += (size_t)snprintf(text + used, room - used, i == 0 ? "" : ",");
        used += print_box(text + used, room - used, boxes[i]);
    }
    snprintf(text + used, room - used,
             "]}],'source':{'mesh':[],'rules':[{'match':'*'}]},"
             "'destination':{'mesh':[],'rules':[{'match':'*'}]}}");
    ferry_spec *spec = NULL;
    ferry_status status = try_spec(text, &spec, error);
    ferry_spec_destroy(spec);
    free(text);
    return status;
}

static void check_boxes(const rectangle *const *boxes, size_t n)
{
    int times[N_SQUARES] = {0};
    bool tiles = true;
    ferry_error error = {""};
    for (size_t i = 0; i < n; i++) {
        for (int y = 0; y < boxes[i]->length[0]; y++) {
            for (int x = 0; x < boxes[i]->length[1]; x++) {
                times[(boxes[i]->begin[0] + y) * BOARD + boxes[i]->begin[1] + x]++;
            }
        }
    }
    for (size_t s = 0; s < N_SQUARES; s++) {
        tiles = tiles && times[s] == 1;
    }
    ferry_status status = feed(boxes, n, BOARD, &error);
    check_at((status == FERRY_OK) == tiles, "%zu boxes, the first [%d,%d]: %s", n,
             boxes[0]->begin[0], boxes[0]->begin[1], error.message);
}

static void test_few(void **state)
{
    (void)state;
    rectangle all[N_RECTANGLES];
    const rectangle *boxes[3];
    assert_int_equal(list_rectangles(all), N_RECTANGLES);
    for (size_t i = 0; i < N_RECTANGLES; i++) {
        boxes[0] = &all[i];
        check_boxes(boxes, 1);
        for (size_t j = i; j < N_RECTANGLES; j++) {
            boxes[1] = &all[j];
            check_boxes(boxes, 2);
            for (size_t k = j; k < N_RECTANGLES; k++) {
                boxes[2] = &all[k];
                check_boxes(boxes, 3);
            }
        }
    }
}

/* Five boxes that no line parts, and the same with one of them elsewhere. */
static void test_pinwheel(void **state)
{
    (void)state;
    const rectangle wheel[] = {
        {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
    const rectangle *boxes[MOST_BOXES];
    rectangle all[N_RECTANGLES];
    list_rectangles(all);
    for (size_t i = 0; i < MOST_BOXES; i++) {
        for (size_t k = 0; k < N_RECTANGLES; k++) {
            for (size_t b = 0; b < MOST_BOXES; b++) {
                boxes[b] = b == i ? &all[k] : &wheel[b];
            }
            check_boxes(boxes, MOST_BOXES);
        }
    }
}

/* Many boxes, each cut off what the others leave: who takes them apart again must not go as deep as
 * they are many. */
enum { N_PEELED = 16000, STACK_BYTES = 256 << 10 };

static void *peel(void *status_out)
{
    enum { SIDE = N_PEELED / 2 };
    rectangle *r = malloc((2 * SIDE + 1) * sizeof *r);
    const rectangle **boxes = malloc((2 * SIDE + 1) * sizeof *boxes);
    ferry_error error;
    int left = SIDE + 1; /* of a square: its last column goes, then its last row */
    for (int i = 0; i < SIDE; i++, left--) {
        r[2 * i] = (rectangle){{0, left - 1}, {left, 1}};
        r[2 * i + 1] = (rectangle){{left - 1, 0}, {1, left - 1}};
    }
    r[2 * SIDE] = (rectangle){{0, 0}, {1, 1}};
    for (int i = 0; i <= 2 * SIDE; i++) {
        boxes[i] = &r[i];
    }
    *(ferry_status *)status_out = feed(boxes, 2 * SIDE + 1, SIDE + 1, &error);
    free(boxes);
    free(r);
    return NULL;
}

static void test_deep(void **state)
{
    (void)state;
    pthread_t thread;
    pthread_attr_t small;
    ferry_status status = FERRY_ERR_NO_MEMORY;
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &small, peel, &status), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_attr_destroy(&small), 0);
    assert_int_equal(status, FERRY_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_few), cmocka_unit_test(test_pinwheel),
                                       cmocka_unit_test(test_deep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
