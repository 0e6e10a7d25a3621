/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_KIND_H
#define FY_MEMORY_KIND_H

#include "base/status.h"

#include <ferry/log.h>
#include <ferry/memory.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Kinds of memory, one row for each: what can be done with memory before anything is copied. The
 * row of the host is part of the library, others are plugins, which see nothing of it but this
 * header, exec/exec.h and what fy_library brings.
 */
#define FY_MEMORY_ABI 10u

/* Where a pointer is valid: in all of this process's host code, or on one device of a kind. */
typedef struct fy_space {
    uint32_t kind; /* ferry_memory_kind */
    int32_t device;
    bool is_import; /* another process's, which no other device reaches by this pointer */
} fy_space;

static inline fy_space fy_space_of(const ferry_buffer *buffer)
{
    return (fy_space){.kind = buffer->kind, .device = buffer->device};
}

static inline bool fy_is_host(fy_space space)
{
    return space.kind == FERRY_MEMORY_HOST;
}

static inline bool fy_same_space(fy_space a, fy_space b)
{
    return a.kind == b.kind && (fy_is_host(a) || a.device == b.device);
}

/* An allocation, as the kind that made it knows it. */
typedef struct fy_memory_span {
    int32_t device;
    void *base;
    uint64_t bytes;
    uint64_t number; /* no other allocation has it, also not a later one at this address; or 0 */
    bool is_import;  /* another process's: see import_handle */
    bool is_piece;   /* of virtual memory: what follows it may be used with it, as one buffer */
} fy_memory_span;

/* What names an allocation to other processes of the node. */
enum { FY_MEMORY_HANDLE_BYTES = 128 };

typedef struct fy_memory_kind {
    uint32_t abi;  /* FY_MEMORY_ABI */
    uint32_t kind; /* ferry_memory_kind */
    const char *name;
    const char *summary; /* one line */
    bool cpu_access;     /* the CPU may dereference its pointers */

    /* Whether there is such memory here; if not, why is a sentence. Cheap and without traces. */
    bool (*probe)(char *why, size_t why_bytes);
    /* 0 only where probe is false. */
    int32_t (*device_count)(void);
    /*
     * A device that is there, in one line for people. (optional: there is nothing to say) Without
     * traces, as probe.
     */
    ferry_status (*describe)(int32_t device, char *text, size_t text_bytes, ferry_error *error);

    /* Zeroed, page aligned, every page there. */
    ferry_status (*alloc)(int32_t device, uint64_t bytes, void **base_out, ferry_error *error);
    /* What alloc gave. Work that is under way on it does no harm then. */
    void (*free)(int32_t device, void *base, uint64_t bytes);
    /*
     * The allocation that a pointer of this kind lies in, whoever made it; false for memory of
     * other kinds, and for what was freed. (optional: nobody knows, as with the host's)
     */
    bool (*query)(const void *pointer, fy_memory_span *span_out);

    /*
     * Host memory that this kind's exec is to read and write without a copy on the way. What is
     * not pinned works too, but verbs on it may wait until it was read. (both optional: it makes
     * no difference)
     */
    ferry_status (*pin)(void *base, uint64_t bytes, ferry_error *error);
    void (*unpin)(void *base, uint64_t bytes);

    /*
     * Memory of this process that others of the node open. export_handle names the allocation that
     * the bytes lie in, in at most FY_MEMORY_HANDLE_BYTES, and says what it is, until as many
     * withdraws. import_handle makes it a span of this process, on whichever of its devices reaches
     * it, until as many releases; a handle that is imported again gives the same span. The owner
     * frees the memory when nobody has it imported any more: what is written there later reaches
     * nobody. FERRY_ERR_UNSUPPORTED where it cannot be had, with a sentence of why. (all four
     * optional: other processes cannot reach it)
     */
    ferry_status (*export_handle)(const void *pointer, uint64_t bytes, void *handle,
                                  size_t *n_bytes_out, fy_memory_span *span_out,
                                  ferry_error *error);
    void (*withdraw)(const void *handle, size_t n_bytes);
    ferry_status (*import_handle)(const void *handle, size_t n_bytes, fy_memory_span *span_out,
                                  ferry_error *error);
    void (*release)(void *base);

    /*
     * From enter to leave another library that this thread calls may use memory of the kind by
     * itself, on any device. device is one of those that are used, and is from then on; negative:
     * any one of them, and an error where there is none. Calls may nest. (both optional: it may
     * anyway)
     */
    ferry_status (*enter)(int32_t device, ferry_error *error);
    void (*leave)(void);

    const struct fy_exec *exec; /* its verbs: exec/exec.h */
} fy_memory_kind;

