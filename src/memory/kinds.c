/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/kind.h"

#include "base/config.h"
#include "base/log.h"
#include "host/plugin.h"

#include <pthread.h>

/* The kinds of this build: part of the library, or a plugin of the kind's name, or nothing yet. */
typedef struct entry {
    const char *name;
    const char *summary;
    bool plugin;
} entry;

static const entry entries[FY_N_MEMORY_KINDS] = {
    [FERRY_MEMORY_HOST] = {"host", "memory of the machine itself", false},
    [FERRY_MEMORY_CUDA] = {"cuda", "memory of NVIDIA devices", true},
    [FERRY_MEMORY_FAR] = {"far", "for tests: host memory that the CPU must not touch", true},
};

const fy_memory_kind *_Atomic fy_memory_rows[FY_N_MEMORY_KINDS] = {&fy_host_memory};
_Atomic bool fy_has_other_memory;

static void log_line(ferry_log_level level, const char *line)
{
    fy_log(level, "%s", line);
}

static const fy_library library = {
    .abi = FY_MEMORY_ABI, .cpu = &fy_cpu_exec, .setting = fy_config_text, .log = log_line};

const char *fy_memory_name(uint32_t kind)
{
    return kind < FY_N_MEMORY_KINDS ? entries[kind].name : "unknown";
}

/* A plugin is asked once, whatever threads want it: it may set itself up then. */
static const fy_memory_kind *ask(const entry *one, fy_plugin_fn function)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const fy_memory_kind *rows[FY_N_MEMORY_KINDS]; /* NULL: not asked, or has none */
    const fy_memory_kind **row = &rows[one - entries];
    pthread_mutex_lock(&lock);
    if (*row == NULL) {
        *row = ((fy_memory_plugin_fn)function)(&library);
    }
    const fy_memory_kind *found = *row;
    pthread_mutex_unlock(&lock);
    return found;
}

static ferry_status load(const entry *one, const fy_memory_kind **row_out, ferry_error *error)
{
    fy_plugin_fn function;
    const char *path;
    FY_TRY(fy_plugin_load(one->name, FY_MEMORY_PLUGIN_SYMBOL, &function, &path, error));
    const fy_memory_kind *row = ask(one, function);
    if (row == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s has no kind of memory", path);
    }
    FY_TRY(fy_plugin_check_abi(path, row->abi, FY_MEMORY_ABI, error));
    *row_out = row;
    return FERRY_OK;
}

ferry_status fy_memory_get(uint32_t kind, const fy_memory_kind **row_out, ferry_error *error)
{
    if (kind >= FY_N_MEMORY_KINDS) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "this version knows no memory of kind %u",
                       (unsigned)kind);
    }
    const entry *one = &entries[kind];
    const fy_memory_kind *row = fy_memory_row(kind);
    ferry_error why = {.message = ""};
    ferry_status status = FERRY_OK;
    if (row == NULL && !one->plugin) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "memory of kind %s is not supported by this version; move it to host memory",
                       one->name);
    }
    if (row == NULL) {
        status = load(one, &row, &why);
        if (status == FERRY_OK && !row->probe(why.message, sizeof why.message)) {
            status = FERRY_ERR_UNSUPPORTED;
        }
    }
    if (status != FERRY_OK) {
        return fy_fail(error, status, "memory of kind %s: %s", one->name, why.message);
    }
    if (kind != FERRY_MEMORY_HOST) {
        atomic_store_explicit(&fy_memory_rows[kind], row, memory_order_release);
        atomic_store_explicit(&fy_has_other_memory, true, memory_order_relaxed);
    }
    *row_out = row;
    return FERRY_OK;
}

ferry_status fy_space_check(fy_space space, const char *what, ferry_error *error)
{
    const fy_memory_kind *row;
    ferry_error why;
    ferry_status status = fy_memory_get(space.kind, &row, &why);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "%s: %s", what, why.message);
    }
    if (space.device < 0 || space.device >= row->device_count()) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s: there is no device %d of kind %s, only %d",
                       what, (int)space.device, row->name, (int)row->device_count());
    }
    return FERRY_OK;
}

fy_space fy_memory_query(const void *pointer, fy_memory_span *span_out)
{
    fy_memory_span span = {.device = 0};
    fy_space space = {.kind = FERRY_MEMORY_HOST};
    for (uint32_t kind = 0; kind < FY_N_MEMORY_KINDS; kind++) {
        const fy_memory_kind *row = fy_memory_row(kind);
        if (row != NULL && row->query != NULL && row->query(pointer, &span)) {
            space = (fy_space){kind, span.device, span.is_import};
            break;
        }
    }
    if (span_out != NULL) {
        *span_out = span;
    }
    return space;
}

