/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_CHECKPOINT_H
#define FERRY_CHECKPOINT_H

#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/plan.h>
#include <ferry/status.h>
#include <ferry/writer.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * Checkpoints on disk (docs/formats.md): logical ones, as the Hugging Face ecosystem writes them,
 * and sharded ones, a folder of ferry.layout.json and one safetensors file for each rank, of its
 * shards or, where the layout is in boxes, of its parameters.
 */

/* ---- long work ---- */

typedef struct ferry_work_progress {
    const char *phase; /* such as "copying", "syncing", "verifying" */
    uint64_t done_bytes;
    uint64_t total_bytes;
    double seconds;        /* since the work began */
    const char *anew;      /* why a reshard that may go on where an earlier one ended does not: a
                              phrase that lives for ever; NULL: it does, or nothing was left */
    uint64_t n_done_files; /* of work that goes file by file; else 0 */
    uint64_t n_total_files;
    bool goes_on; /* a reshard, where an earlier one ended */
} ferry_work_progress;

/*
 * Is called on the caller's thread, some ten times a second or more, while a call works. Returns
 * false to stop: then the call ends soon with FERRY_ERR_STOPPED.
 */
typedef bool (*ferry_work_progress_fn)(void *context, const ferry_work_progress *progress);

/* ---- looking at one ---- */

/*
 * A checkpoint whose headers have been read and checked: against the sizes of the files, against
 * each other, against the index or the layout file. Immutable; several threads may use one. Its
 * data are read from the files when they are asked for: they must stay as they are.
 */
typedef struct ferry_checkpoint ferry_checkpoint;

/* path is a safetensors file, an index file, or a folder of either kind. */
FERRY_API ferry_status ferry_checkpoint_open(const char *path, ferry_checkpoint **checkpoint_out,
                                             ferry_error *error);
/* The same, told after each file: thousands of headers take their time. progress may be NULL. */
FERRY_API ferry_status ferry_checkpoint_open_watched(const char *path,
                                                     ferry_work_progress_fn progress, void *context,
                                                     ferry_checkpoint **checkpoint_out,
                                                     ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_checkpoint_destroy(ferry_checkpoint *checkpoint);

typedef struct ferry_checkpoint_totals {
    size_t struct_size;
    bool is_sharded;
    size_t n_files;
    size_t n_tensors;
    uint64_t file_bytes;   /* of all its safetensors files */
    uint64_t tensor_bytes; /* of all tensors, each counted once */
} ferry_checkpoint_totals;

#define FERRY_CHECKPOINT_TOTALS_INIT                                                               \
    {                                                                                              \
        sizeof(ferry_checkpoint_totals), false, 0, 0, 0, 0                                         \
    }

/* How many files and tensors, and how many bytes. */
FERRY_API ferry_status ferry_checkpoint_get_totals(const ferry_checkpoint *checkpoint,
                                                   ferry_checkpoint_totals *totals_out,
                                                   ferry_error *error);

/* Texts live as long as the checkpoint. */
typedef struct ferry_checkpoint_file {
    size_t struct_size;
    const char *name;
    uint32_t rank; /* whose it is, where the checkpoint is sharded */
    uint64_t bytes;
    size_t n_tensors;
} ferry_checkpoint_file;

#define FERRY_CHECKPOINT_FILE_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_checkpoint_file), NULL, 0, 0, 0                                               \
    }

/* A safetensors file of the checkpoint, by number, below n_files of the totals. */
FERRY_API ferry_status ferry_checkpoint_file_at(const ferry_checkpoint *checkpoint, size_t index,
                                                ferry_checkpoint_file *file_out,
                                                ferry_error *error);

/* A whole tensor, however it is cut. */
typedef struct ferry_checkpoint_tensor {
    size_t struct_size;
    const char *name;
    const char *dtype; /* the word of the files, such as BF16 */
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t bytes;
} ferry_checkpoint_tensor;

#define FERRY_CHECKPOINT_TENSOR_INIT                                                               \
    {                                                                                              \
        sizeof(ferry_checkpoint_tensor), NULL, NULL, 0, {0}, 0                                     \
    }

