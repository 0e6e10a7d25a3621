/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/reshard.h"

#include "base/checked.h"
#include "checkpoint/layout_file.h"
#include "checkpoint/open.h"
#include "checkpoint/others.h"
#include "host/file.h"

#include <ferry/ferry.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

/* ---- the journal ---- */

/* Not by their paths: who types another one to the same files goes on. */
static void digest_source_files(fy_digest *digest, const ferry_checkpoint *from)
{
    fy_digest_u64(digest, from->n_files);
    for (size_t i = 0; i < from->n_files; i++) {
        const fy_ckpt_file *file = &from->files[i];
        fy_digest_text(digest, file->name);
        fy_digest_u64(digest, file->rank);
        fy_digest_u64(digest, file->bytes);
        fy_digest_u64(digest, file->inode);
        fy_digest_u64(digest, (uint64_t)file->changed_s);
        fy_digest_u64(digest, (uint64_t)file->changed_ns);
        /* Whoever sets the time of change back cannot set this one. */
        fy_digest_u64(digest, (uint64_t)file->touched_s);
        fy_digest_u64(digest, (uint64_t)file->touched_ns);
    }
}

/* Of a checkpoint as it was understood: whatever file it was read from, and however written. */
static ferry_status digest_source_layout(fy_digest *digest, const ferry_checkpoint *from,
                                         ferry_error *error)
{
    fy_digest_u64(digest, from->is_sharded);
    fy_digest_u64(digest, from->n_tensors);
    for (size_t i = 0; i < from->n_tensors; i++) {
        const fy_ckpt_tensor *tensor = &from->tensors[i];
        fy_digest_text(digest, tensor->name);
        fy_digest_text(digest, tensor->dtype_text == NULL ? "" : tensor->dtype_text);
        fy_digest_u64(digest, tensor->n_dims);
        for (uint32_t d = 0; d < tensor->n_dims; d++) {
            fy_digest_u64(digest, tensor->shape[d]);
        }
    }
    if (from->boxed != NULL) {
        fy_hash128 hash;
        FY_TRY(fy_boxed_digest(from->boxed, &hash, error));
        fy_digest_hash(digest, hash);
    }
    return fy_reshard_digest_json(digest, from->layout, error);
}

/* Of everything that the bytes written depend on. */
static ferry_status make_key(const fy_reshard_work *w, fy_journal_key *key_out, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    fy_digest digest = {0};
    fy_digest_text(&digest, ferry_version());
    key_out->part[FY_KEY_PROGRAM] = fy_digest_take(&digest);
    digest_source_files(&digest, c->from);
    key_out->part[FY_KEY_SOURCE_FILES] = fy_digest_take(&digest);
    ferry_status status = digest_source_layout(&digest, c->from, error);
    key_out->part[FY_KEY_SOURCE_LAYOUT] = fy_digest_take(&digest);
    key_out->part[FY_KEY_TARGET] = c->target_key;
    fy_digest_text(&digest, c->subset == NULL ? "" : c->subset);
    fy_digest_u64(&digest, c->subset != NULL);
    fy_digest_u64(&digest, c->cast);
    fy_digest_text(&digest, c->quantize == NULL ? "" : c->quantize);
    fy_digest_text(&digest, c->dequantize == NULL ? "" : c->dequantize);
    fy_digest_u64(&digest, c->part_bytes);
    key_out->part[FY_KEY_OPTIONS] = fy_digest_take(&digest);
    bool failed = digest.failed != 0;
    fy_digest_cleanup(&digest);
    return status == FERRY_OK && failed ? fy_fail_no_memory(error, "the key of a reshard") : status;
}

size_t fy_reshard_n_tasks(const ferry_reshard *c)
{
    return c->boxed != NULL ? c->boxed->side->n_parameters : c->job.problem.n_tensors;
}

/* Whether this reshard makes such a record. */
static bool is_record(const ferry_reshard *c, uint64_t task, size_t n_values)
{
    const fy_problem *problem = &c->job.problem;
    if (task >= fy_reshard_n_tasks(c)) {
        return false;
    }
    return c->boxed != NULL
               ? c->wants_parameter[task] && n_values == 1
               : c->job.is_wanted[task] &&
                     fy_problem_holders(problem, problem->tensors[task].dst)->n_cells == n_values;
}

