/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_GATHER_CASE_H
#define FERRY_TESTS_GATHER_CASE_H

/* Tensors, the files of a source that holds them, a destination, and gathering from one to the
 * other. */
#include "checkpoint/verify.h"

#include "support/layouts.h"
#include "support/small_checkpoint.h"

#include <sys/syscall.h>
#include <unistd.h>

/* Reads of data pass here: headers are read otherwise. */
static uint64_t bytes_read, calls_of_pread;

ssize_t pread(int descriptor, void *bytes, size_t n_bytes, off_t offset)
{
    ssize_t n = syscall(SYS_pread64, descriptor, bytes, n_bytes, offset);
    bytes_read += n > 0 ? (uint64_t)n : 0;
    calls_of_pread++;
    return n;
}

/* ---- a case: tensors, a source on disk, a destination ---- */

typedef struct layout_case {
    uint64_t seed;
    size_t n_tensors;
    layout_tensor tensors[LAYOUT_MOST_TENSORS];
    size_t n_fused; /* 0, or 2: the last tensor is tensors 0 and 1 behind each other */
    bool is_sharded;
    bool has_checksums;
    text_buffer source, destination; /* quoted members of the sides */
    text_buffer list;                /* of tensors in the files */
    text_buffer fused;               /* the entry of the fused one */
    ferry_plan *plan;
} layout_case;

static inline void case_cleanup(layout_case *c)
{
    for (size_t i = 0; i < c->n_tensors; i++) {
        free(c->tensors[i].bytes);
    }
    text_cleanup(&c->source);
    text_cleanup(&c->destination);
    text_cleanup(&c->list);
    text_cleanup(&c->fused);
    ferry_plan_destroy(c->plan);
}

static inline bool plan_case(layout_case *c)
{
    text_buffer text = {0};
    ferry_spec *spec = NULL;
    ferry_error error;
    ferry_status status;
    for (size_t i = 0; i < c->n_tensors - c->n_fused / 2; i++) {
        if (i > 0) {
            text_printf(&c->list, ",");
        }
        layout_tensor_print(&c->list, &c->tensors[i]);
    }
    text_printf(&text, "{'format':'ferry.spec/1','tensors':[%s%s%s],'source':{%s},", c->list.bytes,
                c->n_fused > 0 ? "," : "", c->n_fused > 0 ? c->fused.bytes : "", c->source.bytes);
    text_printf(&text, "'destination':{%s}}", c->destination.bytes);
    status = try_spec(text.bytes, &spec, &error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, NULL, &c->plan, &error);
    }
    check_at(status == FERRY_OK || status == FERRY_ERR_INVALID_INPUT ||
                 status == FERRY_ERR_INVALID_PLAN,
             "seed %llu: %s: %s\n%s", (unsigned long long)c->seed, ferry_status_name(status),
             error.message, text.bytes);
    ferry_spec_destroy(spec);
    text_cleanup(&text);
    return status == FERRY_OK;
}

/* ---- its files ---- */

static const layout_tensor *tensor_named(const layout_case *c, const char *name)
{
    for (size_t i = 0; i < c->n_tensors; i++) {
        if (strcmp(c->tensors[i].name, name) == 0) {
            return &c->tensors[i];
        }
    }
    fail_msg("no tensor \"%s\"", name);
    return NULL;
}

typedef struct rank_file {
    const layout_case *layouts;
    small_file file;
    text_buffer checksums;
} rank_file;

static inline ferry_status add_shard(void *context, const ferry_shard *shard)
{
    rank_file *f = context;
    const layout_tensor *t = tensor_named(f->layouts, shard->tensor);
    unsigned char *bytes = layout_shard_bytes(t, shard);
    uint64_t flat = shard->flat_end - shard->flat_begin;
    small_add(&f->file, t->name, t->word, shard->is_flat ? &flat : shard->local,
              shard->is_flat ? 1 : shard->n_dims, bytes, shard->bytes);
    text_printf(&f->checksums, "%s'ferry.xxh3.%s':'%016llx'", f->checksums.used > 0 ? "," : "",
                t->name, (unsigned long long)fy_hash64(bytes, shard->bytes));
    free(bytes);
    return FERRY_OK;
}

static inline void write_source(const layout_case *c)
{
    text_buffer layout = {0};
    ferry_error error;
    small_empty();
    if (!c->is_sharded) {
        small_file file = {0};
        for (size_t i = 0; i < c->n_tensors - c->n_fused / 2; i++) {
            const layout_tensor *t = &c->tensors[i];
            small_add(&file, t->name, t->word, t->shape, t->n_dims, t->bytes,
                      layout_bytes(t->n_elements, t->bits));
        }
        small_write(&file, small_path("model.safetensors"), NULL);
        return;
    }
    unsigned x, y;
    assert_int_equal(sscanf(c->source.bytes, "'mesh':[['x',%u],['y',%u]]", &x, &y), 2);
    for (uint32_t rank = 0; rank < x * y; rank++) {
        char name[40];
        rank_file f = {.layouts = c};
        must(ferry_plan_visit_shards(c->plan, FERRY_SIDE_SOURCE, rank, add_shard, &f, &error),
             &error);
        snprintf(name, sizeof name, "rank-%05u.safetensors", rank);
        small_write(&f.file, small_path(name), c->has_checksums ? f.checksums.bytes : NULL);
        text_cleanup(&f.checksums);
    }
    text_printf(&layout, "{'format':'ferry.layout/1',%s,'tensors':[%s]}", c->source.bytes,
                c->list.bytes);
    small_put_text(small_path("ferry.layout.json"), layout.bytes);
    text_cleanup(&layout);
}