/* A tensor of the checkpoint, by number, below n_tensors of the totals. */
FERRY_API ferry_status ferry_checkpoint_tensor_at(const ferry_checkpoint *checkpoint, size_t index,
                                                  ferry_checkpoint_tensor *tensor_out,
                                                  ferry_error *error);

/* The layout of a sharded checkpoint as JSON: mesh, ranks, stages and rules. "null" of another. */
FERRY_API ferry_status ferry_checkpoint_write_layout(const ferry_checkpoint *checkpoint,
                                                     ferry_write_fn write, void *context,
                                                     ferry_error *error);

/* ---- what else there is to know of one ---- */

/* The pairs of __metadata__ of all its files, without keys that begin with "ferry.". */
FERRY_API size_t ferry_checkpoint_metadata_count(const ferry_checkpoint *checkpoint);
/* A pair, in order of keys. Both texts live as long as the checkpoint. */
FERRY_API ferry_status ferry_checkpoint_metadata_at(const ferry_checkpoint *checkpoint,
                                                    size_t index, const char **key_out,
                                                    const char **value_out, ferry_error *error);

/* What else lies in its folder, as far as a reshard copies it or says why it does not. */
typedef struct ferry_checkpoint_other {
    size_t struct_size;
    const char *name; /* of a folder with a slash behind it */
    uint64_t bytes;
    const char *left_out; /* why a reshard leaves it out, a phrase; NULL: it is copied */
} ferry_checkpoint_other;

#define FERRY_CHECKPOINT_OTHER_INIT                                                                \
    {                                                                                              \
        sizeof(ferry_checkpoint_other), NULL, 0, NULL                                              \
    }

/* How many there are. */
FERRY_API size_t ferry_checkpoint_other_count(const ferry_checkpoint *checkpoint);
/* One of them, in order of names; texts live as long as the checkpoint. */
FERRY_API ferry_status ferry_checkpoint_other_at(const ferry_checkpoint *checkpoint, size_t index,
                                                 ferry_checkpoint_other *other_out,
                                                 ferry_error *error);

/* A local tensor of a file; index counts those of the file (ferry_checkpoint_file.n_tensors). */
typedef struct ferry_checkpoint_shard {
    size_t struct_size;
    const char *tensor;
    uint64_t bytes;
    bool has_checksum; /* one was recorded: XXH3 (64 bits) of its bytes */
    uint64_t checksum;
} ferry_checkpoint_shard;

#define FERRY_CHECKPOINT_SHARD_INIT                                                                \
    {                                                                                              \
        sizeof(ferry_checkpoint_shard), NULL, 0, false, 0                                          \
    }

/* The tensor of this place in a file; the name lives as long as the checkpoint. */
FERRY_API ferry_status ferry_checkpoint_shard_at(const ferry_checkpoint *checkpoint, size_t file,
                                                 size_t index, ferry_checkpoint_shard *shard_out,
                                                 ferry_error *error);

/*
 * What the elements of a whole tensor are: the same numbers however it is cut. Of types without
 * numbers (integers and what ferry has no name for are not looked at) has_numbers is false.
 */
typedef struct ferry_tensor_statistics {
    size_t struct_size;
    bool has_numbers; /* floating elements */
    uint64_t n_elements;
    uint64_t n_nan;
    uint64_t n_infinite;
    double least, most; /* of the finite ones; 0 where there are none */
    /*
     * Likewise: their sum in double precision, in order, over their number. Elements from 2^512 on
     * are summed apart, made smaller by 2^64 meanwhile, so that the sum of finite ones is finite.
     */
    double mean;
} ferry_tensor_statistics;

#define FERRY_TENSOR_STATISTICS_INIT                                                               \
    {                                                                                              \
        sizeof(ferry_tensor_statistics), false, 0, 0, 0, 0, 0, 0                                   \
    }

/* Is handed each tensor of the subset by its index, in order, when all is done. */
typedef void (*ferry_statistics_visitor)(void *context, size_t tensor,
                                         const ferry_tensor_statistics *statistics);

typedef struct ferry_statistics_options {
    size_t struct_size;
    uint64_t memory_cap_bytes;        /* as in ferry_reshard_options */
    uint32_t n_threads;               /* as in ferry_reshard_options */
    ferry_work_progress_fn progress;  /* (optional) */
    ferry_statistics_visitor visitor; /* (optional) without it data are only checked */
    void *context;
    const char *subset; /* only these tensors: as in ferry_plan_options */
} ferry_statistics_options;

