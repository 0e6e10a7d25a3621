/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/form.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <string.h>

/* What the safetensors package reads at most, padding included. */
static const uint64_t MOST_HEADER_BYTES = 100000000;

enum { LENGTH_BYTES = 8, DATA_ALIGNMENT = 8 };

/* The words of safetensors files have six sizes of elements: 64, 32, 16, 8, 6 and 4 bits. */
enum { MOST_SIZES = 32 };

/* ---- one text, to be counted or written ---- */

/* The header's length stands before its text: the same functions count first and write then. */
typedef struct sink {
    fy_writer *writer; /* NULL: only counts */
    uint64_t bytes;
} sink;

static void put(sink *s, const char *bytes, size_t n_bytes)
{
    s->bytes += n_bytes;
    if (s->writer != NULL) {
        fy_write_bytes(s->writer, bytes, n_bytes);
    }
}

static void put_text(sink *s, const char *text)
{
    put(s, text, strlen(text));
}

static void put_number(sink *s, uint64_t value)
{
    char digits[20];
    char *first = digits + sizeof digits;
    do {
        *--first = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    put(s, first, (size_t)(digits + sizeof digits - first));
}

static void put_numbers(sink *s, const uint64_t *values, size_t n)
{
    put_text(s, "[");
    for (size_t i = 0; i < n; i++) {
        put(s, ",", i > 0);
        put_number(s, values[i]);
    }
    put_text(s, "]");
}

static const char HEX[] = "0123456789abcdef";

/* The short escapes where JSON has them, as the safetensors package writes; fy_write_string has
 * other habits. */
static void put_escape(sink *s, unsigned char c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *found = strchr(plain, c);
    if (found != NULL) {
        put(s, (char[]){'\\', letter[found - plain]}, 2);
    } else {
        put(s, (char[]){'\\', 'u', '0', '0', HEX[c >> 4], HEX[c & 15]}, 6);
    }
}

/* What stands between the quotes. UTF-8 is left as it is. */
static void put_inside(sink *s, const char *text)
{
    const char *plain = text;
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        put(s, plain, (size_t)(text - plain));
        put_escape(s, c);
        plain = text + 1;
    }
    put(s, plain, (size_t)(text - plain));
}

static void put_string(sink *s, const char *text)
{
    put_text(s, "\"");
    put_inside(s, text);
    put_text(s, "\"");
}

/* ---- the header ---- */

static void put_tensor(sink *s, const fy_form_tensor *tensor)
{
    const uint64_t offsets[] = {tensor->begin, tensor->begin + tensor->bytes};
    put_string(s, tensor->name);
    put_text(s, ":{\"dtype\":");
    put_string(s, tensor->dtype_text);
    put_text(s, ",\"shape\":");
    put_numbers(s, tensor->shape, tensor->n_dims);
    put_text(s, ",\"data_offsets\":");
    put_numbers(s, offsets, 2);
    put_text(s, "}");
}

static void put_checksum(sink *s, const fy_form_tensor *tensor)
{
    char digits[16];
    for (int i = 0; i < 16; i++) {
        digits[i] = HEX[(tensor->checksum >> (60 - 4 * i)) & 15];
    }
    put_text(s, "\"" FY_CHECKSUM_KEY);
    put_inside(s, tensor->name);
    put_text(s, "\":\"");
    put(s, digits, sizeof digits);
    put_text(s, "\"");
}

/* Tensors of one element size lie together. Sets where each such group begins, and behind the last
 * one where it ends; no more than MOST_SIZES groups. */
static size_t find_groups(const fy_form *form, size_t begins[MOST_SIZES + 1])
{
    size_t n = 0;
    for (size_t i = 0; i < form->n_tensors && n < MOST_SIZES; i++) {
        if (i == 0 || form->tensors[i].element_bits != form->tensors[i - 1].element_bits) {
            begins[n++] = i;
        }
    }
    begins[n] = form->n_tensors;
    return n;
}

