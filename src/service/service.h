/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_SERVICE_H
#define FY_SERVICE_SERVICE_H

#include "base/hash.h"
#include "base/index.h"
#include "base/status.h"
#include "convert/convert.h"
#include "exec/area.h"
#include "exec/box.h"
#include "exec/cast.h"
#include "exec/request.h"
#include "exec/team.h"
#include "transport/queued.h"
#include "transport/transport.h"
#include "world/world.h"

#include <ferry/service.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a service knows. Registration fills buffers, destinations and ends (register.c, bind.c);
 * schedule compares them with everybody's (match.c), sorts them, and makes a program (program.h).
 */

#define FY_NONE UINT32_MAX

/* Memory that ends lie in: one for each base that was registered. */
typedef struct fy_held {
    ferry_buffer front;       /* as given; of a pair the one that holds the current version */
    ferry_buffer back;        /* base NULL: there is none */
    uint32_t destination;     /* its destination, or FY_NONE: nothing is received there */
    size_t name;              /* of a bound plan's tensor: into names; else 0 */
    ferry_region *regions[2]; /* that the service made for the target, or NULL: of a pair both */
    bool is_marked;           /* a source that its rank calls unchanged, for the next run */
    bool is_kept;             /* taken for equal in this run */
    uint32_t n_marked;        /* runs in a row for which it was */
    uint32_t codes;           /* values come here that this rank makes the codes of another buffer
                                 of: the service's own memory, and no destination; else FY_NONE */
    uint32_t making;          /* of such values on a mesh: the only one that is made of them */
    bool is_given;            /* codes that this rank makes wait for what comes here */
} fy_held;

/* One destination: see ferry_destination. */
typedef struct fy_target {
    uint32_t held;
    size_t name; /* into names */
    uint32_t state;
    uint64_t version;
    uint64_t bytes;
    uint64_t sum; /* of their areas: which bytes these are */
    uint64_t missing;
    bool is_staged;     /* scales that come with codes, in memory of the service's own */
    bool is_moved;      /* of what becomes products: the schedule brings some of it, and so all */
    bool lacks_nothing; /* by the ledger that is resumed */
    bool is_kept;       /* it has the version of this run already, which others still need */
} fy_target;

/*
 * What becomes of a task's elements on their way. They travel in one of the two types: as the
 * sender has them where the receiver casts, else as the receiver wants them.
 */
typedef struct fy_task_cast {
    fy_cast cast; /* from the sender's type to the receiver's */
    bool at_receiver;
    bool is_raw;                   /* the receiver makes something else of it afterwards */
    uint32_t from_bytes, to_bytes; /* of an element at the sender, at the receiver, */
    uint32_t wire_bytes;           /* and between them */
} fy_task_cast;

/*
 * One half of a task: what this rank sends or receives under its id. The area lies in the buffer
 * `held`; its dimensions lie in a pool, for most have none or one. All else that is said of bytes
 * of a task, here and in items, ranges and messages, counts those that travel.
 */
typedef struct fy_end {
    uint64_t task_id;
    uint32_t peer; /* a rank of the world, which may be this one */
    uint32_t held;
    uint64_t offset;
    uint64_t run_bytes;
    uint64_t bytes;         /* that travel */
    uint64_t element_bytes; /* likewise */
    uint32_t n_dims;
    uint32_t dims;       /* into the pool: n_dims lengths, then as many strides */
    uint32_t conversion; /* 0, or one of the registry's: 1 is the first */
    uint32_t rows;       /* likewise of its rows: of values that come band by band; see bands.c */
} fy_end;

typedef struct fy_ends {
    fy_end *items;
    size_t n, capacity;
    uint64_t greatest_id; /* of the tasks */
    fy_index index;       /* by (peer, task id), of the first n_indexed, while registering */
    size_t n_indexed;
} fy_ends;

