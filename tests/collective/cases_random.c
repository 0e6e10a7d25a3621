/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Sequences of calls on handles, and what else a handle can do. */
#include "collective/suite.h"
#include "support/devices.h"

#include <sched.h>
#include <unistd.h>

/* Hundreds of calls of anything, of ranks that come at different times, over small slots. */
void case_random(rank_context *me)
{
    uint64_t random = seed_of(me, 10, me->n_ranks, 0);
    bool slow = has_wrapper(me, "delay") || has_wrapper(me, "reorder") ||
                strcmp(me->engine->engine, "ucx") == 0;
    for (uint32_t round = 0; round < times_of(me, 6, 60); round++) {
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene c;
        options.max_block_size = dice(&random, 1, 12);
        options.min_block_size = dice(&random, 1, options.max_block_size);
        options.deterministic = one_in(&random, 4);
        scene_open(&c, me, &s, &options);
        c.skew_us = one_in(&random, 2) ? 0 : dice(&random, 1, 400);
        uint32_t calls = times_of(me, slow ? 30 : 150, slow ? 150 : 700);
        for (uint32_t i = 0; i < calls; i++) {
            call what = draw_call(&c, &random, one_in(&random, 10) ? 6000 : 600);
            scene_call(&c, &what);
        }
        scene_close(&c);
    }
}

/* The same with tensors in far memory, host memory and both, on all ranks or only on some. */
void case_far(rank_context *me)
{
    uint64_t random = seed_of(me, 14, me->n_ranks, 0);
    for (uint32_t round = 0; round < times_of(me, 3, 30); round++) {
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene c;
        options.max_block_size = dice(&random, 1, 12);
        options.min_block_size = dice(&random, 1, options.max_block_size);
        options.deterministic = round % 2 == 1;
        scene_open(&c, me, &s, &options);
        c.far = 1;
        c.skew_us = one_in(&random, 2) ? 0 : dice(&random, 1, 400);
        for (uint32_t i = 0; i < times_of(me, 16, 300); i++) {
            call what = draw_call(&c, &random, 900);
            what.in_place = what.in_place && me->n_ranks > 1;
            scene_call(&c, &what);
        }
        scene_was_far(&c);
        scene_close(&c);
    }
}

/* Two handles of one world in turn, with transports of their own. */
void case_two_handles(rank_context *me)
{
    uint64_t random = seed_of(me, 11, me->n_ranks, 0);
    if (has_wrapper(me, "strict")) {
        return; /* one transport at a time */
    }
    for (uint32_t round = 0; round < times_of(me, 2, 20); round++) {
        scene c[2];
        for (uint32_t i = 0; i < 2; i++) {
            shape s = draw_shape(&random, me->n_ranks);
            ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
            scene_open(&c[i], me, &s, &options);
            c[i].skew_us = 50;
        }
        for (uint32_t i = 0; i < times_of(me, 40, 200); i++) {
            scene *one = &c[random_below(&random, 2)];
            call what = draw_call(one, &random, 900);
            scene_call(one, &what);
        }
        uint32_t first = random_below(&random, 2);
        scene_close(&c[first]);
        call what = draw_call(&c[1 - first], &random, 900);
        scene_call(&c[1 - first], &what);
        scene_close(&c[1 - first]);
    }
}

/* A request is one at a time; it may be asked again and again, and destroyed unasked. */
void case_requests(rank_context *me)
{
    uint64_t random = seed_of(me, 12, me->n_ranks, 0);
    for (uint32_t round = 0; round < times_of(me, 3, 30); round++) {
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene c;
        scene_open(&c, me, &s, &options);
        for (uint32_t i = 0; i < 20; i++) {
            ferry_request *request = NULL, *second = NULL;
            call what = draw_call(&c, &random, 3000);
            tensors t = scene_tensors(&c, &what);
            must(me, ferry_mixed_comm_start(c.comm, what.op, &t.in, &t.out, what.mode, NULL,
                                            &request, &me->error));
            must_fail(me, FERRY_ERR_MISUSE, NULL,
                      ferry_mixed_comm_start(c.comm, what.op, &t.in, &t.out, what.mode, NULL,
                                             &second, &me->error));
            must_fail(
                me, FERRY_ERR_MISUSE, NULL,
                ferry_mixed_comm_run(c.comm, what.op, &t.in, &t.out, what.mode, NULL, &me->error));
            expect(me, second == NULL, "a request of a start that failed");
            if (one_in(&random, 2)) {
                bool done = false;
                while (!done) {
                    must(me, ferry_request_test(request, &done, &me->error));
                    sched_yield();
                }
                must(me, ferry_request_test(request, &done, &me->error));
                must(me, ferry_request_wait(request, &me->error));
                must(me, ferry_request_wait(request, &me->error));
            }
            ferry_request_destroy(request);
            what.form = FORM_RUN;
            scene_call(&c, &what);
        }
        scene_close(&c);
    }
}

