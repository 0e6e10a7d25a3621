/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_RESHARD_H
#define FY_CHECKPOINT_RESHARD_H

#include "checkpoint/changer.h"
#include "checkpoint/folder.h"
#include "checkpoint/form.h"
#include "checkpoint/gather.h"
#include "checkpoint/journal.h"
#include "checkpoint/maker.h"
#include "checkpoint/onto.h"

/* The bytes that each thread of a job reads into and works in: shares of the memory cap. */
typedef struct fy_buffers {
    uint32_t n_threads;
    uint64_t span_bytes;
    uint64_t window_bytes;
    uint64_t room_bytes; /* two windows, or a tile of a weight, what it becomes, and its scales */
} fy_buffers;

fy_buffers fy_share_memory(uint64_t cap_bytes, uint32_t n_threads);

/*
 * The same where weights are changed in tiles that need least_bytes: fewer threads, if the cap is
 * low. FERRY_ERR_LIMIT: it is too low for one.
 */
ferry_status fy_share_memory_for_tiles(uint64_t cap_bytes, uint32_t n_threads, uint64_t least_bytes,
                                       fy_buffers *buffers_out, ferry_error *error);

/* What making parameters needs. */
typedef struct fy_boxes_need {
    bool casts;
    bool has_blocks;      /* codes are made, or become values: there is a second span */
    uint64_t least_bytes; /* of values that are quantized at once */
} fy_boxes_need;

/* Where parameters are made of boxes: a thread's room is a maker's. Fewer threads, if the cap is
 * low; FERRY_ERR_LIMIT: it is too low for one. */
ferry_status fy_share_memory_for_boxes(uint64_t cap_bytes, uint32_t n_threads,
                                       const fy_boxes_need *need, fy_buffers *buffers_out,
                                       fy_maker_room *room_out, ferry_error *error);

/* Windows of a source in boxes that has tensors in another order: the longer one is, the longer
 * are the runs that it takes of many places. */
void fy_widen_windows(fy_buffers *buffers, uint64_t cap_bytes, const ferry_checkpoint *from);

/* FERRY_ERR_MISUSE of a cap that is too small, or of too many threads; 0 is the default. */
ferry_status fy_check_buffers(uint64_t cap_bytes, uint32_t n_threads, ferry_error *error);

/* A file of the result. Its tensors are tagged with their numbers in the job. */
typedef struct fy_out_file {
    char *name;
    uint32_t rank;
    fy_form form;
    size_t capacity;  /* of its tensors */
    uint32_t *by_tag; /* positions in the form, by ascending tag */
} fy_out_file;

struct ferry_reshard {
    const ferry_checkpoint *from;
    char *to;
    char *subset;
    uint32_t cast;
    char *quantize, *dequantize; /* as they were asked for; NULL: not */
    char *names;                 /* likewise */
    uint64_t part_bytes;
    uint64_t cap_bytes; /* as asked for; and threads */
    uint32_t asked_threads;
    fy_buffers buffers;
    json_t *side;          /* of the result, where it is sharded; else NULL */
    json_t *tensors;       /* that the layout file lists, or NULL */
    ferry_side *boxes;     /* the side, where it is in boxes, until it is in what follows */
    bool boxes_dequantize; /* parameters of it say so, not an option */
    bool boxes_quantize;   /* likewise; quantize is then what they say */
    fy_boxed *boxed;       /* NULL: the side is a mesh, or there is none */
    bool *wants_parameter; /* [its parameters] by the subset */
    fy_maker_room maker_room;
    json_t *replicated; /* names that no built-in rule knows, or NULL */
    json_t *left_out;   /* pairs of a name that the naming leaves out, and why; or NULL */
    fy_layout_job job;
    fy_layout_job whole; /* to one rank that has everything: where changes read scales */
    bool has_whole;
    uint32_t *changed; /* [n_changed] the weights that are quantized or dequantized */
    size_t n_changed;
    char *config; /* what casts and the like make of config.json; NULL: what it was */
    size_t config_length;
    char *quantization;      /* the quantization_config of the result; NULL: as the source's */
    bool drops_quantization; /* it has none */
    fy_hash128 target_key;   /* of the layout that was asked for, as resolved */
    fy_arena arena;
    bool is_sharded;
    fy_out_file *out;
    size_t n_out;
    uint32_t *part_of; /* logical: the file of each tensor of the job */
    ferry_reshard_totals totals;
};

