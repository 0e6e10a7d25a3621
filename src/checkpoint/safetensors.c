/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The text of a safetensors header: its entries, its metadata, and whether they fit the data. */
#include "checkpoint/safetensors.h"

#include "base/hash.h"
#include "base/sort.h"
#include "checkpoint/st_dtype.h"
#include "checkpoint/st_json.h"

#include <string.h>

enum {
    /* The format has some twenty; the limit keeps a hostile header from making one per tensor. */
    MOST_WORDS = 64,
    /* Shapes are taken from the arena by so many numbers at once. */
    SHAPE_ROOM = 512,
};

typedef struct parse {
    fy_st_cursor cursor;
    fy_st_header *header;
    bool has_metadata;
    fy_st_word words[MOST_WORDS];
    size_t n_words;
    size_t last_word;
    uint64_t *room; /* for shapes */
    size_t room_left;
} parse;

void fy_st_cleanup(fy_st_header *header)
{
    fy_arena_cleanup(&header->arena);
    fy_arena_cleanup(&header->texts);
    fy_free(header->tensors);
    fy_free(header->metadata);
    fy_index_cleanup(&header->names);
    *header = (fy_st_header){0};
}

/* ---- texts ---- */

/* A string that is kept: ended by a zero, so it may hold none. */
static ferry_status keep_text(parse *p, fy_arena *arena, fy_st_text text, size_t at,
                              const char **kept_out)
{
    if (memchr(text.bytes, '\0', text.length) != NULL) {
        return fy_st_fail(&p->cursor, at, "a name or text holds a zero");
    }
    *kept_out = fy_arena_copy(arena, text.bytes, text.length);
    return *kept_out == NULL ? fy_fail_no_memory(p->cursor.error, "a safetensors header")
                             : FERRY_OK;
}

/* One text for all tensors of a dtype. */
static ferry_status take_word(parse *p, const fy_st_word **word_out)
{
    fy_st_text text;
    fy_st_peek(&p->cursor);
    size_t at = p->cursor.at;
    FY_TRY(fy_st_take_string(&p->cursor, &text));
    for (size_t i = 0; i < p->n_words; i++) {
        size_t known = (p->last_word + i) % p->n_words;
        if (fy_st_text_is(text, p->words[known].text)) {
            p->last_word = known;
            *word_out = &p->words[known];
            return FERRY_OK;
        }
    }
    if (text.length == 0 || p->n_words == MOST_WORDS) {
        return fy_st_fail(&p->cursor, at, "%s",
                          text.length == 0 ? "must not be empty" : "is one of too many in a file");
    }
    fy_st_word *w = &p->words[p->n_words];
    FY_TRY(keep_text(p, &p->header->arena, text, at, &w->text));
    fy_st_word_classify(w);
    p->last_word = p->n_words++;
    *word_out = w;
    return FERRY_OK;
}

/* ---- one entry ---- */

static ferry_status keep_shape(parse *p, const uint64_t *shape, fy_st_tensor *tensor)
{
    if (p->room == NULL || tensor->n_dims > p->room_left) {
        p->room = fy_arena_alloc(&p->header->arena, SHAPE_ROOM, sizeof *p->room);
        if (p->room == NULL) {
            p->room_left = 0;
            return fy_fail_no_memory(p->cursor.error, "a safetensors header");
        }
        p->room_left = SHAPE_ROOM;
    }
    tensor->shape = p->room;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        p->room[d] = shape[d];
    }
    p->room_left -= tensor->n_dims;
    p->room += tensor->n_dims;
    return FERRY_OK;
}

static ferry_status take_shape(parse *p, fy_st_tensor *tensor)
{
    uint64_t shape[FERRY_MAX_DIMS];
    bool first = true;
    bool more = true;
    ferry_status status = fy_st_take(&p->cursor, '[', "an array of whole numbers");
    while (status == FERRY_OK) {
        status = fy_st_next(&p->cursor, ']', &first, &more);
        if (status != FERRY_OK || !more) {
            break;
        }
        if (tensor->n_dims == FERRY_MAX_DIMS) {
            return fy_st_fail(&p->cursor, p->cursor.at, "has more than the limit of %d dimensions",
                              FERRY_MAX_DIMS);
        }
        status = fy_st_take_number(&p->cursor, &shape[tensor->n_dims]);
        tensor->n_dims += status == FERRY_OK;
    }
    return status == FERRY_OK ? keep_shape(p, shape, tensor) : status;
}

static ferry_status take_offsets(parse *p, fy_st_tensor *tensor)
{
    FY_TRY(fy_st_take(&p->cursor, '[', "a pair of offsets"));
    FY_TRY(fy_st_take_number(&p->cursor, &tensor->begin));
    FY_TRY(fy_st_take(&p->cursor, ',', "',' and a second offset"));
    FY_TRY(fy_st_take_number(&p->cursor, &tensor->end));
    return fy_st_take(&p->cursor, ']', "']' behind two offsets");
}

enum { DTYPE, SHAPE, OFFSETS, N_KEYS };
static const char *const entry_keys[N_KEYS] = {"dtype", "shape", "data_offsets"};