#define FERRY_STATISTICS_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(ferry_statistics_options), 0, 0, NULL, NULL, NULL, NULL                             \
    }

/* Reads the floating tensors, and compares the checksums that are recorded of them. */
FERRY_API ferry_status ferry_checkpoint_measure(const ferry_checkpoint *checkpoint,
                                                const ferry_statistics_options *options,
                                                ferry_error *error);

/* ---- another layout ---- */

/* Zero means the default. */
typedef struct ferry_reshard_options {
    size_t struct_size;
    const char *subset;        /* only these tensors of the result: as in ferry_plan_options */
    uint32_t cast;             /* a ferry_dtype_kind for floating tensors, not scales; 0: none */
    uint64_t part_bytes;       /* of a logical result; default 5 * 10^9 */
    uint64_t memory_cap_bytes; /* for buffers; default 256 MiB, at least 1 MiB */
    uint32_t n_threads;        /* default: the cores, at most 16; no more than 128 */
    /*
     * Matrices that become codes with a scale for each block, and a tensor of scales beside each:
     * "FORMAT" or "FORMAT=PATTERNS", of docs/formats.md; NULL: none.
     */
    const char *quantize;
    /* And back: the same, or "auto" for the format that the checkpoint says. They become what cast
     * says, or bf16. A target in boxes may say it of its parameters instead. */
    const char *dequantize;
    /*
     * The tensors of the result are those of another naming: "hf", "megatron", or "megatron:hf"
     * with that of the source (ferry/names.h); NULL: their names stay.
     */
    const char *names;
    const char *config_path; /* the config.json that names need; NULL: the source's */
} ferry_reshard_options;

#define FERRY_RESHARD_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_reshard_options), NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL                    \
    }

/*
 * What is to be written, from which files. `to` is "hf" (one logical checkpoint), a short form such
 * as "tp=4,pp=2" for architectures that ferry knows, or the path of a ferry.layout/1 file. Nothing
 * is written yet. It holds the checkpoint's headers: destroy it before the checkpoint.
 */
typedef struct ferry_reshard ferry_reshard;

