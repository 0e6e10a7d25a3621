/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks that are registered one by one, in worlds of 256 to 8,192 ranks: what a rank takes for its
 * own, and what travels to rank 0 and back when all of them are ordered. The ranks follow each
 * other in one process; memory and bytes are counted, and four times as many ranks have four times
 * as many tasks.
 */
#include "service_ends.h"

#include "support/counted_memory.h"

#include "schedule/order.h"
#include "service/prepare.h"

#include <ferry/reference.h>

enum { FEWEST = 512, MOST = 8192, TASKS = 3, TASK_BYTES = 2500, SLOT = 1000, MOST_GROWTH = 5 };

static char buffer_memory[TASK_BYTES];

typedef struct cost {
    size_t memory;          /* of the rank that takes most, while it worked */
    size_t to_root, to_all; /* bytes */
    size_t most_to_rank;
    size_t n_batches;
} cost;

static void check_growth(const char *what, uint32_t n_ranks, size_t few, size_t many)
{
    check_at(few > 0 && many <= MOST_GROWTH * few, "%s: %zu of %u ranks, %zu of %u", what, few,
             n_ranks, many, 4 * n_ranks);
}

/* A rank that exchanges tasks with all others, sent from and received into one buffer. */
static size_t memory_of_registry(uint32_t n_ranks)
{
    fy_registry registry = {0};
    ferry_box box = flat_box(buffer_memory, sizeof buffer_memory, 0, TASK_BYTES);
    size_t before = live;
    most = live;
    for (uint64_t id = 0; id < TASKS; id++) {
        for (uint32_t peer = n_ranks; peer-- > 0;) {
            add_end(&registry, true, id, peer, &box);
            add_end(&registry, false, id, peer, &box);
        }
    }
    fy_registry_sort(&registry);
    size_t taken = most - before;
    assert_int_equal(registry.sends.n, TASKS * n_ranks);
    assert_int_equal(registry.receives.n, TASKS * n_ranks);
    assert_int_equal(registry.n_held, 1);
    fy_registry_cleanup(&registry);
    assert_int_equal(live, before);
    return taken;
}

static void test_registry(void **state)
{
    (void)state;
    for (uint32_t n = FEWEST / 2; n < MOST; n *= 4) {
        check_growth("memory of one rank's tasks", n, memory_of_registry(n),
                     memory_of_registry(4 * n));
    }
}

/*
 * The order of all batches. Of the other ranks only their messages to rank 0 are wanted: then their
 * exchange fails. Rank 0 gets them all, and what it answers is looked at.
 */
typedef struct exchange {
    uint32_t n_ranks;
    unsigned char *messages; /* of all ranks but the first, one behind the other */
    size_t used, capacity;
    unsigned char *all; /* with its own in front */
    size_t *lengths;
    uint32_t rank; /* that speaks */
    cost cost;
} exchange;

static int gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                  const size_t **lengths_out)
{
    exchange *x = context;
    x->lengths[x->rank] = n_bytes;
    if (x->rank != 0) {
        while (x->used + n_bytes > x->capacity) {
            x->capacity = x->capacity == 0 ? 1 << 16 : 2 * x->capacity;
            x->messages = realloc(x->messages, x->capacity);
            assert_non_null(x->messages);
        }
        memcpy(x->messages + x->used, bytes, n_bytes);
        x->used += n_bytes;
        return -1;
    }
    x->all = malloc(n_bytes + x->used);
    assert_non_null(x->all);
    memcpy(x->all, bytes, n_bytes);
    memcpy(x->all + n_bytes, x->messages, x->used);
    *all_out = x->all;
    *lengths_out = x->lengths;
    return 0;
}

static int scatter(void *context, const void *all, const size_t *lengths, const void **mine_out,
                   size_t *n_bytes_out)
{
    exchange *x = context;
    for (uint32_t rank = 0; rank < x->n_ranks; rank++) {
        x->cost.to_all += lengths[rank];
        x->cost.most_to_rank =
            lengths[rank] > x->cost.most_to_rank ? lengths[rank] : x->cost.most_to_rank;
    }
    *mine_out = all;
    *n_bytes_out = lengths[0];
    return 0;
}

/* Of the vote: all say what the one rank says. */
static int all_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    (void)context;
    (void)bytes;
    (void)n_bytes;
    (void)all_out;
    (void)lengths_out;
    return -1;
}

/* Each rank sends to the three behind it. */
static ferry_reference_workloads *workloads_of(uint32_t rank, uint32_t n_ranks)
{
    ferry_reference_workloads *workloads = NULL;
    ferry_error error;
    must(ferry_reference_workloads_create(rank, n_ranks, &workloads, &error), &error);
    for (uint32_t i = 1; i <= TASKS; i++) {
        must(ferry_reference_workloads_add_task(workloads, i, (rank + i) % n_ranks, TASK_BYTES, 2,
                                                &error),
             &error);
    }
    must(ferry_reference_workloads_pack(workloads, SLOT, 0, &error), &error);
    return workloads;
}

/* As far as there is an exchange: the vote at the end fails, on rank 0 too. */
static void speak(exchange *x, uint32_t rank)
{
    ferry_reference_workloads *workloads = workloads_of(rank, x->n_ranks);
    ferry_exchange its = FERRY_EXCHANGE_INIT;
    fy_send_order order = {0};
    ferry_error error;
    its.context = x;
    its.rank = rank;
    its.n_ranks = x->n_ranks;
    its.all_gather = all_gather;
    its.gather = gather;
    its.scatter = scatter;
    x->rank = rank;
    assert_int_equal(fy_build_order(workloads, &its, &order, &error), FERRY_ERR_EXCHANGE);
    ferry_reference_workloads_destroy(workloads);
}

static cost order(uint32_t n_ranks)
{
    exchange x = {.n_ranks = n_ranks};
    x.lengths = calloc(n_ranks, sizeof *x.lengths);
    assert_non_null(x.lengths);
    for (uint32_t rank = 1; rank < n_ranks; rank++) {
        speak(&x, rank);
    }
    size_t before = live;
    most = live;
    speak(&x, 0);
    x.cost.memory = most - before;
    x.cost.to_root = x.used;
    x.cost.n_batches = (size_t)n_ranks * TASKS * ((TASK_BYTES + SLOT - 1) / SLOT);
    free(x.messages);
    free(x.all);
    free(x.lengths);
    return x.cost;
}

static void test_order(void **state)
{
    enum { HEAD = 48, EACH = 4 }; /* bytes of a message, and of a batch in it */
    (void)state;
    cost few = order(FEWEST);
    for (uint32_t n = FEWEST; n < MOST; n *= 4) {
        cost many = order(4 * n);
        check_growth("memory of rank 0", n, few.memory, many.memory);
        check_growth("bytes to rank 0", n, few.to_root, many.to_root);
        check_growth("bytes of rank 0 to all", n, few.to_all, many.to_all);
        assert_true(many.to_root <= 4 * n * HEAD + EACH * many.n_batches);
        assert_true(many.most_to_rank <= HEAD + EACH * many.n_batches / (4 * n));
        few = many;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registry),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