static int find_key(fy_st_text text)
{
    int key = 0;
    while (key < N_KEYS && !fy_st_text_is(text, entry_keys[key])) {
        key++;
    }
    return key;
}

static ferry_status take_member(parse *p, bool seen[N_KEYS], const fy_st_word **word_out,
                                fy_st_tensor *tensor)
{
    fy_st_text text;
    fy_st_peek(&p->cursor);
    size_t at = p->cursor.at;
    FY_TRY(fy_st_take_key(&p->cursor, &text));
    int key = find_key(text);
    if (key == N_KEYS) {
        return fy_st_skip_value(&p->cursor);
    }
    p->cursor.key = entry_keys[key];
    if (seen[key]) {
        return fy_st_fail(&p->cursor, at, "is there twice");
    }
    seen[key] = true;
    FY_TRY(key == DTYPE   ? take_word(p, word_out)
           : key == SHAPE ? take_shape(p, tensor)
                          : take_offsets(p, tensor));
    p->cursor.key = NULL;
    return FERRY_OK;
}

static ferry_status check_entry(const parse *p, const bool seen[N_KEYS], const fy_st_word *w,
                                fy_st_tensor *tensor)
{
    for (int key = 0; key < N_KEYS; key++) {
        if (!seen[key]) {
            return fy_st_fail(&p->cursor, p->cursor.at, "lacks the key \"%s\"", entry_keys[key]);
        }
    }
    if (tensor->begin > tensor->end || tensor->end > p->header->data_bytes) {
        return fy_fail(
            p->cursor.error, FERRY_ERR_INVALID_INPUT,
            "%s: \"%.200s\" data_offsets [%llu, %llu] lie outside the %llu bytes of data",
            p->cursor.file, tensor->name, (unsigned long long)tensor->begin,
            (unsigned long long)tensor->end, (unsigned long long)p->header->data_bytes);
    }
    tensor->dtype_text = w->text;
    return fy_st_measure(p->cursor.file, w, tensor, p->cursor.error);
}

static ferry_status take_tensor(parse *p, const char *name)
{
    fy_st_tensor tensor = {.name = name};
    const fy_st_word *w = NULL;
    bool seen[N_KEYS] = {false};
    bool first = true;
    bool more = true;
    p->cursor.subject = name;
    ferry_status status = fy_st_take(&p->cursor, '{', "an object");
    while (status == FERRY_OK) {
        status = fy_st_next(&p->cursor, '}', &first, &more);
        if (status != FERRY_OK || !more) {
            break;
        }
        status = take_member(p, seen, &w, &tensor);
    }
    FY_THEN(status, check_entry(p, seen, w, &tensor));
    if (status != FERRY_OK) {
        return status;
    }
    p->cursor.subject = NULL;
    fy_st_header *h = p->header;
    FY_TRY(FY_GROW(h->tensors, h->capacity, h->n_tensors + 1, "a safetensors header",
                   p->cursor.error));
    h->tensors[h->n_tensors++] = tensor;
    return FERRY_OK;
}

/* ---- metadata ---- */

static ferry_status take_pair(parse *p)
{
    fy_st_header *h = p->header;
    fy_st_text text;
    fy_st_entry entry = {NULL, NULL};
    fy_st_peek(&p->cursor);
    size_t at = p->cursor.at;
    FY_TRY(fy_st_take_key(&p->cursor, &text));
    FY_TRY(keep_text(p, &h->texts, text, at, &entry.key));
    p->cursor.key = entry.key;
    fy_st_peek(&p->cursor);
    at = p->cursor.at;
    FY_TRY(fy_st_take_string(&p->cursor, &text));
    FY_TRY(keep_text(p, &h->texts, text, at, &entry.value));
    p->cursor.key = NULL;
    FY_TRY(FY_GROW(h->metadata, h->metadata_capacity, h->n_metadata + 1, "the metadata of a file",
                   p->cursor.error));
    h->metadata[h->n_metadata++] = entry;
    return FERRY_OK;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const fy_st_entry *)a)->key, ((const fy_st_entry *)b)->key);
}

static ferry_status take_metadata(parse *p, size_t at)
{
    fy_st_header *h = p->header;
    bool first = true;
    bool more = true;
    if (p->has_metadata) {
        return fy_st_fail(&p->cursor, at, "__metadata__ is there twice");
    }
    p->has_metadata = true;
    p->cursor.subject = "__metadata__";
    ferry_status status = fy_st_take(&p->cursor, '{', "an object of strings");
    while (status == FERRY_OK) {
        status = fy_st_next(&p->cursor, '}', &first, &more);
        if (status != FERRY_OK || !more) {
            break;
        }
        status = take_pair(p);
    }
    fy_sort(h->metadata, h->n_metadata, sizeof *h->metadata, compare_entries);
    for (size_t i = 1; i < h->n_metadata && status == FERRY_OK; i++) {
        if (strcmp(h->metadata[i - 1].key, h->metadata[i].key) == 0) {
            status = fy_fail(p->cursor.error, FERRY_ERR_INVALID_INPUT,
                             "%s: __metadata__ has the key \"%.200s\" twice", p->cursor.file,
                             h->metadata[i].key);
        }
    }
    p->cursor.subject = status == FERRY_OK ? NULL : p->cursor.subject;
    return status;
}

