/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/check.h"
#include "support/random.h"
#include "transport/nvshmem/heap.h"

#include "base/alloc.h"

#include <string.h>

enum { PAGE = 4096, PAGES = 64, MOST = 40 };

/* Pieces begin on pages, lie in the heap, and none lies in another. */
static void test_random_pieces(void **state)
{
    (void)state;
    ferry_error error;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        fy_nvshmem_heap heap = {.bytes = (uint64_t)PAGES * PAGE};
        unsigned char owner[PAGES] = {0};
        struct {
            uint64_t offset, pages;
        } pieces[MOST] = {{0, 0}};
        uint64_t random = seed;
        for (int step = 0; step < 300; step++) {
            uint32_t i = random_below(&random, MOST);
            if (pieces[i].pages > 0) {
                fy_nvshmem_heap_give(&heap, pieces[i].offset);
                memset(owner + pieces[i].offset / PAGE, 0, pieces[i].pages);
                pieces[i].pages = 0;
                continue;
            }
            uint64_t bytes = 1 + random_below(&random, 9 * PAGE);
            uint64_t pages = (bytes + PAGE - 1) / PAGE, offset = 1, free_pages = 0, most = 0;
            for (uint32_t page = 0; page < PAGES; page++) {
                free_pages = owner[page] == 0 ? free_pages + 1 : 0;
                most = free_pages > most ? free_pages : most;
            }
            ferry_status status = fy_nvshmem_heap_take(&heap, bytes, &offset, &error);
            check_row("room", (status == FERRY_OK) == (most >= pages));
            if (status != FERRY_OK) {
                check_says("full", "NVSHMEM_SYMMETRIC_SIZE", &error);
                continue;
            }
            check_row("a page", offset % PAGE == 0 && offset / PAGE + pages <= PAGES);
            for (uint64_t page = offset / PAGE; page < offset / PAGE + pages; page++) {
                check_row("free", owner[page] == 0);
                owner[page] = 1;
            }
            pieces[i].offset = offset;
            pieces[i].pages = pages;
        }
        fy_free(heap.taken);
    }
}

static void test_lengths_that_do_not_fit(void **state)
{
    (void)state;
    fy_nvshmem_heap heap = {.bytes = (uint64_t)PAGES * PAGE};
    uint64_t offset = 7;
    ferry_error error;
    static const uint64_t lengths[] = {(uint64_t)PAGES * PAGE + 1, UINT64_MAX,
                                       UINT64_MAX - PAGE + 2};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        check_status("too long", FERRY_ERR_NO_MEMORY,
                     fy_nvshmem_heap_take(&heap, lengths[i], &offset, &error), &error);
        assert_int_equal(offset, 7);
    }
    must(fy_nvshmem_heap_take(&heap, heap.bytes, &offset, &error), &error);
    assert_int_equal(offset, 0);
    fy_nvshmem_heap_give(&heap, PAGE); /* nobody's: nothing happens */
    assert_int_equal(heap.n_taken, 1);
    fy_free(heap.taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_pieces),
        cmocka_unit_test(test_lengths_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
