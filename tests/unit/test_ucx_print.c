/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is understood of what UCX prints of contexts and endpoints. */
#include "transport/ucx/print.h"

#include "support/check.h"

typedef struct print_row {
    const char *text;
    bool is_so;
} print_row;

#define DEVICE(name) "# resource 0  :  md 0  dev 0  flags -- " name "\n"

static void test_networks(void **state)
{
    (void)state;
    static const print_row rows[] = {
        {"", false},
        {"no lines of that kind\n", false},
        {DEVICE("self/memory") DEVICE("tcp/eth0") DEVICE("sysv/memory"), false},
        {DEVICE("tcp/eth0") DEVICE("cuda_copy/cuda") DEVICE("cuda_ipc/cuda"), false},
        {DEVICE("tcp/eth0") DEVICE("gdr_copy/cuda") DEVICE("rocm_ipc/rocm"), false},
        {DEVICE("tcp/eth0") DEVICE("ze_copy/ze") DEVICE("something/new"), false},
        {DEVICE("tcp/eth0") DEVICE("rc_verbs/mlx5_0:1"), true},
        {DEVICE("dc_mlx5/mlx5_0:1") DEVICE("cuda_copy/cuda"), true},
        {DEVICE("ud_mlx5/mlx5_0:1"), true},
        {DEVICE("tcp/rc_0"), false},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (fy_ucx_names_rdma(rows[i].text) != rows[i].is_so) {
            fail_msg("not %s an RDMA network: %s", rows[i].is_so ? "taken for" : "known as none",
                     rows[i].text);
        }
    }
}

static void test_tcp(void **state)
{
    (void)state;
    static const print_row rows[] = {
        {"", false},
        {"tcp/eth0", false},
        {DEVICE("self/memory") DEVICE("sysv/memory"), false},
        {DEVICE("rc_verbs/mlx5_0:1") DEVICE("something/tcp/"), false},
        {DEVICE("rc_verbs/mlx5_0:1") DEVICE("tcp/ib0"), true},
        {DEVICE("tcp/lo") DEVICE("self/memory"), true},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (fy_ucx_names_tcp(rows[i].text) != rows[i].is_so) {
            fail_msg("%s: %s", rows[i].is_so ? "has TCP" : "has none", rows[i].text);
        }
    }
}

#define LANE(n, name, uses) "#  lane[" #n "]:  5:" name " md[4] -> md[4]/x/sysdev[1] " uses "\n"

static void test_lanes(void **state)
{
    (void)state;
    static const print_row rows[] = {
        {"", false},
        {"lane[", false},
        {"lane[0]: rma", false},
        {LANE(0, "tcp/eth0.0", "am am_bw#0 wireup"), false},
        {LANE(0, "tcp/eth0.0", "rma_bw#0 am am_bw#0 wireup"), false},
        {LANE(0, "tcp/eth0.0", "am") LANE(1, "cuda_copy/cuda.0", "rma_bw#0"), false},
        {LANE(0, "tcp/eth0.0", "am") LANE(1, "cuda_ipc/cuda.0", "rma#0 rma_bw#0"), false},
        {LANE(0, "rc_mlx5/mlx5_0:1.0", "rma_bw#0 am am_bw#0 wireup"), true},
        {LANE(0, "rc_mlx5/mlx5_0:1.0", "rma am") LANE(1, "cuda_copy/cuda.0", "rma_bw#1"), true},
        {LANE(0, "rc_mlx5/mlx5_0:1.0", "rma am") LANE(1, "tcp/eth0.0", "rma_bw#1"), false},
        {LANE(0, "sysv/memory.0", "am") LANE(1, "cma/memory.0", "rma_bw#0"), true},
        {LANE(0, "rc_mlx5/mlx5_0:1.0", "am wireup"), false},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (fy_ucx_names_native_rma(rows[i].text) != rows[i].is_so) {
            fail_msg("%s: %s", rows[i].is_so ? "does RMA by itself" : "does not", rows[i].text);
        }
    }
}

static void test_xpmem(void **state)
{
    (void)state;
    assert_false(fy_ucx_names_xpmem(""));
    assert_false(fy_ucx_names_xpmem("lane["));
    assert_false(fy_ucx_names_xpmem(LANE(0, "cma/memory.0", "rma_bw#0 xpmem/")));
    assert_false(fy_ucx_names_xpmem(LANE(0, "posix/memory.0", "am")));
    assert_true(fy_ucx_names_xpmem(LANE(0, "posix/memory.0", "am") LANE(1, "xpmem/m.0", "rma#0")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_networks),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_xpmem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