/* Plans a reshard, and writes nothing. options may be NULL. */
FERRY_API ferry_status ferry_reshard_create(const ferry_checkpoint *from, const char *to,
                                            const ferry_reshard_options *options,
                                            ferry_reshard **reshard_out, ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_reshard_destroy(ferry_reshard *reshard);

typedef struct ferry_reshard_totals {
    size_t struct_size;
    bool is_sharded; /* the result */
    size_t n_files;  /* safetensors files of the result */
    size_t n_tensors;
    uint64_t read_bytes;  /* the bytes that the result is made of, each counted once */
    uint64_t file_bytes;  /* what is written, headers and replicas included */
    size_t n_replicated;  /* tensors that no built-in rule knows and every rank of a stage gets */
    size_t n_others;      /* of what else lies in the source's folder, copied or not */
    uint64_t other_bytes; /* of those that are copied */
    size_t n_quantized;   /* tensors that become codes */
    size_t n_dequantized; /* codes that become values */
    size_t n_left_out;    /* tensors of the source that the names of the result leave out */
} ferry_reshard_totals;

#define FERRY_RESHARD_TOTALS_INIT                                                                  \
    {                                                                                              \
        sizeof(ferry_reshard_totals), false, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                          \
    }

/* What a run would read and write. */
FERRY_API ferry_status ferry_reshard_get_totals(const ferry_reshard *reshard,
                                                ferry_reshard_totals *totals_out,
                                                ferry_error *error);
/* A file of the result; texts live as long as the reshard. */
FERRY_API ferry_status ferry_reshard_file_at(const ferry_reshard *reshard, size_t index,
                                             ferry_checkpoint_file *file_out, ferry_error *error);
/*
 * What else lies in the folder of the source. Files are copied along as they are, but for weights
 * in other formats, folders, and links that lead out of the checkpoint; in config.json a cast
 * changes torch_dtype, and quantization quantization_config. Texts live as long as the reshard.
 */
typedef struct ferry_reshard_other {
    size_t struct_size;
    const char *name;
    uint64_t bytes;
    const char *left_out;            /* why it is not copied, a phrase; NULL: it is */
    const char *torch_dtype;         /* what its torch_dtype becomes; NULL: it is copied as it is */
    const char *quantization_config; /* the same, a JSON object; "": it is taken out */
} ferry_reshard_other;

#define FERRY_RESHARD_OTHER_INIT                                                                   \
    {                                                                                              \
        sizeof(ferry_reshard_other), NULL, 0, NULL, NULL, NULL                                     \
    }

/* A file or folder beside the tensors, by number, below n_others of the totals. */
FERRY_API ferry_status ferry_reshard_other_at(const ferry_reshard *reshard, size_t index,
                                              ferry_reshard_other *other_out, ferry_error *error);
/* A tensor that is quantized or dequantized. Texts live as long as the reshard. */
typedef struct ferry_reshard_change {
    size_t struct_size;
    const char *tensor;
    const char *scales; /* the tensor of its scales: of the result, or of the source */
    ferry_dtype from;
    ferry_dtype to;
    uint64_t block[2]; /* rows and columns that share a scale */
} ferry_reshard_change;

#define FERRY_RESHARD_CHANGE_INIT                                                                  \
    {                                                                                              \
        sizeof(ferry_reshard_change), NULL, NULL, {0, 0}, {0, 0},                                  \
        {                                                                                          \
            0, 0                                                                                   \
        }                                                                                          \
    }

/* By number, below n_quantized and n_dequantized of the totals together. */
FERRY_API ferry_status ferry_reshard_change_at(const ferry_reshard *reshard, size_t index,
                                               ferry_reshard_change *change_out,
                                               ferry_error *error);
/* The name of a tensor that no built-in rule knows; NULL behind the last. */
FERRY_API const char *ferry_reshard_replicated_at(const ferry_reshard *reshard, size_t index);
/*
 * The name of a tensor that is not in the result because the naming that was asked for leaves it
 * out, and why, a phrase (why_out may be NULL); NULL behind the last.
 */
FERRY_API const char *ferry_reshard_left_out_at(const ferry_reshard *reshard, size_t index,
                                                const char **why_out);

/*
 * How long writing to a folder beside path would take, from a short try of its file system that
 * leaves nothing behind. FERRY_ERR_UNSUPPORTED where that cannot be tried; FERRY_ERR_IO where the
 * disk has no room for all of it, and an earlier run has left nothing to go on with.
 */
FERRY_API ferry_status ferry_reshard_estimate(const ferry_reshard *reshard, const char *path,
                                              double *seconds_out, ferry_error *error);

/*
 * Whether a run could be made onto the earlier result at path: it has the files, the tensors, the
 * types and the shapes of this one. Nothing is compared or written.
 */
FERRY_API ferry_status ferry_reshard_check_onto(const ferry_reshard *reshard, const char *path,
                                                ferry_error *error);

/*
 * Whether a run could begin to write to path as far as the path alone says: nothing is there, and
 * the folder around it is. For asking before long work; ferry_reshard_run asks again. Removes
 * what a run that was killed at its very end has left of its own in a result that is whole.
 */
FERRY_API ferry_status ferry_reshard_check_target(const char *path, ferry_error *error);

typedef struct ferry_reshard_run_options {
    size_t struct_size;
    bool resume;                     /* go on where an equal run ended; leave what that needs */
    ferry_work_progress_fn progress; /* (optional) */
    void *context;
    bool restart;         /* with resume: begin anew, and leave what the next run needs */
    uint64_t bytes_per_s; /* the most that is read and written, together; 0: any */
    /*
     * The folder of an earlier result of the same target: what it holds already is not written
     * again. Files share its blocks where the file system can do that; else those in which nothing
     * differs become hard links to its files, which must then not be changed in place; that counts
     * in the old file's number of links, and its status change time. A result is the same, byte for
     * byte, without it. A run with it begins anew, and leaves nothing to go on with. NULL: there is
     * none.
     */
    const char *onto;
} ferry_reshard_run_options;

#define FERRY_RESHARD_RUN_OPTIONS_INIT                                                             \
    {                                                                                              \
        sizeof(ferry_reshard_run_options), false, NULL, NULL, false, 0, NULL                       \
    }

typedef struct ferry_reshard_result {
    size_t struct_size;
    uint64_t written_bytes;
    uint64_t resumed_bytes; /* of those, what an earlier run had written */
    uint64_t n_checked;     /* checksums of the source that were compared */
    double seconds;         /* all of it, until everything was synced */
    double copy_seconds;
    const char *anew;      /* as in ferry_work_progress */
    uint64_t kept_bytes;   /* of written_bytes, what the result under `onto` had: not written */
    uint64_t n_kept_files; /* that are hard links to files of it */
} ferry_reshard_result;

#define FERRY_RESHARD_RESULT_INIT                                                                  \
    {                                                                                              \
        sizeof(ferry_reshard_result), 0, 0, 0, 0, 0, NULL, 0, 0                                    \
    }

/*
 * Whether a run to path that did not come to its end has left what another can go on with. A run
 * leaves that if it was told to (resume) and has made a tensor.
 */
FERRY_API bool ferry_reshard_has_left(const char *path);

/*
 * Writes the result to path, which must not exist: into a folder beside it, renamed when it is
 * whole and synced. After an error there is nothing at path. result_out may be NULL.
 */
FERRY_API ferry_status ferry_reshard_run(ferry_reshard *reshard, const char *path,
                                         const ferry_reshard_run_options *options,
                                         ferry_reshard_result *result_out, ferry_error *error);

/* ---- are two the same? ---- */

/* Is handed each tensor that is equal, in the order of a; digest is XXH3 (64 bits) of its bytes. */
typedef void (*ferry_verify_visitor)(void *context, const char *tensor, uint64_t bytes,
                                     uint64_t digest);

typedef struct ferry_verify_options {
    size_t struct_size;
    uint64_t memory_cap_bytes;       /* as in ferry_reshard_options */
    uint32_t n_threads;              /* as in ferry_reshard_options */
    ferry_work_progress_fn progress; /* (optional) */
    ferry_verify_visitor visitor;    /* (optional) called when all is done */
    void *context;
    /*
     * As in ferry_reshard_options: b is to be what a reshard with these makes of a, bit by bit. The
     * visitor is then told of the tensors of b, with digests of what they hold; not of those of
     * which a, in boxes, has only a part: they have no digest.
     */
    uint32_t cast;
    const char *quantize;
    const char *dequantize;
    /* Likewise: of a only these tensors are compared, and b is to have nothing beside them. */
    const char *subset;
    const char *names;       /* likewise: b is to have a's tensors under these names */
    const char *config_path; /* the config.json that names need; NULL: that of a */
} ferry_verify_options;

#define FERRY_VERIFY_OPTIONS_INIT                                                                  \
    {                                                                                              \
        sizeof(ferry_verify_options), 0, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL      \
    }

typedef struct ferry_verify_result {
    size_t struct_size;
    uint64_t n_tensors;
    uint64_t tensor_bytes;
    uint64_t n_replicas; /* local tensors that were compared in addition, on both sides */
    uint64_t n_checked;  /* checksums that were compared */
    double seconds;
    /* Tensors of a, and of the subset, of which b, in boxes, has nothing; or of a, for which names
     * have no place. */
    uint64_t n_left_out;
} ferry_verify_result;

#define FERRY_VERIFY_RESULT_INIT                                                                   \
    {                                                                                              \
        sizeof(ferry_verify_result), 0, 0, 0, 0, 0, 0                                              \
    }

/*
 * Whether two checkpoints hold the same tensors, whatever their layouts: names, shapes, dtypes and
 * every bit of every replica. Metadata do not count. FERRY_ERR_DIFFERENT names the first tensor
 * (in the order of a) that differs, the element and both values. b may be in boxes that do not hold
 * all of a: then what they hold is compared, parameter by parameter, with its fills.
 */
FERRY_API ferry_status ferry_checkpoint_verify(const ferry_checkpoint *a, const ferry_checkpoint *b,
                                               const ferry_verify_options *options,
                                               ferry_verify_result *result_out, ferry_error *error);

FERRY_END_DECLS

#endif