/* Bytes that a plan's fills write, again and again; see fills.c. */
typedef struct fy_pattern {
    unsigned char bits[8];
    uint64_t element_bytes;
    char *memory;
    uint32_t held;
} fy_pattern;

/*
 * Blocks of a source that share a scale: the scales of all of it, made anew when a run begins
 * (scales.c), from which its codes follow element by element. Those that are sent are the bytes of
 * `stored`. Codes of half a byte, which no copy makes, are made with them.
 */
typedef struct fy_scaling {
    fy_quantized q;    /* of one matrix of the shard */
    uint64_t n_planes; /* matrices */
    uint32_t source;   /* held: the values */
    uint32_t held;     /* and the stored scales */
    char *stored;
    float *divisors;      /* of elements, one for each scale; NULL: codes are f4 */
    uint64_t n;           /* scales of a matrix */
    uint32_t given;       /* of f4: held, the caller's scale of each matrix; else FY_NONE */
    uint32_t held_codes;  /* and the codes */
    float *tensor_scales; /* as given, read when a run begins */
    char *codes;
} fy_scaling;

/*
 * A destination that gets codes, widened, and the scales of their blocks beside them: once all are
 * there it becomes their products, in place (values.c). What of it is there counts only then.
 */
typedef struct fy_products {
    fy_quantized q;    /* of one matrix of the shard; of boxes only the format and the kind */
    uint64_t n_planes; /* matrices */
    uint32_t target;   /* held: the values */
    uint32_t held;     /* and the scales, */
    char *scales;      /* in memory of the service's own */
    uint64_t scale_bytes;
    float *matrix_scales; /* of f4, likewise; else NULL */
    uint64_t n_matrix_scales;
    uint32_t held_matrix_scales;
    bool is_in_boxes;          /* a parameter: what is multiplied are */
    size_t first_box, n_boxes; /* of the registry's, */
    uint64_t n_bands;          /* so many bands of them */
} fy_products;

/* A box of a parameter that is multiplied; of one that is turned rows are columns. */
typedef struct fy_factor_box {
    fy_end values;              /* an area, and no task */
    uint64_t first_band;        /* among those of the parameter */
    uint64_t n_rows, n_columns; /* of its matrices */
    bool is_turned;
    uint64_t origin[2];    /* the row and the column of its first element in its block, */
    uint64_t scale;        /* the number of that block's scale, */
    uint64_t pitch, step;  /* and from there to the one below, and to the one beside it */
    uint64_t matrix_scale; /* of f4 the number of that of its first matrix */
    uint32_t n_planes;     /* dimensions before those of the matrices, */
    uint32_t planes;       /* into the pool: their lengths, and as many distances of scales, and of
                              those of matrices */
} fy_factor_box;

/*
 * Codes and scales that this rank makes itself at the end of a run (made.c): those of a box of
 * whole blocks, of values that have come.
 */
typedef struct fy_code_maker {
    fy_quantized q;               /* of one matrix of the box */
    uint64_t n_planes;            /* matrices */
    uint64_t band_rows, n_bands;  /* of a matrix: what is worked on at once */
    uint64_t first_band;          /* among those of all makings */
    fy_end values, codes, scales; /* areas, and no tasks; held FY_NONE: it is not stored */
    fy_space space;               /* where the values wait: see made_far.c */
    fy_end given;         /* of f4 the scales of its matrices, which come too; else held FY_NONE */
    float *tensor_scales; /* these, read when the first band is made */
} fy_code_maker;

/*
 * Where a task's box is among the rows of its receiver's shard: of values that come band by band,
 * both ends know it. `group` is the first task of those to the same shard.
 */
typedef struct fy_rows {
    uint64_t group;
    uint32_t n_lead; /* dimensions before rows and columns */
    uint64_t lead[FERRY_MAX_DIMS], lead_length[FERRY_MAX_DIMS];
    uint64_t first, n, row_bytes; /* rows of each matrix of it */
    uint64_t unit;                /* no part goes on beyond a multiple of so many of the shard's */
} fy_rows;

