/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry reshard --html: what went where, file by file. */
#include "html.h"
#include "json_text.h"
#include "reshard.h"
#include "steps.h"

#include <stdlib.h>
#include <string.h>

/* More names than these are a number. */
enum { MOST_NAMES = 4, NAMES_BYTES = 1024 };

/* A tensor, and one of the source's files that hold it, or parts of it. */
typedef struct holding {
    const char *tensor;
    uint32_t file;
} holding;

typedef struct holdings {
    holding *at; /* by name, then by file */
    size_t n;
    uint32_t n_files;
    bool *is_used; /* [n_files] of the row at hand */
} holdings;

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "no memory for what went where");
    return FERRY_ERR_NO_MEMORY;
}

static int compare_holdings(const void *a, const void *b)
{
    const holding *x = a, *y = b;
    int order = strcmp(x->tensor, y->tensor);
    return order != 0 ? order : (x->file > y->file) - (x->file < y->file);
}

static ferry_status list_holdings(const ferry_checkpoint *source, holdings *found,
                                  ferry_error *error)
{
    ferry_checkpoint_totals totals = FERRY_CHECKPOINT_TOTALS_INIT;
    size_t room = 0;
    FY_TRY(ferry_checkpoint_get_totals(source, &totals, error));
    found->n_files = (uint32_t)totals.n_files;
    for (size_t file = 0; file < totals.n_files; file++) {
        ferry_checkpoint_file one = FERRY_CHECKPOINT_FILE_INIT;
        FY_TRY(ferry_checkpoint_file_at(source, file, &one, error));
        room += one.n_tensors;
    }
    found->at = calloc(room + 1, sizeof *found->at);
    found->is_used = calloc(totals.n_files + 1, sizeof *found->is_used);
    FY_TRY(found->at == NULL || found->is_used == NULL ? fail_memory(error) : FERRY_OK);
    for (size_t file = 0; file < totals.n_files; file++) {
        ferry_checkpoint_file one = FERRY_CHECKPOINT_FILE_INIT;
        FY_TRY(ferry_checkpoint_file_at(source, file, &one, error));
        for (size_t i = 0; i < one.n_tensors; i++) {
            ferry_checkpoint_shard shard = FERRY_CHECKPOINT_SHARD_INIT;
            FY_TRY(ferry_checkpoint_shard_at(source, file, i, &shard, error));
            found->at[found->n++] = (holding){shard.tensor, (uint32_t)file};
        }
    }
    qsort(found->at, found->n, sizeof *found->at, compare_holdings);
    return FERRY_OK;
}

/* The first holding of a tensor, or n. */
static size_t find_tensor(const holdings *all, const char *tensor)
{
    size_t low = 0, high = all->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(all->at[middle].tensor, tensor) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < all->n && strcmp(all->at[low].tensor, tensor) == 0 ? low : all->n;
}

/* "a.safetensors, b.safetensors", or "a.safetensors to z.safetensors, 12 files". */
static ferry_status name_files(const holdings *all, const ferry_checkpoint *source,
                               char text[NAMES_BYTES], ferry_error *error)
{
    size_t n = 0, used = 0, first = 0, last = 0;
    ferry_checkpoint_file one = FERRY_CHECKPOINT_FILE_INIT;
    for (size_t file = 0; file < all->n_files; file++) {
        if (all->is_used[file]) {
            first = n == 0 ? file : first;
            last = file;
            n++;
        }
    }
    text[0] = '\0';
    for (size_t file = first; n > 0 && n <= MOST_NAMES && file <= last; file++) {
        if (all->is_used[file] && used < NAMES_BYTES) {
            FY_TRY(ferry_checkpoint_file_at(source, file, &one, error));
            used += (size_t)snprintf(text + used, NAMES_BYTES - used, "%s%.200s",
                                     used == 0 ? "" : ", ", one.name);
        }
    }
    if (n > MOST_NAMES) {
        ferry_checkpoint_file end = FERRY_CHECKPOINT_FILE_INIT;
        FY_TRY(ferry_checkpoint_file_at(source, first, &one, error));
        FY_TRY(ferry_checkpoint_file_at(source, last, &end, error));
        snprintf(text, NAMES_BYTES, "%.200s to %.200s, %zu files", one.name, end.name, n);
    }
    return FERRY_OK;
}

/* A file of the result: how many of its tensors the source has by this name, and in which files. */
static ferry_status put_row(FILE *file, const ferry_checkpoint *source,
                            const ferry_checkpoint *result, size_t index, holdings *all,
                            ferry_error *error)
{
    ferry_checkpoint_file one = FERRY_CHECKPOINT_FILE_INIT;
    char names[NAMES_BYTES];
    size_t n_known = 0;
    FY_TRY(ferry_checkpoint_file_at(result, index, &one, error));
    memset(all->is_used, 0, all->n_files * sizeof *all->is_used);
    for (size_t i = 0; i < one.n_tensors; i++) {
        ferry_checkpoint_shard shard = FERRY_CHECKPOINT_SHARD_INIT;
        FY_TRY(ferry_checkpoint_shard_at(result, index, i, &shard, error));
        size_t at = find_tensor(all, shard.tensor);
        n_known += at < all->n;
        for (; at < all->n && strcmp(all->at[at].tensor, shard.tensor) == 0; at++) {
            all->is_used[all->at[at].file] = true;
        }
    }
    FY_TRY(name_files(all, source, names, error));
    fputs(index == 0 ? "[" : ",\n[", file);
    write_json_text(file, one.name);
    fputs(",", file);
    write_json_text(file, names);
    fprintf(file, ",%zu,%zu]", n_known, one.n_tensors - n_known);
    return FERRY_OK;
}

ferry_status reshard_put_where(FILE *file, const ferry_checkpoint *source,
                               const ferry_checkpoint *result, ferry_error *error)
{
    static const html_column columns[] = {{"file of the result", NULL},
                                          {"its tensors lie in these files of the source", NULL},
                                          {"tensors", ""},
                                          {"under names that the source has not", ""}};
    ferry_checkpoint_totals totals = FERRY_CHECKPOINT_TOTALS_INIT;
    holdings all = {.n = 0};
    ferry_status status = ferry_checkpoint_get_totals(result, &totals, error);
    FY_THEN(status, list_holdings(source, &all, error));
    if (status == FERRY_OK) {
        html_begin_table(file, "What went where",
                         "Of a tensor that is cut, all files that hold a part of it.", columns,
                         sizeof columns / sizeof columns[0]);
    }
    for (size_t i = 0; i < totals.n_files && status == FERRY_OK; i++) {
        status = put_row(file, source, result, i, &all, error);
    }
    if (status == FERRY_OK) {
        fputs("]}}", file);
    }
    free(all.at);
    free(all.is_used);
    return status;
}
