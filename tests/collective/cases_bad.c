/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is refused, with which status; and that the handle works afterwards as before. */
#include "collective/suite.h"

#include <pthread.h>
#include <stdatomic.h>

/* Arguments of a call, spoiled on all ranks: where one alone is refused the others are told. */

typedef struct arguments {
    const scene *c;
    uint32_t op, mode;
    tensors t;
    const ferry_mixed_tensor *in, *out;
    ferry_queue *queue;
    bool does_not_apply;
} arguments;

typedef struct bad_argument {
    const char *name;
    ferry_status status;
    void (*spoil)(arguments *a);
} bad_argument;

#define ARGUMENT(name, ...)                                                                        \
    static void name(arguments *a)                                                                 \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }

static uint64_t element_of(const arguments *a)
{
    return dtype_bytes(a->c->options.dtype);
}

static void resize(const arguments *a, ferry_mixed_tensor *tensor, uint64_t rows, uint64_t columns)
{
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->buffer.bytes = rows * columns * element_of(a);
}

static void move(ferry_mixed_tensor *tensor, int64_t bytes)
{
    tensor->buffer.base = (char *)tensor->buffer.base + bytes;
}

static uint32_t none_of(const uint32_t *list, size_t n, uint32_t first, uint32_t end)
{
    while (first < end && among(list, n, first)) {
        first++;
    }
    return first;
}

ARGUMENT(no_in, a->in = NULL)
ARGUMENT(no_out, a->out = NULL)
ARGUMENT(op_unknown, a->op = FERRY_MIXED_N_OPS)
ARGUMENT(op_not_offered, a->op = none_of(a->c->ops, a->c->n_ops, 0, FERRY_MIXED_N_OPS))
ARGUMENT(mode_unknown, a->mode = FERRY_MIXED_N_MODES)
ARGUMENT(mode_huge, a->mode = UINT32_MAX)
ARGUMENT(mode_not_offered, a->mode = none_of(a->c->modes, a->c->n_modes, 2, FERRY_MIXED_N_MODES);
         a->does_not_apply = a->mode == FERRY_MIXED_N_MODES)
ARGUMENT(not_tuned, a->mode = FERRY_MIXED_AUTOTUNE)
ARGUMENT(with_queue, a->queue = (ferry_queue *)(uintptr_t)64)
ARGUMENT(no_rows, resize(a, &a->t.in, 0, a->t.in.columns); resize(a, &a->t.out, 0, a->t.in.columns))
ARGUMENT(no_columns, resize(a, &a->t.in, a->t.in.rows, 0); resize(a, &a->t.out, a->t.out.rows, 0))
ARGUMENT(in_short, a->t.in.buffer.bytes--)
ARGUMENT(out_short, a->t.out.buffer.bytes--)
ARGUMENT(in_long, a->t.in.buffer.bytes += element_of(a))
ARGUMENT(out_long, a->t.out.buffer.bytes += element_of(a))
ARGUMENT(in_wraps, a->t.in.rows += UINT64_C(1) << 63; a->t.out.rows += UINT64_C(1) << 63)
ARGUMENT(columns_wrap, a->t.in.columns += UINT64_C(1) << 63; a->t.out.columns = a->t.in.columns)
ARGUMENT(in_misaligned, move(&a->t.in, 1))
ARGUMENT(out_misaligned, move(&a->t.out, 1))
ARGUMENT(out_rows, resize(a, &a->t.out, a->t.out.rows + 1, a->t.out.columns))
ARGUMENT(out_columns, resize(a, &a->t.out, a->t.out.rows, a->t.out.columns + 1))
ARGUMENT(out_transposed, a->t.out.rows ^= a->t.out.columns; a->t.out.columns ^= a->t.out.rows;
         a->t.out.rows ^= a->t.out.columns; a->does_not_apply = a->t.out.rows == a->t.out.columns)
ARGUMENT(not_divisible, resize(a, &a->t.in, a->t.in.rows + 1, a->t.in.columns);
         a->does_not_apply = a->t.in.rows < a->t.out.rows * 2)
ARGUMENT(memory_of_gpu_in, a->t.in.buffer.kind = FERRY_MEMORY_CUDA)
ARGUMENT(memory_of_gpu_out, a->t.out.buffer.kind = FERRY_MEMORY_CUDA)

