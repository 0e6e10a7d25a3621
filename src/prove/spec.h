/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_SPEC_H
#define FY_PROVE_SPEC_H

#include "base/alloc.h"
#include "base/index.h"
#include "base/status.h"

#include <ferry/dtype.h>

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A second reading of ferry.spec/1, for the prover alone. It keeps the words of the file (rules,
 * stages, cuts) and derives nothing but which rule and which stages a tensor falls under.
 *
 * Coordinates and shapes are arrays of FY_PROOF_DIMS numbers, aligned to the right: a matrix uses
 * the last two, and the dimensions before them have the extent 1. So a scalar is a box of one
 * element, and a matrix that fills one slice of a stack needs no case of its own.
 */
enum { FY_PROOF_DIMS = 8, FY_PROOF_AXES = 32 };

/* Extents, counts and tensors' bits stay below this, so sums and products of a few cannot wrap. */
#define FY_PROOF_MOST ((uint64_t)1 << 62)

/* How many pieces one shard may have on one dimension. */
#define FY_PROOF_MOST_PIECES ((uint64_t)1 << 24)

typedef struct fy_proof_member {
    uint32_t rank;
    uint32_t index; /* row-major, in the mesh */
} fy_proof_member;

typedef struct fy_proof_mesh {
    size_t n_axes;
    const char *names[FY_PROOF_AXES]; /* slowest first */
    uint64_t sizes[FY_PROOF_AXES];
    uint64_t n_ranks;
    uint64_t first_rank;
    const fy_proof_member *members; /* ascending by rank; NULL: rank = first_rank + index */
} fy_proof_mesh;

typedef struct fy_proof_block {
    uint64_t size;
    uint64_t parts; /* [size, parts], or the cut's own */
} fy_proof_block;

/* One entry of "shard", or a "flat": how an extent is cut over axes. */
typedef struct fy_proof_cut {
    uint64_t dim; /* as the spec counts; a flat has none */
    size_t n_axes;
    size_t axes[FY_PROOF_AXES];
    uint64_t n_ranks; /* P, the product of the axes' sizes */
    uint64_t parts;   /* k, or P */
    uint64_t unit;
    uint64_t stride; /* 1: none */
    uint64_t cycle;  /* 0: none */
    bool nested;
    size_t n_blocks;
    const fy_proof_block *blocks; /* NULL: none */
    size_t n_sizes;
    const uint64_t *sizes; /* NULL: none */
} fy_proof_cut;

/* The coordinates of one axis that hold a tensor. */
typedef struct fy_proof_pin {
    size_t axis;
    size_t n_coordinates;
    const uint64_t *coordinates;
} fy_proof_pin;

/* What becomes of elements: times scale, plus add, and rounded to another type. */
typedef struct fy_proof_cast {
    bool is_said;
    bool saturates;
    float scale; /* 1: none */
    float add;
} fy_proof_cast;

/* What values become by blocks: codes, and one scale for each block. */
typedef struct fy_proof_quantize {
    ferry_dtype codes, scales;
    const char *kind; /* of scales, in the words of a spec */
    uint64_t block[2];
    const char *scale; /* the name of their tensor, before its star is replaced */
    const char *given; /* of f4 that of the scales of matrices, which the source has; else NULL */
} fy_proof_quantize;

/* Codes that become values by scales, which the source has, too. */
typedef struct fy_proof_codes {
    const char *scale; /* the name of these, before its star is replaced */
    uint64_t block[2];
} fy_proof_codes;

typedef struct fy_proof_rule {
    const char *match;
    bool skip;
    size_t n_cuts;
    const fy_proof_cut *cuts;
    const fy_proof_cut *flat; /* NULL: none */
    size_t n_pins;
    const fy_proof_pin *pins;
    uint32_t axes;     /* bit a: the rule uses axis a */
    ferry_dtype dtype; /* that the destination wants; no bits: that of the tensor */
    fy_proof_cast cast;
    const fy_proof_quantize *quantize; /* NULL: none */
    const fy_proof_codes *codes;       /* NULL: none */
} fy_proof_rule;