static ferry_status note_resumed(void *context, uint64_t task, const uint64_t *values,
                                 size_t n_values, ferry_error *error)
{
    fy_reshard_work *w = context;
    if (!is_record(w->reshard, task, n_values)) {
        return FERRY_OK; /* it is done again */
    }
    uint64_t *kept = fy_alloc(n_values, sizeof *kept);
    FY_TRY(fy_check_memory(kept != NULL, "what an earlier run has done", error));
    if (n_values > 0) {
        memcpy(kept, values, n_values * sizeof *kept);
    }
    fy_free(w->resumed[task]);
    w->resumed[task] = kept;
    atomic_store(&w->has_records, true);
    return FERRY_OK;
}

/* The names of the files that tensors go into. */
typedef struct name_set {
    const ferry_reshard *reshard;
    fy_index index;
} name_set;

static ferry_status collect_names(const ferry_reshard *c, name_set *names, ferry_error *error)
{
    *names = (name_set){.reshard = c};
    for (size_t i = 0; i < c->n_out; i++) {
        const char *name = c->out[i].name;
        if (!fy_index_insert(&names->index, fy_hash64(name, strlen(name)), (uint32_t)i)) {
            fy_index_cleanup(&names->index);
            return fy_fail_no_memory(error, "the files of a reshard");
        }
    }
    return FERRY_OK;
}

static bool has_tensors_or_journal(const void *context, const char *name)
{
    const name_set *names = context;
    fy_index_cursor c = fy_index_first(&names->index, fy_hash64(name, strlen(name)));
    while (c.value != FY_INDEX_NONE && strcmp(names->reshard->out[c.value].name, name) != 0) {
        fy_index_next(&names->index, &c);
    }
    return c.value != FY_INDEX_NONE || strcmp(name, FY_JOURNAL_NAME) == 0;
}

/* Of what an earlier run has left only tensors are gone on with. All else is made again at the end,
 * and what no run would make now, such as the copy of a file that is gone, must not stay. */
static ferry_status keep_tensors(fy_reshard_work *w, ferry_error *error)
{
    name_set names;
    ferry_status status = collect_names(w->reshard, &names, error);
    if (status == FERRY_OK) {
        status = fy_folder_keep_only(&w->folder, has_tensors_or_journal, &names, error);
        fy_index_cleanup(&names.index);
    }
    return status;
}

/* *misfit_out is NULL where the journal of an earlier run is gone on with, else why it is not. */
static ferry_status resume(fy_reshard_work *w, const fy_journal_key *key, const char **misfit_out,
                           ferry_error *error)
{
    w->resumed = fy_alloc_zeroed(fy_reshard_n_tasks(w->reshard), sizeof *w->resumed);
    FY_TRY(fy_check_memory(w->resumed != NULL, "what an earlier run has done", error));
    FY_TRY(fy_journal_resume(w->folder.fd, key, note_resumed, w, &w->journal, misfit_out, error));
    ferry_status status = FERRY_OK;
    if (*misfit_out == NULL) {
        status = keep_tensors(w, error);
        w->goes_on = atomic_load(&w->has_records);
    } else {
        status = fy_folder_clear(&w->folder, error);
    }
    return status;
}

ferry_status fy_reshard_open_journal(fy_reshard_work *w, fy_leftover left, ferry_error *error)
{
    fy_journal_key key;
    const char *misfit = left == FY_LEFT_STRANGE ? "it held what no run of ferry leaves" : NULL;
    if (!w->options->resume) {
        return FERRY_OK;
    }
    ferry_status status = make_key(w, &key, error);
    if (status == FERRY_OK && left == FY_LEFT_FILES) {
        status = resume(w, &key, &misfit, error);
        w->may_resume = status != FERRY_OK; /* until its journal was read, it may be worth much */
    }
    if (status == FERRY_OK && w->journal.fd < 0) {
        w->anew = misfit;
        status = fy_journal_create(w->folder.fd, &key, &w->journal, error);
    }
    return status;
}

/* ---- the result's files ---- */

static const char *name_of(const void *context, size_t i)
{
    return ((const ferry_reshard *)context)->out[i].name;
}

/* What an earlier run has left is part of it, and so is what OLD has already. */
static ferry_status check_space(const fy_reshard_work *w, ferry_error *error)
{
    return w->goes_on || w->onto != NULL
               ? FERRY_OK
               : fy_reshard_check_space(w->reshard, w->folder.parent_fd, w->folder.path,
                                        w->folder.parent, error);
}