/* Both lie in the larger one's memory, and not where in place would be. */
static void overlap_by(arguments *a, int64_t elements)
{
    uint64_t in = a->t.in.buffer.bytes, out = a->t.out.buffer.bytes;
    char *base = in >= out ? a->t.in.buffer.base : a->t.out.buffer.base;
    int64_t smaller = (int64_t)(in < out ? in : out), larger = (int64_t)(in < out ? out : in);
    int64_t at = (int64_t)(a->c->at.dp % (uint32_t)(larger / smaller)) * smaller;
    at += elements * (int64_t)element_of(a);
    if (at < 0 || (elements < 0 && at + smaller <= 0)) {
        at = at + 2 * (int64_t)element_of(a);
    }
    *(in >= out ? &a->t.out.buffer.base : &a->t.in.buffer.base) = base + at;
    a->does_not_apply = smaller < 4 * (int64_t)element_of(a);
}

ARGUMENT(overlap_behind, overlap_by(a, 1))
ARGUMENT(overlap_before, overlap_by(a, -1))

static void wrong_chunk(arguments *a)
{
    uint64_t in = a->t.in.buffer.bytes, out = a->t.out.buffer.bytes;
    char *base = in >= out ? a->t.in.buffer.base : a->t.out.buffer.base;
    uint64_t smaller = in < out ? in : out;
    *(in >= out ? &a->t.out.buffer.base : &a->t.in.buffer.base) =
        base + (a->c->at.dp + 1) % a->c->s.dp * smaller;
    a->does_not_apply = in == out;
}

static const bad_argument bad_arguments[] = {
    {"no input", FERRY_ERR_MISUSE, no_in},
    {"no output", FERRY_ERR_MISUSE, no_out},
    {"unknown operation", FERRY_ERR_INVALID_INPUT, op_unknown},
    {"operation not offered", FERRY_ERR_INVALID_INPUT, op_not_offered},
    {"unknown mode", FERRY_ERR_INVALID_INPUT, mode_unknown},
    {"mode of 2^32 - 1", FERRY_ERR_INVALID_INPUT, mode_huge},
    {"mode not offered", FERRY_ERR_INVALID_INPUT, mode_not_offered},
    {"not tuned", FERRY_ERR_INVALID_INPUT, not_tuned},
    {"what is no queue", FERRY_ERR_MISUSE, with_queue},
    {"no rows", FERRY_ERR_INVALID_INPUT, no_rows},
    {"no columns", FERRY_ERR_INVALID_INPUT, no_columns},
    {"input one byte short", FERRY_ERR_INVALID_INPUT, in_short},
    {"output one byte short", FERRY_ERR_INVALID_INPUT, out_short},
    {"input too long", FERRY_ERR_INVALID_INPUT, in_long},
    {"output too long", FERRY_ERR_INVALID_INPUT, out_long},
    {"rows that wrap around", FERRY_ERR_INVALID_INPUT, in_wraps},
    {"columns that wrap around", FERRY_ERR_INVALID_INPUT, columns_wrap},
    {"misaligned input", FERRY_ERR_INVALID_INPUT, in_misaligned},
    {"misaligned output", FERRY_ERR_INVALID_INPUT, out_misaligned},
    {"rows of the output", FERRY_ERR_INVALID_INPUT, out_rows},
    {"columns of the output", FERRY_ERR_INVALID_INPUT, out_columns},
    {"rows and columns of the output", FERRY_ERR_INVALID_INPUT, out_transposed},
    {"rows that dp does not divide", FERRY_ERR_INVALID_INPUT, not_divisible},
    {"input on a GPU", FERRY_ERR_UNSUPPORTED, memory_of_gpu_in},
    {"output on a GPU", FERRY_ERR_UNSUPPORTED, memory_of_gpu_out},
    {"overlap behind", FERRY_ERR_INVALID_INPUT, overlap_behind},
    {"overlap before", FERRY_ERR_INVALID_INPUT, overlap_before},
    {"in place of another chunk", FERRY_ERR_INVALID_INPUT, wrong_chunk},
};