typedef struct fy_proof_stage {
    const char *match;
    size_t axis;
    uint64_t count;        /* with sizes: their sum */
    const uint64_t *sizes; /* one per coordinate; NULL: count items are dealt evenly */
} fy_proof_stage;

enum { FY_PROOF_LOOPS = 4, FY_PROOF_STEPS = FY_PROOF_LOOPS + FY_PROOF_DIMS };

/* One way in which a box goes on in memory: so many times, each so many elements further. */
typedef struct fy_proof_step {
    uint64_t count;
    uint64_t stride;
} fy_proof_step;

#define FY_PROOF_FILL UINT32_MAX

/*
 * A box of a parameter's memory: a part of a tensor, or a fill. Its steps are those of the loops,
 * the outer first, and then those of the dimensions; a loop or dimension too few has a count of 1.
 */
typedef struct fy_proof_held {
    uint32_t tensor; /* FY_PROOF_FILL: none */
    uint64_t offset;
    uint64_t begin[FY_PROOF_DIMS]; /* in the tensor */
    fy_proof_step steps[FY_PROOF_STEPS];
    const uint64_t (*loops)[FY_PROOF_DIMS]; /* what each loop adds to begin; NULL: no loops */
    const char *bits;                       /* of a fill, hexadecimal; NULL: zero */
} fy_proof_held;

typedef struct fy_proof_lattice fy_proof_lattice; /* prove/lattice.h */

/* The memory of one name on one rank, or on ranks that are alike. */
typedef struct fy_proof_parameter {
    const char *name;
    ferry_dtype dtype;
    fy_proof_cast cast;
    const fy_proof_quantize *quantize; /* NULL: none */
    const fy_proof_codes *codes;       /* NULL: none */
    uint64_t elements;
    bool is_partial;
    uint32_t rank;  /* the first that has it, for sentences */
    size_t n_boxes; /* none is empty */
    const fy_proof_held *boxes;
    const fy_proof_lattice *lattice;
} fy_proof_parameter;

/* What each rank of a side in boxes has. */
typedef struct fy_proof_memory {
    size_t n_parameters;
    const fy_proof_parameter *parameters; /* in the order of the spec */
    const size_t *first;                  /* of the owned, by position of the rank, and the end */
    const uint32_t *owned;                /* parameters, rank by rank, ascending */
    fy_index by_name;                     /* of the owned, by the hash of name and position */
} fy_proof_memory;

typedef struct fy_proof_side {
    const char *name;
    fy_proof_mesh mesh;      /* of a side in boxes only the ranks */
    fy_proof_memory *memory; /* NULL: a mesh */
    size_t n_stages;
    const fy_proof_stage *stages;
    size_t n_rules;
    const fy_proof_rule *rules;
} fy_proof_side;

/* The box (begin, shape) of a source tensor fills the box that starts at `at`. */
typedef struct fy_proof_box {
    const char *tensor; /* its name, before {0} is replaced; NULL: the tensor itself */
    size_t n_dims;      /* of begin and shape, as written */
    uint64_t begin[FY_PROOF_DIMS];
    uint64_t shape[FY_PROOF_DIMS];
    uint64_t at[FY_PROOF_DIMS];
} fy_proof_box;

typedef struct fy_proof_tree fy_proof_tree; /* prove/boxes.h */

/* Of a tensor of scales: whose they are. */
typedef struct fy_proof_scaling {
    uint32_t tensor; /* of the values, which comes before */
    const fy_proof_quantize *quantize;
    uint64_t values[FY_PROOF_DIMS]; /* the shape of that */
    uint64_t block[FY_PROOF_DIMS];
    uint32_t from; /* of scales that come beside codes: the tensor that the spec has of them */
    bool is_of_matrices; /* of those: of f4, an f32 for each matrix */
} fy_proof_scaling;