/* The library, as a plugin sees it: lives as long as the process. */
typedef struct fy_library {
    uint32_t abi; /* FY_MEMORY_ABI */
    const struct fy_exec *cpu;
    const char *(*setting)(const char *name); /* a variable of config.c; NULL: unset */
    void (*log)(ferry_log_level level, const char *line);
} fy_library;

/* A plugin exports this one function. */
#define FY_MEMORY_PLUGIN_SYMBOL "ferry_memory_plugin"
typedef const fy_memory_kind *(*fy_memory_plugin_fn)(const fy_library *library);

extern const fy_memory_kind fy_host_memory; /* host.c */
extern const struct fy_exec fy_cpu_exec;    /* exec/cpu.c */

/* Kinds are numbered without gaps. */
enum { FY_N_MEMORY_KINDS = FERRY_MEMORY_FAR + 1 };

/* The name of a kind, "far"; also of one that has no row, and "unknown" of other numbers. */
const char *fy_memory_name(uint32_t kind);

/*
 * The row of a kind, ready to use. FERRY_ERR_UNSUPPORTED and a sentence where it has none, its
 * plugin is absent, it cannot run here or nobody knows the kind. Rows live as long as the process,
 * and from then on fy_memory_row has them at the cost of one load.
 */
ferry_status fy_memory_get(uint32_t kind, const fy_memory_kind **row_out, ferry_error *error);

extern const fy_memory_kind *_Atomic fy_memory_rows[FY_N_MEMORY_KINDS];

/* Of a kind that fy_memory_get has given before; else NULL. */
static inline const fy_memory_kind *fy_memory_row(uint32_t kind)
{
    return atomic_load_explicit(&fy_memory_rows[kind], memory_order_acquire);
}

/* Whether there is such a device of that kind: else a sentence that begins with `what`. */
ferry_status fy_space_check(fy_space space, const char *what, ferry_error *error);

/*
 * Where the pointer lies, asked of all kinds that this process has used so far: the host if none
 * knows it. span_out (NULL is allowed) is the allocation, which of the host's is not known: 0.
 */
fy_space fy_memory_query(const void *pointer, fy_memory_span *span_out);

/*
 * Whether a buffer's memory is what the buffer says: the kind is there and has the device, and all
 * bytes lie in one allocation of it; host memory is not of another kind. NULL goes with no bytes
 * only. Else a sentence that begins with `what`: FERRY_ERR_UNSUPPORTED where the kind is not to be
 * had, FERRY_ERR_MISUSE.
 */
ferry_status fy_buffer_check_slow(const ferry_buffer *buffer, const char *what, ferry_error *error);

extern _Atomic bool fy_has_other_memory; /* some kind beside the host's was asked for */

static inline ferry_status fy_buffer_check(const ferry_buffer *buffer, const char *what,
                                           ferry_error *error)
{
    if (buffer->kind == FERRY_MEMORY_HOST && buffer->device == 0 && buffer->base != NULL &&
        !atomic_load_explicit(&fy_has_other_memory, memory_order_relaxed)) {
        return FERRY_OK;
    }
    return fy_buffer_check_slow(buffer, what, error);
}

#endif
