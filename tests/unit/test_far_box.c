/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry_box_copy between all kinds of memory, at the call and on queues. */
#include <ferry/ferry.h>

#include "support/check.h"

#include <stdatomic.h>
#include <time.h>

enum { ROWS = 37, COLUMNS = 53, LONG = 90, N = ROWS * COLUMNS, N_LONG = ROWS * LONG };

/* Where a side lies: on the host, or on a far device. */
static const int32_t places[] = {-1, 0, 1};

static ferry_buffer take(int32_t place, uint64_t bytes)
{
    ferry_buffer buffer;
    ferry_error error;
    must(ferry_memory_alloc(NULL, place < 0 ? FERRY_MEMORY_HOST : FERRY_MEMORY_FAR,
                            place < 0 ? 0 : place, bytes, &buffer, &error),
         &error);
    return buffer;
}

/* ROWS x COLUMNS elements of a matrix of ROWS x LONG, or of their own. */
static ferry_box box_of(const ferry_buffer *buffer, uint64_t element_bytes, uint64_t columns)
{
    const uint64_t shape[2] = {ROWS, columns}, length[2] = {ROWS, COLUMNS};
    const uint64_t begin[2] = {0, columns == LONG ? 11 : 0};
    ferry_box box = FERRY_BOX_INIT;
    ferry_error error;
    must(ferry_box_of(buffer, element_bytes, 2, shape, begin, length, &box, &error), &error);
    return box;
}

static void copy(const ferry_box *to, const ferry_box *from, const ferry_copy_options *options)
{
    ferry_error error;
    must(ferry_box_copy(to, from, options, NULL, &error), &error);
}

/* What the CPU makes of the same boxes on the host, bytes outside of the box included. */
static void test_places(void **state)
{
    static unsigned char from[N_LONG], back[N_LONG], wanted[N];
    ferry_buffer near_from = ferry_buffer_of(from, N_LONG), near_to = ferry_buffer_of(wanted, N);
    ferry_buffer near_back = ferry_buffer_of(back, N_LONG);
    ferry_box source = box_of(&near_from, 1, LONG), dense = box_of(&near_to, 1, COLUMNS);
    (void)state;
    for (size_t p = 0; p < COUNT_OF(places) * COUNT_OF(places); p++) {
        ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
        ferry_buffer a = take(places[p / 3], N_LONG), b = take(places[p % 3], N);
        ferry_box whole_a = FERRY_BOX_INIT, whole_from = FERRY_BOX_INIT;
        ferry_box wide = box_of(&a, 1, LONG), narrow = box_of(&b, 1, COLUMNS);
        uint64_t hashes[2] = {0, 1};
        for (size_t i = 0; i < N_LONG; i++) {
            from[i] = (unsigned char)(i * 7 + i / 256 + p);
        }
        whole_a.buffer = a;
        whole_from.buffer = near_from;
        whole_a.n_dims = whole_from.n_dims = 1;
        whole_a.length[0] = whole_from.length[0] = N_LONG;
        whole_a.stride[0] = whole_from.stride[0] = 1;
        options.hash_out = &hashes[0];
        copy(&dense, &source, &options);
        copy(&whole_a, &whole_from, NULL);
        options.hash_out = &hashes[1];
        copy(&narrow, &wide, &options);
        check_at(hashes[0] == hashes[1], "hash from %d to %d", places[p / 3], places[p % 3]);
        /* And the other way, into a matrix of something else. */
        for (size_t i = 0; i < N_LONG; i++) {
            from[i] = (unsigned char)~from[i];
        }
        copy(&whole_a, &whole_from, NULL);
        copy(&wide, &narrow, NULL);
        whole_from.buffer = near_back;
        copy(&whole_from, &whole_a, NULL);
        copy(&source, &dense, NULL);
        check_at(memcmp(back, from, N_LONG) == 0, "from %d to %d", places[p / 3], places[p % 3]);
        ferry_memory_free(&a);
        ferry_memory_free(&b);
    }
}

