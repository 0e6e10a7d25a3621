/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/suite.h"
#include "support/devices.h"
#include "support/graphs.h"

/* Drawing */

uint32_t draw_dtype(uint64_t *random)
{
    static const uint32_t types[] = {FERRY_F16, FERRY_BF16, FERRY_F32};
    return types[random_below(random, 3)];
}

static uint32_t draw_divisor(uint64_t *random, uint32_t n)
{
    uint32_t divisor;
    do {
        divisor = dice(random, 1, n);
    } while (n % divisor != 0);
    return divisor;
}

shape draw_shape(uint64_t *random, uint32_t w)
{
    uint32_t l = draw_divisor(random, w);
    uint32_t n = w / l;
    return shape_of(l, n, draw_divisor(random, l), draw_divisor(random, n));
}

uint64_t draw_count(uint64_t *random, uint32_t dtype, uint64_t most)
{
    uint64_t line = 64 / dtype_bytes(dtype), n = 1;
    switch (random_below(random, 6)) {
    case 0:
        n = dice(random, 1, 5);
        break;
    case 1: /* about a border */
        n = line * dice(random, 1, 40) + dice(random, 0, 2) - 1;
        break;
    case 2:
        n = dice(random, 1, 100);
        break;
    case 3:
        n = (uint64_t)dice(random, 1, 2500) * 2 + 1;
        break;
    default:
        n = random_u64(random) % most + 1;
        break;
    }
    return n > most ? most : n;
}

void draw_rows(uint64_t *random, uint64_t n, call *what)
{
    static const uint64_t rows[] = {1, 2, 3, 5, 7, 16};
    what->rows = one_in(random, 3) ? n : rows[random_below(random, 6)];
    while (n % what->rows != 0) {
        what->rows--;
    }
    what->columns = n / what->rows;
}

call draw_call(const scene *c, uint64_t *random, uint64_t most_elements)
{
    call what = {.op = c->ops[random_below(random, (uint32_t)c->n_ops)]};
    what.mode = c->modes[random_below(random, (uint32_t)c->n_modes)];
    what.data = (data_kind)random_below(random, 2);
    what.form = one_in(random, 3) ? (call_form)random_below(random, N_FORMS) : FORM_RUN;
    what.in_place = one_in(random, 4);
    if (what.op == FERRY_MIXED_ALL_GATHER) {
        what.data = DATA_BITS;
    } else if (c->options.deterministic) {
        what.data = one_in(random, 4) ? DATA_BITS : DATA_CANCEL;
    }
    if (one_in(random, 12)) {
        what.mode = FERRY_MIXED_MODE_DEFAULT;
    }
    draw_rows(random, draw_count(random, c->options.dtype, most_elements), &what);
    what.seed = random_u64(random);
    return what;
}

/* Blocks so small that messages have many steps. */
void draw_blocks(ferry_mixed_comm_options *options, uint64_t *random)
{
    options->grid_size = dice(random, 0, 3);
    options->max_block_size = one_in(random, 3) ? 0 : dice(random, 1, 40);
    options->min_block_size = one_in(random, 3) ? 256 : dice(random, 1, 8);
    if (options->max_block_size != 0 && options->min_block_size != 256 &&
        options->min_block_size > options->max_block_size) {
        options->min_block_size = options->max_block_size;
    }
    options->min_num_steps = dice(random, 1, 5);
    options->staging_bytes = one_in(random, 10) ? 1 : UINT64_C(65536) << dice(random, 0, 4);
}

ferry_mixed_comm_options scene_options(const rank_context *me, const shape *s, uint32_t dtype,
                                       uint64_t *random)
{
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    seat at = seat_of(s, me->rank);
    o.dtype = dtype;
    o.use_autotune = false;
    o.engines = engines_of(me, "", NULL, 0);
    o.world_rank = at.rank;
    o.world_size = s->w;
    o.local_rank = at.local;
    o.local_size = s->l;
    o.inter_rank = at.node;
    o.inter_size = s->n;
    /* One of two sizes is enough, and neither where all is tensor-parallel. */
    uint32_t given = random_below(random, 4);
    o.local_tp_size = given != 1 ? s->local_tp : 0;
    o.local_dp_size = given == 1 || given == 2 ? s->local_dp : 0;
    o.inter_tp_size = given != 2 ? s->inter_tp : 0;
    o.inter_dp_size = given == 2 || given == 3 ? s->inter_dp : 0;
    if (given == 0 && s->local_dp == 1) {
        o.local_tp_size = 0;
    }
    draw_blocks(&o, random);
    if (device_is_named()) {
        o.device.kind = device_kind();
        o.device.index = device_number((int32_t)me->rank);
    }
    return o;
}

/* Handles */

bool row_is_mapped(const rank_context *me, const shape *s)
{
    bool hides = has_wrapper(me, "strict") || has_wrapper(me, "delay") ||
                 has_wrapper(me, "reorder") || has_wrapper(me, "lose") || has_wrapper(me, "ucx") ||
                 strcmp(me->engine->name, "nvshmem_nodes") == 0;
    for (uint32_t rank = 0; rank < s->w; rank++) {
        uint32_t first = rank - rank % s->l; /* of the node */
        bool apart = ferry_world_node_of(me->world, rank) != ferry_world_node_of(me->world, first);
        if (rank != first && (hides || apart)) {
            return false;
        }
    }
    return true;
}