/* By name: each group is in that order, so they are merged. */
static void put_checksums(sink *s, const fy_form *form, bool *is_first)
{
    size_t begins[MOST_SIZES + 1], at[MOST_SIZES];
    size_t n_groups = find_groups(form, begins);
    memcpy(at, begins, n_groups * sizeof *at);
    for (size_t done = 0; done < form->n_tensors; done++) {
        const fy_form_tensor *least = NULL;
        size_t from = 0;
        for (size_t g = 0; g < n_groups; g++) {
            const fy_form_tensor *next = &form->tensors[at[g]];
            if (at[g] < begins[g + 1] && (least == NULL || strcmp(next->name, least->name) < 0)) {
                least = next;
                from = g;
            }
        }
        at[from]++;
        put(s, ",", !*is_first);
        *is_first = false;
        put_checksum(s, least);
    }
}

static size_t put_entries(sink *s, const fy_form *form, size_t begin, const char *below,
                          bool *is_first)
{
    size_t i = begin;
    for (; i < form->n_metadata; i++) {
        const fy_st_entry *entry = &form->metadata[i];
        if (below != NULL && strcmp(entry->key, below) >= 0) {
            break;
        }
        put(s, ",", !*is_first);
        *is_first = false;
        put_string(s, entry->key);
        put_text(s, ":");
        put_string(s, entry->value);
    }
    return i;
}

/* All keys of checksums lie between two neighbours of the others: none of those begins like them.
 */
static void put_metadata(sink *s, const fy_form *form)
{
    bool is_first = true;
    put_text(s, "\"__metadata__\":{");
    size_t n = put_entries(s, form, 0, FY_CHECKSUM_KEY, &is_first);
    if (form->has_checksums) {
        put_checksums(s, form, &is_first);
    }
    put_entries(s, form, n, NULL, &is_first);
    put_text(s, "}");
}

static void put_header(sink *s, const fy_form *form)
{
    bool has_metadata = form->n_metadata > 0 || (form->has_checksums && form->n_tensors > 0);
    put_text(s, "{");
    if (has_metadata) {
        put_metadata(s, form);
    }
    for (size_t i = 0; i < form->n_tensors; i++) {
        put(s, ",", i > 0 || has_metadata);
        put_tensor(s, &form->tensors[i]);
    }
    put_text(s, "}");
}

/* ---- arranging ---- */

static int compare_tensors(const void *a, const void *b)
{
    const fy_form_tensor *x = a, *y = b;
    if (x->element_bits != y->element_bits) {
        return x->element_bits > y->element_bits ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/*
 * Where each tensor begins: at the end of the one before it. That is a multiple of its element's
 * size: all before it have elements that are multiples of its own, as sizes are powers of two.
 * Elements of 6 and 4 bits come last, and each tensor of them has whole bytes and begins at one. A
 * size that is no power of two, which no word of today's files has, would hold this only for its
 * own group, if that is the first.
 */
static ferry_status place_tensors(fy_form *form, const char *file_name, ferry_error *error)
{
    uint64_t at = 0;
    for (size_t i = 0; i < form->n_tensors; i++) {
        form->tensors[i].begin = at;
        if (!fy_add(at, form->tensors[i].bytes, &at) || at > INT64_MAX / 2) {
            return fy_fail(error, FERRY_ERR_LIMIT, "%s: its tensors have more than 2^62 bytes",
                           file_name);
        }
    }
    form->data_bytes = at;
    return FERRY_OK;
}

static ferry_status check_sizes(const fy_form *form, const char *file_name, ferry_error *error)
{
    size_t begins[MOST_SIZES + 1];
    size_t n = find_groups(form, begins);
    if (n == MOST_SIZES && form->tensors[begins[n - 1]].element_bits !=
                               form->tensors[form->n_tensors - 1].element_bits) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%s: its tensors have more than %d sizes of element",
                       file_name, MOST_SIZES);
    }
    return FERRY_OK;
}

/* Files have one name of their own, and readers take none that is empty. */
static ferry_status check_names(const fy_form *form, const char *file_name, ferry_error *error)
{
    for (size_t i = 0; i < form->n_tensors; i++) {
        if (form->tensors[i].name[0] == '\0') {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: the name of a tensor is empty, and would not be read; give it one",
                           file_name);
        }
        if (strcmp(form->tensors[i].name, "__metadata__") == 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: a tensor is called __metadata__, which in safetensors files is "
                           "the name of something else; give it another name",
                           file_name);
        }
    }
    return FERRY_OK;
}

