/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What gathering reads, and how often; and checksums that are found on the way. */
#include "gather_case.h"

/* ---- what is read, and how often ---- */

/* A plain tensor of bytes, cut along one dimension over the first axis on both sides. */
static void case_cut(layout_case *c, const uint64_t shape[2], int from_dim, uint32_t n_from,
                     int to_dim, uint32_t n_to)
{
    uint64_t random = 7;
    *c = (layout_case){.n_tensors = 1, .is_sharded = from_dim >= 0};
    c->tensors[0] = (layout_tensor){.name = "w",
                                    .dtype = "u8",
                                    .word = "U8",
                                    .bits = 8,
                                    .n_dims = 2,
                                    .shape = {shape[0], shape[1]}};
    layout_tensor_fill(&random, &c->tensors[0]);
    if (from_dim >= 0) {
        text_printf(&c->source,
                    "'mesh':[['x',%u],['y',1]],'rules':[{'match':'w','shard':[{'dim':%d,'axis':"
                    "'x'}]}]",
                    n_from, from_dim);
    } else {
        text_printf(&c->source, "'mesh':[['file',1]],'rules':[{'match':'*'}]");
    }
    text_printf(&c->destination,
                "'mesh':[['x',%u],['y',1]],'rules':[{'match':'w','shard':[{'dim':%d,'axis':'x'}]}]",
                n_to, to_dim);
    c->has_checksums = c->is_sharded;
    assert_true(plan_case(c));
    write_source(c);
}

typedef struct cut_row {
    const char *name;
    uint64_t shape[2];
    int from_dim;
    uint32_t n_from;
    int to_dim;
    uint32_t n_to;
    uint64_t window, span;
    uint64_t most_calls; /* 0: not said */
} cut_row;

static const cut_row cuts[] = {
    {"rows of a file", {64, 96}, -1, 1, 0, 4, 512, 4096, 16},
    {"columns of a file", {64, 96}, -1, 1, 1, 4, 512, 4096, 8},
    {"columns, a span of one row", {64, 96}, -1, 1, 1, 4, 512, 384, 64},
    {"columns that are long", {4, 1 << 17}, -1, 1, 1, 4, 1 << 19, 1 << 20, 16},
    {"columns of rows", {64, 96}, 0, 4, 1, 3, 512, 4096, 8},
    {"columns of columns", {64, 96}, 1, 2, 1, 4, 512, 4096, 12},
    {"rows of columns", {64, 96}, 1, 2, 0, 4, 512, 4096, 0},
    {"rows of rows", {64, 96}, 0, 2, 0, 4, 512, 4096, 0},
};

/* Each source byte is read once, and checksums are found on the way. */
static void test_reads_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        const cut_row *row = &cuts[i];
        layout_case c;
        gathering g;
        case_cut(&c, row->shape, row->from_dim, row->n_from, row->to_dim, row->n_to);
        ferry_checkpoint *from = small_open(small_folder);
        gathering_begin(&c, from, 0, &g);
        fy_gather_cleanup(&g.gather);
        ferry_error error;
        g.most_window = row->window;
        g.most_span = row->span;
        must(fy_gather_init(&g.gather, &g.job, g.files, &g.checked, row->span, &error), &error);
        g.cells = calloc(row->n_to, sizeof *g.cells);
        assert_non_null(g.cells);
        must(fy_gather_begin(&g.gather, 0, &error), &error);
        bytes_read = calls_of_pread = 0;
        fy_grain grain = fy_grain_of(&g.job, 0, g.most_window, g.most_span);
        assert_true(fy_gather_takes_turns(&g.gather));
        gather_tensor(&g, 0, grain.dim < (uint32_t)row->to_dim); /* they need the same rows */
        uint64_t size = row->shape[0] * row->shape[1];
        check_at(bytes_read == size, "%s: %llu bytes read of %llu", row->name,
                 (unsigned long long)bytes_read, (unsigned long long)size);
        check_at(row->most_calls == 0 || calls_of_pread <= row->most_calls, "%s: %llu calls",
                 row->name, (unsigned long long)calls_of_pread);
        check_row(row->name, g.checked.n_checked == (row->from_dim < 0 ? 0 : row->n_from));
        for (uint32_t cell = 0; cell < row->n_to; cell++) {
            free(g.cells[cell]);
        }
        free(g.cells);
        gathering_end(&g);
        ferry_checkpoint_destroy(from);
        case_cleanup(&c);
    }
}

/* ---- checksums ---- */

/* What gathering all of the tensor and then the end says. */
static ferry_status gather_all(gathering *g, ferry_error *error)
{
    const fy_holders *holders = fy_problem_holders(&g->job.problem, g->job.problem.tensors[0].dst);
    fy_grain grain = fy_grain_of(&g->job, 0, g->most_window, g->most_span);
    ferry_status status = fy_gather_begin(&g->gather, 0, error);
    /* The last cell first: no checksum is found on the way then. */
    for (uint32_t cell = holders->n_cells; cell-- > 0 && status == FERRY_OK;) {
        fy_window_walk walk;
        fy_window_walk_begin(&walk, &g->job, 0, cell, &grain);
        while (status == FERRY_OK && fy_window_walk_next(&walk)) {
            char *to = malloc(walk.window.bytes);
            assert_non_null(to);
            status = fy_gather_read(&g->gather, &walk.window, to, error);
            free(to);
        }
    }
    return status == FERRY_OK ? fy_gather_end(&g->gather, error) : status;
}