/* All ranks take the same mode, and a table that was saved makes the same choices. */
static void check_choices(scene *c, uint64_t *random, uint32_t *choices, size_t n)
{
    rank_context *me = c->me;
    for (size_t i = 0; i < n; i++) {
        call what = {.op = c->ops[i % c->n_ops], .rows = 1, .columns = 1 + i * i * i * 40};
        tensors t = scene_tensors(c, &what);
        uint32_t mode = 0;
        must(me, ferry_mixed_comm_select_autotune_mode(c->comm, what.op, &t.in, &mode, &me->error));
        expect(me, among(c->modes, c->n_modes, mode) && mode > FERRY_MIXED_AUTOTUNE, "mode %u",
               (unsigned)mode);
        choices[i] = mode;
    }
    const void *all = NULL;
    must(me, ferry_world_all_gather(me->world, choices, n * sizeof *choices, &all, &me->error));
    for (uint32_t rank = 0; rank < me->n_ranks; rank++) {
        const char *theirs = (const char *)all + rank * n * sizeof *choices;
        expect(me, memcmp(theirs, choices, n * sizeof *choices) == 0, "%s: rank %u chooses other",
               c->name, (unsigned)rank);
    }
    for (uint32_t i = 0; i < times_of(me, 20, 100); i++) {
        call what = draw_call(c, random, 20000);
        what.mode = i % 2 == 0 ? FERRY_MIXED_AUTOTUNE : FERRY_MIXED_MODE_DEFAULT;
        scene_call(c, &what);
    }
}

/*
 * Requests of two handles, begun in one order and waited for in any: what they put on devices waits
 * for that of other ranks, and comes there in the order in which they were begun.
 */
void case_turns(rank_context *me)
{
    uint64_t random = seed_of(me, 40, me->n_ranks, 0);
    ferry_request *requests[2];
    scene c[2];
    for (int i = 0; i < 2; i++) {
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene_open(&c[i], me, &s, &options);
    }
    for (uint32_t round = 0; round < times_of(me, 20, 200); round++) {
        uint32_t first = random_below(&me->random, 2);
        usleep(random_below(&me->random, 3000));
        for (int i = 0; i < 2; i++) {
            call what = draw_call(&c[i], &random, 900);
            what.mode = FERRY_MIXED_MODE_DEFAULT; /* a base mode */
            tensors t = scene_tensors(&c[i], &what);
            must(me, ferry_mixed_comm_start(c[i].comm, what.op, &t.in, &t.out, what.mode, NULL,
                                            &requests[i], &me->error));
        }
        for (uint32_t i = 0; i < 2; i++) {
            ferry_request *request = requests[(first + i) % 2];
            must(me, ferry_request_wait(request, &me->error));
            ferry_request_destroy(request);
        }
    }
    scene_close(&c[0]);
    scene_close(&c[1]);
}

void case_autotune(rank_context *me)
{
    uint64_t random = seed_of(me, 13, me->n_ranks, 0);
    for (uint32_t round = 0; round < times_of(me, 2, 10); round++) {
        uint32_t choices[2][12];
        char path[256];
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene c;
        options.use_autotune = true;
        options.autotune_bytes = 32768;
        options.deterministic = one_in(&random, 3);
        options.max_block_size = 0;
        scene_open(&c, me, &s, &options);
        expect(me, ferry_mixed_comm_timing_count(c.comm) > 0, "nothing was measured");
        check_choices(&c, &random, choices[0], 12);
        snprintf(path, sizeof path, "%s/table-%u", me->folder, (unsigned)round);
        if (me->rank == 0) {
            must(me, ferry_mixed_comm_save_tuning(c.comm, path, &me->error));
        }
        meet(me);
        scene_close(&c);
        options.tune_file = path;
        scene_open(&c, me, &s, &options);
        check_choices(&c, &random, choices[1], 12);
        expect(me, memcmp(choices[0], choices[1], sizeof choices[0]) == 0,
               "%s: a saved table chooses other modes", c.name);
        scene_close(&c);
        if (me->rank == 0) {
            unlink(path);
        }
    }
}