/* What a tensor's elements become. */
typedef struct fy_out_type {
    ferry_dtype dtype;
    const char *text;
    uint32_t element_bits; /* in the file: opaque ones have their own */
    bool is_cast;
} fy_out_type;

/* Of a tensor of a job. */
fy_out_type fy_out_type_of(const fy_layout_job *job, uint32_t tensor);

fy_out_type fy_reshard_type(const ferry_reshard *reshard, uint32_t tensor);

/* Where a tensor, or a parameter, stands in a file's form; it is there. */
fy_form_tensor *fy_out_find(const fy_out_file *file, uint32_t tensor);

/* The checkpoint's config.json, parsed; NULL: there is none. */
ferry_status fy_config_load(const ferry_checkpoint *from, json_t **config_out, ferry_error *error);

/* The text of a config.json for fy_free, of the checkpoint where path is NULL; NULL: it has none.
 */
ferry_status fy_config_read(const ferry_checkpoint *from, const char *path, char **text_out,
                            size_t *length_out, ferry_error *error);

/* What a config.json calls the type that tensors are cast to; NULL: they are not. */
const char *fy_reshard_torch_dtype(const ferry_reshard *reshard);

/* A checkpoint's tensors under other names. */
typedef struct fy_named {
    const ferry_checkpoint *from;
    const char *to;               /* the target, for sentences */
    const ferry_checkpoint *with; /* what it is compared with; NULL: it is written */
    json_t *tensors;  /* as a layout lists them; NULL where one of these says it in boxes: */
    ferry_side *made; /* of what it is compared with, as if one rank had all, or */
    bool is_boxed;    /* that itself */
    json_t *left_out; /* pairs of a name that the naming leaves out, and why: the caller's */
} fy_named;

/* names: as in ferry_reshard_options; config: the text of a config.json, or NULL. */
ferry_status fy_named_list(fy_named *named, const char *names, const char *config,
                           size_t config_length, ferry_error *error);

/* The tensors of the result in the naming that is asked for, of a config.json. */
ferry_status fy_reshard_name_tensors(ferry_reshard *reshard, const char *config,
                                     size_t config_length, ferry_error *error);

/* Puts the JSON's text on record, "" for NULL. */
ferry_status fy_reshard_digest_json(fy_digest *digest, const json_t *json, ferry_error *error);

/* The forms of all files of the result. */
ferry_status fy_reshard_make_forms(ferry_reshard *reshard, ferry_error *error);

enum { FY_MOST_CELLS_AT_ONCE = 64 };

/* One run of a reshard. */
typedef struct fy_reshard_worker {
    fy_gather gather;
    fy_changer changer;
    fy_maker maker;
    char *room;         /* of both that follow, or of tiles */
    char *window;       /* what is gathered */
    char *cast;         /* what it becomes, if it is cast */
    fy_hasher *hashers; /* two for each of the cells that take turns */
    void *raw_hashers;
    fy_window_walk *walks;
} fy_reshard_worker;

