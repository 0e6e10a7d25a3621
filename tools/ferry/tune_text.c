/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What `ferry tune` prints. */
#include "tune.h"

#include "bench.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tune_table_free(tune_table *table)
{
    free(table->timings);
    table->timings = NULL;
    table->n = 0;
}

/* ---- for people ---- */

/* "fused-waits-multicast" stands as "waits" above "multicast", "base-tp-dp" as "base" and "tp-dp".
 */
static void split_mode(uint32_t mode, char first[24], const char **second_out)
{
    const char *name = ferry_mixed_mode_name(mode);
    name += strncmp(name, "fused-", 6) == 0 ? 6 : 0;
    size_t length = strcspn(name, "-");
    snprintf(first, 24, "%.*s", (int)length, name);
    *second_out = name[length] == '-' ? name + length + 1 : "";
}

/* Modes that an operation was measured in; timings are those of the operation. */
static size_t list_modes(const ferry_mixed_timing *timings, size_t n,
                         uint32_t modes_out[FERRY_MIXED_N_MODES])
{
    size_t n_modes = 0;
    for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
        for (size_t i = 0; i < n; i++) {
            if (timings[i].mode == mode) {
                modes_out[n_modes++] = mode;
                break;
            }
        }
    }
    return n_modes;
}

static void print_head(uint32_t op, const uint32_t *modes, size_t n_modes)
{
    char first[24];
    const char *second;
    printf("\n%s\n  %10s", ferry_mixed_op_name(op), "size");
    for (size_t i = 0; i < n_modes; i++) {
        split_mode(modes[i], first, &second);
        printf(" %11s  ", first);
    }
    printf(" %9s\n  %10s", "block", "");
    for (size_t i = 0; i < n_modes; i++) {
        split_mode(modes[i], first, &second);
        printf(" %11s  ", second);
    }
    putchar('\n');
}

static void print_cell(const ferry_mixed_timing *timing)
{
    if (timing == NULL || !(timing->seconds > 0)) {
        printf(" %11s  ", "-");
    } else {
        char text[UNIT_TEXT_BYTES];
        printf(" %11s %c", format_seconds(timing->seconds, text), timing->chosen ? '*' : ' ');
    }
}

/* timings are those of an operation and a size. */
static void print_row(const ferry_mixed_timing *timings, size_t n, const uint32_t *modes,
                      size_t n_modes)
{
    char size[32], block[16] = "-";
    uint32_t lines = 0;
    printf("  %10s", bench_size_text(timings[0].bytes, size));
    for (size_t k = 0; k < n_modes; k++) {
        const ferry_mixed_timing *found = NULL;
        for (size_t i = 0; i < n; i++) {
            found = timings[i].mode == modes[k] ? &timings[i] : found;
        }
        print_cell(found);
        lines = found != NULL && found->chosen ? found->block_lines : lines;
    }
    if (lines != 0) {
        snprintf(block, sizeof block, "%u", lines);
    }
    printf(" %9s\n", block);
}

/* How many from the first on are of its operation; with_size: and of its size. */
static size_t run_length(const ferry_mixed_timing *timings, size_t n, bool with_size)
{
    size_t length = 0;
    while (length < n && timings[length].op == timings[0].op &&
           (!with_size || timings[length].bytes == timings[0].bytes)) {
        length++;
    }
    return length;
}

static void print_op(const ferry_mixed_timing *timings, size_t n)
{
    uint32_t modes[FERRY_MIXED_N_MODES];
    size_t n_modes = list_modes(timings, n, modes);
    print_head(timings[0].op, modes, n_modes);
    for (size_t at = 0; at < n;) {
        size_t length = run_length(timings + at, n - at, true);
        print_row(timings + at, length, modes, n_modes);
        at += length;
    }
}

void tune_print_table(const tune_table *table)
{
    mixed_print_handle(&table->info, "");
    printf(
        "Times of a call, of the rank where it is longest; - was far behind. * is the mode that\n"
        "programs take: the fastest, or the one of the size above it where none is 3 %% faster.\n"
        "Block is what that one was fastest with, in lines of 64 bytes; - is the default\n");
    for (size_t at = 0; at < table->n;) {
        size_t length = run_length(table->timings + at, table->n - at, false);
        print_op(table->timings + at, length);
        at += length;
    }
}

/* ---- for machines ---- */

void tune_print_json(const tune_table *table)
{
    printf("{\"format\":\"ferry.tuning/1\",");
    mixed_print_handle_json(&table->info);
    printf(",\"timings\":[");
    for (size_t i = 0; i < table->n; i++) {
        const ferry_mixed_timing *t = &table->timings[i];
        printf("%s\n{\"op\":\"%s\",\"bytes\":%llu,\"mode\":\"%s\",\"block_size\":%u,"
               "\"seconds\":%.17g,\"chosen\":%s}",
               i > 0 ? "," : "", ferry_mixed_op_name(t->op), (unsigned long long)t->bytes,
               ferry_mixed_mode_name(t->mode), t->block_lines, t->seconds,
               t->chosen ? "true" : "false");
    }
    printf("\n]}\n");
}