/* What all tensors of one entry of "tensors" share. */
typedef struct fy_proof_entry {
    ferry_dtype dtype;
    size_t n_dims;
    uint64_t shape[FY_PROOF_DIMS];
    uint64_t volume;
    size_t n_counts;
    const uint64_t *counts;
    bool has_source;
    bool is_tied;        /* "source": NAME; its only box is the whole of that tensor */
    bool is_source_only; /* "only": "source" */
    size_t n_boxes;
    const fy_proof_box *boxes;       /* at least one; they tile the tensor */
    const fy_proof_tree *tree;       /* of them; NULL: there is one */
    const fy_proof_scaling *scaling; /* NULL: these are no scales */
    const fy_proof_scaling *staged;  /* NULL: nor those that come beside codes; has no quantize */
} fy_proof_entry;

/* Where one side keeps a tensor. */
typedef struct fy_proof_spot {
    const fy_proof_rule *rule; /* NULL: nowhere */
    size_t n_pins;
    const fy_proof_pin *pins; /* from stages; the rule has its own */
} fy_proof_spot;

enum { FY_PROOF_SOURCE = 0, FY_PROOF_DESTINATION = 1, FY_PROOF_SIDES = 2 };

typedef struct fy_proof_tensor {
    const char *name;
    const fy_proof_entry *entry;
    uint64_t number;         /* row-major in the entry's counts */
    const uint32_t *sources; /* tensor of each box; NULL: the tensor itself */
    const uint32_t *fed_by;  /* the same in ascending order */
    ferry_dtype scale_dtype; /* of the scales that come beside it; no bits: none do */
    uint32_t
        given; /* where it becomes f4: 1 + the tensor with the scales of its matrices; else 0 */
    bool is_between; /* it has a source and is one: no side needs a rule for it */
    fy_proof_spot spots[FY_PROOF_SIDES]; /* on meshes */
    bool is_held[FY_PROOF_SIDES];        /* in boxes, some of it */
} fy_proof_tensor;

/* All zero but looks before it is read. Everything in it lives until the cleanup. */
typedef struct fy_proof_spec {
    fy_arena arena;
    json_t *json;
    fy_proof_side sides[FY_PROOF_SIDES];
    bool is_listed; /* "tensors" gives their order; "model" gives none */
    size_t n_tensors;
    size_t tensors_capacity;
    fy_proof_tensor *tensors;
    fy_index by_name;
    uint64_t *looks;        /* counts what is compared to find boxes; set by who reads it */
    uint64_t most_elements; /* of a parameter that is looked at element by element; set likewise */
} fy_proof_spec;

ferry_status fy_proof_spec_read(const char *path, fy_proof_spec *spec, ferry_error *error);
void fy_proof_spec_cleanup(fy_proof_spec *spec);

bool fy_proof_spec_find(const fy_proof_spec *spec, const char *name, uint32_t *tensor_out);

/* Which tensor feeds box number box of a tensor. */
uint32_t fy_proof_spec_source(const fy_proof_spec *spec, uint32_t tensor, size_t box);

/* Whether it feeds some box of a tensor. */
bool fy_proof_spec_is_fed_by(const fy_proof_spec *spec, uint32_t tensor, uint32_t source);

/* The box of a tensor that holds a global element of it; hint is tried first. */
size_t fy_proof_box_at(const fy_proof_spec *spec, const fy_proof_entry *entry,
                       const uint64_t *element, size_t hint);

/* The number of the owned of that name at a position of a side in boxes; SIZE_MAX: there is none.
 */
size_t fy_proof_memory_find(const fy_proof_memory *memory, size_t position, const char *name);

/* The place of a rank among the mesh's ranks in ascending order. */
bool fy_proof_mesh_find(const fy_proof_mesh *mesh, uint64_t rank, uint64_t *position_out);
uint64_t fy_proof_mesh_rank(const fy_proof_mesh *mesh, uint64_t position);
void fy_proof_mesh_coordinates(const fy_proof_mesh *mesh, uint64_t position,
                               uint64_t *coordinates_out);

/* "[0:4, 8:16]" for the last n_dims dimensions of a box, cut to fit. */
void fy_proof_slice_format(char *text, size_t text_bytes, size_t n_dims, const uint64_t *begin,
                           const uint64_t *length);

/* "[0, 8]" */
void fy_proof_element_format(char *text, size_t text_bytes, size_t n_dims, const uint64_t *element);

#endif