/* Refused by run and by start, and nothing is moved. */
static void refuse(scene *c, const bad_argument *bad, const call *what)
{
    rank_context *me = c->me;
    arguments a = {.c = c, .op = what->op, .mode = what->mode};
    ferry_request *request = NULL;
    a.t = scene_tensors(c, what);
    tensors whole = a.t;
    a.in = &a.t.in;
    a.out = &a.t.out;
    bad->spoil(&a);
    if (a.does_not_apply) {
        return;
    }
    uint64_t bytes = whole.out.buffer.bytes;
    unsigned char first = *(unsigned char *)whole.out.buffer.base;
    ferry_status status =
        ferry_mixed_comm_run(c->comm, a.op, a.in, a.out, a.mode, a.queue, &me->error);
    expect(me, status == bad->status, "%s: %s, %s: %s: %.300s", bad->name, c->name,
           ferry_mixed_op_name(what->op), ferry_status_name(status),
           status == FERRY_OK ? "" : me->error.message);
    expect(me, strlen(me->error.message) > 10, "%s has no sentence", bad->name);
    expect(me, strstr(me->error.message, "()") == NULL, "%s: %.300s", bad->name, me->error.message);
    status =
        ferry_mixed_comm_start(c->comm, a.op, a.in, a.out, a.mode, a.queue, &request, &me->error);
    expect(me, status == bad->status && request == NULL, "%s: start: %s", bad->name,
           ferry_status_name(status));
    expect(me, mismatch_byte(whole.out.buffer.base, bytes, first) == bytes, "%s: bytes were moved",
           bad->name);
}

static void bad_calls_of(rank_context *me, const shape *s, uint64_t *random)
{
    ferry_mixed_comm_options options = scene_options(me, s, draw_dtype(random), random);
    scene c;
    scene_open(&c, me, s, &options);
    for (size_t i = 0; i < COUNT_OF(bad_arguments) * c.n_ops; i++) {
        uint32_t op = c.ops[i % c.n_ops];
        call what = {.op = op, .rows = 3, .columns = 8, .seed = random_u64(random)};
        what.data = op == FERRY_MIXED_ALL_GATHER ? DATA_BITS : DATA_INTEGERS;
        what.mode = c.modes[random_below(random, (uint32_t)c.n_modes)];
        refuse(&c, &bad_arguments[i / c.n_ops], &what);
        if (one_in(random, 3)) {
            scene_call(&c, &what);
        }
    }
    call what = draw_call(&c, random, 500);
    scene_call(&c, &what);
    scene_close(&c);
}

/*
 * One rank is refused again and again while nothing of what is put arrives: it comes back all the
 * same. If it waited for that, the others would wait here for it until the entry limit.
 */
void case_refused_alone(rank_context *me)
{
    uint64_t random = seed_of(me, 24, 0, 0);
    shape s = shape_of(1, me->n_ranks, 1, 1);
    ferry_mixed_comm_options options = scene_options(me, &s, FERRY_F32, &random);
    char engines[64];
    scene c;
    options.engines = engines_of(me, "delay=3600s:", engines, sizeof engines);
    scene_open(&c, me, &s, &options);
    call what = {.op = c.ops[0], .mode = c.modes[0], .rows = 3, .columns = 8};
    for (uint32_t i = 0; me->rank == 0 && i < 10; i++) {
        tensors t = scene_tensors(&c, &what);
        t.out.columns++;
        must_fail(
            me, FERRY_ERR_INVALID_INPUT, "output",
            ferry_mixed_comm_run(c.comm, what.op, &t.in, &t.out, what.mode, NULL, &me->error));
    }
    meet(me);
    atomic_fetch_add(&me->shared->word[0], 1);
    while (me->rank == 0 && atomic_load(&me->shared->word[0]) < me->n_ranks) {
        sleep_ms(1);
    }
    if (me->rank == 0) { /* so that nobody waits for what is still to arrive */
        ferry_world_abort(me->world, "the delay is longer than this case");
    }
    scene_drop(&c);
}

/* A rank that is refused goes on: all hear which call it went on without. */
static void expect_gap(rank_context *me)
{
    uint64_t random = seed_of(me, 25, 0, 0);
    shape s = shape_of(1, me->n_ranks, 1, 1);
    ferry_mixed_comm_options options = scene_options(me, &s, FERRY_F32, &random);
    scene c;
    scene_open(&c, me, &s, &options);
    call what = {.op = c.ops[0], .mode = c.modes[0], .rows = 3, .columns = 8};
    tensors t = scene_tensors(&c, &what);
    ferry_mixed_tensor wrong = t.out;
    wrong.columns++;
    if (me->rank == 0) {
        must_fail(
            me, FERRY_ERR_INVALID_INPUT, "output",
            ferry_mixed_comm_run(c.comm, what.op, &t.in, &wrong, what.mode, NULL, &me->error));
    }
    must_fail(me, FERRY_ERR_MISUSE, "rank 0 went on without call 1 of rank ",
              ferry_mixed_comm_run(c.comm, what.op, &t.in, &t.out, what.mode, NULL, &me->error));
    scene_drop(&c);
}