/* ---- the whole ---- */

static ferry_status take_entry(parse *p)
{
    fy_st_text text;
    const char *name = NULL;
    fy_st_peek(&p->cursor);
    size_t at = p->cursor.at;
    FY_TRY(fy_st_take_key(&p->cursor, &text));
    if (fy_st_text_is(text, "__metadata__")) {
        return take_metadata(p, at);
    }
    if (text.length == 0) {
        return fy_st_fail(&p->cursor, at, "the name of a tensor is empty");
    }
    FY_TRY(keep_text(p, &p->header->arena, text, at, &name));
    return take_tensor(p, name);
}

static ferry_status take_header(parse *p)
{
    bool first = true;
    bool more = true;
    ferry_status status = fy_st_take(&p->cursor, '{', "an object of tensors");
    while (status == FERRY_OK) {
        status = fy_st_next(&p->cursor, '}', &first, &more);
        if (status != FERRY_OK || !more) {
            break;
        }
        status = take_entry(p);
    }
    if (status == FERRY_OK && fy_st_peek(&p->cursor) != -1) {
        status = fy_st_fail_expected(&p->cursor, "nothing but white space behind the object");
    }
    return status;
}

static int compare_tensors(const void *a, const void *b)
{
    const fy_st_tensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1; /* empty ones first */
    }
    return strcmp(x->name, y->name);
}

/* Most files are in order; and qsort of many records takes memory of its own. */
static void sort_tensors(fy_st_header *header)
{
    for (size_t i = 1; i < header->n_tensors; i++) {
        if (compare_tensors(&header->tensors[i - 1], &header->tensors[i]) > 0) {
            fy_sort(header->tensors, header->n_tensors, sizeof *header->tensors, compare_tensors);
            return;
        }
    }
}

/* The data must be covered without holes and without overlap, as the safetensors package demands.
 */
static ferry_status check_cover(const fy_st_header *header, const char *file, ferry_error *error)
{
    uint64_t at = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const fy_st_tensor *tensor = &header->tensors[i];
        if (tensor->begin != at) {
            const char *before = i == 0 ? "the header" : header->tensors[i - 1].name;
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: \"%.200s\" begins at byte %llu of the data, but %s%.200s%s before "
                           "it ends at %llu",
                           file, tensor->name, (unsigned long long)tensor->begin,
                           i == 0 ? "" : "\"", before, i == 0 ? "" : "\"", (unsigned long long)at);
        }
        at = tensor->end;
    }
    if (at != header->data_bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the tensors end at byte %llu of the data, which has %llu bytes", file,
                       (unsigned long long)at, (unsigned long long)header->data_bytes);
    }
    return FERRY_OK;
}

static uint64_t hash_name(const char *name)
{
    return fy_hash64(name, strlen(name));
}

const fy_st_tensor *fy_st_find(const fy_st_header *header, const char *name)
{
    fy_index_cursor c = fy_index_first(&header->names, hash_name(name));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&header->names, &c)) {
        if (strcmp(header->tensors[c.value].name, name) == 0) {
            return &header->tensors[c.value];
        }
    }
    return NULL;
}

static ferry_status index_names(fy_st_header *header, const char *file, ferry_error *error)
{
    for (size_t i = 0; i < header->n_tensors; i++) {
        const char *name = header->tensors[i].name;
        if (fy_st_find(header, name) != NULL) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: holds the tensor \"%.200s\" twice",
                           file, name);
        }
        if (!fy_index_insert(&header->names, hash_name(name), (uint32_t)i)) {
            return fy_fail_no_memory(error, "the names of a file");
        }
    }
    return FERRY_OK;
}

/* What the array has grown beyond its need is given back, if that is possible. */
static void shrink(fy_st_header *header)
{
    fy_st_tensor *fitting = header->n_tensors == 0 ? NULL
                                                   : fy_realloc(header->tensors, header->n_tensors,
                                                                sizeof *header->tensors);
    if (fitting != NULL) {
        header->tensors = fitting;
        header->capacity = header->n_tensors;
    }
}

ferry_status fy_st_parse(const char *text, size_t length, uint64_t data_bytes, const char *name,
                         fy_st_header *header, ferry_error *error)
{
    *header = (fy_st_header){.data_begin = sizeof(uint64_t) + length, .data_bytes = data_bytes};
    parse p = {.cursor = {.text = text,
                          .length = length,
                          .file = name,
                          .of = " of the header",
                          .error = error},
               .header = header};
    ferry_status status = take_header(&p);
    fy_st_cursor_cleanup(&p.cursor);
    if (status == FERRY_OK) {
        shrink(header);
        sort_tensors(header);
        status = index_names(header, name, error);
    }
    FY_THEN(status, check_cover(header, name, error));
    if (status != FERRY_OK) {
        fy_st_cleanup(header);
    }
    return status;
}

/* ---- lookups ---- */
