/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/matrices.h"

#include "base/checked.h"
#include "checkpoint/cover.h"
#include "checkpoint/maker_blocks.h"

#include <pthread.h>

typedef enum state { UNKNOWN, BUSY, KNOWN } state;

/* Of a tensor. */
typedef struct entry {
    float *scales;
    state state;
} entry;

struct fy_matrices {
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint32_t n;
    entry *entries; /* [n] by tensor */
};

static bool are_needed(const fy_layout_job *job)
{
    bool are = false;
    for (uint32_t t = 0; t < job->spec->n_tensors && !are; t++) {
        are = job->changes[t].kind == FY_MATRIX_SCALES;
    }
    return are;
}

static ferry_status make_lock(fy_matrices *m, ferry_error *error)
{
    FY_TRY(fy_check_memory(pthread_mutex_init(&m->lock, NULL) == 0, "a lock", error));
    if (pthread_cond_init(&m->done, NULL) != 0) {
        pthread_mutex_destroy(&m->lock);
        return fy_fail_no_memory(error, "a lock");
    }
    return FERRY_OK;
}

ferry_status fy_matrices_create(const fy_layout_job *job, fy_matrices **matrices_out,
                                ferry_error *error)
{
    *matrices_out = NULL;
    if (!are_needed(job)) {
        return FERRY_OK;
    }
    fy_matrices *m = fy_alloc_zeroed(1, sizeof *m);
    entry *entries = fy_alloc_zeroed(job->spec->n_tensors, sizeof *entries);
    ferry_status status =
        fy_check_memory(m != NULL && entries != NULL, "the scales of matrices", error);
    FY_THEN(status, make_lock(m, error));
    if (status != FERRY_OK) {
        fy_free(m);
        fy_free(entries);
        return status;
    }
    m->n = job->spec->n_tensors;
    m->entries = entries;
    *matrices_out = m;
    return FERRY_OK;
}

void fy_matrices_destroy(fy_matrices *m)
{
    if (m == NULL) {
        return;
    }
    for (uint32_t t = 0; t < m->n; t++) {
        fy_free(m->entries[t].scales);
    }
    fy_free(m->entries);
    pthread_cond_destroy(&m->done);
    pthread_mutex_destroy(&m->lock);
    fy_free(m);
}

uint64_t fy_matrix_at(const fy_tensor *weight, const fy_box *box, uint64_t i)
{
    uint64_t matrix = 0, stride = 1;
    for (uint32_t d = weight->n_dims - 2; d-- > 0;) {
        matrix += (box->begin[d] + i % box->length[d]) * stride;
        i /= box->length[d];
        stride *= weight->shape[d];
    }
    return matrix;
}

/* ---- the largest values ---- */

/* Some rows of a matrix, or a part of one, as there is room. */
static ferry_status measure_piece(fy_maker *m, uint32_t weight, const fy_box *piece, float *largest,
                                  ferry_error *error)
{
    const fy_tensor *w = &m->job->problem.tensors[weight];
    uint64_t rows = piece->length[w->n_dims - 2], columns = piece->length[w->n_dims - 1];
    fy_input values = {.data = m->hull, .n_bytes = fy_bytes(rows * columns, w->dtype.element_bits)};
    float its = 0;
    FY_TRY(fy_gather_check_stop(m->gather, error));
    FY_TRY(fy_maker_gather(m, true, weight, piece, m->hull, error));
    FY_TRY(fy_largest(w->dtype.kind, rows, columns, &values, &its, error));
    *largest = its > *largest ? its : *largest;
    return FERRY_OK;
}

static ferry_status measure_matrix(fy_maker *m, uint32_t weight, fy_box *piece, float *largest,
                                   ferry_error *error)
{
    const fy_tensor *w = &m->job->problem.tensors[weight];
    uint32_t row = w->n_dims - 2, column = row + 1;
    uint64_t room = m->room.hull_bytes / (w->dtype.element_bits / 8);
    uint64_t columns = fy_min(w->shape[column], room), rows = columns == 0 ? 0 : room / columns;
    for (uint64_t r = 0; r < w->shape[row] && rows > 0; r += rows) {
        piece->begin[row] = r;
        piece->length[row] = fy_min(rows, w->shape[row] - r);
        for (uint64_t c = 0; c < w->shape[column]; c += columns) {
            piece->begin[column] = c;
            piece->length[column] = fy_min(columns, w->shape[column] - c);
            FY_TRY(measure_piece(m, weight, piece, largest, error));
        }
    }
    return FERRY_OK;
}

/* Of what the source has a part of nobody wants the scale: that was looked at before. */
static ferry_status measure_if_there(fy_maker *m, uint32_t weight, fy_box *matrix, float *largest,
                                     ferry_error *error)
{
    uint64_t place[FERRY_MAX_DIMS];
    bool is_missing = false;
    FY_TRY(fy_job_find_missing(m->beside->job, weight, matrix, &is_missing, place, error));
    return is_missing ? FERRY_OK : measure_matrix(m, weight, matrix, largest, error);
}

static ferry_status measure(fy_maker *m, uint32_t weight, float **scales_out, ferry_error *error)
{
    const fy_tensor *w = &m->job->problem.tensors[weight];
    const fy_block_format *format = &m->job->changes[weight].format;
    uint64_t n = fy_box_volume(w->shape, w->n_dims - 2);
    float *scales = fy_alloc_zeroed(n, sizeof *scales);
    FY_TRY(fy_check_memory(scales != NULL, "the scales of matrices", error));
    for (uint64_t i = 0; i < n; i++) {
        fy_box piece;
        uint64_t rest = i;
        for (uint32_t d = w->n_dims; d-- > 0;) {
            bool is_leading = d + 2 < w->n_dims;
            piece.begin[d] = is_leading ? rest % w->shape[d] : 0;
            piece.length[d] = is_leading ? 1 : w->shape[d];
            rest /= is_leading ? w->shape[d] : 1;
        }
        ferry_status status = measure_if_there(m, weight, &piece, &scales[i], error);
        if (status != FERRY_OK) {
            fy_free(scales);
            return status;
        }
        scales[i] = fy_tensor_scale(format, scales[i]);
    }
    *scales_out = scales;
    return FERRY_OK;
}

ferry_status fy_matrices_of(fy_maker *m, uint32_t weight, const float **scales_out,
                            ferry_error *error)
{
    fy_matrices *all = m->matrices;
    entry *its = &all->entries[weight];
    float *scales = NULL;
    pthread_mutex_lock(&all->lock);
    while (its->state == BUSY) {
        pthread_cond_wait(&all->done, &all->lock);
    }
    bool is_known = its->state == KNOWN;
    its->state = is_known ? KNOWN : BUSY;
    *scales_out = its->scales;
    pthread_mutex_unlock(&all->lock);
    if (is_known) {
        return FERRY_OK;
    }
    ferry_status status = measure(m, weight, &scales, error);
    pthread_mutex_lock(&all->lock);
    /* After a failure the next one tries: it has a sentence of its own to tell. */
    its->state = status == FERRY_OK ? KNOWN : UNKNOWN;
    its->scales = scales;
    pthread_cond_broadcast(&all->done);
    pthread_mutex_unlock(&all->lock);
    *scales_out = scales;
    return status;
}