void scene_begin(scene *c, rank_context *me, const shape *s,
                 const ferry_mixed_comm_options *options)
{
    *c = (scene){.me = me, .s = *s, .at = seat_of(s, me->rank), .options = *options};
    snprintf(c->name, sizeof c->name,
             "L%u(tp%u dp%u) N%u(tp%u dp%u) %s%s grid %u blocks %u-%u steps %u", (unsigned)s->l,
             (unsigned)s->local_tp, (unsigned)s->local_dp, (unsigned)s->n, (unsigned)s->inter_tp,
             (unsigned)s->inter_dp, dtype_name(options->dtype),
             options->deterministic ? " deterministic" : "", (unsigned)options->grid_size,
             (unsigned)options->min_block_size, (unsigned)options->max_block_size,
             (unsigned)options->min_num_steps);
}

bool among(const uint32_t *list, size_t n, uint32_t number)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i] == number) {
            return true;
        }
    }
    return false;
}

static void check_ops(scene *c)
{
    rank_context *me = c->me;
    must(me, ferry_mixed_comm_get_valid_op_list(c->comm, c->ops, FERRY_MIXED_N_OPS, &c->n_ops,
                                                &me->error));
    expect(me, c->n_ops >= 1 && c->n_ops <= FERRY_MIXED_N_OPS, "%s: %zu operations", c->name,
           c->n_ops);
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        expect(me, among(c->ops, c->n_ops, op) == shape_has_op(&c->s, op), "%s: %s", c->name,
               ferry_mixed_op_name(op));
    }
}

static void check_modes(scene *c)
{
    rank_context *me = c->me;
    must(me, ferry_mixed_comm_get_valid_mode_list(c->comm, c->modes, FERRY_MIXED_N_MODES,
                                                  &c->n_modes, &me->error));
    expect(me, c->n_modes >= 1 && c->n_modes <= FERRY_MIXED_N_MODES, "%s: %zu modes", c->name,
           c->n_modes);
    for (uint32_t mode = FERRY_MIXED_AUTOTUNE + 1; mode < FERRY_MIXED_N_MODES; mode++) {
        expect(me,
               among(c->modes, c->n_modes, mode) ==
                   shape_has_mode(&c->s, mode, c->multicast, c->options.deterministic),
               "%s: %s", c->name, ferry_mixed_mode_name(mode));
    }
    expect(me, among(c->modes, c->n_modes, FERRY_MIXED_AUTOTUNE) == c->options.use_autotune,
           "%s: autotune", c->name);
}

static void check_info(const scene *c)
{
    rank_context *me = c->me;
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    must(me, ferry_mixed_comm_get_info(c->comm, &info, &me->error));
    expect(me,
           info.world_rank == c->at.rank && info.world_size == c->s.w &&
               info.local_rank == c->at.local && info.local_size == c->s.l &&
               info.inter_rank == c->at.node && info.inter_size == c->s.n,
           "%s: ranks", c->name);
    expect(me,
           info.local_tp_size == c->s.local_tp && info.local_dp_size == c->s.local_dp &&
               info.inter_tp_size == c->s.inter_tp && info.inter_dp_size == c->s.inter_dp,
           "%s: sizes", c->name);
    expect(me,
           info.tp_rank == c->at.tp && info.tp_size == c->s.tp && info.dp_rank == c->at.dp &&
               info.dp_size == c->s.dp,
           "%s: tp %u of %u, dp %u of %u", c->name, info.tp_rank, info.tp_size, info.dp_rank,
           info.dp_size);
    expect(me, info.dtype == c->options.dtype && info.grid_size >= 1, "%s: info", c->name);
    expect(me, info.deterministic == c->options.deterministic, "%s: info", c->name);
    expect(me, info.kernels == (device_has_kernels() && c->multicast), "%s: %s kernels", c->name,
           info.kernels ? "" : "no");
    bool has_library = device_has_library() && c->s.w > 1 && !c->options.deterministic;
    expect(me, (strncmp(info.base_engine, "nccl ", 5) == 0) == has_library,
           "%s: base modes are those of %s", c->name, info.base_engine);
}

void scene_open(scene *c, rank_context *me, const shape *s, const ferry_mixed_comm_options *options)
{
    scene_begin(c, me, s, options);
    ferry_status status = ferry_mixed_comm_create(me->world, options, &c->comm, &me->error);
    if (status != FERRY_OK) {
        fail(me, "%s: create: %s: %s", c->name, ferry_status_name(status), me->error.message);
    }
    c->far = device_has_kernels() ? 2 : s->w > 8 ? 0 : 40;
    c->multicast = row_is_mapped(me, s);
    check_ops(c);
    check_modes(c);
    check_info(c);
}

void scene_drop(scene *c)
{
    ferry_mixed_comm_destroy(c->comm);
    free(c->in);
    free(c->out);
    free(c->copy);
    for (int device = 0; device < 2; device++) {
        ferry_queue_destroy(c->queues[device]);
        if (c->streams[device] != NULL) {
            graphs_end_stream_of(device, c->streams[device]);
        }
    }
    for (int i = 0; i < 4; i++) {
        ferry_memory_free(&c->away[i / 2][i % 2]);
    }
    c->comm = NULL;
    c->in = c->out = c->copy = NULL;
}

void scene_was_far(scene *c)
{
    rank_context *me = c->me;
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    must(me, ferry_mixed_comm_get_counts(c->comm, &counts, &me->error));
    expect(me, c->n_queued > 0, "%s: no call on a queue", c->name);
    expect(me, c->n_away > 0 && counts.n_device_elements > 0,
           "%s: %llu calls with far tensors, %llu elements summed there", c->name,
           (unsigned long long)c->n_away, (unsigned long long)counts.n_device_elements);
}

void scene_close(scene *c)
{
    rank_context *me = c->me;
    scene_compare(c);
    must(me, ferry_mixed_comm_shutdown(c->comm, &me->error));
    scene_drop(c);
}