static inline json_t *json_of(const char *quoted)
{
    char *text = strdup(quoted);
    assert_non_null(text);
    unquote(text);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    free(text);
    return json;
}

/* ---- gathering ---- */

typedef struct gathering {
    const layout_case *layouts;
    fy_layout_job job;
    fy_files *files;
    fy_checked checked;
    fy_gather gather;
    uint64_t most_window, most_span;
    unsigned char **cells; /* of a tensor: its bytes by cell */
} gathering;

static inline void gathering_begin(const layout_case *c, const ferry_checkpoint *from,
                                   uint64_t random, gathering *g)
{
    static const uint64_t sizes[] = {1, 7, 16, 64, 200, 4096, 1 << 20};
    text_buffer text = {0};
    ferry_error error;
    fy_job_target target = {.name = "target"};
    *g = (gathering){.layouts = c,
                     .most_window = sizes[random_below(&random, COUNT_OF(sizes))],
                     .most_span = sizes[random_below(&random, COUNT_OF(sizes))]};
    text_printf(&text, "{%s}", c->destination.bytes);
    json_t *side = json_of(text.bytes), *tensors = NULL;
    text_cleanup(&text);
    if (c->n_fused > 0) {
        text_printf(&text, "[%s,%s]", c->list.bytes, c->fused.bytes);
        tensors = json_of(text.bytes);
        text_cleanup(&text);
    }
    target.side = side;
    target.tensors = tensors;
    must(fy_job_create(from, &target, &g->job, &error), &error);
    must(fy_files_of(from, &g->files, &error), &error);
    must(fy_checked_create(from, &g->checked, &error), &error);
    must(fy_gather_init(&g->gather, &g->job, g->files, &g->checked, g->most_span, &error), &error);
    json_decref(side);
    json_decref(tensors);
}

static inline void gathering_end(gathering *g)
{
    fy_gather_cleanup(&g->gather);
    fy_checked_cleanup(&g->checked);
    fy_files_destroy(g->files);
    fy_job_cleanup(&g->job);
}

/* One window into the memory of its cell, with guards beside it. */
static inline void gather_window(gathering *g, const fy_window *w, uint64_t at)
{
    ferry_error error;
    unsigned char *to = malloc(w->bytes + 16);
    assert_non_null(to);
    memset(to, 0x5a, w->bytes + 16);
    must(fy_gather_read(&g->gather, w, (char *)to + 8, &error), &error);
    for (int i = 0; i < 8; i++) {
        assert_true(to[i] == 0x5a && to[w->bytes + 8 + (size_t)i] == 0x5a);
    }
    if (g->gather.is_whole) { /* then it is there */
        char *same = malloc(w->bytes + 1);
        uint64_t so_far = bytes_read, calls = calls_of_pread;
        assert_non_null(same);
        must(fy_files_read(g->files, g->gather.whole_file, g->gather.whole_offset, same, w->bytes,
                           &error),
             &error);
        assert_memory_equal(same, to + 8, w->bytes);
        free(same);
        bytes_read = so_far;
        calls_of_pread = calls;
    }
    memcpy(g->cells[w->cell] + at, to + 8, w->bytes);
    free(to);
}

/* All cells, one after the other or in turns; each window must follow the one before it. */
static inline void gather_tensor(gathering *g, uint32_t tensor, bool in_turns)
{
    const fy_tensor *t = &g->job.problem.tensors[tensor];
    const fy_holders *holders = fy_problem_holders(&g->job.problem, t->dst);
    fy_grain grain = fy_grain_of(&g->job, tensor, g->most_window, g->most_span);
    fy_window_walk *walks = calloc(holders->n_cells, sizeof *walks);
    uint64_t *next = calloc(holders->n_cells, sizeof *next);
    ferry_error error;
    assert_true(walks != NULL && next != NULL);
    must(fy_gather_begin(&g->gather, tensor, &error), &error);
    for (uint32_t cell = 0; cell < holders->n_cells; cell++) {
        fy_window_walk_begin(&walks[cell], &g->job, tensor, cell, &grain);
        g->cells[cell] = calloc(fy_bytes(walks[cell].end, t->dtype.element_bits) + 1, 1);
        assert_non_null(g->cells[cell]);
    }
    for (uint32_t n_left = holders->n_cells, cell = 0; n_left > 0; cell %= holders->n_cells) {
        fy_window *w = &walks[cell].window;
        bool ended = next[cell] == UINT64_MAX;
        if (!ended && fy_holders_cell_size(holders, cell) > 0 &&
            fy_window_walk_next(&walks[cell])) {
            assert_true(w->cell == cell && w->first == next[cell] && w->n_elements > 0);
            gather_window(g, w, fy_bytes(w->first, t->dtype.element_bits));
            next[cell] = w->first + w->n_elements;
            cell += in_turns;
        } else {
            n_left -= !ended;
            next[cell] = UINT64_MAX;
            cell++;
        }
    }
    must(fy_gather_end(&g->gather, &error), &error);
    free(walks);
    free(next);
}

#endif