void case_bad_calls(rank_context *me)
{
    expect_gap(me);
    uint64_t random = seed_of(me, 22, me->n_ranks, 0);
    uint32_t n = me->n_ranks;
    shape all_tp = shape_of(n, 1, n, 1), all_dp = shape_of(1, n, 1, 1);
    bad_calls_of(me, &all_tp, &random);
    bad_calls_of(me, &all_dp, &random);
    for (uint32_t i = 0; i < times_of(me, 3, 30); i++) {
        shape s = draw_shape(&random, n);
        bad_calls_of(me, &s, &random);
    }
}

/* Things at the wrong time, and what has no handle. */

static void check_queries(scene *c)
{
    rank_context *me = c->me;
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    ferry_mixed_timing timing = FERRY_MIXED_TIMING_INIT;
    uint32_t list[FERRY_MIXED_N_MODES];
    size_t n = 0;
    info.struct_size = 4;
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_mixed_comm_get_info(c->comm, &info, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_mixed_comm_get_info(c->comm, NULL, &me->error));
    counts.struct_size = 0;
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_mixed_comm_get_counts(c->comm, &counts, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_mixed_comm_get_counts(NULL, &counts, &me->error));
    expect(me, ferry_mixed_comm_timing_count(c->comm) == 0, "timings of what was not measured");
    expect(me, ferry_mixed_comm_timing_at(c->comm, 0, &timing, &me->error) != FERRY_OK,
           "a timing that does not exist");
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_mixed_comm_get_valid_op_list(NULL, list, FERRY_MIXED_N_OPS, &n, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_mixed_comm_get_valid_mode_list(c->comm, NULL, 0, &n, &me->error));
    expect(me, ferry_mixed_comm_save_tuning(c->comm, "/nowhere/at/all", &me->error) != FERRY_OK,
           "a table was saved that does not exist");
    call what = {.op = c->ops[0], .rows = 1, .columns = 8};
    tensors t = scene_tensors(c, &what);
    uint32_t mode = 77;
    expect(me,
           ferry_mixed_comm_select_autotune_mode(c->comm, what.op, &t.in, &mode, &me->error) !=
                   FERRY_OK &&
               mode == 77,
           "a choice without a table");
}

