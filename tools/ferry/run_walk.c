/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard is the product of runs of each of its dimensions, and so is what it has of one origin.
 * Runs of the last dimensions that lie behind each other in the shard and in the source tensor
 * alike become one; what is left are rows, which are bytes of the source tensor's stream.
 */
#include "run_walk.h"

#include "run_cast.h"
#include "run_pattern.h"
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Local indices [local, local + length) are those from source on of the source tensor. */
typedef struct run {
    uint64_t local, source, length;
} run;

typedef struct walk {
    const ferry_shard *shard;
    run_work work;
    run_key key;
    uint64_t bits; /* of an element */
    char *memory;
    run_mismatch *mismatch;
    bool is_wrong;
    const run_cast *cast; /* NULL: elements are those of the source tensor */
    const run_aid *aid;
    bool has_codes, has_scales; /* of blocks, instead of what is cast */
    run_quantized q;
    run_scaled scaled;            /* codes become that by scales; format NULL: they are none */
    const ferry_held_box *box;    /* whose codes they are; NULL: the shard's */
    uint64_t row_from, row_scale; /* of the first element of a row of the box, */
    uint64_t row_matrix;          /* and the number of the scale of its matrix, if it has one */

    uint32_t inner;      /* the dimension whose runs are rows */
    uint64_t first_from; /* what dimensions contribute that the shard does not have */
    uint64_t local_stride[FERRY_MAX_DIMS + 1];
    uint64_t source_stride[FERRY_MAX_DIMS + 1];
    run *runs[FERRY_MAX_DIMS + 1];
    size_t n_runs[FERRY_MAX_DIMS + 1];
} walk;

/* ---- given scales ---- */

static int compare_tensor(const void *name, const void *given)
{
    return strcmp(name, ((const run_given *)given)->tensor);
}

static int compare_scale(const void *name, const void *given)
{
    return strcmp(name, ((const run_given *)given)->scale);
}

run_key run_aid_key(const run_aid *aid, const char *tensor)
{
    run_key key = run_key_of(tensor);
    key.is_scale = aid->n_given > 0 && bsearch(tensor, aid->by_scale, aid->n_given,
                                               sizeof *aid->by_scale, compare_scale) != NULL;
    return key;
}

/* The stream of the scales of a tensor's matrices, if it has some. */
static run_key given_key(const run_aid *aid, const char *values)
{
    const run_given *given = aid->n_given == 0 ? NULL
                                               : bsearch(values, aid->by_tensor, aid->n_given,
                                                         sizeof *aid->by_tensor, compare_tensor);
    return given == NULL ? (run_key){.bits = 0} : run_aid_key(aid, given->scale);
}

/* ---- rows ---- */

static uint8_t expected_byte(const walk *w, uint64_t at)
{
    return run_pattern_byte(w->key, at);
}

/* Of element `element` of the memory, which is element `from` of the source tensor. */
static void note_wrong(walk *w, uint64_t element, uint64_t from)
{
    uint64_t bytes = (w->bits + 7) / 8;
    bytes = bytes < sizeof w->mismatch->found ? bytes : sizeof w->mismatch->found;
    w->is_wrong = true;
    w->mismatch->element = element;
    w->mismatch->from = from;
    w->mismatch->n_bytes = bytes;
    for (uint64_t i = 0; i < bytes; i++) {
        uint8_t expected = expected_byte(w, from * w->bits / 8 + i);
        uint8_t found = (uint8_t)w->memory[element * w->bits / 8 + i];
        if (w->bits < 8) {
            expected = expected >> 4 * (from % 2) & 15;
            found = found >> 4 * (element % 2) & 15;
        }
        w->mismatch->expected[i] = expected;
        w->mismatch->found[i] = found;
    }
}