typedef struct fy_reshard_work {
    ferry_reshard *reshard;
    const ferry_reshard_run_options *options;
    fy_folder folder;
    fy_journal journal;
    fy_files *in;
    fy_files *out;
    fy_onto *onto; /* an older result, or NULL */
    fy_checked checked;
    fy_matrices *matrices; /* of a result in boxes; NULL: there are none */
    fy_pace pace;
    fy_reshard_worker *workers; /* [buffers.n_threads] */
    uint32_t *order;            /* tensors, or parameters, that are to be made, in this order */
    uint32_t *unit_begin;       /* in boxes: [n_order + 1] into order; a unit takes turns */
    size_t n_order;             /* parts of the work: tensors, or units */
    uint64_t **resumed;         /* [n_tensors, or parameters] checksums of an earlier run; NULL */
    _Atomic uint64_t *dirty;    /* [n_out] bytes written and not yet on their way */
    _Atomic uint64_t done_bytes;
    _Atomic uint64_t resumed_bytes;
    _Atomic bool stops;
    _Atomic bool has_records; /* in the journal: worth going on with */
    bool may_resume;          /* nobody has found yet that it is not */
    bool goes_on;             /* where an earlier run ended */
    uint64_t total_bytes;
    _Atomic bool copies_in_kernel;
    const char *phase;
    const char *anew; /* why what was left is not gone on with; NULL */
    double began;
} fy_reshard_work;

ferry_status fy_reshard_worker_init(fy_reshard_worker *worker, fy_reshard_work *work,
                                    ferry_error *error);
void fy_reshard_worker_cleanup(fy_reshard_worker *worker);

/* Makes one tensor of the result in all files that have it, or finds that an earlier run has. */
ferry_status fy_reshard_tensor(fy_reshard_work *work, fy_reshard_worker *worker, uint32_t tensor,
                               ferry_error *error);

/* ---- a result in boxes ---- */

/* What the job's tensors become of the boxes of the layout: before the job is placed. */
ferry_status fy_reshard_make_boxed(ferry_reshard *reshard, ferry_error *error);
/* What must be quantized at once, at least. */
uint64_t fy_reshard_least_bytes(const ferry_reshard *reshard);
/* The parameters of its files. */
ferry_status fy_reshard_add_parameters(ferry_reshard *reshard, ferry_error *error);
/* The bytes that they are made of. */
ferry_status fy_reshard_count_boxes(ferry_reshard *reshard, ferry_error *error);
/* The units of the work, in order. */
ferry_status fy_reshard_order_parameters(fy_reshard_work *work, ferry_error *error);
/* As fy_reshard_tensor of all parameters of a unit. */
ferry_status fy_reshard_unit(fy_reshard_work *work, fy_reshard_worker *worker, size_t unit,
                             ferry_error *error);
/* The layout file up to its list of tensors. */
void fy_reshard_write_boxes(const ferry_reshard *reshard, fy_writer *writer);

/* How many things may be in the journal: tensors, or parameters. */
size_t fy_reshard_n_tasks(const ferry_reshard *reshard);

/* What a run does to the partial folder, beside filling tensors in. */

/* Begins the journal of a run that may be gone on with, or goes on with one that fits. */
ferry_status fy_reshard_open_journal(fy_reshard_work *work, fy_leftover left, ferry_error *error);

/* As fy_files_write of a file of the result. */
ferry_status fy_reshard_write(fy_reshard_work *work, size_t file, uint64_t offset,
                              const void *bytes, uint64_t n_bytes, ferry_error *error);

/* FERRY_ERR_IO where the disk of a folder has no room for the result at path, which lies in it. */
ferry_status fy_reshard_check_space(const ferry_reshard *reshard, int parent_fd, const char *path,
                                    const char *parent, ferry_error *error);

/* Makes the result's files in their full sizes; a disk that is too small shows at once. */
ferry_status fy_reshard_make_files(fy_reshard_work *work, ferry_error *error);

/* Writes a file's header and syncs it. */
ferry_status fy_reshard_finish_file(fy_reshard_work *work, size_t file, ferry_error *error);

/* Opens the older result that this one is made onto, if there is one. */
ferry_status fy_reshard_open_onto(fy_reshard_work *work, ferry_error *error);

/* The layout file or the index. */
ferry_status fy_reshard_write_text(fy_reshard_work *work, ferry_error *error);

/* One of the source's other files, if it is to be copied; by a worker, in its window. */
ferry_status fy_reshard_copy_other(fy_reshard_work *work, uint32_t worker, size_t other,
                                   ferry_error *error);

#endif