static void test_damage(void **state)
{
    (void)state;
    const uint64_t shape[2] = {16, 24};
    const struct {
        const char *name;
        int from_dim, to_dim;
        uint32_t n_to;
    } rows[] = {{"in order", 0, 0, 1}, {"out of order", 0, 0, 4}, {"columns", 0, 1, 4}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (uint32_t rank = 0; rank < 3; rank++) { /* the last stays whole */
            layout_case c;
            gathering g;
            ferry_error error = {""};
            char name[40];
            case_cut(&c, shape, rows[i].from_dim, 2, rows[i].to_dim, rows[i].n_to);
            if (rank < 2) {
                snprintf(name, sizeof name, "rank-%05u.safetensors", rank);
                small_damage(small_path(name), 5);
            }
            ferry_checkpoint *from = small_open(small_folder);
            gathering_begin(&c, from, i, &g);
            ferry_status status = gather_all(&g, &error);
            check_status(rows[i].name, rank < 2 ? FERRY_ERR_DIGEST : FERRY_OK, status, &error);
            if (rank < 2) {
                check_says(rows[i].name, "\"w\"", &error);
                snprintf(name, sizeof name, "of rank %u", rank);
                check_says(rows[i].name, name, &error);
            } else {
                check_row(rows[i].name, g.checked.n_checked == 2);
            }
            gathering_end(&g);
            ferry_checkpoint_destroy(from);
            case_cleanup(&c);
        }
    }
}

/* A half of a source tensor is read, by each of two results: it is checked whole, and once. */
static void test_partly_read(void **state)
{
    (void)state;
    static const char layout[] =
        "{'mesh':[['tp',1]],'rules':[{'match':'*'}],'tensors':[{'name':'w','shape':[8],"
        "'dtype':'u8'}]}";
    static const char fed[] =
        "[{'name':'a','shape':[3],'dtype':'u8','source':[{'tensor':'w','begin':[5],'shape':[3],"
        "'at':[0]}]},{'name':'b','shape':[2],'dtype':'u8','source':[{'tensor':'w','begin':[0],"
        "'shape':[2],'at':[0]}]}]";
    for (int damaged = 0; damaged < 2; damaged++) {
        const uint64_t shape[] = {8};
        small_file file = {0};
        char pairs[64], to[8];
        ferry_error error = {""};
        gathering g = {.most_window = 64, .most_span = 4};
        small_empty();
        small_add(&file, "w", "U8", shape, 1, "abcdefgh", 8);
        snprintf(pairs, sizeof pairs, "'ferry.xxh3.w':'%016llx'",
                 (unsigned long long)fy_hash64("abcdefgh", 8));
        small_write(&file, small_path("rank-00000.safetensors"), pairs);
        small_put_text(small_path("ferry.layout.json"), layout);
        if (damaged) {
            small_damage(small_path("rank-00000.safetensors"), 5); /* neither a nor b has it */
        }
        ferry_checkpoint *from = small_open(small_folder);
        json_t *side = json_of("{'mesh':[['tp',1]],'rules':[{'match':'*'}]}");
        json_t *list = json_of(fed);
        fy_job_target target = {.name = "target", .side = side, .tensors = list};
        must(fy_job_create(from, &target, &g.job, &error), &error);
        must(fy_files_of(from, &g.files, &error), &error);
        must(fy_checked_create(from, &g.checked, &error), &error);
        must(fy_gather_init(&g.gather, &g.job, g.files, &g.checked, 4, &error), &error);
        for (uint32_t tensor = 1; tensor < 3; tensor++) {
            fy_grain grain = fy_grain_of(&g.job, tensor, 64, 4);
            fy_window_walk walk;
            must(fy_gather_begin(&g.gather, tensor, &error), &error);
            fy_window_walk_begin(&walk, &g.job, tensor, 0, &grain);
            assert_true(fy_window_walk_next(&walk));
            must(fy_gather_read(&g.gather, &walk.window, to, &error), &error);
            assert_memory_equal(to, tensor == 1 ? "fgh" : "ab", tensor == 1 ? 3 : 2);
            bytes_read = 0;
            ferry_status status = fy_gather_end(&g.gather, &error);
            assert_int_equal(status, damaged && tensor == 1 ? FERRY_ERR_DIGEST : FERRY_OK);
            assert_int_equal(bytes_read, tensor == 1 ? 8 : 0);
        }
        assert_int_equal(g.checked.n_checked, 1);
        json_decref(side);
        json_decref(list);
        gathering_end(&g);
        ferry_checkpoint_destroy(from);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_once),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_partly_read),
    };
    return cmocka_run_group_tests(tests, small_begin, small_end);
}