/* An element of half a byte, which is element `from`; false: it is another. */
static bool work_on_half(walk *w, uint64_t to, uint64_t from, unsigned half)
{
    uint8_t *byte = (uint8_t *)w->memory + to / 2;
    unsigned here = 4 * (unsigned)(to % 2), found = (unsigned)*byte >> here & 15u;
    if (w->work != RUN_CHECK) {
        half = w->work == RUN_POISON ? half ^ 15u : half;
        *byte = (uint8_t)((*byte & ~(15u << here)) | half << here);
        return true;
    }
    if (found == half) {
        return true;
    }
    w->is_wrong = true;
    *w->mismatch = (run_mismatch){.element = to, .from = from, .n_bytes = 1};
    w->mismatch->expected[0] = (uint8_t)half;
    w->mismatch->found[0] = (uint8_t)found;
    return false;
}

/* Elements of half a byte that do not lie as they do in the stream. */
static bool work_on_halves(walk *w, uint64_t to, uint64_t from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        unsigned there = 4 * (unsigned)((from + i) % 2);
        unsigned half = (unsigned)expected_byte(w, (from + i) / 2) >> there & 15u;
        if (!work_on_half(w, to + i, from + i, half)) {
            return false;
        }
    }
    return true;
}

enum { ROW_BYTES = 4096 };

/* The number of the scale of an element: in a row of a box it moves along the last dimension. */
static uint64_t scale_of(const walk *w, uint64_t to, uint64_t from)
{
    const ferry_held_box *box = w->box;
    if (box == NULL) {
        const uint64_t *local = w->shard->local + w->shard->n_dims - 2;
        return run_scaled_number(w->scaled.format, local[0], local[1], to);
    }
    uint64_t block = box->conversion->block[1], first = box->begin[box->n_dims - 1];
    uint64_t n_blocks = (first + (from - w->row_from)) / block - first / block;
    return w->row_scale + n_blocks * box->scales_strides[box->n_dims - 1];
}

/* The number of the scale of its matrix. */
static uint64_t matrix_of(const walk *w, uint64_t to)
{
    const uint64_t *local = w->box != NULL ? NULL : w->shard->local + w->shard->n_dims - 2;
    return local == NULL ? w->row_matrix : to / local[1] / local[0];
}

/* What the bits of element `from` become at `to`; of scales, which is number `from`. */
static run_cast_result wanted_of(const walk *w, uint64_t to, uint64_t from, uint64_t bits)
{
    if (w->scaled.format != NULL) {
        return (run_cast_result){
            .bits = run_scaled_value(&w->scaled, scale_of(w, to, from), matrix_of(w, to), bits)};
    }
    if (w->has_scales) {
        return (run_cast_result){.bits = run_blocks_scale(w->aid->blocks, &w->q, from)};
    }
    if (w->has_codes) {
        return (run_cast_result){.bits = run_blocks_code(w->aid->blocks, &w->q, from, bits)};
    }
    return run_cast_element(w->cast, bits);
}

/* One element at `to` of the memory, made of the bits of element `from`; false: it is another. */
static bool work_on_cast_element(walk *w, uint64_t to, uint64_t from, uint64_t bits)
{
    uint64_t bytes = w->bits / 8;
    char *at = w->memory + to * bytes;
    run_cast_result wanted = wanted_of(w, to, from, bits);
    if (w->bits < 8) {
        return work_on_half(w, to, from, (unsigned)wanted.bits);
    }
    if (w->work != RUN_CHECK) {
        run_store_bits(at, bytes, w->work == RUN_POISON ? ~wanted.bits : wanted.bits);
        return true;
    }
    if (run_cast_is_right(w->cast, wanted, run_load_bits(at, bytes))) {
        return true;
    }
    w->is_wrong = true;
    w->mismatch->element = to;
    w->mismatch->from = from;
    w->mismatch->n_bytes = bytes;
    run_store_bits((char *)w->mismatch->expected, bytes, wanted.bits);
    memcpy(w->mismatch->found, at, bytes);
    return false;
}

/* n elements of half a byte at the source, at a stride, that are cast. */
static bool cast_halves(walk *w, uint64_t to, uint64_t stride, uint64_t from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        unsigned there = 4 * (unsigned)((from + i) % 2);
        unsigned half = (unsigned)expected_byte(w, (from + i) / 2) >> there & 15u;
        if (!work_on_cast_element(w, to + i * stride, from + i, half)) {
            return false;
        }
    }
    return true;
}

