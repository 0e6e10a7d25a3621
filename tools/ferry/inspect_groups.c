/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a model in a few lines: model.layers.{0-31}.mlp.up_proj.weight. By sorting, so
 * that no names, however chosen, take more than n log n.
 */
#include "inspect.h"

#include "checkpoint_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 18 }; /* a longer number is text */

/* A tensor, while they are grouped. Equal keys make a group. */
typedef struct keyed {
    char *key; /* the name with {} for each number; shape; type: each with its zero */
    size_t key_bytes;
    const char *name;
    size_t index;
    uint64_t bytes;
} keyed;

/* How many digits a part of the name has that is a number: between dots, without leading zeros. */
static size_t count_digits(const char *name, const char *at)
{
    size_t n = strspn(at, "0123456789");
    bool is_part = (at == name || at[-1] == '.') && (at[n] == '.' || at[n] == '\0');
    return is_part && n > 0 && n <= MOST_DIGITS && (n == 1 || *at != '0') ? n : 0;
}

/* Returns the length without the zero; key has room for twice the name and one more. */
static size_t fold_name(const char *name, char *key)
{
    size_t length = 0;
    for (const char *at = name; *at != '\0';) {
        size_t n = count_digits(name, at);
        if (n > 0) {
            key[length++] = '{';
            key[length++] = '}';
            at += n;
        } else {
            key[length++] = *at++;
        }
    }
    key[length] = '\0';
    return length;
}

static bool make_key(const inspect_tensor *tensor, keyed *k)
{
    char shape[SHAPE_TEXT_BYTES];
    size_t name_bytes = strlen(tensor->name);
    size_t shape_bytes = strlen(format_shape(tensor->shape, tensor->n_dims, shape)) + 1;
    size_t dtype_bytes = strlen(tensor->dtype) + 1;
    char *key = malloc(2 * name_bytes + 1 + shape_bytes + dtype_bytes);
    if (key == NULL) {
        return false;
    }
    size_t length = fold_name(tensor->name, key) + 1;
    memcpy(key + length, shape, shape_bytes);
    memcpy(key + length + shape_bytes, tensor->dtype, dtype_bytes);
    k->key_bytes = length + shape_bytes + dtype_bytes;
    k->key = key;
    char *fitted = realloc(key, k->key_bytes);
    if (fitted != NULL) {
        k->key = fitted;
    }
    return true;
}