static ferry_mixed_counts counts_of(rank_context *me, const ferry_mixed_comm *comm)
{
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    must(me, ferry_mixed_comm_get_counts(comm, &counts, &me->error));
    return counts;
}

static void check_counts(scene *c, uint64_t *random)
{
    rank_context *me = c->me;
    must(me, ferry_mixed_comm_reset_counts(c->comm, &me->error));
    ferry_mixed_counts counts = counts_of(me, c->comm);
    expect(me, counts.n_calls == 0 && counts.n_steps == 0 && counts.between_bytes == 0,
           "counts after a reset");
    for (uint32_t i = 1; i < 8; i++) {
        call what = draw_call(c, random, 800);
        scene_call(c, &what);
        counts = counts_of(me, c->comm);
        expect(me, counts.n_calls == i && counts.n_steps >= i,
               "%llu calls, %llu steps after %u calls", (unsigned long long)counts.n_calls,
               (unsigned long long)counts.n_steps, (unsigned)i);
        expect(me, counts.between_bytes == 0 || c->s.n > 1, "bytes between nodes on one node");
        expect(me, counts.inside_bytes_written == 0 || c->s.w > 1, "bytes for nobody");
    }
}

/* What the sketch of such a handle says of a call, which counts without ranks. */
static ferry_mixed_work work_of(scene *c, const call *what)
{
    rank_context *me = c->me;
    ferry_mixed_comm_options options = c->options;
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_work work = FERRY_MIXED_WORK_INIT;
    ferry_mixed_sketch *sketch = NULL;
    must(me, ferry_mixed_comm_get_info(c->comm, &info, &me->error));
    options.grid_size = info.grid_size;
    must(me, ferry_mixed_sketch_create(&options, info.reach, &sketch, &me->error));
    must(me, ferry_mixed_sketch_count(sketch, what->op, what->mode, what->rows * what->columns,
                                      &work, &me->error));
    ferry_mixed_sketch_destroy(sketch);
    return work;
}

/*
 * What is read inside the node. Where devices add up what a rank sums, what others have of it comes
 * once, and not once of each: so parts that a rank does not write for others are those that it
 * reads, and both together are all chunks of the node, d for each of its data-parallel groups, and
 * the own message where its parts were summed by several.
 */
static uint64_t read_by(const scene *c, const call *what, const ferry_mixed_work *work)
{
    const shape *s = &c->s;
    uint64_t message = what->rows * what->columns * dtype_bytes(c->options.dtype);
    bool scatters =
        what->op == FERRY_MIXED_REDUCE_SCATTER || what->op == FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE;
    bool has_parts = what->mode == FERRY_MIXED_FUSED_BYTES1_MULTICAST ||
                     what->mode == FERRY_MIXED_FUSED_BYTES2_MULTICAST;
    bool is_waits = what->mode == FERRY_MIXED_FUSED_WAITS_MULTICAST;
    bool adds =
        scatters ? has_parts || (is_waits && s->local_tp == 1) : has_parts && s->local_tp > 1;
    uint64_t n_messages = (uint64_t)s->local_dp * s->inter_dp + (s->local_tp > 1);
    return device_has_multicast() && adds && s->l > 1 && !c->options.deterministic
               ? n_messages * message - work->inside_bytes_written
               : work->inside_bytes_read;
}