/* n elements at a stride that are cast. */
static bool work_on_cast(walk *w, uint64_t to, uint64_t stride, uint64_t from, uint64_t n)
{
    char row[ROW_BYTES];
    uint64_t bytes = w->cast->from.element_bits / 8;
    if (bytes == 0) {
        return cast_halves(w, to, stride, from, n);
    }
    uint64_t most = ROW_BYTES / bytes;
    for (uint64_t done = 0, here; done < n; done += here) {
        here = n - done < most ? n - done : most;
        if (w->has_codes) {
            run_quantized_values(&w->q, row, from + done, here, bytes);
        } else {
            run_pattern_fill(row, w->key, (from + done) * bytes, here * bytes, 0);
        }
        for (uint64_t i = 0; i < here; i++) {
            if (!work_on_cast_element(w, to + (done + i) * stride, from + done + i,
                                      run_load_bits(row + i * bytes, bytes))) {
                return false;
            }
        }
    }
    return true;
}

/* n elements: from `to` on in memory, from `from` on in the source tensor. */
static bool work_on_row(walk *w, uint64_t to, uint64_t from, uint64_t n)
{
    if (w->cast != NULL) {
        return work_on_cast(w, to, 1, from, n);
    }
    if (w->bits < 8 && (to % 2 != 0 || from % 2 != 0 || n % 2 != 0)) {
        return work_on_halves(w, to, from, n);
    }
    char *memory = w->memory + to * w->bits / 8;
    uint64_t at = from * w->bits / 8;
    uint64_t n_bytes = n * w->bits / 8;
    if (w->work != RUN_CHECK) {
        run_pattern_fill(memory, w->key, at, n_bytes, w->work == RUN_POISON);
        return true;
    }
    uint64_t right = run_pattern_check(memory, w->key, at, n_bytes);
    if (right < n_bytes) {
        uint64_t element = right * 8 / w->bits;
        note_wrong(w, to + element, from + element);
        if (w->bits < 8 && w->mismatch->expected[0] == w->mismatch->found[0]) {
            note_wrong(w, to + element + 1, from + element + 1);
        }
        return false;
    }
    return true;
}

/* The same for what a flat range leaves of it; `local` counts in the whole local shard. */
static bool clip_row(walk *w, uint64_t local, uint64_t from, uint64_t n)
{
    uint64_t begin = local > w->shard->flat_begin ? local : w->shard->flat_begin;
    uint64_t end = local + n < w->shard->flat_end ? local + n : w->shard->flat_end;
    return begin >= end ||
           work_on_row(w, begin - w->shard->flat_begin, from + (begin - local), end - begin);
}