static int compare_keyed(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    size_t least = x->key_bytes < y->key_bytes ? x->key_bytes : y->key_bytes;
    int order = memcmp(x->key, y->key, least);
    if (order == 0 && x->key_bytes != y->key_bytes) {
        return x->key_bytes < y->key_bytes ? -1 : 1;
    }
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

static bool is_same_group(const keyed *a, const keyed *b)
{
    return a->key_bytes == b->key_bytes && memcmp(a->key, b->key, a->key_bytes) == 0;
}

/* ---- the numbers of a group ---- */

typedef struct range {
    uint64_t least, most;
} range;

static size_t count_numbers(const char *name)
{
    size_t n = 0;
    for (const char *at = name; *at != '\0';) {
        size_t digits = count_digits(name, at);
        n += digits > 0;
        at += digits > 0 ? digits : 1;
    }
    return n;
}

static void widen(range *ranges, const char *name, bool is_first)
{
    for (const char *at = name; *at != '\0';) {
        size_t digits = count_digits(name, at);
        if (digits > 0) {
            uint64_t value = strtoull(at, NULL, 10);
            ranges->least = is_first || value < ranges->least ? value : ranges->least;
            ranges->most = is_first || value > ranges->most ? value : ranges->most;
            ranges++;
        }
        at += digits > 0 ? digits : 1;
    }
}

/* The name of one of the group's tensors, with ranges instead of numbers; then shape and type. */
static bool write_text(inspect_group *group, const keyed *one, const range *ranges)
{
    size_t n = count_numbers(one->name);
    size_t tail_from = strlen(one->key) + 1, tail = one->key_bytes - tail_from;
    char *text = malloc(strlen(one->name) + n * 2 * (MOST_DIGITS + 2) + 1 + tail);
    if (text == NULL) {
        return false;
    }
    size_t length = 0;
    for (const char *at = one->name; *at != '\0';) {
        size_t digits = count_digits(one->name, at);
        if (digits == 0) {
            text[length++] = *at++;
            continue;
        }
        bool is_one = ranges->least == ranges->most;
        length +=
            (size_t)sprintf(text + length, is_one ? "%llu" : "{%llu-%llu}",
                            (unsigned long long)ranges->least, (unsigned long long)ranges->most);
        ranges++;
        at += digits;
    }
    text[length++] = '\0';
    memcpy(text + length, one->key + tail_from, tail);
    group->text = text;
    group->shape = text + length;
    group->dtype = group->shape + strlen(group->shape) + 1;
    return true;
}

static bool make_group(const keyed *tensors, size_t n, inspect_group *group)
{
    range *ranges = calloc(count_numbers(tensors[0].name) + 1, sizeof *ranges);
    if (ranges == NULL) {
        return false;
    }
    *group = (inspect_group){.first = tensors[0].index, .n_tensors = n};
    for (size_t i = 0; i < n; i++) {
        widen(ranges, tensors[i].name, i == 0);
        group->bytes += tensors[i].bytes;
    }
    bool done = write_text(group, &tensors[0], ranges);
    free(ranges);
    return done;
}

/* ---- all of them ---- */

static int compare_first(const void *a, const void *b)
{
    const inspect_group *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Of keys that are sorted. */
static bool make_groups(const keyed *tensors, size_t n, inspect_groups *groups)
{
    size_t n_groups = 0;
    for (size_t i = 0; i < n; i++) {
        n_groups += i == 0 || !is_same_group(&tensors[i - 1], &tensors[i]);
    }
    groups->groups = calloc(n_groups + 1, sizeof *groups->groups);
    if (groups->groups == NULL) {
        return false;
    }
    for (size_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && is_same_group(&tensors[begin], &tensors[end]); end++) {}
        if (!make_group(&tensors[begin], end - begin, &groups->groups[groups->n_groups])) {
            return false;
        }
        groups->n_groups++;
    }
    qsort(groups->groups, groups->n_groups, sizeof *groups->groups, compare_first);
    return true;
}

ferry_status inspect_group_tensors(const inspected *it, inspect_groups *groups_out,
                                   ferry_error *error)
{
    size_t n = it->n_chosen;
    inspect_groups groups = {.n_groups = 0};
    keyed *tensors = calloc(n + 1, sizeof *tensors);
    ferry_status status = tensors == NULL ? inspect_no_memory(error) : FERRY_OK;
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        inspect_tensor tensor;
        status = inspect_tensor_at(it, i, &tensor, error);
        if (status == FERRY_OK) {
            tensors[i].name = tensor.name;
            tensors[i].index = i;
            tensors[i].bytes = tensor.bytes;
            status = make_key(&tensor, &tensors[i]) ? FERRY_OK : inspect_no_memory(error);
        }
    }
    if (status == FERRY_OK) {
        qsort(tensors, n, sizeof *tensors, compare_keyed);
        status = make_groups(tensors, n, &groups) ? FERRY_OK : inspect_no_memory(error);
    }
    for (size_t i = 0; tensors != NULL && i < n; i++) {
        free(tensors[i].key);
    }
    free(tensors);
    if (status != FERRY_OK) {
        inspect_groups_free(&groups);
        return status;
    }
    *groups_out = groups;
    return FERRY_OK;
}

void inspect_groups_free(inspect_groups *groups)
{
    for (size_t i = 0; i < groups->n_groups; i++) {
        free(groups->groups[i].text);
    }
    free(groups->groups);
    *groups = (inspect_groups){.groups = NULL};
}
