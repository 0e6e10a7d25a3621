/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/window.h"

#include "support/small_checkpoint.h"
#include "support/spec.h"

/* A job that brings one tensor of a file to the layout of a rule; NULL where half bytes forbid. */
typedef struct bench {
    ferry_checkpoint *from;
    fy_layout_job job;
    bool is_made;
} bench;

typedef struct kind {
    const char *dtype; /* as files say it */
    uint32_t bits;
} kind;

static bench bench_of(const kind *k, const uint64_t *shape, uint32_t n_dims, const char *rule)
{
    bench b = {0};
    small_file file = {0};
    uint64_t n = 1;
    ferry_error error = {""};
    char quoted[300];
    static char zeros[1 << 16];
    json_error_t at;
    for (uint32_t d = 0; d < n_dims; d++) {
        n *= shape[d];
    }
    assert_true(n * k->bits / 8 <= sizeof zeros);
    small_add(&file, "w", k->dtype, shape, n_dims, zeros, n * k->bits / 8);
    small_write(&file, small_path("w.safetensors"), NULL);
    snprintf(quoted, sizeof quoted, "{'mesh':[['x',2],['y',3]],'rules':[{'match':'*'%s}]}", rule);
    unquote(quoted);
    json_t *side = json_loads(quoted, 0, &at);
    fy_job_target target = {.name = "target", .side = side};
    assert_non_null(side);
    b.from = small_open(small_path("w.safetensors"));
    ferry_status status = fy_job_create(b.from, &target, &b.job, &error);
    b.is_made = status == FERRY_OK;
    if (!b.is_made && (status != FERRY_ERR_INVALID_PLAN || k->bits >= 8)) {
        fail_msg("%s: %s", quoted, error.message);
    }
    json_decref(side);
    return b;
}

static void bench_cleanup(bench *b)
{
    if (b->is_made) {
        fy_job_cleanup(&b->job);
    }
    ferry_checkpoint_destroy(b->from);
}

/* The elements of a window's boxes, which must follow each other in row-major order. */
static void check_boxes(const fy_window *w, uint32_t n_dims, uint32_t bits)
{
    uint64_t at = w->flat_begin + w->first;
    for (size_t b = 0; b < w->n_boxes; b++) {
        const fy_box *box = &w->boxes[b];
        uint64_t n = 1, offset = 0, pitch = 1, run = 1;
        bool is_run = true;
        for (uint32_t d = n_dims; d-- > 0;) {
            assert_true(box->length[d] > 0 && box->begin[d] + box->length[d] <= w->shape[d]);
            offset += box->begin[d] * pitch;
            pitch *= w->shape[d];
            n *= box->length[d];
            run = is_run ? run * box->length[d] : run;
            assert_true(is_run || box->length[d] == 1); /* it is a stretch */
            is_run = is_run && box->length[d] == w->shape[d];
        }
        assert_true(offset == at && run == n);
        assert_true((at - w->flat_begin) * bits % 8 == 0);
        assert_true(n * bits % 8 == 0 || b + 1 == w->n_boxes);
        at += n;
    }
    assert_true(at == w->flat_begin + w->first + w->n_elements);
}

/* All windows of all cells: they tile, begin on bytes, and are not too large. */
static void check_windows(const bench *b, uint32_t bits, uint64_t most_bytes, uint64_t most_span,
                          bool *has_many)
{
    const fy_layout_job *job = &b->job;
    const fy_tensor *t = &job->problem.tensors[0];
    const fy_layout *layout = &job->problem.placements[t->dst].layout;
    const fy_holders *holders = fy_problem_holders(&job->problem, t->dst);
    fy_grain grain = fy_grain_of(job, 0, most_bytes, most_span);
    for (uint32_t cell = 0; cell < holders->n_cells; cell++) {
        fy_window_walk walk;
        uint64_t shape[FERRY_MAX_DIMS], next = 0;
        uint32_t n_dims;
        uint64_t total = fy_placement_shape(&job->problem, t->dst, cell, &n_dims, shape);
        fy_window_walk_begin(&walk, job, 0, cell, &grain);
        while (fy_window_walk_next(&walk)) {
            const fy_window *w = &walk.window;
            assert_true(w->tensor == 0 && w->cell == cell);
            assert_true(w->first == next && w->n_elements > 0);
            assert_true(w->bytes == (w->n_elements * bits + 7) / 8);
            assert_true(w->first * bits % 8 == 0);
            check_boxes(w, layout->n_dims, bits);
            /* One element, or two rows of half bytes, may be more than was asked for. */
            assert_true(w->bytes <= most_bytes || w->n_elements == 1 || bits < 8);
            assert_true(w->bytes <= most_span || w->n_elements <= walk.row || bits < 8 ||
                        layout->n_flat != 0);
            next += w->n_elements;
            *has_many = *has_many || next < total;
        }
        assert_true(next == total);
        assert_false(fy_window_walk_next(&walk));
    }
}