static bool is_in_memory(int descriptor)
{
    struct statfs about;
    return fstatfs(descriptor, &about) == 0 && about.f_type == TMPFS_MAGIC;
}

ferry_status fy_reshard_make_files(fy_reshard_work *w, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    ferry_status status = check_space(w, error);
    /* In memory, copying by way of a window in the cache is faster than the kernel's splicing. */
    w->copies_in_kernel = !is_in_memory(w->folder.fd);
    FY_THEN(status,
            fy_files_make(w->folder.fd, w->folder.partial, c->n_out, name_of, c, &w->out, error));
    if (status == FERRY_OK) {
        fy_files_set_pace(w->out, &w->pace);
    }
    for (size_t i = 0; i < c->n_out && status == FERRY_OK; i++) {
        int descriptor;
        status = fy_files_get(w->out, i, &descriptor, error);
        if (status == FERRY_OK) {
            const fy_form *form = &c->out[i].form;
            /* No fallocate: turning its blocks into data costs more than their order gains. */
            if (ftruncate(descriptor, (off_t)(form->header_bytes + form->data_bytes)) != 0) {
                status = fy_fail_errno(fy_files_path(w->out, i), "cannot be written", errno, error);
            }
            fy_files_put(w->out, i);
        }
    }
    return status == FERRY_OK && w->onto != NULL ? fy_onto_begin(w->onto, w->out, error) : status;
}

ferry_status fy_reshard_write(fy_reshard_work *w, size_t file, uint64_t offset, const void *bytes,
                              uint64_t n_bytes, ferry_error *error)
{
    uint64_t written = n_bytes;
    ferry_status status =
        w->onto == NULL ? fy_files_write(w->out, file, offset, bytes, n_bytes, error)
                        : fy_onto_write(w->onto, file, offset, bytes, n_bytes, &written, error);
    atomic_fetch_add(&w->dirty[file], written);
    return status;
}

static fy_onto_target target_of(const void *context, size_t file)
{
    const fy_out_file *out = &((const ferry_reshard *)context)->out[file];
    return (fy_onto_target){.name = out->name, .form = &out->form};
}

ferry_status fy_reshard_open_onto(fy_reshard_work *w, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    return w->options->onto == NULL ? FERRY_OK
                                    : fy_onto_open(w->options->onto, c->is_sharded, c->n_out,
                                                   target_of, c, &w->pace, &w->onto, error);
}

ferry_status ferry_reshard_check_onto(const ferry_reshard *reshard, const char *path,
                                      ferry_error *error)
{
    fy_onto *onto = NULL;
    FY_TRY(fy_check_use(reshard != NULL && path != NULL,
                        "ferry_reshard_check_onto needs a reshard and a path", error));
    ferry_status status = fy_onto_open(path, reshard->is_sharded, reshard->n_out, target_of,
                                       reshard, NULL, &onto, error);
    if (status == FERRY_OK) {
        fy_onto_close(onto);
    }
    return status;
}

/* A place in a file that a writer fills on. */
typedef struct header_place {
    fy_reshard_work *work;
    size_t file;
    uint64_t at;
    ferry_error *error;
} header_place;

static int write_header(void *context, const char *bytes, size_t n_bytes)
{
    header_place *place = context;
    if (fy_reshard_write(place->work, place->file, place->at, bytes, n_bytes, place->error) !=
        FERRY_OK) {
        return -1;
    }
    place->at += n_bytes;
    return 0;
}

static ferry_status sync_file(fy_files *files, size_t file, ferry_error *error)
{
    int descriptor;
    ferry_status status = fy_files_get(files, file, &descriptor, error);
    if (status == FERRY_OK) {
        if (fy_file_sync(descriptor) != 0) {
            status = fy_fail_errno(fy_files_path(files, file), "cannot be written", errno, error);
        }
        fy_files_put(files, file);
    }
    return status;
}

