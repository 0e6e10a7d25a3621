/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Parts of the tables that describe checkpoints. */
#include "checkpoint_text.h"

#include "name_text.h"
#include "steps.h"
#include "units.h"

#include <string.h>

const char *dtype_name(const char *word)
{
    static const struct {
        const char *name, *word;
    } rows[] = {
#define DTYPE_ROW(kind, number, text, safetensors, bits) {text, safetensors},
        FERRY_DTYPE_MAP(DTYPE_ROW)
#undef DTYPE_ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].word, word) == 0) {
            return rows[i].name;
        }
    }
    return word;
}

const char *format_shape(const uint64_t *shape, uint32_t n_dims, char text[SHAPE_TEXT_BYTES])
{
    size_t length = 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        length += (size_t)snprintf(text + length, SHAPE_TEXT_BYTES - length, "%s%llu",
                                   d == 0 ? "" : " x ", (unsigned long long)shape[d]);
    }
    if (n_dims == 0) {
        snprintf(text, SHAPE_TEXT_BYTES, "scalar");
    }
    return text;
}

bool row_is_shown(size_t index, size_t n, size_t most)
{
    return n <= most || index < most / 2 || index >= n - most / 2;
}

void print_gap(size_t index, size_t n, size_t most)
{
    if (n > most && index == most / 2) {
        char text[UNIT_TEXT_BYTES];
        printf("  ... %s more ...\n", format_count(n - most / 2 * 2, text));
    }
}

enum { MOST_FILES = 16 };

static void print_file(const ferry_checkpoint_file *file, bool is_sharded)
{
    char text[32], count[32];
    if (is_sharded) {
        printf("  %8u", file->rank);
    }
    printf("  %8s  %12s  ", format_count(file->n_tensors, count),
           format_bytes((double)file->bytes, text));
    print_name(stdout, file->name);
    putchar('\n');
}

ferry_status print_files(const void *of, file_at_fn at, size_t n_files, bool is_sharded,
                         ferry_error *error)
{
    printf("\nFiles:\n%s  %8s  %12s  name\n", is_sharded ? "      rank" : "", "tensors", "bytes");
    for (size_t i = 0; i < n_files; i++) {
        ferry_checkpoint_file file = FERRY_CHECKPOINT_FILE_INIT;
        if (row_is_shown(i, n_files, MOST_FILES)) {
            FY_TRY(at(of, i, &file, error));
            print_file(&file, is_sharded);
        } else {
            print_gap(i, n_files, MOST_FILES);
        }
    }
    return FERRY_OK;
}