ferry_status fy_form_arrange(fy_form *form, const char *file_name, ferry_error *error)
{
    fy_sort(form->tensors, form->n_tensors, sizeof *form->tensors, compare_tensors);
    FY_TRY(check_names(form, file_name, error));
    FY_TRY(check_sizes(form, file_name, error));
    FY_TRY(place_tensors(form, file_name, error));
    sink counted = {0};
    put_header(&counted, form);
    uint64_t bytes = fy_ceil_div(LENGTH_BYTES + counted.bytes, DATA_ALIGNMENT) * DATA_ALIGNMENT;
    if (bytes - LENGTH_BYTES > MOST_HEADER_BYTES) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "%s: the header of its %zu tensors takes %llu bytes, more than the %llu "
                       "that readers of safetensors files allow; spread them over more files",
                       file_name, form->n_tensors, (unsigned long long)(bytes - LENGTH_BYTES),
                       (unsigned long long)MOST_HEADER_BYTES);
    }
    form->header_bytes = bytes;
    return FERRY_OK;
}

void fy_form_write_header(const fy_form *form, fy_writer *writer)
{
    uint64_t length = form->header_bytes - LENGTH_BYTES;
    char field[LENGTH_BYTES];
    sink s = {.writer = writer};
    for (int i = 0; i < LENGTH_BYTES; i++) {
        field[i] = (char)(unsigned char)(length >> (8 * i));
    }
    fy_write_bytes(writer, field, sizeof field);
    put_header(&s, form);
    fy_write_bytes(writer, "        ", (size_t)(length - s.bytes));
}

/* ---- parts, names, the index ---- */

uint32_t fy_form_parts(const uint64_t *bytes, size_t n, uint64_t part_bytes, uint32_t *part_out)
{
    uint32_t part = 0;
    uint64_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (used > 0 && bytes[i] > 0 && (used > part_bytes || bytes[i] > part_bytes - used)) {
            part++;
            used = 0;
        }
        used += bytes[i];
        part_out[i] = part;
    }
    return part + 1;
}

void fy_form_part_name(uint32_t part, uint32_t n_parts, char *name, size_t name_bytes)
{
    if (n_parts <= 1) {
        snprintf(name, name_bytes, "%s", FY_SINGLE_NAME);
    } else {
        snprintf(name, name_bytes, "model-%05lu-of-%05lu.safetensors", part + 1ul,
                 (unsigned long)n_parts);
    }
}

void fy_form_rank_name(uint32_t rank, char *name, size_t name_bytes)
{
    snprintf(name, name_bytes, "rank-%05lu.safetensors", (unsigned long)rank);
}

typedef struct mapped {
    const char *name;
    uint32_t part;
} mapped;

static int compare_mapped(const void *a, const void *b)
{
    return strcmp(((const mapped *)a)->name, ((const mapped *)b)->name);
}

ferry_status fy_form_write_index(const char *const *names, const uint32_t *part, size_t n,
                                 uint32_t n_parts, uint64_t total_bytes, fy_writer *writer,
                                 ferry_error *error)
{
    char file[64];
    sink s = {.writer = writer};
    mapped *sorted = fy_alloc(n, sizeof *sorted);
    FY_TRY(fy_check_memory(sorted != NULL, "the index of a checkpoint", error));
    for (size_t i = 0; i < n; i++) {
        sorted[i] = (mapped){.name = names[i], .part = part[i]};
    }
    fy_sort(sorted, n, sizeof *sorted, compare_mapped);
    put_text(&s, "{\n  \"metadata\": {\n    \"total_size\": ");
    put_number(&s, total_bytes);
    put_text(&s, "\n  },\n  \"weight_map\": {");
    for (size_t i = 0; i < n; i++) {
        fy_form_part_name(sorted[i].part, n_parts, file, sizeof file);
        put_text(&s, i > 0 ? ",\n    " : "\n    ");
        put_string(&s, sorted[i].name);
        put_text(&s, ": ");
        put_string(&s, file);
    }
    put_text(&s, n > 0 ? "\n  }\n}\n" : "}\n}\n");
    fy_free(sorted);
    return FERRY_OK;
}