static bool walk_dimension(walk *w, uint32_t dim, uint64_t local, uint64_t from)
{
    uint64_t local_stride = w->local_stride[dim], source_stride = w->source_stride[dim];
    for (size_t i = 0; i < w->n_runs[dim]; i++) {
        const run *r = &w->runs[dim][i];
        uint64_t l = local + r->local * local_stride, f = from + r->source * source_stride;
        if (dim == w->inner) {
            if (!clip_row(w, l, f, r->length * local_stride)) {
                return false;
            }
            continue;
        }
        for (uint64_t k = 0; k < r->length; k++, l += local_stride, f += source_stride) {
            bool outside = l >= w->shard->flat_end || l + local_stride <= w->shard->flat_begin;
            if (!outside && !walk_dimension(w, dim + 1, l, f)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- what one origin feeds ---- */

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "out of memory");
    return FERRY_ERR_NO_MEMORY;
}

/* The pieces of a dimension, cut to what comes from the origin. */
static ferry_status cut_runs(walk *w, const ferry_origin *origin, uint32_t dim, uint64_t begin,
                             ferry_error *error)
{
    size_t n = ferry_shard_piece_count(w->shard, dim);
    w->runs[dim] = calloc(n > 0 ? n : 1, sizeof *w->runs[dim]);
    if (w->runs[dim] == NULL) {
        return fail_memory(error);
    }
    uint64_t first = origin->at[dim], last = first + origin->length[dim];
    for (size_t i = 0; i < n; i++) {
        uint64_t local, global, length;
        FY_TRY(ferry_shard_piece_at(w->shard, dim, i, &local, &global, &length, error));
        uint64_t from = global > first ? global : first;
        uint64_t to = global + length < last ? global + length : last;
        if (from < to) {
            w->runs[dim][w->n_runs[dim]++] = (run){.local = local + (from - global),
                                                   .source = begin + (from - first),
                                                   .length = to - from};
        }
    }
    return FERRY_OK;
}

/* Dimensions of the two tensors correspond from the last one on; what one has more is 1 long. */
static ferry_status cut_dimensions(walk *w, const ferry_origin *origin, ferry_error *error)
{
    uint64_t local_stride = 1, source_stride = 1;
    uint32_t n = w->shard->n_dims, m = origin->source_n_dims;
    for (uint32_t i = 1; i <= (n > m ? n : m); i++) {
        uint64_t begin = i <= m ? origin->begin[m - i] : 0;
        if (i > n) {
            w->first_from += begin * source_stride;
        } else {
            w->local_stride[n - i] = local_stride;
            w->source_stride[n - i] = source_stride;
            FY_TRY(cut_runs(w, origin, n - i, begin, error));
            local_stride *= w->shard->local[n - i];
        }
        source_stride *= i <= m ? origin->source_global[m - i] : 1;
    }
    if (n == 0) { /* one element */
        w->local_stride[0] = w->source_stride[0] = 1;
        w->runs[0] = calloc(1, sizeof *w->runs[0]);
        if (w->runs[0] == NULL) {
            return fail_memory(error);
        }
        w->runs[0][0] = (run){.length = 1};
        w->n_runs[0] = 1;
    }
    return FERRY_OK;
}

/* The first dimension from which on everything lies behind each other on both sides. */
static void find_rows(walk *w)
{
    w->inner = w->shard->n_dims > 0 ? w->shard->n_dims - 1 : 0;
    while (w->inner > 0) {
        uint32_t dim = w->inner;
        const run *r = w->runs[dim];
        if (w->n_runs[dim] != 1 || r->length != w->shard->local[dim] ||
            w->source_stride[dim - 1] != r->length * w->source_stride[dim]) {
            return;
        }
        w->first_from += r->source * w->source_stride[dim];
        w->inner--;
    }
}

static ferry_status walk_origin(walk *w, const ferry_origin *origin, ferry_error *error)
{
    w->key = run_aid_key(w->aid, origin->source);
    w->first_from = 0;
    ferry_status status = cut_dimensions(w, origin, error);
    if (status == FERRY_OK) {
        find_rows(w);
        walk_dimension(w, 0, 0, w->first_from);
    }
    for (uint32_t dim = 0; dim <= FERRY_MAX_DIMS; dim++) {
        free(w->runs[dim]);
        w->runs[dim] = NULL;
        w->n_runs[dim] = 0;
    }
    return status == FERRY_OK && w->is_wrong ? FERRY_ERR_DIGEST : status;
}

/* How elements are made that do not come as they are. shape: of the tensor of values. */
static void set_making(walk *w, run_cast *cast, const ferry_conversion *conversion,
                       ferry_dtype from, ferry_dtype to, const char *values, const uint64_t *shape,
                       uint32_t n_dims)
{
    *cast = run_cast_of(conversion, from, to);
    w->cast = cast;
    w->has_codes = conversion->kind == FERRY_CONVERSION_CODES;
    w->has_scales = conversion->kind == FERRY_CONVERSION_SCALES;
    if (w->has_codes || w->has_scales) {
        w->q = run_quantized_of(values, from, conversion, shape, n_dims);
        w->q.key = run_aid_key(w->aid, values);
        w->q.parts = run_parts_find(w->aid->parts, values);
        w->q.given = given_key(w->aid, values);
    }
}

/* A source is its own origin; and codes of a tensor that has others are made of its own blocks. */
static void make_own_origin(const ferry_shard *shard, ferry_origin *origin)
{
    origin->source = shard->tensor;
    origin->source_n_dims = shard->n_dims;
    memcpy(origin->length, shard->global, sizeof shard->global);
    memcpy(origin->source_length, shard->global, sizeof shard->global);
    memcpy(origin->source_global, shard->global, sizeof shard->global);
}

ferry_status run_walk(const ferry_shard *shard, ferry_side_role side, run_work work, void *memory,
                      const run_aid *aid, run_mismatch *mismatch_out, ferry_error *error)
{
    run_mismatch ignored;
    run_cast cast;
    walk w = {.shard = shard,
              .work = work,
              .aid = aid,
              .bits = shard->dtype.element_bits,
              .memory = memory,
              .mismatch = mismatch_out != NULL ? mismatch_out : &ignored};
    if (shard->conversion != NULL) {
        bool is_other = shard->values != NULL;
        set_making(&w, &cast, shard->conversion, shard->source_dtype, shard->dtype,
                   is_other ? shard->values : shard->tensor,
                   is_other ? shard->values_global : shard->global, shard->n_dims);
        if (shard->conversion->kind == FERRY_CONVERSION_DEQUANTIZE) {
            w.scaled = (run_scaled){.format = shard->conversion,
                                    .scales = aid->scales,
                                    .matrix_scales = aid->matrix_scales,
                                    .to = shard->dtype};
        }
    }
    bool is_own = side == FERRY_SIDE_SOURCE || w.has_codes;
    size_t n = is_own ? 1 : ferry_shard_origin_count(shard);
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n && status == FERRY_OK && shard->bytes > 0; i++) {
        ferry_origin origin = FERRY_ORIGIN_INIT;
        if (is_own) {
            make_own_origin(shard, &origin);
        } else {
            status = ferry_shard_origin_at(shard, i, &origin, error);
        }
        FY_THEN(status, walk_origin(&w, &origin, error));
    }
    return status;
}

/* ---- elements in words ---- */

/* The global index of a local one; the local one itself if the pieces do not have it. */
static uint64_t global_of(const ferry_shard *shard, uint32_t dim, uint64_t index)
{
    size_t n = ferry_shard_piece_count(shard, dim);
    for (size_t i = 0; i < n; i++) {
        uint64_t local, global, length;
        if (ferry_shard_piece_at(shard, dim, i, &local, &global, &length, NULL) == FERRY_OK &&
            index >= local && index - local < length) {
            return global + (index - local);
        }
    }
    return index;
}

static void write_element(const char *tensor, const uint64_t *index, uint32_t n_dims, char *text,
                          size_t n_bytes)
{
    int used = snprintf(text, n_bytes, "%.600s[", tensor);
    for (uint32_t dim = 0; dim < n_dims && used >= 0 && (size_t)used < n_bytes; dim++) {
        used += snprintf(text + used, n_bytes - (size_t)used, "%s%llu", dim == 0 ? "" : ", ",
                         (unsigned long long)index[dim]);
    }
    if (used >= 0 && (size_t)used < n_bytes) {
        snprintf(text + used, n_bytes - (size_t)used, "]");
    }
}

void run_element_text(const ferry_shard *shard, uint64_t element, char *text, size_t n_bytes)
{
    uint64_t index[FERRY_MAX_DIMS] = {0};
    uint64_t left = element + shard->flat_begin;
    for (uint32_t dim = shard->n_dims; dim-- > 0;) {
        uint64_t extent = shard->local[dim] > 0 ? shard->local[dim] : 1;
        index[dim] = global_of(shard, dim, left % extent);
        left /= extent;
    }
    write_element(shard->tensor, index, shard->n_dims, text, n_bytes);
}

/* ---- boxes ---- */

/* n elements at a stride, through a buffer in which they lie side by side. */
static bool work_on_spread(walk *w, uint64_t to, uint64_t stride, uint64_t from, uint64_t n)
{
    char row[ROW_BYTES];
    uint64_t bytes = w->bits / 8, most = ROW_BYTES / bytes;
    for (uint64_t done = 0, here; done < n; done += here) {
        here = n - done < most ? n - done : most;
        char *at = w->memory + (to + done * stride) * bytes;
        uint64_t first = (from + done) * bytes;
        if (w->work != RUN_CHECK) {
            run_pattern_fill(row, w->key, first, here * bytes, w->work == RUN_POISON);
            for (uint64_t i = 0; i < here; i++) {
                memcpy(at + i * stride * bytes, row + i * bytes, bytes);
            }
            continue;
        }
        for (uint64_t i = 0; i < here; i++) {
            memcpy(row + i * bytes, at + i * stride * bytes, bytes);
        }
        uint64_t right = run_pattern_check(row, w->key, first, here * bytes);
        if (right < here * bytes) {
            uint64_t i = done + right / bytes;
            note_wrong(w, to + i * stride, from + i);
            return false;
        }
    }
    return true;
}

/* Elements that are whole bytes and small enough for the buffer go row by row. */
static bool work_on_box_row(walk *w, uint64_t to, uint64_t stride, uint64_t from, uint64_t n)
{
    if (w->cast != NULL) {
        return work_on_cast(w, to, stride, from, n);
    }
    if (stride == 1 || n == 1) {
        return work_on_row(w, to, from, n);
    }
    if (w->bits % 8 == 0 && w->bits / 8 <= ROW_BYTES) {
        return work_on_spread(w, to, stride, from, n);
    }
    for (uint64_t i = 0; i < n; i++) {
        if (!work_on_row(w, to + i * stride, from + i, 1)) {
            return false;
        }
    }
    return true;
}

/* To the next row of a box: all dimensions but the last. */
static bool next_row(const uint64_t *shape, uint32_t n_dims, uint64_t *index)
{
    for (uint32_t d = n_dims > 0 ? n_dims - 1 : 0; d-- > 0;) {
        if (++index[d] < shape[d]) {
            return true;
        }
        index[d] = 0;
    }
    return false;
}

/* Dimensions correspond from the last one on. */
static uint64_t source_element(const ferry_held_box *box, const uint64_t *index)
{
    uint64_t at = 0;
    for (uint32_t s = 0; s < box->source_n_dims; s++) {
        uint32_t behind = box->source_n_dims - s;
        uint64_t i = behind <= box->n_dims ? index[box->n_dims - behind] : 0;
        at = at * box->source_global[s] + box->source_begin[s] + i;
    }
    return at;
}

/* The rows of blocks that lie before a row of a box have their scales before its own. */
static uint64_t row_scale(const ferry_held_box *box, const uint64_t *index)
{
    uint64_t at = box->scales_offset;
    for (uint32_t d = 0; d + 1 < box->n_dims; d++) {
        uint64_t block = d + 2 < box->n_dims ? 1 : box->conversion->block[0];
        uint64_t n_blocks = (box->begin[d] + index[d]) / block - box->begin[d] / block;
        at += n_blocks * box->scales_strides[d];
    }
    return at;
}

ferry_status run_walk_box(const ferry_held_box *box, run_work work, void *memory,
                          const run_aid *aid, run_mismatch *mismatch_out)
{
    run_mismatch ignored;
    run_cast cast;
    walk w = {.work = work,
              .aid = aid,
              .key = run_aid_key(aid, box->source),
              .bits = box->dtype.element_bits,
              .memory = memory,
              .mismatch = mismatch_out != NULL ? mismatch_out : &ignored};
    uint64_t index[FERRY_MAX_DIMS + 1] = {0};
    uint32_t last = box->n_dims > 0 ? box->n_dims - 1 : 0;
    if (box->conversion != NULL) {
        bool is_other = box->values != NULL;
        set_making(&w, &cast, box->conversion, box->source_dtype, box->dtype,
                   is_other ? box->values : box->tensor,
                   is_other ? box->values_global : box->source_global,
                   is_other ? box->n_dims : box->source_n_dims);
    }
    if (box->scales != NULL) {
        w.box = box;
        w.scaled = (run_scaled){.format = box->conversion,
                                .scales = aid->scales,
                                .matrix_scales = aid->matrix_scales,
                                .to = box->dtype};
    }
    do {
        uint64_t to = box->offset;
        w.row_from = source_element(box, index);
        w.row_scale = box->scales == NULL ? 0 : row_scale(box, index);
        w.row_matrix = box->matrix_scales == NULL ? 0 : box->matrix_scales_offset;
        for (uint32_t d = 0; d < last; d++) {
            to += index[d] * box->strides[d];
            w.row_matrix += index[d] * box->matrix_scales_strides[d];
        }
        if (!work_on_box_row(&w, to, box->n_dims > 0 ? box->strides[last] : 1, w.row_from,
                             box->n_dims > 0 ? box->shape[last] : 1)) {
            return FERRY_ERR_DIGEST;
        }
    } while (next_row(box->shape, box->n_dims, index));
    return FERRY_OK;
}

/* One element of a fill; false: it is another one. */
static bool work_on_filled(const ferry_fill *fill, run_work work, uint8_t *memory, uint64_t element,
                           run_mismatch *mismatch)
{
    uint32_t bits = fill->dtype.element_bits;
    uint32_t bytes = (bits + 7) / 8, shift = bits < 8 ? 4 * (uint32_t)(element % 2) : 0;
    uint8_t mask = (uint8_t)(bits < 8 ? 15u << shift : 255u);
    uint8_t *at = memory + element * bits / 8;
    bool right = true;
    for (uint32_t i = 0; i < bytes; i++) {
        uint8_t wanted = fill->bits[i] & mask;
        if (work == RUN_POISON) {
            at[i] = (uint8_t)((at[i] & ~mask) | (~wanted & mask));
        }
        right = right && (work != RUN_CHECK || (at[i] & mask) == wanted);
        mismatch->expected[i] = (uint8_t)(wanted >> shift);
        mismatch->found[i] = (uint8_t)((at[i] & mask) >> shift);
    }
    mismatch->element = element;
    mismatch->n_bytes = bytes;
    return right;
}

ferry_status run_walk_fill(const ferry_fill *fill, run_work work, void *memory,
                           run_mismatch *mismatch_out)
{
    uint64_t index[FERRY_MAX_DIMS + 1] = {0};
    uint32_t last = fill->n_dims > 0 ? fill->n_dims - 1 : 0;
    do {
        uint64_t to = fill->offset, n = fill->n_dims > 0 ? fill->shape[last] : 1;
        for (uint32_t d = 0; d < last; d++) {
            to += index[d] * fill->strides[d];
        }
        for (uint64_t i = 0; i < n; i++) {
            uint64_t element = to + (fill->n_dims > 0 ? i * fill->strides[last] : 0);
            if (!work_on_filled(fill, work, memory, element, mismatch_out)) {
                return FERRY_ERR_DIGEST;
            }
        }
    } while (next_row(fill->shape, fill->n_dims, index));
    return FERRY_OK;
}

ferry_held_box run_own_box(const ferry_held_box *box, const run_aid *aid)
{
    ferry_held_box own = *box;
    bool is_codes = box->conversion != NULL && box->conversion->kind == FERRY_CONVERSION_CODES;
    const run_parted *parts = is_codes ? run_parts_find(aid->parts, box->tensor) : NULL;
    if (parts != NULL) {
        own.source = box->tensor;
        own.source_n_dims = box->n_dims;
        memcpy(own.source_begin, box->begin, sizeof own.source_begin);
        memcpy(own.source_global, parts->global, sizeof own.source_global);
    }
    return own;
}

void run_box_text(const ferry_held_box *box, uint64_t from, char *text, size_t n_bytes)
{
    uint64_t index[FERRY_MAX_DIMS] = {0};
    for (uint32_t d = box->source_n_dims; d-- > 0;) {
        index[d] = from % box->source_global[d];
        from /= box->source_global[d];
    }
    write_element(box->source, index, box->source_n_dims, text, n_bytes);
}
