/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The checksums of a source: each tensor of a file is compared once in a job, by whoever is first.
 */
#include "checkpoint/gather.h"

#include "base/checked.h"

#include <inttypes.h>
#include <string.h>

ferry_status fy_checked_create(const ferry_checkpoint *from, fy_checked *checked,
                               ferry_error *error)
{
    *checked = (fy_checked){.from = from};
    checked->first = fy_alloc(from->n_files + 1, sizeof *checked->first);
    size_t n = 0;
    for (size_t i = 0; checked->first != NULL && i <= from->n_files; i++) {
        checked->first[i] = n;
        n += i < from->n_files ? from->files[i].header.n_tensors : 0;
    }
    checked->flags = fy_alloc_zeroed(n, sizeof *checked->flags);
    if (checked->first == NULL || checked->flags == NULL) {
        fy_checked_cleanup(checked);
        return fy_fail_no_memory(error, "the checksums of a checkpoint");
    }
    return FERRY_OK;
}

void fy_checked_cleanup(fy_checked *checked)
{
    fy_free(checked->first);
    fy_free((void *)(uintptr_t)checked->flags);
    checked->first = NULL;
    checked->flags = NULL;
}

static _Atomic unsigned char *flag_of(fy_checked *checked, uint32_t file, const fy_st_tensor *entry)
{
    size_t number = (size_t)(entry - checked->from->files[file].header.tensors);
    return &checked->flags[checked->first[file] + number];
}

ferry_status fy_checked_compare(fy_checked *checked, uint32_t file, const fy_st_tensor *entry,
                                uint64_t found, ferry_error *error)
{
    const fy_ckpt_file *f = &checked->from->files[file];
    if (atomic_exchange(flag_of(checked, file, entry), 1) == 0) {
        atomic_fetch_add(&checked->n_checked, 1);
    }
    if (entry->checksum == found) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_DIGEST,
                   "%s: the data of \"%s\" of rank %u are damaged: their checksum is %016" PRIx64
                   ", but %016" PRIx64 " was recorded",
                   f->path, entry->name, f->rank, found, entry->checksum);
}

ferry_status fy_gather_check_whole(fy_gather *gather, uint32_t file, const fy_st_tensor *entry,
                                   ferry_error *error)
{
    const fy_ckpt_file *f = &gather->job->from->files[file];
    uint64_t at = f->header.data_begin + entry->begin;
    uint64_t end = f->header.data_begin + entry->end;
    ferry_status status = FERRY_OK;
    fy_hasher hasher;
    if (!entry->has_checksum || atomic_load(flag_of(gather->checked, file, entry)) != 0) {
        return FERRY_OK;
    }
    fy_hasher_begin(&hasher);
    gather->span_begin = gather->span_end = 0;
    while (at < end && status == FERRY_OK) {
        uint64_t n = fy_min(end - at, gather->span_bytes);
        status = fy_gather_check_stop(gather, error);
        FY_THEN(status, fy_files_read(gather->files, file, at, gather->span, n, error));
        if (status == FERRY_OK) {
            fy_hasher_update(&hasher, gather->span, (size_t)n);
        }
        at += n;
    }
    return status == FERRY_OK
               ? fy_checked_compare(gather->checked, file, entry, fy_hasher_end(&hasher), error)
               : status;
}

ferry_status fy_gather_check_stop(const fy_gather *gather, ferry_error *error)
{
    return gather->stops != NULL && atomic_load(gather->stops)
               ? fy_fail(error, FERRY_ERR_STOPPED, "was stopped before it was done")
               : FERRY_OK;
}

ferry_status fy_gather_end(fy_gather *gather, ferry_error *error)
{
    for (size_t i = 0; i < gather->n_checks; i++) {
        const fy_source_check *check = &gather->checks[i];
        FY_TRY(check->next == check->entry->end - check->entry->begin
                   ? fy_checked_compare(gather->checked, check->file, check->entry,
                                        fy_hasher_end(check->hasher), error)
                   : fy_gather_check_whole(gather, check->file, check->entry, error));
    }
    return FERRY_OK;
}