/* How many bytes there are from the buffer's base on, as far as it needs them. */
static uint64_t reach_of(const ferry_buffer *buffer, fy_memory_span *span)
{
    uint64_t there = span->bytes - (uint64_t)((const char *)buffer->base - (char *)span->base);
    while (there < buffer->bytes && span->is_piece) {
        const char *next = (const char *)buffer->base + there;
        fy_space space = fy_memory_query(next, span);
        if (!fy_same_space(space, fy_space_of(buffer)) || span->base != next || span->bytes == 0) {
            break;
        }
        there += span->bytes;
    }
    return there;
}

ferry_status fy_buffer_check_slow(const ferry_buffer *buffer, const char *what, ferry_error *error)
{
    fy_space said = fy_space_of(buffer);
    unsigned long long bytes = buffer->bytes;
    ferry_status status = FERRY_OK;
    if (!fy_is_host(said) || said.device != 0) {
        status = fy_space_check(said, what, error);
    }
    if (status != FERRY_OK || bytes == 0) {
        return status;
    }
    if (buffer->base == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s of %llu bytes with a buffer at NULL", what,
                       bytes);
    }
    fy_memory_span span;
    fy_space found = fy_memory_query(buffer->base, &span);
    if (!fy_same_space(said, found)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: the %llu bytes at %p are memory of kind %s, device %d, and the buffer "
                       "says kind %s, device %d",
                       what, bytes, buffer->base, fy_memory_name(found.kind), (int)found.device,
                       fy_memory_name(said.kind), (int)said.device);
    }
    uint64_t there = fy_is_host(said) ? bytes : reach_of(buffer, &span);
    if (bytes > there) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: %llu bytes at %p reach beyond their allocation, which ends after %llu",
                       what, bytes, buffer->base, (unsigned long long)there);
    }
    return FERRY_OK;
}

ferry_status ferry_memory_query(const void *pointer, ferry_buffer *buffer_out, ferry_error *error)
{
    FY_TRY(fy_check_use(pointer != NULL && buffer_out != NULL,
                        "ferry_memory_query needs a pointer and a place for the buffer", error));
    fy_memory_span span;
    fy_space space = fy_memory_query(pointer, &span);
    *buffer_out = ferry_buffer_of(fy_is_host(space) ? pointer : span.base, span.bytes);
    buffer_out->kind = space.kind;
    buffer_out->device = space.device;
    return FERRY_OK;
}

size_t ferry_memory_kind_count(void)
{
    return FY_N_MEMORY_KINDS;
}

ferry_status ferry_memory_kind_at(size_t index, const char **name_out, const char **summary_out,
                                  uint32_t *n_devices_out, const char **why_not_out,
                                  ferry_error *error)
{
    static _Thread_local ferry_error why; /* as with engines: known at run time only */
    if (index >= FY_N_MEMORY_KINDS) {
        return fy_fail(error, FERRY_ERR_MISUSE, "kind %zu of %d", index, (int)FY_N_MEMORY_KINDS);
    }
    if (name_out != NULL) {
        *name_out = entries[index].name;
    }
    if (summary_out != NULL) {
        *summary_out = entries[index].summary;
    }
    const fy_memory_kind *row;
    bool there = fy_memory_get((uint32_t)index, &row, &why) == FERRY_OK;
    if (n_devices_out != NULL) {
        *n_devices_out = there ? (uint32_t)row->device_count() : 0;
    }
    if (why_not_out != NULL) {
        *why_not_out = there ? "" : why.message;
    }
    return FERRY_OK;
}

ferry_status ferry_memory_device_at(ferry_memory_kind kind, int32_t device,
                                    const char **summary_out, ferry_error *error)
{
    static _Thread_local char text[512];
    const fy_memory_kind *row;
    FY_TRY(fy_check_use(summary_out != NULL, "ferry_memory_device_at needs a place for the line",
                        error));
    FY_TRY(fy_space_check((fy_space){.kind = (uint32_t)kind, .device = device},
                          "ferry_memory_device_at", error));
    FY_TRY(fy_memory_get((uint32_t)kind, &row, error));
    text[0] = '\0';
    if (row->describe != NULL) {
        FY_TRY(row->describe(device, text, sizeof text, error));
    }
    *summary_out = text;
    return FERRY_OK;
}
