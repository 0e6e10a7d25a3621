/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint or plan holds, for people. */
#include "inspect.h"

#include "checkpoint_text.h"
#include "name_text.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_head(const inspected *it, const inspect_request *r)
{
    const ferry_checkpoint_totals *t = &it->totals;
    char text[4][32];
    printf("%s: a %s, %s tensor%s of %s", r->path,
           it->checkpoint == NULL ? inspect_kind(it)
           : t->is_sharded        ? "sharded checkpoint"
                                  : "logical checkpoint",
           format_count(t->n_tensors, text[2]), plural(t->n_tensors),
           format_bytes((double)t->tensor_bytes, text[0]));
    if (it->checkpoint != NULL) {
        printf(" in %s file%s of %s", format_count(t->n_files, text[3]), plural(t->n_files),
               format_bytes((double)t->file_bytes, text[1]));
    }
    putchar('\n');
    if (r->subset != NULL) {
        printf("%s tensor%s of %s fit%s the patterns\n", format_count(it->n_chosen, text[2]),
               plural(it->n_chosen), format_bytes((double)it->chosen_bytes, text[0]),
               it->n_chosen == 1 ? "s" : "");
    }
}

static void print_plan(const inspect_plan *p)
{
    char digest[FERRY_DIGEST_BYTES], text[5][32];
    const ferry_plan_totals *t = &p->totals;
    uint32_t n = ferry_plan_rank_count(p->plan);
    ferry_plan_digest(p->plan, digest, sizeof digest);
    printf("%s rank%s, %s move%s: %s in all, %s between ranks, %s stay on their rank\n",
           format_count(n, text[3]), plural(n), format_count(t->n_moves, text[4]),
           plural(t->n_moves),
           format_bytes((double)t->moved_bytes + (double)t->local_bytes, text[0]),
           format_bytes((double)t->moved_bytes, text[1]),
           format_bytes((double)t->local_bytes, text[2]));
    printf("digest %s\n", digest);
}

static ferry_status file_at(const void *of, size_t index, ferry_checkpoint_file *file_out,
                            ferry_error *error)
{
    return ferry_checkpoint_file_at(of, index, file_out, error);
}

/* ---- tensors ---- */

enum { MOST_GROUPS = 64 };

static ferry_status find_widths(const inspected *it, inspect_widths *widths_out, ferry_error *error)
{
    *widths_out = (inspect_widths){.dtype = 8, .shape = 20};
    for (size_t i = 0; i < it->n_chosen; i++) {
        inspect_tensor tensor;
        char shape[SHAPE_TEXT_BYTES];
        FY_TRY(inspect_tensor_at(it, i, &tensor, error));
        int dtype = (int)strlen(tensor.dtype);
        int length = (int)strlen(format_shape(tensor.shape, tensor.n_dims, shape));
        widths_out->dtype = dtype > widths_out->dtype ? dtype : widths_out->dtype;
        widths_out->shape = length > widths_out->shape ? length : widths_out->shape;
    }
    return FERRY_OK;
}

static void print_columns(const inspect_widths *widths, uint64_t n, const char *dtype,
                          const char *shape, uint64_t bytes, const char *name)
{
    char text[32];
    if (n > 0) {
        printf("  %8s", format_count(n, text));
    }
    printf("  %-*s  %-*s  %12s  ", widths->dtype, dtype, widths->shape, shape,
           format_bytes((double)bytes, text));
    print_name(stdout, name);
    putchar('\n');
}

static void print_groups(const inspect_groups *groups, const inspect_widths *widths)
{
    printf("\nTensors:\n     count  %-*s  %-*s  %12s  name\n", widths->dtype, "dtype",
           widths->shape, "shape", "bytes");
    for (size_t i = 0; i < groups->n_groups; i++) {
        const inspect_group *g = &groups->groups[i];
        if (row_is_shown(i, groups->n_groups, MOST_GROUPS)) {
            print_columns(widths, g->n_tensors, g->dtype, g->shape, g->bytes, g->text);
        } else {
            print_gap(i, groups->n_groups, MOST_GROUPS);
        }
    }
}

static ferry_status print_tensors(const inspected *it, const inspect_widths *widths,
                                  ferry_error *error)
{
    printf("\nTensors:\n  %-*s  %-*s  %12s  name\n", widths->dtype, "dtype", widths->shape, "shape",
           "bytes");
    for (size_t i = 0; i < it->n_chosen; i++) {
        inspect_tensor tensor;
        char shape[SHAPE_TEXT_BYTES];
        FY_TRY(inspect_tensor_at(it, i, &tensor, error));
        print_columns(widths, 0, tensor.dtype, format_shape(tensor.shape, tensor.n_dims, shape),
                      tensor.bytes, tensor.name);
    }
    return FERRY_OK;
}

/* ---- types ---- */

static int compare_dtype(const void *a, const void *b)
{
    const inspect_group *x = a, *y = b;
    return strcmp(x->dtype, y->dtype);
}

/* The groups lose their order. */
static void print_dtypes(inspect_groups *groups)
{
    inspect_group *g = groups->groups;
    printf("\nTypes:\n     count  %12s  dtype\n", "bytes");
    qsort(g, groups->n_groups, sizeof *g, compare_dtype);
    for (size_t i = 0, end; i < groups->n_groups; i = end) {
        uint64_t n = 0, bytes = 0;
        char text[32], count[32];
        for (end = i; end < groups->n_groups && strcmp(g[end].dtype, g[i].dtype) == 0; end++) {
            n += g[end].n_tensors;
            bytes += g[end].bytes;
        }
        printf("  %8s  %12s  %s\n", format_count(n, count), format_bytes((double)bytes, text),
               g[i].dtype);
    }
}

static ferry_status print_all_tensors(const inspected *it, const inspect_request *r,
                                      inspect_groups *groups, ferry_error *error)
{
    inspect_widths widths;
    if (it->totals.n_tensors == 0) {
        return FERRY_OK;
    }
    FY_TRY(find_widths(it, &widths, error));
    if (it->stats != NULL) {
        FY_TRY(inspect_print_stats(it, &widths, error));
    } else if (r->tensors) {
        FY_TRY(print_tensors(it, &widths, error));
    } else {
        print_groups(groups, &widths);
    }
    print_dtypes(groups);
    return FERRY_OK;
}

static ferry_status print_parts(const inspected *it, const inspect_request *r,
                                inspect_groups *groups, ferry_error *error)
{
    if (it->checkpoint == NULL) {
        print_plan(it->plan);
        return print_all_tensors(it, r, groups, error);
    }
    FY_TRY(print_files(it->checkpoint, file_at, it->totals.n_files, it->totals.is_sharded, error));
    FY_TRY(print_all_tensors(it, r, groups, error));
    FY_TRY(inspect_print_about(it, r, error));
    if (it->totals.is_sharded) {
        FY_TRY(inspect_print_layout(it->checkpoint, error));
    }
    return FERRY_OK;
}

ferry_status inspect_print_table(const inspected *it, const inspect_request *request,
                                 ferry_error *error)
{
    inspect_groups groups;
    FY_TRY(inspect_group_tensors(it, &groups, error));
    print_head(it, request);
    ferry_status status = print_parts(it, request, &groups, error);
    inspect_groups_free(&groups);
    return status;
}
