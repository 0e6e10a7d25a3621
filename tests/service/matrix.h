/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_SERVICE_MATRIX_H
#define FERRY_TESTS_SERVICE_MATRIX_H

#include "service/suite.h"

/*
 * A plan that is simple enough to know by heart: tensors m0, m1, ... of rows x columns elements,
 * cut by rows at the source, where each part has so many holders, and by columns at the
 * destination. The plan's sides are meshes, or the same said in boxes, and transposed in memory.
 * Of some the elements are numbers, which the destination wants of another type.
 */
enum { MOST_TENSORS = 8 };

typedef struct matrix_cast {
    int from, to; /* of the types that matrix.c lists; -1: elements stay what they are */
    bool saturates;
    float scale, add;
} matrix_cast;

typedef struct matrix {
    uint32_t n_ranks, member; /* of the first world */
    uint32_t n_tensors, replicas;
    uint64_t rows, columns;           /* of a rank, at the source and at the destination */
    uint64_t element, target_element; /* bytes */
    matrix_cast cast;
    bool source_boxes, target_boxes;
    unsigned char *source[MOST_TENSORS];    /* of a far one an image of it */
    unsigned char *target[MOST_TENSORS][2]; /* with a guard on either side */
    ferry_buffer region[MOST_TENSORS][2];   /* where they come from ferry */
    ferry_buffer far_source[MOST_TENSORS];  /* base NULL: it is the host's */
} matrix;

/* With FERRY_TEST_FAR some lie in far memory, on either device: see scene.c.
 * Sizes are those of the whole; ranks divide rows and columns. transport: NULL for plain memory.
 * element: its bytes, where they are not those of numbers that are cast. */
matrix *matrix_make(rank_context *me, uint32_t n_tensors, uint32_t replicas, uint64_t element,
                    ferry_transport *transport);
void matrix_free(matrix *m);

ferry_plan *matrix_plan(rank_context *me, const matrix *m, const uint32_t *lost, size_t n_lost);

/* This rank's tensors. pairs: with both targets, the first of which is the front. */
ferry_tensors *matrix_sources(rank_context *me, const matrix *m);
ferry_tensors *matrix_targets(rank_context *me, const matrix *m, uint32_t which, bool pairs);
/* Binds the plan, made for this; and schedules. */
void matrix_bind(rank_context *me, const matrix *m, ferry_service *service, bool pairs);
void matrix_schedule(rank_context *me, const matrix *m, ferry_service *service, bool pairs);

/* Versions from MATRIX_EDITS on are those below, but for some rows and columns. */
#define MATRIX_EDITS ((uint64_t)1 << 32)
void matrix_fill(rank_context *me, matrix *m, uint64_t version);
void matrix_poison(rank_context *me, matrix *m, uint32_t which);

uint64_t matrix_bytes_in(const matrix *m); /* of destinations that a rank has */
char *matrix_target(const matrix *m, uint32_t tensor, uint32_t which);
/* Number of bytes of a target that are not those of the version; guards must be whole. */
uint64_t matrix_wrong(rank_context *me, const matrix *m, uint32_t tensor, uint32_t which,
                      uint64_t version);
void matrix_expect(rank_context *me, const matrix *m, uint32_t which, uint64_t version,
                   const char *what);

#endif
