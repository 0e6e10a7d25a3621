/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/map_name.h"

#include "base/sort.h"

#include <string.h>

enum { MOST_DIGITS = 18 };

static uint64_t value_of(const char *text, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    return value;
}

/* What it points to lies in the arena; false: there is no memory. */
static bool read_name(fy_arena *arena, const fy_tensor *tensor, fy_map_name *name_out)
{
    uint64_t found[FY_MAP_MOST_NUMBERS];
    uint32_t n_found = 0;
    size_t used = 0;
    const char *name = tensor->name;
    char *text = fy_arena_alloc(arena, strlen(name) + 1, 1);
    bool has_mark = strchr(name, FY_MAP_NUMBER) != NULL; /* then it is all text */
    if (text == NULL) {
        return false;
    }
    for (const char *at = name; *at != '\0';) {
        size_t n = strspn(at, "0123456789");
        if (n > 0 && n <= MOST_DIGITS && (n == 1 || *at != '0') && !has_mark &&
            n_found < FY_MAP_MOST_NUMBERS) {
            found[n_found++] = value_of(at, n);
            text[used++] = FY_MAP_NUMBER;
            at += n;
            continue;
        }
        n = n == 0 ? 1 : n; /* of digits that are text, all */
        memcpy(text + used, at, n);
        used += n;
        at += n;
    }
    text[used] = '\0';
    uint64_t *numbers = fy_arena_alloc(arena, n_found, sizeof *numbers);
    if (numbers == NULL) {
        return false;
    }
    memcpy(numbers, found, n_found * sizeof *numbers);
    *name_out = (fy_map_name){
        .name = name, .text = text, .tensor = tensor, .n_numbers = n_found, .numbers = numbers};
    return true;
}

bool fy_map_name_is_alike(const fy_map_name *a, const fy_map_name *b)
{
    return a->n_numbers == b->n_numbers && strcmp(a->text, b->text) == 0;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int compare_two(uint64_t x, uint64_t y)
{
    return (x > y) - (x < y);
}

/* All but the numbers: 0 for tensors that one entry of a file may stand for. */
static int compare_kinds(const fy_map_name *a, const fy_map_name *b)
{
    const fy_tensor *x = a->tensor, *y = b->tensor;
    int order = strcmp(a->text, b->text);
    order = order != 0 ? order : compare_two(a->n_numbers, b->n_numbers);
    order = order != 0 ? order : compare_two(x->dtype.kind, y->dtype.kind);
    order = order != 0 ? order : compare_two(x->dtype.element_bits, y->dtype.element_bits);
    order = order != 0 ? order : compare_two(x->n_dims, y->n_dims);
    for (uint32_t d = 0; order == 0 && d < x->n_dims; d++) {
        order = compare_two(x->shape[d], y->shape[d]);
    }
    return order;
}

static int compare_names(const void *a, const void *b)
{
    const fy_map_name *x = a, *y = b;
    int order = compare_kinds(x, y);
    for (uint32_t i = 0; order == 0 && i < x->n_numbers; i++) {
        uint32_t at = x->places == NULL ? i : x->places[i];
        order = compare_two(x->numbers[at], y->numbers[at]);
    }
    return order != 0 ? order : strcmp(x->name, y->name);
}

/* Whether the values of a number are not all from the least to the greatest. */
static bool has_gaps(const fy_map_name *names, uint32_t n, uint32_t number, uint64_t *values)
{
    uint64_t n_values = 1;
    for (uint32_t i = 0; i < n; i++) {
        values[i] = names[i].numbers[number];
    }
    fy_sort(values, n, sizeof *values, compare_u64);
    for (uint32_t i = 1; i < n; i++) {
        n_values += values[i] != values[i - 1];
    }
    return values[n - 1] - values[0] != n_values - 1;
}

/* Orders n alike tensors: numbers with gaps count first. */
static bool sort_alike(fy_arena *arena, fy_map_name *names, uint32_t n, uint64_t *values)
{
    uint32_t n_numbers = names[0].n_numbers, n_placed = 0;
    bool gaps[FY_MAP_MOST_NUMBERS];
    unsigned char *places = fy_arena_alloc(arena, n_numbers, 1);
    if (places == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < n_numbers; i++) {
        gaps[i] = has_gaps(names, n, i, values);
    }
    for (int with = 1; with >= 0; with--) {
        for (uint32_t i = 0; i < n_numbers; i++) {
            if (gaps[i] == (with == 1)) {
                places[n_placed++] = (unsigned char)i;
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        names[i].places = places;
    }
    fy_sort(names, n, sizeof *names, compare_names);
    return true;
}

ferry_status fy_map_names_sort(fy_arena *arena, const fy_tensor *tensors, uint32_t n,
                               fy_map_name *names_out, ferry_error *error)
{
    uint64_t *values = fy_alloc(n, sizeof *values);
    bool enough = values != NULL;
    for (uint32_t i = 0; i < n && enough; i++) {
        enough = read_name(arena, &tensors[i], &names_out[i]);
    }
    if (enough) {
        fy_sort(names_out, n, sizeof *names_out, compare_names);
    }
    for (uint32_t i = 0, end; i < n && enough; i = end) {
        for (end = i + 1; end < n && compare_kinds(&names_out[i], &names_out[end]) == 0; end++) {}
        enough = sort_alike(arena, &names_out[i], end - i, values);
    }
    fy_free(values);
    return fy_check_memory(enough, "the names of a map", error);
}