static void test_casts(void **state)
{
    static float from[N];
    static uint16_t wanted[N], back[N];
    ferry_buffer near_from = ferry_buffer_of(from, sizeof from);
    ferry_buffer near_to = ferry_buffer_of(wanted, sizeof wanted);
    ferry_buffer near_back = ferry_buffer_of(back, sizeof back);
    ferry_box source = box_of(&near_from, 4, COLUMNS), cast = box_of(&near_to, 2, COLUMNS);
    ferry_box result = box_of(&near_back, 2, COLUMNS);
    ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
    (void)state;
    for (int i = 0; i < N; i++) {
        from[i] = (float)(i - 700) * 1.37f;
    }
    options.from_kind = FERRY_F32;
    options.to_kind = FERRY_BF16;
    copy(&cast, &source, &options);
    for (size_t p = 0; p < COUNT_OF(places) * COUNT_OF(places); p++) {
        ferry_buffer a = take(places[p / 3], sizeof from), b = take(places[p % 3], sizeof wanted);
        ferry_box wide = box_of(&a, 4, COLUMNS), narrow = box_of(&b, 2, COLUMNS);
        copy(&wide, &source, NULL);
        copy(&narrow, &wide, &options);
        memset(back, 0, sizeof back);
        copy(&result, &narrow, NULL);
        check_at(memcmp(back, wanted, sizeof back) == 0, "from %d to %d", places[p / 3],
                 places[p % 3]);
        ferry_memory_free(&a);
        ferry_memory_free(&b);
    }
}

static void wait_for(void *context)
{
    _Atomic bool *is_open = context;
    const struct timespec moment = {.tv_nsec = 100000};
    while (!atomic_load(is_open)) {
        nanosleep(&moment, NULL);
    }
}

/* Behind a gate nothing has happened when the calls return; then all of it, in order. */
static void test_queue(void **state)
{
    static _Atomic bool is_open;
    static unsigned char from[N], back[N];
    ferry_buffer near_from = ferry_buffer_of(from, N), near_back = ferry_buffer_of(back, N);
    ferry_buffer a = take(1, N), other = take(0, N);
    ferry_box source = box_of(&near_from, 1, COLUMNS), middle = box_of(&a, 1, COLUMNS);
    ferry_box result = box_of(&near_back, 1, COLUMNS), wrong = box_of(&other, 1, COLUMNS);
    ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
    ferry_queue *queue = NULL, *gone = NULL;
    ferry_error error;
    uint64_t hash = 0, wanted;
    (void)state;
    memset(from, 5, N);
    must(ferry_queue_create(FERRY_MEMORY_FAR, 1, &queue, &error), &error);
    must(ferry_queue_call(queue, wait_for, &is_open, &error), &error);
    options.hash_out = &hash;
    must(ferry_box_copy(&middle, &source, &options, queue, &error), &error);
    must(ferry_box_copy(&result, &middle, NULL, queue, &error), &error);
    assert_int_equal(back[N - 1], 0);
    assert_int_equal(hash, 0);
    atomic_store(&is_open, true);
    must(ferry_queue_synchronize(queue, &error), &error);
    assert_memory_equal(back, from, N);
    options.hash_out = &wanted;
    copy(&result, &source, &options);
    assert_int_equal(hash, wanted);

    check_status("another device", FERRY_ERR_MISUSE,
                 ferry_box_copy(&wrong, &source, NULL, queue, &error), &error);
    check_says("another device", "kind far, device 1, has no access to memory of kind far, device",
               &error);
    check_status("from another device", FERRY_ERR_MISUSE,
                 ferry_box_copy(&middle, &wrong, NULL, queue, &error), &error);
    gone = queue;
    ferry_queue_destroy(queue);
    check_status("a queue that is gone", FERRY_ERR_MISUSE,
                 ferry_box_copy(&middle, &source, NULL, gone, &error), &error);
    check_says("a queue that is gone", "destroyed", &error);
    ferry_memory_free(&a);
    check_status("memory that is gone", FERRY_ERR_MISUSE,
                 ferry_box_copy(&middle, &source, NULL, NULL, &error), &error);
    ferry_memory_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_casts),
        cmocka_unit_test(test_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