/* Fills are tasks from a rank to itself with numbers from here on. Where there are none, numbers
 * are the caller's, who may use all of them. */
#define FY_FILL_TASKS (UINT64_C(1) << 63)

typedef struct fy_registry {
    fy_held *held;
    size_t n_held, held_capacity;
    fy_index held_by_base;
    fy_target *targets;
    size_t n_targets, target_capacity;
    char *names; /* zero-ended texts; offset 0 is "" */
    size_t names_used, names_capacity;
    uint64_t *dims;
    size_t n_dims, dims_capacity;
    fy_ends sends, receives;
    fy_pattern *patterns;
    size_t n_patterns, pattern_capacity;
    fy_index patterns_by_bits;
    uint64_t n_fills;
    fy_task_cast *conversions;
    size_t n_conversions, conversion_capacity;
    fy_index conversions_by_hash;
    fy_scaling *scalings;
    size_t n_scalings, scaling_capacity;
    fy_index scalings_by_source;
    fy_products *products;
    size_t n_products, products_capacity;
    fy_factor_box *factor_boxes;
    size_t n_factor_boxes, factor_box_capacity;
    size_t first_staged, n_staged; /* of the targets, those that callers do not see */
    fy_code_maker *makings;
    size_t n_makings, making_capacity;
    uint64_t n_bands; /* of all of them */
    fy_rows *rows;
    size_t n_rows, rows_capacity;
    uint64_t gathered_bytes; /* of the values that they are made of */
    ferry_plan *plan;        /* of bind: a reference (fy_plan_retain); else NULL */
    bool scheduled;
    bool has_far;     /* some memory is, or was, not the host's */
    bool has_regions; /* or registered by the caller */
} fy_registry;

static inline bool fy_end_fills(const fy_registry *registry, const fy_end *end)
{
    return registry->n_fills > 0 && end->task_id >= FY_FILL_TASKS;
}

/* An end's area, and what becomes of its elements; NULL: nothing. */
fy_area fy_end_area(const fy_registry *registry, const fy_end *end);
static inline const fy_task_cast *fy_end_conversion(const fy_registry *registry, const fy_end *end)
{
    return end->conversion == 0 ? NULL : &registry->conversions[end->conversion - 1];
}

/*
 * A task's bytes must not be cut but between multiples of this: 1, where neither end looks at
 * elements.
 */
static inline uint32_t fy_end_unit(const fy_registry *registry, const fy_end *end)
{
    const fy_task_cast *its = fy_end_conversion(registry, end);
    return its == NULL ? 1 : its->wire_bytes;
}

/* So many bytes of a task, in the memory of its receiver. */
static inline uint64_t fy_bytes_there(const fy_task_cast *conversion, uint64_t bytes)
{
    return conversion == NULL ? bytes : bytes / conversion->wire_bytes * conversion->to_bytes;
}

/* Where the bytes of a buffer are now: a run of FERRY_COMMIT_SWAP writes to the back. */
static inline const ferry_buffer *fy_held_target(const fy_held *held)
{
    return held->back.base != NULL ? &held->back : &held->front;
}

typedef struct fy_service_program fy_service_program; /* program.h */
typedef struct fy_wire fy_wire;                       /* prepare.h */
typedef struct fy_run_state fy_run_state;             /* run.h */

typedef struct fy_run_request {
    ferry_request base;
    ferry_service *service;
    struct fy_run_request *next; /* of the service's */
    bool is_spare;               /* the caller has destroyed it, or nobody has it */
    bool on_queue;               /* a queue's thread moves it on, and nobody else */
    bool is_abandoned;           /* it is spare once it is over */
    bool is_captured;            /* a graph has it: it is used anew at each launch */
    _Atomic bool done;
    _Atomic bool cancelled;
    ferry_status status; /* when done */
    ferry_error error;
} fy_run_request;