static void check_ended(scene *c)
{
    rank_context *me = c->me;
    ferry_request *request = NULL;
    call what = {.op = c->ops[0], .mode = c->modes[0], .rows = 1, .columns = 8};
    tensors t = scene_tensors(c, &what);
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_mixed_comm_run(c->comm, what.op, &t.in, &t.out, what.mode, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_mixed_comm_start(c->comm, what.op, &t.in, &t.out, what.mode, NULL, &request,
                                     &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_mixed_comm_init_virtual_memory(c->comm, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_mixed_comm_init_nvshmem(c->comm, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_mixed_comm_run_autotune(c->comm, &me->error));
}

static void check_names(rank_context *me)
{
    static const char *const nonsense[] = {"", "all", "all-reduces", "all-reduce ", "3"};
    uint32_t number = 99;
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        must(me, ferry_mixed_op_parse(ferry_mixed_op_name(op), &number, &me->error));
        expect(me, number == op, "%s is %u", ferry_mixed_op_name(op), (unsigned)number);
    }
    for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
        must(me, ferry_mixed_mode_parse(ferry_mixed_mode_name(mode), &number, &me->error));
        expect(me, number == mode, "%s is %u", ferry_mixed_mode_name(mode), (unsigned)number);
    }
    must(me, ferry_mixed_mode_parse("Fused_BYTES2_unicast", &number, &me->error));
    expect(me, number == FERRY_MIXED_FUSED_BYTES2_UNICAST, "%u", (unsigned)number);
    for (size_t i = 0; i < COUNT_OF(nonsense); i++) {
        must_fail(me, FERRY_ERR_INVALID_INPUT, "all-gather",
                  ferry_mixed_op_parse(nonsense[i], &number, &me->error));
        must_fail(me, FERRY_ERR_INVALID_INPUT, "base-one",
                  ferry_mixed_mode_parse(nonsense[i], &number, &me->error));
    }
    expect(me,
           ferry_mixed_op_name(FERRY_MIXED_N_OPS)[0] == '\0' &&
               ferry_mixed_mode_name(UINT32_MAX)[0] == '\0',
           "a name for nothing");
}

void case_bad_order(rank_context *me)
{
    uint64_t random = seed_of(me, 23, 0, 0);
    shape s = draw_shape(&random, me->n_ranks);
    ferry_mixed_comm_options options = scene_options(me, &s, FERRY_F32, &random);
    scene c;
    check_names(me);
    options.only_construct = true;
    scene_begin(&c, me, &s, &options);
    must(me, ferry_mixed_comm_create(me->world, &options, &c.comm, &me->error));
    call what = {.op = s.dp == 1   ? FERRY_MIXED_ALL_REDUCE
                       : s.tp == 1 ? FERRY_MIXED_ALL_GATHER
                                   : FERRY_MIXED_ALL_REDUCE_ALL_GATHER,
                 .mode = FERRY_MIXED_BASE_ONE,
                 .rows = 1,
                 .columns = 8};
    tensors t = scene_tensors(&c, &what);
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_mixed_comm_run(c.comm, what.op, &t.in, &t.out, what.mode, NULL, &me->error));
    scene_drop(&c);
    options.only_construct = false;
    scene_open(&c, me, &s, &options);
    check_queries(&c);
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_mixed_comm_run(NULL, what.op, &t.in, &t.out, what.mode, NULL, &me->error));
    what = draw_call(&c, &random, 300);
    scene_call(&c, &what);
    scene_compare(&c);
    must(me, ferry_mixed_comm_shutdown(c.comm, &me->error));
    check_ended(&c);
    scene_drop(&c);
}

/* Two threads call the same; who comes second is refused, and only then the other ranks come. */

typedef struct second_thread {
    scene *c;
    call what;
    tensors t;
    ferry_error error;
    ferry_status status;
} second_thread;

static void *run_beside(void *context)
{
    second_thread *it = context;
    scene *c = it->c;
    it->status = ferry_mixed_comm_run(c->comm, it->what.op, &it->t.in, &it->t.out, it->what.mode,
                                      NULL, &it->error);
    if (it->status == FERRY_ERR_MISUSE) {
        atomic_fetch_add(&c->me->shared->word[0], 1);
    }
    return NULL;
}

/* Exactly one of two threads of this rank runs. */
static void run_twice(scene *c, const call *what)
{
    rank_context *me = c->me;
    pthread_t threads[2];
    second_thread both[2];
    tensors t = scene_tensors(c, what);
    for (uint32_t k = 0; k < 2; k++) {
        both[k] = (second_thread){.c = c, .what = *what, .t = t};
    }
    for (uint32_t k = 0; k < 2; k++) {
        if (pthread_create(&threads[k], NULL, run_beside, &both[k]) != 0) {
            fail(me, "no thread");
        }
    }
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    uint32_t refused = both[0].status == FERRY_OK;
    expect(me, both[1 - refused].status == FERRY_OK && both[refused].status == FERRY_ERR_MISUSE,
           "two threads: %s and %s", ferry_status_name(both[0].status),
           ferry_status_name(both[1].status));
    expect(me, strstr(both[refused].error.message, "thread") != NULL, "%s",
           both[refused].error.message);
}

void case_two_threads(rank_context *me)
{
    uint64_t random = seed_of(me, 25, 0, 0);
    for (uint32_t i = 0; i < times_of(me, 10, 200); i++) {
        shape s = shape_of(2, 1, 2, 1);
        ferry_mixed_comm_options options = scene_options(me, &s, FERRY_F32, &random);
        scene c;
        scene_open(&c, me, &s, &options);
        call what = draw_call(&c, &random, 2000);
        what.form = FORM_RUN;
        what.in_place = false;
        if (me->rank == 0) {
            run_twice(&c, &what);
        } else {
            while (atomic_load(&me->shared->word[0]) <= i) {
                sleep_ms(1);
            }
            scene_call(&c, &what);
            c.n_logged = 0; /* the other rank has no digest of it */
        }
        scene_call(&c, &what);
        scene_close(&c);
    }
}