ferry_status fy_reshard_finish_file(fy_reshard_work *w, size_t file, ferry_error *error)
{
    ferry_error cause = {{0}};
    header_place place = {.work = w, .file = file, .error = &cause};
    fy_writer *writer = fy_alloc(1, sizeof *writer);
    FY_TRY(fy_check_memory(writer != NULL, "a header", error));
    fy_writer_init(writer, write_header, &place);
    fy_form_write_header(&w->reshard->out[file].form, writer);
    ferry_status status = fy_writer_finish(writer, error);
    fy_free(writer);
    if (status != FERRY_OK) {
        return fy_forward(error, FERRY_ERR_IO, &cause);
    }
    return w->onto == NULL || fy_onto_is_own(w->onto, file) ? sync_file(w->out, file, error)
                                                            : FERRY_OK;
}

/* ---- the layout file, the index ---- */

static void write_tensor(const ferry_reshard *c, uint32_t t, size_t number, fy_writer *writer)
{
    const fy_tensor *tensor = &c->job.problem.tensors[t];
    char dtype[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(fy_reshard_type(c, t).dtype, dtype, sizeof dtype);
    fy_layout_write_tensor(writer, number, tensor->name, dtype, tensor->shape, tensor->n_dims);
}

static void write_layout(const ferry_reshard *c, fy_writer *writer)
{
    size_t number = 0;
    if (c->boxed != NULL) {
        fy_reshard_write_boxes(c, writer);
    } else {
        fy_layout_write_begin(writer, c->side);
    }
    for (uint32_t t = 0; t < c->job.problem.n_tensors; t++) {
        const fy_change *change = &c->job.changes[t];
        bool is_made = c->job.problem.tensors[t].is_made; /* scales stand behind their weights */
        if (!c->job.is_wanted[t] || (is_made && c->job.is_wanted[change->weight])) {
            continue;
        }
        write_tensor(c, t, number++, writer);
        if (change->kind == FY_QUANTIZED && c->job.is_wanted[change->scales]) {
            write_tensor(c, change->scales, number++, writer);
        }
        if (change->kind == FY_QUANTIZED && change->matrix_scales != FY_NONE &&
            c->job.is_wanted[change->matrix_scales]) {
            write_tensor(c, change->matrix_scales, number++, writer);
        }
    }
    fy_layout_write_end(writer);
}

static ferry_status write_index(const ferry_reshard *c, fy_writer *writer, ferry_error *error)
{
    size_t n = 0;
    uint64_t bytes = 0;
    const char **names = fy_alloc(c->totals.n_tensors, sizeof *names);
    uint32_t *part = fy_alloc(c->totals.n_tensors, sizeof *part);
    ferry_status status;
    if (names == NULL || part == NULL) {
        fy_free(names);
        fy_free(part);
        return fy_fail_no_memory(error, "an index");
    }
    for (uint32_t t = 0; t < c->job.problem.n_tensors; t++) {
        if (c->job.is_wanted[t]) {
            names[n] = c->job.problem.tensors[t].name;
            part[n++] = c->part_of[t];
        }
    }
    for (size_t i = 0; i < c->n_out; i++) {
        bytes += c->out[i].form.data_bytes;
    }
    status = fy_form_write_index(names, part, n, (uint32_t)c->n_out, bytes, writer, error);
    fy_free(names);
    fy_free(part);
    return status;
}

static ferry_status fill_text(const ferry_reshard *c, const char *path, FILE *file,
                              ferry_error *error)
{
    fy_writer *writer = fy_alloc(1, sizeof *writer);
    ferry_status status = FERRY_OK;
    FY_TRY(fy_check_memory(writer != NULL, path, error));
    fy_writer_init(writer, fy_file_write, file);
    if (c->is_sharded) {
        write_layout(c, writer);
    } else {
        status = write_index(c, writer, error);
    }
    ferry_status written = fy_writer_finish(writer, NULL);
    fy_free(writer);
    if (status == FERRY_OK && written != FERRY_OK && !ferror(file)) {
        return fy_fail_no_memory(error, path); /* it could not be put together */
    }
    if (status == FERRY_OK &&
        (written != FERRY_OK || fflush(file) != 0 || fy_file_sync(fileno(file)) != 0)) {
        return fy_fail_errno(path, "cannot be written", errno, error);
    }
    return status;
}

/* The layout file or the index: made, filled and synced. */
static ferry_status write_text(const fy_reshard_work *w, const char *name, ferry_error *error)
{
    char *path = fy_ckpt_join(w->folder.partial, name);
    FY_TRY(fy_check_memory(path != NULL, "a file name", error));
    ferry_status status;
    int descriptor =
        openat(w->folder.fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (file == NULL) {
        status = fy_fail_errno(path, "cannot be written", errno, error);
        if (descriptor >= 0) {
            close(descriptor);
        }
    } else {
        status = fill_text(w->reshard, path, file, error);
        if (fclose(file) != 0 && status == FERRY_OK) {
            status = fy_fail_errno(path, "cannot be written", errno, error);
        }
    }
    fy_free(path);
    return status;
}

ferry_status fy_reshard_write_text(fy_reshard_work *w, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    if (c->is_sharded) {
        return write_text(w, FY_LAYOUT_NAME, error);
    }
    return c->n_out > 1 ? write_text(w, FY_INDEX_NAME, error) : FERRY_OK;
}

/* ---- other files ---- */

/* Of the copy of another file. */
typedef struct copy {
    fy_reshard_work *work;
    const char *from_path, *to_path; /* for sentences */
    int from, to;
    char *buffer;
} copy;

static ferry_status write_copy(const copy *c, const char *bytes, size_t n_bytes, ferry_error *error)
{
    /* Of what was read as well. */
    FY_TRY(fy_pace_take(&c->work->pace, 2 * (uint64_t)n_bytes, error));
    for (size_t done = 0; done < n_bytes;) {
        ssize_t now = write(c->to, bytes + done, n_bytes - done);
        if (now == 0 || (now < 0 && errno != EINTR)) {
            return fy_fail_errno(c->to_path, "cannot be written", now == 0 ? ENOSPC : errno, error);
        }
        done += now < 0 ? 0 : (size_t)now;
    }
    atomic_fetch_add(&c->work->done_bytes, n_bytes);
    return FERRY_OK;
}

static ferry_status copy_bytes(const copy *c, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    while (status == FERRY_OK) {
        if (atomic_load(&c->work->stops)) {
            return fy_fail(error, FERRY_ERR_STOPPED, "was stopped before it was done");
        }
        ssize_t n = read(c->from, c->buffer, (size_t)c->work->reshard->buffers.window_bytes);
        if (n == 0) {
            break;
        }
        if (n > 0) {
            status = write_copy(c, c->buffer, (size_t)n, error);
        } else if (errno != EINTR) {
            status = fy_fail(error, FERRY_ERR_IO, "%s: cannot be read: %s", c->from_path,
                             strerror(errno));
        }
    }
    return status;
}

static ferry_status copy_open(const fy_reshard_work *w, copy *c, const char *name,
                              ferry_error *error)
{
    c->to = openat(w->folder.fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (c->to < 0) {
        return fy_fail_errno(c->to_path, "cannot be written", errno, error);
    }
    const ferry_reshard *reshard = w->reshard;
    /* Whose torch_dtype is no longer that of the tensors, it is written as it was announced. */
    bool is_new = reshard->config != NULL && strcmp(name, FY_CONFIG_NAME) == 0;
    ferry_status status = is_new ? write_copy(c, reshard->config, reshard->config_length, error)
                                 : copy_bytes(c, error);
    if (status == FERRY_OK && fy_file_sync(c->to) != 0) {
        status = fy_fail_errno(c->to_path, "cannot be written", errno, error);
    }
    if (close(c->to) != 0 && status == FERRY_OK) {
        status = fy_fail_errno(c->to_path, "cannot be written", errno, error);
    }
    return status;
}

ferry_status fy_reshard_copy_other(fy_reshard_work *w, uint32_t worker, size_t i,
                                   ferry_error *error)
{
    const ferry_checkpoint *source = w->reshard->from;
    const char *name = source->others[i].name;
    if (source->others[i].left_out != NULL) {
        return FERRY_OK;
    }
    char *path = fy_ckpt_join(source->folder, name);
    copy c = {.work = w,
              .from_path = path,
              .to_path = name,
              .from = -1,
              .buffer = w->workers[worker].window};
    ferry_status status = path == NULL
                              ? fy_fail_no_memory(error, "a file name")
                              : fy_other_open(source->folder_fd, name, path, &c.from, error);
    if (status == FERRY_OK && c.from < 0) {
        status = fy_fail(error, FERRY_ERR_IO,
                         "%s: was replaced after the folder had been listed; run again", path);
    }
    if (status == FERRY_OK) {
        status = copy_open(w, &c, name, error);
        close(c.from);
    }
    fy_free(path);
    return status;
}