struct ferry_service {
    ferry_world *world; /* retained */
    ferry_transport *transport;
    ferry_service_options options; /* with defaults filled in; engines is own_engines */
    char *own_engines;
    bool initialized, finalized;
    fy_registry registry;
    fy_team *team;
    fy_service_program *program; /* after schedule, else NULL */
    fy_run_state *run;           /* with the program */
    fy_wire *wire;               /* while the program is made */
    /* Symmetric; kept from schedule to schedule. Those aside lie in memory of devices. */
    struct ferry_region *control, *slots, *hashes, *digests, *slots_aside;
    fy_run_request *request;  /* of the run under way */
    fy_run_request *requests; /* all that were made */
    fy_work work;             /* what others can ask of its runs; has its number */
    pthread_mutex_t working;  /* held by the thread that moves a run on */
    /* Runs on a device's queue: */
    fy_captures captures;       /* runs that graphs have */
    _Atomic bool runs_in_host;  /* a run is under way in host order */
    pthread_mutex_t queue_lock; /* of which requests are spare or done, and of the count */
    pthread_cond_t queue_moved;
    _Atomic uint32_t n_on_queue; /* that are not over */
    uint32_t n_runs_begun;       /* stamps words */
    uint32_t n_pairs;            /* exchanges among pairs: numbers their letters */
    _Atomic bool blocks;         /* who holds `working` waits for the run's end */
    bool is_dirty;               /* what a failed run has put may be under way */
    ferry_ledger *ledger;        /* for the next schedule, or NULL */
    ferry_ledger *kept;          /* of a program that went; NULL while there is one */
    bool refuses;                /* the next collective call, for this reason */
    ferry_error refusal;
    ferry_progress_fn progress;
    void *progress_context;
    uint64_t version; /* newest that is whole everywhere */
    uint64_t n_begun; /* versions that were begun */
    ferry_service_statistics statistics;
};

/* Versions count on from it to none. */
#define FY_MOST_VERSION (UINT64_MAX - 1)

/* A run of it is under way, or waits for its turn on a queue. */
static inline bool fy_service_is_busy(const ferry_service *service)
{
    return atomic_load(&service->n_on_queue) > 0 || service->request != NULL;
}

/* request.c: FERRY_ERR_MISUSE with a sentence that begins with `what`, while a run is on a queue.
 */
ferry_status fy_service_check_idle(const ferry_service *service, const char *what,
                                   ferry_error *error);
/* The same, and while the world is a queue's. */
ferry_status fy_service_check_order(const ferry_service *service, const char *what,
                                    ferry_error *error);

/* What its joint calls are made on. */
static inline uint64_t fy_service_object(const ferry_service *service)
{
    return fy_joint_object(service->work.number, 0);
}

/*
 * Around a call of the service that all ranks make together: its steps are counted. Only the thread
 * that makes such calls changes their number.
 */
static inline uint64_t fy_exchanges_enter(ferry_service *service, fy_joint_call call)
{
    fy_joint_enter(service->world, call, fy_service_object(service));
    return service->world->here->n_exchanges;
}
static inline void fy_exchanges_leave(ferry_service *service, uint64_t before)
{
    service->statistics.n_exchanges += service->world->here->n_exchanges - before;
    fy_joint_leave(service->world);
}

/* request.c: its place among what the world moves on, under a number that all ranks agreed on. */
void fy_service_work_add(ferry_service *service, uint32_t number);
void fy_service_work_remove(ferry_service *service);

/* create.c: what ferry_service_init does beside its checks. */
ferry_status fy_service_open(ferry_service *service, ferry_error *error);
/* What the caller refuses to do, once: FERRY_ERR_INVALID_INPUT with its reason; else FERRY_OK. */
ferry_status fy_take_refusal(ferry_service *service, ferry_error *error);

/* register.c */

/* Frees everything and leaves an empty registry. */
void fy_registry_cleanup(fy_registry *registry);

