/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Parameters that do not fit, and parameters that differ between ranks. */
#include "collective/suite.h"

/* Parameters of create: two nodes of two ranks, tensor-parallel inside. */

typedef struct bad_option {
    const char *name;
    ferry_status status;
    const char *words;
    void (*spoil)(ferry_mixed_comm_options *o);
} bad_option;

#define SPOIL(name, ...)                                                                           \
    static void name(ferry_mixed_comm_options *o)                                                  \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }

SPOIL(world_of_five, o->world_size = 5)
SPOIL(world_of_none, o->world_size = 0)
SPOIL(other_rank, o->world_rank = (o->world_rank + 1) % 4)
SPOIL(rank_beyond, o->world_rank = 4)
SPOIL(nodes_of_three, o->local_size = 3)
SPOIL(nodes_of_none, o->local_size = 0)
SPOIL(local_beyond, o->local_rank = 2)
SPOIL(three_nodes, o->inter_size = 3)
SPOIL(no_nodes, o->inter_size = 0)
SPOIL(node_beyond, o->inter_rank = 2)
SPOIL(larger_world, o->world_size = 8; o->local_size = 4)
SPOIL(local_tp_three, o->local_tp_size = 3; o->local_dp_size = 0)
SPOIL(local_dp_three, o->local_tp_size = 0; o->local_dp_size = 3)
SPOIL(local_product, o->local_tp_size = 2; o->local_dp_size = 2)
SPOIL(local_huge, o->local_tp_size = UINT32_MAX; o->local_dp_size = 0)
SPOIL(local_wraps, o->local_tp_size = 0x80000001u; o->local_dp_size = 2)
SPOIL(inter_tp_three, o->inter_tp_size = 3; o->inter_dp_size = 0)
SPOIL(inter_dp_four, o->inter_tp_size = 0; o->inter_dp_size = 4)
SPOIL(inter_product, o->inter_tp_size = 1; o->inter_dp_size = 1)
SPOIL(dtype_f64, o->dtype = FERRY_F64)
SPOIL(dtype_i32, o->dtype = FERRY_I32)
SPOIL(dtype_f8, o->dtype = FERRY_F8E4M3)
SPOIL(device_cuda, o->device.kind = FERRY_MEMORY_CUDA)
SPOIL(unknown_engine, o->engines = "pigeons")
SPOIL(small_struct, o->struct_size = 8)
SPOIL(no_struct_size, o->struct_size = 0)

static const bad_option bad_options[] = {
    {"world of five", FERRY_ERR_INVALID_INPUT, "5", world_of_five},
    {"world of none", FERRY_ERR_INVALID_INPUT, NULL, world_of_none},
    {"other rank", FERRY_ERR_INVALID_INPUT, NULL, other_rank},
    {"rank beyond", FERRY_ERR_INVALID_INPUT, "4", rank_beyond},
    {"nodes of three", FERRY_ERR_INVALID_INPUT, "3", nodes_of_three},
    {"nodes of none", FERRY_ERR_INVALID_INPUT, NULL, nodes_of_none},
    {"local rank beyond", FERRY_ERR_INVALID_INPUT, "2", local_beyond},
    {"three nodes", FERRY_ERR_INVALID_INPUT, "3", three_nodes},
    {"no nodes", FERRY_ERR_INVALID_INPUT, NULL, no_nodes},
    {"node beyond", FERRY_ERR_INVALID_INPUT, "2", node_beyond},
    {"larger world", FERRY_ERR_INVALID_INPUT, NULL, larger_world},
    {"local tp 3", FERRY_ERR_INVALID_INPUT, "3", local_tp_three},
    {"local dp 3", FERRY_ERR_INVALID_INPUT, "3", local_dp_three},
    {"local 2 x 2", FERRY_ERR_INVALID_INPUT, "2", local_product},
    {"local huge", FERRY_ERR_INVALID_INPUT, "4294967295", local_huge},
    {"local wraps around", FERRY_ERR_INVALID_INPUT, "2147483649", local_wraps},
    {"inter tp 3", FERRY_ERR_INVALID_INPUT, "3", inter_tp_three},
    {"inter dp 4", FERRY_ERR_INVALID_INPUT, "4", inter_dp_four},
    {"inter 1 x 1", FERRY_ERR_INVALID_INPUT, "1", inter_product},
    {"f64", FERRY_ERR_UNSUPPORTED, "f64", dtype_f64},
    {"i32", FERRY_ERR_UNSUPPORTED, "i32", dtype_i32},
    {"f8", FERRY_ERR_UNSUPPORTED, "f8e4m3", dtype_f8},
    {"a CUDA device", FERRY_ERR_UNSUPPORTED, NULL, device_cuda},
    {"unknown engine", FERRY_ERR_INVALID_INPUT, "pigeons", unknown_engine},
    {"small struct", FERRY_ERR_MISUSE, NULL, small_struct},
    {"struct of size 0", FERRY_ERR_MISUSE, NULL, no_struct_size},
};