static const char *const rules[] = {
    "",
    ",'shard':[{'dim':0,'axis':'x'}]",
    ",'shard':[{'dim':0,'axis':['x','y']}]",
    ",'shard':[{'dim':0,'axis':'x','cycle':1}]",
    ",'flat':{'axis':'y'}",
    ",'shard':[{'dim':0,'axis':'x'}],'flat':{'axis':'y'}",
    ",'shard':[{'dim':1,'axis':'y'}]",
    ",'shard':[{'dim':1,'axis':'y'},{'dim':0,'axis':'x'}]",
    ",'shard':[{'dim':1,'axis':'x'}],'flat':{'axis':'y'}",
    ",'shard':[{'dim':2,'axis':'y'},{'dim':1,'axis':'x'}]",
};

static const kind kinds[] = {{"U8", 8}, {"F32", 32}, {"C64", 64}, {"F4", 4}};

/* A shape under every rule that fits it. */
static void check_shape(const uint64_t *shape, uint32_t n_dims, bool *has_many)
{
    static const uint64_t sizes[] = {1, 2, 5, 16, 1000};
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        uint64_t n = 1;
        for (uint32_t d = 0; d < n_dims; d++) {
            n *= shape[d];
        }
        if (n * kinds[k].bits % 8 != 0) {
            continue;
        }
        for (size_t r = 0; r < COUNT_OF(rules); r++) {
            uint32_t needs = r == 0 ? 0 : r < 6 ? 1 : r < 9 ? 2 : 3;
            if (needs > n_dims) {
                continue;
            }
            bench b = bench_of(&kinds[k], shape, n_dims, rules[r]);
            for (size_t i = 0; i < COUNT_OF(sizes) && b.is_made; i++) {
                check_windows(&b, kinds[k].bits, sizes[i], 1000, has_many);
                check_windows(&b, kinds[k].bits, 1000, sizes[i], has_many);
            }
            bench_cleanup(&b);
        }
    }
}

static void test_tiling(void **state)
{
    (void)state;
    bool has_many = false;
    for (uint32_t n_dims = 0; n_dims <= 4; n_dims++) {
        uint64_t shape[4] = {0};
        uint64_t most = n_dims <= 2 ? 5 : n_dims == 3 ? 3 : 2;
        for (;;) {
            check_shape(shape, n_dims, &has_many);
            uint32_t d = n_dims;
            while (d > 0 && ++shape[d - 1] > most) {
                shape[--d] = 0;
            }
            if (d == 0) {
                break;
            }
        }
    }
    assert_true(has_many);
}

/* Windows are as large as they may be: rows of the first dimension that lets some fit. */
static void test_grain(void **state)
{
    (void)state;
    const struct {
        const char *name;
        uint64_t shape[3];
        uint64_t bytes, span;
        uint32_t dim;
        uint64_t rows;
    } table[] = {
        {"all of it", {4, 6, 8}, 192, 1000, 0, 4},
        {"some rows", {4, 6, 8}, 191, 1000, 0, 3},
        {"one row", {4, 6, 8}, 48, 1000, 0, 1},
        {"rows of the second", {4, 6, 8}, 47, 1000, 1, 5},
        {"elements", {4, 6, 8}, 7, 1000, 2, 7},
        {"less than one", {4, 6, 8}, 0, 1000, 2, 1},
        {"a short span", {4, 6, 8}, 192, 100, 0, 2},
        {"no span", {4, 6, 8}, 192, 0, 0, 1},
    };
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        bench b = bench_of(&kinds[0], table[i].shape, 3, "");
        fy_grain grain = fy_grain_of(&b.job, 0, table[i].bytes, table[i].span);
        check_at(grain.dim == table[i].dim && grain.rows == table[i].rows, "%s: %llu rows of %u",
                 table[i].name, (unsigned long long)grain.rows, grain.dim);
        bench_cleanup(&b);
    }
}

/* What ferry cannot cut travels as bytes, which windows may cut. */
static void test_opaque(void **state)
{
    (void)state;
    const uint64_t shape[] = {5, 8};
    const kind opaque = {"F6_E2M3", 6}, bytes = {"U8", 8};
    bench b = bench_of(&opaque, shape, 2, "");
    bool has_many = false;
    for (uint64_t most = 1; most < 40; most++) {
        check_windows(&b, bytes.bits, most, 1000, &has_many);
    }
    assert_true(has_many);
    bench_cleanup(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiling),
        cmocka_unit_test(test_grain),
        cmocka_unit_test(test_opaque),
    };
    return cmocka_run_group_tests(tests, small_begin, small_end);
}