/*
 * Adds an end to the registry: the buffer becomes a held one if its base is new (one base with two
 * lengths: the longer counts), and a destination for a receive. name may be NULL. Checks all that
 * one rank can: sizes, the area within the buffer, kinds of memory, a second id for the pair.
 */
ferry_status fy_registry_add(fy_registry *registry, bool is_send, uint64_t task_id, uint32_t peer,
                             const ferry_box *box, ferry_error *error);

/* The index of a held buffer, added if its base is new; pairs bring a back. tensor: offset of its
 * name in names, or 0. */
ferry_status fy_registry_hold(fy_registry *registry, const ferry_buffer *front,
                              const ferry_buffer *back, size_t name, uint32_t *held_out,
                              ferry_error *error);
ferry_status fy_registry_name(fy_registry *registry, const char *name, size_t *name_out,
                              ferry_error *error);

/* Takes note of what kind of memory is held: whoever puts a buffer there says so. */
void fy_registry_note(fy_registry *registry, const ferry_buffer *buffer);

/* Sorts both lists by (peer, task id). The ids' index is not needed any more, and freed. */
void fy_registry_sort(fy_registry *registry);

/* "task 7 (model.embed) from rank 0 to rank 1": for sentences. */
void fy_end_describe(const fy_registry *registry, const fy_end *end, bool is_send, uint32_t my_rank,
                     char *text, size_t text_bytes);

/* tensors.c */
size_t fy_tensors_count(const ferry_tensors *tensors); /* NULL: 0 */
const char *fy_tensors_name(const ferry_tensors *tensors, size_t index);
const ferry_buffer *fy_tensors_front(const ferry_tensors *tensors, size_t index);
const ferry_buffer *fy_tensors_back(const ferry_tensors *tensors, size_t index); /* NULL: none */
/* SIZE_MAX where there is none. */
/* SIZE_MAX if there is none. The tensor at `guess` is looked at first: lists have like orders. */
size_t fy_tensors_find(const ferry_tensors *tensors, const char *name, size_t guess);

/* bind.c: into an empty registry. Ranks of the plan are members (ferry_world_member_of). */
ferry_status fy_bind(fy_registry *registry, const ferry_world *world, const ferry_plan *plan,
                     const ferry_tensors *sources, const ferry_tensors *destinations,
                     bool wants_pairs, ferry_error *error);

/* overlap.c: FERRY_ERR_INVALID_INPUT where two receives write one byte; names both tasks. Near
 * linear in runs for disjoint areas; receives of one box shape are compared without their runs. */
ferry_status fy_check_writers(const fy_registry *registry, uint32_t my_rank, ferry_error *error);

/* scales.c: the scaling of a source's shard, made where there is none; its number. */
ferry_status fy_registry_scale(fy_registry *registry, uint32_t source, uint32_t given,
                               const fy_quantized *q, uint64_t n_planes, uint32_t *number_out,
                               ferry_error *error);
void fy_scalings_free(fy_registry *registry);
/* Whether f4 can be made by scales of matrices; held: the tensors of these, and of what they are
 * for. */
ferry_status fy_scales_check_given(const ferry_service *service, uint32_t given,
                                   const float *scales, uint64_t n, uint32_t values,
                                   ferry_error *error);

/*
 * Of a run that has begun: makes some of the scales, in the order of the sources; false: all are
 * made.
 */
bool fy_scales_step(ferry_service *service);

/* Matrices of a box, and of each of them, of f4, the number of its scale. */
uint64_t fy_factor_box_planes(const fy_registry *registry, const fy_factor_box *box);
uint64_t fy_factor_box_matrix(const fy_registry *registry, const fy_factor_box *box,
                              uint64_t plane);

/* values.c: what becomes of a destination's codes, with new memory for its scales, zeroed. */
ferry_status fy_registry_multiply(fy_registry *registry, const fy_products *products,
                                  fy_products **added_out, ferry_error *error);