static void use_once(rank_context *me, const shape *s, const ferry_mixed_comm_options *options)
{
    uint64_t random = seed_of(me, 20, 0, 0);
    scene c;
    scene_open(&c, me, s, options);
    call what = draw_call(&c, &random, 500);
    scene_call(&c, &what);
    scene_close(&c);
}

/* What is refused for itself, without asking others: any rank may try at any time. */
void case_bad_create(rank_context *me)
{
    uint64_t random = seed_of(me, 21, 0, 0);
    shape s = shape_of(2, 2, 2, 1);
    ferry_mixed_comm *comm = NULL;
    for (size_t i = 0; i < COUNT_OF(bad_options); i++) {
        ferry_mixed_comm_options o = scene_options(me, &s, FERRY_BF16, &random);
        o.local_tp_size = 2;
        o.local_dp_size = 1;
        o.inter_tp_size = 1;
        o.inter_dp_size = 2;
        bad_options[i].spoil(&o);
        ferry_status status = ferry_mixed_comm_create(me->world, &o, &comm, &me->error);
        expect(me, status == bad_options[i].status && comm == NULL, "%s: %s: %s",
               bad_options[i].name, ferry_status_name(status),
               status == FERRY_OK ? "" : me->error.message);
        expect(me,
               bad_options[i].words == NULL ||
                   strstr(me->error.message, bad_options[i].words) != NULL,
               "%s: %s", bad_options[i].name, me->error.message);
    }
    ferry_mixed_comm_options o = scene_options(me, &s, FERRY_BF16, &random);
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_mixed_comm_create(NULL, &o, &comm, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_mixed_comm_create(me->world, &o, NULL, &me->error));
    expect(me, ferry_mixed_comm_create(NULL, &o, &comm, NULL) == FERRY_ERR_MISUSE,
           "no room for an error");
    use_once(me, &s, &o);
}

/* Each is the same on all ranks but the last. All hear of it, and the world goes on. */
void case_differing_options(rank_context *me)
{
    uint64_t random = seed_of(me, 24, 0, 0);
    shape s = shape_of(me->n_ranks, 1, me->n_ranks, 1);
    bool odd = me->rank == me->n_ranks - 1;
    for (unsigned i = 0; i < 9; i++) {
        ferry_mixed_comm_options o = scene_options(me, &s, FERRY_BF16, &random);
        ferry_mixed_comm *comm = NULL;
        o.dtype = i == 0 && odd ? FERRY_F16 : FERRY_BF16;
        o.local_tp_size = i == 1 && odd ? 1 : s.local_tp;
        o.local_dp_size = 0;
        o.grid_size = i == 2 && odd ? 3 : 2;
        o.max_block_size = i == 3 && odd ? 7 : 8;
        o.min_block_size = i == 4 && odd ? 3 : 2;
        o.min_num_steps = i == 5 && odd ? 3 : 2;
        o.deterministic = i == 6 && odd;
        o.use_autotune = i == 7 && odd;
        o.autotune_bytes = 16384;
        o.only_construct = i == 8 && odd;
        all_fail(me, FERRY_ERR_INVALID_INPUT, "rank",
                 ferry_mixed_comm_create(me->world, &o, &comm, &me->error));
        expect(me, comm == NULL, "a handle although options differ");
    }
    ferry_mixed_comm_options o = scene_options(me, &s, FERRY_F32, &random);
    use_once(me, &s, &o);
}
