/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_SERVICE_SCENE_H
#define FERRY_TESTS_SERVICE_SCENE_H

#include "service/suite.h"

/*
 * Everything that all ranks register, drawn from a seed that all ranks share, so that each knows
 * what every byte of its own memory must be after a run. The reference goes over elements by the
 * arithmetic of boxes and knows nothing of runs, batches or paths.
 *
 * A buffer begins with what is received and ends with what is sent. Bytes are a function of rank,
 * buffer, offset and version, so sources differ from run to run.
 */
enum { MOST_BUFFERS = 3, MOST_TASKS = 600 };
#define SCENE_EDITS ((uint64_t)1 << 32) /* versions from here on: see scene_key */

typedef enum memory_kind { MEMORY_PLAIN, MEMORY_FERRY, MEMORY_REGISTERED, N_MEMORY } memory_kind;

typedef struct scene_end {
    uint32_t buffer;
    bool flat; /* by position and size; else a box */
    uint64_t element_bytes, offset;
    uint32_t n_dims;
    uint64_t length[FERRY_MAX_DIMS], stride[FERRY_MAX_DIMS];
} scene_end;

typedef struct scene_task {
    uint64_t id, bytes;
    uint32_t from, to;
    scene_end source, target;
} scene_task;

typedef struct scene_buffer {
    memory_kind kind;
    uint64_t target_bytes, source_bytes;
    uint32_t skew; /* of the base */
    int32_t far;   /* the device that it lies on; -1: the host */
} scene_buffer;

typedef struct scene {
    uint64_t seed;
    uint32_t n_ranks, n_tasks;
    scene_buffer buffers[MOST_RANKS][MOST_BUFFERS];
    scene_task tasks[MOST_TASKS];
} scene;

/* How large things get. */
typedef struct scene_limits {
    uint32_t most_tasks;
    uint32_t most_bytes; /* of a task */
} scene_limits;

/* This rank's memory for it. */
typedef struct scene_memory {
    ferry_buffer buffers[MOST_BUFFERS];  /* what is registered */
    ferry_buffer whole[MOST_BUFFERS];    /* with the guards; of far memory an image of it */
    ferry_buffer far[MOST_BUFFERS];      /* with the guards, where it is far */
    unsigned char *wanted[MOST_BUFFERS]; /* of the buffer with its guards */
} scene_memory;

/* The device that memory number `index` of the rank lies on; -1: the host. For FERRY_TEST_FAR. */
int32_t draw_far(uint64_t seed, uint32_t rank, uint32_t index);
/* Copies all of it, at once. */
void copy_far(rank_context *me, ferry_buffer to, ferry_buffer from);

void scene_draw(scene *s, uint64_t seed, uint32_t n_ranks, const scene_limits *limits);

/* transport: of the service, for memory of kinds that need one. */
void scene_take(rank_context *me, const scene *s, ferry_transport *transport, scene_memory *memory);
void scene_give_back(const rank_context *me, const scene *s, scene_memory *memory);

/* In an order of this rank's own. */
void scene_register(rank_context *me, const scene *s, ferry_service *service,
                    const scene_memory *memory);

/* Poison where bytes are received, and the sources of a version. */
void scene_fill(rank_context *me, const scene *s, scene_memory *memory, uint64_t version,
                bool poison);
/* What must be there after a run that moved this version. */
void scene_expect(rank_context *me, const scene *s, const ferry_service *service,
                  scene_memory *memory, uint64_t version, const char *what);
/*
 * After a run that failed with the sources of version `failed`, where the service had reached
 * n_before by moving `before`: a destination that is called valid is whole.
 */
void scene_expect_truth(rank_context *me, const scene *s, const ferry_service *service,
                        scene_memory *memory, uint64_t n_before, uint64_t before, uint64_t failed);
/* Guards, sources, and every byte that nobody writes; received bytes may be anything. */
void scene_expect_kept(rank_context *me, const scene *s, scene_memory *memory, uint64_t version,
                       const char *what);

uint64_t scene_bytes_out(const scene *s, uint32_t rank);
uint64_t scene_bytes_in(const scene *s, uint32_t rank, bool own_too);

void scene_check_statistics(rank_context *me, const scene *s, const ferry_service *service,
                            uint64_t memory_cap);

#endif