/* Of f4 the same for the scales of its matrices. */
ferry_status fy_registry_multiply_matrices(fy_products *products, uint64_t n, ferry_error *error);
void fy_products_free(fy_registry *registry);
/* Of a program that was made: notes which of them it brings. Bytes of the scales of all. */
uint64_t fy_products_scheduled(ferry_service *service);
/*
 * Of a run that has brought everything: some of the products; false: all are made, or the run was
 * given up.
 */
bool fy_products_step(ferry_service *service);
/* value_boxes.c: a band of values of a parameter at base; or in memory that the CPU does not touch
 * some from this one on, `most` or fewer, and how many. */
void fy_factor_band(const fy_registry *registry, const fy_products *products, void *base,
                    uint64_t number);
ferry_status fy_factor_bands_far(const fy_registry *registry, const fy_products *products,
                                 const ferry_buffer *target, uint64_t number, uint64_t most,
                                 uint64_t *n_out, ferry_error *error);
/* Whether a destination has codes of the last run, or parts of them, in place of products. */
static inline bool fy_product_is_missing(const fy_registry *registry, size_t n_made, size_t index)
{
    return index >= n_made &&
           registry->targets[registry->held[registry->products[index].target].destination].is_moved;
}

/* made.c: memory for values of which the codes in another buffer will be made. */
ferry_status fy_registry_gather(fy_registry *registry, uint32_t codes, uint64_t bytes,
                                uint32_t *held_out, ferry_error *error);
/* areas: of values, codes, scales and given; of the making's ends only `held` is said. */
ferry_status fy_registry_make(fy_registry *registry, const fy_code_maker *making,
                              const fy_area areas[4], ferry_error *error);
void fy_makings_free(fy_registry *registry);
/*
 * made_far.c: of each making where its values would best wait; how many spaces that are. Then
 * memory for all of them there, or where they come in order only what the registry holds on the
 * host. And no memory any more.
 */
uint64_t fy_makings_choose(fy_registry *registry);
ferry_status fy_makings_gather(fy_registry *registry, bool by_bands, ferry_error *error);
void fy_gathered_free(fy_held *held);
/*
 * What is worked on at once by a thread: about a MiB of values, as rows of a matrix that are whole
 * rows of blocks, and units of bands.c.
 */
typedef struct fy_matrix_bands {
    uint64_t row_bytes; /* of values */
    uint64_t rows, n;   /* of a band, and how many a matrix has */
} fy_matrix_bands;
fy_matrix_bands fy_matrix_bands_of(const fy_quantized *q);
/* How far behind the first value a band begins, matrix after matrix, and its rows. */
uint64_t fy_band_at(const fy_quantized *q, const fy_matrix_bands *bands, uint64_t band,
                    uint64_t *n_rows_out);
static inline uint64_t fy_row_unit(uint64_t block_rows)
{
    enum { FEW_ROWS = 64 };
    return (FEW_ROWS + block_rows - 1) / block_rows * block_rows;
}
/* What is held for it, while there is a program. */
uint64_t fy_makings_bytes(const ferry_service *service);
/* Makes some of what has come; false: there is nothing to make, or a device makes it just now. */
bool fy_makings_step(ferry_service *service);
/* Nothing of it is under way on a device; else one that gives up drops it once it is done. */
bool fy_makings_are_still(ferry_service *service, bool gives_up);
void fy_makings_finish(ferry_service *service); /* waits for that */
/* Adds what was not made to what targets miss. */
void fy_makings_miss(ferry_service *service);

/*
 * match.c: all sends less all receives. Summed up over the ranks, each half modulo 2^64, it is zero
 * where every task has both its ends with the same bytes.
 */
fy_hash128 fy_match_sum(const fy_registry *registry, uint32_t my_rank);
/*
 * Collective, where it is not; the ends are sorted. FERRY_ERR_INVALID_INPUT on all ranks, with the
 * sentence of the first task that only one side registered, or with different bytes.
 */
ferry_status fy_match_explain(ferry_world *world, const fy_registry *registry, ferry_error *error);

#endif