/* Each call writes, reads and waits as often as it must, whoever makes it. */
static void check_work(scene *c, uint64_t *random)
{
    rank_context *me = c->me;
    for (uint32_t i = 0; i < 6; i++) {
        call what = draw_call(c, random, 3000);
        /* One that stands for others has no work, and a library counts nothing. */
        while (what.mode <= FERRY_MIXED_AUTOTUNE ||
               (device_has_library() && what.mode >= FERRY_MIXED_BASE_ONE)) {
            what = draw_call(c, random, 3000);
        }
        what.in_place = false;
        must(me, ferry_mixed_comm_reset_counts(c->comm, &me->error));
        scene_call(c, &what);
        ferry_mixed_counts counts = counts_of(me, c->comm);
        ferry_mixed_work work = work_of(c, &what);
        expect(me,
               counts.n_waits == work.n_steps * (work.n_inside_waits + work.n_between_waits) &&
                   counts.inside_bytes_written == work.inside_bytes_written &&
                   counts.inside_bytes_read == read_by(c, &what, &work) &&
                   counts.inside_bytes_read == work.inside_bytes_read &&
                   counts.between_bytes == work.between_bytes,
               "%s: %s %s of %llu: waits %llu, inside written %llu of %llu, read %llu of %llu, "
               "between %llu of %llu",
               c->name, ferry_mixed_op_name(what.op), ferry_mixed_mode_name(what.mode),
               (unsigned long long)(what.rows * what.columns), (unsigned long long)counts.n_waits,
               (unsigned long long)counts.inside_bytes_written,
               (unsigned long long)work.inside_bytes_written,
               (unsigned long long)counts.inside_bytes_read,
               (unsigned long long)read_by(c, &what, &work),
               (unsigned long long)counts.between_bytes, (unsigned long long)work.between_bytes);
    }
}

/* The parts of create one by one, each twice; shut down or not before the end. */
void case_life(rank_context *me)
{
    uint64_t random = seed_of(me, 14, me->n_ranks, 0);
    for (uint32_t round = 0; round < times_of(me, 4, 30); round++) {
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
        scene c;
        options.only_construct = true;
        scene_begin(&c, me, &s, &options);
        must(me, ferry_mixed_comm_create(me->world, &options, &c.comm, &me->error));
        must(me, ferry_mixed_comm_get_info(c.comm, &info, &me->error));
        expect(me, !info.virtual_memory && !info.tuned, "a handle that is only constructed");
        for (uint32_t twice = 0; twice < 2; twice++) {
            must(me, ferry_mixed_comm_init_virtual_memory(c.comm, &me->error));
        }
        for (uint32_t twice = 0; twice < 2; twice++) {
            must(me, ferry_mixed_comm_init_nvshmem(c.comm, &me->error));
        }
        must(me, ferry_mixed_comm_get_info(c.comm, &info, &me->error));
        expect(me, info.virtual_memory && info.between_nodes, "a handle that is initialised");
        ferry_mixed_comm_destroy(c.comm);
        c.comm = NULL;
        options.only_construct = false;
        scene_open(&c, me, &s, &options);
        check_counts(&c, &random);
        check_work(&c, &random);
        scene_compare(&c);
        if (one_in(&random, 2)) {
            must(me, ferry_mixed_comm_shutdown(c.comm, &me->error));
        }
        scene_drop(&c);
    }
    ferry_mixed_comm_destroy(NULL);
}

/* On a transport that the caller has opened, and goes on to use. */
void case_shared_transport(rank_context *me)
{
    uint64_t random = seed_of(me, 15, me->n_ranks, 0);
    must(me,
         ferry_transport_open(me->world, engines_of(me, "", NULL, 0), &me->transport, &me->error));
    for (uint32_t round = 0; round < times_of(me, 2, 12); round++) {
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene c;
        options.transport = me->transport;
        options.engines = NULL;
        options.should_init_nvshmem = one_in(&random, 2);
        ferry_region *region = alloc_region(me, 4096);
        scene_open(&c, me, &s, &options);
        for (uint32_t i = 0; i < 20; i++) {
            uint64_t value = round * 100 + i + 1;
            call what = draw_call(&c, &random, 900);
            raise_signal(me, next_rank(me), region, 0, value, FERRY_SIGNAL_SET);
            scene_call(&c, &what);
            wait_signal(me, region, 0, FERRY_COMPARE_GE, value, previous_rank(me));
        }
        scene_close(&c);
        ferry_region_free(region);
    }
    ferry_transport_close(me->transport);
}
