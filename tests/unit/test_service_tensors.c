/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors by name. */
#include "support/check.h"

#include "service/service.h"

#include <stdio.h>

static char memory[1000];

static void test_many(void **state)
{
    enum { N_TENSORS = 20000 };
    ferry_tensors *tensors = NULL;
    ferry_error error;
    char name[64];
    (void)state;
    must(ferry_tensors_create(&tensors, &error), &error);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        ferry_buffer buffer = ferry_buffer_of(memory + i % 100, i % 900);
        snprintf(name, sizeof name, "layers.%u.weight", i);
        must(ferry_tensors_add(tensors, name, &buffer, &error), &error);
    }
    assert_int_equal(fy_tensors_count(tensors), N_TENSORS);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        snprintf(name, sizeof name, "layers.%u.weight", i);
        size_t index = fy_tensors_find(tensors, name, SIZE_MAX);
        assert_true(index < N_TENSORS && strcmp(fy_tensors_name(tensors, index), name) == 0);
        assert_int_equal(fy_tensors_front(tensors, index)->bytes, i % 900);
        assert_null(fy_tensors_back(tensors, index));
        for (uint32_t guess = i == 0 ? 0 : i - 1; guess <= i + 1; guess++) {
            assert_int_equal(fy_tensors_find(tensors, name, guess), index);
        }
    }
    assert_true(fy_tensors_find(tensors, "layers.20000.weight", 0) == SIZE_MAX);
    ferry_tensors_destroy(tensors);
    ferry_tensors_destroy(NULL);
    assert_int_equal(fy_tensors_count(NULL), 0);
    assert_true(fy_tensors_find(NULL, "w", 0) == SIZE_MAX);
}

static void test_pairs(void **state)
{
    ferry_tensors *tensors = NULL;
    ferry_buffer front = ferry_buffer_of(memory, 100), back = ferry_buffer_of(memory + 100, 100);
    ferry_error error;
    (void)state;
    must(ferry_tensors_create(&tensors, &error), &error);
    must(ferry_tensors_add_pair(tensors, "w", &front, &back, &error), &error);
    assert_true(fy_tensors_back(tensors, 0)->base == memory + 100);
    back.bytes = 99;
    check_status("lengths", FERRY_ERR_INVALID_INPUT,
                 ferry_tensors_add_pair(tensors, "v", &front, &back, &error), &error);
    check_says("lengths", "v: the front has 100 bytes and the back 99", &error);
    back = ferry_buffer_of(memory + 99, 100);
    check_status("shared", FERRY_ERR_INVALID_INPUT,
                 ferry_tensors_add_pair(tensors, "v", &front, &back, &error), &error);
    check_says("shared", "v: front and back share memory", &error);
    check_status("shared, the other way", FERRY_ERR_INVALID_INPUT,
                 ferry_tensors_add_pair(tensors, "v", &back, &front, &error), &error);
    assert_int_equal(fy_tensors_count(tensors), 1);
    ferry_tensors_destroy(tensors);
}

static void test_refusals(void **state)
{
    ferry_tensors *tensors = NULL;
    ferry_buffer buffer = ferry_buffer_of(memory, 100), bad = ferry_buffer_of(NULL, 1);
    ferry_buffer device = buffer, endless = ferry_buffer_of(memory, UINT64_MAX);
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_error error;
    (void)state;
    must(ferry_tensors_create(&tensors, &error), &error);
    must(ferry_tensors_add(tensors, "w", &buffer, &error), &error);
    check_status("twice", FERRY_ERR_INVALID_INPUT, ferry_tensors_add(tensors, "w", &buffer, &error),
                 &error);
    check_says("twice", "w: ", &error);
    check_status("address 0", FERRY_ERR_INVALID_INPUT,
                 ferry_tensors_add(tensors, "v", &bad, &error), &error);
    check_status("no end", FERRY_ERR_INVALID_INPUT,
                 ferry_tensors_add(tensors, "v", &endless, &error), &error);
    device.kind = FERRY_MEMORY_CUDA;
    check_status("device", FERRY_ERR_UNSUPPORTED, ferry_tensors_add(tensors, "v", &device, &error),
                 &error);
    check_status("no name", FERRY_ERR_MISUSE, ferry_tensors_add(tensors, NULL, &buffer, &error),
                 &error);
    check_status("no list", FERRY_ERR_MISUSE, ferry_tensors_add(NULL, "v", &buffer, &error),
                 &error);
    check_status("no back", FERRY_ERR_MISUSE,
                 ferry_tensors_add_pair(tensors, "v", &buffer, NULL, &error), &error);
    check_status("no place", FERRY_ERR_MISUSE, ferry_tensors_create(NULL, &error), &error);
    must(ferry_tensors_add(tensors, "empty", &nothing, &error), &error);
    assert_int_equal(fy_tensors_count(tensors), 2);
    ferry_tensors_destroy(tensors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
